"""What moves on chip: 128x128 tiles, and the sizes of the words in which they, blocks and vectors travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import overload

import numpy as np
import numpy.typing as npt

from ...machine.token_type import TokenType
from ..layout import BLOCK_COLS, BLOCK_ROWS

Array = npt.NDArray[np.float32]
Places = tuple[tuple[int, int], ...]
Pieces = Sequence[Array] | Array
"""The payloads of a burst: arrays, or one array of which each row is a payload."""


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


class TilePayloads(Sequence[Array]):
    """The payloads of a burst of 128x128 tiles of one matrix, in any order. Tiles are cut out of the matrix only when
    they are read one by one.

    places: the row and column of each tile in the matrix, counted in tiles.
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
    def __getitem__(self, at: slice) -> TilePayloads: ...
    def __getitem__(self, at: int | slice) -> Array | TilePayloads:
        return TilePayloads(self.matrix, self.places[at]) if isinstance(at, slice) else self._tile(*self.places[at])

    def _tile(self, i: int, j: int) -> Array:
        return self.matrix[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]

    def block(self, rows: int, cols: int) -> Array:
        """Return the upper left part of the matrix, `rows` x `cols` tiles, as a view (128 * rows, 128 * cols)."""
        return self.matrix[: rows * TILE, : cols * TILE]


@cache
def tile_rows(rows: int, times: int) -> Places:
    """Return the order in which the tiles of a left operand are sent, as (row, column): the tiles of one column of
    `rows` tiles, each `times` times before the next (0 0 1 1).
    """
    return tuple((i, 0) for i in range(rows) for _ in range(times))


@cache
def tile_columns(times: int, cols: int) -> Places:
    """Return the order in which the tiles of a right operand are sent, as (row, column): the tiles of one row of `cols`
    tiles, the whole row `times` times (0 1 0 1).
    """
    return tuple((0, j) for _ in range(times) for j in range(cols))


@cache
def tile_grid(rows: int, cols: int) -> Places:
    """Return the places of `rows` x `cols` tiles as (row, column), row after row."""
    return tuple((i, j) for i in range(rows) for j in range(cols))
