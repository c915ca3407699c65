"""Operators between streams and buffers on chip (v1 Table 3, v2 Table 4)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..functions import InputRefused
from ..requests import CYCLE, Busy, DeliverToken, Keep, Kernel, Peek, Request, TakeToken
from ..shapes import (
    ANY,
    REGULAR,
    BufferType,
    Dimension,
    Expression,
    StreamType,
    Symbols,
    dimension,
    dimensions_of,
    largest_volume,
    volume,
)
from ..tokens import DONE, BufferReference, Done, Element, Stop, Token, encode, size_in_bytes
from .base import InputReader, KernelContext, Limits, Operator, Rules, check_same, merged_stop, take
from .off_chip import affine


@dataclass(frozen=True)
class Bufferize(Operator):
    """Store tensors of a rank in buffers on chip, and put a reference to each. rank: b, of a buffer.

    Shape: [D_a .. D_0] -> [D_a .. D_b] of buffers [D_{b-1} .. D_0]. The dimensions of a buffer must be regular, static
    or dynamic; only the outermost one may be ragged (as in STeP v2; in v1 none may). Elements are tiles of a static
    size."""

    rank: int

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        if not 1 <= self.rank <= stream.rank:
            raise InputRefused(f"buffers {self.rank} dimensions of a stream of rank {stream.rank}")
        for one in dimensions_of(stream.data):
            if one.ragged or one.dynamic:
                raise InputRefused("tile of dynamic size (type S is a statically sized tile)")
        outermost, *inside = stream.inner(self.rank)
        if not ANY.takes(outermost.kind) or not all(REGULAR.takes(one.kind) for one in inside):
            raise InputRefused("only the outermost bufferized dimension may be ragged (v2 3.2.2; none in v1)")
        return (StreamType(stream.outer(self.rank), BufferType(stream.data, stream.inner(self.rank))),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, held = context.reader(0), list[Element]()
        sizes = BufferSizes(self.rank)
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if not isinstance(token, Stop):
                held.append(token)
                sizes.element()
                element = size_in_bytes(token)
                yield Keep(element + 2 * len(held) * element)
                yield Busy(CYCLE)
                continue
            sizes.stop(token, reader, self.rank)
            if reader.ended(self.rank, token):
                yield DeliverToken((0,), BufferReference(sizes.shape(), tuple(held)))
                held, sizes = [], BufferSizes(self.rank)
            if token.level > self.rank:
                yield DeliverToken((0,), Stop(token.level - self.rank))
        yield DeliverToken((0,), DONE)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        element = rules.size(inputs[0].data)
        buffer = outputs[0].data
        assert isinstance(buffer, BufferType)
        return element + 2 * largest_volume(buffer.shape) * element


class BufferSizes:
    """Counts the sizes of a buffer while it fills. All groups of a level must be of one size: a buffer is regular.
    rank: dimensions of the buffer.
    """

    def __init__(self, rank: int) -> None:
        self._open = [0] * (rank + 1)  # children so far of the open group of each rank; rank 0 is not used
        self._known: list[int | None] = [None] * (rank + 1)

    def element(self) -> None:
        """Count an element of the innermost group."""
        self._open[1] += 1

    def stop(self, stop: Stop, reader: InputReader, rank: int) -> None:
        """Close the groups that a stop ends. stop: the last token of `reader`, which follows the stream. rank: of the
        buffer. Raises `StreamFault` if a group has another size than the one before it.
        """
        for level in range(reader.groups.lowest, min(stop.level, rank) + 1):
            size, known = self._open[level], self._known[level]
            if known is not None and known != size:
                raise reader.fault(f"dimension {level - 1} of a buffer is {known} and then {size}; a buffer is regular")
            self._known[level], self._open[level] = size, 0
            if level < rank:
                self._open[level + 1] += 1

    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the buffer in elements, outermost first. A dimension inside an empty group has size 0."""
        return tuple(size or 0 for size in reversed(self._known[1:]))


@dataclass(frozen=True)
class Streamify(Operator):
    """Read buffers: each one once for every element of its group of a reference stream.

    Inputs: buffers [D_b .. D_0], reference [D_b .. D_0, D'_{c-1} .. D'_0]. Shape: that of the reference, then that of
    the read. inner: c, at least 1; the next buffer is taken when the c inner dimensions of the reference end. stride,
    shape: an affine read of a static buffer, in elements, as for `LinearOffChipLoad`; without them, and for a buffer
    that is not static, the elements come in their order and the buffer's own shape. count: how often each buffer is
    read, in place of a reference; then `count` is the only inner dimension. None: there is a reference."""

    inner: int = 1
    stride: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    count: int | None = None

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 2 if self.count is None else 1)
        buffers = inputs[0]
        if not isinstance(buffers.data, BufferType):
            raise InputRefused(f"reads buffers, not {buffers.data}")
        if self.inner < 1 or (self.count is not None and (self.count < 1 or self.inner != 1)):
            raise InputRefused("the inner dimensions of its reference are at least 1, and 1 for a count")
        if self.count is not None:
            repeated: tuple[Dimension, ...] = (dimension(self.count),)
        else:
            reference = inputs[1]
            if reference.rank != buffers.rank + self.inner:
                raise InputRefused(f"reference of rank {reference.rank}, not {buffers.rank + self.inner}")
            check_same(buffers.shape, reference.outer(self.inner), "buffers and reference: ")
            repeated = reference.inner(self.inner)
        if len(self.stride) != len(self.shape):
            raise InputRefused(f"{len(self.stride)} strides for {len(self.shape)} dimensions")
        if self.shape:
            self._check_affine(buffers.data)
        outer = (*buffers.shape, *repeated)
        read: tuple[Dimension, ...] = tuple(map(dimension, self.shape))
        if not self.shape:
            # Each group of a ragged buffer comes once for every element of the reference.
            times = None if any(one.ragged for one in repeated) else volume(repeated)
            read = tuple(symbols.again_one(one, times) for one in buffers.data.shape)
        return (StreamType((*outer, *read), buffers.data.element),)

    def _check_affine(self, data: BufferType) -> None:
        if not data.static:
            raise InputRefused("stride and shape for a buffer of dynamic shape, which is read linearly")
        count = prod(int(one.size) for one in data.shape)
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        if min(self.shape) < 1 or min(self.stride) < 0 or last >= count:
            raise InputRefused(f"reads element {last} of a buffer of {count} elements")

    def kernel(self, context: KernelContext) -> Kernel:
        buffers = context.reader(0)
        if self.count is not None:
            yield from self._counted(buffers, context.inputs[0].rank, _read_rank(self, context))
            return
        reference, current = context.reader(1), None
        rank = _read_rank(self, context)
        while True:
            token = reference((yield TakeToken(1)))
            if isinstance(token, Done):
                _agree(buffers, buffers((yield TakeToken(0))), DONE)
                yield DeliverToken((0,), DONE)
                return
            stop = token if isinstance(token, Stop) else None
            if stop is None:
                if current is None:
                    current = _buffer(buffers, buffers((yield TakeToken(0))), token)
                empty = yield from self._read(current)
                if isinstance((yield Peek(1)), Stop):
                    stop = reference((yield TakeToken(1)))  # type: ignore[assignment]
                for level in merged_stop(rank, empty, stop.level if stop else 0):
                    yield DeliverToken((0,), Stop(level))
            else:
                yield DeliverToken((0,), Stop(stop.level + rank))
            if stop is None or stop.level < self.inner:
                continue
            if reference.ended(self.inner, stop):
                if current is None:
                    _buffer(buffers, buffers((yield TakeToken(0))), stop)
                current = None
            if stop.level > self.inner:
                _agree(buffers, buffers((yield TakeToken(0))), Stop(stop.level - self.inner))

    def _counted(self, buffers: InputReader, rank: int, inside: int) -> Kernel:
        assert self.count is not None
        while True:
            token = buffers((yield TakeToken(0)))
            if isinstance(token, Done):
                yield DeliverToken((0,), DONE)
                return
            if isinstance(token, Stop):
                yield DeliverToken((0,), Stop(token.level + 1 + inside))
                continue
            current = _buffer(buffers, token, token)
            raised = 1
            for number in range(self.count):
                empty = yield from self._read(current)
                if number == self.count - 1:
                    if rank and isinstance((yield Peek(0)), Stop):
                        raised += buffers((yield TakeToken(0))).level  # type: ignore[union-attr]
                    levels = merged_stop(inside, empty, raised)
                else:
                    levels = (inside,)
                for level in levels:
                    yield DeliverToken((0,), Stop(level))

    def _read(self, buffer: BufferReference) -> Generator[Request, Any, bool]:
        """Read a buffer once, without the stop that ends it. Returns whether it has no children."""
        shape = self.shape or buffer.shape
        places = affine(self.shape, self.stride) if self.shape else range(len(buffer.elements))
        elements = iter([buffer.elements[index] for index in places])
        for token in encode([nested(shape, elements)], len(shape))[:-2]:
            if not isinstance(token, Stop):
                yield Busy(CYCLE)
            yield DeliverToken((0,), token)
        return shape[0] == 0


def nested(shape: Sequence[int], elements: Iterator[Element]) -> Any:
    """Return elements as nested lists of a shape, row-major; a single element for the shape (). shape: outermost size
    first. elements: as many as the shape has are taken. Raises `StopIteration` if there are fewer.
    """
    return [nested(shape[1:], elements) for _ in range(shape[0])] if shape else next(elements)


def _read_rank(operator: Streamify, context: KernelContext) -> int:
    data = context.inputs[0].data
    assert isinstance(data, BufferType)
    return len(operator.shape or data.shape)


def _buffer(reader: InputReader, token: Token, there: Token) -> BufferReference:
    if not isinstance(token, BufferReference):
        raise reader.fault(f"{token}, and the reference has {there}")
    return token


def _agree(reader: InputReader, token: Token, expected: Token) -> None:
    if token != expected:
        raise reader.fault(f"{token}, and the reference asks for {expected}")
