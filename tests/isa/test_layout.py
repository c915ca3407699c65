"""The blocked layout against the formula of contract section 3."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.isa.layout import block, unblock


def offset(r: int, c: int, cols: int) -> int:
    """Element (r, c) of a matrix `cols` wide: contract section 3."""
    index = (r // 128) * (cols // 64) + c // 64
    r, c = r % 128, c % 64
    return 8192 * index + 2048 * (r // 32) + 1024 * (r % 2) + 64 * ((r % 32) // 2) + c


@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_every_element_lies_where_the_contract_says(rows: int, cols: int, data: st.DataObject) -> None:
    matrix = np.arange(rows * 128 * cols * 64, dtype=np.float32).reshape(rows * 128, cols * 64)
    flat = block(matrix)
    r, c = data.draw(st.integers(0, rows * 128 - 1)), data.draw(st.integers(0, cols * 64 - 1))
    assert flat[offset(r, c, cols * 64)] == matrix[r, c]
    assert (unblock(flat, *matrix.shape) == matrix).all()


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="100x64 is not a whole number of 128x64 blocks"):
        block(np.zeros((100, 64), np.float32))
