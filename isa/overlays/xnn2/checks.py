"""What `check` knows about programs for xnn2 beyond counting words: who may write and read the slots of a memory.

The ports of a memory have programs of their own and run side by side (`ports.py`). Only tokens order them. So the
tokens of each memory are counted as its units take and put them. An operation of a read port has two bounds: the tiles
that were certainly written before it begins, and the tiles that may have been written when it ends. If a slot was
written between the bounds, it is not decided what is read. What orders operations by the way that tiles take through
other units, or by streams that are full, does not count: both depend on more than the two programs.

Numbers of tiles and of operations of a read port begin with 1 here, so that a count of tokens is also the number of the
last one that they stand for. Numbers of uOPs begin with 0, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ....base.finding import Finding
from ...expansion import Expansion, Ints
from ...fields import Record
from ...lanes import Part, TileSource
from ..xnn.tiles import TILE
from .operands import FROM_DDR, LANES, KvIn, KvOut
from .ports import TILE_BLOCKS
from .results import Post, Soft
from .rows import BANKS, XIn, XOut, XStore
from .scratch import TIn, TOut

Flags = npt.NDArray[np.bool_]
Columns = Mapping[str, Ints]
HALVES = 2
"""Cells of a slot of T, whose halves may be written and sent apart."""


def rules(expansion: Expansion, balanced: bool) -> Iterator[Finding]:
    """Everything below. What is wrong with the counts of tokens alone is not repeated here: streams that do not balance
    have findings of their own."""
    for unit in expansion.overlay.by_kind["XIn"]:
        yield from _Rows(expansion, unit.index).findings()
    for unit in expansion.overlay.by_kind["TIn"]:
        yield from _Scratch(expansion, unit.index).findings()
    for unit in expansion.overlay.by_kind["KvIn"]:
        yield from _Heads(expansion, unit.index).findings()
    yield from _joins(expansion)
    yield from _ends_of_heads(expansion)
    yield from _tables(expansion)


# -- fields of operations as arrays -----------------------------------------------------------------------------------


def _columns(expansion: Expansion, unit: str, record: type[Record]) -> Columns:
    """The fields of all uOPs of a unit, but numbers with a fraction."""
    distinct, of = np.unique(expansion.sequences[unit].kinds, return_inverse=True)
    uops = [expansion.uops[kind] for kind in distinct.tolist()]
    return {
        f.name: np.array([getattr(uop, f.name) for uop in uops], np.int64)[of.reshape(-1)]
        for f in record.FIELDS
        if not f.real
    }


def _spread(counts: Ints) -> tuple[Ints, Ints]:
    """The pieces of operations that have `counts` pieces: the operation of each, and its number in that."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True, eq=False)
class Written:
    """What the write port of a memory writes.

    waited: by operation, the operations of the read port that it and those before it waited for. ends: the tiles that
    are written when it has ended. op: by tile, its operation; number 0 stands for no tile. cell, tile: the writes,
    sorted by cell, then by number of the tile. A cell is what is written and read as a whole: a slot, or half of one.
    """

    waited: Ints
    ends: Ints
    op: Ints
    cell: Ints
    tile: Ints

    @staticmethod
    def of(waits: Ints, tiles: Ints, cells: Ints, at: Ints) -> Written:
        """cells, at: the writes in any order, cell and number of the tile."""
        order = np.lexsort((at, cells))
        op = np.concatenate([[-1], _spread(tiles)[0]])
        return Written(np.cumsum(waits), np.cumsum(tiles), op, cells[order], at[order])

    def last(self, cells: Ints, bounds: Ints) -> Ints:
        """For each cell, the position of its last write among those of the tiles up to a bound; -1 if there is none."""
        if not len(self.cell):
            return np.full(len(cells), -1)
        most = len(self.op)
        found = np.searchsorted(self.cell * most + self.tile, cells * most + bounds, side="right") - 1
        return np.where((found >= 0) & (self.cell[found] == cells), found, -1)

    def only(self, keep: Flags) -> Written:
        """Without some of the writes."""
        return Written(self.waited, self.ends, self.op, self.cell[keep], self.tile[keep])

    def before(self, op: Ints) -> Ints:
        """Tiles that are written before each of these operations begins."""
        return np.where(op > 0, np.concatenate([[0], self.ends])[op], 0)


@dataclass(frozen=True, eq=False)
class Reads:
    """What a read port reads. name, verb: the unit, and what it does with a slot.

    low: by operation, the tiles that are certainly written before it begins; high: those that may be written when it
    ends. waited: the counts of tokens that `low` comes from, which may be of more tiles than there are. op, cell: the
    reads. free: by operation of the write port, the operations of this port that it has waited for.
    """

    name: str
    verb: str
    low: Ints
    high: Ints
    waited: Ints
    op: Ints
    cell: Ints
    free: Ints
    field: str = "wait"
    """The field by which operations of the write port wait for this port."""


def _later(free: Ints, count: int) -> Ints:
    """For each of `count` operations of a read port, the first operation of the write port that waits for it."""
    return np.searchsorted(free, np.arange(1, count + 1), side="left")


def _port(name: str, written: Written, waits: Ints, op: Ints, cell: Ints) -> Reads:
    """The reads of a port whose tokens stand for tiles."""
    waited = np.cumsum(waits)
    high = written.before(_later(written.waited, len(waits)))
    low = np.minimum(waited, high)
    return Reads(name, "sends", low, high, waited, op, cell, written.waited)


# -- one memory -------------------------------------------------------------------------------------------------------


@dataclass
class _Told:
    """A finding, and how many like it there are."""

    finding: Finding
    uops: set[int] = field(default_factory=set)


class _Memory:
    """The two ports of a memory."""

    kind: str

    def __init__(self, expansion: Expansion, index: int) -> None:
        self.x = expansion
        self.writer, self.reader = f"{self.kind}In{index}", f"{self.kind}Out{index}"
        memory = expansion.overlay.by_unit[self.writer].memory
        assert memory is not None
        self.slots = memory.slots
        self.told: dict[tuple[str, str, str], _Told] = {}

    def slot(self, cell: int) -> int:
        """The slot of a cell."""
        return cell

    def findings(self) -> Iterator[Finding]:
        """What is wrong: of each rule the first place, with the number of operations that have the like."""
        self.check()
        for told in self.told.values():
            f = told.finding
            yield Finding(f.code, f.message, f.where, f.warning, f.help, times=len(told.uops))

    def check(self) -> None:
        """Find what is wrong."""
        raise NotImplementedError

    def report(
        self, code: str, unit: str, uop: int, text: str, help: str, *, rule: str = "", warning: bool = False
    ) -> None:
        """Report a uOP. text: what is wrong, behind the name of unit and uOP. rule: tells apart what has one code."""
        told = self.told.get((code, unit, rule))
        if told is None:
            found = Finding(code, f"{unit} uOP {uop} {text}", self.x.where(unit, uop), warning, help)
            told = self.told[code, unit, rule] = _Told(found)
        told.uops.add(uop)

    def place(self, unit: str, uop: int) -> str:
        """A uOP that a message names besides that which it is about."""
        return f"{unit} uOP {uop} ({self.x.where(unit, uop)})"

    # -- order of reads and writes

    def compare(self, written: Written, ports: list[Reads], uses: Ints) -> list[Ints]:
        """Find reads that are not ordered with writes, and tiles that nothing reads. uses: the writes that the write
        port itself reads. Returns the write that each read of each port gets, -1 if that is not decided."""
        firsts = [written.last(p.cell, p.low[p.op]) for p in ports]
        lasts = [written.last(p.cell, p.high[p.op]) for p in ports]
        used = np.zeros(len(written.tile), bool)
        for a, b in zip(firsts, lasts, strict=True):
            used[a[(a == b) & (a >= 0)]] = True
        clean = used.copy()
        used[uses] = True
        for port, a, b in zip(ports, firsts, lasts, strict=True):
            self.contradictions(written, port)
            for i in np.flatnonzero((a != b) | (b < 0)).tolist():
                self.undecided(written, port, i, int(a[i]), int(b[i]), clean)
            for x in (a, b):
                used[x[x >= 0]] = True
        self.unread(written, used)
        return [np.where(a == b, a, -1) for a, b in zip(firsts, lasts, strict=True)]

    def undecided(self, written: Written, port: Reads, i: int, first: int, last: int, clean: Flags) -> None:
        """Report read i of a port: it gets write `first`, or any up to `last`, of the same cell. clean: the writes that
        another read certainly gets."""
        uop, slot = int(port.op[i]), self.slot(int(port.cell[i]))
        verb = port.verb[:-1]
        if last < 0:
            text = f"{port.verb} slot {slot}, to which nothing was written"
            self.report("Y01", port.name, uop, text, f"let {self.writer} fill the slot, and wait for it", rule="empty")
            return
        if first < 0 or clean[first]:
            op = int(written.op[written.tile[last]])
            text = f"may {verb} slot {slot} before {self.place(self.writer, op)} has written it"
            self.report("Y01", port.name, uop, text, self.wait_longer(written, port, uop, int(written.tile[last])))
        op = int(written.op[written.tile[first + 1]])
        if first >= 0 and not clean[first]:
            text = f"may overwrite slot {slot} before {self.place(port.name, uop)} has ended, which {port.verb} it"
            more = uop + 1 - int(port.free[op])
            help = f"raise `{port.field}` of {self.writer} uOP {op} by {more}, or of uOPs before it"
            self.report("Y02", self.writer, op, text, help, rule=port.name)

    def wait_longer(self, written: Written, port: Reads, uop: int, tile: int) -> str:
        """How a read waits for a tile."""
        return f"raise its `wait` by {tile - int(port.low[uop])}, or that of uOPs before it"

    def contradictions(self, written: Written, port: Reads) -> None:
        """Find operations of two ports that wait for each other."""
        known = np.minimum(port.waited, len(written.op) - 1)
        for uop in np.flatnonzero(known > port.high).tolist():
            op = int(written.op[known[uop]])
            text = (
                f"waits for tile {known[uop]} of {self.place(self.writer, op)}, which waits for the end of uOP {uop} "
                f"or of one behind it: neither ever begins"
            )
            help = f"lower `wait` of {port.name} uOP {uop} or of {self.writer} uOP {op}, or change their order"
            self.report("Y06", port.name, uop, text, help)

    def unread(self, written: Written, used: Flags) -> None:
        """Find tiles of which nothing is read."""
        read = np.zeros(len(written.op), bool)
        np.logical_or.at(read, written.tile, used)
        read[0] = True
        (lost,) = np.nonzero(~read)
        if not len(lost):
            return
        order = np.argsort(written.tile, kind="stable")
        first = order[np.searchsorted(written.tile[order], lost)]  # a write of each such tile
        for tile, i in zip(lost.tolist(), first.tolist(), strict=True):
            op, cell = int(written.op[tile]), int(written.cell[i])
            again = i + 1 < len(written.cell) and written.cell[i + 1] == cell
            until = f"before uOP {int(written.op[written.tile[i + 1]])} overwrites it" if again else "before the end"
            text = f"writes slot {self.slot(cell)}, which nothing reads {until}"
            self.report("Y03", self.writer, op, text, f"drop the write, or let {self.reader} send it", warning=True)


class _Heads(_Memory):
    """K or V: cells are slots."""

    kind = "Kv"

    def check(self) -> None:
        w, r = _columns(self.x, self.writer, KvIn), _columns(self.x, self.reader, KvOut)
        op, i = _spread(w["tiles"])
        at = np.arange(1, len(op) + 1)
        both = w["source"][op] != FROM_DDR
        cells = np.concatenate([w["slot"][op] + i, (w["second"][op] + i)[both]]) % self.slots
        written = Written.of(w["wait"], w["tiles"], cells, np.concatenate([at, at[both]]))
        sent = np.where(r["lanes"] > 0, r["tiles"] * np.where(r["wide"], TILE_BLOCKS, 1), 0)
        op, i = _spread(sent)
        port = _port(self.reader, written, r["wait"], op, (r["slot"][op] + i) % self.slots)
        self.compare(written, [port], np.zeros(0, np.int64))


class _Scratch(_Memory):
    """T: cells are halves of slots, and behind them the ends of heads, by the slot of their first tile."""

    kind = "T"

    def slot(self, cell: int) -> int:
        return cell // HALVES if cell < HALVES * self.slots else cell - HALVES * self.slots

    def check(self) -> None:
        w, r = _columns(self.x, self.writer, TIn), _columns(self.x, self.reader, TOut)
        ends_from = HALVES * self.slots
        op, i = _spread(w["tiles"])
        at = np.arange(1, len(op) + 1)
        slot = (w["slot"][op] + i) % self.slots
        left = w["part"][op] != Part.RIGHT  # a write of the left half makes the right one 0
        soft = w["source"] == TileSource.SOFTMAX
        (heads,) = np.nonzero(soft & (w["tiles"] > 0))
        cells = np.concatenate([HALVES * slot[left], HALVES * slot + 1, ends_from + w["slot"][heads]])
        tiles = np.concatenate([at[left], at, np.cumsum(w["tiles"])[heads]])
        written = Written.of(w["wait"], w["tiles"], cells, tiles)
        op, i = _spread(np.where(r["times"] > 0, r["tiles"], 0))
        slot = (r["slot"][op] + i) % self.slots
        a, b = r["part"][op] != Part.RIGHT, r["part"][op] != Part.LEFT
        (ended,) = np.nonzero((r["weights"] > 0) & (r["tiles"] > 0) & (r["times"] > 0))
        of = np.concatenate([op[a], op[b], ended])
        cells = np.concatenate([HALVES * slot[a], HALVES * slot[b] + 1, ends_from + r["slot"][ended]])
        port = _port(self.reader, written, r["wait"], of, cells)
        (got,) = self.compare(written, [port], np.zeros(0, np.int64))
        self.heads(written, port, got, r["weights"] > 0, soft, len(ended))

    def heads(self, written: Written, port: Reads, got: Ints, weights: Flags, soft: Flags, ended: int) -> None:
        """Find probabilities that are sent without their last factor, or with that of another head. got: what each read
        gets. weights, soft: of operations of the two ports. ended: reads of ends, which are the last ones."""
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


class _Rows(_Memory):
    """X: cells are slots. It has two read ports, and statistics of each bank."""

    kind = "X"

    def __init__(self, expansion: Expansion, index: int) -> None:
        super().__init__(expansion, index)
        self.columns = self.slots // BANKS
        self.store = f"XStore{index}"

    def check(self) -> None:
        self.w, self.r = _columns(self.x, self.writer, XIn), _columns(self.x, self.reader, XOut)
        self.s = _columns(self.x, self.store, XStore)
        w = self.w
        self.op, self.i = _spread(w["tiles"])
        at = np.arange(1, len(self.op) + 1)
        written = Written.of(w["wait"], w["tiles"], w["slot"][self.op] + self.i, at)
        ports = [self.sends(written), self.stores(written)]
        self.versions = self.compare(written, ports, self.sums(written))
        self.statistics(written, ports)

    def sums(self, written: Written) -> Ints:
        """The writes that are added to, by the writes behind them."""
        (adds,) = np.nonzero(self.w["add"][written.op[written.tile]])
        onto = adds - 1
        empty = (onto < 0) | (written.cell[onto] != written.cell[adds])
        for i in adds[empty].tolist():
            text = f"adds to slot {int(written.cell[i])}, to which nothing was written"
            op = int(written.op[written.tile[i]])
            self.report("Y01", self.writer, op, text, "write the first slice of K without `add`", rule="sum")
        return np.asarray(onto[~empty])

    def sends(self, written: Written) -> Reads:
        op, i = _spread(np.where(self.r["times"] > 0, self.r["tiles"], 0))
        return _port(self.reader, written, self.r["wait"], op, self.r["slot"][op] + i)

    def stores(self, written: Written) -> Reads:
        """The reads of XStore, whose tokens stand for operations of XIn with `store`."""
        free = np.cumsum(self.w["stored"])
        later = _later(free, len(self.s["wait"]))
        high = written.before(later)
        (marks,) = np.nonzero(self.w["store"])
        count = np.cumsum(self.s["wait"])
        self.mark = np.concatenate([[-1], marks])[np.minimum(count, len(marks))]
        """By operation of XStore, the operation of XIn that it has waited for; -1 for none."""
        self.later = later
        waited = written.before(self.mark + 1)
        op, i = _spread(self.s["tiles"])
        for uop in np.flatnonzero(self.mark >= later).tolist():
            by = int(self.mark[uop])
            text = (
                f"waits for the end of {self.place(self.writer, by)}, which waits for the end of uOP {uop}, or a uOP "
            )
            text += "before it does: neither ever begins"
            help = f"lower `wait` of {self.store} uOP {uop} or `stored` of {self.writer} uOP {int(later[uop])}"
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
        """Find norms whose statistics do not belong to what is sent."""
        w = self.w
        made = w["statistics"][self.op] > 0
        counted = written.only(np.concatenate([[False], made])[written.tile])
        valid = np.where(made, np.clip(w["columns"][self.op] - self.i * TILE, 0, TILE), 0)
        begins = made & (w["statistics"][self.op] == 1) & (self.i == 0)
        bank_of = (w["slot"][self.op] + self.i) // self.columns
        for bank in range(BANKS):
            (tiles,) = np.nonzero(made & (bank_of == bank))
            starts = np.maximum.accumulate(np.where(begins[tiles], np.arange(len(tiles)), 0))
            total = np.concatenate([[0], np.cumsum(valid[tiles])])
            columns = total[1:] - total[starts]
            found = _Statistics(bank, tiles + 1, tiles[starts] + 1, columns)
            self.norms(written, counted, ports, found)

    def norms(self, written: Written, counted: Written, ports: list[Reads], made: _Statistics) -> None:
        """Find norms of one bank that are wrong. counted: the writes that statistics count."""
        of = self.r["slot"] // self.columns == made.bank
        (shares,) = np.nonzero((self.r["share"] > 0) & of)
        share_low = made.count(ports[0].low[shares])
        (sends,) = np.nonzero((self.r["normalise"] > 0) & of & (self.r["tiles"] > 0))
        (stores,) = np.nonzero((self.s["normalise"] > 0) & (self.s["slot"] // self.columns == made.bank))
        # shares that have ended before an operation begins, and those that may have begun when it ends
        marks = self.mark[stores]
        ended = np.where(marks >= 0, np.concatenate([[0], written.waited])[marks + 1], 0)
        until = np.searchsorted(ports[0].waited, written.before(self.later[stores]), side="right")
        for uop, a in zip(shares.tolist(), share_low.tolist(), strict=True):
            if self.asynchronous(written, ports[0], uop, made, "joins"):
                continue
            if self.r["share"][uop] == 1 and (not a or not made.columns[a - 1]):
                text = f"joins the statistics of bank {made.bank}, of which none were made"
                help = f"set `statistics` in {self.writer}, or share=2 if this lane has no columns"
                self.report("Y04", self.reader, uop, text, help, rule="join")
        for port, uops, low, high in (
            (ports[0], sends, sends, sends),
            (ports[1], stores, np.searchsorted(shares, ended), np.searchsorted(shares, until)),
        ):
            if port is ports[0]:
                low = high = np.searchsorted(shares, uops, side="right")  # an operation shares before it sends
            for uop, first, last in zip(uops.tolist(), low.tolist(), high.tolist(), strict=True):
                if self.asynchronous(written, port, uop, made, "normalises"):
                    continue
                if first < last:
                    share = int(shares[first])
                    text = f"may normalise before {self.place(self.reader, share)} has joined the statistics"
                    help = f"let {self.writer} wait for that uOP before it sets `store`"
                    self.report("Y04", port.name, uop, text, help, rule="share")
                    continue
                self.norm(
                    written,
                    counted,
                    port,
                    uop,
                    made,
                    (int(shares[first - 1]), int(share_low[first - 1])) if first else None,
                )

    def asynchronous(self, written: Written, port: Reads, uop: int, made: _Statistics, verb: str) -> bool:
        """Report an operation that uses statistics while they may change."""
        low, high = made.count(port.low[[uop]])[0], made.count(port.high[[uop]])[0]
        if low == high:
            return False
        tile = int(made.tiles[low])
        text = (
            f"{verb} by the statistics of bank {made.bank} while {self.place(self.writer, int(written.op[tile]))} may "
        )
        text += "still change them"
        help = "let it wait for that uOP, or let that uOP wait for it, if these are statistics of what comes later"
        self.report("Y04", port.name, uop, text, help, rule="asynchronous")
        return True

    def norm(
        self,
        written: Written,
        counted: Written,
        port: Reads,
        uop: int,
        made: _Statistics,
        share: tuple[int, int] | None,
    ) -> None:
        """Report an operation that normalises by statistics of other data. share: the last operation that joined the
        statistics, and how many tiles they counted then."""
        low = int(port.low[uop])
        at = int(made.count(port.low[[uop]])[0])
        where = f"normalises by the statistics of bank {made.bank}"
        help = "set `statistics` in the uOPs that write these slots last: 1 in the first, 2 in the others"
        if share is not None and share[1] == at and self.r["share"][share[0]] > 1:
            return  # those of the other lane alone
        if not at or not made.columns[at - 1]:
            self.report("Y04", port.name, uop, f"{where}, of which none were made", help, rule="none")
            return
        begin = int(made.starts[at - 1])
        if share is not None and share[1] < at and begin <= int(made.tiles[max(share[1] - 1, 0)]):
            text = (
                f"{where}, which {self.writer} went on with after {self.place(self.reader, share[0])} had joined them"
            )
            self.report("Y04", port.name, uop, text, "join them when they are complete", rule="joined")
            return
        slots = made.bank * self.columns + np.arange(self.columns)
        last, of = written.last(slots, np.full(len(slots), low)), counted.last(slots, np.full(len(slots), low))
        sent = np.zeros(self.columns, bool)
        c = self.r if port.name == self.reader else self.s
        first = int(c["slot"][uop]) % self.columns
        sent[first : first + int(c["tiles"][uop])] = True
        now = np.where(last >= 0, written.tile[last], 0)
        then = np.where(of >= 0, counted.tile[of], 0) if len(counted.tile) else np.zeros(len(slots), np.int64)
        stale = (sent | (then >= begin)) & (now > 0) & ((now != then) | (now < begin))
        for slot in slots[stale].tolist():
            op = int(written.op[now[slot % self.columns]])
            text = f"{where}, which do not count what {self.place(self.writer, op)} wrote to slot {slot}"
            self.report("Y04", port.name, uop, text, help, rule="stale")


@dataclass(frozen=True, eq=False)
class _Statistics:
    """The tiles that the statistics of a bank count: their numbers, of each the tile with which its statistics begin,
    and the columns that they count with it."""

    bank: int
    tiles: Ints
    starts: Ints
    columns: Ints

    def count(self, bounds: Ints) -> Ints:
        """How many of these tiles are among the tiles up to each bound."""
        return np.searchsorted(self.tiles, bounds, side="right")


# -- several units ----------------------------------------------------------------------------------------------------


def _joins(expansion: Expansion) -> Iterator[Finding]:
    """The lanes of a pair that join statistics: one of them has some."""
    for even in range(0, LANES, 2):
        uops = []
        for lane in (even, even + 1):
            share = _columns(expansion, f"XOut{lane}", XOut)["share"]
            (at,) = np.nonzero(share)
            uops.append((at, share[at]))
        for a, b, x, y in zip(uops[0][0], uops[1][0], uops[0][1], uops[1][1], strict=False):
            if x > 1 and y > 1:
                text = f"XOut{even} uOP {a} and XOut{even + 1} uOP {b} join statistics, of which neither gives its own"
                yield Finding(
                    "Y04", text, expansion.where(f"XOut{even}", int(a)), help="set share=1 where there are some"
                )
                break


def _ends_of_heads(expansion: Expansion) -> Iterator[Finding]:
    """Softmax and T mean the same by a head: behind its last tile comes its end."""
    for unit in expansion.overlay.by_kind["Soft"]:
        taker = f"TIn{2 * unit.index + 1}"
        s, t = _columns(expansion, unit.name, Soft), _columns(expansion, taker, TIn)
        made = np.repeat(np.arange(len(s["tiles"])), s["heads"])
        (taken,) = np.nonzero((t["source"] == TileSource.SOFTMAX) & (t["tiles"] > 0))
        n = min(len(made), len(taken))
        (differ,) = np.nonzero(s["tiles"][made[:n]] != t["tiles"][taken[:n]])
        if len(differ):
            a, b = int(made[differ[0]]), int(taken[differ[0]])
            text = (
                f"{taker} uOP {b} takes a head of {int(t['tiles'][b])} tiles; {unit.name} uOP {a} "
                f"({expansion.where(unit.name, a)}) makes one of {int(s['tiles'][a])}"
            )
            yield Finding("Y07", text, expansion.where(taker, b), help="give both the same `tiles`")


def _tables(expansion: Expansion) -> Iterator[Finding]:
    """A rotation needs a table."""
    for unit in expansion.overlay.by_kind["Post"]:
        p = _columns(expansion, unit.name, Post)
        (without,) = np.nonzero((p["rotate"] > 0) & (np.cumsum(p["table"]) == 0))
        if len(without):
            uop = int(without[0])
            text = f"{unit.name} uOP {uop} rotates by a table, of which it has taken none"
            help = "set `table` in it or in a uOP before it, and let LPDDR send one"
            yield Finding("Y05", text, expansion.where(unit.name, uop), help=help, times=len(without))
