"""The operators of expressions by their symbols, as Python computes them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any


def _is_in(a: Any, b: Any) -> bool:
    """Python's `in`, but NaN is in nothing; there it is in what holds the same object."""
    return bool(a == a and a in b)


BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": _is_in,
    "not in": lambda a, b: not _is_in(a, b),
}
UNARY: Mapping[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "not": operator.not_,
}
EXACT = ("+", "-", "*", "/", "//", "%", "**", "<<", ">>")
"""Arithmetic and shifts."""

BITWISE = ("&", "|", "^")
