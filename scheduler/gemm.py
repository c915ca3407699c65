"""Matrix products over all six MMEs (paper sections 4.3 and 5.3, contract section 2 "GEMM wiring").

Output-stationary tiles of up to 768x1024: MemA i holds row group i, MemB j column half j; MME 2i+j and its MemC compute
their product. The MMEs add the bias and the previous-layer term; MemC applies activation and LayerNorm at its store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.layout import BLOCK, BLOCK_COLS, padded
from ..isa.overlays.xnn import formats as f
from ..isa.overlays.xnn.mem_c import MemCUnit
from ..isa.overlays.xnn.tiles import BEAT
from ..isa.program import Buffer
from .counts import MAX_A_ITER, MAX_B_ITER, MAX_K_ITER
from .graph import Activation, Array, Gemm
from .kernel_builder import KernelBuilder, WorkItem
from .memory import Columns, stored_vector, stored_weight
from .order import BLOCK_UNITS, Tile
from .schedule import Loops
from .tiles import RowTile, column_tiles, row_tiles

MAX_BIAS = 2048
"""Largest number of bias columns that an MME holds."""
LN_EPS = 1e-6
"""The eps of LayerNorm on the base machine."""
MEM_C_BEATS = MemCUnit.ROWS * MemCUnit.COLS // BEAT
"""Beats (words of a stream) in one buffer of MemC."""


@dataclass(frozen=True)
class _Plan:
    """How a matrix product is cut: into `passes` column tiles of `halves` x `acc_b` column blocks each. k_tiles: slices
    of K, 0 without a product. registers: of MemC at the store."""

    y: Columns
    k_tiles: int
    passes: int
    halves: int
    acc_b: int
    registers: dict[str, Any]


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


def place_gemms(s: KernelBuilder, gemms: Sequence[Gemm], loops: Loops) -> PlacedGemms:
    """Place the weights and vectors of products of one activation in LPDDR. Raises `UnsupportedError` naming the layer
    if the overlay cannot run it, `ScheduleError` if its tiles cannot."""
    parts = [part for gemm in gemms for part in _parts(s, gemm)]
    groups = [[part] for part in parts] if loops is Loops.COLUMNS else _op_columns(parts)
    return PlacedGemms(gemms, [(group, _vectors(s, group)) for group in groups], loops)


def lower_gemms(s: KernelBuilder, placed: PlacedGemms) -> None:
    """Append the kernels of products whose weights are placed.

    Loops.COLUMNS: column tiles outside, row tiles inside. The addresses of a column tile's loads and stores advance by
    constant strides, so that one packet can loop over them. Loops.ROWS: row tiles outside. When a column tile begins,
    MemA still holds the last two slices of K of the tile before, and the new tile takes them first. LPDDR moves the
    same bytes either way (paper section 5.3).
    """
    tiles = row_tiles(s.row_blocks, s.cuts[placed.gemms[0].y])
    for group, vectors in placed.groups:
        for rows in _op_runs(tiles):
            _gemm_op(s, group, rows, vectors, placed.loops)


def _parts(s: KernelBuilder, gemm: Gemm) -> list[_Part]:
    x, y = s.columns[gemm.x], s.columns[gemm.y]
    if x.used > MAX_K_ITER * 128:
        raise UnsupportedError(
            f"{gemm.place}: a product over K = {x.count} columns; an MME op handles at most {MAX_K_ITER * 128}"
        )
    if gemm.residual is not None and (s.columns[gemm.residual].is_plain, y.is_plain) != (True, True):
        raise UnsupportedError(
            f"{gemm.place}: a residual added to attention heads that are padded to 64 columns is not supported"
        )
    if gemm.norm is not None:
        _check_norm(s, gemm, y)
        if s.cuts[gemm.y].mme_cols == 1:
            raise ScheduleError(f"mme_cols=1: the LayerNorm of {gemm.place} needs two columns of MMEs")
    passes, halves, acc_b = column_tiles(y.stored // 128, s.cuts[gemm.y], gemm.norm is not None)
    plan = _Plan(y, x.used // 128 if gemm.multiplies else 0, passes, halves, acc_b, _post_op(s, gemm))
    cols = passes * halves * acc_b * 128
    weight = None
    if gemm.multiplies:
        weight = s.weight(f"{gemm.path}.weight", (x.used, cols), lambda: stored_weight(gemm, x, y, cols))
    return [_Part(gemm, plan, weight, n) for n in range(passes)]


def _op_columns(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Group column tiles so that one MME op can loop over a group: tiles of equal shape, with biases that fit the MME
    together. A tile with a residual is a group of its own, because the MME holds previous-layer weights for one tile
    only."""
    out: list[list[_Part]] = []
    for part in parts:
        last = out[-1][-1] if out else None
        fits = (
            last is not None
            and part.gemm.residual is None
            and last.gemm.residual is None
            and (part.plan.halves, part.plan.acc_b) == (last.plan.halves, last.plan.acc_b)
            and len(out[-1]) < MAX_B_ITER
            and (len(out[-1]) + 1) * part.plan.acc_b * 128 <= MAX_BIAS
        )
        if fits:
            out[-1].append(part)
        else:
            out.append([part])
    return out


def _vectors(s: KernelBuilder, group: Sequence[_Part]) -> list[Buffer]:
    """Place the vectors that an op loads: previous-layer weights, bias. In each, the part of MemB 0 comes first, tile
    after tile, then that of MemB 1 (contract section 3)."""
    part = group[0]
    plan, gemm, size = part.plan, part.gemm, part.plan.acc_b * 128

    def arranged(vector_of: Callable[[_Part], Array]) -> Array:
        out = np.zeros((plan.halves, _vector_length(group)), np.float32)
        for j in range(plan.halves):
            for at, p in enumerate(group):
                start = (p.n * plan.halves + j) * size
                out[j, at * size : (at + 1) * size] = vector_of(p)[start : start + size]
        return out.reshape(-1)

    def stored(p: _Part, vector: Array) -> Array:
        return stored_vector(vector, p.plan.y, p.plan.passes * plan.halves * size)

    shape = (plan.halves * _vector_length(group),)
    out = []
    if gemm.residual is not None:
        scale = gemm.residual_scale if gemm.residual_scale is not None else np.ones(plan.y.count, np.float32)
        name = f"{gemm.path}.residual_scale"
        out.append(s.weight(name, shape, lambda: arranged(lambda p: stored(p, scale))))
    if gemm.multiplies:
        out.append(s.weight(f"{gemm.path}.bias", shape, lambda: arranged(lambda p: stored(p, p.gemm.bias))))
    return out


def _vector_length(group: Sequence[_Part]) -> int:
    """Elements of a vector that one MemB loads; more than 1024 are padded to a multiple of 1024 (32 groups of 32)."""
    length = len(group) * group[0].plan.acc_b * 128
    return length if length <= 1024 else padded(length, 1024)


def _gemm_op(
    s: KernelBuilder, group: Sequence[_Part], rows: Sequence[RowTile], vectors: Sequence[Buffer], loops: Loops
) -> None:
    """Append one op for every MME in use: all row tiles `rows` (equal shapes) times all column tiles of `group`. The
    even MemB takes the first half of a tile's columns (contract section 3)."""
    gemm, plan = group[0].gemm, group[0].plan
    groups, acc = rows[0].groups, rows[0].acc
    mmes = [(i, j) for i in range(groups) for j in range(plan.halves)]
    residual = int(gemm.residual is not None)
    for i, j in mmes:
        s.op(
            2 * i + j,
            a_iter=len(rows),
            b_iter=len(group),
            k_iter=plan.k_tiles,
            acc_a=acc,
            acc_b=plan.acc_b,
            bias=int(gemm.multiplies),
            n128=1,
            k128=1,
            load_prev=residual,
            prev=residual,
        )
    size = _vector_length(group)
    for v in vectors:
        for j in range(plan.halves):
            s.vector(v, j, j * size, size)
    all_a = [f"a{i}_{2 * i + j}" for i, j in mmes]
    all_b = [f"b{j}_{2 * i + j}" for i, j in mmes]
    s.route("MeshB", all_b, len(vectors))
    for row in rows:
        order = list(range(plan.k_tiles))
        for n, part in enumerate(group):
            held = 0
            if n and loops is Loops.ROWS:
                held = min(2, plan.k_tiles) if plan.k_tiles > 1 else 0
                order = order[plan.k_tiles - held :] + order[: plan.k_tiles - held]
            tile = Tile(ahead=_loads_ahead(s, part.gemm, plan, row), step=groups)
            s.tiles.append(tile)
            if residual:
                _residual(s, part.gemm, plan, row, part.n, tile)
                tile.head = len(tile.loads)
            _products(s, part, row, tile, order, held)
            for mesh, routes in (("MeshA", all_a), ("MeshB", all_b)):
                s.route(mesh, routes, plan.k_tiles * acc * plan.acc_b)
            _results(s, part.gemm, part.plan, row, part.n, tile)


def _loads_ahead(s: KernelBuilder, gemm: Gemm, plan: _Plan, row: RowTile) -> int:
    """Estimate how many loads of the next tile fit in the time in which MemC finishes this one (last product, post-op).

    If the stores come earlier, DDR waits for MemC; if later, DDR idles while the MMEs consume what is loaded.
    """
    if gemm.activation is None and gemm.norm is None:
        return 0
    seconds = s.overlay.seconds
    block_s = BLOCK * 4 * seconds["ddr_read_gbs"]
    slice_s = seconds["mme_tile_us"] * row.acc * plan.acc_b
    post = seconds["norm_us"] if gemm.norm is not None else MEM_C_BEATS * seconds["gelu_beat"]
    left = post * row.acc / 2 + slice_s / 2
    if gemm.residual is not None:
        left -= row.groups * row.acc * plan.halves * plan.acc_b * 2 * block_s
    k_loads = int(left / max(2 * row.acc * block_s, slice_s / row.groups)) if left > 0 else 0
    return k_loads + (row.groups if gemm.residual is not None else 0)


def _residual(s: KernelBuilder, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: Tile) -> None:
    """Append loads and sends of the residual's tiles, one MemA after the other, in the order in which its two MMEs take
    them: row tile by row tile, first all columns of MME 2i, then all of MME 2i+1. MemA holds two tiles at a time."""
    assert gemm.residual is not None
    width = s.columns[gemm.residual].stored // 128
    first, count = n * plan.halves * plan.acc_b, plan.halves * plan.acc_b
    valid = max(0, min(count, width - first))
    pieces = _panels(s.buffers[gemm.residual], first, valid)
    for i in range(row.groups):
        unit, at = f"MemA{i}", row.start + i * row.acc
        if pieces == [(first, count)]:
            tile.loads.append(s.blocks(gemm.residual, at, row.acc, 2 * first, 2 * count, unit))
        else:
            for a in range(row.acc):
                for start, columns in pieces:
                    tile.loads.append(s.blocks(gemm.residual, at + a, 1, 2 * start, 2 * columns, unit))
                # padded column tiles: any finite tile will do, because its weights are 0
                tile.loads += [s.blocks(gemm.residual, at + a, 1, 0, 2, unit)] * (count - valid)
        tiles = row.acc * count
        for t in range(0, tiles, 2):
            held = min(2, tiles - t)
            s.mem[unit].append(
                WorkItem({"load": 1, "dim1": 128 * held, "dim2": 128}, {"send": 1, "acc_a": held, "acc_b": 1})
            )
        for _ in range(row.acc):
            for j in range(plan.halves):
                s.route("MeshA", [f"a{i}_{2 * i + j}"], plan.acc_b)


def _panels(stored: Buffer, first: int, count: int) -> list[tuple[int, int]]:
    """Cut `count` column blocks from `first` on where a panel of the buffer ends. Returns pairs (first, count)."""
    width = stored.shape[1] // 128
    ends = [*range(first - first % width + width, first + count, width), first + count]
    return [(a, b - a) for a, b in pairwise([first, *ends]) if b > a]


def _products(s: KernelBuilder, part: _Part, row: RowTile, tile: Tile, order: Sequence[int], held: int) -> None:
    """Append the K loop of one output tile, over slices of K in the given order: LHS from DDR into MemA, except for the
    first `held` slices, which MemA already holds; RHS from LPDDR into MemB."""
    plan, weight = part.plan, part.weight
    if weight is None:
        return
    width = weight.shape[1] // BLOCK_COLS
    acc_b = plan.acc_b
    send = {"send": 1, "acc_a": row.acc, "acc_b": acc_b}
    kept, lhs = WorkItem({}, send), WorkItem({"load": 1, "dim1": 128 * row.acc, "dim2": 128}, send)
    rhs = WorkItem({"load": 1, "dim1": 128, "dim2": 128 * acc_b}, send)
    fetch = [f.Lpddr(size=2 * acc_b * BLOCK, **{f"to_b{j}": 1}) for j in range(plan.halves)]
    for at_k, k in enumerate(order):
        for i in range(row.groups):
            if at_k >= held:
                tile.loads.append(s.blocks(part.gemm.x, row.start + i * row.acc, row.acc, 2 * k, 2, f"MemA{i}"))
            s.mem[f"MemA{i}"].append(lhs if at_k >= held else kept)
        for j in range(plan.halves):
            col = (part.n * plan.halves + j) * acc_b * 2
            s.lpddr.append(fetch[j].replace(addr=weight.offset + (k * width + col) * BLOCK_UNITS))
            s.mem[f"MemB{j}"].append(rhs)


def _results(s: KernelBuilder, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: Tile) -> None:
    """Receive, accumulate, apply the post-op and store one output tile."""
    width = plan.y.stored // BLOCK_COLS
    rounds = plan.k_tiles + int(gemm.residual is not None)
    post = {"gelu": int(gemm.activation is not None), "layernorm": int(gemm.norm is not None)}
    for i in range(row.groups):
        for j in range(plan.halves):
            c = f"MemC{2 * i + j}"
            col = (n * plan.halves + j) * plan.acc_b * 2
            cols = max(0, min(2 * plan.acc_b, width - col))
            registers = dict(plan.registers)
            if gemm.norm is not None and s.extended:
                registers["norm_cols"] = max(0, min(plan.acc_b * 128, plan.y.count - j * plan.acc_b * 128))
            store = {"store": 1, "dim1": 128 * row.acc, "dim2": 64 * cols, **post}
            s.mem[c].append(
                WorkItem(
                    {"recv": 1, "k_iter": rounds, "recv_a": row.acc, "recv_b": plan.acc_b},
                    store if cols or gemm.norm is not None else {},  # without columns a norm still sends its sums
                    store_config=registers,
                )
            )
            if cols:
                tile.stores.append(s.blocks(gemm.y, row.start + i * row.acc, row.acc, col, cols, c, store=True))


def _check_norm(s: KernelBuilder, gemm: Gemm, y: Columns) -> None:
    assert gemm.norm is not None
    kind = "RMSNorm" if gemm.norm.rms else "LayerNorm"
    if y.count > 1024:
        raise UnsupportedError(f"{gemm.place}: {kind} over {y.count} columns; two MemC hold at most 1024")
    if y.groups != 1:
        raise UnsupportedError(f"{gemm.place}: {kind} in front of attention heads is not supported")
    if s.extended:
        return
    if y.count != 1024:
        raise UnsupportedError(
            f"{gemm.place}: LayerNorm over {y.count} columns; overlay {s.overlay.name} needs exactly 1024"
        )
    if gemm.norm.rms:
        raise UnsupportedError(f"{gemm.place}: RMSNorm; overlay {s.overlay.name} has LayerNorm only")
    if abs(gemm.norm.eps - LN_EPS) > 1e-6:
        raise UnsupportedError(
            f"{gemm.place}: LayerNorm with eps {gemm.norm.eps:g}; overlay {s.overlay.name} has eps {LN_EPS:g} only"
        )


def _post_op(s: KernelBuilder, gemm: Gemm) -> dict[str, Any]:
    """The MemC registers for activation and norm at the store; empty for the base machine, which has none."""
    codes = {Activation.GELU_TANH: 0, Activation.GELU_ERF: 1, Activation.RELU: 2, Activation.SILU: 3}
    out: dict[str, Any] = {}
    if gemm.activation is not None:
        if not s.extended and gemm.activation is not Activation.GELU_TANH:
            raise UnsupportedError(
                f"{gemm.place}: activation {gemm.activation.value}; overlay {s.overlay.name} has gelu_tanh only"
            )
        out["activation"] = codes[gemm.activation]
    if gemm.norm is not None:
        out |= {"eps": float(np.float32(gemm.norm.eps)), "rms": int(gemm.norm.rms)}
    return out if s.extended else {}


def _op_runs(tiles: Sequence[RowTile]) -> list[list[RowTile]]:
    """Group consecutive row tiles of equal shape, at most as many as one MME op can count."""
    out: list[list[RowTile]] = []
    for t in tiles:
        if out and len(out[-1]) < MAX_A_ITER and (out[-1][0].groups, out[-1][0].acc) == (t.groups, t.acc):
            out[-1].append(t)
        else:
            out.append([t])
    return out
