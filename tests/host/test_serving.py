"""Serving: requests that share runs, wait, time out, are cancelled, and outlive a board that fails."""

from __future__ import annotations

import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rsn.base.errors import BoardError, DeadlockError, ProgramError, TensorError
from rsn.host.boards.device import BoardBusy, BoardLost, BoardMemory, BoardTimeout
from rsn.host.runner import Runner
from rsn.host.serving import QueueFull, RequestTimeout, Serving, State
from rsn.host.serving.metrics import Metrics
from rsn.tests.effort import cases, in_full, long

from .rigged import COLUMNS, Array, Gate, Rig, attended, attention, linear, weights_of
from .soak import soak

SHAPES = ((1, 8), (4, 8), (4, 16))
QUICK = Serving(backoff_s=0.005, backoff_limit_s=0.02)
rng = np.random.default_rng(5)


def sequences(n: int, rows: int) -> Array:
    return rng.standard_normal((n, rows, COLUMNS)).astype(np.float32)


def family(*shapes: tuple[int, int], **options: Any) -> Runner:
    built = [attention(*shape) for shape in shapes or SHAPES]
    return Runner([b.program for b in built], weights=weights_of(built[0]), **options)


def shapes_run(rig: Rig) -> list[tuple[int, ...]]:
    """Sequences and rows of each program that was run."""
    return [program.buffer("x").view[:2] for program in rig.runs]


@contextmanager
def held(**options: Any) -> Iterator[tuple[Runner, Rig, Gate]]:
    """A family whose first run has begun and waits for the gate, so that what is asked now has to wait."""
    gate = Gate()
    rig = Rig(before=gate)
    with family(board=rig, **options) as runner:
        runner.submit({"x": sequences(1, 8)})
        assert gate.entered.wait(10)
        try:
            yield runner, rig, gate
        finally:
            gate.open()


def right(future: Future[Any], x: Array, lengths: list[int] | None = None) -> None:
    np.testing.assert_allclose(future.result(30).outputs["y"], attended(x, lengths), atol=1e-4)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


# -- sharing runs


def test_what_waits_shares_a_run_of_the_smallest_program() -> None:
    xs = [sequences(1, 8), sequences(2, 5), sequences(1, 3)]
    with held() as (runner, rig, gate):
        futures = [runner.submit({"x": x}) for x in xs]
        gate.open()
        for future, x in zip(futures, xs, strict=True):
            right(future, x)
    assert shapes_run(rig) == [(1, 8), (4, 8)]


def test_a_long_one_takes_the_others_along() -> None:
    xs = [sequences(1, 8), sequences(1, 12)]
    with held() as (runner, rig, gate):
        futures = [runner.submit({"x": x}) for x in xs]
        gate.open()
        for future, x in zip(futures, xs, strict=True):
            right(future, x)
    assert shapes_run(rig) == [(1, 8), (4, 16)]


def test_what_does_not_fit_comes_next_and_smaller_ones_may_overtake() -> None:
    xs = [sequences(3, 8), sequences(2, 8), sequences(1, 8)]
    with held() as (runner, rig, gate):
        futures = [runner.submit({"x": x}) for x in xs]
        gate.open()
        wait_for(futures, 30)
        for future, x in zip(futures, xs, strict=True):
            right(future, x)
        assert futures[0].result().run is futures[2].result().run
    assert shapes_run(rig) == [(1, 8), (4, 8), (4, 8)]


def test_each_has_its_own_lengths() -> None:
    xs = [sequences(2, 8), sequences(1, 6)]
    with held() as (runner, rig, gate):
        futures = [runner.submit({"x": xs[0]}, {"len[1]": 3}), runner.submit({"x": xs[1]}, {"len[0]": 2})]
        gate.open()
        right(futures[0], xs[0], [8, 3])
        right(futures[1], xs[1], [2])
    assert len(rig.runs) == 2


def test_a_program_without_masks_takes_whole_sequences() -> None:
    built = linear(4, 8)
    gate = Gate()
    rig = Rig(before=gate)
    xs = [sequences(1, 8), sequences(2, 8)]
    with Runner(built.program, weights=weights_of(built), board=rig) as runner:
        with pytest.raises(TensorError, match=r"x has shape \(1, 7, 64\); this program takes \(4, 8, 64\)"):
            runner.run({"x": sequences(1, 7)})
        runner.submit({"x": sequences(1, 8)})
        assert gate.entered.wait(10)
        futures = [runner.submit({"x": x}) for x in xs]
        gate.open()
        alone = [f.result(30).outputs["y"] for f in futures]
        together = runner.run({"x": np.concatenate([*xs, xs[0]])}).outputs["y"]
    assert [a.shape for a in alone] == [(1, 8, 64), (2, 8, 64)]
    np.testing.assert_allclose(np.concatenate([*alone, alone[0]]), together, atol=1e-5)
    assert len(rig.runs) == 3


def test_sequences_find_a_slot_that_is_long_enough() -> None:
    """Of a program that was compiled for sequences of different lengths."""
    built = attention(3, 200, (20, 200, 130))
    xs = [sequences(1, 10), sequences(1, 140), sequences(1, 120)]
    gate = Gate()
    rig = Rig(before=gate)
    with Runner(built.program, weights=weights_of(built), board=rig) as runner:
        runner.submit({"x": sequences(1, 8)})
        assert gate.entered.wait(10)
        futures = [runner.submit({"x": x}) for x in xs]
        gate.open()
        for future, x in zip(futures, xs, strict=True):
            right(future, x)
        as_it_is = sequences(3, 200)
        y = runner.run({"x": as_it_is}).outputs["y"]
        with pytest.raises(TensorError, match="this program takes"):
            runner.run({"x": sequences(2, 150)})
    assert len(rig.runs) == 3
    for i, rows in enumerate((20, 200, 130)):
        np.testing.assert_allclose(y[i : i + 1, :rows], attended(as_it_is[i : i + 1, :rows]), atol=1e-4)
        assert not y[i, rows:].any()


def test_the_first_waits_for_others_but_not_long() -> None:
    rig = Rig()
    with family(board=rig, serving=Serving(max_wait_s=0.3)) as runner:
        began = time.monotonic()
        futures = [runner.submit({"x": sequences(1, 8)}) for _ in range(3)]
        wait_for(futures, 30)
        assert 0.3 <= time.monotonic() - began < 5
        assert shapes_run(rig) == [(4, 8)]
    with family(serving=Serving(max_wait_s=60)) as runner:
        done, _ = wait_for([runner.submit({"x": sequences(2, 8)}) for _ in range(2)], 30)
        assert len(done) == 2  # full: nothing to wait for


def test_a_run_that_is_watched_is_its_own() -> None:
    told: list[float] = []
    with held() as (runner, rig, gate):
        thread = threading.Thread(target=lambda: runner.run({"x": sequences(1, 8)}, progress=told.append))
        thread.start()
        until(lambda: len(runner._queue) == 1)
        runner.submit({"x": sequences(1, 8)})
        gate.open()
        thread.join(30)
    assert shapes_run(rig) == [(1, 8)] * 3


# -- what is refused


def test_too_long_or_too_many() -> None:
    takes = "there are programs for batch 1 to 4, length 1 to 16$"
    with family() as runner:
        for x in (sequences(1, 17), sequences(5, 8)):
            with pytest.raises(TensorError, match=r"no program takes x of \(.*\); " + takes):
                runner.submit({"x": x})


@pytest.mark.parametrize(
    ("inputs", "parameters", "message"),
    [
        ({"x": sequences(1, 8)[:, :, :63]}, {}, r"no program takes x of \(1, 8, 63\)"),
        ({"x": sequences(1, 8).astype(np.float64)}, {}, "x has dtype float64; the machine computes in float32"),
        ({"x": [[1.0]]}, {}, "x: must be a numpy array, not list"),
        ({"x": np.zeros((0, 8, 64), np.float32)}, {}, "no program takes"),
        ({"x": np.zeros((1, 0, 64), np.float32)}, {}, "no program takes"),
        ({"x": sequences(1, 6)}, {"len[0]": 7}, r"len\[0\]=7 is out of range 1\.\.6"),
        ({"x": sequences(1, 6)}, {"len[0]": 0}, r"len\[0\]=0 is out of range 1\.\."),
        ({"x": sequences(1, 6)}, {"len[0]": 2.5}, r"parameter 'len\[0\]' must be a whole number, not 2\.5"),
        ({"x": sequences(2, 8)}, {"len[2]": 3}, r"len\[2\]: the request has 2 sequences"),
        ({"x": sequences(2, 8)}, {"len[4]": 3}, r"no parameter 'len\[4\]'"),
        ({"x\n\x1b[31m": sequences(1, 8)}, {}, r"no input 'x\\n\\x1b\[31m'; this program takes x"),
        ({"x": sequences(1, 8)}, {"../len": 3}, r"no parameter '\.\./len'"),
    ],
)
def test_bad_requests_are_refused_at_once(inputs: Any, parameters: Any, message: str) -> None:
    with family() as runner:
        with pytest.raises(TensorError, match=message):
            runner.submit(inputs, parameters)
        assert not runner._threads  # nothing was queued


def test_programs_of_a_family_belong_together() -> None:
    one, other = attention(1, 8), linear(1, 8)
    with pytest.raises(ProgramError, match=r"programs 0 and 1 are not of one network: .* is in one of them alone"):
        Runner([one.program, other.program], weights=weights_of(one))
    with pytest.raises(ProgramError, match="a runner needs a program"):
        Runner([])


def test_weights_of_another_network() -> None:
    weights = weights_of(attention(1, 8))
    built = linear(1, 8)
    with pytest.raises(TensorError, match=r"weight 'g\.weight' is missing"):
        Runner(built.program, weights=weights)
    with pytest.raises(TensorError, match=r"weight g\.weight has shape \(128,\); packed it has 16384 elements"):
        Runner(built.program, weights={"g.weight": weights["q.bias"], "g.bias": weights["q.bias"]})
    wide = {name: w.astype(np.float64) for name, w in weights_of(built).items()}
    with pytest.raises(TensorError, match=r"weight g\.\w+ has dtype float64"):
        Runner(built.program, weights=wide)


@pytest.mark.parametrize(
    "setting", [{"queue": 0}, {"max_wait_s": -1.0}, {"give_up_s": float("inf")}, {"backoff_s": float("nan")}]
)
def test_a_policy_that_cannot_be_meant(setting: Any) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} = "):
        Serving(**setting)


# -- NaN and infinities


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_own_sequence(value: float) -> None:
    clean, dirty = sequences(1, 8), sequences(1, 8)
    dirty[0, 2, 5] = value
    with held() as (runner, rig, gate), warnings.catch_warnings():
        warnings.simplefilter("error")
        futures = [runner.submit({"x": x}) for x in (clean, dirty, clean)]
        gate.open()
        results = [f.result(30).outputs["y"] for f in futures]
        after = runner.run({"x": clean}).outputs["y"]
    assert len(rig.runs) == 3
    assert np.isnan(results[1]).any()
    for y in (results[0], results[2], after):
        np.testing.assert_allclose(y, attended(clean), atol=1e-4)


# -- waiting


def test_a_full_queue_pushes_back() -> None:
    with held(serving=Serving(queue=2)) as (runner, _, gate):
        futures = [runner.submit({"x": sequences(1, 8)}) for _ in range(2)]
        with pytest.raises(QueueFull, match=r"the queue is full: 2 requests wait; no place in 0 s"):
            runner.submit({"x": sequences(1, 8)}, wait=0)
        began = time.monotonic()
        with pytest.raises(QueueFull, match=r"no place in 0\.1 s"):
            runner.submit({"x": sequences(1, 8)}, wait=0.1)
        assert 0.1 <= time.monotonic() - began < 5
        with pytest.raises(QueueFull):
            runner.submit({"x": sequences(1, 8)}, timeout=0.05)  # its time is all it can wait
        threading.Timer(0.1, gate.open).start()
        futures.append(runner.submit({"x": sequences(1, 8)}))
        for future in futures:
            assert future.result(30)


def test_time_is_over_while_it_waits_and_while_it_runs() -> None:
    gate = Gate()
    rig = Rig(before=gate)
    with family(board=rig) as runner:
        running = runner.submit({"x": sequences(1, 8)}, timeout=0.75)
        assert gate.entered.wait(10)
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=r"no answer in 0\.1 s: it was still in the queue"):
            runner.run({"x": sequences(1, 8)}, timeout=0.1)
        with pytest.raises(RequestTimeout, match=r"no answer in 0\.75 s: its run has not ended") as e:
            running.result(10)
        assert time.monotonic() - began < 5
        assert isinstance(e.value, BoardError)
        assert isinstance(e.value, TimeoutError)
        gate.open()
        x = sequences(1, 8)
        right(runner.submit({"x": x}, timeout=30), x)
    assert len(rig.runs) == 2  # the one that waited did not run


def test_what_was_cancelled_does_not_run() -> None:
    with held(serving=Serving(queue=2)) as (runner, rig, gate):
        futures = [runner.submit({"x": sequences(1, 8)}) for _ in range(2)]
        assert futures[0].cancel()
        kept = runner.submit({"x": sequences(1, 8)}, wait=0)  # its place is free at once
        gate.open()
        assert kept.result(30)
        with pytest.raises(CancelledError):
            futures[0].result(30)
        assert not kept.cancel()
    assert sum(view[0] for view in shapes_run(rig)) == 5  # one, then two in a program of four


def test_closing_finishes_what_was_submitted() -> None:
    xs = [sequences(1, 8) for _ in range(9)]
    with family() as runner:
        futures = [runner.submit({"x": x}) for x in xs]
    for future, x in zip(futures, xs, strict=True):
        assert future.done()
        right(future, x)
    assert runner.health.state is State.CLOSED


def test_closing_wakes_those_who_wait_for_room() -> None:
    errors: list[BaseException] = []

    def client(runner: Runner) -> None:
        try:
            runner.submit({"x": sequences(1, 8)})
        except BoardError as e:
            errors.append(e)

    with held(serving=Serving(queue=1)) as (runner, _, gate):
        runner.submit({"x": sequences(1, 8)})
        blocked = threading.Thread(target=client, args=(runner,))
        blocked.start()
        time.sleep(0.05)
        closing = threading.Thread(target=runner.close)
        closing.start()
        blocked.join(10)
        assert [str(e) for e in errors] == ["this runner is closed"]
        gate.open()
        closing.join(10)
        assert not closing.is_alive()


def test_a_callback_may_submit_but_not_wait_for_itself() -> None:
    seen: list[Any] = []

    def callback(future: Future[Any]) -> None:
        seen.append(runner.submit({"x": x}))
        for call in (lambda: runner.run({"x": x}), runner.close):
            try:
                call()
            except RuntimeError as e:
                seen.append(str(e))

    x = sequences(1, 8)
    with held() as (runner, _, gate):
        future = runner.submit({"x": x})
        future.add_done_callback(callback)
        gate.open()
        until(lambda: len(seen) == 3)
        right(seen[0], x)
    assert all("would wait for itself" in text for text in seen[1:])


def test_threads_and_futures_with_a_family() -> None:
    """Many callers of `run` at once: each gets its own."""
    problems: list[str] = []

    def client(runner: Runner, seed: int) -> None:
        mine = np.random.default_rng(seed)
        for _ in range(6):
            x = mine.standard_normal((1, int(mine.integers(1, 17)), COLUMNS)).astype(np.float32)
            y = runner.run({"x": x}).outputs["y"]
            if y.shape != x.shape or not np.allclose(y, attended(x), atol=1e-4):
                problems.append(f"client {seed}")

    with family() as runner:
        threads = [threading.Thread(target=client, args=(runner, seed)) for seed in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert problems == []


# -- a board that fails


def failing(*numbers: int, error: BaseException | None = None) -> Callable[[int], None]:
    """Raise at these calls."""

    def act(number: int) -> None:
        if number in numbers:
            raise error or BoardLost("the device is gone")

    return act


def test_a_request_is_tried_again_once_on_a_new_board() -> None:
    rig = Rig(before=failing(2))
    x = sequences(1, 8)
    with family(board=rig, serving=QUICK) as runner:
        assert runner.health.state is State.READY
        runner.run({"x": x})
        right(runner.submit({"x": x}), x)
        until(lambda: runner.health.state is State.READY)
        health = runner.health
        assert (health.error, health.failures) == ("BoardLost: the device is gone", 1)
    assert len(rig.runs) == 3
    assert rig.opened == rig.closed == 2 * len(SHAPES)


def test_a_request_under_which_it_fails_twice_gets_the_error() -> None:
    rig = Rig(before=failing(1, 2, error=BoardTimeout("the kernel did not end")))
    x = sequences(1, 8)
    with family(board=rig, serving=QUICK) as runner:
        with pytest.raises(BoardTimeout, match="did not end"):
            runner.run({"x": x})
        right(runner.submit({"x": x}), x)
    assert len(rig.runs) == 3


def test_without_a_policy_an_error_is_the_callers() -> None:
    rig = Rig(before=failing(1), opening=failing(5))
    x = sequences(1, 8)
    with family(board=rig) as runner:
        with pytest.raises(BoardLost):
            runner.run({"x": x})
        assert runner.health.state is State.FAILING
        with pytest.raises(BoardLost):
            runner.run({"x": x})  # opens it again, in vain
        np.testing.assert_allclose(runner.run({"x": x}).outputs["y"], attended(x), atol=1e-4)
        assert runner.health.state is State.READY
        assert runner.health.failures == 2


def test_requests_wait_while_the_board_is_down() -> None:
    opened = 2 * len(SHAPES)
    rig = Rig(before=failing(1), opening=failing(*range(len(SHAPES) + 1, opened + 1)))
    xs = [sequences(1, 8) for _ in range(3)]
    with family(board=rig, serving=QUICK) as runner:
        futures = [runner.submit({"x": x}) for x in xs]
        until(lambda: runner.health.state is State.FAILING)
        for future, x in zip(futures, xs, strict=True):
            right(future, x)
        until(lambda: runner.health.state is State.READY)
    assert runner.health.failures == 1 + len(SHAPES)


def test_a_board_that_stays_down() -> None:
    """What waits gets its error; and the runner closes."""
    rig = Rig(before=failing(1), opening=failing(*range(len(SHAPES) + 1, 10_000)))
    with family(board=rig, serving=Serving(backoff_s=0.005, backoff_limit_s=0.01, give_up_s=0.1)) as runner:
        futures = [runner.submit({"x": sequences(1, 8)}) for _ in range(3)]
        began = time.monotonic()
        for future in futures:
            with pytest.raises(BoardLost):
                future.result(30)
        assert 0.05 < time.monotonic() - began < 5
        assert runner.health.state is State.FAILING
        last = runner.submit({"x": sequences(1, 8)})
        with pytest.raises(BoardLost):
            last.result(30)


def test_it_recovers_without_being_asked() -> None:
    """A load balancer that sends nothing to a failing runner must see it recover; and before a run has ended well it
    is not trusted."""
    rig = Rig(before=failing(1, 2))
    with family(board=rig, serving=QUICK) as runner:
        with pytest.raises(BoardLost):
            runner.run({"x": sequences(1, 8)})
        until(lambda: runner.health.state is State.DEGRADED)
        since = runner.health.since
        runner.run({"x": sequences(1, 8)})
        assert runner.health.state is State.READY
        assert time.time() - 10 < since <= runner.health.since <= time.time()


def test_closing_while_a_run_fails() -> None:
    """In the thread of its caller: nobody is left to try it again."""
    gate = Gate()

    def act(number: int) -> None:
        gate(number)
        raise BoardLost("the device is gone")

    rig = Rig(before=act)
    runner = family(board=rig, serving=QUICK)
    errors: list[BaseException] = []

    def client() -> None:
        try:
            runner.run({"x": sequences(1, 8)})
        except BoardError as e:
            errors.append(e)

    threads = [threading.Thread(target=client), threading.Thread(target=runner.close)]
    threads[0].start()
    assert gate.entered.wait(10)
    threads[1].start()
    until(lambda: runner._closed)
    gate.open()
    for t in threads:
        t.join(10)
    assert [str(e) for e in errors] == ["the device is gone"]
    assert rig.opened == rig.closed == len(SHAPES)


def test_results_are_not_kept_by_the_runner() -> None:
    with family() as runner:
        future = runner.submit({"x": sequences(1, 8)}, timeout=3600)
        kept = weakref.ref(future.result(30))
        del future
        runner.submit({"x": sequences(1, 8)}).result(30)  # the last batch is another one
        until(lambda: kept() is None)


def test_an_error_of_the_program_is_not_the_boards() -> None:
    error = DeadlockError(lambda: None)  # type: ignore[arg-type,return-value]
    rig = Rig(before=failing(1, error=error))
    with family(board=rig, serving=QUICK) as runner:
        with pytest.raises(DeadlockError):
            runner.run({"x": sequences(1, 8)})
        assert runner.health.state is State.READY
    assert rig.opened == len(SHAPES)


def test_an_error_that_nobody_expected_is_answered_and_the_board_is_opened_anew() -> None:
    rig = Rig(before=failing(1, error=ZeroDivisionError("?")))
    x = sequences(1, 8)
    with family(board=rig, serving=QUICK) as runner:
        with pytest.raises(ZeroDivisionError):
            runner.submit({"x": x}).result(30)
        right(runner.submit({"x": x}), x)
    assert rig.opened == rig.closed == 2 * len(SHAPES)


def test_an_interrupt_reaches_the_board() -> None:
    """A run that nothing delays is in the calling thread."""
    here: list[threading.Thread] = []

    def interrupted(number: int) -> None:
        here.append(threading.current_thread())
        if number == 1:
            signal.raise_signal(signal.SIGINT)  # in this thread
            time.sleep(10)

    x = sequences(1, 8)
    began = time.monotonic()
    with family(board=Rig(before=interrupted), serving=QUICK) as runner:
        with pytest.raises(KeyboardInterrupt):
            runner.run({"x": x})
        right(runner.submit({"x": x}), x)
    assert here[0] is threading.main_thread()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("error", [BoardBusy("in use"), BoardMemory("no room")])
def test_boards_of_a_device_that_only_one_can_have_take_turns(error: BoardError) -> None:
    rig = Rig(only_one=error)
    with family((1, 8), (4, 8), board=rig) as runner:
        for n in (1, 3, 4, 1):
            x = sequences(n, 8)
            np.testing.assert_allclose(runner.run({"x": x}).outputs["y"], attended(x), atol=1e-4)
        assert runner.health.failures == 0
    assert rig.opened == rig.closed == 4  # the second one twice: in vain, and when its turn came


# -- figures


def test_figures() -> None:
    registry = CollectorRegistry()
    name = 'a"\\\n{}\udc80'
    value = registry.get_sample_value
    with held(metrics=Metrics(registry), name=name, serving=QUICK) as (runner, rig, gate):
        label = next(s.labels["runner"] for m in registry.collect() for s in m.samples if "runner" in s.labels)
        futures = [runner.submit({"x": sequences(1, 8)}) for _ in range(3)]
        assert value("rsn_queue_depth", {"runner": label}) == 3
        assert futures[2].cancel()
        rig.before = failing(2)
        gate.open()
        wait_for(futures, 30)
        assert runner.run({"x": sequences(1, 8)})
        text = generate_latest(registry).decode()
        counted = {
            s.labels["outcome"]: s.value
            for m in text_string_to_metric_families(text)
            for s in m.samples
            if s.name == "rsn_requests_total"
        }
        assert counted == {"ok": 4, "error": 0, "timeout": 0, "cancelled": 1, "full": 0}
        expected = {
            "rsn_board_failures_total": 1,
            "rsn_waiting_seconds_count": 4,
            "rsn_running_seconds_count": 3,
            "rsn_modelled_seconds_count": 3,
            "rsn_batch_fill_count": 3,
            "rsn_batch_fill_sum": 1 + 0.5 + 1,
            "rsn_queue_depth": 0,
        }
        assert {key: value(key, {"runner": label}) for key in expected} == expected
        assert value("rsn_health", {"runner": label, "rsn_health": "ready"}) == 1
    assert label == 'a"\\\n{}\\udc80'
    assert value("rsn_health", {"runner": label, "rsn_health": "closed"}) == 1


def test_runners_of_the_same_metrics_have_names_of_their_own() -> None:
    metrics = Metrics(CollectorRegistry())
    with family((1, 8), metrics=metrics):
        rig = Rig()
        with pytest.raises(ValueError, match="another runner of these metrics is called 'rsn'"):
            family((1, 8), metrics=metrics, board=rig)
        assert rig.opened == rig.closed == 1
    family((1, 8), metrics=metrics).close()


# -- all at once


@in_full
@pytest.mark.parametrize("seed", [1, long(2)])
def test_a_small_soak(seed: int) -> None:
    requests = cases(400, 120)
    tally = soak(requests, 16, seed, faults=0.15)
    assert tally.problems == []
    assert tally.outcomes["ok"] > requests * 3 / 4
    assert tally.failures > requests / 100
    assert tally.runs < requests * 3 / 4
