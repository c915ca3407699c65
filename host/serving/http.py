"""A model behind HTTP, in JSON: the ASGI application, and a process that serves it (docs/serving.md).

Needs starlette and uvicorn (the extra `serve`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from ...base.errors import BoardError, MissingError, RsnError, TensorError, require
from ...base.version import __version__
from .arguments import Argument
from .health import Health, State
from .http_json import Form, NotJson, NotTheForm, Tensors, write_json
from .policy import QueueFull, RequestTimeout

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect as ClientDisconnect
    from starlette.responses import Response as Response
    from starlette.responses import StreamingResponse as StreamingResponse
    from starlette.routing import Route as Route
except ImportError:
    raise MissingError(
        "serving over HTTP takes starlette, which is not installed: pip install starlette uvicorn"
    ) from None

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("rsn.http")

LIMIT_BYTES = 64 << 20
"""Bytes of a request's body."""
TIMEOUT_S = 60.0
"""Seconds of a request."""
THREADS = 8
"""Threads that parse bodies, submit requests and write answers, so that the event loop stays free for health checks."""
LINGER_S = 2.0
"""Seconds for which a body that is too large is read and dropped: a client that is still sending does not read the
answer."""
STATUS: tuple[tuple[type[RsnError], int], ...] = (
    (NotJson, 400),
    (NotTheForm, 422),
    (TensorError, 422),
    (RequestTimeout, 504),
    (QueueFull, 503),
    (BoardError, 503),
    (RsnError, 500),
)
"""HTTP status codes by error; the first class that fits counts."""


class HttpModel(Protocol):
    """A model that answers calls. Any thread may call its methods."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that a call takes, by the names that `ask` wants."""

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes that the model was compiled for, by the name of the dimension; empty for a model of one size."""

    @property
    def health(self) -> Health:
        """Whether calls are being answered, and the board's latest error."""

    def ask(self, inputs: Mapping[str, Any], *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """Queue a call, and return the future of its result.

        inputs: by argument, as the body format reads them: NumPy arrays, or sentences. timeout: seconds until the
        future fails with `RequestTimeout`; None for the model's own limit, if it has one. wait: seconds to wait for a
        place in a full queue; None waits without limit, and a model whose queue is elsewhere ignores it. `TensorError`
        for inputs that do not fit, and `QueueFull`, are raised or set on the future; `RequestTimeout`, `BoardError` and
        other `RsnError`s are set on it.
        """

    def close(self) -> None:
        """Finish the submitted calls, and release the board."""


class TooLarge(Exception):
    """The body of a request is too large."""


def application(
    server: HttpModel,
    *,
    form: Form | None = None,
    registry: CollectorRegistry | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_bytes: int = LIMIT_BYTES,
) -> Any:
    """Return the ASGI application of a server. It does not close the server.

    form: the format of bodies, by default `http_json.Tensors`. registry: the Prometheus registry that /metrics shows;
    without one there is no such path. timeout_s: the most seconds for a request to wait and run, and for its body to
    arrive. limit_bytes: the most bytes of a body. Raises `UnsupportedError` for an argument whose dtype JSON cannot
    represent.
    """
    service = _ModelService(server, form or Tensors(server.arguments), timeout_s, limit_bytes)
    routes = [Route("/", service.root, methods=["GET", "POST"])]
    unknown = "unknown path; GET / describes the model, POST / runs it"
    return routed(routes, lambda: server.health, registry, _error, unknown)


def routed(
    routes: list[Route],
    health: Callable[[], Health],
    registry: CollectorRegistry | None,
    error: Callable[..., Any],
    unknown: str,
) -> Any:
    """Return an ASGI application with these routes, /health, and with a registry /metrics.

    health: returns what /health tells. error: makes an answer from a status code, a message, and `headers`. unknown:
    the message for other paths.
    """

    async def tell_health(request: Any) -> Any:
        now = health()
        known = {"state": now.state.value, "error": now.error, "since": now.since, "failures": now.failures}
        return json_answer(known, 200 if now.state in (State.READY, State.DEGRADED) else 503)

    async def tell_metrics(request: Any) -> Any:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        assert registry is not None
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    def unrouted(request: Any, raised: Any) -> Any:
        if raised.status_code == 405:
            allowed = ", ".join(sorted(raised.headers["Allow"].split(", ")))
            return error(405, f"this path takes {allowed}", headers={"allow": allowed})
        return error(raised.status_code, unknown)

    def failed(request: Any, raised: Exception) -> Any:
        # Starlette raises the error again, and the ASGI server logs it with its traceback
        return error(500, "internal error")

    every = [*routes, Route("/health", tell_health, methods=["GET"])]
    if registry is not None:
        every.append(Route("/metrics", tell_metrics, methods=["GET"]))
    app = Starlette(routes=every, exception_handlers={HTTPException: unrouted, Exception: failed})
    app.router.redirect_slashes = False
    return app


class _ModelService:
    """Answers the requests for one server."""

    def __init__(self, server: HttpModel, form: Form, timeout_s: float, limit_bytes: int) -> None:
        self._server, self._form = server, form
        self._timeout_s, self._limit = timeout_s, limit_bytes
        self._threads: Executor = ThreadPoolExecutor(THREADS, "rsn-http")

    async def root(self, request: Any) -> Any:
        """Describe the model, or run it."""
        if request.method == "POST":
            return await self._answer(request)
        server = self._server
        return json_answer(
            {
                "name": server.name,
                "arguments": [{"name": a.name, "dtype": a.dtype, "shape": list(a.shape)} for a in server.arguments],
                "sizes": {name: list(sizes) for name, sizes in server.sizes.items()},
                "version": __version__,
            }
        )

    async def _answer(self, request: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await read_body(request, self._limit)
        except TooLarge:
            waits = request.headers.get("expect", "").lower() == "100-continue"
            return _too_large(f"the body has more than {self._limit} bytes", waits)
        except TimeoutError:
            return _error(408, f"the body did not arrive in {self._timeout_s:g} s", {"connection": "close"})
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        gone = asyncio.create_task(disconnected(request.receive))
        try:
            return _json_text(await self._result(body, gone))
        except ClientDisconnect:
            return Response(status_code=400)
        except RsnError as e:
            status = next(code for kind, code in STATUS if isinstance(e, kind))
            if status == 500:
                log.error("%s: %s", type(e).__name__, e)
            return _error(status, str(e), {"retry-after": "1"} if status == 503 else {})
        finally:
            gone.cancel()

    async def _result(self, body: bytes, gone: asyncio.Task[None]) -> bytes:
        """Submit a request, and return its answer's body. gone: a task that is done when the client has
        disconnected."""
        loop = asyncio.get_running_loop()
        asked = asyncio.wrap_future(await loop.run_in_executor(self._threads, self._ask, body, gone))
        try:
            await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise ClientDisconnect
        finally:
            asked.cancel()  # also in the server's queue; no effect if it is done
        if asked.cancelled():
            raise BoardError("the server was closed")
        return await loop.run_in_executor(self._threads, self._form.write, asked.result())

    def _ask(self, body: bytes, gone: asyncio.Task[None]) -> Future[Any]:
        question = self._form.read(body)
        if gone.done():
            raise ClientDisconnect
        timeout = min(question.timeout or self._timeout_s, self._timeout_s)
        # no waiting for a place in the queue: a load balancer may try another server
        return self._server.ask(question.inputs, timeout=timeout, wait=0.0)


async def read_body(request: Any, limit: int) -> bytes:
    """Read a request's body. limit: in bytes. Raises `TooLarge` as soon as the size is known to be larger, and
    `ClientDisconnect` if the client goes away meanwhile."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise TooLarge
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge
        chunks.append(chunk)
    return b"".join(chunks)


async def disconnected(receive: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    """Return when the client has disconnected. receive: the ASGI function that gives the next message."""
    while (await receive())["type"] != "http.disconnect":
        pass


# -- answers


def _json_text(text: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    return Response(text, status, headers, media_type="application/json")


def json_answer(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Return an HTTP answer whose body is `value` in JSON. status: the HTTP status code. headers: more headers. Raises
    `UnsupportedError` for what JSON cannot represent."""
    return _json_text(write_json(value), status, headers)


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Any:
    return json_answer({"error": message}, status, headers)


def _too_large(message: str, waits: bool) -> Any:
    """Answer a client that may still be sending its body. waits: it sends nothing until it gets a 100 (Continue)."""

    async def respond(scope: Any, receive: Callable[[], Awaitable[dict[str, Any]]], send: Send) -> None:
        response = _error(413, message, {"connection": "close"})
        await send({"type": "http.response.start", "status": 413, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if waits else LINGER_S):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b""})

    return respond


# -- a process that serves


def listener(host: str, port: int) -> socket.socket:
    """Return a socket bound to this address, which does not listen yet. host: a name or an address of this machine.
    port: 0 for any free one. Raises `BoardError` if the address is in use or is not one of this machine, and for a
    number that is no port."""
    if not 0 <= port < 1 << 16:
        raise BoardError(f"cannot listen at {host}, port {port}: a port is from 0 to {(1 << 16) - 1}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as e:
        raise _no_address(host, port, e) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as e:
        made.close()
        raise _no_address(host, port, e) from None
    return made


def _no_address(host: str, port: int, error: Exception) -> BoardError:
    return BoardError(f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}")


def serve(app: Any, sock: socket.socket, *, ready: Callable[[str], None], timeout_s: float = TIMEOUT_S) -> None:
    """Serve in this process until SIGTERM or SIGINT, then answer the requests under way and return; a second SIGINT
    ends at once.

    app: the ASGI application. sock: from `listener`; it is closed at the end. ready: called with the URL when
    connections are accepted. timeout_s: as for `application`, in seconds. Raises `RuntimeError` in another thread than
    the main one, `BoardError` if the address is in use, `MissingError` without uvicorn.
    """
    require("uvicorn", "serving over HTTP", "pip install starlette uvicorn")
    import uvicorn

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("serve handles signals, which only the main thread can")
    # Idle connections end at once. Requests end by their timeouts; 5 s more are for sending their answers.
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=math.ceil(timeout_s) + 5,
    )  # fmt: skip
    running = uvicorn.Server(config)

    def stop(number: int, frame: object) -> None:
        running.should_exit = True

    # While it runs, uvicorn has its own handlers; at its end it raises the signals again for the handlers set before.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    host, port = sock.getsockname()[:2]
    try:
        try:
            sock.listen(config.backlog)
        except OSError as e:
            raise _no_address(host, port, e) from None
        ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
        running.run(sockets=[sock])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sock.close()
