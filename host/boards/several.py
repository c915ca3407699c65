"""The boards of a model in stages: one for each stage, none of them twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ...base.errors import BoardError, WrongBoards
from .board import Board
from .named import REAL, find_board
from .ssh import Target

BoardName = str | Callable[[], Board]
"""The name of a board, or a function that opens one."""


def check_boards(boards: Sequence[BoardName], stages: int) -> None:
    """Check the boards of a model that has so many stages. Raises `WrongBoards` for another number of boards, and for
    two names of one device; `BoardError` for a name that means none."""
    if len(boards) != stages:
        cut = f"cut into {stages} stages, each for a board of its own" if stages > 1 else "for one board"
        remedy = f"name {stages} board{'s' * (stages > 1)}, or compile the model for {len(boards)}"
        raise WrongBoards(f"the model is {cut}; {len(boards)} given: {remedy}")
    seen: dict[Hashable, str] = {}
    for name in boards:
        device = None if callable(name) else _device(name)
        if device is None or callable(name):
            continue
        if device in seen:
            same = (
                f"board {name} is given twice" if seen[device] == name else f"boards {seen[device]} and {name} are one"
            )
            raise WrongBoards(f"{same}: each stage needs a board of its own")
        seen[device] = name


def _device(name: str) -> Hashable:
    """What a board's name means, of which there is one; None for what each opens anew, such as a simulator."""
    if name in ("sim", "csim"):
        return None
    if name.startswith("ssh:"):
        target = Target.parse(name)
        try:
            there = _device(target.board)
        except BoardError:  # a profile of the other computer
            there = target.board
        return None if there is None else (target.host, target.port or 22, there)
    _, kind, index = find_board(name)
    return index if kind in REAL else None
