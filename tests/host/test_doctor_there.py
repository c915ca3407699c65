"""`rsn doctor ssh://...`: the other computer's state as this one shows it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rsn
from rsn.cli import doctor, doctor_there
from rsn.cli.main import main
from rsn.host.boards.xrt_ctypes import LIBRARY

from .boards.xclbins import Made
from .sshd import Server

Rows = dict[str, dict[str, Any]]


def asked(url: str, code: int = 0) -> Rows:
    """The rows by what they are about."""
    done = CliRunner().invoke(main, ["doctor", url, "--json"])
    assert done.exit_code == code, (done.output, done.exception)
    said = json.loads(done.stdout)
    assert said["runs"] == ([] if code else [url])
    for row in said["checks"]:
        assert set(row) == {"what", "ok", "version", "for", "problem", "mend"}
        assert row["ok"] == (not row["problem"]) == (not row["mend"]), row
    rows = {row["what"]: row for row in said["checks"]}
    assert len(rows) == len(said["checks"])
    return rows


def test_a_simulator_there(server: Server) -> None:
    rows = asked(server.url)
    assert list(rows) == ["ssh to 127.0.0.1", "rsn there", "clock", "Python", "board sim", "memory", "disk"]
    assert all(rows[name]["ok"] for name in ("ssh to 127.0.0.1", "rsn there", "clock", "Python", "board sim"))
    assert rows["rsn there"]["version"] == rsn.__version__
    assert rows["disk"]["for"] == f"weights, in {server.cache}"
    arguments = (server.folder / "arguments").read_text().splitlines()
    assert arguments[-3:] == ["--", "127.0.0.1", "exec rsn serve-stdio"]


@pytest.mark.long
def test_a_board_that_is_none(server: Server) -> None:
    """XRT's no-op device, or no XRT at all."""
    rows = asked(server.url.replace("/sim", ""), 3)
    assert {"XRT library", "XRT device 0", "contiguous memory"} <= rows.keys()
    there = (Path("/usr/lib/x86_64-linux-gnu") / LIBRARY).exists()
    assert rows["XRT library"]["ok"] == there
    assert rows["XRT device 0"]["mend"] == ("unset XCL_EMULATION_MODE" if there else "the library first")


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "what", "problem", "mend"),
    [
        ("exit 9", "rsn there", "rsn did not start there (exit code 9)", "try it by hand: ssh -p "),
        ("exec {rsn} no-such-command", "rsn there", "its rsn is of another version", "install "),
        (
            r'printf "\000rsn-stdio 1\n\033\000\000\000{{\"rsn\": \"0.0\", \"blobs\": []}}"; cat >/dev/null',
            "rsn there",
            "127.0.0.1 has rsn 0.0, this is ",
            "make board-bundle here",
        ),
        (
            r'printf "\000rsn-stdio 1\n\035\000\000\000{{\"rsn\": \"{version}\", \"blobs\": []}}"',
            "ssh to 127.0.0.1",
            "127.0.0.1: the connection was lost, or rsn was ended there",
            "try it by hand",
        ),
    ],
    ids=["fails", "old", "other", "ends"],
)
def test_an_rsn_that_does_not_start(
    script: str, what: str, problem: str, mend: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script.replace("{version}", rsn.__version__)
    monkeypatch.setenv("RSN_REMOTE", str(server.rsn_is(script)))
    rows = asked(server.url, 3)
    assert list(rows) == ["ssh to 127.0.0.1", "rsn there"]
    assert rows[what]["problem"].startswith(problem)
    assert rows[what]["mend"].startswith(mend)


def test_no_way_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        began = time.monotonic()
        rows = asked(f"ssh://127.0.0.1:{taken.getsockname()[1]}", 3)
    assert time.monotonic() - began < 5
    assert rows["ssh to 127.0.0.1"]["problem"] == "no ssh server listens there"
    assert rows["rsn there"]["mend"] == "the connection first"
    text = CliRunner().invoke(main, ["doctor", "ssh://127.0.0.1:1/sim"])
    assert text.exit_code == 3
    assert text.stdout.startswith(
        "ssh://127.0.0.1:1/sim cannot be used from here\n\nno  ssh to 127.0.0.1 (the way there)"
    )
    monkeypatch.setenv("CONFIG", "known_stranger")
    assert asked(server.url, 3)["ssh to 127.0.0.1"]["mend"].startswith("ssh-copy-id installs one there")


def test_what_is_no_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for given, code, said in (
        ("vck190", 2, "'vck190': expected ssh://[USER@]HOST[:PORT][/BOARD], or nothing for this computer"),
        ("ssh://a;touch x/sim", 3, "is not the URL of a board"),
        ("ssh://root:secret@board", 3, "it has no password: set up a key for ssh"),
    ):
        done = CliRunner().invoke(main, ["doctor", given])
        assert (done.exit_code, said in done.stderr) == (code, True), done.output
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(main, ["doctor", "ssh://board"])
    assert (done.exit_code, "sudo apt install openssh-client" in done.stdout) == (3, True), done.output


MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: {} kB\nCmaTotal:  {} kB\nCmaFree: 1000 kB\n"


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEMINFO", tmp_path / "meminfo")

    def said(text: str | None) -> list[str]:
        (tmp_path / "meminfo").unlink(missing_ok=True)
        if text is not None:
            (tmp_path / "meminfo").write_text(text)
        return [str(check).partition("\n")[2].strip() for check in (*doctor.memory(), *doctor.contiguous_memory())]

    assert said(MEMINFO.format(7_000_000, 524_288)) == ["", ""]
    less = said(MEMINFO.format(100_000, 65_536))
    assert less[0].startswith("little is free; end other processes there")
    assert less[1] == "too little; add cma=512M to the kernel's boot arguments (docs/boards.md, step 7)"
    for none in (None, "", "MemAvailable: much\nCmaTotal:\n", "MemAvailable:0 kB\nCmaTotal: 0 kB\n"):
        problems = said(none)
        assert problems[1].startswith("Linux has set none aside; add cma=512M")
        assert problems[0] in (f"{tmp_path}/meminfo does not tell; look with: free -m",), none


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    usage = shutil.disk_usage(tmp_path)
    for free, problem in ((10 << 30, ""), (1 << 30, "weights may take half of it")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        (check,) = doctor.disk()
        assert (check.problem, check.purpose) == (problem, f"weights, in {tmp_path}/not/there/rsn/weights")


@pytest.mark.parametrize(("off", "problem"), [(0.0, ""), (-9e8, "behind the clock here"), (9e5, "ahead of the clock")])
def test_clocks(off: float, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_there, "examine", lambda url: {"checks": [], "time": time.time() + off})
    clock = doctor_there.examine_there("ssh://board")[2]
    assert clock.problem.startswith(problem)
    assert clock.ok == (not problem)
    assert not problem or clock.mend.startswith("there, as root: date -u -s '20")


@pytest.mark.parametrize(
    "checks",
    [
        [{"what": "\x1b[2J", "runs": ["vck190"], "more": 1}, "noise", {}],
        [{"what": ["no"], "runs": None}],
    ],
)
def test_an_answer_of_nonsense(checks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_there, "examine", lambda url: {"checks": checks, "time": -1e300})
    said = [str(check) for check in doctor_there.examine_there("ssh://board")]
    assert all(line.isprintable() for text in said for line in text.split("\n"))


def test_a_board_of_another_name() -> None:
    for name, problem in (
        ("nothing", "no board 'nothing'; there are sim, csim, vck190,"),
        ("vck190@nothing", "no device 'nothing'; a board is PROFILE@DEVICE[:INDEX], DEVICE one of xrt,"),
        ("vck190@sim:x", "no device 'sim:x'"),
        ("sim@xrt", "no board 'sim@xrt'"),
        ("vck190@pynq", "PYNQ has no AI Engine graph"),
        ("/no/x.toml@sim", "/no/x.toml"),
    ):
        row = doctor.examine(name)[-1]
        assert (row.what, row.problem.startswith(problem)) == (f"board {name}", True)


@pytest.fixture
def xrt(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What asks XRT says."""
    monkeypatch.delenv("XCL_EMULATION_MODE", raising=False)
    return lambda text: monkeypatch.setattr(doctor, "_TRY_XRT", text)


@pytest.mark.parametrize("board", ["vck190", "vck190-isca25@xrt:0", "mine.toml"])
def test_what_decides_that_a_board_can_be_used(
    board: str, xrt: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('base = "vck190"\n')
    xrt("print('\\nlibrary 2.17.0'); print('\\ndevice 0')")
    found = doctor.examine(board)
    assert [check.what for check in found if board in check.runs] == ["XRT device 0"]
    other = doctor.examine(f"{board.partition('@')[0]}@xrt:1")
    assert [(c.what, c.ok) for c in other if c.what.startswith("XRT device")] == [("XRT device 1", False)]
    xrt("print('\\nlibrary 2.17.0')")
    assert [check.what for check in doctor.examine(board) if board in check.runs and check.ok] == []
    assert os.environ.get("XCL_EMULATION_MODE") is None


def test_the_bitstream_of_a_board(xrt: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RSN_XCLBIN", raising=False)
    xrt("print('\\nlibrary 2.17.0'); print('\\ndevice 0')")
    Made().write(tmp_path / "ours.xclbin")
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    mine.write_text('base = "vck190"\nxclbin = "ours.xclbin"\n')
    other.write_text('base = "vck190-isca25"\nxclbin = "ours.xclbin"\n')

    def row(board: str) -> doctor.Check:
        return next(c for c in doctor.examine(board) if c.what.startswith("bitstream"))

    assert row("vck190").problem == "none is named"
    assert (row(str(mine)).what, row(str(mine)).ok) == (f"bitstream {tmp_path / 'ours.xclbin'}", True)
    assert "this bitstream has a fingerprint" in row(str(other)).problem
    monkeypatch.setenv("RSN_XCLBIN", str(mine))
    assert "mine.toml" in row("vck190").problem
