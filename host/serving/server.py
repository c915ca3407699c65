"""A model behind a queue: many callers, each with inputs of its own sizes, share the runs of a board."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...base.errors import BoardError
from ...isa.layout import Array
from ..closing import Closing
from ..forks import fail, forget_in_children
from ..runner import Result, Runner
from .arguments import Argument
from .health import Health, State

WORKERS = 2
"""Threads that compute the host part behind the machine."""
_WORST = (State.READY, State.DEGRADED, State.FAILING, State.CLOSED)


@dataclass(frozen=True, eq=False)
class QueuedCall:
    """A call of a model as a request to the machine. group: the runner, by the index of its first program. inputs:
    float32 (sequences, rows, columns); inputs and parameters as `Runner.run` takes them. finish: computes the model's
    result from the machine's outputs."""

    group: int
    inputs: dict[str, Array]
    parameters: dict[str, int]
    finish: Callable[[Mapping[str, Array]], Any]


class Server(Closing):
    """Answers calls of a model. Any thread may call it.

    runners: for each group of programs with the same weights, by the index of its first program. prepare: makes the
    request to the machine from the model's arguments by name; raises `TensorError`. name: of the model. arguments: the
    tensors that a call takes. sizes: those that there are programs for, by the name of the dimension. A server belongs
    to the process that made it, as runners do.
    """

    def __init__(
        self,
        runners: Mapping[int, Runner],
        prepare: Callable[[Mapping[str, Any]], QueuedCall],
        name: str,
        arguments: Sequence[Argument],
        sizes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        """The tensors that a call takes."""
        self.sizes = dict(sizes)
        """The sizes that there are programs for, by the name of the dimension."""
        self._runners, self._prepare = dict(runners), prepare
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="rsn-results")
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        forget_in_children(self)

    def submit(self, **inputs: Any) -> Future[Any]:
        """Queue a call with the model's arguments by name, tensors or NumPy arrays, and return its future. Waiting
        requests may share a run.

        The future has the model's result, cut to the sizes of the arguments, or the error of the run; it can be
        cancelled until the run begins. Raises `TensorError` for arguments that do not fit, `BoardError` after `close`.
        Waits while the queue is full.
        """
        return self.ask(inputs)

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """As `submit`, with limits. inputs: the model's arguments by name. timeout: seconds until the future fails with
        `RequestTimeout`; None for no limit. wait: seconds to wait for a place in a full queue, after which `QueueFull`
        is raised; None waits without limit. Raises `TensorError` for inputs that do not fit, `BoardError` after
        `close`."""
        asked = self._prepare(inputs)
        answer: Future[Any] = Future()
        self._futures.add(answer)
        run = self._runners[asked.group].submit(asked.inputs, asked.parameters, timeout=timeout, wait=wait)

        def finish(result: Result) -> None:
            """Compute the answer from what the machine computed. Takes time: in a thread of the pool."""
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(asked.finish(result.outputs))
                except BaseException as e:
                    answer.set_exception(e)

        def ended(run: Future[Result]) -> None:
            """Give the answer the end that the run had: cancelled, an error, or a result."""
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
        """The health of the board; of several runners, the worst."""
        return max((runner.health for runner in self._runners.values()), key=lambda health: _WORST.index(health.state))

    def close(self) -> None:
        """Finish the submitted calls, and release the board."""
        for runner in self._runners.values():
            runner.close()
        self._pool.shutdown()

    def forget(self) -> None:
        """In a forked child (see `forks`): answer the open futures with an error, and leave the parent's threads and
        board alone."""
        error = BoardError(
            "this server was made in another process, from which this one was forked: load the model in this process"
        )
        for future in list(self._futures):
            fail(future, error)
        self._pool = ThreadPoolExecutor(1)
