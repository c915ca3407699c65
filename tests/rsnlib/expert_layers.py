"""Layers of experts in the spellings of PyTorch programs, small, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Loop(nn.Module):
    """A loop over all experts, each with linear layers of its own. hot: rows are found with one_hot, else with ==."""

    def __init__(self, experts: int = 4, each: int = 2, width: int = 64, inner: int = 96, hot: bool = False) -> None:
        super().__init__()
        self.each, self.hot = each, hot
        self.router = nn.Linear(width, experts)
        self.gate, self.up = (
            nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(experts)) for _ in range(2)
        )
        self.down = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, index = self.router(x).softmax(-1).topk(self.each)
        out = torch.zeros_like(x)
        masks = functional.one_hot(index, len(self.down)).permute(2, 1, 0)
        for e, down in enumerate(self.down):
            if self.hot:
                place, token = torch.where(masks[e])
            else:
                token, place = torch.where(index == e)
            y = down(functional.gelu(self.gate[e](x[token])) * self.up[e](x[token]))
            out.index_add_(0, token, y * shares[token, place, None])
        return out


class Given(nn.Module):
    """A layer whose selectors and shares are arguments."""

    def __init__(self, experts: int = 4, width: int = 64, inner: int = 96) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.wide = nn.Parameter(torch.randn(experts, width, 2 * inner) / width**0.5)
        self.back = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x: torch.Tensor, index: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        rows = self.first(x).repeat_interleave(index.shape[1], 0)
        chosen = index.reshape(-1)
        gate, up = torch.bmm(rows.unsqueeze(1), self.wide[chosen]).squeeze(1).chunk(2, -1)
        y = torch.bmm((functional.silu(gate) * up).unsqueeze(1), self.back[chosen]).squeeze(1)
        return (y * shares.reshape(-1, 1)).view(*index.shape, -1).sum(1)


class Changed(Given):
    """Given with a change that makes it no layer of experts."""

    CHANGES = ("nothing", "gate", "token", "weights", "sum", "shifted", "halves")

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor, index: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        change = self.change
        each = index.shape[1]
        rows = x.repeat(each, 1) if change == "token" else x.repeat_interleave(each, 0)
        chosen = index.reshape(-1)
        other = chosen.flip(0) if change == "weights" else chosen
        z = torch.bmm(rows.unsqueeze(1), self.wide[chosen]).squeeze(1)
        gate, up = z.chunk(2, -1)
        if change == "halves":
            up = z[:, 1 : 1 + gate.shape[1]] + 0 * up
        gated = torch.tanh(gate) if change == "gate" else functional.silu(gate)
        y = torch.bmm((gated * up).unsqueeze(1), self.back[other]).squeeze(1)
        if change == "shifted":
            y = y + 1
        y = (y * shares.reshape(-1, 1)).view(*index.shape, -1)
        return y.mean(1) if change == "sum" else y.sum(1)


def block(
    family: str, spelling: str | None, *, experts: int = 4, each: int = 2, width: int = 64, inner: int = 96
) -> Any:
    """A layer of transformers with its router. spelling: of its experts, as the library calls it."""
    if family == "mixtral":
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock as Block

        config: Any = MixtralConfig(
            hidden_size=width, intermediate_size=inner, num_local_experts=experts, num_experts_per_tok=each
        )
    else:
        from transformers import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock as Block

        config = Qwen3MoeConfig(
            hidden_size=width, moe_intermediate_size=inner, num_experts=experts, num_experts_per_tok=each
        )
    config._experts_implementation = spelling
    layer = Block(config).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=width**-0.5)
    return layer


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to 1e-5 of the largest value."""
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
