"""The scheduler's pipeline: a network to a packed program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..base.garbage import uncollected
from ..isa.overlay import Overlay
from ..isa.program import Kernels, Program
from .best import Best, Chosen, choose
from .graph import LayerGraph
from .lower import Lowered, Weights, lower
from .pack import Starts, pack
from .schedule import Schedule


@dataclass(frozen=True, eq=False)
class Built:
    """A program and its weights, by buffer name, as they lie off chip. kernels: what the program was packed from."""

    program: Program
    weights: Weights
    chosen: Chosen
    kernels: Kernels


Progress = Callable[[float], None]


Observe = Callable[[str, object], None]


def _unobserved(name: str, made: object) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The scheduler's passes; one that replaces another takes and returns the same. choose: a schedule, where a search
    is asked for; lower: to kernel sequences, with the off-chip accesses in their order; pack: to the packets of an
    image. observe: told the name of each pass, when it is done, and what it made."""

    choose: Callable[[LayerGraph, Overlay, Best, Progress], Chosen] = choose
    lower: Callable[[LayerGraph, Overlay, Schedule], Lowered] = lower
    pack: Callable[[Kernels, Starts | None], Program] = pack
    observe: Observe = _unobserved


USUAL = Passes()


def build(
    network: LayerGraph,
    overlay: Overlay,
    schedule: Schedule | Best,
    progress: Progress = lambda share: None,
    passes: Passes = USUAL,
) -> Built:
    """Choose a schedule where none is given, lower to kernel sequences, order the off-chip accesses, pack. progress:
    told how much of a search's budget is spent. Raises `UnsupportedError` or `ScheduleError`."""
    chosen = Chosen(schedule) if isinstance(schedule, Schedule) else passes.choose(network, overlay, schedule, progress)
    passes.observe("schedule", _made("choose", chosen, Chosen))
    return _built(network, overlay, chosen, passes, None)


def rebuild(built: Built, network: LayerGraph, overlay: Overlay, passes: Passes = USUAL) -> Built:
    """The same for a network with other weights, with the schedule that was chosen: the program stays as it is, but for
    what its outputs are multiplied with, unless a weight decides something in the kernels. Raises as `build`."""
    return _built(network, overlay, built.chosen, passes, built)


def _built(network: LayerGraph, overlay: Overlay, chosen: Chosen, passes: Passes, before: Built | None) -> Built:
    with uncollected():
        lowered = passes.lower(network, overlay, chosen.schedule)
        passes.observe("lower", _made("lower", lowered, Lowered))
        if before is not None and _is_same(lowered.kernels, before.kernels):
            program = replace(before.program, buffers=lowered.kernels.buffers)
        else:
            program = passes.pack(lowered.kernels, lowered.starts)
        passes.observe("pack", _made("pack", program, Program))
        return Built(program, lowered.weights, chosen, lowered.kernels)


def _is_same(kernels: Kernels, before: Kernels) -> bool:
    """Whether they make the same program, but for the factors and the sums of its outputs."""

    def all_but_scales(k: Kernels) -> tuple[object, ...]:
        plain = [replace(b, scale=None, shift=None) for b in k.buffers]
        return k.sequences, k.preloaded, plain, k.parameters, k.patches

    return all_but_scales(kernels) == all_but_scales(before)


def _made(name: str, made: object, kind: type) -> object:
    """What a pass returned, if it is of the right kind. Raises `TypeError`: whoever replaced the pass is at fault."""
    if not isinstance(made, kind):
        raise TypeError(f"Passes.{name} returned {type(made).__name__}, not {kind.__name__}")
    return made
