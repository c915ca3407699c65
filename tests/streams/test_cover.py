"""The search for the cheapest levels that satisfy clauses, against all levels there are; and what it says of its proof
when it stops early."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsn.streams.sizing import cover as searched
from rsn.streams.sizing.cover import Clause, Cover, Levels, cost, cover
from rsn.tests.effort import examples

NAMES = "abcd"
CLAUSES = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), min_size=1, max_size=3), min_size=0, max_size=5
)


def holds(levels: Levels, clauses: list[Clause]) -> bool:
    return all(any(levels[name] >= level for name, level in clause.items()) for clause in clauses)


def cheapest(low: Levels, weights: Levels, clauses: list[Clause]) -> int:
    """Over all levels from `low` to 3, of which one satisfies every clause."""
    every = (dict(zip(NAMES, x, strict=True)) for x in product(*(range(low[name], 4) for name in NAMES)))
    return min(cost(levels, weights) for levels in every if holds(levels, clauses))


@examples(600, 60)
@example((0, 0, 0, 0), (2, 3, 2, 1), [{"a": 1, "b": 1}, {"b": 1, "c": 1}, {"d": 1, "c": 3}])  # not the first one found
@given(st.tuples(*[st.integers(0, 1)] * 4), st.tuples(*[st.integers(1, 5)] * 4), CLAUSES)
def test_the_levels_are_the_cheapest_of_all(
    low: tuple[int, ...], weights: tuple[int, ...], clauses: list[Clause]
) -> None:
    least, prices = dict(zip(NAMES, low, strict=True)), dict(zip(NAMES, weights, strict=True))
    found = cover(least, prices, clauses)
    wanted = cheapest(least, prices, clauses)
    assert holds(found.levels, clauses)
    assert all(found.levels[name] >= least[name] for name in NAMES)
    assert (cost(found.levels, prices), found.bound, found.proved) == (wanted, wanted, True)


ZEROS = dict.fromkeys("abc", 0)
ONES = dict.fromkeys("abc", 1)
TRIANGLE: list[Clause] = [{"a": 1, "b": 1}, {"b": 1, "c": 1}, {"a": 1, "c": 1}]
"""Two of three names are needed; no two of the clauses are disjoint, so that the first bound is one."""


@pytest.mark.parametrize(
    ("clauses", "nodes", "bound", "proved"),
    [
        (TRIANGLE, 100, 2, True),  # the search is whole: proved, although the first bound is lower
        (TRIANGLE, 3, 1, False),  # cut off: cheaper ones may exist for all it knows
        ([{"a": 1}, {"b": 1}, {"c": 1}], 3, 3, True),  # cut off, but as cheap as the first bound
    ],
)
def test_a_proof_needs_a_whole_search_or_the_first_bound(
    clauses: list[Clause], nodes: int, bound: int, proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searched, "NODES", nodes)
    found = cover(ZEROS, ONES, clauses)
    assert holds(found.levels, clauses)
    assert (found.bound, found.proved) == (bound, proved)


def test_without_clauses_the_lowest_levels_stay() -> None:
    assert cover({"a": 2}, {"a": 7}, []) == Cover({"a": 2}, 14, True)
