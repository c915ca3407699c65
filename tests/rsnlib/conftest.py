"""The meaning of a Network in a few lines of numpy, and what runs a traced module on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rsn.rsnlib.key_spans import KeySpans
from rsn.rsnlib.partition import Traced
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Rotary

Lengths = KeySpans | None

ACTIVATIONS: dict[ActivationFunction, Callable[[Any], Any]] = {
    ActivationFunction.RELU: lambda x: np.maximum(x, 0),
    ActivationFunction.SILU: lambda x: x / (1 + np.exp(-x)),
    ActivationFunction.GELU_ERF: lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    ActivationFunction.GELU_TANH: lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def interpret(network: LayerGraph, inputs: dict[str, Any], lengths: Lengths) -> dict[str, Any]:
    """The outputs of a folded network, float32 (batch, seq, columns); float64 inside, to see only the fold's errors."""
    batch, seq = network.batch, network.seq
    values = {name: inputs[name].reshape(-1, width).astype(np.float64) for name, width in network.inputs.items()}
    for layer in network.layers:
        assert layer.y not in values
        values[layer.y] = (
            _gemm(layer, values, seq) if isinstance(layer, Gemm) else _attention(layer, network, values, lengths)
        )
    outputs = {}
    for output in network.outputs:
        y = values[output.name]
        y = y if output.scale is None else y * output.scale
        y = y if output.shift is None else y + output.shift
        outputs[output.name] = y.astype(np.float32).reshape(batch, -1, y.shape[-1])
    return outputs


def _gemm(layer: Gemm, values: dict[str, Any], seq: int) -> Any:
    for array in (layer.weight, layer.bias, layer.residual_scale):
        assert array is None or array.dtype == np.float32
    assert layer.weight.flags.c_contiguous
    assert layer.bias.shape == (layer.weight.shape[1],)
    assert (layer.residual is None) == (layer.residual_scale is None)
    assert layer.activation is None or layer.norm is None
    assert layer.is_folded
    x = _normed(values[layer.x], layer.x_norm)
    y = x if layer.is_sum else x[:, : len(layer.weight)] @ layer.weight + layer.bias
    if layer.residual is not None:
        y = y + _normed(values[layer.residual], layer.residual_norm) * layer.residual_scale
    gate, y = (y[:, : layer.width], y[:, layer.width :]) if layer.gated else (1.0, y)
    if layer.activation is not None:
        function = ACTIVATIONS[layer.activation]
        gate, y = (function(gate), y) if layer.gated else (gate, function(y))
    y = gate * y
    cut = y.reshape(len(y), layer.heads or 1, -1)
    cut = _normed(cut, layer.norm)
    if layer.rotary is not None:
        own, partner = (np.resize(table, (len(y), 1, table.shape[-1])) for table in _tables(layer.rotary, seq))
        cut = cut * own + cut[..., list(layer.rotary.partners)] * partner
    return cut.reshape(y.shape)


def _tables(rotary: Rotary, seq: int) -> list[Any]:
    return [table[:seq, None].astype(np.float64) for table in (rotary.own, rotary.partner)]


def _normed(y: Any, norm: Norm | None) -> Any:
    if norm is not None and norm.rms:
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + norm.eps)
    if norm is not None:
        return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + norm.eps)
    return y


def _attention(layer: AttentionLayer, network: LayerGraph, values: dict[str, Any], lengths: Lengths) -> Any:
    shape = (network.batch, -1, layer.heads, layer.head_dim)
    shared = (network.batch, -1, layer.kv_heads or layer.heads, layer.head_dim)
    q = values[layer.q].reshape(shape).transpose(0, 2, 1, 3)
    k, v = (values[x].reshape(shared).transpose(0, 2, 1, 3).repeat(layer.groups, axis=1) for x in (layer.k, layer.v))
    scores = q @ k.swapaxes(2, 3)
    if layer.softcap is not None:
        scores = layer.softcap * np.tanh(scores / layer.softcap)
    scores = scores + (0 if layer.bias is None else layer.bias)
    row, key = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
    hidden = np.zeros((1, 1, len(row), len(key)), bool)
    if layer.mask is not None:
        scores = scores + values[layer.mask].reshape(network.batch, layer.mask_heads, len(row), len(key))
    if layer.masked:
        assert lengths is not None
        hidden = hidden | (key >= lengths.lengths[:, None])[:, None, None]
    if layer.left:
        assert lengths is not None
        assert lengths.starts is not None
        hidden = hidden | (key < lengths.starts[:, None])[:, None, None]
    if layer.causal:
        hidden = hidden | (key > row)
    if layer.window is not None:
        hidden = hidden | (abs(key - row) >= layer.window)
    scores[np.broadcast_to(hidden, scores.shape)] = -np.inf
    p = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e300))
    y = (p / np.maximum(p.sum(-1, keepdims=True), 1e-300)) @ v  # a row that sees no key is 0
    return y.transpose(0, 2, 1, 3).reshape(-1, layer.width)


@pytest.fixture
def call() -> Callable[..., Any]:
    """call(traced, *args, **kwargs) is what the compiled module returns."""

    def call(traced: Traced, *args: Any, **kwargs: Any) -> Any:
        inputs, spans, state = traced.host.prologue(*args, **kwargs)
        for name, width in traced.network.inputs.items():
            assert inputs[name].shape == (traced.network.batch, traced.network.seq_of(name), width)
            assert inputs[name].dtype == np.float32
        return traced.host.epilogue(interpret(traced.network, inputs, spans), state)

    return call


@pytest.fixture
def randomised() -> Callable[..., Any]:
    """randomised(module): every parameter non-trivial, above all biases and LayerNorm's scale and shift."""

    def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                is_scale = "norm" in name.lower() and name.endswith("weight")
                parameter.normal_(1.0 if is_scale else 0.0, 0.2, generator=random)
        return module.eval()

    return randomise


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)
