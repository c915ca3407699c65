"""Programs that store a matrix through two neighbouring MemCs with the registers of opcodes 8, 10 and 11, and what they
should store, by numpy in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import erf

from rsn.hw.sim.dataflow import DataRun
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.overlays.xnn.checks import rules
from rsn.isa.packet import Packet
from rsn.isa.program import Program
from rsn.machine.executor import ProcessNetwork
from rsn.machine.plan import execute

Array = npt.NDArray[Any]
TILE, BLOCK, QUARTER = 128, 8192, 2048


def transfer(at: int, size: int, *, to: str = "", source: str = "") -> f.Ddr:
    flags = {x.name: 1 for x in f.Ddr.FIELDS if (to and x.to == to) or (source and x.source == source)}
    return f.Ddr(addr=at // 16, size=size, load=bool(to), store=bool(source), **flags)  # type: ignore[arg-type]


def run(units: dict[str, list[Any]], ddr: Array, lpddr: Array, overlay: Overlay = XNN) -> tuple[Array, float]:
    """DDR after a program, by the engine with clocks and by the one without, which must agree; and the seconds, as the
    compiled engine finds them, too. rsn check finds no mistake in the program; mutants are not checked."""
    packets = []
    for unit, mops in units.items():
        spec = overlay.by_unit[unit]
        if spec.kind in overlay.preloaded:
            continue
        many = len(overlay.by_kind[spec.kind]) > 1
        for mop in mops:
            opcode = next(x.opcode for x in overlay.formats if x.kind == spec.kind and x.mop is type(mop))
            packets.append(Packet.of(opcode, [mop], mask=1 << spec.index if many else 0))
    preloaded = {u: tuple(ops) for u, ops in units.items() if overlay.by_unit[u].kind in overlay.preloaded}
    path = InstructionPath(overlay, packets, preloaded)
    both = [{"ddr": ddr.copy(), "lpddr": lpddr.copy()} for _ in range(2)]
    uops = {u.name: [*path.uops(u.name)] for u in overlay.units}
    seconds = ProcessNetwork(overlay, uops, banks=both[0], data=True).run()
    if overlay is XNN:
        assert execute(overlay, uops).latency == pytest.approx(seconds, rel=1e-9)
        program = Program(overlay, tuple(packets), preloaded)
        assert not [str(x) for x in rules(ExpandedProgram(program), True) if not x.warning]
    DataRun(path, banks=both[1], where=path.where).run()
    np.testing.assert_array_equal(both[0]["ddr"], both[1]["ddr"])
    return both[0]["ddr"], seconds


@dataclass
class Halves:
    """A matrix, of which each of MemC0 and MemC1 receives and stores one half of the columns.

    x: (2, rows, columns received). table: own and partner factors, each (rows, head), or None. stored: columns that
    each stores. repeats: how often all of it happens. config, post: registers of each.
    """

    x: Array
    stored: tuple[int, int]
    config: tuple[f.MemCConfig, f.MemCConfig] = (f.MemCConfig(), f.MemCConfig())
    post: tuple[f.MemCStore, f.MemCStore] = (f.MemCStore(), f.MemCStore())
    flags: dict[str, int] = field(default_factory=dict)
    table: tuple[Array, Array] | None = None
    repeats: int = 1

    @property
    def rows(self) -> int:
        return int(self.x.shape[1])

    @property
    def head(self) -> int:
        return (0, 64, 128, 256)[self.post[0].head]

    def run(self, overlay: Overlay = XNN) -> tuple[list[Array], Array | None, float]:
        """What each MemC stored in the last repetition, the statistics behind it (rows, 16), and the seconds."""
        tiles_a, tiles_b = self.rows // TILE, self.x.shape[2] // TILE
        pieces, ops = self._pieces(self.x, 0), [scaling(tiles_a, tiles_b, load=1)]
        if self.table is not None:
            table = packed_table(*self.table)
            pieces += self._pieces(np.stack([table, table]), len(pieces))
            ops.append(scaling(tiles_a, table.shape[1] // TILE))
        statistics = bool(self.post[0].statistics and self.flags.get("layernorm"))
        memory = np.concatenate([*(piece for _, piece in pieces), np.zeros(self._stored(statistics), np.float32)])
        at = len(pieces) * 2 * BLOCK
        loads = [transfer(2 * BLOCK * i, 2 * BLOCK, to="MemA0") for i in range(len(pieces))]
        stores = []
        for j, cols in enumerate(self.stored):
            if cols:
                stores.append(transfer(at, self.rows * cols, source=f"MemC{j}"))
                at += self.rows * cols
            if statistics and not j:
                for _ in range(tiles_a):
                    stores.append(transfer(at, QUARTER, source="MemC0"))
                    at += QUARTER
        count = self.repeats * len(pieces)
        vector = [f.MemB(load=1, bias=1, dim1=16, dim2=1), f.MemB(send=1, acc_a=1, acc_b=1)]
        fills = [{"load": 1, "dim1": TILE, "dim2": TILE}] * count
        sends = [{"send": 1, "acc_a": 1, "acc_b": 1}] * count
        mem_c = []
        for j in range(2):
            recv = f.MemC(recv=1, recv_a=tiles_a, recv_b=tiles_b, k_iter=1)
            fill = [f.MemCTable(recv_a=tiles_a, recv_b=2 * self.head // TILE or 1)] if self.table is not None else []
            store = f.MemC(store=1, dim1=self.rows, dim2=self.stored[j], **self.flags)
            mem_c.append([self.config[j], self.post[j], *[recv, *fill, store] * self.repeats])
        after, seconds = run(
            {
                "DDR": [*loads, *stores] * self.repeats,
                "LPDDR": [f.Lpddr(addr=0, size=512, bias=1, to_b0=1), f.Lpddr(addr=0, size=512, bias=1, to_b1=1)],
                "MemA0": [f.MemA(**(a | b)) for a, b in zip([*fills, {}], [{}, *sends], strict=True)],
                **{f"MemB{j}": vector for j in range(2)},
                "MeshA": [f.MeshA(size=512, a0_0=1 - j, a0_1=j) for j, _ in pieces] * self.repeats,
                "MeshB": [f.MeshB(size=512, b0_0=1, b1_1=1)],
                **{f"MME{j}": [*ops, *[op.replace(load_prev=0) for op in ops] * (self.repeats - 1)] for j in range(2)},
                **{f"MemC{j}": mem_c[j] for j in range(2)},
            },
            memory,
            np.ones(512, np.float32),
            overlay,
        )
        return *self._parts(after[len(pieces) * 2 * BLOCK :], statistics), seconds

    def _stored(self, statistics: bool) -> int:
        return self.rows * sum(self.stored) + statistics * self.rows // TILE * QUARTER

    def _pieces(self, halves: Array, first: int) -> list[tuple[int, Array]]:
        """The tiles of both halves as they lie in DDR, and for whom; of each half, in the order of its MME."""
        out = []
        for i in range(0, halves.shape[1], TILE):
            for j in range(0, halves.shape[2], TILE):
                for half in range(2):
                    tile = np.ascontiguousarray(halves[half, i : i + TILE, j : j + TILE], np.float32)
                    out.append((half, block(tile).reshape(-1)))
        return out

    def _parts(self, memory: Array, statistics: bool) -> tuple[list[Array], Array | None]:
        out, found, at = [], None, 0
        for j, cols in enumerate(self.stored):
            out.append(unblock(memory[at : at + self.rows * cols], self.rows, cols))
            at += self.rows * cols
            if statistics and not j:
                found = memory[at : at + self.rows // TILE * QUARTER].reshape(self.rows, 16)
                at += self.rows // TILE * QUARTER
        return out, found

    # -- what it should be

    def expected(self) -> tuple[list[Array], Array | None]:
        """As `run`, without the seconds."""
        x = [self.x[j].astype(np.float64) for j in range(2)]
        post, reg = self.post[0], self.config[0]
        if self.flags.get("gelu"):
            for j, cols in enumerate(self.stored):
                x[j] = act(x[j], reg.activation) if not post.gate else act(x[j][:, :cols], reg.activation) * x[j][
                    :, cols : 2 * cols
                ]  # fmt: skip
        found = None
        if self.flags.get("layernorm") and post.head_norm:
            x = [self._by_head(x[j], self.stored[j]) for j in range(2)]
        elif self.flags.get("layernorm"):
            parts = [x[j][:, : self.config[j].norm_cols] for j in range(2)]
            both = np.concatenate(parts, axis=1)
            mean = np.zeros((self.rows, 1)) if reg.rms else both.mean(1, keepdims=True)
            variance = np.square(both - mean).mean(1, keepdims=True)
            if post.statistics:
                found = np.zeros((self.rows, 16))
                found[:, 0], found[:, 1], found[:, 2] = mean[:, 0], variance[:, 0], both.shape[1]
            else:
                for j, part in enumerate(parts):
                    x[j][:, : part.shape[1]] = (part - mean) / np.sqrt(variance + reg.eps)
                    x[j][:, part.shape[1] :] = 0
        if self.table is not None and post.rotate:
            x = [self._rotated(x[j], self.stored[j]) for j in range(2)]
        return [x[j][:, : self.stored[j]] for j in range(2)], found

    def _by_head(self, x: Array, stored: int) -> Array:
        reg, post = self.config[0], self.post[0]
        out = np.zeros((self.rows, stored))
        for at in range(0, stored, self.head):
            part = x[:, at : at + post.head_cols]
            part = part - (0 if reg.rms else part.mean(1, keepdims=True))
            out[:, at : at + post.head_cols] = part / np.sqrt(np.square(part).mean(1, keepdims=True) + reg.eps)
        return out

    def _rotated(self, x: Array, stored: int) -> Array:
        assert self.table is not None
        own, partner = self.table
        out = np.zeros((self.rows, stored))
        for c in range(stored):
            out[:, c] = x[:, c] * own[:, c % self.head] + x[:, c ^ 1] * partner[:, c % self.head]
        return out


ACTIVATIONS: tuple[Callable[[Array], Array], ...] = (
    lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    lambda x: x / 2 * (1 + erf(x / np.sqrt(2))),
    lambda x: np.maximum(x, 0),
    lambda x: x / (1 + np.exp(-x)),
    lambda x: x,
)
"""In float64, by the register: GELU with tanh, GELU, ReLU, SiLU, none."""


def act(x: Array, which: int) -> Array:
    return ACTIVATIONS[which](x)


def scaling(rows: int, cols: int, load: int = 0) -> f.Mme:
    """A pass that emits its left tiles times the vector, which is all ones."""
    return f.Mme(a_iter=1, b_iter=1, acc_a=rows, acc_b=cols, load_prev=load, prev=1, n128=1, k128=1)


def packed_table(own: Array, partner: Array) -> Array:
    """A table as a MemC wants it: of every eight columns the own factors, then the partner's. (rows, 2 * head)."""
    rows, head = own.shape
    both = np.stack([x.reshape(rows, head // 8, 8) for x in (own, partner)], axis=2)
    return np.ascontiguousarray(both.reshape(rows, 2 * head), np.float32)


def same(found: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-5, atol=5e-5)
