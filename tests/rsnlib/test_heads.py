"""Heads narrower than the machine's lie apart in memory; nobody but a product may see that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import UnsupportedError
from rsn.isa.overlays import XNN
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import AttentionLayer
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import PAPER
from rsn.tests.effort import thinned

COLUMNS = 128


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Model(nn.Module):
    """A function of the module and x, over a few projections."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.q, self.k, self.v, self.q2, self.k2, self.o, self.p = (nn.Linear(COLUMNS, COLUMNS) for _ in range(7))
        self.norm, self.norm2 = nn.LayerNorm(COLUMNS), nn.RMSNorm(COLUMNS, 1e-5)
        with torch.no_grad():
            for norm in (self.norm, self.norm2):
                norm.weight.uniform_(0.5, 2)
            self.norm.bias.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)

    def attended(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return attend(self.q(x), self.k(x), self.v(x), heads)


def two_layouts(first: int, second: int) -> Callable[[Model, torch.Tensor], torch.Tensor]:
    """The same values in other heads."""

    def function(m: Model, x: torch.Tensor) -> torch.Tensor:
        v = m.v(x)
        return m.o(attend(m.q(x), m.k(x), v, first)) + m.p(attend(m.q2(x), m.k2(x), v, second))

    return function


def chained(first: int, second: int) -> Callable[[Model, torch.Tensor], torch.Tensor]:
    """The values of the second attention are the result of the first."""
    return lambda m, x: attend(m.q2(x), m.k2(x), m.attended(x, first), second)


def with_values(values: Callable[[Model, torch.Tensor], torch.Tensor], heads: int = 4) -> Callable[..., torch.Tensor]:
    return lambda m, x: m.o(attend(m.q(x), m.k(x), values(m, x), heads))


def kept(m: Model, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Keys and values are wanted too, as for a cache."""
    k, v = m.k(x), m.v(x)
    return m.o(attend(m.q(x), k, v, 4)), k, v


def normed(m: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Its result is added to a product, normalised, and wanted by itself."""
    y = m.attended(x, 4)
    return m.norm(m.o(x) + y), y


CASES: dict[str, Callable[[Model, torch.Tensor], Any]] = {
    "the output, of 32 columns": lambda m, x: m.attended(x, 4),
    "the output, of 64 columns": lambda m, x: m.attended(x, 2),
    "added to a product": lambda m, x: m.attended(x, 4) + m.o(x),
    "normalised, and an output": normed,
    **{f"values of {a} and {b} heads": two_layouts(a, b) for a, b in [(4, 8), (8, 4), (2, 4), (4, 2), (4, 4)]},
    **{f"the result of {a} heads as values of {b}": chained(a, b) for a, b in [(4, 8), (2, 4), (4, 2), (2, 2)]},
    "values with a residual": with_values(lambda m, x: m.v(x) + x),
    "values with a norm": with_values(lambda m, x: m.norm(m.v(x))),
    "values with a norm behind an activation": with_values(lambda m, x: m.norm(F.relu(m.v(x)))),
    "values with an RMSNorm behind an activation": with_values(lambda m, x: m.norm2(F.relu(m.v(x)))),
    "values that are scaled behind an activation": with_values(lambda m, x: F.relu(m.v(x)) * 2),
    "queries with a norm": lambda m, x: m.o(attend(m.norm(m.q(x)), m.k(x), m.v(x), 4)),
    "keys and values are outputs": kept,
}


@pytest.mark.parametrize("what", thinned(CASES, 3))
def test_whoever_takes_them_gets_what_pytorch_gives(what: str) -> None:
    module, x = Model(CASES[what]).eval(), torch.randn(2, 20, COLUMNS)
    with rsn.compile(module, (x,)) as compiled, torch.no_grad():
        got, wanted = compiled(x), module(x)
    pairs = [(got, wanted)] if isinstance(wanted, torch.Tensor) else zip(got, wanted, strict=True)
    for ours, theirs in pairs:
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


class OneHead(nn.Module):
    """Of 64 columns, whose values are normalised behind an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))
        self.norm = nn.LayerNorm(64)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 2)
            self.norm.bias.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return attend(self.q(x), self.k(x), self.norm(F.relu(self.v(x))), 1)


def test_scale_and_shift_of_a_norm_reach_an_attention() -> None:
    module, x = OneHead().eval(), torch.randn(2, 20, 64)
    with rsn.compile(module, (x,)) as compiled, torch.no_grad():
        assert torch.allclose(compiled(x), module(x), atol=1e-5)


def test_a_network_that_wants_both_layouts_is_refused() -> None:
    """The scheduler itself puts nothing between them."""
    network = trace(Model(lambda m, x: m.attended(x, 4)).eval(), (torch.randn(1, 20, COLUMNS),)).network
    (attention,) = (layer for layer in network.layers if isinstance(layer, AttentionLayer))
    other = replace(attention, y="other", heads=8, head_dim=16)
    with pytest.raises(UnsupportedError, match=r"in 8 heads of 16 columns; another attention .* it in 4 heads of 32"):
        lower(replace(network, layers=(*network.layers, other)), XNN, PAPER)
