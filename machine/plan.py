"""Times a workload, once or many times with other rates, with the fastest engine; all engines give the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Generic, TypeVar

from ..base.garbage import gc_disabled
from .description import StreamNetwork
from .executor import ProcessNetwork, Workload
from .fast_engine import run_traces
from .jit import available, loads
from .timing import RunTiming
from .traces import Traces, TraceTable, UntraceableError

NUMBA_MIN_FIRINGS = 100_000
"""Firings of all runs of a plan from which on numba is used. Loading it with the engine's cached code takes 0.4 s, as
long as 150,000 firings in Python; the limit is lower because a process often runs a second program."""

M = TypeVar("M", bound=StreamNetwork)


@gc_disabled()
def trace_workload(
    machine: StreamNetwork,
    workload: Workload | Mapping[str, Iterable[Any]],
    *,
    where: Callable[[str, int], str] | None = None,
) -> Traces:
    """Trace the workload that `ProcessNetwork` with the same arguments (`where` too) would run. Raises
    `UntraceableError` if its steps are not known before the run, or fail without data.
    """
    net = ProcessNetwork(machine, workload, where=where)
    table = TraceTable(net)
    try:
        lists = net.workload.trace(table)
        return table.finish([lists[name] for name in net.progress])
    except UntraceableError:
        raise
    except Exception as e:
        # A kernel, a uOP or a stream is at fault. Only a run shows whether that point is reached.
        raise UntraceableError(f"{type(e).__name__}: {e}") from e


class TimedWorkload(Generic[M]):
    """A workload that can be timed repeatedly with other rates or FIFO depths; its traces are made once.

    machine, workload, where: as of `ProcessNetwork`.
    """

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
        """Whether the workload could be traced (`rsn.machine.traces`); otherwise the executor runs it."""
        return self._traces is not None

    @cached_property
    def processes(self) -> list[str]:
        """Names of the processes (units, decoders, the dispatcher), in the order of their indices in an event log."""
        net = self._traces.net if self._traces is not None else ProcessNetwork(self.machine, **self._program)
        return list(net.progress)

    def run(self, machine: M | None = None, *, record: bool = False) -> RunTiming:
        """Run the workload without data. Raises `DeadlockError` and `ProgramError` as `ProcessNetwork.run` does.

        machine: the plan's machine with other rates or FIFO depths; default: the plan's machine. record: keep the event
        log.
        """
        machine = machine or self.machine
        traces = self._traces
        if traces is not None:
            self._firings += traces.firings
            worthwhile = self._firings >= NUMBA_MIN_FIRINGS or "numba" in sys.modules
            if worthwhile and available() and loads():
                return run_traces(traces, machine, record=record)
        net = ProcessNetwork(machine, **self._program, record=record)
        return RunTiming.of(net, net.run())


def execute(
    machine: StreamNetwork,
    workload: Workload | Mapping[str, Sequence[Any]],
    *,
    where: Callable[[str, int], str] | None = None,
) -> RunTiming:
    """Time a workload once: `TimedWorkload(...).run()`. Arguments (`where` too) and errors are those."""
    return TimedWorkload(machine, workload, where=where).run()
