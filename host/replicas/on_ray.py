"""Pipelines whose stages are actors of Ray: each has a process of its own, on any computer of a cluster.

An actor gives its results to the next one itself, through Ray's object store, so that they do not pass the process that
takes the requests. Ray starts an actor whose process or computer ended again, there or elsewhere; it then loads its
stage and takes a board as at the first start. Needs Ray (the extra `ray`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from ...base.errors import BoardError, MissingError, RsnError, StateLost, TensorError
from ..boards.several import BoardName
from ..serving.policy import QueueFull, RequestTimeout
from .pipeline import PipelineLost
from .shards import ShardSource
from .stage import StageDown, StageOnBoard, StageReport, StageSource

try:
    import ray
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise MissingError("boards on Ray take ray, which is not installed: pip install ray") from None

log = logging.getLogger("rsn.replicas")

BOARD = "rsn_board"
"""The name of a device of a computer as a Ray resource. Computers of a cluster state how many they have: ray start
--resources='{"rsn_board": 1}'."""
CPUS = 0.001
"""The share of a CPU that Ray counts for an actor: it may wait for its board. Of an actor with none, Ray ignores the
computer that it should run on."""
CONNECT_S = 10.0
"""Seconds in which a cluster should take a connection."""
CLOSE_S = 10.0
"""Seconds that an actor may take to finish its calls and release its board."""
AT_ONCE = 1000
"""Calls that an actor has at one time, most of which wait for its board."""
KINDS = (StageDown, PipelineLost, StateLost, RequestTimeout, QueueFull, TensorError, BoardError)
"""Errors that callers tell apart, most special first."""


@dataclass(frozen=True)
class _Onward:
    """Says that the next actor answers. answer: a reference to its answer."""

    answer: Any


class StageActor:
    """A stage, or a shard of a stage, with its board, as an actor of Ray. source, boards, first, name: as for
    `StageOnBoard`. behind: the name of the actor with the next stage; None for the last stage, and for a shard that is
    not the first one. beside: the names of the actors with the other shards, of the first one."""

    def __init__(
        self,
        source: StageSource,
        boards: Sequence[BoardName],
        first: int,
        name: str,
        behind: str | None,
        beside: Sequence[str] = (),
    ) -> None:
        if beside:
            source = cast(ShardSource, source).joined([_Shard(other) for other in beside])
        self._stage = StageOnBoard(source, boards, first, name)
        self._behind = behind
        self._next: Any = None
        self._node = ray.get_runtime_context().get_node_id()

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """Run a call, and return its result if this is the last stage, else an `_Onward`. Errors of rsn are returned
        too: Ray would make others of those that are raised."""
        ends = time.monotonic() + timeout
        try:
            result = await asyncio.wrap_future(await asyncio.to_thread(self._stage.ask, inputs, timeout))
        except RsnError as e:
            return _plain(e)
        if self._behind is None:
            return result
        if self._next is None:
            self._next = await asyncio.to_thread(ray.get_actor, self._behind)
        return _Onward(self._next.ask.remote(result, ends - time.monotonic()))

    async def report(self, figures: bool) -> StageReport:
        """Return the state, and with `figures` the metrics."""
        return replace(self._stage.report(figures), node=self._node)

    async def close(self) -> None:
        """Finish the calls, and release the board."""
        await asyncio.to_thread(self._stage.close)


class _Shard:
    """Asks another shard of a stage (`Ask`), whose process it is not. actor: its name."""

    def __init__(self, actor: str) -> None:
        self._name = actor
        self._actor: Any = None

    def __call__(self, inputs: Any, timeout: float) -> Future[Any]:
        """As `StageOnBoard.ask`, but errors of the shard are those of the future, with `PipelineLost` if it is gone."""
        answer: Future[Any] = Future()
        try:
            if self._actor is None:
                self._actor = ray.get_actor(self._name)
            reference = self._actor.ask.remote(inputs, timeout)
        except (RayError, ValueError) as e:
            raise _lost(e) from None
        reference.future().add_done_callback(partial(_answered, answer))
        answer.add_done_callback(lambda answer: ray.cancel(reference) if answer.cancelled() else None)
        return answer


def _answered(answer: Future[Any], run: Future[Any]) -> None:
    """Give an answer the end of the call of another actor."""
    if run.cancelled() or not answer.set_running_or_notify_cancel():
        return
    error, result = run.exception(), None
    if error is None and not isinstance(result := run.result(), RsnError):
        answer.set_result(result)
    else:
        answer.set_exception(result or (_lost(error) if isinstance(error, RayError) else error))


def _lost(error: Exception) -> PipelineLost:
    return PipelineLost(f"a stage was lost: {type(error).__name__}")


class RayPipeline:
    """A pipeline whose stages, or shards of stages, are actors. sources: of the stages, in order, or of the shards of
    each. boards: for all of them. first: the number of the board that the first stage tries first. name: of the model.
    node: id of the computer whose actors these are while it has room and lives. devices: how many each actor takes of
    those that computers say they have. shards: as for `LocalPipeline`."""

    def __init__(
        self,
        sources: Sequence[StageSource],
        boards: Sequence[BoardName],
        first: int,
        name: str,
        node: str,
        devices: int,
        shards: int = 1,
    ) -> None:
        names = [f"stage-{i}-{uuid.uuid4().hex}" for i in range(len(sources))]
        leading = {i: names[i + 1 : i + shards] for i in range(0, len(names), shards)}
        behind = {i: names[i + shards] for i in leading if i + shards < len(names)}
        self._each = [
            ray.remote(StageActor)
            .options(
                name=own,
                num_cpus=CPUS,
                resources={BOARD: devices} if devices else None,
                max_restarts=-1,
                max_concurrency=AT_ONCE,
                enable_task_events=False,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
            )
            .remote(source, boards, first + i, name, behind.get(i), leading.get(i, ()))
            for i, (source, own) in enumerate(zip(sources, names, strict=True))
        ]

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """As `BoardPipeline.ask`."""
        reference = self._each[0].ask.remote(inputs, timeout)
        try:
            answer = await reference
            while isinstance(answer, _Onward):
                reference = answer.answer
                answer = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        except RayError as e:
            if isinstance(e, RayTaskError) and not isinstance(e, TaskCancelledError) and not _is_loss(e):
                raise  # the actor lives: an error in its code
            raise _lost(e) from None
        if isinstance(answer, RsnError):
            raise answer
        return answer

    async def reports(self, figures: bool = False) -> list[StageReport]:
        """As `BoardPipeline.reports`."""
        return list(await asyncio.gather(*(each.report.remote(figures) for each in self._each)))

    def restart(self) -> None:
        """As `BoardPipeline.restart`."""
        for each in self._each:
            with suppress(RayError):
                ray.kill(each, no_restart=False)

    async def close(self) -> None:
        """As `BoardPipeline.close`."""
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for each in self._each:  # in order: what the first ones finish goes on to the others
                    await each.close.remote()
        for each in self._each:
            with suppress(RayError):
                ray.kill(each)


def _require_answer(address: str) -> None:
    """Raise `BoardError` if nothing listens at HOST:PORT. Ray would try for minutes, and then end the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise BoardError(f"{address!r} is no address of a Ray cluster: HOST:PORT, auto or local")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as e:
        raise BoardError(f"cannot connect to a Ray cluster at {address!r}: {e}") from None


def _is_loss(error: RayTaskError) -> bool:
    """Whether an actor lost the next one."""
    return isinstance(error.cause, RayError)


def _plain(error: RsnError) -> RsnError:
    """Return an error of one of `KINDS`, which can be pickled."""
    kind: type[RsnError] = next((kind for kind in KINDS if isinstance(error, kind)), RsnError)
    return kind(str(error))


@contextmanager
def cluster(address: str, devices: int = 0) -> Iterator[tuple[list[str], bool]]:
    """Join a Ray cluster while this lasts. Yields the ids of its computers, and whether they say how many devices they
    have (`BOARD`), so that each actor should take one.

    address: HOST:PORT; "auto" for the one that runs on this computer, or one that is started here and ends with this
    process if there is none; "local" for one that is started. devices: how many actors need a device of their computer.
    Raises `BoardError` if there is no cluster at the address, and if its computers say that they have fewer devices.
    """
    if address not in ("auto", "local"):
        _require_answer(address)
    told = {"namespace": f"rsn-{uuid.uuid4().hex}", "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address != "local":
            ray.init(address, **told)
    except (OSError, RuntimeError, ValueError) as e:
        if address != "auto" or not isinstance(e, ConnectionError):
            raise BoardError(f"cannot connect to a Ray cluster at {address!r}: {e}") from e
    if not ray.is_initialized():
        ray.init("local", include_dashboard=False, **told)
    try:
        have = ray.cluster_resources().get(BOARD)
        if devices and have is not None and have < devices:
            raise BoardError(
                f"{devices} stages need a device each; the computers of the cluster have {have:g} (--resources of ray "
                f"start, {BOARD})"
            )
        yield [node["NodeID"] for node in ray.nodes() if node["Alive"]], bool(devices and have)
    finally:
        ray.shutdown()
