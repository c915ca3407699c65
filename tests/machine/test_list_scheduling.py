"""List scheduling in the engine, compared with the rule in plain Python, which runs each prefix of the order on the
executor. A job that puts words is a load, a job that gets words a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError, ProgramError
from rsn.isa.overlay import Overlay
from rsn.machine import jit
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.executor import ProcessNetwork
from rsn.machine.fast_engine import run_traces
from rsn.machine.jit import available
from rsn.machine.list_scheduling import ListSchedulingProblem
from rsn.machine.plan import trace_workload
from rsn.machine.steps import Step, Steps
from rsn.machine.timing import RunTiming
from rsn.machine.unit import Unit
from rsn.tests import effort
from rsn.tests.machine.toys import toy_overlay

ENGINES = {"uncompiled": lambda function: function, "compiled": jit.compiled}
engines = pytest.mark.parametrize(
    "engine",
    ["uncompiled", pytest.param("compiled", marks=pytest.mark.skipif(not available(), reason="numba is missing"))],
)

Access = tuple[float, str, str, int]
"""(duration in microseconds, "get" or "put", peer, words)."""
Uop = list[Access]


class Toy(Unit):
    """A unit whose uOP is a list of steps."""

    def kernel(self, uop: Uop) -> Steps:
        for us, what, peer, words in uop:
            if what == "get":
                yield Step("us", us, gets=(self.source(peer),), words=words)
            else:
                yield Step("us", us, puts=(self.sink(peer),), words=words)


NAMES = "ABCD"  # D is last: where it stops, nothing follows in the arrays


def toy(depths: Mapping[tuple[str, str], int]) -> Overlay:
    units = tuple(UnitSpec(n, n, 0, Toy) for n in NAMES)
    streams = tuple(Stream(a, b, d) for (a, b), d in depths.items())
    return toy_overlay(units, streams)


@dataclass(frozen=True)
class Job:
    """A job of unit D: uOPs that exchange words with one peer. seconds, patience: in microseconds in this test."""

    peer: str
    get: bool
    uops: tuple[Uop, ...]
    seconds: float = 1.0
    patience: float = 0.0
    rank: int = 0
    in_order: bool = False
    needs: tuple[int, ...] = ()

    @property
    def stream(self) -> str:
        return f"{self.peer}->D" if self.get else f"D->{self.peer}"


def put(peer: str, us: float = 1.0, **more: Any) -> Job:
    return Job(peer, False, ([(us, "put", peer, 1)],), seconds=us, **more)


def get(peer: str, us: float = 1.0, **more: Any) -> Job:
    return Job(peer, True, ([(us, "get", peer, 1)],), seconds=us, **more)


Programs = dict[str, list[Uop]]


def arbitrate(
    overlay: Overlay, jobs: Sequence[Job], programs: Programs, engine: str, record: bool = False
) -> RunTiming:
    issues: Programs = {**programs, "D": [u for job in jobs for u in job.uops]}
    traces = trace_workload(overlay, issues)
    numbers = {c.name: c.number for c in traces.net.channels}
    ends = np.cumsum([0, *(len(job.uops) for job in jobs)]).astype(np.int32)
    arbitration = ListSchedulingProblem(
        process="D",
        first=ends[:-1],
        last=ends[1:],
        stream=np.array([numbers[job.stream] for job in jobs], np.int32),
        get=np.array([job.get for job in jobs], bool),
        seconds=np.array([1e-6 * job.seconds for job in jobs]),
        patience=np.array([1e-6 * job.patience for job in jobs]),
        rank=np.array([job.rank for job in jobs], np.int32),
        in_order=np.array([job.in_order for job in jobs], bool),
        needs=np.array([n for job in jobs for n in job.needs], np.int32),
        needs_at=np.cumsum([0, *(len(job.needs) for job in jobs)]).astype(np.int32),
    )
    return run_traces(traces, overlay, record=record, arbitration=arbitration, compiled=ENGINES[engine])


def fixed(overlay: Overlay, jobs: Sequence[Job], programs: Programs, order: Sequence[int]) -> ProcessNetwork:
    """A network that executes the jobs in a given order."""
    return ProcessNetwork(overlay, {**programs, "D": [u for i in order for u in jobs[i].uops]})


def goes_first(jobs: Sequence[Job], load: tuple[float, float, int, int], other: tuple[float, float, int, int]) -> bool:
    """Whether a load goes before another load that can begin at the same time."""
    a, b = jobs[load[-1]], jobs[other[-1]]
    return a.rank < b.rank if a.in_order and b.in_order else load[1] < other[1]


def model(overlay: Overlay, jobs: Sequence[Job], programs: Programs) -> list[int] | None:
    """The order by the rule of `ListSchedulingProblem`; None in a deadlock.

    The state of the other units comes from the executor: it runs all jobs taken so far, anew for each further job.
    """
    order: list[int] = []
    while True:
        net = fixed(overlay, jobs, programs, order)
        try:
            net.run()
            stuck = False
        except ProgramError:
            stuck = True
        own = net.progress["D"].task
        if own.pending is not None:  # blocked within a job
            return None
        left = [i for i in range(len(jobs)) if i not in order]
        if not left:
            return None if stuck else order
        channels = {c.name: c for c in net.channels}
        loads, stores = [], []
        for stream in dict.fromkeys(jobs[i].stream for i in left):
            i = next(i for i in left if jobs[i].stream == stream)
            channel = channels[stream]
            if not set(jobs[i].needs) <= set(order):
                continue
            if jobs[i].get and channel.filled:
                stores.append((max(own.clock, channel.tokens[0][2]), jobs[i].rank, channel.number, i))
            if not jobs[i].get and channel.reader is not None:
                since = channel.reader.clock
                loads.append((max(own.clock, since), since, channel.number, i))
        load, store = None, min(stores, default=None)
        for other in sorted(loads, key=lambda found: found[2]):  # of those that begin earliest
            if load is None or other[0] < load[0] or (other[0] == load[0] and goes_first(jobs, other, load)):
                load = other
        if load is None and store is None:
            return None
        late = load is None or (
            store is not None and store[0] + 1e-6 * jobs[store[-1]].seconds <= load[0] + 1e-6 * jobs[store[-1]].patience
        )
        order.append((store if late else load)[-1])  # type: ignore[index]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[tuple[str, str], int], list[Job], Programs]:
    """D exchanges words with A, B and C, which also exchange words; some cases have no possible order."""
    peers = NAMES[:3]
    edges = [(a, b) for a in NAMES for b in NAMES if a != b]
    depths = {e: draw(st.integers(1, 4)) for e in edges}
    programs: Programs = {n: [] for n in peers}
    jobs: list[Job] = []
    us = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.25, 0.1, 1 / 3])
    for _ in range(draw(st.integers(0, 12))):
        a, b = draw(st.sampled_from([e for e in edges if "D" in e] * 2 + [e for e in edges if "D" not in e]))
        words = draw(st.integers(1, min(2, depths[a, b])))
        times = draw(st.integers(1, 2))
        sends: list[Uop] = [[(draw(us), "put", b, words)] for _ in range(times)]
        takes: list[Uop] = [[(draw(us), "get", a, words)] for _ in range(times)]
        if draw(st.booleans()):  # one uOP of several steps instead of several uOPs
            sends = [[s for u in sends for s in u]]
        for unit, uops in ((a, sends), (b, takes)):
            if unit != "D":
                programs[unit] += uops
        if "D" in (a, b):
            more = {
                "seconds": draw(us),
                "patience": draw(st.sampled_from([-2.0, 0.0, 0.5, 1.0, 4.0, 1000.0])),
                "rank": draw(st.integers(0, 3)),
                "in_order": draw(st.booleans()),
                "needs": tuple(draw(st.sets(st.integers(0, len(jobs) - 1), max_size=2))) if jobs else (),
            }
            peer, mine = (b, sends) if a == "D" else (a, takes)
            jobs.append(Job(peer, a != "D", tuple(mine), **more))
    if draw(st.integers(0, 3)) == 0:  # which mostly ends in a stall
        unit = draw(st.sampled_from(peers))
        programs[unit] = draw(st.permutations(programs[unit]))
    return depths, jobs, programs


@effort.in_full
@engines
def test_random_networks_by_the_stated_rule(engine: str) -> None:
    @settings(max_examples=effort.cases(250, 25) if engine == "compiled" else effort.cases(80, 8))
    @given(cases())
    def check(case: tuple[dict[tuple[str, str], int], list[Job], Programs]) -> None:
        depths, jobs, programs = case
        overlay = toy(depths)
        wanted = model(overlay, jobs, programs)
        if wanted is None:
            with pytest.raises(DeadlockError) as stalled:
                arbitrate(overlay, jobs, programs, engine)
            assert "no unit can move" in str(stalled.value)
            return
        got = arbitrate(overlay, jobs, programs, engine, record=True)
        assert got.order == wanted
        assert sorted(got.order) == list(range(len(jobs)))
        net = fixed(overlay, jobs, programs, wanted)
        assert got.latency == net.run()  # to the last bit
        assert got.busy == {name: at.busy for name, at in net.progress.items()}
        assert got.waits == {c.name: (c.empty, c.full) for c in net.channels}
        if len(got.events):
            assert max(got.events.end) == got.latency == got.critical_path.end[0]

    check()


DEPTHS = {(a, b): 2 for a in NAMES for b in NAMES if a != b}


def wait(us: float, *steps: Access) -> list[Uop]:
    """uOPs that take `us` microseconds (a put to C of that duration) and then do `steps`."""
    return [list(steps)] if not us else [[(us, "put", "C", 1)], list(steps)]


def order(jobs: Sequence[Job], engine: str = "uncompiled", **programs: list[Uop]) -> list[int]:
    """The order that the engine finds. C receives the words that A and B send in `wait`."""
    sent = sum(step[1:3] == ("put", "C") for unit in "AB" for uop in programs.get(unit, ()) for step in uop)
    listening = {n: sum(s[1:3] == ("put", "C") for u in programs.get(n, ()) for s in u) for n in "AB"}
    assert sent == sum(listening.values())
    programs.setdefault("C", [[(0.0, "get", n, 1)] for n in "AB" for _ in range(listening[n])])
    return list(arbitrate(toy(DEPTHS), jobs, programs, engine).order)


def test_the_load_whose_unit_has_waited_longest_goes_first() -> None:
    a, b = wait(3.0, (0, "get", "D", 1)), wait(2.0, (0, "get", "D", 1))
    assert order([put("A"), put("B")], A=a, B=b) == [1, 0]
    assert order([put("A"), put("B")], A=b, B=a) == [0, 1]
    # waiting for equally long: the first stream in the overlay's order
    assert order([put("B"), put("A")], A=a, B=a) == [1, 0]


def test_loads_in_order_go_by_rank_and_not_by_how_long_their_units_waited() -> None:
    """D is busy until A and B both wait."""
    a, b = wait(3.0, (0, "get", "D", 1)), wait(2.0, (0, "get", "D", 1))
    busy = put("C", 5.0)
    for ranks, wanted in (((1, 2), [0, 1, 2]), ((2, 1), [0, 2, 1])):
        jobs = [busy, *(put(peer, rank=rank, in_order=True) for peer, rank in zip("AB", ranks, strict=True))]
        c: list[Uop] = [[(0.0, "get", "D", 1)], *([(0.0, "get", n, 1)] for n in "AB")]
        assert order(jobs, A=a, B=b, C=c) == wanted
    mixed = [busy, put("A", rank=1, in_order=True), put("B", rank=2)]
    assert order(mixed, A=a, B=b, C=[[(0.0, "get", "D", 1)], *([(0.0, "get", n, 1)] for n in "AB")]) == [0, 2, 1]


@pytest.mark.parametrize(("patience", "wanted"), [(0.0, [0, 1]), (1.99, [0, 1]), (2.0, [1, 0]), (50.0, [1, 0])])
def test_a_store_goes_first_if_it_delays_the_load_by_no_more_than_its_patience(patience: float, wanted: list) -> None:
    """Load and store can both begin at time 0."""
    jobs = [put("A"), get("B", 2.0, patience=patience)]
    assert order(jobs, A=[[(0, "get", "D", 1)]], B=[[(0, "put", "D", 1)]]) == wanted


def test_a_store_that_fits_before_the_load_needs_no_patience() -> None:
    jobs = [put("A"), get("B", 2.0, patience=0.0)]
    assert order(jobs, A=wait(2.0, (0, "get", "D", 1)), B=[[(0, "put", "D", 1)]]) == [1, 0]
    assert order(jobs, A=wait(1.9, (0, "get", "D", 1)), B=[[(0, "put", "D", 1)]]) == [0, 1]


def test_a_load_without_any_patience_waits_for_no_store_that_would_just_fit() -> None:
    jobs = [put("A"), get("B", 2.0, patience=-1.0)]
    assert order(jobs, A=wait(2.0, (0, "get", "D", 1)), B=[[(0, "put", "D", 1)]]) == [0, 1]


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_of_two_stores_that_could_begin_at_once_the_lower_rank(ranks: tuple[int, int]) -> None:
    jobs = [get("A", rank=ranks[0]), get("B", rank=ranks[1])]
    assert order(jobs, A=[[(0, "put", "D", 1)]], B=[[(0, "put", "D", 1)]]) == list(ranks)


def test_needs_hold_back_what_would_go_first() -> None:
    jobs = [get("B", 2.0), put("A", needs=(0,))]
    assert order(jobs, A=[[(0, "get", "D", 1)]], B=wait(9.0, (0, "put", "D", 1))) == [0, 1]
    assert order([jobs[0], put("A")], A=[[(0, "get", "D", 1)]], B=wait(9.0, (0, "put", "D", 1))) == [1, 0]


def test_a_load_goes_only_to_a_unit_that_waits_for_it() -> None:
    """Room in its stream is not enough: A waits for C, and C for D, so C's load goes first."""
    jobs = [put("A"), put("C")]
    programs: Programs = {
        "A": [[(0, "get", "C", 1)], [(0, "get", "D", 1)]],
        "C": [[(0, "get", "D", 1)], [(0, "put", "A", 1)]],
    }
    assert list(arbitrate(toy(DEPTHS), jobs, programs, "uncompiled").order) == [1, 0]


@engines
def test_without_jobs_it_is_a_run(engine: str) -> None:
    programs: Programs = {"A": [[(1.0, "put", "B", 1)]], "B": [[(2.0, "get", "A", 1)]]}
    got = arbitrate(toy(DEPTHS), [], programs, engine)
    assert (list(got.order), got.latency) == ([], fixed(toy(DEPTHS), [], programs, []).run())


@engines
def test_an_arbiter_that_may_begin_nothing_waits_for_no_stream(engine: str) -> None:
    """Its last job has ended: the report must show neither that job nor the job behind it in the arrays."""
    jobs = [put("A"), put("A", needs=(2,)), get("B")]
    programs: Programs = {"A": [[(0, "get", "D", 1)], [(0, "get", "D", 1)]], "B": []}
    with pytest.raises(DeadlockError) as stalled:
        arbitrate(toy(DEPTHS), jobs, programs, engine)
    assert [(w.unit, w.what, w.stream) for w in stalled.value.report.waits] == [("A", "get", "D->A")]
    assert "B->D: 0 words sent, 1 received" in str(stalled.value)
    nothing = dataclasses.replace(jobs[0], needs=(1,))
    with pytest.raises(DeadlockError) as stalled:
        arbitrate(toy(DEPTHS), [nothing, get("B")], {"A": programs["A"][:1], "B": []}, engine)
    assert [w.unit for w in stalled.value.report.waits] == ["A"]


@engines
def test_it_stalls_in_the_midst_of_a_job_as_the_executor_does(engine: str) -> None:
    """A gets one of D's words, and the next only after B has answered A."""
    two = Job("A", False, ([(1, "put", "A", 1)] * 4,))
    programs: Programs = {
        "A": [[(0, "get", "D", 1)], [(0, "get", "B", 1)], [(0, "get", "D", 1)] * 3],
        "B": [[(0, "get", "A", 1)], [(0, "put", "A", 1)]],
    }
    with pytest.raises(DeadlockError) as stalled:
        arbitrate(toy(DEPTHS), [two], programs, engine)
    assert {(w.unit, w.stream) for w in stalled.value.report.waits} == {
        ("A", "B->A"),
        ("B", "A->B"),
        ("D", "D->A"),
    }
