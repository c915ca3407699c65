"""What servers over HTTP refuse before they read a body: keys, headers, connections, and requests when they stop."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from subprocess import PIPE, Popen
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rsn.cli.main import main
from rsn.host.generation import Generation
from rsn.host.serving.arguments import Argument
from rsn.host.serving.completions import application as completions
from rsn.host.serving.core import LINGER_BYTES, stop_all
from rsn.host.serving.door import HEADER_BYTES, Keys
from rsn.host.serving.http import application, is_reached_from_outside, listener

from .rigged import COLUMNS
from .served import Stub, serving
from .test_completions import Letters
from .test_generation import Scripted

pytestmark = pytest.mark.long

KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
TENSORS = json.dumps({"inputs": {"x": [1]}}).encode()


@given(
    st.lists(KEYS, max_size=3), KEYS, st.sampled_from(["Bearer {}", "bearer   {}", "Basic {}", "{}", "Bearer", None])
)
def test_a_request_needs_one_of_the_keys(keys: list[str], key: str, form: str | None) -> None:
    why = Keys(keys).refusal(None if form is None else form.format(key))
    fits = form is not None and form.lower().startswith("bearer ") and key in keys
    assert (why is None) is (fits or not keys)
    if why is not None:
        assert (why.status, why.headers) == (401, {"www-authenticate": "Bearer"})
        assert not any(own in why.message for own in keys if len(own) > 3)


def asked(app: Any, path: str, content: Any = b"", **headers: str) -> httpx.Response:
    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://rsn") as client:
            sent = {name: value.encode("latin-1") for name, value in headers.items()}
            return await client.request("POST" if content else "GET", path, content=content, headers=sent)

    return asyncio.run(call())


def tensors(**more: Any) -> Any:
    return application(Stub(dict, Argument("x", "float32", ("n",))), **more)


def test_keys_of_a_server_of_tensors() -> None:
    app = tensors(keys=["one", "two"])
    for path in ("/", "/metrics", "/nothing"):
        refused = asked(app, path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json() == {"error": "no API key: this server takes `Authorization: Bearer KEY`"}
    assert asked(app, "/health").status_code == 200
    assert asked(app, "/", TENSORS, authorization="Bearer three").status_code == 401
    assert asked(app, "/", TENSORS, authorization="Bearer tw\xf6").status_code == 401
    assert [asked(app, "/", TENSORS, authorization=f"Bearer {key}").status_code for key in ("one", "two")] == [200, 200]


def test_keys_of_a_server_of_texts() -> None:
    """Its errors have the shape of OpenAI's."""
    with Generation(Scripted()) as generation:
        app = completions(generation, Letters(), "letters", keys=["one"])
        body = b'{"prompt": "abc", "max_tokens": 2}'
        refused = asked(app, "/v1/completions", body, authorization="Bearer on")
        assert refused.status_code == 401
        assert refused.json()["error"] == {
            "message": "a wrong API key: this server takes `Authorization: Bearer KEY`",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
        assert asked(app, "/v1/models").status_code == 401
        assert asked(app, "/v1/completions", body, authorization="Bearer one").status_code == 200


def test_a_body_without_a_key_is_hardly_read() -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        while read < 100 * LINGER_BYTES:
            read += 1 << 16
            yield bytes(1 << 16)

    refused = asked(tensors(keys=["one"]), "/", body())
    assert (refused.status_code, refused.headers["connection"]) == (401, "close")
    assert read <= LINGER_BYTES + (2 << 16)


@pytest.mark.parametrize("where", ["header", "query"])
def test_long_headers(where: str) -> None:
    long = "a" * HEADER_BYTES
    app = tensors()
    refused = asked(app, "/", x=long) if where == "header" else asked(app, f"/?{long}")
    assert (refused.status_code, refused.json()) == (431, {"error": f"the headers have more than {HEADER_BYTES} bytes"})
    assert asked(app, "/", x=long[: HEADER_BYTES // 2]).status_code == 200


def test_requests_to_a_server_that_stops() -> None:
    app = tensors()
    assert asked(app, "/health").status_code == 200

    async def calls() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://rsn") as client:
            stop_all(30)
            return [await client.get(path) for path in ("/", "/health")]

    refused, health = asyncio.run(calls())
    assert refused.json() == {"error": "the server stops"}
    assert (health.json()["state"], health.json()["error"]) == ("closed", "the server stops")
    assert {(x.status_code, x.headers["retry-after"]) for x in (refused, health)} == {(503, "1")}


# -- with real sockets


def test_a_server_that_stops_tells_others_while_it_answers() -> None:
    with serving("slow", "--timeout", "20") as (process, url), httpx.Client(base_url=url, timeout=20) as client:
        body = {"inputs": {"x": [[[0.5] * COLUMNS] * 8], "lengths": [8]}}
        answers: list[int] = []
        running = threading.Thread(target=lambda: answers.append(client.post("/", json=body).status_code))
        running.start()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        refused = httpx.post(url, json=body)
        running.join()
        assert (refused.status_code, refused.headers["retry-after"], answers) == (503, "1", [200])
        assert process.wait(20) == 0


def test_connections_and_headers_are_limited() -> None:
    with serving("attention", "--connections", "3") as (_, url):
        host, port = url.removeprefix("http://").split(":")

        def connected() -> socket.socket:
            return socket.create_connection((host, int(port)), timeout=30)

        held = [connected() for _ in range(3)]
        time.sleep(0.2)
        with connected() as one:
            got = one.recv(1 << 16)
            assert got.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in got
        held.pop().close()
        time.sleep(0.2)
        assert httpx.get(f"{url}/health").status_code == 200
        with held.pop() as one:
            one.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n")
            with suppress(OSError):  # it is closed early
                for k in range(2 * HEADER_BYTES // 4000 + 2):
                    one.sendall(f"x{k}: {'a' * 4000}\r\n".encode())
            assert one.recv(1 << 16)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")


def test_who_reaches_a_server() -> None:
    for host, is_reached in (("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)):
        with listener(host, 0) as sock:
            assert is_reached_from_outside(sock) is is_reached


def test_a_server_for_other_computers_says_so() -> None:
    for options, said in (([], "without a key"), (["--api-key", "k"], "with a key")):
        command = [sys.executable, "-m", "rsn.tests.host.served", "attention", "--host", "0.0.0.0", "--port", "0"]
        with Popen([*command, *options], stdout=PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().rstrip().endswith(f"; other computers reach it, {said}")
            process.kill()


@pytest.mark.parametrize(
    ("options", "variable", "message"),
    [
        (["--api-key", ""], None, "without spaces"),
        (["--api-key", "a b"], None, "without spaces"),
        (["--api-key", "\xe4"], None, "without spaces"),
        ([], "", "RSN_API_KEY has no key"),
        ([], "  ", "RSN_API_KEY has no key"),
    ],
)
def test_keys_that_are_none(
    options: list[str], variable: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv("RSN_API_KEY", variable)
    result = CliRunner().invoke(main, ["serve", "x.rsnmodel", "--port", "0", *options])
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSN_API_KEY", "one two")
    with serving("attention") as (_, url):
        found = [
            httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code for key in ("one", "two", "one two")
        ]
        assert found == [200, 200, 401]
