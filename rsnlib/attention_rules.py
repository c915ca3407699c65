"""Lowering rules of attention: operands, scale, and which masks the machine applies itself, adds as a constant bias, or
takes as an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ..base.errors import TensorError
from ..scheduler.graph import Array, Float64, Gemm
from .caches import attended
from .capture import arguments, dtype_of, module_path, op_name, packet, shape_of
from .layers import Base, HostInput
from .mask import FORBIDDEN, HIDDEN, PLAIN, Pattern, key_spans, pattern_of
from .values import Abstract, AbstractState, Arguments, PartialAttention, Value, is_host, unsupported
from .view import View

aten = torch.ops.aten


def softmax(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of softmax: supported over the keys of an attention only."""
    scores = values.of[a["self"]]
    if not isinstance(scores, PartialAttention) or scores.normal or a["dim"] not in (-1, 3):
        return "a softmax is supported only over the keys of an attention"
    if dtype_of(node) != torch.float32:
        return f"a softmax in {dtype_of(node)}; the machine computes in float32"
    return replace(scores, normal=True)


def filled(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of the operator `where`: the machine never runs it, so the rule returns
    the reason. A `where` that hides scores does not come here: `score_masks` makes it a mask before."""
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
    """Lowering rule (`values.LoweringPattern`) of scaled_dot_product_attention, a whole attention in one operator.
    Raises `UnsupportedError` for dropout in training mode, and as `attend` does."""
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
    """Return the value of a new attention layer, softmax(scores + masks) @ v, where the scores are factor * q @ k^T.

    values, node: as for a `values.LoweringPattern`. q, k, v: shape (batch, heads, rows, columns of a head); k and v may
    have another number of rows than q, and fewer heads, each of which serves a group of heads of q. factor: a number,
    or one per head, shape (heads,); it is folded into the weights of the keys. masks: nodes that broadcast to the
    scores. causal: the keys behind each row are hidden too. cap: the scores become cap * tanh(scores) before the masks
    are added; None leaves them. Raises `UnsupportedError` for attention that the machine cannot run.
    """
    k, v = _apart(k), _apart(v)
    shapes = [x.view.shape if isinstance(x, Value) else () for x in (q, k, v)]
    if len(shapes[0]) != 4 or shapes[0][0] != values.batch or shapes[0][2] not in values.seqs:
        raise unsupported(node, f"its query is {shapes[0]}, not ({values.batch}, heads, {values.seq}, columns)")
    _, heads, rows, columns = shapes[0]
    if values.appends:
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
        elif isinstance(key, Gemm) and key not in cached and (isinstance(factor, float) or heads == kv_heads):
            each = np.repeat(factor, key.width // np.size(factor))
            key = values.layers.pass_over(f"{module_path(node)}.keys".lstrip("."), key, scale=each)
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
    return Value(layer, values.in_heads(shapes[0]))


def _apart(x: Abstract) -> Abstract:
    """A key or a value without the repetitions of each head for a group of queries."""
    if not isinstance(x, Value) or len(x.view.dims) != 4:
        return x
    view, _ = x.view.once(1)
    return Value(x.base, view)


def _scaled(values: AbstractState, node: Node, key: Base, factor: float | Float64, groups: int) -> Base | None:
    """The keys, or the queries, multiplied by the factor of the scores, a number or one per query head; None if their
    weights, or the scale of their norm, cannot take it up. Not fused: if queries and keys share a projection, it is
    computed twice, with and without the factor. Keys of the host get a product with a diagonal matrix."""
    if isinstance(key, HostInput) and groups == 1:
        each = np.repeat(factor, key.width // len(np.atleast_1d(factor)))
        weight, bias = np.diag(each).astype(np.float32), np.zeros(key.width)
        return values.layers.product(f"{module_path(node)}.keys".lstrip("."), key, weight, bias)
    if isinstance(key, Gemm) and isinstance(factor, float):
        if key.norm is not None or not (key.multiplies or key.is_sum):  # with a norm, or a pass
            scale = np.ones(key.width) if key.scale is None else key.scale
            shift = None if key.shift is None else key.shift * factor
            return values.layers.variant(key, scale=scale * factor, shift=shift)
        if key.residual is not None or key.gated or key.activation is not None:
            return None
        return values.layers.variant(key, factor=key.factor * factor)
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
    shown = values.in_heads(x.view.shape)
    found = values.fit(x, lambda view, width: (view, width) == (shown, heads * columns))
    for order in ((0, 1, 2, 3), (0, 1, 3, 2)) if found is None else ():  # the keys may exist transposed alone
        node_shown = values.shown.get(Value(x.base, x.view.permute(order)))
        if node_shown is not None:
            return values.source(node_shown, shown.permute(order), heads * columns)
    if found is None:
        raise unsupported(node, f"its {name} is not a projection of {values.batch} x {rows} rows, cut into heads")
    return found.base


@dataclass(frozen=True)
class Masks:
    """The masks of an attention. fields: values for the fields of its `AttentionLayer` that describe masks, by the name
    of the field. counted: the node of the mask that hides keys of padding, from which the host computes run-time
    lengths; None if no mask does."""

    fields: dict[str, Any]
    counted: Node | None


def masks_of(
    values: AbstractState, node: Node, masks: Sequence[Node], full: tuple[int, int, int, int], causal: bool
) -> Masks:
    """Return how the machine applies the masks of an attention: by run-time lengths, a causal order, a window, a
    constant bias, or an input that is added to the scores.

    values, node: as for a `values.LoweringPattern`. masks: nodes that broadcast to the scores; their sum is added to
    these. full: the shape of the scores, (batch, heads, rows, keys). causal: the keys behind each row are hidden too.
    Raises `UnsupportedError` for masks that the machine cannot apply.
    """
    keys = full[3]
    mask, constant = _divided(values, node, masks, keys)
    pattern = _pattern(values, mask, keys)
    if mask is not None:  # constant masks without padding say only which keys each row sees
        plain = [term for term in constant if _only_shows(values, term, keys)]
        constant = [term for term in constant if term not in plain]
        pattern = _together([pattern, *(_pattern(values, term, keys) for term in plain)])
    is_added = mask is not None and not values.is_constant(mask) and values.patterns.get(mask, PLAIN) is None
    if mask is not None and not values.is_constant(mask) and any(_may_hide(values, term) for term in constant):
        is_added = True  # together they may hide all keys of a row
    if is_added and len(masks) == 1:  # with its constant terms and its guard
        mask, constant = masks[0], []
    masked = mask is not None and not is_added and _hides(values, mask, keys)
    causal = causal or pattern.causal
    if (causal or pattern.window is not None) and full[2] != keys:
        kind = "causal" if causal else "a window"
        raise unsupported(
            node, f"it is {kind} over {full[2]} rows and {keys} keys; the machine takes as many keys as rows"
        )
    fields = {
        "masked": masked,
        "causal": causal,
        "window": pattern.window,
        "left": masked and pattern.left,
        "bias": _bias(values, node, constant, full),
    }
    if is_added and mask is not None:
        fields |= _added(values, node, mask, full)
    return Masks(fields, mask if masked else None)


def _divided(values: AbstractState, node: Node, masks: Sequence[Node], keys: int) -> tuple[Node | None, list[Node]]:
    """Divide masks into the one that the machine applies itself (it hides whole keys, is causal or a window; may be
    None), and constant ones, whose sum becomes a bias of the scores. keys: of a sequence."""
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
    `where` of a condition between a constant and a hiding number gives two terms: the condition and the constant.
    Guards (`score_masks`) are left out: rows that see no key are padding here."""
    if _is_guard(mask):
        return _terms(values, arguments(mask)["other"])
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


def _is_guard(node: Node) -> bool:
    """Whether a node is a mask with NaN in rows that see no key."""
    kept = arguments(node)["self"] if packet(node) is aten.where else None
    return isinstance(kept, float) and isnan(kept)


def _together(patterns: Sequence[Pattern]) -> Pattern:
    """What a row sees if it must see a key by all patterns."""
    windows = [pattern.window for pattern in patterns if pattern.window is not None]
    return Pattern(any(x.causal for x in patterns), min(windows, default=None), any(x.left for x in patterns))


def _only_shows(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether a constant mask hides keys behind each row or out of a window, and nothing else."""
    return _is_plain(values, mask, keys) and not _hides(values, mask, keys)


def _is_plain(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether the machine can apply a constant mask without a bias: a prefix of keys, causal, a window, or neither."""
    try:
        return not pattern_of(values.constant(mask), values.batch, keys).left
    except TensorError:
        return False


def _pattern(values: AbstractState, mask: Node | None, keys: int) -> Pattern:
    """Which keys a mask shows to each row; for a mask from the arguments, what the example's shows."""
    if mask is None:
        return PLAIN
    if not values.is_constant(mask):
        return values.patterns.get(mask) or PLAIN
    return pattern_of(values.constant(mask), values.batch, keys)


def _may_hide(values: AbstractState, term: Node) -> bool:
    """Whether a constant mask hides a key from some row."""
    value = values.constant(term)
    return bool((~value if value.dtype == torch.bool else value <= HIDDEN).any())


def _hides(values: AbstractState, mask: Node, keys: int) -> bool:
    """Whether a mask may hide whole keys."""
    if not values.is_constant(mask):
        return True
    spans = key_spans(values.constant(mask), values.batch, keys, _pattern(values, mask, keys))
    return spans.starts is not None or bool((spans.lengths < keys).any())


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


def _added(values: AbstractState, node: Node, mask: Node, full: tuple[int, int, int, int]) -> dict[str, Any]:
    """The fields of an attention with a mask from the arguments that is added to the scores: an input of the machine of
    (batch, heads of the mask * rows, keys)."""
    x = mask
    while packet(x) is aten.expand:
        x = arguments(x)["self"]
    shape = (1,) * (4 - len(shape_of(x))) + shape_of(x)
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, full, strict=True)):
        raise unsupported(node, f"its mask has shape {shape_of(mask)}, which does not fit scores of shape {full}")
    if dtype_of(mask) not in (torch.bool, torch.float32):
        raise unsupported(node, f"its mask is {dtype_of(mask)}; it must be bool or float32")
    view = View.dense((full[0], shape[1], *full[2:]))
    return {"mask": values.source(x, view, full[3]).y, "mask_heads": shape[1]}
