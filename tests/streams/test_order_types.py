"""Orders of tokens: what is one, when two are equal, and the buffer between two that are not."""

from __future__ import annotations

from math import prod
from random import Random

import pytest

from rsn.base.errors import ProgramError
from rsn.streams.orders.converter import (
    converter,
    least_elements,
    parting,
)
from rsn.streams.orders.order import Axis, Order
from rsn.streams.orders.shown import squeezed
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.orders import buffer_as_described, buffer_as_printed, drawn_pair, held, needed

CUT = "1x1x2x2"


def test_tokens_come_in_the_order_of_the_loops() -> None:
    order = Order.parse("4x2 [4,2]*[2,4] (d1,d0)")
    assert list(order.indices()) == [(0, 0), (4, 0), (0, 2), (4, 2), (0, 4), (4, 4), (0, 6), (4, 6)]
    assert (order.tokens, order.tensor, order.bytes_per_token) == (8, (8, 8), 32)
    again = Order.parse("4x2 [4,2,2]*[2,1,4] (d2,d0)")
    assert list(again.indices())[:6] == [(0, 0), (4, 0), (0, 0), (4, 0), (0, 2), (4, 2)]
    assert (again.tokens, again.tensor) == (16, (8, 8))


@pytest.mark.parametrize(
    "text", ["4x2 [4,2]*[2,4] (d1,d0)", "8x4xi8 [4]*[4] (0,d0)", "2xbf16 [3]*[2] (d0+4)", "1x1x2x2 [2]*[1] (d0,0,0,4)"]
)
def test_the_text_of_an_order_is_read_again(text: str) -> None:
    assert str(Order.parse(text)) == text


def test_loops_of_one_trip_change_nothing() -> None:
    long, short = Order.parse("4x4 [2,1,2]*[4,1,4] (d0,d2)"), Order.parse("4x4 [2,2]*[4,4] (d0,d1)")
    assert long != short
    assert long.canonical == short.canonical == short
    assert converter(long, short) is None
    assert Order.parse("4x4 [1,2]*[4,4] (d0,d1)").canonical.axes == (Axis(None), Axis(0))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("4x4 [4,2]*[2,4] (d0,d1)", "loop d0 steps by 2 where a token has 4 elements, so that tokens overlap"),
        ("2x4 [2,2]*[4,4] (d0,d1)", "loop d0 steps by 4 where a token has 2 elements, so that tokens leave"),
        ("4x4 [2]*[4] (d0,d0)", "loop d0 drives axes 0 and 1"),
        ("4x4 [2]*[4] (d0,d1)", "there is no loop d1"),
        ("4x4 [2,0]*[4,4] (d0,d1)", "a loop's trips is 0"),
        ("4x4 [2,2]*[4] (d0,d1)", "2 trips and 1 steps"),
        ("4x4 [2]*[4] (d0)", "a token has 2 axes, and 1 are given places"),
        ("4x4xf8 [2]*[4] (d0,0)", "f8 is no type of elements"),
        ("4x4 [2]*[4] (x,0)", "'x' places no axis"),
        ("4x4 (d0,d1)", "is no order; one looks like"),
    ],
)
def test_what_is_no_order_is_refused(text: str, what: str) -> None:
    with pytest.raises(ProgramError, match=what.replace("(", r"\(")):
        Order.parse(text)


@pytest.mark.parametrize(
    ("put", "get", "printed", "buffer", "shared", "elements", "least"),
    [
        ("4x2 [4,2]*[2,4] (d1,d0)", "4x2 [4,2,2]*[2,1,4] (d2,d0)", (8, 8), (8, 2), 1, 32, 16),
        ("16x16 [4,4]*[16,16] (d0,d1)", "16x16 [4,4,4]*[16,1,16] (d0,d2)", (16, 64), (16, 64), 1, 2048, 1024),
        ("16x16 [4,4]*[16,16] (d0,d1)", "16x16 [4,4]*[16,16] (d1,d0)", (64, 64), (64, 64), 0, 8192, 2560),
        ("16x16 [4,4]*[16,16] (d0,d1)", "32x32 [2,2]*[32,32] (d0,d1)", (64, 64), (64, 64), 0, 8192, 1536),
        (
            "1x1x2x2 [2,3,4,5]*[1,1,2,2] (d0,d1,d2,d3)",
            "1x1x2x2 [2,3,5,4]*[1,1,2,2] (d0,d1,d3,d2)",
            (1, 1, 8, 10),
            (1, 1, 8, 10),
            2,
            160,
            52,
        ),
        ("2x2 [4,4]*[2,2] (d1,d0)", "2x2 [4,2,4]*[2,1,2] (d2,d0)", (8, 8), (8, 2), 1, 32, 16),
        ("8x4 [4]*[4] (0,d0)", "8x4 [4,2]*[4,1] (0,d0)", (8, 4), (8, 4), 1, 64, 32),
        ("16x16 [4,4]*[16,16] (d0,d1)", "16x16 [4,8,4]*[16,1,16] (d0,d2)", (16, 64), (16, 64), 1, 2048, 1024),
    ],
)
def test_buffers_between_orders(
    put: str, get: str, printed: tuple[int, ...], buffer: tuple[int, ...], shared: int, elements: int, least: int
) -> None:
    source, target = Order.parse(put), Order.parse(get)
    found = converter(source, target)
    assert found is not None
    assert (found.buffer, found.shared_loops, found.ping_pong_elements) == (buffer, shared, elements)
    assert found.ping_pong_bytes == 4 * elements
    assert converter(source, source) is None
    assert buffer_as_printed(source, target) == printed
    assert buffer_as_described(source, target) == buffer
    assert least_elements(source, target) == least


def test_a_part_that_begins_inside_a_tensor_is_converted_like_a_whole_one() -> None:
    source, target = "2x2 [4,4]*[2,2] (d1+{0},d0+{1})", "2x2 [4,2,4]*[2,1,2] (d2+{0},d0+{1})"
    whole, part = ([Order.parse(text.format(*at)) for text in (source, target)] for at in ((0, 0), (3, 7)))
    assert least_elements(*part) == least_elements(*whole) == 16
    scalar = Order((), (2,), (1,), ())
    assert least_elements(Order((), (), (), ()), scalar) == 1
    assert squeezed(scalar) == scalar
    assert buffer_as_printed(*part) == (8, 8)
    found = converter(*part)
    assert found is not None
    assert found.buffer == (8, 2)


@in_both
def test_a_converter_holds_what_sets_of_elements_say() -> None:
    random = Random(1)
    for _ in range(cases(5000, 200)):
        put, get = drawn_pair(random)
        found = converter(put, get)
        if found is None:
            assert list(put.canonical.indices()) == list(get.canonical.indices())
            continue
        assert (found.shared_loops, found.buffer) == needed(put, get), (put, get)
        sizes = [prod(rule(put, get)) for rule in (buffer_as_printed, buffer_as_described)]
        assert sizes[0] >= sizes[1] >= prod(found.buffer), (put, get)
        least = least_elements(put, get)
        assert least == held(put, get) <= prod(put.tensor)
        if not any(put.axis_of(loop) is None and put.trips[loop] > 1 for loop in range(len(put.trips))):
            assert least <= 2 * prod(found.buffer)


@pytest.mark.parametrize(
    ("put", "get", "what"),
    [
        ("2x2 [4,4]*[2,2] (d0,d1)", "2x2 [4,1,4]*[2,9,2] (d0,d2)", ""),
        (
            "2x2 [4,4]*[2,2] (d0,d1)",
            "2x2 [4,4]*[2,2] (d1,d0)",
            "they part at the outermost loop: put in 4 steps along axis 0, got in 4 steps along axis 1",
        ),
        (
            "2x2 [4,4]*[2,2] (d0,d1)",
            "2x2 [4,3,4]*[2,1,2] (d0,d2)",
            "they part at loop 1, counted from the outermost one as 0: put in 4 steps along axis 1, got 3 times again",
        ),
        ("2x2 [4]*[2] (d0,0)", "2x2 [4,2]*[2,1] (d0,0)", "put once, got 2 times again"),
        ("2x2 [4,4]*[2,2] (d0,d1)", "4x2 [2,4]*[4,2] (d0,d1)", "tokens of 2x2 are put, tokens of 4x2 are got"),
        ("2x2 [4]*[2] (d0,0)", "2x2xi8 [4]*[2] (d0,0)", "one is of f32[8, 2], the other of i8[8, 2]"),
    ],
)
def test_where_orders_part(put: str, get: str, what: str) -> None:
    assert parting(Order.parse(put), Order.parse(get)).endswith(what)
    assert bool(parting(Order.parse(put), Order.parse(get))) == bool(what)


def test_orders_of_two_tensors_have_no_converter() -> None:
    with pytest.raises(ProgramError, match="of tensors of another shape or type"):
        converter(Order.parse("4x4 [2]*[4] (d0,0)"), Order.parse("4x4 [3]*[4] (d0,0)"))
