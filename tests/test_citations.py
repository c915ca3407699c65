"""Every section that code and tests cite is a heading of the contract (docs/contract.md), or a section of a paper.

"contract 1.3", "contract sections 1.4 and 2", "paper section 4.3", "STeP v2, section 3.2", "MICRO'25, section 5.2.1".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEADING = re.compile(r"#{2,} (\d+(?:\.\d+)*)\.? ")
NUMBERS = r"\d+(?:\.\d+)*(?:(?:, and |, | and | to )\d+(?:\.\d+)*)*(?![\w%/]|\.\d| ms)"
WORKS = "[Cc]ontract|[Pp]aper|STeP v1|STeP v2|v1|v2|STeP|MICRO'25|StreamTensor|Dato"
CITED = re.compile(rf"\b({WORKS}),? (?:sections? ({NUMBERS})|({NUMBERS}))")
ALONE = re.compile(rf"(?<!\w)[Ss]ections? ({NUMBERS})")
OF_THE_PAPER = "cli/published/"
"""Compares with the paper, and prints notes that cite its sections by numbers alone."""
PAGE = re.compile(r"(?<![\w/])docs/([\w-]+\.md)(#[\w-]+)?")
MADE = {"isa.md"}
"""Pages that `make generate` writes from tables."""
SECTION = re.compile(r"\d+(?:\.\d+)*")


def sections(chapters: Mapping[int, int], **deeper: int) -> frozenset[str]:
    """The sections of a paper. chapters: how many sections each has. deeper: the same of sections, such as s3_2."""
    found = {str(chapter) for chapter in chapters}
    found |= {f"{chapter}.{n}" for chapter, count in chapters.items() for n in range(1, count + 1)}
    for name, count in deeper.items():
        found |= {f"{name[1:].replace('_', '.')}.{n}" for n in range(1, count + 1)}
    return frozenset(found)


RSN = sections({1: 0, 2: 5, 3: 3, 4: 5, 5: 7, 6: 0, 7: 0})
STEP_V1 = sections({1: 0, 2: 3, 3: 2, 4: 3, 5: 4, 6: 3, 7: 0, 8: 0}, s3_2=5)
STEP_V2 = sections({1: 0, 2: 3, 3: 3, 4: 5, 5: 6, 6: 2, 7: 0, 8: 0, 9: 0}, s3_2=5)
STREAMTENSOR = sections({1: 4, 2: 0, 3: 2, 4: 3, 5: 3, 6: 2, 7: 0, 8: 0}, s3_1=3, s3_2=3, s5_2=2, s5_3=4)
DATO = sections({1: 0, 2: 2, 3: 4, 4: 3, 5: 2, 6: 0, 7: 6, 8: 0}, s7_2=2)


def contract() -> frozenset[str]:
    lines = (ROOT / "docs" / "contract.md").read_text("utf-8").splitlines()
    return frozenset(found[1] for line in lines if (found := HEADING.match(line)))


def known() -> dict[str, frozenset[str]]:
    """The sections of each work, by the word that cites it. STeP alone is a section that both versions have."""
    steps = {"v1": STEP_V1, "v2": STEP_V2, "STeP v1": STEP_V1, "STeP v2": STEP_V2, "STeP": STEP_V1 & STEP_V2}
    return {
        "contract": contract(),
        "paper": RSN,
        "MICRO'25": STREAMTENSOR,
        "StreamTensor": STREAMTENSOR,
        "Dato": DATO,
        **steps,
    }


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def one_line(text: str) -> str:
    """A text without its line breaks, and without the marks of comments at the beginnings of lines."""
    return re.sub(r"[ \t]*\n[ \t]*(?:(?:#|//|\*)[ \t]*)?", " ", text)


def wrong(text: str, works: Mapping[str, frozenset[str]], alone: str = "") -> Iterator[str]:
    """The citations of a text that lead nowhere. alone: the work of sections that stand without one; "" for none."""
    text = one_line(text)
    for found in CITED.finditer(text):
        work = found[1].lower() if found[1].lower() in works else found[1]
        for number in SECTION.findall(found[2] or found[3]):
            if number not in works[work]:
                yield f"{found[0]!r}: no section {number}"
    resolved = [found.span() for found in CITED.finditer(text)]
    for found in ALONE.finditer(text):
        if any(start <= found.start() < end for start, end in resolved):
            continue
        if not alone or not works[alone].issuperset(SECTION.findall(found[1])):
            yield f"{found[0]!r}: of what? {text[max(0, found.start() - 40) : found.start()]!r}"
    for found in PAGE.finditer(text):
        page = ROOT / "docs" / found[1]
        if found[1] in MADE:
            continue
        if not page.is_file() or (found[2] and found[2][1:] not in anchors(page)):
            yield f"{found[0]!r}: no such page or heading"


def sources() -> list[str]:
    patterns = ["*.py", "*.h", "*.hpp", "*.cpp", "*.cc"]
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    return [x for x in listed.stdout.splitlines() if x != "tests/test_citations.py"]


def test_every_citation_names_a_section() -> None:
    works = known()
    faults = [
        f"{x}: {why}"
        for x in sources()
        for why in wrong((ROOT / x).read_text("utf-8"), works, "paper" if x.startswith(OF_THE_PAPER) else "")
    ]
    assert not faults, "\n".join(faults)


def test_sources_cite_the_contract() -> None:
    """Else the test above would look at nothing."""
    cited = sum(
        found[1].lower() == "contract" for x in sources() for found in CITED.finditer(one_line((ROOT / x).read_text()))
    )
    assert cited > 50


@pytest.mark.parametrize(
    "text",
    [
        "contract 1.9",
        "contract sections 1.4 and\n    # 12",
        "the formats (contract sections 1.1, 1.2,\n2 and 77)",
        "paper section 4.6",
        "STeP v1, section 5.5",
        "StreamTensor, section 5.2.3",
        "design section 4",
        "docs/contract.md#2-unit",
        "docs/contrakt.md",
    ],
)
def test_an_unknown_section_is_found(text: str) -> None:
    assert list(wrong(text, known()))
