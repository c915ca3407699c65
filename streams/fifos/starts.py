"""When the kernels of a graph start: a linear program over start times, and the depths of FIFOs that follow.

StreamTensor (MICRO'25, 5.3.3) writes a row for every path between any two kernels (`paths`). With start times as the
unknowns there is one row for each edge: target - source >= D of the source. Their number is linear in the graph, and
every solution is a schedule, which solutions of the rows of paths need not be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Literal

import numpy as np

from ...base.errors import ProgramError
from ..dataflow.graph import Dataflow, Timing
from ..dataflow.topology import topological_order
from .equations import AT_ONCE, Equation, max_tokens

Weights = Literal["bits", "cycles"]
"""What a cycle of delay costs on an edge: `bits`: the bits that its source puts in a cycle; `cycles`: 1, as printed."""

WEIGHT = 1 << 30
"""The largest weight of the linear program; where exact weights would be larger, they are rounded to fit."""


@dataclass(frozen=True)
class Fifo:
    """A FIFO between two kernels. source, target: the positions of the kernels in the graph. bits: of a token. after:
    the least number of cycles from the start of the source to that of the target; None for the first token of the
    source. rate: tokens that the source puts in a cycle; None for one in each interval of the source."""

    source: int
    target: int
    bits: int = 1
    after: int | None = None
    rate: Fraction | None = None


@dataclass(frozen=True)
class KernelGraph:
    """Kernels, and the FIFOs between them.

    names: of the kernels. timings: when each puts its tokens; None for a kernel with more than one rate, whose FIFOs
    state `after` and `rate`. lasts: when each kernel ends, in cycles from its start; () if each ends with its last
    token. Raises `CycleError` for FIFOs that lead in a cycle, and `ProgramError` for names that are given twice,
    another number of timings or lasts than kernels, positions that do not exist, FIFOs of less than 0 bits, and a
    kernel without a timing whose FIFOs do not state both."""

    names: tuple[str, ...]
    timings: tuple[Timing | None, ...]
    fifos: tuple[Fifo, ...]
    lasts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) != len(self.timings):
            raise ProgramError(f"{len(self.names)} kernels have {len(self.timings)} timings; give one for each")
        if len(self.names) != len(self.lasts) and (self.lasts or None in self.timings):
            raise ProgramError(f"{len(self.names)} kernels have {len(self.lasts)} last cycles; give one for each")
        for fifo in self.fifos:
            if not (0 <= fifo.source < len(self.names) and 0 <= fifo.target < len(self.names)):
                raise ProgramError(f"a FIFO leads from kernel {fifo.source} to {fifo.target} of {len(self.names)}")
            if fifo.bits < 0:
                raise ProgramError(f"a FIFO from kernel {self.names[fifo.source]} has {fifo.bits} bits; the least is 0")
            if self.timings[fifo.source] is None and (fifo.after is None or fifo.rate is None):
                raise ProgramError(f"kernel {self.names[fifo.source]} has no timing; state it, or measure the program")
        links = [(self.names[fifo.source], self.names[fifo.target]) for fifo in self.fifos]
        topological_order(self.names, links)

    @classmethod
    def of_dataflow(cls, graph: Dataflow) -> KernelGraph:
        """Return the kernels of a dataflow graph with their timings, and its streams as FIFOs of whole tokens.

        Raises `ProgramError` for a kernel without a timing, and for a stream whose ends have two orders: its converter
        is a kernel too, so make it a node, with a timing of its own.
        """
        for node in graph.nodes:
            if node.timing is None:
                raise ProgramError(f"kernel {node.name} has no timing; state it, or measure the stream program")
        for edge in graph.edges:
            if edge.put.canonical != edge.get.canonical:
                raise ProgramError(
                    f"stream {edge} has two orders, {edge.put} and {edge.get}; make its converter a node with a timing"
                )
        fifos = [
            Fifo(source, target, 8 * edge.put.bytes_per_token)
            for edge, (source, target) in zip(graph.edges, graph.links, strict=True)
        ]
        return cls(tuple(node.name for node in graph.nodes), tuple(node.timing for node in graph.nodes), tuple(fifos))

    def after(self, fifo: Fifo) -> int:
        """Return the smallest delay, in cycles, from the start of the source of a FIFO to that of its target. Raises
        `ProgramError` as `timing`.
        """
        return self.timing(fifo.source).first if fifo.after is None else fifo.after

    def last(self, kernel: int) -> int:
        """Return the cycles from the start of a kernel to its end. kernel: its position. Raises `ProgramError` as
        `timing`.
        """
        return self.lasts[kernel] if self.lasts else self.timing(kernel).last

    def timing(self, kernel: int) -> Timing:
        """Return the timing of a kernel. kernel: its position. Raises `ProgramError` if it has none."""
        found = self.timings[kernel]
        if found is None:
            raise ProgramError(f"kernel {self.names[kernel]} has no single rate; measure the program (normal_depths)")
        return found

    def pair(self, fifo: Fifo) -> tuple[Timing, Timing]:
        """Return the timings of the source and the target of a FIFO. Raises `ProgramError` as `timing`, and if the
        numbers of tokens of the two differ, since the equations hold only for one token put and one got in each
        interval."""
        source, target = self.timing(fifo.source), self.timing(fifo.target)
        if source.tokens != target.tokens:
            raise ProgramError(
                f"{self.names[fifo.source]} puts {source.tokens} tokens and {self.names[fifo.target]} takes "
                f"{target.tokens} in an execution; equations with one rate for each kernel do not hold: measure the "
                f"program (normal_depths)"
            )
        return source, target

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions of the kernels, each after all that lead to it."""
        position = {name: k for k, name in enumerate(self.names)}
        links = [(self.names[fifo.source], self.names[fifo.target]) for fifo in self.fifos]
        return tuple(position[name] for name in topological_order(self.names, links))

    @cached_property
    def sources(self) -> frozenset[int]:
        """Positions of the kernels that no FIFO leads to."""
        return frozenset(range(len(self.names))) - {fifo.target for fifo in self.fifos}

    def weight(self, fifo: Fifo, weights: Weights) -> Fraction:
        """Return what a cycle of delay costs on a FIFO. weights: "bits" for the bits that its source puts in a cycle,
        "cycles" for 1. Raises `ProgramError` for other weights, and as `timing`."""
        if weights == "cycles":
            return Fraction(1)
        if weights != "bits":
            raise ProgramError(f"delays cost bits or cycles, not {weights}")
        return fifo.bits * (fifo.rate or Fraction(1, self.timing(fifo.source).interval))

    def as_soon_as_possible(self) -> tuple[int, ...]:
        """Return the least start time of each kernel, in cycles; sources start at 0. Raises `ProgramError` as
        `timing`.
        """
        starts = [0] * len(self.names)
        into: dict[int, list[Fifo]] = {}
        for fifo in self.fifos:
            into.setdefault(fifo.target, []).append(fifo)
        for k in self.order:
            starts[k] = max([0, *(starts[fifo.source] + self.after(fifo) for fifo in into.get(k, ()))])
        return tuple(starts)


@dataclass(frozen=True)
class StartTimes:
    """Start times of the kernels of a graph. starts: in cycles, one for each kernel. Raises `ProgramError` for another
    number of start times than kernels, and for a kernel that starts earlier after another one than their FIFO allows
    (`KernelGraph.after`)."""

    graph: KernelGraph
    starts: tuple[int, ...]

    def __post_init__(self) -> None:
        names = self.graph.names
        if len(self.starts) != len(names):
            raise ProgramError(f"{len(names)} kernels have {len(self.starts)} start times; give one for each")
        for fifo, delay in zip(self.graph.fifos, self.delays, strict=True):
            if delay < self.graph.after(fifo):
                raise ProgramError(
                    f"{names[fifo.target]} starts {delay} cycles after {names[fifo.source]}, which is less than "
                    f"{self.graph.after(fifo)}"
                )

    @cached_property
    def delays(self) -> tuple[int, ...]:
        """For each FIFO, the cycles from the start of its source to that of its target."""
        return tuple(self.starts[fifo.target] - self.starts[fifo.source] for fifo in self.graph.fifos)

    @property
    def latency(self) -> int:
        """The cycle in which the last kernel ends, if no kernel waits after its start."""
        return max((start + self.graph.last(k) for k, start in enumerate(self.starts)), default=0)

    def objective(self, weights: Weights = "cycles") -> Fraction:
        """Return the weighted sum of the delays of all FIFOs: in bits with the weights "bits", in cycles with "cycles".
        Raises `ProgramError` as `KernelGraph.weight`."""
        pairs = zip(self.graph.fifos, self.delays, strict=True)
        return sum((self.graph.weight(fifo, weights) * delay for fifo, delay in pairs), Fraction(0))

    def depths(self, equation: Equation = "exact", free_after: int = AT_ONCE) -> tuple[int, ...]:
        """Return the depth of each FIFO by the equations, in tokens, at least 1. equation, free_after: as for
        `max_tokens`. Raises `ProgramError` as `KernelGraph.pair` and `max_tokens`.
        """
        return tuple(
            max(1, max_tokens(*self.graph.pair(fifo), delay, equation, free_after))
            for fifo, delay in zip(self.graph.fifos, self.delays, strict=True)
        )

    def bits(self, depths: Sequence[int]) -> int:
        """Return the bits of all FIFOs with these depths, in tokens, one for each FIFO."""
        return sum(fifo.bits * depth for fifo, depth in zip(self.graph.fifos, depths, strict=True))


def schedule(
    graph: KernelGraph, weights: Weights = "bits", latency: int | None = None, sources_wait: bool = False
) -> StartTimes:
    """Return start times with the least weighted sum of delays, found by a linear program (HiGHS; StreamTensor, section
    5.3.3). Of all such schedules it is the one in which every kernel starts earliest.

    weights: what a cycle of delay costs, as for `KernelGraph.weight`. latency: the cycle by which all kernels must have
    ended; None for no limit. sources_wait: whether kernels without inputs may start after cycle 0 as well. Raises
    `ProgramError` for a latency that is too short, for other weights, and as `KernelGraph.timing`."""
    soon = StartTimes(graph, graph.as_soon_as_possible())
    if latency is not None and latency < soon.latency:
        raise ProgramError(f"the kernels take {soon.latency} cycles as soon as possible; {latency} are too few")
    if not graph.fifos:
        return soon
    exact = [graph.weight(fifo, weights) for fifo in graph.fifos]
    costs = _integers(exact)
    latest = [None if latency is None else latency - graph.last(k) for k in range(len(graph.names))]
    if not sources_wait:
        latest = [0 if k in graph.sources else end for k, end in enumerate(latest)]
    tight, ends = _tight(graph, costs, latest)
    least = _least(graph, tight, {k: end for k in ends if (end := latest[k]) is not None})
    return StartTimes(graph, least)


def _integers(weights: Sequence[Fraction]) -> list[int]:
    """Scale weights to integers of at most `WEIGHT`, at least 1 where they are not 0."""
    scale = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    common, largest = gcd(*whole) or 1, max(whole)
    if largest // common <= WEIGHT:
        return [weight // common for weight in whole]
    return [max(1, round(Fraction(weight * WEIGHT, largest))) if weight else 0 for weight in whole]


def _tight(
    graph: KernelGraph, costs: Sequence[int], latest: Sequence[int | None]
) -> tuple[frozenset[int], frozenset[int]]:
    """Solve the linear program. Return the FIFOs whose delay is least in every optimal schedule, and the kernels
    that start at their latest time in every one, both by their duals: a row with a dual above 0 is tight in all optimal
    solutions, and solutions in which all of those are tight are optimal."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    count, kernels = len(graph.fifos), len(graph.names)
    pairs = np.array([(fifo.source, fifo.target) for fifo in graph.fifos])
    rows = np.repeat(np.arange(count), 2)
    matrix = csr_matrix((np.tile([1.0, -1.0], count), (rows, pairs.ravel())), shape=(count, kernels))
    cost = np.zeros(kernels)
    np.add.at(cost, pairs[:, 1], costs)
    np.subtract.at(cost, pairs[:, 0], costs)
    bounds = [(0, end) for end in latest]
    limits = [-graph.after(fifo) for fifo in graph.fifos]
    found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs-ds")
    assert found.status == 0, found.message
    # Weights are integers and the rows a network, so duals are integers too.
    tight = frozenset(np.flatnonzero(found.ineqlin.marginals < -0.5).tolist())
    ends = frozenset(np.flatnonzero(found.upper.marginals < -0.5).tolist())
    return tight, ends


def _least(graph: KernelGraph, tight: frozenset[int], fixed: Mapping[int, int]) -> tuple[int, ...]:
    """Return the least start times with these FIFOs at their least delay, and these kernels at fixed times."""
    starts = list(graph.as_soon_as_possible())
    for k, start in fixed.items():
        starts[k] = start
    changed = True
    while changed:
        changed = False
        for k, fifo in enumerate(graph.fifos):
            after = graph.after(fifo)
            if starts[fifo.target] < starts[fifo.source] + after:
                starts[fifo.target] = starts[fifo.source] + after
                changed = True
            if k in tight and starts[fifo.source] < starts[fifo.target] - after:
                starts[fifo.source] = starts[fifo.target] - after
                changed = True
    return tuple(starts)


def conservative(graph: KernelGraph) -> KernelGraph:
    """Return a graph in which every kernel has the pace of the slowest one (StreamTensor's conservative equalisation).

    The interval II of each kernel becomes II * max(II * T) / (II * T), rounded down, so that none becomes slower than
    the slowest. The kernels must then be built with these intervals: the depths that follow from them are too small for
    faster kernels. Raises `ProgramError` for a kernel without a timing."""
    timings = [graph.timing(k) for k in range(len(graph.names))]
    slowest = max((timing.interval * timing.tokens for timing in timings), default=1)
    slowed = tuple(replace(timing, interval=slowest // timing.tokens) for timing in timings)
    return KernelGraph(graph.names, slowed, graph.fifos)
