"""Finds the buffer that an off-chip address belongs to, to print a name instead of a number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from .program import Buffer


class BufferMap:
    """Finds the buffers that hold an address. unit: float32 elements per address unit.

    If buffers share memory, the likeliest one is found from the accesses noted with `note_access`, in program order: a
    compiler fills buffers in the order of their declaration, so a load reads the buffer stored last, and a store to a
    buffer that was loaded starts the next buffer.
    """

    WINDOW = 256
    """Largest number of buffers, of those that start at or before an address, that are searched."""

    def __init__(self, buffers: Iterable[Buffer], unit: int) -> None:
        self.unit = unit
        self._banks: dict[str, list[tuple[int, int, int, Buffer]]] = {}
        for order, b in enumerate(buffers):
            self._banks.setdefault(b.bank, []).append((b.offset, order, b.offset - (-b.size // unit), b))
        for row in self._banks.values():
            row.sort(key=lambda entry: entry[:2])
        self._starts = {bank: [offset for offset, *_ in row] for bank, row in self._banks.items()}
        # The largest end of the buffers up to each: an address at or beyond it lies in none of them.
        self._ends = {bank: list(accumulate((end for _, _, end, _ in row), max)) for bank, row in self._banks.items()}
        self._stored: dict[str, int] = {}
        self._loaded: set[int] = set()

    def candidates(self, bank: str, addr: int, store: bool) -> list[tuple[int, Buffer]]:
        """Return the buffers that hold address `addr` (address units), each with its position in the declarations; no
        buffer if the bank is unknown.

        The likeliest buffer for a store or a load comes first. store: the access is a store.
        """
        row, ends = self._banks.get(bank, []), self._ends.get(bank, [])
        stop = bisect_right(self._starts.get(bank, []), addr)
        found = []
        for i in range(stop - 1, max(0, stop - self.WINDOW) - 1, -1):
            if ends[i] <= addr:
                break
            _, order, end, b = row[i]
            if addr < end:
                found.append((order, b))
        if len(found) > 1:
            stored = self._stored.get(bank, -1)
            if store:
                found.sort(key=lambda entry: (entry[0] < stored and entry[0] in self._loaded, entry[0]))
            else:
                found.sort(key=lambda entry: (entry[0] > stored, abs(entry[0] - stored)))
        return found

    def note_access(self, bank: str, order: int, store: bool) -> None:
        """Note a store to a buffer of `bank`, or a load from it. order: the buffer's position in the declarations, as
        `candidates` returns it.
        """
        if store:
            self._stored[bank] = max(order, self._stored.get(bank, -1))
        else:
            self._loaded.add(order)
