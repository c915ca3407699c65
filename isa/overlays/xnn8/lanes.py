"""The row lanes of an engine: Rows (X, its walks, and Post), Send (rows to the tiles), Heads (keys and values).

Rows writes all memories of a lane: X, X8, T. Send reads X8 and T, Heads reads T. Both take a token for each block that
was written for them, and give one back for each operation that has ended, which Rows waits for before it writes over
what they read.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Unit, Wiring
from . import numbers
from .formats import (
    HALVES,
    LANE_ROWS,
    LANES,
    RECORD_WORDS,
    SLICE_KEYS,
    SLICES,
    T_BLOCKS,
    X_BLOCKS,
    AddedResidual,
    ChunkKind,
    ChunkRecord,
    ChunkSource,
    PanelHeads,
    PanelRows,
    PanelSend,
    RowOp,
    slices_of_keys,
)
from .functions import TABLES
from .numbers import BLOCK, T_BITS, X_BITS, BlockNumbers, Integers, RowFactor, Statistics
from .stored import PackedConstants, Words, row_words, rows_of_words

FILLED, FREE, FACTORS = "filled", "free", "factors"
"""Labels of the streams between Rows and the readers of its memories."""
SEND, HEADS = range(2)
"""Readers of the memories, as the field `reader` of Rows has them."""


def _results(rows: int) -> int:
    """Cycles in which a lane takes a block of results, or the sums of a head. 16 rows of a block are a packet of 2080
    bytes and a header; so are 8 rows of a head, which come on two streams of 128 bit. Post computes 8 elements a
    cycle."""
    return rows // 16 * 131


def _added(rows: int) -> int:
    """Cycles for a block with a residual, which is read from X, and for one that is stored in X with its statistics."""
    return rows * BLOCK // 4


def _walked(rows: int) -> int:
    """Cycles for a block that goes from X to X8."""
    return rows * BLOCK // 8


def _moved(rows: int) -> int:
    """Cycles for a block between X and DDR: 16 bytes a cycle, exponents among them."""
    return rows * (BLOCK + 1) // 8


CHUNK = (LANE_ROWS * BLOCK // 2 + 4 * RECORD_WORDS) // 16
"""Cycles for a chunk of rows: each tile of a pair gets 32 columns and a record, 16 bytes a cycle. The buffer of a tile
is filled as a whole, however many rows there are."""


def _keys(uop: PanelHeads) -> float:
    """Cycles in which half of the keys or values of a sequence pass on. A column of pairs takes 16 bytes a cycle; a
    lane, which serves one column at a time, has 32."""
    keys = SLICE_KEYS * slices_of_keys(uop.rows, uop.lanes)
    return keys * BLOCK // 32 * max(2, -(-uop.heads // uop.lanes)) / SLICES


def _factors(rows: int) -> float:
    """The share of the time of the divisions and roots of 64 rows, four rows at a time: ten cycles a row, and the
    depth of the pipeline."""
    return (10 * rows + 110) / 750


class LaneBlocks:
    """A memory of blocks of the lanes of an engine. count: its blocks. integers: (rows of all lanes, count, 64).
    exponents: (rows of all lanes, count, 1). Whether blocks exist is not checked here."""

    def __init__(self, count: int) -> None:
        self.integers = np.zeros((LANES * LANE_ROWS, count, BLOCK), np.int64)
        self.exponents = np.full((LANES * LANE_ROWS, count, 1), numbers.LOWEST, np.int64)

    def of(self, rows: slice, first: int, count: int) -> BlockNumbers:
        """Return `count` blocks of some rows, from block `first` on, as a view: (rows, count, 64) and their exponents,
        (rows, count, 1)."""
        blocks = slice(first, first + count)
        return BlockNumbers(self.integers[rows, blocks], self.exponents[rows, blocks])

    def put(self, rows: slice, slot: int, x: BlockNumbers) -> None:
        """Write one block of some rows. slot: its number. x: (rows, 1, 64), with exponents (rows, 1, 1)."""
        into = self.of(rows, slot, 1)
        into.integers[:], into.exponents[:] = x

    def heads(self, rows: slice, slot: int, heads: int, count: int, *, narrow: int) -> tuple[Integers, Integers]:
        """Return heads of a sequence as attention takes them: integers of 8 bits (heads, rows, columns of a head), and
        the exponent of each, (heads, 1, 1). heads: from block `slot` on. count: rows that count; the others are 0.
        narrow: 1 for heads of 32 columns, 0 for those of 64."""
        pitch = BLOCK >> narrow
        x = self.of(rows, slot, -(-heads * pitch // BLOCK))
        shows = np.arange(x.integers.shape[0]) < count
        made, exponents = numbers.of_heads(BlockNumbers(x.integers[None], x.exponents[None]), pitch, shows[None])
        return made[0, :heads], exponents[0, :heads]


def rows_of(uop: PanelRows | PanelSend | PanelHeads) -> slice:
    """The rows of the lanes of an operation, among those of an engine."""
    return slice(uop.rows * uop.first, uop.rows * (uop.first + uop.lanes))


def normalised(x: BlockNumbers, affine: PackedConstants, norm: Statistics | None) -> BlockNumbers:
    """A block of X behind its norm, as X would keep it. Raises `ProgramError` if no norm was asked for before."""
    if norm is None:
        raise ProgramError("a residual is normalised by the norm of the latest SEND, which had none")
    return numbers.stored(*numbers.normalised(x, affine.first, affine.second, norm), X_BITS)


class PanelRowsUnit(Unit):
    """X, X8 and T of the lanes of an engine, and Post."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        i = spec.index
        self._loads, self._stores = self.source("DDR"), self.sink("DDR")
        self._constants = self.source("LPDDR")
        self._results, self._told = self.source(f"Engine{i}"), self.sink(f"Engine{i}")
        self._factors = self.source(f"Send{i}", FACTORS)
        self._filled = self.sink(f"Send{i}", FILLED), self.sink(f"Heads{i}", FILLED)
        self._free = self.source(f"Send{i}", FREE), self.source(f"Heads{i}", FREE)
        if net.data:
            self.x, self.t = LaneBlocks(X_BLOCKS), LaneBlocks(T_BLOCKS)
            self.gains = LaneBlocks(X_BLOCKS).of(slice(0, 1), 0, X_BLOCKS)
            self.x8 = np.zeros((LANES * LANE_ROWS, X_BLOCKS, BLOCK), np.int64)
        self.factor: RowFactor | None = None
        """Of the rows in X8."""
        self._norm: Statistics | None = None

    def kernel(self, uop: PanelRows) -> Steps:
        for count, channel in zip((uop.wait, uop.wait_heads), self._free, strict=True):
            if count:
                yield Burst(count, gets=(channel,))
        if not uop.blocks:
            return
        yield Step("lane_fill")
        yield from {
            RowOp.LOAD: self._load,
            RowOp.STORE: self._store,
            RowOp.SEND: self._send,
            RowOp.TAKE: self._take,
        }[RowOp(uop.op)](uop)

    def effect_key(self, uop: PanelRows) -> Hashable:
        return uop

    def _vectors(self, into: list[PackedConstants]) -> Step:
        """Take the constants of a block."""
        return Step(gets=(self._constants,), do=lambda words: into.append(PackedConstants.unpacked(words)))

    def _gains(self, slot: int) -> Steps:
        """Take the gains of a block of X."""
        taken: list[PackedConstants] = []
        yield self._vectors(taken)

        def keep() -> None:
            self.gains.integers[:, slot], self.gains.exponents[:, slot] = taken[0].first

        yield Step(do=keep)

    def _load(self, uop: PanelRows) -> Steps:
        rows = rows_of(uop)
        for slot in range(uop.slot, uop.slot + uop.blocks):

            def keep(words: Words, slot: int = slot) -> None:
                self.x.put(rows, slot, rows_of_words(words, 1))

            yield Step("lane_word", _moved(uop.rows), gets=(self._loads,), do=keep)
            if uop.gains:
                yield from self._gains(slot)

    def _statistics(self, uop: PanelRows, into: list[Statistics | None]) -> Steps:
        """The norm of the rows, which follows from what was summed up as X was stored. It goes to `into`."""

        def make() -> None:
            x = self.x.of(rows_of(uop), uop.slot, uop.blocks)
            into.append(numbers.statistics(x, uop.constants, rms=bool(uop.rms)) if uop.norm else None)

        yield Step("row_factors", _factors(uop.rows), do=make)

    def _store(self, uop: PanelRows) -> Steps:
        norm: list[Statistics | None] = []
        if uop.norm:
            yield from self._statistics(uop, norm)
        rows = rows_of(uop)
        for slot in range(uop.slot, uop.slot + uop.blocks):
            taken: list[PackedConstants] = []
            if uop.norm:
                yield self._vectors(taken)

            def make(slot: int = slot, taken: list[PackedConstants] = taken) -> tuple[Words]:
                x = self.x.of(rows, slot, 1)
                return (row_words(normalised(x, taken[0], norm[0]) if taken else x),)

            yield Step("lane_word", _moved(uop.rows), puts=(self._stores,), do=make)

    def _send(self, uop: PanelRows) -> Steps:
        norm: list[Statistics | None] = []
        yield from self._statistics(uop, norm)
        rows, blocks = rows_of(uop), slice(uop.slot, uop.slot + uop.blocks)
        made: list[Integers] = []
        for number in range(uop.blocks):

            def walk(number: int = number) -> None:
                if not made:
                    (self._norm,) = norm
                    gains = BlockNumbers(self.gains.integers[0, blocks], self.gains.exponents[0, blocks])
                    x, self.factor = numbers.sent(self.x.of(rows, uop.slot, uop.blocks), gains, self._norm)
                    made.append(x)
                self.x8[rows, uop.slot + number] = made[0][:, number]

            yield Step("lane_word", _walked(uop.rows), do=walk)
            yield Step(puts=(self._filled[SEND],))

    def _take(self, uop: PanelRows) -> Steps:
        rows = rows_of(uop)
        factors: list[RowFactor] = []
        if not uop.attention:
            yield Step(gets=(self._factors,), do=lambda x: factors.append(RowFactor(*x)))
        cycles = (_added if uop.residual or not uop.to_t else _results)(uop.rows)
        heads = 1 + uop.narrow if uop.attention else 1
        for number in range(0, uop.blocks, heads):
            slot = uop.slot + number // heads
            taken: list[PackedConstants] = []
            results: list[Integers] = []
            for _ in range((not uop.attention) + (uop.residual == AddedResidual.NORMALISED)):
                yield self._vectors(taken)
            words = HALVES if uop.attention else 1
            yield Burst(
                words * min(heads, uop.blocks - number),
                "lane_word",
                cycles / words,
                gets=(self._results,),
                do=lambda n, x, results=results: results.extend(np.asarray(y).astype(np.int64) for y in x),
            )
            make = partial(self._of_sums, uop, number) if uop.attention else partial(self._of_products, uop, slot)

            def keep(slot: int = slot, make: Any = make, results: Any = results, taken: Any = taken) -> None:
                v, exponent = make(results, taken, factors)
                values = numbers.stored(v, exponent, T_BITS if uop.to_t else X_BITS)
                (self.t if uop.to_t else self.x).put(rows, slot, values)

            yield Step(do=keep)
            if uop.to_t:
                yield Step(puts=(self._filled[uop.reader],))
            elif uop.gains:
                yield from self._gains(slot)
        if uop.tell:
            yield Step(puts=(self._told,))

    def _of_products(
        self, uop: PanelRows, slot: int, results: Any, taken: list[PackedConstants], factors: list[RowFactor]
    ) -> tuple[Integers, Integers]:
        """A block of a product, with what is added to it. Returns (rows, 1, 64) and exponents."""
        constants = taken[0]
        shifts = np.array([[constants.shift]])
        drained = results[0].reshape(-1, 1, BLOCK)
        addends = [numbers.scaled(drained, shifts, constants.first, factors[0]), numbers.kept(constants.second)]
        if uop.residual:
            x = self.x.of(rows_of(uop), slot, 1)
            addends.append(
                numbers.kept(normalised(x, taken[1], self._norm) if uop.residual == AddedResidual.NORMALISED else x)
            )
        v, exponent = numbers.added(*addends)
        if uop.function:
            v = numbers.activated(v, exponent, [*TABLES.values()][uop.function - 1])
        return v, exponent

    def _of_sums(
        self, uop: PanelRows, head: int, results: Any, taken: list[PackedConstants], factors: list[RowFactor]
    ) -> tuple[Integers, Integers]:
        """A block of heads, of which a result has the sums of values and, in the last column, those of weights."""
        rows = rows_of(uop)
        of_heads = np.concatenate(results).reshape(len(results) // HALVES, rows.stop - rows.start, -1)
        _, exponents = self.t.heads(rows, uop.values, head + len(of_heads), uop.keys, narrow=uop.narrow)
        made = []
        for i, sums in enumerate(of_heads):
            made.append(numbers.of_weights(sums[:, :-1], sums[:, -1:], exponents[head + i], LANES * LANE_ROWS))
        return numbers.joined(*(np.stack(x, 1) for x in zip(*made, strict=True)))


class LaneReader(Unit):
    """Reads memories that Rows of the same lanes writes."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._rows = f"Rows{spec.index}"
        self.filled, self.free = self.source(self._rows, FILLED), self.sink(self._rows, FREE)

    @property
    def rows(self) -> PanelRowsUnit:
        """The unit that writes."""
        unit = self._net.units[self._rows]
        assert isinstance(unit, PanelRowsUnit)
        return unit

    def wait(self, blocks: int) -> Steps:
        """Return the steps that wait until Rows has written more blocks. blocks: how many; 0 does not wait."""
        if blocks:
            yield Burst(blocks, gets=(self.filled,))


class SendUnit(LaneReader):
    """Sends rows to the tiles."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._engine, self._factors = self.sink(f"Engine{spec.index}"), self.sink(self._rows, FACTORS)

    def kernel(self, uop: PanelSend) -> Steps:
        yield from self.wait(uop.wait)
        if not uop.chunks:
            return
        made: list[Any] = []
        queries = uop.source == ChunkSource.QUERIES
        if not queries:
            if uop.each:  # the first of them tells that factors are known
                yield from self.wait(1)

            def factors() -> tuple[Any]:
                if uop.source == ChunkSource.X8:
                    assert self.rows.factor is not None
                    return (np.stack(self.rows.factor),)
                chunks, factor = numbers.of_rows(self.rows.t.of(rows_of(uop), uop.slot, uop.chunks))
                made.append(chunks)
                return (np.stack(factor),)

            yield Step(puts=(self._factors,), do=factors)
        for number in range(uop.chunks):
            if uop.each and number:
                yield from self.wait(1)

            def chunk(number: int = number) -> tuple[Any]:
                return (self._query if queries else self._chunk)(uop, number, made)

            yield Step("lane_word", CHUNK, puts=(self._engine,), do=chunk)
        yield Step(puts=(self.free,))

    def _chunk(self, uop: PanelSend, number: int, made: list[Any]) -> tuple[Any]:
        """A chunk of a product's rows, with its record."""
        shifts = {f"shift{i}": shift for i, shift in enumerate(uop.shifts)}
        kind = ChunkKind.LAST if number == uop.chunks - 1 else ChunkKind.ADD
        record = ChunkRecord(kind=kind, clears=int(not number), rows=uop.rows, columns=uop.columns, **shifts)
        if uop.source == ChunkSource.T:
            return (packed_chunk(made[0][:, number], record),)
        return (packed_chunk(self.rows.x8[rows_of(uop), uop.slot + number], record),)

    def _query(self, uop: PanelSend, head: int, made: list[Any]) -> tuple[Any]:
        """The queries of a head, with the shifts of its scores."""
        if not made:
            rows, t = rows_of(uop), self.rows.t
            made += t.heads(rows, uop.slot, uop.chunks, uop.count, narrow=uop.narrow)
            _, of_keys = t.heads(rows, uop.keys_slot, uop.chunks, uop.keys, narrow=uop.narrow)
            made += numbers.score_shifts(made[1] + of_keys, uop.head_dim)
        first, second = (int(x[head].item()) for x in made[2:])
        record = ChunkRecord(
            kind=ChunkKind.QUERIES,
            head=head,
            heads=uop.chunks,
            lanes=uop.lanes,
            rows=uop.rows,
            narrow=uop.narrow,
            keys=uop.keys,
            causal=uop.causal,
            first_shift=first,
            second_shift=min(second, 63),
        )
        return (packed_chunk(made[0][head], record),)

    def effect_key(self, uop: PanelSend) -> Hashable:
        return uop.source == ChunkSource.QUERIES, uop.chunks, uop.wait, uop.each, uop.rows


def packed_chunk(rows: Integers, record: ChunkRecord) -> npt.NDArray[np.int8]:
    """A chunk of rows, 8 bits each, and behind it its record."""
    return np.concatenate([rows.astype(np.int8).reshape(-1), np.array(record.encode(), np.uint32).view(np.int8)])


class HeadsUnit(LaneReader):
    """Sends keys and values of a sequence to the columns of pairs: to column c first those of lane c, then those of
    lane c + 1, and so on, so that each column takes from another lane. Here a step has half of those of each lane."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._engine = self.sink(f"Engine{spec.index}")

    def kernel(self, uop: PanelHeads) -> Steps:
        yield from self.wait(uop.wait)
        if not uop.heads:
            return
        made: list[Any] = []
        cycles = _keys(uop)
        for passed, slots in enumerate(((uop.keys_slot,), (uop.keys_slot, uop.values))):
            for number in range(SLICES):

                def slices(number: int = number, passed: int = passed) -> tuple[Any]:
                    if not made:
                        rows, t = rows_of(uop), self.rows.t
                        for slot in (uop.keys_slot, uop.values):
                            heads, _ = t.heads(rows, slot, uop.heads, uop.keys, narrow=uop.narrow)
                            shape = uop.heads, uop.lanes, SLICES, uop.rows // SLICES, -1
                            made.append(heads.reshape(shape).astype(np.int8))
                    return (np.stack([x[:, :, number] for x in made[: passed + 1]], 1),)

                words = len(slots) * uop.heads
                yield Step("lane_word", len(slots) * cycles, puts=(self._engine,), words=words, parts=words, do=slices)
        yield Step(puts=(self.free,))

    def effect_key(self, uop: PanelHeads) -> Hashable:
        return uop.lanes, uop.heads, uop.wait, uop.rows
