"""Decompositions of PyTorch's fast path of transformer layers into operators that have lowering rules.

In eval mode, without gradients and with an even number of heads, nn.TransformerEncoderLayer and nn.MultiheadAttention
call one fused operator, which torch.compile captures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PADDING = 1
"""The mask_type of a padding mask, which is the same for all rows of a sequence."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    columns: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute torch._native_multi_head_attention."""
    given: dict[str, Any] = {}
    if mask is not None:  # True or -inf hides a key
        hidden = mask.bool()
        if mask_type == PADDING:
            given["key_padding_mask"] = hidden
        else:
            given["attn_mask"] = hidden.flatten(0, 1) if hidden.ndim == 4 else hidden
    x = query.transpose(0, 1)
    k, v = (x if y is query else y.transpose(0, 1) for y in (key, value))
    result, weights = functional.multi_head_attention_forward(
        x, k, v, columns, heads, qkv_weight, qkv_bias, None, None, False, 0.0, weight, bias,
        training=False, need_weights=need_weights, average_attn_weights=average_attn_weights, **given,
    )  # fmt: skip
    return result.transpose(0, 1), weights


def _encoder_layer(
    x: Tensor,
    columns: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Compute torch._transformer_encoder_layer_fwd."""

    def attention(x: Tensor) -> Tensor:
        given = (columns, heads, qkv_weight, qkv_bias, weight, bias, mask)
        return _attention(x, x, x, *given, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(
            functional.gelu(inner) if use_gelu else functional.relu(inner), ffn_weight_2, ffn_bias_2
        )

    def first(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (columns,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (columns,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attention(first(x))
        return x + feed_forward(second(x))
    x = first(x + attention(x))
    return second(x + feed_forward(x))


FUSED: dict[Any, Callable[..., Any]] = {
    torch._transformer_encoder_layer_fwd: _encoder_layer,
    torch._native_multi_head_attention: _attention,
}
"""By operator of the fast path, a function that computes the same."""
