"""Loop rolling: find stretches of nodes that repeat with numbers in arithmetic progression, and turn them into loops.

Every node has a shape (its words, and how its numbers depend on loop variables) and numbers. `rounds` consecutive
stretches of `period` nodes form a loop if their shapes are equal and each number grows by a constant step from one
stretch to the next. From all possible loops of a list, the search takes the non-overlapping ones that save the most
lines. Each becomes one node, and its body is rolled in the same way. Then the shorter list is searched again, until no
loop saves lines. Bodies of packets are rolled last; until then, a packet is one node with all its numbers.

The search tries one period after the other, with NumPy, so that its time is proportional to the length of the program.
Loops beyond the limits below stay unrolled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .printed_lines import SHARING, LineNode, LoopVariable, TextRow

SEARCHED = 1 << 26
"""Limit, per list, of pairs of nodes whose shapes are compared in search of a period."""

WORK = 1 << 23
"""Limit, per list, of numbers that are compared; about a second."""

CANDIDATES = 1 << 14
"""Number of candidate loops in a list beyond which candidates of two rounds are ignored."""

REMEMBERED = 64
"""Limit of nodes in a list whose loops are cached. Short lists are bodies of packets, and many are alike."""

BRACES = 2
"""Additional lines of a body in braces that does not fit on the line of its head."""

FOR = 17
"""Columns of `for i in 0..8 {  }` around a body on the same line."""

GROWN = 4
"""Columns that a loop variable adds to a number."""

JOINED = 0.4
"""Cost in lines of a statement that shares a line with another."""

DOUBTFUL = 0.15
"""Lines that a loop of two rounds must save for each number that grows: two numbers always form a progression, so that
such a loop may be chance."""

DOWNWARD = 4 * DOUBTFUL
"""The same for a number that falls."""

SPLIT = 0.01
"""Cost in lines of a loop that begins between two nodes of the same shape; it decides between otherwise equal loops."""

SHORTENED = 3
"""Rounds by which a loop may be shortened, so that the next loop can begin earlier."""

LARGEST = 1 << 61
"""Numbers of at least this size are treated as words, so that differences of others fit in 64 bits."""

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


class RolledLoop(NamedTuple):
    """A loop in a list of nodes: `rounds` stretches of `period` nodes, from index `start` on."""

    start: int
    period: int
    rounds: int

    @property
    def end(self) -> int:
        """Index behind the last node."""
        return self.start + self.period * self.rounds


class Candidate(NamedTuple):
    """A possible loop of at most `rounds` rounds.

    period: nodes of one round. each: lines of one round, unrolled. price: lines of the loop. doubt: lines added to the
    price if it has two rounds. short: whether the loop fits on one line.
    """

    period: int
    rounds: int
    each: float
    price: float
    doubt: float
    short: bool


def roll_loops(rows: Sequence[TextRow], width: int, loop_cost: float = 1.0) -> list[LineNode]:
    """Convert rows to nodes, with loops for repeated stretches.

    rows: of a text, in order. width: columns of a line. loop_cost: cost of a loop, in lines, in addition to those it
    has, so that loops replace only stretches that are long enough.
    """
    roller = _Roller(width, loop_cost)
    nodes = roller.roll([LineNode.of(row) for row in rows], 0)
    roller.roll_bodies(nodes)
    for node in nodes:
        _start(node, {})
    return nodes


class _Roller:
    """Rolls the loops of one program; keeps what it knows about shapes, loops of short lists, and costs of bodies."""

    def __init__(self, width: int, loop_cost: float) -> None:
        self.width = width
        self.loop_cost = loop_cost
        self._shapes: dict[Hashable, int] = {}
        self._found: dict[Hashable, list[RolledLoop]] = {}
        self._costs: dict[Hashable, float] = {}

    def roll(self, nodes: list[LineNode], braces: int = BRACES) -> list[LineNode]:
        """Roll the loops of a list; bodies of packets stay as they are. braces: lines saved if one loop covers the
        whole list, since it then fits on the line of the head."""
        while len(nodes) > 1 and self._line(nodes)[0] > self.width:
            loops = self._loops(nodes, braces)
            if not loops:
                break
            out: list[LineNode] = []
            at = 0
            for loop in loops:
                out += nodes[at : loop.start]
                middle = loop.start + loop.period
                out.append(self._rolled(nodes[loop.start : middle], nodes[middle : middle + loop.period], loop.rounds))
                at = loop.end
            nodes = out + nodes[at:]
        return nodes

    def roll_bodies(self, nodes: Iterable[LineNode]) -> None:
        """Roll the bodies of packets, including packets in loops."""
        for node in nodes:
            if node.loop is not None:
                self.roll_bodies(node.children or ())
            elif node.children:
                node.children = self.roll(node.children)

    def _rolled(self, first: Sequence[LineNode], second: Sequence[LineNode], rounds: int) -> LineNode:
        """Make a loop from its first two rounds."""
        variable = LoopVariable()
        grows = any(a != b for x, y in zip(first, second, strict=True) for a, b in zip(x.bases, y.bases, strict=True))
        body = [a.looped(b, variable) for a, b in zip(first, second, strict=True)] if grows else list(first)
        return LineNode((), (), self.roll(body), loop=(rounds, 0), variable=variable if grows else None)

    # -- which loops to take --------------------------------------------------------------------------------------

    def _loops(self, nodes: Sequence[LineNode], braces: int) -> list[RolledLoop]:
        """Return the loops that save most lines, by start. braces: as in `roll`. Results for short lists are cached."""
        shapes = [self._shape(node) for node in nodes]
        key = (braces, _signature(shapes, nodes)) if len(nodes) <= REMEMBERED else None
        if key is None or key not in self._found:
            found = self._best(nodes, shapes, braces)
            if key is None:
                return found
            self._found[key] = found
        return self._found[key]

    def _best(self, nodes: Sequence[LineNode], shapes: Sequence[int], braces: int) -> list[RolledLoop]:
        """Select the non-overlapping loops that save most lines, by dynamic programming."""
        n = len(nodes)
        starts = self._candidates(nodes, shapes, braces)
        # From the back, for each node: the most lines that can be saved from it on, and the loop that begins there.
        saved = [0.0] * (n + 1)
        chosen: list[RolledLoop | None] = [None] * n
        for i in range(n - 1, -1, -1):
            saved[i] = saved[i + 1]
            for x in starts.get(i, ()):
                for rounds in range(x.rounds, max(2, x.rounds - SHORTENED) - 1, -1):
                    loop = RolledLoop(i, x.period, rounds)
                    gain = rounds * x.each - x.price - (x.doubt if rounds == 2 else 0.0)
                    if x.short and rounds * x.period == n:
                        gain += braces
                    if gain > 0 and gain + saved[loop.end] > saved[i] - (1e-9 if chosen[i] is None else -1e-9):
                        saved[i], chosen[i] = gain + saved[loop.end], loop
        out: list[RolledLoop] = []
        i = 0
        while i < n:
            taken = chosen[i]
            if taken is not None:
                out.append(taken)
            i = i + 1 if taken is None else taken.end
        return out

    def _candidates(self, nodes: Sequence[LineNode], shapes: Sequence[int], braces: int) -> dict[int, list[Candidate]]:
        """Find the loops that save lines, by the index of their first node."""
        n = len(nodes)
        kinds = np.array(shapes, np.int64)
        numbers = _integers([x for node in nodes for x in node.bases])
        at = _sums(np.array([len(node.bases) for node in nodes], np.int64))  # index of each node's first number
        lines = _sums(np.array([self._cost(node) for node in nodes]))
        reach: dict[int, Integers] = {}  # by period, for each node: end of the progression that begins there
        out: dict[int, list[Candidate]] = {}
        work = found = 0
        for period in range(1, min(n // 2, SEARCHED // max(n, 1)) + 1):
            same = kinds[period:] == kinds[:-period]
            if np.count_nonzero(same) < period:
                continue
            for a, b in _runs(same, period):
                # The nodes a..b have the shapes of those one period later: loops of two rounds or more can begin there.
                begin = np.arange(a, b - period + 1)
                useful = np.ones(len(begin), np.bool_)
                for shorter, ends in reach.items():
                    if period % shorter == 0:
                        useful &= ends[begin] < begin + 2 * period
                if not useful.any():
                    continue
                work += int(at[b + period] - at[a])
                if work > WORK:
                    return out
                steps = numbers[at[a + period] : at[b + period]] - numbers[at[a] : at[b]]
                here = at[a : b + 1] - at[a]  # index of each node's first step
                later = int(at[a + period] - at[a])
                broken = _sums(steps[later:] != steps[: len(steps) - later])
                steady = _until(broken[here[1 : b - a - period + 1]] > broken[here[: b - a - period]])
                steady = np.append(steady, 0)  # number of nodes from each on whose steps recur in the next round
                rounds = 2 + steady // period
                ends = reach.setdefault(period, np.zeros(n, np.int64))
                ends[begin] = np.where(steady > 0, begin + steady + 2 * period, 0)
                useful[period:] &= rounds[:-period] != rounds[period:] + 1  # drop the same loop begun a round later
                doubts = _sums(np.where(steps > 0, DOUBTFUL, 0.0) + np.where(steps < 0, DOWNWARD, 0.0))
                doubt = doubts[here[period:]] - doubts[here[: b - a - period + 1]]
                each = lines[begin + period] - lines[begin]
                around = np.where(doubt > 0, self.loop_cost, self.loop_cost / 2)
                least = each / (SHARING if period <= SHARING else 1) + around + np.where(rounds == 2, doubt, 0)
                least -= braces * (rounds * period == n)
                useful &= rounds * each > least
                if found > CANDIDATES:
                    useful &= rounds > 2
                found += int(np.count_nonzero(useful))
                for j in np.flatnonzero(useful).tolist():
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

    def _line(self, body: Sequence[LineNode]) -> tuple[float, float]:
        """Return columns and cost in lines of a body on one line; infinite columns if it needs several lines."""
        if len(body) == 1:
            return self._columns(body[0]), self._cost(body[0])
        if len(body) > SHARING or any(node.children is not None for node in body):
            return float("inf"), 0.0
        return sum(self._columns(node) + 2 for node in body), 1 + JOINED * (len(body) - 1)

    def _columns(self, node: LineNode) -> float:
        """Return the columns of a node on one line; infinite if it needs several lines."""
        if node.children is None:
            return len(node.head())
        around = FOR if node.loop is not None else len(node.head()) + 5
        return around + (self._line(self._inside(node))[0] if node.children else 0)

    def _inside(self, node: LineNode) -> list[LineNode]:
        """Return the rolled body of a node."""
        children = node.children or []
        return children if node.loop is not None else self.roll(children)

    def _cost(self, node: LineNode) -> float:
        """Estimate the number of lines of a node."""
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

    def _shape(self, node: LineNode) -> int:
        """Return the number of a node's shape."""
        if node.shape < 0:
            node.shape = self._shapes.setdefault(_key(node, {}), len(self._shapes))
        return node.shape


def _key(node: LineNode, inside: dict[LoopVariable | str, int]) -> Hashable:
    """Return a key that is equal for nodes of one shape: all but the numbers and the identity of variables inside.

    inside: numbers of the variables of the loops inside; those met are added.
    """
    if node.loop is not None and node.variable is not None:
        inside[node.variable] = len(inside)
    terms = tuple(tuple((inside.get(v, v), n) for v, n in x.terms) for x in node.sums) if node.stepped else None
    large = tuple(x.base for x in node.sums if not -LARGEST < x.base < LARGEST)
    body = None if node.children is None else tuple(_key(child, inside) for child in node.children)
    return node.parts, terms, large, node.loop, node.variable is None, body


def _signature(shapes: Sequence[int], nodes: Sequence[LineNode]) -> Hashable:
    """Return a key of a list that determines its loops: the shapes, and numbers relative to the first of each shape."""
    first: dict[int, tuple[int, ...]] = {}
    out: list[Any] = []
    for shape, node in zip(shapes, nodes, strict=True):
        base = first.setdefault(shape, node.bases)
        out.append(shape)
        if base is not node.bases:
            out += [a - b for a, b in zip(node.bases, base, strict=True)]
    return tuple(out)


def _integers(values: list[int]) -> Integers:
    """Convert numbers to an array, those beyond `LARGEST` as 0: they are equal in all nodes of one shape anyway."""
    if max(values, default=0) >= LARGEST or min(values, default=0) <= -LARGEST:
        values = [x if -LARGEST < x < LARGEST else 0 for x in values]
    return np.array(values, np.int64)


def _sums(values: np.ndarray[tuple[int], np.dtype[Any]]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """Return the sums of the first 0, 1, 2 ... values."""
    kind = np.float64 if values.dtype == np.float64 else np.int64
    out = np.zeros(len(values) + 1, kind)
    np.cumsum(values, out=out[1:])
    return out


def _until(flags: Flags) -> Integers:
    """Return the distance from each flag to the next one that is set, or to the end."""
    n = len(flags)
    set_at = np.where(flags, np.arange(n), n)
    nearest: Integers = np.minimum.accumulate(set_at[::-1])[::-1]
    return nearest - np.arange(n)


def _runs(flags: Flags, least: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of every stretch of at least `least` flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if b - a >= least:
            yield a, b


def _start(node: LineNode, around: dict[LoopVariable | str, int]) -> None:
    """Let each loop variable begin at the index of the first name or unit that it counts, else at 0, and sort the terms
    of sums by loop, outermost first. around: the variables of the loops around, numbered."""
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
