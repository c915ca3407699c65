"""The machine of xnn8 computes what its numbers define, in every bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import ProgramError
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.fields import Record
from rsn.isa.overlays.xnn8 import XNN8, numbers
from rsn.isa.overlays.xnn8.checks import legal, rules
from rsn.isa.overlays.xnn8.emission import Destination, HeadsRound, PanelNorm
from rsn.isa.overlays.xnn8.formats import (
    PAIRS,
    CacheRows,
    ChunkSource,
    EngineOp,
    LaneMemory,
    PanelHeads,
    PanelRows,
    PanelSend,
    PanelWeights,
    RowOp,
)
from rsn.isa.overlays.xnn8.lanes import HEADS, SEND
from rsn.isa.overlays.xnn8.numbers import T_BITS, X_BITS, BlockNumbers, Integers, NormConstants, RowFactor
from rsn.isa.overlays.xnn8.stored import columns_of, short_row_words, short_rows_of_words
from rsn.isa.packet import Packet
from rsn.isa.program import Program
from rsn.isa.verify import check
from rsn.isa.versal.off_chip import ChunkTransfer
from rsn.tests.isa.xnn8_programs import HandMade


def vector(rng: np.random.Generator, blocks: int, low: float, high: float) -> BlockNumbers:
    return numbers.blocks_of(rng.uniform(low, high, 64 * blocks), X_BITS)


@pytest.mark.parametrize(
    ("engines", "lanes", "chunks", "columns", "of_ddr", "short"),
    [(1, 2, 2, 3, 0, False), (3, 8, 4, 10, 3, False), (2, 2, 3, 9, 3, True)],
)
def test_linear_layer(engines: int, lanes: int, chunks: int, columns: int, of_ddr: int, short: bool) -> None:
    """Rows are loaded, normalised, multiplied by weights of 8 bits or 4; results are stored."""
    rng = np.random.default_rng(lanes)
    hand = HandMade(engines, 1, lanes)
    x = numbers.blocks_of(rng.normal(size=(hand.rows, 64 * chunks)), X_BITS)
    gain, scale = vector(rng, chunks, 0.5, 2), vector(rng, columns, 1e-3, 2e-3)
    bias = vector(rng, columns, -1, 1)
    stored_weight = weight = rng.integers(-127, 128, (64 * chunks, 64 * columns))
    multipliers = rng.integers(0, 256, (2 * chunks, 64 * columns)).astype(np.uint8) if short else None
    if multipliers is not None:
        stored_weight = rng.integers(-8, 8, weight.shape)
        weight = numbers.unpacked(stored_weight.astype(np.int8), multipliers)
    largest = 127 * np.abs(weight).sum(0).reshape(columns, 64).max(1)
    shifts = np.array([[numbers.drain_shift(int(most))] for most in largest])
    norm = NormConstants.of(64 * chunks, 1e-5)
    hand.load(x, gain)
    hand.emit.walk(0, chunks, PanelNorm(norm))
    vectors = [[*pair, int(shift)] for *pair, shift in zip(*map(columns_of, (scale, bias)), shifts[:, 0], strict=True)]
    for i, stored in enumerate(hand.weights(stored_weight, shifts, of_ddr, multipliers)):
        at = slice(PAIRS * i, PAIRS * i + len(stored.shifts))
        constants = hand.constants(vectors[at])
        to = Destination(4 * PAIRS * i)  # a block of 64 rows has four cells
        hand.emit.product(ChunkSource.X8, 0, chunks, stored, constants.addr, to, each=not i)
    hand.store(columns)
    assert not check(hand.program, roles=False)
    run, made = hand.run()
    rows, factor = numbers.sent(x, gain, numbers.statistics(x, norm, rms=False))
    drained = numbers.drained(numbers.sums(rows.reshape(len(rows), -1), weight), shifts)
    wanted = numbers.stored(*numbers.added(numbers.scaled(drained, shifts, scale, factor), numbers.kept(bias)), X_BITS)
    for ours, theirs in zip(made, wanted, strict=True):
        assert np.array_equal(ours, theirs)
    assert run.latency_s > 40e-6


@pytest.mark.parametrize(
    ("lanes", "each", "rows", "count", "heads", "head_dim"),
    [(2, 1, 64, 64, 2, 64), (8, 4, 250, 230, 3, 24), (8, 8, 512, 512, 8, 64)],
)
def test_attention(lanes: int, each: int, rows: int, count: int, heads: int, head_dim: int) -> None:
    """Sequences of `each` lanes: queries, keys and values, a round of attention, and a product of its heads."""
    rng = np.random.default_rng(each)
    hand = HandMade(1, lanes // each, each)
    pitch = 32 if head_dim <= 32 else 64
    blocks = -(-heads * pitch // 64)
    x, gain = numbers.blocks_of(rng.normal(size=(hand.rows, 128)), X_BITS), vector(rng, 2, 0.5, 2)
    hand.load(x, gain)
    hand.emit.walk(0, 2, None)
    sent, factor = numbers.sent(x, gain)
    kept = []

    def product(
        source: ChunkSource, slot: int, rows: Integers, factor: RowFactor, to: Destination, bits: int
    ) -> BlockNumbers:
        chunks = rows.shape[1]
        weight = rng.integers(-127, 128, (64 * chunks, 64 * blocks))
        shifts = np.full((blocks, 1), numbers.drain_shift(127 * 127 * 64 * chunks))
        scale, bias = vector(rng, blocks, 1e-4, 2e-4), vector(rng, blocks, -0.1, 0.1)
        vectors = [[*pair, int(shifts[0, 0])] for pair in zip(columns_of(scale), columns_of(bias), strict=True)]
        (stored,) = hand.weights(weight, shifts, 1)
        hand.emit.product(source, slot, chunks, stored, hand.constants(vectors).addr, to, each=len(kept) == 0)
        drained = numbers.drained(numbers.sums(rows.reshape(len(rows), -1), weight), shifts)
        return numbers.stored(*numbers.added(numbers.scaled(drained, shifts, scale, factor), numbers.kept(bias)), bits)

    for i, reader in enumerate((HEADS, HEADS, SEND)):
        kept.append(product(ChunkSource.X8, 0, sent, factor, Destination(32 * i, True, (reader,)), T_BITS))
    keys, values, queries = kept
    results = []
    hand.emit.attention(HeadsRound(64, 0, 32, 96, heads, head_dim, rows, count), last=True)
    for first in range(0, lanes, each):
        parts = (BlockNumbers(*(y[None, 64 * first : 64 * first + rows] for y in x)) for x in (queries, keys, values))
        shows = np.arange(rows)[None] < count
        (q, e_q), (k, e_k), (v, e_v) = (numbers.of_heads(y, pitch, shows if i else None) for i, y in enumerate(parts))
        shifts = numbers.score_shifts(e_q + e_k, head_dim)
        weights = numbers.weights(numbers.sums(q, k.swapaxes(2, 3)), shifts, shows[:, None, None])
        total, e = numbers.of_weights(numbers.sums(weights, v), weights.sum(-1, keepdims=True), e_v, rows)
        total, e = (y[0, :heads].swapaxes(0, 1) for y in (total, np.broadcast_to(e, (*total.shape[:-1], 1))))
        results.append(numbers.stored(*numbers.joined(total, e), T_BITS))
    made = product(ChunkSource.T, 96, *numbers.of_rows(hand_rows(results, 64 * each)), Destination(0), X_BITS)
    hand.store(blocks)
    assert not check(hand.program, roles=False)
    _, ours = hand.run()
    some = np.arange(hand.rows) % (64 * each) < rows
    for theirs, mine in zip(made, ours, strict=True):
        assert np.array_equal(mine[some], theirs[some])


def findings(sequences: Mapping[str, Sequence[Record]]) -> set[str]:
    """Codes of what is found in instructions of units."""
    packets = []
    for name, mops in sequences.items():
        unit = XNN8.by_unit[name]
        mask = 1 << unit.index if len(XNN8.by_kind[unit.kind]) > 1 else 0
        packets += [Packet.of(XNN8.format_of(unit.kind).opcode, (mop,), mask=mask) for mop in mops]
    return {f.code for f in rules(ExpandedProgram(Program(XNN8, tuple(packets))), True)}


def changed(sequences: Mapping[str, Sequence[Record]], unit: str, at: int, **more: int) -> dict[str, Sequence[Record]]:
    """The same with other fields in an instruction. more: what is added to each."""
    mops = [*sequences[unit]]
    mops[at] = dataclasses.replace(mops[at], **{name: getattr(mops[at], name) + n for name, n in more.items()})
    return {**sequences, unit: mops}


def test_tokens_order_memories() -> None:
    """Each operation that waits for one block or operation less, and leaves it to the end, is found."""
    hand = HandMade(1, 1, 1)
    x = numbers.blocks_of(np.ones((64, 128)), X_BITS)
    hand.load(x, vector(np.random.default_rng(0), 2, 1, 2))
    stored = hand.weights(np.ones((128, 128), np.int64), np.zeros((2, 1), np.int64), 0)[0]
    constants = hand.constants([[x, x, 0] for x in columns_of(vector(np.random.default_rng(1), 2, 1, 2))]).addr
    hand.emit.walk(0, 2, None)
    for i, reader in enumerate((HEADS, HEADS, SEND)):
        hand.emit.product(ChunkSource.X8, 0, 2, stored, constants, Destination(8 * i, True, (reader,)), each=False)
    hand.emit.attention(HeadsRound(16, 0, 8, 16, 2, 64, 64, 64), last=True)
    hand.emit.walk(0, 2, None)
    hand.emit.product(ChunkSource.T, 16, 2, stored, constants, Destination(0), each=False)
    hand.emit.product(ChunkSource.X8, 0, 2, stored, constants, Destination(0, True), each=False)
    hand.emit.finish()
    sequences = {unit: mops for unit, mops in hand.emit.sequences.items() if unit[-1] == "0"}
    assert not findings(sequences)
    seen = []
    for unit, mops in sequences.items():
        for at, mop in enumerate(mops[:-1]):
            for name in ("wait", "wait_heads"):
                if getattr(mop, name, 0):
                    other = changed(changed(sequences, unit, at, **{name: -1}), unit, len(mops) - 1, **{name: 1})
                    seen.append((unit, findings(other)))
    both = {"Y01", "Y02"}  # tokens that come later are then taken for those that it waits for
    assert seen == [
        ("Rows0", {"Y02"}),
        ("Rows0", {"Y02"}),
        ("Send0", both),
        ("Send0", both),
        ("Send0", {"Y02"}),
        ("Send0", {"Y02"}),
        ("Heads0", {"Y01"}),
    ]
    at = next(i for i, mop in enumerate(sequences["Engine0"]) if getattr(mop, "leaves", 0))
    assert findings(changed(sequences, "Engine0", at, leaves=-1)) == {"Y09"}


def test_rows_in_x8_have_one_factor() -> None:
    """A walk to other blocks of X8 waits for what sends rows of the first ones, because of their factors."""
    walk, send = PanelRows(op=RowOp.SEND, blocks=1), PanelSend(chunks=1, wait=1)
    sequences: dict[str, list[Record]] = {"Rows0": [walk, dataclasses.replace(walk, slot=4)], "Send0": [send]}
    assert findings(sequences) == {"Y02"}
    assert not findings({**sequences, "Rows0": [walk, dataclasses.replace(walk, slot=4, wait=1)]})


def test_rows_of_t_lie_off_chip_as_t_has_them() -> None:
    rng = np.random.default_rng(0)
    x = BlockNumbers(rng.integers(-127, 128, (32, 1, 64)), rng.integers(-128, 113, (32, 1, 1)))
    made = short_row_words(x)
    words = made.view(np.int8).reshape(2, 33, 32)
    np.testing.assert_array_equal(words[1, 2 * 8 + 3], x.integers[24:28, 0, 24:32].reshape(-1))
    np.testing.assert_array_equal(words[1, 32].view(np.int16), x.exponents[16:, 0, 0])
    for found, given in zip(short_rows_of_words(made), x, strict=True):
        np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize(
    ("unit", "uop", "reason"),
    [
        ("W", PanelWeights(), "sends no weights"),
        ("W", PanelWeights(chunks=1, columns=2, ddr=3), "ddr=3 of 2 columns"),
        ("Rows0", PanelRows(blocks=17), "17 blocks of 64 rows from cell 0 on: X has 64 of 16 rows"),
        ("Rows0", PanelRows(blocks=2, memory=LaneMemory.ANGLES), "2 blocks of 64 rows from cell 0 on: Angles has 4"),
        ("Rows0", PanelRows(op=RowOp.TAKE, memory=LaneMemory.T, blocks=8, slot=240), "T has 256"),
        ("Rows0", PanelRows(op=RowOp.TAKE, memory=LaneMemory.T, blocks=1, residual=1), "only results that go to X"),
        ("Rows0", PanelRows(op=RowOp.TAKE, memory=LaneMemory.ANGLES, blocks=1), "Angles is only loaded"),
        ("Rows0", PanelRows(op=RowOp.TAKE, blocks=3, gated=1), "3 columns of pairs, of which 2 are taken together"),
        ("Rows0", PanelRows(op=RowOp.TAKE, blocks=2, rotated=1, wide=1), "2 blocks of 64 rows from cell 0 on: Angles"),
        ("Rows0", PanelRows(op=RowOp.TAKE, memory=LaneMemory.T, blocks=1, readers=0), "writes T for no reader"),
        ("Rows0", PanelRows(op=RowOp.LOAD, memory=LaneMemory.T, blocks=1, rows=48), "key_rows=64 of parts of 48 rows"),
        ("Rows0", PanelRows(op=RowOp.SUM, blocks=1, source=61), "1 blocks of 64 rows from cell 61 on: X has 64"),
        ("Rows0", PanelRows(op=RowOp.SUM, blocks=1, residual=2), "blocks of X are added as they are, to X"),
        ("Rows0", PanelRows(op=5, blocks=1), "op=5 is none"),
        ("Rows0", PanelRows(op=RowOp.STORE, blocks=1, rotated=1), "only results have a gate or are rotated"),
        ("Rows0", PanelRows(op=RowOp.TAKE, blocks=1, function=7), "function=7: Post has 1 to 4"),
        ("Rows0", PanelRows(op=RowOp.SEND, blocks=1, norm=1, columns=65), "a norm over 65 columns"),
        ("Rows0", PanelRows(op=RowOp.SEND, blocks=9, low_bits=8), "18 blocks of 64 rows from cell 0 on: X8 has 64"),
        ("Rows0", PanelRows(op=RowOp.TAKE, blocks=1, low_bits=8), "only what X sends has bits beyond 8"),
        ("Send0", PanelSend(chunks=1, source=ChunkSource.T, low_bits=9), "low_bits=9: rows have up to 8 beyond 8"),
        ("Send0", PanelSend(chunks=9, low_bits=1), "18 blocks of 64 rows from cell 0 on: X8 has 64"),
        ("Rows0", PanelRows(op=RowOp.TAKE, blocks=8, norm=1, columns=65), "a norm over 65 columns"),
        ("Rows0", PanelRows(op=RowOp.TAKE, blocks=1, attention=1, keys=1), "results of attention go to T"),
        ("Send0", PanelSend(chunks=1, source=3), "source=3 is none"),
        ("Send0", PanelSend(chunks=1, source=ChunkSource.T, each=1), "all of them must be there"),
        ("Send0", PanelSend(chunks=1, source=ChunkSource.T, others=2), "rows of a product have no heads"),
        ("Send0", PanelSend(chunks=1, source=ChunkSource.QUERIES, keys=1, rows=16, head_dim=65), "head_dim=65"),
        ("Send0", PanelSend(chunks=1, source=ChunkSource.QUERIES, keys=1, low_bits=8), "queries have 8 bits"),
        (
            "Send0",
            PanelSend(chunks=1, source=ChunkSource.QUERIES, keys=1, rows=48, wide=1),
            "up to 32 if heads have 128",
        ),
        ("Heads0", PanelHeads(heads=2, keys=513), "keys=513"),
        ("Heads0", PanelHeads(heads=2, keys=1, groups=0), "groups=0"),
        ("Heads0", PanelHeads(heads=2, keys=1, key_rows=80), "key_rows=80: a lane has up to 192"),
        ("Heads0", PanelHeads(heads=2, keys=1, keys_slot=252), "2 blocks of 64 rows from cell 252 on: T has 256"),
        ("Heads0", PanelHeads(heads=2, keys=1, first=4, lanes=5), "lanes 4 to 8"),
        ("Engine0", EngineOp(columns=9, depth=1), "9 columns of pairs"),
        ("Engine0", EngineOp(depth=1, rows=24), "rows=24: a lane has up to 64, a multiple of 16"),
        ("Engine0", EngineOp(), "makes no results"),
        ("LPDDR", ChunkTransfer(0, 80, False, ("Rows0",), 8320), "constants come from LPDDR"),
        ("DDR", ChunkTransfer(0, 80, False, ("Rows0",), 80), "blocks of rows from DDR"),
        ("DDR", CacheRows(0, 2304, False, ("Rows0",), 144, None, 32), "rows of lanes are 32, rows that move 16"),
        ("DDR", CacheRows(0, 2304, True, ("Rows0",), 144, 3, 16), "rows of lanes are 16, rows that move 1"),
    ],
)
def test_what_units_cannot_execute(unit: str, uop: Any, reason: str) -> None:
    assert any(reason in text for text in legal(XNN8.by_unit[unit], uop))


@pytest.mark.parametrize("short", [(1, 0), (1, 1), (0, 0)])
def test_weights_of_other_bits_are_refused(short: tuple[int, int]) -> None:
    """Of two products, which W takes with other bits than the memories send. short: of each, whether W has 4."""
    hand = HandMade(1, 1, 1)
    hand.load(numbers.blocks_of(np.ones((64, 64)), X_BITS), vector(np.random.default_rng(0), 1, 1, 2))
    hand.emit.walk(0, 1, None)
    one = columns_of(vector(np.random.default_rng(1), 1, 1, 2))[0]
    for i, multipliers in enumerate((None, np.ones((2, 128), np.uint8))):
        stored = hand.weights(np.ones((64, 128), np.int64), np.zeros((2, 1), np.int64), 1, multipliers)[0]
        constants = hand.constants([[one, one, 0]] * 2)
        hand.emit.product(ChunkSource.X8, 0, 1, stored, constants.addr, Destination(8 * i), each=not i)
    hand.store(1)
    hand.emit.sequences["W"] = [
        dataclasses.replace(mop, int4=bit) for mop, bit in zip(hand.emit.sequences["W"], short, strict=True)
    ]
    found = [(f.code, f.message) for f in check(hand.program, roles=False)]
    assert found == [
        ("Y10", f"W uOP {i} takes weights of {bits[0]} bits, {memory} uOP {1 + step * i} sends those of {bits[1]}")
        for memory, step in (("LPDDR", 2), ("DDR", 1))
        for i, bits in enumerate([(4, 8), (8, 4)])
        if short[i] != i
    ]
    with pytest.raises(ProgramError, match="W: weights of other bits than its instruction has"):
        hand.run()


def test_rows_of_other_bits_are_refused() -> None:
    """Rows of a product that X8 has with 16 bits, and Send sends with 8."""
    hand = HandMade(1, 1, 1)
    hand.load(numbers.blocks_of(np.ones((64, 64)), X_BITS), vector(np.random.default_rng(0), 1, 1, 2))
    hand.emit.walk(0, 1, None, low_bits=8)
    one = columns_of(vector(np.random.default_rng(1), 1, 1, 2))[0]
    stored = hand.weights(np.ones((64, 64), np.int64), np.zeros((1, 1), np.int64), 0)[0]
    hand.emit.product(ChunkSource.X8, 0, 1, stored, hand.constants([[one, one, 0]]).addr, Destination(0), each=True)
    hand.store(1)
    text = "Send0 uOP 0 sends rows of 8 bits, of which Rows0 has written 16 to X8"
    assert [(f.code, f.message) for f in check(hand.program, roles=False)] == [("Y11", text)]
    with pytest.raises(ProgramError, match="Send0: rows of other bits than its instruction has"):
        hand.run()


def test_a_record_that_says_something_else_is_refused() -> None:
    """An engine whose products are longer than those of the rows that it gets."""
    hand = HandMade(1, 1, 1)
    hand.load(numbers.blocks_of(np.ones((64, 128)), X_BITS), vector(np.random.default_rng(0), 2, 1, 2))
    hand.emit.walk(0, 2, None)
    stored = hand.weights(np.ones((128, 64), np.int64), np.zeros((1, 1), np.int64), 0)[0]
    one = columns_of(vector(np.random.default_rng(1), 1, 1, 2))[0]
    for each in (True, False):
        hand.emit.product(ChunkSource.X8, 0, 2, stored, hand.constants([[one, one, 0]]).addr, Destination(0), each=each)
    sequences = changed(hand.emit.sequences, "Engine0", 0, depth=1)
    hand.emit.sequences["Engine0"] = [*changed(sequences, "Engine0", 1, depth=-1)["Engine0"]]
    with pytest.raises(ProgramError, match="chunk of kind LAST where ADD was due"):
        hand.run()


def hand_rows(parts: Sequence[BlockNumbers], rows: int) -> BlockNumbers:
    """Rows of sequences, each padded to a number of rows."""
    return BlockNumbers(
        *(
            np.concatenate([np.pad(x, ((0, rows - len(x)), (0, 0), (0, 0))) for x in kind])
            for kind in zip(*parts, strict=True)
        )
    )
