"""A burst equals the same number of single steps: clocks, results, counts and traces in every engine, and the data that
the simulator without clocks (`DataRun`) computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError, ProgramError
from rsn.hw.sim.dataflow import DataRun
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.fields import Record, bits
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import OpList, Overlay
from rsn.isa.program import Program
from rsn.machine.balance import balance
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.event_log import CriticalPath, EventLog
from rsn.machine.executor import ProcessNetwork
from rsn.machine.fast_engine import run_traces
from rsn.machine.jit import available
from rsn.machine.plan import trace_workload
from rsn.machine.steps import Burst, Par, Step, Steps
from rsn.machine.timing import RunTiming
from rsn.machine.unit import Unit
from rsn.tests.machine.toys import toy_overlay

NAMES = "ABC"
EDGES = (("A", "B"), ("B", "C"), ("A", "C"), ("C", "A"))
ELEMENTS = 2
"""Elements of a word."""


class Equal(NamedTuple):
    """`times` equal steps: `Bursting` executes them as one `Burst`, `Single` one by one."""

    times: int
    amount: float
    gets: tuple[str, ...]
    puts: tuple[str, ...]
    words: int
    whole: bool


class Lanes(NamedTuple):
    lanes: tuple[tuple[Any, ...], ...]


class State:
    """A number that depends on everything that a lane has received; everything that the lane sends depends on it."""

    def __init__(self, seen: float) -> None:
        self.seen = np.float32(seen)


class Toy(Unit):
    """A unit whose uOP is a list of steps. received: by peer, all payloads."""

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.state = State(spec.index)
        self.received: dict[str, list[bytes]] = {}
        self.returned: list[int | None] = []

    def kernel(self, uop: Any) -> Steps:
        return self.walk(uop, self.state)

    def walk(self, items: Sequence[Any], state: State) -> Steps:
        for item in items:
            if isinstance(item, Lanes):
                states = [State(state.seen + i) for i in range(len(item.lanes))]
                yield Par(*(self.walk(lane, s) for lane, s in zip(item.lanes, states, strict=True)))
                state.seen = np.float32(sum(s.seen for s in states))
            else:
                yield from self.steps(item, state)

    def one(self, step: Equal, state: State) -> Callable[..., Any]:
        def do(*payloads: Any) -> Any:
            for peer, payload in zip(step.gets, payloads, strict=True):
                state.seen = np.float32(state.seen / 2 + payload.reshape(-1) @ np.arange(payload.size))
                self.received.setdefault(peer, []).append(payload.tobytes())
            state.seen += np.float32(1)
            ramp = np.arange(step.words * ELEMENTS, dtype=np.float32)
            return tuple(ramp + state.seen + i for i in range(len(step.puts)))

        return do

    def parts(self, step: Equal) -> dict[str, Any]:
        return {
            "gets": tuple(self.source(s) for s in step.gets),
            "puts": tuple(self.sink(d) for d in step.puts),
            "words": step.words,
            "needs_whole_token": step.whole,
        }

    def steps(self, step: Equal, state: State) -> Steps:
        raise NotImplementedError


class Single(Toy):
    def steps(self, step: Equal, state: State) -> Steps:
        for _ in range(step.times):
            yield Step("us", step.amount, do=self.one(step, state), **self.parts(step))


class Bursting(Toy):
    def steps(self, step: Equal, state: State) -> Steps:
        one = self.one(step, state)

        def do(n: int, *tokens: list[Any]) -> Any:
            assert n >= 1
            assert all(len(t) == n for t in tokens)
            results = [one(*(t[i] for t in tokens)) for i in range(n)]
            return [list(row) for row in zip(*results, strict=True)]

        value = yield Burst(step.times, "us", step.amount, do=do, **self.parts(step))
        self.returned.append(value)


class Op(Record, words=1):
    """A placeholder for the overlay: uOPs are steps in this test."""

    n: int = bits(0, 0, 1, "nothing")


def toy(unit: type[Unit], depths: dict[tuple[str, str], int]) -> Overlay:
    units = tuple(UnitSpec(n, n, i, unit) for i, n in enumerate(NAMES))
    streams = tuple(Stream(a, b, d) for (a, b), d in depths.items())
    preloaded = dict.fromkeys(NAMES, OpList(Op, 99 * Op.WORDS))
    return toy_overlay(units, streams, preloaded=preloaded)


Case = tuple[dict[tuple[str, str], int], dict[str, list[Any]]]


@st.composite
def transfers(draw: st.DrawFn) -> Case:
    """Transfers between units, one after the other or in parallel lanes on different streams.

    Writer and reader may use pieces of different size. Both do their transfers in the same order, and every stream has
    room for a piece of each, so every run ends.
    """
    depths = {e: draw(st.integers(5, 9)) for e in EDGES}
    programs: dict[str, list[Any]] = {n: [] for n in NAMES}
    amount = st.sampled_from([0, 1, 2.5, 0.1, 1 / 3])
    for a, b in draw(st.lists(st.sampled_from(EDGES), max_size=8)):
        put, get = draw(st.sampled_from([(1, 1), (1, 3), (3, 1), (2, 2), (3, 2), (2, 3)]))
        words = put * get * draw(st.integers(0, 3))
        sends = Equal(words // put, draw(amount), (), (b,), put, draw(st.booleans()))
        takes = Equal(words // get, draw(amount), (a,), (), get, draw(st.booleans()))
        for unit, step in ((a, sends), (b, takes)):
            before = programs[unit]
            beside = before and isinstance(before[-1][0], Equal) and before[-1][0][2:4] != step[2:4]
            if beside and draw(st.booleans()):
                before[-1] = (Lanes(((step,), before[-1])),)
            else:
                before.append((step,))
    return depths, programs


@st.composite
def pipelines(draw: st.DrawFn) -> Case:
    """A sends to B and C, B forwards to C, and C answers A at the end."""
    words, times = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    depths = {e: draw(st.integers(words, 9)) for e in EDGES}
    amount = st.sampled_from([0, 1, 0.1])
    whole = st.booleans()
    return depths, {
        "A": [
            (Equal(times, draw(amount), (), ("B", "C"), words, draw(whole)),),
            (Equal(1, 0, ("C",), (), 1, False),),
        ],
        "B": [(Equal(times, draw(amount), ("A",), ("C",), words, draw(whole)),)],
        "C": [
            (Equal(times, draw(amount), ("B", "A"), (), words, draw(whole)), Equal(1, 1, (), ("A",), 1, True)),
        ],
    }


@st.composite
def broken(draw: st.DrawFn) -> Case:
    """A case from which one uOP is removed."""
    depths, programs = draw(transfers() | pipelines())
    used = [n for n in NAMES if programs[n]]
    if used:
        uops = programs[draw(st.sampled_from(used))]
        uops.pop(draw(st.integers(0, len(uops) - 1)))
    return depths, programs


def rows(log: EventLog) -> list[tuple[Any, ...]]:
    columns = (log.unit, log.start, log.end, log.before, log.via, log.bound, log.number, log.origin)
    return list(zip([log.steps[i] for i in log.step], *columns, strict=True))


def found(run: Callable[[], RunTiming]) -> Any:
    """The complete result of a run, or its error."""
    try:
        t = run()
    except ProgramError as e:
        return type(e), str(e)
    chain = [getattr(t.critical_path, field.name).tolist() for field in dataclasses.fields(CriticalPath)]
    return t.latency, dict(t.busy), dict(t.amounts), dict(t.waits), rows(t.events), chain


def in_network(unit: type[Unit], case: Case, data: bool) -> tuple[Any, Any]:
    depths, programs = case
    net = ProcessNetwork(toy(unit, depths), programs, data=data, record=True)
    return found(lambda: RunTiming.of(net, net.run())), {n: u.received for n, u in net.units.items()}  # type: ignore[attr-defined]


@settings(max_examples=150)
@given(transfers() | pipelines() | broken(), st.booleans())
def test_a_burst_equals_single_steps(case: Case, data: bool) -> None:
    """Compares firings, clocks, busy times, waits, critical path, data, and error reports."""
    assert in_network(Bursting, case, data) == in_network(Single, case, data)


@settings(max_examples=60)
@given(transfers() | pipelines() | broken())
def test_traces_are_the_same(case: Case) -> None:
    depths, programs = case
    one, other = (trace_workload(toy(u, depths), programs) for u in (Single, Bursting))
    for field in dataclasses.fields(one):
        if field.name != "net":
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))


@pytest.mark.skipif(not available(), reason="numba is not installed")
@settings(max_examples=60)
@given(transfers() | pipelines())
def test_the_compiled_engine_runs_bursts(case: Case) -> None:
    depths, programs = case
    overlay = toy(Bursting, depths)
    traces = trace_workload(overlay, programs)
    assert found(lambda: run_traces(traces, overlay, record=True)) == in_network(Bursting, case, False)[0]


@settings(max_examples=60)
@given(transfers() | pipelines() | broken())
def test_words_are_counted_the_same(case: Case) -> None:
    depths, programs = case
    lists = {unit: tuple(uops) for unit, uops in programs.items()}
    one, other = (balance(ExpandedProgram(Program(toy(u, depths), (), lists)).uop_table) for u in (Single, Bursting))
    assert not other.undecided
    assert (one.totals, one.uneven) == (other.totals, other.uneven)


@settings(max_examples=150)
@given(transfers() | pipelines(), st.sampled_from([Single, Bursting]))
def test_dataflow_computes_the_same(case: Case, unit: type[Unit]) -> None:
    """Every payload on every stream is equal bit for bit, for any sizes of pieces; no words are left over."""
    depths, programs = case
    net = DataRun(InstructionPath(toy(unit, depths), [], programs), banks={}, where=lambda u, o: "")
    net.run()
    expected = in_network(Single, case, True)
    assert isinstance(expected[0][0], float)  # a latency: the run has ended
    assert {n: u.received for n, u in net.units.items()} == expected[1]  # type: ignore[attr-defined]
    for channel in net.channels:
        assert (channel.filled, len(channel.tokens)) == (0, 0)


@given(broken())
def test_dataflow_reports_what_does_not_fit_together(case: Case) -> None:
    """If sends and receives differ, words are left over or a unit waits for ever, at any depth of the streams."""
    depths, programs = case
    totals = balance(
        ExpandedProgram(Program(toy(Single, depths), (), {n: tuple(p) for n, p in programs.items()})).uop_table
    ).totals
    net = DataRun(InstructionPath(toy(Bursting, depths), [], programs), banks={}, where=lambda u, o: f"line {o}")
    if all(sent == received for sent, received in totals.values()):
        net.run()
        return
    with pytest.raises(ProgramError, match=r"deadlock: no unit can move|data left in streams"):
        net.run()


@pytest.mark.parametrize("engine", [ProcessNetwork, DataRun])
@pytest.mark.parametrize("times", [1, 2])
def test_a_burst_returns_no_payloads_to_the_kernel(engine: type[ProcessNetwork], times: int) -> None:
    """Only its `do` gets them, also in a burst of one step, and after a step that returned payloads."""
    after: list[Any] = []

    class Reader(Single):
        def walk(self, items: Sequence[Any], state: State) -> Steps:
            if self.name == "A":
                yield from super().walk(items, state)
                return
            after.append((yield Step(gets=(self.source("A"),))))
            after.append((yield Burst(times, gets=(self.source("A"),))))
            after.append((yield Burst(0, gets=(self.source("A"),))))

    overlay = toy(Reader, {("A", "B"): 9})
    programs = {"A": [(Equal(1 + times, 0, (), ("B",), 1, False),)], "B": [()]}
    if engine is DataRun:
        DataRun(InstructionPath(overlay, [], programs), banks={}, where=lambda u, o: "").run()
    else:
        ProcessNetwork(overlay, programs, data=True).run()
    assert len(after[0]) == 1
    assert after[1:] == [None, None]


def test_a_deadlock_without_clocks_names_unit_and_stream() -> None:
    programs = {"A": [(Equal(1, 0, (), ("B",), 1, False),)], "B": [(Equal(2, 0, ("A",), (), 1, False),)]}
    net = DataRun(InstructionPath(toy(Bursting, {("A", "B"): 2}), [], programs), banks={}, where=lambda u, o: "t:1")
    with pytest.raises(DeadlockError) as e:
        net.run()
    (wait,) = e.value.report.waits
    assert (wait.unit, wait.number, wait.stream, wait.place) == ("B", 0, "A->B", "t:1")


def test_left_overs_without_clocks_name_who_sent_them() -> None:
    programs = {"A": [(Equal(3, 0, (), ("B",), 1, False),)], "B": [(Equal(2, 0, ("A",), (), 1, False),)]}
    net = DataRun(InstructionPath(toy(Bursting, {("A", "B"): 2}), [], programs), banks={}, where=lambda u, o: "t:1")
    with pytest.raises(ProgramError, match=r"A->B: 1 of \d+ words, the last from A uOP 0 \(t:1\)"):
        net.run()
