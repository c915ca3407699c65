"""The interface of boards, behind which the simulator, the C++ machine, devices and other computers stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Program


class Board(Protocol):
    """One machine. Tensors go in and out by buffer name, as flat float32 arrays in memory order."""

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        """Take a verified program and its packed weights."""

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        """Run the image `words` once. Returns the outputs, and time and traffic of the run.

        progress: called with the share that is done, 0 to 1, by boards that know it.
        """

    def close(self) -> None:
        """Release the machine."""
