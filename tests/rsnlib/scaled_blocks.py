"""Blocks of StreamTensor's four models (MICRO'25, table 7), with sizes divided by 16, of Llama by 32; fewer heads."""

from __future__ import annotations

SCALED: dict[str, dict[str, int]] = {
    "gpt2": {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4},
    "llama": {"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 8, "num_key_value_heads": 1},
    "qwen2": {"hidden_size": 56, "intermediate_size": 304, "num_attention_heads": 7, "num_key_value_heads": 1},
    "gemma3": {
        "hidden_size": 72, "intermediate_size": 432, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16
    },
}  # fmt: skip
