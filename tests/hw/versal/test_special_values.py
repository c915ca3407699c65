"""NaN, infinities, zeros of both signs and subnormal numbers in what the units behind MMEs compute, on the model and in
C++, against PyTorch; and where the overlays depart from it, as docs/extension.md and docs/xnn2.md say."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rsn.host import tensors
from rsn.hw.versal.csim.build import compiler
from rsn.hw.versal.csim.tasks import CSIM
from rsn.hw.versal.sources import sources
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.overlays.xnn.post_ops import NormData, SoftmaxData
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.overlays.xnn2.results import Head, Soft
from rsn.isa.overlays.xnn2.rows import RowStatistics
from rsn.isa.overlays.xnn2.scratch import TOut, TOutUnit
from rsn.isa.versal.functions import activation
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph, Norm, Output
from rsn.tests.effort import examples
from rsn.tests.scheduler.networks import Maker
from rsn.tests.special_values import arrays, assert_same

from ..examples import Example
from .native import check_same, on_both
from .test_csim_equal import made

Array = np.ndarray
Tensor = torch.Tensor
ROWS, COLUMNS = 4, 128


def by_element(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """GELU of a vector in PyTorch is NaN of infinity, and that of a number infinity."""
    return lambda x: torch.stack([function(one) for one in x.flatten()]).reshape(x.shape)


ACTIVATIONS: Mapping[int, tuple[Callable[[Tensor], Tensor], float]] = {
    0: (by_element(lambda x: torch.nn.functional.gelu(x, approximate="tanh")), 2e-6),
    1: (by_element(torch.nn.functional.gelu), 3e-7),
    2: (torch.relu, 0.0),
    3: (torch.nn.functional.silu, 1e-6),
    4: (torch.clone, 0.0),
}
"""What PyTorch calls each activation, and the error that is allowed relative to the operand."""


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Array, int], Array]:
    """The activations of hw/versal/pl/functions.h."""
    folder = tmp_path_factory.mktemp("activations")
    source, library = folder / "activations.cpp", folder / "activations.so"
    source.write_text(
        '#include "functions.h"\n'
        'extern "C" void of_all(float *x, long n, int which) {\n'
        "    for (long i = 0; i < n; ++i) x[i] = rsn::xnn::activated(x[i], static_cast<rsn::xnn::Activation>(which));\n"
        "}\n"
    )
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-DRSN_CSIM"]
    includes = [f"-I{sources() / 'pl'}", f"-I{CSIM / 'include'}"]
    subprocess.run([compiler(), *flags, *includes, str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))

    def compute(x: Array, which: int) -> Array:
        out = x.copy()
        pointer = out.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        loaded.of_all(pointer, ctypes.c_long(out.size), which)
        return out

    return compute


@pytest.mark.parametrize("which", ACTIVATIONS)
@given(x=arrays((ROWS, 5)))
@examples(300, quick=20)
def test_activations(in_cpp: Callable[[Array, int], Array], which: int, x: Array) -> None:
    function, error = ACTIVATIONS[which]
    expected = function(torch.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        for got in (activation(x, which), in_cpp(x, which)):
            assert got.dtype == np.float32
            assert_same(got, expected, error * np.nan_to_num(np.abs(x)) + (1e-44 if error else 0))


def xnn_softmax(x: Array, columns: int, max_sub: int) -> Array:
    """What a MemC makes of scores, of which the first columns count."""
    unit: Any = SimpleNamespace(index=0, buffers=[SimpleNamespace(x=x.copy())], kept=None)
    config = f.MemCConfig(softmax_cols=columns, max_sub=max_sub, alone=1)
    data = SoftmaxData(unit, 0, config, f.MemCScores(), *x.shape)
    data.begin()
    data.finish()
    return np.asarray(unit.buffers[0].x)


def xnn2_softmax(x: Array, columns: int) -> Array:
    """What T sends of a tile of scores of xnn2."""
    head = Head(Soft(tiles=1, keys=columns))
    tile = np.zeros((128, 128), np.float32)
    tile[:ROWS] = x
    ((weighted,),) = head.add(1, [tile])
    (end,) = head.end()
    port: Any = SimpleNamespace(writer=SimpleNamespace(slots=[weighted], ended=[end]))
    return TOutUnit._tile(port, TOut(weights=1), 0)[:ROWS]


@given(x=arrays((ROWS, COLUMNS)), columns=st.integers(1, COLUMNS))
@examples(200, quick=15)
def test_softmax(x: Array, columns: int) -> None:
    """As in PyTorch; but a row whose counting scores are all minus infinity is 0 if some do not count on xnn, or in any
    case on xnn2."""
    hidden = torch.tensor(x)
    hidden[:, columns:] = -torch.inf
    expected = torch.softmax(hidden, -1).numpy()
    nothing = np.isneginf(x[:, :columns]).all(axis=1)
    with np.errstate(all="ignore"):
        on_xnn, on_xnn2 = xnn_softmax(x, columns, max_sub=1), xnn2_softmax(x, columns)
    of_xnn = expected.copy()
    if columns < COLUMNS:
        of_xnn[nothing] = 0
    assert_same(on_xnn, of_xnn, 1e-6, signs=False)
    # xnn2 multiplies what may be NaN by 0: it is seen in the product with the values, in all columns of the row
    assert (np.isnan(on_xnn2).any(axis=1) == np.isnan(expected).all(axis=1) & ~nothing).all()
    finite = ~np.isnan(expected).any(axis=1)
    assert_same(on_xnn2[finite], expected[finite], 1e-6, signs=False)
    assert (on_xnn2[nothing] == 0).all()


def test_softmax_without_maxima() -> None:
    """Power-on values of xnn, as the published machine has it: NaN where a sum of exp has no reciprocal."""
    x = np.array([[0, 0], [80, 80], [89, 89], [-100, -100]], np.float32)
    with np.errstate(all="ignore"):
        found = xnn_softmax(x, 2, max_sub=0)
    assert_same(found, [[0.5, 0.5], [0.5, 0.5], [np.nan, np.nan], [np.nan, np.nan]], 1e-6)


def xnn_norm(x: Array) -> Array:
    """What a MemC makes of rows by itself."""
    unit: Any = SimpleNamespace(buffers=[SimpleNamespace(x=x.copy())], size=SimpleNamespace(columns=COLUMNS))
    data = NormData(unit, 0, f.MemCConfig(norm_cols=COLUMNS, eps=1e-5), ROWS)
    data.own_sum()
    data.other_sum((np.zeros(ROWS, np.float32), 0))
    data.own_squares()
    data.normalise((np.zeros(ROWS, np.float32), 0))
    return np.asarray(unit.buffers[0].x)


def xnn2_norm(x: Array, *, rms: bool) -> Array:
    """What X of xnn2 sends of rows."""
    statistics = RowStatistics()
    statistics.mean, statistics.squares = np.zeros((2, ROWS), np.float32)
    statistics.add(x)
    factor, plus = statistics.factors(1e-5, rms)
    return np.asarray(x * factor + plus, np.float32)


@given(x=arrays((ROWS, COLUMNS), large=False))
@examples(200, quick=15)
def test_norms(x: Array) -> None:
    """As in PyTorch; but on xnn2 an RMS norm of a row with an infinity is NaN everywhere, and not 0 elsewhere."""
    given_rows = torch.tensor(x)
    layer = torch.nn.functional.layer_norm(given_rows, (COLUMNS,)).numpy()
    root = torch.nn.functional.rms_norm(given_rows, (COLUMNS,), eps=1e-5).numpy()
    root[np.isinf(x).any(axis=1)] = np.nan
    with np.errstate(all="ignore"):
        assert_same(xnn_norm(x), layer, 1e-4, signs=False)
        assert_same(xnn2_norm(x, rms=False), layer, 1e-4, signs=False)
        assert_same(xnn2_norm(x, rms=True), root, 1e-4, signs=False)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e20, 1e25, 1e30, 1e36]))
@examples(100, quick=10)
def test_norms_whose_squares_overflow(seed: int, scale: float) -> None:
    """0 on xnn, as an RMS norm of PyTorch; NaN on xnn2."""
    x = np.float32(np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)) * scale)
    assert not torch.nn.functional.rms_norm(torch.tensor(x), (COLUMNS,), eps=1e-5).any()
    with np.errstate(all="ignore"):
        assert not xnn_norm(x).any()
        assert np.isnan(xnn2_norm(x, rms=False)).all()
        assert np.isnan(xnn2_norm(x, rms=True)).all()


@pytest.mark.long
@pytest.mark.parametrize("overlay", [XNN, XNN2], ids=lambda o: o.name)
@pytest.mark.parametrize("norm", [Norm(1e-5), Norm(1e-5, rms=True)], ids=["layer", "rms"])
def test_rows_through_a_whole_machine(overlay: Overlay, norm: Norm) -> None:
    """Products, an activation and a norm: the C++ machine and the model have NaN in the same places; only rows with NaN
    or an infinity have any, and on xnn2 one whose squares overflow, which on xnn is 0."""
    maker = Maker(np.random.default_rng(3))
    layers = (
        Gemm("up", "x", "h", maker.matrix(128, 256), maker.vector(256), ActivationFunction.GELU_ERF),
        Gemm("down", "h", "y", maker.matrix(256, 128), maker.vector(128), None, "x", 1 + maker.vector(128), norm),
    )
    example = made(LayerGraph(1, 140, {"x": 128}, (Output("y"),), layers), overlay=overlay)
    x, y = (example.program.buffer(name) for name in ("x", "y"))
    rows = np.random.default_rng(4).standard_normal((140, 128)).astype(np.float32)
    special = np.float32([np.nan, np.inf, -np.inf, 1e-45, -1e-40, 0.0, -0.0, 1e30])
    for row, value in enumerate(special):
        rows[17 * row, row] = value
    banks = Example(example.program, {**example.given, "x": tensors.pack(x, rows.reshape(x.view or x.shape))}).banks()
    with np.errstate(all="ignore"):
        model, machine = on_both(example.program, banks)
        check_same(model, machine, within=1e-5)
    at = y.offset * example.program.overlay.address_unit
    out = np.asarray(tensors.unpack(y, model[y.bank][at : at + y.size])).reshape(140, 128)
    large = 17 * (len(special) - 1)
    lost = {17 * row for row, value in enumerate(special) if not np.isfinite(value)} | (
        {large} if overlay is XNN2 else set()
    )
    assert {*np.flatnonzero(np.isnan(out).any(axis=1)).tolist()} == lost
    assert overlay is XNN2 or not out[large].any()
