"""Fold the scale and shift of every norm, and every constant factor, into the weights of the consumers.

The machine normalises without scale and shift: of y = n * g + s it computes n. A product of y becomes a product of n
with weight g[:, None] * W and bias b + s @ W; a residual y becomes the residual n with scale g, and s is added to the
bias; an output y becomes the output n with scale g and shift s. All in float64, rounded once.

Heads that a product normalises or rotates keep their scale: it goes into the table of the rotation. That table pairs
neighbouring columns, so the columns of a head are stored in an order in which partners are neighbours (`head_order`).
The scores of an attention do not change if its queries and keys have the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ..base.errors import UnsupportedError
from ..scheduler.graph import Array, AttentionLayer, Gemm, Layer, LayerGraph, Output, Vector, unique_name
from ..scheduler.memory import head_pitch
from .head_layouts import LaidOut, Layout, UnappliedAffine, affine_of, in_order, with_table


def fold(
    graph: LayerGraph, weights: bool = True, pitch: Callable[[int], int] = head_pitch, *, activates: bool = True
) -> LayerGraph:
    """Return a graph of matched layers with the scale and shift of norms, and constant factors, folded into weights.
    Inputs, outputs and results keep their order and, except for outputs that are stored in another layout, their names.

    weights: False fills weights and biases of products with NaN that takes no memory, which is enough to compile a
    program; scales and shifts of outputs, and tables, are computed in any case, because a program depends on them.
    pitch: `Overlay.head_pitch`: stored columns of a head, from its columns. activates: False makes a pass with an
    activation a product with the identity matrix, where the machine applies activations to products alone. Raises
    `UnsupportedError` for a shift behind a norm of heads, for a norm whose scale differs between heads, and for a
    rotation that does not exchange columns in pairs.
    """
    laid_out = LaidOut(replace(graph, layers=tuple(map(with_table, graph.layers))), pitch)
    graph, layouts = laid_out.graph()
    affine = {layer.y: affine_of(layer) for layer in graph.layers}

    def is_copied(layer: Gemm) -> bool:
        x, y = layouts.get(layer.x), layouts.get(layer.y)
        return x == y and affine.get(layer.x) is None and (x is None or pitch(x.width) == x.width)

    states = {name: (graph.inputs[name], layouts.get(y)) for name, y in graph.states.items()}
    folded = replace(
        graph,
        state_columns={
            name: np.arange(width) if layout is None else layout.places(pitch(layout.width))
            for name, (width, layout) in states.items()
        },
        outputs=tuple(_output(out.name, affine.get(out.name)) for out in graph.outputs),
        layers=tuple(
            layer
            if isinstance(layer, AttentionLayer)
            else _appended(layer)
            if layer.into is not None and is_copied(layer)
            else _ordered(_folded(layer, affine, weights, activates), layouts)
            for layer in graph.layers
        ),
    )
    return _with_tables(folded, pitch)


fold_shapes = partial(fold, weights=False)
"""`fold` without weights, for compiling a program only."""


def _with_tables(graph: LayerGraph, pitch: Callable[[int], int]) -> LayerGraph:
    """The graph with an input for each table of factors of the host. Layers that rotate by the same factors share one,
    unless folding has multiplied these by other numbers, such as the scales of the norms of queries and of keys."""
    inputs, taken = dict(graph.inputs), {*graph.inputs, *(layer.y for layer in graph.layers)}
    names: dict[tuple[str, str, tuple[int, ...]], str] = {}
    layers: list[Layer] = []
    for layer in graph.layers:
        if isinstance(layer, Gemm) and layer.rotary is not None and layer.rotary.source is not None:
            rotary, source = layer.rotary, layer.rotary.source
            key = source, rotary.key, rotary.order
            if key not in names:
                names[key] = unique_name(source, taken) if source in names.values() else source
            inputs[names[key]] = 2 * pitch(rotary.head_dim)
            layer = replace(layer, rotary=replace(rotary, source=names[key]))
        layers.append(layer)
    return replace(graph, inputs=inputs, layers=tuple(layers))


def _ordered(layer: Gemm, layouts: Mapping[str, Layout]) -> Gemm:
    """The product with its columns in the orders of its operand and its result."""
    x, y = layouts.get(layer.x), layouts.get(layer.y)
    orders = [layout.order for layout in (x, y) if layout is not None]
    return in_order(layer, x, y) if any(orders) or layer.rotary is not None else layer


def _folded(layer: Gemm, affine: Mapping[str, UnappliedAffine | None], weights: bool, activates: bool) -> Gemm:
    """The product, or the pass, with the scale and shift of its operands folded in, and without its own."""
    residual = None if layer.residual is None else affine.get(layer.residual)
    for norm, operand in ((layer.x_norm, layer.x), (layer.residual_norm, layer.residual)):
        if norm is not None and affine.get(str(operand)) is not None:
            raise UnsupportedError(f"{layer.place}: a norm of {operand}, which has a scale; make the norm a pass")
    if layer.is_sum:
        return _folded_sum(layer, affine.get(layer.x), residual)
    if not layer.multiplies:
        return _folded_pass(layer, residual, activates)
    weight: Array = _unknown(layer.weight)
    bias: Vector = _unknown(layer.bias)
    if weights:
        weight, bias = _product(layer, affine.get(layer.x))
    if residual is not None:
        bias = bias + residual.shift
    scale = None
    if layer.residual is not None:
        scale = np.ones(layer.width) if residual is None else residual.scale
    return replace(
        layer,
        weight=weight,
        bias=bias.astype(np.float32),
        residual_scale=None if scale is None else scale.astype(np.float32),
        factor=1.0,
        scale=None,
        shift=None,
    )


def _product(layer: Gemm, affine: UnappliedAffine | None) -> tuple[Array, Vector]:
    """Weight and bias of a product, with the scale and shift of its operand folded in."""
    factor = np.float64(layer.factor)
    if affine is None:
        return _scaled(layer.weight, np.broadcast_to(factor, len(layer.weight))), layer.bias * factor
    bias = layer.bias + _times(affine.shift, layer.weight)
    return _scaled(layer.weight, affine.scale * factor), bias * factor


def _unknown(like: np.ndarray) -> Array:
    """NaN in the shape of `like`, without memory: any use of it is seen in the results."""
    return np.broadcast_to(np.float32(np.nan), like.shape)


def _appended(layer: Gemm) -> Gemm:
    """Rows for a cache that lie as the cache has them: a pass, instead of a product with the identity matrix."""
    none, zeros = np.zeros((0, layer.width), np.float32), np.zeros(layer.width, np.float32)
    return replace(layer, weight=none, bias=zeros, residual=layer.x, residual_scale=np.ones(layer.width, np.float32))


def _folded_pass(layer: Gemm, affine: UnappliedAffine | None, activates: bool) -> Gemm:
    """A pass: no product, its operand is the residual. Such a pass has no bias; if a shift of the operand must be
    added, or if the machine cannot activate it, it becomes an exact product with the scale as diagonal matrix."""
    scale = (np.ones(layer.width) if affine is None else affine.scale).astype(np.float32)
    bare = replace(layer, bias=np.zeros(layer.width, np.float32), scale=None, shift=None)
    shift = np.zeros(layer.width) if affine is None else affine.shift
    if not shift.any() and (activates or layer.activation is None):
        return replace(bare, residual_scale=scale)
    return replace(bare, weight=np.diag(scale), bias=shift.astype(np.float32), residual=None)


def _folded_sum(layer: Gemm, x: UnappliedAffine | None, residual: UnappliedAffine | None) -> Gemm:
    """A sum of two activations without a product, of which the residual alone can have a scale, and none a shift: with
    more of both, it becomes an exact product like a pass."""
    assert layer.residual is not None
    bare = replace(layer, bias=np.zeros(layer.width, np.float32), scale=None, shift=None)
    if x is not None and residual is None and layer.x_norm is None and layer.residual_norm is None:
        bare, x, residual = replace(bare, x=layer.residual, residual=layer.x), None, x
    scale = (np.ones(layer.width) if residual is None else residual.scale).astype(np.float32)
    shift = sum((each.shift for each in (x, residual) if each is not None), np.zeros(layer.width))
    if x is None and not shift.any():
        return replace(bare, residual_scale=scale)
    weight = np.eye(layer.width, dtype=np.float32) if x is None else np.diag(x.scale.astype(np.float32))
    return replace(bare, weight=weight, bias=shift.astype(np.float32), residual_scale=scale)


def _output(name: str, affine: UnappliedAffine | None) -> Output:
    if affine is None:
        return Output(name)
    return Output(name, affine.scale.astype(np.float32), affine.shift.astype(np.float32))


PIECE = 16
"""Rows or columns of a weight that are converted at a time. They stay in the cache, which is ten times faster."""


def _scaled(weight: Array, factors: np.ndarray) -> Array:
    """A copy of `weight` with row i multiplied by factors[i] in float64, rounded once."""
    if (factors == 1).all():
        return weight.astype(np.float32, order="C")
    out = np.empty(weight.shape, np.float32)
    for at in range(0, len(out), PIECE):
        rows = slice(at, at + PIECE)
        out[rows] = weight[rows] * factors[rows, None]
    return out


def _times(vector: np.ndarray, weight: Array) -> np.ndarray:
    """vector @ weight in float64."""
    out = np.empty(weight.shape[1])
    for at in range(0, len(out), PIECE):
        out[at : at + PIECE] = vector @ weight[:, at : at + PIECE].astype(np.float64)
    return out
