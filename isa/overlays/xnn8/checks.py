"""What `check` knows about programs for xnn8: operations that a unit cannot execute, and memories of lanes that tokens
do not order.

Rows has one program, so it writes in order. A reader (Send, Heads) comes behind the block that the last token it waited
for tells of, and Rows behind the operations of a reader whose tokens it waited for. The way of data through the engine
orders nothing here, although it may in a run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....base.finding import Finding
from ....machine.description import UnitSpec
from ...expansion import ExpandedProgram
from ...versal.off_chip import ChunkTransfer
from ...versal.off_chip import legal as legal_chunk
from .formats import (
    CONSTANTS,
    LANE_ROWS,
    LANES,
    PAIRS,
    ROW_PAIR,
    ROW_STEP,
    T_BLOCKS,
    X_BLOCKS,
    AddedResidual,
    ChunkSource,
    EngineOp,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    RowOp,
)
from .functions import TABLES
from .numbers import BLOCK


def legal(unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why a unit cannot execute a uOP whose fields are all in range."""
    match uop:
        case ChunkTransfer():
            yield from legal_chunk(unit, uop)
            if uop.peers == ("W",) or not uop.peers:
                return
            if (unit.name == "LPDDR") != (uop.piece == CONSTANTS):
                yield "constants come from LPDDR, blocks of X from DDR"
            elif uop.piece != CONSTANTS and uop.piece % (ROW_STEP * ROW_PAIR // 2):
                yield f"a block of X that is no multiple of {ROW_STEP} rows"
        case PanelWeights():
            if not uop.chunks or not uop.engines:
                yield "sends no weights, or to no engine"
            if uop.ddr > uop.columns:
                yield f"ddr={uop.ddr} of {uop.columns} columns"
            yield from _columns(uop.columns)
        case PanelRows(blocks=0) | PanelSend(chunks=0) | PanelHeads(heads=0):
            pass
        case PanelRows():
            yield from _lanes(uop)
            yield from _rows(uop)
        case PanelSend():
            yield from _lanes(uop)
            yield from _send(uop)
        case PanelHeads():
            yield from _lanes(uop)
            yield from _columns(uop.heads)
            yield from _heads(uop, uop.heads, uop.keys_slot, uop.values)
        case EngineOp():
            yield from _lanes(uop)
            yield from _columns(uop.columns)
            if not uop.attention and not (uop.depth and uop.times):
                yield "makes no results"
            if uop.leaves and not uop.attention:
                yield "waits for results of attention, and makes none"


def _lanes(uop: Any) -> Iterator[str]:
    if not 1 <= uop.lanes <= LANES - uop.first:
        yield f"lanes {uop.first} to {uop.first + uop.lanes - 1}: an engine has {LANES}"
    if not 1 <= uop.rows <= LANE_ROWS or uop.rows % ROW_STEP:
        yield f"rows={uop.rows}: a lane has up to {LANE_ROWS}, a multiple of {ROW_STEP}"


def _columns(columns: int) -> Iterator[str]:
    if not 1 <= columns <= PAIRS:
        yield f"{columns} columns of pairs: an engine has {PAIRS}"


def _blocks(memory: str, slot: int, blocks: int, there: int) -> Iterator[str]:
    if not 1 <= blocks <= there - slot:
        yield f"{blocks} blocks from block {slot} on: {memory} has {there}"


def _of_heads(heads: int, narrow: int) -> int:
    """Blocks of some heads."""
    return -(-heads * (BLOCK >> narrow) // BLOCK)


def _heads(uop: Any, heads: int, *slots: int) -> Iterator[str]:
    for slot in slots:
        yield from _blocks("T", slot, _of_heads(heads, uop.narrow), T_BLOCKS)
    if not 1 <= uop.keys <= uop.lanes * uop.rows:
        yield f"keys={uop.keys}: these lanes have 1 to {uop.lanes * uop.rows}"


def _rows(uop: PanelRows) -> Iterator[str]:
    taking = uop.op == RowOp.TAKE
    if uop.attention:
        yield from _heads(uop, uop.blocks, uop.slot, uop.values)
    else:
        in_t = taking and uop.to_t
        yield from _blocks("T" if in_t else "X", uop.slot, uop.blocks, T_BLOCKS if in_t else X_BLOCKS)
    if taking:
        yield from _columns(uop.blocks)
    if uop.first and uop.op in (RowOp.SEND, RowOp.TAKE) and not uop.attention:
        yield "begins with the first lane, but for loads, stores, and results of attention"
    if uop.attention and (not taking or not uop.to_t or uop.residual or uop.function):
        yield "results of attention go to T as they are"
    if uop.tell and not uop.attention:
        yield "tells that results of attention have left, and takes none"
    if uop.residual > max(AddedResidual):
        yield f"residual={uop.residual} is none"
    if uop.residual and (not taking or uop.to_t):
        yield "only results that go to X are added to X"
    if uop.function > len(TABLES):
        yield f"function={uop.function}: Post has 1 to {len(TABLES)}"
    if uop.norm and (uop.op not in (RowOp.SEND, RowOp.STORE) or not 1 <= uop.columns <= BLOCK * uop.blocks):
        yield f"a norm over {uop.columns} columns of {uop.blocks} blocks that leave X"


def _send(uop: PanelSend) -> Iterator[str]:
    match uop.source:
        case ChunkSource.QUERIES:
            yield from _columns(uop.chunks)
            yield from _heads(uop, uop.chunks, uop.slot, uop.keys_slot)
            if not 1 <= uop.count <= uop.lanes * uop.rows:
                yield f"count={uop.count}: these lanes have 1 to {uop.lanes * uop.rows}"
            if not 1 <= uop.head_dim <= BLOCK >> uop.narrow:
                yield f"head_dim={uop.head_dim}: a head has 1 to {BLOCK >> uop.narrow} columns"
        case ChunkSource.X8 | ChunkSource.T:
            there = X_BLOCKS if uop.source == ChunkSource.X8 else T_BLOCKS
            yield from _blocks("X8" if uop.source == ChunkSource.X8 else "T", uop.slot, uop.chunks, there)
            if uop.first:
                yield "begins with the first lane, but for queries"
            yield from _columns(uop.columns)
        case _:
            yield f"source={uop.source} is none"
    if uop.each and uop.source != ChunkSource.X8:
        yield "rows of T are aligned to their largest exponent: all of them must be there before the first goes"


FACTORS_CELL = "the factors of X8", 0
"""Of each row in X8 there is one factor, whichever blocks hold it."""


class BlockWrite(NamedTuple):
    """A block that Rows writes. number: in its program. op: its operation. waited: of each reader, the operations that
    Rows has waited for."""

    number: int
    op: int
    waited: tuple[int, int]


@dataclass
class LaneWrites:
    """What a unit Rows writes, by memory and block. tokens: of each reader, the numbers of the blocks that its tokens
    tell of."""

    cells: dict[tuple[str, int], list[BlockWrite]] = field(default_factory=lambda: defaultdict(list))
    tokens: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    @classmethod
    def of(cls, uops: Sequence[PanelRows]) -> LaneWrites:
        """Return what a unit Rows writes with these uOPs, in their order."""
        made, number, waited = cls(), 0, (0, 0)
        for op, uop in enumerate(uops):
            waited = waited[0] + uop.wait, waited[1] + uop.wait_heads
            sends, takes = uop.op == RowOp.SEND, uop.op == RowOp.TAKE and uop.to_t
            blocks = _of_heads(uop.blocks, uop.narrow) if uop.attention else uop.blocks
            for slot in range(uop.slot, uop.slot + blocks) if sends or takes else ():
                written = BlockWrite(number, op, waited)
                made.cells["X8" if sends else "T", slot].append(written)
                if sends and slot == uop.slot:
                    made.cells[FACTORS_CELL].append(written)
                made.tokens[0 if sends else uop.reader].append(number)
                number += 1
        return made


def rules(expansion: ExpandedProgram, balanced: bool) -> Iterator[Finding]:
    """Yield all findings about a program. expansion: of a program with the units of xnn8; raises `KeyError` for
    another. balanced: sends equal receives on every stream; otherwise streams have findings of their own."""
    for rows in expansion.overlay.by_kind["Rows"]:
        writes = LaneWrites.of(_uops(expansion, rows.name))
        for reader, kind in enumerate(("Send", "Heads")):
            yield from _reads(expansion, writes, reader, f"{kind}{rows.index}", rows.name)
        engine = f"Engine{rows.index}"
        before: EngineOp | None = None
        for number, uop in enumerate(_uops(expansion, engine)):
            if before is not None and before.attention and not before.leaves and not uop.attention:
                text = (
                    f"{engine} uOP {number} is a product, whose sums lie where results of attention may not have left"
                )
                help = "set `leaves` of the uOP before it, and `tell` where Rows takes the last of its results"
                yield Finding("Y09", text, expansion.where(engine, number), help=help)
            before = uop


def _uops(expansion: ExpandedProgram, unit: str) -> list[Any]:
    return [expansion.uops[kind] for kind in expansion.sequences[unit].kinds.tolist()]


def _read(uop: Any) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield what an operation of a reader reads, and for how many blocks of its own it has waited before."""
    match uop:
        case PanelSend(source=ChunkSource.X8):
            yield FACTORS_CELL, uop.wait + uop.each
            for i in range(uop.chunks):
                yield ("X8", uop.slot + i), uop.wait + (i + 1) * uop.each
        case PanelSend(source=ChunkSource.T):
            yield from ((("T", uop.slot + i), uop.wait) for i in range(uop.chunks))
        case _:
            heads, slots = (
                (uop.heads, (uop.keys_slot, uop.values))
                if isinstance(uop, PanelHeads)
                else (uop.chunks, (uop.slot, uop.keys_slot))
            )
            yield from ((("T", slot + i), uop.wait) for slot in slots for i in range(_of_heads(heads, uop.narrow)))


def _reads(expansion: ExpandedProgram, writes: LaneWrites, reader: int, name: str, rows: str) -> Iterator[Finding]:
    """Yield the reads of a reader that come before the write of what they read, or may come behind the next one."""
    tokens, taken = writes.tokens[reader], 0
    for number, uop in enumerate(_uops(expansion, name)):
        for (memory, slot), waited in _read(uop):
            count = min(taken + waited, len(tokens))
            seen = tokens[count - 1] if count else -1
            cell = writes.cells.get((memory, slot), [])
            at = bisect_right(cell, seen, key=lambda write: write.number)
            if not at:
                text = f"{name} uOP {number} reads block {slot} of {memory}, which {rows} has not certainly written"
                yield Finding("Y01", text, expansion.where(name, number), help="let it wait for more blocks")
            elif at < len(cell) and cell[at].waited[reader] <= number:
                text = (
                    f"{name} uOP {number} reads block {slot} of {memory}, over which {rows} uOP {cell[at].op} may write"
                )
                help = f"let that uOP wait for more operations of {name}, or this one for more blocks"
                yield Finding("Y02", text, expansion.where(name, number), help=help)
        taken += uop.wait + (uop.chunks if isinstance(uop, PanelSend) and uop.each else 0)
