"""An overlay as data: a machine, the formats of its instructions, and what its decoders do."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from ..base.errors import ProgramError
from ..machine.description import FREE, Machine, UnitSpec, checked_depth
from .fields import Record

if TYPE_CHECKING:
    from ..base.finding import Finding
    from ..machine.resources import Cost, Device, Need
    from .expansion import Expansion


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Overlay(Machine):
    """A machine with its instruction decoder.

    preloaded: FU types whose uOPs do not travel in packets but are loaded beforehand (the MMEs), with their format
    and the longest list they hold. mop_fifo_depth, uop_fifo_depth: slots in front of a decoder and of a unit.
    address_unit: float32 elements that one step of an address or stride stands for.
    legal: given unit name and uOP, what is wrong with it beyond its bit ranges. transfer: the off-chip access of a
    unit's uOP, None if it makes none. flops: floating-point operations of a preloaded uOP.
    lint: given a mOP, bits in it that the units ignore. semantic_checks: what `check` looks at beyond what holds for
    every overlay; told whether sends equal receives on every stream.
    device, resources: the chip it is for, None if that is not said, and what each part of the datapath takes of it.
    costs: how long its units take, as their sources state it.
    image_bytes: what the buffer for an instruction image holds, None if that is not said.
    extends: the overlay whose image format this one adds opcodes to.
    """

    formats: tuple[InstructionFormat, ...]
    terminators: tuple[str, ...]
    preloaded: Mapping[str, tuple[type[Record], int]] = field(default_factory=dict)
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

    @cached_property
    def step_seconds(self) -> dict[str, float]:
        """As a machine's, and what the instruction path charges: nothing, where the overlay gives no rate for it."""
        return {FREE: 0.0, "dispatch": 0.0, "decode": 0.0} | self.seconds

    def with_rates(self, /, **values: float) -> Self:
        """A copy with some rates or FIFO depths replaced, e.g. ddr_read_gbs=42 or mop_fifo_depth=4.

        An infinite bandwidth and a step that takes no time are allowed: bounds are found with them. Raises
        `ProgramError` for unknown names and for what no machine can have.
        """
        unknown = set(values) - {*FIFO_DEPTHS, *self.rates}
        if unknown:
            known = ", ".join([*FIFO_DEPTHS, *self.rates])
            name = next(name for name in values if name in unknown)
            raise ProgramError(f"overlay {self.name} has no parameter {name!r}; it has {known}")
        depths = {name: checked_depth(name, values.pop(name)) for name in FIFO_DEPTHS if name in values}
        return dataclasses.replace(super().with_rates(**values), **depths)  # type: ignore[arg-type]

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
