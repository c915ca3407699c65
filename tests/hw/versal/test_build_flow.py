"""The way to a bitstream, as far as it goes without AMD's tools: what make asks for, and what `make check` finds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rsn.base.errors import RsnError
from rsn.hw.versal import check, check_places
from rsn.hw.versal.check import Sources
from rsn.hw.versal.csim.build import FLAGS, compiled
from rsn.hw.versal.sources import GENERATED, sources, write
from rsn.hw.versal.switches import Switch, Switches
from rsn.isa.overlays import XNN
from rsn.tests.effort import long

GXX = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-label", "-DRSN_CSIM"]


@pytest.fixture
def versal(root: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    ignored = shutil.ignore_patterns("__pycache__", "build")
    folder = Path(shutil.copytree(root / "hw/versal", tmp_path / "versal", ignore=ignored))
    write(folder)
    return folder


# -- make check -------------------------------------------------------------------------------------------------------


@cache
def graph() -> list[str]:
    """The graph of the sources as they are: to compile it takes two seconds."""
    return Sources(sources()).graph


@pytest.mark.long
def test_check_finds_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for that of HLS, whose report test_hlscheck.py has."""
    monkeypatch.setattr(Sources, "graph", graph())
    checks = [each for each in check.CHECKS if each is not check.hls]
    monkeypatch.setattr(check, "CHECKS", checks)
    done = CliRunner().invoke(check.main)
    assert done.exit_code == 0, done.output
    assert done.output.count("ok     ") == len(checks)


Check = Callable[[Sources], check.Findings]
MISTAKES: Iterable[Any] = [
    (check.connections, "system.cfg", "a0_3:", "a0_2:", "a0_2 is connected 2 times"),
    (check.connections, "system.cfg", "ai_engine_0.B5_15", "ai_engine_0.B5_16", "the graph has no PLIO B5_16"),
    (
        check.connections,
        "system.cfg",
        "dma_hls_1.a1_0:ai_engine_0.A1_0",
        "ai_engine_0.A1_0:dma_hls_1.a1_0",
        "other direction",
    ),
    (check.connections, "system.cfg", "sc=ai_engine_0.C0_0:dma_hls_1.c0_0\n", "", "C0_0 is connected 0 times"),
    (
        check.connections,
        "system.cfg",
        "sc=ai_engine_0.C0_0:",
        "sc=ai_engine_0.C0_0 ",
        "C0_0 dma_hls_1.c0_0 is no pair of ends",
    ),
    long(check.connections, "aie/graph.h", '"C" + name, adf', '"D" + name, adf', "the graph has no PLIO C0_0"),
    long(check.connections, "aie/graph.h", "plio_64_bits", "plio_128_bits", "A0_0 has 128 bit, not 64"),
    long(check.connections, "pl/types.h", "lane_floats>", "line_floats>", "the graph does not compile"),
    long(check.tiles, "aie/graph.h", "engines = xnn::units::MME", "engines = 5", "the graph has 320 kernels"),
    long(
        check.plio_places,
        "aie/graph.h",
        "adf::location<adf::PLIO>(c[m][lane])",
        "(void)at_c;  //",
        "C0_0 has no column",
    ),
    long(check.tile_memory, "aie/graph.h", "adf::async(k.in[i ? 3 : 2])", "k.in[i ? 3 : 2]", "is synchronous"),
    (check.memories, "system.cfg", "ddr1:DDR", "ddr1:LPDDR", "sp=dma_hls_1.ddr1:DDR is missing"),
    (check.generated, "system.cfg", "nk=", "# nk=", "system.cfg differs from what the tables generate"),
    (check.generated, "aie/placement.h", "{6, 1}", "{6, 2}", "placement.h differs from what the tables generate"),
    (
        check.generated,
        "isa.h",
        "mop_fifo_depth = 6",
        "mop_fifo_depth = 5",
        "isa.h differs from what",
    ),
    (
        check.argument_order,
        "pl/dma_hls.h",
        "Port ddr0, rsn::xnn::Port ddr1",
        "Port ddr1, rsn::xnn::Port ddr0",
        "hosts set",
    ),
    (
        check.interfaces,
        "pl/dma_hls.cpp",
        "#pragma HLS INTERFACE axis port=c3\n",
        "",
        "argument c3 has no interface; expected axis",
    ),
    (check.interfaces, "pl/dma_hls.cpp", "m_axi port=ddr0", "axis port=ddr0", "argument ddr0 has axis and s_axilite"),
    (check.streams, "pl/dma_hls.cpp", '("MemC0->DDR")', '("MemC1->DDR")', "MemC0->DDR is declared 0 times"),
    (check.streams, "pl/dma_hls.cpp", "MemB2_to_MeshB * beats_per_tile", "MemB2_to_MeshB", "MemB2->MeshB is declared"),
    (
        check.streams,
        "pl/dma_hls.cpp",
        '"MeshB", mesh_b',
        '"MeshA", mesh_b',
        "unit MeshA is not a process",
    ),
    (check.hls_files, "hls.cfg", "syn.file=pl/lpddr.cpp\n", "", "pl/lpddr.cpp is not in hls.cfg"),
]


Graph = list[str]
PLACES: list[tuple[Callable[[Graph], check_places.Findings], str, str, str]] = [
    (check_places.plios, '"A0_0", "inward": 1, "at": [[6, 1]]', '"A0_0", "inward": 1, "at": []', "A0_0 has no column"),
    (check_places.plios, "[[6, 1]]", "[[5, 1]]", "A0_0 lies in column 5; only 6 to 44 have PLIOs"),
    (check_places.plios, "[[6, 1]]", "[[45, 1]]", "A0_0 lies in column 45; only 6 to 44 have PLIOs"),
    (check_places.plios, "[[6, 1]]", "[[6, 3]]", "A0_0 has channel 3; inputs may have 0, 1, 2, 4, 5, 6"),
    (
        check_places.plios,
        '"C0_2", "inward": 0, "at": [[6, 0]]',
        '"C0_2", "inward": 0, "at": [[6, 4]]',
        "C0_2 has channel 4",
    ),
    (check_places.plios, "[[6, 1]]", "[[6, 0]]", "A0_0 and B0_0 share channel 0 of column 6"),
    (check_places.plios, "[[6, 1]]", "[[20, 6]]", "the PLIOs of MME0 are spread over columns 6 to 20"),
    (check_places.plios, "[[6, 1]]", "[[8, 6]]", "A0_0 is at 8, 6; isa/versal/placement.py has it at"),
    (check_places.tiles, '{"at": [[1, 0]]', '{"at": [[2, 0]]', "G.FG[0][0][0].k0 lies at [(2, 0)]"),
    (check_places.tiles, '{"at": [[1, 0]]', '{"at": []', "G.FG[0][0][0].k0 lies at no tile"),
    (check_places.memory, "[1, 0, 8192], ", "", "the first tile of a cascade: the two buffers of B have no addresses"),
    (check_places.memory, "[1, 0, 8192]", "[1, 0, 4096]", "B at 0x1000 begins before the end of what lies below it"),
    (check_places.memory, "[1, 0, 8192]", "[2, 0, 8192]", "something of it lies in the memory of another tile"),
    (check_places.memory, "[1, 0, 28672]", "[1, 0, 30720]", "it ends at 0x8800; a tile's memory ends at 0x8000"),
    (check_places.memory, '"stack": [[1, 0, 16384]]', '"stack": []', "the stack has no address"),
    (check_places.memory, '"stack_bytes": 1632', '"stack_bytes": 9000', "the last tile of a cascade: 38"),
    (
        check_places.memory,
        '"bytes": 2048, "asynch',
        '"bytes": 4096, "asynch',
        "last tile of a cascade: no gap",
    ),
    (check_places.memory, '"asynchronous": 1', '"asynchronous": 0', "its parameter is synchronous"),
]


@cache
def found_as_it_is(checked: Callable[[Graph], check_places.Findings]) -> list[str]:
    return list(checked(graph()))


@pytest.mark.long
@pytest.mark.parametrize(("checked", "old", "new", "finding"), PLACES)
def test_check_finds_a_wrong_place(
    checked: Callable[[Graph], check_places.Findings], old: str, new: str, finding: str
) -> None:
    lines = graph()
    changed = [line.replace(old, new) for line in lines]
    assert changed != lines
    assert found_as_it_is(checked) == []
    assert finding in "\n".join(checked(changed))


@pytest.mark.long
def test_check_finds_that_a_and_b_share_a_bank() -> None:
    lines = [re.sub(r"(\d+, \d+), 4096]", r"\1, 12288]", line) for line in graph()]
    assert "the last tile of a cascade: A and B share bank 1" in "\n".join(check_places.memory(lines))


@pytest.mark.long
def test_check_finds_that_streams_have_no_room() -> None:
    """All PLIOs of the first MME at the other end of the array."""
    lines = [re.sub(r'("plio": "[AB]0_.*"at": \[\[)\d+', r"\g<1>44", line) for line in graph()]
    found = list(check_places.routes(lines))
    assert found
    assert all(finding.startswith("too many streams go from column") for finding in found)


@pytest.mark.parametrize(("start", "end"), [((99, 0), (7, 1)), ((7, 0), (7, 99))])
def test_no_way_leads_out_of_the_array(start: Switch, end: Switch) -> None:
    with pytest.raises(RsnError, match="lies outside"):
        Switches().route([(start, [end])])


def test_streams_that_merge_share_ports() -> None:
    """Of eight tiles above each other, down one column: four ways lead south. Apart, they would take all of three
    columns and more."""
    tiles = [(7, row) for row in range(1, 9)]
    switches = Switches()
    assert switches.route([], [((7, 0), tiles)] * 4) == []
    assert [switches.wanted[port] for _, port in switches.back[7, 0] if switches.wanted[port]] == [4]
    assert switches.route([], [((7, 0), tiles)] * 13) != []


@pytest.mark.long
def test_readme_shows_what_lies_in_a_tile(root: Path) -> None:
    text = (root / "hw/versal/README.md").read_text(encoding="utf-8")
    _, tiles = check_places.parts(graph())
    for kind, tile in zip(check_places.KINDS, tiles, strict=False):
        assert re.search(rf"\| {kind} \|.*\| {check_places.layout(tile).total} \|", text)


@pytest.mark.parametrize(("checked", "file", "old", "new", "finding"), MISTAKES)
def test_check_finds_a_mistake(
    versal: Path,
    checked: Check,
    file: str,
    old: str,
    new: str,
    finding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = versal / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    if path.suffix != ".h":  # the graph is made of headers
        monkeypatch.setattr(Sources, "graph", graph())
    assert finding in "\n".join(found(checked, versal))


def found(checked: Check, versal: Path) -> list[str]:
    try:
        return list(checked(Sources(versal)))
    except RsnError as e:
        return [str(e)]


@pytest.mark.long
def test_check_says_what_is_wrong_and_exits_1(versal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sources, "graph", graph())
    # What HLS makes of the sources takes ten times as long as the others, and says nothing of this mistake.
    monkeypatch.setattr(check, "CHECKS", [each for each in check.CHECKS if each is not check.hls])
    (versal / "hls.cfg").unlink()
    done = CliRunner().invoke(check.main, [str(versal)])
    assert done.exit_code == 1
    assert "wrong  hls.cfg lists exactly the source files of the kernel\n" in done.output


# -- make without tools -----------------------------------------------------------------------------------------------


def make(versal: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PLATFORM", "COMMON_IMAGE", "MAKEFLAGS")}
    command = ["make", "-C", str(versal), f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env | environment)


def test_help_names_every_target(versal: Path) -> None:
    done = make(versal)
    assert done.returncode == 0
    for target in ("aie", "pl", "xclbin", "package", "csim", "check", "lint-cxx", "clean"):
        assert f"make {target} " in done.stdout


@pytest.mark.parametrize("target", ["aie", "pl", "xclbin", "package"])
def test_without_tools_make_says_what_is_missing(versal: Path, target: str) -> None:
    done = make(versal, target, PATH="/usr/bin:/bin")
    assert done.returncode != 0
    assert "error: v++ not found; install AMD Vitis 2024.1 and source env.sh" in done.stderr
    assert not (versal / "build").exists()


def test_env_without_vitis_says_so(versal: Path) -> None:
    script = f"VITIS=/nowhere . {versal / 'env.sh'}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "env.sh: no Vitis at /nowhere; set VITIS=/path/to/Vitis/2024.1\n"


# -- make with something that answers to v++ --------------------------------------------------------------------------

VPP = """\
#!/bin/sh
[ "$1" = --version ] && { echo "****** v++ v2024.1 (64-bit)"; exit; }
echo "$@" >> "$LOG"
for word in "$@"; do
    [ "$last" = -o ] && touch "$word"
    [ "$last" = --package.out_dir ] && mkdir -p "$word" && touch "$word/sd_card.img"
    [ "$last" = --work_dir ] && mkdir -p "$word/out" && touch "$word/out/dma_hls.xo"
    [ "$word" = aie ] && touch libadf.a
    last=$word
done
"""


@pytest.fixture
def tools(versal: Path) -> dict[str, str]:
    """A v++ that writes down what it is asked for, and leaves the files behind that it would make."""
    folder = versal.parent / "bin"
    folder.mkdir()
    (folder / "v++").write_text(VPP, encoding="utf-8")
    (folder / "v++").chmod(0o755)
    for name in ("board.xpfm", "Image", "rootfs.ext4"):
        (folder / name).touch()
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "LOG": str(folder / "log"),
        "PLATFORM": str(folder / "board.xpfm"),
        "COMMON_IMAGE": str(folder),
    }


def test_make_asks_for_each_step_once_in_order(versal: Path, tools: dict[str, str]) -> None:
    done = make(versal, "package", **tools)
    assert done.returncode == 0, done.stderr
    steps = Path(tools["LOG"]).read_text(encoding="utf-8").splitlines()
    assert len(steps) == 5
    kernel, graph = sorted(steps[:2], key=lambda step: "--mode aie" in step)
    assert f"-c --mode hls --platform {tools['PLATFORM']} --freqhz=260000000 --config hls.cfg" in kernel
    assert "-c --mode aie --freqhz=260000000" in graph
    assert " --aie.Xmapper=DisableFloorplanning --aie.Xelfgen=-j8 " in graph
    assert graph.endswith("../aie/graph.cpp")
    link, binary, image = steps[2:]
    assert " -l --freqhz=260000000:dma_hls_1 --clock.defaultTolerance 0.001 --config ../system.cfg " in link
    assert link.endswith("-o rsn.xsa dma_hls.xo libadf.a")
    assert " -p --package.defer_aie_run " in binary
    assert binary.endswith("-o rsn.xclbin rsn.xsa libadf.a")
    assert f"--package.rootfs {tools['COMMON_IMAGE']}/rootfs.ext4" in image
    assert "--package.sd_file rsn.xclbin" in image
    for name in ("libadf.a", "dma_hls.xo", "rsn.xsa", "rsn.xclbin", "sd_card.img"):
        assert (versal / "build" / name).is_file()
    assert make(versal, "package", **tools).returncode == 0
    assert len(Path(tools["LOG"]).read_text(encoding="utf-8").splitlines()) == 5  # nothing is made twice


def test_make_asks_for_the_graph_of_xnn8(versal: Path, tools: dict[str, str]) -> None:
    assert make(versal, "xclbin", "MACHINE=xnn8", **tools).returncode == 0
    steps = Path(tools["LOG"]).read_text(encoding="utf-8").splitlines()
    kernel, graph = sorted(steps[:2], key=lambda step: "--mode aie" in step)
    assert "--freqhz=220000000 --config xnn8/hls.cfg" in kernel
    assert "--freqhz=220000000 --include ../xnn8/ --include .." in graph
    assert " --aie.Xpreproc=-DRSN_PL_HZ=220000000 ../xnn8/graph.cpp" in graph
    assert " --config ../xnn8/system.cfg " in steps[2]


def test_frequency_and_jobs_reach_every_step(versal: Path, tools: dict[str, str]) -> None:
    assert make(versal, "xclbin", "FREQ_HZ=200000000", "JOBS=3", **tools).returncode == 0
    steps = Path(tools["LOG"]).read_text(encoding="utf-8").splitlines()
    assert ["--freqhz=200000000" in step for step in steps] == [True, True, True, False]
    assert [re.findall(r"jobs \d|-j\d", step) for step in steps if " 3" in step or "-j3" in step] == [
        ["-j3"],
        ["jobs 3", "jobs 3"],
    ]


def test_vivado_is_asked_for_more_effort_in_each_step() -> None:
    _, _, vivado = GENERATED["system.cfg"]().partition("\n[vivado]\n")
    steps = dict(line.removeprefix("prop=run.impl_1.STEPS.").split("=") for line in vivado.splitlines())
    for step in ("OPT", "PLACE", "PHYS_OPT", "ROUTE", "POST_ROUTE_PHYS_OPT"):
        assert steps.pop(f"{step}_DESIGN.ARGS.DIRECTIVE") == "Explore"
    assert steps == {"PHYS_OPT_DESIGN.IS_ENABLED": "true", "POST_ROUTE_PHYS_OPT_DESIGN.IS_ENABLED": "true"}


def test_a_changed_source_is_built_again(versal: Path, tools: dict[str, str]) -> None:
    assert make(versal, "pl", **tools).returncode == 0
    later = (versal / "build/dma_hls.xo").stat().st_mtime + 10
    os.utime(versal / "pl/softmax.h", (later, later))
    assert make(versal, "pl", **tools).returncode == 0
    assert len(Path(tools["LOG"]).read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize(
    ("target", "variable", "message"),
    [("pl", "PLATFORM", "error: no platform at '/nowhere'"), ("package", "COMMON_IMAGE", "error: no Image and rootfs")],
)
def test_make_names_a_missing_file(
    versal: Path, tools: dict[str, str], target: str, variable: str, message: str
) -> None:
    done = make(versal, target, **tools | {variable: "/nowhere"})
    assert done.returncode != 0
    assert message in done.stderr


def test_make_warns_of_another_version(versal: Path, tools: dict[str, str]) -> None:
    vpp = Path(tools["PATH"].split(":")[0]) / "v++"
    vpp.write_text(VPP.replace("2024.1", "2023.2"), encoding="utf-8")
    assert "warning: v++ is not 2024.1" in make(versal, "pl", **tools).stderr


# -- the sources ------------------------------------------------------------------------------------------------------

BUFFERS = """\
#include <cstdio>
#include <type_traits>
#include "pl/buffer.h"
using namespace rsn::xnn;

// What lies at (row, col) of a 32x64 matrix.
static float at(unsigned row, unsigned col) { return row * 64.0f + col; }

template <typename Order, unsigned Banks>
int wrong(const Cell<Banks> (&buffer)[Banks][depth_of(32, 64)]) {
    int count = 0;
    for (unsigned row = 0; row < 32; row += 4)
        for (unsigned col = 0; col < 64; col += 8) {
            const Beat beat = get_beat<Order, 64>(buffer, row, col);
            for (unsigned r = 0; r < 4; ++r)
                for (unsigned c = 0; c < 8; ++c) {
                    const unsigned lane = std::is_same<Order, by_rows>::value ? 4 * r + c % 4 : 4 * (c % 4) + r;
                    count += beat[2 * lane + c / 4] != at(row + r, col + c);
                }
        }
    return count;
}

template <unsigned Banks>
int filled_with_words() {
    Cell<Banks> buffer[Banks][depth_of(32, 64)], copy[Banks][depth_of(32, 64)];
    int count = 0;
    for (unsigned row = 0; row < 32; row += 2)
        for (unsigned col = 0; col < 64; col += 16) {
            Beat word;
            for (unsigned n = 0; n < 32; ++n) word[n] = at(row + n / 16, col + n % 16);
            put_word<64>(buffer, row, col, word);
        }
    for (unsigned row = 0; row < 32; row += 4)
        for (unsigned col = 0; col < 64; col += 8)
            put_beat<by_cols, 64>(copy, row, col, get_beat<by_cols, 64>(buffer, row, col));
    for (unsigned row = 0; row < 32; row += 2)
        for (unsigned col = 0; col < 64; col += 16) {
            const Beat word = get_word<64>(copy, row, col);
            for (unsigned n = 0; n < 32; ++n) count += word[n] != at(row + n / 16, col + n % 16);
        }
    return count + wrong<by_rows>(buffer) + wrong<by_cols>(copy);
}

int filled_transposed() {
    Cell<turning> buffer[turning][depth_of(32, 64)];
    for (unsigned col = 0; col < 64; col += 2)
        for (unsigned row = 0; row < 32; row += 16) {
            Beat word;
            for (unsigned n = 0; n < 32; ++n) word[n] = at(row + n % 16, col + n / 16);
            put_word_transposed<64>(buffer, row, col, word);
        }
    return wrong<by_rows>(buffer) + wrong<by_cols>(buffer);
}

int main() {
    std::printf("%d %d %d\\n", filled_with_words<plain>(), filled_with_words<turning>(), filled_transposed());
}
"""


def objects(versal: Path, *files: str) -> list[str]:
    """Object files of sources, built as `make check` does."""
    flags = [flag for flag in FLAGS if flag != "-O3"]
    include = [f"-I{versal}", f"-I{versal / 'csim/include'}"]
    return [str(compiled(versal / source, [*flags, *include])) for source in files]


@pytest.mark.long
def test_buffers_give_back_in_one_shape_what_was_put_in_another(tmp_path: Path) -> None:
    """That an access takes one cell from each bank is how it is written; here: that they are the right ones."""
    versal = sources()
    (tmp_path / "t.cpp").write_text(BUFFERS, encoding="utf-8")
    include = [f"-I{versal}", f"-I{versal / 'csim/include'}"]
    files = [str(tmp_path / "t.cpp"), *objects(versal, "csim/machine.cpp")]
    subprocess.run([*GXX, *include, *files, "-pthread", "-o", str(tmp_path / "t")], check=True)
    done = subprocess.run([str(tmp_path / "t")], capture_output=True, text=True, check=True)
    assert done.stdout == "0 0 0\n"


NO_OP_LIST = """\
#include <cstdio>
#include "aie/graph.h"

int main() {
    adf::native::Design design;
    adf::native::Design::current = &design;
    rsn::mme::Engines graph;
    static const uint32 none[rsn::mme::parameters] = {};
    const auto run = [&] {
        try {
            design.require_values();
            std::puts("runs");
        } catch (const std::logic_error &e) {
            std::puts(e.what());
        }
    };
    for (auto &mme : graph.ops)
        for (auto &row : mme)
            for (auto &column : row)
                for (auto &tile : column)
                    if (&tile != &graph.ops[5][3][3][3]) graph.update(tile, none, rsn::mme::parameters);
    run();
    graph.update(graph.ops[5][3][3][3], none, rsn::mme::parameters);
    run();
    run();
}
"""


@pytest.mark.long
def test_an_op_list_is_written_before_the_first_run_and_stays(tmp_path: Path) -> None:
    versal = sources()
    (tmp_path / "t.cpp").write_text(NO_OP_LIST, encoding="utf-8")
    include = [f"-I{versal}", f"-I{versal / 'csim/include'}"]
    files = [str(tmp_path / "t.cpp"), *objects(versal, "aie/kernels.cc", "csim/machine.cpp")]
    subprocess.run([*GXX, *include, *files, "-pthread", "-o", str(tmp_path / "t")], check=True)
    done = subprocess.run([str(tmp_path / "t")], capture_output=True, text=True, check=True)
    assert done.stdout == "a kernel has a parameter without a value: update it before the run\nruns\nruns\n"


@pytest.mark.long
def test_kernel_compiles_as_a_plain_function(tmp_path: Path) -> None:
    """As AMD's compiler sees it: processes are calls, functions come from hls_math.h."""
    versal = sources()
    math = "#include <cmath>\nnamespace hls { using std::exp; using std::sqrt; }\n"
    (tmp_path / "hls_math.h").write_text(math, encoding="utf-8")
    flags = [flag for flag in GXX if flag != "-DRSN_CSIM"]
    for source in sorted((versal / "pl").glob("*.cpp")):
        command = [*flags, f"-I{tmp_path}", f"-I{versal / 'csim/include'}", "-fsyntax-only", str(source)]
        subprocess.run(command, check=True)


def test_each_unit_gets_its_mop_when_it_has_room(root: Path) -> None:
    """Writes of one mOP to several units are calls, which HLS cannot join to one that waits for room in all FIFOs."""
    text = (root / "hw/versal/pl/dispatch.cpp").read_text(encoding="utf-8")
    several = re.findall(r"if \(header\.mask & \d+\) (.*)", text)
    assert [found for found in several if not re.fullmatch(r"give\(mop, \w+\);", found)] == []
    assert len(several) == sum(len(XNN.by_kind[kind]) for kind in ("MemA", "MemB", "MemC"))
    shared = (root / "hw/versal/pl/dispatcher.h").read_text(encoding="utf-8")
    assert re.search(r"void give\(.*\) \{\n#pragma HLS INLINE off\n    to << mop;\n\}", shared)


def test_sources_name_their_licence(root: Path) -> None:
    files = [p for p in sources().rglob("*") if p.is_file()] + [*(root / "hw/versal").glob("*.sh")]
    missing = [p.name for p in files if "SPDX-License-Identifier: Apache-2.0" not in p.read_text(encoding="utf-8")]
    assert missing == []
