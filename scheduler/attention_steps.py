"""Attention in steps: which rows meet which keys in one operation of the memories that compute softmax.

A slot holds as many row blocks as these memories do, of query heads that share a key head. Its keys are those that a
mask leaves to at least one of its rows. If the memories can send all their scores on, the slot is one step. Otherwise
the keys come in parts, twice: first for the maxima and the sums of exp, then for the probabilities themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import NamedTuple

from ..isa.work import KeyPart, LengthField, Softmax
from .binder import Binder
from .graph import AttentionLayer
from .mapping import PeakRates, PipelineLimits, pipeline_of
from .tile import TILE, SequenceSpan


class RowBlock(NamedTuple):
    """128 rows of a query head. head: its number. block: number of the row block within its sequence."""

    head: int
    block: int


class KeyBlocks(NamedTuple):
    """Consecutive key blocks of a sequence, of 128 keys: the number of the first one, and how many."""

    first: int
    blocks: int

    @property
    def halves(self) -> tuple[KeyBlocks, KeyBlocks]:
        """The first key blocks, which the even unit of a pair takes, and the last ones, of the odd unit. Of an odd
        number the even unit gets one more."""
        even = -(-self.blocks // 2)
        return KeyBlocks(self.first, even), KeyBlocks(self.first + even, self.blocks - even)


@dataclass(frozen=True)
class KeySharers:
    """A slot: row blocks of a sequence that share a key head. sequence, kv_head: their numbers. rows: the row blocks
    for each of the two rows of the grid. steps: parts of the keys, with what softmax does with them, in order."""

    sequence: int
    kv_head: int
    rows: tuple[tuple[RowBlock, ...], ...]
    steps: tuple[tuple[KeyBlocks, KeyPart], ...]

    @property
    def sent(self) -> tuple[KeyBlocks, ...]:
        """The parts whose probabilities are multiplied by values."""
        return tuple(keys for keys, part in self.steps if part in (KeyPart.ALL, KeyPart.APPLY))

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of tile products that the sums of P V have, one after the other: for each part that is sent, the key
        blocks of the even and of the odd unit of a pair."""
        return tuple(half.blocks for keys in self.sent for half in keys.halves if half.blocks)

    @property
    def turned(self) -> KeySharers:
        """The same slot with the parts of `sent` in the opposite order. Steps that send nothing stay first."""
        kept = tuple(step for step in self.steps if step[1] in (KeyPart.FIRST, KeyPart.MORE))
        return replace(self, steps=kept + self.steps[: len(kept) - 1 if kept else None : -1])


def reach(att: AttentionLayer, rows: Sequence[RowBlock], keys: SequenceSpan) -> KeyBlocks:
    """The key blocks that the causal order or a window leaves to at least one of the rows; at least one block. keys:
    the place of the keys of the sequence."""
    first, last = min(r.block for r in rows) * TILE, (max(r.block for r in rows) + 1) * TILE - 1
    low, high = 0, keys.blocks * TILE - 1
    if att.window is not None:
        low, high = max(low, first - att.window + 1), min(high, last + att.window - 1)
    if att.causal:
        high = min(high, last)
    begin = min(low // TILE, keys.blocks - 1)
    return KeyBlocks(begin, max(high // TILE + 1 - begin, 1))


def parts_of(keys: KeyBlocks, most: int, *, alike: bool = False) -> list[KeyBlocks]:
    """Cut keys into as few parts as possible, of nearly equal sizes, the smaller ones first. All but the last one have
    an even number of blocks, so that both units of a pair have as much to do. most: the largest number of blocks of a
    part, even. alike: if parts of one size of at least 4 blocks are possible, cut into these, even if they are more."""
    same = next((size for size in range(most, 3, -2) if keys.blocks % size == 0), 0) if alike else 0
    if same:
        sizes = [same] * (keys.blocks // same)
    else:
        number = -(-keys.blocks // most)
        pairs, more = divmod(-(-keys.blocks // 2), number)
        sizes = [2 * pairs] * (number - more) + [2 * pairs + 2] * more
    at = accumulate(sizes, initial=keys.first)
    end = keys.first + keys.blocks
    return [KeyBlocks(first, min(size, end - first)) for first, size in zip(at, sizes, strict=False)]


def slots_of(s: Binder, att: AttentionLayer) -> list[KeySharers]:
    """Divide an attention into slots, in execution order.

    There are two ways: each slot of a key head has keys of its own, without those that a mask takes from all of its
    rows; or all slots have the same keys, which are then loaded once. The way that takes less time by
    `estimated_seconds` is taken. Slots whose sums have the same depths go one behind the other, because a product unit
    has room for few ops."""
    ways = [list(_slots(s, att, alike)) for alike in (True, False)]
    slots = ways[0] if ways[0] == ways[1] else min(ways, key=lambda way: estimated_seconds(s, att, way))
    out: list[KeySharers] = []
    for slot in sorted(slots, key=lambda slot: slot.depths):
        is_turned = out and out[-1].depths[-1] == slot.turned.depths[0] != slot.depths[0]
        out.append(slot.turned if is_turned else slot)
    return out


def at_once(s: Binder) -> int:
    """The number of key blocks (of 128 keys) whose scores a slot can send on together. Raises like `pipeline_of`."""
    limits = PipelineLimits.of(s.overlay, pipeline_of(s.overlay))
    return min(limits.sent, 2 * limits.values)


def _slots(s: Binder, att: AttentionLayer, alike: bool) -> Iterator[KeySharers]:
    """The slots, those of a key head together, and among them those with the same keys. alike: slots of a key head have
    the same keys if these fit on chip."""
    limits, once = PipelineLimits.of(s.overlay, pipeline_of(s.overlay)), at_once(s)
    for sequence, (rows, keys) in enumerate(zip(s.spans_of(att.q), s.spans_of(att.k), strict=True)):
        for kv_head in range(att.heads // att.groups):
            heads = range(kv_head * att.groups, (kv_head + 1) * att.groups)
            found = list(_rows(att, heads, rows.blocks, limits.rows))
            together = reach(att, [row for taken in found for of_unit in taken for row in of_unit], keys)
            for taken in found:
                needed = reach(att, [row for of_unit in taken for row in of_unit], keys)
                if alike and together.blocks <= once:
                    needed = together
                yield KeySharers(sequence, kv_head, taken, _steps(needed, once, limits.stored))


def _steps(keys: KeyBlocks, once: int, stored: int) -> tuple[tuple[KeyBlocks, KeyPart], ...]:
    """The parts of a slot's keys. once: key blocks whose scores are sent on. stored: that the memories hold."""
    if keys.blocks <= once:
        return ((keys, KeyPart.ALL),)
    first, second = parts_of(keys, stored), parts_of(keys, once, alike=True)
    return (
        (first[0], KeyPart.FIRST),
        *((more, KeyPart.MORE) for more in first[1:]),
        *((more, KeyPart.APPLY) for more in second),
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


def estimated_seconds(s: Binder, att: AttentionLayer, slots: Sequence[KeySharers]) -> float:
    """Estimate the time of slots in seconds: the time of their loads and stores off chip, or the time of their products
    and softmax, whichever is larger. Products of scores come first, two of them while the softmax before them runs; P V
    runs beside the softmax of the next step. Raises like `pipeline_of`."""
    pipeline, roofline, width = pipeline_of(s.overlay), PeakRates.of(s.overlay), s.columns[att.q].pitch
    product, result = pipeline.scores.products[0][0], pipeline.scores.results[0][0]
    tiles, received = -(-width // TILE), _seconds(s, product, "residual", TILE**2)
    scored = roofline.first if width < TILE else _seconds(s, product, "matmul", TILE**3)
    valued = roofline.second if width < TILE else tiles * _seconds(s, product, "matmul", TILE**3)
    exp = _seconds(s, result, "softmax", TILE**2)
    block = 4 * TILE * width  # bytes of a row block of a head
    moved, computed, before = 0.0, 0.0, None
    for slot in slots:
        most = max(map(len, slot.rows))
        moved += sum(map(len, slot.rows)) * block * (roofline.read + roofline.write)
        for keys, part in slot.steps:
            sends = part in (KeyPart.ALL, KeyPart.APPLY)
            if (slot.sequence, slot.kv_head, keys) != before:
                moved += keys.blocks * block * roofline.read * (2 if sends else 1)
            before = slot.sequence, slot.kv_head, keys
            scores = most * keys.halves[0].blocks
            computed += max((scores * tiles - 2) * scored, scores * tiles * received)
            computed += max(scores * exp, most * keys.blocks * valued * sends)
    return max(moved, computed)


def _seconds(s: Binder, unit: str, op: str, elements: int) -> float:
    """Seconds that a unit takes for so many elements of an operation."""
    able = s.overlay.capability_of(unit, op)
    return 0.0 if able.rate is None else elements / able.elements * s.overlay.seconds[able.rate]


def runs(rows: Sequence[RowBlock]) -> Iterator[tuple[RowBlock, int]]:
    """The runs of consecutive row blocks of one head among `rows`: the first row block of each run, and how many it
    has."""
    for _, of_head in groupby(enumerate(rows), lambda pair: (pair[1].head, pair[1].block - pair[0])):
        found = [row for _, row in of_head]
        yield found[0], len(found)


def softmax_of(
    s: Binder, att: AttentionLayer, slot: KeySharers, keys: KeyBlocks, part: KeyPart, i: int, j: int
) -> Softmax:
    """The softmax of the memory at (i, j) of the grid of scores, which receives half j (0 or 1) of the part `keys`.
    part: the role of this part in the softmax.

    It masks the padding of the sequence and the keys that the attention masks. Both memories of a pair count keys from
    the first one of the part, and both apply a mask by rows if it concerns any key of the part."""
    own, span = keys.halves[j], s.spans_of(att.k)[slot.sequence]
    base, held = own.first * TILE, own.blocks * TILE
    columns: int | LengthField | None = max(0, min(held, span.rows - base))
    if att.masked:
        columns = LengthField(slot.sequence, base, held, f"len{att.counted or ''}")
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
    if (
        att.mask is not None and not causal
    ):  # rows of which the input hides all keys become 0, as under any mask by rows
        causal, ahead = True, last_key
    return Softmax(
        columns,
        alone=keys.blocks == 1,
        causal=causal,
        offset=begin + ahead - first_key if causal else 0,
        low=low,
        first=LengthField(slot.sequence, base, held, f"start{att.counted or ''}") if att.left else 0,
        cap=att.softcap,
        part=part,
    )
