"""Layouts: the listed programs and the rules, placement, and findings as they are printed."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rsn.host.tasks import run_tasks
from rsn.streams import layouts
from rsn.streams.build import build
from rsn.streams.check import check
from rsn.streams.reader import read
from rsn.streams.source import Refusal
from rsn.tests.effort import cases, in_both

LISTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "layouts.toml").read_text(encoding="utf-8"))


def task(*body: str, mapping: str = "[2, 2]", **tensors: str) -> str:
    """A program with one task. tensors: parameter -> type @ labels."""
    lines = ["from rsn.streams import *"]
    parameters = []
    for name, text in tensors.items():
        kind, _, labels = text.partition(" @ ")
        lines.append(f"{name.upper()}: {kind}")
        parameters.append(f'{name}: {kind} @ Layout("{labels}")' if labels else f"{name}: {kind}")
    lines.append(f"@task(mapping={mapping}, args=[{', '.join(tensors).upper()}])")
    lines.append(f"def t({', '.join(parameters)}):")
    return "\n".join([*lines, *(f"    {line}" for line in body), ""])


@pytest.mark.parametrize("name", LISTED)
def test_verdict(name: str) -> None:
    report = check(LISTED[name]["program"], f"{name}.py")
    assert report.code == LISTED[name]["code"], str(report)
    assert all(f.place is not None and f.notes for f in report.findings if f.code in ("layout", "pending"))


def test_all_listed_programs_are_here() -> None:
    assert sum(case["title"][:1] != "Y" for case in LISTED.values()) >= 22


def test_labels() -> None:
    assert layouts.parse("S0RS10") == ((0, None, 10), False)
    assert layouts.parse("RR!") == ((None, None), True)
    assert layouts.parse("") == ((), False)
    assert layouts.shown((0, None, 10)) == "S0RS10"
    for text in ("S", "s0", "R S0", "S-1", "R!R", "SR"):
        with pytest.raises(Refusal, match="is no layout"):
            layouts.parse(text)


def test_placement_is_the_tile_of_the_coordinates() -> None:
    mesh = (2, 3, 4)
    for tid in product(*map(range, mesh)):
        assert layouts.tile_of((0, 2), tid) == (tid[0], tid[2])
        assert layouts.tile_of((1, None, 0), tid) == (tid[1], 0, tid[0])
    held = layouts.holders((0, 2), mesh)
    assert len(held) == 8
    assert all(len(copies) == 3 and copies[0][1] == 0 for copies in held.values())
    assert layouts.part_of((6, 8), (1, None), mesh, (0, 2, 1)) == (slice(4, 6), slice(0, 8))
    assert layouts.group_of((1,), mesh, (1, 2, 3)) == [(1, 0, 3), (1, 1, 3), (1, 2, 3)]


def test_the_fix_is_printed() -> None:
    assert str(check(LISTED["L4"]["program"], "prog.py")) == (
        "prog.py:7:12: error: c[:] stores a @ b, and its + over mesh axis 0 is pending [pending]\n"
        "    c[:] = a @ b\n"
        "           ^^^^^\n"
        'note: complete it: (a @ b).allreduce("+", axes=(0,))'
    )


def test_both_fixes_of_a_contraction_are_printed() -> None:
    assert str(check(LISTED["L5"]["program"], "prog.py")) == (
        "prog.py:7:12: error: matmul of a @ S0S1 and b @ RR: the contracted axes are cut differently [layout]\n"
        "    c[:] = a @ b\n"
        "           ^^^^^\n"
        "note: axis 1 of a is S1, axis 0 of b is R\n"
        "note: no layout is changed silently: a: all-gather axis 1 along mesh axis 1; "
        "or b: cut axis 0 along mesh axis 1"
    )


@pytest.mark.parametrize(
    ("have", "want", "fix"),
    [
        ("S0R", "RR", "all-gather axis 0 along mesh axis 0"),
        ("S1R", "S0R", "all-to-all of axis 0 from mesh axis 1 to 0"),
        ("S0S1", "S1S0", "transpose it, or all-to-all"),
    ],
)
def test_a_store_proposes_the_collective(have: str, want: str, fix: str) -> None:
    (finding,) = check(task("c[:] = a", a=f"f32[8, 8] @ {have}", c=f"f32[8, 8] @ {want}")).findings
    assert finding.code == "layout"
    assert fix in finding.notes[-1]


def test_a_store_proposes_reduce_scatter() -> None:
    text = task("c[:] = a @ b", a="f32[8, 4] @ RS0", b="f32[4, 8] @ S0R", c="f32[8, 8] @ S0R")
    assert "reduce-scatter axis 0 along mesh axis 0" in check(text).findings[0].notes[-1]


def test_an_insertion_is_a_note() -> None:
    report = check(task("c[:] = a @ b", a="f32[8, 4] @ RS0", b="f32[4, 8] @ S0R", c="f32[8, 8] @ RR!"), "prog.py")
    assert report.code == ""
    assert str(report) == (
        'prog.py:7:12: note: inserted before the store: (a @ b).allreduce("+", axes=(0,)) [inserted]\n'
        "    c[:] = a @ b\n"
        "           ^^^^^\n"
        "note: the layout of c asks for it\n"
        "note: c: RR with + over mesh axis 0 pending to RR by all-reduce: 1024 bytes move"
    )


def test_a_finding_appears_once_for_all_instances() -> None:
    text = task("c[:] = a @ b", a="f32[8, 8] @ RS0", b="f32[8, 8] @ S1R", c="f32[8, 8]", mapping="[4, 4]")
    assert len(check(text).findings) == 1


SPLIT = {"a": "f32[8, 4] @ RS0", "b": "f32[4, 8] @ S0R", "c": "f32[8, 8]"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (["acc = zeros(f32, 8, 8)", "for k in range(2):", "    acc += a @ b", 'c[:] = acc.allreduce("+")'], ""),
        (["acc = zeros(f32, 8, 8)", "for k in range(2):", "    acc += a @ b", "c[:] = acc"], "pending"),
        (["acc = full(f32, 1.0, 8, 8)", "acc += a @ b", 'c[:] = acc.allreduce("+")'], "pending"),
        (["acc = full(f32, 0.0, 8, 8)", "acc[0:4, :] = (a @ b)[4:8]", 'c[:] = acc.allreduce("+")'], ""),
        (["acc = full(f32, 2.0, 8, 8)", "acc[0:4, :] = (a @ b)[4:8]", 'c[:] = acc.allreduce("+")'], "pending"),
        (["p = a @ b", "p[0:4, :] = 0.0", 'c[:] = p.allreduce("+")'], ""),
        (["p = a @ b", "p[0:4, :] = 1.0", 'c[:] = p.allreduce("+")'], "pending"),
        (["p = a @ b", "p[:] = 1.0", "c[:] = p"], ""),
        (["for k in range(2):", "    c[k * 4 : (k + 1) * 4, :] = (a @ b).allreduce('+')[k * 4 : (k + 1) * 4]"], ""),
        (
            ["for k in range(2):", "    c[k * 4 : (k + 1) * 4, :] = (a @ b).allreduce('+')[k * 4 : (k + 1) * 4 + 1]"],
            "type",
        ),
        (["c[0:9, :] = (a @ b).allreduce('+')"], "index"),
        (["p = a @ b", "if p[0, 0] > 0.0:", "    c[:] = 1.0"], "pending"),
        (["p = a @ b", "if data():", "    p = zeros(f32, 8, 8)", 'use(p.allreduce("+"))'], ""),
        (["p = a @ b", "if data():", "    p = zeros(f32, 8, 8)", 'c[:] = p.allreduce("+")'], "race"),
        (["p = a @ b", "if data():", "    p = full(f32, 1.0, 8, 8)", 'c[:] = p.allreduce("+")'], "pending"),
        (["c += a @ b"], "pending"),
        (["c[:] += (a @ b).allreduce('+')"], "race"),  # copies that are read and stored by several instances
        (["v = c[0:4, :]", "v[:] = (a @ b)[0:4]"], "pending"),
        (["return a @ b"], "pending"),
        (["c[:] = local(a @ b)"], "race"),
        (["drop(a @ b)"], ""),
        (["acc = np.zeros((8, 8), dtype=np.float32)", "acc += a @ b", 'c[:] = acc.allreduce("+")'], ""),
        (["acc = np.zeros((8, 8), np.float32)", "acc[:, :] = a @ b", 'c[:] = acc.allreduce("+")'], ""),
        (["acc = np.zeros((8, 8))", "acc += a @ b", 'c[:] = acc.allreduce("+")'], ""),
        (["acc = np.ones((8, 8), dtype=f32)", "acc += a @ b", 'c[:] = acc.allreduce("+")'], "pending"),
        (["acc = np.full((8, 8), 0, np.int32)", "c[:] = acc"], "type"),
        (["c[:] = np.full((8, 8), 2.0, np.float32)"], ""),
        (["use(a @ b)"], "pending"),
        (["c[:] = np.add(np.matmul(a, b), 1.0).allreduce('+')"], "pending"),
        (["c[:] = -np.maximum((a @ b).allreduce('+'), 0)"], ""),
        (["x: f32[8, 4] = a"], "type"),
        (["x: f32[8, 4] @ Layout('RS0') = a", "use(x)"], ""),
        (["x: f32[8, 4] @ Layout('RS1') = a", "use(x)"], "layout"),
        (["c[:] = concat(a @ b, zeros(f32, 8, 8))[0:8].allreduce('+')"], ""),
        (["c[:] = concat([a @ b, full(f32, 1.0, 8, 8)])[0:8].allreduce('+')"], "pending"),
        (["c[:] = concat(a, a, axis=1)"], "layout"),
        (["c[:] = (a @ b).allreduce('-')"], "unsupported"),
        (["c[:] = (a @ b).allreduce('+', axes=(2,))"], "layout"),
        (["c[:] = (a @ b).allreduce('+', axes=(0, 0))"], "unsupported"),
        (["c[:] = transpose(a @ b, 0, 0).allreduce('+')"], "type"),
        (["c[:] = reduce_sum(a @ b, 2)"], "index"),
        (["c[:] = reduce_sum(a @ b, axis=1, keepdims=True).allreduce('+')"], ""),
        (["c[:] = i32(a) @ b"], "type"),
        (["c[:] = 1"], ""),
        (["c[:] = minimum((a @ b).allreduce('+'), 0.0)"], ""),
        (["c[:] = sqrt(a @ b).allreduce('+')"], "pending"),
        (["c[:] = (a @ b).reshape(4, 2, 8).reshape(-1, 8).allreduce('+')"], ""),
        (["c[:] = (a @ b).reshape(4, 8)"], "type"),
        (["use(a.reshape(16))"], "layout"),
        (["use(b.reshape(2, 2, -1), b.reshape(4, 4))"], "layout"),
        (["use(a.T.shape[0] + 1)", "x: f32[4, 8] = zeros(f32, a.T.shape[0], 8)", "use(x)"], "type"),
        (["c[None][0][:, :] = (a @ b).allreduce('+')"], ""),
        (["c[..., 0] = (a @ b).allreduce('+')[0, ...]"], ""),
        (["c[0, 0, 0] = 1.0"], "type"),
    ],
)
def test_values_in_variables(body: list[str], code: str) -> None:
    report = check("import numpy as np\n" + task(*body, **SPLIT))
    assert report.code == code, str(report)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        # each instance computes its own rows of whole tensors
        (["i = get_tid()", "c[i * 4 : i * 4 + 4, :] = a[i * 4 : i * 4 + 4, :] @ b"], ""),
        # split over the contracted axis by hand, added by a collective
        (["i = get_tid()", "p = a[:, i * 4 : i * 4 + 4] @ b[i * 4 : i * 4 + 4, :]", "c[:] = p.allreduce('+')"], ""),
        # the same tile everywhere is not to be added
        (["p = a @ b", "c[:] = p.allreduce('+')"], "pending"),
        # a value that one instance has changed is no copy any more
        (["i = get_tid()", "p = a @ b", "with meta_if(i == 0):", "    p = 2 * p", "c[:] = p.allreduce('+')"], ""),
        (["i = get_tid()", "k = 1 if i == 0 else 2", "c[:] = (a * k).allreduce('+')"], ""),
        (["k = 3", "c[:] = (a * k).allreduce('+')"], "pending"),
        (["with meta_if(get_tid() == 0):", "    c[:] = a @ b"], ""),
    ],
)
def test_values_that_differ_between_instances(body: list[str], code: str) -> None:
    report = check(task(*body, a="f32[8, 8]", b="f32[8, 8]", c="f32[8, 8]", mapping="[2]"))
    assert report.code == code, str(report)


def test_layouts_have_names() -> None:
    text = task("c[:] = a", a="f32[8, 8]", c="f32[8, 8]").replace("@task", 'LA = Layout("S0R")\n@task')
    text = text.replace("a: f32[8, 8],", "a: f32[8, 8] @ LA,")
    assert check(text).code == "layout"
    assert check(text.replace("c: f32[8, 8]", "c: f32[8, 8] @ LA")).code == ""


PART = {"a": "f32[8, 4] @ RS0", "b": "f32[4, 8] @ S0R", "c": "f32[8, 8]"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (["i, j = get_tid()", "p = a @ b", "with meta_if(i == 0):", '    c[:] = p.allreduce("+")'], "starved"),
        (["i, j = get_tid()", "p = a @ b", "with meta_if(j == 0):", '    c[:] = p.allreduce("+")'], ""),
        (["i, j = get_tid()", "for k in range(i + 1):", '    use((a @ b).allreduce("+"))'], "starved"),
        (["p = a @ b", "if data():", '    use(p.allreduce("+"))'], "join"),
        (["p = a @ b", "while data():", '    use(p.allreduce("+"))'], "join"),
        (["for k in range(1000000):", '    use((a @ b).allreduce("+"))'], ""),
    ],
)
def test_all_instances_of_a_group_take_part(body: list[str], code: str) -> None:
    text = task(*body, **PART, mapping="[2, 3]")
    for program in (text, text.replace("RS0", "S1S0").replace("c: f32[8, 8]", 'c: f32[8, 8] @ Layout("S1R")')):
        if "S1S0" in program:
            program = program.replace("[8, 4]", "[6, 4]").replace("[8, 8]", "[6, 8]").replace("B: f32[6", "B: f32[4")
        report = check(program)
        assert report.code == code, str(report)


def test_who_does_not_take_part_is_named() -> None:
    text = task("p = a @ b", "with meta_if(get_tid() == 1):", '    c[:] = p.allreduce("+")', **PART, mapping="[2]")
    report = check(text, "prog.py")
    assert str(report).startswith("prog.py:9:16: error: 1 get more than puts on t.allreduce.out[0,0]")
    assert "an all-reduce is complete when all instances that it joins have come to it" in str(report)


@pytest.mark.parametrize(("before", "code"), [(True, ""), (False, "deadlock")])
def test_collectives_wait_as_streams_do(before: bool, code: str) -> None:
    """Instance 1 comes to the all-reduce when it has a token, which instance 0 puts before or behind it."""
    put = ["with meta_if(get_tid() == 0):", "    s.put(1)"]
    get = ["with meta_if(get_tid() == 1):", "    use(s.get())"]
    reduce = ['c[:] = (a @ b).allreduce("+")']
    body = [*(put if before else []), *get, *reduce, *([] if before else put)]
    assert check("s: Stream[i32, 1]\n" + task(*body, **PART, mapping="[2]")).code == code


def test_groups_and_streams_of_a_collective() -> None:
    text = task(
        'c[:] = (a @ b).allreduce("+")', a="f32[8, 4] @ RS1", b="f32[4, 8] @ S1R", c="f32[8, 8]", mapping="[3, 2, 2]"
    )
    (made,) = read(text).collectives
    inward, outward = made.arrays
    assert (made.op, made.axes, inward.shape, outward.shape) == ("+", (1,), (6, 1), (6, 1))
    assert str(inward.type) == "f32[8, 8]"


@in_both
def test_changed_programs_give_findings() -> None:
    random = Random(5)
    texts = [case["program"] for case in LISTED.values()]
    codes = Counter[str]()
    for _ in range(cases(2000, 100)):
        tree, donor = (ast.parse(random.choice(texts)) for _ in range(2))
        parts, others = ([n for n in ast.walk(t) if isinstance(n, ast.expr | ast.stmt)] for t in (tree, donor))
        for _ in range(random.randint(1, 3)):
            target, other = random.choice(parts), random.choice(others)
            for name in set(target._fields) & set(other._fields):
                setattr(target, name, getattr(other, name))
        try:
            text = ast.unparse(tree)
            ast.parse(text)
        except (ValueError, TypeError, AttributeError, KeyError, SyntaxError, RecursionError):
            continue
        report = check(text)
        assert all(f.message and f.place is not None for f in report.findings), text
        codes[report.code] += 1
    assert {"", "layout", "pending", "type", "unsupported"} <= codes.keys()


ONLINE = """from rsn.streams import *
Q: f32[16, 8]
K: f32[16, 8]
V: f32[16, 8]
O: f32[16, 8]
@task(mapping=[4], args=[Q, K, V, O])
def attention(q: f32[16, 8] @ Layout("S0R"), k: f32[16, 8], v: f32[16, 8], o: f32[16, 8] @ Layout("S0R")):
    m = full(f32, -1e30, 4)
    total = zeros(f32, 4)
    acc = zeros(f32, 4, 8)
    for t in range(4):
        s = q @ k[t * 4 : t * 4 + 4, :].T
        new = maximum(m, reduce_max(s, 1))
        p = exp(s - new[:, None])
        old = exp(m - new)
        total = total * old + reduce_sum(p, 1)
        acc = acc * old[:, None] + p @ v[t * 4 : t * 4 + 4, :]
        m = new
    o[:] = acc / total[:, None]
"""
CHAIN = """from rsn.streams import *
A: f32[8, 8]
B: f32[8, 8]
C: f32[8, 8]
s: Stream[f32[8, 8], 2][3]
@task(mapping=[4], args=[A, B, C])
def chain(a: f32[8, 8] @ Layout("RS0"), b: f32[8, 8] @ Layout("S0R"), c: f32[8, 8]):
    k = get_tid()
    acc = zeros(f32, 8, 8)
    with meta_if(k > 0):
        acc = s[k - 1].get()
    acc += local(a @ b)
    with meta_if(k < 3):
        s[k].put(acc)
    with meta_else():
        c[:] = acc
"""


def run(text: str, **inputs: Any) -> Any:
    return run_tasks(build(check(text)), inputs).outputs


def test_rows_of_attention_and_a_chain_of_partial_sums() -> None:
    assert check(ONLINE).findings == ()
    assert check(ONLINE.replace('o: f32[16, 8] @ Layout("S0R")', "o: f32[16, 8]")).code == "layout"
    assert check(CHAIN).findings == ()
    a, b = (np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32) for seed in (1, 2))
    assert np.allclose(run(CHAIN, A=a, B=b)["C"], a @ b, atol=1e-5)
    (finding,) = check(CHAIN.replace("local(a @ b)", "a @ b")).findings
    assert (finding.code, finding.notes[-1]) == ("pending", "if streams complete it: local(a @ b)")


GEMM = {"a": "f32[8, 8] @ S1S0", "b": "f32[8, 8] @ S0S2", "c": "f32[8, 8] @ S1S2"}


@pytest.mark.parametrize("mapping", ["[2, 2, 2]", "[4, 1, 2]", "[1, 2, 4]"])
@pytest.mark.parametrize("asked", [False, True])
def test_the_product_of_three_mesh_axes_runs(mapping: str, asked: bool) -> None:
    random = np.random.default_rng(1)
    a, b = (random.normal(size=(8, 8)).astype(np.float32) for _ in range(2))
    text = task('c[:] = (a @ b).allreduce("+")', **GEMM, mapping=mapping)
    if asked:
        text = task("c[:] = a @ b", **(GEMM | {"c": "f32[8, 8] @ S1S2!"}), mapping=mapping)
    assert np.allclose(run(text, A=a, B=b)["C"], a @ b, atol=1e-5)


def test_sums_of_integers_wrap_alike_on_all_instances() -> None:
    text = task('c[:] = i32(reduce_sum(a[:], 0).allreduce("+") > 0)', a="i8[4, 3] @ S0R", c="i32[3]", mapping="[4]")
    assert check(text).code == ""
    text = task('c[:] = reduce_sum(a[:], 0).allreduce("+")', a="i8[4, 3] @ S0R", c="i8[3]", mapping="[4]")
    assert run(text, A=np.full((4, 3), 100, np.int8))["C"].tolist() == [-112] * 3


def test_two_reductions_in_a_row_run() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    body = ['m = reduce_max(a[:], 1).allreduce("max")', 'c[:] = reduce_sum(m, 0).allreduce("+") + zeros(f32, 1)']
    assert run(task(*body, a="f32[4, 6] @ S0S1", c="f32[1]"), A=a)["C"].tolist() == [5 + 11 + 17 + 23]


@pytest.mark.parametrize(
    ("types", "expression", "note"),
    [
        (("i8", "i4"), "p @ q", "convert to i8, as in i8(q)"),
        (("i4", "i8"), "p * q", "convert to i8, as in i8(p)"),
        (("i8", "u8"), "p + q", "convert to i16, as in i16(p) and i16(q)"),
        (("u4", "i4"), "maximum(p, q)", "convert to i8, as in i8(p) and i8(q)"),
        (("u64", "i8"), "p - q", "convert to u64, as in u64(q)"),
        (("bf16", "i8"), "p * q", "convert to bf16, as in bf16(q)"),
        (("i8", "f32"), "p * q", "convert to f32, as in f32(p)"),
        (("boolean", "i4"), "add(p, q)", "convert to i4, as in i4(p)"),
    ],
)
def test_two_types_of_tiles_are_told_with_their_places(types: tuple[str, str], expression: str, note: str) -> None:
    a, b = types
    report = check(
        f"from rsn.streams import *\na: {a}[4, 4]\nb: {b}[4, 4]\nc: i32[4, 4]\n@task(mapping=[1], args=[a, b, c])\n"
        f"def t(a: {a}[4, 4], b: {b}[4, 4], c: i32[4, 4]):\n    p, q = a[:], b[:]\n    c[:] = i32({expression})\n",
        "p.py",
    )
    first = report.findings[0]
    at = [8, 15 + expression.index("p") + 1], [8, 15 + expression.rindex("q") + 1]
    told = [
        f"{name} at {line}:{column} is {kind}[4, 4]" for name, kind, (line, column) in zip("pq", types, at, strict=True)
    ]
    assert (first.code, first.notes) == ("type", (", ".join(told), f"element types do not mix silently: {note}"))
