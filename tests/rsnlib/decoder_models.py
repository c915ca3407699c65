"""Small causal language models of transformers with random weights, and their arguments with a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rsn.rsnlib.static_cache import empty_cache

VOCABULARY = 96
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
}
WORDS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
"""With a product of its own with the vocabulary, or a token would mostly be followed by itself."""


def decoder_model(name: str, **changed: Any) -> nn.Module:
    """A model: gpt2, llama, qwen2 or gemma3. changed: values of its configuration. Weights are large enough for texts
    of different tokens, and norms differ from layer to layer."""
    torch.manual_seed(1)
    made: nn.Module
    match name:
        case "gpt2":
            sizes = {"n_embd": 32, "n_head": 4, "n_inner": 48, "n_layer": 3, "n_positions": 64}
            made = GPT2LMHeadModel(GPT2Config(**{**sizes, **WORDS, **changed}))
        case "llama":
            made = LlamaForCausalLM(LlamaConfig(**{**SIZES, **WORDS, **changed}))
        case "qwen2":
            made = Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **WORDS, **changed}))
        case _:
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            own = {"head_dim": 8, "sliding_window": 8, "layer_types": kinds}
            made = Gemma3ForCausalLM(Gemma3TextConfig(**{**SIZES, **WORDS, **own, **changed}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    return made.eval()


def with_cache(model: Any, tokens: torch.Tensor, position: int, capacity: int) -> dict[str, Any]:
    """Arguments for tokens (1, rows) from a position on, with a cache of random rows."""
    cache = empty_cache(model.config, 1, capacity, capacity)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
        layer.cumulative_length.fill_(position)
    return {"input_ids": tokens, "past_key_values": cache, "logits_to_keep": torch.tensor([tokens.shape[1] - 1])}
