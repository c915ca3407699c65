"""Shapes, labels and element types of the results of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ..base.element_types import FLOATS, ElementType
from ..isa.overlays.tasks.kernels import LibraryKernel
from . import layouts
from .kernels import Call, KernelOperand, Shape
from .layouts import LOCAL, NONE, Distribution, Labels, Pending
from .source import Refusal
from .values import FLOAT, INT, joined


def element(kernel: LibraryKernel, operands: Sequence[KernelOperand]) -> str | None:
    """Return the element type of the result, None if it is unknown. Raises `Refusal` if tiles of one type meet
    elements of another one."""
    found: ElementType | None = None
    for operand in operands:
        if operand.type is None:
            if operand.dist.uniform:
                continue
            return None
        mine = ElementType(operand.type.dtype)
        if kernel.floats and mine.dtype not in (*FLOATS, "int", "float") and operand.shape:
            raise Refusal("type", f"{kernel.name} takes floats; {operand.text} is {operand.type}", None)
        if found is None:
            found = mine
            continue
        both = joined(found, mine)
        if both is None:
            if {found, mine} == {INT, FLOAT}:
                both = FLOAT
            elif any(o.shape for o in operands):
                what = " and ".join(str(o.type) for o in operands if o.type is not None)
                note = f"element types do not mix silently: convert one, as in {found.dtype}({operand.text})"
                raise Refusal("type", f"{kernel.name} of {what}", None, note)
            else:
                return None
        found = both
    return found.dtype if found is not None else None


Result = tuple[Labels | None, Shape | None, Pending]


def _unknown(operands: Sequence[KernelOperand]) -> bool:
    return any(operand.type is None and not operand.dist.uniform for operand in operands)


def _elementwise(call: Call) -> Result:
    if _unknown(call.operands):
        return None, None, NONE
    labels, shape = broadcast(call.kernel.name, call.operands, call.mesh)
    return labels, shape, NONE


def broadcast(name: str, operands: Sequence[KernelOperand], mesh: Sequence[int]) -> tuple[Labels | None, Shape]:
    """Return labels and shape of the shards of an elementwise result, axes aligned from the last one. Raises
    `Refusal`."""
    rank = max((len(operand.shape) for operand in operands), default=0)
    local = any(operand.dist.local for operand in operands)
    labels: list[int | None] = []
    shape: list[int] = []
    for back in range(rank, 0, -1):
        size, found = 1, None
        owner: KernelOperand | None = None
        for operand in operands:
            if len(operand.shape) < back:
                continue
            mine = operand.shape[-back]
            label = operand.dist.labels[-back] if operand.dist.labels is not None else None
            if mine == 1 and label is None:
                continue
            if owner is None:
                size, found, owner = mine, label, operand
                continue
            both = owner.dist.labels is not None and operand.dist.labels is not None and not local
            if both and label != found:
                raise _apart(name, owner, operand, mesh)
            if mine != size:
                what = " and ".join(str(o.type) for o in (owner, operand))
                raise Refusal("type", f"{name} of {what}: the shapes do not meet", None)
            if owner.dist.labels is None and operand.dist.labels is not None:
                found, owner = label, operand
        labels.append(found)
        shape.append(size)
    if local:
        return None, tuple(shape)
    return tuple(labels), tuple(shape)


def _apart(name: str, a: KernelOperand, b: KernelOperand, mesh: Sequence[int]) -> Refusal:
    assert a.dist.labels is not None
    assert b.dist.labels is not None
    message = f"{name} of {a.text} @ {layouts.shown(a.dist.labels)} and {b.text} @ {layouts.shown(b.dist.labels)}"
    shapes = [layouts.whole_shape(o.shape, o.dist.labels or (), mesh) for o in (a, b)]
    note = ""
    if shapes[0] == shapes[1]:
        fix = layouts.remedy(b.dist.labels, a.dist.labels, b.dist.pending)
        note = f"no layout is changed silently; for {b.text}: {fix}"
    what = f"shards {list(a.shape)} of {list(shapes[0])} and {list(b.shape)} of {list(shapes[1])}"
    return Refusal("layout", message, None, what, note or "the labels of axes that meet must be equal")


def _matmul(call: Call) -> Result:
    a, b = call.operands
    if a.type is None or b.type is None:
        return None, None, NONE
    if not a.shape or not b.shape:
        raise Refusal("type", f"matmul of {a.type} and {b.type}: it takes tiles", None)
    inner_a, inner_b = len(a.shape) - 1, max(0, len(b.shape) - 2)
    local = a.dist.local or b.dist.local
    left, right = _fitted(a, b, inner_a, inner_b), _fitted(b, a, inner_b, inner_a)
    if not local and left[inner_a] != right[inner_b]:
        x, y = layouts.shown(left), layouts.shown(right)
        message = f"matmul of {a.text} @ {x} and {b.text} @ {y}: the contracted axes are cut differently"
        label_a, label_b = layouts.shown(left[inner_a : inner_a + 1]), layouts.shown(right[inner_b : inner_b + 1])
        note = f"axis {inner_a} of {a.text} is {label_a}, axis {inner_b} of {b.text} is {label_b}"
        wanted_b = (*right[:inner_b], left[inner_a], *right[inner_b + 1 :])
        wanted_a = (*left[:inner_a], right[inner_b], *left[inner_a + 1 :])
        fix = f"{a.text}: {layouts.remedy(left, wanted_a)}; or {b.text}: {layouts.remedy(right, wanted_b)}"
        raise Refusal("layout", message, None, note, f"no layout is changed silently: {fix}")
    if a.shape[inner_a] != b.shape[inner_b]:
        what = f"axis {inner_a} of {a.type} and axis {inner_b} of {b.type} do not meet"
        raise Refusal("type", f"matmul: {what}", None)
    batch_labels, batch = broadcast(
        "matmul",
        [
            KernelOperand(
                ElementType(o.type.dtype, o.shape[:-2]), LOCAL if local else Distribution(labels[:-2]), o.text
            )
            for o, labels in ((a, left), (b, right))
            if o.type is not None
        ],
        call.mesh,
    )
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    shape = (*batch, *rows, *columns)
    if local:
        return None, shape, NONE
    labels = (*(batch_labels or ()), *left[-2:-1], *(right[-1:] if len(b.shape) > 1 else ()))
    axis = left[inner_a]
    return labels, shape, NONE if axis is None else frozenset({(call.kernel.reduces, axis)})


def _fitted(operand: KernelOperand, other: KernelOperand, inner: int, other_inner: int) -> Labels:
    """Labels of an operand of a product. A uniform tile is cut along the contracted axis as the other operand is."""
    if operand.dist.labels is not None:
        return operand.dist.labels
    labels: list[int | None] = [None] * len(operand.shape)
    if operand.dist.uniform and other.dist.labels is not None:
        labels[inner] = other.dist.labels[other_inner]
    return tuple(labels)


def _reduce(call: Call) -> Result:
    (x,) = call.operands
    if x.type is None:
        return None, None, NONE
    rank = len(x.shape)
    axis = call.options.get("axis")
    chosen = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = sorted({axis_of(k, rank, call.kernel.name) for k in chosen})
    keep = bool(call.options.get("keepdims"))
    kept = [k for k in range(rank) if keep or k not in axes]
    shape = tuple(1 if k in axes else x.shape[k] for k in kept)
    if x.dist.labels is None:
        return None, shape, NONE
    cut = {label for k in axes if (label := x.dist.labels[k]) is not None}
    labels = tuple(None if k in axes else x.dist.labels[k] for k in kept)
    return labels, shape, frozenset((call.kernel.reduces, label) for label in cut)


def axis_of(axis: object, rank: int, name: str) -> int:
    """Return a stated axis, counted from the front. Raises `Refusal`."""
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise Refusal("type", f"{name}: an axis is an integer that is known before the run", None)
    if not -rank <= axis < rank:
        raise Refusal("index", f"{name}: axis {axis} of a tile with {rank} axes", None)
    return axis % rank


def _transpose(call: Call) -> Result:
    (x,) = call.operands
    if x.type is None:
        return None, None, NONE
    rank = len(x.shape)
    axes = call.options.get("axes")
    order = tuple(reversed(range(rank)))
    if axes is not None:
        order = tuple(axis_of(k, rank, "transpose") for k in (axes if isinstance(axes, tuple) else (axes,)))
        if sorted(order) != list(range(rank)):
            raise Refusal("type", f"transpose: {order} is no order of the axes of {x.type}", None)
    labels = None if x.dist.labels is None else tuple(x.dist.labels[k] for k in order)
    return labels, tuple(x.shape[k] for k in order), NONE


def _reshape(call: Call) -> Result:
    (x,) = call.operands
    if x.type is None:
        return None, None, NONE
    given = call.options.get("shape")
    sizes: list[int] = []
    for size in given if isinstance(given, tuple) else (given,):
        if not isinstance(size, int):
            raise Refusal("type", "reshape takes sizes that are known before the run", None)
        sizes.append(size)
    count = prod(x.shape)
    rest = prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and rest > 0 and count % rest == 0:
        sizes[sizes.index(-1)] = count // rest
    shape = tuple(sizes)
    if any(size < 1 for size in shape) or prod(shape) != count:
        raise Refusal("type", f"reshape of {x.type} to {list(shape)}: {count} elements do not fit", None)
    labels = x.dist.labels
    if labels is None:
        return None, shape, NONE
    # Leading axes that stay as they are keep their labels; what is merged or divided must be whole.
    kept = 0
    while kept < min(len(shape), len(x.shape)) and shape[kept] == x.shape[kept]:
        kept += 1
    if any(label is not None for label in labels[kept:]):
        message = f"reshape of {x.text} @ {layouts.shown(labels)} from {list(x.shape)} to {list(shape)}"
        fix = "only leading axes that keep their size may be cut; all-gather the others"
        raise Refusal("layout", message, None, "it would move elements between shards", fix)
    return (*labels[:kept], *(None,) * (len(shape) - kept)), shape, NONE


def _rows(call: Call) -> Result:
    x, *factors = call.operands
    if x.type is None:
        return None, None, NONE
    if not x.shape:
        raise Refusal("type", f"{call.kernel.name} of {x.type}: it takes tiles", None)
    if x.dist.labels is not None and x.dist.labels[-1] is not None:
        axis = x.dist.labels[-1]
        message = f"{call.kernel.name} needs whole rows; the last axis of {x.text} is cut along mesh axis {axis}"
        fixes = (f"all-gather it along mesh axis {axis}", "or cut another axis")
        raise Refusal("layout", message, None, ", ".join(fixes))
    for factor in factors:
        if factor.type is not None and factor.shape not in ((), x.shape[-1:]):
            message = f"{call.kernel.name}: {factor.text} is {factor.type}; rows have {x.shape[-1]} elements"
            raise Refusal("type", message, None)
        if factor.dist.labels is not None and any(label is not None for label in factor.dist.labels):
            message = f"{call.kernel.name}: {factor.text} is cut, and rows are whole"
            raise Refusal("layout", message, None, layouts.remedy(factor.dist.labels, (None,)))
    local = any(operand.dist.local for operand in call.operands)
    labels = None if local else x.dist.labels or (None,) * len(x.shape)
    return labels, x.shape, NONE


RULES: dict[str, Callable[[Call], Result]] = {
    "elementwise": _elementwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "reshape": _reshape,
    "rows": _rows,
    "transpose": _transpose,
}
"""Rules for the result of a kernel: labels (None: unknown), shape of the shard (None: unknown), what it adds to what is
pending."""
