"""Tensors as they lie in memory, and buffers at the ends of streams."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import pytest

from rsn.base.errors import ProgramError
from rsn.streams.dataflow.graph import Dataflow, Edge, KernelNode
from rsn.streams.orders.order import Axis, Order
from rsn.streams.orders.packed_tensor import PackedTensor, widened
from rsn.tests.streams.end_buffers import end_buffers, folded_bytes


def test_a_tensor_for_a_port_of_512_bits() -> None:
    packed = widened((64, 64), (16, 16), "u8", 512)
    assert packed.shape == (4, 4, 2, 2, 8, 8)
    assert (packed.words, 8 * prod(packed.vector)) == (64, 512)


def test_one_buffer_for_write_and_read_of_one_pattern() -> None:
    order = Order.parse("16x16 [4,4]*[16,16] (d0,d1)")
    turned = Order.parse("16x16 [4,4]*[16,16] (d1,d0)")
    same, other = Edge("a", "b", order, order), Edge("b", "c", order, turned)
    assert [end_buffers(same, fold).elements for fold in (False, True)] == [4 * 256, 2 * 256]
    assert [end_buffers(other, fold).elements for fold in (False, True)] == [4 * 256, 4 * 256]
    graph = Dataflow((KernelNode("a", "x"), KernelNode("b", "x"), KernelNode("c", "x")), (same, other))
    assert folded_bytes(graph) == (8 * 256 * 4, 6 * 256 * 4)


def test_packed_tensors_hold_their_tiles_one_after_the_other() -> None:
    random = Random(0)
    for _ in range(200):
        vector = [random.randint(1, 3) for _ in range(random.randint(1, 3))]
        tile = [n * random.randint(1, 3) for n in vector]
        tensor = [n * random.randint(1, 3) for n in tile]
        nesting = tuple(random.sample(range(len(tile)), len(tile)))
        layout = PackedTensor(tuple(tensor), tuple(tile), tuple(vector), nesting=nesting)
        x = np.arange(np.prod(tensor)).reshape(tensor)
        packed = layout.pack(x)
        assert packed.shape == layout.shape
        np.testing.assert_array_equal(layout.unpack(packed), x)
        at = [random.randrange(size // part) for size, part in zip(tensor, tile, strict=True)]
        inside = [random.randrange(size // part) for size, part in zip(tile, vector, strict=True)]
        first = [a * t + i * v for a, t, i, v in zip(at, tile, inside, vector, strict=True)]
        part = x[tuple(slice(f, f + v) for f, v in zip(first, vector, strict=True))]
        np.testing.assert_array_equal(packed[(*(at[axis] for axis in nesting), *inside)], part)


def test_tiles_in_a_row_are_those_that_follow_each_other_in_memory() -> None:
    random = Random(2)
    for _ in range(200):
        rank = random.randint(1, 3)
        loops = random.randint(rank, rank + 2)
        trips = [random.randint(1, 3) for _ in range(loops)]
        axes = tuple(Axis(loop) for loop in random.sample(range(loops), rank))
        order = Order((2,) * rank, tuple(trips), (2,) * loops, axes)
        layout = PackedTensor(
            order.tensor, order.element, order.element, nesting=tuple(random.sample(range(rank), rank))
        )
        places = layout.pack(np.arange(np.prod(order.tensor)).reshape(order.tensor)).reshape(-1, 2**rank)
        at = {int(tile[0]): k for k, tile in enumerate(places)}
        first = [at[int(np.ravel_multi_index(index, order.tensor))] for index in order.indices()]
        ends = [k + 1 for k in range(len(first) - 1) if first[k + 1] != first[k] + 1]
        runs = np.diff([0, *ends, len(first)])
        assert (runs % layout.tokens_in_a_row(order) == 0).all()
        if len(ends):
            assert layout.tokens_in_a_row(order) == min(runs)


def test_words_fill_the_port_as_far_as_tiles_allow() -> None:
    random = Random(1)
    for _ in range(200):
        tile = [random.choice((1, 2, 3, 4, 6, 8, 12, 16)) for _ in range(2)]
        port = random.choice((32, 64, 96, 128, 512))
        packed = widened([2 * n for n in tile], tile, "f32", port)
        fitting = [
            (rows, columns)
            for rows in range(1, tile[0] + 1)
            for columns in range(1, tile[1] + 1)
            if tile[0] % rows == tile[1] % columns == 0 and rows * columns * 32 <= port
        ]
        most = max(rows * columns for rows, columns in fitting)
        assert prod(packed.vector) == most
        square = min(abs(rows - columns) for rows, columns in fitting if rows * columns == most)
        assert abs(packed.vector[0] - packed.vector[1]) == square
        assert packed.vector[0] <= packed.vector[1] or packed.vector[::-1] not in fitting


def test_refused() -> None:
    with pytest.raises(ProgramError, match=r"axis 1 has 60 elements, which is no multiple of 16: tiles of \[16, 16\]"):
        PackedTensor((64, 60), (16, 16), (8, 8))
    with pytest.raises(ProgramError, match="vectors of"):
        PackedTensor((64, 64), (16, 16), (3, 8))
    with pytest.raises(ProgramError, match="as many axes"):
        PackedTensor((64, 64), (16,), (8, 8))
    with pytest.raises(ProgramError, match="a port of 16 bits moves no element of f32"):
        widened((4, 4), (2, 2), "f32", 16)
    with pytest.raises(ProgramError, match=r"axis 0 has 4 elements, which is no multiple of 0: tiles of \[0, 4\]"):
        widened((4, 4), (0, 4), "f32", 64)
    with pytest.raises(ProgramError, match="u9 is no type of elements; known are boolean, i4"):
        widened((4, 4), (2, 2), "u9", 16)
    with pytest.raises(ProgramError, match="u9 is no type"):
        PackedTensor((4, 4), (2, 2), (2, 2), "u9")
    for nesting in ((0,), (0, 0), (0, 2), (1, 0, 2)):
        with pytest.raises(ProgramError, match="of 2 axes; it names each once"):
            PackedTensor((4, 4), (2, 2), (2, 2), nesting=nesting)
