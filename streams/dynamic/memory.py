"""Tensors in the memory off the chip, cut into tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from ...base.element_types import BITS
from .errors import StepError
from .functions import InputRefused
from .tokens import Array, Tile

_NUMBERS = count()


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor in the memory off the chip; the last two sizes are rows and columns. Its tiles are numbered row-major.

    shape: in elements, the outermost size first. dtype: of its elements, of whole bytes. data: an array of that shape;
    None in a program without data. base: the address of its first byte. name: "" for a tensor that gets a number as its
    name; then `named` is False. Raises `StepError` for elements that are no whole bytes, sizes below 1, a base below 0,
    and data of another shape."""

    shape: tuple[int, ...]
    dtype: str = "bf16"
    data: Array | None = None
    base: int = 0
    name: str = ""
    named: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", f"tensor{next(_NUMBERS)}")
            object.__setattr__(self, "named", False)
        if self.dtype not in BITS or BITS[self.dtype] % 8:
            raise StepError("Tensor", f"{self.name} has elements of {self.dtype}; off the chip they have whole bytes")
        if min(self.shape, default=0) < 1 or self.base < 0:
            raise StepError("Tensor", f"{self.name} has shape {list(self.shape)} at {self.base}; sizes >= 1, base >= 0")
        if self.data is not None and self.data.shape != self.shape:
            raise StepError("Tensor", f"tensor {self.name} has shape {self.shape}, and its data {self.data.shape}")

    @classmethod
    def of(cls, data: Array, dtype: str = "bf16", base: int = 0, name: str = "") -> Tensor:
        """Return a tensor with values. data: an array of the tensor's shape. dtype: of its elements off the chip. base:
        the address of its first byte. name: "" for a tensor that gets a number as its name. Raises `StepError` as
        `Tensor`."""
        return cls(tuple(data.shape), dtype, data, base, name)

    def tiled(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the tensor, its last two sizes counted in tiles. tile: rows and columns of a tile. Raises
        `InputRefused` if it is not a whole number of tiles, or if a tile is smaller than [1,1].
        """
        rows, columns = tile
        if rows < 1 or columns < 1:
            raise InputRefused(f"tiles [{rows},{columns}] of tensor {self.shape}; the least is [1,1]")
        if len(self.shape) < 2 or self.shape[-2] % rows or self.shape[-1] % columns:
            raise InputRefused(f"tensor {self.shape} is not whole in tiles [{rows},{columns}]")
        return (*self.shape[:-2], self.shape[-2] // rows, self.shape[-1] // columns)

    def address(self, index: int, tile: Sequence[int]) -> tuple[int, int]:
        """Return the address of the first byte of a tile, and the bytes from one of its rows to the next. index: of the
        tile, row-major. tile: rows and columns of a tile. The caller has checked that the tensor is whole in such tiles
        (`tiled`), and that the tile exists."""
        across = self.shape[-1] // tile[1]
        row, column = divmod(index, across)
        width = BITS[self.dtype]
        return (
            self.base + (row * tile[0] * self.shape[-1] + column * tile[1]) * width // 8,
            self.shape[-1] * width // 8,
        )


class TensorMemory:
    """The memory off the chip during a run: the given tensors, and what was written over them. with_data: whether tiles
    have values. values: of tensors in this run, arrays of their shapes, in place of the tensors' own; None for none. A
    tensor may be written and read in tiles of different sizes."""

    def __init__(self, with_data: bool = True, values: Mapping[Tensor, Array] | None = None) -> None:
        self.with_data = with_data
        self._values = values or {}
        self._written: dict[Tensor, dict[tuple[int, tuple[int, int]], Tile]] = {}  # the last written is the last
        self._sizes: dict[Tensor, set[tuple[int, int]]] = {}

    def read(self, tensor: Tensor, index: int, tile: Sequence[int]) -> Tile:
        """Return a tile of a tensor; it has no data if any of its elements has none. index: of the tile, row-major.
        tile: its rows and columns. The caller has checked that the tile exists."""
        rows, columns = tile
        written = self._written.get(tensor, {})
        if self._sizes.get(tensor, set()) <= {(rows, columns)}:
            known = written.get((index, (rows, columns)))
            return known if known is not None else self._given(tensor, index, (rows, columns))
        first, left = _place(tensor, index, (rows, columns))
        given = self._given(tensor, index, (rows, columns)).data
        data = np.zeros((rows, columns)) if given is None else np.array(given)
        known_values = np.full((rows, columns), given is not None)
        for (number, size), value in written.items():
            row, column = _place(tensor, number, size)
            top, bottom = max(row, first), min(row + size[0], first + rows)
            start, end = max(column, left), min(column + size[1], left + columns)
            if top >= bottom or start >= end:
                continue
            here = slice(top - first, bottom - first), slice(start - left, end - left)
            known_values[here] = value.data is not None
            if value.data is not None:
                data = data.astype(np.result_type(data, value.data), copy=False)
                data[here] = value.data[top - row : bottom - row, start - column : end - column]
        return Tile(rows, columns, tensor.dtype, data if known_values.all() else None)

    def _given(self, tensor: Tensor, index: int, tile: tuple[int, int]) -> Tile:
        """A tile as it is before the run."""
        rows, columns = tile
        data = self._values.get(tensor, tensor.data)
        if data is None or not self.with_data:
            return Tile(rows, columns, tensor.dtype)
        row, column = _place(tensor, index, tile)
        part = data.reshape(-1, tensor.shape[-1])[row : row + rows, column : column + columns]
        return Tile(rows, columns, tensor.dtype, part)

    def write(self, tensor: Tensor, index: int, value: Tile) -> None:
        """Store a tile in a tensor. index: of the tile, row-major among tiles of the size of `value`. The caller has
        checked that the tile exists.
        """
        written = self._written.setdefault(tensor, {})
        written.pop((index, value.shape), None)
        written[index, value.shape] = value
        self._sizes.setdefault(tensor, set()).add(value.shape)

    def tensor(self, tensor: Tensor) -> Array:
        """Return the present values of a tensor, an array of its shape; 0 where nothing was given or written. Raises
        `ValueError` if tiles without data were written.
        """
        data = self._values.get(tensor, tensor.data)
        whole = np.zeros(tensor.shape) if data is None else data.copy()
        flat = whole.reshape(-1, tensor.shape[-1])
        for (index, size), value in self._written.get(tensor, {}).items():
            if value.data is None:
                raise ValueError(f"{tensor.name} has tiles without data")
            row, column = _place(tensor, index, size)
            flat = flat.astype(np.result_type(flat, value.data), copy=False)  # integers were given, others written
            flat[row : row + size[0], column : column + size[1]] = value.data
        return flat.reshape(tensor.shape)


def _place(tensor: Tensor, index: int, tile: tuple[int, int]) -> tuple[int, int]:
    """The first row, of all rows of all its matrices, and the first column of a tile."""
    row, column = divmod(index, tensor.shape[-1] // tile[1])
    return row * tile[0], column * tile[1]
