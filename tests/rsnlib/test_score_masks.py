"""Masks between scores and softmax in the spellings of models: right, or refused, and never another number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch import nn

import rsn
from rsn.base.errors import TensorError, UnsupportedError
from rsn.rsnlib.mask import HIDDEN
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import AttentionLayer
from rsn.tests.effort import examples, full, long, sampled

BATCH, SEQ, HEADS, DIM = 2, 20, 2, 32
LEAST = torch.finfo(torch.float32).min
ROWS, COLUMNS = torch.arange(SEQ)[:, None], torch.arange(SEQ)[None]
SLOPES = -(2.0 ** -torch.arange(1.0, HEADS + 1))[:, None, None] * (ROWS - COLUMNS).abs()


class Masked(nn.Module):
    """Self-attention with operators between scores and softmax, and behind the softmax. value: of hidden scores. shown:
    a constant mask, True where a row sees a key. truth: from the argument to a bool mask of that kind."""

    def __init__(self, names: list[str], value: float, shown: torch.Tensor, kind: str, batches: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names, self.kind, self.batches = names, kind, batches
        self.packed, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.register_buffer("shown", shown)
        self.register_buffer("slopes", SLOPES)
        self.register_buffer("value", torch.tensor(value))
        self.number = value

    def truth(self, mask: torch.Tensor) -> torch.Tensor:
        return mask if self.kind == "bool" else mask == 0 if self.kind == "numbers" else mask > 0

    def scores(self, x: torch.Tensor, mask: torch.Tensor, less: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and values. less: the largest score of a row is subtracted where a step says so; without it, scores
        still tell which keys a row sees."""
        q, k, v = (y.view(BATCH, SEQ, HEADS, DIM).transpose(1, 2) for y in self.packed(x).chunk(3, -1))
        if self.batches and mask.shape[:2] == (BATCH, HEADS):
            q, k, v, mask = (y.flatten(0, 1) for y in (q, k, v, mask))
        scores = (torch.bmm if q.dim() == 3 else torch.matmul)(q, k.transpose(-1, -2))
        for name in self.names:
            if name in STEPS and (less or not name.startswith("less")):
                scores = STEPS[name](self, scores, mask)
        return scores, v

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores, v = self.scores(x, mask)
        weights = scores.softmax(-1)
        for name in self.names:
            weights = BEHIND[name](self, weights, mask) if name in BEHIND else weights
        y = (torch.bmm if v.dim() == 3 else torch.matmul)(weights, v)
        return self.out(y.view(BATCH, HEADS, SEQ, DIM).transpose(1, 2).reshape(BATCH, SEQ, 64))


Step = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
STEPS: dict[str, Step] = {
    "masked_fill": lambda m, s, mask: s.masked_fill(~m.truth(mask), m.number),
    "masked_fill, a tensor": lambda m, s, mask: s.masked_fill(m.truth(mask) == 0, m.value),
    "masked_fill, constant": lambda m, s, mask: s.masked_fill(m.shown[..., :SEQ, :SEQ].float() == 0, m.number),
    "where": lambda m, s, mask: torch.where(m.truth(mask), s, m.number),
    "where, swapped": lambda m, s, mask: torch.where(~m.truth(mask), m.value, s),
    "where, full_like": lambda m, s, mask: torch.where(m.truth(mask), s, torch.full_like(s, m.number)),
    "where, constant": lambda m, s, mask: torch.where(m.shown, s, m.value),
    "added": lambda m, s, mask: s + (1.0 - m.truth(mask).float()) * -1e9,
    "added numbers": lambda m, s, mask: s + (mask if m.kind == "numbers" else torch.log(m.truth(mask).float())),
    "subtracted": lambda m, s, mask: s - 1e9 * (~m.truth(mask)),
    "subtracted with alpha": lambda m, s, mask: torch.sub(s, 1 - m.truth(mask).long(), alpha=10000),
    "subtracted, constant": lambda m, s, mask: s - 1e9 * (1 - m.shown.float()),
    "added truth": lambda m, s, mask: s + m.truth(mask),
    "slopes": lambda m, s, mask: s + (m.slopes if s.dim() == 4 else m.slopes.repeat(BATCH, 1, 1)),
    "distances": lambda m, s, mask: s + m.slopes[0],
    "multiplied": lambda m, s, mask: s * m.truth(mask).float() - 1e9 * (1 - m.truth(mask).float()),
    "multiplied, constant": lambda m, s, mask: s * m.shown.float() - 1e9 * (1 - m.shown.float()),
    "multiplied alone": lambda m, s, mask: s * m.truth(mask).float(),
    "less the largest": lambda m, s, mask: s - s.amax(-1, keepdim=True),
    "less the largest, as max": lambda m, s, mask: s - s.max(-1, keepdim=True)[0],
    "quarter": lambda m, s, mask: s / 4,
    "half": lambda m, s, mask: s * 0.5,
    "twice": lambda m, s, mask: s + s,
}
BEHIND: dict[str, Step] = {
    "no NaN": lambda m, w, mask: w.nan_to_num(0.0),
    "zeros": lambda m, w, mask: w.masked_fill(~m.truth(mask), 0.0),
    "zeros, constant": lambda m, w, mask: w.masked_fill(~m.shown, 0.0),
    "times the mask": lambda m, w, mask: w * m.truth(mask),
    "dropout": lambda m, w, mask: nn.functional.dropout(w, 0.1, training=False),
}
SHAPES = [(SEQ, SEQ), (1, 1, SEQ, SEQ), (BATCH, 1, 1, SEQ), (BATCH, 1, SEQ, SEQ), (BATCH, HEADS, SEQ, SEQ)]
HIDING = [-torch.inf, LEAST, -1e9, -1e4]
PATTERNS = ["causal", "padding", "padding on the left", "causal, padding", "window", "any", "few"]


def shown(shape: tuple[int, ...], pattern: str, seed: int) -> torch.Tensor:
    """A mask that is True where a row sees a key."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, SEQ + 1, (BATCH, 1, 1, 1), generator=random)
    drawn = torch.rand(BATCH, 1, SEQ, SEQ, generator=random)
    made = {
        "causal": COLUMNS <= ROWS,
        "padding": lengths > COLUMNS,
        "padding on the left": SEQ - lengths <= COLUMNS,
        "causal, padding": (COLUMNS <= ROWS) & (lengths > COLUMNS),
        "window": (ROWS - COLUMNS).abs() < 4,
        "any": (drawn > 0.4) | (ROWS == COLUMNS),
        "few": drawn > 0.9,  # some rows see no key
    }[pattern].expand(BATCH, HEADS, SEQ, SEQ)
    for axis in range(4):
        full = (1,) * (4 - len(shape)) + shape
        made = made.narrow(axis, 0, full[axis])
    return made.reshape(shape).contiguous()


def argument(mask: torch.Tensor, kind: str) -> torch.Tensor:
    """A mask as an argument of that kind."""
    if kind == "numbers":
        return torch.zeros(mask.shape).masked_fill(~mask, LEAST)
    return mask.to({"bool": torch.bool, "integers": torch.int64, "floats": torch.float32}[kind])


@st.composite
def cases(draw: Any) -> tuple[Masked, list[torch.Tensor], torch.Tensor]:
    """A module, arguments of three calls, and its other argument."""
    names = draw(st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=3))
    names += draw(st.lists(st.sampled_from([*BEHIND]), max_size=1))
    value = draw(st.sampled_from([*HIDING * 3, -100.0, -5.0, 0.0, 1.0]))
    kind = draw(st.sampled_from(["bool", "integers", "floats", "numbers"]))
    seed = draw(st.integers(0, 99))
    constant = shown(draw(st.sampled_from(SHAPES[:2])), draw(st.sampled_from(PATTERNS)), seed)
    shape, pattern = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(PATTERNS))
    masks = [argument(shown(shape, pattern, seed + i), kind) for i in range(3)]
    module = Masked(names, value, constant, kind, draw(st.booleans())).eval()
    x = torch.randn(BATCH, SEQ, 64, generator=torch.Generator().manual_seed(seed))
    try:
        with torch.no_grad():
            module(x, masks[0])
    except RuntimeError:  # shapes that PyTorch does not take either
        reject()
    return module, masks, x


def attention_of(module: nn.Module, example: tuple[Any, ...]) -> AttentionLayer:
    (found,) = (x for x in trace(module, example).network.layers if isinstance(x, AttentionLayer))
    return found


def assert_right(compiled: Any, module: Masked, x: torch.Tensor, mask: torch.Tensor, exact: bool) -> None:
    """That a result is PyTorch's. Unless `exact`, rows that see no key are padding and do not count."""
    with torch.no_grad():
        wanted, (scores, _) = module(x, mask), module.scores(x, mask, less=False)
        got = compiled(x, mask)
    seen = (scores.view(BATCH, -1, SEQ, SEQ) > 0.9 * HIDDEN).any(-1).all(1) | exact
    torch.testing.assert_close(got[seen], wanted[seen], rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("overlay", ["xnn", "xnn2"])
@examples(250, 3, deadline=None)
@given(case=cases())
def test_any_spelling(overlay: str, case: tuple[Masked, list[torch.Tensor], torch.Tensor]) -> None:
    module, masks, x = case
    example = (x, masks[0])
    try:
        compiled = rsn.compile(module, example, overlay=overlay)
    except (UnsupportedError, TensorError):
        return
    found = attention_of(module, example)
    exact = not (found.masked or found.causal or found.window)
    with compiled:
        for mask in masks:
            try:
                assert_right(compiled, module, x, mask, exact)
            except TensorError:  # a mask of another kind than the example's, or a row that sees no key
                assert (
                    mask is not masks[0] or not exact or module.scores(*example, less=False)[0].amax(-1).min() <= HIDDEN
                )


@pytest.mark.filterwarnings("ignore:a part of this graph")
@examples(200, 2, deadline=None)
@given(case=cases())
def test_any_spelling_in_pieces(case: tuple[Masked, list[torch.Tensor], torch.Tensor]) -> None:
    module, masks, x = case
    torch._dynamo.reset()
    fast = torch.compile(module, backend="rsn")
    for mask in masks:
        assert_right(fast, module, x, mask, exact=False)


SPELLED = [name for name in STEPS if name not in ("added truth", "multiplied alone", "slopes", "distances")]
CAUSAL_AND_PADDING = shown((BATCH, 1, SEQ, SEQ), "causal, padding", 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [(pytest.param, long, full, long, long, full)[i % 6](name, HIDING[i % 4]) for i, name in enumerate(SPELLED)],
)
def test_what_is_promised(name: str, value: float) -> None:
    """One spelling with a hiding number is never refused."""
    names = ["masked_fill", name] if "largest" in name or name in ("quarter", "half", "twice") else [name]
    for shape, pattern in (((BATCH, 1, SEQ, SEQ), "causal, padding"), ((BATCH, 1, 1, SEQ), "padding")):
        mask = shown(shape, pattern, 1)
        module = Masked(names, value, shown((SEQ, SEQ), "causal", 0), "bool", False).eval()
        x = torch.randn(BATCH, SEQ, 64)
        if value == -1e4 and name != names[0]:
            module.number = -1e5  # hides when it is scaled, too
        with rsn.compile(module, (x, mask)) as compiled:
            assert_right(compiled, module, x, mask, exact=False)
        found = attention_of(module, (x, mask))
        constant = "constant" in name
        assert (found.mask, found.bias) == (None, None)
        assert found.masked != constant
        assert found.causal == (constant or pattern != "padding")


@pytest.mark.parametrize(
    ("names", "value", "complaint"),
    [
        (
            ["masked_fill"],
            -5.0,
            r"masked_fill\.Scalar .*it replaces scores by -5; the machine hides scores, by -10000 or",
        ),
        (["where, swapped"], 0.0, r"where\.self .*it replaces scores by 0"),
        (["masked_fill", "quarter"], -1e4, r"it is no mask that is added: a score may become"),
        (["multiplied alone"], 0.0, r"aten\.mul\.Tensor .*between the two products of an attention"),
        (["masked_fill, constant"], -1e9, r"matmul\.default .*its mask hides every key of a row"),
        (["masked_fill", "times the mask"], -1e9, r"aten\.mul\.Tensor .*between the two products of an attention"),
    ],
)
def test_refused(names: list[str], value: float, complaint: str) -> None:
    mask = shown((BATCH, 1, SEQ, SEQ), "causal", 0)
    module = Masked(names, value, shown((SEQ, SEQ), "few", 0), "bool", False).eval()
    with pytest.raises(UnsupportedError, match=complaint):
        rsn.compile(module, (torch.randn(BATCH, SEQ, 64), mask))


@pytest.mark.parametrize("shape", SHAPES[3:])
def test_masks_of_numbers_are_named_where_an_overlay_has_none(shape: tuple[int, ...]) -> None:
    module, mask = Masked(["masked_fill"], -1e9, torch.ones(SEQ, SEQ) > 0, "bool", False), shown(shape, "any", 0)
    with pytest.raises(UnsupportedError, match="a mask of numbers of scores; overlay xnn2 has masks of rows"):
        rsn.compile(module.eval(), (torch.randn(BATCH, SEQ, 64), mask), overlay="xnn2")


@pytest.mark.long
def test_rows_that_see_no_key() -> None:
    """They are as in PyTorch: the mean of the values, or 0 where PyTorch makes it so. NaN is refused."""
    mask, x = shown((BATCH, 1, SEQ, SEQ), "few", 0), torch.randn(BATCH, SEQ, 64)
    assert not mask.any(-1).all()
    for names, value in (
        (["masked_fill"], -1e4),
        (["distances", "masked_fill", "zeros"], -1e9),
        (["masked_fill", "no NaN"], -torch.inf),
        (["added numbers", "no NaN"], 0.0),
    ):
        module = Masked(names, value, mask, "bool", False).eval()
        with rsn.compile(module, (x, mask)) as compiled:
            assert_right(compiled, module, x, mask, exact=True)
    for names in (["masked_fill"], ["added numbers"], ["where", "subtracted"]):
        module = Masked(names, -torch.inf, mask, "bool", False).eval()
        with (
            rsn.compile(module, (x, mask)) as compiled,
            pytest.raises(TensorError, match="a row that sees no key"),
        ):
            compiled(x, mask)


class Decoder(nn.Module):
    """A small decoder that is written by hand: its causal mask is a part of a larger buffer."""

    def __init__(self, most: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(100, 64), nn.Embedding(most, 64)
        self.packed = nn.ModuleList(nn.Linear(64, 192) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.register_buffer("bias", torch.tril(torch.ones(most, most)).view(1, 1, most, most))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        batch, seq = ids.size()
        x = self.words(ids) + self.places(torch.arange(seq))
        for packed, out, norm in zip(self.packed, self.out, self.norms, strict=False):
            q, k, v = (y.view(batch, seq, 2, 32).transpose(1, 2) for y in packed(norm(x)).split(64, 2))
            scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
            scores = scores.masked_fill(self.bias[:, :, :seq, :seq] == 0, float("-inf"))
            x = x + out((scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(batch, seq, 64))
        return self.norms[2](x) @ self.words.weight.T


@pytest.mark.long
@pytest.mark.parametrize("overlay", sampled(["xnn", "xnn2"], ["xnn2"], full))
def test_a_decoder_whose_mask_is_a_part_of_a_buffer(overlay: str) -> None:
    model, ids = Decoder().eval(), torch.randint(100, (2, 40))
    shape = {0: rsn.Batch(1, 2), 1: rsn.Length(20, 40)}
    with rsn.compile(model, (ids,), overlay=overlay, dynamic_shapes={"ids": shape}) as family, torch.no_grad():
        for given in (ids, ids[:1, :17], ids[:, :33]):
            wanted = model(given)
            assert (family(given) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
