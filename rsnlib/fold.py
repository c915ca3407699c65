"""Fold the scale and shift of every norm, and every constant factor, into the weights of the consumers.

The machine normalises without scale and shift: of y = n * g + s it computes n. A product of y becomes a product of n
with weight g[:, None] * W and bias b + s @ W; a residual y becomes the residual n with scale g, and s is added to the
bias; an output y becomes the output n with scale g and shift s. All in float64, rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..scheduler.graph import (
    Array,
    AttentionLayer,
    Float64,
    Gemm,
    Layer,
    LayerGraph,
    Output,
    Vector,
    behind,
    with_operands,
)
from ..scheduler.memory import HEAD_COLS
from .layers import identifier, unique_name


def fold(graph: LayerGraph, weights: bool = True, head_columns: int = HEAD_COLS) -> LayerGraph:
    """Fold a graph of matched layers. Inputs, outputs and results keep their order and, except for outputs that are
    stored in another layout, their names.

    weights: False fills weights and biases of products with NaN that takes no memory, which is enough to compile a
    program; scales and shifts of outputs are computed in any case, because a program contains them. head_columns: the
    overlay's: heads of other widths are padded to a multiple of it.
    """
    graph = _LaidOut(graph, head_columns).graph()
    affine = {layer.y: _affine(layer) for layer in graph.layers}
    return replace(
        graph,
        outputs=tuple(_output(out.name, affine.get(out.name)) for out in graph.outputs),
        layers=tuple(
            layer if isinstance(layer, AttentionLayer) else _folded(layer, affine, weights) for layer in graph.layers
        ),
    )


fold_shapes = partial(fold, weights=False)
"""`fold` without weights, for compiling a program only."""


Layout = tuple[int, int] | None
"""(heads, columns of a head) if heads are padded because the machine's are wider; None without padding."""


class _LaidOut:
    """A graph with products with the identity matrix (exact) inserted where a consumer needs another column layout, or
    an attention reads a result whose scale or shift is not applied yet.

    A product stores its columns in the head layout of an attention if no consumer needs another layout; products of its
    result can read any layout.
    """

    def __init__(self, graph: LayerGraph, head_columns: int) -> None:
        self._graph, self._head_columns = graph, head_columns
        self._layers = {layer.y: layer for layer in graph.layers}
        self._moves: dict[tuple[str, Layout], Gemm] = {}
        self._needed: dict[str, dict[Layout, None]] = {out.name: {None: None} for out in graph.outputs}
        for layer in graph.layers:
            for operand, layout in self._operand_layouts(layer):
                self._needed.setdefault(operand, {})[layout] = None

    def graph(self) -> LayerGraph:
        """The graph with the products."""
        layers: dict[str, Layer] = {layer.y: self._rebuilt(layer) for layer in self._graph.layers}
        outputs = [self._side_by_side(out.name) for out in self._graph.outputs]
        layers |= {layer.y: layer for layer in self._moves.values()}
        order = behind(outputs, layers)
        taken = {*self._graph.inputs, *self._layers}
        names = {
            y: unique_name(identifier(layers[y].path, "linear"), taken)
            for y in order
            if y in layers and y not in self._layers
        }
        made = replace(
            self._graph,
            outputs=tuple(map(Output, outputs)),
            layers=tuple(layers[y] for y in order if y in layers),
        )
        return made.renamed(names)

    def _rebuilt(self, layer: Layer) -> Layer:
        if isinstance(layer, AttentionLayer):
            layout = self._head_layout(layer)
            return with_operands(layer, lambda x: self._attended(x, layout))
        if not layer.multiplies:
            return with_operands(layer, self._side_by_side)
        return layer if layer.residual is None else replace(layer, residual=self._side_by_side(layer.residual))

    def _side_by_side(self, name: str) -> str:
        """The activation without padding between heads, for consumers other than products and attention."""
        return name if self._layout(name) is None else self._moved(name, None)

    def _attended(self, name: str, layout: Layout) -> str:
        fits = self._layout(name) == layout and _affine(self._layers.get(name)) is None
        return name if fits else self._moved(name, layout)

    def _layout(self, name: str) -> Layout:
        """The layout in which an activation is stored."""
        layer = self._layers.get(name)
        if isinstance(layer, AttentionLayer):
            return self._head_layout(layer)
        if layer is None or layer.residual is not None or _affine(layer) is not None:
            return None
        layouts = self._needed.get(name, {})
        return None if None in layouts else next(iter(layouts), None)

    def _moved(self, name: str, layout: Layout) -> str:
        if (name, layout) not in self._moves:
            layer = self._layers.get(name)
            path, width = (name, self._graph.inputs[name]) if layer is None else (layer.path, layer.width)
            y = f"{name} {layout}"  # until all are known
            eye, zeros = np.eye(width, dtype=np.float32), np.zeros(width)
            self._moves[name, layout] = Gemm(f"{path}.columns".lstrip("."), name, y, eye, zeros)
        return self._moves[name, layout].y

    def _operand_layouts(self, layer: Layer) -> Iterator[tuple[str, Layout]]:
        """The layout that a layer needs of each operand, except the operand of a product, which can have any layout."""
        if isinstance(layer, AttentionLayer):
            yield from ((x, self._head_layout(layer)) for x in layer.operands)
        elif layer.residual is not None:
            yield layer.residual, None

    def _head_layout(self, layer: AttentionLayer) -> Layout:
        return (layer.heads, layer.head_dim) if layer.head_dim % self._head_columns else None


@dataclass(frozen=True)
class _Affine:
    """The scale and shift that the machine does not apply to a result, (N,) each."""

    scale: Float64
    shift: Float64


def _affine(layer: Layer | None) -> _Affine | None:
    """What the machine does not apply to the result of a layer, or to an input."""
    if layer is None or isinstance(layer, AttentionLayer) or layer.scale is None:
        return None
    return _Affine(layer.scale, np.zeros(layer.width) if layer.shift is None else layer.shift)


def _folded(layer: Gemm, affine: Mapping[str, _Affine | None], weights: bool) -> Gemm:
    """The product, or the pass, with the scale and shift of its operands folded in, and without its own."""
    residual = None if layer.residual is None else affine.get(layer.residual)
    if not layer.multiplies:
        return _folded_pass(layer, residual)
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


def _product(layer: Gemm, affine: _Affine | None) -> tuple[Array, Vector]:
    """Weight and bias of a product, with the scale and shift of its operand folded in."""
    factor = np.float64(layer.factor)
    if affine is None:
        return _scaled(layer.weight, np.broadcast_to(factor, len(layer.weight))), layer.bias * factor
    bias = layer.bias + _times(affine.shift, layer.weight)
    return _scaled(layer.weight, affine.scale * factor), bias * factor


def _unknown(like: np.ndarray) -> Array:
    """NaN in the shape of `like`, without memory: any use of it is seen in the results."""
    return np.broadcast_to(np.float32(np.nan), like.shape)


def _folded_pass(layer: Gemm, affine: _Affine | None) -> Gemm:
    """A pass: no product, its operand is the residual. Such a pass has no bias; if a shift of the operand must be
    added, the pass becomes an exact product with the scale as diagonal matrix."""
    scale = (np.ones(layer.width) if affine is None else affine.scale).astype(np.float32)
    bare = replace(layer, bias=np.zeros(layer.width, np.float32), scale=None, shift=None)
    if affine is None or not affine.shift.any():
        return replace(bare, residual_scale=scale)
    return replace(bare, weight=np.diag(scale), bias=affine.shift.astype(np.float32), residual=None)


def _output(name: str, affine: _Affine | None) -> Output:
    if affine is None:
        return Output(name)
    return Output(name, affine.scale.astype(np.float32), affine.shift.astype(np.float32))


PIECE = 16
"""Rows or columns of a weight that are converted at a time. They stay in the cache, which is ten times faster."""


def _scaled(weight: Array, factors: np.ndarray) -> Array:
    """A copy of `weight` with row i multiplied by factors[i] in float64, rounded once."""
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
