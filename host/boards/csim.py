"""The machine's C++ sources as a board: built at the first use, run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Event

from ...base.errors import BoardError
from ...hw.sim.machine import Run
from ...hw.versal.csim.build import compiler
from ...hw.versal.csim.machine import Native, machine_of
from ...isa.packet import Words
from ...isa.program import Array, Program
from .board import Board
from .held_state import HeldState
from .memories import MemoryBanks

STALLS_VARIABLE = "RSN_CSIM_STALLS"
"""Environment variable with the seed of random pauses and stalled pipelines; unset, empty or 0: none."""


def stalls_of_environment() -> int:
    """Return the seed of stalls that the environment names (`RSN_CSIM_STALLS`), or 0. Raises `BoardError` if it is not
    a number of 64 bits."""
    text = os.environ.get(STALLS_VARIABLE, "").strip() or "0"
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise BoardError(f"{STALLS_VARIABLE} is {text!r}; set it to a whole number from 1 to 2**64 - 1, or unset it")
    return int(text)


class CsimBoard(Board):
    """Holds a program and its off-chip memories, and runs it by the C++ machine. It computes results but no modelled
    time: a run's time is this computer's wall time.

    stalls: seed of random pauses and stalled pipelines (docs/csim.md), 0 for none; None takes that of the environment.
    """

    def __init__(self, stalls: int | None = None) -> None:
        self._stalls = stalls_of_environment() if stalls is None else stalls
        compiler()  # without one no program can be loaded: say so at once
        self._native: Native | None = None
        self._memories: MemoryBanks | None = None
        self._closed = Event()

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        machine = machine_of(program)
        if self._native is None or self._native.machine != machine:
            self._native = Native(machine=machine)
        self._closed.clear()
        self._memories = MemoryBanks(program, weights)
        self._state = HeldState(program)

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        held, native = self._memories, self._native
        if held is None or native is None:
            raise BoardError("no program is loaded")
        with self._state.during(inputs):
            held.fill(inputs)
            took = native.run(held.program, held.banks, words, stalls=self._stalls, stop=self._closed)
        return held.outputs(), Run(took, {"instructions": 4 * len(words)}, {}, {}, clock="wall")

    def close(self) -> None:
        """Release the memories. Also ends a run in another thread."""
        self._closed.set()
        self._memories = None
