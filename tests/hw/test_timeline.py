"""Timelines: what pictures are drawn from, against the log and the run's own sums."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.hw.sim.machine import Machine
from rsn.hw.sim.timeline import Timeline
from rsn.isa.expansion import ExpandedProgram

from .examples import NAMES, example, machine

every = pytest.mark.parametrize("name", NAMES)
SIDE_BY_SIDE = ("LHS", "RHS", "OUT", "MemA", "MemB", "MemC")


@cache
def timeline(name: str) -> Timeline:
    return Timeline(machine(name))


@every
def test_the_last_end_is_the_latency(name: str) -> None:
    t = timeline(name)
    assert max(track.end.max() for track in t.tracks) == t.seconds == t.machine.timing.latency
    assert min(track.start.min() for track in t.tracks) >= 0


@every
def test_busy_times_are_those_of_the_run(name: str) -> None:
    """Where lanes run side by side a unit is busy once, and its uOPs count each lane."""
    t, busy = timeline(name), machine(name).timing.busy
    for track in t.tracks:
        np.testing.assert_allclose(track.parts.sum(axis=1), track.busy, rtol=1e-12)
        assert (track.busy >= 0).all()
        if track.name.startswith(SIDE_BY_SIDE):
            assert track.busy.sum() >= busy[track.name] * (1 - 1e-9)
        else:
            assert track.busy.sum() == pytest.approx(busy[track.name], rel=1e-9, abs=1e-18)
            assert (track.busy <= (track.end - track.start) * (1 + 1e-9) + 1e-18).all()
    seen = {track.name for track in t.tracks}
    assert all(seconds == 0 for process, seconds in busy.items() if process not in seen)


@every
def test_every_uop_that_does_something_is_drawn_once_and_in_order(name: str) -> None:
    t, runs = timeline(name), ExpandedProgram(example(name).program).sequences
    for track in t.tracks:
        assert (np.diff(track.number) > 0).all()
        assert (np.diff(track.start) >= 0).all()
        assert (track.end >= track.start).all()
        if track.name in runs:
            np.testing.assert_array_equal(track.origin, runs[track.name].origins[track.number])
    units = [u.name for u in example(name).program.overlay.units]
    drawn = [track.name for track in t.tracks]
    assert drawn[: len(set(drawn) & set(units))] == [u for u in units if u in drawn]
    assert all(len(runs[u]) == 0 for u in set(units) - set(drawn))


@every
def test_tracks_are_the_log_row_by_row(name: str) -> None:
    """A loop over the firings, without the units' waits for their next uOP."""
    t = timeline(name)
    p = example(name).program
    processes, streams = t.machine.plan.processes, len(p.overlay.streams)
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for unit, step, start, end, number in zip(
        t.log.unit, t.log.step, t.log.start, t.log.end, t.log.number, strict=True
    ):
        process = processes[unit]
        if process in p.overlay.by_unit and any(c >= streams for c in t.log.steps[step].gets):
            continue
        a, b = spans.get((process, number), (start, end))
        spans[process, number] = min(a, start), max(b, end)
    got = {
        (track.name, n): (a, b)
        for track in t.tracks
        for n, a, b in zip(track.number.tolist(), track.start.tolist(), track.end.tolist(), strict=True)
    }
    assert got == spans


@every
def test_the_end_of_a_uop(name: str) -> None:
    t = timeline(name)
    for track in t.tracks:
        np.testing.assert_array_equal(t.ends(track.name, track.number.tolist()), track.end)
        assert t.ends(track.name, []).size == 0


# -- bytes --------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("bins", [1, 7, 1000])
def test_binned_bytes_add_up(name: str, bins: int) -> None:
    t, moved = timeline(name), machine(name).run().bytes
    edges = np.linspace(0, t.seconds, bins + 1)
    for transfers in t.transfers:
        total = moved[transfers.rate.removesuffix("_gbs")]
        per_bin = t.binned(transfers.start, transfers.end, transfers.bytes, edges)
        assert per_bin.shape == (bins,)
        assert per_bin.min(initial=0) >= -1e-6 * total
        assert per_bin.sum() == pytest.approx(total, rel=1e-9) == transfers.bytes.sum()
        rate = example(name).program.overlay.rates[transfers.rate].value * 1e9
        ports = 5 if name.startswith("fig7") else 1  # in fig7 each unit has one of its own
        assert per_bin.max(initial=0) <= ports * rate * t.seconds / bins * (1 + 1e-6)


spans = st.lists(
    st.tuples(st.floats(0, 1), st.floats(1e-9, 1) | st.just(0.0), st.floats(0, 1000)).map(
        lambda x: (x[0], min(1.0, x[0] + x[1]), x[2])
    ),
    max_size=12,
)


@given(spans, st.lists(st.floats(0, 1), max_size=6))
def test_binned_is_what_falls_between_the_edges(rows: list[tuple[float, float, float]], inner: list[float]) -> None:
    """One by one: the part of each span inside a bin, and a step that takes no time in the bin of its moment."""
    edges = np.array([0.0, *sorted(inner), 1.0])
    expected = np.zeros(len(edges) - 1)
    for start, end, amount in rows:
        if end > start:
            inside = np.clip(end, edges[:-1], edges[1:]) - np.clip(start, edges[:-1], edges[1:])
            expected += np.maximum(inside, 0) * (amount / (end - start))
    columns = [np.array([r[i] for r in rows]) for i in range(3)]
    got = timeline("fig6_app1").binned(*columns, edges)
    at_once = sum(amount for start, end, amount in rows if end <= start)
    assert got.sum() == pytest.approx(expected.sum() + at_once, rel=1e-6, abs=1e-6)
    if not at_once:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["fig6_app1", "fig10"])
def test_bytes_at_infinite_bandwidth_are_still_there(name: str) -> None:
    p = example(name).program
    rates = {rate: np.inf for rate, r in p.overlay.rates.items() if r.unit == "GB/s"}
    fast = Machine(dataclasses.replace(p, overlay=p.overlay.with_rates(**rates)))
    t = Timeline(fast)
    edges = np.linspace(0, t.seconds, 11)
    for transfers in t.transfers:
        got = t.binned(transfers.start, transfers.end, transfers.bytes, edges).sum()
        assert got == pytest.approx(fast.run().bytes[transfers.rate.removesuffix("_gbs")])


# -- streams ------------------------------------------------------------------------------------------------------


@every
def test_streams_are_never_below_empty_nor_above_full_and_end_empty(name: str) -> None:
    t, overlay = timeline(name), example(name).program.overlay
    depth = {s.name: s.depth for s in overlay.streams}
    for kind, slots in (("mOP", overlay.mop_fifo_depth), ("uOP", overlay.uop_fifo_depth)):
        depth |= {s: slots for s in t.streams if s.startswith(f"{kind} FIFO")}
    fills = list(t.fill(range(len(t.streams))))
    assert len(fills) == len(t.streams) == len(depth)
    used = 0
    for stream, (clocks, level) in zip(t.streams, fills, strict=True):
        assert (np.diff(clocks) > 0).all()
        if len(level):
            used += 1
            assert level.min() >= 0
            assert level.max() <= depth[stream]
            assert level[-1] == 0
    assert used >= 3


@every
def test_fills_are_puts_less_gets(name: str) -> None:
    """Counted firing by firing, for a stream that is used most."""
    t = timeline(name)
    count = [sum(s.puts.count(c) for s in t.log.steps) for c in range(len(t.streams))]
    stream = int(np.argmax(count))
    changes: dict[float, int] = {}
    for step, end in zip(t.log.step, t.log.end, strict=True):
        s = t.log.steps[step]
        words = s.words * ((stream in s.puts) - (stream in s.gets))
        changes[end] = changes.get(end, 0) + words
    ((clocks, level),) = t.fill([stream])
    known = dict(zip(clocks.tolist(), level.tolist(), strict=True))
    at = 0
    for clock in sorted(changes):
        at += changes[clock]
        assert known.get(clock, at) == at
    assert set(known) <= set(changes)


@every
def test_words_that_are_put_are_those_that_are_got(name: str) -> None:
    t = timeline(name)
    for stream in range(len(t.streams)):
        pairs = t.moved(stream)
        sent = sum(t.log.steps[s].words for s in t.log.step if stream in t.log.steps[s].puts) if stream < 3 else None
        assert sent is None or pairs.words.sum() == sent
        assert (pairs.words > 0).all()
        assert (np.diff(pairs.put) >= 0).all()
        assert (np.diff(pairs.got) >= 0).all()
        assert (pairs.put < pairs.got).all()  # the log is in an order in which causes come first
        assert (t.end[pairs.put] <= t.end[pairs.got]).all()


def test_a_program_that_does_nothing_is_drawn_too() -> None:
    p = example("fig6_app1").program
    only = [packet for packet in p.packets if packet.header.last]
    t = Timeline(Machine(dataclasses.replace(p, packets=tuple(only))))
    assert {track.name for track in t.tracks} <= {"dispatcher", *(f"decoder FU{i}" for i in (1, 2, 3))}
    assert [x.bytes.size for x in t.transfers] == [0, 0]
    assert t.binned(*[np.zeros(0)] * 3, np.linspace(0, t.seconds, 5)).tolist() == [0] * 4
    assert all(not len(level) or level[-1] == 0 for _, level in t.fill(range(len(t.streams))))
