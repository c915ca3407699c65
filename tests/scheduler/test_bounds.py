"""Lower bounds: no program is faster, and they follow from the description of the machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError
from rsn.hw.sim.machine import Machine
from rsn.hw.sim.timeline import Timeline
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.file import made
from rsn.isa.program import ProgramSegment
from rsn.machine.description import Capability
from rsn.scheduler.bounds import bounds
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, LayerGraph, Norm, Output
from rsn.scheduler.schedule import PAPER, Loops, Schedule
from rsn.tests.effort import examples

from .networks import Maker
from .test_any_shape import UNSHRUNK, schedules


@cache
def bert() -> LayerGraph:
    return Maker().encoder(6, 512, 1024, 16, 4096)


def assert_not_faster(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Neither the program nor any segment of it."""
    program = build(network, overlay, schedule).program
    bound = bounds(network, overlay, program.segments)
    timeline = Timeline(Machine(program))
    assert timeline.seconds >= bound.bound_s > 0
    assert bound.bound_s <= sum(s.bound_s for s in bound.segments) * (1 + 1e-12)
    for segment, (start, end) in zip(bound.segments, timeline.intervals(program.segments), strict=True):
        assert end - start >= segment.bound_s * (1 - 1e-12), segment


@examples(30, quick=3, phases=UNSHRUNK)
@given(
    seq=st.integers(1, 300) | st.sampled_from([128, 384, 640]),
    heads=st.integers(1, 4),
    head_dim=st.sampled_from([8, 48, 64]),
    ffn=st.integers(1, 700),
    pre_norm=st.booleans(),
    data=st.data(),
)
def test_no_encoder_is_faster(
    seq: int, heads: int, head_dim: int, ffn: int, pre_norm: bool, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(1, max(1, 500 // seq)), "batch")
    biases = data.draw(st.none() | st.just((batch, heads)), "biases")
    layers = data.draw(st.integers(1, 2), "layers")
    network = Maker().encoder(batch, seq, heads * head_dim, heads, ffn, layers=layers, pre_norm=pre_norm, biases=biases)
    if data.draw(st.booleans(), "ragged"):
        network = network.with_lengths([data.draw(st.integers(1, seq)) for _ in range(batch)])
    rates = {
        "mme_tile_us": data.draw(st.sampled_from([0.0, 1.0, 3.709, 50.0]), "mme_tile_us"),
        "ddr_read_gbs": data.draw(st.sampled_from([2.0, 21.0, 1000.0]), "ddr_read_gbs"),
        "norm_us": data.draw(st.sampled_from([0.0, 162.0, 3000.0]), "norm_us"),
    }
    overlay = XNN.with_rates(**rates) if data.draw(st.booleans(), "other rates") else XNN
    assert_not_faster(network, overlay, data.draw(schedules(network), "schedule"))


@pytest.mark.parametrize("act", ActivationFunction)
@pytest.mark.parametrize("shape", [(1, 1, 1), (129, 64, 700), (700, 300, 129), (128, 2048, 128)])
def test_no_product_is_faster(shape: tuple[int, int, int], act: ActivationFunction) -> None:
    assert_not_faster(Maker().gemm(*shape, act), XNN, PAPER)


@examples(10, quick=2, phases=UNSHRUNK)
@given(batch=st.integers(1, 2), blocks=st.integers(2, 3), ffn=st.integers(1, 1200), data=st.data())
def test_no_encoder_on_the_base_machine_is_faster(batch: int, blocks: int, ffn: int, data: st.DataObject) -> None:
    network = Maker().encoder(batch, 128 * blocks, 1024, 16, ffn)
    assert_not_faster(network, XNN_BASE, data.draw(schedules(network), "schedule"))


# -- numbers --------------------------------------------------------------------------------------------------------


def test_bert_large_by_hand() -> None:
    """One encoder, B = 6, L = 512. The time of the MMEs is the published bound; DDR moves each activation once."""
    rows, wide, ffn = 6 * 512, 1024, 4096
    found = bounds(bert(), XNN_BASE)
    scores = 6 * 16 * 512 * 512
    products = rows * wide * (4 * wide + 2 * ffn) + 2 * scores * 64
    assert found.seconds["6 MME"] == pytest.approx(products / 128**3 * 3.709e-6 / 6)
    assert found.seconds["6 MME"] == pytest.approx(12.34e-3, rel=1e-3)
    read, written = 3 * wide + 3 * wide + 2 * wide + wide + ffn + wide, 5 * wide + ffn + wide
    assert found.seconds["ddr"] == pytest.approx(4 * rows * (read / 21.0e9 + written / 23.5e9))
    weights = wide * (4 * wide + 2 * ffn) + 4 * wide + ffn + wide + 2 * wide
    assert found.seconds["lpddr"] == pytest.approx(4 * weights / 20.5e9)
    assert found.seconds["4 MemC at receive"] == pytest.approx(scores * 2 / 32 / XNN_BASE.clock_hz / 4)
    stored = rows * ffn * 8 / 32 / XNN_BASE.clock_hz + 2 * rows * wide / (256 * 512) * 162e-6
    assert found.seconds["6 MemC at store"] == pytest.approx(stored / 6)
    assert (found.binding, found.bound_s) == ("ddr", found.seconds["ddr"])
    assert [s.binding for s in found.segments] == ["ddr"] * 5 + ["6 MME"] * 2
    assert found.rates == (
        "ddr_read_gbs", "ddr_write_gbs", "lpddr_read_gbs", "mme_tile_us", "softmax_beat", "gelu_beat", "norm_us",
    )  # fmt: skip


def test_layers_that_share_a_segment_read_their_operand_once() -> None:
    program = build(bert(), XNN_BASE, Schedule(loops=Loops.ROWS)).program
    apart, together = bounds(bert(), XNN_BASE), bounds(bert(), XNN_BASE, program.segments)
    assert apart.seconds["ddr"] - together.seconds["ddr"] == pytest.approx(2 * 4 * 6 * 512 * 1024 / 21.0e9)
    assert together.segments[0].layers == ("l0.q_proj", "l0.k_proj", "l0.v_proj")
    assert {k: v for k, v in apart.seconds.items() if k != "ddr"} == pytest.approx(
        {k: v for k, v in together.seconds.items() if k != "ddr"}
    )


def test_a_causal_attention_needs_half_of_the_scores() -> None:
    layers = tuple(replace(x, causal=True) if x.y == "l0.c" else x for x in bert().layers)
    plain, causal = (bounds(n, XNN).segments[3].seconds for n in (bert(), replace(bert(), layers=layers)))
    for resource in ("6 MME", "4 MemC at receive"):
        assert causal[resource] == pytest.approx(plain[resource] * 513 / 1024)
    assert causal["ddr"] == plain["ddr"]


def test_a_window_needs_its_scores_and_a_mask_those_that_are_left() -> None:
    """Rows near the ends see fewer keys: 2 of 5, then 3, 3, 3, 2. A soft cap is a pass of its own."""
    layer = AttentionLayer("a", "q", "k", "v", "y", 4, 64, window=2, mask="m", mask_heads=4)
    inputs = dict.fromkeys("qkv", 256) | {"m": 5}
    network = LayerGraph(2, 5, inputs, (Output("y"),), (layer,), seqs={"m": 20})
    capped = replace(network, layers=(replace(layer, softcap=3.0),))
    every = replace(network, layers=(replace(layer, window=None),))
    masked, more, all_of_it = (bounds(n, XNN).seconds for n in (network, capped, every))
    softmax = "4 MemC at receive"  # also of soft caps, 8 passes beside 2
    assert masked[softmax] == pytest.approx(all_of_it[softmax] * 13 / 25)
    assert more[softmax] == pytest.approx(masked[softmax] * (2 + 8) / 2)
    read = 2 * 4 * 4 * (25 - 13)
    assert all_of_it["ddr"] - masked["ddr"] == pytest.approx(read / 21e9)


@examples(100, quick=10)
@given(batch=st.integers(1, 5), seq=st.integers(1, 300), masked=st.booleans())
def test_more_rows_need_no_less_time(batch: int, seq: int, masked: bool) -> None:
    def found(batch: int, seq: int) -> dict[str, float]:
        return bounds(Maker().encoder(batch, seq, 64, 2, 96, masked=masked), XNN).seconds

    for more in (found(batch + 1, seq), found(batch, seq + 1)):
        assert all(more[resource] >= seconds for resource, seconds in found(batch, seq).items())
    network = Maker().encoder(batch, seq, 64, 2, 96)
    ragged = bounds(network.with_lengths([seq, *[1] * (batch - 1)]), XNN).seconds
    assert all(ragged[resource] <= seconds for resource, seconds in bounds(network, XNN).seconds.items())


@given(name=st.sampled_from([*XNN.rates]), factor=st.floats(1, 100))
def test_a_worse_rate_needs_no_less_time(name: str, factor: float) -> None:
    rate = XNN.rates[name]
    worse = XNN.with_rates(**{name: rate.value / factor if rate.unit == "GB/s" else rate.value * factor})
    before, after = bounds(bert(), XNN), bounds(bert(), worse)
    assert after.bound_s >= before.bound_s
    assert all(after.seconds[resource] >= seconds for resource, seconds in before.seconds.items())
    if name not in before.rates and name != "mme_k64_us" and name != "mme_n64_us":
        assert after.seconds == before.seconds


def test_a_unit_counts_with_the_fastest_way_to_multiply() -> None:
    faster = XNN.with_rates(mme_k64_us=0.5)
    assert bounds(bert(), faster).seconds["6 MME"] == pytest.approx(
        bounds(bert(), XNN).seconds["6 MME"] * (2 * 0.5) / 3.709
    )


def test_more_units_need_less_time() -> None:
    fewer = made('overlay = "xnn"\n[units]\nMME = 4\nMemC = 4', "few.toml")
    assert bounds(bert(), fewer).seconds["4 MME"] == pytest.approx(bounds(bert(), XNN).seconds["6 MME"] * 6 / 4)


def _without_rate(capability: Capability) -> Capability:
    return replace(capability, rate=None)


def test_what_a_machine_does_not_state_has_no_bound() -> None:
    silent = replace(
        XNN, units=tuple(replace(u, capabilities=tuple(map(_without_rate, u.capabilities))) for u in XNN.units)
    )
    nothing = bounds(bert(), silent)
    assert (nothing.seconds, nothing.binding, nothing.bound_s) == ({}, "", 0)
    layer = replace(Maker().gemm(8, 8, 8).layers[0], norm=Norm(1e-5, rms=True))
    network = LayerGraph(1, 8, {"x": 8}, (), (layer,))
    assert "6 MemC at store" in bounds(network, XNN).seconds
    assert "6 MemC at store" not in bounds(network, XNN_BASE).seconds


def test_segments_of_another_network() -> None:
    with pytest.raises(ProgramError, match="segment s computes z, which the network does not have"):
        bounds(bert(), XNN, [ProgramSegment("s", (), "", ("z",), {})])
