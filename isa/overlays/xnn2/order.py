"""Who may read what the write port of a memory writes: tokens of its ports, counted.

The ports of a memory have programs of their own and run side by side (`ports.py`). Only tokens order them. An operation
of a read port has two bounds: the tiles that were certainly written before it begins, and the tiles that may have been
written when it ends. If a slot is written between the bounds, it is not decided what is read. What orders operations by
the way that tiles take through other units, or by streams that are full, does not count: both depend on more than the
two programs.

Numbers of tiles and of operations of a read port begin with 1 here, so that a count of tokens is also the number of the
last one that they stand for. Numbers of uOPs begin with 0, as everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ....base.finding import Finding
from ...expansion import ExpandedProgram, Ints
from ...fields import Record

Flags = npt.NDArray[np.bool_]
Columns = Mapping[str, Ints]


def fields_of(expansion: ExpandedProgram, unit: str, record: type[Record]) -> Columns:
    """Return the values of all uOPs of a unit by field: int64 vectors as long as its program. Fields of real numbers
    are left out. record: the type of all its uOPs. Raises `KeyError` for an unknown unit."""
    distinct, of = np.unique(expansion.sequences[unit].kinds, return_inverse=True)
    uops = [expansion.uops[kind] for kind in distinct.tolist()]
    return {
        f.name: np.array([getattr(uop, f.name) for uop in uops], np.int64)[of.reshape(-1)]
        for f in record.FIELDS
        if not f.real
    }


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Number the pieces of operations. counts: how many pieces each operation has. Returns two int64 vectors with an
    element per piece: the number of its operation, and its number in that operation, from 0.
    """
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True, eq=False)
class Written:
    """What the write port of a memory writes.

    waited: by operation, how many operations of the read port it and those before it waited for. ends: by operation,
    how many tiles are written when it has ended. op: by number of the tile, its operation; number 0 stands for no tile.
    cell, tile: of each write, its cell and the number of its tile, sorted by cell, then by tile. A cell is what is
    written and read as a whole: a slot, or half of one. All are int64 vectors.
    """

    waited: Ints
    ends: Ints
    op: Ints
    cell: Ints
    tile: Ints

    @staticmethod
    def of(waits: Ints, tiles: Ints, cells: Ints, at: Ints) -> Written:
        """Put writes in order. waits, tiles: for each operation, how many operations of the read port it waits for, and
        how many tiles it writes. cells, at: the writes in any order, as cell and number of the tile, in two vectors of
        equal length."""
        order = np.lexsort((at, cells))
        op = np.concatenate([[-1], spread(tiles)[0]])
        return Written(np.cumsum(waits), np.cumsum(tiles), op, cells[order], at[order])

    def last(self, cells: Ints, bounds: Ints) -> Ints:
        """Return, for each cell, the position of its last write among those of the tiles up to a bound; -1 if there is
        none. cells, bounds: arrays of shapes that NumPy broadcasts to one; the result has that shape.
        """
        most = len(self.op)
        found = np.searchsorted(self.cell * most + self.tile, cells * most + bounds, side="right") - 1
        return np.where(np.concatenate([self.cell, [-1]])[found] == cells, found, -1)

    def last_tile(self, cells: Ints, bounds: Ints) -> Ints:
        """Return, for each cell, the number of the last tile up to a bound that was written to it; 0 if there is none.
        cells, bounds: as for `last`.
        """
        return np.concatenate([self.tile, [0]])[self.last(cells, bounds)]

    def only(self, keep: Flags) -> Written:
        """Return the same without the writes for which `keep` is false. keep: an element for each write."""
        return Written(self.waited, self.ends, self.op, self.cell[keep], self.tile[keep])

    def before(self, op: Ints) -> Ints:
        """Return how many tiles are written before each of these operations begins. op: numbers of operations; the
        number behind the last one is allowed too."""
        return np.where(op > 0, np.concatenate([[0], self.ends])[op], 0)


@dataclass(frozen=True, eq=False)
class Reads:
    """What a read port reads. name, verb: the unit, and what it does with a slot, such as "sends".

    low, high: by operation, how many tiles are certainly written before it begins, and how many may be written when it
    ends. waited: by operation, how many tiles the tokens stand for that it and those before it took; this may be more
    tiles than there are, while `low` never exceeds `high`. op, cell: of each read, its operation and its cell
    (`Written`). free: by operation of the write port, how many operations of this port it and those before it waited
    for. All are int64 vectors.
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


def first_behind(free: Ints, count: int) -> Ints:
    """Return, for each of `count` operations of a read port, the first operation of the write port that waits for it;
    len(free) if none does. free: as in `Reads`.
    """
    return np.searchsorted(free, np.arange(1, count + 1), side="left")


def reads_of(name: str, written: Written, waits: Ints, op: Ints, cell: Ints) -> Reads:
    """Return the reads of a port that waits for tiles of the write port. name: of the port. written: what the write
    port writes. waits: by operation, how many more tiles it waits for. op, cell: of each read, two vectors of equal
    length.
    """
    waited = np.cumsum(waits)
    high = written.before(first_behind(written.waited, len(waits)))
    low = np.minimum(waited, high)
    return Reads(name, "sends", low, high, waited, op, cell, written.waited)


@dataclass
class Told:
    """A finding, and the numbers of the uOPs (`uops`) that break the same rule."""

    finding: Finding
    uops: set[int] = field(default_factory=set)


class MemoryPorts(ABC):
    """Checks the order of the operations of a memory's two ports. A subclass says, in `check`, what these read and
    write.

    kind: the name of the memory, such as `T`, with which the names of its ports begin. index: of the read port. writer:
    name of the write port; None for the one with the same index. Raises `KeyError` if the overlay has no such write
    port."""

    kind: str
    earlier = "uOPs before it"
    """Operations of the write port that may wait instead of a later one."""

    def __init__(self, expansion: ExpandedProgram, index: int, writer: str | None = None) -> None:
        self.x = expansion
        self.writer, self.reader = writer or f"{self.kind}In{index}", f"{self.kind}Out{index}"
        memory = expansion.overlay.by_unit[self.writer].memory
        assert memory is not None
        self.slots = memory.slots
        """Of all memories of the write port."""
        self.told: dict[tuple[str, str, str], Told] = {}

    def slot(self, cell: int) -> int:
        """Return the slot of a cell, by the number that the read port has for it. A class whose cells are no slots
        overrides this."""
        return cell

    def writer_slot(self, cell: int) -> int:
        """Return the slot of a cell, by the number that the write port has for it. It is that of the read port, unless
        the write port has several memories."""
        return self.slot(cell)

    def findings(self) -> Iterator[Finding]:
        """Yield the findings on the memory: for each rule the first place, with the number of operations that break the
        same rule."""
        self.check()
        for told in self.told.values():
            f = told.finding
            yield Finding(f.code, f.message, f.where, f.warning, f.help, times=len(told.uops))

    @abstractmethod
    def check(self) -> None:
        """Find the mistakes in the order of operations, and `report` each."""

    def report(
        self, code: str, unit: str, uop: int, text: str, help: str, *, rule: str = "", warning: bool = False
    ) -> None:
        """Keep a finding about a uOP, or count it if there is one of this code, unit and rule.

        code: of the finding, such as `Y01`. text: the mistake, put behind the name of unit and uOP. help: the remedy.
        rule: tells findings with the same code apart. warning: the program may be right all the same."""
        told = self.told.get((code, unit, rule))
        if told is None:
            found = Finding(code, f"{unit} uOP {uop} {text}", self.x.where(unit, uop), warning, help)
            told = self.told[code, unit, rule] = Told(found)
        told.uops.add(uop)

    def place(self, unit: str, uop: int) -> str:
        """Return a uOP and its place in the source as text, for messages about another uOP."""
        return f"{unit} uOP {uop} ({self.x.where(unit, uop)})"

    # -- order of reads and writes

    def compare(self, written: Written, ports: list[Reads], uses: Ints) -> list[Ints]:
        """Report reads that are not ordered with writes, and tiles that nothing reads.

        uses: the positions of the writes that the write port itself reads. Returns, for each port, a vector with the
        position of the write that each read gets, -1 if that is not decided.
        """
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
        """Report that it is not decided what read number `i` of a port gets: write `first`, or any later one up to
        `last`, of the same cell. first, last: positions in `written`, -1 for none. clean: for each write, whether
        another read certainly gets it.
        """
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
            slot = self.writer_slot(int(port.cell[i]))
            text = f"may overwrite slot {slot} before {self.place(port.name, uop)} has ended, which {port.verb} it"
            more = uop + 1 - int(port.free[op])
            help = f"raise `{port.field}` of {self.writer} uOP {op} by {more}, or of {self.earlier}"
            self.report("Y02", self.writer, op, text, help, rule=port.name)

    def wait_longer(self, written: Written, port: Reads, uop: int, tile: int) -> str:
        """Return the help of a finding: how operation `uop` of a read port can wait for tile number `tile`."""
        return f"raise its `wait` by {tile - int(port.low[uop])}, or that of uOPs before it"

    def contradictions(self, written: Written, port: Reads) -> None:
        """Report operations of two ports that wait for each other (Y06)."""
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
        """Report tiles that nothing reads, as the warning Y03. used: for each write, whether it is read."""
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
            text = f"writes slot {self.writer_slot(cell)}, which nothing reads {until}"
            self.report("Y03", self.writer, op, text, f"drop the write, or let {self.reader} send it", warning=True)
