"""MemA: left operands."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from ....machine.description import Memory, UnitSpec
from ....machine.steps import Steps
from ....machine.unit import Halves
from ...fields import Record, bits
from ...work import Load, Send
from .ring import Bound, RingUnit, check_fixed, check_size, memory_of
from .tiles import TILE, tile_rows


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
    parts: int = bits(0, 2, 4, "statistics of a row tile: of so many parts of its columns")
    normalise: int = bits(0, 6, 1, "following loads become (x - mean) / sqrt(variance + eps)")
    rms: int = bits(0, 7, 1, "without mean")
    first: int = bits(0, 8, 1, "row tile of the statistics that the first row tile of a load takes")
    same: int = bits(0, 9, 1, "all row tiles of a load take those of the first")
    eps: float = bits(1, 0, 32, "added to the variance", default=1e-6, real=True)


MEMORY = Memory(256, 128)
"""A slice of K for two row tiles."""


class MemAUnit(RingUnit):
    """LHS scratchpad: sends the current slot, loads the next one."""

    def halves(self, uop: MemA) -> Halves:
        cur = self.turn()
        fill = self._load(uop, self.beside(cur, 1)) if uop.load else None
        return fill, self._send(uop, cur) if uop.send else None

    def effect_key(self, uop: MemA) -> Hashable:
        return uop

    def _load(self, uop: MemA, side: int) -> Steps:
        yield self.load(self.source("DDR"), side, uop.dim1, uop.dim2)

    def _send(self, uop: MemA, side: int) -> Steps:
        yield self.send(self.sink("MeshA"), side, tile_rows(uop.acc_a, uop.acc_b))


def legal(unit: UnitSpec, uop: MemA) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    if uop.load and (uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"load {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a {rows}x{cols} buffer"
    if uop.send and uop.acc_a > rows // TILE:
        yield f"acc_a={uop.acc_a} row tiles of a buffer with {rows // TILE}"


def check_memory(unit: UnitSpec) -> None:
    """Raise `ProgramError` if the fields of `MemA` cannot say all of a memory."""
    check_size(unit, "rows", [Bound(MemA, "dim1"), Bound(MemA, "acc_a", TILE)])
    check_fixed(unit, "columns", TILE, "a MemA sends one column of tiles")


@lru_cache(typed=True)
def _operation(fill: Load | None, drain: Send | None) -> MemA:
    load = {} if fill is None else {"load": 1, "dim1": fill.rows, "dim2": fill.columns}
    send = {} if drain is None else {"send": 1, "acc_a": drain.rows, "acc_b": drain.times}
    return MemA(**load, **send)


def emit(unit: UnitSpec, items: Iterable[Any]) -> Iterator[MemA]:
    """Yield the instruction of each `Turn`."""
    return (_operation(turn.fill, turn.drain) for turn in items)
