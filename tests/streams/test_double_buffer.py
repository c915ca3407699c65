"""Double buffering: parts that load, compute and store at the same time give the results of one task, sooner."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from rsn.host.tasks import run_tasks
from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.isa.overlays.tasks.overlay import runnable
from rsn.isa.overlays.tasks.program import TaskProgram
from rsn.streams.build import task_program
from rsn.streams.check import check, report_on
from rsn.streams.datapath import KernelVariant
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.project import project
from rsn.streams.mapping.graph import cycles
from rsn.streams.placing.devices import VC1902
from rsn.streams.reader import read
from rsn.tests.effort import cases, in_both, long
from rsn.tests.streams.double_buffered import BODIES, drawn, marked
from rsn.tests.streams.test_hls import built, compare, drawn_inputs
from rsn.tests.streams.test_time import evaluated, on_the_engine

RATES = {"matmul": 64.0, "elements": 16.0}
ROWS = """from rsn.streams import *
X: f32[{n} * 16, 64]
W: f32[64, 64]
Y: f32[{n} * 16, 64]
@task(mapping=[1], args=[X, W, Y]{{mark}})
def f(x: f32[{n} * 16, 64], w: f32[64, 64], y: f32[{n} * 16, 64]) -> None:
    v = w[:, :]
    for i in range({n}):
        y[i * 16 : i * 16 + 16, :] = x[i * 16 : i * 16 + 16, :] @ v
"""


def program_of(text: str) -> TaskProgram:
    report = report_on(read(text, timed=True, rates=RATES))
    assert not report.code, f"{report}\n{text}"
    return task_program(report.region)


def findings(lines: str, parameters: str = "x: f32[8, 4], y: f32[8, 4]", args: str = "X, Y") -> str:
    body = "".join(f"    {line}\n" for line in lines.split("\n"))
    text = f"""from rsn.streams import *
X: f32[8, 4]
Y: f32[8, 4]
K: i32[8]
def scaled(tile):
    return 2 * tile
@task(mapping=[1], args=[{args}], double_buffer=True)
def f({parameters}) -> None:
{body}"""
    return str(check(text))


@in_both
@pytest.mark.parametrize("kind", BODIES)
def test_results_are_equal_and_come_no_later(kind: str) -> None:
    random = Random(kind)
    for number in range(cases(60, 3)):
        text, n = drawn(random, kind)
        plain, divided = marked(text)
        first = program_of(plain)
        inputs = drawn_inputs(first, number)
        expected = run_tasks(runnable(first), inputs).outputs
        second = program_of(divided)
        assert {task.name for task in second.tasks} == {"f", "f.load", "f.store"}
        found = run_tasks(runnable(second), inputs).outputs
        assert found.keys() == expected.keys()
        for tensor, value in expected.items():
            assert found[tensor].tobytes() == value.tobytes(), (tensor, text)
        if kind == "branches":  # data decide the time
            continue
        time = evaluated(divided, RATES)
        assert time == pytest.approx(on_the_engine(divided, RATES)), text
        if n >= 4 and kind != "whole":
            assert time <= evaluated(plain, RATES), text


def test_the_time_tends_to_that_of_the_slowest_part() -> None:
    """Of n iterations, the slowest part takes n, and the others what one iteration takes of them."""
    rest = set()
    for n in (2, 8, 64):
        plain, divided = marked(ROWS.format(n=n))
        parts = {i.name: cycles(i.beats) for i in read(divided, timed=True, rates=RATES).instances}
        rest.add(evaluated(divided, RATES) - max(parts.values()))
        assert evaluated(divided, RATES) < evaluated(plain, RATES)
    assert len(rest) == 1


@pytest.mark.long
def test_the_source_gives_the_results_of_the_simulator(tmp_path: Path) -> None:
    random = Random(5)
    texts = {f"{kind.replace(' ', '_')}_{k}": drawn(random, kind)[0] for kind in BODIES for k in range(cases(4, 1))}
    found = compare(built(tmp_path, {name: program_of(marked(text)[1]) for name, text in texts.items()}))
    assert found["equal"] == len(texts)


@long
def test_the_source_has_the_cycles_of_the_model(tmp_path: Path) -> None:
    random = Random(6)
    for number, kind in enumerate(kind for kind in BODIES if kind != "branches"):
        text = marked(drawn(random, kind)[0])[1]
        region = read(text, timed=True, rates=RATES)
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, of_file in project(cpp_program(program_of(text)), VC1902).items():
            (folder / name).write_text(of_file, encoding="utf-8")
        report = check_folder(folder)
        assert not report.findings, text
        derived = {name: counted.cycles for name, counted in report.processes}
        for instance in region.instances:
            name = instance.task.name.replace(".", "_")
            assert derived[name] == pytest.approx(cycles(instance.beats), rel=0.1, abs=60), (name, text)


def test_parts_and_buffers() -> None:
    region = read(marked(ROWS.format(n=4))[1])
    assert [instance.name for instance in region.instances] == ["f", "f.load", "f.store"]
    assert [(s.name, str(s.type), s.depth) for s in region.streams] == [
        ("f.w", "f32[64, 64]", 1),
        ("f.x", "f32[16, 64]", 2),
        ("f.y", "f32[16, 64]", 2),
    ]
    assert [[p.name for p in task.parameters] for task in region.tasks] == [[], ["x", "w"], ["y"]]


def test_a_load_ahead_of_a_store_is_a_race() -> None:
    text = findings("for i in range(2):\n    y[:, :] = y[:, :] + x[:, :]")
    assert "f.load reads it here, f.store stores it in line 10, and no token orders the two [race]" in text
    assert "note: loads of a double buffered task run ahead of its stores, and stores come behind its tokens" in text
    assert not findings("for i in range(2):\n    y[4 * i : 4 * i + 4, :] = y[4 * i : 4 * i + 4, :] + x[0:4, :]")


def test_a_store_behind_a_token_is_a_race() -> None:
    """The token of `f` does not wait for `f.store`."""
    text = """from rsn.streams import *
X: f32[8, 4]
Y: f32[8, 4]
done: Stream[boolean, 2]
@task(mapping=[1], args=[X]{mark})
def f(x: f32[8, 4]) -> None:
    x[:, :] = x[:, :] * 2.0
    done.put(True)
@task(mapping=[1], args=[X, Y])
def g(x: f32[8, 4], y: f32[8, 4]) -> None:
    drop(done.get())
    y[:, :] = x[:, :]
"""
    assert [check(one).code for one in marked(text)] == ["", "race"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("t = zeros(f32, 2, 2)\nuse(t)", "it neither loads nor stores"),
        ("for i in range(8):\n    y[i, 0] = x[i, 0]", "it loads and stores no tile"),
        ("t = x\ny[:, :] = t[:, :]", "this is another name for x"),
        ("if data():\n    y[:, :] = x[:, :]", "data decide whether it accesses tensors"),
        ("k = x[0, 0]\nwhile k < 3.0:\n    y[:, :] = x[:, :]\n    k = k + 1.0", "data decide how often"),
        ("while x[0, 0] < 3.0:\n    pass\ny[:, :] = x[:, :]", "data decide how often"),
        ("k = 0\nif data():\n    k = 4\ny[0:4, :] = x[k : k + 4, :]", "data decide where it accesses tensors"),
        ("for i in range(2):\n    if i == 1:\n        break\n    y[:, :] = x[:, :]", "break decides"),
        ("y[:, :] = x[:, :] if data() else zeros(f32, 8, 4)", "a condition decides whether this is loaded"),
        ("y[:, :] = scaled(x)", "scaled may store into x"),
        ("y[:, :] = scaled(x[:, :])", "the type of this access is not known"),
        ("for i in range(1, 3):\n    use(x[0 : 2 * i, :])", "the type of this access is not known"),
        ("y[:, :] = (x[:, :] @ transpose(y[:, :])).allreduce('+') @ y[:, :]", "it has a collective"),
    ],
)
def test_what_cannot_be_divided(lines: str, why: str) -> None:
    found = findings(lines)
    assert f"f cannot be double buffered: {why}" in found
    assert "[unsupported]" in found


def test_the_mark_is_true_or_false() -> None:
    text = ROWS.format(n=2)
    assert "double_buffer= is True or False" in str(check(text.replace("{mark}", ", double_buffer=2")))
    assert not check(text.replace("{mark}", ", double_buffer=False")).region.streams


def test_random_numbers_of_other_tasks_stay() -> None:
    text = """from rsn.streams import *
X: f32[8, 4]
Y: f32[8, 4]
Z: f32[8]
@task(mapping=[1], args=[X, Y]{mark})
def f(x: f32[8, 4], y: f32[8, 4]) -> None:
    y[:, :] = x[:, :] * 2.0
@task(mapping=[1], args=[Z])
def g(z: f32[8]) -> None:
    for i in range(8):
        z[i] = 1.0 if data() else 2.0
"""
    inputs = {"X": np.ones((8, 4), np.float32)}
    one, two = (run_tasks(runnable(program_of(t)), inputs).outputs["Z"] for t in marked(text))
    np.testing.assert_array_equal(one, two)


def test_notes_show_what_the_program_has() -> None:
    """A tile of a buffer is shown as the access that it stands for."""
    variant = KernelVariant("gemm", "matmul", (16, 16, 16), 4, 4, layouts=("4x4", "columns"))
    report = report_on(read(marked(ROWS.format(n=4).replace("@ v", "@ w[:, :]"))[1], timed=True, variants=(variant,)))
    assert not report.code
    found = str(report)
    assert "note: x[i * 16:i * 16 + 16, :] is copied to lie in blocks of 4x4" in found
    assert "note: w[:, :] arrives by columns, so it is not copied" in found


def test_a_load_that_nothing_reads_is_no_mistake() -> None:
    for last in ("t = x[:, :]", "t = x[:, :]\nif data():\n    use(t)", "drop(x[:, :])"):
        assert not findings(f"y[:, :] = x[:, :]\n{last}"), last
