"""Heads narrower than the machine's lie apart in memory; nobody but a product may see that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import rsn
from rsn.isa.errors import UnsupportedError

COLUMNS = 96


class Attending(nn.Module):
    """Self-attention without output projection."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(COLUMNS, COLUMNS) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Added(Attending):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.q(x)


class Normed(Added):
    """Its result is added to a product, normalised, and wanted by itself."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = Attending.forward(self, x)
        return nn.functional.layer_norm(self.q(x) + y, (COLUMNS,)), y


class Twice(Attending):
    """The values of the second attention are the first one's result, in other heads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        q, k, v = (z.unflatten(-1, (4, -1)).transpose(1, 2) for z in (self.q(y), self.k(y), y))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "module", [Attending(3), Attending(2), Added(3), Normed(3), Twice(3)], ids=lambda m: type(m).__name__
)
def test_their_columns_are_side_by_side_for_everybody_else(module: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 20, COLUMNS)
    with rsn.compile(module.eval(), (x,)) as compiled, torch.no_grad():
        got, wanted = compiled(x), module(x)
    pairs = [(got, wanted)] if isinstance(wanted, torch.Tensor) else zip(got, wanted, strict=True)
    for ours, theirs in pairs:
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


class Residual(Attending):
    """Queries with a residual."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (z.unflatten(-1, (3, -1)).transpose(1, 2) for z in (self.q(x) + x, self.k(x), self.v(x)))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_a_residual_in_front_of_them_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="q: a residual among heads that are stored wider than they are"):
        rsn.compile(Residual(3).eval(), (torch.randn(2, 20, COLUMNS),))
