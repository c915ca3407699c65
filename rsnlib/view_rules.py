"""Lowering rules of view operators: the activation stays in memory, only the view of it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from .capture import arguments, dtype_of, packet, shape_of
from .pointwise import PointwiseFunction
from .values import Abstract, AbstractState, Arguments, LoweringPattern, Value, is_host
from .view import View

aten = torch.ops.aten

MIXES = "it mixes rows and columns so that they cannot be separated again"
"""The reason for refusing a view that is no view of rows and columns."""
SAME = (aten.alias, aten.detach, aten.clone, aten.contiguous, aten._to_copy)
"""Operators that change nothing, unless they convert to another type."""


def _part(view: View, axis: int, start: int, length: int, shape: Sequence[int]) -> View | None:
    """The view of `length` positions of an axis from `start` on, reshaped to `shape`; None if there is no such view."""
    part = view.narrow(axis, start, length) if length else None
    return None if part is None else part.regroup(shape)


def seen(view: View, node: Node) -> View | str:
    """Return the view that the result of a view operator is, if its operand is `view` of the same activation. Returns a
    reason (text) if the result is no such view."""
    a, shape = arguments(node), shape_of(node)
    made: View | None = view
    if packet(node) is aten.reshape:
        made = view.regroup(shape)
    elif packet(node) is aten.permute:
        made = view.permute(a["dims"])
    elif packet(node) is aten.expand:
        made = view.expand(shape)
    elif packet(node) in (aten.slice, aten.select):
        sizes = view.shape
        axis = a["dim"] % len(sizes)
        if packet(node) is aten.select:
            made = _part(view, axis, a["index"] % sizes[axis], 1, shape)
        elif a["step"] != 1:
            return "a slice with a step is not supported"
        else:
            made = _part(view, axis, slice(a["start"], None).indices(sizes[axis])[0], shape[axis], shape)
    return MIXES if made is None else made


def identity(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of operators that change nothing: copies, and conversions to the same type."""
    x = node.all_input_nodes[0]
    if dtype_of(node) != dtype_of(x):
        return f"a conversion from {dtype_of(x)} to {dtype_of(node)}; the machine computes in float32"
    made = values.of[x]
    # The host needs this operator, too, if it computes the function.
    return replace(made, nodes=(*made.nodes, node)) if isinstance(made, PointwiseFunction) else made


def moved(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of operators that move elements. If one repeats a tensor of the host, the host runs it."""
    value = values.of[node.all_input_nodes[0]]
    if not isinstance(value, Value):
        return "its operand is not an activation"
    if packet(node) is aten.expand and is_host(value):
        return "it is a tensor of the host"
    view = seen(value.view, node)
    return view if isinstance(view, str) else Value(value.base, view)


VIEWS: dict[Any, LoweringPattern] = {
    **dict.fromkeys(SAME, identity),
    **dict.fromkeys((aten.reshape, aten.permute, aten.expand, aten.select, aten.slice), moved),
}
"""The lowering rule of each view operator."""
