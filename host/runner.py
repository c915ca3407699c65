"""The runner: runs a program on a board for a serving script, whichever board that is."""

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

from ..assembler import container
from ..base.errors import BoardError, ProgramError, RsnError, StateLost, TensorError
from ..hw.sim.breakpoint import Stopped
from ..isa.overlays.tasks import TASKS
from ..isa.program import Array, Program
from ..isa.verify import require
from . import tensors
from .boards import Board, open_board
from .boards.sim import SimBoard
from .closing import Closing
from .forks import fail, forget_in_children
from .serving import ALONE, Health, QueueFull, RequestTimeout, Serving, State
from .serving.family import ProgramFamily, Request, RequestBatch, Result
from .serving.open_boards import OpenBoards

if TYPE_CHECKING:
    from .serving.metrics import Metrics

__all__ = ["Result", "Runner"]

Inputs = Mapping[str, npt.NDArray[np.generic]]
Source = str | os.PathLike[str]
PRUNED = 1000
"""Requests after which deadlines of those that no longer exist are dropped."""


class Runner(Closing):
    """Runs a program on a board. Any thread may call it; runs take place one at a time.

    program: a `Program` or the path of a `.bin`; or several of them, which are one network compiled for several batch
    sizes and lengths, with the same weights. Waiting requests then share a run of the smallest program that has room
    for all of them (docs/serving.md). weights: the path of a safetensors file, or float32 tensors by buffer name,
    packed as the compiler packs them. board: a board's name (docs/boards-reference.md), or a function that opens one.
    xclbin: path of the bitstream for a real board. serving: how requests queue, and what happens when the board fails;
    by default an error of the board is raised to the caller at once. metrics: where to count requests, under the
    runner's `name`.

    A runner belongs to the process that made it. In a process forked from that one `run`, `submit` and `stop` raise
    `BoardError` at once, unanswered futures get that error too, `health` is `CLOSED`, and `close` does nothing; the
    board is left alone. Make a runner in each process, after the fork (docs/serving.md).

    Raises `ProgramError` for a program that could access memory outside its buffers, `TensorError` for weights that do
    not fit, `BoardError` if the board cannot be used.
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
        self._family = ProgramFamily([_verified(p) for p in given])
        self.program = self._family.members[-1].program
        """The program with the most rows."""
        self.serving = serving
        self._boards = OpenBoards(
            board if callable(board) else lambda: open_board(board, xclbin=xclbin),
            [m.program for m in self._family.members],
            self._weights(weights),
        )
        self._turn = threading.Lock()
        """Held while the boards are in use."""
        self._lock = threading.Lock()
        """Protects all attributes below. Never acquire `_turn` while holding it."""
        self._work, self._room, self._due = (threading.Condition(self._lock) for _ in range(3))
        self._queue: deque[Request] = deque()
        self._deadlines: list[tuple[float, int, weakref.ref[Request]]] = []
        """Weak references: results are large, and a deadline may be far in the future."""
        self._numbers = count()
        self._threads: dict[str, threading.Thread] = {}
        self._closed = self._ended = False
        self._process = os.getpid()
        self._futures: weakref.WeakSet[Future[Result]] = weakref.WeakSet()
        """Futures that a caller still holds. Not the requests: a fork destroys what only the parent's other threads
        hold."""
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
        needed = self._family.weights
        if weights is None:
            if needed:
                first = needed[0].name
                raise TensorError(
                    f"this program needs weights ({len(needed)} tensors, {first!r} first): none were given"
                )
            return {}
        if not isinstance(weights, Mapping):
            return tensors.WeightFile(weights, needed)
        for b in needed:
            if b.name not in weights:
                raise TensorError(f"weight {b.name!r} is missing; the program needs it")
        return weights if isinstance(weights, tensors.Images) else tensors.Given(weights, needed)

    # -- asking

    def run(
        self,
        inputs: Inputs,
        parameters: Mapping[str, int] | None = None,
        *,
        progress: Callable[[float], None] | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Run the program once, and return its outputs.

        inputs: float32 tensors by buffer name, in the shape of the program's buffers; or with fewer sequences and, if
        the program has masks, shorter ones: (sequence, rows, columns). parameters: run-time integers by name, such as
        `len[0]`, numbered by the sequences of this request. progress: called from time to time with the share that is
        done, 0 to 1. timeout: seconds for waiting and running together; None for no limit.

        Raises `TensorError` for inputs that do not fit, `DeadlockError` if the machine cannot go on, `BoardError` if
        the board fails, `StateLost` if the board lost what the program keeps between runs, `RequestTimeout`, which is a
        `BoardError`, and `RuntimeError` in a callback of one of the runner's own futures. The run takes place in the
        calling thread, so that ^C reaches the board, if no request waits, no timeout is given, and `serving.max_wait_s`
        is 0.
        """
        self._refuse_child()
        self._refuse_own_thread("run")
        request = self._request(inputs, parameters, timeout, progress)
        if not self._ran_here(request):
            self._enqueue(request, None)
        try:
            return request.future.result()
        except BaseException:
            request.future.cancel()  # after ^C while it waited; has no effect on an answered request
            raise

    def submit(
        self,
        inputs: Inputs,
        parameters: Mapping[str, int] | None = None,
        *,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> Future[Result]:
        """Queue a run, and return the future of its result. Runs start in the order of submission; waiting requests may
        share a run.

        inputs, parameters: as for `run`. timeout: seconds until the future fails with `RequestTimeout`; None for no
        limit. wait: seconds to wait for a place in a full queue; 0 does not wait, None waits without limit. The future
        can be cancelled until its run begins. Raises `TensorError` and `QueueFull` from this call; the other errors of
        `run` are set on the future.
        """
        self._refuse_child()
        request = self._request(inputs, parameters, timeout, None)
        self._enqueue(request, wait)
        return request.future

    def stop(self, inputs: Inputs, unit: str, number: int, parameters: Mapping[str, int] | None = None) -> Stopped:
        """Run until `unit` is about to begin its uOP `number` (counted from 0), and return the machine's state at that
        point. inputs, parameters: as for `run`. Only the simulator can do so.

        Raises what `run` raises, `ProgramError` for an unknown unit or uOP number, and `BoardError` if the board is not
        the simulator.
        """
        self._refuse_child()
        batch = self._family.batch([self._request(inputs, parameters, None, None)])
        with self._turn:
            with self._lock:
                self._refuse_closed()
            board = self._boards.board(batch.member.program)
            if not isinstance(board, SimBoard):
                raise BoardError("only the simulator (board sim) can stop before a uOP")
            return board.stop(*batch.bound(), unit, number)

    @property
    def health(self) -> Health:
        """Whether requests are being answered, and the board's latest error."""
        return self._health

    def close(self) -> None:
        """Finish the submitted requests and release the board. Further calls do nothing. In a process forked from the
        runner's own the call does nothing either: the parent still uses the board. Raises `RuntimeError` in a callback
        of one of the runner's own futures, where it would wait for itself."""
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
        """Run a request in the calling thread if nothing makes it wait. Returns whether it was run."""
        turn = self._turn  # `progress` may fork, and `forget` gives the child another lock
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
        """Append a request to the queue.

        Raises `QueueFull` if no place becomes free in time, and at once in the runner's own threads: they would wait
        for themselves.
        """
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
                    raise QueueFull(
                        f"the queue is full: {len(self._queue)} requests wait; no place in {wait or 0.0:g} s"
                    )
            self._queue.append(request)
            self._start_thread("rsn-runs", self._serve)
            self._work.notify()
            if request.deadline is not None:
                number = next(self._numbers)
                if number % PRUNED == 0:  # most were answered long before their deadline
                    self._deadlines = [entry for entry in self._deadlines if entry[2]() is not None]
                    heapq.heapify(self._deadlines)
                heapq.heappush(self._deadlines, (request.deadline, number, weakref.ref(request)))
                self._start_thread("rsn-deadlines", self._watch)
                if self._deadlines[0][1] == number:  # else the thread wakes up before
                    self._due.notify()
        asked = weakref.ref(request)
        request.future.add_done_callback(lambda future: self._forget(asked()) if future.cancelled() else None)

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        """Start a thread of the runner unless it runs already. A daemon: a script that forgets to close the runner
        still ends."""
        if name not in self._threads:
            self._threads[name] = threading.Thread(target=target, name=name, daemon=True)
            self._threads[name].start()

    def _forget(self, request: Request | None) -> None:
        """Remove a cancelled request from the queue."""
        with self._lock:
            self._count("cancelled")
            if request is None:
                return
            self._remove(request)
            self._starts(request)  # notifies concurrent.futures.wait and as_completed

    def _remove(self, request: Request) -> None:
        if request in self._queue:
            self._queue.remove(request)
            self._room.notify()

    def _watch(self) -> None:
        """Thread: answer requests whose deadline has passed, whether they wait or run, with `RequestTimeout`."""
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
                what = "its run has not ended" if request.runs else "it was still in the queue"
                seconds = (request.deadline or 0.0) - request.arrived
                self._answer(request, RequestTimeout(f"no answer in {seconds:g} s: {what}"))

    def _serve(self) -> None:
        """Thread: run queued requests until the runner is closed and the queue is empty."""
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
                    del batch  # frees its results while the thread waits

    def _wait_for_work(self) -> bool:
        """Wait until a batch may run or a failed board may be reopened. Returns False when the thread should end."""
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
        """Return when the oldest request has waited long enough for others to share its run, in seconds of
        `time.monotonic`."""
        first = self._queue[0]
        waiting = sum(len(r.sequences) for r in self._queue)
        full = waiting >= self._family.most or len(self._queue) >= self.serving.queue
        return 0.0 if full or first.member or first.progress else first.arrived + self.serving.max_wait_s

    def _take(self) -> RequestBatch | None:
        """Take the next batch from the queue; its requests can no longer be cancelled. None if the queue is empty."""
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
        """Mark a request as running. Returns False if it was cancelled or answered before."""
        if not request.started and not request.answered:
            request.started = request.future.set_running_or_notify_cancel()
            request.answered = not request.started  # a cancelled request needs no answer
        return request.started and not request.answered

    # -- running

    def _execute(self, batch: RequestBatch) -> None:
        """Run a batch, then answer its requests or queue them again. The caller holds `_turn`."""
        began = time.monotonic()
        for request in batch.requests:
            request.runs += 1
        try:
            self._boards.reopen()
            flat, run = self._boards.run(batch.member.program, *batch.bound(), batch.requests[0].progress)
            outputs = batch.outputs(flat)
        except StateLost as e:  # nothing is wrong with the board
            for request in batch.requests:
                self._answer(request, e)
        except BoardError as e:
            self._boards.close()
            self._fail(e, batch.requests)
        except BaseException as e:
            if not isinstance(e, RsnError):  # the board's state is unknown
                self._boards.close()
            for request in batch.requests:
                self._answer(request, e)
            if not isinstance(e, Exception):
                raise
        else:
            if self._figures:
                self._figures.waited([began - r.arrived for r in batch.requests])
                self._figures.ran(time.monotonic() - began, batch.fill, run)
            with self._lock:
                self._backoff = 0.0
                self._become(self._health.to(State.READY))
            for request, tensors_ in zip(batch.requests, outputs, strict=True):
                self._answer(request, Result(tensors_, run))

    def _fail(self, error: BoardError, running: Sequence[Request] = ()) -> None:
        """Record that the board failed, while running these requests or while being opened; then retry or answer what
        waits."""
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
            retries = 0 if ends else self.serving.retries  # no thread would take it from the queue
            again = [r for r in running if r.runs <= retries and not r.keeps_state]
            lost = [r for r in running if r not in again]
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
        """Answer a request unless it has been answered before."""
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
        """Release everything in a forked child (see `forks`): board, queue and threads belong to the parent."""
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
            f"this runner was made in process {self._process}; process {os.getpid()} was forked from it and has "
            "neither its board nor its threads: make a Runner in this process, after the fork, or ask the other process"
        )

    def _refuse_child(self) -> None:
        if self._in_child:
            raise BoardError(self._where_it_is())

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BoardError("this runner is closed")

    def _refuse_own_thread(self, what: str) -> None:
        if threading.current_thread() in self._threads.values():
            raise RuntimeError(
                f"{what} was called in a callback of one of this runner's own futures, where it would wait for itself: "
                "call it in another thread"
            )


def _verified(program: Program | Source) -> Program:
    if not isinstance(program, Program):
        try:
            program = container.read(Path(program))
        except OSError as e:
            raise ProgramError(f"{program}: {e.strerror}") from None
    if program.overlay.whole is not None:
        of_tasks = program.overlay.base == TASKS.name
        call = "rsn.host.tasks.run_tasks" if of_tasks else "rsn.streams.dynamic.machine.run_machine"
        raise ProgramError(
            f"{program.overlay.name} is a stream program, whose tensors have types of their own: run it with rsn run, "
            f"or {call}"
        )
    require(program)
    return program
