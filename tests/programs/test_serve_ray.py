"""Saved models on two boards with Ray: small random models, compared with PyTorch, while replicas are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray Serve is not installed: pip install -e '.[ray]'")
torch = pytest.importorskip("torch")

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError  # noqa: E402
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError  # noqa: E402

from rsn.base.errors import BoardBusy, BoardError, BoardMemory, ProgramError, RsnError, TensorError  # noqa: E402
from rsn.host.serving import QueueFull, RequestTimeout, State  # noqa: E402
from rsn.programs import serve_ray  # noqa: E402
from rsn.programs.serve_ray import Replica, Replicas, ReplicatedModel, Settings, front  # noqa: E402
from rsn.tests.effort import cases, in_full  # noqa: E402
from rsn.tests.host.fronts import Front, started  # noqa: E402
from rsn.tests.host.rigged import Gate, Rig  # noqa: E402
from rsn.tests.host.soak_http import Client  # noqa: E402
from rsn.tests.host.test_http import answered, call  # noqa: E402
from rsn.tests.programs.small_encoders import LONGEST, expected, saved, small  # noqa: E402
from rsn.tests.programs.soak_ray import MODELS, soak  # noqa: E402

pytestmark = pytest.mark.long

IDS = [[1, 5, 9, 99], [1, 99]]
INPUTS = {"input_ids": [[1, 5, 9, 99], [1, 99, 0, 0]], "attention_mask": [[1, 1, 1, 1], [1, 1, 0, 0]]}
HEADER = "serve_multiplexed_model_id"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {name: str(saved(folder, seed, name)) for name, seed in MODELS.items()}


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def right(y: Any, model: str) -> bool:
    wanted = expected(small(MODELS[model]), IDS)
    return np.shape(y) == wanted.shape and np.allclose(y, wanted, atol=1e-4)


# -- the program


@pytest.fixture(scope="module")
def program(models: dict[str, str]) -> Iterator[tuple[Popen[str], Front]]:
    command = ("rsn.programs.serve_ray", *models.values(), "--boards", "sim", "sim", "--port", "0", "--queue", "32")
    with started(*command) as (process, address):
        yield process, Front(address)


def post(served: Front, body: Any, **headers: str) -> tuple[int, Any]:
    status, found, text = Client([served]).ask(0, "POST", "/", json.dumps(body), headers)
    if status == 503:
        assert found["retry-after"]
    return status, json.loads(text)


def test_two_models_on_two_boards(program: tuple[Popen[str], Front]) -> None:
    _, served = program
    for name, given in (("one", {}), ("two", {HEADER: "two"}), ("one", {HEADER: "one"})):
        status, found = post(served, {"inputs": INPUTS}, **given)
        assert status == 200, found
        assert right(found["outputs"], name)
    until(lambda: served.figures()["rsn_requests_total"] == 3)
    _, replicas = served.get("/replicas")
    assert len(replicas) == 2
    assert {status["board"] for status in replicas.values()} == {"sim"}
    assert {name for status in replicas.values() for name in status["models"]} == {"one", "two"}
    for model in (m for status in replicas.values() for m in status["models"].values()):
        assert set(model["cold_start_s"]) == {"load", "open"}
        assert model["resident"]
        assert model["health"]["state"] == "ready"
    status, health = served.get("/health")
    assert (status, health["state"]) == (200, "ready")
    assert served.get("/")[1]["name"] == "one"


def test_what_is_refused(program: tuple[Popen[str], Front]) -> None:
    _, served = program
    long = {name: [[1] * (LONGEST + 1)] for name in INPUTS}
    for body, headers, status, message in (
        ({"inputs": long}, {}, 422, f"{LONGEST + 1}"),
        ({"inputs": {}}, {}, 422, "argument input_ids is missing"),
        ("hello", {}, 422, "the body is a string"),
        ({"inputs": INPUTS}, {HEADER: "three../x"}, 404, "there is no model 'three../x'; the models are one, two"),
    ):
        found, answer = post(served, body, **headers)
        assert (found, list(answer)) == (status, ["error"])
        assert message in answer["error"]
        assert "Traceback" not in answer["error"]
    assert Client([served]).ask(0, "DELETE", "/")[0] == 405


@in_full
def test_soak(program: tuple[Popen[str], Front]) -> None:
    """More of it: `soak_ray`. Most of its time are replicas that start again."""
    _, served = program
    requests, kills = cases(60, 30), cases(2, 1)
    tally = soak(served, requests=requests, clients=8, seed=3, kills=kills)
    assert not tally.problems, tally
    assert tally.ended["killed"] >= kills
    assert tally.outcomes["ok"] > 7 * requests // 12


def lives(process: int) -> bool:
    """Whether a process is there, and is more than an exit code that nobody has asked for."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_replicas_that_hang(program: tuple[Popen[str], Front]) -> None:
    _, served = program
    processes: list[int] = []

    def are_there() -> bool:
        """The list is what the replicas last said of themselves: one that was killed since may still be on it."""
        processes[:] = served.processes()
        return len(processes) == 2 and all(map(lives, processes))

    until(are_there, 60)
    assert post(served, {"inputs": INPUTS})[0] == 200
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        began = time.monotonic()
        status, found = post(served, {"inputs": INPUTS, "timeout_s": 0.5})
        assert (status, found) == (504, {"error": "no answer in 0.5 s"})
        assert time.monotonic() - began < 5
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # Ray kills a replica that does not answer for long
                os.kill(process, signal.SIGCONT)
    until(lambda: post(served, {"inputs": INPUTS})[0] == 200, 60)


def test_the_end_answers_what_is_under_way(program: tuple[Popen[str], Front]) -> None:
    process, served = program
    answers: list[Any] = []
    asking = [threading.Thread(target=lambda: answers.append(post(served, {"inputs": INPUTS}))) for _ in range(8)]
    before = served.figures()["rsn_requests_total"]
    for t in asking:
        t.start()
    until(lambda: served.figures()["rsn_requests_total"] > before)  # some are answered, others wait
    process.terminate()
    for t in asking:
        t.join()
    assert process.wait(60) == 0
    assert [status for status, _ in answers] == [200] * 8


# -- a replica, without Ray


def ask(replica: Replica, model: str) -> Any:
    replica.load(model)
    inputs = {name: np.array(x) for name, x in INPUTS.items()}
    return replica.submit(model, inputs, 30.0).result()


def test_models_take_turns_on_a_device_that_one_server_can_have(models: dict[str, str]) -> None:
    """And a replica takes the first board that is free."""

    def taken(number: int) -> None:
        raise BoardBusy("in use by another replica")

    def none(number: int) -> None:
        raise BoardMemory("no room")

    free = Rig(only_one=BoardBusy("in use"))
    boards = [Rig(opening=taken), Rig(opening=none), free]
    replica = Replica(Settings(models, boards))
    for model in ("two", "one", "two"):
        assert right(ask(replica, model), model)
    resident = {name: status["resident"] for name, status in replica.status()["models"].items()}
    assert resident == {"one": False, "two": True}
    assert "rsn_requests_total" in replica.figures()
    replica.check_health()
    replica.close()
    assert free.opened == free.closed > 3
    for boards_taken, kind in ((boards[:1], BoardBusy), (boards[:2], BoardMemory)):
        with pytest.raises(kind):
            Replica(Settings(models, boards_taken))


def test_boards_that_do_not_work_are_passed_over(models: dict[str, str]) -> None:
    def gone(number: int) -> None:
        raise BoardError("the device is gone")

    boards = [Rig(opening=gone), Rig()]
    replica = Replica(Settings(models, boards))
    assert right(ask(replica, "one"), "one")
    assert replica.status()["board"] == str(boards[1])
    assert replica.status()["dead"] == {str(boards[0]): "the device is gone"}
    replica.close()
    with pytest.raises(BoardError, match="does not work: the device is gone"):
        Replica(Settings(models, boards[:1]))


@pytest.mark.full
def test_a_server_begins_with_the_boards_that_work(models: dict[str, str]) -> None:
    """The other one needs a library that is not here, or a device."""
    command = ("rsn.programs.serve_ray", models["one"], "--boards", "vck190@xrt:0", "sim", "--port", "0")
    with started(*command) as (_, address):
        served = Front(address)
        status, found = post(served, {"inputs": INPUTS})
        assert status == 200, found
        assert right(found["outputs"], "one")
        until(lambda: served.get("/health")[1]["state"] == "degraded", 30)
        status, health = served.get("/health")
        assert status == 200
        assert health["error"].startswith("1 of 2 replicas are ready; vck190@xrt:0 does not work: ")


def test_models_stay_on_a_board_that_has_room(models: dict[str, str]) -> None:
    board = Rig()
    replica = Replica(Settings(models, [board]))
    for model in ("two", "one", "two"):
        assert right(ask(replica, model), model)
    assert all(status["resident"] for status in replica.status()["models"].values())
    assert not board.closed
    replica.close()


def test_a_server_that_makes_way_answers_first(models: dict[str, str]) -> None:
    gate = Gate()
    replica = Replica(Settings(models, [Rig(before=gate, only_one=BoardBusy("in use"))]))
    inputs = {name: np.array(x) for name, x in INPUTS.items()}
    first = replica.submit("one", inputs, 30.0)
    assert gate.entered.wait(10)
    threading.Timer(0.2, gate.open).start()
    assert right(ask(replica, "two"), "two")
    assert right(first.result(0), "one")
    replica.close()


def test_a_board_that_stays_down_calls_for_another_replica(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(number: int) -> None:
        raise BoardError("the device is gone")

    board = Rig()
    replica = Replica(Settings(models, [board]))
    board.before = board.opening = lost
    answer = replica.submit("one", {name: np.array(x) for name, x in INPUTS.items()}, 0.2)
    assert isinstance(answer.exception(10), RequestTimeout)
    replica.check_health()
    monkeypatch.setattr(Replica, "FAILING_S", 0.0)
    with pytest.raises(BoardError, match=r"one on .*the device is gone"):
        replica.check_health()
    replica.close()


def test_errors_that_can_be_pickled() -> None:
    for error, kind in (
        (BoardBusy("in use"), BoardError),
        (QueueFull("full"), QueueFull),
        (TensorError("x"), TensorError),
        (ProgramError("y"), RsnError),
    ):
        plain = serve_ray._plain(error)
        assert type(plain) is kind
        assert str(plain) == str(error)


# -- the process in front, with replicas that do as they are told


class Response:
    def __init__(self, result: Any) -> None:
        self.result, self.cancelled = result, False

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        await asyncio.sleep(3600 if self.result is None else 0)
        if isinstance(self.result, Exception) and not isinstance(self.result, RsnError):
            raise self.result
        return self.result

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Ray's, of replicas that give these results one after the other. reports: of the replicas; one may be an error."""

    def __init__(self, *results: Any) -> None:
        self.results, self.responses, self.reports = list(results), list[Response](), list[Any]()
        self.ask = self

    def options(self, *, multiplexed_model_id: str) -> Handle:
        assert multiplexed_model_id == "one"
        return self

    def remote(self, inputs: Any, timeout: float) -> Response:
        self.responses.append(Response(self.results.pop(0)))
        return self.responses[-1]

    def broadcast(self, method: str) -> Handle:
        assert method == "report"
        return self

    async def results_async(self, *, return_exceptions: bool) -> list[Any]:
        if self.reports == ["hangs"]:
            await asyncio.sleep(3600)
        if self.reports == ["none"]:
            raise DeploymentUnavailableError(None)
        return self.reports


@pytest.fixture
def asked(models: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """Asks an application whose replicas give these results."""
    opened: list[Replicas] = []
    model = ReplicatedModel("one", models["one"], 60.0)

    def ask(*results: Any, **more: Any) -> tuple[Any, Handle]:
        handle = Handle(*results)
        model.replicas = Replicas(handle, Settings(models))
        opened.append(model.replicas)
        return call(front(model.replicas, {"one": model}), json={"inputs": INPUTS} | more), handle

    yield ask
    for replicas in opened:
        replicas.close()


def died() -> Exception:
    return ActorDiedError()


def unavailable() -> Exception:
    return ActorUnavailableError("not there", None)


@pytest.mark.parametrize("deaths", [[died()], [unavailable(), died()]])
def test_a_request_whose_replica_dies_is_asked_again(asked: Any, deaths: list[Exception]) -> None:
    response, handle = asked(*deaths, np.float32([[1.5]]))
    assert answered(response) == {"outputs": [[1.5]]}
    assert len(handle.responses) == len(deaths) + 1


@pytest.mark.parametrize(
    ("results", "status", "message"),
    [
        ([died()] * 4, 503, "3 replicas died while they ran this request"),
        ([BackPressureError(1, 1)], 503, "the queue is full: no replica has a place for another request"),
        ([DeploymentUnavailableError(None)], 503, "no replica could be started; Ray's log says why"),
        ([BoardError("the device is gone")], 503, "the device is gone"),
        ([QueueFull("32 requests wait")], 503, "32 requests wait"),
        ([TensorError("input_ids")], 422, "input_ids"),
        ([RsnError("an error")], 500, "an error"),
        ([RequestTimeout("no answer in 0.4999 s")], 504, "no answer in 60 s"),
        ([RayTaskError("ask", "a secret", ValueError("a secret"))], 500, "internal error"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_errors_of_replicas(asked: Any, results: list[Exception], status: int, message: str) -> None:
    response, _ = asked(*results)
    assert answered(response, status) == {"error": message}
    assert (response.headers.get("retry-after") == "1") is (status == 503)


def test_a_replica_that_does_not_answer(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_ray, "GRACE_S", 0.1)
    response, handle = asked(None, timeout_s=0.1)
    assert answered(response, 504) == {"error": "no answer in 0.1 s"}
    assert handle.responses[0].cancelled


def report(name: str, *states: str) -> Any:
    healths = [{"state": state, "error": None if state == "ready" else f"{name} is down"} for state in states]
    return name, {"models": {str(i): {"health": health} for i, health in enumerate([*healths, None])}}, ""


@pytest.mark.parametrize(
    ("reports", "least", "state", "error"),
    [
        ([report("a", "ready"), report("b", "ready", "degraded")], None, State.READY, None),
        ([report("a", "ready")], None, State.DEGRADED, "1 of 2 replicas are ready"),
        ([report("a", "ready")], 1, State.READY, None),
        ([report("a", "ready"), report("b", "ready", "failing")], None, State.DEGRADED, "b is down"),
        ([report("a", "failing"), report("b", "closed")], None, State.FAILING, "a is down"),
        ([report("a", "ready"), died()], None, State.DEGRADED, "1 of 2 replicas are ready"),
        ([], None, State.FAILING, "0 of 2 replicas are ready"),
        (["none"], None, State.FAILING, "no replica: DeploymentUnavailableError"),
        (["hangs"], None, State.DEGRADED, "a replica does not answer"),
    ],
)
def test_health_is_that_of_the_replicas(
    monkeypatch: pytest.MonkeyPatch, reports: list[Any], least: int | None, state: State, error: str | None
) -> None:
    monkeypatch.setattr(serve_ray, "POLL_S", 0.02)
    monkeypatch.setattr(serve_ray, "POLL_LIMIT_S", 0.1)
    handle = Handle()
    handle.reports = [report("a", "ready"), report("b", "ready")]
    replicas = Replicas(handle, Settings({}, ("sim", "sim"), least))
    until(lambda: len(replicas.known) == 2)
    handle.reports = reports
    until(lambda: (replicas.health.state, replicas.health.error) == (state, error))
    assert replicas.health.failures == (state is not State.READY)
    replicas.close()


def test_figures_of_all_replicas(models: dict[str, str]) -> None:
    handle = Handle()
    text = '# TYPE rsn_requests_total counter\nrsn_requests_total{{runner="one"}} {}\n'
    handle.reports = [("a", {"models": {}}, text.format(3)), ("b", {"models": {}}, text.format(4))]
    replicas = Replicas(handle, Settings(models))
    until(lambda: bool(replicas.known))
    (family,) = replicas.collect()
    assert {s.labels["replica"]: (s.labels["runner"], s.value) for s in family.samples} == {
        "a": ("one", 3),
        "b": ("one", 4),
    }
    model = ReplicatedModel("one", models["one"], 60.0)
    model.replicas = replicas
    response = call(front(replicas, {"one": model}), "GET", "/metrics")
    assert 'rsn_requests_total{replica="b",runner="one"} 4.0' in response.text
    replicas.close()


# -- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a/x.rsnmodel", "b/x.rsnmodel"], "two models have the name x; the files' names must differ"),
        (["--timeout", "nan"], "argument --timeout: nan is not in the range"),
        (["--queue", "0"], "queue = 0: 1 or more, and finite"),
        (["--max-wait", "nan"], "max_wait_s = nan"),
        (["--port", "65536"], "argument --port: 65536 is not in the range 0 to 65535"),
        (["--boards", "sim", "--least", "2"], "argument --least: 2 is not in the range 1 to 1"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        serve_ray.main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_wrong_is_said_before_ray_starts(models: dict[str, str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.rsnmodel"
    with pytest.raises(RsnError, match=r"nothing\.rsnmodel: no such file"):
        serve_ray.main([str(nothing), "--port", "0"])
    with pytest.raises(BoardError, match="vck1900"):
        serve_ray.main([models["one"], "--boards", "sim", "vck1900", "--port", "0"])
    assert not ray.is_initialized()
