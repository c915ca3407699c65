"""Models of texts over HTTP: vectors and scores, in every form of a request, and mistakes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.host.serving import fields
from rsn.host.serving.arguments import Argument
from rsn.host.serving.fields import RequestError
from rsn.host.serving.policy import QueueFull
from rsn.host.serving.text_forms import CHAT, COMPLETIONS, TextForms
from rsn.host.serving.texts import CLASSIFY, EMBEDDINGS, MAX_TEXTS, RERANK, _TextService, application
from rsn.host.serving.token_lists import padded, runs
from rsn.host.text_settings import TextSettings
from rsn.tests.effort import examples

from .served import Stub

ENCODER = TextSettings(longest=12, vocabulary=200, columns=4, is_normalized=True)
RERANKER = TextSettings(longest=12, vocabulary=200, columns=1, has_types=True, labels=("score",))
CLASSES = TextSettings(longest=12, vocabulary=200, columns=3, labels=("a", "b", "c"), activation="softmax")
IDS = (Argument("input_ids", "int64", ("batch", "length")),)


class Letters:
    """A token a letter; pairs have a 1 between them."""

    def __call__(self, text: str, other: str | None = None, **cut: Any) -> dict[str, list[int]]:
        first, second = ([ord(c) for c in x] for x in (text, other or ""))
        ids = first if other is None else [*first, 1, *second]
        ids = ids[: cut.get("max_length", len(ids))]
        return {"input_ids": ids, "token_type_ids": [int(i > len(first)) for i in range(len(ids))]}

    def get_vocab(self) -> dict[str, int]:
        return {}


def vector(ids: list[int]) -> np.ndarray[Any, Any]:
    """What the model makes of the tokens of a text."""
    made = np.random.default_rng(ids).normal(size=4)
    return (made / np.linalg.norm(made)).astype(np.float32)


def rows(inputs: Mapping[str, Any]) -> list[list[int]]:
    """The tokens of each text; the mask must hide a suffix."""
    lengths = inputs["attention_mask"].sum(1)
    assert (inputs["attention_mask"] == (np.arange(inputs["input_ids"].shape[1]) < lengths[:, None])).all()
    return [row[:n].tolist() for row, n in zip(inputs["input_ids"], lengths, strict=True)]


def embedded(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    assert len(inputs["input_ids"]) <= 3
    return np.stack([vector(ids) for ids in rows(inputs)])


def scored(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The number of tokens of the second text."""
    return inputs["token_type_ids"].sum(1, keepdims=True).astype(np.float32) - 3


def server(answer: Any = embedded) -> Stub:
    stub = Stub(answer, *IDS)
    stub.sizes = {"batch": (1, 3), "length": (12,)}
    return stub


def asked(
    path: str, body: Any, *, settings: TextSettings = ENCODER, stub: Stub | None = None, method: str = "POST"
) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(application(stub or server(), settings, Letters(), timeout_s=5))
        async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
            content = body if isinstance(body, bytes) else json.dumps(body)
            return await client.request(method, path, content=content)

    return asyncio.run(call())


def vectors(body: Any) -> np.ndarray[Any, Any]:
    answer = asked("/v1/embeddings", body).json()
    assert [(x["object"], x["index"]) for x in answer["data"]] == [("embedding", i) for i in range(len(answer["data"]))]
    return np.array([x["embedding"] for x in answer["data"]])


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_every_form_of_the_input() -> None:
    one, two = vector(ids("one")), vector(ids("three"))
    assert np.array_equal(vectors({"input": "one"}), [one])
    assert np.array_equal(vectors({"input": ["one", "three"], "model": "stub", "user": "me"}), [one, two])
    assert np.array_equal(vectors({"input": ids("one")}), [one])
    assert np.array_equal(vectors({"input": [ids("three"), ids("one")]}), [two, one])
    assert np.array_equal(vectors({"input": ["three", ids("one")], "encoding_format": None}), [two, one])


def test_the_form_of_the_answer() -> None:
    answer = asked("/v1/embeddings", {"input": ["one", "three"], "encoding_format": "base64"}).json()
    first = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert np.array_equal(first, vector(ids("one")))
    assert (answer["object"], answer["model"]) == ("list", "stub")
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    cut = vectors({"input": "one", "dimensions": 2})
    assert np.allclose(cut, vector(ids("one"))[:2] / np.linalg.norm(vector(ids("one"))[:2]), atol=1e-7)


@examples(400, 20)
@given(st.lists(st.text(st.characters(min_codepoint=2, max_codepoint=150), min_size=1, max_size=12), min_size=1))
def test_each_text_gets_its_own_vector(texts: list[str]) -> None:
    """Whatever it shares a run with."""
    assert np.array_equal(vectors({"input": texts}), [vector(ids(text)) for text in texts])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 9))
@examples(400, 20)
def test_runs_hold_each_text_once(lengths: list[int], most: int) -> None:
    made = list(runs(lengths, most))
    assert sorted(i for run in made for i in run) == list(range(len(lengths)))
    assert max(map(len, made)) <= most
    widths = [max(lengths[i] for i in run) for run in made]
    assert widths == sorted(widths)
    tokens = [list(range(n)) for n in lengths]
    assert rows(padded(tokens)) == tokens


def test_a_full_queue() -> None:
    """A request that cannot begin is told so; one that has begun waits for a place."""
    calls = 0

    def full(inputs: Mapping[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls in refused:
            raise QueueFull("the queue is full")
        return embedded(inputs)

    refused = {1}
    answer = asked("/v1/embeddings", {"input": ["one"]}, stub=server(full))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    refused, calls = {2, 3, 5}, 0
    texts = [f"text {i}" for i in range(20)]
    found = asked("/v1/embeddings", {"input": texts}, stub=server(full)).json()
    assert np.array_equal([x["embedding"] for x in found["data"]], [vector(ids(text)) for text in texts])


def test_a_prompt_of_the_model() -> None:
    settings = TextSettings(**asdict(ENCODER) | {"prompt": "to: "})
    found = asked("/v1/embeddings", {"input": ["one", ids("two")]}, settings=settings).json()["data"]
    assert np.array_equal([x["embedding"] for x in found], [vector(ids("to: one")), vector(ids("two"))])


def test_rerank() -> None:
    body = {"query": "q", "texts": ["aa", "aaaaaa", "aaa"], "return_text": True}
    answer = asked("/v1/rerank", body, settings=RERANKER, stub=server(scored)).json()
    assert [(x["index"], x["text"]) for x in answer] == [(1, "aaaaaa"), (2, "aaa"), (0, "aa")]
    assert [x["score"] for x in answer] == pytest.approx([1 / (1 + np.exp(-x)) for x in (3, 0, -1)])
    raw = asked("/rerank", body | {"raw_scores": True}, settings=RERANKER, stub=server(scored)).json()
    assert [x["score"] for x in raw] == [3, 0, -1]
    assert asked("/v1/rerank", body, settings=CLASSES).status_code == 404
    assert asked("/v1/rerank", body | {"texts": ["a" * 20]}, settings=RERANKER, stub=server(scored)).status_code == 400
    cut = body | {"texts": ["a" * 20], "truncate": True, "raw_scores": True}
    assert asked("/v1/rerank", cut, settings=RERANKER, stub=server(scored)).json()[0]["score"] == 10 - 3


def test_rerank_in_the_form_of_jina_and_cohere() -> None:
    body = {"model": "stub", "query": "q", "documents": ["aa", {"text": "aaaaaa"}, "aaa"], "top_n": 2}

    def rerank(**more: Any) -> httpx.Response:
        return asked("/v1/rerank", body | more, settings=RERANKER, stub=server(scored))

    answer = rerank().json()
    assert [x["index"] for x in answer["results"]] == [1, 2]
    assert [x["relevance_score"] for x in answer["results"]] == pytest.approx([1 / (1 + np.exp(-x)) for x in (3, 0)])
    assert answer["model"] == "stub"
    tokens = [len(Letters()("q", x)["input_ids"]) for x in ("aa", "aaaaaa", "aaa")]
    assert answer["usage"] == {"total_tokens": sum(tokens)}
    assert all(x.keys() == {"index", "relevance_score"} for x in answer["results"])
    every = rerank(top_n=10, return_documents=True, raw_scores=True).json()["results"]
    shown = [(x["index"], x["relevance_score"], x["document"]) for x in every]
    assert shown == [(1, 3, {"text": "aaaaaa"}), (2, 0, {"text": "aaa"}), (0, -1, {"text": "aa"})]
    for more, field, said in (
        ({"texts": ["a"]}, "texts", "texts: not with documents"),
        ({"return_text": True}, "return_text", "return_text: not with documents"),
        ({"documents": None, "texts": ["a"]}, "top_n", "top_n: not with texts"),
        ({"documents": [{"text": "a", "": 1}]}, "documents", "documents[0] has the unknown name ''"),
        ({"documents": [{}]}, "documents", "documents[0].text is missing"),
        ({"documents": []}, "documents", "there may be 1 to"),
        ({"top_n": 0}, "top_n", "top_n is 0"),
    ):
        refused = rerank(**more)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field
        assert said in refused.json()["error"]["message"]


def test_classify() -> None:
    logits = np.array([0.5, 2.0, -1.0], np.float32)

    def answer(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        return np.stack([logits + len(row) for row in rows(inputs)])

    one = asked("/v1/classify", {"inputs": "text"}, settings=CLASSES, stub=server(answer)).json()
    assert [x["label"] for x in one] == ["b", "a", "c"]
    assert [x["score"] for x in one] == pytest.approx(np.sort(np.exp(logits) / np.exp(logits).sum())[::-1])
    body = {"inputs": ["text", ["a", "bc"]], "raw_scores": True}
    several = asked("/predict", body, settings=CLASSES, stub=server(answer)).json()
    assert [x[0]["score"] for x in several] == [6, 6]


@pytest.mark.parametrize(
    ("path", "settings", "body", "field", "message"),
    [
        ("embeddings", ENCODER, {}, "input", "input is missing"),
        ("embeddings", ENCODER, {"input": []}, "input", "there may be 1 to"),
        ("embeddings", ENCODER, {"input": ["a"] * (MAX_TEXTS + 1)}, "input", "a list of 2049"),
        ("embeddings", ENCODER, {"input": ["a", 1]}, "input", "input[1] is 1, not a string"),
        ("embeddings", ENCODER, {"input": ["a", []]}, "input", "one at least"),
        ("embeddings", ENCODER, {"input": [1, True]}, "input", "whole numbers"),
        ("embeddings", ENCODER, {"input": [[-1]]}, "input", "0 to 199"),
        ("embeddings", ENCODER, {"input": [10**30]}, "input", "0 to 199"),
        ("embeddings", ENCODER, {"input": ["a", ""]}, "input", "text 1 of input has 0 tokens"),
        ("embeddings", ENCODER, {"input": "a" * 13}, "input", "has 13 tokens; this model takes 1 to 12"),
        ("embeddings", ENCODER, {"input": "a" * 800}, "input", "input has 800 characters"),
        ("embeddings", ENCODER, b'{"input": "\\ud800"}', "input", "half of a character"),
        ("embeddings", ENCODER, {"input": "a", "dimensions": 5}, "dimensions", "this model has 4"),
        ("embeddings", ENCODER, {"input": "a", "dimensions": 0}, "dimensions", "a whole number from 1 on"),
        ("embeddings", ENCODER, {"input": "a", "encoding_format": "hex"}, "encoding_format", '"float" or "base64"'),
        ("embeddings", ENCODER, {"input": "a", "truncate": True}, "truncate", "unknown field"),
        ("embeddings", ENCODER, [], None, "not an object"),
        ("rerank", RERANKER, {"texts": ["a"]}, "query", "query is missing"),
        ("rerank", RERANKER, {"query": "a", "texts": "b"}, "texts", "there may be"),
        ("rerank", RERANKER, {"query": "a", "texts": ["b", ["c", "d"]]}, "texts", "texts[1] is a list"),
        ("classify", CLASSES, {"inputs": [["a"]]}, "inputs", "a pair of texts"),
        ("classify", CLASSES, {"inputs": [["a", 1]]}, "inputs", "inputs[0][1] is 1"),
        ("classify", CLASSES, {"inputs": ["a"], "raw_scores": 1}, "raw_scores", "true or false"),
    ],
)
def test_mistakes(path: str, settings: TextSettings, body: Any, field: str | None, message: str) -> None:
    answer = asked(f"/v1/{path}", body, settings=settings)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", field)
    assert message in error["message"]


def test_models() -> None:
    assert asked("/v1/models", b"", method="GET").json()["data"][0]["id"] == "stub"
    assert asked("/v1/models/stub", b"", method="GET").json()["id"] == "stub"
    for answer in (asked("/v1/models/a/b", b"", method="GET"), asked("/v1/embeddings", {"input": "a", "model": "b"})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "POST /v1/embeddings" in asked("/v1/completions", {}).json()["error"]["message"]


@pytest.mark.parametrize(
    "wrong", [{"longest": 0}, {"columns": "4"}, {"labels": ["a"]}, {"activation": "relu"}, {"prompt": 1}]
)
def test_settings_of_a_file(wrong: Mapping[str, Any]) -> None:
    right = asdict(ENCODER) | {"labels": []}
    assert TextSettings.of(right) == ENCODER
    with pytest.raises(ValueError):
        TextSettings.of(right | wrong)


def test_the_page_has_the_tables() -> None:
    page = (Path(__file__).parents[2] / "docs/openai.md").read_text("utf-8")
    for table in (EMBEDDINGS, RERANK, CLASSIFY, COMPLETIONS, CHAT):
        assert fields.markdown(table) in page, fields.markdown(table)


NAMES = ["role", "content", "type", "text", "include_usage", "1", "99"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.sampled_from([0, 1, 2, 10**400])
    | st.text(max_size=3) | st.sampled_from(["user", "text", "A", "\ud800", "Right", "base64", "stub"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "a"}]
ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "completions": (COMPLETIONS, {"prompt": "a"}),
    "chat": (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
    "embeddings": (EMBEDDINGS, {"input": "a"}),
    "rerank": (RERANK, {"query": "a", "texts": ["b"]}),
    "classify": (CLASSIFY, {"inputs": "a"}),
}


class Template(Letters):
    chat_template, eos_token_id = "yes", None

    def __call__(self, text: str, other: str | None = None, **more: Any) -> dict[str, list[int]]:
        text.encode()  # what is no text must not get here
        return super().__call__(text, other)

    def apply_chat_template(self, messages: Any, **more: Any) -> str:
        return "".join(message["content"] for message in messages)

    def decode(self, tokens: list[int], **more: Any) -> str:
        return "".join(map(chr, tokens))


@examples(2000, 100)
@given(st.data())
def test_any_body_is_read_or_refused(data: st.DataObject) -> None:
    """With a field that the table has; the rest is the code of the route, which must know any value."""
    route = data.draw(st.sampled_from(sorted(ROUTES)))
    table, right = ROUTES[route]
    names = [field.name for field in table]
    body = right | data.draw(st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=2))
    forms = TextForms("stub", frozenset(), 12, 200)
    service = _TextService(server(), ENCODER, Template(), None)  # type: ignore[arg-type]
    read: Mapping[str, Callable[[], object]] = {
        "completions": lambda: forms.completion(body, Template()),
        "chat": lambda: forms.chat(body, Template()),
        "embeddings": lambda: service._embedding_request(body),
        "rerank": lambda: service._rerank_request(body),
        "classify": lambda: service._classify_request(body),
    }
    error = None
    try:
        read[route]()
    except RequestError as e:
        error = e
    assert error is None or (error.field in names and len(str(error)) < 500)
