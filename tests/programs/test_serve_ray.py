"""The sentence encoder behind HTTP on two simulated boards: small random models, compared with PyTorch."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray Serve is not installed: pip install -e '.[ray]'")
torch = pytest.importorskip("torch")

from rsn.host.boards.device import BoardBusy, BoardMemory  # noqa: E402
from rsn.programs.minilm import SentenceEncoder  # noqa: E402
from rsn.programs.serve_ray import BOARD, Replica, Settings, application  # noqa: E402
from rsn.tests.host.rigged import Rig  # noqa: E402

PORT = 8017
LONGEST = 24
SENTENCES = ["the cat sits", "a", "on the mat of the house by the sea " * 2, "two three four five"]


class Words:
    """A tokenizer: a word's number is the sum of its letters."""

    def __call__(self, sentence: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *(2 + sum(map(ord, word)) % 96 for word in sentence.split()), 99]}


def small(seed: int) -> tuple[Any, Any]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=64,
    )  # fmt: skip
    return SentenceEncoder(BertModel(config, add_pooling_layer=False)).eval(), Words()


SETTINGS = Settings(
    models={"one": lambda: small(1), "two": lambda: small(2)},
    boards=("sim", "sim"),
    shapes=((1, LONGEST), (4, LONGEST)),
)


def expected(seed: int, sentences: list[str]) -> list[list[float]]:
    model, tokenizer = small(seed)
    out = []
    for s in sentences:
        ids = torch.tensor([tokenizer(s)["input_ids"]])
        with torch.no_grad():
            out.append(model(ids, torch.ones_like(ids))[0].tolist())
    return out


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    from ray import serve

    # replicas are processes of their own, which know nothing of the folder that pytest runs in
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=4, resources={BOARD: 2}, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        serve.run(application(replace(SETTINGS, metrics=True)))
        yield f"http://127.0.0.1:{PORT}/"
    finally:
        serve.shutdown()
        ray.shutdown()


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read().decode()


def post(url: str, body: Any, model: str = "") -> tuple[int, Any]:
    headers = {"serve_multiplexed_model_id": model} if model else {}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def close(got: list[list[float]], wanted: list[list[float]]) -> bool:
    return torch.allclose(torch.tensor(got), torch.tensor(wanted), atol=1e-4)


def replicas(url: str) -> dict[str, Any]:
    """What each says of itself: Ray chooses who answers."""
    found: dict[str, Any] = {}
    end = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < end:
        status = json.loads(get(url))
        found[status["replica"]] = status
    return found


def test_two_replicas_and_two_models(url: str) -> None:
    wanted = {"one": expected(1, SENTENCES), "two": expected(2, SENTENCES)}
    assert not close(wanted["one"], wanted["two"])

    def ask(i: int) -> bool:
        name = ("one", "two")[i % 2]
        status, answer = post(url, {"sentences": SENTENCES}, name)
        return status == 200 and answer["model"] == name and close(answer["embeddings"], wanted[name])

    with ThreadPoolExecutor(8) as clients:
        assert all(clients.map(ask, range(24)))
    found = replicas(url)
    assert len(found) == 2
    models = [(name, m) for status in found.values() for name, m in status["models"].items()]
    assert {name for name, _ in models} == {"one", "two"}
    for _, model in models:
        assert set(model["cold_start_s"]) == {"load", "compile", "open"}
        assert min(model["cold_start_s"].values()) > 0
        assert model["resident"]
        assert model["health"]["state"] == "ready"
    assert {status["board"] for status in found.values() if status["models"]} == {"sim"}
    answered = 0.0
    for status in found.values():
        for line in get(status["metrics"]).splitlines():
            if line.startswith("rsn_requests_total{") and 'outcome="ok"' in line:
                answered += float(line.split()[-1])
    assert answered == 24 * len(SENTENCES)


@pytest.mark.parametrize(
    ("body", "model", "status", "message"),
    [
        (
            {"sentences": ["far too long " * 20]},
            "",
            422,
            f"a sentence of 62 tokens; these programs take up to {LONGEST}",
        ),
        ({"sentences": ["a"]}, "three../x", 404, "no model 'three../x'; there are one, two"),
        ({"sentences": []}, "", 400, "1 to 256 strings"),
        ({"sentences": [1]}, "", 400, "1 to 256 strings"),
        ([], "", 400, "1 to 256 strings"),
        ({"sentences": ["a"] * 257}, "", 400, "1 to 256 strings"),
    ],
)
def test_what_is_refused(url: str, body: Any, model: str, status: int, message: str) -> None:
    code, answer = post(url, body, model)
    assert code == status
    assert message in answer["error"]


def encoded(replica: Replica) -> None:
    """By turns, so that one has to make way for the other, if there is no room for both."""
    for model, seed in (("two", 2), ("one", 1), ("two", 2)):
        replica.load(model)
        assert close(asyncio.run(replica.encode(model, SENTENCES)), expected(seed, SENTENCES))


def test_models_make_way_where_memory_ends() -> None:
    roomy = Replica(SETTINGS)
    need = roomy.load("one").bytes
    encoded(roomy)
    assert list(roomy._runners) == ["one", "two"]
    tight = Replica(replace(SETTINGS, memory=2 * need - 1))
    encoded(tight)
    assert list(tight._runners) == ["two"]
    for replica in (roomy, tight):
        replica.close()
    with pytest.raises(BoardMemory, match=f"one needs {need} bytes of a board, which has {need - 1}"):
        Replica(replace(SETTINGS, memory=need - 1))


def test_models_take_turns_on_a_device_that_one_runner_can_have() -> None:
    """And a replica takes the first board that is free."""

    def taken(number: int) -> None:
        raise BoardBusy("in use by another replica")

    free = Rig(only_one=BoardBusy("in use"))
    boards: Any = [Rig(opening=taken), free]
    replica = Replica(replace(SETTINGS, boards=boards, shapes=((4, LONGEST),)))
    assert replica._board is free
    encoded(replica)
    assert list(replica._runners) == ["two"]
    replica.close()
    assert free.opened == free.closed > 3
    with pytest.raises(BoardBusy, match="another replica"):
        Replica(replace(SETTINGS, boards=boards[:1]))
