"""Rotary positions in the spellings of models, and what is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
import transformers
from torch import nn

import rsn
from rsn.base.errors import UnsupportedError
from rsn.rsnlib.passes import USUAL
from rsn.rsnlib.rotary import recognise
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import AttentionLayer, Gemm

B, L, H, D = 2, 7, 3, 8
C = H * D
Turn = Callable[[torch.Tensor], torch.Tensor]

ANGLES = torch.arange(L)[:, None] * 10.0 ** -torch.arange(0, 1, 2 / D)
BOTH = torch.cat([ANGLES, ANGLES], -1)
PAIRS = ANGLES.repeat_interleave(2, -1)


def halves(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, -1)
    return x * BOTH.cos() + torch.cat([-other, one], -1) * BOTH.sin()


def interleaved(x: torch.Tensor) -> torch.Tensor:
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * PAIRS.cos() + turned * PAIRS.sin()


def as_complex(x: torch.Tensor) -> torch.Tensor:
    turns = torch.polar(torch.ones_like(ANGLES), ANGLES)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def partial(x: torch.Tensor) -> torch.Tensor:
    angles = BOTH[:, : D // 4].repeat(1, 2)
    turned, rest = x.split([D // 2, D // 2], -1)
    one, other = turned.chunk(2, -1)
    return torch.cat([turned * angles.cos() + torch.cat([-other, one], -1) * angles.sin(), rest], -1)


def by_matrix(x: torch.Tensor) -> torch.Tensor:
    matrix = torch.zeros(D, D)
    for c in range(D // 2):
        matrix[c + D // 2, c], matrix[c, c + D // 2] = -1, 1
    return x * BOTH.cos() + torch.einsum("bhsd,de->bhse", x, matrix) * BOTH.sin()


def in_parts(x: torch.Tensor) -> torch.Tensor:
    """Without a join of negated halves: both halves by themselves."""
    one, other = x[..., : D // 2], x[..., D // 2 :]
    cos, sin = ANGLES.cos(), ANGLES.sin()
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)


class Rotated(nn.Module):
    def __init__(self, turn: Turn) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.turn = turn
        self.q, self.k, self.v, self.o = (nn.Linear(C, C) for _ in range(4))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(B, L, H, D).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.turn(self.heads(self.q(x))), self.turn(self.heads(self.k(x))), self.heads(self.v(x))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


SPELLINGS: dict[str, tuple[Turn, int]] = {  # how far apart partners are
    "halves": (halves, D // 2),
    "interleaved": (interleaved, 1),
    "complex numbers": (as_complex, 1),
    "partial": (partial, D // 4),
    "a matrix": (by_matrix, D // 2),
    "in parts": (in_parts, D // 2),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, call: Any) -> None:
    turn, distance = SPELLINGS[name]
    model, x = Rotated(turn).eval(), torch.randn(B, L, C)
    traced = trace(model, (x,))
    attention = next(layer for layer in traced.network.layers if isinstance(layer, AttentionLayer))
    layers = {layer.y: layer for layer in traced.network.layers}
    for operand in (attention.q, attention.k):
        layer = layers[operand]
        assert isinstance(layer, Gemm)
        assert layer.rotary is not None
    assert {p.op for p in traced.placements if p.where == "host"} <= {"mul", "cat", "rsub"}  # tables
    found = recognise(turn, (B, H, L, D))
    assert found is not None
    assert {abs(p - c) for c, p in enumerate(found.partners)} == {distance} | ({0} if name == "partial" else set())
    with torch.no_grad():
        torch.testing.assert_close(call(traced, x), model(x), rtol=1e-4, atol=1e-6)


def test_tables_are_exact() -> None:
    found = recognise(halves, (B, H, L, D))
    assert found is not None
    assert torch.equal(found.own[0, 0], BOTH.cos())
    assert torch.equal(found.partner[0, 0].abs(), BOTH.sin().abs())


NONE: dict[str, Turn] = {
    "a factor": lambda x: 3.0 * x,
    "three columns": lambda x: x + x.roll(1, -1) + x.roll(2, -1),
    "the row before": lambda x: x + x.roll(1, 2),
    "the head before": lambda x: x * BOTH.cos() + x.roll(1, 1),
    "a cycle of partners": lambda x: x * BOTH.cos() + x.roll(1, -1) * BOTH.sin(),
    "tables of each head": lambda x: x * torch.arange(1.0, 4)[:, None, None] * BOTH.cos(),
    "a square": lambda x: x * x,
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_rotation(name: str) -> None:
    assert recognise(NONE[name], (B, H, L, D)) is None


class Positioned(Rotated):
    def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        assert positions is not None
        angles = positions[:, None, :, None].float() * BOTH[1]
        q, k = (y * angles.cos() + y.flip(-1) * angles.sin() for y in (self.heads(self.q(x)), self.heads(self.k(x))))
        return self.o(F.scaled_dot_product_attention(q, k, self.heads(self.v(x))).transpose(1, 2).flatten(2))


def test_positions_from_the_arguments(tmp_path: Path) -> None:
    """The host makes a table for each call, and for each sequence its own."""
    model, x = Positioned(halves).eval(), torch.randn(B, L, C)
    positions = torch.stack([torch.arange(L) + 3 * b for b in range(B)])
    with rsn.compile(model, (x, positions)) as compiled:
        for given in (positions, positions.flip(0) + 5):
            wanted = model(x, given)
            assert (compiled(x, given) - wanted).abs().max() < 1e-5 * wanted.abs().max()
            assert not torch.allclose(wanted, model(x, torch.zeros_like(given)), atol=1e-3)
        compiled.save(tmp_path / "positioned.rsnmodel")
    with rsn.load(tmp_path / "positioned.rsnmodel") as loaded:
        assert (loaded(x, positions) - model(x, positions)).abs().max() < 1e-5


def test_positions_from_arguments_need_a_machine_that_takes_tables_from_the_host() -> None:
    inputs = torch.randn(B, L, C), torch.arange(L).expand(B, L).contiguous()
    with pytest.raises(UnsupportedError, match="at the top level"):
        trace(Positioned(halves).eval(), inputs, replace(USUAL, keeps_caches=False))


def test_scores_keep_their_scale() -> None:
    """It goes into the keys, in front of the rotation."""
    model, x = Rotated(halves).eval(), torch.randn(B, L, C)
    network = trace(
        model,
        (x,),
    ).network
    q, k = (next(layer for layer in network.layers if layer.y == y) for y in ("q", "k"))
    assert isinstance(q, Gemm)
    assert isinstance(k, Gemm)
    assert q.rotary is not None
    assert k.rotary is not None
    assert (k.rotary.own == q.rotary.own).all()
    largest = float(model.k.weight.abs().max()) / math.sqrt(D)
    assert abs(abs(k.weight).max() - largest) < 1e-6


class Grouped(nn.Module):
    """Three query heads and one key head, with a norm of each head in front of its rotation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = nn.Linear(C, C), nn.Linear(C, D), nn.Linear(C, D)
        self.norm, self.norm2 = nn.RMSNorm(D), nn.RMSNorm(D)
        with torch.no_grad():
            for norm in (self.norm, self.norm2):
                norm.weight.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (-1, D)).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        angles = torch.arange(x.shape[1])[:, None] * 10.0 ** -torch.arange(0, 1, 2 / D)
        cos, sin = (torch.cat([y, y], -1) for y in (angles.cos(), angles.sin()))
        q, k = (
            y * cos + torch.cat([-y[..., D // 2 :], y[..., : D // 2]], -1) * sin for y in (self.norm(q), self.norm2(k))
        )
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("rows", [1, L])
def test_a_norm_of_the_only_key_head_and_a_single_row(rows: int, call: Any) -> None:
    """The norm of the only head is no norm of a whole activation, and positions of one row, the first, turn nothing."""
    model, x = Grouped().eval(), torch.randn(B, rows, C)
    traced = trace(model, (x,))
    with torch.no_grad():
        torch.testing.assert_close(call(traced, x), model(x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_factors_of_the_host_are_multiplied_by_the_norms_of_each_layer(kv_heads: int) -> None:
    """All layers rotate by the same positions, an argument, but queries and keys of each have norms of their own."""
    torch.manual_seed(0)
    model = transformers.Qwen3Model(
        transformers.Qwen3Config(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            head_dim=16,
            vocab_size=99,
            use_cache=False,
        )
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2)
        inputs = {"input_ids": torch.randint(5, 90, (2, 12)), "position_ids": torch.arange(3, 15)[None]}
        compiled = rsn.compile(model, inputs)
        for start in (3, 0, 40):
            inputs["position_ids"] = torch.arange(start, start + 12)[None]
            expected, out = model(**inputs)[0], compiled(**inputs)[0]
            assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()
