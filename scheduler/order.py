"""The order of loads and stores on the one DDR channel (paper section 4.4 and Fig. 12).

A tile's loads come in the order in which its Mems want them, its stores in the order in which its MemCs deliver them.
What is free is how stores fall between later loads. The rule that is not free: a load of what a store writes comes
behind it, because read-after-write through DDR is ordered by nothing but this list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..isa.layout import BLOCK, UNIT
from ..isa.overlays.xnn_formats import Ddr
from .schedule import Interleave, Schedule

BLOCK_UNITS = BLOCK // UNIT


class When(Enum):
    """Where the stores of a tile fall among later loads."""

    EVENLY = "evenly"
    LATE = "late"
    """Behind the first `LATE_START` of them: a post-op keeps MemC busy first."""
    SOON = "soon"
    """Among the first `SOON_LOADS`: the next segment soon waits for the MemCs that hold them."""


SOON_LOADS = 6
LATE_START = 0.6
"""Share of the next tile's loads that go ahead of the stores of a tile with a post-op, which keeps MemC busy first: a
GELU or LayerNorm takes about half of the time of a large tile, and DDR would wait for it."""


@dataclass(frozen=True)
class Access:
    """`chunks` pieces of `blocks` contiguous blocks each, `stride` blocks apart, from address `addr` on."""

    peer: str
    store: bool
    addr: int
    blocks: int
    chunks: int = 1
    stride: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """First and one past the last address unit it touches."""
        return self.addr, self.addr + ((self.chunks - 1) * self.stride + self.blocks) * BLOCK_UNITS

    def mop(self) -> Ddr:
        flag = f"{'from' if self.store else 'to'}_{self.peer[3:].lower()}"
        return Ddr(
            addr=self.addr,
            size=self.blocks * BLOCK,
            chunks=self.chunks,
            chunk_stride=self.stride * BLOCK_UNITS,
            load=int(not self.store),
            store=int(self.store),
            **{flag: 1},
        )


@dataclass
class Tile:
    """What one output tile (or attention slot) loads and stores. Its stores go among the loads of the tile `lag` later:
    `when` says how far from the first to the last one."""

    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    lag: int = 1
    when: When = When.EVENLY


def order_accesses(tiles: Sequence[Tile], schedule: Schedule) -> Iterator[Ddr]:
    """The DDR uOP order of a program, as mOPs."""
    queue: deque[tuple[int, Access]] = deque()  # stores not yet issued, and the tile among whose loads they are due
    whens: dict[int, When] = {}
    for i, tile in enumerate(tiles):
        ready = sum(1 for due, _ in queue if due <= i)
        if schedule.interleave is Interleave.STRICT:
            for _ in range(ready):
                yield queue.popleft()[1].mop()
            ready = 0
        when = whens.get(i, When.EVENLY)
        start = int(len(tile.loads) * LATE_START) if when is When.LATE else 0
        gaps = min(SOON_LOADS, len(tile.loads)) if when is When.SOON else len(tile.loads) - start
        issued = 0
        for n, load in enumerate(tile.loads):
            behind = max((k for k, (_, store) in enumerate(queue, 1) if _overlap(load, store)), default=0)
            share = ready * min(n - start, gaps) // gaps if n >= start else 0
            for _ in range(max(behind, share - issued)):
                yield queue.popleft()[1].mop()
                issued += 1
            yield load.mop()
        for _ in range(ready - issued):
            yield queue.popleft()[1].mop()
        queue.extend((i + tile.lag, store) for store in tile.stores)
        if tile.stores:
            whens[i + tile.lag] = tile.when
    while queue:
        yield queue.popleft()[1].mop()


def _overlap(a: Access, b: Access) -> bool:
    (a0, a1), (b0, b1) = a.span, b.span
    return a0 < b1 and b0 < a1
