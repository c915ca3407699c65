"""Labels in place of ?: what is found fits, gives the numbers of NumPy, and moves the fewest bytes."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.host.tasks import run_tasks
from rsn.streams import inference, layouts
from rsn.streams.build import build
from rsn.streams.check import Report, check
from rsn.streams.inference import STEPS
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.test_layout_numbers import Maker, Program, runs_as_numpy
from rsn.tests.streams.test_layouts import task


def found(report: Report) -> dict[str, str | None]:
    """The layouts of all parameters, by the name of the parameter."""
    return {p.name: p.layout for task in report.region.tasks for p in task.parameters}


def moved(report: Report) -> int:
    """Bytes that the collectives of a program without loops move."""
    return sum(made.size for made in report.region.collectives)


GEMM = {"a": "f32[8, 4]", "b": "f32[4, 8]", "c": "f32[8, 8]"}


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        # nothing is written, so nothing is cut
        (("??", "??", "??"), ("RR", "RR", "RR")),
        # from an operand to the result, and back
        (("S0R", "??", "??"), ("S0R", "RR", "S0R")),
        (("??", "??", "RS1"), ("RR", "RS1", "RS1")),
        (("S0R", "??", "?S1"), ("S0R", "RS1", "S0S1")),
        # the contracted axes meet; the sum is complete in the result, or scattered over one of its axes
        (("RS0", "??", "RR!"), ("RS0", "S0R", "RR!")),
        (("RS0", "??", "??!"), ("RS0", "S0S1", "S0S1!")),
        # an all-reduce of half as many columns moves what a reduce-scatter of all of them does; that cuts less
        (("?S0", "S0?", "R?!"), ("RS0", "S0R", "RS0!")),
        # what is written stays, also if another label would move less
        (("RS0", "S0R", "R?!"), ("RS0", "S0R", "RS0!")),
        (("RS0", "S0R", "RR!"), ("RS0", "S0R", "RR!")),
    ],
)
def test_a_product(written: tuple[str, ...], labels: tuple[str, ...]) -> None:
    tensors = {name: f"{kind} @ {text}" for (name, kind), text in zip(GEMM.items(), written, strict=True)}
    report = check(task("c[:] = a @ b", **tensors))
    assert report.code == "", str(report)
    assert tuple(found(report).values()) == labels


def test_cutting_more_moves_less() -> None:
    """An all-reduce of half as many columns moves half as many bytes; both halves of the grid would do the same."""
    text = task('c[:] = (a @ b).allreduce("+")', a="f32[8, 4] @ ?S0", b="f32[4, 8] @ S0?", c="f32[8, 8] @ R?")
    assert tuple(found(check(text)).values()) == ("RS0", "S0S1", "RS1")


def test_what_is_found_is_told() -> None:
    text = task("c[:] = a @ b", a="f32[8, 4] @ RS0", b="f32[4, 8] @ ?R", c="f32[8, 8] @ R?!")
    assert str(check(text, "prog.py")) == (
        'prog.py:7:12: note: inserted before the store: (a @ b).reduce_scatter("+", axis=1, mesh_axis=0) [inserted]\n'
        "    c[:] = a @ b\n"
        "           ^^^^^\n"
        "note: the layout of c asks for it\n"
        "note: c: RR with + over mesh axis 0 pending to RS0 by reduce-scatter: 512 bytes move\n"
        "prog.py:6:40: note: the layout of b is S0R: no other one fits [inferred]\n"
        'def t(a: f32[8, 4] @ Layout("RS0"), b: f32[4, 8] @ Layout("?R"), c: f32[8, 8] @ Layout("R?!")):\n'
        "                                       ^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "prog.py:6:69: note: the layout of c is RS0: of 2 that fit, with the fewest bytes of re-layouts [inferred]\n"
        'def t(a: f32[8, 4] @ Layout("RS0"), b: f32[4, 8] @ Layout("?R"), c: f32[8, 8] @ Layout("R?!")):\n'
        "                                                                    ^^^^^^^^^^^^^^^^^^^^^^^^^"
    )


PAIR = """from rsn.streams import *
X: f32[8, 8]
Y: f32[8, 8]
Z: f32[8, 8]
done: Stream[boolean, 1][2, 2, 2, 2]
@task(mapping=[2, 2], args=[X, Y])
def first(x: f32[8, 8] @ Layout("{x}"), y: f32[8, 8] @ Layout("{y}")):
    i, j = get_tid()
    y[:] = 2 * x
    for m, n in grid(2, 2):
        done[i, j, m, n].put(True)
@task(mapping={mapping}, args=[Y, Z])
def second(v: f32[8, 8] @ Layout("{v}"), z: f32[8, 8] @ Layout("{z}")):
    i, j = get_tid()
    for m, n in grid(2, 2):
        drop(done[m, n, i, j].get())
    z[:] = relu(v)
"""


@pytest.mark.parametrize(
    ("x", "y", "v", "z", "expected"),
    [
        ("S0R", "??", "??", "??", ("S0R", "S0R", "S0R", "S0R")),
        ("??", "??", "??", "RS1", ("RS1", "RS1", "RS1", "RS1")),
        ("S0S1", "??", "??", "S1S0", ("S0S1", "S0S1", "S1S0", "S1S0")),
        ("S0R", "S0R", "??", "?R", ("S0R", "S0R", "S0R", "S0R")),
        ("??", "??", "S0R", "S0R", ("S0R", "S0R", "S0R", "S0R")),
        # a result that is whole on all instances can be read in any layout
        ("RR", "??", "S0R", "S0R", ("RR", "RR", "S0R", "S0R")),
    ],
)
def test_labels_go_through_a_tensor(x: str, y: str, v: str, z: str, expected: tuple[str, ...]) -> None:
    report = check(PAIR.format(x=x, y=y, v=v, z=z, mapping=[2, 2]))
    assert report.code == "", str(report)
    assert tuple(found(report).values()) == expected


def test_bytes_between_tasks_are_told() -> None:
    report = check(PAIR.format(x="S0S1", y="S0S1", v="??", z="S1S0", mapping=[2, 2]))
    (note,) = [f for f in report.findings if f.code == "inferred"]
    # of 16 elements an instance, those of two instances lie elsewhere
    assert [str(move) for move in note.relayouts] == ["Y: S0S1 to S1S0 by memory, from first to second: 128 bytes move"]


def test_grids_of_other_sizes_have_no_common_instances() -> None:
    text = PAIR.replace("[2, 2, 2, 2]", "[2, 2, 4, 1]").replace(
        "in grid(2, 2):\n        done[i", "in grid(4, 1):\n        done[i"
    )
    report = check(text.format(x="S0R", y="??", v="??", z="??", mapping=[4, 1]))
    assert report.code == "", str(report)
    assert tuple(found(report).values()) == ("S0R", "S0R", "RR", "RR")


def test_the_bytes_that_move() -> None:
    for before, after in product([(None, None), (0, None), (None, 0), (1, 0), (0, 1)], repeat=2):
        expected = 0
        for tid in product(range(2), range(4)):
            needed, held = (np.zeros((8, 12), bool) for _ in range(2))
            needed[layouts.part_of((8, 12), after, (2, 4), tid)] = True
            held[layouts.part_of((8, 12), before, (2, 4), tid)] = True
            expected += int((needed & ~held).sum())
        assert layouts.moved((8, 12), before, after, (2, 4)) == expected


@pytest.mark.parametrize(
    ("body", "tensors", "code", "note"),
    [
        ("c[:] = a @ b", {"a": "S0S1", "b": "RR", "c": "?R"}, "layout", "no labels fit in place of ?"),
        ("c[:] = a @ b", {"a": "RS0", "b": "??", "c": "??"}, "layout", "no labels fit in place of ?"),
        ("c[:] = a @ b", {"a": "?RR", "b": "RR", "c": "RR"}, "layout", "a: ?RR has 3 labels"),
        ("c[:] = a @ b", {"a": "?X", "b": "RR", "c": "RR"}, "layout", "'X' is no label"),
        ("p: f32[8, 8] @ Layout('?R') = a @ b\n    c[:] = p", {"a": "??", "b": "RR", "c": "RR"}, "layout", "'?R'"),
        ("c[:] = a @ b\n    yield 1", {"a": "?R", "b": "RR", "c": "?R"}, "unsupported", "a yield"),
    ],
)
def test_what_does_not_fit(body: str, tensors: dict[str, str], code: str, note: str) -> None:
    report = check(task(body, **{name: f"{GEMM[name]} @ {text}" for name, text in tensors.items()}))
    assert report.code == code, str(report)
    assert note in str(report)


def test_a_search_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "STEPS", 100)
    tensors = {name: f"{kind} @ ??" for name, kind in GEMM.items()}
    report = check(task("c[:] = a @ b", **tensors))
    assert (report.code, STEPS) == ("limit", 1_000_000)
    assert "takes more than 100 steps" in str(report)


def test_a_task_whose_instances_differ() -> None:
    body = "i, j = get_tid()\n    with meta_if(i == 1):\n        use(a @ b)\n    with meta_else():\n        c[:] = 0.0"
    report = check(task(body, a="f32[8, 4] @ RS1", b="f32[4, 8] @ ?R", c="f32[8, 8] @ S0R"))
    assert report.code == "layout"  # the product is used while a sum is pending, with any labels
    report = check(
        task(
            body.replace("a @ b", 'allreduce(a @ b, "+")'), a="f32[8, 4] @ RS1", b="f32[4, 8] @ ?R", c="f32[8, 8] @ S0R"
        )
    )
    assert (report.code, found(report)["b"]) == ("", "S1R")


def test_json_has_what_moves(tmp_path: Path) -> None:
    path = tmp_path / "prog.py"
    path.write_text(task("c[:] = a @ b", a="f32[8, 4] @ RS0", b="f32[4, 8] @ ?R", c="f32[8, 8] @ R?!"))
    result = CliRunner().invoke(main, ["check", str(path), "--json"])
    rows = json.loads(result.output)["findings"]
    assert [row["code"] for row in rows] == ["inserted", "inferred", "inferred"]
    move = {"tensor": "c", "before": "RR with + over mesh axis 0 pending", "after": "RS0", "how": "reduce-scatter"}
    assert rows[0]["relayouts"] == [move | {"size": 512}]
    assert (rows[0]["line"], "relayouts" in rows[1]) == (7, False)


def least(text: str, program: Program) -> int:
    """The fewest bytes that any labels in place of ? move, tried one by one."""
    before, *parts = text.split('Layout("')
    ways = []
    for part, shape in zip(parts, program.shapes.values(), strict=True):
        labels, rest = part.split('"', 1)
        ways.append([f'{way}"{rest}' for way in layouts.closed(labels, shape, program.mesh)])
    reports = [check('Layout("'.join([before, *way])) for way in product(*ways)]
    return min(moved(report) for report in reports if not report.code)


def opened(program: Program, random: Random) -> str:
    """A program with ? in place of some labels."""
    labels = {
        name: "".join(
            "?" if random.random() < 0.6 else "R" if axis is None else f"S{axis}" for axis in program.labels[name]
        )
        for name in program.shapes
    }
    text = program.text()
    for name, shape in program.shapes.items():
        head, tail = text.rsplit(f'{name}: f64{list(shape) or ""} @ Layout("', 1)
        text = f'{head}{name}: f64{list(shape) or ""} @ Layout("{labels[name]}"{tail.split(chr(34), 1)[1]}'
    return text


@in_both
def test_random_programs_fit_move_least_and_run() -> None:
    """A program with ? in place of labels of one that is well-typed is so, too; it moves no more bytes; written labels
    stay; its results are those of NumPy."""
    random, ran, compared, tried = Random(7), 0, 0, 0
    for number in range(cases(400, 40)):
        program = Maker(random).program()
        asks = "!" if random.random() < 0.5 else ""
        before = check(program.text().replace('")):', f'{asks}")):'))
        if before.code:
            continue
        text = opened(program, random).replace('")):', f'{asks}")):')
        if "?" not in text or text.count("?") > 7:
            continue
        report = check(text)
        assert report.code == "", f"{text}\n{report}"
        assert moved(report) <= moved(before), text
        for (name, layout), written in zip(found(report).items(), text.split('Layout("')[1:], strict=True):
            pattern = written.split('"')[0]
            pairs = zip(re.findall(r"R|S\d+|\?", pattern), layouts.LABEL.findall(str(layout)), strict=True)
            assert all(a in ("?", b) for a, b in pairs), f"{name}: {pattern} -> {layout}"
        compared += 1
        if text.count("?") <= 4:
            assert moved(report) == least(text, program), text
            tried += 1
        if not all(1 <= len(shape) <= 2 for shape in program.shapes.values()):
            continue
        runs_as_numpy(program, text, number)
        ran += 1
    assert compared > cases(100, 8)
    assert tried > cases(20, 2)
    assert ran > cases(30, 3)


BY_LAYOUT = [
    # with R it is the result of whole tensors, with other labels it is another one
    ("c[:] = a * a.shape[0]", True),
    ("c[0:4, :] = a[0:4, :]\n    c[4:8, :] = a[4:8, :]", True),
    ("c[:] = a[::-1, :]", True),
    ("c[:] = banded(a, -1, 1)", True),
    ("c[:] = replace_row(a, zeros(f32, 1, 8), 3)", True),
    # what has no layout may be anything
    ("c[:] = local(a)", False),
    ("c[:] = a + other(a)", False),
    ("i, j = get_tid()\n    with meta_if(i == 0):\n        c[:] = a", False),
    ("if a[0, 0] > 0.0:\n        c[:] = a", False),
    ("i, j = get_tid()\n    s[i, j].put(a)\n    c[:] = 0.0", False),
]


@pytest.mark.parametrize(("body", "whole_with_r"), BY_LAYOUT)
def test_labels_that_may_change_the_result_are_not_chosen(body: str, whole_with_r: bool) -> None:
    text = task(body, a="f32[8, 8] @ ??", c="f32[8, 8] @ ??")
    report = check(text.replace("import *\n", "import *\ns: Stream[f32[8, 8], 2][2, 2]\n", 1))
    if whole_with_r:
        assert (report.code, found(report)) == ("", {"a": "RR", "c": "RR"}), str(report)
    else:
        assert "the result may depend on which one it is" in str(report)


def test_a_layout_that_alone_fits_is_taken() -> None:
    """Then no other program is meant: with written labels it would be the same."""
    (note,) = check(task("c[:] = a[::-1, :]", a="f32[8, 8] @ ??", c="f32[8, 8] @ S0R")).findings
    assert note.message == "the layout of a is S0R: no other one fits"


STATEMENTS = [
    "x = a[:]",
    "x = a @ b",
    "x = x @ b",
    "x = relu(x)",
    "x = x + a",
    "x = b.T + x",
    "x = 2 * x",
    "x = softmax(x)",
    "x = x - reduce_max(x, 1, keepdims=True)",
    "x = local(x)",
    "x = x * a.shape[0]",
    "x = x / x.shape[1]",
    "x = concat(x[0:4, :], x[4:8, :])",
    "x = concat(x[:, 0:4], x[:, 4:8], axis=1)",
    "x = x[::-1, :]",
    "x = banded(x, -2, 2)",
    "x[0:2, :] = 0.0",
    "x = x.reshape(-1, 2, 4).reshape(-1, 8)",
    "x = x.reshape(64).reshape(8, 8)",
    "for k in range(2):\n        x = x + a[k : k + 1, :]",
    "for k in range(2):\n        x = x + b",
    "x: f64[8, 8] @ Layout('RR!') = x",
    "x = x.allreduce('+')",
    "x = x.allgather(0)",
    "with meta_if(get_tid()[0] == 0):\n        x = 2 * x",
    "y = x[0, 0]\n    x = x + y",
    "if x[0, 0] > 0.0:\n        x = 2 * x",
    "s[get_tid()].put(x)\n    x = s[get_tid()].get()",
]


@in_both
def test_what_is_chosen_gives_the_result_of_whole_tensors() -> None:
    """Random statements, labels and meshes. If several labels fit, the result is that of R everywhere."""
    random, compared = Random(21), 0
    for number in range(cases(2000, 50, share=40)):
        body = ["x = a[:]", *random.choices(STATEMENTS, k=random.randint(1, 3)), "c[:] = x"]
        labels = [random.choice(["??", "??", "??", "S0?", "?S1", "?R", "R?", "RR", "S1?"]) for _ in range(3)]
        asks = random.choice(["", "!"])
        tensors = {n: f"f64[8, 8] @ {text}" for n, text in zip("abc", labels, strict=True)}
        tensors["c"] += asks
        text = task(*body, **tensors, mapping=random.choice(["[2]", "[2, 2]", "[1, 4]"]))
        report = check(text)
        copies = check(re.sub(r"Layout\(\"[?RS0-9]+", 'Layout("RR', text))
        told = [f.message for f in report.findings if f.code == "inferred"]
        if report.code or copies.code or all(message.endswith("no other one fits") for message in told):
            continue
        given = {name: np.random.default_rng(number).normal(size=(8, 8)) for name in "AB"}
        results = [run_tasks(build(one), given).outputs["C"] for one in (report, copies)]
        assert np.allclose(*results, rtol=1e-9, atol=1e-9), text
        compared += found(report) != found(copies)
    assert compared > cases(40, 1, share=40)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("S?", "a: 'S?' is no layout: 'S?' is no label"),
        ("?S", "a: '?S' is no layout: 'S' is no label"),
        ("R?Q!", "a: 'R?Q!' is no layout: 'Q' is no label"),
        ("R?R", "a: R?R has 3 labels, and the tensor has 2 axes"),
    ],
)
def test_a_text_with_open_labels_that_is_none(layout: str, message: str) -> None:
    head = "from rsn.streams import *\nA: f32[4, 2]\n@task(mapping=[2], args=[A])\n"
    (finding,) = check(f'{head}def t(a: f32[4, 2] @ Layout("{layout}")):\n    use(a[0, 0])\n').findings
    assert (finding.message, finding.place.line, finding.place.column) == (message, 4, 10)
