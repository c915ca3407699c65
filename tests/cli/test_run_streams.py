"""`rsn run`, `rsn compile` and `rsn asm` of stream programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.streams import reader
from rsn.streams.elaborate import Elaborator
from rsn.streams.tree import Instance

PROGRAM = """import numpy as np
from rsn.streams import *

x: i8[4, 4]
y: i32[4, 4]
s: Stream[i8[4], 2]

def twice(row):
    return 2 * row

@task(mapping=[1], args=[x])
def source(x: i8[4, 4]):
    for i in range(4):
        s.put(x[i])

@task(mapping=[1], args=[y])
def sink(y: i32[4, 4]):
    for i in range(4):
        row = s.get()
        y[i] = {value}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.py").write_text(PROGRAM.format(value="i32(row) + i32(row)"))
    (tmp_path / "q.py").write_text(PROGRAM.format(value="np.minimum(twice(row), 9)"))
    np.savez(tmp_path / "x.npz", x=np.arange(-8, 8, dtype=np.int8).reshape(4, 4))
    return tmp_path


def rsn(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_results_and_times_of_the_file_its_text_and_its_binary(folder: Path) -> None:
    code, out = rsn("run", "p.py", "--inputs", "x.npz", "--outputs", "y.npz", "--trace", "t.json", "--report", "r.html")
    assert code == 0, out
    assert "latency        16.667 ns (5 cycles at 300 MHz, modelled)" in out
    machine = "p.rsn: a stream program's machine of 2 units and 1 stream, with its program\n"
    assert rsn("compile", "p.py", "-o", "p.rsn") == (0, machine)
    assert rsn("asm", "p.rsn") == (0, "")
    assert rsn("check", "p.bin")[0] == 0
    trace = (folder / "t.json").read_text()
    assert '"source"' in trace
    assert '"nothing"' not in trace  # uOPs bear the names of their task instances
    code, again = rsn("run", "p.bin", "--inputs", "x.npz", "--outputs", "z.npz")
    assert code == 0
    assert again.splitlines()[:3] == out.splitlines()[:3]
    made = [np.load(folder / name)["y"] for name in ("y.npz", "z.npz")]
    for y in made:
        assert y.dtype == np.int32
        np.testing.assert_array_equal(y, 2 * np.arange(-8, 8).reshape(4, 4))


def test_functions_of_the_host_run_from_the_file_alone(folder: Path) -> None:
    code, out = rsn("run", "q.py", "--inputs", "x.npz", "--outputs", "y.npz")
    assert code == 0, out
    expected = np.minimum(2 * np.arange(-8, 8).reshape(4, 4), 9)
    np.testing.assert_array_equal(np.load(folder / "y.npz")["y"], expected)
    code, out = rsn("compile", "q.py", "-o", "q.rsn")
    assert code == 1
    assert out.startswith(
        "q.py:20:27: error: sink: twice is no operation of a machine [unsupported]\n"
        "        y[i] = np.minimum(twice(row), 9)\n"
        "                          ^^^^^^^^^^\n"
    )
    assert not (folder / "q.rsn").exists()
    (folder / "q.py").write_text(PROGRAM.format(value="np.minimum(thrice(row), 9)"))
    code, out = rsn("run", "q.py", "--timing-only")
    assert code == 1
    assert out.startswith("q.py:20:27: error: sink: there is no thrice to run [unsupported]\n")


def test_float64_is_never_rounded_without_a_word(folder: Path) -> None:
    (folder / "f.py").write_text(PROGRAM.format(value="row").replace("i8", "f32").replace("i32", "f32"))
    exact = np.arange(16.0).reshape(4, 4) / 4
    for number, x in enumerate((exact + 0.1, np.full((4, 4), 1e300))):
        np.savez(folder / f"f{number}.npz", x=x)
        code, out = rsn("run", "f.py", "--inputs", f"f{number}.npz")
        assert code == 1
        assert "error: x has values that are none of f32 (it has dtype float64); round them first" in out
    np.savez(folder / "exact.npz", x=exact)
    code, out = rsn("run", "f.py", "--inputs", "exact.npz", "--outputs", "y.npz")
    assert code == 0, out
    np.testing.assert_array_equal(np.load(folder / "y.npz")["y"], exact)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "p.py"], 1, "error: the input x is missing: i8[4, 4]"),
        (["run", "p.py", "--inputs", "bad.npz"], 1, "error: x has values that are none of i8 (it has dtype int64)"),
        (["run", "p.py", "--inputs", "shape.npz"], 1, "error: x has shape (2, 4); the program declares i8[4, 4]"),
        (["run", "p.py", "--inputs", "name.npz"], 1, "error: the program has no input xx; did you mean x?"),
        (["run", "p.py", "--board", "csim"], 2, "--board csim: stream programs run on the simulator"),
        (["run", "p.py", "--weights", "x.npz"], 2, "--weights: not for stream programs"),
        (["run", "p.py:pair"], 1, "p.py: error: the file has no region pair"),
        (["run", "empty.py"], 1, "error: empty.py: it has no tasks, so there is no machine to make"),
        (["run", "none.py"], 1, "error: none.py: No such file or directory"),
        (["compile", "p.py", "-o", "p.bin"], 2, "a stream program becomes a text (.rsn)"),
        (["compile", "p.py", "-o", "p.rsn", "--batch", "2"], 2, "--batch: only with a model"),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], code: int, message: str) -> None:
    (folder / "empty.py").write_text("import numpy as np\n")
    np.savez(folder / "bad.npz", x=np.full((4, 4), 300))
    np.savez(folder / "shape.npz", x=np.zeros((2, 4), np.int8))
    np.savez(folder / "name.npz", xx=np.zeros((4, 4), np.int8))
    got, out = rsn(*arguments)
    assert (got, message in out) == (code, True), out


def test_json(folder: Path) -> None:
    code, out = rsn("run", "p.py", "--timing-only", "--json")
    assert code == 0
    assert json.loads(out)["latency_s"] == pytest.approx(5 / 300e6)


@pytest.mark.parametrize(
    "command",
    [("run", "p.py", "--inputs", "x.npz"), ("compile", "p.py", "-o", "p.rsn"), ("depths", "p.py"), ("map", "p.py")],
)
def test_a_command_parses_a_file_and_reads_its_instances_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    read: list[str] = []
    texts: list[str] = []
    instance, parsed = Elaborator.instance, reader.parsed

    def counted(self: Elaborator) -> Instance:
        read.append(self.name)
        return instance(self)

    def noted(text: str) -> object:
        texts.append(text)
        return parsed(text)

    monkeypatch.setattr(Elaborator, "instance", counted)
    monkeypatch.setattr(reader, "parsed", noted)
    assert rsn(*command)[0] == 0
    assert sorted(read) == ["sink", "source"]
    assert len(texts) == 1
