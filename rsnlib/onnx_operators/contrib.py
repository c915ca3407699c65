"""What onnxruntime's transformer optimizer makes, but for attentions, by the definitions of its contrib operators
(onnxruntime/docs/ContribOperators.md)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from .layers import conv, gemm, layer_norm, rms_norm, statistics
from .shapes import gather
from .table import MICROSOFT, Tensor, axis_of, need, operator


@operator("Gelu", domain=MICROSOFT)
def ms_gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@operator("BiasGelu", domain=MICROSOFT)
def bias_gelu(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a + b)


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@operator("BiasAdd", domain=MICROSOFT)
def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    return x + bias + skip


def activated(x: Tensor, activation: str, parameters: list[float]) -> Tensor:
    """A function by onnxruntime's name."""
    made = {
        "Relu": lambda: F.relu(x),
        "Tanh": lambda: torch.tanh(x),
        "Sigmoid": lambda: torch.sigmoid(x),
        "LeakyRelu": lambda: F.leaky_relu(x, parameters[0]),
        "HardSigmoid": lambda: (parameters[0] * x + parameters[1]).clamp(0, 1),
        "Clip": lambda: x.clamp(parameters[0], parameters[1]),
    }.get(activation)
    need(made is not None, f"activation {activation}")
    assert made is not None
    return made()


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str,
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    made = gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(made, activation, [activation_alpha, activation_beta])


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    made = conv(
        x,
        w,
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    made = made if z is None else made + z
    return activated(made, activation, activation_params or []) if activation else made


@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, wanted: int = 1
) -> Any:
    """Computed in the type of x, whatever `stash_type` says."""
    axes = x.ndim - axis_of(axis, x.ndim)
    made = rms_norm(x, axes, scale, epsilon)
    if wanted == 1:
        return made
    return made, (x.square().mean(list(range(x.ndim - axes, x.ndim)), keepdim=True) + epsilon).rsqrt()


@operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    wanted: int = 1,
) -> Any:
    x = (input if bias is None else input + bias) + skip
    made = layer_norm(x, 1, gamma, beta, epsilon)
    return made if wanted == 1 else (made, *statistics(x, 1, epsilon), x)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    input: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-5, wanted: int = 1
) -> Any:
    x = (input if bias is None else input + bias) + skip
    made = rms_norm(x, 1, gamma, epsilon)
    return made if wanted == 1 else (made, *statistics(x, 1, epsilon), x)


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
    wanted: int = 1,
) -> Any:
    """`mask_index` counts the rows that the mask shows."""
    need(mask_index_type in (0, 1), f"mask_index_type {mask_index_type}")
    rows = input_ids.shape[1]
    x = gather(word_embedding, input_ids)
    at = torch.arange(rows)[None] if position_ids is None else position_ids
    x = x + gather(position_embedding, at)
    if segment_ids is not None and segment_embedding is not None:
        x = x + gather(segment_embedding, segment_ids)
    made = layer_norm(x, 1, gamma, beta, epsilon)
    if wanted == 1:
        return made
    count = torch.zeros(input_ids.shape[0], dtype=torch.int32) if mask is None else mask.sum(1).to(torch.int32)
    return made, count, x
