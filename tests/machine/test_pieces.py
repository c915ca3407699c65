"""The table of synthesised pieces, and the script that makes it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rsn.hw.versal.pieces import PIECES, SYNTHESIS, counted, synthesised, version
from rsn.isa.versal import pieces
from rsn.isa.versal.logic import WORD_BITS, LoopWork, crossbars, fifo, fifo_in_lut_ram, lut_ram
from rsn.isa.versal.pieces import Cells, next_larger, piece
from rsn.machine.resources import VC1902


@pytest.fixture(scope="module")
def stated(root: Path) -> dict[str, object]:
    return tomllib.loads((root / "isa/versal/pieces.toml").read_text("utf-8"))


def test_the_table_has_what_the_script_makes(stated: dict[str, object]) -> None:
    assert stated["command"] == SYNTHESIS
    sizes = {piece.name: list(piece.sizes) for piece in PIECES}
    assert {name: list(row) for name, row in pieces.synthesised().items()} == sizes


def test_yosys_makes_the_same_of_some_pieces(stated: dict[str, object]) -> None:
    try:
        installed = version()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if installed != stated["tool"]:
        pytest.skip(f"the table is of {stated['tool']}, this is {installed}")
    quick = {"multiplexer": 4, "fifo of 2": 64, "larger": 32}
    made = synthesised([piece.verilog(quick[piece.name]) for piece in PIECES if piece.name in quick])
    assert [Cells(*cells) for cells in made] == [piece(*of) for of in quick.items()]


def test_sizes_between_lie_on_a_line() -> None:
    low, high = piece("fifo of 2", 64), piece("fifo of 2", 256)
    assert piece("fifo of 2", 160) == 0.5 * (low + high)
    assert fifo(2048, 2).lut == pytest.approx(2 * 1024 + 4)


def test_memories_come_in_steps() -> None:
    assert next_larger("memory", 33) == piece("memory", 64)
    assert next_larger("memory", 513) == 2 * piece("memory", 512)
    assert lut_ram(112, 5) == piece("memory", 32)


@pytest.mark.parametrize(("depth", "larger"), [(32, 32), (33, 64)])
def test_a_stream_in_lut_ram_is_its_memory_and_where_it_is(depth: int, larger: int) -> None:
    """Its words have no register behind them. Three numbers, of the first, next and last word, take some LUTs."""
    stream = fifo_in_lut_ram(224, depth)
    assert 0 < stream.lut - 2 * piece("memory", larger).lut < 30
    assert stream.ff < 30


@pytest.mark.parametrize("banks", [2, 8])
def test_a_crossbar_is_made_of_butterflies_and_choices(banks: int) -> None:
    """What the formula puts together is what synthesis makes of the whole."""
    works = (LoopWork("", "", reads=1, writes=1), LoopWork("", "", reads=1))
    assert crossbars(works, banks, 2) == WORD_BITS / 64 * piece("crossbar", banks)


def _lut(out: int, *inputs: int) -> dict[str, object]:
    return {"type": f"LUT{len(inputs)}", "connections": {"O": [out], **{f"I{n}": [i] for n, i in enumerate(inputs)}}}


def test_luts_share_a_place_where_five_inputs_are_enough() -> None:
    two = [_lut(10, 1, 2, 3), _lut(11, 1, 4, 5)]
    assert counted(two) == (1, 0)
    assert counted([*two, _lut(12, 6)]) == (2, 0)  # nothing in common
    assert counted([_lut(10, 1, 2, 3, 4), _lut(11, 1, 2, 5, 6)]) == (2, 0)
    carry = {"type": "CARRY8", "connections": {"S": [10, 11]}}
    assert counted([*two, carry]) == (2, 0)
    assert counted([{"type": kind, "connections": {}} for kind in ("SRL16E", "SRL16E", "SRL16E", "FDRE")]) == (2, 1)


def test_a_cell_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="DSP48E2"):
        counted([{"type": "DSP48E2", "connections": {}}])


def test_resources_have_guidelines() -> None:
    guided = {name for name, c in VC1902.capacities.items() if c.guideline is not None}
    assert guided == {"URAM", "BRAM", "DSP", "LUT", "FF"}
