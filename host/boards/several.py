"""The boards of a model in stages: one for each stage, none of them twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence

from ...base.errors import BoardError, ScheduleError, WrongBoards
from .board import Board
from .named import REAL, find_board
from .ssh import Target

BoardName = str | Callable[[], Board]
"""The name of a board, or a function that opens one."""


def boards_named(boards: int | str | Sequence[BoardName]) -> tuple[int | None, Sequence[BoardName] | None]:
    """Return how many boards are meant, None for as few as possible, and their names, None if these are not given.
    boards: a number, "auto", or names. Raises `ScheduleError` for anything else, and what `check_boards` raises."""
    if boards == "auto":
        return None, None
    if isinstance(boards, int) and not isinstance(boards, bool) and boards > 0:
        return boards, None
    if isinstance(boards, int | str) or len(boards) < 2:
        raise ScheduleError(f'boards={boards!r}: a number of boards, "auto", or the names of two boards or more')
    check_boards(boards, len(boards))
    return len(boards), tuple(boards)


def shards_named(shards: int | str, boards: int | None) -> int | None:
    """Return how many boards compute each stage, None to choose. shards: a number, or "auto". boards: of all stages,
    None for as few as possible. Raises `ScheduleError` unless it is a number that divides that of the boards."""
    if shards == "auto":
        return None
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise ScheduleError(f'shards={shards!r}: a number of boards that compute each stage together, or "auto"')
    if boards is not None and boards % shards:
        raise ScheduleError(f"boards={boards}: with shards={shards} a multiple of {shards}")
    return shards


def boards_for(
    path: str | os.PathLike[str], count: int, board: BoardName, boards: Sequence[BoardName] | None
) -> Sequence[BoardName]:
    """Return the boards for a model from a file: `boards`, or `board` alone if that is None. path: of the file, for
    messages. count: how many boards the model needs. board: for a model of one stage. boards: one for each stage, or
    for each shard of each. Raises as `check_boards`; the message of `WrongBoards` begins with the path."""
    found = [board] if boards is None else boards
    try:
        check_boards(found, count)
    except WrongBoards as e:
        raise WrongBoards(f"{os.fspath(path)}: {e}") from None
    return found


def check_boards(boards: Sequence[BoardName], count: int) -> None:
    """Check the boards of a model. count: how many it needs. Raises `WrongBoards` for another number of boards, and for
    two names of one device; `BoardError` for a name that means none."""
    if len(boards) != count:
        cut = f"cut for {count} boards, each with a part of it" if count > 1 else "for one board"
        remedy = f"name {count} board{'s' * (count > 1)}"
        if boards:
            remedy += f", or compile the model for {len(boards)}"
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
            raise WrongBoards(f"{same}: each part of a model needs a board of its own")
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
