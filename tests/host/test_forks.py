"""Runners in processes that are forked from theirs: nothing hangs, and nothing of the parent's is touched."""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from rsn.base.errors import BoardError
from rsn.host.boards.device import BoardBusy
from rsn.host.boards.lock import DeviceLock
from rsn.host.boards.ssh import SshBoard
from rsn.host.runner import Runner
from rsn.host.serving import State
from rsn.host.serving.metrics import Metrics
from rsn.tests.effort import thinned

from .rigged import COLUMNS, Gate, Rig, attended, attention, weights_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # of Python 3.12, about threads
]

PATIENCE_S = 30.0
X = np.random.default_rng(3).standard_normal((1, 8, COLUMNS)).astype(np.float32)


def runner(**options: Any) -> Runner:
    built = attention(1, 8)
    return Runner(built.program, weights=weights_of(built), **options)


def in_child(call: Callable[[], Any], leave: Callable[[], object] = lambda: os._exit(0)) -> Any:
    """What `call` gives, as JSON takes it, in a forked child that then leaves; of an error its type and text. One that
    does not end fails the test."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            try:
                result = call()
            except Exception as e:
                result = [type(e).__name__, str(e)]
            os.write(into, json.dumps(result).encode())
            leave()
        finally:
            os._exit(1)
    os.close(into)
    text, end = b"", time.monotonic() + PATIENCE_S
    try:
        while select.select([out], [], [], max(end - time.monotonic(), 0))[0]:
            piece = os.read(out, 1 << 16)
            if not piece:
                return json.loads(text)
            text += piece
        os.kill(pid, signal.SIGKILL)
        pytest.fail(f"the child hangs, after {text!r}")
    finally:
        os.close(out)
        os.waitpid(pid, 0)


def refused(answer: Any) -> None:
    kind, text = answer
    assert kind == "BoardError"
    assert f"this runner was made in process {os.getpid()}; process " in text
    assert "make a Runner in this process, after the fork" in text


CALLS: dict[str, Callable[[Runner], object]] = {
    "run": lambda r: r.run({"x": X}),
    "submit": lambda r: r.submit({"x": X}).result(),
    "submit without waiting": lambda r: r.submit({"x": X}, wait=0, timeout=5),
    "stop": lambda r: r.stop({"x": X}, "DDR", 0),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("board", ["sim", "csim"])
@pytest.mark.parametrize("threads", [False, True], ids=["new", "used"])
def test_a_child_is_told_at_once(name: str, board: str, threads: bool) -> None:
    """Whether or not the parent's threads have been started."""
    with runner(board=board) as mine:
        if threads:
            mine.submit({"x": X}, timeout=60).result(PATIENCE_S)
        refused(in_child(lambda: CALLS[name](mine)))
        np.testing.assert_allclose(mine.run({"x": X}).outputs["y"], attended(X), atol=1e-4)


def test_a_fork_in_the_middle_of_everything() -> None:
    """A request runs, another waits, and both locks are held: by threads which the child has not."""
    gate = Gate()
    with runner(board=Rig(before=gate)) as mine:
        running = mine.submit({"x": X})
        assert gate.entered.wait(10)
        waiting = mine.submit({"x": X}, timeout=60)

        def look() -> list[object]:
            started = time.monotonic()
            answers = []
            for call in (*CALLS.values(), lambda _: running.result(), lambda _: waiting.result()):
                with pytest.raises(BoardError, match="make a Runner in this process") as e:
                    call(mine)
                answers.append(type(e.value).__name__)
            assert not wait_for([running, waiting]).not_done
            assert not waiting.cancel()
            mine.close()
            return [*answers, mine.health.state.value, mine.health.error, time.monotonic() - started < 5]

        holds, release = threading.Event(), threading.Event()

        def hold() -> None:
            with mine._lock:
                holds.set()
                release.wait(PATIENCE_S)

        holder = threading.Thread(target=hold)
        holder.start()
        holds.wait()
        try:
            *answers, state, error, quick = in_child(look)
        finally:
            release.set()
            holder.join()
        assert (answers, state, quick) == (["BoardError"] * 6, "closed", True)
        assert error.startswith("BoardError: this runner was made in process")
        assert mine.health.state is State.READY
        gate.open()
        for future in (running, waiting):
            np.testing.assert_allclose(future.result(PATIENCE_S).outputs["y"], attended(X), atol=1e-4)


def test_callbacks_stay_with_the_parent(tmp_path: Path) -> None:
    """They may answer a client: the child's copy must not."""
    gate, said = Gate(), tmp_path / "said"
    with runner(board=Rig(before=gate)) as mine:
        future = mine.submit({"x": X})
        future.add_done_callback(lambda _: said.write_text(str(os.getpid())))
        assert gate.entered.wait(10)
        assert in_child(future.done) is True
        assert not said.exists()
        gate.open()
        future.result(PATIENCE_S)
    assert said.read_text() == str(os.getpid())


LEAVE: dict[str, Callable[[Runner], object]] = {
    "close": lambda r: r.close(),
    "with": lambda r: r.__exit__(None, None, None),
    "nothing": lambda r: None,
}


@pytest.mark.parametrize("how", thinned(LEAVE, 2))
def test_the_parents_board_stays_open(how: str, tmp_path: Path) -> None:
    """Whether the child closes its copy or not, and although its interpreter comes to an end as usual."""
    script = f"""
import gc, os, sys
from rsn.tests.host import rigged, test_forks

class Board(rigged.RiggedBoard):
    def close(self):
        print("closed by", "parent" if os.getpid() == parent else "child", flush=True)
        super().close()
    def __del__(self):
        print("destroyed by", "parent" if os.getpid() == parent else "child", flush=True)

parent = os.getpid()
mine = test_forks.runner(board=lambda: Board(rigged.Rig()))
mine.submit({{"x": test_forks.X}}).result(30)
sys.stdout.flush()
if not os.fork():
    test_forks.LEAVE[{how!r}](mine)
    mine = None
    gc.collect()
    sys.exit(0)
assert os.wait()[1] == 0
mine.run({{"x": test_forks.X}})
print("ran")
mine.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["ran", "closed by parent"]
    assert "child" not in done.stdout


def test_a_child_that_unwinds_a_run_leaves_the_board_alone() -> None:
    """A fork in `progress`, and an exit that passes through the runner on its way."""
    rig = Rig()
    with runner(board=rig) as mine:
        seen: list[int] = []

        def progress(share: float) -> None:
            if not seen:
                seen.append(os.fork())
                if not seen[0]:
                    raise SystemExit

        try:
            mine.run({"x": X}, progress=progress)
        except SystemExit:
            os._exit(10 + rig.closed)
        assert os.waitstatus_to_exitcode(os.waitpid(seen[0], 0)[1]) == 10
        assert rig.closed == 0


@pytest.mark.parametrize("board", ["sim", "csim"])
def test_a_runner_of_the_childs_own(board: str) -> None:
    """Also under the same name of the same metrics."""
    metrics = Metrics(CollectorRegistry())

    def run() -> list[float]:
        with runner(board=board, metrics=metrics, name="bert") as own:
            own.run({"x": X})
            y = own.submit({"x": X}, timeout=PATIENCE_S).result().outputs["y"]
        return [float(np.abs(y - attended(X)).max()), own.health.state == "closed"]

    with runner(board=board, metrics=metrics, name="bert") as mine:
        mine.submit({"x": X}, timeout=60).result(PATIENCE_S)
        difference, closed = in_child(run)
        assert (difference < 1e-4, closed) == (True, True)
        assert in_child(lambda: in_child(run)[1])  # and of a child's child
        mine.run({"x": X})


def _process(mine: Runner, answers: Any) -> None:
    try:
        mine.submit({"x": X}).result()
    except BoardError as e:
        answers.put(["BoardError", str(e)])


def test_a_process_of_multiprocessing() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with runner() as mine:
        mine.submit({"x": X}).result(PATIENCE_S)
        child = context.Process(target=_process, args=(mine, answers))
        child.start()
        child.join(PATIENCE_S)
        if child.exitcode is None:
            child.kill()
            pytest.fail("the child hangs")
        assert child.exitcode == 0
        refused(answers.get())


def test_a_child_does_not_hold_the_lock_of_a_device(tmp_path: Path) -> None:
    """It lives on when the parent has given the device back; and has no part in the lock before."""
    lock, other = DeviceLock("d", tmp_path), DeviceLock("d", tmp_path)
    lock.acquire()
    alive, end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(end)
        os.read(alive, 1)
        os._exit(0)
    os.close(alive)
    try:
        with pytest.raises(BoardBusy, match=f"in use by process {os.getpid()}"):
            other.acquire()
        assert in_child(lambda: other.acquire())[0] == "BoardBusy"
        assert in_child(lambda: lock.release()) is None
        with pytest.raises(BoardBusy):
            other.acquire()
        lock.release()
        other.acquire()
        other.release()
    finally:
        os.close(end)
        os.waitpid(pid, 0)


def test_a_connection_ends_although_a_child_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other side sees the end of its input when the parent closes it. The client is `rsn serve-stdio` itself."""
    client = tmp_path / "ssh"
    client.write_text(f"#!/bin/sh\nexec {sys.executable} -m rsn serve-stdio\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with runner(board=lambda: SshBoard("ssh://board/sim")) as mine:
        mine.run({"x": X})
        refused(in_child(lambda: mine.run({"x": X})))
        np.testing.assert_allclose(mine.run({"x": X}).outputs["y"], attended(X), atol=1e-4)
        alive, end = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(end)
            os.read(alive, 1)
            os._exit(0)
        os.close(alive)
        started = time.monotonic()
        mine.close()
        took = time.monotonic() - started
        os.close(end)
        os.waitpid(pid, 0)
        assert took < 4  # ssh.ENDS_S is how long a client is waited for that does not end
