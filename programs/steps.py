"""Steps of a program that takes a while, on stdout: what each does, about how long, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Steps:
    """total: how many steps there are."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._begun = total, 0, 0.0

    def begin(self, what: str, about_s: float) -> None:
        """Say what happens next, and about how many seconds it takes."""
        self._number += 1
        self._begun = time.perf_counter()
        print(f"Step {self._number} of {self._total}: {what} (about {about_s:.0f} s) ... ", end="", flush=True)

    def end(self) -> None:
        """Say how long the step took."""
        print(f"{time.perf_counter() - self._begun:.1f} s", flush=True)

    @contextmanager
    def step(self, what: str, about_s: float) -> Iterator[None]:
        """A step from beginning to end. After an error the line is ended, so that the message has one of its own."""
        self.begin(what, about_s)
        try:
            yield
        except BaseException:
            print(flush=True)
            raise
        self.end()
