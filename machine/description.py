"""A machine as data: functional units, the streams between them, rates, memories (paper sections 3.1 and 4).

The tools know a machine only through these classes. Its instructions are described by the overlay (`rsn.isa.overlay`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Self

from ..base.errors import ProgramError
from .token_type import ELEMENT, TokenType

if TYPE_CHECKING:
    from .unit import Unit


FREE = "free"
"""The rate of a step that takes no time."""
LINK = "link_gbs"
"""The rate of the link between boards. No step of a program has it."""


@dataclass(frozen=True)
class Rate:
    """The cost of one step of a kernel.

    value: in `unit`, which is "GB/s", "us" or "PL cycles". source: where the value comes from, as text. cause: the
    heading under which the critical path counts the step. calibrated: the value was chosen to match published
    latencies; neither the paper nor the structure gives it.
    """

    value: float
    unit: str
    source: str
    cause: str
    calibrated: bool = False

    def seconds(self, clock_hz: float) -> float:
        """Return the seconds per amount: per byte of a bandwidth, per cycle of a number of cycles, per step of a time.
        clock_hz: clock of the programmable logic. Raises `ProgramError` if `unit` is unknown.
        """
        match self.unit:
            case "GB/s":
                return 1.0 / (self.value * 1e9)
            case "us":
                return self.value * 1e-6
            case "PL cycles":
                return self.value / clock_hz
            case _:
                raise ProgramError(f"unknown unit {self.unit!r} of a rate; known are GB/s, us and PL cycles")


@dataclass(frozen=True)
class Memory:
    """The on-chip memory of a unit: `slots` buffers of rows x columns float32 elements.

    An operation fills one slot and drains another; the next operation fills and drains the slots behind these, around
    the ring. So two slots are a double buffer (ping-pong). Filling is at most slots - 1 operations ahead of draining.
    banks: RAMs that one slot is spread over, so that the slot takes and gives a word in each cycle. Raises
    `ProgramError` for sizes below 1, or fewer than 2 slots.
    """

    rows: int
    columns: int
    slots: int = 2
    banks: int = 2

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("columns", 1), ("slots", 2), ("banks", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ProgramError(f"{name}={value!r} of a memory: must be a whole number from {least} on")

    @property
    def words(self) -> str:
        """The sizes as text, such as `2 slots of 256x128`: of a slot in float32 elements."""
        return f"{self.slots} slots of {self.rows}x{self.columns}"


class Where(Enum):
    """When a unit applies a capability."""

    LOAD = "at load"
    RECEIVE = "at receive"
    COMPUTE = "when computing"
    SEND = "at send"
    STORE = "at store"


@dataclass(frozen=True)
class Capability:
    """An operation that a unit can do.

    op: its name, such as `matmul`, `softmax`, `gelu_erf`. where: when the unit applies it. limits: smallest and largest
    value of its sizes, by name, such as columns=(1, 1024). rate: name of the machine's rate that says how long it
    takes; None if it takes no time of its own. elements: how many elements of the result one step at this rate makes;
    of `matmul`, how many multiply-adds. Lower bounds of the time are computed from it.
    """

    op: str
    where: Where = Where.COMPUTE
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rate: str | None = None
    elements: float = 1

    def exceeded(self, **sizes: float) -> str | None:
        """Return the name of the first size that is beyond its limits, None if there is none.

        sizes: values by the names that `limits` has, in the unit of these. A name that has no limits is always within.
        """
        return next((n for n, x in sizes.items() if n in self.limits and not in_range(x, self.limits[n])), None)


def in_range(value: float, limits: tuple[float, float]) -> bool:
    """Whether a value lies within the limits, (smallest, largest), both included."""
    return limits[0] <= value <= limits[1]


@dataclass(frozen=True)
class UnitSpec:
    """One functional unit (FU).

    name: e.g. `MemA1`. kind: its FU type, e.g. `MemA`. index: its bit in a packet's mask. behaviour: the class that
    holds its kernel. bank: the off-chip memory that it reads and writes, None if it has none. memory: its buffers on
    chip, None if it has none. capabilities: what it can compute or apply. routes: pairs (source, destination) that a
    switch can connect; None for a unit that passes on data from any of its sources to any of its sinks.
    """

    name: str
    kind: str
    index: int
    behaviour: type[Unit]
    bank: str | None = None
    memory: Memory | None = None
    capabilities: tuple[Capability, ...] = ()
    routes: tuple[tuple[str, str], ...] | None = None

    def capability(self, op: str) -> Capability | None:
        """Return the capability for the operation `op`; None if the unit has none."""
        return next((c for c in self.capabilities if c.op == op), None)


@dataclass(frozen=True)
class Stream:
    """A bounded FIFO from one unit to another.

    depth: in words of the stream. label: tells two streams of the same units apart. token: what its words are.
    """

    src: str
    dst: str
    depth: int
    label: str = ""
    token: TokenType = ELEMENT

    @property
    def name(self) -> str:
        """The stream's name: `SRC->DST`, or `SRC->DST.LABEL`."""
        return f"{self.src}->{self.dst}" + (f".{self.label}" if self.label else "")


@dataclass(frozen=True)
class Port:
    """The end of a stream at a unit. peer: the unit at the other end. label, token: those of the stream. receives: the
    unit reads the stream; otherwise it writes it."""

    unit: str
    peer: str
    label: str
    receives: bool
    token: TokenType


MAX_DEPTH = 1 << 24
"""Largest depth of a stream, in words."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamNetwork:
    """A network of functional units.

    rates: costs of steps, by name. banks: size in bytes of each off-chip memory, by name. clock_hz: clock of the
    programmable logic.
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
        """Units by FU type, in the order of `units`."""
        out: dict[str, tuple[UnitSpec, ...]] = {}
        for u in self.units:
            out[u.kind] = (*out.get(u.kind, ()), u)
        return out

    def units_with(self, op: str) -> tuple[UnitSpec, ...]:
        """Return the units that can do the operation `op`, in the order of `units`."""
        return tuple(u for u in self.units if u.capability(op) is not None)

    def capability(self, op: str) -> Capability | None:
        """Return the capability of the first unit that can do the operation `op`; None if no unit can."""
        return next((c for u in self.units if (c := u.capability(op)) is not None), None)

    def memory_of(self, unit: str) -> Memory:
        """Return the on-chip memory of the unit of this name. Raises `ProgramError` if the unit has none, `KeyError` if
        there is no such unit.
        """
        memory = self.by_unit[unit].memory
        if memory is None:
            raise ProgramError(f"{unit} of overlay {self.name} has no memory")
        return memory

    def capability_of(self, unit: str, op: str) -> Capability:
        """Return the capability of the unit of this name for the operation `op`. Raises `ProgramError` if the unit has
        none, `KeyError` if there is no such unit.
        """
        capability = self.by_unit[unit].capability(op)
        if capability is None:
            raise ProgramError(f"{unit} of overlay {self.name} has no capability {op}")
        return capability

    @cached_property
    def ports(self) -> dict[str, tuple[Port, ...]]:
        """The ends of streams at each unit, by unit name, in the order of `streams`. Raises `KeyError` for a stream of
        an unknown unit.
        """
        out: dict[str, tuple[Port, ...]] = {u.name: () for u in self.units}
        for s in self.streams:
            out[s.src] += (Port(s.src, s.dst, s.label, False, s.token),)
            out[s.dst] += (Port(s.dst, s.src, s.label, True, s.token),)
        return out

    def path(self, source: str, sink: str) -> tuple[str, ...] | None:
        """Return the shortest way from unit `source` to unit `sink` along streams, both included; None if there is
        none.

        A switch passes on data along its routes only. Off-chip memories and units of one kind among themselves pass on
        nothing. Raises `KeyError` for an unknown `source`.
        """
        ways: list[tuple[str, ...]] = [(source,)]
        seen = {("", source)}
        for way in ways:
            if way[-1] == sink:
                return way
            unit, origin = self.by_unit[way[-1]], way[-2] if len(way) > 1 else ""
            if origin and unit.bank is not None:
                continue
            for port in self.ports[unit.name]:
                step = (unit.name, port.peer)
                passes = not origin or unit.routes is None or (origin, port.peer) in unit.routes
                if port.receives or not passes or step in seen or self.by_unit[port.peer].kind == unit.kind:
                    continue
                seen.add(step)
                ways.append((*way, port.peer))
        return None

    @cached_property
    def buses(self) -> list[str]:
        """Names of the rates in GB/s at which programs access off-chip memory, in the order of `rates`; without that of
        links to other machines."""
        return [name for name, rate in self.rates.items() if rate.unit == "GB/s" and name != LINK]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds per amount (byte, tile, cycle) of each rate, by name.

        Raises `ProgramError` for a rate of an unknown unit.
        """
        return {name: rate.seconds(self.clock_hz) for name, rate in self.rates.items()}

    @cached_property
    def step_seconds(self) -> dict[str, float]:
        """Seconds per amount of each rate that a step may name: the machine's rates and `FREE`.

        Errors as for `seconds`.
        """
        return {FREE: 0.0} | self.seconds

    def with_rates(self, /, **values: float) -> Self:
        """Return a copy with some rates replaced, e.g. ddr_read_gbs=42, each in the unit of its `Rate`.

        An infinite bandwidth and a time of 0 are allowed, to compute lower bounds of the latency. Raises `ProgramError`
        for unknown names, bandwidths that are not greater than 0, and times that are negative or not finite.
        """
        rates = dict(self.rates)
        for name, value in values.items():
            if name not in rates:
                raise ProgramError(f"overlay {self.name} has no parameter {name!r}; it has {', '.join(rates)}")
            rates[name] = dataclasses.replace(rates[name], value=value)
            self._require_physical(name, rates[name])
        return dataclasses.replace(self, rates=rates)

    def with_depths(self, depths: Mapping[str, float]) -> Self:
        """Return a copy with other depths of some streams, in words by stream name, e.g. "MeshA->MME0".

        Raises `ProgramError` for an unknown stream or a depth that `checked_depth` refuses.
        """
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
            raise ProgramError(f"{name}={rate.value}: a bandwidth must be greater than 0 {rate.unit} (inf: unlimited)")
        raise ProgramError(f"{name}={rate.value}: a time must be finite and at least 0 {rate.unit}")


def checked_depth(name: str, value: float) -> int:
    """Return `value` as the depth of FIFO `name`, in words or slots. Raises `ProgramError` unless it is an integer in
    1..`MAX_DEPTH`.
    """
    if value != value or value != int(min(max(value, -1), MAX_DEPTH + 1)) or not 1 <= value <= MAX_DEPTH:
        raise ProgramError(f"{name}={value}: a depth must be a whole number from 1 to {MAX_DEPTH}")
    return int(value)


def memory_of(unit: UnitSpec) -> Memory:
    """Return the on-chip memory of a unit. Raises `ProgramError` if it has none."""
    if unit.memory is None:
        raise ProgramError(f"{unit.name}: a {unit.kind} needs a memory")
    return unit.memory
