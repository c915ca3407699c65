"""Folding keeps what layers compute, whatever the order in which a rotation needs the columns of a head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rsn.base.errors import UnsupportedError
from rsn.rsnlib import reference
from rsn.rsnlib.fold import fold, head_order
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Norm, Output, Rotary

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def rotary(seq: int, width: int, rotated: int, *, halves: bool = True) -> Rotary:
    """Rotations of the first `rotated` columns: partners half of them apart, or next to each other."""
    own, partner = np.ones((seq, width), np.float32), np.zeros((seq, width), np.float32)
    own[:, :rotated], partner[:, :rotated] = numbers(seq, rotated), numbers(seq, rotated)
    half = rotated // 2
    partners = [(c + half) % rotated if halves else c ^ 1 for c in range(rotated)]
    return Rotary(own, partner, (*partners, *range(rotated, width)))


def values_of(graph: LayerGraph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, layer by layer."""
    values = dict(inputs)
    for layer in graph.layers:
        values[layer.y] = reference.compute(graph, layer, values, None)
    return [
        values[out.name] * (1 if out.scale is None else out.scale) + (0 if out.shift is None else out.shift)
        for out in graph.outputs
    ]


@pytest.mark.parametrize(
    ("width", "rotated", "halves"), [(16, 16, True), (7, 4, True), (16, 8, False), (80, 80, True), (5, 4, False)]
)
def test_orders_of_columns_change_no_result(width: int, rotated: int, halves: bool) -> None:
    """Queries are a result too: there their columns have their own order. Keys are not rotated in half of the cases."""
    heads, seq, n = 3, 6, 3 * width
    table = rotary(seq, width, rotated, halves=halves)
    scale = np.tile(numbers(width).astype(np.float64), heads)
    layers = (
        Gemm("q", "x", "q", numbers(n, n), numbers(n), None, None, None, Norm(1e-6), 2.0, scale, None, heads=heads,
             rotary=table),
        Gemm("k", "x", "k", numbers(n, n), numbers(n), heads=heads, rotary=table if halves else None),
        Gemm("v", "x", "v", numbers(n, n), numbers(n)),
        AttentionLayer("a", "q", "k", "v", "c", heads, width),
        Gemm("o", "c", "y", numbers(n, n), numbers(n), None, "x"),
        Gemm("p", "q", "z", numbers(n, 9), numbers(9)),
    )  # fmt: skip
    graph = LayerGraph(2, seq, {"x": n}, (Output("y"), Output("q"), Output("z")), layers)
    inputs = {"x": numbers(2, seq, n)}
    folded = fold(graph)
    folded.check_folded()
    for y, wanted in zip(values_of(folded, inputs), values_of(graph, inputs), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=0, atol=3e-5 * np.abs(wanted).max())
    for layer in folded.layers:
        if isinstance(layer, Gemm) and layer.rotary is not None:
            last = width - 1 if width % 2 else width
            assert layer.rotary.partners == tuple(c ^ 1 if c < last else c for c in range(width))


def test_a_shift_behind_a_norm_of_heads_is_refused() -> None:
    norm = Gemm("q", "x", "q", numbers(8, 8), numbers(8), norm=Norm(1e-6), scale=np.ones(8), shift=np.ones(8), heads=2)
    with pytest.raises(UnsupportedError, match="q: a shift behind a norm of its heads"):
        fold(LayerGraph(1, 4, {"x": 8}, (Output("q"),), (norm,)))


def test_partners_are_pairs() -> None:
    table = np.ones((4, 3), np.float32)
    with pytest.raises(UnsupportedError, match="exchange columns in pairs"):
        head_order(Rotary(table, table, (1, 2, 0)))


@pytest.mark.parametrize("case", ["none", "residual", "x", "both", "shift"])
def test_a_sum_of_two_activations(case: str) -> None:
    """x + norm(f) * g: the scale goes to the operand that can have one."""
    n = 8
    scale, shift = {"a": None, "b": None}, {"a": None, "b": None}
    for name, cases in (("a", ("x", "both")), ("b", ("residual", "both", "shift"))):
        scale[name] = numbers(n).astype(np.float64) if case in cases else None
    shift["b"] = numbers(n).astype(np.float64) if case == "shift" else None
    none = np.zeros((0, n), np.float32), np.zeros(n, np.float32)
    layers = [
        Gemm(y, y, f"{y}.n", *none, residual=y, norm=Norm(1e-5, rms=True), scale=scale[y], shift=shift[y])
        for y in ("a", "b")
    ]
    layers.append(Gemm("sum", "a.n", "y", *none, residual="b.n"))
    graph = LayerGraph(1, 4, {"a": n, "b": n}, (Output("y"),), tuple(layers))
    inputs = {name: numbers(1, 4, n) for name in "ab"}
    folded = fold(graph)
    assert folded.layers[-1].is_sum == (case not in ("both", "shift"))
    (y,), (wanted,) = values_of(folded, inputs), values_of(graph, inputs)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-5)
