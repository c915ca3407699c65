"""Operators that change stops only (v1 Table 6, v2 Table 7), and what is built of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from numbers import Real

import numpy as np
import sympy

from ..functions import InputRefused
from ..requests import CYCLE, Busy, DeliverToken, Kernel, Peek, TakeToken
from ..shapes import (
    FLAG,
    STATIC,
    Dimension,
    Expression,
    StreamType,
    Symbols,
    TileType,
    TupleType,
    dimension,
    has_buffers,
    largest_volume,
    positive,
    volume,
)
from ..tokens import DONE, Done, Element, Stop, Tile, Token
from .base import (
    InputReader,
    KernelContext,
    Limits,
    Operator,
    Rules,
    check_flags,
    check_same,
    flag_of,
    merged_stop,
    take,
    take_together,
)
from .off_chip import stops_after


@dataclass(frozen=True)
class Flatten(Operator):
    """Make one dimension of the dimensions D_most .. D_least, which are counted from the innermost one, 0.

    If all of them are regular, its size is their product. Otherwise it is a new ragged dimension; but if the outermost
    dimension of the stream is among them, it is a regular one whose size is a new symbol."""

    least: int
    most: int

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        if not 0 <= self.least <= self.most <= stream.rank:
            raise InputRefused(f"dimensions {self.least} to {self.most} of a stream of rank {stream.rank}")
        size = len(stream.shape)
        outer, inner = stream.shape[: size - 1 - self.most], stream.shape[size - self.least :]
        flat = stream.shape[size - 1 - self.most : size - self.least]
        return (StreamType((*outer, self._flat(stream, flat, symbols), *inner), stream.data),)

    def _flat(self, stream: StreamType, flat: Sequence[Dimension], symbols: Symbols) -> Dimension:
        if len(flat) == 1:
            return flat[0]
        if not any(one.ragged for one in flat):
            return dimension(volume(flat))
        total = stream.count(self.least)
        if self.most == stream.rank:
            return symbols.regular("D", value=total)
        static = not any(one.dynamic for one in flat)
        key = ("flatten", stream.shape, self.least, self.most)
        most = largest_volume(flat)
        return symbols.same_again(key, lambda: symbols.ragged("R", at_most=most, total=total, static=static))

    def kernel(self, context: KernelContext) -> Kernel:
        reader = context.reader(0)
        least, most = self.least, self.most
        # A stop of the flattened dimensions becomes one that a stop above may still raise.
        holds = 0 < least < most < context.inputs[0].rank
        held, grown = False, False  # grown: whether the flat group has children
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if not isinstance(token, Stop):
                if held:
                    yield DeliverToken((0,), Stop(least))
                    held = False
                yield Busy(CYCLE)
                yield DeliverToken((0,), token)
                grown = True
            elif token.level > most:
                empty = not grown and reader.ended(most + 1, token)
                held = grown = False
                for level in merged_stop(least + 1, empty, token.level - most - 1):
                    yield DeliverToken((0,), Stop(level))
            elif token.level <= least or (least and reader.ended(least, token)):
                if held:
                    yield DeliverToken((0,), Stop(least))
                # An own stop of a group without children never rises.
                held = holds and token.level >= least and not reader.empty
                grown = True
                if not held:
                    yield DeliverToken((0,), Stop(min(token.level, least)))
        yield DeliverToken((0,), DONE)


@dataclass(frozen=True)
class Reshape(Operator):
    """Split a dimension in chunks: [.., D_b, ..] -> [.., ceil(D_b/chunk), chunk, ..]. Outputs: data, and flags that are
    set where an element is padding.

    rank: b. pad: for b = 0, the value of all places of the tiles that fill up the last chunk of a group; None for a
    dimension that is known to need none. For b > 0, D_b must be static and divisible by `chunk`."""

    rank: int
    chunk: int
    pad: float | None = None

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        if not 0 <= self.rank <= stream.rank or self.chunk < 1:
            raise InputRefused(f"dimension {self.rank} of a stream of rank {stream.rank} in chunks of {self.chunk}")
        pad: object = self.pad
        if not isinstance(pad, Real | None):
            raise InputRefused(f"pad is a number, the value at every place of a tile, not {pad}")
        if has_buffers(stream.data):
            raise InputRefused("takes no buffers (v2)")
        at = stream.rank - self.rank
        split = stream.shape[at]
        static = STATIC.takes(split.kind)
        if self.rank and not static:
            raise InputRefused(f"dimension {self.rank} is {split}, not static (A.1)")
        if static and int(split.size) % self.chunk and (self.rank or self.pad is None):
            raise InputRefused(f"dimension {self.rank} of {split} is not divisible by {self.chunk}")
        if self.pad is not None and not self.rank and self.chunk > 1 and not isinstance(stream.data, TileType):
            raise InputRefused(f"pads tiles, not {stream.data}")
        chunks = self._chunks(stream, split, symbols)
        shape = (*stream.shape[:at], chunks, dimension(self.chunk), *stream.shape[at + 1 :])
        padded = not (self.rank or self.chunk == 1 or static)
        data = symbols.again(stream.data, None) if padded else stream.data
        return StreamType(shape, data), StreamType(shape, FLAG)

    def _chunks(self, stream: StreamType, split: Dimension, symbols: Symbols) -> Dimension:
        if self.chunk == 1:
            return split
        if split.ragged:
            largest = sympy.ceiling(split.largest / self.chunk)
            key = ("reshape", stream.shape, self.rank, self.chunk)
            return symbols.same_again(key, lambda: symbols.ragged("R", static=not split.dynamic, largest=largest))
        return dimension(sympy.ceiling(split.size / self.chunk))

    def kernel(self, context: KernelContext) -> Kernel:
        return self._innermost(context) if self.rank == 0 else self._outer(context)

    def _innermost(self, context: KernelContext) -> Kernel:
        reader, rank = context.reader(0), context.inputs[0].rank
        filled, held, last = 0, False, None  # held: the stop of a full chunk, which the end of the group raises
        while True:
            token = reader((yield TakeToken(0)))
            if not isinstance(token, Stop | Done):
                if held:
                    yield from _both(Stop(1))
                    held = False
                yield Busy(CYCLE)
                yield from _flagged(token, False)
                filled, last = filled + 1, token
                if filled == self.chunk:
                    filled, held = 0, rank > 0
                    if not held:
                        yield from _both(Stop(1))
                continue
            if filled:
                for _ in range(self.chunk - filled):
                    yield Busy(CYCLE)
                    yield from _flagged(self._padding(last, reader, filled), True)
                filled = 0
                if isinstance(token, Done):
                    yield from _both(Stop(1))
            held = False
            yield from _both(Stop(token.level + 1) if isinstance(token, Stop) else DONE)
            if isinstance(token, Done):
                return

    def _padding(self, last: Token | None, reader: InputReader, filled: int) -> Tile:
        if self.pad is None:
            raise reader.fault(f"a chunk of {filled} of {self.chunk} elements, and no value to pad it with")
        assert isinstance(last, Tile)
        if last.data is None:
            return replace(last, filled=None)
        kind = np.result_type(last.data.dtype, self.pad)  # integers may be given, others be the padding
        return replace(last, data=np.full(last.shape, self.pad, kind), filled=None)

    def _outer(self, context: KernelContext) -> Kernel:
        reader, rank = context.reader(0), context.inputs[0].rank
        number, held = 0, False  # chunks' children so far; held: the stop of a chunk whose last child is empty
        while True:
            token = reader((yield TakeToken(0)))
            if isinstance(token, Done):
                if number:
                    raise reader.fault(f"{number} at the end are no whole chunk of {self.chunk}")
                yield from _both(DONE)
                return
            raises = isinstance(token, Stop) and token.level > self.rank and reader.groups.lowest == self.rank + 1
            if held and not raises:
                yield from _both(Stop(self.rank + 1))
            held = False
            if not isinstance(token, Stop):
                yield Busy(CYCLE)
                yield from _flagged(token, False)
                continue
            number += reader.ended(self.rank, token)
            if token.level < self.rank:
                yield from _both(token)
                continue
            full = number == self.chunk
            number = 0 if full else number
            if token.level > self.rank:
                if number:
                    raise reader.fault(f"{number} at the end are no whole chunk of {self.chunk}")
                yield from _both(Stop(token.level + 1))
            elif not full:
                yield from _both(token)
            elif not reader.empty:
                yield from _both(Stop(self.rank + 1))
            else:
                yield from _both(token)
                held = self.rank < rank
                if not held:
                    yield from _both(Stop(self.rank + 1))


def _both(token: Stop | Done) -> Kernel:
    yield DeliverToken((0,), token)
    yield DeliverToken((1,), token)


def _flagged(token: Element, padded: bool) -> Kernel:
    yield DeliverToken((0,), token)
    yield DeliverToken((1,), Tile.of(padded, "boolean"))


@dataclass(frozen=True)
class Promote(Operator):
    """Add an outermost dimension: [D_a ..] -> [1 if D_a>0 else 0, D_a ..]. The level of the last stop rises by 1; so a
    stop that may be the last one is held until the next token comes. An empty stream stays empty."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        outermost = stream.shape[0].size
        return (StreamType((dimension(positive(outermost)), *stream.shape), stream.data),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, rank = context.reader(0), context.inputs[0].rank
        held, seen = False, False
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if held:
                yield DeliverToken((0,), Stop(rank))
            held, seen = False, True
            if isinstance(token, Stop) and token.level == rank and not reader.empty:
                held = True
                continue
            if not isinstance(token, Stop):
                yield Busy(CYCLE)
            yield DeliverToken((0,), token)
        if seen:
            yield DeliverToken((0,), Stop(rank + 1))
        yield DeliverToken((0,), DONE)


@dataclass(frozen=True)
class Expand(Operator):
    """Repeat each element of a stream for every element of its group of a reference stream.

    Inputs: data [D_a .. D_b, 1 .. 1] (b times 1), reference [D_a .. D_0]. Shape: that of the reference. rank: b, the
    level of the lowest stop of the data, such as 2 for [2,1,1]. counts: the sizes of the b inner dimensions, in place
    of a reference."""

    rank: int
    counts: tuple[int, ...] = ()

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1 if self.counts else 2)
        stream = inputs[0]
        if not self.counts and inputs[1].rank != stream.rank:
            raise InputRefused(f"data and reference: rank {stream.rank} and rank {inputs[1].rank}")
        if not 1 <= self.rank <= stream.rank + 1:
            raise InputRefused(f"expands {self.rank} dimensions of a stream of rank {stream.rank}")
        if any(one.ragged or one.size != 1 for one in stream.inner(self.rank)):
            shape = ",".join(map(str, stream.shape))
            raise InputRefused(f"the {self.rank} innermost dimensions of [{shape}] are not 1")
        if self.counts:
            if len(self.counts) != self.rank or min(self.counts) < 1:
                raise InputRefused(f"{list(self.counts)} for {self.rank} dimensions; each is at least 1")
            shape_out: tuple[Dimension, ...] = (*stream.outer(self.rank), *map(dimension, self.counts))
        else:
            check_same(stream.outer(self.rank), inputs[1].outer(self.rank), "data and reference: ")
            shape_out = inputs[1].shape
        inner = shape_out[len(shape_out) - self.rank :]
        times = None if any(one.ragged for one in inner) else volume(inner)
        return (StreamType(shape_out, symbols.again(stream.data, times)),)

    def kernel(self, context: KernelContext) -> Kernel:
        return self._counted(context) if self.counts else self._referred(context)

    def _referred(self, context: KernelContext) -> Kernel:
        data, reference = context.reader(0), context.reader(1)
        whole = self.rank > context.inputs[0].rank  # all of the reference is one group
        current: Token | None = None
        while not isinstance(token := reference((yield TakeToken(1))), Done):
            if not isinstance(token, Stop):
                if current is None:
                    current = _element(data, data((yield TakeToken(0))), token)
                yield Busy(CYCLE)
                yield DeliverToken((0,), current)
                continue
            yield DeliverToken((0,), token)
            if whole or token.level < self.rank:
                continue
            if reference.ended(self.rank, token):
                if current is None:
                    _element(data, data((yield TakeToken(0))), token)
                current = None
                following = yield Peek(0)
                if reference.empty and isinstance(following, Stop) and following.level > token.level:
                    continue  # the data's group is not empty, so that its stop is merged with that of a group around
            there = data((yield TakeToken(0)))
            if there != token:
                raise data.fault(f"{there} where the reference has {token}")
        if whole:  # the data are one element at most, and its stop
            while not isinstance((yield Peek(0)), Done):
                data((yield TakeToken(0)))
        there = data((yield TakeToken(0)))
        if not isinstance(there, Done):
            raise data.fault(f"{there} where the reference has D")
        yield DeliverToken((0,), DONE)

    def _counted(self, context: KernelContext) -> Kernel:
        data, last = context.reader(0), prod(self.counts)
        while not isinstance(token := data((yield TakeToken(0))), Done):
            if isinstance(token, Stop):
                yield DeliverToken((0,), token)
                continue
            for number in range(1, last + 1):
                yield Busy(CYCLE)
                yield DeliverToken((0,), token)
                level = stops_after(number, self.counts)
                if level and number < last:
                    yield DeliverToken((0,), Stop(level))
        yield DeliverToken((0,), DONE)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return rules.size(outputs[0].data)


def _element(reader: InputReader, token: Token, there: Token) -> Token:
    if isinstance(token, Stop | Done):
        raise reader.fault(f"{token} where the reference has {there}")
    return token


@dataclass(frozen=True)
class Repeat(Operator):
    """Repeat each element `count` times: [D_a .. D_0] -> [D_a .. D_0, count]. The same as an `Expand` with `counts`."""

    count: int

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        if self.count < 1:
            raise InputRefused(f"repeats {self.count} times; the least is 1")
        data = symbols.again(stream.data, sympy.Integer(self.count))
        return (StreamType((*stream.shape, dimension(self.count)), data),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, rank = context.reader(0), context.inputs[0].rank
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            raised = 0
            if isinstance(token, Stop):
                yield DeliverToken((0,), Stop(token.level + 1))
                continue
            for _ in range(self.count):
                yield Busy(CYCLE)
                yield DeliverToken((0,), token)
            if rank and isinstance((yield Peek(0)), Stop):
                raised = reader((yield TakeToken(0))).level  # type: ignore[union-attr]
            yield DeliverToken((0,), Stop(1 + raised))
        yield DeliverToken((0,), DONE)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return rules.size(outputs[0].data)


@dataclass(frozen=True)
class Zip(Operator):
    """Make tuples of the elements of streams of one shape."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        if len(inputs) < 2:
            raise InputRefused("takes two streams or more")
        for other in inputs[1:]:
            check_same(inputs[0].shape, other.shape)
        return (StreamType(inputs[0].shape, TupleType(tuple(stream.data for stream in inputs))),)

    def kernel(self, context: KernelContext) -> Kernel:
        readers = [context.reader(port) for port in range(len(context.inputs))]
        while True:
            tokens = yield from take_together(readers)
            if not isinstance(tokens[0], Stop | Done):
                yield Busy(CYCLE)
                yield DeliverToken((0,), tokens)
                continue
            yield DeliverToken((0,), tokens[0])
            if isinstance(tokens[0], Done):
                return


@dataclass(frozen=True)
class Broadcast(Operator):
    """Return a stream as `count` equal streams. It is not needed to read a stream several times."""

    count: int

    @property
    def several(self) -> bool:
        """True: a call returns a tuple of `count` streams."""
        return True

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        if self.count < 1:
            raise InputRefused(f"{self.count} streams; the least is 1")
        return (inputs[0],) * self.count

    def kernel(self, context: KernelContext) -> Kernel:
        reader, ports = context.reader(0), tuple(range(self.count))
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            yield DeliverToken(ports, token)
        yield DeliverToken(ports, DONE)


@dataclass(frozen=True)
class First(Operator):
    """Put the first `count` elements of a stream of rank 0 and then the end; take and drop the rest of the input. This
    operator is not in the papers; it ends the loop of dynamic parallelisation, whose dispatcher needs no more free
    regions than there are requests."""

    count: int

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        if stream.rank:
            raise InputRefused(f"takes a stream of rank 0, not {stream.rank}")
        if self.count < 0:
            raise InputRefused(f"takes the first {self.count} elements; the least is 0")
        size = stream.shape[0]
        least = sympy.Min(self.count, size.size)
        return (StreamType((dimension(least),), symbols.again(stream.data, None)),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, left = context.reader(0), self.count
        while left and not isinstance(token := reader((yield TakeToken(0))), Done):
            yield DeliverToken((0,), token)
            left -= 1
        yield DeliverToken((0,), DONE)
        if not left:
            while not isinstance(reader((yield TakeToken(0))), Done):
                pass


@dataclass(frozen=True)
class TakeWhile(Operator):
    """Put the elements of each innermost group up to the first whose flag is not set; drop the others of the group.

    Inputs: data [D_a .. D_1, D_0], and flags of the same shape, [1,1] tiles. Shape: [D_a .. D_1, D'_0]; D'_0 is ragged,
    or, for a = 0, a regular size that data decide. At rank 0 the end is put as soon as a flag is not set, and the rest
    of the input is taken and dropped, so that the operator can end a loop. inclusive: whether the element whose flag is
    not set is put as well. This operator is not in the papers."""

    inclusive: bool = False

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 2)
        data, flags = inputs
        check_flags(flags.data)
        check_same(data.shape, flags.shape, "data and flags: ")
        left = symbols.ragged("T", largest=data.shape[-1].largest) if data.rank else symbols.regular("T")
        return (StreamType((*data.shape[:-1], left), symbols.again(data.data, None)),)

    def kernel(self, context: KernelContext) -> Kernel:
        readers = [context.reader(port) for port in range(2)]
        rank = context.inputs[0].rank
        is_open, grown = True, False  # whether the group goes on, and whether it has elements in the output
        while True:
            token, flag = yield from take_together(readers)
            if isinstance(token, Done):
                break
            if isinstance(token, Stop):
                ended = readers[0].groups.lowest == 1
                empty = ended and not grown and not readers[0].empty
                for level in merged_stop(1, True, token.level - 1) if empty else (token.level,):
                    yield DeliverToken((0,), Stop(level))
                is_open, grown = True, False
            elif is_open:
                yield Busy(CYCLE)
                is_open = bool(readers[1].apply(flag_of, flag))
                if is_open or self.inclusive:
                    grown = True
                    yield DeliverToken((0,), token)
                if not is_open and not rank:
                    yield DeliverToken((0,), DONE)
        if is_open or rank:
            yield DeliverToken((0,), DONE)


@dataclass(frozen=True)
class Discard(Operator):
    """Take a stream and drop it."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        return ()

    def kernel(self, context: KernelContext) -> Kernel:
        reader = context.reader(0)
        while not isinstance(reader((yield TakeToken(0))), Done):
            pass
