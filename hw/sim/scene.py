"""The data of the report's timeline: for each lane its uOPs and, in fine bins, the causes of its time.

The page must stay small and fast for 24 layers, so its data does not grow with the number of steps: time is divided
into at most `MAX_BINS` bins, and uOPs beyond `MAX_UOPS` are merged. The rest is a table of distinct texts.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.fields import Record
from ...isa.layout import BLOCK_COLS
from ...isa.overlay import Overlay
from ...isa.program import Layout, Program
from ...isa.segments import accessed_buffers
from ...machine.executor import unit_processes
from .explain import Explanation
from .machine import causes, launch_seconds
from .timeline import Floats, Ints, Timeline, Track

MAX_BINS = 1 << 16
LEAST_BINS = 1 << 14
"""Several bins per pixel when the whole run is shown."""
BIN = 0.25e-6
"""Target length of a bin in seconds, within the limits of `LEAST_BINS` and `MAX_BINS`."""
MAX_UOPS = 400_000
"""Limit of uOPs of all lanes together that are drawn singly."""
LEVELS = 255
"""Resolution of the share of a bin. Rounding errors go to the next bin, so that sums are exact to one level."""
LOAD, STORE = 0, 1


class Blob:
    """Packs arrays and a JSON header into one compressed text.

    Layout before compression: length of the header (uint32), the header, blanks up to a multiple of 8, the arrays, each
    at a multiple of 8. The header refers to an array as [offset, count, type].
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def array(self, values: npt.ArrayLike) -> list[Any]:
        """Add a vector of non-negative integers, in the smallest type that holds them. Returns its reference for the
        header, [offset in bytes, count, type]. A number of more than 32 bits becomes the largest of these.
        """
        wide = np.asarray(values, np.int64)
        top = int(wide.max(initial=0))
        kind = "u1" if top < 1 << 8 else "u2" if top < 1 << 16 else "u4"
        data = np.minimum(wide, 0xFFFF_FFFF).astype(f"<{kind}").tobytes()
        at = self._size
        self._parts.append(data + bytes(-len(data) % 8))
        self._size += len(self._parts[-1])
        return [at, len(wide), kind]

    def text(self, header: dict[str, Any]) -> str:
        """Return header and arrays, compressed, in base64. Raises `ValueError` for a header with a number that is not
        finite.
        """
        head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
        head += b" " * (-(len(head) + 4) % 8)
        raw = b"".join([len(head).to_bytes(4, "little"), head, *self._parts])
        return base64.b64encode(zlib.compress(raw, 6)).decode()


class _Texts(dict[str, int]):
    """Distinct texts, each with its number."""

    def number(self, text: str) -> int:
        """Return the number of a text. New texts are numbered in order."""
        return self.setdefault(text, len(self))


def scene(timeline: Timeline, explanation: Explanation, slots: Mapping[str, str]) -> str:
    """Return the data of the page's timeline for `report.js`, as base64. explanation: of the same run. slots: colour by
    cause, as from `report.colours`.
    """
    return _Scene(timeline, explanation).text(slots)


class _Scene:
    """Builds the data of one page's timeline."""

    def __init__(self, timeline: Timeline, explanation: Explanation) -> None:
        self.timeline = timeline
        self.explanation = explanation
        machine = timeline.machine
        self.program: Program = machine.bound
        self.overlay: Overlay = self.program.overlay
        self.expansion = machine.expansion
        self.units = unit_processes(self.overlay)
        self.launch = launch_seconds(self.overlay)
        self.latency = explanation.latency_s
        bins = 1 << int(np.ceil(np.log2(max(self.latency / BIN, 1))))
        self.edges = np.linspace(0, max(self.latency, 1e-12), int(np.clip(bins, LEAST_BINS, MAX_BINS)) + 1)
        self.tick = max(1e-10, self.latency / 4e9)
        self.blob = Blob()
        self.texts, self.places = _Texts(), _Texts()
        total = sum(len(t.number) for t in timeline.tracks)
        self.merge = total > MAX_UOPS
        self.most = max(1, MAX_UOPS // max(len(timeline.tracks), 1))
        chain = machine.timing.critical_path
        headings = np.array([timeline.causes.index(c) for c in causes(self.overlay)], np.int64)
        first = [timeline.causes.index(self.overlay.rates["launch_us"].cause)] if self.launch else []
        # reversed, because the chain runs from the end to the start; the launch comes first and belongs to no unit
        self.path_unit = np.r_[[-1] * len(first), chain.unit[::-1]].astype(np.int64)
        self.path_cause = np.r_[first, headings[np.array(chain.rate[::-1], np.int64)]].astype(np.int64)
        self.path_start = np.r_[[0.0] * len(first), np.array(chain.start[::-1], np.float64) + self.launch]
        self.path_end = np.r_[[self.launch] * len(first), np.array(chain.end[::-1], np.float64) + self.launch]

    def text(self, slots: Mapping[str, str]) -> str:
        """Return the header and all arrays, as from `Blob.text`. slots: colour by cause."""
        path = [[c, rows] for c, rows in self._by_cause(self.path_start, self.path_end, self.path_cause)]
        header = {
            "latency": self.latency,
            "launch": self.launch,
            "tick": self.tick,
            "bins": len(self.edges) - 1,
            "levels": LEVELS,
            "causes": self.timeline.causes,
            "slots": [slots[c] for c in self.timeline.causes],
            "segments": [[s.name, s.start, s.end] for s in self.explanation.segments],
            "path": path,
            "spans": self._spans(),
            "lanes": [self._lane(t, t.name in self.units) for t in self.timeline.tracks],
            "rates": self._rates(),
            "buffers": [self._buffer(i) for i in range(len(self.program.buffers))],
            "texts": list(self.texts),
            "places": list(self.places),
        }
        return self.blob.text(header)

    # -- shares of bins -------------------------------------------------------------------------------------------

    def _share(self, start: Floats, end: Floats) -> list[Any] | None:
        """Return, as an array reference, how many levels of each bin the spans cover; None if none."""
        filled = covered(start, end, self.edges) / (self.edges[1] - self.edges[0])
        levels = np.diff(np.rint(np.cumsum(np.r_[0.0, filled]) * LEVELS)).astype(np.int64)
        return self.blob.array(np.maximum(levels, 0)) if levels.any() else None

    def _spans(self) -> dict[str, Any]:
        """Return the critical path, not binned: pieces of one cause on one lane, from time 0 on without gaps."""
        lane = np.full(len(self.timeline.machine.plan.processes) + 1, 255, np.int64)
        for i, track in enumerate(self.timeline.tracks[:255]):
            lane[self.timeline.machine.plan.processes.index(track.name)] = i
        on = lane[self.path_unit]  # the launch has unit -1, and so the last element of `lane`: no lane
        first = np.flatnonzero(np.r_[True, (np.diff(on) != 0) | (np.diff(self.path_cause) != 0)][: len(on)])
        end = np.rint(np.r_[self.path_start[first[1:]], self.path_end[-1:]] / self.tick).astype(np.int64)
        return {
            "took": self.blob.array(np.diff(end, prepend=0)),
            "cause": self.blob.array(self.path_cause[first]),
            "lane": self.blob.array(on[first]),
        }

    def _by_cause(self, start: Floats, end: Floats, cause: Ints) -> list[tuple[int, list[Any]]]:
        out = []
        for c in np.unique(cause).tolist():
            row = self._share(start[cause == c], end[cause == c])
            if row is not None:
                out.append((c, row))
        return out

    def _rates(self) -> list[dict[str, Any]]:
        """Return the bytes per bin of every bandwidth that the run used."""
        out = []
        for t in self.timeline.transfers:
            if len(t.bytes):
                moved = self.timeline.binned(t.start + self.launch, t.end + self.launch, t.bytes, self.edges)
                whole = np.maximum(np.diff(np.rint(np.cumsum(np.r_[0.0, moved]))), 0)
                gbs = self.overlay.rates[t.rate].value
                cause = self.timeline.causes.index(t.cause)
                out.append({"name": t.rate, "cause": cause, "gbs": gbs, "bytes": self.blob.array(whole)})
        return out

    # -- lanes ----------------------------------------------------------------------------------------------------

    def _lane(self, track: Track, is_unit: bool) -> dict[str, Any]:
        """Return the lane of a track: shares of bins by cause, loads and stores apart if it has both; its uOPs."""
        timeline = self.timeline
        unit = timeline.machine.plan.processes.index(track.name)
        rows = np.flatnonzero((timeline.unit == unit) & ~timeline.fetches)
        start = timeline.start[rows] + self.launch
        end, cause = start + timeline.took[rows], timeline.cause[rows]
        held = self._held(track.name) if track.name in self.overlay.by_unit else None
        ways: dict[int, Any] = {LOAD: slice(None)}
        if held is not None and 0 < held.store.sum() < len(held.store):
            stores = np.zeros(int(timeline.number[rows].max(initial=0)) + 2, bool)
            stores[held.uop[held.store]] = True
            store = stores[timeline.number[rows]]
            ways = {LOAD: ~store, STORE: store}
        found = {way: self._by_cause(start[which], end[which], cause[which]) for way, which in ways.items()}
        mine = self.path_unit == unit
        lane: dict[str, Any] = {
            "name": track.name,
            "unit": is_unit,
            "ops": track.name in self.program.preloaded,
            "both": bool(found.get(STORE)),
            "busy": timeline.machine.timing.busy[track.name] / self.latency if self.latency else 0.0,
            "rows": [[c, row, way] for way, binned in found.items() for c, row in binned],
            "steps": int(np.count_nonzero(timeline.took[rows])),
            "path": self._share(self.path_start[mine], self.path_end[mine]),
        }
        return lane | self._uops(track, is_unit, held)

    def _uops(self, track: Track, is_unit: bool, held: _Accesses | None) -> dict[str, Any]:
        """Return the uOPs of a lane; if there are too many, groups of consecutive uOPs."""
        count = len(track.number)
        first = np.arange(count)
        if self.merge and count and track.name not in self.program.preloaded:
            first = np.flatnonzero(np.r_[True, track.origin[1:] != track.origin[:-1]])
        if self.merge and len(first) > self.most:
            first = first[:: -(-len(first) // self.most)]
        size = np.diff(np.r_[first, count])
        last = first + size - 1
        start = np.rint((track.start[first] + self.launch) / self.tick).astype(np.int64)
        end = np.rint((track.end[last] + self.launch) / self.tick).astype(np.int64)
        parts = np.add.reduceat(track.parts, first, axis=0) if count else track.parts
        mixes, mix = np.unique(np.rint(parts / self.tick).astype(np.int64), axis=0, return_inverse=True)
        describe = self._describe_uop(self.units[track.name]) if is_unit else self._describe_packet(track.name)
        out: dict[str, Any] = {
            "start": self.blob.array(np.diff(start, prepend=0)),
            "took": self.blob.array(end - start),
            "number": self.blob.array(np.diff(track.number[first], prepend=0)),
            "size": self.blob.array(size),
            "mix": self.blob.array(mix.reshape(-1)),
            "mixes": [[[c, t] for c, t in enumerate(row) if t] for row in mixes.tolist()],
            "text": self.blob.array(_numbered(track.number[first] if is_unit else track.origin[first], describe)),
            "place": self.blob.array(
                _numbered(track.origin[first], lambda o: self.places.number(self.program.where(track.name, o)))
            ),
        }
        if held is not None:
            buffer, at, size_of = held.table(int(track.number.max(initial=0)) + 1)
            out["buffer"] = self.blob.array(buffer[track.number[first]] + 1)
            out["at"] = self.blob.array(at[track.number[first]])
            out["elements"] = self.blob.array(size_of[track.number[first]])
        return out

    def _describe_uop(self, unit: str) -> Callable[[int], int]:
        """Make a function from the number of a unit's uOP to the number of its text."""
        kinds = self.expansion.sequences[unit].kinds
        known: dict[Hashable, int] = {}

        def text_of(uop: int) -> int:
            kind = int(kinds[uop]) if uop < len(kinds) else -1
            if kind not in known:
                text = "end" if kind < 0 else describe(unit, self.expansion.uops[kind], self.overlay)
                known[kind] = self.texts.number(text)
            return known[kind]

        return text_of

    def _describe_packet(self, process: str) -> Callable[[int], int]:
        """Make a function from a packet to the number of its text, for a decoder or the dispatcher."""
        overlay = self.overlay

        def text_of(packet: int) -> int:
            if not 0 <= packet < len(self.program.packets):
                return self.texts.number("")
            h = self.program.packets[packet].header
            if not h.opcode:
                return self.texts.number("empty packet")
            form = overlay.by_opcode[h.opcode]
            to = (
                "" if process != "dispatcher" else " → " + ", ".join(u.name for u in overlay.selected(h.opcode, h.mask))
            )
            what = "terminator" if h.last else f"{h.window} mOPs × {h.reuse}"
            return self.texts.number(f"packet {packet}: {form.name}{to}, {what}")

        return text_of

    # -- off-chip memory ------------------------------------------------------------------------------------------

    def _held(self, unit: str) -> _Accesses | None:
        """Return the off-chip accesses of a unit; None if it has none."""
        for bank, accesses in self.expansion.accesses.items():
            mine = [i for i, u in enumerate(accesses.units) if u.name == unit]
            if mine:
                rows = np.flatnonzero(accesses.unit == mine[0])
                about = accessed_buffers(self.program, bank, accesses)[rows]
                offsets = np.array([self.program.place(b).start for b in self.program.buffers] or [0], np.int64)
                at = accesses.start[rows] - np.where(about >= 0, offsets[about], 0)
                return _Accesses(accesses.uop[rows], accesses.store[rows], accesses.size[rows], about, at)
        return None

    def _buffer(self, number: int) -> list[Any]:
        """Return a buffer's name, and its width in blocks of 128x64, 0 if it is not blocked."""
        b = self.program.buffers[number]
        return [b.name, b.shape[1] // BLOCK_COLS if b.layout is Layout.BLOCKED and len(b.shape) == 2 else 0]


@dataclasses.dataclass(frozen=True, eq=False)
class _Accesses:
    """Off-chip accesses of one unit, an array element per access.

    uop: number of the uOP. store: direction. size: elements. buffer: number of the buffer, or -1. at: first element in
    the buffer, or in memory if there is no buffer.
    """

    uop: Ints
    store: npt.NDArray[np.bool_]
    size: Ints
    buffer: Ints
    at: Ints

    def table(self, count: int) -> tuple[Ints, Ints, Ints]:
        """Return buffer, first element and elements by uOP number, for numbers below `count`; -1, 0 and 0 if a uOP has
        no access."""
        table = np.array([[-1], [0], [0]]).repeat(count, axis=1)
        inside = self.uop < count
        table[:, self.uop[inside]] = self.buffer[inside], self.at[inside], self.size[inside]
        return table[0], table[1], table[2]


def _numbered(keys: Ints, number: Callable[[int], int]) -> Ints:
    """Apply `number` to each key, called once per distinct key."""
    distinct, which = np.unique(keys, return_inverse=True)
    return np.array([number(int(k)) for k in distinct], np.int64)[which] if len(keys) else keys


def covered(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return the seconds that spans cover between neighbouring edges: (edges - 1,). start, end: (spans,), seconds.
    edges: in seconds, at least two, evenly spaced. Spans may overlap, and then count several times.
    """
    n, origin = len(edges) - 1, edges[0]
    width = edges[1] - origin
    done = np.zeros(n + 1)
    for clocks, sign in ((start, 1.0), (end, -1.0)):
        # up to an edge, what began at a clock before it has lasted for edge - clock: a sum over all begun spans
        at = np.clip(np.floor((clocks - origin) / width).astype(np.int64), 0, n - 1)
        begun = np.cumsum(np.bincount(at, minlength=n))
        clock = np.cumsum(np.bincount(at, clocks - origin, minlength=n))
        done[1:] += sign * ((edges[1:] - origin) * begun - clock)
    return np.maximum(np.diff(done), 0.0)


def describe(unit: str, uop: Any, overlay: Overlay) -> str:
    """Describe a uOP of the unit of this name in a few words, `nothing` if no field is set. The address of an off-chip
    access is left out: the page looks it up. Raises `KeyError` for an unknown unit."""
    if title := overlay.title(uop):
        return title
    transfer = overlay.transfer(overlay.by_unit[unit], uop)
    words: list[str] = []
    skipped: set[str] = set()
    if transfer is not None:
        words.append("store" if transfer.store else "load")
        skipped = {"addr", "size", "store", "load"}
    if isinstance(uop, Record):
        for f in uop.FIELDS:
            value = getattr(uop, f.name)
            if not value or f.name in skipped:
                continue
            if f.source or f.to:
                words.append(f"{f.source or ''}→{f.to or ''}")
            else:
                words.append(f.name if f.flag else f"{f.name}={value:g}")
        return " ".join(words) or "nothing"
    fields = uop._asdict() if hasattr(uop, "_asdict") else {"": uop}
    for name, value in fields.items():
        if name in skipped or value is False or value is None:
            continue
        if name == "peer" and transfer is not None:
            words.append(f"{value}→" if transfer.store else f"→{value}")
        else:
            words.append(name if value is True else f"{name}={value}" if name else str(value))
    return " ".join(words) or "nothing"
