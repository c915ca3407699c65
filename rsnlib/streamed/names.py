"""Names that kernels, tensors and streams of a program do not have: they mean something else in its text."""

from __future__ import annotations

import builtins
from keyword import kwlist
from string import ascii_lowercase

from ... import streams

VARIABLES = {
    *("above", "below", "buffer", "factor", "highest", "lowest", "offset", "own", "partner", "queries", "result"),
    *("row", "rows", "scales", "sums", "tile", "token", "total", "turned", "weight_offset", "weight_scales"),
}
"""Variables in the bodies of tasks, beside single letters, and t0, t1 ... for parts of long expressions."""

RESERVED = frozenset(
    {*dir(builtins), *kwlist, *streams.__all__, *VARIABLES, *ascii_lowercase, *(f"t{k}" for k in range(100))}
)
