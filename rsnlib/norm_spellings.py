"""Rewrites of norms that a model spells out in elementwise operators and means, into `rms_norm` and `layer_norm`."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from .capture import arguments, dtype_of, is_static, packet, shape_of
from .rewriter import Rewriter, replacing

aten = torch.ops.aten

NORMS = {aten.rms_norm, aten.layer_norm}


@replacing(aten.mul, aten.div, aten.add)
def norms(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) x / sqrt(mean(x^2) + eps) into rms_norm, and the same of x - mean(x) into
    layer_norm. A constant vector that multiplies a norm becomes its weight; one that is added to a layer_norm becomes
    its bias.

    1 / root may be rsqrt, a power or a reciprocal; a mean may be a sum divided by its size; a square may be a product
    or a power; the variance may be one operator. Returns None for a dynamic shape, another type than float32, fewer
    than 2 dimensions, an eps that is no constant above 0, a mean over another dimension than the last, and a root of
    another tensor than x. A vector stays outside if it has another size or type, or if the norm has other readers."""
    if not is_static(node) or dtype_of(node) != torch.float32 or len(shape_of(node)) < 2:
        return None
    return _with_vector(graph, node) or _without_vector(graph, node)


def _without_vector(graph: Rewriter, node: Node) -> Node | None:
    if packet(node) is aten.add or not isinstance(node.args[0], Node) or node.kwargs:
        return None
    columns = list(shape_of(node)[-1:])
    for x, factor in (node.args[:2], node.args[1::-1]) if packet(node) is aten.mul else (node.args[:2],):
        if not isinstance(x, Node) or not isinstance(factor, Node) or shape_of(x) != shape_of(node):
            continue
        total = _under_root(graph, factor, inverse=packet(node) is aten.mul)
        found = None if total is None else _with_eps(graph, total)
        if found is None:
            continue
        square, eps = found
        centred = _centred(graph, x)
        if _is_mean_square(graph, square, x):
            if centred is None:
                return graph.insert(node, aten.rms_norm.default, x, columns, None, eps)
            return graph.insert(node, aten.layer_norm.default, centred, columns, None, None, eps)
        if centred is not None and _is_variance(square, centred):
            return graph.insert(node, aten.layer_norm.default, centred, columns, None, None, eps)
    return None


def _with_vector(graph: Rewriter, node: Node) -> Node | None:
    columns = list(shape_of(node)[-1:])
    if packet(node) is aten.div or arguments(node).get("alpha", 1) != 1:
        return None
    for x, vector in (node.args[:2], node.args[1::-1]):
        if not isinstance(x, Node) or not isinstance(vector, Node) or vector not in graph.constants:
            continue
        if packet(x) not in NORMS or not graph.is_sole(x) or dtype_of(vector) != torch.float32:
            continue
        a = arguments(x)
        if list(a["normalized_shape"]) != columns or not _is_vector(vector, columns[0]):
            continue
        if list(shape_of(vector)) != columns:
            vector = graph.insert(node, aten.reshape.default, vector, columns)
        is_rms, scales = packet(x) is aten.rms_norm, packet(node) is aten.mul
        if (a["weight"] is not None and scales) or a.get("bias") is not None or (is_rms and not scales):
            continue
        if is_rms:
            return graph.insert(node, aten.rms_norm.default, a["input"], columns, vector, a["eps"])
        pair = (vector, None) if scales else (a["weight"], vector)
        return graph.insert(node, aten.layer_norm.default, a["input"], columns, *pair, a["eps"])
    return None


def _is_vector(x: Node, columns: int) -> bool:
    shape = shape_of(x)
    return shape[-1:] == (columns,) and all(n == 1 for n in shape[:-1])


def number(graph: Rewriter, x: Any) -> float | None:
    """Return the value of a number or of a constant tensor of one element; None for anything else. The graph then
    relies on that value (`Rewriter.value`)."""
    if isinstance(x, int | float) and not isinstance(x, bool):
        return float(x)
    if isinstance(x, Node) and x in graph.constants and graph.value(x).numel() == 1:
        return float(graph.value(x))
    return None


def _under_root(graph: Rewriter, node: Node, *, inverse: bool) -> Node | None:
    """t, if a node is sqrt(t), or with `inverse` 1 / sqrt(t)."""
    op, args = packet(node), node.args
    if op is aten.pow and number(graph, args[1]) == (-0.5 if inverse else 0.5):
        return args[0] if isinstance(args[0], Node) else None
    if not inverse:
        return args[0] if op is aten.sqrt and isinstance(args[0], Node) else None
    if op is aten.rsqrt:
        return args[0] if isinstance(args[0], Node) else None
    if op is aten.div and not node.kwargs and number(graph, args[0]) == 1 and isinstance(args[1], Node):
        return _under_root(graph, args[1], inverse=False)
    return None


def _with_eps(graph: Rewriter, total: Node) -> tuple[Node, float] | None:
    """(t, eps), if a node is t + eps."""
    if packet(total) is not aten.add or total.kwargs:
        return None
    for x, y in (total.args[:2], total.args[1::-1]):
        eps = number(graph, y)
        if eps is not None and eps > 0 and isinstance(x, Node) and x not in graph.constants:
            return x, eps
    return None


def _is_last(dim: Any, x: Node) -> bool:
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    return dims in ([-1], [len(shape_of(x)) - 1])


def _kept(node: Node) -> tuple[Node, bool]:
    """The node before a last dimension of 1 was inserted, and whether it was."""
    if packet(node) is aten.reshape and shape_of(node) == (*shape_of(node.all_input_nodes[0]), 1):
        return node.all_input_nodes[0], True
    return node, False


def _meaned(graph: Rewriter, node: Node) -> Node | None:
    """x, if a node is the mean of x over its last dimension, which is kept with size 1."""
    node, inserted = _kept(node)
    count = None
    if packet(node) in (aten.div, aten.mul) and isinstance(node.args[0], Node):
        count = number(graph, node.args[1])
        count = count if count is None or packet(node) is aten.div else 1 / count
        node = node.args[0]
        if packet(node) is not aten.sum:
            return None
    if packet(node) is not (aten.mean if count is None else aten.sum):
        return None
    a = arguments(node)
    x: Node = a["self"]
    plain = _is_last(a.get("dim"), x) and bool(a.get("keepdim")) != inserted and a.get("dtype") in (None, dtype_of(x))
    if not plain or (count is not None and abs(count / shape_of(x)[-1] - 1) > 1e-12):
        return None
    return x


def _is_mean_square(graph: Rewriter, node: Node, x: Node) -> bool:
    """Whether a node is the mean of x * x over the last dimension."""
    square = _meaned(graph, node)
    if square is None:
        return False
    if packet(square) is aten.pow and number(graph, square.args[1]) == 2:
        bases = square.args[:1]
    else:
        bases = square.args[:2] if packet(square) is aten.mul else ()
    return bool(bases) and all(isinstance(base, Node) and _is_same(base, x) for base in bases)


def _is_same(one: Node, other: Node) -> bool:
    """Whether two nodes are one, or the same operator of the same operands, as where a model writes x - mean twice."""
    return one is other or (one.target, one.args, one.kwargs) == (other.target, other.args, other.kwargs)


def _centred(graph: Rewriter, node: Node) -> Node | None:
    """x, if a node is x - mean(x)."""
    if packet(node) is not aten.sub or arguments(node)["alpha"] != 1:
        return None
    x, mean = node.args[:2]
    if not isinstance(x, Node) or not isinstance(mean, Node) or _meaned(graph, mean) is not x:
        return None
    return x


def _is_variance(node: Node, x: Node) -> bool:
    """Whether a node is the biased variance of x over the last dimension."""
    node, inserted = _kept(node)
    if packet(node) is not aten.var:
        return False
    a = arguments(node)
    biased = a["correction"] == 0 if "correction" in a else a.get("unbiased") is False
    return biased and _is_last(a.get("dim"), x) and bool(a.get("keepdim")) != inserted and a["self"] is x
