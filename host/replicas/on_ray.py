"""Pipelines whose stages are actors of Ray: each has a process of its own, on any computer of a cluster.

An actor takes the result of the one before from Ray's object store, so that large ones do not pass the process that
takes the requests. Ray starts an actor whose process or computer ended again, there or elsewhere; it then loads its
stage and takes a board as at the first start. Needs Ray (the extra `ray`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from ...base.errors import BoardError, MissingError, RsnError, StateLost, TensorError
from ...base.freed_memory import keep_freed_memory
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
WITH_CALL = 512 << 10
"""Bytes of a result up to which a cluster that is started here sends it with the next call, not through its object
store: of 256 KB the store takes 1.8 ms of CPU more, of 1 MB 1.2 ms less."""
CLOSE_S = 10.0
"""Seconds that an actor may take to finish its calls and release its board."""
AT_ONCE = 1000
"""Calls that an actor has at one time, most of which wait for its board."""
KINDS = (StageDown, PipelineLost, StateLost, RequestTimeout, QueueFull, TensorError, BoardError)
"""Errors that callers tell apart, most special first."""


@dataclass(frozen=True)
class _Passed:
    """What an actor takes, and what it gives to the next one. value: of a call. timeout: seconds that are left."""

    value: Any
    timeout: float


class StageActor:
    """A stage, or a shard of a stage, with its board, as an actor of Ray. source, boards, first, name: as for
    `StageOnBoard`. beside: the names of the actors with the other shards of the stage, for the first one."""

    def __init__(
        self, source: StageSource, boards: Sequence[BoardName], first: int, name: str, beside: Sequence[str] = ()
    ) -> None:
        keep_freed_memory()
        if beside:
            source = cast(ShardSource, source).joined([_Shard(other) for other in beside])
        self._stage = StageOnBoard(source, boards, first, name)
        self._node = ray.get_runtime_context().get_node_id()

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    async def ask(self, passed: _Passed | RsnError) -> tuple[_Passed | RsnError, None]:
        """Run a call. Returns two values: its result, and None. The reference of the second one is kept, to cancel the
        call, while that of the first one is handed on to the next stage. An error of rsn is returned in place of the
        result, and later stages return it as it is, because Ray would raise another error in place of it."""
        if isinstance(passed, RsnError):
            return passed, None
        ends = time.monotonic() + passed.timeout
        try:
            result = await self._stage.answer(passed.value, passed.timeout)
        except RsnError as e:
            return _plain(e), None
        return _Passed(result, ends - time.monotonic()), None

    async def report(self, figures: bool) -> StageReport:
        """Return the state of the stage. figures: whether with its metrics."""
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
            reference, call = self._actor.ask.remote(_Passed(inputs, timeout))
        except (RayError, ValueError) as e:
            raise _lost(e) from None
        reference.future().add_done_callback(partial(_answered, answer))
        answer.add_done_callback(lambda answer: ray.cancel(call) if answer.cancelled() else None)
        return answer


def _answered(answer: Future[Any], run: Future[Any]) -> None:
    """Give an answer the end of the call of another actor."""
    if run.cancelled() or not answer.set_running_or_notify_cancel():
        return
    error, result = run.exception(), None
    if error is None and not isinstance(result := run.result(), RsnError):
        answer.set_result(result.value)
    else:
        answer.set_exception(result or (_met(error) if isinstance(error, RayError) else error))


def _met(error: RayError) -> Exception:
    """Return what ended a call: `PipelineLost` if the actor, or what the call takes, was lost; else the error in the
    code of the actor."""
    of_code = isinstance(error, RayTaskError) and not isinstance(error, TaskCancelledError)
    return error.cause if of_code and not isinstance(error.cause, RayError) else _lost(error)


def _lost(error: Exception) -> PipelineLost:
    return PipelineLost(f"a stage was lost: {type(error).__name__}")


class RayPipeline:
    """A pipeline whose stages, or shards of stages, are actors of Ray. sources: of the stages, in order, or of the
    shards of each. boards: names of the boards for all stages. first: the number of the board that the first stage
    tries first. name: of the model. node: id of the computer on which the actors run while it has room for them and is
    alive. devices: how many of a computer's devices each actor takes, if computers say how many they have. shards: as
    for `LocalPipeline`."""

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
            .remote(source, boards, first + i, name, leading.get(i, ()))
            for i, (source, own) in enumerate(zip(sources, names, strict=True))
        ]
        self._stages = self._each[::shards]

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """As `BoardPipeline.ask`."""
        calls = list[Any]()
        passed: Any = _Passed(inputs, timeout)
        for stage in self._stages:
            # Ray makes the call when the result of the one before is there, and frees that result behind it.
            passed, call = stage.ask.remote(passed)
            calls.append(call)
        try:
            answer = await passed
        except asyncio.CancelledError:
            for call in calls:
                ray.cancel(call)
            raise
        except RayError as e:
            raise _met(e) from e
        if isinstance(answer, RsnError):
            raise answer
        return answer.value

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


def _plain(error: RsnError) -> RsnError:
    """Return an error of one of `KINDS`, which can be pickled."""
    kind: type[RsnError] = next((kind for kind in KINDS if isinstance(error, kind)), RsnError)
    return kind(str(error))


@contextmanager
def cluster(address: str, devices: int = 0) -> Iterator[tuple[list[str], bool]]:
    """Context in which this process is part of a Ray cluster. Yields the ids of the cluster's computers, and whether
    each actor should take one device of its computer: if `devices` is not 0, and the computers say how many devices
    they have (`BOARD`).

    address: HOST:PORT of a cluster; "auto" for the one that runs on this computer, or else a new one; "local" for a new
    one. A new one ends with this process. devices: how many actors need a device. Raises `BoardError` if there is no
    cluster at the address, and if its computers say that they have fewer devices.
    """
    if address not in ("auto", "local"):
        _require_answer(address)
    at_sigterm = signal.getsignal(signal.SIGTERM)
    told = {"namespace": f"rsn-{uuid.uuid4().hex}", "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address != "local":
            ray.init(address, **told)
    except (OSError, RuntimeError, ValueError) as e:
        if address != "auto" or not isinstance(e, ConnectionError):
            raise BoardError(f"cannot connect to a Ray cluster at {address!r}: {e}") from e
    if not ray.is_initialized():
        ray.init("local", include_dashboard=False, _system_config={"max_direct_call_object_size": WITH_CALL}, **told)
    if threading.current_thread() is threading.main_thread():
        # Ray's own prints all stacks, and ends the process without its cleaning up.
        signal.signal(signal.SIGTERM, at_sigterm)
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
