"""The work items of every unit, strip by strip.

A strip is one row of output tiles, as many as the receiver's memory holds. For each strip the off-chip unit loads
operands tile by tile, in the order in which the product unit takes them; a memory between the two may hold left tiles
for all columns of the strip. The receiver fills a slot with the strip and, one turn later, drains it to off-chip
memory.

Deadlock. The off-chip unit's list orders everything: what a unit needs to end the turn that it is in comes before what
it needs for the next turn, because the loads of a strip come before the store of the strip before it, and this store
comes before the loads of the next strip. A store that a strip needs comes before all loads of that strip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..isa.overlay import Overlay
from ..isa.work import Access, Item, Load, LoadVector, Multiply, Receive, Route, Send, Softmax, Store, Turn
from ..machine.description import UnitSpec, Where
from .circuits import Circuit, Path


class StoredRegion(NamedTuple):
    """A place in a stored matrix or vector. buffer: its name. offset: of the place, in elements of the bank. pitch:
    number of elements from one row to the next."""

    buffer: str
    offset: int
    pitch: int

    def at(self, row: int, column: int) -> StoredRegion:
        """The place `row` rows and `column` columns further."""
        return self._replace(offset=self.offset + row * self.pitch + column)


class Operands(NamedTuple):
    """What a strip is made of. left, right: operands of the product, None for none. depth: number of tiles of K.
    transposed: the right operand is stored transposed. vectors: bias and scale, by their names in `circuits.ADDED`.
    residual: None for none."""

    left: StoredRegion | None = None
    right: StoredRegion | None = None
    depth: int = 0
    transposed: bool = False
    vectors: Mapping[str, StoredRegion] = {}
    residual: StoredRegion | None = None


class _Pending(NamedTuple):
    """A store that is not listed yet. buffer: what it writes. layer: that it belongs to."""

    buffer: str
    unit: str
    access: Access
    layer: int


class _Half(NamedTuple):
    """One use of a memory: a slot is filled, and drained one turn later. layer: that it belongs to."""

    fill: Load | LoadVector | Receive
    drain: Send | Store
    layer: int


@dataclass(frozen=True)
class UnitWork:
    """The items of one unit, in order. layers: for each item, the numbers of the layers that it belongs to; a turn may
    belong to two."""

    items: list[Item] = field(default_factory=list)
    layers: list[tuple[int, ...]] = field(default_factory=list)

    def ranges(self, layer: int) -> tuple[tuple[int, int], ...]:
        """The items of layer number `layer`, as half-open ranges of their indices, ascending."""
        out: list[tuple[int, int]] = []
        for i, owners in enumerate(self.layers):
            if layer in owners:
                if out and out[-1][1] == i:
                    out[-1] = out[-1][0], i + 1
                else:
                    out.append((i, i + 1))
        return tuple(out)


class WorkLists:
    """Collects the work items of all units. strict: a strip's store comes before the loads of the next one.

    layer: the number of the layer that strips belong to; set it before each.
    """

    def __init__(self, overlay: Overlay, strict: bool) -> None:
        self.layer = 0
        self._strict = strict
        self._work = {u.name: UnitWork() for u in overlay.units}
        self._halves: dict[str, list[_Half]] = {}
        self._pending: list[_Pending] = []

    def strip(
        self,
        circuit: Circuit,
        operands: Operands,
        out: StoredRegion,
        count: int,
        store: Store,
        softmax: Softmax | None = None,
    ) -> None:
        """Add a strip of `count` output tiles side by side, stored at `out` as `store` says.

        circuit: the units that compute it. operands: a product, a residual, or both. softmax: what the receiver applies
        to the products; None for none. Raises `KeyError` for a vector or a residual for which the circuit has no path
        (`Circuit.added`)."""
        tile, product = circuit.tile, circuit.product.name
        reads = [x for x in (operands.left, operands.right, operands.residual) if x is not None]
        if {p.buffer for p in self._pending} & {x.buffer for x in reads}:
            self._list_stores()
        for op, vector in operands.vectors.items():
            self._load_vector(circuit.added[op], vector, count * tile.columns, product)
        rounds = self._products(circuit, operands, count)
        if operands.residual is not None:
            for j in range(count):
                place = operands.residual.at(0, j * tile.columns)
                self._load(circuit.added["residual"], place, tile.rows, tile.columns, product)
        for u, before, behind in _between(circuit.results):
            self._route(u, before, behind, count * rounds, product)
        fill = Receive(
            rounds,
            1,
            count,
            softmax,
            bias="bias" in operands.vectors,
            residual=operands.residual is not None,
            scaled="scale" in operands.vectors,
            product=product,
        )
        self._turn(circuit.receiver, fill, store)
        for u, before, behind in _between(circuit.stores):
            self._route(u, before, behind, count, product)
        self._list_stores()
        path = circuit.stores
        access = self._access(path.units[-2], path.labels[-1], out, tile.rows, count * tile.columns)
        self._pending.append(_Pending(out.buffer, path.units[-1].name, access._replace(store=True), self.layer))
        if self._strict:
            self._list_stores()

    def finish(self) -> dict[str, UnitWork]:
        """The items of every unit, in order, by its name. In each turn a memory fills a slot and drains the one filled
        before. Call it once, after the last strip."""
        self._list_stores()
        for unit, halves in self._halves.items():
            for begun, ended in zip([*halves, None], [None, *halves], strict=True):
                turn = Turn(begun and begun.fill, ended and ended.drain)
                layers = tuple(dict.fromkeys(half.layer for half in (ended, begun) if half is not None))
                self._work[unit].items.append(turn)
                self._work[unit].layers.append(layers)
        return self._work

    def _add(self, unit: str, item: Item, layer: int | None = None) -> None:
        self._work[unit].items.append(item)
        self._work[unit].layers.append((self.layer if layer is None else layer,))

    def _turn(self, unit: UnitSpec, fill: Load | LoadVector | Receive, drain: Send | Store) -> None:
        self._halves.setdefault(unit.name, []).append(_Half(fill, drain, self.layer))

    # -- products

    def _products(self, circuit: Circuit, operands: Operands, count: int) -> int:
        """Load the operands of a strip's products, and multiply them. Returns the rounds in which the receiver gets
        products."""
        left, right, depth = operands.left, operands.right, operands.depth
        if left is None or right is None or not depth:
            return 0
        tile, product = circuit.tile, circuit.product.name
        chunk = min(depth, circuit.most("depth")) if circuit.sums else 1
        for first in range(0, depth, chunk):
            ks = range(first, min(first + chunk, depth))
            held = _holds(circuit.left, len(ks) * tile.depth)
            if held:
                place = left.at(0, first * tile.depth)
                self._load(circuit.left, place, tile.rows, len(ks) * tile.depth, product, len(ks), times=count)
            for j in range(count):
                for k in ks:
                    if not held:
                        self._load(circuit.left, left.at(0, k * tile.depth), tile.rows, tile.depth, product)
                    row, column = k * tile.depth, j * tile.columns
                    if operands.transposed:
                        place = right.at(column, row)
                        self._load(circuit.weights, place, tile.columns, tile.depth, product, transpose=True)
                    else:
                        self._load(circuit.weights, right.at(row, column), tile.depth, tile.columns, product)
        for item in _multiplies(circuit, depth, chunk, count):
            self._add(product, item)
        return -(-depth // chunk)

    # -- units on paths

    def _load(
        self,
        path: Path,
        place: StoredRegion,
        rows: int,
        columns: int,
        product: str,
        count: int = 1,
        times: int = 1,
        transpose: bool = False,
    ) -> None:
        """Load rows x columns elements, `count` tiles side by side; the last memory on the way sends them `times`
        times."""
        turning = transposer(path) if transpose else None
        turned = turning is path.units[0]
        access = self._access(path.units[1], path.labels[0], place, rows, columns)
        self._add(path.units[0].name, access._replace(transpose=turned))
        memories = [u for u in path.between if u.memory is not None]
        sent = count
        for u, before, behind in _between(path):
            if u.memory is None:
                self._route(u, before, behind, sent, product)
                continue
            turned = turned or u is turning
            again = times if u is memories[-1] else 1
            fill = Load(
                *((columns, rows) if turned else (rows, columns)), transpose=u is turning, source=path.units[0].name
            )
            self._turn(u, fill, Send(1, count, again, product))
            sent = count * again

    def _load_vector(self, path: Path, place: StoredRegion, size: int, product: str) -> None:
        access = self._access(path.units[1], path.labels[0], place, 1, size)
        self._add(path.units[0].name, access._replace(vector=True, stride=0))
        for u, before, behind in _between(path):
            if u.memory is None:
                self._route(u, before, behind, 1, product)
            else:
                self._turn(u, LoadVector(size, path.units[0].name), Send(1, 1, 1, product))

    @staticmethod
    def _access(peer: UnitSpec, label: str, place: StoredRegion, rows: int, columns: int) -> Access:
        """The load of rows x columns elements."""
        return Access(peer.name, False, place.offset, columns, rows, place.pitch, label=label)

    def _route(self, switch: UnitSpec, before: UnitSpec, behind: UnitSpec, tiles: int, product: str) -> None:
        work, routes = self._work[switch.name], ((before.name, behind.name),)
        last = work.items[-1] if work.items and work.layers[-1] == (self.layer,) else None
        if isinstance(last, Route) and (last.routes, last.product) == (routes, product):
            work.items[-1] = last._replace(tiles=last.tiles + tiles)
        elif tiles:
            self._add(switch.name, Route(routes, tiles, product))

    def _list_stores(self) -> None:
        for pending in self._pending:
            self._add(pending.unit, pending.access, pending.layer)
        self._pending.clear()


def transposer(path: Path) -> UnitSpec | None:
    """The first unit on a path, before its end, that can deliver a matrix transposed; None if none can."""
    for u in path.units[:-1]:
        able = u.capability("transpose")
        if able is not None and able.where is Where.LOAD:
            return u
    return None


def _between(path: Path) -> Iterator[tuple[UnitSpec, UnitSpec, UnitSpec]]:
    """Each unit between the ends of a path, with the units before and behind it."""
    for (before, u), (_, behind) in pairwise(pairwise(path.units)):
        yield u, before, behind


def _holds(path: Path, columns: int) -> bool:
    """Whether a path has memories, and each holds this number of columns."""
    return bool(path.memories) and all(columns <= m.columns for m in path.memories)


def _multiplies(circuit: Circuit, depth: int, chunk: int, count: int) -> Sequence[Multiply]:
    """The items of a product unit for a strip: `count` results over `depth` tiles of K, added up over `chunk` tiles at
    a time."""
    groups, columns, most = circuit.most("column_groups"), circuit.most("columns"), circuit.most("depth")
    out: list[Multiply] = []
    if not circuit.sums and count <= columns:
        out += [Multiply(depth=min(most, depth - k), columns=count) for k in range(0, depth, most)]
        return out
    for first in range(0, depth, chunk):
        ks = min(chunk, depth - first)
        out += [
            Multiply(column_groups=min(groups, count - j), depth=ks, sums=circuit.sums) for j in range(0, count, groups)
        ]
    return out
