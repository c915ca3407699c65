"""Attention one product at a time: mapping types A, B and C (paper section 2.2 and Fig. 3). D is in `attention`, E in
`attention_in_parts`.

Type A keeps the scores of a head in MemC 0-3; B moves those of all heads through DDR. A MemC can send three key tiles
(768 rows with a pair) but store four, so that type B runs up to 1024 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..isa.layout import BLOCK_COLS, UNIT, padded
from ..isa.program import Buffer, Layout, Role
from ..isa.work import Access, Receive, Send, Store
from .attention import (
    bind_slot_scores,
    bind_slot_values,
    check,
    hurry,
    is_held,
    load_values,
    slots_of,
    value_op,
)
from .binder import Binder, TileAccesses, pass_tiles
from .graph import AttentionLayer
from .mapping import PipelineLimits, pipeline_of
from .schedule import Interleave
from .tile import TILE

IN_TURN_LAG = 2
"""Slots between the loads for a head and the stores of its output, type A."""
SCORES_LAG = 2
"""Slots between the loads for a head and the stores of its scores, type B: with 1, DDR would wait for softmax."""


def bind_in_turn(s: Binder, att: AttentionLayer) -> None:
    """Bind attention by mapping type A (paper section 2.2 and Fig. 3). The MMEs of one product wait for those of the
    other, because MeshA passes on the probabilities of a head before it takes the queries of the next head. Raises
    `UnsupportedError` like `check`."""
    check(s, att)
    first = len(s.tiles)
    for slot in slots_of(s, att):
        tile = TileAccesses(lag=IN_TURN_LAG)
        s.tiles.append(tile)
        slot.tile = tile
        bind_slot_scores(s, att, slot, tile)
        bind_slot_values(s, att, slot, tile)
    hurry(s.tiles[first:])


def bind_apart(s: Binder, att: AttentionLayer) -> None:
    """Bind attention by mapping types B and C (paper section 2.2 and Fig. 3): P = softmax(Q K^T) of all heads goes to
    DDR, then P V of all heads reads it from there. Raises `UnsupportedError` like `check`."""
    scores = place_scores(s, att)
    bind_scores(s, att, scores)
    bind_values(s, att, scores)


def place_scores(s: Binder, att: AttentionLayer) -> str:
    """Reserve scratch memory for the scores of every head, one panel each, at the end of DDR. Layers with the same
    number of heads, rows and keys share it. Returns the buffer's name."""
    name, width, rows = f"scores{att.heads}", s.seq_blocks_of(att.k) * TILE, s.row_blocks_of(att.q)
    if len({s.net.seq_of(x) for layer in s.net.layers for x in layer.operands}) > 1:
        name += f"x{s.net.seq_of(att.q)}x{s.net.seq_of(att.k)}"
    if name not in s.buffers:
        bank = s.bank_of(s.grid.activations)
        end = max(b.offset + b.size // UNIT for b in s.buffers.values() if b.bank == bank)
        shape = (att.heads * rows * TILE, width)
        s.panel_blocks[name] = rows
        s.buffers[name] = Buffer(name, bank, padded(end, 64), shape, Layout.BLOCKED, Role.SCRATCH)
    return name


def bind_scores(s: Binder, att: AttentionLayer, scores: str) -> None:
    """Append softmax(Q K^T) of all heads on MME 0-3; MemC 0-3 store it in DDR. scores: the name of the buffer there,
    from `place_scores`. Raises `UnsupportedError` like `check`."""
    check(s, att, in_memory=True)
    width, results = 2 * s.seq_blocks_of(att.k), pipeline_of(s.overlay).scores.results
    # With a bias, MemC receives a slot's first scores with its first loads; the slot two before must be stored by then.
    in_turn = s.tiled.interleave is Interleave.STRICT or att.bias is not None
    lag = 1 if in_turn else SCORES_LAG
    for slot in slots_of(s, att):
        tile = TileAccesses(lag=lag)
        s.tiles.append(tile)
        bind_slot_scores(s, att, slot, tile, stored=True)
        row = s.spans_of(att.q)[slot.sequence].start + slot.start
        if slot.alone:
            for m in range(slot.heads):
                unit = results[m // 2][m % 2]
                tile.stores.append(s.blocks(scores, row, 1, (slot.head + m) * width, 2, unit, store=True))
            continue
        for i, rows in enumerate(slot.q):
            for j, keys in enumerate(slot.k):
                if not rows:
                    continue
                at = row + (slot.q[0] if i else 0)
                for head in range(slot.head, slot.head + slot.heads):
                    col = head * width + (2 * slot.k[0] if j else 0)
                    tile.stores.append(s.blocks(scores, at, rows, col, 2 * keys, results[i][j], store=True))


def bind_values(s: Binder, att: AttentionLayer, scores: str) -> None:
    """Append P V of all heads on the product units behind the grid of scores, the only ones that untransposed V
    reaches. scores: the name of the buffer off chip that has P (`place_scores`). Raises like `pipeline_of`.

    All get P through one left memory, which sends them row tiles alternately. A tile takes as long to send as to
    multiply, so that both product units work at half rate."""
    pipeline = pipeline_of(s.overlay)
    held, at_once = PipelineLimits.of(s.overlay, pipeline).values, len(pipeline.products)
    for (row0, blocks, _), (first_key, keys, _) in zip(s.spans_of(att.q), s.spans_of(att.k), strict=True):
        parts = [(at, min(held, keys - at)) for at in range(0, keys, held)]
        for head in range(att.heads):
            for start in range(0, blocks, at_once):
                tile = TileAccesses()
                s.tiles.append(tile)
                rows = min(at_once, blocks - start)
                values: dict[int, list[Access]] = {}
                for part, (at, count) in enumerate(parts):
                    if len(parts) == 1 and start:
                        continue
                    load = not is_held(s, pipeline.values, start // at_once * len(parts) + part, len(parts))
                    if load:
                        # a slot is free once the part before the last has been sent
                        before = parts[max(0, part - 1)][0]
                        access = s.blocks(att.v, first_key + at, count, head, 1, pipeline.values)
                        values.setdefault(before, []).append(access)
                    times = -(-blocks // at_once) if len(parts) == 1 else 1
                    load_values(s, count, Send(count, 1, times), load)
                _row_pair(s, att, scores, tile, head, row0 + start, rows, keys, values)


def _row_pair(
    s: Binder,
    att: AttentionLayer,
    scores: str,
    tile: TileAccesses,
    head: int,
    row: int,
    rows: int,
    keys: int,
    values: Mapping[int, Sequence[Access]],
) -> None:
    """Append P V of one row block of a head for each product unit, at most. values: loads of V, by the key tile before
    which they come."""
    pipeline = pipeline_of(s.overlay)
    grid, stored = pipeline.scores, pipeline.stored
    for k in range(keys):
        tile.loads += values.get(k, ())
        tile.loads.append(s.blocks(scores, row, rows, 2 * (head * s.seq_blocks_of(att.k) + k), 2, stored))
        pass_tiles(s, stored, rows)
        for i in range(rows):
            s.route(grid.left_switch, [(stored, pipeline.products[i])], 1)
    s.route(grid.right_switch, [(pipeline.values, pipeline.products[i]) for i in range(rows)], keys)
    for i in range(rows):
        value_op(s, i, 1, keys)
        unit = pipeline.results[i]
        s.turn(unit, Receive(1, 1, 1), Store(TILE, BLOCK_COLS))
        tile.stores.append(s.blocks(att.y, row + i, 1, head, 1, unit, store=True))
