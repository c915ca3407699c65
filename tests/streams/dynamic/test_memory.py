"""The memory off the chip: what was written last in a place is what is read there, in tiles of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.streams.dynamic import Arrivals, Program, RandomOffChipLoad, RandomOffChipStore, Tensor, Tile, encode, tile
from rsn.streams.dynamic.memory import TensorMemory
from rsn.streams.dynamic.run import run, timed
from rsn.tests.effort import examples

SIZES = st.tuples(st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 3, 6)))
ACCESSES = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 47)), max_size=12)


@examples(200, 20, deadline=None)
@given(ACCESSES, st.booleans())
def test_reads_are_those_of_an_array(accesses: list[tuple[bool, tuple[int, int], int]], given_data: bool) -> None:
    expected = np.arange(48.0).reshape(2, 4, 6) if given_data else np.full((2, 4, 6), np.nan)
    tensor = Tensor((2, 4, 6), data=expected.copy() if given_data else None)
    memory = TensorMemory()
    flat = expected.reshape(8, 6)
    for number, (write, (rows, columns), index) in enumerate(accesses):
        row, column = divmod(index % (48 // (rows * columns)), 6 // columns)
        here = slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns)
        index %= 48 // (rows * columns)
        if write:
            value = np.full((rows, columns), 100.5 + number)
            flat[here] = value
            memory.write(tensor, index, Tile.of(value))
        else:
            found = memory.read(tensor, index, (rows, columns))
            assert found.shape == (rows, columns)
            assert (found.data is None) == bool(np.isnan(flat[here]).any())
            assert found.data is None or np.array_equal(found.data, flat[here])
    assert np.array_equal(memory.tensor(tensor), np.nan_to_num(expected))


@pytest.mark.parametrize("runs", [run, timed])
def test_a_load_of_other_tiles_than_a_store(runs: Any) -> None:
    tensor = Tensor.of(np.zeros((4, 4)))
    index = tile(1, 1, "i32")
    with Program() as program:
        RandomOffChipStore(tensor)(program.input("at", [4], index), program.input("rows", [4], tile(1, 4)))
        loaded = RandomOffChipLoad(tensor, (2, 4))(program.input("again", [1], index))
    inputs = {
        "at": encode([Tile.of(k, "i32") for k in range(4)], 0),
        "rows": encode([Tile.of(np.full((1, 4), 1.0 + k)) for k in range(4)], 0),
        "again": Arrivals(encode([Tile.of(1, "i32")], 0), [90.0, 90.0]),
    }
    assert runs(program, inputs).text(loaded) == "[[3,3,3,3],[4,4,4,4]] D"


def test_what_is_written_in_a_tensor_of_integers_is_not_cut_off() -> None:
    tensor = Tensor.of(np.zeros((1, 2), dtype=int))
    memory = TensorMemory()
    memory.write(tensor, 1, Tile.of(1.5))
    assert memory.tensor(tensor).tolist() == [[0, 1.5]]
