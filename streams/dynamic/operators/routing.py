"""Operators that route and merge (v1 Table 5, v2 Table 6).

EagerMerge, and Reassemble where a selector chooses several, depend on which token comes first. SortedMerge and Iterate
are not of the papers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

import sympy

from ..functions import InputRefused
from ..requests import CYCLE, Busy, DeliverToken, EarliestInput, Kernel, Peek, Request, TakeToken
from ..shapes import (
    Dimension,
    SelectorType,
    StreamType,
    Symbols,
    TileType,
    TupleType,
    dimension,
    same_type,
)
from ..tokens import DONE, Done, Selector, Stop
from .base import (
    InputReader,
    KernelContext,
    Limits,
    Operator,
    check_flags,
    check_same,
    flag_of,
    merged_stop,
    take,
)


def selectors(stream: StreamType, choices: int) -> SelectorType:
    """Return the type of the elements of a selector stream. Raises `InputRefused` if it carries no selectors, or
    chooses among another number of streams than `choices`.
    """
    if not isinstance(stream.data, SelectorType):
        raise InputRefused("selector stream carries no selectors")
    if stream.data.choices != choices:
        raise InputRefused(f"selectors of {stream.data.choices} and {choices} streams")
    return stream.data


def check_consumers(count: int) -> None:
    """Raise `InputRefused` unless `count`, the number of output streams, is at least 1."""
    if count < 1:
        raise InputRefused(f"{count} consumers; the least is 1")


def chosen(token: Selector, reader: InputReader, choices: int) -> tuple[int, ...]:
    """Return the numbers, from 0, of the streams that a selector, `token`, chooses. reader: of the input that the
    selector came from. Raises `StreamFault` for a number that is not below `choices`.
    """
    if any(not 0 <= one < choices for one in token.chosen):
        raise reader.fault(f"selector {token} of {choices} streams")
    return token.chosen


@dataclass(frozen=True)
class Partition(Operator):
    """Send each chunk of a stream to the outputs that its selector chooses; a chunk whose selector chooses none is
    dropped.

    Inputs: data [D_a .. D_0], selectors [D_a .. D_{a-s}]. Outputs: `consumers` streams [D^i, D_{a-s-1} .. D_0]; the
    size D^i of each is a new symbol, since data decide it. rank: of a chunk, a-s; None for that which the inputs have.
    The outer dimensions become one: stops above the rank of a chunk become stops of that rank."""

    consumers: int
    rank: int | None = None

    @property
    def several(self) -> bool:
        """True: a call returns a tuple of `consumers` streams."""
        return True

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 2)
        stream, selector = inputs
        check_consumers(self.consumers)
        selectors(selector, self.consumers)
        rank = stream.rank - selector.rank
        if rank < 0 or (self.rank is not None and rank != self.rank):
            raise InputRefused(f"data of rank {stream.rank} and selectors of rank {selector.rank}")
        check_same(stream.outer(rank), selector.shape, "data and selector: ")
        return parts(stream, rank, self.consumers, symbols)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, selector = context.reader(0), context.reader(1)
        rank = context.inputs[0].rank - context.inputs[1].rank
        while True:
            token = selector((yield TakeToken(1)))
            if isinstance(token, Done):
                _agree(reader, reader((yield TakeToken(0))), DONE)
                break
            if isinstance(token, Stop):  # of a group without children, or after a chunk of rank 0
                _agree(reader, reader((yield TakeToken(0))), Stop(token.level + rank))
                continue
            assert isinstance(token, Selector)
            yield Busy(CYCLE)
            stop = yield from route(reader, rank, chosen(token, selector, self.consumers))
            if stop > rank:
                _agree(selector, selector((yield TakeToken(1))), Stop(stop - rank))
        for port in range(self.consumers):
            yield DeliverToken((port,), DONE)


def parts(stream: StreamType, rank: int, count: int, symbols: Symbols) -> tuple[StreamType, ...]:
    """Return the types of `count` streams to which the chunks of a stream are sent. rank: of a chunk. symbols: makes
    the symbols of their sizes, new ones for each stream, because only a run knows which chunks it gets."""
    number = symbols.number()
    made = []
    for port in range(count):
        outer = symbols.regular("B", f"_{port}", number, at_most=stream.count(rank))
        inner = tuple(
            symbols.ragged(f"{one.size}.", f"_{port}", number, one.largest) if one.ragged else one
            for one in stream.inner(rank)
        )
        made.append(StreamType((outer, *inner), symbols.again(stream.data, None)))
    return tuple(made)


def route(reader: InputReader, rank: int, ports: tuple[int, ...]) -> Generator[Request, Any, int]:
    """Move one chunk of input 0 to some outputs; return the level of the stop that ended it, 0 for a chunk of one
    element. reader: of input 0. rank: of a chunk. ports: the numbers of the outputs. Yields requests. Raises
    `StreamFault` if the input ends before the chunk does, or has no chunk here."""
    while True:
        token = reader((yield TakeToken(0)))
        if isinstance(token, Done):
            raise reader.fault(f"D, and a selector asks for a chunk of rank {rank}")
        if not isinstance(token, Stop):
            yield Busy(CYCLE)
            if ports:
                yield DeliverToken(ports, token)
            if rank == 0:
                return 0
            continue
        if token.level >= rank and not reader.ended(rank, token):
            raise reader.fault(f"{token} where a selector asks for a chunk of rank {rank}")
        if ports:
            yield DeliverToken(ports, Stop(min(token.level, rank)))
        if token.level >= rank:
            return token.level


def _agree(reader: InputReader, token: object, expected: object) -> None:
    if token != expected:
        raise reader.fault(f"{token} where the stream beside it has {expected}: the groups of both do not agree")


@dataclass(frozen=True)
class Parallelize(Operator):
    """Send chunks to the outputs in turn: a Partition whose selectors choose output 0, 1, .. `consumers` - 1, 0, and so
    on. rank: of a chunk."""

    consumers: int
    rank: int = 0

    @property
    def several(self) -> bool:
        """True: a call returns a tuple of `consumers` streams."""
        return True

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        check_consumers(self.consumers)
        if not 0 <= self.rank <= stream.rank:
            raise InputRefused(f"chunks of rank {self.rank} of a stream of rank {stream.rank}")
        made = parts(stream, self.rank, self.consumers, symbols)
        chunks = stream.count(self.rank)
        for port, part in enumerate(made):
            symbols.defined[part.shape[0].size] = sympy.ceiling((chunks - port) / self.consumers)
        return made

    def kernel(self, context: KernelContext) -> Kernel:
        reader, turn = context.reader(0), 0
        while True:
            token = yield Peek(0)
            if isinstance(token, Done):
                break
            if isinstance(token, Stop) and (not self.rank or token.level > self.rank):
                reader((yield TakeToken(0)))  # of what is around chunks
                continue
            yield from route(reader, self.rank, (turn % self.consumers,))
            turn += 1
        reader((yield TakeToken(0)))
        for port in range(self.consumers):
            yield DeliverToken((port,), DONE)


def mergeable(inputs: Sequence[StreamType]) -> None:
    """Raise `InputRefused` unless streams of the types `inputs`, at least one, have the same rank and data type, and
    the same dimensions except the outermost one. Two ragged dimensions count as the same."""
    first = inputs[0]
    for other in inputs[1:]:
        if other.rank != first.rank:
            raise InputRefused(f"inputs of rank {first.rank} and {other.rank}")
        if not same_type(first.data, other.data):
            raise InputRefused("inputs of different data types")
        for number in range(first.rank):
            one, another = first.shape[-1 - number], other.shape[-1 - number]
            if not (one.same(another) or (one.ragged and another.ragged)):
                raise InputRefused(f"inputs: dimension {number} is {one} there and {another} here")


def merged(inputs: Sequence[StreamType], symbols: Symbols) -> tuple[tuple[Dimension, ...], Any]:
    """Return the dimensions, except the outermost one, and the data type of the stream into which streams merge.
    inputs: their types, of which `mergeable` holds. symbols: makes symbols of sizes that differ."""
    inner = []
    for level in range(inputs[0].rank):
        column = [stream.shape[level + 1] for stream in inputs]
        inner.append(symbols.merged_one(column, [stream.count(stream.rank - level) for stream in inputs], "M"))
    return tuple(inner), symbols.merged([stream.data for stream in inputs], [stream.count() for stream in inputs])


@dataclass(frozen=True)
class Reassemble(Operator):
    """Put together chunks of several streams: for each selector, one chunk of every input that it chooses.

    Inputs: streams of rank a, equal but for their outermost dimension, and, as the last one, selectors [D^s_s ..
    D^s_0]. A chunk is a tensor of rank a; an element if a is 0. The chunks of a selector come one after another, in the
    order in which their first tokens arrived; of equal times, the lower number of the input comes first. Shape: [D^s_s
    .. D^s_0, K, D_{a-1} .. D_0]; K is ragged, unless all selectors choose equally many."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        *streams, selector = inputs
        if not streams:
            raise InputRefused("takes streams and, last, selectors")
        kind = selectors(selector, len(streams))
        mergeable(streams)
        total = sum((stream.count(stream.rank) for stream in streams), start=sympy.Integer(0))
        if kind.hot is not None:
            hot = dimension(kind.hot)
        else:
            hot = symbols.ragged("K", at_most=sympy.Integer(kind.choices), total=total)
        inner, data = merged(streams, symbols)
        return (StreamType((*selector.shape, hot, *inner), data),)

    def kernel(self, context: KernelContext) -> Kernel:
        last = len(context.inputs) - 1
        readers = [context.reader(port) for port in range(last + 1)]
        selector, around = readers[last], context.inputs[last].rank
        rank = context.inputs[0].rank
        while True:
            token = selector((yield TakeToken(last)))
            if isinstance(token, Done):
                break
            if isinstance(token, Stop):
                yield DeliverToken((0,), Stop(token.level + rank + 1))
                continue
            assert isinstance(token, Selector)
            yield Busy(CYCLE)
            left = list(chosen(token, selector, last))
            empty = not left
            ended_empty = False
            while left:
                port = (yield EarliestInput(tuple(left))) if len(left) > 1 else left[0]
                left.remove(port)
                ended_empty = yield from collect(readers[port], port, rank, keep_stop=not left)
            raised = 0
            if around and isinstance((yield Peek(last)), Stop):
                raised = selector((yield TakeToken(last))).level  # type: ignore[union-attr]
            levels = merged_stop(rank + 1, empty, raised)
            for level in (rank, *levels) if ended_empty else levels:
                yield DeliverToken((0,), Stop(level))
        for port in range(last):
            rest = readers[port]((yield TakeToken(port)))
            if not isinstance(rest, Done):
                raise readers[port].fault(f"{rest} is left over: all selectors are used")
        yield DeliverToken((0,), DONE)


def collect(reader: InputReader, port: int, rank: int, keep_stop: bool = False) -> Generator[Request, Any, bool]:
    """Move one chunk of an input to output 0; return whether the chunk is a tensor without children (of a rank above
    0). reader: of the input. port: the number of the input. rank: of the chunk. keep_stop: whether the stop that ends
    the chunk is left out, so that the caller puts one. Yields requests. Raises `StreamFault` if the input ends before
    the chunk does."""
    while True:
        token = reader((yield TakeToken(port)))
        if isinstance(token, Done):
            raise reader.fault(f"D, and a selector asks for a chunk of rank {rank}")
        if not isinstance(token, Stop):
            yield Busy(CYCLE)
            yield DeliverToken((0,), token)
            if rank == 0:
                return False
            continue
        if token.level < rank or not keep_stop:
            yield DeliverToken((0,), token)
        if token.level == rank:
            return reader.empty


@dataclass(frozen=True)
class SortedMerge(Operator):
    """Merge sorted streams into a sorted one: of the next elements of all inputs the least one is put; of equal ones
    that of the lower input number.

    Inputs: streams of rank 0, [B_i], each in rising order of a key: the value of a [1,1] tile, or of the first part of
    a tuple. Shape: [sum of B_i]. A token stays at its input until it is the least, so that streams of depth 1 suffice.
    The result does not depend on times. This operator is not in the papers."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        if not inputs:
            raise InputRefused("takes streams")
        mergeable(inputs)
        if inputs[0].rank:
            raise InputRefused(f"takes streams of rank 0, not {inputs[0].rank}")
        first = inputs[0].data.parts[0] if isinstance(inputs[0].data, TupleType) else inputs[0].data
        if not isinstance(first, TileType) or str(first) != "[1,1]":
            raise InputRefused(f"sorts by a [1,1] tile, alone or first in a tuple, not by {inputs[0].data}")
        outer = dimension(sum((stream.count() for stream in inputs), start=sympy.Integer(0)))
        _, data = merged(inputs, symbols)
        return (StreamType((outer,), data),)

    def kernel(self, context: KernelContext) -> Kernel:
        readers = [context.reader(port) for port in range(len(context.inputs))]
        left, last = list(range(len(readers))), [-inf] * len(readers)
        keys: dict[int, float] = {}  # of the tokens that wait
        while left:
            for port in [port for port in left if port not in keys]:
                token = yield Peek(port)
                if isinstance(token, Done):
                    readers[port]((yield TakeToken(port)))
                    left.remove(port)
                else:
                    keys[port] = readers[port].apply(sort_key, token)
            if not keys:
                continue
            port = min(keys, key=lambda port: (keys[port], port))
            token = readers[port]((yield TakeToken(port)))
            key = keys.pop(port)
            if key < last[port]:
                raise readers[port].fault(f"{key:g} after {last[port]:g}: the input is not sorted")
            last[port] = key
            yield Busy(CYCLE)
            yield DeliverToken((0,), token)
        yield DeliverToken((0,), DONE)


def sort_key(element: Any) -> float:
    """Return the value by which an element is sorted: of a [1,1] tile, or of the first part of a tuple; an integer
    stays one, so that it is compared exactly. Raises `ValueError` for a tile without data, and for NaN.
    """
    tile = element[0] if isinstance(element, tuple) else element
    if tile.data is None:
        raise ValueError("a tile without data has no order")
    value: float = tile.data[0, 0].item()
    if isnan(value):
        raise ValueError("nan has no order")
    return value


@dataclass(frozen=True)
class Iterate(Operator):
    """Send each element through a part of the program, the body, until the body says that it is done: the head of a
    loop.

    Inputs: 0, elements [n] of some type; 1, what the body gives, [W], a stream of `Program.feedback`; W is the number
    of passes of all elements. Each of these is a tuple of the next element and a flag, a [1,1] tile: not 0 sends the
    element round again, 0 ends its loop. Outputs: 0, elements for the body [W]; 1, finished elements [n], in the order
    of input 0. An element goes through the body at least once, and the next one enters after it has left, so that
    streams of depth 1 suffice. When input 0 ends, the body is sent the end of a stream, which it must pass on. A run
    raises `StreamFault` if that end comes back too early, or an element too late. This operator is not in the papers.
    """

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 2)
        entries, back = inputs
        if entries.rank or back.rank:
            raise InputRefused(f"takes streams of rank 0, not {entries.rank} and {back.rank}")
        if not isinstance(back.data, TupleType) or len(back.data.parts) != 2:
            raise InputRefused(f"the body gives tuples of an element and a flag, not {back.data}")
        value, flag = back.data.parts
        check_flags(flag)
        if not same_type(entries.data, value):
            raise InputRefused(f"elements are {entries.data}, and the body gives {value}")
        rounds = symbols.regular("W")
        return (
            StreamType((rounds,), symbols.again(entries.data, None)),
            StreamType(entries.shape, symbols.again(entries.data, None)),
        )

    def kernel(self, context: KernelContext) -> Kernel:
        entries, back = context.reader(0), context.reader(1)
        while not isinstance(element := entries((yield TakeToken(0))), Done):
            again = True
            while again:
                yield Busy(CYCLE)
                yield DeliverToken((0,), element)
                answer = back((yield TakeToken(1)))
                if isinstance(answer, Done):
                    raise back.fault("D where an element is in the loop: the body gives one for each that it gets")
                assert isinstance(answer, tuple)
                element, again = answer[0], back.apply(flag_of, answer[1])
            yield DeliverToken((1,), element)
        yield DeliverToken((0,), DONE)
        rest = back((yield TakeToken(1)))
        if not isinstance(rest, Done):
            raise back.fault(f"{rest} where no element is in the loop: the body gives one for each that it gets")
        yield DeliverToken((1,), DONE)


@dataclass(frozen=True)
class EagerMerge(Operator):
    """Merge streams chunk by chunk, in the order of arrival; of equal times, the lower number of the input comes first.

    Inputs: streams of rank a, equal but for their outermost dimension. Outputs: data [sum of D^i_a, D_{a-1} .. D_0],
    and selectors [sum of D^i_a], each of which names the input of a chunk and is put before that chunk. The outputs end
    when all inputs have ended."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        if not inputs:
            raise InputRefused("takes streams")
        mergeable(inputs)
        outer = dimension(sum((stream.count(stream.rank) for stream in inputs), start=sympy.Integer(0)))
        inner, data = merged(inputs, symbols)
        return StreamType((outer, *inner), data), StreamType((outer,), SelectorType(len(inputs), 1))

    def kernel(self, context: KernelContext) -> Kernel:
        readers = [context.reader(port) for port in range(len(context.inputs))]
        rank, left = context.inputs[0].rank, list(range(len(readers)))
        while left:
            port = yield EarliestInput(tuple(left))
            if isinstance((yield Peek(port)), Done):
                readers[port]((yield TakeToken(port)))
                left.remove(port)
                continue
            yield DeliverToken((1,), Selector((port,)))
            yield from collect(readers[port], port, rank)
        yield DeliverToken((0,), DONE)
        yield DeliverToken((1,), DONE)
