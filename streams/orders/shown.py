"""The order that an end of a stream shows: where a task puts slices of a parameter in loops, or stores what it gets in
slices of one.

An end shows an order if one statement makes all of its puts or gets, in loops with known trips, and if along each axis
of the parameter the slice begins at a multiple of one loop's index. Slices that overlap or leave elements out, and
single elements of a tensor, show none: nothing is compared then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...base.errors import ProgramError
from ...base.place import Place
from ..syntax import nodes as syn
from .order import Axis, Order

WHOLE = syn.Slicing(syn.NOWHERE, None, None, None)
Nest = tuple[tuple[str, range], ...]
"""The loops around a statement, outermost first: the name of the index ("" if it has none) and what it goes through."""

Known = Callable[[str], int | None]
"""The number that a name stands for, None if it is not known before the run."""

Sum = dict[str, int]
"""An index as a sum: the factor of each loop's index, and a constant under ""."""


@dataclass(frozen=True)
class ShownOrder:
    """The order in which a statement shows that an end of a stream goes through a tensor. order: counted from the first
    element that it moves, without axes along which it moves one element. single: the axes of the order that a token
    does not have, because the statement has a single index there, not a slice. place: of the put or of the store."""

    order: Order
    single: tuple[int, ...]
    place: Place


def squeezed(order: Order) -> Order:
    """Return the canonical form of an order without the starts of its axes, and without axes along which the tensor has
    one element."""
    order = order.canonical
    kept = _kept(order)
    axes = tuple(replace(order.axes[k], start=0) for k in kept)
    return Order(tuple(order.element[k] for k in kept), order.trips, order.steps, axes, order.dtype)


def _kept(order: Order) -> list[int]:
    """The axes along which the tensor has several elements; the first one if it has none of them."""
    return [k for k, size in enumerate(order.tensor) if size > 1] or [*range(len(order.axes))][:1]


def shown_order(
    node: syn.Subscript, shape: tuple[int, ...], dtype: str, nest: Nest, known: Known, place: Place
) -> ShownOrder | None:
    """Return the order in which a statement in loops goes through a tensor; None if it shows none. node: the part of
    the tensor. shape, dtype: of the tensor. nest: the loops around the statement. known: the values of other names that
    are numbers. place: of the statement."""
    parts = list(node.indices)
    if len(parts) > len(shape) or any(isinstance(part, syn.Literal) and part.value in (None, ...) for part in parts):
        return None
    names = [name for name, _ in nest if name]
    if len({*names}) < len(names):
        return None
    levels = {name: level for level, (name, _) in enumerate(nest) if name}
    steps, element, axes = [1] * len(nest), list[int](), list[Axis]()
    single = set[int]()
    for axis, whole in enumerate(shape):
        part = parts[axis] if axis < len(parts) else WHOLE
        found = _begin(part, whole, levels, known)
        if found is None:
            return None
        begin, size = found
        drivers = [name for name, factor in begin.items() if name and factor]
        if len(drivers) > 1 or size < 1:
            return None
        first, loop = begin.get("", 0), None
        for name in drivers:
            loop, indices = levels[name], nest[levels[name]][1]
            first += begin[name] * indices.start
            steps[loop] = begin[name] * indices.step
            if steps[loop] < 1 and len(indices) > 1:
                return None
            steps[loop] = max(1, steps[loop])
        if first < 0:
            return None
        if not isinstance(part, syn.Slicing):
            single.add(axis)
        element.append(size)
        axes.append(Axis(loop))
    if len(single) == len(shape):
        return None
    try:
        order = Order(tuple(element), tuple(len(indices) for _, indices in nest), tuple(steps), tuple(axes), dtype)
    except ProgramError:
        return None
    kept = _kept(order)
    return ShownOrder(squeezed(order), tuple(at for at, axis in enumerate(kept) if axis in single), place)


def _begin(part: syn.ExpressionNode, whole: int, levels: dict[str, int], known: Known) -> tuple[Sum, int] | None:
    """Where an index or a slice of an axis begins, and its size."""
    if not isinstance(part, syn.Slicing):
        at = _sum(part, levels, known)
        return None if at is None else (at, 1)
    low = {"": 0} if part.low is None else _sum(part.low, levels, known)
    high = {"": whole} if part.high is None else _sum(part.high, levels, known)
    if low is None or high is None or part.step is not None:
        return None
    size = _plus(high, low, -1)
    if any(factor for name, factor in size.items() if name):
        return None
    return low, size.get("", 0)


def _sum(node: syn.ExpressionNode, levels: dict[str, int], known: Known) -> Sum | None:
    match node:
        case syn.Literal(value=int(number)):
            return {"": number}
        case syn.Identifier(name=name):
            if name in levels:
                return {name: 1}
            number_of = known(name)
            return None if number_of is None else {"": number_of}
        case syn.Prefix(op="-", operand=operand):
            inner = _sum(operand, levels, known)
            return None if inner is None else {name: -factor for name, factor in inner.items()}
        case syn.Infix(left=left, op=op, right=right):
            a, b = _sum(left, levels, known), _sum(right, levels, known)
            if a is None or b is None:
                return None
            if op in ("+", "-"):
                return _plus(a, b, 1 if op == "+" else -1)
            if op == "*" and (a.keys() <= {""} or b.keys() <= {""}):
                once, times = (b, a) if a.keys() <= {""} else (a, b)
                return {name: factor * times.get("", 0) for name, factor in once.items()}
            if op == "//" and {*a, *b} <= {""} and b.get("", 0):
                return {"": a.get("", 0) // b[""]}
    return None


def _plus(a: Sum, b: Sum, sign: int) -> Sum:
    return {name: a.get(name, 0) + sign * b.get(name, 0) for name in {**a, **b}}
