"""Counts of tile products as few ops: what the ops of a product unit count, in which order, and within which limits."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from rsn.isa.overlays import XNN
from rsn.isa.work import Multiply
from rsn.scheduler.binder import Binder
from rsn.scheduler.graph import AttentionLayer, LayerGraph, Output
from rsn.scheduler.op_counts import OpCounts, _ops, _shape
from rsn.scheduler.schedule import PAPER
from rsn.scheduler.tile import tile

LIMITS = {"row_groups": 15, "rows": 3, "columns": 7, "depth": 127}
HALF, SUM = Multiply(half_depth=True), Multiply(depth=4, sums=True)


def products(op: Multiply) -> int:
    """The products of an op; of one that adds, its sums."""
    return op.row_groups * op.column_groups * op.rows * op.columns * (1 if op.sums else op.depth)


@given(st.integers(1, 100_000), st.integers(0, 6))
def test_ops_count_all_products_within_their_fields(count: int, depth: int) -> None:
    """depth: of a sum; 0 for products one by one. There is hardly more than one set-up for all that one counts."""
    one = Multiply(depth=depth, sums=True) if depth else Multiply()
    ops = [*_ops(one, count, LIMITS)]
    assert all(1 <= getattr(op, name) <= most for op in ops for name, most in LIMITS.items())
    assert sum(map(products, ops)) == count
    assert sum(op.row_groups for op in ops) <= count // (21 if depth else 2667) + 4
    if not depth and count <= 2 * 127:
        assert len(ops) <= 1 + count % 2  # one or two tiles of results, as deep as need be
    if depth:
        assert {op.depth for op in ops} == {depth}


@given(st.integers(1, 40))
def test_a_block_has_as_many_tiles_as_fit(tiles: int) -> None:
    rows, columns = _shape(tiles, LIMITS)
    assert rows <= 3
    assert columns <= 7
    assert rows * columns == max(a * b for a in range(1, 4) for b in range(1, 8) if a * b <= tiles)


def binder() -> Binder:
    layer = AttentionLayer("a", "q", "k", "v", "y", 1, 64)
    return Binder(tile(LayerGraph(1, 64, dict.fromkeys("qkv", 64), (Output("y"),), (layer,)), XNN, PAPER))


def counted(s: Binder, unit: str) -> list[tuple[Multiply, int]]:
    """The products that the ops of a unit say, one behind the other: an op of one, and how often."""
    ones = [
        (op._replace(row_groups=1, rows=1, columns=1, depth=op.depth if op.sums else 1), products(op))
        for op in s.made.others[unit]
        if isinstance(op, Multiply)
    ]
    return [(one, sum(count for _, count in same)) for one, same in groupby(ones, lambda pair: pair[0])]


@given(st.lists(st.tuples(st.sampled_from([HALF, SUM, Multiply()]), st.integers(0, 9000)), max_size=6), st.booleans())
def test_the_ops_of_a_unit_are_its_products_in_order(runs: list[tuple[Multiply, int]], flushed_between: bool) -> None:
    """Of each unit apart, whatever the others do between; nothing is said twice."""
    s, counts = binder(), OpCounts()
    for one, count in runs:
        counts.add("MME0", one, count)
        counts.add("MME1", SUM, 1)
        if flushed_between:
            counts.flush(s)
    counts.flush(s)
    counts.flush(s)
    wanted = [(one, count) for one, count in runs if count]
    assert counted(s, "MME0") == [
        (one, sum(count for _, count in same)) for one, same in groupby(wanted, lambda pair: pair[0])
    ]
    assert counted(s, "MME1") == ([(SUM, len(runs))] if runs else [])


def test_equal_products_that_follow_each_other_are_one_op() -> None:
    """Within the limits of the overlay."""
    s, counts = binder(), OpCounts()
    for count in (3, 4):
        counts.add("MME0", HALF, count)
    counts.add("MME0", SUM, 2)
    counts.add("MME0", HALF, 0)
    counts.add("MME0", SUM, 4)
    counts.flush(s)
    ops = [op for op in s.made.others["MME0"] if isinstance(op, Multiply)]
    assert [(op.half_depth, op.sums, products(op)) for op in ops] == [(True, False, 7), (False, True, 6)]
    limits = XNN.capability_of("MME0", "matmul").limits
    counts.add("MME1", SUM, 10**6)
    counts.flush(s)
    largest = s.made.others["MME1"][0]
    assert isinstance(largest, Multiply)
    for name in ("row_groups", "rows", "columns"):
        assert getattr(largest, name) == limits[name][1]
