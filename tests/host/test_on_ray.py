"""Pipelines on Ray: processes that are killed or hang, computers that go away, and `rsn serve --ray`."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
torch = pytest.importorskip("torch")

from rsn.base.errors import BoardBusy, BoardError, ProgramError, RsnError, TensorError  # noqa: E402
from rsn.host.boards.device import BoardLost  # noqa: E402
from rsn.host.generation import Decoder, Sampling  # noqa: E402
from rsn.host.generation.batching import Event  # noqa: E402
from rsn.host.generation.loaded import DecoderSizes  # noqa: E402
from rsn.host.model.file import identity  # noqa: E402
from rsn.host.replicas import on_ray, replicated  # noqa: E402
from rsn.host.replicas.decoder_server import DecoderStageFile  # noqa: E402
from rsn.host.replicas.pipeline import PipelineLost  # noqa: E402
from rsn.host.replicas.replicated import ReplicatedServer  # noqa: E402
from rsn.host.replicas.stage import StageDown  # noqa: E402
from rsn.host.replicas.texts import Generations  # noqa: E402
from rsn.host.serving import QueueFull, RequestTimeout  # noqa: E402
from rsn.tests.effort import full, long  # noqa: E402
from rsn.tests.host.fronts import Front, started  # noqa: E402
from rsn.tests.host.soak_http import Client  # noqa: E402
from rsn.tests.host.soak_replicas import COPIES, STAGES, Soak, copies, on_cluster, sharded_files  # noqa: E402
from rsn.tests.host.test_generation import answer  # noqa: E402
from rsn.tests.host.test_replicas import inputs, right, until  # noqa: E402
from rsn.tests.programs.small_encoders import expected, saved, small  # noqa: E402
from rsn.tests.test_generate import END, TOKENS, made  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with copies(3, 0.01) as made:
        yield made


def test_each_stage_has_a_process_and_each_copy_a_computer(running: Any) -> None:
    server, *_ = running
    reports = server.reports()
    assert len({report.process for stages in reports for report in stages}) == COPIES * STAGES
    assert [len({report.node for report in stages}) for stages in reports] == [1] * COPIES
    assert reports[0][0].node != reports[1][0].node


def test_soak(running: Any) -> None:
    """More of it: `make soak`."""
    tally = Soak(*running, requests=90, seed=5).run(clients=8, kills=2, computers=1)
    assert not tally.problems, tally
    assert (tally.ended["stage"], tally.ended["computer"]) == (1, 1)
    assert tally.outcomes["ok"] > 60


def test_soak_of_shards(running: Any, tmp_path: Path) -> None:
    """Two processes compute one stage. More of it: `soak_replicas --shards 2`."""
    *_, computers = running
    work = sharded_files(tmp_path, 1, 2)
    with on_cluster([ray.get_runtime_context().get_node_id()], work, 7, 0.02, 1) as (server, model):
        (reports,) = server.reports()
        assert len({report.process for report in reports}) == 2
        tally = Soak(server, model, computers, requests=30, seed=5, work=work).run(clients=4, kills=1, computers=0)
    assert not tally.problems, tally
    assert tally.ended["stage"] == 1
    assert tally.outcomes["ok"] > 20


def test_processes_that_hang(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "GRACE_S", 0.1)
    server, *_ = running
    until(lambda: all(server.reports()), 60)
    processes = [report.process for stages in server.reports() for report in stages]
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=r"no answer in 0\.5 s"):
            server.ask({"x": inputs(0)}, timeout=0.5).result(10)
        assert time.monotonic() - began < 5
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    x = inputs(1)
    assert right(server.ask({"x": x}).result(60), x, range(100, 100 + STAGES))  # the soak has replaced the model


@pytest.mark.full
@pytest.mark.parametrize("board", range(2))
@pytest.mark.parametrize("shards", [1, 2])
def test_texts_of_which_the_process_of_a_board_is_killed(shards: int, board: int, running: Any, tmp_path: Path) -> None:
    """In their middle, that of a stage or of a shard: the caches are filled again, and each text goes on."""
    model = made("Llama")
    path, groups = tmp_path / "decoder.rsnmodel", 2 // shards
    with Decoder(model, slots=2, capacity=32, boards=2, shards=shards) as decoder:
        decoder.save(path)
    sizes = DecoderSizes(2, 32, 32, TOKENS, (END,))
    sources = [DecoderStageFile(str(path), identity(path), i, 2, groups, None, shards) for i in range(2)]
    node = ray.get_runtime_context().get_node_id()
    options: Any = {"name": "m", "arguments": (), "sizes": {}, "places": 1, "shards": shards}
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]

    def start(number: int) -> on_ray.RayPipeline:
        return on_ray.RayPipeline(sources, ["sim"], 0, "m", node, 0, shards)

    with ReplicatedServer(start, 1, **options) as server:
        server.settled()
        with Generations(server, sizes, groups=groups) as generations:
            heard: list[Event] = []
            greedy = Sampling(max_tokens=20, stop_tokens=frozenset({END}))
            generations.submit(prompts[0], greedy, heard=heard.append)
            stream = generations.submit(prompts[1], greedy)
            until(lambda: len(heard) > 3, 60)
            os.kill(server.reports()[0][board].process, signal.SIGKILL)
            assert list(stream) == answer(model, prompts[1], 20)
            until(lambda: bool(heard) and heard[-1].token is None, 60)
            assert [event.token for event in heard[:-1]] == answer(model, prompts[0], 20)
            assert heard[-1].error is None
        assert server.health.failures == 1


# -- without a cluster


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StageDown("no board"), StageDown),
        (PipelineLost("it died"), PipelineLost),
        (BoardBusy("in use"), BoardError),
        (BoardLost("gone"), BoardError),
        (QueueFull("full"), QueueFull),
        (RequestTimeout("late"), RequestTimeout),
        (TensorError("x"), TensorError),
        (ProgramError("y"), RsnError),
    ],
)
def test_errors_that_can_be_pickled(error: RsnError, kind: type[RsnError]) -> None:
    plain = pickle.loads(pickle.dumps(on_ray._plain(error)))
    assert (type(plain), str(plain)) == (kind, str(error))


# -- the command


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Popen[str], Front]]:
    """On the boards that work: one of three needs a library that is not here, or a device."""
    path = saved(tmp_path_factory.mktemp("models"), 1, "one")
    boards = [word for board in ("vck190@xrt:0", "sim", "sim") for word in ("--boards", board)]
    options = ("--ray", "local", "--replicas", "2", "--port", "0", "--queue", "32")
    with started("rsn", "serve", str(path), *boards, *options) as (process, address):
        yield process, Front(address)


IDS = [[1, 5, 9, 99], [1, 99]]
INPUTS = {"input_ids": [[1, 5, 9, 99], [1, 99, 0, 0]], "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]]}


def asked(front: Front) -> tuple[int, Any]:
    status, found, text = Client([front]).ask(0, "POST", "/", json.dumps({"inputs": INPUTS}))
    if status == 503:
        assert found["retry-after"]
    return status, json.loads(text)


def is_right(answer: tuple[int, Any]) -> bool:
    status, found = answer
    return status == 200 and np.allclose(found["outputs"], expected(small(1), IDS), atol=1e-4)


def stages(front: Front) -> list[Any]:
    return [stage for copy in front.get("/replicas")[1]["replicas"] for stage in copy]


def test_the_boards_that_work_are_served(command: Any) -> None:
    _, front = command
    assert is_right(asked(front))
    found = stages(front)
    assert [stage["board"] for stage in found] == ["sim", "sim"]
    assert all(stage["opening_s"] > 0 and stage["node"] for stage in found)
    assert list(found[0]["dead"]) == ["vck190@xrt:0"]  # the first copy has tried it
    status, health = front.get("/health")
    assert (status, health["state"]) == (200, "ready")
    until(lambda: front.figures()["rsn_stage_requests_total"] == front.figures()["rsn_requests_total"] == 1)


def test_a_process_that_is_killed(command: Any) -> None:
    _, front = command
    killed = stages(front)[0]["process"]
    os.kill(killed, signal.SIGKILL)
    for _ in range(6):
        assert is_right(asked(front))
    until(lambda: len(stages(front)) == 2 and killed not in [stage["process"] for stage in stages(front)], 60)


def test_the_end_answers_what_is_under_way(command: Any) -> None:
    process, front = command
    answers: list[Any] = []
    asking = [threading.Thread(target=lambda: answers.append(asked(front))) for _ in range(8)]
    before = front.figures()["rsn_requests_total"]
    for thread in asking:
        thread.start()
    until(lambda: front.figures()["rsn_requests_total"] > before)  # some are answered, others wait
    process.terminate()
    for thread in asking:
        thread.join()
    assert process.wait(60) == 0
    assert [status for status, _ in answers] == [200] * 8


STARTING = """
import time
from rsn.cli.serve import _ending_at_sigterm
from rsn.host.replicas import on_ray

with _ending_at_sigterm(), on_ray.cluster("local"):
    print("up", flush=True)
    time.sleep(120)
"""


def test_sigterm_while_stages_start_ends_the_command_and_its_cluster() -> None:
    with Popen([sys.executable, "-c", STARTING], stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        assert next((line for line in process.stdout if line == "up\n"), None)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.endswith("stopped before it served\n")
    assert "SIGTERM" not in said


def test_a_server_that_ends_at_its_start_says_why(tmp_path: Path) -> None:
    path = saved(tmp_path, 1, "one")
    why = r"it ended with 3: (?s:.*)need 2 boards; 1 given"
    server = started("rsn", "serve", str(path), "--boards", "sim", "--replicas", "2", "--port", "0")
    with pytest.raises(AssertionError, match=why), server:
        pass


@pytest.mark.parametrize("is_named", [long(True), full(False)])
def test_a_cluster_that_runs_is_joined(
    is_named: bool, running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its address, or as that of this computer."""
    *_, computers = running
    monkeypatch.setenv("RAY_ADDRESS", computers.address)
    address = computers.address if is_named else "auto"
    options = ("--boards", "sim", "--boards", "sim", "--ray", address, "--port", "0")
    with started("rsn", "serve", str(saved(tmp_path, 1, "one")), *options) as (_, found):
        front = Front(found)
        assert is_right(asked(front))
        assert {stage["node"] for stage in stages(front)} == {node["NodeID"] for node in ray.nodes() if node["Alive"]}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"cannot connect to a Ray cluster at '127\.0\.0\.1:1': .*refused"),
        ("nowhere.invalid:6379", r"cannot connect to a Ray cluster at 'nowhere\.invalid:6379'"),
        ("localhost:99999", r"cannot connect to a Ray cluster at 'localhost:99999'"),
        ("somewhere", "'somewhere' is no address of a Ray cluster: HOST:PORT, auto or local"),
    ],
)
def test_a_cluster_that_is_not_there(address: str, message: str) -> None:
    with pytest.raises(BoardError, match=message), on_ray.cluster(address):
        pass
