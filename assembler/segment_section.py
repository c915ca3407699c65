"""The section of a `.bin` that says what the segments of a program are. It is left out where they are not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import construct as c
import numpy as np

from ..isa.program import Program, ProgramSegment

_TEXT = c.PascalString(c.Int16ul, "utf8")
_TEXTS = c.PrefixedArray(c.Int16ul, _TEXT)

SEGMENTS = c.Struct(
    "segments"
    / c.PrefixedArray(c.Int32ul, c.Struct("name" / _TEXT, "kind" / _TEXT, "layers" / _TEXTS, "outputs" / _TEXTS)),
    "uops"
    / c.PrefixedArray(
        c.Int16ul,
        # three numbers for each range: segment, first uOP, one past the last uOP
        c.Struct("unit" / _TEXT, "ranges" / c.Prefixed(c.Int32ul, c.GreedyBytes)),
    ),
)
"""The format of the section. Ranges of a unit are sorted by segment."""


def encoded(program: Program) -> bytes:
    """Return the bytes of the section with a program's segments, in the format `SEGMENTS`. Raises `OverflowError` or
    `ConstructError` for numbers and texts that are too large for it."""
    rows = [{x: getattr(s, x) for x in ("name", "kind", "layers", "outputs")} for s in program.segments]
    uops = []
    for unit in program.overlay.units:
        ranges = [(i, *pair) for i, s in enumerate(program.segments) for pair in s.uops.get(unit.name, ())]
        if ranges:
            uops.append({"unit": unit.name, "ranges": np.array(ranges, "<u4").tobytes()})
    return bytes(SEGMENTS.build({"segments": rows, "uops": uops}))


def decoded(parsed: Any) -> tuple[ProgramSegment, ...]:
    """Return the segments of a parsed section. parsed: what `SEGMENTS` makes of its bytes. Raises `ValueError`, with
    the reason, if the ranges are cut short, or if one is of a segment that does not exist.
    """
    uops: list[dict[str, tuple[tuple[int, int], ...]]] = [{} for _ in parsed.segments]
    for row in parsed.uops:
        if len(row.ranges) % 12:
            raise ValueError(f"{len(row.ranges)} bytes of {row.unit} are not a whole number of ranges")
        for segment, first, end in np.frombuffer(row.ranges, "<u4").reshape(-1, 3).tolist():
            if segment >= len(uops):
                raise ValueError(f"{row.unit} refers to segment {segment}, but there are {len(uops)}")
            uops[segment][row.unit] = (*uops[segment].get(row.unit, ()), (first, end))
    return tuple(
        ProgramSegment(row.name, tuple(row.layers), row.kind, tuple(row.outputs), of)
        for row, of in zip(parsed.segments, uops, strict=True)
    )


def segment_faults(program: Program) -> Iterator[str]:
    """Yield, as sentences, the reasons why the segments of a program cannot be right."""
    buffers = {b.name for b in program.buffers}
    times = Counter(s.name for s in program.segments)
    yield from (f"segment {name} is declared twice" for name, n in times.items() if n > 1)
    for s in program.segments:
        yield from (f"segment {s.name} fills {name}, which is no buffer" for name in s.outputs if name not in buffers)
        for unit, ranges in s.uops.items():
            if unit not in program.overlay.by_unit:
                yield f"segment {s.name} has uOPs of {unit}, which is no unit of {program.overlay.name}"
            edges = [0, *(edge for pair in ranges for edge in pair)]
            if any(first >= end for first, end in ranges) or any(a > b for a, b in pairwise(edges)):
                yield f"segment {s.name}: its uOPs of {unit} are not ranges in ascending order"
