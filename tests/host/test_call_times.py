"""Calls of servers, in the event loop or in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest

from rsn.host.serving.call_times import AT_ONCE_S, MEASURED, CallTimes, LoopCalls, elements
from rsn.host.serving.core import Core
from rsn.host.serving.health import Health
from rsn.host.serving.server import MachineRequest, QueuedCall, Server

from .rigged import COLUMNS
from .served import AttentionServer


def busy(seconds: float) -> int:
    """Compute for so long. Returns the thread that did it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return threading.get_ident()


@pytest.fixture
def core() -> Core[Any]:
    return Core(bytes, Health, lambda *told: {}, (), registry=None, timeout_s=5.0, limit_bytes=1 << 20)


def test_calls_are_short_if_the_mean_of_the_last_ones_is() -> None:
    times = CallTimes(0.005)
    assert not times.are_short(busy, 100)
    times.timed(busy, 100, busy, 0.0)
    assert times.are_short(busy, 64)
    assert times.are_short(busy, 127)
    assert not times.are_short(busy, 128)
    assert not times.are_short(len, 100)
    assert not times.are_short(busy, None)
    for _ in range(2):  # the first may not be measured, but then the next is, because it took long
        times.timed(busy, 100, busy, 0.1)
    assert not times.are_short(busy, 100)
    for _ in range(10):
        times.timed(busy, 100, busy, 0.0)
    assert times.are_short(busy, 100)


def test_waiting_is_no_time_of_a_call_and_errors_are_passed_on() -> None:
    times = CallTimes(0.01)
    times.timed(time.sleep, 1, time.sleep, 0.05)
    assert times.are_short(time.sleep, 1)
    with pytest.raises(ZeroDivisionError):
        times.timed(divmod, 1, divmod, 1, 0)
    assert times.are_short(divmod, 1)


def test_calls_that_become_long_by_and_by_are_noticed() -> None:
    times = CallTimes(0.01)
    times.timed(busy, 1, busy, 0.0)
    calls = 0
    while times.are_short(busy, 1):
        times.timed(busy, 1, busy, 0.02)
        calls += 1
    assert calls < 3 * MEASURED


def test_calls_of_threads_are_made_in_the_loop_in_their_order_and_wake_it_once() -> None:
    made: list[tuple[int, int]] = []

    async def run() -> int:
        loop, woken = asyncio.get_running_loop(), 0
        calls, wake = LoopCalls(loop), loop.call_soon_threadsafe

        def counted(*args: Any) -> Any:
            nonlocal woken
            woken += 1
            return wake(*args)

        def note(thread: int, i: int) -> None:
            made.append((thread, i))
            assert i != 9

        def add(thread: int) -> None:
            for i in range(50):
                calls.add(partial(note, thread, i))

        loop.set_exception_handler(lambda *_: None)  # one of each thread fails, and the others are made
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the loop does nothing meanwhile
        while len(made) < 200:
            await asyncio.sleep(0)
        return woken

    assert asyncio.run(run()) == 1
    for n in range(4):
        assert [i for thread, i in made if thread == n] == [*range(50)]
    ended = LoopCalls(asyncio.new_event_loop())
    ended.loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            ended.add(made.clear)


def test_the_size_of_a_value_is_that_of_its_arrays() -> None:
    x = np.zeros((2, 3))
    assert elements(x) == 6
    assert elements({"a": x, "b": np.zeros(())}) == 7
    assert elements([x, x]) == 12
    assert elements({"a": x, "b": ["text"]}) is elements("text") is None


def test_short_calls_are_made_in_the_loop_and_long_ones_in_threads(core: Core[Any]) -> None:
    async def threads(seconds: float, size: int | None) -> list[bool]:
        return [await core.run(size, busy, seconds) == threading.get_ident() for _ in range(3)]

    assert asyncio.run(threads(0.0, 10)) == [False, True, True]
    assert asyncio.run(threads(0.0, None)) == [False, False, False]
    assert asyncio.run(threads(3 * AT_ONCE_S, 1000)) == [False, False, False]


def test_futures_of_short_calls_and_of_threads_end_in_the_loop(core: Core[Any]) -> None:
    def ask(value: Any, later: bool) -> Future[int]:
        future: Future[int] = Future()
        if isinstance(value, Exception):
            raise value
        if later:
            threading.Timer(0.01, future.set_result, [value]).start()
        else:
            future.set_result(value)
        return future

    async def asked() -> None:
        for later in (False, True, False, True):
            some = await asyncio.gather(*(core.asked(1, ask, i, later) for i in range(20)))
            assert some == list(range(20))
            with pytest.raises(KeyError):
                await core.asked(1, ask, KeyError(), later)

    asyncio.run(asyncio.wait_for(asked(), 20))


@pytest.fixture
def attention() -> Iterator[AttentionServer]:
    server = AttentionServer((1, 8), (4, 8))
    yield server
    server.close()


@pytest.mark.parametrize(("seconds", "in_loop"), [(0.0, True), (3 * AT_ONCE_S, False)])
def test_short_host_parts_are_computed_in_the_loop_that_asks(
    attention: AttentionServer, seconds: float, in_loop: bool
) -> None:
    threads: list[int] = []

    def prepare(inputs: Any) -> QueuedCall:
        (result,) = yield [MachineRequest("only", {"x": inputs["x"]}, {})]
        threads.append(busy(seconds))
        return result.outputs["y"]

    server = Server({"only": attention.runner}, prepare, "attention", attention.arguments, attention.sizes)
    x = np.random.default_rng(1).standard_normal((1, 8, COLUMNS), np.float32)
    expected = server.ask({"x": x}).result(30)

    async def ask() -> None:
        for _ in range(5):
            got = await asyncio.gather(*(asyncio.wrap_future(server.ask({"x": x})) for _ in range(3)))
            np.testing.assert_allclose(got, [expected] * 3, atol=1e-5)

    asyncio.run(ask())
    main = threading.get_ident()
    assert threads[0] != main
    assert (main in threads) == in_loop
    before = len(threads)
    np.testing.assert_allclose(server.ask({"x": x}).result(30), expected, atol=1e-5)
    assert threads[before] != main  # without a loop, a thread of the server
    server.close()
