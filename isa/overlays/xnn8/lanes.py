"""The row lanes of an engine: their memories, Send (rows to the tiles), Heads (keys and values). Rows is in rows.py.

Rows writes all memories of a lane: X, X8, T, Angles. Send reads X8 and T, Heads reads T. Both take a token for each
block that was written for them, and give one back for each operation that has ended, which Rows waits for before it
writes over what they read.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Unit, Wiring
from . import numbers
from .cycles import LOOPS
from .formats import (
    ENGINES,
    LANE_ROWS,
    LANES,
    RECORD_WORDS,
    ROW_STEP,
    SLICE_KEYS,
    ChunkKind,
    ChunkRecord,
    ChunkSource,
    PanelHeads,
    PanelRows,
    PanelSend,
    cells,
    slices,
    slices_of_keys,
    walked_cells,
)
from .numbers import BLOCK, BlockNumbers, Integers, RowFactor
from .tile_streams import NARROW_BITS, PLIO_BITS, narrow_lanes

FILLED, FREE, FACTORS, EXPONENTS = "filled", "free", "factors", "exponents"
"""Labels of the streams between Rows and the readers of its memories."""
SEND, HEADS = range(2)
"""Readers of the memories: bits of the field `readers` of Rows."""

# The loops that these cycles follow are in hw/versal/xnn8: intervals, and what a pipeline takes until it is full.

PACKET = 131
"""Beats of a packet of results, with its header: 16 rows of a block, or 8 rows of the sums of a head."""
CHUNK = (LANE_ROWS * BLOCK // 2 + 4 * RECORD_WORDS) // 16
"""Cycles for a chunk of rows: each tile of a pair gets 32 columns and a record, 16 bytes a cycle. The buffer of a tile
is filled as a whole, however many rows there are."""


def _keys(uop: PanelHeads) -> float:
    """Cycles in which a part of the keys or values of a sequence passes on. For each slice of 32 keys, a lane serves
    one column of pairs after the other: 64 words of a head, each in two cycles."""
    of_lane = -(-uop.heads // uop.lanes) << uop.wide
    each = 2 * SLICE_KEYS * BLOCK // 32 * of_lane
    return slices_of_keys(uop.key_rows, uop.lanes) * each / slices(uop.key_rows)


def _exponents(heads: int, rows: int) -> int:
    """Cycles for the largest exponents of heads in the rows of a lane, and in all lanes. rows: of a wide head, of both
    of its blocks."""
    return heads * rows // 4 + AHEAD + FILL + heads


def _gathered(uop: PanelSend) -> int:
    """Cycles that a chunk takes longer if its rows are the first ones of heads: four cells are read for each."""
    return 3 * -(-uop.groups // 4) * (BLOCK // 8) << uop.wide


EXCHANGE = 8
"""Cycles in which the exponent of a head goes to other engines, and theirs come, one after the other."""
AHEAD = 15
"""Cells of a memory that are asked for before the first is taken."""
FILL = LOOPS["cells"].fill


class LaneRows(NamedTuple):
    """Rows in neighbouring lanes of an engine. first: number of the first lane. lanes: how many. rows: in each lane."""

    first: int
    lanes: int
    rows: int

    @property
    def all(self) -> int:
        """How many rows all lanes have together."""
        return self.lanes * self.rows


class LaneBlocks:
    """A memory of all lanes of an engine, which holds integers and exponents of blocks, 0 at first. count: cells of a
    lane. Methods do not check whether lanes and cells exist."""

    def __init__(self, count: int) -> None:
        self._integers = np.zeros((LANES, count, ROW_STEP, BLOCK), np.int64)
        self._exponents = np.full((LANES, count, ROW_STEP, 1), numbers.LOWEST, np.int64)

    @staticmethod
    def _blocks(x: Integers, at: LaneRows, slot: int, count: int) -> Integers:
        """A view of blocks of some rows, (lanes, blocks, rows of a lane, ...)."""
        some = x[at.first : at.first + at.lanes, slot : slot + count * cells(at.rows)]
        return some.reshape(at.lanes, count, at.rows, -1)

    def of(self, at: LaneRows, slot: int, count: int) -> BlockNumbers:
        """Return `count` blocks of some rows, from cell `slot` of each lane on: (rows, count, 64) with exponents (rows,
        count, 1), lane by lane. at: the rows."""
        parts = (self._blocks(x, at, slot, count).swapaxes(1, 2) for x in (self._integers, self._exponents))
        return BlockNumbers(*(x.reshape(at.all, count, -1) for x in parts))

    def put(self, at: LaneRows, slot: int, x: BlockNumbers) -> None:
        """Write blocks of some rows, from cell `slot` of each lane on. at: the rows. x: (rows, blocks, 64) with
        exponents (rows, blocks, 1), lane by lane."""
        for memory, new in zip((self._integers, self._exponents), x, strict=True):
            blocks = new.shape[-2]
            into = self._blocks(memory, at, slot, blocks)
            into[:] = new.reshape(at.lanes, at.rows, blocks, -1).swapaxes(1, 2)

    def heads(
        self,
        at: LaneRows,
        slot: int,
        which: Integers,
        count: int,
        pitch: int,
        least: Integers | None = None,
        groups: int = 1,
    ) -> tuple[Integers, Integers]:
        """Return heads of a sequence as attention takes them: integers of 8 bits (heads, rows, pitch), and the exponent
        of each, (heads, 1, 1). at: the rows of the sequence. slot: the cell with which the first head begins. which:
        numbers of the heads, counted from there. count: how many rows count, from the first one; the others become 0.
        pitch: columns from a head to the next. least, groups: as for `numbers.of_heads`, of all heads from `slot`
        on."""
        x = self.of(at, slot, -(-(int(which.max()) + 1) * pitch // BLOCK))
        shows = np.arange(at.all) < count
        all_heads = BlockNumbers(x.integers[None], x.exponents[None])
        made, exponents = numbers.of_heads(all_heads, pitch, shows[None], least, groups)
        return made[0, which], exponents[0, which]


def rows_of(uop: PanelRows | PanelSend) -> LaneRows:
    """Return the lanes of an operation, and how many rows it has in each."""
    return LaneRows(uop.first, uop.lanes, uop.rows)


def keys_of(uop: PanelRows | PanelSend | PanelHeads) -> LaneRows:
    """Return the lanes that hold the keys and values of an operation, and how many keys are in each: its own lanes, or
    all lanes of the engine if keys are spread over these."""
    if not isinstance(uop, PanelHeads) and uop.spread:
        return LaneRows(0, LANES, uop.key_rows)
    return LaneRows(uop.first, uop.lanes, uop.key_rows)


def pitch_of(uop: PanelRows | PanelSend | PanelHeads) -> int:
    """Return the columns from a head of an operation to the next: 32, 64 or 128."""
    return BLOCK << uop.wide >> uop.narrow


def shared(uop: PanelRows | PanelSend | PanelHeads, heads: int) -> Integers:
    """Return, for each head of an operation, the number of the head of keys and values that it takes, counted from the
    first cell of the keys. heads: how many heads the operation has."""
    groups = 1 if not isinstance(uop, PanelHeads) and uop.grouped else uop.groups
    return (uop.skip + np.arange(heads)) // groups


class LaneMemories(Unit):
    """The memories of the lanes of an engine that Rows writes and the units Send and Heads of the engine read. Only a
    run with data has them.

    x8: rows of products that Rows has made of X: integers of 8 bits, without exponents; 64 cells in each lane. t:
    queries, keys, values, heads and rows of products, of 8 bits; 256 cells. factor: the scales of the rows in x8,
    (rows, 1, 1), with the rows of all lanes; None before the first SEND of Rows. low_bits: bits that the rows in x8
    have beyond 8, 0 to 8."""

    x8: LaneBlocks
    t: LaneBlocks
    factor: RowFactor | None
    low_bits: int


class LaneReader(Unit):
    """A unit that reads the memories which the unit Rows of the same engine writes. filled: the stream on which Rows
    tells of each block that it has written. free: the stream on which this unit tells Rows of each operation that has
    ended."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._rows = f"Rows{spec.index}"
        self.filled, self.free = self.source(self._rows, FILLED), self.sink(self._rows, FREE)

    @property
    def rows(self) -> LaneMemories:
        """The unit Rows of the same engine, with the memories that it writes."""
        unit = self._net.units[self._rows]
        assert isinstance(unit, LaneMemories)
        return unit

    def wait(self, blocks: int) -> Steps:
        """Return the steps that wait until Rows has written `blocks` more blocks for this unit; none for 0."""
        if blocks:
            yield Burst(blocks, gets=(self.filled,))


class SendUnit(LaneReader):
    """Sends chunks of rows to the tiles of its engine, each with a record: rows of a product from X8 or T, or queries
    from T. It sends the factors of the rows of a product to Rows.

    A run raises `ProgramError` where rows in X8 have other bits than the instruction says."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._engine, self._factors = self.sink(f"Engine{spec.index}"), self.sink(self._rows, FACTORS)
        self._beats: tuple[str, float] = ("lane_word", CHUNK)
        """Of a chunk: of the slowest lane, since all go in step."""
        if narrow_lanes(spec.index):
            self._beats = ("narrow_beat", CHUNK * PLIO_BITS / NARROW_BITS)
        others = [i for i in range(ENGINES) if i != spec.index]
        self._tell = {i: self.sink(f"Send{i}", EXPONENTS) for i in others}
        self._hear = {i: self.source(f"Send{i}", EXPONENTS) for i in others}

    def kernel(self, uop: PanelSend) -> Steps:
        yield from self.wait(uop.wait)
        if not uop.chunks:
            return
        made: list[Any] = []
        heard: list[Any] = []
        queries = uop.source == ChunkSource.QUERIES
        if queries and uop.others:
            others = [i for i in self._tell if uop.others >> i & 1]

            def told() -> tuple[Any, ...]:
                return (self._exponents(uop),) * len(others)

            yield Step(puts=tuple(self._tell[i] for i in others), do=told)
            yield Step(gets=tuple(self._hear[i] for i in others), do=lambda *x: heard.extend(x))
            yield Step("lane_word", EXCHANGE * uop.chunks)
        if not queries:
            if uop.each:  # the first of them tells that factors are known
                yield from self.wait(1)

            def factors() -> tuple[Any]:
                if uop.source == ChunkSource.X8:
                    assert self.rows.factor is not None
                    if uop.low_bits != self.rows.low_bits:
                        raise ProgramError(f"{self.name}: rows of other bits than its instruction has")
                    return (np.stack(self.rows.factor),)
                whole, factor = numbers.of_rows(self.rows.t.of(rows_of(uop), uop.slot, uop.chunks), uop.low_bits)
                made.extend(numbers.parts(whole) if uop.low_bits else (whole,))
                return (np.stack(factor),)

            read = uop.rows if uop.source == ChunkSource.X8 else uop.rows // 4 * uop.chunks
            yield Step("lane_word", read + AHEAD + FILL, puts=(self._factors,), do=factors)
        else:
            of_rows = _exponents(uop.chunks * (uop.groups if uop.grouped else 1), uop.rows << uop.wide)
            yield Step("lane_word", of_rows + _exponents(uop.chunks, uop.key_rows << uop.wide))
        for number in range(sent_chunks(uop)):
            if uop.each and 0 < number < uop.chunks:
                yield from self.wait(1)

            def chunk(number: int = number) -> tuple[Any]:
                return self._query(uop, number, made, heard) if queries else self._chunk(uop, number, made)

            if uop.grouped:
                yield Step("lane_word", _gathered(uop))
            yield Step(*self._beats, puts=(self._engine,), do=chunk)
        yield Step(puts=(self.free,))

    def _chunk(self, uop: PanelSend, number: int, made: list[Any]) -> tuple[Any]:
        """A chunk of a product's rows, with its record."""
        shifts = {f"shift{i}": shift for i, shift in enumerate(uop.shifts)}
        kind = ChunkKind.LAST if number == sent_chunks(uop) - 1 else ChunkKind.ADD
        part, block = divmod(number, uop.chunks)
        up = numbers.LOW_BITS if number == uop.chunks else 0
        record = ChunkRecord(kind=kind, clears=int(not number), rows=uop.rows, columns=uop.columns, up=up, **shifts)
        if uop.source == ChunkSource.T:
            return (packed_chunk(made[part][:, block], record),)
        tile = walked_cells(uop.slot, uop.chunks, uop.rows, uop.low_bits)[block]
        x = self.rows.x8.of(rows_of(uop), tile[part * cells(uop.rows)], 1)
        return (packed_chunk(x.integers, record),)

    def _exponents(self, uop: PanelSend) -> Integers:
        """The exponents of the queries in these lanes, (heads, 1, 1)."""
        return self.rows.t.heads(rows_of(uop), uop.slot, np.arange(uop.chunks), uop.count, pitch_of(uop))[1]

    def _query(self, uop: PanelSend, head: int, made: list[Any], heard: list[Any]) -> tuple[Any]:
        """The queries of a head, with the shifts of its scores. heard: exponents of queries in other engines."""
        if not made:
            t, pitch = self.rows.t, pitch_of(uop)
            least, groups = np.max(heard, 0) if heard else None, uop.groups if uop.grouped else 1
            which = np.arange(uop.chunks * groups)
            q, of_queries = t.heads(rows_of(uop), uop.slot, which, uop.count, pitch, least, groups)
            if uop.grouped:
                rows = q[:, 0].reshape(uop.chunks, groups, pitch)
                q, of_queries = np.pad(rows, ((0, 0), (0, q.shape[1] - groups), (0, 0))), of_queries[::groups]
            made += q, of_queries
            _, of_keys = t.heads(keys_of(uop), uop.keys_slot, shared(uop, uop.chunks), uop.keys, pitch)
            made += numbers.score_shifts(made[1] + of_keys, uop.head_dim)
        first, second = (int(x[head].item()) for x in made[2:])
        record = ChunkRecord(
            kind=ChunkKind.QUERIES,
            head=head,
            heads=uop.chunks,
            lanes=keys_of(uop).lanes,
            rows=uop.rows << uop.wide,
            narrow=uop.narrow,
            wide=uop.wide,
            keys=uop.keys,
            causal=uop.causal,
            first_shift=first,
            second_shift=min(second, 63),
            key_rows=uop.key_rows,
            first_row=uop.first_row,
        )
        return (packed_chunk(made[0][head], record),)

    def effect_key(self, uop: PanelSend) -> Hashable:
        shares = uop.grouped and uop.groups
        of_rows = uop.rows, uop.key_rows, uop.wide, uop.low_bits, shares
        return uop.source, uop.chunks, uop.wait, uop.each, uop.others, *of_rows


def sent_chunks(uop: PanelSend) -> int:
    """Return how many chunks an operation sends: one for each block, or two, of high and of low parts, if rows have
    more than 8 bits."""
    return uop.chunks << (uop.low_bits > 0)


def packed_chunk(rows: Integers, record: ChunkRecord) -> npt.NDArray[np.int8]:
    """Return a chunk as the tiles get it, int8 (elements of rows + 32,): the rows, and behind them the record. rows:
    integers of 8 bits, of any shape."""
    return np.concatenate([rows.astype(np.int8).reshape(-1), np.array(record.encode(), np.uint32).view(np.int8)])


class HeadsUnit(LaneReader):
    """Sends keys and values of a sequence to the tiles of its engine. Column c of pairs gets first those of lane c,
    then those of lane c + 1, and so on, so that at any time each column takes from another lane.

    In the simulator a step sends one of `slices` equal parts of the keys of all lanes."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._engine = self.sink(f"Engine{spec.index}")

    def kernel(self, uop: PanelHeads) -> Steps:
        yield from self.wait(uop.wait)
        if not uop.heads:
            return
        made: list[Any] = []
        cycles, count = _keys(uop), slices(uop.key_rows)
        yield Step("lane_word", 2 * _exponents(uop.heads, uop.key_rows << uop.wide) + 2 * AHEAD + FILL)
        for passed, slots in enumerate(((uop.keys_slot,), (uop.keys_slot, uop.values))):
            for number in range(count):

                def part(number: int = number, passed: int = passed) -> tuple[Any]:
                    if not made:
                        which, t = shared(uop, uop.heads), self.rows.t
                        for slot in (uop.keys_slot, uop.values):
                            heads, _ = t.heads(keys_of(uop), slot, which, uop.keys, pitch_of(uop))
                            shape = uop.heads, uop.lanes, count, uop.key_rows // count, -1
                            made.append(heads.reshape(shape).astype(np.int8))
                    return (np.stack([x[:, :, number] for x in made[: passed + 1]], 1),)

                words = len(slots) * uop.heads
                yield Step("lane_word", len(slots) * cycles, puts=(self._engine,), words=words, parts=words, do=part)
        yield Step(puts=(self.free,))

    def effect_key(self, uop: PanelHeads) -> Hashable:
        return uop.lanes, uop.heads, uop.wait, uop.key_rows, uop.wide
