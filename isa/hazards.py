"""Finds hazards in off-chip memory: loads before the store that they need, stores that are never read.

A bank with one unit is accessed in that unit's uOP order, so read-after-write and write-after-read follow from the
order alone. Memory is cut into cells at every address where an access or a buffer begins or ends; for each access of a
cell the number of earlier stores is known. Several buffers may share memory one after the other, and the image does not
state which of them an access means. The findings, decided cell by cell, are:

* H01, H02: a load of a cell that no earlier store has written and that holds no input or weight.
* H03: a load across cells that the same buffers share and that have the same number of stores in total, but different
  numbers of stores so far: it reads part of one buffer and part of the next.
* H04: a store that no load reads before the next store to the same cells, or before the end. Stores of single rows
  neither count nor overwrite.
* H05 to H08, independent of the order: stores over weights and inputs, outputs never stored, inputs never loaded.

Not found: a load that reads a whole buffer of shared memory too early, so that it gets the data of the previous buffer,
if other loads read the store that it should have waited for. In a bank with several units only the streams between them
order the accesses: H01, H03 and H04 are not checked there, and each load of a cell that is ever stored to is a warning
(H09).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..base.finding import Finding
from .expansion import Accesses, ExpandedProgram, Ints, region_name
from .layout import BLOCK, BLOCK_COLS, BLOCK_ROWS, BY_ROW, INTEGER_ROWS, UNIT, row_units
from .program import Buffer, Layout, Role

MAX_PIECES = 16_000_000
"""Largest number of (access, cell) pairs for which the order is checked; 24 layers (B=8, L=384) have 300,000."""

MAX_FOUND = 100
"""Findings of one kind that are listed one by one; the last one counts the others."""

Flags = npt.NDArray[np.bool_]


def hazards(expansion: ExpandedProgram) -> Iterator[Finding]:
    """Yield the hazards of a program's accesses to its declared buffers, bank by bank; none of a bank without buffers
    or accesses.
    """
    program = expansion.program
    for bank in program.overlay.banks:
        buffers = program.in_bank(bank)
        accesses = expansion.accesses.get(bank)
        if accesses is not None and buffers:
            yield from _Bank(expansion, bank, buffers, accesses).findings()


class _Bank:
    """One bank, its buffers and its accesses."""

    def __init__(self, expansion: ExpandedProgram, bank: str, buffers: Sequence[Buffer], accesses: Accesses) -> None:
        self.x = expansion
        self.bank = bank
        self.buffers = buffers
        self.a = accesses
        places = map(expansion.program.place, buffers)
        self.spans = [(place.start, place.stop) for place in places]
        edges = np.array(self.spans, np.int64).reshape(-1)
        self.cells: Ints = np.unique(np.concatenate([accesses.start, accesses.end, edges]))
        self.first: Ints = np.searchsorted(self.cells, accesses.start)
        self.last: Ints = np.searchsorted(self.cells, accesses.end)
        self.segment: Ints = np.searchsorted(np.unique(edges), self.cells, side="right")

    def findings(self) -> Iterator[Finding]:
        if int((self.last - self.first).sum()) > MAX_PIECES:
            text = f"accesses to {self.bank} overlap too often to follow their order"
            yield Finding("H10", text, "program", True, "this is no error; run the program to check its results")
            return
        yield from self._roles()
        yield from self._unused()
        if len(self.a.units) == 1:
            yield from self._order()
        else:
            yield from self._without_order()

    # -- cells

    def _covered(self, *roles: Role) -> Ints:
        """How many buffers of these roles hold each cell."""
        spans = [s for b, s in zip(self.buffers, self.spans, strict=True) if b.role in roles]
        starts, ends = np.searchsorted(self.cells, np.array(spans, np.int64).reshape(-1, 2)).T
        return self._coverage(starts, ends)

    def _coverage(self, starts: Ints, ends: Ints) -> Ints:
        """How many of the cell ranges starts[i]..ends[i] hold each cell."""
        n = len(self.cells)
        return np.cumsum(np.bincount(starts, minlength=n) - np.bincount(ends, minlength=n))

    @cached_property
    def given(self) -> Flags:
        """Whether each cell holds an input, a weight or a state before the run."""
        return self._covered(Role.INPUT, Role.WEIGHT, Role.STATE) > 0

    @cached_property
    def stored(self) -> Ints:
        """How often each cell is stored to in the whole run."""
        s = self.a.store
        return self._coverage(self.first[s], self.last[s])

    def _in_padding(self, cell: Ints) -> Flags:
        """Whether cells lie in the last 64 columns of a matrix whose width is a multiple of 128.

        With an odd number of heads nothing writes these columns, and they are multiplied by weights of 0.
        """
        at = self.cells[cell]
        padding = np.zeros(len(cell), bool)
        for b, (start, end) in zip(self.buffers, self.spans, strict=True):
            if b.role is Role.SCRATCH and b.layout is Layout.BLOCKED and len(b.shape) == 2 and b.shape[1] % 128 == 0:
                row = b.shape[1] * BLOCK_ROWS
                padding |= (at >= start) & (at < end) & ((at - start) % row >= row - BLOCK)
        return padding

    def _any(self, flags: Flags) -> Flags:
        """For each access, whether any of its cells has the flag."""
        sums = np.concatenate([[0], np.cumsum(flags)])
        return np.asarray(sums[self.last] > sums[self.first])

    # -- places and names

    def _each(self, code: str, accesses: Ints, text: str, help: str, warning: bool = False) -> Iterator[Finding]:
        """A finding per access; the one at `MAX_FOUND` stands for all further ones."""
        for n, i in enumerate(accesses[:MAX_FOUND].tolist(), 1):
            unit, uop = self.a.units[self.a.unit[i]].name, int(self.a.uop[i])
            verb = "stores" if self.a.store[i] else "loads"
            what = region_name(self.buffers, self.x.overlay.address_unit, int(self.a.start[i]), int(self.a.end[i]))
            times = len(accesses) - MAX_FOUND + 1 if n == MAX_FOUND else 1
            message = f"{unit} uOP {uop} {verb} {what}{text}"
            yield Finding(code, message, self.x.where(unit, uop), warning, help, times)

    # -- independent of the order

    def _roles(self) -> Iterator[Finding]:
        stores = self.a.store
        kept = ~(self._covered(Role.SCRATCH, Role.OUTPUT) > 0)
        over = self._any(self._covered(Role.WEIGHT) > 0)
        way_out = "store to a scratch or output buffer"
        text = ", where weights lie; they are loaded once for many runs"
        yield from self._each("H05", np.flatnonzero(stores & over), text, way_out)
        over = ~over & self._any((self._covered(Role.INPUT) > 0) & kept)
        yield from self._each("H06", np.flatnonzero(stores & over), ", over an input", way_out, True)

    def _unused(self) -> Iterator[Finding]:
        loaded = self._coverage(self.first[~self.a.store], self.last[~self.a.store])
        for b, (start, end) in zip(self.buffers, self.spans, strict=True):
            s, e = np.searchsorted(self.cells, [start, end])
            if b.role is Role.OUTPUT and (self.stored[s:e] == 0).any():
                (bare,) = np.nonzero(self.stored[s:e] == 0)
                lacking = _visible_elements(b, self.cells[s:e][bare] - start, self.cells[s + 1 : e + 1][bare] - start)
                if lacking:
                    text = f"{lacking} elements of this output are never stored"
                    yield Finding("H07", text, f"buffer {b.name}", help="store all of it")
            elif b.role in (Role.INPUT, Role.WEIGHT) and not loaded[s:e].any():
                text = f"nothing loads this {b.role.value}"
                yield Finding("H08", text, f"buffer {b.name}", True, "load it, or drop the buffer")

    def _without_order(self) -> Iterator[Finding]:
        loads = ~self.a.store
        dark = self._any((self.stored == 0) & ~self.given)
        yield from self._never(np.flatnonzero(loads & dark))
        text = ", which is stored to as well; only streams order the two"
        way_out = "check that a stream makes the load wait for the store, or use two buffers"
        yield from self._each("H09", np.flatnonzero(loads & ~dark & self._any(self.stored > 0)), text, way_out, True)

    def _never(self, accesses: Ints) -> Iterator[Finding]:
        way_out = "store it, or make the buffer an input"
        yield from self._each("H02", accesses, ", part of which nothing ever stores", way_out)

    # -- in order

    def _order(self) -> Iterator[Finding]:
        a = self.a
        sizes = self.last - self.first
        n = int(sizes.sum())
        if not n:
            return
        # a piece is one access of one cell; pieces are sorted by cell, those of a cell are in order of time
        access = np.repeat(np.arange(len(a)), sizes)
        cell = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes) + self.first[access]
        order = np.argsort(cell, kind="stable")
        access, cell = access[order], cell[order]
        store = a.store[access]
        begin = np.maximum.accumulate(np.where(np.append(True, cell[1:] != cell[:-1]), np.arange(n), 0))
        count = np.cumsum(store)
        seen: Ints = count - store - (count - store)[begin]  # stores to the cell before this piece
        whole = store & ~a.partial[access]
        writer = np.maximum.accumulate(np.where(whole, np.arange(n), -1))
        live = ~store & (writer >= begin)
        read = np.zeros(len(a), bool)
        read[access[writer[live]]] = True
        yield from self._unwritten(access, cell, ~store & (seen == 0) & ~self.given[cell])
        yield from self._mixed(access, cell, store, seen)
        output = self._any(self._covered(Role.OUTPUT) > 0)
        text = ", which nothing loads before it is overwritten or the program ends"
        way_out = "drop the store, or move it before the load that should read it"
        yield from self._each("H04", np.flatnonzero(a.store & ~a.partial & ~read & ~output), text, way_out, True)

    def _unwritten(self, access: Ints, cell: Ints, bare: Flags) -> Iterator[Finding]:
        if not bare.any():
            return
        access, cell = access[bare], cell[bare]
        shared = self._covered(Role.SCRATCH, Role.OUTPUT)[cell] > 1
        later = self.stored[cell] > 0
        tolerated = self._in_padding(cell) & (shared | ~later)
        early, never = np.unique(access[later & ~tolerated]), np.unique(access[~later & ~tolerated])
        yield from self._each("H01", early, " before the store that writes it", "move the load behind the store")
        never = np.setdiff1d(never, early)
        yield from self._never(never)
        text = ": nothing stores its last 64 columns, which read as 0 or as what was there before"
        way_out = "harmless where they meet weights of 0 (an odd head count)"
        yield from self._each("H02", np.setdiff1d(access, np.union1d(early, never)), text, way_out, True)

    def _mixed(self, access: Ints, cell: Ints, store: Flags, seen: Ints) -> Iterator[Finding]:
        """H03: loads of cells that should have been stored equally often so far, and have not."""
        several = ~store & (self._covered(Role.SCRATCH, Role.OUTPUT)[cell] > 1) & (self.stored[cell] > 0)
        if not several.any():
            return
        access, cell, seen = access[several], cell[several], seen[several]
        order = np.lexsort((seen, self.stored[cell], self.segment[cell], access))
        keys = np.stack([access, self.segment[cell], self.stored[cell], seen])[:, order]
        same = (keys[:3, 1:] == keys[:3, :-1]).all(axis=0) & (keys[3, 1:] != keys[3, :-1])
        text = ": part of it has been stored once more than the rest, so it reads two buffers in one"
        way_out = "move the load behind all stores of its buffer and before the next ones"
        yield from self._each("H03", np.unique(keys[0, 1:][same]), text, way_out)


def _visible_elements(b: Buffer, starts: Ints, ends: Ints) -> int:
    """How many of the elements starts[i]..ends[i] of a buffer lie in blocks or rows of its view."""
    view = b.view or b.shape
    if len(b.shape) == 1 or len(view) == 1:
        return int((np.minimum(ends, view[0]) - starts).clip(0).sum()) if len(view) == 1 else int((ends - starts).sum())
    rows, cols = view[-2:]
    in_view = np.zeros(b.shape[0], np.bool_)
    for first, count in b.items if len(view) == 3 else [(0, rows)]:
        in_view[first : first + count] = True
    if b.layout is Layout.BLOCKED:
        grain, width = BLOCK, b.shape[1] // BLOCK_COLS
        row, col = np.divmod(np.arange(b.size // BLOCK), width)
        touched = np.any(in_view.reshape(-1, BLOCK_ROWS), axis=1)
        seen = touched[row] & (col * BLOCK_COLS < cols)
    elif b.layout is Layout.INTEGERS:
        groups, blocks = b.item_shape[0] // INTEGER_ROWS, b.shape[1] // BLOCK_COLS
        touched = np.any(in_view.reshape(-1, 1, groups, INTEGER_ROWS), axis=3)
        grain, seen = b.size // (len(touched) * groups * blocks), touched.repeat(blocks, 1).reshape(-1)
    elif b.layout in BY_ROW:
        items, units = in_view.reshape(-1, b.item_shape[0]), row_units(b.shape[1], BY_ROW[b.layout])
        grain, seen = UNIT, np.concatenate([items.repeat(n, 1) for n in units], 1).reshape(-1)
    else:
        grain, seen = b.shape[1], in_view
    sums = np.concatenate([[0], np.cumsum(seen)])
    hit = sums[-(-ends // grain)] > sums[starts // grain]
    return int((ends - starts)[hit].sum())
