"""Declarations of segments: printed and read again, without uOPs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.assembler.formatter import format_text
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import SourceError
from rsn.hw.sim.explain import explain
from rsn.hw.sim.machine import Machine
from rsn.hw.sim.timeline import Timeline
from rsn.hw.sim.trace import TraceEvents
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.overlays import OVERLAYS, XNN
from rsn.isa.program import Program, ProgramSegment, UnpackedProgram
from rsn.isa.segments import stored_buffers
from rsn.scheduler.build import build
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER, STRICT, Schedule
from rsn.tests.scheduler.networks import Maker

PROGRAMS = Path(__file__).parents[2] / "programs"
BUFFERS = "overlay xnn\nbuffer x ddr 128x64\nbuffer y ddr 128x64\n"


def read(text: str) -> Program:
    made = parse(text, "t.rsn")
    assert isinstance(made, Program)
    return made


def compiled(batch: int, seq: int, schedule: Schedule = PAPER, **options: object) -> Program:
    return build(Maker().encoder(batch, seq, 128, 2, 256, **options), XNN, schedule).program  # type: ignore[arg-type]


NETWORKS = {
    "two layers, buffers that share memory": lambda: compiled(2, 70, layers=2),
    "padded rows, masks": lambda: compiled(3, 200, masked=True),
    "pre-norm": lambda: compiled(1, 300, pre_norm=True),
    "segment by segment": lambda: compiled(2, 128, STRICT, layers=2),
    "one segment": lambda: build(Maker().gemm(200, 300, 500), XNN, PAPER).program,
}


@pytest.mark.parametrize("network", NETWORKS)
def test_the_text_of_a_compiled_program_keeps_its_segments(network: str) -> None:
    program = NETWORKS[network]()
    text = show(program)
    again = read(text)
    assert again.segments == tuple(replace(s, uops={}) for s in program.segments)
    assert show(again) == text
    assert format_text(text, "t.rsn") == text


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
segments = st.lists(
    st.builds(
        ProgramSegment,
        name=names | st.sampled_from(["kind", "layers", "outputs", "segment", "for", "a{b}", "c,d"]),
        layers=st.lists(names | st.just(""), max_size=3).map(tuple),
        kind=st.text(st.characters(codec="utf-8"), max_size=4),
        outputs=st.sampled_from([(), ("x",), ("y", "x")]),
        uops=st.just({}),
    ),
    max_size=4,
    unique_by=lambda s: s.name,
).map(tuple)


@given(segments)
def test_any_segments_are_read_as_printed(found: tuple[ProgramSegment, ...]) -> None:
    program = replace(read(BUFFERS + "last DDR"), segments=found)
    assert read(show(program)).segments == found
    assert show(read(show(program))) == show(program)


def test_the_parts_stand_in_any_order_and_may_be_left_out() -> None:
    written = 'segment s outputs y, "x" layers "a.b", "a.norm" kind "gemm 2x2"\nsegment t\n'
    assert read(written.join(BUFFERS.split("\n", 1)).replace("xnn", "xnn\n") + "last DDR").segments == (
        ProgramSegment("s", ("a.b", "a.norm"), "gemm 2x2", ("y", "x"), {}),
        ProgramSegment("t", (), "", (), {}),
    )


def test_a_loop_declares_segments_too() -> None:
    found = read(BUFFERS + 'for i in 0..2 { segment "s{i}" layers "layers.{i}" }\nlast DDR').segments
    assert [(s.name, s.layers) for s in found] == [("s0", ("layers.0",)), ("s1", ("layers.1",))]


def test_two_segments_have_two_names() -> None:
    with pytest.raises(SourceError, match=r"^t\.rsn:5:9: error: segment s is already declared"):
        parse(f"{BUFFERS}segment s outputs x\nsegment s outputs y\nlast DDR", "t.rsn")


def test_a_text_with_sections_declares_segments_too() -> None:
    source = (PROGRAMS / "fig10.rsn").read_text(encoding="utf-8") + '\nsegment product kind "gemm" outputs y\n'
    unpacked = parse(source, "t.rsn")
    assert isinstance(unpacked, UnpackedProgram)
    assert unpacked.segments == (ProgramSegment("product", (), "gemm", ("y",), {}),)
    assert pack(unpacked).segments == unpacked.segments


def test_reports_go_by_what_a_text_declares() -> None:
    """A segment ends with the last store to one of its outputs; buffers are told apart as without segments."""
    program = compiled(1, 300, PAPER)
    again = read(show(program))
    bare = replace(again, segments=())
    assert stored_buffers(ExpandedProgram(again)) == stored_buffers(ExpandedProgram(bare)) != []
    named = explain(Machine(again)).segments
    assert [(s.name, s.kind, s.layers) for s in named] == [(s.name, s.kind, s.layers) for s in program.segments]
    assert [s.end for s in named] == pytest.approx([s.end for s in explain(Machine(program)).segments])
    assert list(map(dict, TraceEvents(Timeline(Machine(again))).events()))


@pytest.mark.parametrize("overlay", sorted(OVERLAYS))
def test_no_code_is_no_reason_to_fail(overlay: str) -> None:
    bank = next(iter(OVERLAYS[overlay].banks))
    made = parse(f"overlay {overlay}\nbuffer x {bank} 64 output\nsegment s outputs x\n", "t.rsn")
    assert made.segments == (ProgramSegment("s", (), "", ("x",), {}),)
