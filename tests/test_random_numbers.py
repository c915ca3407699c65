"""Models that draw random numbers: `rsn.compile` refuses them, torch.compile draws what PyTorch would draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402
from rsn.tests.effort import spread  # noqa: E402

DRAWS: dict[str, Callable[[Any], Any]] = {
    "rand": lambda x: x * torch.rand(x.shape),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(x.shape[-1]),
    "randn_like": lambda x: x + torch.randn_like(x),
    "randint": lambda x: x + torch.randint(3, x.shape),
    "randperm": lambda x: x[:, torch.randperm(x.shape[1])],
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "multinomial": lambda x: x + torch.multinomial(x[0].abs() + 0.1, 2)[:1, :1],
    "normal": lambda x: x + torch.normal(0.0, 1.0, x.shape),
    "poisson": lambda x: x + torch.poisson(x.abs()),
    "binomial": lambda x: x + torch.binomial(torch.full_like(x, 3), torch.full_like(x, 0.5)),
    "uniform_": lambda x: x + torch.zeros_like(x).uniform_(0, 1),
    "bernoulli_": lambda x: x * x.clone().bernoulli_(0.5),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "dropout1d": lambda x: F.dropout1d(x, 0.5, training=True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.5, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, train=True)[0],
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "masking": lambda x: x.gather(1, torch.rand(x.shape[:2]).argsort(1)[..., None].expand_as(x)),
}
NONE: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "dropout1d": lambda x: F.dropout1d(x, 0.5, training=False),
    "no dropout": lambda x: F.dropout(x, 0.0, training=True),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}


class Drawing(nn.Module):
    """Draws before and behind products, and between them."""

    def __init__(self, *draws: Callable[[Any], Any]) -> None:
        super().__init__()
        self.draws = draws
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(len(draws) + 1))

    def forward(self, x: Any) -> Any:
        for layer, draw in zip(self.layers, self.draws, strict=False):
            x = draw(layer(x))
        return self.layers[-1](x)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.mark.parametrize("draw", DRAWS)
def test_refused_with_operator_and_module(draw: str) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Drawing(DRAWS[draw])

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match=r"^aten\.\S+ at inner: it draws random numbers, which a compiled model"):
        rsn.compile(Outer().eval(), (torch.randn(2, 6, 16),))
    DRAWS[draw](torch.randn(2, 6, 16))
    assert not torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", NONE)
def test_without_draws_nothing_is_refused(name: str) -> None:
    x, model = torch.randn(2, 6, 16), Drawing(NONE[name]).eval()
    before = torch.get_rng_state()
    model(x)
    assert torch.equal(before, torch.get_rng_state())
    text = rsn.explain(torch.compile(model, backend="rsn"), (x,))
    assert "draws random" not in text


@pytest.mark.filterwarnings("ignore::rsn.host.model.torch_backend.Fallback")
@pytest.mark.parametrize("draw", spread(DRAWS, 2, [*DRAWS][::6]))
def test_torch_compile_draws_the_same(draw: str) -> None:
    same(Drawing(DRAWS[draw], DRAWS["rand"], DRAWS[draw]).eval(), torch.randn(2, 6, 16))


def same(model: nn.Module, x: Any) -> None:
    """Check some calls in a row, the first of which compiles, and what is drawn behind them."""
    fast = torch.compile(model, backend="rsn")
    results = []
    for called in (model, fast, fast):
        torch.manual_seed(7)
        results.append([*(called(x + i) for i in range(2)), torch.rand(3)])
    for got in results[1:]:
        torch.testing.assert_close(got, results[0], rtol=1e-4, atol=1e-4)


class Crossing(nn.Module):
    """Draws in an order that is not that of what depends on the machine: some beside it, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        y = y + torch.rand_like(y)
        beside = torch.randn(x.shape) * x
        torch.rand(5)
        values, order = torch.rand(2, 6, 16).sort(-1)
        return self.first(self.second(y) * values + torch.rand(16)), beside, order, torch.randperm(4)


@pytest.mark.filterwarnings("ignore::rsn.host.model.torch_backend.Fallback")
def test_draws_keep_their_order() -> None:
    same(Crossing().eval(), torch.randn(2, 6, 16))


def test_products_between_draws_run_on_the_machine() -> None:
    model, x = Drawing(DRAWS["rand"], DRAWS["randperm"]).eval(), torch.randn(2, 6, 16)
    text = rsn.explain(torch.compile(model, backend="rsn"), (x,))
    assert "on the machine: 100.0 %" in text
    with pytest.warns(Fallback, match="a part of this graph runs in PyTorch: aten.rand.default at .*: it draws random"):
        torch.compile(model, backend="rsn")(x)


def test_a_random_table_is_no_constant() -> None:
    """Operators without arguments are folded into constants, unless they draw."""
    draw = lambda x: x + F.rrelu(torch.ones(16).neg(), training=True)  # noqa: E731 - beside its use
    with pytest.raises(UnsupportedError, match=r"rrelu.* at .*: it draws random numbers"):
        rsn.compile(Drawing(draw).eval(), (torch.randn(2, 6, 16),))
    same(Drawing(draw).eval(), torch.randn(2, 6, 16))
