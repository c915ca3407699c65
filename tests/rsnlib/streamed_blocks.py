"""Blocks of transformers with random weights, at a size that is stated: what tests stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer, Gemma3RotaryEmbedding
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

ROTATED: dict[str, tuple[Any, Any, Any]] = {
    "llama": (LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding),
    "qwen2": (Qwen2Config, Qwen2DecoderLayer, Qwen2RotaryEmbedding),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer, Qwen3RotaryEmbedding),
    "gemma3": (Gemma3TextConfig, Gemma3DecoderLayer, Gemma3RotaryEmbedding),
}


class Rotated(nn.Module):
    """A decoder layer with the rotary positions 0, 1, 2 ..."""

    def __init__(self, name: str, attention: str, sizes: dict[str, int]) -> None:
        super().__init__()
        config_class, layer, rotary = ROTATED[name]
        config = config_class(num_hidden_layers=1, **sizes)
        config._attn_implementation = attention
        self.layer = layer(config, 0)
        self.rotary = rotary(config)
        self.kinds = (config.layer_types[0],) if name == "gemma3" else ()

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, first: int = 0, past_key_values: Any = None
    ) -> torch.Tensor:
        positions = torch.arange(first, first + x.shape[1])[None]
        tables = self.rotary(x, positions, *self.kinds)
        out = self.layer(x, position_embeddings=tables, attention_mask=mask, past_key_values=past_key_values)
        return out if isinstance(out, torch.Tensor) else out[0]


class Cached(nn.Module):
    """A decoder layer with its cache of keys and values as tensors: (x) or (x, keys, values) to (y, keys, values)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cache = DynamicCache([past]) if past else DynamicCache()
        place = {"first": past[0].shape[2]} if past and isinstance(self.layer, Rotated) else {}
        y = self.layer(x, past_key_values=cache, **place)
        return y if isinstance(y, torch.Tensor) else y[0], cache.layers[0].keys, cache.layers[0].values


def block(name: str, attention: str = "sdpa", **sizes: int) -> nn.Module:
    """A decoder layer. sizes: hidden_size, intermediate_size, num_attention_heads, num_key_value_heads, head_dim."""
    if name == "gpt2":
        config = GPT2Config(
            n_embd=sizes["hidden_size"], n_head=sizes["num_attention_heads"], n_inner=sizes["intermediate_size"]
        )
        config._attn_implementation = attention
        made: nn.Module = GPT2Block(config, layer_idx=0)
    else:
        made = Rotated(name, attention, sizes)
    with torch.no_grad():
        for parameter in made.parameters():  # norms begin with the same weight everywhere, biases with 0
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made.eval()
