"""What quantised numbers mean, and products of them: the one definition, on NumPy arrays.

A quantised tensor is integers with scales and zero points: it stands for (integer - zero point) * scale. Products and
sums of integers are exact. All other steps are single float32 operations in the order that is written here, and round
half to even; so every implementation has the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import UnsupportedError

Integers = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]
Float32 = npt.NDArray[np.float32]

ACCUMULATOR_BITS = 32
"""Bits of a signed sum of products."""


def row_scales(
    x: Float32, low: int, high: int, *, is_symmetric: bool, least: float
) -> tuple[Float32, npt.NDArray[np.int32]]:
    """The scale and the zero point of each row, such that integers from `low` to `high` can stand for all its numbers.

    x: (..., K), K at least 1. low, high: the smallest and the largest integer. is_symmetric: the zero point is the
    middle of `low` and `high`, and the range has the same size for both signs. least: the smallest scale that is
    returned. Returns scales, float32 (..., 1), and zero points, int32 (..., 1), as torchao's `choose_qparams_affine`
    does for blocks of one row."""
    below = np.minimum(x.min(-1, keepdims=True), np.float32(0))
    above = np.maximum(x.max(-1, keepdims=True), np.float32(0))
    if is_symmetric:
        scale = np.maximum(-below, above) / np.float32((high - low) / 2)
        scale = np.maximum(scale, np.float32(least))
        return scale, np.full(scale.shape, int((high + low + 1) / 2), np.int32)
    scale = np.maximum((above - below) / np.float32(high - low), np.float32(least))
    zero = np.float32(low) - np.rint(below / scale)
    return scale, np.clip(zero, low, high).astype(np.int32)


def quantise(x: Float32, scale: Floats, zero: Integers | None, low: int, high: int) -> npt.NDArray[np.int8]:
    """The nearest integers from `low` to `high` (both of int8), of the shape of x. scale, zero: to be broadcast to x;
    zero None is 0. The reciprocal of a scale is rounded to float32 once, from the scale's own type: torchao computes it
    in float32, PT2E in float64. Raises `ValueError` for shapes that cannot be broadcast."""
    nearest: Float32 = np.rint(x * (1 / scale).astype(np.float32))
    if zero is not None:
        nearest = nearest + zero.astype(np.float32)
    return np.clip(nearest, low, high).astype(np.int8)


def dequantise(x: Integers, scale: Floats, zero: Integers | None = None) -> Float32:
    """What integers (..., K) stand for, as float32 of this shape. scale, zero: (..., G), of G groups of K / G columns
    each; or one number. zero None is 0. Raises `ValueError` if G does not divide K."""
    scale, zero = np.atleast_1d(scale), None if zero is None else np.atleast_1d(zero)
    made: Float32 = x.reshape(*x.shape[:-1], scale.shape[-1], -1).astype(np.float32)
    if zero is not None:
        made = made - zero[..., None].astype(np.float32)
    made = made * scale[..., None].astype(np.float32)
    return made.reshape(x.shape)


def integer_linear(
    x: Integers,
    scale: Floats,
    zero: Integers | None,
    weight: Integers,
    weight_scale: Floats,
    weight_zero: Integers | None = None,
    bias: Float32 | None = None,
) -> Float32:
    """A linear layer of quantised numbers: for each group of columns an exact sum of products of integers.

    x: (..., K). scale, zero: (..., 1), or one number. weight: (N, K). weight_scale, weight_zero: (N, G), of G groups of
    K / G columns. A zero that is None is 0. bias: (N,); None for none. Returns float32 (..., N). In float32, group by
    group: sum * weight scale, added up; then * scale, + bias. Raises `ValueError` if G does not divide K, or shapes do
    not fit. Sums must pass `check_accumulator`."""
    groups = weight_scale.shape[1]
    total: Any = np.float32(0)
    for g, (rows, columns) in enumerate(zip(*(np.split(t, groups, -1) for t in (x, weight)), strict=True)):
        sums = _sums(rows, zero, columns.T, None if weight_zero is None else weight_zero[:, g])
        total = total + sums.astype(np.float32) * weight_scale[:, g].astype(np.float32)
    made: Float32 = total * scale.astype(np.float32)
    return made if bias is None else made + bias


def integer_matmul(
    x: Integers,
    scale: Floats,
    zero: Integers | None,
    other: Integers,
    other_scale: Floats,
    other_zero: Integers | None,
) -> Float32:
    """A product of quantised matrices. x: (..., M, K). scale, zero: (..., M, 1), or one number. other: (..., K, N).
    other_scale, other_zero: (..., 1, N), or one number. A zero that is None is 0. Returns float32 (..., M, N):
    sum * (scale * other scale). Raises `ValueError` for shapes that do not fit. Sums must pass `check_accumulator`."""
    factor = scale.astype(np.float32) * other_scale.astype(np.float32)
    return _sums(x, zero, other, other_zero).astype(np.float32) * factor


def _sums(x: Integers, zero: Integers | None, y: Integers, other: Integers | None) -> npt.NDArray[np.float64]:
    """(x - zero) @ (y - other zero). In float64, which is exact: each partial sum is an integer below 2^53, because
    sums have at most 32 bits (`check_accumulator`). NumPy multiplies matrices of integers a hundred times slower."""
    rows, columns = (
        t.astype(np.float64) if at is None else t.astype(np.float64) - at for t, at in ((x, zero), (y, other))
    )
    made: npt.NDArray[np.float64] = rows @ columns
    return made


def check_accumulator(count: int, largest: int, other: int) -> None:
    """Check that no sum of `count` products of integers overflows an accumulator of `ACCUMULATOR_BITS` bits. largest,
    other: the largest magnitudes of the two operands after their zero points are subtracted. Raises `UnsupportedError`
    with the numbers if a sum may overflow."""
    most = count * largest * other
    if most >= 1 << (ACCUMULATOR_BITS - 1):
        raise UnsupportedError(
            f"a sum of {count} products of up to {largest} x {other} may be {most}, beyond the {ACCUMULATOR_BITS} bits "
            "of an accumulator: quantise the weights in groups"
        )
