"""The simulator as a board: the memory banks are arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...base.errors import BoardError
from ...hw.sim.breakpoint import Stopped, stop
from ...hw.sim.machine import Machine, Run, Watch
from ...isa.packet import Words
from ...isa.program import Array, Program, Role
from .board import Board
from .held_state import HeldState
from .memories import MemoryBanks


class SimBoard(Board):
    """Holds a program and its off-chip memories, and simulates its runs. It can also stop in a run (`stop`).

    The time of a run depends only on the image, that is on the run-time parameters; the simulators of the last few
    images are kept with their times.
    """

    REMEMBERED = 8
    """How many images' simulators are kept; one of a program that keeps caches, whose image is another in each step."""

    def __init__(self) -> None:
        self._memories: MemoryBanks | None = None
        self._machines: dict[bytes, Machine] = {}

    def load(self, program: Program, weights: Mapping[str, Array]) -> None:
        self._machines = {}
        self._memories = MemoryBanks(program, weights)
        self._state = HeldState(program)
        self._most = 1 if program.with_role(Role.STATE) else self.REMEMBERED

    def run(
        self,
        words: Words,
        inputs: Mapping[str, Array],
        *,
        progress: Callable[[float], None] | None = None,
        watch: Watch | None = None,
    ) -> tuple[dict[str, Array], Run]:
        """Run the image once. As for every board; `watch` as for `Machine.run`: called with each buffer that is stored,
        and its elements."""
        held = self._loaded
        with self._state.during(inputs):
            held.fill(inputs)
            result = self._machine(held.program, words).run(held.banks, watch, progress)
        return held.outputs(), result

    def stop(self, words: Words, inputs: Mapping[str, Array], unit: str, number: int) -> Stopped:
        """Run until the unit named `unit` is about to begin its uOP `number`, counted from 0, and return the machine's
        state. words, inputs: as for `run`. The memories hold partial results afterwards. Raises `ProgramError` for an
        unknown unit or uOP number, and as `run`."""
        held = self._loaded
        with self._state.during(inputs):
            held.fill(inputs)
            stopped = stop(Machine(held.program, words), held.banks, unit, number)
        self._state.lose()
        return stopped

    @property
    def _loaded(self) -> MemoryBanks:
        if self._memories is None:
            raise BoardError("no program is loaded")
        return self._memories

    def _machine(self, program: Program, words: Words) -> Machine:
        image = words.tobytes()
        machine = self._machines.pop(image, None) or Machine(program, words)
        if len(self._machines) == self._most:
            del self._machines[next(iter(self._machines))]
        self._machines[image] = machine
        return machine

    def close(self) -> None:
        self._memories = None
        self._machines = {}
