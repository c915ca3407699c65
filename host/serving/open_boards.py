"""The open boards of a runner: one for each of its programs, all on one device, used one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...base.errors import BoardError
from ...hw.sim.machine import Run
from ...isa.packet import Words
from ...isa.program import Array, Program
from ..boards import Board
from ..boards.device import BoardBusy, BoardMemory
from ..forks import keep_for_ever


class OpenBoards:
    """Opens, loads and closes the boards of several programs.

    opener: makes a board. weights: of all programs, packed, by buffer name. If the device has no memory for all
    programs, or gives only one board access, the boards take turns: each is opened when it is needed, and uploads its
    weights again.
    """

    def __init__(self, opener: Callable[[], Board], programs: Sequence[Program], weights: Mapping[str, Array]) -> None:
        self._opener = opener
        self._programs = programs
        self._weights = weights
        self._boards: dict[int, Board] = {}
        self._turns = False

    @property
    def are_open(self) -> bool:
        """Whether at least one board is open."""
        return bool(self._boards)

    def open(self) -> None:
        """Open the boards that are not open, and load their programs. If one fails, close all and raise its error
        (`BoardError`, `TensorError`)."""
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
        """As `open`, but raise `BoardError` for every error: program and weights were good when they were first
        loaded."""
        try:
            self.open()
        except BoardError:
            raise
        except Exception as e:
            raise BoardError(f"the board cannot be opened again: {e}") from e

    def board(self, program: Program) -> Board:
        """Return the open board of a program; open it if it is closed. program: one of those that this object was made
        for. Raises what opening a board raises, mostly `BoardError`."""
        i = next(i for i, p in enumerate(self._programs) if p is program)
        if i not in self._boards:
            if self._turns:
                self.close()
            self._load(i)
        return self._boards[i]

    def run(
        self, program: Program, words: Words, inputs: Mapping[str, Array], progress: Callable[[float], None] | None
    ) -> tuple[dict[str, Array], Run]:
        """Run an image on the board of its program, and return what `Board.run` does; raises as it and `board` do.
        words: the image. inputs: flat float32 by buffer name, in memory order. progress: as for `Board.run`. NaN and
        infinities in the results give no NumPy warnings."""
        with np.errstate(all="ignore"):
            return self.board(program).run(words, inputs, progress=progress)

    def close(self) -> None:
        """Release all boards, in whatever state they are. Raises nothing."""
        while self._boards:
            _, board = self._boards.popitem()
            with contextlib.suppress(Exception):
                board.close()

    def forget(self) -> None:
        """In a forked child (see `forks`): drop the boards, which belong to the parent, and never close or destroy
        them."""
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
