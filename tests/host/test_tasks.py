"""Inputs of task machines: values that their element types do not have."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.base.element_types import ElementType
from rsn.base.errors import TensorError
from rsn.host.tasks import checked


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["i4", "u8", "i32", "i64"])
def test_what_is_no_number_is_no_integer(dtype: str, number: float) -> None:
    message = rf"^x: a float that is no number becomes an integer; the program declares {dtype}\[2\]$"
    with pytest.raises(TensorError, match=message):
        checked("x", np.array([1, number]), ElementType(dtype, (2,)))
