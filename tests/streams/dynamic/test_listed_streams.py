"""Operators on small streams: what they read and what they put, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rsn.streams.dynamic import (
    Accum,
    Add,
    Arrivals,
    Bufferize,
    DefinedExpansion,
    EagerMerge,
    Expand,
    FlatMap,
    Flatten,
    LinearOffChipLoad,
    Partition,
    Program,
    Promote,
    RandomOffChipLoad,
    RandomOffChipStore,
    Reassemble,
    Reshape,
    RetileStreamify,
    Scan,
    SelectorType,
    Streamify,
    Tensor,
    Tile,
    Zip,
    decode,
    encode,
    parse,
    ragged,
    run,
    show,
    tile,
)

ONE = tile(1, 1)
X = "1 2 S1 3 S2 4 S1 5 6 7 S2 D"
M = Tensor.of(np.arange(8).reshape(2, 4))


def free(rank: int, name: str) -> list[Any]:
    """A shape of which nothing is known."""
    return [f"{name}{rank}", *(ragged(f"{name}{level}") for level in reversed(range(rank)))]


def of(operator: Any, *ranks: int, data: Any = ONE) -> Callable[[Program], Any]:
    """An operator on inputs a, b, .. of these ranks."""

    def build(program: Program) -> Any:
        return operator(
            *(program.input(name, free(rank, name), data) for name, rank in zip("abc", ranks, strict=False))
        )

    return build


def results(build: Callable[[Program], Any], inputs: Mapping[str, Any]) -> list[str]:
    with Program() as program:
        made = build(program)
    streams = made if isinstance(made, tuple) else (made,)
    done = run(program, inputs)
    return [done.text(stream) for stream in streams]


def letters(text: str) -> str:
    """Letters of a figure as their codes, but for D."""
    return " ".join(str(ord(word)) if len(word) == 1 and word in "WXYZ" else word for word in text.split())


WRITTEN = [
    ([[[1, 2], [3]], [[4], [5, 6, 7]]], 2, X),
    ([[[1, 3], [3, 1, 2], [4, 5, 3]]], 2, "1 3 S1 3 1 2 S1 4 5 3 S2 D"),
    ([], 3, "D"),
    ([[[1]], [], [[2]]], 2, "1 S2 S2 2 S2 D"),
    ([1, 2], 0, "1 2 D"),
    # Groups without children, at every place.
    ([[]], 1, "S1 D"),
    ([[]], 2, "S2 D"),
    ([[[]]], 2, "S1 S2 D"),
    ([[[1], []]], 2, "1 S1 S1 S2 D"),
    ([[[], [1]]], 2, "S1 1 S2 D"),
    ([[[[]]]], 3, "S1 S3 D"),
    ([[[[1]], []]], 3, "1 S2 S2 S3 D"),
]


@pytest.mark.parametrize(("nested", "rank", "text"), WRITTEN)
def test_tensors_as_tokens_and_back(nested: Any, rank: int, text: str) -> None:
    tokens = encode(nested, rank)
    assert show(tokens) == text
    assert show(parse(text)) == text
    assert encode(decode(tokens, rank), rank) == tokens
    assert _values(decode(parse(text), rank)) == nested


def _values(nested: Any) -> Any:
    return nested.scalar if isinstance(nested, Tile) else [_values(child) for child in nested]


PAD = "1 2 3 S1 4 S1 5 6 S2 D"
COUNTED = DefinedExpansion("0..v-1", (None,), lambda of: of, lambda one: [Tile.of(k) for k in range(one.scalar)])
AFFINE = "[[0,1]] [[2,3]] S1 [[4,5]] [[6,7]] S2"
ROWS = "1 2 S1 3 4 S1 5 6 S1 7 8 S2 D"
ROWS_OUT = "1 2 S1 3 4 S2 5 6 S1 7 8 S3 D"
FLAGS_OUT = "F F S1 F F S2 F F S1 F F S3 D"


def fixed_rows(program: Program) -> Any:
    return Reshape(1, 2)(program.input("a", ["n", 4, 2], ONE))


ROWS_OF = "[[1,2],[3,4]] [[5,6]] D"


def rows_of_tiles(program: Program) -> Any:
    stream = program.input("a", ["n"], tile(program.ragged("m"), 2))
    return FlatMap(RetileStreamify(1))(stream)


def buffers(program: Program) -> Any:
    return Bufferize(2)(program.input("a", ["n", program.ragged("R"), 2], ONE))


def buffers_read(program: Program) -> Any:
    reference = program.input("b", ["n", ragged("m")], ONE)
    return Streamify(1)(buffers(program), reference)


def buffers_of_rows(program: Program) -> Any:
    return Bufferize(1)(program.input("a", ["n", 2, 2], ONE))


def load(stride: tuple[int, int]) -> Callable[[Program], Any]:
    return lambda program: LinearOffChipLoad(M, (1, 2), stride, (2, 2))(program.input("a", ["n"], ONE))


def load_at(program: Program) -> Any:
    return RandomOffChipLoad(M, (1, 2))(program.input("a", free(1, "a"), tile(1, 1, "i32")))


def routed(selectors: int, shape: list[Any], chosen: list[Any]) -> Callable[[Program], Any]:
    def build(program: Program) -> Any:
        stream = program.input("a", shape, ONE)
        return Partition(selectors)(stream, program.input("s", chosen, SelectorType(selectors)))

    return build


def affine_read(program: Program) -> Any:
    buffers = Bufferize(1)(program.input("a", ["n", 4], ONE))
    return Streamify(1, (0, 2), (2, 2))(buffers, program.input("b", ["n", "m"], ONE))


LISTED: list[tuple[str, Callable[[Program], Any], dict[str, Any], list[str]]] = [
    ("flatten 0 1", of(Flatten(0, 1), 2), {"a": X}, ["1 2 3 S1 4 5 6 7 S1 D"]),
    ("flatten 0 2", of(Flatten(0, 2), 2), {"a": X}, ["1 2 3 4 5 6 7 D"]),
    (
        "reshape 0",
        of(Reshape(0, 2, 0), 0),
        {"a": "1 2 3 4 5 D"},
        ["1 2 S1 3 4 S1 5 0 S1 D", "F F S1 F F S1 F T S1 D"],
    ),
    (
        "reshape 0, groups",
        of(Reshape(0, 2, 0), 2),
        {"a": PAD},
        ["1 2 S1 3 0 S2 4 0 S2 5 6 S3 D", "F F S1 F T S2 F T S2 F F S3 D"],
    ),
    ("reshape 1", fixed_rows, {"a": ROWS}, [ROWS_OUT, FLAGS_OUT]),
    ("reshape empty", of(Reshape(0, 4, 0), 0), {"a": "D"}, ["D", "D"]),
    ("promote 0", of(Promote(), 0), {"a": "1 2 3 D"}, ["1 2 3 S1 D"]),
    ("promote 1", of(Promote(), 1), {"a": "1 2 S1 3 S1 D"}, ["1 2 S1 3 S2 D"]),
    ("promote empty", of(Promote(), 1), {"a": "D"}, ["D"]),
    (
        "expand 2",
        lambda p: Expand(2)(p.input("a", ["n", 1, 1], ONE), p.input("b", ["n", ragged("m"), 2], ONE)),
        {"a": "7 S2 8 S2 D", "b": "0 0 S1 0 0 S2 0 0 S2 D"},
        ["7 7 S1 7 7 S2 8 8 S2 D"],
    ),
    (
        "expand 1",
        lambda p: Expand(1)(p.input("a", [1], ONE), p.input("b", ["n"], ONE)),
        {"a": "9 D", "b": "0 0 0 D"},
        ["9 9 9 D"],
    ),
    (
        "zip",
        lambda p: Zip()(p.input("a", ["n", ragged("m")], ONE), p.input("b", ["n", ragged("m")], ONE)),
        {"a": "1 2 S1 3 S1 D", "b": "4 5 S1 6 S1 D"},
        ["(1,4) (2,5) S1 (3,6) S1 D"],
    ),
    ("accum 1", of(Accum(1, Add), 2), {"a": X}, ["3 3 S1 4 18 S1 D"]),
    ("accum 2", of(Accum(2, Add), 2), {"a": X}, ["6 22 D"]),
    ("accum of nothing", of(Accum(1, Add), 1), {"a": "1 S1 S1 2 S1 D"}, ["1 0 2 D"]),
    ("scan 1", of(Scan(1, Add), 2), {"a": X}, ["1 3 S1 3 S2 4 S1 5 11 18 S2 D"]),
    ("scan 2", of(Scan(2, Add), 2), {"a": X}, ["1 3 S1 6 S2 4 S1 9 15 22 S2 D"]),
    ("flatmap", of(FlatMap(COUNTED), 1), {"a": "2 S1 0 3 S1 D"}, ["0 1 S1 0 1 2 S1 D"]),
    ("flatmap rows", rows_of_tiles, {"a": ROWS_OF}, ["[[1,2]] [[3,4]] [[5,6]] D"]),
    ("bufferize 2", buffers, {"a": "1 2 S1 3 4 S1 5 6 S2 7 8 S2 D"}, ["Buf[3,2] Buf[1,2] D"]),
    (
        "streamify",
        buffers_read,
        {"a": "1 2 S1 3 4 S1 5 6 S2 7 8 S2 D", "b": "0 0 S1 0 S1 D"},
        ["1 2 S1 3 4 S1 5 6 S2 1 2 S1 3 4 S1 5 6 S3 7 8 S3 D"],
    ),
    (
        "bufferize 1",
        buffers_of_rows,
        {"a": "1 2 S1 3 4 S2 5 6 S1 7 8 S2 D"},
        ["Buf[2] Buf[2] S1 Buf[2] Buf[2] S1 D"],
    ),
    ("streamify, affine", affine_read, {"a": "1 2 3 4 S1 D", "b": "0 0 S1 D"}, ["1 3 S1 1 3 S2 1 3 S1 1 3 S3 D"]),
    ("load", load((2, 1)), {"a": "0 0 D"}, [f"{AFFINE} {AFFINE} D"]),
    ("load, other stride", load((1, 2)), {"a": "0 D"}, ["[[0,1]] [[4,5]] S1 [[2,3]] [[6,7]] S2 D"]),
    ("load nothing", load((1, 2)), {"a": "D"}, ["D"]),
    ("load at random", load_at, {"a": "3 0 S1 1 S1 D"}, ["[[6,7]] [[0,1]] S1 [[2,3]] S1 D"]),
    (
        "partition (v1 Fig. 3)",
        routed(3, [1, "B", 2], [1, "B"]),
        {"a": "0 0 S1 1 1 S1 2 2 S2 D", "s": "(0,1) (0,2) (0) S1 D"},
        ["0 0 S1 1 1 S1 2 2 S1 D", "0 0 S1 D", "1 1 S1 D"],
    ),
    (
        "partition, dropped",
        routed(2, [1, "B"], [1, "B"]),
        {"a": "1 2 3 4 S1 D", "s": "(0) (1) (0) () S1 D"},
        ["1 3 D", "2 D"],
    ),
]


@pytest.mark.parametrize(("build", "inputs", "expected"), [row[1:] for row in LISTED], ids=[row[0] for row in LISTED])
def test_what_operators_put(build: Callable[[Program], Any], inputs: dict[str, str], expected: list[str]) -> None:
    assert results(build, inputs) == expected


def test_random_store_writes_where_its_addresses_say() -> None:
    memory = Tensor((3, 1))
    with Program() as program:
        where = program.input("a", ["n", ragged("m")], tile(1, 1, "i32"))
        done = RandomOffChipStore(memory)(where, program.input("b", ["n", ragged("m")], ONE))
    result = run(program, {"a": "2 0 S1 D", "b": "10 11 S1 D"})
    assert result.text(done) == "T T S1 D"
    assert result.tensor(memory).tolist() == [[11], [0], [10]]


def timed(text: str, *times: float) -> Arrivals:
    """Chunks of rank 1 that arrive at these times; a stream's end comes with its last chunk."""
    tokens, when = parse(letters(text)), []
    chunk = iter(times)
    now = next(chunk)
    for token in tokens:
        when.append(now)
        if str(token) == "S1":
            now = next(chunk, now)
    return Arrivals(tokens, when)


def single(text: str, *times: float) -> Arrivals:
    """Elements that arrive at these times."""
    return Arrivals(parse(text), [*times, times[-1]])


def merged(ranks: int, with_selectors: int | None) -> Callable[[Program], Any]:
    def build(program: Program) -> Any:
        streams = [program.input(name, free(ranks, name), ONE) for name in "abc"[: with_selectors or 3]]
        if with_selectors is None:
            return EagerMerge()(*streams)
        selectors = free(1 if with_selectors == 2 else 0, "s")
        return Reassemble()(*streams, program.input("s", selectors, SelectorType(with_selectors)))

    return build


FIGURE_4 = {"b": timed("X S1 D", 1), "c": timed("Y Y S1 D", 1), "s": "(0,1) (0,2) D"}


@pytest.mark.parametrize(
    ("second", "expected"), [(3, "W W W S1 X S2 Y Y S1 Z Z S2 D"), (0, "W W W S1 X S2 Z Z S1 Y Y S2 D")]
)
def test_reassemble_takes_what_comes_first(second: int, expected: str) -> None:
    inputs = {"a": timed("W W W S1 Z Z S1 D", 0, second), **FIGURE_4}
    assert results(merged(1, 3), inputs) == [letters(expected)]


def test_reassemble_of_elements() -> None:
    inputs = {"a": single("1 2 D", 0, 1), "b": single("3 D", 2), "s": "(0) (0,1) S1 D"}
    assert results(merged(0, 2), inputs) == ["1 S1 2 3 S2 D"]


def test_eager_merge_takes_what_comes_first() -> None:
    inputs = {"a": timed("W W W S1 Z Z S1 D", 0, 3), "b": timed("X S1 D", 2), "c": timed("Y Y S1 D", 1)}
    data, selectors = results(merged(1, None), inputs)
    assert data == letters("W W W S1 Y Y S1 X S1 Z Z S1 D")
    assert selectors == "(0) (2) (1) (0) D"
