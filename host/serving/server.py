"""A model behind a queue: many callers, each with inputs of its own sizes, share the runs of a board."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from ...base.errors import BoardError
from ...isa.layout import Array
from ..closing import Closing
from ..forks import fail, forget_in_children
from ..runner import Result
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


QueuedCall = Generator[Sequence[MachineRequest], list[Result], Any]
"""A call of a model: yields its requests to the machine, those that run at the same time together, is sent their
results, and returns the model's result. Between them it computes the host parts."""


class ProgramRunner(Protocol):
    """What runs programs, such as a `Runner`."""

    @property
    def health(self) -> Health:
        """Whether requests are being answered, and the board's latest error."""

    def submit(
        self,
        inputs: Mapping[str, Array],
        parameters: Mapping[str, int] | None = None,
        *,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> Future[Result]:
        """As `Runner.submit`."""

    def close(self) -> None:
        """As `Runner.close`."""


class Server(Closing):
    """Answers calls of a model. Any thread may call it.

    runners: what runs each group of programs with the same weights, in an order in which calls need them. prepare:
    begins a call with the model's arguments by name; it raises `TensorError` for wrong arguments before it yields the
    call's first request. name: of the model. arguments: the tensors that a call takes. sizes: the sizes that there are
    programs for, by the name of the dimension. boards: by group, a text that names its board in front of the error in
    `health`; a group without one has the error alone. A server belongs to the process that made it, as runners do.
    """

    def __init__(
        self,
        runners: Mapping[Any, ProgramRunner],
        prepare: Callable[[Mapping[str, Any]], QueuedCall],
        name: str,
        arguments: Sequence[Argument],
        sizes: Mapping[str, tuple[int, ...]],
        boards: Mapping[Any, str] | None = None,
    ) -> None:
        self.name = name
        self.arguments = tuple(arguments)
        """The tensors that a call takes."""
        self.sizes = dict(sizes)
        """The sizes that there are programs for, by the name of the dimension."""
        self._runners, self._prepare, self._boards = dict(runners), prepare, boards or {}
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
        requests = next(call)
        answer: Future[Any] = Future()
        self._futures.add(answer)
        self._submit(answer, call, requests, deadline, wait)
        return answer

    def _submit(
        self,
        answer: Future[Any],
        call: QueuedCall,
        requests: Sequence[MachineRequest],
        deadline: float | None,
        wait: float | None,
    ) -> None:
        """Queue requests of a call, after which the call goes on. answer: of the call. deadline: when it fails with
        `RequestTimeout`, in seconds of `time.monotonic`. wait: as for `ask`. Raises as `Runner.submit`."""
        runs: list[Future[Result]] = []
        try:
            for request in requests:
                timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                runner = self._runners[request.group]
                runs.append(runner.submit(request.inputs, request.parameters, timeout=timeout, wait=wait))
        except BaseException:
            _cancel([weakref.ref(run) for run in runs])
            raise
        go_on = partial(self._go_on, answer, call, deadline)
        asked = [weakref.ref(run) for run in runs]  # the queue holds them; they hold the answer
        together = _Together(asked, partial(self._ended, answer, requests[0].group, go_on, self._calls_of_loop()))
        for number, run in enumerate(runs):
            run.add_done_callback(partial(together.ended, number))
        answer.add_done_callback(lambda answer: _cancel(asked) if answer.cancelled() else None)

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
        go_on: Callable[[list[Result]], None],
        loop_calls: LoopCalls | None,
        results: list[Result] | BaseException,
    ) -> None:
        """Go on behind runs, or give the answer the end that one of them had: cancelled, or an error."""
        if isinstance(results, CancelledError):
            answer.cancel()
            answer.set_running_or_notify_cancel()
        elif isinstance(results, BaseException):
            if answer.set_running_or_notify_cancel():
                answer.set_exception(results)
        else:
            size = elements([x for result in results for x in result.outputs.values()])
            host_part = partial(self._times.timed, group, size, go_on, results)
            # a call in pieces may wait there for a place in the next queue
            if loop_calls is not None and len(self._runners) == 1 and self._times.are_short(group, size):
                with suppress(RuntimeError):  # the loop has ended
                    loop_calls.add(host_part)
                    return
            self._host_parts.add(self._pool.submit(host_part))

    def _go_on(self, answer: Future[Any], call: QueuedCall, deadline: float | None, results: list[Result]) -> None:
        """Compute the host part behind runs. Takes time: in a thread of the pool, unless it is short."""
        if answer.cancelled():
            answer.set_running_or_notify_cancel()
            return
        try:
            self._submit(answer, call, call.send(results), deadline, None)
        except StopIteration as end:
            if answer.set_running_or_notify_cancel():
                answer.set_result(end.value)
        except BaseException as e:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(e)

    @property
    def health(self) -> Health:
        """The health of the board; of several runners, the worst."""
        each: dict[Any, Health] = {group: runner.health for group, runner in self._runners.items()}
        group = max(each, key=lambda group: _WORST.index(each[group].state))
        health = each[group]
        if health.error is None or group not in self._boards:
            return health
        return replace(health, error=f"{self._boards[group]}: {health.error}")

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


class _Together:
    """Runs that take place at the same time. then: called once, when all have ended, with their results in order, or
    with the first error; `CancelledError` if one was cancelled."""

    def __init__(
        self,
        runs: Sequence[weakref.ref[Future[Result]]],
        then: Callable[[list[Result] | BaseException], None],
    ) -> None:
        self._runs, self._then = runs, then
        self._results: dict[int, Result] = {}
        self._error: BaseException | None = None
        self._left = len(runs)
        self._lock = threading.Lock()

    def ended(self, number: int, run: Future[Result]) -> None:
        """Note the end of a run. If it failed, those are cancelled that have not begun."""
        error = CancelledError() if run.cancelled() else run.exception()
        with self._lock:
            is_first = error is not None and self._error is None
            if is_first:
                self._error = error
            elif error is None:
                self._results[number] = run.result()
        if is_first and len(self._runs) > 1:
            _cancel(self._runs)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        found, self._results = self._results, {}
        self._then(self._error or [found[i] for i in range(len(self._runs))])


def _cancel(runs: Sequence[weakref.ref[Future[Result]]]) -> None:
    """Cancel the runs that have not begun."""
    for reference in runs:
        if (run := reference()) is not None:
            run.cancel()
