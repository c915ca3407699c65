"""What may be between two products of the machine: passes, products with the identity matrix, and other spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import rsn
from rsn.base.errors import UnsupportedError
from rsn.rsnlib.partition import Traced
from rsn.rsnlib.trace import trace
from rsn.tests.effort import spread

WIDTH, ROWS, HEAD = 64, 10, 32
Function = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def of_two_heads(m: Any, y: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Attention with queries and keys (batch, rows, 2, columns)."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, m.v(y).unflatten(-1, (2, HEAD))))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def of_one_key(m: Any, y: torch.Tensor) -> torch.Tensor:
    """Attention of two heads of queries over one of keys, of a packed projection, as Falcon's."""
    q, k, v = (m.packed(y)[:, :, i].expand(-1, -1, 2, -1).transpose(1, 2) for i in ([0, 1], [-2], [-1]))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def turned(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Rotary positions of (batch, rows, 2, columns)."""
    one, other = x.chunk(2, -1)
    turned: torch.Tensor = x * m.angles.cos()[:, None] + torch.cat([-other, one], -1) * m.angles.sin()[:, None]
    return turned


def centred_twice(m: Any, y: torch.Tensor) -> torch.Tensor:
    """A LayerNorm that takes the mean off twice, as Cohere's does."""
    mean = y.mean(-1, keepdim=True)
    normed: torch.Tensor = m.vector * ((y - mean) * torch.rsqrt((y - mean).pow(2).mean(-1, keepdim=True) + 1e-5))
    return normed


FUNCTIONS: dict[str, Function] = {
    "a difference": lambda m, x, y: x - y,
    "a difference from an argument": lambda m, x, y: y - x,
    "a difference of products": lambda m, x, y: m.u(x) - y,
    "a difference of itself with a factor": lambda m, x, y: torch.sub(y, y, alpha=3),
    "a sum with a factor": lambda m, x, y: torch.add(x, y, alpha=0.5),
    "a sum with a factor of an argument": lambda m, x, y: torch.add(y, x, alpha=-2),
    "a negative": lambda m, x, y: -functional.layer_norm(y, [WIDTH]),
    "a number added": lambda m, x, y: functional.silu(y) + 0.5,
    "a number from which it is taken": lambda m, x, y: 1 - y,
    "a vector behind a norm": lambda m, x, y: functional.rms_norm(y, [WIDTH]) * m.vector / m.vector[None],
    "vectors behind a norm that is needed itself": lambda m, x, y: (lambda z: (z * m.vector + 0.5) * m.vector - z)(
        functional.layer_norm(y, [WIDTH], m.vector, m.vector)
    ),
    "a vector with zeros behind a norm that is needed itself": lambda m, x, y: (
        lambda z: (lambda u: u * 2 + u + z)(z * (m.vector > 1).float())
    )(functional.rms_norm(y, [WIDTH], m.vector)),
    "a number behind a sum of norms": lambda m, x, y: (
        (functional.rms_norm(y, [WIDTH], m.vector) + functional.layer_norm(m.u(x), [WIDTH], m.vector, m.vector)) * 0.3
        + 1
    ),
    "a vector of some columns": lambda m, x, y: m.wide(y)[..., WIDTH:] * m.vector,
    "a square": lambda m, x, y: y * y,
    "a square beside its root": lambda m, x, y: functional.rms_norm(y.pow(2), [WIDTH]) + y,
    "a square of ReLU": lambda m, x, y: functional.relu(y).square(),
    "a square of a factor of ReLU": lambda m, x, y: (functional.relu(y) * 0.5) ** 2,
    "a square of a sum": lambda m, x, y: (y + x).square(),
    "a square of an attention": lambda m, x, y: of_two_heads(m, y, *m.heads(y)) ** 2,
    "a square of a square": lambda m, x, y: y.square().square(),
    "an activation of a norm": lambda m, x, y: functional.relu(functional.rms_norm(y, [WIDTH])),
    "an activation of a gate": lambda m, x, y: functional.silu(functional.gelu(m.u(x)) * m.v(x)),
    "an activation of an attention": lambda m, x, y: functional.gelu(of_two_heads(m, y, *m.heads(y))),
    "columns joined": lambda m, x, y: functional.layer_norm(torch.cat([y, functional.relu(y)], -1), [2 * WIDTH]),
    "columns joined with those of an argument": lambda m, x, y: functional.rms_norm(torch.cat([x, y], -1), [2 * WIDTH]),
    "columns joined three times": lambda m, x, y: torch.cat([y, x, y], -1) * 2 + m.wider(y),
    "columns joined and needed": lambda m, x, y: torch.cat([y, y], -1) + m.wide(y),
    "columns joined of an attention": lambda m, x, y: torch.cat([of_two_heads(m, y, *m.heads(y)), y], -1) + m.wide(y),
    "one head by an index": lambda m, x, y: of_one_key(m, y),
    "heads by a tensor": lambda m, x, y: of_two_heads(m, y, m.heads(y)[0], m.packed(y)[:, :, m.index]),
    "a mean taken off twice": lambda m, x, y: centred_twice(m, y),
    "a norm behind a rotation": lambda m, x, y: of_two_heads(m, y, *(m.norm(turned(m, t)) for t in m.heads(y))),
    "a rotation behind a norm": lambda m, x, y: of_two_heads(m, y, *(turned(m, m.norm(t)) for t in m.heads(y))),
    "a rotation behind a norm of all columns": lambda m, x, y: of_two_heads(
        m,
        y,
        *(
            turned(m, (functional.rms_norm(t.flatten(2), [WIDTH]) * m.vector).unflatten(-1, (2, HEAD)))
            for t in m.heads(y)
        ),
    ),
    "a rotation behind an activation": lambda m, x, y: of_two_heads(
        m, y, *(turned(m, functional.relu(t)) for t in m.heads(y))
    ),
    "heads with and without a rotation": lambda m, x, y: (
        of_two_heads(m, y, *(turned(m, t) for t in m.heads(y))) + of_two_heads(m, y, *m.heads(y))
    ),
    "scores of keys behind an activation": lambda m, x, y: of_two_heads(
        m, y, *(functional.relu(t) for t in m.heads(y))
    ),
    "scores of keys with a residual": lambda m, x, y: of_two_heads(
        m, y, *((t.flatten(2) + x).unflatten(-1, (2, HEAD)) for t in m.heads(y))
    ),
}


class Between(nn.Module):
    """One of these functions between two products."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.first, self.u, self.v, self.q, self.k = (nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.wide, self.wider = (nn.Linear(WIDTH, n) for n in (2 * WIDTH, 3 * WIDTH))
        self.norm = nn.RMSNorm(HEAD, eps=1e-5)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        self.vector = nn.Parameter(torch.empty(WIDTH).uniform_(0.5, 1.5))
        self.register_buffer("index", torch.tensor([1, 2]))
        angles = torch.arange(ROWS)[:, None] * 10.0 ** -torch.arange(0, 1, 2 / HEAD)
        self.register_buffer("angles", torch.cat([angles, angles], -1))
        self.last = nn.ModuleDict({str(n): nn.Linear(n, 48) for n in (WIDTH, 2 * WIDTH, 3 * WIDTH)})

    def heads(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.q(y).unflatten(-1, (2, HEAD)), self.k(y).unflatten(-1, (2, HEAD))

    def packed(self, y: torch.Tensor) -> torch.Tensor:
        heads: torch.Tensor = self.wide(y).unflatten(-1, (4, HEAD))
        return heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.function(self, x, self.first(x))
        out: torch.Tensor = self.last[str(y.shape[-1])](y)
        return out


def difference(overlay: str, name: str) -> float:
    """From PyTorch, over the largest magnitude, in float32."""
    model, x = Between(FUNCTIONS[name]).eval(), torch.randn(2, ROWS, WIDTH)
    with torch.no_grad(), rsn.compile(model, (x,), overlay=overlay, verify="never") as compiled:
        other = torch.randn(2, ROWS, WIDTH)
        wanted = model(other)
        return float((compiled(other) - wanted).abs().max() / wanted.abs().max())


def traced(name: str) -> Traced:
    return trace(Between(FUNCTIONS[name]).eval(), (torch.randn(2, ROWS, WIDTH),))


@pytest.mark.parametrize("name", spread(FUNCTIONS, 2, [*FUNCTIONS][::4]))
def test_it_is_all_on_the_machine(name: str) -> None:
    """But for what the host does before it, such as factors of arguments."""
    assert difference("xnn", name) <= 1e-5
    assert not traced(name).host.after


LACKS = {
    "a square beside its root": "a residual with a norm of its own",
    **dict.fromkeys((name for name in FUNCTIONS if "a rotation behind" in name), "of different activations"),
    **dict.fromkeys((name for name in FUNCTIONS if "scores of keys" in name), "of different activations"),
    "a norm behind a rotation": "of different activations",
    "scores of keys behind an activation": "is not a product that only this attention reads",
}
"""Functions that xnn2 refuses, and why."""
del LACKS["a rotation behind a norm"]


@pytest.mark.long
@pytest.mark.parametrize("name", spread(FUNCTIONS, 3))
def test_on_row_lanes(name: str) -> None:
    if name in LACKS:
        with pytest.raises(UnsupportedError, match=LACKS[name]):
            difference("xnn2", name)
    else:
        assert difference("xnn2", name) <= 1e-5
