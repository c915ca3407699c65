"""What takes the requests for all copies of a model. It sends each to a copy that works, and to another one if that is
lost on the way."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...base.errors import BoardError
from ..closing import Closing
from ..serving.arguments import Argument
from ..serving.health import Health, State
from ..serving.policy import QueueFull, RequestTimeout
from .pipeline import BoardPipeline, PipelineDown, PipelineLost
from .stage import StageDown, StageReport, said_dead

if TYPE_CHECKING:
    from ..serving.metrics import Metrics

log = logging.getLogger("rsn.replicas")

ATTEMPTS = 3
"""How many pipelines may be lost with a request. Few: the request itself may be what ends them."""
GRACE_S = 1.0
"""Seconds beyond a request's timeout after which its pipeline counts as hung: one that works answers with a timeout
itself."""
POLL_S, DOWN_POLL_S, POLL_LIMIT_S = 1.0, 0.1, 5.0
"""Seconds between two looks at the state of a pipeline, of one that does not work, and the most seconds of a look."""
FIGURES_S = 5.0
"""Seconds between two looks at the metrics of the stages."""
HUNG_S = 60.0
"""Seconds after which a pipeline that does not say its state is restarted, doubled each time until it says it: on a
busy computer processes may need longer to start, and would be ended again and again while they load."""


@dataclass(eq=False)
class _Member:
    """A pipeline with what is known of it. asked: requests that it has. drains: it gets no further ones. reports: as of
    the latest look; empty if there was no answer. seen: when it said its state last, by `time.monotonic`."""

    pipeline: BoardPipeline
    asked: int = 0
    drains: bool = False
    reports: Sequence[StageReport] = ()
    seen: float = field(default_factory=time.monotonic)
    figures: Sequence[str] = ()
    """The metrics of each stage, as of the latest look at them, which was at `figured`."""
    figured: float = -FIGURES_S
    restarts: int = 0
    """How many times it was restarted since it said its state last."""
    watch: asyncio.Task[None] | None = None
    look: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the next look at its state should be at once."""

    @property
    def is_ready(self) -> bool:
        return bool(self.reports) and all(report.is_open for report in self.reports)

    @property
    def is_settled(self) -> bool:
        """Whether it works, or has looked for boards in vain."""
        return self.is_ready or any(report.is_tried and not report.board for report in self.reports)


class ReplicatedServer(Closing):
    """Several pipelines of one model, as a server for `rsn.host.serving.http.application`.

    start: makes the pipeline of a number, from 0; called in the event loop of this object, and again for a copy that
    replaces one (`replace`). count: of pipelines. name, arguments, sizes: as `Server` has them. places: the most
    requests in one pipeline, so that all of its stages have work; the others wait here. queue: the most that wait.
    timeout_s: of a request that states no time. metrics: where to count requests, under `name`. shards: how many boards
    compute each stage of a pipeline.
    """

    def __init__(
        self,
        start: Callable[[int], BoardPipeline],
        count: int,
        *,
        name: str,
        arguments: Sequence[Argument],
        sizes: Mapping[str, tuple[int, ...]],
        places: int,
        queue: int = 256,
        timeout_s: float = 60.0,
        metrics: Metrics | None = None,
        shards: int = 1,
    ) -> None:
        self.shards = shards
        """How many boards compute each stage: as many reports behind each other are of one stage."""
        self.name, self.arguments, self.sizes = name, tuple(arguments), dict(sizes)
        self._start, self._places, self._limit, self._timeout_s = start, places, queue, timeout_s
        self.health = Health(State.FAILING, "the pipelines are being started")
        self._members: list[_Member] = []
        self._waiting: deque[asyncio.Future[_Member]] = deque()
        self._changed = asyncio.Condition()
        """Told when the state of a pipeline, or the number of its requests, has changed."""
        self._figures = metrics.of(name, lambda: len(self._waiting)) if metrics else None
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rsn-replicas", daemon=True)
        self._thread.start()
        try:
            self._called(self._begin(count))
        except BaseException:
            self.close()
            raise

    # -- for any thread

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """Send a call to a pipeline, and return the future of its result. inputs: the model's arguments by name.
        timeout: in seconds, None for the limit of all. wait: unused, since a full queue is answered at once. All errors
        are set on the future: those of the model, `RequestTimeout`, `QueueFull`, and `BoardError` if pipelines are
        lost."""
        limit = self._timeout_s if timeout is None else timeout
        return asyncio.run_coroutine_threadsafe(self._counted(inputs, limit), self._loop)

    def ask_one(self, number: int, inputs: Any, timeout: float) -> Future[Any]:
        """Send a call to the pipeline of a number, and to no other one. inputs: of its first stage. timeout: in
        seconds. The future has the result, or `PipelineDown` if the pipeline does not work at this moment, `StageDown`,
        `PipelineLost`, `RequestTimeout`, and other errors as for `ask`."""
        return asyncio.run_coroutine_threadsafe(self._one(number, inputs, timeout), self._loop)

    def drains(self, number: int) -> bool:
        """Return whether the pipeline of a number is about to be replaced."""
        return self._members[number].drains

    def is_ready(self, number: int) -> bool:
        """Return whether the pipeline of a number works."""
        return self._members[number].is_ready

    def settled(self) -> None:
        """Wait until each pipeline works, or has looked for boards in vain. Raises `BoardError` if none works."""
        self._called(self._all_settled())

    def replace(self, start: Callable[[int], BoardPipeline], idle: Callable[[int], bool] = lambda number: True) -> None:
        """Replace all pipelines, one after the other: each gets no further requests, answers those that it has, and is
        closed before its successor begins. start: makes the successor of the pipeline of a number. idle: returns
        whether no more calls of `ask_one` will come for a number.

        If a successor does not work, a pipeline of the old kind takes its place again, the others stay, and the
        successor's `BoardError` is raised.
        """
        self._called(self._replaced(start, idle))

    def reports(self) -> list[Sequence[StageReport]]:
        """Return the state of the stages of each pipeline, or of the shards of each stage, as of the latest look, at
        most a second old; none for a pipeline that cannot be reached."""
        return [member.reports for member in list(self._members)]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all stages for the Prometheus registry, which calls this. Their names begin with
        rsn_stage_; their labels are `replica`, `stage` and, if there are several shards, `shard`, numbers from 0. They
        are at most a second and `FIGURES_S` seconds old."""
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Any] = {}
        for replica, member in enumerate(list(self._members)):
            for number, figures in enumerate(member.figures):
                labels = {"replica": str(replica)} | {name: str(of) for name, of in self.place(number).items()}
                for found in text_string_to_metric_families(figures):
                    samples, found.samples = found.samples, []
                    found.name = _of_stage(found.name)
                    family = families.setdefault(found.name, found)
                    family.samples += [
                        s._replace(name=_of_stage(s.name), labels={**s.labels, **labels}) for s in samples
                    ]
        yield from families.values()

    def place(self, number: int) -> dict[str, int]:
        """Return the number of the stage and, if there are several shards, of the shard that a report is of, as labels
        by name. number: place of the report in those of a pipeline."""
        stage, shard = divmod(number, self.shards)
        return {"stage": stage} | ({"shard": shard} if self.shards > 1 else {})

    def close(self) -> None:
        """Cancel the calls under way, and close all pipelines."""
        if self._closed:
            return
        self._closed = True
        self._called(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.health = self.health.to(State.CLOSED)
        if self._figures:
            self._figures.state(self.health.state)
            self._figures.close()

    def _called(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- in the event loop: requests

    async def _counted(self, inputs: Mapping[str, Any], timeout: float) -> Any:
        outcome = "error"
        try:
            result = await self._answer(inputs, timeout)
            outcome = "ok"
            return result
        except RequestTimeout:
            outcome = "timeout"
            raise
        except QueueFull:
            outcome = "full"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            if self._figures:
                self._figures.answered(outcome)

    async def _answer(self, inputs: Mapping[str, Any], timeout: float) -> Any:
        ends = time.monotonic() + timeout
        lost: list[BoardError] = []
        try:
            async with asyncio.timeout(timeout + GRACE_S):
                while len(lost) < ATTEMPTS:
                    async with asyncio.timeout(ends - time.monotonic()):
                        member = await self._place(again=bool(lost))
                    try:
                        return await member.pipeline.ask(inputs, ends - time.monotonic())
                    except StageDown as e:  # it was not run
                        self._suspect(member, e)
                    except RequestTimeout:
                        raise TimeoutError from None
                    except QueueFull:
                        raise
                    except BoardError as e:
                        self._suspect(member, e)
                        lost.append(e)
                    finally:
                        self._leave(member)
        except TimeoutError:
            raise RequestTimeout(f"no answer in {timeout:g} s") from None
        if all(isinstance(e, PipelineLost) for e in lost):
            raise BoardError(f"{len(lost)} pipelines were lost while they ran this request") from None
        raise lost[-1]

    async def _one(self, number: int, inputs: Any, timeout: float) -> Any:
        member = self._members[number]
        if not member.is_ready:
            raise PipelineDown(self.health.error or "the pipeline is being started")
        member.asked += 1
        try:
            async with asyncio.timeout(timeout + GRACE_S):
                return await member.pipeline.ask(inputs, timeout)
        except TimeoutError:
            error = RequestTimeout(f"no answer in {timeout:g} s")
            self._suspect(member, error)
            raise error from None
        except (StageDown, PipelineLost) as e:
            self._suspect(member, e)
            raise
        finally:
            self._leave(member)

    async def _place(self, again: bool) -> _Member:
        """Return a pipeline that works and has a place for a request, in the order in which requests came. again: the
        request was lost with another pipeline. Raises `QueueFull`."""
        if not self._waiting and (member := self._free()):
            member.asked += 1
            return member
        if len(self._waiting) >= self._limit and not again:
            raise QueueFull(f"the queue is full: {len(self._waiting)} requests wait")
        waiter: asyncio.Future[_Member] = self._loop.create_future()
        self._waiting.insert(0 if again else len(self._waiting), waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._leave(waiter.result())
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(waiter)

    def _free(self) -> _Member | None:
        """The pipeline with the fewest requests that works and has a place."""
        free = [m for m in self._members if m.is_ready and not m.drains and m.asked < self._places]
        return min(free, key=lambda m: m.asked, default=None)

    def _leave(self, member: _Member) -> None:
        member.asked -= 1
        self._tell()

    def _tell(self) -> None:
        """Give free places to requests that wait, and tell who waits for a change."""
        while self._waiting and (member := self._free()):
            waiter = self._waiting.popleft()
            if not waiter.done():
                member.asked += 1
                waiter.set_result(member)
        self._loop.create_task(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _suspect(self, member: _Member, error: BoardError) -> None:
        """Send no requests to a pipeline until it has said that it works."""
        if member.reports:
            log.warning("%s: a pipeline failed: %s: %s", self.name, type(error).__name__, error)
        if self._figures:
            self._figures.failed()
        member.reports = ()
        member.look.set()
        self._judge()

    # -- in the event loop: pipelines

    async def _begin(self, count: int) -> None:
        for number in range(count):
            self._members.append(self._started(self._start, number))

    def _started(self, start: Callable[[int], BoardPipeline], number: int) -> _Member:
        member = _Member(start(number))
        member.watch = self._loop.create_task(self._watched(member))
        return member

    async def _watched(self, member: _Member) -> None:
        """Look at the state of a pipeline, again and again."""
        while True:
            member.look.clear()
            try:
                with_figures = time.monotonic() - member.figured >= FIGURES_S
                async with asyncio.timeout(POLL_LIMIT_S):
                    reports: Sequence[StageReport] = await member.pipeline.reports(with_figures)
                member.seen, member.restarts = time.monotonic(), 0
                if with_figures:
                    member.figures, member.figured = [report.figures for report in reports], member.seen
            except Exception as e:  # whatever Ray raises of what has ended, or is not there yet
                reports = member.figures = ()
                if member.reports:
                    log.warning("%s: a pipeline does not answer: %s", self.name, type(e).__name__)
                if isinstance(e, TimeoutError) and time.monotonic() - member.seen > HUNG_S * 2**member.restarts:
                    member.pipeline.restart()
                    member.seen, member.restarts = time.monotonic(), member.restarts + 1
            member.reports = reports
            self._judge()
            self._tell()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S if member.is_ready else DOWN_POLL_S):
                    await member.look.wait()

    def _judge(self) -> None:
        """Set the health: ready if all pipelines work, failing if none does, else degraded."""
        up = sum(member.is_ready for member in self._members)
        stages = [report for member in self._members for report in member.reports]
        down = [
            f"{' '.join(f'{name} {of}' for name, of in self.place(number).items())} on {report.board}: {error}"
            if report.board
            else error
            for member in self._members
            for number, report in enumerate(member.reports)
            if not report.is_open and (error := report.health.error)
        ]
        dead = {board: why for report in stages for board, why in report.dead.items()}
        state = State.READY if up == len(self._members) else State.DEGRADED if up else State.FAILING
        was = self.health
        error = was.error if was.failures else None  # that it was not ready yet is no failure
        if state is not State.READY:
            counted = f"{up} of {len(self._members)} replicas are ready"
            error = "; ".join(filter(None, (counted, said_dead(dead) or "; ".join(dict.fromkeys(down)))))
        failed = was.state is State.READY and state is not State.READY
        self.health = replace(was.to(state), error=error, failures=was.failures + failed)
        if self._figures:
            self._figures.state(state)

    async def _all_settled(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: all(member.is_settled for member in self._members))
        if not any(member.is_ready for member in self._members):
            raise BoardError(self.health.error or "no pipeline works")

    async def _replaced(self, start: Callable[[int], BoardPipeline], idle: Callable[[int], bool]) -> None:
        for number in range(len(self._members)):
            await self._exchanged(number, start, idle)
        self._start = start

    async def _exchanged(self, number: int, start: Callable[[int], BoardPipeline], idle: Callable[[int], bool]) -> None:
        old = self._members[number]
        old.drains = True
        async with self._changed:
            await self._changed.wait_for(lambda: old.asked == 0 and idle(number))
        await self._ended(old)
        new = self._members[number] = self._started(start, number)
        async with self._changed:
            await self._changed.wait_for(lambda: new.is_settled)
        if not new.is_ready:
            error = "; ".join(filter(None, (report.health.error for report in new.reports if not report.is_open)))
            await self._ended(new)
            self._members[number] = self._started(self._start, number)
            raise BoardError(f"the replacement of pipeline {number} does not work: {error}")

    async def _ended(self, member: _Member) -> None:
        if member.watch is not None:
            member.watch.cancel()
        await member.pipeline.close()

    async def _end(self) -> None:
        members, self._members = self._members, []
        for member in members:
            if member.watch is not None:
                member.watch.cancel()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.gather(*(member.pipeline.close() for member in members))


def _of_stage(name: str) -> str:
    """The name of a metric of a stage."""
    return f"rsn_stage_{name.removeprefix('rsn_')}"
