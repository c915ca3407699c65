"""Off-chip memories of a board that keeps them in this process."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...isa.program import Buffer, Program, Role

Array = npt.NDArray[np.float32]


class Memories:
    """A program and its memories, by bank. What nobody has written is 0."""

    def __init__(self, program: Program, weights: Mapping[str, Array]) -> None:
        self.program = program
        self.banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in program.overlay.banks}
        self.fill(weights)

    def fill(self, tensors: Mapping[str, Array]) -> None:
        """Write buffers, by name."""
        for name, flat in tensors.items():
            self._region(self.program.buffer(name))[:] = flat

    def outputs(self) -> dict[str, Array]:
        """What is in the output buffers."""
        return {b.name: self._region(b).copy() for b in self.program.with_role(Role.OUTPUT)}

    def _region(self, buffer: Buffer) -> Array:
        start = buffer.offset * self.program.overlay.address_unit
        return self.banks[buffer.bank][start : start + buffer.size]
