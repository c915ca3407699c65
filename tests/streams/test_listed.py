"""Listed programs, each with the verdict that an independent oracle gave; and findings as they are printed."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rsn import streams
from rsn.streams import language
from rsn.streams.check import check, report_on
from rsn.streams.mapping.errors import CODES as MAPPING_CODES
from rsn.streams.reader import read
from rsn.streams.source import CODES

LISTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "listed.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LISTED)
def test_verdict(name: str) -> None:
    report = check(LISTED[name]["program"], f"{name}.py")
    assert report.code == LISTED[name]["code"], str(report)


def test_all_listed_programs_are_here() -> None:
    assert len(LISTED) == 40


@pytest.mark.parametrize(
    ("name", "least"),
    [("I5", "depth 3 of s"), ("I6", "depth 4 of s"), ("I9", "depth 2 of t")],
)
def test_least_depth(name: str, least: str) -> None:
    (finding,) = check(LISTED[name]["program"]).findings
    assert f"{least} is the least with which it ends, others as declared" in finding.notes


def test_a_value_that_some_paths_read_is_a_warning_and_strict_an_error() -> None:
    text = LISTED["W17"]["program"]
    (finding,) = check(text).findings
    assert (finding.code, finding.warning) == ("unread", True)
    assert check(text, strict=True).code == "unread"


def test_count_as_printed() -> None:
    assert str(check(LISTED["I2"]["program"], "prog.py")) == (
        "prog.py:7:9: error: 4 puts more than gets on s: 8 put, 4 got [leak]\n"
        "        s.put(0)\n"
        "        ^^^^^^^^\n"
        "note: they are left on the stream at the end; its depth is 4"
    )


def test_least_depth_as_printed() -> None:
    assert str(check(LISTED["I5"]["program"], "prog.py")) == (
        "prog.py:7:9: error: a cycle of waits: fork waits to put s (2/2); join waits to get t (0/1) [depth]\n"
        "        s.put(i)\n"
        "        ^^^^^^^^\n"
        "note: depth 3 of s is the least with which it ends, others as declared"
    )


def test_join_as_printed() -> None:
    assert str(check(LISTED["I8"]["program"], "prog.py")) == (
        "prog.py:6:8: error: a: the arms leave different tokens: put s 1 against 0, put t 0 against 1 [join]\n"
        "    if data():\n"
        "       ^^^^^^\n"
        "note: puts and gets must not depend on data: move them out of the branch\n"
        "note: in rsn.streams.dynamic they may (docs/dynamic-streams.md#where-data-decide): Partition, "
        "FlatMap(WhereTrue()), SortedMerge"
    )


def test_every_code_is_documented(root: Path) -> None:
    text = (root / "docs" / "findings.md").read_text(encoding="utf-8").partition("## Stream programs")[2]
    checked, _, mapped = text.partition("## Mappings of stream programs")
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", checked, re.M) == [*CODES.items()]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", mapped, re.M) == [*MAPPING_CODES.items()]


def test_limits_are_documented(root: Path) -> None:
    text = (root / "docs" / "streams.md").read_text(encoding="utf-8").partition("## Limits")[2]
    rows = re.findall(r"^\| `([\w.]+)\.([A-Z]+)` \| ([\d,]+) \|", text, re.M)
    assert len(rows) > 8
    modules = {name: importlib.import_module(f"rsn.streams.{name}") for name, _, _ in rows}
    stated = {f"{name}.{limit}": int(value.replace(",", "")) for name, limit, value in rows}
    assert stated == {f"{name}.{limit}": getattr(modules[name], limit) for name, limit, _ in rows}


def test_every_name_of_the_language_is_documented(root: Path) -> None:
    rules = (root / "docs" / "streams.md").read_text(encoding="utf-8").partition("## The rules")[2]
    missing = {n for n in streams.__all__ if not re.search(rf"\b{n}\b", rules)}
    assert missing == set()


@pytest.mark.parametrize("name", ["I10", "I11"])
def test_what_is_refused_although_it_ends_says_so(name: str) -> None:
    assert "note: every outcome runs to its end" in str(check(LISTED[name]["program"]))
    assert "runs to its end" not in str(check(LISTED[name]["program"].replace("s.put(1)", "s.put(1)\n    s.put(1)", 1)))


def test_an_imported_program_takes_what_the_reader_takes() -> None:
    report = report_on(read("from rsn.streams import *\n\n@task(mapping=[1], other=1)\ndef f():\n    pass\n", "p.py"))
    (finding,) = report.findings
    assert set(re.findall(r"(\w+)=", finding.message)) == set(inspect.signature(language.task).parameters)
