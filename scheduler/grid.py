"""Binds matrix products to a grid of product units (paper sections 4.3 and 5.3, contract section 2 "GEMM wiring").

Output-stationary tiles: the left memory of grid row i holds row group i, the right memory of grid column j the columns
of part j; the product unit at (i, j) and the memory behind it compute their product. Product units add the bias and the
previous-layer term; the memory of results applies activation and norm at its store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.layout import BLOCK, BLOCK_COLS, QUARTER, UNIT, padded
from ..isa.program import Buffer
from ..isa.work import Access, Load, LoadNorm, Multiply, Receive, Rotation, RowNorm, RowStore, Send, Store
from ..machine.description import UnitSpec
from . import tables
from .binder import (
    Binder,
    TileAccesses,
    check_norms,
    fresh_statistics,
    load_norm,
    pass_tiles,
    statistics_at,
    statistics_name,
)
from .chain import seconds_of
from .graph import Array, Gemm, Norm
from .memory import Columns, stored_vector, stored_weight
from .refusal import require
from .schedule import Loops, Tiles
from .tile import TILE, OutputRows, StoredStatistics, column_tiles, product_tiles, row_tiles

# -- how a product is cut ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ProductCut:
    """How a matrix product is cut: into `passes` column tiles, each of `acc_b` blocks of 128 columns in each of
    `halves` grid columns.

    y: the layout of the result. k_tiles: slices of 128 of K, 0 without a product. gated: the left part of what a memory
    of results receives is the gate of the right part. statistics: what it stores behind the elements; None for nothing.
    no_data: it stores statistics alone.
    """

    y: Columns
    k_tiles: int
    passes: int
    halves: int
    acc_b: int
    gated: bool = False
    statistics: StoredStatistics | None = None
    no_data: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Grid columns in use, and column blocks in each. One op can compute tiles of equal shapes."""
        return self.halves, self.acc_b

    @property
    def columns(self) -> int:
        """Columns that the product computes, padding included. A gated product computes those of the gate as well."""
        return self.passes * self.halves * self.acc_b * TILE

    @property
    def width(self) -> int:
        """Columns of the result in one memory of a column tile; half of what it receives if the product is gated."""
        return self.acc_b * TILE // (2 if self.gated else 1)

    def first(self, n: int, j: int) -> int:
        """The number of the first stored column of the result that the memory of grid column j gets of
        column tile n."""
        return (n * self.halves + j) * self.width

    def held(self, n: int, j: int, columns: int) -> int:
        """How many stored columns of the result the memory of grid column j gets of column tile n, if the result has
        `columns` stored columns."""
        return max(0, min(self.width, columns - self.first(n, j)))

    @cached_property
    def positions(self) -> npt.NDArray[np.intp]:
        """The column at which each column of the weight is computed, shape (columns of the weight,). A gated product
        has, for each memory, first the columns of the gate and directly behind them the columns that are multiplied by
        the gate."""
        at = self.y.positions()
        if not self.gated:
            return at
        part, column = np.divmod(at, self.width)
        held = np.minimum(self.width, self.y.stored - part * self.width)
        gate = part * 2 * self.width + column
        return np.concatenate([gate, gate + held])


@dataclass(frozen=True)
class ColumnTile:
    """Column tile number `n` of the matrix product `gemm`, which is cut as `plan` says. weight: the buffer of the whole
    product's weight; None without a product."""

    gemm: Gemm
    plan: ProductCut
    weight: Buffer | None
    n: int


def vectors(s: Binder, group: Sequence[ColumnTile]) -> list[Buffer]:
    """Place the vectors that an op loads: previous-layer weights and bias; for a sum, the weights of each operand.
    Returns their buffers, in the order in which the op takes them.

    group: the column tiles of the op, at least one. In each vector, the part of grid column 0 comes first, tile after
    tile, then that of column 1 (contract section 3)."""
    part = group[0]
    plan, gemm, size = part.plan, part.gemm, part.plan.acc_b * TILE

    def arranged(vector_of: Callable[[ColumnTile], Array]) -> Array:
        out = np.zeros((plan.halves, vector_length(s, group)), np.float32)
        for j in range(plan.halves):
            for at, p in enumerate(group):
                start = (p.n * plan.halves + j) * size
                out[j, at * size : (at + 1) * size] = vector_of(p)[start : start + size]
        return out.reshape(-1)

    def stored(p: ColumnTile, vector: Array) -> Array:
        return stored_vector(vector, p.plan.positions, p.plan.columns)

    shape = (plan.halves * vector_length(s, group),)
    out = []
    ones = np.ones(plan.y.count, np.float32)
    if gemm.residual is not None:
        scale = gemm.residual_scale if gemm.residual_scale is not None else ones
        name = f"{gemm.path}.residual_scale"
        out.append(s.weight(name, shape, lambda: arranged(lambda p: stored(p, scale))))
    if gemm.is_sum:
        out.append(s.weight(f"{gemm.path}.x_scale", shape, lambda: arranged(lambda p: stored(p, ones))))
    if gemm.multiplies:
        out.append(s.weight(f"{gemm.path}.bias", shape, lambda: arranged(lambda p: stored(p, p.gemm.bias))))
    return out


def vector_length(s: Binder, group: Sequence[ColumnTile]) -> int:
    """Return how many float32 elements of a vector one right memory loads for the column tiles of an op, padding
    included. group: these column tiles, at least one. One load takes at most as many elements as the limit `piece` of
    the capability `load_vector` says; a longer vector is padded to a multiple of that."""
    length = len(group) * group[0].plan.acc_b * TILE
    piece = int(s.overlay.capability_of(s.grid.weights, "load_vector").limits["piece"][1])
    return length if length <= piece else padded(length, piece)


MANY_TILES = 64
"""Column tiles beyond which row tiles are outside, whatever the schedule: the ops of several column tiles are then one,
because a product unit holds few hundred ops."""
STATISTICS_EPS = 1e-6
"""Statistics do not depend on it; registers have it at power-on."""


@dataclass(frozen=True)
class PlacedGemms:
    """The products of a segment with their weights placed. gemms: the products, all of one activation. groups: for each
    MME op its column tiles, and the vectors (previous-layer weights, bias) that it loads. loops: which loop over output
    tiles is outside. tiles: how the products are cut. passes: passes that come before the products, one over each
    operand that needs statistics and whose own product does not make them."""

    gemms: Sequence[Gemm]
    groups: Sequence[tuple[Sequence[ColumnTile], Sequence[Buffer]]]
    loops: Loops
    tiles: Tiles
    passes: Sequence[PlacedGemms] = ()


def place_gemms(s: Binder, gemms: Sequence[Gemm], loops: Loops) -> PlacedGemms:
    """Place the weights and vectors of products of one activation in the bank of weights. gemms: at least one product.
    loops: which loop is outside; Loops.ROWS is taken in any case for many column tiles, normalised operands and
    rotations. Raises `UnsupportedError` naming the layer if the overlay cannot run it, `ScheduleError` if its tiles
    cannot."""
    passes = [_statistics_pass(s, gemm.place, name) for gemm in gemms for name in _without_statistics(s, gemm)]
    parts = [part for gemm in gemms for part in _parts(s, gemm)]
    # an op ends where a table is loaded: what needs none comes before, and shares the op of the first tile that does
    parts.sort(key=lambda part: (part.gemm.rotary is not None, part.plan.passes) if _tabled(gemms) else (False, 0))
    if len(parts) > MANY_TILES or any(gemm.x_norm is not None or gemm.rotary is not None for gemm in gemms):
        loops = Loops.ROWS  # fewer ops; statistics and tables come once for several output tiles
    groups = [[part] for part in parts] if loops is Loops.COLUMNS else _op_columns(s, parts)
    made = [(group, vectors(s, group)) for group in groups]
    return PlacedGemms(gemms, made, loops, s.tiled.cuts[gemms[0].y], passes)


def _without_statistics(s: Binder, gemm: Gemm) -> list[str]:
    """The operands that a layer is the first to normalise, and whose statistics no product makes."""
    names = dict.fromkeys(
        str(name) for name, norm in ((gemm.x, gemm.x_norm), (gemm.residual, gemm.residual_norm)) if norm is not None
    )
    out = [name for name in names if not s.tiled.statistics[name].at_store and name not in s.passed]
    s.passed.update(out)
    return out


def _statistics_pass(s: Binder, place: str, name: str) -> PlacedGemms:
    """A pass over an activation that stores its statistics alone. place: the layer that needs them, for messages."""
    x, statistics = s.columns[name], s.tiled.statistics[name]
    if x.count != x.end:
        raise UnsupportedError(f"{place}: a norm over {name}, which lies in heads with padding between them")
    none, zeros = np.zeros((0, x.count), np.float32), np.zeros(x.count, np.float32)
    gemm = Gemm(statistics_name(name), name, name, none, zeros, residual=name)
    cut = s.tiled.limits.fit(Tiles())
    passes, halves, acc_b = column_tiles(x.stored // TILE, cut, False, s.tiled.limits, pairs=True)
    plan = ProductCut(x, 0, passes, halves, acc_b, statistics=statistics, no_data=True)
    groups = [[ColumnTile(gemm, plan, None, n)] for n in range(passes)]
    return PlacedGemms([gemm], [(group, vectors(s, group)) for group in groups], Loops.COLUMNS, cut)


def bind_gemms(s: Binder, placed: PlacedGemms) -> None:
    """Append the work of products whose weights are placed.

    Loops.COLUMNS: column tiles outside, row tiles inside. The addresses of a column tile's loads and stores advance by
    constant strides, so that one packet can loop over them. Loops.ROWS: row tiles outside. When a column tile begins,
    the left memories still hold the last slices of K of the tile before, one in each slot, and the new tile takes them
    first. Weights move the same bytes either way (paper section 5.3).

    An op covers a single row tile if a product has a table, if an output tile takes several ops, or if the ops of a
    segment keep slices for each other."""
    for before in placed.passes:
        bind_gemms(s, before)
    tiles = row_tiles(s.row_blocks_of(placed.gemms[0].x), placed.tiles, s.tiled.limits)
    split = [any(_is_split(s, part) for part in group) for group, _ in placed.groups]
    if placed.loops is Loops.ROWS and (_tabled(placed.gemms) or _keeps_slices(s, placed)):
        for row in tiles:  # a table, statistics and slices in left memories serve all output tiles of their rows
            order = None
            for group, loaded in placed.groups:
                order = _gemm_op(s, group, [row], loaded, placed.loops, order)
        return
    for (group, loaded), apart in zip(placed.groups, split, strict=True):
        for rows in [[row] for row in tiles] if apart else _op_runs(s, tiles):
            _gemm_op(s, group, rows, loaded, placed.loops)


def _keeps_slices(s: Binder, placed: PlacedGemms) -> bool:
    """Whether the left memories keep slices from one op of a segment to the next: if it has several ops for the same
    rows, nothing but slices comes in between, and the schedule and the number of ops allow it."""
    if not s.keeps_slices or s.schedule.loops is not Loops.ROWS or len(placed.groups) == 1:
        return False
    return all(gemm.multiplies and gemm.residual is None for gemm in placed.gemms)


def _tabled(gemms: Sequence[Gemm]) -> bool:
    return any(gemm.rotary is not None for gemm in gemms)


def _is_split(s: Binder, part: ColumnTile) -> bool:
    """Whether ops of a part go over one row tile each: there is something between them, or several in each."""
    return part.gemm.rotary is not None or _has_several_ops(s, part)


def _has_several_ops(s: Binder, part: ColumnTile) -> bool:
    return part.gemm.is_sum or part.plan.k_tiles > most(s, "matmul", "depth")


def _parts(s: Binder, gemm: Gemm) -> list[ColumnTile]:
    x, y, cut = s.columns[gemm.x], s.columns[gemm.y], s.tiled.cuts[gemm.y]
    _check(s, gemm, y)
    if gemm.norm is not None and not gemm.in_heads and cut.mme_cols < s.grid.columns:
        raise ScheduleError(
            f"mme_cols={cut.mme_cols}: the LayerNorm of {gemm.place} needs {s.grid.columns} columns of MMEs"
        )
    statistics = s.tiled.statistics.get(gemm.y)
    made = statistics if statistics is not None and statistics.at_store else None
    passes, halves, acc_b = product_tiles(gemm, y, cut, s.tiled.limits, s.tiled.statistics)
    plan = ProductCut(y, x.used // TILE if gemm.multiplies else 0, passes, halves, acc_b, gemm.gated, made)
    weight = None
    if gemm.multiplies:
        shape = x.used, plan.columns
        weight = s.weight(f"{gemm.path}.weight", shape, lambda: stored_weight(gemm, x, plan.positions, plan.columns))
    return [ColumnTile(gemm, plan, weight, n) for n in range(passes)]


def _check(s: Binder, gemm: Gemm, y: Columns) -> None:
    """Raise `UnsupportedError` naming the layer for what the overlay cannot compute."""
    x = s.columns[gemm.x]
    if not gemm.multiplies and gemm.residual is None:
        raise UnsupportedError(f"{gemm.place}: neither a product nor a residual")
    what = f"a product over K = {x.count} columns ({x.used // TILE} tiles)"
    if s.overlay.capability("normalise") is None:  # others split it over several ops
        require(gemm.place, what, s.overlay, "matmul", depth=x.used // TILE)
    operands = [x] if gemm.is_sum else []
    operands += [s.columns[gemm.residual]] if gemm.residual is not None else []
    if operands and not all(each.is_plain for each in (*operands, y)):
        raise UnsupportedError(
            f"{gemm.place}: a residual added to attention heads that are padded to {y.pitch} columns is not supported"
        )
    if gemm.activation is not None:
        name = gemm.activation.value
        require(gemm.place, f"activation {name}", s.overlay, name, _result(s))
    if gemm.norm is not None:
        _check_norm(s, gemm, y)
    if gemm.gated:
        others = gemm.norm, gemm.rotary, gemm.residual
        if any(other is not None for other in others):
            raise UnsupportedError(f"{gemm.place}: a gated product with a norm, a rotation or a residual")
        columns = min(most(s, "matmul", "columns"), s.tiled.limits.cols) * TILE // 2
        require(gemm.place, "a product times its activated gate", s.overlay, "gate", _result(s), columns=columns)
        if not y.is_plain:
            raise UnsupportedError(f"{gemm.place}: a gated product in front of attention heads is not supported")
    if gemm.rotary is not None and not gemm.in_heads:
        raise UnsupportedError(f"{gemm.place}: a rotation of a product without heads; set its number of heads")
    if gemm.in_heads and (gemm.activation is not None or gemm.residual is not None):
        raise UnsupportedError(f"{gemm.place}: a norm or a rotation of heads behind an activation or a residual")
    check_norms(s, gemm)


def _result(s: Binder) -> UnitSpec:
    """The memory of results at (0, 0), whose capabilities all of the grid have."""
    return s.overlay.by_unit[s.grid.results[0][0]]


def _check_norm(s: Binder, gemm: Gemm, y: Columns) -> None:
    assert gemm.norm is not None
    kind, op = ("RMSNorm", "rmsnorm") if gemm.norm.rms else ("LayerNorm", "layernorm")
    require(gemm.place, f"{kind} with eps {gemm.norm.eps:g}", s.overlay, op, _result(s), eps=gemm.norm.eps)
    if gemm.in_heads:
        what = f"{kind} over each of {y.groups} heads of {y.width} columns"
        require(gemm.place, what, s.overlay, "head_norm", _result(s), columns=y.pitch)
        return
    require(gemm.place, f"{kind} over {y.count} columns", s.overlay, op, _result(s), columns=y.count)
    if y.groups != 1:
        raise UnsupportedError(f"{gemm.place}: {kind} in front of attention heads is not supported")


def _op_columns(s: Binder, parts: Sequence[ColumnTile]) -> list[list[ColumnTile]]:
    """Group column tiles so that one MME op can loop over a group: tiles of equal shape, with biases that fit the
    product unit together. A tile with a residual is a group of its own, because the unit holds previous-layer weights
    for one tile only."""
    out: list[list[ColumnTile]] = []
    most_tiles, most_bias = most(s, "matmul", "column_groups"), most(s, "bias", "columns")
    table: tuple[str, frozenset[int]] | None = None
    begins_table = False
    """The part before may take a table between its product and the next one."""
    for part in parts:
        last = out[-1][-1] if out else None
        fits = (
            last is not None
            and part.gemm.residual is None
            and last.gemm.residual is None
            and part.plan.shape == last.plan.shape
            and not _has_several_ops(s, part)
            and not begins_table
            and len(out[-1]) < most_tiles
            and (len(out[-1]) + 1) * part.plan.acc_b * TILE <= most_bias
        )
        if fits:
            out[-1].append(part)
        else:
            out.append([part])
        begins_table, rotary = False, part.gemm.rotary
        if rotary is not None:
            halves = frozenset(j for j in range(part.plan.halves) if part.plan.held(part.n, j, part.plan.y.stored))
            begins_table = table is None or table[0] != rotary.key or not halves <= table[1]
            table = (rotary.key, halves) if begins_table else table
    return out


def most(s: Binder, op: str, size: str) -> int:
    """The upper limit of a size of a capability of the grid's product units. op: the capability. size: the name of the
    size. Raises `ProgramError` if the units lack the capability, `KeyError` if it has no limit for the size."""
    return int(s.overlay.capability_of(s.grid.products[0][0], op).limits[size][1])


def _gemm_op(
    s: Binder,
    group: Sequence[ColumnTile],
    rows: Sequence[OutputRows],
    loaded: Sequence[Buffer],
    loops: Loops,
    before: Sequence[int] | None = None,
) -> Sequence[int] | None:
    """Append one op for every product unit in use, or several if there is one row tile: all row tiles `rows` (equal
    shapes) times all column tiles of `group`. Grid column 0 takes the first part of a tile's columns (contract section
    3).

    before: the order of slices of K in the tile before, if that is of the same rows, so that the left memories still
    hold the last ones. Returns that order for the next op, None if something else came behind.
    """
    grid, gemm, plan = s.grid, group[0].gemm, group[0].plan
    groups, acc = rows[0].groups, rows[0].acc
    order: list[int] = []
    units = [(i, j) for i in range(groups) for j in range(plan.halves)]
    for op in _ops(s, group, rows):
        for i, j in units:
            s.add(grid.products[i][j], op)
    size = vector_length(s, group)
    for v in loaded:
        for j in range(plan.halves):
            s.vector(v, j, j * size, size)
    all_left = [(grid.left[i], grid.products[i][j]) for i, j in units]
    all_right = [(grid.right[j], grid.products[i][j]) for i, j in units]
    s.route(grid.right_switch, all_right, len(loaded))
    slots = _slots(s)
    for row in rows:
        order = list(range(plan.k_tiles) if before is None else before)
        for n, part in enumerate(group):
            held = 0
            if (n or before is not None) and loops is Loops.ROWS and 0 < slots <= plan.k_tiles:
                held = slots
                order = order[plan.k_tiles - held :] + order[: plan.k_tiles - held]
            tile = TileAccesses(ahead=_loads_ahead(s, part.gemm, plan, row), step=groups)
            s.tiles.append(tile)
            if gemm.residual is not None:
                _operand(s, gemm.residual, gemm.residual_norm, part, row, tile)
            if gemm.is_sum:
                _operand(s, gemm.x, gemm.x_norm, part, row, tile)
            fresh = [0] * groups
            if gemm.multiplies:
                fresh = [fresh_statistics(s, gemm.x, gemm.x_norm, row, i, tile) for i in range(groups)]
            tile.head = len(tile.loads)
            _products(s, part, row, tile, order, held, fresh)
            for switch, routes in ((grid.left_switch, all_left), (grid.right_switch, all_right)):
                s.route(switch, routes, plan.k_tiles * acc * plan.acc_b)
            stored = [(i, j) for i, j in units if part.plan.held(part.n, j, part.plan.y.stored)]
            table = part.gemm.rotary is not None and tables.needed(s, part.gemm, row, stored)
            _results(s, part, row, tile, table)
            if table:
                assert part is group[-1], "an op goes on behind a product whose store waits for a table"
                tile.lag = 2  # not among the loads of the table: the products behind it need not wait for the store
                tables.bind(s, part.gemm, row, stored)
                return None
    return order if gemm.residual is None and gemm.multiplies else None


def _ops(s: Binder, group: Sequence[ColumnTile], rows: Sequence[OutputRows]) -> list[Multiply]:
    """The ops of a product unit for these row tiles and column tiles: one, but for sums, which have one for each
    operand, and for products over more slices of K than an op counts."""
    gemm, plan = group[0].gemm, group[0].plan
    residual = gemm.residual is not None
    op = Multiply(
        row_groups=len(rows),
        column_groups=len(group),
        depth=plan.k_tiles,
        rows=rows[0].acc,
        columns=plan.acc_b,
        bias=gemm.multiplies,
        load_scale=residual,
        scaled=residual,
    )
    if gemm.is_sum:
        return [op, op]
    deepest = most(s, "matmul", "depth")
    out = [op._replace(depth=min(plan.k_tiles, deepest))]
    for at in range(deepest, plan.k_tiles, deepest):
        more = min(deepest, plan.k_tiles - at)
        out.append(op._replace(depth=more, bias=False, load_scale=False, scaled=False))
    return out


def _slots(s: Binder) -> int:
    """The number of slots of each left memory; 0 if they differ, because then each holds other slices."""
    found = {s.overlay.memory_of(unit).slots for unit in s.grid.left}
    return found.pop() if len(found) == 1 else 0


def _loads_ahead(s: Binder, gemm: Gemm, plan: ProductCut, row: OutputRows) -> int:
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


def _operand(s: Binder, name: str, norm: Norm | None, part: ColumnTile, row: OutputRows, tile: TileAccesses) -> None:
    """Append loads and sends of the tiles of a residual, one left memory after the other, in the order in which its
    product units take them: row tile by row tile, first all columns of grid column 0, then all of column 1. norm: is
    applied to the rows as they are loaded."""
    plan = part.plan
    width = s.columns[name].stored // TILE
    first, count = part.n * plan.halves * plan.acc_b, plan.halves * plan.acc_b
    valid = max(0, min(count, width - first))
    pieces = _panels(s.buffers[name], first, valid)
    for i in range(row.groups):
        unit, at = s.grid.left[i], row.start + i * row.acc
        fresh = fresh_statistics(s, name, norm, row, i, tile)
        if pieces == [(first, count)]:
            tile.loads.append(s.blocks(name, at, row.acc, 2 * first, 2 * count, unit))
        else:
            for a in range(row.acc):
                for start, columns in pieces:
                    tile.loads.append(s.blocks(name, at + a, 1, 2 * start, 2 * columns, unit))
                # padded column tiles: any finite tile will do, because its weights are 0
                tile.loads += [s.blocks(name, at + a, 1, 0, 2, unit)] * (count - valid)

        def norm_of(t: int, held: int, fresh: int = fresh) -> LoadNorm | None:
            top, bottom = t // count, (t + held - 1) // count
            return load_norm(s, name, norm, 0 if t else fresh, top, top == bottom)

        pass_tiles(s, unit, row.acc * count, norm_of)
        for _ in range(row.acc):
            for j in range(plan.halves):
                s.route(s.grid.left_switch, [(unit, s.grid.products[i][j])], plan.acc_b)


def _panels(stored: Buffer, first: int, count: int) -> list[tuple[int, int]]:
    """Cut `count` column blocks from `first` on where a panel of the buffer ends. Returns pairs (first, count)."""
    width = stored.shape[1] // TILE
    ends = [*range(first - first % width + width, first + count, width), first + count]
    return [(a, b - a) for a, b in pairwise([first, *ends]) if b > a]


def _products(
    s: Binder,
    part: ColumnTile,
    row: OutputRows,
    tile: TileAccesses,
    order: Sequence[int],
    held: int,
    fresh: Sequence[int],
) -> None:
    """Append the K loop of one output tile, over slices of K in the given order: left operands from activations, except
    for the first `held` slices, which the slots of the left memories already hold; right operands from weights, as many
    slices at a time as a slot holds. fresh: row tiles whose statistics each left memory takes before its first load."""
    plan, weight, grid = part.plan, part.weight, s.grid
    if weight is None:
        return
    width = weight.shape[1] // BLOCK_COLS
    acc_b, slices = plan.acc_b, s.tiled.limits.slices
    gemm, send = part.gemm, Send(row.acc, 1, acc_b)

    def load(statistics: int) -> Load:
        norm = load_norm(s, gemm.x, gemm.x_norm, statistics)
        return Load(TILE * row.acc, TILE, source=grid.activations, norm=norm)

    known, first = load(0), [load(n) for n in fresh]
    rights = {
        count: (Load(TILE * count, TILE * acc_b, source=grid.weights), Send(count, acc_b, row.acc))
        for count in {slices, len(order) % slices}
    }
    fetch = [Access(grid.right[j], False, 0, 2 * acc_b * BLOCK) for j in range(plan.halves)]
    for at_k, k in enumerate(order):
        for i in range(row.groups):
            if at_k >= held:
                tile.loads.append(s.blocks(part.gemm.x, row.start + i * row.acc, row.acc, 2 * k, 2, grid.left[i]))
            s.turn(grid.left[i], (known if at_k else first[i]) if at_k >= held else None, send)
        for j in range(plan.halves):
            col = (part.n * plan.halves + j) * acc_b * 2
            s.add(grid.weights, fetch[j]._replace(addr=weight.offset * UNIT + (k * width + col) * BLOCK))
            if at_k % slices == 0:
                s.turn(grid.right[j], *rights[min(slices, len(order) - at_k)])


def _results(s: Binder, part: ColumnTile, row: OutputRows, tile: TileAccesses, table: bool) -> None:
    """Receive, accumulate, apply the post-op and store one output tile. table: a table comes before the store."""
    gemm, plan, n = part.gemm, part.plan, part.n
    rounds = plan.k_tiles + int(gemm.residual is not None) + int(gemm.is_sum)
    activation = None if gemm.activation is None else gemm.activation.value
    if plan.gated and activation is None:
        activation = "identity"
    rotation = None
    if gemm.rotary is not None:
        rotation = Rotation(plan.y.pitch, tables.fresh(row, plan.y) if table else (0, 0))
    receive = Receive(rounds, row.acc, plan.acc_b)
    for i in range(row.groups):
        for j in range(plan.halves):
            unit = s.grid.results[i][j]
            col = plan.first(n, j) // BLOCK_COLS
            cols = 0 if plan.no_data else plan.held(n, j, plan.y.stored) // BLOCK_COLS
            norm = None
            if gemm.norm is not None and gemm.in_heads:
                norm = RowNorm(plan.y.width, gemm.norm.eps, gemm.norm.rms, plan.y.pitch)
            elif gemm.norm is not None:
                norm = RowNorm(plan.held(n, j, plan.y.count), gemm.norm.eps, gemm.norm.rms)
            elif plan.statistics is not None:
                norm = RowNorm(plan.held(n, j, plan.y.count), STATISTICS_EPS, plan.statistics.rms)
            store = Store(
                TILE * row.acc,
                BLOCK_COLS * cols,
                activation,
                norm,
                gate=plan.gated,
                statistics=plan.statistics is not None,
                rotation=rotation,
            )
            # without columns a norm still sends its sums
            whole = norm is not None and not gemm.in_heads
            s.turn(unit, receive, store if cols or whole else None)
            at = row.start + i * row.acc
            if cols and (gemm.into is not None or gemm.y in (s.tiled.apart or ())):
                tile.stores += _rows_apart(s, gemm, range(at, at + row.acc), col, cols, unit)
            elif cols:
                tile.stores.append(s.blocks(gemm.y, at, row.acc, col, cols, unit, store=True))
            if plan.statistics is not None and j == 0:
                first, step = statistics_at(s, gemm.y, at, n), plan.statistics.parts * QUARTER
                tile.stores.append(Access(unit, True, first, QUARTER, row.acc, step))


def _rows_apart(s: Binder, gemm: Gemm, blocks: range, col: int, cols: int, unit: str) -> Iterator[RowStore]:
    """Store the rows of some row blocks, from block column `col` on, each for its own sequence: as row 0 of a block, or
    as new rows of a buffer that keeps its contents. Entry b of the table of rows says where sequence b takes them."""
    target = s.buffers[gemm.target]
    width = target.shape[1] // BLOCK_COLS
    new, spans = s.tiled.rows_of(gemm.x), s.spans_of(gemm.target)

    def store(b: int, **fields: int) -> RowStore:
        first = target.offset * UNIT + (spans[b].start * width + col) * BLOCK
        entry = None if gemm.into is None else b + len(spans) * s.net.state_rows.index(s.net.seq_of(gemm.into))
        return RowStore(unit, first, pitch=width * BLOCK, limit=spans[b].rows, entry=entry, blocks=cols, **fields)

    if new.together:
        yield store(0, chunks=len(spans), chunk_stride=spans[0].blocks * width * BLOCK)
        return
    for block in blocks:
        b = next(i for i, span in enumerate(new.spans) if span.start <= block < span.start + span.blocks)
        above = (block - new.spans[b].start) * TILE
        yield store(b, row=above, rows=min(TILE, new.spans[b].rows - above))


def _op_runs(s: Binder, tiles: Sequence[OutputRows]) -> list[list[OutputRows]]:
    """Group consecutive row tiles of equal shape, at most as many as one MME op can count."""
    out: list[list[OutputRows]] = []
    most_runs = most(s, "matmul", "row_groups")
    for t in tiles:
        if out and len(out[-1]) < most_runs and (out[-1][0].groups, out[-1][0].acc) == (t.groups, t.acc):
            out[-1].append(t)
        else:
            out.append([t])
    return out
