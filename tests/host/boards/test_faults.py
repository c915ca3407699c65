"""Each fault through the real runner: a typed error that says what to do, everything given back, and the next run
right. Nothing hangs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.assembler import container
from rsn.base.errors import BoardError, TensorError
from rsn.cli.main import main
from rsn.host import tensors
from rsn.host.boards import session
from rsn.host.boards.device import BoardBusy, BoardLost, BoardMemory, BoardMismatch, BoardTimeout
from rsn.host.boards.in_process import InProcess
from rsn.host.boards.lock import DeviceLock
from rsn.host.boards.profile import VCK190
from rsn.host.boards.session import Session
from rsn.host.boards.xrt import XrtBoard
from rsn.host.runner import Runner
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.scheduler.build import Built
from rsn.tests.effort import long

from .faulty import CALLS, Fault, Faulty, raising
from .programs import X, attention, stuck

pytestmark = pytest.mark.long

LENGTHS = {"len[0]": 17}


class Rig:
    """The vck190 on a device that fails when told to, behind a lock as a real one, with a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.device = Faulty()
        self.folder = folder

    def lock(self) -> DeviceLock:
        return DeviceLock("test", self.folder)

    def board(self) -> XrtBoard:
        profile = dataclasses.replace(VCK190, timeout_s=0.4)
        return XrtBoard(Session(profile, self.device, lock=self.lock(), now=self.device.clock))

    def never(self, call: Callable[[], Any]) -> bool:
        """The kernel runs, and nobody hears that it has ended."""
        self.device.clock.sleep(0.1)
        return False

    def runner(self, built: Built | None = None) -> Runner:
        built = built or attention()
        return Runner(built.program, weights=built.weights, board=self.board)

    @property
    def given_back(self) -> bool:
        return not self.device.open_now


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    assert rig.given_back
    lock = rig.lock()
    lock.acquire()
    lock.release()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    with Runner(attention().program, weights=attention().weights) as runner:
        return run(runner)


def run(runner: Runner) -> np.ndarray:
    return runner.run({"x": X}, LENGTHS).outputs["y"]


def run_facts(runner: Runner) -> dict[str, str]:
    return runner.run({"x": X}, LENGTHS).run.facts


def short(call: Callable[[], int]) -> int:
    return call() - 4


def other_bitstream(call: Callable[[], int]) -> int:
    return int(XNN_BASE.fingerprint, 16)


FAULTS: dict[str, tuple[str, Fault, type[BaseException], str]] = {
    "device busy": (
        "open",
        raising(BoardBusy("XRT: opening kernel failed: Device or resource busy")),
        BoardBusy,
        "busy",
    ),
    "no room": ("allocate", raising(BoardMemory("XRT: allocating 1 GB failed")), BoardMemory, "1 GB"),
    "short read": ("read", short, BoardError, r"y: the device returned \d+ of \d+ bytes; run it again"),
    "kernel error": ("wait", raising(BoardLost("the kernel ended in state error")), BoardLost, "state error"),
    "busy at the start": (
        "start",
        raising(BoardBusy("XRT: starting failed: Device or resource busy")),
        BoardBusy,
        "busy",
    ),
    "^C": ("wait", raising(KeyboardInterrupt()), KeyboardInterrupt, "^$"),
    "^C while uploading": ("write", raising(KeyboardInterrupt()), KeyboardInterrupt, "^$"),
    "no memory here": ("read", raising(MemoryError()), MemoryError, "^$"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_mid_run(rig: Rig, expected: np.ndarray, fault: str) -> None:
    """In the second run, after a good one; the third is good again."""
    call, action, error, message = FAULTS[fault]
    with rig.runner() as runner:
        np.testing.assert_array_equal(run(runner), expected)
        if call in ("open", "allocate"):  # made again only when everything was given back
            rig.device.next("read", raising(BoardLost("gone")))
            with pytest.raises(BoardLost):
                run(runner)
        rig.device.next(call, action)
        with pytest.raises(error, match=message):
            run(runner)
        assert rig.given_back
        np.testing.assert_array_equal(run(runner), expected)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [1, long(2)])
def test_the_device_is_lost_at_any_call(rig: Rig, expected: np.ndarray, call: str, number: int) -> None:
    """From opening to reading back; the second call of a kind, too, until there has been one."""
    rig.device.next(call, raising(BoardLost("XRT: failed: No such device")), number)
    for _ in range(2):
        try:
            with rig.runner() as runner:
                for _ in range(2):
                    np.testing.assert_array_equal(run(runner), expected)
        except BoardLost:
            assert rig.device.made[call] - number <= 1  # what has begun is let end
            assert rig.given_back
            with rig.runner() as runner:
                np.testing.assert_array_equal(run(runner), expected)
            return
    raise AssertionError("nobody noticed")


def test_a_kernel_that_never_ends(rig: Rig, expected: np.ndarray) -> None:
    with rig.runner() as runner:
        for number in range(1, 100):
            rig.device.next("wait", rig.never, number)
        began = rig.device.clock()
        with pytest.raises(BoardTimeout, match=r"did not end in 0\.4 s; `rsn check` says.*; reboot the board before"):
            run(runner)
        assert 0.4 <= rig.device.clock() - began < 0.6
        assert rig.given_back
        for again in (lambda: run(runner), rig.runner):
            with pytest.raises(BoardTimeout, match=r"did not end an empty program.*reboot the board"):
                again()  # it hangs still, and the probe finds out
        rig.device.faults.clear()
        np.testing.assert_array_equal(run(runner), expected)
        assert run_facts(runner)["trial"] == "passed"


def test_a_graph_that_never_ends(rig: Rig, expected: np.ndarray) -> None:
    """The kernel has ended, tiles have not: what they wait for is unknown, and the empty program does not show it."""
    with rig.runner() as runner:
        np.testing.assert_array_equal(run(runner), expected)
        for number in range(1, 200):
            rig.device.next("wait_graph", rig.never, number)
        with pytest.raises(BoardTimeout, match=r"kernel has ended, but the AI Engine graph has not in 5 s; reboot"):
            run(runner)
        assert rig.given_back
        for again in (lambda: run(runner), rig.runner):  # also whoever comes next
            with pytest.raises(BoardTimeout, match=r"known program did not end: an earlier run did not end; reboot"):
                again()
        rig.device.faults.clear()
        rig.device.reboot()
        np.testing.assert_array_equal(run(runner), expected)


def test_a_kernel_that_cannot_be_started(rig: Rig, expected: np.ndarray) -> None:
    """The graph has begun an iteration that gets nothing. That is so until the board is restarted."""
    with rig.runner() as runner:
        np.testing.assert_array_equal(run(runner), expected)
        for number in (1, 2):
            rig.device.next("start", raising(BoardBusy("busy")), number)
        with pytest.raises(BoardBusy):
            run(runner)
        with pytest.raises(BoardTimeout, match=r"known program did not end: an earlier run did not end; reboot"):
            run(runner)
        with pytest.raises(BoardTimeout, match="reboot the board"):
            rig.runner()
        rig.device.reboot()
        np.testing.assert_array_equal(run(runner), expected)


def test_a_run_is_let_end_before_the_device_is_released(
    rig: Rig, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """^C during a run that ends: nothing is stopped in between, so the next one needs no trial."""
    monkeypatch.setattr(session, "SETTLE_S", 60.0)  # this computer may be busy: it takes what a board would not
    order: list[str] = []
    with rig.runner() as runner:
        np.testing.assert_array_equal(run(runner), expected)
        rig.device.next("wait", raising(KeyboardInterrupt()))
        for call in ("wait_graph", "close"):
            rig.device.next(call, lambda real, call=call: (order.append(call), real())[1])  # type: ignore[misc]
        with pytest.raises(KeyboardInterrupt):
            run(runner)
        assert order == ["wait_graph", "close"]
        assert "trial" not in run_facts(runner)


def test_a_killed_process_leaves_a_note(tmp_path: Path) -> None:
    """For the next holder of the device, in this boot; it goes when a run has ended."""
    first, second = DeviceLock("test", tmp_path), DeviceLock("test", tmp_path)
    first.acquire()
    first.note(unfinished=True)
    with pytest.raises(BoardBusy, match=f"in use by process {os.getpid()} "):
        second.acquire()
    first.release()
    second.acquire()
    assert second.unfinished
    second.note(unfinished=False)
    second.release()
    first.acquire()
    assert not first.unfinished
    first.note(unfinished=True)
    first.release()
    for text in ("7\nunfinished another-boot\n", "\xff\n\n", "", "x" * 5000):
        first.path.write_text(text, encoding="latin1")
        second.acquire()
        assert not second.unfinished
        second.release()


def test_a_program_that_cannot_end(rig: Rig) -> None:
    """Not an injected fault: the machine in this process does not come to an end either."""
    with Runner(stuck(), board=rig.board) as runner:
        for _ in range(2):
            with pytest.raises(BoardTimeout):
                runner.run({"x": np.ones((512, 64), np.float32)})
            assert rig.given_back


@pytest.mark.parametrize(
    ("call", "number"), [("open", 1), ("start", 1), ("start", 2), ("update_parameter", 9), ("wait", 2), ("read", 1)]
)
def test_a_driver_that_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Nobody can take a device from it in this process; but nobody waits for it, and others see that it is taken."""
    rig, hangs, back = Rig(tmp_path), threading.Event(), threading.Event()

    def limited(futures: list[Future[Any]], limit: float) -> None:
        """Time is over when the call hangs, and not before, however busy this computer is."""
        while not wait(futures, 0.01).done and not hangs.is_set():
            pass

    monkeypatch.setattr(session, "wait", limited)
    rig.device.next(call, lambda real: (hangs.set(), back.wait(60)), number)
    try:
        board, x = rig.board(), {"x": np.zeros(attention().program.buffer("x").size, np.float32)}

        def load_and_run() -> None:
            board.load(attention().program, attention().weights)
            board.run(attention().program.image, x)

        with pytest.raises(BoardLost, match="did not return: end this process"):
            load_and_run()
        hangs.clear()
        with pytest.raises(BoardLost, match="did not return"):
            board.load(attention().program, attention().weights)
        with pytest.raises(BoardBusy):
            rig.board().load(attention().program, attention().weights)
        board.close()
    finally:
        back.set()


def test_an_interrupt_waits_for_the_driver(rig: Rig, expected: np.ndarray) -> None:
    """What it would interrupt is given back only when nobody works on it any more."""
    log: list[str] = []

    def slow(real: Callable[[], Any]) -> Any:
        signal.raise_signal(signal.SIGINT)  # the main thread hears of it at once
        time.sleep(0.5)
        log.append("back")
        return real()

    def close(real: Callable[[], Any]) -> Any:
        log.append("closed")
        return real()

    with rig.runner() as runner:
        rig.device.next("update_parameter", slow, 7)
        rig.device.next("close", close)
        with pytest.raises(KeyboardInterrupt):
            run(runner)
        assert log == ["back", "closed"]
        np.testing.assert_array_equal(run(runner), expected)


def test_the_wrong_bitstream(rig: Rig) -> None:
    rig.device.next("register", other_bitstream)
    text = (
        rf"this rsn has overlay xnn {XNN.fingerprint} \(version {XNN.extension} of its instructions\), the bitstream "
        rf"has fingerprint {XNN_BASE.fingerprint}, so another version or other sources: build "
        r"the bitstream again \(make -C hw/versal xclbin\), or use the rsn it was built with"
    )
    with pytest.raises(BoardMismatch, match=text):
        rig.runner()
    assert rig.device.made["start"] == 1  # the probe alone


def test_a_device_without_room(rig: Rig, expected: np.ndarray) -> None:
    rig.device.inner = InProcess(memory=1 << 20)
    with pytest.raises(BoardMemory, match=r"no room for \d+ bytes of ddr"):
        rig.runner()


def test_weights_that_cannot_be_read_give_the_device_back(rig: Rig) -> None:
    built = attention()
    weights = {name: flat if name != "v.weight" else flat[:-1] for name, flat in built.weights.items()}
    with pytest.raises(TensorError, match=r"v\.weight"):
        Runner(built.program, weights=weights, board=rig.board)


def test_a_second_runner_has_to_wait(rig: Rig, expected: np.ndarray) -> None:
    with rig.runner() as first:
        with pytest.raises(BoardBusy, match=rf"in use by process {os.getpid()} .*; wait for it, or end it"):
            rig.runner()
        np.testing.assert_array_equal(run(first), expected)
    with rig.runner() as second:
        np.testing.assert_array_equal(run(second), expected)


def test_many_threads_and_a_board_that_fails(rig: Rig, expected: np.ndarray) -> None:
    """Every request gets its own result or a typed error."""
    for number in (5, 11, 16):
        rig.device.next("read", raising(BoardLost("gone")), number)
    results: list[np.ndarray | BoardLost] = []

    with rig.runner() as runner:

        def client() -> None:
            for _ in range(4):
                try:
                    results.append(run(runner))
                except BoardLost as e:
                    results.append(e)

        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
    good = [r for r in results if not isinstance(r, BoardLost)]
    assert len(results) == 16
    assert 13 <= len(good) < 16
    for r in good:
        np.testing.assert_array_equal(r, expected)


# -- processes

HOLDER = """
import sys, time
from pathlib import Path
from rsn.host.boards.lock import DeviceLock
from rsn.host.boards.profile import VCK190
lock = DeviceLock("test", Path(sys.argv[1]))
lock.acquire()
lock.note(unfinished=True)
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_goes_with_its_holder(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = DeviceLock("test", tmp_path)
        with pytest.raises(BoardBusy, match=f"process {holder.pid} "):
            lock.acquire()
        holder.kill()
        holder.wait()
        lock.acquire()
        lock.acquire()  # its own
        assert lock.unfinished  # what the holder noted stays
        lock.release()
    finally:
        holder.kill()
        holder.wait()


def test_a_lock_does_not_follow_links(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious", encoding="utf-8")
    (tmp_path / "rsn-test.lock").symlink_to(target)
    with pytest.raises(BoardError, match=r"rsn-test\.lock: .*the lock of the device cannot be opened"):
        DeviceLock("test", tmp_path).acquire()
    assert target.read_text(encoding="utf-8") == "precious"


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    """`rsn run` of the program that cannot end."""
    container.write(stuck(), tmp_path / "stuck.bin")
    np.save(tmp_path / "x.npy", np.ones((512, 64), np.float32))

    def of(board: str) -> list[str]:
        rsn = [sys.executable, "-m", "rsn", "run", str(tmp_path / "stuck.bin"), "--board", board]
        return [*rsn, "--inputs", str(tmp_path / "x.npy"), "--json"]

    return of


@pytest.mark.long
def test_the_command_line_says_that_the_board_is_at_fault(command: Callable[..., list[str]], tmp_path: Path) -> None:
    hasty = tmp_path / "hasty.toml"
    hasty.write_text('base = "vck190"\ntimeout_s = 1.5\n', encoding="utf-8")
    for board, message in (
        (f"{hasty}@sim", "error: hasty: the kernel did not end in 1.5 s"),
        ("vck191", "error: no board 'vck191'; there are sim, csim, vck190, vck190-isca25, vck190-xnn2"),
        ("vck190@gpu", "error: no device 'gpu'"),
    ):
        done = CliRunner().invoke(main, command(board)[3:], catch_exceptions=False)
        assert (done.exit_code, done.stdout) == (3, "")
        assert message in done.stderr


TELLS = """
import sys
from rsn.host.boards.in_process import InProcess
from rsn.cli.main import main
start = InProcess.start
def told(device, buffers):
    probe = not device._graph_runs
    start(device, buffers)
    if not probe:
        print("started", flush=True)
InProcess.start = told
main(sys.argv[1:])
"""


def test_an_interrupt_ends_the_command_at_once(command: Callable[..., list[str]]) -> None:
    tells = [sys.executable, "-c", TELLS, *command("vck190@sim")[3:]]
    run = subprocess.Popen(tells, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "started\n", run.stderr.read()
        time.sleep(0.3)
        assert run.poll() is None  # it would wait for a minute
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=5)
    finally:
        run.kill()
    assert run.returncode == 1
    assert "Traceback" not in said


def test_a_run_through_the_command_line(tmp_path: Path) -> None:
    built = attention()
    container.write(built.program, tmp_path / "a.bin")
    tensors.save_tensors(tmp_path / "w.safetensors", dict(built.weights), packed=True)
    np.savez(tmp_path / "x.npz", x=X)
    files = ["--weights", "w.safetensors", "--inputs", "x.npz", "--outputs", "y.npz"]
    outputs = {}
    for board in ("sim", "vck190@sim"):
        command = [sys.executable, "-m", "rsn", "run", "a.bin", "--board", board, *files, "--json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        outputs[board] = np.load(tmp_path / "y.npz")["y"]
    np.testing.assert_array_equal(*outputs.values())
    said = json.loads(done.stdout)
    assert said["latency_s"] is None  # this computer's time is not the machine's
    assert said["wall_s"] > 0
    assert said["facts"]["board"] == "vck190"
