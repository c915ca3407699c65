"""One get is one token: what may be read again, and what awaits it twice."""

from __future__ import annotations

import pytest

from rsn.streams.check import check

PROGRAM = """from rsn.streams import *
s: Stream[i32, 4]
t: Stream[i32, 4]
@task(mapping=[1])
def a():
    for i in range(4):
        s.put(i)
@task(mapping=[1])
async def b():
    {body}
@task(mapping=[1])
def c():
    for i in range({left}):
        use(t.get())
"""
REST = """
for i in range(3):
    drop(s.get())"""


def verdict(body: str, left: int = 0) -> tuple[str, int]:
    """Code of the cause, and the line of its place within the body of b."""
    report = check(PROGRAM.format(body=body.replace("\n", "\n    "), left=left))
    places = [f.place.line - 9 for f in report.findings if f.place is not None and f.code == report.code]
    return report.code, places[0] if places and report.code else 0


@pytest.mark.parametrize(
    "body",
    [
        "f = s.get()\nuse(await f)",
        "use(await s.get())",
        "x = await s.get()\nuse(x, x)\nuse(x)",
        "f = s.get()\nawait f\nuse(f)",
        "f = s.get()\ng = f\nuse(await f)\nuse(g)",
        "f = s.get()\nif data():\n    use(await f)\nelse:\n    drop(await f)",
        "f = s.get()\ny = await f if data() else await f\nuse(y)",
        "f = s.get()\nif data():\n    drop(f)\nelse:\n    use(f)",
        "x = s.get()\nuse(x)\ndrop(x)",
        "x = s.get()\nfor i in range(5):\n    use(x)",
        "x = s.get()\nuse(x)\nuse(await other(x))",
    ],
)
def test_one_await(body: str) -> None:
    assert verdict(body + REST) == ("", 0)


def test_the_next_get_is_another_future() -> None:
    assert verdict("for i in range(4):\n    f = s.get()\n    use(await f)") == ("", 0)
    assert verdict("f = s.get()\nfor i in range(3):\n    g = s.get()\n    use(await f)\n    f = g\nuse(await f)") == (
        "",
        0,
    )
    assert verdict("for i in range(4):\n    x = s.get()\n    t.put(x)\n    t.put(await x)", 8) == ("future", 4)
    assert verdict("for i in range(4):\n    x = s.get()\n    t.put(x)\n    t.put(x)", 8) == ("", 0)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("f = s.get()\nawait f\nawait f", 3),
        ("f = s.get()\nuse(await f)\nuse(await f)", 3),
        ("f = s.get()\nuse(await f, await f)", 2),
        ("f = s.get()\nuse(await f + await f)", 2),
        ("f = s.get()\ng = f\nuse(await f)\nuse(await g)", 4),
        ("use(await (await s.get()))", 1),
        ("f = s.get()\nx = await f\nuse(await x)", 3),
        ("x = s.get()\nuse(x)\nuse(await x)", 3),
        ("f = s.get()\nfor i in range(2):\n    use(await f)", 3),
        ("f = s.get()\nwhile data():\n    use(await f)", 3),
        ("f = s.get()\nif data():\n    use(await f)\nuse(await f)", 4),
        ("f = s.get()\nuse(await f if data() else 0)\nuse(await f)", 3),
        ("f = s.get()\nx, y = await f, await f\nuse(x, y)", 2),
        ("x = s.get()\ndrop(x)\nuse(x)", 3),
        ("x = s.get()\ndrop(x)\ndrop(x)", 3),
        ("x = s.get()\nif data():\n    drop(x)\nuse(x)", 4),
    ],
)
def test_two_awaits(body: str, line: int) -> None:
    assert verdict(body + REST) == ("future", line)


def test_as_printed() -> None:
    text = PROGRAM.format(body="x = s.get()\n    await x\n    await x", left=0).replace("range(4)", "range(1)")
    report = check(text, "prog.py")
    assert str(report).splitlines()[:4] == [
        "prog.py:12:5: error: b awaits what it gets from s in line 10, after it was awaited [future]",
        "    await x",
        "    ^^^^^^^",
        "note: one get is one token: await it once, and keep the value",
    ]


@pytest.mark.parametrize("body", ["use(await 3)", "x = data()\nuse(await x)", "use([await s.get() for i in range(2)])"])
def test_what_is_no_future_cannot_be_awaited(body: str) -> None:
    assert verdict(body)[0] == "unsupported"


def test_other_causes_come_first() -> None:
    assert verdict("f = s.get()\nawait f\nawait f")[0] == "leak"
