"""The small known program: what it shows, when it runs, and what is remembered of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import BoardError
from rsn.host.boards import stamp as stamps
from rsn.host.boards.csim import CsimBoard
from rsn.host.boards.device import BoardLost, BoardMismatch, BoardTimeout
from rsn.host.boards.in_process import InProcess, native
from rsn.host.boards.lock import DeviceLock
from rsn.host.boards.probes import operands, trial_inputs, trial_program, wrong
from rsn.host.boards.profile import VCK190, VCK190_ISCA25
from rsn.host.boards.session import Session
from rsn.host.boards.sim import SimBoard
from rsn.host.boards.stamp import Stamp
from rsn.host.boards.xrt import XrtBoard
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import FIG6, XNN, XNN_BASE
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.program import Program
from rsn.isa.verify import check, require
from rsn.tests.effort import sampled

from .faulty import Faulty, raising
from .programs import base
from .test_in_process import results
from .xclbins import PUBLISHED, Made

PUBLIC = dataclasses.replace(VCK190_ISCA25, uuid=str(Made.uuid), timeout_s=0.4)


def test_a_machine_without_cpp_has_no_native_run() -> None:
    with pytest.raises(BoardError, match="the machine of fig6 has no C"):
        native(FIG6)


# -- the program


@pytest.mark.parametrize("overlay", sampled([XNN, XNN_BASE, XNN2], [XNN_BASE, XNN2]), ids=lambda o: o.name)
def test_it_is_a_program_without_a_finding(overlay: Overlay) -> None:
    program = trial_program(overlay)
    require(program)
    assert [str(f) for f in check(program)] == []
    assert not program.extended
    assert set(program.preloaded) == {u.name for u in overlay.by_kind["MME"]}
    for name, limit in VCK190_ISCA25.limits.items():  # the tightest
        size = 4 * len(program.image) if name == "instructions" else 4 * program.bank_size(name)
        assert size <= limit


@pytest.mark.parametrize("rows", [384, 768])
def test_its_numbers_are_exact_and_all_different(rows: int) -> None:
    """Nothing can take the place of anything else unseen, and float32 holds every partial sum."""
    x, w = operands(rows)
    for matrix in (x, x.T, w, w.T, x @ w, (x @ w).T):
        assert len(np.unique(matrix, axis=0)) == len(matrix)
    assert np.abs(x).sum(axis=1).max() * np.abs(w).max() < 2**24
    assert set(np.unique(x)) == set(np.unique(w)) == set(range(-5, 6))
    np.testing.assert_array_equal(x @ w, (x.astype(np.int64) @ w.astype(np.int64)))


@pytest.mark.parametrize("overlay", [XNN_BASE, XNN2], ids=lambda o: o.name)
@pytest.mark.parametrize("board", sampled([SimBoard, CsimBoard], [SimBoard]))
def test_the_machines_compute_it(board: Callable[[], Any], overlay: Overlay) -> None:
    machine, program = board(), trial_program(overlay)
    given = trial_inputs(program)
    machine.load(program, {"w": given["w"]})
    y = machine.run(program.image, {"x": given["x"]})[0]["y"]
    machine.close()
    assert wrong(program, y) == ""
    y[77] += 1
    assert wrong(program, y).startswith(f"1 of {len(y)} numbers are wrong, the first in row 2, column 13: ")


# -- when it runs


class Bench:
    """A published image on a device, whose processes share a boot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = Faulty()
        self.xclbin = Made(arguments=PUBLISHED).write(folder / "published.xclbin")

    def board(self, **options: Any) -> XrtBoard:
        """As another process would open it."""
        options = {"stamp": Stamp("test", self.folder), "lock": DeviceLock("test", self.folder)} | options
        return XrtBoard(Session(PUBLIC, self.device, bitstream=self.xclbin, now=self.device.clock, **options))  # type: ignore[arg-type]

    def runs(self, **options: Any) -> int:
        """Load a program in a process of its own. Returns how often the kernel was started: once for a trial."""
        before, board = self.device.made["start"], self.board(**options)
        board.load(base().program, base().weights)
        board.close()
        return self.device.made["start"] - before


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(stamps, "BOOT_ID", tmp_path / "boot_id")
    reboot(tmp_path, 1)
    bench = Bench(tmp_path)
    yield bench
    assert not bench.device.open_now


def reboot(folder: Path, number: int) -> None:
    (folder / "boot_id").write_text(f"00000000-0000-4000-8000-{number:012}\n")


def test_once_per_boot_device_and_xclbin(bench: Bench) -> None:
    assert [bench.runs() for _ in range(3)] == [1, 0, 0]
    assert bench.runs(stamp=Stamp("another", bench.folder)) == 1
    Made(arguments=PUBLISHED, platform="another").write(bench.xclbin)
    assert [bench.runs() for _ in range(2)] == [1, 0]
    reboot(bench.folder, 2)
    assert [bench.runs() for _ in range(2)] == [1, 0]
    (bench.folder / "boot_id").unlink()  # a system that does not say
    assert [bench.runs() for _ in range(2)] == [1, 1]


@pytest.mark.long
def test_the_record_says_so(bench: Bench) -> None:
    for expected in ("passed", "passed earlier in this boot"):
        board = bench.board()
        board.load(base().program, base().weights)
        assert board._session.facts["trial"] == expected
        board.close()


def test_our_machine_has_its_fingerprint(bench: Bench) -> None:
    ours = Made().write(bench.folder / "ours.xclbin")
    stamp = Stamp("test", bench.folder)
    board = XrtBoard(Session(VCK190, bench.device, bitstream=ours, stamp=stamp))
    board.load(base().program, base().weights)
    assert bench.device.made["start"] == 1  # the empty program, which sets the register
    assert not stamp.path.exists()
    board.close()


def test_wrong_numbers(bench: Bench) -> None:
    """Another image, whose graph has the same names: nothing of the user's runs on it, and nothing is remembered."""

    def other(program: Program, banks: Any) -> None:
        InProcess()._engine(program, banks)
        banks["ddr"][-5] += 1

    mine, theirs = Stamp("test", bench.folder), Stamp("theirs", bench.folder)
    assert [bench.runs(), bench.runs(stamp=theirs)] == [1, 1]
    lock = DeviceLock("test", bench.folder)
    lock.acquire()
    lock.note(unfinished=True)
    lock.release()
    right, bench.device.inner = bench.device.inner, InProcess(other, sleep=bench.device.clock.sleep)
    for _ in range(2):
        with pytest.raises(BoardMismatch) as caught:
            bench.runs()
        text = str(caught.value)
        assert (
            "a small known program gave wrong numbers: another image is booted, or an earlier run did not end" in text
        )
        assert "1 of 98304 numbers are wrong, the first in row 383, column 251" in text
        assert text.endswith(f"write the BOOT.BIN that belongs to {bench.xclbin} to the card, and reboot the board")
    assert bench.device.made["start"] == 4
    assert mine.path.exists() is False
    assert theirs.path.exists()
    bench.device.inner = right
    assert bench.runs(stamp=theirs) == 1  # a stamp counts for nothing after what was seen
    assert bench.runs() == 1


@pytest.mark.long
def test_no_end(bench: Bench) -> None:
    def other(program: Program, banks: Any) -> None:
        raise BoardLost("another machine")

    right, bench.device.inner = bench.device.inner, InProcess(other, sleep=bench.device.clock.sleep)
    with pytest.raises(BoardTimeout, match=r"small known program did not end: another image is booted.*BOOT\.BIN"):
        bench.runs()
    bench.device.inner = right
    assert [bench.runs() for _ in range(2)] == [1, 0]


def test_after_a_run_that_did_not_end(bench: Bench) -> None:
    """Also with a stamp of this boot, and for whoever opens the device next, such as another user with a stamp."""
    assert bench.runs() == 1
    theirs = Stamp("theirs", bench.folder)
    assert bench.runs(stamp=theirs) == 1
    board = bench.board()
    board.load(base().program, base().weights)
    for number in range(1, 10):
        bench.device.next("wait", lambda real: bench.device.clock.sleep(0.1), number)  # never
    with pytest.raises(BoardTimeout, match="reboot"):
        results(board, base())
    board.close()
    bench.device.faults.clear()
    assert bench.runs(stamp=theirs) == 1
    assert bench.runs() == 0  # their trial has shown that the array is known again


def test_after_an_empty_program_that_did_not_end(bench: Bench) -> None:
    """Our profile's probe finds a kernel that hangs: with the published image's profile, the trial is due."""
    assert [bench.runs(), bench.runs()] == [1, 0]
    ours = Made().write(bench.folder / "ours.xclbin")
    lock = DeviceLock("test", bench.folder)
    board = XrtBoard(Session(VCK190, bench.device, bitstream=ours, lock=lock, now=bench.device.clock))
    for number in range(1, 60):
        bench.device.next("wait", lambda real: bench.device.clock.sleep(0.1), number)  # never
    with pytest.raises(BoardTimeout, match="did not end an empty program"):
        board.load(base().program, base().weights)
    bench.device.faults.clear()
    assert bench.runs() == 1


@pytest.mark.long
def test_a_fault_in_the_trial(bench: Bench) -> None:
    """Whatever it is, the next opening begins with a trial."""
    assert bench.runs() == 1
    reboot(bench.folder, 2)
    for call in ("allocate", "write", "update_parameter", "run_graph", "start", "wait", "wait_graph", "read"):
        bench.device.next(call, raising(BoardLost("gone")))
        with pytest.raises(BoardLost):
            bench.runs()
        assert not bench.device.open_now
        bench.device.reboot()
    bench.device.next("read", lambda real: real() - 4)
    with pytest.raises(BoardMismatch, match="393212 of 393216 bytes came back"):
        bench.runs()
    assert [bench.runs() for _ in range(2)] == [1, 0]


@pytest.mark.long
def test_on_the_cpp_machine(bench: Bench) -> None:
    bench.device.inner = InProcess(native(VCK190.overlay), "csim")
    assert [bench.runs() for _ in range(2)] == [1, 0]


# -- what is remembered


def test_whose_stamp_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = Stamp("test", bench.folder)
    stamp.write("a")
    text, path = stamp.path.read_bytes(), stamp.path
    assert stamp.holds("a")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not stamp.holds("b")
    for other in (b"", text[:-1], text + b"\n", b"\xff" * 10, b"x" * 100_000, text.replace(b"8000", b"9000")):
        path.write_bytes(other)
        assert not stamp.holds("a")
    path.write_bytes(text)
    path.chmod(0o666)  # others may have written it
    assert not stamp.holds("a")
    path.chmod(0o600)
    assert stamp.holds("a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not stamp.holds("a")
    path.rename(bench.folder / "target")
    path.symlink_to(bench.folder / "target")
    assert not stamp.holds("a")
    stamp.write("a")
    assert not path.is_symlink()
    assert stamp.holds("a")
    stamp.remove()
    os.mkfifo(path)
    assert not stamp.holds("a")  # and does not wait for a writer
    path.unlink()
    path.mkdir()
    stamp.write("a")
    stamp.remove()
    assert not stamp.holds("a")
    assert sorted(p.name for p in bench.folder.iterdir()) == sorted(
        ["boot_id", "published.xclbin", "target", path.name]
    )


def test_where_stamps_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert Stamp("device0").path == tmp_path / f"rsn-{os.getuid()}-device0.trial"
    for missing in ("", "relative", str(tmp_path / "none")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", missing)
        monkeypatch.setattr(stamps.tempfile, "gettempdir", lambda: "/elsewhere")
        assert Stamp("device0").path.parent == Path("/elsewhere")
    Stamp("device0").write("a")  # there is no such folder: nothing is remembered, and nothing fails
    Stamp("device0").remove()
