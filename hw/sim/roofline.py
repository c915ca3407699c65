"""The roofline of a program: achieved against attainable FLOP per second, from the overlay's rates and a recorded run.

A port is a unit that moves bytes off chip. Its loads and stores take turns, so its bandwidth ceiling is that of the
program's mix of both. The compute ceiling is the best rate that any op of the program reaches while it computes, times
the number of units of its kind: overlays state no peak, but the time of an op follows from their rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .explain import Explanation
from .machine import launch_seconds
from .timeline import Floats, Timeline


@dataclass(frozen=True)
class MemoryPort:
    """A unit that moves bytes off chip. rates: names of the rates that it uses. bytes: moved in the run. ceiling: bytes
    per second if it never waited."""

    name: str
    rates: tuple[str, ...]
    bytes: float
    ceiling: float


@dataclass(frozen=True)
class RooflinePoint:
    """The work of the whole program or of one segment: what happened in its window of `seconds`. flops: floating-point
    operations. bytes: by port.
    """

    name: str
    seconds: float
    flops: float
    bytes: dict[str, float]

    @property
    def speed(self) -> float:
        """Achieved FLOP per second; 0 for a window without time."""
        return self.flops / self.seconds if self.seconds else 0.0

    def intensity(self, port: str) -> float:
        """Return FLOP per byte through a port; infinite if it moved no bytes. port: its name. Raises `KeyError` if
        there is no such port.
        """
        return self.flops / self.bytes[port] if self.bytes[port] else float("inf")


@dataclass(frozen=True)
class Roofline:
    """The roofline of a program.

    peak: FLOP per second of all `units` computing units together. best: the op with the highest rate, which is the
    peak's source. mix: FLOP per second of the program's own ops on all units if they never waited, set-up included.
    whole, segments: the points.
    """

    peak: float
    mix: float
    units: int
    best: str
    ports: tuple[MemoryPort, ...]
    whole: RooflinePoint
    segments: tuple[RooflinePoint, ...]

    def attainable(self, point: RooflinePoint) -> tuple[float, str]:
        """Return the FLOP per second that a point could reach, and its limit: the name of a port, or "compute"."""
        limits = {p.name: p.ceiling * point.intensity(p.name) for p in self.ports}
        lowest = min(limits, key=lambda name: limits[name], default="")
        return (limits[lowest], lowest) if lowest and limits[lowest] < self.peak else (self.peak, "compute")


def roofline(timeline: Timeline, explanation: Explanation) -> Roofline | None:
    """Compute the roofline of a run; None if the program does no operations that the overlay counts as FLOP.
    explanation: of the same run.
    """
    machine = timeline.machine
    overlay = machine.program.overlay
    launch = launch_seconds(overlay)
    edges = [0.0, *(s.end - launch for s in explanation.segments)]
    spread = np.zeros(len(edges) - 1)
    flops = peak = alone = 0.0
    best, kinds = "", set()
    for track in timeline.tracks:
        ops = machine.program.preloaded.get(track.name, ())
        held = overlay.op_list(track.name)
        if held is None or not ops:
            continue
        each = np.array([0.0 if held.repeated(op) else float(overlay.flops(op)) for op in ops])[held.order(ops)]
        if not each.any():
            continue
        kind = overlay.by_unit[track.name].kind
        kinds.add(kind)
        flops += float(each.sum())
        alone += float(track.busy.sum())
        count = len(overlay.by_kind[kind])
        each = np.r_[each, 0.0][np.minimum(track.number, len(each))]
        computing = track.parts[np.arange(len(track.number)), track.cause]
        speed = np.divide(each, computing, out=np.zeros(len(each)), where=computing > 0) * count
        if speed.max(initial=0.0) > peak:
            peak = float(speed.max())
            best = f"{track.name} op {track.number[speed.argmax()]}"
        spread += _spread(timeline, track.name, each, computing, np.asarray(edges))
    if not peak or not alone:
        return None
    ports = _ports(timeline)
    moved = {p.name: _moved(timeline, p, np.asarray(edges)) for p in ports}
    units = sum(len(overlay.by_kind[k]) for k in kinds)
    return Roofline(
        peak=peak,
        mix=flops / alone * units,
        units=units,
        best=best,
        ports=tuple(ports),
        whole=RooflinePoint("whole program", explanation.latency_s, flops, {p.name: p.bytes for p in ports}),
        segments=tuple(
            RooflinePoint(s.name, s.end - s.start, float(spread[i]), {p.name: float(moved[p.name][i]) for p in ports})
            for i, s in enumerate(explanation.segments)
        ),
    )


def _spread(timeline: Timeline, unit: str, flops: Floats, computing: Floats, edges: Floats) -> Floats:
    """Return a unit's floating-point operations between neighbouring edges, spread over the time that each op computes.

    flops, computing: operations and computing seconds of each op. edges: in seconds.
    """
    if len(edges) < 2:
        return np.zeros(0)
    rows = np.flatnonzero(timeline.unit == timeline.machine.plan.processes.index(unit))
    rows = rows[~timeline.fetches[rows]]
    track = next(t for t in timeline.tracks if t.name == unit)
    op = np.searchsorted(track.number, timeline.number[rows])
    counts = timeline.cause[rows] == track.cause[op]
    rows, op = rows[counts], op[counts]
    rate = np.divide(flops, computing, out=np.zeros(len(flops)), where=computing > 0)
    took = timeline.took[rows]
    return timeline.binned(timeline.start[rows], timeline.start[rows] + took, took * rate[op], edges)


def _ports(timeline: Timeline) -> list[MemoryPort]:
    """Find the units that move bytes off chip."""
    machine = timeline.machine
    overlay = machine.program.overlay
    moves = {t.rate: timeline.rates.index(t.rate) for t in timeline.transfers if len(t.bytes)}
    rate_of_step, amount_of_step = timeline.rate_of_step, timeline.amount_of_step
    out = []
    for spec in overlay.units:
        step = timeline.step[timeline.unit == machine.plan.processes.index(spec.name)]
        moved = {n: float(amount_of_step[step[rate_of_step[step] == i]].sum()) for n, i in moves.items()}
        moved = {n: b for n, b in moved.items() if b}
        if moved:
            seconds = sum(b * overlay.seconds[n] for n, b in moved.items())
            out.append(MemoryPort(spec.name, tuple(moved), sum(moved.values()), sum(moved.values()) / seconds))
    return out


def _moved(timeline: Timeline, port: MemoryPort, edges: Floats) -> Floats:
    """Return the bytes that a port moves between neighbouring edges, in seconds."""
    if len(edges) < 2:
        return np.zeros(0)
    rates = [timeline.rates.index(r) for r in port.rates]
    own = timeline.unit == timeline.machine.plan.processes.index(port.name)
    rows = np.flatnonzero(own & np.isin(timeline.rate_of_step[timeline.step], rates))
    amounts = timeline.amount_of_step[timeline.step[rows]]
    return timeline.binned(timeline.start[rows], timeline.end[rows], amounts, edges)
