"""An sshd of the tests' own on the loopback interface, with another `rsn` behind it. conftest.py has the fixtures."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

WRAPPER = """
import os, pathlib, sys, time
from rsn.host.boards import sim, ssh_frames, ssh_remote

folder, plain = pathlib.Path({folder!r}), sim.SimBoard.run
ssh_remote.GRACE_S = 0.5
ssh_frames.BEAT_S = 0.2

def run(self, *args, **kwargs):
    hold = folder / "hold"
    how = hold.read_text() if hold.exists() else ""
    if how:
        (folder / "new").write_text(str(os.getpid()))
        os.replace(folder / "new", folder / "running")
    while hold.exists():
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            if how != "deaf":
                raise
    return plain(self, *args, **kwargs)

sim.SimBoard.run = run
from rsn.cli.main import main
main(prog_name="rsn")
"""
"""The `rsn` of the other side: a run takes as long as there is a file called hold."""


def until(what: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "this never came"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Of a process, and theirs, nearest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                child = int(stat.parent.name)
                found += [child, *children(child)]
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def shell_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@dataclass(frozen=True)
class Server:
    """An sshd, and what is around it. bin: what PATH finds over there. config: of the client."""

    folder: Path
    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"ssh://127.0.0.1:{self.port}/sim"

    @property
    def cache(self) -> Path:
        return self.folder / "cache" / "rsn" / "weights"

    def kept(self) -> set[str]:
        return {p.name for p in self.cache.iterdir()} if self.cache.is_dir() else set()

    def rsn_is(self, text: str) -> Path:
        """Another `rsn` of the other side: a script of sh. {rsn} is the plain one."""
        path = self.folder / "another rsn"
        shell_script(path, text.format(rsn=shlex.quote(f"{self.folder}/bin/rsn")))
        return path

    def running(self) -> int:
        """The process over there whose run is held."""
        until((self.folder / "running").exists)
        return int((self.folder / "running").read_text())


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    keygen = shutil.which("ssh-keygen")
    if sshd is None or keygen is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd, ssh and ssh-keygen (Debian, Ubuntu: openssh-server, openssh-client)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd gives up its rights there
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user", "stranger"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    (folder / "bin").mkdir()
    (folder / "wrapper.py").write_text(WRAPPER.format(folder=str(folder)))
    python = shlex.join([sys.executable, str(folder / "wrapper.py")])
    shell_script(folder / "bin" / "rsn", f'exec {python} "$@"')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "xrt").mkdir()
    (folder / "xrt" / "lib").symlink_to("/usr/lib/x86_64-linux-gnu")
    # sums in the same order on both sides
    blas = " ".join(f"{k}={v}" for k, v in os.environ.items() if k.startswith("OPENBLAS_") and v.isalnum())
    path = f" PYTHONPATH={os.environ['PYTHONPATH']}" if "PYTHONPATH" in os.environ else ""  # the same checkout there
    environment = (
        f"PATH={folder}/bin:/usr/bin:/bin XDG_CACHE_HOME={folder}/cache "
        f"XILINX_XRT={folder}/xrt XCL_EMULATION_MODE=noop {blas}{path}"
    )
    (folder / "sshd_config").write_text(
        f"""ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv {environment}
"""
    )
    host = " ".join((folder / "host.pub").read_text().split()[:2])
    other = " ".join((folder / "stranger.pub").read_text().split()[:2])
    known = {"known": f"[127.0.0.1]:{port} {host}\n", "unknown": "", "changed": f"[127.0.0.1]:{port} {other}\n"}
    for name, text in known.items():
        (folder / f"{name}_hosts").write_text(text)
        for key in ("user", "stranger"):
            (folder / f"{name}_{key}").write_text(
                f"IdentityFile {folder}/{key}\nIdentitiesOnly yes\nIdentityAgent none\n"
                f"GlobalKnownHostsFile none\nUserKnownHostsFile {folder}/{name}_hosts\n"
            )
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [sshd, "-D", "-e", "-f", folder / "sshd_config"], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        until(lambda: b"Server listening" in (folder / "sshd.log").read_bytes() or server.poll() is not None)
        if server.poll() is not None:
            pytest.skip(f"sshd does not start here: {(folder / 'sshd.log').read_text()[-300:]}")
        yield Server(folder, port, server.pid)
    finally:
        for pid in (*children(server.pid), server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.wait()


def late(*_: object) -> None:
    raise TimeoutError("this test takes too long")


@pytest.fixture
def server(_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """With the user's ssh: the system's client, told on the command line which configuration is the user's."""
    client = shutil.which("ssh")
    folder = _server.folder / "client"
    folder.mkdir(exist_ok=True)
    shell_script(
        folder / "ssh",
        f'printf "%s\\n" "$@" >{shlex.quote(str(_server.folder))}/arguments\n'
        f'exec {client} -F {shlex.quote(str(_server.folder))}/"${{CONFIG:-known_user}}" "$@"',
    )
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("RSN_REMOTE", raising=False)
    signal.signal(signal.SIGALRM, late)  # a board over there that hangs must not hang the tests
    signal.alarm(60)
    yield _server
    signal.alarm(0)
    for name in ("hold", "running"):
        (_server.folder / name).unlink(missing_ok=True)
    until(lambda: children(_server.pid) == [])  # nothing is left running over there
    assert [name for name in _server.kept() if name.startswith(".")] == []
