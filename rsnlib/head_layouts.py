"""How activations that attentions read and write are stored: heads apart, and the columns of a head in the order that a
rotation needs. Where two consumers need different layouts, a product with the identity matrix (exact) stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    behind,
    unique_name,
)
from .layers import identifier


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
    """A graph with products with the identity matrix inserted where a consumer needs another column layout, or an
    attention reads a result whose scale or shift is not applied yet.

    A product stores its columns in the head layout of an attention if no consumer needs another layout; products of its
    result can read any layout. pitch: from the columns of a head to the stored columns from one head to the next.
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
            self._moves[name, layout] = Gemm(f"{path}.columns".lstrip("."), name, y, eye, zeros)
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
