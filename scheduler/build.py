"""The scheduler's pipeline: from a network to a packed program, which passes the checks of `rsn check`.

Order and hazards in memory, tokens, contents of slots and tiles, counts of streams: what a wrong lowering breaks is
mostly one of these, and no input is needed to see it. They are arrays, and take a few percent of the time to compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..base.errors import CompilerError, ScheduleError
from ..base.finding import Finding
from ..base.garbage import gc_disabled
from ..isa.overlay import Overlay
from ..isa.program import Program, UnpackedProgram
from ..isa.verify import check
from .best import Best, Chosen, choose
from .dram import Lowered, PackedWeights
from .graph import LayerGraph
from .lower import Observe, lower, unobserved
from .pack import Starts, pack
from .schedule import PAPER, Schedule

SHOWN = 5
"""How many findings an error lists."""


@dataclass(frozen=True, eq=False)
class Built:
    """A compiled program. weights: stored elements by buffer name. chosen: the schedule used, and why. kernels: the
    kernel sequences that the program was packed from. pack: the pass that packed them."""

    program: Program
    weights: PackedWeights
    chosen: Chosen
    kernels: UnpackedProgram
    pack: Callable[[UnpackedProgram, Starts | None], Program] = pack


Progress = Callable[[float], None]
"""Called with the share of a search's budget that is spent, 0 to 1."""


def require_sound(program: Program, schedule: Schedule) -> None:
    """Raise `CompilerError` if `rsn check` finds errors in a program that the compiler made by a schedule, with the
    layer, the code and the text of at most `SHOWN` of them. Code H01 is no error here: loads of whole tiles include
    rows of padding, which no store writes."""
    harmless = {"H01"} if schedule.whole_tiles else set()
    errors = [finding for finding in check(program) if not finding.warning and finding.code not in harmless]
    if not errors:
        return
    listed = [f"{_layer(program, finding)}{finding}" for finding in errors[:SHOWN]]
    more = [f"... and {len(errors) - SHOWN} more"] * (len(errors) > SHOWN)
    raise CompilerError(
        "the compiler made a program that its own checks refuse. This is an error of rsn, or of a pass that replaces "
        "one of its own, not of the model: please report it\n" + "\n".join(listed + more)
    )


def _layer(program: Program, finding: Finding) -> str:
    """The layers of the segment that a finding is about, before its text; empty if it names no uOP of one."""
    named = re.match(r"(\w+) uOP (\d+)", finding.message)
    if named is None:
        return ""
    unit, uop = named[1], int(named[2])
    for segment in program.segments:
        if any(first <= uop < end for first, end in segment.uops.get(unit, ())):
            return f"{', '.join(filter(None, segment.layers)) or segment.name}: "
    return ""


@dataclass(frozen=True, kw_only=True)
class SchedulerPasses:
    """The scheduler's passes. A replacement takes and returns the same types.

    choose: searches for a schedule, if the schedule is a `Best`. lower: makes kernel sequences and orders the off-chip
    accesses; its stages `tile`, `bind`, `chain` and `dram` are observed too. pack: makes the packets of the program.
    check: raises `CompilerError` for a program that is not sound. observe: called after each pass with its name and its
    result.
    """

    choose: Callable[[LayerGraph, Overlay, Best, Progress], Chosen] = choose
    lower: Callable[..., Lowered] = lower
    pack: Callable[[UnpackedProgram, Starts | None], Program] = pack
    check: Callable[[Program, Schedule], None] = require_sound
    observe: Observe = unobserved


USUAL = SchedulerPasses()


def build(
    network: LayerGraph,
    overlay: Overlay,
    schedule: Schedule | Best,
    progress: Progress = lambda share: None,
    passes: SchedulerPasses = USUAL,
) -> Built:
    """Compile a network: search for a schedule if it is a `Best`, lower to kernel sequences, pack into a program.

    The network must be folded (`LayerGraph.check_folded`), but for an overlay that computes in integers. progress:
    called during a search. Raises `UnsupportedError` if the overlay cannot run the network, `ScheduleError` if the
    schedule does not fit it or a layer is not folded, `FieldError`, `DeadlockError` or `ProgramError` like `lower` and
    `pack`, `TypeError` if a replaced pass returns another type, and `CompilerError` for a program that is not
    sound."""
    if overlay.integers and schedule != PAPER:
        raise ScheduleError(f"overlay {overlay.name} has one schedule, and no choices to search or set")
    chosen = Chosen(schedule) if isinstance(schedule, Schedule) else passes.choose(network, overlay, schedule, progress)
    passes.observe("schedule", _made("choose", chosen, Chosen))
    return _built(network, overlay, chosen, passes, None)


def rebuild(built: Built, network: LayerGraph, overlay: Overlay, passes: SchedulerPasses = USUAL) -> Built:
    """Compile the same network with other weights, by the schedule already chosen. built: the network's program with
    the weights before. If its kernels are unchanged, the program is kept and only the scale and shift of its buffers
    are replaced. Raises like `build`."""
    return _built(network, overlay, built.chosen, passes, built)


def _built(
    network: LayerGraph, overlay: Overlay, chosen: Chosen, passes: SchedulerPasses, before: Built | None
) -> Built:
    if not overlay.integers:  # its lowering keeps scales apart from weights
        network.check_folded()
    with gc_disabled():
        stages = {"observe": passes.observe} if passes.lower is lower else {}
        lowered = passes.lower(network, overlay, chosen.schedule, **stages)
        _made("lower", lowered, Lowered)
        if not stages:
            passes.observe("dram", lowered)
        if before is not None and _is_same(lowered.kernels, before.kernels):
            program = replace(before.program, buffers=lowered.kernels.buffers)
        else:
            program = passes.pack(lowered.kernels, lowered.starts)
            _made("pack", program, Program)
            passes.check(program, chosen.schedule)
        passes.observe("pack", program)
        return Built(program, lowered.weights, chosen, lowered.kernels, passes.pack)


def _is_same(kernels: UnpackedProgram, before: UnpackedProgram) -> bool:
    """Whether both make the same program, apart from the scale and shift of its outputs."""

    def all_but_scales(k: UnpackedProgram) -> tuple[object, ...]:
        plain = [replace(b, scale=None, shift=None) for b in k.buffers]
        return k.sequences, k.preloaded, plain, k.parameters, k.patches

    return all_but_scales(kernels) == all_but_scales(before)


def _made(name: str, made: object, kind: type) -> object:
    """Check the type that a pass returned. Raises `TypeError`, because the code that replaced the pass is wrong."""
    if not isinstance(made, kind):
        raise TypeError(f"Passes.{name} returned {type(made).__name__}, not {kind.__name__}")
    return made
