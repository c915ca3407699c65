"""Compute the layers of a network with PyTorch, one by one, as the reference that the machine is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from ..scheduler.graph import Activation, Array, AttentionLayer, Gemm, LayerGraph, Norm, Rotary

_ACTIVATIONS = {
    Activation.GELU_TANH: lambda y: F.gelu(y, approximate="tanh"),
    Activation.GELU_ERF: F.gelu,
    Activation.RELU: F.relu,
    Activation.SILU: F.silu,
}


def compute(
    network: LayerGraph,
    layer: Gemm | AttentionLayer,
    values: Mapping[str, Array],
    lengths: npt.NDArray[np.int64] | None,
) -> Array:
    """Compute one layer. values: float32 activations (batch, seq, columns) by name. lengths: valid keys of each
    sequence, int64 (batch,), for masked attention. Returns float32 (batch, seq, columns)."""
    known = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in values.items()}
    y = _gemm(layer, known) if isinstance(layer, Gemm) else _attention(network, layer, known, lengths)
    out: Array = y.numpy()
    return out


def _gemm(layer: Gemm, known: Mapping[str, torch.Tensor]) -> torch.Tensor:
    x = _normed(known[layer.x], layer.x_norm)
    if layer.is_sum:
        y = x
    else:
        y = x[..., : len(layer.weight)] @ torch.from_numpy(layer.weight) + torch.from_numpy(layer.bias).to(x.dtype)
    y = y * layer.factor
    if layer.residual is not None:
        residual = _normed(known[layer.residual], layer.residual_norm)
        y = y + (residual if layer.residual_scale is None else residual * torch.from_numpy(layer.residual_scale))
    if layer.gated:
        y, gate = y[..., layer.width :], y[..., : layer.width]
        return y * (gate if layer.activation is None else _ACTIVATIONS[layer.activation](gate))
    if layer.activation is not None:
        y = _ACTIVATIONS[layer.activation](y)
    if layer.in_heads:
        y = y.unflatten(-1, (layer.heads, -1))
    y = _normed(y, layer.norm)
    if layer.in_heads:
        y = y.flatten(-2)
    if layer.scale is not None:
        y = (y * torch.from_numpy(layer.scale)).to(y.dtype)
    if layer.shift is not None:
        y = (y + torch.from_numpy(layer.shift)).to(y.dtype)
    return y if layer.rotary is None else _rotated(y, layer.rotary, layer.heads)


def _normed(y: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    """A norm over the last axis."""
    if norm is None:
        return y
    return (F.rms_norm if norm.rms else F.layer_norm)(y, y.shape[-1:], eps=norm.eps)


def _rotated(y: torch.Tensor, rotary: Rotary, heads: int) -> torch.Tensor:
    """Each head of y, (batch, seq, columns), by the first rows of the tables."""
    seq = y.shape[1]
    own, partner = (torch.from_numpy(np.ascontiguousarray(t[:seq]))[:, None] for t in (rotary.own, rotary.partner))
    y = y.unflatten(-1, (heads, -1))
    return (y * own + y[..., list(rotary.partners)] * partner).flatten(-2)


def _attention(
    network: LayerGraph,
    layer: AttentionLayer,
    known: Mapping[str, torch.Tensor],
    lengths: npt.NDArray[np.int64] | None,
) -> torch.Tensor:
    shape = network.batch, -1, layer.heads, layer.head_dim
    q, k, v = (known[name].view(shape).transpose(1, 2) for name in (layer.q, layer.k, layer.v))
    mask, longest = None, network.seq_of(layer.k)
    keys = lengths if layer.masked and lengths is not None else np.array(network.rows_of(layer.k), np.int64)
    if (keys < longest).any() or layer.causal:
        mask = (torch.arange(longest) < torch.from_numpy(keys)[:, None])[:, None, None, :]
    if mask is not None and layer.causal:
        mask = mask & torch.ones(longest, longest, dtype=torch.bool).tril()
    if layer.bias is not None:
        bias = torch.from_numpy(layer.bias)
        mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return y.transpose(1, 2).flatten(2)
