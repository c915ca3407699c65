"""A stage of a model with its board: the first one that is free and works, and another one if that stays down."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...base.deferred import deferred
from ...base.errors import BoardBusy, BoardError, BoardMemory
from ..boards.several import BoardName
from ..closing import Closing
from ..serving.call_times import AT_ONCE_S, CallTimes, elements
from ..serving.health import Health, State

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ..serving import metrics
else:
    metrics = deferred("rsn.host.serving.metrics")

FAILING_S = 60.0
"""Seconds that a board may be down before another one is looked for."""
LOOK_S = 1.0
"""Seconds between two looks at a board that works."""
RETRY_S, RETRY_LIMIT_S = 0.1, 5.0
"""Seconds before the boards are tried again when none was free and worked, doubled each time up to the limit."""


class StageDown(BoardError):
    """A stage has no board at this moment. Nothing of the request was run there."""


class StageServer(Protocol):
    """A stage on an open board. Any thread may call its methods."""

    @property
    def health(self) -> Health:
        """Whether calls are being answered, and the board's latest error."""

    def ask(self, inputs: Any, *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """Queue a call. inputs: for the first stage the model's arguments by name, for another one what the stage
        before returned. Returns a future of what the next stage takes, or of the model's result. timeout, wait, and the
        errors: as for `Server.ask`."""

    def close(self) -> None:
        """Finish the submitted calls, and release the board."""


class StageSource(Protocol):
    """Where a stage of a model comes from. It can be pickled."""

    def open(self, board: Any, figures: metrics.Metrics | None, name: str) -> StageServer:
        """Load the stage and open its board. board: one of those that a `StageOnBoard` tries. figures, name: where to
        count calls, and under which name. Raises `BoardError` if the board cannot be used, and `ContainerError` if the
        file has no such stage."""


@dataclass(frozen=True)
class StageReport:
    """The state of a stage. board: the one that it has, "" for none. dead: by board, why it does not work, as of the
    latest look for one. busy: boards that worked but were not free then. is_tried: whether it has looked for a board at
    least once. process, node: where it runs. opening_s: seconds that opening the board took. figures: its metrics in
    Prometheus's text format, "" if they were not asked for."""

    board: str
    health: Health
    dead: Mapping[str, str] = field(default_factory=dict)
    busy: tuple[str, ...] = ()
    is_tried: bool = False
    process: int = 0
    node: str = ""
    opening_s: float = 0.0
    figures: str = ""

    @property
    def is_open(self) -> bool:
        """Whether calls are answered."""
        return self.health.state in (State.READY, State.DEGRADED)


class StageOnBoard(Closing):
    """A stage, which has a board when one is free and works.

    source: the stage. boards: in the order in which they are tried, from number `first` on, so that stages which begin
    together do not try the same one. name: of the model, for metrics. A thread opens the board; if it is down for
    `FAILING_S`, the thread looks for another one.
    """

    def __init__(self, source: StageSource, boards: Sequence[BoardName], first: int = 0, name: str = "rsn") -> None:
        turn = first % len(boards)
        self._source, self._boards, self._name = source, [*boards[turn:], *boards[:turn]], name
        self._registry, self._metrics = _registry()
        self._server: StageServer | None = None
        self._times = CallTimes(AT_ONCE_S)
        self._report = StageReport("", Health(State.FAILING, "its board is being opened"), process=os.getpid())
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="rsn-stage", daemon=True)
        self._thread.start()

    def ask(self, inputs: Any, timeout: float) -> Future[Any]:
        """Queue a call, as `StageServer.ask`. timeout: in seconds. Raises `StageDown` without a board."""
        server = self._server
        if server is None:
            raise StageDown(self._report.health.error or "the stage has no board")
        return server.ask(inputs, timeout=timeout, wait=0.0)

    async def answer(self, inputs: Any, timeout: float) -> Any:
        """Run a call, and return its result. inputs, timeout: as for `ask`. Raises what `ask` raises, or its future
        has. The host part is computed in this event loop if it has been short, else in another thread."""
        ask = partial(self.ask, inputs, timeout)
        size = elements(inputs) if isinstance(inputs, Mapping) else getattr(inputs, "size", 0)
        if self._times.are_short(StageOnBoard.ask, size):
            future = self._times.timed(StageOnBoard.ask, size, ask)
        else:
            future = await asyncio.to_thread(self._times.timed, StageOnBoard.ask, size, ask)
        return await asyncio.wrap_future(future)

    def report(self, figures: bool = False) -> StageReport:
        """Return the state. figures: with the metrics, which take longer."""
        server, known = self._server, self._report
        if server is not None:
            known = replace(known, health=server.health)
        if self._registry is None or not figures:
            return known
        from prometheus_client import generate_latest

        return replace(known, figures=generate_latest(self._registry).decode())

    def close(self) -> None:
        """Finish the calls that are queued, and release the board."""
        self._ends.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._release(Health(State.CLOSED))

    def _keep(self) -> None:
        """Thread: hold a board that works."""
        pause = 0.0
        while not self._ends.wait(pause):
            server = self._server
            if server is None:
                pause = LOOK_S if self._take() else min(max(2 * pause, RETRY_S), RETRY_LIMIT_S)
            elif (health := server.health).state is State.FAILING and time.time() - health.since > FAILING_S:
                self._release(health)
                pause = 0.0
            else:
                pause = LOOK_S

    def _release(self, health: Health) -> None:
        server, self._server = self._server, None
        self._report = replace(self._report, board="", health=health)
        if server is not None:
            server.close()

    def _take(self) -> bool:
        """Open the first board that is free and works. Returns whether there is one."""
        dead: dict[str, str] = {}
        busy: list[str] = []
        for board in self._boards:
            if self._ends.is_set():
                return False
            began = time.monotonic()
            try:
                server = self._source.open(board, self._metrics, self._name)
            except (BoardBusy, BoardMemory):
                busy.append(str(board))
            except BoardError as e:
                dead[str(board)] = str(e)
            except Exception as e:  # of the model, for example of a file that is not there: no other board would help
                return self._none(f"{type(e).__name__}: {e}", dead, busy)
            else:
                took = time.monotonic() - began
                here = StageReport(str(board), server.health, dead, tuple(busy), True, os.getpid(), opening_s=took)
                self._report, self._server = here, server
                return True
        in_use = f"in use: {', '.join(busy)}" if busy else ""
        return self._none("; ".join(("no board is free", *filter(None, (said_dead(dead), in_use)))), dead, busy)

    def _none(self, error: str, dead: Mapping[str, str], busy: Sequence[str]) -> bool:
        """No board could be opened."""
        health = replace(self._report.health.to(State.FAILING), error=error)
        self._report = StageReport("", health, dead, tuple(busy), True, os.getpid())
        return False


def said_dead(dead: Mapping[str, str]) -> str:
    """Return boards that do not work, each with its error, as text."""
    return "; ".join(f"{board} does not work: {error}" for board, error in dead.items())


def _registry() -> tuple[CollectorRegistry | None, Any]:
    """Return a Prometheus registry with its `Metrics`; (None, None) if prometheus_client is not installed."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return None, None
    registry = CollectorRegistry()
    return registry, metrics.Metrics(registry)
