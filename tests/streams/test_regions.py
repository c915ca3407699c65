"""What a file declares: tensors and parameters, arrays of streams in both spellings, regions that call regions."""

from __future__ import annotations

import pytest

from rsn.base.element_types import ElementType
from rsn.streams.check import check
from rsn.streams.reader import read

HEAD = "from rsn.streams import *\n"
TENSORS = HEAD + "A: f32[64, 32]\nB: f32[32, 64]\n"
PAIR = """
@region()
def pair(n: int, out: Stream[i32, 2], k: int = 1):
    t: Stream[i32, 1]
    @task(mapping=[1])
    def a():
        for i in range(n * k):
            t.put(i)
    @task(mapping=[1])
    def b():
        for i in range(n * k):
            out.put(t.get())
"""
SINK = """
@task(mapping=[1])
def sink():
    for i in range(4):
        use(s.get())
"""


def found(text: str, region: str | None = None) -> list[tuple[str, int]]:
    """Code and line of each finding."""
    return [(f.code, 0 if f.place is None else f.place.line) for f in check(text, region=region).findings]


# -- tensors and parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "layout"),
    [
        ('f32[64, 32] @ Layout("S0R")', "S0R"),
        ('Annotated[f32[64, 32], Layout("S0R")]', "S0R"),
        ("typing.Annotated[f32[m, 32], Layout(labels=cut)]", "S0R"),
        ("'f32[64, 32]'", None),
        ("T", None),
        ("f32[64, 32]", None),
    ],
)
def test_parameters_of_a_task(annotation: str, layout: str | None) -> None:
    text = f"import typing\nfrom typing import Annotated\n{TENSORS}m, cut = 64, 'S0R'\nT = f32[m, 32]\n"
    text += f"@task(mapping=[2], args=[A, B])\ndef t(a: {annotation}, b):\n    use(a, b)\n"
    region = read(text)
    assert region.source.findings == []
    (task,) = region.tasks
    a, b = task.parameters
    assert (a.name, a.tensor, a.type, a.layout) == ("a", region.tensors[0], ElementType("f32", (64, 32)), layout)
    assert (b.name, b.tensor, b.type, b.layout) == ("b", region.tensors[1], ElementType("f32", (32, 64)), None)
    assert (a.place.line, a.place.column, b.place.column) == (9, 10, 10 + len(annotation) + 2)


@pytest.mark.parametrize(
    ("task", "code", "message"),
    [
        ("args=[A, C])\ndef t(a, c", "unsupported", "C is no tensor of this region"),
        ("args=[A, a])\ndef t(a, c", "unsupported", "a is no tensor of this region"),
        ("args=[A, n])\ndef t(a, c", "unsupported", "n is no tensor of this region"),
        ("args=[A])\ndef t(a, b", "unsupported", "t has 2 parameters, and args= has 1 tensor"),
        ("args=A)\ndef t(a", "unsupported", "args= is a list of tensors"),
        ("args=[A])\ndef t(a: f32[32, 64]", "type", "a is f32[32, 64], but args= binds A: f32[64, 32]"),
        ("args=[A])\ndef t(a: f16[64, 32] @ Layout('S0R')", "type", "a is f16[64, 32], but args= binds A"),
        ("args=[A])\ndef t(a: f32[64, 32] @ S0R", "unsupported", "this is no layout"),
        ("args=[A])\ndef t(a: f32[64, 32] @ Layout(n)", "unsupported", "this is no layout"),
        ("args=[A])\ndef t(a: Annotated[f32[64, 32]]", "unsupported", "Annotated takes a type and a layout"),
        ("args=[A])\ndef t(a: q[64, 32]", "unsupported", "the name q is not known here"),
        ("args=[A])\ndef t(a=A", "unsupported", "plain parameters only"),
    ],
)
def test_wrong_parameters(task: str, code: str, message: str) -> None:
    report = check(f"{TENSORS}from typing import Annotated\nn = 4\n@task(mapping=[1], {task}):\n    pass\n")
    assert report.code == code
    assert message in report.findings[0].message
    assert report.findings[0].place is not None
    assert report.findings[0].place.line >= 6


def test_the_nearest_tensor_is_named() -> None:
    report = check(HEAD + "weights: f32[8]\n@task(mapping=[1], args=[weigths])\ndef t(w):\n    use(w)\n")
    assert report.findings[0].notes == ("did you mean weights?",)
    (finding,) = check("from rsn.streams import *\ns: Stream[int32, 4]\n").findings
    assert finding.notes == ("did you mean i32?",)


def test_a_task_on_plain_arrays() -> None:
    text = "import numpy as np\n" + HEAD + "@task(mapping=[1])\ndef t(a, b: np.ndarray, n: int):\n    c = a @ b + n\n"
    region = read(text)
    assert region.source.findings == []
    assert [(p.tensor, p.type, p.layout) for p in region.tasks[0].parameters] == [(None, None, None)] * 3
    assert check(text).findings == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('C: f32[8] @ Layout("S0")', "a layout stands at the parameter of a task"),
        ("C: int", "C is no stream and no tensor"),
        ("A: f32[8]", "A is declared twice"),
        ("C: f32[0]", "a size of 0"),
        ("C: 'f32['", "this annotation is no type"),
    ],
)
def test_wrong_tensors(line: str, message: str) -> None:
    (finding,) = check(f"{TENSORS}{line}\n").findings
    assert (finding.code, finding.place and finding.place.line) == ("unsupported", 4)
    assert message in finding.message


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "s: Stream[i32, 2][3]",
        "s = Stream[i32, 2][3]",
        "s: 'Stream[i32, 2][3]'",
        "s: Stream[i32] = Stream[i32, 2][3]",
        "n, s = 3, Stream[i32][n]",
        "T = i32\ns = Stream[T][2 + 1]",
    ],
)
def test_spellings_of_an_array_of_streams(line: str) -> None:
    region = read(f"{HEAD}{line}\n")
    assert region.source.findings == []
    (stream,) = region.streams
    assert (stream.name, str(stream.type), stream.depth, stream.shape) == ("s", "i32", 2, (3,))


@pytest.mark.parametrize(
    "line",
    [
        "s = Stream",
        "s = Stream(i32, 2)",
        "import rsn.streams as st\ns = st.Stream[i32, 2]",
        "s = [Stream[i32, 2] for i in range(3)]",
        "s = t = Stream[i32, 2]",
        "q: Stream[i32, 2]\ns = q",
        "f = lambda: q.get()\nq: Stream[i32, 2]",
        "q: Stream[i32, 2]\nx = q.get()",
        "x = get_tid()",
        "from rsn.streams import task as job",
        "import rsn.streams as st\n@st.task(mapping=[1])\ndef a():\n    pass",
        "def top():\n    @task(mapping=[1])\n    def a():\n        pass",
    ],
)
def test_what_could_hide_a_stream_is_refused(line: str) -> None:
    assert check(f"{HEAD}{line}\n").code == "unsupported"


def test_a_function_that_uses_a_stream_through_another() -> None:
    text = (
        HEAD + "s: Stream[i32, 2]\ndef f():\n    s.put(1)\ndef g():\n    f()\n@task(mapping=[1])\ndef a():\n    g()\n"
    )
    assert found(text) == [("unsupported", 9)]


def test_what_runs_only_with_the_file_is_not_read() -> None:
    text = HEAD + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import numpy\n"
    assert check(text + "if __name__ == '__main__':\n    print(1)\n").findings == ()


# -- regions ---------------------------------------------------------------------------------------------------------


def test_a_region_is_called() -> None:
    region = read(HEAD + "s: Stream[i32, 2]\n" + PAIR + SINK + "pair(4, s)\n")
    assert region.source.findings == []
    assert [(s.name, s.first) for s in region.streams] == [("s", 0), ("pair.t", 1)]
    assert [i.name for i in region.instances] == ["sink", "pair.a", "pair.b"]
    assert check(region.source.text).findings == ()


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("pair(3, s)", "starved", "1 get more than puts on s: 3 put, 4 got"),
        ("pair(n=1, out=s, k=5)", "leak", "1 put more than gets on s: 5 put, 4 got"),
        ("pair(4, q)\nq: Stream[i32, 2]", "unsupported", "the name q is not known here"),
    ],
)
def test_findings_about_a_call(call: str, code: str, message: str) -> None:
    report = check(HEAD + "s: Stream[i32, 2]\n" + PAIR + SINK + call + "\n")
    assert (report.code, report.findings[0].message) == (code, message)


def test_elements_of_an_array_go_to_calls() -> None:
    text = HEAD + "s = Stream[i32, 2][2, 3]\n" + PAIR.replace("out: Stream[i32, 2]", "out")
    text += "".join(f"pair(4, s[{i}, {j}])\n" for i in range(2) for j in range(3))
    text += (
        "@task(mapping=[2, 3])\ndef sink():\n    i, j = get_tid()\n    for k in range(4):\n        use(s[i, j].get())\n"
    )
    report = check(text)
    assert report.findings == ()
    assert [s.name for s in report.region.streams] == ["s", "pair.t", *(f"pair#{k}.t" for k in range(2, 7))]
    assert len(report.region.instances) == 18
    broken = check(text.replace("pair(4, s[1, 1])", "pair(5, s[1, 1])"))
    assert broken.code == "leak"
    assert (broken.findings[0].subject, broken.findings[0].message[:36]) == (
        "s[1,1]",
        "1 put more than gets on s[1,1]: 5 pu",
    )


def test_rows_of_an_array_and_tensors_go_to_calls() -> None:
    text = (
        HEAD
        + """
X: f32[8, 8]
s = Stream[f32, 1][2, 3]
@region()
def source(row, x: f32[8, 8]):
    @task(mapping=[3], args=[x])
    def feed(a):
        i = get_tid()
        row[i].put(a[i, 0])
@region()
def both(x: f32[8, 8]):
    source(s[0], x)
    source(s[1], x=x)
both(X)
@task(mapping=[2, 3])
def sink():
    i, j = get_tid()
    use(s[i, j].get())
"""
    )
    report = check(text)
    assert report.findings == (), str(report)
    assert [t.name for t in report.region.tasks] == ["both.source.feed", "both.source#2.feed", "sink"]
    assert report.region.tasks[0].parameters[0].tensor == report.region.tensors[0]


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        ("pair()", "unsupported", "pair needs an argument n"),
        ("pair(1)", "unsupported", "pair needs an argument out"),
        ("pair(1, s, 2, 3)", "unsupported", "pair takes 3 arguments, not 4"),
        ("pair(1, s, n=2)", "unsupported", "n is given twice"),
        ("pair(1, s, m=2)", "unsupported", "m is no parameter of pair"),
        ("pair(*x)", "unsupported", "plain arguments"),
        ("pair(1, s, **x)", "unsupported", "plain arguments"),
        ("pair(1.5, s)", "type", "n is int, but the argument is 1.5"),
        ("pair(s, s)", "type", "n is int, but s is a stream"),
        ("pair(1, 2)", "type", "out is Stream[i32, 2], but the argument is 2"),
        ("pair(1, v)", "type", "depth of out: 2, but v has 3"),
        ("pair(1, w)", "type", "elements of out: i32, but w has f32"),
        ("pair(1, r[2])", "index", "r[2] is outside r[2]"),
        ("pair(1, r)", "type", "shape of out: [], but r has [2]"),
        ("import os\npair(os.n, s)", "unsupported", "the argument n is not known before the run"),
        ("@region()\ndef f():\n    f()\nf()", "unsupported", "f calls itself"),
        ("@region()\ndef f():\n    g()\n@region()\ndef g():\n    f()\nf()", "unsupported", "f calls itself"),
        ("@region(3)\ndef f():\n    pass", "unsupported", "region takes no arguments"),
        ("@task(mapping=[1])\ndef f():\n    pair(1, s)", "unsupported", "pair is a region"),
    ],
)
def test_wrong_calls(lines: str, code: str, message: str) -> None:
    head = "s: Stream[i32, 2]\nv: Stream[i32, 3]\nw: Stream[f32, 2]\nr = Stream[i32, 2][2]\n"
    errors = [f for f in check(HEAD + head + PAIR + lines + "\n").findings if not f.warning]
    assert errors[0].code == code, errors
    assert message in errors[0].message


def test_one_region_is_read_with_its_defaults() -> None:
    text = (
        HEAD
        + """
n = 3
s: Stream[i32, 2]
lost: Stream[i32, 2]
@task(mapping=[1])
def a():
    lost.put(1)
@region()
def inner(m: int):
    @task(mapping=[1])
    def a():
        for i in range(m):
            s.put(i)
    @task(mapping=[1])
    def b():
        for i in range(n):
            use(s.get())
@region()
def outer(x: f32[4], m: int = 3):
    inner(m)
"""
    )
    assert check(text).code == "leak"
    report = check(text, region="outer")
    assert report.findings == ()
    assert [t.name for t in report.region.tensors] == ["x"]
    assert [i.name for i in report.region.instances] == ["inner.a", "inner.b"]
    assert check(text.replace("m: int = 3", "m: int = 4"), region="outer").code == "leak"
    assert "m of inner has no default" in check(text, region="inner").findings[0].message
    assert check(text, region="oter").findings[0].notes == ("did you mean outer?",)
    takes = check(HEAD + "s: Stream[i32, 2]\n" + PAIR.replace("n: int", "n"), region="pair").findings[0]
    assert "the parameter n of pair has no default" in takes.message


def test_a_file_with_one_region_is_that_region() -> None:
    text = HEAD + "@region()\ndef top(n: int = 2):\n    s: Stream[i32, 2]\n"
    text += "    @task(mapping=[1])\n    def a():\n        for i in range(n):\n            s.put(i)\n"
    assert check(text).code == "leak"
    other = "@region()\ndef other():\n    pass\n"
    assert check(text + other).findings[0].notes == ("<program>:top", "<program>:other")
    assert check(text + other.replace("pass", "top()")).code == "leak"


def test_many_calls_end_at_a_limit() -> None:
    text = HEAD + "@region()\ndef r0():\n    pass\n"
    for k in range(1, 20):
        text += f"@region()\ndef r{k}():\n    r{k - 1}()\n    r{k - 1}()\n"
    assert check(text + "r19()\n").code == "limit"


def test_shapes_may_be_constants() -> None:
    text = HEAD + "P = [2, 3]\ns = Stream[f32[P], 2][P]\n@task(mapping=P)\ndef a():\n    i, j = get_tid()\n"
    region = read(text + "    s[i, j].put(tile(f32, 2, 3))\n")
    assert region.source.findings == []
    assert (region.tasks[0].mapping, region.streams[0].shape, region.streams[0].type.shape) == ((2, 3),) * 3
    assert found(HEAD + "P = (2, 0)\n@task(mapping=P)\ndef a():\n    pass\n") == [("unsupported", 3)]


def test_functions_are_values() -> None:
    text = HEAD + "def f(x):\n    return x\n@task(mapping=[1])\ndef a():\n    use(f, relu, max, list(map(f, [1, 2])))\n"
    assert check(text).findings == ()
