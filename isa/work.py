"""What the scheduler asks of units, without bits: work items. `Overlay.emit` turns them into instructions.

An item names tiles, elements and peers; which field of which format says so is known to the overlay alone. Tiles are
those of the product unit that an item serves. A unit with a `Memory` is programmed by `Turn`s: one operation fills a
slot and drains another one. Every other unit takes its items one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from ..base.errors import ProgramError
from ..machine.description import UnitSpec
from .fields import Record
from .layout import BLOCK, BLOCK_ROWS


class LengthField(NamedTuple):
    """A number that depends on a run-time parameter of a sequence: clamp(parameter[sequence] - base, 0, cap).

    parameter: "len", the rows of the sequence, "start", the rows of padding before its first one, or "row", the row of
    a cache that its new row replaces.
    """

    sequence: int
    base: int
    cap: int
    parameter: str = "len"


class Access(NamedTuple):
    """Off-chip memory: move `chunks` pieces of `size` float32 elements each to or from a peer.

    peer: the unit that receives a load or sends a store. store: it writes off-chip memory. addr, stride: of the first
    piece, and from one piece to the next, in elements. vector: the peer takes the elements as a vector. transpose:
    the pieces are the rows of a matrix that is delivered transposed. label: of the stream to the peer.
    """

    peer: str
    store: bool
    addr: int
    size: int
    chunks: int = 1
    stride: int = 0
    vector: bool = False
    transpose: bool = False
    label: str = ""

    @property
    def elements(self) -> int:
        """Number of float32 elements of all pieces."""
        return self.size * self.chunks

    @property
    def span(self) -> tuple[int, int]:
        """The float32 element that it touches first, and the one behind the last, by address in its bank."""
        return self.addr, self.addr + (self.chunks - 1) * self.stride + self.size


class RowStore(NamedTuple):
    """Off-chip memory: take blocks of 128 rows by 64 columns from a peer, and keep rows of them.

    For each of `blocks` blocks, side by side, each c < `chunks` and each i < `rows`: row `source` + c * `rows` + i of
    the block becomes row d = `row` + i of the matrix of chunk c; with `entry`, the row that `SetRow` gave entry `entry`
    + c is added to d. Row 0 of that matrix is at `addr` + c * `chunk_stride`, and blocks of the matrix that lie below
    each other are `pitch` apart, all in elements. limit: rows of the matrix; a row is written only if d < limit.
    """

    peer: str
    addr: int
    pitch: int
    limit: int
    row: int = 0
    rows: int = 1
    source: int = 0
    chunks: int = 1
    chunk_stride: int = 0
    entry: int | None = None
    blocks: int = 1

    @property
    def store(self) -> bool:
        """True: it writes off-chip memory, as an `Access` with `store`."""
        return True

    @property
    def elements(self) -> int:
        """Number of float32 elements that the peer sends: whole blocks."""
        return self.blocks * BLOCK

    @property
    def span(self) -> tuple[int, int]:
        """The float32 element that it may touch first, and the one behind the last, by address in its bank."""
        below = (self.limit - 1) // BLOCK_ROWS * self.pitch
        return self.addr, self.addr + (self.chunks - 1) * self.chunk_stride + below + self.blocks * BLOCK


class SetRow(NamedTuple):
    """Off-chip memory: entry `entry` of its table of rows becomes a row that depends on a run-time parameter."""

    entry: int
    row: LengthField


class LoadNorm(NamedTuple):
    """A norm of rows by statistics that lie off chip: (x - mean) / sqrt(variance + eps); with `rms` x / sqrt(mean
    square + eps).

    parts: into how many parts the columns are divided; a row tile has statistics of each part. fresh: for how many row
    tiles the unit takes statistics before this load, from the same off-chip unit; 0 if it has them already. first: the
    row tile of those statistics that the first row tile of the load takes. same: all row tiles of the load take it.
    """

    eps: float
    rms: bool = False
    parts: int = 1
    fresh: int = 0
    first: int = 0
    same: bool = False


class Load(NamedTuple):
    """Fill a slot with rows x columns elements. transpose: they are transposed as they come; `rows` and `columns` are
    those of the result.

    source: the off-chip unit that they come from. norm: is applied to the rows as they come; None for none.
    """

    rows: int
    columns: int
    transpose: bool = False
    source: str = ""
    norm: LoadNorm | None = None


class LoadVector(NamedTuple):
    """Fill a slot with a vector of `size` elements. source: the off-chip unit that it comes from."""

    size: int
    source: str = ""


class KeyPart(IntEnum):
    """Which part of a softmax over many keys is done with the scores of the keys that were received."""

    ALL = 0
    """These are all keys: the whole softmax."""
    FIRST = 1
    """These are the first keys: the maximum and the sum of exps of each row are kept, and the scores are dropped."""
    MORE = 2
    """These are further keys: they change the maxima and sums that are kept, and the scores are dropped."""
    APPLY = 3
    """The scores become probabilities by the maxima and sums that are kept."""


class Softmax(NamedTuple):
    """exp(x - maximum) / sum over the first `columns` columns of each row; the others become 0.

    columns: None for all that were received. alone: the unit holds whole rows; otherwise it shares them with its
    neighbour. causal: column c counts for row r if c <= r + offset. low: it counts only if c >= r + low. first: the
    leading columns that do not count. cap: scores become cap * tanh(score / cap). low, cap: None for no such limit.
    part: which part of the softmax is done.
    """

    columns: int | LengthField | None = None
    alone: bool = True
    causal: bool = False
    offset: int = 0
    low: int | None = None
    first: int | LengthField = 0
    cap: float | None = None
    part: KeyPart = KeyPart.ALL


class Receive(NamedTuple):
    """Fill a slot with rows x columns tiles of results. Each is the sum of `rounds` products, which come in rounds over
    the slot.

    bias: the unit takes a vector, and adds it to each row. residual: it takes tiles, and adds them. scaled: it takes a
    vector of factors for the columns of the residual. They come in this order: bias, factors, products, residual.
    softmax: applied at the end; None for none. product: the product unit that the tiles are from, whose size they have.
    """

    rounds: int
    rows: int
    columns: int
    softmax: Softmax | None = None
    bias: bool = False
    residual: bool = False
    scaled: bool = False
    product: str = ""


class Send(NamedTuple):
    """Drain a slot to product units: the first rows x columns tiles, `times` times (in the order that the product units
    take them). product: the product unit that they are for, whose size they have. whole: for attention's values: all
    128 columns of a tile are sent; otherwise the right half of each tile is sent as 0."""

    rows: int
    columns: int
    times: int = 1
    product: str = ""
    whole: bool = False


class RowNorm(NamedTuple):
    """(x - mean) / sqrt(variance + eps) over `columns` columns of each row; `rms`: x / sqrt(mean square + eps).

    head: over `columns` columns of each head; heads are so many columns apart. 0: over whole rows.
    """

    columns: int
    eps: float
    rms: bool = False
    head: int = 0


class Rotation(NamedTuple):
    """A rotation of pairs of neighbouring columns, such as rotary embeddings: each element becomes itself times its own
    factor plus the other element of its pair times a partner factor. The factors are in the table of the unit.

    head: columns from a head to the next; the table has twice as many columns. fresh: row tiles and column tiles of the
    table that the unit takes from its product unit before; (0, 0) if the unit has the table already.
    """

    head: int
    fresh: tuple[int, int] = (0, 0)


class Store(NamedTuple):
    """Drain the first rows x columns elements of a slot to off-chip memory.

    Before that, these are applied, in this order; None for none. activation: an operation on each element, such as
    "gelu_erf" or "identity". gate: the results are multiplied by the next `columns` columns of the slot. norm: a norm
    of rows or heads. rotation: of pairs of columns. With `statistics` the norm is not applied, but its mean and
    variance of each row are stored behind the elements.
    """

    rows: int
    columns: int
    activation: str | None = None
    norm: RowNorm | None = None
    gate: bool = False
    statistics: bool = False
    rotation: Rotation | None = None


class Turn(NamedTuple):
    """One operation of a unit with a memory: fill a slot while another is drained. None: that half does nothing."""

    fill: Load | LoadVector | Receive | None
    drain: Send | Store | None


class Route(NamedTuple):
    """A switch moves `tiles` tiles along all `routes`, pairs (source, destination), at the same time. product: the
    product unit that they are for or from, whose size they have."""

    routes: tuple[tuple[str, str], ...]
    tiles: int
    product: str = ""


class Multiply(NamedTuple):
    """A product unit multiplies tiles: `row_groups` x `column_groups` times a block of rows x columns tiles of results,
    each over `depth` tiles of K. Every product of two tiles takes a left tile and a right tile, in this order.

    half_depth, half_columns: tiles have half of K, or half of the columns. sums: the unit adds over K and emits one
    tile for each result, one result after the other; otherwise it emits all products, and for each tile of K those of
    the whole block. bias: it first takes a vector that it adds. scaled: before the products it emits tiles of its left
    operand times a vector. load_scale: it first takes that vector.
    """

    row_groups: int = 1
    column_groups: int = 1
    depth: int = 1
    rows: int = 1
    columns: int = 1
    half_depth: bool = False
    half_columns: bool = False
    sums: bool = False
    bias: bool = False
    scaled: bool = False
    load_scale: bool = False


Item = Access | RowStore | SetRow | Turn | Route | Multiply


class Patched(NamedTuple):
    """An instruction with fields that depend on run-time lengths. fields: pairs (field, value)."""

    record: Record
    fields: tuple[tuple[str, LengthField], ...]


Emit = Callable[[UnitSpec, Iterable[Item]], Iterator[Record | Patched]]
"""Turns all work items of a unit, in order, into its instructions."""


class Registers:
    """The values of the registers that one format sets, followed through the instructions of a unit in their order.

    record: the format. The arguments by name are power-on values that differ from the format's defaults. values: the
    present values, by field.
    """

    def __init__(self, record: type[Record], **values: Any) -> None:
        self.record = record
        power_on = record()
        self.values: dict[str, Any] = {x.name: getattr(power_on, x.name) for x in record.FIELDS} | values

    def require_power_on(self, unit: UnitSpec, needed: Mapping[str, Any]) -> None:
        """Check the work of a unit that lacks these registers. Raises `ProgramError` if the work needs other values
        than the power-on values, `KeyError` for an unknown field. needed: values by field. unit: for the message."""
        differ = [name for name, value in needed.items() if self.values[name] != value]
        if differ:
            raise ProgramError(
                f"{unit.name}: the work needs {' and '.join(differ)} of {self.record.NAME}, which this overlay "
                "does not have: compile for one that has (--overlay xnn)"
            )

    def set(self, needed: Mapping[str, Any]) -> Iterator[Patched]:
        """Yield the instruction after which all `needed` registers have their values; none if they have them. needed:
        values by field. Raises `FieldError` for a value that does not fit, `KeyError` for an unknown field.
        """
        if any(self.values[name] != value for name, value in needed.items()):
            self.values |= needed
            yield self.made()

    def made(self, **once: Any) -> Patched:
        """Return the instruction that sets the registers to their present values. once: values, by field, for this
        instruction alone. A field that depends on a length is 0 in its record. Raises `FieldError` for a value that
        does not fit."""
        values = self.values | once
        lengths = tuple((name, value) for name, value in values.items() if isinstance(value, LengthField))
        return Patched(self.record(**values | dict.fromkeys((name for name, _ in lengths), 0)), lengths)
