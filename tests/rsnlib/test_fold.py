"""LayerNorm's affine and the constant factors, folded; and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.base.errors import UnsupportedError
from rsn.machine.view import View
from rsn.rsnlib.fold import fold, fold_shapes
from rsn.rsnlib.layers import AttendLayer, LayerNorm, LinearLayer, Source, ancestors
from rsn.scheduler.graph import AttentionLayer, Gemm, Norm, Output

RANDOM = np.random.default_rng(0)
X = Source("x", 4, View.dense((2, 3, 4)))


def linear(path: str, x: Source | LinearLayer | AttendLayer, n: int, **more: object) -> LinearLayer:
    weight = RANDOM.standard_normal((x.width, n)).astype(np.float32)
    return LinearLayer(path, x, weight, RANDOM.standard_normal(n), **more)  # type: ignore[arg-type]


def normed(path: str, **more: object) -> LinearLayer:
    norm = LayerNorm(1e-6, RANDOM.standard_normal(4), RANDOM.standard_normal(4))
    return linear(path, X, 4, norm=norm, **more)


def gemms(*outputs: LinearLayer) -> list[Gemm]:
    network, _ = fold(list(outputs), 2, 3)
    return [layer for layer in network.layers if isinstance(layer, Gemm)]


def test_consumer_of_a_norm_takes_scale_and_shift() -> None:
    first = normed("first")
    second = linear("second", first, 5, factor=0.25)
    assert first.norm is not None
    g, s = first.norm.scale, first.norm.shift
    _, folded = gemms(second)
    weight = second.weight.astype(np.float64)
    assert np.array_equal(folded.weight, (weight * (g * 0.25)[:, None]).astype(np.float32))
    assert np.array_equal(folded.bias, ((second.bias + s @ weight) * 0.25).astype(np.float32))


def test_without_weights_all_else_is_the_same() -> None:
    second = linear("second", normed("first"), 5, residual=linear("other", X, 5))
    (full, names), (bare, same) = fold([second], 2, 3), fold_shapes([second], 2, 3)
    assert names == same
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
    assert first.norm is not None
    second = linear("second", X, 4, residual=first, factor=2.0)
    folded = gemms(second)[-1]
    assert folded.residual == "first"
    assert folded.residual_scale is not None
    assert np.array_equal(folded.residual_scale, first.norm.scale.astype(np.float32))
    assert np.array_equal(folded.bias, (2 * second.bias + first.norm.shift).astype(np.float32))


def test_residual_before_any_norm_has_scale_one() -> None:
    (folded,) = gemms(linear("only", X, 4, residual=X))
    assert folded.residual_scale is not None
    assert folded.residual_scale.tolist() == [1, 1, 1, 1]


def test_output_of_a_norm_takes_scale_and_shift() -> None:
    first, plain = normed("first"), linear("plain", X, 7)
    assert first.norm is not None
    network, _ = fold([first, plain], 2, 3)
    after_norm, after_product = network.outputs
    assert after_norm.scale is not None
    assert np.array_equal(after_norm.scale, first.norm.scale.astype(np.float32))
    assert after_product == Output("plain") or (after_product.scale, after_product.shift) == (None, None)


def test_weights_are_copied_row_major() -> None:
    weight = RANDOM.standard_normal((4, 6)).astype(np.float32)
    (folded,) = gemms(LinearLayer("a", X, weight, np.zeros(6)))
    assert not np.shares_memory(folded.weight, weight)
    assert folded.weight.flags.c_contiguous


def test_layers_come_after_their_operands_under_unique_names() -> None:
    q, k, v = (linear("self", X, 4) for _ in range(3))
    attend = AttendLayer("self", q, k, v, heads=2, head_dim=2, masked=True)
    network, names = fold([linear("0", attend, 3)], 2, 3)
    assert network.inputs == {"x": 4}
    assert [layer.y for layer in network.layers] == ["self", "self_2", "self_3", "self_4", "linear_0"]
    attention = network.layers[3]
    assert isinstance(attention, AttentionLayer)
    assert (attention.q, attention.k, attention.v, attention.masked) == ("self", "self_2", "self_3", True)
    assert set(names) == set(ancestors([attend])) | {layer for layer in names if names[layer] == "linear_0"}


def test_a_result_wanted_before_and_after_its_norm_is_normalised_by_a_pass() -> None:
    plain = linear("block.dense", X, 4)
    scale, shift = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 0.0, 0.0, 0.0])
    after = LinearLayer("block.dense", X, plain.weight, plain.bias, norm=LayerNorm(1e-6, scale, shift), before=plain)
    following = linear("next", after, 4, residual=plain)
    network, names = fold([following], 2, 3)
    dense, normed, last = network.layers
    assert (dense.y, normed.x, normed.residual, last.x, last.residual) == (
        "block_dense", "block_dense", "block_dense", "block_dense_norm", "block_dense",
    )  # fmt: skip
    assert (dense.norm, normed.norm, normed.weight.shape) == (None, Norm(1e-6), (0, 4))
    assert np.array_equal(last.weight, (following.weight * scale[:, None]).astype(np.float32))
    assert names[after] == "block_dense_norm"


def test_result_wanted_before_and_after_a_sum_is_refused() -> None:
    plain = linear("block.dense", X, 4)
    added = LinearLayer("block.dense", X, plain.weight, plain.bias, residual=X, before=plain)
    with pytest.raises(UnsupportedError, match=r"block\.dense: .*before and after something is added"):
        fold([linear("next", added, 4, residual=plain)], 2, 3)
