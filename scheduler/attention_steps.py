"""Attention in steps: which rows meet which keys in one operation of the memories that compute softmax.

A slot holds as many row blocks as these memories do, of query heads that share a key head. Its keys are those that a
mask leaves to at least one of its rows. If the memories can send all their scores on, the slot is one step. Otherwise
the keys come in chunks, twice: first for the maxima and the sums of exp, then for the probabilities themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ..isa.work import LengthField, Part, Softmax
from .binder import Binder
from .graph import AttentionLayer
from .mapping import PipelineLimits, pipeline_of
from .tile import TILE, Span


class RowBlock(NamedTuple):
    """128 rows of a query head. block: number of the row block within its sequence."""

    head: int
    block: int


class Keys(NamedTuple):
    """Consecutive key blocks of a sequence: the first one, and how many."""

    first: int
    blocks: int

    @property
    def halves(self) -> tuple[Keys, Keys]:
        """Those of the even and of the odd unit of a pair; the even one gets the odd block."""
        even = -(-self.blocks // 2)
        return Keys(self.first, even), Keys(self.first + even, self.blocks - even)


@dataclass(frozen=True)
class Slot:
    """Row blocks of a sequence that share a key head. rows: for each row of the grid. steps: chunks of keys, with what
    softmax does with them, in order."""

    sequence: int
    kv_head: int
    rows: tuple[tuple[RowBlock, ...], ...]
    steps: tuple[tuple[Keys, Part], ...]

    @property
    def sent(self) -> tuple[Keys, ...]:
        """The chunks whose probabilities are multiplied by values."""
        return tuple(keys for keys, part in self.steps if part in (Part.ALL, Part.APPLY))


def reach(att: AttentionLayer, rows: Sequence[RowBlock], keys: Span) -> Keys:
    """The key blocks that a mask leaves to at least one of the rows, at least one. keys: of the sequence."""
    first, last = min(r.block for r in rows) * TILE, (max(r.block for r in rows) + 1) * TILE - 1
    low, high = 0, keys.blocks * TILE - 1
    if att.window is not None:
        low, high = max(low, first - att.window + 1), min(high, last + att.window - 1)
    if att.causal:
        high = min(high, last)
    begin = min(low // TILE, keys.blocks - 1)
    return Keys(begin, max(high // TILE + 1 - begin, 1))


def chunks(keys: Keys, most: int) -> list[Keys]:
    """Cut keys into as few chunks of at most `most` blocks, which is even, as possible, of nearly equal sizes. All but
    the last one are even, so that both units of a pair have as much to do."""
    pairs, number = -(-keys.blocks // 2), -(-keys.blocks // most)
    out, at = [], keys.first
    for i in range(number):
        count = min(2 * (pairs * (i + 1) // number - pairs * i // number), keys.first + keys.blocks - at)
        out.append(Keys(at, count))
        at += count
    return out


def slots_of(s: Binder, att: AttentionLayer) -> Iterator[Slot]:
    """Divide an attention into slots, in execution order: those of a key head together, and among them those with the
    same keys."""
    limits = PipelineLimits.of(s.overlay, pipeline_of(s.overlay))
    once = min(limits.sent, 2 * limits.values)
    for sequence, (rows, keys) in enumerate(zip(s.spans_of(att.q), s.spans_of(att.k), strict=True)):
        for kv_head in range(att.heads // att.groups):
            heads = range(kv_head * att.groups, (kv_head + 1) * att.groups)
            for taken in _rows(att, heads, rows.blocks, limits.rows):
                needed = reach(att, [row for of_unit in taken for row in of_unit], keys)
                yield Slot(sequence, kv_head, taken, _steps(needed, once, limits.stored))


def _steps(keys: Keys, once: int, stored: int) -> tuple[tuple[Keys, Part], ...]:
    """The chunks of a slot's keys. once: key blocks whose scores are sent on. stored: that the memories hold."""
    if keys.blocks <= once:
        return ((keys, Part.ALL),)
    first, second = chunks(keys, stored), chunks(keys, once)
    return (
        (first[0], Part.FIRST),
        *((chunk, Part.MORE) for chunk in first[1:]),
        *((chunk, Part.APPLY) for chunk in second),
    )


def _rows(
    att: AttentionLayer, heads: Sequence[int], blocks: int, most: int
) -> Iterator[tuple[tuple[RowBlock, ...], ...]]:
    """The row blocks of the slots of a key head, for both rows of the grid. most: row blocks that a memory holds.

    A mask that depends on the row counts rows from the first of a memory, which then holds consecutive rows of one
    head; heads alternate, so that a slot has rows with the same keys.
    """
    if att.causal or att.window is not None:
        pieces = [
            tuple(RowBlock(head, block) for block in range(at, min(at + most, blocks)))
            for at in range(0, blocks, most)
            for head in heads
        ]
        yield from ((*pieces[i : i + 2], ())[:2] for i in range(0, len(pieces), 2))
        return
    rows = [RowBlock(head, block) for head in heads for block in range(blocks)]
    for i in range(0, len(rows), 2 * most):
        taken = rows[i : i + 2 * most]
        half = -(-len(taken) // 2)
        yield tuple(taken[:half]), tuple(taken[half:])


def runs(rows: Sequence[RowBlock]) -> Iterator[tuple[RowBlock, int]]:
    """Consecutive row blocks of one head: the first one, and how many."""
    for _, of_head in groupby(enumerate(rows), lambda pair: (pair[1].head, pair[1].block - pair[0])):
        found = [row for _, row in of_head]
        yield found[0], len(found)


def softmax_of(s: Binder, att: AttentionLayer, slot: Slot, keys: Keys, part: Part, i: int, j: int) -> Softmax:
    """The softmax of the memory at (i, j) of the grid of scores, which receives half j of a chunk of keys.

    It masks the padding of the sequence and what the attention masks. Both memories of a pair count keys from the first
    one of the chunk, and both apply a mask by rows if it concerns any key of the chunk.
    """
    own, span = keys.halves[j], s.spans_of(att.k)[slot.sequence]
    base, held = own.first * TILE, own.blocks * TILE
    columns: int | LengthField | None = max(0, min(held, span.rows - base))
    if att.masked:
        columns = LengthField(slot.sequence, base, held)
    elif columns == held:
        columns = None
    rows = slot.rows[i]
    begin, end = rows[0].block * TILE, (rows[-1].block + 1) * TILE - 1
    first_key, last_key = keys.first * TILE, (keys.first + keys.blocks) * TILE - 1
    low, causal, ahead = None, False, 0
    if att.window is not None:
        if first_key < end - att.window + 1:
            low = begin - first_key - att.window + 1
        ahead = 0 if att.causal else att.window - 1
    if att.causal or att.window is not None:
        causal = last_key > begin + ahead
    return Softmax(
        columns,
        alone=keys.blocks == 1,
        causal=causal,
        offset=begin + ahead - first_key if causal else 0,
        low=low,
        first=LengthField(slot.sequence, base, held, "start") if att.left else 0,
        cap=att.softcap,
        part=part,
    )
