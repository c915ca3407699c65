"""How the columns of a product are divided over column tiles and memories of results, and how its constants are
arranged for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..isa.layout import padded
from ..isa.program import Buffer
from .binder import Binder
from .graph import Array, Gemm
from .memory import Columns, stored_vector
from .tile import TILE, StoredStatistics


@dataclass(frozen=True, eq=False)
class ProductCut:
    """How a matrix product is cut: into `passes` column tiles, each of `acc_b` blocks of 128 columns in each of
    `halves` grid columns.

    y: the layout of the result. k_tiles: slices of 128 of K, 0 without a product. gated: the left part of what a memory
    of results receives is the gate of the right part. statistics: what it stores behind the elements; None for nothing.
    no_data: it stores statistics alone.
    """

    y: Columns
    k_tiles: int
    passes: int
    halves: int
    acc_b: int
    gated: bool = False
    statistics: StoredStatistics | None = None
    no_data: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Grid columns in use, and column blocks in each. One op can compute tiles of equal shapes."""
        return self.halves, self.acc_b

    @property
    def columns(self) -> int:
        """Columns that the product computes, padding included. A gated product computes those of the gate as well."""
        return self.passes * self.halves * self.acc_b * TILE

    @property
    def width(self) -> int:
        """Columns of the result in one memory of a column tile; half of what it receives if the product is gated."""
        return self.acc_b * TILE // (2 if self.gated else 1)

    def first(self, n: int, j: int) -> int:
        """The number of the first stored column of the result that the memory of grid column j gets of
        column tile n."""
        return (n * self.halves + j) * self.width

    def held(self, n: int, j: int, columns: int) -> int:
        """How many stored columns of the result the memory of grid column j gets of column tile n, if the result has
        `columns` stored columns."""
        return max(0, min(self.width, columns - self.first(n, j)))

    @cached_property
    def positions(self) -> npt.NDArray[np.intp]:
        """The column at which each column of the weight is computed, shape (columns of the weight,). A gated product
        has, for each memory, first the columns of the gate and directly behind them the columns that are multiplied by
        the gate."""
        at = self.y.positions()
        if not self.gated:
            return at
        part, column = np.divmod(at, self.width)
        held = np.minimum(self.width, self.y.stored - part * self.width)
        gate = part * 2 * self.width + column
        return np.concatenate([gate, gate + held])


@dataclass(frozen=True)
class ColumnTile:
    """Column tile number `n` of the matrix product `gemm`, which is cut as `plan` says. weight: the buffer of the whole
    product's weight; None without a product."""

    gemm: Gemm
    plan: ProductCut
    weight: Buffer | None
    n: int


def vectors(s: Binder, group: Sequence[ColumnTile]) -> list[Buffer]:
    """Place the vectors that an op loads: previous-layer weights and bias; for a sum, the weights of each operand.
    Returns their buffers, in the order in which the op takes them.

    group: the column tiles of the op, at least one. In each vector, the part of grid column 0 comes first, tile after
    tile, then that of column 1 (contract section 3)."""
    part = group[0]
    plan, gemm, size = part.plan, part.gemm, part.plan.acc_b * TILE

    def arranged(vector_of: Callable[[ColumnTile], Array]) -> Array:
        out = np.zeros((plan.halves, vector_length(s, group)), np.float32)
        for j in range(plan.halves):
            for at, p in enumerate(group):
                start = (p.n * plan.halves + j) * size
                out[j, at * size : (at + 1) * size] = vector_of(p)[start : start + size]
        return out.reshape(-1)

    def stored(p: ColumnTile, vector: Array) -> Array:
        return stored_vector(vector, p.plan.positions, p.plan.columns)

    shape = (plan.halves * vector_length(s, group),)
    out = []
    ones = np.ones(plan.y.count, np.float32)
    if gemm.residual is not None:
        scale = gemm.residual_scale if gemm.residual_scale is not None else ones
        name = f"{gemm.path}.residual_scale"
        out.append(s.weight(name, shape, lambda: arranged(lambda p: stored(p, scale))))
    if gemm.is_sum:
        out.append(s.weight(f"{gemm.path}.x_scale", shape, lambda: arranged(lambda p: stored(p, ones))))
    if gemm.multiplies:
        out.append(s.weight(f"{gemm.path}.bias", shape, lambda: arranged(lambda p: stored(p, p.gemm.bias))))
    return out


def vector_length(s: Binder, group: Sequence[ColumnTile]) -> int:
    """Elements of a vector that one right memory loads for the column tiles of an op (`group`, at least one). A vector
    longer than a piece is padded to whole pieces."""
    length = len(group) * group[0].plan.acc_b * TILE
    piece = int(s.overlay.capability_of(s.grid.weights, "load_vector").limits["piece"][1])
    return length if length <= piece else padded(length, piece)
