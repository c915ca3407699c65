"""What `check` knows about programs for xnn8: operations that a unit cannot execute, and memories of lanes that tokens
do not order; weights of other bits than W takes, and rows of other bits than Send sends.

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
    ANGLE_CELLS,
    CONSTANTS,
    ENGINES,
    LANE_ROWS,
    LANES,
    PAIRS,
    ROW_PAIR,
    ROW_STEP,
    SHORT_ROW_PAIR,
    SHORT_WEIGHT_WORD,
    T_CELLS,
    WIDE_ROWS,
    X_CELLS,
    AddedResidual,
    CacheRows,
    ChunkSource,
    EngineOp,
    LaneMemory,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    RowOp,
    cells,
    slices,
    walked_cells,
)
from .functions import TABLES
from .lanes import HEADS, SEND, keys_of, pitch_of, shared
from .numbers import BLOCK, LOW_BITS
from .rows import blocks_of_results, results_of


def legal(unit: UnitSpec, uop: Any) -> Iterator[str]:
    """Yield the reasons why a unit cannot execute a uOP whose fields are all in range: a text each; none if it can."""
    match uop:
        case ChunkTransfer():
            yield from legal_chunk(unit, uop)
            if uop.peers == ("W",) or not uop.peers:
                return
            if (unit.name == "LPDDR") != (uop.piece == CONSTANTS):
                yield "constants come from LPDDR, blocks of rows from DDR"
            elif uop.piece != CONSTANTS and all(uop.piece % (ROW_STEP * pair) for pair in (ROW_PAIR, SHORT_ROW_PAIR)):
                yield "a block of X or T that is no multiple of 32 rows"
        case CacheRows():
            yield from _cache_rows(unit, uop)
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
            yield from _span(uop)
            yield from _heads(uop, uop.heads)
        case EngineOp():
            yield from _lanes(uop)
            yield from _columns(uop.columns)
            if not uop.attention and not (uop.depth and uop.times):
                yield "makes no results"
            if uop.leaves and not uop.attention:
                yield "waits for results of attention, and makes none"
            if uop.attention:
                yield from _keys(uop)
                yield from _wide(uop)


def _cache_rows(unit: UnitSpec, uop: CacheRows) -> Iterator[str]:
    if unit.name == "LPDDR":
        yield "rows of T are in DDR"
    if not all(uop.peers):
        yield "rows of T come from one engine, or go to one"
    if not uop.pitch or not uop.size or uop.size % uop.piece:
        yield f"{uop.size} elements are no whole number of {uop.piece}, which pass at a time"
    if uop.row is not None and not uop.store:
        yield "one row of a cache is only stored"
    rows = 1 if uop.row is not None else uop.size // max(1, uop.pitch)
    if uop.of_lanes != rows:
        yield f"rows of lanes are {uop.of_lanes}, rows that move {rows}"


def _span(uop: Any) -> Iterator[str]:
    if not 1 <= uop.lanes <= LANES - uop.first:
        yield f"lanes {uop.first} to {uop.first + uop.lanes - 1}: an engine has {LANES}"


def _lanes(uop: Any) -> Iterator[str]:
    yield from _span(uop)
    if not 1 <= uop.rows <= LANE_ROWS or uop.rows % ROW_STEP:
        yield f"rows={uop.rows}: a lane has up to {LANE_ROWS}, a multiple of {ROW_STEP}"


def _wide(uop: Any) -> Iterator[str]:
    if uop.wide and uop.rows > WIDE_ROWS:
        yield f"rows={uop.rows}: a lane has up to {WIDE_ROWS} if heads have 128 columns"


def _keys(uop: Any) -> Iterator[str]:
    most = ENGINES * LANE_ROWS
    if not 1 <= uop.key_rows <= most or uop.key_rows % ROW_STEP or uop.key_rows % (8 * slices(uop.key_rows)):
        yield f"key_rows={uop.key_rows}: a lane has up to {most}, in equal slices of a multiple of 8"


def _columns(columns: int) -> Iterator[str]:
    if not 1 <= columns <= PAIRS:
        yield f"{columns} columns of pairs: an engine has {PAIRS}"


def _blocks(memory: str, slot: int, blocks: int, rows: int, there: int) -> Iterator[str]:
    if blocks < 1 or slot + blocks * cells(rows) > there:
        yield f"{blocks} blocks of {rows} rows from cell {slot} on: {memory} has {there} of {ROW_STEP} rows"


def _heads(uop: Any, heads: int) -> Iterator[str]:
    """Reasons about heads of attention, and their keys and values."""
    yield from _columns(heads)
    yield from _keys(uop)
    if uop.narrow and uop.wide:
        yield "heads of 32 and of 128 columns"
    if not uop.groups:
        yield "groups=0: a head shares its keys at least with itself"
    elif uop.key_rows:
        for slot, blocks in _of_keys(uop, heads):
            yield from _blocks("T", slot, blocks, uop.key_rows, T_CELLS)
    there = keys_of(uop).all
    if not 1 <= uop.keys <= there:
        yield f"keys={uop.keys}: these lanes have 1 to {there}"


def _of_keys(uop: Any, heads: int) -> Iterator[tuple[int, int]]:
    """Yield the first cells of keys and values that an operation reads, and the number of blocks. heads: that share
    them."""
    blocks = -(-(int(shared(uop, heads).max()) + 1) * pitch_of(uop) // BLOCK)
    for name in ("keys_slot", "values"):
        if hasattr(uop, name):
            yield getattr(uop, name), blocks


def _of_heads(uop: Any, heads: int) -> int:
    """Blocks of some heads."""
    return -(-heads * pitch_of(uop) // BLOCK)


def _of_queries(uop: PanelSend) -> int:
    """Blocks of the queries that an operation reads."""
    return _of_heads(uop, uop.chunks * (uop.groups if uop.grouped else 1))


def _grouped(uop: PanelRows | PanelSend) -> Iterator[str]:
    if uop.grouped and (uop.groups > uop.rows or uop.skip or uop.groups * pitch_of(uop) % BLOCK):
        yield f"{uop.groups} heads become rows: of up to {uop.rows}, in whole blocks, from the first one on"


CELLS = {LaneMemory.X: X_CELLS, LaneMemory.T: T_CELLS, LaneMemory.ANGLES: ANGLE_CELLS}


def _rows(uop: PanelRows) -> Iterator[str]:
    taking = uop.op == RowOp.TAKE
    if uop.memory > max(LaneMemory):
        yield f"memory={uop.memory} is none"
        return
    if uop.op > max(RowOp):
        yield f"op={uop.op} is none"
        return
    memory = LaneMemory(uop.memory)
    if memory is LaneMemory.ANGLES and uop.op != RowOp.LOAD:
        yield "Angles is only loaded"
    in_t = memory is LaneMemory.T
    if uop.attention:
        yield from _heads(uop, uop.blocks)
        yield from _wide(uop)
        yield from _grouped(uop)
    if taking and uop.blocks % results_of(uop) and not uop.attention:
        yield f"{uop.blocks} columns of pairs, of which {results_of(uop)} are taken together"
    loads_t = uop.op == RowOp.LOAD and in_t
    moves = uop.op == RowOp.STORE or (uop.op == RowOp.LOAD and in_t)
    if uop.by_row and (not moves or uop.norm or uop.blocks > PAIRS):
        yield f"only T is loaded, and T or X stored as it is, row by row, {PAIRS} blocks at most"
    if uop.keeps and not (uop.by_row and uop.op == RowOp.STORE):
        yield "only where rows are stored one by one, one alone can be"
    if loads_t:
        yield from _keys(uop)
        if uop.key_rows % uop.rows:
            yield f"key_rows={uop.key_rows} of parts of {uop.rows} rows of a lane"
    blocks = blocks_of_results(uop, uop.blocks) if taking else uop.blocks
    of_lane = uop.key_rows if loads_t else uop.rows
    yield from _blocks(memory.name.capitalize(), uop.slot, blocks, of_lane, CELLS[memory])
    if taking:
        yield from _columns(uop.blocks)
    if uop.op == RowOp.SEND and memory is not LaneMemory.X:
        yield "only X is sent by Rows"
    yield from _low_bits(uop, uop.blocks, in_x8=uop.op == RowOp.SEND)
    if uop.low_bits and uop.op != RowOp.SEND:
        yield "only what X sends has bits beyond 8"
    if uop.first and uop.op in (RowOp.SEND, RowOp.TAKE, RowOp.SUM) and not uop.attention:
        yield "begins with the first lane, but for loads, stores, and results of attention"
    if in_t and uop.op != RowOp.STORE and not uop.readers:
        yield "writes T for no reader"
    behind = uop.residual or uop.function or uop.gated or uop.norm or uop.rotated
    if uop.attention and (not taking or not in_t or behind):
        yield "results of attention go to T as they are"
    if uop.tell and not uop.attention:
        yield "tells that results of attention have left, and takes none"
    if uop.residual > max(AddedResidual):
        yield f"residual={uop.residual} is none"
    if uop.residual and (in_t or uop.gated or uop.op not in (RowOp.TAKE, RowOp.SUM)):
        yield "only results that go to X without a gate are added to X"
    if uop.residual:
        yield from _blocks("X", uop.residual_slot, blocks, uop.rows, X_CELLS)
    if uop.op == RowOp.SUM:
        yield from _blocks("X", uop.source, blocks, uop.rows, X_CELLS)
        if memory is not LaneMemory.X or uop.residual == AddedResidual.NORMALISED:
            yield "blocks of X are added as they are, to X"
    if (uop.gated or uop.rotated) and not taking:
        yield "only results have a gate or are rotated"
    if uop.rotated and not uop.attention:
        span = pitch_of(uop) // BLOCK if uop.wide else 1
        yield from _blocks("Angles", 0, span, uop.rows, ANGLE_CELLS)
    if uop.function > len(TABLES):
        yield f"function={uop.function}: Post has 1 to {len(TABLES)}"
    if uop.norm:
        most = min(pitch_of(uop), BLOCK * blocks) if taking else BLOCK * blocks
        if uop.op in (RowOp.LOAD, RowOp.SUM) or (in_t and not taking) or not 1 <= uop.columns <= most:
            yield f"a norm over {uop.columns} columns of {blocks} blocks that leave X, or of heads"


def _low_bits(uop: PanelRows | PanelSend, blocks: int, *, in_x8: bool) -> Iterator[str]:
    """Reasons about rows of more than 8 bits."""
    if uop.low_bits > LOW_BITS:
        yield f"low_bits={uop.low_bits}: rows have up to {LOW_BITS} beyond 8"
    if uop.low_bits and in_x8:
        yield from _blocks("X8", 0, 2 * blocks, uop.rows, X_CELLS)


def _send(uop: PanelSend) -> Iterator[str]:
    match uop.source:
        case ChunkSource.QUERIES:
            yield from _heads(uop, uop.chunks)
            yield from _wide(uop)
            yield from _blocks("T", uop.slot, _of_queries(uop), uop.rows, T_CELLS)
            yield from _grouped(uop)
            if not 1 <= uop.count <= uop.lanes * uop.rows:
                yield f"count={uop.count}: these lanes have 1 to {uop.lanes * uop.rows}"
            if not 1 <= uop.head_dim <= pitch_of(uop):
                yield f"head_dim={uop.head_dim}: a head has 1 to {pitch_of(uop)} columns"
        case ChunkSource.X8 | ChunkSource.T:
            there = X_CELLS if uop.source == ChunkSource.X8 else T_CELLS
            yield from _blocks(ChunkSource(uop.source).name, uop.slot, uop.chunks, uop.rows, there)
            if uop.first:
                yield "begins with the first lane, but for queries"
            yield from _low_bits(uop, uop.chunks, in_x8=uop.source == ChunkSource.X8)
            yield from _columns(uop.columns)
            if uop.wide or uop.narrow or uop.others:
                yield "rows of a product have no heads"
        case _:
            yield f"source={uop.source} is none"
    if uop.low_bits and uop.source == ChunkSource.QUERIES:
        yield "queries have 8 bits"
    if uop.each and uop.source != ChunkSource.X8:
        yield "rows of T are aligned to their largest exponent: all of them must be there before the first goes"


FACTORS_CELL = "the factors of X8", 0
"""Of each row in X8 there is one factor, whichever blocks hold it."""


def _tiles(memory: str, slot: int, blocks: int, rows: int, low_bits: int = 0) -> Iterator[list[tuple[str, int]]]:
    """Yield the cells of each block. rows: of a lane. low_bits: of X8, that rows have beyond 8."""
    for tile in walked_cells(slot, blocks, rows, low_bits):
        yield [(memory, i) for i in tile]


class BlockWrite(NamedTuple):
    """A block that Rows writes to X8 or T. number: of the block among all that the unit writes, from 0. op: number of
    the uOP that writes it. waited: for Send and Heads, how many of their operations Rows has waited for before.
    low_bits: bits beyond 8 of rows in X8."""

    number: int
    op: int
    waited: tuple[int, int]
    low_bits: int


@dataclass
class LaneWrites:
    """What a unit Rows writes in a program. cells: for each cell, by memory and number, the blocks that are written to
    it, in order. tokens: for Send and Heads, the numbers of the blocks whose writing Rows tells them, in order."""

    cells: dict[tuple[str, int], list[BlockWrite]] = field(default_factory=lambda: defaultdict(list))
    tokens: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    @classmethod
    def of(cls, uops: Sequence[PanelRows]) -> LaneWrites:
        """Return what a unit Rows writes with these uOPs. uops: of the whole program, in order."""
        made, number, waited = cls(), 0, (0, 0)
        for op, uop in enumerate(uops):
            waited = waited[0] + uop.wait, waited[1] + uop.wait_heads
            sends = uop.op == RowOp.SEND
            if not uop.blocks or not (sends or (uop.memory == LaneMemory.T and uop.op != RowOp.STORE)):
                continue
            blocks = blocks_of_results(uop, uop.blocks) if uop.op == RowOp.TAKE else uop.blocks
            rows = uop.key_rows if uop.op == RowOp.LOAD else uop.rows
            for i, tile in enumerate(_tiles("X8" if sends else "T", uop.slot, blocks, rows, uop.low_bits)):
                written = BlockWrite(number, op, waited, uop.low_bits)
                if sends and not i:
                    tile.append(FACTORS_CELL)
                for cell in tile:
                    made.cells[cell].append(written)
                for reader in (SEND, HEADS):
                    if (1 << SEND if sends else uop.readers) >> reader & 1:
                        made.tokens[reader].append(number)
                number += 1
        return made


def rules(expansion: ExpandedProgram, balanced: bool) -> Iterator[Finding]:
    """Yield all findings about a program. expansion: of a program with the units of xnn8; `KeyError` is raised for
    another. balanced: whether as many words are sent as received on every stream. If not, streams have findings of
    their own, and the bits of weights are not checked."""
    if balanced:
        for memory in ("LPDDR", "DDR"):
            yield from _bits_of_weights(expansion, memory)
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


def _bits_of_weights(expansion: ExpandedProgram, memory: str) -> Iterator[Finding]:
    """Yield the uOPs of W that take words of other bits from a memory than their own, each once. Both move as many."""
    sent = (
        (n, x) for n, x in enumerate(_uops(expansion, memory)) if isinstance(x, ChunkTransfer) and x.peers == ("W",)
    )
    number, word, left = -1, 0, 0
    for taking, uop in enumerate(_uops(expansion, "W")):
        due, wrong = uop.chunks * (uop.ddr if memory == "DDR" else uop.columns - uop.ddr), -1
        while due:
            if not left:
                number, transfer = next(sent)
                word, left = transfer.piece, transfer.size // transfer.piece
            if wrong < 0 and (word == SHORT_WEIGHT_WORD) != bool(uop.int4):
                wrong = number
            moved = min(due, left)
            due, left = due - moved, left - moved
        if wrong >= 0:
            bits, others = (4, 8) if uop.int4 else (8, 4)
            text = f"W uOP {taking} takes weights of {bits} bits, {memory} uOP {wrong} sends those of {others}"
            yield Finding("Y10", text, expansion.where("W", taking), help="set `int4` of both alike")


def _read(uop: Any) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield what an operation of a reader reads, and for how many blocks of its own it has waited before."""
    match uop:
        case PanelSend(source=ChunkSource.X8):
            yield FACTORS_CELL, uop.wait + uop.each
            for i, tile in enumerate(_tiles("X8", uop.slot, uop.chunks, uop.rows, uop.low_bits), 1):
                yield from ((cell, uop.wait + i * uop.each) for cell in tile)
        case PanelSend(source=ChunkSource.T):
            for tile in _tiles("T", uop.slot, uop.chunks, uop.rows):
                yield from ((cell, uop.wait) for cell in tile)
        case _:
            heads = uop.heads if isinstance(uop, PanelHeads) else uop.chunks
            read = [(slot, blocks, uop.key_rows) for slot, blocks in _of_keys(uop, heads)] if heads else []
            if isinstance(uop, PanelSend):
                read.append((uop.slot, _of_queries(uop), uop.rows))
            for part in read:
                yield from ((cell, uop.wait) for tile in _tiles("T", *part) for cell in tile)


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
                text = f"{name} uOP {number} reads cell {slot} of {memory}, which {rows} has not certainly written"
                yield Finding("Y01", text, expansion.where(name, number), help="let it wait for more blocks")
            elif at < len(cell) and cell[at].waited[reader] <= number:
                text = (
                    f"{name} uOP {number} reads cell {slot} of {memory}, over which {rows} uOP {cell[at].op} may write"
                )
                help = f"let that uOP wait for more operations of {name}, or this one for more blocks"
                yield Finding("Y02", text, expansion.where(name, number), help=help)
            elif (memory, slot) == FACTORS_CELL and uop.chunks and cell[at - 1].low_bits != uop.low_bits:
                bits = 8 + cell[at - 1].low_bits, 8 + uop.low_bits
                text = f"{name} uOP {number} sends rows of {bits[1]} bits, of which {rows} has written {bits[0]} to X8"
                yield Finding("Y11", text, expansion.where(name, number), help="set `low_bits` of both alike")
        taken += uop.wait + (uop.chunks if isinstance(uop, PanelSend) and uop.each else 0)
