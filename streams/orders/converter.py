"""What stands between two orders of a tensor: a buffer that one fills while the other reads the one before.

The rule: take away loops of one trip. From the outermost loop on, both sides share a loop that drives the same data
axis on both (equal token size, trips, step), or no axis on either (equal trips); the first that they do not share ends
it. The buffer has one token's size along the axes that shared loops drive, and the tensor's along the others.

StreamTensor (MICRO'25, section 5.2.1) gives the rule twice, as Algorithm 1 and in its text, and both times holds more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...base.errors import ProgramError
from .order import Order

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Converter:
    """A converter between two orders of a stream. put, get: the orders, in canonical form. buffer: the shape of its
    buffer in elements. shared_loops: how many outer loops both orders have in common; the buffer is filled once in each
    of their iterations."""

    put: Order
    get: Order
    buffer: Shape
    shared_loops: int

    @property
    def ping_pong_elements(self) -> int:
        """Elements of two buffers: one is filled while the other one is read."""
        return 2 * prod(self.buffer)

    @property
    def ping_pong_bytes(self) -> int:
        """Bytes of two buffers, together rounded up to whole ones."""
        return self.put.bytes_of(self.ping_pong_elements)


def converter(put: Order, get: Order) -> Converter | None:
    """Return the converter from the order `put` to the order `get`; None if they are equal, loops of one iteration left
    out. Its buffer holds one token along an axis that a common loop of both orders moves along, and all elements along
    the others, so it may be smaller than that of StreamTensor, section 5.2.1. Raises `ProgramError` if the orders
    differ in the shape of the tensor, the element type or the first element."""
    _check_one_tensor(put, get)
    source, target = put.canonical, get.canonical
    if source == target:
        return None
    shared, kept = _shared(source, target)
    buffer = tuple(put.element[k] if k in kept else size for k, size in enumerate(put.tensor))
    return Converter(source, target, buffer, shared)


def _check_one_tensor(put: Order, get: Order) -> None:
    if put.tensor != get.tensor or put.dtype != get.dtype:
        raise ProgramError(f"no converter from {put} to {get}: they are of tensors of another shape or type")
    if [axis.start for axis in put.axes] != [axis.start for axis in get.axes]:
        raise ProgramError(f"no converter from {put} to {get}: they begin at other elements of the tensor")


def _shared(source: Order, target: Order) -> tuple[int, set[int]]:
    """How many outer loops two canonical orders share, and the data axes that these drive."""
    kept: set[int] = set()
    shared = 0
    for loop, (trips, other) in enumerate(zip(source.trips, target.trips, strict=False)):
        axis = source.axis_of(loop)
        if trips != other or axis != target.axis_of(loop):
            break
        if axis is not None:
            if source.element[axis] != target.element[axis]:
                break
            kept.add(axis)
        shared += 1
    return shared, kept


def parting(put: Order, get: Order, verbs: tuple[str, str] = ("put", "got")) -> str:
    """Return as text at which loop two orders begin to differ, and what each does there; "" if they are equal. verbs:
    what is said of the tokens of `put` and of `get`."""
    source, target = put.canonical, get.canonical
    if source == target:
        return ""
    if source.dtype != target.dtype or source.tensor != target.tensor:
        return f"one is of {_tensor(source)}, the other of {_tensor(target)}"
    if source.element != target.element:
        sizes = ["x".join(map(str, order.element)) for order in (source, target)]
        return f"tokens of {sizes[0]} are {verbs[0]}, tokens of {sizes[1]} are {verbs[1]}"
    loop, _ = _shared(source, target)
    where = "the outermost loop" if not loop else f"loop {loop}, counted from the outermost one as 0"
    return f"they part at {where}: {verbs[0]} {_doing(source, loop)}, {verbs[1]} {_doing(target, loop)}"


def _tensor(order: Order) -> str:
    return f"{order.dtype}[{', '.join(map(str, order.tensor))}]"


def _doing(order: Order, loop: int) -> str:
    if loop >= len(order.trips):
        return "once"
    axis, trips = order.axis_of(loop), order.trips[loop]
    return f"{trips} times again" if axis is None else f"in {trips} steps along axis {axis}"


def least_elements(put: Order, get: Order) -> int:
    """Return a lower bound of the elements that any converter between two orders holds at its fullest, with the tokens
    that it is getting and putting. Each token is taken to be got as soon as all of its elements were put, and an
    element to be held until the last token with it was got.

    It is to be compared with `Converter.ping_pong_elements`, which is for two whole buffers. If tokens are put several
    times, their first puts count; a converter that waits for later ones may hold less, so there it is no lower bound.
    The time of this function grows with the tensor and the tokens. put, get: as for `converter`; raises `ProgramError`
    as that function."""
    _check_one_tensor(put, get)
    start = tuple(axis.start for axis in put.axes)
    arrival = np.full(put.tensor, -1, np.int64)
    for number, at in enumerate(put.indices()):
        part = arrival[_slices(at, put.element, start)]
        part[part < 0] = number
    # The put after which each token can be got, and with it all tokens before it.
    ready = np.maximum.accumulate([int(arrival[_slices(at, get.element, start)].max()) for at in get.indices()])
    release = np.zeros(put.tensor, np.int64)
    for number, at in enumerate(get.indices()):
        release[_slices(at, get.element, start)] = ready[number]
    # An element that is released by a put is held up to that put, and not after it.
    begun = np.bincount(arrival.ravel(), minlength=put.tokens)
    ended = np.bincount(release.ravel(), minlength=put.tokens)
    return int((np.cumsum(begun) - np.concatenate(([0], np.cumsum(ended)[:-1]))).max())


def _slices(at: Shape, element: Shape, start: Shape) -> tuple[Any, ...]:
    """The part of the tensor that a token is, also without axes. start: first element of the tensor along each axis."""
    return ..., *(slice(a - first, a - first + size) for a, size, first in zip(at, element, start, strict=True))
