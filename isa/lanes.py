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

    weights, activations: names of the off-chip memories that hold weights and activations. lanes: how many lanes there
    are. columns: how many column tiles one of the two banks of X holds. scratch: how many slots T has, in an even and
    in an odd lane. heads: how many 128x64 blocks a memory of keys or values holds; memories 0 and 1 are of keys, 2 and
    3 of values.
    """

    weights: str
    activations: str
    lanes: int
    columns: int
    scratch: tuple[int, int]
    heads: int


@dataclass(frozen=True)
class SentNorm:
    """A norm of rows, applied as they are sent: (x - mean) / sqrt(variance + eps); with `rms` x / sqrt(mean square +
    eps)."""

    eps: float
    rms: bool = False


@dataclass(frozen=True)
class HeadFunctions:
    """Functions that Post applies to each attention head of a tile, in this order: a norm, factors, a rotation.

    pitch: columns from a head to the next. columns: how many columns of a head, from its first one on, the norm goes
    over; 0 for no norm. eps: added to the variance. rms: the norm is without mean. gains: each column is multiplied
    by a factor of its own; Post takes a vector of them before each tile. rotate: pairs of columns are rotated by the
    table of cosines and sines that Post holds."""

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
    """Where T sends tiles to."""

    EVEN = 0
    """The MME of the even lane of its pair."""
    ODD = 1
    """The MME of the odd lane of its pair."""
    PAIR = 2
    """Both MMEs of its pair."""
    ROWS_EVEN = 3
    """X of the even lane of its pair; only from T of the odd lane, as `ROWS_ODD`."""
    ROWS_ODD = 4
    """X of the odd lane of its pair."""


class SlotPart(IntEnum):
    """Which columns of a slot of T, 128 rows by 128 columns, are written or sent: all, the first 64 (LEFT) or the last
    64 (RIGHT). Half a slot travels as the first 64 columns of a tile. A write of LEFT makes the last 64 columns 0."""

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
    """Tiles of weights, to the unit W0; W1 is the same for the unit W1."""
    W1 = 1
    VECTOR = 2
    """To C of the selected lanes: vectors of a column tile, 128 elements each."""
    TABLE = 3
    """To Post of the selected lanes: cosines and sines of 128 rows, in tiles that lie row by row."""
    GAINS = 4
    """To Post of the selected lanes: vectors of 128 factors, one for each column of a tile."""
    """To Post of the selected lanes: vectors that multiply columns, 128 elements each."""
