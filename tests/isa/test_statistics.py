"""Sizes of a program: which instructions count as uOPs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsn.assembler.parser import parse, parse_file
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.program import Program, UnpackedProgram
from rsn.isa.statistics import count
from rsn.scheduler.pack import pack


def packed(source: Program | UnpackedProgram) -> Program:
    return pack(source) if isinstance(source, UnpackedProgram) else source


@pytest.mark.parametrize("name", ["fig6_app1", "fig6_app2", "fig7_app1", "fig7_app2", "fig10", "gemm768"])
def test_uops_are_those_that_the_units_run(name: str, root: Path) -> None:
    """Compares with `ExpandedProgram`, which lists the uOPs of each unit."""
    program = packed(parse_file(root / "programs" / f"{name}.rsn"))
    overlay = program.overlay
    runs = ExpandedProgram(program).sequences
    uops = count(program)["uops"]
    for kind, units in overlay.by_kind.items():
        each = [len(runs[u.name]) for u in units]
        assert uops[kind] == (max(each) if kind in overlay.preloaded else sum(each)), kind
    assert uops["total"] == sum(len(run) for run in runs.values() if run.unit.kind not in overlay.preloaded)


def test_terminators_and_skipped_packets_are_no_uops() -> None:
    text = "overlay xnn-base\npacket MemA[0..2] reuse=0 { load dim1=128 dim2=128 }\nnop\n"
    ends = "".join(f"last {unit}\n" for unit in ("DDR", "LPDDR", "MemA[0..2]", "MemB[0..2]", "MemC[0..5]", "MeshA"))
    program = packed(parse(text + ends, "ends.rsn"))
    sizes = count(program)
    assert set(sizes["uops"].values()) == set(sizes["uop_bytes"].values()) == {0}
    assert sizes["packets"] | {"MemA": 2, "DDR": 1, "total": 8} == sizes["packets"]
    assert sizes["bytes"]["total"] == 4 * len(program.image)
