"""Saved models behind HTTP on several boards: a server on each board, which Ray Serve places and restarts.

    python -m rsn.programs.serve_ray bert.rsnmodel --boards vck190@xrt:0 vck190@xrt:1
    curl localhost:8000 -d '{"inputs": {"input_ids": [[101, 2023, 102]], "attention_mask": [[1, 1, 1]]}}'

    python -m rsn.programs.serve_ray                # the sentence encoder of the demo, on two simulated boards
    curl localhost:8000 -d '{"sentences": ["The cat sits on the mat."]}'    # one vector each, 384 numbers of length 1

Needs the extras `torch` and `ray`. This process accepts the requests, with the HTTP interface of `rsn serve`. Each
board has a process of its own, a replica of Ray Serve, which loads the files and takes the first board of the list that
is free and works. Boards that do not work at the start are left out, and named. If a replica dies, its requests are
sent to another one. Ray starts a new replica for one that died or whose board stays down, and with --least starts and
stops replicas by load.

With several models, the HTTP header serve_multiplexed_model_id names the model of a request; the first model is the
default. Models stay on a board while it has room; else those that were not used for longest are unloaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import errors, load
from ..base.deferred import deferred
from ..host.boards.named import find_board
from ..host.serving import Health, QueueFull, RequestTimeout, Serving, State
from ..host.serving.arguments import Argument
from ..host.serving.core import LIMIT_BYTES
from ..host.serving.http import HttpModel, application, listener
from ..host.serving.http import serve as serve_http
from ..host.serving.http_json import Form, write_json
from . import minilm
from .sentences import LIMIT_BYTES as SENTENCES_LIMIT_BYTES
from .sentences import SentenceForm, Sentences, SentenceTokenizer, save

try:
    import ray
    from ray import serve
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
except ImportError:
    missing = "serving with Ray takes ray, which is not installed: pip install 'ray[serve]'"
    if __name__ == "__main__":
        print(f"rsn.programs.serve_ray: {missing}", file=sys.stderr)
        sys.exit(errors.MissingError.exit_code)
    raise errors.MissingError(missing) from None

if TYPE_CHECKING:
    from ..host.serving import metrics
else:
    metrics = deferred("rsn.host.serving.metrics")

log = logging.getLogger("rsn.ray")

BOARD = "rsn_board"
"""The name of a board as a Ray resource. Nodes of a cluster state how many they have: ray start --resources=..."""
HEADER = b"serve_multiplexed_model_id"
"""The HTTP header that names the model."""
APPLICATION = "rsn"
PAUSES_S = (0.0, 0.05, 0.5)
"""Seconds before each attempt to answer a request. Few attempts: the request itself may be what kills the replicas."""
GRACE_S = 1.0
"""Seconds beyond a request's timeout after which its replica counts as hung. A replica that works answers with a
timeout itself."""
POLL_S = 1.0
"""Seconds between two looks at the replicas' state, and the most seconds of one."""
POLL_LIMIT_S = 5.0


@dataclass(frozen=True)
class Settings:
    """What is served, and where.

    models: files, by name; the first is loaded before a replica is ready, the others at their first request. boards:
    one for each replica. least: replicas that run without load, None for all. timeout_s: the most seconds for a
    request. serving: how requests queue in a replica.
    """

    models: Mapping[str, str]
    boards: Sequence[Any] = ("sim",)
    least: int | None = None
    timeout_s: float = 60.0
    serving: Serving = field(default_factory=lambda: Serving(max_wait_s=0.002))


# -- in a process of its own: a board


class Replica:
    """One board, and servers of the models that were requested. Ray runs it in a process of its own. settings: of all
    replicas."""

    FAILING_S = 60.0
    """Seconds that a board may be down before Ray is asked for another replica."""

    def __init__(self, settings: Settings) -> None:
        """Raises `BoardBusy` or `BoardMemory`, of the last board that is not free, if the others do not work, and
        `BoardError` if no board works."""
        self._settings = settings
        self._lock = threading.Lock()
        self._models: dict[str, Any] = {}
        self._servers: OrderedDict[str, Any] = OrderedDict()
        """The open servers; the one used last is the last."""
        self._cold_start_s: dict[str, dict[str, float]] = {}
        self._registry, self._metrics = _figures()
        first = next(iter(settings.models))
        no_room: errors.BoardError | None = None
        self._dead: dict[str, str] = {}
        """By board, why it does not work."""
        for self._board in settings.boards:
            try:
                self.load(first)
            except errors.BoardError as e:
                self._models.pop(first, None)
                if isinstance(e, errors.BoardBusy | errors.BoardMemory):
                    no_room = e
                else:
                    log.warning("%s", _left_out({str(self._board): str(e)}))
                    self._dead[str(self._board)] = str(e)
            else:
                return
        raise no_room or errors.BoardError(_left_out(self._dead) or "the list of boards is empty")

    def load(self, model: str) -> None:
        """Load a model and open its server, unless it is loaded. model: its name in `Settings.models`; raises
        `KeyError` for another one, `ContainerError` for a file that is no model, and `BoardError` if the board cannot
        run it."""
        if model in self._models:
            return
        began = time.perf_counter()
        loaded = load(self._settings.models[model], board=self._board)
        read = time.perf_counter()
        with self._lock:
            if model in self._models:
                return
            self._models[model] = loaded
            self._opened(model)
        self._cold_start_s[model] = {"load": read - began, "open": time.perf_counter() - read}

    def _opened(self, model: str) -> Any:
        """Return the model's server; close others if the board has no room for all. The caller holds the lock."""
        while model not in self._servers:
            try:
                self._servers[model] = self._models[model].server(
                    self._settings.serving, metrics=self._metrics, name=model
                )
            except (errors.BoardBusy, errors.BoardMemory):
                if not self._servers:
                    raise
                self._make_way()
        self._servers.move_to_end(model)
        return self._servers[model]

    def _make_way(self) -> None:
        _, server = self._servers.popitem(last=False)
        server.close()

    def submit(self, model: str, inputs: Mapping[str, Any], timeout: float) -> Future[Any]:
        """Queue a call of a loaded model, as `Server.ask`, and return the future of its result. inputs: the model's
        arguments by name. timeout: in seconds. Raises `TensorError` for inputs that do not fit, `QueueFull` at once,
        and `BoardError` if its server cannot be opened again."""
        with self._lock:  # the server must stay open until the request is queued
            # no waiting for a place in its queue: Ray has a queue of its own, and other replicas
            answer: Future[Any] = self._opened(model).ask(inputs, timeout=timeout, wait=0.0)
        return answer

    def status(self) -> dict[str, Any]:
        """Return the replica's state as a JSON object: process, board, boards that did not work when it looked for one,
        and for each model its health and the seconds that its start took."""
        return {
            "process": os.getpid(),
            "board": str(self._board),
            "dead": self._dead,
            "models": {
                name: {
                    "cold_start_s": {what: round(s, 3) for what, s in self._cold_start_s.get(name, {}).items()},
                    "resident": (server := self._servers.get(name)) is not None,
                    "health": None if server is None else vars(server.health),
                }
                for name in list(self._models)
            },
        }

    def figures(self) -> str:
        """Return the metrics in Prometheus's text format; "" without prometheus_client."""
        if self._registry is None:
            return ""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()

    def check_health(self) -> None:
        """Raise `BoardError` if Ray should start another replica. Ray calls it."""
        for name, server in list(self._servers.items()):
            health = server.health
            if health.state is State.FAILING and time.time() - health.since > self.FAILING_S:
                raise errors.BoardError(f"{name} on {self._board}: {health.error}")

    def close(self) -> None:
        """Finish the requests of all models, close their servers, and release the board."""
        with self._lock:
            while self._servers:
                self._make_way()


def _left_out(dead: Mapping[str, str]) -> str:
    """Boards that do not work, each with its error, as text."""
    return "; ".join(f"{board} does not work: {error}" for board, error in dead.items())


def why_dead(model: str, board: Any) -> str:
    """Return why a board cannot serve a model, "" if it can. model: path of its file. The board is free afterwards."""
    try:
        load(model, board=board).server().close()
    except errors.BoardError as e:
        return str(e)
    return ""


def _figures() -> tuple[Any, Any]:
    """Return a Prometheus registry with its `Metrics`; (None, None) if prometheus_client is not installed."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return None, None
    registry = CollectorRegistry()
    return registry, metrics.Metrics(registry)


def deployment(settings: Settings) -> serve.Application:
    """Return the deployment of the replicas, one for each board, for `serve.run`. Clients call its method `ask`."""
    boards = len(settings.boards)

    class OfRay(Replica):
        """A replica whose methods run in Ray's event loop."""

        @serve.multiplexed(max_num_models_per_replica=-1)  # type: ignore[untyped-decorator]
        async def model(self, name: str) -> str:
            """Load a model. Ray prefers replicas that have run this with the name in the request."""
            await asyncio.to_thread(self.load, name)
            return name

        async def ask(self, inputs: Mapping[str, Any], timeout: float) -> Any:
            """Answer a request with the result, or with the error as a value: Ray would add a traceback to one that is
            raised."""
            ends = time.monotonic() + timeout
            try:
                name = await self.model(serve.get_multiplexed_model_id())
                left = ends - time.monotonic()
                if left <= 0:
                    raise RequestTimeout(f"no answer in {timeout:g} s: the model took that long to load")
                return await asyncio.wrap_future(await asyncio.to_thread(self.submit, name, inputs, left))
            except errors.RsnError as e:
                return _plain(e)

        async def report(self) -> tuple[str, dict[str, Any], str]:
            """Return the replica's name, status and metrics."""
            name = serve.get_replica_context().replica_id.unique_id
            return name, self.status(), self.figures()

        def __del__(self) -> None:
            if hasattr(self, "_servers"):
                self.close()

    scale: dict[str, Any] = {"num_replicas": boards}
    if settings.least is not None:
        scale = {"autoscaling_config": {"min_replicas": settings.least, "max_replicas": boards}}
    made = serve.deployment(
        OfRay,
        name="boards",
        ray_actor_options={"num_cpus": 0, "resources": {BOARD: 1}},
        max_ongoing_requests=settings.serving.queue,
        max_queued_requests=settings.serving.queue,
        max_constructor_retry_count=3,
        logging_config={"enable_access_log": False},
        **scale,
    )
    return made.bind(settings)


KINDS = (RequestTimeout, QueueFull, errors.TensorError, errors.BoardError)
"""Errors with an HTTP status of their own, most special first."""


def _plain(error: errors.RsnError) -> errors.RsnError:
    """Return an error of one of the classes that have their own HTTP status, which can be pickled."""
    kind: type[errors.RsnError] = next((kind for kind in KINDS if isinstance(error, kind)), errors.RsnError)
    return kind(str(error))


# -- in the process that takes the requests


class Replicas:
    """Sends requests to the replicas, and watches their state. handle: Ray's handle of `deployment`."""

    def __init__(self, handle: Any, settings: Settings, dead: Mapping[str, str] | None = None) -> None:
        """dead: by board, the errors of those that were left out."""
        self.dead = dead or {}
        self._handle, self._boards = handle, len(settings.boards)
        self._least = self._boards if settings.least is None else settings.least
        self.health = Health()
        self.known: dict[str, tuple[dict[str, Any], str]] = {}
        """Status and metrics by the name of the replica, as of the latest look."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rsn-ray", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._watching(), self._loop)

    def ask(self, model: str, inputs: Mapping[str, Any], timeout: float) -> Future[Any]:
        """Send a request to a replica, and return the future of its answer. model: its name. inputs: its arguments by
        name. timeout: in seconds. Errors of every kind are set on the future: those of the model, `RequestTimeout`,
        `QueueFull`, and `BoardError` if replicas die."""
        return asyncio.run_coroutine_threadsafe(self._answer(model, inputs, timeout), self._loop)

    async def _answer(self, model: str, inputs: Mapping[str, Any], timeout: float) -> Any:
        ends = time.monotonic() + timeout
        for pause in PAUSES_S:
            await asyncio.sleep(pause)
            left = ends - time.monotonic()
            if left <= 0:
                break
            try:
                answer = await self._once(model, inputs, left)
            except TimeoutError:
                break
            except (RayError, ReplicaUnavailableError) as e:
                if isinstance(e, RayTaskError) and not isinstance(e, TaskCancelledError):
                    raise  # the replica lives: an error in its code
                log.warning("%s: a replica died while it ran a request: %s", model, type(e).__name__)
                continue
            except BackPressureError:
                raise QueueFull("the queue is full: no replica has a place for another request") from None
            except DeploymentUnavailableError:
                raise errors.BoardError("no replica could be started; Ray's log says why") from None
            if isinstance(answer, RequestTimeout):
                break
            if isinstance(answer, errors.RsnError):
                raise answer
            return answer
        else:
            raise errors.BoardError(f"{len(PAUSES_S)} replicas died while they ran this request")
        raise RequestTimeout(f"no answer in {timeout:g} s")

    async def _once(self, model: str, inputs: Mapping[str, Any], left: float) -> Any:
        response = self._handle.options(multiplexed_model_id=model).ask.remote(inputs, left)
        done = False
        try:
            async with asyncio.timeout(left + GRACE_S):
                answer = await response
            done = True
            return answer
        finally:
            if not done:
                response.cancel()

    async def _watching(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_LIMIT_S):
                    reports = await self._handle.broadcast("report").results_async(return_exceptions=True)
            except TimeoutError:
                # One hangs, and with it the call to all of them. Ray's own health check will find it.
                self._now(State.DEGRADED, "a replica does not answer")
            except Exception as e:  # there is no replica, or Ray has failed
                self.known = {}
                self._now(State.FAILING, f"no replica: {type(e).__name__}")
            else:
                self.known = {r[0]: r[1:] for r in reports if not isinstance(r, BaseException)}
                self._judge()
            await asyncio.sleep(POLL_S)

    def _judge(self) -> None:
        """Set the health: ready with all replicas there and ready; failing if none could answer; else degraded."""
        healths = {
            name: [m["health"] for m in status["models"].values() if m["health"]]
            for name, (status, _) in self.known.items()
        }
        down = [h for of in healths.values() for h in of if h["state"] not in (State.READY, State.DEGRADED)]
        up = sum(all(h["state"] in (State.READY, State.DEGRADED) for h in of) for of in healths.values())
        if up == len(healths) and up >= self._least:
            self._now(State.READY, None)
        else:
            error = down[0]["error"] if down else f"{up} of {self._least} replicas are ready"
            error = "; ".join(filter(None, (error, _left_out(self.dead))))
            self._now(State.DEGRADED if up else State.FAILING, error)

    def _now(self, state: State, error: str | None) -> None:
        """Set the health's state. `failures` counts how often it stopped being ready."""
        was = self.health
        failed = was.state is State.READY and state is not State.READY
        self.health = replace(was.to(state), error=error or was.error, failures=was.failures + failed)

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of all replicas, with a label `replica`. Called by the Prometheus registry."""
        from prometheus_client.parser import text_string_to_metric_families

        families: dict[str, Any] = {}
        for replica, (_, text) in self.known.items():
            for found in text_string_to_metric_families(text):
                samples, found.samples = found.samples, []
                family = families.setdefault(found.name, found)
                family.samples += [s._replace(labels={**s.labels, "replica": replica}) for s in samples]
        yield from families.values()

    def close(self) -> None:
        """Cancel the requests under way, and stop watching."""

        async def end() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ReplicatedModel:
    """One of the models of the replicas, as a server for `rsn.host.serving.http.application`. name: of the model. path:
    of its file. timeout_s: the most seconds for a request that states none."""

    replicas: Replicas
    """Set when the replicas have been started."""

    def __init__(self, name: str, path: str, timeout_s: float) -> None:
        """Raises `ContainerError` for a file that is not a model."""
        loaded = load(path)
        self.name = name
        self.arguments: tuple[Argument, ...] = loaded.arguments
        self.sizes: Mapping[str, tuple[int, ...]] = loaded.sizes
        self._timeout_s = timeout_s

    @property
    def health(self) -> Health:
        """The health of the replicas, which all models share."""
        return self.replicas.health

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """Send a call to a replica, and return the future of its result. inputs: the model's arguments by name.
        timeout: in seconds, None for the model's own limit. wait: unused; the length of Ray's queue is fixed. All
        errors are set on the future."""
        return self.replicas.ask(self.name, inputs, self._timeout_s if timeout is None else timeout)

    def close(self) -> None:
        """Do nothing: `Replicas.close` ends the calls of all models."""


def front(
    replicas: Replicas,
    servers: Mapping[str, HttpModel],
    *,
    form: Form | None = None,
    timeout_s: float = 60.0,
    limit_bytes: int = LIMIT_BYTES,
) -> Any:
    """Return the ASGI application for all models, at least one. A header names a request's model; /replicas shows the
    state of the replicas.

    servers: by the name of the model; the first is the default. form: the format of bodies, None for tensors.
    timeout_s: the most seconds for a request. limit_bytes: the most bytes of a body.
    """
    registry: Any = None
    with contextlib.suppress(ImportError):
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(replicas)
    apps = {
        name: application(server, form=form, registry=registry, timeout_s=timeout_s, limit_bytes=limit_bytes)
        for name, server in servers.items()
    }
    default = next(iter(apps))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import Response

        if scope["type"] != "http":
            await apps[default](scope, receive, send)
            return

        def answer(value: Any, status: int = 200) -> Any:
            return Response(write_json(value), status, media_type="application/json")

        found = next((value.decode("latin-1") for name, value in scope["headers"] if name == HEADER), "") or default
        if scope["path"] == "/replicas" and scope["method"] in ("GET", "HEAD"):
            await answer({name: status for name, (status, _) in replicas.known.items()})(scope, receive, send)
        elif found in apps:
            await apps[found](scope, receive, send)
        else:
            message = f"there is no model {found[:100]!r}; the models are {', '.join(apps)}"
            await answer({"error": message}, 404)(scope, receive, send)

    return app


@contextlib.contextmanager
def started(settings: Settings, cluster: str | None = None) -> Iterator[Replicas]:
    """Start the replicas, wait until they run (or `settings.least` of them), and stop them at the end of a `with`
    block.

    cluster: address of a running Ray cluster, whose nodes have the resource `rsn_board`, one for each board; None
    starts one on this machine, and leaves out boards that do not work (`Replicas.dead`). Raises `BoardError` if the
    cluster cannot be reached, or if no replica could be started.
    """
    if cluster is not None:
        try:
            ray.init(address=cluster, logging_level=logging.WARNING)
        except (OSError, RuntimeError, ValueError) as e:
            raise errors.BoardError(f"cannot connect to a Ray cluster at {cluster!r}: {e}") from e
    else:
        # "local": else Ray would join a cluster that runs on this machine
        ray.init(
            address="local",
            resources={BOARD: len(settings.boards)},
            include_dashboard=False,
            logging_level=logging.WARNING,
        )
    try:
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        try:
            live, dead = _sorted_out(settings) if cluster is None else (settings, {})
            handle = serve.run(deployment(live), name=APPLICATION, route_prefix=None)
        except RuntimeError as e:
            raise errors.BoardError(f"no replica could be started: {e}") from e
        replicas = Replicas(handle, settings, dead)
        try:
            yield replicas
        finally:
            replicas.close()
    finally:
        with contextlib.suppress(Exception):  # the cluster may have died
            serve.delete(APPLICATION) if cluster is not None else serve.shutdown()
        ray.shutdown()


def _sorted_out(settings: Settings) -> tuple[Settings, dict[str, str]]:
    """Return the settings with the boards that work, each tried in a process of its own, and the errors of the others.
    Raises `BoardError` if none works."""
    first = next(iter(settings.models.values()))
    tried = ray.remote(num_cpus=0, max_calls=1)(why_dead)  # the process ends, and with it what it holds of a device
    whys = ray.get([tried.remote(first, board) for board in settings.boards])
    dead = {str(board): why for board, why in zip(settings.boards, whys, strict=True) if why}
    boards = [board for board, why in zip(settings.boards, whys, strict=True) if not why]
    if not boards:
        raise errors.BoardError(_left_out(dead))
    if dead:
        log.warning("%s", _left_out(dead))
    least = None if settings.least is None else min(settings.least, len(boards))
    return replace(settings, boards=boards, least=least), dead


def run(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limit_bytes: int = LIMIT_BYTES,
    cluster: str | None = None,
    tokenizer: SentenceTokenizer | None = None,
) -> None:
    """Serve until SIGTERM or ^C, then answer the requests under way and return. Prints the address once it accepts
    requests; must run in the main thread.

    host, port: the address to listen at; port 0 is any free one. limit_bytes: the most bytes of a request's body.
    cluster: as for `started`. tokenizer: for one model of token ids and their mask; clients then send sentences. Raises
    `ContainerError` for a file that is no model, `BoardError` if the address is in use, a board has no such name or no
    replica could be started, and `MissingError` without uvicorn.
    """
    with listener(host, port) as sock, contextlib.ExitStack() as stack:  # first: reports an address in use at once
        models = {name: ReplicatedModel(name, path, settings.timeout_s) for name, path in settings.models.items()}
        if cluster is None:
            for board in settings.boards:  # an unknown name is reported at once
                if isinstance(board, str) and board not in ("sim", "csim") and not board.startswith("ssh:"):
                    find_board(board)
        print(
            f"starting a replica on each of {len(settings.boards)} boards, about 20 s ...", file=sys.stderr, flush=True
        )
        replicas = stack.enter_context(started(settings, cluster))
        servers: dict[str, HttpModel] = {}
        for name, model in models.items():
            model.replicas = replicas
            servers[name] = model if tokenizer is None else Sentences(model, tokenizer)
        app = front(
            replicas,
            servers,
            form=None if tokenizer is None else SentenceForm(),
            timeout_s=settings.timeout_s,
            limit_bytes=limit_bytes,
        )
        live = [str(board) for board in settings.boards if str(board) not in replicas.dead]
        on = f"on boards {', '.join(live)}"
        if replicas.dead:
            on += f"; {_left_out(replicas.dead)}"
        serve_http(
            app,
            sock,
            ready=lambda url: print(f"{', '.join(servers)} at {url} {on}", flush=True),
            timeout_s=settings.timeout_s,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted. arguments: those of the command line by default. Raises as `run` and as the loading of a
    model; ends the process for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="rsn.programs.serve_ray", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=".rsnmodel files; none: the demo's sentence encoder")
    parser.add_argument(
        "--boards", nargs="+", default=["sim", "sim"], help="boards, a replica on each [default: sim sim]"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at [default: %(default)s]")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free port [default: %(default)s]")
    parser.add_argument("--queue", type=int, default=256, help="the most requests that wait [default: %(default)s]")
    parser.add_argument(
        "--max-wait",
        type=float,
        default=0.002,
        help="seconds that a request waits for others to share its run [default: 0.002]",
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="the most seconds for a request to wait and run [default: 60]"
    )
    parser.add_argument(
        "--limit-mb", type=float, help="the most megabytes of a request's body [default: 64; 1 for sentences]"
    )
    parser.add_argument("--least", type=int, help="replicas that run without load [default: all]")
    parser.add_argument("--cluster", help="address of a running Ray cluster; its nodes state their resource " + BOARD)
    given = parser.parse_args(arguments)
    for what, number, low, high in (
        ("--port", given.port, 0, 65535),
        ("--timeout", given.timeout, 0.001, 24 * 3600.0),
        ("--limit-mb", given.limit_mb, 0.001, 65536),
        ("--least", given.least, 1, len(given.boards)),
    ):
        if number is not None and not low <= number <= high:
            parser.error(f"argument {what}: {number} is not in the range {low} to {high}")
    names = [Path(path).stem for path in given.models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(f"two models have the name {twice[0]}; the files' names must differ")
    try:
        serving = Serving(queue=given.queue, max_wait_s=given.max_wait)
    except ValueError as e:
        parser.error(str(e))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with tempfile.TemporaryDirectory(prefix="rsn") as folder:
        tokenizer: SentenceTokenizer | None = None
        if given.models:
            # absolute: replicas may have another working directory
            models = dict(zip(names, (os.path.abspath(path) for path in given.models), strict=True))
        else:
            encoder, tokenizer = minilm.load(minilm.model_folder())
            models = {"minilm": os.path.join(folder, "minilm.rsnmodel")}
            save(encoder, Path(models["minilm"]))
        limit = LIMIT_BYTES if given.models else SENTENCES_LIMIT_BYTES
        run(
            Settings(models, given.boards, given.least, given.timeout, serving),
            host=given.host,
            port=given.port,
            limit_bytes=limit if given.limit_mb is None else int(given.limit_mb * 1e6),
            cluster=given.cluster,
            tokenizer=tokenizer,
        )


if __name__ == "__main__":
    try:
        main()
    except errors.RsnError as error:
        print(f"rsn.programs.serve_ray: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
