"""The least initiation interval that a loop's recurrences allow.

Operators are the nodes of a graph, and what one needs of another an edge, with the number of iterations between them. A
circle of it needs as many cycles as its operators take, in as many iterations as its edges cross: the largest quotient
is the bound (Rau, "Iterative Modulo Scheduling", 1996). Edges are values, choices that a branch makes between values,
and loads of what an earlier iteration has stored.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx


@dataclass(frozen=True)
class OperatorEdge:
    """Operator `to` needs the value that operator `of` has made `distance` iterations before. of, to: numbers of the
    operators. cycles: from the operands of `of` to those of `to`."""

    of: int
    to: int
    cycles: float
    distance: int


@dataclass(frozen=True)
class Recurrence:
    """A circle of operators, each of which needs the value of the one before it. nodes: numbers of the operators, in
    order. interval: cycles from one iteration to the next that the circle needs at least."""

    nodes: tuple[int, ...]
    interval: int


def tightest(edges: Sequence[OperatorEdge], stated: int) -> Recurrence | None:
    """Return the circle of operators that needs most cycles per iteration; None if none needs more than `stated`
    cycles. edges: between the operators of a loop. Source: Rau, "Iterative Modulo Scheduling", 1996."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from((e.of, e.to) for e in edges)
    component_of = {n: c for c, nodes in enumerate(nx.strongly_connected_components(graph)) for n in nodes}
    inside: dict[int, list[OperatorEdge]] = defaultdict(list)
    for e in edges:
        if component_of[e.of] == component_of[e.to]:
            inside[component_of[e.of]].append(e)
    worst: Recurrence | None = None
    for component in inside.values():
        circle = _circle_above(component, worst.interval if worst else stated)
        while circle is not None:
            cycles, distance = sum(e.cycles for e in circle), sum(e.distance for e in circle)
            worst = Recurrence(tuple(e.of for e in circle), math.ceil(cycles / distance - 1e-6))
            circle = _circle_above(component, worst.interval)
    return worst


def _circle_above(edges: Iterable[OperatorEdge], interval: int) -> list[OperatorEdge] | None:
    """A circle that needs more cycles per iteration than a limit, by the method of Bellman and Ford. It ends as soon as
    the edges that lengthened ways last have a circle, which is then such a one."""
    weighted = [(e, e.cycles - interval * e.distance) for e in edges]
    longest: dict[int, float] = {e.of: 0.0 for e, _ in weighted}
    by: dict[int, OperatorEdge] = {}
    changed = True
    while changed:
        changed = False
        for e, weight in weighted:
            if longest[e.of] + weight > longest[e.to] + 1e-9:
                longest[e.to] = longest[e.of] + weight
                by[e.to] = e
                changed = True
        if circle := _circle_of(by):
            return circle
    return None


def _circle_of(by: Mapping[int, OperatorEdge]) -> list[OperatorEdge]:
    """A circle of edges, of which each node has at most one that leads to it; empty if there is none."""
    seen: dict[int, int] = {}
    for start in by:
        at = start
        while at in by and at not in seen:
            seen[at] = start
            at = by[at].of
        if seen.get(at) == start:
            circle = [by[at]]
            while circle[-1].of != at:
                circle.append(by[circle[-1].of])
            return circle[::-1]
    return []


def spelled(operators: Iterable[str]) -> str:
    """Return operators as text, with their numbers, the most frequent first: `32 fcmp, 1 fadd`. operators: rows of the
    table `OPERATORS`; wires and logic are left out."""
    counted = Counter(operators)
    return ", ".join(f"{n} {name}" for name, n in counted.most_common() if name not in ("wire", "logic"))
