"""Write a recorded run as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: a track per unit, flows along
streams, counters for bandwidth and for the words in FIFOs.

The file has the JSON object format of "Trace Event Format",
docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Its times are microseconds. Perfetto truncates
them to whole nanoseconds, and drops a slice that then overlaps another. So all times here are whole nanoseconds,
rounded once: what does not overlap in the run does not overlap in the file.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...base.durations import duration
from ...base.files import replacing
from ...isa.expansion import ExpandedProgram, place_of, region_name
from ...isa.fields import Record
from ...isa.packet import Packet
from ...isa.program import ProgramSegment
from ...isa.segments import accessed_buffers, have_uops
from ...machine.event_log import FIRST_WORD, LAST_WORD
from ...machine.executor import unit_processes
from .machine import Machine, launch_seconds
from .timeline import Floats, Ints, Timeline, Track

Event = dict[str, Any]
Bools = npt.NDArray[np.bool_]

UNITS, INSTRUCTIONS, MEMORY, STREAMS, SEGMENTS = 1, 2, 3, 4, 5
PROCESSES = {
    UNITS: "units",
    INSTRUCTIONS: "instruction path",
    MEMORY: "off-chip memory",
    STREAMS: "streams",
    SEGMENTS: "segments",
}
"""Processes of the trace, by number. Perfetto identifies a thread by its number alone, and takes a thread with the
number of its process for the main thread; so the numbers of tracks start above these."""

MAX_SLICES = 300_000
"""Limit of uOPs drawn as single slices. With more, a slice holds all uOPs of a unit that come from one packet."""

MAX_FLOWS = 100_000
"""Limit of flows. With more, only those are drawn for whose words the reader had waited."""

MAX_CHANGES = 400
"""Limit of changes of a FIFO's fill that are drawn singly. With more, means over time are drawn."""

MAX_NAMED = 8
"""Limit of uOPs without duration that are named in the slice of the next uOP."""

BANDWIDTH_BINS, FILL_BINS = 1000, 400
"""Limits of the number of bins. Since bins have a round width, there may be as few as two fifths of them, and fewer in
a run of nanoseconds."""


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write the trace of a run, compressed if `path` ends in .gz; a write that fails changes no file. Raises `OSError`
    with `path`."""
    picture = TraceEvents(timeline)
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    with replacing(path) as temporary, _opened(temporary, compressed=Path(path).suffix == ".gz") as file:
        file.write('{"traceEvents":[\n')
        comma = ""
        for event in picture.events():
            file.write(comma + encode(event))
            comma = ",\n"
        # after the events: older viewers that read displayTimeUnit first take it for the unit of the times
        file.write(f'\n],\n"displayTimeUnit":"ns",\n"otherData":{encode(picture.notes())}}}\n')


@contextmanager
def _opened(path: Path, compressed: bool) -> Iterator[IO[str]]:
    if not compressed:
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # without a name and a time, equal runs give equal files
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        io.TextIOWrapper(packed, "utf-8") as file,
    ):
        yield file


def nanoseconds(seconds: Floats) -> Ints:
    """Convert an array of seconds to nanoseconds, rounded to int64, of the same shape."""
    return np.rint(seconds * 1e9).astype(np.int64)


def microseconds(ns: Ints) -> list[float]:
    """Convert a vector `ns` of whole nanoseconds to microseconds that give the same nanoseconds when Perfetto
    multiplies them by 1000 and truncates.
    """
    us = ns / 1000
    return np.where(us * 1000 < ns, np.nextafter(us, np.inf), us).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Slices:
    """The slices of a track: one per uOP, or one for all uOPs of a packet.

    A uOP without duration, such as one that sets registers, has no slice of its own, which Perfetto would draw as
    lasting; it belongs to the slice of the next uOP.

    thread: number of the track. first: for each slice, place in the track of its first uOP. begin, count: place of the
    first uOP with a duration, and number of uOPs from there on. start, end: nanoseconds.
    """

    track: Track
    thread: int
    first: Ints
    begin: Ints
    count: Ints
    start: Ints
    end: Ints

    @staticmethod
    def of(track: Track, thread: int, together: bool) -> Slices:
        """Make the slices of a track, which has at least one uOP. thread: number of the track. together: whether the
        uOPs of one packet share a slice.
        """
        begin = np.arange(len(track.number))
        if together:
            begin = np.flatnonzero(np.r_[True, track.origin[1:] != track.origin[:-1]])
        last = np.r_[begin[1:], len(track.number)] - 1
        start, end = nanoseconds(track.start[begin]), nanoseconds(track.end[last])
        timed = np.flatnonzero(end > start)
        if not len(timed):
            timed = np.zeros(1, np.int64)
        first = begin[np.r_[0, timed[:-1] + 1]]
        return Slices(track, thread, first, begin[timed], (last - begin + 1)[timed], start[timed], end[timed])

    def __len__(self) -> int:
        return len(self.first)

    def of_uops(self, numbers: npt.NDArray[np.integer[Any]]) -> Ints:
        """Return the index of the slice of each uOP, in an array of the shape of `numbers`. numbers: of uOPs, as in the
        track.
        """
        at: Ints = np.searchsorted(self.track.number[self.first], numbers, "right") - 1
        return at

    def causes(self, kinds: int) -> Ints:
        """Return for each slice the index of the cause with most of its time, (slices,). kinds: the number of
        causes.
        """
        track = self.track
        seconds = np.zeros((len(self), kinds))
        np.add.at(seconds, (self.of_uops(track.number), track.cause), track.busy)
        largest: Ints = seconds.argmax(axis=1)
        return largest


@dataclass(frozen=True, eq=False)
class Flows:
    """Words that go along one stream from one slice to another.

    words: their numbers. source, sink: threads of the sender's and the receiver's tracks. at, to: when they leave and
    arrive, in nanoseconds. waited: whether the reader had waited for them.
    """

    stream: str
    words: Ints
    source: int
    sink: int
    at: Ints
    to: Ints
    waited: Bools

    def __len__(self) -> int:
        return len(self.at)

    def only(self, rows: Bools) -> Flows:
        """Return the flows that `rows` selects: a Boolean for each of them."""
        columns = {name: getattr(self, name)[rows] for name in ("words", "at", "to", "waited")}
        return dataclasses.replace(self, **columns)


@dataclass(frozen=True, eq=False)
class _Spans:
    """The segments that the compiler recorded, each from its first uOP's start to its last one's end in nanoseconds.
    threads: of their tracks; segments that overlap are on different ones."""

    segments: Sequence[ProgramSegment]
    start: Ints
    end: Ints
    threads: list[int]

    @staticmethod
    def of(timeline: Timeline, thread: int) -> _Spans:
        """The segments of a run. thread: number of the first track."""
        program = timeline.machine.program
        segments = program.segments if have_uops(program) else ()
        spans = nanoseconds(np.array(timeline.intervals(segments)).reshape(-1, 2))
        free: list[int] = []  # when each track is free
        threads = np.zeros(len(spans), np.int64)
        for i in np.argsort(spans[:, 0], kind="stable").tolist():
            start, end = spans[i].tolist()
            at = next((n for n, clock in enumerate(free) if clock <= start), len(free))
            free[at : at + 1] = [end]
            threads[i] = thread + at
        return _Spans(segments, spans[:, 0], spans[:, 1], threads.tolist())

    def events(self) -> Iterator[Event]:
        """Yield the slices."""
        rows = zip(
            self.segments, self.threads, microseconds(self.start), microseconds(self.end - self.start), strict=True
        )
        for s, thread, start, took in rows:
            head = {"ph": "X", "pid": SEGMENTS, "tid": thread, "ts": start, "dur": took}
            yield {**head, "name": s.name, "cat": "segment", "args": {"kind": s.kind, "layers": ", ".join(s.layers)}}


class TraceEvents:
    """The events of a run's trace: names, slices, flows and counters."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.machine = timeline.machine
        self.overlay = self.machine.program.overlay
        self.end = int(nanoseconds(np.array([timeline.seconds]))[0])
        self.units = unit_processes(self.overlay)
        units = self.units
        drawn = [t for t in timeline.tracks if t.name in units]
        self.uops = sum(len(t.number) for t in drawn if t.name in self.overlay.by_unit)
        self.merged = self.uops > MAX_SLICES
        thread = len(PROCESSES)
        self.slices: dict[str, Slices] = {}
        for track in timeline.tracks:
            thread += 1
            self.slices[track.name] = Slices.of(track, thread, self.merged and track.name in units)
        self.segments = _Spans.of(timeline, thread + 1)
        self.process = {t.name: UNITS if t.name in units else INSTRUCTIONS for t in timeline.tracks}

    def events(self) -> Iterator[Event]:
        """Yield all events as values for JSON, in the order of the file. Slices come before the flows that start or end
        in them, because viewers keep the order of simultaneous events.
        """
        yield from self._names()
        yield from self._work()
        yield from self.segments.events()
        yield from self._arrows()
        yield from self._bandwidth()
        yield from self._fill()

    def notes(self) -> dict[str, Any]:
        """Return facts about the run, and about what the trace merges or leaves out, as values for JSON by title."""
        program = self.machine.program
        return {
            "made by": "rsn",
            "program": program.places[0].file if program.places else f"{len(self.machine.packets)} packets",
            "overlay": f"{self.overlay.name} {self.overlay.fingerprint}",
            "packets": len(self.machine.packets),
            "uOPs": self.uops,
            "time 0": f"the first instruction, {launch_seconds(self.overlay) * 1e6:g} us after the launch",
            "latency": f"{duration(self.timeline.seconds + launch_seconds(self.overlay))}, launch included",
            "rates": {n: f"{r.value:g} {r.unit} ({r.cause})" for n, r in self.overlay.rates.items()},
            "FIFO depths": f"{self.overlay.mop_fifo_depth} mOPs, {self.overlay.uop_fifo_depth} uOPs",
            "slices": f"one for the uOPs of a unit that come from one packet: {self.uops} uOPs are too many"
            if self.merged
            else "one per uOP",
            "flows": f"only those for whose words the reader had waited: {self._all_flows} are too many"
            if self._all_flows > MAX_FLOWS
            else "one per stream, sending slice and receiving slice",
            "bandwidth": f"means over {self._edges(BANDWIDTH_BINS)[1] / 1000:g} us",
            "fill of FIFOs": f"every change; 'mean' over {self._edges(FILL_BINS)[1] / 1000:g} us where there are more "
            f"than {MAX_CHANGES}",
        }

    def _names(self) -> Iterator[Event]:
        for pid, name in PROCESSES.items():
            yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
            yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
        for name, s in self.slices.items():
            head = {"ph": "M", "pid": self.process[name], "tid": s.thread}
            yield {**head, "name": "thread_name", "args": {"name": name}}
            yield {**head, "name": "thread_sort_index", "args": {"sort_index": s.thread}}
        for thread in dict.fromkeys(self.segments.threads):
            name = "segments" if thread == self.segments.threads[0] else "segments that overlap them"
            yield {"ph": "M", "pid": SEGMENTS, "tid": thread, "name": "thread_name", "args": {"name": name}}

    # -- slices ---------------------------------------------------------------------------------------------------

    def _work(self) -> Iterator[Event]:
        """Yield the slices."""
        titles = Titles(self.machine)
        program = titles.expansion.program
        kinds = self.timeline.causes
        for name, s in self.slices.items():
            track = s.track
            is_unit = self.process[name] == UNITS
            unit = self.units.get(name, name)
            head = {"ph": "X", "pid": self.process[name], "tid": s.thread}
            seconds = track.end[s.begin + s.count - 1] - track.start[s.begin]
            share = np.add.reduceat(track.busy, s.first) / np.maximum(seconds, 1e-15)
            rows = zip(
                s.first.tolist(),
                s.begin.tolist(),
                s.count.tolist(),
                track.number[s.begin].tolist(),
                track.origin[s.begin].tolist(),
                s.causes(len(kinds)).tolist(),
                np.minimum(share, 1).round(3).tolist(),  # lanes that run side by side are added up
                microseconds(s.start),
                microseconds(s.end - s.start),
                strict=True,
            )
            where: dict[int, str] = {}
            for first, begin, count, number, origin, cause, busy, start, took in rows:
                place = where.get(origin)
                if place is None:
                    place = where[origin] = place_of(program, unit, origin)
                if is_unit:
                    title = titles.uop(unit, number) + (f" and {count - 1} more" if count > 1 else "")
                    args: dict[str, Any] = {"uop": number, "where": place, "busy": busy}
                    if count > 1:
                        args["uops"] = count
                    if begin > first:
                        named = [
                            titles.uop(unit, n) for n in track.number[first : min(begin, first + MAX_NAMED)].tolist()
                        ]
                        args["before"] = "; ".join(named) + ("; ..." if begin > first + MAX_NAMED else "")
                else:
                    title = titles.packet(origin)
                    args = {"packet": origin, "where": place, "busy": busy}
                yield {**head, "ts": start, "dur": took, "name": title, "cat": kinds[cause], "args": args}

    # -- flows ----------------------------------------------------------------------------------------------------

    @cached_property
    def _flows(self) -> list[Flows]:
        found = [self._along(i) for i in range(len(self.overlay.streams))]
        return [f for f in found if len(f)]

    @cached_property
    def _all_flows(self) -> int:
        return sum(map(len, self._flows))

    def _along(self, stream: int) -> Flows:
        """Return the flows of one stream, by its number: one for each pair of slices between which words go."""
        spec = self.overlay.streams[stream]
        t = self.timeline
        pairs = t.moved(stream)
        if not len(pairs.words):
            none = np.zeros(0, np.int64)
            return Flows(spec.name, none, 0, 0, none, none, none > 0)
        source, sink = self.slices[spec.src], self.slices[spec.dst]
        a, b = source.of_uops(t.number[pairs.put]), sink.of_uops(t.number[pairs.got])
        first = np.flatnonzero(np.r_[True, (a[1:] != a[:-1]) | (b[1:] != b[:-1])])
        a, b, put, got = a[first], b[first], pairs.put[first], pairs.got[first]
        whole = np.array([s.needs_whole_token for s in t.log.steps])[t.step[put]]
        left = nanoseconds(np.where(whole, t.end[put], t.start[put]))  # when the first word could be taken
        # a slice does not include the moment of its end, and a flow must begin and end inside slices
        to = np.minimum(nanoseconds(t.start[got]), sink.end[b] - 1)
        leave = np.minimum(np.minimum(left, source.end[a] - 1), to)
        before, via = (np.frombuffer(x, np.int32)[got] for x in (t.log.before, t.log.via))
        waited = np.isin(via, (FIRST_WORD, LAST_WORD)) & (t.unit[before] == t.unit[put])
        words = np.add.reduceat(pairs.words, first)
        flows = Flows(spec.name, words, source.thread, sink.thread, leave, to, waited)
        return flows.only((leave >= source.start[a]) & (to >= sink.start[b]))  # false for slices of less than 1 ns

    def _arrows(self) -> Iterator[Event]:
        number = 0
        for f in self._flows:
            shown = f.only(f.waited) if self._all_flows > MAX_FLOWS else f
            head = {"pid": UNITS, "name": f.stream, "cat": "stream"}
            rows = zip(microseconds(shown.at), microseconds(shown.to), shown.words.tolist(), strict=True)
            for leave, arrive, words in rows:
                number += 1
                yield {"ph": "s", "tid": f.source, "ts": leave, "id": number, **head, "args": {"words": words}}
                yield {"ph": "f", "bp": "e", "tid": f.sink, "ts": arrive, "id": number, **head}

    # -- counters -------------------------------------------------------------------------------------------------

    def _edges(self, most: int) -> Ints:
        """Return the edges, in nanoseconds, of at most `most` + 1 bins of a round width that reach beyond the end."""
        width = round_up(self.end / most)
        return np.arange(0, self.end + 2 * width, width)

    def _bandwidth(self) -> Iterator[Event]:
        edges = self._edges(BANDWIDTH_BINS)
        for moved in self.timeline.transfers:
            if not len(moved.bytes):
                continue
            per_bin = self.timeline.binned(moved.start, moved.end, moved.bytes, edges / 1e9)
            values = np.r_[(per_bin / np.diff(edges)).round(4), 0.0]  # bytes per nanosecond are GB/s
            yield from _counter(MEMORY, moved.rate.removesuffix("_gbs"), "GB/s", edges, values)

    def _fill(self) -> Iterator[Event]:
        """Yield the counters of the words in streams and of the entries in the instruction path's FIFOs."""
        edges = self._edges(FILL_BINS)
        names = self.timeline.streams
        for i, (clocks, level) in enumerate(self.timeline.fill(range(len(names)))):
            if not len(clocks):
                continue
            path = i >= len(self.overlay.streams)
            what = "entries" if path else "words"
            times: Ints = np.r_[0, nanoseconds(clocks)]
            values: Any = np.r_[0, level]
            if len(times) > MAX_CHANGES:
                area = np.r_[0, np.cumsum(np.diff(times) * values[:-1])]
                values = np.r_[(np.diff(np.interp(edges, times, area)) / np.diff(edges)).round(3), 0.0]
                times, what = edges, f"{what} (mean)"
            else:
                last = np.r_[times[1:] != times[:-1], True]
                times, values = times[last], values[last]
            yield from _counter(INSTRUCTIONS if path else STREAMS, names[i], what, times, values)


def _counter(pid: int, name: str, what: str, times: Ints, values: Any) -> Iterator[Event]:
    """Yield the events of a counter, one for each change of its value."""
    changes = np.r_[True, values[1:] != values[:-1]]
    head = {"ph": "C", "pid": pid, "name": name}
    for ts, value in zip(microseconds(times[changes]), values[changes].tolist(), strict=True):
        yield {**head, "ts": ts, "args": {what: value}}


def round_up(ns: float) -> int:
    """Round up to the next 1, 2 or 5 times a power of ten; at least 1. ns: a time in nanoseconds, as is the result."""
    power = 1
    while 5 * power < ns:
        power *= 10
    return next(digit * power for digit in (1, 2, 5) if digit * power >= ns)


class Titles:
    """Makes the titles of slices."""

    def __init__(self, machine: Machine) -> None:
        self.program = machine.bound
        self.expansion = machine.expansion
        self._words: dict[tuple[int, bool], str] = {}
        self._packets: dict[int, str] = {}
        self._about: dict[str, dict[int, int]] = {}
        for bank, accesses in self.expansion.accesses.items():
            rows = zip(accesses.unit, accesses.uop, accessed_buffers(self.program, bank, accesses), strict=True)
            for by, uop, number in rows:
                self._about.setdefault(accesses.units[by].name, {})[int(uop)] = int(number)

    def uop(self, unit: str, number: int) -> str:
        """Return the title of a uOP: the memory that it accesses and the fields that are set, as in `load x [0:128,
        0:64] -> MemA0`. number: of the uOP in its unit. Raises `KeyError` for an unknown unit, `IndexError` for a
        number beyond its uOPs.
        """
        run = self.expansion.sequences[unit]
        kind = int(run.kinds[number])
        touch = self.program.overlay.transfer(run.unit, self.expansion.uops[kind])
        words = self._words.get((kind, touch is not None))
        if words is None:
            uop = self.expansion.uops[kind]
            words = self.program.overlay.title(uop) or format_fields(uop, touch is not None)
            self._words[kind, touch is not None] = words
        if touch is None:
            return words or "nothing"
        step = self.program.overlay.address_unit
        start = (touch.addr + int(run.shifts[number])) * step
        about = self._about[unit][number]
        end = start + touch.size
        held = [self.program.buffers[about]] if about >= 0 else []
        return f"{'store' if touch.store else 'load'} {region_name(held, step, start, end)}" + (
            f" {words}" if words else ""
        )

    def packet(self, number: int) -> str:
        """Return the title of a packet: its number, units, mOPs and repetitions. number: its index in the image; raises
        `IndexError` beyond the last."""
        if number not in self._packets:
            self._packets[number] = _packet(number, self.program.packets[number], self.expansion)
        return self._packets[number]


def _packet(number: int, packet: Packet, x: ExpandedProgram) -> str:
    header = packet.header
    if not header.opcode:
        return f"packet {number}: skipped"
    units = [u.name for u in x.overlay.selected(header.opcode, header.mask)]
    whom = ", ".join(units) or "no unit"
    if header.last:
        return f"packet {number}: end of {whom}"
    many = f"{len(packet.mops)} mOP" + ("s" if len(packet.mops) != 1 else "")
    return f"packet {number}: {many} for {whom}" + (f", {header.reuse} times" if header.reuse != 1 else "")


def format_fields(uop: Any, touches: bool) -> str:
    """Return the fields of a uOP that are set as text, in the words of the assembler: flags, streams, numbers.

    touches: whether the title names the memory that the uOP accesses, so that address, size and direction are left out.
    """
    flags: list[str] = []
    numbers: list[str] = []
    streams: dict[str, list[str]] = {}
    if not isinstance(uop, Record):
        fields = uop._asdict() if hasattr(uop, "_asdict") else {"uop": uop}
        arrow = "<-" if fields.get("store") else "->"
        for name, value in fields.items():
            if not value or (touches and name in ("addr", "size", "store")):
                continue
            if isinstance(value, str):
                streams.setdefault(arrow, []).append(value)
            else:
                (flags if value is True else numbers).append(name if value is True else f"{name}={value}")
    else:
        default = type(uop)()
        for field in uop.FIELDS:
            value = getattr(uop, field.name)
            if value == getattr(default, field.name) or (touches and field.name in ("addr", "size", "load", "store")):
                continue
            if field.to or field.source:
                head = f"{field.source}->" if field.to and field.source else "-> " if field.to else "<- "
                streams.setdefault(head.strip(), []).append(str(field.to or field.source))
            elif field.flag:
                flags.append(field.name)
            else:
                numbers.append(f"{field.name}={value:g}" if field.real else f"{field.name}={value}")
    routes = [head + ("" if len(head) > 2 else " ") + "/".join(ends) for head, ends in streams.items()]
    return " ".join([*flags, *routes, *numbers])
