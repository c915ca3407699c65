"""Machines of a few units for tests of the executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rsn.isa.overlay import InstructionFormat, OpList, Overlay
from rsn.machine.description import Rate, Stream, UnitSpec

CLOCK_HZ = 260e6


def toy_overlay(
    units: Iterable[UnitSpec],
    streams: Iterable[Stream],
    *,
    name: str = "toy",
    formats: Iterable[InstructionFormat] = (),
    rates: Mapping[str, Rate] | None = None,
    preloaded: Mapping[str, OpList] | None = None,
    **more: Any,
) -> Overlay:
    """An overlay for tests. Unless `rates` is given, its only rate is `us`: a step's amount is in microseconds."""
    formats = tuple(formats)
    return Overlay(
        name=name,
        units=tuple(units),
        streams=tuple(streams),
        clock_hz=CLOCK_HZ,
        rates={"us": Rate(1, "us", "a test", "work")} if rates is None else rates,
        formats=formats,
        terminators=tuple(f.name for f in formats if not f.config),
        preloaded=preloaded or {},
        **more,
    )
