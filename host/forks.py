"""What a forked child must not use: its copies of the parent's threads, locks and devices.

A fork copies one thread. A lock that another thread held stays locked in the child for ever, and an answer on a shared
connection or device could reach either process. So `os.fork` in the child first calls `forget` on each object that
registered with `forget_in_children`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from concurrent.futures import Future
from concurrent.futures._base import FINISHED
from typing import Any, Protocol


class Forgetful(Protocol):
    """An object that a forked child must disconnect from what the parent uses."""

    def forget(self) -> None:
        """Drop the child's copies of threads, locks and devices. Must not acquire a lock, wait, or change what the
        parent uses."""


_known: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_in_children(thing: Forgetful) -> None:
    """Register an object: `thing.forget()` is called in each process forked from this one while the object is alive."""
    _known.add(thing)


def keep_for_ever(thing: object) -> None:
    """Prevent an object from ever being destroyed, even at the interpreter's end. A child that destroyed a driver's
    handle would free what the parent uses."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def fail(future: Future[Any], error: Exception) -> None:
    """Set an error on a future that was copied by a fork, in the child.

    Not by `set_exception`: the future's lock may have been held at the fork, and its callbacks belong to the parent,
    whose clients they may answer. Neither is touched.
    """
    future._condition = threading.Condition()
    if not future.done():
        future._exception, future._state = error, FINISHED


def _forget() -> None:
    for thing in list(_known):
        thing.forget()


os.register_at_fork(after_in_child=_forget)
