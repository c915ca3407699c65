"""Rules of operators that move nothing: an activation stays where it is, and is seen otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..machine.view import View
from .capture import dtype_of, shape_of
from .values import Abstract, AbstractState, Arguments, LoweringPattern, Value

aten = torch.ops.aten

MIXES = "the rows and columns it mixes do not come apart again"


def identity(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Nothing changes: copies, dropout in eval mode, conversions to the type that it has."""
    x = node.all_input_nodes[0]
    if a.get("train") and a.get("p"):
        return "dropout in training mode"
    if dtype_of(node) != dtype_of(x) or shape_of(node) != shape_of(x):
        return f"a conversion from {dtype_of(x)} to {dtype_of(node)}; the machine computes in float32"
    return values.of[x]


def moved(values: AbstractState, node: Node, move: Callable[[View], View | None]) -> Abstract | str:
    x = node.all_input_nodes[0]
    value = values.of[x]
    if not isinstance(value, Value) or dtype_of(node) != dtype_of(x):
        return "it moves what is no activation"
    view = move(value.view)
    return MIXES if view is None else Value(value.base, view)


def regroup(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """The same elements in the same order, as another shape: the activation stays where it is."""
    return moved(values, node, lambda view: view.regroup(shape_of(node)))


def permute(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Dimensions in another order: the activation stays where it is, and is seen otherwise."""
    # Which dimension goes where, whatever the operator calls it: the strides of a tensor without data tell.
    probe = torch.empty((2,) * len(shape_of(node)), device="meta")
    strides = node.target(probe, *node.args[1:], **node.kwargs).stride()
    return moved(values, node, lambda view: view.permute([probe.stride().index(s) for s in strides]))


def narrow(view: View, axis: int, start: int, length: int, shape: Sequence[int]) -> View | None:
    part = view.narrow(axis, start, length) if length else None
    return None if part is None else part.regroup(shape)


def select(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """One position of a dimension, such as the queries of what holds queries, keys and values."""
    shape = shape_of(a["self"])
    axis = a["dim"] % len(shape)
    return moved(values, node, lambda view: narrow(view, axis, a["index"] % shape[axis], 1, shape_of(node)))


def slice_(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """A range of positions of a dimension, without gaps."""
    if a["step"] != 1:
        return "a slice with a step"
    shape = shape_of(a["self"])
    axis = a["dim"] % len(shape)
    start, _, _ = slice(a["start"], None).indices(shape[axis])
    return moved(values, node, lambda view: narrow(view, axis, start, shape_of(node)[axis], shape_of(node)))


def split(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Several ranges of a dimension, as projections that are packed in one come apart."""
    value, shape = values.of[a["self"]], shape_of(a["self"])
    if not isinstance(value, Value):
        return "it splits what is no activation"
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
    """One of the parts of a split."""
    parts, index = values.of[node.all_input_nodes[0]], node.args[1]
    if not isinstance(parts, list) or not isinstance(index, int):
        return "it takes apart what is no activation"
    return parts[index]


VIEWS: dict[Any, LoweringPattern] = {
    **dict.fromkeys((aten.alias, aten.clone, aten.contiguous, aten.detach), identity),
    **dict.fromkeys((aten.dropout, aten.to, aten._to_copy, aten.type_as), identity),
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.reshape, aten.flatten, aten.unflatten), regroup),
    **dict.fromkeys((aten.unsqueeze, aten.squeeze), regroup),
    **dict.fromkeys((aten.permute, aten.transpose, aten.t, aten.movedim, aten.swapaxes, aten.mT), permute),
    **dict.fromkeys((aten.chunk, aten.split, aten.split_with_sizes, aten.unbind), split),
    aten.select: select,
    aten.slice: slice_,
    operator.getitem: getitem,
}

IDENTITIES = {op for op, rule in VIEWS.items() if rule is identity}
