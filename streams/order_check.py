"""Compares the orders that both ends of a stream show, and the one that the stream states."""

from __future__ import annotations

from .orders.converter import converter, parting
from .orders.order import Order
from .orders.shown import ShownOrder, squeezed
from .tree import Instance, Region, StreamDecl

Ends = dict[int, dict[int, int]]
"""Stream -> instance -> tokens that it puts, or gets."""


def compare_orders(region: Region, puts: Ends, gets: Ends) -> None:
    """Add a finding for each stream whose tokens come in another order than one of its ends, or its type, shows. puts,
    gets: tokens of each end; every stream has one instance at either."""
    showing = {stream for instance in region.instances for stream, _ in instance.orders}
    for decl in region.streams:
        if decl.order is not None:
            showing |= {*range(decl.first, decl.first + decl.size)} & puts.keys() & gets.keys()
    for stream in sorted(showing & puts.keys() & gets.keys()):
        ends = [(region.instances[k], count) for side in (puts, gets) for k, count in side[stream].items()]
        if len(ends) == 2:
            _compare(region, stream, ends)


def _compare(region: Region, stream: int, ends: list[tuple[Instance, int]]) -> None:
    decl, name = region.stream(stream)
    count = ends[0][1]
    put, get = (_shown(instance, stream, side, count) for (instance, _), side in zip(ends, (True, False), strict=True))
    source, target = (instance.name for instance, _ in ends)
    if decl.order is not None:
        stated = squeezed(decl.order)
        if stated.tokens != count:
            message = f"{name} states an order of {decl.order.tokens} tokens, and {count} pass"
            region.source.add("order", message, decl.place, f"the order: {decl.order}", subject=decl.name)
        elif put is not None and (where := parting(put.order, stated, ("put", "stated"))):
            message = f"{source} puts {name} in another order than it states: {where}"
            _add(region, decl, message, put, (put.order, stated), [])
        elif get is not None and (where := parting(stated, get.order, ("stated", "got"))):
            message = f"{target} gets {name} in another order than it states: {where}"
            _add(region, decl, message, get, (stated, get.order), [])
    elif put is not None and get is not None and put.single == get.single and put.order.tensor == get.order.tensor:
        where = parting(put.order, get.order)
        if where:
            message = f"{target} gets {name} in another order than {source} puts it: {where}"
            line = region.source.lines[put.place.line - 1].strip()
            _add(region, decl, message, get, (put.order, get.order), [f"put in line {put.place.line}: {line}"])


def _shown(instance: Instance, stream: int, put: bool, count: int) -> ShownOrder | None:
    """What an end shows, if the statement that shows it makes all of its puts or gets."""
    shown = instance.orders.get((stream, put))
    return shown if shown is not None and shown.order.tokens == count else None


def _add(
    region: Region, decl: StreamDecl, message: str, end: ShownOrder, orders: tuple[Order, Order], notes: list[str]
) -> None:
    notes = [*notes, f"the orders: {orders[0]} and {orders[1]}"]
    if orders[0].tensor == orders[1].tensor:
        made = converter(*orders)
        assert made is not None
        shape = "x".join(map(str, made.buffer))
        notes.append(
            f"a converter between them holds {shape} elements of {made.put.dtype} twice: {made.ping_pong_bytes} bytes"
        )
    region.source.add("order", message, end.place, *notes, subject=decl.name)
