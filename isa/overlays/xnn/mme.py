"""MME: 64 AIE tiles that multiply tiles of 128x128."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from ....machine.description import Capability, UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Wiring
from ...fields import Record, bits
from ...versal.mme import HALF_MODES, MATMUL_SIZES, MatrixEngine
from ...versal.tiles import BEAT, BEATS, TILE, Array


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
_COUNTS = {"row_groups": "a_iter", "column_groups": "b_iter", "depth": "k_iter", "rows": "acc_a", "columns": "acc_b"}
CAPABILITIES = (
    Capability(
        "matmul",
        limits={
            **MATMUL_SIZES,
            **{name: (0, Mme.field(field).bounds[1]) for name, field in _COUNTS.items()},
        },
        rate="mme_tile_us",
        elements=TILE**3,
    ),
    *HALF_MODES,
    Capability("bias", limits={"columns": (0, BIAS_COLUMNS)}),
    Capability("residual", limits={"columns": (0, SCALE_COLUMNS)}, rate="mesh_beat", elements=BEAT),
)
"""What an MME can do. The limits of `matmul` are its tile, and the counts that an op's fields hold."""


class MmeUnit(MatrixEngine):
    """Matrix multiplication engine: 64 AIE tiles that multiply a 128x128 by a 128x128 tile."""

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
                    for t in block:  # in K = 64 mode nothing is summed
                        sums = self.sums(self.product, self._vector(t) if bias else None, True, full_n)
                        yield Burst(op.k_iter - 1, rate, gets=ab, do=sums.add, needs_whole_token=True)
                        yield Step(rate, gets=ab, puts=c, do=sums.emit, needs_whole_token=True)
                else:
                    vector = self._bias(bi, op) if bias else None
                    products = self.products(self.product, vector, op.acc_a, op.acc_b, full_k, full_n)
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
    """Return the vector of 4096 floats that a bias load stored in a B tile (128, 128), float32 (4096,)."""
    return tile[::4].reshape(32, 4, 32).transpose(1, 0, 2).reshape(-1)


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
    """Return the floating-point operations of one MME op: its multiply-adds, counted as 2 each. A mode of 64 columns or
    K = 64 counts 64, not the padding to 128. Previous-layer weights and bias are not counted.
    """
    k, n = (128 if op.k128 else 64), (128 if op.n128 or not op.k128 else 64)
    return 2 * op.a_iter * op.b_iter * op.k_iter * op.acc_a * op.acc_b * TILE * k * n


def emit(unit: UnitSpec, items: Iterable[Any]) -> Iterator[Mme]:
    """Yield the op of each of the items, `Multiply`s. Raises `FieldError` for a count that does not fit its field."""
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
