"""Small models, and the ways in which torchao quantises them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.quant_primitives import MappingType

from rsn import StreamQuantizer
from rsn import nn as rnn

ASYMMETRIC = MappingType.ASYMMETRIC


def _rows_and_groups(size: int, **more: Any) -> Any:
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(size), **more)


OF_INTEGERS: dict[str, Callable[[], Any]] = {
    "int8 rows, int8 weights": Int8DynamicActivationInt8WeightConfig,
    "with zero points": lambda: Int8DynamicActivationInt8WeightConfig(act_mapping_type=ASYMMETRIC),
    "one scale a tensor": lambda: Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()),
    "int8 weights by channel": lambda: Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int8, weight_granularity=PerAxis(0)
    ),
    "int4 in groups of 32": lambda: _rows_and_groups(32),
    "int4 in groups of 64": lambda: _rows_and_groups(64),
    "int4 in groups of 128": lambda: _rows_and_groups(128),
    "int4 with zero points": lambda: _rows_and_groups(32, weight_mapping_type=ASYMMETRIC),
}
"""Ways in which products become products of integers."""
OF_WEIGHTS: dict[str, Callable[[], Any]] = {
    "only int8 weights": Int8WeightOnlyConfig,
    "only int8 weights in groups": lambda: Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "only int4 weights": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
}
CONFIGS = OF_INTEGERS | OF_WEIGHTS


class TiedDecoder(nn.Module):
    """A decoder as GPT-2 is one: positions that are learned, norms before, and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(96, 128), nn.Embedding(16, 128)
        self.blocks = rnn.Encoder(layers=1, hidden=128, heads=2, inner=256, norm="pre", causal=True)
        self.head = nn.Linear(128, 96, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        made: torch.Tensor = self.head(self.blocks(x))
        return made


class Decoder(nn.Module):
    """The logits of a Llama of one layer."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 64}
        config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids, use_cache=False).logits
        return logits


def _linear(bias: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256, bias=bias), nn.GELU(), nn.Linear(256, 128, bias=bias))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "rows": (lambda: _linear(True), lambda: (torch.randn(5, 128),)),
    "without a bias": (lambda: _linear(False), lambda: (3 * torch.randn(2, 3, 128) + 0.5,)),
    "four dimensions": (lambda: _linear(True), lambda: (torch.randn(2, 1, 3, 128),)),
    "encoder": (lambda: rnn.Encoder(layers=1, hidden=128, heads=2, inner=256), lambda: (torch.randn(2, 16, 128),)),
    "decoder": (Decoder, lambda: (torch.randint(0, 64, (2, 9)),)),
    "tied head": (TiedDecoder, lambda: (torch.randint(0, 96, (2, 9)),)),
}
"""Models, each with arguments."""


def quantised(model: str, config: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A quantised model and its arguments."""
    torch.manual_seed(0)
    make, given = MODELS[model]
    made = make().eval()
    arguments = given()
    quantize_(made, CONFIGS[config]())
    return made, arguments


class Scores(nn.Module):
    """Products of activations, as an attention computes them without its softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(64, 32), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(self.query(x), self.key(x).transpose(1, 2))


def calibrated(model: nn.Module, given: tuple[torch.Tensor, ...]) -> nn.Module:
    """A model with static scales, from random numbers of the shape of its arguments."""
    prepared = prepare_pt2e(torch.export.export(model, given).module(), StreamQuantizer())
    with torch.no_grad():
        for _ in range(4):
            prepared(*(torch.randn_like(x) for x in given))
    made: nn.Module = convert_pt2e(prepared)
    return made
