"""Statements of the stream language that go through a tensor in an order: loads, stores, and converters.

A token of the stream is a tile of the last two axes if it has one element along those in front of them, or else of all
axes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...base.errors import ProgramError
from ..syntax.builder import Operand, Term, assign, call, declare, do, named, nest, task
from ..syntax.nodes import StatementNode
from ..syntax.printer import printed
from .converter import Converter
from .order import Order
from .packed_tensor import PackedTensor

INDICES = "ijklmnop"
"""Names of the loops of an order, outermost first."""


def span(index: str, size: int, whole: int) -> slice:
    """Return the part of an axis that a tile covers, as a slice. index: the name of the index of the loop that counts
    the tiles. size: elements of a tile. whole: elements of the axis."""
    return slice(None) if size == whole else slice(named(index) * size, named(index) * size + size)


def loops_of(order: Order) -> list[tuple[str, int]]:
    """Return the loops of an order, the outermost first: for each the name of its index and its iterations. Raises
    `ProgramError` for more loops than there are names."""
    if len(order.trips) > len(INDICES):
        raise ProgramError(f"order {order} has {len(order.trips)} loops; the most that a task is written with are 8")
    return list(zip(INDICES, order.trips, strict=False))


def token_shape(order: Order) -> tuple[int, ...]:
    """Return the shape of the tiles on a stream of an order: that of a token, without the axes in front of its last two
    if the token has one element along each of these."""
    front = max(0, len(order.element) - 2)
    return order.element if any(size != 1 for size in order.element[:front]) else order.element[front:]


def token_of(tensor: str, order: Order, kept: Collection[int] = (), front: Sequence[Operand] = ()) -> Term:
    """Return a token of an order as a part of a tensor. tensor: the name of the tensor. kept: axes along which `tensor`
    is a buffer that holds one token only. front: indices of further axes of `tensor`, in front of those of the order.
    Raises `ProgramError` for an axis whose tokens do not begin at 0."""
    parts: list[Operand] = [*front]
    single = len(order.element) - len(token_shape(order))
    for k, (axis, size, whole) in enumerate(zip(order.axes, order.element, order.tensor, strict=True)):
        moves = axis.loop is not None and order.trips[axis.loop] > 1 and k not in kept
        index = INDICES[axis.loop] if moves and axis.loop is not None else ""
        if axis.start:
            raise ProgramError(f"order {order}: axis {k} begins at {axis.start}; tasks go through whole tensors")
        parts.append((index or 0) if k < single else span(index, size, whole) if moves else slice(None))
    return named(tensor)[tuple(parts)]


def packed_token_of(tensor: str, order: Order, packed: PackedTensor, front: Sequence[Operand] = ()) -> Term:
    """Return a token as a part of a tensor that lies token by token in memory: its indices are those of the tile along
    each axis. tensor: its name. packed: how it lies. front: as for `token_of`."""
    token_shape(order)
    loops = (order.axes[axis].loop for axis in packed.nesting or range(len(order.axes)))
    indices = (0 if loop is None or order.trips[loop] == 1 else INDICES[loop] for loop in loops)
    return named(tensor)[(*front, *indices)]


def load(
    tensor: str,
    order: Order,
    stream: str,
    after: Sequence[StatementNode] = (),
    packed: PackedTensor | None = None,
    front: Sequence[Operand] = (),
) -> list[StatementNode]:
    """Return statements that put a tensor on a stream, token by token, in an order. tensor, stream: their names. after:
    statements behind each put. packed: how the tensor lies in memory if it lies token by token; None if it lies row by
    row. front: as for `token_of`. Raises `ProgramError` as `token_of` and `loops_of`."""
    token = packed_token_of(tensor, order, packed, front) if packed else token_of(tensor, order, (), front)
    return nest(loops_of(order), [named(stream).put(token), *after])


def store(
    tensor: str,
    order: Order,
    stream: str,
    after: Sequence[StatementNode] = (),
    packed: PackedTensor | None = None,
    front: Sequence[Operand] = (),
) -> list[StatementNode]:
    """Return statements that get a tensor from a stream, token by token, in an order, and store it. tensor, stream:
    their names. after: statements behind each get. packed, front: as for `load`. Raises `ProgramError` as `load`."""
    token = packed_token_of(tensor, order, packed, front) if packed else token_of(tensor, order, (), front)
    return nest(loops_of(order), [assign(token, named(stream).get()), *after])


def converted(made: Converter, source: str, targets: Sequence[str]) -> list[StatementNode]:
    """Return the statements of a converter: in each iteration of the loops that both orders have in common, a buffer is
    filled from a stream, and then put in the other order. made: the converter. source: the name of the stream that it
    gets from. targets: the names of the streams that it puts on; all get the same tokens. If the new order only repeats
    tokens, each is kept as it comes. Raises `ProgramError` as `token_of` and `loops_of`."""
    shared = _shared(made)
    if made.put.element == made.get.element and len(shared) == len(loops_of(made.put)):
        again = nest(loops_of(made.get)[made.shared_loops :], [named(stream).put("buffer") for stream in targets])
        return nest(shared, [assign("buffer", named(source).get()), *again])
    return [_new_buffer(made), *nest(shared, [*_fill(made, source), *_read(made, targets)])]


def converter_tasks(name: str, made: Converter, source: str, targets: Sequence[str]) -> list[str]:
    """Return the text of a converter as two tasks, as lines at the top of a program. One task fills a buffer while the
    other one puts the buffer before; a stream moves the buffers. name: the beginning of the names of the tasks and of
    that stream. made, source, targets: as for `converted`, and so are the errors."""
    dtype, buffers = made.put.dtype, f"{name}_buffers"
    fill = [*_fill(made, source), named(buffers).put("buffer")]
    fill = [_new_buffer(made), *fill]
    read = [assign("buffer", named(buffers).get()), *_read(made, targets)]
    tasks = (task(f"{name}_{part}", nest(_shared(made), body)) for part, body in (("fill", fill), ("read", read)))
    return printed([declare(buffers, named("Stream")[named(dtype)[made.buffer], 1]), *tasks]).text.splitlines()


def ping_pong(
    made: Converter, source: str, targets: Sequence[str], buffers: str, wanted: str
) -> tuple[list[StatementNode], list[StatementNode]]:
    """Return the statements of the two tasks of a converter with two buffers. The first task fills a buffer and puts it
    when the second one asks for it, and only then fills the next one; the second one puts the tokens of a buffer
    meanwhile.

    buffers, wanted: the names of the streams of depth 1 between the tasks, of buffers and of Booleans that ask for one.
    made, source, targets: as for `converted`, and so are the errors."""
    fill = [_new_buffer(made), *_fill(made, source), do("drop", named(wanted).get()), named(buffers).put("buffer")]
    read = [named(wanted).put(True), assign("buffer", named(buffers).get()), *_read(made, targets)]
    return nest(_shared(made), fill), nest(_shared(made), read)


def _shared(made: Converter) -> list[tuple[str, int]]:
    return loops_of(made.put)[: made.shared_loops]


def _kept(made: Converter) -> set[int]:
    return {k for k, (size, whole) in enumerate(zip(made.buffer, made.put.tensor, strict=True)) if size != whole}


def _new_buffer(made: Converter) -> StatementNode:
    return assign("buffer", call("zeros", made.put.dtype, *made.buffer))


def _fill(made: Converter, source: str) -> list[StatementNode]:
    token = token_of("buffer", made.put, _kept(made))
    return nest(loops_of(made.put)[made.shared_loops :], [assign(token, named(source).get())])


def _read(made: Converter, targets: Sequence[str]) -> list[StatementNode]:
    token = token_of("buffer", made.get, _kept(made))
    puts = [named(stream).put(token if len(targets) == 1 else "token") for stream in targets]
    kept = [assign("token", token)] if len(targets) > 1 else []
    return nest(loops_of(made.get)[made.shared_loops :], [*kept, *puts])
