"""Rules of products of tensors: padding along a dimension that is summed over must be 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..capture import dtype_of, shape_of
from ..convolutions import CONVOLUTIONS, windows_of
from ..mask import HIDDEN
from ..quantised_ops import DEQUANTISE, INTEGER_LINEAR, INTEGER_MATMUL, QUANTISE, ROW_SCALES
from .elementwise import sum_of
from .moves import PaddingRule
from .state import Atom, Axis, MixedError, PaddingFill, TensorState, is_plain, plain, refilled

if TYPE_CHECKING:
    from .check import Walk

aten = torch.ops.aten

Labels = Sequence[Any]
"""A label for each axis of an operand, as in torch.einsum."""


def contracted(walk: Walk, operands: Sequence[tuple[TensorState, Labels]], result: Labels) -> TensorState:
    """Return the state of a tensor contraction, like torch.einsum. operands: states, each with a label for each of its
    axes. result: labels of the result, in order; all other axes are summed over. Raises `MixedError` for a diagonal of
    a dynamic dimension, for axes of one label that do not correspond, and if padding may affect a sum."""
    by_label: dict[Any, list[tuple[TensorState, Axis]]] = {}
    for state, labels in operands:
        if len(set(labels)) != len(labels):
            _refuse(state, "it takes a diagonal of a dynamic dimension")
        for label, axis in zip(labels, state.axes, strict=True):
            by_label.setdefault(label, []).append((state, axis))
    lost: set[int] = set()
    for label, found in by_label.items():
        shown = [(state, axis) for state, axis in found if axis]
        if any([a.place for a in axis] != [a.place for a in shown[0][1]] for _, axis in shown):
            for state, axis in shown:
                if not is_plain(axis):
                    _refuse(state, "the positions of its operands do not correspond")
        if label not in result:
            for place in range(len(shown[0][1]) if shown else 0):
                _sum_over(walk, [(state, axis[place]) for state, axis in shown], lost)
    axes = []
    for label in result:
        given = [axis for _, axis in by_label[label] if axis]
        axes.append(tuple(_product_of([axis[i] for axis in given], lost) for i in range(len(given[0]) if given else 0)))
    return TensorState(tuple(axes), finite=all(state.is_finite for state, _ in operands))


def _sum_over(walk: Walk, atoms: Sequence[tuple[TensorState, Atom]], lost: set[int]) -> None:
    """Check a sum over corresponding atoms. Raises `MixedError` if padding may affect it. lost: receives the dimension
    if only the sums of valid rows are unaffected."""
    dim = atoms[0][1].dim
    if dim is None:
        return
    zero = [(state, atom) for state, atom in atoms if atom.fill.value == 0]
    ahead = [(s, a) for s, a in atoms if (hidden := s.hidden_ahead(a)) is not None and hidden.value == 0]
    taken = zero or ahead
    if taken and not all(atom.fill.is_as_finite for pair in atoms for atom in pair[1:] if pair not in taken):
        raise MixedError(dim, _may_be_infinite(walk, dim))
    if zero:
        return
    if ahead:
        lost.add(dim)
        return
    raise MixedError(dim, f"it includes the padded {walk.rows(dim)}, and no mask hides them")


def _may_be_infinite(walk: Walk, dim: int) -> str:
    return f"the padded {walk.rows(dim)} may be infinite here, and a mask turns that into NaN"


def _product_of(atoms: Sequence[Atom], lost: set[int]) -> Atom:
    first = atoms[0]
    if first.dim is None:
        return first
    fills = [atom.fill for atom in atoms]
    finite = all(fill.finite for fill in fills)
    if first.dim in lost:
        return replace(first, fill=PaddingFill(finite=finite), ahead=None)
    shared = all(fill.is_as_finite for fill in fills)
    return replace(
        first, fill=PaddingFill(all(fill.copies for fill in fills), finite=finite, shared=shared), ahead=None
    )


def _refuse(state: TensorState, why: str) -> None:
    for dim in state.dims:
        raise MixedError(dim, why)


def _plus(total: TensorState, bias: TensorState | None) -> TensorState:
    """The state of a sum with a bias. Raises `MixedError` if a dynamic axis of the bias differs from the total's."""
    if bias is None:
        return total
    if not bias.dims:
        return total
    axes = list(total.axes)
    for back in range(1, len(bias.axes) + 1):
        own, other = axes[-back], bias.axes[-back]
        if other and [a.place for a in own] != [a.place for a in other]:
            _refuse(bias, "the positions of its operands do not correspond")
        if other:
            axes[-back] = tuple(_hidden_by(total, x, y) for x, y in zip(own, other, strict=True))
    return replace(total, axes=tuple(axes))


def _hidden_by(total: TensorState, own: Atom, added: Atom) -> Atom:
    """One atom of the sum of `total` and a bias, from the atoms of both terms. The bias may be a mask: huge negative
    numbers at padded positions hide the elements that they are added to."""
    made = _product_of([own, added], set())
    if own.dim is None:
        return made
    fill = sum_of(own.fill, added.fill)
    if fill is not None:
        made = replace(made, fill=replace(fill, copies=made.fill.copies))
    ahead = None if added.ahead is None else sum_of(PaddingFill(finite=total.is_finite), added.ahead)
    return replace(made, ahead=ahead)


def matmul(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of products of matrices, batches of matrices, and vectors. Raises `MixedError`
    as `contracted` does."""
    return _matrices(walk, walk.of(a["self"]), walk.of(a["other"] if "other" in a else a["mat2"]))


def _matrices(walk: Walk, x: TensorState, y: TensorState) -> TensorState:
    def leading(count: int) -> list[Any]:
        return [("batch", back) for back in range(count, 0, -1)]

    left: Labels = ["k"] if len(x.axes) == 1 else [*leading(len(x.axes) - 2), "m", "k"]
    right: Labels = ["k"] if len(y.axes) == 1 else [*leading(len(y.axes) - 2), "k", "n"]
    count = max(len(x.axes), len(y.axes)) - 2
    result = [*leading(count), *(["m"] if "m" in left else []), *(["n"] if "n" in right else [])]
    return contracted(walk, [(x, left), (y, right)], result)


def linear(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of linear: x @ weight^T + bias. Raises `MixedError` as `contracted` does, and
    for a bias whose dynamic axes are not those of the product."""
    x, weight = walk.of(a["input"]), walk.of(a["weight"])
    leading = [("batch", i) for i in range(len(x.axes) - 1)]
    wide = ["n", "k"] if len(weight.axes) == 2 else ["k"]
    made = contracted(walk, [(x, [*leading, "k"]), (weight, wide)], [*leading, *wide[:-1]])
    return _plus(made, None if a["bias"] is None else walk.of(a["bias"]))


def baddbmm(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of baddbmm: a tensor plus products of matrices. Raises `MixedError` as
    `linear` does."""
    made = _plus(_matrices(walk, walk.of(a["batch1"]), walk.of(a["batch2"])), walk.of(a["self"]))
    if (a["beta"], a["alpha"]) != (1, 1):
        return replace(made, axes=refilled(made.axes))
    return made


def einsum(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of einsum, with or without "->" and "...". Raises `MixedError` as `contracted`
    does."""
    left, arrow, right = a["equation"].replace(" ", "").partition("->")
    operands = [walk.of(x) for x in a["tensors"]]
    terms = left.split(",")
    hidden = [len(s.axes) - len(term.replace("...", "")) for s, term in zip(operands, terms, strict=True)]
    if not arrow:  # the labels that occur once, in the order of the alphabet
        once = [label for label in sorted(set(left) - set(".,")) if left.count(label) == 1]
        right = ("..." if "..." in left else "") + "".join(once)
    labels = [_labels(term, count) for term, count in zip(terms, hidden, strict=True)]
    return contracted(walk, list(zip(operands, labels, strict=True)), _labels(right, max(hidden)))


def _labels(term: str, hidden: int) -> list[Any]:
    """The labels of one operand. hidden: number of dimensions that "..." stands for; they correspond from the last."""
    before, dots, behind = term.partition("...")
    between = [("...", back) for back in range(hidden, 0, -1)] if dots else []
    return [*before, *between, *behind]


def attention(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of scaled_dot_product_attention: softmax(q @ k^T + mask) @ v. Raises
    `MixedError` if neither mask nor causality hides padded keys, if the positions of mask and keys differ, if hidden
    keys may be infinite, and as `contracted` does."""
    q, k, v = (walk.of(a[name]) for name in ("query", "key", "value"))
    leading = [("batch", i) for i in range(len(q.axes) - 2)]
    scores = contracted(walk, [(q, [*leading, "q", "c"]), (k, [*leading, "k", "c"])], [*leading, "q", "k"])
    mask = None if a["attn_mask"] is None else walk.of(a["attn_mask"])
    truths = a["attn_mask"] is not None and dtype_of(a["attn_mask"]) == torch.bool
    keys = []
    for place, atom in enumerate(scores.axes[-1]):
        if atom.dim is None:
            keys.append(atom)
            continue
        shown = () if mask is None else mask.axes[-1]
        if shown and [x.place for x in shown] != [x.place for x in scores.axes[-1]]:
            raise MixedError(atom.dim, "the positions of its mask and of its keys differ")
        known = shown[place] if shown else None
        hidden = known is not None and _hides(known.fill, truths)
        zero = PaddingFill(value=0.0)
        ahead = bool(a["is_causal"]) and scores.query_of(atom) in scores.axes[-2] and _are_sole(scores)
        ahead = ahead and scores.lies_ahead(atom)
        if mask is not None and known is not None:
            behind = mask.hidden_ahead(known)
            ahead = ahead or (behind is not None and _hides(behind, truths))
        if (hidden or ahead) and not atom.fill.is_as_finite:
            raise MixedError(atom.dim, _may_be_infinite(walk, atom.dim))
        keys.append(replace(atom, fill=zero if hidden else PaddingFill(), ahead=zero if ahead else None))
    rows = list(scores.axes)
    if mask is not None:  # a padded sequence is a copy only if its mask is
        for back in range(2, len(mask.axes) + 1):
            own, other = rows[-back], mask.axes[-back]
            if other and [x.place for x in own] == [x.place for x in other]:
                rows[-back] = tuple(_alike(x, y) for x, y in zip(own, other, strict=True))
    shares = TensorState((*rows[:-1], tuple(keys)))
    made = contracted(walk, [(shares, [*leading, "q", "k"]), (v, [*leading, "k", "c"])], [*leading, "q", "c"])
    return made


def _alike(row: Atom, mask: Atom) -> Atom:
    """The atom of rows of masked scores. A row that is hidden completely becomes 0, whatever hides it."""
    fill = PaddingFill(row.fill.copies and mask.fill.copies, finite=row.fill.finite, shared=row.fill.is_as_finite)
    return row if row.dim is None else replace(row, fill=fill, ahead=None)


def _are_sole(scores: TensorState) -> bool:
    return all(len(axis) == 1 for axis in scores.axes[-2:])


def _hides(fill: PaddingFill, truths: bool) -> bool:
    return fill.value == 0 if truths else fill.top <= HIDDEN


def convolution(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of convolutions: each position of the result reads a window of positions.
    Raises `MixedError` for dynamic channels or weights, for a stride of more than 1 over a dynamic dimension, and for
    one that the operator pads with 0 if its own padding is not 0."""
    state, shape, windows = walk.of(a["input"]), shape_of(node), windows_of(node)
    assert windows is not None
    axes = list(refilled(state.axes))
    if not is_plain(state.axes[1]) or walk.of(a["weight"]).dims:
        _refuse(state, "it includes padding")
    axes[1] = plain(shape[1])
    for i, step in enumerate(windows.stride):
        axis = state.axes[2 + i]
        if is_plain(axis):
            axes[2 + i] = plain(shape[2 + i])
            continue
        atom = axis[0]
        reach = windows.dilation[i] * (windows.kernel[i] - 1)
        width = windows.before[i] + windows.after[i]
        if len(axis) > 1 or step != 1 or atom.every > 1:
            raise MixedError(atom.dim or 0, "its stride over a dynamic dimension is more than 1")
        if width and atom.fill.value != 0:
            rows = walk.rows(atom.dim or 0)
            raise MixedError(atom.dim or 0, f"where it pads with 0 are padded {rows}, and nothing makes them 0")
        walk.needs(atom, max(reach - width + 1, 1))
        offset = atom.offset + width - reach
        axes[2 + i] = (Atom(shape[2 + i], atom.dim, offset, PaddingFill(finite=atom.fill.finite)),)
    return TensorState(tuple(axes))


def _rows(walk: Walk, a: dict[str, Any]) -> list[tuple[TensorState, Labels]]:
    """Quantised rows, or numbers to quantise, with the scales and zero points of rows. Raises `MixedError` for a row
    that is padded: its padding would decide about its scale, or be a number that the zero point stands for."""
    x = walk.of(a["x"])
    for atom in x.axes[-1]:
        if atom.dim is not None:
            raise MixedError(atom.dim, f"the padded {walk.rows(atom.dim)} lie in a row that is quantised")
    lead = [("batch", back) for back in range(len(x.axes) - 1, 0, -1)]
    of_rows = {name: walk.of(a[name]) for name in ("scale", "zero") if a.get(name) is not None}
    return [(x, [*lead, "k"]), *((t, [*lead, name] if t.axes else []) for name, t in of_rows.items())]


def row_scales(walk: Walk, node: Node, a: dict[str, Any]) -> list[TensorState]:
    """Padding rule (`moves.PaddingRule`) of rsn::row_scales, whose results are the scale and the zero point of each
    row. Raises `MixedError` for a padded row, and as `contracted`."""
    (x, labels), *_ = _rows(walk, a)
    made = contracted(walk, [(x, labels)], labels[:-1])
    return [replace(made, axes=(*made.axes, plain(1)))] * 2


def quantised(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of rsn::quantise and rsn::dequantise: each number of the result depends on the
    number at its place and on the scale of its row. Raises as `row_scales`."""
    rows = _rows(walk, a)
    return contracted(walk, rows, rows[0][1])


def integer_linear(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of rsn::integer_linear. Raises as `row_scales` and `linear`."""
    rows = _rows(walk, a)
    made = contracted(walk, [*rows, (walk.of(a["weight"]), ["n", "k"])], [*rows[0][1][:-1], "n"])
    return _plus(made, None if a["bias"] is None else walk.of(a["bias"]))


def integer_matmul(walk: Walk, node: Node, a: dict[str, Any]) -> TensorState:
    """Padding rule (`moves.PaddingRule`) of rsn::integer_matmul. Raises as `row_scales` and `matmul`."""
    _rows(walk, a)
    axes = {"x": ["m", "k"], "scale": ["m", "one"], "zero": ["m", "one"]}
    axes |= {"other": ["k", "n"], "other_scale": ["single", "n"], "other_zero": ["single", "n"]}
    states = {name: walk.of(a[name]) for name in axes if a[name] is not None}

    def labels(name: str, lead: int) -> Labels:
        return [*(("batch", back) for back in range(lead, 0, -1)), *axes[name]]

    operands = [(x, labels(name, len(x.axes) - 2) if x.axes else []) for name, x in states.items()]
    most = max(len(x.axes) for x in states.values())
    return contracted(walk, operands, [*labels("x", most - 2)[:-1], "n"])


PRODUCING: dict[Any, PaddingRule] = {
    ROW_SCALES: row_scales,
    **dict.fromkeys((QUANTISE, DEQUANTISE), quantised),
    INTEGER_LINEAR: integer_linear,
    INTEGER_MATMUL: integer_matmul,
    **dict.fromkeys((aten.matmul, aten.bmm), matmul),
    aten.baddbmm: baddbmm,
    **dict.fromkeys(CONVOLUTIONS, convolution),
    aten.linear: linear,
    aten.einsum: einsum,
    aten.scaled_dot_product_attention: attention,
}
"""The rule of each product operator."""
