"""Binds matrix products to a grid of product units (paper sections 4.3 and 5.3, contract section 2 "GEMM wiring").

Output-stationary tiles: the left memory of grid row i holds row group i, the right memory of grid column j the columns
of part j; the product unit at (i, j) and the memory behind it compute their product. Product units add the bias and the
previous-layer term; the memory of results applies activation and norm at its store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.layout import BLOCK, BLOCK_COLS, UNIT, padded
from ..isa.program import Buffer
from ..isa.work import Access, Load, Multiply, Receive, RowNorm, Send, Store
from ..machine.description import UnitSpec
from .binder import Binder
from .chain import seconds_of
from .graph import Array, Gemm
from .memory import Columns, stored_vector, stored_weight
from .order import TileAccesses
from .refusal import require
from .schedule import Loops
from .tile import TILE, RowTile, column_tiles, row_tiles


@dataclass(frozen=True)
class _Plan:
    """How a matrix product is cut: into `passes` column tiles of `halves` x `acc_b` column blocks each. k_tiles: slices
    of K, 0 without a product."""

    y: Columns
    k_tiles: int
    passes: int
    halves: int
    acc_b: int


@dataclass(frozen=True)
class _Part:
    """Column tile `n` of a matrix product. weight: of the whole product; None without a product."""

    gemm: Gemm
    plan: _Plan
    weight: Buffer | None
    n: int


@dataclass(frozen=True)
class PlacedGemms:
    """The products of a segment with their weights placed. groups: the column tiles of one MME op each, and the vectors
    (previous-layer weights, bias) that the op loads."""

    gemms: Sequence[Gemm]
    groups: Sequence[tuple[Sequence[_Part], Sequence[Buffer]]]
    loops: Loops


def place_gemms(s: Binder, gemms: Sequence[Gemm], loops: Loops) -> PlacedGemms:
    """Place the weights and vectors of products of one activation in the bank of weights. Raises `UnsupportedError`
    naming the layer if the overlay cannot run it, `ScheduleError` if its tiles cannot."""
    parts = [part for gemm in gemms for part in _parts(s, gemm)]
    groups = [[part] for part in parts] if loops is Loops.COLUMNS else _op_columns(s, parts)
    return PlacedGemms(gemms, [(group, _vectors(s, group)) for group in groups], loops)


def bind_gemms(s: Binder, placed: PlacedGemms) -> None:
    """Append the work of products whose weights are placed.

    Loops.COLUMNS: column tiles outside, row tiles inside. The addresses of a column tile's loads and stores advance by
    constant strides, so that one packet can loop over them. Loops.ROWS: row tiles outside. When a column tile begins,
    the left memories still hold the last slices of K of the tile before, one in each slot, and the new tile takes them
    first. Weights move the same bytes either way (paper section 5.3).
    """
    tiles = row_tiles(s.row_blocks_of(placed.gemms[0].x), s.tiled.cuts[placed.gemms[0].y], s.tiled.limits)
    for group, vectors in placed.groups:
        for rows in _op_runs(s, tiles):
            _gemm_op(s, group, rows, vectors, placed.loops)


def _parts(s: Binder, gemm: Gemm) -> list[_Part]:
    x, y, cut = s.columns[gemm.x], s.columns[gemm.y], s.tiled.cuts[gemm.y]
    what = f"a product over K = {x.count} columns ({x.used // TILE} tiles)"
    require(gemm.place, what, s.overlay, "matmul", depth=x.used // TILE)
    if gemm.residual is not None and (s.columns[gemm.residual].is_plain, y.is_plain) != (True, True):
        raise UnsupportedError(
            f"{gemm.place}: a residual added to attention heads that are padded to {y.pitch} columns is not supported"
        )
    if gemm.activation is not None:
        name = gemm.activation.value
        require(gemm.place, f"activation {name}", s.overlay, name, _result(s))
    if gemm.norm is not None:
        _check_norm(s, gemm, y)
        if cut.mme_cols < s.grid.columns:
            raise ScheduleError(
                f"mme_cols={cut.mme_cols}: the LayerNorm of {gemm.place} needs {s.grid.columns} columns of MMEs"
            )
    passes, halves, acc_b = column_tiles(y.stored // TILE, cut, gemm.norm is not None, s.tiled.limits)
    plan = _Plan(y, x.used // TILE if gemm.multiplies else 0, passes, halves, acc_b)
    cols = passes * halves * acc_b * TILE
    weight = None
    if gemm.multiplies:
        weight = s.weight(f"{gemm.path}.weight", (x.used, cols), lambda: stored_weight(gemm, x, y, cols))
    return [_Part(gemm, plan, weight, n) for n in range(passes)]


def _result(s: Binder) -> UnitSpec:
    """The memory of results that stands for all of the grid."""
    return s.overlay.by_unit[s.grid.results[0][0]]


def _check_norm(s: Binder, gemm: Gemm, y: Columns) -> None:
    assert gemm.norm is not None
    kind, op = ("RMSNorm", "rmsnorm") if gemm.norm.rms else ("LayerNorm", "layernorm")
    require(gemm.place, f"{kind} over {y.count} columns", s.overlay, op, _result(s), columns=y.count)
    require(gemm.place, f"{kind} with eps {gemm.norm.eps:g}", s.overlay, op, _result(s), eps=gemm.norm.eps)
    if y.groups != 1:
        raise UnsupportedError(f"{gemm.place}: {kind} in front of attention heads is not supported")


def _op_columns(s: Binder, parts: Sequence[_Part]) -> list[list[_Part]]:
    """Group column tiles so that one MME op can loop over a group: tiles of equal shape, with biases that fit the
    product unit together. A tile with a residual is a group of its own, because the unit holds previous-layer weights
    for one tile only."""
    out: list[list[_Part]] = []
    most_tiles, most_bias = most(s, "matmul", "column_groups"), most(s, "bias", "columns")
    for part in parts:
        last = out[-1][-1] if out else None
        fits = (
            last is not None
            and part.gemm.residual is None
            and last.gemm.residual is None
            and (part.plan.halves, part.plan.acc_b) == (last.plan.halves, last.plan.acc_b)
            and len(out[-1]) < most_tiles
            and (len(out[-1]) + 1) * part.plan.acc_b * TILE <= most_bias
        )
        if fits:
            out[-1].append(part)
        else:
            out.append([part])
    return out


def most(s: Binder, op: str, size: str) -> int:
    """The upper limit of a size of a capability of the grid's product units."""
    return int(s.overlay.capability_of(s.grid.products[0][0], op).limits[size][1])


def _vectors(s: Binder, group: Sequence[_Part]) -> list[Buffer]:
    """Place the vectors that an op loads: previous-layer weights, bias. In each, the part of grid column 0 comes first,
    tile after tile, then that of column 1 (contract section 3)."""
    part = group[0]
    plan, gemm, size = part.plan, part.gemm, part.plan.acc_b * TILE

    def arranged(vector_of: Callable[[_Part], Array]) -> Array:
        out = np.zeros((plan.halves, _vector_length(s, group)), np.float32)
        for j in range(plan.halves):
            for at, p in enumerate(group):
                start = (p.n * plan.halves + j) * size
                out[j, at * size : (at + 1) * size] = vector_of(p)[start : start + size]
        return out.reshape(-1)

    def stored(p: _Part, vector: Array) -> Array:
        return stored_vector(vector, p.plan.y, p.plan.passes * plan.halves * size)

    shape = (plan.halves * _vector_length(s, group),)
    out = []
    if gemm.residual is not None:
        scale = gemm.residual_scale if gemm.residual_scale is not None else np.ones(plan.y.count, np.float32)
        name = f"{gemm.path}.residual_scale"
        out.append(s.weight(name, shape, lambda: arranged(lambda p: stored(p, scale))))
    if gemm.multiplies:
        out.append(s.weight(f"{gemm.path}.bias", shape, lambda: arranged(lambda p: stored(p, p.gemm.bias))))
    return out


def _vector_length(s: Binder, group: Sequence[_Part]) -> int:
    """Elements of a vector that one right memory loads; more than one piece are padded to whole pieces."""
    length = len(group) * group[0].plan.acc_b * TILE
    piece = int(s.overlay.capability_of(s.grid.weights, "load_vector").limits["piece"][1])
    return length if length <= piece else padded(length, piece)


def _gemm_op(
    s: Binder, group: Sequence[_Part], rows: Sequence[RowTile], vectors: Sequence[Buffer], loops: Loops
) -> None:
    """Append one op for every product unit in use: all row tiles `rows` (equal shapes) times all column tiles of
    `group`. Grid column 0 takes the first part of a tile's columns (contract section 3)."""
    grid, gemm, plan = s.grid, group[0].gemm, group[0].plan
    groups, acc = rows[0].groups, rows[0].acc
    units = [(i, j) for i in range(groups) for j in range(plan.halves)]
    residual = gemm.residual is not None
    op = Multiply(
        row_groups=len(rows),
        column_groups=len(group),
        depth=plan.k_tiles,
        rows=acc,
        columns=plan.acc_b,
        bias=gemm.multiplies,
        load_scale=residual,
        scaled=residual,
    )
    for i, j in units:
        s.add(grid.products[i][j], op)
    size = _vector_length(s, group)
    for v in vectors:
        for j in range(plan.halves):
            s.vector(v, j, j * size, size)
    all_left = [(grid.left[i], grid.products[i][j]) for i, j in units]
    all_right = [(grid.right[j], grid.products[i][j]) for i, j in units]
    s.route(grid.right_switch, all_right, len(vectors))
    slots = _slots(s)
    for row in rows:
        order = list(range(plan.k_tiles))
        for n, part in enumerate(group):
            held = 0
            if n and loops is Loops.ROWS and 0 < slots <= plan.k_tiles:
                held = slots
                order = order[plan.k_tiles - held :] + order[: plan.k_tiles - held]
            tile = TileAccesses(ahead=_loads_ahead(s, part.gemm, plan, row), step=groups)
            s.tiles.append(tile)
            if residual:
                _residual(s, part.gemm, plan, row, part.n, tile)
                tile.head = len(tile.loads)
            _products(s, part, row, tile, order, held)
            for switch, routes in ((grid.left_switch, all_left), (grid.right_switch, all_right)):
                s.route(switch, routes, plan.k_tiles * acc * plan.acc_b)
            _results(s, part.gemm, part.plan, row, part.n, tile)


def _slots(s: Binder) -> int:
    """The number of slots of each left memory; 0 if they differ, because then each holds other slices."""
    found = {s.overlay.memory_of(unit).slots for unit in s.grid.left}
    return found.pop() if len(found) == 1 else 0


def _loads_ahead(s: Binder, gemm: Gemm, plan: _Plan, row: RowTile) -> int:
    """Estimate how many loads of the next tile fit in the time in which the memory of results finishes this one (last
    product, post-op).

    If the stores come earlier, the channel waits for that memory; if later, it idles while the product units consume
    what is loaded.
    """
    if gemm.activation is None and gemm.norm is None:
        return 0
    grid, result = s.grid, _result(s)
    activations, product = (s.overlay.by_unit[u] for u in (grid.activations, grid.products[0][0]))
    block_s = BLOCK * 4 * seconds_of(s.overlay, activations, "load")
    slice_s = seconds_of(s.overlay, product, "matmul") * row.acc * plan.acc_b
    op = "" if gemm.activation is None else gemm.activation.value
    if gemm.norm is not None:
        op = "rmsnorm" if gemm.norm.rms else "layernorm"
    memory, elements = s.overlay.memory_of(result.name), s.overlay.capability_of(result.name, op).elements
    post = memory.rows * memory.columns / elements * seconds_of(s.overlay, result, op)
    left = post * row.acc / 2 + slice_s / 2
    if gemm.residual is not None:
        left -= row.groups * row.acc * plan.halves * plan.acc_b * 2 * block_s
    k_loads = int(left / max(2 * row.acc * block_s, slice_s / row.groups)) if left > 0 else 0
    return k_loads + (row.groups if gemm.residual is not None else 0)


def _residual(s: Binder, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: TileAccesses) -> None:
    """Append loads and sends of the residual's tiles, one left memory after the other, in the order in which its
    product units take them: row tile by row tile, first all columns of grid column 0, then all of column 1."""
    assert gemm.residual is not None
    width = s.columns[gemm.residual].stored // TILE
    first, count = n * plan.halves * plan.acc_b, plan.halves * plan.acc_b
    valid = max(0, min(count, width - first))
    pieces = _panels(s.buffers[gemm.residual], first, valid)
    for i in range(row.groups):
        unit, at = s.grid.left[i], row.start + i * row.acc
        if pieces == [(first, count)]:
            tile.loads.append(s.blocks(gemm.residual, at, row.acc, 2 * first, 2 * count, unit))
        else:
            for a in range(row.acc):
                for start, columns in pieces:
                    tile.loads.append(s.blocks(gemm.residual, at + a, 1, 2 * start, 2 * columns, unit))
                # padded column tiles: any finite tile will do, because its weights are 0
                tile.loads += [s.blocks(gemm.residual, at + a, 1, 0, 2, unit)] * (count - valid)
        pass_tiles(s, unit, row.acc * count)
        for _ in range(row.acc):
            for j in range(plan.halves):
                s.route(s.grid.left_switch, [(unit, s.grid.products[i][j])], plan.acc_b)


def pass_tiles(s: Binder, unit: str, tiles: int) -> None:
    """Append the work of a left memory that loads `tiles` tiles and sends each once, as many at a time as it holds."""
    most_held = s.overlay.memory_of(unit).rows // TILE
    for t in range(0, tiles, most_held):
        held = min(most_held, tiles - t)
        s.turn(unit, Load(TILE * held, TILE, source=s.grid.activations), Send(held, 1))


def _panels(stored: Buffer, first: int, count: int) -> list[tuple[int, int]]:
    """Cut `count` column blocks from `first` on where a panel of the buffer ends. Returns pairs (first, count)."""
    width = stored.shape[1] // TILE
    ends = [*range(first - first % width + width, first + count, width), first + count]
    return [(a, b - a) for a, b in pairwise([first, *ends]) if b > a]


def _products(s: Binder, part: _Part, row: RowTile, tile: TileAccesses, order: Sequence[int], held: int) -> None:
    """Append the K loop of one output tile, over slices of K in the given order: left operands from activations, except
    for the first `held` slices, which the slots of the left memories already hold; right operands from weights, as many
    slices at a time as a slot holds."""
    plan, weight, grid = part.plan, part.weight, s.grid
    if weight is None:
        return
    width = weight.shape[1] // BLOCK_COLS
    acc_b, slices = plan.acc_b, s.tiled.limits.slices
    send, load = Send(row.acc, 1, acc_b), Load(TILE * row.acc, TILE, source=grid.activations)
    rights = {
        count: (Load(TILE * count, TILE * acc_b, source=grid.weights), Send(count, acc_b, row.acc))
        for count in {slices, len(order) % slices}
    }
    fetch = [Access(grid.right[j], False, 0, 2 * acc_b * BLOCK) for j in range(plan.halves)]
    for at_k, k in enumerate(order):
        for i in range(row.groups):
            if at_k >= held:
                tile.loads.append(s.blocks(part.gemm.x, row.start + i * row.acc, row.acc, 2 * k, 2, grid.left[i]))
            s.turn(grid.left[i], load if at_k >= held else None, send)
        for j in range(plan.halves):
            col = (part.n * plan.halves + j) * acc_b * 2
            s.add(grid.weights, fetch[j]._replace(addr=weight.offset * UNIT + (k * width + col) * BLOCK))
            if at_k % slices == 0:
                s.turn(grid.right[j], *rights[min(slices, len(order) - at_k)])


def _results(s: Binder, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: TileAccesses) -> None:
    """Receive, accumulate, apply the post-op and store one output tile."""
    width = plan.y.stored // BLOCK_COLS
    rounds = plan.k_tiles + int(gemm.residual is not None)
    activation = None if gemm.activation is None else gemm.activation.value
    receive = Receive(rounds, row.acc, plan.acc_b)
    for i in range(row.groups):
        for j in range(plan.halves):
            unit = s.grid.results[i][j]
            col = (n * plan.halves + j) * plan.acc_b * 2
            cols = max(0, min(2 * plan.acc_b, width - col))
            norm = None
            if gemm.norm is not None:
                valid = max(0, min(plan.acc_b * TILE, plan.y.count - j * plan.acc_b * TILE))
                norm = RowNorm(valid, gemm.norm.eps, gemm.norm.rms)
            store = Store(TILE * row.acc, BLOCK_COLS * cols, activation, norm)
            # without columns a norm still sends its sums
            s.turn(unit, receive, store if cols or norm is not None else None)
            if cols:
                tile.stores.append(s.blocks(gemm.y, row.start + i * row.acc, row.acc, col, cols, unit, store=True))


def _op_runs(s: Binder, tiles: Sequence[RowTile]) -> list[list[RowTile]]:
    """Group consecutive row tiles of equal shape, at most as many as one MME op can count."""
    out: list[list[RowTile]] = []
    most_runs = most(s, "matmul", "row_groups")
    for t in tiles:
        if out and len(out[-1]) < most_runs and (out[-1][0].groups, out[-1][0].acc) == (t.groups, t.acc):
            out[-1].append(t)
        else:
            out.append([t])
    return out
