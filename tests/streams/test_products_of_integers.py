"""Products of integers: in the C++, which adds to all sums in each cycle, and in the model of time."""

from __future__ import annotations

import subprocess
from math import ceil
from pathlib import Path
from random import Random

import pytest

from rsn.hw.versal.csim.build import compiler
from rsn.hw.versal.csim.tasks import CSIM
from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.streams.build import task_program
from rsn.streams.check import report_on
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.native import HEADERS
from rsn.streams.hls.project import project
from rsn.streams.placing.devices import U55C
from rsn.streams.reader import read
from rsn.tests.effort import cases, full, long
from rsn.tests.streams.test_datapath import busy
from rsn.tests.streams.test_hls import built, compare

TWO = """
#include <kernels.h>
#include <cstdio>
template <std::size_t Shared>
int wrong() {
    constexpr int most = rsn::TwoProducts<4, Shared>::most, least = -(1 << (Shared - 1));
    int found = 0;
    for (int low = -8; low < 8; ++low)
        for (int high = -8; high < 8; ++high) {
            for (int x = least; x < -least; ++x) {
                rsn::TwoProducts<4, Shared> made;
                made.add(low, high, x);
                found += made.low() != low * x || made.high() != high * x;
            }
            for (int x : {least, -least - 1, 5}) {
                rsn::TwoProducts<4, Shared> made;
                for (int step = 0; step < most; ++step) made.add(low, high, x);
                found += made.low() != low * x * most || made.high() != high * x * most;
            }
        }
    return found;
}
int main() { std::printf("%d\\n", wrong<8>() + wrong<9>() + wrong<12>()); }
"""


def test_two_products_of_one_multiplication(tmp_path: Path) -> None:
    """All weights of 4 bits with all numbers of 8 bits, of 9 as behind a zero point, and of 12, the most; and the
    largest sums."""
    (tmp_path / "two.cpp").write_text(TWO, encoding="utf-8")
    includes = [f"-I{folder}" for folder in (HEADERS, CSIM / "include")]
    command = [compiler(), "-std=c++17", "-O2", *includes, str(tmp_path / "two.cpp"), "-o", str(tmp_path / "two")]
    subprocess.run(command, check=True)
    assert subprocess.run([tmp_path / "two"], capture_output=True, check=True, text=True).stdout == "0\n"


TURNED = ("transpose(i32(b.get()))", "i32(transpose(b.get()))", "i32(b.get()).T")


def drawn(
    random: Random,
    types: tuple[str, str],
    shape: tuple[int, int, int],
    rate: int,
    fabric: int = 0,
    turned: bool = False,
) -> str:
    """A task that sums products of tiles of two streams, in place where there are several, for each of two results.
    fabric: multiply-adds in LUTs. turned: the transposes of right operands come over the stream."""
    rates = f"matmul={rate}, fabric={fabric}" if fabric else f"matmul={rate}"
    left, right = types
    rows, depth, columns = shape
    tiles, zero = random.choice([1, 3]), random.choice(["", " - i32(z)"])
    taken = random.choice(TURNED) if turned else "i32(b.get())"
    product = f"(i32(a.get()){zero}) @ {taken}"
    of_right = f"{columns}, {depth}" if turned else f"{depth}, {columns}"
    sums = [f"        total = i32({product})"]
    if tiles > 1:
        sums = [
            f"        total = zeros(i32, {rows}, {columns})",
            f"        for p in range({tiles}):",
            f"            total = i32(total + {product})",
        ]
    lines = [
        "from rsn.streams import *",
        f"A: {left}[{2 * tiles}, {rows}, {depth}]",
        f"B: {right}[{2 * tiles}, {of_right}]",
        f"Z: i8[{rows}, 1]",
        f"Y: f32[2, {rows}, {columns}]",
        f"a = Stream[{left}[{rows}, {depth}], 2]",
        f"b = Stream[{right}[{of_right}], 2]",
        f"r = Stream[f32[{rows}, {columns}], 2]",
        "@task(mapping=[1], args=[A])",
        f"def load(x: {left}[{2 * tiles}, {rows}, {depth}]) -> None:",
        f"    for i in range({2 * tiles}):",
        "        a.put(x[i])",
        "@task(mapping=[1], args=[B])",
        f"def bring(x: {right}[{2 * tiles}, {of_right}]) -> None:",
        f"    for i in range({2 * tiles}):",
        "        b.put(x[i])",
        f"@task(mapping=[1], args=[Z], rates=dict({rates}, elements=16))",
        f"def work(x: i8[{rows}, 1]) -> None:",
        "    z = x[:, :]",
        "    for k in range(2):",
        *sums,
        "        r.put(f32(total) * 0.5)",
        "@task(mapping=[1], args=[Y], rates=dict(elements=64))",
        f"def store(y: f32[2, {rows}, {columns}]) -> None:",
        "    for i in range(2):",
        "        y[i] = r.get()",
    ]
    return "\n".join(lines) + "\n"


TYPES = [("i8", "i4"), ("i8", "i8"), ("u8", "u4"), ("i16", "i4"), ("i8", "i16"), ("i32", "i32")]
SHAPES = [(4, 8, 16), (8, 16, 32), (1, 16, 64), (1, 8, 1024), (16, 8, 48), (3, 5, 7)]
RATES = [1, 16, 64, 512, 4096]


@pytest.mark.long
def test_sums_in_place_have_the_bits_of_the_engine(tmp_path: Path) -> None:
    """Of all types, with sums that wrap, of operands that come over a stream meanwhile and of others."""
    random, programs = Random(61), {}
    for number in range(cases(60, 12)):
        rate = random.choice(RATES)
        types, shape, fabric = TYPES[number % len(TYPES)], random.choice(SHAPES), random.choice([0, rate // 2])
        text = drawn(random, types, shape, rate, fabric, random.random() < 0.4)
        report = report_on(read(text))
        assert not report.code, text
        programs[f"p{number}"] = task_program(report.region)
    assert compare(built(tmp_path, programs))["equal"] == len(programs)


@pytest.mark.parametrize(
    ("types", "shape", "rate", "fabric", "units"),
    [
        (("i8", "i8"), (1, 64, 64), 256, None, 256),
        long(("i8", "i8"), (16, 64, 64), 1024, None, 1024),
        full(("i8", "i8"), (3, 96, 32), 100, None, 32),
        full(("i8", "i4"), (16, 32, 64), 1024, 0, 512),
        long(("i8", "i4"), (16, 32, 64), 256, 96, 80),
        full(("i8", "i8"), (16, 32, 64), 1024, 256, 768),
        full(("i8", "i4"), (16, 16, 128), 2048, 1024, 512),
        full(("i8", "i4"), (1, 64, 1024), 1024, 0, 512),
        long(("i8", "i4"), (3, 32, 35), 105, 0, 105),
        full(("i8", "i4"), (2, 64, 64), 1024, 0, 512),
        long(("i8", "i8"), (1, 64, 128), 512, 128, 128),
    ],
)
def test_the_source_has_the_cycles_and_the_multiplications_of_the_model(
    types: tuple[str, str], shape: tuple[int, int, int], rate: int, fabric: int | None, units: int, tmp_path: Path
) -> None:
    """Two products of i4 are one multiplication, where there are two columns of them; those in LUTs are none. fabric:
    None for transposes."""
    text = drawn(Random(1), types, shape, rate, fabric or 0, fabric is None)
    for name, of_file in project(cpp_program(task_program(report_on(read(text)).region)), U55C).items():
        (tmp_path / name).write_text(of_file, encoding="utf-8")
    report = check_folder(tmp_path)
    assert not report.findings
    derived = {name: counted.cycles for name, counted in report.processes}
    assert derived["work"] == pytest.approx(busy(text, {})["work"], rel=0.1, abs=20)
    assert max(ceil(x.multiplications / x.stated) for x in report.loops if x.function == "work") == units
