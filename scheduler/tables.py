"""Tables of rotations: a memory of results multiplies what it stores by its table, column by column, and adds what it
makes of the neighbouring column.

A table lies off chip for the rows of the longest sequence, and comes to the memories of results through the product
units: a pass without products, between the receipt of the output tile that needs it and its store. It serves all output
tiles of the same rows until another one is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.errors import UnsupportedError
from ..isa.layout import BLOCK_COLS, BLOCK_ROWS
from ..isa.program import Buffer
from ..isa.work import Multiply
from .binder import Binder, TileAccesses, pass_tiles
from .graph import Array, Gemm, Rotary
from .memory import Columns
from .refusal import require
from .tile import TILE, OutputRows

GROUP = 8
"""Columns of a head that lie together in a table: first their own factors, then those of their partners."""


def place(s: Binder, gemm: Gemm) -> None:
    """Check the rotation of a product that has one (`gemm.rotary`), and place its table in the bank of activations.
    Call before activations are placed. Raises `UnsupportedError` naming the layer."""
    rotary = gemm.rotary
    assert rotary is not None
    rows, pitch = max(s.net.rows_of(gemm.y)), s.overlay.head_pitch(rotary.head_dim)
    unit = s.overlay.by_unit[s.grid.results[0][0]]
    require(gemm.place, f"a rotation of heads of {rotary.head_dim} columns", s.overlay, "rotate", unit, columns=pitch)
    if len(rotary.own) not in (1, *range(rows, len(rotary.own) + 1)):
        raise UnsupportedError(
            f"{gemm.place}: a rotation with a table of {len(rotary.own)} rows; its sequences have {rows}: compile for "
            "shorter sequences"
        )
    if any(p != (c ^ 1) and p != c for c, p in enumerate(rotary.partners)):
        raise UnsupportedError(f"{gemm.place}: partners of its rotation are no neighbours; fold the graph first")
    _ones(s, pitch)
    if rotary.source is None:
        _table(s, gemm)


def _table(s: Binder, gemm: Gemm) -> Buffer:
    rotary = gemm.rotary
    assert rotary is not None
    if rotary.source is not None:
        return s.buffers[rotary.source]
    pitch = s.overlay.head_pitch(rotary.head_dim)
    blocks = 1 if len(rotary.own) == 1 else s.seq_blocks_of(gemm.y)
    shape = blocks * BLOCK_ROWS, 2 * pitch
    key = "table", shape, rotary.key
    bank = s.bank_of(s.grid.activations)
    return s.shared(key, f"{gemm.path}.table", shape, lambda: stored_table(rotary, pitch, shape[0]), bank)


def stored_table(rotary: Rotary, pitch: int, rows: int) -> Array:
    """Arrange a table in the order in which a memory of results takes it: (rows, 2 * pitch), float32. For every 8
    columns come their 8 own factors, then their 8 partner factors. Columns and rows of padding are 0. pitch: columns
    from a head to the next."""
    out = np.zeros((rows, 2 * pitch), np.float32)
    group, column = np.divmod(np.arange(rotary.head_dim), GROUP)
    count = rows if len(rotary.own) == 1 else min(rows, len(rotary.own))
    out[:count, 2 * GROUP * group + column] = rotary.own[:count]
    out[:count, 2 * GROUP * group + GROUP + column] = rotary.partner[:count]
    return out


def _ones(s: Binder, pitch: int) -> Buffer:
    size = 2 * pitch
    return s.shared(
        ("ones", size), f"ones{size}", (size,), lambda: np.ones(size, np.float32), s.bank_of(s.grid.weights)
    )


def positions(s: Binder, gemm: Gemm, row: OutputRows, i: int) -> tuple[int, ...]:
    """The numbers of the row blocks of the table for the `row.acc` row blocks of grid row i, in order. If the table is
    an input, they count all row blocks; else those within their sequence. They are 0 if the table has one row for all,
    and for a layer without a rotation."""
    blocks = range(row.start + i * row.acc, row.start + (i + 1) * row.acc)
    if gemm.rotary is not None and gemm.rotary.source is not None:
        return tuple(blocks)
    if gemm.rotary is None or len(gemm.rotary.own) == 1:
        return (0,) * row.acc
    spans = s.spans_of(gemm.y)
    within = [next((b - at.start for at in spans if at.start <= b < at.start + at.blocks), 0) for b in blocks]
    return tuple(within)


def needed(s: Binder, gemm: Gemm, row: OutputRows, units: Sequence[tuple[int, int]]) -> bool:
    """Whether the memories of results at `units`, each (grid row, grid column), need another table than they have. If
    so, notes that they have it from now on. gemm: with a rotation."""
    assert gemm.rotary is not None
    wanted = {s.grid.results[i][j]: (gemm.rotary.key, positions(s, gemm, row, i)) for i, j in units}
    if all(s.held.get(unit) == table for unit, table in wanted.items()):
        return False
    s.held.update(wanted)
    return True


def bind(s: Binder, gemm: Gemm, row: OutputRows, units: Sequence[tuple[int, int]]) -> None:
    """Append the pass that loads the table of the rows of `row` into the memories of results at `units`, each (grid
    row, grid column). gemm: with a rotation."""
    assert gemm.rotary is not None
    grid, table = s.grid, _table(s, gemm)
    columns = table.shape[1] // TILE
    for i, j in units:
        s.add(grid.products[i][j], Multiply(1, 1, 0, row.acc, columns, load_scale=True, scaled=True))
    ones = _ones(s, table.shape[1] // 2)
    for j in sorted({j for _, j in units}):
        s.vector(ones, j, 0, ones.size)
    s.route(grid.right_switch, [(grid.right[j], grid.products[i][j]) for i, j in units], 1)
    tile = TileAccesses()
    s.tiles.append(tile)
    for i in sorted({i for i, _ in units}):
        for block in positions(s, gemm, row, i):
            tile.loads.append(s.blocks(table.name, block, 1, 0, table.shape[1] // BLOCK_COLS, grid.left[i]))
        pass_tiles(s, grid.left[i], row.acc * columns)
        routes = [(grid.left[i], grid.products[i][j]) for at, j in units if at == i]
        s.route(grid.left_switch, routes, row.acc * columns)


def fresh(row: OutputRows, y: Columns) -> tuple[int, int]:
    """Row tiles and column tiles of a table that a memory of results takes for the output tile of `row`. y: the layout
    of the result."""
    return row.acc, 2 * y.pitch // TILE
