"""Operators on each element: functions of one tensor, and of several that are broadcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from .shapes import converted
from .table import Number, Tensor, need, operator

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": F.hardswish,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": F.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": lambda x: torch.where(x == x, torch.sign(x), x),  # NaN for NaN, for which PyTorch gives 0
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
"""Functions of one tensor, without attributes."""


WIDE = (torch.uint16, torch.uint32)
"""Types for which PyTorch has no arithmetic: it is done in int64."""


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, also of integers in `WIDE`: it computes in int64, and its result is converted back
    unless it is bool. function: takes tensors and numbers by position and returns a tensor. The type is that of the
    first operand in `WIDE`."""

    def compute(*operands: Any) -> Any:
        kind = next((x.dtype for x in operands if isinstance(x, Tensor) and x.dtype in WIDE), None)
        if kind is None:
            return function(*operands)
        made = function(*(x.long() if isinstance(x, Tensor) else x for x in operands))
        return made if made.dtype is torch.bool else made.to(kind)

    return compute


def wide(x: Tensor) -> Tensor:
    """Return x in float32 if it is of floats of 16 bits, else as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the same function, also of floats of 16 bits: it computes in float32, and only its result is rounded, as
    in onnxruntime. function: takes one tensor or more, then other arguments, and returns a tensor. The type is that of
    the first tensor."""

    def compute(x: Tensor, *more: Any) -> Tensor:
        if wide(x) is x:
            return function(x, *more)
        return function(wide(x), *(wide(y) if isinstance(y, Tensor) else y for y in more)).to(x.dtype)

    return compute


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    exact = widened(function)

    def compute(x: Tensor) -> Any:
        return exact(x)

    return compute


for _name, _function in UNARY.items():
    operator(_name)(_unary(_function))


def _divided(x: Any, y: Any) -> Any:
    if all(isinstance(z, int) or (isinstance(z, Tensor) and not z.is_floating_point()) for z in (x, y)):
        if not isinstance(x, Tensor):
            x = torch.full((), x, dtype=y.dtype)
        return torch.div(x, y, rounding_mode="trunc")
    return y.reciprocal() if isinstance(x, float) and x == 1 else x / y


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Div": _divided,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
    "Equal": lambda x, y: x == y,
    "Greater": lambda x, y: x > y,
    "GreaterOrEqual": lambda x, y: x >= y,
    "Less": lambda x, y: x < y,
    "LessOrEqual": lambda x, y: x <= y,
}
"""Functions of two tensors, which are broadcast, without attributes."""

TENSORS_ALONE = ("And", "Or", "Xor")


def _binary(function: Callable[[Any, Any], Any], of_tensors: bool) -> Callable[..., Any]:
    exact = widened(function)

    def numbers(a: Number, b: Number) -> Any:
        return exact(a, b)

    def tensors(a: Tensor, b: Tensor) -> Any:
        return exact(a, b)

    return tensors if of_tensors else numbers


for _name, _of_two in BINARY.items():
    operator(_name)(_binary(_of_two, _name in TENSORS_ALONE))

BITWISE = {"BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor}
for _name, _of_two in BITWISE.items():
    operator(_name)(_binary(_of_two, True))


@operator("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder of a / b. Its sign is the divisor's; with `fmod`, the dividend's.

    a, b: are broadcast to the shape of the result.
    """
    return widened(torch.fmod if fmod else torch.remainder)(a, b)


@operator("Pow")
def power(x: Tensor, y: Number) -> Tensor:
    """x to the power of y, in the type of the base.

    x: the base. y: the exponent. Both are broadcast to the shape of the result. Powers of integers are computed in
    float64, and are the lowest number of the type where they are beyond it, as onnxruntime's; but squares and cubes of
    several numbers with a constant exponent are products, which wrap.
    """
    if x.is_floating_point():
        made: Tensor = torch.pow(x, y)
        return converted(made, x.dtype)
    if isinstance(y, int | float) and y in (2, 3) and x.numel() != 1:
        return torch.pow(x, int(y))
    made, limits = torch.pow(x.double(), y), torch.iinfo(x.dtype)
    is_within = (made > float(limits.min)) & (made < float(limits.max) + (limits.bits < 53))
    return torch.where(is_within, made.where(is_within, 0).to(x.dtype), limits.min)


@operator("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Shifts of x by y bits, to the LEFT or to the right.

    x, y: unsigned integers, which are broadcast. Raises `UnsupportedError` for a direction other than "LEFT" and
    "RIGHT".
    """
    need(direction in ("LEFT", "RIGHT"), f"direction {direction}")
    return widened(torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift)(x, y)


def _of_several(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    exact = widened(function)

    def compute(*data_0: Tensor) -> Any:
        return in_float32(lambda *tensors: reduce(exact, tensors))(*data_0)

    return compute


SEVERAL = {"Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add}
"""Functions of one tensor or more, which are broadcast."""
for _name, _function in SEVERAL.items():
    operator(_name)(_of_several(_function))


@operator("Mean")
def mean(*data_0: Tensor) -> Tensor:
    """The mean of the tensors, element by element.

    data_0: one tensor or more, which are broadcast. Integers give floats.
    """
    return in_float32(lambda *tensors: reduce(torch.add, tensors) / len(tensors))(*data_0)


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Where the operand is infinite; an attribute that is 0 leaves out the elements of its sign.

    Returns bool of the shape of x.
    """
    found = torch.isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    if not detect_positive:
        found = found & (x < 0)
    return found


@operator("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gelu with the error function, or with `approximate="tanh"` in its approximation by tanh.

    x: any shape, which the result has too. PyTorch raises `RuntimeError` for another word.
    """
    return F.gelu(x, approximate=approximate)


@operator("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    """x, or alpha * x where x is negative.

    x: any shape, which the result has too.
    """
    return F.leaky_relu(x, alpha)


@operator("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """x, or slope * x where x is negative.

    x: any shape, which the result has too. slope: is broadcast to x.
    """
    return torch.where(x < 0, x * slope, x)


@operator("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x, or alpha * (exp(x) - 1) where x is negative.

    x: any shape, which the result has too.
    """
    return F.elu(x, alpha)


@operator("Selu")
def selu(x: Tensor, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    """gamma times Elu.

    x: any shape, which the result has too.
    """
    return gamma * F.elu(x, alpha)


@operator("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1)).

    x: any shape, which the result has too.
    """
    return F.celu(x, alpha)


@operator("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    """alpha * x + beta, bounded to 0 to 1.

    x: any shape, which the result has too.
    """
    return (alpha * x + beta).clamp(0, 1)


@operator("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x where it is larger than alpha, else 0.

    x: any shape, which the result has too.
    """
    return torch.where(x > alpha, x, torch.zeros_like(x))


@operator("Shrink")
def shrink(input: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """0 between -lambd and lambd; beyond them the operand, moved towards 0 by `bias`.

    input: any shape, which the result has too.
    """
    below, above = input < -lambd, input > lambd
    return torch.where(below, input + bias, torch.where(above, input - bias, torch.zeros_like(input)))


@operator("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x * sigmoid(alpha * x).

    x: any shape, which the result has too.
    """
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x)


@operator("Clip")
def clip(input: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    """The operand, bounded. A lower bound above the upper one gives the upper one.

    input: any shape, which the result has too. min, max: numbers, or tensors that are broadcast to it; None for no
    bound.
    """
    if min is not None:
        input = input.clamp(min=min) if not isinstance(min, Tensor) else torch.maximum(input, min)
    if max is not None:
        input = input.clamp(max=max) if not isinstance(max, Tensor) else torch.minimum(input, max)
    return input


@operator("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where the condition holds, else y.

    condition: bool. All three are broadcast to the shape of the result.
    """
    return torch.where(condition, x, y)


@operator("Softmax")
def softmax(input: Tensor, *, axis: int = -1) -> Tensor:
    """The softmax along one axis.

    input: any shape, which the result has too. axis: may be negative. PyTorch raises `IndexError` for one that lies
    outside.
    """
    return input.softmax(axis)


@operator("LogSoftmax")
def log_softmax(input: Tensor, *, axis: int = -1) -> Tensor:
    """The logarithm of the softmax along one axis.

    Shapes and errors: as for `softmax`.
    """
    return input.log_softmax(axis)


@operator("Hardmax")
def hardmax(input: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first of the largest elements along one axis, 0 elsewhere.

    input: any shape, which the result has too. Errors: as for `softmax`.
    """
    largest = input.argmax(axis, keepdim=True)
    return torch.zeros_like(input).scatter(axis, largest, 1)


@operator("Identity")
def identity(input: Tensor) -> Tensor:
    """The operand itself."""
    return input


@operator("Dropout")
def dropout(
    data: Tensor, ratio: Number | None = None, training_mode: Number | None = None, *, seed: int = 0, wanted: int = 1
) -> Any:
    """The operand itself, because the model is not trained; `seed` is not read.

    data: any shape. wanted: with two outputs the second is a mask of the shape of data: bool, all True. Raises
    `UnsupportedError` in training mode, unless `ratio` is 0.
    """
    need(not training_mode or ratio == 0, "dropout in training mode")
    return (data, torch.ones_like(data, dtype=torch.bool)) if wanted > 1 else data
