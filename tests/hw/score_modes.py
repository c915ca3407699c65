"""Programs in which two neighbouring MemCs of overlay `xnn` take a softmax of long rows, in parts, with masks and soft
caps, and what they should store, by numpy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.work import KeyPart
from rsn.tests.hw.store_modes import BLOCK, TILE, Array, run, scaling, transfer


@dataclass
class Scores:
    """A softmax over the columns of x, which come in chunks, each half of a chunk to one of MemC0 and MemC1.

    x: (chunks, 2, rows, columns received). A single chunk is taken at once unless `parts`. alone: each MemC has rows of
    its own. first, end: the columns that count; of these, those from row + low to row + offset, where given.
    """

    x: Array
    parts: bool = True
    alone: int = 0
    max_sub: int = 1
    scale: float = 1.0
    cap: float | None = None
    first: int = 0
    end: int | None = None
    offset: int | None = None
    low: int | None = None

    def run(self, overlay: Overlay = XNN) -> tuple[list[Array], float]:
        """The probabilities that each MemC stores, (rows, chunks * columns), and the seconds."""
        chunks, _, rows, cols = self.x.shape
        passes = [*self._passes()]
        pieces = [
            [block(np.ascontiguousarray(tile, np.float32)).reshape(-1) for _, tile in self._tiles(chunk)]
            for chunk in range(chunks)
        ]
        tiles = len(pieces[0])
        size = rows * cols
        memory = np.concatenate([*(p for chunk in pieces for p in chunk), np.zeros(2 * chunks * size, np.float32)])
        out = chunks * tiles * 2 * BLOCK
        ddr = []
        for chunk, _ in passes:
            ddr += [transfer((chunk * tiles + i) * 2 * BLOCK, 2 * BLOCK, to="MemA0") for i in range(tiles)]
        stored = [chunk for chunk, part in passes if part in (KeyPart.ALL, KeyPart.APPLY)]
        stores = [transfer(out + (2 * chunk + j) * size, size, source=f"MemC{j}") for chunk in stored for j in range(2)]
        count = len(passes) * tiles
        fills, sends = [{"load": 1, "dim1": TILE, "dim2": TILE}] * count, [{"send": 1, "acc_a": 1, "acc_b": 1}] * count
        vector = [f.MemB(load=1, bias=1, dim1=16, dim2=1), f.MemB(send=1, acc_a=1, acc_b=1)]
        op = scaling(rows // TILE, cols // TILE)
        after, seconds = run(
            {
                "DDR": self._interleaved(ddr, stores, tiles, passes),
                "LPDDR": [f.Lpddr(addr=0, size=512, bias=1, to_b0=1), f.Lpddr(addr=0, size=512, bias=1, to_b1=1)],
                "MemA0": [f.MemA(**(a | b)) for a, b in zip([*fills, {}], [{}, *sends], strict=True)],
                **{f"MemB{j}": vector for j in range(2)},
                "MeshA": [f.MeshA(size=512, a0_0=1 - j, a0_1=j) for j, _ in self._tiles(0)] * len(passes),
                "MeshB": [f.MeshB(size=512, b0_0=1, b1_1=1)],
                **{f"MME{j}": [op.replace(load_prev=int(not i)) for i in range(len(passes))] for j in range(2)},
                **{f"MemC{j}": [*self._mem_c(j, passes)] for j in range(2)},
            },
            memory,
            np.ones(512, np.float32),
            overlay,
        )
        found = [
            [unblock(after[out + (2 * chunk + j) * size :][:size], rows, cols) for chunk in range(chunks)]
            for j in range(2)
        ]
        return [np.concatenate(of, axis=1) for of in found], seconds

    def _passes(self) -> Iterator[tuple[int, KeyPart]]:
        chunks = len(self.x)
        if not self.parts:
            yield 0, KeyPart.ALL
            return
        yield from ((chunk, KeyPart.MORE if chunk else KeyPart.FIRST) for chunk in range(chunks))
        yield from ((chunk, KeyPart.APPLY) for chunk in range(chunks))

    def _tiles(self, chunk: int) -> Iterator[tuple[int, Array]]:
        """The tiles of a chunk, in the order in which MME0 and MME1 take them."""
        _, _, rows, cols = self.x.shape
        for i in range(0, rows, TILE):
            for j in range(0, cols, TILE):
                for half in range(2):
                    yield half, self.x[chunk, half, i : i + TILE, j : j + TILE]

    @staticmethod
    def _interleaved(
        loads: list[f.Ddr], stores: list[f.Ddr], tiles: int, passes: list[tuple[int, KeyPart]]
    ) -> Iterator[f.Ddr]:
        """The stores of a pass behind the loads of the next one."""
        waiting: list[f.Ddr] = []
        for number, (_, part) in enumerate(passes):
            yield from loads[number * tiles : number * tiles + tiles]
            yield from waiting
            waiting = [stores.pop(0), stores.pop(0)] if part in (KeyPart.ALL, KeyPart.APPLY) else []
        yield from waiting

    def _mem_c(self, j: int, passes: list[tuple[int, KeyPart]]) -> Iterator[Any]:
        _, _, rows, cols = self.x.shape
        store: dict[str, int] = {}
        for chunk, part in passes:
            base, before = self._first_column(chunk, j), self._first_column(chunk, 0)
            yield f.MemCConfig(
                softmax_cols=1023 if self.end is None else min(max(self.end - base, 0), cols),
                max_sub=self.max_sub,
                alone=self.alone,
                scale=self.scale,
                causal=self.offset is not None,
                offset=(self.offset or 0) - before,
            )
            yield f.MemCScores(
                first_cols=min(max(self.first - base, 0), cols),
                windowed=self.low is not None,
                low=(self.low or 0) - before,
                capped=self.cap is not None,
                cap=self.cap or 1.0,
                inverse_cap=1 / (self.cap or 1.0),
                part=part,
            )
            yield f.MemC(recv=1, recv_a=rows // TILE, recv_b=cols // TILE, k_iter=1, softmax=1, **store)
            store = {"store": 1, "dim1": rows, "dim2": cols} if part in (KeyPart.ALL, KeyPart.APPLY) else {}
        yield f.MemC(**store)

    def _first_column(self, chunk: int, j: int) -> int:
        """Of what a MemC receives of a chunk, in its rows."""
        cols = self.x.shape[3]
        return chunk * cols if self.alone else (2 * chunk + j) * cols

    def expected(self) -> list[Array]:
        chunks = len(self.x)
        if self.alone:
            return [self._softmax(np.concatenate([*self.x[:, j]], axis=1)) for j in range(2)]
        whole = self._softmax(np.concatenate([self.x[c, j] for c in range(chunks) for j in range(2)], axis=1))
        parts = np.split(whole, 2 * chunks, axis=1)
        return [np.concatenate(parts[j::2], axis=1) for j in range(2)]

    def _softmax(self, x: Array) -> Array:
        x = x.astype(np.float64) * np.float32(self.scale)
        if self.cap is not None:
            x = self.cap * np.tanh(x / self.cap)
        r, c = np.arange(x.shape[0])[:, None], np.arange(x.shape[1])[None]
        valid = np.broadcast_to((c >= self.first) & (c < (x.shape[1] if self.end is None else self.end)), x.shape)
        if self.offset is not None:
            valid = valid & (c <= r + self.offset)
        if self.low is not None:
            valid = valid & (c >= r + self.low)
        x = np.where(valid, x, -np.inf)
        top = np.where(valid.any(1), x.max(1), 0)[:, None]
        e = np.exp(x - top)
        total = e.sum(1, keepdims=True)
        return np.asarray(np.divide(e, total, out=np.zeros_like(e), where=total > 0))


def left_three_times(x: Array, overlay: Overlay = XNN) -> tuple[list[list[Array]], float]:
    """A softmax that leaves its slot three times: as it is, with gelu, and with gelu of that once more.

    x: (2, rows, columns), the scores of MemC0 and MemC1. Returns of each of them what the three stores wrote, and the
    seconds."""
    _, rows, cols = x.shape
    whole = Scores(x[None])
    pieces = [block(np.ascontiguousarray(tile, np.float32)).reshape(-1) for _, tile in whole._tiles(0)]
    at, size, times = len(pieces) * 2 * BLOCK, rows * cols, 3
    stores = [transfer(at + i * size, size, source=f"MemC{i % 2}") for i in range(2 * times)]
    vector = [f.MemB(load=1, bias=1, dim1=16, dim2=1), f.MemB(send=1, acc_a=1, acc_b=1)]
    fills = [{"load": 1, "dim1": TILE, "dim2": TILE}] * len(pieces)
    sends = [{"send": 1, "acc_a": 1, "acc_b": 1}] * len(pieces)
    store = f.MemC(store=1, dim1=rows, dim2=cols)
    mem_c = [
        f.MemCConfig(max_sub=1, activation=0),
        f.MemC(recv=1, recv_a=rows // TILE, recv_b=cols // TILE, k_iter=1, softmax=1),
        store,
        f.MemC(),
        store.replace(gelu=1),
        f.MemC(),
        store.replace(gelu=1),
    ]
    after, seconds = run(
        {
            "DDR": [*(transfer(i * 2 * BLOCK, 2 * BLOCK, to="MemA0") for i in range(len(pieces))), *stores],
            "LPDDR": [f.Lpddr(addr=0, size=512, bias=1, to_b0=1), f.Lpddr(addr=0, size=512, bias=1, to_b1=1)],
            "MemA0": [f.MemA(**(a | b)) for a, b in zip([*fills, {}], [{}, *sends], strict=True)],
            **{f"MemB{j}": vector for j in range(2)},
            "MeshA": [f.MeshA(size=512, a0_0=1 - j, a0_1=j) for j, _ in whole._tiles(0)],
            "MeshB": [f.MeshB(size=512, b0_0=1, b1_1=1)],
            **{f"MME{j}": [scaling(rows // TILE, cols // TILE, load=1)] for j in range(2)},
            **{f"MemC{j}": mem_c for j in range(2)},
        },
        np.concatenate([*pieces, np.zeros(2 * times * size, np.float32)]),
        np.ones(512, np.float32),
        overlay,
    )
    out = after[at:].reshape(times, 2, size)
    return [[unblock(out[i, j], rows, cols) for i in range(times)] for j in range(2)], seconds
