"""Topological orders of graphs, and the cycles that prevent them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from ...base.errors import CycleError, ProgramError


def topological_order(names: Sequence[str], links: Iterable[tuple[str, str]]) -> list[str]:
    """Return names in an order in which each comes after all names that have a link to it; where several could be next,
    the first in `names` is.

    links: pairs (from, to). Raises `ProgramError` for a name that is given twice, or that is in a link but not in
    `names`; `CycleError`, which names a shortest cycle."""
    position: dict[str, int] = {}
    for name in names:
        if name in position:
            raise ProgramError(f"two nodes have the name {name}; give each its own")
        position[name] = len(position)
    after: list[list[int]] = [[] for _ in names]
    waits = [0] * len(names)
    for source, target in links:
        for name in (source, target):
            if name not in position:
                raise ProgramError(f"stream {source} -> {target}: no node has the name {name}")
        after[position[source]].append(position[target])
        waits[position[target]] += 1
    ready = [k for k, count in enumerate(waits) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        node = heappop(ready)
        order.append(node)
        for following in after[node]:
            waits[following] -= 1
            if not waits[following]:
                heappush(ready, following)
    if len(order) < len(names):
        raise CycleError([names[k] for k in _cycle(after, set(range(len(names))) - set(order))])
    return [names[k] for k in order]


def _cycle(after: Sequence[Sequence[int]], left: set[int]) -> list[int]:
    """Return a shortest cycle among the nodes that a topological order leaves over, from the first of its nodes."""
    shortest: list[int] = []
    for start in sorted(left):
        parent: dict[int, int] = {}
        level = [start]
        while level and start not in parent:
            level_after: list[int] = []
            for node in level:
                for target in after[node]:
                    if target in left and target not in parent:
                        parent[target] = node
                        level_after.append(target)
            level = level_after
        if start not in parent:
            continue
        cycle = [parent[start]]
        while cycle[-1] != start:
            cycle.append(parent[cycle[-1]])
        if not shortest or len(cycle) < len(shortest):
            shortest = cycle[::-1]
    return shortest
