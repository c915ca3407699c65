"""The activation functions of Post of xnn8, as tables."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, pi, sqrt, tanh

import numpy as np

from .numbers import Table

ENTRIES = 256


def _table(function: Callable[[float], float], steps: int, fraction: int) -> Table:
    """The table of a function. The last entry is 0, so that far numbers are right however far they are."""
    points = [i / (1 << steps) for i in range(ENTRIES - 1)]
    entries = [round((x - function(x)) * (1 << fraction)) for x in points]
    return Table(np.array([*entries, 0], np.int64), steps, fraction)


TABLES: dict[str, Table | None] = {
    "gelu_erf": _table(lambda x: x * (1 + erf(x / sqrt(2))) / 2, 6, 17),
    "gelu_tanh": _table(lambda x: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2, 6, 17),
    "relu": None,
    "silu": _table(lambda x: x / (1 + exp(-x)), 5, 16),
}
"""By the name of the function. None: max(x, 0). GELU in steps of 1/64 up to 4: within 0.004. SiLU in steps of 1/32 up
to 8: within 0.008."""
