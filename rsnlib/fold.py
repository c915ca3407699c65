"""Fold the scale and shift of every norm, and every constant factor, into the weights of the consumers.

The machine normalises without scale and shift: of y = n * g + s it computes n. A product of y becomes a product of n
with weight g[:, None] * W and bias b + s @ W; a residual y becomes the residual n with scale g, and s is added to the
bias; an output y becomes the output n with scale g and shift s. All in float64, rounded once.

Heads that a product normalises or rotates keep their scale: it goes into the table of the rotation. That table pairs
neighbouring columns, so the columns of a head are stored in an order in which partners are neighbours (`head_order`).
The scores of an attention do not change if its queries and keys have the same order. Where two consumers need different
layouts, a product with the identity matrix (exact) stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import UnsupportedError
from ..scheduler.graph import (
    Array,
    AttentionLayer,
    Float64,
    Gemm,
    Layer,
    LayerGraph,
    Output,
    Rotary,
    Vector,
    behind,
    unique_name,
)
from ..scheduler.memory import head_pitch
from .layers import identifier


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
        stored_columns={
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


# -- layouts of heads --------------------------------------------------------------------------------------------------


class HeadLayout(NamedTuple):
    """`heads` heads of `width` columns, stored apart. order: the column of a head that each stored one is, from 0 on;
    empty for their own order."""

    heads: int
    width: int
    order: tuple[int, ...] = ()

    @property
    def columns(self) -> npt.NDArray[np.intp]:
        """The column of the activation that each stored one is, padding left out: integers (heads * width,)."""
        order = np.array(self.order or range(self.width), np.intp)
        columns: npt.NDArray[np.intp] = (np.arange(self.heads)[:, None] * self.width + order).reshape(-1)
        return columns

    def places(self, pitch: int) -> npt.NDArray[np.intp]:
        """Return where each column of the activation is stored: integers (heads * width,), stored columns from 0 on.
        pitch: stored columns from one head to the next."""
        out = np.empty(self.heads * self.width, np.intp)
        out[self.columns] = (np.arange(self.heads)[:, None] * pitch + np.arange(self.width)).reshape(-1)
        return out


Layout = HeadLayout | None
"""None: columns side by side in their own order."""


@dataclass(frozen=True)
class UnappliedAffine:
    """The scale and shift that the machine does not apply to a result of N columns: float64 (N,) each."""

    scale: Float64
    shift: Float64


def affine_of(layer: Layer | None) -> UnappliedAffine | None:
    """Return the scale and shift that the machine does not apply to the result of a layer; None if there are none, and
    for an input (`layer` None)."""
    if layer is None or isinstance(layer, AttentionLayer) or layer.scale is None:
        return None
    return UnappliedAffine(layer.scale, np.zeros(layer.width) if layer.shift is None else layer.shift)


def with_table(layer: Layer) -> Layer:
    """Return the layer with the scale of its heads in a table: own and partner's columns times their scales. A scale
    without a rotation is a table of which only the own columns count. Layers without heads or scale stay. Raises
    `UnsupportedError` for a shift, and for a scale that differs between heads."""
    if isinstance(layer, AttentionLayer) or not layer.in_heads or layer.scale is None:
        return layer
    if layer.shift is not None and np.any(layer.shift):
        raise UnsupportedError(
            f"{layer.place}: a shift behind a norm of its heads; the machine multiplies normalised heads by a table "
            "but adds nothing to them: a norm without bias can run"
        )
    width = layer.width // layer.heads
    scale = np.asarray(layer.scale, np.float64).reshape(layer.heads, width)
    if (scale != scale[0]).any():
        raise UnsupportedError(f"{layer.place}: a norm of heads whose scale differs between heads; make it one for all")
    rotary = layer.rotary or Rotary(np.ones((1, width), np.float32), np.zeros((1, width), np.float32), (*range(width),))
    partners = list(rotary.partners)
    own, partner = (rotary.own * scale[0]).astype(np.float32), (rotary.partner * scale[0][partners]).astype(np.float32)
    return replace(layer, rotary=replace(rotary, own=own, partner=partner), scale=None, shift=None)


def head_order(rotary: Rotary) -> tuple[int, ...]:
    """Return an order of the columns of a head in which the partner of the column at place p is at place p ^ 1.

    The result has, for each place, the column that it gets: first the pairs of partners, then the columns that are
    their own partner. It is () if the columns already lie so. Raises `UnsupportedError` if `rotary.partners` is not its
    own inverse.
    """
    partners = rotary.partners
    if sorted(partners) != [*range(rotary.head_dim)] or any(partners[p] != c for c, p in enumerate(partners)):
        raise UnsupportedError(
            "a rotation that does not exchange columns in pairs; the machine pairs each column of a head with one other"
        )
    pairs = [(c, p) for c, p in enumerate(partners) if c < p]
    alone = [c for c, p in enumerate(partners) if c == p]
    if all((c ^ 1) == p for pair in pairs for c, p in (pair, pair[::-1])):
        return ()
    return (*(c for pair in pairs for c in pair), *alone)


def reordered(rotary: Rotary, order: Sequence[int]) -> Rotary:
    """Return a rotation of heads whose columns are stored in the given order, so that partners are neighbours. order:
    the column at each place; empty for their own order."""
    width, at = rotary.head_dim, list(order or range(rotary.head_dim))
    neighbours = tuple(c ^ 1 if c ^ 1 < width else c for c in range(width))
    own, partner = rotary.own[:, at], rotary.partner[:, at]
    swaps = np.array([rotary.partners[c] != c for c in at])
    # a column without a partner has a neighbour nevertheless
    alone = np.where(swaps, own, own + partner), np.where(swaps, partner, np.float32(0))
    own, partner = (x.astype(np.float32) for x in alone)
    return replace(rotary, own=own, partner=partner, partners=neighbours, order=tuple(at))


class LaidOut:
    """A graph of layers with a layout for the columns of each activation. Products with the identity matrix are
    inserted where a consumer needs another column layout, and where an attention reads a result whose scale or shift is
    not applied yet.

    A product stores its columns in the head layout of an attention if no consumer needs another layout; products of its
    result can read any layout. pitch: a function from the number of columns of a head to the number of stored columns
    from one head to the next.
    """

    def __init__(self, graph: LayerGraph, pitch: Callable[[int], int]) -> None:
        self._graph, self._pitch = graph, pitch
        self._layers = {layer.y: layer for layer in graph.layers}
        self._moves: dict[tuple[str, Layout], Gemm] = {}
        self._needed: dict[str, dict[Layout, None]] = {out.name: {None: None} for out in graph.outputs}
        for layer in graph.layers:
            for operand, layout in self._operand_layouts(layer):
                self._needed.setdefault(operand, {})[layout] = None

    def graph(self) -> tuple[LayerGraph, Mapping[str, Layout]]:
        """Return the graph with the products, and the layout of each activation by its name. Raises `UnsupportedError`,
        naming the layer, for a rotation that does not exchange columns in pairs."""
        layers: dict[str, Layer] = {layer.y: self._rebuilt(layer) for layer in self._graph.layers}
        outputs = [self._side_by_side(out.name) for out in self._graph.outputs]
        layouts = {name: self._layout(name) for name in (*self._graph.inputs, *layers)}
        layouts |= {move.y: layout for (_, layout), move in self._moves.items()}
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
        return made.renamed(names), {names.get(name, name): layout for name, layout in layouts.items()}

    def _rebuilt(self, layer: Layer) -> Layer:
        if isinstance(layer, AttentionLayer):
            q, k, v, _ = self._attention_layouts(layer)
            return replace(
                layer, q=self._attended(layer.q, q), k=self._attended(layer.k, k), v=self._attended(layer.v, v)
            )
        if layer.residual is None:
            return layer
        x = layer.x if layer.multiplies else self._side_by_side(layer.x)
        return replace(layer, x=x, residual=self._side_by_side(layer.residual))

    def _side_by_side(self, name: str) -> str:
        """The activation without padding between heads, for consumers other than products and attention."""
        return name if self._layout(name) is None else self._moved(name, None)

    def _attended(self, name: str, layout: Layout) -> str:
        fits = self._layout(name) == layout and affine_of(self._layers.get(name)) is None
        return name if fits else self._moved(name, layout)

    def _layout(self, name: str) -> Layout:
        """The layout in which an activation is stored."""
        layer = self._layers.get(name)
        if isinstance(layer, AttentionLayer):
            return self._attention_layouts(layer)[3]
        if layer is not None and layer.in_heads:
            return self._heads(layer.heads, layer.width // layer.heads, self._order(name))
        if layer is None or layer.residual is not None or affine_of(layer) is not None or layer.gated:
            return None
        layouts = self._needed.get(name, {})
        return None if None in layouts else next(iter(layouts), None)

    def _order(self, name: str) -> tuple[int, ...]:
        """The order of columns in each head that the product of an activation asks for."""
        layer = self._layers.get(name)
        if not isinstance(layer, Gemm) or layer.rotary is None:
            return ()
        try:
            return head_order(layer.rotary)
        except UnsupportedError as error:
            raise UnsupportedError(f"{layer.place}: {error}") from None

    def _moved(self, name: str, layout: Layout) -> str:
        if (name, layout) not in self._moves:
            layer = self._layers.get(name)
            path, width = (name, self._graph.inputs[name]) if layer is None else (layer.path, layer.width)
            y = f"{name} {layout}"  # until all are known
            eye, zeros = np.eye(width, dtype=np.float32), np.zeros(width)
            self._moves[name, layout] = Gemm(f"{path}.columns".lstrip("."), name, y, eye, zeros, copies=True)
        return self._moves[name, layout].y

    def _operand_layouts(self, layer: Layer) -> Iterator[tuple[str, Layout]]:
        """The layout that a layer needs of each operand, except the operand of a product, which can have any layout."""
        if isinstance(layer, AttentionLayer):
            yield from zip((layer.q, layer.k, layer.v), self._attention_layouts(layer), strict=False)
        elif layer.residual is not None:
            yield layer.residual, None
            if not layer.multiplies:
                yield layer.x, None

    def _attention_layouts(self, layer: AttentionLayer) -> tuple[Layout, Layout, Layout, Layout]:
        """Of queries, keys, values and the result. Queries and keys have the order of the queries if these are rotated,
        else that of the keys."""
        order = self._order(layer.q) or self._order(layer.k)
        keys, width = layer.heads // layer.groups, layer.head_dim
        return (
            self._heads(layer.heads, width, order),
            self._heads(keys, width, order),
            self._heads(keys, width, ()),
            self._heads(layer.heads, width, ()),
        )

    def _heads(self, heads: int, width: int, order: tuple[int, ...]) -> Layout:
        return HeadLayout(heads, width, order) if order or self._pitch(width) != width else None


def in_order(layer: Gemm, x: Layout, y: Layout) -> Gemm:
    """Return a product with its constants in the orders of its layouts: rows of the weight in that of the operand, `x`;
    columns of the weight, the bias and the table of a rotation in that of the result, `y`. A layout without an order
    leaves the weight and the bias as they are."""
    weight, bias = layer.weight, layer.bias
    if x is not None and x.order and layer.multiplies:
        weight = _taken(weight, x.columns, 0)
    if y is None or not y.order:
        rotary = layer.rotary and reordered(layer.rotary, ())
    else:
        weight, bias = _taken(weight, y.columns, 1), _taken(bias, y.columns, 0)
        rotary = layer.rotary and reordered(layer.rotary, y.order)
    return replace(layer, weight=weight, bias=bias, rotary=rotary)


def _taken(values: Array, at: npt.NDArray[np.intp], axis: int) -> Array:
    """Rows or columns in another order; numbers that take no memory (`fold_shapes`) still take none."""
    return values if not any(values.strides) else np.take(values, at, axis)
