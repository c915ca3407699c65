"""What can go wrong, as types. The command line turns a type into an exit code; nothing below it prints or exits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .deadlock_report import Deadlock


class RsnError(Exception):
    """Base of every error this package raises on purpose.

    exit_code: 1 the program or an input is at fault, 2 usage, 3 the board or the environment is at fault.
    """

    exit_code = 1


class MissingError(RsnError, ImportError):
    """A package that is not installed, and the command that installs it."""

    exit_code = 3


INSTALL_TORCH = "pip install torch==2.13.0"


def require(package: str, purpose: str, install: str) -> None:
    """Raise `MissingError` where a package is not installed that `purpose` takes. install: the command."""
    if find_spec(package) is None:
        raise MissingError(f"{purpose} takes {package}, which is not installed: {install}")


def require_torch(purpose: str) -> None:
    """Raise `MissingError` where PyTorch is not installed, which `purpose` takes."""
    require("torch", purpose, INSTALL_TORCH)


class FieldError(RsnError, ValueError):
    """A value does not fit the bit field it is meant for, or a word sets bits that mean nothing."""


class ImageError(RsnError):
    """A wire image that the hardware would misread. `word` is the index of the 32-bit word, where known."""

    def __init__(self, message: str, word: int | None = None) -> None:
        super().__init__(message if word is None else f"word {word}: {message}")
        self.word = word


class ContainerError(RsnError):
    """A `.bin` or an `.rsnmodel` that is cut short, altered, or of another version. Names the file, and of a `.bin` the
    byte offset."""


class SourceError(RsnError):
    """A mistake in an `.rsn` text. Its message is the rendered diagnostic: file:line:column, caret, note."""


class ProgramError(RsnError):
    """A well-formed program that this machine must refuse to load or cannot finish."""


class DeadlockError(ProgramError):
    """No unit can move. The message is the report in words: who waits for whom (unit, uOP, stream, source line), and
    the first stream on which sends and receives differ. explain: makes the report, when somebody asks for it."""

    def __init__(self, explain: Callable[[], Deadlock]) -> None:
        super().__init__()
        self._explain = explain

    @cached_property
    def report(self) -> Deadlock:
        """The facts."""
        return self._explain()

    def __str__(self) -> str:
        return str(self.report)


class ResourceError(RsnError):
    """A datapath that its device cannot hold. Names the resource."""


class TensorError(RsnError):
    """Weights or inputs that are missing or whose name, shape or dtype does not fit the program."""


class UnsupportedError(RsnError):
    """A model, shape or operator that this machine cannot run. Names operator and module path where there is one."""


class ScheduleError(RsnError):
    """A schedule that the machine cannot carry out, for example a tile larger than its buffer."""


class BoardError(RsnError):
    """The board or the environment is at fault, not the program."""

    exit_code = 3


class BoardBusy(BoardError):
    """Another process, or another runner of this one, has the device."""


class BoardMemory(BoardError):
    """The device has no room for a buffer."""
