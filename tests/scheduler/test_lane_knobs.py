"""Knobs of row lanes and sizes of their memories: results stay right, or the choice is refused with its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError, ProgramError, RsnError, ScheduleError, UnsupportedError
from rsn.hw.sim.machine import Machine
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.file import made
from rsn.isa.overlays.xnn2 import XNN2
from rsn.rsnlib import lane_search
from rsn.rsnlib.lane_search import MEMORY_KNOBS, SCHEDULE_KNOBS, on_chip_kib, overlay_of, schedule_of, usual
from rsn.scheduler.build import build
from rsn.scheduler.graph import LayerGraph
from rsn.scheduler.lanes.lowering import best
from rsn.scheduler.schedule import PAPER, LaneKnobs, LaneMode, Schedule
from rsn.tests.effort import examples
from rsn.tuning.problem import Choice

from .networks import Maker, error, execute, reference

USUAL = usual(XNN2)


def network(batch: int = 2, seq: int = 128, hidden: int = 256, heads: int = 4, layers: int = 1) -> LayerGraph:
    return Maker().encoder(batch, seq, hidden, heads, 2 * hidden, layers=layers)


def worst(of: LayerGraph, overlay: Overlay, schedule: Schedule) -> float:
    """The largest deviation of a run, by the largest magnitude."""
    x = np.random.default_rng(0).standard_normal((of.batch, of.seq, of.inputs["x"])).astype(np.float32)
    out, _, _ = execute(of, x, overlay, schedule)
    return error(out, reference(of, x))


def milliseconds(of: LayerGraph, **changes: Any) -> float:
    choice = {**USUAL, **changes}
    return Machine(lane_search.built(of, XNN2, choice).program).run().latency_s * 1e3


# -- what knobs do ----------------------------------------------------------------------------------------------------

REASONS = (
    "lanes.lag = ",
    "lanes.lpddr is for mode P3",
    "T of an even lane has ",
    "T of an odd lane has ",
    "a bank of X has ",
    "K0 and V0 have ",
)


@given(st.data())
@examples(400, 8, deadline=None)
def test_any_choice_is_computed_or_refused(data: st.DataObject) -> None:
    choice: Choice = {knob.name: data.draw(st.sampled_from(knob.values)) for knob in SCHEDULE_KNOBS + MEMORY_KNOBS}
    heads, width = data.draw(st.sampled_from([(2, 64), (4, 64), (6, 64), (4, 128), (3, 96), (5, 40)]))
    batch, seq = data.draw(st.sampled_from([(1, 128), (2, 200), (3, 512), (4, 384), (1, 700)]))
    of = network(batch, seq, heads * width, heads, data.draw(st.integers(1, 2)))
    refused = ""
    try:
        found = worst(of, overlay_of(XNN2, choice), schedule_of(choice))
    except DeadlockError:
        return
    except (ScheduleError, UnsupportedError) as error:
        refused = str(error)
    if refused:
        assert any(reason in refused for reason in REASONS), refused
    else:
        assert found < 1e-5


@pytest.mark.parametrize("mode", LaneMode)
def test_the_mode_that_is_asked_for_is_taken(mode: LaneMode) -> None:
    assert best(network(), XNN2, Schedule(lanes=LaneKnobs(mode))).mode.name == mode.value


def test_a_share_of_weights_asks_for_p3_and_says_where_weights_lie() -> None:
    of = network(6, 128, 512)
    assert best(of, XNN2, PAPER).mode.name == "R6"
    shares = {}
    for share in (0.5, 0.75, 1.0):
        program = build(of, XNN2, Schedule(lanes=LaneKnobs(lpddr=share))).program
        weights = [b for b in program.buffers if ".weight" in b.name or b.name.count("proj") or b.shape[0] >= 512]
        total = sum(b.size for b in weights if b.role.name == "WEIGHT")
        shares[share] = sum(b.size for b in weights if b.role.name == "WEIGHT" and b.bank == "lpddr") / total
    assert shares[0.5] == pytest.approx(0.5, abs=0.02)
    assert shares[0.5] < shares[0.75] < shares[1.0] == 1


@pytest.mark.long
def test_trail_and_lag_move_the_interleaving() -> None:
    of = network(2, 384, 512, 8)
    orders = set()
    for trail, lag in ((1, None), (2, 0), (2, 1), (2, None), (3, None), (3, 1)):
        kernels = build(of, XNN2, Schedule(lanes=LaneKnobs(LaneMode.R6, lag, trail))).kernels
        orders.add(kernels.sequences["MeshA1"])
        assert worst(of, XNN2, Schedule(lanes=LaneKnobs(LaneMode.R6, lag, trail))) < 1e-5
    assert len(orders) == 6


@pytest.mark.long
def test_fewer_buffers_take_no_less_time() -> None:
    of = network(6, 512, 512, 8)
    usual_ms = milliseconds(of)
    for changes in ({"c": 1}, {"kv": 4}, {"t_odd": 10}, {"w_ddr": 1}, {"lag": 0}):
        assert milliseconds(of, **changes) >= usual_ms - 0.02, changes
    assert milliseconds(of, c=1) > usual_ms


def test_the_default_knobs_are_the_overlay_itself() -> None:
    assert overlay_of(XNN2, USUAL) is XNN2
    assert schedule_of(USUAL) == PAPER
    with_names = made(lane_search.overlay_text(XNN2, USUAL), "usual")
    assert with_names.fingerprint == XNN2.fingerprint
    assert with_names.lanes == XNN2.lanes


@given(st.fixed_dictionaries({knob.name: st.sampled_from(knob.values) for knob in MEMORY_KNOBS}))
def test_memory_is_counted(sizes: dict[str, int]) -> None:
    overlay = overlay_of(XNN2, {**USUAL, **sizes})
    tiles = 6 * (2 * sizes["x"] + sizes["c"]) + 3 * (sizes["t_even"] + sizes["t_odd"]) + 2 * sizes["kv"]
    assert on_chip_kib(overlay) == 64 * (tiles + 2 * sizes["w"] + sizes["w_ddr"])


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"lag": -1}, "lanes.lag = -1: must be at least 0"),
        ({"trail": 0}, "lanes.trail = 0: must be at least 1"),
        ({"hidden": 1}, "lanes.hidden = 1: must be at least 2"),
        ({"lpddr": 0.4}, "lanes.lpddr = 0.4: must be from 0.5 to 1"),
        ({"lpddr": float("nan")}, "lanes.lpddr = nan: must be from 0.5 to 1"),
        ({"mode": "R5"}, "mode = 'R5': must be one of 'R6', 'P3'"),
        ({"mode": "R6", "lpddr": 0.7}, "lanes.lpddr is for mode P3: in mode R6 all weights lie in one bank"),
        ({"lag": 2.5}, "lag = 2.5: must be a whole number"),
    ],
)
def test_values_out_of_range(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        LaneKnobs(**knobs)


@pytest.mark.parametrize(
    ("choice", "kind", "message"),
    [
        ({"lag": 5}, ScheduleError, "lag = 5: with lanes.trail = 2 at most 4 groups of scores may wait"),
        (
            {"lag": 4, "t_odd": 8, "trail": 3, "mode": "R6"},
            ScheduleError,
            "lag = 4: T of an odd lane holds the probabilities of 1 group of scores, .*; at most 0 may wait",
        ),
        (
            {"t_even": 6, "mode": "R6"},
            UnsupportedError,
            r"T of an even lane has 6 slots; queries, .*, need 7 \(lanes.hidden = 3, lanes.trail = 2, mode R6\)",
        ),
        ({"t_odd": 5}, UnsupportedError, "T of an odd lane has 5 slots; rows on their way to X, .*, need 6"),
        ({"x": 3, "mode": "R6"}, UnsupportedError, "128 rows of 512 columns need 256 KiB; a bank of X has 192 KiB for"),
        ({"t_odd": 6, "hidden": 2, "trail": 4, "mode": "P3"}, UnsupportedError, "T of an odd lane has 0 KiB for them"),
        ({"kv": 2}, UnsupportedError, "its values as many; K0 and V0 have 64 KiB each"),
    ],
)
def test_choices_that_cannot_work(choice: dict[str, Any], kind: type[RsnError], message: str) -> None:
    with pytest.raises(kind, match=message):
        milliseconds(network(2, 384, 512, 8), **choice)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[memories.XIn]\nslots = 7", r"memories.XIn.slots = 7: must be a multiple of 2, the banks of X"),
        ("[memories.XIn]\nslots = 18", r"memories.XIn.slots = 18: instructions can say 16 slots of X"),
        ("[memories.XIn3]\nslots = 8", r"memories.XIn: XIn0, XIn1, .* must have the same size"),
        ("[memories.TIn1]\nslots = 24", r"memories.TIn: TIn1, TIn3, TIn5 must have the same size"),
        ("[memories.TIn]\nslots = 33", r"memories.TIn.slots = 33: instructions can say 32 slots of T of an even lane"),
        ("[memories.KvIn]\nrows = 64", r"memories.KvIn: a slot of K or V has 128x64, as a tile of an MME"),
        ("[units]\nMME = 4", r"units.MME = 4: the lanes need 6; memories alone can change"),
    ],
)
def test_overlay_files_that_make_no_lanes(lines: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        made(f'overlay = "xnn2"\n{lines}\n', "mine.toml")


def test_refusals_name_the_overlay_and_its_own_limits() -> None:
    mine = made('overlay = "xnn2"\n[memories.XIn]\nslots = 6\n[memories.KvIn]\nslots = 4\n', "mine.toml")
    with pytest.raises(UnsupportedError, match=r"^heads of 160 columns; overlay mine has heads of up to 128$"):
        best(network(heads=1, hidden=160), mine, PAPER)
    with pytest.raises(UnsupportedError, match="of 512 columns need 256 KiB; a bank of X has 192 KiB for them"):
        best(network(hidden=512), mine, Schedule(lanes=LaneKnobs(mode=LaneMode.R6)))
    with pytest.raises(UnsupportedError, match=r"need 96 KiB for a panel, its values as many; K0 and V0 have 64 KiB"):
        best(network(batch=1, seq=384), mine, PAPER).lowered()
    narrow = {"tile_columns": (64, 64)}
    units = [
        replace(u, capabilities=tuple(replace(c, limits=narrow) if c.op == "matmul" else c for c in u.capabilities))
        for u in mine.units
    ]
    with pytest.raises(UnsupportedError, match=r"^heads of 128 columns; overlay mine has heads of up to 64$"):
        best(network(heads=2, hidden=256), replace(mine, units=tuple(units)), PAPER)


def test_overlays_without_lanes_refuse_their_knobs() -> None:
    with pytest.raises(ScheduleError, match="lanes: overlay xnn has no row lanes"):
        build(network(), XNN, Schedule(lanes=LaneKnobs(lag=1)))
    with pytest.raises(UnsupportedError, match="overlay xnn has no row lanes, whose memories a search could change"):
        usual(XNN)
