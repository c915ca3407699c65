"""Operators that make, move and choose elements, and those that tell shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere

from .table import Ints, Known, Tensor, axis_of, need, operator

TYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    16: torch.bfloat16,
}
"""PyTorch's types by the numbers of `onnx.TensorProto.DataType`."""


def type_of(number: int) -> torch.dtype:
    """Return PyTorch's type for a number of `onnx.TensorProto.DataType`. Raises `UnsupportedError` if PyTorch has
    none."""
    need(number in TYPES, f"numbers of ONNX's type {number}")
    return TYPES[number]


# -- what is known when the model is captured


@operator("Shape")
def shape(data: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """The sizes of `data` from axis `start` to before axis `end`, which are known.

    Returns int64, (axes,). start, end: may be negative; they are bounded to the axes of `data`.
    """
    return torch.tensor(data.shape[start:end], dtype=torch.int64)


@operator("Size")
def size(data: Tensor) -> Tensor:
    """The number of elements, which is known.

    Returns an int64 tensor of shape ().
    """
    return torch.tensor(data.numel())


@operator("Constant")
def constant(
    *,
    value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> Tensor:
    """A tensor, or numbers, that an attribute gives.

    Returns `value` as it is; numbers become float32 or int64, of shape () or (numbers,).
    """
    if value is not None:
        return value
    floats = value_float if value_float is not None else value_floats
    if floats is not None:
        return torch.tensor(floats, dtype=torch.float32)
    return torch.tensor(value_int if value_int is not None else value_ints, dtype=torch.int64)


@operator("ConstantOfShape")
def constant_of_shape(input: Ints, *, value: Tensor | None = None) -> Tensor:
    """A tensor of the shape `input`, filled with the one element of `value`; float32 zeros without it.

    input: the sizes of the result. value: one element of any shape, or PyTorch raises `RuntimeError`.
    """
    of = torch.zeros(1) if value is None else value
    return of.reshape(()).expand(input).clone()


@operator("Range")
def numbers(start: Known, limit: Known, delta: Known, *, stash_type: int = 1) -> Tensor:
    """The numbers from `start` to before `limit` in steps; computed in the type of its bounds, whatever `stash_type`
    says.

    start, limit, delta: one element each. Returns (count,), in the type of `start`. Raises `ZeroDivisionError` for a
    delta of 0.
    """
    first, end, step = start.item(), limit.item(), delta.item()
    count = max(ceil((end - first) / step), 0)
    return (torch.arange(count) * step + first).to(start.dtype)


@operator("EyeLike")
def eye_like(input: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """1 on diagonal `k`, 0 elsewhere.

    input: two axes, which are the shape of the result. dtype: a number of `type_of`, which may raise
    `UnsupportedError`; None for the type of input.
    """
    rows, columns = input.shape
    made = torch.arange(columns) - torch.arange(rows)[:, None] == k
    return made.to(input.dtype if dtype is None else type_of(dtype))


@operator("NonZero")
def non_zero(x: Known) -> Tensor:
    """The indices of the elements that are not 0. The operand must be known.

    Returns int64, (axes of x, elements that are not 0): a column holds the indices of one of them.
    """
    return x.nonzero().T if x.ndim else (x != 0).reshape(1, 1).nonzero().T[:0]


# -- types


def converted(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return x as a tensor of type `kind`, element by element; x itself if it has that type. Numbers become bools that
    are True where they are not 0."""
    if x.dtype is kind:
        return x
    return x != 0 if kind is torch.bool else x.to(kind)


@operator("Cast")
def cast(input: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    """The operand as another type, between the types that PyTorch has.

    input: any shape, which the result has too. to: a number of `type_of`, which may raise `UnsupportedError`. saturate:
    not read.
    """
    return converted(input, type_of(to))


@operator("CastLike")
def cast_like(input: Tensor, target_type: Tensor, *, saturate: int = 1) -> Tensor:
    """The operand as the type of another tensor, between the types that PyTorch has.

    input: any shape, which the result has too. target_type: a tensor of the type of the result. saturate: not read.
    """
    return converted(input, target_type.dtype)


# -- shapes


@operator("Reshape")
def reshape(data: Tensor, shape: Ints, *, allowzero: int = 0) -> Tensor:
    """The operand in another shape. A 0 in `shape` keeps the size of that axis, unless `allowzero`; one -1 follows from
    the others.

    shape: the sizes of the result, in elements. Raises `UnsupportedError` for a 0 beyond the axes of `data`; PyTorch
    raises `RuntimeError` for another number of elements.
    """
    need(allowzero == 1 or all(n or i < data.ndim for i, n in enumerate(shape)), "a 0 beyond the operand's axes")
    sizes = [data.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape)]
    return data.reshape(sizes)


@operator("Flatten")
def flatten(input: Tensor, *, axis: int = 1) -> Tensor:
    """The operand with two axes: those before `axis`, and the others.

    axis: may be negative, or the number of axes. Raises `UnsupportedError` for one that lies outside.
    """
    at = axis if axis >= 0 else axis + input.ndim
    need(0 <= at <= input.ndim, f"axis {axis} of a tensor with {input.ndim} axes")
    return input.reshape(prod(input.shape[:at]), prod(input.shape[at:]))


@operator("Transpose")
def transpose(data: Tensor, *, perm: list[int] | None = None) -> Tensor:
    """The operand with its axes in another order: axis i is axis perm[i] of the operand; without `perm` they are
    reversed.

    perm: each axis of the operand once; may be negative. PyTorch raises `RuntimeError` if it is not, `IndexError` for
    an axis that lies outside.
    """
    return data.permute(list(reversed(range(data.ndim))) if perm is None else perm)


@operator("Squeeze")
def squeeze(data: Tensor, axes: Ints | None = None) -> Tensor:
    """The operand without the given axes, or without all axes of size 1.

    axes: may be negative. Raises `UnsupportedError` for one that lies outside or has another size than 1.
    """
    if axes is None:
        return data.squeeze()
    at = tuple(axis_of(n, data.ndim) for n in axes)
    need(all(data.shape[n] == 1 for n in at), "only axes of size 1 can be left out")
    return data.squeeze(at)


@operator("Unsqueeze")
def unsqueeze(data: Tensor, axes: Ints) -> Tensor:
    """The operand with new axes of size 1 at the given places of the result.

    axes: may be negative. Raises `UnsupportedError` for one that lies outside, or is given twice.
    """
    rank = data.ndim + len(axes)
    at = sorted(axis_of(n, rank) for n in axes)
    need(len(set(at)) == len(at), "an axis is given twice")
    for axis in at:
        data = data.unsqueeze(axis)
    return data


@operator("Expand")
def expand(input: Tensor, shape: Ints) -> Tensor:
    """The operand, broadcast to `shape`, whose sizes of 1 keep those of the operand.

    shape: sizes in elements. PyTorch raises `RuntimeError` for sizes that do not fit.
    """
    return input.expand(torch.broadcast_shapes(input.shape, tuple(shape)))


@operator("Tile")
def tile(input: Tensor, repeats: Ints) -> Tensor:
    """The operand, repeated along each axis.

    repeats: how often, one number for each axis, or `UnsupportedError` is raised.
    """
    need(len(repeats) == input.ndim, "as many repeats as axes")
    return input.repeat(repeats)


@operator("Concat")
def concat(*inputs: Tensor, axis: int) -> Tensor:
    """The tensors behind each other along one axis.

    inputs: their sizes along other axes are the same, or PyTorch raises `RuntimeError`. axis: may be negative. PyTorch
    raises `IndexError` for one that lies outside.
    """
    return torch.cat(inputs, axis)


@operator("Split")
def split(
    input: Tensor, split: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None, wanted: int = 1
) -> Sequence[Tensor]:
    """Parts along an axis. Without sizes, the last part may be smaller than the others.

    input: any shape. split: rows of each part along `axis`. num_outputs: how many parts, without `split`; None for
    `wanted`, the number of outputs that the node names. Returns the parts, in order. Raises `UnsupportedError` for an
    axis that lies outside, and for rows that do not make as many parts as outputs.
    """
    n = input.shape[axis_of(axis, input.ndim)]
    if split is not None:
        need(sum(split) == n and len(split) == wanted, f"parts of {split} rows make {n} rows in {wanted} outputs")
        return tuple(input.split(split, axis))
    count = num_outputs or wanted
    each = ceil(n / count)
    sizes = [each] * (n // each if each else count)
    sizes += [n - sum(sizes)] * (len(sizes) < count)
    need(len(sizes) == count == wanted, f"{n} rows in {count} parts")
    return tuple(input.split(sizes, axis))


@operator("Slice")
def slice_(data: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None) -> Tensor:
    """A range of rows along each of some axes. A negative step takes rows backwards, but not to an `end` of 2**31 - 1
    or more.

    starts, ends: for each of `axes`, the first row and that behind the last one; negative ones count from the end of
    the axis. axes: the first ones without it. steps: in rows; 1 without it. Raises `UnsupportedError` for an axis that
    lies outside, and for a step of 0. Lists of other lengths raise `ValueError`.
    """
    at = range(len(starts)) if axes is None else axes
    for start, end, axis, step in zip(starts, ends, at, [1] * len(starts) if steps is None else steps, strict=True):
        where = axis_of(axis, data.ndim)
        rows = _chosen(start, end, step, data.shape[where])
        if step > 0:
            data = data[(slice(None),) * where + (slice(rows.start, rows.stop, step),)]
        else:
            data = data.index_select(where, torch.tensor(rows, dtype=torch.int64))
    return data


def _chosen(start: int, end: int, step: int, n: int) -> range:
    """The rows of a slice of n rows."""
    need(step != 0, "a step of 0")
    # ONNX takes no rows then, onnxruntime all of them.
    need(step > 0 or end < 2**31 - 1, "a slice backwards to an end that stands for the last row")
    high = n if step > 0 else n - 1
    first = min(max(start + n if start < 0 else start, 0), high)
    last = min(max(end + n if end < 0 else end, 0 if step > 0 else -1), high)
    return range(first, max(first, last) if step > 0 else last, step)


@operator("Pad")
def pad(
    data: Tensor, pads: Ints, constant_value: Tensor | None = None, axes: Ints | None = None, *, mode: str = "constant"
) -> Tensor:
    """The operand with rows added at the ends of its axes. Negative pads leave rows out.

    pads: rows before each of `axes`, then behind each. constant_value: one element; 0 without it. axes: all without it.
    mode: "constant", "edge", "wrap" or "reflect". Raises `UnsupportedError` for another mode, an axis that lies
    outside, and pads that are not two for each axis.
    """
    at = [axis_of(n, data.ndim) for n in (range(data.ndim) if axes is None else axes)]
    need(len(pads) == 2 * len(at), "two pads for each axis")
    for k, axis in enumerate(at):
        before, after, n = pads[k], pads[k + len(at)], data.shape[axis]
        if before < 0 or after < 0:
            data = data.narrow(axis, max(-before, 0), n - max(-before, 0) - max(-after, 0))
            before, after, n = max(before, 0), max(after, 0), data.shape[axis]
        if not before and not after:
            continue
        if mode == "constant":
            filling = torch.zeros(()) if constant_value is None else constant_value.reshape(())
            filling = filling.to(data.dtype)  # before opset 11 it is an attribute, which the converter makes float32
            rows = [filling.expand(*data.shape[:axis], m, *data.shape[axis + 1 :]) for m in (before, after)]
            data = torch.cat([rows[0], data, rows[1]], axis)
        else:
            data = data.index_select(axis, _padded(before, after, n, mode))
    return data


def _padded(before: int, after: int, n: int, mode: str) -> Tensor:
    """The rows of which an axis of n rows consists when it is padded."""
    at = torch.arange(-before, n + after)
    if mode == "edge":
        return at.clamp(0, n - 1)
    if mode == "wrap":
        return at % n
    need(mode == "reflect", f"padding {mode}")
    at = at % max(2 * (n - 1), 1)
    return torch.where(at < n, at, 2 * (n - 1) - at)


@operator("DepthToSpace")
def depth_to_space(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of channels as rows and columns.

    input: (batch, channels, height, width). mode: "DCR" splits channels into (blocksize, blocksize, the others), any
    other word into (the others, blocksize, blocksize). Returns (batch, channels / blocksize**2, height * blocksize,
    width * blocksize). PyTorch raises `RuntimeError` if blocksize**2 does not divide the channels.
    """
    b, c, h, w = input.shape
    n = c // blocksize**2
    if mode == "DCR":
        parts = input.reshape(b, blocksize, blocksize, n, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = input.reshape(b, n, blocksize, blocksize, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(b, n, h * blocksize, w * blocksize)


@operator("SpaceToDepth")
def space_to_depth(input: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of rows and columns as channels.

    input: (batch, channels, height, width), the last two multiples of blocksize, or PyTorch raises `RuntimeError`.
    mode: as for `depth_to_space`, which reverts it. Returns (batch, channels * blocksize**2, height / blocksize, width
    / blocksize).
    """
    b, c, h, w = input.shape
    parts = input.reshape(b, c, h // blocksize, blocksize, w // blocksize, blocksize)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(b, c * blocksize**2, h // blocksize, w // blocksize)


@operator("Trilu")
def trilu(input: Tensor, k: Ints | None = None, *, upper: int = 1) -> Tensor:
    """The elements above diagonal `k`, or with `upper=0` below it, and those on it; 0 elsewhere.

    input: (..., rows, columns), which is the shape of the result. k: one number; 0 without it.
    """
    diagonal = k[0] if k else 0
    return input.triu(diagonal) if upper else input.tril(diagonal)


# -- rows by index


def indices(index: Tensor, n: int) -> Tensor:
    """Return the indices of rows, each from 0 on. index: integers of any shape, which the result has too; negative ones
    count from the end of the axis. n: rows of the axis. An index outside of -n to n - 1 is not refused here."""
    return torch.where(index < 0, index + n, index)


@operator("Gather")
def gather(data: Tensor, indices_: Tensor, *, axis: int = 0) -> Tensor:
    """Rows of `data` along one axis, by index.

    data: (before ..., rows, behind ...), the rows at `axis`. indices_: integers of any shape; negative ones count from
    the end. Returns (before ..., shape of indices_ ..., behind ...). Raises `UnsupportedError` for an axis that lies
    outside. PyTorch raises `IndexError` or `RuntimeError` for an index that lies outside.
    """
    where = axis_of(axis, data.ndim)
    index = indices(converted(indices_, torch.int64), data.shape[where])
    if where == 0 and data.ndim == 2 and data.is_floating_point():
        return F.embedding(index, data)
    if index.ndim == 0:
        return data.index_select(where, index.reshape(1)).squeeze(where)
    rows = data.index_select(where, index.reshape(-1))
    return rows.reshape(*data.shape[:where], *index.shape, *data.shape[where + 1 :])


@operator("GatherElements")
def gather_elements(data: Tensor, indices_: Tensor, *, axis: int = 0) -> Tensor:
    """Elements of `data` along one axis, each by an index of its own.

    indices_: integers; its shape is that of the result; negative ones count from the end. Raises `UnsupportedError` for
    an axis that lies outside. PyTorch raises `RuntimeError` for an index that lies outside.
    """
    where = axis_of(axis, data.ndim)
    return data.gather(where, indices(converted(indices_, torch.int64), data.shape[where]))


@operator("GatherND")
def gather_nd(data: Tensor, indices_: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Parts of `data`, each by indices of several axes.

    data: (batch sizes ..., sizes ...), with `batch_dims` batch axes. indices_: (batch sizes ..., places ..., depth):
    the last axis has the indices of the first `depth` axes behind the batch; negative ones count from the end. Returns
    (batch sizes ..., places ..., other sizes ...). PyTorch raises `IndexError` for an index that lies outside.
    """
    batch = data.shape[:batch_dims]
    rows = data.reshape(-1, *data.shape[batch_dims:])
    index = converted(indices_, torch.int64).reshape(rows.shape[0], -1, indices_.shape[-1])
    parts = index.unbind(-1)
    first = torch.arange(rows.shape[0])[:, None].expand_as(parts[0])
    made = rows[(first, *parts)]
    return made.reshape(*batch, *indices_.shape[batch_dims:-1], *data.shape[batch_dims + indices_.shape[-1] :])


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""What PyTorch calls ONNX's reductions of a scatter."""


@operator("ScatterElements")
def scatter_elements(
    data: Tensor, indices_: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """`data` with new elements along one axis, each by an index of its own.

    data: the shape of the result. indices_: integers; negative ones count from the end. updates: of the shape of
    indices_, with as many axes as data. reduction: "none" replaces; "add", "mul", "max" and "min" join old and new.
    Raises `UnsupportedError` for another one, and for an axis that lies outside. PyTorch raises `RuntimeError` for an
    index that lies outside.
    """
    where = axis_of(axis, data.ndim)
    index = indices(converted(indices_, torch.int64), data.shape[where])
    if reduction == "none":
        return data.scatter(where, index, updates)
    need(reduction in REDUCTIONS, f"reduction {reduction}")
    return data.scatter_reduce(where, index, updates, REDUCTIONS[reduction])


@operator("ScatterND")
def scatter_nd(data: Tensor, indices_: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """`data` with new parts, each by indices of several axes.

    data: the shape of the result. indices_: (places ..., depth): the last axis has the indices of the first `depth`
    axes of data; negative ones count from the end. updates: (places ..., other sizes ...). reduction: as for
    `scatter_elements`, also its `UnsupportedError`. PyTorch raises `IndexError` or `RuntimeError` for an index that
    lies outside.
    """
    depth = indices_.shape[-1]
    parts = converted(indices_, torch.int64).unbind(-1)
    if reduction == "none":
        return data.index_put(parts, updates)
    if reduction == "add":
        return data.index_put(parts, updates, accumulate=True)
    need(reduction in REDUCTIONS, f"reduction {reduction}")
    rows = data.reshape(prod(data.shape[:depth]), -1)
    at, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for x, n in zip(parts, data.shape, strict=False):
        at, inside = at * n + indices(x, n), inside & (x >= -n) & (x < n)
    at = torch.where(inside, at, rows.shape[0]).reshape(-1)  # what lies outside is no other element
    new = updates.reshape(at.numel(), -1)
    made = rows.scatter_reduce(0, at[:, None].expand_as(new), new, REDUCTIONS[reduction])
    return made.reshape(data.shape)


@operator("OneHot")
def one_hot(indices_: Tensor, depth: Ints, values: Tensor, *, axis: int = -1) -> Tensor:
    """A tensor with a new axis of `depth`: values[1] at the index, values[0] elsewhere.

    indices_: integers of any shape; negative ones count from `depth`, and others that are out of range give values[0]
    alone. depth: one number. values: (2,). axis: that of the result which is new. Raises `UnsupportedError` if it lies
    outside.
    """
    (n,) = depth
    where = axis_of(axis, indices_.ndim + 1)
    off, on = values.unbind(0)
    hot = indices(converted(indices_, torch.int64), n).unsqueeze(where)
    at = torch.arange(n).reshape(-1, *[1] * (indices_.ndim - where))
    return torch.where(hot == at, on, off)


@operator("TopK")
def top_k(x: Tensor, k: Ints, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """The `k` largest or smallest elements, in order. Of equal elements, those with lower indices come first.

    k: one number, how many. axis: along which; may be negative. largest: 0 for the smallest. sorted: not read, they are
    always sorted. Returns the elements, and their indices as int64, both in the shape of x with k for that axis. Raises
    `UnsupportedError` for more than the axis has, and for an axis that lies outside.
    """
    where = axis_of(axis, x.ndim)
    need(0 <= k[0] <= x.shape[where], f"{k[0]} of {x.shape[where]} elements")
    values, at = x.sort(dim=where, descending=bool(largest), stable=True)
    return values.narrow(where, 0, k[0]), at.narrow(where, 0, k[0])


@operator("Compress")
def compress(input: Tensor, condition: Known, *, axis: int | None = None) -> Tensor:
    """The rows for which a condition is True. It must be known.

    condition: (rows,), along `axis`; without `axis`, of all elements in one row. Raises `UnsupportedError` for an axis
    that lies outside. PyTorch raises `IndexError` for a row that lies outside.
    """
    at = condition.nonzero().reshape(-1)
    return input.reshape(-1)[at] if axis is None else input.index_select(axis_of(axis, input.ndim), at)


@operator("ReverseSequence")
def reverse_sequence(input: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """The first rows of each sequence in reverse, the others as they are.

    input: batch and rows at batch_axis and time_axis, which are 0 and 1 in one order or the other. sequence_lens:
    (batch,), how many rows are reversed; PyTorch raises `RuntimeError` for more than there are. Returns the shape of
    input.
    """
    n = input.shape[time_axis]
    at, lengths = torch.arange(n), sequence_lens[:, None]
    index = torch.where(at < lengths, lengths - 1 - at, at)
    if batch_axis > time_axis:
        index = index.T
    shape = [n if i in (time_axis, batch_axis) else 1 for i in range(input.ndim)]
    shape[batch_axis] = input.shape[batch_axis]
    return input.gather(time_axis, index.reshape(shape).expand_as(input))
