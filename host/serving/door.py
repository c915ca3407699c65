"""What a server refuses before it reads a body: requests without a key, with too long headers, or when it stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple

HEADER_BYTES = 1 << 15
"""The most bytes of a request's headers with its path."""
OPEN = "/health"
"""The path that takes no key, and is answered when the server stops: load balancers ask it."""
STOPS = "the server stops"

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class RequestRefusal(NamedTuple):
    """Why a request is refused. status: the HTTP status code. message: the reason. headers: of the answer."""

    status: int
    message: str
    headers: dict[str, str]


class Keys:
    """The keys of which each request must have one, in `Authorization: Bearer KEY`. keys: empty for a server that takes
    all requests."""

    def __init__(self, keys: Collection[str]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def refusal(self, given: str | None) -> RequestRefusal | None:
        """Return why a request is refused, None if it is not. given: the request's Authorization header, None without
        one.

        All keys are compared, by digests of one length, so that the time tells nothing about a key.
        """
        if not self._digests:
            return None
        scheme, _, key = (given or "").partition(" ")
        digest = sha256(key.strip().encode()).digest()
        known = sum(compare_digest(digest, own) for own in self._digests)
        if known and scheme.lower() == "bearer":
            return None
        what = "no API key" if given is None else "a wrong API key"
        return RequestRefusal(
            401, f"{what}: this server takes `Authorization: Bearer KEY`", {"www-authenticate": "Bearer"}
        )


class Door:
    """An ASGI application in front of another one. It refuses requests without a key, requests whose headers are too
    long and, while the server stops, all requests; /health needs no key and is always answered. app: the other
    application. keys: of which a request must have one; empty for none. refuse: returns the ASGI application that
    answers a refused request. stops: returns whether the server stops."""

    def __init__(
        self,
        app: Application,
        keys: Collection[str],
        refuse: Callable[[RequestRefusal], Application],
        stops: Callable[[], bool],
    ) -> None:
        self._app, self._keys, self._refuse, self._stops = app, Keys(keys), refuse, stops

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request, or let the other application answer it."""
        why = self._why(scope) if scope["type"] == "http" else None
        await (self._app if why is None else self._refuse(why))(scope, receive, send)

    def _why(self, scope: Scope) -> RequestRefusal | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if self._stops() and scope["path"] != OPEN:
            return RequestRefusal(503, STOPS, {"retry-after": "1"})
        address = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if sum(len(name) + len(value) for name, value in headers) + address > HEADER_BYTES:
            return RequestRefusal(431, f"the headers have more than {HEADER_BYTES} bytes", {})
        if scope["path"] == OPEN:
            return None
        given = next((value.decode("latin-1") for name, value in headers if name == b"authorization"), None)
        return self._keys.refusal(given)
