"""The double buffer that MemA, MemB and MemC have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from ....machine.description import UnitSpec
from ....machine.executor import ProcessNetwork
from ....machine.steps import Burst, Channel, Par, Steps
from ....machine.unit import Unit
from ...layout import unblock
from .loop import Loop
from .tiles import BEATS, BLOCK_WORDS, Array, Pieces, Places, Tiles

LOOPS: Mapping[str, Loop] = {
    "load": Loop(1, 4, "a word into a buffer"),
    "store": Loop(1, 4, "a word out of a buffer"),
    "send": Loop(1, 4, "a beat out of a buffer"),
}


class PingPong(Unit):
    """A double buffer whose flag `cur` flips after every uOP, the empty ones included, and lives for the whole run. The
    flag says which buffer a step touches, not which steps there are: it takes no part in any `effect_key`."""

    ROWS = 0
    COLS = 0

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.cur = 0
        self.buffers: list[Array] = []
        if net.data:
            self.buffers = [np.full((self.ROWS, self.COLS), np.nan, np.float32) for _ in range(2)]

    def fresh(self, side: int, rows: int, cols: int) -> None:
        """Replace a buffer before rows x cols of it are overwritten; the rest stays stale."""
        if self.buffers:
            old = self.buffers[side]
            whole = rows >= self.ROWS and cols >= self.COLS
            self.buffers[side] = np.empty_like(old) if whole else old.copy()

    def load(self, source: Channel, rows: int, cols: int) -> Burst:
        """Fill the buffer that is not current with rows x cols, in 128x64 blocks as they come."""
        side = 1 - self.cur
        count = (rows // 128) * (cols // 64)
        places = iter(blocks_of(rows, cols))
        self.fresh(side, rows, cols)

        def put(n: int, pieces: Pieces) -> None:
            if n == count and isinstance(pieces, np.ndarray):  # all of them, as they lay in memory
                if (rows, cols) == (self.ROWS, self.COLS):
                    self.buffers[side] = unblock(pieces, rows, cols)
                else:
                    self.buffers[side][:rows, :cols] = unblock(pieces, rows, cols)
                return
            buffer = self.buffers[side]
            for piece, (i, j) in zip(pieces, islice(places, n), strict=True):
                buffer[i : i + 128, j : j + 64] = unblock(piece, 128, 64)

        return Burst(count, "mem_word", BLOCK_WORDS, gets=(source,), words=BLOCK_WORDS, do=put)

    def send(self, sink: Channel, side: int, index: Places) -> Burst:
        """Send tiles of a buffer."""
        at = 0

        def tiles(n: int) -> tuple[Tiles]:
            nonlocal at
            at += n
            return (Tiles(self.buffers[side], index[at - n : at]),)

        return Burst(len(index), "mesh_beat", BEATS, puts=(sink,), do=tiles)

    def lanes(self, *lanes: Steps | None) -> Steps:
        """Run what is enabled side by side, then flip."""
        active = [lane for lane in lanes if lane is not None]
        if len(active) > 1:
            yield Par(*active)
        elif active:
            yield from active[0]
        self.cur ^= 1


def blocks_of(rows: int, cols: int) -> Iterator[tuple[int, int]]:
    """First row and column of each 128x64 block, row after row."""
    return ((i, j) for i in range(0, rows - 127, 128) for j in range(0, cols - 63, 64))
