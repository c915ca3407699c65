"""Compiles loops over arrays with numba, if it is installed (the extra `fast`)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def available() -> bool:
    """Whether numba is installed. Does not load it, so it may still fail to load (`loads`)."""
    return importlib.util.find_spec("numba") is not None


@cache
def loads() -> bool:
    """Whether numba can be loaded; loads it."""
    try:
        importlib.import_module("numba")
    except ImportError:  # numba refuses to load with a numpy that it does not know yet
        return False
    return True


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled by numba. The machine code is cached on disk if a cache folder can be written.

    Raises `ImportError` if numba cannot be loaded.
    """
    numba = importlib.import_module("numba")
    try:
        return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(function, nogil=True)  # type: ignore[no-any-return]


def engine() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the argument `compiled` of `run_traces`: `compiled`, or the identity function without numba."""
    return compiled if available() and loads() else lambda function: function


def machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled if numba is loaded already, else `function` itself, because to load numba takes long.

    What is returned computes the same either way.
    """
    return compiled(function) if "numba" in sys.modules and loads() else function
