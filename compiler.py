"""`rsn.compile`: where the compiler and the runner meet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .host.runner import Runner
from .host.tensors import save_tensors
from .hw.sim.machine import Run
from .isa.errors import ScheduleError
from .isa.overlays import find
from .isa.program import Program
from .scheduler.build import Built, build
from .scheduler.schedule import SCHEDULES, Schedule

if TYPE_CHECKING:
    from torch import nn

    from .rsnlib.partition import Traced


def schedule_named(schedule: str | Schedule) -> Schedule:
    """A schedule by name. Raises `ScheduleError` for an unknown one."""
    if isinstance(schedule, Schedule):
        return schedule
    try:
        return SCHEDULES[schedule]
    except KeyError:
        raise ScheduleError(f"no schedule {schedule!r}; there are {', '.join(SCHEDULES)}") from None


class Compiled:
    """A module whose encoder stack runs on the machine. Call it as the module; it returns what the module returns.

    program and weights (by buffer name, as they lie in LPDDR) can be saved and run elsewhere with `Runner`.
    """

    def __init__(self, traced: Traced, built: Built, board: str) -> None:
        self.program: Program = built.program
        self.weights = built.weights
        self.last_run: Run | None = None
        """What the most recent call took on the machine."""
        self._traced = traced
        self._runner = Runner(built.program, weights=built.weights, board=board)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Host part, machine, host part. Raises `TensorError` for arguments that differ from the example's in shape or
        dtype, or for an attention mask that is no prefix."""
        inputs, lengths, state = self._traced.prologue(*args, **kwargs)
        named = {} if lengths is None else {f"len[{i}]": int(n) for i, n in enumerate(lengths)}
        result = self._runner.run(inputs, named)
        self.last_run = result.run
        return self._traced.epilogue(result.outputs, state)

    def explain(self) -> str:
        """Which module runs where, and why."""
        return self._traced.explain()

    def save(self, program: str | os.PathLike[str], weights: str | os.PathLike[str]) -> None:
        """Write the program (`.bin`) and its packed weights (`.safetensors`)."""
        from .assembler import container

        save_tensors(weights, self.weights, packed=True)
        container.write(self.program, Path(program))

    def close(self) -> None:
        """Give the board back."""
        self._runner.close()


def compile(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    *,
    board: str = "sim",
    overlay: str = "xnn",
    schedule: str | Schedule = "paper",
) -> Compiled:
    """Compile the part of `model` that the machine can run: trace, lower, order, pack.

    example_inputs: positional (tuple) or keyword (dict) arguments; their shapes are the program's. Raises
    `UnsupportedError` naming operator and module path for what the machine cannot run.
    """
    from .rsnlib.trace import trace

    traced = trace(model, example_inputs)
    built = build(traced.network, find(overlay), schedule_named(schedule))
    return Compiled(traced, built, board)
