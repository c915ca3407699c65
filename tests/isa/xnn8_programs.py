"""Programs for xnn8, written by hand, and the memory that they run on."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from rsn.hw.sim.machine import Run, simulate
from rsn.isa.layout import UNIT
from rsn.isa.overlays.xnn8 import XNN8
from rsn.isa.overlays.xnn8.formats import LANE_ROWS, PAIRS
from rsn.isa.overlays.xnn8.lanes import PackedConstants, packed_block, unpacked_block
from rsn.isa.overlays.xnn8.numbers import BLOCK, BlockNumbers, Integers
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Program, Role
from rsn.tests.isa.xnn8_emission import (
    PanelEmitter,
    StoredConstants,
    StoredWeights,
    columns_of,
    constant_words,
    weight_words,
)


class HandMade:
    """A program and what its memories hold."""

    def __init__(self, engines: int, lanes: int) -> None:
        self.emit = PanelEmitter(XNN8)
        self.emit.begin(engines, lanes)
        self.engines, self.rows = engines, lanes * LANE_ROWS
        self._held: dict[str, list[Any]] = {"ddr": [], "lpddr": []}
        self._outputs: list[tuple[int, int]] = []

    def put(self, bank: str, words: Any) -> int:
        """Put words behind the others. Returns their address."""
        at = sum(map(len, self._held[bank])) // UNIT
        self._held[bank].append(np.pad(words, (0, -len(words) % UNIT)))
        return at

    def load(self, x: BlockNumbers, gains: BlockNumbers | None) -> None:
        """Load rows (engines * rows, blocks, 64)."""
        blocks = x.integers.shape[1]
        parts = (slice(self.rows * i, self.rows * (i + 1)) for i in range(self.engines))
        at = [
            self.put("ddr", np.concatenate([packed_block(block_of(x, rows, i)) for i in range(blocks)]))
            for rows in parts
        ]
        self.emit.load(at, blocks, None if gains is None else self.constants([[g, g, 0] for g in columns_of(gains)]))

    def constants(self, *vectors: Any) -> StoredConstants:
        """Store constants. vectors: of each kind, by block: two vectors and a shift."""
        blocks = [[PackedConstants(*v) for v in of_block] for of_block in zip(*vectors, strict=True)]
        return StoredConstants(self.put("lpddr", constant_words(blocks)), len(vectors))

    def weights(self, weight: Integers, shifts: Integers, of_ddr: int) -> list[StoredWeights]:
        """Store a weight (K, N), in blocks of 512 columns."""
        made = []
        for at in range(0, weight.shape[1], BLOCK * PAIRS):
            part = weight[:, at : at + BLOCK * PAIRS]
            ddr = min(of_ddr, part.shape[1] // BLOCK)
            lpddr_words, ddr_words = weight_words(part, ddr)
            of_part = tuple(shifts[at // BLOCK : at // BLOCK + part.shape[1] // BLOCK, 0].tolist())
            made.append(StoredWeights(self.put("lpddr", lpddr_words), self.put("ddr", ddr_words), ddr, of_part))
        return made

    def space(self, blocks: int) -> list[int]:
        """Room for blocks of X that are stored, for each engine."""
        size = blocks * self.rows * (BLOCK + 1) // 2
        at = [self.put("ddr", np.zeros(size, np.float32)) for _ in range(self.engines)]
        self._outputs += [(x, size) for x in at]
        return at

    @cached_property
    def program(self) -> Program:
        """The program, with a buffer for each memory."""
        packets: list[Packet] = self.emit.finish()
        sizes = {bank: max(UNIT, sum(map(len, held))) for bank, held in self._held.items()}
        roles = {"ddr": Role.STATE, "lpddr": Role.WEIGHT}
        buffers = [Buffer(bank, bank, 0, (size,), Layout.LINEAR, roles[bank]) for bank, size in sizes.items()]
        return Program(XNN8, tuple(packets), buffers=tuple(buffers))

    def run(self) -> tuple[Run, BlockNumbers]:
        """Run it. Returns the run, and the blocks of the last room that was stored to, of all engines."""
        banks = {bank: np.concatenate([*held, np.zeros(UNIT, np.float32)]) for bank, held in self._held.items()}
        run = simulate(self.program, banks)
        parts = []
        for at, size in self._outputs:
            blocks = unpacked_block(banks["ddr"][at * UNIT : at * UNIT + size])
            parts.append([x.reshape(-1, self.rows, x.shape[-1]).swapaxes(0, 1) for x in blocks])
        return run, BlockNumbers(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def block_of(x: BlockNumbers, rows: slice, block: int) -> BlockNumbers:
    """One block of some rows."""
    return BlockNumbers(x.integers[rows, block : block + 1], x.exponents[rows, block : block + 1])
