"""Progress of long work, on stderr where that is a terminal: a bar, and a line for each completed step."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0
"""Seconds before a bar is shown."""

TIMING = "timing (once after an installation, the engine is compiled first)"
"""The label of a run without data. Such a run lasts longer than `PATIENCE` only when the engine is compiled first, or
for a very large program."""


@contextmanager
def working(what: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar labelled `what` while the block runs, from two seconds on. Shows nothing if stderr is not a
    terminal.

    Yields a function to be called with the share that is done, 0 to 1; until then the bar only moves.
    """
    with _bar(what) as bar:
        yield (lambda share: None) if bar is None else bar.share


def step_label(names: Sequence[str], number: int) -> str:
    """Return the label of the bar of a step: its name, its number, and how many steps there are. names: of all steps.
    number: of the step, from 0."""
    return f"{names[number]} ({number + 1} of {len(names)})"


class ProgressSteps:
    """The steps of some work, one after the other. names: of the steps, in order."""

    def __init__(self, bar: _Bar | None, names: Sequence[str]) -> None:
        self._bar, self._names = bar, names
        self._width = max(map(len, names))
        self._begun = time.perf_counter()

    def share(self, share: float) -> None:
        """Show how much of the running step is done, 0 to 1."""
        if self._bar is not None:
            self._bar.share(share)

    def done(self, name: str, remark: str = "") -> None:
        """Print a line for a completed step: its name, its seconds by the wall clock, and a remark. The next of the
        names is then the running step."""
        if self._bar is None:
            return
        seconds = time.perf_counter() - self._begun
        self._bar.line(f"  {name:<{self._width}} {seconds:6.1f} s  {remark}".rstrip())
        following = self._names.index(name) + 1 if name in self._names else len(self._names)
        if following < len(self._names):
            self._bar.relabel(step_label(self._names, following))
        self._begun = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar in a `with` block, to print something else. Its time is not counted for any step."""
        if self._bar is None:
            yield
            return
        begun = time.perf_counter()
        with self._bar.hidden():
            yield
        self._begun += time.perf_counter() - begun


@contextmanager
def stepping(what: str, names: Sequence[str]) -> Iterator[ProgressSteps]:
    """Print `what`, then a line for each step as it is completed, and a bar for a step that takes long. names: of the
    steps, at least one. Shows nothing if stderr is not a terminal."""
    with _bar(step_label(names, 0)) as bar:
        if bar is not None:
            bar.line(what)
        yield ProgressSteps(bar, names)


class _Bar:
    """A progress bar that appears after `PATIENCE` seconds, and can be hidden meanwhile."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn()
        times = TimeElapsedColumn(), TimeRemainingColumn()
        # redirect_stdout=False: rich would send text that is printed to stdout to stderr
        self._progress: Progress = Progress(
            *columns, *times, console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        self._task = self._progress.add_task(label, total=None)
        self._lock = threading.Lock()
        self._is_due = self._is_hidden = False
        self._timer = threading.Timer(PATIENCE, self._due)
        self._timer.daemon = True
        self._timer.start()

    def share(self, share: float) -> None:
        """Show how much is done, 0 to 1."""
        self._progress.update(self._task, total=1.0, completed=share)

    def relabel(self, label: str) -> None:
        """Begin another step, whose share is not known yet."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(label, total=None)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar in a `with` block."""
        with self._lock:
            self._is_hidden = True
            self._stop()
        try:
            yield
        finally:
            with self._lock:
                self._is_hidden = False
                self._start()

    def close(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
        self._timer.join()
        self._stop()

    def _due(self) -> None:
        with self._lock:
            self._is_due = True
            self._start()

    def _start(self) -> None:
        if self._is_due and not self._is_hidden:
            self._progress.start()

    def _stop(self) -> None:
        if self._progress.live.is_started:  # else stop() would write a line
            self._progress.stop()


@contextmanager
def _bar(label: str) -> Iterator[_Bar | None]:
    """Yield a bar; or None if stderr is not a terminal, or without rich, which a board does without."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield None
        return
    bar = _Bar(label)
    try:
        yield bar
    finally:
        bar.close()
