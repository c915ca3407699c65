"""What `check` knows about X: rows that are written, sent, stored, and normalised by statistics of their bank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...expansion import ExpandedProgram, Ints
from ...versal.tiles import TILE
from .order import Flags, MemoryPorts, Reads, Written, fields_of, first_behind, reads_of, spread
from .rows import BANKS, XIn, XOut, XStore


class RowMemory(MemoryPorts):
    """The checks of a memory X, whose number is `index`. It has two read ports, XOut and XStore, and statistics of the
    rows of each bank. A cell (`Written`) is a slot."""

    kind = "X"

    def __init__(self, expansion: ExpandedProgram, index: int) -> None:
        super().__init__(expansion, index)
        self.columns = self.slots // BANKS
        self.store = f"XStore{index}"

    def check(self) -> None:
        self.w, self.r = fields_of(self.x, self.writer, XIn), fields_of(self.x, self.reader, XOut)
        self.s = fields_of(self.x, self.store, XStore)
        w = self.w
        self.op, self.i = spread(w["tiles"])
        at = np.arange(1, len(self.op) + 1)
        written = Written.of(w["wait"], w["tiles"], w["slot"][self.op] + self.i, at)
        ports = [self.sends(written), self.stores(written)]
        self.compare(written, ports, self.sums(written))
        self.statistics(written, ports)

    def sums(self, written: Written) -> Ints:
        """Return the positions of the writes to which a later write adds, a vector of int64. Reports writes that add to
        nothing (Y01)."""
        (adds,) = np.nonzero(self.w["add"][written.op[written.tile]])
        onto = adds - 1
        empty = (onto < 0) | (written.cell[onto] != written.cell[adds])
        for i in adds[empty].tolist():
            text = f"adds to slot {int(written.cell[i])}, to which nothing was written"
            op = int(written.op[written.tile[i]])
            self.report("Y01", self.writer, op, text, "write the first slice of K without `add`", rule="sum")
        return np.asarray(onto[~empty])

    def sends(self, written: Written) -> Reads:
        """Return the reads of XOut: the slots of each operation; none of an operation that sends nothing."""
        op, i = spread(np.where(self.r["times"] > 0, self.r["tiles"], 0))
        return reads_of(self.reader, written, self.r["wait"], op, self.r["slot"][op] + i)

    def stores(self, written: Written) -> Reads:
        """Return the reads of XStore, whose tokens stand for operations of XIn with `store`. Reports operations of the
        two that wait for each other (Y06).
        """
        free = np.cumsum(self.w["stored"])
        after = first_behind(free, len(self.s["wait"]))
        high = written.before(after)
        (marks,) = np.nonzero(self.w["store"])
        count = np.cumsum(self.s["wait"])
        self.mark = np.concatenate([[-1], marks])[np.minimum(count, len(marks))]
        """By operation of XStore, the operation of XIn that it has waited for; -1 for none."""
        self.later = after
        waited = written.before(self.mark + 1)
        op, i = spread(self.s["tiles"])
        for uop in np.flatnonzero(self.mark >= after).tolist():
            by = int(self.mark[uop])
            text = (
                f"waits for the end of {self.place(self.writer, by)}, which waits for the end of uOP {uop}, or comes "
            )
            text += "behind one that does: neither ever begins"
            help = f"lower `wait` of {self.store} uOP {uop} or `stored` of {self.writer} uOP {int(after[uop])}"
            self.report("Y06", self.store, uop, text, help)
        low = np.minimum(waited, high)
        return Reads(self.store, "stores", low, high, low, op, self.s["slot"][op] + i, free, "stored")

    def wait_longer(self, written: Written, port: Reads, uop: int, tile: int) -> str:
        if port.name == self.reader:
            return super().wait_longer(written, port, uop, tile)
        op = int(written.op[tile])
        return f"set `store` of {self.writer} uOP {op} or of one behind it, and let {self.store} wait for that"

    # -- statistics

    def statistics(self, written: Written, ports: list[Reads]) -> None:
        """Report norms by statistics that are not those of the rows that are sent (Y04). ports: the reads of XOut, and
        those of XStore."""
        w = self.w
        counts = w["statistics"][self.op] > 0
        counted = written.only(np.concatenate([[False], counts])[written.tile])
        columns = np.clip(w["columns"][self.op] - self.i * TILE, 0, TILE)
        begins = (w["statistics"][self.op] == 1) & (self.i == 0)
        bank_of = (w["slot"][self.op] + self.i) // self.columns
        for bank in range(BANKS):
            (tiles,) = np.nonzero(counts & (bank_of == bank))
            total = np.cumsum(columns[tiles])
            others = np.maximum.accumulate(np.where(begins[tiles], total - columns[tiles], 0))
            made = CountedTiles(
                bank, tiles + 1, np.maximum.accumulate(np.where(begins[tiles], tiles + 1, 0)), total - others
            )
            self.norms(written, counted, ports, made)

    def norms(self, written: Written, counted: Written, ports: list[Reads], made: CountedTiles) -> None:
        """Report uses of the statistics of one bank that are wrong. counted: the writes that statistics count. made:
        the tiles of the bank that they count.
        """
        out, store = ports
        of = self.r["slot"] // self.columns == made.bank
        (shares,) = np.nonzero((self.r["share"] == 1) & of)
        moving = self.moving(written, out, shares, made, "joins")
        joined = made.count(out.low[shares])
        for uop in shares[~moving & ~made.any(joined)].tolist():
            text = f"joins the statistics of bank {made.bank}, of which none were made"
            help = f"set `statistics` in {self.writer}, or share=2 if this lane has no columns"
            self.report("Y04", self.reader, uop, text, help, rule="join")
        (uops,) = np.nonzero((self.r["normalise"] > 0) & of & (self.r["tiles"] > 0))
        before = np.searchsorted(shares, uops, side="right")  # an operation joins statistics before it sends
        self.normalise(written, counted, out, uops, made, Joined(shares, joined, before))
        (uops,) = np.nonzero((self.s["normalise"] > 0) & (self.s["slot"] // self.columns == made.bank))
        ended = np.concatenate([[0], written.waited])[self.mark[uops] + 1]  # operations of XOut
        begun = np.searchsorted(out.waited, written.before(self.later[uops]), side="right")
        first, last = np.searchsorted(shares, ended), np.searchsorted(shares, begun)
        for uop, share in zip(uops[first < last].tolist(), shares[first[first < last]].tolist(), strict=True):
            text = f"may normalise before {self.place(self.reader, share)} has joined the statistics, or behind it"
            help = f"let the uOP of {self.writer} that sets `store` for it wait for that uOP, or that uOP for it"
            self.report("Y04", self.store, uop, text, help, rule="share")
        known = first >= last
        self.normalise(written, counted, store, uops[known], made, Joined(shares, joined, first[known]))

    def moving(self, written: Written, port: Reads, uops: Ints, made: CountedTiles, verb: str) -> Flags:
        """Return, for each operation in `uops`, whether it uses statistics while they may still change; report those
        that do. uops: numbers of operations of the port. verb: what these do, for the message."""
        low = made.count(port.low[uops])
        found: Flags = low != made.count(port.high[uops])
        for uop, first in zip(uops[found].tolist(), low[found].tolist(), strict=True):
            op = int(written.op[made.tiles[first]])
            text = f"{verb} by" if verb == "normalises" else verb
            text += f" the statistics of bank {made.bank} while {self.place(self.writer, op)} may still change them"
            help = "let it wait for that uOP; or that uOP for it, if it makes statistics of later rows"
            self.report("Y04", port.name, uop, text, help, rule="moving")
        return found

    def normalise(
        self, written: Written, counted: Written, port: Reads, uops: Ints, made: CountedTiles, joined: Joined
    ) -> None:
        """Report operations that normalise by statistics of other data. uops: numbers of the operations of the port
        that normalise by the statistics of `made`. joined: the statistics that were joined before each of them."""
        help = "set `statistics` in the uOPs that write these slots last: 1 in the first, 2 in the others"
        where = f"normalises by the statistics of bank {made.bank}"
        left = ~self.moving(written, port, uops, made, "normalises")
        at = made.count(port.low[uops])
        share, tiles = joined.last()
        # joined statistics that were gone on with
        begin = made.begin(at)
        wrong = left & (share >= 0) & (tiles < at) & (begin <= made.tile(tiles))
        for uop, by in zip(uops[wrong].tolist(), share[wrong].tolist(), strict=True):
            text = f"{where}, which {self.writer} went on with after {self.place(self.reader, by)} had joined them"
            self.report("Y04", port.name, uop, text, "join them when they are complete", rule="joined")
        none = left & ~wrong & ~made.any(at)
        for uop in uops[none].tolist():
            self.report("Y04", port.name, uop, f"{where}, of which none were made", help, rule="none")
        left &= ~wrong & ~none
        uops, begin = uops[left], begin[left, None]
        slots = made.bank * self.columns + np.arange(self.columns)
        now, then = (of.last_tile(slots[None], port.low[uops][:, None]) for of in (written, counted))
        c = self.r if port.name == self.reader else self.s
        first = c["slot"][uops][:, None]
        sent = (slots >= first) & (slots < first + c["tiles"][uops][:, None])
        stale = (sent | (then >= begin)) & (now > 0) & ((now != then) | (now < begin))
        for i, j in np.argwhere(stale).tolist():
            op = int(written.op[now[i, j]])
            text = f"{where}, which do not count what {self.place(self.writer, op)} wrote to slot {int(slots[j])}"
            self.report("Y04", port.name, int(uops[i]), text, help, rule="stale")


@dataclass(frozen=True, eq=False)
class CountedTiles:
    """The tiles that the statistics of a bank count.

    tiles: their numbers. starts: for each, the number of the tile with which its statistics begin; 0 is power-on.
    columns: for each, how many columns its statistics count, its own included. Each is an int64 vector with an element
    per tile. The methods take vectors, or matrices, of counts of these tiles (`counts`), or of numbers of tiles
    (`bounds`), and return one of the same shape.
    """

    bank: int
    tiles: Ints
    starts: Ints
    columns: Ints

    def count(self, bounds: Ints) -> Ints:
        """Return how many of these tiles are among the tiles up to each bound."""
        return np.searchsorted(self.tiles, bounds, side="right")

    def tile(self, counts: Ints) -> Ints:
        """Return the number of the last of these tiles that X has taken; 0 for none. counts: how many it has taken."""
        return np.concatenate([[0], self.tiles])[counts]

    def begin(self, counts: Ints) -> Ints:
        """Return the number of the tile with which the statistics begin; 0 is power-on. counts: how many of these
        tiles X has taken.
        """
        return np.concatenate([[0], self.starts])[counts]

    def any(self, counts: Ints) -> Flags:
        """Return whether the statistics have any columns. counts: how many of these tiles X has taken."""
        return np.asarray(np.concatenate([[0], self.columns])[counts] > 0, np.bool_)


@dataclass(frozen=True, eq=False)
class Joined:
    """Operations of XOut that join statistics of a bank.

    uops, tiles: for each of them, its number, and how many tiles its lane had counted then. before: for each operation
    of a read port that normalises, how many of them precede it.
    """

    uops: Ints
    tiles: Ints
    before: Ints

    def last(self) -> tuple[Ints, Ints]:
        """Return two vectors with an element per operation that normalises: the last one of these that precedes it, and
        how many tiles its lane had counted then; -1 for none.
        """
        uops, tiles = (np.concatenate([[-1], x])[self.before] for x in (self.uops, self.tiles))
        return uops, tiles
