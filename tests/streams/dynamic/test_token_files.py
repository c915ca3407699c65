"""Streams as texts and arrays: what is written is read again, to the last bit, and what is no stream is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import TensorError
from rsn.streams.dynamic import (
    Arrivals,
    BufferReference,
    Program,
    Selector,
    SelectorType,
    Tile,
    TupleType,
    encode,
    ragged,
    tile,
)
from rsn.streams.dynamic.machine.token_files import arrays_of, read_text, streams_in, text_of
from rsn.streams.dynamic.shapes import BufferType, DataType, StreamType, dimension
from rsn.tests.effort import examples
from rsn.tests.streams.dynamic.test_machine_files import plain

SHAPES = (1, 1), (2, 3), (0, 4), (3, 0)
DTYPES = ["f4", "f8", "i8", "?"]  # of integers, all become int64


def elements(data: DataType, dtype: str) -> st.SearchStrategy[Any]:
    """Elements of a type. dtype: of the values of tiles; "" for tiles without values."""
    match data:
        case TupleType(parts):
            return st.tuples(*(elements(part, dtype) for part in parts))
        case SelectorType(choices):
            return st.sets(st.integers(0, choices - 1)).map(lambda chosen: Selector(tuple(chosen)))
        case BufferType(element, _):
            return st.lists(elements(element, dtype), max_size=3).map(
                lambda of: BufferReference((len(of), 1), tuple(of))
            )

    def made(shape: tuple[int, int], seed: int, filled: bool) -> Tile:
        values = (np.random.default_rng(seed).normal(size=shape) * 1e3).astype(dtype) if dtype else None
        return Tile(*shape, "bf16", values, shape[0] // 2 if filled else None)

    return st.builds(made, st.sampled_from(SHAPES), st.integers(0, 10**6), st.booleans())


TILE = tile(ragged("R"), ragged("C"))
TYPES: list[DataType] = [
    TILE,
    SelectorType(3),
    BufferType(TILE, (dimension("n"), dimension(1))),
    TupleType((TILE, SelectorType(2), TupleType((TILE, TILE)))),
]


@examples(300, 40, deadline=None)
@given(st.data())
def test_a_stream_is_read_as_it_was_written(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(TYPES))
    rank = data.draw(st.integers(0, 2))
    nested: Any = elements(kind, data.draw(st.sampled_from(["", *DTYPES])))
    for _ in range(rank + 1):
        nested = st.lists(nested, max_size=3)
    tokens = encode(data.draw(nested), rank)
    stream = StreamType((dimension("n"), *(ragged(f"R{k}") for k in range(rank))), kind)
    times = [0.5 * k for k in range(len(tokens))]
    read = streams_in(arrays_of("s", stream, tokens, times), {"s": stream, "other": stream}, "f.npz")
    assert list(read) == ["s"]
    assert list(map(plain, read["s"].tokens)) == list(map(plain, tokens))
    assert read["s"].times == times


@examples(200, 30, deadline=None)
@given(st.data())
def test_a_text_has_all_digits(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.floats(width=32) | st.integers(-(2**62), 2**62), min_size=1, max_size=4))
    tiles = [Tile.of(value, "f32") for value in values] + [Tile.of([values, values], "f32")]
    program = Program()
    program.input("s", ["n"], tile(1, 1, "f32"))
    words = read_text(text_of({"s": encode(tiles, 0)}), "f.txt")["s"]
    for one, read in zip(tiles, program.tokens(words, "s"), strict=False):
        assert isinstance(read, Tile)
        assert read.shape == one.shape
        assert np.array_equal(read.data, one.data, equal_nan=True)  # type: ignore[arg-type]


def test_selectors_flags_tuples_and_tiles_without_values_as_text() -> None:
    tokens = [(Tile.of(True, "boolean"), Tile.of([[True, False]], "boolean")), Tile(2, 3, "f32"), Selector((1, 0))]
    assert text_of({"a": encode(tokens, 0), "b c": encode([], 0)}) == "a: (T,[[1,0]]) <2x3> (0,1) D\nb c: D\n"
    assert read_text("# none\n\n a b : 1 D\n", "f.txt") == {"a b": " 1 D"}
    program = Program()
    program.input("s", ["n"], tile(2, 3))
    assert program.tokens("<2x3> D", "s")[0] == Tile(2, 3, "bf16")
    for wrong in ("1 D\n", ": 1 D\n", "a: D\na: D\n"):
        with pytest.raises(TensorError, match=r"f.txt:[12]: "):
            read_text(wrong, "f.txt")


def test_tiles_of_one_size_need_no_sizes() -> None:
    stream = StreamType((dimension(2), dimension(2)), tile(2, 2))
    values = np.arange(16.0).reshape(4, 2, 2)
    arrays = {"s.stops": np.array([0, 0, 1, 0, 0, 1]), "s.tiles": values}
    read = streams_in(arrays, {"s": stream}, "f.npz")["s"]
    assert isinstance(read, Arrivals)
    assert list(map(plain, read.tokens)) == list(
        map(plain, encode([[Tile.of(values[2 * row + k]) for k in range(2)] for row in range(2)], 1))
    )
    assert read.times == [0.0] * 7


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"s.stops": np.zeros(2, int)}, "s.tiles"),
        ({"s.stops": np.zeros(2), "s.tiles": np.zeros((2, 1, 1))}, "s.stops is no list of whole numbers"),
        ({"s.stops": np.zeros((2, 1), int), "s.tiles": np.zeros((2, 1, 1))}, "s.stops is no list of whole numbers"),
        ({"s.stops": np.zeros(2, int), "s.tiles": np.zeros((3, 1, 1))}, r"\[2, rows, columns\] is expected"),
        ({"s.stops": np.zeros(2, int), "s.tiles": np.array(["a", "b"]).reshape(2, 1, 1)}, "s.tiles has values of"),
        ({"s.stops": np.zeros(1, int), "s.sizes": np.array([[2, -1, -1]])}, "a tile of 2x-1"),
        ({"s.stops": np.zeros(1, int), "s.sizes": np.array([[2, 2, 3]])}, "with 3 rows filled"),
        ({"s.stops": np.zeros(1, int), "s.sizes": np.array([[2.0, 2, 1]])}, "whole numbers"),
        ({"s.stops": np.zeros(1, int), "s.sizes": np.array([[2, 2, -1]]), "s.tiles": np.zeros(5)}, "5 values"),
        ({"s.stops": np.zeros(1, int), "s.sizes": np.array([[2, 2, -1]]), "s.tiles": np.zeros(3)}, "cannot reshape"),
        ({"s.stops": np.zeros(1, int), "s.tiles": np.zeros((1, 1, 1)), "s.times": np.zeros(1)}, "no list of 2 times"),
        ({"s.stops": np.zeros(1, int), "s.tiles": np.zeros((1, 1, 1)), "s.times": np.array([2, 1])}, "must rise"),
        ({"s.stops": np.array([-1]), "s.tiles": np.zeros((0, 1, 1))}, "the least level of a stop"),
    ],
)
def test_arrays_that_are_no_stream(arrays: dict[str, Any], message: str) -> None:
    stream = StreamType((dimension("n"),), tile(1, 1))
    with pytest.raises(TensorError, match=message):
        streams_in(arrays, {"s": stream}, "f.npz")


def test_values_that_no_array_holds_together() -> None:
    stream = StreamType((dimension("n"),), tile(1, 1))
    tokens = encode([Tile.of(2**60 + 1), Tile.of(0.5)], 0)
    with pytest.raises(TensorError, match="no array holds the values of both exactly"):
        arrays_of("s", stream, tokens, [0.0, 0.0, 0.0])
    some = encode([Tile.of(1), Tile(1, 1, "bf16")], 0)
    with pytest.raises(TensorError, match="some tiles have values and some have none"):
        arrays_of("s", stream, some, [0.0, 0.0, 0.0])


def test_integers_of_an_array_are_those_of_a_text() -> None:
    """A product of two int8 arrays would wrap; of a text it does not."""
    stream = StreamType((dimension("n"),), tile(1, 1, "i8"))
    found = streams_in({"s.stops": np.zeros(1, int), "s.tiles": np.full((1, 1, 1), 100, np.int8)}, {"s": stream}, "f")
    value = found["s"].tokens[0].data
    assert (value.dtype, (value * value).item()) == (np.int64, 10000)


def test_a_name_with_a_colon_is_read_back() -> None:
    text = text_of({"o:1": encode([Tile.of(4), Tile.of(6)], 0)})
    assert read_text(text, "f.txt") == {"o:1": " 4 6 D"}
