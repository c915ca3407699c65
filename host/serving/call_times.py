"""How long calls take, so that short ones are made where they are asked for, and long ones in another thread; and how
threads hand calls to an event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE_S = 0.001
"""Seconds of a call that is made in the event loop if such calls have been as short. To hand one to a thread and back
takes 0.1 ms of CPU beside a run on the simulator."""
LATEST = 0.1
"""The weight of the latest call in the mean of all."""
MEASURED = 8
"""One call in this many is measured while calls are short, because to read the clock of a thread is a system call."""


class CallTimes:
    """The CPU times of calls so far, by function and size. Any thread may call it.

    limit_s: the most seconds of a short call. Sizes with equally many binary digits count as one size; the time of a
    size is a moving mean of its calls.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seconds: dict[tuple[Hashable, int], float] = {}
        self._calls = 0
        self._doubted: set[tuple[Hashable, int]] = set()
        """What may have become slow: the last call took long by the wall clock."""

    def are_short(self, what: Hashable, size: int | None) -> bool:
        """Return whether calls of this function and size have been short. False before the first one, and for a size
        that is not known, None."""
        return size is not None and self._seconds.get((what, size.bit_length()), math.inf) <= self._limit_s

    def timed(self, what: Hashable, size: int | None, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Make a call, and remember the CPU time that it took. Waiting does not count, because in another thread other
        threads hold the interpreter meanwhile. Where calls have been short, only some are measured. what, size: as for
        `are_short`. Returns and raises what `call` does."""
        if size is None:
            return call(*args, **kwargs)
        key = what, size.bit_length()
        self._calls += 1  # threads may lose a count, which changes nothing but which call is measured
        if self._calls % MEASURED and key not in self._doubted and self.are_short(what, size):
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                if time.perf_counter() - began > self._limit_s:
                    self._doubted.add(key)
        began = time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            took = time.thread_time() - began
            self._doubted.discard(key)
            before = self._seconds.get(key, took)
            self._seconds[key] = before + LATEST * (took - before)


class LoopCalls:
    """Calls that other threads hand to an event loop: all that come before the loop makes the first wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._is_woken = False

    def add(self, call: Callable[[], object]) -> None:
        """Let the loop make a call, behind those that were added before. Any thread may add one. Raises `RuntimeError`
        if the loop has ended, and does not take the call."""
        with self._lock:
            if not self._is_woken:
                self.loop.call_soon_threadsafe(self._make)
                self._is_woken = True
            self._calls.append(call)

    def _make(self) -> None:
        with self._lock:
            calls, self._calls, self._is_woken = self._calls, deque(), False
        for call in calls:
            self.loop.call_soon(call)


def elements(value: Any) -> int | None:
    """Return the number of elements of an array, or of the arrays in a mapping, list or tuple; None if something else
    is in it."""
    members: Any = [value]
    if isinstance(value, Mapping):
        members = value.values()
    elif isinstance(value, list | tuple):
        members = value
    return sum(math.prod(x.shape) for x in members) if all(hasattr(x, "shape") for x in members) else None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
