"""The instructions of xnn8, and the record that travels with each chunk of rows to the tiles.

The eight row lanes of an engine get the same instructions and do the same in the same cycle, so an instruction drives
all of them. Units and their memories: `machine`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from ...fields import Record, bits
from ...layout import UNIT, row_units
from ...versal.off_chip import ChunkTransfer, starts
from .numbers import BLOCK, GROUP, NormConstants

ENGINES = 3
LANES = 8
"""Row lanes of an engine: its array rows."""
LANE_ROWS = 64
"""The most rows of a lane."""
ROW_STEP = 16
"""Rows of a lane are a multiple of it: a tile multiplies eight at a time, and each of a pair has half in attention."""
PAIRS = 8
"""Pairs of tiles in an array row, each with 64 columns of results, or a head."""
SLICE_KEYS = 32
"""Keys that a tile computes with at a time in attention."""
X_CELLS, T_CELLS, ANGLE_CELLS = 64, 256, 4
"""Cells of a lane: 16 rows of a block of 64 columns. In X of 16 bits (128 KiB), in T of 8 bits (256 KiB), in Angles of
16 bits (8 KiB). So a lane with fewer rows holds more columns."""
WIDE_ROWS = 32
"""The most rows of a lane whose heads have 128 columns: both tiles of a pair share them."""
RECORD_WORDS = 8
WEIGHT_WORD, SHORT_WEIGHT_WORD = BLOCK * BLOCK // 4, BLOCK * (BLOCK // 2 + BLOCK // GROUP) // 4
"""Words of 32 bits in the part of a chunk of weights that one column of pairs gets, 64 x 64, of 8 bits and of 4 with
their multipliers: a word of W's streams."""
CONSTANTS = 80
"""Words of 32 bits in two vectors of a block, with their exponents."""
ROW_PAIR = BLOCK + 1
"""Words of 32 bits in two rows of a block of X: 64 integers of 16 bits each, and an exponent."""
SHORT_ROW_PAIR = BLOCK // 2 + 1
"""The same of T, off chip: 64 integers of 8 bits each, and an exponent of 16."""


def slices(key_rows: int) -> int:
    """Return the number of equal parts in which Heads passes on the keys of a lane. It is even, and a part has at most
    32 keys of the lane. key_rows: keys of the lane."""
    return 2 * -(-key_rows // (2 * SLICE_KEYS))


def cells(rows: int) -> int:
    """Return how many cells of a lane's memory a block takes. A cell has 16 rows and 64 columns. rows: of the lane, a
    multiple of 16."""
    return rows // ROW_STEP


HALVES = 2
"""Words of a head in the stream of results, each with half of its rows: what the buffers of a pair hold, as they hold a
block of a product."""


def slices_of_keys(key_rows: int, lanes: int) -> int:
    """Return the number of slices of `SLICE_KEYS` keys that a sequence has; the last one may have fewer. key_rows: keys
    in each lane of the sequence. lanes: number of these lanes."""
    return -(-key_rows * lanes // SLICE_KEYS)


class ChunkEnd(IntEnum):
    """What a transfer of an off-chip memory moves, and to or from which units."""

    WEIGHTS = 0
    """To W."""
    CONSTANTS = 1
    """Vectors of constants, to lanes."""
    LOAD = 2
    """Blocks of 16 bits to X or Angles of lanes."""
    STORE = 3
    """Blocks from X of lanes."""
    LOAD_T = 4
    """Blocks of 8 bits to T of lanes."""
    STORE_T = 5
    """Blocks from T of lanes."""
    LOAD_ROWS = 6
    """Rows of a cache to T of all lanes."""
    STORE_ROWS = 7
    """Rows of T to a cache, or rows of T or X to the host."""


OF_ROWS = ChunkEnd.LOAD_ROWS, ChunkEnd.STORE_ROWS


class CacheRows(NamedTuple):
    """An access to rows of T or X that lie off chip one by one (`stored.matrix_words_by_row`). addr: of the first row,
    in units of 64 bytes. size: float32 elements of all rows. store: whether the rows are written to the memory;
    otherwise they are read. peers: names of the units that give or take them. pitch: float32 elements of a row. row:
    number of the only row that is written, which is dropped if it lies beyond `size`; None for all rows. of_lanes: how
    many rows the lanes give or take."""

    addr: int
    size: int
    store: bool
    peers: tuple[str, ...]
    pitch: int
    row: int | None
    of_lanes: int

    @property
    def piece(self) -> int:
        """Float32 elements that pass at a time: those of one row if only one is written, else of 16 rows."""
        return self.pitch if self.row is not None else self.pitch * ROW_STEP


class OffChipChunks(Record, words=5, name="OffChip"):
    """Move `chunks` pieces: weights to W, constants or blocks of X or T to lanes, or blocks of X or T from the lanes of
    one engine."""

    addr: int = bits(0, 0, 32, "first word, in units of 64 bytes")
    size: int = bits(1, 0, 23, "words of 32 bits of one chunk")
    end: int = bits(1, 23, 3, "weights to W, constants to lanes, blocks of X or T, or rows of T, to or from lanes")
    engines: int = bits(1, 26, 3, "whose lanes: bit i selects engine i; ignored for weights")
    rows: int = bits(4, 0, 10, "of a block of X or T, of the lanes of an engine together; one by one, of a lane")
    first: int = bits(4, 10, 3, "first of these lanes")
    lanes: int = bits(4, 13, 4, "their number: each has a port of the memory with one other", default=LANES)
    row: int = bits(4, 17, 11, "of a cache of `size` words: that is stored")
    keeps: int = bits(4, 28, 1, "only that row is stored, unless it is beyond the cache")
    further: int = bits(4, 29, 3, "blocks of a row of T, or engines whose rows a loaded block of T has, but one")
    of_x: int = bits(1, 29, 1, "these rows are of X")
    int4: int = bits(1, 30, 1, "weights have 4 bits, behind the multipliers of their groups")
    reuse_stride: int = bits(2, 0, 32, "from one repetition of the packet to the next, in units of 64 bytes")
    chunk_stride: int = bits(3, 0, 24, "from one chunk to the next, in units of 64 bytes")
    chunks: int = bits(3, 24, 8, "chunks", default=1)


def off_chip_uops(mop: OffChipChunks, iteration: int) -> Iterator[ChunkTransfer | CacheRows]:
    """Yield the uOPs of one repetition of a mOP, one for each chunk. mop: of DDR or LPDDR. iteration: number of the
    repetition, from 0."""
    end = ChunkEnd(mop.end)
    peers = tuple(f"Rows{i}" for i in range(ENGINES) if mop.engines >> i & 1)
    of_t = mop.rows * SHORT_ROW_PAIR // 2
    piece = {
        ChunkEnd.WEIGHTS: SHORT_WEIGHT_WORD if mop.int4 else WEIGHT_WORD,
        ChunkEnd.CONSTANTS: CONSTANTS,
        ChunkEnd.LOAD_T: (mop.further + 1) * of_t,
        ChunkEnd.STORE_T: of_t,
    }.get(end, mop.rows * ROW_PAIR // 2)
    stores = end in (ChunkEnd.STORE, ChunkEnd.STORE_T, ChunkEnd.STORE_ROWS)
    if end in OF_ROWS:
        named = peers if len(peers) == 1 else ("",)
        (units,) = row_units((mop.further + 1) * BLOCK, 1 + mop.of_x)
        for addr in starts(mop, iteration):
            row, of_lanes = mop.row if mop.keeps else None, mop.rows * mop.lanes
            yield CacheRows(addr, mop.size, stores, named, units * UNIT, row, of_lanes)
        return
    if end is ChunkEnd.WEIGHTS:
        peers = ("W",)
    elif stores and len(peers) > 1:
        peers = ("",)
    for addr in starts(mop, iteration):
        yield ChunkTransfer(addr, mop.size, stores, peers, max(1, piece))


class PanelWeights(Record, words=1, name="W"):
    """Send chunks of weights, 64 rows each, to engines, all of which take a chunk before the next one goes."""

    chunks: int = bits(0, 0, 20, "chunks")
    columns: int = bits(0, 20, 4, "columns of pairs that a chunk has weights for", default=PAIRS)
    ddr: int = bits(0, 24, 4, "of these, the last ones whose weights come from DDR; the others come from LPDDR")
    engines: int = bits(0, 28, 3, "bit i selects engine i", default=7)
    int4: int = bits(0, 31, 1, "weights come with 4 bits, and go with 8")


class RowOp(IntEnum):
    """What an operation of Rows does."""

    LOAD = 0
    """Blocks from DDR to a memory."""
    STORE = 1
    """Blocks of X or T to DDR."""
    SEND = 2
    """Blocks of X to X8, as rows of a product."""
    TAKE = 3
    """Results of the engine to X or T, through Post."""
    SUM = 4
    """The sum of two blocks of X, or one block, to X, through Post."""


class LaneMemory(IntEnum):
    """The memory of a row lane that Rows writes, or stores to DDR."""

    X = 0
    """Integers of 16 bits: what residuals add up."""
    T = 1
    """Integers of 8 bits: queries, keys, values, heads, and what only products read."""
    ANGLES = 2
    """The factors of rotations: of each pair of columns, its own, then its partner's."""


class AddedResidual(IntEnum):
    """What Post adds to a result: nothing, a block of X as it is (RAW), or a block of X that it normalises first."""

    NONE = 0
    RAW = 1
    NORMALISED = 2
    """By the statistics of the latest SEND."""


class PanelRows(Record, words=8, name="Rows"):
    """Move blocks of 64 columns: from DDR into memories of the lanes of an engine, from X or T to DDR, from X to X8, or
    results of the tiles through Post into X or T."""

    op: int = bits(7, 0, 3, "load, store, send, take, sum")
    memory: int = bits(0, 2, 2, "that is loaded, stored, or takes results: X, T, Angles")
    rows: int = bits(1, 25, 7, "of a lane", default=LANE_ROWS)
    blocks: int = bits(0, 4, 7, "blocks of the memory; of results, columns of pairs; 0: it only waits")
    slot: int = bits(5, 0, 8, "first cell")
    lanes: int = bits(0, 11, 4, "lanes that have rows", default=LANES)
    first: int = bits(0, 15, 3, "first of these lanes, for loads, stores, and results of attention")
    attention: int = bits(0, 18, 1, "results are sums of a head for each column of pairs")
    readers: int = bits(0, 19, 2, "of what T takes: bit 0 Send, bit 1 Heads, for keys and values", default=1)
    residual: int = bits(0, 21, 2, "added: nothing, X as it is, X normalised")
    residual_slot: int = bits(7, 3, 8, "first cell of X that is added")
    source: int = bits(7, 11, 8, "of a sum: first cell of X to which it is added")
    by_row: int = bits(7, 19, 1, "T is loaded, T or X stored, row by row")
    keeps: int = bits(7, 20, 1, "of these rows only the first is stored")
    spread: int = bits(7, 21, 1, "keys and values are in all lanes of the engine")
    grouped: int = bits(7, 22, 1, "the first rows of results are heads that share values, of the first row")
    low_bits: int = bits(7, 23, 4, "that rows have beyond 8: X8 has both parts of a block, from its first cell on")
    function: int = bits(0, 23, 3, "of results: 0 none, or a number of functions.TABLES from 1 on")
    gains: int = bits(0, 26, 1, "constants bring the gains of what is written to X")
    norm: int = bits(0, 27, 1, "what leaves X is normalised; of results, each head")
    rms: int = bits(0, 28, 1, "its mean is taken for 0")
    tell: int = bits(0, 29, 1, "tell the engine when results of attention have left it")
    gated: int = bits(0, 30, 1, "of two columns of pairs, the first, behind the function, times the second")
    rotated: int = bits(0, 31, 1, "results are rotated by Angles")
    wait: int = bits(1, 0, 8, "operations of Send to wait for")
    wait_heads: int = bits(1, 8, 8, "operations of Heads to wait for")
    values: int = bits(5, 8, 8, "cell in T of the values of attention")
    narrow: int = bits(2, 22, 1, "heads have 32 columns, not 64")
    wide: int = bits(2, 23, 1, "heads have 128 columns, not 64")
    groups: int = bits(2, 24, 6, "heads that share keys and values", default=1)
    skip: int = bits(6, 8, 6, "heads that come before the first one, of those whose values begin at `values`")
    keys: int = bits(5, 16, 11, "keys of the sequence that count")
    key_rows: int = bits(6, 0, 8, "of a lane, of values", default=LANE_ROWS)
    columns: int = bits(2, 0, 15, "columns of a norm that count")
    root_exponent: int = bits(2, 15, 7, "of the root of that number", signed=True)
    added: int = bits(3, 0, 31, "what is added to the sum of squares")
    root: int = bits(4, 0, 31, "root of the number of columns")
    added_low: int = bits(1, 16, 9, "minus its exponent")

    @staticmethod
    def of_norm(constants: NormConstants, *, rms: bool) -> dict[str, int]:
        """Return the fields that state a norm, as keyword arguments of `PanelRows`. constants: of the norm. rms:
        whether it is an RMS norm, whose mean counts as 0. Whether a number fits its field is checked when the record is
        made."""
        (added, added_exponent), (root, root_exponent) = constants.added, constants.root
        fields = {"added": added, "added_low": -added_exponent, "root": root, "root_exponent": root_exponent}
        return {"norm": 1, "rms": int(rms), "columns": constants.columns, **fields}

    @property
    def constants(self) -> NormConstants:
        """The constants of the norm that the fields state: the inverse of `of_norm`."""
        return NormConstants(self.columns, (self.added, -self.added_low), (self.root, self.root_exponent))


class ColumnShifts(Record, words=3):
    """By how many bits the results of each column of pairs are shifted to the right as they leave the tiles."""

    shift0: int = bits(1, 0, 5, "of results of a column of pairs")
    shift1: int = bits(1, 5, 5, "of results of a column of pairs")
    shift2: int = bits(1, 10, 5, "of results of a column of pairs")
    shift3: int = bits(1, 15, 5, "of results of a column of pairs")
    shift4: int = bits(1, 20, 5, "of results of a column of pairs")
    shift5: int = bits(1, 25, 5, "of results of a column of pairs")
    shift6: int = bits(2, 0, 5, "of results of a column of pairs")
    shift7: int = bits(2, 5, 5, "of results of a column of pairs")

    @property
    def shifts(self) -> tuple[int, ...]:
        """The shifts of all columns of pairs, in their order, in bits."""
        return tuple(getattr(self, f"shift{i}") for i in range(PAIRS))


class ChunkSource(IntEnum):
    """Which rows Send sends, and from which memory."""

    X8 = 0
    """Rows of a product that Rows has made of X."""
    T = 1
    """Rows of a product, from T."""
    QUERIES = 2
    """Queries of attention, from T."""


def walked_cells(slot: int, blocks: int, rows: int, low_bits: int) -> list[range]:
    """Return, for each of some blocks of X, the cells of X8 to which Rows sends the block. slot: first cell of the
    blocks in X. blocks: how many. rows: of a lane. low_bits: bits that the rows have beyond 8.

    With low_bits = 0 a block has the same cells in X8 as in X. Otherwise it has twice as many, the first block from
    cell 0 of X8 on: cells for the high parts of its integers, then cells for the low parts."""
    first, each = (0, 2 * cells(rows)) if low_bits else (slot, cells(rows))
    return [range(at, at + each) for at in range(first, first + blocks * each, each)]


class PanelSend(ColumnShifts, words=6, name="Send"):
    """Send rows to the tiles of the engine, in chunks of 64 columns: all rows of a product for up to 512 columns of its
    results, or the queries of up to eight heads."""

    source: int = bits(0, 0, 2, "X8, rows of T, queries in T")
    slot: int = bits(2, 19, 8, "first cell")
    chunks: int = bits(2, 10, 9, "blocks; of queries, heads; 0: it only waits")
    lanes: int = bits(0, 6, 4, "lanes that have rows", default=LANES)
    first: int = bits(0, 10, 3, "first of these lanes, of queries")
    wait: int = bits(0, 13, 8, "blocks that Rows has written to wait for, before the first")
    each: int = bits(0, 2, 1, "wait for one more before each chunk")
    narrow: int = bits(0, 3, 1, "heads have 32 columns, not 64")
    wide: int = bits(0, 4, 1, "heads have 128 columns, not 64")
    others: int = bits(0, 28, 3, "engines that have other rows of the sequence: bit i selects engine i")
    keys_slot: int = bits(3, 0, 8, "cell in T of the keys")
    head_dim: int = bits(3, 8, 8, "columns of a head that count")
    groups: int = bits(3, 16, 6, "heads that share keys", default=1)
    skip: int = bits(3, 22, 6, "heads that come before the first one, of those whose keys begin at `keys_slot`")
    keys: int = bits(4, 0, 11, "keys of the sequence that count")
    count: int = bits(4, 11, 10, "rows of the sequence in these lanes")
    rows: int = bits(0, 21, 7, "of a lane", default=LANE_ROWS)
    key_rows: int = bits(4, 21, 8, "of a lane, of keys", default=LANE_ROWS)
    causal: int = bits(0, 5, 1, "of queries: keys behind their row do not count")
    spread: int = bits(5, 11, 1, "of queries: keys are in all lanes of the engine")
    grouped: int = bits(5, 12, 1, "heads that share keys become rows: of queries, the first row alone is sent")
    low_bits: int = bits(5, 13, 4, "of a product: that rows have beyond 8, of which all low parts follow all high ones")
    first_row: int = bits(5, 0, 11, "of the sequence in these lanes")
    columns: int = bits(2, 27, 4, "of a product: columns of pairs that have results", default=PAIRS)


class PanelHeads(Record, words=3, name="Heads"):
    """Send keys, then keys and values, to the tiles of the engine: in slices of up to 32 rows, one head to each column
    of pairs."""

    keys_slot: int = bits(0, 0, 8, "cell in T of the keys")
    values: int = bits(0, 8, 8, "cell in T of the values")
    first: int = bits(1, 0, 3, "first lane of the sequence")
    lanes: int = bits(1, 3, 4, "its lanes", default=LANES)
    heads: int = bits(0, 24, 4, "heads; 0: it only waits", default=PAIRS)
    narrow: int = bits(0, 28, 1, "heads have 32 columns, not 64")
    wide: int = bits(0, 29, 1, "heads have 128 columns, not 64")
    groups: int = bits(2, 0, 6, "heads that share keys and values", default=1)
    skip: int = bits(2, 6, 6, "heads that come before the first one, of those whose keys begin at `keys_slot`")
    wait: int = bits(0, 16, 8, "blocks that Rows has written to wait for")
    keys: int = bits(1, 7, 11, "keys of the sequence that count")
    key_rows: int = bits(1, 18, 8, "of a lane, of keys", default=LANE_ROWS)


class EngineOp(Record, words=2, name="Engine"):
    """Pass weights on to the tiles of the engine, for blocks of up to 512 columns of a product, or keys and values for
    a round of attention. The record of each chunk of rows says what the tiles do with it; this operation says how many
    chunks, blocks or heads there are."""

    attention: int = bits(0, 0, 1, "heads, not weights")
    first: int = bits(0, 1, 3, "first lane that has rows, in attention")
    lanes: int = bits(0, 4, 4, "lanes that have rows", default=LANES)
    columns: int = bits(0, 8, 4, "columns of pairs that have results", default=PAIRS)
    depth: int = bits(0, 12, 9, "chunks of a block of results")
    rows: int = bits(0, 21, 7, "of a lane", default=LANE_ROWS)
    leaves: int = bits(0, 28, 1, "wait until the results of attention have left: a product follows")
    wide: int = bits(0, 29, 1, "heads have 128 columns, of which each tile of a pair has half")
    times: int = bits(1, 0, 5, "blocks of results, one after the other", default=1)
    key_rows: int = bits(1, 5, 8, "of a lane, of keys", default=LANE_ROWS)
    spread: int = bits(1, 13, 1, "keys and values are in all lanes of the engine")


class ChunkKind(IntEnum):
    """What tiles do with a chunk of rows."""

    ADD = 0
    """Add its products to the sums."""
    LAST = 1
    """The same, then the sums leave."""
    QUERIES = 2
    """Keep it, as the queries of a head."""


class ChunkRecord(ColumnShifts, words=RECORD_WORDS):
    """What tiles do with a chunk of rows: the last 32 bytes of the chunk."""

    kind: int = bits(0, 0, 2, "add, add and leave, queries")
    clears: int = bits(0, 2, 1, "sums begin at 0")
    head: int = bits(0, 3, 3, "column of pairs that keeps the queries")
    narrow: int = bits(0, 6, 1, "heads have 32 columns, not 64")
    keys: int = bits(0, 7, 11, "keys that count")
    first_shift: int = bits(0, 18, 5, "of the difference of two scores")
    second_shift: int = bits(0, 23, 6, "of its product with log2 e")
    causal: int = bits(0, 29, 1, "keys behind the row do not count")
    heads: int = bits(3, 0, 4, "chunks of queries, one for each head")
    lanes: int = bits(3, 4, 4, "lanes of the sequence")
    rows: int = bits(3, 8, 7, "of a lane; twice as many of wide heads", default=LANE_ROWS)
    wide: int = bits(3, 15, 1, "heads have 128 columns, not 64: both tiles of a pair have the same rows")
    key_rows: int = bits(3, 16, 8, "of a lane, of keys", default=LANE_ROWS)
    columns: int = bits(3, 26, 4, "of a product: columns of pairs that have results", default=PAIRS)
    idle: int = bits(3, 30, 1, "the lane has no rows: its tiles take what others do, and make no results")
    first_row: int = bits(4, 0, 11, "row of the sequence with which the chunk of a lane begins")
    up: int = bits(4, 11, 4, "of a product: by how much sums are shifted to the left, before its products are added")
