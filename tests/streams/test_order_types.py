"""Orders of tokens: what is one, when two are equal, and the buffer between two that are not."""

from __future__ import annotations

import pytest

from rsn.base.errors import ProgramError
from rsn.streams.orders.converter import converter
from rsn.streams.orders.order import Axis, Order

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
    ("put", "get", "buffer", "shared", "elements"),
    [
        ("4x2 [4,2]*[2,4] (d1,d0)", "4x2 [4,2,2]*[2,1,4] (d2,d0)", (8, 2), 1, 32),
        ("16x16 [4,4]*[16,16] (d0,d1)", "16x16 [4,4,4]*[16,1,16] (d0,d2)", (16, 64), 1, 2048),
        ("16x16 [4,4]*[16,16] (d0,d1)", "16x16 [4,4]*[16,16] (d1,d0)", (64, 64), 0, 8192),
        ("16x16 [4,4]*[16,16] (d0,d1)", "32x32 [2,2]*[32,32] (d0,d1)", (64, 64), 0, 8192),
        (
            "1x1x2x2 [2,3,4,5]*[1,1,2,2] (d0,d1,d2,d3)",
            "1x1x2x2 [2,3,5,4]*[1,1,2,2] (d0,d1,d3,d2)",
            (1, 1, 8, 10),
            2,
            160,
        ),
        ("2x2 [4,4]*[2,2] (d1,d0)", "2x2 [4,2,4]*[2,1,2] (d2,d0)", (8, 2), 1, 32),
        ("8x4 [4]*[4] (0,d0)", "8x4 [4,2]*[4,1] (0,d0)", (8, 4), 1, 64),
        ("16x16 [4,4]*[16,16] (d0,d1)", "16x16 [4,8,4]*[16,1,16] (d0,d2)", (16, 64), 1, 2048),
    ],
)
def test_buffers_between_orders(put: str, get: str, buffer: tuple[int, ...], shared: int, elements: int) -> None:
    found = converter(Order.parse(put), Order.parse(get))
    assert found is not None
    assert (found.buffer, found.shared_loops, found.ping_pong_elements) == (buffer, shared, elements)
    assert found.ping_pong_bytes == 4 * elements
    assert converter(Order.parse(put), Order.parse(put)) is None


def test_orders_of_two_tensors_have_no_converter() -> None:
    with pytest.raises(ProgramError, match="of tensors of another shape or type"):
        converter(Order.parse("4x4 [2]*[4] (d0,0)"), Order.parse("4x4 [3]*[4] (d0,0)"))
