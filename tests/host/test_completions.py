"""Generated text over HTTP: answers, events, mistakes, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rsn.host.generation import Generation, Sampling
from rsn.host.generation.text import TextPieces
from rsn.host.serving.completions import application

from .test_generation import Scripted, alone

pytestmark = pytest.mark.long


class Letters:
    """A tokenizer of letters: token k is that of code 32 + k."""

    eos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) - 32 for c in text]}

    def decode(
        self, tokens: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False
    ) -> str:
        return "".join(chr(32 + token) for token in tokens)


class Bytes(Letters):
    """Of which several tokens make a character."""

    def decode(
        self, tokens: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False
    ) -> str:
        return bytes(tokens).decode(errors="replace")


def asked(body: Any, *, decoder: Scripted | None = None, path: str = "/v1/completions", **more: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        with Generation(decoder or Scripted()) as generation:
            given = {name: more.pop(name) for name in ("ends", "timeout_s") if name in more}
            transport = httpx.ASGITransport(application(generation, Letters(), "letters", **given))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                content = body if isinstance(body, bytes) else json.dumps(body)
                return await client.request(more.pop("method", "POST"), path, content=content, **more)

    return asyncio.run(call())


def text_of(prompt: str, tokens: int) -> str:
    letters = Letters()
    return letters.decode(alone(letters(prompt)["input_ids"], Sampling(tokens))[0], skip_special_tokens=True)


def test_a_text() -> None:
    answer = asked({"model": "letters", "prompt": "abc", "max_tokens": 7, "temperature": 0}).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text_of("abc", 7), "length")
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    tokens = asked({"prompt": Letters()("abc")["input_ids"], "max_tokens": 7, "temperature": 0}).json()
    assert tokens["choices"] == answer["choices"]


def test_events() -> None:
    answer = asked({"prompt": "abc", "max_tokens": 7, "temperature": 0, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, last, empty = answer.text.split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(chunk["text"] for chunk in chunks) == text_of("abc", 7)
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_a_stop_string() -> None:
    whole = text_of("abc", 12)
    stop = whole[4:6]
    answer = asked({"prompt": "abc", "max_tokens": 12, "temperature": 0, "stop": [stop, "not there"]}).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (whole[:4], "stop")


def test_fields_that_say_nothing() -> None:
    """As null, or with the value that is the only one; a negative seed is one."""
    body = {"prompt": "abc", "max_tokens": 7, "temperature": 0}
    fields = [
        "model",
        "n",
        "best_of",
        "echo",
        "logprobs",
        "suffix",
        "stream",
        "stop",
        "seed",
        "top_p",
        "presence_penalty",
    ]
    more = dict.fromkeys(fields) | {"frequency_penalty": 0.0, "user": "me"}
    assert asked(body | more).json()["choices"] == asked(body).json()["choices"]
    random = {"prompt": "abc", "max_tokens": 7, "seed": -1}
    assert asked(random).json()["choices"] == asked(random).json()["choices"]


def test_tokens_that_end_a_text() -> None:
    """Those of the model beside the tokenizer's."""
    tokens, _ = alone(Letters()("abc")["input_ids"], Sampling(7))
    at = next(i for i, token in enumerate(tokens) if token not in tokens[:i] and i)
    answer = asked({"prompt": "abc", "max_tokens": 7, "temperature": 0}, ends=(tokens[at], 0)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == at


@pytest.mark.parametrize("streamed", [False, True])
def test_a_token_that_does_not_come(streamed: bool) -> None:
    decoder = Scripted()
    decoder.go.clear()
    timer = threading.Timer(1.0, decoder.go.set)
    timer.start()
    answer = asked({"prompt": "abc", "stream": streamed}, decoder=decoder, timeout_s=0.05)
    timer.join()
    assert answer.status_code == (200 if streamed else 504)
    assert "no token came in 0.05 s" in answer.text


def test_a_prompt_that_is_too_long_is_not_tokenized() -> None:
    class Never(Letters):
        def __call__(self, text: str) -> dict[str, list[int]]:
            raise AssertionError("tokenized")

    async def call() -> httpx.Response:
        with Generation(Scripted()) as generation:
            transport = httpx.ASGITransport(application(generation, Never(), "letters"))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                return await client.post("/v1/completions", json={"prompt": "a" * 60_000})

    answer = asyncio.run(call())
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "prompt")
    assert error["message"].startswith("the prompt has 60000 characters; a sequence has at most ")


def test_others_are_answered_while_a_prompt_is_tokenized() -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(Letters):
        def __call__(self, text: str) -> dict[str, list[int]]:
            begun.set()
            assert go.wait(10)
            return super().__call__(text)

    async def call() -> list[int]:
        with Generation(Scripted()) as generation:
            transport = httpx.ASGITransport(application(generation, Slow(), "letters"))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                text = asyncio.create_task(client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 2}))
                await asyncio.to_thread(begun.wait, 10)
                health = await client.get("/health")
                done = text.done()
                go.set()
                return [health.status_code, done, (await text).status_code]

    assert asyncio.run(call()) == [200, False, 200]


def test_a_body_that_does_not_come() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"prompt": "a"'
        await asyncio.sleep(0.5)
        yield b"}"

    async def call() -> httpx.Response:
        with Generation(Scripted()) as generation:
            transport = httpx.ASGITransport(application(generation, Letters(), "letters", timeout_s=0.05))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                return await client.post("/v1/completions", content=slowly())

    answer = asyncio.run(call())
    assert (answer.status_code, answer.json()["error"]["message"]) == (408, "the body did not arrive in 0.05 s")


def test_pieces_of_text() -> None:
    pieces = TextPieces(Bytes(), ["END"])
    found = [pieces.add(byte) for byte in "é E ENx".encode()]
    assert found == ["", "é", " ", "", "E ", "", "", "ENx"]
    pieces = TextPieces(Bytes(), ["END"])
    assert "".join([*(pieces.add(byte) for byte in b"abENDc"), pieces.rest()]) == "ab"
    pieces = TextPieces(Bytes(), ["END"])
    assert "".join([*(pieces.add(byte) for byte in b"abEN"), pieces.rest()]) == "abEN"


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b"{", None, "not JSON"),
        ([], None, "not an object"),
        ({}, "prompt", "prompt is missing"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [1.5]}, "prompt", "a list of tokens"),
        ({"prompt": "a", "model": "other"}, "model", "this server has 'letters'"),
        ({"prompt": "a", "n": 2}, "n", "does not support"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens", "a whole number"),
        ({"prompt": "a", "top_p": 2}, "top_p", "top_p is 2"),
        ({"prompt": "a", "temperature": 10**400}, "temperature", "it should be a number from 0 to"),
        (b'{"prompt": "a", "temperature": NaN}', None, "JSON has no NaN"),
        (b'{"prompt": "a", "prompt": "b"}', None, "'prompt' twice"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature", "temperature is inf"),
        ({"prompt": "a", "stop": [1]}, "stop", "a string or several"),
        ({"prompt": "a", "stream": 1}, "stream", "true or false"),
        ({"prompt": "a", "seed": 1.5}, "seed", "a whole number"),
        ({"prompt": "a", "n": True}, "n", "does not support"),
        ({"prompt": "a", "echo": 0}, "echo", "does not support"),
        (b'{"prompt": "\\ud800 4"}', "prompt", "half of a character"),
        ({"prompt": "a", "wat": 1}, "wat", "unknown field 'wat'"),
        ({"prompt": "a", "w" * 5000: 1}, "w" * 100, f"unknown field '{'w' * 100}'..."),
        ({"prompt": "a" * 30}, "prompt", "a prompt of 30 tokens"),
        ({"prompt": [1] * 21}, "prompt", "the prompt has 21 tokens; a sequence has at most 20"),
        ({"prompt": [96]}, "prompt", "up to 96"),
    ],
)
def test_mistakes(body: Any, field: str | None, message: str) -> None:
    answer = asked(body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert message in error["message"]


def test_other_paths() -> None:
    assert asked({}, path="/v1/models", method="GET").json()["data"][0]["id"] == "letters"
    assert asked({}, path="/health", method="GET").json()["state"] == "ready"
    assert asked({}, path="/").status_code == 404
    assert asked({}, method="GET").headers["allow"] == "POST"


def test_a_board_that_is_gone() -> None:
    answer = asked({"prompt": "a"}, decoder=Scripted(fails=(1, 2)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    events = asked({"prompt": "a", "stream": True}, decoder=Scripted(fails=(2, 3))).text.split("\n\n")
    assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "BoardError"


def test_a_client_that_goes_away_frees_its_slot() -> None:
    decoder = Scripted(slots=1, capacity=20)
    decoder.go.clear()

    async def call() -> None:
        with Generation(decoder) as generation:
            app = application(generation, Letters(), "letters")
            body = json.dumps({"prompt": "abc", "max_tokens": 17, "stream": True}).encode()
            messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

            async def receive() -> Any:
                if len(messages) == 1:
                    await asyncio.sleep(0.05)
                return messages.pop(0) if messages else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                pass

            scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
            await app(scope | {"http_version": "1.1", "asgi": {"spec_version": "2.3"}}, receive, send)
            decoder.go.set()
            until = time.monotonic() + 5
            while decoder.held and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert decoder.calls < 10
            assert not decoder.held

    asyncio.run(call())
