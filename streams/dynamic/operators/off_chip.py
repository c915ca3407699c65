"""Operators between the chip and the memory off it (v1 Table 2, v2 Table 3)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from ....base.element_types import BITS
from ..functions import InputRefused
from ..memory import Tensor
from ..requests import DeliverToken, Keep, Kernel, MoveTile, Peek, Request, TakeToken
from ..shapes import (
    FLAG,
    Expression,
    StreamType,
    Symbols,
    TileType,
    bytes_of,
    dimension,
    is_address,
    tile,
)
from ..tokens import DONE, Done, Stop, Tile
from .base import (
    KernelContext,
    Limits,
    Operator,
    Rules,
    SourceOperator,
    check_ragged_traffic,
    check_same,
    take,
    take_together,
)


def affine(shape: Sequence[int], stride: Sequence[int]) -> Iterator[int]:
    """Yield the index of each element of an affine read, row-major over the shape: the sum of i_k * stride_k. shape:
    how many steps each dimension has, outermost first. stride: indices from one step of each dimension to the next."""
    for at in product(*map(range, shape)):
        yield sum(i * step for i, step in zip(at, stride, strict=True))


def _transfer(tensor: Tensor, index: int, size: tuple[int, int], read: bool) -> MoveTile:
    address, stride = tensor.address(index, size)
    return MoveTile(read, address, size[0], size[1] * BITS[tensor.dtype] // 8, stride)


@dataclass(frozen=True)
class LinearOffChipLoad(SourceOperator):
    """Read a tensor in tiles, in an affine order, once for each element of a reference stream; without a reference
    once, as for a reference of shape [1]. Shape: [D_b .. D_0] -> [D_b .. D_0, *shape].

    tensor: off the chip. tile: rows and columns of a tile. shape: steps of the read in each dimension, the outermost
    first. stride: for each dimension, the tiles from one step to the next; 0 repeats. Step (i_0, i_1, ..) reads tile
    number sum of i_k * stride_k; tiles are numbered row-major."""

    tensor: Tensor
    tile: tuple[int, int]
    stride: tuple[int, ...]
    shape: tuple[int, ...]

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        count = prod(self.tensor.tiled(self.tile))
        if len(self.stride) != len(self.shape):
            raise InputRefused(f"{len(self.stride)} strides for {len(self.shape)} dimensions")
        if not self.shape or min(self.shape) < 1 or min(self.stride) < 0:
            raise InputRefused(
                f"reads shape {list(self.shape)} by strides {list(self.stride)}; sizes >= 1, strides >= 0"
            )
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        if last >= count:
            raise InputRefused(f"reads tile {last} of a tensor of {count} tiles")
        outer = inputs[0].shape if inputs else (dimension(1),)
        made = StreamType((*outer, *map(dimension, self.shape)), tile(*self.tile, self.tensor.dtype))
        check_ragged_traffic(made, limits)
        return (made,)

    def kernel(self, context: KernelContext) -> Kernel:
        yield Keep(2 * context.memory.read(self.tensor, 0, self.tile).bytes)
        rank = len(self.shape)
        if not context.inputs:
            yield from self._read(context)
            yield DeliverToken((0,), Stop(rank))
            yield DeliverToken((0,), DONE)
            return
        reader = context.reader(0)
        while True:
            token = reader((yield TakeToken(0)))
            if isinstance(token, Done):
                yield DeliverToken((0,), DONE)
                return
            if isinstance(token, Stop):
                yield DeliverToken((0,), Stop(token.level + rank))
                continue
            yield from self._read(context)
            raised = 0
            if context.inputs[0].rank and isinstance((yield Peek(0)), Stop):
                raised = reader((yield TakeToken(0))).level  # type: ignore[union-attr]
            yield DeliverToken((0,), Stop(rank + raised))

    def _read(self, context: KernelContext) -> Kernel:
        """Read the tensor once, with the stops inside of the read."""
        places = list(affine(self.shape, self.stride))
        for number, index in enumerate(places, 1):
            yield _transfer(self.tensor, index, self.tile, read=True)
            yield DeliverToken((0,), context.memory.read(self.tensor, index, self.tile))
            ended = stops_after(number, self.shape)
            if ended and number < len(places):
                yield DeliverToken((0,), Stop(ended))

    def traffic(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression:
        return outputs[0].count() * bytes_of(outputs[0].data)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return rules.tiles_off_chip * bytes_of(outputs[0].data)  # as they come, whatever tiles on chip are


def stops_after(number: int, shape: Sequence[int]) -> int:
    """Return the level of the stop behind the first `number` elements (at least 1) of a tensor; 0 if no stop follows
    them. shape: of the tensor, the outermost size first; its elements come row-major."""
    level, size = 0, 1
    for inner in reversed(shape):
        size *= inner
        if number % size:
            break
        level += 1
    return level


@dataclass(frozen=True)
class LinearOffChipStore(Operator):
    """Write tiles of a static size to consecutive tiles of a tensor; there is no output. tensor: off the chip. first:
    the number of the first tile, row-major.

    The paper's table prints the shape of the input as [D_{a-1} .. D_0]; it is [D_a .. D_0]."""

    tensor: Tensor
    first: int = 0

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        data = static_tile(inputs[0], "tile")
        check_whole(self.tensor, data)
        places = prod(self.tensor.tiled((int(data.rows.size), int(data.columns.size))))
        count = inputs[0].count()
        if self.first < 0 or (count.is_Integer and self.first + count > places):
            raise InputRefused(f"{count} tiles from number {self.first} on, in a tensor of {places} tiles")
        check_ragged_traffic(inputs[0], limits)
        return ()

    def kernel(self, context: KernelContext) -> Kernel:
        reader, index = context.reader(0), self.first
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if isinstance(token, Stop):
                continue
            assert isinstance(token, Tile)
            yield from write(context, self.tensor, index, token, reader.label, reader.groups.position)
            index += 1

    def traffic(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression:
        return inputs[0].count() * bytes_of(inputs[0].data)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return rules.tiles_off_chip * rules.size(inputs[0].data)


def static_tile(stream: StreamType, what: str) -> TileType:
    """Return the type of a stream's tiles. what: begins the message, such as "tile". Raises `InputRefused` unless it is
    type S of the paper, a tile of static size.
    """
    if not isinstance(stream.data, TileType):
        raise InputRefused(f"takes tiles, not {stream.data}")
    if not stream.data.static:
        raise InputRefused(f"{what} of dynamic size (type S is a statically sized tile)")
    return stream.data


def check_whole(tensor: Tensor, data: TileType) -> None:
    """Raise `InputRefused` unless a tensor can be written in tiles of a type. data: that type, of static size. The
    sizes of the tensor must be multiples of those of the tile, and the element types equal."""
    rows, columns = (int(one.size) for one in data.shape)
    tensor.tiled((rows, columns))
    if data.dtype != tensor.dtype:
        raise InputRefused(f"tiles of {data.dtype} and a tensor of {tensor.dtype}")


def place(context: KernelContext, tensor: Tensor, index: int, size: tuple[int, int], stream: str, position: int) -> int:
    """Return `index`, the number of a tile of a tensor, row-major, once it is checked. context: of the kernel. size:
    rows and columns of a tile. stream, position: the token that asks for the tile, for the message. Raises
    `StreamFault` if the tensor has no such tile."""
    count = prod(tensor.tiled(size))
    if not 0 <= index < count:
        raise context.fault(stream, f"tile {index} of a tensor of {count} tiles", position)
    return index


def write(
    context: KernelContext, tensor: Tensor, index: int, value: Tile, stream: str, position: int
) -> Generator[Request, Any, None]:
    """Write a tile to a tensor off the chip. index: the number of its place, row-major among tiles of the size of
    `value`. stream, position: the token that asks for it, for the message. Yields requests. Raises `StreamFault` if the
    tensor has no such tile."""
    place(context, tensor, index, value.shape, stream, position)
    yield Keep(2 * value.bytes)
    yield _transfer(tensor, index, value.shape, read=False)
    context.memory.write(tensor, index, value)


@dataclass(frozen=True)
class RandomOffChipLoad(Operator):
    """Read the tile at each address; an address is the number of a tile of `tensor`, row-major. tile: rows and columns
    of a tile. The shape stays."""

    tensor: Tensor
    tile: tuple[int, int]

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 1)
        self.tensor.tiled(self.tile)
        check_address(inputs[0])
        made = StreamType(inputs[0].shape, tile(*self.tile, self.tensor.dtype))
        check_ragged_traffic(made, limits)
        return (made,)

    def kernel(self, context: KernelContext) -> Kernel:
        reader = context.reader(0)
        yield Keep(2 * context.memory.read(self.tensor, 0, self.tile).bytes)
        while not isinstance(token := reader((yield TakeToken(0))), Done):
            if isinstance(token, Stop):
                yield DeliverToken((0,), token)
                continue
            assert isinstance(token, Tile)
            address = reader.apply(_address, token)
            index = place(context, self.tensor, address, self.tile, reader.label, reader.groups.position)
            yield _transfer(self.tensor, index, self.tile, read=True)
            yield DeliverToken((0,), context.memory.read(self.tensor, index, self.tile))
        yield DeliverToken((0,), DONE)

    def traffic(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression:
        return outputs[0].count() * bytes_of(outputs[0].data)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return rules.tiles_off_chip * bytes_of(outputs[0].data)


def _address(token: Tile) -> int:
    return token.scalar


def check_address(stream: StreamType) -> None:
    """Raise `InputRefused` unless a stream carries addresses: [1,1] tiles of integers."""
    if not is_address(stream.data):
        raise InputRefused("an address is a [1,1] tile of integers")


@dataclass(frozen=True)
class RandomOffChipStore(Operator):
    """Write each tile to its address, the number of a tile of `tensor`, row-major; put a flag for each written tile.

    Inputs: addresses, and tiles, of equal shape. Output: flags of this shape. The paper's table gives the inputs rank b
    and the output rank a, which cannot be; here both have one rank."""

    tensor: Tensor

    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        take(inputs, 2)
        check_address(inputs[0])
        check_whole(self.tensor, static_tile(inputs[1], "tile"))
        check_same(inputs[0].shape, inputs[1].shape, "addresses and data: ")
        check_ragged_traffic(inputs[1], limits)
        return (StreamType(inputs[0].shape, FLAG),)

    def kernel(self, context: KernelContext) -> Kernel:
        readers = [context.reader(port) for port in range(2)]
        while True:
            where, value = yield from take_together(readers, "{}, and the addresses have {}")
            if isinstance(where, Tile) and isinstance(value, Tile):
                position = readers[0].groups.position
                address = readers[0].apply(_address, where)
                yield from write(context, self.tensor, address, value, readers[0].label, position)
                yield DeliverToken((0,), Tile.of(True, "boolean"))
                continue
            yield DeliverToken((0,), where)
            if isinstance(where, Done):
                return

    def traffic(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression:
        return inputs[1].count() * bytes_of(inputs[1].data)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        return rules.tiles_off_chip * rules.size(inputs[1].data)
