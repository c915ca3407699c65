"""What a run did and when: every firing of a step, and the chain of firings that decided when it ended."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .steps import NEVER


class StepSignature(NamedTuple):
    """What a firing does, its clocks and its data aside: channels by their number in `ProcessNetwork.channels`, the
    rate by its number in `ProcessNetwork.rate_names`. times: how often in a row, in a trace; 1 in a log."""

    gets: tuple[int, ...]
    puts: tuple[int, ...]
    words: int
    needs_whole_token: bool
    rate: int
    amount: float
    times: int = 1


OWN, FIRST_WORD, LAST_WORD, ROOM = range(4)
"""What decided when a firing could start: the end of its own process's last one; the first word of a token, or its last
where it is needed whole; the slot that a get had freed."""


@dataclass
class EventLog:
    """One row per firing, in an order in which every firing comes after those it depends on.

    unit: the process, by its number in `ProcessNetwork.progress`. step: which of `steps`. before, via: the firing that
    decided when this one could start, and how. bound: the firing whose last word decided when this one could end, or -1
    where its own duration did. number, origin: the uOP, and the packet or list position from which it came.
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
        return EventLog([], *(array(c) for c in "iiddiiiii"))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.end)

    def critical_path(self) -> CriticalPath:
        """Walk back from the end of the run through whatever each step waited for. A step that streams a token through
        ends when its source does: its own duration then does not count."""
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
    """The steps that decided when a run ended, the last one first: unit and rate by number as in `EventLog` and `Step`,
    clocks in seconds, the packet or list position of the uOP, and how what came after depended on it."""

    unit: npt.NDArray[np.int32]
    rate: npt.NDArray[np.int32]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    origin: npt.NDArray[np.int32]
    via: npt.NDArray[np.int32]
