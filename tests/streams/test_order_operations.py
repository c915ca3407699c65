"""Orders that follow from orders, against the tokens themselves."""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rsn.base.errors import ProgramError
from rsn.streams.orders.operations import chunk, collapse, concat, deal, expand, fork, join
from rsn.streams.orders.order import Order
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.orders import drawn_order

ROWS = Order.parse("2x4 [4,6]*[2,4] (d0,d1)")


def tokens(order: Order, tensor: npt.NDArray[Any]) -> list[bytes]:
    """The elements of each token."""
    parts = (tuple(slice(k, k + n) for k, n in zip(at, order.element, strict=True)) for at in order.indices())
    return [tensor[part].tobytes() for part in parts]


def counted(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.arange(prod(shape)).reshape(shape)


@in_both
def test_what_becomes_of_tokens() -> None:
    random = Random(5)
    done = dict.fromkeys(("chunk", "deal", "expand", "collapse"), 0)
    for _ in range(cases(600, 120)):
        order = drawn_order(random, tuple(random.choice([1, 2, 4, 6]) for _ in range(random.choice([1, 2, 3]))))
        tensor = counted(order.tensor)
        axis, parts = random.randrange(tensor.ndim), random.choice([1, 2, 3])
        loop = order.axes[axis].loop
        if (1 if loop is None else order.trips[loop]) % parts == 0:
            # The parts' tokens are those of the whole that lie in each, in the order of the whole.
            pieces = chunk(order, axis, parts)
            found = [tokens(o, piece) for o, piece in zip(pieces, np.split(tensor, parts, axis), strict=True)]
            for mine in found:
                assert mine == [token for token in tokens(order, tensor) if token in set(mine)]
            assert sum(map(len, found)) == order.tokens
            assert concat(pieces, axis).canonical == order.canonical
            done["chunk"] += parts > 1
        last = order.canonical
        if last.trips and last.axis_of(len(last.trips) - 1) is not None and last.trips[-1] % parts == 0:
            dealt = deal(order, parts)
            assert all(stream.tokens == order.tokens // parts for stream in dealt)
            along = last.axis_of(len(last.trips) - 1)
            assert along is not None
            cut = np.moveaxis(tensor, along, 0).reshape(-1, parts, last.element[along], *np.delete(tensor.shape, along))
            for k, stream in enumerate(dealt):
                own = np.moveaxis(cut[:, k].reshape(-1, *cut.shape[3:]), 0, along)
                assert tokens(stream, own) == tokens(order, tensor)[k::parts]
            assert join(dealt).canonical == last
            done["deal"] += parts > 1
        size = order.tensor[axis]
        sizes = random.choice([(size,), (1, size), (size // 2, 2), (2, size // 2), (size // 3, 3)])
        if prod(sizes) == size:
            try:
                wide = expand(order, axis, sizes)
            except ProgramError:
                assert order.element[axis] % sizes[-1]
                assert sizes[-1] % order.element[axis]
                continue
            shape = (*order.tensor[:axis], *sizes, *order.tensor[axis + 1 :])
            assert tokens(wide, tensor.reshape(shape)) == tokens(order, tensor)
            assert collapse(wide, axis, len(sizes)).canonical == order.canonical
            done["expand"] += len(sizes) > 1
        try:
            flat = collapse(order, 0, tensor.ndim)
        except ProgramError:
            continue
        assert tokens(flat, tensor.reshape(-1)) == tokens(order, tensor)
        done["collapse"] += tensor.ndim > 1
    assert min(done.values()) >= 5, done


def test_parts_that_have_no_loop_come_one_after_the_other() -> None:
    whole = concat(fork(Order.parse("2x4 [3]*[4] (0,d0)"), 2), 0)
    assert str(whole) == "2x4 [2,3]*[2,4] (d0,d1)"


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (lambda: fork(ROWS, 0), "a fork into 0 streams"),
        (lambda: chunk(ROWS, 0, 3), "3 parts along axis 0, which has 4 tokens"),
        (lambda: chunk(ROWS, 2, 1), "has no axis 2"),
        (lambda: concat([], 0), "a concat of no streams"),
        (lambda: concat([ROWS, Order.parse("2x4 [6,4]*[4,2] (d1,d0)")], 0), "takes streams of one order"),
        (lambda: deal(ROWS, 4), "cannot be dealt to 4 streams"),
        (lambda: deal(Order.parse("2x4 [4,2]*[2,1] (d0,0)"), 2), "cannot be dealt to 2 streams"),
        (lambda: join([Order.parse("2x4 [4,2]*[2,1] (d0,0)")]), "moves along no axis"),
        (lambda: expand(ROWS, 0, (3, 2)), "axis 0 of 8 elements is no"),
        (lambda: expand(Order.parse("4 [3]*[4] (d0)"), 0, (4, 3)), "are no box of"),
        (lambda: collapse(ROWS, 0, 2), "axes 0 to 1 are not one"),
        (lambda: collapse(ROWS, 1, 2), "has no 2 axes from 1 on"),
    ],
)
def test_what_would_need_a_buffer_is_refused(action: Any, what: str) -> None:
    with pytest.raises(ProgramError, match=what):
        action()
