"""The section of a container that says what the segments are: read as written, left out if empty, never believed."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rsn.assembler import container
from rsn.assembler.container import dumps, loads
from rsn.assembler.parser import parse
from rsn.assembler.segment_section import SEGMENTS
from rsn.base.errors import ContainerError, ProgramError
from rsn.cli.main import main
from rsn.isa.overlays import XNN
from rsn.isa.program import Program, ProgramSegment
from rsn.scheduler.build import build
from rsn.scheduler.schedule import PAPER
from rsn.tests.scheduler.networks import Maker

UNITS = [u.name for u in XNN.units]
ranges = st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True).map(
    lambda x: tuple(zip(*[iter(sorted(x)[: len(x) // 2 * 2])] * 2, strict=True))
)
segments = st.lists(
    st.builds(
        ProgramSegment,
        name=st.text("abc_", min_size=1),
        layers=st.lists(st.text("xyz."), max_size=3).map(tuple),
        kind=st.text("g 1", max_size=4),
        outputs=st.sampled_from([(), ("x",), ("y", "x")]),
        uops=st.dictionaries(st.sampled_from(UNITS), ranges, max_size=3),
    ),
    max_size=4,
    unique_by=lambda s: s.name,
).map(tuple)


def program(*found: ProgramSegment) -> Program:
    made = parse("overlay xnn\nbuffer x ddr 128x64\nbuffer y ddr 128x64\nlast DDR", "t.rsn")
    assert isinstance(made, Program)
    return replace(made, segments=found)


@given(segments)
def test_any_segments_are_read_as_written(found: tuple[ProgramSegment, ...]) -> None:
    again = loads(dumps(program(*found)))
    assert again.segments == found
    assert dumps(again) == dumps(program(*found))


def test_a_compiled_program_keeps_its_segments() -> None:
    built = build(Maker().encoder(1, 128, 128, 2, 256), XNN, PAPER)
    assert len(built.program.segments) == 7
    assert loads(dumps(built.program)).segments == built.program.segments


def test_without_segments_there_is_no_section() -> None:
    assert b"SEGM" not in dumps(program())
    assert b"SEGM" in dumps(program(ProgramSegment("s", (), "", (), {})))


FAULTS = [
    (ProgramSegment("s", (), "", ("z",), {}), "segment s fills z, which is no buffer"),
    (ProgramSegment("s", (), "", (), {"Mem": ((0, 1),)}), "segment s has uOPs of Mem, which is no unit of xnn"),
    (
        ProgramSegment("s", (), "", (), {"DDR": ((1, 1),)}),
        "segment s: its uOPs of DDR are not ranges in ascending order",
    ),
    (ProgramSegment("s", (), "", (), {"DDR": ((2, 3), (0, 1))}), "segment s: its uOPs of DDR are not ranges"),
    (ProgramSegment("s", (), "", (), {"DDR": ((-1, 3),)}), "segment s: its uOPs of DDR are not ranges"),
]


@pytest.mark.parametrize(("segment", "message"), FAULTS)
def test_segments_that_cannot_be_are_not_written(segment: ProgramSegment, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        dumps(program(segment))


def test_a_unit_without_ranges_has_no_uops() -> None:
    written = program(ProgramSegment("s", (), "", (), {"DDR": ()}))
    assert loads(dumps(written)).segments == (ProgramSegment("s", (), "", (), {}),)


def test_two_segments_have_two_names() -> None:
    with pytest.raises(ProgramError, match="segment s is declared twice"):
        dumps(program(*[ProgramSegment("s", (), "", (), {})] * 2))


@pytest.mark.parametrize(
    ("unit", "numbers", "message"),
    [
        ("DDR", (1, 0, 1), "DDR refers to segment 1, but there are 1"),
        ("DDR", (0, 0), "8 bytes of DDR are not a whole number of ranges"),
        ("DDR", (0, 5, 5), "segment s: its uOPs of DDR are not ranges in ascending order"),
        ("XYZ", (0, 0, 1), "segment s has uOPs of XYZ, which is no unit of xnn"),
    ],
)
def test_a_section_that_lies(unit: str, numbers: tuple[int, ...], message: str) -> None:
    made = program(ProgramSegment("s", (), "", (), {}))
    rows = [{"name": "s", "kind": "", "layers": [], "outputs": []}]
    uops = [{"unit": unit, "ranges": struct.pack(f"<{len(numbers)}I", *numbers)}]
    sections = container._sections(made)
    sections[container.SEGMENT_TAG] = SEGMENTS.build({"segments": rows, "uops": uops})
    with pytest.raises(ContainerError, match=message):
        loads(container._framed(sections))


def test_info_shows_them(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    container.write(program(ProgramSegment("s", ("a.b", "a.norm"), "gemm 64x64", ("x",), {"DDR": ((0, 1),)})), path)
    text = CliRunner().invoke(main, ["info", str(path)], catch_exceptions=False).stdout
    assert "#  segment  kind        layers\n0  s        gemm 64x64  a.b, a.norm\n" in text
    (facts,) = json.loads(CliRunner().invoke(main, ["info", "--json", str(path)]).stdout)["segments"]
    assert facts == {
        "name": "s",
        "kind": "gemm 64x64",
        "layers": ["a.b", "a.norm"],
        "outputs": ["x"],
        "uops": {"DDR": [[0, 1]]},
    }
