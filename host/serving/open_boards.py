"""The open boards of a runner: one for each of its programs, all on one device, used one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Program
from ..boards import Board
from ..boards.device import BoardBusy, BoardMemory
from ..forks import keep_for_ever

Array = npt.NDArray[np.float32]


class OpenBoards:
    """Opens, loads and closes them together. Where a device has no room for all, or lets one board have it at a time,
    its boards take turns: each is opened when it is needed, and uploads its weights anew."""

    def __init__(self, opener: Callable[[], Board], programs: Sequence[Program], weights: Mapping[str, Array]) -> None:
        self._opener = opener
        self._programs = programs
        self._weights = weights
        self._boards: dict[int, Board] = {}
        self._turns = False

    @property
    def are_open(self) -> bool:
        return bool(self._boards)

    def open(self) -> None:
        """Open what is not open. Raises what the first board at fault raises, with all of them closed."""
        try:
            for i in range(len(self._programs)):
                if i not in self._boards and not (self._turns and self._boards):
                    try:
                        self._load(i)
                    except (BoardBusy, BoardMemory):
                        if not self._boards:
                            raise
                        self._turns = True
        except BaseException:
            self.close()
            raise

    def reopen(self) -> None:
        """`open`, where anything that goes wrong is the board's fault: program and weights were good before."""
        try:
            self.open()
        except BoardError:
            raise
        except Exception as e:
            raise BoardError(f"the board cannot be opened again: {e}") from e

    def board(self, program: Program) -> Board:
        """The open board of a program."""
        i = next(i for i, p in enumerate(self._programs) if p is program)
        if i not in self._boards:
            if self._turns:
                self.close()
            self._load(i)
        return self._boards[i]

    def run(
        self, program: Program, words: Words, inputs: Mapping[str, Array], progress: Callable[[float], None] | None
    ) -> tuple[dict[str, Array], Run]:
        """Infinities and what is no number are the caller's business: no warnings."""
        with np.errstate(all="ignore"):
            return self.board(program).run(words, inputs, progress=progress)

    def close(self) -> None:
        """Give them all back, whatever state they are in. Raises nothing."""
        while self._boards:
            _, board = self._boards.popitem()
            with contextlib.suppress(Exception):
                board.close()

    def forget(self) -> None:
        """See `forks`: the boards are the parent's. Nothing is closed, now or later."""
        keep_for_ever(self._boards)
        self._boards = {}

    def _load(self, i: int) -> None:
        board = self._opener()
        try:
            board.load(self._programs[i], self._weights)
        except BaseException:
            with contextlib.suppress(Exception):
                board.close()
            raise
        self._boards[i] = board
