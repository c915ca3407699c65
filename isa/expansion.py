"""All uOPs of a program as arrays: index of the distinct uOP, packet, and address.

A program of 24 layers has a quarter of a million uOPs, of which a few thousand are distinct. Results that depend on the
uOP alone are computed once per distinct uOP; results that depend on addresses are computed on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..machine.balance import UopTable
from ..machine.description import UnitSpec
from .fields import Record
from .layout import BLOCK, BLOCK_COLS
from .overlay import InstructionFormat, OpList, Overlay, one_uop
from .packet import Packet, expand
from .program import Buffer, Layout, Program

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class UopSequence:
    """The uOPs of one unit in execution order.

    kinds: indices in `ExpandedProgram.uops`. origins: packet, or position in a preloaded list, of each uOP (ops that a
    repeat runs again have the same). shifts: number of address units to add to the address of the distinct uOP.
    """

    unit: UnitSpec
    kinds: Ints
    origins: Ints
    shifts: Ints

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, eq=False)
class Accesses:
    """The off-chip accesses of one bank; the arrays have one element per access.

    units: the units that access the bank. unit: index in `units`. uop: number of the uOP in its unit. origin: packet or
    list position. start, size: in float32 elements. store: it writes; otherwise it reads. partial: it writes some of
    these elements only.
    """

    units: tuple[UnitSpec, ...]
    unit: Ints
    uop: Ints
    origin: Ints
    start: Ints
    size: Ints
    store: npt.NDArray[np.bool_]
    partial: npt.NDArray[np.bool_]

    @property
    def end(self) -> Ints:
        """The float32 element behind the last one of each access, by address in the bank."""
        return self.start + self.size

    def __len__(self) -> int:
        return len(self.start)


@dataclass(eq=False)
class ExpandedProgram:
    """The uOPs of every unit of a program. Raises `KeyError` for a packet with an unknown opcode, `ProgramError` for a
    repeat in an op list that is not possible.

    uops: the distinct uOPs; those of a format with `addresses` have address 0. sequences: by unit name. missing: units
    whose preloaded lists are not known, as for an image without op lists."""

    program: Program
    missing: frozenset[str] = frozenset()
    uops: list[Any] = field(default_factory=list)
    sequences: dict[str, UopSequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        overlay = self.program.overlay
        parts: dict[str, list[tuple[Ints, Ints, int]]] = {u.name: [(_NONE, _NONE, 0)] for u in overlay.units}
        mops: dict[tuple[Record, int], tuple[Ints, Ints]] = {}
        for number, packet in enumerate(self.program.packets):
            header = packet.header
            if not header.opcode or header.last or not header.reuse or not packet.mops:
                continue
            units = overlay.selected(header.opcode, header.mask)
            if units:
                expanded = self._packet(packet, overlay.by_opcode[header.opcode], mops)
                for u in units:
                    parts[u.name].append((*expanded, number))
        for u in overlay.units:
            if u.kind in overlay.preloaded:
                self.sequences[u.name] = self._listed(u, overlay.preloaded[u.kind])
                continue
            kinds, shifts, numbers = zip(*parts[u.name], strict=True)
            origins: Ints = np.repeat(numbers, [len(k) for k in kinds])
            self.sequences[u.name] = UopSequence(u, np.concatenate(kinds), origins, np.concatenate(shifts))

    def _listed(self, unit: UnitSpec, held: OpList) -> UopSequence:
        """The uOPs of a unit with an op list."""
        entries = self.program.preloaded.get(unit.name, ())
        # A repeat is no uOP: it has no number. `order` never names it.
        kinds = np.array([-1 if held.repeated(entry) else self.number(entry) for entry in entries], np.int64)
        order = held.order(entries)
        return UopSequence(unit, kinds[order], order, np.zeros(len(order), np.int64))

    @cached_property
    def uop_table(self) -> UopTable:
        """All uOPs in the form that `machine.balance` counts."""
        kinds = {name: s.kinds for name, s in self.sequences.items()}
        origins = {name: s.origins for name, s in self.sequences.items()}
        return UopTable(self.overlay, self.uops, kinds, origins, self.missing, self.where)

    @property
    def overlay(self) -> Overlay:
        """The program's overlay."""
        return self.program.overlay

    def number(self, uop: Any) -> int:
        """Return the index of a uOP in `uops`; it is added if it is new. uop: hashable."""
        n = self._numbers.setdefault(uop, len(self.uops))
        if n == len(self.uops):
            self.uops.append(uop)
        return n

    def _packet(
        self, packet: Packet, form: InstructionFormat, mops: dict[tuple[Record, int], tuple[Ints, Ints]]
    ) -> tuple[Ints, Ints]:
        """The uOPs of one packet in the order of `packet.expand`: indices of distinct uOPs, and address shifts."""
        reuse = packet.header.reuse
        if form.addresses is None:
            if form.uops is one_uop:
                kinds = np.array([self.number(m) for m in packet.mops], np.int64)
                kinds = np.tile(kinds, reuse) if form.loops_window else np.repeat(kinds, reuse)
            else:
                kinds = np.array([self.number(u) for u in expand(packet, self.overlay)], np.int64)
            return kinds, np.zeros(len(kinds), np.int64)
        rows = []  # per mOP: (reuse, uOPs in one iteration)
        for mop in packet.mops:
            key = (mop, reuse)
            if key not in mops:
                shifts = form.addresses(mop, reuse)
                one = [self.number(u._replace(addr=0)) for u in form.uops(mop, 0)]
                mops[key] = np.broadcast_to(np.array(one, np.int64), (reuse, len(one))), shifts
            rows.append(mops[key])
        if form.loops_window:
            kinds, shifts = (np.concatenate(x, axis=1) for x in zip(*rows, strict=True))
            return kinds.reshape(-1), shifts.reshape(-1)
        kinds, shifts = (np.concatenate([y.reshape(-1) for y in x]) for x in zip(*rows, strict=True))
        return kinds, shifts

    # -- places ---------------------------------------------------------------------------------------------------

    def where(self, unit: str, uop: int) -> str:
        """Return the place of uOP number `uop` of a unit: source line, packet or list position; the unit's name if it
        has no such uOP. Raises `KeyError` for an unknown unit.
        """
        run = self.sequences[unit]
        return place_of(self.program, unit, int(run.origins[uop])) if uop < len(run) else unit

    # -- off-chip memory ------------------------------------------------------------------------------------------

    @cached_property
    def accesses(self) -> dict[str, Accesses]:
        """The off-chip accesses by bank, sorted by unit and in program order within a unit. A bank without accesses is
        left out.
        """
        per_bank: dict[str, list[tuple[UnitSpec, Ints]]] = {}
        for u in self.overlay.units:
            run = self.sequences[u.name]
            distinct = np.unique(run.kinds).tolist()
            touches = {k: t for k in distinct if (t := self.overlay.transfer(u, self.uops[k])) is not None}
            for bank in sorted({t.bank for t in touches.values()}):
                table = np.zeros((len(self.uops), 5), np.int64)
                for k, t in touches.items():
                    if t.bank == bank:
                        table[k] = 1, t.addr, t.size, t.store, t.partial
                rows = table[run.kinds]
                (uop,) = np.nonzero(rows[:, 0])
                start = (rows[uop, 1] + run.shifts[uop]) * self.overlay.address_unit
                columns = (uop, run.origins[uop], start, *rows[uop, 2:].T)
                per_bank.setdefault(bank, []).append((u, np.stack(columns)))
        out = {}
        for bank, parts in per_bank.items():
            unit = np.repeat(np.arange(len(parts)), [c.shape[1] for _, c in parts])
            uop, origin, start, size, store, partial = np.concatenate([c for _, c in parts], axis=1)
            units, flags = tuple(u for u, _ in parts), (store.astype(bool), partial.astype(bool))
            out[bank] = Accesses(units, unit, uop, origin, start, size, *flags)
        return out


def place_of(program: Program, unit: str, origin: int) -> str:
    """Return the place of packet number `origin` of a program or, for a unit with an op list, of that op.

    The place is the source line if known, else `packet N (word W)`, or `UNIT op N` for a unit with an op list."""
    place = program.where(unit, origin)
    if unit not in program.preloaded and place == f"packet {origin}" and origin < len(program.packets):
        return f"{place} (word {program.packet_offsets[origin]})"
    return f"{unit} {place}" if place == f"op {origin}" else place


def region_name(buffers: Sequence[Buffer], unit: int, start: int, end: int) -> str:
    """Return the name of the buffer that holds elements `start` to `end` (behind the last) of a bank, and the piece of
    it: `x [0:128, 0:64]`.

    If several buffers hold them, the names are joined by `or`, and the piece is that of the first; if none does, the
    text has the address. buffers: those of the bank. unit: float32 elements per address unit.
    """
    held = [b for b in buffers if b.offset * unit <= start and end <= b.offset * unit + b.size]
    if not held:
        return f"{end - start} elements at address {start // unit:#x}"
    names = " or ".join(b.name for b in held[:2]) + (" or ..." if len(held) > 2 else "")
    at = held[0].offset * unit
    return f"{names} {_piece(held[0], start - at, end - at)}"


def _piece(b: Buffer, start: int, end: int) -> str:
    """Rows and columns of a piece of a buffer, or its elements if it is no rectangle of blocks."""
    if b.layout is Layout.BLOCKED and len(b.shape) == 2 and start % BLOCK == 0 and end % BLOCK == 0:
        width = b.shape[1] // BLOCK_COLS
        (r0, c0), (r1, c1) = divmod(start // BLOCK, width), divmod(end // BLOCK - 1, width)
        if r0 == r1 or (c0, c1) == (0, width - 1):
            return f"[{r0 * 128}:{r1 * 128 + 128}, {c0 * 64}:{c1 * 64 + 64}]"
    return f"[{start}:{end}]"


def preloaded_uops(overlay: Overlay, preloaded: Mapping[str, Sequence[Any]]) -> int:
    """Return how many ops all units with op lists execute together. preloaded: op lists by unit name. Lists with
    repeats that are not possible count nothing.
    """
    total = 0
    for unit, entries in preloaded.items():
        held = overlay.op_list(unit)
        if held is not None and not any(held.faults(entries)):
            total += held.executed(entries)
    return total


def uop_upper_bound(packet: Packet, overlay: Overlay) -> int:
    """Return an upper bound of the uOPs that a packet expands to at all its units together, without expanding it.

    Raises `KeyError` for an opcode that the overlay does not have; 0 is allowed.
    """
    header = packet.header
    if not header.opcode:
        return 0
    each: Sequence[int] = [int(getattr(m, "chunks", 1)) for m in packet.mops]
    return len(overlay.selected(header.opcode, header.mask)) * header.reuse * sum(each)
