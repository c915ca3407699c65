"""The layers of a network as operations on the rows of a panel: attention with its projections, two products with
functions between them, single products, sums, passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...base.errors import UnsupportedError
from ...isa.lanes import SentNorm
from ...isa.layout import padded
from ..graph import AttentionLayer, Gemm, Layer, LayerGraph, Norm, unique_name
from .blocks import TILE, TILE_SIZE
from .modes import Mode


class SentOperand(NamedTuple):
    """An activation as an operation reads it. name: of the activation in X or in DDR. norm: the norm that X applies as
    it sends it, None for none."""

    name: str
    norm: SentNorm | None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation on the rows of a panel. y: the name of its result. x: its operand. residual: what is added; None
    for none. layers: the layers of the network that it computes, in execution order."""

    y: str
    x: SentOperand
    residual: SentOperand | None
    layers: tuple[Gemm | AttentionLayer, ...]


@dataclass(frozen=True, eq=False)
class Attend(Operation):
    """attention(x) @ out + residual."""

    attention: AttentionLayer
    q: Gemm
    k: Gemm
    v: Gemm
    out: Gemm


@dataclass(frozen=True, eq=False)
class Feed(Operation):
    """functions(x @ up) @ down + residual: two products, with an activation function or a gate between them."""

    up: Gemm
    down: Gemm


@dataclass(frozen=True, eq=False)
class Project(Operation):
    """functions(x @ weight) + residual. stays: the result stays on chip; otherwise it goes to DDR."""

    gemm: Gemm
    stays: bool


@dataclass(frozen=True, eq=False)
class AddResidual(Operation):
    """x + residual * scale, in place of x: the sum overwrites the bank of x."""

    gemm: Gemm


@dataclass(frozen=True, eq=False)
class Copy(Operation):
    """x * scale, in the other bank of X."""

    gemm: Gemm


def row_norm(norm: Norm | None) -> SentNorm | None:
    """A norm of the network, as a read port of X applies it; None for none."""
    return None if norm is None else SentNorm(norm.eps, norm.rms)


def check_width(place: str, columns: int, mode: Mode) -> None:
    """Raise `UnsupportedError` for rows of `columns` columns that a bank of X does not hold. place: name of the layer
    for the message."""
    tiles = padded(columns, TILE) // TILE
    if tiles > mode.columns:
        lanes = mode.halves
        needs, has = (n * TILE_SIZE * 4 >> 10 for n in (tiles, mode.columns))
        raise UnsupportedError(
            f"{place}: 128 rows of {tiles * TILE} columns need {needs} KiB; a bank of X has {has} KiB for them, in "
            f"{lanes} lane{'s' * (lanes > 1)}"
        )


def projected(network: LayerGraph) -> LayerGraph:
    """The same network, changed so that exactly one product reads each attention, and X adds up this product. Where
    that is not so, a product with the identity matrix, which is exact, is put behind the attention. The reason: the
    results of heads lie in T, and only a product that X adds up can take them from there."""
    outputs, readers = {o.name for o in network.outputs}, network.readers
    taken = {*network.inputs, *readers, *(layer.y for layer in network.layers)}
    layers: list[Layer] = []
    for layer in network.layers:
        if not isinstance(layer, AttentionLayer) or (layer.y not in outputs and _projection(layer, readers)):
            layers.append(layer)
            continue
        heads = unique_name(f"{layer.y}_heads", taken)
        eye, zeros = np.eye(layer.width, dtype=np.float32), np.zeros(layer.width, np.float32)
        layers += [replace(layer, y=heads), Gemm(layer.path, heads, layer.y, eye, zeros)]
    return replace(network, layers=tuple(layers))


def _projection(layer: AttentionLayer, readers: Mapping[str, Sequence[Layer]]) -> bool:
    """Whether one product whose sums are its result, but for a norm, is all that reads an attention."""
    only, *others = readers.get(layer.y, (None,))
    if others or not isinstance(only, Gemm) or only.x != layer.y or only.residual == layer.y:
        return False
    return _is_sum(only) and only.x_norm is None


def _is_sum(gemm: Gemm) -> bool:
    """Whether a product is a sum over K to which nothing but a norm is applied, so that X can add up its parts."""
    return gemm.multiplies and gemm.activation is None and not gemm.gated and not gemm.in_heads


class Matched:
    """Finds the operations of a network, which is `projected`. overlay: its name, for messages."""

    def __init__(self, network: LayerGraph, mode: Mode, overlay: str) -> None:
        self.net, self.mode, self.overlay = network, mode, overlay
        self.made = {layer.y: layer for layer in network.layers}
        self.readers = network.readers
        self.outputs = {o.name for o in network.outputs}
        self.views: dict[str, SentOperand] = {}
        """Activations that are the norm of another one."""
        self.norms: dict[str, SentNorm | None] = {}
        """The norm with which each activation is sent that is computed here."""

    def operations(self) -> list[Operation]:
        """All operations, in execution order. Each stands at the place of its last layer, so that its operands have
        been computed. Raises `UnsupportedError`, naming the layer, for a layer that the lanes cannot compute."""
        out: list[Operation] = []
        for layer in self.net.layers:
            if isinstance(layer, AttentionLayer) or self._feeds_attention(layer) or self._is_up(layer):
                continue
            elif self._is_view(layer) and self.operand(str(layer.residual)).norm is None:
                raw = self.operand(str(layer.residual))
                self.views[layer.y] = SentOperand(raw.name, row_norm(layer.norm))
            else:
                out.append(self._other(layer))
                self._note(out[-1])
        return out

    def _note(self, op: Operation) -> None:
        last = op.layers[-1]
        self.norms[op.y] = row_norm(last.norm) if isinstance(last, Gemm) and not last.in_heads else None

    def operand(self, name: str, norm: Norm | None = None) -> SentOperand:
        """The activation `name` as an operation reads it. norm: the norm that the layer itself applies to it, None for
        none. Raises `UnsupportedError` for a norm of a result that has a norm already."""
        if name in self.views:
            found = self.views[name]
        else:
            found = SentOperand(name, self.norms.get(name))
        if norm is not None:
            if found.norm is not None:
                raise UnsupportedError(f"{name}: a norm of what a norm made")
            found = SentOperand(found.name, row_norm(norm))
        return found

    def _only(self, name: str) -> Gemm | AttentionLayer | None:
        """The only layer that reads an activation that is no output; None if there are others."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def _is_view(self, layer: Gemm) -> bool:
        """Whether a layer does nothing but a norm over one activation, which only operations on chip read."""
        scale = layer.residual_scale
        return (
            not layer.multiplies
            and not layer.is_sum
            and layer.norm is not None
            and layer.activation is None
            and not layer.in_heads
            and layer.residual_norm is None
            and (scale is None or bool(np.all(scale == 1)))
            and layer.y not in self.outputs
        )

    def _feeds_attention(self, layer: Gemm) -> bool:
        reader = self._only(layer.y)
        return isinstance(reader, AttentionLayer) and layer.y in (reader.q, reader.k, reader.v)

    def _is_up(self, layer: Gemm) -> bool:
        """Whether a product is only read by another product, and can be computed with it."""
        reader = self._only(layer.y)
        return (
            isinstance(reader, Gemm)
            and reader.multiplies
            and reader.x == layer.y
            and reader.residual != layer.y
            and reader.x_norm is None
            and layer.multiplies
            and layer.residual is None
            and layer.norm is None
            and not layer.in_heads
            and self._is_slice(reader)
            and not isinstance(self.made.get(layer.x), AttentionLayer)
            and not self._is_up(reader)  # of three products in a row, the last two are computed together
        )

    def _is_slice(self, gemm: Gemm) -> bool:
        """Whether slices of K can be added up in X: nothing but a norm is applied to the sum."""
        return _is_sum(gemm) and padded(gemm.width, TILE) // TILE <= self.mode.columns

    def _attend(self, a: AttentionLayer, out: Gemm) -> Attend:
        products = [self.made.get(name) for name in (a.q, a.k, a.v)]
        for name, p in zip((a.q, a.k, a.v), products, strict=True):
            if not isinstance(p, Gemm) or not self._feeds_attention(p) or p.residual is not None or p.activation:
                raise UnsupportedError(
                    f"{a.place}: {name} is not a product that only this attention reads; overlay {self.overlay} "
                    "computes queries, keys and values beside the attention"
                )
        check_width(a.place, out.width, self.mode)
        q, k, v = (p for p in products if isinstance(p, Gemm))
        x = self.operand(q.x, q.x_norm)
        if any(self.operand(p.x, p.x_norm) != x for p in (k, v)):
            raise UnsupportedError(f"{a.place}: queries, keys and values of different activations")
        for what, given in (("a bias", a.bias is not None), ("a mask of numbers", a.mask is not None)):
            if given:
                raise UnsupportedError(
                    f"{a.place}: {what} of scores; overlay {self.overlay} has masks of rows and columns only"
                )
        return Attend(out.y, x, self._residual(out), (q, k, v, a, out), a, q, k, v, out)

    def _residual(self, gemm: Gemm) -> SentOperand | None:
        return None if gemm.residual is None else self.operand(gemm.residual, gemm.residual_norm)

    def _other(self, layer: Gemm) -> Operation:
        if layer.is_sum:
            x = self.operand(layer.x, layer.x_norm)
            if x.norm is not None:
                raise UnsupportedError(f"{layer.place}: a sum whose first addend is normalised")
            if layer.activation is not None or layer.in_heads:
                raise UnsupportedError(f"{layer.place}: a function of a sum of two activations")
            return AddResidual(layer.y, x, self._residual(layer), (layer,), layer)
        if not layer.multiplies:
            if layer.activation is not None or layer.in_heads:
                raise UnsupportedError(f"{layer.place}: a pass over one activation that is no norm")
            x = self.operand(str(layer.residual), layer.residual_norm)
            return Copy(layer.y, x, None, (layer,), layer)
        up = self.made.get(layer.x)
        if isinstance(up, AttentionLayer):
            return self._attend(up, layer)
        if isinstance(up, Gemm) and self._is_up(up):
            return Feed(layer.y, self.operand(up.x, up.x_norm), self._residual(layer), (up, layer), up, layer)
        x = self.operand(layer.x, layer.x_norm)
        stays = self._is_slice(layer)
        if not stays and (layer.residual is not None or (layer.norm is not None and not layer.in_heads)):
            columns = self.mode.lane.columns
            raise UnsupportedError(
                f"{layer.place}: a residual or a norm of {layer.width} columns; a bank of X has {columns * TILE} "
                f"({columns * TILE_SIZE * 4 >> 10} KiB), in {self.mode.halves} lanes"
            )
        return Project(layer.y, x, self._residual(layer), (layer,), layer, stays)
