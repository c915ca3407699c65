"""Families of transformers on an overlay of row lanes (xnn2): encoders, decoders, masks, changed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2Model,
    Gemma3TextConfig,
    Gemma3TextModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    Qwen3Config,
    Qwen3Model,
    ViTConfig,
    ViTModel,
)

import rsn
from rsn.isa.lanes import Weight
from rsn.rsnlib.pipeline import Pipeline
from rsn.tests.effort import full, long

SMALL = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512, "num_hidden_layers": 2}
TEXT = {"vocab_size": 100, "use_cache": False}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: BertModel(BertConfig(**SMALL, vocab_size=100)),
    "vit": lambda: ViTModel(ViTConfig(**{**SMALL, "hidden_size": 192, "num_attention_heads": 3}, image_size=96)),
    "gpt2": lambda: GPT2Model(GPT2Config(n_embd=256, n_head=4, n_layer=2, bos_token_id=1, eos_token_id=1, **TEXT)),
    "llama": lambda: LlamaModel(LlamaConfig(**SMALL, num_key_value_heads=2, **TEXT)),
    "llama, heads of 128": lambda: LlamaModel(
        LlamaConfig(**{**SMALL, "num_attention_heads": 2}, num_key_value_heads=1, **TEXT)
    ),
    "llama, heads of 32": lambda: LlamaModel(
        LlamaConfig(**{**SMALL, "num_attention_heads": 8}, num_key_value_heads=2, **TEXT)
    ),
    "qwen3": lambda: Qwen3Model(Qwen3Config(**SMALL, num_key_value_heads=1, head_dim=64, **TEXT)),
    "gemma2, soft cap": lambda: Gemma2Model(
        Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=64, attn_logit_softcapping=5.0, **TEXT)
    ),
    "gemma3, window": lambda: Gemma3TextModel(
        Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=64, sliding_window=64, **TEXT)
    ),
}
QUICK = {"qwen3"}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for path, parameter in model.named_parameters():
        if "norm" in path.lower() or "bias" in path:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def inputs(name: str, batch: int, seq: int) -> dict[str, Any]:
    if name == "vit":
        return {"pixel_values": torch.randn(batch, 3, 96, 96)}
    return {"input_ids": torch.randint(0, 100, (batch, seq))}


def deviation(got: Any, want: Any) -> float:
    return float((got - want).abs().max() / want.abs().max())


SHAPES = [(1, 100), (4, 200), (2, 260), (3, 512)]
"""Batches and lengths. Keys and values of the second go through DDR."""


def marked(number: int, name: str, shape: tuple[int, int]) -> Any:
    """Each family in one shape in the long tests, one of them in two in a quick run, and all in those of all cases."""
    if name in QUICK and shape in SHAPES[:2]:
        return name, *shape
    return (long if shape == SHAPES[number % 3] else full)(name, *shape)


@pytest.mark.parametrize(
    ("name", "batch", "seq"), [marked(number, name, shape) for number, name in enumerate(MODELS) for shape in SHAPES]
)
def test_family(name: str, batch: int, seq: int) -> None:
    model, example = made(name), inputs(name, batch, seq)
    compiled = rsn.compile(model, example, overlay="xnn2")
    with torch.no_grad():
        want, got = model(**example), compiled(**example)
    assert deviation(got.last_hidden_state, want.last_hidden_state) < 1e-5


@pytest.mark.parametrize(("batch", "rows"), [(1, [3, 12, 48]), (2, [9, 18, 36])])
def test_tables_come_before_weights_once_for_all_lanes_of_the_same_rows(batch: int, rows: list[int]) -> None:
    """rows: the lanes, as bits, that get the table of each row tile; those of a pair have the same rows in P3, those of
    two sequences in R6."""
    pipeline = Pipeline.named("xnn2")
    network = pipeline.trace(made("llama"), inputs("llama", batch, 300)).network
    loads = pipeline.build(network).kernels.sequences["LPDDR"]
    assert [mop.lanes for mop in loads if mop.to == Weight.TABLE] == rows
    assert all(mop.to == Weight.TABLE for mop in loads[: len(rows)])


@pytest.mark.parametrize(("batch", "heads"), [(6, 32), long(2, 71)])
def test_many_queries_share_a_head_of_keys(batch: int, heads: int) -> None:
    """More reads of one memory of keys than a stream of tokens holds, while the other memory waits."""
    sizes = {"hidden_size": 2 * heads, "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": 64}
    model = LlamaModel(LlamaConfig(**sizes, intermediate_size=64, num_hidden_layers=1, vocab_size=100, use_cache=False))
    model, example = model.eval(), inputs("llama", batch, 128)
    compiled = rsn.compile(model, example, overlay="xnn2")
    with torch.no_grad():
        want, got = model(**example), compiled(**example)
    assert deviation(got.last_hidden_state, want.last_hidden_state) < 1e-5


@pytest.mark.parametrize("side", ["right", pytest.param("left", marks=pytest.mark.long)])
def test_padded_sequences(side: str) -> None:
    """Each sequence has the result that it has alone."""
    model = made("bert")
    lengths = [130, 40, 1]
    mask = torch.zeros(3, 130, dtype=torch.int64)
    for row, n in zip(mask, lengths, strict=True):
        row[slice(n) if side == "right" else slice(130 - n, None)] = 1
    example = {**inputs("bert", 3, 130), "attention_mask": mask}
    compiled = rsn.compile(model, example, overlay="xnn2")
    for _ in range(2):
        with torch.no_grad():
            want, got = model(**example).last_hidden_state, compiled(**example).last_hidden_state
        valid = example["attention_mask"].bool()
        assert deviation(got[valid], want[valid]) < 1e-5
        if side == "left":
            break
        example["attention_mask"] = torch.ones_like(mask)  # other lengths in the same program


def test_changed_weights_are_noticed() -> None:
    model, example = made("bert"), inputs("bert", 1, 128)
    compiled = rsn.compile(model, example, overlay="xnn2")
    with torch.no_grad():
        before = compiled(**example).last_hidden_state
        model.encoder.layer[1].output.dense.weight.mul_(1.5)
        model.encoder.layer[0].attention.self.key.bias.add_(0.5)
        want, got = model(**example).last_hidden_state, compiled(**example).last_hidden_state
    assert deviation(before, want) > 1e-3
    assert deviation(got, want) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gemma3, window"])
def test_norms_of_inputs_run_on_the_machine(name: str) -> None:
    """A pre-norm model has one input: X normalises what it has loaded. BERT's first norm stays on the host, because a
    residual takes its result as well."""
    pipeline = Pipeline.named("xnn2")
    traced = pipeline.trace(made(name), inputs(name, 1, 100))
    assert len(traced.network.inputs) == 1
    on_host = [p.op for p in traced.placements if p.where == "host" and "norm" in p.op]
    assert bool(on_host) == (name == "bert")


class Both(nn.Module):
    """A norm that a product takes, and the host."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        return self.linear(y), y.cumsum(-1)


def test_a_norm_that_the_host_takes_too_stays_there() -> None:
    model, x = Both().eval(), torch.randn(2, 50, 128)
    compiled = rsn.compile(model, (x,), overlay="xnn2")
    with torch.no_grad():
        for got, want in zip(compiled(x), model(x), strict=True):
            assert deviation(got, want) < 1e-5


@pytest.mark.parametrize("width", [128, 200])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_a_norm_before_a_product(norm: Callable[[int], nn.Module], width: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(norm(width), nn.Linear(width, 150)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = 3 + 2 * torch.randn(300, width)
    compiled = rsn.compile(model, (x,), overlay="xnn2")
    with torch.no_grad():
        assert deviation(compiled(x), model(x)) < 1e-5
