"""Segments to one kernel sequence per functional unit (paper sections 4.1 to 4.4, Fig. 10 and 11).

Every Mem keeps one chain for the whole program: uOP i loads (or receives) what job i needs while it sends (or stores)
what job i - 1 brought. No unit drains between tiles, segments or layers. What DDR does is kept apart, as loads and
stores per tile, because their order on the one channel is a decision of its own (`order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..isa.datapath import Overlay
from ..isa.errors import UnsupportedError
from ..isa.fields import Record
from ..isa.layout import BLOCK, BLOCK_COLS, BLOCK_ROWS, UNIT, block, padded
from ..isa.overlays import xnn_formats as f
from ..isa.program import Buffer, KernelPatch, Kernels, Layout, Parameter, Role, place_buffers
from .memory import Arena, Columns, columns_of, stored_vector, stored_weight
from .order import Access, Tile, order_accesses
from .schedule import Schedule
from .segment import Activation, Array, Attention, Gemm, Network, Output

BLOCK_UNITS = BLOCK // UNIT
MAX_VECTOR = 2048
"""Columns of a bias per MME and op."""
LN_EPS = 1e-6
"""What the base machine's LayerNorm adds to the variance."""


@dataclass(frozen=True)
class Lowered:
    """Kernel sequences, and the weights as they go into LPDDR (buffer name to its stored elements)."""

    kernels: Kernels
    weights: dict[str, Array]


@dataclass
class Job:
    """What a Mem does for one piece of work, in two halves that fall into consecutive uOPs."""

    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    recv_config: dict[str, Any] = field(default_factory=dict)
    store_config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Length:
    """A run-time field value: clamp(len[sequence] - base, 0, cap)."""

    sequence: int
    base: int
    cap: int


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


def lower(network: Network, overlay: Overlay, schedule: Schedule) -> Lowered:
    """Turn a network into kernel sequences for an XNN overlay. Raises `UnsupportedError` naming the layer."""
    return _Lowering(network, overlay, schedule).run()


class _Lowering:
    def __init__(self, network: Network, overlay: Overlay, schedule: Schedule) -> None:
        self.net = network
        self.overlay = overlay
        self.extended = overlay.extends is not None
        self.schedule = schedule
        self.columns = columns_of(network)
        self.pitch = padded(network.seq, BLOCK_ROWS)
        self.seq_blocks = self.pitch // BLOCK_ROWS
        self.row_blocks = network.batch * self.seq_blocks
        if network.seq % BLOCK_ROWS and not self.extended:
            for layer in network.layers:
                if isinstance(layer, Attention):
                    raise UnsupportedError(
                        f"{layer.path}: {network.seq} rows a sequence; without masks (overlay {overlay.name}) it must "
                        f"be a multiple of {BLOCK_ROWS}"
                    )
        self.mem: dict[str, list[Job]] = {
            u.name: [] for kind in ("MemA", "MemB", "MemC") for u in overlay.by_kind[kind]
        }
        self.mesh: dict[str, list[f.MeshA | f.MeshB]] = {"MeshA": [], "MeshB": []}
        self.mme: dict[str, list[f.Mme]] = {u.name: [] for u in overlay.by_kind["MME"]}
        self.lpddr: list[f.Lpddr] = []
        self.tiles: list[Tile] = []
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Array] = {}
        self._lpddr_end = 0

    def run(self) -> Lowered:
        self._place_activations()
        for layer in self.net.layers:
            if isinstance(layer, Gemm):
                self._gemm(layer)
            else:
                self._attention(layer)
        sequences: dict[str, tuple[Record, ...]] = {
            "DDR": tuple(order_accesses(self.tiles, self.schedule)),
            "LPDDR": tuple(self.lpddr),
            "MeshA": tuple(self.mesh["MeshA"]),
            "MeshB": tuple(self.mesh["MeshB"]),
        }
        patches: dict[str, list[KernelPatch]] = {}
        for unit, jobs in self.mem.items():
            sequences[unit] = tuple(self._chain(unit, jobs, patches))
        seq = self.net.seq
        names = (_length_name(s) for s in range(self.net.batch))
        kernels = Kernels(
            overlay=self.overlay,
            sequences={u: s for u, s in sequences.items() if s},
            preloaded={u: tuple(ops) for u, ops in self.mme.items()},
            buffers=place_buffers(self.buffers.values(), UNIT),
            parameters=tuple(Parameter(name, 1, seq, seq) for name in names if name in patches),
            patches={name: tuple(p) for name, p in patches.items()},
        )
        return Lowered(kernels, self.weights)

    # -- memory

    def _place_activations(self) -> None:
        """Inputs and outputs get memory of their own; the rest shares it as soon as its last reader has passed."""
        arena = Arena()
        outputs = {o.name: o for o in self.net.outputs}
        last: dict[str, int] = {}
        for i, layer in enumerate(self.net.layers):
            for name in _reads(layer):
                last[name] = i
        def add(name: str, role: Role, output: Output | None = None) -> None:
            cols = self.columns[name]
            shape = (self.row_blocks * BLOCK_ROWS, cols.stored)
            at = arena.take(shape[0] * shape[1] // UNIT)
            view = (self.net.batch, self.net.seq, cols.count) if role is not Role.SCRATCH else None
            scale, shift = (None, None) if output is None else (_plain(output.scale), _plain(output.shift))
            self.buffers[name] = Buffer(name, "ddr", at, shape, Layout.BLOCKED, role, view, scale, shift)

        for name in self.net.inputs:
            add(name, Role.INPUT)
        for i, layer in enumerate(self.net.layers):
            out = outputs.get(layer.y)
            add(layer.y, Role.OUTPUT if out is not None else Role.SCRATCH, out)
            for name in dict.fromkeys(_reads(layer)):
                b = self.buffers[name]
                if last[name] == i and b.role is Role.SCRATCH:
                    arena.give(b.offset, b.size // UNIT)

    def _weight(self, name: str, stored: Array) -> Buffer:
        """Append a weight matrix (blocked) or vector (linear) to LPDDR."""
        base, n = name, 2
        while name in self.buffers:
            name, n = f"{base}.{n}", n + 1
        layout = Layout.BLOCKED if stored.ndim == 2 else Layout.LINEAR
        self.weights[name] = block(stored) if stored.ndim == 2 else stored
        self.buffers[name] = Buffer(name, "lpddr", self._lpddr_end, stored.shape, layout, Role.WEIGHT)
        self._lpddr_end += padded(stored.size // UNIT, 64)
        return self.buffers[name]

    # -- pieces of kernels

    def _route(self, mesh: str, routes: Iterable[str], tiles: int) -> None:
        """Append tiles along routes such as a0_1; equal routes in a row become one uOP."""
        flags = dict.fromkeys(routes, 1)
        sequence = self.mesh[mesh]
        kind = f.MeshA if mesh == "MeshA" else f.MeshB
        if tiles and flags:
            sequence.append(kind(size=512 * tiles, **flags))

    def _op(self, mme: int, **fields: int) -> None:
        self.mme[f"MME{mme}"].append(f.Mme(**fields))

    def _vector(self, buffer: Buffer, half: int, start: int, count: int) -> None:
        """Load `count` floats of a vector into MemB `half` and send them to the MMEs as one B tile."""
        groups = count // 32
        rows = min(32, groups)
        self.lpddr.append(f.Lpddr(addr=buffer.offset + start // UNIT, size=count, bias=1, **{f"to_b{half}": 1}))
        self.mem[f"MemB{half}"].append(
            Job({"load": 1, "bias": 1, "dim1": rows, "dim2": groups // rows}, {"send": 1, "acc_a": 1, "acc_b": 1})
        )

    def _blocks(self, name: str, row: int, rows: int, col: int, cols: int, peer: str, store: bool = False) -> Access:
        """A DDR access to `rows` x `cols` blocks of an activation, from block (row, col) on."""
        b = self.buffers[name]
        width = b.shape[1] // BLOCK_COLS
        return Access(peer, store, b.offset, width, row, rows, col, cols)

    # -- matrix products

    def _gemm(self, gemm: Gemm) -> None:
        x, y = self.columns[gemm.x], self.columns[gemm.y]
        n_tiles = y.stored // 128
        passes = -(-n_tiles // self.schedule.tile_cols)
        if gemm.norm is not None:
            self._check_norm(gemm, y)
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
            registers=self._post_op(gemm),
        )
        cols = passes * halves * acc_b * 128
        weight = self._weight(f"{gemm.path}.weight", stored_weight(gemm, x, y, cols))
        bias = self._vectors(f"{gemm.path}.bias", gemm.bias, cols, plan)
        prev = None
        if gemm.residual is not None:
            scale = gemm.residual_scale if gemm.residual_scale is not None else np.ones(y.count, np.float32)
            prev = self._vectors(f"{gemm.path}.residual_scale", scale, cols, plan)
        tiles = row_tiles(self.row_blocks, self.schedule.tile_rows)
        for rows in _op_runs(tiles, merge=len(plan.chunks) == 1):
            for chunk in plan.chunks:
                self._gemm_op(gemm, plan, rows, chunk, weight, bias, prev)

    def _vectors(self, name: str, vector: Array, cols: int, plan: _Plan) -> _Vectors:
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
        return _Vectors(self._weight(name, np.concatenate(pieces)), starts)

    def _gemm_op(
        self,
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
            self._op(
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
                self._vector(v.buffer, j, *v.starts[chunk.start, j])
        all_a = [f"a{i}_{2 * i + j}" for i, j in mmes]
        all_b = [f"b{j}_{2 * i + j}" for i, j in mmes]
        self._route("MeshB", all_b, len(vectors))
        for row in rows:
            for n in chunk:
                tile = Tile(late=bool(gemm.activation or gemm.norm))
                self.tiles.append(tile)
                if prev is not None:
                    self._residual(gemm, plan, row, n, tile)
                self._products(gemm, plan, row, n, weight, tile)
                for mesh, routes in (("MeshA", all_a), ("MeshB", all_b)):
                    self._route(mesh, routes, plan.k_tiles * acc * plan.acc_b)
                self._results(gemm, plan, row, n, tile)

    def _residual(self, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: Tile) -> None:
        """The A tiles of the previous-layer term. A MemA holds the pair for its two MMEs: MME 2i's tile as rows 0..127,
        MME 2i+1's as rows 128..255."""
        assert gemm.residual is not None
        width = self.columns[gemm.residual].stored // 128
        halves, acc_b = plan.halves, plan.acc_b
        for a in range(row.acc):
            for b in range(acc_b):
                for i in range(row.groups):
                    for j in range(halves):
                        col = (n * halves + j) * acc_b + b
                        if col >= width:  # a padded column tile: any finite tile serves, its weights are 0
                            col = 0
                        block_row = row.start + i * row.acc + a
                        tile.loads.append(self._blocks(gemm.residual, block_row, 1, 2 * col, 2, f"MemA{i}"))
                    self.mem[f"MemA{i}"].append(
                        Job({"load": 1, "dim1": 128 * halves, "dim2": 128}, {"send": 1, "acc_a": halves, "acc_b": 1})
                    )
                for j in range(halves):
                    self._route("MeshA", [f"a{i}_{2 * i + j}" for i in range(row.groups)], 1)

    def _products(self, gemm: Gemm, plan: _Plan, row: RowTile, n: int, weight: Buffer, tile: Tile) -> None:
        """The k loop of one output tile: LHS from DDR into MemA, RHS from LPDDR into MemB."""
        width = weight.shape[1] // BLOCK_COLS
        acc_b = plan.acc_b
        for k in range(plan.k_tiles):
            for i in range(row.groups):
                at = row.start + i * row.acc
                tile.loads.append(self._blocks(gemm.x, at, row.acc, 2 * k, 2, f"MemA{i}"))
                self.mem[f"MemA{i}"].append(
                    Job({"load": 1, "dim1": 128 * row.acc, "dim2": 128}, {"send": 1, "acc_a": row.acc, "acc_b": acc_b})
                )
            for j in range(plan.halves):
                col = (n * plan.halves + j) * acc_b * 2
                addr = weight.offset + (k * width + col) * BLOCK_UNITS
                self.lpddr.append(f.Lpddr(addr=addr, size=2 * acc_b * BLOCK, **{f"to_b{j}": 1}))
                self.mem[f"MemB{j}"].append(
                    Job(
                        {"load": 1, "dim1": 128, "dim2": 128 * acc_b},
                        {"send": 1, "acc_a": row.acc, "acc_b": acc_b},
                    )
                )

    def _results(self, gemm: Gemm, plan: _Plan, row: RowTile, n: int, tile: Tile) -> None:
        """Receive, accumulate, apply the post-op and store one output tile."""
        width = plan.y.stored // BLOCK_COLS
        rounds = plan.k_tiles + int(gemm.residual is not None)
        post = {"gelu": int(gemm.activation is not None), "layernorm": int(gemm.norm is not None)}
        stores: list[list[Access]] = [[] for _ in range(row.acc)]
        for i in range(row.groups):
            for j in range(plan.halves):
                c = f"MemC{2 * i + j}"
                col = (n * plan.halves + j) * plan.acc_b * 2
                cols = max(0, min(2 * plan.acc_b, width - col))
                registers = dict(plan.registers)
                if gemm.norm is not None and self.extended:
                    registers["norm_cols"] = max(0, min(plan.acc_b * 128, plan.y.count - j * plan.acc_b * 128))
                store = {"store": 1, "dim1": 128 * row.acc, "dim2": 64 * cols, **post}
                self.mem[c].append(
                    Job(
                        {"recv": 1, "k_iter": rounds, "recv_a": row.acc, "recv_b": plan.acc_b},
                        store if cols or gemm.norm is not None else {},  # without columns it may still owe its sums
                        store_config=registers,
                    )
                )
                for a in range(row.acc if cols else 0):
                    at = row.start + i * row.acc + a
                    stores[a].append(self._blocks(gemm.y, at, 1, col, cols, c, store=True))
        tile.stores = [s for line in stores for s in line]

    def _check_norm(self, gemm: Gemm, y: Columns) -> None:
        if y.count > 1024:
            raise UnsupportedError(f"{gemm.path}: LayerNorm over {y.count} columns; two MemC hold at most 1024")
        if y.groups != 1:
            raise UnsupportedError(f"{gemm.path}: LayerNorm in front of attention heads is not supported")
        assert gemm.norm is not None
        if self.extended:
            return
        if y.count != 1024:
            raise UnsupportedError(
                f"{gemm.path}: LayerNorm over {y.count} columns; overlay {self.overlay.name} normalises exactly 1024"
            )
        if abs(gemm.norm.eps - LN_EPS) > 1e-6:
            raise UnsupportedError(
                f"{gemm.path}: LayerNorm eps {gemm.norm.eps:g}; overlay {self.overlay.name} adds {LN_EPS:g}"
            )

    def _post_op(self, gemm: Gemm) -> dict[str, Any]:
        """The MemC registers that the store needs, on an extended overlay."""
        codes = {Activation.GELU_TANH: 0, Activation.GELU_ERF: 1, Activation.RELU: 2, Activation.SILU: 3}
        out: dict[str, Any] = {}
        if gemm.activation is not None:
            if not self.extended and gemm.activation is not Activation.GELU_TANH:
                raise UnsupportedError(
                    f"{gemm.path}: activation {gemm.activation.value}; overlay {self.overlay.name} knows gelu_tanh alone"
                )
            out["activation"] = codes[gemm.activation]
        if gemm.norm is not None:
            out["eps"] = float(np.float32(gemm.norm.eps))
        return out if self.extended else {}

    # -- attention

    def _attention(self, att: Attention) -> None:
        """QK^T on MME 0-3, softmax in MemC 0-3, PV on MME 4 and 5, pipelined over slots (mapping type D, section 4.3)."""
        if self.seq_blocks == 1 and not self.extended:
            raise UnsupportedError(
                f"{att.path}: {self.net.seq} rows a sequence; overlay {self.overlay.name} splits the keys over two MemC "
                f"and needs at least {2 * BLOCK_ROWS}"
            )
        if self.seq_blocks > 6:
            raise UnsupportedError(
                f"{att.path}: {self.net.seq} rows a sequence; a MemC pair feeds at most six key tiles, 768 rows"
            )
        slots = self._single_slots(att) if self.seq_blocks == 1 else self._pair_slots(att)
        before: _Slot | None = None
        for slot in [*slots, None]:  # the values of a slot go with the scores of the next one
            tile = Tile(lag=2)
            self.tiles.append(tile)
            if slot is not None:
                slot.tile = tile
                self._scores(att, slot, tile)
            if before is not None:
                self._values(att, before, tile)
            before = slot

    def _mask(self, att: Attention, sequence: int, key_block: int, keys: int, alone: bool) -> dict[str, Any]:
        """Softmax registers for keys from `key_block` on: the padding of the sequence, and its length where masked."""
        if not self.extended:
            return {}
        base = key_block * BLOCK_ROWS
        cols: Any = max(0, min(keys * BLOCK_ROWS, self.net.seq - base))
        if att.masked:
            cols = Length(sequence, base, keys * BLOCK_ROWS)
        elif cols == keys * BLOCK_ROWS:
            cols = 1023
        return {"softmax_cols": cols, "max_sub": 1, "alone": int(alone)}

    def _single_slots(self, att: Attention) -> list[_Slot]:
        """Sequences of one row block: each of MME 0-3 serves a head of its own."""
        out = []
        for sequence in range(self.net.batch):
            for head in range(0, att.heads, 4):
                n = min(4, att.heads - head)
                out.append(_Slot(sequence, head, heads=n, alone=True, q=(1, 1), k=(1, 1)))
        return out

    def _pair_slots(self, att: Attention) -> list[_Slot]:
        """Longer sequences: one head at a time; row halves on MemA0 and MemA1, key halves on MemB0 and MemB1; at most
        four row blocks a slot."""
        blocks = self.seq_blocks
        keys = (-(-blocks // 2), blocks // 2)
        out = []
        for sequence in range(self.net.batch):
            for head in range(att.heads):
                for start in range(0, blocks, 4):
                    n = min(4, blocks - start)
                    out.append(_Slot(sequence, head, q=(-(-n // 2), n // 2), k=keys, start=start))
        return out

    def _scores(self, att: Attention, slot: _Slot, tile: Tile) -> None:
        if slot.alone:
            self._scores_single(att, slot, tile)
        else:
            self._scores_pair(att, slot, tile)

    def _scores_single(self, att: Attention, slot: _Slot, tile: Tile) -> None:
        """Heads h, h+1 share MemA0, h+2, h+3 MemA1; h, h+2 share MemB0, h+1, h+3 MemB1. Each goes to its own MME."""
        n, row, col = slot.heads, slot.sequence, slot.head
        for i in range(2):
            count = max(0, min(2, n - 2 * i))
            if count:
                tile.loads.append(self._blocks(att.q, row, 1, col + 2 * i, count, f"MemA{i}"))
                self.mem[f"MemA{i}"].append(
                    Job({"load": 1, "dim1": 128 * count, "dim2": 64}, {"send": 1, "acc_a": count, "acc_b": 1})
                )
        for j in range(2):
            heads = range(j, n, 2)
            if heads:
                for h in heads:
                    tile.loads.append(self._blocks(att.k, row, 1, col + h, 1, f"MemB{j}"))
                self.mem[f"MemB{j}"].append(
                    Job(
                        {"load": 1, "transpose": 1, "dim1": 64, "dim2": 128 * len(heads)},
                        {"send": 1, "acc_a": 1, "acc_b": len(heads)},
                    )
                )
        for j in range(2):
            self._route("MeshA", [f"a{m // 2}_{m}" for m in range(j, n, 2)], 1)
        for i in range(2):
            self._route("MeshB", [f"b{m % 2}_{m}" for m in range(2 * i, min(2 * i + 2, n))], 1)
        for m in range(n):
            self._score_op(m, 1, 1)
            self.mem[f"MemC{m}"].append(
                Job(
                    {"recv": 1, "k_iter": 1, "recv_a": 1, "recv_b": 1, "softmax": 1},
                    {"send": 1, "send_a": 1, "send_b": 1, "send_k": 1},
                    recv_config=self._mask(att, slot.sequence, 0, 1, alone=True),
                )
            )

    def _scores_pair(self, att: Attention, slot: _Slot, tile: Tile) -> None:
        row0 = slot.sequence * self.seq_blocks
        q, k = slot.q, slot.k
        groups = [i for i in range(2) if q[i]]
        for i in groups:
            at = row0 + slot.start + (q[0] if i else 0)
            tile.loads.append(self._blocks(att.q, at, q[i], slot.head, 1, f"MemA{i}"))
            self.mem[f"MemA{i}"].append(
                Job({"load": 1, "dim1": 128 * q[i], "dim2": 64}, {"send": 1, "acc_a": q[i], "acc_b": k[0]})
            )
        for j in range(2):
            at = row0 + (k[0] if j else 0)
            tile.loads.append(self._blocks(att.k, at, k[j], slot.head, 1, f"MemB{j}"))
            self.mem[f"MemB{j}"].append(
                Job(
                    {"load": 1, "transpose": 1, "dim1": 64, "dim2": 128 * k[j]},
                    {"send": 1, "acc_a": q[0], "acc_b": k[j]},
                )
            )
        for a in range(q[0]):
            active = [i for i in groups if a < q[i]]
            for j, tiles in ((None, k[1]), (0, k[0] - k[1])):  # the even MMEs alone take the odd key tile
                halves = (0, 1) if j is None else (j,)
                self._route("MeshA", [f"a{i}_{2 * i + h}" for i in active for h in halves], tiles)
                self._route("MeshB", [f"b{h}_{2 * i + h}" for i in active for h in halves], tiles)
        for i in groups:
            for j in range(2):
                self._score_op(2 * i + j, q[i], k[j])
                self.mem[f"MemC{2 * i + j}"].append(
                    Job(
                        {"recv": 1, "k_iter": 1, "recv_a": q[i], "recv_b": k[j], "softmax": 1},
                        {"send": 1, "send_a": q[i], "send_b": 1, "send_k": k[j]},
                        recv_config=self._mask(att, slot.sequence, k[0] if j else 0, k[j], alone=False),
                    )
                )

    def _score_op(self, mme: int, acc_a: int, acc_b: int) -> None:
        """One product in K = 64 mode; equal ones in a row are one op, iterated over k."""
        ops = self.mme[f"MME{mme}"]
        op = f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=acc_a, acc_b=acc_b, n128=1)
        if ops and _same_but(ops[-1], op, "k_iter") and ops[-1].k_iter < 127:
            op = _with(op, k_iter=ops.pop().k_iter + 1)
        ops.append(op)

    def _value_op(self, mme: int, acc_a: int, k_iter: int) -> None:
        """P V, accumulated over the key tiles in the MME, 64 columns wide; equal ones in a row count up a_iter."""
        ops = self.mme[f"MME{mme}"]
        op = f.Mme(a_iter=1, b_iter=1, k_iter=k_iter, acc_a=acc_a, acc_b=1, k128=1, acc_k=1)
        if ops and _same_but(ops[-1], op, "a_iter") and ops[-1].a_iter < 15:
            op = _with(op, a_iter=ops.pop().a_iter + 1)
        ops.append(op)

    def _values(self, att: Attention, slot: _Slot, tile: Tile) -> None:
        if slot.alone:
            self._values_single(att, slot, tile)
        else:
            self._values_pair(att, slot, tile)

    def _values_single(self, att: Attention, slot: _Slot, tile: Tile) -> None:
        n, row, col = slot.heads, slot.sequence, slot.head
        for h in range(n):
            tile.loads.append(self._blocks(att.v, row, 1, col + h, 1, "MemB2"))
        self.mem["MemB2"].append(
            Job({"load": 1, "dim1": 128 * n, "dim2": 64}, {"send": 1, "acc_a": 1, "acc_b": 1, "acc_k": n})
        )
        for j in range(2):  # P of heads j and j+2, in lock step
            self._route("MeshA", [f"c{m}_{4 + m // 2}" for m in range(j, n, 2)], 1)
        for i in range(2):
            count = max(0, min(2, n - 2 * i))
            if not count:
                continue
            self._route("MeshB", [f"b2_{4 + i}"], count)
            for _ in range(count):
                self._value_op(4 + i, 1, 1)
            c = f"MemC{4 + i}"
            self.mem[c].append(
                Job(
                    {"recv": 1, "k_iter": 1, "recv_a": count, "recv_b": 1},
                    {"store": 1, "dim1": 128 * count, "dim2": 64},
                )
            )
            slot.tile.stores.append(self._blocks(att.y, row, 1, col + 2 * i, count, c, store=True))

    def _values_pair(self, att: Attention, slot: _Slot, tile: Tile) -> None:
        row0 = slot.sequence * self.seq_blocks
        q, k = slot.q, slot.k
        groups = [i for i in range(2) if q[i]]
        parts = [(s, min(4, self.seq_blocks - s)) for s in range(0, self.seq_blocks, 4)]
        repeats = 1 if len(parts) == 1 else q[0]
        for repeat in range(repeats):
            for start, count in parts:
                load: dict[str, Any] = {}
                if repeat == 0:
                    tile.loads.append(self._blocks(att.v, row0 + start, count, slot.head, 1, "MemB2"))
                    load = {"load": 1, "dim1": 128 * count, "dim2": 64}
                rows = q[0] if len(parts) == 1 else 1
                self.mem["MemB2"].append(Job(load, {"send": 1, "acc_a": rows, "acc_b": 1, "acc_k": count}))
        for a in range(q[0]):
            active = [i for i in groups if a < q[i]]
            for j in range(2):
                self._route("MeshA", [f"c{2 * i + j}_{4 + i}" for i in active], k[j])
            self._route("MeshB", [f"b2_{4 + i}" for i in active], self.seq_blocks)
        for i in groups:
            self._value_op(4 + i, q[i], self.seq_blocks)
            c = f"MemC{4 + i}"
            self.mem[c].append(
                Job(
                    {"recv": 1, "k_iter": 1, "recv_a": q[i], "recv_b": 1},
                    {"store": 1, "dim1": 128 * q[i], "dim2": 64},
                )
            )
            at = row0 + slot.start + (q[0] if i else 0)
            slot.tile.stores.append(self._blocks(att.y, at, q[i], slot.head, 1, c, store=True))

    # -- chains

    def _chain(self, unit: str, jobs: Sequence[Job], patches: dict[str, list[KernelPatch]]) -> list[Record]:
        """uOP i does the first half of job i and the second half of job i - 1."""
        kind = {"MemA": f.MemA, "MemB": f.MemB, "MemC": f.MemC}[unit[:4]]
        out: list[Record] = []
        current: dict[str, Any] = {}
        for i in range(len(jobs) + 1 if jobs else 0):
            fields: dict[str, Any] = {}
            wanted: dict[str, Any] = {}
            if i < len(jobs):
                fields |= jobs[i].first
                wanted |= jobs[i].recv_config
            if i:
                fields |= jobs[i - 1].second
                wanted |= jobs[i - 1].store_config
            if any(current.get(name, _POWER_ON.get(name)) != value for name, value in wanted.items()):
                current |= wanted
                lengths = {n: v for n, v in current.items() if isinstance(v, Length)}
                for name, v in lengths.items():
                    patch = KernelPatch(unit, len(out), name, v.base, v.cap)
                    patches.setdefault(_length_name(v.sequence), []).append(patch)
                out.append(f.MemCConfig(**{n: 0 if n in lengths else v for n, v in current.items()}))
            out.append(kind(**fields))
        return out


_POWER_ON = {x.name: getattr(f.MemCConfig(), x.name) for x in f.MemCConfig.FIELDS}


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


@dataclass
class _Slot:
    """One step of the attention pipeline. q, k: row and key blocks per half; start: first row block of the sequence."""

    sequence: int
    head: int
    q: tuple[int, int]
    k: tuple[int, int]
    heads: int = 1
    start: int = 0
    alone: bool = False
    tile: Tile = field(default_factory=Tile)


def _length_name(sequence: int) -> str:
    return f"len[{sequence}]"


def _reads(layer: Gemm | Attention) -> list[str]:
    if isinstance(layer, Attention):
        return [layer.q, layer.k, layer.v]
    return [layer.x] if layer.residual is None else [layer.x, layer.residual]


def _plain(values: Array | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(v) for v in values)


def _op_runs(tiles: Sequence[RowTile], merge: bool) -> list[list[RowTile]]:
    """Row tiles of one MME op: neighbours of equal shape, at most 15."""
    out: list[list[RowTile]] = []
    for t in tiles:
        if merge and out and len(out[-1]) < 15 and (out[-1][0].groups, out[-1][0].acc) == (t.groups, t.acc):
            out[-1].append(t)
        else:
            out.append([t])
    return out


def _same_but(a: Record, b: Record, name: str) -> bool:
    return all(getattr(a, x.name) == getattr(b, x.name) for x in b.FIELDS if x.name != name)


def _with(op: f.Mme, **changes: int) -> f.Mme:
    import dataclasses

    return dataclasses.replace(op, **changes)
