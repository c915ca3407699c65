"""The meaning of a Network in a few lines of numpy, and what runs a traced module on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from rsn.rsnlib.partition import Traced
from rsn.scheduler.graph import Activation, AttentionLayer, Gemm, LayerGraph

Lengths = npt.NDArray[np.int64] | None

ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.GELU_ERF: lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    Activation.GELU_TANH: lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def interpret(network: LayerGraph, inputs: dict[str, Any], lengths: Lengths) -> dict[str, Any]:
    """The outputs of a folded network, float32 (batch, seq, columns); float64 inside, to see only the fold's errors."""
    batch, seq = network.batch, network.seq
    values = {
        name: inputs[name].reshape(batch * seq, width).astype(np.float64) for name, width in network.inputs.items()
    }
    for layer in network.layers:
        assert layer.y not in values
        values[layer.y] = (
            _gemm(layer, values) if isinstance(layer, Gemm) else _attention(layer, network, values, lengths)
        )
    outputs = {}
    for output in network.outputs:
        y = values[output.name]
        y = y if output.scale is None else y * output.scale
        y = y if output.shift is None else y + output.shift
        outputs[output.name] = y.astype(np.float32).reshape(batch, seq, -1)
    return outputs


def _gemm(layer: Gemm, values: dict[str, Any]) -> Any:
    for array in (layer.weight, layer.bias, layer.residual_scale):
        assert array is None or array.dtype == np.float32
    assert layer.weight.flags.c_contiguous
    assert layer.bias.shape == (layer.weight.shape[1],)
    assert (layer.residual is None) == (layer.residual_scale is None)
    assert layer.activation is None or layer.norm is None
    y = values[layer.x][:, : len(layer.weight)] @ layer.weight + layer.bias
    if layer.residual is not None:
        y = y + values[layer.residual] * layer.residual_scale
    if layer.activation is not None:
        y = ACTIVATIONS[layer.activation](y)
    if layer.norm is not None and layer.norm.rms:
        return y / np.sqrt((y**2).mean(-1, keepdims=True) + layer.norm.eps)
    if layer.norm is not None:
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + layer.norm.eps)
    return y


def _attention(layer: AttentionLayer, network: LayerGraph, values: dict[str, Any], lengths: Lengths) -> Any:
    shape = (network.batch, network.seq, layer.heads, layer.head_dim)
    q, k, v = (values[name].reshape(shape).transpose(0, 2, 1, 3) for name in (layer.q, layer.k, layer.v))
    scores = q @ k.swapaxes(2, 3) + (0 if layer.bias is None else layer.bias)
    if layer.masked:
        assert lengths is not None
        scores[np.broadcast_to((np.arange(network.seq) >= lengths[:, None])[:, None, None], scores.shape)] = -np.inf
    if layer.causal:
        scores[np.broadcast_to(np.triu(np.ones((network.seq,) * 2, bool), 1), scores.shape)] = -np.inf
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v
    return y.transpose(0, 2, 1, 3).reshape(network.batch * network.seq, -1)


@pytest.fixture
def call() -> Callable[..., Any]:
    """call(traced, *args, **kwargs) is what the compiled module returns."""

    def call(traced: Traced, *args: Any, **kwargs: Any) -> Any:
        inputs, lengths, state = traced.host.prologue(*args, **kwargs)
        for name, width in traced.network.inputs.items():
            assert inputs[name].shape == (traced.network.batch, traced.network.seq, width)
            assert inputs[name].dtype == np.float32
        return traced.host.epilogue(interpret(traced.network, inputs, lengths), state)

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
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
