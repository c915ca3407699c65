"""When the beats of a stream program fire: the time of executions back to back, and who waits how long for what.

All operations of a beat fire at once: at the latest of the end of the beat before, the times at which the tokens that
it gets are visible, and those at which the slots that it puts into are free. A token is visible, and the slot of a
token that was taken is free, at the end of the beat. An instance begins its next execution at the end of the one
before. Every stream has one writer and one reader, so instances may be evaluated in any order, each by its own clock;
there is no queue of events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ...machine import jit
from ..tree import Body
from . import loop
from .bytecode import LONGEST, Bytecode, Ints, TooLong, encode

TOKENS = 1 << 24
"""Limit of the tokens that wait on all streams together."""

SMALL = 1 << 14
"""Beats and loop ends up to which loading the compiler takes longer than the run."""

INTERPRETED = 1 << 18
"""Beats in small runs of a process that take as long as loading the compiler: after these, small runs are compiled."""

COUNTED = 1 << 12
"""Depth from which on a stream that is never full counts as endless."""

FIRST_RING = 16
"""Size of the ring buffer of a stream without end in the first run; each later run begins with those of the runs
before."""


class TooManyTokens(Exception):
    """More than `TOKENS` tokens are on streams at the same time."""


@dataclass(frozen=True)
class BeatTiming:
    """The times of a run, in clock cycles.

    ends: the cycle in which each execution ends. busy, last: for each instance, the cycles of its beats, and the end of
    its last one. empty, full: for each stream, the cycles for which its reader waits for a token, and its writer for a
    free slot; a wait for several reasons counts for the one that ends last. peak: for each stream of limited depth, the
    most slots that are in use at once; a slot is in use from the beginning of a put to the end of the get. skipped: how
    many equal periods were skipped."""

    ends: tuple[int, ...]
    busy: tuple[int, ...]
    last: tuple[int, ...]
    empty: Mapping[int, int]
    full: Mapping[int, int]
    peak: Mapping[int, int]
    skipped: int

    @property
    def latency(self) -> int:
        """Cycles of the first execution."""
        return self.ends[0]

    @property
    def interval(self) -> int | None:
        """Cycles from the end of the last execution but one to that of the last; None for one execution."""
        return self.ends[-1] - self.ends[-2] if len(self.ends) > 1 else None

    @property
    def converged(self) -> bool:
        """Whether the last two intervals are equal; False for fewer than three executions."""
        return len(self.ends) > 2 and 2 * self.ends[-2] == self.ends[-1] + self.ends[-3]


@dataclass(frozen=True)
class EndlessWait:
    """Instances wait for ever. waits: for each of them, by its number, the first operation that it cannot do: the
    number of the stream, and whether it is a put."""

    waits: Mapping[int, tuple[int, bool]]


@dataclass(frozen=True)
class Late:
    """An execution ends after its limit. full: the streams on whose free slots the waits that delay it depend. While
    these have their depths, the execution is late however deep all other streams are."""

    full: frozenset[int]


class TimedProgram:
    """The instances of a program, ready to run with different depths.

    bodies: one for each instance, of beats, or of single operations, which take a cycle each; without branches on data.
    Every stream has one writer, one reader in another instance, and as many puts as gets. packing: how many elements
    each stream moves together, by its number. executions: how many run one right after another. The attribute `walked`
    counts the beats of all runs. Raises `TooLong` for more than `LONGEST` cycles."""

    _interpreted: ClassVar[int] = 0
    """Beats that this process has walked without the compiler."""

    def __init__(self, bodies: Sequence[Body], packing: Mapping[int, int], executions: int = 1) -> None:
        self.code: Bytecode = encode(bodies, packing)
        self.executions = executions
        self._rooms: Ints = np.maximum(FIRST_RING, self.code.packing)
        self.walked = 0
        if sum(self.code.cycles) * executions > LONGEST:
            raise TooLong

    @property
    def streams(self) -> tuple[int, ...]:
        """Numbers of the streams that have ends."""
        return self.code.streams

    @cached_property
    def tokens(self) -> dict[int, int]:
        """Elements that all executions put on each stream: a stream as deep as that is never full."""
        return {s: n * self.executions for s, n in zip(self.code.streams, self.code.tokens, strict=True)}

    def sped_up(self, units: Sequence[float]) -> TimedProgram:
        """Return the same program with more units in its instances. units: by what factor, for each instance, as for
        `Bytecode.sped_up`."""
        made = copy(self)
        made.code = self.code.sped_up(np.array(units, np.float64))
        return made

    def run(
        self, depths: Mapping[int, int], skips: bool = True, limits: Sequence[int] = ()
    ) -> BeatTiming | EndlessWait | Late:
        """Run; return the times, which instances wait for ever, or that an execution is late.

        depths: in elements, by the number of the stream. A stream has no limit if it is missing, if its depth is 0, or
        if its depth is at least `COUNTED` and enough for all tokens. skips: whether equal periods are skipped, which
        changes no result. limits: the cycle by which each execution should have ended; () for none; the run stops once
        it is sure that one ends later. Raises `TooManyTokens` for more than `TOKENS` tokens on streams at once."""
        try:
            return self._run(depths, skips, limits)
        except TooManyTokens:
            self._rooms[:] = np.maximum(FIRST_RING, self.code.packing)  # runs with other depths may have needed more
            return self._run(depths, skips, limits)

    def _run(self, depths: Mapping[int, int], skips: bool, limits: Sequence[int]) -> BeatTiming | EndlessWait | Late:
        code = self.code
        tokens: Ints = np.array(code.tokens, np.int64) * self.executions
        stated: Ints = np.array([depths.get(s, 0) for s in code.streams], np.int64)
        depth = np.where(stated >= np.maximum(tokens, COUNTED), 0, np.minimum(stated, tokens))
        state = _RunArrays(code, depth, self.executions, self._rooms)
        function = self._function()
        skipped = 0
        while True:
            done, more, walked, late = state.run(function, skips, limits)
            self.walked += walked
            if function is loop.run:
                TimedProgram._interpreted += walked
            skipped += more
            if late:
                return Late(frozenset(s for s, row in zip(code.streams, state.streams, strict=True) if row[loop.FULL]))
            if done == code.instances:
                return state.timing(skipped)
            if not state.grow():
                return EndlessWait(state.waits())

    def _function(self) -> object:
        small = int(sum(self.code.cycles)) * self.executions <= SMALL
        return loop.run if small and TimedProgram._interpreted < INTERPRETED else jit.engine()(loop.run)


class _RunArrays:
    """Arrays of a run. rooms: sizes of the ring buffers of streams without end to begin with, which grow with them."""

    def __init__(self, code: Bytecode, depth: Ints, executions: int, rooms: Ints) -> None:
        self.code, self.depth, self.executions, self.rooms = code, depth, executions, rooms
        self.counters: Ints = np.zeros(int(code.base[-1]), np.int64)
        self.instances: Ints = np.zeros((code.instances, 4), np.int64)
        self.instances[:, loop.PC] = code.first
        self.streams: Ints = np.zeros((len(code.streams), 7), np.int64)
        self.ends: Ints = np.zeros((executions, code.instances), np.int64)
        self.ring, self.times = self._rings(np.where(depth > 0, depth, rooms))

    def _rings(self, room: Ints) -> tuple[Ints, Ints]:
        sizes = 1 << np.ceil(np.log2(np.maximum(room, 1))).astype(np.int64)
        total = int(sizes.sum())
        if total > TOKENS:
            raise TooManyTokens
        ring = np.stack([np.cumsum(sizes) - sizes, sizes - 1, np.where(self.depth > 0, self.depth, sizes)], axis=1)
        return ring.astype(np.int64), np.zeros((3, total), np.int64)

    def run(self, function: object, skips: bool, limits: Sequence[int]) -> tuple[int, int, int, bool]:
        """Run on from here; return how many instances have ended, how many periods were skipped, how many beats were
        walked, and whether it was stopped."""
        code = self.code
        assert callable(function)
        done, skipped, walked, late = function(
            code.rows,
            code.ops,
            code.nesting,
            code.base,
            code.first,
            code.writer,
            code.reader,
            code.packing,
            self.depth,
            self.ring,
            self.times,
            self.executions,
            self.counters,
            self.instances,
            self.streams,
            self.ends,
            np.arange(code.instances),
            skips,
            np.array(code.cycles, np.int64),
            np.array(limits or [2 * LONGEST] * self.executions, np.int64),
        )
        return int(done), int(skipped), int(walked), bool(late)

    def grow(self) -> bool:
        """Double the ring buffers of streams without end that are full; return whether there are any."""
        inside = self.streams[:, loop.PUT] - self.streams[:, loop.GOT]
        full = (self.depth == 0) & (inside >= self.ring[:, 2])
        if not full.any():
            return False
        old, times = self.ring, self.times
        self.ring, self.times = self._rings(np.where(full, 2 * old[:, 2], old[:, 2]))
        self.rooms[full] = self.ring[full, 2]
        for s in range(len(old)):
            used = old[s, 1] + 1
            elements = np.arange(max(0, self.streams[s, loop.PUT] - used), self.streams[s, loop.PUT])
            self.times[:, self.ring[s, 0] + (elements & self.ring[s, 1])] = times[:, old[s, 0] + (elements & old[s, 1])]
        return True

    def waits(self) -> dict[int, tuple[int, bool]]:
        """Return what each instance that has not ended waits for."""
        found: dict[int, tuple[int, bool]] = {}
        for k in range(self.code.instances):
            if self.instances[k, loop.EXECUTION] >= self.executions:
                continue
            _, begin, end, _ = self.code.rows[self.instances[k, loop.PC]]
            for op in self.code.ops[begin:end]:
                s = int(op) >> 1
                put, got = self.streams[s, loop.PUT], self.streams[s, loop.GOT]
                packing = self.code.packing[s]
                if (put - got >= self.ring[s, 2]) if op & 1 else (put <= got - got % packing + packing - 1):
                    found[k] = self.code.streams[s], bool(op & 1)
                    break
        return found

    def timing(self, skipped: int) -> BeatTiming:
        """Return the result."""
        streams, columns = self.code.streams, self.streams.T.tolist()
        return BeatTiming(
            tuple(self.ends.max(axis=1, initial=0).tolist()),
            tuple(self.instances[:, loop.BUSY].tolist()),
            tuple(self.instances[:, loop.CLOCK].tolist()),
            dict(zip(streams, columns[loop.EMPTY], strict=True)),
            dict(zip(streams, columns[loop.FULL], strict=True)),
            {s: peak for s, peak, d in zip(streams, columns[loop.PEAK], self.depth, strict=True) if d},
            skipped,
        )
