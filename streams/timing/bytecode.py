"""Beat trees as arrays: the code that `loop.run` executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..tree import Beat, Body, FixedLoop, Op
from .loop import BEAT, END, LOOP, NEXT

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LONGEST = 1 << 60
"""Limit of the clock cycles of all beats together, one after another."""


class TooLong(Exception):
    """The beats of a program take more than `LONGEST` clock cycles together."""


@dataclass(frozen=True)
class Bytecode:
    """The operations of all instances of a program as arrays of integers, for compiled code. An instruction is a row;
    [rows], [instances] and so on are the shapes of arrays.

    rows: [rows, 4], the kind of an instruction (`loop.BEAT`, `LOOP`, `NEXT` or `END`) and the values that its kind has.
    ops: [operations], the position of the stream in `streams`, times 2, plus 1 for a put. first: [instances], the first
    row of each. nesting: [rows], the number of loops around a row. base: [instances + 1], the first loop counter of
    each instance, and at last the number of counters. cycles: for each instance, those of one execution in which
    nothing waits. streams: the numbers of the streams that have ends. tokens: elements that one execution puts on each
    of these. writer, reader: [streams], the instance at each end. packing: [streams], elements that move together.
    fixed: [rows], the cycles of a beat that higher rates would not shorten."""

    rows: Ints
    ops: Ints
    first: Ints
    nesting: Ints
    base: Ints
    cycles: tuple[int, ...]
    streams: tuple[int, ...]
    tokens: tuple[int, ...]
    writer: Ints
    reader: Ints
    packing: Ints
    fixed: Ints

    @property
    def instances(self) -> int:
        """How many task instances there are."""
        return len(self.first)

    @cached_property
    def owner(self) -> Ints:
        """The number of the instance of each row, [rows]."""
        return np.repeat(np.arange(self.instances), np.diff([*self.first, len(self.rows)]))

    @cached_property
    def fired(self) -> Ints:
        """How often each row fires in one execution, [rows]; 0 for a row that is no beat."""
        times: list[int] = []
        loops = [1]
        for kind, _, trips, _ in self.rows:
            times.append(loops[-1] if kind == BEAT else 0)
            if kind == LOOP:
                loops.append(loops[-1] * int(trips))
            elif kind == NEXT:
                loops.pop()
        return np.array(times, np.int64)

    def sped_up(self, units: Floats) -> Bytecode:
        """Return the same program with more units in its instances. units: by what factor, [instances]. The cycles of a
        beat that are not fixed are divided by the factor and rounded up; a beat takes at least one cycle."""
        beats = self.rows[:, 0] == BEAT
        cycles = self.rows[:, 3]
        less = self.fixed + np.ceil((cycles - self.fixed) / units[self.owner])
        fewer = np.where(beats, np.maximum(less, 1), cycles).astype(np.int64)
        rows = np.column_stack([self.rows[:, :3], fewer])
        taken = np.bincount(self.owner, np.where(beats, fewer, 0) * self.fired, self.instances)
        return replace(self, rows=rows, cycles=tuple(int(x) for x in taken))


def encode(bodies: Sequence[Body], packing: Mapping[int, int]) -> Bytecode:
    """Return the operations of bodies as arrays. bodies: one for each instance, of beats or of single operations,
    without branches on data; every stream has one writer and one reader. packing: how many elements each stream moves
    together, by its number. Raises `TooLong` for more than `LONGEST` cycles."""
    writers: dict[int, int] = {}
    readers: dict[int, int] = {}
    counts: dict[int, int] = {}
    for k, body in enumerate(bodies):
        for node in body:
            for s, put, n in node.needs:
                (writers if put else readers)[s] = k
                if put:
                    counts[s] = counts.get(s, 0) + n
    streams = tuple(sorted(writers))
    assert readers.keys() == writers.keys(), "a stream has one end only"
    made = _Encoder({s: i for i, s in enumerate(streams)})
    for body in bodies:
        made.instance(body)
    if sum(made.cycles) > LONGEST:
        raise TooLong
    return Bytecode(
        np.array(made.rows, np.int64).reshape(-1, 4),
        np.array(made.ops, np.int64),
        np.array(made.first, np.int64),
        np.array(made.nesting, np.int64),
        np.array(made.base, np.int64),
        tuple(made.cycles),
        streams,
        tuple(counts[s] for s in streams),
        np.array([writers[s] for s in streams], np.int64),
        np.array([readers[s] for s in streams], np.int64),
        np.array([packing.get(s, 1) for s in streams], np.int64),
        np.array(made.fixed, np.int64),
    )


class _Encoder:
    def __init__(self, numbers: Mapping[int, int]) -> None:
        self.numbers = numbers
        self.rows: list[tuple[int, int, int, int]] = []
        self.ops: list[int] = []
        self.first: list[int] = []
        self.nesting: list[int] = []
        self.fixed: list[int] = []
        self.base: list[int] = [0]
        self.cycles: list[int] = []
        self._deepest = 0
        self._known: dict[tuple[Op, ...], int] = {}

    def instance(self, body: Body) -> None:
        """Append the code of an instance."""
        self.first.append(len(self.rows))
        self._deepest = 0
        self.cycles.append(self._body(body, 0))
        self._row(END, 0, 0, 0, 0)
        self.base.append(self.base[-1] + self._deepest)

    def _row(self, kind: int, a: int, b: int, c: int, nesting: int, fixed: int = 0) -> None:
        self.rows.append((kind, a, b, c))
        self.nesting.append(nesting)
        self.fixed.append(fixed)

    def _beat(self, ops: tuple[Op, ...], cycles: int, nesting: int, fixed: int = 0) -> None:
        first = self._known.get(ops)
        if first is None:
            first = self._known[ops] = len(self.ops)
            self.ops += [self.numbers[op.stream] * 2 + op.put for op in ops]
        self._row(BEAT, first, first + len(ops), cycles, nesting, fixed)

    def _body(self, body: Body, nesting: int) -> int:
        """Append a body; return its cycles."""
        total = 0
        for node in body:
            if isinstance(node, Beat):
                self._beat(node.ops, node.cycles, nesting, node.fixed)
                total += node.cycles
            elif isinstance(node, Op):
                self._beat((node,), 1, nesting)
                total += 1
            else:
                assert isinstance(node, FixedLoop), "beats and loops only"
                self._deepest = max(self._deepest, nesting + 1)
                self._row(LOOP, nesting, node.times, 0, nesting)
                start = len(self.rows)
                total += self._body(node.body, nesting + 1) * node.times
                self._row(NEXT, nesting, start, 0, nesting + 1)
            if total > LONGEST:
                raise TooLong
        return total
