"""DDR and LPDDR: off-chip memories, read and written in pieces of blocks, vectors read word by word."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ....machine.description import Capability, UnitSpec, Where
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Wiring
from ...fields import Record, bits
from ...layout import BLOCK, BLOCK_COLS, BLOCK_ROWS, QUARTER, UNIT, padded
from ...overlay import Transfer as BankAccess
from ...versal.off_chip import READ_ONLY, BankUnit, starts
from ...versal.tiles import BIAS_WORD, BLOCK_WORDS, Pieces
from ...work import Access, Patched, RowStore, SetRow

TABLE_ROWS = 128
"""Entries of the table of rows."""


class Ddr(Record, words=4):
    """Move feature maps between DDR and MemA, MemB or MemC, `chunks` pieces of `size` elements."""

    addr: int = bits(0, 0, 32, "first element, in units of 64 bytes")
    size: int = bits(1, 0, 32, "float32 elements of one chunk")
    reuse_stride: int = bits(2, 0, 23, "from one repetition of the packet to the next, in units of 64 bytes")
    chunks: int = bits(2, 23, 4, "chunks", default=1)
    store: int = bits(2, 27, 1, "write to DDR")
    load: int = bits(2, 28, 1, "read from DDR; wins over store")
    to_a0: int = bits(2, 29, 1, "load destination", to="MemA0")
    to_a1: int = bits(2, 30, 1, "load destination", to="MemA1")
    to_a2: int = bits(2, 31, 1, "load destination", to="MemA2")
    chunk_stride: int = bits(3, 0, 23, "from one chunk to the next, in units of 64 bytes")
    to_b0: int = bits(3, 23, 1, "load destination", to="MemB0")
    to_b1: int = bits(3, 24, 1, "load destination", to="MemB1")
    to_b2: int = bits(3, 25, 1, "load destination", to="MemB2")
    from_c0: int = bits(3, 26, 1, "store source", source="MemC0")
    from_c1: int = bits(3, 27, 1, "store source", source="MemC1")
    from_c2: int = bits(3, 28, 1, "store source", source="MemC2")
    from_c3: int = bits(3, 29, 1, "store source", source="MemC3")
    from_c4: int = bits(3, 30, 1, "store source", source="MemC4")
    from_c5: int = bits(3, 31, 1, "store source", source="MemC5")


class DdrRows(Record, words=6):
    """Keep some rows of blocks that a MemC stores, as rows of a matrix in DDR; or set an entry of the table of rows.

    For each of `blocks` blocks of 128x64, each c < `chunks` and each i < `rows`: row `source` + c * `rows` + i of the
    block becomes row d = `row` + i of the matrix of chunk c; with `table`, entry `entry` + c of the table is added to
    d. Rows are written only if d < `limit`.
    """

    addr: int = bits(0, 0, 32, "row 0 of the matrix, in units of 64 bytes")
    row: int = bits(1, 0, 24, "first row of the matrix; with `set`, the row that the entry gets")
    entry: int = bits(1, 24, 7, "first entry of the table")
    set: int = bits(1, 31, 1, "set the entry, and move nothing")
    pitch: int = bits(2, 0, 23, "from one block to the one below, in units of 64 bytes")
    table: int = bits(2, 23, 1, "rows count from the one in the table")
    from_c0: int = bits(2, 26, 1, "source", source="MemC0")
    from_c1: int = bits(2, 27, 1, "source", source="MemC1")
    from_c2: int = bits(2, 28, 1, "source", source="MemC2")
    from_c3: int = bits(2, 29, 1, "source", source="MemC3")
    from_c4: int = bits(2, 30, 1, "source", source="MemC4")
    from_c5: int = bits(2, 31, 1, "source", source="MemC5")
    chunk_stride: int = bits(3, 0, 23, "from row 0 of a chunk to that of the next, in units of 64 bytes")
    rows: int = bits(3, 24, 8, "rows of a chunk", default=1)
    limit: int = bits(4, 0, 24, "rows of the matrix")
    chunks: int = bits(4, 24, 8, "chunks", default=1)
    source: int = bits(5, 0, 7, "first row of a block that is kept")
    blocks: int = bits(5, 7, 8, "blocks, side by side", default=1)


class Lpddr(Record, words=4):
    """Load weights or vectors from LPDDR into MemB0 or MemB1."""

    addr: int = bits(0, 0, 32, "first element, in units of 64 bytes")
    size: int = bits(1, 0, 32, "float32 elements of one chunk")
    reuse_stride: int = bits(2, 0, 32, "from one repetition of the packet to the next, in units of 64 bytes")
    chunk_stride: int = bits(3, 0, 25, "from one chunk to the next, in units of 64 bytes")
    chunks: int = bits(3, 25, 4, "chunks", default=1)
    to_b0: int = bits(3, 29, 1, "destination", to="MemB0")
    to_b1: int = bits(3, 30, 1, "destination", to="MemB1")
    bias: int = bits(3, 31, 1, "a linear vector, 16 floats a stream word, port 0 only")


VECTOR = 1024
"""Elements of a vector that lie in one column block of a MemB: a longer one is a whole number of these."""
BYTE = 1 / 4
"""Elements that a step of a bandwidth moves: its amount is in bytes."""


def capabilities(bank: str, *, keeps_rows: bool = False) -> tuple[Capability, ...]:
    """Return the capabilities of the unit of a bank. bank: `ddr` or `lpddr`, which is read only and holds vectors as
    well. keeps_rows: it can store rows (opcode 14); ignored for `lpddr`."""
    load = Capability("load", Where.LOAD, rate=f"{bank}_read_gbs", elements=BYTE)
    if bank == "lpddr":
        vector = Capability("load_vector", Where.LOAD, {"piece": (1, VECTOR)}, f"{bank}_read_gbs", BYTE)
        return load, vector
    store = Capability("store", Where.STORE, rate=f"{bank}_write_gbs", elements=BYTE)
    keep = Capability("keep_rows", Where.STORE, {"rows": (1, BLOCK_ROWS)}, f"{bank}_write_gbs", BYTE)
    return (load, store, keep) if keeps_rows else (load, store)


class Transfer(NamedTuple):
    """A DDR or LPDDR uOP: one chunk, from or to one peer.

    addr: in units of 64 bytes. size: float32 elements. store: write to the memory, else read. peer: the name of the
    unit at the other end, "" for none. bias: the chunk is a vector.
    """

    addr: int
    size: int
    store: bool
    peer: str
    bias: bool = False


class RowTransfer(NamedTuple):
    """A uOP of `DdrRows`: it keeps rows of one block of 128x64 from a peer, or sets an entry of the table. peer: the
    name of the unit that sends the block, "" for none. addr: of row 0 of the matrix at the 64 columns that the block is
    of, in units of 64 bytes. The other fields are those of `DdrRows`."""

    addr: int
    peer: str
    row: int
    entry: int
    set: bool
    pitch: int
    table: bool
    chunk_stride: int
    rows: int
    limit: int
    chunks: int
    source: int


_LOADS = [(f.name, str(f.to)) for f in Ddr.FIELDS if f.to]
_STORES = [(f.name, str(f.source)) for f in Ddr.FIELDS if f.source]


def ddr_uops(mop: Ddr, iteration: int) -> Iterator[Transfer]:
    """Yield one uOP per chunk (contract 1.3). iteration: of the packet's reuse, from 0. If load and store are both set,
    it loads; if several destinations or sources are set, the first is used (1.4). If neither load nor store is set, or
    no destination or source for it, the uOPs have no peer.
    """
    store = bool(mop.store and not mop.load)
    peer = ""
    if mop.load or mop.store:
        values = mop.__dict__
        for name, other in _STORES if store else _LOADS:
            if values[name]:
                peer = other
                break
    for addr in starts(mop, iteration):
        yield Transfer(addr, mop.size, store, peer)


def lpddr_uops(mop: Lpddr, iteration: int) -> Iterator[Transfer]:
    """Yield one uOP per chunk (contract 1.3). iteration: of the packet's reuse, from 0. If both destinations are set,
    MemB0 is used; a vector without a destination goes to MemB1, and other uOPs without one have no peer.
    """
    peer = "MemB0" if mop.to_b0 else "MemB1" if mop.to_b1 or mop.bias else ""
    for addr in starts(mop, iteration):
        yield Transfer(addr, mop.size, False, peer, bool(mop.bias))


def row_uops(mop: DdrRows, iteration: int) -> Iterator[RowTransfer]:
    """Yield one uOP per block, or a single one that sets an entry of the table. If several sources are set, the first
    is used; without one, and for an entry, the uOPs have no peer. iteration: ignored, since a repetition does the same
    again.
    """
    peer = "" if mop.set else next((str(x.source) for x in DdrRows.FIELDS if x.source and getattr(mop, x.name)), "")
    for block in range(1 if mop.set else mop.blocks):
        yield RowTransfer(
            (mop.addr + block * BLOCK // UNIT) & 0xFFFF_FFFF,
            peer,
            mop.row,
            mop.entry,
            bool(mop.set),
            mop.pitch,
            bool(mop.table),
            mop.chunk_stride,
            mop.rows,
            mop.limit,
            mop.chunks,
            mop.source,
        )


class OffChipUnit(BankUnit):
    """DDR and LPDDR: one uOP after another, strictly in order, reading and writing never overlapped."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._begun: dict[tuple[str, bool], int] = {}
        """Elements of a block that quarters have left begun, by peer and direction."""
        self._rows = [0] * TABLE_ROWS

    def kernel(self, uop: Transfer | RowTransfer) -> Steps:
        if isinstance(uop, RowTransfer):
            yield from self._keep_rows(uop)
            return
        if not uop.peer:
            return
        yield Step("offchip_uop")
        at = uop.addr * UNIT
        for pieces, size in self._pieces(uop):
            words = size // BIAS_WORD if uop.bias else size * BLOCK_WORDS // BLOCK
            if pieces and uop.store:
                yield self.stored(at, pieces, size, uop.peer, words)
            elif pieces:
                yield self.loaded(at, pieces, size, (uop.peer,), words)
            at += pieces * size

    def _pieces(self, uop: Transfer) -> Iterator[tuple[int, int]]:
        """How many of which size. Who is at the other end takes whole blocks, so one that quarters have begun is
        completed first: a stream has room for one."""
        if uop.bias:
            whole, rest = divmod(uop.size, BLOCK_WORDS * BIAS_WORD)
            yield whole, BLOCK_WORDS * BIAS_WORD
            yield int(rest > 0), rest
            return
        begun = self._begun.get((uop.peer, uop.store), 0)
        first = min(-begun % BLOCK, padded(uop.size, QUARTER))
        whole, rest = divmod(uop.size - first, BLOCK)
        yield first // QUARTER, QUARTER
        yield whole, BLOCK
        yield -(-rest // QUARTER), QUARTER
        self._begun.pop((uop.peer, uop.store), None)
        if left := (begun + padded(uop.size, QUARTER)) % BLOCK:
            self._begun[uop.peer, uop.store] = left

    def _keep_rows(self, uop: RowTransfer) -> Steps:
        """Each row is an access of its own."""
        if uop.set:
            self._rows[uop.entry] = uop.row
            return
        if not uop.peer:
            return

        def keep(n: int, tokens: Pieces) -> None:
            block = np.asarray(tokens[0]).reshape(-1)
            for c in range(uop.chunks):
                first = uop.row + (self._rows[uop.entry + c] if uop.table else 0)
                for i in range(uop.rows):
                    if first + i < uop.limit:
                        source = row_place(uop.source + c * uop.rows + i)
                        below, row = divmod(first + i, BLOCK_ROWS)
                        at = (uop.addr + c * uop.chunk_stride + below * uop.pitch) * UNIT + row_place(row)
                        self.write(at, block[source : source + BLOCK_COLS])

        gets = (self.source(uop.peer),)
        yield Step("offchip_uop", uop.chunks * uop.rows)
        yield Burst(1, self._write, BLOCK * 4, gets=gets, words=BLOCK_WORDS, do=keep)

    def effect_key(self, uop: Transfer | RowTransfer) -> Hashable:
        if isinstance(uop, RowTransfer):
            return uop.peer, uop.set, uop.chunks * uop.rows
        if not uop.bias and (self._begun or uop.size % BLOCK):
            return None  # what it does depends on what has been begun
        return uop.size, uop.store, uop.peer, uop.bias


def row_place(row: int) -> int:
    """Return the index of the first element of row `row` (0 to 127) in a block as it lies off chip: even rows of each
    32 come before odd ones (contract section 3).
    """
    quarter, r = divmod(row, 32)
    return QUARTER * quarter + QUARTER // 2 * (r % 2) + BLOCK_COLS * (r // 2)


def legal_rows(unit: UnitSpec, uop: RowTransfer) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP of `DdrRows`.

    The fields are in range; the reasons are about their combination.
    """
    if uop.set:
        return
    if not uop.peer:
        yield "names no source"
    if not uop.limit:
        yield "keeps rows of a matrix without rows"
    if uop.source + uop.chunks * uop.rows > BLOCK_ROWS:
        yield f"keeps rows {uop.source} to {uop.source + uop.chunks * uop.rows - 1} of blocks of {BLOCK_ROWS}"
    if uop.table and uop.entry + uop.chunks > TABLE_ROWS:
        yield f"reads entries {uop.entry} to {uop.entry + uop.chunks - 1} of a table of {TABLE_ROWS}"


def legal(unit: UnitSpec, uop: Transfer) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    if not uop.peer and uop.size:
        yield "names no destination or source"
    if uop.bias and uop.size % 32:
        yield f"a vector is a whole number of groups of 32, not {uop.size} elements"
    if uop.bias and uop.size // BIAS_WORD >= 1024:
        yield f"a vector has fewer than 1024 words of 16 floats, not {uop.size // BIAS_WORD}"
    if not uop.bias and uop.size % QUARTER:
        yield f"size {uop.size} is not a multiple of {QUARTER} elements"
    if uop.store and unit.bank == READ_ONLY:
        yield f"{unit.name} is read only"


def lint_ddr(mop: Ddr) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    to = [str(x.to) for x in Ddr.FIELDS if x.to and getattr(mop, x.name)]
    source = [str(x.source) for x in Ddr.FIELDS if x.source and getattr(mop, x.name)]
    if mop.load and mop.store:
        yield "load and store are both set; load wins"
    if mop.load and len(to) > 1:
        yield f"loads to {' and '.join(to)}; {to[0]} alone gets the data"
    if mop.store and not mop.load and len(source) > 1:
        yield f"stores from {' and '.join(source)}; {source[0]} alone is read"


def lint_lpddr(mop: Lpddr) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    if mop.to_b0 and mop.to_b1:
        yield "loads to MemB0 and MemB1; MemB0 alone gets the data"
    if mop.bias and not (mop.to_b0 or mop.to_b1):
        yield "a vector without destination goes to MemB1"


def transfer(unit: UnitSpec, uop: Any) -> BankAccess | None:
    """Return the off-chip access of a uOP; None if it makes none. The access of a uOP that keeps rows goes from the
    first to the last element that such a uOP can write.
    """
    if isinstance(uop, RowTransfer):
        if not uop.peer or not uop.limit:
            return None
        below = (uop.limit - 1) // BLOCK_ROWS * uop.pitch + (uop.chunks - 1) * uop.chunk_stride
        return BankAccess(str(unit.bank), uop.addr, below * UNIT + BLOCK, True, partial=True)
    if isinstance(uop, Transfer) and uop.peer and uop.size:
        return BankAccess(str(unit.bank), uop.addr, uop.size, uop.store)
    return None


@lru_cache(typed=True)
def _ddr(item: Access) -> Ddr:
    flags = {x.source if item.store else x.to: x.name for x in Ddr.FIELDS if (x.source if item.store else x.to)}
    direction = {"store": 1} if item.store else {"load": 1}
    return Ddr(
        size=item.size, chunks=item.chunks, chunk_stride=item.stride // UNIT, **direction, **{flags[item.peer]: 1}
    )


@lru_cache(typed=True)
def _lpddr(item: Access) -> Lpddr:
    flags = {x.to: x.name for x in Lpddr.FIELDS if x.to}
    stride = item.stride // UNIT
    return Lpddr(
        size=item.size, chunks=item.chunks, chunk_stride=stride, bias=int(item.vector), **{flags[item.peer]: 1}
    )


@lru_cache
def _ddr_rows(item: RowStore) -> DdrRows:
    flag = next(x.name for x in DdrRows.FIELDS if x.source == item.peer)
    return DdrRows(
        row=item.row,
        entry=item.entry or 0,
        table=int(item.entry is not None),
        pitch=item.pitch // UNIT,
        chunk_stride=item.chunk_stride // UNIT,
        rows=item.rows,
        limit=item.limit,
        chunks=item.chunks,
        source=item.source,
        blocks=item.blocks,
        **{flag: 1},
    )


def emit(unit: UnitSpec, items: Iterable[Any]) -> Iterator[Record | Patched]:
    """Yield the instruction of each of the items: `Access`, `RowStore` and `SetRow`. Their addresses are in float32
    elements, those of instructions in units of 64 bytes.

    Raises `FieldError` for a value that does not fit its field.
    """
    made = _lpddr if unit.bank == "lpddr" else _ddr
    for item in items:
        if isinstance(item, SetRow):
            yield Patched(DdrRows(entry=item.entry, set=1), (("row", item.row),))
        elif isinstance(item, RowStore):
            yield _ddr_rows(item._replace(addr=0)).replace(addr=item.addr // UNIT)
        else:
            yield made(item._replace(addr=0)).replace(addr=item.addr // UNIT)
