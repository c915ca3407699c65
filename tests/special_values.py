"""Arrays with NaN, infinities, zeros of both signs and subnormal numbers in any place, and whether two are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

ORDINARY = (1.0, -1.0, 0.5, -2.0, 3.0, 0.1, -5.5)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, -1e-10, 1e-10)
LARGE = (3.4028235e38, -3.4028235e38, 2e19, -2e19, 88.5, 88.72284, -88.5, -95.0, -103.97, -103.98, 16777217.0)
"""Beyond one end or the other of what products, exp or integers can hold."""


def numbers(*, large: bool = True, bits: int = 32) -> st.SearchStrategy[float]:
    """Numbers of float32 or float64, every other one special. large: some of them overflow, or make others vanish."""
    some = st.sampled_from(SPECIAL + ORDINARY + (LARGE if large else ()))
    rest = st.floats(width=bits) if large else st.sampled_from(ORDINARY + SPECIAL)  # type: ignore[arg-type]
    return (some | rest).map(lambda x: float(np.float32(x)) if bits == 32 else x)


def arrays(shape: tuple[int, ...], kind: Any = np.float32, *, large: bool = True) -> st.SearchStrategy[Any]:
    """Arrays of up to eight such numbers, so that a row may have only one of them."""
    some = st.lists(numbers(large=large, bits=8 * np.dtype(kind).itemsize), min_size=1, max_size=8)
    places = st.integers(0, 2**32 - 1)

    def made(values: list[float], seed: int) -> Any:
        return np.random.default_rng(seed).choice(np.array(values, kind), shape)

    return st.builds(made, some, places)


def assert_same(got: Any, expected: Any, within: Any = 0.0, *, signs: bool = True) -> None:
    """Two arrays of the same shape have NaN in the same places, and the same infinities; finite numbers differ by at
    most `within`. signs: zeros of both have the same sign."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), f"{got}\n{expected}")
    got, expected = np.nan_to_num(got, nan=1.0, posinf=np.inf, neginf=-np.inf), np.nan_to_num(
        expected, nan=1.0, posinf=np.inf, neginf=-np.inf
    )  # fmt: skip
    with np.errstate(invalid="ignore", over="ignore"):
        near = (got == expected) | (np.abs(got.astype(np.float64) - expected) <= within)
    assert near.all(), f"{got}\n{expected}"
    if signs:
        zeros = (got == 0) & (expected == 0)
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]), f"{got}\n{expected}")
