"""Indices beyond an axis, and names that do not exist, are found before any run."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.streams.check import check
from rsn.tests.effort import examples

PROGRAM = """from rsn.streams import *
x: f32[{size}]
s: Stream[f32, 2]
@task(mapping=[1], args=[x])
def a(x: f32[{size}]) -> None:
    for i in range({first}, {n}):
        for j in range({m}):
            {statement}
@task(mapping=[1])
def b() -> None:
    for i in range({first}, {n}):
        for j in range({m}):
            drop(s.get())
"""


def found(**parts: object) -> list[str]:
    """What the check says, with the lines of the findings that are not of `index` left out."""
    report = check(PROGRAM.format(**parts))
    return [f.message for f in report.findings if f.code == "index"]


@given(st.data())
@examples(1000, 50)
def test_an_index_is_found_if_an_iteration_leaves_its_axis(data: st.DataObject) -> None:
    numbers = st.integers(-3, 3)
    a, b, c = data.draw(numbers), data.draw(numbers), data.draw(st.integers(-6, 6))
    size, first, n, m = (data.draw(st.integers(low, high)) for low, high in ((1, 12), (0, 2), (3, 6), (1, 4)))
    leaves = any(not 0 <= a * i + b * j + c < size for i, j in product(range(first, n), range(m)))
    sizes = {"size": size, "first": first, "n": n, "m": m}
    index = f"{a} * i + {b} * j + {c}"
    assert bool(found(statement=f"s.put(x[{index}])", **sizes)) == leaves
    assert bool(found(statement=f"k = {a} * i + {c}; k = k + {b} * j; s.put(x[k])", **sizes)) == leaves
    guarded = f"s.put(x[{index}] if 0 <= {index} < {size} else f32(0))"
    assert found(statement=guarded, **sizes) == []
    assert found(statement=f"s.put(x[({index}) % {size}])", **sizes) == []


@given(st.data())
@examples(1000, 50)
def test_a_slice_is_found_if_an_iteration_leaves_its_axis(data: st.DataObject) -> None:
    numbers = st.integers(-3, 3)
    a, b, c = data.draw(numbers), data.draw(numbers), data.draw(st.integers(-6, 6))
    size, first, n, m, width = (data.draw(st.integers(*ends)) for ends in ((1, 12), (0, 2), (3, 6), (1, 4), (0, 3)))
    starts = [a * i + b * j + c for i, j in product(range(first, n), range(m))]
    leaves = any(not 0 <= start <= start + width <= size for start in starts)
    index = f"{a} * i + {b} * j + {c}"
    statement = f"s.put(reduce_sum(x[{index} : {index} + {width}], 0))"
    assert bool(found(statement=statement, size=size, first=first, n=n, m=m)) == leaves


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("k = 2 * n", "k"),
        ("k = n\nif data():\n    k = 9 * n", ""),
        ("k = n\nif data():\n    k = n\nk = k + 1", ""),
        ("k = 2 * n\nn = 0", ""),
        ("k = 2 * n\nfor n in range(3):\n    x[n] = 0.0", ""),
        ("for n in range(3):\n    k = n\nk = k + 6", ""),
    ],
)
def test_a_variable_is_a_sum_of_indices_until_something_changes(body: str, wrong: str) -> None:
    """What data, or another loop, may have changed is left to the run."""
    lines = "".join(f"        {line}\n" for line in f"{body}\ny[0] = x[k]".split("\n"))
    text = "from rsn.streams import *\nX: f32[8]\nY: f32[8]\n@task(mapping=[1], args=[X, Y])\n"
    report = check(f"{text}def t(x: f32[8], y: f32[8]):\n    for n in range(8):\n{lines}")
    messages = [f.message for f in report.findings if not f.warning]
    assert messages == ([f"x[{wrong}]: the index is 14 where n = 7, outside an axis of size 8"] if wrong else [])


def test_a_store_beyond_an_axis_is_found() -> None:
    for statement, message in (
        ("x[i : i + 2] = zeros(f32, 2)", "x[i:i + 2]: the slice ends at 9 where i = 7, outside an axis of size 8"),
        ("x[i - 1] = 0.0", "x[i - 1]: the index is -1 where i = 0, outside an axis of size 8"),
        ("x[-1] = 0.0", "x[-1]: the index -1 is outside an axis of size 8"),
    ):
        assert found(statement=f"{statement}; s.put(0.0)", size=8, first=0, n=8, m=1) == [message]


def test_the_iteration_is_named() -> None:
    (message,) = found(statement="s.put(x[i + 1])", size=8, first=0, n=8, m=1)
    assert message == "x[i + 1]: the index is 8 where i = 7, outside an axis of size 8"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x[i] * nothing", "the name nothing is not known here"),
        ("nothing.maximum(x[i], 0)", "the name nothing is not known here"),
        ("[v for v in nothing][0]", "the name nothing is not known here"),
        ("x[nothing]", "the name nothing is not known here"),
        ("relux(x[i])", "there is no function relux"),
        ("x[i] if nothing else x[i]", "the name nothing is not known here"),
    ],
)
def test_names_that_do_not_exist(expression: str, message: str) -> None:
    report = check(PROGRAM.format(statement=f"s.put({expression})", size=8, first=0, n=8, m=1))
    assert (report.findings[0].code, report.findings[0].message) == ("unsupported", message)
    assert report.findings[0].place is not None
    assert report.findings[0].place.line == 8


@pytest.mark.parametrize("expression", ["use(x[i])", "[v for v in (1.0, 2.0)][0]", "sample(i)", "max(x[i], x[j])"])
def test_names_that_need_no_definition(expression: str) -> None:
    report = check(PROGRAM.format(statement=f"s.put({expression})", size=8, first=0, n=8, m=1))
    assert [f.message for f in report.findings if not f.warning] == []
