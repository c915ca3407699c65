"""Lowering rules of view operators: the activation stays in memory, only the view of it changes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from .capture import dtype_of, shape_of
from .pointwise import Pointwise
from .values import Abstract, AbstractState, Arguments, LoweringPattern, Value, is_host
from .view import View

aten = torch.ops.aten

MIXES = "it mixes rows and columns so that they cannot be separated again"
"""The reason for refusing a view that is no view of rows and columns."""


def identity(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of operators that change nothing: copies, dropout in eval mode, conversions to the same type."""
    x = node.all_input_nodes[0]
    if a.get("train") and a.get("p"):
        return "dropout in training mode"
    if dtype_of(node) != dtype_of(x) or shape_of(node) != shape_of(x):
        return f"a conversion from {dtype_of(x)} to {dtype_of(node)}; the machine computes in float32"
    made = values.of[x]
    # The host needs this operator, too, if it computes the function.
    return replace(made, nodes=(*made.nodes, node)) if isinstance(made, Pointwise) else made


def moved(values: AbstractState, node: Node, move: Callable[[View], View | None]) -> Abstract | str:
    """The operand with its view changed by `move`, which returns None if there is no such view."""
    x = node.all_input_nodes[0]
    value = values.of[x]
    if not isinstance(value, Value) or dtype_of(node) != dtype_of(x):
        return "its operand is not an activation"
    view = move(value.view)
    return MIXES if view is None else Value(value.base, view)


def regroup(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of reshapes: the same elements in the same order, in another shape."""
    return moved(values, node, lambda view: view.regroup(shape_of(node)))


def permute(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of operators that reorder dimensions."""
    # Run the operator on a meta tensor and read the order off its strides, so that every spelling is covered.
    probe = torch.empty((2,) * len(shape_of(node)), device="meta")
    strides = node.target(probe, *node.args[1:], **node.kwargs).stride()
    return moved(values, node, lambda view: view.permute([probe.stride().index(s) for s in strides]))


def narrow(view: View, axis: int, start: int, length: int, shape: Sequence[int]) -> View | None:
    """The view of `length` positions of an axis from `start` on, reshaped to `shape`; None if there is no such view."""
    part = view.narrow(axis, start, length) if length else None
    return None if part is None else part.regroup(shape)


def select(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of select: one position of a dimension, e.g. the queries of packed queries, keys and values."""
    shape = shape_of(a["self"])
    axis = a["dim"] % len(shape)
    return moved(values, node, lambda view: narrow(view, axis, a["index"] % shape[axis], 1, shape_of(node)))


def slice_(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of slice: a contiguous range of positions of a dimension."""
    if a["step"] != 1:
        return "a slice with a step is not supported"
    shape = shape_of(a["self"])
    axis = a["dim"] % len(shape)
    start, _, _ = slice(a["start"], None).indices(shape[axis])
    return moved(values, node, lambda view: narrow(view, axis, start, shape_of(node)[axis], shape_of(node)))


def split(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of split, chunk and unbind: several ranges of a dimension, e.g. packed projections."""
    value, shape = values.of[a["self"]], shape_of(a["self"])
    if not isinstance(value, Value):
        return "its operand is not an activation"
    axis = a["dim"] % len(shape)
    parts, start = [], 0
    for part in node.meta["val"]:
        length = part.shape[axis] if part.ndim == len(shape) else 1  # unbind drops the dimension
        view = narrow(value.view, axis, start, length, part.shape)
        if view is None:
            return MIXES
        parts.append(Value(value.base, view))
        start += length
    return parts


def getitem(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of getitem: one of the results of a split."""
    parts, index = values.of[node.all_input_nodes[0]], node.args[1]
    if not isinstance(parts, list) or not isinstance(index, int):
        return "its operand is not a split activation"
    return parts[index]


def expand(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of expand: each position again and again, e.g. the keys of a group of queries."""
    if is_host(values.of[a["self"]]):
        return "it is a tensor of the host"
    return moved(values, node, lambda view: view.expand(shape_of(node)))


def repeat_interleave(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of repeat_interleave: each position of a dimension a number of times."""
    shape, count = list(shape_of(a["self"])), a["repeats"]
    if is_host(values.of[a["self"]]) or not isinstance(count, int) or a["dim"] is None:
        return "it is no repetition of the positions of a dimension"
    axis = a["dim"] % len(shape)

    def repeated(view: View) -> View | None:
        apart = view.regroup([*shape[: axis + 1], 1, *shape[axis + 1 :]])
        return apart and apart.expand([*shape[: axis + 1], count, *shape[axis + 1 :]]).regroup(shape_of(node))

    return moved(values, node, repeated)


VIEWS: dict[Any, LoweringPattern] = {
    **dict.fromkeys((aten.alias, aten.clone, aten.contiguous, aten.detach), identity),
    **dict.fromkeys((aten.dropout, aten.to, aten._to_copy, aten.type_as), identity),
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.reshape, aten.flatten, aten.unflatten), regroup),
    **dict.fromkeys((aten.unsqueeze, aten.squeeze), regroup),
    **dict.fromkeys((aten.permute, aten.transpose, aten.t, aten.movedim, aten.swapaxes, aten.mT), permute),
    **dict.fromkeys((aten.chunk, aten.split, aten.split_with_sizes, aten.unbind), split),
    aten.expand: expand,
    aten.repeat_interleave: repeat_interleave,
    aten.select: select,
    aten.slice: slice_,
    operator.getitem: getitem,
}

"""The lowering rule of each view operator."""

IDENTITIES = {op for op, rule in VIEWS.items() if rule is identity}
"""The operators that change nothing."""
