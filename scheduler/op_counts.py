"""Counts of tile products, as few ops of a product unit as possible: each group of an op costs a set-up, and a product
unit holds a limited number of ops.

A product unit takes the tiles of both operands in pairs and knows nothing of what they are. So products of any steps,
one behind the other, can be one op if they are alike, whatever its loops are called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..isa.work import Multiply
from .binder import Binder
from .grid import most


@dataclass
class OpCounts:
    """Tile products of product units that are not ops yet, in order."""

    runs: dict[str, list[tuple[Multiply, int]]] = field(default_factory=dict)
    """By unit: an op of one product, or of one sum, and how often it follows itself."""

    def add(self, unit: str, one: Multiply, count: int) -> None:
        """Append `count` times the same product (`one` with depth 1) or the same sum of products (`one` with `sums`) to
        the product unit named `unit`."""
        runs = self.runs.setdefault(unit, [])
        if runs and runs[-1][0] == one:
            count += runs.pop()[1]
        if count:
            runs.append((one, count))

    def flush(self, s: Binder) -> None:
        """Append the ops of all products noted so far to the work of their units, and forget them."""
        limits = {name: most(s, "matmul", name) for name in ("row_groups", "rows", "columns", "depth")}
        for unit, runs in self.runs.items():
            for one, count in runs:
                for op in _ops(one, count, limits):
                    s.add(unit, op)
        self.runs.clear()


def _ops(one: Multiply, count: int, limits: dict[str, int]) -> Iterator[Multiply]:
    """The ops of `count` equal products or sums. limits: the largest counts that an op says."""
    block = limits["rows"] * limits["columns"]
    depth = 1 if one.sums else limits["depth"]  # the depth of a sum is given
    left = count
    while left:
        if left >= block * depth:
            groups = min(left // (block * depth), limits["row_groups"])
            rows, columns, deep = limits["rows"], limits["columns"], depth
        else:
            groups, (rows, columns) = 1, _shape(min(block, left if one.sums else -(-left // depth)), limits)
            deep = 1 if one.sums else min(depth, left // (rows * columns))
        made = one._replace(row_groups=groups, rows=rows, columns=columns)
        yield made if one.sums else made._replace(depth=deep)
        left -= groups * rows * columns * deep


def _shape(tiles: int, limits: dict[str, int]) -> tuple[int, int]:
    """Rows and columns of a block: of those with at most `tiles` tiles the largest."""
    shapes = ((a, b) for a in range(1, limits["rows"] + 1) for b in range(1, limits["columns"] + 1) if a * b <= tiles)
    return max(shapes, key=lambda shape: shape[0] * shape[1])
