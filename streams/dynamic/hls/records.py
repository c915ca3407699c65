"""Tokens of a stream as words of 32 bits in a memory, as `step_memory.h` reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ....base.element_types import BITS, FLOATS, SCALARS, ElementType
from ....isa.overlays.tasks.values import convert
from ..errors import TokenError
from ..shapes import BufferType, DataType, SelectorType, TileType, TupleType
from ..tokens import DONE, BufferReference, Done, Selector, Stop, Tile, Token

LAST = 0xFFFFFFFF
"""D."""

Words = npt.NDArray[np.uint32]


def to_records(tokens: Sequence[Token], data: DataType) -> Words:
    """Return the words of a stream: a one-dimensional array of 32-bit words. data: the type of its elements. Raises
    `ValueError` for tiles without data, and for integers that their type does not have.
    """
    found: list[int] = []
    for token in tokens:
        if isinstance(token, Stop):
            found.append(token.level)
        elif isinstance(token, Done):
            found.append(LAST)
        else:
            found.append(0)
            _write(token, data, found)
    return np.array(found, np.uint32)


def _write(element: Any, data: DataType, found: list[int]) -> None:
    match data:
        case TileType(dtype=dtype):
            if element.data is None:
                raise ValueError(f"a tile of {element.rows}x{element.columns} without data")
            filled = -1 if element.filled is None else element.filled
            found += (element.rows, element.columns, filled & LAST)
            found += element_words(element.data, dtype)
        case SelectorType(choices):
            bits = sum(1 << one for one in element.chosen)
            found += (bits >> 32 * k & LAST for k in range(-(-choices // 32)))
        case BufferType(element=inner):
            found += reversed(element.shape)
            for one in element.elements:
                _write(one, inner, found)
        case TupleType(parts):
            for part, one in zip(parts, element, strict=True):
                _write(one, part, found)


def element_words(values: npt.NDArray[Any], dtype: str) -> list[int]:
    """Return values as words of 32 bits, row-major; an element of 64 bits becomes two words, the low one first. values:
    of any shape; they are converted to the element type `dtype`. Raises `ValueError` for an integer that the type does
    not have."""
    facts, flat = SCALARS[dtype], values.reshape(-1)
    if facts.integer:
        low, high = facts.limits
        whole = [int(one) for one in flat]
        if any(not low <= one <= high for one in whole):
            raise ValueError(f"an integer that {dtype} does not have")
    else:
        bits = np.dtype("u8" if facts.bits == 64 else "u4")
        kept = convert(flat, ElementType(dtype, flat.shape))
        if dtype == "f16":
            whole = [int(one) for one in kept.astype(np.float16).view(np.uint16)]
        else:
            whole = [int(one) >> (16 if dtype == "bf16" else 0) for one in kept.view(bits)]
    if facts.bits == 64:
        return [part for one in whole for part in (one & LAST, one >> 32 & LAST)]
    return [one & LAST for one in whole]


def from_records(words: Words, data: DataType) -> list[Token]:
    """Return the tokens of a stream, up to its end D, from its words of 32 bits. words: one-dimensional; what lies
    behind D is not read. data: the type of the elements. Tiles have floats in the type in which runs of tasks keep
    them, and integers of 64 bits. Raises `TokenError` if the words end before D."""
    left = iter(int(one) for one in words)
    tokens: list[Token] = []
    try:
        while (kind := next(left)) != LAST:
            tokens.append(Stop(kind) if kind else _read(data, left))
    except (StopIteration, RuntimeError):  # a generator turns the first into the second
        raise TokenError("the words of the stream end before D", len(tokens)) from None
    return [*tokens, DONE]


def _read(data: DataType, left: Iterator[int]) -> Any:
    match data:
        case TileType(dtype=dtype):
            rows, columns, filled = next(left), next(left), next(left)
            values = _values(left, rows * columns, dtype).reshape(rows, columns)
            return Tile(rows, columns, dtype, values, None if filled == LAST else filled)
        case SelectorType(choices):
            bits = sum(next(left) << 32 * k for k in range(-(-choices // 32)))
            return Selector(tuple(one for one in range(choices) if bits >> one & 1))
        case BufferType(element=inner, shape=dimensions):
            shape = tuple(reversed([next(left) for _ in dimensions]))
            return BufferReference(shape, tuple(_read(inner, left) for _ in range(prod(shape))))
        case TupleType(parts):
            return tuple(_read(part, left) for part in parts)
    raise AssertionError(data)


def _values(left: Iterator[int], count: int, dtype: str) -> npt.NDArray[Any]:
    wide = BITS[dtype] == 64
    whole = [next(left) | (next(left) << 32 if wide else 0) for _ in range(count)]
    bits: npt.NDArray[Any] = np.array(whole, np.uint64 if wide else np.uint32)
    if dtype in FLOATS:
        if dtype == "f16":
            return bits.astype(np.uint16).view(np.float16).astype(np.float32)
        return (bits << np.uint32(16) if dtype == "bf16" else bits).view(np.float64 if wide else np.float32)
    if dtype == "boolean":
        return bits.astype(bool)
    return bits.astype(np.dtype(SCALARS[dtype].kept)).astype(np.uint64 if dtype == "u64" else np.int64)
