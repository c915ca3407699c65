"""A model behind HTTP, in JSON: the ASGI application, and a process that serves one (docs/serving.md).

Needs starlette and uvicorn (the extra `serve`).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Protocol

from ...base.errors import BoardError, TensorError, require
from ...base.version import __version__
from .arguments import Argument
from .call_times import elements
from .core import LIMIT_BYTES, TIMEOUT_S, Core, Response, json_answer, stop_all, unless_gone
from .door import HEADER_BYTES
from .health import Health
from .http_binary import MEDIA_TYPE, BinaryTensors
from .http_json import Form, NotJson, NotTheForm, Question, Tensors

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

STATUS = ((NotJson, 400), (NotTheForm, 422), (TensorError, 422))
"""HTTP status codes by error, before those of `core.STATUS`."""
HEADERS_S = 10.0
"""Seconds for the headers of a request to arrive."""
CONNECTIONS = 500
"""The most connections at one time."""
SENDING_S = 5
"""Seconds that clients have to read their answers when the server stops."""


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
        other `RsnError`s are set on it. With arrays and a `wait` of 0 it waits for
        nothing: an event loop may call it.
        """

    def close(self) -> None:
        """End the submitted calls, and release the boards. The class says whether calls are finished, as by `Server`,
        or cancelled, as by `ReplicatedServer`."""


def application(
    server: HttpModel,
    *,
    registry: CollectorRegistry | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_bytes: int = LIMIT_BYTES,
    keys: Collection[str] = (),
    replicas: Callable[[], Any] | None = None,
) -> Any:
    """Return the ASGI application of a server. It does not close the server.

    Bodies are JSON (`Tensors`), or `BinaryTensors` where a request's headers say so. registry: the Prometheus registry
    that /metrics shows; without one there is no such path. timeout_s: the most seconds for a request to wait and run,
    and for its body to arrive. limit_bytes: the most bytes of a body. keys: of which each request must have one, but
    for /health; none for a server that takes all requests. replicas: as for `Core`. Raises `UnsupportedError` for an
    argument whose dtype JSON cannot represent.
    """
    form = Tensors(server.arguments)
    core = Core(
        form.read, lambda: server.health, lambda status, message, field: {"error": message}, STATUS,
        registry=registry, timeout_s=timeout_s, limit_bytes=limit_bytes, keys=keys, replicas=replicas,
    )  # fmt: skip
    service = _ModelService(server, form, BinaryTensors(server.arguments), core)
    return core.application(
        {"/": ("GET POST", service.root)}, "unknown path; GET / describes the model, POST / runs it"
    )


class _ModelService:
    """Answers the requests for one server."""

    def __init__(self, server: HttpModel, form: Form, binary: Form, core: Core[Question]) -> None:
        self._server, self._form, self._binary, self._core = server, form, binary, core

    async def root(self, request: Any) -> Any:
        """Describe the model, or run it."""
        if request.method == "POST":
            reads, writes = (self._binary_where(request, header) for header in ("content-type", "accept"))
            question = await self._core.request(request, None if reads is None else reads.read)
            result = await self._result(request, question)
            form = writes or self._form
            body = await self._core.run(elements(result), form.write, result)
            return Response(body, media_type="application/json" if writes is None else MEDIA_TYPE)
        server = self._server
        return json_answer(
            {
                "name": server.name,
                "arguments": [{"name": a.name, "dtype": a.dtype, "shape": list(a.shape)} for a in server.arguments],
                "sizes": {name: list(sizes) for name, sizes in server.sizes.items()},
                "version": __version__,
            }
        )

    def _binary_where(self, request: Any, header: str) -> Form | None:
        """The binary form, if a header names it."""
        return self._binary if MEDIA_TYPE in request.headers.get(header, "").lower() else None

    async def _result(self, request: Any, question: Question) -> Any:
        """Ask a question, and return its result. Cancelled, it is cancelled in the server's queue too."""
        most = self._core.timeout_s
        # no waiting for a place in the queue: a load balancer may try another server
        async with self._core.within():  # the server's own limit counts; this one is for the end
            asked = self._core.asked(
                elements(question.inputs),
                self._server.ask,
                question.inputs,
                timeout=min(question.timeout or most, most),
                wait=0.0,
            )
            return await unless_gone(request, asked)


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


def is_reached_from_outside(sock: socket.socket) -> bool:
    """Return whether other computers can reach a socket. sock: from `listener`."""
    return not ip_address(str(sock.getsockname()[0]).partition("%")[0]).is_loopback


def _limited(protocol: type[Any], connections: int) -> type[Any]:
    """Return a class of connections of which there are at most so many, and which are closed if a request's headers do
    not arrive in `HEADERS_S` seconds, or are much longer than `HEADER_BYTES`. Other waits have limits already: for a
    body (`core`), and of an idle connection for its next request (uvicorn). protocol: uvicorn's class."""

    class LimitedConnection(protocol):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None
        _unfinished = 0
        """Bytes of headers that have not ended."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                self._end("503 Service Unavailable\r\nretry-after: 1")
            else:
                self._time()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._time()
            self._unfinished = 0 if self._timer is None else self._unfinished + len(data)
            if self._unfinished > 2 * HEADER_BYTES and not self.transport.is_closing():
                self._end("431 Request Header Fields Too Large")

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._time()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self._stop()

        def _end(self, status: str) -> None:
            """Answer what no application has seen, and close the connection."""
            self.transport.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
            self.transport.close()

        def _time(self) -> None:
            """Start the time if headers are waited for, and stop it if not."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(HEADERS_S, self.transport.close)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return LimitedConnection


def serve(
    app: Any,
    sock: socket.socket,
    *,
    ready: Callable[[str], None],
    timeout_s: float = TIMEOUT_S,
    connections: int = CONNECTIONS,
) -> None:
    """Serve in this process until SIGTERM or SIGINT, then answer the requests under way and return; a second SIGINT
    ends at once. What is not answered `timeout_s` seconds after the signal is answered with an error. Requests that
    come after the signal get 503.

    app: the ASGI application. sock: from `listener`; it is closed at the end. ready: called with the URL when
    connections are accepted. timeout_s: as for `application`, in seconds. connections: the most at one time. Raises
    `RuntimeError` in another thread than the main one, `BoardError` if the address is in use, `MissingError` without
    uvicorn.
    """
    require("uvicorn", "serving over HTTP", "pip install starlette uvicorn")
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("serve handles signals, which only the main thread can")
    config = uvicorn.Config(
        app, http=_limited(AutoHTTPProtocol, connections), log_config=None, access_log=False, server_header=False,
        lifespan="off", ws="none", h11_max_incomplete_event_size=2 * HEADER_BYTES, timeout_graceful_shutdown=SENDING_S,
    )  # fmt: skip

    class ToldServer(uvicorn.Server):  # type: ignore[misc]
        """A server that tells its applications when it stops."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stop_all(timeout_s)
            now = asyncio.get_running_loop().time
            ends = now() + timeout_s
            while self.server_state.tasks and now() < ends and not self.force_exit:
                await asyncio.sleep(0.05)  # others are told meanwhile that it stops
            await super().shutdown(sockets)

    running = ToldServer(config)

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
