"""Activations that are spelled out: found whatever way they are written, and nothing else taken for one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rsn.base.errors import UnsupportedError
from rsn.rsnlib.pointwise import recognise
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import ActivationFunction, Gemm

from .conftest import ACTIVATIONS


@given(
    st.sampled_from(list(ActivationFunction)),
    st.floats(0.05, 20),
    st.floats(0.05, 20) | st.floats(-20, -0.05),
)
def test_any_scaling_of_an_activation(which: ActivationFunction, factor: float, gain: float) -> None:
    found = recognise(lambda x: gain * np.asarray(ACTIVATIONS[which](factor * x), np.float64))
    assert found is not None
    assert found.activation is which
    scale = 1 if which is ActivationFunction.RELU else factor
    assert found.factor == pytest.approx(scale, rel=1e-4)
    assert found.gain == pytest.approx(gain * factor / scale, rel=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: 0 * x,
        lambda x: np.abs(x),
        lambda x: np.tanh(x),
        lambda x: 1 / (1 + np.exp(-x)),
        lambda x: np.maximum(x, 0) + 1e-4,
        lambda x: np.where(x > 0, x, 0.01 * x),
        lambda x: np.clip(x, 0, 6),
        lambda x: x * np.tanh(np.log1p(np.exp(x))),
        lambda x: np.log1p(np.exp(x)),
        lambda x: np.full_like(x, np.nan),
        lambda x: x**3,
    ],
)
def test_nothing_else_is_taken_for_one(function: Any) -> None:
    assert recognise(function) is None


class Spelled(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(12, 40), nn.Linear(40, 7)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(self.how(self.up(x)))
        return y


WAYS = {
    "gpt2": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "cubed": lambda x: x * 0.5 * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))),
    "erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2))),
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": lambda x: torch.sigmoid(x) * x,
    "twice": lambda x: 2 * (x * torch.sigmoid(x)),
}


@pytest.mark.parametrize("way", WAYS)
def test_spelled_out_in_a_model(way: str, call: Any) -> None:
    torch.manual_seed(0)
    model, x = Spelled(WAYS[way]).eval(), torch.randn(5, 12)
    traced = trace(model, (x,))
    first, _second = (layer for layer in traced.network.layers if isinstance(layer, Gemm))
    assert first.activation is not None
    with torch.no_grad():
        torch.testing.assert_close(call(traced, x), model(x), rtol=1e-5, atol=1e-6)


class Applied(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> Any:
        return self.how(x)


class Mish(nn.Module):
    """Its tail is no activation of the machine, and stays in PyTorch with what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return y * torch.tanh(y) + torch.sigmoid(y)


def test_what_is_none_stays_in_pytorch_as_a_whole(call: Any) -> None:
    model, x = Mish().eval(), torch.randn(5, 12)
    traced = trace(model, (x,))
    assert [p.op for p in traced.placements if p.where == "host"] == ["tanh", "mul", "sigmoid", "add"]
    with torch.no_grad():
        torch.testing.assert_close(call(traced, x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "same",
    [lambda x: F.dropout(x, training=False), lambda x: x.clone(), lambda x: x.to(torch.float32)],
    ids=["dropout", "clone", "to"],
)
def test_what_changes_nothing_stays_in_pytorch_too(same: Any, call: Any) -> None:
    """Operators that change nothing belong to the function that they stand behind."""
    for how in (lambda x: same(x * x), lambda x: same(same(x * x) * x), lambda x: same(x).tanh()):
        model, x = nn.Sequential(nn.Linear(12, 40), Applied(how)).eval(), torch.randn(5, 12)
        with torch.no_grad():
            torch.testing.assert_close(call(trace(model, (x,)), x), model(x), rtol=1e-5, atol=1e-6)


def test_what_is_none_is_refused_before_a_product() -> None:
    with pytest.raises(UnsupportedError, match=r"down: it depends on aten\.tanh\.default .*, which cannot run"):
        trace(Spelled(lambda x: torch.tanh(x)).eval(), (torch.randn(5, 12),))


def test_where_the_product_is_wanted_too(call: Any) -> None:
    class Both(Spelled):
        def forward(self, x: torch.Tensor) -> Any:
            y = self.up(x)
            return y, self.down(WAYS["gpt2"](y))

    model, x = Both(F.relu).eval(), torch.randn(5, 12)
    traced = trace(model, (x,))
    with torch.no_grad():
        for got, wanted in zip(call(traced, x), model(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
