"""Finds the segments of a program (paper section 4.2) from its stores, without the network that it was compiled from.

A compiler gives each segment its own output buffer, and the order of the off-chip unit's uOPs shows when the buffer is
complete. So the stores show where each segment begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .expansion import Accesses, Expansion
from .program import Buffer, Program, Role


@dataclass(frozen=True)
class StoredSegment:
    """A segment: the uOPs that fill one buffer. first, last: numbers of the first and last uOP of `unit` that store to
    it."""

    buffer: Buffer
    unit: str
    first: int
    last: int

    @property
    def name(self) -> str:
        """The name of the buffer."""
        return self.buffer.name


def segments(expansion: Expansion) -> list[StoredSegment]:
    """Return the segments of a program, sorted by unit and, within a unit, by their last store."""
    found = []
    for bank, accesses in expansion.accesses.items():
        stored = accessed_buffers(expansion.program, bank, accesses)
        for unit, spec in enumerate(accesses.units):
            own = (accesses.unit == unit) & (stored >= 0) & accesses.store
            for order in np.unique(stored[own]).tolist():
                uops = accesses.uop[own & (stored == order)]
                found.append(
                    StoredSegment(expansion.program.buffers[order], spec.name, int(uops.min()), int(uops.max()))
                )
    return sorted(found, key=lambda s: (s.unit, s.last))


def accessed_buffers(program: Program, bank: str, accesses: Accesses) -> npt.NDArray[np.int64]:
    """Return for each access of a bank the index in `program.buffers` of the buffer that it accesses, -1 if none.

    Buffers that share memory are filled one after the other, in the order of their declaration: the n-th store to an
    address belongs to the n-th buffer there, and a load reads the buffer stored last, or an input.
    """
    unit = program.overlay.address_unit
    out = np.full(len(accesses), -1, np.int64)
    spans = [
        (b.offset * unit, b.offset * unit + b.size, number, b.role in (Role.INPUT, Role.WEIGHT))
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
