"""MemA: left operands."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ....base.errors import ProgramError
from ....machine.description import Capability, Memory, UnitSpec, Where, memory_of
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Halves, Wiring
from ...fields import Record, bits
from ...versal.loop import PipelinedLoop
from ...versal.tiles import BEAT, TILE, tile_rows
from ...work import Load, LoadNorm, Patched, Registers, Send
from .post_ops import BLOCK_QUARTERS, QUARTER_WORDS, RowFactors
from .ring import RingUnit, SizeField, check_fixed, check_size

LOOPS: Mapping[str, PipelinedLoop] = {
    "normalise": PipelinedLoop(1, 25, "a word into a buffer: minus mean, times factor"),
}


class MemA(Record, words=1):
    """LHS scratchpad: send tiles of one buffer while loading the other."""

    dim1: int = bits(0, 0, 9, "rows to load")
    dim2: int = bits(0, 9, 8, "columns to load")
    acc_a: int = bits(0, 17, 3, "row tiles to send")
    acc_b: int = bits(0, 20, 3, "times each tile is sent")
    load: int = bits(0, 23, 1, "fill the other buffer from DDR")
    send: int = bits(0, 24, 1, "send the current buffer to MeshA")


class MemANorm(Record, words=2):
    """Registers of a MemA that normalises what it loads (our opcode 12). The defaults are the power-on values: it does
    not. Statistics come from DDR, where a MemC stored them (`MemCStore.statistics`)."""

    rows: int = bits(0, 0, 2, "row tiles whose statistics to load now; 0 keeps those of before")
    parts: int = bits(0, 2, 4, "number of parts of the columns that a row tile has statistics of")
    normalise: int = bits(0, 6, 1, "following loads become (x - mean) / sqrt(variance + eps)")
    rms: int = bits(0, 7, 1, "without mean")
    first: int = bits(0, 8, 1, "row tile of the statistics that the first row tile of a load takes")
    same: int = bits(0, 9, 1, "all row tiles of a load take those of the first")
    eps: float = bits(1, 0, 32, "added to the variance", default=1e-6, real=True)


MEMORY = Memory(256, 128)
"""A slice of K for two row tiles."""


def capabilities(memory: Memory) -> tuple[Capability, ...]:
    """Return the capabilities of a MemA with registers: it normalises rows as it loads them. Statistics are of parts of
    the columns, at most as many parts as the field `parts` can say. memory: ignored."""
    limits = {"parts": (1, MemANorm.field("parts").bounds[1])}
    return (Capability("normalise", Where.LOAD, limits, "normalise_word", BEAT),)


class MemAUnit(RingUnit):
    """LHS scratchpad: sends the current slot, loads the next one.

    factors: the class that keeps what rows are normalised by."""

    factors: type[RowFactors] = RowFactors

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.registers = MemANorm()
        self.begun = 0
        """Quarters of a block that it has loaded beyond whole blocks: statistics are quarter blocks."""
        self.held: RowFactors | None = None
        """What rows are normalised by; known in a run with data."""

    def kernel(self, uop: MemA | MemANorm) -> Steps:
        return self._configure(uop) if isinstance(uop, MemANorm) else super().kernel(uop)

    def halves(self, uop: MemA | MemANorm) -> Halves | None:
        if isinstance(uop, MemANorm):
            return None
        cur = self.turn()
        fill = self._load(uop, self.beside(cur, 1)) if uop.load else None
        return fill, self._send(uop, cur) if uop.send else None

    def effect_key(self, uop: MemA | MemANorm) -> Hashable | None:
        if isinstance(uop, MemANorm):
            return None  # it sets registers
        return uop, self.registers.normalise, self.begun

    def _configure(self, uop: MemANorm) -> Steps:
        """Set the registers, and load statistics: for each row tile, those of its parts."""
        self.registers = uop
        quarters = uop.rows * uop.parts
        self.begun = (self.begun + quarters) % BLOCK_QUARTERS
        if not quarters:
            yield Step()
            return
        factors = self.factors(uop.parts, uop.eps, bool(uop.rms))

        def finish() -> None:
            factors.finish()
            self.held = factors

        source, words = (self.source("DDR"),), QUARTER_WORDS
        yield Burst(quarters, "mem_word", words, gets=source, words=words, do=factors.put)
        yield Step(do=finish)

    def _load(self, uop: MemA, side: int) -> Steps:
        reg = self.registers
        rate = "normalise_word" if reg.normalise else "mem_word"
        source = self.source("DDR")
        yield self.load(source, side, uop.dim1, uop.dim2, rate=rate, quarters=self.begun > 0)
        if not reg.normalise:
            return

        def normalise() -> None:
            tiles = reg.first + (1 if reg.same else uop.dim1 // TILE)
            held = 0 if self.held is None else self.held.tiles
            if self.held is None or held < tiles:
                self.refuse(
                    f"normalises by the statistics of row tile {tiles - 1}; those of {held} row tiles were loaded: set "
                    "rows in a MemANorm before"
                )
            else:
                self.held.apply(self.buffers[side].part(uop.dim1, uop.dim2), reg.first, bool(reg.same))

        yield Step(do=normalise)

    def _send(self, uop: MemA, side: int) -> Steps:
        yield self.send(self.sink("MeshA"), side, tile_rows(uop.acc_a, uop.acc_b))


def legal(unit: UnitSpec, uop: MemA) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and 2).

    Raises `ProgramError` if the unit has no memory.
    """
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    if uop.load and (uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"load {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a {rows}x{cols} buffer"
    if uop.send and uop.acc_a > rows // TILE:
        yield f"acc_a={uop.acc_a} row tiles of a buffer with {rows // TILE}"


def legal_norm(unit: UnitSpec, uop: MemANorm) -> Iterator[str]:
    """Yield the reasons why values of the registers are not defined, although they are in range. Raises `ProgramError`
    if the unit has no memory.
    """
    tiles = memory_of(unit).rows // TILE
    if uop.rows > tiles:
        yield f"statistics of {uop.rows} row tiles; a buffer has {tiles}"
    if uop.rows and not uop.parts:
        yield "statistics of no parts of the columns: parts must be at least 1"
    if uop.first >= tiles:
        yield f"first={uop.first}: a buffer has {tiles} row tiles"
    if uop.eps < 0:
        yield f"eps={uop.eps:g} must not be less than 0"


def check_memory(unit: UnitSpec) -> None:
    """Raise `ProgramError` if a unit has no memory, or one that the fields of `MemA` cannot fill: its rows must be a
    multiple of 128 within their range, its columns 128."""
    check_size(unit, "rows", [SizeField(MemA, "dim1"), SizeField(MemA, "acc_a", TILE)])
    check_fixed(unit, "columns", TILE, "a MemA sends one column of tiles")


@lru_cache(typed=True)
def _operation(fill: Load | None, drain: Send | None) -> MemA:
    load = {} if fill is None else {"load": 1, "dim1": fill.rows, "dim2": fill.columns}
    send = {} if drain is None else {"send": 1, "acc_a": drain.rows, "acc_b": drain.times}
    return MemA(**load, **send)


def emit(unit: UnitSpec, items: Iterable[Any], *, registers: bool) -> Iterator[MemA | Patched]:
    """Yield the instruction of each of the items, `Turn`s, and before it the one that loads statistics or sets
    registers. registers: the unit has the registers of opcode 12.

    Raises `ProgramError` for a norm without registers, or for a norm that differs from that of the statistics in the
    unit; `FieldError` for a value that does not fit its field."""
    held = Registers(MemANorm)
    for turn in items:
        if isinstance(turn.fill, Load):
            if not registers:
                held.require_power_on(unit, {"normalise": int(turn.fill.norm is not None)})
            yield from _norm(held, turn.fill.norm)
        yield _operation(turn.fill, turn.drain)


def _norm(held: Registers, norm: LoadNorm | None) -> Iterator[Patched]:
    if norm is None:
        yield from held.set({"normalise": 0})
        return
    needed = {"normalise": 1, "first": norm.first, "same": int(norm.same)}
    kind = {"rms": int(norm.rms), "eps": float(np.float32(norm.eps))}
    if norm.fresh:
        held.values |= needed | kind | {"parts": norm.parts}
        yield held.made(rows=norm.fresh)
    elif {name: held.values[name] for name in kind} != kind:
        raise ProgramError("a load with another norm than that of the statistics that its unit holds: load them again")
    else:
        yield from held.set(needed)
