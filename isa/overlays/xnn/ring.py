"""The ring of slots that MemA, MemB and MemC have in common."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from ....base.errors import ProgramError
from ....machine.description import UnitSpec, memory_of
from ....machine.steps import Burst, Channel, Par, Steps
from ....machine.unit import Halves, Unit, Wiring
from ...fields import Record
from ...versal.tiles import BEATS, BLOCK_WORDS, TILE, Array, Pieces, Places
from .buffer import SlotData
from .post_ops import BLOCK_QUARTERS, QUARTER_WORDS

MAX_SLOTS = 64
"""Largest number of slots of a Mem; far above what a device holds."""


class RingUnit(Unit):
    """A unit with a memory of several slots, each a buffer. Raises `ProgramError` for a unit without a memory.

    cur: the number of the current slot. Every uOP goes on to the next slot, around the ring, also a uOP that does
    nothing. The number says which buffer a step touches, not which steps there are, and so is no part of any
    `effect_key`. size: the sizes of the memory. buffers: the data of each slot; empty in a run without data. A `side`
    of a method is the number of a slot. With two slots, a double buffer, the two halves of a uOP run as lanes of one
    kernel; with more slots two processes execute them (`Unit.ahead`).
    """

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.size = memory_of(spec)
        self.ahead = self.size.slots - 1 if self.size.slots > 2 else 0
        self.cur = 0
        buffers = range(self.size.slots if net.data else 0)
        self.buffers: list[SlotData] = [SlotData(self.size.rows, self.size.columns) for _ in buffers]

    def turn(self) -> int:
        """Go on to the next slot. Returns the one that was current."""
        was = self.cur
        self.cur = self.beside(was, 1)
        return was

    def beside(self, slot: int, by: int) -> int:
        """Return the number of the slot `by` places behind slot `slot`, around the ring."""
        return (slot + by) % self.size.slots

    def kernel(self, uop: Any) -> Steps:
        """Run both halves of a uOP side by side."""
        lanes = [half for half in self.halves(uop) or () if half is not None]
        if len(lanes) > 1:
            yield Par(*lanes)
        elif lanes:
            yield from lanes[0]

    def halves(self, uop: Any) -> Halves | None:
        """Return the two halves of a uOP, as `Unit.halves` says. A subclass defines them; this class raises
        `NotImplementedError`.
        """
        raise NotImplementedError

    def refuse(self, reason: str) -> None:
        """Raise `ProgramError`: the uOP and the registers do not go together. reason: what is wrong, for the message. A
        unit that only checks overrides this, and reports.
        """
        raise ProgramError(f"{self.name}: {reason}")

    def renew(self, side: int, rows: int, cols: int) -> None:
        """Give a buffer new memory before its first rows x cols elements are written: tiles sent before are views of
        the old memory. The other elements keep their values."""
        if self.buffers:
            self.buffers[side].renew(rows, cols)

    def detach(self, side: int) -> None:
        """Give a buffer new memory, with the same values, before it is changed in place: tiles sent before are views of
        the old memory.
        """
        if self.buffers:
            self.buffers[side].detach()

    def load(
        self, source: Channel, side: int, rows: int, cols: int, *, rate: str = "mem_word", quarters: bool = False
    ) -> Burst:
        """Return the burst that fills a buffer with rows x cols elements, in 128x64 blocks. source: the stream that
        they come from. side: number of the slot. rate: name of the rate of a word. quarters: take each block as four
        quarters. This is needed behind statistics, which are single quarter blocks: the blocks that follow do not begin
        at whole words of the stream."""
        places = blocks_of(rows, cols)
        self.renew(side, rows, cols)
        at = 0
        waiting: list[Any] = []

        def put(n: int, pieces: Pieces) -> None:
            nonlocal at
            at += n
            self.buffers[side].put_blocks(places[at - n : at], pieces, rows, cols)

        def put_quarters(n: int, pieces: Pieces) -> None:
            waiting.extend(pieces)
            while len(waiting) >= BLOCK_QUARTERS:
                put(1, [self.buffers[side].joined(waiting[:BLOCK_QUARTERS])])
                del waiting[:BLOCK_QUARTERS]

        if quarters:
            times, words = len(places) * BLOCK_QUARTERS, QUARTER_WORDS
            return Burst(times, rate, words, gets=(source,), words=words, do=put_quarters)
        return Burst(len(places), rate, BLOCK_WORDS, gets=(source,), words=BLOCK_WORDS, do=put)

    def drain(self, sink: Channel, side: int, rows: int, cols: int, *, quarters: bool = False) -> Burst:
        """Return the burst that stores the first rows x cols elements of a buffer, in 128x64 blocks. sink: the stream
        that they go to. side: number of the slot. quarters: store each block as four quarters, for the reason that
        `load` has."""
        places = blocks_of(rows, cols)
        at = 0
        made: list[Pieces] = []

        def blocks(n: int) -> tuple[Pieces]:
            nonlocal at
            at += n
            return (self.buffers[side].blocks(places[at - n : at], rows, cols),)

        def quarter_blocks(n: int) -> tuple[Pieces]:
            nonlocal at
            at += n
            if not made:
                made.append(self.buffers[side].quarters(rows, cols))
            return (made[0][at - n : at],)

        if quarters:
            times, words = len(places) * BLOCK_QUARTERS, QUARTER_WORDS
            return Burst(times, "mem_word", words, puts=(sink,), words=words, do=quarter_blocks)
        return Burst(len(places), "mem_word", BLOCK_WORDS, puts=(sink,), words=BLOCK_WORDS, do=blocks)

    def send(self, sink: Channel, side: int, index: Places, first: int = 0) -> Burst:
        """Return the burst that sends tiles of a buffer. sink: the stream that they go to. side: number of the slot.
        index: row and column of each, in tiles, counted from row tile `first` on."""
        at = 0

        def tiles(n: int) -> tuple[Sequence[Array]]:
            nonlocal at
            at += n
            return (self.buffers[side].tiles(index[at - n : at], first),)

        return Burst(len(index), "mesh_beat", BEATS, puts=(sink,), do=tiles)


def nothing() -> Steps:
    """Return steps that do nothing."""
    yield from ()


@cache
def blocks_of(rows: int, cols: int) -> Places:
    """Return the first row and column, in elements, of each whole 128x64 block of rows x cols elements, row after
    row."""
    return tuple((i, j) for i in range(0, rows - 127, 128) for j in range(0, cols - 63, 64))


# -- what a memory's size must be for the fields of its unit's uOPs ----------------------------------------------------


class SizeField(NamedTuple):
    """A field of uOPs that says how many rows or columns of a memory an operation uses. record: the format that has the
    field. step: rows or columns that the value 1 of the field stands for."""

    record: type[Record]
    field: str
    step: int = 1

    @property
    def most(self) -> int:
        """The largest size, a multiple of `TILE`, that the field can say.

        Raises `FieldError` if the record has no such field.
        """
        return int(self.record.field(self.field).bounds[1]) * self.step // TILE * TILE

    def __str__(self) -> str:
        return f"{self.record.NAME}.{self.field} ({self.record.field(self.field).width} bits)"


def check_size(unit: UnitSpec, size: str, bounds: Sequence[SizeField]) -> None:
    """Raise `ProgramError` unless `size` ("rows" or "columns") of a unit's memory is a multiple of `TILE` that all
    fields can say, or if the unit has no memory. bounds: those fields, at least one.
    """
    value = getattr(memory_of(unit), size)
    if value % TILE:
        raise ProgramError(f"{size} = {value} of {unit.name}: must be a multiple of {TILE}")
    least = min(bounds, key=lambda b: b.most)
    if value > least.most:
        raise ProgramError(f"{size} = {value} of {unit.name}: field {least} says at most {least.most}")


def check_fixed(unit: UnitSpec, size: str, value: int, why: str) -> None:
    """Raise `ProgramError` unless `size` ("rows" or "columns") of a unit's memory is `value`, the only one possible, or
    if the unit has no memory. why: the reason, for the message.
    """
    if getattr(memory_of(unit), size) != value:
        raise ProgramError(f"{size} = {getattr(memory_of(unit), size)} of {unit.name}: must be {value}, because {why}")


def check_slots(unit: UnitSpec) -> None:
    """Raise `ProgramError` if a unit's memory has more slots than `MAX_SLOTS`, or if it has none."""
    if memory_of(unit).slots > MAX_SLOTS:
        raise ProgramError(f"slots = {memory_of(unit).slots} of {unit.name}: at most {MAX_SLOTS}")
