"""What stands between two orders of a tensor: a buffer that one fills while the other reads the one before.

The rule: take away loops of one trip. From the outermost loop on, both sides share a loop that drives the same data
axis on both (equal token size, trips, step), or no axis on either (equal trips); the first that they do not share ends
it. The buffer has one token's size along the axes that shared loops drive, and the tensor's along the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...base.errors import ProgramError
from .order import Order


@dataclass(frozen=True)
class Converter:
    """A converter. put, get: the orders, canonical. buffer: its shape. shared_loops: around both sides."""

    put: Order
    get: Order
    buffer: tuple[int, ...]
    shared_loops: int

    @property
    def ping_pong_elements(self) -> int:
        """Elements of two buffers: one is filled while the other one is read."""
        return 2 * prod(self.buffer)

    @property
    def ping_pong_bytes(self) -> int:
        """Bytes of two buffers."""
        return -(-self.ping_pong_elements * self.put.bytes_per_token // prod(self.put.element))


def converter(put: Order, get: Order) -> Converter | None:
    """Return what converts one order into the other, None if they are equal. Raises `ProgramError` for two tensors."""
    if put.tensor != get.tensor or put.dtype != get.dtype:
        raise ProgramError(f"no converter from {put} to {get}: they are of tensors of another shape or type")
    source, target = put.canonical, get.canonical
    if source == target:
        return None
    drives = [{axis.loop: k for k, axis in enumerate(order.axes)} for order in (source, target)]
    kept: set[int] = set()
    shared = 0
    for loop, (trips, other) in enumerate(zip(source.trips, target.trips, strict=False)):
        axis = drives[0].get(loop)
        if trips != other or axis != drives[1].get(loop):
            break
        if axis is not None:
            if source.element[axis] != target.element[axis]:
                break
            kept.add(axis)
        shared += 1
    buffer = tuple(put.element[k] if k in kept else size for k, size in enumerate(put.tensor))
    return Converter(source, target, buffer, shared)
