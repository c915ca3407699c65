"""Memory that is freed, and taken again soon."""

from __future__ import annotations

import ctypes

KEPT = 256 << 20
"""Bytes of freed memory that glibc keeps at the end of each of its heaps."""
BLOCK = 32 << 20
"""Bytes from which a block of memory goes back to the system when it is freed: the most that glibc takes."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for its next arrays. Does nothing without glibc.

    For processes that run the simulator again and again. The simulator frees megabytes at the end of each run. The
    system would take them back, and give them again page by page, filled with zeros; that takes a seventh of a run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, BLOCK)
