"""Prints the steps of a long program on stdout: what each does, about how long it takes, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Steps:
    """The steps of a program. total: their number."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._begun = total, 0, 0.0

    def begin(self, what: str, about_s: float) -> None:
        """Print what the next step does, and about how many seconds it takes."""
        self._number += 1
        self._begun = time.perf_counter()
        print(f"Step {self._number} of {self._total}: {what} (about {about_s:.0f} s) ... ", end="", flush=True)

    def end(self) -> None:
        """Print how many seconds the step took, by the wall clock."""
        print(f"{time.perf_counter() - self._begun:.1f} s", flush=True)

    @contextmanager
    def step(self, what: str, about_s: float) -> Iterator[None]:
        """Print a step around a `with` block, as `begin` (what, about_s) and `end` do. After an error the line is
        ended, so that the error's message has its own line."""
        self.begin(what, about_s)
        try:
            yield
        except BaseException:
            print(flush=True)
            raise
        self.end()
