"""The runner: one object that serving scripts keep, whatever board is behind it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from ..hw.sim.breakpoint import Stopped
from ..hw.sim.machine import Run
from ..isa.errors import BoardError, TensorError
from ..isa.packet import Words
from ..isa.program import Program, Role
from ..isa.verify import require
from . import tensors
from .boards import open_board

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Result:
    """Outputs by buffer name, in the shape users see, and what the run took."""

    outputs: dict[str, Array]
    run: Run


class Runner:
    """Runs one program on one board; thread-safe, one run at a time.

    program: a `Program` or the path of a `.bin`. weights: a safetensors path, or tensors by buffer name (packed, as
    the compiler makes them). Raises `ProgramError` for a program that could leave its buffers, `TensorError` for
    weights that do not fit, `BoardError` where the board is at fault.
    """

    def __init__(
        self,
        program: Program | str | os.PathLike[str],
        *,
        weights: Mapping[str, Array] | str | os.PathLike[str] | None = None,
        board: str = "sim",
    ) -> None:
        if not isinstance(program, Program):
            from ..assembler import container

            program = container.read(Path(program))
        require(program)
        self.program = program
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._board = open_board(board)
        self._board.load(program, self._weights(weights))

    def _weights(self, weights: Mapping[str, Array] | str | os.PathLike[str] | None) -> Mapping[str, Array]:
        wanted = self.program.with_role(Role.WEIGHT)
        if weights is None:
            if wanted:
                raise TensorError(f"this program needs weights ({len(wanted)} tensors, {wanted[0].name!r} first)")
            return {}
        if not isinstance(weights, Mapping):
            return tensors.Weights(weights, wanted)
        for b in wanted:
            if b.name not in weights:
                raise TensorError(f"no weight {b.name!r}, which the program needs")
        return tensors.Given(weights, wanted)

    def run(
        self,
        inputs: Mapping[str, npt.NDArray[np.generic]],
        parameters: Mapping[str, int] | None = None,
        *,
        progress: Callable[[float], None] | None = None,
    ) -> Result:
        """Run once. inputs: float32 tensors by buffer name; parameters: run-time integers such as len[0]; progress:
        told now and then which share is done.

        Raises `TensorError` for inputs that do not fit, `DeadlockError` when the machine cannot go on.
        """
        words, packed = self._bound(inputs, parameters)
        with self._lock:
            self._open()
            flat, run = self._board.run(words, packed, progress=progress)
        outputs = {name: tensors.unpack(self.program.buffer(name), f) for name, f in flat.items()}
        return Result(outputs, run)

    def stop(
        self,
        inputs: Mapping[str, npt.NDArray[np.generic]],
        unit: str,
        number: int,
        parameters: Mapping[str, int] | None = None,
    ) -> Stopped:
        """Run until `unit` is about to begin its uOP `number`, and look at it (simulator only). Raises as `run`,
        `ProgramError` for a unit or uOP that is not there, and `BoardError` for a board that cannot be stopped."""
        from .boards.sim import SimBoard

        words, packed = self._bound(inputs, parameters)
        with self._lock:
            self._open()
            if not isinstance(self._board, SimBoard):
                raise BoardError("only the simulator (board sim) can be stopped")
            return self._board.stop(words, packed, unit, number)

    def _open(self) -> None:
        if self._closed:
            raise BoardError("this runner is closed")

    def _bound(
        self, inputs: Mapping[str, npt.NDArray[np.generic]], parameters: Mapping[str, int] | None
    ) -> tuple[Words, dict[str, Array]]:
        """The image with parameters, and the inputs as they lie in memory."""
        wanted = {b.name: b for b in self.program.with_role(Role.INPUT)}
        for name in inputs:
            if name not in wanted:
                raise TensorError(f"no input {name!r}; this program takes {', '.join(wanted) or 'none'}")
        for name in wanted:
            if name not in inputs:
                raise TensorError(f"input {name!r} is missing; this program takes {', '.join(wanted)}")
        words = self.program.bind(dict(parameters or {}))
        return words, {name: tensors.pack(wanted[name], t) for name, t in inputs.items()}

    def submit(
        self, inputs: Mapping[str, npt.NDArray[np.generic]], parameters: Mapping[str, int] | None = None
    ) -> Future[Result]:
        """`run` in the background, in the order of submission."""
        with self._lock:
            self._open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="rsn")
        return self._pool.submit(self.run, inputs, parameters)

    def close(self) -> None:
        """Finish what was submitted and give the board back. Further calls do nothing."""
        if self._pool is not None:
            self._pool.shutdown()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
