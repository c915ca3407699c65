"""The MME's sums in the order in which its AIE tiles form them, to compare with the C++ machine to the bit.

A cascade of four tiles shares K: tile c sums over k = c mod 4, in increasing order and from the bias on where c is 0;
the result is ((S0 + S1) + S2) + S3 (contract section 2). Every product and every sum is rounded. The simulator leaves
the order to numpy, which takes whatever is fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rsn.isa.overlay import Overlay
from rsn.isa.versal.mme import TileProducts, TileSum
from rsn.isa.versal.tiles import TILE, Array, TilePayloads, tile_grid

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
    """Like `MatrixEngine.product`, plus `start`, but in the order of `cascade`."""
    if not full_k:
        a, b = a[:, :64], b[:64]
    out = cascade(a, b, start)
    if not full_n:
        out.reshape(len(a), -1, TILE)[:, :, 64:] = np.nan
    return out


class CascadeProducts(TileProducts):
    def _block(self, a: Array, b: Array) -> TilePayloads:
        out = product(a, b, self.bias if not self.done else None, self.full_k, self.full_n)
        self.done += len(self.left)
        return TilePayloads(out, tile_grid(self.rows, self.cols))

    def _tile(self, a: Array, b: Array) -> Array:
        at = self.done % self.cols * TILE
        start = self.bias[at : at + TILE] if self.bias is not None and self.done < len(self.left) else None
        self.done += 1
        return product(a, b, start, self.full_k, self.full_n)


class CascadeSum(TileSum):
    """Collects the tiles of all of K and multiplies them at the end: each AIE tile sums over all of K, and the cascade
    adds the four sums once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.left: list[Array] = []
        self.right: list[Array] = []

    def add(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> None:
        used = slice(0, TILE if self.full_k else 64)
        self.left += [x[:, used] for x in a]
        self.right += [y[used] for y in b]

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        self.add(1, [a], [b])
        left, right = np.concatenate(self.left, axis=1), np.concatenate(self.right)
        return (product(left, right, self.bias, True, self.full_n),)


def in_cascade_order(overlay: Overlay) -> Overlay:
    """The overlay with MMEs that sum in the order of the hardware, so that results are the same to the bit. Their
    products take some hundred times as long to simulate."""
    (mme,) = {u.behaviour for u in overlay.by_kind["MME"]}
    slow = type("CascadeMme", (mme,), {"products": CascadeProducts, "sums": CascadeSum})
    units = [dataclasses.replace(u, behaviour=slow) if u.kind == "MME" else u for u in overlay.units]
    return dataclasses.replace(overlay, units=tuple(units))
