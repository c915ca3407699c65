"""What a process forked from this one forgets: threads, locks and devices stay with the process that has them.

A fork copies one thread. Locks that another thread held stay locked in the child for ever, and a connection or device
that both used would answer either of them. So the copies are given up in the child, before any of its code runs.
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
    def forget(self) -> None:
        """Give the copy up, in the child. It must take no lock, wait for nothing, and change nothing that the parent
        uses."""


_known: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def forget_in_children(thing: Forgetful) -> None:
    """Call `thing.forget()` in each process that is forked from this one while the thing lives."""
    _known.add(thing)


def keep_for_ever(thing: object) -> None:
    """Never destroy an object, not even when the interpreter ends: destroying a driver's handle in a child would free
    what the parent uses."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def fail(future: Future[Any], error: Exception) -> None:
    """Answer a copied future, in the child. Its lock may have been held at the fork, and its callbacks belong to the
    parent, whose clients they may answer: neither is touched, so that `set_exception` will not do."""
    future._condition = threading.Condition()
    if not future.done():
        future._exception, future._state = error, FINISHED


def _forget() -> None:
    for thing in list(_known):
        thing.forget()


os.register_at_fork(after_in_child=_forget)
