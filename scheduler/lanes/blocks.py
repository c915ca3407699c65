"""What a panel computes: products, attention and feed-forward, with where their weights and activations lie. All
addresses are in elements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...isa.lanes import HeadFunctions

TILE = 128
TILE_SIZE = TILE * TILE
BLOCK = TILE_SIZE // 2


@dataclass(frozen=True)
class Matrix:
    """An activation or a weight in the bank's memory: `rows` x `columns` tiles of 128x128 elements from address `addr`
    (in elements) on, one row of tiles after the other. ddr: a weight lies in DDR, not in LPDDR."""

    addr: int
    rows: int
    columns: int
    ddr: bool = False

    def at(self, row: int, column: int) -> int:
        """The address of the tile in row `row` and column `column` of tiles, in elements. A tile is contiguous."""
        return self.addr + (row * self.columns + column) * TILE_SIZE

    @property
    def row(self) -> int:
        """Elements of a row of tiles: the distance from a tile to the one below it."""
        return self.columns * TILE_SIZE


@dataclass(frozen=True)
class Vectors:
    """Vectors for the column tiles of a product, from address `addr` (in elements) on, 128 elements for each. each:
    vectors of a tile: 1, or 2 where the scale of a residual follows each bias."""

    addr: int
    each: int = 1


@dataclass(frozen=True)
class HeadOps:
    """What is applied to the heads of a projection. functions: norm and rotation. table: address of the rotation tables
    of the row tiles of a sequence, None for no rotation. gains: address of the factors of a tile's 128 columns, None
    for 1. Both in elements."""

    functions: HeadFunctions
    table: int | None = None
    gains: int | None = None


@dataclass(frozen=True)
class TiledProduct:
    """A product with a weight of `rows` tiles of K, for `columns` column tiles of its result, of 128 each.

    weights: one for each half of the columns. vectors: bias, and scale of a residual; None for none. activation: a
    value of `ActivationFunction`; None for none. gate: for each column tile there is a pair of tiles: one of the gate,
    and one that it multiplies. head: what is applied to the heads of the result; None for none.
    """

    weights: tuple[Matrix, ...]
    rows: int
    columns: int
    vectors: Vectors | None = None
    activation: str | None = None
    gate: bool = False
    head: HeadOps | None = None


@dataclass(frozen=True)
class Mask:
    """Which keys of a sequence count. causal, window: as in `AttentionLayer`. lengths: keys from the run-time parameter
    len[b] on do not count. starts: keys before the run-time parameter start[b] do not count. softcap: as in
    `AttentionLayer`; 0 for none."""

    causal: bool = False
    window: int | None = None
    lengths: bool = False
    starts: bool = False
    softcap: float = 0.0


@dataclass(frozen=True)
class AttentionHeads:
    """An attention of `heads` query heads and `kv_heads` heads of keys and values, `pitch` columns from one to the
    next. q, k, v: the projections. stored: where keys and values lie in DDR; None: they stay on chip."""

    q: TiledProduct
    k: TiledProduct
    v: TiledProduct
    heads: int
    kv_heads: int
    pitch: int
    mask: Mask = Mask()
    stored: tuple[Matrix, Matrix] | None = None

    @property
    def each(self) -> int:
        """Whole heads in a column tile of 128 columns."""
        return TILE // self.pitch

    @property
    def groups(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def blocks(self) -> int:
        """Blocks of 128 rows by 64 columns that a head of keys has for 128 rows: 1 or 2."""
        return self.pitch // (TILE // 2)


@dataclass(frozen=True)
class RowTile:
    """128 rows of a sequence. seq: number of the sequence. at: number of the tile in the sequence. row: number of the
    tile in the stored activations."""

    seq: int
    at: int
    row: int


@dataclass(frozen=True)
class Sequences:
    """The sequences of a network. rows: number of rows of each."""

    rows: tuple[int, ...]

    def tiles(self, seq: int) -> int:
        """Number of row tiles, of 128 rows, of sequence number `seq`. Raises `IndexError` if there is no
        such sequence."""
        return -(-self.rows[seq] // TILE)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first row tile of each sequence, in the activations."""
        return tuple(sum(self.tiles(s) for s in range(seq)) for seq in range(len(self.rows)))

    @cached_property
    def all(self) -> tuple[RowTile, ...]:
        """The row tiles of all sequences, in order."""
        return tuple(RowTile(s, i, self.starts[s] + i) for s in range(len(self.rows)) for i in range(self.tiles(s)))


@dataclass(frozen=True)
class Panel:
    """Row tiles that are computed together, in the order of the lanes (R6) or of the pairs of lanes (P3)."""

    tiles: tuple[RowTile, ...]

    @property
    def lanes(self) -> range:
        """The numbers of the row tiles; in mode R6 also the lanes that have rows."""
        return range(len(self.tiles))

    @property
    def mask(self) -> int:
        """A bit for each row tile; in mode R6 the lanes that have rows."""
        return (1 << len(self.tiles)) - 1

    @cached_property
    def seqs(self) -> tuple[int, ...]:
        """The numbers of its sequences, in order."""
        return tuple(sorted({t.seq for t in self.tiles}))

    def pairs(self, odd: int) -> list[tuple[int, RowTile]]:
        """In mode R6: the pairs of lanes whose even (`odd` = 0) or odd (1) lane has a row tile, each as its number and
        that row tile."""
        return [(lane // 2, self.tiles[lane]) for lane in self.lanes if lane & 1 == odd]
