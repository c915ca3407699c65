"""The row lanes of an engine: Rows (X, its walks, and Post), Send (rows to the tiles), Heads (keys and values).

Rows writes all memories of a lane: X, X8, T, Angles. Send reads X8 and T, Heads reads T. Both take a token for each
block that was written for them, and give one back for each operation that has ended, which Rows waits for before it
writes over what they read.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Unit, Wiring
from ...layout import UNIT_BYTES
from . import numbers
from .cycles import LOOPS
from .formats import (
    ANGLE_CELLS,
    ENGINES,
    HALVES,
    LANE_ROWS,
    LANES,
    RECORD_WORDS,
    ROW_STEP,
    SLICE_KEYS,
    T_CELLS,
    X_CELLS,
    AddedResidual,
    ChunkKind,
    ChunkRecord,
    ChunkSource,
    LaneMemory,
    PanelHeads,
    PanelRows,
    PanelSend,
    RowOp,
    cells,
    slices,
    slices_of_keys,
)
from .functions import TABLES
from .numbers import BLOCK, T_BITS, X_BITS, BlockNumbers, Integers, RowFactor, Statistics
from .stored import (
    PackedConstants,
    Words,
    of_words_by_row,
    row_words,
    rows_of_words,
    short_row_words,
    short_rows_of_words,
    units_of_row,
    words_by_row,
)

FILLED, FREE, FACTORS, EXPONENTS = "filled", "free", "factors", "exponents"
"""Labels of the streams between Rows and the readers of its memories."""
SEND, HEADS = range(2)
"""Readers of the memories: bits of the field `readers` of Rows."""


# The loops that these cycles follow are in hw/versal/xnn8: intervals, and what a pipeline takes until it is full.


PACKET = 131
"""Beats of a packet of results, with its header: 16 rows of a block, or 8 rows of the sums of a head."""


def _results(rows: int) -> int:
    """Cycles in which a lane takes a block of results. 16 rows are a packet of 2080 bytes and a header; Post computes 8
    elements a cycle."""
    return rows // 16 * PACKET


def _heads(rows: int, heads: int) -> float:
    """Cycles for the sums of a head, of which 8 rows are a packet. Two streams have every other head each; Post takes a
    packet of theirs in turn, in half the time in which it comes, and divides for the next one meanwhile."""
    return rows // 8 * PACKET * -(-heads // 2) / heads


def _added(rows: int) -> int:
    """Cycles for a block that is stored in X with its statistics, with a residual or without, or that goes from X to
    DDR: a cell of X in four cycles, one behind the other."""
    return rows * BLOCK // 4


def _walked(rows: int) -> int:
    """Cycles for a block that goes from X to X8."""
    return rows * BLOCK // 8


def _moved(rows: int) -> int:
    """Cycles for a block from DDR to X: 16 bytes a cycle, exponents among them."""
    return rows * (BLOCK + 1) // 8


def _moved_short(rows: int) -> int:
    """The same between T and DDR."""
    return -(-rows * (BLOCK + 1) // 16)


CHUNK = (LANE_ROWS * BLOCK // 2 + 4 * RECORD_WORDS) // 16
"""Cycles for a chunk of rows: each tile of a pair gets 32 columns and a record, 16 bytes a cycle. The buffer of a tile
is filled as a whole, however many rows there are."""


def _moved_rows(rows: int, uop: PanelRows, lanes: int) -> float:
    """Cycles for rows of an operation between these lanes and DDR, one by one, if each lane has 16 bytes a cycle."""
    return rows * units_of_row(uop.blocks, _bits(uop)) * UNIT_BYTES / 16 / lanes


def _bits(uop: PanelRows) -> int:
    """Of the integers of its memory."""
    return T_BITS if uop.memory == LaneMemory.T else X_BITS


def _keys(uop: PanelHeads) -> float:
    """Cycles in which a part of the keys or values of a sequence passes on. For each slice of 32 keys, a lane serves
    one column of pairs after the other: 64 words of a head, each in two cycles."""
    of_lane = -(-uop.heads // uop.lanes) << uop.wide
    each = 2 * SLICE_KEYS * BLOCK // 32 * of_lane
    return slices_of_keys(uop.key_rows, uop.lanes) * each / slices(uop.key_rows)


def _exponents(heads: int, rows: int) -> int:
    """Cycles for the largest exponents of heads in the rows of a lane, and in all lanes."""
    return heads * rows // 4 + AHEAD + FILL + heads


def _factors(rows: int, blocks: int) -> int:
    """Cycles until norms and factors of rows are known. A lane looks at four rows of a block a cycle for their largest
    exponents, then at one for its sums, and for its bound; one process makes those of all lanes, a row a cycle."""
    return rows // 4 * blocks + 2 * rows * max(blocks, LANES) + 2 * rows + 2 * NORM_FILL + 3 * SUM_FILL


AHEAD = 15
"""Cells of a memory that are asked for before the first is taken."""
FILL, NORM_FILL, SUM_FILL = (LOOPS[name].fill for name in ("cells", "norms", "sums"))


class LaneRows(NamedTuple):
    """Rows in lanes of an engine, side by side. rows: of a lane."""

    first: int
    lanes: int
    rows: int

    @property
    def all(self) -> int:
        """The rows of all lanes."""
        return self.lanes * self.rows


class LaneBlocks:
    """A memory of the lanes of an engine. count: its cells. Whether cells exist is not checked here."""

    def __init__(self, count: int) -> None:
        self._integers = np.zeros((LANES, count, ROW_STEP, BLOCK), np.int64)
        self._exponents = np.full((LANES, count, ROW_STEP, 1), numbers.LOWEST, np.int64)

    @staticmethod
    def _blocks(x: Integers, at: LaneRows, slot: int, count: int) -> Integers:
        """A view of blocks of some rows, (lanes, blocks, rows of a lane, ...)."""
        some = x[at.first : at.first + at.lanes, slot : slot + count * cells(at.rows)]
        return some.reshape(at.lanes, count, at.rows, -1)

    def of(self, at: LaneRows, slot: int, count: int) -> BlockNumbers:
        """Return `count` blocks of some rows, from cell `slot` on: (rows, count, 64) and their exponents, (rows, count,
        1)."""
        parts = (self._blocks(x, at, slot, count).swapaxes(1, 2) for x in (self._integers, self._exponents))
        return BlockNumbers(*(x.reshape(at.all, count, -1) for x in parts))

    def put(self, at: LaneRows, slot: int, x: BlockNumbers) -> None:
        """Write blocks of some rows, from cell `slot` on. x: (rows, blocks, 64), with exponents (rows, blocks, 1)."""
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
        """Return heads of a sequence as attention takes them: integers of 8 bits (heads, rows, columns of a head), and
        the exponent of each, (heads, 1, 1). which: their numbers, of those from cell `slot` on. count: rows that count;
        the others are 0. pitch: columns from a head to the next. least, groups: as for `numbers.of_heads`, of all
        heads."""
        x = self.of(at, slot, -(-(int(which.max()) + 1) * pitch // BLOCK))
        shows = np.arange(at.all) < count
        all_heads = BlockNumbers(x.integers[None], x.exponents[None])
        made, exponents = numbers.of_heads(all_heads, pitch, shows[None], least, groups)
        return made[0, which], exponents[0, which]


def rows_of(uop: PanelRows | PanelSend) -> LaneRows:
    """The rows of an operation."""
    return LaneRows(uop.first, uop.lanes, uop.rows)


def keys_of(uop: PanelRows | PanelSend | PanelHeads) -> LaneRows:
    """The rows of keys and values of an operation."""
    if not isinstance(uop, PanelHeads) and uop.spread:
        return LaneRows(0, LANES, uop.key_rows)
    return LaneRows(uop.first, uop.lanes, uop.key_rows)


def pitch_of(uop: PanelRows | PanelSend | PanelHeads) -> int:
    """Columns from a head of an operation to the next."""
    return BLOCK << uop.wide >> uop.narrow


def shared(uop: PanelRows | PanelSend | PanelHeads, heads: int) -> Integers:
    """Of each of some heads, the number of the one whose keys and values it takes."""
    groups = 1 if not isinstance(uop, PanelHeads) and uop.grouped else uop.groups
    return (uop.skip + np.arange(heads)) // groups


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
        self._results, self._engine_told = self.source(f"Engine{i}"), self.sink(f"Engine{i}")
        self._factors = self.source(f"Send{i}", FACTORS)
        self._filled = self.sink(f"Send{i}", FILLED), self.sink(f"Heads{i}", FILLED)
        self._free = self.source(f"Send{i}", FREE), self.source(f"Heads{i}", FREE)
        if net.data:
            self.x, self.t, self.x8 = LaneBlocks(X_CELLS), LaneBlocks(T_CELLS), LaneBlocks(X_CELLS)
            self.angles = LaneBlocks(ANGLE_CELLS)
            none = BlockNumbers(np.zeros((1, BLOCK), np.int64), np.full((1, 1), numbers.LOWEST, np.int64))
            self.gains = [none] * X_CELLS
            """Of the block that begins with each cell of X; 0 where none were brought, for statistics alone."""
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
            RowOp.SUM: self._sum,
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
            self.gains[slot] = taken[0].first

        yield Step(do=keep)

    def _told(self, uop: PanelRows) -> Steps:
        """Tell the readers of T of a block that was written."""
        yield Step(puts=tuple(filled for i, filled in enumerate(self._filled) if uop.readers >> i & 1))

    def _load(self, uop: PanelRows) -> Steps:
        if uop.memory == LaneMemory.T:
            yield from (self._load_rows if uop.by_row else self._load_t)(uop)
            return
        memory = LaneMemory(uop.memory)
        for slot in slots_of(uop):

            def keep(words: Words, slot: int = slot) -> None:
                (self.x if memory is LaneMemory.X else self.angles).put(rows_of(uop), slot, rows_of_words(words, 1))

            yield Step("lane_word", _moved(uop.rows), gets=(self._loads,), do=keep)
            if uop.gains:
                yield from self._gains(slot)

    def _load_t(self, uop: PanelRows) -> Steps:
        """Load blocks that several engines have stored: all rows of the sequence."""
        at = keys_of(uop)
        parts = uop.key_rows // uop.rows
        for slot in range(uop.slot, uop.slot + uop.blocks * cells(uop.key_rows), cells(uop.key_rows)):

            def keep(n: int, words: Any, slot: int = slot) -> None:
                found = [short_rows_of_words(np.asarray(part)) for part in words]
                self.t.put(at, slot, BlockNumbers(*(np.concatenate(x) for x in zip(*found, strict=True))))

            yield Burst(
                parts, "lane_word", _moved_short(uop.rows), gets=(self._loads,), do=keep, needs_whole_token=True
            )
            yield from self._told(uop)

    def _load_rows(self, uop: PanelRows) -> Steps:
        """Load rows of a cache: the rows of a lane, then those of the next one."""
        at = keys_of(uop)

        def keep(n: int, words: Any) -> None:
            self.t.put(
                at, uop.slot, of_words_by_row(np.concatenate([np.asarray(x).reshape(-1) for x in words]), uop.blocks)
            )

        cycles = _moved_rows(ROW_STEP, uop, at.lanes)
        pieces = at.all // ROW_STEP
        yield Burst(pieces, "lane_word", cycles, gets=(self._loads,), do=keep, needs_whole_token=True)
        for _ in range(uop.blocks):
            yield from self._told(uop)

    def _store_rows(self, uop: PanelRows) -> Steps:
        at, count = rows_of(uop), 1 if uop.keeps else ROW_STEP
        made: list[Words] = []

        def make(number: int) -> tuple[Words]:
            if not made:
                x = (self.t if uop.memory == LaneMemory.T else self.x).of(at, uop.slot, uop.blocks)
                made.append(words_by_row(x, _bits(uop)).reshape(at.all // ROW_STEP, ROW_STEP, -1))
            return (made[0][number, :count].reshape(-1),)

        cycles = _moved_rows(count, uop, 1 if uop.keeps else at.lanes)
        for number in range(1 if uop.keeps else at.all // ROW_STEP):
            yield Step("lane_word", cycles, puts=(self._stores,), do=partial(make, number))

    def _statistics(self, uop: PanelRows, into: list[Statistics | None]) -> Steps:
        """The norm of the rows, which follows from what was summed up as X was stored. It goes to `into`."""

        def make() -> None:
            x = self.x.of(rows_of(uop), uop.slot, uop.blocks)
            into.append(numbers.statistics(x, uop.constants, rms=bool(uop.rms)) if uop.norm else None)

        yield Step("row_factors", _factors(uop.rows, uop.blocks), do=make)

    def _store(self, uop: PanelRows) -> Steps:
        if uop.by_row:
            yield from self._store_rows(uop)
            return
        norm: list[Statistics | None] = []
        if uop.norm:
            yield from self._statistics(uop, norm)
        rows, in_t = rows_of(uop), uop.memory == LaneMemory.T
        for slot in slots_of(uop):
            taken: list[PackedConstants] = []
            if uop.norm:
                yield self._vectors(taken)

            def make(slot: int = slot, taken: list[PackedConstants] = taken) -> tuple[Words]:
                if in_t:
                    return (short_row_words(self.t.of(rows, slot, 1)),)
                x = self.x.of(rows, slot, 1)
                return (row_words(normalised(x, taken[0], norm[0]) if taken else x),)

            cycles = (_moved_short if in_t else _added)(uop.rows)
            yield Step("lane_word", cycles, puts=(self._stores,), do=make)

    def _send(self, uop: PanelRows) -> Steps:
        norm: list[Statistics | None] = []
        yield from self._statistics(uop, norm)
        rows = rows_of(uop)
        made: list[Integers] = []
        for number, slot in enumerate(slots_of(uop)):

            def walk(number: int = number, slot: int = slot) -> None:
                if not made:
                    (self._norm,) = norm
                    known = [self.gains[slot] for slot in slots_of(uop)]
                    gains = BlockNumbers(*(np.concatenate(x) for x in zip(*known, strict=True)))
                    x, self.factor = numbers.sent(self.x.of(rows, uop.slot, uop.blocks), gains, self._norm)
                    made.append(x)
                integers = made[0][:, number : number + 1]
                self.x8.put(rows, slot, BlockNumbers(integers, np.zeros_like(integers[..., :1])))

            yield Step("lane_word", _walked(uop.rows), do=walk)
            yield Step(puts=(self._filled[SEND],))

    def _take(self, uop: PanelRows) -> Steps:
        factors: list[RowFactor] = []
        if not uop.attention:
            yield Step(gets=(self._factors,), do=lambda x: factors.append(RowFactor(*x)))
        for done in range(0, uop.blocks, results_of(uop)):
            count = min(results_of(uop), uop.blocks - done)
            made = blocks_of_results(uop, count)
            slot = uop.slot + blocks_of_results(uop, done) * cells(uop.rows)
            taken: list[PackedConstants] = []
            results: list[Integers] = []
            kinds = (uop.residual == AddedResidual.NORMALISED) + (uop.norm and not uop.attention)
            for _ in range((0 if uop.attention else count) + made * kinds):
                yield self._vectors(taken)
            words = HALVES if uop.attention else 1
            yield Burst(
                words * count,
                "lane_word",
                _post_cycles(uop) / words,
                gets=(self._results,),
                do=lambda n, x, results=results: results.extend(np.asarray(y).astype(np.int64) for y in x),
            )
            if uop.norm:
                yield Step("row_factors", _factors(uop.rows, 1) * heads_of_results(uop))
                yield Step("lane_word", made * _added(uop.rows))
            make = partial(self._of_sums, uop, done) if uop.attention else partial(self._of_products, uop, slot, made)

            def keep(slot: int = slot, make: Any = make, results: Any = results, taken: Any = taken) -> None:
                v, exponent = make(results, taken, factors)
                values = numbers.stored(v, exponent, _bits(uop))
                (self.t if uop.memory == LaneMemory.T else self.x).put(rows_of(uop), slot, values)

            yield Step(do=keep)
            for i in range(made):
                if uop.memory == LaneMemory.T:
                    yield from self._told(uop)
                elif uop.gains:
                    yield from self._gains(slot + i * cells(uop.rows))
        if uop.tell:
            yield Step(puts=(self._engine_told,))

    def _sum(self, uop: PanelRows) -> Steps:
        rows = rows_of(uop)
        for slot in slots_of(uop):

            def add(slot: int = slot) -> None:
                at = slot - uop.slot
                addends = [self.x.of(rows, uop.source + at, 1)]
                if uop.residual:
                    addends.append(self.x.of(rows, uop.residual_slot + at, 1))
                v, exponent = numbers.added(*map(numbers.kept, addends))
                if uop.function:
                    v = numbers.activated(v, exponent, [*TABLES.values()][uop.function - 1])
                self.x.put(rows, slot, numbers.stored(v, exponent, X_BITS))

            # both addends come through the only read port
            yield Step("lane_word", _added(uop.rows) * (2 if uop.residual else 1), do=add)
            if uop.gains:
                yield from self._gains(slot)

    def _of_products(
        self,
        uop: PanelRows,
        slot: int,
        blocks: int,
        results: Any,
        taken: list[PackedConstants],
        factors: list[RowFactor],
    ) -> tuple[Integers, Integers]:
        """Blocks of a product, with what is done behind it. Returns (rows, blocks, 64) and exponents."""
        count = len(results)
        scales, biases, shifts = joined_constants(taken[:count])
        drained = np.stack([x.reshape(-1, BLOCK) for x in results], 1)
        addends = [numbers.scaled(drained, shifts, scales, factors[0]), numbers.kept(biases)]
        more = taken[count:]
        if uop.residual:
            x = self.x.of(rows_of(uop), slot - uop.slot + uop.residual_slot, 1)
            if uop.residual == AddedResidual.NORMALISED:
                x = normalised(x, more.pop(0), self._norm)
            addends.append(numbers.kept(x))
        v, exponent = numbers.added(*addends)
        parts = [(v, exponent)]
        if uop.gated:
            parts = [(v[:, i : i + 1], exponent[:, i : i + 1]) for i in range(2)]
        v, exponent = parts[0]
        if uop.function:
            v = numbers.activated(v, exponent, [*TABLES.values()][uop.function - 1])
        if uop.gated:
            v, exponent = numbers.gated((v, exponent), parts[1])
        if uop.norm:
            gain, shift, _ = joined_constants(more)
            v, exponent = numbers.heads_normalised(
                v, exponent, pitch_of(uop), gain, shift, uop.constants, rms=bool(uop.rms)
            )
        if uop.rotated:
            number = (slot - uop.slot) // cells(uop.rows) % max(1, pitch_of(uop) // BLOCK)
            angles = self.angles.of(rows_of(uop), number * cells(uop.rows), blocks)
            v, exponent = numbers.rotated(v, exponent, *numbers.turned(angles))
        return v, exponent

    def _of_sums(
        self, uop: PanelRows, head: int, results: Any, taken: list[PackedConstants], factors: list[RowFactor]
    ) -> tuple[Integers, Integers]:
        """A block of heads, of which a result has the sums of values and, in the last column, those of weights; or two
        blocks of a wide head."""
        of_heads = np.concatenate(results).reshape(len(results) // HALVES, uop.lanes * uop.rows, -1)
        which = shared(uop, head + len(of_heads))
        _, exponents = self.t.heads(keys_of(uop), uop.values, which, uop.keys, pitch_of(uop))
        made = []
        for i, sums in enumerate(of_heads):
            v, exponent = numbers.of_weights(sums[:, :-1], sums[:, -1:], exponents[head + i], MOST_KEYS)
            if uop.grouped:  # rows are heads of the first row
                v, exponent = (np.pad(x[None, : uop.groups], ((0, len(x) - 1), (0, 0), (0, 0))) for x in (v, exponent))
            else:
                v, exponent = v[:, None], exponent[:, None]
            unit = min(pitch_of(uop), BLOCK)
            units = v.reshape(len(v), -1, unit)
            made.append((units, exponent.repeat(pitch_of(uop) // unit, 1)))
        return numbers.joined(*(np.concatenate(x, 1) for x in zip(*made, strict=True)))


MOST_KEYS = ENGINES * LANES * LANE_ROWS
"""Keys of a sequence, at most."""


def slots_of(uop: PanelRows) -> range:
    """The first cells of the blocks of an operation, other than results."""
    step = cells(uop.rows)
    return range(uop.slot, uop.slot + uop.blocks * step, step)


def results_of(uop: PanelRows) -> int:
    """How many results Post takes at a time: of narrow heads, of a gate, and of a wide head that is normalised, two."""
    if uop.attention:
        return 1 + (uop.narrow & ~uop.grouped)
    return (1 + uop.gated) * (1 + (uop.norm & uop.wide))


def blocks_of_results(uop: PanelRows, count: int) -> int:
    """How many blocks become of `count` results."""
    if uop.attention:
        return -(-count * (uop.groups if uop.grouped else 1) * pitch_of(uop) // BLOCK)
    return count // (1 + uop.gated)


def heads_of_results(uop: PanelRows) -> int:
    """How many heads Post normalises at a time."""
    return 1 + uop.narrow


def _post_cycles(uop: PanelRows) -> float:
    """Cycles in which a lane takes a result."""
    if uop.attention:
        return _heads(uop.rows << uop.wide, uop.blocks)
    if uop.residual:
        return _added(uop.rows)
    if uop.norm or uop.gated:  # a gate takes both its results at the same time, from two streams
        return _results(uop.rows)
    return _added(uop.rows) if uop.rotated or uop.memory == LaneMemory.X else _results(uop.rows)


def joined_constants(of: list[PackedConstants]) -> tuple[BlockNumbers, BlockNumbers, Integers]:
    """The constants of blocks: first and second vectors, (blocks, 64), and shifts, (blocks, 1)."""
    vectors = ([getattr(x, name) for x in of] for name in ("first", "second"))
    first, second = (BlockNumbers(*(np.concatenate(x) for x in zip(*some, strict=True))) for some in vectors)
    return first, second, np.array([[x.shift] for x in of])


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

            read = uop.rows if uop.source == ChunkSource.X8 else uop.rows // 4 * uop.chunks
            yield Step("lane_word", read + AHEAD + FILL, puts=(self._factors,), do=factors)
        else:
            yield Step("lane_word", _exponents(uop.chunks, uop.rows) + _exponents(uop.chunks, uop.key_rows))
        for number in range(uop.chunks):
            if uop.each and number:
                yield from self.wait(1)

            def chunk(number: int = number) -> tuple[Any]:
                return self._query(uop, number, made, heard) if queries else self._chunk(uop, number, made)

            yield Step("lane_word", CHUNK, puts=(self._engine,), do=chunk)
        yield Step(puts=(self.free,))

    def _chunk(self, uop: PanelSend, number: int, made: list[Any]) -> tuple[Any]:
        """A chunk of a product's rows, with its record."""
        shifts = {f"shift{i}": shift for i, shift in enumerate(uop.shifts)}
        kind = ChunkKind.LAST if number == uop.chunks - 1 else ChunkKind.ADD
        record = ChunkRecord(kind=kind, clears=int(not number), rows=uop.rows, columns=uop.columns, **shifts)
        if uop.source == ChunkSource.T:
            return (packed_chunk(made[0][:, number], record),)
        x = self.rows.x8.of(rows_of(uop), uop.slot + number * cells(uop.rows), 1)
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
            rows=uop.rows,
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
        return uop.source, uop.chunks, uop.wait, uop.each, uop.rows, uop.key_rows, uop.wide, uop.others


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
        cycles, count = _keys(uop), slices(uop.key_rows)
        yield Step("lane_word", 2 * _exponents(uop.heads, uop.key_rows) + 2 * AHEAD + FILL)
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
