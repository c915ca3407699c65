"""Convert slices of buffers, `x[0:+128, 64:+128]`, to the chunks of an mOP (addr, size, chunks, chunk_stride) and back.

A buffer is a grid of grains that lie one behind the other, row by row: 128x64 blocks in a blocked matrix, single
elements in a linear buffer, 64 columns of a sequence in one of integers. A slice is a rectangle of whole grains. A
slice that is contiguous in memory is one chunk; any other has one chunk per row of grains.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from ..isa.layout import BLOCK_COLS, BLOCK_ROWS, BY_ROW
from ..isa.program import Buffer, Layout

GRAIN = {Layout.BLOCKED: (BLOCK_ROWS, BLOCK_COLS), Layout.LINEAR: (1, 1)}
"""Rows and columns of a grain, but of buffers of integers (`grain_of`)."""


class Chunks(NamedTuple):
    """The chunks of an mOP. addr, stride: in address units. size: elements of one chunk. chunks: how many there are."""

    addr: int
    size: int
    chunks: int = 1
    stride: int = 0


class SliceError(ValueError):
    """Raised for a slice that its buffer does not have. dim: the dimension at fault; None if it is not one alone."""

    def __init__(self, message: str, dim: int | None = None) -> None:
        super().__init__(message)
        self.dim = dim


def grain_of(buffer: Buffer) -> tuple[tuple[int, ...], int]:
    """Return the size of a grain of a buffer in each of its dimensions, and how many float32 elements of memory a grain
    takes. A grain of a buffer of integers is 64 columns of all rows of a sequence, or all columns of these rows in a
    layout of integers that lie row by row."""
    if buffer.layout is Layout.INTEGERS:
        rows, _ = buffer.item_shape
        return (rows, BLOCK_COLS), rows * (BLOCK_COLS + 1) // 2
    if buffer.layout in BY_ROW:
        return buffer.item_shape, buffer.size * buffer.item_shape[0] // buffer.shape[0]
    steps = GRAIN[buffer.layout][-len(buffer.shape) :]
    return steps, prod(steps)


def whole_buffer(buffer: Buffer) -> Chunks:
    """Return a whole buffer, padding included, as one chunk."""
    return Chunks(buffer.offset, buffer.size)


def cut(buffer: Buffer, bounds: Sequence[tuple[int, int]], unit: int) -> Chunks:
    """Return the chunks of buffer[start:stop] or buffer[start:stop, start:stop]. bounds: (start, stop) of each
    dimension, in elements.

    unit: the overlay's address unit, in elements. Raises `SliceError` unless the slice consists of whole grains of the
    buffer and begins at a whole address unit.
    """
    shape = buffer.shape
    if len(bounds) != len(shape):
        raise SliceError(f"the slice has {len(bounds)} of the {len(shape)} dimensions of {buffer.name}")
    steps, each = grain_of(buffer)
    for i, ((start, stop), size, step) in enumerate(zip(bounds, shape, steps, strict=True)):
        if start >= stop:
            raise SliceError(f"{start}:{stop} is empty", i)
        if start < 0 or stop > size:
            raise SliceError(f"{start}:{stop} is not within 0:{size}", i)
        if start % step or stop % step:
            raise SliceError(f"{start}:{stop} cuts a block; blocks are {'x'.join(map(str, steps))}", i)
    left, right = (b // steps[-1] for b in bounds[-1])
    top, bottom = (b // steps[0] for b in bounds[0]) if len(shape) == 2 else (0, 1)
    across = shape[-1] // steps[-1]
    first, row = (top * across + left) * each, across * each
    contiguous = bottom - top == 1 or right - left == across
    if first % unit or (not contiguous and row % unit):
        raise SliceError(f"a chunk of the slice does not start at a multiple of the address unit, {unit} elements")
    size = (right - left) * each
    if contiguous:
        return Chunks(buffer.offset + first // unit, (bottom - top) * size)
    return Chunks(buffer.offset + first // unit, size, bottom - top, row // unit)


def bounds_of(buffer: Buffer, chunks: Chunks, unit: int) -> list[tuple[int, int]] | None:
    """Return the slice bounds, (start, stop) of each dimension in elements, for which `cut` gives these chunks; None if
    there are none. unit: as for `cut`.
    """
    shape, (steps, each) = buffer.shape, grain_of(buffer)
    if len(steps) != len(shape):
        return None
    across = shape[-1] // steps[-1]
    first, odd = divmod((chunks.addr - buffer.offset) * unit, each)
    width, rest = divmod(chunks.size, each)
    if odd or rest or not across:
        return None
    top, left = divmod(first, across)
    height = chunks.chunks
    if height == 1 and width > across and not width % across:
        height, width = width // across, across
    bounds = [(top * steps[0], (top + height) * steps[0])] if len(shape) == 2 else []
    bounds.append((left * steps[-1], (left + width) * steps[-1]))
    try:
        return bounds if cut(buffer, bounds, unit) == chunks else None
    except SliceError:
        return None
