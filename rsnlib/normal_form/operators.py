"""The operators of the normal form.

Any other operator, such as one of the user's own, stays as it is: PyTorch runs it, on the host.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

import torch

from ..quantised_ops import QUANTISED_OPS
from ..rotate import ROLL_IN, ROTATE

aten = torch.ops.aten


class OperatorKind(enum.Enum):
    """What an operator of the normal form does with its operands."""

    VIEW = "the same elements at other positions; the result may share memory with the operand"
    COPY = "the same elements in new memory, perhaps of another type"
    JOIN = "the elements of several tensors, or those of one several times"
    POINTWISE = "each element from those at the same position"
    REDUCTION = "each line becomes one number, or a number and an index"
    SCAN = "each element from those before it in its line"
    SORT = "lines in order, with the indices"
    LINE = "each line from the same line"
    WINDOW = "each element from a window of positions"
    PRODUCT = "sums of products of two tensors"
    INDEX = "elements at positions that another tensor tells, or that are replaced there"
    NEW = "a tensor of a known shape"
    PART = "one result of an operator with several"
    QUANTISED = "integers with scales and zero points: their scales, to them, from them, and products of them"
    OWN = "an operator of rsn, which rewrites of the graph insert"


def named(names: str) -> list[Any]:
    """Return operators of PyTorch by their names, which are separated by spaces. Raises `AttributeError` for an unknown
    name."""
    return [getattr(aten, name) for name in names.split()]


OPERATORS: dict[Any, OperatorKind] = {
    op: kind
    for kind, names in {
        OperatorKind.VIEW: "alias detach reshape permute expand slice select",
        OperatorKind.COPY: "clone contiguous _to_copy",
        OperatorKind.JOIN: "cat stack repeat",
        OperatorKind.POINTWISE: (
            "abs add addcdiv addcmul atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp cos div "
            "elu eq erf exp expm1 floor fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isnan le "
            "leaky_relu lerp log log10 log1p log2 log_sigmoid logical_and logical_not logical_or lt maximum "
            "minimum mish mul nan_to_num ne neg pow _prelu_kernel relu relu6 remainder round rsqrt selu sigmoid "
            "sign silu sin softplus sqrt sub tan tanh threshold trunc where"
        ),
        OperatorKind.REDUCTION: (
            "all amax amin aminmax any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean median "
            "min mode nanmean nanmedian nanquantile nansum prod quantile std std_mean sum var var_mean"
        ),
        OperatorKind.SCAN: "cummax cummin cumprod cumsum logcumsumexp",
        OperatorKind.SORT: "kthvalue sort topk",
        OperatorKind.LINE: (
            "batch_norm flip glu group_norm instance_norm layer_norm log_softmax rms_norm roll softmax tril triu"
        ),
        OperatorKind.WINDOW: (
            "adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d constant_pad_nd conv1d conv2d conv3d "
            "im2col max_pool1d max_pool2d pad upsample_bicubic2d upsample_bilinear2d upsample_nearest2d"
        ),
        OperatorKind.PRODUCT: "baddbmm bmm einsum linear matmul scaled_dot_product_attention",
        OperatorKind.INDEX: (
            "embedding gather index index_add index_copy index_put index_select isin one_hot scatter scatter_add "
            "scatter_reduce take_along_dim"
        ),
        OperatorKind.NEW: "arange full full_like",
    }.items()
    for op in named(names)
} | {
    operator.getitem: OperatorKind.PART,
    **dict.fromkeys(QUANTISED_OPS, OperatorKind.QUANTISED),
    **dict.fromkeys((ROTATE, ROLL_IN), OperatorKind.OWN),
}
"""The operators of the normal form, without their overloads."""

VIEWS = {op for op, kind in OPERATORS.items() if kind is OperatorKind.VIEW}
