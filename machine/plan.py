"""Time a workload, once or with other rates, in the quickest way there is; each way gives the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

from .description import Machine
from .executor import ProcessNetwork
from .fast_engine import run_traces
from .jit import available, loads
from .timing import Timing
from .traces import Traces, UntraceableError, trace_workload
from .workload import Workload

WORTHWHILE = 100_000
"""Firings, of all runs of a plan together, from which numba is loaded, with the engine's cached code: 0.4 s, as much as
150,000 firings in Python take; but a process that runs one program of this size often runs a second."""

M = TypeVar("M", bound=Machine)


class Plan(Generic[M]):
    """A program ready to be timed as often as one likes, with other rates or FIFO depths. The arguments are those of
    `ProcessNetwork`; the traces are made once."""

    def __init__(
        self,
        machine: M,
        workload: Workload | Mapping[str, Sequence[Any]],
        *,
        where: Callable[[str, int], str] | None = None,
    ) -> None:
        self.machine = machine
        self._program: dict[str, Any] = {"workload": workload, "where": where}
        self._traces: Traces | None = None
        self._firings = 0  # of all runs so far
        with suppress(UntraceableError):
            self._traces = trace_workload(machine, **self._program)

    @property
    def traced(self) -> bool:
        """Whether what the program does is known without data."""
        return self._traces is not None

    @cached_property
    def processes(self) -> list[str]:
        """What runs side by side, in the order in which a log numbers it: units, decoders, the dispatcher."""
        net = self._traces.net if self._traces is not None else ProcessNetwork(self.machine, **self._program)
        return list(net.progress)

    def run(self, machine: M | None = None, *, record: bool = False) -> Timing:
        """What `ProcessNetwork.run` finds out: the time, or a `DeadlockError` or `ProgramError` with its report.

        machine: the plan's own with other rates or FIFO depths.
        """
        machine = machine or self.machine
        traces = self._traces
        if traces is not None:
            self._firings += traces.firings
            worthwhile = self._firings >= WORTHWHILE or "numba" in sys.modules
            if worthwhile and available() and loads():
                return run_traces(traces, machine, record=record)
        net = ProcessNetwork(machine, **self._program, record=record)
        return Timing.of(net, net.run())


def execute(
    machine: Machine,
    workload: Workload | Mapping[str, Sequence[Any]],
    *,
    record: bool = False,
    where: Callable[[str, int], str] | None = None,
) -> Timing:
    """Time a workload once."""
    return Plan(machine, workload, where=where).run(record=record)
