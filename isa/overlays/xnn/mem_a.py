"""MemA: left operands."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from ....machine.description import Memory, UnitSpec
from ....machine.steps import Steps
from ...fields import Record, bits
from ...work import Load, Send
from .ping_pong import PingPong
from .tiles import tile_rows


class MemA(Record, words=1):
    """LHS scratchpad: send tiles of one buffer while loading the other."""

    dim1: int = bits(0, 0, 9, "rows to load")
    dim2: int = bits(0, 9, 8, "columns to load")
    acc_a: int = bits(0, 17, 3, "row tiles to send")
    acc_b: int = bits(0, 20, 3, "times each tile is sent")
    load: int = bits(0, 23, 1, "fill the other buffer from DDR")
    send: int = bits(0, 24, 1, "send the current buffer to MeshA")


MEMORY = Memory(256, 128)
"""A slice of K for two row tiles."""


class MemAUnit(PingPong):
    """LHS scratchpad, 256x128."""

    ROWS, COLS = 256, 128

    def kernel(self, uop: MemA) -> Steps:
        return self.lanes(self._load(uop) if uop.load else None, self._send(uop) if uop.send else None)

    def effect_key(self, uop: MemA) -> Hashable:
        return uop

    def _load(self, uop: MemA) -> Steps:
        yield self.load(self.source("DDR"), uop.dim1, uop.dim2)

    def _send(self, uop: MemA) -> Steps:
        yield self.send(self.sink("MeshA"), self.cur, tile_rows(uop.acc_a, uop.acc_b))


def legal(unit: str, uop: MemA) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    if uop.load and (uop.dim1 > 256 or uop.dim2 > 128 or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"load {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a 256x128 buffer"
    if uop.send and uop.acc_a > 2:
        yield f"acc_a={uop.acc_a} row tiles of a buffer with 2"


@lru_cache(typed=True)
def _operation(fill: Load | None, drain: Send | None) -> MemA:
    load = {} if fill is None else {"load": 1, "dim1": fill.rows, "dim2": fill.columns}
    send = {} if drain is None else {"send": 1, "acc_a": drain.rows, "acc_b": drain.times}
    return MemA(**load, **send)


def emit(unit: UnitSpec, items: Iterable[Any]) -> Iterator[MemA]:
    """Yield the instruction of each `Turn`."""
    return (_operation(turn.fill, turn.drain) for turn in items)
