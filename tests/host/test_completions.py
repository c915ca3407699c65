"""Generated text over HTTP: answers, events, mistakes, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.host.generation import Generation, Sampling
from rsn.host.generation.text import TextPieces
from rsn.host.serving.completions import application
from rsn.tests.effort import examples

from .test_generation import Scripted, alone, logits_of

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


class Chats(Letters):
    """With a template, which takes a chat that begins with a system, or none."""

    chat_template = "yes"

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return super().__call__(text)

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert (tokenize, add_generation_prompt) == (False, True)
        if any(message["role"] == "system" for message in messages[1:]):
            raise ValueError("a system comes first")
        return "".join(f"{message['role'][0]}:{message['content']};" for message in messages) + "a:"


def asked(body: Any, *, decoder: Scripted | None = None, path: str = "/v1/completions", **more: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        with Generation(decoder or Scripted()) as generation:
            given = {name: more.pop(name) for name in ("ends", "timeout_s") if name in more}
            transport = httpx.ASGITransport(application(generation, Chats(), "letters", **given))
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
        "stream_options",
        "logit_bias",
    ]
    more = dict.fromkeys(fields) | {
        "frequency_penalty": 0.0,
        "user": "me",
        "logit_bias": {},
        "suffix": "",
        "best_of": 1,
    }
    assert asked(body | more).json()["choices"] == asked(body).json()["choices"]
    random = {"prompt": "abc", "max_tokens": 7, "seed": -1}
    assert asked(random).json()["choices"] == asked(random).json()["choices"]


CHAT_PATH = "/v1/chat/completions"
HELLO = {"role": "user", "content": "a"}


def told(answer: httpx.Response) -> list[Any]:
    """The events of an answer, but the last one."""
    *events, last, empty = answer.text.split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("more", [{}, {"top_logprobs": 2}])
def test_a_chat(more: Any) -> None:
    messages = [{"role": "developer", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    body = {"messages": messages, "temperature": 0, "max_completion_tokens": 5, "logprobs": bool(more)} | more
    answer = asked(body, path=CHAT_PATH).json()
    (choice,) = answer["choices"]
    wanted = text_of("s:be;u:hi;a:", 5)
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": wanted, "refusal": None}
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    events = told(asked(body | {"stream": True, "stream_options": {"include_usage": True}}, path=CHAT_PATH))
    assert events.pop() | {"id": ""} == events[0] | {"id": "", "choices": [], "usage": answer["usage"]}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert all(event["usage"] is None for event in events)
    parts = [event["choices"][0] for event in events]
    assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    assert "".join(part["delta"].get("content", "") for part in parts) == wanted
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]
    if more:
        shown = choice["logprobs"]["content"]
        assert shown == [x for part in parts for x in part["logprobs"]["content"]]
        tokens = Letters()("s:be;u:hi;a:")["input_ids"]
        for x in shown:
            logits = logits_of(tokens).astype(float)
            logprobs = logits - np.log(np.exp(logits).sum())
            assert x["logprob"] == pytest.approx(logprobs.max())
            assert [chr(32 + k) for k in np.argsort(-logprobs)[:2]] == [y["token"] for y in x["top_logprobs"]]
            assert x["token"] == x["top_logprobs"][0]["token"] == bytes(x["bytes"]).decode()
            tokens.append(ord(x["token"]) - 32)


def test_an_answer_of_a_chat_takes_what_room_there_is() -> None:
    answer = asked({"messages": [{"role": "user", "content": "hello"}], "temperature": 0}, path=CHAT_PATH).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 11, "total_tokens": 21}


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "messages", "messages is missing"),
        ({"messages": []}, "messages", "not empty"),
        ({"messages": ["a"]}, "messages", "messages[0] is 'a'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "messages[0].role is 'tool'"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content is null"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "parts of text"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages", "tool_calls is not supp"),
        ({"messages": [{"role": "user", "content": "a", "name": 1}]}, "messages", "name is 1"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, "messages", "first"),
        ({"messages": [{"role": "user", "content": "a" * 30}]}, "messages", "has 35 tokens"),
        ({"messages": [{"role": "user", "content": "a" * 3000}]}, "messages", "has 3000 characters"),
        ({"messages": [HELLO], "top_logprobs": 1}, "top_logprobs", "needs logprobs"),
        (
            {"messages": [{"role": "user", "content": "a"}], "tools": [{"a": 1}]},
            "tools",
            "supported is only null or []",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "max_completion_tokens": 2},
            "max_tokens",
            "1,",
        ),
        ({"messages": [HELLO], "echo": True}, "echo", "unknown field"),
    ],
)
def test_mistakes_in_chats(body: Any, field: str, message: str) -> None:
    answer = asked(body, path=CHAT_PATH)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert message in error["message"]


def test_lists_of_prompts_and_several_answers() -> None:
    """Each is that of the prompt alone; the first one has the seed of the request."""
    body = {"max_tokens": 4, "seed": 3, "logprobs": 0}
    answer = asked(body | {"prompt": ["abc", "xy"], "n": 3}).json()
    assert [x["index"] for x in answer["choices"]] == list(range(6))
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}
    for at, prompt in ((0, "abc"), (3, "xy")):
        alone_ = asked(body | {"prompt": prompt, "n": 3}).json()["choices"]
        assert [x["text"] for x in alone_] == [x["text"] for x in answer["choices"][at : at + 3]]
        assert len({x["text"] for x in alone_}) == 3
        assert asked(body | {"prompt": [Letters()(prompt)["input_ids"]]}).json()["choices"] == alone_[:1]
    events = told(asked(body | {"prompt": ["abc", "xy"], "n": 3, "stream": True}))
    texts = [""] * 6
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [x["text"] for x in answer["choices"]]


def test_a_queue_without_room_for_all_answers() -> None:
    """Either all answers of a request are queued, or none runs."""
    decoder = Scripted(slots=1)
    decoder.go.clear()

    async def call() -> httpx.Response:
        with Generation(decoder, queue=4) as generation:
            transport = httpx.ASGITransport(application(generation, Chats(), "letters"))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                body = {"prompt": "a", "max_tokens": 15}
                refused = await client.post("/v1/completions", json=body | {"n": 9})
                decoder.go.set()
                answer = await client.post("/v1/completions", json=body | {"n": 3, "temperature": 0})
                assert [choice["text"] for choice in answer.json()["choices"]] == [text_of("a", 15)] * 3
                return refused

    refused = asyncio.run(call())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert decoder.calls <= 2 + 3 * 15


def test_echo_and_logprobs_of_completions() -> None:
    body = {"prompt": "abc", "max_tokens": 4, "temperature": 0}
    made = text_of("abc", 4)
    assert asked(body | {"echo": True}).json()["choices"][0]["text"] == "abc" + made
    assert (
        asked(body | {"echo": True, "prompt": Letters()("abc")["input_ids"]}).json()["choices"][0]["text"]
        == "abc" + made
    )
    events = told(asked(body | {"echo": True, "stream": True}))
    assert "".join(event["choices"][0]["text"] for event in events) == "abc" + made
    scores = asked(body | {"logprobs": 2}).json()["choices"][0]["logprobs"]
    assert "".join(scores["tokens"]) == made
    assert scores["text_offset"] == [0, 1, 2, 3]
    held = body | {"logprobs": 2, "stop": [made[:3] + "\x7f"]}  # its beginning comes, and the rest does not
    assert asked(held).json()["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 3]
    tops = [max(top.items(), key=lambda x: x[1]) for top in scores["top_logprobs"]]
    assert tops == list(zip(scores["tokens"], scores["token_logprobs"], strict=True))


def test_penalties_and_biases() -> None:
    """A bias of -100 forbids a token, one of 100 makes it certain, and penalties hold tokens back."""
    body = {"prompt": "abc", "max_tokens": 12, "temperature": 0}
    text = asked(body).json()["choices"][0]["text"]
    without = asked(body | {"logit_bias": {str(ord(text[0]) - 32): -100}}).json()["choices"][0]["text"]
    assert text[0] not in without
    assert asked(body | {"logit_bias": {"33": 100}}).json()["choices"][0]["text"] == "A" * 12
    often, held = (
        asked(body | {"logit_bias": {"33": 3}, "presence_penalty": penalty}).json()["choices"][0]["text"]
        for penalty in (0, 2)
    )
    tokens, made = Letters()("abc")["input_ids"], list[int]()
    for _ in range(12):
        logits = logits_of([*tokens, *made])
        logits[33] += 3
        logits[list(set(made))] -= 2
        made.append(int(logits.argmax()))
    assert held == "".join(chr(32 + token) for token in made)
    assert held.count("A") < often.count("A")
    often = asked(body | {"logit_bias": {"33": 100, "34": 99}, "frequency_penalty": 2}).json()["choices"][0]["text"]
    assert set(often[:8]) == {"A", "B"}
    assert 3 <= often[:8].count("A") <= 5


@examples(60, 3)
@given(st.data())
def test_an_answer_does_not_depend_on_who_shares_the_batch(data: st.DataObject) -> None:
    """Whatever requests come with it, and when they leave."""
    number = st.integers(1, 12)
    bodies = data.draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "prompt": st.lists(st.integers(0, 95), min_size=1, max_size=6),
                    "max_tokens": number,
                    "n": st.integers(1, 3),
                },
                optional={
                    "temperature": st.sampled_from([0, 0.5, 1.5]),
                    "top_p": st.sampled_from([0.5, 1]),
                    "top_k": st.integers(0, 5),
                    "presence_penalty": st.sampled_from([-1, 2]),
                    "frequency_penalty": st.sampled_from([-1, 0.5]),
                    "logit_bias": st.dictionaries(number.map(str), st.integers(-9, 9)),
                    "logprobs": st.integers(0, 2),
                    "stop": st.sampled_from(["A", ["B", "CD"]]),
                },
            ),
            min_size=2,
            max_size=6,
        )
    )
    bodies = [{"seed": i} | body for i, body in enumerate(bodies)]

    async def together() -> list[Any]:
        with Generation(Scripted(slots=data.draw(st.integers(1, 4)))) as generation:
            transport = httpx.ASGITransport(application(generation, Chats(), "letters"))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                answers = [client.post("/v1/completions", json=body) for body in bodies]
                return [answer.json() for answer in await asyncio.gather(*answers)]

    for body, answer in zip(bodies, asyncio.run(together()), strict=True):
        assert answer["choices"] == asked(body).json()["choices"]


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
        ({"prompt": "a", "n": 200}, "n", "a whole number from 1 to 128"),
        ({"prompt": ["a"] * 5, "n": 100}, "n", "n is 100 for 5 prompts"),
        ({"prompt": ["a"] * 21}, "prompt", "there may be 20"),
        ({"prompt": ["a", 5]}, "prompt", "prompt is 5"),
        ({"prompt": "a", "best_of": 3}, "best_of", "this server makes n (1)"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "logprobs", "logprobs with echo"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "supported is only null"),
        ({"prompt": "a", "presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
        ({"prompt": "a", "logit_bias": {"a": 1}}, "logit_bias", "by token"),
        ({"prompt": "a", "logit_bias": {"96": 1}}, "logit_bias", "the vocabulary has 96"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"prompt": "a", "stream": True, "stream_options": {"other": 1}}, "stream_options", "include_usage"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens", "a whole number"),
        ({"prompt": "a", "top_p": 2}, "top_p", "top_p is 2"),
        ({"prompt": "a", "temperature": 10**400}, "temperature", "it should be a number from 0 on"),
        (b'{"prompt": "a", "temperature": NaN}', None, "JSON has no NaN"),
        (b'{"prompt": "a", "prompt": "b"}', None, "'prompt' twice"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature", "a number too large for a float"),
        ({"prompt": "a", "stop": [1]}, "stop", "a string or several"),
        ({"prompt": "a", "stream": 1}, "stream", "true or false"),
        ({"prompt": "a", "seed": 1.5}, "seed", "a whole number"),
        ({"prompt": "a", "n": True}, "n", "n is true"),
        ({"prompt": "a", "echo": 0}, "echo", "true or false"),
        (b'{"prompt": "\\ud800 4"}', "prompt", "half of a character"),
        ({"prompt": "a", "wat": 1}, "wat", "unknown field 'wat'"),
        ({"prompt": "a", "w" * 5000: 1}, "w" * 100, f"unknown field '{'w' * 100}'..."),
        ({"prompt": "a" * 30}, "prompt", "the prompt has 30 tokens; a sequence has at most 20"),
        ({"prompt": [1] * 21}, "prompt", "the prompt has 21 tokens; a sequence has at most 20"),
        ({"prompt": [96]}, "prompt", "0 to 95"),
    ],
)
def test_mistakes(body: Any, field: str | None, message: str) -> None:
    answer = asked(body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert message in error["message"]


def test_other_paths() -> None:
    assert asked({}, path="/v1/models", method="GET").json()["data"][0]["id"] == "letters"
    assert asked({}, path="/v1/models/letters", method="GET").json()["object"] == "model"
    for answer in (asked({}, path="/v1/models/b", method="GET"), asked({"prompt": "a", "model": "b"})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
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
