"""What the documentation shows is what happens.

In README.md and docs/*.md

* a block ```` ```console ```` is typed into a shell, page by page and in order, in a folder that looks like the
  checkout. Lines after `$ ` are commands, which a backslash at the end continues; what follows is what they print,
  where `...` stands for anything, on a line of its own for any number of lines. A command without output may print
  what it likes. It has to succeed, unless what it prints is said to hold an error;
  ```` ```console ray ```` is left out where `ray` is not installed, and ```` ```console full ````, whose commands take
  long and which no later block needs, but in `make test-full`;
* a block whose first line is `# NAME.EXT` is that file, where the shell is; `# NAME.EXT, continued` adds to it;
* a block ```` ```text ```` is a drawing.

`make` only says what it would do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from rsn.hw.versal.sources import cache_folder
from rsn.isa.overlays import page as isa_page
from rsn.tests.effort import FULL
from rsn.tests.warm_python import WarmPython

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
isa_page.main()  # docs/isa.md is made, not stored
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("[!.]*.md"))]  # not what `replacing` writes meanwhile
LEARNED_FROM = [
    "README.md",
    "docs/getting-started.md",
    "docs/models.md",
    "docs/own-overlay.md",
    "docs/rsnlib.md",
    "docs/streams.md",
    "docs/tutorial.md",
]
"""Pages to type along with: no block of theirs goes untried."""
LONG = {
    "docs/dynamic-streams.md",
    "docs/experts.md",
    "docs/generation.md",
    "docs/getting-started.md",
    "docs/many-boards.md",
    "docs/models.md",
    "docs/openai.md",
    "docs/own-overlay.md",
    "docs/quantised-models.md",
    "docs/ragged-decoding.md",
    "docs/rsnlib.md",
    "docs/serving.md",
    "docs/simulator.md",
    "docs/stream-blocks.md",
    "docs/stream-cases.md",
    "docs/stream-fifos.md",
    "docs/stream-fusion.md",
    "docs/stream-machines.md",
    "docs/streams.md",
    "docs/time.md",
    "docs/tutorial.md",
    "docs/xnn2.md",
    "docs/xnn8.md",
}
"""Pages with many commands, which share their imports (`warm_python`)."""
NOTEBOOK = DOCS / "encoder.ipynb"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: where its first line stands, what it says of its language, its lines."""

    at: int
    language: str
    lines: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Packages; or "full", that is `make test-full`."""

    @property
    def typed(self) -> bool:
        return self.language == "console" and all(
            FULL if need == "full" else find_spec(need) is not None for need in self.needs
        )

    @property
    def file(self) -> tuple[str, bool] | None:
        """Of which file it is, and whether it continues it."""
        found = re.fullmatch(r"(?:#|//) ([\w-]+\.\w+)(, continued)?", self.lines[0]) if self.lines else None
        return (found[1], bool(found[2])) if found else None


@dataclass(frozen=True)
class Command:
    """A command and what it is said to print."""

    at: int
    text: str
    shown: tuple[str, ...]

    @property
    def fails(self) -> bool:
        return any(re.match(r"(\S+: )?error: ", line) for line in self.shown)


def blocks(page: Path) -> list[Block]:
    found = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for at, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if opened is None:
            if fence := re.fullmatch(r"(`{3,})([^`]*)", line):
                opened, lines = (at + 1, fence[1], fence[2].strip()), []
        elif line == opened[1]:
            language, *needs = opened[2].split() or [""]
            found.append(Block(opened[0], language, tuple(lines), tuple(needs)))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{name_of(page)}:{opened}: a block without an end"
    return found


def commands(block: Block) -> Iterator[Command]:
    at, lines = 0, block.lines
    assert lines[0].startswith("$ "), f"line {block.at}: the first line is no command"
    while at < len(lines):
        start, text = at, lines[at].removeprefix("$ ")
        while text.endswith("\\"):
            at += 1
            text += "\n" + lines[at]
        at += 1
        shown = at
        while at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        yield Command(block.at + start, text, lines[shown:at])


def pattern(shown: tuple[str, ...]) -> str:
    """A regular expression for what is said to be printed."""
    rows = (
        r"(?:[^\n]*\n)*?" if line == "..." else r"[^\n]*".join(map(re.escape, line.rstrip().split("..."))) + r"[ ]*\n"
        for line in shown
    )
    return "".join(rows)


NOISE = re.compile(r"(Failed to load \S*torchao/\S+: |W\d{4} .*register_constant\(\) on Enum subclasses).*\n")
"""What torchao prints where it has no GPU, or where torch has a newer way, also as transformers imports it."""


class Shell:
    """A shell in a folder that looks like the checkout. What a command exports, and where it goes to, stays."""

    def __init__(self, folder: Path, python: Path | None = None) -> None:
        """python: a folder with other programs `python` and `rsn` than those of this environment."""
        self._cwd, self._exported = folder / ".cwd", folder / ".exported"
        self._groups: list[int] = []
        self._cwd.write_text(str(folder))
        self._exported.touch()
        scripts = Path(sys.executable).parent
        assert (scripts / "rsn").exists(), f"no rsn in {scripts}"
        path = os.pathsep.join([*([str(python)] if python else []), str(scripts), os.environ.get("PATH", "")])
        built = cache_folder()  # the C++ machine is built once for all pages
        built.mkdir(parents=True, exist_ok=True)
        (folder / ".cache" / "rsn").mkdir(parents=True)
        (folder / ".cache" / "rsn" / "csim").symlink_to(built)
        self._environment = os.environ | {"PATH": path, "XDG_CACHE_HOME": str(folder / ".cache"), "MAKEFLAGS": "n"}
        for name in ("Makefile", "benchmarks", "docs", "programs", "pyproject.toml"):
            (folder / name).symlink_to(ROOT / name)

    @property
    def cwd(self) -> Path:
        return Path(self._cwd.read_text().strip())

    def run(self, command: str) -> tuple[int, str]:
        """Exit code, and what is printed."""
        kept = f"code=$?\npwd > {self._cwd}\nexport -p > {self._exported}\nexit $code"
        started = subprocess.Popen(
            ["bash", "-c", f". {self._exported}\n{command}\n{kept}"],
            cwd=self.cwd,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        self._groups.append(started.pid)
        printed, _ = started.communicate(timeout=300)
        printed = NOISE.sub("", printed)
        return started.returncode, printed + "\n" * (printed[-1:] not in ("", "\n"))  # as curl leaves a line open

    def close(self) -> None:
        """End what still runs in the background."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)


def tried(page: Path, folder: Path, python: WarmPython | None = None) -> int:
    """Do what a page says; how many commands it has."""
    with closing(Shell(folder, python.bin if python else None)) as shell:
        return typed(page, shell)


def typed(page: Path, shell: Shell) -> int:
    count = 0
    for block in blocks(page):
        if block.file is not None:
            name, more = block.file
            with (shell.cwd / name).open("a" if more else "w", encoding="utf-8") as file:
                file.write("\n".join(block.lines[more:]) + "\n")
        for command in commands(block) if block.typed else ():
            count += 1
            code, printed = shell.run(command.text)
            where = f"{name_of(page)}:{command.at}: {command.text}"
            assert bool(code) == command.fails, f"{where}\nexit code {code}\n{printed}"
            if command.shown and not re.fullmatch(pattern(command.shown), printed):
                shown = "\n".join(command.shown)
                pytest.fail(f"{where}\n--- the page shows\n{shown}\n--- it prints\n{printed}", pytrace=False)
    return count


def marks(page: Path) -> list[pytest.MarkDecorator]:
    """Of the test of a page: one with blocks for `make test-full` is typed there, too."""
    has_full = FULL and any("full" in block.needs for block in blocks(page))
    return [pytest.mark.long] * (has_full or name_of(page) in LONG) + [pytest.mark.full] * has_full


TYPED = [page for page in PAGES if any(block.typed for block in blocks(page))]


@pytest.mark.parametrize("page", [pytest.param(p, id=name_of(p), marks=marks(p)) for p in TYPED])
def test_commands_print_what_is_shown(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = request.getfixturevalue("warm_python") if name_of(page) in LONG else None
    assert tried(page, tmp_path, python)


@pytest.mark.parametrize("name", LEARNED_FROM)
def test_no_block_of_these_pages_goes_untried(name: str) -> None:
    idle = [b for b in blocks(ROOT / name) if b.language not in ("console", "text") and not b.file]
    assert [f"{name}:{b.at}" for b in idle] == []


# -- the rules above ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a", "a\nb\n", False),
        ("a\n...", "a\nb\nc\n", True),
        ("a\n...\nc", "a\nc\n", True),
        ("a\n...\nc", "a\nb\n", False),
        ("took ... s.", "took 0.1 s.\n", True),
        ("took ... s.", "took\n0.1 s.\n", False),
        ("1.5 (a)", "1x5 (a)\n", False),
    ],
)
def test_three_dots_stand_for_anything(shown: str, printed: str, same: bool) -> None:
    assert bool(re.fullmatch(pattern(tuple(shown.split("\n"))), printed)) == same


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ echo one\ntwo\n```",
        "```console\n$ false\n```",
        "```console\n$ echo x\nerror: x\n```",
        "```text\n# a.txt\n1\n```\n```console\n$ cat a.txt\n2\n```",
    ],
)
def test_a_page_that_is_wrong_is_noticed(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    folder = tmp_path / "typed"
    folder.mkdir()
    monkeypatch.setitem(globals(), "name_of", str)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        tried(page, folder)


# -- links --------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and the site too."""
    prose = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", h).lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere_in_the_repository(page: Path) -> None:
    prose = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        there = file.exists() and file.is_relative_to(ROOT)
        if not there or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"^([\w-]+)$", "\n".join(line for b in blocks(DOCS / "index.md") for line in b.lines), re.M)
    pages = {p.stem for p in DOCS.iterdir() if p.suffix in (".md", ".ipynb")} - {"index"}
    assert sorted(listed) == sorted(pages)


# -- README, pictures, notebook -----------------------------------------------------------------------------------


def test_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_figures_of_the_readme_are_those_of_the_page_on_time() -> None:
    def rows(page: Path) -> list[str]:
        return [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]

    figures = [row for row in rows(ROOT / "README.md") if re.search(r"calibrated|predicted", row)]
    assert figures
    assert [row for row in figures if row not in rows(DOCS / "time.md")] == []


@pytest.mark.long
def test_pictures_are_what_the_simulator_draws() -> None:
    """If not: make generate."""
    from rsn.docs import timeline

    drawn = timeline.pictures()
    assert sorted(drawn) == sorted(p.name for p in timeline.PICTURES.glob("*.svg"))
    assert [name for name, svg in drawn.items() if (timeline.PICTURES / name).read_text(encoding="utf-8") != svg] == []


def test_the_notebook_is_kept_without_results() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [c["source"] for c in cells if c.get("outputs") or c.get("execution_count")] == []
