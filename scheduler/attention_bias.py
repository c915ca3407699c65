"""Attention with a bias or a mask added to its scores, by the previous-layer term of product units (end of contract
section 7).

A product unit emits the tiles of the bias, times 1, before the products, and the memory of results adds both. This
needs K = 128 mode. Where a head has 64 columns, one tile holds the keys of two neighbouring heads, and the queries of
the other head are 0. A bias is constant; a mask is an input, read in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.layout import BLOCK_COLS, BLOCK_ROWS
from ..isa.program import Buffer
from ..isa.work import Access, Multiply
from .binder import Binder, TileAccesses, multiply_as, pass_tiles
from .graph import Array, AttentionLayer
from .grid import most
from .mapping import pipeline_of


def check(s: Binder, att: AttentionLayer) -> None:
    """Raises `UnsupportedError`, naming the layer, if it has both a bias and a mask that is an input, or a mask for
    each head over rows that are no whole blocks; `ScheduleError` for a mask with another number of rows than its heads
    need."""
    if att.mask is None:
        return
    if att.bias is not None:
        raise UnsupportedError(
            f"{att.place}: a constant bias and a mask that is an input; the machine adds one of them to the scores: "
            "add both to one mask before the call"
        )
    rows = s.net.seq_of(att.q)
    if s.net.seq_of(att.mask) != att.mask_heads * rows:
        raise ScheduleError(
            f"{att.place}: its mask {att.mask} has {s.net.seq_of(att.mask)} rows for a sequence; it needs "
            f"{att.mask_heads} times {rows}"
        )
    if att.mask_heads > 1 and rows % BLOCK_ROWS:
        raise UnsupportedError(
            f"{att.place}: a mask for each of {att.mask_heads} heads over {rows} rows; rows of a head begin at a "
            f"multiple of {BLOCK_ROWS} only: pad the sequences, or give one mask for all heads"
        )


def place(s: Binder, att: AttentionLayer) -> None:
    """Place the constants of an attention with a bias or a mask off chip: the bias, a block of zeros, and the
    previous-layer weights. Call before activations are placed."""
    if att.bias is not None:
        _bias(s, att)
    if s.overlay.head_pitch(att.head_dim) < BLOCK_ROWS:
        _zeros(s)
    _ones(s)


def _first_row(s: Binder, att: AttentionLayer, sequence: int, head: int) -> tuple[str, int]:
    """The buffer of what is added to the scores, and its row block where those of a head of a sequence begin."""
    if att.mask is not None:
        span = s.spans_of(att.mask)[sequence]
        return att.mask, span.start + head % att.mask_heads * (span.blocks // att.mask_heads)
    assert att.bias is not None
    batch, heads, *_ = att.bias.shape
    return _bias(s, att).name, (sequence % batch * heads + head % heads) * s.seq_blocks_of(att.q)


def _bias(s: Binder, att: AttentionLayer) -> Buffer:
    """The buffer of the bias in DDR: one matrix below the other for each sequence and head. Layers with the same bias
    share it."""
    assert att.bias is not None
    bias = att.bias
    rows, keys = (s.seq_blocks_of(name) * BLOCK_ROWS for name in (att.q, att.k))
    batch, heads, *_ = bias.shape

    def stored() -> Array:
        kept = bias[:, :, :rows, :keys]
        out = np.zeros((batch, heads, rows, keys), np.float32)
        out[:, :, : kept.shape[2], : kept.shape[3]] = kept
        return out.reshape(-1, keys)

    return s.shared(
        id(bias), f"{att.path}.scores_bias", (batch * heads * rows, keys), stored, s.bank_of(s.grid.activations)
    )


def _zeros(s: Binder) -> Buffer:
    shape = (BLOCK_ROWS, BLOCK_COLS)
    return s.shared("zeros", "zeros", shape, lambda: np.zeros(shape, np.float32), s.bank_of(s.grid.activations))


def _ones(s: Binder) -> Buffer:
    size = most(s, "residual", "columns")  # of the vector of previous-layer weights, all 1
    return s.shared("ones", "ones", (size,), lambda: np.ones(size, np.float32), s.bank_of(s.grid.weights))


def load_queries(
    s: Binder, att: AttentionLayer, row: int, rows: int, heads: Sequence[int], unit: str, tile: TileAccesses
) -> None:
    """Append the loads of `rows` row tiles of queries, from row block `row` on, of each of `heads`, into the left
    memory `unit`. The head's 64 columns go to the half of the tile where its keys are, zeros to the other half. tile:
    receives the loads."""
    for at in range(row, row + rows):
        for head in heads:
            tile.loads += beside_zeros(s, att.q, at, head, head % 2, unit)


def beside_zeros(s: Binder, name: str, row: int, column: int, half: int, unit: str) -> list[Access]:
    """The loads of a tile with a block (128 rows, 64 columns) of an activation in one half and zeros in the other:
    first the load of the left half. name: of the activation. row, column: of the block, in blocks. half: the one that
    the block takes, 0 (left) or 1. unit: the memory."""
    halves = [s.blocks(name, row, 1, column, 1, unit), s.blocks(_zeros(s).name, 0, 1, 0, 1, unit)]
    return halves[::-1] if half else halves


def load_keys(
    s: Binder, att: AttentionLayer, row: int, rows: int, heads: Sequence[int], unit: str, tile: TileAccesses
) -> None:
    """Append the loads of `rows` key tiles, from row block `row` on, of each of `heads` (at least one), into the right
    memory `unit`, each with the keys of the head and of its neighbour. tile: receives the loads."""
    if len(heads) == 1:
        tile.loads.append(s.blocks(att.k, row, rows, heads[0] & ~1, 2, unit))
        return
    for at in range(row, row + rows):
        tile.loads += [s.blocks(att.k, at, 1, head & ~1, 2, unit) for head in heads]


def send_bias(
    s: Binder,
    att: AttentionLayer,
    sequence: int,
    i: int,
    places: Sequence[tuple[int, int]],
    keys: Sequence[tuple[int, int]],
    tile: TileAccesses,
    first_key: int = 0,
) -> None:
    """Load the bias tiles of the product units of grid row i into its left memory, and send them.

    sequence: its number. places: pairs (head, row block of the sequence). keys: pairs (grid column, number of key
    blocks), for each of `places`, one behind the other from key block `first_key` on. tile: receives the loads.
    """
    grid = pipeline_of(s.overlay).scores
    unit, total = grid.left[i], sum(count for _, count in keys)
    for head, row in places:
        name, start = _first_row(s, att, sequence, head)
        tile.loads.append(s.blocks(name, start + row, 1, 2 * first_key, 2 * total, unit))
        for j, count in keys:
            s.route(grid.left_switch, [(unit, grid.products[i][j])], count)
    pass_tiles(s, unit, len(places) * total)


def score_ops(s: Binder, shapes: Sequence[tuple[tuple[int, int], int, int]], slices: int = 1) -> None:
    """Append the ops of a slot to product units. shapes: for each product unit, ((grid row, grid column), row tiles,
    column tiles). slices: slices of K. If the op before is equal, the number of its row groups is raised instead, and
    the weights are loaded once for both. Raises like `pipeline_of`."""
    grid = pipeline_of(s.overlay).scores
    fresh = []
    for (i, j), rows, columns in shapes:
        ops = s.ops(grid.products[i][j])
        op = Multiply(rows=rows, columns=columns, depth=slices, load_scale=True, scaled=True)
        joined = multiply_as(ops[-1] if ops else None, op, "row_groups", most(s, "matmul", "row_groups"))
        if joined is not None:
            ops.pop()
        else:
            fresh.append((i, j))
        ops.append(joined or op)
    ones = _ones(s)
    for half in sorted({j for _, j in fresh}):
        s.vector(ones, half, 0, ones.size)
    s.route(grid.right_switch, [(grid.right[j], grid.products[i][j]) for i, j in fresh], 1)
