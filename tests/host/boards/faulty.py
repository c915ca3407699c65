"""A device that fails when it is told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from rsn.host.boards.in_process import InProcess

Fault = Callable[[Callable[[], Any]], Any]
"""Instead of a call: may make it, and what it does is what the caller sees."""

CALLS = (
    "open",
    "allocate",
    "write",
    "reset_graph",
    "update_parameter",
    "run_graph",
    "start",
    "wait",
    "wait_graph",
    "register",
    "read",
)
"""Of a device, in the order in which a runner first makes them, but for those that only give back."""


def raising(error: BaseException) -> Fault:
    def fault(call: Callable[[], Any]) -> Any:
        raise error

    return fault


class Clock:
    """Stands still but for `sleep`, so that no limit depends on how busy this computer is."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        self._seconds += seconds


class Faulty:
    """Behaves like `inner`, but for the calls in `faults`: by name and, counted from 1, which one."""

    def __init__(self, inner: InProcess | None = None) -> None:
        self.clock = Clock()
        self.inner = inner or InProcess(sleep=self.clock.sleep)
        self.faults: dict[tuple[str, int], Fault] = {}
        self.made: Counter[str] = Counter()
        self.written = 0
        """Bytes."""

    def next(self, name: str, fault: Fault, number: int = 1) -> None:
        """Let the `number`th call from now fail."""
        self.faults[name, self.made[name] + number] = fault

    def reboot(self) -> None:
        """Put a device in its place that knows nothing of the past."""
        self.inner = InProcess(sleep=self.clock.sleep)

    @property
    def open_now(self) -> bool:
        return self.inner._profile is not None or bool(self.inner._buffers)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.inner, name)
        if not callable(real):
            return real

        def call(*arguments: Any) -> Any:
            self.made[name] += 1
            if name == "write":
                self.written += arguments[2].nbytes
            fault = self.faults.get((name, self.made[name]))
            return real(*arguments) if fault is None else fault(lambda: real(*arguments))

        return call
