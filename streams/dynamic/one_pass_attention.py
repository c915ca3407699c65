"""Functions of attention over ragged caches, in one pass over the tiles of a cache (STeP v2, section 5.4): what
`programs.attention` applies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .expansions import Expansion
from .functions import Cost, Function, InputRefused, same_size, tile_beside_number, tiles_in
from .shapes import ADDRESS, DataType, Dimension, Symbols, TileType, TupleType, dimension, is_address
from .tokens import Element, Tile
from .updates import Update


@dataclass(frozen=True)
class TuplePart(Function):
    """Take one part of a tuple. index: the number of the part, from 0."""

    index: int

    def type(self, *of: DataType) -> DataType:
        if not 0 <= self.index < len(of):
            raise InputRefused(f"{self.name} takes part {self.index} of a tuple of {len(of)}")
        return of[self.index]

    def __call__(self, *of: Any) -> Element:
        part: Element = of[self.index]
        return part


@dataclass(frozen=True)
class CacheTiles(Expansion):
    """List the tiles of the cache of a job. The operand is a tuple of the number of the job and the length of its cache
    in rows. The result is a matrix with one row: for each tile that the length reaches, a tuple of its address and of
    how many of its rows are within the length.

    rows: of a tile. tiles: how many tiles of memory each cache has. rank: 1."""

    rows: int
    tiles: int
    rank: int = 1

    @property
    def name(self) -> str:
        """The name in messages: KV tiles."""
        return "KV tiles"

    def type(self, element: DataType, symbols: Symbols) -> tuple[tuple[Dimension | None, ...], DataType]:
        if min(self.rows, self.tiles) < 1:
            raise InputRefused(f"{self.name} of {self.rows} rows, {self.tiles} of a cache; the least is 1")
        if not isinstance(element, TupleType) or len(element.parts) != 2 or not all(map(is_address, element.parts)):
            raise InputRefused(f"{self.name} takes a tuple of two [1,1] tiles of integers, not {element}")
        return (dimension(1), None), TupleType((ADDRESS, ADDRESS))

    def __call__(self, element: Any) -> list[Any]:
        number, length = (one.scalar for one in element)
        return [
            [
                (Tile.of(number * self.tiles + at // self.rows, "i32"), Tile.of(min(self.rows, length - at), "i32"))
                for at in range(0, length, self.rows)
            ]
        ]


@dataclass(frozen=True)
class ScaledMask(Function):
    """Multiply scores by a factor, and set those behind the valid columns to -infinity. Operands: a tile of scores, and
    a [1,1] tile of integers with the number of valid columns."""

    factor: float

    @property
    def name(self) -> str:
        """The name in messages: mask."""
        return "mask"

    def type(self, *of: DataType) -> DataType:
        return tile_beside_number(self.name, of)

    def __call__(self, *of: Any) -> Element:
        scores, valid = of
        if scores.data is None:
            whole: Tile = scores
            return whole
        kept = np.arange(scores.columns) < valid.scalar
        return Tile(scores.rows, scores.columns, scores.dtype, np.where(kept, scores.data * self.factor, -np.inf))

    def cost(self, *of: Any) -> Cost:
        return 1, of[0].shape


@dataclass(frozen=True)
class OnlineSoftmax(Update):
    """Fold tuples of scores [queries, rows] and values [rows, columns], tiles of static sizes, into a tuple of three
    tiles: the largest score of each query [queries, 1]; the sum of exp(score - largest score) of each query [queries,
    1]; and the sum of the values, each times that exponential [queries, columns]."""

    @property
    def name(self) -> str:
        """The name in messages: softmax."""
        return "softmax"

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.running(element, group, symbols)

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        scores, values = tiles_in(self.name, element.parts if isinstance(element, TupleType) else [element], 2)
        same_size(self.name, scores.columns, values.rows, scores, values)
        if not (scores.static and values.static):
            raise InputRefused(f"{self.name} of {scores} and {values}; it takes tiles of static sizes")
        column = TileType(scores.rows, dimension(1), scores.dtype)
        return TupleType((column, column, TileType(scores.rows, values.columns, scores.dtype)))

    def start(self, element: DataType) -> Element:
        scores = element.parts[0] if isinstance(element, TupleType) else element
        assert isinstance(scores, TileType)
        queries, _, columns = _sizes(element)
        shapes = ((queries, 1), -np.inf), ((queries, 1), 0.0), ((queries, columns), 0.0)
        return tuple(Tile.of(np.full(shape, fill), scores.dtype) for shape, fill in shapes)

    def __call__(self, state: Any, element: Any) -> Element:
        scores, values = element
        if scores.data is None or values.data is None:
            return tuple(Tile(one.rows, one.columns, one.dtype) for one in state)
        top, total, weighted = (one.data for one in state)
        higher = np.maximum(top, scores.data.max(axis=1, keepdims=True))
        weights, before = np.exp(scores.data - higher), np.exp(top - higher)
        return (
            Tile.of(higher, scores.dtype),
            Tile.of(total * before + weights.sum(axis=1, keepdims=True), scores.dtype),
            Tile.of(weighted * before + weights @ values.data, scores.dtype),
        )

    def cost(self, *of: Any) -> Cost:
        """Return the operations of one update: a product with the values, and for each score a subtraction, an
        exponential (4) and a sum. of: the element, or its type.
        """
        queries, rows, columns = _sizes(of[0])
        return 2 * queries * rows * columns + 6 * queries * rows, ()


def _sizes(element: Any) -> tuple[int, int, int]:
    """Queries, rows and columns of a tuple of scores and values, or of its type."""
    parts: Any = element.parts if isinstance(element, TupleType) else element
    scores, values = parts
    sizes = scores.rows, scores.columns, values.columns
    queries, rows, columns = (int(one.size) if isinstance(one, Dimension) else one for one in sizes)
    return queries, rows, columns


@dataclass(frozen=True)
class SoftmaxQuotient(Function):
    """Divide the weighted sums of values [queries, columns] by the sums of the weights [queries, 1]. The operands are
    the three tiles of the last state of `OnlineSoftmax`."""

    @property
    def name(self) -> str:
        """The name in messages: divide."""
        return "divide"

    def type(self, *of: DataType) -> DataType:
        top, total, weighted = tiles_in(self.name, of, 3)
        same_size(self.name, top.rows, weighted.rows, top, weighted)
        same_size(self.name, total.rows, weighted.rows, total, weighted)
        return weighted

    def __call__(self, *of: Any) -> Element:
        _, total, weighted = of
        if total.data is None or weighted.data is None:
            without: Tile = weighted
            return without
        return Tile.of(weighted.data / total.data, weighted.dtype)

    def cost(self, *of: Any) -> Cost:
        return 1, of[2].shape
