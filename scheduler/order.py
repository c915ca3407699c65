"""The order of loads and stores on the one DDR channel (paper section 4.4 and Fig. 12).

A tile's loads come in the order in which its Mems want them, its stores in the order in which its MemCs deliver them.
What is free is how stores fall between later loads. The rule that is not free: a load of what a store writes comes
behind it, because read-after-write through DDR is ordered by nothing but this list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from ..isa.layout import BLOCK, UNIT, padded
from ..isa.overlays.xnn.formats import Ddr
from ..isa.packet import MAX_WINDOW
from .schedule import DramPolicy, Interleave, Schedule

BLOCK_UNITS = BLOCK // UNIT


class Access(NamedTuple):
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
        return _mop(self.peer, self.store, self.blocks, self.chunks, self.stride).replace(addr=self.addr)


@cache
def _mop(peer: str, store: bool, blocks: int, chunks: int, stride: int) -> Ddr:
    flag = f"{'from' if store else 'to'}_{peer[3:].lower()}"
    return Ddr(
        size=blocks * BLOCK,
        chunks=chunks,
        chunk_stride=stride * BLOCK_UNITS,
        load=int(not store),
        store=int(store),
        **{flag: 1},
    )


@dataclass
class Tile:
    """What one output tile (or attention slot) loads and stores. Its stores go among the loads of the tile `lag` later:
    behind `ahead` of them, evenly spread over the next `within` (or all that follow). head: loads before the product's;
    step: loads of one slice of K. rule: of the segment it belongs to. drain: nothing is loaded behind it before all is
    stored."""

    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    rule: DramPolicy = field(default_factory=DramPolicy)
    lag: int = 1
    ahead: int = 0
    within: int | None = None
    head: int = 0
    step: int = 1
    drain: bool = False


HALF_TILE = 3
"""Row blocks of an output tile of which each MemA and MemC holds but one, of the two that it has room for."""


def interleave_of(schedule: Schedule, row_blocks: int) -> Interleave:
    """How loads and stores of a program of so many row blocks share DDR.

    The published host has its programs of half tiles run layer by layer, without interleaving. That is known of the
    projections of BERT-Large at L = 384, B = 1; of its other layers it is inferred from the time of the whole.
    """
    if schedule.interleave is not Interleave.PUBLISHED:
        return schedule.interleave
    return Interleave.STRICT if row_blocks <= HALF_TILE else Interleave.INTERLEAVED


def order_accesses(tiles: Sequence[Tile], interleave: Interleave) -> Iterator[Ddr]:
    """The DDR uOP order of a program, as mOPs. interleave: STRICT or INTERLEAVED."""
    # stores not yet issued: the tile among whose loads they are due, and what they touch
    queue: deque[tuple[int, Access, int, int]] = deque()
    due: dict[int, Tile] = {}
    for i, tile in enumerate(tiles):
        loads = tile.loads
        ready = sum(1 for at, *_ in queue if at <= i)
        if interleave is Interleave.STRICT:
            for _ in range(ready):
                yield queue.popleft()[1].mop()
            ready = 0
        owner = due.get(i, Tile())
        start = min(owner.ahead, len(loads))
        gaps = min(owner.within or len(loads), len(loads) - start)
        if ready and len(loads) + ready > MAX_WINDOW and gaps >= ready * tile.step:
            # the tile cannot be one window: let the loads between two stores loop, and not across the ends of panels
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
                yield queue.popleft()[1].mop()
                issued += 1
            yield load.mop()
        for _ in range(ready - issued):
            yield queue.popleft()[1].mop()
        queue.extend((i + tile.lag, store, *store.span) for store in tile.stores)
        if tile.stores:
            due[i + tile.lag] = tile
        while tile.drain and queue:
            yield queue.popleft()[1].mop()
    while queue:
        yield queue.popleft()[1].mop()
