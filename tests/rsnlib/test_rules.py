"""Each rule of the table: an operator of PyTorch that the machine takes, alone in a module, and what it becomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from rsn.rsnlib.capture import exported, packet
from rsn.rsnlib.normal_form.operators import OPERATORS
from rsn.rsnlib.normal_form.passes import REMOVED
from rsn.rsnlib.quantised_ops import QUANTISED_OPS
from rsn.rsnlib.rotate import ROLL_IN, ROTATE
from rsn.rsnlib.rules import RULES
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import LayerGraph
from rsn.tests.effort import thinned

aten = torch.ops.aten
B, L, H, D = 2, 6, 2, 4
C = H * D


class Case(nn.Module):
    """What an operator is applied to: a product y of x, queries, keys and values of it, or their scores."""

    def __init__(self, forward: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.given = forward
        self.product, self.q, self.k, self.v, self.last = (nn.Linear(C, C) for _ in range(5))
        self.three = nn.Linear(C, 3 * C)
        self.norm = nn.LayerNorm(C)
        self.other = nn.Parameter(torch.randn(C, C))
        self.bias = nn.Parameter(torch.randn(C))
        self.each = nn.Parameter(torch.rand(1, H, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = x
        return self.given(self)

    @property
    def y(self) -> torch.Tensor:
        return self.product(self.x)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (H, D)).transpose(1, 2)

    @property
    def scores(self) -> torch.Tensor:
        return self.heads(self.q(self.x)) @ self.heads(self.k(self.x)).transpose(-2, -1)

    def attended(self, scores: torch.Tensor) -> torch.Tensor:
        return self.last((scores.softmax(-1) @ self.heads(self.v(self.x))).transpose(1, 2).flatten(2))

    def packed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def spelled(m: Case) -> torch.Tensor:
    """GELU by tanh, spelled out."""
    y = m.y
    return m.last(0.5 * y * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * torch.pow(y, 3.0)))))


def quick(m: Case) -> torch.Tensor:
    y = m.y
    return m.last(y * torch.sigmoid(1.702 * y))


def exact(m: Case) -> torch.Tensor:
    y = m.y
    return m.last(y * 0.5 * (1.0 + torch.erf(y / 2**0.5)))


def spelled_norm(m: Case) -> torch.Tensor:
    y = m.y
    return m.last(m.bias * (y * torch.rsqrt(y.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)))


def typed(m: Case) -> torch.Tensor:
    y = m.y
    return m.last(y.type_as(y))


def chunks(m: Case) -> torch.Tensor:
    return m.packed(*map(m.heads, m.three(m.x).chunk(3, -1)))


def moved(m: Case) -> torch.Tensor:
    """Queries, keys and values as dimensions of their own, taken apart one by one."""
    three = m.three(m.x).view(B, L, 3, H, D)
    return m.packed(*(three[:, :, i].transpose(1, 2) for i in range(3)))


def repeated(m: Case) -> torch.Tensor:
    """A key head for several query heads."""
    k, v = (f(m.x)[..., :D].unflatten(-1, (1, D)).transpose(1, 2) for f in (m.k, m.v))
    return m.packed(m.heads(m.q(m.x)), k.expand(B, H, L, D), v.expand(B, H, L, D))


def interleaved(m: Case) -> torch.Tensor:
    k, v = (f(m.x)[..., :D].unflatten(-1, (1, D)).transpose(1, 2).repeat_interleave(H, 1) for f in (m.k, m.v))
    return m.packed(m.heads(m.q(m.x)), k, v)


def rotated(m: Case) -> torch.Tensor:
    own, partner = m.other[:L, :D], m.other[-L:, -D:]
    q, k = (torch.ops.rsn.rotate(m.heads(f(m.x)), own, partner, [1, 0, 3, 2]) for f in (m.q, m.k))
    return m.packed(q, k, m.heads(m.v(m.x)))


def cached(m: Case) -> torch.Tensor:
    """The first rows of an empty cache."""
    k, v = (torch.zeros(B, H, L + 4, D).index_copy(2, torch.arange(L), m.heads(f(m.x))) for f in (m.k, m.v))
    return m.packed(m.heads(m.q(m.x)), k[:, :, :L], v[:, :, :L])


FORMS: dict[Any, Callable[[Case], torch.Tensor]] = {
    aten.index_copy: cached,
    aten.alias: lambda m: m.last(aten.alias(m.y)),
    aten.clone: lambda m: m.last(m.y.clone()),
    aten.contiguous: lambda m: m.last(m.heads(m.y).contiguous().transpose(1, 2).reshape(B, L, C)),
    aten.detach: lambda m: m.last(aten.detach(m.y)),
    aten.dropout: lambda m: m.last(F.dropout(m.y, 0.1, training=False)),
    aten.to: lambda m: m.last(m.y.to(torch.float32)),
    aten._to_copy: lambda m: m.last(aten._to_copy(m.y, dtype=torch.float32)),
    aten.type_as: typed,
    aten.view: lambda m: m.last(m.y.view(B * L, C).view(B, L, C)),
    aten._unsafe_view: lambda m: m.last(aten._unsafe_view(m.y, [B, L, C])),
    aten.reshape: lambda m: m.last(m.y.reshape(B, L, H, D).reshape(B, L, C)),
    aten.flatten: lambda m: m.last(m.y.view(B, L, H, D).flatten(2)),
    aten.unflatten: lambda m: m.last(m.y.unflatten(-1, (H, D)).flatten(2)),
    aten.unsqueeze: lambda m: m.last(m.y.unsqueeze(1).squeeze(1)),
    aten.squeeze: lambda m: m.last(m.y.unsqueeze(0).squeeze(0)),
    aten.permute: lambda m: m.last(m.y.permute(1, 0, 2).permute(1, 0, 2)),
    aten.transpose: lambda m: m.last(m.y.transpose(1, 2).transpose(1, 2)),
    aten.t: lambda m: m.last(m.y.view(B * L, C).t().t().view(B, L, C)),
    aten.movedim: lambda m: m.last(m.y.movedim(2, 0).movedim(0, 2)),
    aten.swapaxes: lambda m: m.last(m.y.swapaxes(0, 1).swapaxes(0, 1)),
    aten.mT: lambda m: m.last(m.y.mT.mT),
    aten.chunk: chunks,
    aten.split: lambda m: m.packed(*map(m.heads, m.three(m.x).split(C, -1))),
    aten.split_with_sizes: lambda m: m.packed(*map(m.heads, aten.split_with_sizes(m.three(m.x), [C, C, C], -1))),
    aten.unbind: lambda m: m.packed(*(m.three(m.x).view(B, L, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0))),
    aten.expand: repeated,
    aten.repeat_interleave: interleaved,
    aten.select: moved,
    aten.slice: lambda m: m.packed(*(m.heads(m.three(m.x)[..., i * C : (i + 1) * C]) for i in range(3))),
    aten.linear: lambda m: m.y,
    aten.addmm: lambda m: torch.addmm(m.bias, m.x.view(B * L, C), m.other).view(B, L, C),
    aten.mm: lambda m: torch.mm(m.x.view(B * L, C), m.other).view(B, L, C),
    aten.matmul: lambda m: m.attended(m.scores),
    aten.relu: lambda m: m.last(m.y.relu()),
    aten.silu: lambda m: m.last(F.silu(m.y)),
    aten.gelu: lambda m: m.last(F.gelu(m.y)),
    aten.pow: spelled,
    aten.tanh: spelled,
    aten.sigmoid: quick,
    aten.erf: exact,
    aten.rms_norm: lambda m: m.last(F.rms_norm(m.y + m.x, (C,), m.bias, 1e-5)),
    aten.layer_norm: lambda m: m.last(m.norm(m.y + m.x)),
    aten.add: lambda m: m.y + m.x,
    aten.cat: lambda m: torch.cat([F.relu(m.y), m.q(m.x)], -1),
    aten.mul: lambda m: m.last(m.y * 0.5),
    aten.div: lambda m: m.attended(m.scores / 2.0),
    ROTATE: rotated,
    aten.masked_fill: lambda m: m.attended(m.scores.masked_fill(m.other[:L, :L] > 1, -torch.inf)),
    aten.where: lambda m: m.attended(torch.where(m.other[:L, :L] < 1, m.scores, -1e9)),
    aten.softmax: lambda m: m.attended(m.scores),
    aten.scaled_dot_product_attention: chunks,
}


MORE: dict[str, Callable[[Case], torch.Tensor]] = {
    "a norm behind an activation": lambda m: m.last(m.norm(F.gelu(m.y))),
    "a norm behind an activation and a factor": lambda m: m.last(m.norm(F.relu(m.y) * 0.3)),
    "scores times a factor for each head": lambda m: m.attended(m.scores * m.each),
    "a factor for each head times scores": lambda m: m.attended(m.each * m.scores),
    "scores over a factor for each head, which is one of three dimensions": lambda m: m.attended(m.scores / m.each[0]),
    "a norm without eps": lambda m: m.last(F.rms_norm(m.y, (C,))),
    "a norm that is spelled out": spelled_norm,
    "a gate": lambda m: m.last(F.silu(m.q(m.x)) * m.k(m.x)),
    "a gate without an activation, times a number": lambda m: m.last(m.q(m.x) * m.k(m.x) * 0.5),
    "a packed gate behind its operand": lambda m: m.last(m.three(m.x)[..., C : 2 * C] * F.gelu(m.three(m.x)[..., :C])),
    "a gate with factors": lambda m: m.last(F.relu(m.q(m.x) * 0.3) * 0.7 * (m.k(m.x) / 0.9)),
    "a sum behind activations": lambda m: m.last(F.silu(m.q(m.x)) + F.relu(m.k(m.x))),
    "scores that are bounded": lambda m: m.attended(3.0 * torch.tanh(m.scores * 0.5 / 3.0)),
    "two kinds of factors": lambda m: m.attended(m.scores * 0.5 * m.each),
}
"""What a rule takes besides."""


def test_there_is_a_case_for_each_rule() -> None:
    """And every other case is a spelling of an operator that has one."""
    elsewhere = {ROLL_IN, *QUANTISED_OPS}  # tests/test_generate.py, test_quantised.py
    assert set(RULES) - set(FORMS) == elsewhere
    assert set(FORMS) - set(RULES) <= set().union(*REMOVED.values())
    assert set(RULES) <= set(OPERATORS)


@pytest.mark.parametrize("op", thinned(FORMS, 2), ids=str)
def test_rule(op: Any, call: Callable[..., Any]) -> None:
    """It is in the module, leaves nothing of it to PyTorch, and the result is PyTorch's."""
    module, x = Case(FORMS[op]).eval(), torch.randn(B, L, C)
    assert op in {packet(node) for node in exported(module, (x,), {}).graph.nodes}
    assert_taken(module, x, call)


@pytest.mark.parametrize("what", MORE)
def test_what_a_rule_takes_besides(what: str, call: Callable[..., Any]) -> None:
    assert_taken(Case(MORE[what]).eval(), torch.randn(B, L, C), call)


def assert_taken(module: nn.Module, x: torch.Tensor, call: Callable[..., Any]) -> None:
    """By the machine, to the last operator, with PyTorch's result."""
    traced = trace(module, (x,))
    assert {p.op for p in traced.placements if p.where == "host"} == set()
    got, wanted = call(traced, x), module(x)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("op", RULES, ids=str)
def test_every_rule_says_what_it_does(op: Any) -> None:
    assert inspect.getdoc(RULES[op])


def network_of(forward: Callable[[Case], torch.Tensor]) -> LayerGraph:
    return trace(Case(forward).eval(), (torch.randn(B, L, C),)).network


def test_what_moves_or_scales_costs_the_machine_nothing() -> None:
    """A view, a conversion, a factor: the network has as many layers as products and attentions."""
    assert len(network_of(FORMS[aten.transpose]).layers) == 2
    assert len(network_of(FORMS[aten.mul]).layers) == 2
    assert len(network_of(FORMS[aten.div]).layers) == 5
    assert len(network_of(FORMS[aten.pow]).layers) == 2
    assert len(network_of(chunks).layers) == 5
