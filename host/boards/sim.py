"""The simulator as a board: banks are arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ...hw.sim.breakpoint import Stopped, stop
from ...hw.sim.machine import Machine, Run, Watch
from ...isa.packet import Words
from ...isa.program import Program
from .memories import Memories

Array = npt.NDArray[np.float32]


class SimBoard:
    """Holds a program and its off-chip memories.

    How long a run takes depends on the run-time parameters alone, so the last few are remembered.
    """

    REMEMBERED = 8

    def __init__(self) -> None:
        self._memories: Memories | None = None
        self._machines: dict[bytes, Machine] = {}

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        self._machines = {}
        self._memories = Memories(program, weights)

    def run(
        self,
        words: Words,
        inputs: Mapping[str, Array],
        *,
        progress: Callable[[float], None] | None = None,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Array], Run]:
        """As every board; `watch` as `Machine.run`."""
        held = self._filled(inputs)
        result = self._machine(held.program, words).run(held.banks, watch, progress)
        return held.outputs(), result

    def stop(self, words: Words, inputs: Mapping[str, Array], unit: str, number: int) -> Stopped:
        """Run until a unit is about to begin a uOP, and look at it. The memories are in disorder afterwards."""
        held = self._filled(inputs)
        return stop(Machine(held.program, words), held.banks, unit, number)

    def _filled(self, inputs: Mapping[str, Array]) -> Memories:
        if self._memories is None:
            raise BoardError("no program is loaded")
        self._memories.fill(inputs)
        return self._memories

    def _machine(self, program: Program, words: Words) -> Machine:
        image = words.tobytes()
        machine = self._machines.pop(image, None) or Machine(program, words)
        if len(self._machines) == self.REMEMBERED:
            del self._machines[next(iter(self._machines))]
        self._machines[image] = machine
        return machine

    def close(self) -> None:
        self._memories = None
        self._machines = {}
