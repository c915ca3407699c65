"""A model behind a queue: many callers, each with inputs of its own sizes, share the runs of a board."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ..closing import Closing
from ..forks import fail, forget_in_children
from ..runner import Result, Runner
from .arguments import Argument
from .health import Health, State

Array = npt.NDArray[np.float32]

WORKERS = 2
"""Threads that make results of what the machine answered."""
_WORST = (State.READY, State.DEGRADED, State.FAILING, State.CLOSED)


@dataclass(frozen=True, eq=False)
class Asked:
    """A call of a model, as the machine is asked. group: of programs, by the number of the first; inputs, float32
    (sequences, rows, columns), and parameters as `Runner.run` takes them; finish: makes the model's result of the
    outputs."""

    group: int
    inputs: dict[str, Array]
    parameters: dict[str, int]
    finish: Callable[[Mapping[str, Array]], Any]


class Server(Closing):
    """Answers calls of a model. Any thread may ask.

    runners: for each group of programs, by the number of its first one. prepare: from the model's arguments, by name,
    to what the machine is asked; raises `TensorError`. A server belongs to the process that made it, as runners do.
    """

    def __init__(
        self,
        runners: Mapping[int, Runner],
        prepare: Callable[[Mapping[str, Any]], Asked],
        name: str,
        arguments: Sequence[Argument],
        sizes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        """What calls give."""
        self.sizes = dict(sizes)
        """By the name of a dimension, the sizes that there are programs for."""
        self._runners, self._prepare = dict(runners), prepare
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="rsn-results")
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        forget_in_children(self)

    def submit(self, **inputs: Any) -> Future[Any]:
        """Ask for one call, with the model's arguments by name (tensors, or NumPy arrays); requests that wait may share
        a run. The future has the model's result, cut to what was asked, or the error of the run. It can be cancelled
        until the run begins. Raises `TensorError` for arguments that do not fit; waits while the queue is full."""
        return self.ask(inputs)

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """As `submit`. timeout: seconds until the answer is `RequestTimeout`. wait: seconds for room in the queue, 0
        for none; then `QueueFull` is raised."""
        asked = self._prepare(inputs)
        answer: Future[Any] = Future()
        self._futures.add(answer)
        run = self._runners[asked.group].submit(asked.inputs, asked.parameters, timeout=timeout, wait=wait)

        def finish(result: Result) -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(asked.finish(result.outputs))
                except BaseException as e:
                    answer.set_exception(e)

        def ended(run: Future[Result]) -> None:
            if run.cancelled():
                answer.cancel()
                answer.set_running_or_notify_cancel()
            elif (error := run.exception()) is not None:
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)
            else:
                self._pool.submit(finish, run.result())

        run.add_done_callback(ended)
        answer.add_done_callback(lambda answer: run.cancel() if answer.cancelled() else None)
        return answer

    @property
    def health(self) -> Health:
        """Of the board; of several, of the one that is worst."""
        return max((runner.health for runner in self._runners.values()), key=lambda health: _WORST.index(health.state))

    def close(self) -> None:
        """Answer what was submitted, and give the board back."""
        for runner in self._runners.values():
            runner.close()
        self._pool.shutdown()

    def forget(self) -> None:
        """See `forks`: threads and board are the parent's."""
        error = BoardError(
            "this server was made in another process, from which this one was forked: load the model here"
        )
        for future in list(self._futures):
            fail(future, error)
        self._pool = ThreadPoolExecutor(1)
