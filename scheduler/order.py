"""The order of loads and stores on the one DDR channel (paper section 4.4 and Fig. 12).

The loads of a tile come in the order in which its Mems take them, its stores in the order in which its MemCs deliver
them. Free is only where stores go between later loads. A load always comes behind the store of the data that it reads,
because nothing but this list orders read-after-write through DDR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..isa.layout import padded
from ..isa.packet import MAX_WINDOW
from ..isa.work import Access, RowStore
from .schedule import DramPolicy, Interleave


@dataclass
class TileAccesses:
    """DDR accesses of one output tile or attention slot.

    Its stores go between the loads of the tile `lag` later: behind the first `ahead` loads, evenly spread over the next
    `within` loads (None: all that follow). head: number of loads before those of the product. step: number of loads of
    one slice of K. rule: list scheduling policy of its segment. drain: all stores so far end before the next load.
    """

    loads: list[Access] = field(default_factory=list)
    stores: list[Access | RowStore] = field(default_factory=list)
    rule: DramPolicy = field(default_factory=DramPolicy)
    lag: int = 1
    ahead: int = 0
    within: int | None = None
    head: int = 0
    step: int = 1
    drain: bool = False


def order_accesses(tiles: Sequence[TileAccesses], interleave: Interleave) -> Iterator[Access | RowStore]:
    """Order the DDR accesses of a program by a fixed rule. interleave: STRICT or INTERLEAVED."""
    # stores not yet issued: index of the tile among whose loads they are due, access, first and end element
    queue: deque[tuple[int, Access | RowStore, int, int]] = deque()
    due: dict[int, TileAccesses] = {}
    for i, tile in enumerate(tiles):
        loads = tile.loads
        ready = sum(1 for at, *_ in queue if at <= i)
        if interleave is Interleave.STRICT:
            for _ in range(ready):
                yield queue.popleft()[1]
            ready = 0
        owner = due.get(i, TileAccesses())
        start = min(owner.ahead, len(loads))
        gaps = min(owner.within or len(loads), len(loads) - start)
        if ready and len(loads) + ready > MAX_WINDOW and gaps >= ready * tile.step:
            # too many mOPs for one window: let the loads between two stores form a loop, not across the ends of panels
            every = tile.step << (gaps // ready // tile.step).bit_length() - 1
            aligned = tile.head + padded(max(0, start - tile.head), every)
            start = min(aligned, len(loads) - ready * every)
            gaps = ready * every
        issued = 0
        for n, load in enumerate(loads):
            low, high = load.span
            behind = 0
            for k, (_, _, first, end) in enumerate(queue, 1):
                if first < high and low < end:
                    behind = k
            share = ready * min(n - start, gaps) // gaps if n >= start and gaps else 0
            for _ in range(max(behind, share - issued)):
                yield queue.popleft()[1]
                issued += 1
            yield load
        for _ in range(ready - issued):
            yield queue.popleft()[1]
        queue.extend((i + tile.lag, store, *store.span) for store in tile.stores)
        if tile.stores:
            due[i + tile.lag] = tile
        while tile.drain and queue:
            yield queue.popleft()[1]
    while queue:
        yield queue.popleft()[1]
