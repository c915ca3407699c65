"""What servers over HTTP have in common: how requests are read, limited, parsed and counted, what they wait for, how
errors are answered, and how it ends (docs/serving.md).

Needs starlette (the extra `serve`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...base.errors import BoardError, MissingError, RsnError
from .apart import Apart
from .call_times import AT_ONCE_S, CallTimes, running_loop
from .door import STOPS, Application, Door, RequestRefusal
from .health import Health, State
from .http_json import write_json
from .policy import QueueFull, RequestTimeout, TooLarge

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect as ClientDisconnect
    from starlette.responses import Response as Response
    from starlette.responses import StreamingResponse as StreamingResponse
    from starlette.routing import Route
except ImportError:
    raise MissingError(
        "serving over HTTP takes starlette, which is not installed: pip install starlette uvicorn"
    ) from None

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

T = TypeVar("T")
U = TypeVar("U")
log = logging.getLogger("rsn.http")

LIMIT_BYTES = 64 << 20
"""Bytes of a request's body."""
BODIES = 8
"""All bodies that are held at one time have together at most this number times the limit of one."""
TIMEOUT_S = 60.0
"""Seconds of a request."""
THREADS = 8
"""Threads that parse bodies, submit requests and write answers, so that the event loop stays free for health checks."""
APART_BYTES = 1 << 16
"""Bytes of a body that this process parses. The standard library's parser holds the interpreter: of 64 KiB for 10 ms at
most, in whatever thread. Larger ones go to a process of their own."""
WATCH_S = 0.02
"""Seconds after which a request is cancelled if its client disconnects. Most are answered before."""
LINGER_S, LINGER_BYTES = 2.0, 1 << 20
"""Seconds and bytes for which a body that is refused is read and dropped: some clients read the answer only when they
have sent all. Then the connection is closed."""


class SlowBody(RsnError):
    """A request's body did not arrive in time."""


class BodiesFull(QueueFull):
    """All bodies together have too many bytes. This one was not read."""


class Stopping(BoardError):
    """The server stops, and the time that requests under way had is over."""


STATUS: tuple[tuple[type[Exception], int], ...] = (
    (SlowBody, 408),
    (TooLarge, 413),
    (RequestTimeout, 504),
    (QueueFull, 503),
    (BoardError, 503),
    (RsnError, 500),
)
"""HTTP status codes by error; the first class that fits counts."""


class Core(Generic[T]):
    """The common part of an application, for requests that become a T.

    parse: makes a T from a body, and raises `RsnError`s; a module's function, or an object that can be pickled. health:
    returns what /health tells. error: makes the body of an answer from a status code, a message, and the name of the
    field at fault, "" for none. status: codes of further errors, before those of `STATUS`. registry: the Prometheus
    registry that /metrics shows; without one there is no such path. timeout_s: the most seconds for a body to arrive,
    and to be parsed. limit_bytes: the most bytes of a body. keys: of which a request must have one; empty for a server
    that takes all requests. replicas: returns what /replicas tells of the copies of a model; None: no such path.
    """

    def __init__(
        self,
        parse: Callable[[bytes], T],
        health: Callable[[], Health],
        error: Callable[[int, str, str], Mapping[str, Any]],
        status: Sequence[tuple[type[Exception], int]],
        *,
        registry: CollectorRegistry | None,
        timeout_s: float,
        limit_bytes: int,
        keys: Collection[str] = (),
        replicas: Callable[[], Any] | None = None,
    ) -> None:
        self.timeout_s, self._keys, self._replicas = timeout_s, keys, replicas
        self._parse, self._health, self._error, self._registry = parse, health, error, registry
        self._status, self._limit = (*status, *STATUS), limit_bytes
        self._held = 0
        """Bytes of the bodies that arrive, or wait to be parsed."""
        self._threads = ThreadPoolExecutor(THREADS, "rsn-http")
        self._apart = Apart(parse)
        self._parser = ThreadPoolExecutor(1, "rsn-http-parse")
        self._times = CallTimes(AT_ONCE_S)
        self._waits: set[asyncio.Timeout] = set()
        self._ends: float | None = None
        """When requests under way are given up, in seconds of the loop's clock; None while the server does not stop."""
        _cores.add(self)

    # -- the application

    def application(self, routes: Mapping[str, tuple[str, Callable[[Any], Awaitable[Any]]]], unknown: str) -> Any:
        """Return an ASGI application with given routes, and with /health, /metrics (if there is a registry) and
        /replicas (if there are copies of a model).

        routes: for each path, the methods as a text with spaces between, and the function that answers; `RsnError`s
        that it raises become answers. unknown: the message for other paths.
        """

        def unrouted(request: Any, raised: Any) -> Any:
            if raised.status_code == 405:
                allowed = ", ".join(sorted(raised.headers["Allow"].split(", ")))
                return self._told(405, f"this path takes {allowed}", headers={"allow": allowed})
            return self._told(raised.status_code, unknown)

        def failed(request: Any, raised: Exception) -> Any:
            # Starlette raises the error again, and the ASGI server logs it with its traceback
            return self._told(500, "internal error")

        made = [Route(path, self._caught(answer), methods=of.split()) for path, (of, answer) in routes.items()]
        made.append(Route("/health", self._tell_health, methods=["GET"]))
        if self._registry is not None:
            made.append(Route("/metrics", self._tell_metrics, methods=["GET"]))
        if self._replicas is not None:
            made.append(Route("/replicas", self._tell_replicas, methods=["GET"]))
        app = Starlette(routes=made, exception_handlers={HTTPException: unrouted, Exception: failed})
        app.router.redirect_slashes = False
        return Door(app, self._keys, self._unread, lambda: self._ends is not None)

    async def _tell_health(self, request: Any) -> Any:
        now = self._health()
        known: dict[str, Any] = {
            "state": now.state.value,
            "error": now.error,
            "since": now.since,
            "failures": now.failures,
        }
        if self._ends is not None:
            known |= {"state": State.CLOSED.value, "error": STOPS}
            return json_answer(known, 503, {"retry-after": "1"})
        return json_answer(known, 200 if now.state in (State.READY, State.DEGRADED) else 503)

    async def _tell_metrics(self, request: Any) -> Any:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        assert self._registry is not None
        return Response(generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _tell_replicas(self, request: Any) -> Any:
        assert self._replicas is not None
        return json_answer({"replicas": self._replicas()})

    # -- requests

    async def request(self, request: Any, quick: Callable[[bytes], T] | None = None) -> T:
        """Read the body of a request and parse it. quick: parses instead, in a time and memory that are small for a
        body of any size. Raises `SlowBody`, `TooLarge`, `BodiesFull` while others hold too
        many bytes, `ClientDisconnect`, and what parsing raises."""
        with self._holding() as hold:
            slow = f"the body did not arrive in {self.timeout_s:g} s"
            async with self.within(self.timeout_s, slow, SlowBody):
                body = await _read_body(request, self._limit, hold)
            if len(body) <= APART_BYTES:
                return await self.run(len(body), quick or self._parse, bytes(body))
            if quick is not None:
                return await self.in_thread(lambda: quick(bytes(body)))
            async with self.within(self.timeout_s, f"the body was not parsed in {self.timeout_s:g} s"):
                return await asyncio.get_running_loop().run_in_executor(self._parser, self._apart, body, self.timeout_s)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a body that arrive. Yields a function that takes more of them. It raises `BodiesFull` when
        all bodies together have too many."""
        held, most = 0, BODIES * self._limit

        def hold(size: int) -> None:
            nonlocal held
            if self._held + size > most:
                raise BodiesFull(f"the bodies of other requests have more than {most - size} bytes")
            self._held += size
            held += size

        try:
            yield hold
        finally:
            self._held -= held

    async def in_thread(self, act: Callable[..., U], *args: Any) -> U:
        """Call a function that takes long in a thread, and return its result. act: the function; args: its
        arguments."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *args)

    async def run(self, size: int | None, act: Callable[..., U], *args: Any) -> U:
        """Call a function, and return its result: at once if its calls have been short for arguments of about this
        size, else in a thread. size: as for `CallTimes`. act: the function, which must not wait for anything; args: its
        arguments."""
        if self._times.are_short(act, size):
            return self._times.timed(act, size, act, *args)
        return await self.in_thread(self._times.timed, act, size, act, *args)

    def asked(self, size: int | None, ask: Callable[..., Future[U]], *args: Any, **kwargs: Any) -> asyncio.Future[U]:
        """Call a function that returns a future, and return a future of the event loop with the same result or error.
        size: as for `CallTimes`. ask: the function; it is called at once or in a thread, as by `run`. args, kwargs: its
        arguments.

        If the returned future is cancelled, the function's future is cancelled too, also if the function has not
        returned yet. If a server that closes cancels the function's future, the returned one has a `BoardError`.
        """
        loop = asyncio.get_running_loop()
        made: asyncio.Future[U] = loop.create_future()
        answers: list[Future[U]] = []

        def tell(answer: Future[U]) -> None:
            if running_loop() is loop:
                _end_as(made, answer)
            else:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_end_as, made, answer)

        def call() -> None:
            try:
                answer = self._times.timed(ask, size, ask, *args, **kwargs)
            except BaseException as e:
                answer = Future()
                answer.set_exception(e)
            answers.append(answer)
            if made.cancelled():
                answer.cancel()
            else:
                answer.add_done_callback(tell)

        def ended(made: asyncio.Future[U]) -> None:
            if made.cancelled():
                for answer in answers:
                    answer.cancel()

        if self._times.are_short(ask, size):
            call()
        else:
            self._threads.submit(call)
        made.add_done_callback(ended)
        return made

    def within(
        self, seconds: float = math.inf, message: str = "", error: Callable[[str], Exception] = RequestTimeout
    ) -> _Within:
        """Return a context that cancels what its block waits for after some seconds, and raises `error` with the
        message; or `Stopping`, if the server stops and its time is over before."""
        due = None if seconds == math.inf else asyncio.get_running_loop().time() + seconds
        ends = min((time for time in (due, self._ends) if time is not None), default=None)
        return _Within(self._waits, asyncio.timeout_at(ends), due, lambda: error(message))

    def stop(self, seconds: float) -> None:
        """Give requests under way this number of seconds; those that still wait for something get `Stopping`. To be
        called in the event loop."""
        self._ends = asyncio.get_running_loop().time() + seconds
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(min(self._ends, wait.when() or self._ends))

    # -- answers

    def _caught(self, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """An answer to a request that also answers the errors which `answer` raises."""

        async def answered(request: Any) -> Any:
            try:
                return await answer(request)
            except ClientDisconnect:
                return Response(status_code=400)  # the client is gone
            except RsnError as e:
                return self.refused(e, request)

        return answered

    def refused(self, error: RsnError, request: Any) -> Any:
        """Return the answer to a request that an error ends."""
        status = next(code for kind, code in self._status if isinstance(error, kind))
        if status == 500:
            log.error("%s: %s", type(error).__name__, error)
        headers = {"retry-after": "1"} if status == 503 else {}
        if isinstance(error, TooLarge | BodiesFull):
            return self._unread(RequestRefusal(status, str(error), headers))
        if isinstance(error, SlowBody):
            headers["connection"] = "close"
        return self._told(status, str(error), getattr(error, "field", ""), headers)

    def _unread(self, why: RequestRefusal) -> Application:
        """Return the answer to a request whose body has not been read."""
        return _lingering(self._told(why.status, why.message, headers=why.headers | {"connection": "close"}))

    def _told(self, status: int, message: str, field: str = "", headers: Mapping[str, str] | None = None) -> Any:
        return json_answer(self._error(status, message, field), status, headers)


class _Within:
    """A time limit of a block, one of `waits` meanwhile. due: when it ends with an error, which `late` makes; None for
    never. A generator with `asynccontextmanager` would take twice the time."""

    def __init__(
        self, waits: set[asyncio.Timeout], limit: asyncio.Timeout, due: float | None, late: Callable[[], Exception]
    ) -> None:
        self._waits, self._limit, self._due, self._late = waits, limit, due, late

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._waits.add(self._limit)

    async def __aexit__(self, *raised: Any) -> None:
        self._waits.discard(self._limit)
        try:
            await self._limit.__aexit__(*raised)
        except TimeoutError:
            if self._due is not None and self._limit.when() == self._due:
                raise self._late() from None
            raise Stopping("the server stops, and had no more time for this request") from None


def _end_as(made: asyncio.Future[U], answer: Future[U]) -> None:
    """End a future of the event loop as one of threads has ended."""
    if made.done():
        return
    if answer.cancelled():
        made.set_exception(BoardError("the server was closed"))
    elif (error := answer.exception()) is not None:
        made.set_exception(error)
    else:
        made.set_result(answer.result())


_cores: weakref.WeakSet[Core[Any]] = weakref.WeakSet()


def stop_all(seconds: float) -> None:
    """Call `Core.stop` of all applications of this process. seconds: as for that."""
    for core in _cores:
        core.stop(seconds)


async def _read_body(request: Any, limit: int, hold: Callable[[int], None]) -> bytearray:
    """Read a request's body. limit: in bytes. hold: takes the sizes of its parts. Raises `TooLarge` as soon as the size
    is known to be larger, `ClientDisconnect` if the client goes away meanwhile, and what `hold` raises."""
    large = TooLarge(f"the body has more than {limit} bytes")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise large
    body = bytearray()  # which grows in place; to join parts of 64 MB would stop the loop
    async for chunk in request.stream():
        if len(body) + len(chunk) > limit:
            raise large
        hold(len(chunk))
        body += chunk
    return body


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected. receive: the ASGI function that gives the next message."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Any, work: Awaitable[U]) -> U:
    """Wait for something, and return its result; cancel it, and raise `ClientDisconnect`, if the client of `request`,
    whose body has been read, goes away before."""
    done = asyncio.ensure_future(work)
    gone: list[asyncio.Task[None]] = []

    def watch() -> None:
        gone.append(asyncio.create_task(disconnected(request.receive)))
        gone[0].add_done_callback(lambda _: done.cancel())

    timer = asyncio.get_running_loop().call_later(WATCH_S, watch)  # a timer takes a tenth of a task's time
    try:
        return await done
    except asyncio.CancelledError:
        if gone and gone[0].done() and not gone[0].cancelled():
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        for task in gone:
            task.cancel()
        done.cancel()  # no effect if it is done


def json_answer(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Return an HTTP answer whose body is `value` in JSON. status: the HTTP status code. headers: more headers. Raises
    `UnsupportedError` for what JSON cannot represent."""
    return Response(write_json(value), status, headers, media_type="application/json")


def _lingering(answer: Any) -> Application:
    """An answer to a client that may still be sending its body."""

    async def respond(scope: Any, receive: Receive, send: Send) -> None:
        # One that expects a 100 (Continue) sends nothing until it gets that, which it would if a body were asked for.
        waits = any(name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"])
        await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": True})
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if waits else LINGER_S):
                while dropped <= LINGER_BYTES and (part := await receive()).get("more_body"):
                    dropped += len(part.get("body", b""))
        await send({"type": "http.response.body", "body": b""})

    return respond
