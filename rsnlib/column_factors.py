"""Factors of columns, such as layer scale, as part of the weights of the product before them."""

from __future__ import annotations

from math import prod

import torch
from torch.fx import Node

from .capture import dtype_of, packet, shape_of
from .rewriter import Rewriter, replacing

aten = torch.ops.aten


@replacing(aten.mul)
def column_factors(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) (x @ W + b) * g with a constant vector g, one number for each column (layer scale),
    into x @ (W * g) + b * g.

    Reshapes that keep the columns, operators that change nothing, and sums with a constant vector may be between. Not
    applied if the product has other users.
    """
    if node.kwargs:
        return None
    for x, factors in (node.args[:2], tuple(reversed(node.args[:2]))):
        if isinstance(x, Node) and isinstance(factors, Node) and x in graph.computed and factors in graph.constants:
            return _with_factors(graph, node, x, factors)
    return None


def _with_factors(graph: Rewriter, node: Node, x: Node, factors: Node) -> Node | None:
    shape = list(shape_of(node))
    columns = shape[-1] if shape else 0
    vectors: list[Node] = []
    while x not in graph.products and graph.is_sole(x):
        if packet(x) is aten.add and not x.kwargs and len(x.args) == 2:
            terms = sorted(x.args, key=lambda term: term in graph.constants)
            if not all(isinstance(term, Node) for term in terms) or not _is_vector(graph, terms[1], columns):
                return None
            vectors.append(terms[1])
            x = terms[0]
        elif packet(x) is aten.reshape:
            x = x.all_input_nodes[0]
        else:
            return None
        if list(shape_of(x)[-1:]) != [columns]:
            return None
    product = graph.products.get(x)
    if product is None or not graph.is_sole(x) or product.width != columns or columns == 1:
        return None
    if not _is_vector(graph, factors, columns) or {dtype_of(x), dtype_of(node)} != {torch.float32}:
        return None
    vector = graph.insert(node, aten.reshape.default, factors, [columns])
    each = graph.insert(node, aten.reshape.default, vector, [columns, 1])
    weight = graph.insert(node, aten.mul.Tensor, graph.weight(node, product), each)
    bias = product.bias
    for other in vectors:
        flat = graph.insert(node, aten.reshape.default, other, [columns])
        bias = flat if bias is None else graph.insert(node, aten.add.Tensor, bias, flat)
    bias = None if bias is None else graph.insert(node, aten.mul.Tensor, bias, vector)
    y = graph.insert(node, aten.linear.default, product.x, weight, bias, origin=product.node)
    return y if list(shape_of(y)) == shape else graph.insert(node, aten.reshape.default, y, shape)


def _is_vector(graph: Rewriter, node: Node, columns: int) -> bool:
    """Whether a node is a float32 constant with one number for each column."""
    shape = shape_of(node)
    is_vector = shape[-1:] == (columns,) and prod(shape) == columns
    return is_vector and node in graph.constants and dtype_of(node) == torch.float32
