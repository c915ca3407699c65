"""The simulator as a board: banks are arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ...hw.sim.breakpoint import Stopped, stop
from ...hw.sim.machine import Machine, Run, Watch
from ...isa.errors import BoardError
from ...isa.packet import Words
from ...isa.program import Buffer, Program, Role

Array = npt.NDArray[np.float32]


class SimBoard:
    """Holds a program and its off-chip memories. Memory that nobody has written is 0.

    How long a run takes depends on the run-time parameters alone, so the last few are remembered.
    """

    REMEMBERED = 8

    def __init__(self) -> None:
        self._program: Program | None = None
        self._banks: dict[str, Array] = {}
        self._machines: dict[bytes, Machine] = {}

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        self._program = program
        self._machines = {}
        self._banks = {bank: np.zeros(program.bank_size(bank), np.float32) for bank in program.overlay.banks}
        for name, flat in weights.items():
            self._region(program.buffer(name))[:] = flat

    def _region(self, buffer: Buffer) -> Array:
        if self._program is None:
            raise BoardError("no program is loaded")
        start = buffer.offset * self._program.overlay.address_unit
        return self._banks[buffer.bank][start : start + buffer.size]

    def run(
        self,
        words: Words,
        inputs: Mapping[str, Array],
        *,
        progress: Callable[[float], None] | None = None,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Array], Run]:
        """As every board; `watch` as `Machine.run`."""
        program = self._filled(inputs)
        result = self._machine(program, words).run(self._banks, watch, progress)
        return {b.name: self._region(b).copy() for b in program.with_role(Role.OUTPUT)}, result

    def stop(self, words: Words, inputs: Mapping[str, Array], unit: str, number: int) -> Stopped:
        """Run until a unit is about to begin a uOP, and look at it. The memories are in disorder afterwards."""
        return stop(Machine(self._filled(inputs), words), self._banks, unit, number)

    def _filled(self, inputs: Mapping[str, Array]) -> Program:
        if self._program is None:
            raise BoardError("no program is loaded")
        for name, flat in inputs.items():
            self._region(self._program.buffer(name))[:] = flat
        return self._program

    def _machine(self, program: Program, words: Words) -> Machine:
        image = words.tobytes()
        machine = self._machines.pop(image, None) or Machine(program, words)
        if len(self._machines) == self.REMEMBERED:
            del self._machines[next(iter(self._machines))]
        self._machines[image] = machine
        return machine

    def close(self) -> None:
        self._program = None
        self._banks = {}
        self._machines = {}
