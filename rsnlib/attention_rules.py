"""Lowering rules of attention: operands, scale, and which masks the machine applies itself or adds as a bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.fx import Node

from ..base.errors import TensorError
from ..machine.view import View
from ..scheduler.graph import Array, Float64, Gemm
from .capture import arguments, dtype_of, module_path, packet, shape_of
from .layers import Base
from .mask import HIDDEN, is_causal, prefix_lengths
from .values import Abstract, AbstractState, Arguments, PartialAttention, Value, is_host, unsupported
from .view_rules import IDENTITIES

aten = torch.ops.aten

FORBIDDEN = -1e30
"""Bias of masked-out scores: like -inf beside any real score, but finite."""


def softmax(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of softmax: supported over the keys of an attention only."""
    scores = values.of[a["self"]]
    if not isinstance(scores, PartialAttention) or scores.normal or a["dim"] not in (-1, 3):
        return "a softmax is supported only over the keys of an attention"
    if dtype_of(node) != torch.float32:
        return f"a softmax in {dtype_of(node)}; the machine computes in float32"
    return replace(scores, normal=True)


def scaled_dot_product_attention(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Rule of scaled_dot_product_attention, a whole attention in one operator."""
    if a["enable_gqa"]:
        raise unsupported(node, "its queries have more heads than its keys (enable_gqa)")
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
) -> Abstract:
    """Make an attention layer, softmax(factor * q @ k^T + masks) @ v.

    q, k, v: shape (batch, heads, rows, columns of a head); k and v may have other rows than q. factor: a number, or one
    per head, shape (heads,); it is folded into the weights of the keys. causal: also mask out the keys behind each row.
    Raises UnsupportedError for attention that the machine cannot run.
    """
    shapes = [x.view.shape if isinstance(x, Value) else () for x in (q, k, v)]
    if len(shapes[0]) != 4 or shapes[0][0] != values.batch or shapes[0][2] not in values.seqs:
        raise unsupported(node, f"its query is {shapes[0]}, not ({values.batch}, heads, {values.seq}, columns)")
    _, heads, rows, columns = shapes[0]
    keys = shapes[1][2] if len(shapes[1]) == 4 else 0
    if shapes[1] != shapes[2] or shapes[1] != (values.batch, heads, keys, columns):
        raise unsupported(
            node,
            f"its query, key and value are {shapes[0]}, {shapes[1]} and {shapes[2]}; the machine takes equal shapes, "
            "but for the rows of the query",
        )
    query = _projection(values, node, "query", q, rows)
    key, value = (_projection(values, node, name, x, keys) for name, x in (("key", k), ("value", v)))
    if np.any(factor != 1):
        if not isinstance(key, Gemm) or not key.is_open or key.residual is not None:
            raise unsupported(node, "its key is not a plain projection whose weight could take up the score scale")
        # Not fused: if queries and keys share a projection, it is computed twice, with and without the scale.
        if isinstance(factor, float):
            key = values.layers.variant(key, factor=key.factor * factor)
        else:
            each = np.repeat(factor, columns)
            weight = (key.weight * each).astype(np.float32)
            key = values.layers.variant(key, weight=weight, bias=key.bias * each)
    if causal and rows != keys:
        raise unsupported(
            node, f"it is causal over {rows} rows and {keys} keys; the machine takes as many keys as rows"
        )
    mask, constant = _masks(values, node, masks, keys)
    if mask is not None and any(_is_only_causal(values, term, keys) for term in constant):
        causal, constant = True, [term for term in constant if not _is_only_causal(values, term, keys)]
    causal = causal or (mask is not None and _is_causal(values, mask, keys))
    masked = mask is not None and _hides(values, mask, keys)
    counted = next((values.seq_of(values.layers.of(x.k)) for x in values.masks), keys)
    if masked and counted != keys:
        raise unsupported(
            node, f"its mask counts {keys} keys, that of an attention before it {counted}; a program counts one kind"
        )
    bias = _bias(values, node, constant, (values.batch, heads, rows, keys))
    fields = {"masked": masked, "causal": causal, "bias": bias}
    layer = values.layers.attention(module_path(node), query, key, value, heads, columns, **fields)
    if mask is not None and masked:
        values.masks[layer] = mask
    return Value(layer, _form(values, rows, heads, columns))


def _form(values: AbstractState, rows: int, heads: int, columns: int) -> View:
    """The view of an activation as (batch, heads, rows, columns of a head)."""
    return View.dense((values.batch, rows, heads, columns)).permute((0, 2, 1, 3))


def _masks(values: AbstractState, node: Node, masks: Sequence[Node], keys: int) -> tuple[Node | None, list[Node]]:
    """Divide masks into the one that the machine applies itself (it hides whole keys, or is causal; may be None), and
    constant ones, whose sum becomes a bias of the scores. keys: of a sequence."""
    terms = [term for mask in masks for term in _terms(values, mask)]
    if not all(is_host(values.of[term]) for term in terms):
        raise unsupported(node, "its mask is computed on the machine")
    own = [term for term in terms if not values.is_constant(term)]
    if len(own) > 1:
        raise unsupported(node, f"{len(own)} masks come from the arguments; the machine takes one")
    constant = [term for term in terms if values.is_constant(term)]
    if not own:
        own = [term for term in constant if _is_plain(values, term, keys)][:1]
    return (own[0] if own else None), [term for term in constant if term not in own]


def _terms(values: AbstractState, mask: Node) -> list[Node]:
    """Divide a mask into terms whose sum it is, so that constant terms are separate from those of the arguments. A
    `where` of a condition between a constant and a hiding number gives two terms: the condition and the constant."""
    while packet(mask) in IDENTITIES and dtype_of(mask) == dtype_of(mask.all_input_nodes[0]):
        mask = mask.all_input_nodes[0]
    if packet(mask) is aten.where:
        a = arguments(mask)
        condition, kept, other = a["condition"], a["self"], values.number(a["other"])
        hides = other is not None and other <= HIDDEN and dtype_of(condition) == torch.bool
        return [condition, *_terms(values, kept)] if hides and values.is_constant(kept) else [mask]
    if packet(mask) is not aten.add or arguments(mask)["alpha"] != 1:
        return [mask]
    parts = mask.args[:2]
    if not all(isinstance(part, Node) for part in parts) or not any(map(values.is_constant, parts)):
        return [mask]
    if any(dtype_of(part) != torch.float32 for part in parts):  # a sum of bools is no sum of masks
        return [mask]
    return [term for part in parts for term in _terms(values, part)]


def _is_only_causal(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether a constant mask hides the keys behind each row, and nothing else."""
    return _is_causal(values, mask, keys) and not _hides(values, mask, keys)


def _is_plain(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether the machine can apply a constant mask without a bias: a prefix of keys, causal or not."""
    try:
        prefix_lengths(values.constant(mask), values.batch, keys, _is_causal(values, mask, keys))
    except TensorError:
        return False
    return True


def _bias(values: AbstractState, node: Node, terms: Sequence[Node], full: tuple[int, int, int, int]) -> Array | None:
    """The sum of constant masks, (batch or 1, heads or 1, rows, keys); None if it is 0 everywhere. full: the shape
    of the scores."""
    if not terms:
        return None
    total = torch.zeros(())
    for term in terms:
        value = values.constant(term)
        total = total + (torch.where(value, 0.0, FORBIDDEN) if value.dtype == torch.bool else value.float())
    shape = (1,) * (4 - total.ndim) + tuple(total.shape)
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, full, strict=True)):
        raise unsupported(node, f"its mask has shape {tuple(total.shape)}, which does not fit scores of shape {full}")
    total = total.reshape(shape).expand(*shape[:2], *full[2:])
    if bool((total.amax(-1) <= HIDDEN).any()):
        raise unsupported(node, "its mask hides every key of a row")
    total = total.clamp(min=FORBIDDEN)
    for axis in (0, 1):
        if bool((total == total.narrow(axis, 0, 1)).all()):
            total = total.narrow(axis, 0, 1)
    if not bool(total.isfinite().all()):
        raise unsupported(node, "its mask has values that are NaN or +inf")
    return values.once("bias", total.contiguous().numpy()) if bool(total.any()) else None


def _projection(values: AbstractState, node: Node, name: str, x: Abstract, rows: int) -> Base:
    """The projection of so many rows that an operand of attention is, cut into heads; or a tensor of the host, such
    as a query that is a constant. Raises UnsupportedError for other operands."""
    assert isinstance(x, Value)
    _, heads, _, columns = x.view.shape
    form = _form(values, rows, heads, columns)
    found = values.fit(x, lambda view, width: view == form)
    for order in ((0, 1, 2, 3), (0, 1, 3, 2)) if found is None else ():  # the keys may exist transposed alone
        node_shown = values.shown.get(Value(x.base, x.view.permute(order)))
        if node_shown is not None:
            return values.source(node_shown, form.permute(order), heads * columns)
    if found is None:
        raise unsupported(node, f"its {name} is not a projection of {values.batch} x {rows} rows, cut into heads")
    return found.base


def _is_causal(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether a mask hides the keys behind each row; for a mask from the arguments, whether the example's does."""
    if not values.is_constant(mask):
        return mask in values.causal
    try:
        return is_causal(values.constant(mask), values.batch, keys)
    except TensorError:
        return False  # the rule that uses the mask reports the error


def _hides(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether a mask may hide whole keys."""
    if not values.is_constant(mask):
        return True
    lengths = prefix_lengths(values.constant(mask), values.batch, keys, _is_causal(values, mask, keys))
    return bool((lengths < keys).any())
