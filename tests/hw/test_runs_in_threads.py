"""Simulated runs in several threads of a process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from threadpoolctl import threadpool_info

from rsn.hw.sim.machine import one_blas_thread

WAIT_S = 60.0


def blas_threads() -> list[int]:
    pools = threadpool_info()
    return [pool["num_threads"] for pool in pools if "numpy" in pool["filepath"]]  # others may be loaded later


def test_runs_take_turns_and_leave_the_threads_of_blas_as_they_were() -> None:
    inside = 0
    most = list[int]()

    def run(_: int) -> None:
        nonlocal inside
        with one_blas_thread(), one_blas_thread():  # a run may call another one
            inside += 1
            most.append(inside)
            assert set(blas_threads()) == {1}
            inside -= 1

    before = blas_threads()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(40)))
    assert blas_threads() == before
    assert most == [1] * 40


def test_a_child_that_is_forked_in_a_run_can_run() -> None:
    begun, ends = threading.Event(), threading.Event()

    def run() -> None:
        with one_blas_thread():
            begun.set()
            ends.wait(WAIT_S)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(WAIT_S)
    child = os.fork()
    if not child:
        threading.Timer(WAIT_S, os._exit, (1,)).start()
        with one_blas_thread():
            os._exit(0)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
