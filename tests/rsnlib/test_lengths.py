"""Sequences with lengths of their own: valid rows are those of each sequence alone, and others take no part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

import rsn
from rsn.base.errors import TensorError, UnsupportedError
from rsn.tests.effort import thinned

C, LENGTHS, SEQ = 32, [20, 13, 1], 20
B = len(LENGTHS)
VALID = torch.arange(SEQ) < torch.tensor(LENGTHS)[:, None]
Function = Callable[..., Any]


class Model(nn.Module):
    """A layer with an attention, and what PyTorch does before and behind it."""

    def __init__(self, behind: Function = lambda m, y: y, before: Function = lambda m, x: x) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.behind = before, behind
        self.q, self.k, self.v, self.o, self.head = (nn.Linear(C, C) for _ in range(5))
        self.norm, self.words, self.mix = nn.LayerNorm(C), nn.Embedding(50, C), nn.Conv1d(C, C, 3, padding=1)
        nn.init.normal_(self.norm.bias)

    def encoded(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None])
        return self.norm(x + self.o(y.transpose(1, 2).flatten(2)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.behind(self, self.encoded(self.before(self, x)))


def random() -> torch.Tensor:
    return torch.randn(B, SEQ, C, generator=torch.Generator().manual_seed(1))


ROWS: dict[str, Model] = {
    "nothing": Model(),
    "row by row": Model(lambda m, y: F.layer_norm(y.tanh() * m.norm.bias, (C,)), lambda m, x: F.normalize(x, dim=-1)),
    "rows of another width": Model(lambda m, y: y.softmax(-1).argsort(-1)[..., :3]),
}


@pytest.mark.parametrize("what", ROWS)
def test_valid_rows_are_those_of_each_sequence_alone(what: str) -> None:
    model, x = ROWS[what].eval(), random()
    with torch.no_grad(), rsn.compile(model, (x,), lengths=LENGTHS) as compiled:
        got = compiled(x)
        for i, n in enumerate(LENGTHS):
            torch.testing.assert_close(got[i, :n], model(x[i : i + 1, :n])[0], rtol=0, atol=1e-5)
        x[~VALID] = torch.nan  # not looked at
        assert torch.equal(compiled(x)[VALID], got[VALID])


@pytest.mark.parametrize(
    ("behind", "rows"),
    [
        (lambda m, y: y.transpose(1, 2).tanh(), lambda y, i, n: y[i, :, :n].T),
        (lambda m, y: y.flatten(0, 1).sin(), lambda y, i, n: y[i * SEQ : i * SEQ + n]),
        (lambda m, y: y.unflatten(-1, (4, 8)).permute(1, 2, 0, 3).tanh(), lambda y, i, n: y[:n, :, i].flatten(1)),
        (lambda m, y: m.head(y[:, 0]).tanh(), lambda y, i, n: y[i][None]),
    ],
    ids=["transposed", "flat", "in heads", "first row"],
)
def test_rows_of_results_in_another_order(behind: Function, rows: Function) -> None:
    model, x = Model(behind).eval(), random()
    with torch.no_grad(), rsn.compile(model, (x,), lengths=LENGTHS) as compiled:
        got = compiled(x)
        for i, n in enumerate(LENGTHS):
            alone = model(x[i : i + 1, :n])
            torch.testing.assert_close(rows(got, i, n), rows(alone, 0, n), rtol=0, atol=1e-5)


MIXED: dict[str, tuple[str, Model]] = {
    "mean": ("aten.mean.dim", Model(lambda m, y: y.mean(1))),
    "mean of normalised rows": ("aten.mean.dim", Model(lambda m, y: F.layer_norm(y.tanh(), (C,)).mean(1))),
    "maximum": ("aten.amax.default", Model(lambda m, y: y.amax(1))),
    "least": ("aten.amin.default", Model(lambda m, y: y.abs().amin(1))),
    "where the largest is": ("aten.argmax.default", Model(lambda m, y: y.argmax(1))),
    "last row": ("aten.select.int", Model(lambda m, y: y[:, -1])),
    "a softmax over rows": ("aten.softmax.int", Model(lambda m, y: y.softmax(1))),
    "a sum from the end": ("aten.flip.default", Model(lambda m, y: y.flip(1).cumsum(1).flip(1))),
    "rows in another order": ("aten.flip.default", Model(lambda m, y: y.flip(1) * y)),
    "one of several results": ("aten.sum.default", Model(lambda m, y: (y, y.tanh(), y.sum()))),
    "a mean before": ("aten.mean.dim", Model(before=lambda m, x: x - x.mean(1, keepdim=True))),
    "neighbours before": (
        "aten.constant_pad_nd.default",
        Model(before=lambda m, x: m.mix(x.transpose(1, 2)).transpose(1, 2)),
    ),
}


@pytest.mark.parametrize("what", thinned(MIXED, 3))
def test_what_mixes_rows_is_refused(what: str) -> None:
    operator, model = MIXED[what]
    message = rf"{operator.replace('.', '[.]')} at .*: its result depends on rows beyond a sequence's length"
    with pytest.raises(UnsupportedError, match=message):
        rsn.compile(model.eval(), (random(),), lengths=LENGTHS)
    rsn.compile(model, (random(),), lengths=[SEQ] * B).close()


class Words(Model):
    """Token numbers, of which some before decide for others."""

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.words(ids)
        return self.behind(self, self.encoded(x + x.cumsum(1) if self.before(self, ids) else x))


@pytest.mark.parametrize("sums", [False, True])
def test_numbers_of_tokens(sums: bool) -> None:
    """A running sum from the front takes nothing of what comes later."""
    model, ids = Words(before=lambda m, x: sums).eval(), torch.randint(50, (B, SEQ))
    with torch.no_grad(), rsn.compile(model, (ids,), lengths=LENGTHS) as compiled:
        got = compiled(ids)
        for i, n in enumerate(LENGTHS):
            torch.testing.assert_close(got[i, :n], model(ids[i : i + 1, :n])[0], rtol=0, atol=1e-5)


class Masked(Model):
    def forward(self, x: torch.Tensor, keep: torch.Tensor, pooled: torch.Tensor | None = None) -> Any:
        return self.behind(self, self.encoded(x, keep), keep if pooled is None else pooled)


def masked_mean(m: Model, y: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    weights = keep[..., None].float()
    return m.head((y.tanh() * weights).sum(1) / weights.sum(1))


def masked_largest(m: Model, y: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return y.masked_fill(~keep[..., None], -torch.inf).amax(1)


@pytest.mark.parametrize("behind", [masked_mean, masked_largest])
def test_a_mask_hides_rows_behind_the_machine_too(behind: Function) -> None:
    model, x = Masked(behind).eval(), random()
    shorter = VALID & (torch.arange(SEQ) < 7)
    with torch.no_grad(), rsn.compile(model, (x, VALID), lengths=LENGTHS) as compiled:
        for keep in (VALID, shorter):
            torch.testing.assert_close(compiled(x, keep), model(x, keep), rtol=0, atol=1e-5)


def test_with_an_example_that_is_longer_the_first_call_checks() -> None:
    model, x = Masked(lambda m, y, keep: y.mean(1)).eval(), random()
    with pytest.raises(UnsupportedError, match=r"aten[.]mean[.]dim at"):
        rsn.compile(model, (x, VALID), lengths=LENGTHS)
    with rsn.compile(model, (x, torch.ones_like(VALID)), lengths=LENGTHS) as compiled:
        with pytest.raises(TensorError, match="sequence 1 has 20 rows; compiled for at most 13"):
            compiled(x, torch.ones_like(VALID))
        with pytest.raises(UnsupportedError, match=r"aten[.]mean[.]dim at"):
            compiled(x, VALID)


def test_a_mask_that_no_attention_has_is_looked_at_in_every_call() -> None:
    model, x = Masked(masked_mean).eval(), random()
    with torch.no_grad(), rsn.compile(model, (x, VALID, VALID), lengths=LENGTHS) as compiled:
        torch.testing.assert_close(compiled(x, VALID, VALID), model(x, VALID, VALID), rtol=0, atol=1e-5)
        with pytest.raises(UnsupportedError, match=r"aten[.]sum[.]dim_IntList at .*rows beyond"):
            compiled(x, VALID, torch.ones_like(VALID))
