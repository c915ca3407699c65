"""Layout of activations and weights off chip: column order, padding, and offsets in a bank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..isa.layout import padded
from .graph import Array, Gemm

HEAD_COLS = 64
"""Columns of an attention head on the machine; narrower heads are padded (MemB2 and K = 64 mode take 64)."""


@dataclass(frozen=True)
class Columns:
    """How the columns of an activation are stored: `groups` groups of `width` columns, each padded to `pitch` columns,
    all together padded to a multiple of 128, the K and N of an MME."""

    groups: int
    width: int
    pitch: int
    panel: int | None = None
    """Width of a panel: the matrix is stored as panels of so many columns, one behind the other; None for one panel.
    Activations that the host does not read are stored in panels, one for each column tile."""

    @property
    def count(self) -> int:
        """Number of columns without padding."""
        return self.groups * self.width

    @property
    def stored(self) -> int:
        """Number of columns with padding."""
        return padded(self.groups * self.pitch, 128)

    @property
    def used(self) -> int:
        """Number of stored columns that a product reads: up to the last one that is not padding, in slices of 128."""
        return padded((self.groups - 1) * self.pitch + self.width, 128)

    @property
    def is_plain(self) -> bool:
        """Whether there is no padding between groups."""
        return self.groups == 1 or self.pitch == self.width

    def positions(self) -> npt.NDArray[np.intp]:
        """The stored column of each column, shape (count,)."""
        g, i = np.divmod(np.arange(self.count), self.width)
        return g * self.pitch + i


def stored_weight(gemm: Gemm, x: Columns, y: Columns, cols: int) -> Array:
    """Arrange a weight as stored: rows in the column layout of x, columns in that of y, zero-padded to shape (x.used,
    cols)."""
    out = np.zeros((x.used, cols), np.float32)
    out[np.ix_(x.positions(), y.positions())] = gemm.weight
    return out


def stored_vector(vector: Array, y: Columns, cols: int) -> Array:
    """Arrange a vector with one element per column in the layout of y, zero-padded to `cols` elements."""
    out = np.zeros(cols, np.float32)
    out[y.positions()] = vector
    return out


class Arena:
    """Allocates offsets in one bank, in address units, from `start` on. Freed pieces are reused for pieces of the same
    size, so that the layers of a stack share memory for their activations."""

    def __init__(self, start: int = 0) -> None:
        self._end = start
        self._free: dict[int, list[int]] = {}

    def take(self, units: int) -> int:
        """Allocate `units` address units. Returns their offset."""
        pool = self._free.get(units)
        if pool:
            return pool.pop()
        at = self._end
        self._end = padded(at + units, 64)
        return at

    def give(self, at: int, units: int) -> None:
        """Free the `units` address units at offset `at`."""
        self._free.setdefault(units, []).append(at)
