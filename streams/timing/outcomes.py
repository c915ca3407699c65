"""What branches on data do to the time: each of a few outcomes, or the fastest and the slowest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from ...base.place import Place
from ..tree import Beat, Body, Choice, FixedLoop, Node, Nodes, same

OUTCOMES = 64
"""Limit of the outcomes of one execution that are timed one by one."""


class ByDataError(Exception):
    """The time of a program depends on data, in more ways than can be told apart. place: of the branch."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


@dataclass(frozen=True)
class Outcomes:
    """The ways in which data may decide branches, each as bodies without branches. bodies: for each way, those of all
    instances. exact: whether these are all ways, each with the same branches in every execution. If not, they are two:
    the fastest and the slowest arm at every branch, beat by beat, between which the time of every way lies."""

    bodies: tuple[tuple[Body, ...], ...]
    exact: bool


def outcomes(bodies: Sequence[Body]) -> Outcomes:
    """Return the outcomes of the branches on data. bodies: of beats, one for each instance. Raises `ByDataError` if
    there are more than `OUTCOMES` and the arms of a branch differ in more than cycles."""
    nodes = Nodes()
    if prod(_ways(body) for body in bodies) <= OUTCOMES:
        each = [list(_each(body, nodes)) for body in bodies]
        return Outcomes(tuple(product(*each)), True)
    return Outcomes(tuple(tuple(_extreme(body, pick, nodes) for body in bodies) for pick in (min, max)), False)


def _ways(body: Body) -> int:
    """The number of outcomes of a body; `OUTCOMES` + 1 stands for more."""
    ways = 1
    for node in body:
        if isinstance(node, Choice):
            ways *= sum(map(_ways, node.arms))
        elif isinstance(node, FixedLoop):
            once = _ways(node.body)
            ways *= once ** min(node.times, OUTCOMES) if once > 1 else 1
        ways = min(ways, OUTCOMES + 1)
    return ways


def _each(body: Body, nodes: Nodes) -> Iterator[Body]:
    """Every outcome of a body."""
    parts: list[list[Body]] = []
    for node in body:
        if isinstance(node, Choice):
            parts.append([way for arm in node.arms for way in _each(arm, nodes)])
        elif isinstance(node, FixedLoop):
            once = list(_each(node.body, nodes))
            if len(once) == 1:
                parts.append([nodes.repeat(node.times, once[0])])
            else:
                parts.append([sum(ways, ()) for ways in product(once, repeat=node.times)])
        else:
            parts.append([(node,)])
    return (sum(ways, ()) for ways in product(*parts))


def _extreme(body: Body, pick: Callable[[int, int], int], nodes: Nodes) -> Body:
    """The body with the slowest, or the fastest, beats of the arms of each branch. Raises `ByDataError` where the arms
    differ in more than cycles."""
    made: list[Node] = []
    for node in body:
        if isinstance(node, Choice):
            arms = [_extreme(arm, pick, nodes) for arm in node.arms]
            one = arms[0]
            for arm in arms[1:]:
                one = _merged(one, arm, pick, node.place, nodes)
            made += one
        elif isinstance(node, FixedLoop):
            made += nodes.repeat(node.times, _extreme(node.body, pick, nodes))
        else:
            made.append(node)
    return tuple(made)


def _merged(a: Body, b: Body, pick: Callable[[int, int], int], place: Place, nodes: Nodes) -> Body:
    """Beats that take the larger, or the smaller, cycles of two bodies with the same operations."""
    if not any(node.needs for node in (*a, *b)):
        cycles = pick(_cycles(a), _cycles(b))
        return (nodes.beat((), cycles, place),) if cycles else ()
    if len(a) != len(b):
        raise ByDataError(place)
    made: list[Node] = []
    for x, y in zip(a, b, strict=True):
        if isinstance(x, Beat) and isinstance(y, Beat) and same(x.ops, y.ops):
            made.append(nodes.beat(x.ops, pick(x.cycles, y.cycles), x.place))
        elif isinstance(x, FixedLoop) and isinstance(y, FixedLoop) and x.times == y.times:
            made += nodes.repeat(x.times, _merged(x.body, y.body, pick, place, nodes))
        else:
            raise ByDataError(place)
    return tuple(made)


def _cycles(body: Body) -> int:
    """Cycles of a body without branches."""
    total = 0
    for node in body:
        if isinstance(node, FixedLoop):
            total += node.times * _cycles(node.body)
        elif isinstance(node, Beat):
            total += node.cycles
    return total
