"""The simulator: runs a program's decoded image on an overlay's process network, with data or for its latency alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from ...isa.expansion import ExpandedProgram
from ...isa.image import decode_image
from ...isa.instruction_path import InstructionPath, plan_of
from ...isa.overlay import Overlay
from ...isa.packet import Words
from ...isa.program import Array, Buffer, Program
from ...isa.segments import stored_buffers
from ...machine.event_log import CriticalPath
from ...machine.executor import ProcessNetwork
from ...machine.plan import TimedWorkload
from ...machine.timing import RunTiming
from .dataflow import DataRun

Watch = Callable[[Buffer, Array], None]


@dataclass(frozen=True, eq=False)
class Run:
    """Latency, traffic and utilization of one run.

    latency_s: seconds. bytes: bytes moved off chip, by the name of the bandwidth that they use (`ddr_read`), and of the
    image as `instructions`. utilization: by unit, the share of the latency in which it did not wait. critical_path: by
    cause, the share of the latency along the chain of steps that determined it. clock: "modelled" for seconds of the
    modelled machine; "measured" for those of a real one, as its host sees them; "wall" for those of this computer, from
    a board that only computes the results. facts: facts about the board that ran it, by name. chosen: how often each
    stream, by name, was chosen among several because its word came first (`machine.steps.AnyOf`); if any was, results
    may depend on times.
    """

    latency_s: float
    bytes: dict[str, int]
    utilization: dict[str, float]
    critical_path: dict[str, float]
    clock: str = "modelled"
    facts: dict[str, str] = field(default_factory=dict)
    chosen: Mapping[str, int] = field(default_factory=dict)


def joined(runs: Sequence[Run]) -> Run:
    """Return runs that took place one after the other as one run. runs: at least one. Shares are of the whole latency;
    the clock and the facts are those of the last run."""
    if len(runs) == 1:
        return runs[0]
    whole = sum(run.latency_s for run in runs)

    def shares(of: Callable[[Run], Mapping[str, float]]) -> dict[str, float]:
        names = dict.fromkeys(name for run in runs for name in of(run))
        return {name: sum(of(run).get(name, 0.0) * run.latency_s for run in runs) / (whole or 1.0) for name in names}

    def counts(of: Callable[[Run], Mapping[str, int]]) -> dict[str, int]:
        names = dict.fromkeys(name for run in runs for name in of(run))
        return {name: sum(of(run).get(name, 0) for run in runs) for name in names}

    return replace(
        runs[-1],
        latency_s=whole,
        bytes=counts(lambda run: run.bytes),
        utilization=shares(lambda run: run.utilization),
        critical_path=shares(lambda run: run.critical_path),
        chosen=counts(lambda run: run.chosen),
    )


class Machine:
    """A program on the simulator, with one choice of its run-time parameters.

    words: the image with the parameters patched in, a vector of uint32; None takes their defaults. Time does not depend
    on data, so it is computed once. plan: the traced program, which can be timed again, with other rates too, without
    another trace. Raises `ImageError` for words that the hardware would misread, and as `Program.bind`."""

    def __init__(self, program: Program, words: Words | None = None) -> None:
        self.program = program
        self.image = program.image if words is None else words
        self.packets = decode_image(self.image, program.overlay)
        self.path = InstructionPath(program.overlay, self.packets, program.preloaded)
        is_usual = self.packets == program.packets
        self.plan = plan_of(program) if is_usual else TimedWorkload(program.overlay, self.path, where=program.where)
        self._timing: RunTiming | None = None
        self._run: Run | None = None

    @property
    def timing(self) -> RunTiming:
        """The recorded run: every step and its times, in seconds without the launch. Raises `DeadlockError`, or
        `ProgramError` if words are left in streams.
        """
        if self._timing is None:
            self._timing = self.plan.run(record=True)
        return self._timing

    def run(
        self,
        banks: Mapping[str, Array] | None = None,
        watch: Watch | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Run:
        """Run the program to its end.

        banks: off-chip memories by name, float32 vectors, changed in place; None runs without data, for the time alone.
        watch: called with each buffer that the program fills and its contents when the last store to it has ended;
        later ones may reuse the memory. progress: called with the share of off-chip accesses done, from 0 to 1. Raises
        `DeadlockError`, or `ProgramError` if words are left in streams or a kernel fails, before it changes `banks` if
        the kernels can be traced without data."""
        if banks is not None and not self.plan.traced:
            net = ProcessNetwork(
                self.program.overlay, self.path, where=self.program.where, banks=banks, data=True, record=True
            )
            with one_blas_thread():
                self._timing = RunTiming.of(net, net.run())
            return summary(self._timing, self.program.overlay, 4 * len(self.image))
        if self._run is None:
            # not kept in _timing: the log of a long run is large, and only `timing` needs it
            done = self._timing or self.plan.run(record=True)
            self._run = summary(done, self.program.overlay, 4 * len(self.image))
        if banks is not None:
            with one_blas_thread():
                completed = self._completed(banks, watch, progress)
                data = DataRun(self.path, banks=banks, where=self.program.where, completed=completed)
                data.run()
                data.release()
        return self._run

    def _completed(
        self, banks: Mapping[str, Array], watch: Watch | None, progress: Callable[[float], None] | None
    ) -> Callable[[str, int], None] | None:
        """Make the function that `DataRun` calls after each uOP, and that calls `watch` and `progress`."""
        if watch is None and progress is None:
            return None
        last = {(s.unit, s.last): s.buffer for s in stored_buffers(self.expansion)}
        total = {name: len(run) for name, run in self.expansion.sequences.items() if run.unit.bank}
        slowest = max(total, key=total.__getitem__, default="")

        def completed(name: str, uop: int) -> None:
            if progress is not None and name == slowest and not uop & 63:
                progress(uop / total[name])
            buffer = last.get((name, uop)) if watch is not None else None
            if watch is not None and buffer is not None:
                watch(buffer, banks[buffer.bank][self.program.place(buffer)])

        return completed

    @cached_property
    def bound(self) -> Program:
        """The program with its parameters patched into its packets, so that it has none."""
        return replace(self.program, packets=tuple(self.packets), parameters=())

    @cached_property
    def expansion(self) -> ExpandedProgram:
        """The uOPs of `bound`, unit by unit."""
        return ExpandedProgram(self.bound)


def simulate(program: Program, banks: Mapping[str, Array] | None = None, words: Words | None = None) -> Run:
    """Run a program once, with data if `banks` is given. banks: as in `Machine.run`. words: as in `Machine`. Raises as
    `Machine` and `Machine.run`."""
    return Machine(program, words).run(banks)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Context in which BLAS uses one thread, and no other thread of the process is in this context. Tile products are
    too small for more threads of BLAS, which on a loaded computer wait for each other.

    Runs of several threads take turns for two reasons. Side by side they would take the interpreter from each other at
    each of their many short calls of NumPy: three runs took 1.5 times the CPU time, and at most a fifth less time. And
    the first of them to end would give BLAS its threads back while the others still run.
    """
    with _turn, _thread_pools().limit(limits=1, user_api="blas"):
        yield


_turn = threading.RLock()  # what a run calls may run another program


def _turn_in_child() -> None:
    """In a forked child: another thread may have held the lock; one that the forking thread holds is released there."""
    if not _turn._is_owned():  # type: ignore[attr-defined]
        _turn._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_turn_in_child)


@cache
def _thread_pools() -> ThreadpoolController:
    """Return those of the libraries that are loaded, NumPy's among them: looking for them takes a millisecond."""
    return ThreadpoolController()


def launch_seconds(overlay: Overlay) -> float:
    """Return the seconds that every run takes before its first instruction: 0 if the overlay has no rate
    `launch_us`.
    """
    return overlay.seconds.get("launch_us", 0.0)


def summary(done: RunTiming, overlay: Overlay, instructions: int) -> Run:
    """Return latency, off-chip bytes, utilization and critical path of a recorded run. instructions: size of the image
    in bytes.

    Raises `ValueError` if the run was not recorded.
    """
    latency = done.latency + launch_seconds(overlay)
    moved = {name.removesuffix("_gbs"): int(done.amounts[name]) for name in overlay.buses}
    moved["instructions"] = instructions
    return Run(
        latency_s=latency,
        bytes=moved,
        utilization={u.name: done.unit_busy(u.name) / latency if latency else 0.0 for u in overlay.units},
        critical_path={c: s / latency for c, s in critical_path(done, overlay).items()} if latency else {},
        chosen=done.chosen,
    )


def causes(overlay: Overlay) -> list[str]:
    """Return the cause under which each rate counts, in the order of `Overlay.step_seconds`; `control` for a name that
    is no rate of the overlay."""
    return [overlay.rates[name].cause if name in overlay.rates else "control" for name in overlay.step_seconds]


def critical_path(done: RunTiming, overlay: Overlay) -> dict[str, float]:
    """Return the seconds per cause along the critical path, longest first. They include the launch and add up to the
    latency.

    Raises `ValueError` if the run was not recorded.
    """
    chain = done.critical_path
    return by_cause(overlay, chain, chain.seconds, launch_seconds(overlay))


def by_cause(
    overlay: Overlay, path: CriticalPath, seconds: npt.NDArray[np.float64], launch: float = 0.0
) -> dict[str, float]:
    """Add up seconds by cause, longest first; causes without any are left out. path: the steps. seconds: (steps,), of
    each step of the path. launch: seconds of the launch. Raises `KeyError` for a launch of an overlay without a rate
    for it.
    """
    headings = causes(overlay)
    spent = np.bincount(path.rate, seconds, len(headings)).tolist()
    if launch:
        headings, spent = [*headings, overlay.rates["launch_us"].cause], [*spent, launch]
    found: dict[str, float] = {}
    for heading, took in zip(headings, spent, strict=True):
        if took > 0:
            found[heading] = found.get(heading, 0.0) + took
    return dict(sorted(found.items(), key=lambda item: -item[1]))
