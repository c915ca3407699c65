"""Parameters, sizes and values that cannot be: typed errors where a program is built, or at the token of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rsn.streams.dynamic import (
    DONE,
    Accum,
    Add,
    Addresses,
    Affine,
    AppendRow,
    Broadcast,
    Bufferize,
    Discard,
    EagerMerge,
    Exp,
    Expand,
    First,
    FlatMap,
    Flatten,
    Iterate,
    LinearOffChipLoad,
    LinearOffChipStore,
    Map,
    Matmul,
    MatmulAdd,
    MetadataGen,
    Parallelize,
    Partition,
    Program,
    Promote,
    RandomOffChipLoad,
    RandomOffChipStore,
    Rates,
    Reassemble,
    Repeat,
    Reshape,
    RetileCol,
    RetileRow,
    RetileStreamify,
    RowSum,
    Scan,
    SelectGen,
    SelectorType,
    SetOffset,
    SiLU,
    SortedMerge,
    StepError,
    Stop,
    StreamFault,
    Streamify,
    TakeWhile,
    Tensor,
    Tile,
    TokenError,
    TupleType,
    WhereTrue,
    Zip,
    encode,
    parse,
    run,
    tile,
    timed,
)

ONE, WIDE = tile(1, 1), tile(4, 4)
NO_NUMBER: Any = Tile.of(0)
TENSOR = Tensor((4, 4))

REFUSED: list[tuple[Callable[[Program], Any], str]] = [
    (lambda p: LinearOffChipStore(TENSOR)(p.input("a", [5], tile(1, 4))), "5 tiles from number 0 on, in a tensor of 4"),
    (lambda p: LinearOffChipStore(TENSOR, 1)(p.input("a", [2, 2], tile(1, 4))), "4 tiles from number 1 on"),
    (lambda p: LinearOffChipStore(TENSOR, -1)(p.input("a", ["n"], tile(1, 4))), "from number -1 on"),
    (lambda p: LinearOffChipLoad(TENSOR, (0, 4), (1,), (1,))(), r"tiles \[0,4\] of tensor"),
    (lambda p: RandomOffChipLoad(TENSOR, (1, -4))(p.input("a", [5], tile(1, 1, "i32"))), r"tiles \[1,-4\] of tensor"),
    (lambda p: Tensor((-4, 4)), r"shape \[-4, 4\] at 0"),
    (lambda p: Tensor((4, 4), base=-64), "at -64"),
    (lambda p: Partition(0)(p.input("a", [5], ONE), p.input("s", [5], SelectorType(1))), "0 consumers"),
    (lambda p: Parallelize(-1)(p.input("a", [5], ONE)), "-1 consumers"),
    (lambda p: Broadcast(0)(p.input("a", [5], ONE)), "0 streams"),
    (lambda p: First(-1)(p.input("a", [5], ONE)), "the first -1 elements"),
    (lambda p: Map(SetOffset())(p.input("a", [5], ONE)), "SetOffset takes a tile and"),
    (lambda p: Map(Affine(2))(p.input("a", [5], TupleType((ONE, ONE)))), "Affine takes"),
    (lambda p: Map(Affine(2))(p.input("a", [5], SelectorType(3, 2))), "a selector of one, not Sel"),
    (lambda p: Map(SiLU, compute=0), "0 operations a cycle"),
    (lambda p: Accum(1, Add, compute=-4), "-4 operations a cycle"),
    (lambda p: Map(SiLU)(), "takes streams, and has none"),
    (lambda p: Zip()(), "takes streams, and has none"),
    (lambda p: FlatMap(RetileStreamify(0))(p.input("a", [5], WIDE)), "parts of 0 along 0"),
    (lambda p: FlatMap(RetileStreamify(-1))(p.input("a", [5], WIDE)), "parts of -1 along 0"),
    (lambda p: FlatMap(RetileStreamify(1, 2))(p.input("a", [5], WIDE)), "parts of 1 along 2"),
    (lambda p: FlatMap(Addresses(0))(p.input("a", [5], SelectorType(3, 1))), "groups of 0"),
    (lambda p: FlatMap(Addresses(1, rank=2))(p.input("a", [5], SelectorType(3, 1))), "of rank 2"),
    (lambda p: SelectGen([], 2, rank=-1)(), "rank -1; the least is 0"),
    (lambda p: SelectGen([[(0,)]], 2)(), "no choice, an integer"),
    (lambda p: SelectGen([0], 2)(), "0 is no list"),
    (lambda p: MetadataGen([1], rank=-1)(), "rank -1; the least is 0"),
    (lambda p: MetadataGen([1.5])(), "1.5 is no number, an integer"),
    (lambda p: MetadataGen([[1]])(), r"\[1\] is no number"),
    (lambda p: MetadataGen([1], rank=1)(), "1 is no list"),
    (lambda p: p.input("a", [-1], ONE), "-1 is no size"),
    (lambda p: p.input("a", [1.5], ONE), "1.5 is no size"),
    (lambda p: tile(-1, 1), "-1 is no size"),
    (lambda p: tile(1, 1, "f31"), "f31 is no type of elements"),
    (lambda p: Map(Matmul(dtype="f31"))(p.input("a", [1], WIDE), p.input("b", [1], WIDE)), "test_refusals.*f31 is no"),
    (lambda p: SelectorType(2, 3), "choose 3 of 2 streams"),
    (lambda p: SelectorType(0), "of 0 streams"),
    (lambda p: p.symbol("n", at_most=-1), "n is at most -1"),
    (lambda p: p.ragged("m", at_most=-1), "m is at most -1"),
    (lambda p: Rates(on_chip=0), "Rates"),
    (lambda p: Accum(3, Add())(p.input("a", [5, 2], ONE)), "reduces 3 dimensions of a stream of rank 1"),
    (lambda p: Scan(0, Add())(p.input("a", [5], ONE)), "reduces 0 dimensions of a stream of rank 0"),
    (lambda p: Map(Matmul())(p.input("a", [5], tile(2, 3)), p.input("b", [5], tile(2, 3))), "matmul of"),
    (lambda p: Map(Add())(p.input("a", [5], tile(2, 3)), p.input("b", [5], tile(3, 3))), r"\+ of"),
    (lambda p: Map(Exp)(p.input("a", [5], SelectorType(2))), "exp takes 1 tile, not"),
    (lambda p: Map(RowSum())(p.input("a", [5], SelectorType(2))), "RowSum takes 1 tile, not"),
    (lambda p: Map(AppendRow())(p.input("a", [5], WIDE), p.input("b", [5], WIDE)), "AppendRow appends one row"),
    (lambda p: Accum(1, MatmulAdd())(p.input("a", [5, 2], ONE)), "matmul takes 2 tiles, not"),
    (lambda p: Accum(1, RetileRow)(p.input("a", [5, 2], SelectorType(2))), "RetileRow takes 1 tile, not"),
    (lambda p: Scan(1, RetileCol())(p.input("a", [5, 2], SelectorType(2))), "RetileCol takes 1 tile, not"),
    (lambda p: FlatMap(WhereTrue())(p.input("a", [5], ONE)), "WhereTrue takes a tuple of an element and a flag"),
    (lambda p: FlatMap(RetileStreamify(3))(p.input("a", [5], WIDE)), "4 of .* is not divisible by 3"),
    (lambda p: Flatten(1, 0)(p.input("a", [5], ONE)), "dimensions 1 to 0 of a stream of rank 0"),
    (lambda p: Reshape(0, 3)(p.input("a", [5], ONE)), "dimension 0 of 5 is not divisible by 3"),
    (lambda p: Reshape(0, 3, NO_NUMBER)(p.input("a", ["n"], ONE)), "pad is a number, the value at every place of a"),
    (lambda p: Promote()(p.input("a", [5], ONE), p.input("b", [5], ONE)), "takes 1 stream, not 2"),
    (lambda p: Expand(1)(p.input("a", [5, 2], ONE), p.input("b", [5, 2], ONE)), "innermost dimensions of .* are not 1"),
    (lambda p: Repeat(0)(p.input("a", [5], ONE)), "repeats 0 times"),
    (lambda p: Bufferize(1)(p.input("a", [5], ONE)), "buffers 1 dimensions of a stream of rank 0"),
    (lambda p: Streamify()(p.input("a", [5], ONE), p.input("b", [5, 2], ONE)), "reads buffers, not"),
    (lambda p: Reassemble()(p.input("a", [5], ONE), p.input("b", [5], ONE)), "selector stream carries no selectors"),
    (lambda p: EagerMerge()(p.input("a", [5], ONE), p.input("b", [5], WIDE)), "inputs of different data types"),
    (lambda p: SortedMerge()(p.input("a", [5], WIDE)), r"sorts by a \[1,1\] tile"),
    (lambda p: TakeWhile()(p.input("a", [5], ONE)), "takes 2 streams, not 1"),
    (lambda p: Iterate()(p.input("a", [5], ONE), p.input("b", [5], ONE)), "the body gives tuples"),
    (lambda p: RandomOffChipLoad(TENSOR, (1, 4))(p.input("a", [5], ONE)), "an address is"),
    (lambda p: RandomOffChipStore(TENSOR)(p.input("a", [5], ONE), p.input("b", [5], ONE)), "an address is"),
    (lambda p: Discard()(p.input("a", [5], ONE), p.input("b", [5], ONE)), "takes 1 stream, not 2"),
    (lambda p: First(1)(p.input("a", [5, 2], ONE)), "takes a stream of rank 0, not 1"),
    (lambda p: SelectGen([(3,)], 2)(), r"selector \(3\) of 2 streams"),
    (lambda p: p.input("a", [5], ONE).assume([4]), "dimension 0 is 5, not 4"),
    (lambda p: p.close(p.input("a", [5], ONE), p.input("b", [5], ONE)), "a is no open feedback"),
    (lambda p: p.output("o", p.input("a", [5], ONE)) and p.output("o", p.inputs["a"]), "o is there twice"),
    (lambda p: run(p, {"z": "D"}), "tokens of no input"),
    (lambda p: p.feedback("f", [5], ONE) and timed(p, {}), "f has no writer"),
    (lambda p: Rates(latency=-1), "latency >= 0"),
    (lambda p: Rates(channels=1, per_client=2), "no client gets more than all channels"),
]


@pytest.mark.parametrize(("build", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_cannot_be_built(build: Callable[[Program], Any], text: str) -> None:
    with Program() as program, pytest.raises(StepError, match=text) as error:
        build(program)
    file, line = error.value.where.rsplit(":", 1)
    lines = [line for *_, line in build.__code__.co_lines() if line is not None]
    assert file.endswith("test_refusals.py")
    assert min(lines) <= int(line) <= max(lines)
    assert str(error.value).startswith(error.value.where)


def test_sources_take_integers_of_numpy() -> None:
    with Program() as program:
        numbers = MetadataGen(np.arange(3))()
        selectors = SelectGen(np.array([[0, 1], [1, 2]]), 3)()
    done = run(program, {})
    assert (done.text(numbers), done.text(selectors)) == ("0 1 2 D", "(0,1) (1,2) D")


def rows(*sizes: int) -> list[Any]:
    return [Tile.of(np.ones((size, 2))) for size in sizes]


RUNS = pytest.mark.parametrize("runs", [run, timed])


@RUNS
@pytest.mark.parametrize("sizes", [(1, 3), (3, 1), (2, 3)])
def test_tiles_of_one_ragged_size_are_never_repeated(runs: Any, sizes: tuple[int, int]) -> None:
    """A row would be added to each row of the other tile: the types say that both have equally many."""
    with Program() as program:
        size = program.ragged("r")
        first, second = (program.input(name, ["n"], tile(size, 2)) for name in "ab")
        Map(Add)(first, second)
    assert runs(program, {"a": encode(rows(2, 1), 0), "b": encode(rows(2, 1), 0)}).traffic is not None
    with pytest.raises(StreamFault, match=r"Zip: output 0, token 1: sizes of .* are . and ., and one by its type"):
        runs(program, {"a": encode(rows(2, sizes[0]), 0), "b": encode(rows(2, sizes[1]), 0)})


@RUNS
@pytest.mark.parametrize("sizes", [(2, 1), (1, 3), (2, 3)])
def test_a_state_takes_tiles_of_its_size(runs: Any, sizes: tuple[int, int]) -> None:
    with Program() as program:
        Accum(1, Add)(program.input("a", ["n", 2], tile(program.ragged("r"), 2)))
    text = f"input 0, token 1: \\+ of tiles of {sizes[0]}x2 and {sizes[1]}x2"
    with pytest.raises(StreamFault, match=text):
        runs(program, {"a": encode([rows(*sizes)], 1)})
    with Program() as program:
        data = TupleType((tile(program.ragged("r"), 2), tile(2, 2)))
        Accum(1, MatmulAdd())(program.input("a", ["n", 2], data))
    pairs = [(one, Tile.of(np.eye(2))) for one in rows(*sizes)]
    with pytest.raises(StreamFault, match="input 0, token 1: matmul of tiles of"):
        runs(program, {"a": encode([pairs], 1)})


@RUNS
def test_sizes_are_compared_without_values_too(runs: Any) -> None:
    with Program() as program:
        size = program.ragged("k")
        Map(Matmul())(program.input("a", ["n"], tile(1, size)), program.input("b", ["n"], tile(size, 1)))
    inputs = {"a": encode([Tile(1, 2, "bf16")], 0), "b": encode([Tile(3, 1, "bf16")], 0)}
    with pytest.raises(StreamFault, match="are 2 and 3, and one by its type"):
        runs(program, inputs)
    with pytest.raises(ValueError, match="matmul of tiles of 1x2 and 3x1"):
        Matmul()(Tile(1, 2, "bf16"), Tile(3, 1, "bf16"))
    with pytest.raises(ValueError, match=r"\+ of tiles of 2x2 and 3x2"):
        Add(Tile(2, 2, "bf16"), Tile(3, 2, "bf16"))


@RUNS
@pytest.mark.parametrize("value", [1.5, np.nan, np.inf])
def test_addresses_are_integers(runs: Any, value: float) -> None:
    with Program() as program:
        RandomOffChipLoad(TENSOR, (1, 4))(program.input("a", ["n"], tile(1, 1, "i32")))
    with pytest.raises(StreamFault, match=r"RandomOffChipLoad: input 0, token 1: \S+ is no integer"):
        runs(program, {"a": encode([Tile.of(1, "i32"), Tile.of(value, "i32")], 0)})


def test_results_and_inputs_that_do_not_exist() -> None:
    with Program() as program:
        first = Map(Exp)(program.input("a", [1], ONE))
        program.output("y", Map(Exp)(first))
    done = run(program, {"a": "1 D"})
    with pytest.raises(StepError, match="z is no result; they are y, Map1"):
        done.text("z")
    with pytest.raises(StepError, match="Map is no result"):
        done[first]
    with pytest.raises(StepError, match="b is no input; they are a"):
        program.tokens("1 D", "b")


def test_data_of_a_tile_have_its_size() -> None:
    with pytest.raises(ValueError, match=r"a tile of 2x2 with data of shape \[3, 3\]"):
        Tile(2, 2, "bf16", np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"a tile of 1x2 with data of shape \[1, 2, 3\]"):
        Tile.of(np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match=r"\[1, 'x'\] is no number, row or matrix"):
        Tile.of([1, "x"])


@pytest.mark.parametrize("word", ["<-1x3>", "9" * 400, "[" * 20000 + "]" * 20000])
def test_a_word_that_is_no_token(word: str) -> None:
    with pytest.raises(TokenError, match="is no token; one is a number") as error:
        parse(f"1 {word} D")
    assert error.value.position == 1
    assert len(str(error.value)) < 200


def test_names_of_streams_are_short() -> None:
    """Also those of the streams and operators at the end of a long program, which reach all others."""
    with Program() as program:
        stream = program.input("a", [4], ONE)
        for _ in range(40):
            stream = Map(Add)(stream, stream)
    assert len(repr(stream)) < 80
    assert len(repr(program.nodes[-1])) < 80


def test_a_tile_of_one_value_is_not_repeated_for_those_after_it() -> None:
    with Program() as program:
        Accum(1, Add)(program.input("a", [1, "n"], tile(program.ragged("r"), 1)))
    with pytest.raises(StreamFault, match=r"\+ of tiles of 1x1 and 3x1"):
        run(program, {"a": [Tile.of([[1.0]]), Tile.of([[1.0], [2.0], [3.0]]), Stop(1), DONE]})


def test_a_map_of_several_streams_that_is_refused_leaves_nothing() -> None:
    """A `Zip` that stayed would be a result of the program, and read its streams."""
    with Program() as program:
        a, b = program.input("a", [5], tile(2, 3)), program.input("b", [5], tile(2, 3))
        with pytest.raises(StepError, match="matmul of"):
            Map(Matmul())(a, b)
        assert (program.nodes, program.readers(a), program.readers(b)) == ([], (), ())
        made = Map(Add())(a, a)
    assert [node.name for node in program.nodes] == ["Zip", "Map"]
    assert len(program.readers(a)) == 2
    assert made in program.streams
