"""What `bind` makes: the work items of every unit, off-chip accesses, buffers and weights of one program.

Every memory is filled and drained over one chain for the whole program, so no unit drains between tiles, segments or
layers. Accesses of activations are kept separately, as loads and stores of each tile, because their order on the one
channel is decided later (`dram`).

The record of segments is made meanwhile: lengths of lists say where a segment begins and ends; an op may also be
extended for a later segment, and then belongs to both. Two things come later. A Mem does the second half of an item
together with the first half of the next one, and sets its registers in between. And the loads and stores of activations
get their order at the end; it keeps the order of the accesses of each memory, so that these can be followed through it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import NamedTuple

from ..base.errors import ProgramError, UnsupportedError
from ..isa.fields import Record
from ..isa.layout import BLOCK, BLOCK_COLS, QUARTER, UNIT, block, padded
from ..isa.overlay import Overlay
from ..isa.program import Buffer, Layout, ProgramSegment, Role
from ..isa.work import Access, Item, Load, LoadNorm, LoadVector, Multiply, Receive, Route, RowStore, Send, Store
from .graph import Array, AttentionLayer, Gemm, Norm, free_name
from .groups import Planned
from .refusal import require
from .schedule import DramPolicy
from .tile import TILE, OutputRows, Tiled

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of indices, ascending."""


@dataclass
class TileAccesses:
    """DDR accesses of one output tile or attention slot, in program order.

    Its stores go between the loads of the tile `lag` tiles later: behind the first `ahead` loads, evenly spread over
    the next `within` loads (None: all that follow). head: number of loads before those of the product. step: number of
    loads of one slice of K. rule: list scheduling policy of its segment. drain: all stores so far end before the next
    load.
    """

    loads: list[Access] = field(default_factory=list)
    stores: list[Access | RowStore] = field(default_factory=list)
    rule: DramPolicy = field(default_factory=DramPolicy)
    lag: int = 1
    ahead: int = 0
    within: int | None = None
    head: int = 0
    step: int = 1
    drain: bool = False


@dataclass(frozen=True)
class _Noted:
    """A segment that was lowered. items: its items of each unit, as a range; the first one may be an item of an earlier
    segment that was extended for this one. last: the last item of each unit so far. tiles: of its DDR accesses."""

    planned: Planned
    items: Mapping[str, tuple[int, int]]
    last: Mapping[str, object]
    tiles: Sequence[TileAccesses]


@dataclass
class SegmentRecord:
    """Notes each segment after it was lowered, and makes `UnpackedProgram.segments` of the notes."""

    _noted: list[_Noted] = field(default_factory=list)
    _ends: dict[str, int] = field(default_factory=dict)

    def note(self, planned: Planned, items: Mapping[str, Sequence[object]], tiles: Sequence[TileAccesses]) -> None:
        """Note that a segment was lowered. planned: the segment. items: all work items so far by unit, without the unit
        of DDR. tiles: the accesses of all segments so far; those that are new since the segment noted before belong to
        this segment."""
        before = sum(len(noted.tiles) for noted in self._noted)
        last = self._noted[-1].last if self._noted else {}
        ranges = {}
        for unit, done in items.items():
            first = self._ends.get(unit, 0)
            if first and done[first - 1] is not last[unit]:
                first -= 1
            ranges[unit] = first, len(done)
            self._ends[unit] = len(done)
        last = {unit: done[-1] for unit, done in items.items() if done}
        self._noted.append(_Noted(planned, ranges, last, tuple(tiles[before:])))

    def segments(
        self,
        sequences: Mapping[str, Sequence[Record]],
        overlay: Overlay,
        unit: str,
        accesses: Sequence[Access | RowStore],
        *,
        before: int = 0,
    ) -> tuple[ProgramSegment, ...]:
        """Return the segments in execution order, with the ranges of their mOPs (uOPs in op lists) by unit.

        sequences: the mOPs of every unit, op lists included. unit: the unit that makes `accesses`, which are in this
        order those of the tiles. before: how many of its instructions come before the accesses; they belong to no
        segment. Raises `ProgramError` if the accesses are not those of the tiles."""
        if not self._noted:
            return ()  # work that was bound without segments
        uops: list[dict[str, Ranges]] = [{} for _ in self._noted]
        for name, of_unit in sequences.items():
            turns = _turns(of_unit, overlay) if overlay.by_unit[name].memory is not None else None
            for noted, of_segment in zip(self._noted, uops, strict=True):
                first, end = noted.items.get(name, (0, 0))
                if first < end:
                    of_segment[name] = ((first, end) if turns is None else (turns[first], turns[end + 1]),)
        owners = _owners(accesses, [noted.tiles for noted in self._noted])
        for segment, ranges in _ranges(owners).items():
            uops[segment][unit] = tuple((first + before, end + before) for first, end in ranges)
        return tuple(_segment(noted.planned, of) for noted, of in zip(self._noted, uops, strict=True))


def _segment(planned: Planned, uops: Mapping[str, Ranges]) -> ProgramSegment:
    layers = [planned.layers] if isinstance(planned.layers, AttentionLayer) else planned.layers
    outputs = tuple(layer.target for layer in layers)
    paths = tuple(dict.fromkeys(path for layer in layers for path in (layer.path, *layer.fused)))
    return ProgramSegment(joined(outputs), paths, planned.kind, outputs, uops)


def joined(names: Sequence[str]) -> str:
    """Several names, at least one, as one name: the first name, and of each other name the part that differs from it,
    such as `0_query,key,value`."""
    words = [name.split("_") for name in names]
    shared = next((i for i, same in enumerate(zip(*words, strict=False)) if len(set(same)) > 1), 0)
    return ",".join([names[0], *("_".join(of[shared:]) for of in words[1:])])


def _turns(mops: Iterable[Record], overlay: Overlay) -> list[int]:
    """Where the mOPs of each turn of a Mem begin, those that set registers for it included. Turn i does the first half
    of item i and the second half of item i - 1. The last number is that of all mOPs."""
    starts = [0]
    config = tuple(form.mop for form in overlay.formats if form.config)
    for number, mop in enumerate(mops, 1):
        if not isinstance(mop, config):
            starts.append(number)
    return starts


def _owners(accesses: Iterable[Access | RowStore], tiles: Sequence[Sequence[TileAccesses]]) -> Iterator[int]:
    """Yield the segment of each access, which may be a piece of one in the tiles. tiles: of each segment."""
    due: dict[tuple[str, bool], deque[list[int]]] = {}  # by peer and direction: segment, and elements left
    for segment, of_segment in enumerate(tiles):
        for tile in of_segment:
            for access in (*tile.loads, *tile.stores):
                due.setdefault((access.peer, access.store), deque()).append([segment, access.elements])
    for access in accesses:
        queue = due.get((access.peer, access.store))
        if not queue or queue[0][1] < access.elements:
            raise ProgramError(
                f"more is {'stored by' if access.store else 'loaded into'} {access.peer} than segments have"
            )
        yield queue[0][0]
        queue[0][1] -= access.elements
        if not queue[0][1]:
            queue.popleft()


def _ranges(owners: Iterable[int]) -> dict[int, Ranges]:
    """The indices of each owner as ranges."""
    out: dict[int, list[tuple[int, int]]] = {}
    at = 0
    for owner, run in groupby(owners):
        count = sum(1 for _ in run)
        out.setdefault(owner, []).append((at, at + count))
        at += count
    return {owner: tuple(ranges) for owner, ranges in out.items()}


Fill = Load | LoadVector | Receive
Drain = Send | Store


class WorkItem(NamedTuple):
    """One piece of work of a memory. fill: how a slot is filled; None if it is not. drain: how the same slot is
    drained, one operation later; None if it is not."""

    fill: Fill | None
    drain: Drain | None


@dataclass(eq=False)
class BoundWork:
    """The work of every unit.

    memories: of each unit with a memory, in order. others: of all other units, but for the unit of activations, whose
    accesses are in `tiles`. buffers: of weights and activations, by name. weights: functions that make the stored
    elements (float32, in the order of memory), by buffer. ends: the end of the weights in each bank, in address units.
    record: which of these items and accesses belong to which segment.
    """

    tiled: Tiled
    memories: dict[str, list[WorkItem]]
    others: dict[str, list[Item]]
    tiles: list[TileAccesses] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    weights: dict[str, Callable[[], Array]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    record: SegmentRecord = field(default_factory=SegmentRecord)

    def show(self) -> str:
        """The work items as text, unit by unit; consecutive equal items are one line."""
        out = ["rows and columns: of Load and Store in elements, of other items in tiles; addresses in elements"]
        work: dict[str, Sequence[Item | WorkItem]] = {**self.memories, **self.others}
        for unit, items in work.items():
            if not items:
                continue
            out.append(f"{unit}: {len(items)}")
            out += [f"  {len(list(equal)):>4} x {_words(item)}" for item, equal in groupby(items)]
        out.append(f"{self.tiled.grid.activations}, blocks of each tile, in no order yet: {len(self.tiles)}")
        for tile, equal in groupby((_sizes(t.loads), _sizes(t.stores)) for t in self.tiles):
            out.append(f"  {len(list(equal)):>4} x loads {tile[0]}; stores {tile[1]}")
        return "\n".join(out) + "\n"


def _words(item: Item | WorkItem) -> str:
    if isinstance(item, WorkItem):
        return "; ".join(_words(half) for half in item if half is not None)  # type: ignore[arg-type]
    if isinstance(item, Route):
        return f"Route {', '.join(f'{source}->{sink}' for source, sink in item.routes)} tiles={item.tiles}"
    default = {"store": False} | item._field_defaults
    values = {name: value for name, value in item._asdict().items() if name not in default or value != default[name]}
    return " ".join([type(item).__name__, *(f"{name}={value}" for name, value in values.items())])


def _sizes(accesses: Iterable[Access | RowStore]) -> str:
    """How many blocks go to or come from each unit."""
    out: dict[str, int] = {}
    for access in accesses:
        out[access.peer] = out.get(access.peer, 0) + access.elements // BLOCK
    return ", ".join(f"{unit} {blocks}" for unit, blocks in out.items()) or "none"


class Binder:
    """Collects the work of one program (`BoundWork`); binding a segment appends to it, unit by unit. Functions that
    bind take it as their argument `s`. Units, banks and buffers are given by name; an unknown name raises `KeyError`.

    keeps_slices: with Loops.ROWS, slices may stay in the left memories from one op of a segment to the next. That takes
    more ops.
    """

    def __init__(self, tiled: Tiled, keeps_slices: bool = True) -> None:
        self.tiled, self.keeps_slices = tiled, keeps_slices
        self.net, self.overlay, self.schedule = tiled.network, tiled.overlay, tiled.schedule
        self.columns, self.grid = tiled.columns, tiled.grid
        self.spans_of, self.seq_blocks_of = tiled.spans_of, tiled.seq_blocks_of
        units = self.overlay.units
        self.made = BoundWork(
            tiled,
            {u.name: [] for u in units if u.memory is not None},
            {u.name: [] for u in units if u.memory is None},
            ends=dict.fromkeys(self.overlay.banks, 0),
        )
        self.tiles, self.buffers = self.made.tiles, self.made.buffers
        self.panel_blocks: dict[str, int] = {}
        """Row blocks of a panel, by name, of buffers that are no activations and have several panels."""
        self._shared: dict[object, Buffer] = {}
        self.passed: set[str] = set()
        """Activations with a pass that makes their statistics."""
        self.held: dict[str, object] = {}
        """Extra contents by unit: row statistics in a left memory, a rotation table in a memory of results."""

    def turn(self, unit: str, fill: Fill | None, drain: Drain | None) -> None:
        """Append a piece of work to a unit with a memory. fill: how its next slot is filled; None if it is not. drain:
        how the same slot is drained, one operation later; None if it is not."""
        self.made.memories[unit].append(WorkItem(fill, drain))

    def add(self, unit: str, item: Item) -> None:
        """Append an item to the unit named `unit`, which has no memory."""
        self.made.others[unit].append(item)

    def ops(self, unit: str) -> list[Item]:
        """The items of a unit without a memory so far, in order. It is the list itself, so that a new item can be
        joined to the last."""
        return self.made.others[unit]

    def route(self, switch: str, routes: Iterable[tuple[str, str]], tiles: int) -> None:
        """Append an item that moves `tiles` tiles along all `routes`, pairs (source, destination), at the same time.
        switch: the unit that moves them. Appends nothing without tiles or routes."""
        pairs = tuple(routes)
        if tiles and pairs:
            self.add(switch, Route(pairs, tiles))

    def vector(self, buffer: Buffer, half: int, start: int, count: int) -> None:
        """Append the load of `count` elements of a vector, from element `start` on, into the right memory of column
        `half` of the grid, and its send to the product units as one tile."""
        unit, source = self.grid.right[half], self.grid.weights
        self.add(source, Access(unit, False, buffer.offset * UNIT + start, count, vector=True))
        self.turn(unit, LoadVector(count, source), Send(1, 1))

    def weight(self, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str = "") -> Buffer:
        """Reserve a buffer for a weight matrix (blocked) or vector (linear), directly behind the weights that its bank
        has so far. Returns the buffer. In the bank of activations, call this before activations are placed: they begin
        there.

        name: a name already in use gets a suffix. shape: a matrix has whole blocks of 128x64. stored: makes the
        elements, a float32 array of shape `shape`; called only when weights are read, because no schedule depends on
        them. bank: its name; "" for the bank of weights."""
        bank = bank or self.bank_of(self.grid.weights)
        name = free_name(name, self.buffers)
        layout = Layout.BLOCKED if len(shape) == 2 else Layout.LINEAR
        self.made.weights[name] = (lambda: block(stored())) if len(shape) == 2 else stored
        self.buffers[name] = Buffer(name, bank, self.made.ends[bank], shape, layout, Role.WEIGHT)
        self.made.ends[bank] += padded(prod(shape) // UNIT, 64)
        return self.buffers[name]

    def shared(self, key: object, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str) -> Buffer:
        """Reserve a weight once per key; later calls with the same key return the same buffer. name, shape, stored,
        bank: as for `weight`."""
        if key not in self._shared:
            self._shared[key] = self.weight(name, shape, stored, bank)
        return self._shared[key]

    def row_blocks_of(self, name: str) -> int:
        """Blocks of 128 rows of all sequences of the activation `name`, or of a panel of another buffer of that name,
        padding included."""
        found = self.panel_blocks.get(name)
        return self.tiled.rows_of(name).blocks if found is None else found

    def bank_of(self, unit: str) -> str:
        """The name of the bank of an off-chip unit."""
        return str(self.overlay.by_unit[unit].bank)

    def blocks(self, name: str, row: int, rows: int, col: int, cols: int, peer: str, store: bool = False) -> Access:
        """Make an access to `rows` x `cols` blocks of an activation (128 rows, 64 columns each), from block (row, col)
        on. The columns must lie within one panel. name: the buffer. peer: the unit that receives or sends the data.
        store: a store, otherwise a load."""
        b = self.buffers[name]
        width = b.shape[1] // BLOCK_COLS
        panel, col = divmod(col, width)
        above = panel * self.row_blocks_of(name) if panel else 0
        addr = b.offset * UNIT + ((above + row) * width + col) * BLOCK
        if rows == 1 or cols == width:
            return Access(peer, store, addr, rows * cols * BLOCK)
        return Access(peer, store, addr, cols * BLOCK, rows, width * BLOCK)


def multiply_as(last: Item | None, item: Multiply, field: str, most: int) -> Multiply | None:
    """The last item of a product unit, with its `field` raised by that of `item`. None if it cannot be raised: the two
    differ in another field, or the sum is more than `most`."""
    if not isinstance(last, Multiply) or last._replace(**{field: getattr(item, field)}) != item:
        return None
    total = getattr(last, field) + getattr(item, field)
    return last._replace(**{field: total}) if total <= most else None


# -- left memories -----------------------------------------------------------------------------------------------------


NormOf = Callable[[int, int], LoadNorm | None]
"""Of tiles `first` to `first + count - 1` of those that a left memory passes on, the norm."""


def pass_tiles(s: Binder, unit: str, tiles: int, norm_of: NormOf = lambda first, count: None) -> None:
    """Append the work of the left memory `unit`, which loads `tiles` tiles of 128x128 and sends each once, as many at a
    time as it holds. norm_of: the norm of a load, by the number of its first tile and the count of its tiles; by
    default none."""
    most_held = s.overlay.memory_of(unit).rows // TILE
    for t in range(0, tiles, most_held):
        held = min(most_held, tiles - t)
        load = Load(TILE * held, TILE, source=s.grid.activations, norm=norm_of(t, held))
        s.turn(unit, load, Send(held, 1))


def statistics_name(name: str) -> str:
    """The name of the buffer of the statistics of an activation."""
    return f"{name}.statistics"


def statistics_size(s: Binder, name: str) -> int:
    """Number of elements of the statistics of the activation `name`, padded to whole blocks. Each 128 rows have a
    quarter of a block of statistics for each part of the columns. Raises `KeyError` for an activation without
    statistics."""
    size = s.row_blocks_of(name) * s.tiled.statistics[name].parts * QUARTER
    return -(-size // BLOCK) * BLOCK


def statistics_at(s: Binder, name: str, row: int, part: int) -> int:
    """The number of the first element, in its bank, of the statistics of a row block and a part of the columns. name:
    of the activation; raises `KeyError` if it has no statistics. row: number of the row block. part: number of the
    part."""
    buffer = s.buffers[statistics_name(name)]
    return buffer.offset * UNIT + (row * s.tiled.statistics[name].parts + part) * QUARTER


def check_norms(s: Binder, gemm: Gemm) -> None:
    """Raise `UnsupportedError`, naming the layer, for norms of operands that the overlay cannot apply as it loads: it
    lacks the capability, there are more parts than a load joins, the eps is 0, or the operand lies in heads with
    padding between them."""
    for name, norm in ((gemm.x, gemm.x_norm), (gemm.residual, gemm.residual_norm)):
        if norm is None or name is None:
            continue
        x, parts = s.columns[name], s.tiled.statistics[name].parts
        what = f"{'RMSNorm' if norm.rms else 'LayerNorm'} over {x.count} columns of its operand"
        if x.count != x.end:
            raise UnsupportedError(f"{gemm.place}: {what}, which lie in heads with padding between them")
        if not norm.eps > 0:
            raise UnsupportedError(
                f"{gemm.place}: {what} with eps {norm.eps:g}, which makes no numbers of rows of zeros"
            )
        require(gemm.place, what, s.overlay, "normalise", s.overlay.by_unit[s.grid.left[0]], parts=parts)
        require(gemm.place, what, s.overlay, "statistics", s.overlay.by_unit[s.grid.results[0][0]])


def fresh_statistics(s: Binder, name: str, norm: Norm | None, row: OutputRows, i: int, tile: TileAccesses) -> int:
    """Append the load of the statistics of the rows of grid row i into its left memory, unless it has them. Returns how
    many row tiles of statistics it takes before its next load, 0 if it has them or if `norm` is None.

    name: of the activation. row: the rows of the output tile. tile: receives the access.
    """
    unit = s.grid.left[i]
    at = row.start + i * row.acc
    key = name, norm, at, row.acc
    if norm is None or s.held.get(unit) == key:
        return 0
    s.held[unit] = key
    # The slot filled last is sent before: the statistics may depend on it, or stores that come first in memory
    s.turn(unit, None, None)
    size = row.acc * s.tiled.statistics[name].parts * QUARTER
    tile.loads.append(Access(unit, False, statistics_at(s, name, at, 0), size))
    return row.acc


def load_norm(
    s: Binder, name: str, norm: Norm | None, fresh: int, first: int = 0, same: bool = False
) -> LoadNorm | None:
    """The norm of a load of the activation `name`, which must have statistics; None if `norm` is None. fresh: the
    number of row tiles whose statistics come with this load. first: the row tile of the memory at which the load
    begins. same: all tiles of the load are of that row tile."""
    if norm is None:
        return None
    parts = s.tiled.statistics[name].parts
    return LoadNorm(norm.eps, norm.rms, parts, fresh, first, same)
