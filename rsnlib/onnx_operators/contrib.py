"""What onnxruntime's transformer optimizer makes, but for attentions, by the definitions of its contrib operators
(onnxruntime/docs/ContribOperators.md)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from .elementwise import in_float32, wide
from .layers import conv, gemm, layer_norm, rms_norm, statistics
from .shapes import gather
from .table import MICROSOFT, Tensor, axis_of, need, operator


@operator("Gelu", domain=MICROSOFT)
def ms_gelu(x: Tensor) -> Tensor:
    """Gelu, with the error function.

    x: any shape, which the result has too.
    """
    return F.gelu(x)


@operator("BiasGelu", domain=MICROSOFT)
def bias_gelu(a: Tensor, b: Tensor) -> Tensor:
    """Gelu of a + b, with the error function.

    a: (..., columns). b: (columns,). Returns the shape of a.
    """
    return F.gelu(a + b)


@operator("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gelu of x + bias, in its approximation by tanh.

    x: (..., columns). bias: (columns,), None for none. Returns the shape of x.
    """
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """x * sigmoid(alpha * x).

    x: any shape, which the result has too.
    """
    return x * torch.sigmoid(alpha * x)


@operator("BiasAdd", domain=MICROSOFT)
def bias_add(x: Tensor, bias: Tensor, skip: Tensor) -> Tensor:
    """x + bias + skip.

    x, skip: (batch, ..., channels). bias: (channels,).
    """
    return x + bias + skip


def activated(x: Tensor, activation: str, parameters: list[float]) -> Tensor:
    """Return an activation function of x, element by element. activation: onnxruntime's name of it, such as
    "LeakyRelu". parameters: its numbers, alpha and beta (one is read for LeakyRelu, two for HardSigmoid and Clip).
    Raises `UnsupportedError` for another name, and for too few numbers."""
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
    wanted = {"LeakyRelu": 1, "HardSigmoid": 2, "Clip": 2}.get(activation, 0)
    need(len(parameters) >= wanted, f"activation {activation} needs numbers: {wanted}, not {len(parameters)}")
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
    """Gemm with an activation function behind it.

    a, b, c, alpha, beta, transA, transB: as for `gemm`. activation, activation_alpha, activation_beta: as for
    `activated`, which raises `UnsupportedError`. activation_gamma: not read, because no function has a third number.
    """
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
    """Conv with an addend `z` and an activation function behind it.

    z: of the shape of the result. activation: as for `activated`; "" for none. activation_params: its numbers. Others:
    as for `conv`. Raises as both do.
    """
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
    """RMSNorm over the axes from `axis` on; computed in the type of x, whatever `stash_type` says.

    x: any shape. scale: broadcast to these axes. epsilon: is added to the mean square. wanted: with two outputs or more
    the second is the reciprocal of the root mean square, of the shape of x with 1 for these axes. Raises
    `UnsupportedError` for an axis that lies outside.
    """
    axes = x.ndim - axis_of(axis, x.ndim)
    made = rms_norm(x, axes, scale, epsilon)
    return made if wanted == 1 else (made, _reciprocal_root(x, axes, epsilon))


def _reciprocal_root(x: Tensor, axes: int, epsilon: float) -> Tensor:
    """The reciprocal of the root mean square over the last axes, in the shape of x with 1 for each of them; in float32
    if x has 16 bits."""
    return (wide(x).square().mean(list(range(x.ndim - axes, x.ndim)), keepdim=True) + epsilon).rsqrt()


def _added(input: Tensor, bias: Tensor | None, skip: Tensor) -> Tensor:
    """input + bias + skip; bias None for none."""
    return in_float32(lambda x, *more: sum(more, x))(input, *([] if bias is None else [bias]), skip)


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
    """LayerNorm over the last axis of input + bias + skip, which is the fourth output.

    input, skip: (batch, seq, columns). gamma, beta, bias: (columns,); beta and bias None for none. epsilon: is added to
    the variance. wanted: with more outputs than one, all four are returned: the norm, mean and reciprocal deviation,
    both (batch, seq, 1), and the sum.
    """
    x = _added(input, bias, skip)
    made = layer_norm(x, 1, gamma, beta, epsilon)
    return made if wanted == 1 else (made, *statistics(x, 1, epsilon), x)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    input: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-5, wanted: int = 1
) -> Any:
    """RMSNorm over the last axis of input + bias + skip, which is the fourth output.

    Shapes and outputs: as for `skip_layer_normalization`; but no mean is subtracted, so the second output is 0, and the
    third the reciprocal of the root mean square.
    """
    x = _added(input, bias, skip)
    made = rms_norm(x, 1, gamma, epsilon)
    if wanted == 1:
        return made
    root = _reciprocal_root(x, 1, epsilon)
    return made, torch.zeros_like(root), root, x


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
    """LayerNorm of the sum of two or three embeddings. `mask_index` counts the rows that the mask shows.

    input_ids, segment_ids, position_ids: integers (batch, seq); position_ids counts from 0 if it is left out.
    segment_ids and segment_embedding are read only if both are given. word_embedding, position_embedding,
    segment_embedding: (numbers, columns). gamma, beta: (columns,). mask: (batch, seq), 1 for what is seen. epsilon: is
    added to the variance. Returns (batch, seq, columns); if `wanted`, the number of outputs, is above 1, also
    mask_index, int32 (batch,), which is 0 without a mask, and the sum before the norm. Raises `UnsupportedError` for a
    mask_index_type other than 0 and 1.
    """
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
