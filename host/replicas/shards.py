"""The shards of a stage, each on a board of its own: the first one makes the calls, has programs run on the boards of
the others, and adds the parts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from ...isa.layout import Array
from ...isa.program import Program
from ..model.file import Saved
from ..model.saved_runners import Group
from ..runner import Result, Runner
from ..serving.health import Health
from ..serving.policy import RequestTimeout
from ..serving.server import MachineRequest, QueuedCall, Server
from .stage import StageSource

CALL_S = 60.0
"""The most seconds of a run of another shard whose caller states no time."""

Ask = Callable[[Any, float], Future[Any]]
"""Asks a shard, as `StageOnBoard.ask`."""


class ShardSource(StageSource, Protocol):
    """Where a shard of a stage comes from."""

    def joined(self, others: Sequence[Ask]) -> StageSource:
        """Return the source of the first shard. others: what asks the shards behind it, in order."""


def shard_server(runners: Mapping[Any, Runner], name: str) -> Server:
    """Return the server of a shard that is not the first of its stage. A call takes a `MachineRequest`, and returns a
    `Result`. runners: by the name of a group of programs, what runs them. name: of the model."""
    return Server(runners, _run, name, (), {})


def _run(request: Any) -> QueuedCall:
    (result,) = yield [request]
    return result


def others_of(saved: Saved, stage: int, others: Sequence[Ask]) -> dict[Group, OtherRunner]:
    """Return what runs the programs of a stage that are not those of its first shard. saved: the file. others: what
    asks the shards behind the first."""
    asks = dict(enumerate(others, stage * saved.shards + 1))
    numbers = saved.parts[0].board_numbers.items()
    return {
        (same, i): OtherRunner((same, i), asks[board])
        for same in dict.fromkeys(saved.same)
        for i, board in numbers
        if board in asks
    }


class OtherRunner:
    """Runs programs on the board of another shard (`ProgramRunner`). group: the name of these programs at that shard.
    ask: sends a request to the shard. program: the only program of the group; None if there are several."""

    health = Health()
    """Nothing here fails: the other shard says its own."""

    def __init__(self, group: Hashable, ask: Ask, program: Program | None = None) -> None:
        self._group, self._ask, self._program = group, ask, program
        self._runs = 0
        self._changed = threading.Condition()

    @property
    def program(self) -> Program:
        """As `Runner.program`."""
        assert self._program is not None
        return self._program

    def submit(
        self,
        inputs: Mapping[str, Array],
        parameters: Mapping[str, int] | None = None,
        *,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> Future[Result]:
        """As `Runner.submit`, but a full queue is not waited for. Errors are those of the other shard, or of the way
        there."""
        request = MachineRequest(self._group, dict(inputs), dict(parameters or {}))
        with self._changed:
            self._runs += 1
        try:
            run = self._ask(request, CALL_S if timeout is None else timeout)
        except BaseException:
            self._over()
            raise
        answer: Future[Result] = Future()
        asked = weakref.ref(run)  # who runs it holds it; it holds the answer
        run.add_done_callback(partial(self._ended, answer))
        answer.add_done_callback(lambda answer: _cancel(asked()) if answer.cancelled() else None)
        return answer

    def run(self, inputs: Mapping[str, Array], parameters: Mapping[str, int] | None = None) -> Result:
        """As `Runner.run`; `RequestTimeout` after `CALL_S`."""
        try:
            return self.submit(inputs, parameters).result(CALL_S)
        except RequestTimeout:
            raise
        except TimeoutError:  # the other shard hangs
            raise RequestTimeout(f"no answer of another shard in {CALL_S:g} s") from None

    def close(self) -> None:
        """Wait for the runs that were submitted. The other shard is closed by its owner."""
        with self._changed:
            self._changed.wait_for(lambda: not self._runs)

    def _ended(self, answer: Future[Result], run: Future[Result]) -> None:
        """Give the answer the end that the run had, and note only then that it is over: who closes this expects that
        callbacks of the answer have been called."""
        try:
            if run.cancelled():
                answer.cancel()
            if not answer.set_running_or_notify_cancel():
                return
            if (error := run.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(run.result())
        finally:
            self._over()

    def _over(self) -> None:
        with self._changed:
            self._runs -= 1
            self._changed.notify_all()


def _cancel(run: Future[Result] | None) -> None:
    if run is not None:
        run.cancel()
