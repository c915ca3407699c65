"""An overlay as data: units, streams, wire formats, rates. The tools know overlays only through these classes."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..base.errors import ProgramError
from .fields import Record

if TYPE_CHECKING:
    from ..base.finding import Finding
    from ..machine.executor import Unit
    from ..machine.resources import Cost, Device, Need
    from .expansion import Expansion


@dataclass(frozen=True)
class Rate:
    """What one step costs. `value` is in `unit`; `seconds` is the time of one amount (a byte, a tile, a cycle).

    calibrated: chosen to match published latencies, not given by the paper or by the structure.
    cause: the heading under which the critical path counts it.
    """

    value: float
    unit: str
    source: str
    cause: str
    calibrated: bool = False

    @property
    def seconds(self) -> float:
        match self.unit:
            case "GB/s":
                return 1.0 / (self.value * 1e9)
            case "us":
                return self.value * 1e-6
            case "PL cycles":
                return self.value / PL_HZ
            case _:
                raise ProgramError(f"unknown unit {self.unit!r}")


PL_HZ = 260e6
"""Clock of the programmable logic (paper section 5)."""


@dataclass(frozen=True)
class UnitSpec:
    """One functional unit: its name (`MemA1`), its FU type (`MemA`), its index in a packet's mask, its behaviour."""

    name: str
    kind: str
    index: int
    behaviour: type[Unit]
    bank: str | None = None
    """The off-chip memory it reads and writes."""


@dataclass(frozen=True)
class Stream:
    """A bounded FIFO from one unit to another. Depth in words of the stream (what a word is belongs to the overlay)."""

    src: str
    dst: str
    depth: int
    label: str = ""

    @property
    def name(self) -> str:
        return f"{self.src}->{self.dst}" + (f".{self.label}" if self.label else "")


def one_uop(mop: Record, iteration: int) -> Iterator[Record]:
    """The usual third level: an mOP is its own uOP."""
    yield mop


@dataclass(frozen=True)
class InstructionFormat:
    """A wire format: which opcode programs which FU type, and how its decoders expand it (contract 1.3).

    loops_window: the decoder stores the window and loops over it; otherwise each mOP repeats on its own.
    config: the format sets registers of a unit that another format drives; it never terminates a decoder.
    addresses: for a format whose uOPs are named tuples that differ from one iteration to the next in `addr` alone: the
    addresses of a mOP's uOPs, an array (iterations, uOPs in one), so that checks need not make every uOP.
    """

    name: str
    opcode: int
    kind: str
    mop: type[Record]
    loops_window: bool
    decode_cycles: int
    uops: Callable[[Any, int], Iterator[Any]] = one_uop
    config: bool = False
    max_reuse: int = 0xFFFF
    uop_bytes: int = 0
    """What a decoder hands on per uOP: the fields of the mOP without strides and counts, in whole words."""
    addresses: Callable[[Any, int], Any] | None = None


@dataclass(frozen=True)
class Transfer:
    """Where a uOP touches off-chip memory: `size` float32 elements from address `addr` (address units)."""

    bank: str
    addr: int
    size: int
    store: bool


@dataclass(frozen=True, eq=False)
class Overlay:
    """A datapath and its instruction decoder.

    preloaded: FU types whose uOPs do not travel in packets but are loaded beforehand (the MMEs), with their format
    and the longest list they hold. banks: off-chip memories and their size in bytes. address_unit: float32 elements
    that one step of an address or stride stands for.
    legal: given unit name and uOP, what is wrong with it beyond its bit ranges. transfer: the off-chip access of a
    unit's uOP, None if it makes none. flops: floating-point operations of a preloaded uOP.
    doubts: given a mOP, what it says that the units do not heed. rules: what `check` looks at beyond what holds for
    every overlay; told whether sends equal receives on every stream.
    device, needs: the chip it is for, None if that is not said, and what each part of the datapath takes of it.
    costs: how long its units take, as their sources state it.
    image_bytes: what the buffer for an instruction image holds, None if that is not said.
    extends: the overlay whose image format this one adds opcodes to.
    """

    name: str
    units: tuple[UnitSpec, ...]
    streams: tuple[Stream, ...]
    formats: tuple[InstructionFormat, ...]
    rates: Mapping[str, Rate]
    terminators: tuple[str, ...]
    preloaded: Mapping[str, tuple[type[Record], int]] = field(default_factory=dict)
    banks: Mapping[str, int] = field(default_factory=dict)
    mop_fifo_depth: int = 6
    uop_fifo_depth: int = 2
    address_unit: int = 1
    image_bytes: int | None = None
    legal: Callable[[str, Any], Iterator[str]] = lambda unit, uop: iter(())
    transfer: Callable[[str, Any], Transfer | None] = lambda unit, uop: None
    flops: Callable[[Any], int] = lambda op: 0
    lint: Callable[[Any], Iterator[str]] = lambda mop: iter(())
    semantic_checks: Callable[[Expansion, bool], Iterator[Finding]] = lambda expansion, balanced: iter(())
    extends: str | None = None
    device: Device | None = None
    resources: Callable[[Overlay], Iterator[Need]] = lambda overlay: iter(())
    costs: Callable[[Overlay], Iterator[Cost]] = lambda overlay: iter(())

    @cached_property
    def by_opcode(self) -> dict[int, InstructionFormat]:
        return {f.opcode: f for f in self.formats}

    @cached_property
    def by_format(self) -> dict[str, InstructionFormat]:
        return {f.name: f for f in self.formats}

    @cached_property
    def by_unit(self) -> dict[str, UnitSpec]:
        return {u.name: u for u in self.units}

    @cached_property
    def by_kind(self) -> dict[str, tuple[UnitSpec, ...]]:
        out: dict[str, tuple[UnitSpec, ...]] = {}
        for u in self.units:
            out[u.kind] = (*out.get(u.kind, ()), u)
        return out

    def format_of(self, kind: str) -> InstructionFormat:
        """The format that drives an FU type (not the one that configures it)."""
        return next(f for f in self.formats if f.kind == kind and not f.config)

    def selected(self, opcode: int, mask: int) -> tuple[UnitSpec, ...]:
        """The units that a packet reaches; FU types with one instance ignore the mask."""
        key = opcode, mask
        if key not in self._selections:
            units = self.by_kind[self.by_opcode[opcode].kind]
            self._selections[key] = units if len(units) == 1 else tuple(u for u in units if mask >> u.index & 1)
        return self._selections[key]

    @cached_property
    def _selections(self) -> dict[tuple[int, int], tuple[UnitSpec, ...]]:
        """What `selected` has found so far; a packet has one of few masks."""
        return {}

    def with_rates(self, /, **values: float) -> Overlay:
        """A copy with some rates or FIFO depths replaced, e.g. ddr_read_gbs=42 or mop_fifo_depth=4.

        An infinite bandwidth and a step that takes no time are allowed: bounds are found with them. Raises
        `ProgramError` for unknown names and for what no machine can have.
        """
        rates = dict(self.rates)
        plain: dict[str, int] = {}
        for name, value in values.items():
            if name in FIFO_DEPTHS:
                plain[name] = _depth(name, value)
            elif name in rates:
                rates[name] = _physical(name, dataclasses.replace(rates[name], value=value))
            else:
                known = ", ".join([*FIFO_DEPTHS, *rates])
                raise ProgramError(f"overlay {self.name} has no parameter {name!r}; it has {known}")
        return dataclasses.replace(self, rates=rates, **plain)  # type: ignore[arg-type]

    def with_depths(self, depths: Mapping[str, float]) -> Overlay:
        """A copy with some streams of other depths, in words, by name, e.g. "MeshA->MME0". Raises `ProgramError`."""
        unknown = set(depths) - {s.name for s in self.streams}
        if unknown:
            raise ProgramError(f"overlay {self.name} has no stream {sorted(unknown)[0]!r}")
        checked = {name: _depth(name, depth) for name, depth in depths.items()}
        streams = tuple(dataclasses.replace(s, depth=checked.get(s.name, s.depth)) for s in self.streams)
        return dataclasses.replace(self, streams=streams)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that change with any unit, stream depth or bit of a format, not with rates."""
        h = hashlib.sha256()
        for u in self.units:
            h.update(f"unit {u.name} {u.kind} {u.index};".encode())
        for s in self.streams:
            h.update(f"stream {s.name} {s.depth};".encode())
        formats = [(f.name, f.opcode, f.loops_window, f.mop) for f in self.formats]
        formats += [(k, -1, False, r) for k, (r, _) in self.preloaded.items()]
        for name, opcode, loops, record in formats:
            h.update(f"form {name} {opcode} {loops} {record.WORDS};".encode())
            for b in record.FIELDS:
                h.update(f"field {b.name} {b.word} {b.low} {b.width} {b.signed} {b.real};".encode())
        return h.hexdigest()[:16]


FIFO_DEPTHS = ("mop_fifo_depth", "uop_fifo_depth")
"""Parameters of the instruction path that count slots."""

DEEPEST = 1 << 24


def _depth(name: str, value: float) -> int:
    if value != value or value != int(min(max(value, -1), DEEPEST + 1)) or not 1 <= value <= DEEPEST:
        raise ProgramError(f"{name}={value}: a depth is a whole number from 1 to {DEEPEST}")
    return int(value)


def _physical(name: str, rate: Rate) -> Rate:
    try:
        possible = rate.value >= 0 and 0 <= rate.seconds < math.inf
    except (ZeroDivisionError, OverflowError):
        possible = False
    if not possible:
        if rate.unit == "GB/s":
            raise ProgramError(f"{name}={rate.value}: a bandwidth is greater than 0 {rate.unit} (inf: without bound)")
        raise ProgramError(f"{name}={rate.value}: a time is 0 {rate.unit} or more, and finite")
    return rate
