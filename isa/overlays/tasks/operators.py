"""Operators of task trees on numbers, tuples and tiles.

Integers are exact: tiles of them are computed in 64 bits, whatever their elements have, and wrap when they are
converted to an element type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ....base import operators

LARGEST_SHIFT = 64
"""Limit of the places by which a number is shifted, and of an integer exponent."""


def wide(x: Any) -> Any:
    """Return x in 64 bits if it is a tile of integers or Booleans with fewer, else as it is."""
    if isinstance(x, np.ndarray) and x.dtype.kind in "biu" and x.dtype.itemsize < 8:
        return x.astype(np.int64)
    return x


def exact(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a function that computes the same as `function`, but exactly where operands are tiles of integers: it
    widens these to 64 bits first. If one tile is signed and one unsigned, both become signed.
    """

    def compute(a: Any, b: Any) -> Any:
        tiles = isinstance(a, np.ndarray), isinstance(b, np.ndarray)
        if not any(tiles):
            return function(a, b)
        a, b = wide(a), wide(b)
        if all(tiles) and {a.dtype, b.dtype} == {np.dtype(np.int64), np.dtype(np.uint64)}:
            a, b = a.astype(np.int64), b.astype(np.int64)  # NumPy would go on in floats
        return function(a, b)

    return compute


def _of_integers(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The function as `exact` makes it, but two Booleans give a Boolean."""
    wider = exact(function)

    def compute(a: Any, b: Any) -> Any:
        both = all(isinstance(x, bool | np.bool_) or getattr(x, "dtype", None) == np.bool_ for x in (a, b))
        return function(a, b) if both else wider(a, b)

    return compute


def _shift(a: Any, b: Any) -> Any:
    return _bounded(operator.lshift, a, b)


def _power(a: Any, b: Any) -> Any:
    return _bounded(operator.pow, a, b) if isinstance(a, int) and isinstance(b, int) else a**b


def _bounded(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if isinstance(b, int) and b > LARGEST_SHIFT:
        raise ValueError(f"{b} is larger than {LARGEST_SHIFT}")
    return function(a, b)


_BOUNDED = {"**": _power, "<<": _shift}

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **operators.BINARY,
    **{symbol: exact(_BOUNDED.get(symbol, operators.BINARY[symbol])) for symbol in operators.EXACT},
    **{symbol: _of_integers(operators.BINARY[symbol]) for symbol in operators.BITWISE},
}
UNARY: dict[str, Callable[[Any], Any]] = {**operators.UNARY, "-": lambda x: -wide(x), "+": lambda x: +wide(x)}
