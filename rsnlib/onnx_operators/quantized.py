"""Numbers with a scale and a zero point, as their definitions compute them."""

from __future__ import annotations

import torch

from .layers import conv
from .shapes import type_of
from .table import Tensor, axis_of, need, operator


def spread(x: Tensor, like: Tensor, axis: int, block: int) -> Tensor:
    """Return a scale or zero point so that it broadcasts to `like`.

    x: one element for all; or (rows,), one for each row of `axis` of `like`; or with `block` the shape of `like`, but
    one element for each `block` rows of `axis`. Raises `UnsupportedError` for other shapes without `block`, and for an
    axis that lies outside.
    """
    if x.numel() == 1:
        return x.reshape(())
    where = axis_of(axis, like.ndim)
    if block:
        return x.repeat_interleave(block, where).narrow(where, 0, like.shape[where])
    need(x.ndim == 1, f"a scale of shape {tuple(x.shape)}")
    return x.reshape(-1, *[1] * (like.ndim - where - 1))


def _limits(kind: torch.dtype) -> tuple[int, int]:
    return torch.iinfo(kind).min, torch.iinfo(kind).max


@operator("QuantizeLinear")
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    """Integers of 8 bits or more from floats: round(x / y_scale) + y_zero_point, bounded to their type.

    x: any shape, which the result has too. y_scale, y_zero_point: shapes as for `spread`, of which `axis` and
    `block_size` (in rows; 0 for none) are parameters. output_dtype: a number of `type_of`; 0 for the type of the zero
    point, or uint8 without one. precision, saturate: not read. Raises `UnsupportedError` for a result of floats, and as
    `spread` and `type_of` do.
    """
    kind = type_of(output_dtype) if output_dtype else torch.uint8 if y_zero_point is None else y_zero_point.dtype
    need(not kind.is_floating_point, f"numbers of type {kind}")
    low, high = _limits(kind)
    units = torch.round(x / spread(y_scale, x, axis, block_size))
    if y_zero_point is not None:
        units = units + spread(y_zero_point.to(x.dtype), x, axis, block_size)
    return units.clamp(low, high).to(kind)


@operator("DequantizeLinear")
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """Floats from integers: (x - x_zero_point) * x_scale.

    x_scale, x_zero_point: shapes as for `spread`, of which `axis` and `block_size` (in rows; 0 for none) are
    parameters. output_dtype: a number of `type_of`; 0 for the type of the scale. Returns the shape of x. Raises
    `UnsupportedError` as these two do.
    """
    made = x.to(x_scale.dtype)
    if x_zero_point is not None:
        made = made - spread(x_zero_point.to(x_scale.dtype), x, axis, block_size)
    made = made * spread(x_scale, x, axis, block_size)
    return made.to(type_of(output_dtype)) if output_dtype else made


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 from floats, with one scale and zero point that cover all elements and 0.

    x: floats of any shape. Returns uint8 of that shape, the scale in the type of x, shape (), and the zero point as
    uint8, shape ().
    """
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round(-low / torch.where(scale == 0, torch.ones_like(scale), scale)).clamp(0, 255)
    units = torch.round(x / torch.where(scale == 0, torch.ones_like(scale), scale)) + zero
    return units.clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def _shifted(x: Tensor, zero: Tensor | None, axis: int, like: Tensor) -> Tensor:
    """Integers less their zero point; as float32 where the other operand is, in a model computed in float32."""
    made = x if x.is_floating_point() else x.to(torch.float32 if like.is_floating_point() else torch.int32)
    if zero is None:
        return made
    zero = zero.to(made.dtype)
    if zero.ndim == 1 and zero.numel() > 1:
        zero = zero.reshape(-1, *[1] * (x.ndim - axis - 1))
    return made - zero


@operator("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """The product of integers less their zero points; in float32 if one operand is of floats, else in int32.

    a: (..., rows, inner). b: (..., inner, columns). a_zero_point: one element, or one for each row. b_zero_point: one
    element, or one for each column. None is 0.
    """
    return _shifted(a, a_zero_point, max(a.ndim - 2, 0), b) @ _shifted(b, b_zero_point, b.ndim - 1, a)


@operator("ConvInteger")
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:
    """A convolution of integers less their zero points; in the type of floats if one operand is of floats, else in
    int32.

    x, w, and the attributes: as for `conv`, without a bias. x_zero_point: one element. w_zero_point: one element, or
    one for each output channel. Raises `UnsupportedError` as `conv` does.
    """
    a, b = _shifted(x, x_zero_point, 1, w), _shifted(w, w_zero_point, 0, x)
    made: Tensor = conv(
        a.double() if not a.is_floating_point() else a,
        b.double() if not b.is_floating_point() else b,
        None,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return made if a.is_floating_point() else made.to(torch.int32)
