"""Programs in which a MemA of overlay `xnn` normalises the rows that it loads, and what they should send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.tests.hw.store_modes import Array, run, scaling, transfer

QUARTER = 2048


@dataclass
class Norm:
    """Rows of x (row tiles * 128, columns in `parts` parts) are normalised as a MemA loads 128 of their columns.

    loads: row tiles of each load, with the registers `first` and `same`; the statistics are loaded before the first.
    centred: they have a mean although the norm is without one.
    """

    x: Array
    parts: tuple[int, ...]
    loads: tuple[tuple[int, int, int], ...]
    rms: int = 0
    eps: float = 1e-3
    centred: bool = False

    def run(self, overlay: Overlay = XNN) -> tuple[list[Array], float]:
        """What each load brought, and the seconds."""
        tiles = len(self.x) // 128
        quarters = []
        for tile in range(tiles):
            for part in np.split(self.x[128 * tile : 128 * tile + 128], np.cumsum(self.parts)[:-1], axis=1):
                quarter = np.zeros((128, 16), np.float32)
                mean = part.mean(1, dtype=np.float64) if self.centred or not self.rms else np.zeros(128)
                quarter[:, 0], quarter[:, 2] = mean, part.shape[1]
                quarter[:, 1] = np.square(part - mean[:, None]).mean(1)
                quarters.append(quarter.reshape(-1))
        memory = np.concatenate([*quarters, block(np.ascontiguousarray(self.x[:, :128])).reshape(-1)])
        at = len(quarters) * QUARTER
        out = len(memory)
        ddr = [transfer(i * QUARTER, QUARTER, to="MemA0") for i in range(len(quarters))]
        mem_a: list[f.MemA | f.MemANorm] = []
        send: dict[str, int] = {}
        for number, (count, first, same) in enumerate(self.loads):
            registers = f.MemANorm(
                normalise=1, rms=self.rms, eps=self.eps, first=first, same=same, parts=len(self.parts),
                rows=0 if number else tiles,
            )  # fmt: skip
            ddr.append(transfer(at, count * 16384, to="MemA0"))
            mem_a += [registers, f.MemA(load=1, dim1=128 * count, dim2=128, **send)]
            send = {"send": 1, "acc_a": count, "acc_b": 1}
        mem_a.append(f.MemA(**send))
        sizes = [16384 * count for count, _, _ in self.loads]
        starts = np.cumsum([out, *sizes])
        stores = [transfer(int(a), n, source="MemC0") for a, n in zip(starts, sizes, strict=False)]
        total = sum(count for count, _, _ in self.loads)
        mem_c: list[f.MemC] = []
        for count, _, _ in self.loads:
            mem_c += [
                f.MemC(recv=1, recv_a=count, recv_b=1, k_iter=1),
                f.MemC(store=1, dim1=128 * count, dim2=128),
            ]
        after, seconds = run(
            {
                "DDR": [*ddr, *stores],
                "LPDDR": [f.Lpddr(addr=0, size=128, bias=1, to_b0=1)],
                "MemA0": mem_a,
                "MemB0": [f.MemB(load=1, bias=1, dim1=4, dim2=1), f.MemB(send=1, acc_a=1, acc_b=1)],
                "MeshA": [f.MeshA(size=512 * total, a0_0=1)],
                "MeshB": [f.MeshB(size=512, b0_0=1)],
                "MME0": [scaling(count, 1, load=int(not number)) for number, (count, _, _) in enumerate(self.loads)],
                "MemC0": mem_c,
            },
            np.concatenate([memory, np.zeros(sum(sizes), np.float32)]),
            np.ones(128, np.float32),
            overlay,
        )
        return [unblock(after[a : a + n], n // 128, 128) for a, n in zip(starts, sizes, strict=False)], seconds

    def expected(self) -> list[Array]:
        x = self.x.astype(np.float64)
        mean = np.zeros((len(x), 1)) if self.rms else x.mean(1, keepdims=True)
        factor = 1 / np.sqrt(np.square(x - mean).mean(1, keepdims=True) + self.eps)
        out = []
        for count, first, same in self.loads:
            rows = np.arange(128 * count)
            by = (first + (0 if same else rows // 128)) * 128 + rows % 128
            out.append((x[rows, :128] - mean[by]) * factor[by])
        return out
