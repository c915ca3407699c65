"""Which activation is where in X and T of the lanes of xnn8, counted in cells of 16 rows and 64 columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.errors import UnsupportedError
from ..isa.overlays.xnn8.formats import cells
from .graph import Layer


@dataclass
class LaneCells:
    """Which activation each cell of a lane's memory X or T holds. A cell has room for 16 rows of a block of 64 columns.
    memory: name of the memory. count: number of its cells. held: the name of the activation in each cell; None for a
    free one. most: one more than the number of the last cell that has ever held one."""

    memory: str
    count: int
    held: list[str | None] = field(init=False)
    most: int = 0

    def __post_init__(self) -> None:
        self.held = [None] * self.count

    def place(self, layer: Layer, blocks: int, name: str, rows: int) -> int:
        """Find free cells side by side for an activation, and return the number of the first. layer: the layer that
        makes or reads the activation, for messages. blocks: how many blocks of 64 columns it has. name: of the
        activation. rows: of a lane. Raises `UnsupportedError`, naming the layer, where there is no room."""
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
        """Make the cells of an activation free. An activation without cells is no error."""
        self.rename(name, None)

    def rename(self, name: str, new: str | None) -> None:
        """Give the cells of the activation `name` to the activation `new`, which is as large; None makes them free."""
        self.held = [new if held == name else held for held in self.held]
