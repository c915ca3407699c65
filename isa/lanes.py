"""Lanes: a pattern of units that keep the rows of a panel on chip, and the work that a compiler gives to them.

Each lane has a product unit, a memory of rows (X) and a memory of tiles that live for a short time (T). Two lanes are a
pair. The compiler (`scheduler/lanes`) says what happens to which tile; the overlay turns that into instructions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from .fields import Record
from .work import Access, Softmax

if TYPE_CHECKING:
    from .overlay import Overlay
    from .program import KernelPatch


@dataclass(frozen=True)
class RowLanes:
    """The lanes of an overlay.

    weights, activations: the banks that hold them. lanes: their number. columns: column tiles of a bank of X, which
    has two. scratch: slots of T of an even and of an odd lane. heads: 128x64 blocks that a memory of keys or values
    holds; memories 0 and 1 are of keys, 2 and 3 of values. work: takes the work of a program.
    """

    weights: str
    activations: str
    lanes: int
    columns: int
    scratch: tuple[int, int]
    heads: int
    work: Callable[[Overlay], LaneWork]


@dataclass(frozen=True)
class RowNorm:
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


class Part(IntEnum):
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


class LaneWork(ABC):
    """Takes the work of all units, in an order in which it could be done one piece after the other, and makes their
    instructions. Units run side by side as far as their streams, and the tiles that they wait for, let them."""

    accesses: list[Access]
    """Those of the bank of activations, each behind those that it depends on."""
    patches: dict[str, list[KernelPatch]]
    """Fields that depend on run-time lengths, by parameter."""
    segment: int
    """The segment that the work is for which comes now."""

    # -- off-chip memory

    @abstractmethod
    def move(self, peer: str, addr: int, size: int, chunks: int = 1, stride: int = 0) -> None:
        """Load from the bank of activations to a peer, or store what it sends: `chunks` pieces of `size` elements."""

    @abstractmethod
    def load(self, to: Weight, addr: int, size: int, chunks: int = 1, stride: int = 0, lanes: int = 0) -> None:
        """Load weights, vectors or tables from the bank of weights. lanes: those that get vectors or tables (bits)."""

    @abstractmethod
    def weights(self, unit: int, tiles: int, lanes: int, *, activations: bool = False) -> None:
        """A unit of weights passes tiles on to lanes. activations: they come from the bank of activations."""

    # -- X, T, keys and values

    @abstractmethod
    def send_rows(self, lane: int, slots: Sequence[int], to: RowTarget, *, norm: RowNorm | None = None) -> None:
        """X sends consecutive slots."""

    @abstractmethod
    def take_rows(
        self,
        lane: int,
        slots: Sequence[int],
        source: RowSource = RowSource.RESULT,
        *,
        add: bool = False,
        statistics: int = 0,
        columns: int = 0,
    ) -> None:
        """X takes tiles into consecutive slots, or adds them. statistics: 1 begins those of the bank with `columns`
        columns of these tiles, 2 goes on."""

    @abstractmethod
    def join_statistics(self, lane: int, bank: int, *, empty: bool) -> None:
        """X joins the statistics of a bank with those of the other lane of its pair. empty: it has none of its own."""

    @abstractmethod
    def store_rows(
        self, lane: int, parts: Sequence[Sequence[int]], norm: RowNorm | None = None, *, joined: bool = False
    ) -> None:
        """X stores parts of consecutive slots, each on its own, when all that was taken before is there. joined: and
        when statistics are joined."""

    @abstractmethod
    def send_tiles(
        self,
        lane: int,
        slots: Sequence[int],
        to: TileTarget,
        *,
        times: int = 1,
        part: Part = Part.WHOLE,
        weights: bool = False,
    ) -> None:
        """T sends consecutive slots, each `times` times. weights: they are the probabilities of a head."""

    @abstractmethod
    def take_tiles(self, lane: int, slots: Sequence[int], source: TileSource, *, part: Part = Part.WHOLE) -> None:
        """T takes tiles into consecutive slots."""

    @abstractmethod
    def take_heads(self, memory: int, slots: Sequence[int]) -> None:
        """A memory of keys or values takes blocks from off-chip memory into consecutive slots."""

    @abstractmethod
    def take_both(self, memory: int, lane: int, slot: int, second: int) -> None:
        """A memory of keys or values takes a tile of two blocks from a lane."""

    @abstractmethod
    def send_heads(self, memory: int, slots: Sequence[int], lanes: int, *, wide: bool) -> None:
        """A memory of keys or values sends tiles of one block, or of two (`wide`), from consecutive slots to lanes."""

    # -- products and what becomes of them

    @abstractmethod
    def left(self, lane: int, source: str, tiles: int) -> None:
        """Tiles go from X or T (`X0`, `T1`) to the left operand of a lane."""

    @abstractmethod
    def right(self, lane: int, source: str, tiles: int) -> None:
        """Tiles go from W, K or V (`W0`, `KV2`) to the right operand of a lane."""

    @abstractmethod
    def multiply(
        self, lane: int, results: int, depth: int, *, half_depth: bool = False, half_columns: bool = False
    ) -> None:
        """A product unit makes results, each a sum over `depth` products."""

    @abstractmethod
    def result(
        self,
        lane: int,
        tiles: int,
        to: ResultTarget,
        *,
        bias: bool = False,
        scale: bool = False,
        residual: bool = False,
        alone: bool = False,
    ) -> None:
        """C passes results on: result + bias + residual * scale. alone: without a result."""

    @abstractmethod
    def post(
        self,
        lane: int,
        to: int,
        activation: str | None = None,
        *,
        gate: bool = False,
        heads: HeadFunctions | None = None,
    ) -> None:
        """Post passes a tile on. gate: of two tiles, the activation of the first times the second."""

    @abstractmethod
    def take_table(self, lane: int) -> None:
        """Post takes a table of cosines and sines, behind the tiles before."""

    @abstractmethod
    def softmax(self, pair: int, tiles: int, softmax: Softmax) -> None:
        """Softmax makes the probabilities of a head from `tiles` tiles of scores."""

    # -- the result

    @abstractmethod
    def finish(self) -> None:
        """End the program."""

    @abstractmethod
    def sequences(self) -> dict[str, tuple[Record, ...]]:
        """The instructions of all units that packets drive, but that of the bank of activations."""

    @abstractmethod
    def op_lists(self) -> Mapping[str, tuple[Record, ...]]:
        """The op lists of the product units."""

    @abstractmethod
    def ranges(self, order: Sequence[int]) -> Sequence[Mapping[str, tuple[tuple[int, int], ...]]]:
        """For each segment, by unit, the instructions that are for it, as half-open ranges; of product units the ops.
        order: of the accesses, as they are executed."""

    @abstractmethod
    def repeat(self, length: int, times: int) -> Record:
        """The entry of an op list that repeats the `length` entries before it `times` more times. Raises `FieldError`
        if it cannot."""

    @abstractmethod
    def moves(self, accesses: Sequence[Access]) -> Sequence[Record]:
        """The instructions of the unit of the bank of activations, one for each access."""
