"""The event log of a run: every firing of a step with its clocks; and the critical path, computed from it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .steps import NEVER


class StepSignature(NamedTuple):
    """A step without its clocks and data.

    gets, puts: the channels that it reads and writes, as indices in `ProcessNetwork.channels`. words: how many it takes
    from each of `gets` and puts on each of `puts`. needs_whole_token: as of `Step`. rate: index in
    `ProcessNetwork.rate_names`. amount: bytes, tiles or cycles that it takes time for, in the unit of the rate. times:
    in a trace, how often the step repeats; 1 in a log.
    """

    gets: tuple[int, ...]
    puts: tuple[int, ...]
    words: int
    needs_whole_token: bool
    rate: int
    amount: float
    times: int = 1


OWN, FIRST_WORD, LAST_WORD, ROOM = range(4)
"""The event that decided when a firing could start: the end of the previous firing of its own process (OWN), the first
word of a token (FIRST_WORD), the last word of a token (LAST_WORD), or room in a stream that a get had freed (ROOM)."""


@dataclass
class EventLog:
    """One row per firing; each firing comes after those that it depends on.

    unit: index of the process in `ProcessNetwork.progress`. step: index in `steps`. start, end: clocks in seconds.
    before, via: the firing that decided when this one could start, and how (OWN, FIRST_WORD, LAST_WORD, ROOM). bound:
    the firing whose last word decided when this one could end, -1 if its own duration did. number: the uOP. origin: the
    packet or list position that the uOP came from.
    """

    steps: list[StepSignature]
    unit: array[int]
    step: array[int]
    start: array[float]
    end: array[float]
    before: array[int]
    via: array[int]
    bound: array[int]
    number: array[int]
    origin: array[int]

    @staticmethod
    def empty() -> EventLog:
        """Return a log without firings."""
        return EventLog([], *(array(c) for c in "iiddiiiii"))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.end)

    def critical_path(self) -> CriticalPath:
        """Walk back from the last firing to the start of the run, each time to the firing that this one waited for.
        Returns the path, the last step first; without steps for an empty log.

        A step that streams a token through ends when its source does; its own duration then does not count.
        """
        rows: list[tuple[int, int, float, float, int, int]] = []
        at = int(np.argmax(np.frombuffer(self.end, dtype=np.float64))) if len(self) else NEVER
        via = OWN
        while at >= 0:
            if via != FIRST_WORD:
                if self.bound[at] >= 0:
                    at, via = self.bound[at], LAST_WORD
                    continue
                rate = self.steps[self.step[at]].rate
                rows.append((self.unit[at], rate, self.start[at], self.end[at], self.origin[at], via))
            at, via = self.before[at], self.via[at]
        columns = list(zip(*rows, strict=True)) or [()] * 6
        types = (np.int32, np.int32, np.float64, np.float64, np.int32, np.int32)
        return CriticalPath(*(np.array(c, t) for c, t in zip(columns, types, strict=True)))


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The steps that decided when a run ended, the last one first; one array element per step.

    unit, rate: indices as in `EventLog` and `StepSignature`. start, end: clocks in seconds. origin: packet or list
    position of the uOP. via: how the next step of the path depended on this one.
    """

    unit: npt.NDArray[np.int32]
    rate: npt.NDArray[np.int32]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    origin: npt.NDArray[np.int32]
    via: npt.NDArray[np.int32]

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """Duration of each step in seconds, (steps,)."""
        return self.end - self.start
