"""Tensors of every element type, from a file of inputs to one of results: by the file, its text, its binary and C++."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.element_types import SCALARS, ElementType, whole_bytes
from rsn.host.native_tasks import from_memory, to_memory
from rsn.isa.overlays.tasks.program import OffChipTensor
from rsn.isa.overlays.tasks.values import DTYPES, convert
from rsn.tests.cli.test_run_streams import rsn
from rsn.tests.effort import long

SHAPE = 3, 5
"""Rows of an odd number of elements: nibbles of one row share a byte with those of the next one."""


def drawn(name: str, rng: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Values of an element type, its least and largest among them."""
    if name == "boolean":
        return rng.integers(0, 2, shape).astype(bool)
    if not SCALARS[name].integer:
        values = np.asarray(convert(rng.standard_normal(shape) * 100, ElementType(name, shape)))
        values.flat[0] = np.inf
        return values
    low, high = SCALARS[name].limits
    values = rng.integers(low, high, shape, DTYPES[name], endpoint=True)
    values.flat[:2] = low, high
    return values


@given(st.sampled_from(sorted(SCALARS)), st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_memories_of_c(name: str, count: int, seed: int) -> None:
    tensor = OffChipTensor("x", ElementType(name, (count,)), True, True)
    values = drawn(name, np.random.default_rng(seed), (count,))
    memory = to_memory(values, tensor)
    assert len(memory) == (count if name == "boolean" else whole_bytes(count, name))
    back = from_memory(memory, tensor)
    assert (back.dtype, back.tobytes()) == (values.dtype, values.tobytes())


@pytest.mark.parametrize("natively", [False, long(True)])
def test_files_of_every_type(natively: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows, columns = SHAPE
    shape = f"[{rows}, {columns}]"
    lines = ["from rsn.streams import *", ""]
    for name in SCALARS:
        lines += [f"x_{name}: {name}{shape}", f"y_{name}: {name}{shape}", f"s_{name}: Stream[{name}[{columns}], 2]"]
    for name in SCALARS:
        lines += ["", f"@task(mapping=[1], args=[x_{name}])", f"def give_{name}(x: {name}{shape}):"]
        lines += [f"    for i in range({rows}):", f"        s_{name}.put(x[i])"]
        lines += ["", f"@task(mapping=[1], args=[y_{name}])", f"def take_{name}(y: {name}{shape}):"]
        lines += [f"    for i in range({rows}):", f"        y[i] = s_{name}.get()"]
    Path("p.py").write_text("\n".join(lines) + "\n")
    given_ = {f"x_{name}": drawn(name, rng) for name in SCALARS}
    np.savez("x.npz", **given_)  # type: ignore[arg-type]
    for command in (("compile", "p.py", "-o", "p.rsn"), ("asm", "p.rsn")):
        code, out = rsn(*command)
        assert code == 0, out
    ways = [("run", "p.py"), ("run", "p.bin")]
    if natively:
        ways = [("hls", "p.bin", "-o", "c", "--run")]
    for way in ways:
        code, out = rsn(*way, "--inputs", "x.npz", "--outputs", "y.npz")
        assert code == 0, out
        with np.load("y.npz") as found:
            for name in SCALARS:
                y, x = found[f"y_{name}"], given_[f"x_{name}"]
                assert (name, y.dtype, y.tobytes()) == (name, x.dtype, x.tobytes())
