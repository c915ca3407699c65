"""Mixtures of experts and gated layers as programs, against numpy and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rsn.streams.dynamic import metrics, run, timed
from rsn.streams.dynamic.errors import StepError
from rsn.streams.dynamic.programs.experts import ExpertLayerShape, ExpertTensors, mixture
from rsn.streams.dynamic.programs.swiglu import SwigluTensors, swiglu
from rsn.streams.dynamic.programs.tiling import TiledProducts, tiled_products
from rsn.tests.effort import examples

Array = npt.NDArray[Any]


def gated(x: Array, gate: Array, up: Array, down: Array) -> Array:
    opened = x @ gate
    made: Array = (opened / (1 + np.exp(-opened)) * (x @ up)) @ down
    return made


def drawn_values(layer: ExpertLayerShape, rows: int, seed: int = 0) -> ExpertTensors:
    random = np.random.default_rng(seed)
    wide, high = (layer.experts, layer.model, layer.hidden), (layer.experts, layer.hidden, layer.model)
    return ExpertTensors(
        random.normal(size=(rows, layer.model)),
        random.normal(size=wide),
        random.normal(size=wide),
        random.normal(size=high),
        random.random((rows, layer.chosen)),
    )


def expected(values: ExpertTensors, chosen: Sequence[Sequence[int]]) -> Array:
    result = np.zeros_like(values.rows)
    for row, experts in enumerate(chosen):
        for place, one in enumerate(sorted(experts)):
            share = gated(values.rows[row], values.gate[one], values.up[one], values.down[one])
            result[row] += values.routing[row, place] * share
    return result


@examples(150, 15)
@given(st.data())
def test_mixtures(data: st.DataObject) -> None:
    """In all forms; some experts get no row, or all."""
    regions = data.draw(st.sampled_from([None, 1, 2, 4]))
    layer = ExpertLayerShape("drawn", 3, 6, 4, data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 6])))
    rows = data.draw(st.integers(1, 7))
    some = data.draw(st.permutations(range(4)))
    pool = some[: data.draw(st.integers(layer.chosen, 4))]
    chosen = [data.draw(st.permutations(pool))[: layer.chosen] for _ in range(rows)]
    values = drawn_values(layer, rows)
    made = mixture(layer, chosen, data.draw(st.none() | st.integers(1, 5)), regions=regions, compute=64, values=values)
    if data.draw(st.booleans()):
        ran = timed(made.program, depths=made.depths)
        written, moved = ran.memory.tensor(made.result), sum(ran.traffic.values())
    else:
        done = run(made.program)
        written, moved = done.tensor(made.result), sum(done.traffic.values())
    np.testing.assert_allclose(written, expected(values, chosen), atol=1e-9)
    counts = [sum(expert in one for one in chosen) for expert in range(4)]
    found = metrics(made.program)
    assert found.value(found.traffic, made.counts(counts)) == moved


@pytest.mark.parametrize("tile_rows", [None, 4])
@pytest.mark.parametrize("regions", [None, 2])
def test_a_module_of_transformers(tile_rows: int | None, regions: int | None) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(
        hidden_size=16, moe_intermediate_size=12, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True
    )
    module = Qwen3MoeSparseMoeBlock(config).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    with torch.no_grad():
        found = module(x)
        logits = torch.nn.functional.linear(x[0], module.gate.weight)
        shares, places = torch.softmax(logits, dim=-1).topk(2)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        places, order = places.sort(dim=-1)
        both = module.experts.gate_up_proj.transpose(1, 2).numpy()
    values = ExpertTensors(
        x[0].numpy(),
        both[:, :, :12],
        both[:, :, 12:],
        module.experts.down_proj.detach().transpose(1, 2).numpy(),
        shares.gather(-1, order).numpy(),
    )
    made = mixture(
        ExpertLayerShape("Qwen3 MoE", 16, 12, 8, 2, 4), places.tolist(), tile_rows, regions=regions, values=values
    )
    ran = timed(made.program, depths=made.depths)
    reference = (found[0] if isinstance(found, tuple) else found)[0].numpy()
    assert abs(ran.memory.tensor(made.result) - reference).max() < 1e-5 * abs(reference).max()


def test_what_is_no_mixture() -> None:
    layer = ExpertLayerShape("some", 4, 6, 4, 2, 3)
    for chosen, tile_rows, regions, text in (
        ([], None, None, "a layer without rows"),
        ([(0, 1), (2, 4)], None, None, r"row 1 has the experts \[2, 4\]; it needs 2 below 4"),
        ([(1, 1)], None, None, r"row 0 has the experts \[1, 1\]"),
        ([(0, 1)], 0, None, "tiles of 0 rows"),
        ([(0, 1)], None, 3, "4 experts do not divide among 3 regions"),
    ):
        with pytest.raises(StepError, match=text):
            mixture(layer, chosen, tile_rows, regions=regions)
    values = drawn_values(layer, 1)
    with pytest.raises(StepError, match=r"rows has shape \[1, 4\]; the layer needs \[2, 4\]"):
        mixture(layer, [(0, 1), (2, 3)], None, values=values)
    with pytest.raises(StepError, match="a row has 1 to 4 experts"):
        ExpertLayerShape("some", 4, 6, 4, 5, 3)
    with pytest.raises(StepError, match="some: 6 hidden columns are not whole in tiles of 4"):
        ExpertLayerShape("some", 4, 6, 4, 2, 4)


@pytest.mark.parametrize(("tile_rows", "columns"), [(2, 3), (4, 6), (1, 2)])
@pytest.mark.parametrize("through_memory", [False, True])
def test_gated_layers(tile_rows: int, columns: int, through_memory: bool) -> None:
    random = np.random.default_rng(3)
    weights = SwigluTensors(*(random.normal(size=shape) for shape in ((4, 5), (5, 6), (5, 6), (6, 5))))
    made = swiglu(4, 5, 6, tile_rows, columns, compute=16, through_memory=through_memory, values=weights)
    ran = timed(made.program, depths=1)
    np.testing.assert_allclose(ran.memory.tensor(made.result), gated(weights.x, weights.gate, weights.up, weights.down))
    found = metrics(made.program)
    assert found.traffic == sum(ran.traffic.values())
    with pytest.raises(StepError, match="the least is 1"):
        swiglu(4, 5, 6, 0, 3)
    with pytest.raises(StepError, match=r"x \[4,5\] in 3 rows, 6 columns in 3"):
        swiglu(4, 5, 6, 3, 3)


def test_the_shapes_of_hierarchical_tiling() -> None:
    """As Fig. 18 prints them."""
    made = tiled_products(TiledProducts(), hierarchical=True)
    assert {name: str(stream.type) for name, stream in made.streams.items()} == {
        "A": "[4,1,16] [16,16]",
        "B": "[4,2,16] [16,16]",
        "A again": "[4,1,2,16] [16,16]",
        "B again": "[4,1,2,16] [16,16]",
        "products": "[4,1,2,16] [16,16]",
        "results": "[4,1,2] [16,16]",
    }
    large = tiled_products(TiledProducts(), hierarchical=False)
    assert [str(stream.type) for stream in large.streams.values()] == ["[4] [16,256]", "[4] [32,256]", "[4] [16,32]"]


@examples(40, 5)
@given(st.data())
def test_hierarchical_tiling_changes_no_result(data: st.DataObject) -> None:
    unit = data.draw(st.integers(1, 3))
    count, rows, inner, columns = (data.draw(st.integers(1, 3)) for _ in range(4))
    sizes = TiledProducts(count, rows * unit, inner * unit, columns * unit, unit)
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (count * size, sizes.inner)) for size in (sizes.rows, sizes.columns))
    found = []
    for hierarchical in (False, True):
        made = tiled_products(sizes, hierarchical, a=a.astype(float), b=b.astype(float))
        found.append(timed(made.program, depths=2).tensor(made.result))
    parts = zip(a.reshape(count, -1, sizes.inner), b.reshape(count, -1, sizes.inner), strict=True)
    right = np.concatenate([one @ other.T for one, other in parts])
    assert np.array_equal(found[0], right)
    assert np.array_equal(found[1], right)


def test_tiles_that_do_not_divide() -> None:
    with pytest.raises(StepError, match="whole in tiles of a unit"):
        TiledProducts(columns=24)
