"""Large programs: the time of a check follows the shape of the program, not the number of tokens."""

from __future__ import annotations

from time import process_time

import pytest

from rsn.streams.check import check

ARRAY = """
from rsn.streams import *
A: Stream[i8, 2][18, 18]
B: Stream[i8, 2][18, 18]
@task(mapping=[18, 18])
def gemm():
    i, j = get_tid()
    for t in range({tiles}):
        with meta_if(i in {{0, 17}} and j in {{0, 17}}):
            pass
        with meta_elif(j == 0):
            for k in range({inner}):
                A[i, 1].put(k)
        with meta_elif(i == 0):
            for k in range({inner}):
                B[1, j].put(k)
        with meta_elif(j == 17):
            for k in range({inner}):
                drop(A[i, j].get())
        with meta_elif(i == 17):
            for k in range({inner}):
                drop(B[i, j].get())
        with meta_else():
            for k in range({inner}):
                a = A[i, j].get()
                b = B[i, j].get()
                use(a * b)
                A[i, j + 1].put(a)
                B[i + 1, j].put(b)
"""
PAIR = """
from rsn.streams import *
s: Stream[i32, {depth}]
t: Stream[i32, 1]
@task(mapping=[1])
def a():
    {writer}
@task(mapping=[1])
def b():
    {reader}
"""
THIRDS = """for i in range(1000000):
        if i % 3 == 0:
            s.put(i)
        else:
            t.put(i)"""
THIRDS_READ = THIRDS.replace("s.put(i)", "use(s.get())").replace("t.put(i)", "use(t.get())")
ENDS = """n, first = 10**6, 3
    for i in range(n):
        if i < first or i == n - 1:
            s.put(i)
        if i % first != 0 and i in {1, n // 2}:
            s.put(i)
        else:
            t.put(i)"""
ENDS_READ = """for i in range(10**6):
        if i == 999999 or 0 <= i <= 2:
            use(s.get())
        with meta_if(i == 1 or i == 500000):
            use(s.get())
        with meta_else():
            use(t.get())"""
GRID = """for i, j in grid(1000, 1000):
        if j == 999 or i == 0:
            s.put(i)
        t.put(j)"""
GRID_READ = """for i in range(1000):
        for j in range(1000):
            if i < 1 or j > 998:
                use(s.get())
            use(t.get())"""
FORK = """for i in range(1000):
        t.put(i)
        for j in range(1000):
            s.put(j)"""
JOIN = """for i in range(1000):
        use(t.get())
        for j in range(500):
            use(s.get())
            use(s.get())"""
TRIANGLE = """for i in range(1413):
        for j in range(i + 1):
            s.put(j)
    t.put(0)"""
FLAT = """for i in range(998991):
        use(s.get())
    use(t.get())"""


@pytest.mark.parametrize(("tiles", "inner"), [(1, 10**6), (1000, 1000), (62500, 16)])
def test_an_array_with_a_million_tokens_on_each_stream(tiles: int, inner: int) -> None:
    start = process_time()
    report = check(ARRAY.format(tiles=tiles, inner=inner))
    assert process_time() - start < 20
    assert {f.code for f in report.findings} == {"unused"}
    assert report.code == ""


@pytest.mark.parametrize(
    ("writer", "reader", "depth", "code"),
    [
        (THIRDS, THIRDS_READ, 1, ""),
        (THIRDS, THIRDS_READ.replace("i % 3 == 0", "i % 3 != 0"), 1, "starved"),
        (THIRDS, THIRDS_READ.replace("i % 3 == 0", "i % 3 == 2"), 1, "starved"),
        (ENDS, ENDS_READ, 1, ""),
        (ENDS, ENDS_READ.replace("999999", "999998"), 1, ""),
        (ENDS, ENDS_READ.replace("<= i <=", "<= i <"), 1, "leak"),
        (GRID, GRID_READ, 1, ""),
        (GRID, GRID_READ.replace("i < 1", "i < 2"), 1, "starved"),
        (FORK, JOIN, 2, ""),
        (FORK, JOIN.replace("use(t.get())\n", "use(s.get())\n", 1), 2, "starved"),
        (TRIANGLE, FLAT, 2, ""),
        (TRIANGLE, FLAT.replace("998991", "998990"), 2, "leak"),
    ],
)
def test_a_million_tokens(writer: str, reader: str, depth: int, code: str) -> None:
    start = process_time()
    report = check(PAIR.format(writer=writer, reader=reader, depth=depth))
    assert process_time() - start < 20
    assert report.code == code, str(report)


@pytest.mark.long
def test_a_long_pipeline() -> None:
    text = """from rsn.streams import *
s = Stream[i32][4001]
@task(mapping=[4000])
def pe():
    i = get_tid()
    for k in range(1000):
        s[i + 1].put(s[i].get())
@task(mapping=[1])
def source():
    for k in range(1000):
        s[0].put(k)
@task(mapping=[1])
def sink():
    for k in range(1000):
        use(s[4000].get())
"""
    start = process_time()
    assert check(text).findings == ()
    assert (
        check(text.replace("i = get_tid()", "i = get_tid()\n    if i == 7:\n        use(s[i].get())")).code == "starved"
    )
    assert process_time() - start < 20


def test_the_least_depth_of_a_million() -> None:
    writer = "for i in range(1000000):\n        s.put(i)\n    t.put(0)"
    reader = "use(t.get())\n    for i in range(1000000):\n        use(s.get())"
    report = check(PAIR.format(writer=writer, reader=reader, depth=7))
    assert report.code == "depth"
    assert "depth 1000000 of s is the least with which it ends, others as declared" in report.findings[0].notes
