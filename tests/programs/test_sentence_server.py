"""Sentences over HTTP, with a small random model on one board: embeddings as PyTorch's, and every mistake named."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")

import rsn
from rsn.base.errors import BoardError, TensorError
from rsn.host.serving import QueueFull, RequestTimeout
from rsn.host.serving.arguments import Argument
from rsn.host.serving.http import application
from rsn.programs.sentences import MAX, SentenceForm, Sentences, joined
from rsn.tests.host.served import Stub
from rsn.tests.host.test_http import answered, call
from rsn.tests.programs.small_encoders import LONGEST, Words, expected, saved, small

SENTENCES = ["the cat sits", "a", "on the mat of the house by the sea " * 2, "two three four five", "", "a\x00b  c"]
WORDS = Words()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentences]:
    path = saved(tmp_path_factory.mktemp("models"), 1, "small")
    served = Sentences(rsn.load(path).server(rsn.Serving(), name="small"), WORDS)
    yield served
    served.close()


def asked(server: Any, **more: Any) -> Any:
    return call(application(server, form=SentenceForm(), limit_bytes=100_000), **more)


@pytest.mark.parametrize("n", [1, 4, 6])
def test_embeddings_are_the_models(server: Sentences, n: int) -> None:
    """Also of more sentences than a run takes."""
    found = answered(asked(server, json={"sentences": SENTENCES[:n]}))
    assert list(found) == ["embeddings"]
    ids = [WORDS(s)["input_ids"] for s in SENTENCES[:n]]
    np.testing.assert_allclose(np.array(found["embeddings"]), expected(small(1), ids), atol=1e-4)


def test_what_it_says_of_itself(server: Sentences) -> None:
    found = answered(asked(server, method="GET"))
    del found["version"]
    assert found == {
        "name": "small",
        "arguments": [{"name": "sentences", "dtype": "str", "shape": ["batch"]}],
        "sizes": {"batch": [MAX], "length": [LONGEST]},
    }


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ('{"sentences": "hello"}', 422, '"sentences" is a string; the body should be {"sentences": ["...", ...], "tim'),
        ('{"sentences": {"a": 1, "b": 2}}', 422, '"sentences" is an object; the body should be {"sentences"'),
        ('{"sentences": null}', 422, '"sentences" is null; the body should be'),
        ('{"sentences": ["a", "\\ud800"]}', 422, "sentences[1] is not valid text: it has half of a surrogate pair"),
        ('{"sentences": ["\\udc00\\ud800"]}', 422, "sentences[0] is not valid text"),
        ('{"sentences": []}', 422, "the request has 0 sentences; it may have 1 to 256"),
        (json.dumps({"sentences": ["a"] * (MAX + 1)}), 422, "the request has 257 sentences; it may have 1 to 256"),
        ('{"sentences": ["a", 1]}', 422, "sentences[1] is 1; it should be a string"),
        ('{"sentences": ["a", ["b"]]}', 422, "sentences[1] is a list of 1; it should be a string"),
        (json.dumps({"sentences": ["a", "far too long " * 20]}), 422, "sentences[1] has 62 tokens; this model takes u"),
        ('{"sentences": ["a"], "model": "x"}', 422, "the body has the unknown name 'model'"),
        ('{"sentences": ["a"], "timeout_s": -1}', 422, '"timeout_s" is -1; it should be a number of seconds above 0'),
        ('{"inputs": {}}', 422, "the body has the unknown name 'inputs'"),
        ("{}", 422, 'the body has no "sentences"'),
        ('["a"]', 422, "the body is a list of 1; it should be"),
        ("[" * 50_000, 422, "the body has too many levels of lists or objects"),
        ("sentences=a", 400, "the body is not JSON: Expecting value"),
        ("", 400, "the body is not JSON"),
        ('{"sentences": ["' + "a" * 100_000 + '"]}', 413, "the body has more than 100000 bytes"),
    ],
)
def test_what_is_refused(server: Sentences, body: str, status: int, message: str) -> None:
    assert answered(asked(server, content=body), status)["error"].startswith(message)


def test_a_pair_of_surrogates_is_a_character(server: Sentences) -> None:
    answered(asked(server, content='{"sentences": ["\\ud83d\\ude00"]}'))


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_other_methods(server: Sentences, method: str) -> None:
    response = asked(server, method=method, json={"sentences": ["a"]})
    answered(response, 405)
    assert response.headers["allow"] == "GET, HEAD, POST"


IDS = tuple(Argument(name, "int64", ("batch", "length")) for name in ("input_ids", "attention_mask"))


def stub(answer: Any) -> Stub:
    made = Stub(answer, *IDS)
    made.sizes = {"batch": (1, 2), "length": (8,)}
    return made


@pytest.mark.parametrize(
    ("error", "status"), [(BoardError("down"), 503), (QueueFull("full"), 503), (RequestTimeout("late"), 504)]
)
def test_the_error_of_a_part_is_the_answer_and_the_others_are_cancelled(error: Exception, status: int) -> None:
    futures: list[Future[Any]] = [Future(), Future(), Future()]
    made = iter(futures)
    inner = stub(lambda inputs: next(made))
    threading.Timer(0.2, futures[1].set_exception, [error]).start()
    found = asked(Sentences(inner, WORDS), json={"sentences": list("abcde")})
    assert answered(found, status) == {"error": str(error)}
    assert [f.cancelled() for f in futures] == [True, False, True]


def test_a_part_that_is_refused_cancels_those_before_it() -> None:
    first: Future[Any] = Future()

    def answer(inputs: Any) -> Any:
        if not inner.futures:
            return first
        raise QueueFull("full")

    inner = stub(answer)
    assert answered(asked(Sentences(inner, WORDS), json={"sentences": list("abc")}), 503) == {"error": "full"}
    assert first.cancelled()


@pytest.mark.parametrize("sentences", [[], "a text"])
def test_no_list_of_sentences(sentences: Any) -> None:
    with pytest.raises(TensorError, match="it should be a list of at least one string"):
        Sentences(stub(lambda inputs: Future()), WORDS).ask({"sentences": sentences})


def test_joined() -> None:
    a, b, c = parts = [Future[int](), Future[int](), Future[int]()]
    whole = joined(parts, sum)
    for part, n in ((c, 3), (a, 1), (b, 2)):
        assert not whole.done()
        part.set_result(n)
    assert whole.result(0) == 6
    d: Future[int] = Future()
    whole = joined([d], lambda results: 1 // 0)
    d.set_result(1)
    assert isinstance(whole.exception(0), ZeroDivisionError)
    e, f = parts = [Future[int](), Future[int]()]
    assert joined(parts, sum).cancel()
    assert e.cancelled()
    assert f.cancelled()
    g, h = parts = [Future[int](), Future[int]()]
    whole = joined(parts, sum)
    g.cancel()
    assert isinstance(whole.exception(0), BoardError)
    assert h.cancelled()
