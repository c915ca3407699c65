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
    """Elements of a tile that one cycle takes: rows and columns, which divide those of the tile."""

    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """How many elements a word has: rows times columns."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"rsn::Word<{self.rows}, {self.columns}>"


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return (rows, columns) of a tile of this shape: all axes but the last one together are its rows."""
    return prod(shape[:-1]), shape[-1]


def divisor(size: int, most: float) -> int:
    """Return the largest divisor of a size that is at most `most`, and at least 1."""
    return next(n for n in range(max(1, min(size, int(most))), 0, -1) if size % n == 0)


def word(shape: Sequence[int], most: float) -> TileWord:
    """Return the largest word of whole rows, or of a part of a row, with at most `most` elements. shape: of the
    tile.
    """
    rows, columns = matrix(shape)
    part = divisor(columns, most)
    return TileWord(divisor(rows, most / columns) if part == columns else 1, part)


def block_word(shape: Sequence[int], block: tuple[int, int], most: float) -> TileWord:
    """The largest word that a loop over blocks takes of a tile, with at most `most` elements: of a part of a row of a
    block, of rows of several blocks beside each other, or of several such rows. block: rows and columns of a block."""
    rows, columns = block
    if columns > most:
        return TileWord(1, divisor(columns, most))
    across = divisor(shape[-1] // columns, most / columns)
    whole = across * columns == shape[-1]
    return TileWord(divisor(rows, most / shape[-1]) if whole else 1, across * columns)


def row_word(shape: Sequence[int], most: float) -> TileWord:
    """Return the word of a kernel that combines the elements of each row pair by pair: its columns are a power of 2.
    shape: of the kernel's operand. most: elements of the word.
    """
    rows, columns = matrix(shape)
    part = gcd(columns, 1 << max(0, min(columns, int(most)).bit_length() - 1))
    return TileWord(divisor(rows, most / part), part)


def product_word(shape: Sequence[int], most: float, turned: int = 0) -> TileWord:
    """Return the word of sums of a product that are added to in a cycle: the largest one of at most `most` sums, and of
    several that with most columns. shape: of the product, its last two sizes rows and columns. turned: the length of
    the sum, if the right operand is read as the transpose of a tile, else 0. Then a word takes a row of a tile for each
    of its columns too, and streams cut each row into its elements: of several ways that with fewest rows and columns is
    taken, and none with all rows of a tile of more than `REGISTERS` elements.
    """
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
    """Return whether a product can take its right operand from a stream while it is computed: a row for each step of
    the sum. dtype, shape: of the operand. taken: the word of sums that are added to in a cycle.
    """
    return len(shape) == 2 and stream_word(dtype, shape).columns % taken.columns == 0


def comes_by_column(dtype: str, shape: Sequence[int]) -> bool:
    """Return whether a product can take the transpose of its right operand from a stream while it is computed: each
    word has whole columns of the operand, with which sums of integers, in any order, are complete. dtype, shape: of the
    tokens.
    """
    return len(shape) == 2 and SCALARS[dtype].integer and stream_word(dtype, shape).columns == shape[-1]


def part_of(part: TileWord, whole: TileWord) -> TileWord:
    """Return the largest word that divides both `part` and `whole`, in rows and in columns."""
    return TileWord(gcd(part.rows, whole.rows), gcd(part.columns, whole.columns))


def stream_word(dtype: str, shape: Sequence[int]) -> TileWord:
    """Return the word in which a tile goes over a stream: as `word`, of at most `STREAM_BITS` bits, or of a longer row
    of integers at most `WIDE_BITS`. dtype, shape: of the tile.
    """
    most = STREAM_BITS // CPP_BITS[dtype]
    if SCALARS[dtype].integer and BITS[dtype] in (4, 8):
        most = max(most, min(shape[-1], WIDE_BITS // CPP_BITS[dtype]))
    return word(shape, most)


def port_elements(dtype: str, *ends: int) -> int:
    """Return how many elements a port to the memory off the chip moves in a cycle, at most `PORT_BITS` bits. dtype: of
    the elements. ends: numbers of elements, at multiples of which all accesses begin and end.
    """
    return gcd(PORT_BITS // CPP_BITS[dtype], *ends)


def round_elements(dtype: str, channels: int) -> int:
    """Return the elements of a round of words: one word of `PORT_BITS` bits in each memory channel of a tensor. dtype:
    of the elements. channels: how many there are.
    """
    return channels * port_elements(dtype)


class MovedRounds(NamedTuple):
    """What an iteration of the loop moves that sends a tile of a tensor to a stream in rounds of words, or receives it,
    in elements, and the interval of the loop in cycles.
    """

    elements: int
    interval: int

    def __str__(self) -> str:
        return f"rsn::Moved<{self.elements}, {self.interval}>"


def moved_rounds(dtype: str, channels: int, taken: int) -> MovedRounds:
    """Return how a tile moves between a tensor in several memory channels and a stream: each port moves a word in a
    cycle at most, and the stream one too. dtype: of the elements. channels: how many there are. taken: elements of a
    word of the stream (`stream_word`). The tile has a whole number of rounds (`round_elements`) and of words.
    """
    each = round_elements(dtype, channels)
    elements = lcm(each, taken)
    return MovedRounds(elements, max(elements // each, elements // taken))


def round_word(dtype: str, shape: Sequence[int], channels: int) -> TileWord | None:
    """Return the part of a tile that is a round of words, which a cycle takes where the tile is loaded or stored in one
    piece; None if it is not a part of a row, or whole rows. dtype, shape: of the tile. channels: memory channels of the
    tensor.
    """
    rows, columns = matrix(shape)
    count = round_elements(dtype, channels)
    taken = TileWord(max(1, count // columns), min(count, columns))
    return taken if taken.elements == count and columns % taken.columns == rows % taken.rows == 0 else None
