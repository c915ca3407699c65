"""Padding rules of operators that read whole lines of a tensor: sums, extremes, norms, scans, sorting, softmax.

A line is all elements along one dimension (or several), with the other coordinates fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..capture import dtype_of, packet, shape_of
from ..mask import HIDDEN
from .moves import Made, PaddingRule
from .state import HIDES, Atom, Axis, Mixed, MixedError, PaddingFill, TensorState, is_plain, plain, refilled

if TYPE_CHECKING:
    from .check import Walk

aten = torch.ops.aten

Neutral = Callable[[PaddingFill, TensorState], bool]
"""Whether padding does not affect the reduction of a line, given what is known of the padding and of the tensor."""


def _is_zero(fill: PaddingFill, state: TensorState) -> bool:
    return fill.value == 0


def _is_one(fill: PaddingFill, state: TensorState) -> bool:
    return fill.value == 1


def _is_true(fill: PaddingFill, state: TensorState) -> bool:
    return fill.value not in (None, 0)


def _is_low(fill: PaddingFill, state: TensorState) -> bool:
    return fill.top <= HIDES or (fill.value is not None and fill.value <= state.low)


def _is_high(fill: PaddingFill, state: TensorState) -> bool:
    return fill.bottom >= -HIDES or (fill.value is not None and fill.value >= state.high)


def _is_hidden(fill: PaddingFill, state: TensorState) -> bool:
    return fill.top <= HIDES


def _is_hidden_key(fill: PaddingFill, state: TensorState) -> bool:
    """Whether padded keys are hidden among the scores of an attention, where the machine masks them out."""
    return fill.top <= HIDDEN


SUMS = {aten.sum, aten.nansum, aten.count_nonzero, aten.linalg_vector_norm}
HIGHEST = {aten.amax, aten.max, aten.argmax}
LOWEST = {aten.amin, aten.min, aten.argmin}
NEUTRAL: dict[Any, Neutral] = {
    **dict.fromkeys(SUMS, _is_zero),
    **dict.fromkeys(HIGHEST, _is_low),
    **dict.fromkeys(LOWEST, _is_high),
    aten.prod: _is_one,
    aten.any: _is_zero,
    aten.all: _is_true,
    aten.logsumexp: _is_hidden,
}
"""When padding does not affect a reduction. Reductions without an entry depend on the number of elements."""
ALIKE = {*HIGHEST, *LOWEST, aten.aminmax, aten.any, aten.all}
"""Reductions that copies of an element do not change; among equal elements they return the first index."""
KEEPING = {aten.amax, aten.amin, aten.max, aten.min, aten.mean, aten.median, aten.mode}
"""Reductions whose result of equal numbers is that number."""
EXTREMES = {aten.amax, aten.amin, aten.max, aten.min}
REDUCTIONS = {
    *NEUTRAL,
    *(aten.mean, aten.nanmean, aten.var, aten.std, aten.var_mean, aten.std_mean, aten.median, aten.nanmedian),
    *(aten.mode, aten.quantile, aten.nanquantile, aten.aminmax),
}
INDEX_ALONE = {aten.argmax, aten.argmin}
NO_RESULT_BELOW_0 = {aten.count_nonzero, aten.linalg_vector_norm, aten.var, aten.std, *INDEX_ALONE}


def reduction(walk: Walk, node: Node, a: dict[str, Any]) -> Made:
    """Padding rule (`moves.PaddingRule`) of reductions: each line becomes one number, or a number and an index. Raises
    `MixedError` if padding in the line may change it; zeros, for example, do not change a sum."""
    kind, x = packet(node), a.get("self", a.get("input"))
    state = walk.of(x)
    gone = _axes(a, len(state.axes))
    walk.no_sizes(node)
    neutral, alike = NEUTRAL.get(kind), kind in ALIKE
    if kind is aten.linalg_vector_norm:
        neutral, alike = neutral if float(a["ord"]) >= 0 else None, a["ord"] == inf
    lost: set[int] = set()
    for at in gone:
        for atom in state.axes[at]:
            if atom.dim is not None and not (alike and atom.fill.copies):
                _take_out(walk, node, state, atom, neutral, lost)
    if kind in INDEX_ALONE and a["dim"] is None:
        _check_flat_index([atom for axis in state.axes for atom in axis])
    elif kind in INDEX_ALONE or isinstance(node.meta["val"], list | tuple):
        for at in gone:
            _check_flat_index(state.axes[at])
    numbers = [
        state.axes[at][0].dim
        for at in gone
        if len(gone) == 1 and len(state.axes[at]) == 1 and state.axes[at][0].offset == 0
    ]
    whole = numbers[0] if numbers and state.axes[gone[0]][0].every == 1 else None
    axes = refilled(() if i in gone else axis for i, axis in enumerate(state.axes))
    if all(is_plain(state.axes[at]) for at in gone) or kind in KEEPING or kind in SUMS:
        same = [() if i in gone else axis for i, axis in enumerate(state.axes)]
        axes = tuple(
            tuple(_of_equal(node, new, old) for new, old in zip(axis, before, strict=True))
            for axis, before in zip(axes, same, strict=True)
        )
    axes = tuple(tuple(_unsure(atom) if atom.dim in lost else atom for atom in axis) for axis in axes)
    if not a.get("keepdim"):
        axes = tuple(axis for i, axis in enumerate(axes) if i not in gone)
    low, high = _bounds(kind, state)
    index = TensorState(axes, 0.0, inf, indexes=numbers[0] if numbers else None)
    if kind in INDEX_ALONE:
        return index
    is_mask = state.low >= 0 and state.high <= 1 and not (dtype_of(node) or torch.bool).is_floating_point
    is_count = kind is aten.count_nonzero or (kind is aten.sum and is_mask)
    values = TensorState(axes, low, high, counts=whole if is_count else None)
    results = node.meta["val"]
    if not isinstance(results, list | tuple):
        return values
    is_index = [not r.dtype.is_floating_point and i > 0 and kind is not aten.aminmax for i, r in enumerate(results)]
    return [index if yes else values for yes in is_index]


def _axes(a: dict[str, Any], ndim: int) -> list[int]:
    """The axes that a reduction goes over."""
    dim = a.get("dim")
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % ndim for d in dims] if ndim else []


def _take_out(walk: Walk, node: Node, state: TensorState, atom: Atom, neutral: Neutral | None, lost: set[int]) -> None:
    """Check a reduction along an atom. Raises `MixedError` if padding may affect it. lost: receives the dimension if
    only the results of valid rows are unaffected, e.g. if each row hides the positions ahead of it."""
    assert atom.dim is not None
    if neutral is None:
        raise MixedError(atom.dim, f"its result depends on how many {walk.rows(atom.dim)} there are")
    if neutral(atom.fill, state):
        return
    ahead = state.hidden_ahead(atom)
    if ahead is not None and neutral(ahead, state):
        lost.add(atom.dim)
        return
    raise MixedError(atom.dim, _nothing_hides(walk, atom.dim))


def _nothing_hides(walk: Walk, dim: int) -> str:
    return f"it includes the padded {walk.rows(dim)}, and no mask hides them"


def _check_flat_index(atoms: Sequence[Atom]) -> None:
    for atom in atoms[1:]:
        if atom.dim is not None:
            raise MixedError(atom.dim, "its indices go over several dimensions, so that they depend on the size")


def _of_equal(node: Node, new: Atom, old: Atom) -> Atom:
    """The atom of the result with what follows from known elements of a line: all equal, or all beyond a bound."""
    if old.dim is None:
        return new
    fill = new.fill
    if packet(node) in EXTREMES:
        fill = replace(fill, most=old.fill.most, least=old.fill.least)
    if old.fill.value is not None and isinstance(node.meta["val"], torch.Tensor):
        x = node.all_input_nodes[0]
        line = torch.full(shape_of(x), old.fill.value, dtype=dtype_of(x))
        if node.all_input_nodes == [x]:
            made = node.target(*torch.fx.node.map_arg(node.args, lambda _: line), **node.kwargs)
            values = made.double().unique()
            if len(values) == 1 and not bool(values.isnan()):
                fill = replace(fill, value=float(values))
    return replace(new, fill=fill)


def _unsure(atom: Atom, finite: bool = True) -> Atom:
    return replace(atom, fill=PaddingFill(finite=finite and atom.fill.finite))


def _bounds(kind: Any, state: TensorState) -> tuple[float, float]:
    if kind in KEEPING or kind in (aten.quantile, aten.nanmedian, aten.aminmax):
        return state.low, state.high
    if kind in NO_RESULT_BELOW_0 or (kind in SUMS and state.low >= 0) or (kind is aten.prod and state.low >= 0):
        return 0.0, inf
    return -inf, inf


# -- operators that keep the shape


SCANS = {aten.cumsum, aten.cumprod, aten.cummax, aten.cummin, aten.logcumsumexp}


def scan(walk: Walk, node: Node, a: dict[str, Any]) -> Made:
    """Padding rule (`moves.PaddingRule`) of scans, such as cumsum: each position depends on those before it only. Valid
    positions come before padding, so padding does not change them; `MixedError` is raised where several dimensions were
    flattened so that they do not."""
    state = walk.of(a["self"])
    at = a["dim"] % len(state.axes)
    _check_first(state.axes[at])
    axes = list(refilled(state.axes))
    axes[at] = tuple(_unsure(atom, state.is_finite) if atom.dim is not None else atom for atom in axes[at])
    low = 0.0 if state.low >= 0 and packet(node) is not aten.logcumsumexp else -inf
    values = TensorState(tuple(axes), low)
    return values if not isinstance(node.meta["val"], list | tuple) else [values, TensorState(tuple(axes), 0.0)]


def _check_first(axis: Axis) -> None:
    for atom in axis[1:]:
        if atom.dim is not None:
            raise MixedError(atom.dim, "valid positions follow behind padded ones")


def softmax(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of softmax and log_softmax. Raises `MixedError` unless a large negative number
    hides the padded positions of each line."""
    state = walk.of(a["self"])
    at = a["dim"] % len(state.axes)
    is_log = packet(node) is aten.log_softmax
    neutral = _is_hidden_key if len(state.axes) == 4 and not is_log else _is_hidden
    lost: set[int] = set()
    for atom in state.axes[at]:
        if atom.dim is not None:
            _take_out(walk, node, state, atom, neutral, lost)
    # A line that is hidden completely becomes NaN; if one mask hides all rows, a valid row is NaN too.
    finite = _sees_a_number(state.axes[at])
    axes = [
        tuple(
            replace(new, fill=replace(new.fill, finite=finite or old.fill.is_as_finite))
            for new, old in zip(*pair, strict=True)
        )
        for pair in zip(refilled(state.axes), state.axes, strict=True)
    ]
    axes = [tuple(_unsure(atom) if atom.dim in lost else atom for atom in axis) for axis in axes]
    zero = PaddingFill(finite=False) if is_log else PaddingFill(value=0.0)
    made = []
    for new, old in zip(axes[at], state.axes[at], strict=True):
        if old.dim is None:
            made.append(new)
        elif old.dim in lost:
            made.append(replace(new, ahead=zero))
        else:
            made.append(replace(new, fill=zero))
    axes[at] = tuple(made)
    return TensorState(tuple(axes), -inf if is_log else 0.0, 0.0 if is_log else 1.0)


def _sees_a_number(keys: Axis) -> bool:
    """Whether each row has a key that is not hidden, because only keys ahead of a row may be."""
    ahead = keys[0].ahead if len(keys) == 1 else None
    if ahead is None or ahead.others is None:
        return False
    return ahead.others.finite and (ahead.finite or ahead.value == -inf)


def sort(walk: Walk, node: Node, a: dict[str, Any]) -> Made:
    """Padding rule (`moves.PaddingRule`) of sort, topk and kthvalue; its results are the values and the indices. Raises
    `MixedError` unless padding is sorted behind all valid elements, or only one element is taken and padding is copies
    of a valid one."""
    kind, state = packet(node), walk.of(a["self"])
    at = a["dim"] % len(state.axes)
    down = a["largest"] if kind is aten.topk else bool(a.get("descending"))
    axes = list(refilled(state.axes))
    axis, indexes, tied = state.axes[at], None, None
    walk.no_sizes(node)
    one = a.get("k") == 1
    for atom in axis:
        if atom.dim is None:
            continue
        copies = one and atom.fill.copies
        neutral = _is_low(atom.fill, state) if down else _is_high(atom.fill, state)
        if len(axis) > 1 or not (neutral or copies):
            raise MixedError(atom.dim, _nothing_hides(walk, atom.dim))
        beyond = atom.fill.top <= HIDES if down else atom.fill.bottom >= -HIDES
        if not (one and beyond and not copies) and not (kind is aten.sort and atom.fill.value is not None):
            tied = Mixed(node, f"among equal elements, its indices may select padded {walk.rows(atom.dim)}", atom.dim)
        indexes = atom.dim if atom.offset == 0 else None
        if a.get("k"):
            walk.needs(atom, a["k"])
    if kind is aten.topk:
        axes[at] = plain(a["k"])
    elif kind is aten.kthvalue:
        axes[at : at + 1] = [()] if a["keepdim"] else []
    values = TensorState(tuple(axes), state.low, state.high)
    return [values, TensorState(tuple(axes), 0.0, indexes=indexes, mixed=tied)]


def static(axes: Callable[[int, dict[str, Any]], Iterable[int]], why: str) -> PaddingRule:
    """Return the padding rule (`moves.PaddingRule`) of operators that compute each line, or window, from the same line
    of the operand. axes: takes the number of axes and the operator's arguments by name, and gives the axes of the
    lines. why: the reason of a refusal. The rule raises `MixedError` if one of these axes is dynamic; the result may
    have another size there."""

    def rule(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
        state = walk.of(a.get("self", a.get("input")))
        made = list(refilled(state.axes))
        for at in axes(len(made), a):
            _check_plain(state.axes[at], why)
            made[at] = plain(shape_of(node)[at])
        return TensorState(tuple(made))

    return rule


def _check_plain(axis: Axis, why: str) -> None:
    for atom in axis:
        if atom.dim is not None:
            raise MixedError(atom.dim, why)


def _given_axes(ndim: int, a: dict[str, Any]) -> list[int]:
    """The axes that an operator names; all if it names none."""
    return _axes({"dim": a.get("dim", a.get("dims", a.get("axis")))}, ndim)


LINES = static(_given_axes, "it includes padding")


def roll(walk: Walk, node: Node, a: dict[str, Any]) -> Made:
    """Padding rule (`moves.PaddingRule`) of roll: lines are rotated. Raises `MixedError` for a dynamic dimension,
    unless it is rotated by 1 position and its padding is copies of the last valid element."""
    state = walk.of(a["self"])
    axis = state.axes[a["dims"][0]] if len(a["dims"]) == 1 else ()
    walk.no_sizes(node)
    if list(a["shifts"]) == [1] and len(axis) == 1 and axis[0].fill.copies:  # the last is a copy of the last valid one
        at = a["dims"][0] % len(state.axes)
        axes = list(refilled(state.axes))
        axes[at] = (_unsure(axes[at][0]),)
        return TensorState(tuple(axes), state.low, state.high)
    return LINES(walk, node, a)


def triangle(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of tril and triu: elements on one side of a diagonal become 0. The diagonal is
    counted from row 0 and column 0, so padding at the ends does not move it. Raises `MixedError` if the diagonal
    depends on the size."""
    state = walk.of(a["self"])
    walk.no_sizes(node)
    axes = list(refilled(state.axes))
    for i in (-2, -1):
        axes[i] = tuple(
            replace(new, fill=replace(_unsure(new).fill, value=0.0 if old.fill.value == 0 else None))
            if new.dim is not None
            else new
            for new, old in zip(axes[i], state.axes[i], strict=True)
        )
    if packet(node) is aten.tril and a["diagonal"] <= 0:
        rows, columns = axes[-2], axes[-1]
        if len(rows) == len(columns) == 1 and rows[0].place == columns[0].place and rows[0].dim is not None:
            axes[-1] = (replace(columns[0], ahead=PaddingFill(value=0.0)),)
    return TensorState(tuple(axes), min(state.low, 0.0), max(state.high, 0.0))


def scatter(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of scatter operators: they write elements at given indices of each line.
    Raises `MixedError` if the lines have a dynamic size, or if other positions of the operands do not correspond."""
    names = [name for name in ("self", "index", "src") if isinstance(a.get(name), Node)]
    states = [walk.of(a[name]) for name in names]
    ndim = len(states[0].axes)
    at = a["dim"] % ndim
    for state in states:
        _check_plain(state.axes[at], "it writes along a dynamic dimension")
    axes = []
    for i in range(ndim):
        own = [state.axes[i] for state in states]
        places = [[atom.place for atom in axis] for axis in own if not is_plain(axis)]
        if places and (len(places) < len(own) or any(p != places[0] for p in places)):
            _check_plain(
                next(axis for axis in own if not is_plain(axis)), "the positions of its operands do not correspond"
            )
        copies = all(atom.fill.copies for axis in own for atom in axis)
        finite = all(state.is_finite for state in states)
        axes.append(refilled([states[0].axes[i]], PaddingFill(copies, finite=finite))[0])
    return TensorState(tuple(axes))


def _windows(count: int) -> PaddingRule:
    return static(lambda n, a: range(n - count, n), "its windows include padding")


REDUCING: dict[Any, PaddingRule] = {
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(SCANS, scan),
    **dict.fromkeys((aten.softmax, aten.log_softmax), softmax),
    **dict.fromkeys((aten.sort, aten.topk, aten.kthvalue), sort),
    **dict.fromkeys(
        (aten.layer_norm, aten.rms_norm),
        static(lambda n, a: range(n - len(a["normalized_shape"]), n), "it normalises over padding"),
    ),
    **dict.fromkeys(
        (aten.group_norm, aten.instance_norm), static(lambda n, a: range(1, n), "it normalises over padding")
    ),
    **dict.fromkeys((aten.flip, aten.glu), LINES),
    **dict.fromkeys((aten.max_pool1d, aten.avg_pool1d, aten.adaptive_avg_pool1d), _windows(1)),
    **dict.fromkeys((aten.max_pool2d, aten.avg_pool2d, aten.adaptive_avg_pool2d), _windows(2)),
    **dict.fromkeys((aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.upsample_bicubic2d), _windows(2)),
    **dict.fromkeys((aten.tril, aten.triu), triangle),
    **dict.fromkeys((aten.scatter, aten.scatter_add, aten.scatter_reduce), scatter),
    aten.batch_norm: static(
        lambda n, a: range(n) if a["training"] else (), "it normalises over the batch, padding included"
    ),
    aten.roll: roll,
}
"""The rule of each operator that reads whole lines."""
