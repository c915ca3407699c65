"""The simulator: a program's decoded image on an overlay's network, with data or for time alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ...isa.expansion import Expansion
from ...isa.image import decode_image
from ...isa.instruction_path import InstructionPath
from ...isa.overlay import Overlay
from ...isa.packet import Words
from ...isa.program import Buffer, Program
from ...isa.segments import segments
from ...machine.executor import ProcessNetwork
from ...machine.plan import Plan
from ...machine.timing import Timing
from .dataflow import Dataflow

Array = npt.NDArray[np.float32]
Watch = Callable[[Buffer, Array], None]


@dataclass(frozen=True, eq=False)
class Run:
    """What a run took. latency in seconds; bytes moved per direction; utilization: share of the latency in which a
    unit did not wait; critical_path: share of the latency per cause, along the chain of steps that decided it. clock:
    whose seconds these are, "modelled" for the machine's; "measured" for those of a real one, as its host sees them;
    "wall" for this computer's, of a board that computes what the machine does and knows nothing of its time. facts:
    what is known of the board that ran it, by name."""

    latency_s: float
    bytes: dict[str, int]
    utilization: dict[str, float]
    critical_path: dict[str, float]
    clock: str = "modelled"
    facts: dict[str, str] = field(default_factory=dict)


class Machine:
    """A program, with one choice of its run-time parameters, on the simulator.

    words: its image with parameters patched in; without, the defaults. Time does not depend on data: it is worked out
    once, and what is timed again (`plan`) need not be traced again.
    """

    def __init__(self, program: Program, words: Words | None = None) -> None:
        self.program = program
        self.image = program.image if words is None else words
        self.packets = decode_image(self.image, program.overlay)
        self.path = InstructionPath(program.overlay, self.packets, program.preloaded)
        self.plan = Plan(program.overlay, self.path, where=program.where)
        self._timing: Timing | None = None
        self._run: Run | None = None

    @property
    def timing(self) -> Timing:
        """Every step of a run and when it is taken. Raises `DeadlockError` or `ProgramError`."""
        if self._timing is None:
            self._timing = self.plan.run(record=True)
        return self._timing

    def run(
        self,
        banks: Mapping[str, Array] | None = None,
        watch: Watch | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Run:
        """Run to the end.

        banks: off-chip memories by name, changed in place; None runs without data, for time alone. watch: called with
        each segment's buffer and what is in it when it is complete; its memory may serve another segment later.
        progress: called with the share of the off-chip accesses that are done. Raises `DeadlockError` or
        `ProgramError`, both before anything is changed where the time can be known beforehand.
        """
        if banks is not None and not self.plan.traced:
            net = ProcessNetwork(
                self.program.overlay, self.path, where=self.program.where, banks=banks, data=True, record=True
            )
            with one_blas_thread():
                self._timing = Timing.of(net, net.run())
            return summary(self._timing, self.program.overlay, 4 * len(self.image))
        if self._run is None:
            # not kept: the log of a long run is large, and only who asks for reasons needs it
            done = self._timing or self.plan.run(record=True)
            self._run = summary(done, self.program.overlay, 4 * len(self.image))
        if banks is not None:
            with one_blas_thread():
                completed = self._told(banks, watch, progress)
                Dataflow(self.path, banks=banks, where=self.program.where, completed=completed).run()
        return self._run

    def _told(
        self, banks: Mapping[str, Array], watch: Watch | None, progress: Callable[[float], None] | None
    ) -> Callable[[str, int], None] | None:
        if watch is None and progress is None:
            return None
        unit = self.program.overlay.address_unit
        expansion = Expansion(self.bound)
        last = {(s.unit, s.last): s.buffer for s in segments(expansion)}
        total = {name: len(run) for name, run in expansion.sequences.items() if run.unit.bank}
        slowest = max(total, key=total.__getitem__, default="")

        def completed(name: str, uop: int) -> None:
            if progress is not None and name == slowest and not uop & 63:
                progress(uop / total[name])
            buffer = last.get((name, uop)) if watch is not None else None
            if watch is not None and buffer is not None:
                start = buffer.offset * unit
                watch(buffer, banks[buffer.bank][start : start + buffer.size])

        return completed

    @cached_property
    def bound(self) -> Program:
        """The program as it runs: its parameters are in its packets."""
        return replace(self.program, packets=tuple(self.packets), parameters=())


def simulate(program: Program, banks: Mapping[str, Array] | None = None, words: Words | None = None) -> Run:
    """Run a program once, as `Machine.run`."""
    return Machine(program, words).run(banks)


def one_blas_thread() -> threadpool_limits:
    """Tile products are too small for BLAS threads to pay, and on a loaded machine they wait for each other."""
    return threadpool_limits(1, user_api="blas")


def launch_seconds(overlay: Overlay) -> float:
    """What every run takes before its first instruction."""
    return overlay.seconds.get("launch_us", 0.0)


def summary(done: Timing, overlay: Overlay, instructions: int) -> Run:
    """What a recorded run of a program with an image of `instructions` bytes took."""
    latency = done.latency + launch_seconds(overlay)
    buses = [name for name, rate in overlay.rates.items() if rate.unit == "GB/s"]
    moved = {name.removesuffix("_gbs"): int(done.amounts[name]) for name in buses}
    moved["instructions"] = instructions
    return Run(
        latency_s=latency,
        bytes=moved,
        utilization={u.name: done.busy[u.name] / latency if latency else 0.0 for u in overlay.units},
        critical_path={c: s / latency for c, s in critical_path(done, overlay).items()} if latency else {},
    )


def causes(overlay: Overlay) -> list[str]:
    """The heading of each rate, by its number in `ProcessNetwork.rate_names`."""
    return [overlay.rates[name].cause if name in overlay.rates else "control" for name in overlay.step_seconds]


def critical_path(done: Timing, overlay: Overlay) -> dict[str, float]:
    """Seconds per cause over the steps that decided the latency, the longest first; they add up to it."""
    headings = causes(overlay)
    chain = done.critical_path
    seconds = np.bincount(chain.rate, chain.end - chain.start, len(headings)).tolist()
    found: dict[str, float] = {}
    for heading, took in zip(headings, seconds, strict=True):
        if took > 0:
            found[heading] = found.get(heading, 0.0) + took
    if launch_seconds(overlay):
        cause = overlay.rates["launch_us"].cause
        found[cause] = found.get(cause, 0.0) + launch_seconds(overlay)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
