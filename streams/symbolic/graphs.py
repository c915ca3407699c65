"""Questions about graphs of streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .run import Channel


def components(edges: Mapping[Channel, tuple[int, int]]) -> Iterator[set[Channel]]:
    """Yield the biconnected components of the undirected graph of instances and streams, each as the set of its
    streams. edges: the two instances of each stream."""
    near: dict[int, list[tuple[int, Channel]]] = {}
    for key, (a, b) in edges.items():
        near.setdefault(a, []).append((b, key))
        near.setdefault(b, []).append((a, key))
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    for root in near:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        path: list[Channel] = []
        taken: set[Channel] = set()
        stack: list[tuple[int, Channel | None, Iterator[tuple[int, Channel]]]] = [(root, None, iter(near[root]))]
        while stack:
            node, entered, rest = stack[-1]
            found = next(rest, None)
            if found is not None:
                other, key = found
                if key in taken:
                    continue
                taken.add(key)
                path.append(key)
                if other in number:
                    low[node] = min(low[node], number[other])
                else:
                    number[other] = low[other] = len(number)
                    stack.append((other, key, iter(near[other])))
                continue
            stack.pop()
            if not stack:
                continue
            above = stack[-1][0]
            low[above] = min(low[above], low[node])
            if low[node] >= number[above]:
                part: set[Channel] = set()
                while entered not in part:
                    part.add(path.pop())
                yield part


def knots(arcs: Mapping[int, set[int]]) -> list[set[int]]:
    """Return the strongly connected components of a directed graph, each as its nodes. arcs: the successors of each
    node; every node is a key.
    """
    reach: dict[int, set[int]] = {}
    for k in arcs:
        seen: set[int] = set()
        todo = [k]
        while todo:
            for other in arcs[todo.pop()]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        reach[k] = seen
    knots: list[set[int]] = []
    for k in arcs:
        if not any(k in knot for knot in knots):
            knots.append({k} | {other for other in reach[k] if k in reach[other]})
    return knots
