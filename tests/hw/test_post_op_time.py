"""How long MemC takes for softmax and activations: by passes over what it holds, not by what is in it."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.program import Program
from rsn.machine.plan import TimedWorkload
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

TILE_BEATS = 512
POST_OPS = ("softmax_beat", "softmax_fill", "softmax_max_fill", "exchange_fill", "gelu_beat")


def attention(seq: int, heads: int = 1, **masks: bool) -> LayerGraph:
    layer = AttentionLayer("a", "q", "k", "v", "y", heads, 64, **masks)
    return LayerGraph(1, seq, dict.fromkeys("qkv", 64 * heads), (Output("y"),), (layer,))


def product(rows: int, columns: int, activation: ActivationFunction) -> LayerGraph:
    weight, bias = np.zeros((128, columns), np.float32), np.zeros(columns, np.float32)
    return LayerGraph(1, rows, {"x": 128}, (Output("y"),), (Gemm("g", "x", "y", weight, bias, activation),))


def amounts(network: LayerGraph, overlay: Overlay) -> dict[str, float]:
    taken = _plan(build(network, overlay, PAPER).program).run().amounts
    return {name: taken.get(name, 0) for name in POST_OPS}


def cycles(network: LayerGraph, overlay: Overlay) -> float:
    """PL cycles of a program in which all but post-ops takes no time."""
    program = build(network, overlay, PAPER).program
    free = {name: 1e30 if r.unit == "GB/s" else 0.0 for name, r in overlay.rates.items() if name not in POST_OPS}
    return _plan(program).run(overlay.with_rates(**free)).latency * overlay.clock_hz


def _plan(program: Program) -> TimedWorkload:
    return TimedWorkload(program.overlay, InstructionPath.of(program), where=program.where)


def test_softmax_takes_two_passes_and_a_fill_per_uop() -> None:
    """512 rows and keys: four MemC with 2x2 tiles each, in pairs that exchange row sums."""
    assert amounts(attention(512), XNN_BASE) == {
        "softmax_beat": 2 * 16 * TILE_BEATS,
        "softmax_fill": 4,
        "softmax_max_fill": 0,
        "exchange_fill": 4 * 2,
        "gelu_beat": 0,
    }
    assert cycles(attention(512), XNN_BASE) == pytest.approx(2 * 4 * TILE_BEATS + 85 + 2 * 30, abs=0.01)


def test_maxima_and_exp_take_a_pass_each_and_the_product_none() -> None:
    """On xnn, where the product is made while the results are sent; maxima take another exchange."""
    assert amounts(attention(512), XNN) == {
        "softmax_beat": 2 * 16 * TILE_BEATS,
        "softmax_fill": 4,
        "softmax_max_fill": 4,
        "exchange_fill": 4 * 4,
        "gelu_beat": 0,
    }
    assert cycles(attention(512), XNN) == pytest.approx(2 * 4 * TILE_BEATS + 50 + 30 + 4 * 30, abs=0.01)


def test_a_key_tile_of_its_own_is_not_exchanged() -> None:
    """Four heads of 128 rows, each on a MemC that normalises alone."""
    found = amounts(attention(128, 4), XNN)
    assert (found["softmax_beat"], found["exchange_fill"]) == (2 * 4 * TILE_BEATS, 0)
    assert cycles(attention(128, 4), XNN) == pytest.approx(2 * TILE_BEATS + 50 + 30, abs=0.01)


@pytest.mark.parametrize("masks", [{"masked": True}, {"causal": True}, {"masked": True, "causal": True}], ids=str)
def test_masks_save_no_pass(masks: dict[str, bool]) -> None:
    """They hide columns that are received and walked over all the same; nor does a length that is no whole tile."""
    whole = amounts(attention(512, 2), XNN)
    assert amounts(attention(512, 2, **masks), XNN) == whole
    assert amounts(attention(500, 2, **masks), XNN) == whole


def test_a_pair_whose_halves_differ_waits_for_the_larger() -> None:
    """384 keys are two tiles on the even MemC and one on the odd, which has less to exp and to divide."""
    assert cycles(attention(384), XNN_BASE) == pytest.approx(2 * 4 * TILE_BEATS + 85 + 2 * 30, abs=0.01)


@pytest.mark.parametrize(
    "activation",
    [ActivationFunction.GELU_TANH, ActivationFunction.GELU_ERF, ActivationFunction.RELU, ActivationFunction.SILU],
)
def test_an_activation_takes_8_cycles_a_beat_over_all_columns(activation: ActivationFunction) -> None:
    """Of 256x512, 32768 cycles, which are 126 us, even where only 128 columns are stored; rows are what counts."""
    assert cycles(product(256, 512, activation), XNN) == pytest.approx(16384, abs=0.01)  # on two MemA, 128 rows each
    assert cycles(product(768, 1024, activation), XNN) == pytest.approx(32768, abs=0.01)
    assert cycles(product(768, 128, activation), XNN) == pytest.approx(32768, abs=0.01)
    assert amounts(product(768, 1024, activation), XNN)["gelu_beat"] == 6 * 256 * 512 / 32
