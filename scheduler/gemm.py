"""Matrix products over all six MMEs (paper sections 4.3 and 5.3, contract section 2 "GEMM wiring").

Output-stationary tiles of up to 768x1024: MemA i holds row group i, MemB j column half j, MME 2i+j and its MemC the
product of the two. Bias and previous-layer term enter through the MMEs, activation and LayerNorm through MemC's store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..isa.errors import UnsupportedError
from ..isa.layout import BLOCK, BLOCK_COLS, padded
from ..isa.overlays import xnn_formats as f
from ..isa.program import Buffer
from .memory import Columns, stored_vector, stored_weight
from .order import BLOCK_UNITS, Tile, When
from .segment import Activation, Array, Gemm
from .sequences import Job, Sequences

MAX_VECTOR = 2048
"""Columns of a bias per MME and op."""
LN_EPS = 1e-6
"""What the base machine's LayerNorm adds to the variance."""


@dataclass(frozen=True)
class RowTile:
    """Rows of one output tile: `groups` MemA with `acc` row blocks each, from row block `start` on."""

    start: int
    groups: int
    acc: int


def row_tiles(blocks: int, largest: int) -> list[RowTile]:
    """Cut `blocks` row blocks into tiles that three MemA of two row blocks can hold."""
    shapes = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2), 6: (3, 2)}
    out, at = [], 0
    while at < blocks:
        n = max(s for s in shapes if s <= min(blocks - at, largest))
        out.append(RowTile(at, *shapes[n]))
        at += n
    return out


@dataclass(frozen=True)
class _Plan:
    """How a matrix product is cut: `passes` column tiles of `halves` x `acc_b` column blocks each; `chunks` are the
    column tiles of one MME op; registers are MemC's at the store."""

    y: Columns
    k_tiles: int
    passes: int
    halves: int
    acc_b: int
    chunks: tuple[range, ...]
    registers: dict[str, Any]


@dataclass(frozen=True)
class _Vectors:
    """A stored vector; starts: first element and count for (first column tile of the op, half)."""

    buffer: Buffer
    starts: dict[tuple[int, int], tuple[int, int]]


def lower_gemm(s: Sequences, gemm: Gemm) -> None:
    """One matrix product with what is fused to it. Raises `UnsupportedError` naming the layer."""
    x, y = s.columns[gemm.x], s.columns[gemm.y]
    n_tiles = y.stored // 128
    passes = -(-n_tiles // s.schedule.tile_cols)
    if gemm.norm is not None:
        _check_norm(s, gemm, y)
        passes = 1
    halves = 2 if n_tiles > passes or gemm.norm is not None else 1
    acc_b = -(-n_tiles // (halves * passes))
    per_op = 1 if gemm.residual else max(1, min(15, MAX_VECTOR // (acc_b * 128)))
    plan = _Plan(
        y=y,
        k_tiles=x.stored // 128,
        passes=passes,
        halves=halves,
        acc_b=acc_b,
        chunks=tuple(range(p, min(p + per_op, passes)) for p in range(0, passes, per_op)),
        registers=_post_op(s, gemm),
    )
    cols = passes * halves * acc_b * 128
    weight = s.weight(f"{gemm.path}.weight", stored_weight(gemm, x, y, cols))
    bias = _vectors(s, f"{gemm.path}.bias", gemm.bias, cols, plan)
    prev = None
    if gemm.residual is not None:
        scale = gemm.residual_scale if gemm.residual_scale is not None else np.ones(y.count, np.float32)
        prev = _vectors(s, f"{gemm.path}.residual_scale", scale, cols, plan)
    tiles = row_tiles(s.row_blocks, s.schedule.tile_rows)
    for rows in _op_runs(tiles, merge=len(plan.chunks) == 1):
        for chunk in plan.chunks:
            _gemm_op(s, gemm, plan, rows, chunk, weight, bias, prev)


def _vectors(s: Sequences, name: str, vector: Array, cols: int, plan: _Plan) -> _Vectors:
    """Store a per-column vector so that each half of each op reads its own columns in one piece: the even column
    blocks of an op's tiles, then the odd ones (contract section 3)."""
    parts = stored_vector(vector, plan.y, cols).reshape(plan.passes, plan.halves, plan.acc_b * 128)
    pieces: list[Array] = []
    starts: dict[tuple[int, int], tuple[int, int]] = {}
    at = 0
    for chunk in plan.chunks:
        for half in range(plan.halves):
            piece = parts[chunk.start : chunk.stop, half].reshape(-1)
            count = len(piece) if len(piece) <= 1024 else padded(len(piece), 1024)  # whole column blocks of MemB
            pieces.append(np.pad(piece, (0, count - len(piece))))
            starts[chunk.start, half] = at, count
            at += count
    return _Vectors(s.weight(name, np.concatenate(pieces)), starts)


def _gemm_op(
    s: Sequences,
    gemm: Gemm,
    plan: _Plan,
    rows: Sequence[RowTile],
    chunk: range,
    weight: Buffer,
    bias: _Vectors,
    prev: _Vectors | None,
) -> None:
    """One MME op on every MME in use: the row tiles `rows`, each against the column tiles `chunk`."""
    groups, acc = rows[0].groups, rows[0].acc
    mmes = [(i, j) for i in range(groups) for j in range(plan.halves)]
    residual = int(prev is not None)
    for i, j in mmes:
        s.op(
            2 * i + j,
            a_iter=len(rows),
            b_iter=len(chunk),
            k_iter=plan.k_tiles,
            acc_a=acc,
            acc_b=plan.acc_b,
            bias=1,
            n128=1,
            k128=1,
            load_prev=residual,
            prev=residual,
        )
    vectors = [bias] if prev is None else [prev, bias]
    for v in vectors:
        for j in range(plan.halves):
            s.vector(v.buffer, j, *v.starts[chunk.start, j])
    all_a = [f"a{i}_{2 * i + j}" for i, j in mmes]
    all_b = [f"b{j}_{2 * i + j}" for i, j in mmes]
    s.route("MeshB", all_b, len(vectors))
    for row in rows:
        for n in chunk:
            tile = Tile(when=When.LATE if gemm.activation or gemm.norm else When.EVENLY)
            s.tiles.append(tile)
            if prev is not None:
                _residual(s, gemm, plan, row, n, tile)
            _products(s, gemm, plan, row, n, weight, tile)
            for mesh, routes in (("MeshA", all_a), ("MeshB", all_b)):
                s.route(mesh, routes, plan.k_tiles * acc * plan.acc_b)
            _results(s, gemm, plan, row, n, tile)


def _residual(s: Sequences, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: Tile) -> None:
    """The A tiles of the previous-layer term. A MemA holds the pair for its two MMEs: MME 2i's tile as rows 0..127,
    MME 2i+1's as rows 128..255."""
    assert gemm.residual is not None
    width = s.columns[gemm.residual].stored // 128
    for a in range(row.acc):
        for b in range(plan.acc_b):
            even, odd = ((n * plan.halves + j) * plan.acc_b + b for j in range(2))
            if even >= width:  # a padded column tile: any finite tile serves, its weights are 0
                even = 0
            pair = odd - even if odd < width else 0
            for i in range(row.groups):
                at = row.start + i * row.acc + a
                where = gemm.residual, at, 1, 2 * even, 2, f"MemA{i}"
                tile.loads.append(s.blocks(*where) if plan.halves == 1 else s.pair(*where, 2 * pair))
                s.mem[f"MemA{i}"].append(
                    Job(
                        {"load": 1, "dim1": 128 * plan.halves, "dim2": 128},
                        {"send": 1, "acc_a": plan.halves, "acc_b": 1},
                    )
                )
            for j in range(plan.halves):
                s.route("MeshA", [f"a{i}_{2 * i + j}" for i in range(row.groups)], 1)


def _products(s: Sequences, gemm: Gemm, plan: _Plan, row: RowTile, n: int, weight: Buffer, tile: Tile) -> None:
    """The k loop of one output tile: LHS from DDR into MemA, RHS from LPDDR into MemB."""
    width = weight.shape[1] // BLOCK_COLS
    acc_b = plan.acc_b
    for k in range(plan.k_tiles):
        for i in range(row.groups):
            at = row.start + i * row.acc
            tile.loads.append(s.blocks(gemm.x, at, row.acc, 2 * k, 2, f"MemA{i}"))
            s.mem[f"MemA{i}"].append(
                Job({"load": 1, "dim1": 128 * row.acc, "dim2": 128}, {"send": 1, "acc_a": row.acc, "acc_b": acc_b})
            )
        for j in range(plan.halves):
            col = (n * plan.halves + j) * acc_b * 2
            addr = weight.offset + (k * width + col) * BLOCK_UNITS
            s.lpddr.append(f.Lpddr(addr=addr, size=2 * acc_b * BLOCK, **{f"to_b{j}": 1}))
            s.mem[f"MemB{j}"].append(
                Job(
                    {"load": 1, "dim1": 128, "dim2": 128 * acc_b},
                    {"send": 1, "acc_a": row.acc, "acc_b": acc_b},
                )
            )


def _results(s: Sequences, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: Tile) -> None:
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
                Job(
                    {"recv": 1, "k_iter": rounds, "recv_a": row.acc, "recv_b": plan.acc_b},
                    store if cols or gemm.norm is not None else {},  # without columns it may still owe its sums
                    store_config=registers,
                )
            )
            if cols:
                tile.stores.append(s.blocks(gemm.y, row.start + i * row.acc, row.acc, col, cols, c, store=True))


def _check_norm(s: Sequences, gemm: Gemm, y: Columns) -> None:
    if y.count > 1024:
        raise UnsupportedError(f"{gemm.path}: LayerNorm over {y.count} columns; two MemC hold at most 1024")
    if y.groups != 1:
        raise UnsupportedError(f"{gemm.path}: LayerNorm in front of attention heads is not supported")
    assert gemm.norm is not None
    if s.extended:
        return
    if y.count != 1024:
        raise UnsupportedError(
            f"{gemm.path}: LayerNorm over {y.count} columns; overlay {s.overlay.name} normalises exactly 1024"
        )
    if abs(gemm.norm.eps - LN_EPS) > 1e-6:
        raise UnsupportedError(
            f"{gemm.path}: LayerNorm eps {gemm.norm.eps:g}; overlay {s.overlay.name} adds {LN_EPS:g}"
        )


def _post_op(s: Sequences, gemm: Gemm) -> dict[str, Any]:
    """The MemC registers that the store needs, on an extended overlay."""
    codes = {Activation.GELU_TANH: 0, Activation.GELU_ERF: 1, Activation.RELU: 2, Activation.SILU: 3}
    out: dict[str, Any] = {}
    if gemm.activation is not None:
        if not s.extended and gemm.activation is not Activation.GELU_TANH:
            raise UnsupportedError(
                f"{gemm.path}: activation {gemm.activation.value}; overlay {s.overlay.name} knows gelu_tanh alone"
            )
        out["activation"] = codes[gemm.activation]
    if gemm.norm is not None:
        out["eps"] = float(np.float32(gemm.norm.eps))
    return out if s.extended else {}


def _op_runs(tiles: Sequence[RowTile], merge: bool) -> list[list[RowTile]]:
    """Row tiles of one MME op: neighbours of equal shape, at most 15."""
    out: list[list[RowTile]] = []
    for t in tiles:
        if merge and out and len(out[-1]) < 15 and (out[-1][0].groups, out[-1][0].acc) == (t.groups, t.acc):
            out[-1].append(t)
        else:
            out.append([t])
    return out
