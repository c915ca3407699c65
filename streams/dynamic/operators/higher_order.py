"""Operators that apply functions (v1 Table 4, v2 Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy

from ....base.element_types import BITS
from ..errors import StepError
from ..expansions import Expansion
from ..functions import Cost, Function, InputRefused, instance
from ..requests import Busy, DeliverToken, ElementWork, Keep, Kernel, TakeToken
from ..shapes import (
    DataType,
    Dimension,
    Expression,
    StreamType,
    Symbols,
    TileType,
    TupleType,
    dimension,
    has_buffers,
    volume,
)
from ..tokens import DONE, Done, Element, Stop, Tile, encode, size_in_bytes
from ..updates import Update, folded
from .base import KernelContext, Limits, Operator, Rules, merged_stop, take

MATMUL_ROWS = 16
"""Rows of a unit of matrix products: of the input tile, a product holds so many (v2, section 4.2)."""


@dataclass(frozen=True, kw_only=True)
class ComputeOperator(Operator):
    """An operator that computes, with the rate at which it does.

    compute: operations per cycle; None for no bound. memory_in: for each operand, whether it comes through a memory
    unit, which bounds its rate; operands behind the last entry do not. memory_out: whether the result goes through one.
    Raises `StepError` for less than one operation per cycle."""

    compute: int | None = None
    memory_in: tuple[bool, ...] = ()
    memory_out: bool = False

    def __post_init__(self) -> None:
        if self.compute is not None and self.compute < 1:
            raise StepError(self.name, f"{self.compute} operations a cycle; the least is 1, None for no bound")

    def work(self, cost: Cost, operands: Sequence[Element], result: Element | None) -> ElementWork:
        """Return the work of one element: bytes that pass memory units, and operations. cost: a factor and sizes, whose
        product is the number of operations. operands: the elements that are read. result: the element that is put; None
        for none."""
        factor, sizes = cost
        read = tuple(size_in_bytes(one) for one, through in zip(operands, self.memory_in, strict=False) if through)
        written = size_in_bytes(result) if self.memory_out and result is not None else 0
        return ElementWork(read, factor * prod(sizes), written, self.compute)


def parts(data: Any) -> tuple[Any, ...]:
    """Return the operands in `data`, an element or a type: the parts of a tuple; of anything else that alone."""
    if isinstance(data, TupleType):
        return data.parts
    return data if isinstance(data, tuple) else (data,)


def symbolic(stream: StreamType, cost: Cost) -> Expression | None:
    """Return the operations that a function computes on all elements of a stream. None if a cost is a product of
    several ragged sizes, since the known sums do not give its total. cost: of one element, a factor and sizes."""
    factor, sizes = cost
    if not factor:
        return sympy.Integer(0)
    total = stream.volume(sizes)
    return None if total is None else factor * total


def product_memory(data: DataType, rules: Rules) -> Expression:
    """Return the bytes on chip that the operands of a matrix product take (STeP v2, section 4.2): `MATMUL_ROWS` rows of
    the first tile, the input, and the whole last tile, the weights; 0 with the accounting "figures". data: the tuple
    type of the operands. rules: how memory is counted."""
    operands = parts(data)
    if rules.accounting == "figures":
        return sympy.Integer(0)
    tiles = [one for one in operands if isinstance(one, TileType)]
    dtype = rules.on_chip_dtype or tiles[0].dtype
    return MATMUL_ROWS * tiles[0].columns.largest * BITS[dtype] / 8 + rules.size(tiles[-1])


def held_by_product(operands: Sequence[Tile]) -> int:
    """Return the bytes on chip that a product of these tiles holds in a run: `MATMUL_ROWS` rows of the first tile, and
    the last tile.
    """
    return MATMUL_ROWS * operands[0].columns * BITS[operands[0].dtype] // 8 + operands[-1].bytes


def no_buffers(stream: StreamType) -> None:
    """Raise `InputRefused` if a stream carries references to buffers, which the operators with functions do not take
    (types A and B of STeP)."""
    if has_buffers(stream.data):
        raise InputRefused("takes no buffers")


@dataclass(frozen=True)
class Map(ComputeOperator):
    """Apply a function to each element; the shape stays. Called with several streams, it first makes tuples of their
    elements, as `Zip` does. function: an instance, or a class that needs no arguments; anything else raises
    `StepError`."""

    function: Function | type[Function]

    def __post_init__(self) -> None:
        super().__post_init__()
        made: Function = instance(self.name, self.function, (Function,), "Add or Matmul()")
        object.__setattr__(self, "function", made)

    @property
    def applied(self) -> Function:
        """The function that is applied: an instance, also where its class was given."""
        assert isinstance(self.function, Function)
        return self.function

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        no_buffers(stream)
        return (StreamType(stream.shape, self.applied.type(*parts(stream.data))),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader = context.reader(0)
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if isinstance(token, Stop):
                yield DeliverToken((0,), token)
                continue
            operands = parts(token)
            result = reader.apply(self.applied, *operands)
            if self.applied.matmul:
                yield Keep(held_by_product(operands))
            yield Busy(self.work(reader.apply(self.applied.cost, *operands), operands, result))
            yield DeliverToken((0,), result)
        yield DeliverToken((0,), DONE)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return product_memory(inputs[0].data, rules) if self.applied.matmul else sympy.Integer(0)

    def flops(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression | None:
        return symbolic(inputs[0], self.applied.cost(*parts(inputs[0].data)))


@dataclass(frozen=True)
class Reduction(ComputeOperator):
    """Base of Accum and Scan, which fold the elements of each group into a state. rank: of a group; at least 1. update:
    an `Update`, or a function of a state and an element, as an instance or a class that needs no arguments; anything
    else raises `StepError`. initial: each value of the first state, for a function."""

    rank: int
    update: Update | Function | type[Update] | type[Function]
    initial: float = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds: tuple[type[Update | Function], ...] = (Update, Function)
        object.__setattr__(self, "update", instance(self.name, self.update, kinds, "Add or RetileRow"))

    @property
    def fold(self) -> Update:
        """The update that folds elements into the state: `update`, or a `Fold` of the function that was given."""
        assert not isinstance(self.update, type)
        return folded(self.update, self.initial)

    def check(self, inputs: Sequence[StreamType]) -> StreamType:
        """Return the type of the only input. inputs: the types of all inputs. Raises `InputRefused` if there are
        several, if the input carries buffers, or if `rank` is below 1 or above the rank of the input."""
        take(inputs, 1)
        (stream,) = inputs
        no_buffers(stream)
        if not 1 <= self.rank <= stream.rank:
            raise InputRefused(f"reduces {self.rank} dimensions of a stream of rank {stream.rank}")
        return stream

    def held(self, element: Element, state: Element) -> int:
        """Return the bytes on chip of the state and, for a matrix product, of its operands. element: the element that
        was folded last. state: the state after it."""
        product = held_by_product(parts(element)) if self.fold.matmul else 0
        return product + size_in_bytes(state)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        product = product_memory(inputs[0].data, rules) if self.fold.matmul else sympy.Integer(0)
        return product + rules.size(outputs[0].data)

    def flops(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression | None:
        return symbolic(inputs[0], self.fold.cost(inputs[0].data))


@dataclass(frozen=True)
class Accum(Reduction):
    """Fold each group of a stream into one element: [D_a .. D_0] -> [D_a .. D_b], b being the rank. Each group begins
    with a new state, which is put at the end of the group. The state may be larger than an element, and of dynamic
    size."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        stream = self.check(inputs)
        state = self.fold.state(stream.data, stream.inner(self.rank), symbols)
        return (StreamType(stream.outer(self.rank), state),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, fold, data = context.reader(0), self.fold, context.inputs[0].data
        state = fold.start(data)
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if not isinstance(token, Stop):
                state = reader.apply(fold, state, token)
                yield Keep(self.held(token, state))
                yield Busy(self.work(reader.apply(fold.cost, token), parts(token), None))
                continue
            if reader.ended(self.rank, token):
                yield Keep(size_in_bytes(state))
                if self.memory_out:
                    yield Busy(ElementWork(bytes_out=size_in_bytes(state), least=0))
                yield DeliverToken((0,), state)
                state = fold.start(data)
            if token.level > self.rank:
                yield DeliverToken((0,), Stop(token.level - self.rank))
        yield DeliverToken((0,), DONE)


@dataclass(frozen=True)
class Scan(Reduction):
    """Fold each group of a stream, as `Accum` does, and put the state after every element. The shape stays."""

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        stream = self.check(inputs)
        return (StreamType(stream.shape, self.fold.running(stream.data, stream.inner(self.rank), symbols)),)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, fold, data = context.reader(0), self.fold, context.inputs[0].data
        state = fold.start(data)
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if isinstance(token, Stop):
                if reader.ended(self.rank, token):
                    state = fold.start(data)
                yield DeliverToken((0,), token)
                continue
            state = reader.apply(fold, state, token)
            yield Keep(self.held(token, state))
            yield Busy(self.work(reader.apply(fold.cost, token), parts(token), state))
            yield DeliverToken((0,), state)
        yield DeliverToken((0,), DONE)


@dataclass(frozen=True)
class FlatMap(ComputeOperator):
    """Make a stream of rank b of each element, and join those of a group along their outermost dimension: [D_a .. D_1,
    D_0] -> [D_a .. D_1, D'_b .. D'_0], D'_b being the sum over D_0. function: the expansion.
    """

    function: Expansion | type[Expansion]

    def __post_init__(self) -> None:
        super().__post_init__()
        made: Expansion = instance(self.name, self.function, (Expansion,), "RetileStreamify(1) or WhereTrue()")
        object.__setattr__(self, "function", made)

    @property
    def applied(self) -> Expansion:
        """The expansion that is applied: an instance, also where its class was given."""
        assert isinstance(self.function, Expansion)
        return self.function

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        (stream,) = inputs
        no_buffers(stream)
        sizes, data = self.applied.type(stream.data, symbols)
        outermost, *inside = sizes
        joined = self._joined(stream, outermost, symbols)
        inner = [symbols.ragged("F") if one is None else symbols.again_one(one, None) for one in inside]
        known = [one for one in sizes if one is not None and not one.ragged]
        times = volume(known) if len(known) == len(sizes) else None
        return (StreamType((*stream.shape[:-1], joined, *inner), symbols.again(data, times)),)

    def _joined(self, stream: StreamType, size: Dimension | None, symbols: Symbols) -> Dimension:
        last = stream.shape[-1]
        if size is not None and not size.ragged and not last.ragged:
            return dimension(size.size * last.size)
        total = None
        if size is not None:
            total = size.total if size.total is not None else size.size * stream.count()
        if stream.rank == 0:
            return symbols.regular("F", value=total)
        return symbols.ragged("F", total=total)

    def kernel(self, context: KernelContext) -> Kernel:
        reader, rank = context.reader(0), self.applied.rank
        held: Stop | None = None  # the end of the last tensor, which a stop of the input may raise
        grown = False  # whether the group has something in the output
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if isinstance(token, Stop):
                if not grown and not reader.empty and reader.groups.lowest == 1:
                    for level in merged_stop(1 + rank, True, token.level - 1):
                        yield DeliverToken((0,), Stop(level))
                else:
                    yield DeliverToken((0,), Stop(token.level + rank))
                held, grown = None, False
                continue
            nested = reader.apply(self.applied, token)
            made = reader.apply(encode, nested, rank)[:-1]
            grown = grown or bool(made)
            if made and held is not None:
                yield DeliverToken((0,), held)
                held = None
            if rank and context.inputs[0].rank and len(nested) and len(nested[-1]):
                held = made.pop()
            for one in made:
                if not isinstance(one, Stop | Done):
                    yield Busy(self.work((0, ()), parts(token), one))
                yield DeliverToken((0,), one)
        yield DeliverToken((0,), DONE)
