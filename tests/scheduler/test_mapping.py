"""What a roofline says of the four mapping types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rsn.isa.overlays import XNN, XNN_BASE
from rsn.scheduler.graph import AttentionLayer, LayerGraph, Output
from rsn.scheduler.mapping import AttentionShape, MappingType, PeakRates, choose, estimate, mapping_of, max_rows

A, B, C, D, E = MappingType

# Table 3: ms with infinite FLOPS, share of the AIE tiles, ms of MM1, of MM2, with infinite bandwidth, final.
TABLE3 = {
    A: ("2.22", "0.64", "0.81", "1.62", "2.43", "2.43"),
    B: ("10.9", "0.64", "0.81", "1.62", "2.43", "10.9"),
    C: ("10.9", "0.96", "0.54", "0.54", "1.08", "10.9"),
    D: ("2.24", "0.96", "0.81", "1.62", "1.62", "2.24"),
}


@pytest.mark.parametrize("kind", TABLE3)
def test_table_3_to_its_last_digit(kind: MappingType) -> None:
    e = estimate(kind, AttentionShape(96, 512), PeakRates.published(XNN_BASE))
    found = (1e3 * e.inf_flops_s, 64 * e.units / 400, *(1e3 * s for s in (e.mm1_s, e.mm2_s, e.inf_bw_s, e.final_s)))
    digits = [f"{value:.{len(wanted.split('.')[1])}f}" for value, wanted in zip(found, TABLE3[kind], strict=True)]
    assert tuple(digits) == TABLE3[kind]


def test_shape_of_a_layer_is_padded_as_it_is_stored() -> None:
    attention = AttentionLayer("a", "q", "k", "v", "y", 12, 32)
    network = LayerGraph(3, 200, {"x": 384}, (Output("y"),), (attention,))
    assert AttentionShape.of(network, attention) == AttentionShape(36, 256, 64)


def test_scores_through_ddr_cost_their_bytes_twice() -> None:
    """Two times 4 bytes for each of 512 x 512 scores."""
    roofline = PeakRates.of(XNN_BASE)
    ways = [estimate(kind, AttentionShape(1, 512), roofline).inf_flops_s for kind in (B, A)]
    assert ways[0] - ways[1] == pytest.approx(2**20 * (1 / 21e9 + 1 / 23.5e9))


def test_a_single_head_gains_nothing_from_a_pipeline_but_loses_nothing_either() -> None:
    roofline = PeakRates.of(XNN_BASE)
    e = estimate(D, AttentionShape(1, 512), roofline)
    assert e.setup_s == pytest.approx(2 * 512 * 64 * 4 / 21e9)
    assert e.steady_s == pytest.approx(max(e.inf_flops_s - e.setup_s, e.mm2_s))


@pytest.mark.parametrize(("rows", "wanted"), [(128, D), (512, D), (768, D), (896, B), (1024, B)])
def test_choice_is_the_pipeline_as_long_as_it_fits(rows: int, wanted: MappingType) -> None:
    assert choose(AttentionShape(96, rows), XNN_BASE) is wanted


@pytest.mark.parametrize(("rows", "wanted"), [(512, D), (768, D), (896, E), (8192, E)])
def test_more_rows_go_in_parts_where_the_machine_can(rows: int, wanted: MappingType) -> None:
    assert choose(AttentionShape(96, rows), XNN) is wanted


def test_what_only_parts_can_takes_them_whatever_its_size() -> None:
    plain = AttentionLayer("a", "q", "k", "v", "y", 8, 64)
    network = LayerGraph(1, 200, dict.fromkeys("qkv", 512), (Output("y"),), (plain,))
    assert mapping_of(network, plain, XNN) is D
    for fields in ({"kv_heads": 2}, {"head_dim": 65}, {"window": 9}, {"left": True}, {"softcap": 1.0}, {"mask": "m"}):
        assert mapping_of(network, replace(plain, **fields), XNN) is E


def test_parts_cost_their_loads_and_products_twice() -> None:
    """Of 1024 rows: K twice and V once for each 512 rows, and Q K^T twice. Up to 768 rows, they are like the pipeline,
    but a group of heads loads its keys once."""
    roofline = PeakRates.of(XNN)
    long, grouped, plain = (
        estimate(kind, shape, roofline)
        for kind, shape in (
            (E, AttentionShape(1, 1024)),
            (E, AttentionShape(4, 512, groups=4)),
            (D, AttentionShape(4, 512)),
        )
    )
    operand = 64 * 4 / 21e9
    assert long.inf_flops_s == pytest.approx(1024 * (64 * 4 / 23.5e9 + (1 + 2 * 3 + 2) * operand))
    assert long.mm1_s == pytest.approx(2 * 64 * roofline.first / 4)
    assert plain.inf_flops_s - grouped.inf_flops_s == pytest.approx(512 * 6 * operand)


def test_choice_follows_the_rates() -> None:
    """Where off-chip time is nothing the pipeline wins by the time of the first product, whatever the engines."""
    fast = XNN_BASE.with_rates(ddr_read_gbs=float("inf"), ddr_write_gbs=float("inf"))
    for shape in (AttentionShape(1, 128), AttentionShape(96, 512)):
        bounds = {kind: estimate(kind, shape, PeakRates.of(fast)).steady_s for kind in (A, B, D)}
        assert choose(shape, fast) is min(bounds, key=bounds.__getitem__) is D


def test_limits_follow_from_the_memories() -> None:
    """A MemC sends three key tiles of 128 rows and stores four; two share a softmax (contract section 2)."""
    assert max_rows(XNN_BASE) == {A: 768, B: 1024, C: 1024, D: 768, E: 768}
