"""The part of `explain` that says how far each segment is from the best possible time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..scheduler.bounds import ProgramBound

MAX_ROWS = 16
"""Number of segments above which those whose names differ only in numbers share a row."""
NAME = 34
"""Largest width of a name."""


@dataclass
class _Row:
    """One segment, or several with similar names. seconds: bounds by resource. bound_s: the largest of each, added."""

    name: str
    count: int = 0
    modelled: float = 0.0
    bound_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, modelled: float, bound_s: float, seconds: Mapping[str, float]) -> None:
        """Add a segment."""
        self.count += 1
        self.modelled += modelled
        self.bound_s += bound_s
        for resource, bound in seconds.items():
            self.seconds[resource] = self.seconds.get(resource, 0.0) + bound


def bound_table(bound: ProgramBound, segments: Mapping[str, float], latency_s: float) -> list[str]:
    """Return the bounds and the modelled time of each segment as lines of text, and how far the program is from the
    best possible.

    bound: lower bounds of the times. segments: modelled seconds of each segment, by name. latency_s: modelled seconds
    of the program, launch included. No lines if the machine has no bounds.
    """
    if not bound.bound_s:
        return []
    second, unit = (1e3, "ms") if latency_s >= 1e-3 else (1e6, "us")
    total = _Row("total", 1, latency_s, bound.bound_s, bound.seconds)
    cells = [["segment", "", f"modelled {unit}", "x bound", *bound.seconds]]
    for row in (*_rows(bound, segments), total):
        binding = max(row.seconds.values(), default=0.0)
        times = [row.seconds.get(resource, 0.0) for resource in bound.seconds]
        marked = [f"{'*' * (s == binding)}{s * second:.3f}" if s else "-" for s in times]
        name = row.name if len(row.name) <= NAME else f"{row.name[: NAME - 3]}..."
        ratio = f"{row.modelled / row.bound_s:.2f}" if row.bound_s else "-"
        cells.append([name, f"x{row.count}" * (row.count > 1), f"{row.modelled * second:.3f}", ratio, *marked])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(line[1:], widths[1:], strict=True) if w)])
        for line in cells
    ]
    fitted = [f"calibrated rates in them: {', '.join(bound.calibrated)}"] if bound.calibrated else []
    best = f"{bound.bound_s * second:.3f} {unit}, the bound by {bound.binding}"
    return [
        f"how far from the best possible: {latency_s / bound.bound_s:.2f} times {best}",
        *lines,
        f"bounds in {unit}, the largest with *: a resource's time for products, for post-operations, or to move each",
        "weight, operand and result of a segment once; without padding, set-up, launch and waiting.",
        "Segments overlap: one that began in the time of the segment before can take less than its bound",
        *fitted,
    ]


def _rows(bound: ProgramBound, segments: Mapping[str, float]) -> Sequence[_Row]:
    """The rows of the table, in execution order."""
    together = len(bound.segments) > MAX_ROWS
    rows: dict[str, _Row] = {}
    for s in bound.segments:
        key = re.sub(r"\d+", "*", s.name) if together else s.name
        rows.setdefault(key, _Row(key)).add(segments.get(s.name, 0.0), s.bound_s, s.seconds)
    return [*rows.values()]
