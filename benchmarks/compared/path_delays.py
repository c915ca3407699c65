"""The linear program of StreamTensor as printed (equations 3 to 5): a row for every path between any two kernels.

It is here to compare with `rsn.streams.fifos.starts.schedule`. The number of rows is exponential in the graph, and its
solutions need not be schedules: two paths between the same kernels may get different sums of delays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rsn.base.errors import ProgramError
from rsn.streams.fifos.starts import KernelGraph

PATHS = 20_000
"""Limit of the paths of a graph."""


@dataclass(frozen=True)
class PathDelays:
    """A solution. delays: of each FIFO, in cycles. objective: their weighted sum. paths: rows of the program. schedule:
    whether start times exist that have these delays."""

    delays: tuple[float, ...]
    objective: float
    paths: int
    schedule: bool


def path_delays(graph: KernelGraph) -> PathDelays:
    """Return the delays of FIFOs with the least weighted sum, such that the delays of each path add up to at least the
    cycles of the longest path with the same ends: there each kernel takes the cycles D until its first token
    (StreamTensor, equations 3 to 5). Raises `ProgramError` for a graph with more than `PATHS` paths."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    if not graph.fifos:
        return PathDelays((), 0.0, 0, True)
    rows, columns, limits = [], [], []
    for number, (path, least) in enumerate(_paths(graph)):
        rows += [number] * len(path)
        columns += path
        limits.append(-least)
    shape = len(limits), len(graph.fifos)
    matrix = csr_matrix((-np.ones(len(rows)), (rows, columns)), shape=shape)
    cost = [float(graph.weight(fifo, "cycles")) for fifo in graph.fifos]
    found = linprog(cost, A_ub=matrix, b_ub=limits, method="highs-ds")
    assert found.status == 0, found.message
    return PathDelays(tuple(map(float, found.x)), float(found.fun), len(limits), _is_schedule(graph, found.x))


def _paths(graph: KernelGraph) -> Iterator[tuple[list[int], int]]:
    """Every path as a list of FIFOs, with the longest sum of D between its ends."""
    outof: dict[int, list[int]] = {}
    for k, fifo in enumerate(graph.fifos):
        outof.setdefault(fifo.source, []).append(k)
    position = {node: k for k, node in enumerate(graph.order)}
    count = 0
    for first in range(len(graph.names)):
        longest = {first: 0}
        for node in graph.order[position[first] :]:
            for k in outof.get(node, ()) if node in longest else ():
                fifo = graph.fifos[k]
                longest[fifo.target] = max(longest.get(fifo.target, 0), longest[node] + graph.after(fifo))
        open_paths = [[k] for k in outof.get(first, ())]
        while open_paths:
            path = open_paths.pop()
            count += 1
            if count > PATHS:
                raise ProgramError(f"the graph has more than {PATHS} paths; take start times (schedule) instead")
            last = graph.fifos[path[-1]].target
            yield path, longest[last]
            open_paths += [[*path, k] for k in outof.get(last, ())]


def _is_schedule(graph: KernelGraph, delays: npt.NDArray[np.float64]) -> bool:
    """Whether every cycle of the graph without directions sums up to 0."""
    ends = np.zeros((len(graph.fifos), len(graph.names)))
    for k, fifo in enumerate(graph.fifos):
        ends[k, fifo.source] -= 1
        ends[k, fifo.target] += 1
    times, *_ = np.linalg.lstsq(ends, delays, rcond=None)
    return bool(np.abs(ends @ times - delays).max() < 1e-6)
