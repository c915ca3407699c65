"""Which buffer each off-chip access of a program means, and which stores fill a buffer.

Buffers may share memory one after the other. A compiled program says which uOPs each segment has and which buffers it
fills (`Program.segments`), so it is known which of them an access means. A text says what segments there are, but not
their uOPs; then, and without segments, the n-th store to an address is taken for one to the n-th buffer there. What
fills one buffer is the best guess of what a segment is where no file says it (paper section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .expansion import Accesses, ExpandedProgram, Ints
from .program import Buffer, Program, Role


@dataclass(frozen=True)
class StoredBuffer:
    """A buffer that the program fills. first, last: numbers of the first and last uOP of `unit` that store to it."""

    buffer: Buffer
    unit: str
    first: int
    last: int

    @property
    def name(self) -> str:
        """The name of the buffer that is filled."""
        return self.buffer.name


def stored_buffers(expansion: ExpandedProgram) -> list[StoredBuffer]:
    """Return the buffers that a program fills, sorted by unit and, within a unit, by their last store."""
    found = []
    for bank, accesses in expansion.accesses.items():
        stored = accessed_buffers(expansion.program, bank, accesses)
        for unit, spec in enumerate(accesses.units):
            own = (accesses.unit == unit) & (stored >= 0) & accesses.store
            for order in np.unique(stored[own]).tolist():
                uops = accesses.uop[own & (stored == order)]
                found.append(
                    StoredBuffer(expansion.program.buffers[order], spec.name, int(uops.min()), int(uops.max()))
                )
    return sorted(found, key=lambda s: (s.unit, s.last))


def accessed_buffers(program: Program, bank: str, accesses: Accesses) -> Ints:
    """Return, for each access of a bank, the index in `program.buffers` of the buffer that it accesses, -1 if none: a
    vector of int64. accesses: those of the bank, as in `ExpandedProgram.accesses`.
    """
    return _recorded(program, bank, accesses) if have_uops(program) else _guessed(program, bank, accesses)


def have_uops(program: Program) -> bool:
    """Whether the uOPs of a program's segments are known; a text only declares segments."""
    return any(segment.uops for segment in program.segments)


def _recorded(program: Program, bank: str, accesses: Accesses) -> Ints:
    """As `accessed_buffers`, by segments: outputs hold their memory from their segment on, until a later output takes
    it; all other buffers, such as inputs and weights, hold theirs always."""
    out = np.full(len(accesses), -1, np.int64)
    numbers = {b.name: number for number, b in enumerate(program.buffers) if b.bank == bank}
    made = {name for segment in program.segments for name in segment.outputs}
    held = _CurrentBuffers(program, [number for name, number in numbers.items() if name not in made])
    for segment, rows in zip(program.segments, _rows(program, accesses), strict=True):
        loads = rows[~accesses.store[rows]]
        out[loads] = held.at(accesses.start[loads])
        held.fill([numbers[name] for name in segment.outputs if name in numbers])
        stores = rows[accesses.store[rows]]
        out[stores] = held.at(accesses.start[stores])
    return out


def _rows(program: Program, accesses: Accesses) -> Iterator[Ints]:
    """The accesses of each segment, as indices."""
    starts = [int(np.searchsorted(accesses.unit, unit)) for unit in range(len(accesses.units))]
    ends = [*starts[1:], len(accesses)]
    for segment in program.segments:
        found = [np.zeros(0, np.int64)]
        for spec, start, end in zip(accesses.units, starts, ends, strict=True):
            uops = accesses.uop[start:end]
            for first, behind in segment.uops.get(spec.name, ()):
                a, b = np.searchsorted(uops, (first, behind)).tolist()
                found.append(np.arange(start + a, start + b))
        yield np.concatenate(found)


class _CurrentBuffers:
    """Which buffers hold their contents now: those that no later one has overwritten."""

    def __init__(self, program: Program, given: list[int]) -> None:
        self._program = program
        self._live: list[tuple[int, int, int]] = []
        self.fill(given)

    def fill(self, numbers: list[int]) -> None:
        """Put buffers in the place of those that they overlap."""
        new = []
        for number in numbers:
            place = self._program.place(self._program.buffers[number])
            new.append((place.start, place.stop, number))
        kept = [old for old in self._live if not any(start < old[1] and old[0] < end for start, end, _ in new)]
        self._live = sorted(kept + new)
        self._edges, self._ends, self._numbers = np.array(self._live, np.int64).reshape(-1, 3).T

    def at(self, places: Ints) -> Ints:
        """The number of the buffer at each place, -1 if there is none."""
        if not self._live:
            return np.full(len(places), -1, np.int64)
        i = np.searchsorted(self._edges, places, "right") - 1
        return np.where((i >= 0) & (places < self._ends[i]), self._numbers[i], -1)


def _guessed(program: Program, bank: str, accesses: Accesses) -> Ints:
    """As `accessed_buffers`, without segments. Buffers that share memory are filled one after the other, in the order
    of their declaration: the n-th store to an address belongs to the n-th buffer there, and a load reads the buffer
    stored last, or an input."""
    out = np.full(len(accesses), -1, np.int64)
    spans = [
        (program.place(b).start, program.place(b).stop, number, b.role in (Role.INPUT, Role.WEIGHT))
        for number, b in enumerate(program.buffers)
        if b.bank == bank
    ]
    edges = np.unique(np.concatenate([accesses.start, accesses.end]))
    first, last = (np.searchsorted(edges, at).tolist() for at in (accesses.start, accesses.end))
    times = [0] * len(edges)  # how often each piece between two edges was stored to
    known: dict[int, tuple[list[int], int]] = {}
    stores = accesses.store.tolist()
    for i in np.lexsort((accesses.uop, accesses.unit)).tolist():
        low, high = first[i], last[i]
        if stores[i]:
            for piece in range(low, high):
                times[piece] += 1
        if low not in known:
            start = int(edges[low])
            here = [(number, given) for begin, end, number, given in spans if begin <= start < end]
            filled = [number for number, given in here if not given]
            known[low] = filled, next((number for number, given in here if given), -1)
        filled, held = known[low]
        n = max(times[low:high], default=0)
        if n and filled:
            out[i] = filled[min(n, len(filled)) - 1]
        elif held >= 0 or filled:
            out[i] = held if held >= 0 else filled[0]
    return out
