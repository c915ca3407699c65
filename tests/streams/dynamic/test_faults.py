"""What a run must not meet: a typed error, with the token's position and the user's line."""

from __future__ import annotations

import re
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
    Arrivals,
    Broadcast,
    Bufferize,
    Discard,
    EagerMerge,
    Expand,
    First,
    FlatMap,
    LinearOffChipStore,
    Map,
    MetadataGen,
    Partition,
    Program,
    RandomOffChipLoad,
    RandomOffChipStore,
    Reassemble,
    Reshape,
    RetileRow,
    RetileStreamify,
    SelectGen,
    SelectorType,
    SetOffset,
    SiLU,
    StepError,
    StreamFault,
    Streamify,
    StuckError,
    Tensor,
    Tile,
    TokenError,
    TupleType,
    WhereTrue,
    Zip,
    decode,
    parse,
    ragged,
    run,
    show,
    tile,
    timed,
)

RUNS = pytest.mark.parametrize("runs", [run, timed])
"""A run without the clocks of the engine, and one with them: both meet the same."""
ONE = tile(1, 1)
INDEX = tile(1, 1, "i32")
R = ragged("R")
ROWS = ["n", R]


def on(*shapes: Any, operator: Any, data: Any = None) -> Callable[[Program], Any]:
    def build(program: Program) -> Any:
        kinds = data or [ONE] * len(shapes)
        return operator(
            *(program.input(name, shape, kind) for name, shape, kind in zip("abc", shapes, kinds, strict=False))
        )

    return build


SELECTED = {"data": [ONE, SelectorType(2)]}
ONE_SELECTOR = [ONE, ONE, SelectorType(2)]
TENSOR = Tensor.of(np.arange(4.0).reshape(2, 2))

FAULTS: list[tuple[str, Callable[[Program], Any], dict[str, str], str, str, int | None, str]] = [
    ("stop above", on(ROWS, operator=Accum(1, Add)), {"a": "1 S2 D"}, "input a", "a", 1, "S2 in a stream of rank 1"),
    (
        "open group",
        on(ROWS, operator=Accum(1, Add)),
        {"a": "1 2 D"},
        "input a",
        "a",
        2,
        "D where a group of rank 1 is open",
    ),
    (
        "split stop",
        on(["n", R, 2], operator=Accum(1, Add)),
        {"a": "1 1 S1 S2 D"},
        "input a",
        "a",
        3,
        "S2 right after S1",
    ),
    (
        "zip: stops",
        on(ROWS, ROWS, operator=Zip()),
        {"a": "1 2 S1 D", "b": "1 S1 2 S1 D"},
        "Zip",
        "input 1",
        1,
        "S1 where input 0 has 2",
    ),
    (
        "zip: ends",
        on(["n"], ["n"], operator=Zip()),
        {"a": "1 D", "b": "1 2 D"},
        "Zip",
        "input 1",
        1,
        "2 where input 0 has D",
    ),
    (
        "map",
        on(ROWS, ROWS, operator=Map(Add)),
        {"a": "1 S1 D", "b": "1 1 S1 D"},
        "Zip",
        "input 1",
        1,
        "1 where input 0 has S1",
    ),
    (
        "partition: groups",
        on(ROWS, ROWS, operator=Partition(2), **SELECTED),
        {"a": "1 2 S1 D", "b": "(0) S1 (1) S1 D"},
        "Partition",
        "input 0",
        1,
        "2 where the stream beside it has S1",
    ),
    (
        "partition: too many",
        on(["n"], ["n"], operator=Partition(2), **SELECTED),
        {"a": "1 D", "b": "(0) (1) D"},
        "Partition",
        "input 0",
        1,
        "D, and a selector asks for a chunk of rank 0",
    ),
    (
        "partition: left",
        on(["n"], ["n"], operator=Partition(2), **SELECTED),
        {"a": "1 2 D", "b": "(0) D"},
        "Partition",
        "input 0",
        1,
        "2 where the stream beside it has D",
    ),
    (
        "selector",
        on(["n"], ["n"], operator=Partition(2), **SELECTED),
        {"a": "1 D", "b": "(2) D"},
        "input b",
        "b",
        0,
        "selector (2) of 2 streams",
    ),
    (
        "reassemble: left",
        on(["n"], ["m"], ["k"], operator=Reassemble(), data=ONE_SELECTOR),
        {"a": "1 2 D", "b": "D", "c": "(0) D"},
        "Reassemble",
        "input 0",
        1,
        "2 is left over",
    ),
    (
        "reassemble: ended",
        on(["n"], ["m"], ["k"], operator=Reassemble(), data=ONE_SELECTOR),
        {"a": "1 D", "b": "D", "c": "(0,1) D"},
        "Reassemble",
        "input 1",
        0,
        "D, and a selector asks",
    ),
    (
        "expand",
        on(["n", 1], ["n", R], operator=Expand(1)),
        {"a": "1 S1 2 S1 D", "b": "0 S1 D"},
        "Expand",
        "input 0",
        2,
        "2 where the reference has D",
    ),
    (
        "padded length",
        on(["n"], operator=Reshape(0, 2)),
        {"a": "1 2 3 D"},
        "Reshape",
        "input 0",
        3,
        "a chunk of 1 of 2 elements",
    ),
    (
        "static size",
        on([2, 3], operator=Accum(1, Add)),
        {"a": "1 2 3 S1 1 2 S1 D"},
        "input a",
        "a",
        6,
        "dimension 0 is 2, and 3 by its type",
    ),
    (
        "regular size",
        on([2, "k"], operator=Accum(1, Add)),
        {"a": "1 2 3 S1 1 2 S1 D"},
        "input a",
        "a",
        6,
        "dimension 0 is 2, and 3 by its type or before (k)",
    ),
    (
        "number of tensors",
        on([2], operator=Map(Affine(1)), data=[INDEX]),
        {"a": "1 2 3 D"},
        "input a",
        "a",
        2,
        "dimension 0 is 3 or more, and 2",
    ),
    (
        "address",
        on(["n"], operator=RandomOffChipLoad(TENSOR, (1, 2)), data=[INDEX]),
        {"a": "1 2 D"},
        "RandomOffChipLoad",
        "input 0",
        1,
        "tile 2 of a tensor of 2 tiles",
    ),
    (
        "store",
        on(["n"], operator=LinearOffChipStore(Tensor((2, 1)))),
        {"a": "1 2 3 D"},
        "LinearOffChipStore",
        "input 0",
        2,
        "tile 2 of a tensor of 2 tiles",
    ),
    (
        "store at",
        on(["n"], ["n"], operator=RandomOffChipStore(Tensor((2, 1))), data=[INDEX, ONE]),
        {"a": "0 D", "b": "1 2 D"},
        "RandomOffChipStore",
        "input 1",
        1,
        "2, and the addresses have D",
    ),
    (
        "kind of element",
        on(["n"], operator=Map(Affine(1)), data=[INDEX]),
        {"a": "[[1,2]] D"},
        "input a",
        "a",
        0,
        "columns of a tile",
    ),
    (
        "reference",
        on(["n", R], ["n", R], operator=lambda a, b: Streamify(1)(Bufferize(1)(a), b)),
        {"a": "1 S1 D", "b": "0 S1 0 S1 D"},
        "Streamify",
        "input 0",
        1,
        "D, and the reference has 0",
    ),
    (
        "offset",
        on(["n"], ["n"], operator=Map(SetOffset()), data=[tile(2, 1), INDEX]),
        {"a": "[[1],[2]] D", "b": "3 D"},
        "Map",
        "input 0",
        0,
        "offset 3 in a tile of 2 rows",
    ),
    (
        "full tile",
        on(["n"], ["n"], operator=Map(AppendRow()), data=[tile(2, 1), ONE]),
        {"a": "[[1],[2]] D", "b": "3 D"},
        "Map",
        "input 0",
        0,
        "no row is left in a tile of 2 rows",
    ),
    (
        "tiles that do not fit",
        on(["n", R], operator=Accum(1, RetileRow), data=[tile(1, R)]),
        {"a": "[[1,2]] [[1]] S1 D"},
        "Accum",
        "input 0",
        1,
        "RetileRow of tiles of 1x2 and 1x1",
    ),
]


@pytest.mark.parametrize(
    ("build", "inputs", "node", "stream", "position", "text"),
    [row[1:] for row in FAULTS],
    ids=[row[0] for row in FAULTS],
)
@RUNS
def test_faults_name_node_stream_and_token(
    runs: Callable[..., Any],
    build: Callable[[Program], Any],
    inputs: dict[str, str],
    node: str,
    stream: str,
    position: int | None,
    text: str,
) -> None:
    with Program() as program:
        build(program)
    with pytest.raises(StreamFault) as fault:
        runs(program, inputs)
    assert (fault.value.node, fault.value.stream, fault.value.position) == (node, stream, position)
    assert text in fault.value.text
    assert re.search(r"test_faults\.py:\d+$", fault.value.where)
    assert str(fault.value).startswith(fault.value.where)
    assert not fault.value.where or "test_faults.py:" in fault.value.where
    assert str(fault.value).endswith(f"{node}: {stream}, token {position}: {fault.value.text}")


@RUNS
def test_sizes_beyond_a_bound(runs: Callable[..., Any]) -> None:
    with Program() as program:
        rows = program.input("a", [program.symbol("n", at_most=2), program.ragged("m", at_most=3)], ONE)
        Accum(1, Add)(rows)
    assert runs(program, {"a": "1 2 3 S1 1 S1 D"}).tokens
    with pytest.raises(StreamFault, match=r"input a: a, token 3: dimension 0 is 4 or more, beyond the bound m~ <= 3"):
        runs(program, {"a": "1 2 3 4 S1 D"})
    with pytest.raises(StreamFault, match=r"token 5: dimension 1 is 3 or more, beyond the bound n <= 2"):
        runs(program, {"a": "1 S1 1 S1 1 S1 D"})


@RUNS
def test_two_inputs_of_one_symbol_and_different_sizes(runs: Callable[..., Any]) -> None:
    with Program() as program:
        for name in "ab":
            Accum(1, Add)(program.input(name, ["n", R], ONE))
    with pytest.raises(StreamFault, match=r"a: output 0: the sizes of dimension 1 are \[1\], and n is 2"):
        runs(program, {"a": "1 1 S1 D", "b": "1 S1 1 S1 D"})
    with pytest.raises(StreamFault, match=r"the sizes of dimension 0 sum to \[1\], and ΣR is 2"):
        runs(program, {"a": "1 S1 D", "b": "1 1 S1 D"})


@RUNS
def test_a_shape_that_was_assumed_wrongly(runs: Callable[..., Any]) -> None:
    with Program() as program:
        data = program.input("a", ["n"], ONE), program.input("b", ["n"], SelectorType(2))
        first, _ = Partition(2)(*data)
        Map(Add)(first.assume([3]), first)
    with pytest.raises(StreamFault, match="output 0, token 2: dimension 0 is 2, and 3 by its type or before"):
        runs(program, {"a": "1 2 3 D", "b": "(0) (1) (0) D"})


@RUNS
def test_tiles_of_another_type(runs: Callable[..., Any]) -> None:
    """Also where the operator could compute with them."""
    with Program() as program:
        Map(SiLU)(program.input("a", ["n"], tile(1, 4)))
    for one, text in (
        (Tile.of(np.ones((2, 4))), "a, token 0: rows of a tile is 2 or more, and 1 by its type"),
        (Tile.of(np.ones((1, 4)), "f32"), "a, token 0: a tile of f32 in a stream of bf16"),
    ):
        with pytest.raises(StreamFault, match=text):
            runs(program, {"a": [one, DONE]})


def test_tokens_left_over() -> None:
    with Program() as program:
        Discard()(program.input("a", ["n"], ONE))
    with pytest.raises(StreamFault, match=r"Discard: input 0, token 2: 2 tokens are left over, the first is 2"):
        run(program, {"a": "1 D 2 D"})


def test_a_stream_without_its_end_is_a_deadlock() -> None:
    with Program() as program:
        Map(Add)(program.input("a", ["n"], ONE), program.input("b", ["n"], ONE))
    with pytest.raises(StuckError) as stuck:
        run(program, {"a": "1", "b": "1 2 D"})
    assert [(line.node, line.port, line.other) for line in stuck.value.waiting] == [
        ("Zip", "input 0", "input a"),
        ("Map", "input 0", "Zip"),
    ]


def test_a_deadlock_says_what_each_operator_waits_for() -> None:
    """At an input, at a full output, and where it chooses among inputs, also when one of them has ended."""
    with Program() as program:
        EagerMerge()(*(program.input(name, ["n"], ONE) for name in "ab"))
        Zip()(program.input("c", ["m"], ONE), program.input("d", ["m"], ONE))
    for given, waits in (("1", "inputs 0, 1 for input a or input b"), ("1 D", "inputs 1 for input b")):
        with pytest.raises(StuckError) as stuck:
            run(program, {"a": given, "b": "", "c": "1 2 3 D", "d": ""}, depths=2)
        lines = [str(line).partition(": ")[2] for line in stuck.value.waiting]
        assert lines == [
            "input c waits at output 0 for Zip (2 of 2 tokens)",
            f"EagerMerge waits at {waits} (no bound)",
            "Zip waits at input 1 for input d (0 of 2 tokens)",
        ]


@RUNS
def test_tokens_come_exactly_when_they_are_said_to(runs: Callable[..., Any]) -> None:
    """Although sums of times are rounded."""
    times = [0.1 + 0.7 * n / 3 for n in range(40)]
    with Program() as program:
        rows = program.input("a", ["n"], ONE)
        program.output("same", rows)
    tokens = [*[Tile.of([[1.0]])] * 39, DONE]
    assert list(runs(program, {"a": Arrivals(tokens, times)}).times[rows]) == times


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("1 S1", None, "without D"),
        ("1 S2 D 2", 3, "2 after D"),
        ("1 S1 S2 D", 2, "S2 right after S1"),
        ("1 S0 D", 1, "no token"),
        ("x D", 0, "no token"),
        ("[[1,2] D", 0, "no token"),
    ],
)
def test_texts_that_are_no_stream(text: str, position: int | None, said: str) -> None:
    with pytest.raises(TokenError, match=said) as error:
        decode(parse(text), 2)
    assert position in (None, error.value.position)


def test_what_a_program_refuses() -> None:
    program, other = Program(), Program()
    rows = program.input("a", ["n", 2], ONE)
    with pytest.raises(StepError, match="a stream of another program"):
        Zip()(rows, other.input("a", ["n", 2], ONE))
    with pytest.raises(StepError, match="a stream of another program"):
        other.output("b", rows)
    with pytest.raises(StepError, match="a stream of another program"):
        other.close(other.feedback("loop", ["n", 2], ONE), rows)
    with pytest.raises(StepError, match="a is there twice"):
        program.input("a", ["n"], ONE)
    with pytest.raises(StepError, match="cannot be ragged"):
        program.input("b", [R, 2], ONE)
    with pytest.raises(StepError, match="outside of a `with Program"):
        SelectGen([(0,)], 2)()
    with pytest.raises(StepError, match="selector \\(2\\) of 2 streams"), Program():
        SelectGen([(2,)], 2)()
    with pytest.raises(StepError, match="dimension 0 is 2, not 3"):
        rows.assume(["n", 3])
    with pytest.raises(StepError, match="rank 0 of a stream of rank 1"):
        rows.assume([2])
    with pytest.raises(StepError, match=r"inputs without tokens: \['a'\]; tokens of no input: \['z'\]"):
        run(program, {"z": "D"})
    Discard()(rows)
    with pytest.raises(StepError, match="depth 0; the least is 1"):
        run(program, {"a": "D"}, depths=0)
    for wrong in ([1, 0], [float("nan"), float("nan")], [0, float("inf")]):
        with pytest.raises(StepError, match="which must rise"):
            Arrivals(parse("1 D"), wrong)
    with pytest.raises(StepError, match=r"Tensor: .* has elements of boolean"):
        Tensor((2, 2), "boolean")
    with pytest.raises(StepError, match=r"has shape \(2, 2\), and its data \(2, 3\)"):
        Tensor((2, 2), data=np.zeros((2, 3)))
    loop = program.feedback("loop", ["n"], ONE)
    with pytest.raises(StepError, match="loop has no writer"):
        run(program, {"a": "D"})
    with pytest.raises(StepError, match="loop is \\[n\\] \\[1,1\\], and a is"):
        program.close(loop, rows)


def text(program: Program, stream: Any, **inputs: Any) -> str:
    return run(program, inputs).text(stream)


def test_functions_of_the_evaluation() -> None:
    with Program() as program:
        cache = program.input("cache", ["n"], tile(3, 2))
        offsets, row = program.input("offset", ["n"], INDEX), program.input("row", ["n"], tile(1, 2))
        filled = Map(AppendRow())(Map(SetOffset())(cache, offsets), row)
        rows = FlatMap(RetileStreamify(1, drop_padding=True))(filled)
        addresses = Map(Affine(4, 1))(offsets)
    inputs = {"cache": "[[1,1],[2,2],[9,9]] D", "offset": "2 D", "row": "[[3,3]] D"}
    assert text(program, rows, **inputs) == "[[1,1]] [[2,2]] [[3,3]] D"
    assert text(program, addresses, **inputs) == "9 D"


def test_sources_and_small_operators() -> None:
    with Program() as program:
        sizes = MetadataGen([[1, 2], [], [3]], rank=1)()
        kept = Broadcast(2)(First(2)(MetadataGen([5, 6, 7])()))
        flags = program.input("flags", [3], tile(1, 1, "boolean"))
        odd = FlatMap(WhereTrue())(Zip()(MetadataGen([1, 2, 3])(), flags))
        parts = FlatMap(RetileStreamify(2, along=1))(program.input("wide", ["n"], tile(1, 4)))
        several = FlatMap(Addresses(2))(SelectGen([(1,), (0,)], 2)())
        data, _ = EagerMerge()(MetadataGen([1])(), MetadataGen([2])())
    done = run(program, {"flags": "T F T D", "wide": "[[1,2,3,4]] D"})
    assert [done.text(one) for one in (sizes, *kept, odd, parts, several, data)] == [
        "1 2 S1 S1 3 S1 D",
        *["5 6 D"] * 2,
        "1 3 D",
        "[[1,2]] [[3,4]] D",
        "2 3 S1 0 1 S1 D",
        "1 2 D",
    ]
    assert str(sizes.type) == "[3,R0~] [1,1]"
    assert str(sizes.type.count()) == "3"
    assert isinstance(Zip()(sizes, sizes).type.data, TupleType)


def test_a_run_without_data_has_the_same_sizes() -> None:
    tensor = Tensor.of(np.arange(8.0).reshape(2, 4))
    with Program() as program:
        rows = RandomOffChipLoad(tensor, (1, 4))(program.input("a", ["n"], INDEX))
        total = Accum(1, RetileRow)(Reshape(0, 2, pad=0)(rows)[0])
    done = run(program, {"a": "1 0 1 D"}, with_data=False)
    assert done.text(total) == "<2x4> <2x4> D"
    assert done.traffic == run(program, {"a": "1 0 1 D"}).traffic
    assert show([Tile(2, 3, "bf16")]) == "<2x3>"
    with pytest.raises(StreamFault, match="RandomOffChipLoad: input 0, token 0: a tile of 1x1 without data"):
        run(program, {"a": [Tile(1, 1, "i32"), DONE]})
