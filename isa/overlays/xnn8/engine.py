"""W, which sends weights to the engines, and an engine: 64 pairs of AIE tiles in 8 rows and 8 columns.

A row of pairs has the rows of a lane, a column of pairs 64 columns of the results, or a head. Each tile of a pair has
half of K; at the end of a block of results the sums of both are added over the cascade.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ....machine.steps import Burst, Par, Step, Steps
from ....machine.unit import Unit, Wiring
from . import numbers
from .formats import (
    ENGINES,
    HALVES,
    LANE_ROWS,
    LANES,
    RECORD_WORDS,
    SHORT_WEIGHT_WORD,
    WEIGHT_WORD,
    ChunkKind,
    ChunkRecord,
    EngineOp,
    PanelWeights,
    slices,
    slices_of_keys,
)
from .numbers import BLOCK
from .stored import short_weights_of_words, weights_of_words

AIE_MHZ = 1250.0
MACS = 128
"""Products of int8 that a tile adds up in a cycle (AM009)."""
SHARE = 0.77
"""Share of them that a kernel reaches: 77.0 of 99.8 TOPS on 312 tiles of this chip (MaxEVA, Taka et al., 2023)."""
CASCADE_FILL = 64
"""Cycles until the first sums have come over the cascade, which then has eight in a cycle (assumed)."""
CHUNK_CYCLES = 1280
"""Of 64x32 by 32x64, from its instructions and accumulators, without the time in which pipelines fill and conflicts of
banks (docs/xnn8.md). By the share it takes 4 % more, and so does all that is argued alike."""
MAXIMA, WEIGHTS, ROUND = 606, 2030, 1200
"""Cycles of a tile, argued likewise: of 32 rows and 32 keys, for the largest scores; for weights and weighted values;
and what a round of attention of 32 rows begins and ends with, once."""


def _microseconds(argued: int) -> float:
    """The time of a tile in microseconds, to 0.1 ns. argued: cycles."""
    products = LANE_ROWS * BLOCK // 2 * BLOCK
    return round(argued * products / CHUNK_CYCLES / MACS / SHARE / AIE_MHZ, 4)


CHUNK_US, MAXIMA_US, WEIGHTS_US, ROUND_US = map(_microseconds, (CHUNK_CYCLES, MAXIMA, WEIGHTS, ROUND))
CASCADE_US = (LANE_ROWS * BLOCK // 8 + CASCADE_FILL) / AIE_MHZ
"""Of 64 rows in each lane, as all of these; of fewer rows they are as many fewer."""


def cascade_share(rows: int) -> float:
    """Return the part of `CASCADE_US` that the sums of a lane take, 1 for 64 rows. rows: of the lane, 1 to 64."""
    return (rows * BLOCK // 8 + CASCADE_FILL) / (LANE_ROWS * BLOCK // 8 + CASCADE_FILL)


class PanelWeightsUnit(Unit):
    """Sends chunks of weights to all engines at once. The first columns of a chunk come from LPDDR, the others from
    DDR. Weights of 4 bits are sent with 8.

    A run raises `ProgramError` where a chunk that comes has other bits than the instruction says."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self._sources = self.source("LPDDR"), self.source("DDR")
        self._sinks = [self.sink(f"Engine{i}") for i in range(ENGINES)]

    def kernel(self, uop: PanelWeights) -> Steps:
        sinks = tuple(sink for i, sink in enumerate(self._sinks) if uop.engines >> i & 1)
        counts = uop.columns - uop.ddr, uop.ddr
        buffers: dict[int, list[Any]] = {}

        def filled(number: int) -> Steps:
            parts = buffers[number] = [None, None]

            def part(i: int) -> Steps:
                def keep(words: Any) -> None:
                    parts[i] = words

                yield Step(gets=(self._sources[i],), words=counts[i], do=keep)

            yield Par(*(part(i) for i in range(2) if counts[i]))

        def sent(number: int) -> Steps:
            def chunk() -> tuple[Any, ...]:
                words = np.concatenate([np.asarray(x).reshape(-1) for x in buffers.pop(number) if x is not None])
                if len(words) != uop.columns * (SHORT_WEIGHT_WORD if uop.int4 else WEIGHT_WORD):
                    raise ProgramError(f"{self.name}: weights of other bits than its instruction has")
                of_words = short_weights_of_words if uop.int4 else weights_of_words
                return (of_words(words, uop.columns),) * len(sinks)

            yield Step("lane_word", BLOCK * BLOCK // 2 // 16, puts=sinks, do=chunk)

        for number in range(uop.chunks + 1):  # it fills one buffer while it sends the other
            both = ((sent(number - 1),) if number else ()) + ((filled(number),) if number < uop.chunks else ())
            yield Par(*both)

    def effect_key(self, uop: PanelWeights) -> Hashable:
        return uop


def key_lanes(uop: EngineOp) -> int:
    """Return how many lanes of the engine have the keys and values of an operation."""
    return LANES if uop.spread else uop.lanes


class EngineUnit(Unit):
    """The tiles of an engine, and what passes weights, keys and values on to them: multiplies rows by weights, or
    computes attention.

    A run raises `ProgramError` where the record of a chunk of rows has another kind, number of rows or number of
    columns than the instruction."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        i = spec.index
        self._rows, self._weights, self._heads = (self.source(x) for x in (f"Send{i}", "W", f"Heads{i}"))
        self._results, self._told = self.sink(f"Rows{i}"), self.source(f"Rows{i}")

    def kernel(self, uop: EngineOp) -> Steps:
        yield from (self._attention if uop.attention else self._product)(uop)

    def effect_key(self, uop: EngineOp) -> Hashable:
        return uop

    def _record(self, chunk: Any, kind: ChunkKind, rows: int) -> tuple[npt.NDArray[np.int8], ChunkRecord]:
        """Rows of a chunk, int8 (rows * columns,), and its record. rows: of a lane. Raises `ProgramError` for a record
        that says something else than the engine's instruction."""
        record = ChunkRecord.decode(chunk[-4 * RECORD_WORDS :].view(np.uint32).tolist())
        if record.kind != kind:
            raise ProgramError(f"{self.name}: a chunk of kind {ChunkKind(record.kind).name} where {kind.name} was due")
        if record.rows != rows:
            raise ProgramError(f"{self.name}: a chunk of {record.rows} rows in a lane where {rows} were due")
        return chunk[: -4 * RECORD_WORDS], record

    def _product(self, uop: EngineOp) -> Steps:
        for _ in range(uop.times):
            total = np.zeros((uop.rows * uop.lanes, uop.columns * BLOCK) if self._net.data else 0, np.int64)
            shifts: list[int] = []

            def add(rows: Any, weights: Any, kind: ChunkKind, total: Any = total, shifts: Any = shifts) -> None:
                x, record = self._record(rows, kind, uop.rows)
                if record.columns != uop.columns:
                    raise ProgramError(f"{self.name}: a chunk for {record.columns} columns, weights for {uop.columns}")
                if record.clears:
                    total[:] = 0
                np.left_shift(total, record.up, out=total)
                shifts[:] = record.shifts
                right = weights.transpose(1, 0, 2).reshape(BLOCK, -1)
                np.add(total, numbers.sums(x.reshape(-1, BLOCK), right), out=total)

            def added(n: int, rows: Sequence[Any], weights: Sequence[Any], add: Any = add) -> None:
                for x, w in zip(rows, weights, strict=True):
                    add(x, w, ChunkKind.ADD)

            def last(rows: Any, weights: Any, add: Any = add) -> None:
                add(rows, weights, ChunkKind.LAST)

            def leave(total: Any = total, shifts: Any = shifts) -> tuple[Any]:
                made = numbers.drained(total, np.array(shifts[: uop.columns])[:, None])
                return (np.ascontiguousarray(made.astype(np.int16).transpose(1, 0, 2)),)

            both, share = (self._rows, self._weights), uop.rows / LANE_ROWS
            if uop.depth > 1:
                yield Burst(uop.depth - 1, "chunk_us", share, gets=both, do=added, needs_whole_token=True)
            yield Step("chunk_us", share, gets=both, do=last, needs_whole_token=True)
            yield Step("cascade_us", cascade_share(uop.rows), puts=(self._results,), words=uop.columns, do=leave)

    def _attention(self, uop: EngineOp) -> Steps:
        heads = uop.columns
        queries: list[tuple[Any, ChunkRecord]] = []
        taken: list[Any] = []

        def keep(n: int, chunks: Sequence[Any]) -> None:
            for chunk in chunks:
                x, record = self._record(chunk, ChunkKind.QUERIES, uop.rows << uop.wide)
                queries.append((x.reshape(uop.rows * uop.lanes, -1), record))

        yield Burst(heads, gets=(self._rows,), do=keep)
        count = slices(uop.key_rows)
        # of wide heads, a pair multiplies as many rows as a tile does of others
        share_of_rows = (uop.rows << uop.wide) / LANE_ROWS
        share = slices_of_keys(uop.key_rows, key_lanes(uop)) / count * share_of_rows
        for rate, operands in (("maxima_us", 1), ("weights_us", 2)):
            for _ in range(count):
                words = operands * heads
                yield Step(rate, share, gets=(self._heads,), words=words, parts=words, do=taken.append)

        def leave() -> tuple[Any]:
            keys, values = np.concatenate(taken[count:], -2).swapaxes(0, 1)
            sums = np.stack([self._head(*queries[i], keys[i], values[i], uop) for i in range(heads)])
            return (sums.reshape(HALVES * heads, -1, sums.shape[-1]),)

        words = HALVES * heads
        yield Step("round_us", share_of_rows, puts=(self._results,), words=words, parts=words, do=leave)
        if uop.leaves:
            yield Step(gets=(self._told,))

    def _head(self, q: Any, record: ChunkRecord, keys: Any, values: Any, uop: EngineOp) -> npt.NDArray[np.int32]:
        """Sums of weighted values of a head, and of weights, (rows, columns + 1). keys, values: (lanes, keys of a lane,
        columns)."""
        of_keys, of_values = (x.reshape(uop.key_rows * key_lanes(uop), -1) for x in (keys, values))
        key = np.arange(len(of_keys))
        shows = key < record.keys
        if record.causal:
            shows = shows & (key <= record.first_row + np.arange(len(q))[:, None])
        shifts = np.array(record.first_shift), np.array(record.second_shift)
        weights = numbers.weights(numbers.sums(q, of_keys.T), shifts, shows)
        made = numbers.sums(weights, of_values)
        return np.concatenate([made, weights.sum(-1, keepdims=True)], -1).astype(np.int32)
