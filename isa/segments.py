"""The segments of a program: what writes one buffer after the other (paper section 4.2), found from the program alone.

A compiler gives every segment a buffer of its own for what it computes, and the off-chip unit's order says when that is
complete. So a program tells where its segments end without being told what they were compiled from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .expansion import Accesses, Expansion
from .program import Buffer, Program, Role


@dataclass(frozen=True)
class StoredSegment:
    """What fills one buffer. first, last: the first and the last uOP of `unit` that stores to it."""

    buffer: Buffer
    unit: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return self.buffer.name


def segments(expansion: Expansion) -> list[StoredSegment]:
    """Unit by unit in the order in which they are completed."""
    found = []
    for bank, accesses in expansion.accesses.items():
        stored = owners(expansion.program, bank, accesses)
        for unit, spec in enumerate(accesses.units):
            own = (accesses.unit == unit) & (stored >= 0) & accesses.store
            for order in np.unique(stored[own]).tolist():
                uops = accesses.uop[own & (stored == order)]
                found.append(
                    StoredSegment(expansion.program.buffers[order], spec.name, int(uops.min()), int(uops.max()))
                )
    return sorted(found, key=lambda s: (s.unit, s.last))


def owners(program: Program, bank: str, accesses: Accesses) -> npt.NDArray[np.int64]:
    """For each access the number of the buffer that it is about, -1 for none.

    Buffers that share memory are filled in turn, in the order of their declaration: what is stored to an address for
    the n-th time belongs to the n-th buffer there, and a load reads what was stored last, or an input.
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
