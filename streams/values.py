"""Values as the reader knows them: static (known before the run) or data, with the gets that a value comes from; and
annotations: the types of streams, tensors and parameters, in each of their spellings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from ..base.element_types import BITS, ElementType
from ..base.errors import ProgramError
from ..base.operators import BINARY
from .datapath import Unwritten
from .language import Layout
from .layouts import LOCAL, Distribution, constant
from .orders.order import Order
from .source import Refusal
from .syntax import nodes as syn
from .syntax.parser import parsed_expression
from .syntax.printer import shown

LARGEST = 1 << 64
"""Limit of the magnitude of a static integer."""

ELEMENTS = 1 << 12
"""Limit of the length of a static tuple or set."""


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a static value is a whole number; a `SymbolicNumber` that is one counts."""
    return isinstance(value, int) or (isinstance(value, SymbolicNumber) and value.element is INT)


class Limit(int):
    """A limit of the check, such as a largest number of loops. A `SymbolicNumber` is not compared with it, since the
    limit is no rule of the language."""


BOOLEAN = ElementType("boolean")
INT = ElementType("int")
FLOAT = ElementType("float")


class SymbolicNumber:
    """Base of numbers that stand for many values at once, in a proof for all sizes (`symbolic.domain`). element: their
    type."""

    __slots__ = ()
    element = INT


@dataclass(frozen=True)
class Static:
    """A value that is known before the run: a number, a Boolean, a string, an element type, a layout, or a tuple or
    set of these."""

    value: Any


@dataclass(frozen=True)
class Data:
    """A value that only the run knows. type: of a tile or tensor that of its shard; None if it is not known. futures:
    the numbers of the gets whose token it may be; several after a branch; () once it is read. dist: what is known about
    the values on all instances. tensor: the parameter of which it names elements; "" for a value of its own. unwritten:
    for an expression that is computed where it is read, its work; None for a value in a tile."""

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
    """Return the result of a function of static values. arguments: these values. node: whose place an error gets.
    Raises `Refusal` if the function fails or its result is not a number, and for an integer beyond `LARGEST`."""
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
    """Return what is known about a value on all instances. varies: whether a static value differs between instances."""
    if isinstance(value, Data):
        return value.dist
    return LOCAL if varies else constant(value.value if isinstance(value.value, int | float) else None)


def joined(a: ElementType | None, b: ElementType | None) -> ElementType | None:
    """Return the type of a value that has the type a or b, depending on the path, or of the result of arithmetic with
    both; None if there is no such type."""
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
    """Return whether a value may be put on a stream. stream: the type of its elements. value: the type of the value;
    None, for an unknown type, is accepted. An integer without a stated type fits any type of numbers, a float without
    one any floating-point type."""
    if value is None or value == stream:
        return True
    if stream.shape or value.shape:
        return False
    return value == INT or (value == FLOAT and "f" in stream.dtype)


Evaluate = Callable[[syn.ExpressionNode], Value]
"""Evaluates an expression at the top of a region. Raises `Refusal`."""


def element_type(node: syn.ExpressionNode, constants: Evaluate) -> ElementType:
    """Return the type that an expression such as `i32` or `f32[4, 4]` names. constants: evaluates sizes and names.
    Raises `Refusal` for anything that is no type, and for sizes that are not known before the run or below 1."""
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


def sizes(node: syn.ExpressionNode, constants: Evaluate) -> tuple[int, ...]:
    """Return the sizes in an expression: one, several separated by commas, or a constant that is a tuple. constants:
    evaluates them. Raises `Refusal` for any size that is no whole number of at least 1."""
    if syn.is_listed(node):
        return tuple(positive(part, constants) for part in node.items)
    value = constants(node)
    known = value.value if isinstance(value, Static) else None
    return (
        tuple(_positive(Static(size), node) for size in known)
        if isinstance(known, tuple)
        else (_positive(value, node),)
    )


def positive(node: syn.ExpressionNode, constants: Evaluate) -> int:
    """Return the whole number, at least 1, that an expression is. constants: evaluates it. Raises `Refusal` for any
    other value."""
    return _positive(constants(node), node)


def _positive(value: Value, node: syn.ExpressionNode) -> int:
    number = _integer(value, node)
    if number < 1:
        raise Refusal("unsupported", f"a size of {number}; it must be at least 1", node)
    return number


def integer(node: syn.ExpressionNode, constants: Evaluate) -> int:
    """Return the whole number that an expression is. constants: evaluates it. Raises `Refusal` if it is no integer that
    is known before the run."""
    return _integer(constants(node), node)


def _integer(value: Value, node: syn.ExpressionNode) -> int:
    if not isinstance(value, Static) or not isinstance(value.value, int | SymbolicNumber):
        raise Refusal("unsupported", f"{shown(node)[:40]} is no integer that is known before the run", node)
    number: Any = value.value
    return number  # type: ignore[no-any-return]


# -- annotations -------------------------------------------------------------------------------------------------------


class StreamAnnotation(NamedTuple):
    """What `Stream[T, N, P][shape] @ Order("...")` states. type: T. depth: N, in elements. packing: P, elements that
    move together. shape: of the array of streams; () for a single one. order: of the tokens. depth, packing, order:
    None if they are not written."""

    type: ElementType
    depth: int | None
    packing: int | None
    shape: tuple[int, ...]
    order: Order | None = None


class TensorType(NamedTuple):
    """What `f32[64, 64] @ Layout("S0R")` states. type: None if the annotation is no type of this language. layout: the
    text in `Layout(..)`; None if there is none."""

    type: ElementType | None
    layout: str | None


def unquoted(node: syn.ExpressionNode) -> syn.ExpressionNode:
    """Return the expression that a string holds, with the string's place; other nodes as they are. Raises `Refusal` for
    a string that holds no expression.
    """
    if not (isinstance(node, syn.Literal) and isinstance(node.value, str)):
        return node
    inner = parsed_expression(node.value, node.place)
    if inner is None:
        raise Refusal("unsupported", "this annotation is no type", node)
    return inner


def last_name(node: syn.ExpressionNode) -> str:
    """Return the last name of what an expression calls, subscripts or names: `Stream` for `Stream[i32, 4][3]` and for
    `x.Stream`; "" for other expressions."""
    while isinstance(node, syn.Subscript | syn.Invocation):
        node = node.base if isinstance(node, syn.Subscript) else node.function
    return node.name if isinstance(node, syn.Attribute | syn.Identifier) else ""


def is_stream(node: syn.ExpressionNode) -> bool:
    """Return whether an annotation is meant to be the type of a stream, because its last name is `Stream`. Raises
    `Refusal` as `unquoted`."""
    return last_name(_parted(node)[0]) == "Stream"


def is_size(node: syn.ExpressionNode) -> bool:
    """Return whether an annotation declares a size that a run gives, because its last name is `Size`."""
    return last_name(node) == "Size"


def _parted(node: syn.ExpressionNode) -> tuple[syn.ExpressionNode, syn.ExpressionNode | None]:
    """Return a type, and what `@` or `Annotated` adds to it."""
    if isinstance(node, syn.Infix) and node.op == "@":
        return node.left, node.right
    parts = node.index.items if isinstance(node, syn.Subscript) and syn.is_tuple(node.index) else ()
    return (unquoted(parts[0]), parts[1]) if len(parts) == 2 and last_name(node) == "Annotated" else (node, None)


def stream_type(node: syn.ExpressionNode, constants: Evaluate) -> StreamAnnotation:
    """Return what an annotation `Stream[T, N, P]` or `Stream[T, N, P][shape]`, alone or with an order, states.
    constants: evaluates sizes. Raises `Refusal` for anything that is no such type, and for numbers that are not known
    before the run."""
    shape: tuple[int, ...] = ()
    node, added = _parted(node)
    if isinstance(node, syn.Subscript) and isinstance(node.base, syn.Subscript):
        shape = sizes(node.index, constants)
        node = node.base
    if not (isinstance(node, syn.Subscript) and isinstance(node.base, syn.Identifier) and is_stream(node)):
        raise Refusal(
            "unsupported", "this is no type of a stream", node, "from rsn.streams import *; s: Stream[i32, 4]"
        )
    parts = node.indices
    if not 1 <= len(parts) <= 3:
        raise Refusal("unsupported", "Stream takes an element type, a depth and a packing", node)
    kind = element_type(parts[0], constants)
    depth = integer(parts[1], constants) if len(parts) > 1 else None
    packing = integer(parts[2], constants) if len(parts) > 2 else None
    return StreamAnnotation(kind, depth, packing, shape, None if added is None else _order(added, kind, constants))


def _order(node: syn.ExpressionNode, kind: ElementType, constants: Evaluate) -> Order:
    """Read `Order("...")`, or a constant that is one. kind: of the stream, whose dtype the text need not repeat."""
    if not (isinstance(node, syn.Invocation) and node.called == "Order"):
        form = 'an order is written as Order("4x2 [4,2]*[2,4] (d1,d0)")'
        raise Refusal("unsupported", "this is no order of a stream", node, form)
    value = constants(node.arguments[0]) if len(node.arguments) == 1 and not node.named else None
    if not isinstance(value, Static) or not isinstance(value.value, str):
        raise Refusal("unsupported", "Order takes one text that is known before the run", node)
    try:
        order = Order.parse(value.value, kind.dtype)
    except ProgramError as error:
        raise Refusal("type", str(error), node) from None
    sizes_of = [tuple(n for n in shape if n != 1) for shape in (order.element, kind.shape)]
    if sizes_of[0] != sizes_of[1] or order.dtype != kind.dtype:
        token = f"{order.dtype}[{', '.join(map(str, order.element))}]"
        raise Refusal("type", f"the order has tokens of {token}, and the stream carries {kind}", node)
    return order


def tensor_type(node: syn.ExpressionNode, constants: Evaluate) -> TensorType:
    """Return what the annotation of a tensor or of a parameter states: an element type, alone, with `@ Layout(...)`, or
    in `Annotated[..., Layout(...)]`. An annotation by names of other modules, or by Python's own types, states nothing:
    both fields of the result are None. constants: evaluates sizes and names. Raises `Refusal` for anything that is no
    type or no layout."""
    node = unquoted(node)
    kind, layout = node, None
    if isinstance(node, syn.Infix) and node.op == "@":
        kind, layout = node.left, node.right
    elif isinstance(node, syn.Subscript) and last_name(node) == "Annotated":
        parts = node.index.items if syn.is_tuple(node.index) else ()
        if len(parts) != 2:
            form = 'Annotated[f32[8, 8], Layout("S0R")]'
            raise Refusal("unsupported", f"Annotated takes a type and a layout: {form}", node)
        kind, layout = unquoted(parts[0]), parts[1]
    text = None if layout is None else _layout(layout, constants)
    if layout is None and _is_foreign(kind, constants):
        return TensorType(None, None)
    return TensorType(element_type(kind, constants), text)


def _layout(node: syn.ExpressionNode, constants: Evaluate) -> str:
    if isinstance(node, syn.Invocation) and node.called == "Layout":
        given = [*node.arguments, *(k.value for k in node.named if k.name == "labels")]
        if len(given) == 1 and len(node.arguments) + len(node.named) == 1:
            value = constants(given[0])
            if isinstance(value, Static) and isinstance(value.value, str):
                return value.value
    try:
        named = constants(node) if isinstance(node, syn.Identifier) else None
    except Refusal:
        named = None
    if isinstance(named, Static) and isinstance(named.value, Layout):
        return named.value.labels
    raise Refusal("unsupported", "this is no layout", node, 'a layout is written as Layout("S0R")')


def _is_foreign(node: syn.ExpressionNode, constants: Evaluate) -> bool:
    """Whether a type is Python's own, or comes from another module."""
    while isinstance(node, syn.Subscript | syn.Attribute):
        node = node.base
    if isinstance(node, syn.Literal) and node.value is None:
        return True
    if not isinstance(node, syn.Identifier) or node.name in BITS:
        return False
    return node.name in ("int", "float", "bool", "object") or not isinstance(constants(node), Static)
