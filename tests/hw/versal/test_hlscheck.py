"""The checker of HLS sources finds each mistake of a table, where it is, and nothing else in what is shipped."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.hw.versal import check
from rsn.hw.versal.check import Sources
from rsn.hw.versal.hlscheck import checker
from rsn.hw.versal.hlscheck.__main__ import main
from rsn.hw.versal.hlscheck.checker import (
    TABLES,
    HlsReport,
    check_folder,
    check_kernel,
    check_machine,
    machine_texts,
)
from rsn.hw.versal.hlscheck.design import COMPILER
from rsn.hw.versal.hlscheck.operators import OPERATORS
from rsn.hw.versal.hlscheck.recurrence import OperatorEdge, tightest
from rsn.hw.versal.hlscheck.rules import RULES
from rsn.hw.versal.hlscheck.rules_aie import alignment, pointers, stacks
from rsn.hw.versal.sources import sources, write
from rsn.streams.build import task_program, unit_names
from rsn.streams.check import report_on
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.project import project
from rsn.streams.placing.devices import U55C, VC1902
from rsn.streams.reader import read
from rsn.streams.run import stream_depths
from rsn.streams.timing.timed import TimedProgram
from rsn.streams.words import moved_rounds
from rsn.tests.effort import full, in_full, long, thinned
from rsn.tests.hw.versal.hls_mistakes import AIE, KERNEL, XNN2, HlsMistake
from rsn.tests.streams.hls_programs import TURNED
from rsn.tests.streams.test_hls_words import TILES

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")


@cache
def texts() -> dict[str, str]:
    return machine_texts(sources())


@cache
def report(machine: str) -> HlsReport:
    return check_machine(machine, sources())


def found(changed: dict[str, str], files: Sequence[str], machine: str) -> set[tuple[str, str]]:
    """Place and rule of each finding."""
    flags = ["-DRSN_XNN2"] if machine == "xnn2" else []
    return {(str(f.line), f.rule) for f in check_kernel(changed, files, "dma_hls", flags, TABLES[machine]).findings}


LARGE = KERNEL[1].files
"""The unit that takes two seconds to check."""


def at_once(mistakes: Sequence[HlsMistake]) -> list[tuple[HlsMistake, ...]]:
    """Mistakes of the large unit that one check finds, because each is in another file; of all others each alone."""
    out: list[tuple[HlsMistake, ...]] = []
    for mistake in mistakes:
        large = (n for n, made in enumerate(out) if mistake.files == made[0].files == LARGE)
        n = next((n for n in large if mistake.file not in {m.file for m in out[n]}), len(out))
        out[n : n + 1] = [(*out[n], mistake) if n < len(out) else (mistake,)]
    return out


@pytest.mark.parametrize(
    "mistakes",
    thinned(at_once(KERNEL), 5),
    ids=lambda made: "; ".join(m.name for m in made),
)
def test_mistakes_in_the_kernel(mistakes: tuple[HlsMistake, ...]) -> None:
    changed = texts()
    for mistake in mistakes:
        changed = mistake.text(changed)
    expected = {(mistake.line(changed), mistake.rule) for mistake in mistakes}
    assert expected - found(changed, mistakes[0].files, "xnn") == set()


@pytest.mark.long
@pytest.mark.parametrize("files", sorted({m.files for m in XNN2}), ids="; ".join)
def test_mistakes_in_the_kernel_of_xnn2(files: tuple[str, ...]) -> None:
    """Those of the same unit together."""
    mistakes, changed = [m for m in XNN2 if m.files == files], texts()
    for mistake in mistakes:
        changed = mistake.text(changed)
    expected = {(mistake.line(changed), mistake.rule) for mistake in mistakes}
    assert expected - found(changed, files, "xnn2") == set()
    assert not expected & found(texts(), files, "xnn2")


@pytest.mark.parametrize("mistake", thinned(AIE, 3), ids=lambda m: m.name)
def test_a_mistake_in_a_control_program(mistake: HlsMistake, root: Path, tmp_path: Path) -> None:
    changed = mistake.text(texts())
    programs = {name: text for name, text in changed.items() if name.startswith("aie/") or name in mistake.files}
    findings = [*pointers(programs), *alignment(programs)]
    if mistake.rule == "stack":  # clang compiles the program
        folder = tmp_path / "versal"
        shutil.copytree(root / "hw/versal", folder, ignore=shutil.ignore_patterns("__pycache__", "build*", "hlscheck"))
        write(folder)
        (folder / mistake.file).write_text(changed[mistake.file], encoding="utf-8")
        flags = ["-DRSN_XNN2"] if mistake.files[0].startswith("xnn2") else []
        findings += stacks(folder, mistake.files[0], flags)
    assert (mistake.line(changed), mistake.rule) in {(str(f.line), f.rule) for f in findings}


@pytest.mark.long
@pytest.mark.parametrize("machine", TABLES)
def test_the_shipped_sources_have_no_finding(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor has `make check` one. The machine of xnn is that of xnn-base too. What is allowed has its reason in the
    source."""
    monkeypatch.setattr(checker, "check_machine", lambda machine, _: report(machine))
    assert list(check.hls(Sources(sources(), machine))) == []
    assert all(len(reason) > 20 for _, reason in report(machine).allowed)


@pytest.mark.long
@pytest.mark.parametrize("machine", TABLES)
def test_every_pipelined_loop_is_checked(machine: str) -> None:
    """Each PIPELINE pragma of the machine's own sources is a loop of the report."""
    checked = {str(x.line) for x in report(machine).loops}
    of = "pl/" if machine == "xnn" else f"{machine}/"
    stated = {
        f"{name}:{n}"
        for name, text in texts().items()
        for n, line in enumerate(text.splitlines(), 1)
        if name.startswith(of) and line.startswith("#pragma HLS PIPELINE")
    }
    assert stated - checked == set()


def test_every_rule_has_a_mistake() -> None:
    assert RULES.keys() - {m.rule for m in (*KERNEL, *XNN2, *AIE)} == set()


ROOT = Path(__file__).resolve().parents[3]
STREAM_PROGRAMS = sorted(path for path in (ROOT / "programs/streams").glob("*.py") if path.stem != "__init__")


OFTEN = ("gemm_3d", "producer_consumer", "ring")


@in_full
@pytest.mark.parametrize("rates", [full({}), long({"matmul": 128, "elements": 16})])
@pytest.mark.parametrize(
    "file",
    # Of each kind of tasks one. A block of a decoder has the kernels of the others (rsnlib/test_generated_hls.py).
    [path if path.stem in OFTEN else full(path) for path in STREAM_PROGRAMS],
    ids=lambda path: getattr(path, "stem", None),
)
def test_stream_programs_break_no_rule(file: Path, tmp_path: Path, rates: dict[str, float]) -> None:
    made = report_on(read(file.read_text("utf-8"), file.name, timed=True, rates=rates))
    for name, text in project(cpp_program(task_program(made.region)), VC1902).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    report = check_folder(tmp_path)
    assert [str(finding) for finding in report.findings] == []
    if rates:  # they are the units that are built, and the cycles of a run, but of tasks that state their cycles
        instances = made.region.instances
        modelled = TimedProgram([x.beats for x in instances], stream_depths(made.region)[1]).code.cycles
        of = dict(zip(unit_names([x.name for x in instances]), zip(instances, modelled, strict=True), strict=True))
        units = re.findall(r'RSN_TASK\("([^"]+)"', (tmp_path / "top.cpp").read_text("utf-8"))
        for unit, (_, derived) in zip(units, report.processes, strict=True):
            instance, cycles = of[unit]
            if "cycles" not in instance.task.body.facts.calls:
                assert derived.cycles == pytest.approx(cycles, rel=0.1, abs=30), unit


@pytest.mark.parametrize("rate", [64, full(512), full(1536)])
def test_products_with_transposes_break_no_rule(tmp_path: Path, rate: int) -> None:
    """The banks of a tile serve the stream that brings it by rows, and the product that takes it by columns."""
    made = report_on(read(TURNED.format(rate=rate), "p.py"))
    for name, text in project(cpp_program(task_program(made.region)), VC1902).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = check_folder(tmp_path)
    assert found.findings == []
    assert max(loop.needed or 0 for loop in found.loops) == 1


def test_ports_in_several_channels_break_no_rule(tmp_path: Path) -> None:
    """The loops that move tiles have the iterations and the intervals of `moved_rounds`."""
    program, channels = task_program(report_on(read(TILES, "p.py")).region), {"w": 16, "y": 2}
    placed = tuple(replace(t, channels=tuple(range(channels[t.name]))) for t in program.tensors)
    text = project(cpp_program(replace(program, tensors=placed, device="u55c")), U55C)
    for name, of_file in text.items():
        (tmp_path / name).write_text(of_file, encoding="utf-8")
    found = check_folder(tmp_path)
    assert found.findings == []
    moved = {name: moved_rounds("f32", channels[tensor], 64) for name, tensor in (("load", "w"), ("store", "y"))}
    made = {loop.function: (loop.stated, loop.trips) for loop in found.loops}
    assert made == {name: (each.interval, 64 * 64 // each.elements) for name, each in moved.items()}


CYCLES = """\
#include "hls_stream.h"
static void one(hls::stream<int> &in, hls::stream<int> &out) {
    for (int i = 0; i < 10; ++i)
        for (int j = 0; j < 20; ++j) {
#pragma HLS pipeline II=2
            out.write(in.read() + j);
        }
}
static int read_apart(hls::stream<int> &in) {
#pragma HLS inline off
    return in.read();
}
static void other(hls::stream<int> &in, hls::stream<int> &out) {
    for (int turn = 0; turn < 3; ++turn) {
        int kept[50];
        for (int i = 0; i < 50; ++i) {
#pragma HLS pipeline II=1
            kept[i] = in.read();
        }
        if (turn == 1)
            for (int i = 0; i < 50; ++i) {
#pragma HLS pipeline II=3
                out.write(kept[i]);
            }
        else
            for (int i = 0; i < 50; ++i) {
#pragma HLS pipeline II=1
                out.write(kept[i] + 1);
            }
    }
}
static void data(hls::stream<int> &in, hls::stream<int> &out) {
    if (read_apart(in))
        for (int i = 0; i < 100; ++i) {
#pragma HLS pipeline II=1
            out.write(i);
        }
}
void top(hls::stream<int> &a, hls::stream<int> &b, hls::stream<int> &c, hls::stream<int> &d, hls::stream<int> &e) {
#pragma HLS dataflow
    hls::stream<int> first("first"), second("second");
    one(a, b);
    other(c, d);
    data(e, first);
}
"""


def test_cycles_follow_from_loops() -> None:
    """Nests are one loop; a branch that only indices decide is the one that is taken, of others the longer counts."""
    made = check_kernel({"a.cpp": CYCLES}, ["a.cpp"], "top")
    found = dict(made.processes)
    depth = {name: {x.depth for x in made.loops if x.function == name} for name in found}
    assert found["one"].cycles == 199 * 2 + 1 + max(depth["one"])
    least, most = (3 * 49 + 49 * 3 + 2 * 49 + 6 * (1 + of(depth["other"])) for of in (min, max))
    assert least <= found["other"].cycles <= most
    assert found["data"].cycles == 99 + 1 + max(depth["data"]) + 1
    assert {c.unknown for c in found.values()} == {0}


@pytest.mark.parametrize(
    ("edges", "stated", "needed"),
    [
        ([OperatorEdge(0, 1, 3.0, 0), OperatorEdge(1, 0, 1.0, 1)], 1, 4),
        ([OperatorEdge(0, 1, 3.0, 0), OperatorEdge(1, 0, 1.0, 2)], 1, 2),
        ([OperatorEdge(0, 1, 3.0, 0), OperatorEdge(1, 0, 1.0, 4)], 1, None),
        ([OperatorEdge(0, 1, 0.3, 0), OperatorEdge(1, 0, 0.3, 1)], 1, None),
        ([OperatorEdge(0, 0, 5.0, 1), OperatorEdge(1, 1, 7.0, 1), OperatorEdge(0, 1, 50.0, 0)], 1, 7),
        ([OperatorEdge(0, 0, 5.0, 1)], 5, None),
    ],
)
def test_the_tightest_circle(edges: list[OperatorEdge], stated: int, needed: int | None) -> None:
    circle = tightest(edges, stated)
    assert (circle.interval if circle else None) == needed


ALLOWED = """\
#include "hls_stream.h"
void top(hls::stream<float> &in, hls::stream<float> &out) {
    float sum = 0.0f;
    for (int i = 0; i < 100; ++i) {
        COMMENT
#pragma HLS PIPELINE II=1 style=flp
        sum = (sum + in.read()) * 0.5f;
        out << sum;
    }
}
"""


def test_a_reason_in_the_source() -> None:
    without = check_kernel({"a.cpp": ALLOWED.replace("COMMENT", "")}, ["a.cpp"], "top")
    assert [(str(f.line), f.rule) for f in without.findings] == [("a.cpp:6", "interval")]
    given = check_kernel({"a.cpp": ALLOWED.replace("COMMENT", "// hls-allow interval: why not")}, ["a.cpp"], "top")
    assert given.findings == []
    assert [reason for _, reason in given.allowed] == ["why not"]
    other = check_kernel({"a.cpp": ALLOWED.replace("COMMENT", "// hls-allow ports: why not")}, ["a.cpp"], "top")
    assert len(other.findings) == 1


def copies(name: str, of: str, to: str) -> str:
    """A process that copies 64 words."""
    return (
        f"void {name}({of}, {to}) {{\n    for (int k = 0; k < 64; ++k) {{\n#pragma HLS PIPELINE II=1\n"
        "        to VALUE;\n    }\n}\n"
    )


STREAMS = "hls::stream<int> &of", "hls::stream<int> &to"
SMALL = {
    "bundle": (  # pointers without INTERFACE share one
        copies("one", "const int *of", STREAMS[1]).replace("VALUE", "<< of[k]")
        + copies("other", "const int *of", STREAMS[1]).replace("VALUE", "<< of[k]")
        + "void top(const int *a, const int *b, hls::stream<int> &s, hls::stream<int> &t) {\n"
        "#pragma HLS DATAFLOW\n    one(a, s);\n    other(b, t);\n}\n"
    ),
    "processes": (  # who reads is called before who writes
        copies("put", STREAMS[0], "int (&to)[64]").replace("VALUE", "[k] = of.read()")
        + copies("get", "int (&of)[64]", STREAMS[1]).replace("VALUE", "<< of[k]")
        + "void top(hls::stream<int> &s, hls::stream<int> &t) {\n#pragma HLS DATAFLOW\n    int a[64];\n"
        "#pragma HLS STREAM variable=a type=pipo\n    get(a, t);\n    put(s, a);\n}\n"
    ),
    "outstanding": (  # requests one behind the other, in no loop
        "void top(hls::burst_maxi<int> p, hls::stream<int> &to) {\n"
        "#pragma HLS INTERFACE m_axi port=p bundle=p num_read_outstanding=2\n"
        + "".join(f"    p.read_request({16 * k}, 16);\n" for k in range(3))
        + "    for (int k = 0; k < 48; ++k) {\n#pragma HLS PIPELINE II=1\n        to << p.read();\n    }\n}\n"
    ),
    "synthesisable": (  # a virtual function
        "struct Base { virtual int f(int x) { return x; } };\n"
        "struct More : Base { int f(int x) override { return -x; } };\n"
        "void top(bool which, hls::stream<int> &s, hls::stream<int> &t) {\n    Base a;\n    More b;\n"
        "    Base *c = which ? &a : &b;\n    t << c->f(s.read());\n}\n"
    ),
}


@pytest.mark.parametrize("rule", SMALL)
def test_a_mistake_in_a_small_kernel(rule: str) -> None:
    text = f'#include "hls_burst_maxi.h"\n#include "hls_stream.h"\n{SMALL[rule]}'
    assert rule in {f.rule for f in check_kernel({"a.cpp": text}, ["a.cpp"], "top").findings}


@pytest.mark.parametrize(
    "spelling",
    [
        "aie::store_v(q + i, aie::load_v<8>(p + i));",
        "aie::store_v(&q[i], aie::load_v<8>(&p[i]));",
        "aie::store_v((float *)q, aie::load_v<8>((const float *)p));",
        "*q++ = *p++;",
    ],
)
def test_pointers_of_a_tile_in_any_spelling(spelling: str) -> None:
    loop = f"for (int i = 0; i < 8; ++i)\n    chess_prepare_for_pipelining\n{{\n    {spelling}\n}}\n}}\n"
    found = list(pointers({"a.cc": f"void f(const float *p, float *q) {{\n{loop}"}))
    assert {f.text for f in found} == {"p is not __restrict", "q is not __restrict"}
    assert list(pointers({"a.cc": f"void f(const float *__restrict p, float *__restrict q) {{\n{loop}"})) == []


@pytest.mark.parametrize(("made", "count"), [("begin_vector", 1), ("begin_restrict_vector", 0)])
def test_iterators_of_a_tile(made: str, count: int) -> None:
    loop = "for (;;) chess_prepare_for_pipelining {\n*a++;\n}\n"
    text = f"void f(const float *p) {{\nauto a = aie::{made}<8>(p);\n{loop}}}\n"
    assert len(list(pointers({"a.cc": text}))) == count


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "top.cpp").write_text(ALLOWED.replace("COMMENT", ""), encoding="utf-8")
    (tmp_path / "hls.tcl").write_text("set_top top\n", encoding="utf-8")
    done = CliRunner().invoke(main, [str(tmp_path), "--loops"])
    assert done.exit_code == 1
    assert "top.cpp:6: interval: states II=1; a value that the loop carries needs 2 cycles" in done.output
    assert "top.cpp:6: top: II=1, needs 2; 100 iterations" in done.output
    (tmp_path / "top.cpp").write_text("void top() { nonsense }", encoding="utf-8")
    done = CliRunner().invoke(main, [str(tmp_path)])
    assert done.exit_code == 1
    assert "Error: top.cpp does not compile" in done.output


def test_the_page_has_all_tables(root: Path) -> None:
    page = (root / "docs/hls-rules.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {rule.text} | {rule.source} |" for name, rule in RULES.items()]
    rows += [f"| {name} | {time.cycles:g} | {time.source} |" for name, time in OPERATORS.items()]
    rows += [f"| {m.name} | `{m.rule}` | `{m.file}` |" for m in (*KERNEL, *XNN2, *AIE)]
    assert [row for row in rows if row not in page.splitlines()] == []
