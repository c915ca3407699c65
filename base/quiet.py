"""Silences what a library prints from compiled code, past Python's `sys.stdout`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Drop what compiled code writes to stdout in a `with` block. All output of the process is dropped meanwhile, that
    of other threads too: use it for short calls."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # stdout is closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
