"""How attention is divided into slots and steps, and what each softmax masks, checked pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.isa.overlays import XNN
from rsn.isa.work import KeyPart, LengthField
from rsn.scheduler.attention_steps import KeyBlocks, KeySharers, RowBlock, parts_of, runs, slots_of, softmax_of
from rsn.scheduler.binder import Binder
from rsn.scheduler.graph import AttentionLayer, LayerGraph, Output
from rsn.scheduler.schedule import PAPER
from rsn.scheduler.tile import TILE, tile
from rsn.tests.effort import examples


def attention(
    batch: int, rows: int, heads: int, kv_heads: int, *, keys: int = 0, lengths: tuple[int, ...] = (), **fields: object
) -> tuple[Binder, AttentionLayer]:
    """An attention with heads of 64 columns over inputs, and a binder for it."""
    layer = AttentionLayer("a", "q", "k", "v", "y", heads, 64, kv_heads=kv_heads, **fields)  # type: ignore[arg-type]
    inputs = {"q": 64 * heads, "k": 64 * kv_heads, "v": 64 * kv_heads}
    seqs = {"k": keys, "v": keys} if keys else {}
    network = LayerGraph(batch, rows, inputs, (Output("y"),), (layer,), lengths, seqs)
    return Binder(tile(network, XNN, PAPER)), layer


@given(st.integers(0, 9), st.integers(9, 80), st.sampled_from([4, 6, 8]), st.booleans())
def test_parts_are_few_even_and_cover_all_keys(first: int, blocks: int, most: int, alike: bool) -> None:
    found = parts_of(KeyBlocks(first, blocks), most, alike=alike)
    assert [b for piece in found for b in range(piece.first, piece.first + piece.blocks)] == [
        *range(first, first + blocks)
    ]
    sizes = [piece.blocks for piece in found]
    assert all(2 <= size <= most for size in sizes)
    assert all(size % 2 == 0 for size in sizes[:-1])
    assert sizes[:-1] == sorted(sizes[:-1])
    assert max(sizes) - min(sizes) <= 2
    if alike and any(blocks % size == 0 for size in range(4, most + 1, 2)):
        assert len(set(sizes)) == 1
    else:
        assert len(found) == -(-blocks // most)


def valid(slot: KeySharers, keys: KeyBlocks, att: AttentionLayer, s: Binder, start: int, i: int) -> np.ndarray:
    """Which keys of a part count for the rows of memories (i, 0) and (i, 1), by their registers; (rows, keys)."""
    parts, before = [], 0
    for j, half in enumerate(keys.halves):
        softmax = softmax_of(s, att, slot, keys, KeyPart.ALL, i, j)
        own = np.arange(half.blocks * TILE)
        first, last = softmax.first, softmax.columns
        if isinstance(first, LengthField):
            first = min(max(start - first.base, 0), first.cap)
        assert not isinstance(last, LengthField)
        r, c = np.arange(len(slot.rows[i]) * TILE)[:, None], own[None] + before
        found = (own >= first) & (own < (len(own) if last is None else last))
        found = found & (c <= r + softmax.offset if softmax.causal else c >= 0)
        found = found & (c >= r + softmax.low if softmax.low is not None else c >= 0)
        parts.append(found)
        before = len(own)
    return np.concatenate(parts, 1)


@examples(120, 12, deadline=None)
@given(
    rows=st.integers(1, 2000),
    group=st.integers(1, 5),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 700),
    left=st.booleans(),
    data=st.data(),
)
def test_every_pair_of_a_row_and_a_key_is_masked_as_the_layer_says(
    rows: int, group: int, causal: bool, window: int | None, left: bool, data: st.DataObject
) -> None:
    """And each row meets each of its keys once, in a step that sends its probabilities, once in one that counts it."""
    s, att = attention(1, rows, group, 1, causal=causal, window=window, left=left)
    start = data.draw(st.integers(0, rows - 1)) if left else 0
    blocks = -(-rows // TILE)
    r, c = np.arange(blocks * TILE)[:, None], np.arange(blocks * TILE)[None]
    wanted = np.broadcast_to((c < rows) & (c >= start), (len(r), blocks * TILE))
    wanted = wanted & (c <= r) if causal else wanted
    if window is not None:
        wanted = wanted & (c > r - window) & (c < r + window)
    met: list[RowBlock] = []
    for slot in slots_of(s, att):
        for i, of_unit in enumerate(slot.rows):
            met += of_unit
            if not of_unit:
                continue
            rows_of_unit = np.concatenate([wanted[row.block * TILE :][:TILE] for row in of_unit])
            seen = {part: np.zeros_like(rows_of_unit) for part in KeyPart}
            for keys, part in slot.steps:
                at = slice(keys.first * TILE, (keys.first + keys.blocks) * TILE)
                assert not seen[part][:, at].any()
                seen[part][:, at] = valid(slot, keys, att, s, start, i)
            for found in (
                seen[KeyPart.ALL] | seen[KeyPart.APPLY],
                seen[KeyPart.ALL] | seen[KeyPart.FIRST] | seen[KeyPart.MORE],
            ):
                np.testing.assert_array_equal(found, rows_of_unit)
            if causal or window is not None:
                assert len([*runs(of_unit)]) == 1
    assert sorted(met) == [RowBlock(head, block) for head in range(group) for block in range(blocks)]


def test_keys_of_lengths_are_fields_of_the_run() -> None:
    s, att = attention(2, 900, 2, 1, masked=True, left=True)
    slot = next(x for x in slots_of(s, att) if x.sequence == 1)
    keys, part = slot.steps[-1]
    softmax = softmax_of(s, att, slot, keys, part, 0, 1)
    base = keys.halves[1].first * TILE
    assert softmax.columns == LengthField(1, base, 2 * TILE)
    assert softmax.first == LengthField(1, base, 2 * TILE, "start")
    assert part is KeyPart.APPLY


def test_masks_save_parts() -> None:
    """Of 32 key blocks, rows 0 to 511 of a causal attention meet 4; a narrow window leaves 6 to a slot, one step."""
    s, att = attention(1, 4096, 1, 1, causal=True)
    slots = [*slots_of(s, att)]
    assert sorted(sum(keys.blocks for keys in slot.sent) for slot in slots) == [4, 8, 12, 16, 20, 24, 28, 32]
    assert sorted(len(slot.steps) for slot in slots)[:2] == [1, 3]
    s, att = attention(1, 4096, 1, 1, window=64)
    assert {len(slot.steps) for slot in slots_of(s, att)} == {1}
    assert max(slot.sent[0].blocks for slot in slots_of(s, att)) == 6


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (7, 1), (6, 6)])
def test_rows_of_a_group_share_slots(heads: int, kv_heads: int) -> None:
    """Without a mask by rows, all slots of a key head but the last have four row blocks, of whatever heads."""
    s, att = attention(1, 384, heads, kv_heads)
    for kv_head in range(kv_heads):
        sizes = [sum(map(len, slot.rows)) for slot in slots_of(s, att) if slot.kv_head == kv_head]
        assert sizes[:-1] == [4] * (len(sizes) - 1)
        assert sum(sizes) == 3 * heads // kv_heads
