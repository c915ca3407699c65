"""Operators of task trees on numbers, tuples and tiles."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

LARGEST_SHIFT = 64
"""Limit of the places by which a number is shifted, and of an integer exponent."""


def _shift(a: Any, b: Any) -> Any:
    return _bounded(operator.lshift, a, b)


def _power(a: Any, b: Any) -> Any:
    return _bounded(operator.pow, a, b) if isinstance(a, int) and isinstance(b, int) else a**b


def _bounded(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if isinstance(b, int) and b > LARGEST_SHIFT:
        raise ValueError(f"{b} is larger than {LARGEST_SHIFT}")
    return function(a, b)


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
    "<<": _shift,
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
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "not": operator.not_,
}
