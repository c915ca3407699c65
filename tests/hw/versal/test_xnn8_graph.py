"""The AI Engine graph of xnn8 is that of overlay and page, it fits the array, and mistakes in it are found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from rsn.hw.versal import check, check_pairs, check_places
from rsn.hw.versal.check import Sources
from rsn.hw.versal.sources import sources
from rsn.isa.overlays.xnn8 import placement
from rsn.isa.overlays.xnn8.tile_streams import NARROW_BITS, PLIO_BITS, TILE_STREAMS

Check = Callable[[list[str]], check_pairs.Findings]


@cache
def graph() -> list[str]:
    """The graph of the sources as they are: to compile it takes some seconds."""
    return Sources(sources(), "xnn8").graph


@pytest.mark.long
def test_check_finds_nothing_wrong() -> None:
    """But for what HLS makes of it, which test_hlscheck.py has."""
    of_xnn8 = Sources(sources(), "xnn8")
    of_xnn8.__dict__["graph"] = graph()
    assert [finding for one in check.CHECKS if one is not check.hls for finding in one(of_xnn8)] == []


@pytest.mark.long
def test_plios_are_those_of_the_overlay(root: Path) -> None:
    """As its resources count them, and the page."""
    found = Counter((bool(p["inward"]), p["bits"]) for p in check_places.parts(graph())[0])
    counted: Counter[tuple[bool, int]] = Counter()
    for of in TILE_STREAMS.values():
        counted[of.into, PLIO_BITS] += of.all - of.narrow
        counted[of.into, NARROW_BITS] += of.narrow
    assert found == +counted == {(True, 128): 78, (True, 64): 18, (False, 128): 48}
    page = (root / "docs/xnn8.md").read_text(encoding="utf-8")
    for row in ("of 128 bit, in | 78", "of 64 bit beside them, in | 18", "of 128 bit, out | 48"):
        assert f"| PLIOs {row} |" in page
    clocks = {(p["bits"], p["mhz"]) for p in check_places.parts(graph())[0]}
    assert clocks == {(128, 0), (64, 440)}


@pytest.mark.long
def test_memory_is_that_of_the_page(root: Path) -> None:
    """Bytes of each part, and of all."""
    page = (root / "docs/xnn8.md").read_text(encoding="utf-8")
    first, last = check_places.parts(graph())[1][:2]
    lies = check_pairs.contents(first, last)
    sizes = {which: Counter[str]() for which in lies}
    for which, parts in lies.items():
        for name, begin, end in parts:
            sizes[which][name.partition(",")[0]] += end - begin
    rows = ["chunks of rows", "weights", "sums", "results", "maxima"]
    for name, row in zip(("A", "B", "sums", "C", "what the first tile gets"), rows, strict=True):
        columns = (f"{sizes[which][name]:,}" if sizes[which][name] else "" for which in ("first", "last"))
        shown = " | ".join(columns).strip()
        assert re.search(rf"^\| {row}[^|]* \| {re.escape(shown)} \|", page, re.MULTILINE), (name, shown)
    totals = [f"{of.total():,}" for of in sizes.values()]
    assert f"| together | {' | '.join(totals)} |" in page


MISTAKES: list[tuple[Check, str, str, str]] = [
    (check_pairs.plios, '"A0_0_0"', '"A0_0_9"', "A0_0_0 is missing"),
    (check_pairs.plios, '"bits": 64, "mhz": 440', '"bits": 128, "mhz": 0', "A1_7_0 leads in with 128 bit"),
    (check_pairs.plios, '"mhz": 440', '"mhz": 0', "A1_7_0 has 64 bit and no clock of its own"),
    (check_pairs.plios, '"packets": 1', '"packets": 0', "C0_0_0 has no packets"),
    (check_pairs.plios, '"at": [[6, 4]]', '"at": [[6, 0]]', "A0_0_1 lies at [[6, 0]]; isa/overlays/xnn8/placement.py"),
    (check_pairs.tiles, '{"at": [[1, 0]]', '{"at": [[2, 0]]', "G.of[0][0][0].first lies at [[2, 0]]"),
    (check_pairs.tiles, '"cascades": [{"to": [[2, 0]]}]', '"cascades": [{"to": [[3, 0]]}]', "leads to [(3, 0)]"),
    (check_pairs.tiles, '"count": 1, "to": [[1, 0]]', '"count": 1, "to": []', "G.of[0][0][0].last has no buffer"),
    (check_pairs.memory, "[1, 0, 2080]", "[1, 0, 2048]", "the first tile of a pair: A at 0x800 begins before"),
    (check_pairs.memory, "[1, 0, 2080]", "[9, 0, 2080]", "A lies in the memory of another pair"),
    (check_pairs.memory, "[[1, 0, 0], [1, 0, 2080]]", "[[1, 0, 0]]", "A has 1 addresses, not 2"),
    (check_pairs.memory, "[1, 0, 13536]", "[1, 0, 13544]", "B at 0x34e8 is not aligned to 32 bytes"),
    (check_pairs.memory, "[1, 0, 16384]", "[1, 0, 16416]", "it ends at 0x8020; a tile's memory ends at 0x8000"),
    (check_pairs.memory, "[1, 0, 16384]", "[1, 0, 16416]", "sums of even blocks and sums of odd blocks share a bank"),
    (check_pairs.memory, "[1, 0, 13536]", "[1, 0, 4096]", "the first tile of a pair: A and B share a bank"),
]


@pytest.mark.long
@pytest.mark.parametrize(("checked", "old", "new", "finding"), MISTAKES)
def test_check_finds_a_wrong_place(checked: Check, old: str, new: str, finding: str) -> None:
    changed = [line.replace(old, new) for line in graph()]
    assert changed != graph()
    assert finding in "\n".join(checked(changed))


def test_places_of_plios() -> None:
    """Each has channels of its own."""
    taken = Counter[tuple[bool, int, int]]()
    for plio, (column, channel) in ((p, (at.column, at.channel)) for p, at in placement.shims().items()):
        taken.update((plio.stream.into, column, channel + i) for i in range(plio.stream.bits // 64))
    assert len(placement.shims()) == 96 + 48
    assert set(taken.values()) == {1}
