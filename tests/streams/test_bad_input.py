"""Whatever a file holds, the check answers with findings: no traceback, no execution, no endless run."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from random import Random

import pytest

from rsn.streams.check import check
from rsn.tests.effort import cases, in_both

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
        (TASK + "for i in range(10000000):\n        if i * i > 5:\n            s.put(1)\n", "limit", None),
        (TASK + "x = 7 // 0\n", "unsupported", (5, 8)),
        (TASK + "x = data()\n    with meta_if(x):\n        s.put(1)\n", "meta", (6, 17)),
        (TASK + "while data():\n        s.put(1)\n", "join", (5, 4)),
        (TASK + "for i in range(3):\n        if data():\n            break\n        s.put(1)\n", "join", (6, 8)),
        (TASK + "s[0].put(1)\n", "index", (5, 4)),
        (TASK + "s.put(1.5)\n", "type", (5, 4)),
        (TASK + "s.put(y)\n", "unsupported", (5, 10)),
    ],
)
def test_finding_and_place(text: str, code: str, at: tuple[int, int] | None) -> None:
    report = check(text)
    first = report.findings[0]
    assert (first.code, report.code) == (code, code), str(report)
    if at is not None:
        assert first.place is not None
        assert first.place[:2] == at
        assert "^" in str(report)


def test_a_value_awaited_twice() -> None:
    text = TASK + "s.put(1)\n@task(mapping=[1])\ndef b():\n    x = s.get()\n    await x\n    use(await x)\n"
    assert check(text).code == "future"


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
        report = check(text)
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
