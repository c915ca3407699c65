"""Resources of the overlay xnn8."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.hw.sim.machine import Machine
from rsn.hw.versal.hlscheck.design import COMPILER
from rsn.hw.versal.operators import digest, process_logic
from rsn.isa.overlays.xnn8 import XNN8
from rsn.isa.overlays.xnn8 import resources as xnn8
from rsn.isa.overlays.xnn8.emission import Destination, StoredWeights
from rsn.isa.overlays.xnn8.engine import AIE_MHZ
from rsn.isa.overlays.xnn8.formats import ENGINES, LANES, PAIRS, ChunkSource
from rsn.isa.overlays.xnn8.network import STREAMS, top
from rsn.isa.overlays.xnn8.tile_streams import NARROW_BEAT, TILE_STREAMS, narrow_lanes
from rsn.isa.versal.logic import GLUE, LOOP_STATE, block_rams, half_block_rams
from rsn.isa.versal.placement import INPUT_CHANNELS, single_plios, wide_plios
from rsn.machine.resources import ResourceUse, budget
from rsn.tests.isa.xnn8_programs import HandMade


def rows() -> dict[str, ResourceUse]:
    return {row.resource: row for row in budget(XNN8.resources(XNN8), xnn8.DEVICE)}


def test_memories_hold_what_the_sources_declare(root: Path) -> None:
    """Words of X, X8 and T in units.h; 128 KiB of X and 256 KiB of T in a lane, of which an UltraRAM holds 32."""
    text = (root / "hw/versal/xnn8/units.h").read_text("utf-8")
    (shape,) = re.findall(r"constexpr unsigned (x_depth = .*;)", text)
    (sizes,) = re.findall(r"constexpr unsigned (groups = .*?);", text)
    held = re.findall(r"constexpr unsigned (\w*held\w* = \d+);", text)
    values: dict[str, int] = {}
    for name, expression in re.findall(r"(\w+) = ([^,;]+)", ", ".join([sizes, shape, *held])):
        values[name] = eval(expression, {}, values)  # products of numbers and of names before them
    words = {part: count for part, _, count, _, _ in xnn8.MEMORIES}
    assert [words["X"], words["T"]] == [values["x_depth"], values["t_depth"]]
    assert [words["X8"], words["factors of rows, beside X8"]] == [values["x8_depth"], 4 * values["groups"]]
    waiting = "results that wait for their gates"
    assert [words[waiting], words["sums of weights that wait"]] == [values["all_held"], values["most_held"]]
    blocks = rows()["URAM"].parts
    assert blocks == {"X": 24 * 128 // 32, "T": 24 * 256 // 32, waiting: 24}


def test_memories_leave_what_a_router_needs() -> None:
    found = rows()
    assert found["URAM"].share < 0.7
    assert found["BRAM"].share < 0.78
    assert found["BRAM"].parts["X8"] == 24 * 14.5  # 29 halves of 9 bits and 2,048 words
    assert found["BRAM"].parts["sums of rows"] == 24 * 3


def test_a_stream_of_each_element_is_counted() -> None:
    assert all(xnn8.element_bits(XNN8, element) > 0 for element, *_ in STREAMS)
    assert xnn8.element_bits(XNN8, "Uop<Rows::words>") == 8 * 32 + 1
    with pytest.raises(KeyError, match="Nothing"):
        xnn8.element_bits(XNN8, "Nothing")


def test_streams_lie_where_the_sources_say() -> None:
    found = dict(re.findall(r"BIND_STORAGE variable=(\w+) type=fifo impl=(\w+)", top(XNN8)))
    said = {name: found.get(name) for _, name, _, _ in STREAMS}
    assert said == {name: "srl" if depth <= 16 else "lutram" if depth <= 64 else None for _, name, _, depth in STREAMS}
    luts = rows()["LUT"].parts
    assert luts["streams gathered"] < 48 * 216  # bits of their words, each of which would take a LUT


def test_streams_of_tiles_are_those_of_the_kernel(root: Path) -> None:
    """Arrays of ports in dma_hls.h; and the PLIOs of a column: four wide ones, of which only 0 and 1, 4 and 5 are fast,
    because 3 and 7 have no registers; beside these, 2 and 6 are narrow ones."""
    text = (root / "hw/versal/xnn8/dma_hls.h").read_text("utf-8")
    ports = re.findall(r"hls::stream<Beat128> ([abc])\d\[lanes\]\[2\]", text)
    assert LANES == PAIRS
    counts = [of.all for of in TILE_STREAMS.values()]
    assert counts == [ports.count(x) * LANES * 2 for x in "abc"] == [ENGINES * LANES * 2] * 3
    found = rows()
    names = "AIE", "PLIO in", "PLIO out", "wide in", "narrow in", "wide out"
    assert [found[r].needed for r in names] == [384, 174, 96, 78, 18, 48]
    assert [found[r].capacity.amount for r in names[3:]] == [2 * 39, 2 * 39, 3 * 39]
    assert [wide_plios(range(8)), single_plios(range(8))] == [4 * 39, 0]
    assert [wide_plios(INPUT_CHANNELS), single_plios(INPUT_CHANNELS)] == [2 * 39, 2 * 39]


def test_narrow_streams_are_those_of_the_last_lanes() -> None:
    assert [list(narrow_lanes(engine)) for engine in range(ENGINES)] == [[], [7], [*range(8)]]
    assert sum(of.narrow for of in TILE_STREAMS.values()) == 2 * 9


@pytest.mark.parametrize("mhz", [180.0, 220.0, 260.0])
def test_narrow_streams_at_twice_the_clock_cost_nothing(mhz: float) -> None:
    """The lanes of an engine go in step. A chunk of 2080 bytes takes 130 cycles; 260 by narrow streams that have the
    kernel's clock, and so in engines 1 and 2 alone."""

    def seconds(engine: int, beat: float) -> float:
        hand = HandMade(1, 1, LANES, rows=16)
        hand.emit.begin([of._replace(engine=engine) for of in hand.placed])
        hand.emit.walk(0, 40, None)
        hand.emit.product(ChunkSource.X8, 0, 40, StoredWeights(0, 0, 0, (0,)), 0, Destination(0), each=False)
        overlay = XNN8.with_rates(clock_mhz=mhz, narrow_beat=beat, chunk_us=0, cascade_us=0, lpddr_read_gbs=1e6)
        return Machine(dataclasses.replace(hand.program, overlay=overlay)).timing.latency

    assert 2 * mhz < AIE_MHZ / 2
    assert seconds(0, NARROW_BEAT) == seconds(0, 2) == seconds(1, NARROW_BEAT) == seconds(2, NARROW_BEAT)
    for engine in (1, 2):
        assert seconds(engine, 2) - seconds(engine, 1) == pytest.approx(40 * 260 / mhz * 1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("product", "blocks"),
    [
        ((16, 16, 32), 1),
        ((27, 24, 51), 1),
        ((24, 27, 51), 1),
        ((28, 24, 52), 2),
        ((32, 17, 49), 2),
        ((32, 32, 64), 4),
        ((64, 64, 128), 9),
        ((64, 64, 64), 6),
        ((64, 64, 32), 3),
    ],
)
def test_products_are_made_of_what_a_dsp_multiplies(product: tuple[int, int, int], blocks: int) -> None:
    assert xnn8.multipliers(*product) == blocks


def test_what_a_process_takes_is_its_logic_and_what_is_beside_it() -> None:
    """Steps have a flip-flop each; products and quotients are not in the logic."""
    dsp, cells = xnn8.arithmetic({"logic": 1, "LUT": 70, "FF": 30, "loop": 2, "step": 9})
    assert (dsp, cells.lut, cells.ff) == (0, 70, 30 + 9 + 2 * LOOP_STATE)
    more, with_products = xnn8.arithmetic({"LUT": 70, "FF": 30, "multiply 27x24 to 51": 2, "dividers 16": 1})
    assert more == 2
    assert with_products.lut > 70 + 2 * GLUE
    with pytest.raises(KeyError, match="integer root"):
        xnn8.arithmetic({"root 8": 1})


@pytest.mark.parametrize(("bits", "words"), [(16, 256), (112, 256), (256, 2048), (288, 2064), (18, 1024), (72, 512)])
def test_halves_are_at_least_as_many_as_wholes(bits: int, words: int) -> None:
    assert block_rams(bits, words) <= half_block_rams(bits, words) <= 2 * block_rams(bits, words) + 1


def test_all_processes_have_logic() -> None:
    assert set(xnn8.process_counts(XNN8)) == set(xnn8.operators())


def test_another_depth_changes_what_is_counted() -> None:
    changed = dataclasses.replace(XNN8, uop_fifo_depth=16)
    parts = [
        {row.resource: row for row in budget(o.resources(o), xnn8.DEVICE)}["LUT"].parts["streams of instructions"]
        for o in (XNN8, changed)
    ]
    assert parts[0] != parts[1]


def test_the_page_has_these_figures(root: Path) -> None:
    text = (root / "docs/xnn8.md").read_text(encoding="utf-8")
    for name in ("URAM", "BRAM", "DSP", "LUT", "FF"):
        row = rows()[name]
        assert f"| {row.needed:,} | {row.share:.0%} |".replace("%", " %") in text, name


def test_it_is_said_that_it_does_not_fit() -> None:
    told = CliRunner().invoke(main, ["info", "--resources", "--overlay", "xnn8"])
    assert told.exit_code == 1
    assert "78       78   100%" in told.output
    assert re.search(r"error: the datapath needs about \d+ LUT", told.output)
    assert "348  X8" in told.output


@pytest.mark.long
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed")
def test_the_logic_is_that_of_the_sources() -> None:
    """Who changes a source of xnn8 has its logic synthesised again: python -m rsn.hw.versal.operators."""
    made = {name: {"logic": digest(texts), **found} for name, (texts, found) in process_logic().items()}
    counted = {name: dict(found) for name, found in xnn8.operators().items()}
    assert made == {
        name: {key: n for key, n in found.items() if key not in ("LUT", "FF")} for name, found in counted.items()
    }
