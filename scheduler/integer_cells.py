"""Which activation is where in X and T of the lanes of xnn8, counted in cells of 16 rows and 64 columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.errors import UnsupportedError
from ..isa.overlays.xnn8.formats import cells
from .graph import Layer


@dataclass
class LaneCells:
    """Which activation each cell of X or T holds. memory: its name. count: of cells. held: names of activations, by the
    number of the cell; None for a free one. most: cells from the first to the last that held one."""

    memory: str
    count: int
    held: list[str | None] = field(init=False)
    most: int = 0

    def __post_init__(self) -> None:
        self.held = [None] * self.count

    def place(self, layer: Layer, blocks: int, name: str, rows: int) -> int:
        """Return the number of the first cell of `blocks` free blocks side by side, which then hold `name`. layer: that
        makes or reads it. rows: of a lane. Raises `UnsupportedError`, naming the layer, where there is no room."""
        count = blocks * cells(rows)
        for first in range(self.count - count + 1):
            if not any(self.held[first : first + count]):
                self.held[first : first + count] = [name] * count
                self.most = max(self.most, first + count)
                return first
        free = self.held.count(None)
        raise UnsupportedError(
            f"{layer.place}: {name} takes {blocks} blocks of 64 columns and {rows} rows of a lane; of {self.memory}, "
            f"{free} of {self.count} cells of 16 rows are free"
        )

    def first(self, name: str) -> int:
        """Return the number of the first cell of an activation. Raises `ValueError` for one that is not there."""
        return self.held.index(name)

    def free(self, name: str) -> None:
        """Give back the cells of an activation; of one that is not there are none."""
        self.rename(name, None)

    def rename(self, name: str, new: str | None) -> None:
        """Let the cells of an activation hold another one, as large."""
        self.held = [new if held == name else held for held in self.held]
