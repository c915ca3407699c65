"""Accesses to shared tensors: what the check says is what all interleavings say."""

from __future__ import annotations

import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import TensorError
from rsn.host.tasks import run_tasks
from rsn.isa.overlays.tasks.overlay import program_of, runnable
from rsn.scheduler.pack import pack
from rsn.streams.access_order.finding import race_findings
from rsn.streams.build import build, task_program
from rsn.streams.check import Report, check
from rsn.streams.hls.emit import cpp_program
from rsn.streams.mapping.errors import MappingError
from rsn.streams.mapping.graph import mapping_graph
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.mapping.primitives import chain
from rsn.streams.mapping.proof import check_mapped, prove
from rsn.tests.effort import cases, in_both, long
from rsn.tests.streams.interleavings import SIZE, SharedProgram, drawn
from rsn.tests.streams.test_hls import built, compare, well_typed

PRINTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "races.toml").read_text(encoding="utf-8"))
PAIR = """from rsn.streams import *
x: f32[4]
s: Stream[f32, 2]
@task(mapping=[1], args=[x])
def a(x: f32[4]) -> None:
    s.put(1.0)
    x[0] = 1.0
@task(mapping=[1], args=[x])
def b(x: f32[4]) -> None:
    drop(s.get())
    use(x[0])
"""
SHIFT = """from rsn.streams import *
x: f32[32, 16]
y: f32[32, 16]
s: Stream[f32[31, 16], 2]
@task(mapping=[1], args=[x])
def a(x: f32[32, 16]) -> None:
    s.put(x[0:31, :])
@task(mapping=[1], args=[x, y])
def b(x: f32[32, 16], y: f32[32, 16]) -> None:
    x[1:32, :] = s.get()
"""
START = {"x": [float(100 + k) for k in range(SIZE)], "y": [float(200 + k) for k in range(SIZE)]}


@pytest.mark.parametrize("name", PRINTED)
def test_as_printed(name: str) -> None:
    report = check("from rsn.streams import *\n" + PRINTED[name]["program"], f"{name}.py")
    assert str(report) == PRINTED[name]["printed"].strip()


@pytest.mark.parametrize("read", ["x[0]", "x[0:4:2]", "x[3]"])
@pytest.mark.parametrize(
    ("body", "elements"),
    [
        (["v = x", "v[0] = 1.0"], {0}),
        (["for t in (x, y):", "    t[0] = 1.0"], {0}),
        (["t = x if data() else y", "t[0] = 1.0"], {0}),
        (["if data():", "    return", "x[0] = 1.0"], {0}),
        (["for i in range(4):", "    if data():", "        break", "    x[i] = 1.0"], {0, 1, 2, 3}),
        (["for i in range(4):", "    if data():", "        continue", "    x[i] = 1.0"], {0, 1, 2, 3}),
        (["i = 0", "while data():", "    x[i % 4] = 1.0", "    i = i + 1"], {0, 1, 2, 3}),
        (["for i in range(3, 0, -1):", "    x[i] = 1.0"], {1, 2, 3}),
        (["k: i32 = 0", "for i in range(3):", "    x[k] = 1.0", "    k = k + 1"], {0, 1, 2}),
        (["for p in grid(2, 2):", "    x[p[0] * 2 + p[1]] = 1.0"], {0, 1, 2, 3}),
        (["for i in range(4):", "    if i * i % 3 == 1:", "        x[i] = 1.0"], {1, 2}),
        (["x[0] += 1.0"], {0}),
        (["x[1:4:2] = full(f32, 1.0, 2)"], {1, 3}),
        (["x[min(3, 7)] = 1.0"], {3}),
    ],
)
def test_what_a_task_stores(body: list[str], elements: set[int], read: str) -> None:
    text = "from rsn.streams import *\nx: f32[4]\ny: f32[4]\n@task(mapping=[1], args=[x, y])\n"
    text += "def a(x: f32[4], y: f32[4]) -> None:\n" + "".join(f"    {line}\n" for line in body)
    text += f"@task(mapping=[1], args=[x])\ndef b(x: f32[4]) -> None:\n    use({read})\n"
    seen = {"x[0]": {0}, "x[0:4:2]": {0, 2}, "x[3]": {3}}[read]
    assert check(text).code == ("race" if seen & elements else ""), str(check(text))


LARGE = """from rsn.streams import *
x: f32[1000000]
s: Stream[f32, 2]
@task(mapping=[1], args=[x])
def a(x: f32[1000000]) -> None:
    for i in range(1000000):
        {store}
        if i % 16 == {last}:
            s.put(1.0)
@task(mapping=[1], args=[x])
def b(x: f32[1000000]) -> None:
    for i in range(62500):
        drop(s.get())
        for j in range(16):
            {read}
"""


@pytest.mark.parametrize(
    ("store", "last", "read", "code"),
    [
        ("x[i] = 1.0", 15, "use(x[16 * i + j])", ""),
        ("x[i] = 1.0", 14, "use(x[16 * i + j])", "race"),
        ("x[i] = 1.0", 14, "use(x[16 * i + j] if j < 15 else 0)", ""),
        ("x[i] = 1.0", 14, "use(x[16 * i + j] if i < 62499 or j < 15 else 0)", "race"),
        ("x[i if i < 999999 else 0] = 1.0", 15, "use(x[16 * i + j])", "race"),
        ("x[i // 2 * 2] = 1.0", 15, "use(x[16 * i + j] if j % 2 else 0)", ""),
        ("x[i // 2 * 2] = 1.0", 13, "use(x[16 * i + j] if j % 2 else 0)", ""),
        ("x[i // 2 * 2] = 1.0", 13, "use(x[16 * i + 15 - j] if j % 2 else 0)", "race"),
    ],
)
def test_a_million_elements_are_not_walked(store: str, last: int, read: str, code: str) -> None:
    report = check(LARGE.format(store=store, last=last, read=read))
    assert report.code == code, str(report)


@in_both
def test_a_race_is_found_if_and_only_if_two_interleavings_differ() -> None:
    """Where data decide, no race is missed. Programs without a race give what any interleaving gives."""
    verdicts = {True: 0, False: 0}
    for seed in range(cases(10_000, 100, share=80)):
        program = drawn(seed)
        report = check(program.text)
        if report.code not in ("", "race") or not program.small:
            continue
        expected = program.races()
        found = report.code == "race"
        assert found == expected or (found and program.by_data), (seed, expected, program.text, str(report))
        verdicts[expected] += 1
        if not found and not program.by_data:
            _same_results(program, report)
    assert min(verdicts.values()) > cases(10_000, 100, share=80) // 10


def _same_results(program: SharedProgram, report: Report) -> None:
    built = build(report)
    tensors = program_of(built.overlay).tensors
    inputs = {t.name: np.array(START[t.name], np.float32) for t in tensors if t.input}
    expected = program.results(START)
    for name, values in run_tasks(pack(built), inputs).outputs.items():
        if name in inputs or name.startswith("out"):
            assert values.tolist() == expected[name], (name, program.text)


def test_the_order_of_a_unit_counts_after_mapping() -> None:
    """A mapping adds orders: of instances that one unit runs one after the other, not of those that it fuses."""
    region = check(PAIR).region
    (found,) = race_findings(region)
    assert (found.code, found.subject) == ("race", "x")
    assert race_findings(region, [[[0], [1]]]) == []
    assert race_findings(region, [[[0, 1]]]) == [found]


def test_a_mapping_is_checked_and_takes_no_order_away() -> None:
    """Chains of programs that are in order are in order, on every pair of instances."""
    tried = 0
    for seed in range(cases(2_000, 60)):
        report = check(drawn(seed).text)
        if report.code:
            continue
        mapped = Mapped.start(mapping_graph(report.region))
        for one, two in combinations([node.name for node in mapped.graph.nodes], 2):
            try:
                made = chain(mapped, one, two)
            except MappingError:
                continue
            assert check_mapped(made).code == "", (seed, one, two)
            tried += 1
    assert tried > cases(2_000, 60) // 20


def test_a_mapping_that_breaks_the_order_is_refused() -> None:
    """`prove` looks at accesses itself: the mapping of a program that the check refuses is refused, too."""
    graph = mapping_graph(check(PAIR).region)
    apart = prove(Mapped.start(graph)).report
    assert apart.code == "race"
    assert apart.findings[0].message.startswith("after mapping, x[0]: b reads it here, a stores it in line 7")
    assert prove(chain(Mapped.start(graph), "a", "b")).ok


def test_a_tile_is_got_as_a_whole_before_it_overwrites_what_others_read() -> None:
    """On a machine in C++ a tile goes in words: if each were stored as it comes, `a` would read what `b` has stored."""
    moved = {}
    for text in (SHIFT, SHIFT.replace("    x[1:32", "    y[1:32")):
        report = check(text)
        assert report.code == ""
        moved[text] = "rsn::receive" in cpp_program(task_program(report.region), "shift").text
    assert list(moved.values()) == [False, True]


@pytest.mark.parametrize("store", ["x[0] = 1.0", "v = x; v[0] = 1.0"])
def test_a_tensor_that_is_read_is_an_input_and_one_that_is_stored_an_output(store: str) -> None:
    """So no element is read that has no value: the run asks for it."""
    text = PAIR.replace("    s.put(1.0)\n    x[0] = 1.0", f"    {store}\n    s.put(1.0)")
    program = task_program(check(text).region)
    (tensor,) = program.tensors
    assert (tensor.input, tensor.output) == (True, True)
    with pytest.raises(TensorError, match="the input x is missing"):
        run_tasks(runnable(program), {})


@long
def test_native_runs_give_what_any_interleaving_gives(tmp_path: Path) -> None:
    drawn_programs = (drawn(seed) for seed in range(1000))
    texts = {f"program_{k}": p.text for k, p in enumerate(drawn_programs) if not p.by_data and len(p.bodies) < 4}
    regions = built(tmp_path, well_typed(texts, 40))
    for _ in range(5):
        assert compare(regions)["failed"] == 0
