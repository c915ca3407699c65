"""Variants of kernels as C++: results, layouts, cycles, and what the compiler says of a wrong contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result

from rsn.base.errors import ProgramError
from rsn.cli.main import main
from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.streams.rates import read_kernels
from rsn.tests.effort import full, long
from rsn.tests.streams.test_time import evaluated

HEADER = """
// c = a b of a call, or c += a b.
template <class A, class B, class C>
void gemm(const A &a, const B &b, const C &c, bool first) {
    for (unsigned i = 0; i < A::rows; ++i) {
#pragma HLS unroll
        for (unsigned j = 0; j < B::columns; ++j) {
#pragma HLS unroll
            typename C::Element sum = first ? 0 : c(i, j);
            for (unsigned k = 0; k < A::columns; ++k) {
#pragma HLS unroll
                sum += typename C::Element(a(i, k)) * typename C::Element(b(k, j));
            }
            c(i, j) = sum;
        }
    }
}

// The same of operands of which a lies in blocks of 4 x 2 and b by columns, found by pointers.
template <class A, class B, class C>
void gemm_of_pointers(const A &a, const B &b, const C &c, bool first) {
    const auto *of_a = a.data();
    const auto *of_b = b.data();
    auto *of_c = c.data();
    for (unsigned i = 0; i < A::rows; ++i)
        for (unsigned j = 0; j < B::columns; ++j) {
            typename C::Element sum = first ? 0 : of_c[i * C::stride + j];
            for (unsigned k = 0; k < A::columns; ++k)
                sum += of_a[i / 4 * A::stride + k / 2 * 8 + i % 4 * 2 + k % 2] * of_b[j * B::stride + k];
            of_c[i * C::stride + j] = sum;
        }
}

// A call with a loop of its own.
template <class A, class B, class C>
void looped(const A &a, const B &b, const C &c, bool first) {
    for (unsigned k = 0; k < A::columns; ++k)
        for (unsigned i = 0; i < A::rows; ++i)
            for (unsigned j = 0; j < B::columns; j += 4) {
#pragma HLS pipeline II=1
                for (unsigned n = 0; n < 4; ++n) {
#pragma HLS unroll
                    c(i, j + n) = (first && k == 0 ? 0 : c(i, j + n)) + a(i, k) * b(k, j + n);
                }
            }
}

template <class X, class Y, class Out>
void sum(const X &x, const Y &y, const Out &out) {
    for (unsigned i = 0; i < X::rows; ++i) {
#pragma HLS unroll
        for (unsigned j = 0; j < X::columns; ++j) {
#pragma HLS unroll
            out(i, j) = x(i, j) + y(i, j);
        }
    }
}

// The root of the mean square of a row; its elements are added in pairs.
template <class X, class Gamma, class Out>
void norm(const X &x, const Gamma &gamma, const Out &out, float eps) {
    float squares[X::columns];
    for (unsigned j = 0; j < X::columns; ++j) squares[j] = x(0, j) * x(0, j);
    for (unsigned step = 1; step < X::columns; step *= 2)
        for (unsigned j = 0; j < X::columns; j += 2 * step) squares[j] += squares[j + step];
    const float size = sqrtf(squares[0] / X::columns + eps);
    for (unsigned j = 0; j < X::columns; ++j) out(0, j) = x(0, j) / size * gamma(0, j);
}
"""

PROGRAM = """from rsn.streams import *
A: f32[32, 16]
B: f32[16, 24]
D: f32[24, 16]
C: f32[32, 24]
E: f32[32, 24]
F: f32[32, 24]
G: f32[32, 24]
s: Stream[f32[16, 24], 2]
@task(mapping=[1], args=[B])
def give(b: f32[16, 24]):
    s.put(b[:, :])
@task(mapping=[1], args=[A, B, C, D, E, F, G])
def work(
    a: f32[32, 16], b: f32[16, 24], c: f32[32, 24], d: f32[24, 16], e: f32[32, 24], f: f32[32, 24], g: f32[32, 24]
):
    x = a[:, :] + 1.0
    y = b[:, :] * 2.0
    z = d[:, :] + 3.0
    c[:, :] = x @ y
    e[:, :] = a @ z.T
    f[:, :] = a[:, :] @ b[:, :]
    g[:, :] = x @ s.get()
"""
VARIANT = """[[variants]]
kernel = "matmul"
name = "gemm 4x2x4"
tile = [4, 2, 4]
vectors = [1, 1]
latency = 4
interval = 4
layouts = ["rows", "rows"]
source = "mine.h"
call = "gemm"
"""


Arrays = dict[str, npt.NDArray[Any]]


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, [*args])


def run(folder: Path, text: str, table: str, inputs: Arrays) -> tuple[str, Arrays]:
    """Write the C++ of a program, run it, and compare with the simulation. Returns the text, and the results."""
    (folder / "prog.py").write_text(text)
    (folder / "kernels.toml").write_text(table)
    (folder / "mine.h").write_text(HEADER)
    program, kernels, given = str(folder / "prog.py"), str(folder / "kernels.toml"), str(folder / "x.npz")
    np.savez(given, **inputs)
    out, results, expected = (str(folder / name) for name in ("out", "y.npz", "z.npz"))
    made = invoke("hls", program, "--kernels", kernels, "-o", out, "--run", "--inputs", given, "--outputs", results)
    assert made.exit_code == 0, made.output
    assert invoke("run", program, "--inputs", given, "--outputs", expected).exit_code == 0
    native, simulated = np.load(results), np.load(expected)
    assert set(native) == set(simulated)
    for name in native:
        assert np.array_equal(native[name], simulated[name], equal_nan=True), name
    return (folder / "out/top.cpp").read_text(), dict(native)


def normal(**shapes: tuple[int, ...]) -> Arrays:
    random = np.random.default_rng(5)
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


OF_PROGRAM = normal(A=(32, 16), B=(16, 24), D=(24, 16))


def near_the_model(folder: Path, text: str) -> None:
    """Nothing in a folder breaks a rule, and its cycles are those of the model, to a tenth."""
    report = check_folder(folder / "out")
    assert [str(finding) for finding in report.findings] == []
    derived = max(counted.cycles for _, counted in report.processes)
    rates, variants = read_kernels(folder / "kernels.toml")
    assert derived == pytest.approx(evaluated(text, rates, variants), rel=0.1)


@pytest.mark.parametrize(
    "layouts",
    [
        '"rows", "columns"',
        full('"columns", "rows"'),
        long('"4x2", "2x4"'),
        full('"2x1", "1x2"'),
        full('"columns", "2x2"'),
    ],
)
def test_layouts(layouts: str, tmp_path: Path) -> None:
    """Operands that are copied, that lie as the variant takes them, and that arrive so over a stream or from memory."""
    table = VARIANT.replace('"rows", "rows"', layouts)
    text, _ = run(tmp_path, PROGRAM, table, OF_PROGRAM)
    assert text.count("    variants::") == 4
    assert "rsn::matmul<" not in text
    near_the_model(tmp_path, PROGRAM)


def test_a_function_that_takes_pointers(tmp_path: Path) -> None:
    table = VARIANT.replace('"rows", "rows"', '"4x2", "columns"').replace('"gemm"', '"gemm_of_pointers"')
    run(tmp_path, PROGRAM, table.replace("[4, 2, 4]", "[8, 4, 6]"), OF_PROGRAM)


@pytest.mark.long
def test_calls_with_loops_of_their_own(tmp_path: Path) -> None:
    table = VARIANT.replace('"gemm"', '"looped"').replace("[4, 2, 4]", "[8, 4, 8]").replace("[1, 1]", "[1, 4]")
    run(
        tmp_path,
        PROGRAM,
        table.replace("latency = 4", "latency = 68").replace("interval = 4", "interval = 69"),
        OF_PROGRAM,
    )
    near_the_model(tmp_path, PROGRAM)


@pytest.mark.long
def test_loops_and_variables(tmp_path: Path) -> None:
    text = """from rsn.streams import *
A: f32[32, 16]
B: f32[16, 24]
C: f32[32, 24]
s: Stream[f32[16, 24], 2]
@task(mapping=[1], args=[B])
def give(b: f32[16, 24]):
    for k in range(3):
        s.put(b[:, :])
@task(mapping=[1], args=[A, B, C])
def work(a: f32[32, 16], b: f32[16, 24], c: f32[32, 24]):
    y = a[:, :] + 1.0
    total = zeros(f32, 32, 24)
    for k in range(3):
        total += y @ s.get()
    x = y @ b
    x = y @ b + x
    c[:, :] = relu(y @ b) + x + total
"""
    for layouts in ('"rows", "columns"', '"columns", "2x4"'):
        table = VARIANT.replace('"rows", "rows"', layouts).replace("[1, 1]", "[2, 4]")
        run(tmp_path, text, table, normal(A=(32, 16), B=(16, 24)))
        near_the_model(tmp_path, text)


@pytest.mark.long
def test_integers_and_batches(tmp_path: Path) -> None:
    text = """from rsn.streams import *
A: i8[3, 8, 4]
B: i8[4, 12]
C: i8[3, 8, 12]
@task(mapping=[1], args=[A, B, C])
def work(a: i8[3, 8, 4], b: i8[4, 12], c: i8[3, 8, 12]):
    x = a * 1
    y: i8[4, 12] = b + 1
    c[:] = x @ y
"""
    random = np.random.default_rng(5)
    given = {n: random.integers(-128, 128, shape, np.int8) for n, shape in (("A", (3, 8, 4)), ("B", (4, 12)))}
    for layouts in ('"rows", "rows"', '"columns", "2x4"', '"2x1", "columns"'):
        made, _ = run(tmp_path, text, VARIANT.replace('"rows", "rows"', layouts), given)
        assert "    variants::" in made


def test_kernels_on_elements_and_rows(tmp_path: Path) -> None:
    text = """from rsn.streams import *
A: f32[2, 8, 8]
B: f32[8]
C: f32[2, 8, 8]
D: f32[2, 8, 8]
@task(mapping=[1], args=[A, B, C, D])
def work(a: f32[2, 8, 8], b: f32[8], c: f32[2, 8, 8], d: f32[2, 8, 8]):
    x = a[:, :] - 1.0
    view_1 = a + x
    c[:] = view_1 + view_1
    d[:] = rmsnorm(view_1, b[:], eps=0.5)
"""
    table = """[[variants]]
kernel = "add"
name = "sum"
tile = [4, 4]
vectors = [4, 4]
latency = 2
interval = 2
layouts = ["columns", "2x4"]
source = "mine.h"
call = "sum"
[[variants]]
kernel = "rmsnorm"
name = "norm"
tile = [1, 8]
latency = 60
interval = 60
source = "mine.h"
call = "norm"
"""
    made, _ = run(tmp_path, text, table, normal(A=(2, 8, 8), B=(8,)))
    assert "variants::sum(" in made
    assert "variants::norm(" in made


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "mine.h"', 'source = "yours.h"', "source = 'yours.h': there is no file"),
        ('source = "mine.h"', 'source = "kernels.h"', "of another name than kernels.h"),
        ('source = "mine.h"', 'source = "mine.py"', "the path of a C++ header"),
        ('source = "mine.h"\n', "", "it has call = 'gemm', and no source"),
        ('call = "gemm"\n', "", "call = '': the name of a function in mine.h"),
        ('call = "gemm"', 'call = "gemm(a)"', "call = 'gemm(a)': the name of a function in mine.h"),
        ("interval = 4", "interval = 6", "so it is at most 5"),
        ('"matmul"', '"arithmetic"', "arithmetic stands for several operators, so it has no C++"),
    ],
)
def test_a_table_that_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    table = VARIANT.replace(old, new)
    if "arithmetic" in new:
        table = table.replace("[4, 2, 4]", "[4, 2]")
    (tmp_path / "mine.h").write_text(HEADER)
    (tmp_path / "kernels.toml").write_text(table)
    with pytest.raises(ProgramError) as caught:
        read_kernels(tmp_path / "kernels.toml")
    assert "variant 1, gemm 4x2x4: " in str(caught.value)
    assert message in str(caught.value)


def test_headers_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for folder in (tmp_path, tmp_path / "other"):
        (folder / "mine.h").write_text(HEADER)
    other = VARIANT.replace("gemm 4x2x4", "other").replace("mine.h", "other/mine.h")
    (tmp_path / "kernels.toml").write_text(VARIANT + other)
    with pytest.raises(ProgramError, match=r"mine\.h is the name of several headers"):
        read_kernels(tmp_path / "kernels.toml")


@pytest.mark.long
def test_what_the_compiler_says(tmp_path: Path) -> None:
    """A function that is not in the header, and a latency that the C++ does not have."""
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / "mine.h").write_text(HEADER)
    (tmp_path / "kernels.toml").write_text(VARIANT.replace('"gemm"', '"gem"').replace("latency = 4", "latency = 9"))
    np.savez(tmp_path / "x.npz", **OF_PROGRAM)  # type: ignore[arg-type]
    given = ("hls", str(tmp_path / "prog.py"), "--kernels", str(tmp_path / "kernels.toml"), "-o", str(tmp_path / "out"))
    refused = invoke(*given, "--run", "--inputs", str(tmp_path / "x.npz"))
    assert refused.exit_code == 1
    assert "error: the compiler refuses the C++ of the variant gemm 4x2x4: " in refused.output
    assert "gem" in refused.output.partition("has not been declared")[0]
    (tmp_path / "mine.h").write_text("int gem")
    refused = invoke(*given, "--run", "--inputs", str(tmp_path / "x.npz"))
    assert refused.exit_code == 1
    assert "error: the compiler refuses the C++ of the variant gemm 4x2x4: " in refused.output
    (tmp_path / "mine.h").write_text(HEADER)
    (tmp_path / "kernels.toml").write_text(VARIANT.replace("latency = 4", "latency = 9"))
    assert invoke(*given).exit_code == 0
    (finding,) = check_folder(tmp_path / "out").findings
    assert (finding.rule, finding.text) == ("latency", "states a latency of 9 cycles; an iteration takes 4 or more")
