"""The off-chip layouts of matrices: row by row, or blocks of 128 rows by 64 columns (contract section 3, paper section
5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
"""A vector, matrix or tensor of the machine's numbers."""


class Layout(Enum):
    """The order of a buffer's elements in memory."""

    BLOCKED = "blocked"
    """128x64 blocks, `block`."""
    LINEAR = "linear"
    """Row-major."""
    INTEGERS = "integers"
    """Of overlay xnn8: integers of 16 bits in blocks of 64 columns, each with an exponent for each row; each sequence
    by itself, of it block by block, and of a block 16 rows at a time (`isa/overlays/xnn8/stored.py`)."""
    SHORT = "short"
    """Of overlay xnn8: integers of 8 bits, and an exponent for each row and 64 columns; each sequence by itself, of it
    512 columns at a time, and of these row by row, filled up to 64 bytes (`isa/overlays/xnn8/stored.py`)."""
    LONG = "long"
    """The same with integers of 16 bits."""


BY_ROW = {Layout.SHORT: 1, Layout.LONG: 2}
"""Layouts of integers that lie row by row, with the bytes of one."""


INTEGER_ROWS = 16
"""Rows of a block of integers that lie side by side, with their exponents behind them."""
ITEM_ROWS = 2 * INTEGER_ROWS
"""Rows of an item of integers are a multiple of it, so that each block begins with an address unit."""
ROW_BLOCKS = 8
"""Blocks of 64 columns of a row of integers that lie side by side, where these lie row by row, with their exponents
behind them."""
BLOCK_ROWS = 128
BLOCK_COLS = 64
BLOCK = BLOCK_ROWS * BLOCK_COLS
"""Float32 elements of a block: 32 KiB."""
QUARTER = BLOCK // 4
"""Elements of a quarter block (32 rows): the smallest load."""
UNIT_BYTES = 64
"""Bytes of an address unit, in which addresses and strides are counted."""
UNIT = UNIT_BYTES // 4
"""Float32 elements of an address unit."""
ALIGNED = 64
"""Address units of a page of 4 KiB: buffers that the compiler places begin at multiples of it."""


def padded(n: int, multiple: int) -> int:
    """Round n up to a multiple of `multiple`, which is at least 1."""
    return -(-n // multiple) * multiple


def scaled(values: Array, scale: Sequence[float] | Array | None, shift: Sequence[float] | Array | None) -> Array:
    """Return a copy of the values, (..., columns), times scale, plus shift. scale, shift: (columns,) each; None for
    none. Raises `ValueError` for another number of columns."""
    out = np.array(values)
    if scale is not None:
        out *= np.asarray(scale, np.float32)
    if shift is not None:
        out += np.asarray(shift, np.float32)
    return out


def row_units(columns: int, item: int) -> list[int]:
    """Return how many address units a row of integers takes, in a layout of integers that lie row by row: a number for
    each 512 columns, and one for the columns behind the last 512. Exponents are included, one unit each time.

    columns: of the row, a multiple of 64. item: bytes of an integer."""
    blocks = columns // BLOCK_COLS
    return [item * min(ROW_BLOCKS, blocks - at) + 1 for at in range(0, blocks, ROW_BLOCKS)]


def block(matrix: Array) -> Array:
    """Convert a matrix (R, C) to its blocked form (R*C,). R is a multiple of 128, C of 64.

    A block holds 4 groups of 32 rows; a group holds its 16 even rows, then its 16 odd rows. Raises `ValueError` if the
    matrix is not a whole number of blocks.
    """
    rows, cols = matrix.shape
    if rows % BLOCK_ROWS or cols % BLOCK_COLS:
        raise ValueError(f"{rows}x{cols} is not a whole number of {BLOCK_ROWS}x{BLOCK_COLS} blocks")
    grid = matrix.reshape(rows // 128, 4, 16, 2, cols // 64, 64)
    return np.ascontiguousarray(grid.transpose(0, 4, 1, 3, 2, 5)).reshape(-1)


def unblock(flat: Array, rows: int, cols: int) -> Array:
    """Convert a blocked vector `flat`, (rows * cols,), back to its matrix (rows, cols): the inverse of `block`. Raises
    `ValueError` if the vector has another size, or the matrix is not a whole number of blocks.
    """
    grid = flat.reshape(rows // 128, cols // 64, 4, 2, 16, 64)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 3, 1, 5)).reshape(rows, cols)
