"""Loops rolled up again: in a list of nodes, the stretches that repeat with numbers in arithmetic progression.

Every node has a shape (its words, and how its numbers grow in the loops around it) and numbers. `rounds` stretches of
`period` nodes are a loop where their shapes are the same, and each number grows by the same step from one stretch to
the next. Of all loops in a list, those are taken that save most lines and do not overlap; each becomes one node, whose
body is rolled up in the same way, and then the shorter list is searched again, until nothing is saved. What stands in
the braces of a packet is rolled up last: around it, a packet is one node with all its numbers.

Lists are searched for one period after the other, with NumPy, so that a long program takes time in proportion to its
length; what is beyond the bounds below stays unrolled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .lines import SHARING, Node, Row, Variable

SEARCHED = 1 << 26
"""Pairs of nodes whose shapes are compared in search of a period, for one list."""

WORK = 1 << 23
"""Numbers that are compared, for one list; about a second."""

CANDIDATES = 1 << 14
"""Loops that are looked at, for one list; of two rounds, none beyond."""

REMEMBERED = 64
"""Nodes of a list whose loops are remembered: bodies of packets, which are often alike."""

BRACES = 2
"""Lines that a body takes that is not on the line of its head."""

FOR = 17
"""Columns of `for i in 0..8 {  }` on the line of its body."""

GROWN = 4
"""Columns that a variable adds to a number."""

JOINED = 0.4
"""Lines that a statement costs that shares one with another."""

DOUBTFUL = 0.15
"""Lines that a number must save that grows over two stretches: two always are a progression."""

DOWNWARD = 4 * DOUBTFUL
"""The same where it falls."""

SPLIT = 0.01
"""Lines that a loop must save that begins between two nodes of one shape: of equal loops, another is taken."""

SHORTENED = 3
"""Rounds that a loop may have less than it could, so that another begins earlier."""

LARGEST = 1 << 61
"""Numbers from here on are words, so that differences fit into 64 bits."""

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Loop(NamedTuple):
    """`rounds` stretches of `period` nodes from `start`."""

    start: int
    period: int
    rounds: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.rounds


class Candidate(NamedTuple):
    """A loop of up to `rounds` rounds. each: lines of a round; price: lines of the loop; doubt: more of two rounds;
    short: whether it is one line."""

    period: int
    rounds: int
    each: float
    price: float
    doubt: float
    short: bool


def rolled(rows: Sequence[Row], width: int, loop_cost: float = 1.0) -> list[Node]:
    """Rows with their loops rolled up. width: columns of a line. loop_cost: what a loop costs beside its lines, so that
    a short stretch stays as it is."""
    roller = _Roller(width, loop_cost)
    nodes = roller.roll([Node.of(row) for row in rows], 0)
    roller.roll_bodies(nodes)
    for node in nodes:
        _start(node, {})
    return nodes


class _Roller:
    def __init__(self, width: int, loop_cost: float) -> None:
        self.width = width
        self.loop_cost = loop_cost
        self._shapes: dict[Hashable, int] = {}
        self._found: dict[Hashable, list[Loop]] = {}
        self._costs: dict[Hashable, float] = {}

    def roll(self, nodes: list[Node], braces: int = BRACES) -> list[Node]:
        """Nodes with their loops; bodies of packets stay as they are. braces: lines that it saves if all become one."""
        while len(nodes) > 1 and self._line(nodes)[0] > self.width:
            loops = self._loops(nodes, braces)
            if not loops:
                break
            out: list[Node] = []
            at = 0
            for loop in loops:
                out += nodes[at : loop.start]
                middle = loop.start + loop.period
                out.append(self._rolled(nodes[loop.start : middle], nodes[middle : middle + loop.period], loop.rounds))
                at = loop.end
            nodes = out + nodes[at:]
        return nodes

    def roll_bodies(self, nodes: Iterable[Node]) -> None:
        """Roll up the bodies of packets, also of those in loops."""
        for node in nodes:
            if node.loop is not None:
                self.roll_bodies(node.children or ())
            elif node.children:
                node.children = self.roll(node.children)

    def _rolled(self, first: Sequence[Node], second: Sequence[Node], rounds: int) -> Node:
        """A loop from its first two rounds."""
        variable = Variable()
        grows = any(a != b for x, y in zip(first, second, strict=True) for a, b in zip(x.bases, y.bases, strict=True))
        body = [a.looped(b, variable) for a, b in zip(first, second, strict=True)] if grows else list(first)
        return Node((), (), self.roll(body), loop=(rounds, 0), variable=variable if grows else None)

    # -- which loops to take --------------------------------------------------------------------------------------

    def _loops(self, nodes: Sequence[Node], braces: int) -> list[Loop]:
        """The loops that save most, in their order."""
        shapes = [self._shape(node) for node in nodes]
        key = (braces, _signature(shapes, nodes)) if len(nodes) <= REMEMBERED else None
        if key is None or key not in self._found:
            found = self._best(nodes, shapes, braces)
            if key is None:
                return found
            self._found[key] = found
        return self._found[key]

    def _best(self, nodes: Sequence[Node], shapes: Sequence[int], braces: int) -> list[Loop]:
        n = len(nodes)
        starts = self._candidates(nodes, shapes, braces)
        # From the back: the most lines that can be saved from a node on, and the loop that begins there.
        saved = [0.0] * (n + 1)
        chosen: list[Loop | None] = [None] * n
        for i in range(n - 1, -1, -1):
            saved[i] = saved[i + 1]
            for x in starts.get(i, ()):
                for rounds in range(x.rounds, max(2, x.rounds - SHORTENED) - 1, -1):
                    loop = Loop(i, x.period, rounds)
                    gain = rounds * x.each - x.price - (x.doubt if rounds == 2 else 0.0)
                    if x.short and rounds * x.period == n:
                        gain += braces
                    if gain > 0 and gain + saved[loop.end] > saved[i] - (1e-9 if chosen[i] is None else -1e-9):
                        saved[i], chosen[i] = gain + saved[loop.end], loop
        out: list[Loop] = []
        i = 0
        while i < n:
            taken = chosen[i]
            if taken is not None:
                out.append(taken)
            i = i + 1 if taken is None else taken.end
        return out

    def _candidates(self, nodes: Sequence[Node], shapes: Sequence[int], braces: int) -> dict[int, list[Candidate]]:
        """Where loops may begin that save lines."""
        n = len(nodes)
        kinds = np.array(shapes, np.int64)
        numbers = _integers([x for node in nodes for x in node.bases])
        at = _sums(np.array([len(node.bases) for node in nodes], np.int64))  # where a node's numbers begin
        lines = _sums(np.array([self._cost(node) for node in nodes]))
        reach: dict[int, Integers] = {}  # by period: how far the progression goes that begins at a node
        out: dict[int, list[Candidate]] = {}
        work = found = 0
        for period in range(1, min(n // 2, SEARCHED // max(n, 1)) + 1):
            same = kinds[period:] == kinds[:-period]
            if np.count_nonzero(same) < period:
                continue
            for a, b in _runs(same, period):
                # The nodes a..b have the shapes of those one period later: there, loops of two rounds or more begin.
                begin = np.arange(a, b - period + 1)
                wanted = np.ones(len(begin), np.bool_)
                for shorter, ends in reach.items():
                    if period % shorter == 0:
                        wanted &= ends[begin] < begin + 2 * period
                if not wanted.any():
                    continue
                work += int(at[b + period] - at[a])
                if work > WORK:
                    return out
                steps = numbers[at[a + period] : at[b + period]] - numbers[at[a] : at[b]]
                here = at[a : b + 1] - at[a]  # where the steps of a node begin
                later = int(at[a + period] - at[a])
                broken = _sums(steps[later:] != steps[: len(steps) - later])
                steady = _until(broken[here[1 : b - a - period + 1]] > broken[here[: b - a - period]])
                steady = np.append(steady, 0)  # nodes from here on whose steps are those of the next round
                rounds = 2 + steady // period
                ends = reach.setdefault(period, np.zeros(n, np.int64))
                ends[begin] = np.where(steady > 0, begin + steady + 2 * period, 0)
                wanted[period:] &= rounds[:-period] != rounds[period:] + 1  # the same loop, a round later
                doubts = _sums(np.where(steps > 0, DOUBTFUL, 0.0) + np.where(steps < 0, DOWNWARD, 0.0))
                doubt = doubts[here[period:]] - doubts[here[: b - a - period + 1]]
                each = lines[begin + period] - lines[begin]
                around = np.where(doubt > 0, self.loop_cost, self.loop_cost / 2)
                least = each / (SHARING if period <= SHARING else 1) + around + np.where(rounds == 2, doubt, 0)
                least -= braces * (rounds * period == n)
                wanted &= rounds * each > least
                if found > CANDIDATES:
                    wanted &= rounds > 2
                found += int(np.count_nonzero(wanted))
                for j in np.flatnonzero(wanted).tolist():
                    i = a + j
                    grown = int(np.count_nonzero(steps[here[j] : here[j + period]])) if period <= SHARING else 0
                    columns, price = self._line(nodes[i : i + period])
                    short = columns + FOR + GROWN * grown <= self.width
                    price = float(around[j]) + (price if short else float(each[j]) + BRACES)
                    price += SPLIT if i and shapes[i - 1] == shapes[i] else 0.0
                    candidate = Candidate(period, int(rounds[j]), float(each[j]), price, float(doubt[j]), short)
                    out.setdefault(i, []).append(candidate)
        return out

    # -- what nodes cost ------------------------------------------------------------------------------------------

    def _line(self, body: Sequence[Node]) -> tuple[float, float]:
        """Columns and lines of a body that is one line; infinite columns where it cannot be."""
        if len(body) == 1:
            return self._columns(body[0]), self._cost(body[0])
        if len(body) > SHARING or any(node.children is not None for node in body):
            return float("inf"), 0.0
        return sum(self._columns(node) + 2 for node in body), 1 + JOINED * (len(body) - 1)

    def _columns(self, node: Node) -> float:
        if node.children is None:
            return len(node.head())
        around = FOR if node.loop is not None else len(node.head()) + 5
        return around + (self._line(self._inside(node))[0] if node.children else 0)

    def _inside(self, node: Node) -> list[Node]:
        """A body, rolled up."""
        children = node.children or []
        return children if node.loop is not None else self.roll(children)

    def _cost(self, node: Node) -> float:
        """About the lines that a node takes."""
        if not node.children:
            return 1.0
        key = None if node.loop is not None else _signature([self._shape(x) for x in node.children], node.children)
        if key is not None and key in self._costs:
            return self._costs[key]
        body = self._inside(node)
        columns, cost = self._line(body)
        head = FOR if node.loop is not None else len(node.head()) + 5
        if columns + head > self.width:
            cost = sum(map(self._cost, body)) + BRACES
        if node.loop is not None:
            cost += self.loop_cost / (2 if node.variable is None else 1)
        if key is not None:
            self._costs[key] = cost
        return cost

    def _shape(self, node: Node) -> int:
        """A number for each kind of node."""
        if node.shape < 0:
            node.shape = self._shapes.setdefault(_key(node, {}), len(self._shapes))
        return node.shape


def _key(node: Node, inside: dict[Variable | str, int]) -> Hashable:
    """What is the same in nodes of one shape: all but the numbers, and which variables the loops inside have."""
    if node.loop is not None and node.variable is not None:
        inside[node.variable] = len(inside)
    terms = tuple(tuple((inside.get(v, v), n) for v, n in x.terms) for x in node.sums) if node.stepped else None
    large = tuple(x.base for x in node.sums if not -LARGEST < x.base < LARGEST)
    body = None if node.children is None else tuple(_key(child, inside) for child in node.children)
    return node.parts, terms, large, node.loop, node.variable is None, body


def _signature(shapes: Sequence[int], nodes: Sequence[Node]) -> Hashable:
    """What the loops of a list depend on: shapes, and numbers relative to the first of each shape."""
    first: dict[int, tuple[int, ...]] = {}
    out: list[Any] = []
    for shape, node in zip(shapes, nodes, strict=True):
        base = first.setdefault(shape, node.bases)
        out.append(shape)
        if base is not node.bases:
            out += [a - b for a, b in zip(node.bases, base, strict=True)]
    return tuple(out)


def _integers(values: list[int]) -> Integers:
    """The largest numbers as 0: they are the same in nodes of one shape."""
    if max(values, default=0) >= LARGEST or min(values, default=0) <= -LARGEST:
        values = [x if -LARGEST < x < LARGEST else 0 for x in values]
    return np.array(values, np.int64)


def _sums(values: np.ndarray[tuple[int], np.dtype[Any]]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """Sums of the first 0, 1, 2 ... values."""
    kind = np.float64 if values.dtype == np.float64 else np.int64
    out = np.zeros(len(values) + 1, kind)
    np.cumsum(values, out=out[1:])
    return out


def _until(flags: Flags) -> Integers:
    """How far it is from each flag to the next that is set, or to the end."""
    n = len(flags)
    there = np.where(flags, np.arange(n), n)
    nearest: Integers = np.minimum.accumulate(there[::-1])[::-1]
    return nearest - np.arange(n)


def _runs(flags: Flags, least: int) -> Iterator[tuple[int, int]]:
    """Stretches of at least so many flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if b - a >= least:
            yield a, b


def _start(node: Node, around: dict[Variable | str, int]) -> None:
    """Let loops begin to count with the first name or unit that they count, else at 0; variables stand in the order of
    their loops. around: those of the loops around, numbered."""
    node.sums = tuple([x.sorted(around) if len(x.terms) > 1 else x for x in node.sums])
    if node.loop is not None and node.variable is not None:
        grown = [(slot, *x) for slot, x in node.slots() for v, step in x.terms if v is node.variable and step == 1]
        for names in (("name", "quote", "label", "title"), ("unit",)):
            begin = next((base for slot, base, _ in grown if slot.what in names), 0)
            if begin:
                break
        if begin:
            node.loop = node.loop[0], begin
            node.begin_at(node.variable, begin)
        around = {**around, node.variable: len(around)}
    for child in node.children or ():
        _start(child, around)
