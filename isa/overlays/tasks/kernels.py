"""The library kernels of tasks on values: what they compute, in which order, so that other back ends give equal bits.

Floats are computed in float32 (`f64` in float64), every operation rounded, none fused. Sums of products run from the
first element to the last, other sums pair by pair (`total`). `exp` is computed as below and not as the host has it,
whose last bits differ between computers.

NaN, infinities and subnormals give what they give in PyTorch, and so does the sign of a zero. Where PyTorch leaves it
open which of -0 and +0 is the larger one, +0 is, as in IEEE 754-2019 (maximum, minimum).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from ....base.errors import ProgramError
from .operators import exact, wide
from .values import DTYPES

Tile = Any
"""A numpy array, or a number."""

LOG2_E = np.float32(1.44269504)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
EXP_SMALLEST = np.float32(-104.0)
"""Below it exp is 0: the result is less than half of the least subnormal float32, 2^-149."""
EXP_LARGEST = np.float32(88.722831)
"""Above it exp is infinite: the logarithm of the largest float32, rounded down."""
EXP_LESS_1 = tuple(map(np.float32, (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0)))
"""Coefficients of the Taylor polynomial of (exp(x) - 1) / x on [-ln 2 / 2, ln 2 / 2], the highest power first."""

FRACTION = 26
"""Bits behind the point of the integers with which exp is computed."""
FIXED_LOG2_E = round(2**14 / np.log(2))
FIXED_LN2, FIXED_LN2_LONG = round(np.log(2) * 2**FRACTION), round(np.log(2) * 2**34)
EXP_STEP = 17
"""Bits of an integer behind those that choose a row of `EXP_TABLE`."""
EXP_TABLE = np.rint(np.exp((np.arange((FIXED_LN2 >> EXP_STEP) + 1) + 0.5) / 512) * 2**FRACTION).astype(np.int64)
"""exp in the middle of each of the parts, 1 / 512 wide, of [0, ln 2]."""

ERF_P = np.float32(0.3275911)
ERF = tuple(map(np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)))
"""Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26: absolute error below 1.5e-7."""
SQRT_HALF = np.float32(0.70710678)


def _float(x: Any) -> Tile:
    x = np.asarray(x)
    return x if x.dtype == np.float64 else x.astype(np.float32)


def _split(x: Tile) -> tuple[Tile, Tile]:
    """The power of 2, and the rest, of exp of float32: x = power * ln 2 + rest, |rest| <= ln 2 / 2. x that is beyond
    the ends of exp counts as the end, NaN as 0."""
    inside: Tile = np.clip(np.where(np.isnan(x), np.float32(0), x), EXP_SMALLEST, EXP_LARGEST)
    powers: Tile = np.rint(inside * LOG2_E)
    rest: Tile = inside - powers * LN2_HIGH
    return powers.astype(np.int32), rest - powers * LN2_LOW


def _polynomial(x: Tile, coefficients: Sequence[np.float32]) -> Tile:
    """By Horner's rule. coefficients: the highest power first."""
    series: Tile = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        series = series * x + coefficient
    return series


def exp(x: Any) -> Tile:
    """Return e to the power of each element, float32 or (`f64`) float64, of the shape of x. Relative error below 1e-7
    in float32, where the result is no subnormal number; it never decreases.

    All is done with integers, because multiplications of floats are dear in hardware: x = n ln 2 + middle + rest, where
    the table has exp of the middle, and two terms of a series suffice for a rest below 1 / 1024.
    """
    x = _float(x)
    if x.dtype == np.float64:
        return np.exp(x)
    bits = x.view(np.int32).astype(np.int64)
    shift, significand = (bits >> 23 & 255) - (150 - FRACTION), bits & 0x7FFFFF | 0x800000
    size = np.where(shift > 0, significand << np.clip(shift, 0, 9), significand >> np.clip(-shift, 0, 31))
    fixed = np.where(bits < 0, -size, size)
    power = ((fixed >> 16) * FIXED_LOG2_E - (1 << 14)) >> 24  # rounded down, or one less
    rest = fixed - ((power * FIXED_LN2_LONG + (1 << 7)) >> 8)
    is_less = rest >= FIXED_LN2
    power, rest = power + is_less, rest - is_less * FIXED_LN2
    middle = EXP_TABLE[np.clip(rest >> EXP_STEP, 0, len(EXP_TABLE) - 1)]  # of what is beyond the ends, any
    rest = (rest & (1 << EXP_STEP) - 1) - (1 << EXP_STEP - 1)
    half = rest >> 7
    series = rest + ((half * half + (1 << 12)) >> 13)
    made = middle + (((middle >> 1) * series + (1 << 24)) >> 25)
    behind = FRACTION - 23 + np.clip(-126 - power, 0, 30)  # more of a subnormal number
    rounded = (made + (1 << behind - 1)) >> behind
    result = (rounded + (np.clip(power + 126, 0, 254) << 23)).astype(np.int32).view(np.float32)
    result = np.where(x > EXP_LARGEST, np.float32(np.inf), np.where(x < EXP_SMALLEST, np.float32(0), result))
    return np.where(np.isnan(x), x, result)


def _exp_less_1(x: Tile) -> Tile:
    """exp(x) - 1 of float32 that is at most 0, or NaN. Relative error below 3e-7, for the smallest numbers too."""
    powers, rest = _split(x)
    one = np.float32(1)
    result = np.ldexp(_polynomial(rest, EXP_LESS_1) * rest, powers) + (np.ldexp(one, powers) - one)
    return np.where(np.isnan(x), x, result)


def _erf(x: Tile) -> Tile:
    size = np.abs(x)
    t = np.float32(1) / (np.float32(1) + ERF_P * size)
    tail = _polynomial(t, ERF) * t * exp(-(size * size))
    return np.where(x < 0, tail - np.float32(1), np.float32(1) - tail)


def total(x: Any, axis: int = -1) -> Tile:
    """Return the sum of x along an axis, without that axis. Neighbours are added in pairs, then neighbours of these
    sums, and so on; an element without a neighbour waits for the next round. In this order a machine can add the
    elements that come in one cycle by a tree. 0 is added last, so that a sum of -0 is 0.

    Integers are added in 64 bits. Raises `IndexError` for an axis without elements."""
    x = np.asarray(x)
    x = np.moveaxis(x.astype(np.int64 if x.dtype.kind in "iub" else x.dtype), axis, -1)
    while x.shape[-1] > 1:
        even = x.shape[-1] // 2 * 2
        pairs = x[..., 0:even:2] + x[..., 1:even:2]
        x = np.concatenate([pairs, x[..., even:]], axis=-1)
    return x[..., 0] + x.dtype.type(0)


def maximum(a: Any, b: Any) -> Tile:
    """Return the larger of a and b, element by element; NaN if one of them is; +0 of -0 and +0."""
    larger = np.maximum(a, b)
    if larger.dtype.kind != "f":
        return larger
    return np.where(np.equal(a, b), np.where(np.signbit(a), b, a), larger).astype(larger.dtype)


def minimum(a: Any, b: Any) -> Tile:
    """Return the smaller of a and b, element by element; NaN if one of them is; -0 of -0 and +0."""
    smaller = np.minimum(a, b)
    if smaller.dtype.kind != "f":
        return smaller
    return np.where(np.equal(a, b), np.where(np.signbit(a), a, b), smaller).astype(smaller.dtype)


def _largest(x: Tile, axis: int) -> Tile:
    """The largest element along an axis, as `maximum` of all of them."""
    most = x.max(axis=axis)
    zeros = x.dtype.kind == "f" and (most == 0).any()
    return reduce(maximum, np.moveaxis(x, axis, 0)) if zeros else most


def _number_or_nan(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Python's max or min of numbers, but NaN if one of them is; wherever Python's own has it depends on the order."""

    def compute(*numbers: Any) -> Any:
        numbers = _listed(numbers)
        return next((x for x in numbers if x != x), None) or choose(numbers)  # NaN is true

    return compute


def matmul(a: Any, b: Any) -> Tile:
    """Return the product of two matrices, a (..., m, k) by b (..., k, n), or of each two of a batch, whose axes are
    broadcast; the sum runs over k in order. A vector is a matrix of one row on the left, of one column on the right,
    and the result has no such axis. Integers give int64. Raises `ValueError` for a batch or a k that does not fit.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iub":
        return np.asarray(a.astype(np.int64) @ b.astype(np.int64))
    if b.ndim == 1:
        return np.asarray(matmul(a, b[:, np.newaxis])[..., 0])
    if a.ndim == 1:
        return np.asarray(matmul(a[np.newaxis], b)[..., 0, :])
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul of {a.shape} and {b.shape}: {a.shape[-1]} columns and {b.shape[-2]} rows do not meet")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.zeros((*batch, a.shape[-2], b.shape[-1]), np.result_type(a, b))
    for k in range(a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]
    return out


def softmax(x: Any) -> Tile:
    """Return the softmax along the last axis, of the shape of x; float32, or float64 of float64. Raises `ValueError`
    for an axis without elements."""
    x = _float(x)
    powers = exp(x - x.max(axis=-1, keepdims=True))
    return powers / total(powers)[..., None]


def layernorm(x: Any, gamma: Any = None, beta: Any = None, eps: float = 1e-5) -> Tile:
    """Return the layer norm along the last axis, of the shape of x: (x - mean) / sqrt(variance + eps), times gamma,
    plus beta. gamma, beta: (columns,), or None for none. Raises `IndexError` for an axis without elements."""
    x = _float(x)
    count = x.dtype.type(x.shape[-1])
    centred = x - (total(x) / count)[..., None]
    variance = total(centred * centred) / count
    return _scaled(centred / np.sqrt(variance + x.dtype.type(eps))[..., None], gamma, beta)


def rmsnorm(x: Any, gamma: Any = None, eps: float = 1e-5) -> Tile:
    """Return the RMS norm along the last axis, of the shape of x: x / sqrt(mean square + eps), times gamma. gamma:
    (columns,), or None for none. Raises `IndexError` for an axis without elements."""
    x = _float(x)
    square = total(x * x) / x.dtype.type(x.shape[-1])
    return _scaled(x / np.sqrt(square + x.dtype.type(eps))[..., None], gamma, None)


def _scaled(x: Tile, gamma: Any, beta: Any) -> Tile:
    x = x if gamma is None else x * gamma
    return x if beta is None else x + beta


def gelu(x: Any) -> Tile:
    """Return GELU with the error function, element by element. In float32 its error is below 2e-7 times x (Abramowitz
    and Stegun, formula 7.1.26).
    """
    x = _float(x)
    if x.dtype == np.float64:
        from scipy import special  # here, because importing it takes longer than most commands

        return x * 0.5 * (1 + special.erf(x * np.sqrt(0.5)))
    return x * np.float32(0.5) * (np.float32(1) + _erf(x * SQRT_HALF))


def silu(x: Any) -> Tile:
    """Return x times the logistic function of x, element by element."""
    x = _float(x)
    return x / (np.float32(1) + exp(-x))


def tanh(x: Any) -> Tile:
    """Return the hyperbolic tangent, -t / (2 + t) with t = exp(-2 |x|) - 1, element by element. Relative error below
    4e-7 in float32.
    """
    x = _float(x)
    if x.dtype == np.float64:
        return np.tanh(x)
    less = _exp_less_1(np.abs(x) * np.float32(-2))
    return np.copysign(-less / (np.float32(2) + less), x)


def banded(x: Any, first: Any, last: Any) -> Tile:
    """Return x where first <= j - i <= last, and minus infinity elsewhere. x: (..., rows, columns). i, j: the last two
    indices of an element. first, last: whole numbers.
    """
    x = _float(x)
    rows, columns = x.shape[-2:]
    diagonal = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    return np.where((diagonal >= int(first)) & (diagonal <= int(last)), x, x.dtype.type(-np.inf))


def replace_row(x: Any, row: Any, index: Any) -> Tile:
    """Return x with the row at an index replaced; an index of no row of it changes nothing. x: (rows, columns). row:
    (1, columns). index: a whole number.
    """
    out = np.array(x)
    if 0 <= int(index) < len(out):
        out[int(index)] = np.asarray(row)[0]
    return out


def relu(x: Any) -> Tile:
    """Return each element of x, or 0 where it is less; NaN of NaN, and -0 of -0."""
    x = np.asarray(x)
    return np.where(x < 0, x.dtype.type(0), x)


def _made(dtype: Any, shape: tuple[Any, ...], value: Any) -> Tile:
    if dtype not in DTYPES:
        raise ProgramError(f"{dtype} is no element type")
    return np.full(tuple(int(n) for n in shape), value, DTYPES[dtype])


def _reduced(x: Any, axis: Any, keepdims: bool, along: Callable[[Any, int], Tile]) -> Tile:
    """Combine the elements along axes, from the last of them to the first; None for all axes."""
    x = np.asarray(x)
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    whole = sorted({int(k) % x.ndim for k in axes}, reverse=True)
    for k in whole:
        x = along(x, k)
    return np.expand_dims(x, tuple(whole)) if keepdims else x


def _listed(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that may be given as one tuple."""
    return items[0] if len(items) == 1 and isinstance(items[0], tuple) else items


@dataclass(frozen=True)
class LibraryKernel:
    """A library kernel: what it computes, and its contract.

    compute: the function that computes it. rule: how the shape of the result follows (key of
    `streams.kernel_types.RULES`); "" for a function with rules of its own. operands: names of the tiles, in order.
    optional: how many of the last operands may be left out. options: names of further arguments, known before the run,
    in order. floats: it takes floats only.

    The others say which operands may be pending. They name operands by their numbers, from 0. linear: operands in each
    of which the kernel is linear while the others are fixed, so that this one may be a pending sum. jointly: it is
    linear in all operands together, so that all may be pending sums. increasing: operands in each of which it never
    decreases, so that it may be a pending maximum. decreases: with a negative other operand it decreases all the same,
    so that the other one must be known not to be negative. joins: it takes the maximum of its operands, so that both
    may be pending maxima. reduces: the operator, such as `+`, that completes the result if the axis that the kernel
    reduces is cut along the mesh.
    """

    name: str
    compute: Callable[..., Any]
    rule: str = ""
    operands: tuple[str, ...] = ()
    optional: int = 0
    options: tuple[str, ...] = ()
    linear: tuple[int, ...] = ()
    jointly: bool = False
    increasing: tuple[int, ...] = ()
    decreases: bool = False
    joins: bool = False
    floats: bool = False
    reduces: str = ""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.compute(*arguments, **named)


def no_kernel(*values: Any) -> NoReturn:
    """Raise `ProgramError`. It takes the place of `compute` in kernels that only the type check uses."""
    raise ProgramError("this is no kernel of a machine")


CONTRACTS = {
    kernel.name: kernel
    for kernel in (
        LibraryKernel("matmul", matmul, "matmul", ("a", "b"), linear=(0, 1), reduces="+"),
        LibraryKernel(
            "add", exact(lambda a, b: np.asarray(a) + b), "elementwise", ("a", "b"), jointly=True, increasing=(0, 1)
        ),
        LibraryKernel(
            "sub", exact(lambda a, b: np.asarray(a) - b), "elementwise", ("a", "b"), jointly=True, increasing=(0,)
        ),
        LibraryKernel(
            "mul",
            exact(lambda a, b: np.asarray(a) * b),
            "elementwise",
            ("a", "b"),
            linear=(0, 1),
            increasing=(0, 1),
            decreases=True,
        ),
        LibraryKernel(
            "scale",
            exact(lambda x, c: np.asarray(x) * c),
            "elementwise",
            ("x", "c"),
            linear=(0, 1),
            increasing=(0, 1),
            decreases=True,
        ),
        LibraryKernel(
            "div",
            exact(lambda a, b: np.asarray(a) / b),
            "elementwise",
            ("a", "b"),
            linear=(0,),
            increasing=(0,),
            decreases=True,
            floats=True,
        ),
        LibraryKernel("maximum", exact(maximum), "elementwise", ("a", "b"), increasing=(0, 1), joins=True),
        LibraryKernel("arithmetic", no_kernel, "elementwise", ("a", "b")),  # operators that are no kernel
        LibraryKernel("minimum", exact(minimum), "elementwise", ("a", "b"), increasing=(0, 1)),
        LibraryKernel("neg", lambda x: -wide(np.asarray(x)), "elementwise", ("x",), linear=(0,)),
        LibraryKernel("relu", relu, "elementwise", ("x",), increasing=(0,)),
        LibraryKernel("exp", exp, "elementwise", ("x",), increasing=(0,), floats=True),
        LibraryKernel("sqrt", lambda x: np.sqrt(_float(x)), "elementwise", ("x",), increasing=(0,), floats=True),
        LibraryKernel("rint", lambda x: np.rint(_float(x)), "elementwise", ("x",), increasing=(0,), floats=True),
        LibraryKernel("gelu", gelu, "elementwise", ("x",), floats=True),
        LibraryKernel("silu", silu, "elementwise", ("x",), floats=True),
        LibraryKernel("tanh", tanh, "elementwise", ("x",), increasing=(0,), floats=True),
        LibraryKernel("banded", banded, "elementwise", ("x", "first", "last"), floats=True),
        LibraryKernel("replace_row", replace_row, "row", ("x", "row", "index")),
        LibraryKernel("softmax", softmax, "rows", ("x",), floats=True),
        LibraryKernel(
            "layernorm",
            layernorm,
            "rows",
            ("x", "gamma", "beta"),
            optional=2,
            options=("eps",),
            floats=True,
        ),
        LibraryKernel("rmsnorm", rmsnorm, "rows", ("x", "gamma"), optional=1, options=("eps",), floats=True),
        LibraryKernel(
            "transpose",
            lambda x, *axes: np.transpose(x, _listed(axes) or None),
            "transpose",
            ("x",),
            options=("axes",),
            linear=(0,),
            increasing=(0,),
        ),
        LibraryKernel(
            "reshape",
            lambda x, *shape: np.asarray(x).reshape(_listed(shape)),
            "reshape",
            ("x",),
            options=("shape",),
            linear=(0,),
            increasing=(0,),
        ),
        LibraryKernel(
            "reduce_sum",
            lambda x, axis=None, keepdims=False: _reduced(x, axis, keepdims, total),
            "reduce",
            ("x",),
            options=("axis", "keepdims"),
            linear=(0,),
            reduces="+",
        ),
        LibraryKernel(
            "reduce_max",
            lambda x, axis=None, keepdims=False: _reduced(x, axis, keepdims, _largest),
            "reduce",
            ("x",),
            options=("axis", "keepdims"),
            increasing=(0,),
            joins=True,
            reduces="max",
        ),
        LibraryKernel("shape", np.shape),
        LibraryKernel("ndim", np.ndim),
        LibraryKernel("full", lambda dtype, value, *shape: _made(dtype, shape, value)),
        LibraryKernel("concat", lambda *tiles, axis=0: np.concatenate(_listed(tiles), axis=int(axis))),
        LibraryKernel("int", int),
        LibraryKernel("float", float),
        LibraryKernel("bool", bool),
        LibraryKernel("abs", lambda x: abs(wide(x))),
        LibraryKernel("max", _number_or_nan(max)),
        LibraryKernel("min", _number_or_nan(min)),
        LibraryKernel("len", len),
        LibraryKernel("none", lambda: None),
        LibraryKernel("use", lambda result, *values: result),
        LibraryKernel("data", lambda draw: draw()),
    )
}
"""All kernels, and functions that take no tiles, by name."""

KERNELS = {name: kernel for name, kernel in CONTRACTS.items() if kernel.compute is not no_kernel}
"""Those that a machine has."""
