"""Functions that higher-order operators apply to elements (STeP, section 3.2.4, and those of the evaluation).

A `Function` maps elements to an element; an `Update` (`updates`) folds elements into a state (Accum, Scan); an
`Expansion` (`expansions`) makes a stream of each element (FlatMap). Each says what becomes of types, what it computes,
and what it costs. Sizes are computed in every run, values only where tiles have data. Values are computed in the types
of numpy arrays as given: the element type of a tile only counts bytes.

FLOPs: a product of M x K and K x N takes 2*M*K*N; per element, +, -, *, / and a sum along rows take 1, exp 4, SiLU 8.
A cost is given as a factor and dimensions, whose product it is: dimensions of tiles at run time, of types before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from .errors import StepError
from .shapes import (
    DataType,
    Dimension,
    SelectorType,
    TileType,
    dimension,
    is_address,
    tile,
)
from .tokens import Array, Element, Selector, Tile

Cost: TypeAlias = "tuple[int, tuple[Any, ...]]"
"""Factor and sizes: of tiles (int) or of types (Dimension)."""
NONE: Cost = (0, ())


class InputRefused(Exception):
    """An operator or a function does not take its inputs or parameters. The message names no operator and no line;
    whoever catches it adds them (`StepError`)."""


class Base:
    """Base of functions that operators apply: `Function`, `Update` and `Expansion`."""

    @property
    def name(self) -> str:
        """The name that error messages use."""
        return type(self).__name__

    @property
    def matmul(self) -> bool:
        """Whether it multiplies matrices. The operator of such a function holds operands in memory on chip (STeP v2,
        section 4.2)."""
        return False


AnyFunction = TypeVar("AnyFunction", bound=Base)


def instance(operator: str, given: object, kinds: tuple[type[AnyFunction], ...], examples: str) -> AnyFunction:
    """Return the function that an operator is given. operator: the name of the operator, for messages. given: the
    function, or its class if that needs no arguments. kinds: the classes of functions that the operator takes.
    examples: names of some of these, for messages. Raises `StepError` for anything else."""
    if isinstance(given, type) and issubclass(given, Base):
        try:
            made: object = given()
        except TypeError:
            raise StepError(operator, f"{given.__name__} takes arguments: {given.__name__}(..)") from None
        given = made
    if isinstance(given, kinds):
        return given
    what = f"{given.name}, a function for another operator" if isinstance(given, Base) else str(given)[:60]
    raise StepError(operator, f"applies functions such as {examples}, not {what}")


class Function(Base, ABC):
    """A function from elements to an element. One with several operands takes a tuple of them, or an element of each of
    several streams."""

    @abstractmethod
    def type(self, *of: DataType) -> DataType:
        """Return the type of the result. of: the types of the operands. Raises `InputRefused` if the function does not
        take them.
        """

    @abstractmethod
    def __call__(self, *of: Any) -> Element:
        """Return the result. of: the operands, elements of the types that `type` takes. Raises `ValueError` for values
        that do not fit, such as tiles of other sizes.
        """

    def cost(self, *of: Any) -> Cost:
        """Return the operations of one application as a factor and sizes, whose product is their number; (0, ()) for
        none. of: the operands, or their types."""
        return NONE


def tiles_in(name: str, of: Sequence[DataType], count: int) -> list[TileType]:
    """Return the types of the operands of a function, which must be tiles. name: of the function, for the message. of:
    the types. count: how many there must be. Raises `InputRefused` for another number, and for other types than
    tiles."""
    tiles = [one for one in of if isinstance(one, TileType)]
    if len(tiles) != len(of) or len(of) != count:
        raise InputRefused(f"{name} takes {count} tile{'s' * (count > 1)}, not {' and '.join(map(str, of))}")
    return tiles


def same_size(name: str, a: Dimension, b: Dimension, left: TileType, right: TileType) -> None:
    """Raise `InputRefused` unless the sizes `a` and `b` are equal for certain (`Dimension.same`). name: of the
    function; left, right: the tiles of `a` and `b`, for the message.
    """
    if not a.same(b):
        raise InputRefused(f"{name} of {left} and {right}")


@dataclass(frozen=True)
class Matmul(Function):
    """The product of two tiles. transpose_left, transpose_right: whether that tile is transposed first. dtype: the
    element type of the result; None for that of the left tile."""

    transpose_left: bool = False
    transpose_right: bool = False
    dtype: str | None = None

    @property
    def name(self) -> str:
        """The name in messages: matmul."""
        return "matmul"

    @property
    def matmul(self) -> bool:
        """True: it multiplies matrices."""
        return True

    def sizes(self, left: Any, right: Any) -> tuple[Any, Any, Any, Any]:
        """Return the sizes of the product, after the transposes: rows, columns of the left tile, rows of the right
        tile, and columns; integers for tiles, `Dimension`s for types. left, right: two tiles, or two types."""
        rows, inner = reversed(left.shape) if self.transpose_left else left.shape
        other, columns = reversed(right.shape) if self.transpose_right else right.shape
        return rows, inner, other, columns

    def type(self, *of: DataType) -> DataType:
        left, right = tiles_in(self.name, of, 2)
        rows, inner, other, columns = self.sizes(left, right)
        same_size(self.name, inner, other, left, right)
        return TileType(rows, columns, self.dtype or left.dtype)

    def __call__(self, *of: Any) -> Element:
        left, right = of
        rows, inner, other, columns = self.sizes(left, right)
        if inner != other:
            raise ValueError(f"{self.name} of tiles of {left.rows}x{left.columns} and {right.rows}x{right.columns}")
        dtype = self.dtype or left.dtype
        if left.data is None or right.data is None:
            return Tile(rows, columns, dtype)
        a = left.data.T if self.transpose_left else left.data
        b = right.data.T if self.transpose_right else right.data
        return Tile(rows, columns, dtype, a @ b)

    def cost(self, *of: Any) -> Cost:
        rows, inner, _, columns = self.sizes(*of)
        return 2, (rows, inner, columns)


@dataclass(frozen=True)
class Elementwise(Function):
    """An operation on pairs of elements of two tiles [rows, columns]. A tile with one row or one column is repeated to
    the size of the other. symbol: one of + - * /."""

    symbol: str

    @property
    def name(self) -> str:
        """The name in messages: the symbol."""
        return self.symbol

    def _shape(self, left: Any, right: Any) -> tuple[Any, Any]:
        first, second = (a if is_one(b) else b for a, b in zip(left.shape, right.shape, strict=True))
        return first, second

    def type(self, *of: DataType) -> DataType:
        left, right = tiles_in(self.name, of, 2)
        for a, b in zip(left.shape, right.shape, strict=True):
            if not (is_one(a) or is_one(b)):
                same_size(self.name, a, b, left, right)
        return TileType(*self._shape(left, right), left.dtype)

    def __call__(self, *of: Any) -> Any:
        """The result for two tiles. Without any, the function itself: `Add()` is `Add`, as other functions are made."""
        if not of:
            return self
        left, right = of
        rows, columns = self._shape(left, right)
        if any(a != b and 1 not in (a, b) for a, b in zip(left.shape, right.shape, strict=True)):
            raise ValueError(f"{self.name} of tiles of {left.rows}x{left.columns} and {right.rows}x{right.columns}")
        if left.data is None or right.data is None:
            return Tile(rows, columns, left.dtype)
        return Tile(rows, columns, left.dtype, _OPERATIONS[self.symbol](left.data, right.data))

    def cost(self, *of: Any) -> Cost:
        return 1, self._shape(*of)


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}


def is_one(size: Any) -> bool:
    """Return whether a size is known to be 1. size: a `Dimension` or an integer."""
    return bool(size.size == 1 if isinstance(size, Dimension) else size == 1)


Add, Sub, Mul, Div = (Elementwise(symbol) for symbol in "+-*/")


@dataclass(frozen=True)
class Pointwise(Function):
    """A function of each value of a tile; the tile keeps its size. label: its name. apply: makes the array of results,
    of the shape of its argument. flops: operations for each value.
    """

    label: str
    apply: Callable[[Array], Array]
    flops: int

    @property
    def name(self) -> str:
        """The name in messages: `label`."""
        return self.label

    def type(self, *of: DataType) -> DataType:
        return tiles_in(self.name, of, 1)[0]

    def __call__(self, *of: Any) -> Any:
        """The result for a tile. Without one, the function itself, as that of two tiles."""
        if not of:
            return self
        (one,) = of
        assert isinstance(one, Tile)
        return one if one.data is None else replace(one, data=self.apply(one.data))

    def cost(self, *of: Any) -> Cost:
        return self.flops, of[0].shape


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


SiLU = Pointwise("SiLU", _silu, 8)
Exp = Pointwise("exp", np.exp, 4)


@dataclass(frozen=True)
class RowSum(Function):
    """The sum along each row: a tile [rows, columns] becomes a column [rows, 1]."""

    def type(self, *of: DataType) -> DataType:
        (one,) = tiles_in(self.name, of, 1)
        return TileType(one.rows, dimension(1), one.dtype)

    def __call__(self, *of: Any) -> Element:
        (one,) = of
        data = None if one.data is None else one.data.sum(axis=1, keepdims=True)
        return Tile(one.rows, 1, one.dtype, data)

    def cost(self, *of: Any) -> Cost:
        return 1, of[0].shape


@dataclass(frozen=True)
class Affine(Function):
    """Make an address of an index k: a*k + b, a [1,1] tile of i32. The operand is a [1,1] tile of integers, or a
    selector of one stream."""

    a: int
    b: int = 0

    def type(self, *of: DataType) -> DataType:
        if len(of) != 1 or not (is_address(of[0]) or (isinstance(of[0], SelectorType) and of[0].hot in (None, 1))):
            found = " and ".join(map(str, of))
            raise InputRefused(f"{self.name} takes a [1,1] tile of integers or a selector of one, not {found}")
        return tile(1, 1, "i32")

    def __call__(self, *of: Any) -> Element:
        return Tile.of(self.a * index_in(of[0]) + self.b, "i32")


def index_in(element: Element) -> int:
    """Return the integer in an element: that of a [1,1] tile, or the number of the stream that a selector chooses.
    Raises `ValueError` for a selector that does not choose exactly one stream, and for a tile without an integer."""
    if isinstance(element, Selector):
        if len(element.chosen) != 1:
            raise ValueError(f"selector {element} does not choose one")
        return element.chosen[0]
    assert isinstance(element, Tile)
    return element.scalar


def tile_beside_number(name: str, of: Sequence[DataType]) -> TileType:
    """Return the type of the first of two operands, of which the second must be a [1,1] tile of integers. name: of the
    function, for messages. of: the types of the operands. Raises `InputRefused` for other types."""
    if len(of) != 2 or not isinstance(of[0], TileType) or not is_address(of[1]):
        found = " and ".join(map(str, of))
        raise InputRefused(f"{name} takes a tile and a [1,1] tile of integers, not {found}")
    return of[0]


@dataclass(frozen=True)
class SetOffset(Function):
    """Set how many rows of a tile are filled, as of the last tile of a KV cache. Operands: the tile, and a [1,1] tile
    of integers with that number."""

    def type(self, *of: DataType) -> DataType:
        return tile_beside_number(self.name, of)

    def __call__(self, *of: Any) -> Element:
        one, offset = of
        assert isinstance(one, Tile)
        if not 0 <= offset.scalar <= one.rows:
            raise ValueError(f"offset {offset.scalar} in a tile of {one.rows} rows")
        return replace(one, filled=offset.scalar)


@dataclass(frozen=True)
class AppendRow(Function):
    """Write a row behind the filled rows of a tile. Operands: the tile, and a tile of one row. Applying it to a tile
    without a free row raises `ValueError`."""

    def type(self, *of: DataType) -> DataType:
        one, row = tiles_in(self.name, of, 2)
        same_size(self.name, one.columns, row.columns, one, row)
        if not is_one(row.rows):
            raise InputRefused(f"{self.name} appends one row, not {row}")
        return one

    def __call__(self, *of: Any) -> Element:
        one, row = of
        assert isinstance(one, Tile)
        at = one.rows if one.filled is None else one.filled
        if at >= one.rows:
            raise ValueError(f"no row is left in a tile of {one.rows} rows")
        if one.data is None or row.data is None:
            return replace(one, filled=at + 1)
        data = one.data.copy()
        data[at] = row.data[0]
        return replace(one, data=data, filled=at + 1)


@dataclass(frozen=True)
class Defined(Function):
    """A function that the user defines.

    label: its name in messages. result: takes the types of the operands, returns the type of the result. apply: takes
    the operands, returns the result. flops: takes the operands, or their types, and returns the operations as
    `Function.cost`; None for a function that counts none. cpp: `apply` as a C++ expression for `rsn hls`, which is
    called with the operands and the result (docs/dynamic-streams.md); "" for none."""

    label: str
    result: Callable[..., DataType]
    apply: Callable[..., Element]
    flops: Callable[..., Cost] | None = None
    cpp: str = ""

    @property
    def name(self) -> str:
        """The name in messages: `label`."""
        return self.label

    def type(self, *of: DataType) -> DataType:
        return self.result(*of)

    def __call__(self, *of: Any) -> Element:
        return self.apply(*of)

    def cost(self, *of: Any) -> Cost:
        return self.flops(*of) if self.flops else NONE
