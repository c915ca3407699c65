"""Durations for people: in a unit that shows them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.durations import UNITS, duration, unit_of


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.000 s"),
        (2.5, "2.500 s"),
        (75.25, "75.250 s"),
        (0.018059, "18.059 ms"),
        (1e-3, "1.000 ms"),
        (0.000160313, "160.313 us"),
        (109 / 260e6, "419.231 ns"),
        (1e-9, "1.000 ns"),
        (2e-12, "0.002 ns"),
        (0.9999996, "1.000 s"),
        (0.9999992, "999.999 ms"),
        (0.99996, "999.960 ms"),
        (0.9999994, "999.999 ms"),
        (999.9996e-6, "1.000 ms"),
        (-0.0025, "-2.500 ms"),
        (math.inf, "inf s"),
        (math.nan, "nan s"),
    ],
)
def test_the_unit_shows_the_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@given(st.floats(1e-9, 1e6))
def test_it_is_what_was_given_to_a_thousandth(seconds: float) -> None:
    number, name = duration(seconds).split()
    assert float(number) == pytest.approx(seconds * dict(UNITS)[name], abs=0.000501)
    assert float(number) >= 1
    assert name == "s" or float(number) < 1000
    assert unit_of(seconds)[0] == name
