"""Attention one product at a time: mapping types A, B and C (paper section 2.2 and Fig. 3). D is in `attention`.

Type A keeps the scores of a head in MemC 0-3; B moves those of all heads through DDR. A MemC can send three key tiles
(768 rows with a pair) but store four, so that type B runs up to 1024 rows.
"""

from __future__ import annotations

from typing import Any

from ..isa.layout import BLOCK_ROWS, UNIT, padded
from ..isa.program import Buffer, Layout, Role
from . import attention_3_blocks as streamed
from .attention import (
    MAX_SENT,
    check,
    hurry,
    lower_attention,
    lower_slot_scores,
    lower_slot_values,
    slots_of,
    value_op,
)
from .graph import AttentionLayer
from .kernel_builder import KernelBuilder, WorkItem
from .mapping import MappingType, Shape, choose
from .order import Tile
from .schedule import Interleave

MAX_STORED = 8
"""Largest number of key tiles that a MemC pair can store: four each."""
VALUE_ROWS = 4
"""Row blocks of V that MemB2 holds."""
IN_TURN_LAG = 2
"""Slots between the loads for a head and the stores of its output, type A."""
SCORES_LAG = 2
"""Slots between the loads for a head and the stores of its scores, type B: with 1, DDR would wait for softmax."""


def lower_as(s: KernelBuilder, att: AttentionLayer, kind: MappingType | None = None) -> None:
    """Lower attention by a mapping type; None chooses by the roofline. Raises `UnsupportedError` naming the layer."""
    match kind or choose(Shape.of(s.net, att), s.overlay):
        case MappingType.A:
            lower_in_turn(s, att)
        case MappingType.B | MappingType.C:
            lower_apart(s, att)
        case MappingType.D:
            if s.schedule.balance and att.bias is None and all(span.blocks == streamed.BLOCKS for span in s.spans):
                streamed.lower_streamed(s, att)
            else:
                lower_attention(s, att)


def place_as(s: KernelBuilder, att: AttentionLayer, kind: MappingType | None = None) -> None:
    """Check an attention and reserve the scratch memory that `lower_as` with the same mapping type needs. Raises
    `UnsupportedError` naming the layer."""
    in_ddr = (kind or choose(Shape.of(s.net, att), s.overlay)) in (MappingType.B, MappingType.C)
    check(s, att, MAX_STORED if in_ddr else MAX_SENT)
    if in_ddr:
        place_scores(s, att)


def lower_in_turn(s: KernelBuilder, att: AttentionLayer) -> None:
    """Lower attention by mapping type A. The MMEs of one product wait for those of the other, because MeshA passes on
    the probabilities of a head before it takes the queries of the next head."""
    check(s, att)
    first = len(s.tiles)
    for slot in slots_of(s, att):
        tile = Tile(lag=IN_TURN_LAG)
        s.tiles.append(tile)
        slot.tile = tile
        lower_slot_scores(s, att, slot, tile)
        lower_slot_values(s, att, slot, tile)
    hurry(s.tiles[first:])


def lower_apart(s: KernelBuilder, att: AttentionLayer) -> None:
    """Lower attention by mapping types B and C: softmax(Q K^T) of all heads to DDR, then P V of all heads from DDR."""
    scores = place_scores(s, att)
    lower_scores(s, att, scores)
    lower_values(s, att, scores)


def place_scores(s: KernelBuilder, att: AttentionLayer) -> str:
    """Reserve scratch memory for the scores of every head, one panel each, at the end of DDR. Layers with the same
    number of heads share it. Returns the buffer's name."""
    name, width = f"scores{att.heads}", s.seq_blocks * BLOCK_ROWS
    if name not in s.buffers:
        end = max(b.offset + b.size // UNIT for b in s.buffers.values() if b.bank == "ddr")
        shape = (att.heads * s.row_blocks * BLOCK_ROWS, width)
        s.buffers[name] = Buffer(name, "ddr", padded(end, 64), shape, Layout.BLOCKED, Role.SCRATCH)
    return name


def lower_scores(s: KernelBuilder, att: AttentionLayer, scores: str) -> None:
    """Append softmax(Q K^T) of all heads on MME 0-3; MemC 0-3 store it in DDR. scores: the name of the buffer there,
    from `place_scores`. Raises `UnsupportedError` like `check`."""
    check(s, att, MAX_STORED)
    width = 2 * s.seq_blocks
    # With a bias, MemC receives a slot's first scores with its first loads; the slot two before must be stored by then.
    in_turn = s.interleave is Interleave.STRICT or att.bias is not None
    lag = 1 if in_turn else SCORES_LAG
    for slot in slots_of(s, att):
        tile = Tile(lag=lag)
        s.tiles.append(tile)
        lower_slot_scores(s, att, slot, tile, stored=True)
        row = s.spans[slot.sequence].start + slot.start
        if slot.alone:
            for m in range(slot.heads):
                tile.stores.append(s.blocks(scores, row, 1, (slot.head + m) * width, 2, f"MemC{m}", store=True))
            continue
        for i, rows in enumerate(slot.q):
            for j, keys in enumerate(slot.k):
                if not rows:
                    continue
                at = row + (slot.q[0] if i else 0)
                for head in range(slot.head, slot.head + slot.heads):
                    col = head * width + (2 * slot.k[0] if j else 0)
                    tile.stores.append(s.blocks(scores, at, rows, col, 2 * keys, f"MemC{2 * i + j}", store=True))


def lower_values(s: KernelBuilder, att: AttentionLayer, scores: str) -> None:
    """Append P V of all heads on MME 4 and 5, the only ones that MemB2 with untransposed V reaches. P comes from the
    buffer `scores` in DDR.

    Both get P through MemA2, which sends them tiles of two row blocks alternately. A tile takes as long to send as to
    multiply, so that both MMEs work at half rate.
    """
    for row0, keys, _ in s.spans:
        parts = [(at, min(VALUE_ROWS, keys - at)) for at in range(0, keys, VALUE_ROWS)]
        for head in range(att.heads):
            for start in range(0, keys, 2):
                tile = Tile()
                s.tiles.append(tile)
                rows = min(2, keys - start)
                for at, count in parts:
                    load: dict[str, Any] = {}
                    if start == 0:
                        tile.loads.append(s.blocks(att.v, row0 + at, count, head, 1, "MemB2"))
                        load = {"load": 1, "dim1": BLOCK_ROWS * count, "dim2": 64}
                    if start == 0 or len(parts) > 1:
                        times = -(-keys // 2) if len(parts) == 1 else 1
                        s.mem["MemB2"].append(WorkItem(load, {"send": 1, "acc_a": times, "acc_b": 1, "acc_k": count}))
                _row_pair(s, att, scores, tile, head, row0 + start, rows, keys)


def _row_pair(
    s: KernelBuilder, att: AttentionLayer, scores: str, tile: Tile, head: int, row: int, rows: int, keys: int
) -> None:
    """Append P V of one or two row blocks of a head: the first on MME 4, the second on MME 5."""
    for k in range(keys):
        tile.loads.append(s.blocks(scores, row, rows, 2 * (head * s.seq_blocks + k), 2, "MemA2"))
        s.mem["MemA2"].append(
            WorkItem({"load": 1, "dim1": BLOCK_ROWS * rows, "dim2": 128}, {"send": 1, "acc_a": rows, "acc_b": 1})
        )
        for i in range(rows):
            s.route("MeshA", [f"a2_{4 + i}"], 1)
    s.route("MeshB", [f"b2_{4 + i}" for i in range(rows)], keys)
    for i in range(rows):
        value_op(s, 4 + i, 1, keys)
        c = f"MemC{4 + i}"
        s.mem[c].append(
            WorkItem({"recv": 1, "k_iter": 1, "recv_a": 1, "recv_b": 1}, {"store": 1, "dim1": BLOCK_ROWS, "dim2": 64})
        )
        tile.stores.append(s.blocks(att.y, row + i, 1, head, 1, c, store=True))
