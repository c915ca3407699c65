"""Whatever a file holds, the check answers with findings: no traceback, no execution, no endless run."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from random import Random
from time import process_time

import pytest

from rsn.streams.check import check
from rsn.streams.source import CODES
from rsn.tests.effort import cases, full, in_both, long, sampled
from rsn.tests.streams.grammar import EFFECT, program

LISTED = tomllib.loads((Path(__file__).parent / "listed.toml").read_text(encoding="utf-8"))
HEAD = "from rsn.streams import *\ns: Stream[i32, 2]\n"
TASK = HEAD + "@task(mapping=[1])\ndef a():\n    "


@pytest.mark.parametrize(
    ("text", "code", "at"),
    [
        ("def f(:\n", "syntax", (1, 6)),
        ("x = 'a\0b'", "syntax", None),
        ("x = " + "(" * 5000 + "1" + ")" * 5000, "syntax", None),
        ("import os\nos.system('false')\n", "unsupported", (2, 0)),
        (HEAD + "@task(mapping=[n])\ndef a():\n    pass\n", "unsupported", (3, 15)),
        (HEAD + "@task(mapping=[1000, 1000])\ndef a():\n    pass\n", "limit", (3, 14)),
        ("from rsn.streams import *\ns: Stream[i32, 0]\n", "depth0", (2, 0)),
        ("from rsn.streams import *\ns: Stream[i32, 8, 3]\n", "pack", (2, 0)),
        (TASK + "a()\n", "unsupported", (5, 4)),
        (TASK + "s.pop()\n", "unsupported", (5, 4)),
        (TASK + "yield s.get()\n", "unsupported", (5, 4)),
        (TASK + "x = [s.get() for i in range(3)]\n", "unsupported", (5, 8)),
        (TASK + "while True:\n        s.put(1)\n", "limit", (5, 4)),
        (TASK + "for i in range(10 ** 30):\n        s.put(1)\n", "limit", (5, 19)),
        (TASK + "for i in range(2 ** 62):\n        s.put(1)\n", "limit", (5, 13)),
        long(TASK + "for i in range(10000000):\n        if i * i > 5:\n            s.put(1)\n", "limit", None),
        (TASK + "x = 7 // 0\n", "unsupported", (5, 8)),
        (TASK + "x = (1, 2)[5]\n", "unsupported", (5, 8)),
        (TASK + "x = data()\n    with meta_if(x):\n        s.put(1)\n", "meta", (6, 17)),
        (TASK + "while data():\n        s.put(1)\n", "join", (5, 4)),
        (TASK + "for i in range(3):\n        if data():\n            break\n        s.put(1)\n", "join", (6, 8)),
        (TASK + "s[0].put(1)\n", "index", (5, 4)),
        (TASK + "s.put(1.5)\n", "type", (5, 4)),
        (TASK + "s.put(y)\n", "unsupported", (5, 10)),
        (HEAD + "n = 2 ** 64 * 2\n", "limit", (3, 4)),
        (HEAD + "n = 2 ** -65\n", "unsupported", (3, 4)),
        (HEAD + "x = (-8) ** 0.5\n", "unsupported", (3, 4)),
        (HEAD + "x = 1e300 * 1e300 * 0\n", "unsupported", (3, 4)),
        (HEAD + "n = 7\nassert n % 2 == 0, 'n is even'\n", "assert", (4, 7)),
        (HEAD + "assert data()\n", "unsupported", (3, 7)),
        (TASK + "assert get_tid() == 1\n    s.put(1)\n", "assert", (5, 11)),
    ],
)
def test_finding_and_place(text: str, code: str, at: tuple[int, int] | None) -> None:
    report = check(text)
    first = report.findings[0]
    assert (first.code, report.code) == (code, code), str(report)
    if at is not None:
        assert first.place is not None
        assert first.place[:2] == (at[0], at[1] + 1)
        assert "^" in str(report)


def test_a_value_awaited_twice() -> None:
    text = TASK + "s.put(1)\n@task(mapping=[1])\ndef b():\n    x = s.get()\n    await x\n    use(await x)\n"
    assert check(text).code == "future"


def test_conditions_that_hold_and_numbers_of_any_size() -> None:
    text = "from rsn.streams import *\nlow = -1e30\nc: Stream[f32, 2]\nassert 64**-0.5 == 2**-3\n"
    text += "@task(mapping=[1])\ndef a():\n    c.put(low)\n"
    text += "@task(mapping=[1])\ndef b():\n    x = c.get()\n    assert x < 0\n"
    assert check(text).findings == ()
    wrong = check(text.replace("64**-0.5", "low"))
    assert [(f.code, f.message) for f in wrong.findings] == [("assert", "this does not hold: low = -1e+30")]


def test_data_may_end_a_loop_that_touches_no_stream() -> None:
    text = TASK + "for i in range(9):\n        if data():\n            break\n    s.put(1)\n"
    text += "@task(mapping=[1])\ndef b():\n    for i in range(4):\n        if data():\n            continue\n"
    assert check(text + "        use(i)\n    use(s.get())\n").findings == ()


@in_both
def test_changed_programs_give_findings() -> None:
    random = Random(7)
    texts = [case["program"] for case in LISTED.values()]
    readable = 0
    for _ in range(cases(4000, 150)):
        tree = ast.parse(random.choice(texts))
        parts = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt)]
        others = [node for node in ast.walk(ast.parse(random.choice(texts))) if isinstance(node, ast.expr | ast.stmt)]
        for _ in range(random.randint(1, 3)):
            target, donor = random.choice(parts), random.choice(others)
            for name in set(target._fields) & set(donor._fields):
                setattr(target, name, getattr(donor, name))
        try:
            text = ast.unparse(tree)
            ast.parse(text)
        except (ValueError, TypeError, AttributeError, SyntaxError, RecursionError):
            continue
        readable += 1
        start = process_time()
        report = check(text)
        assert process_time() - start < 20, text
        assert all(f.message and f.place is not None for f in report.findings if f.code != "limit"), text
    assert readable > cases(4000, 150) // 4


@in_both
def test_cut_texts_give_findings() -> None:
    random = Random(8)
    texts = [case["program"] for case in LISTED.values()]
    for _ in range(cases(4000, 150)):
        text = random.choice(texts)
        a, b = sorted(random.choices(range(len(text)), k=2))
        report = check(text[:a] + random.choice(["", "s", "(", ":", "\n", "é", "[", "data()"]) + text[b:])
        assert str(report) or report.code == ""


@in_both
def test_python_of_every_kind_gives_findings_and_is_not_executed(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    kinds: set[str] = set()
    for seed in range(cases(3000, 100)):
        text = program(Random(seed), EFFECT.format(str(mark)))
        start = process_time()
        report = check(text)
        assert str(report)
        assert process_time() - start < 20, text
        assert all(f.code in CODES and f.message for f in report.findings), text
        assert all(f.place is not None for f in report.findings if f.code not in ("limit", "syntax")), text
        if report.code != "syntax":
            kinds |= {type(node).__name__ for node in ast.walk(ast.parse(text))}
    assert not mark.exists()
    every = {kind.__name__ for base in (ast.stmt, ast.expr) for kind in base.__subclasses__()}
    assert len(every - kinds) < cases(1, len(every) // 2)


def test_the_drawn_programs_are_mostly_python() -> None:
    read = 0
    for seed in range(40):
        text = program(Random(seed), "0")
        try:
            ast.parse(text)
            read += 1
        except SyntaxError:
            continue
    assert read > 30


MANY = range(4000)
VARIABLES = "".join(f"v{k} = {k}\n    " for k in MANY)
GROW = "    for i in range(10**5):\n        x = {}\n        if x == 1:\n            s.put(1)\n"
LARGE = {
    "one long line": TASK + "'é';" + "s.put(1);" * 20000,
    "functions that call each other": HEAD
    + "".join(f"def f{k}():\n    f{k + 1}()\n" for k in MANY)
    + f"def f{MANY.stop}():\n    s.put(1)\n@task(mapping=[1])\ndef a():\n    f0()\n",
    "a loop over many streams": HEAD
    + "r = Stream[i32][4000]\n@task(mapping=[1])\ndef a():\n    for i in range(3):\n"
    + "".join(f"        r[{k}].put(1)\n" for k in MANY),
    "many branches on data": TASK + "".join(f"if data():\n        s.put({k})\n    " for k in MANY),
    "many streams": HEAD + "".join(f"r{k}: Stream[i32]\n" for k in MANY) + "@task(mapping=[1])\ndef a():\n    pass\n",
    "many calls": HEAD + "".join(f"c{k} = {k}\n" for k in MANY) + "@region()\ndef r():\n    pass\n" + "r()\n" * 4096,
    "many variables": TASK + VARIABLES + "for i in range(10**6):\n        if i * i > 5:\n            v1 = i\n",
    "many variables in arms": TASK
    + VARIABLES
    + "for i in range(10**6):\n        if data():\n            v1 = i * i\n"
    + "        if i * i == 7:\n            s.put(1)\n",
    "a wide elif": TASK + "if data():\n        pass\n" + "    elif data():\n        s.put(1)\n" * 4000,
    "deep loops": TASK
    + "".join(f"{'    ' * k}for i{k} in range(9):\n    " for k in range(90))
    + f"{'    ' * 90}s.put(1)\n",
    "deep expressions": f"{TASK}x = {'-' * 5000}1\n",
    "tuples of tuples": TASK + "x = (1,)\n" + GROW.format("(x, x)"),
    "a text that doubles": TASK + "x = 'a'\n" + GROW.format("x + x"),
    "large powers": TASK + "x = 2\n" + GROW.format("x ** x"),
    "a loop that never ends": TASK + "x = 0\n    while x >= 0:\n        x = x + 1\n        s.put(1)\n",
    "a loop that goes nowhere": TASK + "x = 0\n    while x == 0:\n        s.put(1)\n",
    "all instances": HEAD
    + "@task(mapping=[65536])\ndef a():\n    i = get_tid()\n"
    + "    if i == 1:\n        pass\n" * 1000,
    "many mistakes": HEAD + "".join(f"f{k}(x)\n" for k in MANY),
    "two hundred tasks round": HEAD
    + "r = Stream[i32, 3][200]\n@task(mapping=[200])\ndef a():\n    i = get_tid()\n    for k in range(10007):\n"
    + "        r[(i + 1) % 200].put(1)\n        if k % 97 != 3:\n            r[(i + 1) % 200].put(1)\n"
    + "        use(r[i].get())\n        if k % 89 != 3:\n            use(r[i].get())\n",
}


@in_both
@pytest.mark.parametrize("name", sampled(LARGE, ["functions that call each other"], full))
def test_any_file_is_checked_in_bounded_time(name: str) -> None:
    start = process_time()
    report = check(LARGE[name])
    assert str(report)
    assert report.code or name in ("many streams", "many calls")
    assert process_time() - start < 20


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    effect = EFFECT.format(str(mark))
    places = f"""
{effect}
x = {effect}
class C(metaclass={effect}):
    {effect}
@{effect}
def f(a={effect}) -> {effect}:
    {effect}
f()
C()
B: f32[{effect}]
r: Stream[i32, {effect}]
q = Stream[i32][{effect}]
@region()
def g(n={effect}):
    {effect}
g()
g({effect})
@task(mapping=[{effect}])
def b():
    {effect}
@task(mapping=[1], args=[{effect}])
def c(x: {effect}):
    pass
@task(mapping=[1])
def d(x: f32[8] @ Layout({effect})):
    for i in range({effect}):
        s.put({effect})
    with meta_if({effect}):
        y = [{effect} for k in {effect}]
    assert {effect}
    return {effect}
if __name__ == '__main__':
    {effect}
"""
    for line in ("", *places.splitlines(keepends=True)):
        report = check(HEAD + (line if line.startswith(("x", "B", "r", "q", effect[:9])) else places))
        assert str(report)
        assert not mark.exists()


def test_a_value_of_another_rank_than_its_annotation() -> None:
    text = "from rsn.streams import *\nR: f32[4]\n@task(mapping=[1], args=[R])\ndef a(r):\n    z: f32[3, 4] = r + 1\n"
    report = check(text + "    z[0, 0] = 1.0\n    use(z[0, 0:2], z + z, z[5, 0])\n")
    assert [(f.code, f.place and f.place.line) for f in report.findings] == [("index", 7)]
