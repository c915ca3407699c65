"""Rows of several sequences below each other in one matrix: which tiles of rows fit, and the matrices as tensors.

Most kernels take the rows of a batch as those of one matrix (sequences * rows, columns). Kernels of attention go
through it sequence by sequence and head by head. Their orders are of the tensor (sequences, rows, columns), of the same
elements in the same places; the orders at the other ends of their streams become orders of it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from ...base.errors import UnsupportedError
from ...streams.orders.operations import expand
from ...streams.orders.order import Order
from .operators import OperatorGraph, StreamOperator

ROW_BY_ROW = frozenset(
    (
        *("linear", "join", "epilogue", "pointwise", "softmax", "layernorm", "rmsnorm", "rotary", "turn"),
        *("quantise", "row_scales", "integers"),
    )
)
"""Operators that make each row of their result from the same row of their operands."""

OF_KEYS = frozenset(("keys", "other_scale", "other_zero"))
"""Operands of scores that have a row for each key."""


def row_units(graph: OperatorGraph) -> dict[StreamOperator, int]:
    """Return a number of rows for each kernel whose result is one matrix. The rows of its tiles must divide that
    number, so that no tile has rows of two sequences, neither in this kernel nor in kernels with which it shares a
    stream."""
    units = {x: x.shape[1] for x in graph.computed if x.shape[0] == 1}
    for x in graph.computed:
        for other, rows in _sequence_rows(x):
            if other in units:
                units[other] = gcd(units[other], rows)
    alike = [
        (x, operand)
        for x in units
        if x.op in ROW_BY_ROW
        for operand in x.operands
        if operand in units and operand.shape[1] == x.shape[1]
    ]
    changed = True
    while changed:
        changed = False
        for x, operand in alike:
            common = gcd(units[x], units[operand])
            changed |= (units[x], units[operand]) != (common, common)
            units[x] = units[operand] = common
    return units


def _sequence_rows(x: StreamOperator) -> Iterator[tuple[StreamOperator, int]]:
    """Operators whose rows a kernel goes through sequence by sequence, and the rows of a sequence."""
    match x.op:
        case "scores":
            for name, operand in zip(x.attributes["operand_names"], x.operands, strict=True):
                if name != "mask":
                    yield operand, x.shape[2] if name in OF_KEYS else x.shape[1]
        case "scale_columns":
            yield x.operands[1], x.shape[2]
        case "attend":
            yield x, x.operands[0].shape[1]
            yield x.operands[1], x.operands[0].shape[2]
        case "append" | "replace":
            sequences = x.attributes["sequences"]
            yield from ((y, prod(y.shape[:2]) // n) for y, n in zip(x.operands, sequences, strict=True))
        case "rotary":
            yield from ((x, table.shape[1]) for table in x.operands[1:])


def common_tensor(x: StreamOperator, ends: Sequence[tuple[str, Order]]) -> tuple[int, ...]:
    """Return one shape for the result of an operator in which the kernels at both ends of its streams can all give
    their orders: (rows, columns), or with heads or sequences in front. x: the operator. ends: the name of each of these
    kernels, and its order. Raises `UnsupportedError` for kernels that cut the rows into different sequences."""
    most = max(len(order.tensor) for _, order in ends)
    found = {order.tensor: name for name, order in ends if len(order.tensor) == most}
    if len(found) > 1:
        (one, name), (two, other) = list(found.items())[:2]
        raise UnsupportedError(
            f"{x.site or x.name}: {name} takes its rows as {_sequences(one)}, {other} as {_sequences(two)}; kernels of "
            f"attention must agree on the sequences of a tensor"
        )
    (tensor,) = found
    return tensor


def _sequences(tensor: tuple[int, ...]) -> str:
    return f"{tensor[0]} sequences of {tensor[-2]}" if len(tensor) > 2 else f"one of {tensor[0]}"


def as_order_of(order: Order, tensor: tuple[int, ...]) -> Order:
    """Return an order of a matrix as an order of the same elements with an axis for sequences in front. tensor: the
    shape with that axis, (sequences, rows, columns); with (rows, columns) the order is returned as it is."""
    return order if order.tensor == tensor else expand(order, 0, tensor[:2])
