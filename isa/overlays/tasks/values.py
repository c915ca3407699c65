"""Values of a task run: numbers, Booleans, tuples, and tiles (numpy arrays). How they become an element type.

Integers are exact and wrap when they become an integer type: two's complement of its width. A float that becomes one
loses its fraction and then wraps, too, where PyTorch leaves the result open; NaN and infinities are refused. Floats are
computed in float32, `f64` in float64. `f16` and `bf16` are kept in float32; a value becomes one that they can hold when
it is converted, from float64 by way of float32, as in PyTorch. `i4` and `u4` are kept in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ....base.element_types import NARROW, SCALARS, ElementType
from ....base.errors import ProgramError
from ....base.nibbles import low_bits

DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(facts.kept) for name, facts in SCALARS.items()}
"""How a run keeps the values of each element type."""

WORDS = {name: 2 if dtype.itemsize == 8 else 1 for name, dtype in DTYPES.items()}
"""32-bit words of an off-chip memory that one element takes."""


class Symbolic:
    """A tile without numbers, which keeps from what it was computed, by which kernel. A run of a program on such tiles
    shows which expression of its inputs the program computes. Subclasses say what is kept."""

    __slots__ = ()

    def kernel(self, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the result of a kernel that has this tile among its arguments. name: of the kernel. named: arguments
        by name. A subclass defines it; this class raises `NotImplementedError`."""
        raise NotImplementedError


class Unknown:
    """The value, in a run without data, of everything that depends on data. A result that is computed with an unknown
    value is unknown. Its use as a condition or an index raises `ByData`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise ByData

    def __index__(self) -> int:
        raise ByData


UNKNOWN = Unknown()


class ByData(Exception):
    """A run without data needs the value of something that depends on data, as a condition or an index."""


def is_absent(value: Any) -> bool:
    """Whether a value is a tensor of which a run has no data."""
    return getattr(value, "absent", False) is True


def convert(value: Any, kind: ElementType) -> Any:
    """Return a value as an element type; an unknown or `Symbolic` value stays what it is. kind: with the shape of a
    tile, () for a number.

    Raises `ProgramError` for another shape, and for NaN and infinities that become integers.
    """
    if value is UNKNOWN or isinstance(value, Symbolic):
        return value
    if is_absent(value):
        return UNKNOWN
    dtype = DTYPES[kind.dtype]
    if kind.shape:
        tile = np.asarray(value)
        if tile.shape != kind.shape:
            raise ProgramError(f"a tile of shape {tile.shape} where {kind.shape} is expected")
        return _cast(tile, kind.dtype, dtype)
    if isinstance(value, np.ndarray) and value.shape:
        raise ProgramError(f"a tile of shape {value.shape} where a number is expected")
    if kind.dtype == "boolean":
        return bool(value)
    if dtype.kind in "iu":
        bits = SCALARS[kind.dtype].bits
        try:
            whole = int(value) & (1 << bits) - 1
        except (ValueError, OverflowError) as e:  # NaN, an infinity
            raise ProgramError(str(e)) from None
        return whole - (1 << bits) if dtype.kind == "i" and whole >> bits - 1 else whole
    return scalar(_cast(np.asarray(value), kind.dtype, dtype))


def _cast(tile: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if name == "bf16":
        return rounded_to_bf16(tile.astype(np.float32))
    if name == "f16":
        with np.errstate(over="ignore"):
            return tile.astype(np.float32).astype(np.float16).astype(np.float32)
    if dtype.kind in "iu" and tile.dtype.kind == "f":
        tile = _whole(tile)
    made = tile.astype(dtype)
    return made if name not in NARROW else low_bits(made, SCALARS[name].bits)


def _whole(tile: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The low 64 bits of floats without their fractions. Raises `ProgramError` for NaN and infinities."""
    if not np.isfinite(tile).all():
        raise ProgramError("a float that is no number becomes an integer")
    rest = np.fmod(np.trunc(tile.astype(np.float64)), 2.0**64)  # exact, as the difference is
    return np.where(rest >= 2.0**63, rest - 2.0**64, np.where(rest < -(2.0**63), rest + 2.0**64, rest)).astype(np.int64)


def rounded_to_bf16(tile: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Round the float32 values of a tile to the nearest bfloat16, ties to even; the result is float32 of the same
    shape. NaN stays NaN."""
    bits = np.array(tile, np.float32, order="C").view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(tile), np.float32(np.nan), even.view(np.float32))


def scalar(value: Any) -> Any:
    """Return an array without axes as a number: integers as Python's own, which are exact. Any other value stays as it
    is.
    """
    if isinstance(value, np.ndarray) and not value.shape:
        value = value[()]
    return value.item() if isinstance(value, np.integer | np.bool_) else value


def words_of(tile: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    """Return the elements of a tile as 32-bit words of off-chip memory, a vector of float32 that holds their bits.
    name: of the element type; raises `KeyError` for an unknown one. Elements of less than 32 bits are widened to 32;
    those of 64 bits take two words."""
    dtype = DTYPES[name]
    flat = np.ascontiguousarray(tile, dtype).reshape(-1)
    wide = {"b": np.int32, "i": np.int64 if dtype.itemsize == 8 else np.int32, "u": np.uint32}.get(dtype.kind)
    if dtype.itemsize == 8:
        return flat.view(np.float32)
    if dtype.itemsize < 4:
        flat = flat.astype(np.float32 if wide is None else wide)
    return flat.view(np.float32)


def from_words(words: npt.NDArray[np.float32], name: str) -> npt.NDArray[Any]:
    """Return the elements that words of an off-chip memory hold, as a vector: the inverse of `words_of`. name: of the
    element type; raises `KeyError` for an unknown one, `ValueError` for an odd number of words of a type of 64 bits."""
    dtype = DTYPES[name]
    if dtype.itemsize >= 4:
        return words.view(dtype)
    if dtype.kind == "f":
        return words.astype(dtype)
    return words.view(np.uint32 if dtype.kind == "u" else np.int32).astype(dtype)
