"""How elements of 4 bits lie in bytes.

Two to a byte, the first one in its low half: element k of an array, counted row by row over all its axes, has the bits
4 (k mod 2) to 4 (k mod 2) + 3 of byte k // 2. Rows are not padded; the high half behind an odd number of elements is 0.
Signed elements are two's complement. ONNX and ml_dtypes have the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .element_types import SCALARS


def to_nibbles(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the low 4 bits of each of the integers, of any shape, as bytes: two to a byte, the first in the low half.
    The last high half behind an odd number of them is 0."""
    bits = np.asarray(values).reshape(-1).astype(np.uint8) & np.uint8(15)
    pairs = np.append(bits, np.zeros(bits.size % 2, np.uint8)).reshape(-1, 2)
    made: npt.NDArray[np.uint8] = pairs[:, 0] | pairs[:, 1] << np.uint8(4)
    return made


def from_nibbles(packed: npt.NDArray[np.uint8], dtype: str, count: int) -> npt.NDArray[Any]:
    """Return `count` elements that `to_nibbles` wrote, as a vector in the type in which a run keeps them. dtype: `i4`
    gives int8, `u4` uint8; raises `KeyError` for an unknown type, and `ValueError` for another number of bytes."""
    facts = SCALARS[dtype]
    if packed.size != -(-count // 2):
        raise ValueError(f"{packed.size} bytes for {count} elements of 4 bits")
    made = np.stack((packed, packed >> np.uint8(4)), axis=-1).reshape(-1)[:count].astype(facts.kept)
    return low_bits(made, facts.bits)


def low_bits(values: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Return the low bits of each integer, in an array of the same type and shape; if the type is signed, the highest
    of these bits is the sign. bits: 1 or more, at most those of the type."""
    places = 8 * values.dtype.itemsize - bits
    return values << places >> places
