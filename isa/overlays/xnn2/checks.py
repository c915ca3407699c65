"""What `check` knows about programs for xnn2 beyond counting words.

Tokens order all writes and reads of a slot (`order.py`); norms have statistics of the rows that they are applied to
(`row_checks.py`); Softmax and T mean the same by a head; rotations have a table; halves of tiles are multiplied as such
(`half_tiles.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....base.finding import Finding
from ...expansion import ExpandedProgram, Ints
from ...lanes import SlotPart, TileSource
from . import half_tiles
from .operands import FROM_DDR, LANES, OF_PORT, KvIn, KvOut, writer_of
from .order import Flags, MemoryPorts, Reads, Written, fields_of, reads_of, spread
from .ports import TILE_BLOCKS
from .results import Post, Soft
from .row_checks import RowMemory
from .rows import XOut
from .scratch import TIn, TOut

HALVES = 2
"""Cells of a slot of T, whose halves may be written and sent apart."""


def rules(expansion: ExpandedProgram, balanced: bool) -> Iterator[Finding]:
    """Yield all findings about a program: of the memories X, T, K and V, of joined statistics, heads, rotations, and
    halves of tiles.

    expansion: of a program with the units of xnn2; raises `KeyError` for another. balanced: sends equal receives on
    every stream, so that it is known which tile goes where. Mistakes in the counts of tokens alone are not reported:
    streams that do not balance have findings of their own."""
    for unit in expansion.overlay.by_kind["XIn"]:
        yield from RowMemory(expansion, unit.index).findings()
    for unit in expansion.overlay.by_kind["TIn"]:
        yield from Scratch(expansion, unit.index).findings()
    for unit in expansion.overlay.by_kind["KvOut"]:
        yield from HeadSlots(expansion, unit.index).findings()
    yield from _joins(expansion)
    yield from _ends_of_heads(expansion)
    yield from _tables(expansion)
    if balanced:
        yield from half_tiles.findings(expansion)


class HeadSlots(MemoryPorts):
    """The checks of one memory of keys or values. kv: its number, 0 to 3 for K0, K1, V0, V1. A cell (`Written`) is a
    slot of that memory."""

    kind = "Kv"
    earlier = "uOPs before it that write the same memory"

    def __init__(self, expansion: ExpandedProgram, kv: int) -> None:
        super().__init__(expansion, kv, writer_of(kv))
        self.number, self.own = kv % OF_PORT, self.slots // OF_PORT

    def writer_slot(self, cell: int) -> int:
        return self.number * self.own + cell

    def check(self) -> None:
        w, r = fields_of(self.x, self.writer, KvIn), fields_of(self.x, self.reader, KvOut)
        here = w["slot"] // self.own == self.number
        waits, tiles = (np.where(here, w[name], 0) for name in ("wait", "tiles"))
        op, i = spread(tiles)
        at = np.arange(1, len(op) + 1)
        both = w["source"][op] != FROM_DDR
        cells = np.concatenate([w["slot"][op] + i, (w["second"][op] + i)[both]]) % self.own
        written = Written.of(waits, tiles, cells, np.concatenate([at, at[both]]))
        sent = np.where(r["lanes"] > 0, r["tiles"] * np.where(r["wide"], TILE_BLOCKS, 1), 0)
        op, i = spread(sent)
        port = reads_of(self.reader, written, r["wait"], op, (r["slot"][op] + i) % self.own)
        self.compare(written, [port], np.zeros(0, np.int64))


class Scratch(MemoryPorts):
    """The checks of a memory T. Its cells (`Written`) are the halves of its slots, left and right in turn, and behind
    these one cell for each slot: it is written when a head of probabilities ends whose first tile is in that slot."""

    kind = "T"

    def slot(self, cell: int) -> int:
        return cell // HALVES if cell < HALVES * self.slots else cell - HALVES * self.slots

    def check(self) -> None:
        w, r = fields_of(self.x, self.writer, TIn), fields_of(self.x, self.reader, TOut)
        ends_from = HALVES * self.slots
        op, i = spread(w["tiles"])
        at = np.arange(1, len(op) + 1)
        slot = (w["slot"][op] + i) % self.slots
        left = w["part"][op] != SlotPart.RIGHT  # a write of the left half makes the right one 0
        soft = w["source"] == TileSource.SOFTMAX
        (heads,) = np.nonzero(soft & (w["tiles"] > 0))
        cells = np.concatenate([HALVES * slot[left], HALVES * slot + 1, ends_from + w["slot"][heads]])
        tiles = np.concatenate([at[left], at, np.cumsum(w["tiles"])[heads]])
        written = Written.of(w["wait"], w["tiles"], cells, tiles)
        op, i = spread(np.where(r["times"] > 0, r["tiles"], 0))
        slot = (r["slot"][op] + i) % self.slots
        a, b = r["part"][op] != SlotPart.RIGHT, r["part"][op] != SlotPart.LEFT
        (ended,) = np.nonzero((r["weights"] > 0) & (r["tiles"] > 0) & (r["times"] > 0))
        of = np.concatenate([op[a], op[b], ended])
        cells = np.concatenate([HALVES * slot[a], HALVES * slot[b] + 1, ends_from + r["slot"][ended]])
        port = reads_of(self.reader, written, r["wait"], of, cells)
        (got,) = self.compare(written, [port], np.zeros(0, np.int64))
        self.heads(written, port, got, r["weights"] > 0, soft, len(ended))

    def heads(self, written: Written, port: Reads, got: Ints, weights: Flags, soft: Flags, ended: int) -> None:
        """Report probabilities that are sent without their last factor, or with that of another head (Y07).

        got: the write that each read gets, as `compare` returns it. weights: for each operation of the read port,
        whether it applies last factors. soft: for each operation of the write port, whether its tiles come from
        Softmax. ended: number of reads of ends of heads, which are the last reads of `port`."""
        known = got >= 0
        by = np.where(known, written.op[written.tile[np.where(known, got, 0)]] if len(written.tile) else -1, -1)
        tiles = slice(len(got) - ended)
        head = np.full(len(weights), -1)  # by operation of the read port, the one that wrote the end of its head
        head[port.op[len(got) - ended :]] = by[len(got) - ended :]
        op, by, known = port.op[tiles], by[tiles], known[tiles]
        bare = known & soft[by] & ~weights[op] if len(soft) else known
        for i in np.flatnonzero(bare).tolist():
            text = f"sends slot {self.slot(int(port.cell[i]))} as numbers: {self.place(self.writer, int(by[i]))} wrote "
            text += "probabilities of Softmax there, which lack their last factor"
            self.report("Y07", self.reader, int(op[i]), text, "set `weights`", rule="bare")
        other = known & weights[op] & (head[op] >= 0) & (by != head[op])
        for i in np.flatnonzero(other).tolist():
            a, b = int(by[i]), int(head[op[i]])
            text = f"sends slot {self.slot(int(port.cell[i]))} of {self.place(self.writer, a)} with the last factor of "
            text += f"the head of uOP {b}"
            help = "send the tiles of one head, from its first slot on"
            self.report("Y07", self.reader, int(op[i]), text, help, rule="other")


# -- several units ----------------------------------------------------------------------------------------------------


def _joins(expansion: ExpandedProgram) -> Iterator[Finding]:
    """The lanes of a pair that join statistics: one of them has some."""
    for even in range(0, LANES, 2):
        uops = []
        for lane in (even, even + 1):
            share = fields_of(expansion, f"XOut{lane}", XOut)["share"]
            (at,) = np.nonzero(share)
            uops.append((at, share[at]))
        for a, b, x, y in zip(uops[0][0], uops[1][0], uops[0][1], uops[1][1], strict=False):
            if x > 1 and y > 1:
                text = f"XOut{even} uOP {a} and XOut{even + 1} uOP {b} join statistics, of which neither gives its own"
                yield Finding(
                    "Y04", text, expansion.where(f"XOut{even}", int(a)), help="set share=1 where there are some"
                )
                break


def _ends_of_heads(expansion: ExpandedProgram) -> Iterator[Finding]:
    """Softmax and T mean the same by a head: behind its last tile comes its end."""
    for unit in expansion.overlay.by_kind["Soft"]:
        taker = f"TIn{2 * unit.index + 1}"
        s, t = fields_of(expansion, unit.name, Soft), fields_of(expansion, taker, TIn)
        (taken,) = np.nonzero((t["source"] == TileSource.SOFTMAX) & (t["tiles"] > 0))
        n = min(len(s["tiles"]), len(taken))
        (differ,) = np.nonzero(s["tiles"][:n] != t["tiles"][taken[:n]])
        if len(differ):
            a, b = int(differ[0]), int(taken[differ[0]])
            text = (
                f"{taker} uOP {b} takes a head of {int(t['tiles'][b])} tiles; {unit.name} uOP {a} "
                f"({expansion.where(unit.name, a)}) makes one of {int(s['tiles'][a])}"
            )
            yield Finding("Y07", text, expansion.where(taker, b), help="give both the same `tiles`")


def _tables(expansion: ExpandedProgram) -> Iterator[Finding]:
    """A rotation needs a table."""
    for unit in expansion.overlay.by_kind["Post"]:
        p = fields_of(expansion, unit.name, Post)
        (without,) = np.nonzero((p["rotate"] > 0) & (np.cumsum(p["table"]) == 0))
        if len(without):
            uop = int(without[0])
            text = f"{unit.name} uOP {uop} rotates by a table, of which it has taken none"
            help = "set `table` in it or in a uOP before it, and let LPDDR send one"
            yield Finding("Y05", text, expansion.where(unit.name, uop), help=help, times=len(without))
