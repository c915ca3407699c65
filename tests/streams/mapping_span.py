"""The search as published: depth first through all mappings that `bundle` and `chain` of pairs reach.

It is for small graphs: the number of mappings grows faster than exponentially. `search` maps large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.graph import MappingGraph
from rsn.streams.mapping.shots import Collocations, Shots

STATES = 100_000
"""Limit of distinct mappings of one search."""

State = frozenset[int]
"""Numbers of the nodes of a mapping (`Shots.number`)."""


@dataclass(frozen=True)
class SpanCounts:
    """What the search meets. moves: primitives that are legal at the start. states: distinct mappings, by which
    instances are together and how. renamed: those that differ in more than which of several equal instances they take
    (by refinement of colours). feasible: mappings of at most so many nodes as asked. calls: of the search as it is
    printed, which keeps no memory of mappings."""

    moves: int
    states: int
    renamed: int
    feasible: int
    calls: int


class Span:
    """All mappings of a graph. Two nodes can be chained if a stream joins them and no other path does; bundled, if they
    have the same kernel and no path joins them. Ports and bytes are not looked at. Raises `MappingError` beyond
    `STATES`."""

    def __init__(self, graph: MappingGraph) -> None:
        self.graph = graph
        self.made = Collocations(graph, fuse=False)
        self.nodes: dict[int, Shots] = {}
        self._shapes: dict[int, int] = {}
        self._numbers: dict[tuple[str, int, tuple[int, ...]], int] = {}
        self.root = frozenset(self._add(self.made.single(node.number)) for node in graph.nodes)
        self.after: dict[State, list[State]] = {}
        todo = [self.root]
        while todo:
            state = todo.pop()
            if state in self.after:
                continue
            if len(self.after) == STATES:
                raise MappingError("tiles", f"more than {STATES} mappings; `search` is for graphs of this size")
            self.after[state] = list(self._moves(state))
            todo += self.after[state]

    def counts(self, at_most: int) -> SpanCounts:
        """Return the counts. at_most: nodes of a feasible mapping."""
        feasible = sum(len(state) <= at_most for state in self.after)
        renamed = {self._renamed(state) for state in self.after}
        calls: dict[State, int] = {}
        for state in sorted(self.after, key=len):
            calls[state] = 1 + sum(calls[other] for other in self.after[state])
        return SpanCounts(len(self.after[self.root]), len(self.after), len(renamed), feasible, calls[self.root])

    def feasible(self, at_most: int) -> Iterator[list[Shots]]:
        """The nodes of each mapping of at most so many."""
        for state in self.after:
            if len(state) <= at_most:
                yield sorted((self.nodes[k] for k in state), key=lambda node: min(node.shots))

    def _add(self, node: Shots) -> int:
        if node.number not in self.nodes:
            self.nodes[node.number] = node
            parts = [self._shapes[part.number] for part in node.parts]
            leaf = self.graph.nodes[node.shots[0]].kernel if not parts else -1
            key = node.kind, leaf, tuple(parts if node.kind == "chain" else sorted(parts))
            self._shapes[node.number] = self._numbers.setdefault(key, len(self._numbers))
        return node.number

    def _edges(self, state: State) -> set[tuple[int, int]]:
        of = {shot: k for k in state for shot in self.nodes[k].shots}
        found = {(of[edge.writer], of[edge.reader]) for edge in self.graph.edges.values()}
        return {(a, b) for a, b in found if a != b}

    def _moves(self, state: State) -> Iterator[State]:
        edges = self._edges(state)
        after: dict[int, set[int]] = {k: set() for k in state}
        for a, b in edges:
            after[a].add(b)
        reach = {k: _reach(after, k) for k in state}
        for a, b in sorted(edges):
            if a not in reach[b] and not any(w != b and b in reach[w] for w in after[a]):
                yield state - {a, b} | {self._add(self.made.chain((self.nodes[a], self.nodes[b])))}
        for a, b in combinations(sorted(state, key=lambda k: min(self.nodes[k].shots)), 2):
            one, two = self.nodes[a], self.nodes[b]
            if one.kernel == two.kernel and b not in reach[a] and a not in reach[b]:
                yield state - {a, b} | {self._add(self.made.bundle((one, two)))}

    def _renamed(self, state: State) -> tuple[int, ...]:
        """The colours of a mapping's nodes, at first how each is put together, refined by those of their neighbours."""
        edges = self._edges(state)
        colour = {k: hash((self._shapes[k],)) for k in state}
        for _ in state:
            out: dict[int, list[int]] = {k: [] for k in state}
            into: dict[int, list[int]] = {k: [] for k in state}
            for a, b in edges:
                out[a].append(colour[b])
                into[b].append(colour[a])
            colour = {k: hash((colour[k], tuple(sorted(out[k])), tuple(sorted(into[k])))) for k in state}
        return tuple(sorted(colour.values()))


def _reach(after: dict[int, set[int]], start: int) -> set[int]:
    seen: set[int] = set()
    todo = [start]
    while todo:
        for n in after[todo.pop()]:
            if n not in seen:
                seen.add(n)
                todo.append(n)
    return seen
