"""Attention pipelined over steps (`attention_steps`), mapping type E: query heads that share keys, wide heads, windows,
more keys than fit on chip.

As with type D, Q K^T of a step runs beside P V of the step before. Queries, keys and values that several steps need
stay in their memories (`slot_contents`). The values of a step come in two halves, one for each memory of a pair that
sends probabilities; the memory of results adds the halves of all steps of a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.errors import UnsupportedError
from ..isa.layout import BLOCK, BLOCK_COLS, UNIT
from ..isa.work import Access, KeyPart, Load, Multiply, Receive, RowStore, Send, Store
from . import attention_bias
from .attention import pipelined
from .attention_steps import KeyBlocks, KeySharers, RowBlock, at_once, runs, slots_of, softmax_of
from .binder import Binder, TileAccesses
from .graph import AttentionLayer
from .mapping import pipeline_of
from .op_counts import OpCounts
from .refusal import require
from .slot_contents import LoadedSlots
from .tile import TILE


@dataclass
class _BoundAttention:
    """An attention while it is bound. width: columns from a head to the next. slices: slices of K of a head. added:
    whether a bias or a mask is added to the scores."""

    s: Binder
    att: AttentionLayer
    width: int
    added: bool
    held: LoadedSlots = field(init=False)
    counts: OpCounts = field(default_factory=OpCounts)

    def __post_init__(self) -> None:
        self.held = LoadedSlots(self.s)

    @property
    def slices(self) -> int:
        """Slices of K that a product of scores has."""
        return -(-self.width // TILE)

    @property
    def depth(self) -> int:
        """Columns of a slice. A term that is added needs whole tiles: a narrow head then lies beside its neighbour."""
        return TILE if self.added else min(self.width, TILE)


def bind_in_parts(s: Binder, att: AttentionLayer) -> None:
    """Append the work of an attention by mapping type E, pipelined over steps of keys. Raises `UnsupportedError` and
    `ScheduleError` like `check_in_parts`."""
    check_in_parts(s, att)
    bound = _BoundAttention(s, att, s.columns[att.q].pitch, att.is_biased)

    def end(step: tuple[KeySharers, KeyBlocks, KeyPart], made: TileAccesses, tile: TileAccesses) -> None:
        slot, keys, part = step
        if part in (KeyPart.ALL, KeyPart.APPLY):
            _values(bound, slot, keys, made, tile)

    steps = [(slot, keys, part) for slot in slots_of(s, att) for keys, part in slot.steps]
    pipelined(s, steps, lambda step, tile: _scores(bound, *step, tile), end)
    bound.counts.flush(s)


def check_in_parts(s: Binder, att: AttentionLayer) -> None:
    """Raises `UnsupportedError`, naming the layer, for attention that the overlay cannot run by mapping type E, and
    `ScheduleError` for a mask that is an input with another number of rows than needed."""
    pipeline = pipeline_of(s.overlay)
    unit = s.overlay.by_unit[pipeline.scores.results[0][0]]
    for span in s.spans_of(att.k):
        rows = f"sequences of {span.rows} rows"
        if span.rows % TILE:
            require(att.place, f"{rows}, no multiple of {TILE}", s.overlay, "mask", unit)
    for asked, what, op in (
        (att.masked, "attention with a mask", "mask"),
        (att.causal, "causal attention", "causal_mask"),
        (att.window is not None, f"attention within {att.window} rows", "window"),
        (att.left, "attention with padding before the rows", "mask_first"),
    ):
        if asked:
            require(att.place, what, s.overlay, op, unit)
    attention_bias.check(s, att)
    if att.softcap is not None:
        require(att.place, "attention with a soft cap", s.overlay, "softcap", unit)
        if att.is_biased:
            raise UnsupportedError(
                f"{att.place}: a soft cap and a bias or mask on the scores; the machine adds them before the cap, the "
                "model behind it; express the mask by lengths, causal order or a window, or keep the layer on the host"
            )
    pitch = s.columns[att.q].pitch
    if pitch > s.overlay.head_columns:
        values = s.overlay.by_unit[pipeline.values]
        require(att.place, f"heads of {att.head_dim} columns", s.overlay, "whole_tiles", values)
    for slot in slots_of(s, att):
        keys = sum(keys.blocks for keys in slot.sent)
        if keys == 1:
            require(att.place, "rows that meet one key block", s.overlay, "row_softmax", unit)
        if len(slot.steps) > 1:
            what = f"rows that meet {keys * TILE} keys"
            require(att.place, what, s.overlay, "long_softmax", unit)
            if any(step.blocks == 1 for step, _ in slot.steps):
                raise UnsupportedError(
                    f"{att.place}: {what}, of which parts of at most {at_once(s) * TILE} leave one memory of a softmax "
                    f"without any; pad the sequences by {TILE} rows"
                )


def _scores(b: _BoundAttention, slot: KeySharers, keys: KeyBlocks, part: KeyPart, tile: TileAccesses) -> None:
    """Append softmax(Q K^T) of a step. Its results send the probabilities on, if `part` makes any. tile: receives the
    loads."""
    s, grid = b.s, pipeline_of(b.s.overlay).scores
    columns = [(j, half.blocks) for j, half in enumerate(keys.halves) if half.blocks]
    if b.added:
        for i, rows in enumerate(slot.rows):
            if rows:
                places = [(row.head, row.block) for row in rows]
                attention_bias.send_bias(s, b.att, slot.sequence, i, places, columns, tile, keys.first)
                b.held.forget(grid.left[i])
        shapes = [((i, j), len(rows), n) for i, rows in enumerate(slot.rows) if rows for j, n in columns]
        attention_bias.score_ops(s, shapes, b.slices)
        for unit in grid.right:  # of which some took the weights of the added term
            b.held.forget(unit)
    for k_slice in range(b.slices):
        _slice(b, slot, keys, k_slice, tile)
    for i, rows in enumerate(slot.rows):
        for j, count in columns if rows else ():
            if not b.added:
                one = Multiply(half_depth=b.depth < TILE)
                b.counts.add(grid.products[i][j], one, b.slices * len(rows) * count)
            softmax = softmax_of(s, b.att, slot, keys, part, i, j)
            sends = part in (KeyPart.ALL, KeyPart.APPLY)
            drain = Send(len(rows), count, _value_tiles(b)) if sends else None
            s.turn(grid.results[i][j], Receive(b.slices + b.added, len(rows), count, softmax), drain)


def _slice(b: _BoundAttention, slot: KeySharers, keys: KeyBlocks, k_slice: int, tile: TileAccesses) -> None:
    """Append the loads and sends of one slice of K of a step, and the routes of its tiles."""
    s, grid = b.s, pipeline_of(b.s.overlay).scores
    most, few = (half.blocks for half in keys.halves)
    groups = [i for i, rows in enumerate(slot.rows) if rows]
    for i in groups:
        rows = slot.rows[i]
        load = Load(TILE * len(rows), b.depth, source=grid.activations)
        accesses = _queries(b, slot, rows, k_slice, grid.left[i])
        send = Send(len(rows), 1, most)
        b.held.send(grid.left[i], ("q", slot.sequence, rows, k_slice), load, accesses, send, tile)
    times = max(len(rows) for rows in slot.rows)
    for j, half in enumerate(keys.halves):
        if half.blocks:
            load = Load(b.depth, TILE * half.blocks, True, grid.activations)
            accesses = _keys(b, slot, half, k_slice, grid.right[j])
            content = ("k", slot.sequence, slot.kv_head, half, k_slice)
            b.held.send(grid.right[j], content, load, accesses, Send(1, half.blocks, times), tile)
    for a in range(times):
        active = [i for i in groups if a < len(slot.rows[i])]
        for halves, tiles in (((0, 1), few), ((0,), most - few)):  # only column 0 takes the odd key tile
            units = [(i, j) for i in active for j in halves]
            s.route(grid.left_switch, [(grid.left[i], grid.products[i][j]) for i, j in units], tiles)
            s.route(grid.right_switch, [(grid.right[j], grid.products[i][j]) for i, j in units], tiles)


def _queries(b: _BoundAttention, slot: KeySharers, rows: tuple[RowBlock, ...], k_slice: int, unit: str) -> list[Access]:
    """The loads of one slice of K of rows."""
    s, out = b.s, []
    start = s.spans_of(b.att.q)[slot.sequence].start
    blocks, wide = b.width // BLOCK_COLS, min(b.width, TILE) // BLOCK_COLS
    for row, count in runs(rows):
        at = row.head * blocks + k_slice * wide
        if b.depth > b.width:
            for block in range(row.block, row.block + count):
                out += attention_bias.beside_zeros(s, b.att.q, start + block, at, slot.kv_head % 2, unit)
        else:
            out.append(s.blocks(b.att.q, start + row.block, count, at, wide, unit))
    return out


def _keys(b: _BoundAttention, slot: KeySharers, half: KeyBlocks, k_slice: int, unit: str) -> list[Access]:
    """The loads of one slice of K of half of the keys of a step; of a narrow head beside zeros, also its neighbour's
    columns."""
    row = b.s.spans_of(b.att.k)[slot.sequence].start + half.first
    column, wide = slot.kv_head * (b.width // BLOCK_COLS) + k_slice * (TILE // BLOCK_COLS), b.depth // BLOCK_COLS
    return [b.s.blocks(b.att.k, row, half.blocks, column - column % wide, wide, unit)]


def _value_tiles(b: _BoundAttention) -> int:
    """Column tiles of the values of a head."""
    return -(-b.width // TILE)


def _values(b: _BoundAttention, slot: KeySharers, keys: KeyBlocks, made: TileAccesses, tile: TileAccesses) -> None:
    """Append P V of a step, whose probabilities the results of the scores send. tile: receives the loads of V. made:
    the tile of the step's scores, which owns the stores of a slot's last step."""
    s, pipeline = b.s, pipeline_of(b.s.overlay)
    grid, blocks, tiles = pipeline.scores, b.width // BLOCK_COLS, _value_tiles(b)
    groups = [i for i, rows in enumerate(slot.rows) if rows]
    times, whole = max(len(rows) for rows in slot.rows), b.width >= TILE
    start = s.spans_of(b.att.v)[slot.sequence].start
    for j, half in enumerate(keys.halves):
        if not half.blocks:
            continue
        access = s.blocks(b.att.v, start + half.first, half.blocks, slot.kv_head * blocks, blocks, pipeline.values)
        load = Load(TILE * half.blocks, b.width, source=grid.activations)
        content = "v", slot.sequence, slot.kv_head, half
        b.held.send(pipeline.values, content, load, [access], Send(half.blocks, tiles, times, whole=whole), tile)
        for a in range(times):
            active = [i for i in groups if a < len(slot.rows[i])]
            count = half.blocks * tiles
            s.route(grid.left_switch, [(grid.results[i][j], pipeline.products[i]) for i in active], count)
            s.route(grid.right_switch, [(pipeline.values, pipeline.products[i]) for i in active], count)
        for i in groups:
            one = Multiply(depth=half.blocks, half_columns=not whole, sums=True)
            b.counts.add(pipeline.products[i], one, len(slot.rows[i]) * tiles)
    if keys != slot.sent[-1]:
        return
    rounds = sum(1 for sent in slot.sent for half in sent.halves if half.blocks)
    at = s.spans_of(b.att.y)[slot.sequence].start
    for i in groups:
        rows, unit = slot.rows[i], pipeline.results[i]
        s.turn(unit, Receive(rounds, len(rows), tiles), Store(TILE * len(rows), b.width))
        for row, count in runs(rows):
            if s.tiled.rows_of(b.att.y).together:
                made.stores.append(_row_together(b, slot.sequence, row.head * blocks, blocks, unit))
            else:
                made.stores.append(
                    s.blocks(b.att.y, at + row.block, count, row.head * blocks, blocks, unit, store=True)
                )


def _row_together(b: _BoundAttention, sequence: int, column: int, blocks: int, unit: str) -> RowStore:
    """Store the one row of a sequence beside those of the others. column: the first block of a head."""
    y = b.s.buffers[b.att.y]
    batch = len(b.s.spans_of(b.att.y))
    addr = y.offset * UNIT + column * BLOCK
    return RowStore(unit, addr, pitch=y.shape[1] // BLOCK_COLS * BLOCK, limit=batch, row=sequence, blocks=blocks)
