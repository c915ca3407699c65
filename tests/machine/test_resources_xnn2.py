"""Resources and cycles of the overlay xnn2."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.overlays.xnn2.cycles import LOOPS
from rsn.isa.overlays.xnn2.ports import STREAM_BEATS, TILE_TOKEN, has_fifo
from rsn.isa.overlays.xnn2.resources import ANSWERS, is_wide, size_of
from rsn.isa.versal.placement import placement_header, shims
from rsn.isa.versal.tiles import BEATS, TILE
from rsn.machine.resources import VC1902, ResourceUse, budget, plan, require_fits


def rows(overlay: Overlay) -> dict[str, ResourceUse]:
    return {row.resource: row for row in budget(overlay.resources(overlay), VC1902)}


def test_it_fits() -> None:
    found = rows(XNN2)
    require_fits(found.values(), VC1902)
    assert [found[r].needed for r in ("AIE", "PLIO in", "PLIO out")] == [384, 192, 96]
    most = {"URAM": 0.87, "BRAM": 0.62, "DSP": 0.87, "LUT": 0.60, "FF": 0.46}
    assert all(found[resource].share <= share for resource, share in most.items())
    assert plan(found.values(), VC1902).average < 0.79


def test_ultra_rams_hold_what_the_memories_hold() -> None:
    """X of 1 MiB in 32 blocks of 32 KiB; T of 512 KiB and 1024 KiB; K and V of 384 KiB each, in blocks of 4096
    words."""
    found = rows(XNN2)
    kib = {"rows in X": 6 * 1024, "tiles in T": 3 * (512 + 1024), "keys": 2 * 512, "values": 2 * 512}
    assert {part: n * 32 for part, n in found["URAM"].parts.items()} == kib


@pytest.mark.parametrize(
    ("kind", "resource", "part"),
    [("XIn", "URAM", "rows in X"), ("TIn", "URAM", "tiles in T"), ("KvIn", "URAM", "keys"), ("KvIn", "URAM", "values")],
)
def test_twice_the_slots_take_twice_the_blocks(kind: str, resource: str, part: str) -> None:
    def wider(memory: object) -> object:
        return dataclasses.replace(memory, slots=2 * memory.slots)  # type: ignore[attr-defined, type-var]

    units = tuple(dataclasses.replace(u, memory=wider(u.memory)) if u.kind == kind else u for u in XNN2.units)  # type: ignore[arg-type]
    changed = dataclasses.replace(XNN2, units=units)
    assert rows(changed)[resource].parts[part] == 2 * rows(XNN2)[resource].parts[part]


def test_only_stated_streams_hold_tiles() -> None:
    """Streams of tiles that have a FIFO have one of a tile; those to MMEs and from them end in the array."""
    kinds = {name: u.kind for name, u in XNN2.by_unit.items()}
    tiles = [s for s in XNN2.streams if s.token is TILE_TOKEN]
    held = {(kinds[s.src], kinds[s.dst]): size_of(XNN2, s)[1] for s in tiles if has_fifo(s)}
    assert {pair: n for pair, n in held.items() if "MME" not in pair} == {("XOut", "C"): BEATS, ("C", "Post"): BEATS}
    assert {size_of(XNN2, s)[1] for s in tiles if not has_fifo(s)} == {STREAM_BEATS}
    blocks = rows(XNN2)["BRAM"].parts
    assert {p for p in blocks if p.startswith("streams")} == {
        "streams XOut->C",
        "streams C->Post",
        "streams DDR->W",
    }


def test_what_feeds_an_mme_or_a_softmax_takes_a_round() -> None:
    """An MME takes a tile in as many cycles as its rate says; a Softmax gets one in those of K = 64."""
    cycles = XNN2.seconds["mme_tile_us"] * XNN2.clock_hz, XNN2.seconds["mme_k64_us"] * XNN2.clock_hz
    for name in ("send", "mesh", "take"):
        assert BEATS * LOOPS[name].ii * LOOPS[name].rounds < cycles[0]
    for name in ("softmax", "send"):
        assert BEATS * LOOPS[name].ii * LOOPS[name].rounds < cycles[1]


def test_the_sources_have_the_depths_that_are_counted(root: Path) -> None:
    """FIFOs of answers of X natively and in hardware, and the cycles until a tile of X is written."""

    def stated(file: str, name: str) -> list[int]:
        text = (root / "hw/versal/xnn2" / file).read_text(encoding="utf-8")
        return [int(number) for number in re.findall(rf"constexpr unsigned {name} = (\d+)", text)]

    _, asked_ahead = stated("memories.h", "asked_ahead")
    (write_cycles,) = stated("rows.cpp", "write_cycles")
    (stream_beats,) = re.findall(r"stream_beats = (\d+);", (root / "hw/versal/xnn2/memories.h").read_text("utf-8"))
    assert int(stream_beats) == STREAM_BEATS
    assert asked_ahead + 1 == ANSWERS
    assert write_cycles < LOOPS["rows"].fill


def test_plios_lie_as_those_of_xnn() -> None:
    """Both machines share the graph, its header and the link configuration."""
    assert shims(XNN2) == shims(XNN)
    assert placement_header(XNN2) == placement_header(XNN)


def test_the_page_has_these_figures(root: Path) -> None:
    text = (root / "docs/xnn2.md").read_text(encoding="utf-8")
    flat = " ".join(text.split())
    found = rows(XNN2)
    streams = sum(n for part, n in found["LUT"].parts.items() if part.startswith("streams ") and "->" in part)
    wide = sum(is_wide(s) and "MME" not in s.name for s in XNN2.streams)
    assert f"Its {wide} streams of 1024 bit take {round(streams, -3):,} of the LUTs" in flat
    assert f"(ships) | {found['BRAM'].needed}, {found['BRAM'].share:.0%}".replace("%", " %") in text


def test_cycles_differ_from_the_simulators_for_a_reason() -> None:
    for cost in XNN2.costs(XNN2):
        assert abs(cost.difference) < 0.06 or cost.remark, cost.what
    named = {c.what: c for c in XNN2.costs(XNN2)}
    assert named["X: send eight tiles, normalised"].cycles > 8 * BEATS + TILE


def test_commands_show_them() -> None:
    for option, text in (("--resources", "192  rows in X"), ("--cycles", "C: a tile, with bias or residual")):
        told = CliRunner().invoke(main, ["info", option, "--overlay", "xnn2"])
        assert told.exit_code == 0, told.output
        assert text in told.output
