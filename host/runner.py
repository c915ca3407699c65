"""The runner: one object that serving scripts keep, whatever board is behind it."""

from __future__ import annotations

import heapq
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..base.errors import BoardError, ProgramError, RsnError, TensorError
from ..hw.sim.breakpoint import Stopped
from ..isa.program import Program
from ..isa.verify import require
from . import tensors
from .boards import Board, open_board
from .closing import Closing
from .forks import fail, forget_in_children
from .serving import ALONE, Health, QueueFull, RequestTimeout, Serving, State
from .serving.family import Batch, Family, Request, Result
from .serving.open_boards import OpenBoards

if TYPE_CHECKING:
    from .serving.metrics import Metrics

__all__ = ["Result", "Runner"]

Array = npt.NDArray[np.float32]
Inputs = Mapping[str, npt.NDArray[np.generic]]
Source = str | os.PathLike[str]


class Runner(Closing):
    """Runs a program on a board; thread-safe, one run at a time.

    It belongs to the process that made it. In a process forked from that one, `run`, `submit` and `stop` raise
    `BoardError` at once, futures without an answer have that error too, `health` is closed, and `close` does nothing;
    the board stays as it is. Make a runner in each process, after the fork (docs/serving.md).

    program: a `Program` or the path of a `.bin`, or several of them: one network at several batch sizes and lengths,
    with the same weights. Requests that wait then share a run of the smallest that takes them all (docs/serving.md).
    weights: a safetensors path, or tensors by buffer name (packed, as the compiler makes them). board: a name, or what
    opens one; xclbin: what a real one loads. serving: how requests wait and what happens when the board fails;
    without, an error of the board is the caller's at once. metrics: where to count, under the runner's name.

    Raises `ProgramError` for a program that could leave its buffers, `TensorError` for weights that do not fit,
    `BoardError` where the board is at fault.
    """

    def __init__(
        self,
        program: Program | Source | Sequence[Program | Source],
        *,
        weights: Mapping[str, Array] | Source | None = None,
        board: str | Callable[[], Board] = "sim",
        xclbin: Source | None = None,
        serving: Serving = ALONE,
        metrics: Metrics | None = None,
        name: str = "rsn",
    ) -> None:
        given = [program] if isinstance(program, Program | str | os.PathLike) else list(program)
        self._family = Family([_verified(p) for p in given])
        self.program = self._family.members[-1].program
        """The largest of the programs."""
        self.serving = serving
        self._boards = OpenBoards(
            board if callable(board) else lambda: open_board(board, xclbin=xclbin),
            [m.program for m in self._family.members],
            self._weights(weights),
        )
        self._turn = threading.Lock()
        """Whoever holds it has the boards."""
        self._lock = threading.Lock()
        """Of all that follows; nobody waits for the turn with it."""
        self._work, self._room, self._due = (threading.Condition(self._lock) for _ in range(3))
        self._queue: deque[Request] = deque()
        self._deadlines: list[tuple[float, int, weakref.ref[Request]]] = []
        """References that keep nothing alive: results are large, and a deadline may be far away."""
        self._numbers = count()
        self._threads: dict[str, threading.Thread] = {}
        self._closed = self._ended = False
        self._process = os.getpid()
        self._futures: weakref.WeakSet[Future[Result]] = weakref.WeakSet()
        """Those that somebody holds. Requests would not do: a fork destroys what the other threads alone hold."""
        self._health = Health()
        self._down_since = self._retry_at = self._backoff = 0.0
        self._boards.open()
        try:
            self._figures = metrics.of(name, lambda: len(self._queue)) if metrics else None
        except BaseException:
            self._boards.close()
            raise
        if self._figures:
            self._figures.state(self._health.state)
        forget_in_children(self)

    def _weights(self, weights: Mapping[str, Array] | Source | None) -> Mapping[str, Array]:
        wanted = self._family.weights
        if weights is None:
            if wanted:
                raise TensorError(f"this program needs weights ({len(wanted)} tensors, {wanted[0].name!r} first)")
            return {}
        if not isinstance(weights, Mapping):
            return tensors.Weights(weights, wanted)
        for b in wanted:
            if b.name not in weights:
                raise TensorError(f"no weight {b.name!r}, which the program needs")
        return weights if isinstance(weights, tensors.Images) else tensors.Given(weights, wanted)

    # -- asking

    def run(
        self,
        inputs: Inputs,
        parameters: Mapping[str, int] | None = None,
        *,
        progress: Callable[[float], None] | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run once. inputs: float32 tensors by buffer name, of the program's shape or of fewer and, where it has masks,
        shorter sequences (sequence, rows, columns); parameters: run-time integers such as len[0], of the request's own
        sequences; progress: told now and then which share is done; timeout: seconds for waiting and running.

        Raises `TensorError` for inputs that do not fit, `DeadlockError` when the machine cannot go on, `BoardError`,
        and of these `RequestTimeout`. With neither others waiting nor a time-out it runs in this thread, so that ^C
        reaches the board.
        """
        self._refuse_child()
        self._refuse_own_thread("run")
        request = self._request(inputs, parameters, timeout, progress)
        if not self._ran_here(request):
            self._enqueue(request, None)
        try:
            return request.future.result()
        except BaseException:
            request.future.cancel()  # ^C while it waited; nothing to a request that was answered
            raise

    def submit(
        self,
        inputs: Inputs,
        parameters: Mapping[str, int] | None = None,
        *,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> Future[Result]:
        """`run` in the background, in the order of submission; requests that wait may share a run.

        timeout: seconds until the answer is `RequestTimeout`. wait: seconds for room in the queue, 0 for none; without,
        as long as it takes. The future can be cancelled until its run begins. Raises `TensorError` and `QueueFull` here
        and now; the other errors of `run` are the future's.
        """
        self._refuse_child()
        request = self._request(inputs, parameters, timeout, None)
        self._enqueue(request, wait)
        return request.future

    def stop(self, inputs: Inputs, unit: str, number: int, parameters: Mapping[str, int] | None = None) -> Stopped:
        """Run until `unit` is about to begin its uOP `number`, and look at it (simulator only). Raises as `run`,
        `ProgramError` for a unit or uOP that is not there, and `BoardError` for a board that cannot be stopped."""
        from .boards.sim import SimBoard

        self._refuse_child()
        batch = self._family.batch([self._request(inputs, parameters, None, None)])
        with self._turn:
            with self._lock:
                self._refuse_closed()
            board = self._boards.board(batch.member.program)
            if not isinstance(board, SimBoard):
                raise BoardError("only the simulator (board sim) can be stopped")
            return board.stop(*batch.bound(), unit, number)

    @property
    def health(self) -> Health:
        """Whether requests are answered, and what went wrong last."""
        return self._health

    def close(self) -> None:
        """Finish what was submitted and give the board back. Further calls do nothing, and so do calls in a process
        forked from the runner's: its board is still in use."""
        if self._in_child:
            return
        self._refuse_own_thread("close")
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._room.notify_all()
            worker = self._threads.get("rsn-runs")
        if worker is not None:
            worker.join()
        with self._turn:
            self._boards.close()
        with self._lock:
            first, self._ended = not self._ended, True
            self._due.notify_all()
            if first:
                self._become(self._health.to(State.CLOSED))
                if self._figures:
                    self._figures.close()

    # -- the queue

    def _request(
        self,
        inputs: Inputs,
        parameters: Mapping[str, int] | None,
        timeout: float | None,
        progress: Callable[[float], None] | None,
    ) -> Request:
        request = self._family.admit(inputs, parameters or {})
        request.arrived = time.monotonic()
        request.deadline = None if timeout is None else request.arrived + timeout
        request.progress = progress
        self._futures.add(request.future)
        return request

    def _ran_here(self, request: Request) -> bool:
        """Run it in this thread, if nobody and nothing keeps it waiting."""
        turn = self._turn  # `progress` may fork, and the child has another
        if request.deadline is not None or self.serving.max_wait_s or not turn.acquire(blocking=False):
            return False
        try:
            with self._lock:
                self._refuse_closed()
                if self._queue or (self.serving.give_up_s and not self._boards.are_open):
                    return False
                self._starts(request)
            self._execute(self._family.batch([request]))
            return True
        finally:
            turn.release()

    def _enqueue(self, request: Request, wait: float | None) -> None:
        """Raises `QueueFull`, also where waiting for room would be waiting for oneself."""
        if request.deadline is not None:
            left = max(request.deadline - time.monotonic(), 0.0)
            wait = left if wait is None else min(wait, left)
        with self._lock:
            self._refuse_closed()
            if len(self._queue) >= self.serving.queue:
                own = threading.current_thread() in self._threads.values()
                room = self._room.wait_for(
                    lambda: self._closed or len(self._queue) < self.serving.queue, 0.0 if own else wait
                )
                self._refuse_closed()
                if not room:
                    self._count("full")
                    raise QueueFull(f"{len(self._queue)} requests wait, and none was taken in {wait or 0.0:g} s")
            self._queue.append(request)
            self._start_thread("rsn-runs", self._serve)
            self._work.notify()
            if request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, next(self._numbers), weakref.ref(request)))
                self._start_thread("rsn-deadlines", self._watch)
                self._due.notify()
        asked = weakref.ref(request)
        request.future.add_done_callback(lambda future: self._forget(asked()) if future.cancelled() else None)

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Daemons: a script that forgets to close ends all the same."""
        if name not in self._threads:
            self._threads[name] = threading.Thread(target=target, name=name, daemon=True)
            self._threads[name].start()

    def _forget(self, request: Request | None) -> None:
        """It was cancelled."""
        with self._lock:
            self._count("cancelled")
            if request is None:
                return
            self._remove(request)
            self._starts(request)  # tells those who wait for several futures

    def _remove(self, request: Request) -> None:
        if request in self._queue:
            self._queue.remove(request)
            self._room.notify()

    def _watch(self) -> None:
        """Answer requests whose time is over, whether they wait or run."""
        while True:
            late: list[Request] = []
            with self._lock:
                while not self._ended and not (self._deadlines and self._deadlines[0][0] <= time.monotonic()):
                    self._due.wait(self._deadlines[0][0] - time.monotonic() if self._deadlines else None)
                if self._ended:
                    return
                while self._deadlines and self._deadlines[0][0] <= time.monotonic():
                    request = heapq.heappop(self._deadlines)[2]()
                    if request is not None:
                        self._remove(request)
                        late.append(request)
            for request in late:
                what = "its run has not ended" if request.runs else "it still waited"
                seconds = (request.deadline or 0.0) - request.arrived
                self._answer(request, RequestTimeout(f"no answer in {seconds:g} s: {what}"))

    def _serve(self) -> None:
        """Run what waits, until the runner is closed and nothing does."""
        while self._wait_for_work():
            with self._turn:
                if not self._boards.are_open:
                    try:
                        self._boards.reopen()
                    except BoardError as e:
                        self._fail(e)
                        continue
                    with self._lock:
                        self._become(self._health.to(State.DEGRADED))
                batch = self._take()
                if batch is not None:
                    self._execute(batch)
                    del batch  # what was answered is not kept until there is more to do

    def _wait_for_work(self) -> bool:
        """Wait until there is something to run, or a board to open again. Whether there is."""
        with self._lock:
            while True:
                down = self._health.state is State.FAILING
                if self._closed:
                    return bool(self._queue)
                until = self._retry_at if down else self._gathered() if self._queue else None
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._work.wait(left)

    def _gathered(self) -> float:
        """When the first that waits has waited long enough for others."""
        first = self._queue[0]
        waiting = sum(len(r.sequences) for r in self._queue)
        full = waiting >= self._family.most or len(self._queue) >= self.serving.queue
        return 0.0 if full or first.member or first.progress else first.arrived + self.serving.max_wait_s

    def _take(self) -> Batch | None:
        """What runs next, which from now on cannot be cancelled."""
        with self._lock:
            while self._queue:
                batch = self._family.batch(self._queue)
                for request in batch.requests:
                    self._remove(request)
                live = [r for r in batch.requests if self._starts(r)]
                if live:
                    return batch if len(live) == len(batch.requests) else self._family.batch(live)
            return None

    def _starts(self, request: Request) -> bool:
        """Whether somebody still waits for it."""
        if not request.started and not request.answered:
            request.started = request.future.set_running_or_notify_cancel()
            request.answered = not request.started  # by whoever cancelled it
        return request.started and not request.answered

    # -- running

    def _execute(self, batch: Batch) -> None:
        """Run, and answer or try again. The turn is the caller's."""
        began = time.monotonic()
        for request in batch.requests:
            request.runs += 1
        try:
            self._boards.reopen()
            flat, run = self._boards.run(batch.member.program, *batch.bound(), batch.requests[0].progress)
            outputs = batch.outputs(flat)
        except BoardError as e:
            self._boards.close()
            self._fail(e, batch.requests)
        except BaseException as e:
            if not isinstance(e, RsnError):  # nobody knows what state the board is in
                self._boards.close()
            for request in batch.requests:
                self._answer(request, e)
            if not isinstance(e, Exception):
                raise
        else:
            if self._figures:
                waited = [began - r.arrived for r in batch.requests]
                self._figures.ran(waited, time.monotonic() - began, batch.fill, run)
            with self._lock:
                self._backoff = 0.0
                self._become(self._health.to(State.READY))
            for request, tensors_ in zip(batch.requests, outputs, strict=True):
                self._answer(request, Result(tensors_, run))

    def _fail(self, error: BoardError, running: Sequence[Request] = ()) -> None:
        """The board is down: it failed with these requests running, or when it was opened."""
        with self._lock:
            now = time.monotonic()
            if self._health.state is not State.FAILING:
                self._down_since = now
            self._backoff = min(2 * self._backoff or self.serving.backoff_s, self.serving.backoff_limit_s)
            self._retry_at = now + self._backoff
            self._become(self._health.failed(error))
            if self._figures:
                self._figures.failed()
            ends = self._closed and threading.current_thread() is not self._threads.get("rsn-runs")
            retries = 0 if ends else self.serving.retries  # nobody would take it from the queue
            lost = [r for r in running if r.runs > retries]
            again = [r for r in running if r.runs <= retries]
            self._queue.extendleft(reversed(again))
            if not running and (self._closed or now - self._down_since >= self.serving.give_up_s):
                lost += self._queue
                self._queue.clear()
                self._room.notify_all()
            if not self._closed and (self._queue or self.serving.give_up_s):
                self._start_thread("rsn-runs", self._serve)
        for request in lost:
            self._answer(request, error)

    def _answer(self, request: Request, answer: Result | BaseException) -> None:
        """The first answer to a request is the one."""
        with self._lock:
            if self._in_child or not self._starts(request):
                return
            request.answered = True
            if not isinstance(answer, BaseException):
                self._count("ok")
            else:
                self._count("timeout" if isinstance(answer, RequestTimeout) else "error")
        if isinstance(answer, BaseException):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)

    def _become(self, health: Health) -> None:
        if self._figures and health is not self._health:
            self._figures.state(health.state)
        self._health = health

    def _count(self, outcome: str) -> None:
        if self._figures:
            self._figures.answered(outcome)

    # -- forks

    def forget(self) -> None:
        """See `forks`. The board, the queue and the threads are the parent's."""
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._work, self._room, self._due = (threading.Condition(self._lock) for _ in range(3))
        self._queue, self._deadlines, self._threads = deque(), [], {}
        self._closed = self._ended = True
        self._boards.forget()
        error = BoardError(self._where_it_is())
        self._health = replace(self._health.to(State.CLOSED), error=f"{type(error).__name__}: {error}")
        for future in list(self._futures):
            fail(future, error)
        figures, self._figures = self._figures, None
        if figures:
            figures.forget()

    @property
    def _in_child(self) -> bool:
        return os.getpid() != self._process

    def _where_it_is(self) -> str:
        return (
            f"this runner was made in process {self._process}, and this is process {os.getpid()}, forked from it: "
            "board, queue and threads are there; make a Runner in this process, after the fork, or let that one answer"
        )

    def _refuse_child(self) -> None:
        if self._in_child:
            raise BoardError(self._where_it_is())

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BoardError("this runner is closed")

    def _refuse_own_thread(self, what: str) -> None:
        if threading.current_thread() in self._threads.values():
            raise RuntimeError(f"{what} in a callback of one of this runner's own futures would wait for itself")


def _verified(program: Program | Source) -> Program:
    if not isinstance(program, Program):
        from ..assembler import container

        try:
            program = container.read(Path(program))
        except OSError as e:
            raise ProgramError(f"{program}: {e.strerror}") from None
    require(program)
    return program
