"""What both servers over HTTP have in common: how bodies are read and parsed, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

import rsn.host.serving.http as http
from rsn.base.errors import BoardError, UnsupportedError
from rsn.host.generation import Generation, Sampling
from rsn.host.serving import RequestTimeout
from rsn.host.serving.apart import Apart
from rsn.host.serving.arguments import Argument
from rsn.host.serving.completions import application as completions
from rsn.host.serving.core import APART_BYTES, BODIES, Core, stop_all
from rsn.host.serving.health import Health
from rsn.host.serving.http_binary import BinaryTensors
from rsn.host.serving.http_json import NotJson, parsed_json
from rsn.host.serving.metrics import Metrics
from rsn.host.serving.policy import TooLarge
from rsn.tests.effort import examples

from .served import Stub, serving
from .test_completions import Letters
from .test_generation import Scripted

pytestmark = pytest.mark.long


def test_parsing_in_a_process_of_its_own() -> None:
    with Apart(parsed_json) as apart:
        assert apart(b'{"a": [1, 2.5]}', 60) == {"a": [1, 2.5]}
        with pytest.raises(NotJson, match="JSON has no NaN"):
            apart(b"[NaN]", 60)
        hostile = b"[" + b"[[[[]]]]," * 700_000 + b"1]"
        with pytest.raises(TooLarge, match="to parse the body takes more than"):
            apart(hostile, 60)
        assert apart(b"[3]", 60) == [3]


def test_a_limit_of_memory_holds_within_that_of_the_process() -> None:
    code = (
        "import resource; from rsn.host.serving.apart import limited_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))\n"
        "for more in (1 << 24, 1 << 40):\n"
        "    with limited_memory(more):\n"
        "        print(resource.getrlimit(resource.RLIMIT_AS)[0] < 1 << 34)\n"
        "    print(resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 34)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 34))\n"
        "with limited_memory(1 << 40):\n"
        "    print(resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 33)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "True", "False", "True", "True"]


def test_a_process_that_ends_or_is_late_is_replaced() -> None:
    read: Callable[[bytes], Any] = eval  # a function that any process can import
    with Apart(read) as apart:
        with pytest.raises(BoardError, match="has ended"):
            apart(b"__import__('os')._exit(1)", 60)
        assert apart(b"1 + 1", 60) == 2
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=r"not parsed in 0\.05 s"):
            apart(b"__import__('time').sleep(60)", 0.05)
        assert time.monotonic() - began < 30
        assert apart(b"1 + 2", 60) == 3


class Both:
    """Both applications, each with a request that is good, and one that is large."""

    def __init__(self, kind: str, generation: Generation, **more: Any) -> None:
        self.is_text = kind == "text"
        if self.is_text:
            self.app, self.path = completions(generation, Letters(), "letters", **more), "/v1/completions"
        else:
            self.app, self.path = http.application(Stub(dict, Argument("x", "float32", ("n",))), **more), "/"

    def body(self, size: int) -> bytes:
        """A request of some bytes, at least."""
        good = b'{"prompt": "abc"' if self.is_text else b'{"inputs": {"x": [1]}'
        return good + b" " * max(0, size - len(good)) + b"}"

    def message(self, response: httpx.Response) -> str:
        error = response.json()["error"]
        return str(error["message"] if self.is_text else error)


@pytest.fixture(params=["text", "tensors"])
def both(request: pytest.FixtureRequest) -> Iterator[Callable[..., Both]]:
    decoder = Scripted(capacity=1000)
    with Generation(decoder) as generation:
        yield lambda **more: Both(request.param, generation, **more)


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://rsn")


def test_bodies_of_each_size_are_parsed(both: Callable[..., Both]) -> None:
    made = both()

    async def calls() -> list[httpx.Response]:
        async with client(made.app) as asking:
            return [await asking.post(made.path, content=made.body(n)) for n in (1, 10_000, APART_BYTES + 1)]

    answers = asyncio.run(calls())
    assert [x.status_code for x in answers] == [200] * 3
    if made.is_text:
        assert len({json.dumps(x.json()["usage"]) for x in answers}) == 1


def test_all_bodies_together_are_limited(both: Callable[..., Both]) -> None:
    made = both(limit_bytes=1000)

    async def calls() -> list[httpx.Response]:
        go = asyncio.Event()
        arrived: list[int] = []

        async def held() -> AsyncIterator[bytes]:
            yield made.body(900)
            arrived.append(900)
            await go.wait()

        async with client(made.app) as asking:
            holding = [asyncio.create_task(asking.post(made.path, content=held())) for _ in range(BODIES)]
            while len(arrived) < BODIES:
                await asyncio.sleep(0.01)
            refused = await asking.post(made.path, content=made.body(900))
            go.set()
            answers = await asyncio.gather(*holding)
            return [refused, *answers, await asking.post(made.path, content=made.body(900))]

    refused, *answers = asyncio.run(calls())
    assert "the bodies of other requests have more than" in made.message(refused)
    assert refused.headers["retry-after"] == "1"
    assert [x.status_code for x in answers] == [200] * (BODIES + 1)


def test_a_body_that_is_slow_when_the_server_stops(both: Callable[..., Both]) -> None:
    made = both()

    async def call() -> httpx.Response:
        async def slow() -> AsyncIterator[bytes]:
            yield b"{"
            stop_all(0.05)
            await asyncio.sleep(30)

        async with client(made.app) as asking:
            return await asking.post(made.path, content=slow())

    answer = asyncio.run(call())
    assert (answer.status_code, "the server stops" in made.message(answer)) == (503, True)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_text_that_takes_longer_than_a_server_that_stops_has(streamed: bool) -> None:
    """It ends with an error; one that is done in time is complete."""
    decoder = Scripted(capacity=1000)

    async def calls(tokens: int) -> httpx.Response:
        with Generation(decoder) as generation:
            app = completions(generation, Letters(), "letters")
            async with client(app) as asking:
                body = {"prompt": "abc", "max_tokens": tokens, "stream": streamed}
                before = decoder.calls
                text = asyncio.create_task(asking.post("/v1/completions", json=body))
                while decoder.calls == before:
                    await asyncio.sleep(0.005)
                stop_all(0.1 if tokens > 5 else 30.0)
                decoder.go.clear() if tokens > 5 else None
                await asyncio.sleep(0.3)
                decoder.go.set()
                return await text

    whole, cut = asyncio.run(calls(5)), asyncio.run(calls(900))
    assert whole.status_code == 200
    assert '"finish_reason": "length"' in whole.text.replace('":"', '": "')
    if streamed:
        *_, last, empty = cut.text.split("\n\n")
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (cut.status_code, empty, error["type"], error["code"]) == (200, "", "server_error", "Stopping")
        assert "[DONE]" in whole.text
    else:
        assert (cut.status_code, cut.json()["error"]["code"]) == (503, "unavailable")


def test_figures_of_texts() -> None:
    registry = CollectorRegistry()
    decoder = Scripted(slots=1, fails=(1, 5, 6))
    with Generation(decoder, queue=1, metrics=Metrics(registry), name="letters") as generation:

        def figure(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"rsn_{name}", {"runner": "letters"} | labels)

        assert figure("health", rsn_health="ready") == 1
        assert len(list(generation.submit([1], Sampling(max_tokens=3)))) == 3
        with pytest.raises(BoardError):
            list(generation.submit([1], Sampling(max_tokens=3)))
        decoder.go.clear()
        first = generation.submit([1], Sampling(max_tokens=9))
        while figure("queue_depth"):
            time.sleep(0.002)
        second = generation.submit([2])
        assert figure("queue_depth") == 1
        with pytest.raises(BoardError, match="full"):
            generation.submit([3])
        first.cancel("timeout"), second.cancel()
        decoder.go.set()
        list(first), list(second)
    counts = {outcome: figure("requests_total", outcome=outcome) for outcome in ("ok", "error", "full", "timeout")}
    assert counts == {"ok": 1, "error": 1, "full": 1, "timeout": 1}
    assert figure("requests_total", outcome="cancelled") == 1
    assert figure("board_failures_total") == 3
    assert figure("batch_fill_count") == figure("running_seconds_count") == decoder.calls - 3
    assert figure("waiting_seconds_count") == 2
    assert figure("health", rsn_health="closed") == 1


class Sharing(Scripted):
    """It runs nothing for a prompt that another slot has."""

    def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Any:
        is_known = any(held[: len(tokens)] == list(tokens) for held in self.held.values())
        logits = super().prefill_chunk(slot, tokens)
        if is_known:
            self.last_run = None
        return logits


def test_a_prompt_that_another_slot_has_is_no_run() -> None:
    registry, decoder = CollectorRegistry(), Sharing(slots=2)
    with Generation(decoder, metrics=Metrics(registry), name="letters") as generation:
        decoder.go.clear()
        answers = [generation.submit([1, 2], Sampling(max_tokens=3)) for _ in range(2)]
        decoder.go.set()
        list(answers[0]), list(answers[1])
    prompts, steps = 2, decoder.calls - 2
    figures = {
        name: registry.get_sample_value(f"rsn_{name}_count", {"runner": "letters"})
        for name in ("running_seconds", "batch_fill", "modelled_seconds", "waiting_seconds")
    }
    runs = prompts - 1 + steps
    assert figures == dict.fromkeys(figures, runs) | {"waiting_seconds": prompts}


def test_headers_and_idle_connections_have_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a server with a real socket: connections that send nothing, half a request, or one that is answered."""
    with serving("quick-headers") as (_, url):
        host, port = url.removeprefix("http://").split(":")

        def ends(sent: bytes) -> bytes:
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(sent)
                got = b""
                while part := connection.recv(1 << 16):
                    got += part
                return got

        assert ends(b"") == ends(b"GET /health HT") == b""
        answered = ends(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\nGET /hea")
        assert answered.count(b"HTTP/1.1 200") == 1
        with contextlib.closing(httpx.Client(base_url=url)) as again:
            assert again.get("/health").status_code == 200


def test_core_says_which_error_is_whose() -> None:
    core = Core[Any](
        parsed_json, Health, lambda status, message, field: {"error": message, "field": field}, [(NotJson, 418)],
        registry=None, timeout_s=1.0, limit_bytes=10,
    )  # fmt: skip

    async def echo(request: Any) -> Any:
        return http.json_answer({"got": await core.request(request)})

    async def calls() -> list[int]:
        async with client(core.application({"/": ("POST", echo)}, "unknown")) as asking:
            bodies = (b"[1]", b"[", b" " * 11, b'{"a":1,"a"')
            return [(await asking.post("/", content=body)).status_code for body in bodies]

    assert asyncio.run(calls()) == [200, 418, 413, 418]


# -- binary bodies


ANY = st.sampled_from(["float32", "float16", "float64", "int64", "int8", "uint8", "bool"])


@examples(300, 30)
@given(st.data())
def test_tensors_there_and_back(data: st.DataObject) -> None:
    """Every bit of them, of any dtype and shape, also of 0 elements and of none."""
    made: dict[str, np.ndarray[Any, Any]] = {}
    for name in data.draw(st.lists(st.sampled_from(["x", "input_ids", "ÿ"]), min_size=1, unique=True)):
        dtype, shape = data.draw(ANY), data.draw(st.lists(st.integers(0, 3), max_size=3))
        count = math.prod(shape) * np.dtype(dtype).itemsize
        bits = data.draw(st.binary(min_size=count, max_size=count))
        bits = bytes(byte & 1 for byte in bits) if dtype == "bool" else bits
        made[name] = np.frombuffer(bits, dtype).reshape(shape)
    form = BinaryTensors([Argument(name, str(x.dtype), x.shape) for name, x in made.items()])
    got = form.read(form.write(made)).inputs
    assert got.keys() == made.keys()
    for name, x in made.items():
        assert (got[name].dtype, got[name].shape, got[name].tobytes()) == (x.dtype, x.shape, x.tobytes())


def test_names_of_results() -> None:
    form = BinaryTensors([])

    def names(result: Any) -> dict[str, tuple[int, ...]]:
        return {name: x.shape for name, x in safetensors.numpy.load(form.write(result)).items()}

    one = np.ones((2, 3), np.float32)
    assert names(one) == names(one.T.copy().T) == {"outputs": (2, 3)}
    assert names({"a": one, "b": None, "c": (one, [2.5])}) == {"a": (2, 3), "c.0": (2, 3), "c.1.0": ()}
    np.testing.assert_array_equal(safetensors.numpy.load(form.write(one.T))["outputs"], one.T)
    for wrong in ("text", {"a": object()}, {"a": np.array([1j])}, {"a": {"b": one}, "a.b": one}):
        with pytest.raises(UnsupportedError):
            form.write(wrong)


def test_binary_requests_and_answers() -> None:
    app = http.application(Stub(lambda inputs: {"y": inputs["x"] * 2}, Argument("x", "float32", ("n", 2))))
    x = np.array([[1, 2], [0.1, -np.inf]], np.float32)
    octets = "application/octet-stream"

    async def call(content: bytes, **headers: str) -> httpx.Response:
        async with client(app) as asking:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return await asking.post("/", content=content, headers=named)

    body = safetensors.numpy.save({"x": x})
    both = asyncio.run(call(body, content_type=octets, accept=octets))
    assert both.headers["content-type"] == octets
    np.testing.assert_array_equal(safetensors.numpy.load(both.content)["y"], x * 2)
    assert asyncio.run(call(body, content_type=octets)).json() == {
        "outputs": {"y": [[2, 4], [0.20000000298023224, None]]}
    }
    text = asyncio.run(call(b'{"inputs": {"x": [[1, 2]]}}', accept=f"{octets}, application/json;q=0.5"))
    np.testing.assert_array_equal(safetensors.numpy.load(text.content)["y"], [[2, 4]])
    large = np.zeros((APART_BYTES, 2), np.float32)
    answer = asyncio.run(call(safetensors.numpy.save({"x": large}), content_type=octets, accept=octets))
    assert safetensors.numpy.load(answer.content)["y"].shape == large.shape
    for wrong, message in (
        (b"", "not in the safetensors format"),
        (body[:-1], "not in the safetensors format"),
        (b"\xff" * 20, "not in the safetensors format"),
        (safetensors.numpy.save({"y": x}), "no argument y"),
        (safetensors.numpy.save({"x": x.astype(np.float64)}), "x is float64 (2, 2); it should be x: float32 (n, 2)"),
        (safetensors.numpy.save({"x": x[0]}), "x is float32 (2,); it should be x: float32 (n, 2)"),
    ):
        refused = asyncio.run(call(wrong, content_type=octets, accept=octets))
        assert (refused.status_code, message in refused.json()["error"]) == (422, True), refused.text
