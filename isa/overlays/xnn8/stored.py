"""How rows, weights and constants lie in the off-chip memories of xnn8, as words of 32 bits (float32 vectors, of which
only the bits count)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....base.nibbles import from_nibbles, to_nibbles
from ...layout import INTEGER_ROWS, ROW_BLOCKS, UNIT, UNIT_BYTES, row_units
from .numbers import BLOCK, T_BITS, X_BITS, BlockNumbers, Floats, blocks_of, unpacked, values_of

Words = npt.NDArray[np.float32]


class PackedConstants(NamedTuple):
    """Two vectors of the 64 columns of a block, as constants in LPDDR, and a shift. first, second: 16 bits, (1, 64),
    with exponents (1, 1): scales and bias of a product, or gain and shift of a norm; of gains for X only the first one
    is used. shift: bits by which the tiles shift sums of the product to the right."""

    first: BlockNumbers
    second: BlockNumbers
    shift: int = 0

    def packed(self) -> Words:
        """Return them as they lie in memory: 32-bit words, (80,)."""
        out = np.zeros(160, np.int16)
        for i, vector in enumerate((self.first, self.second)):
            out[BLOCK * i : BLOCK * (i + 1)] = vector.integers.reshape(-1)
            out[2 * BLOCK + i] = vector.exponents.item()
        out[2 * BLOCK + 2] = self.shift
        return out.view(np.float32)

    @classmethod
    def unpacked(cls, words: Words) -> PackedConstants:
        """Return constants from their words, the inverse of `packed`. words: 32-bit words, (80,)."""
        x = np.ascontiguousarray(words).view(np.int16).astype(np.int64)
        vectors = [
            BlockNumbers(x[None, BLOCK * i : BLOCK * (i + 1)], x[None, 2 * BLOCK + i : 2 * BLOCK + i + 1])
            for i in range(2)
        ]
        return cls(vectors[0], vectors[1], int(x[2 * BLOCK + 2]))


def constant_words(blocks: Iterable[Sequence[PackedConstants]]) -> Words:
    """Return the words of the constants of blocks as they lie in memory, block by block: (80 * constants,). blocks: of
    each block its constants, in their order."""
    return np.concatenate([vector.packed() for block in blocks for vector in block])


def columns_of(x: BlockNumbers) -> list[BlockNumbers]:
    """Return the blocks of a vector one by one, each (1, 64) with exponent (1, 1). x: (blocks, 64) with exponents
    (blocks, 1)."""
    return [BlockNumbers(x.integers[i : i + 1], x.exponents[i : i + 1]) for i in range(len(x.integers))]


def weight_words(weight: npt.NDArray[np.integer[Any]], of_ddr: int) -> tuple[Words, Words]:
    """Return the words of the weights of a block of up to 512 columns, in LPDDR and in DDR, chunk by chunk. weight: 8
    bits, (K, columns), both multiples of 64. of_ddr: number of columns of pairs, the last ones, whose weights are in
    DDR.

    Each column of pairs has four parts, which four ports move side by side: the blocks of 8x4 of one tile and of every
    second group of four columns, as a tile takes them."""
    return _in_memories(_parts(weight.astype(np.int8)), of_ddr)


def short_weight_words(
    codes: npt.NDArray[np.int8], multipliers: npt.NDArray[np.uint8], of_ddr: int
) -> tuple[Words, Words]:
    """Return what `weight_words` does, for weights of 4 bits. Two are in a byte, the first one in its low half; each of
    the four parts begins with the multipliers of its columns. codes: -8 to 7, (K, columns), both multiples of 64.
    multipliers: (K / 32, columns). of_ddr: as for `weight_words`."""
    x = _parts(codes)
    nibbles = to_nibbles(x).reshape(*x.shape[:4], -1)
    of_parts = multipliers.reshape(len(x), 2, -1, 8, 2, 4).transpose(0, 2, 4, 1, 3, 5).reshape(*x.shape[:4], -1)
    return _in_memories(np.concatenate([of_parts, nibbles], -1), of_ddr)


def _parts(weight: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """The weights of each chunk, column of pairs, second group of four columns, and tile."""
    chunks, columns = (n // BLOCK for n in weight.shape)
    return weight.reshape(chunks, 2, 4, 8, columns, 8, 2, 4).transpose(0, 4, 6, 1, 5, 2, 3, 7)


def _in_memories(parts: npt.NDArray[np.integer[Any]], of_ddr: int) -> tuple[Words, Words]:
    split = parts.shape[1] - of_ddr
    lpddr, ddr = (np.ascontiguousarray(x).reshape(-1).view(np.float32) for x in (parts[:, :split], parts[:, split:]))
    return lpddr, ddr


def weights_of_words(words: Words, columns: int) -> npt.NDArray[np.int8]:
    """Return the weights of one chunk, the inverse of `weight_words`: int8 (columns, 64, 64), for each column of pairs
    (K, its columns). words: of the chunk, (1024 * columns,). columns: number of columns of pairs."""
    x = np.ascontiguousarray(words).view(np.int8).reshape(columns, 2, 2, 8, 4, 8, 4)
    return x.transpose(0, 2, 4, 5, 3, 1, 6).reshape(columns, BLOCK, BLOCK)


def short_weights_of_words(words: Words, columns: int) -> npt.NDArray[np.int8]:
    """Return the weights of one chunk with 8 bits, the inverse of `short_weight_words`, each times its multiplier: int8
    (columns, 64, 64), as from `weights_of_words`. words: of the chunk, (544 * columns,). columns: number of columns of
    pairs."""
    x = np.ascontiguousarray(words).view(np.uint8).reshape(columns, 2, 2, -1)
    multipliers = x[..., : BLOCK // 2].reshape(columns, 2, 2, 8, 4).transpose(2, 0, 3, 1, 4).reshape(2, -1)
    nibbles = np.ascontiguousarray(x[..., BLOCK // 2 :]).reshape(-1)
    codes = from_nibbles(nibbles, "i4", columns * BLOCK * BLOCK).view(np.float32)
    of_columns = weights_of_words(codes, columns).transpose(1, 0, 2).reshape(BLOCK, -1)
    made = unpacked(of_columns, multipliers).astype(np.int8)
    return made.reshape(BLOCK, columns, BLOCK).transpose(1, 0, 2)


ROW_GROUP = INTEGER_ROWS
"""Rows of X or T whose integers lie side by side, with their exponents behind them: 65 words of a port of X, 33 of
T."""


def row_words(x: BlockNumbers) -> Words:
    """Return the words of rows of X as they lie off chip, block by block: of each 16 rows the integers, then the
    exponents. Blocks of 8x8 go along the columns, and in each four blocks of 4x4. x: 16 bits, (rows, blocks, 64) with
    exponents (rows, blocks, 1); a multiple of 16 rows. The result is (rows * blocks * 32.5,)."""
    rows, blocks = x.integers.shape[:2]
    groups = rows // ROW_GROUP
    integers = x.integers.reshape(groups, 2, 2, 4, blocks, 8, 2, 4).transpose(4, 0, 1, 5, 2, 6, 3, 7)
    exponents = x.exponents.reshape(groups, ROW_GROUP, blocks).transpose(2, 0, 1)
    parts = integers.reshape(blocks, groups, -1), exponents
    return np.concatenate(parts, -1).astype(np.int16).reshape(-1).view(np.float32)


def rows_of_words(words: Words, blocks: int) -> BlockNumbers:
    """Return rows of X from their words, the inverse of `row_words`: (rows, blocks, 64) with exponents (rows, blocks,
    1). words: (rows * blocks * 32.5,). blocks: number of blocks of 64 columns."""
    x = np.ascontiguousarray(words).view(np.int16).astype(np.int64).reshape(blocks, -1, ROW_GROUP * (BLOCK + 1))
    groups = x.shape[1]
    integers = x[..., : ROW_GROUP * BLOCK].reshape(blocks, groups, 2, 8, 2, 2, 4, 4).transpose(1, 2, 4, 6, 0, 3, 5, 7)
    exponents = x[..., ROW_GROUP * BLOCK :].transpose(1, 2, 0)
    rows = groups * ROW_GROUP
    return BlockNumbers(integers.reshape(rows, blocks, BLOCK), exponents.reshape(rows, blocks, 1))


def short_row_words(x: BlockNumbers) -> Words:
    """Return the words of rows of a block of T as they lie off chip: of each 16 rows the integers, in blocks of 4x8
    along the columns, as T has them; then the exponents, with 16 bits. x: 8 bits, (rows, 1, 64) with exponents (rows,
    1, 1); a multiple of 16 rows. The result is (rows * 16.5,)."""
    integers, exponents = (y.reshape(len(y) // ROW_GROUP, -1) for y in x)
    integers = integers.reshape(-1, 4, 4, 8, 8).transpose(0, 1, 3, 2, 4).reshape(integers.shape)
    parts = integers.astype(np.int8), exponents.astype(np.int16).view(np.int8)
    return np.concatenate(parts, -1).reshape(-1).view(np.float32)


def short_rows_of_words(words: Words) -> BlockNumbers:
    """Return rows of a block of T from their words, the inverse of `short_row_words`: (rows, 1, 64) with exponents
    (rows, 1, 1). words: (rows * 16.5,)."""
    x = np.ascontiguousarray(words).view(np.int8).reshape(-1, ROW_GROUP * (BLOCK + 2))
    integers, exponents = x[:, : ROW_GROUP * BLOCK], np.ascontiguousarray(x[:, ROW_GROUP * BLOCK :]).view(np.int16)
    integers = integers.reshape(-1, 4, 8, 4, 8).transpose(0, 1, 3, 2, 4)
    return BlockNumbers(*(y.astype(np.int64).reshape(-1, 1, n) for y, n in ((integers, BLOCK), (exponents, 1))))


def row_blocks(blocks: int) -> list[range]:
    """Return the numbers of the blocks that lie side by side, where rows lie one by one: up to `ROW_BLOCKS` in each
    range, the ranges in the order in which they lie. blocks: of a row."""
    return [range(at, min(at + ROW_BLOCKS, blocks)) for at in range(0, blocks, ROW_BLOCKS)]


def units_of_row(blocks: int, bits: int = T_BITS) -> int:
    """Return how many units of 64 bytes a row of up to `ROW_BLOCKS` blocks takes, where rows lie one by one. bits: of
    an integer, 8 for T, 16 for X."""
    (units,) = row_units(blocks * BLOCK, bits // 8)
    return units


def words_by_row(x: BlockNumbers, bits: int = T_BITS) -> Words:
    """Return the words of rows of T or X that lie one by one, as in a cache: of each row its integers, its exponents,
    and zeros up to whole units of 64 bytes. x: (rows, blocks, 64) with exponents (rows, blocks, 1), up to 8 blocks.
    bits: of an integer, 8 for T, 16 for X. The result is (rows * 16 * units_of_row,)."""
    rows, blocks = x.integers.shape[:2]
    made = np.zeros(
        (rows, units_of_row(blocks, bits) * UNIT_BYTES * 8 // bits), np.int8 if bits == T_BITS else np.int16
    )
    made[:, : blocks * BLOCK] = x.integers.reshape(rows, -1)
    made[:, blocks * BLOCK : blocks * (BLOCK + 1)] = x.exponents.reshape(rows, -1)
    return made.reshape(-1).view(np.float32)


def of_words_by_row(words: Words, blocks: int, bits: int = T_BITS) -> BlockNumbers:
    """Return rows of T or X from their words, the inverse of `words_by_row`: (rows, blocks, 64) with exponents (rows,
    blocks, 1). words: (rows * 16 * units_of_row,). blocks: of a row, up to 8. bits: of an integer, 8 for T, 16 for
    X."""
    x = np.ascontiguousarray(words).view(np.int8 if bits == T_BITS else np.int16).astype(np.int64)
    x = x.reshape(-1, units_of_row(blocks, bits) * UNIT_BYTES * 8 // bits)
    ends = x[:, blocks * BLOCK : blocks * (BLOCK + 1)]
    return BlockNumbers(x[:, : blocks * BLOCK].reshape(-1, blocks, BLOCK), ends.reshape(-1, blocks, 1))


def matrix_words_by_row(values: Floats, bits: int) -> Words:
    """Return the words of a matrix whose rows lie one by one: all rows of the first eight blocks, then all rows of the
    next ones. values: (rows, columns), columns a multiple of 64. bits: of an integer, 8 for T, 16 for X. Raises
    `TensorError` for values that are not finite."""
    x = blocks_of(values, bits)
    groups = row_blocks(x.integers.shape[1])
    return np.concatenate([words_by_row(BlockNumbers(*(y[:, g.start : g.stop] for y in x)), bits) for g in groups])


def matrix_of_words_by_row(words: Words, columns: int, bits: int) -> npt.NDArray[np.float32]:
    """Return a matrix from its words, the inverse of `matrix_words_by_row`: float32 (rows, columns). columns: a
    multiple of 64. bits: of an integer, 8 for T, 16 for X."""
    groups = row_blocks(columns // BLOCK)
    units = [units_of_row(len(g), bits) for g in groups]
    rows = words.size // (sum(units) * UNIT)
    parts = np.split(words, np.cumsum([rows * n * UNIT for n in units])[:-1])
    found = (of_words_by_row(x, len(g), bits) for x, g in zip(parts, groups, strict=True))
    return values_of(BlockNumbers(*(np.concatenate(x, 1) for x in zip(*found, strict=True))), columns)


def matrix_words(values: Floats) -> Words:
    """Return the words of a matrix as rows of X lie off chip (`row_words`). values: (rows, columns), rows a multiple of
    16, columns of 64. Raises `TensorError` for values that are not finite."""
    return row_words(blocks_of(values, X_BITS))


def matrix_of_words(words: Words, columns: int) -> npt.NDArray[np.float32]:
    """Return a matrix from its words, the inverse of `matrix_words`: float32 (rows, columns). columns: a multiple of
    64."""
    return values_of(rows_of_words(words, columns // BLOCK), columns)
