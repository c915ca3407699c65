"""What moves on chip: 128x128 tiles, and the sizes of the words in which they, blocks and vectors travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import overload

import numpy as np
import numpy.typing as npt

from ....machine.token_type import TokenType
from ...layout import BLOCK_COLS, BLOCK_ROWS

Array = npt.NDArray[np.float32]
Places = tuple[tuple[int, int], ...]
Pieces = Sequence[Array] | Array
"""Payloads of a burst: the rows of an array count as well."""


TILE = 128
BLOCK_WORDS = 256
LANES = 16
"""Streams of 64 bit between a Mesh or a MemC and an MME."""
BEAT = 32
"""Floats in a beat, which is a word of 1024 bit: two of each lane."""
BEATS = TILE * TILE // BEAT
"""Mesh beats in a tile."""
BIAS_WORD = 16
"""Floats in a stream word of bias mode."""
BLOCK_TOKEN = TokenType(
    "block",
    BLOCK_ROWS,
    BLOCK_COLS,
    BLOCK_WORDS,
    f"{BLOCK_WORDS} words of 1024 bit make a {BLOCK_ROWS}x{BLOCK_COLS} block",
)
"""From and to off-chip memory. A vector travels as words as well, of which LPDDR then fills one half."""
TILE_TOKEN = TokenType("tile", TILE, TILE, 1, f"a word is a {TILE}x{TILE} tile")
"""Among Mem, Mesh and MME."""
ROW_TOKEN = TokenType("row", 1, 1, 1, "a word is a number of a row")
"""A maximum or a sum of a row, between neighbours of a softmax."""
ROW_SUM_TOKEN = TokenType("row sum", 1, 2, 1, "a word is a sum of a row and its count of columns")
"""Between neighbours of a norm."""
FETCH_WORDS = 8
"""Words of the image that are fetched ahead of the dispatcher."""


class Tiles(Sequence[Array]):
    """128x128 tiles of one matrix, in any order: what a burst of tiles is, as long as nobody takes it apart.

    places: row and column, in tiles, of each.
    """

    __slots__ = ("matrix", "places")

    def __init__(self, matrix: Array, places: Places) -> None:
        self.matrix = matrix
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Array]:
        return (self._tile(i, j) for i, j in self.places)

    @overload
    def __getitem__(self, at: int) -> Array: ...
    @overload
    def __getitem__(self, at: slice) -> Tiles: ...
    def __getitem__(self, at: int | slice) -> Array | Tiles:
        return Tiles(self.matrix, self.places[at]) if isinstance(at, slice) else self._tile(*self.places[at])

    def _tile(self, i: int, j: int) -> Array:
        return self.matrix[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]

    def block(self, rows: int, cols: int) -> Array:
        """The upper left part of the matrix, in tiles."""
        return self.matrix[: rows * TILE, : cols * TILE]


@cache
def tile_rows(rows: int, times: int) -> Places:
    """Each of `rows` tiles of a column so often: the order of a left operand."""
    return tuple((i, 0) for i in range(rows) for _ in range(times))


@cache
def tile_columns(times: int, cols: int) -> Places:
    """A row of `cols` tiles, so often: the order of a right operand."""
    return tuple((0, j) for _ in range(times) for j in range(cols))


@cache
def tile_grid(rows: int, cols: int) -> Places:
    """Row after row."""
    return tuple((i, j) for i in range(rows) for j in range(cols))
