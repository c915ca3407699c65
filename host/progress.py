"""A progress bar for work that takes long, on a terminal's stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 2.0
"""Seconds before anything is shown."""


@contextmanager
def working(what: str) -> Iterator[Callable[[float], None]]:
    """Show a bar once the block has taken two seconds, and take it away at its end; nothing where stderr is no
    terminal. What is yielded is told how much is done, from 0 to 1; the bar only moves along until it is."""
    if not sys.stderr.isatty():
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda share: bar.update(task, total=1.0, completed=share)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:  # else it would write a line on a terminal without a cursor
            bar.stop()
