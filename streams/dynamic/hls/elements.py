"""What streams of dynamic programs carry, as types of C++: tiles with bounds, selectors, buffers, tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import sympy

from ....base.element_types import BITS
from ...hls.kinds import CPP
from ...words import PORT_BITS, divisor
from ..graph import Program
from ..shapes import BufferType, DataType, Dimension, Expression, SelectorType, TileType, TupleType, symbol


class Unbounded(Exception):
    """A part of a program has no C++, such as a size without a bound. The message names no operator and no line;
    whoever catches it adds them."""


_RISING = (sympy.Rational, sympy.Symbol, sympy.Add, sympy.Mul, sympy.Max, sympy.Min, sympy.ceiling, sympy.Piecewise)
"""What never falls where a symbol grows, as long as no symbol has a factor below 0."""


def most(expression: Expression, program: Program) -> int | None:
    """Return the largest value that a size may have in a run, in elements; None if nothing bounds it, or if the
    expression may fall while one of its symbols grows.

    expression: the size. program: whose bounds (`Program.symbol`) limit the symbols."""
    for one in sympy.preorder_traversal(expression):
        if isinstance(one, sympy.Expr) and not isinstance(one, _RISING):
            return None
        if isinstance(one, sympy.Mul) and one.could_extract_minus_sign():
            return None
    values = {one: _most_of_symbol(one, program) for one in expression.free_symbols}
    if None in values.values():
        return None
    return int(sympy.floor(expression.xreplace({one: sympy.Integer(value) for one, value in values.items()})))


def _most_of_symbol(one: sympy.Symbol, program: Program) -> int | None:
    bound = program.bounds.get(one)
    if bound is None and one.name.startswith("max "):
        bound = program.bounds.get(symbol(one.name.removeprefix("max ")))
    if bound is not None:
        return bound
    known = program.symbols.defined.get(one, program.symbols.limits.get(one))
    return None if known is None else most(known, program)


def size_of(one: Dimension, program: Program) -> int:
    """Return the largest size of a dimension, in elements; at least 1. program: whose bounds limit the symbols. Raises
    `Unbounded` if the size has no bound."""
    found = most(one.largest, program)
    if found is None:
        raise Unbounded(
            f"size {one} has no bound; give the symbols that it depends on one: program.symbol(name, at_most=..)"
        )
    return max(found, 1)


@dataclass(frozen=True)
class ElementWords:
    """The words of one tile or buffer. cpp: the C++ type of a word. count: the words of the largest such tile or
    buffer."""

    cpp: str
    count: int


@dataclass(frozen=True)
class CppElement:
    """An element of a stream in C++.

    cpp: its C++ type. sizes: the C++ type of the sizes of its tiles, which the head of a token has. data: its type in
    the program. words: of each tile and buffer in it, in order; () for a selector. parts: the elements of a tuple, or
    the tile of a buffer. shape: rows and columns of the largest tile; (0, 0) if it is no tile. packed: the elements in
    a word of a tile; 0 if it is no tile."""

    cpp: str
    sizes: str
    data: DataType
    words: tuple[ElementWords, ...] = ()
    parts: tuple[CppElement, ...] = ()
    shape: tuple[int, int] = (0, 0)
    packed: int = 0

    @cached_property
    def head(self) -> str:
        """The C++ type of the head of a token: data with the sizes of its tiles, a stop, or the end."""
        return f"rsn::step::Head<{self.sizes}>"

    def braces(self, names: Iterator[Sequence[str]]) -> str:
        """Return the C++ initialiser, in braces, of the FIFOs of words of several streams of this element: for a tile
        or buffer as `fan` writes it, for a tuple as nested pairs of its parts, `{}` for a selector. names: for each
        item of `words` in turn, the names of that FIFO in all streams. Raises `StopIteration` if there are too few
        items."""
        if isinstance(self.data, TupleType):
            inner = "{}"
            for text in reversed([part.braces(names) for part in self.parts]):
                inner = f"{{{text}, {inner}}}"
            return inner
        return fan(next(names)) if self.words else "{}"


def fan(names: Sequence[str]) -> str:
    """Return the C++ initialiser of FIFOs side by side as nested pairs, such as `{a, {b, {}}}`. names: of the FIFOs, in
    order."""
    inner = "{}"
    for name in reversed(names):
        inner = f"{{{name}, {inner}}}"
    return inner


def cpp_element(data: DataType, program: Program) -> CppElement:
    """Return the elements of type `data` in C++. program: whose bounds give the largest sizes. Raises `Unbounded` for a
    size without a bound, and for buffers of anything but tiles."""
    match data:
        case TileType():
            rows, columns = (size_of(one, program) for one in data.shape)
            # The parts of a row of several lengths begin anywhere, so that words of them would not.
            known = data.columns.size.is_Integer and not data.columns.ragged
            packed = divisor(columns, PORT_BITS // max(32, BITS[data.dtype])) if known else 1
            made = f"{CPP[data.dtype]}, {rows}, {columns}, {packed}"
            words = ElementWords(f"hls::vector<{CPP[data.dtype]}, {packed}>", rows * columns // packed)
            sizes = "rsn::step::TileSizes"
            return CppElement(f"rsn::step::Tile<{made}>", sizes, data, (words,), (), (rows, columns), packed)
        case SelectorType(choices):
            cpp = f"rsn::step::Selector<{choices}>"
            return CppElement(cpp, cpp, data)
        case BufferType(element, shape):
            tile = cpp_element(element, program)
            if not isinstance(element, TileType):
                raise Unbounded(f"a buffer of {element}; only buffers of tiles have C++")
            count = prod(size_of(one, program) for one in shape)
            cpp = f"rsn::step::Buffer<{tile.cpp}, {len(shape)}, {count}>"
            held = ElementWords(tile.words[0].cpp, tile.words[0].count * count)
            return CppElement(cpp, f"rsn::step::BufferSizes<{len(shape)}>", data, (held,), (tile,))
        case TupleType(parts):
            made_parts = tuple(cpp_element(part, program) for part in parts)
            sizes = "rsn::step::NoSizes"
            for part in reversed(made_parts):
                sizes = f"rsn::step::PairSizes<{part.sizes}, {sizes}>"
            cpp = f"rsn::step::Tuple<{', '.join(part.cpp for part in made_parts)}>"
            return CppElement(cpp, sizes, data, tuple(w for part in made_parts for w in part.words), made_parts)
