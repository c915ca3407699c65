"""Normal depths of programs: no wait for a slot, none to spare; measured times of tasks; equations on the engine."""

from __future__ import annotations

from random import Random

import pytest

from rsn.base.errors import ProgramError
from rsn.streams.check import check
from rsn.streams.dataflow.graph import Timing
from rsn.streams.fifos.equations import NEXT_CYCLE
from rsn.streams.fifos.measure import alone, peak, together
from rsn.streams.fifos.normal import fast_depths, later_starts, normal_depths, waiting
from rsn.streams.fifos.starts import Fifo, KernelGraph, StartTimes, conservative
from rsn.streams.reader import read
from rsn.streams.sizing.depths import sizes
from rsn.streams.sizing.program import SizedProgram
from rsn.streams.timing.timed import BeatTiming, TimedProgram
from rsn.tests.effort import cases, in_both
from rsn.tests.streams import maxplus
from rsn.tests.streams.fifo_programs import program_of, row_program, sized
from rsn.tests.streams.fifo_runs import random_graph


def test_times_of_a_task_are_measured_from_its_own_operations() -> None:
    random = Random(1)
    for _ in range(10):
        graph = random_graph(random, most=4, one_source=True)
        program = sized(program_of(graph))
        for k, instance in enumerate(program.region.instances):
            times = alone(instance.beats)
            for trace in times.puts.values():
                assert trace.timing() == graph.timings[k]
            for trace in times.gets.values():
                found = trace.timing()
                assert found is not None
                assert (found.first, found.interval) == (1, graph.timing(k).interval)


def test_rates_of_a_task_that_works_on_rows() -> None:
    text = """
from rsn.streams import *
s: Stream[f32, 4]
t: Stream[f32, 4]
@task(mapping=[1])
def read() -> None:
    for k in range(12):
        s.put(0.0)
@task(mapping=[1])
def rows() -> None:
    for r in range(3):
        for k in range(4):
            drop(s.get()); cycles(2)
        t.put(0.0)
@task(mapping=[1])
def write() -> None:
    for r in range(3):
        drop(t.get())
"""
    program = sized(text)
    times = alone(program.region.instances[1].beats)
    assert times.gets[0].begin.tolist() == [0, 2, 4, 6, 9, 11, 13, 15, 18, 20, 22, 24]
    assert times.gets[0].timing() is None
    assert times.puts[1].timing() == Timing(9, 9, 3)
    found = normal_depths(program)
    # 12 tokens by cycle 12, of which those of cycles 1, 3, 5, 7 and 10 are got, the last one not before 12.
    assert found.depths == {"s": 8, "t": 1}


def no_waits(program: SizedProgram, depths: dict[str, int], starts: dict[int, int]) -> BeatTiming:
    (bodies,) = program.outcomes.bodies
    run = TimedProgram(waiting(bodies, starts), program.packing).run(program.of_streams(depths))
    assert isinstance(run, BeatTiming), "a deadlock"
    return run


def check_normal(text: str, counts: dict[str, int]) -> None:
    """No deadlock and no wait for a slot at normal depths; one slot less anywhere, and some put waits."""
    program = sized(text)
    (bodies,) = program.outcomes.bodies
    soon, later = normal_depths(program), normal_depths(program, later=True)
    endless = program.together({})
    assert endless is not None
    for found in (soon, later):
        run = no_waits(program, dict(found.depths), dict(found.starts))
        assert not any(run.full.values())
        assert run.latency == found.latency == endless.latency
        assert check(with_depths(text, dict(found.depths))).code == ""
    measured = together(bodies, program.packing)
    ends = {s: trace for time in measured for s, trace in time.gets.items()}
    for time in measured:
        for s, trace in time.puts.items():
            assert soon.depths[program.region.stream(s)[0].name] == max(1, peak(trace, ends[s]))
    one = {s: max(1, depth) for s, depth in (maxplus.run(bodies, {}, program.packing, 1) or ([], {}))[1].items()}
    assert one == {s: soon.depths[program.region.stream(s)[0].name] for s in one}
    for name, depth in soon.depths.items():
        if depth > 1:
            less = TimedProgram(bodies, program.packing).run(program.of_streams({**soon.depths, name: depth - 1}))
            assert not isinstance(less, BeatTiming) or any(less.full.values())
    assert later.bits <= soon.bits
    lowered = fast_depths(program)
    assert program.later(lowered.levels, endless) is None
    assert all(1 <= depth <= soon.depths[name] for name, depth in lowered.levels.items())
    slower = fast_depths(program, slack=0.25)
    assert slower.bound <= lowered.cost
    times = program.together(slower.levels)
    assert times is not None
    assert times.latency <= 1.25 * endless.latency
    counts["graphs"] += 1
    counts["moved"] += later.bits < soon.bits
    if len(soon.depths) > 6:
        return  # the search for the fewest bits takes long
    found_sizes = sizes(program)
    assert found_sizes.fast is not None
    assert found_sizes.safe.bound <= found_sizes.fast.cost
    assert found_sizes.fast.bound <= lowered.cost <= soon.bits
    for name, bits in (
        ("safe", found_sizes.safe.cost),
        ("fast", found_sizes.fast.cost),
        ("lowered", lowered.cost),
        ("later", later.bits),
        ("soon", soon.bits),
    ):
        counts[name] += bits


def with_depths(text: str, depths: dict[str, int]) -> str:
    for name, depth in depths.items():
        before, after = text.split(f"{name}: Stream[", 1)
        kind, rest = after.split(", 1]\n", 1)
        text = f"{before}{name}: Stream[{kind}, {depth}]\n{rest}"
    return text


@in_both
def test_normal_depths_of_random_graphs() -> None:
    random = Random(7)
    counts = dict.fromkeys(("graphs", "moved", "safe", "fast", "lowered", "later", "soon"), 0)
    for k in range(cases(500, 5)):
        graph = random_graph(random)
        text = program_of(graph) if k % 2 else row_program(random)
        if "@task" in text:
            check_normal(text, counts)
    assert counts["safe"] < counts["fast"] <= counts["lowered"] < counts["later"] <= counts["soon"]
    assert 20 * counts["lowered"] < 21 * counts["fast"]


@in_both
def test_equations_are_exact_on_the_engine_where_no_input_is_slower() -> None:
    """With one interval for all, as after conservative equalisation, the equations are what the engine needs."""
    random = Random(8)
    for _ in range(cases(500, 5)):
        graph = conservative(random_graph(random))
        if not graph.fifos:
            continue
        soon = StartTimes(graph, graph.as_soon_as_possible())
        program = sized(program_of(graph))
        depths = {f"s{k}": depth for k, depth in enumerate(soon.depths("exact", NEXT_CYCLE))}
        assert normal_depths(program).depths == depths


def test_a_slow_input_needs_more_than_the_equation_for_a_pair() -> None:
    """c gets from a at every cycle by its own II, but waits for b, which puts every 4 cycles only."""
    graph = KernelGraph(
        ("a", "b", "c"),
        (Timing(8, 1, 128), Timing(8, 4, 128), Timing(8, 1, 128)),
        (Fifo(0, 1, 32), Fifo(1, 2, 32), Fifo(0, 2, 32)),
    )
    pairs = StartTimes(graph, graph.as_soon_as_possible()).depths("exact", NEXT_CYCLE)
    assert pairs == (96, 1, 10)
    program = sized(program_of(graph))
    found = normal_depths(program)
    assert found.depths == {"s0": 96, "s1": 1, "s2": 98}
    run = no_waits(program, {f"s{k}": depth for k, depth in enumerate(pairs)}, {})
    assert any(run.full.values())


def test_a_task_with_a_wide_output_starts_later() -> None:
    text = """
from rsn.streams import *
x: Stream[i8, 1]
slow: Stream[i8, 1]
wide: Stream[i32[4], 1]
@task(mapping=[1])
def read() -> None:
    for k in range(8):
        x.put(0)
@task(mapping=[1])
def work() -> None:
    cycles(40)
    for k in range(8):
        slow.put(0)
@task(mapping=[1])
def widen() -> None:
    for k in range(8):
        drop(x.get())
        wide.put(tile(i32, 4))
@task(mapping=[1])
def both() -> None:
    for k in range(8):
        drop(slow.get())
        drop(wide.get())
"""
    program = sized(text)
    soon, later = normal_depths(program), normal_depths(program, later=True)
    assert (soon.depths["wide"], soon.starts) == (8, {})
    assert later.latency == soon.latency
    assert later.starts == later_starts(program) == {0: 39, 2: 40}
    assert later.depths["wide"] < 8


def test_fast_depths_of_several_executions() -> None:
    """The next execution of a fast source begins before the last one is used up."""
    text = """
from rsn.streams import *
s: Stream[f32, 1]
t: Stream[f32, 1]
@task(mapping=[1])
def read() -> None:
    for k in range(6):
        s.put(0.0)
@task(mapping=[1])
def rows() -> None:
    for r in range(2):
        for k in range(3):
            drop(s.get()); cycles(2)
        t.put(0.0); cycles(9)
@task(mapping=[1])
def write() -> None:
    for r in range(2):
        drop(t.get())
"""
    program = SizedProgram(read(text, timed=True), 3)
    endless = program.together({})
    assert endless is not None
    found = fast_depths(program)
    assert found.proved
    assert found.levels == {"s": 2, "t": 1}
    assert program.later(found.levels, endless) is None
    with pytest.raises(ProgramError, match=r"the slack is -0\.1"):
        fast_depths(program, slack=-0.1)


@pytest.mark.long
def test_long_streams_are_counted_too() -> None:
    graph = KernelGraph(("a", "b"), (Timing(1, 1, 20_000), Timing(1, 2, 20_000)), (Fifo(0, 1, 8),))
    assert normal_depths(sized(program_of(graph))).depths == {"s0": 10_001}
