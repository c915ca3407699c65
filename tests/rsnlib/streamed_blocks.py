"""Blocks of transformers with random weights, at a size that is stated: what tests stream."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.cache_utils import Cache, StaticLayer
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
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        first: int | torch.Tensor = 0,
        past_key_values: Any = None,
    ) -> torch.Tensor:
        positions = (torch.arange(x.shape[1]) + first)[None]
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


class Fixed(nn.Module):
    """Decoder layers with caches of fixed capacity as tensors: (x, position, keys, values) to (y, keys, values), with
    lists of caches. before, after: of the layers."""

    def __init__(
        self, layers: list[nn.Module], before: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.before, self.after = before or nn.Identity(), after or nn.Identity()

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        capacity = keys[0].shape[2]
        places = position + torch.arange(x.shape[1])
        mask = (torch.arange(capacity) <= places[:, None])[None, None]
        y = self.before(x)
        made = []
        for layer, own_keys, own_values in zip(self.layers, keys, values, strict=True):
            static = StaticLayer(capacity)
            static.keys, static.values, static.is_initialized = own_keys.clone(), own_values.clone(), True
            static.device, static.cumulative_length = x.device, position.clone()
            made.append(static)
            arguments = {"mask": mask, "first": position} if isinstance(layer, Rotated) else {"attention_mask": mask}
            y = layer(y, past_key_values=Cache(layers=[static]), **arguments)
            y = y if isinstance(y, torch.Tensor) else y[0]
        return self.after(y), [static.keys for static in made], [static.values for static in made]


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


class Attention(nn.Module):
    """Attention with groups of queries. options: causal; normed: heads are normed; packed: one projection; split: own
    spelling with matmul and softmax."""

    def __init__(self, width: int, heads: int, groups: int, columns: int, options: frozenset[str]) -> None:
        super().__init__()
        self.heads, self.groups, self.columns, self.options = heads, groups, columns, options
        self.project = nn.Linear(width, (heads + 2 * (heads // groups)) * columns)
        self.norm = nn.RMSNorm(columns)
        self.out = nn.Linear(heads * columns, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, keys = x.shape[1], self.heads // self.groups
        sizes = [self.heads * self.columns, keys * self.columns, keys * self.columns]
        q, k, v = (
            part.view(len(x), rows, -1, self.columns).transpose(1, 2) for part in self.project(x).split(sizes, dim=-1)
        )
        if "normed" in self.options:
            q, k = self.norm(q), self.norm(k)
        causal = "causal" in self.options
        if "split" in self.options:
            k, v = (part.repeat_interleave(self.groups, dim=1) for part in (k, v))
            scores = q @ k.transpose(2, 3) * self.columns**-0.5
            if causal:
                scores = scores + torch.full((rows, rows), -torch.inf).triu(1)
            y = torch.softmax(scores, -1) @ v
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(len(x), rows, -1))


class Gated(nn.Module):
    """A gated perceptron; `packed`: with one projection for both halves."""

    def __init__(self, width: int, inner: int, activation: nn.Module, packed: bool) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * inner, bias=packed)
        self.down = nn.Linear(inner, width)
        self.activation, self.packed = activation, packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up if self.packed else up * self.activation(gate) + 0.5 * up)


ACTIVATIONS = (nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ReLU(), nn.Tanh(), nn.Sigmoid())


class Drawn(nn.Module):
    """A drawn block: attention and perceptrons behind norms, each beside a residual."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.rows = random.choice((1, 4, 6, 8, 9))
        heads, columns = random.choice((1, 2, 4)), random.choice((4, 6, 8))
        self.width = random.choice((8, 12, 20))
        self.parts = nn.ModuleList()
        for _ in range(random.randint(1, 3)):
            norm = random.choice((nn.LayerNorm(self.width), nn.RMSNorm(self.width, eps=1e-6), nn.Identity()))
            inner, activation = random.choice((8, 18, 24)), random.choice(ACTIVATIONS)
            options = frozenset(x for x in ("causal", "normed", "split") if random.random() < 0.5)
            part = random.choice(
                (
                    Attention(
                        self.width, heads, random.choice([n for n in (1, 2, 4) if heads % n == 0]), columns, options
                    ),
                    Gated(self.width, inner, activation, random.random() < 0.5),
                    nn.Sequential(nn.Linear(self.width, inner), activation, nn.Linear(inner, self.width)),
                )
            )
            self.parts.append(nn.Sequential(norm, part))
        self.last = random.choice((nn.Identity(), nn.Softmax(-1), nn.LayerNorm(self.width), nn.Linear(self.width, 10)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + part(x)
        return self.last(x)
