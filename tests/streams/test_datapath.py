"""The cycles of tasks with rates: on the engine, in beats, and as the checker of HLS sources derives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rsn.base.element_types import ElementType
from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.streams.build import task_program
from rsn.streams.check import report_on
from rsn.streams.datapath import Datapath, LoopCycles, Unwritten
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.project import project
from rsn.streams.placing.devices import VC1902
from rsn.streams.reader import read
from rsn.streams.timing.timed import TimedProgram
from rsn.streams.words import SUMS, TileWord, word
from rsn.tests.effort import cases, in_both, in_full
from rsn.tests.streams.test_time import evaluated, on_the_engine

ROWS = (
    "softmax({x})",
    "layernorm({x})",
    "rmsnorm({x})",
    "{x} - reduce_max({x}, 1, keepdims=True)",
    "{x} / reduce_sum({x}, 1, keepdims=True)",
)
ELEMENTS = ("{x} + {y}", "exp({x}) * {y}", "gelu({x} - 1.5)", "maximum({x}, {y})", "scale({x}, 0.5)", "-{x}")
PRODUCTS = ("{x} @ w", "{x} + {y} @ w", "({x} @ w) * 2.0", "{y} @ transpose(v.get()) @ v.get()", "{x} @ w.T")
SHAPES = ((8, 16), (16, 64), (4, 8), (32, 48), (1, 64))


def drawn(random: Random) -> str:
    """A task between a load and a store, that computes what is drawn on each of some tiles."""
    rows, columns = random.choice(SHAPES)
    rates = {"elements": random.choice([1, 4, 16, 64])}
    if random.random() < 0.8:
        rates["matmul"] = random.choice([1, 8, 64, 200])
    if random.random() < 0.4:
        rates[random.choice(["add", "softmax", "exp", "mul"])] = random.choice([2, 8, 32])
    lines, more = [], 0
    for name in random.sample("abcde", random.randint(1, 4)):
        step = random.choice(random.choice((ROWS, ELEMENTS, PRODUCTS)))
        x, y = random.choice(["t", "u"]), random.choice(["t", "u"])
        more += step.count("v.get()")
        lines.append(f"        {name} = {step.format(x=x, y=y)}")
        lines.append(f"        {random.choice(['t', 'u'])} = {name}")
    tokens = 3
    stated = ", ".join(f"{kernel}={rate}" for kernel, rate in rates.items())
    parts = [
        "from rsn.streams import *",
        f"X: f32[{tokens}, {rows}, {columns}]",
        f"W: f32[{columns}, {columns}]",
        f"V: f32[{columns}, {columns}]",
        f"Y: f32[{tokens}, {rows}, {columns}]",
        f"s = Stream[f32[{rows}, {columns}], 2]",
        f"v = Stream[f32[{columns}, {columns}], 2]" if more else "",
        f"r = Stream[f32[{rows}, {columns}], 2]",
        "@task(mapping=[1], args=[X])",
        f"def load(x: f32[{tokens}, {rows}, {columns}]) -> None:",
        f"    for i in range({tokens}):",
        "        s.put(x[i])",
        "@task(mapping=[1], args=[V], rates=dict(elements=64))" if more else "",
        f"def bring(x: f32[{columns}, {columns}]) -> None:" if more else "",
        f"    for i in range({tokens * more}):" if more else "",
        "        v.put(x[:, :])" if more else "",
        f"@task(mapping=[1], args=[W], rates=dict({stated}))",
        f"def work(z: f32[{columns}, {columns}]) -> None:",
        "    w = z[:, :]",
        f"    u = zeros(f32, {rows}, {columns})",
        f"    for i in range({tokens}):",
        "        t = s.get()",
        "        u = u + t",
        *lines,
        f"        r.put({random.choice(['t + u', 't', 'u'])})",
        "@task(mapping=[1], args=[Y], rates=dict(elements=64))",
        f"def store(y: f32[{tokens}, {rows}, {columns}]) -> None:",
        f"    for i in range({tokens}):",
        "        y[i] = r.get()",
    ]
    return "\n".join(part for part in parts if part) + "\n"


@in_both
def test_tasks_take_the_same_time_on_the_engine_and_in_beats() -> None:
    random = Random(47)
    for _ in range(cases(400, 15)):
        text = drawn(random)
        assert not report_on(read(text)).code, text
        assert on_the_engine(text, {}) == pytest.approx(evaluated(text, {})), text


def busy(text: str, rates: Mapping[str, float]) -> dict[str, int]:
    """Cycles of each instance, by the name of its task."""
    region = read(text, timed=True, rates=rates)
    cycles = TimedProgram([instance.beats for instance in region.instances], {}).code.cycles
    return dict(zip((instance.task.name for instance in region.instances), cycles, strict=True))


@pytest.mark.long
@in_full
def test_the_source_has_the_cycles_of_the_model(tmp_path: Path) -> None:
    """Within a tenth, and what code that is no loop takes in an iteration."""
    random = Random(48)
    for number in range(cases(60, 6)):
        text = drawn(random)
        folder = tmp_path / str(number)
        folder.mkdir()
        made = project(cpp_program(task_program(report_on(read(text)).region)), VC1902)
        for name, of_file in made.items():
            (folder / name).write_text(of_file, encoding="utf-8")
        report = check_folder(folder)
        assert not report.findings, text
        derived = {name: counted.cycles for name, counted in report.processes}
        modelled = busy(text, {})
        for task in ("work", "bring", "store"):
            if task in modelled:
                assert derived[task] == pytest.approx(modelled[task], rel=0.1, abs=200), (task, text)


@pytest.mark.parametrize(
    ("statement", "taken"),
    [("y[:] = v @ w", 13), ("y[:] = w @ v", 13), ("y[0] = v @ v", 13), ("y[:] = w @ other(v)", 0)],
)
def test_products_with_vectors(statement: str, taken: int) -> None:
    """A vector is a matrix of one row, or of one column: 4 steps, of 3 cycles each, and 4 for the depth."""
    text = """from rsn.streams import *
A: f32[4]
B: f32[4, 4]
Y: f32[4]
@task(mapping=[1], args=[A, B, Y], rates=dict(matmul=4))
def f(a: f32[4], b: f32[4, 4], y: f32[4]) -> None:
    v, w = a[:], b[:, :]
"""
    assert busy(f"{text}    {statement}\n", {})["f"] - busy(f"{text}    y[:] = v\n", {})["f"] == taken


def test_products() -> None:
    path = Datapath({"matmul": 256}, float_add=6)
    assert path.multiply_adds(ElementType("f32", (32, 64))) == 256
    assert path.product(ElementType("f32", (32, 64)), 64).total == 64 * 8 + 8
    # A sum is added to every 8 cycles: 16 x 16 sums keep 32 multiply-adds busy, 64 in registers keep 8.
    assert path.multiply_adds(ElementType("f32", (16, 16))) == 32
    assert path.multiply_adds(ElementType("f32", (1, 64))) == 8
    assert path.product(ElementType("f32", (1, 64)), 64).total == 63 * 8 + 9
    # Integers in registers are added to in each cycle: all of them, or words of them in turn.
    integers = Datapath({"matmul": 256})
    assert integers.multiply_adds(ElementType("i32", (16, 16))) == 256
    assert integers.product(ElementType("i32", (16, 16)), 64, before=1).total == 64 + 3
    assert integers.product(ElementType("i32", (32, 16)), 64).total == 2 * 64 + 2
    assert Datapath({"matmul": 1 << 14}).multiply_adds(ElementType("i32", (64, 128))) == SUMS // 2 * 2


def test_passes() -> None:
    path = Datapath({"elements": 16})
    tile = ElementType("f32", (32, 64))
    assert path.got(tile) == path.put(tile, Unwritten()).total + 1 == 33
    assert path.elements(tile, Unwritten(16)).total == 128 + 1
    assert path.elements(ElementType("f32", (4, 4)), Unwritten(16)).total == 0  # one word is a part of the beat
    assert path.moved(tile, 64) == 128
    assert path.moved(ElementType("f32", (32, 60)), 60) == 32 * 15  # words of 4 elements


def test_more_units_take_no_cycles_from_the_depths_of_loops() -> None:
    random = Random(5)
    for _ in range(cases(400, 100)):
        kind = ElementType("f32", (random.choice([1, 2, 8, 30]), random.choice([48, 64, 512, 1000])))
        one, many = Datapath({"elements": 1}), Datapath({"elements": random.choice([2, 4, 8, 16, 40])})
        for name in ("softmax", "layernorm", "rmsnorm"):
            shortened(one.rows(name, kind), many.rows(name, kind), many.row_word(name, kind.shape))
        taken, axis = many.row_word("reduce_max", kind.shape), random.choice([0, 1])
        taken = taken if axis else TileWord(1, taken.columns)  # rows are combined one after another
        shortened(one.reduction("reduce_max", kind, [axis]), many.reduction("reduce_max", kind, [axis]), taken)
        value = Unwritten(many.lanes("exp"), random.randrange(40))
        shortened(
            one.elements(kind, replace(value, lanes=1)), many.elements(kind, value), word(kind.shape, value.lanes)
        )


@pytest.mark.parametrize("axis", [2, -3])
def test_a_sum_along_an_axis_that_there_is_not(axis: int) -> None:
    with pytest.raises(ValueError, match=r"reduce_sum along axes .* of f32\[4, 8\]"):
        Datapath({"elements": 1}).reduction("reduce_sum", ElementType("f32", (4, 8)), [0, axis])


def shortened(one: LoopCycles, many: LoopCycles, taken: TileWord) -> None:
    """Check the cycles of a kernel that takes a word in a cycle, given those of one that takes an element. Words of
    several rows have several results in a cycle, which `fixed` does not know."""
    expected = one.fixed + (one.total - one.fixed) / taken.elements
    if taken.rows == 1:
        assert many.total == pytest.approx(expected, rel=0.01, abs=4)
    assert many.total <= 1.01 * expected + 4


WORDS = """from rsn.streams import *
X: f32[8, 4]
Y: f32[{count}, 4]
s = Stream[f32[1, 4], 8]
r = Stream[f32[1, 4], {count}]
@task(mapping=[1], args=[X])
def load(x: f32[8, 4]) -> None:
    for i in range(8):
        s.put(x[i : i + 1, :])
@task(mapping=[1], rates=dict(elements=64))
def work() -> None:
{body}
@task(mapping=[1], args=[Y])
def store(y: f32[{count}, 4]) -> None:
    for i in range({count}):
        y[i : i + 1, :] = r.get()
"""
PIPELINE = """    for i in range(2):
        for k in range(4):
            r.put(2.0 / s.get() + 1.0)"""
TURNS = """    for i in range(4):
        r.put(s.get() + 1.0)
        r.put(2.0 / s.get())"""
ROW = """    a = s.get()
    r.put(2.0 / a)
    for i in range(7):
        a = a + s.get()
    r.put(a)"""


@pytest.mark.parametrize(
    ("body", "count", "cycles"),
    [
        (PIPELINE, 8, 8 + 11),  # one token in each cycle, and the operators of the last one
        (TURNS, 8, 4 * (1 + 2 * 2 + 1 + 10 + 1)),  # a beat, the four tokens and operators of an iteration, its begin
        (ROW, 2, 7 + 1 + 1 + 3 + 10),  # the pipeline and its addition; before and behind it three tokens and a division
    ],
)
def test_tokens_and_operators_of_one_word_take_cycles(body: str, count: int, cycles: int) -> None:
    region = read(WORDS.format(body=body, count=count), timed=True)
    k = [instance.task.name for instance in region.instances].index("work")
    assert TimedProgram([instance.beats for instance in region.instances], {}).code.cycles[k] == cycles


PASSED = """from rsn.streams import *
X: f32[2, 16, {columns}]
R: f32[1, {columns}]
Y: f32[2, 16, {columns}]
s = Stream[f32[{rows}, {columns}], 2]
r = Stream[f32[{rows}, {columns}], 2]
@task(mapping=[1], args=[X])
def load(x: f32[2, 16, {columns}]) -> None:
    for i, k in grid(2, 16 // {rows}):
        s.put(x[i, {rows} * k : {rows} * k + {rows}])
@task(mapping=[1], args=[R], rates=dict(elements={rate}))
def work(x: f32[1, {columns}]) -> None:
    row = x[:, :]
    for i, k in grid(2, 16 // {rows}):
        {body}
@task(mapping=[1], args=[Y])
def store(y: f32[2, 16, {columns}]) -> None:
    for i, k in grid(2, 16 // {rows}):
        y[i, {rows} * k : {rows} * k + {rows}] = r.get()
"""
AT_ONCE = "r.put(replace_row(s.get(), row, i))"
KEPT = "t = s.get()\n        r.put(replace_row(t, row, i))"


@pytest.mark.parametrize(
    ("body", "rows", "columns", "rate", "cycles"),
    [
        (AT_ONCE, 16, 64, 64, 2 * (16 + 1 + 1)),  # each word comes and goes in a cycle
        (AT_ONCE, 16, 64, 1, 2 * (16 + 1 + 1)),  # whatever the rate: nothing is computed
        (KEPT, 16, 64, 64, 2 * (16 + 1 + 16 + 1 + 1)),
        (AT_ONCE, 1, 64, 64, 2 * 16 + 1),  # a pipeline of tokens of one word
    ],
)
def test_a_row_is_replaced_in_a_tile_that_goes_on(
    body: str, rows: int, columns: int, rate: int, cycles: int, tmp_path: Path
) -> None:
    text = PASSED.format(body=body, rows=rows, columns=columns, rate=rate)
    report = report_on(read(text))
    assert not report.code, report
    loading = columns // 16
    assert busy(text, {})["work"] == cycles + loading
    for name, of_file in project(cpp_program(task_program(report.region)), VC1902).items():
        (tmp_path / name).write_text(of_file, encoding="utf-8")
    made = check_folder(tmp_path)
    assert not made.findings
    (derived,) = (counted.cycles for name, counted in made.processes if name == "work")
    assert derived == pytest.approx(cycles + loading, abs=8)


OVER = """from rsn.streams import *
X: f32[16, 16]
W: f32[16, 16]
Y: f32[16, 16]
@task(mapping=[1], args=[X, W, Y], rates=dict(elements=16, matmul=16))
def work(x: f32[16, 16], z: f32[16, 16], y: f32[16, 16]) -> None:
    t = x[:, :]
    w = z[:, :]
    {name} = {made}
    y[:, :] = {name}
"""


@pytest.mark.parametrize(
    ("made", "copied"),
    [
        ("softmax(t)", 5),  # four words, and one cycle to begin
        ("t @ w", 5),
        ("layernorm(t, w[0], w[1])", 0),  # an expression, whose loop stores each element where it was
        ("relu(t)", 0),
    ],
)
def test_what_a_kernel_makes_of_a_variable_is_copied_to_it(made: str, copied: int, tmp_path: Path) -> None:
    taken, derived = [], []
    for name in ("u", "t"):
        text = OVER.format(name=name, made=made)
        taken.append(busy(text, {})["work"])
        for file, of_file in project(cpp_program(task_program(report_on(read(text)).region)), VC1902).items():
            (tmp_path / file).write_text(of_file, encoding="utf-8")
        derived.append(check_folder(tmp_path).processes[0][1].cycles)
    assert taken[1] - taken[0] == copied
    assert derived[1] - derived[0] == pytest.approx(copied, abs=2)
