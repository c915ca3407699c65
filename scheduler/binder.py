"""What `bind` makes: the work items of every unit, off-chip accesses, buffers and weights of one program.

Every memory is filled and drained over one chain for the whole program, so no unit drains between tiles, segments or
layers. Accesses of activations are kept separately, as loads and stores of each tile, because their order on the one
channel is decided later (`dram`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import NamedTuple

from ..isa.layout import BLOCK, BLOCK_COLS, UNIT, block, padded
from ..isa.program import Buffer, Layout, Role
from ..isa.work import Access, Item, Load, LoadVector, Multiply, Receive, Route, RowStore, Send, Store
from .graph import Array, free_name
from .order import TileAccesses
from .record import SegmentRecord
from .tile import Tiled

Fill = Load | LoadVector | Receive
Drain = Send | Store


class WorkItem(NamedTuple):
    """One piece of work of a memory: a slot is filled, and drained one operation later. None: that half does
    nothing."""

    fill: Fill | None
    drain: Drain | None


@dataclass(eq=False)
class BoundWork:
    """The work of every unit.

    memories: of each unit with a memory, in order. others: of all other units, but for the unit of activations, whose
    accesses are in `tiles`. weights: functions that make the stored elements, by buffer. ends: the end of the weights
    in each bank, in address units. record: which of it each segment has.
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
    """Collects the work of one program (`BoundWork`); binding a segment appends to it, unit by unit.

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
        """Append a piece of work to a memory."""
        self.made.memories[unit].append(WorkItem(fill, drain))

    def add(self, unit: str, item: Item) -> None:
        """Append an item to a unit without a memory."""
        self.made.others[unit].append(item)

    def ops(self, unit: str) -> list[Item]:
        """The items of a unit without a memory so far, to join a new one to the last."""
        return self.made.others[unit]

    def route(self, switch: str, routes: Iterable[tuple[str, str]], tiles: int) -> None:
        """Append an item that moves `tiles` tiles along all `routes`, pairs (source, destination), at the same time."""
        pairs = tuple(routes)
        if tiles and pairs:
            self.add(switch, Route(pairs, tiles))

    def vector(self, buffer: Buffer, half: int, start: int, count: int) -> None:
        """Append the load of `count` elements of a vector, from element `start` on, into the right memory of a column
        of the grid, and its send to the product units as one tile."""
        unit, source = self.grid.right[half], self.grid.weights
        self.add(source, Access(unit, False, buffer.offset * UNIT + start, count, vector=True))
        self.turn(unit, LoadVector(count, source), Send(1, 1))

    def weight(self, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str = "") -> Buffer:
        """Reserve a buffer for a weight matrix (blocked) or vector (linear) at the end of a bank, by default that of
        weights.

        stored: makes the elements, shape `shape`; called only when weights are read, because no schedule depends on
        them. A name already in use gets a suffix.
        """
        bank = bank or self.bank_of(self.grid.weights)
        name = free_name(name, self.buffers)
        layout = Layout.BLOCKED if len(shape) == 2 else Layout.LINEAR
        self.made.weights[name] = (lambda: block(stored())) if len(shape) == 2 else stored
        self.buffers[name] = Buffer(name, bank, self.made.ends[bank], shape, layout, Role.WEIGHT)
        self.made.ends[bank] += padded(prod(shape) // UNIT, 64)
        return self.buffers[name]

    def shared(self, key: object, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str) -> Buffer:
        """Reserve a weight once per key; later calls with the same key return the same buffer."""
        if key not in self._shared:
            self._shared[key] = self.weight(name, shape, stored, bank)
        return self._shared[key]

    def row_blocks_of(self, name: str) -> int:
        """Blocks of 128 rows of all sequences of an activation or of a panel of another buffer, padding included."""
        found = self.panel_blocks.get(name)
        return self.tiled.rows_of(name).blocks if found is None else found

    def bank_of(self, unit: str) -> str:
        """The bank of an off-chip unit."""
        return str(self.overlay.by_unit[unit].bank)

    def blocks(self, name: str, row: int, rows: int, col: int, cols: int, peer: str, store: bool = False) -> Access:
        """Make an access to `rows` x `cols` blocks of an activation (128 rows, 64 columns each), from block (row, col)
        on. The columns must lie within one panel. peer: the unit that receives or sends the data."""
        b = self.buffers[name]
        width = b.shape[1] // BLOCK_COLS
        panel, col = divmod(col, width)
        above = panel * self.row_blocks_of(name) if panel else 0
        addr = b.offset * UNIT + ((above + row) * width + col) * BLOCK
        if rows == 1 or cols == width:
            return Access(peer, store, addr, rows * cols * BLOCK)
        return Access(peer, store, addr, cols * BLOCK, rows, width * BLOCK)


def multiply_as(last: Item | None, item: Multiply, field: str, most: int) -> Multiply | None:
    """The last item with `field` raised by that of `item`, if they are equal otherwise and it stays at most `most`;
    None if they cannot be joined."""
    if not isinstance(last, Multiply) or last._replace(**{field: getattr(item, field)}) != item:
        return None
    total = getattr(last, field) + getattr(item, field)
    return last._replace(**{field: total}) if total <= most else None
