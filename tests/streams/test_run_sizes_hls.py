"""The C++ of programs with sizes that each run gives: registers of one region, for all values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rsn.base.errors import ProgramError, RsnError
from rsn.host.native_tasks import run_native, to_memory
from rsn.host.tasks import run_tasks
from rsn.hw.sim.tasks import in_room
from rsn.hw.versal.csim.build import compiler
from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.hw.versal.hlscheck.design import COMPILER
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.isa.program import Program
from rsn.streams.build import build
from rsn.streams.check import report_on
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.native import HEADERS
from rsn.streams.hls.project import project
from rsn.streams.placing.devices import VC1902
from rsn.streams.reader import read
from rsn.tests.streams.test_hls import SEQUENTIAL, built
from rsn.tests.streams.test_run_sizes import CENTER

PRODUCT = """
from rsn.streams import *

rows: Size[5] = 2
steps: Size[4] = 3
depth = 8 * steps
half = rows + 1
x: f32[4 * rows, depth]
w: f32[depth, 16]
b: bf16[16]
kept: f32[5, 16]
y: f32[rows * 4, 16]
left: Stream[f32[4, 8], 2]
right: Stream[f32[8, 16], 2]
sums: Stream[f32[4, 16], 2]


@task(mapping=[1], args=[x], rates=dict(matmul=64, elements=16))
def load(x: f32[4 * rows, depth]) -> None:
    for i, k in grid(rows, steps):
        left.put(x[i * 4 : i * 4 + 4, k * 8 : k * 8 + 8])


@task(mapping=[1], args=[w], rates=dict(matmul=64, elements=16))
def weights(w: f32[depth, 16]) -> None:
    for i, k in grid(rows, steps):
        right.put(w[k * 8 : k * 8 + 8, :])


@task(mapping=[1], args=[b], rates=dict(matmul=64, elements=16))
def product(b: bf16[16]) -> None:
    for i in range(rows):
        total = zeros(f32, 4, 16)
        for k in range(depth // 8):
            total = total + left.get() @ right.get()
        if rows % 2 == 0 and steps > 1:
            total = total + f32(b[:])
        sums.put(total)


@task(mapping=[1], args=[y, kept], rates=dict(matmul=64, elements=16))
def store(y: f32[rows * 4, 16], kept: f32[5, 16]) -> None:
    for i in range(0, rows * 4, 4):
        tile = sums.get()
        y[i : i + 4, :] = tile
        for k in range(max(half - rows, min(rows, 2))):
            kept[rows - 1, :] = tile[k, :] * (i + steps)
"""
"""A product of tiles, of which each run gives the rows and the depth."""


def machine(text: str) -> Program:
    report = report_on(read(text, "p.py", timed=True))
    assert not report.code, str(report)
    return build(report)


def inputs_of(rows: int, steps: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(rows)
    shapes = {"x": (4 * rows, 8 * steps), "w": (8 * steps, 16), "b": (16,)}
    given = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return given | {"b": np.round(given["b"] * 4)}


def test_native_results_are_those_of_the_engine_for_each_value(tmp_path: Path) -> None:
    center, product = machine(CENTER.format(largest=6)), machine(PRODUCT)
    regions = built(tmp_path, {"center": program_of(center.overlay), "product": program_of(product.overlay)})
    for rows in (1, 2, 5, 6):
        x = np.random.default_rng(rows).normal(size=(2 * rows, 3)).astype(np.float32)
        expected = run_tasks(center, {"x": x}, {"rows": rows}).outputs["y"]
        got = run_native(regions["center"], {"x": x}, sizes={"rows": rows})["y"]
        assert got.shape == expected.shape
        assert got.tobytes() == expected.tobytes()
    for rows, steps in ((1, 1), (2, 4), (5, 4), (4, 1), (3, 2)):
        sizes = {"rows": rows, "steps": steps}
        given = inputs_of(rows, steps)
        expected_all = run_tasks(product, given, sizes).outputs
        got_all = run_native(regions["product"], given, sizes=sizes)
        np.testing.assert_allclose(
            expected_all["y"],
            given["x"] @ given["w"] + (given["b"] if rows % 2 == 0 and steps > 1 else 0),
            rtol=1e-4,
            atol=1e-4,
        )
        for name, value in expected_all.items():
            assert got_all[name].tobytes() == value.tobytes(), name
    with pytest.raises(ProgramError, match="rows = 7 is not from 1 to 6"):
        run_native(regions["center"], {"x": np.zeros((14, 3), np.float32)}, sizes={"rows": 7})


def test_each_process_takes_the_sizes_that_it_reads() -> None:
    made = cpp_program(program_of(machine(PRODUCT).overlay))
    top = made.text[made.text.index("void p_top") :]
    assert [s.name for s in made.sizes] == ["rows", "steps"]
    for name in ("rows", "steps"):
        assert f"#pragma HLS interface s_axilite port={name}\n" in top
        assert f"#pragma HLS stable variable={name}\n" in top
    assert "#pragma HLS loop_tripcount max=5\n" in made.text
    assert "#pragma HLS loop_tripcount max=4\n" in made.text
    assert "rsn::Shard<const float, rsn::Shape<20, 32>, rsn::Shape<20, 32>" in made.text
    fixed = cpp_program(program_of(machine(PRODUCT.replace("Size[5]", "int").replace("Size[4]", "int")).overlay))
    assert not fixed.sizes
    assert "tripcount" not in fixed.text
    assert "s_axilite" not in fixed.text


@pytest.mark.long
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no clang")
def test_derived_cycles_are_those_of_a_value(tmp_path: Path) -> None:
    cycles: dict[str, dict[str, int]] = {}
    for kind, text in (("sizes", PRODUCT), ("fixed", PRODUCT.replace("Size[5] = 2", "int = 4"))):
        text = text if kind == "sizes" else text.replace("Size[4] = 3", "int = 2")
        folder = tmp_path / kind
        folder.mkdir()
        for name, of_file in project(cpp_program(program_of(machine(text).overlay)), VC1902).items():
            (folder / name).write_text(of_file)
        report = check_folder(folder, {"rows": 4, "steps": 2} if kind == "sizes" else None)
        assert not report.findings
        assert not any(counted.unknown for _, counted in report.processes)
        cycles[kind] = {process: counted.cycles for process, counted in report.processes}
    assert cycles["sizes"].keys() == cycles["fixed"].keys()
    for process, count in cycles["sizes"].items():
        assert count == pytest.approx(cycles["fixed"][process], rel=0.1, abs=4), process
    assert any(counted.unknown for _, counted in check_folder(tmp_path / "sizes").processes)
    with pytest.raises(RsnError, match="has no size columns; it has rows, steps"):
        check_folder(tmp_path / "sizes", {"columns": 2})


@pytest.mark.long
def test_the_testbench_takes_values(tmp_path: Path) -> None:
    (tmp_path / "hls_stream.h").write_text(SEQUENTIAL)
    (tmp_path / "hls_vector.h").write_text((HEADERS.parents[1] / "hw/versal/csim/include/hls_vector.h").read_text())
    program = machine(PRODUCT)
    tasks = program_of(program.overlay)
    for name, text in project(cpp_program(tasks), VC1902, {"rows": 2, "steps": 1}).items():
        (tmp_path / name).write_text(text)
    command = [compiler(), "-std=c++17", "-O1", "-ffp-contract=off", "-I.", "top.cpp", "testbench.cpp", "-o", "bench"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    for rows, steps, arguments in ((2, 1, []), (5, 3, ["rows=5", "steps=3"]), (1, 1, ["rows=1"])):
        sizes, given = {"rows": rows, "steps": steps}, inputs_of(rows, steps)
        values = {**given, **run_tasks(program, given, sizes).outputs}
        for t in tasks.tensors:
            ending = "expected.bin" if t.output else "bin"
            (tmp_path / f"{t.name}.{ending}").write_bytes(to_memory(in_room(values[t.name], t, sizes), t))
        done = subprocess.run(["./bench", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.count("equal bit for bit") == 2
