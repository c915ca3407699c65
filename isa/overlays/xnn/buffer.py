"""The data in one of the buffers of a Mem. Kernels say when and where; what it does to numbers is said here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...layout import BLOCK, QUARTER, block, unblock
from ...versal.functions import HeadNorm, activation
from ...versal.tiles import TILE, Array, Pieces, Places, TilePayloads

TABLE_LANES = 8
"""Columns of a head whose own factors, and then partner factors, lie side by side in a table."""


class SlotData:
    """The data of a buffer: float32 elements `x`, (rows, cols). Elements that were never written are NaN, so that a
    result shows that they were read.

    Tiles that were sent may still be on their way: they are views of `x`, so `x` is replaced before it changes. A list
    of `places` holds the row and column, in elements, of the first element of each 128x64 block, or, where tiles are
    meant, the row and column of each 128x128 tile counted in tiles. `pieces` holds the blocks as they lie off chip,
    (8192,) each (`rsn.isa.layout.block`).
    """

    def __init__(self, rows: int, cols: int) -> None:
        self.x = np.full((rows, cols), np.nan, np.float32)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[np.generic]:
        """What it holds, to numpy and to who looks at a unit's state."""
        return np.array(self.x, dtype) if copy else np.asarray(self.x, dtype)

    def renew(self, rows: int, cols: int) -> None:
        """Take new memory before the first rows x cols elements are written. The other elements keep their values."""
        whole = rows >= self.x.shape[0] and cols >= self.x.shape[1]
        self.x = np.empty_like(self.x) if whole else self.x.copy()

    def detach(self) -> None:
        """Take new memory, with the same values, before the buffer is changed in place."""
        self.x = self.x.copy()

    def part(self, rows: int, cols: int) -> Array:
        """Return the first `rows` rows and `cols` columns as a view (rows, cols), to change them in place."""
        return self.x[:rows, :cols]

    def put_blocks(self, places: Places, pieces: Pieces, rows: int, cols: int) -> None:
        """Write blocks of a rows x cols matrix; `places` are the first elements of these blocks. Raises `ValueError` if
        there are not as many pieces as places.
        """
        if isinstance(pieces, np.ndarray) and len(pieces) * BLOCK == rows * cols:  # all of them, as they lay in memory
            if (rows, cols) == self.x.shape:
                self.x = unblock(pieces, rows, cols)
            else:
                self.x[:rows, :cols] = unblock(pieces, rows, cols)
            return
        for piece, (i, j) in zip(pieces, places, strict=True):
            self.x[i : i + 128, j : j + 64] = unblock(piece, 128, 64)

    def put_transposed(self, places: Places, pieces: Pieces) -> None:
        """Write blocks transposed: a block whose place is (i, j) goes to row j and column i. Raises `ValueError` if
        there are not as many pieces as places.
        """
        for piece, (i, j) in zip(pieces, places, strict=True):
            self.x[j : j + 64, i : i + 128] = unblock(piece, 128, 64).T

    def put_vector(self, vector: Array, rows: int, blocks: int) -> None:
        """Write a vector of groups of 32 floats, (rows * blocks * 32,): group g to row 4*(g mod rows), columns 32*(g
        div rows). rows: groups of a column block. blocks: column blocks. Raises `ValueError` for a vector of another
        size.
        """
        groups = vector.reshape(blocks, rows, 32).transpose(1, 0, 2).reshape(rows, blocks * 32)
        self.x[0 : 4 * rows : 4, 0 : blocks * 32] = groups

    def add(self, tiles: Sequence[Array], places: Places, done: int) -> None:
        """Take tiles (128, 128) that come in rounds over `places`, at least one: the first round overwrites, the others
        add. done: how many tiles have come before these."""
        if isinstance(tiles, TilePayloads) and tiles.places == places and not done % len(places):
            rows, cols = (1 + n for n in places[-1])
            pairs = [(self.x[: rows * TILE, : cols * TILE], tiles.block(rows, cols))]
        else:
            at = (places[i % len(places)] for i in range(done, done + len(tiles)))
            parts = (self.x[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE] for i, j in at)
            pairs = list(zip(parts, tiles, strict=True))
        for number, (part, tile) in enumerate(pairs, done):
            if number < len(places):  # nothing is in it yet
                part[:] = tile
            else:
                part += tile

    def tiles(self, places: Places, first: int = 0) -> Sequence[Array]:
        """Return the tiles (128, 128) at these places, which are counted from row tile `first` on. They are views of
        `x`.
        """
        return TilePayloads(self.x[first * TILE :], places)

    def half_tiles(self, rows: Sequence[int]) -> Sequence[Array]:
        """Return tiles (128, 128) whose first 64 columns are those of the buffer and whose others are 0. rows: the row
        of each, in tiles.
        """
        out = np.zeros((len(rows), TILE, TILE), np.float32)
        for tile, k in zip(out, rows, strict=True):
            tile[:, :64] = self.x[k * TILE : k * TILE + TILE, :64]
        return list(out)

    def blocks(self, places: Places, rows: int, cols: int) -> Pieces:
        """Return the blocks at `places` of a rows x cols matrix, one (8192,) for each place, with elements as they lie
        off chip. If there are as many places as blocks in the matrix, they must be in the order of `ring.blocks_of`.
        Raises `ValueError` if they are all blocks and `rows` x `cols` is not a whole number of them."""
        if len(places) * BLOCK == rows * cols:
            return block(self.x[:rows, :cols]).reshape(len(places), BLOCK)
        return [block(self.x[i : i + 128, j : j + 64]) for i, j in places]

    def quarters(self, rows: int, cols: int) -> Pieces:
        """Return all blocks of the first `rows` rows and `cols` columns in quarters, which have 32 rows of a block
        each: (quarters, 2048). Blocks come row after row, the quarters of a block from top to bottom, and elements as
        they lie off chip (`rsn.isa.layout.block`). Raises `ValueError` if `rows` x `cols` is not a whole number of
        blocks."""
        return np.asarray(block(self.x[:rows, :cols])).reshape(-1, QUARTER)

    def joined(self, quarters: Sequence[Array]) -> Array:
        """Return a block (8192,). quarters: its four quarters, 2048 elements each, from the first rows on."""
        return np.concatenate([quarter.reshape(-1) for quarter in quarters])

    def activate(self, rows: int, cols: int, which: int) -> None:
        """Apply an activation in place to the first `rows` x `cols` elements. which: its number, as for
        `versal.functions.activation`, which raises `ProgramError` for an unknown one. The caller has called `renew` or
        `detach` if tiles of `x` may be on their way."""
        part = self.x[:rows, :cols]
        part[:] = activation(part, which)

    def gate(self, rows: int, cols: int, which: int) -> None:
        """Replace the first `cols` columns of the first `rows` rows by their activation times the `cols` columns behind
        them, element by element. which: as for `activate`, with the same error.
        """
        part = self.x[:rows, :cols]
        part[:] = activation(part, which) * self.x[:rows, cols : 2 * cols]

    def rotate(self, rows: int, cols: int, head: int, table: SlotData) -> None:
        """Rotate pairs of neighbouring columns, 2k and 2k + 1, in the first `rows` x `cols` elements, in place. Each
        element becomes the sum of two products: itself times its own factor, and the other element of its pair times
        the partner factor. head: columns from a head to the next; all heads have the same factors.

        table: (rows, 2 * head): for every eight columns of a head their eight own factors, then their eight partner
        factors.
        """
        factors = table.x[:rows, : 2 * head].reshape(rows, head // TABLE_LANES, 2, TABLE_LANES)
        own, partner = (np.ascontiguousarray(factors[:, :, i]).reshape(rows, 1, head) for i in range(2))
        x = self.x[:rows, :cols].reshape(rows, cols // head, head)
        swapped = x.reshape(rows, -1, 2)[:, :, ::-1].reshape(x.shape)
        self.x[:rows, :cols] = (x * own + swapped * partner).reshape(rows, cols)

    def normalise_heads(self, rows: int, cols: int, head: int, norm: HeadNorm) -> None:
        """Apply a norm to each head by itself, in the first `rows` x `cols` elements. head: columns from a head to the
        next.
        """
        x = self.x[:rows, :cols].reshape(rows, cols // head, head)
        self.x[:rows, :cols] = norm.apply(x).reshape(rows, cols)
