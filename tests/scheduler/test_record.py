"""Segments as lowering records them: which uOPs, which layers, which buffers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.hw.sim.explain import explain
from rsn.hw.sim.machine import Machine
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.program import Program
from rsn.isa.segments import accessed_buffers, stored_buffers
from rsn.scheduler.binder import joined
from rsn.scheduler.build import build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph
from rsn.scheduler.groups import plan
from rsn.scheduler.schedule import PAPER, PUBLISHED, STRICT, Loops, Schedule
from rsn.tests.effort import examples

from .networks import Maker
from .test_any_shape import UNSHRUNK, schedules


def owners(program: Program, unit: str, count: int) -> list[set[int]]:
    """The segments of each uOP of a unit."""
    out: list[set[int]] = [set() for _ in range(count)]
    for number, segment in enumerate(program.segments):
        for first, end in segment.uops.get(unit, ()):
            for uop in range(first, end):
                out[uop].add(number)
    return out


def operands(layer: Gemm | AttentionLayer) -> set[str]:
    if isinstance(layer, AttentionLayer):
        return {layer.q, layer.k, layer.v}
    return {layer.x} if layer.residual is None else {layer.x, layer.residual}


def assert_recorded(network: LayerGraph, schedule: Schedule, program: Program) -> None:
    """Every uOP belongs to a segment; those of the off-chip units to one, which reads and writes what its layers do."""
    planned = plan(network, schedule)
    assert [s.kind for s in program.segments] == [p.kind for p in planned]
    x = ExpandedProgram(program)
    for unit, run in x.sequences.items():
        found = owners(program, unit, len(run))
        assert all(found), unit
        most = 1 if x.overlay.by_unit[unit].bank else 2 if x.overlay.by_unit[unit].memory else len(program.segments)
        turns = [
            len(of)
            for of, kind in zip(found, run.kinds.tolist(), strict=True)
            if type(x.uops[kind]).__name__ != "MemCConfig"
        ]
        assert max(turns, default=0) <= most, unit
    for bank, accesses in x.accesses.items():
        buffers = accessed_buffers(program, bank, accesses)
        assert (buffers >= 0).all()
        for at, spec in enumerate(accesses.units):
            found = owners(program, spec.name, len(x.sequences[spec.name]))
            rows = np.flatnonzero(accesses.unit == at)
            for uop, number, store in zip(accesses.uop[rows], buffers[rows], accesses.store[rows], strict=True):
                (segment,) = found[uop]
                name, made = program.buffers[number].name, program.segments[segment].outputs
                layers = [layer for layer in network.layers if layer.y in made]
                read = {name for layer in layers for name in operands(layer)}
                if name.startswith("scores") or name.endswith("scores_bias") or name in ("ones", "zeros"):
                    assert isinstance(layers[0], AttentionLayer)  # several may share it
                elif bank == "ddr":
                    assert name in (made if store else read)
                else:
                    assert any(name.startswith(layer.path) for layer in layers)


@pytest.mark.long
@examples(30, quick=3, phases=UNSHRUNK)
@given(
    seq=st.integers(1, 300) | st.sampled_from([128, 384, 640]),
    heads=st.integers(1, 4),
    head_dim=st.sampled_from([8, 48, 64]),
    ffn=st.integers(1, 400),
    pre_norm=st.booleans(),
    masked=st.booleans(),
    data=st.data(),
)
def test_every_uop_belongs_to_its_segment(
    seq: int, heads: int, head_dim: int, ffn: int, pre_norm: bool, masked: bool, data: st.DataObject
) -> None:
    batch = data.draw(st.integers(1, max(1, 500 // seq)), "batch")
    biases = data.draw(st.none() | st.just((1, heads)), "biases")
    network = Maker().encoder(
        batch, seq, heads * head_dim, heads, ffn, layers=2, pre_norm=pre_norm, masked=masked, biases=biases
    )
    schedule = data.draw(schedules(network), "schedule")
    program = build(network, XNN, schedule).program
    assert_recorded(network, schedule, program)
    assert {s.name for s in stored_buffers(ExpandedProgram(program))} >= {layer.y for layer in network.layers}


@pytest.mark.parametrize("schedule", [PAPER, STRICT, PUBLISHED])
def test_on_the_base_machine(schedule: Schedule) -> None:
    network = Maker().encoder(1, 384, 1024, 16, 512, layers=2)
    assert_recorded(network, schedule, build(network, XNN_BASE, schedule).program)


def test_products_that_share_slices_are_one() -> None:
    network = Maker().encoder(2, 100, 128, 2, 256)
    network = replace(network, layers=tuple(
        replace(layer, fused=("l0.act",)) if isinstance(layer, Gemm) and layer.activation else layer
        for layer in network.layers
    ))  # fmt: skip
    program = build(network, XNN, Schedule(loops=Loops.ROWS)).program
    first, *_, up, _ = program.segments
    assert (first.outputs, first.layers) == (("l0.q", "l0.k", "l0.v"), ("l0.q_proj", "l0.k_proj", "l0.v_proj"))
    assert first.name == "l0.q,l0.k,l0.v"
    assert first.kind == "gemm 128x128 times 3"
    assert up.layers == ("l0.up", "l0.act")


def test_names_of_several_results() -> None:
    assert joined(["x"]) == "x"
    assert joined(["layer_0_query", "layer_0_key", "layer_0_value"]) == "layer_0_query,key,value"
    assert joined(["q", "k"]) == "q,k"
    assert joined(["a_1", "a_1_2"]) == "a_1,a_1_2"


def test_memory_that_is_not_stored_to_as_a_whole() -> None:
    """Attention stores the valid rows of a padded buffer. By stores alone, a later store to the other rows looks like
    one to that buffer."""
    network = Maker().encoder(1, 128, 256, 4, 1024, layers=2)
    schedule = Schedule(whole_tiles=True)
    program = build(network, XNN, schedule).program
    assert_recorded(network, schedule, program)
    known, guessed = (ExpandedProgram(p) for p in (program, replace(program, segments=())))
    wrong = accessed_buffers(guessed.program, "ddr", guessed.accesses["ddr"])
    assert (accessed_buffers(program, "ddr", known.accesses["ddr"]) != wrong).any()


def test_without_a_record_each_stored_buffer_is_one() -> None:
    network = Maker().encoder(1, 128, 128, 2, 256)
    program = build(network, XNN, PAPER).program
    bare = replace(program, segments=())
    assert [s.name for s in stored_buffers(ExpandedProgram(bare))] == [s.name for s in program.segments]
    by_store = [(s.name, s.start, s.end, s.causes) for s in explain(Machine(bare)).segments]
    assert [(s.name, s.start, s.end, s.causes) for s in explain(Machine(program)).segments] == by_store


def test_a_segment_works_from_its_first_load_to_its_last_store() -> None:
    """Segments overlap, and their windows do not."""
    program = build(Maker().encoder(2, 256, 256, 4, 512), XNN, PAPER).program
    segments = explain(Machine(program)).segments
    assert all(s.began < s.end and s.start < s.end for s in segments)
    assert [s.start for s in segments[1:]] == [s.end for s in segments[:-1]]
    assert any(b.began < a.end for a, b in pairwise(segments))
