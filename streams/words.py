"""How many elements of a tile a loop takes in a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm, prod
from typing import NamedTuple

from ..base.element_types import BITS, CPP_BITS, SCALARS

STREAM_BITS = 2048
"""Most bits of a word of a stream between kernels, but for `WIDE_BITS`."""
WIDE_BITS = 4096
"""Most bits of a word of a stream of integers of up to 8 bits whose tiles have longer rows: a word is then a row, or a
part of one. A product with one row of sums takes as many weights in each cycle, from as many ports as their tensor has
memory channels: 8 ports of `PORT_BITS` fill such a word in a cycle. HLS has no wider ones (`word-width` in
docs/hls-rules.md)."""
MOVED = STREAM_BITS // 32
"""Elements that are moved in a cycle, from tile to tile."""
REGISTERS = 1024
"""Most elements of a tile that becomes registers whole (`registers` in docs/hls-rules.md)."""
SUMS = 4096
"""Most sums of integers that are registers, of which a product adds to each in every step. Synthesis takes long for so
many, and longer for more: the C++ tells the checker why there are more than `REGISTERS`."""
PORT_BITS = 512
"""Bits of a port to the memory off the chip: the widest that AXI interconnects of Alveo cards and of Versal have."""


class TileWord(NamedTuple):
    """Elements of a tile that one cycle takes, as a block of rows and columns; both divide those of the tile."""

    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """How many elements it has: rows times columns."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"rsn::Word<{self.rows}, {self.columns}>"


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of a tile of this shape: all axes but the last one together are its rows."""
    return prod(shape[:-1]), shape[-1]


def divisor(size: int, most: float) -> int:
    """Return the largest divisor of `size` that is at most `most`; 1 if `most` is less than 1."""
    return next(n for n in range(max(1, min(size, int(most))), 0, -1) if size % n == 0)


def word(shape: Sequence[int], most: float) -> TileWord:
    """Return the largest word of a tile that is a part of one row, or several whole rows. shape: of the tile. most: the
    most elements of the word."""
    rows, columns = matrix(shape)
    part = divisor(columns, most)
    return TileWord(divisor(rows, most / columns) if part == columns else 1, part)


def block_word(shape: Sequence[int], block: tuple[int, int], most: float) -> TileWord:
    """Return the largest word of a tile that lies in blocks: a part of a row of one block, a row of several blocks side
    by side, or several such rows. shape: of the tile. block: rows and columns of a block. most: the most elements of
    the word."""
    rows, columns = block
    if columns > most:
        return TileWord(1, divisor(columns, most))
    across = divisor(shape[-1] // columns, most / columns)
    whole = across * columns == shape[-1]
    return TileWord(divisor(rows, most / shape[-1]) if whole else 1, across * columns)


def row_word(shape: Sequence[int], most: float) -> TileWord:
    """Return the word of a kernel that combines the elements of each row pair by pair, so that it has a power of 2
    columns. shape: of the operand. most: the most elements of the word."""
    rows, columns = matrix(shape)
    part = gcd(columns, 1 << max(0, min(columns, int(most)).bit_length() - 1))
    return TileWord(divisor(rows, most / part), part)


def product_word(shape: Sequence[int], most: float, turned: int = 0) -> TileWord:
    """Return the sums of a matrix product to which one cycle adds: the largest word of the result with at most `most`
    elements, and of several the one with most columns.

    shape: of the result; its last two sizes are rows and columns. turned: the length of a sum if the right operand is
    read as the transpose of a tile, else 0. If it is, each column of the word reads a row of that tile, and streams cut
    each row of it into its elements. So of several words the one with the fewest rows and columns is taken, and none
    with all rows of a tile of more than `REGISTERS` elements."""
    rows, columns = shape[-2:]
    most = max(1, most)
    if not turned:
        ways = (TileWord(divisor(rows, most / n), n) for n in range(1, columns + 1) if columns % n == 0 and n <= most)
        return max(ways, key=lambda way: (way.elements, way.columns))
    most_rows, most_columns = (n // 2 if n > 1 and n * turned > REGISTERS else n for n in (rows, columns))
    parts = [n for n in range(1, most_columns + 1) if columns % n == 0 and n <= most]
    words = (TileWord(divisor(rows, min(most_rows, most / n)), n) for n in parts)
    return max(words, key=lambda way: (way.elements, -way.rows - way.columns, way.columns))


def comes_by_row(dtype: str, shape: Sequence[int], taken: TileWord) -> bool:
    """Return whether a product can take its right operand from a stream while it is computed, one row for each step of
    the sums. dtype, shape: of the operand. taken: the sums to which one cycle adds."""
    return len(shape) == 2 and stream_word(dtype, shape).columns % taken.columns == 0


def comes_by_column(dtype: str, shape: Sequence[int]) -> bool:
    """Return whether a product can take the transpose of its right operand from a stream while it is computed. It can
    if a word of the stream has whole columns of the operand, so that complete sums come one after another, and the
    elements are integers, whose sums may be added in any order. dtype, shape: of the tokens."""
    return len(shape) == 2 and SCALARS[dtype].integer and stream_word(dtype, shape).columns == shape[-1]


def part_of(part: TileWord, whole: TileWord) -> TileWord:
    """Return the largest word that divides both `part` and `whole`, in rows and in columns."""
    return TileWord(gcd(part.rows, whole.rows), gcd(part.columns, whole.columns))


def stream_word(dtype: str, shape: Sequence[int]) -> TileWord:
    """Return the word in which a tile goes over a stream: as `word`, with at most `STREAM_BITS` bits; for rows of
    integers of 4 or 8 bits that are longer, at most `WIDE_BITS`. dtype, shape: of the tile."""
    most = STREAM_BITS // CPP_BITS[dtype]
    if SCALARS[dtype].integer and BITS[dtype] in (4, 8):
        most = max(most, min(shape[-1], WIDE_BITS // CPP_BITS[dtype]))
    return word(shape, most)


def port_elements(dtype: str, *ends: int) -> int:
    """Return how many elements a memory port moves in a cycle, at most `PORT_BITS` bits. dtype: of the elements. ends:
    numbers of elements; all accesses begin and end at multiples of each."""
    return gcd(PORT_BITS // CPP_BITS[dtype], *ends)


def round_elements(dtype: str, channels: int) -> int:
    """Return the elements of a round: one word of `PORT_BITS` bits in each memory channel of a tensor. dtype: of the
    elements. channels: how many memory channels the tensor has."""
    return channels * port_elements(dtype)


class MovedRounds(NamedTuple):
    """How a loop moves a tile, in rounds, between a tensor in several memory channels and a stream. elements: moved in
    one iteration. interval: clock cycles from one iteration to the next."""

    elements: int
    interval: int

    def __str__(self) -> str:
        return f"rsn::Moved<{self.elements}, {self.interval}>"


def moved_rounds(dtype: str, channels: int, taken: int) -> MovedRounds:
    """Return how a tile moves in rounds between a tensor in several memory channels and a stream. Each memory port, and
    the stream, moves at most one word in a cycle. dtype: of the elements. channels: how many there are. taken: elements
    of a word of the stream (`stream_word`). The tile must be a whole number of rounds (`round_elements`) and of
    words."""
    each = round_elements(dtype, channels)
    elements = lcm(each, taken)
    return MovedRounds(elements, max(elements // each, elements // taken))


def round_word(dtype: str, shape: Sequence[int], channels: int) -> TileWord | None:
    """Return the part of a tile that one round moves in a cycle, as rows and columns, where the tile is loaded or
    stored in one piece; None if a round is neither a part of a row nor whole rows. dtype, shape: of the tile. channels:
    memory channels of the tensor."""
    rows, columns = matrix(shape)
    count = round_elements(dtype, channels)
    taken = TileWord(max(1, count // columns), min(count, columns))
    return taken if taken.elements == count and columns % taken.columns == rows % taken.rows == 0 else None
