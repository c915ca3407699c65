"""MME: 64 AIE tiles that multiply tiles of 128x128, as on XNN, with another control program.

An operation is two parts that alternate: `first` results, each a sum over `first_depth` products, then `second`
results of `second_depth` products. It sums over K in the tiles, and emits one tile for each result. So a projection and
a slice of the next one, or FF1 of one column tile and FF2 of another, are one operation. A change of the mode costs a
set-up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Wiring
from ...fields import Record, bits
from ...versal.mme import HALF, MatrixEngine
from ...versal.tiles import TILE
from .ports import TILE_WORDS


class LaneMme(Record, words=2, name="Mme"):
    """One op of a matrix multiplication engine; or, with `length`, a repeat of those before it."""

    first: int = bits(0, 0, 8, "results of the first part")
    first_depth: int = bits(0, 8, 8, "products of each")
    second: int = bits(0, 16, 8, "results of the second part")
    second_depth: int = bits(0, 24, 8, "products of each")
    times: int = bits(1, 0, 12, "how often both parts are done; of a repeat, how often more", default=1)
    k64: int = bits(1, 12, 1, "K = 64: the first 64 columns of left tiles, the first 64 rows of right ones")
    n64: int = bits(1, 13, 1, "64 columns of right tiles, and of results")
    length: int = bits(1, 14, 8, "not 0: this entry does nothing but repeat so many entries before it")


def repeat(op: LaneMme) -> tuple[int, int] | None:
    """Return how many entries before it an entry repeats, and how often more; None for an op."""
    return (op.length, op.times) if op.length else None


class LaneMmeUnit(MatrixEngine):
    """Matrix multiplication engine: 64 AIE tiles that multiply tiles of 128x128, and add the products up over K."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.a, self.b = self.source(f"MeshA{spec.index}"), self.source(f"MeshB{spec.index}")
        self.c = self.sink(f"C{spec.index}")
        self.mode: tuple[int, int] | None = None

    def kernel(self, op: LaneMme) -> Steps:
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
                    each = self.products(self.product, None, 1, 1, not op.k64, not op.n64)
                    yield Burst(results, rate, gets=both, puts=(self.c,), do=each, **whole)
                    continue
                for _ in range(results if depth else 0):
                    total = self.sums(self.product, None, not op.k64, not op.n64)
                    yield Burst(depth - 1, rate, gets=both, do=total.add, **whole)
                    yield Step(rate, gets=both, puts=(self.c,), do=total.emit, **whole)

    def effect_key(self, op: LaneMme) -> Hashable:
        return None if (op.k64, op.n64) != self.mode else op


def flops(op: LaneMme) -> int:
    """Return the floating-point operations of an op: its multiply-adds, counted as 2 each. A mode of 64 counts 64, not
    the padding to 128. The entry of a repeat counts none of its own.
    """
    products = op.times * (op.first * op.first_depth + op.second * op.second_depth)
    return 2 * products * TILE * (HALF if op.k64 else TILE) * (HALF if op.n64 else TILE)


def legal(unit: UnitSpec, op: LaneMme) -> Iterator[str]:
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
