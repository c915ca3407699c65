"""What programs run on. A board holds one program and its weights, and runs it as often as asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...hw.sim.machine import Run
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


def open_board(name: str, *, xclbin: str | os.PathLike[str] | None = None) -> Board:
    """The board called `name`: sim, csim, or PROFILE[@DEVICE[:INDEX]] (docs/boards.md), or one of another computer,
    ssh://[USER@]HOST[:PORT][/BOARD] (docs/remote.md). xclbin: what a real one loads.

    Raises `BoardError` for one that this installation cannot drive; nothing is taken before a program is loaded.
    """
    if name == "sim":
        from .sim import SimBoard

        return SimBoard()
    if name == "csim":
        from .csim import CsimBoard

        return CsimBoard()
    if name.startswith("ssh:"):
        from .ssh import SshBoard

        return SshBoard(name, xclbin=xclbin)
    from .named import open_profile

    return open_profile(name, xclbin)
