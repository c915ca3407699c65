"""Attention as kernels: scores of queries and keys, their product with values, rows added to a cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ...machine.view import View, merge
from ..capture import shape_of
from .operators import Array, Operator
from .reading import Reader, Refused
from .showing import HeadRead, Shown, heads_of, part_of

NEVER = -torch.finfo(torch.float32).max / 2
"""What is added to a score below this hides it."""


def flat_matrices(tensor: torch.Tensor, view: View) -> Array:
    """The flat matrices of which a tensor, after broadcasting, is `view`. Of a Boolean tensor what is false becomes
    minus infinity, and what is true 0."""
    x = tensor.detach()
    x = torch.where(x, 0.0, -torch.inf) if x.dtype == torch.bool else x.to(torch.float32)
    x = x.broadcast_to(view.shape)
    flat = torch.empty(x.numel(), dtype=torch.float32)
    shown = flat.as_strided([size for size, _ in view.atoms], [stride for _, stride in view.atoms], view.offset)
    shown.copy_(x.reshape(shown.shape))
    array: Array = flat.numpy()
    return array


def scores_of(
    reader: Reader,
    node: Node,
    queries: Node,
    keys: Node,
    *,
    scale: float = 1.0,
    mask: Node | None = None,
    causal: bool = False,
    transposed: bool = False,
) -> Shown:
    """queries @ keys^T * scale + mask for each head. transposed: the product is with the transpose of `keys`; otherwise
    `keys` is that transpose."""
    q, k = _read(reader, queries), _read(reader, keys, swapped=not transposed)
    heads = q.count
    if q.repeats != 1 or heads % k.count or k.count * k.repeats not in (heads, k.count) or q.columns != k.columns:
        raise Refused(f"{q.count} heads of queries with {q.columns} columns, {k.count} of keys with {k.columns}")
    seen = _seen(reader, mask, causal, heads, q.rows, k.rows)
    operands = [_whole(reader, q), _whole(reader, k), *([] if isinstance(seen, dict) else [seen])]
    attributes: dict[str, Any] = {"heads": heads, "key_heads": k.count, "columns": q.columns, "scale": scale}
    attributes |= seen if isinstance(seen, dict) else {}
    shape = heads, q.rows, k.rows
    if len(shape_of(queries)) == 2 and heads > 1:
        raise Refused("heads of a tensor without a dimension for them")
    made = reader.operator(node, "scores", operands, shape, **attributes)
    return Shown(made, View.dense((*shape_of(queries)[:-1], k.rows)))


def attend(reader: Reader, node: Node, weights: Node | Shown, values: Node) -> Shown | None:
    """weights @ values for each head; None if `weights` are no matrix for each head, or `values` are no heads."""
    if isinstance(weights, Node):
        value = reader.of[weights]
        if not isinstance(value, Shown):
            return None
        weights = value
    heads, rows, keys = weights.operator.shape
    part = part_of(weights)
    if part is None or not part.is_whole or part.view != View.dense(weights.shape) or weights.shape[-1] != keys:
        return None
    v = heads_of(reader.shown(values))
    if v is None or prod(weights.shape[:-2]) != heads:
        return None
    if v.rows != keys or heads % v.count or v.count * v.repeats not in (heads, v.count):
        return None
    attributes = {"heads": heads, "key_heads": v.count, "columns": v.columns}
    made = reader.operator(
        node, "attend", (weights.operator, _whole(reader, v)), (1, rows, heads * v.columns), **attributes
    )
    dims = [merge([(heads, v.columns)]), merge([(rows, heads * v.columns)]), merge([(v.columns, 1)])]
    return Shown(made, View((*((),) * (len(weights.shape) - 3), *dims[3 - min(3, len(weights.shape)) :])))


def _read(reader: Reader, node: Node, *, swapped: bool = False) -> HeadRead:
    """The heads of an operand. swapped: its last two dimensions are in the other order."""
    shown = reader.shown(node)
    if swapped:
        order = list(range(len(shown.shape)))
        order[-2:] = order[-1], order[-2]
        shown = Shown(shown.operator, shown.view.permute(order))
    read = heads_of(shown)
    if read is None:
        batch = shape_of(node)[:-3]
        more = f"a batch of {prod(batch)}; kernels of attention take one sequence" if prod(batch) != 1 else (
            "no heads that stand side by side in columns, or one below the other"
        )  # fmt: skip
        raise Refused(f"{node.name} {list(shape_of(node))} has {more}")
    return read


def _whole(reader: Reader, read: HeadRead) -> Operator:
    operator = reader.whole(read.part)
    if read.side_by_side or operator.shape[0] == read.count:
        return operator
    if not operator.is_memory:
        raise Refused(f"{operator.name} has its heads one below the other in one matrix")
    return reader.regrouped(operator, (read.count, read.rows, read.columns))


def _seen(
    reader: Reader, mask: Node | None, causal: bool, heads: int, rows: int, keys: int
) -> dict[str, int] | Operator:
    """Which keys a row sees, as attributes, or as a tensor to add."""
    if mask is None:
        return {"last": 0} if causal else {}
    if causal:
        raise Refused("it has both a mask and is_causal")
    shape = shape_of(mask)
    if prod(shape[:-3]) != 1:
        raise Refused(f"its mask has shape {list(shape)}; kernels of attention take one sequence")
    each = len(shape) > 2 and shape[-3] != 1
    matrices = (heads if each else 1), rows, keys
    view = View.dense((*(1,) * max(0, len(shape) - 3), *(matrices if len(shape) > 2 else matrices[1:])))
    if mask in reader.constants:
        table = flat_matrices(reader.constants.value(mask), view).reshape(matrices)
        if (table <= NEVER).all(axis=-1).any():
            raise Refused("its mask hides all keys of a row")
        band = _band(table)
        return reader.constant(mask, "mask", table) if band is None else band
    return reader.memory(mask, view, matrices, masks=True)


def _band(table: Array) -> dict[str, int] | None:
    """The diagonals that a mask shows, first to last, counted from the main one; None if it is no band."""
    hidden = table <= NEVER
    if table[~hidden].any() or (hidden != hidden[:1]).any():
        return None
    rows, keys = hidden.shape[1:]
    diagonal = np.arange(keys)[None, :] - np.arange(rows)[:, None]
    first, last = int(diagonal[~hidden[0]].min()), int(diagonal[~hidden[0]].max())
    if not np.array_equal((diagonal >= first) & (diagonal <= last), ~hidden[0]):
        return None
    lower = {"first": first} if first > 1 - rows else {}
    return lower | ({"last": last} if last < keys - 1 else {})


def joined_rows(reader: Reader, node: Node, parts: Sequence[Node], dim: int) -> Shown:
    """cat of the heads of a tensor of the host and of computed ones along their rows."""
    rank = len(shape_of(node))
    if len(parts) != 2 or dim % rank != rank - 2:
        raise Refused("kernels join two tensors, along the last dimension but one: a cache and new rows")
    reads = [_read(reader, x) for x in parts]
    first, second = reads
    if (first.count, first.columns) != (second.count, second.columns) or first.repeats * second.repeats != 1:
        raise Refused("its parts have different heads")
    shape = first.count, first.rows + second.rows, first.columns
    operands = [_whole(reader, read) for read in reads]
    made = reader.operator(
        node, "append", operands, shape, heads=first.count, rows=(first.rows, second.rows), columns=first.columns
    )
    return Shown(made, View.dense(shape_of(node)))
