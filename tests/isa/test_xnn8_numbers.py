"""The numbers of xnn8 equal their definition on integers without widths, at the extremes of all operands, too."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rsn.base.errors import TensorError, UnsupportedError
from rsn.isa.overlays.xnn8 import bounds, numbers
from rsn.isa.overlays.xnn8.functions import TABLES
from rsn.isa.overlays.xnn8.numbers import HIGHEST, LOWEST, BlockNumbers, RowFactor
from rsn.tests.effort import examples
from rsn.tests.isa import xnn8_scalars as scalars

FUNCTIONS = {
    "gelu_erf": lambda x: x * (1 + math.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}
WIDTH = 3
"""Columns of a block; the steps that are tested with it take any number."""


def integers(bits: int) -> Any:
    most = (1 << bits) - 1
    return st.sampled_from((-most, most, 0, 1, -1, most // 2 + 1)) | st.integers(-most, most)


def exponents(low: int = LOWEST, high: int = HIGHEST) -> Any:
    return st.sampled_from((low, high)) | st.integers(-20, 20) | st.integers(low, high)


def rows_of_blocks(count: int, bits: int = 15) -> Any:
    block = st.tuples(*[integers(bits)] * WIDTH).map(list)
    return st.tuples(*[st.tuples(block, exponents())] * count)


def blocks(row: list[tuple[list[int], int]]) -> BlockNumbers:
    return BlockNumbers(np.array([x for x, _ in row]), np.array([[e] for _, e in row]))


def listed(v: Any, e: Any) -> list[list[tuple[int, int]]]:
    return [[(int(x), int(at)) for x in block] for block, (at,) in zip(v, e, strict=True)]


def number(x: Any) -> int:
    return int(np.asarray(x).item())


def test_all_weights_of_four_bits() -> None:
    codes, multipliers = np.arange(-8, 8, dtype=np.int8), np.arange(256, dtype=np.uint8)
    made = numbers.unpacked(np.repeat(codes, 2)[:, None].repeat(256, 1), multipliers[None])
    assert made[::2].tolist() == [[scalars.unpacked(code, m) for m in range(256)] for code in range(-8, 8)]


@examples(2000, 60)
@given(st.integers(-(2**61), 2**61), st.integers(-60, 70))
def test_rounding(x: int, shift: int) -> None:
    x = x if shift >= 0 else x >> -shift
    assert number(numbers.rounded(np.int64(x), shift)) == (scalars.near(x, shift) if shift < 63 else 0)
    assert number(numbers.length(np.int64(x))) == abs(x).bit_length()


@examples(2000, 60)
@given(st.integers(0, 2**61), st.booleans())
def test_factors(x: int, up: bool) -> None:
    made = numbers.normal(np.int64(x), 0, up=up)
    assert tuple(map(number, made)) == scalars.normal(x, 0, up)
    assert 1 << 14 <= number(made.mantissa) < 1 << 15


@examples(1000, 40)
@given(rows_of_blocks(1, 31), st.sampled_from((8, 16)), st.integers(-300, 300))
def test_storing(row: Any, bits: int, at: int) -> None:
    made = numbers.stored(blocks(row).integers, np.array([[at]]), bits)
    assert (made.integers[0].tolist(), number(made.exponents)) == scalars.stored(row[0][0], at, bits)


@examples(1000, 40)
@given(rows_of_blocks(2, 31), st.sampled_from((8, 16)), st.tuples(*[st.integers(-300, 300)] * 2))
def test_storing_of_halves_with_other_exponents(row: Any, bits: int, at: tuple[int, int]) -> None:
    """Two heads side by side: as one by one, but with the larger exponent of both."""
    halves = [block for block, _ in row]
    made = numbers.stored(np.concatenate(halves)[None], np.array([at]), bits)
    top = max(scalars.stored(half, e, bits)[1] for half, e in zip(halves, at, strict=True))
    assert number(made.exponents) == top
    for half, e, mine in zip(halves, at, np.split(made.integers[0], 2), strict=True):
        if top < HIGHEST:
            assert mine.tolist() == [scalars.limited(scalars.near(x, top - e), bits) for x in half]


@examples(1000, 40)
@given(integers(41), st.integers(-300, 300), integers(15), exponents(), integers(15), exponents())
def test_sums_of_addends(product: int, at: int, bias: int, of_bias: int, residual: int, of_residual: int) -> None:
    addends = ((product, at, 41), (bias, of_bias, 15), (residual, of_residual, 15))
    made = numbers.added(*((np.int64(x), np.int64(e), bits) for x, e, bits in addends))
    assert tuple(map(number, made)) == scalars.added(*addends)


def constant(value: float) -> tuple[int, int]:
    mantissa, exponent = numbers._constant(value, 31)
    return int(mantissa), exponent


@examples(2000, 60)
@given(
    rows_of_blocks(3),
    rows_of_blocks(3),
    rows_of_blocks(3),
    st.sampled_from((0.0, 1e-12, 1e-5, 1e30)),
    st.sampled_from(("-", "layer", "rms")),
    st.integers(0, 8),
)
def test_sending(x: Any, gain: Any, shift: Any, eps: float, kind: str, low_bits: int) -> None:
    columns, is_rms = 3 * WIDTH, kind == "rms"
    if kind == "-":
        rows, scale = numbers.sent(blocks(x), blocks(gain), None, low_bits)
        wanted = scalars.sent(x, gain, None, low_bits)
    else:
        norm = numbers.statistics(blocks(x), numbers.NormConstants.of(columns, eps), rms=is_rms)
        of_eps, root = constant(columns * eps), constant(columns**0.5)
        by_definition = scalars.statistics(x, columns, of_eps, root, is_rms)
        assert (number(norm.mean), number(norm.top), tuple(map(number, norm.inverse))) == by_definition
        rows, scale = numbers.sent(blocks(x), blocks(gain), norm, low_bits)
        wanted = scalars.sent(x, gain, by_definition, low_bits)
        v, e = numbers.normalised(blocks(x), blocks(gain), blocks(shift), norm)
        assert listed(v, e) == scalars.normalised(x, gain, shift, by_definition)
    assert (rows.tolist(), tuple(map(number, scale))) == wanted


@pytest.mark.parametrize("sign", [1, -1])
def test_widest_norm(sign: int) -> None:
    """As many columns as bounds allow, all as large as they can be."""
    columns = (1 << 14) - 128
    bounds.check_norm("here", columns)
    x = [([32767] * 64, 3), ([sign * 32767] * 64, 3)] * (columns // 128)
    norm = numbers.statistics(blocks(x), numbers.NormConstants.of(columns, 1e-5), rms=False)
    wanted = scalars.statistics(x, columns, constant(columns * 1e-5), constant(columns**0.5), False)
    assert (number(norm.mean), number(norm.top), tuple(map(number, norm.inverse))) == wanted
    with pytest.raises(UnsupportedError, match=f"16384 columns may be {1 << 62}, beyond the 63 bits"):
        bounds.check_norm("here", 1 << 14)


@examples(1000, 40)
@given(
    st.integers(0, 2**31 - 1),
    st.floats(-1, 1),
    integers(15),
    exponents(),
    st.integers(1 << 14, (1 << 15) - 1),
    exponents(),
)
def test_products(largest: int, share: float, column: int, of_column: int, row: int, of_row: int) -> None:
    """Sums up to the largest one leave the tiles without saturation."""
    total, shift = round(share * largest), numbers.drain_shift(largest)
    factor = RowFactor(*(np.array([[x]]) for x in (row, of_row)))
    columns = BlockNumbers(np.full((1, 64), column), np.array([[of_column]]))
    drained = numbers.drained(np.full((1, 64), total), np.array([[shift]]))
    v, e, bits = numbers.scaled(drained, np.array([[shift]]), columns, factor)
    assert (int(v[0, 0, 0]), number(e), bits) == scalars.scaled(total, shift, (column, of_column), (row, of_row))
    assert shift == 0 or scalars.near(largest, shift - 1) > 32767


@examples(500, 30)
@given(st.integers(1, 8), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_products_of_rows_of_16_bits(low_bits: int, k: int, seed: int) -> None:
    """High and low parts have 8 bits; their sums, those of all high parts first, become the product, and are never
    larger than what `bounds.low_bits` goes by."""
    random = np.random.default_rng(seed)
    weight, most = random.integers(-127, 128, (k, 3)), 127 << low_bits
    weight[:, 0] = 127 * random.choice((-1, 1), k)
    rows = random.integers(-most, most + 1, (5, k))
    rows[:2] = most * np.sign(weight[:, 0]), (most - 128) * np.sign(weight[:, 0])
    high, low = numbers.parts(rows)
    assert abs(high).max() <= 127
    assert abs(low + 0.5).max() < 128
    assert (numbers.sums_of_rows(rows, weight, low_bits) == rows @ weight).all()
    on_their_way = (high @ weight << 8)[:, None] + np.cumsum(low[:, :, None] * weight, 1)
    assert abs(on_their_way).max() <= ((127 << low_bits) + 128) * 127 * k


@examples(1000, 60)
@given(st.integers(1, 5_621_684))
def test_bits_of_rows(magnitudes: int) -> None:
    """As many as sums have room for: one more would be too many, and nothing saturates as they leave."""
    bits = bounds.low_bits("up", magnitudes)
    assert ((127 << bits) + 128) * magnitudes < 1 << 31
    assert bits == 8 or ((254 << bits) + 128) * magnitudes >= 1 << 31
    largest = (127 << bits) * magnitudes
    assert numbers.rounded(np.array(largest), numbers.drain_shift(largest)) < 1 << 15


@examples(1000, 40)
@given(integers(31), exponents(-40, 20), integers(31), st.sampled_from(sorted(TABLES)))
def test_functions(v: int, at: int, other: int, name: str) -> None:
    made = number(numbers.activated(np.int64(v), np.int64(at), TABLES[name]))
    assert made == scalars.activated(v, at, TABLES[name])
    got = numbers.gated((np.int64(v), np.int64(at)), (np.int64(other), np.int64(2)))
    assert tuple(map(number, got)) == scalars.gated((v, at), (other, 2))


@pytest.mark.parametrize(("name", "error"), [("gelu_erf", 0.0041), ("gelu_tanh", 0.0041), ("silu", 0.0083)])
def test_tables(name: str, error: float) -> None:
    x = np.arange(-12 << 16, 12 << 16, 97)
    made = numbers.activated(x, np.int64(-16), TABLES[name]) / 65536
    assert np.abs(made - [FUNCTIONS[name](i / 65536) for i in x]).max() < error


@examples(500, 25)
@given(st.lists(integers(31), min_size=4, max_size=4), st.lists(integers(15), min_size=8, max_size=8))
def test_rotation(v: list[int], tables: list[int]) -> None:
    own, partner = np.array(tables[:4]), np.array(tables[4:])
    made, e = numbers.rotated(np.array([v]), np.array([[5]]), own, partner)
    assert listed(made, e)[0] == scalars.rotated(v, 5, tables[:4], tables[4:])


def test_powers_of_two() -> None:
    x = np.arange(numbers.FAR + 1)
    made = numbers.power(x)
    assert made[::13].tolist() == [scalars.power(i) for i in range(0, len(x), 13)]
    assert np.abs(made - 255 * 2.0 ** (-x / 2048)).max() < 0.54
    assert (made[0], made[-1]) == (255, 0)


@examples(1000, 40)
@given(
    st.sampled_from((32, 64, 128)),
    st.integers(-256, 40),
    st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=8),
)
def test_softmax(head_dim: int, at: int, keys: list[tuple[float, bool]]) -> None:
    scores, shows = [round(share * head_dim * 127 * 127) for share, _ in keys], [shown for _, shown in keys]
    made = numbers.weights(np.array([[scores]]), numbers.score_shifts(np.array([[at]]), head_dim), np.array(shows))
    assert made.ravel().tolist() == scalars.weights(scores, at, shows, head_dim)
    if any(shows):
        seen = np.array([s for s, shown in zip(scores, shows, strict=True) if shown]) * 2.0**at
        wanted = 255 * np.exp(seen - seen.max())
        near = np.abs(made.ravel()[shows] - wanted)
        assert near.max() < 1.2  # half of one by rounding, and that of its exponent


@examples(1000, 40)
@given(st.integers(1, 66_000), st.floats(0, 1), st.floats(-1, 1), exponents())
def test_weighted_values(keys: int, share: float, value: float, at: int) -> None:
    bounds.check_attention("here", 128, keys)
    weight = round(share * 255 * keys)
    total = round(value * 127 * weight)
    made = numbers.of_weights(np.array([[total]]), np.array([[weight]]), np.array([[at]]), keys)
    assert tuple(map(number, made)) == scalars.of_weights(total, weight, at, keys)


@examples(300, 15)
@given(st.integers(0, 2**32 - 1), st.sampled_from((32, 64, 128)), st.integers(0, 8))
def test_heads_and_rows_share_exponents(seed: int, pitch: int, low_bits: int) -> None:
    random = np.random.default_rng(seed)
    x = numbers.blocks_of(random.normal(size=(2, 3, 256)) * 2.0 ** random.integers(-9, 9, (2, 3, 256)), 8)
    shows = random.integers(0, 2, (2, 3)) > 0
    made, top = numbers.of_heads(x, pitch, shows)
    flat, of_columns = x.integers.reshape(2, 3, -1), x.exponents.repeat(64, -2).reshape(2, 3, -1)
    for b in range(2):
        for h in range(256 // pitch):
            columns = slice(h * pitch, (h + 1) * pitch)
            largest = max((int(e) for r in range(3) if shows[b, r] for e in of_columns[b, r, columns]), default=LOWEST)
            assert number(top[b, h]) == largest
            wanted = [
                [
                    scalars.near(int(m), largest - int(e)) if shows[b, r] else 0
                    for m, e in zip(flat[b, r, columns], of_columns[b, r, columns], strict=True)
                ]
                for r in range(3)
            ]
            assert made[b, h].tolist() == wanted
    rows, scale = numbers.of_rows(x, low_bits)
    assert abs(rows).max() <= 127 << low_bits
    values = rows.astype(np.float64) * scale.mantissa * 2.0**scale.exponent
    step = 2.0 ** (x.exponents.max(-2, keepdims=True) - low_bits)
    assert (np.abs(values - x.integers * 2.0**x.exponents) <= step / 2).all()
    v, e = numbers.joined(x.integers[..., :32], x.exponents)
    assert v.shape == (2, 3, 2, 64)
    halves = v.reshape(2, 3, 4, 32) * 2.0 ** e.reshape(2, 3, 4, 1)
    assert np.array_equal(halves, x.integers[..., :32] * 2.0**x.exponents)


def test_the_host_rounds_once() -> None:
    values = np.random.default_rng(0).normal(size=(5, 100)).astype(np.float32)
    made = numbers.blocks_of(values, 16)
    assert made.integers.shape == (5, 2, 64)
    assert np.abs(made.integers).max() <= 32767
    back = numbers.values_of(made, 100)
    assert (np.abs(back - values) <= 2.0 ** made.exponents.max() / 2).all()
    assert (numbers.blocks_of(back, 16).integers == made.integers).all()
    with pytest.raises(TensorError, match="not finite"):
        numbers.blocks_of(np.array([1.0, np.nan]), 16)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: bounds.check_product("up", 1 << 31), "up: a sum of products with rows of up to 127 may be 2147483648"),
        (lambda: bounds.low_bits("up", 5_621_685), "rows of 9 bits may be 2147483670, beyond the 32 bits"),
        (lambda: bounds.check_attention("a", 64, 66_314), "66314 values of up to 127 with weights of up to 255 may be"),
        (lambda: bounds.check_attention("a", 66_600, 8), "difference of two scores of 66600 columns may be 2148"),
    ],
)
def test_refused(check: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_may_take_keys_in_any_order(head_dim: int) -> None:
    """Two tiles have half of the columns each, chunks of 32 keys come twice, and a mask ends inside a chunk: the bits
    are those of all keys at once. Differences are negative, as accumulators that begin at the largest score have them,
    and all in between has 16 bits."""
    random = np.random.default_rng(head_dim)
    q, k, v = (random.integers(-127, 128, (rows, head_dim)) for rows in (16, 96, 96))
    shows = np.arange(96) < 75
    exponent = np.array([[-14]])
    whole = numbers.weights(numbers.sums(q, k.T), numbers.score_shifts(exponent, head_dim), shows)
    first, second = (number(shift) for shift in numbers.score_shifts(exponent, head_dim))
    chunks = [slice(at, at + 32) for at in (64, 0, 32)]
    halves = [slice(0, head_dim // 2), slice(head_dim // 2, head_dim)]

    def scores(keys: slice) -> Any:
        return sum(numbers.sums(q[:, half], k[keys, half].T) for half in halves)

    largest = np.full((16, 1), -(1 << 31))
    for keys in chunks:
        largest = np.maximum(largest, np.where(shows[keys], scores(keys), -(1 << 31)).max(1, keepdims=True))
    total, weight = np.zeros((16, head_dim), np.int64), np.zeros((16, 1), np.int64)
    for keys in chunks:
        below = numbers.saturated(numbers.rounded(scores(keys) - largest, first), 16)
        x = numbers.saturated(numbers.rounded(below * -numbers.LOG2_E, second), 16)
        p = np.where(shows[keys], numbers.power(np.clip(x, 0, numbers.FAR)), 0)
        for half in halves:
            total[:, half] += numbers.sums(p, v[keys, half])
        weight += p.sum(1, keepdims=True)
    assert 1.5 < whole.sum(1).mean() / 255 < 40  # neither one key nor all of them
    assert (total == numbers.sums(whole, v)).all()
    assert (weight == whole.sum(1, keepdims=True)).all()
