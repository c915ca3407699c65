"""A model behind a queue: many callers, each with inputs of its own sizes, share the runs of a board."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...base.errors import BoardError
from ...isa.layout import Array
from ..closing import Closing
from ..forks import fail, forget_in_children
from ..runner import Result, Runner
from .arguments import Argument
from .call_times import AT_ONCE_S, CallTimes, LoopCalls, elements, running_loop
from .health import Health, State

WORKERS = 2
"""Threads that compute the host part behind the machine."""
_WORST = (State.READY, State.DEGRADED, State.FAILING, State.CLOSED)


@dataclass(frozen=True, eq=False)
class MachineRequest:
    """A request of a call to the machine. group: the runner. inputs: float32 (sequences, rows, columns); inputs and
    parameters as `Runner.run` takes them."""

    group: Hashable
    inputs: dict[str, Array]
    parameters: dict[str, int]


QueuedCall = Generator[MachineRequest, Result, Any]
"""A call of a model: yields its requests to the machine one after the other, is sent the result of each, and returns
the model's result. Between them it computes the host parts."""


class Server(Closing):
    """Answers calls of a model. Any thread may call it.

    runners: for each group of programs with the same weights, in an order in which calls ask them. prepare: makes a
    call from the model's arguments by name, which raises `TensorError` until its first request. name: of the model.
    arguments: the tensors that a call takes. sizes: those that there are programs for, by the name of the dimension. A
    server belongs to the process that made it, as runners do.
    """

    def __init__(
        self,
        runners: Mapping[Hashable, Runner],
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
        self._times = CallTimes(AT_ONCE_S)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="rsn-results")
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._loop_calls: LoopCalls | None = None
        self._host_parts: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        """The host parts of calls that have begun."""
        forget_in_children(self)

    def submit(self, **inputs: Any) -> Future[Any]:
        """Queue a call with the model's arguments by name, tensors or NumPy arrays, and return its future. Waiting
        requests may share a run.

        The future has the model's result, cut to the sizes of the arguments, or the error of the run; it can be
        cancelled until the run begins. Raises `TensorError` for arguments that do not fit, `BoardError` after `close`.
        Waits while the queue is full. In an event loop, the host part behind the machine is computed in this loop if it
        is short.
        """
        return self.ask(inputs)

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """As `submit`, with limits. inputs: the model's arguments by name. timeout: seconds until the future fails with
        `RequestTimeout`; None for no limit. wait: seconds to wait for a place in a full queue, after which `QueueFull`
        is raised; None waits without limit. Raises `TensorError` for inputs that do not fit, `BoardError` after
        `close`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        call = self._prepare(inputs)
        request = next(call)
        answer: Future[Any] = Future()
        self._futures.add(answer)
        self._submit(answer, call, request, deadline, wait)
        return answer

    def _submit(
        self, answer: Future[Any], call: QueuedCall, request: MachineRequest, deadline: float | None, wait: float | None
    ) -> None:
        """Queue a request of a call, after which the call goes on. answer: of the call. deadline: when it fails with
        `RequestTimeout`, in seconds of `time.monotonic`. wait: as for `ask`. Raises as `Runner.submit`."""
        timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        run = self._runners[request.group].submit(request.inputs, request.parameters, timeout=timeout, wait=wait)
        go_on = partial(self._go_on, answer, call, deadline)
        run.add_done_callback(partial(self._ended, answer, request.group, go_on, self._calls_of_loop()))
        asked = weakref.ref(run)  # the queue holds it; the run holds the answer
        answer.add_done_callback(lambda answer: _cancel(asked()) if answer.cancelled() else None)

    def _calls_of_loop(self) -> LoopCalls | None:
        """The calls of the event loop that runs in this thread; None if there is none."""
        loop, known = running_loop(), self._loop_calls
        if loop is None:
            return None
        if known is None or known.loop is not loop:
            self._loop_calls = known = LoopCalls(loop)
        return known

    def _ended(
        self,
        answer: Future[Any],
        group: Hashable,
        go_on: Callable[[Result], None],
        loop_calls: LoopCalls | None,
        run: Future[Result],
    ) -> None:
        """Go on behind a run, or give the answer the end that the run had: cancelled, or an error."""
        if run.cancelled():
            answer.cancel()
            answer.set_running_or_notify_cancel()
        elif (error := run.exception()) is not None:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
        else:
            result = run.result()
            size = elements(result.outputs)
            host_part = partial(self._times.timed, group, size, go_on, result)
            # a call in pieces may wait there for a place in the next queue
            if loop_calls is not None and len(self._runners) == 1 and self._times.are_short(group, size):
                with suppress(RuntimeError):  # the loop has ended
                    loop_calls.add(host_part)
                    return
            self._host_parts.add(self._pool.submit(host_part))

    def _go_on(self, answer: Future[Any], call: QueuedCall, deadline: float | None, result: Result) -> None:
        """Compute the host part behind a run. Takes time: in a thread of the pool, unless it is short."""
        if answer.cancelled():
            answer.set_running_or_notify_cancel()
            return
        try:
            self._submit(answer, call, call.send(result), deadline, None)
        except StopIteration as end:
            if answer.set_running_or_notify_cancel():
                answer.set_result(end.value)
        except BaseException as e:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(e)

    @property
    def health(self) -> Health:
        """The health of the board; of several runners, the worst."""
        return max((runner.health for runner in self._runners.values()), key=lambda health: _WORST.index(health.state))

    def close(self) -> None:
        """Finish the submitted calls, and release the board."""
        for runner in self._runners.values():
            runner.close()
            wait_for(list(self._host_parts))  # they may ask the runners behind
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


def _cancel(run: Future[Result] | None) -> None:
    if run is not None:
        run.cancel()
