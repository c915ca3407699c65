"""Values of a JSON document that somebody else may have written: each function returns its argument if it has the type
that the name says, and raises `ValueError` otherwise.

`int(x)` and the like convert instead: they make 0 of 0.9, and 1 of true. A value that is not checked when it is read
fails later, in code that relies on its type.
"""

from __future__ import annotations

import reprlib
from typing import Any

Json = Any
"""A JSON value."""


def _wrong(x: Json, kind: str) -> ValueError:
    return ValueError(f"{reprlib.repr(x)} is not {kind}")  # reprlib cuts long values


def as_int(x: Json) -> int:
    """Return the value if it is a whole number. Raises `ValueError` for any other, `true` and `1.0` included."""
    if isinstance(x, bool) or not isinstance(x, int):
        raise _wrong(x, "a whole number")
    return x


def as_bool(x: Json) -> bool:
    """Return the value if it is true or false. Raises `ValueError` for any other."""
    if not isinstance(x, bool):
        raise _wrong(x, "true or false")
    return x


def as_str(x: Json) -> str:
    """Return the value if it is a string. Raises `ValueError` for any other."""
    if not isinstance(x, str):
        raise _wrong(x, "a string")
    return x


def as_list(x: Json) -> list[Json]:
    """Return the value if it is a list. Raises `ValueError` for any other, a string included."""
    if not isinstance(x, list):
        raise _wrong(x, "a list")
    return x


def as_dict(x: Json) -> dict[str, Json]:
    """Return the value if it is an object. Raises `ValueError` for any other. Keys of a JSON object are always
    strings."""
    if not isinstance(x, dict):
        raise _wrong(x, "an object")
    return x


def as_ints(x: Json) -> tuple[int, ...]:
    """Return a list of whole numbers as a tuple. Raises `ValueError` for any other value."""
    return tuple(map(as_int, as_list(x)))


def as_index(x: Json, count: int) -> int:
    """Return the value if it is a whole number from 0 to `count` - 1. Raises `ValueError` for any other."""
    if not 0 <= as_int(x) < count:
        raise _wrong(x, f"a number from 0 to {count - 1}")
    return int(x)
