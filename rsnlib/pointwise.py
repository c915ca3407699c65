"""Recognise activations that a model spells out in elementwise operators, such as GPT-2's GELU and CLIP's quick GELU.

The chain of operators behind a product is kept as a function of one number. It is an activation of the machine if it
agrees with one, with scaled argument and result, at all sample points. How the model wrote it does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, expit, logit, ndtri
from torch.fx import Node

from ..scheduler.graph import ActivationFunction, Float64, Gemm
from .layers import LayerBuilder
from .view import View

Function = Callable[[Float64], Float64]


@dataclass(frozen=True)
class PointwiseFunction:
    """A function of each element of a product, before it is known which activation it is. base: the product, which can
    still take an activation (`Gemm.is_open`). view: the function is of the elements that this view of its result shows.
    function: computes on arrays of float64 of any shape. nodes: the operators that the function stands for. square:
    makes a layer that computes the function, if it is x * x; None for any other function."""

    base: Gemm
    view: View
    function: Function
    nodes: tuple[Node, ...]
    square: Callable[[], Gemm] | None = None


@dataclass(frozen=True)
class RecognisedActivation:
    """A recognised activation: gain * activation(factor * x), element by element. factor and gain are 1 where they
    differ from it by rounding only."""

    activation: ActivationFunction
    factor: float
    gain: float


def _gelu_tanh(x: Float64) -> Float64:
    y: Float64 = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def _gelu_tanh_argument(share: Float64) -> Float64:
    """The x at which _gelu_tanh(x) / x equals `share`, shape (1,)."""
    (p,) = share
    return np.array([brentq(lambda x: _gelu_tanh(x) / x - p, 1e-9, 9) if 0.5 < p < 1 - 1e-9 else np.nan])


def _gelu_erf(x: Float64) -> Float64:
    y: Float64 = 0.5 * x * (1 + erf(x / np.sqrt(2)))
    return y


def _silu(x: Float64) -> Float64:
    y: Float64 = x * expit(x)
    return y


# Each with the argument b at which activation(b) / b is a given number between 0 and 1.
_SMOOTH: dict[ActivationFunction, tuple[Function, Function]] = {
    ActivationFunction.SILU: (_silu, logit),
    ActivationFunction.GELU_ERF: (_gelu_erf, ndtri),
    ActivationFunction.GELU_TANH: (_gelu_tanh, _gelu_tanh_argument),
}

_SMALL = np.logspace(-5, 0, 26)
LOOKED_AT = np.concatenate([np.linspace(-9, 9, 181), _SMALL, -_SMALL, [-40.0, 40.0]])
"""The sample points at which functions are compared."""
CLOSE = 2e-6
"""Largest difference between a function and an activation, relative to the activation's value at 9 or its own."""


def recognise(function: Function) -> RecognisedActivation | None:
    """Return the activation of the machine that a function equals at all sample points (`LOOKED_AT`), or None.
    function: takes and returns float64, (n,)."""
    with np.errstate(all="ignore"):
        slope = float(function(np.array([1e4]))[0]) / 1e4
        if not np.isfinite(slope) or slope == 0:
            return None
        if _agree(function, _relu, 1.0, slope):
            return RecognisedActivation(ActivationFunction.RELU, 1.0, _plain(slope))
        for activation, (known, inverse) in _SMOOTH.items():
            for factor in (1.0, *_guesses(function, inverse, slope)):
                if _agree(function, known, factor, slope / factor):
                    return RecognisedActivation(activation, _plain(factor), _plain(slope / factor))
    return None


def _guesses(function: Function, inverse: Function, slope: float) -> Iterator[float]:
    """Candidates for the factor of the argument, from the function's values at a few points."""
    for at in (1.0, 0.1, 10.0):
        guess = float(inverse(function(np.array([at])) / (slope * at))[0]) / at
        if np.isfinite(guess) and 1e-3 < guess < 1e3:
            yield guess


def _agree(function: Function, known: Function, factor: float, gain: float) -> bool:
    expected = gain * known(LOOKED_AT)
    close = CLOSE * np.maximum(9 * abs(gain), np.abs(expected))
    return bool((np.abs(function(LOOKED_AT / factor) - expected) <= close).all())


def _relu(x: Float64) -> Float64:
    y: Float64 = np.maximum(x, 0)
    return y


def _plain(x: float) -> float:
    """Round a number that is 1 but for rounding errors to 1."""
    return 1.0 if abs(x - 1) < 1e-6 else x


def root_of(layers: LayerBuilder, base: Gemm) -> tuple[Gemm, float]:
    """Follow a product back through the steps that only scaled it. layers: made `base`. Returns the first product, and
    by how much `base` is larger (ratio of their factors)."""
    ratio, before = 1.0, layers.before(base)
    while before is not None and _only_scaled(base, before):
        ratio *= base.factor / before.factor
        base, before = before, layers.before(before)
    return base, ratio


def _only_scaled(after: Gemm, before: Gemm) -> bool:
    same = after.weight is before.weight and after.bias is before.bias
    return same and after.is_open and before.is_open and (after.x, after.residual) == (before.x, before.residual)
