"""The MME's sums in the order in which its AIE tiles form them, to compare with other machines to the bit: see the
module of this name of XNN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..xnn.cascade import in_cascade_order as xnn_in_cascade_order
from ..xnn.cascade import product
from ..xnn.tiles import Array
from .mme import Each, Mme, MmeUnit, Sum


class _CascadeSum(Sum):
    """Keeps the tiles of all of K and multiplies them at the end: each AIE tile sums over all of K, and the cascade
    adds the four sums once."""

    def __init__(self, unit: MmeUnit, op: Mme) -> None:
        super().__init__(unit, op)
        self.pairs: list[tuple[Array, Array]] = []

    def add(self, n: int, a: Sequence[Any], b: Sequence[Any]) -> None:
        used = slice(0, a[0].shape[1] // (2 if self.op.k64 else 1))
        self.pairs += [(x[:, used], y[used]) for x, y in zip(a, b, strict=True)]

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        self.add(1, [a], [b])
        left = np.concatenate([x for x, _ in self.pairs], axis=1)
        right = np.concatenate([y for _, y in self.pairs])
        return (product(left, right, None, True, not self.op.n64),)


class _CascadeEach(Each):
    def __call__(self, n: int, a: Sequence[Any], b: Sequence[Any]) -> tuple[list[Array]]:
        full_k, full_n = not self.op.k64, not self.op.n64
        return ([product(x, y, None, full_k, full_n) for x, y in zip(a, b, strict=True)],)


class CascadeMme(MmeUnit):
    """An MME whose sums are those of the hardware."""

    sums, each = _CascadeSum, _CascadeEach


in_cascade_order = partial(xnn_in_cascade_order, mme=CascadeMme)
"""See `in_cascade_order` of XNN."""
