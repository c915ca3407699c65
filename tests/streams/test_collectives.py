"""All-gathers and reduce-scatters: verdicts, results, times, mappings, and C++."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.streams.build import build, task_program
from rsn.streams.check import check, report_on
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.project import project
from rsn.streams.mapping.graph import mapping_graph
from rsn.streams.placing.devices import VC1902
from rsn.streams.reader import read
from rsn.streams.timing.timed import TimedProgram
from rsn.streams.tree import peers
from rsn.tests.effort import long
from rsn.tests.streams.test_hls import built, compare, well_typed
from rsn.tests.streams.test_layouts import run, task
from rsn.tests.streams.test_time import evaluated, on_the_engine

GEMM = {"a": "f32[12, 8] @ RS0", "b": "f32[8, 6] @ S0R", "c": "f32[12, 6]"}
SUM_OF_COLUMNS = {"a": "i8[4, 8] @ S0R", "c": "i8[8] @ S0"}
LOOP = (
    "for k in range(3):",
    "    p: f32[4, 6] = a[k * 2 : k * 2 + 2, :].allgather(0)",
    "    c[k * 4 : k * 4 + 4, :] = p",
)
WHOLE = ('p: f32[12, 6] @ Layout("RR!") = a @ b', "c[:] = softmax(p)")
SCATTER = "c[:] = (a @ b).reduce_scatter"
CUBE = {"a": "f32[12, 8] @ S1S0", "b": "f32[8, 6] @ S0S2", "c": "f32[12, 6] @ RS2!"}
LARGEST = {"a": "f32[8, 6] @ S1R", "c": "f32[6] @ S1"}
PROGRAMS = {
    "rows": task(f'{SCATTER}("+", 0)', **(GEMM | {"c": "f32[12, 6] @ S0R"})),
    "columns": task(f'{SCATTER}("+", 1)', **(GEMM | {"c": "f32[12, 6] @ RS0"})),
    "gathered": task("c[:] = a.allgather(0)", a="f32[12, 6] @ S0S1", c="f32[12, 6] @ RS1", mapping="[3, 2]"),
    "columns_gathered": task("c[:] = allgather(a + a)", a="f32[12, 6] @ RS1", c="f32[12, 6]", mapping="[2, 3]"),
    "largest": task('c[:] = reduce_max(a, 0).reduce_scatter("max", 0)', **LARGEST),
    "both": task(f'{SCATTER}("+", axis=0).allgather(axis=0)', **GEMM, mapping="[2]"),
    "integers": task('c[:] = reduce_sum(a, 0).reduce_scatter("+", 0)', **SUM_OF_COLUMNS, mapping="[4]"),
    "in_a_loop": task(*LOOP, a="f32[12, 6] @ S0R", c="f32[12, 6]", mapping="[2]"),
    "asked": task("c[:] = a @ b", **(GEMM | {"c": "f32[12, 6] @ S0R!"})),
    "asked_whole": task(*WHOLE, **GEMM),
    "loaded_whole": task('p: f32[12, 8] @ Layout("RR!") = a', "c[:] = softmax(p)", a=GEMM["a"], c="f32[12, 8]"),
    "asked_thrice": task("c[:] = a @ b", **CUBE, mapping="[2, 3, 2]"),
}


def inputs(text: str, seed: int = 1) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    out = {}
    for tensor in read(text).tensors:
        if tensor.name != "C":
            values = random.normal(size=tensor.type.shape) * 20
            out[tensor.name] = values.astype(np.int8 if tensor.type.dtype == "i8" else np.float32)
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_whole_tensors(name: str) -> None:
    text = PROGRAMS[name]
    given = inputs(text)
    a, b = given["A"], given.get("B")
    expected: dict[str, Callable[[], Any]] = {
        "gathered": lambda: a,
        "columns_gathered": lambda: a + a,
        "largest": lambda: a.max(axis=0),
        "integers": lambda: a.sum(axis=0, dtype=np.int8),
        "in_a_loop": lambda: np.concatenate([a[[2 * k, 2 * k + 1, 2 * k + 6, 2 * k + 7]] for k in range(3)]),
        "asked_whole": lambda: softmax(a @ b, axis=1),
        "loaded_whole": lambda: softmax(a, axis=1),
    }
    wanted = expected.get(name, lambda: a @ b)()
    assert np.allclose(run(text, **given)["C"], wanted, rtol=1e-4, atol=1e-3)


def test_a_scattered_sum_has_the_bits_of_an_all_reduce() -> None:
    mapping = "[6]"
    tensors = {"a": "f32[12, 96] @ RS0", "b": "f32[96, 6] @ S0R"}
    one = task('c[:] = (a @ b).reduce_scatter("+", 1)', **tensors, c="f32[12, 6] @ RS0", mapping=mapping)
    other = task('c[:] = (a @ b).allreduce("+")', **tensors, c="f32[12, 6]", mapping=mapping)
    assert run(one, **inputs(one))["C"].tobytes() == run(other, **inputs(other))["C"].tobytes()


def test_each_instance_gets_what_the_others_put_to_it() -> None:
    for others in range(1, 6):
        columns = {
            (k, [to for to in range(others + 1) if to != k].index(m)): m
            for k in range(others + 1)
            for m in range(others + 1)
            if m != k
        }
        for member in range(others + 1):
            assert [columns[end] for end in peers(member, others)] == [member] * others


SUMS = "reduce_sum(reduce_sum(a, 0, keepdims=True), 1, keepdims=True)"
BAD = [
    ("a.allgather(0)", {"a": "RR"}, "layout", "which is not cut"),
    ("a.allgather()", {"a": "RR"}, "layout", "of which 0 axes are cut"),
    ("a.allgather()", {"a": "S0S1"}, "layout", "of which 2 axes are cut"),
    ("a.allgather(2)", {"a": "S0R"}, "index", "axis 2 of a tile with 2 axes"),
    ("a.allgather('0')", {"a": "S0R"}, "type", "an axis is an integer"),
    ("a.allgather(0, 1)", {"a": "S0R"}, "unsupported", "allgather takes (x, axis)"),
    ("zeros(f32, 8, 8).allgather(0)", {"a": "S0R"}, "layout", "it is equal on all instances"),
    ("local(a).allgather(0)", {"a": "S0R"}, "layout", "it is a value of the instance's own"),
    ("a.reduce_scatter('+', 0)", {"a": "RR"}, "pending", "not pending over any mesh axis"),
    ("(a @ a.T).reduce_scatter('max', 0)", {"a": "RS0"}, "pending", "not pending over any mesh axis"),
    ("(a @ a.T).reduce_scatter('+', 0, mesh_axis=1)", {"a": "RS0"}, "pending", "not pending over mesh axis 1"),
    ("(a @ a.T).reduce_scatter('+')", {"a": "RS0"}, "unsupported", "and an axis"),
    ("(a @ a.T).reduce_scatter('-', 0)", {"a": "RS0"}, "unsupported", 'takes "+" or "max"'),
    ("reduce_sum(a, 0, keepdims=True).reduce_scatter('+', 0)", {"a": "S0R"}, "layout", "no multiple of 2"),
    ("reduce_sum(a, 0).reduce_scatter('+', 0)", {"a": "S0S1"}, "layout", "which mesh axis 1 cuts"),
    (f"{SUMS}.reduce_scatter('+', 0)", {"a": "S0S1"}, "pending", "state along which one"),
]


@pytest.mark.parametrize(("body", "labels", "code", "message"), BAD)
def test_what_is_refused(body: str, labels: dict[str, str], code: str, message: str) -> None:
    report = check(task(f"use({body})", a=f"f32[8, 8] @ {labels['a']}"))
    assert report.code == code, str(report)
    assert message in str(report)


@pytest.mark.parametrize(
    ("body", "before", "after", "code"),
    [
        # neither a cut of copies nor an all-to-all is inserted
        ("c[:] = a", "RR", "S0R!", "layout"),
        ("c[:] = a", "S0R", "RS0!", "layout"),
        ("c[:] = a", "S0R", "RR", "layout"),
        ("c[:] = a", "S0R", "RR!", ""),
        ("p: f32[8, 8] @ Layout('RR!') = a\n    c[:] = p", "S0S1", "RR", ""),
        ("p: f32[8, 8] @ Layout('RR') = a\n    c[:] = p", "S0S1", "RR", "layout"),
        # a machine does what stands at one place once, before one store
        ("x, c[:] = 1, a", "S0R", "RR!", "layout"),
        ("x = c[:] = a", "S0R", "RR!", "layout"),
        ("for k in range(2):\n        c[:] = a", "S0R", "RR!", "layout"),
        ("if data():\n        c[:] = a", "S0R", "RR!", "layout"),
    ],
)
def test_what_is_inserted(body: str, before: str, after: str, code: str) -> None:
    report = check(task(body, a=f"f32[8, 8] @ {before}", c=f"f32[8, 8] @ {after}"))
    assert report.code == code, str(report)
    assert any(f.code == "inserted" for f in report.findings) == (not code)


def test_a_result_is_completed_and_gathered() -> None:
    text = task("return reduce_sum(a, 1)", a="f32[8, 4] @ S0S1").replace("):", ') -> f32[8] @ Layout("R!"):')
    report = check(text, "prog.py")
    assert str(report) == (
        'prog.py:5:12: note: inserted before the store: reduce_sum(a, 1).allreduce("+", axes=(1,)).allgather(axis=0) '
        "[inserted]\n"
        "    return reduce_sum(a, 1)\n"
        "           ^^^^^^^^^^^^^^^^\n"
        "note: the layout of return asks for it\n"
        "note: return: S0 with + over mesh axis 1 pending to S0 by all-reduce: 64 bytes move\n"
        "note: return: S0 to R by all-gather: 64 bytes move"
    )
    build(report)


def test_who_does_not_take_part_is_named() -> None:
    text = task("p = a.allgather(0)", "use(p)", a="f32[8, 4] @ S0R", mapping="[3]").replace("[8, 4]", "[9, 4]")
    text = text.replace("p = a", "with meta_if(get_tid() != 1):\n        p = a").replace("    use(p)", "    use(a)")
    report = check(text, "prog.py")
    assert report.code == "starved"
    assert "an all-gather is complete when all instances that it joins have come to it" in str(report)


RATES = {"matmul": 8.0, "elements": 4.0}


@pytest.mark.parametrize("rates", [{}, RATES])
@pytest.mark.parametrize("name", PROGRAMS)
def test_times_are_those_of_the_machine(name: str, rates: dict[str, float]) -> None:
    assert on_the_engine(PROGRAMS[name], rates) == pytest.approx(evaluated(PROGRAMS[name], rates))


LARGE = {"a": "f32[96, 64] @ RS0", "b": "f32[64, 96] @ S0R"}


@pytest.mark.parametrize(
    "text",
    [
        long(task(f'{SCATTER}("+", 0)', **LARGE, c="f32[96, 96] @ S0R", mapping="[4]")),
        long(task("c[:] = (a + a).allgather(0)", a="f32[96, 64] @ S0R", c="f32[96, 64]", mapping="[4]")),
    ],
)
def test_the_source_has_the_cycles_of_the_model(text: str, tmp_path: Path) -> None:
    """Within a tenth, and what code that is no loop takes in an iteration."""
    region = read(text, timed=True, rates={"matmul": 64.0, "elements": 8.0})
    made = project(cpp_program(task_program(report_on(region).region)), VC1902)
    for file, written in made.items():
        (tmp_path / file).write_text(written, encoding="utf-8")
    modelled = max(TimedProgram([instance.beats for instance in region.instances], {}).code.cycles)
    derived = max(counted.cycles for _, counted in check_folder(tmp_path).processes)
    assert derived == pytest.approx(modelled, rel=0.1, abs=50)


@pytest.mark.parametrize("name", ["rows", "gathered"])
def test_groups_are_exchanges_of_the_mapping(name: str) -> None:
    graph = mapping_graph(report_on(read(PROGRAMS[name])).region)
    assert graph.exchanges == set(graph.edges)
    assert len(graph.edges) == {"rows": 4, "gathered": 12}[name]


@pytest.mark.long
def test_c_plus_plus_has_the_same_results(tmp_path: Path) -> None:
    given = well_typed(PROGRAMS, len(PROGRAMS))
    assert len(given) == len(PROGRAMS)
    assert compare(built(tmp_path, given))["equal"] == len(PROGRAMS)
