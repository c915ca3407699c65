"""The interface of boards, behind which the simulator, the C++ machine, devices and other computers stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Program


class Board(Protocol):
    """One machine. Tensors go in and out by buffer name, as flat float32 arrays in memory order, (size of the
    buffer,)."""

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        """Take a verified program and its packed weights, by buffer name. Raises `BoardError` if the board cannot hold
        or run it."""

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        """Run the image `words`, 32-bit words, once. Returns the outputs, and time and traffic of the run.

        inputs: of all input buffers, and of those states that the host writes. progress: called with the share that is
        done, 0 to 1, by boards that know it. Raises `BoardError` without a program and if the board fails, `StateLost`
        if a state is neither held nor given, and `DeadlockError` where the machine finds that it cannot go on.
        """

    def close(self) -> None:
        """Release the machine. Further calls do nothing."""
