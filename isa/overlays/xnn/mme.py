"""MME: 64 AIE tiles that multiply tiles of 128x128."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ....machine.description import Capability, UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Unit
from ....machine.wiring import Wiring
from ...fields import Record, bits
from .tiles import BEAT, BEATS, TILE, Array, Tiles, tile_columns, tile_grid, tile_rows


class Mme(Record, words=1):
    """One op of a matrix multiplication engine (the same for its 64 AIE tiles but for `holds_weight`)."""

    a_iter: int = bits(0, 0, 4, "row tile groups")
    b_iter: int = bits(0, 4, 4, "column tile groups")
    k_iter: int = bits(0, 8, 7, "products per tile group")
    acc_a: int = bits(0, 15, 2, "row tiles in a group")
    acc_b: int = bits(0, 17, 3, "column tiles in a group")
    load_prev: int = bits(0, 20, 1, "read previous-layer weights: one B tile")
    bias: int = bits(0, 21, 1, "read a bias: one B tile; add it at k = 0")
    n128: int = bits(0, 22, 1, "128 columns, else 64")
    k128: int = bits(0, 23, 1, "K = 128, else 64")
    acc_k: int = bits(0, 24, 1, "accumulate over k here, not in MemC")
    prev: int = bits(0, 25, 1, "emit A tiles times the previous-layer weights first")
    holds_weight: int = bits(0, 26, 1, "this AIE holds the previous-layer weight; set per AIE tile by the host")


BIAS_COLUMNS = 2048
SCALE_COLUMNS = 512
"""Largest number of columns of the vectors that an MME holds: the bias, and the previous-layer weights."""
HALF = (TILE // 2, TILE // 2)
_COUNTS = {"row_groups": "a_iter", "column_groups": "b_iter", "depth": "k_iter", "rows": "acc_a", "columns": "acc_b"}
CAPABILITIES = (
    Capability(
        "matmul",
        limits={
            "tile_rows": (TILE, TILE),
            "tile_depth": (TILE, TILE),
            "tile_columns": (TILE, TILE),
            **{name: (0, Mme.field(field).bounds[1]) for name, field in _COUNTS.items()},
        },
        rate="mme_tile_us",
        elements=TILE**3,
    ),
    Capability("matmul_half_depth", limits={"tile_depth": HALF}, rate="mme_k64_us", elements=TILE**3 // 2),
    Capability("matmul_half_columns", limits={"tile_columns": HALF}, rate="mme_n64_us", elements=TILE**3 // 2),
    Capability("bias", limits={"columns": (0, BIAS_COLUMNS)}),
    Capability("residual", limits={"columns": (0, SCALE_COLUMNS)}, rate="mesh_beat", elements=BEAT),
)
"""What an MME can do. The limits of `matmul` are its tile, and the counts that an op's fields hold."""

Product = Callable[[Array, Array, bool, bool], Array]


class MmeUnit(Unit):
    """Matrix multiplication engine: 64 AIE tiles that multiply a 128x128 by a 128x128 tile."""

    def product(self, a: Array, b: Array, full_k: bool, full_n: bool) -> Array:
        """Multiply a tile, or a column of tiles, by a tile, or a row of tiles. a: (M, K). b: (K, N).

        full_k: False for K = 64 mode, which uses only the first 64 of K. full_n: False for N = 64 mode, which computes
        only the first 64 columns of each tile; the others are NaN.
        """
        if not full_k:
            a, b = a[:, :64], b[:64]
        if full_n:
            return np.asarray(a @ b)
        out = np.full((len(a), b.shape[1]), np.nan, np.float32)
        for j in range(0, b.shape[1], TILE):
            np.matmul(a, b[:, j : j + 64], out=out[:, j : j + 64])
        return out

    @property
    def products(self) -> type[Products]:
        """The class that multiplies tiles. A machine with another order of summation replaces this and `sum`."""
        return Products

    @property
    def sum(self) -> type[Sum]:
        return Sum

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.a = self.source("MeshA")
        self.b = self.source("MeshB")
        self.c = self.sink(next(p.peer for p in net.machine.ports[spec.name] if not p.receives))
        self.scale = np.empty(0, np.float32)
        self.bias = np.empty(0, np.float32)

    def kernel(self, op: Mme) -> Steps:
        full_k = bool(op.k128)
        full_n = bool(op.n128) or not full_k  # K = 64 mode ignores bits 22, 24, 25 and the bias
        acc_k, prev, bias = op.acc_k and full_k, op.prev and full_k, op.bias and full_k
        rate = "mme_tile_us" if full_k and full_n else "mme_k64_us" if full_n else "mme_n64_us"
        if op.load_prev:
            yield Step(gets=(self.b,), do=self._keep_scale, needs_whole_token=True)
        if bias:
            yield Step(gets=(self.b,), do=self._keep_bias, needs_whole_token=True)
        ab, c = (self.a, self.b), (self.c,)
        for _ in range(op.a_iter):
            for bi in range(op.b_iter):
                yield Step("mme_setup_us")
                block = [*range(bi * op.acc_b, (bi + 1) * op.acc_b)] * op.acc_a
                if prev:
                    scale = self._scaler(iter(block))
                    yield Burst(
                        len(block), "mesh_beat", BEATS, gets=(self.a,), puts=c, do=scale, needs_whole_token=True
                    )
                if acc_k and op.k_iter:
                    for t in block:
                        sums = self.sum(self.product, self._vector(t) if bias else None, full_n)
                        yield Burst(op.k_iter - 1, rate, gets=ab, do=sums.add, needs_whole_token=True)
                        yield Step(rate, gets=ab, puts=c, do=sums.emit, needs_whole_token=True)
                else:
                    products = self.products(self.product, self._bias(bi, op) if bias else None, op, full_k, full_n)
                    yield Burst(op.k_iter * len(block), rate, gets=ab, puts=c, do=products, needs_whole_token=True)

    def effect_key(self, op: Mme) -> Hashable:
        return op

    def _vector(self, t: int) -> Array:
        return self.bias[t * TILE : t * TILE + TILE]

    def _bias(self, bi: int, op: Mme) -> Array:
        return self.bias[bi * op.acc_b * TILE : (bi + 1) * op.acc_b * TILE]

    def _keep_bias(self, tile: Array) -> None:
        self.bias = vector_of(tile)

    def _keep_scale(self, tile: Array) -> None:
        self.scale = vector_of(tile)

    def _scaler(self, block: Iterator[int]) -> Any:
        def scale(n: int, tiles: list[Array]) -> tuple[list[Array]]:
            return ([x * self.scale[t * TILE : t * TILE + TILE] for x, t in zip(tiles, islice(block, n), strict=True)],)

        return scale


def vector_of(tile: Array) -> Array:
    """Return the vector of 4096 floats that a bias load stored in a B tile (128, 128)."""
    return tile[::4].reshape(32, 4, 32).transpose(1, 0, 2).reshape(-1)


class Products:
    """Multiplies pairs of tiles as they arrive. bias: added to the rows of the first acc_a x acc_b products. In N = 64
    mode the other columns are undefined, and here NaN."""

    def __init__(self, product: Product, bias: Array | None, op: Mme, full_k: bool, full_n: bool) -> None:
        self.product = product
        self.bias, self.rows, self.cols, self.full_k, self.full_n = bias, op.acc_a, op.acc_b, full_k, full_n
        self.left, self.right = tile_rows(self.rows, self.cols), tile_columns(self.rows, self.cols)
        self.done = 0

    def __call__(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> tuple[Sequence[Array]]:
        if isinstance(a, Tiles) and isinstance(b, Tiles) and a.places == self.left and b.places == self.right:
            return (self._block(a.block(self.rows, 1), b.block(1, self.cols)),)
        out = [self._tile(x, y) for x, y in zip(a, b, strict=True)]
        return (out,)

    def _block(self, a: Array, b: Array) -> Tiles:
        """Multiply all tiles of a slice of K at once."""
        out = self.product(a, b, self.full_k, self.full_n)
        if self.bias is not None and not self.done:
            out += self.bias
        self.done += len(self.left)
        return Tiles(out, tile_grid(self.rows, self.cols))

    def _tile(self, a: Array, b: Array) -> Array:
        out = self.product(a, b, self.full_k, self.full_n)
        if self.bias is not None and self.done < len(self.left):
            at = self.done % self.cols * TILE
            out += self.bias[at : at + TILE]
        self.done += 1
        return out


class Sum:
    """Sums the products of tiles over K inside the MME, and emits one tile."""

    def __init__(self, product: Product, bias: Array | None, full_n: bool) -> None:
        self.product = product
        self.bias, self.full_n = bias, full_n
        self.total: Array | None = None

    def add(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> None:
        for x, y in zip(a, b, strict=True):
            more = self.product(x, y, True, self.full_n)
            if self.total is not None:
                self.total += more
            else:
                self.total = more if self.bias is None else more + self.bias

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        self.add(1, [a], [b])
        assert self.total is not None
        return (self.total,)


def legal(unit: UnitSpec, op: Mme) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    if not op.k128:
        if op.bias:
            yield "K = 64 mode has no bias"
        return
    if op.bias and not op.n128:
        yield "a bias needs N = 128"
    if op.prev and not op.n128:
        yield "the previous-layer term needs N = 128"
    if op.acc_k and op.bias and (op.acc_a, op.acc_b) != (1, 1):
        yield "accumulating over k with a bias needs acc_a = acc_b = 1"
    if op.k_iter == 0 and not op.prev:
        yield "k_iter = 0 without a previous-layer term does nothing"
    if op.bias and op.b_iter * op.acc_b * TILE > BIAS_COLUMNS:
        yield f"a bias of {op.b_iter * op.acc_b * TILE} columns; {BIAS_COLUMNS} is the most"
    if (op.load_prev or op.prev) and (op.b_iter > 1 or op.acc_b * TILE > SCALE_COLUMNS):
        yield f"previous-layer weights reach {SCALE_COLUMNS} columns, b_iter = 1 only"


def lint(op: Mme) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    if not op.k128 and (op.acc_k or op.prev):
        yield "K = 64 mode ignores acc_k and prev"


def flops(op: Mme) -> int:
    """Multiply-adds of one MME op, counted as 2 each, without the padding of 64-wide modes."""
    k, n = (128 if op.k128 else 64), (128 if op.n128 or not op.k128 else 64)
    return 2 * op.a_iter * op.b_iter * op.k_iter * op.acc_a * op.acc_b * TILE * k * n


def emit(unit: UnitSpec, items: Iterable[Any]) -> Iterator[Mme]:
    """Yield the op of each `Multiply`."""
    for item in items:
        counts = {field: getattr(item, name) for name, field in _COUNTS.items()}
        yield Mme(
            **counts,
            load_prev=int(item.load_scale),
            bias=int(item.bias),
            n128=int(not item.half_columns),
            k128=int(not item.half_depth),
            acc_k=int(item.sums),
            prev=int(item.scaled),
        )
