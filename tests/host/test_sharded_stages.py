"""Copies of a model in shards: boards that work together, fail, and are left. Ray: `test_on_ray`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import rsn  # noqa: E402
from rsn.base.errors import BoardError, TensorError  # noqa: E402
from rsn.host.boards.device import BoardLost  # noqa: E402
from rsn.host.generation import Decoder, Sampling  # noqa: E402
from rsn.host.generation.loaded import DecoderSizes  # noqa: E402
from rsn.host.model.file import identity  # noqa: E402
from rsn.host.replicas import replicated, stage  # noqa: E402
from rsn.host.replicas.decoder_server import DecoderStageFile  # noqa: E402
from rsn.host.replicas.pipeline import LocalPipeline  # noqa: E402
from rsn.host.replicas.replicated import ReplicatedServer  # noqa: E402
from rsn.host.replicas.texts import Generations  # noqa: E402
from rsn.host.serving import RequestTimeout, Serving, State  # noqa: E402
from rsn.tests.host.sharded import SHARDS, STAGES, bert, inputs, right, save, sources  # noqa: E402

from .rigged import Flaky, Rig  # noqa: E402
from .stages import SERVING  # noqa: E402
from .test_generation import END, TOKENS, answer, made  # noqa: E402
from .test_replicas import gone, until  # noqa: E402

BOARDS = STAGES * SHARDS


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "DOWN_POLL_S", 0.005)
    monkeypatch.setattr(stage, "LOOK_S", 0.01)
    monkeypatch.setattr(stage, "RETRY_S", 0.01)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("sharded") / "bert.rsnmodel")


@pytest.fixture(scope="module")
def model() -> Any:
    return bert(0).requires_grad_(False)


@contextmanager
def served(path: Path, boards: Sequence[Any], count: int = 1, serving: Serving = SERVING) -> Iterator[ReplicatedServer]:
    def start(number: int) -> LocalPipeline:
        return LocalPipeline(sources(path, serving), boards, BOARDS * number, "m", SHARDS)

    options: Any = {"name": "m", "arguments": (), "sizes": {}, "places": 2 * STAGES, "shards": SHARDS}
    with ReplicatedServer(start, count, **options) as server:
        server.settled()
        yield server


def meeting() -> list[Rig]:
    """Boards, of which those of a stage wait for each other in their first run, which fails if one does not come."""

    def meets(barrier: threading.Barrier) -> Callable[[int], None]:
        return lambda run: (barrier.wait(), None)[1] if run == 1 else None

    barriers = [threading.Barrier(SHARDS, timeout=10) for _ in range(STAGES)]
    return [Rig(before=meets(barrier)) for barrier in barriers for _ in range(SHARDS)]


def test_shards_work_at_the_same_time(file: Path, model: Any) -> None:
    """The result is always the same."""
    x = inputs(1)
    wanted = model(**x)
    with rsn.load(file, boards=["sim"] * BOARDS) as loaded:
        alone = loaded(**x).last_hidden_state
    with rsn.load(file, boards=meeting()) as loaded, loaded.server() as one:
        found = one.submit(**x).result(30)
        assert right(found, wanted)
        assert torch.equal(found.last_hidden_state, alone)
    boards = meeting()
    with served(file, boards) as server:
        assert torch.equal(server.ask(x).result(30).last_hidden_state, alone)
        reports = server.reports()
        assert [[report.board for report in of] for of in reports] == [list(map(str, boards))]
        assert server.place(3) == {"stage": 1, "shard": 1}
        with pytest.raises(TensorError, match="input_ids"):
            server.ask({**x, "input_ids": x["input_ids"][:, :5]}).result(10)
    assert all(rig.opened == rig.closed for rig in boards)


def test_a_shard_that_fails_during_a_run(file: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "ATTEMPTS", 20)  # faults are random, and three may meet one request
    boards = [Flaky(i, 0.1) for i in range(2 * BOARDS)]
    with served(file, boards, 2) as server:
        asked = [(inputs(i), server.ask(inputs(i))) for i in range(12)]
        assert all(right(answer.result(60), model(**x)) for x, answer in asked)
    assert any(board.failures for board in boards)


def test_health_names_the_board_of_a_shard(file: Path, model: Any) -> None:
    boards = [Rig() for _ in range(BOARDS)]
    with served(file, boards) as server:
        boards[3].before = boards[3].opening = gone
        with pytest.raises((BoardError, RequestTimeout)):
            server.ask(inputs(0), timeout=0.5).result(20)
        until(lambda: server.health.state is State.FAILING)
        until(lambda: f"stage 1 shard 1 on {boards[3]}: " in (server.health.error or ""))
        assert "the device is gone" in (server.health.error or "")
        boards[3].before = boards[3].opening = lambda number: None
        until(lambda: server.health.state is State.READY)
        assert right(server.ask(inputs(0)).result(20), model(**inputs(0)))
    boards[2].before = gone
    with rsn.load(file, boards=boards) as loaded, loaded.server(Serving(retries=0)) as one:
        with pytest.raises(BoardLost):
            one.submit(**inputs(0)).result(20)
        assert (one.health.error or "").startswith(f"board 2 ({boards[2]}): ")


@pytest.mark.long
def test_texts_over_shards(tmp_path: Path) -> None:
    """Each shard has the caches of its heads. Boards fail in the middle of texts, of the first shard and of the other;
    the board of the one behind is opened again, and gets its caches from the first."""
    llama = made("Llama")
    path, sizes = tmp_path / "llama.rsnmodel", DecoderSizes(2, 24, 8, TOKENS, (END,))
    with Decoder(llama, slots=2, capacity=24, chunk=8, boards=BOARDS, shards=SHARDS) as decoder:
        decoder.save(path)
        assert f"with {STAGES} sets of slots" in decoder.explain()

    def fails(*runs: int) -> Rig:
        return Rig(before=lambda run: gone(run) if run in runs else None)

    boards = [fails(), fails(9, 20), fails(15), fails(12)]
    files = [DecoderStageFile(str(path), identity(path), i, BOARDS, STAGES, None, SHARDS) for i in range(BOARDS)]
    options: Any = {"name": "m", "arguments": (), "sizes": {}, "places": 1, "shards": SHARDS}
    with ReplicatedServer(lambda number: LocalPipeline(files, boards, 0, "m", SHARDS), 1, **options) as server:
        server.settled()
        with Generations(server, sizes, groups=STAGES) as generations:
            prompts = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [7 * k % TOKENS for k in range(14)]]
            greedy = Sampling(max_tokens=6, stop_tokens=frozenset({END}))
            streams = [generations.submit(prompt, greedy) for prompt in prompts]
            assert [list(stream) for stream in streams] == [answer(llama, prompt, 6) for prompt in prompts]
        assert all(len(board.runs) > 20 for board in boards)


@pytest.mark.long
def test_shards_of_several_sizes(tmp_path: Path, model: Any) -> None:
    """Requests that share runs, in each shard with others."""
    path = save(tmp_path / "bert.rsnmodel", 0, 1, 2)
    with served(path, ["sim"] * (2 * BOARDS), 2) as server, rsn.load(path, boards=["sim"] * BOARDS) as loaded:
        for batch, length in ((1, 5), (2, 24), (2, 7)):
            x = inputs(length, batch, length)
            assert torch.equal(server.ask(x).result(20).last_hidden_state, loaded(**x).last_hidden_state)
        asked = [(x, server.ask(x)) for i in range(20) for x in [inputs(i, 1 + i % 2, 1 + i)]]
        assert all(right(answer.result(30), model(**x)) for x, answer in asked)
