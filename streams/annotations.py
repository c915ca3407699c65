"""Reads annotations: the types of streams, tensors and parameters, in each of their spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..base.element_types import BITS, ElementType
from ..base.errors import ProgramError
from .language import Layout
from .orders.order import Order
from .source import Refusal
from .syntax import nodes as syn
from .syntax.parser import parsed_expression
from .values import Static, Value, element_type, integer, sizes

Evaluate = Callable[[syn.ExpressionNode], Value]
"""Evaluates an expression at the top of a region. Raises `Refusal`."""


class StreamAnnotation(NamedTuple):
    """What `Stream[T, N, P][shape] @ Order("...")` states. type: T. depth: N, in elements. packing: P, elements of a
    transfer. shape: of the array of streams, () for a single one. depth, packing, order: None if they are not written.
    """

    type: ElementType
    depth: int | None
    packing: int | None
    shape: tuple[int, ...]
    order: Order | None = None


class TensorType(NamedTuple):
    """What `f32[64, 64] @ Layout("S0R")` states. type: None if the annotation is not one of this language. layout: the
    text, None if there is none."""

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
    """Return the name of what an expression calls, subscripts or names: `Stream` for `Stream[i32, 4][3]` and
    `x.Stream`; "" for other expressions.
    """
    while isinstance(node, syn.Subscript | syn.Invocation):
        node = node.base if isinstance(node, syn.Subscript) else node.function
    return node.name if isinstance(node, syn.Attribute | syn.Identifier) else ""


def is_stream(node: syn.ExpressionNode) -> bool:
    """Return whether an expression is meant to be the type of a stream: whether it has the name `Stream`. Raises
    `Refusal` as `unquoted`.
    """
    return last_name(_parted(node)[0]) == "Stream"


def is_size(node: syn.ExpressionNode) -> bool:
    """Return whether an annotation declares a size that each run gives: whether it has the name `Size`."""
    return last_name(node) == "Size"


def _parted(node: syn.ExpressionNode) -> tuple[syn.ExpressionNode, syn.ExpressionNode | None]:
    """Return a type, and what `@` or `Annotated` adds to it."""
    if isinstance(node, syn.Infix) and node.op == "@":
        return node.left, node.right
    parts = node.index.items if isinstance(node, syn.Subscript) and syn.is_tuple(node.index) else ()
    return (unquoted(parts[0]), parts[1]) if len(parts) == 2 and last_name(node) == "Annotated" else (node, None)


def stream_type(node: syn.ExpressionNode, constants: Evaluate) -> StreamAnnotation:
    """Read `Stream[T, N, P]` or `Stream[T, N, P][shape]`, alone or with an order. constants: evaluates sizes. Raises
    `Refusal` for what is no such type, and for numbers that are not known before the run.
    """
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
    """Read the annotation of a tensor or of a parameter: an element type, alone, with `@ Layout(...)`, or in
    `Annotated[..., Layout(...)]`. An annotation by names of other modules, or by Python's own types, states nothing:
    both fields of the result are None. constants: evaluates sizes and names. Raises `Refusal` for what is no type or no
    layout."""
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
