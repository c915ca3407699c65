"""Tensors in the memory off the chip, cut into tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from ..language import BITS
from .errors import StepError
from .functions import Refused
from .tokens import Array, Tile

_NUMBERS = count()


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor in the memory off the chip; the last two sizes are rows and columns.

    dtype: of its elements, of whole bytes. data: None in a program without data. base: address of its first byte. Tiles
    are numbered in row-major order. Raises `StepError`.
    """

    shape: tuple[int, ...]
    dtype: str = "bf16"
    data: Array | None = None
    base: int = 0
    name: str = field(default_factory=lambda: f"tensor{next(_NUMBERS)}")

    def __post_init__(self) -> None:
        if self.dtype not in BITS or BITS[self.dtype] % 8:
            raise StepError("Tensor", f"{self.name} has elements of {self.dtype}; off the chip they have whole bytes")
        if self.data is not None and self.data.shape != self.shape:
            raise StepError("Tensor", f"tensor {self.name} has shape {self.shape}, and its data {self.data.shape}")

    @classmethod
    def of(cls, data: Array, dtype: str = "bf16", base: int = 0) -> Tensor:
        """A tensor with this data."""
        return cls(tuple(data.shape), dtype, data, base)

    def tiled(self, tile: Sequence[int]) -> tuple[int, ...]:
        """Its shape in tiles. Raises `Refused` unless it is whole in them."""
        rows, columns = tile
        if len(self.shape) < 2 or self.shape[-2] % rows or self.shape[-1] % columns:
            raise Refused(f"tensor {self.shape} is not whole in tiles [{rows},{columns}]")
        return (*self.shape[:-2], self.shape[-2] // rows, self.shape[-1] // columns)

    def address(self, index: int, tile: Sequence[int]) -> tuple[int, int]:
        """Address of the first byte of a tile, and the bytes from one of its rows to the next."""
        across = self.shape[-1] // tile[1]
        row, column = divmod(index, across)
        width = BITS[self.dtype]
        return (
            self.base + (row * tile[0] * self.shape[-1] + column * tile[1]) * width // 8,
            self.shape[-1] * width // 8,
        )


class Memory:
    """The memory off the chip during a run: what was written, over the tensors as given. with_data: whether tiles have
    values."""

    def __init__(self, with_data: bool = True) -> None:
        self.with_data = with_data
        self.written: dict[Tensor, dict[int, Tile]] = {}

    def read(self, tensor: Tensor, index: int, tile: Sequence[int]) -> Tile:
        """A tile of a tensor. The caller has checked that there is such a tile."""
        known = self.written.get(tensor, {}).get(index)
        if known is not None:
            return known
        rows, columns = tile
        if tensor.data is None or not self.with_data:
            return Tile(rows, columns, tensor.dtype)
        flat = tensor.data.reshape(-1, tensor.shape[-1])
        row, column = divmod(index, tensor.shape[-1] // columns)
        part = flat[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
        return Tile(rows, columns, tensor.dtype, part)

    def write(self, tensor: Tensor, index: int, value: Tile) -> None:
        """Put a tile in its place."""
        self.written.setdefault(tensor, {})[index] = value

    def tensor(self, tensor: Tensor) -> Array:
        """A tensor as it is now; where nothing was written or given, 0. Raises `ValueError` for tiles without data."""
        whole = np.zeros(tensor.shape) if tensor.data is None else tensor.data.copy()
        flat = whole.reshape(-1, tensor.shape[-1])
        for index, value in self.written.get(tensor, {}).items():
            if value.data is None:
                raise ValueError(f"{tensor.name} has tiles without data")
            row, column = divmod(index, tensor.shape[-1] // value.columns)
            flat[row * value.rows : (row + 1) * value.rows, column * value.columns : (column + 1) * value.columns] = (
                value.data
            )
        return flat.reshape(tensor.shape)
