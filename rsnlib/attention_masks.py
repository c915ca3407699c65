"""Masks of an attention: which of them the machine applies itself, adds as a constant bias, or takes as an input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import torch
from torch.fx import Node

from ..base.errors import TensorError
from ..scheduler.graph import Array
from .capture import arguments, dtype_of, packet, shape_of
from .mask import FORBIDDEN, HIDDEN, PLAIN, Pattern, key_spans, pattern_of
from .values import AbstractState, is_host, unsupported
from .view import View

aten = torch.ops.aten


@dataclass(frozen=True)
class Masks:
    """The masks of an attention. fields: of its layer. counted: the mask that hides keys of padding, of which the host
    tells the machine the lengths; None without."""

    fields: dict[str, Any]
    counted: Node | None


def masks_of(
    values: AbstractState, node: Node, masks: Sequence[Node], full: tuple[int, int, int, int], causal: bool
) -> Masks:
    """Divide the masks of an attention, whose sum is added to the scores.

    full: the shape of the scores, (batch, heads, rows, keys). causal: keys behind each row are hidden besides. Raises
    UnsupportedError for masks that the machine cannot take.
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
