"""`rsn hls`: the files that it writes, its run, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from contextlib import chdir
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.hw.versal.csim.build import compiler
from rsn.hw.versal.csim.tasks import CSIM

PROGRAM = """import numpy as np
from rsn.streams import *

x: i8[4, 4]
y: i32[4, 4]
s: Stream[i8[4], 2]

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
    (tmp_path / "p.py").write_text(PROGRAM.format(value="i32(row) * 3"))
    (tmp_path / "q.py").write_text(PROGRAM.format(value="i32(np.fft.fft(row))"))
    np.savez(tmp_path / "x.npz", x=np.arange(-8, 8, dtype=np.int8).reshape(4, 4))
    return tmp_path


def rsn(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_the_folder_that_it_writes(folder: Path) -> None:
    assert rsn("hls", "p.py", "-o", "out") == (0, "out/top.cpp: p_top, 2 processes\n")
    assert {file.name for file in (folder / "out").iterdir()} == {
        "top.cpp", "kernels.h", "channels.h", "testbench.cpp", "hls.tcl", "connectivity.cfg", "README.md",
    }  # fmt: skip
    top = (folder / "out" / "top.cpp").read_text()
    assert "RSN_AT(16);  // p.py:16\n" in top
    assert "void p_top(const hls::vector<std::int8_t, 4> *x, hls::vector<std::int32_t, 4> *y) {\n" in top
    assert "No HLS tool has been run" in (folder / "out" / "README.md").read_text()
    bench = (folder / "out" / "testbench.cpp").read_text()
    assert 'Memory<std::int8_t> tensor_0("x.bin", 16);' in bench
    assert "p_top(reinterpret_cast<hls::vector<std::int8_t, 4> *>(tensor_0.data()), " in bench


@pytest.mark.long
def test_its_run_is_that_of_the_simulator(folder: Path) -> None:
    assert rsn("compile", "p.py", "-o", "p.rsn")[0] == 0
    assert rsn("asm", "p.rsn")[0] == 0
    given = ("--run", "--inputs", "x.npz", "--outputs", "y.npz", "--json")
    code, out = rsn("hls", "p.bin", "-o", "out", *given)
    assert code == 0, out
    assert json.loads(out).keys() == {"top", "folder", "processes", "seconds"}
    assert rsn("run", "p.py", "--inputs", "x.npz", "--outputs", "z.npz")[0] == 0
    result, expected = (np.load(name)["y"] for name in ("y.npz", "z.npz"))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    assert (folder / "out" / "x.bin").read_bytes() == np.arange(-8, 8, dtype=np.int8).tobytes()
    assert (folder / "out" / "y.expected.bin").read_bytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("q.py", "-o", "out"), 1, "q.py:17:20: error: sink: np.fft.fft is no operation of a machine"),
        (("p.py",), 2, "Missing option '-o'"),
        (("p.py", "-o", "out", "--outputs", "y.npz"), 2, "--outputs: only with --run"),
        (("p.py", "-o", "out", "--run"), 1, "the input x is missing: i8[4, 4]"),
        (("p.py", "-o", "p.py"), 2, "is a file"),
        (("none.py", "-o", "out"), 1, "none.py"),
        (("x.npz", "-o", "out"), 1, "x.npz"),
        (("p.py", "-o", "out", "--run", "--inputs", "x.npz", "--outputs", "y.txt"), 1, "written as .safetensors or"),
    ],
)
def test_what_it_refuses(folder: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    got, out = rsn("hls", *arguments)
    assert got == code, out
    assert message in out


def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert rsn("hls", "p.py", "-o", "out")[0] == 0
    code, out = rsn("hls", "p.py", "-o", "out", "--run", "--inputs", "x.npz")
    assert code == 3
    assert "no compiler 'no-such-compiler'" in out


DYNAMIC = """from rsn.streams.dynamic import *

with Program() as program:
    rows = program.input("rows", [3], tile(1, 2, "f32"))
    doubled = Map(Add)(rows, rows)
    program.output("doubled", doubled)
    LinearOffChipStore(Tensor((3, 2), "f32", name="kept"))(doubled)


def made():
    return program
"""


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the files of a dynamic program and of its native run, and what the command printed."""
    folder = tmp_path_factory.mktemp("dynamic")
    (folder / "d.py").write_text(DYNAMIC)
    (folder / "d.txt").write_text("rows: [[1,2]] [[3,4]] [[0.5,-1]] D")
    with chdir(folder):
        code, out = rsn("hls", "d.py:program", "-o", "out", "--run", "--inputs", "d.txt", "--outputs", "y.npz")
    assert code == 0, out
    return folder, out


@pytest.mark.long
def test_dynamic_programs(dynamic: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = dynamic
    monkeypatch.chdir(folder)
    assert out.startswith("out/top.cpp: d_program_top, 7 processes\nrun on this computer in ")
    result = np.load(folder / "y.npz")
    np.testing.assert_array_equal(result["doubled.tiles"].reshape(3, 2), [[2, 4], [6, 8], [1, -2]])
    np.testing.assert_array_equal(result["kept"], [[2, 4], [6, 8], [1, -2]])
    assert rsn("run", "d.py:program", "--inputs", "d.txt", "--outputs", "z.npz")[0] == 0
    expected = np.load(folder / "z.npz")
    assert result.files == [name for name in expected.files if not name.endswith(".times")]
    assert all(np.array_equal(result[name], expected[name]) for name in result.files)
    assert {file.name for file in (folder / "out").iterdir()} == {
        "top.cpp", "step.h", "step_tokens.h", "step_memory.h", "step_operators.h", "step_functions.h", "kernels.h",
        "channels.h", "testbench.cpp", "hls.tcl", "connectivity.cfg", "README.md",
        "rows.bin", "kept.bin", "kept.expected.bin",
    }  # fmt: skip
    assert (folder / "out" / "kept.expected.bin").read_bytes() == np.float32([2, 4, 6, 8, 1, -2]).tobytes()
    assert rsn("compile", "d.py:program", "-o", "d.rsn")[0] == rsn("asm", "d.rsn")[0] == 0
    code, out = rsn("hls", "d.bin", "-o", "bin", "--run", "--inputs", "d.txt", "--outputs", "w.npz")
    assert code == 0, out
    np.testing.assert_array_equal(np.load(folder / "w.npz")["kept"], result["kept"])
    assert rsn("hls", "d.py:made", "-o", "out") == (0, "out/top.cpp: d_made_top, 7 processes\n")


@pytest.mark.long
def test_the_testbench_of_a_dynamic_program_compares(dynamic: tuple[Path, str], tmp_path: Path) -> None:
    there = copytree(dynamic[0] / "out", tmp_path / "out")
    # Processes as plain calls, one after the other: streams without a bound, as in AMD's own C simulation.
    (there / "hls_stream.h").write_text(
        """#include <deque>
namespace hls {
template <class T, int N = 0>
struct stream;
template <class T>
struct stream<T, 0> {
    std::deque<T> kept;
    bool empty() { return kept.empty(); }
    T read() {
        T word = kept.front();
        kept.pop_front();
        return word;
    }
    void write(const T &word) { kept.push_back(word); }
};
template <class T, int N>
struct stream : stream<T, 0> {
    stream(const char *) {}
};
}
"""
    )
    include = CSIM / "include" / "hls_vector.h"
    (there / "hls_vector.h").write_text(include.read_text())
    command = [compiler("a test"), "-std=c++17", "-w", "-I.", "top.cpp", "testbench.cpp", "-o", "bench"]
    subprocess.run(command, cwd=there, check=True)
    done = subprocess.run(["./bench"], cwd=there, capture_output=True, text=True, check=True)
    assert done.stdout == "kept.expected.bin: equal bit for bit\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("d.py:program", "--kernels", "d.txt"), "--kernels: not for programs of dynamic streams"),
        (("d.py:program", "--inputs", "d.txt"), "d.txt:1: a line is the name of a stream, a colon, and its tokens"),
    ],
)
def test_what_dynamic_programs_refuse(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (folder / "d.py").write_text(DYNAMIC)
    (folder / "d.txt").write_text("rows")
    code, out = rsn("hls", *arguments, "-o", "out")
    assert code
    assert message in out
