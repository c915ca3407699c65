"""A traced module, its network interpreted in numpy, against PyTorch; and what is refused, in which words."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from rsn.base.errors import RsnError, TensorError, UnsupportedError
from rsn.rsnlib.exporting import TRACE_LOG
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, Norm

Call = Callable[..., Any]
Randomised = Callable[..., Any]
B, L, C, H = 2, 10, 24, 3


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.shape == expected.shape
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def hidden(batch: int = B, seq: int = L, columns: int = C) -> torch.Tensor:
    return torch.randn(batch, seq, columns)


def right_padded(*lengths: int) -> torch.Tensor:
    return (torch.arange(L) < torch.tensor(lengths)[:, None]).long()


# -- transformers


def bert(**more: Any) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=200,
        max_position_embeddings=32,
        **more,
    )
    model: nn.Module = BertModel(config)
    return model


def tokens(*lengths: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 50, (len(lengths), L))
    return {"input_ids": ids, "attention_mask": right_padded(*lengths), "token_type_ids": ids % 2}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bert_with_masks(call: Call, randomised: Randomised, attention: str) -> None:
    model = randomised(bert(attn_implementation=attention))
    traced = trace(model, tokens(L, L))  # the lengths are those of the call, not of the example
    inputs = tokens(L, 7)
    got, expected = call(traced, **inputs), model(**inputs)
    assert type(got) is type(expected)
    assert_close(got.last_hidden_state, expected.last_hidden_state)
    assert_close(got.pooler_output, expected.pooler_output)
    assert list(traced.network.inputs) == ["embeddings_LayerNorm"]
    assert [type(x) for x in traced.network.layers] == [Gemm, Gemm, Gemm, AttentionLayer, Gemm, Gemm, Gemm] * 2
    assert all(x.masked for x in traced.network.layers if isinstance(x, AttentionLayer))


def test_bert_without_mask(call: Call, randomised: Randomised) -> None:
    model = randomised(bert())
    ids = tokens(L, L)["input_ids"]
    traced = trace(model, (ids,))
    assert traced.host.prologue(ids)[1] is None
    assert not any(x.masked for x in traced.network.layers if isinstance(x, AttentionLayer))
    assert_close(call(traced, input_ids=ids).last_hidden_state, model(ids).last_hidden_state)


def test_bert_layers_are_fused(randomised: Randomised) -> None:
    traced = trace(randomised(bert()), tokens(L, 7))
    gemms = [x for x in traced.network.layers if isinstance(x, Gemm)]
    dense, up, down = gemms[3:6]
    assert dense.path == "encoder.layer.0.attention.output.dense"
    assert (dense.residual, dense.norm, dense.activation) == ("embeddings_LayerNorm", Norm(1e-12), None)
    assert (up.residual, up.norm, up.activation) == (None, None, ActivationFunction.GELU_ERF)
    assert (down.residual, down.norm, down.activation) == (dense.y, Norm(1e-12), None)


def test_bert_hands_out_every_hidden_state(call: Call, randomised: Randomised) -> None:
    model = randomised(bert())
    inputs = tokens(L, 7) | {"output_hidden_states": True}
    got = call(trace(model, inputs), **inputs)
    expected = model(**inputs)
    assert len(got.hidden_states) == 3
    for mine, theirs in zip(got.hidden_states, expected.hidden_states, strict=True):
        assert_close(mine, theirs)


def test_explain_says_where_everything_runs(randomised: Randomised) -> None:
    text = trace(randomised(bert()), tokens(L, 7)).explain()
    assert text.startswith("2 x 10 rows, 14 layers on the machine: 99.4 % of ")
    operators = text.splitlines()[text.splitlines().index("") + 1 :]
    assert operators[0] == "inputs embeddings_LayerNorm; outputs encoder_layer_1_output_dense"
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in operators[2:]}
    assert lines["embeddings.LayerNorm"] == "host before the machine layer_norm"
    assert lines["encoder.layer.1.output.dense"] == "machine matrix product 200 x 96 linear"
    assert lines["encoder.layer.1.output.LayerNorm"] == "machine fused into encoder.layer.1.output.dense layer_norm"
    assert lines["encoder.layer.0.attention.self"].startswith("machine attention, 3 heads of 32")
    assert lines["pooler.dense"].startswith("host after the machine: its operand is not all of 2 x 10 rows")
    assert lines["pooler.activation"] == "host after the machine tanh"


# -- modules of PyTorch


def test_transformer_encoder_with_padding(call: Call, randomised: Randomised) -> None:
    """Packed projections, dimensions merged across heads and sequences, masks and activations in place."""
    layer = nn.TransformerEncoderLayer(C, H, 40, batch_first=True)
    model = randomised(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    inputs = {"src": hidden(), "src_key_padding_mask": right_padded(L, 6) == 0}
    traced = trace(model, inputs)
    assert list(traced.network.inputs) == ["src"]
    assert len(traced.network.layers) == 14
    assert_close(call(traced, **inputs), model(**inputs))


def test_sequence_first(call: Call, randomised: Randomised) -> None:
    model = randomised(nn.TransformerEncoderLayer(C, H, 40))
    x = torch.randn(L, B, C)
    traced = trace(model, (x,))
    assert (traced.network.batch, traced.network.seq) == (B, L)
    assert_close(call(traced, x), model(x))


def test_sequence_first_is_refused_where_it_is_ambiguous(randomised: Randomised) -> None:
    with pytest.raises(UnsupportedError, match="its query is not a projection of 4 x 4 rows, cut into heads"):
        trace(randomised(nn.TransformerEncoderLayer(C, H, 40)), (torch.randn(4, 4, C),))


def test_mlp_on_rows(call: Call, randomised: Randomised) -> None:
    model = randomised(nn.Sequential(nn.Linear(C, 40), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(40, 7)))
    x = torch.randn(33, C)
    traced = trace(model, (x,))
    assert (traced.network.batch, traced.network.seq) == (1, 33)
    assert [layer.y for layer in traced.network.layers] == ["linear_0", "linear_3"]
    assert_close(call(traced, x), model(x))


# -- hand-written modules


class Block(nn.Module):
    """A post-norm encoder layer whose parts can be replaced."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(C, C, bias=bias) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.up, self.down = nn.Linear(C, 40), nn.Linear(40, C)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], H, -1).transpose(1, 2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.split(q), self.split(k), self.split(v))

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = self.attend(self.query(x), self.key(x), self.value(x))
        x = self.norm1(self.dense(context.transpose(1, 2).reshape(x.shape)) + x)
        return self.norm2(x + self.down(self.activate(self.up(x))))


class PreNorm(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        context = self.attend(self.query(h), self.key(h), self.value(h))
        x = x + self.dense(context.transpose(1, 2).reshape(x.shape))
        return x + self.down(self.activate(self.up(self.norm2(x))))


def test_a_residual_that_is_normalised_and_kept(call: Call, randomised: Randomised) -> None:
    """Its norm is a pass of its own; the norm behind the last sum is fused as ever."""
    model, x = randomised(nn.Sequential(PreNorm(), PreNorm(), nn.LayerNorm(C))), hidden()
    traced = trace(model, (x,))
    passes = [layer for layer in traced.network.layers if isinstance(layer, Gemm) and not layer.multiplies]
    assert [p.path for p in passes] == ["0.norm2", "1.norm1", "1.norm2"]
    assert all(p.x == p.residual for p in passes)
    assert_close(call(traced, x), model(x))


class Causal(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.split(q), self.split(k), self.split(v), is_causal=True)


class CausalMask(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(L, L).tril().bool()
        return F.scaled_dot_product_attention(self.split(q), self.split(k), self.split(v), mask)


class CausalSum(Block):
    """Written out, as eager implementations do."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.full((L, L), float("-inf")).triu(1)
        scores = self.split(q) @ self.split(k).transpose(2, 3) / (C // H) ** 0.5 + mask
        return scores.softmax(-1) @ self.split(v)


@pytest.mark.parametrize("kind", [Causal, CausalMask, CausalSum])
def test_causal_attention(call: Call, randomised: Randomised, kind: type[Block]) -> None:
    model, x = randomised(kind()), hidden()
    traced = trace(model, (x,))
    (attention,) = (layer for layer in traced.network.layers if isinstance(layer, AttentionLayer))
    assert (attention.causal, attention.masked) == (True, False)
    assert_close(call(traced, x), model(x))


class CausalPadded(Block):
    def forward(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(f(x)) for f in (self.query, self.key, self.value))
        mask = torch.ones(L, L).tril().bool() & keys[:, None, None].bool()
        context = F.scaled_dot_product_attention(q, k, v, mask)
        return self.dense(context.transpose(1, 2).reshape(x.shape))


def test_a_causal_mask_from_the_arguments_hides_padding_too(call: Call, randomised: Randomised) -> None:
    """Whether it is causal, the example says; another kind of mask is refused when it comes."""
    model, x = randomised(CausalPadded()), hidden()
    traced = trace(model, (x, right_padded(L, L)))
    (attention,) = (layer for layer in traced.network.layers if isinstance(layer, AttentionLayer))
    assert (attention.causal, attention.masked) == (True, True)
    got, wanted = call(traced, x, right_padded(L, 4)), model(x, right_padded(L, 4))
    assert_close(got[0], wanted[0])
    assert_close(got[1, :4], wanted[1, :4])


def test_a_result_that_is_wanted_with_and_without_its_activation(call: Call, randomised: Randomised) -> None:
    class Both(Block):
        def forward(self, x: torch.Tensor) -> Any:
            y = self.dense(x)
            return y, F.gelu(y), self.down(self.activate(self.up(F.relu(y))))

    model, x = randomised(Both()), hidden()
    for got, wanted in zip(call(trace(model, (x,)), x), model(x), strict=True):
        assert_close(got, wanted)


@pytest.mark.parametrize("bias", [True, False])
def test_encoder_layer(call: Call, randomised: Randomised, bias: bool) -> None:
    model, x = randomised(Block(bias)), hidden()
    assert_close(call(trace(model, (x,)), x), model(x))


def test_stack_shares_weights(call: Call, randomised: Randomised) -> None:
    block, x = randomised(Block()), hidden()
    model = nn.Sequential(block, block).eval()
    traced = trace(model, (x,))
    assert len(traced.network.layers) == 14
    assert len({layer.y for layer in traced.network.layers}) == 14
    assert_close(call(traced, x), model(x))


class Scaled(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.split(q), self.split(k), self.split(v), scale=0.7)


class Eager(Block):
    """Attention by hand: scores divided, an additive mask, softmax."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(q), self.split(k), self.split(v)
        mask = (1.0 - right_padded(L, 4)[:, None, None].float()) * torch.finfo(torch.float32).min
        scores = torch.matmul(q, k.transpose(-1, -2)) / 3.0 + mask
        return torch.matmul(F.dropout(F.softmax(scores, dim=-1), 0.1, self.training), v)


class Premultiplied(Block):
    """The score scale on the queries, as older models have it."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.split(0.3 * q), self.split(k), self.split(v), scale=1.0)


class OneProjection(Block):
    """Queries and keys from the same projection: only the keys take up the scale."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.query(x)
        return self.dense(self.attend(q, q, self.value(x)).transpose(1, 2).reshape(x.shape))


class Factors(Block):
    """Before a residual, before an activation, and twice on a projection."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + 0.5 * self.dense(x))
        keys = self.key(x) * torch.tensor(2.0) / 3
        x = self.attend(self.query(x), keys, self.value(x)).transpose(1, 2).flatten(2)
        return self.down(F.relu(self.up(x).mul(0.25)))


class Interleaved(Block):
    """One projection with (q, k, v) packed inside each head."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Linear(C, 3 * C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.packed(x).view(*x.shape[:2], H, 3, C // H).permute(3, 0, 2, 1, 4).unbind(0)
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Chunked(Interleaved):
    """One projection with all queries, then all keys, then all values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.split(part) for part in self.packed(x).chunk(3, dim=-1))
        q, k = q.contiguous(), k[:, :, 0:L]
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Conv1d(Block):
    """Weights (in, out), bias added by addmm or by hand, activation SiLU in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(C, 30)), nn.Parameter(torch.empty(30))
        self.back = nn.Parameter(torch.empty(30, C))
        self.shift = nn.Parameter(torch.empty(C))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x.view(-1, C), self.weight)
        y = F.silu(y, inplace=True).view(B, L, 30)
        y = y @ self.back
        y += self.shift
        return self.norm1(y + x)


class Banded(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(L, L).tril().triu(-2).bool()
        return F.scaled_dot_product_attention(self.split(q), self.split(k), self.split(v), mask)


class TwoMasks(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(q), self.split(k), self.split(v)
        return (q @ k.transpose(2, 3) + torch.zeros(L) + torch.zeros(L, L)).softmax(-1) @ v


class NormedValues(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return super().attend(q, k, self.norm2(v))


class Positions(Block):
    """What is added to a product is computed on the host and broadcast over the sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(L, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm1(self.table(torch.arange(L)) + self.dense(x)))


class TwoProducts(Block):
    """Either could take the other as its residual, were it not that the second needs the first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.query(x)
        return self.norm1(first + self.key(first))


class NoGrad(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return super().forward(x)


@pytest.mark.parametrize(
    "kind",
    [
        Scaled,
        Eager,
        Premultiplied,
        OneProjection,
        Factors,
        Interleaved,
        Chunked,
        Conv1d,
        Banded,
        TwoMasks,
        NormedValues,
        Positions,
        TwoProducts,
        NoGrad,
    ],
)
def test_variant(call: Call, randomised: Randomised, kind: type[Block]) -> None:
    model, x = randomised(kind()), hidden()
    traced = trace(model, (x,))
    assert_close(call(traced, x), model(x))
    assert not any(placement.op in ("linear", "matmul") for placement in traced.placements if placement.where == "host")


@pytest.mark.parametrize(
    ("activate", "expected"),
    [
        (F.relu, ActivationFunction.RELU),
        (F.silu, ActivationFunction.SILU),
        (F.gelu, ActivationFunction.GELU_ERF),
        (lambda x: F.gelu(x, approximate="tanh"), ActivationFunction.GELU_TANH),
    ],
)
def test_activations(call: Call, randomised: Randomised, activate: Any, expected: ActivationFunction) -> None:
    class Activated(Block):
        def activate(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = activate(x)
            return result

    model, x = randomised(Activated()), hidden()
    traced = trace(model, (x,))
    assert [layer.activation for layer in traced.network.layers if isinstance(layer, Gemm)][-2] is expected
    assert_close(call(traced, x), model(x))


def test_operators_of_several_results_on_the_host(call: Call, randomised: Randomised) -> None:
    class Sorted(Block):
        def forward(self, x: torch.Tensor) -> Any:
            x = x.sort(dim=-1)[0]
            return self.dense(x).topk(3, dim=-1)

    model, x = randomised(Sorted()), hidden()
    traced = trace(model, (x,))
    assert [p.op for p in traced.placements] == ["sort", "getitem", "linear", "topk", "getitem", "getitem"]
    assert_close(call(traced, x)[0], model(x)[0])


def test_factor_that_changes_shape_or_type_stays_on_the_host(call: Call, randomised: Randomised) -> None:
    class Wide(Block):
        def forward(self, x: torch.Tensor) -> Any:
            return self.query(x) * torch.full((1, 1, 1, 1), 2.0), self.key(x) * torch.full((1,), 2.0).double()

    model, x = randomised(Wide()), hidden()
    for got, expected in zip(call(trace(model, (x,)), x), model(x), strict=True):
        assert got.dtype == expected.dtype
        assert_close(got, expected)


def test_shapes_on_the_host_may_depend_on_data(call: Call, randomised: Randomised) -> None:
    class Counted(Block):
        def forward(self, x: torch.Tensor) -> Any:
            return self.dense(x), (x > 0).nonzero().t()

    model, x = randomised(Counted()), hidden()
    got, expected = call(trace(model, (x,)), x), model(x)
    assert torch.equal(got[1], expected[1])
    assert_close(got[0], expected[0])


def test_structure_of_the_result_is_the_modules_own(call: Call, randomised: Randomised) -> None:
    class Nested(Block):
        def forward(self, x: torch.Tensor, flag: bool = False) -> Any:  # type: ignore[override]
            y = self.dense(x)
            return {"rows": y, "first": (y[:, 0].sin(), None, flag), "heads": self.split(y), "input": x}

    model, x = randomised(Nested()), hidden()
    got, expected = call(trace(model, {"x": x, "flag": True}), x, flag=True), model(x, True)
    assert got["first"][1:] == (None, True)
    for mine, theirs in ((got[key], expected[key]) for key in ("rows", "heads", "input")):
        assert_close(mine, theirs)
    assert_close(got["first"][0], expected["first"][0])


def test_one_row_of_one_column(call: Call, randomised: Randomised) -> None:
    model, x = randomised(nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 3))), torch.randn(1, 1)
    assert_close(call(trace(model, (x,)), x), model(x))


# -- the module and the arguments are left as they were


def test_training_mode_is_refused(randomised: Randomised) -> None:
    model = randomised(Block())
    model.norm1.train()
    with pytest.raises(
        UnsupportedError, match=r"^norm1 \(LayerNorm\) is in training mode: call model\.eval\(\) first$"
    ):
        trace(model, (hidden(),))


def test_weights_are_those_of_the_time_of_tracing(call: Call, randomised: Randomised) -> None:
    """On the machine and on the host alike."""
    model, inputs = randomised(bert()), tokens(L, 7)
    expected = model(**inputs)
    traced = trace(model, inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    got = call(traced, **inputs)
    assert_close(got.last_hidden_state, expected.last_hidden_state)
    assert_close(got.pooler_output, expected.pooler_output)


class OwnMethods(nn.Linear):
    """A module whose class has the methods that torch.export replaces in `nn.Module`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)


@pytest.mark.parametrize("kind", [nn.Linear, OwnMethods, nn.Module])
def test_a_capture_leaves_no_method_in_the_classes_of_modules(
    call: Call, randomised: Randomised, kind: type[nn.Module]
) -> None:
    """One submodule at two places, and a module that is none."""
    elsewhere = [nn.Linear(C, C)]

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.other = nn.Sequential(nn.Linear(C, C), nn.ReLU())
            self.third = kind() if kind is nn.Module else kind(C, C)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.one(self.other(x)) + elsewhere[0](x)
            return y if kind is nn.Module else self.third(y)

    model, x = randomised(Twice()), hidden()
    classes = (nn.Module, nn.Sequential, nn.Linear, nn.ReLU, OwnMethods, Twice)
    before = [dict(vars(c)) for c in classes]
    assert_close(call(trace(model, (x,)), x), model(x))
    assert [dict(vars(c)) for c in classes] == before
    assert not logging.getLogger(TRACE_LOG).handlers  # torch describes no tensors for it


@pytest.mark.long
def test_module_is_not_kept_alive(randomised: Randomised) -> None:
    model = randomised(Block())
    weight = weakref.ref(model.query.weight)
    traced = trace(model, (hidden(),))
    del model
    gc.collect()
    assert weight() is None
    assert traced.network.layers


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((torch.zeros(B, L + 1, C),), {}, r"argument x is torch.float32 \(2, 11, 24\); .* \(2, 10, 24\)"),
        ((torch.zeros(B, L, C).double(),), {}, "argument x is torch.float64"),
        ((np.zeros((B, L, C)),), {}, "argument x is torch.float64"),
        ((3,), {}, "argument x must be a tensor, not int"),
        ((), {}, "missing a required argument: 'x'"),
        ((), {"y": 1}, "missing a required argument|unexpected keyword"),
        (([torch.zeros(B, L, C)] * 2,), {}, r"argument x \(list\) has another structure than in the example .a tensor"),
    ],
)
def test_prologue_checks_its_arguments(randomised: Randomised, args: Any, kwargs: Any, message: str) -> None:
    traced = trace(randomised(Block()), (hidden(),))
    with pytest.raises(TensorError, match=message):
        traced.host.prologue(*args, **kwargs)


def test_epilogue_checks_the_outputs(randomised: Randomised) -> None:
    x = hidden()
    traced = trace(randomised(Block()), (x,))
    _, _, state = traced.host.prologue(x)
    with pytest.raises(TensorError, match="output down is missing"):
        traced.host.epilogue({}, state)
    with pytest.raises(TensorError, match=r"output down has shape \(20, 24\)"):
        traced.host.epilogue({"down": np.zeros((B * L, C), np.float32)}, state)


def test_masks_at_run_time_must_be_prefixes(randomised: Randomised) -> None:
    traced = trace(randomised(bert()), tokens(L, 7))
    inputs = tokens(L, 7)
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    with pytest.raises(TensorError, match="mask of sequence 1 is not a prefix"):
        traced.host.prologue(**inputs)


def test_layers_must_agree_on_the_mask(randomised: Randomised) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            b = self.block
            for mask in (first, second):
                q, k, v = (b.split(f(x)) for f in (b.query, b.key, b.value))
                x = b.dense(F.scaled_dot_product_attention(q, k, v, mask[:, None, None]).transpose(1, 2).flatten(2))
            return x

    mask = right_padded(L, 6).bool()
    traced = trace(randomised(Two()), (hidden(), mask, mask))
    assert traced.host.prologue(hidden(), mask, mask.clone())[1].lengths.tolist() == [L, 6]  # type: ignore[union-attr]
    with pytest.raises(TensorError, match="hide different keys"):
        traced.host.prologue(hidden(), mask, right_padded(L, 5).bool())


# -- refusals


class Sin(Block):
    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class GroupedQuery(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (self.split(x)[:, :1] for x in (k, v))
        return F.scaled_dot_product_attention(self.split(q), k, v, enable_gqa=True)


class RepeatedKeys(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (self.split(x)[:, :1].expand(-1, H, -1, -1) for x in (k, v))
        return F.scaled_dot_product_attention(self.split(q), k, v)


class UnevenGroups(Block):
    """Two query heads on one key head, the third alone."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (torch.cat([self.split(x)[:, :1], self.split(x)[:, :2]], 1) for x in (k, v))
        return F.scaled_dot_product_attention(self.split(q), k, v)


@pytest.mark.parametrize("kind", [GroupedQuery, RepeatedKeys])
def test_queries_in_groups(randomised: Randomised, call: Callable[..., Any], kind: type[Block]) -> None:
    model, x = randomised(kind()), hidden()
    traced = trace(model, (x,))
    (attention,) = (layer for layer in traced.network.layers if isinstance(layer, AttentionLayer))
    assert (attention.heads, attention.kv_heads) == (H, 1)
    with torch.no_grad():
        torch.testing.assert_close(call(traced, x), model(x), rtol=1e-4, atol=1e-6)


class Cross(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.split(q), self.split(k)[:, :, :5], self.split(v)[:, :, :5])


class UnsplitHeads(Block):
    """A view where a transposition is missing: legal, and not an attention over heads."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.view(B, H, L, -1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v)


class Weights(Block):
    """The probabilities of an attention wanted outside."""

    def forward(self, x: torch.Tensor) -> Any:
        q, k = self.split(self.query(x)), self.split(self.key(x))
        return (q @ k.transpose(2, 3)).softmax(-1)


class Clamped(Block):
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(q), self.split(k), self.split(v)
        return (q @ k.transpose(2, 3)).clamp(max=5).softmax(-1) @ v


class MergedRows(Block):
    """Two rows become one: no longer the machine's rows, but still a product of many."""

    def __init__(self) -> None:
        super().__init__()
        self.merge = nn.Linear(2 * C, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.merge(self.dense(x).view(B, L // 2, 2 * C))


class Padded(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.pad(self.norm1(F.gelu(self.dense(x))), (0, 40 - C)))


class Buffered(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.dense(x)


class InnerGraph(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dense(x).sin()
        with torch.enable_grad():
            return self.dense(y)


class DataDependent(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x) if x.sum() > 0 else x


class NoProduct(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class OwnWeights(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, x[0])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Sin,
            r"aten\.linear\.default at 0\.down: it depends on aten\.sin\.default at 0, which cannot run on the "
            r"machine: aten\.sin\.default is not an operation of the machine",
        ),
        (UnevenGroups, r"scaled_dot_product_attention\.default at 0: it depends on aten\.cat\.default at 0"),
        (Cross, r"at 0 \(cross attention\): its key is not a projection of 2 x 5 rows, cut into heads"),
        (UnsplitHeads, r"at 0: its query is not a projection of 2 x 10 rows, cut into heads"),
        (
            Weights,
            r"aten\.softmax\.int at 0 \(attention weights as a result\): the host needs its result",
        ),
        (Clamped, r"aten\.clamp\.default at 0: .* it is between the two products of an attention"),
        (MergedRows, r"aten\.linear\.default at 0\.merge: its operand is not all of 2 x 10 rows on the machine"),
        (
            Padded,
            r"0\.down: it depends on aten\.pad\.default at 0, .* is not an operation of the machine",
        ),
        (Buffered, r"Sequential changes its own state"),
        (InnerGraph, r"wrap_with_set_grad_enabled at .*: it depends on aten\.sin\.default at 0, which cannot run"),
        (
            DataDependent,
            r"Sequential branches on the values of a tensor, at .*test_trace\.py:\d+, in forward: move that out",
        ),
        (NoProduct, r"nothing in this module runs on the machine: it has no matrix product"),
        (OwnWeights, r"nothing .*: aten\.linear\.default at 0: its weight or its bias is computed from the arguments"),
    ],
)
def test_refused(randomised: Randomised, kind: type[Block], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        trace(nn.Sequential(randomised(kind())).eval(), (hidden(),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TensorError, match=rf"aten\.linear\.default at query: its weight is {dtype}; .* in float32"):
        trace(Block().to(dtype).eval(), (hidden().to(dtype),))


def test_module_elsewhere_is_refused() -> None:
    with pytest.raises(TensorError, match=r"query\.weight is on the meta device, without values: create it on the CPU"):
        trace(Block().to("meta").eval(), (hidden(),))


def test_left_padding_in_the_example_is_no_reason(randomised: Randomised) -> None:
    """Whether a mask is a prefix is known at each call; the example's only has to be a mask of whole keys."""
    inputs = tokens(L, 7)
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    trace(randomised(bert()), inputs)


@pytest.mark.parametrize("inputs", [torch.zeros(1), (), {"y": 1}, None])
def test_example_inputs_that_do_not_fit(inputs: Any) -> None:
    with pytest.raises(RsnError, match="example inputs"):
        trace(Block().eval(), inputs)
