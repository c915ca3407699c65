"""The result of a run, the same for every engine: latency, busy times, waits, event log, critical path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .event_log import CriticalPath, EventLog
from .executor import ProcessNetwork
from .unit import draining


@dataclass(frozen=True, eq=False)
class RunTiming:
    """The timing of a complete run.

    latency: seconds, without the launch of the program. busy: seconds in which a process (a unit, a decoder, the
    dispatcher) did not wait, by name. amounts: bytes, tiles or cycles charged to each rate, by name. waits: by stream,
    the seconds in which its reader waited for words (empty) and its writer for room (full). order: the jobs of a
    `ListSchedulingProblem` in the order in which they were executed, else empty. chosen: how often each stream, by
    name, was chosen among several because its word came first; if any was, results may depend on times.
    """

    latency: float
    busy: Mapping[str, float]
    amounts: Mapping[str, float]
    waits: Mapping[str, tuple[float, float]]
    order: Sequence[int]
    _starts: Callable[[str], list[tuple[float, int]]]
    _firings: Callable[[], EventLog]
    _chain: Callable[[], CriticalPath]
    chosen: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(net: ProcessNetwork, latency: float) -> RunTiming:
        """Return the timing of a finished run of `net`. latency: of the run, in seconds. Log and critical path can be
        had only if the run was recorded.
        """

        def recorded() -> EventLog:
            if net.events is None:
                raise ValueError("the run was not recorded: pass record=True")
            return net.events

        return RunTiming(
            latency,
            {name: at.busy for name, at in net.progress.items()},
            net.amounts,
            {c.name: (c.empty, c.full) for c in net.channels},
            (),
            lambda unit: net.progress[unit].starts,
            recorded,
            lambda: recorded().critical_path(),
            net.chosen,
        )

    def unit_busy(self, unit: str) -> float:
        """Seconds in which a unit did not wait. If its halves are apart, those of the half that was busy for longer.

        Raises `KeyError` if there is no such unit."""
        return max(self.busy[unit], self.busy.get(draining(unit), 0.0))

    def starts(self, unit: str) -> list[tuple[float, int]]:
        """Return clock in seconds and firing count at the start of each uOP of a unit; empty in a run with an
        instruction path. Raises `KeyError` or `ValueError` if there is no such unit.
        """
        return self._starts(unit)

    @cached_property
    def events(self) -> EventLog:
        """Every firing. Raises `ValueError` if the run was not recorded."""
        return self._firings()

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The steps that decided the latency. Raises `ValueError` if the run was not recorded."""
        return self._chain()
