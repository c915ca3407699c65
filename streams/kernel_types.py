"""What kernels, collectives and stores make of the types of operands. Refusals have no node: the caller adds it."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.element_types import ElementType
from ..isa.overlays.tasks.kernels import LibraryKernel, no_kernel
from . import layouts
from .kernel_pending import collective, pending_of
from .kernel_shapes import RULES, axis_of, broadcast, element
from .kernels import KERNELS, Call, KernelOperand, Options, Shape
from .layouts import Distribution
from .source import Refusal
from .values import accepts


def apply(
    name: str, operands: Sequence[KernelOperand], mesh: Sequence[int], options: Options | None = None
) -> KernelOperand:
    """Return the result of a kernel: the type of its shard, its labels and what is pending. Raises `Refusal` without a
    node: type for shapes and element types, layout for labels, pending for operands that are not complete."""
    call = Call(KERNELS[name], operands, mesh, options or {})
    dtype = element(call.kernel, operands)
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
    """Return tiles joined along an axis. Raises `Refusal`."""
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
        KernelOperand(ElementType(dtype, (*o.shape[:k], 1, *o.shape[k + 1 :])), o.dist, o.text)
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
    """Return the result of `x.allreduce(op, axes)`, and what to warn of, "" for nothing. axes: None for those over
    which op is pending; of a local value, all. Raises `Refusal`."""
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
        return KernelOperand(x.type, Distribution(dist.labels, left), x.text), ""
    extra = sorted(over - mine)
    where = f"mesh axis {extra[0]}" if extra else "any mesh axis"
    message = f'allreduce("{op}"), which is not pending over {where} in {x.text}'
    if op == "max":
        left = frozenset((o, axis) for o, axis in dist.pending if o != op or axis not in over)
        return KernelOperand(x.type, Distribution(dist.labels, left, dist.uniform, dist.number), x.text), message
    raise Refusal("pending", message, None, "it adds equal copies: the value times the number of instances")


def stored(part: KernelOperand, value: KernelOperand, mesh: Sequence[int]) -> None:
    """Check that a value can be stored in a part of a tensor: element type, shape, labels; not what is pending. Raises
    `Refusal`."""
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
    """Return an element type, or None if its number type or its shape is unknown."""
    return None if dtype is None or shape is None else ElementType(dtype, shape)


def _number(call: Call) -> int | float | None:
    """The number that all elements of the result have, where that is obvious."""
    numbers = [operand.dist.number for operand in call.operands]
    if call.kernel.name in ("mul", "scale", "matmul") and 0 in numbers:
        return 0
    still = call.kernel.linear or call.kernel.jointly or call.kernel.joins or call.kernel.name == "relu"
    return 0 if still and not any(number != 0 for number in numbers) else None
