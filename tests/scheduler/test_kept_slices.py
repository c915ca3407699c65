"""With Loops.ROWS the left memories keep slices from one op of a product unit to the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rsn.isa.overlay import OpList, Overlay
from rsn.isa.overlays import XNN
from rsn.isa.verify import check, dry_run
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import Interleave, Loops, Schedule

from .networks import Maker, error, execute
from .test_extended_products import assert_computes

ROWS = Schedule(interleave=Interleave.LISTED, loops=Loops.ROWS, tile_cols=1)
M, K, N = 1536, 256, 17 * 128
"""Rows of two row tiles; columns that two slots keep; columns of one tile more than an op has."""


def loads_and_ops(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> tuple[int, int]:
    """Elements that DDR loads, and the ops of an MME."""
    kernels = lower(network, overlay, schedule).kernels
    uops = (uop for mop in kernels.sequences["DDR"] for uop in overlay.format_of("DDR").uops(mop, 0))
    return sum(uop.size for uop in uops if not uop.store), len(kernels.preloaded["MME0"])


def with_ops(count: int) -> Overlay:
    """XNN with MMEs that hold at most `count` ops."""
    return replace(XNN, preloaded={kind: OpList(ops.record, count) for kind, ops in XNN.preloaded.items()})


def test_an_operand_that_the_slots_hold_is_loaded_once() -> None:
    """Two ops for each of two row tiles; with the row tiles in one op, each op loads the operand."""
    network = Maker().gemm(M, K, N)
    assert loads_and_ops(network, XNN, ROWS) == (M * K, 4)
    for interleave in (Interleave.STRICT, Interleave.INTERLEAVED):
        assert loads_and_ops(network, XNN, replace(ROWS, interleave=interleave)) == (M * K, 4)


@pytest.mark.parametrize(("most", "expected"), [(4, (M * K, 4)), (3, (2 * M * K, 2))])
def test_where_ops_are_short_the_operand_is_loaded_again(most: int, expected: tuple[int, int]) -> None:
    assert loads_and_ops(Maker().gemm(M, K, N), with_ops(most), ROWS) == expected


@pytest.mark.long
@pytest.mark.parametrize("most", [4, 3])
def test_the_result_is_that_of_the_product(most: int) -> None:
    network = Maker().gemm(M, K, N)
    (gemm,) = network.layers
    assert isinstance(gemm, Gemm)
    x = np.random.default_rng(1).standard_normal((1, M, K)).astype(np.float32)
    y, program, _ = execute(network, x, with_ops(most), ROWS)
    assert error(y, x @ gemm.weight + gemm.bias) < 1e-5
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []


@pytest.mark.long
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    batch=st.integers(1, 3),
    seq=st.integers(1, 500),
    columns=st.integers(129, 700),
    tiles=st.integers(17, 20),
    gated=st.booleans(),
    normed=st.booleans(),
    lengths=st.booleans(),
    interleave=st.sampled_from([Interleave.STRICT, Interleave.INTERLEAVED, Interleave.LISTED]),
)
def test_any_segment_of_several_ops(
    batch: int,
    seq: int,
    columns: int,
    tiles: int,
    gated: bool,
    normed: bool,
    lengths: bool,
    interleave: Interleave,
) -> None:
    """A product with many column tiles, of an operand that may be normalised as it is loaded, and its consumer."""
    make, n = Maker(), tiles * 128 // (2 if gated else 1)
    ones = 1 + make.vector(columns).astype(np.float64)
    none, zeros = np.zeros((0, columns), np.float32), np.zeros(columns, np.float32)
    norm = Gemm("n", "x", "n", none, zeros, None, "x", norm=Norm(1e-5, rms=True), scale=ones)
    act = ActivationFunction.SILU if gated else None
    wide = n * (2 if gated else 1)
    up = Gemm("u", "n" if normed else "x", "u", make.matrix(columns, wide), make.vector(wide), act, gated=gated)
    down = Gemm("d", "u", "y", make.matrix(n, columns), make.vector(columns), None, "x")
    layers = (norm, up, down) if normed else (up, down)
    network = LayerGraph(batch, seq, {"x": columns}, (Output("y"),), layers)
    if lengths:
        network = network.with_lengths([max(1, seq * (b + 1) // batch) for b in range(batch)])
    assert_computes(network, replace(ROWS, interleave=interleave), moved=True, difference=1e-4)
