"""A recorded run as arrays, to draw pictures from: times of uOPs, off-chip transfers, words in streams.

A run of 24 layers has millions of steps, so everything here is per uOP or binned, without a Python object per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...isa.program import ProgramSegment
from ...machine.event_log import EventLog
from ...machine.executor import unit_processes
from .machine import Machine, causes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Track:
    """The uOPs of one process (a unit, a decoder, the dispatcher), in order; an array element per uOP.

    number: of the uOP (for a decoder, of the mOP group; for the dispatcher, of the packet). origin: packet, or position
    in the op list. start, end: seconds since the first instruction, of its first step's start and its last step's end.
    busy: seconds of its steps' own durations; more than end - start only if lanes run side by side. cause: index into
    `Timeline.causes` of the cause with the most of these seconds. parts: `busy` by cause, shape (uOPs, causes).
    """

    name: str
    number: Ints
    origin: Ints
    start: Floats
    end: Floats
    busy: Floats
    cause: Ints
    parts: Floats


@dataclass(frozen=True, eq=False)
class Transfers:
    """The steps that move bytes off chip at one rate. cause: the cause under which steps at this rate count. start,
    end, bytes: of each step, its times in seconds and the bytes that it moves."""

    rate: str
    cause: str
    start: Floats
    end: Floats
    bytes: Floats


@dataclass(frozen=True, eq=False)
class Pairs:
    """Groups of words of a stream, such that one step put all words of a group, and one step got them. put, got: for
    each group, the rows of these steps in the log. words: for each group, how many words it has."""

    put: Ints
    got: Ints
    words: Ints


class Timeline:
    """A recorded run as arrays with an element per step of the log. Times are seconds since the first instruction; the
    launch before it is left out.

    log: the recorded run. step: of each row, its index in `log.steps`. unit: its process, an index in
    `Machine.plan.processes`. number: its uOP. start, end: when it begins and ends, in seconds. origin: as of `Track`.
    rates: the names of the machine's rates.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.log: EventLog = machine.timing.events
        overlay = machine.program.overlay
        self.causes: list[str] = list(dict.fromkeys(causes(overlay)))
        """Names of the causes, each once."""
        self.rates = list(overlay.step_seconds)
        of_rate = np.array([self.causes.index(c) for c in causes(overlay)], np.int64)
        steps = self.log.steps
        seconds = np.array([*overlay.step_seconds.values()])
        self.rate_of_step = np.array([s.rate for s in steps] or [0], np.int64)
        """Index into `rates` of each step in `log.steps`."""
        self.amount_of_step = np.array([s.amount for s in steps] or [0.0])
        self._cause_of_step = of_rate[self.rate_of_step]
        self._seconds_of_step = self.amount_of_step * seconds[self.rate_of_step]
        self.unit = np.frombuffer(self.log.unit, np.int32)
        self.step = np.frombuffer(self.log.step, np.int32)
        self.start = np.frombuffer(self.log.start, np.float64)
        self.end = np.frombuffer(self.log.end, np.float64)
        self.number = np.frombuffer(self.log.number, np.int32)
        self.origin = np.frombuffer(self.log.origin, np.int32)

    @property
    def seconds(self) -> float:
        """Time at which the last step ends, in seconds."""
        return self.machine.timing.latency

    @cached_property
    def took(self) -> Floats:
        """Each step's own duration in seconds, (steps,). In the rest of the time up to its end it waits for words to
        arrive.
        """
        return np.asarray(self._seconds_of_step[self.step])

    @cached_property
    def cause(self) -> Ints:
        """Index into `causes` of the cause under which each step's duration counts, (steps,)."""
        return np.asarray(self._cause_of_step[self.step], np.int64)

    @cached_property
    def fetches(self) -> npt.NDArray[np.bool_]:
        """Whether each step, (steps,), is a unit's fetch of its next uOP, or passes one to its other half. It belongs
        to no uOP, though the log gives it the number of one.
        """
        overlay = self.machine.program.overlay
        units = unit_processes(overlay)
        is_unit = np.array([name in units for name in self.machine.plan.processes])
        fetch = np.array([any(c >= len(overlay.streams) for c in s.gets + s.puts) for s in self.log.steps] or [False])
        found: npt.NDArray[np.bool_] = is_unit[self.unit] & fetch[self.step]
        return found

    def ends(self, unit: str, uops: Sequence[int]) -> Floats:
        """Return the time in seconds at which each of these uOPs of a unit ends, in their order; 0 for a uOP without a
        step. unit: its name. uops: their numbers. Raises `ValueError` for an unknown unit."""
        own = (self.unit == self.machine.plan.processes.index(unit)) & ~self.fetches
        at = np.zeros(max([*uops, int(self.number[own].max(initial=0))]) + 1)
        np.maximum.at(at, self.number[own], self.end[own])
        return at[list(uops)]

    def intervals(self, segments: Sequence[ProgramSegment]) -> list[tuple[float, float]]:
        """Return for each segment, in seconds, when the first of its words begins to move and when its last uOP ends,
        over all units; (0, 0) for a segment that moves none.

        Segments overlap, because units work ahead. A uOP that works for two segments counts for neither.
        """
        found = np.full((len(segments), 2), (np.inf, -np.inf))
        moves = np.array([bool(s.gets or s.puts) for s in self.log.steps] or [False])
        for number, name in enumerate(self.machine.plan.processes):
            rows = np.flatnonzero((self.unit == number) & ~self.fetches & moves[self.step])
            if not len(rows) or not any(name in s.uops for s in segments):
                continue
            uops = np.zeros(int(self.number[rows].max()) + 1, np.int64)
            owner, owners = uops - 1, uops.copy()
            for i, segment in enumerate(segments):
                for first, end in segment.uops.get(name, ()):
                    owner[first:end] = i
                    owners[first:end] += 1
            whose = np.where(owners == 1, owner, -1)[self.number[rows]]
            rows, whose = rows[whose >= 0], whose[whose >= 0]
            np.minimum.at(found[:, 0], whose, self.start[rows])
            np.maximum.at(found[:, 1], whose, self.end[rows])
        return [(start, end) if start <= end else (0.0, 0.0) for start, end in found.tolist()]

    @cached_property
    def tracks(self) -> list[Track]:
        """The tracks of all processes that took a step: units first, in the overlay's order."""
        names = self.machine.plan.processes
        order = np.argsort(np.where(self.fetches, len(names), self.unit), kind="stable")
        bounds = np.searchsorted(self.unit[order[: len(order) - self.fetches.sum()]], np.arange(len(names) + 1))
        found = [self._track(name, order[a:b]) for name, a, b in zip(names, bounds, bounds[1:], strict=False) if a < b]
        units = {name: i for i, name in enumerate(unit_processes(self.machine.program.overlay))}
        return sorted(found, key=lambda t: units.get(t.name, len(units)))

    def _track(self, name: str, rows: Ints) -> Track:
        """Make the track of a process from its rows in the log."""
        rows = rows[np.argsort(self.number[rows], kind="stable")]
        number = self.number[rows]
        first = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
        took = self._seconds_of_step[self.step[rows]]
        which = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(rows)]))
        per_cause = np.zeros((len(first), len(self.causes)))
        np.add.at(per_cause, (which, self._cause_of_step[self.step[rows]]), took)
        return Track(
            name=name,
            number=number[first].astype(np.int64),
            origin=np.maximum.reduceat(self.origin[rows], first).astype(np.int64),
            start=np.minimum.reduceat(self.start[rows], first),
            end=np.maximum.reduceat(self.end[rows], first),
            busy=per_cause.sum(axis=1),
            cause=per_cause.argmax(axis=1),
            parts=per_cause,
        )

    @cached_property
    def transfers(self) -> list[Transfers]:
        """The transfers of each bandwidth of the overlay, in its order; one without steps is there too."""
        out, overlay = [], self.machine.program.overlay
        for i, name in enumerate(self.rates):
            if name not in overlay.buses:
                continue
            rows = np.flatnonzero(self.rate_of_step[self.step] == i)
            amounts = self.amount_of_step[self.step[rows]]
            out.append(Transfers(name, overlay.rates[name].cause, self.start[rows], self.end[rows], amounts))
        return out

    @cached_property
    def streams(self) -> list[str]:
        """Names of streams by the numbers that the log's steps have for them; the FIFOs of the instruction path come
        last.
        """
        return list(self.machine.timing.waits)

    @cached_property
    def _moves(self) -> list[tuple[Ints, Ints]]:
        """For each stream, the rows of the steps that put to it and of those that got from it, in order."""
        out = []
        for kind in ("puts", "gets"):
            peers = [getattr(s, kind) for s in self.log.steps]
            counts = np.array([len(p) for p in peers] or [0], np.int64)
            at = np.cumsum(counts) - counts
            flat = np.array([c for p in peers for c in p], np.int16)
            each = counts[self.step]
            rows = np.repeat(np.arange(len(each)), each)
            within = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
            stream = flat[at[self.step[rows]] + within]
            order = np.argsort(stream, kind="stable")
            out.append(np.split(rows[order], np.searchsorted(stream[order], np.arange(1, len(self.streams)))))
        return list(zip(*out, strict=True))

    @cached_property
    def _words_of_step(self) -> Ints:
        return np.array([s.words for s in self.log.steps] or [0], np.int64)

    def moved(self, stream: int) -> Pairs:
        """Match the puts and gets of a stream, by its number in `streams`: its words in order, split wherever a put or
        a get ends. A stream is a FIFO, so the n-th word put is the n-th word got. Raises `IndexError` for an unknown
        stream.
        """
        put, got = self._moves[stream]
        sent, taken = (np.cumsum(self._words_of_step[self.step[rows]]) for rows in (put, got))
        ends = np.union1d(sent, taken)
        starts = np.r_[np.int64(0), ends][: len(ends)]
        return Pairs(
            put=put[np.searchsorted(sent, starts, "right")],
            got=got[np.searchsorted(taken, starts, "right")],
            words=ends - starts,
        )

    def fill(self, streams: Sequence[int]) -> Iterator[tuple[Floats, Ints]]:
        """Yield, for each stream of `streams`, the times in seconds at which its fill changes and the number of words
        in it from then on: two vectors of equal length. streams: indices in `Timeline.streams`. The words of a step
        enter when the putting step ends, and leave when the getting step ends. Raises `IndexError` for an unknown
        stream."""
        for stream in streams:
            put, got = self._moves[stream]
            rows = np.r_[put, got]
            clocks = self.end[rows]
            order = np.argsort(clocks, kind="stable")  # at equal times, puts before gets
            words = self._words_of_step[self.step[rows]]
            words[len(put) :] *= -1
            clocks, level = clocks[order], np.cumsum(words[order])
            last = np.r_[clocks[1:] != clocks[:-1], True][: len(clocks)]
            yield clocks[last], level[last]

    def binned(self, start: Floats, end: Floats, amount: Floats, edges: Floats) -> Floats:
        """Spread each amount evenly from its start to its end; return the sum that falls between neighbouring edges,
        (edges - 1,). start, end, edges: in seconds; edges in rising order. start, end, amount: of one length.
        """
        at_once = end <= start
        into: Floats = np.histogram(start[at_once], edges, weights=amount[at_once])[0]
        start, end, amount = (x[~at_once] for x in (start, end, amount))
        if not len(start):
            return into
        rate = amount / (end - start)
        # the amount done by time t is the sum of clipped ramps: two straight pieces each
        knots = np.r_[start, end]
        slope = np.r_[rate, -rate]
        order = np.argsort(knots, kind="stable")
        knots, slope = knots[order], np.cumsum(slope[order])
        done = np.r_[0.0, np.cumsum(np.diff(knots) * slope[:-1])]
        return into + np.diff(np.interp(edges, knots, done))
