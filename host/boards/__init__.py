"""Boards: what a program runs on. A board holds one program and its weights, and runs it as often as asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol

from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Program
from .csim import CsimBoard
from .named import open_profile
from .sim import SimBoard
from .ssh import SshBoard


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


def open_board(name: str, *, xclbin: str | os.PathLike[str] | None = None) -> Board:
    """Make the board called `name`.

    name: sim, csim, PROFILE[@DEVICE[:INDEX]] (docs/boards-reference.md), or a board of another computer,
    ssh://[USER@]HOST[:PORT][/BOARD] (docs/remote.md). xclbin: path of the bitstream for a real board. Raises
    `BoardError` for a board that this installation cannot use. A device is taken only when a program is loaded.
    """
    if name == "sim":
        return SimBoard()
    if name == "csim":
        return CsimBoard()
    if name.startswith("ssh:"):
        return SshBoard(name, xclbin=xclbin)
    return open_profile(name, xclbin)
