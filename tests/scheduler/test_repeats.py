"""Folded op lists run the ops that they were made of, and none is shorter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import FieldError
from rsn.isa.fields import Record
from rsn.scheduler.repeats import folded
from rsn.tests.isa.listed import Listed, listed, make_repeat, repeat

HELD = listed().preloaded["FU2"]


def ops(values: Sequence[int]) -> list[Listed]:
    return [Listed(size=1, value=v) for v in values]


def at_most(times: int, length: int = 255):
    def make(long: int, often: int) -> Record:
        if long > length or often > times:
            raise FieldError("too much")
        return make_repeat(long, often)

    return make


def sections() -> st.SearchStrategy[list[Listed]]:
    """Ops with repetition on several scales."""
    part = st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 6))
    return st.lists(part, max_size=6).map(lambda parts: ops([v for values, times in parts for v in values * times]))


def shortest(given_ops: Sequence[Listed], times: int, length: int) -> int:
    """Entries of the shortest list, by trying every section."""
    n = len(given_ops)
    cost = [0] * (n + 1)
    for i in reversed(range(n)):
        cost[i] = 1 + cost[i + 1]
        for p in range(1, length + 1):
            for t in range(1, times + 1):
                end = i + p * (t + 1)
                if end > n or given_ops[end - p : end] != given_ops[i : i + p]:
                    break
                cost[i] = min(cost[i], p + 1 + cost[end])
    return cost[0]


@given(sections(), st.sampled_from([1, 2, 3, 4095]), st.sampled_from([1, 2, 5, 128]))
def test_the_shortest_list_that_runs_the_same_ops(given_ops: list[Listed], times: int, length: int) -> None:
    made = folded(given_ops, at_most(times, length), repeat=repeat)
    assert HELD.unrolled(made) == tuple(given_ops)
    assert len(made) == shortest(given_ops, times, length)


def test_layers_of_equal_panels_become_one_section() -> None:
    layer = ops(range(20))
    made = folded(layer * 96, make_repeat)
    assert made == (*layer, make_repeat(20, 95))


def test_a_section_of_128_ops_is_found_and_one_of_129_is_not() -> None:
    assert len(folded(ops(range(128)) * 2, make_repeat)) == 129
    assert len(folded(ops(range(129)) * 2, make_repeat)) == 258
    assert len(folded(ops(range(129)) * 2, make_repeat, longest=129)) == 130


def test_more_times_than_the_field_holds_are_several_sections() -> None:
    made = folded(ops([0, 1]) * 10_000, make_repeat)
    assert len(made) == 8  # a section of four ops, 4096 times, and one of two
    assert HELD.executed(made) == 20_000


def test_a_shorter_section_may_leave_more_to_the_next() -> None:
    given_ops = ops([0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    assert len(folded(given_ops, make_repeat)) == 7


def test_nothing_that_repeats_stays_as_it_is() -> None:
    assert folded([], make_repeat) == ()
    assert folded(ops([0, 0]), make_repeat) == tuple(ops([0, 0]))
    assert folded(ops([0, 1, 2, 3]), make_repeat) == tuple(ops([0, 1, 2, 3]))
    assert folded(ops([0] * 9), at_most(0)) == tuple(ops([0] * 9))


def test_repeats_are_not_folded_again() -> None:
    with pytest.raises(ValueError, match="have a repeat"):
        folded([*ops([0]), make_repeat(1, 1)], make_repeat, repeat=repeat)
