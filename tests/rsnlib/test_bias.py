"""Masks of scores that are the same in every run: what the machine applies by itself, and what becomes a bias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rsn
from rsn.base.errors import UnsupportedError
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import AttentionLayer, LayerGraph
from rsn.tests.effort import full, long

SEQ, HEADS, DIM = 140, 3, 32


class Attending(nn.Module):
    """Self-attention whose scores are masked by the sum of what `terms` gives for the arguments, in one of the ways in
    which models spell it."""

    def __init__(self, *terms: Any, eager: bool) -> None:
        super().__init__()
        self.terms, self.eager = terms, eager
        self.q, self.k, self.v = (nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(3))

    def forward(self, x: torch.Tensor, keys: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for f in (self.q, self.k, self.v))
        terms = [term(keys) if callable(term) else term for term in self.terms]
        if not self.eager:
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=sum(terms[1:], terms[0]))
        else:
            scores = q @ k.transpose(-2, -1) * DIM**-0.5
            for term in terms:
                scores = scores + term
            y = scores.softmax(-1) @ v
        return y.transpose(1, 2).flatten(2)


def additive(allowed: torch.Tensor) -> torch.Tensor:
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)


def padding(keys: torch.Tensor) -> torch.Tensor:
    return (1.0 - keys[:, None, None, :].float()) * torch.finfo(torch.float32).min


torch.manual_seed(0)
POSITIONS = torch.randn(1, HEADS, SEQ, SEQ)
ROWS, COLUMNS = torch.arange(SEQ)[:, None], torch.arange(SEQ)[None]


def hidden_elsewhere(keys: torch.Tensor) -> torch.Tensor:
    return torch.where(keys[:, None, None, :].bool().expand(-1, 1, SEQ, SEQ), POSITIONS, -1e30)


CAUSAL = additive(COLUMNS <= ROWS)[None, None]
WINDOW = additive((COLUMNS - ROWS).abs() <= 9)
SLOPES = -(2.0 ** -torch.arange(1.0, HEADS + 1))[:, None, None] * (ROWS - COLUMNS).abs()
KEYS = (torch.arange(SEQ) < torch.tensor([SEQ, 77])[:, None]).long()
CASES: dict[str, tuple[list[Any], bool, bool, bool]] = {  # terms; masked by length, causal, with a bias
    "positions": ([POSITIONS], False, False, True),
    "positions and padding": ([POSITIONS, padding], True, False, True),
    "padding and positions": ([padding, POSITIONS], True, False, True),
    "positions where there is no padding": ([hidden_elsewhere], True, False, True),
    "causal": ([CAUSAL], False, True, False),
    "causal and padding": ([CAUSAL, padding], True, True, False),
    "causal, positions and padding": ([CAUSAL, POSITIONS, padding], True, True, True),
    "a window": ([WINDOW], False, False, False),
    "a window of two dimensions, and slopes": ([WINDOW, SLOPES], False, False, True),
    "each sequence its own": ([torch.randn(2, 1, SEQ, SEQ)], False, False, True),
    "left padding": ([additive(torch.tensor([0, 30])[:, None] <= COLUMNS)[:, None, None]], False, False, True),
}


def attention_of(network: LayerGraph) -> AttentionLayer:
    (found,) = (layer for layer in network.layers if isinstance(layer, AttentionLayer))
    return found


@pytest.mark.parametrize(
    ("case", "eager"),
    [
        ((c, e) if (i + e) % 8 == 1 else (long if (i + e) % 2 else full)(c, e))
        for i, c in enumerate(CASES)
        for e in (True, False)
    ],
)
def test_masks(case: str, eager: bool) -> None:
    terms, masked, causal, biased = CASES[case]
    module, x = Attending(*terms, eager=eager).eval(), torch.randn(2, SEQ, HEADS * DIM)
    given = (x, KEYS) if masked else (x,)
    found = attention_of(trace(module, given).network)
    assert (found.masked, found.causal, found.bias is not None) == (masked, causal, biased)
    assert found.window == (10 if "window" in case else None)
    with rsn.compile(module, given) as compiled, torch.no_grad():
        got, wanted = compiled(*given), module(*given)
        assert all(segment.difference < 1e-5 for segment in compiled.compare(*given))
    for b, n in enumerate([SEQ, 77] if masked else [SEQ, SEQ]):
        assert (got[b, :n] - wanted[b, :n]).abs().max() <= 1e-5 * wanted.abs().max()


def test_a_bool_mask_of_any_pattern() -> None:
    allowed = torch.rand(2, HEADS, SEQ, SEQ) < 0.7
    module, x = Attending(allowed, eager=False).eval(), torch.randn(2, SEQ, HEADS * DIM)
    with rsn.compile(module, (x,)) as compiled, torch.no_grad():
        assert torch.allclose(compiled(x), module(x), atol=1e-5)


def test_truths_are_not_taken_apart() -> None:
    """A sum of two is what either says; a number and one is a number more."""
    either = [(COLUMNS < 60)[None, None], lambda keys: keys[:, None, None].bool()]
    x = torch.randn(2, SEQ, HEADS * DIM)
    module = Attending(*either, eager=False).eval()
    with rsn.compile(module, (x, KEYS)) as compiled, torch.no_grad():
        assert torch.allclose(compiled(x, KEYS), module(x, KEYS), atol=1e-5)
    module = Attending(0.5 * POSITIONS, COLUMNS < 60, eager=False).eval()
    with rsn.compile(module, (x,)) as compiled, torch.no_grad():
        assert torch.allclose(compiled(x), module(x), atol=1e-5)


def test_a_mask_hides_large_scores_too() -> None:
    module, x = Attending(WINDOW, eager=True).eval(), torch.randn(2, SEQ, HEADS * DIM)
    with torch.no_grad():
        module.q.weight *= 300
        module.k.weight *= 300
    with rsn.compile(module, (x,)) as compiled, torch.no_grad():
        assert (compiled(x) - module(x)).abs().max() < 2e-2  # scores of 1e5 have two digits behind the point


def test_what_all_sequences_and_heads_share_is_kept_once() -> None:
    same = POSITIONS[:, :1].expand(2, HEADS, SEQ, SEQ).contiguous()
    network = trace(Attending(same, eager=True).eval(), (torch.randn(2, SEQ, HEADS * DIM),)).network
    bias = attention_of(network).bias
    assert bias is not None
    assert bias.shape == (1, 1, SEQ, SEQ)


def test_layers_share_a_bias() -> None:
    module = nn.Sequential(*(Attending(POSITIONS.clone(), eager=False) for _ in range(2))).eval()
    compiled = rsn.compile(module, (torch.randn(2, SEQ, HEADS * DIM),))
    assert [b.name for b in compiled.program.buffers if b.name.endswith("scores_bias")] == ["0.scores_bias"]


ROW_HIDDEN = additive(ROWS > COLUMNS)


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        ([ROW_HIDDEN], "its mask hides every key of a row"),
        ([torch.randn(SEQ, SEQ) * 1000 - 3e5], "its mask hides every key of a row"),
        ([POSITIONS * torch.nan], "its mask has values that are NaN or .inf"),
    ],
)
def test_refused(terms: list[Any], complaint: str) -> None:
    with pytest.raises(UnsupportedError, match=complaint):
        trace(Attending(*terms, eager=True).eval(), (torch.randn(2, SEQ, HEADS * DIM), KEYS))


ADDED: dict[str, tuple[Any, int]] = {  # of the keys (2, SEQ); heads of the mask
    "texts in one sequence": (lambda keys: keys[:, None, :, None] == keys[:, None, None, :], 1),
    "numbers": (lambda keys: -0.1 * keys[:, None, None, :].float() * ROWS, 1),
    "numbers of each head": (lambda keys: keys[:, None, None, :] * SLOPES, HEADS),
}


@pytest.mark.parametrize("case", ADDED)
def test_a_mask_from_the_arguments_that_is_no_pattern(case: str, call: Any) -> None:
    """It becomes an input of the machine, with the values of the call."""
    term, heads = ADDED[case]
    module, x = Attending(term, eager=False).eval(), torch.randn(2, SEQ, HEADS * DIM)
    traced = trace(module, (x, KEYS))
    found = attention_of(traced.network)
    assert found.mask is not None
    assert (found.mask_heads, found.masked, found.bias) == (heads, False, None)
    assert traced.network.inputs[found.mask] == SEQ
    for keys in (KEYS, KEYS.flip(0), (torch.arange(SEQ) // 50).expand(2, SEQ)):
        with torch.no_grad():
            torch.testing.assert_close(call(traced, x, keys), module(x, keys), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("hidden", [False, -torch.inf, torch.finfo(torch.float32).min])
def test_a_mask_from_the_arguments_may_hide_all_keys_of_a_row(hidden: float | bool) -> None:
    """Of a row that no number shows any key PyTorch makes 0; of equally small numbers, the mean of the values."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.x = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            y = self.x(x).unsqueeze(1)
            return nn.functional.scaled_dot_product_attention(y, y, y, mask).squeeze(1)

    x, shown = torch.randn(2, 20, 64), torch.rand(2, 1, 20, 20) < 0.6
    shown[1, 0, 3] = shown[0, 0, 7:9] = False
    mask = shown if hidden is False else torch.where(shown, 0.0, hidden)
    module = Masked().eval()
    with rsn.compile(module, (x, mask)) as compiled, torch.no_grad():
        got, wanted = compiled(x, mask), module(x, mask)
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        assert all(segment.difference <= 1e-5 for segment in compiled.compare(x, mask))
    assert (hidden is False or hidden == -torch.inf) == (not bool(wanted[1, 3].any()))
