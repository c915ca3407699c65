"""Boards: what a program runs on. A board holds one program and its weights, and runs it as often as asked."""

from __future__ import annotations

import os

from ...base.errors import BoardError
from .board import Board as Board
from .csim import CsimBoard
from .named import open_profile
from .sim import SimBoard
from .ssh import SshBoard


def open_board(name: str, *, xclbin: str | os.PathLike[str] | None = None) -> Board:
    """Make the board called `name`.

    name: sim, csim, PROFILE[@DEVICE[:INDEX]] (docs/boards-reference.md), or a board of another computer,
    ssh://[USER@]HOST[:PORT][/BOARD] (docs/remote.md). xclbin: path of the bitstream for a real board; None takes that
    of the environment or the profile. Raises `BoardError` for a board that this installation cannot use, and for sim
    and csim with a bitstream. A device is taken only when a program is loaded.
    """
    if name in ("sim", "csim") and xclbin is not None:
        raise BoardError(f"board {name} takes no bitstream; {os.fspath(xclbin)} is one of a real board")
    if name == "sim":
        return SimBoard()
    if name == "csim":
        return CsimBoard()
    if name.startswith("ssh:"):
        return SshBoard(name, xclbin=xclbin)
    return open_profile(name, xclbin)
