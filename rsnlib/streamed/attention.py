"""Attention as kernels: scores of queries and keys, their product with values, rows of a cache that are added or
replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from ..capture import dtype_of, shape_of
from ..view import View, merge
from .operators import Array, Positions, StreamOperator
from .reading import GraphReader, Host, OperatorRefused
from .showing import HeadRead, ShownTensor, heads_of, part_of

NEVER = -torch.finfo(torch.float32).max / 2
"""What is added to a score below this hides it."""


def flat_matrices(tensor: torch.Tensor, view: View) -> Array:
    """Return the elements of a tensor in the order in which matrices have them, (elements,): float32, or int8 for a
    tensor of int8. A Boolean tensor is a mask: False becomes minus infinity, True becomes 0. view: where each element
    of the tensor, after broadcasting to the view's shape, lies in the result. Raises `RuntimeError` for a tensor that
    does not broadcast to that shape."""
    x = tensor.detach()
    x = torch.where(x, 0.0, -torch.inf) if x.dtype == torch.bool else x
    x = x if x.dtype == torch.int8 else x.to(torch.float32)
    x = x.broadcast_to(view.shape)
    flat = torch.empty(x.numel(), dtype=x.dtype)
    shown = flat.as_strided([size for size, _ in view.atoms], [stride for _, stride in view.atoms], view.offset)
    shown.copy_(x.reshape(shown.shape))
    array: Array = flat.numpy()
    return array


def scores_of(
    reader: GraphReader,
    node: Node,
    queries: Node,
    keys: Node,
    *,
    scale: float = 1.0,
    mask: Node | None = None,
    causal: bool = False,
    transposed: bool = False,
    of_integers: IntegerScales | None = None,
) -> ShownTensor:
    """Return queries @ keys^T * scale + mask for each head.

    reader, node: as for a `reading.Rule`. queries: (..., heads, rows, columns). keys: (..., heads, columns, keys), or
    with `transposed` (..., heads, keys, columns), which this function transposes; as many heads as queries, or fewer.
    mask: broadcasts to (..., heads, rows, keys); None for none. causal: row i sees keys up to i. of_integers: for a
    product of integers, scales and zero points of both operands (`IntegerScales`); None for float32. Raises
    `OperatorRefused` for heads that do not fit or do not stand side by side, for different batches, for a mask that
    hides all keys of a row, and for both a mask and causal.
    """
    q, k = _read(reader, queries), _read(reader, keys, swapped=not transposed)
    heads = q.count
    if q.repeats != 1 or heads % k.count or k.count * k.repeats not in (heads, k.count) or q.columns != k.columns:
        raise OperatorRefused(
            f"{q.count} heads of queries with {q.columns} columns, {k.count} of keys with {k.columns}"
        )
    _check_batch(queries, keys, "queries", "keys")
    batch = shape_of(queries)[:-3]
    seen = _seen(reader, mask, causal, batch, heads, q.rows, k.rows)
    operands = {"queries": reader.whole(q.part), "keys": reader.whole(k.part)}
    if seen.tensor is not None:
        operands["mask"] = seen.tensor
    attributes: dict[str, Any] = {"heads": heads, "key_heads": k.count, "columns": q.columns, "scale": scale}
    attributes |= {"sequences": q.sequences, "key_sequences": k.sequences, "mask": (prod(batch), *seen.apart)}
    attributes |= seen.band
    for name, given in (of_integers or {}).items():
        if isinstance(given, Node):
            read = _read(reader, given, swapped=name.startswith("other"))
            like = k if name.startswith("other") else q
            if (read.count, read.repeats, read.rows) != (like.count, like.repeats, like.rows):
                raise OperatorRefused(f"{given.name} is no scale, or zero point, of each row of a head")
            operands[name] = reader.whole(read.part)
        else:
            attributes[name] = given
    attributes["operand_names"] = tuple(operands)
    shape = heads, q.rows, k.rows
    if len(shape_of(queries)) == 2 and heads > 1:
        raise OperatorRefused("heads of a tensor without a dimension for them")
    made = reader.operator(node, "scores", tuple(operands.values()), shape, **attributes)
    return ShownTensor(made, View.dense((*shape_of(queries)[:-1], k.rows)))


def attend(
    reader: GraphReader,
    node: Node,
    weights: Node | ShownTensor,
    values: Node,
    of_integers: IntegerScales | None = None,
) -> ShownTensor | None:
    """Return weights @ values for each head, (..., heads, rows, columns); None if `weights` are not one matrix for each
    head, or if `values` are not heads of the same number of keys.

    reader, node: as for a `reading.Rule`. weights: (..., heads, rows, keys). values: (..., heads, keys, columns), with
    as many heads or fewer. of_integers: as for `scores_of`. Raises `OperatorRefused` for different batches, and for
    scales or zero points of integers that are not one for each row of the weights.
    """
    if isinstance(weights, Node):
        value = reader.of[weights]
        if not isinstance(value, ShownTensor):
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
    _check_batch(weights, values, "weights", "values")
    sequences = _sequences_of(weights, heads)
    each = heads // sequences
    attributes: dict[str, Any] = {"heads": heads, "key_heads": v.count, "columns": v.columns}
    attributes |= {"sequences": sequences, "key_sequences": v.sequences}
    operands = {"weights": weights.operator, "values": reader.whole(v.part)}
    for name, given in (of_integers or {}).items():
        if isinstance(given, Node):
            operand = reader.shown(given).operator
            if name.startswith("other") or operand.shape != (heads, rows, 1):
                raise OperatorRefused(f"{given.name} is no scale, or zero point, of each row of weights")
            operands[name] = operand
        else:
            attributes[name] = given
    attributes["operand_names"] = tuple(operands)
    shape = 1, sequences * rows, each * v.columns
    made = reader.operator(node, "attend", tuple(operands.values()), shape, **attributes)
    in_front = [(sequences, rows * each * v.columns), (each, v.columns)]
    view = View((merge(in_front), merge([(rows, each * v.columns)]), merge([(v.columns, 1)])))
    shown = view.regroup((*weights.shape[:-1], v.columns))
    return None if shown is None else ShownTensor(made, shown)


def scaled_columns(reader: GraphReader, node: Node, weights: Node, scale: Node) -> ShownTensor | None:
    """Return attention weights whose columns are multiplied by the scales that the rows of quantised values have; None
    for other operands.

    reader, node: as for a `reading.Rule`. weights: (..., heads, rows, keys). scale: (..., heads, 1, keys), computed by
    a kernel, with as many heads as the weights or fewer.
    """
    value, given = reader.of.get(scale), reader.of.get(weights)
    if not isinstance(value, ShownTensor) or not isinstance(given, ShownTensor) or value.operator.op not in OF_ROWS:
        return None
    heads, rows, keys = given.operator.shape
    is_row = len(shape_of(scale)) > 2 and shape_of(scale)[-2] == 1 and shape_of(scale)[-1] == keys
    if not is_row or shape_of(node) != shape_of(weights) or given.view != View.dense(given.shape):
        return None
    read = _read(reader, scale, swapped=True)
    if heads % read.count or read.count * read.repeats not in (heads, read.count) or given.shape[-2:] != (rows, keys):
        return None
    attributes = {"key_heads": read.count, "key_sequences": read.sequences, "rows": (rows, keys)}
    operands = given.operator, reader.whole(read.part)
    return ShownTensor(reader.operator(node, "scale_columns", operands, given.operator.shape, **attributes), given.view)


def _sequences_of(weights: ShownTensor, heads: int) -> int:
    """The sequences of which each has the results of its heads side by side. heads: of all sequences."""
    if len(weights.shape) > 3:
        return prod(weights.shape[:-3])
    # One dimension in front of rows and columns: heads, a batch, or both. The queries tell, if they were computed.
    behind = weights.operator
    while behind.op != "scores" and behind.operands:
        behind = behind.operands[0]
    if behind.op != "scores" or behind.shape[0] != heads or behind.operands[0].is_memory:
        return 1
    return int(behind.attributes["sequences"]) if behind.operands[0].shape[0] == 1 else 1


def _check_batch(one: Node | ShownTensor, other: Node, name: str, other_name: str) -> None:
    """Raise `OperatorRefused` for operands of different batches, of which PyTorch would repeat one."""
    batches = [prod((x.shape if isinstance(x, ShownTensor) else shape_of(x))[:-3]) for x in (one, other)]
    if batches[0] != batches[1]:
        raise OperatorRefused(
            f"{name} of {batches[0]} sequences, and {other_name} of {batches[1]}; give both the same batch"
        )


def _read(reader: GraphReader, node: Node, *, swapped: bool = False, integers: bool = False) -> HeadRead:
    """The heads of an operand. swapped: its last two dimensions are in the other order. integers: one of the host may
    be int8."""
    sizes, order = shape_of(node), list(range(len(shape_of(node))))
    if swapped:
        order[-2:] = order[-1], order[-2]
    if swapped and isinstance(reader.of[node], Host):  # the host puts it into the order in which it is read
        flat = View.dense([sizes[k] for k in order])
        memory = reader.memory(node, flat.permute(order), (1, prod(flat.shape[:-1]), flat.shape[-1]))
        shown = ShownTensor(memory, flat)
    else:
        shown = reader.shown(node, integers)
        shown = ShownTensor(shown.operator, shown.view.permute(order))
    read = heads_of(shown)
    if read is None:
        raise OperatorRefused(
            f"{node.name} {list(shape_of(node))} has no heads that stand side by side in columns, or one below the "
            f"other"
        )
    return read


IntegerScales = Mapping[str, float | Node]
"""Of a product of integers: `left_scale` and `left_zero` of the left operand, `other_scale` and `other_zero` of the
right one; a zero point that is missing is 0. Each is a number, or a tensor with one for each row of a head."""
OF_ROWS = ("row_scales", "append", "replace")
"""Operators whose results may be a number for each row of a head."""


@dataclass(frozen=True)
class _Seen:
    """Which keys a row sees. band: diagonals, as attributes. tensor: to add to the scores. apart: the sequences that
    the tensor tells apart, and the heads of each."""

    band: Mapping[str, int] = field(default_factory=dict)
    tensor: StreamOperator | None = None
    apart: tuple[int, int] = (1, 1)


def _seen(
    reader: GraphReader, mask: Node | None, causal: bool, batch: Sequence[int], heads: int, rows: int, keys: int
) -> _Seen:
    """Which keys a row sees. batch: dimensions in front of the heads. heads: of all sequences."""
    if mask is None:
        return _Seen({"last": 0} if causal else {})
    if causal:
        raise OperatorRefused("it has both a mask and is_causal")
    shape = shape_of(mask)
    each = heads // prod(batch) if len(shape) > 2 and shape[-3] != 1 else 1
    every = tuple(batch) if prod(shape[:-3]) != 1 else (1,) * max(0, len(shape) - 3)
    apart = prod(every), each
    matrices = prod(apart), rows, keys
    view = View.dense((*every, *((each, rows, keys) if len(shape) > 2 else (rows, keys))))
    if mask in reader.constants:
        table = flat_matrices(reader.constants.value(mask), view).reshape(matrices)
        if (table <= NEVER).all(axis=-1).any():
            raise OperatorRefused("its mask hides all keys of a row")
        band = _band(table)
        return _Seen(tensor=reader.constant(mask, "mask", table), apart=apart) if band is None else _Seen(band)
    return _Seen(tensor=reader.memory(mask, view, matrices, masks=True), apart=apart)


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


def joined_rows(reader: GraphReader, node: Node, parts: Sequence[Node], dim: int) -> ShownTensor:
    """Return two tensors joined along their rows, head by head, such as a cache of keys and new keys. reader, node: as
    for a `reading.Rule`. parts: two tensors, each (..., heads, rows, columns), of the host or computed by a kernel.
    dim: must be the last dimension but one. Raises `OperatorRefused` for another number of parts, another dimension,
    and parts with different heads."""
    rank = len(shape_of(node))
    if len(parts) != 2 or dim % rank != rank - 2:
        raise OperatorRefused("kernels join two tensors, along the last dimension but one: a cache and new rows")
    reads = [_read(reader, x, integers=True) for x in parts]
    first, second = reads
    dtype = _common_type(first, second)
    if (first.count, first.columns) != (second.count, second.columns) or first.repeats * second.repeats != 1:
        raise OperatorRefused("its parts have different heads")
    attributes = {
        "heads": first.count,
        "rows": (first.rows, second.rows),
        "columns": first.columns,
        "sequences": (first.sequences, second.sequences),
    }
    shape = first.count, first.rows + second.rows, first.columns
    made = reader.operator(node, "append", [reader.whole(read.part) for read in reads], shape, **attributes)
    return ShownTensor(replace(made, dtype=dtype), View.dense(shape_of(node)))


def replaced_rows(reader: GraphReader, node: Node, cache: Node, dim: int, positions: Node, new: Node) -> ShownTensor:
    """Return a cache of fixed capacity in which new rows replace those at given positions.

    reader, node: as for a `reading.Rule`. cache: (..., heads, rows, columns), an argument of the module. dim: must be
    the last dimension but one. positions: integers (new rows,), which the host computes. new: (..., heads, new rows,
    columns). Raises `OperatorRefused` for another dimension, for a cache that is computed, for positions that the host
    does not compute or that are not integers, for another number of them than of new rows, and for new rows with other
    heads than the cache.
    """
    rank = len(shape_of(cache))
    if dim % rank != rank - 2 or len(shape_of(positions)) > 1:
        raise OperatorRefused("kernels replace rows, along the last dimension but one, at one list of positions")
    if not isinstance(reader.of[cache], Host):
        raise OperatorRefused("it replaces rows of a computed tensor; a cache must be an argument")
    if not isinstance(reader.of[positions], Host) or dtype_of(positions) not in (torch.int32, torch.int64):
        raise OperatorRefused("its positions must be integers that the host computes")
    old, rows = _read(reader, cache, integers=True), _read(reader, new)
    dtype = _common_type(old, rows)
    if (old.count, old.columns) != (rows.count, rows.columns) or old.repeats * rows.repeats != 1:
        raise OperatorRefused("the new rows have other heads than the cache")
    if not old.part.is_whole or prod(shape_of(positions)) != rows.rows:
        raise OperatorRefused(f"{prod(shape_of(positions))} positions for {rows.rows} new rows")
    attributes = {
        "heads": old.count,
        "rows": (old.rows, rows.rows),
        "columns": old.columns,
        "sequences": (old.sequences, rows.sequences),
        "positions": Positions(positions, reader.whole(old.part).name, old.rows),
    }
    shape = old.sequences, old.rows, old.part.width
    operands = [reader.whole(old.part), reader.whole(rows.part)]
    made = reader.operator(node, "replace", operands, shape, **attributes)
    part = part_of(reader.shown(cache, integers=True))
    assert part is not None, "its heads were read"
    return ShownTensor(replace(made, dtype=dtype), part.view)


def _common_type(cache: HeadRead, new: HeadRead) -> str:
    """The element type of a cache and of new rows. Raises `OperatorRefused` for two types."""
    types = [read.part.operator.dtype for read in (cache, new)]
    if types[0] != types[1]:
        raise OperatorRefused(f"the cache is {types[0]}, and its new rows are {types[1]}")
    return types[0]
