"""What programs run on. A board holds one program and its weights, and runs it as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...hw.sim.machine import Run
from ...isa.errors import BoardError
from ...isa.packet import Words
from ...isa.program import Program

Array = npt.NDArray[np.float32]


class Board(Protocol):
    """One machine. Tensors go in and out as they lie in memory, by buffer name."""

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        """Take a verified program and its weights."""

    def run(
        self, words: Words, inputs: Mapping[str, Array], *, progress: Callable[[float], None] | None = None
    ) -> tuple[dict[str, Array], Run]:
        """Run the image `words` once; outputs and what the run took. progress: told the share done, where known."""

    def close(self) -> None:
        """Give the machine back."""


def open_board(name: str) -> Board:
    """The board called `name`. Raises `BoardError` for one that this installation cannot drive."""
    if name == "sim":
        from .sim import SimBoard

        return SimBoard()
    raise BoardError(f"no board {name!r}; this version drives: sim")
