"""What kernels, collectives and stores make of the types of operands: shapes, labels and element types of results.

Refusals have no node: the caller adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from ..base.element_types import FLOATS, SCALARS, ElementType
from ..isa.overlays.tasks.kernels import LibraryKernel, no_kernel
from . import layouts
from .kernels import KERNELS, Call, KernelOperand, Options, Shape, collective, pending_of
from .layouts import LOCAL, NONE, Distribution, Labels, Pending
from .source import Refusal
from .values import FLOAT, INT, accepts, is_whole, joined


def element(kernel: LibraryKernel, operands: Sequence[KernelOperand]) -> str | None:
    """Return the element type of a kernel's result, such as "f32"; None if it is unknown. Raises `Refusal` if the
    operands are tiles of different element types, or if the kernel takes floats only and gets others."""
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
                typed = [o for o in operands if o.type is not None]
                what = " and ".join(str(o.type) for o in typed)
                which = ", ".join(f"{o.text}{_place(o)} is {o.type}" for o in typed)
                note = f"element types do not mix silently: convert {_conversion(found.dtype, operand, typed)}"
                raise Refusal("type", f"{kernel.name} of {what}", None, which, note)
            else:
                return None
        found = both
    return found.dtype if found is not None else None


INTEGERS = tuple(name for name in SCALARS if name not in FLOATS)
"""The types of whole numbers."""


def _place(operand: KernelOperand) -> str:
    if isinstance(operand.written, str):
        return ""
    return f" at {operand.written.place.line}:{operand.written.place.column}"


def _conversion(found: str, operand: KernelOperand, operands: Sequence[KernelOperand]) -> str:
    """What to convert where an operand of another type meets `found`: integers to a type that has the numbers of
    both, others to the wider float."""
    other = operand.type.dtype if operand.type is not None else found
    both = [SCALARS[name] for name in (found, other) if name in INTEGERS]
    if len(both) < 2:
        floats = [name for name in (found, other) if name in FLOATS]
        wide = max(floats, key=lambda name: SCALARS[name].bits, default=found)
    else:
        low, high = min(facts.limits[0] for facts in both), max(facts.limits[1] for facts in both)
        fitting = (name for name in INTEGERS if SCALARS[name].limits[0] <= low and high <= SCALARS[name].limits[1])
        wide = next(fitting, found)
    texts = (f"{wide}({o.text})" for o in operands if o.type is not None and o.type.dtype in {found, other} - {wide})
    return f"to {wide}, as in {' and '.join(texts)}"


Result = tuple[Labels | None, Shape | None, Pending]


def _unknown(operands: Sequence[KernelOperand]) -> bool:
    return any(operand.type is None and not operand.dist.uniform for operand in operands)


def _elementwise(call: Call) -> Result:
    if _unknown(call.operands):
        return None, None, NONE
    labels, shape = broadcast(call.kernel.name, call.operands, call.mesh)
    return labels, shape, NONE


def broadcast(name: str, operands: Sequence[KernelOperand], mesh: Sequence[int]) -> tuple[Labels | None, Shape]:
    """Return the labels (None if they are not known) and the shape of the shards of an elementwise result; the axes of
    the operands are aligned from the last one. name: of the kernel, for messages. mesh: size of each axis. Raises
    `Refusal` for shapes or labels that do not fit together."""
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
                ElementType(o.type.dtype, o.shape[:-2]), LOCAL if local else Distribution(labels[:-2]), o.written
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
    """Return a stated axis of a tile, counted from the front. axis: as the program states it; a negative one counts
    from the last. rank: axes of the tile. name: of the kernel, for messages. Raises `Refusal` for anything that is no
    axis of the tile."""
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
        if not is_whole(size):
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


def _row(call: Call) -> Result:
    x, row, index = call.operands
    if x.type is None or row.type is None or index.type is None:
        return None, None, NONE
    if len(x.shape) != 2 or row.shape != (1, x.shape[1]) or index.shape or index.type.dtype not in (*INTEGERS, "int"):
        what = f"{call.kernel.name} of {x.type}, {row.type} and {index.type}"
        raise Refusal("type", f"{what}: it takes a matrix, one row of it, and a whole number", None)
    labels, shape = broadcast(call.kernel.name, (x, row), call.mesh)
    return labels, shape, NONE


RULES: dict[str, Callable[[Call], Result]] = {
    "elementwise": _elementwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "reshape": _reshape,
    "row": _row,
    "rows": _rows,
    "transpose": _transpose,
}
"""Rules for the result of a kernel: labels (None: unknown), shape of the shard (None: unknown), what it adds to what is
pending."""


def apply(
    name: str, operands: Sequence[KernelOperand], mesh: Sequence[int], options: Options | None = None
) -> KernelOperand:
    """Return the result of a kernel as an operand: the type of its shard, its labels, and its pending reductions. name:
    a key of `KERNELS`. operands: as many as the kernel takes, in order. mesh: size of each axis. options: such as axis,
    by name. Raises `Refusal` without a node, with the code "type" for shapes and element types, "layout" for labels,
    "pending" for operands whose reductions are not complete."""
    call = Call(KERNELS[name], operands, mesh, options or {})
    dtype = element(call.kernel, operands[:2] if call.kernel.rule == "row" else operands)
    labels, shape, extra = RULES[call.kernel.rule](call)
    pending = pending_of(call.kernel, operands) | extra
    if all(operand.dist.uniform for operand in operands):
        return KernelOperand(typed(dtype, shape), Distribution(uniform=True, number=_number(call)))
    if labels is None:
        return KernelOperand(typed(dtype, shape), Distribution(None, pending))
    twice = sorted({axis for axis in labels if axis is not None and labels.count(axis) > 1})
    if twice:
        message = f"mesh axis {twice[0]} cuts two axes of the result of {name}: {layouts.shown(labels)}"
        raise Refusal(
            "layout", message, None, "each instance would compute a diagonal tile only", "all-gather one operand first"
        )
    return KernelOperand(typed(dtype, shape), Distribution(labels, pending))


def concat(operands: Sequence[KernelOperand], axis: object, mesh: Sequence[int]) -> KernelOperand:
    """Return tiles, at least one, joined along an axis, as an operand. axis: as for `axis_of`. mesh: size of each axis.
    Raises `Refusal` for ranks or sizes that differ, and for an axis that is cut."""
    kernel = LibraryKernel("concat", no_kernel, "concat", tuple(f"x{k}" for k in range(len(operands))), jointly=True)
    dtype = element(kernel, operands)
    if dtype is None or any(operand.type is None for operand in operands):
        return KernelOperand(None)
    rank = len(operands[0].shape)
    if not rank or any(len(operand.shape) != rank for operand in operands):
        raise Refusal("type", f"concat of {', '.join(str(o.type) for o in operands)}: ranks differ", None)
    k = axis_of(axis, rank, "concat")
    for operand in operands:
        label = operand.dist.labels[k] if operand.dist.labels is not None else None
        if label is not None:
            message = f"concat along axis {k}, which mesh axis {label} cuts in {operand.text}"
            why = "the parts of different shards would alternate"
            raise Refusal("layout", message, None, why, f"all-gather axis {k} along mesh axis {label}")
    # What the other axes must have in common is what an elementwise kernel asks of tiles of size 1 along this one.
    thin = [
        KernelOperand(ElementType(dtype, (*o.shape[:k], 1, *o.shape[k + 1 :])), o.dist, o.written)
        for o in operands
        if o.type is not None
    ]
    labels, shape = broadcast("concat", thin, mesh)
    for operand in thin:
        if operand.shape != shape:
            raise Refusal("type", f"concat of {' and '.join(str(o.type) for o in operands)}: sizes differ", None)
    pending = pending_of(kernel, operands)
    total = ElementType(dtype, (*shape[:k], sum(o.shape[k] for o in operands), *shape[k + 1 :]))
    if all(operand.dist.uniform and operand.dist.number == 0 for operand in operands):
        return KernelOperand(total, layouts.constant(0))
    return KernelOperand(total, Distribution(labels, pending))


def allreduce(
    x: KernelOperand, op: str, axes: tuple[int, ...] | None, mesh: Sequence[int]
) -> tuple[KernelOperand, str]:
    """Return the result of `x.allreduce(op, axes)`, and the text of a warning, "" for none. op: "+" or "max". axes: of
    the mesh; None for those over which `op` is pending. mesh: size of each axis. A value that is local to its instance,
    with nothing pending, is returned as it is. Raises `Refusal` if another reduction is pending, or none, and for an
    axis that the mesh does not have."""
    dist = x.dist
    for axis in axes or ():
        if not 0 <= axis < len(mesh):
            raise Refusal("layout", f"allreduce over mesh axis {axis}; the mesh is {list(mesh)}", None)
    mine = {axis for o, axis in dist.pending if o == op}
    if dist.local and not dist.pending:
        return x, ""
    over = mine if axes is None else set(axes)
    for axis in sorted(over - mine):
        if axis in (dist.labels or ()):
            message = f"allreduce over mesh axis {axis}, which cuts {x.text}"
            raise Refusal("layout", message, None, "it would combine different tiles of the tensor")
        other = sorted(o for o, a in dist.pending if a == axis)
        if other:
            raise Refusal(
                "pending",
                f'allreduce("{op}") over mesh axis {axis}, along which {other[0]} is pending in {x.text}',
                None,
                f"the reduction that is pending: {collective(x.text, dist.pending)}",
            )
    if over <= mine and mine:
        left = frozenset((o, axis) for o, axis in dist.pending if o != op or axis not in over)
        return KernelOperand(x.type, Distribution(dist.labels, left), x.written), ""
    extra = sorted(over - mine)
    where = f"mesh axis {extra[0]}" if extra else "any mesh axis"
    message = f'allreduce("{op}"), which is not pending over {where} in {x.text}'
    if op == "max":
        left = frozenset((o, axis) for o, axis in dist.pending if o != op or axis not in over)
        return KernelOperand(x.type, Distribution(dist.labels, left, dist.uniform, dist.number), x.written), message
    raise Refusal("pending", message, None, "it adds equal copies: the value times the number of instances")


class CollectiveStep(NamedTuple):
    """A collective on a tile. what: the function of the language: "allreduce", "allgather" or "reduce_scatter". op: "+"
    or "max", by which tiles are combined; "" for an all-gather. axes: of the mesh. axis: of the tile, along which it is
    gathered or cut; None for an all-reduce."""

    what: str
    op: str
    axes: tuple[int, ...]
    axis: int | None = None

    @property
    def call(self) -> str:
        """The text of its call, as the program writes it behind the tile."""
        if self.what == "allreduce":
            return f'.allreduce("{self.op}", axes={self.axes})'
        if self.what == "allgather":
            return f".allgather(axis={self.axis})"
        return f'.reduce_scatter("{self.op}", axis={self.axis}, mesh_axis={self.axes[0]})'


def allgather(x: KernelOperand, axis: object, mesh: Sequence[int]) -> tuple[KernelOperand, CollectiveStep]:
    """Return the result of `x.allgather(axis)`, and the collective. axis: of the tile; None for the only one that is
    cut. mesh: size of each axis. Raises `Refusal` for an axis that is not cut, and for an unknown layout."""
    labels, shape = _laid(x, "allgather")
    cut = [k for k, label in enumerate(labels) if label is not None]
    if axis is None:
        if len(cut) != 1:
            message = f"allgather of {x.text} @ {layouts.shown(labels)}, of which {len(cut)} axes are cut"
            note = "state which one is gathered: axis=0" if cut else "every instance holds all of it"
            raise Refusal("layout", message, None, note)
        axis = cut[0]
    axis = axis_of(axis, len(shape), "allgather")
    label = labels[axis]
    if label is None:
        message = f"allgather along axis {axis} of {x.text} @ {layouts.shown(labels)}, which is not cut"
        raise Refusal("layout", message, None, "every instance holds all of it")
    step = CollectiveStep("allgather", "", (label,), axis)
    return _changed(x, axis, None, shape[axis] * mesh[label], x.dist.pending), step


def reduce_scatter(
    x: KernelOperand, op: str, axis: object, mesh_axis: object, mesh: Sequence[int]
) -> tuple[KernelOperand, CollectiveStep]:
    """Return the result of `x.reduce_scatter(op, axis, mesh_axis)`, and the collective. op: "+" or "max". axis: of the
    tile, which is cut. mesh_axis: None for the only one over which `op` is pending. mesh: size of each axis. Raises
    `Refusal` if `op` is not pending, for an axis that is cut already or whose size the mesh axis does not divide, and
    for an unknown layout."""
    labels, shape = _laid(x, "reduce_scatter")
    axis = axis_of(axis, len(shape), "reduce_scatter")
    mine = sorted(a for o, a in x.dist.pending if o == op)
    if mesh_axis is None and len(mine) > 1:
        message = f"reduce_scatter of {x.text}, whose {layouts.described(x.dist.pending)} is pending"
        raise Refusal("pending", message, None, "state along which one it is cut: mesh_axis=0")
    over = next((a for a in mine if mesh_axis in (None, a)), None)
    if over is None:
        where = "any mesh axis" if mesh_axis is None else f"mesh axis {mesh_axis}"
        message = f'reduce_scatter("{op}"), which is not pending over {where} in {x.text}'
        raise Refusal("pending", message, None, "it combines equal copies, or different tiles of the tensor")
    if labels[axis] is not None:
        message = f"reduce_scatter along axis {axis} of {x.text}, which mesh axis {labels[axis]} cuts"
        raise Refusal("layout", message, None, "take an axis that is not cut")
    if shape[axis] % mesh[over]:
        message = f"reduce_scatter along axis {axis} of {x.text}, of size {shape[axis]}, over mesh axis {over}"
        note = f"the size is no multiple of {mesh[over]}, the size of the mesh axis"
        raise Refusal("layout", message, None, note)
    step = CollectiveStep("reduce_scatter", op, (over,), axis)
    return _changed(x, axis, over, shape[axis] // mesh[over], x.dist.pending - {(op, over)}), step


def steps_to(value: KernelOperand, labels: Labels | None, mesh: Sequence[int]) -> list[CollectiveStep]:
    """Return the collectives that complete a value and give it other labels, in the order in which the fewest bytes
    move; empty if no collectives do. labels: the wanted ones; None if any will do. mesh: size of each axis."""
    dist = value.dist
    if any(op == "?" for op, _ in dist.pending):
        return []
    pending, gathered = set(dist.pending), list[CollectiveStep]()
    steps: list[CollectiveStep] = []
    have = labels if dist.labels is None or labels is None or len(labels) != len(dist.labels) else dist.labels
    for k, (label, wanted) in enumerate(zip(have or (), labels or (), strict=True)):
        if label == wanted or (value.shape[k] == 1 and label is None):
            continue
        if wanted is None and label is not None:
            gathered.append(CollectiveStep("allgather", "", (label,), k))
            continue
        ops = sorted(op for op, axis in pending if axis == wanted)
        if label is not None or wanted is None or not ops or value.shape[k] % mesh[wanted]:
            return []
        pending.remove((ops[0], wanted))
        steps.append(CollectiveStep("reduce_scatter", ops[0], (wanted,), k))
    for op in sorted({op for op, _ in pending}):
        steps.append(CollectiveStep("allreduce", op, tuple(sorted(axis for o, axis in pending if o == op))))
    return steps + gathered


def after(x: KernelOperand, step: CollectiveStep, mesh: Sequence[int]) -> KernelOperand:
    """Return the result of the collective `step` on the tile x. mesh: size of each axis. Raises `Refusal` as the
    function of that collective.
    """
    if step.what == "allreduce":
        return allreduce(x, step.op, step.axes, mesh)[0]
    if step.what == "allgather":
        return allgather(x, step.axis, mesh)[0]
    return reduce_scatter(x, step.op, step.axis, step.axes[0], mesh)[0]


def _laid(x: KernelOperand, name: str) -> tuple[Labels, Shape]:
    """The labels and the shape of an operand of a collective that changes them. Raises `Refusal`."""
    if x.type is None or x.dist.labels is None:
        what = "it is equal on all instances" if x.dist.uniform else "it is a value of the instance's own"
        raise Refusal("layout", f"{name} of {x.text}, whose layout is not known", None, what)
    return x.dist.labels, x.type.shape


def _changed(x: KernelOperand, axis: int, label: int | None, size: int, pending: Pending) -> KernelOperand:
    """An operand with another label, and another size, of one axis."""
    assert x.type is not None
    assert x.dist.labels is not None
    shape = (*x.type.shape[:axis], size, *x.type.shape[axis + 1 :])
    labels = (*x.dist.labels[:axis], label, *x.dist.labels[axis + 1 :])
    if label is not None and labels.count(label) > 1:
        message = f"mesh axis {label} would cut two axes of {x.text}: {layouts.shown(labels)}"
        raise Refusal("layout", message, None, "only the diagonal tiles would be on an instance")
    return KernelOperand(ElementType(x.type.dtype, shape), Distribution(labels, pending), x.written)


def stored(part: KernelOperand, value: KernelOperand, mesh: Sequence[int]) -> None:
    """Check that a value can be stored in a part of a tensor: its element type, its shape and its labels, but not its
    pending reductions. mesh: size of each axis. Raises `Refusal` if it cannot."""
    if part.type is None or value.type is None:
        return
    if not accepts(ElementType(part.type.dtype), ElementType(value.type.dtype)):
        raise Refusal("type", f"{part.text} is {part.type}, {value.text} is {value.type}", None)
    a, b = part.dist.labels, value.dist.labels
    for back in range(1, len(value.shape) + 1):
        label = None if b is None else b[-back]
        if value.shape[-back] == 1 and label is None:
            continue
        known = a is not None and b is not None
        wanted = a[-back] if a is not None and back <= len(a) else None
        if known and wanted != label and back <= len(part.shape):
            assert a is not None
            assert b is not None
            message = f"{part.text} is {layouts.shown(a)}, {value.text} is {layouts.shown(b)}"
            whole = layouts.whole_shape(value.shape, b, mesh), layouts.whole_shape(part.shape, a, mesh)
            shards = f"shards {list(value.shape)} of {list(whole[0])} for {list(part.shape)} of {list(whole[1])}"
            fix = f"no layout is changed silently: {layouts.remedy(b, a, value.dist.pending)}"
            raise Refusal("layout", message, None, shards, fix)
        if back > len(part.shape) or value.shape[-back] != part.shape[-back]:
            raise Refusal("type", f"{part.text} is {part.type}, {value.text} is {value.type}", None)


def typed(dtype: str | None, shape: Shape | None) -> ElementType | None:
    """Return the type of tiles with the element type `dtype` and this shape; None if either is unknown."""
    return None if dtype is None or shape is None else ElementType(dtype, shape)


def _number(call: Call) -> int | float | None:
    """The number that all elements of the result have, where that is obvious."""
    numbers = [operand.dist.number for operand in call.operands]
    if call.kernel.name in ("mul", "scale", "matmul") and 0 in numbers:
        return 0
    still = call.kernel.linear or call.kernel.jointly or call.kernel.joins or call.kernel.name == "relu"
    return 0 if still and not any(number != 0 for number in numbers) else None
