"""The double buffer that MemA, MemB and MemC have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from ....machine.description import UnitSpec
from ....machine.steps import Burst, Channel, Par, Steps
from ....machine.unit import Unit
from ....machine.wiring import Wiring
from .buffer import Buffer
from .loop import Loop
from .tiles import BEATS, BLOCK_WORDS, Array, Pieces, Places

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

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.cur = 0
        self.buffers: list[Buffer] = [Buffer(self.ROWS, self.COLS) for _ in range(2)] if net.data else []

    def renew(self, side: int, rows: int, cols: int) -> None:
        """Give a buffer new memory before its first rows x cols elements are written: tiles sent before are views of
        the old memory. The other elements keep their values."""
        if self.buffers:
            self.buffers[side].renew(rows, cols)

    def detach(self, side: int) -> None:
        """Give a buffer new memory before it is changed in place, for the same reason."""
        if self.buffers:
            self.buffers[side].detach()

    def load(self, source: Channel, rows: int, cols: int) -> Burst:
        """Return the burst that fills the buffer that is not current with rows x cols elements, in 128x64 blocks."""
        side = 1 - self.cur
        places = blocks_of(rows, cols)
        self.renew(side, rows, cols)
        at = 0

        def put(n: int, pieces: Pieces) -> None:
            nonlocal at
            at += n
            self.buffers[side].put_blocks(places[at - n : at], pieces, rows, cols)

        return Burst(len(places), "mem_word", BLOCK_WORDS, gets=(source,), words=BLOCK_WORDS, do=put)

    def send(self, sink: Channel, side: int, index: Places) -> Burst:
        """Return the burst that sends tiles of a buffer. index: row and column of each, in tiles."""
        at = 0

        def tiles(n: int) -> tuple[Sequence[Array]]:
            nonlocal at
            at += n
            return (self.buffers[side].tiles(index[at - n : at]),)

        return Burst(len(index), "mesh_beat", BEATS, puts=(sink,), do=tiles)

    def lanes(self, *lanes: Steps | None) -> Steps:
        """Run the lanes that are not None in parallel, then exchange the buffers."""
        active = [lane for lane in lanes if lane is not None]
        if len(active) > 1:
            yield Par(*active)
        elif active:
            yield from active[0]
        self.cur ^= 1


@cache
def blocks_of(rows: int, cols: int) -> Places:
    """Return the first row and column, in elements, of each whole 128x64 block of rows x cols elements, row after
    row."""
    return tuple((i, j) for i in range(0, rows - 127, 128) for j in range(0, cols - 63, 64))
