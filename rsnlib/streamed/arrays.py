"""Products with constant weights on arrays of multipliers that all of them share.

The products of a layer mostly wait for each other: a step of decoding has one row, and each product needs all of the
one before. If each has multipliers of its own, most of them idle. Here all products have the same arrays, which take
them in turn, in the order of the graph; each array has a part of the columns. The weights of an array are one tensor,
in the order of their use, so that its load runs ahead while kernels between the products work. What each product has
for itself, its scales and its bias, is in a kernel of its own, with the name of the product: its epilogue.

A product with a vocabulary, behind the layers of a model, can have the same arrays: once the last layer is computed,
their loads go on with its weights, at the whole speed that weights of layers have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd

import numpy as np

from ...base.element_types import FLOATS
from .covering import with_columns
from .knobs import Knobs, fit
from .operators import Array, OperatorGraph, StreamOperator, consumers, rebuilt
from .repeated import of_layer

WEIGHTS = "weights_"
"""The operands of an epilogue that are the weights of an array begin with this; the number of the array follows."""

LEFT = ("x", "zero")
"""The operands of an epilogue that each array gets: rows, and their zero points."""

OWN = ("rows", "columns", "depth", "unroll", "fabric", "outward", "kernels")
"""Knobs of its own with which a product keeps its own multipliers."""


def is_of_arrays(name: str) -> bool:
    """Return whether an operand of a product on shared arrays goes to its arrays, and not to its epilogue: the left
    operand, its zero points, and the weights. name: of the operand."""
    return name in LEFT or name.startswith(WEIGHTS)


@dataclass(frozen=True)
class ArrayProduct:
    """A product that shared arrays of multipliers compute. Each of its arrays computes an equal part of its columns.

    name: of its operator. columns: how many tiles of columns each of its arrays computes. groups: into how many groups
    the rows of the weight are divided, each with scales of its own. parts: how many tiles a sum over one group has.
    first, count: the number of its first array, and how many arrays it has; their numbers follow each other.
    """

    name: str
    columns: int
    groups: int
    parts: int
    first: int
    count: int

    @property
    def tiles(self) -> int:
        """How many tiles of weights each of its arrays takes for each row tile."""
        return self.columns * self.groups * self.parts

    @property
    def arrays(self) -> range:
        """The numbers of its arrays."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, eq=False)
class SharedArrays:
    """Arrays of multipliers that several products share.

    names: of the arrays; the number of an array is its place among them, from 0. turns: the products, in the order in
    which they are computed. The products of one turn have the same left operand; for each row tile an array computes
    those of them that it has, one after the other. tile: depth and columns of a tile of weights, in elements. types:
    element types of the two operands as they are multiplied, as `plans.types_of` returns them. behind: how many turns,
    the last ones, come behind the layers of a model, and are computed once.
    """

    names: tuple[str, ...]
    turns: tuple[tuple[ArrayProduct, ...], ...]
    tile: tuple[int, int]
    types: tuple[str, str]
    behind: int = 0

    @property
    def parts(self) -> tuple[SharedArrays, SharedArrays]:
        """The same arrays with the turns of each layer alone, and with the turns behind the layers alone."""
        of_layer = len(self.turns) - self.behind
        return replace(self, turns=self.turns[:of_layer], behind=0), replace(self, turns=self.turns[of_layer:])

    @property
    def products(self) -> Iterator[ArrayProduct]:
        """All products, in order."""
        return (product for turn in self.turns for product in turn)

    def of_turn(self, turn: Sequence[ArrayProduct], number: int) -> list[ArrayProduct]:
        """Return the products of a turn of which an array computes columns. number: of the array."""
        return [product for product in turn if number in product.arrays]

    def of_array(self, number: int) -> list[ArrayProduct]:
        """Return all products of which an array computes columns, in order. number: of the array."""
        return [product for turn in self.turns for product in self.of_turn(turn, number)]

    def rounds(self, turn: Sequence[ArrayProduct]) -> int:
        """Return how many times the left operand of a turn is sent to the arrays for each row tile: as many times as
        the array with the most column tiles in this turn has such tiles."""
        numbers = range(len(self.names))
        return max(sum(product.columns for product in self.of_turn(turn, number)) for number in numbers)

    def turn(self, name: str) -> tuple[ArrayProduct, ...]:
        """Return the products of the turn that has a product of this name. Raises `StopIteration` for an unknown
        name."""
        return next(turn for turn in self.turns if any(product.name == name for product in turn))

    def product(self, name: str) -> ArrayProduct:
        """Return the product of this name. Raises `StopIteration` for an unknown name."""
        return next(product for product in self.turn(name) if product.name == name)


def with_shared_arrays(graph: OperatorGraph, knobs: Knobs, carried: str = "") -> OperatorGraph:
    """Return the graph in which products of the same kind share as many arrays of multipliers as the knob `arrays`
    says. Each such product becomes an operator "epilogue" of the same name, with the attribute `arrays`
    (`SharedArrays`), and with the weights of the arrays in place of its own.

    Linear operators are of the same kind if they have equal numbers of rows, equal element types of both operands, and
    zero points of the left operand that are given row by row in both, one equal number in both, or missing in both. A
    product is left as it is if no other product is of its kind, if its weight has zero points or is dequantised, or if
    it has knobs of its own among `OWN`.

    A product behind the layers of a model uses the arrays of the layers if it is of the kind of their products, if its
    sums are made of whole tiles, and if whole tiles of all arrays divide its columns or columns can be added because
    only the host reads them. Otherwise it has multipliers of its own. knobs: of the operators, by their names before
    the change. carried: name of the result of a layer that the next layer reads, "" without layers.
    """
    layer = of_layer(graph, carried) if carried else graph
    kinds, behind = _kinds(layer.kernels, knobs), dict[object, list[StreamOperator]]()
    if carried:
        inside = {*layer.operators}
        behind = _kinds((x for x in graph.kernels if x not in inside), knobs)
    read = consumers(graph.operators)
    made: dict[str, tuple[SharedArrays, tuple[StreamOperator, ...], int]] = {}
    several = {kind: of_kind for kind, of_kind in kinds.items() if len(of_kind) > 1}
    for number, (kind, of_kind) in enumerate(several.items()):
        stem = f"products_{number}" if len(several) > 1 else "products"
        arrays = _arrays(of_kind, knobs, stem)
        weights = tuple(_weights(of_kind, arrays, k) for k in range(len(arrays.names)))
        made_wide = {x: wide for x in behind.get(kind, ()) if (wide := _wide(x, arrays, x not in read))}
        whole = _with_behind(arrays, made_wide)
        made |= {x.name: (whole, weights, x.shape[2]) for x in of_kind}
        last = whole.parts[1]
        widened = [_with_columns(x, columns) for x, columns in made_wide.items()]
        of_last = tuple(_weights(widened, last, k, "_behind") for k in range(len(last.names))) if widened else ()
        made |= {x.name: (whole, of_last, x.shape[2]) for x in widened}
    if not made:
        return graph

    def change(x: StreamOperator) -> StreamOperator:
        if x.name not in made or x.is_memory:
            return x
        arrays, weights, columns = made[x.name]
        return _epilogue(_with_columns(x, columns), arrays, weights)

    return rebuilt(graph, change)


def _kinds(kernels: Iterable[StreamOperator], knobs: Knobs) -> dict[object, list[StreamOperator]]:
    """Products that can have arrays, by their kind."""
    kinds: dict[object, list[StreamOperator]] = {}
    for x in kernels:
        if knobs.arrays and x.op == "linear" and _can_share(x) and knobs.of.get(x.name, {}).keys().isdisjoint(OWN):
            zero = "each row" if x.operand("zero") is not None else x.attributes.get("zero")
            kind = x.shape[:2], x.row_tile, x.operands[0].dtype, x.operands[1].dtype, zero
            kinds.setdefault(kind, []).append(x)
    return kinds


def _wide(x: StreamOperator, arrays: SharedArrays, can_grow: bool) -> int:
    """The columns of a product behind the layers that are whole tiles of all arrays; 0 if it cannot have these, or its
    sums are no whole tiles. can_grow: columns may be added."""
    depth, each = x.operands[0].shape[2] // _groups(x), arrays.tile[1] * len(arrays.names)
    columns = x.existing[3] if x.existing else x.shape[2]
    wide = -(-columns // each) * each
    return wide if depth % arrays.tile[0] == 0 and (can_grow or wide == x.shape[2]) else 0


def _with_columns(x: StreamOperator, columns: int) -> StreamOperator:
    """A product with more columns, or fewer of those that were added, and its weights."""
    if columns == x.shape[2]:
        return x
    named = zip(x.attributes["operand_names"], x.operands, strict=True)
    operands = (with_columns(y, columns) if name.startswith("weight") else y for name, y in named)
    return replace(with_columns(x, columns), operands=tuple(operands))


def _with_behind(arrays: SharedArrays, products: Mapping[StreamOperator, int]) -> SharedArrays:
    """Arrays that compute products behind the layers, too. products: with the columns of each."""
    turns: dict[StreamOperator, list[ArrayProduct]] = {}
    tk, count = arrays.tile[0], len(arrays.names)
    for x, wide in products.items():
        parts = x.operands[0].shape[2] // _groups(x) // tk
        product = ArrayProduct(x.name, wide // arrays.tile[1] // count, _groups(x), parts, 0, count)
        turns.setdefault(x.operands[0], []).append(product)
    return replace(arrays, turns=(*arrays.turns, *map(tuple, turns.values())), behind=len(turns))


def _can_share(x: StreamOperator) -> bool:
    """Whether a linear operator multiplies what comes, by a constant weight."""
    weight = x.operands[1]
    is_plain = x.operands[0].dtype in FLOATS and weight.dtype in FLOATS
    multiplies = is_plain or (x.multiplies_integers and x.operand("weight_zero") is None)
    return multiplies and isinstance(weight.data, np.ndarray)


def _groups(x: StreamOperator) -> int:
    """The groups of a weight along the sum, each of which has its own scales."""
    scale = x.operand("weight_scale")
    return 1 if scale is None else scale.shape[1]


def _arrays(products: Sequence[StreamOperator], knobs: Knobs, stem: str) -> SharedArrays:
    """The arrays of products of one kind. Of the numbers from half of the knob `arrays` on that one is taken with which
    tiles of all products keep most of the arrays busy, the largest of several. stem: of their names."""
    depths = [x.operands[0].shape[2] // _groups(x) for x in products]
    tk, tn = fit(reduce(gcd, depths), knobs.depth), fit(reduce(gcd, (x.shape[2] for x in products)), knobs.columns)
    turns: dict[StreamOperator, list[StreamOperator]] = {}
    for x in products:
        turns.setdefault(x.operands[0], []).append(x)

    def dealt(count: int) -> list[tuple[ArrayProduct, ...]]:
        return [_dealt(turn, (tk, tn), count) for turn in turns.values()]

    def steps(count: int) -> int:
        """The steps of sums for each row tile, of all arrays together with those in which some are idle."""
        of = SharedArrays(("",) * count, tuple(dealt(count)), (tk, tn), ("", ""))
        return count * sum(of.rounds(turn) * turn[0].groups * turn[0].parts for turn in of.turns)

    count = min(range(knobs.arrays, knobs.arrays // 2, -1), key=steps)
    made = dealt(count)
    used = max(product.arrays.stop for turn in made for product in turn)
    first, weight = products[0], products[0].operands[1]
    has_zeros = first.operand("zero") is not None or bool(first.attributes.get("zero"))
    types = "i16" if has_zeros else first.operands[0].dtype, weight.dtype
    return SharedArrays(tuple(f"{stem}_{k}" for k in range(used)), tuple(made), (tk, tn), types)


def _dealt(turn: Sequence[StreamOperator], tile: tuple[int, int], count: int) -> tuple[ArrayProduct, ...]:
    """The products of a turn on arrays. Each has as many as divide its tiles of columns, so that they all have as many
    tiles of it, and those that have fewest of the products before. tile: depth and columns. count: of arrays."""
    tk, tn = tile
    busy = [0] * count
    made = []
    for x in turn:
        columns, groups = x.shape[2] // tn, _groups(x)
        own = fit(columns, count)
        first = min(range(count - own + 1), key=lambda k: max(busy[k : k + own]))
        parts = x.operands[0].shape[2] // groups // tk
        made.append(ArrayProduct(x.name, columns // own, groups, parts, first, own))
        for k in made[-1].arrays:
            busy[k] += columns // own
    return tuple(made)


def _weights(products: Sequence[StreamOperator], arrays: SharedArrays, number: int, suffix: str = "") -> StreamOperator:
    """The weights of an array, tile below tile in the order of their use, (tiles * depth, columns). Of each of its
    products it has every tile of columns whose number is its own, counted around the arrays. number: of the array.
    suffix: of the name."""
    by_name = {x.name: x.operands[1] for x in products}
    tk, tn = arrays.tile
    parts = []
    for product in arrays.of_array(number):
        matrix = by_name[product.name].data
        assert isinstance(matrix, np.ndarray)
        if matrix.shape[-1] < by_name[product.name].shape[2]:
            more = by_name[product.name].shape[2] - matrix.shape[-1]
            matrix = np.pad(matrix, [(0, 0)] * (matrix.ndim - 1) + [(0, more)], mode="edge")
        cut = matrix.reshape(-1, tk, product.columns, product.count, tn)[:, :, :, number - product.first]
        parts.append(cut.transpose(2, 0, 1, 3).reshape(-1, tn))
    data: Array = np.concatenate(parts)
    weight = products[0].operands[1]
    name = f"{arrays.names[number]}_weight{suffix}"
    return StreamOperator(name, "memory", (), (1, *data.shape), data=data, dtype=weight.dtype)


def _epilogue(x: StreamOperator, arrays: SharedArrays, weights: Sequence[StreamOperator]) -> StreamOperator:
    """What is left of a product: sums of arrays become rows of its result."""
    names: dict[str, StreamOperator] = dict(zip(x.attributes["operand_names"], x.operands, strict=True))
    del names["weight"]
    names |= {f"{WEIGHTS}{k}": weights[k] for k in arrays.product(x.name).arrays}
    attributes = {**x.attributes, "operand_names": tuple(names), "arrays": arrays}
    return replace(x, op="epilogue", operands=tuple(names.values()), attributes=attributes)


def arrays_of(kernels: Iterable[StreamOperator]) -> dict[StreamOperator, list[StreamOperator]]:
    """Return an operator "array" for each shared array, each with the epilogues of all products of its `SharedArrays`.
    kernels: of a graph that `with_shared_arrays` returned.

    The operands of the "array" are its weights: first those of a layer, then those behind the layers. Its shape is (1,
    rows, columns), where each product counts the columns that this array computes of it, once for each group of the
    weight. Its attribute `arrays` is the `SharedArrays`. Its attribute `zero` is the number that it subtracts from all
    left operands; None if zero points come with the rows, or if there are none.
    """
    of: dict[SharedArrays, list[StreamOperator]] = {}
    for x in kernels:
        if "arrays" in x.attributes:
            of.setdefault(x.attributes["arrays"], []).append(x)
    found = {}
    for shared, epilogues in of.items():
        first = epilogues[0]
        attributes = {"arrays": shared, "zero": first.attributes.get("zero")}
        for k, name in enumerate(shared.names):
            weights = dict.fromkeys(w for x in epilogues if (w := x.operand(f"{WEIGHTS}{k}")) is not None)
            columns = sum(product.columns * product.groups for product in shared.of_array(k)) * shared.tile[1]
            shape = 1, first.shape[1], columns
            made = StreamOperator(name, "array", tuple(weights), shape, attributes, dtype=first.dtype)
            found[replace(made, row_tile=first.row_tile)] = epilogues
    return found
