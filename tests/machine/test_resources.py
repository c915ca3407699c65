"""Resources and cycle counts of the machine, from the tables and from the C++ sources."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.base.errors import ResourceError
from rsn.cli.main import main
from rsn.hw.versal.sources import GENERATED
from rsn.isa.layout import BLOCK_ROWS
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import FIG6, XNN, XNN_BASE
from rsn.isa.overlays.xnn import extensions
from rsn.isa.overlays.xnn.cycles import LOOPS
from rsn.isa.overlays.xnn.extensions import EXTENSIONS
from rsn.isa.overlays.xnn.mem_c import BASE_LOOPS
from rsn.isa.overlays.xnn.resources import (
    MEM_C,
    ROW_ARRAYS,
    ROW_BANKS,
    ROW_DEPTH,
    SOFTMAX,
    added,
)
from rsn.isa.versal.logic import LoopWork, arithmetic, block_rams, multiplexer, ultra_rams
from rsn.isa.versal.loop import PipelinedLoop
from rsn.isa.versal.pieces import Cells, piece
from rsn.isa.versal.tiles import BEAT, BEATS, TILE
from rsn.machine.description import UnitSpec, memory_of
from rsn.machine.resources import VC1902, Need, ResourceUse, budget, plan, require_fits


def rows(overlay: Overlay) -> dict[str, ResourceUse]:
    return {row.resource: row for row in budget(overlay.resources(overlay), VC1902)}


def test_what_follows_from_the_structure_is_the_published_machines() -> None:
    """Paper sections 5.2 and 5.3. The buffers of the MemCs use the 41 % of the UltraRAM that the paper states."""
    found = rows(XNN)
    assert [found[r].needed for r in ("AIE", "PLIO in", "PLIO out")] == [384, 192, 96]
    assert found["URAM"].parts["buffers of MemC"] == round(0.415 * 463)
    for row in found.values():
        for published in (row.capacity.published, row.capacity.post_route):
            assert published is None or published < row.capacity.amount
    published_ultra, published_block = (found[r].capacity.post_route for r in ("URAM", "BRAM"))
    assert published_ultra == found["URAM"].parts["buffers of MemC"]
    assert published_block is not None
    assert round(published_block / 967, 2) == 0.59


@pytest.mark.parametrize("overlay", [XNN, XNN_BASE], ids=lambda o: o.name)
def test_the_machine_fits(overlay: Overlay) -> None:
    """The published implementation was routed with 58 % of the LUTs, and 92 % of the slices."""
    found = rows(overlay)
    require_fits(found.values(), VC1902)
    most = {"LUT": 0.68, "DSP": 0.90, "FF": 0.50} if overlay is XNN else {"LUT": 0.50, "DSP": 0.85, "FF": 0.40}
    assert all(found[resource].share < share for resource, share in most.items())


def test_capabilities_are_all_that_the_base_machine_lacks() -> None:
    """Resource by resource, the sum over capabilities is the difference between the two overlays."""
    found = added(XNN, XNN_BASE)
    assert {e.name for e in EXTENSIONS} < set(found)
    here, there = rows(XNN), rows(XNN_BASE)
    for resource in here:
        more = here[resource].needed - (there[resource].needed if resource in there else 0)
        assert sum(amounts.get(resource, 0) for amounts in found.values()) == more


def of_part(part: str) -> list[LoopWork]:
    """The work of a file of the sources: today's, and that of capabilities, which have names of their own."""
    files = {
        "activation": {"activation", "gate"},
        "norm": {"norm", "statistics of rows"},
        "softmax": {"softmax", "windows, left padding", "soft cap", "softmax in parts"},
        "rotate": {"rotation"},
        "row_norm": {"norm at a load"},
    }
    here = [w for w in (*MEM_C, *SOFTMAX) if w.loop not in BASE_LOOPS]  # the sources have no such loop
    works = [*here, *(work for e in EXTENSIONS for work in e.works)]
    return [work for work in works if work.part in files[part]]


def test_the_error_of_the_estimate() -> None:
    """Units within 17 %, without MeshA within 11 %, totals within 6 %. A choice of MeshA among seven sources takes 2.5
    LUTs a bit as synthesised; by its report it has 2.1."""
    found = {(d.resource, d.unit): d.error for d in XNN.deviations()}
    assert {unit for _, unit in found} == {"", "MeshA", "MeshB", "MemC with softmax", "MemC without softmax"}
    assert max(abs(error) for (_, unit), error in found.items() if unit != "MeshA") < 0.11
    assert 0.11 < found["LUT", "MeshA"] < 0.17
    assert all(abs(found[resource, ""]) < 0.06 for resource in ("LUT", "DSP", "BRAM", "URAM"))
    assert list(XNN.deviations()) == list(XNN_BASE.deviations())


def test_the_sources_are_what_the_estimate_counts(root: Path) -> None:
    """Accesses to a buffer, arrays of rows with their sizes and storage, operators."""
    pl = root / "hw/versal/pl"
    names = ("activation", "norm", "softmax", "rotate", "row_norm")
    text = {name: (pl / f"{name}.h").read_text(encoding="utf-8") for name in names}
    text["activation"] += (pl / "functions.h").read_text(encoding="utf-8")
    for name in names:
        of = of_part(name)
        assert len(re.findall(r"get_(?:beat|word)<mem_c_cols|get_beat<by", text[name])) == sum(w.reads for w in of) + (
            name == "rotate"
        ), name  # one of a rotation is of the table
        assert len(re.findall(r"put_beat<|put_word<", text[name])) == sum(w.writes for w in of), name
        for function, operator in (("exp_of(", "exp"), ("sqrt_of(", "sqrt"), ("add_in_fabric(", "add in fabric")):
            assert (function in text[name]) == any(operator in w.operators for w in of), (name, operator)
    for file, arrays in (
        ("softmax.h", 1),
        ("mem_c.cpp", 4),
    ):  # of the norm (twice), factors of two slots, and those that are kept
        code = (pl / file).read_text(encoding="utf-8")
        found = re.findall(r"^ +Rows (\w+), (\w+);", code, re.MULTILINE)
        assert [len(a) for a in found] == [ROW_ARRAYS] * arrays
        for array in (a for pair in found for a in pair):
            assert f"ARRAY_PARTITION variable={array} complete dim=1" in code
            assert f"BIND_STORAGE variable={array} type=ram_s2p impl=lutram" in code
    mem_c, mem_a, mem_b = ((pl / f"mem_{x}.cpp").read_text(encoding="utf-8") for x in ("c", "a", "b"))
    assert f"patch_rows = {ROW_BANKS};" in (pl / "mem_c.h").read_text(encoding="utf-8")
    assert f"row_patches = {ROW_BANKS * ROW_DEPTH} / patch_rows;" in (pl / "mem_c.h").read_text(encoding="utf-8")
    assert extensions.ROWS == (ROW_BANKS, ROW_DEPTH)
    assert "Numbers mean, count, factor;" in mem_a
    assert (2, memory_of(XNN.by_kind["MemA"][0]).rows / 2) == extensions.NUMBERS
    assert mem_c.count("MemCBuffer ping, pong, table;") == 2
    assert len(re.findall(r"variable=(?:ping|pong|table) type=ram_s2p impl=uram", mem_c)) == 2 * 3
    assert mem_c.count("add_in_fabric(") == 1  # the loop that receives
    assert "impl=bram" not in mem_b
    math = (pl / "math.h").read_text(encoding="utf-8")
    assert "op=fexp impl=meddsp" in math
    assert "op=fadd impl=fabric" in math
    assert sum(path.read_text(encoding="utf-8").count("impl=fabric") for path in pl.iterdir()) == 1


def test_an_address_recurs_when_the_pragmas_say(root: Path) -> None:
    """A walk goes down the rows of eight columns; the least number of rows is that of a block, 32 patches. An element
    that is accumulated comes again after a tile."""
    found = {}
    for name in ("norm.h", "softmax.h", "row_norm.h", "mem_c.cpp"):
        text = (root / "hw/versal/pl" / name).read_text(encoding="utf-8")
        loops = r"PIPELINE II=ii::(\w+).*\n((?:#pragma HLS DEPENDENCE .*\n)+)"
        for loop, pragmas in re.findall(loops, text):
            distances = re.findall(r"RAW distance=(\d+) dependent=true", pragmas)
            assert len(distances) == pragmas.count("distance")
            assert len(set(distances)) <= 1
            if distances:
                found[loop] = int(distances[0])
        assert bool(text.count("distance=")) == any(f"II=ii::{loop} " in text for loop in found)
    rows = BLOCK_ROWS // ROW_BANKS
    loops = {name: rows * LOOPS[name].rounds for name in ("softmax_max", "softmax_exp", "norm_sum", "norm_squares")}
    assert found == {**loops, "receive": BEATS, "statistics": TILE}  # each row of a tile, before the next part


@pytest.mark.parametrize(("ways", "luts"), [(1, 0), (2, 0.5), (3, 1), (4, 1), (5, 1.5), (8, 2.5)])
def test_luts_of_a_multiplexer(ways: int, luts: float) -> None:
    assert multiplexer(ways, 1024) == Cells(1024 * luts, 1024 * (ways > 1))


def test_an_interval_needs_multiplexers_and_rounds_need_one() -> None:
    operators = {"add": 32}
    work = LoopWork("", "", operators)
    whole, rounds, shared = (arithmetic(PipelinedLoop(ii, 0, "", n), work) for ii, n in ((1, 1), (1, 8), (8, 1)))
    assert [dsp for dsp, _ in (whole, rounds, shared)] == [32, 4, 4]
    assert rounds[1] - piece("patch", 32 * BEAT) == shared[1] - 4 * multiplexer(8, 2 * 32)


def test_choices_and_registers_of_a_loop_count() -> None:
    loop = PipelinedLoop(1, 0, "")
    assert arithmetic(loop, LoopWork("", "", choices=((4, 64),), kept=10)) == (0, Cells(64, 64 + 10))


def test_memories_hold_what_is_put_into_them() -> None:
    """No memory is smaller than the bits that it stores."""
    bits = sum(32 * u.memory.slots * u.memory.rows * u.memory.columns for u in XNN.units if u.memory)
    found = rows(XNN)
    blocks = [
        found[r].parts.get(f"buffers of {kind}", 0) * size
        for r, size in (("URAM", 4096 * 64), ("BRAM", 32768))
        for kind in ("MemA", "MemB", "MemC")
    ]
    assert sum(blocks) >= bits


@pytest.mark.parametrize(
    ("width", "depth", "blocks"),
    [(72, 512, 1), (1024, 512, 15), (1024, 256, 15), (36, 1024, 1), (512, 1024, 15), (9, 4096, 1)],
)
def test_blocks_of_a_memory(width: int, depth: int, blocks: int) -> None:
    """The shapes of a RAMB36 with one write port and one read port (AM007)."""
    assert block_rams(width, depth) == blocks


@pytest.mark.parametrize(("width", "depth", "blocks"), [(72, 4096, 1), (128, 2048, 2), (512, 4096, 8), (64, 4097, 2)])
def test_ultra_blocks_of_a_memory(width: int, depth: int, blocks: int) -> None:
    assert ultra_rams(width, depth) == blocks


def test_a_seventh_engine_does_not_fit() -> None:
    mme = XNN.by_kind["MME"][0]
    more = dataclasses.replace(XNN, units=(*XNN.units, UnitSpec("MME6", "MME", 6, mme.behaviour)))
    with pytest.raises(ResourceError, match="needs 448 AIE \\(tiles\\) and a VC1902 has 400; MMEs alone: 448"):
        require_fits(rows(more).values(), VC1902)


def test_deeper_streams_do_not_fit() -> None:
    depths = {s.name: 8 for s in XNN.streams if s.dst.startswith("Mesh")}
    with pytest.raises(ResourceError, match=r"about \d+ BRAM"):
        require_fits(rows(XNN.with_depths(depths)).values(), VC1902)


# -- the command line -------------------------------------------------------------------------------------------------


def test_info_shows_resources() -> None:
    done = CliRunner().invoke(main, ["info", "--resources"])
    assert done.exit_code == 0, done.stderr
    assert re.search(r"^AIE +384 +400 +96% +384 +tiles$", done.stdout, re.MULTILINE)
    needed = rows(XNN)["URAM"].needed
    assert re.search(rf"^URAM +{needed} +463 +{needed / 463:.0%} +190 +192 ", done.stdout, re.MULTILINE)
    assert re.search(r"^ +\d+  rotation in MemC$", done.stdout, re.MULTILINE)
    assert re.search(r"^LUT +MemC with softmax +\d+ +79021 +[+-]\d", done.stdout, re.MULTILINE)
    assert re.search(r"^LUT +in all +\d+ +518255 +[+-]\d", done.stdout, re.MULTILINE)


def test_info_resources_json() -> None:
    done = CliRunner().invoke(main, ["info", "--resources", "--overlay", "xnn-base", "--json"])
    facts = json.loads(done.stdout)
    assert (facts["overlay"], facts["device"], facts["fits"]) == ("xnn-base", "VC1902", True)
    total = next(d for d in facts["deviations"] if (d["resource"], d["unit"]) == ("LUT", ""))
    assert total["published"] == facts["resources"]["LUT"]["post_route"] == 518_255
    assert total["error"] == facts["resources"]["LUT"]["error"] == total["estimated"] / 518_255 - 1
    plio = facts["resources"]["PLIO in"]
    assert (plio["needed"], plio["available"], plio["estimate"]) == (192, 234, False)
    assert all(
        sum(r["parts"].values()) == r["needed"] and r["unit"] and r["source"] for r in facts["resources"].values()
    )


def test_info_ends_with_a_clock_to_plan_with() -> None:
    done = CliRunner().invoke(main, ["info", "--resources"])
    assert re.search(r"^average +79% +70% +1\.13$", done.stdout, re.MULTILINE)
    *_, limit, clock = done.stdout.splitlines()
    assert limit.startswith("limit: hard blocks;")
    assert clock == "clock to plan with, an estimate: 200 MHz: above a guideline, by less than a quarter of it"
    told = CliRunner().invoke(main, ["info", "--resources", "--json"])
    facts = json.loads(told.stdout)
    assert (facts["limit"], facts["clock_hz"]) == ("hard blocks", 200e6)
    assert facts["of_guideline"]["DSP"] == facts["resources"]["DSP"]["share"] / 0.8


@pytest.mark.parametrize(
    ("lut", "dsp", "limit", "mhz"),
    [(0.5, 0.4, "LUT", 260), (0.6, 0.4, "LUT", 220), (0.5, 0.9, "DSP", 200), (0.9, 0.2, "LUT", 180)],
)
def test_a_fuller_device_is_planned_with_a_slower_clock(lut: float, dsp: float, limit: str, mhz: float) -> None:
    shares = {"LUT": lut, "DSP": dsp}
    needs = (Need(name, round(shares.get(name, 0) * c.amount), "") for name, c in VC1902.capacities.items())
    planned = plan(budget(needs, VC1902), VC1902)
    assert (planned.limit, planned.clock_hz) == (limit, mhz * 1e6)
    assert planned.average == pytest.approx(dsp / 3, abs=1e-3)


def test_info_refuses_a_datapath_that_cannot_fit(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text('[streams]\n"MemC0->DDR" = 65536\n', encoding="utf-8")
    done = CliRunner().invoke(main, ["info", "--resources", "--overlay-file", str(file), "--json"])
    assert done.exit_code == 1
    assert "BRAM" in done.stderr
    assert "streams MemC->DDR alone" in done.stderr
    assert json.loads(done.stdout)["fits"] is False


def test_info_of_the_machine_of_a_program(root: Path) -> None:
    done = CliRunner().invoke(main, ["info", "--resources", str(root / "programs/gemm768.rsn"), "--json"])
    assert json.loads(done.stdout)["overlay"].startswith("xnn")


@pytest.mark.parametrize("what", ["--resources", "--cycles"])
def test_info_of_a_machine_without_sources(what: str) -> None:
    done = CliRunner().invoke(main, ["info", what, "--overlay", FIG6.name])
    assert done.exit_code == 1
    assert FIG6.name in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--resources", "--cycles"], ["--overlay-file", "x.toml", "p.bin"]])
def test_info_used_wrongly(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["info", *arguments]).exit_code == 2


# -- cycles -----------------------------------------------------------------------------------------------------------


def test_sources_state_the_intervals_of_the_table(root: Path) -> None:
    """Each loop of the table is in the sources, and no pipeline in the sources states an interval other than 1."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "hw/versal/pl").iterdir()))
    intervals = re.findall(r"#pragma HLS PIPELINE (II=\S+)", text)
    assert {i for i in intervals if i != "II=1"} == {f"II=ii::{name}" for name in LOOPS}
    header = GENERATED["isa.h"]()

    def stated(namespace: str) -> dict[str, int]:
        inside = header[header.index(f"namespace {namespace} {{") : header.index(f"}}  // namespace {namespace}")]
        return {name: int(value) for name, value in re.findall(r"unsigned (\w+) = (\d+);", inside)}

    assert stated("ii") == {name: loop.ii for name, loop in LOOPS.items()}
    assert stated("rounds") == {name: loop.rounds for name, loop in LOOPS.items() if loop.rounds > 1}
    assert set(re.findall(r"Walk<rounds::(\w+)>", text)) == set(stated("rounds")) - {"statistics"}  # of a word
    assert text.count("static_assert(rounds::statistics == 2,") == 2


def test_every_loop_of_the_sources_has_a_name(root: Path) -> None:
    """AMD's reports identify a loop by its label. Unrolled loops need none."""
    bare = []
    for path in sorted((root / "hw/versal/pl").iterdir()):
        lines = path.read_text(encoding="utf-8").splitlines()
        for i, line in enumerate(lines):
            if re.match(r" *for \(", line) and not re.match(r" *\w+:$", lines[i - 1]):
                follows = lines[i + 1 : i + 2]
                if not (follows and "UNROLL" in follows[0]) and "auto &" not in line and "Cell<" not in line:
                    bare.append(f"{path.name}:{i + 1}: {line.strip()}")
    assert bare == []


def test_moving_data_costs_what_the_simulator_charges() -> None:
    """Equal up to the depth of a pipeline if the structure decides the time; otherwise a remark explains it."""
    for cost in XNN.costs(XNN):
        if any(word in cost.what for word in ("fill", "drain", "send", "receive", "a tile")):
            assert abs(cost.difference) < 0.03, cost.what
        elif abs(cost.difference) > 0.03:
            assert cost.remark, cost.what


@pytest.mark.parametrize("overlay", [XNN, XNN_BASE], ids=lambda o: o.name)
def test_with_rates_by_the_sources_the_simulator_takes_what_they_take(overlay: Overlay) -> None:
    stated = dict(c.rate for c in overlay.costs(overlay) if c.rate)
    assert set(stated) == {"exchange_fill", "gelu_beat", "norm_us"}
    changed = overlay.with_rates(**stated)
    names = ("softmax of", "activation of 256x512", "layer norm")
    post_ops = [c for c in changed.costs(changed) if any(x in c.what for x in names)]
    assert len(post_ops) == 4
    for cost in post_ops:
        assert cost.simulated == pytest.approx(cost.seconds), cost.what


def test_fills_are_those_of_the_loops() -> None:
    """The fill of a pipeline is taken from the sources."""
    fills = {"softmax_fill": 50, "softmax_max_fill": 30, "exchange_fill": 30}
    assert {name: XNN.rates[name].value for name in fills} == fills
    assert LOOPS["softmax_exp"].fill == fills["softmax_fill"]
    assert XNN_BASE.rates["softmax_fill"].value == fills["softmax_fill"] + BASE_LOOPS["softmax_scale"].fill
    assert not any(XNN.rates[name].calibrated for name in (*fills, "softmax_beat", "gelu_beat"))


def test_info_cycles_json() -> None:
    facts = json.loads(CliRunner().invoke(main, ["info", "--cycles", "--json"]).stdout)
    norm = next(c for c in facts["costs"] if "layer norm" in c["what"])
    assert norm["seconds"] == pytest.approx(norm["cycles"] / facts["pl_hz"])
    assert norm["simulated_s"] == pytest.approx(162e-6)
    assert norm["difference"] == pytest.approx(norm["seconds"] / 162e-6 - 1)


_NAMES = {"URAM": "UltraRAM", "BRAM": "block RAM"}


def test_readme_has_these_figures(root: Path) -> None:
    """hw/versal/README.md discusses them."""
    text = (root / "hw/versal/README.md").read_text(encoding="utf-8")
    found = rows(XNN)
    assert f"| {found['PLIO in'].needed}, {found['PLIO out'].needed} | 234, 156 |" in text
    for resource in ("AIE", "URAM", "BRAM", "DSP"):
        assert f"| {found[resource].needed} | {found[resource].capacity.amount} |" in text
    for resource in ("LUT", "FF"):
        assert f"| {found[resource].needed // 1000},000 | {found[resource].capacity.amount:,} |" in text
    for d in XNN.deviations():
        error = f"{d.error:+.0%}".replace("%", " %").replace("+0", "0").replace("-0", "0")
        row = next(line for line in text.splitlines() if line.startswith(f"| {_NAMES.get(d.resource, d.resource)}"))
        assert d.unit or row.endswith(f"| {d.published:,} | {error} |")
    for what, name in (("GELU", "activation of 256x512"), ("LayerNorm", "layer norm"), ("softmax", "softmax")):
        cost = next(c for c in XNN.costs(XNN) if name in c.what)
        assert f"{what} of" in text
        simulated = f"{cost.simulated * 1e6:.1f} us" if what != "LayerNorm" else "162 us (fitted)"
        assert f"| {cost.seconds * 1e6:.1f} us | {simulated} | {cost.difference:+.0%}".replace("%", " %") in text


CYCLES: dict[str, tuple[str, ...]] = {
    "gate": ("times a gate",),
    "rotation": ("rotation",),
    "norm of heads": ("each head",),
    "statistics of rows": ("statistics of the rows",),
    "norm at a load": ("fill 256x128", "statistics of 128 rows"),
    "soft cap": ("soft cap",),
    "softmax in parts": ("maxima and sums", "256x256: exp"),
    "softmax's product on the way out": ("send a tile, times",),
}
"""Which operations a capability is for, by a piece of their names."""


_SHOWN = ("LUT", "FF", "DSP", "BRAM", "URAM")


def row_of(name: str, amounts: Mapping[str, int]) -> str:
    """The row of a capability in hw/versal/README.md."""
    found = [f"{amounts.get(r, 0):,}" if amounts.get(r) else "" for r in _SHOWN]
    costs = [c for part in CYCLES.get(name, ()) for c in XNN.costs(XNN) if part in c.what]
    assert len(costs) == len(CYCLES.get(name, ()))
    work = "; ".join(f"{c.what.partition(': ')[2]}: {c.cycles:,}" for c in costs)
    return f"| {name} | {' | '.join(found)} | {work} |".replace("  ", " ")


def test_readme_shows_what_each_capability_takes(root: Path) -> None:
    text = (root / "hw/versal/README.md").read_text(encoding="utf-8")
    found = added(XNN, XNN_BASE)
    names = sorted(found, key=lambda name: -found[name].get("LUT", 0))
    total = {r: sum(amounts.get(r, 0) for amounts in found.values()) for r in _SHOWN}
    expected = [*(row_of(name, found[name]) for name in names), row_of("in all", total)]
    assert "\n".join(expected) in text
