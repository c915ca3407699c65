"""Loops over arrays, compiled by numba where it is installed (the extra `fast`)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def available() -> bool:
    """Whether there is a compiled engine, as far as can be said without loading it."""
    return importlib.util.find_spec("numba") is not None


@cache
def loads() -> bool:
    try:
        importlib.import_module("numba")
    except ImportError:  # it refuses a numpy that is newer than itself
        return False
    return True


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled, kept on disk from one process to the next where there is a place for it."""
    numba = importlib.import_module("numba")
    try:
        return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(function, nogil=True)  # type: ignore[no-any-return]


def engine() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes `run_traces` fast, as far as this installation goes; without numba it runs as it stands, slowly."""
    return compiled if available() and loads() else lambda function: function


def machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, a loop over arrays, compiled where numba is loaded already: loading it takes longer than most such
    loops."""
    return compiled(function) if "numba" in sys.modules and loads() else function
