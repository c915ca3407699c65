"""The exceptions of this package. The command line turns each type into an exit code; no other code prints or exits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deadlock_report import Deadlock


class RsnError(Exception):
    """Base of the errors that the command line reports as one message, without a traceback.

    Not all errors of this package are of it: functions raise Python's own, such as `ValueError`, `KeyError` or
    `OSError`, where their docstrings say so. exit_code: of the command line: 1 if the program or an input is at fault,
    2 for wrong usage, 3 if the board or the environment is at fault.
    """

    exit_code = 1


class MissingError(RsnError, ImportError):
    """A Python package that is needed is not installed. The message holds the command that installs it."""

    exit_code = 3


INSTALL_TORCH = "pip install torch==2.13.0"


def require(package: str, purpose: str, install: str) -> None:
    """Raise `MissingError` if `package` is not installed.

    purpose: what needs the package, for the message. install: the command that installs it.
    """
    if find_spec(package) is None:
        raise MissingError(f"{purpose} takes {package}, which is not installed: {install}")


def require_torch(purpose: str) -> None:
    """Raise `MissingError` if PyTorch is not installed. purpose: what needs it, for the message."""
    require("torch", purpose, INSTALL_TORCH)


class FieldError(RsnError, ValueError):
    """A value does not fit its bit field, or a record has no such field or another number of words."""


class ImageError(RsnError):
    """An image that the hardware would misread. word: index of the 32-bit word at fault, None if not known."""

    def __init__(self, message: str, word: int | None = None) -> None:
        super().__init__(message if word is None else f"word {word}: {message}")
        self.word = word


class ContainerError(RsnError):
    """A `.bin` or `.rsnmodel` file is cut short, altered, or of another version.

    The message names the file and, for a `.bin`, the byte offset.
    """


class SourceError(RsnError):
    """An error in an `.rsn` text. The message is the rendered diagnostic: file:line:column, caret, note."""


class ProgramError(RsnError):
    """A program, machine or overlay that is wrong: it must not be loaded, or cannot be run to its end.

    left: if a run ends with words in streams, the payloads that each of these streams holds, by its name; else empty.
    """

    left: Mapping[str, Sequence[Any]] = {}


class DeadlockError(ProgramError):
    """A run has come to a point at which no unit can move: a deadlock.

    The message is the report: which process waits for which (unit, uOP, stream, source line), and the first stream on
    which sends and receives differ. explain: called once, when the report is first read, because counting streams is
    slow.
    """

    def __init__(self, explain: Callable[[], Deadlock]) -> None:
        super().__init__()
        self._explain = explain

    @cached_property
    def report(self) -> Deadlock:
        """The report as data."""
        return self._explain()

    def __str__(self) -> str:
        return str(self.report)


class CycleError(ProgramError):
    """A graph that must have no cycle has one. cycle: the names of its nodes, each leading to the next, the last to the
    first."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = tuple(cycle)
        path = " -> ".join((*self.cycle, *self.cycle[:1]))
        super().__init__(f"the graph has a cycle: {path}; keep what comes back as state, outside of the graph")


class UndecidedError(ProgramError):
    """A run without data cannot tell which steps a program takes, because they depend on its data."""


class ResourceError(RsnError):
    """A datapath that does not fit on its device. The message names the resource."""


class BudgetError(ResourceError):
    """A kernel, or another part that cannot be divided further, needs more bytes of memory than the budget has.

    holder: the name of that part. bytes_needed: what it needs. budget: what there is, in bytes.
    """

    def __init__(self, message: str, holder: str, bytes_needed: int, budget: int) -> None:
        super().__init__(message)
        self.holder, self.bytes_needed, self.budget = holder, bytes_needed, budget


class TensorError(RsnError):
    """A weight, input or parameter is missing, or its name, shape, dtype or value does not fit the program."""


class CacheFull(TensorError):
    """A token for which a cache of keys and values has no row."""


class PromptTooLong(TensorError):
    """A prompt with more tokens than a sequence may have."""


class PositionError(TensorError):
    """A position for which the model has no embedding."""


class UnsupportedError(RsnError):
    """A model, shape or operator that the machine cannot run. The message names operator and module path if known."""


class WrongResultError(RsnError):
    """A compiled model computed something else than the module that it was compiled from, so its call has no result.
    This is a mistake of rsn, not of the caller. The message says how large the difference is, for each layer if it is
    known."""


class CompilerError(RsnError):
    """The compiler made a program that its own checks refuse: a mistake of rsn, or of a compiler pass of the user that
    replaces one of rsn's. The message names the layers of each error, where these are known."""


class ScheduleError(RsnError):
    """A schedule that the machine cannot carry out, for example a tile larger than its buffer."""


class StudyError(RsnError):
    """A study that cannot be searched, or a study file that belongs to another search."""


class BoardError(RsnError):
    """The board or the environment is at fault, not the program."""

    exit_code = 3


class BoardBusy(BoardError):
    """The device is in use by another process, or by another runner of this process."""


class WrongBoards(BoardError):
    """The boards that were given are not those that a model in stages needs: another number, or one twice."""


class StateLost(BoardError):
    """A board no longer has what a program keeps in its memory between runs, such as a cache of keys and values."""


class BoardMemory(BoardError):
    """The device has no room for a buffer."""
