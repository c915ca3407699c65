"""Boards behind ssh://, against an sshd of the test's own on the loopback interface, with the simulator behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rsn
from rsn.assembler import container
from rsn.base.errors import BoardError, ImageError, ProgramError, TensorError
from rsn.cli.main import main
from rsn.host.boards import ssh
from rsn.host.boards.device import BoardLost, BoardMismatch, BoardTimeout
from rsn.host.boards.ssh import SshBoard, Target, _Link
from rsn.host.boards.ssh_cache import WeightCache, checksum
from rsn.host.boards.ssh_frames import GREETING, Frames, PipeClosed
from rsn.host.runner import Result, Runner
from rsn.host.tensors import load_tensors, save_tensors
from rsn.isa.overlays import XNN
from rsn.isa.program import Program
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER
from rsn.tests.cli.test_raw import gemm

from .sshd import Server, children, gone, shell_script, until

pytestmark = pytest.mark.long

rng = np.random.default_rng(7)
W, B = rng.standard_normal((100, 70)).astype(np.float32), rng.standard_normal(70).astype(np.float32)
X = {"x": rng.standard_normal((1, 50, 100)).astype(np.float32)}


def linear(weight: str = "g") -> Built:
    network = LayerGraph(1, 50, {"x": 100}, (Output("y"),), (Gemm(weight, "x", "y", W, B),))
    return build(network, XNN, PAPER)


def attention() -> Built:
    w = [rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in "qkv"]
    layers = [Gemm(n, "x", n, w[i], np.zeros(64, np.float32)) for i, n in enumerate("qkv")]
    whole = (*layers, AttentionLayer("a", "q", "k", "v", "y", 1, 64, True))
    return build(LayerGraph(2, 9, {"x": 64}, (Output("y"),), whole), XNN, PAPER)


@pytest.fixture(scope="module")
def built() -> Built:
    return linear()


def held_run(runner: Runner, server: Server, how: str = "hold") -> tuple[int, Callable[[], BaseException]]:
    """Begin a run that does not end: the process over there, and what becomes of the run."""
    (server.folder / "hold").write_text(how)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            runner.run(X)
        except BaseException as e:
            caught.append(e)

    thread = threading.Thread(target=run)
    thread.start()

    def outcome() -> BaseException:
        thread.join(20)
        assert not thread.is_alive()
        return caught[0]

    return server.running(), outcome


def same(a: Result, b: Result) -> None:
    assert a.outputs.keys() == b.outputs.keys()
    for name in a.outputs:
        np.testing.assert_array_equal(a.outputs[name], b.outputs[name])
    assert dataclasses.replace(a.run, facts={}).__dict__ == dataclasses.replace(b.run, facts={}).__dict__


def local(built: Built, inputs: dict[str, Any], parameters: dict[str, int] | None = None) -> Result:
    with Runner(built.program, weights=built.weights) as runner:
        return runner.run(inputs, parameters)


# -- what it does


def test_results_and_time_are_those_of_the_board(server: Server) -> None:
    built = attention()
    x = {"x": rng.standard_normal((2, 9, 64)).astype(np.float32)}
    with Runner(built.program, weights=built.weights, board=server.url) as runner:
        for parameters in ({}, {"len[1]": 4}):
            there = runner.run(x, parameters)
            same(there, local(built, x, parameters))
            assert there.run.facts["host"] == "127.0.0.1"
        assert there.outputs["y"].flags.writeable


def test_a_device_with_a_profile(server: Server, built: Built) -> None:
    url = server.url.replace("/sim", "/vck190@sim")
    with Runner(built.program, weights=built.weights, board=url) as runner:
        there = runner.run(X)
    np.testing.assert_array_equal(there.outputs["y"], local(built, X).outputs["y"])
    assert there.run.clock == "wall"
    assert (there.run.facts["board"], there.run.facts["host"]) == ("vck190", "127.0.0.1")


def test_rsn_run(server: Server, built: Built, tmp_path: Path) -> None:
    container.write(built.program, tmp_path / "p.bin")
    save_tensors(tmp_path / "w.safetensors", dict(built.weights), packed=True)
    save_tensors(tmp_path / "x.safetensors", X)
    files = [
        x for n in ("weights", "inputs") for x in (f"--{n}", str(tmp_path / f"{n[0].replace('i', 'x')}.safetensors"))
    ]
    command = ["run", str(tmp_path / "p.bin"), "--board", server.url, *files, "--outputs", str(tmp_path / "y.npz")]
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["latency_s"] == local(built, X).run.latency_s
    np.testing.assert_array_equal(load_tensors(tmp_path / "y.npz")["y"], local(built, X).outputs["y"])
    refused = CliRunner().invoke(main, ["run", str(tmp_path / "p.bin"), "--board", server.url, "--timing-only"])
    assert refused.exit_code == 2


@pytest.mark.long
def test_a_bare_image(server: Server, tmp_path: Path) -> None:
    """The same memory afterwards; what LPDDR holds is kept over there, and not sent again."""
    gemm().write(tmp_path)
    after: list[bytes] = []
    kept: list[set[str]] = [server.kept()]
    for board in ("sim", server.url, server.url.replace("/sim", "/vck190@sim")):
        files = {"mme": "ops.json", "ddr": "ddr.bin", "lpddr": "lpddr.bin", "dump-ddr": "after.bin"}
        options = [x for name, file in files.items() for x in (f"--{name}", str(tmp_path / file))]
        done = CliRunner().invoke(main, ["run", "--raw", str(tmp_path / "image.bin"), "--board", board, *options])
        assert done.exit_code == 0, done.stderr
        after.append((tmp_path / "after.bin").read_bytes())
        kept.append(server.kept())
    assert after[1] == after[2] == after[0]
    assert kept[1] == kept[0]
    assert kept[2] - kept[1] == {checksum(gemm().lpddr)}
    assert kept[3] == kept[2]


@pytest.mark.long
def test_weights_cross_the_network_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    plain = _Link.send
    monkeypatch.setattr(
        _Link, "send", lambda self, message, *blobs: (sent.append(message.get("weight")), plain(self, message, *blobs))
    )
    weights = dict(linear().weights)
    weights["g.bias"] = np.full_like(weights["g.bias"], 3.0)
    program = linear().program

    def crossed() -> set[str]:
        sent.clear()
        with Runner(program, weights=weights, board=server.url) as there, Runner(program, weights=weights) as here:
            same(there.run(X), here.run(X))
        return {s for s in sent if s is not None}

    crossed()
    assert {checksum(w) for w in weights.values()} <= server.kept()
    assert crossed() == set()
    weights["g.bias"] = np.full_like(weights["g.bias"], 4.0)
    assert crossed() == {checksum(weights["g.bias"])}
    with (server.cache / checksum(weights["g.weight"])).open("r+b") as file:  # a card that forgets
        file.seek(100)
        file.write(b"\xff\xff\xff\xff")
    (server.cache / checksum(weights["g.bias"])).write_bytes(b"short")
    assert crossed() == {checksum(w) for w in weights.values()}


HOSTILE = ["../../pwned", "$(touch {})", "'; touch {}; '", "`touch {}`", "a\nb", "-oProxyCommand=touch {}", "\x1b[2J"]


def test_names_reach_no_shell_and_no_path(server: Server, built: Built, tmp_path: Path) -> None:
    pwned = tmp_path / "pwned"
    new = {b.name: HOSTILE[i].format(pwned) for i, b in enumerate(built.program.buffers)}
    assert len(new) >= 4
    buffers = tuple(dataclasses.replace(b, name=new[b.name]) for b in built.program.buffers)
    program: Program = dataclasses.replace(built.program, buffers=buffers, segments=())
    weights = {new[n]: w for n, w in built.weights.items()}
    before = server.kept()
    with Runner(program, weights=weights, board=server.url) as runner:
        outputs = runner.run({new["x"]: X["x"]}).outputs
    np.testing.assert_array_equal(outputs[new["y"]], local(built, X).outputs["y"])
    arguments = (server.folder / "arguments").read_text().splitlines()
    assert arguments[-3:] == ["--", "127.0.0.1", "exec rsn serve-stdio"]
    assert "BatchMode=yes" in arguments
    assert server.kept() - before <= {checksum(w) for w in weights.values()}
    assert not pwned.exists()


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=touch pwned/sim",
        "ssh://-oProxyCommand=touch%20pwned@127.0.0.1/sim",
        "ssh://a;touch pwned/sim",
        "ssh://$(touch pwned)@127.0.0.1/sim",
        "ssh://127.0.0.1`touch pwned`/sim",
        "ssh://127.0.0.1:22 -oProxyCommand=x/sim",
        "ssh://127.0.0.1:0/sim",
        "ssh://127.0.0.1:70000/sim",
        "ssh://127.0.0.1\n/sim",
        "ssh://127.0.0.1/sim\n",
        "ssh://",
        "ssh:127.0.0.1",
        "ssh://a@b@c",
    ],
)
def test_urls_that_are_none(url: str, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        BoardError, match=r"is not the URL of a board: expected ssh://\[USER@\]HOST\[:PORT\]\[/BOARD\]"
    ) as e:
        Runner(built.program, weights=built.weights, board=url)
    assert e.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_urls() -> None:
    assert Target.parse("ssh://board") == Target("", "board", 0, "vck190")
    assert Target.parse("ssh://root@10.0.0.2:2222/vck190@xrt:1") == Target("root", "10.0.0.2", 2222, "vck190@xrt:1")
    assert Target.parse("ssh://[fe80::1]:22//etc/my.toml") == Target("", "fe80::1", 22, "/etc/my.toml")
    with pytest.raises(BoardError, match="it has no password"):
        Target.parse("ssh://root:secret@board")


# -- what goes wrong


@pytest.mark.long
def test_a_connection_that_breaks_in_mid_run(server: Server, built: Built) -> None:
    with Runner(built.program, weights=built.weights, board=server.url) as runner:
        there, outcome = held_run(runner, server)
        connection = [pid for pid in children(server.pid) if pid not in (there, *children(there))]
        began = time.monotonic()
        for pid in connection:
            os.kill(pid, signal.SIGKILL)
        error = outcome()
        assert isinstance(error, BoardLost), error
        assert "127.0.0.1: the connection was lost, or rsn was ended there; the next run connects again" in str(error)
        until(lambda: gone(there))
        assert time.monotonic() - began < 5
        (server.folder / "hold").unlink()
        same(runner.run(X), local(built, X))


@pytest.mark.long
def test_an_rsn_that_is_killed_over_there(server: Server, built: Built) -> None:
    with Runner(built.program, weights=built.weights, board=server.url) as runner:
        there, outcome = held_run(runner, server)
        os.kill(there, signal.SIGKILL)
        assert isinstance(outcome(), BoardLost)
        (server.folder / "hold").unlink()
        same(runner.run(X), local(built, X))
        for pid in children(server.pid):  # between two runs
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(BoardLost):
            runner.run(X)
        same(runner.run(X), local(built, X))


@pytest.mark.long
def test_another_side_that_falls_silent(server: Server, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "ENDS_S", 0.5)
    board = SshBoard(server.url)
    board.load(built.program, built.weights)
    assert board._link is not None
    board._link._frames.silence_s = 1.0
    (server.folder / "hold").write_text("hold")
    stopped: list[float] = []

    def stop() -> None:
        there = server.running()
        time.sleep(1.5)  # a run may take longer than silence may last
        os.kill(there, signal.SIGSTOP)
        stopped.append(time.monotonic())

    watcher = threading.Thread(target=stop)
    watcher.start()
    with pytest.raises(BoardTimeout, match=r"127\.0\.0\.1: no sign of life for 1 s"):
        board.run(built.program.image, {"x": np.zeros(built.program.buffer("x").size, np.float32)})
    assert stopped
    watcher.join()
    there = server.running()
    os.kill(there, signal.SIGCONT)
    until(lambda: gone(there))


@pytest.mark.long
@pytest.mark.parametrize("how", ["hold", "deaf"])
def test_interrupt_in_mid_run(how: str, server: Server, built: Built, tmp_path: Path) -> None:
    """^C; also where what runs over there does not heed it."""
    container.write(built.program, tmp_path / "p.bin")
    save_tensors(tmp_path / "w.safetensors", dict(built.weights), packed=True)
    save_tensors(tmp_path / "x.safetensors", X)
    (server.folder / "hold").write_text(how)
    files = ["--weights", tmp_path / "w.safetensors", "--inputs", tmp_path / "x.safetensors"]
    command = [sys.executable, "-m", "rsn", "run", tmp_path / "p.bin", "--board", server.url, *files]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        there = server.running()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said.split()) == (1, [b"Aborted!"])
    until(lambda: gone(there))


@pytest.mark.parametrize(
    ("config", "said", "hint"),
    [
        ("unknown_user", "Host key verification failed", "accept it: ssh -p {port} 127.0.0.1"),
        ("changed_user", "REMOTE HOST IDENTIFICATION HAS CHANGED|Host key", "ssh-keygen -R '[127.0.0.1]:{port}'"),
        ("known_stranger", "Permission denied", "it accepts none of your keys: ssh-copy-id"),
    ],
)
def test_keys(config: str, said: str, hint: str, server: Server, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIG", config)
    with pytest.raises(BoardError, match=said) as e:
        Runner(built.program, weights=built.weights, board=server.url)
    assert hint.format(port=server.port) in str(e.value)
    assert e.value.exit_code == 3


def test_nobody_listens(server: Server, built: Built) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(BoardError, match="no ssh server listens there"):
            Runner(built.program, weights=built.weights, board=f"ssh://127.0.0.1:{taken.getsockname()[1]}/sim")


def test_no_rsn_there(server: Server, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSN_REMOTE", "no where/$(touch pwned)/rsn")
    with pytest.raises(BoardError, match=r"its shell cannot start no where/\$\(touch pwned\)/rsn") as e:
        Runner(built.program, weights=built.weights, board=server.url)
    said = str(e.value)
    assert f"install rsn {rsn.__version__} there (a board: make board-bundle; a checkout: pip install -e .), or" in said
    assert "or set RSN_REMOTE here" in said


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("exec {rsn} no-such-command", BoardError, "its rsn is of another version: install {version} there"),
        ("exit 9", BoardError, r"rsn did not start there \(exit code 9\): try it by hand: ssh -p "),
        ("head -c 70000 /dev/zero", BoardError, "rsn did not start there"),
        (
            r'printf "\000rsn-stdio 1\n\033\000\000\000{{\"rsn\": \"0.0\", \"blobs\": []}}"; cat >/dev/null',
            BoardMismatch,
            r"127\.0\.0\.1 has rsn 0\.0, this is {version}: install the same version on both",
        ),
    ],
)
def test_another_rsn_there(
    script: str,
    kind: type[BoardError],
    message: str,
    server: Server,
    built: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = tmp_path / "an rsn"
    shell_script(there, script.format(rsn=shlex.quote(f"{server.folder}/bin/rsn")))
    monkeypatch.setenv("RSN_REMOTE", str(there))
    with pytest.raises(BoardError, match=message.format(version=rsn.__version__)) as e:
        Runner(built.program, weights=built.weights, board=server.url)
    assert isinstance(e.value, kind)


def test_a_shell_that_greets(server: Server, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Login scripts that print, and libraries that do, where frames go."""
    shell_script(tmp_path / "rsn", f'echo welcome; echo; exec {shlex.quote(f"{server.folder}/bin/rsn")} "$@"')
    monkeypatch.setenv("RSN_REMOTE", str(tmp_path / "rsn"))
    with Runner(built.program, weights=built.weights, board=server.url) as runner:
        same(runner.run(X), local(built, X))


@pytest.mark.long
def test_errors_over_there_keep_their_type(server: Server, built: Built) -> None:
    with pytest.raises(BoardError, match=r"^127\.0\.0\.1: no board 'nowhere'"):
        Runner(built.program, weights=built.weights, board=server.url.replace("/sim", "/nowhere"))
    with pytest.raises(BoardError, match="is reached through another ssh:// board"):
        Runner(built.program, weights=built.weights, board=server.url.replace("/sim", "/ssh://b"))
    there = server.folder / "not here.xclbin"  # a file of the board's
    with pytest.raises(BoardError, match=r"^127\.0\.0\.1: .*(not here\.xclbin|XRT cannot be loaded|no lib/)"):
        Runner(built.program, weights=built.weights, board=server.url.replace("/sim", ""), xclbin=there)
    board = SshBoard(server.url)
    board.load(built.program, built.weights)
    x = {"x": np.zeros(built.program.buffer("x").size, np.float32)}
    with pytest.raises(TensorError, match="the inputs or the image that were sent are not those of the loaded program"):
        board.run(built.program.image, {})
    with pytest.raises(ImageError, match="word 0: the image announces 0 packet words"):
        board.run(np.concatenate([[np.uint32(0)], built.program.image[1:]]).astype(np.uint32), x)
    outputs, _ = board.run(built.program.image, x)
    assert list(outputs) == ["y"]
    board.close()
    with pytest.raises(BoardError, match="no program is loaded"):
        board.run(built.program.image, x)


def test_a_program_that_is_stuck_over_there(server: Server, built: Built) -> None:
    stuck = dataclasses.replace(built.program, preloaded={})
    with Runner(stuck, weights=built.weights, board=server.url) as runner:
        for _ in range(2):
            with pytest.raises(ProgramError, match="no unit can move"):
                runner.run(X)


def test_without_a_client(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BoardError, match="sudo apt install openssh-client"):
        Runner(built.program, weights=built.weights, board="ssh://board")


# -- the other side alone


@contextlib.contextmanager
def stdio(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Frames]]:
    command = [sys.executable, "-m", "rsn", "serve-stdio", *options]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment,
        cwd=tmp_path,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        frames = Frames(process.stdout.fileno(), process.stdin.fileno(), 20)
        assert frames.skip_to_greeting() == b""
        assert frames.receive(0) == ({"rsn": rsn.__version__}, [])
        yield process, frames


def test_it_ends_when_nobody_is_heard_of(tmp_path: Path) -> None:
    with stdio(tmp_path, "--silence", "0.3") as (process, _):
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_it_ends_when_told_to(number: signal.Signals, tmp_path: Path) -> None:
    with stdio(tmp_path) as (process, _):
        process.send_signal(number)
        assert process.wait(10) == 0


def test_a_transfer_that_breaks_off_leaves_nothing(built: Built, tmp_path: Path) -> None:
    sums = {n: checksum(w) for n, w in built.weights.items()}
    with stdio(tmp_path) as (process, frames):
        assert process.stdin is not None
        frames.send({"load": "sim", "xclbin": None, "weights": sums}, container.dumps(built.program))
        message, _ = frames.receive(0)
        assert set(message["missing"]) == set(sums.values())
        header = json.dumps({"weight": message["missing"][0], "blobs": [10_000]}).encode()
        process.stdin.write(struct.pack("<I", len(header)) + header + bytes(5_000))
        process.stdin.close()
        assert process.wait(10) == 0
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_weight_that_is_not_the_one_announced(built: Built, tmp_path: Path) -> None:
    sums = {n: checksum(w) for n, w in built.weights.items()}
    with stdio(tmp_path) as (process, frames):
        frames.send({"load": "sim", "xclbin": None, "weights": sums}, container.dumps(built.program))
        missing = frames.receive(0)[0]["missing"]
        frames.send({"weight": missing[0]}, bytes(64))
        message, _ = frames.receive(0)
        assert message["error"] == "BoardError"
        assert "arrived damaged" in message["text"]
        for weights in ({}, sums | {"g.weight": "../../etc/passwd"}, sums | {"other": sums["g.bias"]}):
            frames.send({"load": "sim", "xclbin": None, "weights": weights}, container.dumps(built.program))
            assert frames.receive(0)[0]["error"] == "TensorError"
        frames.send({"load": "sim", "xclbin": None, "weights": sums}, b"nothing")
        assert frames.receive(0)[0]["error"] == "ContainerError"
        frames.send({"what": 1})
        assert "unknown request" in frames.receive(0)[0]["text"]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path, most=3000)
    names = []
    for age, value in enumerate((1.0, 2.0, 3.0)):
        raw = bytearray(np.full(250, value, np.float32).tobytes())
        names.append(checksum(raw))
        cache.put(names[-1], raw)
        os.utime(tmp_path / names[-1], (1000 + age, 1000 + age))
    (tmp_path / ".broken-off").write_bytes(bytes(500))
    os.utime(tmp_path / ".broken-off", (500, 500))
    mapped = cache.find(names[0], 250)  # the oldest, but now it has been used
    cache.prune(keep=[names[1]], room=1000)
    assert {p.name for p in tmp_path.iterdir()} == {names[0], names[1]}
    cache.prune(keep=[names[1]], room=10_000)
    assert {p.name for p in tmp_path.iterdir()} == {names[1]}
    assert mapped is not None
    assert (mapped == 1.0).all()
    assert cache.find(names[1], 249) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x02\0",
        b"\x02\0\0\0{}",
        b"\x02\0\0\0[]",
        b"\xff\xff\xff\xff{}",
        b"\x0b\0\0\0" + b'{"blobs":3}',
        b"\x0d\0\0\0" + b'{"blobs":[9]}12345',
        b"\x0e\0\0\0" + b'{"blobs":[-1]}',
        b"\x10\0\0\0" + b'{"blobs":[true]}1',
        b"\x11\0\0\0" + b'{"blobs":[99999]}',
        GREETING,
    ],
)
def test_what_is_no_frame(raw: bytes) -> None:
    read, write = os.pipe()
    try:
        frames = Frames(read, os.dup(write), 5)
        os.write(write, raw)
        os.close(write)
        os.close(frames._write)
        with pytest.raises(PipeClosed):
            frames.receive(1000)
    finally:
        os.close(read)
