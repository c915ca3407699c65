"""FIFO depths from D, II and T: equations against runs, start times and paths against all schedules."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import pytest

from rsn.base.errors import CycleError, ProgramError
from rsn.benchmarks.compared.path_delays import path_delays
from rsn.streams.dataflow.graph import Dataflow, Edge, KernelNode, Timing
from rsn.streams.fifos.equations import AT_ONCE, NEXT_CYCLE, max_tokens
from rsn.streams.fifos.starts import Fifo, KernelGraph, StartTimes, conservative, schedule
from rsn.streams.orders.order import Order
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.fifo_runs import random_case, random_graph, run


def pair(tokens: int, first: int, source: int, target: int) -> tuple[Timing, Timing]:
    return Timing(first, source, tokens), Timing(first, target, tokens)


@pytest.mark.parametrize(
    ("tokens", "first", "source", "target", "delay", "last", "paper", "peak"),
    [
        (5, 4, 1, 2, 4, 8, 3, 3),
        (64, 10, 1, 1, 10, 73, 1, 1),
        (64, 10, 1, 2, 10, 73, 33, 32),
        (64, 10, 2, 1, 10, 136, 0, 1),
        (64, 10, 2, 1, 60, 136, 25, 26),
        (16, 5, 2, 3, 100, 35, 16, 16),
    ],
)
def test_published_pairs(
    tokens: int, first: int, source: int, target: int, delay: int, last: int, paper: int, peak: int
) -> None:
    ends = pair(tokens, first, source, target)
    assert ends[0].last == last
    assert max_tokens(*ends, delay, "paper") == paper
    assert max_tokens(*ends, delay) == peak == run(*ends, delay, None)[0]


def test_a_depth_of_the_printed_equation_stops_the_source() -> None:
    ends = pair(64, 10, 2, 1)
    assert run(*ends, 60, max_tokens(*ends, 60, "paper"))[1] == 138
    assert run(*ends, 60, max_tokens(*ends, 60))[1] == 137


@in_both
def test_exact_equations_are_the_peaks_of_runs() -> None:
    random = Random(1)
    short = 0
    for _ in range(cases(4000, 100)):
        source, target, delay = random_case(random)
        for free_after in (AT_ONCE, NEXT_CYCLE):
            depth = max_tokens(source, target, delay, "exact", free_after)
            peak, end = run(source, target, delay, None, free_after)
            assert depth == peak, (source, target, delay, free_after)
            assert run(source, target, delay, depth, free_after) == (peak, end)
        paper, exact = max_tokens(source, target, delay, "paper"), max_tokens(source, target, delay)
        assert abs(paper - exact) <= 1
        if source.interval <= target.interval:
            assert paper >= exact
        else:
            assert paper <= exact
            short += paper < exact
    assert short > cases(4000, 100) // 10


def test_what_the_equations_refuse() -> None:
    ends = pair(8, 10, 1, 1)
    with pytest.raises(ProgramError, match=r"starts 9 cycles after the source, whose first token comes after 10"):
        max_tokens(*ends, 9)
    with pytest.raises(ProgramError, match="exact"):
        max_tokens(*ends, 10, "paper", NEXT_CYCLE)
    wrong: Any = "printed"
    with pytest.raises(ProgramError, match="printed is no equation; there are exact, paper"):
        max_tokens(*ends, 10, wrong)
    with pytest.raises(ProgramError, match="delays cost bits or cycles, not printed"):
        schedule(FIGURE_8F, wrong)
    with pytest.raises(ProgramError, match="has first 1, interval 0, tokens 5"):
        Timing(1, 0, 5)


# -- start times -------------------------------------------------------------------------------------------------------


def graph_of(firsts: dict[str, int], edges: list[str], tokens: int = 64, interval: int = 1) -> KernelGraph:
    names = tuple(firsts)
    fifos = [edge.split() for edge in edges]
    return KernelGraph(
        names,
        tuple(Timing(first, interval, tokens) for first in firsts.values()),
        tuple(Fifo(names.index(a), names.index(b)) for a, b in fifos),
    )


def with_intervals(graph: KernelGraph, *intervals: int) -> KernelGraph:
    timings = tuple(Timing(t.first, i, t.tokens) for t, i in zip(graph.timings, intervals, strict=True))
    return KernelGraph(graph.names, timings, graph.fifos)


FIGURE_8F = graph_of({"0": 10, "1": 30, "2": 0}, ["0 1", "1 2", "0 2"])
BLOCK = graph_of(
    {"ln": 20, "q": 40, "k": 60, "v": 40, "qk": 100, "softmax": 30, "sv": 80, "proj": 50, "add": 0},
    [
        *("ln q", "ln k", "ln v", "q qk", "k qk", "qk softmax", "softmax sv", "v sv", "sv proj", "proj add"),
        "ln add",
    ],
)
"""Attention with a skip edge around it."""


def test_figure_8f() -> None:
    found = schedule(FIGURE_8F, "cycles")
    assert (found.delays, found.objective()) == ((10, 30, 40), 80)
    assert found.depths() == found.depths("paper") == (1, 1, 31)
    slow_target = StartTimes(with_intervals(FIGURE_8F, 1, 1, 2), found.starts)
    assert (slow_target.depths("paper")[2], slow_target.depths()[2]) == (48, 47)
    slow_source = StartTimes(with_intervals(FIGURE_8F, 2, 1, 1), found.starts)
    assert (slow_source.depths("paper")[2], slow_source.depths()[2]) == (15, 16)


def test_attention_with_a_skip_edge() -> None:
    found = schedule(BLOCK, "cycles")
    assert found.objective() == 970
    named = {(BLOCK.names[f.source], BLOCK.names[f.target]): d for f, d in zip(BLOCK.fifos, found.delays, strict=True)}
    assert named["ln", "add"] == 340
    assert named["v", "sv"] == 190, "of two optima the one as soon as possible"
    assert named["ln", "v"] == 20
    paths = path_delays(BLOCK)
    assert paths.objective == pytest.approx(970)
    # All bits are alike here, but v has a wide output: then it starts late.
    wide = tuple(Fifo(f.source, f.target, 64 if BLOCK.names[f.source] == "v" else 8) for f in BLOCK.fifos)
    late = schedule(KernelGraph(BLOCK.names, BLOCK.timings, wide), "bits")
    assert late.starts[BLOCK.names.index("v")] == 210 - 40
    assert late.latency == found.latency


def test_conservative_equalisation() -> None:
    chain = with_intervals(graph_of(dict.fromkeys("abcd", 8), ["a b", "b c", "c d", "a d"], 128), 1, 4, 2, 1)
    slowed = conservative(chain)
    assert [t.interval for t in slowed.timings] == [4, 4, 4, 4]
    starts = (0, 8, 16, 26)
    assert StartTimes(chain, starts).depths("paper")[0] == 97
    assert StartTimes(chain, (0, 8, 16, 24)).depths("paper")[1:3] == (1, 1)
    assert StartTimes(slowed, (0, 8, 16, 24)).depths("paper")[:3] == (1, 1, 1)
    assert (StartTimes(chain, starts).depths("paper")[3], StartTimes(slowed, starts).depths("paper")[3]) == (19, 6)


@in_both
def test_conservative_depths_are_no_larger_and_its_latency_no_shorter() -> None:
    random = Random(2)
    for _ in range(cases(500, 30)):
        graph = random_graph(random)
        normal = schedule(graph, latency=None)
        slowed = StartTimes(conservative(graph), normal.starts)
        assert all(less <= more for less, more in zip(slowed.depths(), normal.depths(), strict=True)), graph
        # Printed, equation (2) is one too few for the normal depth, and (1) one too many for the conservative one.
        printed = zip(slowed.depths("paper"), normal.depths("paper"), strict=True)
        assert all(less <= more + 1 for less, more in printed), graph
        assert slowed.latency >= normal.latency


def exhaustive(graph: KernelGraph, weights: str, latest: int) -> tuple[Fraction, tuple[int, ...]]:
    """The least objective of all schedules with start times up to `latest`, and the least such schedule."""
    best: list[tuple[Fraction, tuple[int, ...]]] = []
    ranges = [(0,) if k in graph.sources else range(latest + 1) for k in range(len(graph.names))]
    for starts in product(*ranges):
        if all(starts[f.target] - starts[f.source] >= graph.after(f) for f in graph.fifos):
            found = StartTimes(graph, starts)
            best.append((found.objective("bits" if weights == "bits" else "cycles"), starts))
    least = min(objective for objective, _ in best)
    optimal = [starts for objective, starts in best if objective == least]
    return least, min(optimal, key=sum)


@in_both
def test_start_times_are_the_best_of_all_schedules() -> None:
    random = Random(3)
    count = cases(400, 20)
    later = 0
    for _ in range(count):
        graph = random_graph(random, most=5)
        graph = KernelGraph(
            graph.names, tuple(Timing([1, 1, 6][t.first % 3], t.interval, t.tokens) for t in graph.timings), graph.fifos
        )
        soon = graph.as_soon_as_possible()
        if max(soon) > 9:
            continue
        for weights in ("bits", "cycles"):
            least, starts = exhaustive(graph, weights, max(soon) + 1)
            found = schedule(graph, "bits" if weights == "bits" else "cycles")
            assert (found.objective("bits" if weights == "bits" else "cycles"), found.starts) == (least, starts)
            later += found.starts != soon
        latency = StartTimes(graph, soon).latency
        bounded = schedule(graph, "bits", latency)
        assert bounded.latency == latency
        assert bounded.objective("bits") <= StartTimes(graph, soon).objective("bits")
    assert later or count < 400


@in_both
def test_paths_against_start_times() -> None:
    random = Random(4)
    count = cases(400, 20)
    less = 0
    for _ in range(count):
        graph = random_graph(random, most=8, one_source=True)
        starts = schedule(graph, "cycles").objective()
        paths = path_delays(graph)
        assert paths.objective <= starts + Fraction(1, 1000)
        if paths.objective < starts - Fraction(1, 1000):
            less += 1
            assert not paths.schedule
    assert less < count // 5
    assert less or count < 100


def test_paths_that_are_no_schedule() -> None:
    random = Random(4)
    while True:
        graph = random_graph(random, most=8, one_source=True)
        paths, starts = path_delays(graph), schedule(graph, "cycles")
        if paths.objective < starts.objective():
            break
    assert not paths.schedule
    wide = KernelGraph(
        tuple(map(str, range(40))),
        (Timing(1, 1, 1),) * 40,
        tuple(Fifo(a, b) for a in range(40) for b in range(a + 1, 40)),
    )
    with pytest.raises(ProgramError, match="more than 20000 paths"):
        path_delays(wide)
    assert schedule(wide).latency == 40


def test_graphs_that_are_refused() -> None:
    two = (Timing(1, 1, 4), Timing(1, 1, 5))
    with pytest.raises(ProgramError, match="a puts 4 tokens and b takes 5"):
        StartTimes(KernelGraph(("a", "b"), two, (Fifo(0, 1),)), (0, 1)).depths()
    with pytest.raises(ProgramError, match="kernel a has -1 bits; the least is 0"):
        KernelGraph(("a", "b"), two, (Fifo(0, 1, -1),))
    with pytest.raises(ProgramError, match="kernel a has no timing"):
        KernelGraph(("a", "b"), (None, two[0]), (Fifo(0, 1),), (5, 5))
    with pytest.raises(ProgramError, match="2 kernels have 0 last cycles"):
        KernelGraph(("a", "b"), (None, two[0]), ())
    with pytest.raises(ProgramError, match="a has no single rate"):
        StartTimes(KernelGraph(("a", "b"), (None, two[0]), (Fifo(0, 1, 8, 1, Fraction(1)),), (5, 5)), (0, 1)).depths()
    same = (Timing(1, 1, 4),) * 2
    with pytest.raises(CycleError, match="a -> b -> a"):
        KernelGraph(("a", "b"), same, (Fifo(0, 1), Fifo(1, 0)))
    with pytest.raises(ProgramError, match="9 cycles after 0, which is less than 10"):
        StartTimes(FIGURE_8F, (0, 9, 50))
    with pytest.raises(ProgramError, match="3 kernels have 2 start times"):
        StartTimes(FIGURE_8F, (0, 10))
    with pytest.raises(ProgramError, match="take 103 cycles as soon as possible; 90 are too few"):
        schedule(FIGURE_8F, latency=90)


def test_the_kernels_of_a_dataflow() -> None:
    rows, columns = Order.parse("4x4 [2,2]*[4,4] (d0,d1)"), Order.parse("4x4 [2,2]*[4,4] (d1,d0)")
    nodes = tuple(
        KernelNode(name, "scale", timing=Timing(first, 1, 4)) for name, first in (("a", 3), ("b", 9), ("c", 1))
    )
    edges = (Edge("a", "b", rows, rows), Edge("b", "c", rows, rows), Edge("a", "c", rows, rows, operand=1))
    graph = KernelGraph.of_dataflow(Dataflow(nodes, edges))
    assert [fifo.bits for fifo in graph.fifos] == [512] * 3
    assert schedule(graph).starts == (0, 3, 12)
    assert schedule(graph).depths() == (1, 1, 4)
    with pytest.raises(ProgramError, match=r"stream a -> b has two orders, 4x4 \[2,2\]"):
        KernelGraph.of_dataflow(Dataflow(nodes[:2], (Edge("a", "b", rows, columns),)))
    with pytest.raises(ProgramError, match="kernel d has no timing"):
        KernelGraph.of_dataflow(Dataflow((KernelNode("d", "scale"),), ()))
