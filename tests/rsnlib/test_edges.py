"""What lies at the edge of what the rules take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import TensorError
from rsn.rsnlib.trace import trace

B, L, C = 2, 20, 64


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.l, self.o = nn.Linear(C, C), nn.Linear(C, C)
        self.p = nn.Parameter(torch.randn(1, 50, C))
        self.square = nn.Parameter(torch.randn(C, C))
        self.column = nn.Parameter(torch.randn(B * L, 1))
        self.wide = nn.Parameter(torch.randn(C, B * L))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def check(function: Callable[..., Any], x: torch.Tensor) -> list[str]:
    """What is compiled computes what PyTorch does; returns the operators that the machine has."""
    module = Model(function).eval()
    with rsn.compile(module, (x,)) as compiled, torch.no_grad():
        got, wanted = compiled(x), module(x)
        pairs = [(got, wanted)] if isinstance(wanted, torch.Tensor) else zip(got, wanted, strict=True)
        for ours, theirs in pairs:
            assert ours.shape == theirs.shape
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()), equal_nan=True)
    return [placement.op for placement in trace(module, (x,)).placements if placement.where == "machine"]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.l(x) + m.p[:, : x.shape[1]],
        lambda m, x: m.l(x[:, :10]),
        lambda m, x: m.l(x[:, :-1]),
        lambda m, x: m.l(x.chunk(2, 1)[0]),
        lambda m, x: m.o(m.l(x) + m.p[:, 3 : 3 + x.shape[1]]),
    ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_some_rows_of_a_tensor_of_the_host(function: Callable[..., Any], batch: int) -> None:
    assert "linear" in check(function, torch.randn(batch, L, C))


def test_a_sequence_of_several() -> None:
    assert check(lambda m, x: m.l(x[0]), torch.randn(3, L, C)) == ["linear"]
    assert check(lambda m, x: m.l(x[:1]), torch.randn(3, L, C)) == ["linear"]


def test_a_bias_for_each_row_is_no_bias() -> None:
    """However many columns there are."""
    check(lambda m, x: m.l(x) + torch.addmm(m.column, x.reshape(-1, C), m.wide).sum(), torch.randn(B, L, C))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.l(x) / 0.0,
        lambda m, x: m.l(x) * 0.0,
        lambda m, x: m.l(x) * float("inf"),
        lambda m, x: torch.sigmoid((m.l(x) * 0.0) * 1.0),
        lambda m, x: (F.relu(m.l(x)) * 0.0, F.relu(m.l(x)) * 3.0),
        lambda m, x: m.l(x) + F.linear(x, m.square[0])[..., None],
    ],
)
def test_numbers_that_no_weight_can_take_up(function: Callable[..., Any]) -> None:
    check(function, torch.randn(B, L, C))


def test_columns_that_are_none() -> None:
    check(lambda m, x: m.o(torch.cat([x[..., :0], m.l(x)], -1)), torch.randn(B, L, C))


def test_columns_of_another_type() -> None:
    def joined(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.o(torch.cat([torch.ones(B, L, C // 2, dtype=torch.int64), m.l(x)[..., : C // 2]], -1))

    assert check(joined, torch.randn(B, L, C)).count("linear") == 2


def test_arguments_that_want_gradients() -> None:
    module, x = Model(lambda m, x: m.l(x)).eval(), torch.randn(B, L, C, requires_grad=True)
    with rsn.compile(module, (x,)) as compiled:
        assert torch.allclose(compiled(x), module(x), atol=1e-5)


class Named(Model):
    def forward(self, x: torch.Tensor, flag: bool = False, **more: torch.Tensor) -> torch.Tensor:
        return self.l(x) + more["first"] - 2 * more["second"]


def test_arguments_in_another_order_and_of_other_kinds() -> None:
    module = Named(lambda: None).eval()
    x, first, second = (torch.randn(B, L, C) for _ in range(3))
    with rsn.compile(module, {"x": x, "first": first, "second": second}) as compiled, torch.no_grad():
        got = compiled(second=second, first=first, x=x)
        assert torch.allclose(got, module(x, first=first, second=second), atol=1e-5)
        with pytest.raises(TensorError, match=r"is a tensor of torch\.sparse_coo; it must be a dense one on the CPU"):
            compiled(x=x.to_sparse(), first=first, second=second)
        with pytest.raises(TensorError, match="is a tensor of meta; it must be a dense one on the CPU"):
            compiled(x=x.to("meta"), first=first, second=second)
