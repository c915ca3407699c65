"""HLS C++ of stream programs: run natively, it gives what the simulator gives, bit for bit."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsn.assembler import container
from rsn.base.element_types import SCALARS, ElementType
from rsn.base.errors import BoardError, DeadlockError, ProgramError, TensorError
from rsn.host.native_tasks import NativeRegion, from_memory, run_native, to_memory
from rsn.host.tasks import run_tasks
from rsn.hw.versal.csim.build import compiler
from rsn.hw.versal.csim.tasks import build_regions
from rsn.isa.overlays.tasks.overlay import runnable
from rsn.isa.overlays.tasks.program import TaskProgram
from rsn.isa.overlays.tasks.values import DTYPES, convert
from rsn.streams.build import Refused, task_program
from rsn.streams.check import check, report_on
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.names import identifier
from rsn.streams.hls.native import HEADERS, native_text
from rsn.streams.hls.project import project
from rsn.streams.hls.values import HlsError
from rsn.streams.mapping.graph import mapping_graph
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import bundle, chain
from rsn.streams.mapping.program import mapped_program
from rsn.streams.placing.devices import VC1902
from rsn.streams.reader import read
from rsn.tests.compilers import quick_compiler
from rsn.tests.effort import cases, full, in_full, long
from rsn.tests.streams import hls_programs as programs
from rsn.tests.streams.test_mapped_program import FFN

LISTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "listed.toml").read_text(encoding="utf-8"))
SYSTOLIC = Path(__file__).parents[2] / "programs" / "streams" / "systolic.py"


def observable(text: str) -> str:
    """A listed program whose tasks without a grid store what `use(s.get())` reads, each in a tensor of its own."""
    kind = "f32" if "f32" in text else "i8" if "Stream[i8" in text else "i32"
    parts = text.split("@task(mapping=[1])\ndef ")
    tensors, out = [], [parts[0]]
    for part in parts[1:]:
        rest = re.sub(
            r"(?m)^( +)use\((.+)\)$", lambda m: f"{m[1]}seen[0] = seen[0] * 3 + {m[2].replace(',', ' +')}", part
        )
        if rest == part or "f32[" in text:
            out.append("@task(mapping=[1])\ndef " + part)
            continue
        tensors.append(f"SEEN{len(tensors)}: {kind}[1]\n")
        out.append(f"@task(mapping=[1], args=[SEEN{len(tensors) - 1}])\ndef {rest.replace('()', '(seen)', 1)}")
    head, _, body = "".join(out).lstrip().partition("\n")
    return f"{head}\n{''.join(tensors)}{body}"


def task_program_of(text: str, name: str) -> TaskProgram:
    return task_program(check(text, f"{name}.py").region)


def well_typed(texts: Mapping[str, str], most: int) -> dict[str, TaskProgram]:
    """The programs that the check accepts, at most so many."""
    out: dict[str, TaskProgram] = {}
    for name, text in texts.items():
        report = check(text, f"{name}.py")
        if not report.code and len(out) < most:
            out[name] = task_program(report.region)
    return out


def drawn_inputs(program: TaskProgram, seed: int) -> dict[str, Any]:
    """Values of the declared types; of integers, large ones among them."""
    rng = np.random.default_rng(seed)
    out = {}
    for t in program.tensors:
        if not t.input:
            continue
        kept = convert(np.zeros(t.type.shape), t.type).dtype
        if kept.kind == "f":
            out[t.name] = convert(rng.standard_normal(t.type.shape) * 4, t.type)
            continue
        low, high = SCALARS[t.type.dtype].limits
        small = rng.integers(max(low, -50), min(high, 49), t.type.shape, endpoint=True).astype(kept)
        large = rng.integers(low, high, t.type.shape, dtype=kept, endpoint=True)
        out[t.name] = np.where(rng.random(t.type.shape) < 0.2 * (seed % 2), large, small)
    return out


def built(folder: Path, given: Mapping[str, TaskProgram]) -> dict[str, NativeRegion]:
    """Compile programs together."""
    made = [cpp_program(program, name) for name, program in given.items()]
    with quick_compiler():
        build_regions(native_text(made), [HEADERS], folder / "regions", "-O0")
    return {
        m.name: NativeRegion(folder / "regions", k, m.program, [d.shot for d in m.draws], [s.size for s in m.sizes])
        for k, m in enumerate(made)
    }


def compare(regions: Mapping[str, NativeRegion]) -> Counter[str]:
    """Run programs natively and on the simulator; return how many there are of each outcome."""
    outcomes: Counter[str] = Counter()
    for number, (name, region) in enumerate(regions.items()):
        inputs = drawn_inputs(region.program, number)
        try:
            expected = run_tasks(runnable(region.program), inputs).outputs
        except ProgramError:
            with pytest.raises(ProgramError):
                run_native(region, inputs)
            outcomes["failed"] += 1
            continue
        got = run_native(region, inputs)
        assert got.keys() == expected.keys()
        for tensor, value in expected.items():
            assert got[tensor].dtype == value.dtype
            assert got[tensor].tobytes() == value.tobytes(), f"{name}: {tensor}\n{got[tensor]}\n{value}"
        outcomes["equal"] += 1
        outcomes["data"] += bool(region.drawing)
    return outcomes


def pipelines() -> dict[str, str]:
    out = {}
    products = {
        "f32": "a @ b",
        "f16": "matmul(a, b)",
        "f64": "a @ b",
        "i4": "i32(a) @ i32(b)",
        "i8": "i32(a) @ i32(b)",
        "bf16": "f32(a) @ f32(b)",
    }
    for kind, product in products.items():
        wide = {"i4": "i32", "i8": "i32", "bf16": "f32"}.get(kind, kind)
        out[f"gemm_{kind}"] = programs.GEMM.format(kind=kind, out=wide, product=product)
    for kind in ("f32", "f16", "bf16"):
        out[f"attention_{kind}"] = programs.ATTENTION.format(kind=kind)
        out[f"norms_{kind}"] = programs.NORMS.format(kind=kind, first="gelu", second="silu")
    for kind in ("i4", "u4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"):
        out[f"scalars_{kind}"] = programs.SCALARS.format(kind=kind, wide="u64" if kind == "u64" else "i64")
    for kind in ("f32", "i4", "i8", "i64"):
        out[f"replaced_{kind}"] = programs.REPLACED.format(kind=kind)
    gemm = SYSTOLIC.with_name("gemm_3d.py").read_text(encoding="utf-8")
    out["turned"] = programs.TURNED.format(rate=96)
    return out | {"shapes": programs.SHAPES, "tokens": programs.TOKENS, "gemm_3d": gemm, "ffn": FFN}


def in_channels(seed: int) -> TaskProgram:
    """A drawn program whose tensors lie in several memory channels."""
    program = task_program_of(programs.in_channels(seed), f"channels_{seed}")
    chosen = programs.channels_of_tensors(seed, [t.name for t in program.tensors])
    return replace(program, tensors=tuple(replace(t, channels=chosen[t.name]) for t in program.tensors), device="u55c")


def mapped_programs() -> dict[str, TaskProgram]:
    """A program whose units run several task instances, on a stream that several elements share, or of the unit to
    itself."""
    region = report_on(read(FFN, "ffn.py", timed=True)).region
    first = Mapped.start(mapping_graph(region))
    together = bundle(first, [f"up[{j}]" for j in range(4)])
    return {"bundled": mapped_program(together), "alone": mapped_program(chain(together, "up[0]", "down"))}


def ends_badly() -> dict[str, TaskProgram]:
    """Programs that wait for ever, compute for ever, or need integers of more than 128 bits."""
    slow = HEAD_OF_SLOW + "    while n != 0:\n        n = n + 1\n    s.put(n)\n"
    wide = HEAD_OF_SLOW + "    for i in range(130):\n        n = n * 2\n    s.put(n // 3)\n"
    out = {name: task_program(check(LISTED[name]["program"], f"{name}.py").region) for name in ("I1", "I5")}
    return out | {"slow": task_program_of(slow, "slow"), "wide": task_program_of(wide, "wide")}


HEAD_OF_SLOW = """from rsn.streams import *
s: Stream[i32, 2]
@task(mapping=[1])
def b():
    drop(s.get())
@task(mapping=[1])
def a():
    n = 1 if data() else 2
"""


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NativeRegion]:
    """A few programs of each sort, in one program for this computer."""
    listed = {name: observable(LISTED[name]["program"]) for name in ("W11", "W19")}
    texts = pipelines()
    few = ("gemm_i4", "gemm_i8", "scalars_u4", "scalars_u32", "shapes", "tokens", "turned", "replaced_i8")
    given = well_typed(listed | {name: texts[name] for name in few}, 10)
    given |= well_typed({f"drawn_{k}": programs.drawn_scalars(k) for k in range(40)}, 7)
    given |= well_typed({f"tiles_{k}": programs.drawn_tiles(k) for k in range(40)}, 2) | mapped_programs()
    given |= {f"channels_{k}": in_channels(k) for k in range(4)}
    return built(tmp_path_factory.mktemp("hls"), given | ends_badly())


def test_results_are_those_of_the_simulator(regions: dict[str, NativeRegion]) -> None:
    outcomes = compare({name: region for name, region in regions.items() if name not in ends_badly()})
    assert outcomes["equal"] >= 15
    assert outcomes["data"] >= 1


@in_full
@pytest.mark.parametrize("sort", [long("listed"), full("pipelines"), full("scalars"), full("tiles"), full("systolic")])
def test_all_results_are_those_of_the_simulator(tmp_path: Path, sort: str, regions: dict[str, NativeRegion]) -> None:
    texts, most = {
        "listed": ({name: observable(row["program"]) for name, row in LISTED.items() if not row["code"]}, 20),
        "pipelines": (pipelines(), 24),
        "scalars": ({f"drawn_{k}": programs.drawn_scalars(k) for k in range(400)}, cases(140, 7)),
        "tiles": ({f"tiles_{k}": programs.drawn_tiles(k) for k in range(400)}, cases(100, 5)),
        "systolic": ({"systolic": SYSTOLIC.read_text(encoding="utf-8")}, 1),
    }[sort]
    given = well_typed(texts, most)
    assert len(given) == most
    others = {name: program for name, program in given.items() if name not in regions}
    assert compare(built(tmp_path, others))["equal"] >= 0.95 * len(others)


@in_full
@pytest.mark.long
def test_tensors_in_several_channels_hold_what_the_simulator_stores(tmp_path: Path) -> None:
    given = {f"channels_{k}": in_channels(k) for k in range(4, cases(160, 16))}  # those before are in `regions`
    text = "".join(cpp_program(program).text for program in given.values())
    for move in ("send", "receive", "load", "save"):
        assert f"rsn::{move}_rounds<" in text
        assert f"rsn::{move}<" in text
    assert compare(built(tmp_path, given))["equal"] == len(given)


@in_full
@pytest.mark.long
def test_changed_programs_are_refused_or_give_equal_results(tmp_path: Path) -> None:
    given: dict[str, TaskProgram] = {}
    refused: list[str] = []
    for seed in range(cases(3000, 300)):
        report = check(programs.changed(seed), "p.py")
        if report.code:
            continue
        try:
            program = task_program(report.region)
            cpp_program(program)
        except (Refused, HlsError) as e:
            refused.append(str(e))
            continue
        given[f"changed_{seed}"] = program
    assert len(refused) > cases(50, 5)
    assert [message for message in refused if not re.match(r"p\.py:\d+:\d+: ", message)] == []
    outcomes = compare(built(tmp_path, dict(list(given.items())[:120])))
    assert outcomes["equal"] > cases(100, 10)


def test_listed_programs_show_what_they_get() -> None:
    texts = {name: observable(row["program"]) for name, row in LISTED.items() if not row["code"]}
    reports = {name: check(text) for name, text in texts.items()}
    assert [name for name, report in reports.items() if report.code] == []
    assert sum("SEEN0" in text for text in texts.values()) >= 15


def test_runs_that_do_not_end_well_say_where(regions: dict[str, NativeRegion]) -> None:
    with pytest.raises(DeadlockError) as caught:
        run_native(regions["I5"])
    waits = {(w.unit, w.what, w.stream, w.place, w.filled, w.capacity) for w in caught.value.report.waits}
    assert waits == {("fork", "put", "s", "I5.py:7", 2, 2), ("join", "get", "t", "I5.py:14", 0, 1)}
    with pytest.raises(DeadlockError, match="f0"):
        run_native(regions["I1"])
    with pytest.raises(BoardError, match=r"more than 0\.3 seconds"):
        run_native(regions["slow"], seconds=0.3)
    with pytest.raises(ProgramError, match=r"wide\.py:11: a: this integer needs more than 128 bits"):
        run_native(regions["wide"])


# -- the text ----------------------------------------------------------------------------------------------------------


def test_equal_instances_share_a_function() -> None:
    text = cpp_program(task_program_of(LISTED["W7"]["program"], "W7")).text
    assert text.count("void gemm_") == 5
    assert text.count("RSN_TASK(") == 32
    assert "// gemm, W7.py:6: gemm[0,1], gemm[0,2], gemm[0,3], gemm[0,4]" in text
    assert '    hls::stream<std::int8_t, 2> A_1_1("A[1,1]");' in text
    assert (
        "    for (int k = 0; k < 4; ++k) {\n#pragma HLS pipeline II=1 style=flp\n        RSN_AT(24);  // W7.py:24\n"
        "        a = rsn::read(A_in);\n"
    ) in text


def test_the_place_in_the_grid_is_a_constant() -> None:
    text = cpp_program(task_program_of(programs.GEMM.format(kind="f32", out="f32", product="a @ b"), "gemm")).text
    assert "template <int tid0>\nvoid load_a(const hls::vector<float, 4> *a_memory" in text
    assert "rsn::Shape<8, 12>, rsn::Shape<4, 12>, 4> a{a_memory, tid0 * 48};" in text
    assert "load_a<1>(A_1, a_s_1)" in text
    assert "#pragma HLS interface m_axi port=A_1 bundle=load_a_1 depth=24" in text


def test_packed_streams_carry_vectors() -> None:
    text = cpp_program(task_program_of(LISTED["W19"]["program"], "W19")).text
    assert '    hls::stream<hls::vector<std::int8_t, 4>, 2> s("s");' in text


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("x", "x"),
        ("int", "int_"),
        ("tid0", "tid0_"),
        ("größe", "gruf6"),
        ("%3", "t3"),
        ("pair.t", "pair_t"),
        ("_a", "a_"),
    ],
)
def test_names(name: str, made: str) -> None:
    assert identifier(name).startswith(made)
    assert identifier(name).isidentifier()


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        (["x = 1.5 if data() else 2", "s.put(x)"], "p.py:5:9", "one arm is float, the other int"),
        (["x = 0", "for i in range(3):", "    x = x + f32(i)", "s.put(x // 2)"], "p.py:8:9", "annotate its first"),
        (["n = 2", "if data():", "    n = 3", "s.put(zeros(f32, 4)[0:n][0])"], "p.py:8:9", "must be known before"),
        (["x = f32(2) ** data()", "s.put(x)"], "p.py:5:9", "a power of floats"),
        (["x: f64 = 1.0 if data() else 2.0", "s.put(f32(exp(x)))"], "p.py:6:9", "exp in f64"),
        (["x = (1, 2) if data() else (2, 3)", "s.put(x[0])"], "p.py:5:9", "a tuple or a text"),
    ],
)
def test_what_has_no_c_is_refused(lines: list[str], place: str, message: str) -> None:
    body = "\n".join(f"        {line}" for line in lines)
    text = f"from rsn.streams import *\ns: Stream[f32, 2]\n@task(mapping=[1])\ndef a():\n{body}\n"
    text += "@task(mapping=[1])\ndef b():\n    drop(s.get())\n"
    report = check(text, "p.py")
    with pytest.raises((HlsError, Refused)) as caught:
        cpp_program(task_program(report.region))
    assert str(caught.value).startswith(place)
    assert message in str(caught.value)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["boolean", "i4", "u4", "i8", "u16", "i64", "u64", "f16", "bf16", "f32", "f64"])
def test_memories_hold_all_values(dtype: str) -> None:
    program = task_program_of(
        f"from rsn.streams import *\nx: {dtype}[64]\n@task(mapping=[1], args=[x])\ndef a(x):\n    pass\n", "p"
    )
    (tensor,) = program.tensors
    rng = np.random.default_rng(0)
    whole = dtype[0] in "iu" or dtype == "boolean"
    drawn = rng.integers(0, 1 << 62, 64) if whole else rng.standard_normal(64) * 1e3
    value = convert(drawn, ElementType(dtype, (64,)))
    assert from_memory(to_memory(value, tensor), tensor).tobytes() == value.tobytes()


NIBBLES = """from rsn.streams import *
x: {kind}[3, 3]
y: {kind}[3, 3]
z: i8[3, 3]
s: Stream[{kind}, 2]
@task(mapping=[1], args=[x])
def a(x):
    for i, j in grid(3, 3):
        s.put(x[i, j])
@task(mapping=[1], args=[y, z])
def b(y, z: i8[3, 3]):
    held = zeros({kind}, 3, 3)
    for i, j in grid(3, 3):
        e = s.get()
        held[i, j] = e + 5
        y[i, j] = 3 * e
    z[:] = i8(held)
"""
"""Single elements of an odd number of them, and of rows with an odd number."""


@pytest.mark.parametrize("kind", ["i4", "u4"])
def test_elements_of_4_bits_wrap_where_they_are_stored(kind: str, tmp_path: Path) -> None:
    low, high = SCALARS[kind].limits
    x = np.array([[low, high, 0], [1, 2, 3], [4, 5, 6]], DTYPES[kind])
    program = task_program_of(NIBBLES.format(kind=kind), "nibbles")
    (region,) = built(tmp_path, {"nibbles": program}).values()

    def wrapped(values: Any) -> list[list[int]]:
        return [[(int(v) - low) % 16 + low for v in row] for row in values]

    kept = container.loads(container.dumps(runnable(program)))
    for outputs in (run_tasks(kept, {"x": x}).outputs, run_native(region, {"x": x})):
        assert outputs["y"].tolist() == wrapped(3 * x.astype(int))
        assert outputs["z"].tolist() == wrapped(x.astype(int) + 5)
    for values in (x.astype(int) - 1 if low else x.astype(int) + 16, x + 0.5):
        with pytest.raises(TensorError, match=f"x has values that are none of {kind}"):
            run_tasks(runnable(program), {"x": values})


def test_two_tasks_do_not_store_halves_of_a_byte() -> None:
    head = "from rsn.streams import *\ny: i4[4]\n@task(mapping=[2], args=[y])\n"
    text = head + "def a(y: i4[4] @ Layout('S0')):\n    {}\n"
    assert "rsn::Nibbles<rsn::i4, 2> *y" in cpp_program(task_program_of(text.format("y[:] = zeros(i4, 2)"), "p")).text
    with pytest.raises(HlsError, match=r"p\.py:4:\d+: hls: a_0 stores single elements of y, and other tasks"):
        cpp_program(task_program_of(text.format("y[0] = 1"), "p"))


def test_a_variable_of_two_kinds_is_refused_with_what_helps() -> None:
    head = "from rsn.streams import *\nx: i8[4]\n@task(mapping=[1], args=[x])\n"
    text = head + "def a(x: i8[4]):\n    t = x[:]\n    if data():\n        t = {}\n    x[:] = t\n"
    why = r"p\.py:8:\d+: hls: t is i64\[4\] on one path and i8\[4\] on another; .*: convert it, as in i32\(t\)"
    with pytest.raises(HlsError, match=why):
        cpp_program(task_program_of(text.format("t + t"), "p"))
    cpp_program(task_program_of(text.format("i8(t + t)"), "p"))


def test_ports_move_elements_of_4_bits_by_the_byte() -> None:
    text = cpp_program(task_program_of(programs.GEMM.format(kind="i4", out="i32", product="i32(a) @ i32(b)"), "g")).text
    assert "load_a(const rsn::Nibbles<rsn::i4, 4> *a_memory" in text
    assert "hls::stream<hls::vector<rsn::i4, 48>" in text
    assert "#pragma HLS interface m_axi port=A_1 bundle=load_a_1 depth=24" in text


SEQUENTIAL = """
#pragma once
#include <queue>
namespace hls {
template <class T, int DEPTH = 0> class stream;
template <class T> class stream<T, 0> {
  public:
    stream() {}
    explicit stream(const char *) {}
    T read() { T out = queue_.front(); queue_.pop(); return out; }
    void write(const T &value) { queue_.push(value); }
  private:
    std::queue<T> queue_;
};
template <class T, int DEPTH> class stream : public stream<T, 0> {
  public:
    using stream<T, 0>::stream;
};
}
"""


@pytest.mark.long
def test_the_testbench_runs_one_process_after_the_other(tmp_path: Path) -> None:
    """As the C simulation of an HLS tool does, whose streams have no limit."""
    (tmp_path / "hls_stream.h").write_text(SEQUENTIAL)
    (tmp_path / "hls_vector.h").write_text((HEADERS.parents[1] / "hw/versal/csim/include/hls_vector.h").read_text())
    program = task_program_of(pipelines()["norms_f16"], "norms")
    made = cpp_program(program)
    for name, text in project(made, VC1902).items():
        (tmp_path / name).write_text(text)
    inputs = drawn_inputs(program, 3)
    expected = run_tasks(runnable(program), inputs).outputs
    for t in program.tensors:
        if t.name in inputs:
            (tmp_path / f"{t.name}.bin").write_bytes(to_memory(inputs[t.name], t))
        if t.output:
            (tmp_path / f"{t.name}.expected.bin").write_bytes(to_memory(expected[t.name], t))
    command = [compiler(), "-std=c++17", "-O1", "-ffp-contract=off", "-I.", "top.cpp", "testbench.cpp", "-o", "bench"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(["./bench"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("equal bit for bit") == 4
