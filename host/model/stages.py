"""A stage of a model from a file, by itself: another process, or another computer, may run the stages beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...base.errors import ContainerError, TensorError
from ...isa.program import Program, Role
from ..boards.several import BoardName, check_boards
from ..closing import Closing
from ..serving import ALONE, Serving
from ..serving.server import ProgramRunner, QueuedCall, Server
from .file import Saved, read, refuse_shards
from .saved_runners import Group, open_runners
from .stage_calls import SavedCalls, StageCall

if TYPE_CHECKING:
    from ...hw.sim.machine import Run
    from ..serving.metrics import Metrics


def load_stage(
    path: str | os.PathLike[str],
    stage: int,
    *,
    board: BoardName = "sim",
    xclbin: str | os.PathLike[str] | None = None,
    serving: Serving = ALONE,
    metrics: Metrics | None = None,
    name: str = "rsn",
) -> ModelStage:
    """Load a stage of a model that was compiled for several boards, and open its board. Only its own weights are read.

    stage: its number, from 0. board, xclbin: as for `rsn.load`. serving, metrics, name: as for `Runner`. A model for
    one board has one stage. Raises `ContainerError` as `rsn.load`, and for a stage that the file does not have; and
    what `Runner` raises.
    """
    saved = read(path, stage)
    if saved.decoder is not None or any(part.split is not None for part in saved.parts):
        kind = "a decoder" if saved.decoder is not None else "a model in pieces"
        raise ContainerError(f"{path}: {kind}, which has no stages")
    refuse_shards(path, saved, "load_stage")
    if not 0 <= stage < saved.stages:
        raise ContainerError(f"{path}: no stage {stage}; it has {saved.stages}, numbered from 0")
    return ModelStage(saved, stage, board, xclbin, serving, metrics, name)


class ModelStage(Closing):
    """A stage of a model, on a board of its own. Any thread may call it.

    The first stage is called with the model's arguments, each other one with what the stage before returned; the last
    one returns the model's result: `last(middle(first(x)))` is the model. Between them goes a `StageCall`, which can be
    pickled. The first computes the host's part before the machine, the last that behind it. saved: the file's content.
    number: of the stage. others: what runs programs of the stage on other boards, those of the shards behind the first.
    The rest: as for `load_stage`.
    """

    def __init__(
        self,
        saved: Saved,
        number: int,
        board: BoardName = "sim",
        xclbin: str | os.PathLike[str] | None = None,
        serving: Serving = ALONE,
        metrics: Metrics | None = None,
        name: str = "rsn",
        others: Mapping[Group, ProgramRunner] | None = None,
    ) -> None:
        check_boards([board], 1)
        self.number, self.count = number, saved.stages
        """Its number, from 0, and that of all stages."""
        self._calls = SavedCalls(saved)
        own = number * saved.shards
        boards = saved.parts[0].board_numbers
        programs = [part.on_machine[i].program for part in saved.parts for i, of in boards.items() if of == own]
        self.programs: tuple[Program, ...] = tuple(programs)
        """Its programs, one for each of the sizes that the model was compiled for."""
        self._same = {part.sizes: same for part, same in zip(saved.parts, saved.same, strict=True)}
        self._next = min(i for i, of in boards.items() if of == own)
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's run; None before the first call."""
        self._own = open_runners(
            saved,
            lambda i: board if boards[i] == own else None,
            xclbin=xclbin,
            serving=serving,
            metrics=metrics,
            name=name,
        )
        runners: dict[Group, ProgramRunner] = {**self._own, **(others or {})}
        self._runners = dict(sorted(runners.items(), key=lambda of: of[0][1]))  # as calls need them

    @property
    def is_first(self) -> bool:
        """Whether it takes the model's arguments."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether it returns the model's result."""
        return self.number == self.count - 1

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of the tensors that it reads: inputs of the network, and activations of stages before."""
        return tuple(b.name for b in self.programs[0].with_role(Role.INPUT))

    @property
    def gives(self) -> tuple[str, ...]:
        """The names of the tensors that it computes for later stages and for the host."""
        return tuple(b.name for b in self.programs[0].with_role(Role.OUTPUT))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage: of the model's arguments if it is the first, else of a `StageCall`. Returns a `StageCall`, or
        the model's result if it is the last.

        Raises `TensorError` for arguments that do not fit and for a call that another stage is next for; what
        `Runner.run` raises.
        """
        call = self._calls.begin(args, kwargs) if self.is_first else _passed(args, kwargs)
        call = self.run(call)
        return self._calls.end(call) if self.is_last else call

    def run(self, call: StageCall) -> StageCall:
        """Run the stage's program alone, without the host's part. Returns the call behind it. Raises as a call."""
        self._refuse_other(call)
        inputs, parameters = self._calls.request(call)
        result = self._own[self._same[call.taken], self.number].run(inputs, parameters)
        self.last_run = result.run
        return self._calls.after(call, result.outputs)

    def server(self, name: str = "rsn") -> Server:
        """Return a server of this stage. Its calls wait in the queue that `serving` describes, and share runs. The
        server of the first stage takes the model's arguments by name; otherwise its calls take and return what the
        stage does. Closing the server releases the board. name: of the model."""
        return Server(self._runners, self._queued, name, (), {})

    def _queued(self, inputs: Any) -> QueuedCall:
        """A call, in the form of its request to the machine."""
        if self.is_first:
            call = self._calls.begin((), *self._calls.by_name(inputs))
        else:
            call = _passed((inputs,), {})
            self._refuse_other(call)
        same = self._same[call.taken]
        call = yield from self._calls.queued(call, lambda i: (same, i), self.number)
        return self._calls.end(call) if self.is_last else call

    def _refuse_other(self, call: StageCall) -> None:
        """Raise `TensorError` for a call that another stage is next for."""
        if call.stage != self._next:
            raise TensorError(f"a call whose next stage is {call.stage} came to stage {self.number}")

    def close(self) -> None:
        """Finish the calls that have begun, and release the board."""
        for runner in self._runners.values():
            runner.close()

    def __repr__(self) -> str:
        return f"<rsn.ModelStage: {self.number} of {self.count}, on {self.programs[0].overlay.name}>"


def _passed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> StageCall:
    if len(args) != 1 or kwargs or not isinstance(args[0], StageCall):
        raise TensorError("a stage behind the first takes what the stage before returned, and nothing else")
    return args[0]
