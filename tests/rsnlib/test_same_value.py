"""Operators whose two operands are one value of the machine, and values that are read in an unusual order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import ScheduleError
from rsn.isa.overlays import find
from rsn.scheduler.graph import Output
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import PAPER
from rsn.tests.effort import thinned
from rsn.tests.scheduler.networks import Maker

OVERLAYS = ["xnn-base", "xnn", "xnn2"]


class Block(nn.Module):
    """Products a to d, a norm, an attention; `body` says how they are connected."""

    def __init__(self, body: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(8))
        self.norm = nn.LayerNorm(64)
        self.body = body
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 2)
            self.norm.bias.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """An attention of one head, without its projection."""
        q, k, v = (product(x)[:, None] for product in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v)[:, 0]


def agrees(body: Callable[[Any, torch.Tensor], Any], overlay: str) -> None:
    """Compile a block, and compare it with PyTorch in two calls with other inputs."""
    torch.manual_seed(0)
    block = Block(body).eval()
    with torch.no_grad():
        compiled = rsn.compile(block, (torch.randn(1, 20, 64),), overlay=overlay)
        for _ in range(2):
            x = torch.randn(1, 20, 64)
            expected, out = block(x), compiled(x)
            assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()


VALUES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "product": lambda s, x: s.a(x),
    "activation": lambda s, x: s.a(x).relu(),
    "norm": lambda s, x: s.norm(s.a(x)),
    "residual": lambda s, x: s.a(x) + x,
    "sum": lambda s, x: s.a(x).relu() + s.b(x).relu(),
    "gate": lambda s, x: F.silu(s.a(x)) * s.b(x),
    "attention": lambda s, x: s.attention(x),
}
TWICE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "y + y": lambda y: y + y,
    "alpha": lambda y: torch.add(y, y, alpha=3),
    "by another view": lambda y: y.reshape(20, 64).reshape(1, 20, 64) + y,
    "three times": lambda y: y + y + y,
    "its half": lambda y: y + y / 2,
    "in place": lambda y: y.clone().add_(y),
}


@pytest.mark.parametrize("twice", thinned(TWICE, 2))
def test_a_value_that_is_added_to_itself_counts_each_time(twice: str) -> None:
    def each(s: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([s.d(TWICE[twice](value(s, x))) for value in VALUES.values()], -1)

    for overlay in OVERLAYS[1:]:
        agrees(each, overlay)
    if twice == "y + y":
        agrees(lambda s, x: TWICE[twice](s.a(x)) + s.b(x), "xnn-base")


AROUND: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "parallel, attention first": lambda s, x: s.o(s.attention(x)) + s.d(x),
    "parallel, attention last": lambda s, x: s.d(x) + s.o(s.attention(x)),
    "of one norm": lambda s, x: (lambda y: x + s.o(s.attention(y)) + s.d(F.gelu(s.a(y))))(s.norm(x)),
    "of two norms": lambda s, x: x + s.d(F.gelu(s.a(s.norm(x)))) + s.o(s.attention(s.norm(x))),
    "two attentions": lambda s, x: s.o(s.attention(x)) + s.d(s.attention(s.a(x))),
    "residual of a sum behind it": lambda s, x: (lambda y: s.o(s.attention(x)) + (y + s.c(y)))(s.a(x)),
    "no projection": lambda s, x: s.attention(x),
    "an activation of the projection": lambda s, x: s.o(s.attention(x)).relu(),
    "two projections": lambda s, x: s.o(s.attention(x)) * 2 + s.d(s.attention(x)),
    "two readers": lambda s, x: (lambda y: s.o(y) + s.d(y))(s.attention(x)),
    "its own residual": lambda s, x: (lambda y: s.o(y) + y)(s.attention(x)),
    "two products in a row": lambda s, x: s.d(s.o(s.attention(x))) + x,
    "gate": lambda s, x: (lambda y: F.silu(s.o(y)) * s.d(y))(s.attention(x)),
}


@pytest.mark.parametrize("around", thinned(AROUND, 2))
@pytest.mark.parametrize("overlay", OVERLAYS[1:])
def test_what_stands_around_an_attention(around: str, overlay: str) -> None:
    agrees(AROUND[around], overlay)


def test_a_norm_of_heads_is_no_norm_of_rows() -> None:
    """Overlay xnn2 normalises rows as it sends them, and heads beside an attention only."""

    def body(s: Any, x: torch.Tensor) -> torch.Tensor:
        y = (s.a(x) + s.b(x)).unflatten(-1, (4, 16))
        out: torch.Tensor = s.d(F.rms_norm(y, (16,)).flatten(-2))
        return out

    for overlay in ("xnn", "xnn2"):
        agrees(body, overlay)


@pytest.mark.parametrize("overlay", OVERLAYS[1:])
def test_layers_in_another_order_are_refused(overlay: str) -> None:
    """A program of them would read what an earlier call left."""
    machine = find(overlay)
    network = Maker().encoder(1, 20, 64, 2, 128, layers=1)
    lower(network, machine, PAPER)
    for first in range(len(network.layers) - 1):
        layers = [*network.layers[1:][first:], network.layers[0], *network.layers[1:][:first]]
        with pytest.raises(ScheduleError, match="is not computed before"):
            lower(replace(network, layers=tuple(layers)), machine, PAPER)
    with pytest.raises(ScheduleError, match="output lost: no layer computes it"):
        lower(replace(network, outputs=(Output("lost"),)), machine, PAPER)
