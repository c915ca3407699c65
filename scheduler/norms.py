"""Norms that consumers apply as they load, instead of a pass of their own or of the memory of results.

A norm at a store needs whole rows in the memories of results, and where the raw activation is needed too, as in every
pre-norm model, a pass that reads it and stores it again. Instead, whatever computes the activation can store mean and
variance of its rows beside it, and its consumers normalise what they load (`Gemm.x_norm`, `Gemm.residual_norm`).

`norms_at_loads` rewrites a folded graph that way, by these rules:

- A network that the machine runs without any extension (`needs_extension`) stays as it is, and so does its program.
- A norm over more columns than a store can normalise always goes to the loads.
- A pass goes there if that moves fewer bytes. The pass reads and writes each row once. At the loads, a row costs a
  quarter block's share, 16 numbers, for each part of 1024 columns, when it is stored and for each output tile that
  loads it; and one more read if no product computes the activation.
- Any other norm stays at the store, where it moves nothing; so does one with an eps of 0, by which a load would make no
  numbers of rows of padding.

Where a consumer cannot normalise, such as an attention or the host, a pass does (`residual_norm`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..isa.layout import QUARTER
from ..isa.overlay import Overlay
from .graph import AttentionLayer, Gemm, Layer, LayerGraph, Norm, unique_name
from .tile import TILE, GridLimits

ROW = QUARTER // TILE
"""Numbers of statistics for a row and a part."""


def norms_at_loads(network: LayerGraph, overlay: Overlay) -> LayerGraph:
    """The same network with norms where they cost least; the network itself where the overlay cannot normalise loads,
    or need not. network: folded. Activations keep their names. A product whose norm moves to the loads of its readers
    computes a new activation, with `_raw` behind its name."""
    if overlay.patterns is None or overlay.capability("normalise") is None or overlay.capability("statistics") is None:
        return network
    if not needs_extension(network, overlay):
        return network
    moving = _Moving(network, overlay)
    return moving.network()


def widest_norm(overlay: Overlay, norm: Norm) -> int:
    """Columns of the widest norm of this kind (LayerNorm or RMSNorm) that a memory of results applies at its store; 0
    if it has none."""
    found = overlay.capability("rmsnorm" if norm.rms else "layernorm")
    return 0 if found is None else int(found.limits["columns"][1])


def needs_extension(network: LayerGraph, overlay: Overlay) -> bool:
    """Whether a network has a layer that the machine runs only with the extended instructions, not with those that set
    registers of results: gates, rotations, norms of heads or of operands, wide norms, sums; attention with shared or
    wide heads, or whose mask is more than a length."""
    return any(_is_extended(network, layer, overlay) for layer in network.layers)


def _is_extended(network: LayerGraph, layer: Layer, overlay: Overlay) -> bool:
    if isinstance(layer, AttentionLayer):
        wide = overlay.head_pitch(layer.head_dim) > overlay.head_columns
        masks = layer.left or layer.window is not None or layer.softcap is not None or layer.mask is not None
        return wide or layer.groups > 1 or masks
    norms = layer.x_norm is not None or layer.residual_norm is not None
    wide = layer.norm is not None and not layer.in_heads and layer.width > widest_norm(overlay, layer.norm)
    return layer.gated or layer.in_heads or norms or wide or layer.is_sum


@dataclass(frozen=True)
class _Source:
    """A normalised activation as its consumers find it: the raw one, and the norm. paths: modules of the norm, for the
    first consumer."""

    name: str
    norm: Norm
    paths: list[str]


class _Moving:
    """Moves norms of one network."""

    def __init__(self, network: LayerGraph, overlay: Overlay) -> None:
        assert overlay.patterns is not None
        self._network, self._overlay = network, overlay
        self._limits = GridLimits.of(overlay, overlay.patterns.grid)
        self._made = {layer.y: layer for layer in network.layers}
        self._outputs = {out.name for out in network.outputs}
        self._taken = {*network.inputs, *self._made}

    def network(self) -> LayerGraph:
        """The network with its norms moved."""
        sources: dict[str, _Source] = {}
        layers: list[Layer] = []
        for layer in self._network.layers:
            if isinstance(layer, AttentionLayer):
                layers.append(layer)
                continue
            moved = self._moves(layer)
            layer = _normalising(layer, sources)
            layers += self._split(layer, sources) if moved else [layer]
        return replace(self._network, layers=tuple(layers))

    def _moves(self, layer: Gemm) -> bool:
        """Whether the norm of a layer goes to its consumers."""
        if layer.norm is None or layer.in_heads:
            return False
        if layer.width > widest_norm(self._overlay, layer.norm):
            return True
        able = _is_bare(layer) and layer.norm.eps > 0 and self._all_take(layer)
        return able and self._moved(layer) < 2 * layer.width

    def _all_take(self, layer: Gemm) -> bool:
        """Whether nobody needs the normalised result of a layer as such."""
        readers = self._network.readers.get(layer.y, ())
        raw = layer.residual if _is_bare(layer) else None
        return layer.y not in self._outputs and all(_takes(reader, layer.y, raw) for reader in readers)

    def _moved(self, layer: Gemm) -> int:
        """Numbers that move for a row if the norm of a pass goes to the loads."""
        source = self._made.get(str(layer.residual))
        is_made = isinstance(source, Gemm) and source.is_plain_store
        tile = self._limits.grid_cols * self._limits.cols * TILE
        parts = -(-layer.width // tile)
        loads = sum(-(-_computed(reader) // tile) for reader in self._network.readers.get(layer.y, ()))
        return ROW * parts * (1 + loads) + (0 if is_made else layer.width)

    def _split(self, layer: Gemm, sources: dict[str, _Source]) -> Iterator[Layer]:
        """What is left of a layer whose norm goes to the loads: nothing of a pass over one activation, else a layer
        that computes the raw activation; and a pass where the normalised activation is needed as such."""
        assert layer.norm is not None
        if _is_bare(layer) and layer.residual_norm is None:
            raw = str(layer.residual)
        else:
            raw = unique_name(f"{layer.y}_raw", self._taken)
            yield replace(layer, y=raw, norm=None)
        if self._all_take(layer):
            bare = raw == layer.residual
            sources[layer.y] = _Source(raw, layer.norm, [layer.path, *layer.fused] if bare else [])
            return
        none, zeros = np.zeros((0, layer.width), np.float32), np.zeros(layer.width, np.float32)
        ones = np.ones(layer.width, np.float32)
        yield Gemm(layer.path, raw, layer.y, none, zeros, None, raw, ones, residual_norm=layer.norm)


def _computed(layer: Layer) -> int:
    """Columns that a layer computes."""
    return layer.width if isinstance(layer, AttentionLayer) else int(layer.weight.shape[1])


def _takes(layer: Layer, y: str, raw: str | None) -> bool:
    """Whether a layer can normalise its operand y as it loads it, of which `raw` may become the name. A sum keeps its
    other operand, which must be another activation."""
    if not isinstance(layer, Gemm):
        return False
    return not layer.is_sum or (layer.x != y and layer.x != raw)


def _is_bare(layer: Gemm) -> bool:
    """Whether a layer does nothing but a norm over one activation."""
    scale = layer.residual_scale
    return (
        not layer.multiplies
        and not layer.is_sum
        and layer.activation is None
        and (scale is None or bool(np.all(scale == 1)))
    )


def _normalising(layer: Gemm, sources: Mapping[str, _Source]) -> Gemm:
    """The layer with raw operands and their norms."""
    x, residual = sources.get(layer.x), sources.get(str(layer.residual))
    if x is not None:
        layer = replace(layer, x=x.name, x_norm=x.norm if layer.multiplies else None)
    if residual is not None:
        layer = replace(layer, residual=residual.name, residual_norm=residual.norm)
    paths = [path for source in (x, residual) if source is not None for path in source.paths]
    for source in (x, residual):
        if source is not None:
            source.paths.clear()
    return replace(layer, fused=tuple(dict.fromkeys((*layer.fused, *paths)))) if paths else layer
