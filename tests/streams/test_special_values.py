"""NaN, infinities, zeros of both signs and subnormal numbers in stream programs: all kernels and operators, run by the
executor and as C++, and those of dynamic streams. `isa/test_special_values` compares the kernels with PyTorch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given
from hypothesis import strategies as st

from rsn.base.element_types import FLOATS, NARROW, SCALARS
from rsn.host.native_tasks import NativeRegion, run_native
from rsn.host.tasks import run_tasks
from rsn.hw.versal.csim.build import compiler
from rsn.hw.versal.csim.tasks import CSIM
from rsn.isa.overlays.tasks.kernels import KERNELS
from rsn.isa.overlays.tasks.operators import BINARY
from rsn.isa.overlays.tasks.overlay import runnable
from rsn.isa.overlays.tasks.values import convert
from rsn.streams.dynamic import functions
from rsn.streams.dynamic.functions import Elementwise, Function, Matmul, Pointwise, RowSum
from rsn.streams.dynamic.tokens import Tile
from rsn.streams.hls.native import HEADERS
from rsn.streams.kernels import KERNELS as STREAM_KERNELS
from rsn.tests.effort import examples
from rsn.tests.isa.test_special_values import COLUMNS, OPERANDS, ROWS, SHAPES, TILES, TORCH_OPERATORS, the_calls
from rsn.tests.special_values import arrays, assert_same
from rsn.tests.streams.test_hls import built, task_program_of

KINDS = ("f32", "f64", *(name for name in NARROW if name in FLOATS))
SINGLE = {"exp", "tanh", "gelu", "silu", "softmax"}
"""Kernels that `rsn hls` has in float32 only."""


def calls(kind: str) -> Iterator[tuple[str, str]]:
    """Expressions of tiles, with the element type that each is stored in: all kernels, and all operators."""
    for name in TILES:
        kernel = KERNELS[name]
        if kind == "f64" and name in SINGLE:
            continue
        operands = OPERANDS.get(name, kernel.operands)
        tiles = [operand if operand in SHAPES else "xy"[k] for k, operand in enumerate(operands)]
        if name == "matmul":
            tiles[1] = "transpose(y)"
        for arguments, _ in the_calls(name):
            stated = (ROWS * COLUMNS,) if name == "reshape" else arguments
            yield f"{name}({', '.join([*tiles, *map(str, stated)])})", kind
    for symbol in TORCH_OPERATORS:
        if symbol != "**":  # powers differ between computers
            yield f"x {symbol} y", "boolean" if symbol in ("==", "!=", "<", "<=", ">", ">=") else kind


def numbers(kind: str) -> Iterator[tuple[str, str]]:
    """Expressions of numbers likewise."""
    for name in ("max", "min"):
        yield f"{name}(a, b)", kind
        yield f"{name}(b, a, b)", kind
    for symbol in ("in", "not in"):
        yield f"a {symbol} (b, a)", "boolean"
    for symbol in ("+", "-", "*", "/", "<", "!="):
        yield f"a {symbol} b", "boolean" if symbol in ("<", "!=") else kind
    yield "not a", "boolean"
    yield "-a", kind
    yield "abs(a)", kind


def program(kind: str) -> str:
    """A program with a task that stores each expression in a tensor of its own. z: finite numbers, for integers."""
    tensors = dict.fromkeys(("x", "y", "z"), f"{kind}[{ROWS}, {COLUMNS}]")
    tensors |= {name: f"{kind}[{', '.join(map(str, shape))}]" for name, shape in SHAPES.items()}
    body, inner = [], []
    ones = {name: np.ones(SHAPES.get(name, (ROWS, COLUMNS)), np.float32) for name in tensors}
    for expression, stored in calls(kind):
        shape = np.shape(eval(expression, {**KERNELS, "abs": np.abs}, ones)) if "(" in expression else (ROWS, COLUMNS)
        tensors[f"t{len(tensors)}"] = f"{stored}[{', '.join(map(str, shape))}]"
        body.append(f"{list(tensors)[-1]}[:] = {expression}")
    for target in SCALARS:
        tensors[f"to_{target}"] = f"{target}[{ROWS}, {COLUMNS}]"
        body.append(f"to_{target}[:] = {target}({'x' if target in (*FLOATS, 'boolean') else 'z'})")
    for expression, stored in numbers(kind):
        tensors[f"t{len(tensors)}"] = f"{stored}[{ROWS}, {COLUMNS}]"
        inner.append(f"{list(tensors)[-1]}[i, j] = {expression}")
    head = "".join(f"{name.upper()}: {kind}\n" for name, kind in tensors.items())
    lines = [f"{name} = {name}[:]" for name in ("x", "y", "z", *SHAPES)] + body
    lines += [f"for i in range({ROWS}):", f"    for j in range({COLUMNS}):"]
    lines += [f"        {line}" for line in ("a = x[i, j]", "b = y[i, j]", *inner)]
    return (
        f"from rsn.streams import *\n{head}@task(mapping=[1], args=[{', '.join(map(str.upper, tensors))}])\n"
        f"def work({', '.join(tensors)}):\n" + "".join(f"    {line}\n" for line in lines)
    )


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, NativeRegion]:
    folder = tmp_path_factory.mktemp("special")
    return built(folder, {kind: task_program_of(program(kind), kind) for kind in KINDS})


@given(st.data())
@examples(300, quick=6, share=50, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_the_executor_and_cpp_agree(regions: Mapping[str, NativeRegion], data: st.DataObject) -> None:
    for kind, region in regions.items():
        drawn = np.float64 if kind == "f64" else np.float32
        inputs: dict[str, Any] = {}
        for t in region.program.tensors:
            if t.input:
                x = convert(data.draw(arrays(t.type.shape, drawn)), t.type)
                inputs[t.name] = np.where(np.isfinite(x), x, x.dtype.type(-57344)) if t.name == "Z" else x
        expected = run_tasks(runnable(region.program), inputs).outputs
        got = run_native(region, inputs)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(got[name], value)


def test_the_programs_have_all_kernels() -> None:
    text = program("f32")
    assert [name for name in STREAM_KERNELS if f"{name}(" not in text and name != "arithmetic"] == []
    assert [symbol for symbol in ("+", "-", "*", "/", "//", "%", "<", "in") if f" {symbol} " not in text] == []
    assert set(TORCH_OPERATORS) <= set(BINARY)


EXP = """
#include <kernels.h>
#include <cstdio>
int main() {
    for (float x; std::fread(&x, sizeof x, 1, stdin) == 1;) {
        const float y = rsn::Exp()(x);
        std::fwrite(&y, sizeof y, 1, stdout);
    }
}
"""


def test_exp_in_cpp_has_the_bits_of_the_kernel(tmp_path: Path) -> None:
    """Numbers of both signs, of all sizes, and NaN."""
    (tmp_path / "exp.cpp").write_text(EXP, encoding="utf-8")
    includes = [f"-I{folder}" for folder in (HEADERS, CSIM / "include")]
    command = [compiler(), "-std=c++17", "-O2", *includes, str(tmp_path / "exp.cpp"), "-o", str(tmp_path / "exp")]
    subprocess.run(command, check=True)
    x = np.arange(0, 1 << 32, 8209, dtype=np.uint32).view(np.float32)
    made = subprocess.run([tmp_path / "exp"], input=x.tobytes(), capture_output=True, check=True).stdout
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.frombuffer(made, np.float32), KERNELS["exp"](x))


OF_TILES: Mapping[str, Callable[..., torch.Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "exp": torch.exp,
    "SiLU": torch.nn.functional.silu,
    "RowSum": lambda x: x.sum(1, keepdim=True),
    "matmul": torch.matmul,
}
"""What PyTorch calls the functions of dynamic streams that compute, by their names in messages."""
COMPUTING = [f for f in vars(functions).values() if isinstance(f, Elementwise | Pointwise)] + [RowSum(), Matmul()]


@pytest.mark.parametrize("function", COMPUTING, ids=lambda f: f.name)
@given(st.data())
@examples(200, quick=10)
def test_functions_of_dynamic_streams(function: Function, data: st.DataObject) -> None:
    sums = function.name in ("RowSum", "matmul")
    count = 1 if isinstance(function, Pointwise | RowSum) else 2
    tiles = [data.draw(arrays((ROWS, ROWS), large=not sums)) for _ in range(count)]
    expected = OF_TILES[function.name](*map(torch.tensor, tiles)).numpy()
    with np.errstate(all="ignore"):
        got = function(*(Tile(ROWS, ROWS, "f32", tile) for tile in tiles))
        within = 8 * np.spacing(np.abs(np.nan_to_num(expected))) if function.name in ("exp", "SiLU") else 0.0
    assert isinstance(got, Tile)
    assert_same(got.data, expected, 1e-3 if sums else within, signs=not sums)
