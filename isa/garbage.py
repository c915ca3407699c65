"""Python's search for cyclic garbage, put off while a lot is made that has none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without looking for cyclic garbage; also as a decorator, `@uncollected()`. For what makes hundreds of thousands
    of small objects that are in no cycle: looking through them again and again takes a fifth to a half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
