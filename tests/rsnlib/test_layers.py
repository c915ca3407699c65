"""Layers that lowering rules make: which of them a graph has, and under which names."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.rsnlib.fold import fold
from rsn.rsnlib.layers import Base, HostInput, LayerBuilder
from rsn.rsnlib.view import View
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, Norm

RANDOM = np.random.default_rng(0)


@pytest.fixture
def layers() -> LayerBuilder:
    return LayerBuilder()


@pytest.fixture
def x(layers: LayerBuilder) -> HostInput:
    return layers.source("x", 4, View.dense((2, 3, 4)))


def linear(layers: LayerBuilder, path: str, x: Base, n: int = 4) -> Gemm:
    weight = RANDOM.standard_normal((x.width, n)).astype(np.float32)
    return layers.product(path, x, weight, RANDOM.standard_normal(n))


def test_layers_come_after_their_operands_under_unique_names(layers: LayerBuilder, x: HostInput) -> None:
    unused = linear(layers, "self", x)
    q, k, v = (linear(layers, "self", x) for _ in range(3))
    attention = layers.attention("self", q, k, v, heads=2, head_dim=2, masked=True)
    last = linear(layers, "0", attention, 3)
    graph, names = layers.graph([last], 2, 3)
    assert graph.inputs == {"x": 4}
    assert [layer.y for layer in graph.layers] == ["self", "self_2", "self_3", "self_4", "linear_0"]
    found = graph.layers[3]
    assert isinstance(found, AttentionLayer)
    assert (found.q, found.k, found.v, found.masked) == ("self", "self_2", "self_3", True)
    assert names == {x.y: "x", q.y: "self", k.y: "self_2", v.y: "self_3", attention.y: "self_4", last.y: "linear_0"}
    assert unused.y not in names
    assert fold(graph).show() == graph.show()


def test_a_result_needed_before_and_after_its_norm_is_normalised_by_a_pass(layers: LayerBuilder, x: HostInput) -> None:
    plain = linear(layers, "block.dense", x)
    scale, shift = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 0.0, 0.0, 0.0])
    after = layers.fuse(plain, "", norm=Norm(1e-6), scale=scale, shift=shift)
    following = layers.fuse(linear(layers, "next", after), residual=plain.y)
    graph, names = layers.graph([following], 2, 3)
    dense, normed, last = graph.layers
    assert names[after.y] == "block_dense_norm"
    assert (normed.y, normed.path, normed.operands) == ("block_dense_norm", "block.dense.norm", ("block_dense",))
    assert last.operands == ("block_dense_norm", "block_dense")
    for layer in (dense, normed):
        assert isinstance(layer, Gemm)
    assert graph.show() == (
        "2 x 3 rows: x (4 columns)\n"
        "  block_dense = x @ weight 4x4 + bias\n"
        "  block_dense_norm = layer_norm(block_dense, eps 1e-06) * scale + shift\n"
        "  next = block_dense_norm @ weight 4x4 + bias + block_dense\n"
        "  -> next\n"
    )
    assert fold(graph).show().splitlines()[2:4] == [
        "  block_dense_norm = layer_norm(block_dense * scale, eps 1e-06)",
        "  next = block_dense_norm @ weight 4x4 + bias + block_dense * scale",
    ]
    folded = fold(graph).layers[-1]
    assert isinstance(folded, Gemm)
    assert np.array_equal(folded.weight, (following.weight * scale[:, None]).astype(np.float32))


def test_what_is_needed_at_the_end_alone_is_one_layer(layers: LayerBuilder, x: HostInput) -> None:
    plain = linear(layers, "up", x)
    after = layers.fuse(layers.fuse(plain, factor=2.0), "act", activation=ActivationFunction.RELU)
    graph, _ = layers.graph([after], 2, 3)
    assert graph.show().splitlines()[1:] == ["  up = relu(2 * (x @ weight 4x4 + bias))", "  -> up"]
    assert layers.before(plain) is None


def test_a_factor_behind_an_activation_that_has_one_is_relative_to_it(layers: LayerBuilder, x: HostInput) -> None:
    halved = layers.fuse(linear(layers, "up", x), "act", activation=ActivationFunction.RELU, scale=np.full(4, 0.5))
    whole = layers.fuse(halved, scale=None)
    graph, names = layers.graph([halved, whole], 2, 3)
    first, second = graph.layers
    assert isinstance(first, Gemm)
    assert isinstance(second, Gemm)
    assert (first.activation, second.activation, second.operands) == (ActivationFunction.RELU, None, ("up",))
    assert first.scale is not None
    assert second.scale is not None
    assert (first.scale.tolist(), second.scale.tolist()) == ([0.5] * 4, [2.0] * 4)
    assert names[whole.y] == "act"


def test_product_needed_before_and_after_a_sum_is_computed_twice(layers: LayerBuilder, x: HostInput) -> None:
    plain = linear(layers, "block.dense", x)
    added = layers.fuse(plain, residual=x.y)
    following = layers.fuse(linear(layers, "next", added), residual=plain.y)
    graph, _ = layers.graph([following], 2, 3)
    assert graph.show().splitlines()[1:] == [
        "  block_dense = x @ weight 4x4 + bias + x",
        "  block_dense_2 = x @ weight 4x4 + bias",
        "  next = block_dense @ weight 4x4 + bias + block_dense_2",
        "  -> next",
    ]
