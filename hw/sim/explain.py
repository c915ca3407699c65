"""Explain the latency of a run: by cause, segment, source line and stream, and what other rates would change.

Everything follows from one recorded run. Its critical path is a chain of steps without gaps from the launch to the end,
so that the seconds on it add up to the latency. Waiting appears as what each step of the chain had waited for.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from ...base.durations import unit_of
from ...isa.instruction_path import uop_fifo
from ...isa.overlay import Overlay
from ...isa.program import ProgramSegment
from ...isa.segments import StoredBuffer, have_uops, stored_buffers
from ...machine.event_log import FIRST_WORD, LAST_WORD, OWN, ROOM, CriticalPath
from ...machine.executor import unit_processes
from .machine import Machine, by_cause, causes, critical_path, launch_seconds
from .timeline import Ints, Timeline

DEPENDENCIES = ("an empty stream", "a full stream", "instructions", "nothing")
"""What a unit on the critical path had waited for when the path went over to it."""
EMPTY, FULL, INSTRUCTIONS, NOTHING = range(len(DEPENDENCIES))


@dataclass(frozen=True)
class UnitTime:
    """The time of one unit, in seconds.

    kind: its FU type. busy: time without waits. empty, full: waits for words from, and for room on, its streams.
    instructions: waits for uOPs. Waits of lanes that run side by side are added up.
    """

    kind: str
    busy: float
    empty: float
    full: float
    instructions: float


@dataclass(frozen=True)
class StreamWait:
    """Seconds in which the reader of a stream waited for words (empty) and its writer for room (full). name: of the
    stream."""

    name: str
    empty: float
    full: float


@dataclass(frozen=True)
class SegmentTime:
    """The window of a segment: from the end of the segment before to its own end, which is that of its last store.

    where: source line of its first store. began: when the first of its uOPs starts, mostly in the window of the segment
    before; `start` where the segments of the program are not known. began, start, end: seconds since the launch.
    causes: seconds of the window on the critical path. kind, layers: as of `ProgramSegment`.
    """

    name: str
    where: str
    began: float
    start: float
    end: float
    causes: dict[str, float]
    kind: str = ""
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class LineTime:
    """Seconds on the critical path of one unit and one source line (or packet), whose place `where` is. cause: the
    cause with the most of these seconds."""

    where: str
    unit: str
    seconds: float
    cause: str


@dataclass(frozen=True)
class WhatIf:
    """The latency if one rate were twice as good and all else unchanged. cause: the cause under which steps at this
    rate count. latency_s: that latency, in seconds."""

    rate: str
    cause: str
    latency_s: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """The explanation of a run's latency. All times are in seconds.

    causes: time on the critical path by cause. dependencies: the same time by what the unit on the path had waited for.
    Both add up to the latency. units: by name. streams, lines: the longest first. segments: by end. what_if: the most
    worthwhile rate first.
    """

    latency_s: float
    causes: dict[str, float]
    dependencies: dict[str, float]
    units: dict[str, UnitTime]
    streams: list[StreamWait]
    segments: list[SegmentTime]
    lines: list[LineTime]
    what_if: list[WhatIf]

    def __str__(self) -> str:
        return _screen(self)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the latency as values for JSON, by the names of the fields; times are in seconds."""
        return {
            "causes": self.causes,
            "dependencies": self.dependencies,
            "units": {name: vars(u) for name, u in self.units.items()},
            "streams": [vars(s) for s in self.streams],
            "segments": [vars(s) for s in self.segments],
            "lines": [vars(line) for line in self.lines],
            "what_if": [vars(w) for w in self.what_if],
        }


def explain(machine: Machine) -> Explanation:
    """Explain the latency of a program from its recorded run. Raises as `Machine.timing`."""
    overlay, done = machine.program.overlay, machine.timing
    launch = launch_seconds(overlay)
    latency = done.latency + launch
    path = done.critical_path
    waited = np.bincount(_waited(path, _unit_numbers(machine)), path.seconds, len(DEPENDENCIES)).tolist()
    dependencies = {name: seconds for name, seconds in zip(DEPENDENCIES, waited, strict=True) if seconds}
    if launch:
        dependencies[overlay.rates["launch_us"].cause] = launch
    return Explanation(
        latency_s=latency,
        causes=critical_path(done, overlay),
        dependencies=dependencies,
        units=_units(overlay, machine),
        streams=_streams(overlay, machine),
        segments=_segments(machine, path, launch),
        lines=_lines(machine, path),
        what_if=_what_if(machine, latency),
    )


def _waited(path: CriticalPath, units: Sequence[int]) -> Ints:
    """Return for each step what its process had waited for when the path last went over to that process, as an index
    into `DEPENDENCIES`. units: numbers of the processes that are units, not the instruction path."""
    via = np.r_[path.via[1:], OWN][: len(path.via)]  # how each step depended on its predecessor in time
    issued = ~np.isin(np.r_[path.unit[1:], -1][: len(via)], units) & np.isin(via, (FIRST_WORD, LAST_WORD))
    kind = np.select([via == OWN, issued, via == ROOM], [NOTHING, INSTRUCTIONS, FULL], EMPTY)
    at = np.where(via != OWN, np.arange(len(via)), len(via))
    nearest = np.minimum.accumulate(at[::-1])[::-1]  # the latest step, at or before this one, that had to wait
    return np.asarray(np.r_[kind, NOTHING][nearest], np.int64)


def _unit_numbers(machine: Machine) -> list[int]:
    units = unit_processes(machine.program.overlay)
    return [i for i, name in enumerate(machine.plan.processes) if name in units]


def _units(overlay: Overlay, machine: Machine) -> dict[str, UnitTime]:
    done = machine.timing
    out = {}
    for u in overlay.units:
        empty = sum(done.waits[s.name][0] for s in overlay.streams if s.dst == u.name)
        full = sum(done.waits[s.name][1] for s in overlay.streams if s.src == u.name)
        instructions = done.waits.get(uop_fifo(u.name), (0.0, 0.0))[0]
        out[u.name] = UnitTime(u.kind, done.unit_busy(u.name), empty, full, instructions)
    return out


def _streams(overlay: Overlay, machine: Machine) -> list[StreamWait]:
    """Return the streams on which a process waited, the longest waits first."""
    waits = [StreamWait(s.name, *machine.timing.waits[s.name]) for s in overlay.streams]
    return sorted((w for w in waits if w.empty or w.full), key=lambda w: -(w.empty + w.full))


def seconds_of(machine: Machine, buffers: Container[str]) -> dict[str, float]:
    """Return the modelled seconds in which some buffers are filled, by name, in the order of their last stores.
    buffers: the names of those that are chosen.

    A buffer's time runs from the last store to the chosen buffer before it to its own last store; it includes other
    buffers in between. With the launch, the times add up to the latency if the buffer stored last is chosen. Raises as
    `Machine.timing`.
    """
    out: dict[str, float] = {}
    start = 0.0
    for end, s in _stored(machine):
        if s.name in buffers:
            out[s.name] = out.get(s.name, 0.0) + end - start
            start = end
    return out


def windows(machine: Machine) -> dict[str, float]:
    """Return the modelled seconds of each segment, by name, in the order in which they end: from the end of the segment
    before, or from the first instruction, to its own end. Raises as `Machine.timing`.
    """
    out: dict[str, float] = {}
    start = 0.0
    for end, _, _, s in _timed(machine):
        out[s.name] = out.get(s.name, 0.0) + end - start
        start = end
    return out


def _stored(machine: Machine) -> list[tuple[float, StoredBuffer]]:
    """Return each buffer that is filled with the time of the last store to it, sorted by that time."""
    found = stored_buffers(machine.expansion)
    timeline = Timeline(machine)
    timed: list[tuple[float, StoredBuffer]] = []
    for unit in dict.fromkeys(s.unit for s in found):
        own = [s for s in found if s.unit == unit]
        timed += zip(timeline.ends(unit, [s.last for s in own]).tolist(), own, strict=True)
    return sorted(timed, key=lambda pair: pair[0])


def _timed_by_stores(machine: Machine) -> list[tuple[float, float | None, str, ProgramSegment]]:
    """As `_timed`, for segments whose uOPs are not known: a segment ends with the last store to one of its outputs. A
    buffer that belongs to none is taken for a segment."""
    segment_of = {name: segment for segment in machine.program.segments for name in segment.outputs}
    ends: dict[str, tuple[float, float | None, str, ProgramSegment]] = {}
    for end, b in _stored(machine):
        segment = segment_of.get(b.name) or ProgramSegment(b.name, (), "", (b.name,), {})
        where = ends[segment.name][2] if segment.name in ends else machine.expansion.where(b.unit, b.first)
        ends[segment.name] = end, None, where, segment
    return sorted(ends.values(), key=lambda row: row[0])


def _timed(machine: Machine) -> list[tuple[float, float | None, str, ProgramSegment]]:
    """Return each segment with its end, its beginning where it is known, and the place of its first store, sorted by
    end."""
    if not have_uops(machine.program):
        return _timed_by_stores(machine)
    first = {s.name: (s.unit, s.first) for s in reversed(stored_buffers(machine.expansion))}
    out: list[tuple[float, float | None, str, ProgramSegment]] = []
    intervals = Timeline(machine).intervals(machine.program.segments)
    for (began, end), s in zip(intervals, machine.program.segments, strict=True):
        where = next((machine.expansion.where(*first[name]) for name in s.outputs if name in first), "")
        out.append((end, began, where, s))
    return sorted(out, key=lambda row: row[0])


def _segments(machine: Machine, path: CriticalPath, launch: float) -> list[SegmentTime]:
    out = []
    start = 0.0
    for end, began, where, s in _timed(machine):
        inside = np.clip(path.end, start, end) - np.clip(path.start, start, end)
        parts = by_cause(machine.program.overlay, path, inside)
        began = start if began is None else began
        window = began + launch, start + launch, end + launch
        out.append(SegmentTime(s.name, where, *window, parts, s.kind, s.layers))
        start = end
    return out


def _lines(machine: Machine, path: CriticalPath) -> list[LineTime]:
    """Return the time per source line and unit, the longest first."""
    processes, headings = machine.plan.processes, causes(machine.program.overlay)
    keys, which = np.unique(np.stack([path.unit, path.origin, path.rate]), axis=1, return_inverse=True)
    seconds = np.bincount(which.reshape(-1), path.seconds, keys.shape[1])
    lines: dict[tuple[str, str], dict[str, float]] = {}
    for (unit, origin, rate), took in zip(keys.T.tolist(), seconds.tolist(), strict=True):
        name = processes[unit]
        parts = lines.setdefault((machine.program.where(name, origin), name), {})
        parts[headings[rate]] = parts.get(headings[rate], 0.0) + took
    out = [LineTime(at, u, sum(parts.values()), max(parts, key=parts.__getitem__)) for (at, u), parts in lines.items()]
    return sorted((x for x in out if x.seconds > 0), key=lambda x: -x.seconds)


def _what_if(machine: Machine, latency: float) -> list[WhatIf]:
    """Run again with each rate twice as good that the run uses; the largest gain first."""
    overlay, done = machine.program.overlay, machine.timing
    out = []
    for name, rate in overlay.rates.items():
        if name == "launch_us":
            out.append(WhatIf(name, rate.cause, latency - overlay.seconds[name] / 2))
        elif done.amounts.get(name):
            value = rate.value * 2 if rate.unit == "GB/s" else rate.value / 2
            other = overlay.with_rates(**{name: value})
            out.append(WhatIf(name, rate.cause, machine.plan.run(other).latency + launch_seconds(other)))
    return sorted(out, key=lambda w: w.latency_s)


WIDTH = 104
MAX = 8
"""Limit of segments, of lines and of rates that are shown."""


def _screen(e: Explanation) -> str:
    """Format an explanation as one screen of text, with the largest items of each table."""

    # One unit of time for all numbers, so that they compare. At most ms: in s, short times would show as 0.
    unit, factor = unit_of(min(e.latency_s, 0.1))

    def time(seconds: float) -> str:
        return f"{seconds * factor:9.3f} {unit:<2}"

    def share(seconds: float) -> str:
        return f"{100 * seconds / e.latency_s:5.1f} %" if e.latency_s else ""

    faster = [w for w in e.what_if[:MAX] if w.latency_s < e.latency_s * 0.9995]
    # Overlays name their own rates.
    named = 2 + max([17, *map(len, e.causes), *map(len, e.dependencies), *(len(w.rate) for w in faster)])
    path = [f"{name:<{named}}{time(s)} {share(s)}" for name, s in e.causes.items() if s >= e.latency_s / 2000]
    held = [f"{name:<{named}}{time(s)} {share(s)}" for name, s in e.dependencies.items() if s >= e.latency_s / 2000]
    gains = [f"{w.rate:<{named}}{time(w.latency_s)} {share(w.latency_s - e.latency_s)}" for w in faster]
    right = [*_titled("what its unit had waited for", held), "", *_titled("if this were twice as fast", gains)]
    left = _titled("critical path", path)
    half = max([WIDTH // 2, *(len(line) + 2 for line in left)])
    out = [f"{a:<{half}}{b}" for a, b in zip_longest(left, right, fillvalue="")]
    rows = []
    for name, times, seconds, parts in _grouped(e.segments):
        row = f"{name[:31]:<32}{f'x{times}' if times > 1 else '':<4}{time(seconds)} {share(seconds)}"
        mostly = [f"{cause} {100 * s / seconds:.0f} %" for cause, s in parts.items() if seconds]
        while len(", ".join(mostly)) > WIDTH - len(row) or len(mostly) > 3:
            mostly.pop()
        rows.append(f"{row}  {', '.join(mostly)}")
    out += ["", *_titled("segment, to its last store", _limited(rows))]
    wide = max([16, *(len(x.unit) + 2 for x in e.lines[:MAX])])
    rows = [f"{_tail(x.where, 35):<36}{x.unit:<{wide}}{time(x.seconds)} {share(x.seconds)}  {x.cause}" for x in e.lines]
    out += ["", *_titled("source line on the critical path", _limited(rows))]
    # names come from the program, and a program may come from anywhere: print no control characters
    lines = ["".join(c if c.isprintable() else "?" for c in line) for line in [*out, "", *_busiest(e)]]
    return "\n".join(line.rstrip() for line in lines)


def _tail(text: str, most: int) -> str:
    return text if len(text) <= most else f"...{text[3 - most :]}"


def _titled(title: str, rows: Sequence[str]) -> list[str]:
    return [title, *(f"  {row}" for row in rows or ["none"])]


def _limited(rows: Sequence[str]) -> list[str]:
    return [*rows[:MAX], *([f"and {len(rows) - MAX} more"] if len(rows) > MAX else [])]


def _grouped(parts: Sequence[SegmentTime]) -> list[tuple[str, int, float, dict[str, float]]]:
    """Return name, number, seconds and causes of segments. If there are more than `MAX`, segments whose names differ
    only in numbers become one."""
    groups: dict[str, list[SegmentTime]] = {}
    for s in parts:
        groups.setdefault(re.sub(r"\d+", "*", s.name) if len(parts) > MAX else s.name, []).append(s)
    out = []
    for name, group in groups.items():
        out.append((name, len(group), sum(s.end - s.start for s in group), causes_of(group)))
    return out


def causes_of(segments: Iterable[SegmentTime]) -> dict[str, float]:
    """Return the seconds on the critical path of some segments together, by cause, longest first."""
    total: dict[str, float] = {}
    for cause, seconds in (item for s in segments for item in s.causes.items()):
        total[cause] = total.get(cause, 0.0) + seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _busiest(e: Explanation) -> list[str]:
    """Format the times of the busiest unit of each kind, in percent of the run."""
    best: dict[str, str] = {}
    for name, unit in e.units.items():
        if unit.kind not in best or unit.busy > e.units[best[unit.kind]].busy:
            best[unit.kind] = name
    names = sorted((n for n in best.values() if e.units[n].busy), key=lambda n: -e.units[n].busy)
    # In a machine of tasks each unit is a kind of its own: as many as fit on the screen.
    room = WIDTH - 26
    shown = 0
    while shown < len(names) and (room := room - max(8, len(names[shown]) + 2)) >= 0:
        shown += 1
    names = names[: max(1, shown)]
    rows = [("busiest unit of a kind, %", names)]
    for field in ("busy", "empty", "full", "instructions"):
        label = "busy" if field == "busy" else f"waits, {field}"
        rows.append((f"  {label}", [f"{100 * getattr(e.units[n], field) / e.latency_s:.0f}" for n in names]))
    # A name may be longer than a column; names do not run together.
    columns = [max(8, len(name) + 2) for name in names]
    return [
        f"{label:<26}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, columns, strict=True))
        for label, cells in rows
    ]
