"""Continuous batching: requests join a decoder's slots between steps, and leave them when they end.

One thread owns the decoder. In each round it frees the slots of requests that were cancelled, runs a chunk of a prompt
in a free slot (several prompts while no text runs), and decodes one token of all texts that run. Requests begin in the
order of their arrival, but one whose program is still being compiled lets others pass.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...base.errors import BoardError, TensorError
from ...isa.layout import Array
from ..closing import Closing
from ..forks import forget_in_children
from ..serving.health import Health, State
from ..serving.policy import QueueFull
from .sampling import Sampling, TokenScores

if TYPE_CHECKING:
    from ..serving.metrics import Metrics
    from .slots import Slots

T = TypeVar("T")
log = logging.getLogger("rsn.generation")

RETRIES = 1
"""How often a step or a chunk of a prompt is run again when the board fails: neither has changed anything then."""
LOOK_S = 0.1
"""Seconds between two looks for cancelled requests, while all requests wait for their programs to be compiled."""


@dataclass(frozen=True)
class Event:
    """A token of a request (`token`), with its scores if the request asks for them; or its end, with `token` None: a
    reason, "stop", "length" or "cancelled", or an error."""

    token: int | None = None
    reason: str = ""
    error: BaseException | None = None
    scores: TokenScores | None = None


class Stream:
    """The tokens of one request, in order. Iterate over it, once; an error of the run is raised there.

    reason: why it ended: "stop" (a stop token), "length" (`max_tokens`, or no row is left), "cancelled", "error"; ""
    before. heard: a function that is called with each event; a stream that has one is not iterated over. None to
    iterate.
    """

    def __init__(self, heard: Callable[[Event], None] | None = None) -> None:
        self.reason = ""
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._heard = heard
        self.outcome = ""
        """How `cancel` counts the request; "" if it was not called."""

    def __iter__(self) -> Iterator[int]:
        while not self.reason:
            event = self._events.get()
            if event.error is not None:
                self.reason = "error"
                raise event.error
            if event.token is None:
                self.reason = event.reason
                return
            yield event.token

    def cancel(self, outcome: str = "cancelled") -> None:
        """End the request at the next step. No effect if it has ended. outcome: how metrics count it, one of
        `serving.metrics.OUTCOMES`."""
        self.outcome = self.outcome or outcome

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return bool(self.outcome)

    def put(self, event: Event) -> None:
        """Add a token or the end; the decoder's thread calls it. If `heard` raises, the request is cancelled: others
        must not suffer from it."""
        if self._heard is None:
            self._events.put(event)
            return
        try:
            self._heard(event)
        except BaseException:  # such as SystemExit, which would end the decoder's thread
            log.exception("the caller's function raised an error; its request is cancelled")
            self.cancel()

    def forget(self, error: Exception) -> None:
        """In a forked child: end with an error. `heard` belongs to the parent, and the old queue's lock may be held."""
        self._events = SimpleQueue()
        self._events.put(Event(error=error))


@dataclass(eq=False)
class _Request:
    tokens: tuple[int, ...]
    sampling: Sampling
    stream: Stream
    random: np.random.Generator
    made: list[int] = field(default_factory=list)
    arrived: float = field(default_factory=time.monotonic)
    begun: bool = False
    """Whether a chunk of its prompt has run, or tried to."""


class Generation(Closing):
    """Generates texts for many callers. Any thread may call it; it owns the decoder, and closes it.

    queue: the most requests that wait for a slot. metrics: where to count requests and runs, under the label `name`; a
    chunk of a prompt is a run, and a step is one; None counts nothing. Raises `ValueError` if a runner of these metrics
    has this name.
    """

    def __init__(self, decoder: Slots, *, queue: int = 256, metrics: Metrics | None = None, name: str = "rsn") -> None:
        self._decoder, self._limit = decoder, queue
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._closed = False
        self._health = Health()
        self._figures = metrics.of(name, lambda: len(self._waiting)) if metrics else None
        self._become(self._health)
        decoder.told = self._told
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._rounds, name="rsn-generation", daemon=True)
        self._thread.start()
        forget_in_children(self)

    def submit(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        heard: Callable[[Event], None] | None = None,
    ) -> Stream:
        """Queue a request, and return the stream of its tokens.

        tokens: of the prompt. sampling: None for the defaults of `Sampling`. heard: called with each event, in the
        decoder's thread, instead of iterating; all requests wait until it returns, and one whose `heard` raises an
        error is cancelled. Raises what `Slots.check` raises for the prompt, `TensorError` for another object than a
        `Sampling`, `QueueFull`, and `BoardError` if this object is closed.
        """
        self._decoder.check(tokens)
        if sampling is None:
            sampling = Sampling()
        elif not isinstance(sampling, Sampling):
            raise TensorError(f"{type(sampling).__name__} instead of Sampling")
        stream = Stream(heard)
        request = _Request(tuple(tokens), sampling, stream, sampling.generator())
        with self._lock:
            if self._closed:
                raise BoardError("this generation is closed")
            waiting = sum(not request.stream.is_cancelled for request in self._waiting)
            if waiting >= self._limit:
                self._count("full")
                raise QueueFull(f"the queue is full: {waiting} requests wait")
            self._waiting.append(request)
            self._streams.add(stream)
            self._work.notify()
        return stream

    @property
    def capacity(self) -> int:
        """The most tokens of a sequence, its prompt included."""
        return self._decoder.capacity

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""
        return self._decoder.vocabulary

    @property
    def requests(self) -> int:
        """The number of requests that wait or run."""
        return len(self._waiting) + len(self._running)

    @property
    def health(self) -> Health:
        """Whether requests are being answered, and the board's latest error, for load balancers."""
        return self._health

    def close(self) -> None:
        """Finish the submitted requests, and release the board. Further requests raise `BoardError`."""
        with self._lock:
            self._closed = True
            self._work.notify()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()

    def forget(self) -> None:
        """In a forked child: the thread and the board belong to the parent."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._closed = True
        self._waiting.clear()
        self._thread = threading.Thread()
        figures, self._figures = self._figures, None
        if figures:
            figures.forget()
        error = BoardError("this generation was made in another process, from which this one was forked")
        for stream in list(self._streams):
            stream.forget(error)

    # -- the decoder's thread

    def _rounds(self) -> None:
        try:
            while self._begin():
                self._decode()
        except BaseException as e:
            log.exception("generation has ended")
            self._give_up(e)
        finally:
            self._become(self._health.to(State.CLOSED))
            if self._figures:
                self._figures.close()
            self._decoder.close()

    def _give_up(self, error: BaseException) -> None:
        """Accept no requests any more, and end all with an error."""
        with self._lock:
            self._closed = True
            requests = [*self._running.values(), *self._waiting]
            self._running.clear()
            self._waiting.clear()
        self._become(self._health.failed(error if isinstance(error, Exception) else RuntimeError(repr(error))))
        for request in requests:
            self._answer(request, Event(error=error))

    def _told(self) -> None:
        """The decoder has compiled a program, or could not."""
        with self._lock:
            self._work.notify()

    def _become(self, health: Health) -> None:
        self._health = health
        if self._figures:
            self._figures.state(health.state)

    def _count(self, outcome: str) -> None:
        if self._figures:
            self._figures.answered(outcome)

    def _answer(self, request: _Request, event: Event) -> None:
        """End a request."""
        cancelled = request.stream.outcome if event.reason == "cancelled" else ""
        self._count(cancelled or ("ok" if event.error is None else "error"))
        request.stream.put(event)

    def _begin(self) -> bool:
        """Wait for work, free what was cancelled, and begin waiting requests. Returns False at the end."""
        for slot in [slot for slot, request in self._running.items() if request.stream.is_cancelled]:
            self._end(slot, Event(reason="cancelled"))
        with self._lock:
            while True:
                dropped = [request for request in self._waiting if request.stream.is_cancelled]
                for request in dropped:
                    self._waiting.remove(request)
                if dropped or self._running or any(self._is_ready(request) for request in self._waiting):
                    break
                if self._closed and not self._waiting:
                    return False
                self._work.wait(LOOK_S if self._waiting else None)
        for request in dropped:
            self._answer(request, Event(reason="cancelled"))
        others = any(request.made for request in self._running.values())
        while (reading := self._prompt()) is not None:
            self._prefill(reading)
            begun = self._running.get(reading)
            if others or (begun is not None and not begun.made):  # others wait for it, or chunks are left
                break
        return True

    def _prompt(self) -> int | None:
        """The slot of the prompt whose next chunk runs: one that has begun, else the next request's. None without."""
        begun = next((slot for slot, request in self._running.items() if not request.made), None)
        free = next((slot for slot in range(self._decoder.slots) if slot not in self._running), None)
        if begun is None and free is not None and (request := self._next()):
            self._running[free] = request
            return free
        return begun

    def _is_ready(self, request: _Request) -> bool:
        """Whether a waiting request can begin; also if only to get the error of its program."""
        try:
            return self._decoder.prepare(len(request.tokens))
        except Exception:
            return True

    def _next(self) -> _Request | None:
        """Take the next request from the queue that can begin."""
        with self._lock:
            ready = next((request for request in self._waiting if self._is_ready(request)), None)
            if ready is not None:
                self._waiting.remove(ready)
            return ready

    def _prefill(self, slot: int) -> None:
        """Run the next chunk of a request's prompt."""
        request = self._running[slot]
        waited = [] if request.begun else [time.monotonic() - request.arrived]
        request.begun = True
        try:
            run = partial(self._decoder.prefill_chunk, slot, request.tokens)
            logits = self._tried(run, 1 / self._decoder.slots, waited)
        except Exception as e:
            self._end(slot, Event(error=e))
        else:
            if logits is not None:
                self._take(slot, logits)

    def _decode(self) -> None:
        """Decode a token of each running request."""
        tokens = {slot: request.made[-1] for slot, request in self._running.items() if request.made}
        if not tokens:
            return
        try:
            found = self._tried(partial(self._decoder.step, tokens), len(tokens) / self._decoder.slots)
        except Exception as e:
            for slot in tokens:
                self._end(slot, Event(error=e))
            return
        for slot, logits in found.items():
            self._take(slot, logits)

    def _take(self, slot: int, logits: Array) -> None:
        """Choose a request's next token, and end the request if it was the last one."""
        request = self._running[slot]
        try:
            sampling = request.sampling
            token = sampling.token(logits, request.random, request.made)
            stops = token in sampling.stop_tokens
            scores = None if sampling.logprobs is None else TokenScores.of(logits, token, sampling.logprobs)
        except Exception as e:
            self._end(slot, Event(error=e))
            return
        if stops:
            self._end(slot, Event(reason="stop"))
            return
        request.made.append(token)
        request.stream.put(Event(token, scores=scores))
        rows = len(request.tokens) + len(request.made)  # the token that was just made has no row yet
        if len(request.made) >= request.sampling.max_tokens or rows > self._decoder.capacity:
            self._end(slot, Event(reason="length"))

    def _end(self, slot: int, event: Event) -> None:
        self._decoder.free(slot)
        self._answer(self._running.pop(slot), event)

    def _tried(self, run: Callable[[], T], fill: float, waited_s: Sequence[float] = ()) -> T:
        """Run a chunk of a prompt or a step, again if the board fails. fill: share of the slots that it is for.
        waited_s: seconds of requests that begin with it."""
        for attempt in range(RETRIES + 1):
            began = time.monotonic()
            try:
                result = run()
            except BoardError as e:
                self._become(self._health.failed(e))
                if self._figures:
                    self._figures.failed()
                if attempt == RETRIES:
                    raise
            else:
                self._become(self._health.to(State.READY))
                if self._figures:
                    self._figures.waited(waited_s)
                    if self._decoder.last_run is not None:  # else another slot has read this prompt already
                        self._figures.ran(time.monotonic() - began, fill, self._decoder.last_run)
                return result
        raise AssertionError("unreachable")
