"""Lanes: a pattern of units that keep the rows of a panel on chip, and the words of the work that they get.

Each lane has a product unit, a memory of rows (X) and a memory of tiles that live for a short time (T). Two lanes are a
pair. The compiler (`scheduler/lanes`) says what happens to which tile; the overlay turns that into instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True)
class RowLanes:
    """The lanes of an overlay.

    weights, activations: the banks that hold them. lanes: their number. columns: column tiles of a bank of X, which
    has two. scratch: slots of T of an even and of an odd lane. heads: 128x64 blocks that a memory of keys or values
    holds; memories 0 and 1 are of keys, 2 and 3 of values.
    """

    weights: str
    activations: str
    lanes: int
    columns: int
    scratch: tuple[int, int]
    heads: int


@dataclass(frozen=True)
class SentNorm:
    """A norm of rows, applied as they are sent: (x - mean) / sqrt(variance + eps), `rms`: without mean."""

    eps: float
    rms: bool = False


@dataclass(frozen=True)
class HeadFunctions:
    """What is applied to the heads of a tile, `pitch` columns each: a norm over the first `columns` of them (0: none),
    then a factor of each column (`gains`), then a rotation by the table that Post holds (`rotate`). Gains come before
    each tile."""

    pitch: int
    columns: int = 0
    eps: float = 0.0
    rms: bool = False
    gains: bool = False
    rotate: bool = False


class RowSource(IntEnum):
    """Where X takes tiles from."""

    RESULT = 0
    """C of its lane."""
    SCRATCH = 1
    """T of the odd lane of its pair."""


class RowTarget(IntEnum):
    """Where X sends tiles to."""

    LANE = 0
    """The MME of its lane."""
    PAIR = 1
    """Both MMEs of its pair."""
    RESULT = 2
    """C of its lane, which adds it as a residual."""
    OTHER = 3
    """The MME of the other lane of its pair."""


class TileSource(IntEnum):
    """Where T takes tiles from."""

    EVEN = 0
    """Post of the even lane of its pair, for T of that lane."""
    ODD = 1
    """Post of the odd lane of its pair."""
    SOFTMAX = 2
    DDR = 3


class TileTarget(IntEnum):
    """Where T sends tiles to: MMEs of the even lane of its pair, of the odd lane, of both; T of an odd lane X too."""

    EVEN = 0
    ODD = 1
    PAIR = 2
    ROWS_EVEN = 3
    ROWS_ODD = 4


class SlotPart(IntEnum):
    """What of a slot is written or sent: all, or 64 columns, which travel as the first ones of a tile. Writing the left
    ones makes the right ones 0."""

    WHOLE = 0
    LEFT = 1
    RIGHT = 2


class ResultTarget(IntEnum):
    """Where C sends tiles to."""

    POST = 0
    ROWS = 1
    """X of its lane."""
    SOFTMAX = 2
    """Softmax of its pair."""


class PostTarget(IntEnum):
    """Where Post sends tiles to."""

    EVEN = 0
    """T of the even lane of its pair."""
    ODD = 1
    """T of the odd lane, for Post of that lane."""
    DDR = 2
    KEYS = 3
    VALUES = 4


class Weight(IntEnum):
    """What LPDDR sends, and where to."""

    W0 = 0
    W1 = 1
    VECTOR = 2
    """To C of the selected lanes: vectors of a column tile, 128 elements each."""
    TABLE = 3
    """To Post of the selected lanes: cosines and sines of 128 rows, in tiles that lie row by row."""
    GAINS = 4
    """To Post of the selected lanes: vectors that multiply columns, 128 elements each."""
