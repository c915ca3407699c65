"""Attention that reads one activation in several places, and several attentions that read each other's: as in PyTorch,
or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rsn
from rsn.base.errors import UnsupportedError
from rsn.tests.effort import full, long, sampled

BATCH, SEQ, HEADS, DIM = 2, 20, 2, 32
C = HEADS * DIM
F = nn.functional


class Of(nn.Module):
    """A function of two inputs."""

    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d, self.out = (nn.Linear(C, C) for _ in range(5))
        self.wide, self.norm, self.made = nn.Linear(C, 2 * C), nn.LayerNorm(C), made
        self.register_buffer("causal", torch.zeros(SEQ, SEQ).masked_fill(torch.ones(SEQ, SEQ).triu(1) > 0, -torch.inf))
        self.register_buffer("bias", torch.randn(SEQ, SEQ))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.made(self, x, y)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(BATCH, SEQ, HEADS, DIM).transpose(1, 2)


def merged(y: torch.Tensor) -> torch.Tensor:
    return y.transpose(1, 2).reshape(BATCH, SEQ, C)


def fused(m: Of, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return m.out(merged(F.scaled_dot_product_attention(heads(q), heads(k), heads(v))))


def spelled(m: Of, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: Any = lambda s: s) -> torch.Tensor:
    scores = heads(q) @ heads(k).transpose(-1, -2) * DIM**-0.5
    return m.out(merged(how(scores).softmax(-1) @ heads(v)))


def batches(m: Of, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (heads(x).reshape(BATCH * HEADS, SEQ, DIM) for x in (q, k, v))
    weights = (torch.bmm(q, k.transpose(1, 2)) * DIM**-0.5).softmax(-1)
    return m.out(merged(torch.bmm(weights, v).view(BATCH, HEADS, SEQ, DIM)))


def einsum(m: Of, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.view(BATCH, SEQ, HEADS, DIM) for x in (q, k, v))
    weights = (torch.einsum("bihd,bjhd->bhij", q, k) * DIM**-0.5).softmax(-1)
    return m.out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(BATCH, SEQ, C))


ATTENTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "fused": fused,
    "spelled": spelled,
    "batches": batches,
    "einsum": einsum,
}
OPERANDS: dict[str, Callable[..., Any]] = {  # of an attention, a module and two inputs
    "all": lambda at, m, x, y: (lambda z: at(m, z, z, z))(m.a(x)),
    "queries and keys": lambda at, m, x, y: (lambda z: at(m, z, z, m.b(x)))(m.a(x)),
    "keys and values": lambda at, m, x, y: (lambda z: at(m, m.b(x), z, z))(m.a(x)),
    "queries and values": lambda at, m, x, y: (lambda z: at(m, z, m.b(x), z))(m.a(x)),
    "queries of the keys": lambda at, m, x, y: (lambda z: at(m, m.b(z), z, m.c(x)))(m.a(x)),
    "keys of the queries": lambda at, m, x, y: (lambda z: at(m, z, m.b(z), m.c(z)))(m.a(x)),
    "values of the keys": lambda at, m, x, y: (lambda z: at(m, m.b(x), z, m.c(z)))(m.a(x)),
    "one module, three calls": lambda at, m, x, y: at(m, m.a(x), m.a(x), m.a(x)),
    "one module, two inputs": lambda at, m, x, y: at(m, m.a(x), m.a(y), m.a(y)),
    "all, and a residual": lambda at, m, x, y: (lambda z: at(m, z, z, z) + z)(m.a(x)),
    "of a residual": lambda at, m, x, y: (lambda z: at(m, z, z, z))(m.a(x) + x),
    "of a norm": lambda at, m, x, y: (lambda z: at(m, z, z, z))(m.norm(m.a(x) + x)),
    "of an activation": lambda at, m, x, y: (lambda z: at(m, m.b(x), z, z))(m.a(x).relu()),
    "scaled queries": lambda at, m, x, y: (lambda z: at(m, z * 0.5, z, z))(m.a(x)),
    "scaled keys": lambda at, m, x, y: (lambda z: at(m, z, z * 0.5, z))(m.a(x)),
    "keys among the results": lambda at, m, x, y: (lambda z: (at(m, m.b(x), z, z), z))(m.a(x)),
    "parts of one product": lambda at, m, x, y: (lambda z: at(m, z[..., :C], z[..., C // 2 : -C // 2], z[..., C:]))(
        m.wide(x)
    ),
    "two attentions, the same keys": lambda at, m, x, y: (lambda z: at(m, m.b(x), z, z) + at(m, m.c(x), z, z))(m.a(x)),
    "two attentions, swapped": lambda at, m, x, y: (lambda z, w: at(m, z, w, z) + at(m, w, z, w))(m.a(x), m.b(x)),
    "two attentions, nothing the same": lambda at, m, x, y: (
        at(m, m.a(x), m.b(x), m.c(x)) + at(m, m.d(x), *m.wide(x).chunk(2, -1))
    ),
    "two attentions and a residual": lambda at, m, x, y: x + at(m, m.a(x), m.b(x), m.c(x)) + at(m, *[m.d(x)] * 3),
    "one behind the other": lambda at, m, x, y: (lambda z: at(m, z, z, z))(at(m, m.a(x), m.b(x), m.c(x))),
    "what is no projection": lambda at, m, x, y: at(m, m.a(x), x, x),
}
SCORES: dict[str, Callable[..., torch.Tensor]] = {  # of a module and scores
    "twice": lambda m, s: s + s,
    "twice, and a bias": lambda m, s: s + s + m.bias,
    "twice with a bias": lambda m, s: (lambda t: t + t)(s + m.bias),
    "three times": lambda m, s: s + s + s,
    "one and a half": lambda m, s: s + s / 2,
    "nothing": lambda m, s: s - s,
    "squares": lambda m, s: s * s,
    "a mask twice": lambda m, s: m.causal + s + m.causal,
    "a bias twice": lambda m, s: s + m.bias + m.bias,
    "a bias with alpha": lambda m, s: torch.add(s, m.bias, alpha=3),
    "with alpha": lambda m, s: torch.add(s, s, alpha=3),
    "a soft cap twice": lambda m, s: (lambda t: t + t)(3 * torch.tanh(s / 3)),
    "and a soft cap": lambda m, s: s + 3 * torch.tanh(s / 3),
    "times a bias": lambda m, s: s * m.bias,
    "transposed": lambda m, s: s + s.transpose(-1, -2),
    "a softmax": lambda m, s: s.softmax(-1),
    "other rows": lambda m, s: s.flip(-1),
}
CASES = [(name, kind) for name in OPERANDS for kind in ATTENTIONS] + [(name, "scores") for name in SCORES]
QUICK = [case for i, case in enumerate(CASES) if i % 20 == 0 or ("two attentions, " in case[0] and case[1] == "fused")]
RUNS = {"all", "queries and keys", "keys and values", "two attentions, swapped", "two attentions, nothing the same"}
"""What both overlays must not refuse."""


def made(name: str, kind: str) -> Of:
    if kind == "scores":
        how = SCORES[name]
        return Of(lambda m, x, y: spelled(m, m.a(x), m.b(x), m.c(x), lambda s: how(m, s))).eval()
    return Of(lambda m, x, y: OPERANDS[name](ATTENTIONS[kind], m, x, y)).eval()


@pytest.mark.parametrize("case", sampled([*CASES], QUICK, lambda case: (full if CASES.index(case) % 6 else long)(case)))
@pytest.mark.parametrize("overlay", ["xnn", "xnn2"])
def test_as_in_pytorch(overlay: str, case: tuple[str, str]) -> None:
    model, given = made(*case), (torch.randn(BATCH, SEQ, C), torch.randn(BATCH, SEQ, C))
    try:
        compiled = rsn.compile(model, given, overlay=overlay)
    except UnsupportedError:
        assert case[0] not in RUNS
        return
    with compiled, torch.no_grad():
        for got, wanted in zip(*map(torch.utils._pytree.tree_leaves, (compiled(*given), model(*given))), strict=True):
            assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
