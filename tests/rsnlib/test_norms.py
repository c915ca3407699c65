"""Norms in a row behind a product: each behind the first is a layer of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import rsn
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import Gemm
from rsn.tests.effort import full, long, sampled, thinned

Call = Callable[..., Any]
K, N, ROWS = 12, 20, 9

KINDS = {
    "layer": lambda n: nn.LayerNorm(n, eps=1e-3),
    "layer without affine": lambda n: nn.LayerNorm(n, elementwise_affine=False),
    "layer without bias": lambda n: nn.LayerNorm(n, bias=False),
    "rms": nn.RMSNorm,
    "rms without affine": lambda n: nn.RMSNorm(n, eps=1e-2, elementwise_affine=False),
}
USES = ["once", "first norm as residual", "last norm as residual", "product as residual", "first norm returned", "last"]


class Norms(nn.Module):
    """Norms in a row, and what else uses their results."""

    def __init__(self, kinds: tuple[str, ...], use: str, k: int = K, n: int = N, activation: nn.Module | None = None):
        super().__init__()
        self.up, self.down, self.use = nn.Linear(k, n), nn.Linear(n, n), use
        self.activation = activation or nn.Identity()
        self.norms = nn.ModuleList(KINDS[kind](n) for kind in kinds)
        for parameter in self.norms.parameters():
            nn.init.normal_(parameter, 1.0, 0.4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        steps = [self.activation(self.up(x))]
        for norm in self.norms:
            steps.append(norm(steps[-1]))
        if self.use == "last":
            return (steps[-1],)
        y = self.down(steps[-1])
        residuals = {"first norm as residual": steps[1], "last norm as residual": steps[-1]}
        residuals["product as residual"] = steps[0]
        y = y + residuals[self.use] if self.use in residuals else y
        return (y, steps[1]) if self.use == "first norm returned" else (y,)


def assert_same(got: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


PAIRS = [(kinds, use) for kinds in product(KINDS, repeat=2) for use in USES]


@pytest.mark.parametrize(
    ("kinds", "use"),
    [pair if i % 5 == 0 else (full if i % 5 % 2 else long)(*pair) for i, pair in enumerate(PAIRS)],
    ids=[f"{' on '.join(kinds)}-{use}" for kinds, use in PAIRS],
)
def test_two_norms(kinds: tuple[str, ...], use: str, call: Call) -> None:
    model, x = Norms(kinds, use).eval(), torch.randn(ROWS, K)
    traced = trace(model, (x,))
    assert [p for p in traced.placements if p.where == "host"] == []
    assert_same(call(traced, x), model(x))


@pytest.mark.parametrize("use", sampled(USES, quick=USES[::4]))
@pytest.mark.parametrize("kinds", list(product(["layer", "rms"], repeat=3)), ids=" on ".join)
def test_three_norms(kinds: tuple[str, ...], use: str, call: Call) -> None:
    model, x = Norms(kinds, use).eval(), torch.randn(ROWS, K)
    traced = trace(model, (x,))
    assert [p for p in traced.placements if p.where == "host"] == []
    assert_same(call(traced, x), model(x))


@pytest.mark.parametrize("kinds", list(product(["layer", "rms"], repeat=2)), ids=" on ".join)
def test_two_norms_behind_an_activation(kinds: tuple[str, ...], call: Call) -> None:
    model, x = Norms(kinds, "first norm as residual", activation=nn.GELU()).eval(), torch.randn(ROWS, K)
    traced = trace(model, (x,))
    assert [p for p in traced.placements if p.where == "host"] == []
    assert_same(call(traced, x), model(x))


@pytest.mark.parametrize(("kind", "products"), [("layer", 3), ("layer without bias", 2), ("rms", 2)])
def test_a_norm_of_a_norm_is_a_product_only_where_there_is_a_shift(kind: str, products: int) -> None:
    network = trace(Norms((kind, "layer"), "once").eval(), (torch.randn(ROWS, K),)).network
    assert [isinstance(layer, Gemm) and layer.multiplies for layer in network.layers].count(True) == products
    assert [layer.path for layer in network.layers] == ["up", "norms.1", "down"]


@pytest.mark.parametrize("use", ["product as residual", "first norm returned"])
@pytest.mark.parametrize(
    "kinds", thinned([("layer", "rms"), ("rms", "layer", "rms"), ("layer", "layer without affine")], 3)
)
@pytest.mark.parametrize("way", ["rsn.compile", "torch.compile"])
def test_norms_in_a_row_on_the_machine(way: str, kinds: tuple[str, ...], use: str) -> None:
    model, x = Norms(kinds, use, 70, 140).eval(), torch.randn(2, 65, 70)
    with torch.no_grad():
        if way == "rsn.compile":
            with rsn.compile(model, (x,)) as compiled:
                assert_same(compiled(x), model(x))
                assert max(row.difference for row in compiled.compare(x)) < 1e-5
        else:
            torch._dynamo.reset()
            assert_same(torch.compile(model, backend="rsn", options={"fallback": "error"})(x), model(x))
