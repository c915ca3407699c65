"""What FlatMap makes streams of elements with (STeP, section 3.2.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .functions import Affine, Base, InputRefused, index_in, tiles_in
from .shapes import DataType, Dimension, Expression, Symbols, TileType, TupleType, dimension, tile
from .tokens import Tile


class Expansion(Base, ABC):
    """A function that makes a stream of each element, for `FlatMap`. rank: the rank of that stream."""

    rank: int = 0

    @abstractmethod
    def type(self, element: DataType, symbols: Symbols) -> tuple[tuple[Dimension | None, ...], DataType]:
        """Return the shape of the stream that one element becomes (`rank + 1` dimensions, the outermost first, None
        where data decide the size), and the type of its elements. element: the type of the element. symbols: makes
        symbols for new sizes. Raises `InputRefused` for an element that does not fit, and for parameters out of
        range."""

    @abstractmethod
    def __call__(self, element: Any) -> list[Any]:
        """Return what an element becomes: a list of tensors, each of them lists, `rank` deep, of elements. Raises
        `ValueError` for an element that does not fit.
        """


@dataclass(frozen=True)
class RetileStreamify(Expansion):
    """Split a tile into tiles of `size` rows or columns each, a stream of rank 0; the last one may be smaller.

    size: at least 1. along: 0 for rows, 1 for columns. drop_padding: leave out parts, with a size of 1: of a tuple of a
    tile and a [N,1] tile of flags, the parts whose flag is set; of a tile alone, those that are not filled."""

    size: int
    along: int = 0
    drop_padding: bool = False

    def type(self, element: DataType, symbols: Symbols) -> tuple[tuple[Dimension | None, ...], DataType]:
        if self.size < 1 or self.along not in (0, 1):
            raise InputRefused(f"{self.name}: parts of {self.size} along {self.along}; the least is 1, along 0 or 1")
        masked = self.drop_padding and isinstance(element, TupleType)
        one, *_ = tiles_in(self.name, element.parts if isinstance(element, TupleType) else [element], 1 + masked)
        whole, other = one.shape[self.along], one.shape[1 - self.along]
        if whole.kind.dynamic or whole.kind.ragged:
            if self.size != 1:
                raise InputRefused(f"{self.name} splits {one} in parts of {self.size}; a dynamic size takes parts of 1")
        elif int(whole.size) % self.size:
            raise InputRefused(f"{self.name}: {whole} of {one} is not divisible by {self.size}")
        if self.drop_padding and self.size != 1:
            raise InputRefused(f"{self.name} drops padding of parts of 1, not {self.size}")
        part = dimension(self.size)
        made = TileType(other, part, one.dtype) if self.along else TileType(part, other, one.dtype)
        if self.drop_padding:
            return (None,), made
        count = whole if self.size == 1 else dimension(int(whole.size) // self.size)
        return (count,), made

    def __call__(self, element: Any) -> list[Any]:
        one, mask = element if isinstance(element, tuple) else (element, None)
        whole = one.shape[self.along]
        kept = range(0, whole, self.size)
        if self.drop_padding:
            if mask is not None:
                if mask.data is None or mask.rows * mask.columns != whole:
                    raise ValueError(f"{whole} parts, and flags of {mask.rows}x{mask.columns}")
                kept = [at for at in kept if not mask.data.reshape(-1)[at]]  # type: ignore[assignment]
            elif one.filled is not None:
                kept = range(one.filled)
        return [self._part(one, at) for at in kept]

    def _part(self, one: Tile, at: int) -> Tile:
        size = min(self.size, one.shape[self.along] - at)
        if self.along:
            return Tile(one.rows, size, one.dtype, None if one.data is None else one.data[:, at : at + size])
        return Tile(size, one.columns, one.dtype, None if one.data is None else one.data[at : at + size])


@dataclass(frozen=True)
class Addresses(Expansion):
    """Make `group` addresses of an index k: k*group + base and those behind it, [1,1] tiles of i32, as a matrix of one
    row. They are, for example, the tiles of the weights of expert k. rank: 1."""

    group: int
    base: int = 0
    rank: int = 1

    def type(self, element: DataType, symbols: Symbols) -> tuple[tuple[Dimension | None, ...], DataType]:
        if self.group < 1 or self.rank != 1:
            raise InputRefused(
                f"{self.name} makes groups of {self.group} of rank {self.rank}; the least is 1, of rank 1"
            )
        Affine(1).type(element)
        return (dimension(1), dimension(self.group)), tile(1, 1, "i32")

    def __call__(self, element: Any) -> list[Any]:
        first = index_in(element) * self.group + self.base
        return [[Tile.of(first + k, "i32") for k in range(self.group)]]


@dataclass(frozen=True)
class WhereTrue(Expansion):
    """Filter: of tuples of an element and a flag, a [1,1] tile, keep the elements whose flag is set; a stream of rank
    0. negate: keep those whose flag is not set."""

    negate: bool = False

    def type(self, element: DataType, symbols: Symbols) -> tuple[tuple[Dimension | None, ...], DataType]:
        if not isinstance(element, TupleType) or len(element.parts) != 2 or str(element.parts[1]) != "[1,1]":
            raise InputRefused(f"{self.name} takes a tuple of an element and a flag, not {element}")
        return (None,), element.parts[0]

    def __call__(self, element: Any) -> list[Any]:
        one, flag = element
        return [one] if bool(flag.scalar) != self.negate else []


@dataclass(frozen=True)
class DefinedExpansion(Expansion):
    """An expansion that the user defines.

    label: its name in messages. sizes: of the stream that it makes of an element, the outermost first, None where data
    decide. result: takes the type of an element, returns the type of the elements of that stream. apply: takes an
    element, returns the stream as nested lists. cpp: `apply` as a C++ expression for `rsn hls`, which is called with
    the element and the stream (docs/dynamic-streams.md); "" for none."""

    label: str
    sizes: tuple[int | Expression | None, ...]
    result: Callable[[DataType], DataType]
    apply: Callable[[Any], list[Any]]
    cpp: str = ""

    @property
    def name(self) -> str:
        """The name in messages: `label`."""
        return self.label

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Rank of the stream that it makes of an element: one less than there are sizes."""
        return len(self.sizes) - 1

    def type(self, element: DataType, symbols: Symbols) -> tuple[tuple[Dimension | None, ...], DataType]:
        if not self.sizes:
            raise InputRefused(f"{self.name} makes a stream without sizes; the least is one")
        return tuple(None if one is None else dimension(one) for one in self.sizes), self.result(element)

    def __call__(self, element: Any) -> list[Any]:
        return self.apply(element)
