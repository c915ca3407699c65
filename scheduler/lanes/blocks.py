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
    """An activation or a weight, in blocks: `rows` x `columns` tiles from `addr` on. ddr: a weight lies in DDR, not in
    LPDDR."""

    addr: int
    rows: int
    columns: int
    ddr: bool = False

    def at(self, row: int, column: int) -> int:
        """The address of a tile, which is contiguous."""
        return self.addr + (row * self.columns + column) * TILE_SIZE

    @property
    def row(self) -> int:
        """Elements of a row of tiles."""
        return self.columns * TILE_SIZE


@dataclass(frozen=True)
class Vectors:
    """Vectors of column tiles from `addr` on. each: vectors of a tile: 1, or 2 where the scale of a residual follows
    each bias."""

    addr: int
    each: int = 1


@dataclass(frozen=True)
class HeadOps:
    """What is applied to the heads of a projection. table: address of the tables of row tiles of a sequence. gains:
    address of the factors of a tile's columns."""

    functions: HeadFunctions
    table: int | None = None
    gains: int | None = None


@dataclass(frozen=True)
class TiledProduct:
    """A product with a weight of `rows` tiles of K, for `columns` column tiles of its result. weights: of each half of
    the columns. gate: for each column tile there is a pair of tiles: one of the gate, and one that it multiplies."""

    weights: tuple[Matrix, ...]
    rows: int
    columns: int
    vectors: Vectors | None = None
    activation: str | None = None
    gate: bool = False
    head: HeadOps | None = None


@dataclass(frozen=True)
class Mask:
    """Which keys count: all of a sequence, or fewer. lengths, starts: as run-time parameters of the sequences."""

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
        """Heads that a column tile has."""
        return TILE // self.pitch

    @property
    def groups(self) -> int:
        """Query heads that share a head of keys."""
        return self.heads // self.kv_heads

    @property
    def blocks(self) -> int:
        """128x64 blocks that a head of keys has for 128 rows."""
        return self.pitch // (TILE // 2)


@dataclass(frozen=True)
class RowTile:
    """128 rows of a sequence. seq: its number. at: the number of the tile in the sequence. row: in the activations."""

    seq: int
    at: int
    row: int


@dataclass(frozen=True)
class Sequences:
    """The sequences of a network. rows: of each."""

    rows: tuple[int, ...]

    def tiles(self, seq: int) -> int:
        """Row tiles of a sequence."""
        return -(-self.rows[seq] // TILE)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row tile of each sequence, in the activations."""
        return tuple(sum(self.tiles(s) for s in range(seq)) for seq in range(len(self.rows)))

    @cached_property
    def all(self) -> tuple[RowTile, ...]:
        """The row tiles of all sequences, in order."""
        return tuple(RowTile(s, i, self.starts[s] + i) for s in range(len(self.rows)) for i in range(self.tiles(s)))


@dataclass(frozen=True)
class Panel:
    """Row tiles that are computed together, by lane."""

    tiles: tuple[RowTile, ...]

    @property
    def lanes(self) -> range:
        """Lanes that have rows."""
        return range(len(self.tiles))

    @property
    def mask(self) -> int:
        """The lanes that have rows, as bits."""
        return (1 << len(self.tiles)) - 1

    @cached_property
    def seqs(self) -> tuple[int, ...]:
        """The numbers of its sequences, in order."""
        return tuple(sorted({t.seq for t in self.tiles}))

    def pairs(self, odd: int) -> list[tuple[int, RowTile]]:
        """Pairs, each with its row tile of the even or the odd lane, where there is one."""
        return [(lane // 2, self.tiles[lane]) for lane in self.lanes if lane & 1 == odd]
