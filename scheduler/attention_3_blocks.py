"""Attention over three row blocks as a stream of row tiles, so that both halves of the machine have equal work.

Three row blocks cannot be halved: head by head, one MemC pair would get two row tiles and the other one. Here the row
tiles of all heads, in order, go to the two pairs alternately, two in a slot. Every third slot holds tiles of two heads;
MemB then sends the keys (and MemB2 the values) of one head to one pair and those of the next head to the other. All
uOPs of a Mem are equal, whatever head they belong to, so one mOP stands for as many of them as a packet can repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..isa.layout import BLOCK_COLS
from ..isa.work import Load, Multiply, Receive, Send, Store
from .attention import check, halved, load_values, pipelined, score_op, softmax_of
from .binder import Binder, TileAccesses
from .graph import AttentionLayer
from .grid import most
from .mapping import PipelineLimits, pipeline_of
from .tile import TILE

BLOCKS = 3
"""Row blocks of the sequences that are lowered this way."""

Row = tuple[int, int, int]
"""A row tile: sequence, head, row block within the sequence."""


def fits(s: Binder, att: AttentionLayer) -> bool:
    """Whether an attention can be bound this way: sequences of `BLOCKS` row blocks, no bias, and room for the values of
    a head in one slot. Raises like `pipeline_of`."""
    values = PipelineLimits.of(s.overlay, pipeline_of(s.overlay)).values
    spans = (*s.spans_of(att.q), *s.spans_of(att.k))
    return att.bias is None and values >= BLOCKS and all(span.blocks == BLOCKS for span in spans)


def bind_streamed(s: Binder, att: AttentionLayer) -> None:
    """Bind attention by mapping type D (paper section 4.3), like `bind_attention`, but with the row tiles of all heads
    in one order. The attention must fulfil `fits`. Raises `UnsupportedError` like `check`."""
    check(s, att)
    batch, heads = range(s.net.batch), range(att.heads)
    rows: list[Row] = [(b, h, r) for b in batch for h in heads for r in range(BLOCKS)]
    slots = [rows[i : i + 2] for i in range(0, len(rows), 2)]
    pipelined(
        s,
        slots,
        lambda slot, tile: _scores(s, att, slot, tile),
        lambda slot, made, tile: _values(s, att, slot, tile, made),
    )
    for i in range(2):
        _value_ops(s, i, sum(1 for slot in slots if i < len(slot)))


def _begun(slot: Sequence[Row]) -> list[tuple[int, int]]:
    """The heads whose first row tile is in a slot."""
    return [(sequence, head) for sequence, head, row in slot if row == 0]


def _passes(s: Binder, att: AttentionLayer, sequence: int, head: int) -> int:
    """Number of slots in which a head has row tiles, i.e. how often its keys and values are sent."""
    start = (sequence * att.heads + head) * BLOCKS
    return (start + BLOCKS - 1) // 2 - start // 2 + 1


def _in_turn(slot: Sequence[Row]) -> list[list[int]]:
    """The MemC pairs of a slot, grouped: pairs in one list receive a tile of MemB at the same time. Both pairs if the
    slot has one head, else one after the other."""
    if len({row[:2] for row in slot}) == 1:
        return [list(range(len(slot)))]
    return [[i] for i in range(len(slot))]


def _scores(s: Binder, att: AttentionLayer, slot: Sequence[Row], tile: TileAccesses) -> None:
    grid = pipeline_of(s.overlay).scores
    keys = halved(BLOCKS)
    for sequence, head in _begun(slot):
        for j in range(2):
            at = sequence * BLOCKS + (keys[0] if j else 0)
            tile.loads.append(s.blocks(att.k, at, keys[j], head, 1, grid.right[j]))
            load = Load(s.overlay.head_columns, TILE * keys[j], True, grid.activations)
            s.turn(grid.right[j], load, Send(1, keys[j], _passes(s, att, sequence, head)))
    for i, (sequence, head, row) in enumerate(slot):
        tile.loads.append(s.blocks(att.q, sequence * BLOCKS + row, 1, head, 1, grid.left[i]))
        s.turn(grid.left[i], Load(TILE, s.overlay.head_columns, source=grid.activations), Send(1, 1, keys[0]))
        for j in range(2):
            score_op(s, (i, j), keys[j])
            softmax = softmax_of(s, att, sequence, keys[0] if j else 0, keys[j], False, row)
            s.turn(grid.results[i][j], Receive(1, 1, keys[j], softmax), Send(1, keys[j]))
    key_halves = (((0, 1), keys[1]), ((0,), keys[0] - keys[1]))  # only column 0 takes the odd key tile
    for halves, tiles in key_halves:
        routes = [(grid.left[i], grid.products[i][h]) for i in range(len(slot)) for h in halves]
        s.route(grid.left_switch, routes, tiles)
    for pairs in _in_turn(slot):
        for halves, tiles in key_halves:
            s.route(grid.right_switch, [(grid.right[h], grid.products[i][h]) for i in pairs for h in halves], tiles)


def _values(s: Binder, att: AttentionLayer, slot: Sequence[Row], tile: TileAccesses, made: TileAccesses) -> None:
    """Append P V of a slot. tile: receives the loads of V. made: the tile of the slot's scores, which owns the
    stores."""
    pipeline = pipeline_of(s.overlay)
    grid, keys = pipeline.scores, halved(BLOCKS)
    for sequence, head in _begun(slot):
        tile.loads.append(s.blocks(att.v, sequence * BLOCKS, BLOCKS, head, 1, pipeline.values))
        load_values(s, BLOCKS, Send(BLOCKS, 1, _passes(s, att, sequence, head)))
    for j in range(2):
        s.route(grid.left_switch, [(grid.results[i][j], pipeline.products[i]) for i in range(len(slot))], keys[j])
    for pairs in _in_turn(slot):
        s.route(grid.right_switch, [(pipeline.values, pipeline.products[i]) for i in pairs], BLOCKS)
    for i, (sequence, head, row) in enumerate(slot):
        unit = pipeline.results[i]
        s.turn(unit, Receive(1, 1, 1), Store(TILE, BLOCK_COLS))
        made.stores.append(s.blocks(att.y, sequence * BLOCKS + row, 1, head, 1, unit, store=True))


def _value_ops(s: Binder, i: int, rows: int) -> None:
    """Append P V for `rows` row tiles to the product unit behind grid row i, as many in a group as it can, because each
    group costs a set-up."""
    left = rows
    while left:
        acc = min(most(s, "matmul", "rows"), left)
        groups = min(left // acc, most(s, "matmul", "row_groups"))
        s.add(
            pipeline_of(s.overlay).products[i],
            Multiply(row_groups=groups, depth=BLOCKS, rows=acc, half_columns=True, sums=True),
        )
        left -= acc * groups
