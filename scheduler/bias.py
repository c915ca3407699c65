"""Attention with a bias on its scores, by the previous-layer term of MME 0-3 (end of contract section 7).

An MME emits the tiles of the bias, times 1, before the products, and MemC adds both. This needs K = 128 mode, while a
head has 64 columns: one tile holds the keys of two neighbouring heads, and the queries of the other head are 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..isa.layout import BLOCK_COLS, BLOCK_ROWS
from ..isa.overlays.xnn import formats as f
from ..isa.program import Buffer
from .counts import MAX_A_ITER
from .graph import Array, AttentionLayer
from .kernel_builder import KernelBuilder, WorkItem
from .order import Tile

ONES = 512
"""Length of the vector of previous-layer weights, all 1: the columns of an MME."""
HELD = 2
"""Tiles of 128x128 that a MemA holds."""


def place(s: KernelBuilder, att: AttentionLayer) -> None:
    """Place the constants of an attention with a bias off chip: the bias, a block of zeros, and the previous-layer
    weights. Call before activations are placed."""
    _bias(s, att)
    _zeros(s)
    _ones(s)


def _bias(s: KernelBuilder, att: AttentionLayer) -> Buffer:
    """The buffer of the bias in DDR: one matrix below the other for each sequence and head. Layers with the same bias
    share it."""
    assert att.bias is not None
    bias, size = att.bias, s.seq_blocks * BLOCK_ROWS
    batch, heads, *_ = bias.shape

    def stored() -> Array:
        kept = bias[:, :, :size, :size]
        out = np.zeros((batch, heads, size, size), np.float32)
        out[:, :, : kept.shape[2], : kept.shape[3]] = kept
        return out.reshape(-1, size)

    return s.shared(id(bias), f"{att.path}.scores_bias", (batch * heads * size, size), stored, "ddr")


def _zeros(s: KernelBuilder) -> Buffer:
    shape = (BLOCK_ROWS, BLOCK_COLS)
    return s.shared("zeros", "zeros", shape, lambda: np.zeros(shape, np.float32), "ddr")


def _ones(s: KernelBuilder) -> Buffer:
    return s.shared("ones", "ones", (ONES,), lambda: np.ones(ONES, np.float32), "lpddr")


def load_queries(
    s: KernelBuilder, att: AttentionLayer, row: int, rows: int, heads: Sequence[int], unit: str, tile: Tile
) -> None:
    """Load row tiles of queries into a MemA. The head's 64 columns go to the half of the tile where its keys are, zeros
    to the other half. row: first of `rows` row blocks."""
    for at in range(row, row + rows):
        for head in heads:
            halves = [s.blocks(att.q, at, 1, head, 1, unit), s.blocks(_zeros(s).name, 0, 1, 0, 1, unit)]
            tile.loads += reversed(halves) if head % 2 else halves


def load_keys(
    s: KernelBuilder, att: AttentionLayer, row: int, rows: int, heads: Sequence[int], unit: str, tile: Tile
) -> None:
    """Load key tiles into a MemB, each with the keys of the head and of its neighbour. row: first of `rows` row
    blocks."""
    if len(heads) == 1:
        tile.loads.append(s.blocks(att.k, row, rows, heads[0] & ~1, 2, unit))
        return
    for at in range(row, row + rows):
        tile.loads += [s.blocks(att.k, at, 1, head & ~1, 2, unit) for head in heads]


def send_bias(
    s: KernelBuilder,
    att: AttentionLayer,
    sequence: int,
    i: int,
    places: Sequence[tuple[int, int]],
    keys: Sequence[tuple[int, int]],
    tile: Tile,
) -> None:
    """Load the bias tiles of MME 2i and 2i+1 into MemA i, and send them.

    places: pairs (head, row block of the sequence). keys: pairs (MME, number of key blocks), for each of `places`. MemA
    holds two tiles at a time.
    """
    assert att.bias is not None
    batch, heads, *_ = att.bias.shape
    unit, name, total = f"MemA{i}", _bias(s, att).name, sum(count for _, count in keys)
    for head, row in places:
        at = (sequence % batch * heads + head % heads) * s.seq_blocks + row
        tile.loads.append(s.blocks(name, at, 1, 0, 2 * total, unit))
        for mme, count in keys:
            s.route("MeshA", [f"a{i}_{mme}"], count)
    tiles = len(places) * total
    for t in range(0, tiles, HELD):
        held = min(HELD, tiles - t)
        s.mem[unit].append(
            WorkItem({"load": 1, "dim1": 128 * held, "dim2": 128}, {"send": 1, "acc_a": held, "acc_b": 1})
        )


def score_ops(s: KernelBuilder, shapes: Sequence[tuple[int, int, int]]) -> None:
    """Append the MME ops of a slot. shapes: (MME, acc_a, acc_b). An op equal to the one before raises that one's a_iter
    instead, and the weights are loaded once for both."""
    fresh = []
    for mme, acc_a, acc_b in shapes:
        ops = s.mme[f"MME{mme}"]
        op = f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=acc_a, acc_b=acc_b, n128=1, k128=1, load_prev=1, prev=1)
        if ops and ops[-1].a_iter < MAX_A_ITER and ops[-1].replace(a_iter=1) == op:
            op = op.replace(a_iter=ops.pop().a_iter + 1)
        else:
            fresh.append(mme)
        ops.append(op)
    for half in sorted({mme % 2 for mme in fresh}):
        s.vector(_ones(s), half, 0, ONES)
    s.route("MeshB", [f"b{mme % 2}_{mme}" for mme in fresh], 1)
