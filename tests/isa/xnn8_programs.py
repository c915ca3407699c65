"""Programs for xnn8, written by hand, and the memory that they run on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rsn.hw.sim.machine import Run, simulate
from rsn.isa.layout import UNIT
from rsn.isa.overlays.xnn8 import XNN8, numbers
from rsn.isa.overlays.xnn8.emission import IntegerEmitter, PanelNorm, PlacedSequence, StoredConstants, StoredWeights
from rsn.isa.overlays.xnn8.formats import LANE_ROWS, PAIRS, LaneMemory
from rsn.isa.overlays.xnn8.numbers import BLOCK, BlockNumbers, Integers
from rsn.isa.overlays.xnn8.stored import (
    PackedConstants,
    columns_of,
    constant_words,
    row_words,
    rows_of_words,
    short_weight_words,
    weight_words,
)
from rsn.isa.program import Buffer, Layout, Program, Role, UnpackedProgram
from rsn.scheduler.pack import pack


class HandMade:
    """A program and what its memories hold. engines: that compute. sequences: of each. lanes: of a sequence, in each
    engine. rows: of a lane. spread: all engines have rows of one sequence."""

    def __init__(
        self, engines: int, sequences: int, lanes: int, rows: int = LANE_ROWS, *, spread: bool = False
    ) -> None:
        self.emit = IntegerEmitter(XNN8)
        if spread:
            self.placed = [PlacedSequence(e, 0, lanes, rows, 0, e, engines) for e in range(engines)]
        else:
            places = enumerate((e, s) for e in range(engines) for s in range(sequences))
            self.placed = [PlacedSequence(e, s * lanes, lanes, rows, i) for i, (e, s) in places]
        self.emit.begin(self.placed)
        self.sequences = 1 if spread else len(self.placed)
        self.pitch = lanes * rows * self.placed[0].parts
        """Rows of a sequence."""
        self.rows = self.sequences * self.pitch
        self._held: dict[str, list[Any]] = {"ddr": [], "lpddr": []}
        self._output = (0, 0, 0)

    def put(self, bank: str, words: Any) -> int:
        """Put words behind the others. Returns their address."""
        at = sum(map(len, self._held[bank])) // UNIT
        self._held[bank].append(np.pad(words, (0, -len(words) % UNIT)))
        return at

    def load(self, x: BlockNumbers, gains: BlockNumbers | None, memory: LaneMemory = LaneMemory.X) -> None:
        """Load rows (all sequences, blocks, 64) to X or Angles."""
        parts = (BlockNumbers(*(y[i : i + self.pitch] for y in x)) for i in range(0, self.rows, self.pitch))
        stored = None if gains is None else self.gains(gains)
        self.emit.load([self.put("ddr", row_words(part)) for part in parts], 0, x.integers.shape[1], stored, memory)

    def gains(self, gains: BlockNumbers) -> StoredConstants:
        """Store gains of blocks of X."""
        return self.constants([(g, g, 0) for g in columns_of(gains)])

    def constants(self, *vectors: Sequence[Any]) -> StoredConstants:
        """Store constants. vectors: of each kind, by block: two vectors and a shift."""
        blocks = [[PackedConstants(*v) for v in of_block] for of_block in zip(*vectors, strict=True)]
        return StoredConstants(self.put("lpddr", constant_words(blocks)), len(vectors))

    def weights(
        self, weight: Integers, shifts: Integers, of_ddr: int, multipliers: npt.NDArray[np.uint8] | None = None
    ) -> list[StoredWeights]:
        """Store a weight (K, N), in blocks of 512 columns. multipliers: of one of 4 bits."""
        made = []
        for at in range(0, weight.shape[1], BLOCK * PAIRS):
            part = weight[:, at : at + BLOCK * PAIRS]
            columns = part.shape[1] // BLOCK
            ddr = min(of_ddr, columns)
            if multipliers is None:
                words = weight_words(part, ddr)
            else:
                words = short_weight_words(part.astype(np.int8), multipliers[:, at : at + BLOCK * PAIRS], ddr)
            in_lpddr, in_ddr = (self.put(*x) for x in zip(("lpddr", "ddr"), words, strict=True))
            of_part = tuple(shifts[at // BLOCK : at // BLOCK + columns, 0].tolist())
            made.append(StoredWeights(in_lpddr, in_ddr, ddr, of_part, multipliers is not None))
        return made

    def store(self, blocks: int, norm: PanelNorm | None = None) -> None:
        """Store blocks of X, which a norm may change."""
        size = blocks * self.pitch * (BLOCK + 1) // 2
        first = self.put("ddr", np.zeros(size * self.sequences, np.float32))
        affine = None
        if norm is not None:
            rng = np.random.default_rng(blocks)
            gain, shift = (
                numbers.blocks_of(rng.uniform(low, high, 64 * blocks), numbers.X_BITS)
                for low, high in ((0.5, 2.0), (-1.0, 1.0))
            )
            affine = self.constants([[*pair, 0] for pair in zip(columns_of(gain), columns_of(shift), strict=True)])
        self.emit.store([first + i * size // UNIT for i in range(self.sequences)], 0, blocks, norm, affine)
        self._output = (first * UNIT, size, blocks)

    @cached_property
    def program(self) -> Program:
        """The program, with a buffer for each memory."""
        self.emit.finish()
        sizes = {bank: max(UNIT, sum(map(len, held))) for bank, held in self._held.items()}
        roles = {"ddr": Role.STATE, "lpddr": Role.WEIGHT}
        buffers = [Buffer(bank, bank, 0, (size,), Layout.LINEAR, roles[bank]) for bank, size in sizes.items()]
        sequences = {unit: tuple(mops) for unit, mops in self.emit.sequences.items() if mops}
        return pack(UnpackedProgram(XNN8, sequences, buffers=tuple(buffers)))

    def banks(self) -> dict[str, Any]:
        """What the memories hold before the run."""
        return {bank: np.concatenate([*held, np.zeros(UNIT, np.float32)]) for bank, held in self._held.items()}

    def run(self) -> tuple[Run, BlockNumbers]:
        """Run it. Returns the run, and the blocks that were stored, of all sequences."""
        banks = self.banks()
        run = simulate(self.program, banks)
        at, size, blocks = self._output
        parts = [
            rows_of_words(banks["ddr"][at + i * size : at + (i + 1) * size], blocks) for i in range(self.sequences)
        ]
        return run, BlockNumbers(*(np.concatenate(x) for x in zip(*parts, strict=True)))
