"""Types of the elements of streams and tensors: every fact about an element type stands in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """The type of a value: dtype, such as `i8` or `f32`, and shape, empty for a scalar. In a stream program that is
    being read, the dtypes "int" and "float" are Python's own numbers, which any numeric stream, or any stream of
    floats, accepts."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.dtype + (f"[{', '.join(map(str, self.shape))}]" if self.shape else "")


@dataclass(frozen=True)
class ScalarFacts:
    """What is known of an element type.

    bits: of an element in a FIFO or off the chip. kept: the NumPy type of its values in a run. narrow: that type is
    wider, because NumPy has none of this width; a value that is converted to the element type is then rounded (floats)
    or wrapped (integers) to the narrow one. cpp: its type in C++. integer: it is a type of integers, which wrap, or
    Boolean. numpy: the name of NumPy's type in the programs of users, "" if NumPy has none.
    """

    bits: int
    kept: str
    cpp: str
    integer: bool
    numpy: str = ""
    narrow: bool = False

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest value of an integer type, or of a Boolean. They mean nothing for floats."""
        if self.kept.startswith("int"):
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return 0, (1 << self.bits) - 1


def _whole(name: str, bits: int) -> ScalarFacts:
    return ScalarFacts(bits, f"{name}{bits}", f"std::{name}{bits}_t", True, f"{name}{bits}")


SCALARS = {
    "boolean": ScalarFacts(1, "bool", "bool", True, "bool_"),
    "i4": ScalarFacts(4, "int8", "rsn::i4", True, narrow=True),
    **{f"i{bits}": _whole("int", bits) for bits in (8, 16, 32, 64)},
    "u4": ScalarFacts(4, "uint8", "rsn::u4", True, narrow=True),
    **{f"u{bits}": _whole("uint", bits) for bits in (8, 16, 32, 64)},
    "f16": ScalarFacts(16, "float32", "rsn::f16", False, "float16", narrow=True),
    "bf16": ScalarFacts(16, "float32", "rsn::bf16", False, narrow=True),
    "f32": ScalarFacts(32, "float32", "float", False, "float32"),
    "f64": ScalarFacts(64, "float64", "double", False, "float64"),
}
"""The element types by name."""

BITS = {name: facts.bits for name, facts in SCALARS.items()}
"""Bits of an element of each type."""

CPP_BITS = {**BITS, "boolean": 8}
"""Bits that an element of each type takes in words of C++, on streams and off the chip: a Boolean takes a byte."""

FLOATS = tuple(name for name, facts in SCALARS.items() if not facts.integer)
"""The types of numbers with a fraction."""

NARROW = tuple(name for name, facts in SCALARS.items() if facts.narrow)
"""The types that a run keeps in a wider one."""

BY_NUMPY = {facts.numpy.rstrip("_"): name for name, facts in SCALARS.items() if facts.numpy}
"""The element type of each type of numpy, by the name of its `dtype`."""

KEPT = {name: BY_NUMPY[facts.kept] for name, facts in SCALARS.items()}
"""The element type in which a run keeps each type: itself, or a wider one."""


def whole_bytes(elements: int, dtype: str) -> int:
    """Return the bytes that `elements` elements take together, rounded up. dtype: a key of `SCALARS`; raises `KeyError`
    for another."""
    return -(-elements * BITS[dtype] // 8)
