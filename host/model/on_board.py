"""A compiled program on its board, which is opened when it is needed and may be released between calls."""

from __future__ import annotations

import threading

from ...base.errors import BoardError
from ...scheduler.build import Built
from ..boards.several import BoardName
from ..runner import Runner
from .shared_bank import SharedBank


class OnBoard:
    """A program of a compiled model, on a board.

    board: where it runs. shared: the weights of the programs of this model, which the board holds once; None for a
    program alone. turn: the lock that calls hold.
    """

    def __init__(self, board: BoardName, shared: SharedBank | None, turn: threading.RLock) -> None:
        self._board, self._shared, self.turn = board, shared, turn
        self._is_closed = False
        self._joined = 0 if shared is None else shared.changes
        self.placed: Built | None = None
        """The program on the board; None if the board must be opened."""
        self.runner: Runner
        """What runs it, while the board is open."""

    def open(self, built: Built) -> None:
        """Open the board for the program, unless it is open. In the bank of weights the program takes the places that
        it shares with the other programs of the model. built: the program as it was compiled. Raises `BoardError` after
        `close`, and as `Runner`."""
        if self._is_closed:
            raise BoardError("this runner is closed")
        placed = self.linked(built)
        if placed is self.placed:
            return
        self.release()
        self.runner = Runner(placed.program, weights=placed.weights, board=self._board)
        self.placed = placed

    def linked(self, built: Built) -> Built:
        """Return the program as `open` puts it on the board. Raises as `SharedBank.place`."""
        if self._shared is None:
            return built
        self._joined = self._shared.changes
        return self._shared.place(self, built)

    def changed(self) -> None:
        """Note that the weights of the model have changed."""
        if self._shared is not None:
            self._shared.changed(self._joined)

    def release(self) -> None:
        """Release the board until the next call, unless a call is taking place in another thread. The next call opens
        the board again."""
        turn = self.turn
        if not turn.acquire(blocking=False):
            return
        try:
            if self.placed is not None:
                self.runner.close()
            self.placed = None
        finally:
            turn.release()

    def close(self) -> None:
        """Release the board for good."""
        self._is_closed = True
        if self.placed is not None:
            self.runner.close()
