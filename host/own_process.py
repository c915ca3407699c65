"""Calls in a process of their own: what they take of memory is free again when they return."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait
from typing import ParamSpec

from ..base import errors
from ..base.errors import BoardError, RsnError
from ..base.other_libraries import silence_other_libraries

P = ParamSpec("P")


def call_apart(act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a function in a fresh process, and wait for its end. The process ends with this one.

    act: a function of a module; its arguments can be pickled. An `RsnError` that it raises is raised here with the same
    message, but as a class of `base.errors`: the error's own class, or the next one above it, because others may not be
    pickled. Raises `BoardError` if the process ends before the call does.
    """
    # A fresh interpreter: PyTorch's threads do not survive a fork.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare) as pool:
        try:
            error = pool.submit(_called, partial(act, *args, **kwargs)).result()
        except BrokenProcessPool:
            raise BoardError(f"the process of {act.__name__} has ended, as it does where memory is short") from None
    if error is not None:
        raise error


def _prepare() -> None:
    silence_other_libraries()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _called(act: Callable[[], None]) -> RsnError | None:
    try:
        act()
    except RsnError as e:
        kinds = [kind for kind in type(e).__mro__ if kind.__module__ == errors.__name__]
        # Others hold what cannot be pickled, or take more than a message.
        plain: type[RsnError] = next(kind for kind in kinds if "__init__" not in vars(kind))
        return plain(str(e))
    return None
