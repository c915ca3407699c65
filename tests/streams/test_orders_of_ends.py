"""Orders in the language: what the ends of a stream show, what a stream states, and converters as tasks."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from rsn.host.tasks import run_tasks
from rsn.streams.build import build
from rsn.streams.check import Report, check
from rsn.streams.orders.converter import Converter, converter
from rsn.streams.orders.order import Axis, Order
from rsn.streams.orders.text import converted, converter_tasks, load, token_shape
from rsn.streams.syntax.builder import named, task
from rsn.streams.syntax.printer import printed
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.orders import drawn_pair

ROWS = "for i, j in grid(4, 2):"
COLUMNS = "for j, i in grid(2, 4):"
TILE = "[i * 2 : i * 2 + 2, j * 4 : j * 4 + 4]"
STREAM = "s: Stream[f32[2, 4], 2]"


def program(
    put: str = f"    {ROWS}\n        s.put(x{TILE})",
    get: str = f"    {ROWS}\n        y{TILE} = s.get()",
    stream: str = STREAM,
    shape: str = "8, 8",
) -> str:
    return f"""from rsn.streams import *
x: f32[{shape}]
y: f32[{shape}]
{stream}
@task(mapping=[1], args=[x])
def send(x: f32[{shape}]) -> None:
{put}
@task(mapping=[1], args=[y])
def receive(y: f32[{shape}]) -> None:
{get}
"""


def got(loops: str, part: str = TILE) -> str:
    return f"    {loops}\n        y{part} = s.get()"


def verdict(**parts: str) -> Report:
    return check(program(**parts), "p.py")


def test_rows_of_tiles_are_no_columns_of_tiles() -> None:
    assert str(verdict(get=got(COLUMNS))) == (
        "p.py:12:9: error: receive gets s in another order than send puts it: they part at the outermost loop: "
        "put in 4 steps along axis 0, got in 2 steps along axis 1 [order]\n"
        "        y[i * 2 : i * 2 + 2, j * 4 : j * 4 + 4] = s.get()\n"
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "note: put in line 8: s.put(x[i * 2 : i * 2 + 2, j * 4 : j * 4 + 4])\n"
        "note: the orders: 2x4 [4,2]*[2,4] (d0,d1) and 2x4 [2,4]*[4,2] (d1,d0)\n"
        "note: a converter between them holds 8x8 elements of f32 twice: 512 bytes"
    )


@pytest.mark.parametrize(
    "get",
    [
        got(ROWS),
        "    for i in range(4):\n        for j in range(2):\n"
        "            y[i * 2 : (i + 1) * 2, 4 * j : 4 * j + 4] = s.get()",
        "    for i, k, j in grid(4, 1, 2):\n        t = s.get()\n        y[i * 2 : i * 2 + 2, j * 4 : j * 4 + 4] = t",
        "    for i in range(0, 8, 2):\n        for j in range(0, 8, 4):\n            y[i : i + 2, j : j + 4] = s.get()",
        f"    for i in meta_for(4):\n        for j in meta_for(2):\n            y{TILE} = s.get()",
    ],
)
def test_other_spellings_of_one_order_are_equal(get: str) -> None:
    assert verdict(get=get).code == ""


@pytest.mark.parametrize(
    "get",
    [
        f"    {COLUMNS}\n        use(s.get())",  # it stores nothing
        f"    {COLUMNS}\n        y{TILE} = s.get() * 2.0",  # another value
        f"    {COLUMNS}\n        i = i * 1\n        y{TILE} = s.get()",  # an index of its own making
        f"    for j in range(2):\n        for i in range(4):\n            i = 0\n            y{TILE} = s.get()",
        "    for j in range(2):\n        for k in range(2):\n            y[0:2, j * 4 : j * 4 + 4] = s.get()\n"
        "            y[2:4, j * 4 : j * 4 + 4] = s.get()",  # two statements
        "    for k in range(8):\n        y[k // 2 * 2 : k // 2 * 2 + 2, 0:4] = s.get()",
    ],
)
def test_an_end_that_shows_no_order_is_compared_with_nothing(get: str) -> None:
    assert verdict(get=get).code == ""


def test_rows_that_become_columns_are_a_transposition_and_no_mistake() -> None:
    """A row has no axis where a column has one, and single elements show no order."""
    rows = "    for i in range(8):\n        s.put(x[i, :])"
    assert (
        verdict(put=rows, get="    for i in range(8):\n        y[:, i] = s.get()", stream="s: Stream[f32[8], 2]").code
        == ""
    )
    single = "    for i, j in grid(8, 8):\n        s.put(x[i, j])"
    elements = "    for i, j in grid(8, 8):\n        y[j, i] = s.get()"
    assert verdict(put=single, get=elements, stream="s: Stream[f32, 2]").code == ""


def test_tokens_that_are_put_again_come_in_another_order() -> None:
    put = f"    for i, k, j in grid(4, 2, 2):\n        s.put(x{TILE})"
    found = verdict(put=put, get=f"    for i, j, k in grid(4, 2, 2):\n        y{TILE} = s.get()")
    assert found.code == "order"
    assert "part at loop 1, counted from the outermost one as 0: put 2 times again, got in 2 steps along" in str(found)
    assert "holds 2x8 elements of f32 twice: 128 bytes" in str(found)


@pytest.mark.parametrize("form", ["s: {0} @ {1}", "s = {0} @ {1}", "s: Annotated[{0}, {1}]"])
@pytest.mark.parametrize(
    ("order", "what"),
    [
        ("2x4 [4,2]*[2,4] (d0,d1)", ""),
        ("2x4 [4,1,2]*[2,9,4] (d0,d2)", ""),
        (
            "2x4 [2,4]*[4,2] (d1,d0)",
            "send puts s in another order than it states: they part at the outermost loop: put in 4",
        ),
        ("2x4 [4]*[2] (d0,0)", "s states an order of 4 tokens, and 8 pass"),
        ("4x4 [2,2]*[4,4] (d0,d1)", "the order has tokens of f32[4, 4], and the stream carries f32[2, 4]"),
        ("2x4xi8 [4,2]*[2,4] (d0,d1)", "the order has tokens of i8[2, 4], and the stream carries f32[2, 4]"),
        ("2x4 [4,2]*[1,4] (d0,d1)", "so that tokens overlap; step by 2"),
        ("rows", "'rows' is no order; one looks like"),
    ],
)
def test_a_stream_states_its_order(form: str, order: str, what: str) -> None:
    found = verdict(stream=form.format("Stream[f32[2, 4], 2]", f'Order("{order}")'))
    assert bool(found.code) == bool(what)
    assert what in str(found)


def test_an_end_alone_is_compared_with_what_its_stream_states() -> None:
    stream = f'{STREAM} @ Order("2x4 [4,2]*[2,4] (d0,d1)")'
    assert "receive gets s in another order than it states" in str(
        verdict(put="    for k in range(8):\n        s.put(zeros(f32, 2, 4))", get=got(COLUMNS), stream=stream)
    )


def test_streams_of_an_array_carry_shards_in_one_order_each() -> None:
    text = f"""from rsn.streams import *
x: f32[16, 8]
y: f32[16, 8]
s: Stream[f32[2, 4], 2][2] @ Order("2x4 [4,2]*[2,4] (d0,d1)")
@task(mapping=[2], args=[x])
def send(x: f32[16, 8] @ Layout("S0R")) -> None:
    {ROWS}
        s[get_tid()].put(x{TILE})
@task(mapping=[2], args=[y])
def receive(y: f32[16, 8] @ Layout("S0R")) -> None:
    LOOPS
        s[get_tid()].get()
"""
    good = text.replace("LOOPS", ROWS).replace("    s[get_tid()].get()", f"    y{TILE} = s[get_tid()].get()")
    assert check(good).code == ""
    bad = check(good[: good.rindex(ROWS)] + good[good.rindex(ROWS) :].replace(ROWS, COLUMNS))
    assert [f.code for f in bad.findings] == ["order"]
    assert bad.findings[0].message.startswith("receive[0] gets s[0] in another order than it states")


@in_both
def test_a_converter_is_a_task_that_is_right_on_random_orders() -> None:
    random, tried = Random(3), 0
    while tried < cases(60, 6):
        put, get = drawn_pair(random, 6)
        made = converter(put, get)
        if made is None or max(put.tokens, get.tokens) > 200:
            continue
        tried += 1
        text = converter_program(made, overlapped=tried % 2 == 0)
        report = check(text, "converter.py")
        assert not report.code, (put, get, str(report))
        x = np.arange(1, 1 + prod(put.tensor), dtype="f4").reshape(put.tensor)
        found = run_tasks(build(report), {"x": x}).outputs["y"]
        tokens = [x[tuple(slice(k, k + n) for k, n in zip(at, get.element, strict=True))] for at in get.indices()]
        assert (found == np.stack(tokens).reshape(found.shape)).all(), (put, get)


def test_a_token_that_is_given_again_is_kept_as_it_comes() -> None:
    """No buffer is filled with zeros first; any other is, once."""
    put = Order((4, 8), (3,), (4,), (Axis(0), Axis(None)))
    again = converter(put, Order((4, 8), (3, 5), (4, 1), (Axis(0), Axis(None))))
    turned = converter(put, Order((12, 4), (2,), (4,), (Axis(None), Axis(0))))
    assert again is not None
    assert turned is not None
    text = converter_program(again, overlapped=False)
    assert "zeros" not in text
    assert "\n    buffer = zeros(f32, 12, 8)\n" in converter_program(turned, overlapped=False)
    x = np.arange(96, dtype="f4").reshape(12, 8)
    found = run_tasks(build(check(text, "converter.py")), {"x": x}).outputs["y"]
    assert (found == np.repeat(x.reshape(3, 4, 8), 5, axis=0)).all()


def converter_program(made: Converter, overlapped: bool) -> str:
    """Loads x in one order, converts it, and stores the tokens that come out one after the other."""
    tiles = [", ".join(map(str, token_shape(order))) for order in (made.put, made.get)]
    tensor = ", ".join(map(str, made.put.tensor))
    turn = printed([task("turn", converted(made, "a", ["b"]))])
    send = printed([task("send", load("x", made.put, "a"), {"x": named("f32")[made.put.tensor]})])
    lines = [
        "from rsn.streams import *",
        f"x: f32[{tensor}]",
        f"y: f32[{made.get.tokens}, {tiles[1]}]",
        *(f"{name}: Stream[f32[{tile}], 2]" for name, tile in zip("ab", tiles, strict=True)),
        *send.text.splitlines(),
        *(converter_tasks("turn", made, "a", ["b"]) if overlapped else turn.text.splitlines()),
        *("@task(mapping=[1], args=[y])", f"def receive(y: f32[{made.get.tokens}, {tiles[1]}]) -> None:"),
        f"    for k in range({made.get.tokens}):",
        "        y[k] = b.get()",
    ]
    return "\n".join(lines) + "\n"
