"""Rewrites of the captured graph, which make more of it possible on the machine and keep its results.

Lowering rules see one operator at a time. Rewrites change several operators together. Each is a function from a node to
the node that replaces it, or to None to leave it. Inserted nodes carry the module path of the operator that they come
from, and their shape and type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .caches import moved_up
from .capture import SPELLED, arguments, dtype_of, is_empty, is_static, op_name, packet, shape_of
from .column_factors import column_factors
from .convolutions import CONVOLUTIONS, gathered_rows, patch_rows, windows_of
from .einsums import einsums
from .norm_spellings import norms, number
from .rewriter import LinearProduct, Premise, Rewrite, Rewriter, replacing
from .rotary import rotations
from .row_moves import moved_rows, same_rows
from .rules import RULES, SAME, VIEWS, seen
from .score_masks import score_masks
from .view import View

aten = torch.ops.aten

MATRIX_PRODUCTS = {aten.linear, aten.matmul}
CLOSING = {
    aten.layer_norm,
    aten.rms_norm,
    aten.relu,
    aten.gelu,
    aten.silu,
}  # after these, nothing more can be added to a product
CURVED = {aten.erf, aten.tanh, aten.sigmoid}
ELEMENTWISE = {*CURVED, aten.mul, aten.div, aten.add, aten.pow}
"""Of which activations are written."""
BETWEEN = {aten.add, aten.sub, aten.mul, aten.div, aten.where}
"""What may be between the products of an attention, with factors and masks."""


# -- a tensor's type and shape


@replacing(aten.alias)
def aliases(_: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) a slice of the whole tensor into that tensor."""
    return node.all_input_nodes[0]


@replacing(aten.full_like)
def likes(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) full_like(y), which uses only the shape of y, into an operator without y, so that
    the host can compute it before the machine computes y. Not applied if the shape depends on data."""
    if not is_static(node):
        return None
    value = arguments(node)["fill_value"]
    return graph.insert(node, aten.full.default, list(shape_of(node)), value, dtype=dtype_of(node))


@replacing(aten.cat)
def joins(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) a cat into one without the parts that have no elements, such as optional tokens or a
    prefix that a model does not use.

    Not applied if no part has elements, or if parts have several types, which determine the type of the result.
    """
    if not is_static(node) or is_empty(node):
        return None
    a = arguments(node)
    parts = [x for x in a["tensors"] if not is_empty(x)]
    if len(parts) == len(a["tensors"]) or len({dtype_of(x) for x in a["tensors"]}) > 1:
        return None
    return graph.insert(node, aten.cat.default, parts, a["dim"]) if len(parts) > 1 else parts[0]


@replacing(aten.index)
def ranges(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) y[..., indices, :] with constant indices that follow each other into a slice of y.
    Not applied to results of the host, or with indices of more than one dimension."""
    a = arguments(node)
    x, indices = a["self"], a["indices"]
    given = [axis for axis, each in enumerate(indices) if each is not None]
    if x not in graph.computed or not is_static(node) or len(given) != 1 or indices[given[0]] not in graph.constants:
        return None
    at = graph.value(indices[given[0]])
    if at.dtype == torch.bool or at.ndim != 1 or not at.numel():
        return None
    size, first = shape_of(x)[given[0]], int(at[0])
    first += size * (first < 0)
    if not torch.equal(at % size, torch.arange(first, first + len(at))):
        return None
    return graph.insert(node, aten.slice.Tensor, x, given[0], first, first + len(at))


@replacing(aten.sub, aten.add, aten.neg)
def sums(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) x - y, and x + alpha * y in one operator, into a sum of x and a product with a
    number, and -x into -1 * x. Not applied to results of the host, or to numbers of another type than float32."""
    if node not in graph.computed or dtype_of(node) != torch.float32:
        return None
    a = arguments(node)
    if packet(node) is aten.neg:
        made = graph.insert(node, aten.mul.Tensor, a["self"], -1.0)
    else:
        x, y, factor = a["self"], a["other"], a["alpha"] * (-1 if packet(node) is aten.sub else 1)
        if factor == 1:
            return None
        y = graph.insert(node, aten.mul.Tensor, y, factor) if isinstance(y, Node) else y * factor
        made = graph.insert(node, aten.add.Tensor, *((x, y) if isinstance(x, Node) else (y, x)))
    made.meta[SPELLED] = op_name(node)
    return made


# -- convolutions


@replacing(*CONVOLUTIONS)
def patches(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) a convolution into a matrix product with a window per row.

    The host makes rows (..., windows, C * kernel) of (..., C, H, W): views where patches neither overlap nor gap, else
    it gathers them. The product's result is reshaped to (..., N, windows of H, windows of W). Not applied with groups;
    if the weight is not constant; if the machine could not process the result further, because then later products
    could not run on it; and on results of the machine, unless each patch is one position.
    """
    windows = windows_of(node) if is_static(node) and not is_empty(node) else None
    a = arguments(node)
    if windows is None or a["groups"] != 1:
        return None
    x, weight, bias = a["input"], a["weight"], a["bias"]
    constant = weight in graph.constants and (bias is None or bias in graph.constants) and x not in graph.constants
    if not constant or any(dtype_of(v) != torch.float32 for v in (node, x, weight)):
        return None
    if x in graph.computed:
        if not windows.is_patches or prod(windows.kernel) > 1:
            return None
    elif not _goes_on(graph, node):
        return None
    rows = patch_rows(graph, node, windows) if windows.is_patches else gathered_rows(graph, node, windows)
    if rows is None:
        return None
    matrix = graph.insert(node, aten.reshape.default, weight, [shape_of(weight)[0], -1])
    y = graph.insert(node, aten.linear.default, rows, matrix, bias)
    dims = len(shape_of(y))
    y = graph.insert(node, aten.permute.default, y, [*range(dims - 2), dims - 1, dims - 2])
    return graph.insert(node, aten.reshape.default, y, list(shape_of(node)))


def _goes_on(graph: Rewriter, node: Node, is_open: bool = True) -> bool:
    """Whether the machine could run all users of a product's result, up to the next products. is_open: a bias or a
    residual can still be added."""
    users = list(node.users)
    final = _activated(graph, node) if is_open else None
    if final is not None:
        return _goes_on(graph, final, False)
    return all(_takes(graph, user, node, is_open, len(users) == 1) for user in users)


def _activated(graph: Rewriter, node: Node) -> Node | None:
    """The result of an activation of a node that is written with several operators; None if there is none."""
    parts: dict[Node, None] = {node: None}
    grown = True
    while grown:
        users = {user: None for x in parts for user in x.users if packet(user) in ELEMENTWISE}
        new = [x for x in users if x not in parts and all(y in parts or not shape_of(y) for y in x.all_input_nodes)]
        parts |= dict.fromkeys(new)
        grown = bool(new)
    ends = [x for x in parts if any(user not in parts for user in x.users)]
    return ends[0] if len(ends) == 1 and any(packet(x) in CURVED for x in parts) else None


def _takes(graph: Rewriter, user: Node, node: Node, is_open: bool, is_sole: bool) -> bool:
    op = packet(user)
    if user.op == "output" or op in MATRIX_PRODUCTS or op is aten.scaled_dot_product_attention:
        return True
    if op in VIEWS:
        return _goes_on(graph, user, is_open)
    others = [x for x in user.all_input_nodes if x is not node]
    if op is aten.add and any(x in graph.computed for x in others):
        return True  # a residual
    if op is aten.add and not is_open:  # a pass over the sum
        return _goes_on(graph, user)
    if op is aten.cat and is_open and is_sole and any(x in graph.computed for x in others):
        parts = [x for x in user.all_input_nodes if x in graph.computed]
        return same_rows(parts) is not None and _goes_on(graph, user)
    if op is aten.add or op is aten.cat:
        return is_open and is_sole and not any(x in graph.computed for x in others) and _goes_on(graph, user)
    return (is_open or op is aten.layer_norm) and op in CLOSING and _goes_on(graph, user, False)


# -- attention over batches of heads


@replacing(aten.bmm)
def heads(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) attention over (batch * heads, seq, columns) into attention with heads in a separate
    dimension.

    The pattern is bmm(softmax(bmm(q, k^T)), v) with what is in `BETWEEN` between, as nn.MultiheadAttention computes it
    with need_weights=True. The batch follows from the product that the queries, or the keys, come from. Not applied
    with any other operator between the two products.
    """
    if is_empty(node) or packet(node.args[0]) is not aten.softmax:
        return None
    soft = node.args[0]
    a = arguments(soft)
    if a["dim"] not in (-1, 2) or a["dtype"] not in (None, torch.float32):
        return None
    between: list[tuple[Node, Node]] = []
    """Operators, each with its operand on the way to the scores."""
    x, bias = a["self"], None
    while packet(x) in BETWEEN:
        scores = [y for y in x.args if isinstance(y, Node) and y in graph.computed]
        is_twice = packet(x) is aten.add and len(scores) == 2 and scores[0] is scores[1]
        if (len(scores) != 1 and not is_twice) or x.kwargs:
            return None
        between.append((x, scores[0]))
        x = scores[0]
    a = arguments(x)
    if packet(x) is aten.baddbmm and a["beta"] == a["alpha"] == 1:
        q, k, bias = a["batch1"], a["batch2"], a["self"]
    elif packet(x) is aten.bmm:
        q, k = a["self"], a["mat2"]
    else:
        return None
    count, seq, _ = shape_of(q)
    rows = _rows_behind(graph, q)
    if rows is None:  # queries that no input decides, such as the probe of an attention that pools
        seq, rows = shape_of(k)[2], _rows_behind(graph, k)
    if rows is None or rows % seq or count % (rows // seq):
        return None
    batch = rows // seq

    def with_heads(x: Any) -> Any:
        shape = shape_of(x) if isinstance(x, Node) else ()
        if len(shape) != 3 or shape[0] != count:
            return x
        return graph.insert(node, aten.reshape.default, x, [batch, count // batch, *shape[1:]])

    y = graph.insert(node, aten.matmul.default, with_heads(q), with_heads(k))
    if bias is not None:
        y = graph.insert(node, aten.add.Tensor, y, with_heads(bias))
    for x, scores in reversed(between):
        y = graph.insert(node, x.target, *(y if z is scores else with_heads(z) for z in x.args))
    y = graph.insert(node, aten.softmax.int, y, -1)
    y = graph.insert(node, aten.matmul.default, y, with_heads(node.args[1]))
    return graph.insert(node, aten.reshape.default, y, list(shape_of(node)))


def _rows_behind(graph: Rewriter, node: Node) -> int | None:
    """The number of rows of the product that a tensor is a view or a multiple of; None if there is no such product."""
    while node not in graph.products:
        computed = [x for x in node.all_input_nodes if x in graph.computed]
        if len(computed) != 1 or not (packet(node) in VIEWS or packet(node) in (aten.mul, aten.div)):
            return None
        (node,) = computed
    return prod(shape_of(node)[:-1])


# -- rows of the host among those of a product


@replacing(aten.cat)
def rows(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) rows of the host that are joined with those of a product, such as class tokens
    before patches, into rows of the product.

    cat([token, x @ W + b], -2) becomes cat([0, x], -2) @ W + cat([token, b], -2), one product with one residual; 0 and
    b are expanded to the rows that they replace. Not applied if the machine computes more than one part, or the
    product's operand, because rows cannot be added there; if other operators than views are between product and cat; if
    the product's result has other users; or if the machine could not process the result further.
    """
    if not is_static(node):
        return None
    parts, axis, ndim = arguments(node)["tensors"], arguments(node)["dim"], len(shape_of(node))
    same = all(len(shape_of(x)) == ndim and dtype_of(x) == torch.float32 for x in parts)
    computed = [i for i, x in enumerate(parts) if x in graph.computed]
    if not same or ndim < 2 or axis % ndim != ndim - 2 or len(computed) != 1:
        return None
    at = computed[0]
    product = _seen_in_full(graph, parts[at])
    if product is None or product.x in graph.computed or not _goes_on(graph, node):
        return None
    origin, shape = product.node, shape_of(parts[at])
    x = product.x
    if shape_of(x)[:-1] != shape[:-1]:
        x = graph.insert(node, aten.reshape.default, x, [*shape[:-1], shape_of(x)[-1]], origin=origin)
    before, after = (sum(shape_of(part)[-2] for part in some) for some in (parts[:at], parts[at + 1 :]))
    x = graph.insert(node, aten.constant_pad_nd.default, x, [0, 0, before, after], origin=origin)
    y = graph.insert(node, aten.linear.default, x, graph.weight(node, product), origin=origin)
    if product.bias is not None:
        bias = graph.insert(node, aten.expand.default, product.bias, list(shape), origin=origin)
    else:
        bias = graph.insert(node, aten.full.default, list(shape), 0, dtype=torch.float32, origin=origin)
    residual = graph.insert(node, aten.cat.default, [*parts[:at], bias, *parts[at + 1 :]], axis)
    return graph.insert(node, aten.add.Tensor, y, residual)


def _views(node: Node) -> Iterator[Node]:
    """A node, and the chain of nodes that it is a view of."""
    yield node
    while packet(node) in VIEWS:
        node = node.all_input_nodes[0]
        yield node


def _seen_in_full(graph: Rewriter, node: Node) -> LinearProduct | None:
    """The product of which a node is all rows in order, through views without other users; None if there is none."""
    chain = list(_views(node))
    product = graph.products.get(chain[-1])
    if product is None or not all(map(graph.is_sole, chain)) or shape_of(node)[-1] != product.width:
        return None
    view = View.dense(shape_of(product.node))
    for x in reversed(chain[:-1]):
        shown = view if packet(x) in SAME else seen(view, x)
        if isinstance(shown, str):
            return None
        view = shown
    return product if view == View.dense(shape_of(node)) else None


# -- factors of scores


@replacing(aten.matmul, aten.bmm)
def scaled_scores(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) (q * a) @ (k * b), with numbers a and b, into (q @ k) * (a * b).

    PyTorch's exporter to ONNX writes the scale of scores so, half to each operand. Behind a rotation there is no
    product that could take it. Views may be between.
    """
    if node in graph.products:
        return None
    operands = [_unscaled(graph, x) for x in node.args if isinstance(x, Node)]
    scaled = [x for x in operands if x is not None]
    if len(scaled) != 2:
        return None
    plain, factor = [], 1.0
    for chain, x, times in scaled:
        factor *= times
        for view in reversed(chain):
            x = graph.insert(node, view.target, x, *view.args[1:], **view.kwargs)
        plain.append(x)
    product = graph.insert(node, node.target, *plain)
    return graph.insert(node, aten.mul.Tensor, product, factor)


def _unscaled(graph: Rewriter, node: Node) -> tuple[list[Node], Node, float] | None:
    """The views between a node and what it is a multiple of, that, and the factor; None if it is no multiple of a value
    that the machine computes, or if others use what is between."""
    chain: list[Node] = []
    while packet(node) in VIEWS and len(node.all_input_nodes) == 1 and graph.is_sole(node):
        chain.append(node)
        node = node.all_input_nodes[0]
    if packet(node) not in (aten.mul, aten.div) or not graph.is_sole(node) or node.kwargs:
        return None
    x, by = node.args
    if packet(node) is aten.mul and number(graph, x) is not None:
        x, by = by, x
    times = number(graph, by)
    if not isinstance(x, Node) or x not in graph.computed or times is None or shape_of(x) != shape_of(node):
        return None
    return (chain, x, times) if packet(node) is aten.mul else (chain, x, 1 / times) if times else None


# -- what the host adds to a product


@replacing(aten.add)
def host_sums(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) (x @ W + g) + h, with g and h from the host, into x @ W + (g + h), because a product
    takes one residual.

    Example: class tokens (`rows`) and then position embeddings are added. Views of the product may be between. Not
    applied if x @ W + g has other users, or if g or h is a constant vector, which becomes part of the product's bias
    anyway.
    """
    outer = _host_sum(graph, node)
    if outer is None:
        return None
    inside = outer[0]
    inner = _host_sum(graph, inside)
    if inner is None or not graph.is_sole(inside) or shape_of(inside) != shape_of(node):
        return None
    taking = inner[0]
    *_, behind = _views(taking)
    if behind not in graph.products or shape_of(taking) != shape_of(node):
        return None
    residual = graph.insert(node, aten.add.Tensor, inner[1], outer[1])
    return graph.insert(node, aten.add.Tensor, taking, residual)


def _host_sum(graph: Rewriter, node: Node) -> tuple[Node, Node] | None:
    """(computed value, tensor of the host) if a node is their sum and the tensor is no constant vector; else None."""
    a = arguments(node)
    if packet(node) is not aten.add or a["alpha"] != 1 or dtype_of(node) != torch.float32:
        return None
    x, y = a["self"], a["other"]
    if not isinstance(x, Node) or not isinstance(y, Node):
        return None
    if y in graph.computed:
        x, y = y, x
    if x not in graph.computed or y in graph.computed or dtype_of(y) != torch.float32:
        return None
    is_vector = y in graph.constants and prod(shape_of(y)) == (shape_of(y) or (1,))[-1]
    return None if is_vector else (x, y)


# -- products of columns from several places


def columns(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) a product of joined columns into a sum of products, one for the host's columns and
    one for each part that the machine computes.

    cat([g, h, x], -1) @ W + b becomes x @ W_x + (cat([g, h], -1) @ W_gh + b), with g and h from the host and x from the
    machine: each product is the residual of the next. Not applied if all parts are of the host; if no part has the rows
    of a product, e.g. only single rows of each sequence are left; or if a part is computed by operators that the
    machine cannot run between products, e.g. an elementwise product of two activations.
    """
    product = graph.products.get(node)
    if product is None:
        return None
    joined = product.x
    if packet(joined) is not aten.cat or arguments(joined)["dim"] % len(shape_of(node)) != len(shape_of(node)) - 1:
        return None
    parts = arguments(joined)["tensors"]
    count = prod(shape_of(node)[:-1])
    if not any(_has_rows(graph, part, count) for part in parts) or not all(_is_possible(graph, x) for x in parts):
        return None
    if any(dtype_of(part) != torch.float32 for part in parts if part in graph.computed):
        return None
    ends = list(accumulate((shape_of(part)[-1] for part in parts), initial=0))
    spanned = list(zip(parts, pairwise(ends), strict=True))
    host = [pair for pair in spanned if pair[0] not in graph.computed]
    groups = [host] if host else []
    groups += [[pair] for pair in spanned if pair[0] in graph.computed]
    total = None
    for group in groups:
        members = [_as_float(graph, node, part) for part, _ in group]
        x = members[0]
        if len(members) > 1:
            x = graph.insert(node, aten.cat.default, members, -1, origin=joined)
        weight = graph.weight(node, product, [span for _, span in group])
        y = graph.insert(node, aten.linear.default, x, weight, product.bias if total is None else None)
        total = y if total is None else graph.insert(node, aten.add.Tensor, y, total)
    return total


def _as_float(graph: Rewriter, at: Node, part: Node) -> Node:
    """The node converted to float32, the type that it gets when it is joined with floats."""
    if dtype_of(part) == torch.float32:
        return part
    return graph.insert(at, aten._to_copy.default, part, dtype=torch.float32, origin=part)


def _has_rows(graph: Rewriter, node: Node, count: int) -> bool:
    """Whether a node is computed from a product of `count` rows."""
    return any(prod(shape_of(x)[:-1]) == count for x in _behind(graph, node))


def _behind(graph: Rewriter, node: Node) -> set[Node]:
    """The nearest products and attentions that a node is computed from, not those further back."""
    found, seen, stack = set(), set(), [node]
    while stack:
        x = stack.pop()
        if x in graph.products or packet(x) is aten.scaled_dot_product_attention:
            found.add(x)
        elif x in graph.computed and x not in seen:
            seen.add(x)
            stack.extend(x.all_input_nodes)
    return found


def _is_possible(graph: Rewriter, node: Node) -> bool:
    """Whether the machine may run all operators between the nearest products and this node."""
    seen, stack = set(), [node]
    while stack:
        x = stack.pop()
        if x in graph.computed and x not in graph.products and x not in seen:
            seen.add(x)
            stack.extend(x.all_input_nodes)
            factors = [y for y in x.all_input_nodes if y in graph.computed] if packet(x) in (aten.mul, aten.div) else []
            if packet(x) not in RULES or (len(factors) > 1 and len(_behind(graph, x)) > 1):
                return False
    return True


REWRITES: tuple[Rewrite, ...] = (
    aliases,
    likes,
    joins,
    ranges,
    norms,
    einsums,
    scaled_scores,
    heads,
    score_masks,
    moved_up,
    rotations,
    column_factors,
    sums,
    patches,
    rows,
    host_sums,
    moved_rows,
    columns,
)
"""All rewrites, in order: one may make the next possible."""


def rewrite(program: ExportedProgram, rules: Sequence[Rewrite] = REWRITES) -> Premise | None:
    """Apply rewrites to a captured graph, in place. rules: in the order in which they are applied, each to all nodes.
    Returns the values that the graph is now made for, or None if it did not change."""
    graph, changed = Rewriter(program), False
    for rule in rules:
        for node in graph.nodes():
            new = rule(graph, node)
            if new is not None:
                graph.put(new, node)
                changed = True
    program.graph_module.recompile()
    return graph.premise if changed else None
