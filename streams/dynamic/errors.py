"""What is wrong with a dynamic stream program: where it is built (`StepError`), and where it runs (`StreamFault`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ...base.errors import ProgramError

_PACKAGE = __name__.rpartition(".")[0]


def users_line() -> str:
    """Return `file:line` of the innermost call from outside of this package. The file is relative to the working
    directory if it lies in it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    with suppress(ValueError):  # elsewhere
        file = file.relative_to(Path.cwd())
    return f"{file}:{frame.f_lineno}"


def _is_ours(frame: FrameType) -> bool:
    """Whether a call is of this package, or of a constructor that `dataclass` has made."""
    name = str(frame.f_globals.get("__name__"))
    made = (frame.f_code.co_filename, frame.f_code.co_name) == ("<string>", "__init__")
    return made or name == _PACKAGE or name.startswith(f"{_PACKAGE}.")


class StepError(ProgramError):
    """An operator does not take its inputs or parameters, or a program is wrong.

    operator: the name of the operator in the papers, or of the method. text: what is wrong. where: `file:line` of the
    user's code; None for the call that is under way."""

    def __init__(self, operator: str, text: str, where: str | None = None) -> None:
        self.operator, self.text, self.where = operator, text, where or users_line()
        super().__init__(f"{self.where}: {operator}: {text}")


class TokenError(ProgramError):
    """Tokens that do not make up a stream of their rank or type, or a text that is no stream. text: what is wrong.
    position: of the token in the stream, from 0."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(f"token {position}: {text}")
        self.text, self.position = text, position


class StreamFault(ProgramError):
    """A run met tokens that do not fit the program.

    node: the name of the operator in the program. where: the line of the user's code that added it. stream: such as
    "input 0". text: what is wrong. position: of the token at fault in that stream, from 0, stops included; None if no
    token is at fault."""

    def __init__(self, node: str, where: str, stream: str, text: str, position: int | None) -> None:
        at = stream if position is None else f"{stream}, token {position}"
        super().__init__(f"{where}: {node}: {at}: {text}" if where else f"{node}: {at}: {text}")
        self.node, self.where, self.stream, self.text, self.position = node, where, stream, text, position


@dataclass(frozen=True)
class Waiting:
    """What a node waits for in a deadlock.

    node: the name of the node. where: the line of the user's code that made it. port: the side at which it waits, such
    as "input 0" or "output 1". other: the node at the other end of that stream. filled: the tokens in the FIFO there.
    depth: the most that it holds; None without a bound."""

    node: str
    where: str
    port: str
    other: str
    filled: int
    depth: int | None

    def __str__(self) -> str:
        room = "no bound" if self.depth is None else f"{self.filled} of {self.depth} tokens"
        return f"{self.where}: {self.node} waits at {self.port} for {self.other} ({room})"


class StuckError(ProgramError):
    """A deadlock: no operator can move, and some have not ended. waiting: for each of these, what it waits for."""

    def __init__(self, waiting: Sequence[Waiting]) -> None:
        super().__init__("deadlock: no operator can move\n" + "\n".join(f"  {line}" for line in waiting))
        self.waiting = tuple(waiting)
