"""Operators of quantised numbers in the normal form, which `normal_form.quantised` inserts: `rsn::row_scales`,
`rsn::quantise`, `rsn::dequantise`, `rsn::integer_linear` and `rsn::integer_matmul`.

PyTorch runs them by the definition in `base.quantised`, which also tells the shapes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils.flop_counter import register_flop_formula

from ..base import quantised
from .capture import arguments, packet, shape_of


def _row_scales(x: Tensor, is_symmetric: bool, least: float, low: int, high: int) -> tuple[Tensor, Tensor]:
    scale, zero = quantised.row_scales(x.numpy(), low, high, is_symmetric=is_symmetric, least=least)
    return torch.from_numpy(scale), torch.from_numpy(zero)


def _quantise(x: Tensor, scale: Tensor, zero: Tensor | None, low: int, high: int) -> Tensor:
    return torch.from_numpy(quantised.quantise(x.numpy(), scale.numpy(), _array(zero), low, high))


def _dequantise(x: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    return torch.from_numpy(quantised.dequantise(x.numpy(), scale.numpy(), _array(zero)))


def _integer_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    weight: Tensor,
    weight_scale: Tensor,
    weight_zero: Tensor | None,
    bias: Tensor | None,
    bits: int,
) -> Tensor:
    rows, matrix = (x.numpy(), scale.numpy(), _array(zero)), (weight.numpy(), weight_scale.numpy())
    return torch.from_numpy(quantised.integer_linear(*rows, *matrix, _array(weight_zero), _array(bias)))


def _integer_matmul(
    x: Tensor, scale: Tensor, zero: Tensor | None, other: Tensor, other_scale: Tensor, other_zero: Tensor | None
) -> Tensor:
    rows, matrix = (x.numpy(), scale.numpy(), _array(zero)), (other.numpy(), other_scale.numpy(), _array(other_zero))
    return torch.from_numpy(quantised.integer_matmul(*rows, *matrix))


def _array(x: Tensor | None) -> Any:
    return None if x is None else x.numpy()


def _scales_of_rows(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:-1], 1)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _define(name: str, compute: object, shaped: object) -> None:
    made = torch.library.custom_op(f"rsn::{name}", compute, mutates_args=(), device_types="cpu")
    made.register_fake(shaped)


_define("row_scales", _row_scales, _scales_of_rows)
_define("quantise", _quantise, lambda x, *_: torch.empty_like(x, dtype=torch.int8))
_define("dequantise", _dequantise, lambda x, *_: torch.empty_like(x, dtype=torch.float32))
_define(
    "integer_linear",
    _integer_linear,
    lambda x, scale, zero, weight, *_: x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32),
)
_define(
    "integer_matmul",
    _integer_matmul,
    lambda x, scale, zero, other, *_: torch.matmul(
        x.new_empty(x.shape, dtype=torch.float32), x.new_empty(other.shape, dtype=torch.float32)
    ),
)
ROW_SCALES = torch.ops.rsn.row_scales
"""(x (..., K), is_symmetric, least, low, high) -> scales float32, zero points int32, (..., 1): those of each row."""
QUANTISE = torch.ops.rsn.quantise
"""(x, scale, zero or None, low, high) -> int8. scale, zero: (..., 1), or one number."""
DEQUANTISE = torch.ops.rsn.dequantise
"""(x (..., K), scale (..., G), zero (..., G) or None, bits) -> float32; or one scale. bits: of the signed integers."""
INTEGER_LINEAR = torch.ops.rsn.integer_linear
"""(x (..., K), scale, zero or None, weight (N, K), weight_scale (N, G), weight_zero (N, G) or None, bias (N,) or None,
bits) -> float32 (..., N). scale, zero: of x, (..., 1) or one number. bits: of the weight's signed integers."""
INTEGER_MATMUL = torch.ops.rsn.integer_matmul
"""(x (..., M, K), scale, zero or None, other (..., K, N), other_scale, other_zero or None) -> float32 (..., M, N).
scale, zero: (..., M, 1), or one number. other_scale, other_zero: (..., 1, N), or one number."""
INTEGER_PRODUCTS = (INTEGER_LINEAR, INTEGER_MATMUL)
QUANTISED_OPS = (ROW_SCALES, QUANTISE, DEQUANTISE, *INTEGER_PRODUCTS)


def types_of(node: Node) -> str:
    """Return the types of the operands of a product of integers as text, such as "int8 x int4"."""
    a = arguments(node)
    if packet(node) is INTEGER_MATMUL:
        return "int8 x int8"
    return f"int8 x int{a['bits']}{in_groups(a['weight'], a['weight_scale'])}"


def in_groups(weight: Node, scale: Node) -> str:
    """Return how many columns of a weight share a scale as text, such as " in groups of 32"; "" if all of a row do."""
    groups = shape_of(scale)[-1]
    return f" in groups of {shape_of(weight)[1] // groups}" if groups > 1 else ""


@register_flop_formula(INTEGER_LINEAR)  # type: ignore[untyped-decorator]
def _flops_of_linear(x: list[int], scale: object, zero: object, weight: list[int], *_: object, **__: object) -> int:
    return 2 * prod(x) * weight[0]


@register_flop_formula(INTEGER_MATMUL)  # type: ignore[untyped-decorator]
def _flops_of_matmul(x: list[int], *_: object, out_shape: list[int], **__: object) -> int:
    return 2 * prod(out_shape) * x[-1]
