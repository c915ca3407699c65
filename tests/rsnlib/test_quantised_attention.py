"""Attention with int8 rows: what it loses against float32, and what the normal form makes of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
pytest.importorskip("torchao")

from typing import Any  # noqa: E402 - torch first: it may be missing

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base import quantised as definition  # noqa: E402
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.rsnlib.capture import packet  # noqa: E402
from rsn.rsnlib.normal_form.passes import capture  # noqa: E402
from rsn.rsnlib.quantised_ops import INTEGER_MATMUL  # noqa: E402
from rsn.tests.effort import examples  # noqa: E402

from .test_streamed_quantised import defined  # noqa: E402


class Attention(nn.Module):
    """(queries, keys, values) of heads to (batch, rows, heads, columns)."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return rsn.quantised_attention(self, queries, keys, values, mask)[0]


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    groups=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 8)),
    kind=st.sampled_from(["all", "causal", "booleans", "added"]),
    size=st.sampled_from([1e-3, 1.0, 4.0]),
    seed=st.integers(0, 99),
)
@examples(300, 5, share=60, deadline=None)
def test_attention_of_integers(
    batch: int, heads: int, groups: int, sizes: tuple[int, int, int], kind: str, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    rows, keys, columns = sizes
    keys = max(rows, keys)
    q, k, v = (
        torch.randn(batch, h, n, columns) * size for h, n in ((heads * groups, rows), (heads, keys), (heads, keys))
    )
    seen = torch.rand(batch, 1, rows, keys) > 0.3
    seen[..., 0] = True
    mask = {"booleans": seen, "added": torch.randn(batch, heads * groups, rows, keys)}.get(kind)
    drawn = (q, k, v) if mask is None else (q, k, v, mask)
    model = Attention(kind == "causal").eval()
    with torch.no_grad():
        got = model(*drawn)
    if kind == "causal":
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    wanted = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    most = v.abs().max() * (0.03 + 0.05 * size * size * columns**0.5)
    assert (got - wanted).abs().max() <= most
    products = [x for x in capture(model, drawn, {}).graph.nodes if packet(x) is INTEGER_MATMUL]
    assert len(products) == 2
    # A weight may be rounded to the next integer, where both are as near.
    assert (defined((model, drawn)) - got).abs().max() <= 0.01 * v.abs().max() * keys + 1e-9


def test_scales_of_rows_and_columns() -> None:
    drawn = np.random.default_rng(0)
    x, y = (drawn.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 3, 5), (2, 5, 4)))
    of_rows, of_columns = (drawn.uniform(0.01, 1, shape).astype(np.float32) for shape in ((2, 3, 1), (2, 1, 4)))
    zero, other = drawn.integers(-128, 128, (2, 3, 1)), drawn.integers(-128, 128, (2, 1, 4))
    got = definition.integer_matmul(x, of_rows, zero, y, of_columns, other)
    sums = (x.astype(int) - zero) @ (y.astype(int) - other)
    assert np.array_equal(got, sums.astype(np.float32) * (of_rows * of_columns))


def test_what_attention_refuses() -> None:
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(TensorError, match=r"quantised attention takes float32, not torch.float16, torch.float32"):
        Attention(False)(q, q.half(), q)
    with pytest.raises(UnsupportedError, match="no soft cap"):
        rsn.quantised_attention(nn.Identity(), q, q, q, None, softcap=30.0)
    with pytest.raises(UnsupportedError, match="no dropout"):
        rsn.quantised_attention(nn.Identity().train(), q, q, q, None, dropout=0.1)


def registered() -> Any:
    """The package transformers, with the attention of integers."""
    transformers = pytest.importorskip("transformers")
    masks = pytest.importorskip("transformers.masking_utils")
    transformers.AttentionInterface.register("quantised", rsn.quantised_attention)
    masks.AttentionMaskInterface.register("quantised", masks.eager_mask)
    return transformers


def test_a_model_of_transformers() -> None:
    transformers = registered()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    ids, mask = torch.randint(0, 64, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[1, :3] = 0
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask, use_cache=False).logits
        model.set_attn_implementation("quantised")
        got = model(ids, attention_mask=mask, use_cache=False).logits
    seen = mask.bool()
    assert 0 < (got - wanted)[seen].abs().max() < 0.05 * wanted.abs().max()


def test_the_attention_of_rsn_nn() -> None:
    torch.manual_seed(0)
    plain = rsn.nn.Encoder(layers=1, hidden=32, heads=2, inner=48, causal=True).eval()
    model = rsn.nn.Encoder(layers=1, hidden=32, heads=2, inner=48, causal=True, quantised=True).eval()
    model.load_state_dict(plain.state_dict())
    x, mask = torch.randn(2, 6, 32), torch.ones(2, 6)
    mask[1, 4:] = 0
    with torch.no_grad():
        for given in ((x,), (x, mask)):
            assert 0 < (model(*given) - plain(*given))[:, :4].abs().max() < 0.05
    with pytest.raises(UnsupportedError, match=r"layers\.0\.attn: the overlays have no attention of integers"):
        rsn.nn.validate(model)
    assert "quantised" in repr(model)


@pytest.mark.parametrize("capacity", [None, 16])
def test_a_cache_of_integers(capacity: int | None) -> None:
    """Steps give what the whole sequence gives, and every attention sees the same numbers."""
    transformers = registered()
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    model.set_attn_implementation("quantised")
    ids = torch.randint(0, 64, (2, 9))
    cache = rsn.QuantisedCache(config, max_cache_len=capacity)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        steps = [model(ids[:, :4], past_key_values=cache).logits]
        steps += [model(ids[:, k : k + 1], past_key_values=cache).logits for k in range(4, 9)]
    assert (torch.cat(steps, 1) - whole).abs().max() < 0.02 * whole.abs().max()
    layer = cache.layers[1]
    assert {x.dtype for x in (layer.keys, layer.values)} == {torch.int8}
    assert {x.dtype for x in (layer.scales.keys, layer.scales.values)} == {torch.float32}
    assert layer.keys.shape[2] == (capacity or 9)
    cache.crop(-2)
    assert [int(x.get_seq_length()) for x in (layer, layer.scales)] == [7, 7]
    with torch.no_grad():
        again = model(ids[:, 7:8], past_key_values=cache).logits
    torch.testing.assert_close(again, steps[4], rtol=1e-5, atol=1e-5)
    cache.reset()
    assert not int(cache.get_seq_length())


def test_a_cache_refuses_a_window() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(sliding_window=8, num_hidden_layers=1)
    with pytest.raises(UnsupportedError, match="a model with sliding_attention; it holds all rows"):
        rsn.QuantisedCache(config)
