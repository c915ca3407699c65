"""Attention over three row blocks as a stream of row tiles: the same result, and both pairs have the same to do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.verify import check, dry_run
from rsn.scheduler.attention_3_blocks import BLOCKS, _begun, _in_turn
from rsn.scheduler.build import build
from rsn.scheduler.graph import AttentionLayer, LayerGraph, Output
from rsn.scheduler.lower import lower
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import Interleave, Loops, Schedule
from rsn.tests.effort import long

from .networks import Maker, error, execute, reference
from .test_pack import uops_from, uops_of


def attention(batch: int, seq: int, heads: int, masked: bool = False) -> LayerGraph:
    """Of an input with itself. Scores are kept small: the keys carry no scale."""
    layer = AttentionLayer("a", "x", "x", "x", "y", heads, 64, masked)
    return LayerGraph(batch, seq, {"x": 64 * heads}, (Output("y"),), (layer,))


def assert_computes(
    network: LayerGraph, overlay: Overlay, schedule: Schedule, lengths: list[int] | None = None
) -> None:
    shape = (network.batch, network.seq, network.inputs["x"])
    x = (0.3 * np.random.default_rng(5).standard_normal(shape)).astype(np.float32)
    y, program, _ = execute(network, x, overlay, schedule, lengths)
    wanted = reference(network, x, lengths)
    for b, n in enumerate(lengths or [network.seq] * network.batch):
        assert error(y[b, :n], wanted[b, :n]) < 1e-4
    assert [f for f in check(program) + dry_run(program) if not f.warning] == []


@pytest.mark.long
@settings(max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # to shrink takes minutes
@given(
    batch=st.integers(1, 3),
    seq=st.integers(257, 384),
    heads=st.integers(1, 5),
    interleave=st.sampled_from(Interleave),
    masked=st.booleans(),
    data=st.data(),
)
def test_any_number_of_heads_and_sequences(
    batch: int, seq: int, heads: int, interleave: Interleave, masked: bool, data: st.DataObject
) -> None:
    """An odd number of heads in all ends with half a slot."""
    corner = st.sampled_from([1, 127, 128, 129, 255, 256, 257])
    lengths = [data.draw(corner | st.integers(1, seq)) for _ in range(batch)] if masked else None
    assert_computes(attention(batch, seq, heads, masked), XNN, Schedule(interleave=interleave, balance=True), lengths)


@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (1, 2), long(3, 1), (3, 3), (2, 16)])
def test_the_base_overlay(batch: int, heads: int) -> None:
    for interleave in (Interleave.INTERLEAVED, Interleave.LISTED):
        assert_computes(attention(batch, 384, heads), XNN_BASE, Schedule(interleave=interleave, balance=True))


def test_more_row_tiles_than_an_op_counts_to() -> None:
    """45 fill one op of MME 4."""
    network = attention(1, 260, 31)
    lowered = lower(network, XNN, Schedule(balance=True))
    tiles = [[(op.a_iter, op.acc_a) for op in lowered.kernels.preloaded[f"MME{m}"]] for m in (4, 5)]
    assert [sum(a * b for a, b in ops) for ops in tiles] == [47, 46]
    assert tiles == [[(15, 3), (1, 2)], [(15, 3), (1, 1)]]
    assert_computes(network, XNN, Schedule(balance=True))


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_both_pairs_have_the_same_to_do(heads: int) -> None:
    """Products of each MME: those of a pair differ by at most one row tile, where heads alone would be 2 to 1."""

    def products(schedule: Schedule) -> list[int]:
        ops = lower(attention(1, 384, heads), XNN_BASE, schedule).kernels.preloaded
        return [sum(op.a_iter * op.b_iter * op.k_iter * op.acc_a * op.acc_b for op in ops[f"MME{m}"]) for m in range(6)]

    even, odd = products(Schedule(balance=True)), products(Schedule())
    assert sum(even) == sum(odd) == 2 * heads * BLOCKS * BLOCKS
    assert even[0] - even[2] in (0, 2)
    assert even[1] - even[3] in (0, 1)
    assert even[4] - even[5] in (0, BLOCKS)
    assert (odd[0], odd[2], odd[4], odd[5]) == (4 * heads, 2 * heads, 6 * heads, 3 * heads)


@pytest.mark.long
def test_it_is_quicker() -> None:
    network = attention(8, 384, 16)
    runs = {}
    for balance in (False, True):
        program = build(network, XNN_BASE, Schedule(balance=balance)).program
        x = np.zeros((8, 384, 1024), np.float32)
        runs[balance] = execute(network, x, XNN_BASE, Schedule(balance=balance))[2].latency_s, len(program.image)
    assert runs[True][0] < 0.9 * runs[False][0]
    assert runs[True][1] < 2 * runs[False][1]


@pytest.mark.parametrize(
    ("seq", "kind"),
    [(128, None), (256, None), (385, None), (512, None), (384, MappingType.A), (384, MappingType.B)],
)
def test_elsewhere_it_is_not_used(seq: int, kind: MappingType | None) -> None:
    """Other numbers of row blocks can be halved, or need more than one slot; other types are other programs."""
    network = attention(2, seq, 3)
    with_it, without = (build(network, XNN, Schedule(balance=b, attention=kind)).program for b in (True, False))
    assert np.array_equal(with_it.image, without.image)


def test_each_head_begins_once_and_stays_in_two_slots() -> None:
    """Which is why its keys are sent twice."""
    rows = [(0, h, r) for h in range(7) for r in range(BLOCKS)]
    slots = [rows[i : i + 2] for i in range(0, len(rows), 2)]
    assert [head for slot in slots for head in _begun(slot)] == [(0, h) for h in range(7)]
    for head in range(7):
        inside = [i for i, slot in enumerate(slots) if any(row[1] == head for row in slot)]
        assert all(b == a + 1 for a, b in pairwise(inside))
        assert len(inside) == 2
    assert [_in_turn(slot) for slot in slots[:3]] == [[[0, 1]], [[0], [1]], [[0, 1]]]


@pytest.mark.long
@settings(max_examples=8)
@given(st.integers(1, 3), st.integers(1, 5), st.booleans(), st.integers(1, 2))
def test_between_products_its_image_expands_to_the_kernels(batch: int, heads: int, masked: bool, layers: int) -> None:
    network = Maker().encoder(batch, 300, 64 * heads, heads, 100, masked=masked, layers=layers)
    for interleave in (Interleave.INTERLEAVED, Interleave.LISTED):
        kernels = lower(network, XNN, Schedule(interleave=interleave, loops=Loops.ROWS, balance=True)).kernels
        program = pack(kernels)
        assert {u: s for u, s in uops_of(program).items() if s} == uops_from(kernels)
        assert dry_run(program) == []
