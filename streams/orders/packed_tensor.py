"""How a tensor lies in memory off the chip so that its tokens are read in whole words of the port: packed and widened.

A tensor of 64 x 64 bytes in tokens of 16 x 16 is packed as 4 x 4 x 16 x 16, and for a port of 512 bits widened to words
of 8 x 8 bytes: 4 x 4 x 2 x 2 x (8 x 8), 64 words (StreamTensor, MICRO'25). The same vectors can be what a stream
carries: a token of 16 x 16 is 32 vectors of 2 x 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.element_types import BITS
from ...base.errors import ProgramError
from .order import Order

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PackedTensor:
    """A tensor that lies in memory tile by tile, and in each tile vector by vector.

    tensor, tile, vector: shapes in elements, of the same rank. dtype: the element type. nesting: the axes in the order
    in which tiles follow each other in memory, the slowest first; () for the order of the axes. Raises `ProgramError`
    for sizes that do not divide, an unknown element type, and a nesting that does not name each axis once."""

    tensor: tuple[int, ...]
    tile: tuple[int, ...]
    vector: tuple[int, ...]
    dtype: str = "f32"
    nesting: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _bits(self.dtype)
        if not len(self.tensor) == len(self.tile) == len(self.vector):
            raise ProgramError(
                f"a tensor {list(self.tensor)} in tiles {list(self.tile)} of vectors {list(self.vector)}: give all "
                f"three as many axes"
            )
        if sorted(self._nesting) != list(range(len(self.tensor))):
            raise ProgramError(f"nesting {list(self.nesting)} of {len(self.tensor)} axes; it names each once")
        for what, whole, part in (("tiles", self.tensor, self.tile), ("vectors", self.tile, self.vector)):
            for axis, (size, inner) in enumerate(zip(whole, part, strict=True)):
                if inner < 1 or size % inner:
                    raise ProgramError(
                        f"axis {axis} has {size} elements, which is no multiple of {inner}: {what} of {list(part)} do "
                        f"not divide {list(whole)}"
                    )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor in memory, of three times its rank: the number of tiles along each axis, in the order
        of `nesting`; the number of vectors of a tile along each axis; and the elements of a vector along each axis."""
        tiles = (self.tensor[axis] // self.tile[axis] for axis in self._nesting)
        vectors = (tile // vector for tile, vector in zip(self.tile, self.vector, strict=True))
        return (*tiles, *vectors, *self.vector)

    @property
    def words(self) -> int:
        """The number of vectors of the whole tensor."""
        return prod(self.tensor) // prod(self.vector)

    def tokens_in_a_row(self, order: Order) -> int:
        """Return how many tiles, taken in an order, follow each other in memory without a gap. order: one whose tokens
        are the tiles."""
        count = 1
        several = [axis for axis in self._nesting if self.tensor[axis] > self.tile[axis]]
        for loop in reversed(range(len(order.trips))):
            if order.trips[loop] > 1:
                if not several or order.axis_of(loop) != several.pop():
                    break
                count *= order.trips[loop]
        return count

    def pack(self, x: Array) -> Array:
        """Return a tensor as it lies in memory, an array of `shape`. x: an array of the shape `tensor`; `ValueError`
        for another number of elements."""
        split = [n for axis in self._axes for n in axis]
        return np.ascontiguousarray(np.asarray(x).reshape(split).transpose(self._order))

    def unpack(self, x: Array) -> Array:
        """Return the tensor, an array of the shape `tensor`, of its content in memory: the inverse of `pack`. x: an
        array with as many elements as `shape`; `ValueError` for another number."""
        order = np.argsort(self._order)
        return np.ascontiguousarray(np.asarray(x).reshape(self.shape).transpose(order)).reshape(self.tensor)

    @property
    def _nesting(self) -> Sequence[int]:
        return self.nesting or range(len(self.tensor))

    @property
    def _order(self) -> list[int]:
        """Which axis of the split tensor each axis of `shape` is."""
        axes = range(len(self.tensor))
        return [3 * axis for axis in self._nesting] + [3 * axis + level for level in (1, 2) for axis in axes]

    @property
    def _axes(self) -> list[tuple[int, int, int]]:
        """Tiles, vectors of a tile, and elements of a vector along each axis."""
        sizes = zip(self.tensor, self.tile, self.vector, strict=True)
        return [(size // tile, tile // vector, vector) for size, tile, vector in sizes]


def _bits(dtype: str) -> int:
    if dtype not in BITS:
        raise ProgramError(f"{dtype} is no type of elements; known are {', '.join(BITS)}")
    return BITS[dtype]


def widened(tensor: Sequence[int], tile: Sequence[int], dtype: str, port_bits: int) -> PackedTensor:
    """Return a tensor packed in the largest vectors that divide a tile and fit a memory port. Of vectors of the same
    size, the one closest to a square is taken, and of two equally close the one with more columns. tensor, tile:
    shapes, of the same rank. dtype: the element type. port_bits: bits that the port moves in a cycle. Raises
    `ProgramError` if no element fits the port, and as `PackedTensor`."""
    bits = _bits(dtype)
    if port_bits < bits:
        raise ProgramError(
            f"a port of {port_bits} bits moves no element of {dtype}, which has {bits}; the port is too narrow"
        )
    divisors = [[n for n in range(1, size + 1) if size % n == 0] for size in tile]
    fitting = (vector for vector in product(*divisors) if prod(vector) * bits <= port_bits)
    # A tile that has no vector, because a size is below 1, is refused by `PackedTensor`.
    best = max(fitting, key=lambda v: (prod(v), -(max(v) - min(v)), v[::-1]), default=tuple(tile))
    return PackedTensor(tuple(tensor), tuple(tile), best, dtype)
