"""The scheduler's pipeline: a network to a packed program."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..isa.datapath import Overlay
from ..isa.program import Program
from .best import Best, Chosen, choose
from .lower import Weights, lower
from .pack import pack
from .schedule import Schedule
from .segment import Network


@dataclass(frozen=True, eq=False)
class Built:
    """A program and its weights, by buffer name, as they lie in LPDDR."""

    program: Program
    weights: Weights
    chosen: Chosen


def build(
    network: Network,
    overlay: Overlay,
    schedule: Schedule | Best,
    progress: Callable[[float], None] = lambda share: None,
) -> Built:
    """Choose a schedule where none is given, lower to kernel sequences, order the off-chip accesses, pack. progress:
    told how much of a search's budget is spent. Raises `UnsupportedError` or `ScheduleError`."""
    chosen = Chosen(schedule) if isinstance(schedule, Schedule) else choose(network, overlay, schedule, progress)
    with _uncollected():
        lowered = lower(network, overlay, chosen.schedule)
        return Built(pack(lowered.kernels, lowered.starts), lowered.weights, chosen)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cyclic garbage: hundreds of thousands of small values are made, none of them in a cycle, and
    to look through them again and again takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
