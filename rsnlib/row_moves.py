"""Rows of one product that are taken apart and joined again with rows of the host, such as register tokens between a
class token and patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from .capture import arguments, dtype_of, is_static, packet, shape_of
from .rewriter import Rewriter, replacing

aten = torch.ops.aten


def sliced(node: Node) -> Node | None:
    """Return the tensor of which a node takes a range of rows (of the last dimension but one, in steps of 1); None if
    the node is no such slice."""
    if packet(node) is not aten.slice:
        return None
    a = arguments(node)
    x: Node = a["self"]
    return x if a["step"] == 1 and a["dim"] % len(shape_of(x)) == len(shape_of(x)) - 2 else None


def same_rows(parts: Sequence[Node]) -> Node | None:
    """Return the tensor of which all parts are ranges of rows (`sliced`); None if they are not ranges of one tensor."""
    found = {sliced(part) for part in parts}
    return next(iter(found)) if len(found) == 1 else None


@replacing(aten.cat)
def moved_rows(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) rows that are taken apart and joined behind a product: the host joins them before
    it.

    cat([y[:, :1], tokens, y[:, 1:]], -2) with y = x @ W + h, x and h of the host, becomes cat([x[:, :1], 0, x[:, 1:]],
    -2) @ W + cat([h[:, :1], tokens, h[:, 1:]], -2). Not applied if a part is no range of rows of that product, or x or
    h is computed by the machine.
    """
    if not is_static(node):
        return None
    parts, dims = arguments(node)["tensors"], len(shape_of(node))
    if dims < 2 or arguments(node)["dim"] % dims != dims - 2 or any(dtype_of(x) != torch.float32 for x in parts):
        return None
    whole = same_rows([part for part in parts if part in graph.computed])
    product = whole if whole in graph.products else None
    added = None
    if whole is not None and packet(whole) is aten.add and not whole.kwargs:
        product = next((x for x in whole.args[:2] if x in graph.products), None)
        added = next((x for x in whole.args[:2] if x is not product), None)
        if not isinstance(added, Node) or added in graph.computed or dtype_of(added) != torch.float32:
            return None
    if whole is None or product is None or graph.products[product].x in graph.computed:
        return None
    found, shape = graph.products[product], list(shape_of(whole))
    if list(shape_of(product)) != shape or len(shape_of(found.x)) != len(shape):
        return None
    terms = [term for term in (added, found.bias) if term is not None]
    total = terms[0] if terms else graph.insert(node, aten.full.default, shape, 0, dtype=torch.float32, origin=product)
    if len(terms) > 1:
        total = graph.insert(node, aten.add.Tensor, *terms)
    if list(shape_of(total)) != shape:
        total = graph.insert(node, aten.expand.default, total, shape)
    rows, sums = [], []
    for part in parts:
        if part in graph.computed:
            a = arguments(part)
            range_ = (dims - 2, a["start"], a["end"])
            rows.append(graph.insert(node, aten.slice.Tensor, found.x, *range_, origin=product))
            sums.append(graph.insert(node, aten.slice.Tensor, total, *range_))
        else:
            none = [*shape_of(part)[:-1], shape_of(found.x)[-1]]
            rows.append(graph.insert(node, aten.full.default, none, 0, dtype=torch.float32, origin=product))
            sums.append(part)
    x = graph.insert(node, aten.cat.default, rows, dims - 2, origin=product)
    y = graph.insert(node, aten.linear.default, x, graph.weight(node, found), origin=product)
    return graph.insert(node, aten.add.Tensor, y, graph.insert(node, aten.cat.default, sums, dims - 2))
