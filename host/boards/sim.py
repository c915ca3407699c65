"""The simulator as a board: banks are arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...hw.sim.machine import Run, simulate
from ...isa.errors import BoardError
from ...isa.packet import Words
from ...isa.program import Buffer, Program, Role

Array = npt.NDArray[np.float32]


class SimBoard:
    """Holds a program and its off-chip memories. Memory that nobody has written is 0."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._banks: dict[str, Array] = {}

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        self._program = program
        self._banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in program.overlay.banks}
        for name, flat in weights.items():
            self._region(program.buffer(name))[:] = flat

    def _region(self, buffer: Buffer) -> Array:
        if self._program is None:
            raise BoardError("no program is loaded")
        start = buffer.offset * self._program.overlay.address_unit
        return self._banks[buffer.bank][start : start + buffer.size]

    def run(self, words: Words, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], Run]:
        if self._program is None:
            raise BoardError("no program is loaded")
        for name, flat in inputs.items():
            self._region(self._program.buffer(name))[:] = flat
        result = simulate(self._program, self._banks, words)
        return {b.name: self._region(b).copy() for b in self._program.with_role(Role.OUTPUT)}, result

    def close(self) -> None:
        self._program = None
        self._banks = {}
