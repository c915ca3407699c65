"""Compute the layers of a network with PyTorch, one by one, as the reference that the machine is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from ..scheduler.graph import ActivationFunction, Array, AttentionLayer, Gemm, LayerGraph, Norm, Rotary

_ACTIVATIONS = {
    ActivationFunction.GELU_TANH: lambda y: F.gelu(y, approximate="tanh"),
    ActivationFunction.GELU_ERF: F.gelu,
    ActivationFunction.RELU: F.relu,
    ActivationFunction.SILU: F.silu,
}


def compute(
    network: LayerGraph,
    layer: Gemm | AttentionLayer,
    values: Mapping[str, Array],
    lengths: npt.NDArray[np.int64] | None,
    starts: npt.NDArray[np.int64] | None = None,
) -> Array:
    """Compute one layer. network: that it is from. values: float32 activations (batch, rows, columns) by name. lengths:
    valid keys of each sequence, int64 (batch,), for masked attention; None for all. starts: rows of padding before the
    first one of each sequence, int64 (batch,), for attention with left padding. Returns float32 (batch, rows, columns).
    Raises `KeyError` for a missing activation."""
    known = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in values.items()}
    y = _gemm(layer, known) if isinstance(layer, Gemm) else _attention(network, layer, known, lengths, starts)
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
    starts: npt.NDArray[np.int64] | None,
) -> torch.Tensor:
    q, k, v = (known[name].unflatten(2, (-1, layer.head_dim)).transpose(1, 2) for name in (layer.q, layer.k, layer.v))
    if layer.groups > 1:
        k, v = (x.repeat_interleave(layer.groups, 1) for x in (k, v))
    keys = lengths if layer.masked and lengths is not None else np.array(network.rows_of(layer.k), np.int64)
    valid = valid_keys(layer, q.shape[2], k.shape[2], keys, starts)
    mask = valid
    if layer.bias is not None:
        bias = torch.from_numpy(layer.bias)
        mask = bias if valid is None else torch.where(valid, bias, -torch.inf)
    if layer.softcap is None and layer.mask is None:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return y.transpose(1, 2).flatten(2)
    scores = q @ k.transpose(2, 3)
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if layer.bias is not None:
        scores = scores + torch.from_numpy(layer.bias)
    if layer.mask is not None:
        scores = scores + known[layer.mask].unflatten(1, (layer.mask_heads, -1))
    if valid is not None:
        scores = scores.masked_fill(~valid, -torch.inf)
    y = torch.softmax(scores, 3).nan_to_num() @ v  # a row without a key is 0, as on the machine
    return y.transpose(1, 2).flatten(2)


def valid_keys(
    layer: AttentionLayer,
    rows: int,
    keys: int,
    lengths: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64] | None,
) -> torch.Tensor | None:
    """Return whether each key counts, bool, to be broadcast to (batch, heads, rows, keys); None if all do. rows, keys:
    of a sequence, padding included. lengths: the keys of each sequence up to the last valid one, (batch,). starts: the
    first valid key of each sequence, (batch,), which only layers that are padded on the left (`left`) look at; None for
    0."""
    r, c = torch.arange(rows)[:, None], torch.arange(keys)[None]
    parts = []
    if (lengths < keys).any():
        parts.append((c < torch.from_numpy(lengths)[:, None])[:, None, None, :])
    if layer.left and starts is not None:
        parts.append((c >= torch.from_numpy(starts)[:, None])[:, None, None, :])
    if layer.causal:
        parts.append((c <= r)[None, None])
    if layer.window is not None:
        parts.append((c > r - layer.window)[None, None])
        if not layer.causal:
            parts.append((c < r + layer.window)[None, None])
    out = None
    for part in parts:
        out = part if out is None else out & part
    return out
