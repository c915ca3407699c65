"""MemB: right operands, and the vectors that MMEs take from right tiles."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ....machine.description import Capability, Memory, UnitSpec, Where, memory_of
from ....machine.steps import Burst, Channel, Step, Steps
from ....machine.unit import Halves, Wiring
from ...fields import Record, bits
from ...versal.tiles import BEAT, BEATS, BIAS_WORD, BLOCK_WORDS, TILE, Array, Pieces, tile_columns
from ...work import Load, LoadVector, Patched, Registers, Send
from .ring import RingUnit, SizeField, blocks_of, check_fixed, check_size, nothing

GROUP = 32
"""Elements of a vector that lie in one row of a slot."""


class MemB(Record, words=2):
    """RHS scratchpad: send tiles of one buffer while loading the other, transposing where asked."""

    dim1: int = bits(0, 0, 10, "rows to load (K); with bias: groups of 32 floats per column block")
    dim2: int = bits(0, 10, 10, "columns to load (N); with bias: column blocks")
    acc_a: int = bits(0, 20, 3, "times the tiles are sent")
    acc_b: int = bits(0, 23, 3, "column tiles to send")
    acc_k: int = bits(0, 26, 3, "row tiles to send (MemB2, and a MemB with more than 128 rows)")
    load: int = bits(0, 29, 1, "fill the other buffer")
    send: int = bits(0, 30, 1, "send the current buffer to MeshB")
    transpose: int = bits(0, 31, 1, "load blocks from DDR, transposed")
    bias: int = bits(1, 0, 1, "load a vector from LPDDR")


class MemBConfig(Record, words=1):
    """Registers of a MemB (our opcode 13). The defaults are the power-on values."""

    whole: int = bits(0, 0, 1, "MemB2 sends whole tiles: acc_b column tiles, of each acc_k row tiles")


MEMORY = Memory(128, 512, banks=8)
"""A slice of K for four column tiles. The banks let it fill a slot transposed."""
VALUES_MEMORY = Memory(512, 64)
"""Four row tiles of the values of an attention head."""
WIDE_VALUES_MEMORY = Memory(512, 256)
"""As many, of heads of up to 256 columns: whole tiles."""
GROUPS = TILE // 4
"""Groups of 32 floats in a column block of a vector: one in every fourth row of a tile."""
CAPABILITIES = (Capability("transpose", Where.LOAD),)


class MemBUnit(RingUnit):
    """RHS scratchpad of MME columns (MemB0 and MemB1): sends the current slot, loads the next one."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.registers = MemBConfig()

    def kernel(self, uop: MemB | MemBConfig) -> Steps:
        return self._configure(uop) if isinstance(uop, MemBConfig) else super().kernel(uop)

    def halves(self, uop: MemB | MemBConfig) -> Halves | None:
        if isinstance(uop, MemBConfig):
            return None
        cur = self.turn()
        fill = self._load(uop, self.beside(cur, 1)) if uop.load else None
        return fill, self._send(uop, cur) if uop.send else None

    def effect_key(self, uop: MemB | MemBConfig) -> Hashable | None:
        if isinstance(uop, MemBConfig):
            return None  # it sets registers
        return uop, self.registers.whole

    def _configure(self, uop: MemBConfig) -> Steps:
        self.registers = uop
        yield Step()

    def _load(self, uop: MemB, side: int) -> Steps:
        if uop.bias:
            return self._load_vector(uop, side)
        if uop.transpose:
            return self._load_transposed(uop, side)
        return self._load_blocks(uop, self.source("LPDDR"), side)

    def _load_blocks(self, uop: MemB, source: Channel, side: int) -> Steps:
        yield self.load(source, side, uop.dim1, uop.dim2)

    def _load_transposed(self, uop: MemB, side: int) -> Steps:
        """dim1 and dim2 are K and N after transposition; the blocks come as N x K."""
        self.renew(side, uop.dim1, uop.dim2)
        places = blocks_of(uop.dim2, uop.dim1)
        at = 0

        def put(n: int, pieces: Pieces) -> None:
            nonlocal at
            at += n
            self.buffers[side].put_transposed(places[at - n : at], pieces)

        source = (self.source("DDR"),)
        yield Burst(len(places), "mem_word", BLOCK_WORDS, gets=source, words=BLOCK_WORDS, do=put)

    def _load_vector(self, uop: MemB, side: int) -> Steps:
        """dim2 column blocks of dim1 groups of 32 floats."""
        self.renew(side, 0, 0)

        def put(vector: Array) -> None:
            self.buffers[side].put_vector(vector, uop.dim1, uop.dim2)

        words = uop.dim1 * uop.dim2 * 32 // BIAS_WORD
        if words:
            yield Step("mem_word", words, gets=(self.source("LPDDR"),), words=words, do=put)

    def _send(self, uop: MemB, side: int) -> Steps:
        """Slices of K one after the other, each as the MMEs take it."""
        for k in range(slices(self.size, uop)):
            yield self.send(self.sink("MeshB"), side, tile_columns(uop.acc_a, uop.acc_b), k)


class MemB2Unit(MemBUnit):
    """RHS scratchpad of the attention values: sent as 128x128 tiles whose right half is 0, or as whole tiles."""

    def _load(self, uop: MemB, side: int) -> Steps:
        return self._load_blocks(uop, self.source("DDR"), side)

    def _send(self, uop: MemB, side: int) -> Steps:
        if not self.registers.whole:
            return self._send_halves(uop, side)
        tiles = self.size.columns // TILE
        if uop.acc_b > tiles:
            self.refuse(f"sends {uop.acc_b} column tiles of a buffer with {tiles}")
            return nothing()
        return self._send_whole(uop, side)

    def _send_whole(self, uop: MemB, side: int) -> Steps:
        places = [(k, b) for b in range(uop.acc_b) for k in range(uop.acc_k)] * uop.acc_a
        yield self.send(self.sink("MeshB"), side, tuple(places))

    def _send_halves(self, uop: MemB, side: int) -> Steps:
        order = [*range(uop.acc_k)] * (uop.acc_a * uop.acc_b)
        at = 0

        def tiles(n: int) -> tuple[Sequence[Array]]:
            nonlocal at
            at += n
            return (self.buffers[side].half_tiles(order[at - n : at]),)

        yield Burst(len(order), "mesh_beat", BEATS, puts=(self.sink("MeshB"),), do=tiles)


def slices(memory: Memory, uop: MemB) -> int:
    """Return how many slices of K (row tiles) a MemB0 or MemB1 sends for a uOP. A slot of the published machine holds
    one, and acc_k is then ignored.
    """
    return max(uop.acc_k, 1) if memory.rows > TILE else 1


def legal(unit: UnitSpec, uop: MemB) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and 2).

    Raises `ProgramError` if the unit has no memory.
    """
    values = issubclass(unit.behaviour, MemB2Unit)
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    if uop.load and uop.bias:
        if values:
            yield f"{unit.name} loads no vectors"
        if uop.dim1 > GROUPS or uop.dim2 > TILE // BEAT or (uop.dim2 > 1 and uop.dim1 != GROUPS):
            yield f"vector of {uop.dim2} column blocks of {uop.dim1} groups: at most 4 of exactly 32, or 1 of fewer"
    elif uop.load:
        if values and uop.transpose:
            yield f"{unit.name} does not transpose"
        row_step, col_step = (64, 128) if uop.transpose else (128, 64)
        if uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % row_step or uop.dim2 % col_step:
            yield f"load {uop.dim1}x{uop.dim2} is no whole number of blocks of a {rows}x{cols} buffer"
    if uop.send and uop.acc_k > rows // TILE and (values or rows > TILE):
        yield f"acc_k={uop.acc_k} row tiles of a buffer with {rows // TILE}"
    if uop.send and not values and uop.acc_b > cols // TILE:
        yield f"acc_b={uop.acc_b} column tiles of a buffer with {cols // TILE}"


def legal_config(unit: UnitSpec, uop: MemBConfig) -> Iterator[str]:
    """Yield the reasons why values of the registers are not defined, although they are in range. Raises `ProgramError`
    if a MemB2 has no memory.
    """
    if uop.whole and not issubclass(unit.behaviour, MemB2Unit):
        yield "whole is a register of MemB2: the others send whole tiles"
    elif uop.whole and memory_of(unit).columns < TILE:
        yield f"whole tiles of {TILE} columns from a buffer of {memory_of(unit).columns}"


def capabilities(unit: UnitSpec, *, registers: bool) -> tuple[Capability, ...]:
    """Return the capabilities of a MemB. Those of a MemB2 need registers and at least 128 columns; it has none
    otherwise. registers: the unit has the registers of opcode 13. Raises `ProgramError` if a MemB2 has no memory."""
    if not issubclass(unit.behaviour, MemB2Unit):
        return CAPABILITIES
    columns = memory_of(unit).columns
    able = registers and columns >= TILE
    return (Capability("whole_tiles", Where.SEND, {"columns": (1, columns)}, "mesh_beat", BEAT),) if able else ()


def check_memory(unit: UnitSpec, *, registers: bool) -> None:
    """Raise `ProgramError` if a unit has no memory, or one that the fields of `MemB` cannot fill. registers: the unit
    has the registers of opcode 13; without them a MemB2 must have 64 columns."""
    check_size(unit, "rows", [SizeField(MemB, "dim1"), SizeField(MemB, "acc_k", TILE)])
    half = memory_of(unit).columns == TILE // 2
    if issubclass(unit.behaviour, MemB2Unit) and not (registers and not half):
        check_fixed(unit, "columns", TILE // 2, f"{unit.name} sends tiles of which one half is 0")
    else:
        check_size(unit, "columns", [SizeField(MemB, "dim2"), SizeField(MemB, "acc_b", TILE)])


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
        if issubclass(kind, MemB2Unit) or drain.rows > 1:
            send["acc_k"] = drain.rows
    return MemB(**load, **send)


def emit(unit: UnitSpec, items: Iterable[Any], *, registers: bool) -> Iterator[MemB | Patched]:
    """Yield the instruction of each of the items, `Turn`s, and before it the one that sets registers, if their values
    change. registers: the unit has those of opcode 13.

    Raises `ProgramError` for whole tiles of a MemB2 without registers, `FieldError` for a value that does not fit its
    field.
    """
    held = Registers(MemBConfig)
    values = registers and issubclass(unit.behaviour, MemB2Unit)
    for turn in items:
        if values and isinstance(turn.drain, Send):
            yield from held.set({"whole": int(turn.drain.whole)})
        elif isinstance(turn.drain, Send) and issubclass(unit.behaviour, MemB2Unit):
            held.require_power_on(unit, {"whole": int(turn.drain.whole)})
        yield _operation(unit.behaviour, turn.fill, turn.drain)  # type: ignore[arg-type]
