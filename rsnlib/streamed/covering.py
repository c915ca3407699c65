"""Rows that no tile divides: operators get as many as whole tiles cover.

A tile of a stream has one shape, so the last one cannot have fewer rows. Operators get rows behind those of each
sequence, and scores columns behind those of the keys. A row that is added repeats the last one that exists, as far as
tensors off the chip tell, so it holds numbers that this one may hold. What exists never depends on it: kernels go row
by row, but for attention, where softmax puts minus infinity into the columns of keys that do not exist, unless the
band of the scores hides them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...streams.words import MOVED
from .knobs import Knobs, fit
from .operators import Array, OperatorGraph, StreamOperator, consumers
from .sequences import OF_KEYS, ROW_BY_ROW, row_units

Existing = tuple[int, int, int, int]
"""What exists of a result: matrices, sequences of each, rows of a sequence, columns."""


class _Uncovered(Exception):
    """Rows or columns cannot be added: what exists would depend on them."""


def covered(size: int, most: int) -> int:
    """Return how many rows the fewest tiles of at most `most` rows have together that cover `size` rows. The rows of a
    tile are a multiple of a power of 2; that power grows with the square root of the tile's rows, so that words of
    several rows divide a tile."""
    count = -(-size // most)
    tile = -(-size // count)
    grain = 1 << (tile.bit_length() - 1) // 2
    return count * min(most, -(-tile // grain) * grain)


def with_whole_tiles(graph: OperatorGraph, rows: int, columns: int) -> OperatorGraph:
    """Return the graph with rows added to each operator so that whole tiles cover its rows. Returns the same graph if
    tiles divide all rows, or if rows cannot be added: because a tensor has sequences of several lengths, or because an
    operator other than softmax combines rows. rows, columns: of a tile, at most; the rows of a cache are keys, so tiles
    of a cache have at most `columns` of them."""
    try:
        return _Covering(graph, rows, columns).covered()
    except _Uncovered:
        return graph


def with_whole_columns(graph: OperatorGraph, knobs: Knobs, carried: str = "") -> OperatorGraph:
    """Return the graph with columns added to products whose columns divide badly into tiles, so that whole tiles of all
    kernels cover them.

    Columns divide badly if their largest divisor that fits a tile is at most half of what the knobs say, or makes
    narrow words of streams: a vocabulary may have a prime number of words. Only products whose result nothing but the
    host reads get columns. Their weights get as many, when they are laid out in memory off the chip. knobs: of the
    operators. carried: name of the result that the next layer reads, "" for none.
    """
    read = consumers(graph.operators)
    wide: dict[StreamOperator, int] = {}
    for x in graph.results:
        columns, count = x.shape[2], knobs.at(x.name).kernels
        tile = knobs.at(x.name if count == 1 else f"{x.name}_0").columns
        part = -(-columns // count)
        alone = x.op == "linear" and x not in read and x.name != carried
        if alone and (_divides_badly(columns, count) or _divides_badly(part, tile)):
            wide[x] = count * covered(part, tile)
            named = zip(x.attributes["operand_names"], x.operands, strict=True)
            wide |= {y: wide[x] for name, y in named if name.startswith("weight")}
    made: dict[StreamOperator, StreamOperator] = {}
    for x in graph.operators:
        made[x] = replace(x, operands=tuple(made[operand] for operand in x.operands))
        if x in wide:
            made[x] = with_columns(made[x], wide[x])
    return OperatorGraph(tuple(made.values()), tuple(made[x] for x in graph.results))


def with_columns(x: StreamOperator, columns: int) -> StreamOperator:
    """Return a product, or its weight off the chip, with columns added behind those that exist. columns: how many there
    are then. An added element of a bias repeats the last one; added elements off the chip are made when a tensor is
    laid out in memory (`grown`)."""
    heads, rows, before = x.shape
    existing = x.existing or (heads, 1, rows, before)
    attributes: dict[str, Any] = dict(x.attributes)
    if attributes.get("bias") is not None:
        attributes["bias"] = np.pad(attributes["bias"][: existing[3]], (0, columns - existing[3]), mode="edge")
    return replace(x, shape=(heads, rows, columns), attributes=attributes, existing=existing)


def _divides_badly(size: int, most: int) -> bool:
    """Whether tiles that divide the columns are narrow, or streams move few elements of their rows in a cycle: those of
    a tile of 1,187 columns, which is prime, would move one by one."""
    tile = fit(size, most)
    return most > 1 and (2 * tile <= min(size, most) or 2 * fit(tile, MOVED) <= min(tile, MOVED))


def grown(x: Array, existing: Existing, tensor: tuple[int, ...]) -> Array:
    """Return elements with added rows and columns, which repeat the last row and column. x: the elements that exist,
    row-major, of any shape. existing: their sizes. tensor: shape of the result, as the order of a stream has it."""
    heads, sequences, rows, columns = existing
    wide = tensor[-1]
    more = prod(tensor) // (heads * sequences * wide) - rows
    added = ((0, 0), (0, 0), (0, more), (0, wide - columns))
    return np.pad(x.reshape(existing), added, mode="edge").reshape(tensor)


def cropped(x: Array, existing: Existing, columns: int) -> Array:
    """Return the elements that exist, in the shape `existing`: the inverse of `grown`. x: all elements, row-major, of
    any shape. columns: number of columns of x."""
    heads, sequences, rows, kept = existing
    return np.ascontiguousarray(x.reshape(heads, sequences, -1, columns)[:, :, :rows, :kept])


class _Covering:
    """units: rows of a sequence of each operator. keys: columns of those that have a column for each key, else 0.
    caches: rows of caches, with the new ones."""

    def __init__(self, graph: OperatorGraph, most: int, most_of_caches: int) -> None:
        self.graph, self.most, self.most_of_caches = graph, most, most_of_caches
        self.readers = consumers(graph.operators)
        found = row_units(graph)
        self.units = {x: found.get(x, x.shape[1]) for x in graph.computed}
        self.keys: dict[StreamOperator, int] = {}
        caches = {x.shape[1] for x in graph.computed if x.op in ("append", "replace")}
        self.caches = caches - {self.units[x] for x in graph.computed if x.op == "linear"}

    def covered(self) -> OperatorGraph:
        for x in self.graph.computed:
            for operand, rows in _rows_of_operands(x, self.units[x]):
                _agree(self.units, operand, rows)
        for x in self.graph.computed:
            self._find_keys(x)
        made: dict[StreamOperator, StreamOperator] = {}
        for x in self.graph.operators:
            made[x] = self._changed(x, tuple(made[operand] for operand in x.operands))
        results = tuple(made[x] for x in self.graph.results)
        return OperatorGraph(tuple(made.values()), results)

    def _rows(self, size: int) -> int:
        return covered(size, self.most_of_caches if size in self.caches else self.most)

    def _find_keys(self, x: StreamOperator) -> None:
        """Find whether an operator has a column for each key. Raises `_Uncovered` if what exists would depend on what
        is added."""
        operands = x.operands
        of_keys = [self.keys[operand] for operand in operands if self.keys.get(operand)]
        own, by_keys = 0, tuple[StreamOperator, ...]()
        if x.op == "scores":
            mask = x.operand("mask")
            own, by_keys = x.shape[2], () if mask is None else (mask,)
            seen = self._rows(own) if self._band_hides(x) else own
            rows = self._rows(x.shape[1])
            if rows > x.shape[1] and rows + x.attributes.get("first", -rows) > seen:
                raise _Uncovered  # the last row that is added would see no key, and its softmax be of nothing
        elif x.op == "attend":
            by_keys = operands[:1]
            if self._rows(operands[0].shape[2]) != operands[0].shape[2] and operands[0].op != "softmax":
                raise _Uncovered
        elif of_keys and x.op in ("pointwise", "softmax"):
            own, by_keys = x.shape[2], operands
        elif any(self._rows(keys) != keys for keys in of_keys):
            raise _Uncovered
        self.keys[x] = own
        for operand in operands:
            keys = operand.shape[2] if operand in by_keys else 0
            if self._rows(operand.shape[2]) != operand.shape[2] and (operand.is_memory or operand in by_keys):
                _agree(self.keys, operand, keys)

    def _band_hides(self, x: StreamOperator) -> bool:
        """Whether only softmax reads scores, and their band hides the columns that are added from rows that exist."""
        last = x.attributes.get("last", x.shape[2])
        by_softmax = all(reader.op == "softmax" for reader in self.readers.get(x, []))
        return bool(x.shape[1] - 1 + last < x.shape[2]) and by_softmax

    def _changed(self, x: StreamOperator, operands: tuple[StreamOperator, ...]) -> StreamOperator:
        heads, rows, columns = x.shape
        unit = self.units.get(x, rows)
        more = rows // unit * self._rows(unit) if x in self.units else rows
        wide = self._rows(columns) if self.keys.get(x) else columns
        attributes: dict[str, Any] = dict(x.attributes)
        if wide > columns and x.op == "pointwise":
            vectors: Mapping[str, Array] = x.attributes["vectors"]
            attributes["vectors"] = {name: np.pad(v, (0, wide - columns), mode="edge") for name, v in vectors.items()}
        operand = x.operands[0] if x.operands else x
        if wide > columns and x.op == "softmax" and not (operand.op == "scores" and self._band_hides(operand)):
            attributes["hidden"] = np.full(wide - columns, -np.inf, np.float32)
        existing = None if (more, wide) == (rows, columns) else (heads, rows // unit, unit, columns)
        return replace(x, operands=operands, shape=(heads, more, wide), attributes=attributes, existing=existing)


def _agree(of: dict[StreamOperator, int], x: StreamOperator, size: int) -> None:
    if of.setdefault(x, size) != size:
        raise _Uncovered


def _rows_of_operands(x: StreamOperator, unit: int) -> Iterator[tuple[StreamOperator, int]]:
    """Operands, but for weights, and the rows of a sequence in each. unit: those of the operator."""
    if x.op == "linear":
        of_rows = ("x", "scale", "zero")
        named = zip(x.attributes["operand_names"], x.operands, strict=True)
        yield from ((operand, unit) for name, operand in named if name in of_rows)
    elif x.op in ROW_BY_ROW:
        yield from ((operand, unit) for operand in x.operands)
    elif x.op == "attend":
        rows, keys = x.operands[0].shape[1:]
        yield from ((operand, keys if k == 1 else rows) for k, operand in enumerate(x.operands))
    elif x.op == "scores":
        named = zip(x.attributes["operand_names"], x.operands, strict=True)
        yield from ((operand, x.shape[2 if name in OF_KEYS else 1]) for name, operand in named)
    else:
        yield from zip(x.operands, x.attributes["rows"], strict=True)
