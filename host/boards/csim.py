"""The machine's C++ sources as a board: built at the first use, run in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ...hw.sim.machine import Run
from ...hw.versal.csim.machine import Native, require_runs
from ...isa.packet import Words
from ...isa.program import Program
from .memories import Memories

Array = npt.NDArray[np.float32]


class CsimBoard:
    """Holds a program and its off-chip memories, and runs it by the C++ machine. Its methods are those of `Board`. It
    computes results but no modelled time: a run's time is this computer's wall time."""

    def __init__(self) -> None:
        self._native = Native()
        self._memories: Memories | None = None
        self._closed = Event()

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        require_runs(program)
        self._closed.clear()
        self._memories = Memories(program, weights)

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        held = self._memories
        if held is None:
            raise BoardError("no program is loaded")
        held.fill(inputs)
        took = self._native.run(held.program, held.banks, words, stop=self._closed)
        return held.outputs(), Run(took, {"instructions": 4 * len(words)}, {}, {}, clock="wall")

    def close(self) -> None:
        """Release the memories. Also ends a run in another thread."""
        self._closed.set()
        self._memories = None
