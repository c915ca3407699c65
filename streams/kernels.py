"""The library kernels of stream programs: for each one its contract, as data, and what follows for types and layouts.

A kernel is a pure function of tiles. `KERNELS` states how it treats a pending reduction: a sum commutes with what is
linear, a maximum with what never decreases.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from . import layouts
from .layouts import LOCAL, NONE, Distribution, Labels, Pending
from .source import Refusal
from .tree import ElementType
from .values import FLOAT, INT, accepts, joined

FLOATS = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class Kernel:
    """The contract of a kernel.

    rule: how the shape of the result follows (key of `RULES`). operands: names of the tiles; optional: how many of the
    last ones may be left out. options: names of further arguments, known before the run, in order. linear: operands in
    each of which it is linear if the others are complete. jointly: it is linear in all operands together. increasing:
    operands in each of which it never decreases; `decreases`: with a negative constant as the other operand it does.
    joins: it is the maximum itself. whole_rows: it needs the whole last axis. floats: it takes floats only. reduces:
    the operator with which it combines elements of different shards.
    """

    name: str
    rule: str
    operands: tuple[str, ...]
    optional: int = 0
    options: tuple[str, ...] = ()
    linear: tuple[int, ...] = ()
    jointly: bool = False
    increasing: tuple[int, ...] = ()
    decreases: bool = False
    joins: bool = False
    whole_rows: bool = False
    floats: bool = False
    reduces: str = ""


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("matmul", "matmul", ("a", "b"), linear=(0, 1), reduces="+"),
        Kernel("add", "elementwise", ("a", "b"), jointly=True, increasing=(0, 1)),
        Kernel("sub", "elementwise", ("a", "b"), jointly=True, increasing=(0,)),
        Kernel("mul", "elementwise", ("a", "b"), linear=(0, 1), increasing=(0, 1), decreases=True),
        Kernel("scale", "elementwise", ("x", "c"), linear=(0, 1), increasing=(0, 1), decreases=True),
        Kernel("div", "elementwise", ("a", "b"), linear=(0,), increasing=(0,), decreases=True, floats=True),
        Kernel("maximum", "elementwise", ("a", "b"), increasing=(0, 1), joins=True),
        Kernel("arithmetic", "elementwise", ("a", "b")),
        Kernel("neg", "elementwise", ("x",), linear=(0,)),
        Kernel("relu", "elementwise", ("x",), increasing=(0,)),
        Kernel("exp", "elementwise", ("x",), increasing=(0,), floats=True),
        Kernel("gelu", "elementwise", ("x",), floats=True),
        Kernel("silu", "elementwise", ("x",), floats=True),
        Kernel("softmax", "rows", ("x",), whole_rows=True, floats=True),
        Kernel("layernorm", "rows", ("x", "gamma", "beta"), optional=2, whole_rows=True, floats=True),
        Kernel("rmsnorm", "rows", ("x", "gamma"), optional=1, whole_rows=True, floats=True),
        Kernel("transpose", "transpose", ("x",), options=("axes",), linear=(0,), increasing=(0,)),
        Kernel("reduce_sum", "reduce", ("x",), options=("axis", "keepdims"), linear=(0,), reduces="+"),
        Kernel(
            "reduce_max", "reduce", ("x",), options=("axis", "keepdims"), increasing=(0,), joins=True, reduces="max"
        ),
    )
}
"""Kernels with tiles as operands. `concat`, `zeros`, `full` and `allreduce` have functions of their own below."""

ALIASES = {
    "add": "add",
    "amax": "reduce_max",
    "concatenate": "concat",
    "divide": "div",
    "exp": "exp",
    "matmul": "matmul",
    "max": "reduce_max",
    "maximum": "maximum",
    "multiply": "mul",
    "negative": "neg",
    "subtract": "sub",
    "sum": "reduce_sum",
    "transpose": "transpose",
    "true_divide": "div",
}
"""Functions of NumPy with the contract of a kernel."""


@dataclass(frozen=True)
class Operand:
    """A value as a kernel sees it. type: of its shard, None if unknown. text: how the program writes it."""

    type: ElementType | None
    dist: Distribution = LOCAL
    text: str = "this value"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the shard."""
        return self.type.shape if self.type is not None else ()


Options = Mapping[str, object]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    kernel: Kernel
    operands: Sequence[Operand]
    mesh: Sequence[int]
    options: Options = field(default_factory=dict)


def apply(name: str, operands: Sequence[Operand], mesh: Sequence[int], options: Options | None = None) -> Operand:
    """Return the result of a kernel: the type of its shard, its labels and what is pending. Raises `Refusal` without a
    node: type for shapes and element types, layout for labels, pending for operands that are not complete."""
    call = _Call(KERNELS[name], operands, mesh, options or {})
    dtype = element(call.kernel, operands)
    labels, shape, extra = RULES[call.kernel.rule](call)
    pending = _debts(call.kernel, operands) | extra
    if all(operand.dist.uniform for operand in operands):
        return Operand(_typed(dtype, shape), Distribution(uniform=True, number=_number(call)))
    if labels is None:
        return Operand(_typed(dtype, shape), Distribution(None, pending))
    twice = sorted({axis for axis in labels if axis is not None and labels.count(axis) > 1})
    if twice:
        message = f"mesh axis {twice[0]} cuts two axes of the result of {name}: {layouts.shown(labels)}"
        raise Refusal(
            "layout", message, None, "each instance would compute a diagonal tile only", "all-gather one operand first"
        )
    return Operand(_typed(dtype, shape), Distribution(labels, pending))


def _typed(dtype: str | None, shape: Shape | None) -> ElementType | None:
    return None if dtype is None or shape is None else ElementType(dtype, shape)


def _number(call: _Call) -> int | float | None:
    """The number that all elements of the result have, where that is obvious."""
    numbers = [operand.dist.number for operand in call.operands]
    if call.kernel.name in ("mul", "scale", "matmul") and 0 in numbers:
        return 0
    still = call.kernel.linear or call.kernel.jointly or call.kernel.joins or call.kernel.name == "relu"
    return 0 if still and not any(number != 0 for number in numbers) else None


# -- element types -----------------------------------------------------------------------------------------------------


def element(kernel: Kernel, operands: Sequence[Operand]) -> str | None:
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


# -- what is pending ---------------------------------------------------------------------------------------------------


def _debts(kernel: Kernel, operands: Sequence[Operand]) -> Pending:
    """Return what is pending in the result because it was in an operand. Raises `Refusal` where the kernel does not
    commute with it."""
    owing = [k for k, operand in enumerate(operands) if operand.dist.pending]
    if not owing:
        return NONE
    first = operands[owing[0]]
    ops = {op for k in owing for op, _ in operands[k].dist.pending}
    if len(ops) > 1 or not ops <= {"+", "max"}:
        raise _unpaid(first, f"{kernel.name} of values with different reductions pending")
    rest = [operand for k, operand in enumerate(operands) if k not in owing]
    (op,) = ops
    return (_sum if op == "+" else _maximum)(kernel, operands, owing, rest)


def _sum(kernel: Kernel, operands: Sequence[Operand], owing: list[int], rest: list[Operand]) -> Pending:
    first = operands[owing[0]]
    if kernel.jointly:
        full = [operand for operand in rest if operand.dist.number != 0]
        if full:
            message = f"{first.text} is a partial {layouts.described(first.dist.pending)}, {full[0].text} is none"
            why = f"{full[0].text} would be added once per shard: once for every instance along these axes"
            raise Refusal("pending", message, None, why, _first(first))
        if any(operands[k].dist.pending != first.dist.pending for k in owing):
            other = next(operands[k] for k in owing if operands[k].dist.pending != first.dist.pending)
            message = f"{first.text} and {other.text} have different reductions pending"
            both = f"{layouts.described(first.dist.pending)}; {layouts.described(other.dist.pending)}"
            raise Refusal("pending", message, None, both, _first(first))
        return first.dist.pending
    if len(owing) > 1:
        message = f"{kernel.name} of two partial sums, {first.text} and {operands[owing[1]].text}"
        raise Refusal("pending", message, None, "products of different shards would be missing", _first(first))
    if owing[0] not in kernel.linear:
        raise _unpaid(first, f"{kernel.name} is not linear in {first.text}")
    _alike(kernel, first, rest)
    return first.dist.pending


def _maximum(kernel: Kernel, operands: Sequence[Operand], owing: list[int], rest: list[Operand]) -> Pending:
    first = operands[owing[0]]
    if any(k not in kernel.increasing for k in owing):
        raise _unpaid(first, f"{kernel.name} does not keep the order of the elements of {first.text}")
    if len(owing) > 1 and not kernel.joins:
        raise _unpaid(first, f"{kernel.name} of two maxima that are pending")
    if kernel.decreases:
        number = rest[0].dist.number if rest else None
        if number is None or number < 0 or (number == 0 and kernel.name == "div"):
            what = rest[0].text if rest else first.text
            sign = f"{what} is not known to be positive" if number is None else f"{number} does not keep the order"
            raise _unpaid(first, f"{kernel.name} with {what}: {sign}", f"of {first.text} a ")
    found: Pending = NONE
    for k in owing:
        _alike(kernel, operands[k], [operand for operand in operands if operand is not operands[k]])
        found |= operands[k].dist.pending
    return found


def _alike(kernel: Kernel, owing: Operand, rest: Sequence[Operand]) -> None:
    """The other operands must be equal copies along the mesh axes of the reduction."""
    for other in rest:
        cut = {axis for axis in other.dist.labels or () if axis is not None}
        known = other.dist.labels is not None or other.dist.pending == owing.dist.pending
        if kernel.joins and other.dist.pending and known and not owing.dist.axes & cut:
            continue
        if not other.dist.alike(owing.dist.axes):
            axes = ", ".join(map(str, sorted(owing.dist.axes)))
            message = f"{owing.text} is pending over mesh axes {axes}, along which {other.text} is no equal copy"
            raise Refusal("pending", message, None, _first(owing))


def _unpaid(operand: Operand, what: str, whose: str = "whose ") -> Refusal:
    message = f"{what}, {whose}{layouts.described(operand.dist.pending)} is pending"
    return Refusal("pending", message, None, _first(operand))


def _first(operand: Operand) -> str:
    """The fix: reduce before."""
    return f"reduce it first: {collective(operand.text, operand.dist.pending)}"


def collective(text: str, pending: Pending) -> str:
    """Return the calls that complete a value."""
    parts = []
    for op in sorted({op for op, _ in pending}):
        axes = sorted(axis for o, axis in pending if o == op)
        if op == "?":
            return "the same reduction must be pending on all paths, so reduce it on the path that has it"
        parts.append(f'.allreduce("{op}", axes=({", ".join(map(str, axes))},))')
    try:
        simple = isinstance(ast.parse(text, mode="eval").body, ast.Name | ast.Call | ast.Subscript | ast.Attribute)
    except SyntaxError:  # it is cut
        simple = False
    return (text if simple else f"({text})") + "".join(parts)


# -- kernels with rules of their own --------------------------------------------------------------------------------


def concat(operands: Sequence[Operand], axis: object, mesh: Sequence[int]) -> Operand:
    """Return tiles joined along an axis. Raises `Refusal`."""
    kernel = Kernel("concat", "concat", tuple(f"x{k}" for k in range(len(operands))), jointly=True)
    dtype = element(kernel, operands)
    if dtype is None or any(operand.type is None for operand in operands):
        return Operand(None)
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
        Operand(ElementType(dtype, (*o.shape[:k], 1, *o.shape[k + 1 :])), o.dist, o.text)
        for o in operands
        if o.type is not None
    ]
    labels, shape = broadcast("concat", thin, mesh)
    for operand in thin:
        if operand.shape != shape:
            raise Refusal("type", f"concat of {' and '.join(str(o.type) for o in operands)}: sizes differ", None)
    pending = _debts(kernel, operands)
    total = ElementType(dtype, (*shape[:k], sum(o.shape[k] for o in operands), *shape[k + 1 :]))
    if all(operand.dist.uniform and operand.dist.number == 0 for operand in operands):
        return Operand(total, layouts.constant(0))
    return Operand(total, Distribution(labels, pending))


def allreduce(x: Operand, op: str, axes: tuple[int, ...] | None, mesh: Sequence[int]) -> tuple[Operand, str]:
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
        return Operand(x.type, Distribution(dist.labels, left), x.text), ""
    extra = sorted(over - mine)
    where = f"mesh axis {extra[0]}" if extra else "any mesh axis"
    message = f'allreduce("{op}"), which is not pending over {where} in {x.text}'
    if op == "max":
        left = frozenset((o, axis) for o, axis in dist.pending if o != op or axis not in over)
        return Operand(x.type, Distribution(dist.labels, left, dist.uniform, dist.number), x.text), message
    raise Refusal("pending", message, None, "it adds equal copies: the value times the number of instances")


def stored(part: Operand, value: Operand, mesh: Sequence[int]) -> None:
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


# -- shapes and labels -------------------------------------------------------------------------------------------------

Result = tuple[Labels | None, Shape | None, Pending]


def _unknown(operands: Sequence[Operand]) -> bool:
    return any(operand.type is None and not operand.dist.uniform for operand in operands)


def _elementwise(call: _Call) -> Result:
    if _unknown(call.operands):
        return None, None, NONE
    labels, shape = broadcast(call.kernel.name, call.operands, call.mesh)
    return labels, shape, NONE


def broadcast(name: str, operands: Sequence[Operand], mesh: Sequence[int]) -> tuple[Labels | None, Shape]:
    """Return labels and shape of the shards of an elementwise result, axes aligned from the last one. Raises
    `Refusal`."""
    rank = max((len(operand.shape) for operand in operands), default=0)
    local = any(operand.dist.local for operand in operands)
    labels: list[int | None] = []
    shape: list[int] = []
    for back in range(rank, 0, -1):
        size, found = 1, None
        owner: Operand | None = None
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


def _apart(name: str, a: Operand, b: Operand, mesh: Sequence[int]) -> Refusal:
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


def _matmul(call: _Call) -> Result:
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
            Operand(ElementType(o.type.dtype, o.shape[:-2]), LOCAL if local else Distribution(labels[:-2]), o.text)
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


def _fitted(operand: Operand, other: Operand, inner: int, other_inner: int) -> Labels:
    """Labels of an operand of a product. A uniform tile is cut along the contracted axis as the other operand is."""
    if operand.dist.labels is not None:
        return operand.dist.labels
    labels: list[int | None] = [None] * len(operand.shape)
    if operand.dist.uniform and other.dist.labels is not None:
        labels[inner] = other.dist.labels[other_inner]
    return tuple(labels)


def _reduce(call: _Call) -> Result:
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


def _transpose(call: _Call) -> Result:
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


def _rows(call: _Call) -> Result:
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


RULES: dict[str, Callable[[_Call], Result]] = {
    "elementwise": _elementwise,
    "matmul": _matmul,
    "reduce": _reduce,
    "rows": _rows,
    "transpose": _transpose,
}
"""Rules for the result of a kernel: labels (None: unknown), shape of the shard (None: unknown), what it adds to what is
pending."""
