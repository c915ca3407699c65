"""The segments of a program: what writes one buffer after the other (paper section 4.2), found from the program alone.

A compiler gives every segment a buffer of its own for what it computes, and the off-chip unit's order says when that is
complete. So a program tells where its segments end without being told what they were compiled from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .atlas import Atlas
from .expansion import Expansion
from .program import Buffer


@dataclass(frozen=True)
class Segment:
    """What fills one buffer. first, last: the first and the last uOP of `unit` that stores to it."""

    buffer: Buffer
    unit: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return self.buffer.name


def segments(expansion: Expansion) -> list[Segment]:
    """In the order in which they are completed. Buffers that share memory are told apart as the disassembler does."""
    program = expansion.program
    unit = program.overlay.address_unit
    found: dict[tuple[str, int], list[int]] = {}
    for bank, accesses in expansion.accesses.items():
        atlas = Atlas(program.buffers, unit)
        buffers = [b for b in program.buffers if b.bank == bank]
        edges = np.unique([e for b in buffers for e in (b.offset * unit, b.offset * unit + b.size)])
        cells = np.searchsorted(edges, accesses.start, "right").tolist()
        known: dict[tuple[int, bool], int] = {}  # order of the buffer by cell and direction; good until one is touched
        touched: set[tuple[int, bool]] = set()
        rows = zip(cells, accesses.unit.tolist(), accesses.uop.tolist(), accesses.start.tolist(), strict=True)
        for (cell, by, uop, start), store in zip(rows, accesses.store.tolist(), strict=True):
            order = known.get((cell, store))
            if order is None:
                held = atlas.around(bank, start // unit, store)
                order = known[cell, store] = held[0][0] if held else -1
            if order < 0:
                continue
            if (order, store) not in touched:
                touched.add((order, store))
                atlas.touch(bank, order, store)
                known.clear()
            if store:
                span = found.setdefault((accesses.units[by].name, order), [uop, uop])
                span[1] = uop
    rows_ = [Segment(program.buffers[order], name, first, last) for (name, order), (first, last) in found.items()]
    return sorted(rows_, key=lambda s: s.last)
