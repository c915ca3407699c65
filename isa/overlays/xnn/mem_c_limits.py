"""What a MemC's instructions may say, and what they say to no effect."""

from __future__ import annotations

from collections.abc import Iterator

from ....machine.description import UnitSpec
from ...versal.memory import memory_of
from ...versal.tiles import TILE
from .mem_c import (
    ACTIVATIONS,
    ALL_COLUMNS,
    HEADS,
    LATE_PRODUCT,
    TABLE_COLUMNS,
    MemC,
    MemCConfig,
    MemCScores,
    MemCStore,
    MemCTable,
    max_sent,
)
from .ring import SizeField, check_size


def legal(unit: UnitSpec, uop: MemC) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    row_tiles, col_tiles = rows // TILE, cols // TILE
    if unit.capability("send") is None and (uop.send or uop.softmax):
        yield "has no way to MeshA and no softmax"
    if uop.recv and uop.softmax and not uop.recv_a & 3:
        yield "a softmax over no rows"
    if uop.recv and uop.softmax and not uop.k_iter and unit.capability(LATE_PRODUCT) is not None:
        yield "a softmax of what was received before, which may still lack its product by 1 / row sums"
    if uop.store and uop.layernorm and not uop.dim1:
        yield "a norm over no rows"
    if uop.recv and (uop.recv_a > row_tiles or uop.recv_b > col_tiles):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a buffer of {row_tiles}x{col_tiles}"
    if uop.store and (uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"store {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a {rows}x{cols} buffer"
    if uop.send and (uop.send_a > row_tiles or uop.send_k > max_sent(memory_of(unit))):
        yield f"sends {uop.send_a}x{uop.send_k} tiles; {row_tiles}x{max_sent(memory_of(unit))} is the most"


def legal_config(unit: UnitSpec, uop: MemCConfig) -> Iterator[str]:
    """Yield the reasons why values of registers are not defined, although they are in range (contract section 7)."""
    cols = memory_of(unit).columns
    if uop.activation > len(ACTIVATIONS):
        yield f"activation {uop.activation} is not defined"
    if uop.softmax_cols > cols and uop.softmax_cols != ALL_COLUMNS:
        yield f"softmax_cols={uop.softmax_cols} is neither within 0..{cols} nor {ALL_COLUMNS}"
    if uop.norm_cols > cols:
        yield f"norm_cols={uop.norm_cols} is not within 0..{cols}"


def legal_scores(unit: UnitSpec, uop: MemCScores) -> Iterator[str]:
    """Yield the reasons why values of the registers of a softmax are not defined, although they are in range."""
    cols = memory_of(unit).columns
    if unit.capability("send") is None:
        yield "has no softmax"
    if uop.first_cols > cols:
        yield f"first_cols={uop.first_cols} is not within 0..{cols}"
    if uop.capped and (uop.cap <= 0 or uop.inverse_cap <= 0):
        yield f"cap={uop.cap:g} and inverse_cap={uop.inverse_cap:g}: both must be greater than 0"


def legal_store(unit: UnitSpec, uop: MemCStore) -> Iterator[str]:
    """Yield the reasons why values of the registers of a store are not defined, although they are in range."""
    head, cols = HEADS[uop.head], memory_of(unit).columns
    if (uop.rotate or uop.head_norm) and not head:
        yield "rotate and head_norm need heads: head = 1 (64 columns), 2 (128) or 3 (256)"
    if head > cols:
        yield f"heads of {head} columns in a buffer of {cols}"
    if uop.head_norm and head and not 0 < uop.head_cols <= head:
        yield f"head_cols={uop.head_cols} is not within 1..{head}"
    if uop.head_norm and uop.statistics:
        yield "statistics are of whole rows: head_norm must be 0"


def legal_table(unit: UnitSpec, uop: MemCTable) -> Iterator[str]:
    """Yield the reasons why a table cannot be filled so."""
    memory = memory_of(unit)
    rows, cols = memory.rows // TILE, TABLE_COLUMNS // TILE
    if memory.slots > 2:
        yield f"a table needs a buffer of two slots, not {memory.slots}: a store may still use the one of before"
    if not (0 < uop.recv_a <= rows and 0 < uop.recv_b <= cols):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a table of {rows}x{cols}"


def check_memory(unit: UnitSpec, *, registers: bool) -> None:
    """Raise `ProgramError` if the fields of `MemC`, and of its registers, cannot say all of a memory. `recv_a` has 3
    bits, of which a MemC that sends reads two."""
    rows = [SizeField(MemC, "dim1"), SizeField(MemC, "recv_a", TILE), SizeField(MemC, "send_a", TILE)]
    columns = [SizeField(MemC, "dim2"), SizeField(MemC, "recv_b", TILE)]
    if registers:
        columns += [SizeField(MemCConfig, "softmax_cols"), SizeField(MemCConfig, "norm_cols")]
    check_size(unit, "rows", rows)
    check_size(unit, "columns", columns)


def lint(mop: MemC) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    if mop.send and mop.store:
        yield "send and store are both set; on MemC0-3 send suppresses the store"
    if mop.recv_k:
        yield "recv_k has no effect"
    if (mop.gelu or mop.layernorm) and not mop.store:
        yield "a post-op without store does nothing"
    if mop.softmax and not mop.recv:
        yield "softmax without recv does nothing"
