"""The operators of the normal form, and which exported ones no longer occur behind which pass.

Any other operator, such as one of the user's own, stays as it is: PyTorch runs it, on the host.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..capture import arguments, dtype_of, is_static, op_name, packet
from ..rotate import ROLL_IN, ROTATE

aten = torch.ops.aten


class Kind(enum.Enum):
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
    OWN = "an operator of rsn, which rewrites of the graph insert"


def named(names: str) -> list[Any]:
    """Operators of PyTorch by their names."""
    return [getattr(aten, name) for name in names.split()]


OPERATORS: dict[Any, Kind] = {
    op: kind
    for kind, names in {
        Kind.VIEW: "alias detach reshape permute expand slice select",
        Kind.COPY: "clone contiguous _to_copy",
        Kind.JOIN: "cat stack repeat",
        Kind.POINTWISE: "abs add addcdiv addcmul atan bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp "
        "cos div elu eq erf exp expm1 floor fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isnan le "
        "leaky_relu lerp log log10 log1p log2 log_sigmoid logical_and logical_not logical_or lt maximum minimum mish "
        "mul nan_to_num ne neg pow _prelu_kernel relu relu6 remainder round rsqrt selu sigmoid sign silu sin softplus "
        "sqrt sub tan tanh threshold trunc where",
        Kind.REDUCTION: "all amax amin aminmax any argmax argmin count_nonzero linalg_vector_norm logsumexp max mean "
        "median min mode nanmean nanmedian nanquantile nansum prod quantile std std_mean sum var var_mean",
        Kind.SCAN: "cummax cummin cumprod cumsum logcumsumexp",
        Kind.SORT: "kthvalue sort topk",
        Kind.LINE: "batch_norm flip glu group_norm instance_norm layer_norm log_softmax rms_norm roll softmax tril "
        "triu",
        Kind.WINDOW: "adaptive_avg_pool1d adaptive_avg_pool2d avg_pool1d avg_pool2d constant_pad_nd conv1d conv2d "
        "conv3d im2col max_pool1d max_pool2d pad upsample_bicubic2d upsample_bilinear2d upsample_nearest2d",
        Kind.PRODUCT: "baddbmm bmm einsum linear matmul scaled_dot_product_attention",
        Kind.INDEX: "embedding gather index index_add index_copy index_put index_select isin one_hot scatter "
        "scatter_add scatter_reduce take_along_dim",
        Kind.NEW: "arange full full_like",
    }.items()
    for op in named(names)
} | {operator.getitem: Kind.PART, ROTATE: Kind.OWN, ROLL_IN: Kind.OWN}
"""The operators of the normal form, without their overloads."""

VIEWS = {op for op, kind in OPERATORS.items() if kind is Kind.VIEW}

REMOVED: dict[str, set[Any]] = {
    name: set(named(names))
    for name, names in {
        "checks": "_assert_async _assert_scalar _assert_tensor_metadata",
        "decompositions": "addmm argsort chunk cosine_similarity diff ger masked_fill outer pairwise_distance prelu "
        "repeat_interleave split split_with_sizes tensor_split unbind unsafe_chunk unsafe_split "
        "unsafe_split_with_sizes",
        "spellings": "__and__ __or__ __xor__ _log_softmax _softmax _unsafe_view absolute adjoint broadcast_to "
        "clamp_max clamp_min clip concat concatenate divide dot dropout expand_as fix flatten floor_divide "
        "greater greater_equal less less_equal lift_fresh lift_fresh_copy mH mT mm moveaxis movedim multiply mv narrow "
        "negative new_full new_ones new_zeros norm not_equal numpy_T ones ones_like reciprocal reshape_as rsub "
        "scalar_tensor special_expit special_log_softmax special_softmax square squeeze subtract swapaxes swapdims t "
        "tile to transpose true_divide type_as unflatten unsqueeze view view_as zeros zeros_like",
        "copies": "",
    }.items()
}
"""The passes in their order, each with the operators that do not occur behind it. The last one leaves copies and
aliases where the memory of a result, or of an operand of another operator, depends on them."""


class NormalFormError(Exception):
    """A pass has left an operator that it should have replaced: a mistake in the pass."""


SIZED = set(
    named(
        "broadcast_to chunk expand_as flatten narrow new_full new_ones new_zeros ones repeat_interleave reshape_as "
        "split split_with_sizes squeeze tensor_split tile unflatten unsafe_chunk unsafe_split unsafe_split_with_sizes "
        "unsqueeze view_as zeros"
    )
)
"""Operators whose other spelling has sizes among its arguments."""


def is_exempt(node: Node) -> bool:
    """Whether a pass may leave an operator: a size that its other spelling needs depends on data, bits become numbers
    of another type, elements become conjugate, a tensor tells how often each position is repeated, or dropout drops."""
    op, a = packet(node), arguments(node)
    if op in SIZED and not all(map(is_static, (node, *node.all_input_nodes))):
        parts = node.meta["val"]
        return not isinstance(parts, list | tuple) or not all(isinstance(x.shape[a["dim"]], int) for x in parts)
    if op is aten.repeat_interleave:
        return not isinstance(a.get("repeats"), int)
    if op in (aten.adjoint, aten.mH):
        return bool((dtype_of(node) or torch.bool).is_complex)
    return node.target is aten.view.dtype or bool(a.get("train") and a.get("p"))


def check_form(graph: Graph, after: str = "copies") -> None:
    """Check that no operator occurs that the passes up to `after` remove. Raises `NormalFormError`."""
    passes = list(REMOVED)
    gone: set[Any] = set().union(*(REMOVED[name] for name in passes[: passes.index(after) + 1]))
    for node in graph.nodes:
        if packet(node) in gone and not is_exempt(node):
            raise NormalFormError(f"{node.name}: {op_name(node)} behind the pass {after}")
