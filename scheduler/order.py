"""The order of loads and stores on the one DDR channel (paper section 4.4 and Fig. 12).

A tile's loads come in the order in which its Mems want them, its stores in the order in which its MemCs deliver them.
What is free is how stores fall between later loads. The rule that is not free: a load of what a store writes comes
behind it, because read-after-write through DDR is ordered by nothing but this list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..isa.layout import BLOCK, UNIT
from ..isa.overlays.xnn_formats import Ddr
from .schedule import Interleave, Schedule

BLOCK_UNITS = BLOCK // UNIT
LATE_START = 0.6
"""Share of the next tile's loads that go ahead of the stores of a tile with a post-op, which keeps MemC busy first: a
GELU or LayerNorm takes about half of the time of a large tile, and DDR would wait for it."""


@dataclass(frozen=True)
class Access:
    """`rows` x `cols` blocks from block (row, col) of a matrix at `base` that is `width` blocks wide."""

    peer: str
    store: bool
    base: int
    width: int
    row: int
    rows: int
    col: int
    cols: int

    @property
    def blocks(self) -> int:
        return self.rows * self.cols

    @property
    def span(self) -> tuple[int, int]:
        """First and one past the last address unit it touches."""
        first = self.row * self.width + self.col
        last = (self.row + self.rows - 1) * self.width + self.col + self.cols
        return self.base + first * BLOCK_UNITS, self.base + last * BLOCK_UNITS

    def mop(self) -> Ddr:
        whole = self.cols == self.width or self.rows == 1
        flag = f"{'from' if self.store else 'to'}_{self.peer[3:].lower()}"
        return Ddr(
            addr=self.span[0],
            size=(self.blocks if whole else self.cols) * BLOCK,
            chunks=1 if whole else self.rows,
            chunk_stride=0 if whole else self.width * BLOCK_UNITS,
            load=int(not self.store),
            store=int(self.store),
            **{flag: 1},
        )


@dataclass
class Tile:
    """What one output tile (or attention slot) loads and stores. Its stores go among the loads of the tile `lag` later,
    behind about half of them if `late`."""

    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    lag: int = 1
    late: bool = False


def order_accesses(tiles: Sequence[Tile], schedule: Schedule) -> Iterator[Ddr]:
    """The DDR uOP order of a program, as mOPs."""
    queue: deque[tuple[int, Access]] = deque()  # stores not yet issued, and the tile among whose loads they are due
    late: set[int] = set()
    for i, tile in enumerate(tiles):
        ready = sum(1 for due, _ in queue if due <= i)
        if schedule.interleave is Interleave.STRICT:
            for _ in range(ready):
                yield queue.popleft()[1].mop()
            ready = 0
        start = int(len(tile.loads) * LATE_START) if i in late else 0
        gaps = len(tile.loads) - start
        issued = 0
        for n, load in enumerate(tile.loads):
            behind = max((k for k, (_, store) in enumerate(queue, 1) if _overlap(load, store)), default=0)
            share = ready * (n - start) // gaps if n >= start else 0
            for _ in range(max(behind, share - issued)):
                yield queue.popleft()[1].mop()
                issued += 1
            yield load.mop()
        for _ in range(ready - issued):
            yield queue.popleft()[1].mop()
        queue.extend((i + tile.lag, store) for store in tile.stores)
        if tile.late:
            late.add(i + tile.lag)
    while queue:
        yield queue.popleft()[1].mop()


def _overlap(a: Access, b: Access) -> bool:
    (a0, a1), (b0, b1) = a.span, b.span
    return a0 < b1 and b0 < a1
