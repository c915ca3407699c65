"""Loops rolled up again: in a list of lines, the stretches that repeat with numbers in arithmetic progression.

A line is a shape and its numbers. Where `count` stretches of `period` lines have the same shapes and each number grows
by the same step from stretch to stretch, they are a loop over one stretch, whose lines have a step beside each number.
Loops inside it are found the same way, among lines that also agree in those steps; so a plan of nested loops is the
cheapest of all that are looked at. Which are looked at is bounded: what is beyond the bounds stays unrolled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

SEARCHED = 1 << 26
"""Pairs of lines that are compared in search of a period."""

WORK = 1 << 19
"""Lines that are looked at in all stretches together, for one list of lines; some seconds."""

FOR = 17
"""Columns of `for i in 0..8 {  }` on the line of its body."""

GROWN = 4
"""Columns that a variable adds to a number."""

SHARING = 2
"""Statements that may share a line."""

JOINED = 0.4
"""Lines that a statement costs that shares one with others."""

DOUBTFUL = 0.15
"""Lines that a number must save that grows over two stretches."""

Numbers = tuple[int, ...]


class Item(NamedTuple):
    """One line, or the head of a body (a packet). width: about its columns."""

    shape: int
    numbers: Numbers
    width: int = 0
    body: tuple[Item, ...] | None = None

    def minus(self, other: Item) -> Steps:
        """From another item of this shape to this one."""
        own = tuple(a - b for a, b in zip(self.numbers, other.numbers, strict=True))
        pairs = zip(self.body or (), other.body or (), strict=True)
        return Steps(own, tuple(a.minus(b) for a, b in pairs))


class Steps(NamedTuple):
    own: Numbers
    body: tuple[Steps, ...]

    def all(self) -> Iterator[int]:
        yield from self.own
        for steps in self.body:
            yield from steps.all()


class Loop(NamedTuple):
    """`rounds` stretches of `period` items from `start`; steps are for the first of them."""

    start: int
    period: int
    rounds: int
    steps: Written
    inline: bool

    @property
    def items(self) -> int:
        return self.period * self.rounds


class Single(NamedTuple):
    """One item; steps are for its body, None if it has none."""

    start: int
    steps: Written | None
    inline: bool

    @property
    def items(self) -> int:
        return 1


Written = tuple[Loop | Single, ...]


class Line(NamedTuple):
    """Items on one line."""

    cost: float
    width: int
    steps: Written


class Plan(NamedTuple):
    """Items in their order. cost: about the lines they take; line: how they fit on one, if they do."""

    cost: float
    steps: Written
    line: Line | None


@dataclass
class Roller:
    """Makes plans. width: columns that a loop or packet on one line may have. loop_cost: what a loop costs beside its
    lines, so that a short stretch stays as it is."""

    width: int = 100
    loop_cost: float = 1.0
    _shapes: dict[Hashable, int] = field(default_factory=dict)
    _plans: dict[Hashable, Plan] = field(default_factory=dict)
    _work: int = 0

    def shape(self, key: Hashable) -> int:
        """A number for each kind of line."""
        return self._shapes.setdefault(key, len(self._shapes))

    def plan(self, items: Sequence[Item]) -> Plan:
        self._work += len(items)
        key = _signature(items)
        if key not in self._plans:
            self._plans[key] = self._make(items)
        return self._plans[key]

    def _make(self, items: Sequence[Item]) -> Plan:
        n = len(items)
        starts = self._candidates(items)
        lines = [_joined(items)] if 0 < n <= SHARING and all(item.body is None for item in items) else []
        # From the back: the cheapest way to write what begins at i.
        best = [0.0] * (n + 1)
        chosen: list[Loop | Single] = []
        for i in range(n - 1, -1, -1):
            cost, columns, single = self._single(items[i], i)
            best[i] = cost + best[i + 1]
            choice: Loop | Single = single
            if n == 1 and columns is not None:
                lines.append(Line(cost, columns, (single,)))
            for period, most in starts.get(i, ()):
                self._work += period + most
                if self._work > WORK:
                    break
                steps = [items[j + period].minus(items[j]) for j in range(i, i + period)]
                body = self.plan([self._stepped(items[i + j], step) for j, step in enumerate(steps)])
                grown = [g for step in steps for g in step.all() if g]
                around = self.loop_cost * (1.0 if grown else 0.5)
                # Two stretches always are a progression: this says little where much or downward grows.
                doubt = sum(DOUBTFUL if g > 0 else 4 * DOUBTFUL for g in grown)
                loops: list[tuple[float, int | None, Written]] = [(body.cost + 2, None, body.steps)]
                if body.line and (most_columns := body.line.width + FOR + GROWN * len(grown)) <= self.width:
                    loops.append((body.line.cost, most_columns, body.line.steps))
                for inner, width, inside in loops:
                    for count in range(most, 1, -1):
                        cost = inner + around + (doubt if count == 2 else 0)
                        loop = Loop(i, period, count, inside, width is not None)
                        if cost + best[i + loop.items] < best[i] - 1e-9:
                            best[i], choice = cost + best[i + loop.items], loop
                        if width is not None and loop.items == n:
                            lines.append(Line(cost, width, (loop,)))
            chosen.append(choice)
        chosen.reverse()
        taken: list[Loop | Single] = []
        i = 0
        while i < n:
            taken.append(chosen[i])
            i += chosen[i].items
        fitting = [line for line in lines if line.width <= self.width]
        return Plan(best[0], tuple(taken), min(fitting, key=lambda line: line.cost, default=None))

    def _single(self, item: Item, i: int) -> tuple[float, int | None, Single]:
        """Cost of an item, and its columns if it is one line."""
        if not item.body:
            return 1.0, item.width, Single(i, None if item.body is None else (), True)
        body = self.plan(item.body)
        if body.line and item.width + body.line.width + 5 <= self.width and body.line.cost <= body.cost + 2:
            return body.line.cost, item.width + body.line.width + 5, Single(i, body.line.steps, True)
        return body.cost + 2, None, Single(i, body.steps, False)

    def _candidates(self, items: Sequence[Item]) -> dict[int, list[tuple[int, int]]]:
        """Where loops may begin: start -> periods, with the largest count of each."""
        out: dict[int, list[tuple[int, int]]] = {}
        n = len(items)
        shapes = np.array([item.shape for item in items], dtype=np.int64)
        progressions: dict[int, list[tuple[int, int]]] = {}
        for period in range(1, min(n // 2, SEARCHED // max(n, 1)) + 1):
            same = shapes[period:] == shapes[:-period]
            if np.count_nonzero(same) < period:
                continue
            for a, b in _runs(same, period):
                if _covered(progressions, period, a, b + period):
                    continue
                self._work += 2 * (b - a)
                if self._work > WORK:
                    return out
                steps = [items[j + period].minus(items[j]) for j in range(a, b)]
                # On from j, so many steps equal those one period later.
                steady = [0] * (b - a + 1)
                for j in range(b - a - period - 1, -1, -1):
                    steady[j] = steady[j + 1] + 1 if steps[j] == steps[j + period] else 0
                for j in range(b - a):
                    if steady[j] and (not j or not steady[j - 1]):
                        progressions.setdefault(period, []).append((a + j, a + j + steady[j] + 2 * period))
                counts = [2 + steady[j] // period for j in range(b - a - period + 1)]
                for j, count in enumerate(counts):
                    begun = j >= period and counts[j - period] == count + 1  # the same loop, a round later
                    if not begun and not _covered(progressions, period, a + j, a + j + 2 * period):
                        out.setdefault(a + j, []).append((period, count))
        return out

    def _stepped(self, item: Item, steps: Steps) -> Item:
        """An item inside a loop: its steps belong to its shape."""
        body = None
        if item.body is not None:
            body = tuple(self._stepped(x, y) for x, y in zip(item.body, steps.body, strict=True))
        return item._replace(shape=self.shape((item.shape, steps)), body=body)


def _joined(items: Sequence[Item]) -> Line:
    """Lines on one, with semicolons between them."""
    steps = tuple(Single(i, None, True) for i in range(len(items)))
    return Line(1 + JOINED * (len(items) - 1), sum(item.width + 2 for item in items), steps)


def _signature(items: Sequence[Item]) -> Hashable:
    """What a plan depends on: shapes, and numbers relative to the first line of each shape."""
    first: dict[int, Numbers] = {}
    out: list[Hashable] = []

    def add(item: Item) -> None:
        base = first.setdefault(item.shape, item.numbers)
        out.append((item.shape, *(a - b for a, b in zip(item.numbers, base, strict=True))))
        for inner in item.body or ():
            add(inner)

    for item in items:
        add(item)
    return tuple(out)


def _runs(flags: np.ndarray[tuple[int], np.dtype[np.bool_]], least: int) -> list[tuple[int, int]]:
    """Stretches of at least so many flags that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    starts, ends = edges[::2], edges[1::2]
    long = ends - starts >= least
    return [(int(a), int(b)) for a, b in zip(starts[long], ends[long], strict=True)]


def _covered(progressions: dict[int, list[tuple[int, int]]], period: int, start: int, end: int) -> bool:
    """Whether a shorter period, of which this one is a multiple, goes through all of start..end."""
    for short, rows in progressions.items():
        if short < period and period % short == 0:
            i = bisect_right(rows, (start, end))
            if i < len(rows) and rows[i][0] == start and rows[i][1] >= end:
                return True
            if i and rows[i - 1][1] >= end:
                return True
    return False
