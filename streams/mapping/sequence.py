"""Mappings that cut a program into runs: instances in an order that their streams allow, consecutive ones on a node.

Such a cut makes no cycle of nodes, whatever streams join the instances, so that it reaches mappings for which pairs of
neighbours alone give no way: instances that share no stream, and nodes that fit only once many instances are on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate, pairwise

from .machine import MeshDescription
from .mapping import AppliedPrimitive, Mapped

EVERY = 64
"""Up to so many nodes, every way to cut an order into runs is looked at."""

HALVINGS = 12
"""How often the work of a node is halved in the search for the least that suffices."""


def sequences(mapped: Mapped) -> Iterator[list[int]]:
    """Yield orders of the nodes, as their numbers, in which each node stands behind all nodes that it reads from: level
    by level; along paths; and with each node right before it is needed, so that few tokens wait. Yields nothing if
    nodes read from each other in a cycle."""
    levels = _along(mapped, 0)
    if len(levels) < len(mapped.groups):
        return
    yield levels
    yield _along(mapped, -1)
    order: list[int] = []
    placed = [False] * len(levels)
    for last in levels:
        todo = [last] if not mapped.successors[last] else []
        while todo:
            waiting = [k for k in mapped.predecessors[todo[-1]] if not placed[k]]
            todo += reversed(waiting)
            if not waiting:
                k = todo.pop()
                if not placed[k]:
                    placed[k] = True
                    order.append(k)
    yield order


def _along(mapped: Mapped, which: int) -> list[int]:
    """The nodes that can run, each when those that feed it have: of those that can, the one that could first (0) or
    last (-1)."""
    missing = [len(before) for before in mapped.predecessors]
    todo = deque(k for k, count in enumerate(missing) if not count)
    order: list[int] = []
    while todo:
        k = todo[which]
        del todo[which]
        order.append(k)
        for n in mapped.successors[k]:
            missing[n] -= 1
            if not missing[n]:
                todo.append(n)
    return order


def cuts(mapped: Mapped, at_most: int, machine: MeshDescription | None) -> Iterator[Mapped]:
    """Yield mappings on at most `at_most` nodes, each made of runs of consecutive nodes of an order that `sequences`
    yields. For each order, the largest work of a node falls from one mapping to the next. machine: whose tiles all
    nodes fit; None for tiles without limits."""
    for order in sequences(mapped):
        runs = _Runs(mapped, order, machine)
        low, high = 0, runs.work[-1]
        for _ in range(HALVINGS):
            limit = (low + high) // 2 if low else high
            found = runs.of_work(limit, at_most)
            if found is None:
                if limit == high:
                    break
                low = limit
            else:
                high = max((runs.work[end] - runs.work[start] for start, end in found), default=0)
                yield runs.mapping(found)
            low = max(low, 1)
            if high - low <= 1:
                break


class _Runs:
    """The runs of an order of nodes. work: cycles of all nodes before each place."""

    def __init__(self, mapped: Mapped, order: list[int], machine: MeshDescription | None) -> None:
        self.mapped, self.order, self.machine = mapped, order, machine
        nodes = mapped.graph.nodes
        cycles = [sum(nodes[shot].cycles for shot in mapped.groups[k].shots) for k in order]
        self.work = [0, *accumulate(cycles)]
        self.known: dict[tuple[int, int], bool] = {}

    def of_work(self, limit: int, at_most: int) -> list[tuple[int, int]] | None:
        """Return the first and the last place of each run, so that each fits a tile and takes no more cycles than the
        limit: the fewest runs, or of many nodes each one as long as possible. None if these are too many."""
        count = len(self.order)
        before: dict[int, tuple[int, int]] = {0: (0, 0)}  # the runs up to a place, and where the last one starts
        start = 0
        while start < count:
            if start in before and before[start][0] < at_most:
                runs = before[start][0] + 1
                for end in self._ends(start, limit):
                    if (end not in before or runs < before[end][0]) and self._fits(start, end):
                        before[end] = runs, start
                        if count > EVERY:
                            break
            start = max(before) if count > EVERY and max(before) > start else start + 1
        if count not in before:
            return None
        found = [count]
        while found[-1]:
            found.append(before[found[-1]][1])
        return list(pairwise(found[::-1]))

    def _ends(self, start: int, limit: int) -> list[int]:
        """The places where a run can end, by its cycles and its streams; the last one first."""
        inside: set[int] = set()
        ins = outs = 0
        ends = []
        for n in range(start, len(self.order)):
            if self.work[n + 1] - self.work[start] > limit:
                break
            k = self.order[n]
            inside.add(k)
            ins += sum(other not in inside for other in self.mapped.predecessors[k])
            outs -= sum(other in inside for other in self.mapped.predecessors[k])
            outs += len(self.mapped.successors[k])
            # Each pair of nodes has a stream, at least; streams of a pair may share one.
            if self.machine is None or max(ins - self.machine.in_ports, outs - self.machine.out_ports) <= 0:
                ends.append(n + 1)
        return ends[::-1]

    def _fits(self, start: int, end: int) -> bool:
        if self.machine is None:
            return True
        found = self.known.get((start, end))
        if found is None:
            made = self.mapping([(start, end)])
            found = self.known[start, end] = not made.over(made.of[self._first(start)], self.machine)
        return found

    def _first(self, start: int) -> int:
        return self.mapped.groups[self.order[start]].shots[0]

    def mapping(self, runs: list[tuple[int, int]]) -> Mapped:
        """Return the mapping with a node for each run of several nodes."""
        mapped = self.mapped
        parts = [self.order[start:end] for start, end in runs if end - start > 1]
        nodes = [(mapped.made.chain([mapped.groups[k] for k in members]), members) for members in parts]
        steps = [AppliedPrimitive("chain", tuple(map(mapped.name, part)), len(part) - 1) for part in parts]
        return mapped.joined(nodes, *steps)
