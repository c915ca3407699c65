"""Write a run as one HTML page without external files: timeline, critical path, utilization, roofline, program size,
rates.

A reader can check everything on the page: every picture has a table of its numbers, every number has a unit, and each
cell holds the exact value (`<data value=...>`). Only the timeline needs JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from ...base.durations import unit_of
from ...base.files import replacing
from ...isa.overlay import Overlay
from ...isa.overlays import OVERLAYS
from ...isa.statistics import count
from ...machine.description import Rate
from ...machine.executor import unit_processes
from .explain import Explanation, SegmentTime, causes_of, explain
from .machine import Machine, launch_seconds
from .roofline import Roofline, RooflinePoint, roofline
from .scene import scene
from .timeline import Timeline, Track

HUES = 10
"""Number of colours in `report.css` for causes; the instruction path and the launch have their own colours."""
MAX_SEGMENTS = 12
"""Number of segments above which those whose names differ only in numbers share a row."""
MAX_LINES = 200
"""Limit of source lines in the table."""


def write_report(machine: Machine, path: str | os.PathLike[str], *, title: str) -> None:
    """Write the page of a program's run. title: name of the program. Raises as `Machine.timing`, or `OSError` with
    `path`, the latter before the program runs."""
    with replacing(path) as temporary:
        temporary.write_text(page(machine, title), encoding="utf-8")


def page(machine: Machine, title: str) -> str:
    """Return the HTML page of a program's run. title: name of the program. Raises as `Machine.timing`."""
    overlay = machine.program.overlay
    explanation = explain(machine)
    timeline = Timeline(machine)
    slots = colours(overlay, timeline.causes)
    css, js = _resource("report.css"), _resource("report.js")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False
    )
    unit, scale = _clock(explanation.latency_s)

    environment.filters |= {
        "t": lambda seconds: _number(seconds, f"{seconds * scale:,.3f}"),
        "clock": lambda seconds: f"{seconds * scale:,.3f} {unit}",
        "pct": lambda share: f"{100 * share:.1f} %",
        "mb": _megabytes,
        "n": _whole,
        "num": lambda value, digits: _number(value, f"{value:,.{digits}f}"),
    }
    facts = _Facts(machine, explanation, timeline, slots)
    return environment.get_template("report.html.j2").render(
        title=title,
        unit=unit,
        parts=_bar,
        css=Markup(css),
        css_hash=Markup(_hash(css)),
        js=Markup(js),
        js_hash=Markup(_hash(js)),
        scene=Markup(scene(timeline, explanation, slots)),
        **facts.all(),
    )


def colours(overlay: Overlay, causes: Sequence[str]) -> dict[str, str]:
    """Return the colour of each cause, as a class of `report.css`. causes: all causes of the overlay, in its order, so
    that all of its programs have the same colours."""
    rates = overlay.rates
    fixed = {"control": "issue"}
    fixed |= {rates[name].cause: "issue" for name in ("dispatch", "decode") if name in rates}
    fixed |= {rates[name].cause: "launch" for name in ("launch_us",) if name in rates}
    others = [c for c in causes if c not in fixed]
    return {c: fixed[c] if c in fixed else f"p{others.index(c) % HUES}" for c in causes}


@dataclass(frozen=True)
class BarPiece:
    """A piece of a bar or an entry of a legend.

    slot: colour, as a class of `report.css`. at, share: start and length as shares of the whole bar; a legend entry may
    have no share. seconds: the amount that the piece stands for.
    """

    name: str
    slot: str
    share: float | None
    at: float = 0.0
    seconds: float = 0.0


def _bar(pieces: Sequence[tuple[str, str, float]], whole: float) -> list[BarPiece]:
    """Put pieces (name, colour, amount) side by side in a bar. whole: the amount of a full bar."""
    out, at = [], 0.0
    for name, slot, amount in pieces:
        share = amount / whole if whole else 0.0
        out.append(BarPiece(name, slot, share, at, amount))
        at += share
    return out


@dataclass(frozen=True, eq=False)
class _Facts:
    """Computes the values that the template shows. slots: colour by cause."""

    machine: Machine
    explanation: Explanation
    timeline: Timeline
    slots: Mapping[str, str]

    @property
    def overlay(self) -> Overlay:
        """The program's overlay."""
        return self.machine.program.overlay

    @property
    def latency(self) -> float:
        """Seconds of the run, launch included."""
        return self.explanation.latency_s

    def all(self) -> dict[str, Any]:
        """Return all values by their names in the template."""
        explanation = self.explanation
        roof = roofline(self.timeline, explanation)
        units = self._units()
        grouped = len(explanation.segments) > MAX_SEGMENTS
        path = _bar([(c, self.slots[c], s) for c, s in explanation.causes.items()], self.latency)
        worked = {u["name"] for u in units if u["busy"] > 0}
        sizes = count(self.machine.program)
        kinds = [k for k in sizes["uops"] if k != "total"]
        listed = [k for k in kinds if k in self.overlay.preloaded]
        return {
            "overlay": self.overlay,
            "run": self.machine.run(),
            "latency": self.latency or 1.0,
            "explanation": explanation,
            "slots": self.slots,
            "rates": self._rates(),
            "fitted_share": self._fitted_share(),
            "causes_legend": self._causes_legend(),
            "path_parts": path,
            "recorded": bool(self.machine.program.segments),
            "grouped": grouped,
            "groups": self._groups(grouped),
            "lines": explanation.lines[:MAX_LINES],
            "units": units,
            "unused": [u.name for u in self.overlay.units if u.name not in worked],
            "states": [BarPiece(name, slot, None) for slot, name in STATES.items()],
            "roof": roof,
            "panels": _panels(roof),
            "sizes": sizes,
            "listed": listed,
            "kinds": [*(k for k in kinds if k not in listed), "total", *listed],
            "widest": max((sizes[key].get(k, 0) for key in ("bytes", "uop_bytes") for k in kinds), default=0),
        }

    def _causes_legend(self) -> list[BarPiece]:
        """Return legend entries for the causes that any unit spent time on."""
        causes = self.timeline.causes
        spent = sum((track.parts.sum(axis=0) for track in self.timeline.tracks), np.zeros(len(causes)))
        shown = [c for c, s in zip(causes, spent.tolist(), strict=True) if s > 0 or c in self.explanation.causes]
        return [BarPiece(c, self.slots[c], None) for c in shown]

    # -- critical path --------------------------------------------------------------------------------------------

    def _groups(self, grouped: bool) -> list[tuple[str, int, float, list[tuple[str, str, float]], str]]:
        """Return the rows of the table of segments: name, number of segments, seconds, causes as pieces of a bar, and
        the largest causes. grouped: whether segments whose names differ only in numbers share a row."""
        found: dict[str, list[SegmentTime]] = {}
        for i, s in enumerate(self.explanation.segments):
            # names may repeat: without grouping every segment is a row
            found.setdefault(re.sub(r"\d+", "*", s.name) if grouped else str(i), []).append(s)
        rows = []
        for key, group in found.items():
            total = causes_of(group)
            seconds = sum(s.end - s.start for s in group)
            most = [f"{c} {100 * x / seconds:.0f} %" for c, x in [*total.items()][:3] if seconds]
            pieces = [(c, self.slots[c], total[c]) for c in self.explanation.causes if c in total]
            rows.append((key if grouped else group[0].name, len(group), seconds, pieces, ", ".join(most)))
        return rows

    # -- units ----------------------------------------------------------------------------------------------------

    def _units(self) -> list[dict[str, Any]]:
        """Return the rows of the table of units: seconds of the run in each state, and the pieces of a bar."""
        timeline = self.timeline
        launch = launch_seconds(self.overlay)
        tracks = {t.name: t for t in timeline.tracks}
        processes = timeline.machine.plan.processes
        ends = np.zeros(len(processes))
        np.maximum.at(ends, timeline.unit, timeline.end)
        of_unit = unit_processes(self.overlay)
        end_of: dict[str, float] = {}
        for process, end in zip(processes, ends.tolist(), strict=True):
            end_of[of_unit.get(process, process)] = max(end, end_of.get(of_unit.get(process, process), 0.0))
        out = []
        for name, u in self.explanation.units.items():
            whole = self.latency or 1.0
            ended = max(self.latency - launch - end_of[name], 0.0)
            waits = {"empty": u.empty, "full": u.full, "wait": u.instructions}
            added = sum(waits.values())
            rest = max(self.latency - launch - u.busy - ended, 0.0)
            fits = rest / added if added else 0.0
            pieces = [("launch", "launch", launch)] if launch else []
            pieces += self._busy([tracks[p] for p, unit in of_unit.items() if unit == name and p in tracks], u.busy)
            pieces += [(STATES[slot], slot, seconds * fits) for slot, seconds in waits.items()]
            pieces.append((STATES["ended"], "ended", ended))
            sideways = abs(added - rest) > 1e-6 * whole
            out.append(vars(u) | {"name": name, "bar": _bar(pieces, whole), "ended": ended, "sideways": sideways})
        return out

    def _busy(self, tracks: Sequence[Track], busy: float) -> list[tuple[str, str, float]]:
        """Return a unit's busy time by cause, as pieces of a bar, scaled so that lanes and halves that run side by side
        add up to `busy` seconds. tracks: of the unit's processes."""
        total = sum(track.busy.sum() for track in tracks)
        if not total:
            return []
        parts = sum(track.parts.sum(axis=0) for track in tracks) * (busy / total)
        return [
            (c, self.slots[c], float(s)) for c, s in zip(self.timeline.causes, parts.tolist(), strict=True) if s > 0
        ]

    # -- program and rates ----------------------------------------------------------------------------------------

    def _rates(self) -> list[dict[str, Any]]:
        known = OVERLAYS.get(self.overlay.base or self.overlay.name)
        same = known is not None and known.fingerprint == self.overlay.fingerprint
        own = known.rates if known is not None and same else self.overlay.rates
        amounts = self.machine.timing.amounts
        out = []
        for name, rate in self.overlay.rates.items():
            original = own.get(name, rate).value
            kind = "changed" if rate.value != original else "fitted" if rate.calibrated else "given"
            charged = self.overlay.seconds[name] * (1.0 if name == "launch_us" else amounts.get(name, 0.0))
            out.append(
                vars(rate)
                | {"name": name, "kind": kind, "own": original, "charged": charged, "slot": self.slots[rate.cause]}
            )
        return out

    def _fitted_share(self) -> float:
        """Return the share of the critical path that counts under fitted rates."""
        if not self.latency:
            return 0.0
        chain = self.machine.timing.critical_path
        rates: list[Rate | None] = [self.overlay.rates.get(name) for name in self.overlay.step_seconds]
        fitted = np.array([rate is not None and rate.calibrated for rate in rates])
        share = float(chain.seconds[fitted[chain.rate]].sum()) if len(chain.rate) else 0.0
        launch = self.overlay.rates.get("launch_us")
        return (share + (self.overlay.seconds["launch_us"] if launch and launch.calibrated else 0.0)) / self.latency


STATES = {
    "launch": "launch",
    "empty": "waits: a stream is empty",
    "full": "waits: a stream is full",
    "wait": "waits for instructions",
    "ended": "has ended",
}
"""States of a unit that is not busy, by colour."""


# -- roofline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """A point of a roofline's picture. x, y, r: its centre and its radius, in pixels of its panel. whole: it stands for
    the whole program, not for one segment. title: what a reader sees who points at it. text: its label, "" for none.
    tx, ty, anchor: where the label is, in pixels, and which end of it is there, as SVG's text-anchor."""

    x: float
    y: float
    r: float
    whole: bool
    title: str
    text: str = ""
    tx: float = 0.0
    ty: float = 0.0
    anchor: str = "start"


PLOT: dict[str, float] = {"left": 50.0, "right": 556.0, "top": 18.0, "bottom": 250.0, "width": 560, "height": 290}
"""The edges of a panel's plot and the panel's size, in pixels."""


def _panels(roof: Roofline | None) -> list[dict[str, Any]]:
    """Return the template's values for one panel per port; all panels have the same scale of FLOP per second."""
    if roof is None:
        return []
    points = [p for p in (*roof.segments, roof.whole) if p.flops]
    low = min([p.speed for p in points] + [roof.mix]) / 1e9 / 1.6
    high = roof.peak / 1e9 * 1.35
    return [_panel(roof, port.name, port.ceiling, points, low, high) for port in roof.ports]


def _panel(
    roof: Roofline, port: str, ceiling: float, points: Sequence[RooflinePoint], low: float, high: float
) -> dict[str, Any]:
    """Return the template's values for the panel of one port.

    ceiling: the port's bytes per second. points: the segments and the program. low, high: scale in GFLOP per second.
    """
    left, right, top, bottom = (PLOT[edge] for edge in ("left", "right", "top", "bottom"))
    inside = [p for p in points if p.bytes[port]]
    ridge = roof.peak / ceiling
    across = [p.intensity(port) for p in inside] + [ridge]
    first, last = min(across) / 2, max(across) * 2

    def x(value: float) -> float:
        return round(left + (right - left) * math.log(value / first) / math.log(last / first), 1)

    def y(gflops: float) -> float:
        return round(bottom - (bottom - top) * math.log(gflops / low) / math.log(high / low), 1)

    def roofed(limit: float) -> str:
        """Return a roof's polyline: the slope from where it enters the panel up to `limit`, in FLOP per second, then
        level."""
        start = max(first, low * 1e9 / ceiling)
        bend = limit / ceiling
        corners = [(start, start * ceiling), (bend, limit), (last, limit)]
        return " ".join(f"{x(a)},{y(b / 1e9)}" for a, b in corners)

    few = len(roof.segments) <= MAX_SEGMENTS
    marks: list[Mark] = []
    taken = [(x(p.intensity(port)) - 5, y(p.speed / 1e9) - 5, 10.0, 10.0) for p in inside]
    for p in inside:
        at = x(p.intensity(port)), y(p.speed / 1e9)
        attainable = min(roof.peak, ceiling * p.intensity(port))
        title = f"{p.name}: {p.speed / 1e9:,.0f} GFLOP/s at {p.intensity(port):,.1f} FLOP/B, "
        title += f"{100 * p.speed / attainable:.0f} % of what this port allows"
        text = p.name if p is roof.whole else str(roof.segments.index(p) + 1) if few else ""
        tx, ty, anchor = _place(at, text, taken, right) if text else (0.0, 0.0, "start")
        marks.append(Mark(*at, 5.0 if few else 3.0, p is roof.whole, title, text, tx, ty, anchor))
    whole = roof.whole
    drop = None
    if whole.bytes[port]:
        limit = min(roof.peak, ceiling * whole.intensity(port))
        drop = (x(whole.intensity(port)), y(whole.speed / 1e9), y(limit / 1e9))
    return {
        **PLOT,
        "port": port,
        "ceiling": ceiling,
        "x_ticks": [(x(v), f"{v:,g}") for v in _ticks(first, last)],
        "y_ticks": [(y(v), f"{v:,g}") for v in _ticks(low, high)],
        "roof": roofed(roof.peak),
        "mix": roofed(roof.mix),
        "drop": drop,
        "marks": marks,
    }


Box = tuple[float, float, float, float]
"""x, y, width and height."""


def _place(at: tuple[float, float], text: str, taken: list[Box], right: float) -> tuple[float, float, str]:
    """Return position and anchor of a label beside its point where it overlaps points and other labels least.

    taken: boxes of points and labels; that of the new label is added. right: edge of the panel.
    """
    wide, high = 6.6 * len(text), 11.0
    x, y = at
    best: tuple[float, float, float, str, Box] | None = None
    for dx, dy, anchor in (
        (9, 4, "start"), (-9, 4, "end"), (0, -10, "middle"), (0, 19, "middle"),
        (8, -7, "start"), (8, 15, "start"), (-8, -7, "end"), (-8, 15, "end"), (0, 32, "middle"), (0, -23, "middle"),
    ):  # fmt: skip
        box_x = x + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        box = (box_x, y + dy - high + 1, wide, high)
        over = sum(_overlap(box, other) for other in taken) + max(0.0, box_x + wide - right) * high
        if best is None or over < best[0]:
            best = (over, x + dx, y + dy, anchor, box)
    assert best is not None
    taken.append(best[4])
    return round(best[1], 1), round(best[2], 1), best[3]


def _overlap(a: Box, b: Box) -> float:
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    return max(wide, 0.0) * max(high, 0.0)


def _ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: 1, 2 and 5 times powers of ten; finer within less than a decade, coarser
    over many."""
    decades = math.log10(high / low)
    steps = (1, 2, 3, 4, 5, 6, 8) if decades < 0.8 else (1, 2, 5) if decades < 4 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [s * 10.0**e for e in exponents for s in steps if low <= s * 10.0**e <= high]


# -- text -------------------------------------------------------------------------------------------------------------


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Hash a script or style for the page's content security policy, which then allows exactly this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _clock(latency: float) -> tuple[str, float]:
    """Choose the unit of time of a page, and return it with its number per second."""
    name, factor = unit_of(latency)
    return name.replace("u", "µ"), factor


def _number(value: float, text: str) -> Markup:
    return Markup('<data value="{}">{}</data>').format(repr(float(value)), text)


def _whole(value: int) -> Markup:
    return Markup('<data value="{}">{}</data>').format(int(value), f"{value:,}")


def _megabytes(size: int) -> Markup:
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= one:
            return Markup('<data value="{}">{}</data> <small>{}</small>').format(size, f"{size / one:,.2f}", unit)
    return Markup('<data value="{}">{}</data> <small>B</small>').format(size, f"{size:,}")
