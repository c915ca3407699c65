"""The off-chip layout: matrices in blocks of 128 rows by 64 columns (contract section 3, paper section 5.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

BLOCK_ROWS = 128
BLOCK_COLS = 64
BLOCK = BLOCK_ROWS * BLOCK_COLS
"""Elements of a block; 32 KiB."""
QUARTER = BLOCK // 4
"""Elements of 32 rows of a block: the smallest load."""
UNIT_BYTES = 64
"""Addresses and strides count units of 64 bytes."""
UNIT = UNIT_BYTES // 4
"""Elements of an address unit."""


def padded(n: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least n."""
    return -(-n // multiple) * multiple


def block(matrix: Array) -> Array:
    """(R, C) row-major to its linear blocked form (R*C,). R is a multiple of 128, C of 64.

    In a block come 4 groups of 32 rows; in a group first the 16 even rows, then the 16 odd ones.
    """
    rows, cols = matrix.shape
    if rows % BLOCK_ROWS or cols % BLOCK_COLS:
        raise ValueError(f"{rows}x{cols} is not a whole number of {BLOCK_ROWS}x{BLOCK_COLS} blocks")
    grid = matrix.reshape(rows // 128, 4, 16, 2, cols // 64, 64)
    return np.ascontiguousarray(grid.transpose(0, 4, 1, 3, 2, 5)).reshape(-1)


def unblock(flat: Array, rows: int, cols: int) -> Array:
    """The inverse of `block`: (R*C,) to (R, C)."""
    grid = flat.reshape(rows // 128, cols // 64, 4, 2, 16, 64)
    return np.ascontiguousarray(grid.transpose(0, 2, 4, 3, 1, 5)).reshape(rows, cols)
