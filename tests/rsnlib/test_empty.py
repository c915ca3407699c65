"""Parameters, buffers and intermediate tensors without elements: what PyTorch makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import UnsupportedError
from rsn.tests.effort import thinned

B, L, H, C = 2, 6, 2, 64


class Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.l, self.q, self.k, self.v = (nn.Linear(C, C) for _ in range(4))
        self.tokens, self.prefix = nn.Parameter(torch.empty(1, 0, C)), nn.Parameter(torch.empty(1, H, 0, C // H))
        self.token = nn.Parameter(torch.randn(1, 1, C))
        self.down, self.up = nn.Parameter(torch.empty(0, C)), nn.Parameter(torch.empty(C, 0))
        self.register_buffer("none", torch.empty(0))
        self.register_buffer("doubles", torch.empty(B, 0, C, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (H, -1)).transpose(1, 2)

    def attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def keys(m: Model, x: torch.Tensor) -> torch.Tensor:
    k, v = (torch.cat([m.prefix.expand(B, -1, -1, -1), m.heads(layer(x))], 2) for layer in (m.k, m.v))
    return m.l(m.attended(m.heads(m.q(x)), k, v))


def rank_zero(m: Model, x: torch.Tensor) -> torch.Tensor:
    """An adapter of rank 0."""
    y = m.q(x)
    return m.l(y) + F.linear(F.linear(y, m.down), m.up)


def no_rows(m: Model, x: torch.Tensor) -> Any:
    """Nor does the first product say how many rows there are."""
    return m.q(x[:, :0]), m.l(x)


def attention_of_nothing(m: Model, x: torch.Tensor) -> Any:
    nothing = m.heads(m.q(x)[:, :0])
    return m.l(x), m.attended(nothing, nothing, nothing), torch.bmm(m.q(x)[:, :0], m.k(x).transpose(1, 2))


CASES: dict[str, Callable[..., Any]] = {
    "not used": lambda m, x: m.l(x),
    "tokens of the host": lambda m, x: m.l(torch.cat([m.tokens.expand(B, -1, -1), x], 1)),
    "tokens before a product's": lambda m, x: m.l(torch.cat([m.tokens.expand(B, -1, -1), F.relu(m.q(x))], 1)),
    "tokens among others": lambda m, x: m.l(
        torch.cat([m.token.expand(B, -1, -1), m.tokens.expand(B, -1, -1), m.q(x)], 1)
    ),
    "columns": lambda m, x: m.l(torch.cat([m.q(x), x[..., :0]], -1)),
    "a tensor without dimensions to speak of": lambda m, x: m.l(torch.cat([m.none, m.q(x)], 1)),
    "keys and values": keys,
    "an adapter": rank_zero,
    "a sum over nothing": lambda m, x: m.l(x) + m.tokens.sum(1),
    "views": lambda m, x: (m.l(x)[:, :0].reshape(C, 0), m.l(x), m.tokens.expand(B, -1, -1).reshape(C, -1)),
    "no rows": no_rows,
    "attention": attention_of_nothing,
}


def assert_same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("what", thinned(CASES, 3))
def test_empty(what: str) -> None:
    torch._dynamo.reset()
    model, x = Model(CASES[what]).eval(), torch.randn(B, L, C)
    with torch.no_grad(), rsn.compile(model, (x,)) as compiled:
        assert_same(compiled(x), model(x))
        assert_same(torch.compile(model, backend="rsn", options={"fallback": "error"})(x), model(x))


def behind_an_adapter(m: Model, x: torch.Tensor) -> torch.Tensor:
    return m.v(rank_zero(m, x))


def other_types(m: Model, x: torch.Tensor) -> torch.Tensor:
    return m.v(torch.cat([m.doubles, m.q(x)], 1).float())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (behind_an_adapter, r"it depends on aten\.linear.* its weight is empty, \(0, 64\)"),
        (other_types, r"it depends on aten\.cat.* its operand is empty, \(2, 0, 64\)"),
    ],
)
def test_what_the_machine_would_need_is_refused(function: Callable[..., Any], reason: str) -> None:
    torch._dynamo.reset()
    model, x = Model(function).eval(), torch.randn(B, L, C)
    with pytest.raises(UnsupportedError, match=reason):
        rsn.compile(model, (x,))
    with torch.no_grad(), pytest.warns(rsn.host.model.torch_backend.Fallback, match=reason):
        assert_same(torch.compile(model, backend="rsn")(x), model(x))
