"""Orders that follow from orders: tensors that are copied, cut, put together, dealt out, or given other axes.

The operations are those of StreamTensor on typed streams (MICRO'25, section 3.1.3). No element moves within its token,
and each rule says which tokens go where, so that a task for it only gets and puts. What would need a buffer is refused;
a converter to an order that fits comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...base.errors import ProgramError
from .order import Axis, Order


def fork(order: Order, streams: int) -> tuple[Order, ...]:
    """Return the orders of several streams that each carry every token. streams: how many. Raises `ProgramError` for
    less than one."""
    if streams < 1:
        raise ProgramError(f"a fork into {streams} streams; the least is 1")
    return (order,) * streams


def chunk(order: Order, axis: int, parts: int) -> tuple[Order, ...]:
    """Return the orders of the parts of a tensor that is cut along an axis into equal parts, each with a stream of its
    own; a token goes to the part that it lies in. axis: of the tensor, from 0. parts: how many. Raises `ProgramError`
    if a cut goes through tokens, and for an axis that the order does not have."""
    loop = _loop(order, axis)
    trips = 1 if loop is None else order.trips[loop]
    if parts < 1 or trips % parts:
        raise ProgramError(
            f"order {order}: {parts} parts along axis {axis}, which has {trips} tokens; parts divide them"
        )
    return fork(order if loop is None else _with_trips(order, loop, trips // parts), parts)


def concat(orders: Sequence[Order], axis: int) -> Order:
    """Return the order of a tensor that is joined along an axis from equal parts, each with a stream of its own. Each
    token is got from the part in which it lies; without a loop along the axis, the parts come one after another. axis:
    of the tensor, from 0. Raises `ProgramError` for no parts, for parts in orders that differ, and for an axis that the
    order does not have."""
    order = _same(orders, "concat")
    loop = _loop(order, axis)
    if loop is not None:
        return _with_trips(order, loop, order.trips[loop] * len(orders))
    axes = [at if at.loop is None else replace(at, loop=at.loop + 1) for at in order.axes]
    axes[axis] = Axis(0, order.axes[axis].start)
    steps = order.element[axis], *order.steps
    return Order(order.element, (len(orders), *order.trips), steps, tuple(axes), order.dtype)


def deal(order: Order, streams: int) -> tuple[Order, ...]:
    """Return the orders of `streams` streams that get the tokens of an order in turn, one token each. The order of each
    is that of a tensor made of its own tokens. Raises `ProgramError` unless the innermost loop moves along an axis and
    its iterations are a multiple of `streams`."""
    order = order.canonical
    loop = len(order.trips) - 1
    if loop < 0 or order.axis_of(loop) is None or streams < 1 or order.trips[loop] % streams:
        raise ProgramError(
            f"order {order} cannot be dealt to {streams} streams in turn: its innermost loop moves along an axis, in a "
            f"multiple of {streams} trips"
        )
    return fork(_with_trips(order, loop, order.trips[loop] // streams), streams)


def join(orders: Sequence[Order]) -> Order:
    """Return the order of the tokens of several streams that are taken in turn, one from each; it undoes `deal`. The
    innermost loop, even one of one iteration, says along which axis they are joined. Raises `ProgramError` for no
    streams, for orders that differ, and if the innermost loop moves along no axis."""
    order = _same(orders, "join")
    loop = len(order.trips) - 1
    if loop < 0 or order.axis_of(loop) is None:
        raise ProgramError(f"streams of order {order} cannot be joined in turn: its innermost loop moves along no axis")
    return _with_trips(order, loop, order.trips[loop] * len(orders))


def expand(order: Order, axis: int, sizes: Sequence[int]) -> Order:
    """Return the order of the same tokens in a tensor with one axis split into several. axis: from 0. sizes: of the new
    axes in elements, the last one the innermost. Raises `ProgramError` if the product of the sizes is not the size of
    the axis, or if a token is not a box of the new axes."""
    loop, element = _loop(order, axis), order.element[axis]
    if not sizes or min(sizes) < 1 or prod(sizes) != order.tensor[axis] or order.axes[axis].start:
        raise ProgramError(f"order {order}: axis {axis} of {order.tensor[axis]} elements is no {list(sizes)}")
    token, left = list[int](), element
    for size in reversed(sizes):
        if left % size and size % left:
            raise ProgramError(
                f"order {order}: {element} elements of a token along axis {axis} are no box of {list(sizes)}"
            )
        token.insert(0, min(left, size))
        left = max(1, left // size)
    trips = [size // part for size, part in zip(sizes, token, strict=True)]
    shape = (*order.element[:axis], *token, *order.element[axis + 1 :])
    if loop is None:
        axes = (*order.axes[:axis], *(Axis(None) for _ in sizes), *order.axes[axis + 1 :])
        return Order(shape, order.trips, order.steps, axes, order.dtype)
    more = len(sizes) - 1
    moved = [at if at.loop is None or at.loop <= loop else replace(at, loop=at.loop + more) for at in order.axes]
    axes = (*moved[:axis], *(Axis(loop + k) for k in range(len(sizes))), *moved[axis + 1 :])
    all_trips = (*order.trips[:loop], *trips, *order.trips[loop + 1 :])
    all_steps = (*order.steps[:loop], *token, *order.steps[loop + 1 :])
    return Order(shape, all_trips, all_steps, axes, order.dtype)


def collapse(order: Order, axis: int, count: int) -> Order:
    """Return the order of the same tokens in a tensor with several axes joined to one; it undoes `expand`. axis: the
    first of them, from 0. count: how many. Raises `ProgramError` unless the loops of these axes follow each other in
    the order of the axes, since the result is no order otherwise."""
    order = order.canonical
    if count < 1 or not 0 <= axis <= len(order.element) - count:
        raise ProgramError(f"order {order} has no {count} axes from {axis} on")
    end = axis + count
    token, sizes, group = order.element[axis:end], order.tensor[axis:end], order.axes[axis:end]
    cut = max((k for k in range(count) if token[k] < sizes[k]), default=0)
    loops = [at.loop for at in group if at.loop is not None]
    first, last = (loops[0], loops[-1]) if loops else (0, -1)
    if prod(token[:cut]) > 1 or loops != [*range(first, last + 1)] or any(at.start for at in group):
        raise ProgramError(
            f"order {order}: axes {axis} to {end - 1} are not one: tokens must have one element along those in front "
            f"of the last one that is cut, and the loops of the axes must follow each other"
        )
    trips, steps = list(order.trips), list(order.steps)
    if loops:
        trips[first : last + 1], steps[first : last + 1] = [prod(trips[first : last + 1])], [prod(token)]
    fewer = max(0, len(loops) - 1)
    moved = [at if at.loop is None or at.loop <= last else replace(at, loop=at.loop - fewer) for at in order.axes]
    axes = (*moved[:axis], Axis(first) if loops else Axis(None), *moved[end:])
    element = (*order.element[:axis], prod(token), *order.element[end:])
    return Order(element, tuple(trips), tuple(steps), axes, order.dtype)


def _loop(order: Order, axis: int) -> int | None:
    if not 0 <= axis < len(order.axes):
        raise ProgramError(f"order {order} has no axis {axis}; it has {len(order.axes)}")
    return order.axes[axis].loop


def _with_trips(order: Order, loop: int, trips: int) -> Order:
    """The order with other trips of a loop, which may have had one with any step."""
    axis = order.axis_of(loop)
    step = order.steps[loop] if axis is None else order.element[axis]
    return replace(
        order,
        trips=(*order.trips[:loop], trips, *order.trips[loop + 1 :]),
        steps=(*order.steps[:loop], step, *order.steps[loop + 1 :]),
    )


def _same(orders: Sequence[Order], what: str) -> Order:
    """The order that all streams have."""
    if not orders:
        raise ProgramError(f"a {what} of no streams; the least is 1")
    for other in orders:
        if other != orders[0]:
            raise ProgramError(f"a {what} takes streams of one order; there are {orders[0]} and {other}")
    return orders[0]
