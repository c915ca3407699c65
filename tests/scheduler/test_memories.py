"""The XNN datapath with memories of other sizes and numbers of slots: any program is right, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import UnsupportedError
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.file import made
from rsn.isa.verify import check
from rsn.machine.plan import execute as timed
from rsn.scheduler.build import build
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.schedule import PAPER, Interleave, Loops, Schedule
from rsn.tests.effort import examples, long

from .networks import Maker, error, execute, reference

ROWS = {"MemA": (128, 256, 384), "MemB0": (128, 256, 384), "MemB2": (128, 256, 384, 640), "MemC": (128, 256, 384)}
COLUMNS = {"MemB0": (256, 384, 512), "MemC": (256, 384, 512)}
SLOTS = (2, 3, 4, 5)


def overlay_of(memories: dict[str, dict[str, int]]) -> Overlay:
    """XNN with these sizes, as an overlay file says them."""
    lines = ['name = "drawn"', 'overlay = "xnn"']
    for unit, sizes in memories.items():
        lines += [f"[memories.{unit}]", *(f"{name} = {value}" for name, value in sizes.items())]
    return made("\n".join(lines), "drawn.toml")


@st.composite
def overlays(draw: st.DrawFn) -> Overlay:
    memories: dict[str, dict[str, int]] = {}
    for unit, rows in ROWS.items():
        memories[unit] = {"slots": draw(st.sampled_from(SLOTS)), "rows": draw(st.sampled_from(rows))}
        if unit in COLUMNS:
            memories[unit]["columns"] = draw(st.sampled_from(COLUMNS[unit]))
    return overlay_of(memories | {"MemB1": dict(memories["MemB0"])})


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    knobs: dict[str, Any] = {
        "interleave": draw(st.sampled_from([x for x in Interleave if x is not Interleave.PUBLISHED])),
        "loops": draw(st.sampled_from(Loops)),
        "balance": draw(st.booleans()),
        "attention": draw(st.sampled_from([None, *MappingType])),
        "heads_per_slot": draw(st.sampled_from([1, 2, 4])),
    }
    return Schedule(**knobs)


@examples(40, quick=3)
@given(
    overlays(),
    schedules(),
    st.sampled_from([(1, 128), (2, 200), (1, 384), (2, 384), (1, 700), (3, 60), (1, 900)]),
    st.sampled_from([(1, 64), (2, 300), (3, 1300), (5, 700)]),
)
def test_any_memories_compute_the_same(
    overlay: Overlay, schedule: Schedule, sizes: tuple[int, int], widths: tuple[int, int]
) -> None:
    (batch, seq), (heads, inner) = sizes, widths
    network = Maker().encoder(batch, seq, 64 * heads, heads, inner, layers=2)
    x = np.random.default_rng(1).standard_normal((batch, seq, network.inputs["x"])).astype(np.float32)
    reason = ""
    try:
        y, _, _ = execute(network, x, overlay, schedule)
    except UnsupportedError as refused:
        reason = str(refused)
    if reason:
        assert reason.startswith("l0.attention: ")
        assert "overlay drawn takes" in reason or "leave one memory of a softmax without any" in reason
        return
    assert error(y, reference(network, x)) < 1e-5


@pytest.mark.long
def test_more_slots_and_rows_are_faster_and_pass_all_checks() -> None:
    wide = overlay_of({"MemA": {"slots": 4}, "MemB0": {"rows": 256}, "MemB1": {"rows": 256}})
    network = Maker().encoder(6, 512, 1024, 16, 4096)
    for schedule, most in ((PAPER, 1.0), (Schedule(loops=Loops.ROWS), 0.95)):
        programs = [build(network, overlay, schedule).program for overlay in (XNN, wide)]
        times = [timed(program.overlay, InstructionPath.of(program)).latency for program in programs]
        assert times[1] < most * times[0]
    assert [finding for finding in check(programs[1]) if not finding.warning] == []


@pytest.mark.parametrize(
    ("memories", "seq", "schedule"),
    [
        ({"MemB0": {"rows": 256}}, 200, PAPER),
        ({"MemB1": {"columns": 256}, "MemC3": {"columns": 384}}, 300, PAPER),
        ({"MemA0": {"slots": 4}, "MemA1": {"slots": 3}}, 300, Schedule(loops=Loops.ROWS)),
        ({"MemA1": {"rows": 128}}, 384, PAPER),
        long({"MemB2": {"rows": 256}}, 1024, PAPER),
        long({"MemB2": {"rows": 128, "slots": 3}}, 1024, Schedule(interleave=Interleave.LISTED)),
        ({"MemC": {"columns": 256}}, 200, PAPER),
    ],
    ids=str,
)
def test_memories_of_a_kind_may_differ(memories: dict[str, dict[str, int]], seq: int, schedule: Schedule) -> None:
    """The smallest counts, and slices are sent again only where every memory holds the same."""
    overlay = overlay_of(memories)
    network = Maker().encoder(1, seq, 256, 4, 1100)
    x = np.random.default_rng(1).standard_normal((1, seq, 256)).astype(np.float32)
    y, _, _ = execute(network, x, overlay, schedule)
    assert error(y, reference(network, x)) < 1e-5
    assert [f for f in check(build(network, overlay, schedule).program) if not f.warning] == []


def test_a_norm_of_all_columns_of_a_small_memory() -> None:
    """Its register says 512 at power-on, and means the columns that there are."""
    small = {"rows": 128, "columns": 256}
    memories = {"MemA": {"rows": 128}, "MemB0": small, "MemB1": small, "MemB2": {"rows": 128}, "MemC": small}
    overlay, network = overlay_of(memories), Maker().encoder(2, 200, 320, 5, 700)
    x = np.random.default_rng(1).standard_normal((2, 200, 320)).astype(np.float32)
    y, _, _ = execute(network, x, overlay, PAPER)
    assert error(y, reference(network, x)) < 1e-5


@pytest.mark.parametrize(("units", "rows", "columns"), [(4, 2, 2), (2, 1, 2)])
def test_fewer_units_form_a_smaller_grid(units: int, rows: int, columns: int) -> None:
    overlay = made(f'overlay = "xnn"\n[units]\nMME = {units}\nMemC = {units}', "few.toml")
    assert overlay.patterns is not None
    assert (overlay.patterns.grid.rows, overlay.patterns.grid.columns) == (rows, columns)
    network = Maker().gemm(700, 300, 900)
    x = np.random.default_rng(1).standard_normal((1, 700, 300)).astype(np.float32)
    for schedule in (PAPER, Schedule(interleave=Interleave.LISTED, loops=Loops.ROWS)):
        y, _, _ = execute(network, x, overlay, schedule)
        assert error(y, reference(network, x)) < 1e-5
    with pytest.raises(UnsupportedError, match=r"l0.attention: attention needs .* overlay few do not form; xnn"):
        build(Maker().encoder(1, 256, 128, 2, 256), overlay, PAPER)


@pytest.mark.parametrize("rows", [128, 384])
def test_links_between_neighbours_hold_a_column(rows: int) -> None:
    overlay = overlay_of({"MemC": {"rows": rows}})
    assert {s.depth for s in overlay.streams if s.label} == {max(rows, 256)}
