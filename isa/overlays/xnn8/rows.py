"""Rows: what is written to X, X8, T and Angles of the lanes of an engine, what leaves X, and Post."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ....machine.steps import Burst, Step, Steps
from ....machine.unit import Wiring
from . import numbers
from .cycles import LOOPS
from .formats import (
    ANGLE_CELLS,
    ENGINES,
    HALVES,
    LANE_ROWS,
    LANES,
    ROW_STEP,
    SHORT_ROW_PAIR,
    T_CELLS,
    X_CELLS,
    AddedResidual,
    LaneMemory,
    PanelRows,
    RowOp,
    cells,
    walked_cells,
)
from .functions import TABLES
from .lanes import (
    FACTORS,
    FILLED,
    FREE,
    PACKET,
    SEND,
    LaneBlocks,
    LaneMemories,
    keys_of,
    pitch_of,
    rows_of,
    shared,
)
from .numbers import BLOCK, T_BITS, X_BITS, BlockNumbers, Integers, RowFactor, Statistics
from .stored import (
    PackedConstants,
    Words,
    of_words_by_row,
    row_words,
    rows_of_words,
    short_row_words,
    short_rows_of_words,
    words_by_row,
)

# The loops that these cycles follow are in hw/versal/xnn8: intervals, and what a pipeline takes until it is full.


def _results(rows: int) -> int:
    """Cycles in which a lane takes a block of results. 16 rows are a packet of 2080 bytes and a header; Post computes 8
    elements a cycle."""
    return rows // 16 * PACKET


def _heads(rows: int, heads: int) -> float:
    """Cycles for the sums of a head, of which 8 rows are a packet. Two streams have every other head each; Post takes a
    packet of theirs in turn, in half the time in which it comes, and divides for the next one meanwhile."""
    return rows // 8 * PACKET * -(-heads // 2) / heads


def _normalised(rows: int) -> int:
    """Cycles for a block that is rotated, or whose residual is normalised, or that is on its way to DDR: four elements
    a cycle."""
    return rows * BLOCK // 4


def _walked(rows: int) -> int:
    """Cycles for a block that goes from X to X8, or that is added: a cell of X in two cycles."""
    return rows * BLOCK // 8


def _moved(rows: int) -> int:
    """Cycles for a block between DDR and X: 16 bytes a cycle, exponents among them."""
    return rows * (BLOCK + 1) // 8


def _moved_short(rows: int) -> int:
    """The same between T and DDR."""
    return rows * SHORT_ROW_PAIR // 8


def _moved_rows(rows: int, uop: PanelRows, lanes: int) -> float:
    """Cycles for rows of an operation between these lanes and DDR, one by one. A lane moves eight bytes of a row a
    cycle, which are in one cell of T or X, and the exponents of a row in two cycles."""
    return rows * (uop.blocks * BLOCK * _bits(uop) // 64 + 2) / lanes


def _bits(uop: PanelRows) -> int:
    """Of the integers of its memory."""
    return T_BITS if uop.memory == LaneMemory.T else X_BITS


NORM_FILL, SUM_FILL = (LOOPS[name].fill for name in ("norms", "sums"))
LAST_HEADS = 8 * LANES + sum(LOOPS[name].fill for name in ("post", "cells", "cells", "norms", "factors", "residual"))
"""Cycles in which Post waits for the last heads of an operation that a norm follows, at most: one process makes norms
of their last eight rows in all lanes. Before, Post makes the next heads meanwhile. A head passes Post, what rounds it
and what sums it up, then its norms go to the residuals' process, which normalises it."""


def _factors(rows: int, blocks: int) -> int:
    """Cycles until norms and factors of rows are known. A lane looks at four rows of a block a cycle for their largest
    exponents, then at one for its sums, and for its bound; one process makes those of all lanes, a row a cycle."""
    return rows // 4 * blocks + 2 * rows * max(blocks, LANES) + 2 * rows + 2 * NORM_FILL + 3 * SUM_FILL


def _normalised_heads(rows: int) -> int:
    """Cycles for a block of heads that a norm follows. Post makes a packet as fast as its rows are summed up, four
    elements a cycle, then passes on what has been normalised of the packet before, in the same time."""
    return 2 * _normalised(rows)


def normalised(x: BlockNumbers, affine: PackedConstants, norm: Statistics | None) -> BlockNumbers:
    """Return a block of X that is normalised, with 16 bits, as X would keep it: (rows, 1, 64) with exponents (rows, 1,
    1). x: the block, in the same shapes. affine: gain and shift of the norm. norm: of the rows, from the latest SEND of
    Rows. Raises `ProgramError` if it is None, since that SEND had no norm."""
    if norm is None:
        raise ProgramError("a residual is normalised by the norm of the latest SEND, which had none")
    return numbers.stored(*numbers.normalised(x, affine.first, affine.second, norm), X_BITS)


class PanelRowsUnit(LaneMemories):
    """Writes the memories X, X8, T and Angles of the lanes of an engine, stores X and T to DDR, and, as Post, makes of
    the results of the tiles what is written to X or T.

    A run raises `ProgramError` where a residual is to be normalised and the latest SEND had no norm."""

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
        self.factor = None
        self.low_bits = 0
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
        for slot in range(uop.slot, uop.slot + uop.blocks * cells(uop.key_rows), cells(uop.key_rows)):

            def keep(words: Words, slot: int = slot) -> None:
                self.t.put(at, slot, short_rows_of_words(words))

            yield Step("lane_word", _moved_short(uop.key_rows), gets=(self._loads,), do=keep)
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
        yield Burst(pieces, "lane_word", cycles, gets=(self._loads,), do=keep)
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

            cycles = (_moved_short if in_t else _normalised if uop.norm else _moved)(uop.rows)
            yield Step("lane_word", cycles, puts=(self._stores,), do=make)

    def _send(self, uop: PanelRows) -> Steps:
        norm: list[Statistics | None] = []
        yield from self._statistics(uop, norm)
        rows = rows_of(uop)
        made: list[Integers] = []
        for number, tile in enumerate(walked_cells(uop.slot, uop.blocks, uop.rows, uop.low_bits)):

            def walk(number: int = number, tile: range = tile) -> None:
                if not made:
                    (self._norm,) = norm
                    known = [self.gains[slot] for slot in slots_of(uop)]
                    gains = BlockNumbers(*(np.concatenate(x) for x in zip(*known, strict=True)))
                    x = self.x.of(rows, uop.slot, uop.blocks)
                    whole, self.factor = numbers.sent(x, gains, self._norm, uop.low_bits)
                    self.low_bits = uop.low_bits
                    made.extend(numbers.parts(whole) if uop.low_bits else (whole,))
                both = np.stack([part[:, number] for part in made], 1)
                self.x8.put(rows, tile[0], BlockNumbers(both, np.zeros_like(both[..., :1])))

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
            if not done and (uop.gated or (uop.norm and uop.wide)):
                # what the first gates multiply, or the second block of a head, has been kept, four results a cycle
                yield Step("lane_word", 2 * PACKET)
            if uop.norm and done + count == uop.blocks:
                yield Step("row_factors", LAST_HEADS)
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
            yield Step("lane_word", _walked(uop.rows) * (2 if uop.residual else 1), do=add)
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
    """Return the first cell of each block of an operation of Rows. uop: takes no results; `blocks` of one that does
    counts columns of pairs."""
    step = cells(uop.rows)
    return range(uop.slot, uop.slot + uop.blocks * step, step)


def results_of(uop: PanelRows) -> int:
    """Return how many results, one from each column of pairs, Post takes at a time. In attention these are two of
    narrow heads, unless the heads become rows (`grouped`), and otherwise one. For a product it is one; a gate doubles
    that, and so do wide heads that are normalised. uop: takes results."""
    if uop.attention:
        return 1 + (uop.narrow & ~uop.grouped)
    return (1 + uop.gated) * (1 + (uop.norm & uop.wide))


def blocks_of_results(uop: PanelRows, count: int) -> int:
    """Return how many blocks of 64 columns Post makes of `count` results, one from each column of pairs. uop: takes
    results."""
    if uop.attention:
        return -(-count * (uop.groups if uop.grouped else 1) * pitch_of(uop) // BLOCK)
    return count // (1 + uop.gated)


def _post_cycles(uop: PanelRows) -> float:
    """Cycles in which a lane takes a result."""
    if uop.attention:
        return _heads(uop.rows << uop.wide, uop.blocks)
    if uop.norm:
        return _normalised_heads(uop.rows)
    # results of gates and those that they multiply take turns
    is_slow = uop.residual == AddedResidual.NORMALISED or uop.rotated
    return _normalised(uop.rows) if is_slow else _results(uop.rows)


def joined_constants(of: list[PackedConstants]) -> tuple[BlockNumbers, BlockNumbers, Integers]:
    """Return the constants of several blocks as arrays: the first vectors and the second ones, (blocks, 64) with
    exponents (blocks, 1), and the shifts, (blocks, 1). of: of each block its constants; at least one."""
    vectors = ([getattr(x, name) for x in of] for name in ("first", "second"))
    first, second = (BlockNumbers(*(np.concatenate(x) for x in zip(*some, strict=True))) for some in vectors)
    return first, second, np.array([[x.shift] for x in of])
