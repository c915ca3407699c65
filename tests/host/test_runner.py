"""The runner as serving scripts use it."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rsn.assembler import container
from rsn.base.errors import BoardError, ProgramError, TensorError
from rsn.host import tensors
from rsn.host.runner import Runner
from rsn.isa.overlays import XNN
from rsn.isa.program import Program
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

rng = np.random.default_rng(3)
W, B = rng.standard_normal((100, 70)).astype(np.float32), rng.standard_normal(70).astype(np.float32)


def linear() -> Built:
    network = LayerGraph(1, 50, {"x": 100}, (Output("y"),), (Gemm("g", "x", "y", W, B),))
    return build(network, XNN, PAPER)


def attention() -> Built:
    layers = [
        Gemm(n, "x", n, rng.standard_normal((64, 64)).astype(np.float32) / 8, np.zeros(64, np.float32)) for n in "qkv"
    ]
    return build(LayerGraph(
        2, 9, {"x": 64}, (Output("y"),), (*layers, AttentionLayer("a", "q", "k", "v", "y", 1, 64, True))),
                 XNN, PAPER)  # fmt: skip


@pytest.fixture(scope="module")
def built() -> Built:
    return linear()


def test_a_run_returns_outputs_and_time(built: Built) -> None:
    x = rng.standard_normal((1, 50, 100)).astype(np.float32)
    with Runner(built.program, weights=built.weights) as runner:
        result = runner.run({"x": x})
    np.testing.assert_allclose(result.outputs["y"][0], x[0] @ W + B, atol=1e-4)
    assert 40e-6 < result.run.latency_s < 1e-3
    assert sum(result.run.critical_path.values()) == pytest.approx(1, abs=1e-6)


def test_threads_share_one_runner(built: Built) -> None:
    xs = [rng.standard_normal((1, 50, 100)).astype(np.float32) for _ in range(8)]
    got: dict[int, np.ndarray] = {}
    with Runner(built.program, weights=built.weights) as runner:
        threads = [
            threading.Thread(target=lambda i=i: got.update({i: runner.run({"x": xs[i]}).outputs["y"]}))
            for i in range(4)
        ]
        futures = {i: runner.submit({"x": xs[i]}) for i in range(4, 8)}
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        got |= {i: f.result(60).outputs["y"] for i, f in futures.items()}
    for i, x in enumerate(xs):
        np.testing.assert_allclose(got[i][0], x[0] @ W + B, atol=1e-4)


def test_inputs_are_checked_by_name(built: Built) -> None:
    with Runner(built.program, weights=built.weights) as runner:
        with pytest.raises(TensorError, match="input 'x' is missing; this program takes x"):
            runner.run({})
        with pytest.raises(TensorError, match="no input 'z'"):
            runner.run({"x": np.zeros((1, 50, 100), np.float32), "z": np.zeros(1, np.float32)})


def test_parameters_are_range_checked() -> None:
    built = attention()
    x = {"x": np.zeros((2, 9, 64), np.float32)}
    with Runner(built.program, weights=built.weights) as runner:
        runner.run(x, {"len[1]": 4})
        with pytest.raises(TensorError, match=r"len\[0\]=10 is out of range 1\.\.9"):
            runner.run(x, {"len[0]": 10})
        with pytest.raises(TensorError, match=r"no parameter 'length'; this program has len\[0\], len\[1\]"):
            runner.run(x, {"length": 3})


def test_missing_weights(built: Built) -> None:
    with pytest.raises(TensorError, match=r"this program needs weights \(2 tensors, 'g\.weight' first\)"):
        Runner(built.program)
    with pytest.raises(TensorError, match=r"weight 'g\.bias' is missing"):
        Runner(built.program, weights={"g.weight": built.weights["g.weight"]})


def test_weights_that_were_altered(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    tensors.save_tensors(file, dict(built.weights), packed=True)
    Runner(built.program, weights=file).close()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(TensorError, match=r"w\.safetensors: the checksum of 'g\.\w+' differs"):
        Runner(built.program, weights=file)


def test_checksums_that_are_none(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    for text in ("[]", "{", "[" * 100_000):
        save_file(dict(built.weights), file, metadata={tensors.PACKED: "", tensors.CHECKSUMS: text})
        with pytest.raises(TensorError, match=r"rsn\.blake2b in its metadata is not a JSON object"):
            Runner(built.program, weights=file)


@pytest.mark.parametrize("name", ["", "a b", "x\x1b[31m", "x\ny", "x" * 256, "\u202ex"])
def test_hostile_names(built: Built, name: str) -> None:
    """In a program and in a request: they run, and messages show them so that a terminal does not obey them."""
    buffers = tuple(dataclasses.replace(b, name=name) if b.name == "x" else b for b in built.program.buffers)
    program = container.loads(container.dumps(dataclasses.replace(built.program, buffers=buffers)))
    x = np.zeros((1, 50, 100), np.float32)
    errors = []
    with Runner(program, weights=built.weights) as runner:
        np.testing.assert_array_equal(runner.run({name: x}).outputs["y"][0, 7], B)
        for inputs, parameters in (
            ({name: x, "\x07": x}, {}),
            ({}, {}),
            ({name: x[:, :7]}, {}),
            ({name: x.astype(float)}, {}),
            ({name: x}, {name: 1}),
        ):
            with pytest.raises(TensorError) as e:
                runner.run(inputs, parameters)
            errors.append(str(e.value))
    weights = {n: flat for n, flat in built.weights.items() if n != "g.bias"} | {name: built.weights["g.bias"]}
    with pytest.raises(TensorError) as e:
        Runner(built.program, weights=weights)
    assert all(error.isprintable() for error in [*errors, str(e.value)])


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_names_that_numpy_has_taken(name: str, tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=f"NumPy cannot write a tensor called '{name}'"):
        tensors.save_tensors(tmp_path / "y.npz", {name: W})
    tensors.save_tensors(tmp_path / "y.safetensors", {name: W})


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_elements_that_are_no_numbers(suffix: str, tmp_path: Path) -> None:
    words: Any = np.array(["a"])
    with pytest.raises(TensorError, match="y has dtype <U1; a file of tensors holds numbers"):
        tensors.save_tensors(tmp_path / f"y{suffix}", {"y": words})
    assert not list(tmp_path.iterdir())


def test_a_program_that_leaves_its_buffers_does_not_load(built: Built) -> None:
    smaller = [
        dataclasses.replace(b, shape=(128, 64), view=None) if b.name == "y" else b for b in built.program.buffers
    ]
    program: Program = dataclasses.replace(built.program, buffers=tuple(smaller))
    with pytest.raises(ProgramError, match=r"A01: DDR writes 16384 elements at ddr address 0x400, which"):
        Runner(program, weights=built.weights)


def test_a_closed_runner_says_so(built: Built) -> None:
    runner = Runner(built.program, weights=built.weights)
    runner.close()
    runner.close()
    with pytest.raises(BoardError, match="closed"):
        runner.run({"x": np.zeros((1, 50, 100), np.float32)})
    with pytest.raises(BoardError, match="closed"):
        runner.submit({"x": np.zeros((1, 50, 100), np.float32)})


def test_an_unknown_board_is_the_environments_fault(built: Built) -> None:
    with pytest.raises(BoardError, match="no board 'fpga'; there are sim") as e:
        Runner(built.program, weights=built.weights, board="fpga")
    assert e.value.exit_code == 3
