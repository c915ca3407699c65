"""Statements of the stream language that go through a tensor in an order: loads, stores, and converters.

A token of the stream is a tile of the last two axes if it has one element along those in front of them, or else of all
axes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ...base.errors import ProgramError
from .converter import Converter
from .order import Order

INDICES = "ijklmnop"
"""Names of the loops of an order, outermost first."""


def nest(loops: Sequence[tuple[str, int]], body: Sequence[str]) -> list[str]:
    """Return the lines of loops around statements, outermost first. loops: index and number of iterations. For a loop
    of one iteration no line is written: its index is 0."""
    inner = [(name, trips) for name, trips in loops if trips > 1]
    fixed = [f"{name} = 0" for name, trips in loops if trips == 1 and _uses(name, body)]
    if not inner:
        return [*fixed, *body]
    names, sizes = ", ".join(name for name, _ in inner), ", ".join(str(trips) for _, trips in inner)
    head = f"for {names} in {'range' if len(inner) == 1 else 'grid'}({sizes}):"
    return [*fixed, head, *indented(body)]


def _uses(name: str, body: Sequence[str]) -> bool:
    return any(re.search(rf"\b{name}\b", line) for line in body)


def indented(lines: Sequence[str]) -> list[str]:
    """Statements one level deeper."""
    return [f"    {line}" if line else "" for line in lines]


def span(index: str, size: int, whole: int) -> str:
    """The part of an axis of `whole` elements that tile number `index` of `size` elements covers."""
    return ":" if size == whole else f"{index} * {size} : {index} * {size} + {size}"


def loops_of(order: Order) -> list[tuple[str, int]]:
    """The loops of an order: index and trips. Raises `ProgramError` for more loops than there are names."""
    if len(order.trips) > len(INDICES):
        raise ProgramError(f"order {order} has {len(order.trips)} loops; the most that a task is written with are 8")
    return list(zip(INDICES, order.trips, strict=False))


def token_shape(order: Order) -> tuple[int, ...]:
    """The tile that a stream carries: a token without the axes in front of its last two if all of these have one
    element, the whole token otherwise."""
    front = max(0, len(order.element) - 2)
    return order.element if any(size != 1 for size in order.element[:front]) else order.element[front:]


def token_of(tensor: str, order: Order, kept: Collection[int] = ()) -> str:
    """Return a token as a slice of a tensor. kept: axes along which `tensor` is a buffer of one token only."""
    parts = []
    front = len(order.element) - len(token_shape(order))
    for k, (axis, size, whole) in enumerate(zip(order.axes, order.element, order.tensor, strict=True)):
        moves = axis.loop is not None and order.trips[axis.loop] > 1 and k not in kept
        index = INDICES[axis.loop] if moves and axis.loop is not None else "0"
        if axis.start:
            raise ProgramError(f"order {order}: axis {k} begins at {axis.start}; tasks go through whole tensors")
        parts.append(index if k < front else span(index, size, whole) if moves else ":")
    return f"{tensor}[{', '.join(parts)}]"


def packed_token_of(tensor: str, order: Order) -> str:
    """A token as a part of a tensor that lies token by token: tiles along each axis, then the tile."""
    token_shape(order)
    indices = ("0" if axis.loop is None or order.trips[axis.loop] == 1 else INDICES[axis.loop] for axis in order.axes)
    return f"{tensor}[{', '.join(indices)}]"


def load(tensor: str, order: Order, stream: str, after: Sequence[str] = (), packed: bool = False) -> list[str]:
    """Put a tensor on a stream, token by token. after: statements behind each put. packed: it lies token by token."""
    token = packed_token_of(tensor, order) if packed else token_of(tensor, order)
    return nest(loops_of(order), [f"{stream}.put({token})", *after])


def store(tensor: str, order: Order, stream: str, after: Sequence[str] = (), packed: bool = False) -> list[str]:
    """Store a tensor from a stream, token by token. after: statements behind each get. packed: as for `load`."""
    token = packed_token_of(tensor, order) if packed else token_of(tensor, order)
    return nest(loops_of(order), [f"{token} = {stream}.get()", *after])


def converted(made: Converter, source: str, targets: Sequence[str], dtype: str = "f32") -> list[str]:
    """Get a tensor in one order and put it in another one: in each iteration of the loops that both share, a buffer is
    filled and then read. targets: streams that all get the same."""
    fill, read = _fill(made, source), _read(made, targets)
    sizes = ", ".join(map(str, made.buffer))
    return nest(loops_of(made.put)[: made.shared_loops], [f"buffer = zeros({dtype}, {sizes})", *fill, *read])


def converter_tasks(name: str, made: Converter, source: str, targets: Sequence[str]) -> list[str]:
    """A converter as two tasks at the top of a program, so that one buffer is filled while the one before is read; a
    stream hands them over. The arguments are those of `converted`."""
    dtype, sizes = made.put.dtype, ", ".join(map(str, made.buffer))
    around, buffers = loops_of(made.put)[: made.shared_loops], f"{name}_buffers"
    fill = [f"buffer = zeros({dtype}, {sizes})", *_fill(made, source), f"{buffers}.put(buffer)"]
    read = [f"buffer = {buffers}.get()", *_read(made, targets)]
    lines = [f"{buffers}: Stream[{dtype}[{sizes}], 1]"]
    for part, body in (("fill", fill), ("read", read)):
        lines += ["", "", "@task(mapping=[1])", f"def {name}_{part}() -> None:", *indented(nest(around, body))]
    return lines


def ping_pong(
    made: Converter, source: str, targets: Sequence[str], buffers: str, wanted: str, dtype: str = "f32"
) -> tuple[list[str], list[str]]:
    """A converter as the statements of two tasks, one that fills a buffer while the other reads the one before, with
    two buffers: the first task hands a buffer over when the other one wants it, and only then fills the next one.
    buffers, wanted: streams of depth 1 between them, of buffers and of Booleans. The other arguments are those of
    `converted`."""
    around, sizes = loops_of(made.put)[: made.shared_loops], ", ".join(map(str, made.buffer))
    hand_over = [f"drop({wanted}.get())", f"{buffers}.put(buffer)"]
    fill = [f"buffer = zeros({dtype}, {sizes})", *_fill(made, source), *hand_over]
    read = [f"{wanted}.put(True)", f"buffer = {buffers}.get()", *_read(made, targets)]
    return nest(around, fill), nest(around, read)


def _kept(made: Converter) -> set[int]:
    return {k for k, (size, whole) in enumerate(zip(made.buffer, made.put.tensor, strict=True)) if size != whole}


def _fill(made: Converter, source: str) -> list[str]:
    token = token_of("buffer", made.put, _kept(made))
    return nest(loops_of(made.put)[made.shared_loops :], [f"{token} = {source}.get()"])


def _read(made: Converter, targets: Sequence[str]) -> list[str]:
    token = token_of("buffer", made.get, _kept(made))
    puts = [f"{targets[0]}.put({token})"]
    if len(targets) > 1:
        puts = [f"token = {token}", *(f"{stream}.put(token)" for stream in targets)]
    return nest(loops_of(made.get)[made.shared_loops :], puts)
