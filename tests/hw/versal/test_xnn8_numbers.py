"""The steps of xnn8's numbers in C++ equal their definition in every bit."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.hw.versal.csim.build import FLAGS, call, compiled, compiler, kept
from rsn.hw.versal.sources import sources
from rsn.isa.overlays.xnn8 import numbers
from rsn.isa.overlays.xnn8.numbers import BlockNumbers, Integers, NormConstants

HERE = Path(__file__).resolve().parent
SEEDS = st.integers(0, 2**32)


@cache
def library() -> ctypes.CDLL:
    """The functions of xnn8_numbers.cpp."""
    flags = [*FLAGS, f"-I{sources()}", f"-I{sources() / 'csim' / 'include'}"]
    made = compiled(HERE / "xnn8_numbers.cpp", flags)
    target = made.with_suffix(".so")
    kept(target, lambda to: call([compiler(), *flags, "-shared", str(made), "-o", str(to)]))
    return ctypes.CDLL(str(target))


def run(name: str, count: int, per_item: int, *given: Integers | int) -> Integers:
    """What a function makes of `count` items, (count, per_item)."""
    out = np.zeros((count, per_item), np.int64)
    arrays = [np.ascontiguousarray(x, np.int64) if isinstance(x, np.ndarray) else x for x in given]
    arguments = [ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else ctypes.c_int(x) for x in arrays]
    library()[f"run_{name}"](ctypes.c_size_t(count), *arguments, ctypes.c_void_p(out.ctypes.data))
    return out


def drawn(rng: np.random.Generator, count: int, bits: int, *, sign: bool = True) -> Integers:
    """Numbers of any length up to `bits`."""
    x = rng.integers(0, 1 << 62, count) >> rng.integers(62 - bits, 63, count)
    return x * rng.choice([-1, 1], count) if sign else x


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_rounding_and_division(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, shift = drawn(rng, 500, 61), rng.integers(0, 80, 500)
    np.testing.assert_array_equal(run("rounded", 500, 1, x, shift)[:, 0], numbers.rounded(x, shift))
    halves = (2 * rng.integers(-1000, 1000, 500) + 1) << shift % 40
    np.testing.assert_array_equal(
        run("rounded", 500, 1, halves, shift % 40 + 1)[:, 0], numbers.rounded(halves, shift % 40 + 1)
    )
    short, both = drawn(rng, 500, 15), rng.integers(-22, 31, 500)
    np.testing.assert_array_equal(run("aligned", 500, 1, short, both)[:, 0], numbers.rounded(short, both))
    for name, least in (("scaled", 12), ("scaled_both_ways", -2)):
        factor, of, lower = drawn(rng, 500, 26), drawn(rng, 500, 16, sign=False), rng.integers(least, 90, 500)
        np.testing.assert_array_equal(run(name, 500, 1, factor, of, lower)[:, 0], numbers.rounded(factor * of, lower))
    by = np.maximum(drawn(rng, 500, 40, sign=False), 1)
    np.testing.assert_array_equal(run("divided", 500, 1, x, by)[:, 0], numbers.divided(x, by))
    square = drawn(rng, 500, 48, sign=False)
    np.testing.assert_array_equal(run("root", 500, 1, square)[:, 0], numbers._root(square))


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.booleans())
def test_factors(seed: int, up: bool) -> None:
    rng = np.random.default_rng(seed)
    x, exponent = drawn(rng, 500, 61, sign=False), rng.integers(-500, 500, 500)
    wanted = numbers.normal(x, exponent, up=up)
    np.testing.assert_array_equal(run("normal", 500, 2, x, exponent, int(up)), np.stack(wanted, 1))


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from([8, 16]))
def test_storing(seed: int, bits: int) -> None:
    rng = np.random.default_rng(seed)
    v = np.stack([drawn(rng, 64, int(most)) for most in rng.integers(0, 32, 40)])
    exponent = rng.integers(-260, 260, (40, 1))
    wanted = numbers.stored(v, exponent, bits)
    made = np.zeros(40 * 65, np.int64)
    library().run_stored(
        ctypes.c_size_t(40),
        ctypes.c_size_t(64),
        *(ctypes.c_void_p(x.ctypes.data) for x in (v, exponent)),
        ctypes.c_int(bits),
        ctypes.c_void_p(made.ctypes.data),
    )
    np.testing.assert_array_equal(made[:2560].reshape(40, 64), wanted.integers)
    np.testing.assert_array_equal(made[2560:, None], wanted.exponents)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(0, 6))
def test_entries_of_tables(seed: int, steps: int) -> None:
    """Of numbers of both signs, also half way between two entries, and beyond the last one."""
    rng = np.random.default_rng(seed)
    odd, zeros = 2 * rng.integers(-256, 256, 100) + 1, rng.integers(0, 22, 100)
    v = np.concatenate([drawn(rng, 400, 31), odd << zeros])
    exponent = np.concatenate([rng.integers(-60, 40, 400), -steps - 1 - zeros])
    wanted = np.minimum(numbers.rounded(np.abs(v), np.maximum(-steps - exponent, -numbers.SATURATING)), 255)
    np.testing.assert_array_equal(run("entry_of", 500, 1, v, exponent, steps)[:, 0], wanted)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 16), st.booleans(), st.sampled_from([0.0, 1e-12, 1e-5, 1.0]))
def test_statistics(seed: int, blocks: int, rms: bool, eps: float) -> None:
    """Of rows with numbers of any size, and of such that are all alike."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-32767, 32768, (200, blocks, 64))
    integers[::4] = integers[::4, :1, :1]
    integers[1::7] = 0
    x = BlockNumbers(integers, rng.integers(-40, 20, (200, blocks, 1)))
    constants = NormConstants.of(64 * blocks, eps)
    wanted = numbers.statistics(x, constants, rms=rms)
    lower = wanted.top - x.exponents
    sums = numbers.rounded(x.integers.sum(-1, keepdims=True) << 8, lower).sum(-2)
    squares = numbers.rounded(np.square(x.integers).sum(-1, keepdims=True) << 16, 2 * lower).sum(-2)
    of_norm = np.array([constants.columns, *constants.added, *constants.root])
    made = run("statistics", 200, 3, sums, squares, wanted.top, of_norm, int(rms))
    np.testing.assert_array_equal(made, np.stack([wanted.mean, *wanted.inverse], -1).reshape(200, 3))


@pytest.mark.parametrize("head_dim", [1, 31, 32, 33, 64, 128])
def test_shifts_of_scores(head_dim: int) -> None:
    exponent = np.arange(-300, 300)
    first, second = numbers.score_shifts(exponent, head_dim)
    out = np.zeros((600, 2), np.int64)
    library().run_score_shifts(
        ctypes.c_size_t(600),
        ctypes.c_void_p(exponent.ctypes.data),
        ctypes.c_uint(head_dim),
        ctypes.c_void_p(out.ctypes.data),
    )
    np.testing.assert_array_equal(out, np.stack([first, np.minimum(second, 63)], 1))
