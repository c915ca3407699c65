"""`rsn run`, `rsn compile`, `rsn asm`, `rsn check` of programs of dynamic streams."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.cli.main import main

PROGRAM = """import numpy as np
from rsn.streams.dynamic import *
from rsn.streams.dynamic.machine import OperatorMachine

result = Tensor((3, 8), "f32", name="result")
with Program() as program:
    rows = program.input("rows", [3], tile(1, 4))
    weights = Tensor.of(np.arange(32.0).reshape(4, 8) / 7, name="w")
    loaded = Flatten(0, 1)(LinearOffChipLoad(weights, (4, 8), (1, 1), (1, 1))(rows))
    made = Map(Matmul(dtype="f32"), compute=16)(rows, Flatten(0, 1)(loaded))
    program.output("sums", Map(RowSum())(made))
    LinearOffChipStore(result)(made)

machine = OperatorMachine(program, depths=3, rates=Rates(latency=7))

class Both:
    def __init__(self):
        self.program, self.depths = program, {rows: 4}

both, number = Both(), 3

def builds():
    return program

def needs(size):
    return program

def fails():
    raise KeyError("here")

with Program() as ours:
    Map(Defined("twice", lambda one: one, lambda one: Tile.of(2 * one.data)))(ours.input("a", [2], tile(1, 1)))
"""
ROWS = "rows: [[1,0,2,0]] [[0.1,1,1,1]] [[0,0,0,1]] D\n"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text(PROGRAM)
    Path("rows.txt").write_text(ROWS)


def rsn(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def assembled(name: str = "machine") -> None:
    assert rsn("compile", f"p.py:{name}", "-o", "p.rsn", "--weights", "w.npz")[0] == 0
    assert rsn("asm", "p.rsn") == (0, "")


def test_results_and_times_of_the_file_and_of_its_image() -> None:
    assembled()
    code, out = rsn("run", "p.bin", "--inputs", "rows.txt", "--weights", "w.npz", "--outputs", "a.npz")
    assert code == 0, out
    assert "latency        48 cycles (modelled)" in out
    assert rsn("run", "p.py:machine", "--inputs", "rows.txt", "--outputs", "b.npz")[0] == 0
    first, second = np.load("a.npz"), np.load("b.npz")
    assert set(first) == set(second) == {"result", "sums.stops", "sums.times", "sums.sizes", "sums.tiles"}
    assert all(np.array_equal(first[name], second[name]) for name in first)
    rows = np.array([[1, 0, 2, 0], [0.1, 1, 1, 1], [0, 0, 0, 1]])
    weights = np.arange(32.0).reshape(4, 8) / 7
    assert np.array_equal(first["result"], np.concatenate([row[None] @ weights for row in rows]))
    assert np.array_equal(first["sums.tiles"].reshape(-1), first["result"].sum(1))
    assert first["sums.times"].tolist()[-1] <= 48


def test_streams_as_arrays_with_times_and_results_as_text() -> None:
    assembled("builds")
    np.savez(
        "in.npz",
        **{"rows.stops": np.zeros(3, int), "rows.tiles": np.ones((3, 1, 4)), "rows.times": np.array([0, 50, 99, 99])},
        **np.load("w.npz"),
    )
    code, out = rsn("run", "p.bin", "--inputs", "in.npz", "--outputs", "a.npz", "--json")
    assert code == 0, out
    assert json.loads(out)["cycles"] > 99
    assert np.load("a.npz")["sums.times"][2] > 99
    code, out = rsn("run", "p.bin", "--inputs", "in.npz", "--outputs", "a.txt")
    assert (code, out) == (
        1,
        "error: a.txt: a text holds streams, and the program stores tensors (result): write .npz\n",
    )


def test_pictures_and_times_without_data() -> None:
    assembled("both")
    code, out = rsn("run", "p.bin", "--inputs", "rows.txt", "--timing-only", "--trace", "t.json", "--report", "r.html")
    assert code == 0, out
    names = {
        event["args"]["name"]
        for event in json.loads(Path("t.json").read_text())["traceEvents"]
        if "args" in event and "name" in event["args"]
    }
    assert {"LinearOffChipLoad", "memory_off_the_chip", "input_rows"} <= names
    assert "Map" in Path("r.html").read_text()
    code, timed = rsn("run", "p.bin", "--inputs", "rows.txt", "--weights", "w.npz")
    assert timed.splitlines()[:3] == out.splitlines()[:3]


def test_the_text_and_the_image_are_one_program() -> None:
    assembled()
    assert rsn("dis", "p.bin") == (0, Path("p.rsn").read_text())
    assert rsn("diff", "p.bin", "p.bin") == (0, "the same image\n")
    code, out = rsn("check", "p.bin")
    assert code == 0
    assert out.endswith("p.bin: ok on p_machine, whether it ends is not decided\n")
    assert "D04" in out
    code, out = rsn("info", "p.rsn")
    assert code == 0
    assert "a machine of 9 units that its own file describes" in out
    Path("bad.rsn").write_text(
        Path("p.rsn").read_text().replace("['Matmul', false, false, 'f32']", "['Matmul', true, false, 'f32']")
    )
    code, out = rsn("asm", "bad.rsn")
    assert code == 1
    assert out.startswith("bad.rsn:11:3: error: overlay p_machine: operators.Map: p.py:10: Map: matmul of [1,4]")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compile", "p.py:ours", "-o", "p.rsn"), "p.py:32: Map: a file cannot hold the function twice"),
        (("compile", "p.py:machine", "-o", "p.bin"), "a program of dynamic streams becomes a text"),
        (("compile", "p.py:machine", "-o", "p.rsn", "--batch", "3"), "--batch: only with a model"),
        (("compile", "p.py:fails", "-o", "p.rsn"), "p.py: KeyError: 'here'"),
        (("check", "p.py:machine"), "is checked when it is built"),
        (("run", "p.py:nothing"), "p.py: there is no nothing; its programs: program, machine, ours"),
        (("run", "p.py:needs"), "the file has no region needs"),
        (("run", "p.py:number"), "the file has no region number"),
        (("run", "p.py:machine"), "no --inputs: the program needs tokens of rows: a line"),
        (("run", "p.py:machine", "--inputs", "rows.txt", "--kernels", "k.toml"), "no such rates"),
        (("run", "p.py:machine", "--inputs", "rows.txt", "--set", "cycle=2"), "not for programs of dynamic streams"),
        (("run", "p.py:machine", "--inputs", "rows.txt", "--explain"), "not for programs of dynamic streams"),
        (("run", "p.py:machine", "--inputs", "rows.txt", "--board", "csim"), "run on the simulator"),
        (("run", "p.py:machine", "--inputs", "none.txt"), "none.txt: No such file"),
        (("run", "p.py:machine", "--inputs", "rows.txt", "--weights", "none.npz"), "none.npz: no such file"),
        (("run", "p.py:machine", "--inputs", "rows.txt", "--outputs", "o.csv"), "tensors are written as"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str) -> None:
    code, out = rsn(*arguments)
    assert code in (1, 2)
    assert said in out


def test_an_image_without_its_tensors_is_refused() -> None:
    assembled()
    assert rsn("run", "p.bin", "--inputs", "rows.txt")[1].startswith("error: tensors without values: w")
    np.savez("v.npz", v=np.ones((4, 8)))
    assert "no tensor 'v'; they are w, result" in rsn("run", "p.bin", "--inputs", "rows.txt", "--weights", "v.npz")[1]
    refused = rsn("hls", "p.bin", "-o", "hls", "--run", "--inputs", "rows.txt")[1]
    assert refused.startswith("error: tensors without values: w")


def test_a_function_of_python_runs_from_its_file() -> None:
    Path("a.txt").write_text("a: 1 2 D\n")
    code, out = rsn("run", "p.py:ours", "--inputs", "a.txt", "--outputs", "b.txt")
    assert code == 0, out
    assert Path("b.txt").read_text() == "Map: 2 4 D\n"


def test_results_with_one_name_in_an_npz_are_refused() -> None:
    Path("twice.py").write_text(PROGRAM.replace('name="result"', 'name="sums.tiles"'))
    code, out = rsn("run", "twice.py:program", "--inputs", "rows.txt", "--outputs", "out.npz")
    assert code != 0, out
    assert "out.npz: sums.tiles is an array of two results, one of them sums: rename one" in out
    assert not Path("out.npz").exists()
