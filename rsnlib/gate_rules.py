"""Lowering rules of several results of the machine: the gate of one product by another, squares, sums, and columns that
are joined."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ..scheduler.graph import ActivationFunction, Array, Gemm
from .capture import dtype_of, module_path, shape_of
from .layers import Base
from .values import Abstract, AbstractState, Arguments, Value, is_host
from .view import View


def gate(values: AbstractState, node: Node, x: Any, y: Any) -> Value | None:
    """Return the elementwise product of two matrix products with the same operand as one product with a gate. values:
    the state. node: the multiplication of x and y. At most one of the two may have an activation. Returns None if x and
    y are not such products."""
    left, right = _product(values, x), _product(values, y)
    if left is None or right is None or left[0] is right[0] or left[0].x != right[0].x:
        return None
    if left[1] != right[1] or left[0].width != right[0].width or left[1].shape != shape_of(node):
        return None
    (gated, view), (up, _) = (right, left) if right[0].activation is not None else (left, right)
    if up.activation is not None or (gated.activation is None and gated.weight is up.weight):
        return None  # the latter is a square, which may be a part of an activation
    gain = 1.0 if gated.scale is None else float(gated.scale[0])
    return Value(_gated(values, gated, up, gain), view)


def squared(values: AbstractState, node: Node, x: Base) -> Gemm:
    """Return a product whose result is the square of an activation: it has the columns of x twice, and one half is the
    gate of the other. node: the operator. x: if it is a product with ReLU or without an activation, it is computed in
    this way itself; otherwise it is multiplied by the identity matrix, twice side by side, which is exact."""
    if isinstance(x, Gemm) and _is_plain(x) and x.activation in (None, ActivationFunction.RELU):
        gain = 1.0 if x.scale is None else float(x.scale[0])
        return _gated(values, x, x, gain * gain)
    return values.layers.variant(values.layers.copied(module_path(node), x, 2), gated=True)


def _product(values: AbstractState, x: Any) -> tuple[Gemm, View] | None:
    """A product of which nothing but an activation behind it is fused, and the view of it that x is."""
    value = values.of[x] if isinstance(x, Node) else None
    found = values.fit(value, lambda view, width: True) if isinstance(value, Value) and not is_host(value) else None
    layer = None if found is None else found.base
    return (layer, found.view) if found is not None and isinstance(layer, Gemm) and _is_plain(layer) else None


def _is_plain(layer: Gemm) -> bool:
    """Whether it is a product behind which nothing but an activation is fused."""
    plain = layer.norm is None and layer.rotary is None and not layer.gated and layer.shift is None
    return plain and layer.multiplies and layer.residual is None


def _gated(values: AbstractState, gated: Gemm, up: Gemm, gain: float) -> Gemm:
    """One product with the columns of both, the gate's first. gain: a factor of the result."""
    ratio = up.factor / gated.factor * gain
    weight, bias = up.weight, up.bias
    if ratio != 1:
        weight, bias = (weight * np.float64(ratio)).astype(np.float32), bias * ratio
    fields = {
        "weight": _beside(gated.weight, weight),
        "bias": np.concatenate([gated.bias, bias]),
        "gated": True,
        "scale": None,
        "fused": tuple(dict.fromkeys((*gated.fused, *([up.path] if up.path != gated.path else []), *up.fused))),
    }
    return values.layers.variant(gated, **fields)


def _beside(one: Array, other: Array) -> Array:
    """Two matrices as one, side by side: without memory if all their elements are one number in memory."""
    if not any((*one.strides, *other.strides)) and one.flat[0] == other.flat[0]:
        return np.broadcast_to(one[:1, :1], (len(one), one.shape[1] + other.shape[1]))
    return np.concatenate([one, other], axis=1)


def scaled_gate(values: AbstractState, layer: Gemm, factor: float) -> Gemm:
    """Return a gated product, multiplied by a factor: the columns that are no gate take it up. layer: the product, with
    weights (K, 2 * width), the gate first."""
    weight, bias, width = layer.weight.copy(), layer.bias.copy(), layer.width
    weight[:, width:] = weight[:, width:] * np.float64(factor)
    bias[width:] = bias[width:] * factor
    return values.layers.variant(layer, weight=weight, bias=bias)


def summed(values: AbstractState, node: Node, x: Node, y: Node) -> Value | None:
    """Return the sum of two tensors as a pass of the machine (a layer without a product). node: the addition. x, y: its
    operands. Returns None unless both are whole activations in float32, of the shape of the node, and the machine
    computes at least one of them."""
    if dtype_of(x) != torch.float32 or dtype_of(y) != torch.float32:
        return None
    return _total(values, node, x, y) or _total(values, node, y, x)


def joined(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of cat over columns: each activation is multiplied by those rows of the
    identity matrix that put it in its place, and these products are added up, which is exact."""
    parts, shape = a["tensors"], shape_of(node)
    if all(is_host(values.of[x]) for x in parts):
        return "it is a tensor of the host"
    ends = list(accumulate((shape_of(x)[-1] for x in parts), initial=0))
    made: Value | None = None
    for x, start in zip(parts, ends, strict=False):
        width = shape_of(x)[-1]
        whole = values.operand(x, lambda view, columns: view.with_columns(columns, columns) is not None)
        view = None if whole is None else whole.view.with_columns(width, shape[-1])
        if whole is None or view is None or view.shape != shape or dtype_of(x) != torch.float32:
            if a["dim"] % len(shape) != len(shape) - 1:
                return "the machine joins activations along their last dimension only"
            return "columns are joined only if each part is all of an activation"
        if made is not None and view != made.view:
            return "columns are joined only if their rows lie in the same order"
        weight = np.zeros((width, shape[-1]), np.float32)
        weight[:, start : start + width] = np.eye(width)
        product = values.layers.product(module_path(node), whole.base, weight, np.zeros(shape[-1]))
        made = Value(product if made is None else values.layers.fuse(product, residual=made.base.y), view)
    assert made is not None
    return made


def _total(values: AbstractState, node: Node, x: Node, other: Node) -> Value | None:
    if is_host(values.of[x]):
        return None
    taking = values.fit(values.of[x], lambda view, width: view.with_columns(width, width) is not None)
    if taking is None or taking.view.shape != shape_of(node):
        return None
    view, width = taking.view, taking.base.width
    added = values.operand(other, lambda shown, columns: (shown, columns) == (view, width))
    if added is None and is_host(values.of[other]):
        added = Value(values.source(other, view, width), view)
    return None if added is None else Value(values.layers.total(module_path(node), taking.base, added.base), view)
