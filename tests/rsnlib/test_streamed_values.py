"""NaN, infinities, zeros of both signs and subnormal numbers in modules as stream programs: every elementwise operator
is spelled in kernels, which give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

from rsn.isa.overlays.tasks.kernels import KERNELS
from rsn.isa.overlays.tasks.operators import BINARY, UNARY
from rsn.rsnlib.streamed import pointwise as p
from rsn.rsnlib.streamed import rules
from rsn.rsnlib.streamed.pointwise import Expression, OperandIndex, PointwiseCall
from rsn.tests.effort import examples
from rsn.tests.special_values import arrays, assert_same

Array = np.ndarray
aten = torch.ops.aten
POWERS = (2.0, 3.0, 0.5, -0.5, -1.0)


def value(x: Expression, operand: Array) -> Any:
    """An expression of one operand, by the kernels and operators of task machines."""
    match x:
        case PointwiseCall("-", (one,)):
            return UNARY["-"](value(one, operand))
        case PointwiseCall(name, arguments) if name in BINARY:
            return BINARY[name](*(value(argument, operand) for argument in arguments))
        case PointwiseCall(name, arguments):
            return KERNELS[name](*(value(argument, operand) for argument in arguments))
        case OperandIndex():
            return operand
    return x


def spellings() -> dict[str, tuple[Expression, Callable[[torch.Tensor], torch.Tensor]]]:
    """Every operator of one operand, as it is spelled, and as PyTorch computes it."""
    x = OperandIndex(0)
    out: dict[str, Any] = {str(op): (make(x), op) for op, make in rules.UNARY.items()}
    for exponent in POWERS:
        out[f"pow {exponent}"] = p.power(x, exponent), lambda t, e=exponent: torch.pow(t, e)
    out["gelu tanh"] = p.gelu_tanh(x), by_element
    return out


def by_element(x: torch.Tensor) -> torch.Tensor:
    """GELU of a vector in PyTorch is NaN of infinity, and that of a number infinity."""
    made = [nn.functional.gelu(one, approximate="tanh") for one in x.flatten()]
    return torch.stack(made).reshape(x.shape)


@pytest.mark.parametrize("turned", [False, True])
def test_a_gelu_that_is_spelled_with_tanh_takes_none(turned: bool) -> None:
    """As models spell it, with the factors in any order."""
    x = np.array([-np.inf, -60, -3.5, -0.25, -0.0, 0.0, 1e-30, 0.5, 4, 60, np.nan], np.float32)
    operand = OperandIndex(0)
    inner = p.call("*", p.SQRT_2_OVER_PI, p.call("+", operand, p.call("*", 0.044715, p.power(operand, 3))))
    half, tanh = p.call("*", operand, 0.5), p.call("tanh", inner)
    more = p.call("+", tanh, 1.0) if turned else p.call("+", 1.0, tanh)
    spelled = p.call("*", more, half) if turned else p.call("*", half, more)
    made = p.mapped(spelled, lambda leaf: leaf)
    assert p.operations(made) == {"*": 4, "+": 2, "/": 1, "exp": 1}
    with np.errstate(all="ignore"):
        assert_same(value(made, x), value(spelled, x), 1e-6 * np.nan_to_num(np.abs(x)))


@pytest.mark.parametrize("name", spellings())
@given(x=arrays((3, 5)))
@examples(200, quick=8)
def test_spelled_operators(name: str, x: Array) -> None:
    expression, function = spellings()[name]
    expected = function(torch.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        got = value(expression, x)
        within = 8 * np.spacing(np.abs(np.nan_to_num(expected))).astype(np.float64)
        if name == "gelu tanh":
            within += 1e-6 * np.nan_to_num(np.abs(x))
    assert_same(got, expected, within)
