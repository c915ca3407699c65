"""LayerNorm's affine and the constant factors, folded; and products for other column layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import ScheduleError
from rsn.isa.overlays.xnn import XNN
from rsn.rsnlib.fold import fold, fold_shapes
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, Layer, LayerGraph, Norm, Output
from rsn.scheduler.schedule import PAPER

RANDOM = np.random.default_rng(0)


def linear(y: str, x: str, k: int, n: int, **more: Any) -> Gemm:
    return Gemm(y, x, y, RANDOM.standard_normal((k, n)).astype(np.float32), RANDOM.standard_normal(n), **more)


def normed(y: str) -> Gemm:
    scale, shift = RANDOM.standard_normal(4), RANDOM.standard_normal(4)
    return linear(y, "x", 4, 4, norm=Norm(1e-6), scale=scale, shift=shift)


def graph(*layers: Layer, outputs: tuple[str, ...] = ()) -> LayerGraph:
    """Layers over the input x of 4 columns; the last one's result is the output, unless others are given."""
    return LayerGraph(2, 3, {"x": 4}, tuple(map(Output, outputs or (layers[-1].y,))), layers)


def gemms(*layers: Layer) -> list[Gemm]:
    return [layer for layer in fold(graph(*layers)).layers if isinstance(layer, Gemm)]


def test_consumer_of_a_norm_takes_scale_and_shift() -> None:
    first = normed("first")
    second = linear("second", "first", 4, 5, factor=0.25)
    g, s = first.scale, first.shift
    assert g is not None
    assert s is not None
    bare, folded = gemms(first, second)
    weight = second.weight.astype(np.float64)
    assert np.array_equal(folded.weight, (weight * (g * 0.25)[:, None]).astype(np.float32))
    assert np.array_equal(folded.bias, ((second.bias + s @ weight) * 0.25).astype(np.float32))
    assert (bare.norm, bare.is_folded, folded.is_folded) == (Norm(1e-6), True, True)


def test_without_weights_all_else_is_the_same() -> None:
    matched = graph(linear("other", "x", 4, 5), normed("first"), linear("second", "first", 4, 5, residual="other"))
    full, bare = fold(matched), fold_shapes(matched)
    assert bare.show() == full.show()
    for a, b in zip(full.layers, bare.layers, strict=True):
        assert isinstance(a, Gemm)
        assert isinstance(b, Gemm)
        assert (a.weight.shape, a.bias.shape) == (b.weight.shape, b.bias.shape)
        assert np.isnan(b.weight).all()
        assert np.isnan(b.bias).all()
        assert np.array_equal(a.residual_scale, b.residual_scale) if a.residual else b.residual_scale is None


def test_residual_of_a_norm_takes_scale_and_shift() -> None:
    first = normed("first")
    second = linear("second", "x", 4, 4, residual="first", factor=2.0)
    assert first.scale is not None
    assert first.shift is not None
    _, folded = gemms(first, second)
    assert folded.residual == "first"
    assert folded.residual_scale is not None
    assert np.array_equal(folded.residual_scale, first.scale.astype(np.float32))
    assert np.array_equal(folded.bias, (2 * second.bias + first.shift).astype(np.float32))


def test_residual_before_any_norm_has_scale_one() -> None:
    (folded,) = gemms(linear("only", "x", 4, 4, residual="x"))
    assert folded.residual_scale is not None
    assert folded.residual_scale.tolist() == [1, 1, 1, 1]


def test_output_of_a_norm_takes_scale_and_shift() -> None:
    first, plain = normed("first"), linear("plain", "x", 4, 7)
    after_norm, after_product = fold(graph(first, plain, outputs=("first", "plain"))).outputs
    assert first.scale is not None
    assert after_norm.scale is not None
    assert np.array_equal(after_norm.scale, first.scale.astype(np.float32))
    assert (after_product.name, after_product.scale, after_product.shift) == ("plain", None, None)


@pytest.mark.parametrize("shift", [None, np.array([0.5, 0.0, 0.0, 0.0])])
def test_a_pass_takes_the_scale_and_with_a_shift_becomes_a_product(shift: Any) -> None:
    scale = np.array([1.0, 2.0, 3.0, 4.0])
    first = linear("first", "x", 4, 4, norm=Norm(1e-6, rms=True), scale=scale, shift=shift)
    nothing = np.zeros((0, 4), np.float32)
    over = Gemm("over", "first", "over", nothing, np.zeros(4), residual="first", norm=Norm(1e-5))
    _, folded = gemms(first, over)
    if shift is None:
        assert folded.residual_scale is not None
        assert (folded.residual, folded.residual_scale.tolist(), folded.multiplies) == ("first", [1, 2, 3, 4], False)
    else:
        assert (folded.x, folded.residual, folded.residual_scale) == ("first", None, None)
        assert (folded.weight.tolist(), folded.bias.tolist()) == (np.diag(scale).tolist(), shift.tolist())


def test_weights_are_copied_row_major() -> None:
    weight = RANDOM.standard_normal((4, 6)).astype(np.float32)
    (folded,) = gemms(Gemm("a", "x", "a", weight, np.zeros(6)))
    assert not np.shares_memory(folded.weight, weight)
    assert folded.weight.flags.c_contiguous


def test_products_are_inserted_for_narrow_heads() -> None:
    """The values are an output too, so that they are also needed without padding between heads; queries are not. The
    scale of the keys cannot be folded into an attention."""
    q, k, v = linear("q", "x", 4, 4), linear("k", "x", 4, 4, activation=ActivationFunction.RELU), linear("v", "x", 4, 4)
    k = replace(k, scale=np.full(4, 0.5))
    folded = fold(graph(q, k, v, AttentionLayer("a", "q", "k", "v", "a", 2, 2), outputs=("a", "v")))
    assert [(layer.y, layer.operands) for layer in folded.layers] == [
        ("q", ("x",)),
        ("k", ("x",)),
        ("k_columns", ("k",)),
        ("v", ("x",)),
        ("v_columns", ("v",)),
        ("a", ("q", "k_columns", "v_columns")),
        ("a_columns", ("a",)),
    ]
    assert [out.name for out in folded.outputs] == ["a_columns", "v"]
    moved = folded.layers[2]
    assert isinstance(moved, Gemm)
    assert moved.weight.tolist() == (np.eye(4) / 2).tolist()


def test_the_scheduler_refuses_a_graph_that_is_not_folded() -> None:
    for changed in ({"factor": 2.0}, {"scale": np.ones(64)}, {"shift": np.ones(64)}):
        layer = replace(Gemm("g", "x", "y", np.eye(64, dtype=np.float32), np.zeros(64, np.float32)), **changed)
        with pytest.raises(ScheduleError, match="g: its factor, scale or shift is not folded"):
            build(LayerGraph(1, 8, {"x": 64}, (Output("y"),), (layer,)), XNN, PAPER)
