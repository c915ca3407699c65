"""MemB: right operands, and the vectors that MMEs take from right tiles."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ....machine.description import Capability, Memory, UnitSpec, Where
from ....machine.steps import Burst, Channel, Step, Steps
from ...fields import Record, bits
from ...work import Load, LoadVector, Send
from .ping_pong import PingPong, blocks_of
from .tiles import BEATS, BIAS_WORD, BLOCK_WORDS, TILE, Array, Pieces, tile_columns

GROUP = 32
"""Elements of a vector that lie in one row of a slot."""


class MemB(Record, words=2):
    """RHS scratchpad: send tiles of one buffer while loading the other, transposing where asked."""

    dim1: int = bits(0, 0, 10, "rows to load (K); with bias: groups of 32 floats per column block")
    dim2: int = bits(0, 10, 10, "columns to load (N); with bias: column blocks")
    acc_a: int = bits(0, 20, 3, "times the tiles are sent")
    acc_b: int = bits(0, 23, 3, "column tiles to send")
    acc_k: int = bits(0, 26, 3, "row tiles to send (MemB2)")
    load: int = bits(0, 29, 1, "fill the other buffer")
    send: int = bits(0, 30, 1, "send the current buffer to MeshB")
    transpose: int = bits(0, 31, 1, "load blocks from DDR, transposed")
    bias: int = bits(1, 0, 1, "load a vector from LPDDR")


MEMORY = Memory(128, 512, banks=8)
"""A slice of K for four column tiles. The banks let it fill a slot transposed."""
VALUES_MEMORY = Memory(512, 64)
"""Four row tiles of the values of an attention head."""
CAPABILITIES = (Capability("transpose", Where.LOAD),)


class MemBUnit(PingPong):
    """RHS scratchpad of MME columns: MemB0 and MemB1, 128x512."""

    ROWS, COLS = 128, 512

    def kernel(self, uop: MemB) -> Steps:
        return self.lanes(self._load(uop) if uop.load else None, self._send(uop) if uop.send else None)

    def effect_key(self, uop: MemB) -> Hashable:
        return uop

    def _load(self, uop: MemB) -> Steps:
        if uop.bias:
            return self._load_vector(uop)
        if uop.transpose:
            return self._load_transposed(uop)
        return self._load_blocks(uop, self.source("LPDDR"))

    def _load_blocks(self, uop: MemB, source: Channel) -> Steps:
        yield self.load(source, uop.dim1, uop.dim2)

    def _load_transposed(self, uop: MemB) -> Steps:
        """dim1 and dim2 are K and N after transposition; the blocks come as N x K."""
        side = 1 - self.cur
        self.renew(side, uop.dim1, uop.dim2)
        places = blocks_of(uop.dim2, uop.dim1)
        at = 0

        def put(n: int, pieces: Pieces) -> None:
            nonlocal at
            at += n
            self.buffers[side].put_transposed(places[at - n : at], pieces)

        source = (self.source("DDR"),)
        yield Burst(len(places), "mem_word", BLOCK_WORDS, gets=source, words=BLOCK_WORDS, do=put)

    def _load_vector(self, uop: MemB) -> Steps:
        """dim2 column blocks of dim1 groups of 32 floats."""
        side = 1 - self.cur
        self.renew(side, 0, 0)

        def put(vector: Array) -> None:
            self.buffers[side].put_vector(vector, uop.dim1, uop.dim2)

        words = uop.dim1 * uop.dim2 * 32 // BIAS_WORD
        if words:
            yield Step("mem_word", words, gets=(self.source("LPDDR"),), words=words, do=put)

    def _send(self, uop: MemB) -> Steps:
        yield self.send(self.sink("MeshB"), self.cur, tile_columns(uop.acc_a, uop.acc_b))


class MemB2Unit(MemBUnit):
    """RHS scratchpad of the attention values: 512x64, sent as 128x128 tiles whose right half is 0."""

    ROWS, COLS = 512, 64

    def _load(self, uop: MemB) -> Steps:
        return self._load_blocks(uop, self.source("DDR"))

    def _send(self, uop: MemB) -> Steps:
        side = self.cur
        order = [*range(uop.acc_k)] * (uop.acc_a * uop.acc_b)
        at = 0

        def tiles(n: int) -> tuple[Sequence[Array]]:
            nonlocal at
            at += n
            return (self.buffers[side].half_tiles(order[at - n : at]),)

        yield Burst(len(order), "mesh_beat", BEATS, puts=(self.sink("MeshB"),), do=tiles)


def legal(unit: str, uop: MemB) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    second = unit == "MemB2"
    if uop.load and uop.bias:
        if second:
            yield "MemB2 loads no vectors"
        if uop.dim1 > 32 or uop.dim2 > 4 or (uop.dim2 > 1 and uop.dim1 != 32):
            yield f"vector of {uop.dim2} column blocks of {uop.dim1} groups: at most 4 of exactly 32, or 1 of fewer"
    elif uop.load:
        if second and uop.transpose:
            yield "MemB2 does not transpose"
        rows, cols = (512, 64) if second else (128, 512)
        row_step, col_step = (64, 128) if uop.transpose else (128, 64)
        if uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % row_step or uop.dim2 % col_step:
            yield f"load {uop.dim1}x{uop.dim2} is no whole number of blocks of a {rows}x{cols} buffer"
    if uop.send and second and (uop.acc_k > 4):
        yield f"acc_k={uop.acc_k} row tiles of a buffer with 4"
    if uop.send and not second and uop.acc_b > 4:
        yield f"acc_b={uop.acc_b} column tiles of a buffer with 4"


@lru_cache(typed=True)
def _operation(kind: type[MemBUnit], fill: Load | LoadVector | None, drain: Send | None) -> MemB:
    load: dict[str, int] = {}
    if isinstance(fill, LoadVector):
        groups = fill.size // GROUP
        rows = min(TILE // 4, groups)
        load = {"load": 1, "bias": 1, "dim1": rows, "dim2": groups // rows}
    elif fill is not None:
        load = {"load": 1, "transpose": int(fill.transpose), "dim1": fill.rows, "dim2": fill.columns}
    send: dict[str, int] = {}
    if drain is not None:
        send = {"send": 1, "acc_a": drain.times, "acc_b": drain.columns}
        if issubclass(kind, MemB2Unit):
            send["acc_k"] = drain.rows
    return MemB(**load, **send)


def emit(unit: UnitSpec, items: Iterable[Any]) -> Iterator[MemB]:
    """Yield the instruction of each `Turn`."""
    return (_operation(unit.behaviour, turn.fill, turn.drain) for turn in items)  # type: ignore[arg-type]
