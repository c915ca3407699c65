"""The clients that people use, over a real connection: whole answers, streams, errors, time-outs, cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from rsn.host.generation import Generation
from rsn.host.serving import completions, texts

from .soak_generation import served
from .test_completions import Chats, text_of
from .test_generation import Scripted
from .test_texts import ENCODER, RERANKER, ids, scored, server, vector
from .test_texts import Letters as EncoderLetters

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.long

CHAT = [{"role": "user", "content": "hi"}]
SAID = text_of("u:hi;a:", 5)


class Served:
    """A server of generated texts, one of vectors, and one of scores. decoder: of the first one."""

    def __init__(self, stack: ExitStack) -> None:
        self.decoder = Scripted(slots=4)
        generation = stack.enter_context(Generation(self.decoder))
        self.text = f"http://{stack.enter_context(served(completions.application(generation, Chats(), 'letters')))}/v1"
        vectors = texts.application(server(), ENCODER, EncoderLetters())
        self.vectors = f"http://{stack.enter_context(served(vectors))}/v1"
        scores = texts.application(server(scored), RERANKER, EncoderLetters())
        self.scores = f"http://{stack.enter_context(served(scores))}"


@pytest.fixture(scope="module")
def urls() -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack)


@pytest.fixture
def client(urls: Served) -> Any:
    return openai.OpenAI(base_url=urls.text, api_key="none", max_retries=0)


def freed(decoder: Scripted) -> None:
    """Wait until no text runs."""
    until = time.monotonic() + 10
    while decoder.held and time.monotonic() < until:
        time.sleep(0.01)
    assert not decoder.held


# -- openai


def test_openai_chats_and_completions(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [client.models.retrieve("letters").id] == ["letters"]
    asking = {"model": "letters", "temperature": 0, "n": 2}
    answer = client.chat.completions.create(
        messages=CHAT, max_completion_tokens=5, logprobs=True, top_logprobs=2, **asking
    )
    assert [choice.message.content for choice in answer.choices] == [SAID, SAID]
    assert "".join(x.token for x in answer.choices[0].logprobs.content) == SAID
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 10)
    answer = client.completions.create(prompt=["abc", "x"], max_tokens=5, echo=True, stop=["none"], **asking)
    wanted = [prompt + text_of(prompt, 5) for prompt in ("abc", "abc", "x", "x")]
    assert [choice.text for choice in answer.choices] == wanted


def test_openai_streams(client: Any) -> None:
    asking = {"model": "letters", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(messages=CHAT, max_tokens=5, **asking)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
    assert chunks[-1].choices[0].finish_reason == "length"
    assert (last.choices, last.usage.completion_tokens) == ([], 5)
    with client.chat.completions.stream(model="letters", messages=CHAT, temperature=0, stop=SAID[3]) as stream:
        assert stream.get_final_completion().choices[0].message.content == SAID[:3]


def test_openai_vectors(urls: Served) -> None:
    client = openai.OpenAI(base_url=urls.vectors, api_key="none", max_retries=0)
    for asked in ({}, {"encoding_format": "float"}):  # the client asks for base64 by itself
        answer = client.embeddings.create(model="stub", input=["one", "three"], **asked)
        assert np.array_equal(
            np.array([x.embedding for x in answer.data], np.float32), [*map(vector, (ids("one"), ids("three")))]
        )
    assert answer.usage.total_tokens == 8
    assert len(client.embeddings.create(model="stub", input=ids("one"), dimensions=2).data[0].embedding) == 2
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="stub", input="a" * 13)
    assert caught.value.param == "input"


def test_openai_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="only null") as caught:
        client.chat.completions.create(model="letters", messages=CHAT, tools=[{"type": "function", "function": {}}])
    assert (caught.value.param, caught.value.type) == ("tools", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=CHAT)
    assert missing.value.code == "model_not_found"


def test_openai_time_outs_and_cancels(client: Any, urls: Served) -> None:
    """A client that does not wait any longer, or closes its stream, frees its slot."""
    urls.decoder.go.clear()
    try:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).completions.create(model="letters", prompt="abc", max_tokens=16)
        stream = client.completions.create(model="letters", prompt="abc", max_tokens=16, stream=True, timeout=5)
        stream.close()
    finally:
        calls = urls.decoder.calls
        urls.decoder.go.set()
    freed(urls.decoder)
    assert urls.decoder.calls - calls < 8
    assert client.completions.create(model="letters", prompt="a", max_tokens=1, temperature=0).choices[
        0
    ].text == text_of("a", 1)


def test_openai_fifty_connections(urls: Served) -> None:
    """Each gets its own text; every third one leaves in the middle of its stream."""

    async def one(client: Any, k: int) -> None:
        prompt = "abcdefgh"[: 1 + k % 8]
        asking = {"model": "letters", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        if k % 3 == 0:
            async for _ in await client.completions.create(**asking, stream=True):
                break
        elif k % 3 == 1:
            parts = [x.choices[0].text async for x in await client.completions.create(**asking, stream=True)]
            assert "".join(parts) == text_of(prompt, 8)
        else:
            assert (await client.completions.create(**asking)).choices[0].text == text_of(prompt, 8)

    async def every() -> None:
        async with openai.AsyncOpenAI(base_url=urls.text, api_key="none", max_retries=0) as client:
            await asyncio.gather(*(one(client, k) for k in range(50)))

    asyncio.run(every())
    freed(urls.decoder)


# -- litellm


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network, for 10 s
    return pytest.importorskip("litellm")


@pytest.mark.full
def test_litellm(litellm: Any, urls: Served) -> None:
    """By the client of OpenAI, which takes 5 s to import; the tests above ask with that client itself."""
    asking = {"model": "openai/letters", "api_base": urls.text, "api_key": "none", "messages": CHAT, "num_retries": 0}
    asking |= {"max_tokens": 5, "temperature": 0}
    answer = litellm.completion(**asking)
    assert (answer.choices[0].message.content, answer.usage.total_tokens) == (SAID, 12)
    chunks = list(litellm.completion(**asking, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == SAID
    assert chunks[-1].usage.total_tokens == 12
    answer = litellm.text_completion(
        model="text-completion-openai/letters",
        prompt="abc",
        api_base=urls.text,
        api_key="none",
        max_tokens=5,
        temperature=0,
    )
    assert answer.choices[0].text == text_of("abc", 5)
    answer = litellm.embedding(model="openai/stub", input=["one"], api_base=urls.vectors, api_key="none")
    assert np.array_equal(np.array(answer.data[0]["embedding"], np.float32), vector(ids("one")))
    answer = litellm.rerank(model="huggingface/stub", query="q", documents=["aa", "aaaaaa"], api_base=urls.scores)
    assert [(x["index"], x["relevance_score"] > 0.5) for x in answer.results] == [(1, True), (0, False)]
    with pytest.raises(litellm.BadRequestError, match="only null"):
        litellm.completion(**asking, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**asking | {"model": "openai/other"})
    urls.decoder.go.clear()
    try:
        with pytest.raises(litellm.Timeout):
            litellm.completion(**asking, timeout=0.3)
    finally:
        urls.decoder.go.set()
    freed(urls.decoder)


# -- langchain


def test_langchain(urls: Served) -> None:
    langchain = pytest.importorskip("langchain_openai")
    asking = {"model": "letters", "base_url": urls.text, "api_key": "none", "max_retries": 0}
    asking |= {"temperature": 0, "max_tokens": 5}
    model = langchain.ChatOpenAI(**asking, stream_usage=True)
    answer = model.invoke("hi")
    assert (answer.content, answer.usage_metadata["total_tokens"]) == (SAID, 12)
    chunks = list(model.stream("hi"))
    assert "".join(chunk.content for chunk in chunks) == SAID
    assert sum(chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata) == 12
    assert [x.content for x in model.batch(["hi"] * 5)] == [SAID] * 5
    with pytest.raises(openai.BadRequestError, match="only null"):
        model.bind_tools([{"type": "function", "function": {"name": "f", "parameters": {}}}]).invoke("hi")
    with pytest.raises(openai.BadRequestError, match="tokens"):
        model.invoke("a" * 40)
    text = langchain.OpenAI(**asking)
    assert text.invoke("abc") == text_of("abc", 5)
    assert [x[0].text for x in text.generate(["abc", "x"]).generations] == [text_of("abc", 5), text_of("x", 5)]
    made = langchain.OpenAIEmbeddings(
        model="stub", base_url=urls.vectors, api_key="none", check_embedding_ctx_length=False
    ).embed_documents(["one", "three"])
    assert np.array_equal(np.array(made, np.float32), [vector(ids("one")), vector(ids("three"))])
