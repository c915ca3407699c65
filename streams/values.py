"""Values as the reader knows them: static (known before the run) or data, with the gets that a value comes from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ..base.element_types import BITS, ElementType
from ..base.operators import BINARY
from .datapath import Unwritten
from .layouts import LOCAL, Distribution, constant
from .source import Refusal
from .syntax import nodes as syn
from .syntax.printer import shown

LARGEST = 1 << 64
"""Limit of the magnitude of a static integer."""

ELEMENTS = 1 << 12
"""Limit of the length of a static tuple or set."""


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a static value is a whole number; one that stands for many is used as one."""
    return isinstance(value, int) or (isinstance(value, SymbolicNumber) and value.element is INT)


class Limit(int):
    """A limit of the check. Numbers that stand for many are not compared with it: it is no rule of the language."""


BOOLEAN = ElementType("boolean")
INT = ElementType("int")
FLOAT = ElementType("float")


class SymbolicNumber:
    """Base of numbers that stand for many at once (`symbolic.domain`). They are static. element: their type."""

    __slots__ = ()
    element = INT


@dataclass(frozen=True)
class Static:
    """A value that is known before the run: a number, a Boolean, a string, an element type, a layout, or a tuple or
    set of these."""

    value: Any


@dataclass(frozen=True)
class Data:
    """A value that is known in the run only. type: of a tile or a tensor that of its shard; None if it is not known
    either. futures: the gets whose tokens it is, each until something reads it; several after a branch. dist: what the
    shards of all instances are together. tensor: the parameter whose elements it names, "" for a value of its own.
    unwritten: of an expression of tiles that what reads it computes, None for a value that is kept."""

    type: ElementType | None = None
    futures: frozenset[int] = frozenset()
    dist: Distribution = LOCAL
    tensor: str = ""
    unwritten: Unwritten | None = None


Value = Static | Data

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {**BINARY, "is": operator.eq, "is not": operator.ne}
"""What is computed before the run."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "bool": bool,
    "float": float,
    "int": int,
    "len": len,
    "max": max,
    "min": min,
}
"""Functions of Python that are computed before the run if their arguments are static."""


def compute(function: Callable[..., Any], arguments: list[Any], node: syn.SyntaxNode) -> Static:
    """Return the result of `function` for the static values `arguments`. Raises `Refusal`, at the node, if it fails or
    is not a number, or if an integer exceeds `LARGEST`.
    """
    bad = isinstance(node, syn.Infix) and not all(isinstance(a, int | float | SymbolicNumber) for a in arguments)
    if function in (operator.pow, operator.lshift) and not any(isinstance(a, float) for a in arguments):
        shortest = -64 if function is operator.pow and isinstance(arguments[0], int) else 0
        bad = bad or not shortest <= arguments[1] <= 64 or abs(arguments[0]) > LARGEST
    if bad:
        raise Refusal("unsupported", "this cannot be computed before the run", node)
    try:
        value = function(*arguments)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise Refusal("unsupported", f"this cannot be computed before the run: {error}", node) from None
    if isinstance(value, float | complex):
        if isinstance(value, complex) or value != value:
            raise Refusal("unsupported", "this cannot be computed before the run: it is not a number", node)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise Refusal("limit", f"a static number is larger than {LARGEST}", node)
    return Static(value)


def type_of(value: Value) -> ElementType | None:
    """Return the type of a value, of data that of its shard; None if it is not known."""
    if isinstance(value, Data):
        return value.type
    if isinstance(value.value, SymbolicNumber):
        return value.value.element
    if isinstance(value.value, int):
        return INT
    return FLOAT if isinstance(value.value, float) else None


def distribution_of(value: Value, varies: bool) -> Distribution:
    """Return the distribution of a value. varies: a static value differs between instances; not read for data."""
    if isinstance(value, Data):
        return value.dist
    return LOCAL if varies else constant(value.value if isinstance(value.value, int | float) else None)


def joined(a: ElementType | None, b: ElementType | None) -> ElementType | None:
    """Return the type of a value that is of the type a or of b, or of arithmetic with both; None if there is no such
    type.
    """
    if a == b:
        return a
    if a is None or b is None:
        return None
    for number, other in ((a, b), (b, a)):
        if number == INT and not other.shape and other != BOOLEAN:
            return other
        if number == FLOAT and not other.shape and "f" in other.dtype:
            return other
    return None


def accepts(stream: ElementType, value: ElementType | None) -> bool:
    """Return whether a stream of the type `stream` takes a value of the type `value`. Numbers without a stated type fit
    any number type that has their kind. A value of unknown type is taken.
    """
    if value is None or value == stream:
        return True
    if stream.shape or value.shape:
        return False
    return value == INT or (value == FLOAT and "f" in stream.dtype)


def element_type(node: syn.ExpressionNode, constants: Callable[[syn.ExpressionNode], Value]) -> ElementType:
    """Read a type, such as `i32` or `f32[4, 4]`. constants: evaluates sizes and names. Raises `Refusal` for what is no
    element type, and for sizes that are not known before the run or below 1.
    """
    if isinstance(node, syn.Infix) and node.op == "@":
        return element_type(node.left, constants)
    if isinstance(node, syn.Identifier):
        if node.name in BITS:
            return ElementType(node.name)
        named = constants(node)
        if isinstance(named, Static) and isinstance(named.value, ElementType):
            return named.value
    if isinstance(node, syn.Literal) and node.value in BITS:
        return ElementType(str(node.value))
    if isinstance(node, syn.Subscript):
        base = element_type(node.base, constants)
        return ElementType(base.dtype, base.shape + sizes(node.index, constants))
    raise Refusal("unsupported", f"{shown(node)[:40]} is no element type", node, f"types: {', '.join(BITS)}")


def sizes(node: syn.ExpressionNode, constants: Callable[[syn.ExpressionNode], Value]) -> tuple[int, ...]:
    """Read positive sizes: one, several separated by commas, or a constant that is a tuple. constants: evaluates them.
    Raises `Refusal` for what is no whole number of at least 1.
    """
    if syn.is_listed(node):
        return tuple(positive(part, constants) for part in node.items)
    value = constants(node)
    known = value.value if isinstance(value, Static) else None
    return (
        tuple(_positive(Static(size), node) for size in known)
        if isinstance(known, tuple)
        else (_positive(value, node),)
    )


def positive(node: syn.ExpressionNode, constants: Callable[[syn.ExpressionNode], Value]) -> int:
    """Read a whole number of at least 1. constants: evaluates it. Raises `Refusal` for anything else."""
    return _positive(constants(node), node)


def _positive(value: Value, node: syn.ExpressionNode) -> int:
    number = _integer(value, node)
    if number < 1:
        raise Refusal("unsupported", f"a size of {number}; it must be at least 1", node)
    return number


def integer(node: syn.ExpressionNode, constants: Callable[[syn.ExpressionNode], Value]) -> int:
    """Read a whole number. constants: evaluates it. Raises `Refusal` for what is no integer that is known before the
    run.
    """
    return _integer(constants(node), node)


def _integer(value: Value, node: syn.ExpressionNode) -> int:
    if not isinstance(value, Static) or not isinstance(value.value, int | SymbolicNumber):
        raise Refusal("unsupported", f"{shown(node)[:40]} is no integer that is known before the run", node)
    number: Any = value.value
    return number  # type: ignore[no-any-return]
