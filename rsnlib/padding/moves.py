"""Padding rules of operators that move or select elements: views, slices, joins, new tensors, and indexing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..capture import arguments, dtype_of, packet, shape_of
from ..normal_form.passes import CHUNKS
from .state import Atom, Axis, MixedError, PaddingFill, TensorState, broadcast, is_plain, plain, refilled, size_of, tidy

if TYPE_CHECKING:
    from .check import Walk

aten = torch.ops.aten

Made = TensorState | list[TensorState]
PaddingRule = Callable[["Walk", Node, dict[str, Any]], Made]
"""A padding rule: called with the walk, an operator, and the operator's arguments by name. It returns what is known of
the result, a `TensorState` or one per result: which positions are padding, and what they hold. Raises `MixedError` if
padding may change a valid element, or if what the operator does depends on the size."""


def regroup(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of reshape, which keeps the order of the elements, and of view, also as another
    type. Raises `MixedError` if a dynamic dimension is split."""
    state = walk.of(node.all_input_nodes[0])
    if dtype_of(node) != dtype_of(node.all_input_nodes[0]):  # a view of the same bits as another type
        state = TensorState(refilled(state.axes, PaddingFill(finite=False)), finite=False)
    rest = list(reversed(tidy(state.atoms)))
    axes: list[Axis] = []
    for size in shape_of(node):
        axis: list[Atom] = []
        while size > 1 and rest:
            atom = rest.pop()
            if size % atom.size:
                if atom.dim is not None or atom.size % size:
                    raise MixedError(_dim_of([atom, *rest]), "it splits a dynamic dimension")
                rest.append(Atom(atom.size // size))
                atom = Atom(size)
            axis.append(atom)
            size //= atom.size
        axes.append(tidy(axis))
    return replace(state, axes=tuple(axes))


def _dim_of(atoms: Iterable[Atom]) -> int:
    return next((atom.dim for atom in atoms if atom.dim is not None), 0)


def permute(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of permute: the dimensions in another order."""
    state = walk.of(a["self"])
    return replace(state, axes=tuple(state.axes[i] for i in a["dims"]))


def expand(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of expand: the tensor is repeated along new dimensions and those of size 1. If the
    new size is dynamic, padded positions hold copies of valid ones. Raises `MixedError` for a size that follows no
    dynamic dimension."""
    state = walk.of(a["self"])
    missing = len(shape_of(node)) - len(state.axes)
    axes = []
    for i, sizes in enumerate(zip(walk.small_shape(node), shape_of(node), strict=True)):
        own = state.axes[i - missing] if i >= missing else ()
        axes.append(own or tuple(replace(atom, fill=_repeated(state)) for atom in walk.axis(*sizes)))
    return replace(state, axes=tuple(axes))


def _repeated(state: TensorState) -> PaddingFill:
    return PaddingFill(copies=True, value=state.value, finite=state.is_finite)


def select(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of select: one position of a dimension is taken. Raises `MixedError` if which
    position it is depends on the size, or if in a dynamic dimension it is counted from the end and the padding is no
    copies of the last valid element. A dynamic dimension must have that position in every call (`Walk.needs`)."""
    state, at = walk.of(a["self"]), a["dim"] % len(shape_of(a["self"]))
    axis = state.axes[at]
    rest = replace(state, axes=_without(state.axes, at))
    index = a["index"]
    if walk.differs(node, "index", "dim"):
        raise MixedError(_dim_of(axis), f"which position it selects ({index}) depends on the size")
    if is_plain(axis):
        return rest
    atom = _sole(axis, "it selects a position of")
    if index == -1 and atom.fill.copies:
        return rest
    if index < 0:
        raise MixedError(
            _dim_of(axis), f"it counts a position from the end, where the padded {walk.rows(_dim_of(axis))} are"
        )
    walk.needs(atom, index + 1)
    return rest


def _sole(axis: Axis, action: str) -> Atom:
    """The atom of an axis that is one dynamic dimension. action: what the operator does to it. Raises `MixedError`."""
    if len(axis) != 1 or axis[0].every > 1:
        raise MixedError(_dim_of(axis), f"{action} a dimension that was flattened from several, or sliced with a step")
    return axis[0]


def slice_(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of slice: a range of positions is taken. It must begin at a fixed position, and end
    at a fixed position, at a fixed distance from the end, or where the first of some equal parts ends; otherwise
    `MixedError` is raised."""
    state, at = walk.of(a["self"]), a["dim"] % len(shape_of(a["self"]))
    if CHUNKS in node.meta and not is_plain(state.axes[at]):
        atom = _sole(state.axes[at], "it splits")
        if a["start"]:
            raise MixedError(_dim_of([atom]), "the positions of its parts, except the first, depend on the size")
        fill = PaddingFill(finite=atom.fill.finite)
        first = Atom(shape_of(node)[at], atom.dim, atom.offset, fill, every=node.meta[CHUNKS])
        return replace(state, axes=_with(state.axes, at, (first,)))
    return _ranged(walk, node, a["self"], a["dim"], (a["start"], a["end"]), walk.small(node, "start", "end"), a["step"])


def part_or_whole(walk: Walk, node: Node, small: Node) -> TensorState:
    """Return the state of a slice that takes the whole tensor in one of the two graphs; the operator is an alias there.
    node: the operator in the larger graph. small: the same operator in the smaller graph. Raises `MixedError` as
    `slice_` does."""
    x, whole = node.all_input_nodes[0], (0, None)
    a = arguments(node if packet(node) is aten.slice else small)
    large, small_range = (a["start"], a["end"]), whole
    if packet(node) is not aten.slice:
        large, small_range = small_range, large
    return _ranged(walk, node, x, a["dim"], large, small_range, a["step"])


def _ranged(
    walk: Walk, node: Node, x: Node, dim: int, range_: tuple[Any, Any], small_range: tuple[Any, Any], step: int
) -> TensorState:
    state, at = walk.of(x), dim % len(shape_of(x))
    size, axis = shape_of(x)[at], state.axes[at]
    start, stop, _ = slice(*range_).indices(size)
    length = max(stop - start, 0)
    other = walk.small_shape(x)[at]
    small = slice(*small_range).indices(other)
    if walk.differs(node, "dim", "step"):
        walk.no_sizes(node)
    if is_plain(axis):
        if length and start != small[0]:
            raise MixedError(0, f"where its range begins ({start}) depends on the size")
        return replace(state, axes=_with(state.axes, at, plain(len(range(start, stop, step)))))
    if (start, length, step) == (0, size, 1):
        return state
    atom = _sole(axis, "it takes a part of")
    if step != 1 and (start, stop) == (0, size):
        thinned = Atom(len(range(0, size, step)), atom.dim, atom.offset, replace(atom.fill, copies=False), every=step)
        return replace(state, axes=_with(state.axes, at, (thinned,)))
    if step != 1:
        raise MixedError(_dim_of(axis), "it slices a dynamic dimension with a step")
    if start != small[0] or (range_[0] or 0) < 0:
        raise MixedError(_dim_of(axis), f"where its range begins ({start}) depends on the size")
    if stop == small[1] and stop < size:  # the first ones
        walk.needs(atom, stop)
        return replace(state, axes=_with(state.axes, at, plain(length)))
    if size - stop != other - small[1]:
        raise MixedError(_dim_of(axis), f"where its range ends ({stop}) depends on the size")
    walk.needs(atom, start + size - stop + 1)
    cut = PaddingFill(finite=atom.fill.finite) if stop < size else atom.fill
    kept = Atom(length, atom.dim, atom.offset - start - (size - stop), cut)
    return replace(state, axes=_with(state.axes, at, (kept,)))


def _with(axes: tuple[Axis, ...], at: int, axis: Axis) -> tuple[Axis, ...]:
    """The axes with axis `at` replaced. `Atom.ahead` of related atoms is dropped, because it held for the old axis."""
    return tuple(axis if i == at else _unrelated(x, axes[at]) for i, x in enumerate(axes))


def _without(axes: tuple[Axis, ...], at: int) -> tuple[Axis, ...]:
    changed = _with(axes, at, ())
    return (*changed[:at], *changed[at + 1 :])


def _unrelated(axis: Axis, gone: Axis) -> Axis:
    dims = {atom.dim for atom in gone}
    return tuple(replace(atom, ahead=None) if atom.dim in dims else atom for atom in axis)


def getitem(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of getitem: one result of an operator with several."""
    parts, index = walk.states[node.all_input_nodes[0]], node.args[1]
    assert isinstance(parts, list)
    assert isinstance(index, int)
    return parts[index]


# -- joins


def cat(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of cat: tensors are joined along a dimension. Raises `MixedError` if one before the
    last has a dynamic size there, because nothing may follow its padding, and if their other axes do not correspond."""
    states = [walk.of(x) for x in a["tensors"] if prod(shape_of(x))]
    at = a["dim"] % len(shape_of(node))
    along = [state.axes[at] for state in states]
    dynamic = [axis for axis in along if not is_plain(axis)]
    if dynamic:
        if len(dynamic) > 1 or along[-1] is not dynamic[0]:
            raise MixedError(_dim_of(dynamic[0]), "it appends something behind padding")
        last = _sole(dynamic[0], "it prepends something to")
        before = sum(size_of(axis) for axis in along[:-1])
        joined: Axis = (Atom(last.size + before, last.dim, last.offset + before, last.fill),)
    else:
        joined = plain(shape_of(node)[at])
    return _joined(states, at, joined)


def stack(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of stack: tensors are joined along a new dimension. Raises `MixedError` if their
    axes do not correspond."""
    at = a["dim"] % len(shape_of(node))
    states = []
    for x in a["tensors"]:
        state = walk.of(x)
        states.append(replace(state, axes=(*state.axes[:at], (), *state.axes[at:])))
    return _joined(states, at, plain(len(states)))


def _joined(states: Sequence[TensorState], at: int, axis: Axis) -> TensorState:
    """The state of joined tensors: what is known of all of them. axis: the joined axis, at index `at`."""
    others = [replace(state, axes=_with(state.axes, at, ())) for state in states]
    axes = broadcast(others, len(others[0].axes))
    made: list[Axis] = []
    for own in axes:
        shown = next((x for x in own if x), ())
        made.append(
            tuple(
                replace(atom, fill=_common([x[i].fill if x else PaddingFill() for x in own]), ahead=None)
                if atom.dim is not None
                else atom
                for i, atom in enumerate(shown)
            )
        )
    made[at] = axis
    return TensorState(tuple(made), min(s.low for s in states), max(s.high for s in states))


def _common(fills: Sequence[PaddingFill]) -> PaddingFill:
    """What holds for the padding of all these fills."""
    first = fills[0]
    value = first.value if all(fill.value == first.value for fill in fills) else None
    return PaddingFill(all(fill.copies for fill in fills), value, finite=all(fill.finite for fill in fills))


def repeat(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of repeat: along each dimension, the whole tensor follows itself several times (a b
    a b). Raises `MixedError` if how often depends on the size."""
    state = walk.of(a["self"])
    if walk.differs(node):
        raise MixedError(next(iter(state.dims), 0), "how often it repeats depends on the size")
    axes = (*((),) * (len(shape_of(node)) - len(state.axes)), *state.axes)
    pairs = zip(a["repeats"], axes, strict=True)
    return replace(state, axes=tuple(tidy((*plain(n), *axis)) for n, axis in pairs))


def pad(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of pad: positions are added at the ends of dimensions. Raises `MixedError` if in a
    dynamic dimension they do not hold the same number as the padding, if they copy elements from the end of one, or if
    what is added depends on the size."""
    state, widths = walk.of(a["self"]), list(a["pad"])
    value = a.get("value") or 0
    if a.get("mode", "constant") != "constant" and any(
        not is_plain(state.axes[-1 - i]) for i in range(len(widths) // 2)
    ):
        raise MixedError(next(iter(state.dims)), "it pads with elements from the end, where the padded rows are")
    if not isinstance(value, int | float) or walk.differs(node):
        raise MixedError(next(iter(state.dims), 0), "what it pads with depends on the size")
    axes = list(refilled(state.axes))
    for i, (left, right) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        at = len(axes) - 1 - i
        if is_plain(axes[at]):
            axes[at] = plain(shape_of(node)[at])
        elif left or right:
            atom = _sole(state.axes[at], "it pads")
            behind = max(right, 0)
            if left < 0 or right < 0 or (behind and atom.fill.value != value):
                raise MixedError(_dim_of([atom]), "it pads behind padded rows")
            new = Atom(shape_of(node)[at], atom.dim, atom.offset + left + right, atom.fill)
            axes[at] = (new,)
    return TensorState(tuple(axes), min(state.low, value), max(state.high, value))


# -- new tensors of a known shape


def full(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of full_like: a tensor filled with one number. Of the operand it uses the shape.
    Raises `MixedError` if the number depends on the size."""
    value = a["fill_value"]
    if not isinstance(value, int | float) or walk.differs(node, "fill_value"):
        raise MixedError(0, "what it fills with depends on the size")
    value = float(torch.full((), value, dtype=dtype_of(node)))  # rounded to the type
    like = walk.states[a["self"]]
    axes = like.axes if isinstance(like, TensorState) and like.mixed is None else walk.shaped(node)
    return TensorState(
        refilled(axes, PaddingFill(copies=True, value=value, finite=isfinite(value))), value, value, value
    )


# -- indexing


def embedding(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of embedding: each index is replaced by a row of a table. Raises `MixedError` if the
    size of the table is dynamic."""
    index, table = walk.of(a["indices"]), walk.of(a["weight"])
    if table.dims:
        raise MixedError(next(iter(table.dims)), "the size of its table is dynamic")
    return TensorState((*refilled(index.axes), table.axes[1]), table.low, table.high)


def index(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of index, x[i, j, ...]: tensors of indices select positions of several dimensions
    together. Raises `MixedError` for masks in the place of indices, if an index may select a padded position, and if
    the axes of the indices do not correspond."""
    state, indices = walk.of(a["self"]), list(a["indices"])
    used = [i for i, x in enumerate(indices) if x is not None]
    given = [walk.of(indices[i]) for i in used]
    if any(dtype_of(indices[i]) in (torch.bool, torch.uint8) for i in used):
        raise MixedError(next(iter(state.dims), 0), "how many positions it selects depends on data")
    ndim = max(len(s.axes) for s in given)
    named = [_named(walk, state.axes[i], indices[i], s) for i, s in zip(used, given, strict=True)]
    taken: list[Axis] = []
    for own in broadcast(given, ndim):
        shown = next((axis for axis in own if axis), ())
        fill, copies = PaddingFill(finite=state.is_finite), True
        for axis, known in zip(own, named, strict=True):
            if known is not None and axis:
                fill, copies = known, copies and known.copies
            else:  # copies of an index name the same element
                copies = copies and all(atom.fill.copies for atom in axis if atom.dim is not None)
        fill = replace(fill, copies=copies)
        taken.append(tuple(replace(atom, fill=fill, ahead=None) if atom.dim is not None else atom for atom in shown))
    others = list(refilled(axis for i, axis in enumerate(state.axes) if i not in used))
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    return TensorState((*others[:first], *taken, *others[first:]), state.low, state.high)


def _named(walk: Walk, axis: Axis, index: Node, position: TensorState) -> PaddingFill | None:
    """What is known of the elements at padded indices: the axis's own padding if the indices are its positions in
    order, else None. Raises `MixedError` if a valid index may select a padded position."""
    if is_plain(axis):
        return None
    atom = _sole(axis, "it indexes")
    return _valid(walk, atom, index, position)


def _valid(walk: Walk, atom: Atom, index: Node, position: TensorState) -> PaddingFill | None:
    if walk.is_constant(index):
        value = walk.constant(index)
        if not position.dims:
            low, high = int(value.min()), int(value.max())
            if low < 0:
                raise MixedError(_dim_of([atom]), "it counts positions from the end, where the padded rows are")
            walk.needs(atom, high + 1)
            return None
        mine = [i for i, axis in enumerate(position.axes) if axis]
        if len(mine) == 1 and [x.place for x in position.axes[mine[0]]] == [atom.place]:
            line = value.reshape(-1)
            count = torch.arange(len(line))
            if bool((line == count).all()):
                return atom.fill
            if bool(((line <= count) & (line >= 0)).all()):
                return None
        raise MixedError(_dim_of([atom]), f"its indices may select padded {walk.rows(_dim_of([atom]))}")
    if position.indexes == atom.dim and atom.offset >= 0:
        return None
    raise MixedError(
        _dim_of([atom]),
        f"its indices may select padded {walk.rows(_dim_of([atom]))} (mask.bool().sum(1) - 1, or an argmax of masked "
        "values, selects none)",
    )


def index_select(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of index_select: a vector of indices selects positions of one dimension. Raises
    `MixedError` if an index may select a padded position."""
    state, position = walk.of(a["self"]), walk.of(a["index"])
    at = a["dim"] % len(state.axes)
    fill = _named(walk, state.axes[at], a["index"], position)
    axis = position.axes[0] if position.axes else ()
    axes = list(refilled(state.axes))
    known = PaddingFill(finite=state.is_finite) if fill is None else fill
    axes[at] = tuple(replace(atom, fill=known) if atom.dim is not None else atom for atom in axis)
    return TensorState(tuple(axes), state.low, state.high)


def gather(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of gather: each index selects an element along one dimension; the other coordinates
    stay. Raises `MixedError` for a flattened tensor, if an index may select a padded position, and if other positions
    of indices and operand differ."""
    indices: Node = a["index"] if "index" in a else a["indices"]
    state, position = walk.of(a["self"]), walk.of(indices)
    if a.get("dim") is None:
        raise MixedError(next(iter(state.dims | position.dims), 0), "it indexes a flattened tensor")
    at = a["dim"] % len(state.axes)
    if not is_plain(state.axes[at]):
        _valid(walk, _sole(state.axes[at], "it indexes"), indices, position)
    axes = list(refilled(position.axes))
    for i, (own, other) in enumerate(zip(state.axes, axes, strict=True)):
        if i != at and not (is_plain(own) and is_plain(other)):
            if [atom.place for atom in own] != [atom.place for atom in other]:
                raise MixedError(_dim_of((*own, *other)), "the positions of its indices and of its operand differ")
            copies = all(atom.fill.copies for atom in own)
            axes[i] = refilled([other], copies=copies)[0]
    if not state.is_finite:
        axes = [tuple(replace(x, fill=replace(x.fill, finite=False)) for x in axis) for axis in axes]
    axes[at] = refilled([position.axes[at]], copies=is_plain(state.axes[at]))[0]
    return TensorState(tuple(axes), state.low, state.high)


def isin(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of isin: whether each element is one of some numbers. Raises `MixedError` if how
    many numbers there are is dynamic."""
    state, others = walk.of(a["elements"]), walk.of(a["test_elements"])
    for dim in others.dims:
        raise MixedError(dim, "the number of elements that it compares with is dynamic")
    if not isinstance(a["elements"], Node):
        return TensorState((), 0.0, 1.0)
    axes = list(refilled(state.axes))
    if isinstance(a["test_elements"], Node) and walk.is_constant(a["test_elements"]):
        numbers = walk.constant(a["test_elements"])
        for i, (axis, own) in enumerate(zip(axes, state.axes, strict=True)):
            axes[i] = tuple(_with_value(new, _found(old.fill, numbers)) for new, old in zip(axis, own, strict=True))
    return TensorState(tuple(axes), 0.0, 1.0)


def _found(fill: PaddingFill, numbers: torch.Tensor) -> float | None:
    return None if fill.value is None or fill.may_be_nan else float((numbers == fill.value).any())


def _with_value(atom: Atom, value: float | None) -> Atom:
    return replace(atom, fill=replace(atom.fill, value=value)) if atom.dim is not None else atom


def one_hot(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`PaddingRule`) of one_hot: 1 at the column of each index, 0 elsewhere. Raises `MixedError` if the
    number of columns depends on data."""
    if a["num_classes"] < 0:
        raise MixedError(0, "how many columns it has depends on data")
    return TensorState((*refilled(walk.of(a["self"]).axes), plain(shape_of(node)[-1])), 0.0, 1.0)


MOVES: dict[Any, PaddingRule] = {
    **dict.fromkeys((aten.reshape, aten.view), regroup),
    **dict.fromkeys((aten.pad, aten.constant_pad_nd), pad),
    **dict.fromkeys((aten.gather, aten.take_along_dim), gather),
    aten.permute: permute,
    aten.expand: expand,
    aten.select: select,
    aten.slice: slice_,
    aten.cat: cat,
    aten.stack: stack,
    aten.repeat: repeat,
    aten.full_like: full,
    aten.isin: isin,
    aten.one_hot: one_hot,
    aten.embedding: embedding,
    aten.index: index,
    aten.index_select: index_select,
    operator.getitem: getitem,
}
"""The rule of each operator that moves or selects elements."""
