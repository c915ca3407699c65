"""Names an address after a buffer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from .program import Buffer


class BufferMap:
    """Names an address after a buffer. Where buffers share memory in turn, it follows the order of their declaration,
    which is the order in which a compiler fills them: a load reads the latest one stored, a store to what was loaded
    begins the next.
    """

    WINDOW = 256
    """How many of the buffers that start at or before an address are looked at."""

    def __init__(self, buffers: Iterable[Buffer], unit: int) -> None:
        self.unit = unit
        self._banks: dict[str, list[tuple[int, int, int, Buffer]]] = {}
        for order, b in enumerate(buffers):
            self._banks.setdefault(b.bank, []).append((b.offset, order, b.offset - (-b.size // unit), b))
        for row in self._banks.values():
            row.sort(key=lambda entry: entry[:2])
        self._starts = {bank: [offset for offset, *_ in row] for bank, row in self._banks.items()}
        # Where the buffers up to here end: before that, no address lies in any of them.
        self._ends = {bank: list(accumulate((end for _, _, end, _ in row), max)) for bank, row in self._banks.items()}
        self._stored: dict[str, int] = {}
        self._loaded: set[int] = set()

    def around(self, bank: str, addr: int, store: bool) -> list[tuple[int, Buffer]]:
        """The buffers that an address lies in, with their order of declaration, the likeliest first."""
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

    def touch(self, bank: str, order: int, store: bool) -> None:
        """Note that a buffer, by its order of declaration, is stored to or loaded from."""
        if store:
            self._stored[bank] = max(order, self._stored.get(bank, -1))
        else:
            self._loaded.add(order)
