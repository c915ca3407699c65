"""What a run checks of every stream: its tokens against its type. From the same counts come the values of symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from .errors import StreamFault, TokenError
from .graph import Node, Program, Stream
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


@dataclass
class Seen:
    """The sizes that a dimension had: their sum and the largest one; `only` if there was just one."""

    total: int = 0
    largest: int = 0
    values: set[int] = field(default_factory=set)

    def add(self, size: int) -> None:
        """One more size."""
        self.total += size
        self.largest = max(self.largest, size)
        if len(self.values) < 2:
            self.values.add(size)


class Measured:
    """Follows a stream: raises `TokenError` where it departs from its type, and counts sizes.

    bounds: of symbols. elements: so far. sizes: of each dimension of the stream, the innermost first. data: of each
    dimension in the elements' type, in the order of the type.
    """

    def __init__(self, stream: StreamType, bounds: Mapping[sympy.Symbol, int]) -> None:
        self.type = stream
        self.groups = Groups(stream.rank)
        self.elements = 0
        self.sizes = [Seen() for _ in stream.shape]
        self.data: dict[tuple[int, ...], Seen] = {}
        self._open = [0] * len(stream.shape)
        self._limits = [_Limit(one, bounds) for one in reversed(stream.shape)]
        self._bounds = bounds
        self._data_limits: dict[tuple[int, ...], _Limit] = {}
        self._shared = _shared(stream.data)

    @property
    def position(self) -> int:
        """Of the last token, from 0."""
        return self.groups.position

    def see(self, token: Token) -> None:
        """Take a token into account. Raises `TokenError`."""
        self.groups.see(token)
        if isinstance(token, Stop):
            for level in range(self.groups.lowest, token.level + 1):
                self._end(level - 1)
                self._grow(level)
        elif isinstance(token, Done):
            self._end(self.type.rank)
        else:
            self.elements += 1
            self._grow(0)
            self._element(token, self.type.data, ())
            if self._shared:
                self._alike(token)

    def _grow(self, dimension: int) -> None:
        self._open[dimension] += 1
        self._limits[dimension].at_most(self._open[dimension], f"dimension {dimension}", self.position)

    def _end(self, dimension: int) -> None:
        size = self._open[dimension]
        self._open[dimension] = 0
        self._limits[dimension].exactly(size, f"dimension {dimension}", self.position)
        self.sizes[dimension].add(size)

    def _element(self, token: Any, data: DataType, path: tuple[int, ...]) -> None:
        match data, token:
            case TileType(), Tile():
                for axis, (one, size) in enumerate(zip(data.shape, token.shape, strict=True)):
                    self._size(one, size, (*path, axis), ("rows", "columns")[axis] + " of a tile")
                if data.dtype != token.dtype:
                    raise TokenError(f"a tile of {token.dtype} in a stream of {data.dtype}", self.position)
            case SelectorType(), Selector():
                if any(not 0 <= one < data.choices for one in token.chosen):
                    raise TokenError(f"selector {token} of {data.choices} streams", self.position)
                if data.hot is not None and len(token.chosen) != data.hot:
                    raise TokenError(f"selector {token} in a stream of selectors of {data.hot}", self.position)
            case BufferType(), BufferReference():
                for axis, (one, size) in enumerate(zip(data.shape, token.shape, strict=True)):
                    if axis == 0 or token.shape[0]:
                        self._size(one, size, (*path, axis), f"dimension {len(data.shape) - 1 - axis} of a buffer")
            case TupleType(), tuple() if len(token) == len(data.parts):
                for number, (part, one) in enumerate(zip(data.parts, token, strict=True)):
                    self._element(one, part, (*path, number))
            case _:
                raise TokenError(f"{token} in a stream of {data}", self.position)

    def _alike(self, token: Any) -> None:
        """Raise `TokenError` unless tiles of a tuple whose ragged sizes have one symbol are of one size."""
        for paths in self._shared:
            sizes = [_tile_size(token, path) for path in paths]
            if len(set(sizes)) > 1:
                text = f"sizes of the tiles in a tuple are {' and '.join(map(str, sizes))}, and one by its type"
                raise TokenError(text, self.position)

    def _size(self, one: Dimension, size: int, path: tuple[int, ...], what: str) -> None:
        limit = self._data_limits.get(path)
        if limit is None:
            limit = self._data_limits[path] = _Limit(one, self._bounds)
        limit.at_most(size, what, self.position)
        limit.exactly(size, what, self.position)
        self.data.setdefault(path, Seen()).add(size)

    def values(self) -> dict[sympy.Symbol, int]:
        """The values of the symbols that are a dimension's own: of regular ones their value, of ragged ones the sum and
        the largest one."""
        found: dict[sympy.Symbol, int] = {}
        for one, seen in zip(reversed(self.type.shape), self.sizes, strict=True):
            _bind(found, one, seen)
        for path, seen in self.data.items():
            _bind(found, _at(self.type.data, path), seen)
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


def _at(data: DataType, path: tuple[int, ...]) -> Dimension:
    if isinstance(data, TupleType):
        return _at(data.parts[path[0]], path[1:])
    assert isinstance(data, TileType | BufferType)
    return data.shape[path[0]]


def _bind(found: dict[sympy.Symbol, int], one: Dimension, seen: Seen) -> None:
    if one.ragged:
        for expression, value in ((one.total, seen.total), (one.largest, seen.largest)):
            if isinstance(expression, sympy.Symbol):
                found[expression] = value
    elif isinstance(one.size, sympy.Symbol) and len(seen.values) == 1:
        found[one.size] = next(iter(seen.values))


class _Limit:
    """What a size of a dimension must be: a number, the size seen first, or at most a bound."""

    def __init__(self, one: Dimension, bounds: Mapping[sympy.Symbol, int]) -> None:
        self.known = int(one.size) if one.size.is_Integer else None
        self.regular = not one.ragged
        self.text = str(one)
        self.bound = bounds.get(one.size)

    def at_most(self, size: int, what: str, position: int) -> None:
        if self.bound is not None and size > self.bound:
            raise TokenError(f"{what} is {size} or more, beyond the bound {self.text} <= {self.bound}", position)
        if self.known is not None and size > self.known:
            raise TokenError(f"{what} is {size} or more, and {self.known} by its type or before", position)

    def exactly(self, size: int, what: str, position: int) -> None:
        if self.known is None and self.regular:
            self.known = size
        if self.known is not None and size != self.known:
            raise TokenError(f"{what} is {size}, and {self.known} by its type or before ({self.text})", position)


def check_token(measured: Measured, stream: Stream, token: Token) -> None:
    """Take a token of a stream into account. Raises `StreamFault` with the place of what put it."""
    try:
        measured.see(token)
    except TokenError as error:
        node = stream.source
        if node is None:
            raise StreamFault(f"input {stream.name}", "", stream.name, error.text, error.position) from error
        raise StreamFault(node.name, node.where, f"output {stream.port}", error.text, error.position) from error


def checked_values(
    program: Program, measured: Mapping[Stream, Measured], flops: Mapping[Node, int]
) -> dict[sympy.Symbol, int]:
    """The values of a program's symbols in a run. flops: operations of each operator.

    Raises `StreamFault` if an expression of a shape is not what the run had: a shape that was assumed wrongly, or two
    ragged dimensions of one name and different sums.
    """
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
                name, where = (stream.source.name, stream.source.where) if stream.source else (stream.name, "")
                raise StreamFault(name, where, f"output {stream.port}", text, None)
    return found


def flops_symbol(node: Node) -> sympy.Symbol:
    """The operations of a node whose number is known after a run only."""
    return sympy.Symbol(f"flops of {node.name}", integer=True, nonnegative=True)
