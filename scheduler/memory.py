"""Where activations and weights lie off chip, and in what column order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..base.errors import UnsupportedError
from ..isa.layout import padded
from .graph import Array, Attention, Gemm, LayerGraph
from .tiles import Tiles, column_tiles

USUAL = Tiles()
HEAD_COLS = 64
"""Columns of a head on the machine; narrower heads are padded (MemB2 holds 64, K = 64 mode multiplies 64)."""


@dataclass(frozen=True)
class Columns:
    """How an activation's columns are stored: `groups` groups of `width` columns, each padded to `pitch`; the whole
    padded to a multiple of 128, the MMEs' K and N."""

    groups: int
    width: int
    pitch: int
    panel: int | None = None
    """Columns after which the matrix goes on below itself: panels of that width, one behind the other. Activations that
    stay on the machine are stored as the column tiles they are computed in."""

    @property
    def count(self) -> int:
        return self.groups * self.width

    @property
    def stored(self) -> int:
        return padded(self.groups * self.pitch, 128)

    @property
    def used(self) -> int:
        """The stored columns that a product takes: up to the last that is not padding, in whole slices of K."""
        return padded((self.groups - 1) * self.pitch + self.width, 128)

    @property
    def is_plain(self) -> bool:
        """Whether columns lie side by side."""
        return self.groups == 1 or self.pitch == self.width

    def positions(self) -> npt.NDArray[np.intp]:
        """Stored column of each logical column."""
        g, i = np.divmod(np.arange(self.count), self.width)
        return g * self.pitch + i


def columns_of(network: LayerGraph, cuts: Mapping[str, Tiles], whole_tiles: bool = False) -> dict[str, Columns]:
    """The column layout of every activation: heads get 64 columns each; what is computed in several column tiles and
    stays on the machine lies in panels; everything else lies plain. cuts: how the product is cut that makes an
    activation, where it is not cut as usual."""
    outputs = {o.name for o in network.outputs}
    out: dict[str, Columns] = {n: Columns(1, c, padded(c, 128)) for n, c in network.inputs.items()}
    for layer in network.layers:
        if isinstance(layer, Gemm):
            n = layer.weight.shape[1]
            cut = cuts.get(layer.y, USUAL)
            stored = padded(n, cut.tile_cols * 128 if whole_tiles else 128)
            tiles, halves, blocks = column_tiles(stored // 128, cut, layer.norm is not None)
            panel = halves * blocks * 128 if tiles > 1 and layer.y not in outputs else None
            out[layer.y] = Columns(1, n, stored, panel)
    heads_of: dict[str, Columns] = {}
    for layer in network.layers:
        if isinstance(layer, Attention):
            if layer.head_dim > HEAD_COLS:
                raise UnsupportedError(
                    f"{layer.place}: heads of {layer.head_dim} columns; MemB2 holds values of at most {HEAD_COLS}"
                )
            heads = Columns(layer.heads, layer.head_dim, HEAD_COLS)
            for name in (layer.q, layer.k, layer.v, layer.y):
                known = heads_of.setdefault(name, heads)
                if known != heads and not (known.is_plain and heads.is_plain):
                    raise UnsupportedError(
                        f"{layer.place}: {name} in {heads.groups} heads of {heads.width} columns; another attention "
                        f"has it in {known.groups} of {known.width}"
                    )
                out[name] = heads
                if name in network.inputs and layer.head_dim < HEAD_COLS:
                    raise UnsupportedError(
                        f"{layer.place}: attention over a network input with heads of {layer.head_dim} columns; "
                        f"heads are stored {HEAD_COLS} columns wide"
                    )
    for name in outputs:
        if not out[name].is_plain:
            raise UnsupportedError(
                f"{name}: heads of {out[name].width} columns as an output; they are stored {out[name].pitch} wide"
            )
    return out


def stored_weight(gemm: Gemm, x: Columns, y: Columns, cols: int) -> Array:
    """The weight as stored: rows by x's layout, columns by y's, zero-padded to `cols` columns."""
    out = np.zeros((x.used, cols), np.float32)
    out[np.ix_(x.positions(), y.positions())] = gemm.weight
    return out


def stored_vector(vector: Array, y: Columns, cols: int) -> Array:
    """A per-column vector in y's layout, zero-padded to `cols`."""
    out = np.zeros(cols, np.float32)
    out[y.positions()] = vector
    return out


class Arena:
    """Offsets in one bank. Freed pieces are reused by pieces of the same size, so that the layers of a stack share
    their intermediate activations."""

    def __init__(self, start: int = 0) -> None:
        self._end = start
        self._free: dict[int, list[int]] = {}

    def take(self, units: int) -> int:
        pool = self._free.get(units)
        if pool:
            return pool.pop()
        at = self._end
        self._end = padded(at + units, 64)
        return at

    def give(self, at: int, units: int) -> None:
        self._free.setdefault(units, []).append(at)
