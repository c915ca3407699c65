"""Lowering rules of attention: operands, scale, and which masks the machine applies itself or adds as a bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.fx import Node

from ..scheduler.graph import Float64, Gemm
from .attention_masks import masks_of
from .caches import attended, form
from .capture import dtype_of, module_path, op_name, shape_of
from .head_rules import scaled_keys
from .layers import Base, HostInput
from .mask import HIDDEN
from .values import Abstract, AbstractState, Arguments, PartialAttention, Value, unsupported

aten = torch.ops.aten


def softmax(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of softmax: supported over the keys of an attention only."""
    scores = values.of[a["self"]]
    if not isinstance(scores, PartialAttention) or scores.normal or a["dim"] not in (-1, 3):
        return "a softmax is supported only over the keys of an attention"
    if dtype_of(node) != torch.float32:
        return f"a softmax in {dtype_of(node)}; the machine computes in float32"
    return replace(scores, normal=True)


def filled(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of where, which the machine never runs: it returns the reason. One that hides scores is rewritten before,
    into a mask that is added to them (`score_masks`)."""
    given = (a["self"], a["other"])
    scores = next((x for x in given if isinstance(x, Node) and isinstance(values.of[x], PartialAttention)), None)
    if scores is None:
        return f"{op_name(node)} is not an operation of the machine"
    value = values.number(given[0] if scores is given[1] else given[1])
    if value is None or value <= HIDDEN:
        return (
            f"it is no mask that is added: a score may become a constant number of {HIDDEN:g} or less, which factors "
            "behind it count for, where a tensor of the host says so"
        )
    return f"it replaces scores by {value:g}; the machine hides scores, by {HIDDEN:g} or less"


def scaled_dot_product_attention(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of scaled_dot_product_attention, a whole attention in one operator."""
    if a["dropout_p"]:
        raise unsupported(node, "dropout in training mode")
    q, k, v = (values.of[a[x]] for x in ("query", "key", "value"))
    factor = shape_of(a["query"])[-1] ** -0.5 if a["scale"] is None else float(a["scale"])
    masks = () if a["attn_mask"] is None else (a["attn_mask"],)
    return attend(values, node, q, k, v, factor, masks, a["is_causal"])


def attend(
    values: AbstractState,
    node: Node,
    q: Abstract,
    k: Abstract,
    v: Abstract,
    factor: float | Float64,
    masks: Sequence[Node],
    causal: bool = False,
    cap: float | None = None,
) -> Abstract:
    """Make an attention layer, softmax(factor * q @ k^T + masks) @ v, or with cap * tanh(factor * q @ k^T).

    q, k, v: shape (batch, heads, rows, columns of a head); k and v may have other rows than q, and fewer heads, or
    repeat each for a group of queries. factor: a number, or one per head, shape (heads,); it is folded into the weights
    of the keys. causal: also mask out the keys behind each row. Raises UnsupportedError for attention that the machine
    cannot run.
    """
    k, v = _apart(k), _apart(v)
    shapes = [x.view.shape if isinstance(x, Value) else () for x in (q, k, v)]
    if len(shapes[0]) != 4 or shapes[0][0] != values.batch or shapes[0][2] not in values.seqs:
        raise unsupported(node, f"its query is {shapes[0]}, not ({values.batch}, heads, {values.seq}, columns)")
    _, heads, rows, columns = shapes[0]
    k, v = (attended(values, node, x, rows, masks, causal) for x in (k, v))
    shapes[1:] = [x.view.shape if isinstance(x, Value) else () for x in (k, v)]
    kv_heads, keys = shapes[1][1:3] if len(shapes[1]) == 4 else (heads, 0)
    if shapes[1] != shapes[2] or shapes[1] != (values.batch, kv_heads, keys, columns) or heads % kv_heads:
        raise unsupported(
            node,
            f"its query, key and value are {shapes[0]}, {shapes[1]} and {shapes[2]}; the machine takes equal shapes, "
            "but for the rows of the query, and for heads of which each key serves as many",
        )
    query = _projection(values, node, "query", q, rows)
    key, value = (_projection(values, node, name, x, keys) for name, x in (("key", k), ("value", v)))
    cached = {*values.appends, *(append.new.base for append in values.appends.values())}
    if cap is not None:
        factor = factor * cap  # the machine divides by it again
    if np.any(factor != 1):
        scaled = None if key in cached else _scaled(values, node, key, factor, heads // kv_heads)
        if scaled is not None:
            key = scaled
        elif (scaled := _scaled(values, node, query, factor, 1)) is not None:
            query = scaled
        else:
            raise unsupported(node, "neither its key nor its query is a projection that could take up the score scale")
    found = masks_of(values, node, masks, (values.batch, heads, rows, keys), causal)
    counted = next((values.seq_of(values.layers.of(x.k)) for x in values.masks if not x.counted), keys)
    own = keys if found.counted is not None and counted != keys else 0
    if own and not (isinstance(key, Gemm) and key in values.appends):
        raise unsupported(
            node, f"its mask counts {keys} keys, that of an attention before it {counted}; a program counts one kind"
        )
    fields = found.fields | {
        "softcap": None if cap is None else abs(cap),
        "kv_heads": kv_heads if kv_heads != heads else 0,
        "counted": own,
    }
    layer = values.layers.attention(module_path(node), query, key, value, heads, columns, **fields)
    if found.counted is not None:
        values.masks[layer] = found.counted
    return Value(layer, form(values, shapes[0]))


def _apart(x: Abstract) -> Abstract:
    """A key or a value without the repetitions of each head for a group of queries."""
    if not isinstance(x, Value) or len(x.view.dims) != 4:
        return x
    view, _ = x.view.once(1)
    return Value(x.base, view)


def _scaled(values: AbstractState, node: Node, key: Base, factor: float | Float64, groups: int) -> Base | None:
    """The keys, or the queries, multiplied by the factor of the scores, a number or one per query head; None if their
    weights cannot take it up. Not fused: if queries and keys share a projection, it is computed twice, with and without
    the factor. Keys of the host get a product with a diagonal matrix."""
    if isinstance(key, HostInput) and groups == 1:
        each = np.repeat(factor, key.width // len(np.atleast_1d(factor)))
        weight, bias = np.diag(each).astype(np.float32), np.zeros(key.width)
        return values.layers.product(f"{module_path(node)}.keys".lstrip("."), key, weight, bias)
    if isinstance(key, Gemm) and isinstance(factor, float):
        return scaled_keys(values, key, factor)
    if isinstance(key, Gemm) and key.is_open and key.residual is None and groups == 1:
        each = np.repeat(factor, key.width // len(np.atleast_1d(factor)))
        weight = (key.weight * each).astype(np.float32)
        return values.layers.variant(key, weight=weight, bias=key.bias * each)
    return None


def _projection(values: AbstractState, node: Node, name: str, x: Abstract, rows: int) -> Base:
    """The projection of so many rows that an operand of attention is, cut into heads; or a tensor of the host, such
    as a query that is a constant. Raises UnsupportedError for other operands."""
    assert isinstance(x, Value)
    _, heads, _, columns = x.view.shape
    shown = form(values, x.view.shape)
    found = values.fit(x, lambda view, width: (view, width) == (shown, heads * columns))
    for order in ((0, 1, 2, 3), (0, 1, 3, 2)) if found is None else ():  # the keys may exist transposed alone
        node_shown = values.shown.get(Value(x.base, x.view.permute(order)))
        if node_shown is not None:
            return values.source(node_shown, shown.permute(order), heads * columns)
    if found is None:
        raise unsupported(node, f"its {name} is not a projection of {values.batch} x {rows} rows, cut into heads")
    return found.base
