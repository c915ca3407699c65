"""Copies of a model over boards: stages, pipelines in this process, and who takes the requests. Ray: `test_on_ray`."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from rsn.base.errors import BoardBusy, BoardError, ContainerError, TensorError
from rsn.host.boards.device import BoardLost
from rsn.host.model.file import identity
from rsn.host.replicas import replicated, stage
from rsn.host.replicas.files import StageFile
from rsn.host.replicas.pipeline import LocalPipeline, PipelineLost
from rsn.host.replicas.replicated import ReplicatedServer
from rsn.host.replicas.stage import StageDown, StageOnBoard, StageReport
from rsn.host.serving import Health, QueueFull, RequestTimeout, State
from rsn.host.serving.call_times import AT_ONCE_S
from rsn.host.serving.metrics import Metrics

from .rigged import COLUMNS, Array, Rig
from .stages import ROWS, SERVING, Product, ProductServer, expected

STAGES = 3
TOLERANCE = 1e-5


def inputs(seed: int) -> Array:
    made: Array = np.random.default_rng(seed).standard_normal((1, ROWS, COLUMNS)).astype(np.float32)
    return made


def right(y: Any, x: Array, seeds: range = range(STAGES)) -> bool:
    wanted = expected(x, seeds)
    return bool(np.abs(y["x"] - wanted).max() <= TOLERANCE * np.abs(wanted).max())


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "DOWN_POLL_S", 0.005)
    monkeypatch.setattr(replicated, "FIGURES_S", 0.1)
    monkeypatch.setattr(stage, "LOOK_S", 0.01)
    monkeypatch.setattr(stage, "RETRY_S", 0.01)


@contextmanager
def served(start: Callable[[int], Any], count: int, **more: Any) -> Iterator[ReplicatedServer]:
    options: dict[str, Any] = {"name": "m", "arguments": (), "sizes": {}, "places": 2 * STAGES, **more}
    with ReplicatedServer(start, count, **options) as server:
        yield server


def local(boards: Sequence[Any], first_seed: int = 0) -> Callable[[int], LocalPipeline]:
    sources = [Product(first_seed + i) for i in range(STAGES)]
    return lambda number: LocalPipeline(sources, boards, STAGES * number, "m")


# -- stages on boards of this process


def test_stages_one_behind_the_other() -> None:
    with served(local(["sim"] * 6), 2) as server:
        server.settled()
        assert server.health == Health(State.READY, None, server.health.since)
        asked = [(x := inputs(i), server.ask({"x": x})) for i in range(12)]
        assert all(right(answer.result(10), x) for x, answer in asked)
        assert [[report.board for report in reports] for reports in server.reports()] == [["sim"] * STAGES] * 2
    assert server.health.state is State.CLOSED


def test_all_stages_work_at_the_same_time() -> None:
    """The last stage runs the first request while the one before runs the second, and so on: else these runs, which
    wait for each other, would end with an error."""
    meeting = threading.Barrier(STAGES, timeout=10)

    def meets(stage: int) -> Callable[[int], None]:
        return lambda run: None if stage + run != STAGES else (meeting.wait(), None)[1]

    with served(local([Rig(before=meets(i)) for i in range(STAGES)]), 1) as server:
        server.settled()
        asked = [(x := inputs(i), server.ask({"x": x})) for i in range(STAGES)]
        assert all(right(answer.result(20), x) for x, answer in asked)


def test_a_board_that_fails_during_a_run() -> None:
    """The stage runs it again on the board, or the request goes to another pipeline; the answer is the same."""

    def fails(number: int) -> None:
        if number % 3 == 0:
            raise BoardLost("the device is gone")

    boards = [Rig(before=fails) for _ in range(6)]
    with served(local(boards), 2) as server:
        server.settled()
        asked = [(x := inputs(i), server.ask({"x": x})) for i in range(20)]
        for x, answer in asked:
            assert right(answer.result(20), x)


def gone(number: int) -> None:
    raise BoardLost("the device is gone")


def test_boards_that_do_not_work_are_left_out_and_named() -> None:
    good, dead = Rig(), Rig(opening=gone)
    with StageOnBoard(Product(0), [dead, good], name="m") as one:
        until(lambda: one.report().is_open)
        report = one.report()
        assert (report.board, report.dead) == (str(good), {str(dead): "the device is gone"})
        assert right(one.ask({"x": inputs(1)}, 5.0).result(5), inputs(1), range(1))
        assert "rsn_requests_total" in one.report(True).figures
    with served(local([good, good, good, dead, dead, dead]), 2) as server:
        server.settled()  # a stage of the second pipeline begins with a board that is dead
        assert server.health.state is State.READY
    taken = Rig(opening=lambda number: _raise(BoardBusy("in use")))
    with served(local([dead, taken]), 1) as server:
        with pytest.raises(BoardError, match=r"0 of 1 replicas are ready; .*does not work: the device is gone"):
            server.settled()
        assert server.health.state is State.FAILING
        with pytest.raises(RequestTimeout, match=r"no answer in 0\.05 s"):
            server.ask({"x": inputs(1)}, timeout=0.05).result(5)


def _raise(error: Exception) -> None:
    raise error


def test_a_stage_that_cannot_be_loaded_says_why() -> None:
    """And does not try its other boards: none would help."""
    tried: list[str] = []

    def opening(board: str) -> None:
        tried.append(board)
        raise ContainerError("x.rsnmodel: no such file")

    with StageOnBoard(Product(0, opening), ["sim", "csim"]) as one:
        until(lambda: one.report().is_tried)
        assert one.report().health.error == "ContainerError: x.rsnmodel: no such file"
        with pytest.raises(StageDown, match="no such file"):
            one.ask({"x": inputs(0)}, 1.0)
        until(lambda: len(tried) >= 2)
    assert set(tried) == {"sim"}


def test_a_board_that_stays_down_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "FAILING_S", 0.05)
    first, second = Rig(), Rig()
    with StageOnBoard(Product(0), [first, second]) as one:
        until(lambda: one.report().is_open)
        assert one.report().board == str(first)
        first.before = first.opening = gone
        with pytest.raises(BoardError):
            one.ask({"x": inputs(0)}, 5.0).result(5)
        until(lambda: one.report().board == str(second))
        assert right(one.ask({"x": inputs(0)}, 5.0).result(5), inputs(0), range(1))


# -- who takes the requests, with pipelines that do as they are told


@pytest.mark.parametrize("is_long", [False, True])
def test_only_short_host_parts_are_computed_in_the_event_loop(is_long: bool) -> None:
    asked: list[threading.Thread] = []

    class Noting(ProductServer):
        def ask(self, *args: Any, **kwargs: Any) -> Any:
            asked.append(threading.current_thread())
            began = time.thread_time()
            while is_long and time.thread_time() - began < 2 * AT_ONCE_S:
                pass
            return super().ask(*args, **kwargs)

    class Noted(Product):
        def open(self, *args: Any) -> ProductServer:
            return Noting(super().open(*args)._runner)

    x = inputs(0)
    with StageOnBoard(Noted(0), ["sim"]) as one:
        until(lambda: one.report().is_open)

        async def answers() -> None:
            for _ in range(3):
                assert right(await one.answer({"x": x}, 60.0), x, range(1))

        asyncio.run(answers())
    assert [thread is threading.current_thread() for thread in asked] == [False, *[not is_long] * 2]


class Told:
    """A pipeline that says its state from `reports`, and does with a request what `act` says: a result, an error to
    raise, or None to wait until `release`."""

    def __init__(self, act: Callable[[Any], Any] = lambda x: x, board: str = "sim") -> None:
        self.act, self.state = act, StageReport(board, Health(), is_tried=True)
        self.released = asyncio.Event()
        self.asked: list[Any] = []
        self.closed = 0
        self.restarts: list[float] = []

    async def ask(self, inputs: Mapping[str, Any], timeout: float) -> Any:
        assert not self.closed
        self.asked.append(inputs["x"])
        found = self.act(inputs["x"])
        if found is None:
            await self.released.wait()
            return inputs["x"]
        await asyncio.sleep(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def reports(self, figures: bool = False) -> list[StageReport]:
        if self.state.board == "hangs":
            await asyncio.sleep(3600)
        if self.state.board == "gone":
            raise PipelineLost("no stage")
        return [self.state]

    def restart(self) -> None:
        self.restarts.append(time.monotonic())

    async def close(self) -> None:
        self.closed += 1


def told(*pipelines: Told, **more: Any) -> Any:
    return served(lambda number: pipelines[number], len(pipelines), **more)


def test_a_request_whose_pipeline_is_lost_is_asked_again() -> None:
    lost = Told(lambda x: PipelineLost("it died"))
    other = Told()
    with told(lost, other) as server:
        server.settled()
        answers = [server.ask({"x": i}) for i in range(8)]
        assert [answer.result(5) for answer in answers] == list(range(8))
        assert sorted(other.asked) == list(range(8))
        assert server.health.failures >= 1


@pytest.mark.parametrize(
    ("error", "tries", "raised", "message"),
    [
        (PipelineLost("it died"), 3, BoardError, "3 pipelines were lost while they ran this request"),
        (BoardLost("the device is gone"), 3, BoardLost, "the device is gone"),
        (TensorError("input_ids"), 1, TensorError, "input_ids"),
        (QueueFull("full"), 1, QueueFull, "full"),
        (RequestTimeout("no answer in 0.4999 s: it was in the queue"), 1, RequestTimeout, "no answer in 60 s"),
        (ZeroDivisionError("a bug"), 1, ZeroDivisionError, "a bug"),
    ],
)
def test_errors_of_pipelines(error: Exception, tries: int, raised: type[Exception], message: str) -> None:
    one = Told(lambda x: error)
    registry = CollectorRegistry()
    with told(one, metrics=Metrics(registry)) as server:
        server.settled()
        with pytest.raises(raised) as found:
            server.ask({"x": 1}).result(5)
        assert (type(found.value), str(found.value)) == (raised, message)
        assert len(one.asked) == tries
        outcome = {"RequestTimeout": "timeout", "QueueFull": "full"}.get(raised.__name__, "error")
        assert f'rsn_requests_total{{outcome="{outcome}",runner="m"}} 1.0' in generate_latest(registry).decode()


def test_a_stage_without_board_costs_no_attempt() -> None:
    failures = iter([StageDown("its board is being opened")] * 10)
    one = Told(lambda x: next(failures, x))
    with told(one) as server:
        server.settled()
        assert server.ask({"x": 7}).result(5) == 7
        assert len(one.asked) == 11


def test_requests_wait_for_a_place_in_their_order() -> None:
    one = Told(lambda x: None if x == 0 else x)
    with told(one, places=1, queue=2) as server:
        server.settled()
        answers = [server.ask({"x": i}) for i in range(3)]
        with pytest.raises(QueueFull, match="the queue is full: 2 requests wait"):
            server.ask({"x": 3}).result(5)
        assert answers[1].cancel()
        server._loop.call_soon_threadsafe(one.released.set)
        assert [answers[0].result(5), answers[2].result(5)] == [0, 2]
        assert one.asked == [0, 2]
        with pytest.raises(CancelledError):
            answers[1].result(5)
        assert server.ask({"x": 4}).result(5) == 4


def test_a_request_that_its_client_gives_up_frees_its_place() -> None:
    one = Told(lambda x: None if x == 0 else x)
    with told(one, places=1) as server:
        server.settled()
        first, second = server.ask({"x": 0}), server.ask({"x": 1})
        until(lambda: one.asked == [0])
        assert first.cancel()
        assert second.result(5) == 1


def test_a_pipeline_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("GRACE_S", 0.05), ("POLL_S", 0.01), ("POLL_LIMIT_S", 0.05), ("HUNG_S", 0.2)):
        monkeypatch.setattr(replicated, name, seconds)
    one, other = Told(lambda x: None), Told()
    with told(one, other) as server:
        server.settled()
        with pytest.raises(RequestTimeout, match=r"no answer in 0\.05 s"):
            server.ask({"x": 1}, timeout=0.05).result(5)
        one.state = StageReport("hangs", Health())
        until(lambda: server.health.state is State.DEGRADED)
        assert [server.ask({"x": i}).result(5) for i in range(4)] == list(range(4))  # the other one answers
        until(lambda: len(one.restarts) == 3)
        _, second, third = one.restarts
        assert third - second > 4 * 0.2  # each time it has twice as long to start


@pytest.mark.parametrize(
    ("boards", "state", "error"),
    [
        (["sim", "sim"], State.READY, None),
        (["sim", "gone"], State.DEGRADED, "1 of 2 replicas are ready"),
        (["gone", "gone"], State.FAILING, "0 of 2 replicas are ready"),
        (["sim", ""], State.DEGRADED, "1 of 2 replicas are ready; no board is free"),
    ],
)
def test_health_is_that_of_the_pipelines(boards: list[str], state: State, error: str | None) -> None:
    pipelines = [Told() for _ in boards]
    with told(*pipelines) as server:
        server.settled()
        for pipeline, board in zip(pipelines, boards, strict=True):
            failing = Health(State.FAILING, "no board is free")
            pipeline.state = StageReport(board, Health() if board else failing, is_tried=True)
            for member in server._members:
                server._loop.call_soon_threadsafe(member.look.set)
        until(lambda: (server.health.state, server.health.error) == (state, error))
        assert server.health.failures == (state is not State.READY)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_each_request_has_one_answer_and_its_own(seed: int, count: int, places: int) -> None:
    """While pipelines are lost, have no boards, and are replaced."""
    choose = random.Random(seed)

    def act(x: int) -> Any:
        return choose.choices([x, PipelineLost("it died"), StageDown("no board")], [8, 1, 1])[0]

    made: list[Told] = []

    def start(number: int) -> Told:
        made.append(Told(act))
        return made[-1]

    with served(start, count, places=places) as server:
        server.settled()
        answers = {i: server.ask({"x": i}) for i in range(40)}
        server.replace(start)
        answers |= {i: server.ask({"x": i}) for i in range(40, 50)}
        wait(answers.values(), 20)
        for i, answer in answers.items():
            if (error := answer.exception(0)) is None:
                assert answer.result(0) == i
            else:
                assert str(error) == "3 pipelines were lost while they ran this request"
        assert [pipeline.closed for pipeline in made] == [1] * count + [0] * count
    assert all(pipeline.closed == 1 for pipeline in made)


# -- replacement


def test_a_model_is_replaced_without_a_lost_request() -> None:
    boards = ["sim"] * 6
    over = threading.Event()
    found: list[tuple[Array, Any]] = []
    with served(local(boards), 2) as server:
        server.settled()

        def client(seed: int) -> None:
            while not over.is_set():
                x = inputs(seed)
                found.append((x, server.ask({"x": x}).result(10)))

        asking = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in asking:
            thread.start()
        until(lambda: len(found) > 8)
        server.replace(local(boards, first_seed=50))
        behind = len(found)
        until(lambda: len(found) > behind + 12)
        over.set()
        for thread in asking:
            thread.join()
    new = range(50, 50 + STAGES)
    assert all(right(y, x) or right(y, x, new) for x, y in found)
    assert right(found[0][1], found[0][0])
    assert all(right(y, x, new) for x, y in found[behind + 4 :])


def test_a_replacement_that_does_not_work_is_taken_back() -> None:
    def bad(number: int) -> Told:
        pipeline = Told(board="")
        pipeline.state = StageReport("", Health(State.FAILING, "x.rsnmodel: no such file"), is_tried=True)
        return pipeline

    made: list[Told] = []

    def good(number: int) -> Told:
        made.append(Told())
        return made[-1]

    with served(good, 2) as server:
        server.settled()
        with pytest.raises(BoardError, match=r"the replacement of pipeline 0 does not work: x\.rsnmodel: no such file"):
            server.replace(bad)
        server.settled()
        assert server.health.state is State.READY
        assert server.ask({"x": 5}).result(5) == 5
    assert [pipeline.closed for pipeline in made] == [1, 1, 1]


def test_metrics_of_all_stages() -> None:
    registry = CollectorRegistry()
    with served(local(["sim"] * 6), 2, metrics=Metrics(registry)) as server:
        registry.register(server)
        server.settled()
        wait([server.ask({"x": inputs(i)}) for i in range(6)], 10)
        assert 'rsn_requests_total{outcome="ok",runner="m"} 6.0' in generate_latest(registry).decode()
        until(lambda: _ran(registry) == 6 * STAGES)


def _ran(registry: CollectorRegistry) -> float:
    return sum(
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "rsn_stage_requests_total"
        and sample.labels["outcome"] == "ok"
        and {"replica", "stage", "runner"} <= sample.labels.keys()
    )


# -- files


def test_a_file_that_was_replaced_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import rsn

    path = tmp_path / "x.rsnmodel"
    models = [torch.nn.Linear(64, 64).eval() for _ in range(2)]
    x = torch.randn(1, 8, 64)

    def write(model: Any) -> None:
        rsn.compile(model, (x,)).save(path)

    write(models[0])
    first = StageFile(str(path), identity(path), 0, 1, SERVING)
    server = first.open("sim", None, "m")
    assert torch.allclose(server.ask({"input": x}).result(10), models[0](x), atol=1e-4)
    server.close()
    write(models[1])
    with pytest.raises(ContainerError, match="another model than the one that is served"):
        first.open("sim", None, "m")
    (tmp_path / "y.rsnmodel").write_bytes(b"nothing")
    with pytest.raises(ContainerError, match="not a model file"):
        identity(tmp_path / "y.rsnmodel")


def test_files_that_several_threads_load_leave_stderr_alone(tmp_path: Path) -> None:
    """Loading suppresses torch's messages meanwhile."""
    torch = pytest.importorskip("torch")
    import rsn

    rsn.compile(torch.nn.Linear(64, 64).eval(), (torch.randn(1, 8, 64),)).save(tmp_path / "x.rsnmodel")
    before = sys.stderr
    loading = [threading.Thread(target=rsn.load, args=(tmp_path / "x.rsnmodel",)) for _ in range(4)]
    for thread in loading:
        thread.start()
    for thread in loading:
        thread.join()
    assert sys.stderr is before


@pytest.mark.long
def test_a_model_that_is_cut_into_stages(tmp_path: Path) -> None:
    """Requests of several sizes, on two copies: one after the other to the last bit what one board gives, and PyTorch's
    when they share runs."""
    torch = pytest.importorskip("torch")
    from transformers import BertConfig, BertModel

    import rsn

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    ids = torch.randint(100, (4, 24))
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sizes = {name: {0: rsn.Batch(1, 4), 1: rsn.Length(24)} for name in example}
    for boards in (1, 2):
        rsn.compile(model, example, dynamic_shapes=sizes, boards=boards).save(tmp_path / f"{boards}.rsnmodel")
    path = tmp_path / "2.rsnmodel"
    sources = [StageFile(str(path), identity(path), i, 2, SERVING) for i in range(2)]
    with (
        rsn.load(tmp_path / "1.rsnmodel") as one,
        served(lambda number: LocalPipeline(sources, ["sim"] * 4, 2 * number, "m"), 2) as server,
    ):
        server.settled()
        asked = []
        for batch, length in ((1, 5), (2, 24), (4, 7), (3, 9), (1, 24)):
            ids = torch.randint(100, (batch, length))
            asked.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        for inputs in asked:
            assert torch.equal(server.ask(inputs).result(20).last_hidden_state, one(**inputs).last_hidden_state)
        answers = [server.ask(inputs) for inputs in asked]
        for inputs, answer in zip(asked, answers, strict=True):  # some share a run of the larger program
            found, wanted = answer.result(20).last_hidden_state, model(**inputs).last_hidden_state
            assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        with pytest.raises(TensorError, match="25"):
            server.ask({"input_ids": ids[:1, :1].expand(1, 25), "attention_mask": ids.new_ones(1, 25)}).result(10)
