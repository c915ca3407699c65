"""MME: 64 AIE tiles that multiply tiles of 128x128, as on XNN, with another control program.

An operation is two parts that alternate: `first` results, each a sum over `first_depth` products, then `second`
results of `second_depth` products. It sums over K in the tiles, and emits one tile for each result. So a projection and
a slice of the next one, or FF1 of one column tile and FF2 of another, are one operation. A change of the mode costs a
set-up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Unit
from ....machine.wiring import Wiring
from ...fields import Record, bits
from ..xnn.tiles import TILE, Array
from .ports import TILE_WORDS

HALF = TILE // 2


class Mme(Record, words=2):
    """One op of a matrix multiplication engine; or, with `length`, a repeat of those before it."""

    first: int = bits(0, 0, 8, "results of the first part")
    first_depth: int = bits(0, 8, 8, "products of each")
    second: int = bits(0, 16, 8, "results of the second part")
    second_depth: int = bits(0, 24, 8, "products of each")
    times: int = bits(1, 0, 12, "how often both parts are done; of a repeat, how often more", default=1)
    k64: int = bits(1, 12, 1, "K = 64: the first 64 columns of left tiles, the first 64 rows of right ones")
    n64: int = bits(1, 13, 1, "64 columns of right tiles, and of results")
    length: int = bits(1, 14, 8, "not 0: this entry does nothing but repeat so many entries before it")


def repeat(op: Mme) -> tuple[int, int] | None:
    """Entries that this one repeats, and how often more; None for an op."""
    return (op.length, op.times) if op.length else None


class Each:
    """Multiplies pairs of tiles."""

    def __init__(self, unit: MmeUnit, op: Mme) -> None:
        self.unit, self.op = unit, op

    def __call__(self, n: int, a: Sequence[Any], b: Sequence[Any]) -> tuple[list[Array]]:
        return ([self.unit.product(x, y, self.op) for x, y in zip(a, b, strict=True)],)


class Sum:
    """Sums products over K."""

    def __init__(self, unit: MmeUnit, op: Mme) -> None:
        self.unit, self.op = unit, op
        self.total: Array | None = None

    def add(self, n: int, a: Sequence[Any], b: Sequence[Any]) -> None:
        for x, y in zip(a, b, strict=True):
            more = self.unit.product(x, y, self.op)
            self.total = more if self.total is None else self.total + more

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        self.add(1, [a], [b])
        assert self.total is not None
        return (self.total,)


class MmeUnit(Unit):
    """Matrix multiplication engine."""

    sums: type[Sum] = Sum
    each: type[Each] = Each

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.a, self.b = self.source(f"MeshA{spec.index}"), self.source(f"MeshB{spec.index}")
        self.c = self.sink(f"C{spec.index}")
        self.mode: tuple[int, int] | None = None

    def product(self, a: Array, b: Array, op: Mme) -> Array:
        """Multiply two tiles. In N = 64 mode the other columns of the result are NaN."""
        if op.k64:
            a, b = a[:, :HALF], b[:HALF]
        if not op.n64:
            return np.asarray(a @ b)
        out = np.full((TILE, TILE), np.nan, np.float32)
        np.matmul(a, b[:, :HALF], out=out[:, :HALF])
        return out

    def kernel(self, op: Mme) -> Steps:
        mode = op.k64, op.n64
        if mode != self.mode:
            yield Step("mme_setup_us")
            self.mode = mode
        rate = "mme_k64_us" if op.k64 else "mme_n64_us" if op.n64 else "mme_tile_us"
        both = self.a, self.b
        whole: dict[str, Any] = {"words": TILE_WORDS, "needs_whole_token": True}
        for _ in range(op.times):
            for results, depth in ((op.first, op.first_depth), (op.second, op.second_depth)):
                if depth == 1:
                    each = self.each(self, op)
                    yield Burst(results, rate, gets=both, puts=(self.c,), do=each, **whole)
                    continue
                for _ in range(results if depth else 0):
                    total = self.sums(self, op)
                    yield Burst(depth - 1, rate, gets=both, do=total.add, **whole)
                    yield Step(rate, gets=both, puts=(self.c,), do=total.emit, **whole)

    def effect_key(self, op: Mme) -> Hashable:
        return None if (op.k64, op.n64) != self.mode else op


def flops(op: Mme) -> int:
    """Multiply-adds of an op, counted as 2 each."""
    products = op.times * (op.first * op.first_depth + op.second * op.second_depth)
    return 2 * products * TILE * (HALF if op.k64 else TILE) * (HALF if op.n64 else TILE)


def legal(unit: UnitSpec, op: Mme) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute an op whose fields are all in range."""
    if not op.times:
        yield "is done 0 times"
    if not (op.first and op.first_depth) and not (op.second and op.second_depth):
        yield "makes no results"
    for part in ("first", "second"):
        results, depth = getattr(op, part), getattr(op, f"{part}_depth")
        if bool(results) != bool(depth):
            yield f"{part}={results}, {part}_depth={depth}: a part has results and products, or neither"
    if op.k64 and op.n64:
        yield "K = 64 and N = 64 are two modes; there is none of both"


def lint(op: Mme) -> Iterator[str]:
    """Yield warnings on fields of an op that the unit ignores."""
    if op.length and (op.first or op.first_depth or op.second or op.second_depth or op.k64 or op.n64):
        yield "a repeat makes no results itself; all fields but length and times are ignored"
