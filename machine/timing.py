"""When a run ended, and why: what every engine finds out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .event_log import CriticalPath, EventLog
from .executor import ProcessNetwork


@dataclass(frozen=True, eq=False)
class Timing:
    """A complete run. latency: seconds, without the launch of the program. busy: seconds in which a process (a unit, a
    decoder, the dispatcher) did not wait, by name. amounts: what was charged to each rate. waits: seconds in which the
    reader of a stream waited for words (it was empty), and its writer for room (it was full), by the stream's name.
    order: the jobs of an arbitration, as they were taken."""

    latency: float
    busy: Mapping[str, float]
    amounts: Mapping[str, float]
    waits: Mapping[str, tuple[float, float]]
    order: Sequence[int]
    _starts: Callable[[str], list[tuple[float, int]]]
    _firings: Callable[[], EventLog]
    _chain: Callable[[], CriticalPath]

    @staticmethod
    def of(net: ProcessNetwork, latency: float) -> Timing:
        """What a run of `net` that took `latency` seconds found out."""

        def recorded() -> EventLog:
            if net.events is None:
                raise ValueError("the run was not recorded")
            return net.events

        return Timing(
            latency,
            {name: at.busy for name, at in net.progress.items()},
            net.amounts,
            {c.name: (c.empty, c.full) for c in net.channels},
            (),
            lambda unit: net.progress[unit].starts,
            recorded,
            lambda: recorded().critical_path(),
        )

    def starts(self, unit: str) -> list[tuple[float, int]]:
        """Clock and number of firings at which each uOP of a unit began, in a run without an instruction path."""
        return self._starts(unit)

    @cached_property
    def events(self) -> EventLog:
        """Every firing, if the run was recorded."""
        return self._firings()

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The steps that decided the latency, if the run was recorded."""
        return self._chain()
