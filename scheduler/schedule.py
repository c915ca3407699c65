"""The knobs of the scheduler, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..isa.errors import ScheduleError


class Interleave(Enum):
    """The three ways of Fig. 12 to put loads and stores on one DDR channel that software can write down."""

    STRICT = "strict"
    """Load, compute, store; the next tile's loads wait for the stores."""
    INTERLEAVED = "interleaved"
    """Stores of a tile go between the loads of the next one, across segments too (section 4.4)."""


class Loops(Enum):
    """Which loop over a product's output tiles is the outer one."""

    COLUMNS = "columns"
    ROWS = "rows"


@dataclass(frozen=True)
class Schedule:
    """How a network is put on the machine. tile_rows, tile_cols: the largest output tile, in 128-row and 128-column
    blocks (paper section 5.3: 768x1024)."""

    interleave: Interleave = Interleave.INTERLEAVED
    tile_rows: int = 6
    tile_cols: int = 8
    loops: Loops = Loops.COLUMNS
    balance: bool = False

    def __post_init__(self) -> None:
        if self.tile_rows not in (1, 2, 3, 4, 6):
            raise ScheduleError(f"tile_rows={self.tile_rows}: MemA and MemC hold tiles of 1, 2, 3, 4 or 6 row blocks")
        if not 1 <= self.tile_cols <= 8:
            raise ScheduleError(f"tile_cols={self.tile_cols}: two MemC of 512 columns hold 1 to 8 column blocks")


PAPER = Schedule()
STRICT = Schedule(interleave=Interleave.STRICT)
SCHEDULES = {"paper": PAPER, "strict": STRICT}
