"""Sizes that each run gives: one machine, several programs."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.base.errors import ProgramError, TensorError
from rsn.host.tasks import run_tasks
from rsn.hw.sim.machine import Machine
from rsn.hw.sim.tasks import TaskMemory
from rsn.isa.overlays.tasks.overlay import program_of, size_values, with_sizes
from rsn.isa.program import Program
from rsn.isa.verify import require
from rsn.scheduler.pack import pack
from rsn.streams.build import ALL, Refused, build
from rsn.streams.check import check, report_on
from rsn.streams.reader import read
from rsn.streams.symbolic.forall import prove

CENTER = """
from rsn.streams import *

rows: Size[{largest}] = 2
n = 3
count = rows * n
x: f32[2 * rows, n]
y: f32[rows * 2, n]
values: Stream[f32, 3]
means: Stream[f32, 1]


@task(mapping=[1], args=[x])
def send(x: f32[2 * rows, n]) -> None:
    for r in range(rows * 2):
        total: f32 = 0.0
        for i in range(n):
            values.put(x[r, i])
            total = total + x[r, i]
        means.put(total / n)


@task(mapping=[1], args=[y])
def center(y: f32[2 * rows, n]) -> None:
    for r in range(2 * count // n):
        mean = means.get()
        for i in range(n):
            if rows > 2:
                cycles(rows)
            y[r, i] = values.get() - mean
"""
"""Rows minus their means, for several numbers of rows."""


def machine(text: str, **sizes: int) -> Program:
    return build(report_on(read(text, "p.py", timed=True, sizes=sizes)))


def fixed(text: str, rows: int) -> str:
    """The program with a constant in place of its size."""
    head, _, rest = text.partition("rows: Size[")
    return f"{head}rows = {rows}{rest[rest.index(chr(10)) :]}"


@pytest.mark.parametrize("largest", [8, 40])
def test_one_machine_has_the_results_and_times_of_a_machine_for_each_value(largest: int) -> None:
    text = CENTER.format(largest=largest)
    at_two = machine(text, rows=2)
    for rows in (1, 2, 3, 7, largest):
        x = np.random.default_rng(rows).normal(size=(2 * rows, 3)).astype(np.float32)
        alone = run_tasks(machine(fixed(text, rows)), {"x": x})
        program = machine(text, rows=rows)
        assert program.overlay.changes == at_two.overlay.changes
        for one in (run_tasks(program, {"x": x}), run_tasks(at_two, {"x": x}, {"rows": rows})):
            np.testing.assert_array_equal(one.outputs["y"], alone.outputs["y"])
            assert one.run.latency_s == alone.run.latency_s
        assert Machine(program).run().latency_s == alone.run.latency_s
    assert program_of(at_two.overlay).sizes == (("rows", largest),)


def test_files_hold_the_machine_and_the_value(tmp_path) -> None:
    program = machine(CENTER.format(largest=8), rows=5)
    text = show(program)
    assert "rows=5" in text
    assert "'rows'" in text
    made = parse(text, "p.rsn")
    read_again = made if isinstance(made, Program) else pack(made)
    container.write(program, tmp_path / "p.bin")
    loaded = container.read(tmp_path / "p.bin")
    for other in (read_again, loaded):
        assert other.preloaded == program.preloaded
        assert other.overlay.changes == program.overlay.changes
        assert size_values(other) == {"rows": 5}
    assert show(with_sizes(loaded, {"rows": 1})) == text.replace("rows=5", "rows=1")
    require(loaded)


def test_values_that_a_size_does_not_have_are_refused() -> None:
    text = CENTER.format(largest=8)
    assert "rows = 9 is not from 1 to 8" in str(report_on(read(text, sizes={"rows": 9})))
    assert "no size n" in str(report_on(read(text, sizes={"n": 1})))
    program = machine(text)
    with pytest.raises(ProgramError, match="rows = 0 is not from 1 to 8"):
        with_sizes(program, {"rows": 0})
    with pytest.raises(ProgramError, match="no size n"):
        with_sizes(program, {"n": 2})
    with pytest.raises(TensorError, match=r"shape \(4, 3\).*f32\[2, 3\]"):
        run_tasks(program, {"x": np.zeros((4, 3), np.float32)}, {"rows": 1})
    lists = {unit: tuple(shot.replace(rows=9) for shot in shots) for unit, shots in program.preloaded.items()}
    program.preloaded.update(lists)  # type: ignore[attr-defined]
    with pytest.raises(ProgramError, match="from 1 to 8"):
        require(program)
    with pytest.raises(ProgramError, match="from 1 to 8"):
        run_tasks(program, {"x": np.zeros((4, 3), np.float32)})


@pytest.mark.parametrize("largest", [2, 8])
def test_a_tensor_of_another_shape_is_not_written(largest: int) -> None:
    memory = TaskMemory(machine(CENTER.format(largest=largest), rows=2))
    for shape in ((1,), (3, 4), (12,)):  # of which NumPy would repeat or rearrange the elements
        with pytest.raises(ValueError, match=r"x is given with shape .*; in this run it has \[4, 3\]"):
            memory.write("x", np.zeros(shape, np.float32))


def test_units_with_different_values_are_refused() -> None:
    program = machine(CENTER.format(largest=8), rows=2)
    changed = {**program.preloaded, "center": (program.preloaded["center"][0].replace(rows=3),)}
    program.preloaded.update(changed)  # type: ignore[attr-defined]
    with pytest.raises(ProgramError, match="center runs with rows = 3, others with 2"):
        run_tasks(program, {"x": np.zeros((4, 3), np.float32)})


def test_a_program_that_hangs_with_one_value_is_found() -> None:
    text = CENTER.format(largest=8).replace("values: Stream[f32, 3]", "values: Stream[f32, 8]")
    text = text.replace("range(n)", "range(rows)").replace("f32[2 * rows, n]", "f32[2 * rows, 16]")
    text = text.replace("f32[rows * 2, n]", "f32[2 * rows, 16]").replace("range(2 * count // n)", "range(2 * rows)")
    assert not check(text).code
    assert prove(text, "p.py", "1 <= rows <= 8").ok
    proof = prove(text.replace("Stream[f32, 8]", "Stream[f32, 6]"), "p.py", "1 <= rows <= 8")
    assert proof.verdict == "counterexample"
    assert proof.sizes == {"rows": 7}


HEAD = """
from rsn.streams import *

rows: Size[{largest}] = 2
x: f32[rows, 4]
y: f32[rows, 4]
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("s: Stream[f32[rows], 2]", "each run gives rows"),
        ("s: Stream[f32, rows]", "each run gives rows"),
        ("s: Stream[f32, 2][rows]", "each run gives rows"),
        ("half = rows / 2", "computed by"),
        ("m: Size[4]", "no value for runs"),
        ("m: Size[4] = 5", "m = 5 is not from 1 to 4"),
        ("m: Size = 5", "states its largest value"),
        ("@task(mapping=[rows])\ndef a() -> None:\n    use(1)", "each run gives rows"),
        ("@task(mapping=[1], rates=dict(matmul=rows))\ndef a() -> None:\n    use(1)", "each run gives rows"),
        ('@task(mapping=[2], args=[x])\ndef a(x: f32[rows, 4] @ Layout("S0R")) -> None:\n    use(x)', "cuts an axis"),
        (
            "@task(mapping=[1], args=[x], double_buffer=True)\ndef a(x: f32[rows, 4]) -> None:\n"
            "    for i in range(rows):\n        use(x[i, :])",
            "double buffers",
        ),
        ("@region()\ndef r() -> None:\n    m: Size[4] = 2\n\n\nr()", "at the top of a file only"),
    ],
)
def test_what_a_machine_has_once_does_not_depend_on_a_size(lines: str, message: str) -> None:
    report = check(HEAD.format(largest=8) + lines + "\n")
    assert message in str(report)
    assert report.findings[0].place is not None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[:, :] = x + 1", "a tile of shape"),
        ("t = zeros(f32, rows, 4)\n    y[0, :] = t[0, :]", "a tile of shape"),
        ("t = x[0:rows, 0:2]\n    y[0, 0:2] = t[0, :]", "a tile of shape"),
        ("for i in meta_for(rows):\n        y[i, :] = x[i, :]", "each run gives rows"),
        ("with meta_if(rows > 2):\n        y[0, :] = x[0, :]", "each run gives rows"),
        ("if rows == 13:\n        y[0, :] = x[0, :] @ x[0:4, :]", "no run with"),
    ],
)
def test_what_has_no_machine_is_refused_with_its_place(body: str, message: str) -> None:
    task = f"\n\n@task(mapping=[1], args=[x, y])\ndef a(x: f32[rows, 4], y: f32[rows, 4]) -> None:\n    {body}\n"
    with pytest.raises(Refused, match=message) as refused:
        machine(HEAD.format(largest=ALL + 1) + task)
    assert refused.value.report.findings[0].place is not None


def test_a_variable_must_not_hide_a_size_of_a_constant() -> None:
    text = (
        HEAD.format(largest=8)
        + """
more = rows * 1


@task(mapping=[1], args=[y])
def a(y: f32[rows, 4]) -> None:
    rows = 1
    for i in range(more):
        y[i, :] = 1.0 * rows
"""
    )
    with pytest.raises(Refused, match="hides"):
        machine(text)


def test_a_stream_has_the_same_ends_in_all_runs() -> None:
    text = (
        HEAD.format(largest=8)
        + """
s: Stream[f32, 2]


@task(mapping=[2])
def send() -> None:
    i = get_tid()
    if (rows > 4) == (i == 1):
        s.put(1.0)


@task(mapping=[1], args=[y])
def store(y: f32[rows, 4]) -> None:
    y[0, 0] = s.get()
"""
    )
    with pytest.raises(Refused, match="ends in send_0 in some runs, and in send_1 in others"):
        machine(text)


def test_beats_fire_apart_where_one_value_needs_it() -> None:
    text = (
        HEAD.format(largest=8)
        + """
a: Stream[f32, 1]
b: Stream[f32, 1]


@task(mapping=[1], args=[x])
def send(x: f32[rows, 4]) -> None:
    for i in range(rows):
        a.put(x[i, 0])
        if rows > 3:
            cycles(0)
        b.put(x[i, 1])


@task(mapping=[1], args=[y])
def store(y: f32[rows, 4]) -> None:
    for i in range(rows):
        y[i, 0] = a.get()
        if rows < 3:
            cycles(0)
        y[i, 1] = b.get()
"""
    )
    for rows in (1, 3, 8):
        x = np.ones((rows, 4), np.float32)
        one = run_tasks(machine(text), {"x": x}, {"rows": rows})
        alone = run_tasks(machine(fixed(text, rows)), {"x": x})
        np.testing.assert_array_equal(one.outputs["y"], alone.outputs["y"])


def test_a_region_takes_sizes_as_arguments() -> None:
    text = (
        HEAD.format(largest=8)
        + """

@region()
def scaled(count: int, factor: int) -> None:
    s: Stream[f32, 2]

    @task(mapping=[1], args=[x])
    def send(x: f32[rows, 4]) -> None:
        for i in range(count):
            s.put(x[i, 0])

    @task(mapping=[1], args=[y])
    def store(y: f32[rows, 4]) -> None:
        for i in range(count):
            y[i, 0] = s.get() * factor


scaled(rows, 3)
"""
    )
    program = machine(text)
    for rows in (1, 8):
        x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(run_tasks(program, {"x": x}, {"rows": rows}).outputs["y"][:, 0], 3 * x[:, 0])
