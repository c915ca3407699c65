"""How rows, weights and constants lie in the off-chip memories of xnn8, as words of 32 bits (float32 vectors, of which
only the bits count)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .numbers import BLOCK, X_BITS, BlockNumbers, Floats, blocks_of, values_of

Words = npt.NDArray[np.float32]


class PackedConstants(NamedTuple):
    """Two vectors of a block: of 64 columns, 16 bits, with exponents; and the shift of a product's results."""

    first: BlockNumbers
    second: BlockNumbers
    shift: int = 0

    def packed(self) -> Words:
        """As they lie in memory, (80,)."""
        out = np.zeros(160, np.int16)
        for i, vector in enumerate((self.first, self.second)):
            out[BLOCK * i : BLOCK * (i + 1)] = vector.integers.reshape(-1)
            out[2 * BLOCK + i] = vector.exponents.item()
        out[2 * BLOCK + 2] = self.shift
        return out.view(np.float32)

    @classmethod
    def unpacked(cls, words: Words) -> PackedConstants:
        """Return the constants that `packed` has made into 32-bit words, (80,)."""
        x = np.ascontiguousarray(words).view(np.int16).astype(np.int64)
        vectors = [
            BlockNumbers(x[None, BLOCK * i : BLOCK * (i + 1)], x[None, 2 * BLOCK + i : 2 * BLOCK + i + 1])
            for i in range(2)
        ]
        return cls(vectors[0], vectors[1], int(x[2 * BLOCK + 2]))


def constant_words(blocks: Iterable[Sequence[PackedConstants]]) -> Words:
    """Constants of blocks, block by block."""
    return np.concatenate([vector.packed() for block in blocks for vector in block])


def columns_of(x: BlockNumbers) -> list[BlockNumbers]:
    """The blocks of a vector (blocks, 64), (blocks, 1), one by one."""
    return [BlockNumbers(x.integers[i : i + 1], x.exponents[i : i + 1]) for i in range(len(x.integers))]


def weight_words(weight: npt.NDArray[np.integer[Any]], of_ddr: int) -> tuple[Words, Words]:
    """The weights of a block of up to 512 columns in LPDDR and in DDR, chunk by chunk. weight: (K, columns), multiples
    of 64. of_ddr: columns of pairs whose weights are in DDR.

    Each column of pairs has four parts, which four ports move side by side: the blocks of 8x4 of one tile and of every
    second group of four columns, as a tile takes them."""
    chunks, columns = (n // BLOCK for n in weight.shape)
    x = weight.astype(np.int8).reshape(chunks, 2, 4, 8, columns, 8, 2, 4).transpose(0, 4, 6, 1, 5, 2, 3, 7)
    split = columns - of_ddr
    lpddr, ddr = (np.ascontiguousarray(part).reshape(-1).view(np.float32) for part in (x[:, :split], x[:, split:]))
    return lpddr, ddr


def weights_of_words(words: Words, columns: int) -> npt.NDArray[np.int8]:
    """The inverse of `weight_words`, of one chunk: (columns, 64, 64), of each column of pairs (K, columns)."""
    x = np.ascontiguousarray(words).view(np.int8).reshape(columns, 2, 2, 8, 4, 8, 4)
    return x.transpose(0, 2, 4, 5, 3, 1, 6).reshape(columns, BLOCK, BLOCK)


def row_words(x: BlockNumbers) -> Words:
    """Rows of X, block by block: of each block the integers, then the exponents. Blocks of 8x8 go along the
    columns, and in each four blocks of 4x4. x: (rows, blocks, 64) and (rows, blocks, 1); a multiple of eight rows."""
    rows, blocks = x.integers.shape[:2]
    integers = x.integers.reshape(rows // 8, 2, 4, blocks, 8, 2, 4).transpose(3, 0, 4, 1, 5, 2, 6).reshape(blocks, -1)
    exponents = x.exponents[..., 0].T
    return np.concatenate([integers, exponents], -1).astype(np.int16).reshape(-1).view(np.float32)


def rows_of_words(words: Words, blocks: int) -> BlockNumbers:
    """The inverse of `row_words`. blocks: of 64 columns."""
    x = np.ascontiguousarray(words).view(np.int16).astype(np.int64).reshape(blocks, -1)
    rows = x.shape[1] // (BLOCK + 1)
    integers = x[:, : rows * BLOCK].reshape(blocks, rows // 8, 8, 2, 2, 4, 4).transpose(1, 3, 5, 0, 2, 4, 6)
    return BlockNumbers(integers.reshape(rows, blocks, BLOCK), x[:, rows * BLOCK :].T[..., None])


def matrix_words(values: Floats) -> Words:
    """A matrix of whole blocks as rows of X. values: (rows, columns). Raises `TensorError` for values that
    are not finite."""
    return row_words(blocks_of(values, X_BITS))


def matrix_of_words(words: Words, columns: int) -> npt.NDArray[np.float32]:
    """The inverse of `matrix_words`: float32 (rows, columns)."""
    return values_of(rows_of_words(words, columns // BLOCK), columns)
