"""The MME's sums in the order in which its AIE tiles form them, to compare with other machines to the bit.

A cascade of four tiles shares K: tile c sums over k = c mod 4, in increasing order and from the bias on where c is 0;
the result is ((S0 + S1) + S2) + S3 (contract section 2). Every product and every sum is rounded. The simulator leaves
the order to numpy, which takes whatever is fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ....machine.unit import Unit
from ...overlay import Overlay
from .mme import MmeUnit, Product, Products, Sum
from .tiles import TILE, Array, Tiles, tile_grid

CASCADES = 4


def cascade(a: Array, b: Array, start: Array | None) -> Array:
    """Return a @ b, summed in the order of the hardware. a: (M, K). b: (K, N). K: a multiple of 4. start: (N,), the
    value with which the sums of tile 0 of the cascade begin, for every row; None begins with 0."""
    sums = np.zeros((CASCADES, len(a), b.shape[1]), np.float32)
    if start is not None:
        sums[0] = start
    for k in range(0, a.shape[1], CASCADES):
        sums += a[:, k : k + CASCADES].T[:, :, None] * b[k : k + CASCADES, None, :]
    return np.asarray(((sums[0] + sums[1]) + sums[2]) + sums[3])


def product(a: Array, b: Array, start: Array | None, full_k: bool, full_n: bool) -> Array:
    """Multiply a tile, or a column of tiles, by a tile, or a row of tiles, like `MmeUnit.product`, but in the order of
    `cascade`.

    a: (M, K). b: (K, N). start: as for `cascade`. full_k: False for K = 64 mode, which uses only the first 64 of K.
    full_n: False for N = 64 mode, which computes only the first 64 columns of each tile; the others are NaN.
    """
    if not full_k:
        a, b = a[:, :64], b[:64]
    out = cascade(a, b, start)
    if not full_n:
        out.reshape(len(a), -1, TILE)[:, :, 64:] = np.nan
    return out


class _CascadeProducts(Products):
    def _block(self, a: Array, b: Array) -> Tiles:
        out = product(a, b, self.bias if not self.done else None, self.full_k, self.full_n)
        self.done += len(self.left)
        return Tiles(out, tile_grid(self.rows, self.cols))

    def _tile(self, a: Array, b: Array) -> Array:
        at = self.done % self.cols * TILE
        start = self.bias[at : at + TILE] if self.bias is not None and self.done < len(self.left) else None
        self.done += 1
        return product(a, b, start, self.full_k, self.full_n)


class _CascadeSum(Sum):
    """Collects the tiles of all of K and multiplies them at the end: each AIE tile sums over all of K, and the cascade
    adds the four sums once."""

    def __init__(self, product: Product, bias: Array | None, full_n: bool) -> None:
        super().__init__(product, bias, full_n)
        self.a: list[Array] = []
        self.b: list[Array] = []

    def add(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> None:
        self.a += a
        self.b += b

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        left, right = np.concatenate([*self.a, a], axis=1), np.concatenate([*self.b, b])
        return (product(left, right, self.bias, True, self.full_n),)


class CascadeMme(MmeUnit):
    @property
    def products(self) -> type[Products]:
        return _CascadeProducts

    @property
    def sum(self) -> type[Sum]:
        return _CascadeSum


def in_cascade_order(overlay: Overlay, mme: type[Unit] = CascadeMme) -> Overlay:
    """Return the overlay with MMEs that sum in the order of the hardware, so that results are the same to the bit.
    Their products take some hundred times as long to simulate. mme: the unit that does so."""
    units = [dataclasses.replace(u, behaviour=mme) if u.kind == "MME" else u for u in overlay.units]
    return dataclasses.replace(overlay, units=tuple(units))
