"""How elements of 4 bits lie in bytes, against the sentence that defines it, and against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.element_types import SCALARS
from rsn.base.nibbles import from_nibbles, low_bits, to_nibbles

TYPES = {"i4": ml_dtypes.int4, "u4": ml_dtypes.uint4}


@given(st.sampled_from(sorted(TYPES)), st.lists(st.integers(0, 15), max_size=40))
def test_the_first_of_two_lies_in_the_low_half(name: str, bits: list[int]) -> None:
    low, _ = SCALARS[name].limits
    values = np.array([b if b < 16 + low or low == 0 else b - 16 for b in bits], SCALARS[name].kept)
    packed = to_nibbles(values)
    plain = [0] * -(-len(bits) // 2)
    for k, b in enumerate(bits):
        plain[k // 2] += b * 16 ** (k % 2)
    assert packed.tolist() == plain
    back = from_nibbles(packed, name, len(bits))
    assert back.dtype == values.dtype
    assert back.tolist() == values.tolist()
    theirs = packed[: len(bits) // 2]
    both = np.stack((theirs & 15, theirs >> 4), axis=-1).reshape(-1)
    assert both.view(TYPES[name]).astype(int).tolist() == values.tolist()[: 2 * len(theirs)]


def test_rows_are_not_padded() -> None:
    values = np.array([[1, -2, 3], [-8, 7, 0], [4, 5, -1]], np.int8)
    assert to_nibbles(values).tolist() == [0xE1, 0x83, 0x07, 0x54, 0x0F]
    assert from_nibbles(to_nibbles(values), "i4", 9).reshape(3, 3).tolist() == values.tolist()
    with pytest.raises(ValueError, match="5 bytes for 8 elements"):
        from_nibbles(to_nibbles(values), "i4", 8)


@pytest.mark.parametrize("kept", [np.int8, np.uint8, np.int32])
def test_low_bits(kept: type) -> None:
    values = np.arange(-128, 128).astype(kept)
    expected = [(int(x) + 8) % 16 - 8 if kept != np.uint8 else int(x) % 16 for x in values]
    assert low_bits(values, 4).tolist() == expected
