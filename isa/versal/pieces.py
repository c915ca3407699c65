"""What pieces of a machine take of the fabric, by their synthesis (`pieces.toml`; `hw/versal/pieces.py` makes it)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise


@dataclass(frozen=True)
class Cells:
    """Numbers of LUTs and of flip-flops. They may be fractions."""

    lut: float = 0
    ff: float = 0

    def __add__(self, more: Cells) -> Cells:
        return Cells(self.lut + more.lut, self.ff + more.ff)

    def __sub__(self, less: Cells) -> Cells:
        return self + -1 * less

    def __rmul__(self, times: float) -> Cells:
        return Cells(times * self.lut, times * self.ff)


NO_CELLS = Cells()


@cache
def synthesised() -> Mapping[str, Mapping[int, Cells]]:
    """Return the table of pieces that were synthesised: cells by the name of a piece, then by its size."""
    text = tomllib.loads(files(__package__).joinpath("pieces.toml").read_text(encoding="utf-8"))
    rows = {name: row for name, row in text.items() if isinstance(row, dict)}
    return {name: {int(size): Cells(*cells) for size, cells in row.items()} for name, row in rows.items()}


@cache
def piece(name: str, size: int) -> Cells:
    """Return the cells of the piece of this name and size: as synthesised if the table has the size, else interpolated
    between its neighbours, or extrapolated from the two largest sizes. Raises `KeyError` for an unknown piece.
    """
    row = synthesised()[name]
    if size in row:
        return row[size]
    pairs = list(pairwise(row))
    low, high = next((pair for pair in pairs if size < pair[1]), pairs[-1])
    return row[low] + (size - low) / (high - low) * (row[high] - row[low])


@cache
def next_larger(name: str, size: int) -> Cells:
    """Return the cells of the smallest listed piece of this name whose size is at least `size`. Beyond the largest one,
    as many of these as are needed. Raises `KeyError` for an unknown piece."""
    row = synthesised()[name]
    largest = max(row)
    return row[min(n for n in row if n >= size)] if size <= largest else -(-size // largest) * row[largest]
