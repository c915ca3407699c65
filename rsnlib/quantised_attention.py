"""Attention whose queries, keys, weights and values are int8, each row with a scale of its own, in PyTorch alone.

Queries and keys have a scale for each row of a head, and so have values. The scales of values belong to keys, over
which the second product sums, so they are multiplied into the weights of the softmax; the weights then get a scale for
each row. Weights are not negative, so with a zero point they use all 256 integers.

    AttentionInterface.register("quantised", rsn.quantised_attention)
    AttentionMaskInterface.register("quantised", eager_mask)
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="quantised")
"""

from __future__ import annotations

from ..base.errors import TensorError, UnsupportedError, require, require_torch

require_torch("rsn.quantised_attention")
require("torchao", "rsn.quantised_attention", "pip install 'torchao>=0.18,<0.19'")

from typing import NamedTuple  # noqa: E402 - what is missing is said first

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torchao.quantization.quant_primitives import (  # noqa: E402
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

SYMMETRIC = -127, 127
"""Integers of queries, keys and values: the largest number of a row is one of them, and is not cut off."""
WEIGHTS = -128, 127
LEAST = torch.finfo(torch.float32).tiny


class QuantisedRows(NamedTuple):
    """Rows as integers. integers: int8 (..., columns). scale: of each row, float32 (..., 1)."""

    integers: Tensor
    scale: Tensor


def _block(x: Tensor) -> tuple[int, ...]:
    """The block of a row, as torchao takes it."""
    return (*(1,) * (x.ndim - 1), x.shape[-1])


def _scales(x: Tensor, mapping: MappingType, limits: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The scale and the zero point of each row, (..., 1)."""
    if x.shape[-1] == 1:  # torchao finds one scale for all rows of a single number
        x = x.expand(*x.shape[:-1], 2)
    scale, zero = choose_qparams_affine(x, mapping, _block(x), torch.int8, *limits, LEAST, keepdim=True)
    return scale, zero


def quantised_rows(x: Tensor) -> QuantisedRows:
    """Return rows, float32 (..., columns), as int8 with a scale for each row."""
    scale, zero = _scales(x, MappingType.SYMMETRIC, SYMMETRIC)
    return QuantisedRows(quantize_affine(x, _block(x), scale, zero, torch.int8, *SYMMETRIC), scale)


def dequantised(x: QuantisedRows) -> Tensor:
    """Return the numbers that quantised rows stand for, integers * scale: float32 (..., columns)."""
    return dequantize_affine(x.integers, _block(x.integers), x.scale, None, torch.int8, *SYMMETRIC)


def carrying(integers: Tensor, scale: Tensor) -> Tensor:
    """Return the numbers that quantised rows stand for, float32 (..., columns). The tensor also has the rows as its
    attribute `quantised_rows`, which `quantised_attention` reads. integers: int8 (..., columns). scale: of each row,
    float32 (..., 1)."""
    rows = QuantisedRows(integers, scale)
    made = dequantised(rows)
    made.quantised_rows = rows  # type: ignore[attr-defined, unused-ignore]
    return made


def attend_quantised(
    queries: Tensor, keys: QuantisedRows, values: QuantisedRows, *, scaling: float, mask: Tensor | None
) -> Tensor:
    """Return softmax(queries @ keys^T * scaling + mask) @ values in each head, (..., heads, rows, columns).

    queries: float32 (..., heads, rows, columns). keys, values: (..., heads, keys, columns), with as many heads. mask:
    float32, to be added, or Booleans of what is seen, which broadcasts to (..., heads, rows, keys); None for none.
    """
    scores = dequantised(quantised_rows(queries)) @ dequantised(keys).transpose(-1, -2) * scaling
    if mask is not None:
        scores = scores + (torch.where(mask, 0.0, -torch.inf) if mask.dtype == torch.bool else mask)
    weights = torch.softmax(scores, -1) * values.scale.transpose(-1, -2)
    scale, zero = _scales(weights, MappingType.ASYMMETRIC, WEIGHTS)
    integers = quantize_affine(weights, _block(weights), scale, zero, torch.int8, *WEIGHTS)
    weights = dequantize_affine(integers, _block(weights), scale, zero, torch.int8, *WEIGHTS)
    return weights @ values.integers.to(torch.float32)


def quantised_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Return (batch, rows, heads, columns), and None for the weights: an attention implementation of transformers.

    module: the attention, which may state `is_causal`. query: float32 (batch, heads, rows, columns). key, value:
    (batch, heads of keys, keys, columns). attention_mask: as for `attend_quantised`; None hides the later keys if the
    attention is causal. scaling: None for columns^-0.5. Raises `UnsupportedError` for dropout and for a soft cap of the
    scores, and `TensorError` for another type than float32.
    """
    if dropout and module.training:
        raise UnsupportedError("quantised attention has no dropout: put the model into eval mode")
    if kwargs.get("softcap") is not None:
        raise UnsupportedError("quantised attention has no soft cap of its scores")
    types = {x.dtype for x in (query, key, value)}
    if types != {torch.float32}:
        raise TensorError(f"quantised attention takes float32, not {', '.join(sorted(map(str, types)))}")
    rows, keys = query.shape[-2], key.shape[-2]
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", False))
    if attention_mask is None and is_causal and rows > 1:
        attention_mask = torch.full((rows, keys), -torch.inf, device=query.device).triu(keys - rows + 1)
    k, v = (getattr(x, "quantised_rows", None) or quantised_rows(x) for x in (key, value))
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        k, v = (QuantisedRows(*(part.repeat_interleave(groups, 1) for part in rows)) for rows in (k, v))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend_quantised(query, k, v, scaling=scaling, mask=attention_mask).transpose(1, 2).contiguous(), None
