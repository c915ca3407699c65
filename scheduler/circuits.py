"""The circuits of a machine: from off-chip memory through a product unit, and back through a unit that stores results.

The roles of units follow from the machine alone. A unit with a bank is an off-chip unit, one with capability `matmul` a
product unit, one with a memory is programmed by turns, and every other unit on a path is a switch. Streams with the
labels `left` and `right` carry the operands of a product unit. Other operands (`bias`, `scale`, `residual`) come over
the stream of that label, or over one without a label. One off-chip unit loads and stores all activations: the order of
its accesses is all that orders a load behind the store that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..base.errors import UnsupportedError
from ..isa.layout import Layout
from ..isa.overlay import Overlay
from ..isa.overlays import OVERLAYS
from ..machine.description import Capability, Memory, StreamNetwork, UnitSpec, Where

ADDED = ("bias", "scale", "residual")
"""Operands of a unit that receives products, in the order in which it takes them from one stream."""


class TileSize(NamedTuple):
    """The sizes of a product of two tiles, in elements: (rows, depth) times (depth, columns)."""

    rows: int
    depth: int
    columns: int


@dataclass(frozen=True)
class Path:
    """Units along streams, both ends included. labels: of the streams between them, one fewer than units; "" for a
    stream without a label."""

    units: tuple[UnitSpec, ...]
    labels: tuple[str, ...]

    @property
    def between(self) -> tuple[UnitSpec, ...]:
        """The units between both ends, in order."""
        return self.units[1:-1]

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memories of the units between both ends, in order; a unit without one is left out."""
        return tuple(u.memory for u in self.between if u.memory is not None)


@dataclass(frozen=True)
class Circuit:
    """A product unit, the paths of its operands, and the unit that receives its products.

    tile: the sizes of its tiles. left, weights: the paths of the left and of the right operand, from an off-chip unit.
    right: the same as weights, None if it cannot come from the off-chip unit that holds activations; then only weights
    can be right operands. receiver, memory: the unit that receives the products, and its memory. added: the paths of
    `ADDED` to the receiver, by operand. results, stores: from the product unit to the receiver, and on to the off-chip
    unit.
    """

    product: UnitSpec
    tile: TileSize
    left: Path
    right: Path | None
    weights: Path
    receiver: UnitSpec
    memory: Memory
    added: dict[str, Path]
    results: Path
    stores: Path

    def applies(self, op: str, where: Where) -> Capability | None:
        """The receiver's capability for the operation `op`, if it applies that at this place (such as its store); else
        None."""
        able = self.receiver.capability(op)
        return able if able is not None and able.where is where else None

    def takes(self, op: str) -> bool:
        """Whether the receiver takes an operand: `op` is one of `ADDED`, has a path, and the receiver has the
        capability as it receives."""
        return op in self.added and self.applies(op, Where.RECEIVE) is not None

    @property
    def matmul(self) -> Capability:
        """The capability `matmul` of the product unit, with its limits and its rate."""
        return _matmul(self.product)

    @property
    def sums(self) -> bool:
        """Whether the product unit adds up products over K by itself."""
        able = self.product.capability("sum")
        return able is not None and able.where is Where.COMPUTE

    @property
    def strip(self) -> int:
        """Largest number of column tiles that the receiver holds in a slot."""
        return self.memory.columns // self.tile.columns

    def most(self, size: str) -> int:
        """The largest value of a count of one operation of the product unit. size: name of the count in the limits of
        `matmul`, such as `depth`; without such a limit 2^30."""
        return int(self.matmul.limits.get(size, (0, 1 << 30))[1])


@dataclass(frozen=True)
class Circuits:
    """All circuits of a machine whose activations one off-chip unit loads and stores. store: that unit. all: the
    circuits, at least one."""

    store: UnitSpec
    all: tuple[Circuit, ...]

    @property
    def weights_bank(self) -> str:
        """The name of the bank that holds weights and vectors."""
        return str(self.all[0].weights.units[0].bank)

    @property
    def activations_bank(self) -> str:
        """The name of the bank that holds activations."""
        return str(self.store.bank)


class _LackingError(Exception):
    """A product unit cannot be used. The text says why."""


def circuits_of(overlay: Overlay) -> Circuits:
    """The circuits of an overlay that models are bound to product by product. Raises `UnsupportedError` with what is
    missing if there are none."""
    if overlay.emit is None or not overlay.units_with("matmul"):
        missing = ["a unit with capability matmul"] * (not overlay.units_with("matmul"))
        missing += ["emit, which turns work items into its instructions"] * (overlay.emit is None)
        others = ", ".join(n for n, o in OVERLAYS.items() if n != overlay.name and (o.emit or o.lanes or o.integers))
        raise UnsupportedError(
            f"overlay {overlay.name} lacks {' and '.join(missing)}; it runs programs written by hand. Models are "
            f"compiled for {others}"
        )
    if overlay.layout is not Layout.LINEAR:
        raise UnsupportedError(
            f"overlay {overlay.name} has layout {overlay.layout.value}; without patterns of its own, models are "
            "compiled for overlays with layout = Layout.LINEAR"
        )
    best: Circuits | None = None
    why: dict[str, None] = {}
    for store in (u for u in overlay.units if u.bank is not None):
        found = []
        for product in overlay.units_with("matmul"):
            try:
                found.append(_circuit(overlay, store, product))
            except _LackingError as e:
                why[str(e)] = None
        if found and (best is None or len(found) > len(best.all)):
            best = Circuits(store, tuple(found))
    if best is None:
        reasons = "; ".join(why) or "it has no off-chip unit: no unit has a bank"
        raise UnsupportedError(
            f"overlay {overlay.name} cannot run models, for which one off-chip unit loads and stores all activations: "
            f"{reasons}"
        )
    return best


def _circuit(overlay: Overlay, store: UnitSpec, product: UnitSpec) -> Circuit:
    """The circuit of a product unit whose activations `store` loads and stores. Raises `_LackingError`."""
    limits = _matmul(product).limits
    for size in ("tile_rows", "tile_depth", "tile_columns"):
        if size not in limits:
            raise _LackingError(f"capability matmul of {product.name} has no limit {size}")
    tile = TileSize(*(int(limits[size][0]) for size in ("tile_rows", "tile_depth", "tile_columns")))
    if tile.depth % overlay.address_unit or tile.columns % overlay.address_unit:
        raise _LackingError(f"tiles of {product.name} do not begin at whole address units")
    left = _operand(overlay, store, product, "left", True)
    if left is None:
        raise _LackingError(f"{store.name} reaches no stream with label left into {product.name}")
    others = (u for u in overlay.units if u.bank is not None and u is not store)
    right = _operand(overlay, store, product, "right", True)
    weights = right or next((p for u in others if (p := _operand(overlay, u, product, "right", True))), None)
    if weights is None:
        raise _LackingError(f"no off-chip unit reaches a stream with label right into {product.name}")
    way = overlay.path(product.name, store.name)
    back = [] if way is None else [overlay.by_unit[name] for name in way]
    receivers = [u for u in back[1:-1] if u.memory is not None]
    if len(receivers) != 1 or any(_ends(u) for u in back[1:-1]):
        raise _LackingError(
            f"results of {product.name} do not reach {store.name} through one unit with a memory, which receives them"
        )
    (receiver,) = receivers
    memory = receiver.memory
    assert memory is not None
    at = back.index(receiver)
    for name, path, rows, columns in (
        ("left", left, tile.rows, tile.depth),
        ("right", weights, tile.depth, tile.columns),
        ("result", Path((product, receiver, receiver), ()), tile.rows, tile.columns),
    ):
        for u in path.between:
            if u.memory is not None and (u.memory.rows < rows or u.memory.columns < columns):
                raise _LackingError(f"{u.name} holds {u.memory.words}; a {name} tile of {product.name} is larger")
    added = {}
    sources = [store, *(u for u in overlay.units if u.bank is not None and u is not store)]
    for op in ADDED:
        found = (_operand(overlay, u, receiver, op, False) for u in (sources if op != "residual" else [store]))
        way_in = next((p for p in found if p is not None), None)
        if way_in is not None and all(_holds(m, op, tile, memory.columns) for m in way_in.memories):
            added[op] = way_in
    return Circuit(
        product,
        tile,
        left,
        right,
        weights,
        receiver,
        memory,
        added,
        _path(overlay, back[: at + 1], ""),
        _path(overlay, back[at:], ""),
    )


def _holds(memory: Memory, op: str, tile: TileSize, columns: int) -> bool:
    """Whether a memory holds a tile of residuals, or a vector of `columns` elements."""
    if op == "residual":
        return memory.rows >= tile.rows and memory.columns >= tile.columns
    return memory.rows * memory.columns >= columns


def _matmul(unit: UnitSpec) -> Capability:
    able = unit.capability("matmul")
    assert able is not None
    return able


def _ends(unit: UnitSpec) -> bool:
    """Whether a path must end at a unit."""
    return unit.bank is not None or unit.capability("matmul") is not None


def _operand(machine: StreamNetwork, source: UnitSpec, target: UnitSpec, op: str, labelled: bool) -> Path | None:
    """The shortest way of an operand into a unit, over a stream with its label. labelled: only over such a stream;
    otherwise also over one without a label."""
    into = [s for s in machine.streams if s.dst == target.name]
    found = []
    for stream in [s for s in into if s.label == op] or [s for s in into if not s.label and not labelled]:
        way = machine.path(source.name, stream.src)
        units = None if way is None else [*(machine.by_unit[name] for name in way), target]
        if units and len({u.name for u in units}) == len(units) and not any(_ends(u) for u in units[1:-1]):
            path = _path(machine, units, op)
            found.append(Path(path.units, (*path.labels[:-1], stream.label)))
    return min(found, key=lambda path: len(path.units), default=None)


def _path(machine: StreamNetwork, units: list[UnitSpec], label: str) -> Path:
    """The path along units: over streams with this label where they exist, else over any."""
    labels = []
    for a, b in pairwise(units):
        known = [s.label for s in machine.streams if (s.src, s.dst) == (a.name, b.name)]
        labels.append(label if label in known else "" if "" in known else known[0])
    return Path(tuple(units), tuple(labels))
