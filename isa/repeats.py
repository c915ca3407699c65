"""Op lists: what a unit that packets do not drive holds before the run, and the order in which it executes it.

An entry of a list may be a *repeat*. It does nothing itself: the `length` entries before it run `times` more times,
then the unit goes on behind the repeat. Repeats are not nested, so a unit needs one counter and no stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import ProgramError
from .fields import Record

Ints = npt.NDArray[np.int64]
Repeat = Callable[[Any], tuple[int, int] | None]
"""Given an entry of an op list, the `length` and `times` of a repeat; None for an op."""


@dataclass(frozen=True)
class Fault:
    """An entry that is no possible repeat. index: of the entry. code: of the finding."""

    index: int
    code: str
    message: str


@dataclass(frozen=True)
class OpList:
    """The op lists of one FU type.

    record: of an entry. words: 32-bit words that a unit holds. repeat: which entries are repeats; None if a list has
    none.
    """

    record: type[Record]
    words: int
    repeat: Repeat | None = None

    @property
    def longest(self) -> int:
        """Number of entries that a unit can hold."""
        return self.words // self.record.WORDS

    def repeated(self, entry: Any) -> tuple[int, int] | None:
        """Return (length, times) of an entry that is a repeat, None for an op and for a record of another type."""
        return self.repeat(entry) if self.repeat is not None and type(entry) is self.record else None

    def faults(self, entries: Sequence[Any]) -> Iterator[Fault]:
        """Yield a fault for each repeat of a list that is not possible."""
        for _, fault in self._runs(entries):
            if fault is not None:
                yield fault

    def runs(self, entries: Sequence[Any]) -> list[tuple[range, int]]:
        """Return the entries in execution order, as pairs: a range of indices of entries, and how often these run one
        after the other.

        Raises `ProgramError` for a repeat that is not possible.
        """
        out = []
        for run, fault in self._runs(entries):
            if fault is not None:
                raise ProgramError(f"{self.record.NAME} op {fault.index}: {fault.message}")
            out.append(run)
        return out

    def executed(self, entries: Sequence[Any]) -> int:
        """Return how many ops a list executes. Raises as `runs`; takes no longer for many repetitions."""
        return len(entries) if self.repeat is None else sum(len(part) * times for part, times in self.runs(entries))

    def order(self, entries: Sequence[Any]) -> Ints:
        """Return the index of each executed op's entry, a vector of int64. Raises as `runs`."""
        if self.repeat is None:
            return np.arange(len(entries))
        return np.concatenate([np.tile(np.arange(part.start, part.stop), times) for part, times in self.runs(entries)])

    def unrolled(self, entries: Sequence[Any]) -> Sequence[Any]:
        """Return the ops that a list executes. Raises as `runs`."""
        return entries if self.repeat is None else tuple(map(entries.__getitem__, self.order(entries).tolist()))

    def walk(self, entries: Sequence[Any]) -> Iterator[int]:
        """Yield what `order` returns, one after the other, without making the array. Raises as `runs`."""
        if self.repeat is None:
            return iter(range(len(entries)))
        return chain.from_iterable(part for part, times in self.runs(entries) for _ in range(times))

    def _runs(self, entries: Sequence[Any]) -> Iterator[tuple[tuple[range, int], Fault | None]]:
        """The pieces of `runs`, each with what is wrong with the repeat that makes it."""
        begun = 0  # behind the last repeat
        for i, entry in enumerate(entries) if self.repeat is not None else ():
            found = self.repeated(entry)
            if found is None:
                continue
            length, times = found
            yield (range(begun, i), 1), None
            yield (range(max(i - length, 0), i), times), self._fault(i, begun, length, times)
            begun = i + 1
        yield (range(begun, len(entries)), 1), None

    @staticmethod
    def _fault(index: int, begun: int, length: int, times: int) -> Fault | None:
        """What is wrong with the repeat at `index`. begun: the first entry behind the repeat before it."""
        if length < 1 or times < 1:
            return Fault(index, "M06", f"repeats {length} entries {times} times: a repeat of nothing")
        if length > index:
            return Fault(index, "M07", f"repeats {length} entries, but only {index} are before it")
        if length > index - begun:
            text = f"repeats {length} entries, of which op {begun - 1} is a repeat: repeats cannot be nested"
            return Fault(index, "M08", text)
        return None
