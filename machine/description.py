"""A machine as data: functional units, the streams between them, rates, memories (paper sections 3.1 and 4).

The tools know a machine only through these classes. What programs it, its instructions, is the overlay's
(`rsn.isa.overlay`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

from ..base.errors import ProgramError
from .token_type import ELEMENT, TokenType

if TYPE_CHECKING:
    from .unit import Unit

FREE = "free"
"""The rate of a step that takes no time."""


@dataclass(frozen=True)
class Rate:
    """What one step costs. `value` is in `unit`: "GB/s", "us", or "PL cycles".

    cause: the heading under which the critical path counts it. calibrated: the value was chosen to match published
    latencies; the paper or the structure does not give it.
    """

    value: float
    unit: str
    source: str
    cause: str
    calibrated: bool = False

    def seconds(self, clock_hz: float) -> float:
        """Seconds per amount (a byte, a tile, a cycle). clock_hz: of the programmable logic. Raises `ProgramError` for
        an unknown unit."""
        match self.unit:
            case "GB/s":
                return 1.0 / (self.value * 1e9)
            case "us":
                return self.value * 1e-6
            case "PL cycles":
                return self.value / clock_hz
            case _:
                raise ProgramError(f"unknown unit {self.unit!r}")


@dataclass(frozen=True)
class UnitSpec:
    """One functional unit.

    name: e.g. `MemA1`. kind: its FU type, e.g. `MemA`. index: its bit in a packet's mask. behaviour: the class that
    holds its kernel. bank: the off-chip memory that it reads and writes.
    """

    name: str
    kind: str
    index: int
    behaviour: type[Unit]
    bank: str | None = None


@dataclass(frozen=True)
class Stream:
    """A bounded FIFO from one unit to another. depth: in words of the stream. token: what a word is."""

    src: str
    dst: str
    depth: int
    label: str = ""
    token: TokenType = ELEMENT

    @property
    def name(self) -> str:
        return f"{self.src}->{self.dst}" + (f".{self.label}" if self.label else "")


MAX_DEPTH = 1 << 24
"""Words of a stream."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Machine:
    """A network of functional units.

    rates: what steps cost, by name. banks: off-chip memories and their size in bytes. clock_hz: of the programmable
    logic.
    """

    name: str
    units: tuple[UnitSpec, ...]
    streams: tuple[Stream, ...]
    clock_hz: float
    rates: Mapping[str, Rate] = field(default_factory=dict)
    banks: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def by_unit(self) -> dict[str, UnitSpec]:
        """Units by name."""
        return {u.name: u for u in self.units}

    @cached_property
    def by_kind(self) -> dict[str, tuple[UnitSpec, ...]]:
        """Units by FU type, in the order of the machine."""
        out: dict[str, tuple[UnitSpec, ...]] = {}
        for u in self.units:
            out[u.kind] = (*out.get(u.kind, ()), u)
        return out

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds per amount of every rate, by name."""
        return {name: rate.seconds(self.clock_hz) for name, rate in self.rates.items()}

    @cached_property
    def step_seconds(self) -> dict[str, float]:
        """Seconds per amount of every rate that a step may name: the machine's, and `FREE`."""
        return {FREE: 0.0} | self.seconds

    def with_rates(self, /, **values: float) -> Self:
        """A copy with some rates replaced, e.g. ddr_read_gbs=42.

        An infinite bandwidth and a step that takes no time are allowed: bounds are found with them. Raises
        `ProgramError` for unknown names and for what no machine can have.
        """
        rates = dict(self.rates)
        for name, value in values.items():
            if name not in rates:
                raise ProgramError(f"overlay {self.name} has no parameter {name!r}; it has {', '.join(rates)}")
            rates[name] = dataclasses.replace(rates[name], value=value)
            self._require_physical(name, rates[name])
        return dataclasses.replace(self, rates=rates)

    def with_depths(self, depths: Mapping[str, float]) -> Self:
        """A copy with some streams of other depths, in words, by name, e.g. "MeshA->MME0". Raises `ProgramError`."""
        unknown = set(depths) - {s.name for s in self.streams}
        if unknown:
            raise ProgramError(f"overlay {self.name} has no stream {sorted(unknown)[0]!r}")
        checked = {name: checked_depth(name, depth) for name, depth in depths.items()}
        streams = tuple(dataclasses.replace(s, depth=checked.get(s.name, s.depth)) for s in self.streams)
        return dataclasses.replace(self, streams=streams)

    def _require_physical(self, name: str, rate: Rate) -> None:
        try:
            possible = rate.value >= 0 and 0 <= rate.seconds(self.clock_hz) < math.inf
        except (ZeroDivisionError, OverflowError):
            possible = False
        if possible:
            return
        if rate.unit == "GB/s":
            raise ProgramError(f"{name}={rate.value}: a bandwidth is greater than 0 {rate.unit} (inf: without bound)")
        raise ProgramError(f"{name}={rate.value}: a time is 0 {rate.unit} or more, and finite")


def checked_depth(name: str, value: float) -> int:
    """`value` as the depth of a FIFO. Raises `ProgramError` if it is not a whole number from 1 to `MAX_DEPTH`."""
    if value != value or value != int(min(max(value, -1), MAX_DEPTH + 1)) or not 1 <= value <= MAX_DEPTH:
        raise ProgramError(f"{name}={value}: a depth is a whole number from 1 to {MAX_DEPTH}")
    return int(value)
