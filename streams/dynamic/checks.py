"""What a run checks of every stream: its tokens against its type. From the same counts come the values of symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import sympy

from .errors import StreamFault, TokenError
from .graph import OperatorNode, Program, Stream
from .shapes import (
    BufferType,
    DataType,
    Dimension,
    SelectorType,
    StreamType,
    TileType,
    TupleType,
    replaced,
    text_of,
)
from .tokens import BufferReference, Done, Groups, Selector, Stop, Tile, Token


class Sizes:
    """The sizes that one dimension of a stream has in a run, in elements of that dimension, checked against its type: a
    static dimension has the size of its type, another regular one the size that it has first, and all are within the
    bound.

    one: the dimension. bounds: the largest value of each symbol. what: what the dimension is, for messages. Attributes:
    total: the sum of the sizes so far. largest: the largest one. values: up to two different ones."""

    __slots__ = ("_bound", "_known", "_most", "_regular", "_what", "dimension", "largest", "total", "values")

    def __init__(self, one: Dimension, bounds: Mapping[sympy.Symbol, int], what: str) -> None:
        self.dimension = one
        self.total = self.largest = 0
        self.values: set[int] = set()
        self._what = what
        self._known = int(one.size) if one.size.is_Integer else None
        self._regular = not one.ragged
        self._bound = bounds.get(one.size)
        self._most = min((n for n in (self._known, self._bound) if n is not None), default=inf)

    def at_most(self, size: int, position: int) -> None:
        """Raise `TokenError` if a group that has `size` elements so far, and may not have ended, exceeds what its type,
        earlier groups or its bound allow. position: of the token in the stream, from 0."""
        if size <= self._most:
            return
        if self._bound is not None and size > self._bound:
            text = f"{self._what} is {size} or more, beyond the bound {self.dimension} <= {self._bound}"
            raise TokenError(text, position)
        raise TokenError(f"{self._what} is {size} or more, and {self._known} by its type or before", position)

    def add(self, size: int, position: int) -> None:
        """Count a group that has ended. size: its elements. position: in the stream of the token that ended it, from 0.
        Raises `TokenError` if the size differs from the type or from earlier sizes of a regular dimension, or exceeds
        the bound."""
        self.at_most(size, position)
        if self._known is None:
            if self._regular:
                self._known = self._most = size
        elif size != self._known:
            text = f"{self._what} is {size}, and {self._known} by its type or before ({self.dimension})"
            raise TokenError(text, position)
        self.total += size
        if size > self.largest:
            self.largest = size
        if len(self.values) < 2:
            self.values.add(size)

    def bind(self, found: dict[sympy.Symbol, int]) -> None:
        """Add to `found` the values, in elements, of the symbols of this dimension: of a regular one the symbol of its
        size, of a ragged one those of the sum of its sizes and of the largest. A size that is an expression, not a
        symbol alone, gives none."""
        if self.dimension.ragged:
            for expression, value in ((self.dimension.total, self.total), (self.dimension.largest, self.largest)):
                if isinstance(expression, sympy.Symbol):
                    found[expression] = value
        elif isinstance(self.dimension.size, sympy.Symbol) and len(self.values) == 1:
            found[self.dimension.size] = next(iter(self.values))


class _Elements:
    """The elements of a type in a run. sizes: of each dimension of a tile or a buffer. parts: of a tuple."""

    __slots__ = ("data", "parts", "sizes")

    def __init__(self, data: DataType, bounds: Mapping[sympy.Symbol, int]) -> None:
        self.data = data
        self.parts = [_Elements(part, bounds) for part in data.parts] if isinstance(data, TupleType) else []
        shape: tuple[Dimension, ...] = ()
        names: Sequence[str] = ()
        if isinstance(data, TileType):
            shape, names = data.shape, ("rows of a tile", "columns of a tile")
        elif isinstance(data, BufferType):
            shape = data.shape
            names = [f"dimension {level} of a buffer" for level in reversed(range(len(shape)))]
        self.sizes = [Sizes(one, bounds, name) for one, name in zip(shape, names, strict=True)]

    def see(self, token: Any, position: int) -> None:
        """Take an element into account. Raises `TokenError`."""
        match self.data:
            case TileType(dtype=dtype) if isinstance(token, Tile):
                rows, columns = self.sizes
                rows.add(token.rows, position)
                columns.add(token.columns, position)
                if dtype != token.dtype:
                    raise TokenError(f"a tile of {token.dtype} in a stream of {dtype}", position)
            case SelectorType(choices, hot) if isinstance(token, Selector):
                if any(not 0 <= one < choices for one in token.chosen):
                    raise TokenError(f"selector {token} of {choices} streams", position)
                if hot is not None and len(token.chosen) != hot:
                    raise TokenError(f"selector {token} in a stream of selectors of {hot}", position)
            case BufferType() if isinstance(token, BufferReference):
                for axis, (sizes, size) in enumerate(zip(self.sizes, token.shape, strict=True)):
                    if axis == 0 or token.shape[0]:
                        sizes.add(size, position)
            case TupleType() if isinstance(token, tuple) and len(token) == len(self.parts):
                for part, one in zip(self.parts, token, strict=True):
                    part.see(one, position)
            case data:
                raise TokenError(f"{token} in a stream of {data}", position)

    def bind(self, found: dict[sympy.Symbol, int]) -> None:
        """Add the values of the symbols that are a dimension's own, if there was an element."""
        for sizes in self.sizes:
            if sizes.values:
                sizes.bind(found)
        for part in self.parts:
            part.bind(found)


class Measured:
    """Follows the tokens of a stream, checks them against its type, and counts sizes.

    stream: the type. bounds: the largest value of each symbol. The attribute `sizes` has the sizes of each dimension of
    the stream, the innermost first. `see` raises `TokenError` for a token that does not fit the type."""

    def __init__(self, stream: StreamType, bounds: Mapping[sympy.Symbol, int]) -> None:
        self.type = stream
        self.groups = Groups(stream.rank)
        self.sizes = [Sizes(one, bounds, f"dimension {level}") for level, one in enumerate(reversed(stream.shape))]
        self._elements = _Elements(stream.data, bounds)
        self._open = [0] * len(stream.shape)
        self._shared = _shared(stream.data)

    @property
    def position(self) -> int:
        """The position of the last token in the stream, from 0, stops included; -1 before the first one."""
        return self.groups.position

    def see(self, token: Token) -> None:
        """Follow the next token of the stream. Raises `TokenError` if it cannot come here, because of the type of the
        stream, the sizes before it, or the bounds."""
        self.groups.see(token)
        if isinstance(token, Stop):
            for level in range(self.groups.lowest, token.level + 1):
                self._end(level - 1)
                self._grow(level)
        elif isinstance(token, Done):
            self._end(self.type.rank)
        else:
            self._grow(0)
            self._elements.see(token, self.groups.position)
            if self._shared:
                self._alike(token)

    def _grow(self, level: int) -> None:
        size = self._open[level] = self._open[level] + 1
        self.sizes[level].at_most(size, self.groups.position)

    def _end(self, level: int) -> None:
        size = self._open[level]
        self._open[level] = 0
        self.sizes[level].add(size, self.groups.position)

    def _alike(self, token: Any) -> None:
        """Raise `TokenError` unless tiles of a tuple whose ragged sizes have one symbol are of one size."""
        for paths in self._shared:
            sizes = [_tile_size(token, path) for path in paths]
            if len(set(sizes)) > 1:
                text = f"sizes of the tiles in a tuple are {' and '.join(map(str, sizes))}, and one by its type"
                raise TokenError(text, self.position)

    def values(self) -> dict[sympy.Symbol, int]:
        """Return the values, in elements, of the symbols of all dimensions: of a regular dimension that of its size, of
        a ragged one those of the sum of its sizes and of the largest. A size that is an expression, not a symbol alone,
        gives none."""
        found: dict[sympy.Symbol, int] = {}
        for sizes in self.sizes:
            sizes.bind(found)
        self._elements.bind(found)
        return found


def _shared(data: DataType) -> list[list[tuple[int, ...]]]:
    """The places of ragged sizes of tiles that occur several times in a tuple, together those of one symbol."""
    found: dict[sympy.Symbol, list[tuple[int, ...]]] = {}

    def visit(one: DataType, path: tuple[int, ...]) -> None:
        if isinstance(one, TupleType):
            for number, part in enumerate(one.parts):
                visit(part, (*path, number))
        elif isinstance(one, TileType):
            for axis, size in enumerate(one.shape):
                if size.ragged:
                    found.setdefault(size.size, []).append((*path, axis))

    visit(data, ())
    return [paths for paths in found.values() if len(paths) > 1]


def _tile_size(token: Any, path: tuple[int, ...]) -> int:
    for number in path[:-1]:
        token = token[number]
    size: int = token.shape[path[-1]]
    return size


def check_token(measured: Measured, stream: Stream, token: Token) -> None:
    """Give the next token of `stream` to `measured`, which follows that stream. Raises `StreamFault`, with the node and
    the line that put the token, if it does not fit.
    """
    try:
        measured.see(token)
    except TokenError as error:
        node = stream.source
        if node is None:
            raise StreamFault(f"input {stream.name}", stream.where, stream.name, error.text, error.position) from error
        raise StreamFault(node.name, node.where, f"output {stream.port}", error.text, error.position) from error


def checked_values(
    program: Program, measured: Mapping[Stream, Measured], flops: Mapping[OperatorNode, int]
) -> dict[sympy.Symbol, int]:
    """Return the values of a program's symbols in a run: elements for symbols of sizes, operations for those of
    `flops_symbol`.

    measured: what was counted of each stream. flops: the operations of each operator in the run. Raises `StreamFault`
    if the run had another size than a shape says: a shape that was assumed wrongly, or two ragged dimensions of one
    name with different sums."""
    found: dict[sympy.Symbol, int] = {}
    for one in measured.values():
        for known, value in one.values().items():
            # Where streams share a symbol, its values agree, or the check below finds one that does not.
            found[known] = max(value, found.get(known, 0))
    for node, count in flops.items():
        found[flops_symbol(node)] = count
    values = {**program.symbols.defined, **found}
    for stream, of_stream in measured.items():
        for level, (size, seen) in enumerate(zip(reversed(stream.type.shape), of_stream.sizes, strict=True)):
            expression = size.total if size.ragged else size.size
            sizes = {seen.total} if size.ragged else seen.values
            if expression is None or not expression.free_symbols:
                continue
            expected = replaced(expression, values)
            if expected.is_Integer and sizes and sizes != {int(expected)}:
                what = "sum to" if size.ragged else "are"
                text = f"the sizes of dimension {level} {what} {sorted(sizes)}, and {text_of(expression)} is {expected}"
                name, where = (stream.source or stream).name, (stream.source or stream).where
                raise StreamFault(name, where, f"output {stream.port}", text, None)
    return found


def flops_symbol(node: OperatorNode) -> sympy.Symbol:
    """Return the symbol that stands for the number of operations of a node, if only a run can count them."""
    return sympy.Symbol(f"flops of {node.name}", integer=True, nonnegative=True)
