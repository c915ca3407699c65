"""The scheduler's pipeline: a network to a packed program."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..isa.datapath import Overlay
from ..isa.program import Kernels, Program
from .best import Best, Chosen, choose
from .lower import Lowered, Weights, lower
from .pack import Starts, pack
from .schedule import Schedule
from .segment import Network


@dataclass(frozen=True, eq=False)
class Built:
    """A program and its weights, by buffer name, as they lie off chip."""

    program: Program
    weights: Weights
    chosen: Chosen


Progress = Callable[[float], None]


Observe = Callable[[str, object], None]


def _unobserved(name: str, made: object) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The scheduler's passes; one that replaces another takes and returns the same. choose: a schedule, where a search
    is asked for; lower: to kernel sequences, with the off-chip accesses in their order; pack: to the packets of an
    image. observe: told the name of each pass, when it is done, and what it made."""

    choose: Callable[[Network, Overlay, Best, Progress], Chosen] = choose
    lower: Callable[[Network, Overlay, Schedule], Lowered] = lower
    pack: Callable[[Kernels, Starts | None], Program] = pack
    observe: Observe = _unobserved


USUAL = Passes()


def build(
    network: Network,
    overlay: Overlay,
    schedule: Schedule | Best,
    progress: Progress = lambda share: None,
    passes: Passes = USUAL,
) -> Built:
    """Choose a schedule where none is given, lower to kernel sequences, order the off-chip accesses, pack. progress:
    told how much of a search's budget is spent. Raises `UnsupportedError` or `ScheduleError`."""
    chosen = Chosen(schedule) if isinstance(schedule, Schedule) else passes.choose(network, overlay, schedule, progress)
    passes.observe("schedule", _made("choose", chosen, Chosen))
    with _uncollected():
        lowered = passes.lower(network, overlay, chosen.schedule)
        passes.observe("lower", _made("lower", lowered, Lowered))
        program = passes.pack(lowered.kernels, lowered.starts)
        passes.observe("pack", _made("pack", program, Program))
        return Built(program, lowered.weights, chosen)


def _made(name: str, made: object, kind: type) -> object:
    """What a pass returned, if it is of the right kind. Raises `TypeError`: whoever replaced the pass is at fault."""
    if not isinstance(made, kind):
        raise TypeError(f"Passes.{name} returned {type(made).__name__}, not {kind.__name__}")
    return made


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
