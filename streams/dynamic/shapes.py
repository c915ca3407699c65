"""Shapes of dynamic streams: dimensions that are known, that are known at run time, or that have many values.

A dimension is regular or ragged, and static or dynamic (STeP v2, section 3.1; v1 has no static ragged ones). A regular
one has one value, an expression over symbols; a ragged one has a value for each group, and one symbol stands for all of
them. What takes a looser kind also takes a stricter one. An expression over a ragged dimension is a new ragged
dimension.

Sizes of whole streams need more than the symbol of a ragged dimension: the sum of its values over the stream (`total`)
and its largest value (`largest`). For a ragged R that comes from outside, these are the symbols `ΣR` and `max R`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import sympy
from sympy.printing.str import StrPrinter

from ...base.element_types import BITS
from .errors import StepError

Expression: TypeAlias = sympy.Expr


def symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a size that is known at run time: an integer from 0 on. The same name gives the same
    symbol.
    """
    return sympy.Symbol(name, integer=True, nonnegative=True)


def sum_of(name: str) -> sympy.Symbol:
    """Return the symbol of the sum of all sizes of a ragged dimension over the stream. name: of the dimension's
    symbol."""
    return symbol(f"Σ{name}")


def largest_of(name: str) -> sympy.Symbol:
    """Return the symbol of the largest size of a ragged dimension. name: of the dimension's symbol."""
    return symbol(f"max {name}")


class _ShapePrinter(StrPrinter):  # type: ignore[misc]
    def _print_Piecewise(self, expr: Any) -> str:  # noqa: N802 - the name that sympy calls
        (value, condition), *rest = expr.args
        if len(rest) != 1 or rest[0][1] != True:  # noqa: E712 - a sympy truth
            return str(super()._print(expr))
        return f"({self._print(value)} if {self._print(condition).replace(' ', '')} else {self._print(rest[0][0])})"


def text_of(expression: Any) -> str:
    """Return an expression of sizes as text; a choice between two values is written as `1 if B>0 else 0`."""
    return str(_ShapePrinter().doprint(expression))


@dataclass(frozen=True)
class DimensionKind:
    """A kind of dimension: regular or ragged, static or dynamic (STeP v2, section 3.1)."""

    ragged: bool
    dynamic: bool

    def takes(self, other: DimensionKind) -> bool:
        """Return whether an operator that takes dimensions of this kind also takes those of another kind: ragged
        includes regular, and dynamic includes static."""
        return other.ragged <= self.ragged and other.dynamic <= self.dynamic


STATIC = DimensionKind(ragged=False, dynamic=False)
REGULAR = DimensionKind(ragged=False, dynamic=True)
ANY = DimensionKind(ragged=True, dynamic=True)


@dataclass(frozen=True)
class Dimension:
    """A dimension of a stream, a buffer or a tile.

    size: its size in elements (of a tile: rows or columns); of a ragged dimension, a symbol of its own. ragged: whether
    its size differs from group to group. dynamic: whether data decide its size. total: the sum of all its sizes over
    the stream; None if it is regular. largest: its largest size."""

    size: Expression
    ragged: bool
    dynamic: bool
    total: Expression | None
    largest: Expression

    @property
    def kind(self) -> DimensionKind:
        """Whether it is ragged, and whether it is dynamic."""
        return DimensionKind(self.ragged, self.dynamic)

    def same(self, other: Dimension) -> bool:
        """Return whether this dimension and `other` have the same size for certain. Two ragged dimensions have the same
        sizes if their symbols are the same.
        """
        if self.ragged != other.ragged:
            return False
        if self.size == other.size:
            return True
        alike = self.size.free_symbols == other.size.free_symbols
        return bool(alike and sympy.simplify(self.size - other.size) == 0)

    def __str__(self) -> str:
        return text_of(self.size) + ("~" if self.ragged else "")


Size: TypeAlias = "int | str | sympy.Expr | Dimension"


def dimension(size: Size) -> Dimension:
    """Return a regular dimension. size: a whole number from 0 on (static); the name of a symbol, or an expression (both
    dynamic). A `Dimension` is returned as it is. Raises `StepError` for another number.
    """
    if isinstance(size, Dimension):
        return size
    expression = symbol(size) if isinstance(size, str) else sympy.sympify(size)
    if expression.is_number and not (expression.is_Integer and expression >= 0):
        raise StepError("dimension", f"{size} is no size; it is an integer from 0 on, a symbol or an expression")
    return Dimension(expression, False, not expression.is_Integer, None, expression)


def ragged(name: str, static: bool = False, total: Any = None, largest: Any = None) -> Dimension:
    """Return a ragged dimension. name: of its symbol. static: whether its sizes do not depend on data. total: the sum
    of its sizes over the stream. largest: its largest size. Both are numbers or expressions; None for symbols of their
    own."""
    most = largest_of(name) if largest is None else sympy.sympify(largest)
    return Dimension(symbol(name), True, not static, sum_of(name) if total is None else sympy.sympify(total), most)


def replaced(expression: Expression, values: Mapping[sympy.Symbol, Any]) -> Expression:
    """Return an expression with the symbols in `values` replaced by values or other expressions, and the symbols of
    these likewise, until none of them is left. Raises `StepError` if a value depends on its own symbol."""
    for _ in range(len(values) + 1):
        known = {one: sympy.sympify(values[one]) for one in expression.free_symbols if one in values}
        if not known:
            return expression
        expression = expression.xreplace(known)
    raise StepError("symbol", f"the values of {', '.join(sorted(map(str, known)))} depend on themselves")


def positive(size: Expression) -> Expression:
    """Return the size of the new dimension of `Promote`: 1 if `size` is more than 0, else 0."""
    return sympy.Piecewise((sympy.Integer(1), size > 0), (sympy.Integer(0), True))


def volume(dimensions: Iterable[Dimension]) -> Expression:
    """Return the number of elements that dimensions have, given the outermost first. A ragged dimension together with
    all dimensions before it has as many as the sum of its sizes (`Dimension.total`)."""
    product: Expression = sympy.Integer(1)
    for one in dimensions:
        product = one.total if one.total is not None else product * one.size
    return product


def largest_volume(dimensions: Iterable[Dimension]) -> Expression:
    """Return the most elements that dimensions may have: the product of their largest values."""
    return sympy.prod([one.largest for one in dimensions], start=sympy.Integer(1))


# Data types ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileType:
    """The type of tiles. rows, columns: their sizes; either may be dynamic. dtype: the element type. Raises `StepError`
    for an unknown element type."""

    rows: Dimension
    columns: Dimension
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.dtype not in BITS:
            raise StepError("tile", f"{self.dtype} is no type of elements; these are {', '.join(BITS)}")

    @property
    def shape(self) -> tuple[Dimension, Dimension]:
        """(rows, columns)."""
        return self.rows, self.columns

    @property
    def static(self) -> bool:
        """Whether both sizes are known before the run: type S of the papers."""
        return all(STATIC.takes(one.kind) for one in self.shape)

    def __str__(self) -> str:
        return f"[{self.rows},{self.columns}]"


@dataclass(frozen=True)
class SelectorType:
    """The type of selectors. choices: how many streams there are to choose from. hot: how many of them each selector
    chooses; None if that varies. Raises `StepError` for less than one choice, and for more chosen streams than there
    are."""

    choices: int
    hot: int | None = None

    def __post_init__(self) -> None:
        if self.choices < 1 or (self.hot is not None and not 0 <= self.hot <= self.choices):
            raise StepError("SelectorType", f"choose {self.hot} of {self.choices} streams")

    def __str__(self) -> str:
        return "Sel"


@dataclass(frozen=True)
class BufferType:
    """The type of references to buffers. element: the type of their elements. shape: of a buffer, the outermost
    dimension first."""

    element: DataType
    shape: tuple[Dimension, ...]

    @property
    def static(self) -> bool:
        """Whether all sizes are known before the run, so that the buffer may be read in any affine order."""
        return all(STATIC.takes(one.kind) for one in self.shape)

    def __str__(self) -> str:
        return "Buf"


@dataclass(frozen=True)
class TupleType:
    """The type of tuples. parts: types of their parts, in order."""

    parts: tuple[DataType, ...]

    def __str__(self) -> str:
        return "Tup"


DataType: TypeAlias = "TileType | SelectorType | BufferType | TupleType"


def tile(rows: Size, columns: Size, dtype: str = "bf16") -> TileType:
    """Return the type of tiles of rows x columns elements of the type `dtype`. Raises `StepError` for an unknown type
    of elements, and as `dimension`.
    """
    return TileType(dimension(rows), dimension(columns), dtype)


ADDRESS = tile(1, 1, "i32")
FLAG = tile(1, 1, "boolean")


def is_address(data: DataType) -> bool:
    """Return whether a type is that of addresses: [1,1] tiles of integers."""
    return isinstance(data, TileType) and data.static and str(data) == "[1,1]" and data.dtype[0] in "iu"


def has_buffers(data: DataType) -> bool:
    """Return whether a type is of references to buffers, or a tuple that has some."""
    return isinstance(data, BufferType) or (isinstance(data, TupleType) and any(map(has_buffers, data.parts)))


def same_type(a: DataType, b: DataType) -> bool:
    """Return whether two types of elements are the same, as far as operators need it: their dimensions need only be
    `alike`, and selectors need only have equally many choices."""
    match a, b:
        case TileType(), TileType():
            return a.dtype == b.dtype and all(alike(x, y) for x, y in zip(a.shape, b.shape, strict=True))
        case SelectorType(), SelectorType():
            return a.choices == b.choices
        case BufferType(), BufferType():
            alike_shapes = len(a.shape) == len(b.shape) and all(map(alike, a.shape, b.shape))
            return alike_shapes and same_type(a.element, b.element)
        case TupleType(), TupleType():
            return len(a.parts) == len(b.parts) and all(map(same_type, a.parts, b.parts))
    return False


def alike(a: Dimension, b: Dimension) -> bool:
    """Return whether dimensions of two streams that merge fit together: two static ones must be equal; two dynamic
    ones, or two ragged ones, may have any sizes."""
    return a.same(b) or (a.dynamic and b.dynamic) or (a.ragged and b.ragged)


def dimensions_of(data: DataType) -> tuple[Dimension, ...]:
    """Return all dimensions in a type of elements: of a tile rows and columns, of a buffer its own before those of its
    elements, of a tuple those of each part in order.
    """
    match data:
        case TileType():
            return data.shape
        case BufferType():
            return (*data.shape, *dimensions_of(data.element))
        case TupleType():
            return tuple(one for part in data.parts for one in dimensions_of(part))
    return ()


def mapped(data: DataType, change: Callable[[Dimension], Dimension]) -> DataType:
    """Return a type of elements with each dimension replaced. change: takes an old dimension, returns the new one; it
    is called in the order of `dimensions_of` for tiles and tuples."""
    match data:
        case TileType():
            return TileType(change(data.rows), change(data.columns), data.dtype)
        case BufferType():
            return BufferType(mapped(data.element, change), tuple(map(change, data.shape)))
        case TupleType():
            return TupleType(tuple(mapped(part, change) for part in data.parts))
    return data


def bytes_of(data: DataType) -> Expression:
    """Return the bytes of the largest element of a type: |type| in the papers. Selectors and references to buffers take
    none.
    """
    match data:
        case TileType():
            bits = largest_volume(data.shape) * BITS[data.dtype]
            return sympy.ceiling(bits / 8) if bits.is_Integer else bits / 8
        case TupleType():
            return sum((bytes_of(part) for part in data.parts), start=sympy.Integer(0))
    return sympy.Integer(0)


def as_on_chip(data: DataType, dtype: str | None) -> DataType:
    """Return a type of elements with another element type of its tiles; tiles of Booleans stay. dtype: that element
    type; None changes nothing. Raises `StepError` for an unknown one."""
    match data:
        case TileType() if dtype is not None and data.dtype != "boolean":
            return replace(data, dtype=dtype)
        case BufferType():
            return replace(data, element=as_on_chip(data.element, dtype))
        case TupleType():
            return TupleType(tuple(as_on_chip(part, dtype) for part in data.parts))
    return data


# Streams ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamType:
    """The type of a stream. shape: its dimensions, the outermost first, one more than its rank. data: the type of its
    elements."""

    shape: tuple[Dimension, ...]
    data: DataType

    @classmethod
    def of(cls, shape: Sequence[Size], data: DataType) -> StreamType:
        """Return the type of a stream. shape: the outermost size first; a size may be a number, the name of a symbol,
        an expression or a dimension. data: the type of the elements. Raises `StepError` as `dimension`."""
        return cls(tuple(map(dimension, shape)), data)

    @property
    def rank(self) -> int:
        """The rank: the level of the highest stop, one less than there are dimensions."""
        return len(self.shape) - 1

    def count(self, level: int = 0) -> Expression:
        """Return how many tensors of the rank `level`, 0 to that of the stream, the whole stream holds; of rank 0: how
        many elements."""
        return volume(self.shape[: len(self.shape) - level])

    def inner(self, count: int) -> tuple[Dimension, ...]:
        """Return the `count` innermost dimensions, 0 to all, outermost first."""
        return self.shape[len(self.shape) - count :]

    def outer(self, count: int) -> tuple[Dimension, ...]:
        """Return all dimensions but the `count` innermost ones, 0 to all, outermost first."""
        return self.shape[: len(self.shape) - count]

    def volume(self, dimensions: Sequence[Dimension]) -> Expression | None:
        """Return the sum, over all elements of the stream, of the product of some dimensions of an element, such as
        rows times columns. None if more than one of them is ragged, since the sum is not known then."""
        varying = [one for one in dimensions if one.ragged]
        if len(varying) > 1:
            return None
        product = varying[0].total if varying else self.count()
        assert product is not None
        return product * sympy.prod([one.size for one in dimensions if not one.ragged], start=sympy.Integer(1))

    def __str__(self) -> str:
        return f"[{','.join(map(str, self.shape))}] {self.data}"


class Symbols:
    """Makes new symbols of sizes for the operators of a program.

    numbers: the numbers that names of new symbols get, in order; None for 0, 1 and so on. Attributes: defined: for new
    symbols that equal an expression of others, that expression. limits: for new symbols with a known bound, that bound;
    for a ragged dimension, by the symbol of its largest size."""

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        self._numbers = count() if numbers is None else numbers
        self._made: set[str] = set()
        self._known: dict[Hashable, Dimension] = {}
        self._given: set[str] = set()
        self.defined: dict[sympy.Symbol, Expression] = {}
        self.limits: dict[sympy.Symbol, Expression] = {}

    @property
    def given(self) -> frozenset[str]:
        """The names that the program's author uses."""
        return frozenset(self._given)

    def give(self, name: str) -> None:
        """Note a name that the program's author uses, so that no new symbol gets it. Raises `StepError` if an operator
        has already made a symbol of this name."""
        if name in self._made:
            raise StepError("symbol", f"{name} is the name of a symbol that an operator made; choose another one")
        self._given.add(name)

    def _name(self, letter: str, suffix: str, number: int | None) -> str:
        name = f"{letter}{self.number() if number is None else number}{suffix}"
        while name in self._given:
            name += "'"
        self._made.add(name)
        return name

    def number(self) -> int:
        """Return the next number for names of symbols. Symbols that one operator makes together share a number."""
        return next(self._numbers)

    def regular(
        self, letter: str, suffix: str = "", number: int | None = None, value: Any = None, at_most: Any = None
    ) -> Dimension:
        """Return a regular dimension whose size data decide.

        letter, number, suffix: its symbol is called letter + number + suffix. number: None for the next one; symbols
        that one operator makes together share a number. value: the expression that the size equals; a symbol with the
        same value is returned again. None if it is not known. at_most: an expression that bounds the size; None if it
        is not known."""
        if value is not None:
            known = next((one for one, other in self.defined.items() if other == value), None)
            if known is not None:
                return dimension(known)
        made = dimension(self._name(letter, suffix, number))
        if value is not None:
            self.defined[made.size] = sympy.sympify(value)
        if at_most is not None:
            self.limits[made.size] = at_most
        return made

    def same_again(self, key: Hashable, make: Callable[[], Dimension]) -> Dimension:
        """Return the dimension that was made for a key; the first call for the key makes it with `make`. So an operator
        with equal inputs gets equal dimensions."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def ragged(
        self, letter: str, suffix: str = "", number: int | None = None, at_most: Any = None, **known: Any
    ) -> Dimension:
        """Return a new ragged dimension. letter, suffix, number: of the name of its symbol, as for `regular`. at_most:
        an expression that bounds its largest size; None if it is not known. known: named arguments for the function
        `ragged`."""
        name = self._name(letter, suffix, number)
        if at_most is not None:
            self.limits[largest_of(name)] = at_most
        return ragged(name, **known)

    def again(self, data: DataType, times: Expression | None) -> DataType:
        """Return the type of elements that are repeated. A ragged dimension gets the sum of its sizes multiplied.
        times: how often each element comes; None if data decide that, and then the sum and the largest size of ragged
        dimensions become new symbols."""
        return mapped(data, lambda one: self.again_one(one, times))

    def again_one(self, one: Dimension, times: Expression | None) -> Dimension:
        """Return one dimension of a repeated element. times: as for `again`."""
        if not one.ragged or times == 1:
            return one
        if times is None:
            name = f"{one.size}.{self.number()}"
            self.limits[largest_of(name)] = one.largest
            return replace(one, total=sum_of(name), largest=largest_of(name))
        return replace(one, total=one.total * times)

    def merged(self, several: Sequence[DataType], counts: Sequence[Expression], letter: str = "M") -> DataType:
        """Return the type of the elements of merged streams. several: the types of the elements of each stream, equal
        but for dimensions; dimensions that differ become a new ragged one. counts: the number of elements of each
        stream. letter: the first letter of the names of new symbols."""
        columns = zip(*map(dimensions_of, several), strict=True)
        made = iter([self.merged_one(column, counts, letter) for column in columns])
        return mapped(several[0], lambda _: next(made))

    def merged_one(self, several: Sequence[Dimension], counts: Sequence[Expression], letter: str = "M") -> Dimension:
        """Return one dimension of the elements of merged streams: the same as in all of them, or, where they differ, a
        new ragged one whose sum is that of all. several: this dimension in each stream. counts: the number of elements
        of each stream. letter: the first letter of the name of a new symbol."""
        if all(one.same(several[0]) and not one.ragged for one in several):
            return several[0]
        totals = [one.total if one.total is not None else one.size * n for one, n in zip(several, counts, strict=True)]
        largest = [one.largest for one in several]
        # Of symbols none is known to be larger than another. sympy would ask for each pair, which takes long.
        most = sympy.Max(*largest, evaluate=not all(one.is_Symbol for one in largest))
        return self.ragged(letter, total=sympy.Add(*totals), largest=most)
