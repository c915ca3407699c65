"""Shapes, traffic, memory and errors of operators, as text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sympy

from rsn.streams.dynamic import (
    Accum,
    Add,
    Bufferize,
    DefinedExpansion,
    EagerMerge,
    Expand,
    FlatMap,
    Flatten,
    Limits,
    LinearOffChipLoad,
    LinearOffChipStore,
    Map,
    Matmul,
    Partition,
    Program,
    Promote,
    RandomOffChipLoad,
    RandomOffChipStore,
    Reassemble,
    Reshape,
    RetileRow,
    RetileStreamify,
    Scan,
    SelectorType,
    SiLU,
    StepError,
    Stream,
    Streamify,
    Tensor,
    Zip,
    metrics,
    ragged,
    tile,
)
from rsn.streams.dynamic.shapes import (
    ANY,
    REGULAR,
    STATIC,
    BufferType,
    DimensionKind,
    StreamType,
    Symbols,
    dimension,
    symbol,
    text_of,
    volume,
)

ROW = tile(1, 64)
ADDRESS = tile(1, 1, "i32")
R = ragged("R")
WEIGHTS = Tensor((64, 256))
COLUMNS = (64, 64)


def stream(program: Program, shape: list[Any], data: Any = ROW) -> Stream:
    return program.input(f"i{len(program.inputs)}", shape, data)


def expansion(size: int | None) -> DefinedExpansion:
    return DefinedExpansion("rows", (size,), lambda of: of, lambda one: [one])


def selectors(count: int, hot: int | None = None) -> SelectorType:
    return SelectorType(count, hot)


# In the order of the design's list, in which new symbols are numbered.
LISTED: list[tuple[str, Callable[[Program], Any], str, str, str]] = [
    (
        "LinearOffChipLoad ref [D1] (v2 Fig. 2)",
        lambda p: LinearOffChipLoad(WEIGHTS, COLUMNS, (4, 1), (1, 4))(stream(p, ["D1"])),
        "[D1,1,4] [64,64]",
        "32768*D1",
        "16384",
    ),
    (
        "LinearOffChipLoad ref [2,R]",
        lambda p: LinearOffChipLoad(WEIGHTS, COLUMNS, (4, 1), (1, 4))(stream(p, [2, R])),
        "[2,R~,1,4] [64,64]",
        "32768*ΣR",
        "16384",
    ),
    (
        "RandomOffChipLoad [S,16,1]",
        lambda p: RandomOffChipLoad(Tensor((2048, 768)), (2048, 48))(stream(p, ["S", 16, 1], ADDRESS)),
        "[S,16,1] [2048,48]",
        "3145728*S",
        "393216",
    ),
    (
        "RandomOffChipStore [B]",
        lambda p: RandomOffChipStore(Tensor((64, 2048)))(stream(p, ["B"], ADDRESS), stream(p, ["B"], tile(1, 2048))),
        "[B] [1,1]",
        "4096*B",
        "8192",
    ),
    (
        "Bufferize(2) [2,R,2] (v2 Fig. 3)",
        lambda p: Bufferize(2)(stream(p, [2, R, 2], tile(16, 16))),
        "[2] Buf",
        "0",
        "2048*max R + 512",
    ),
    (
        "Streamify c=1 ref [2,Dreg] (v2 Fig. 3)",
        lambda p: Streamify(1)(Bufferize(2)(stream(p, [2, R, 2], tile(16, 16))), stream(p, [2, "Dreg"])),
        "[2,Dreg,R~,2] [16,16]",
        "0",
        "0",
    ),
    ("Flatten(0,1) of [2,2,R] (v2 (1))", lambda p: Flatten(0, 1)(stream(p, [2, 2, R])), "[2,R0~] [1,64]", "0", "0"),
    ("Flatten(0,2) of [2,2,R]", lambda p: Flatten(0, 2)(stream(p, [2, 2, R])), "[D1] [1,64]", "0", "0"),
    (
        "Reshape(0,16,pad) of [B]",
        lambda p: Reshape(0, 16, 0)(stream(p, ["B"])),
        "[ceiling(B/16),16] [1,64]; [ceiling(B/16),16] [1,1]",
        "0",
        "0",
    ),
    (
        "Reshape(0,4,pad) of [2,2,R]",
        lambda p: Reshape(0, 4, 0)(stream(p, [2, 2, R])),
        "[2,2,R2~,4] [1,64]; [2,2,R2~,4] [1,1]",
        "0",
        "0",
    ),
    (
        "Reshape(1,2) of [1,4,2]",
        lambda p: Reshape(1, 2)(stream(p, [1, 4, 2])),
        "[1,2,2,2] [1,64]; [1,2,2,2] [1,1]",
        "0",
        "0",
    ),
    ("Promote of [3]", lambda p: Promote()(stream(p, [3])), "[1,3] [1,64]", "0", "0"),
    (
        "Expand(2) [2,1,1], ref [2,R,2] (v2 Fig. 5)",
        lambda p: Expand(2)(stream(p, [2, 1, 1]), stream(p, [2, R, 2])),
        "[2,R~,2] [1,64]",
        "0",
        "128",
    ),
    (
        "Zip",
        lambda p: Zip()(stream(p, [2, 2, ragged("D0")]), stream(p, [2, 2, ragged("D0")])),
        "[2,2,D0~] Tup",
        "0",
        "0",
    ),
    (
        "Map matmul [4,64]x[64,64]",
        lambda p: Map(Matmul())(stream(p, ["C", 4], tile(4, 64)), stream(p, ["C", 4], tile(64, 64))),
        "[C,4] [4,64]",
        "0",
        "10240",
    ),
    ("Accum(1) RetileRow to [4,64]", lambda p: Accum(1, RetileRow)(stream(p, ["C", 4])), "[C] [4,64]", "0", "512"),
    (
        "Accum(1) RetileRow, dynamic tile",
        lambda p: Accum(1, RetileRow)(stream(p, [1, "B"])),
        "[1] [B,64]",
        "0",
        "128*B",
    ),
    ("Scan(2)", lambda p: Scan(2, Add)(stream(p, [2, 2, ragged("D0")])), "[2,2,D0~] [1,64]", "0", "128"),
    (
        "FlatMap b=0, 4 rows each, of [C]",
        lambda p: FlatMap(RetileStreamify(1))(stream(p, ["C"], tile(4, 64))),
        "[4*C] [1,64]",
        "0",
        "0",
    ),
    (
        "FlatMap b=0, data-dependent, of [1,B]",
        lambda p: FlatMap(expansion(None))(stream(p, [1, "B"])),
        "[1,F3~] [1,64]",
        "0",
        "0",
    ),
    (
        "Partition [1,B,2], sel [1,B], 3 (v1 Fig. 3)",
        lambda p: Partition(3)(stream(p, [1, "B", 2]), stream(p, [1, "B"], selectors(3))),
        "[B4_0,2] [1,64]; [B4_1,2] [1,64]; [B4_2,2] [1,64]",
        "0",
        "0",
    ),
    (
        "Reassemble 2 x [Bi,2], sel [2] (v1 Fig. 4)",
        lambda p: Reassemble()(stream(p, ["B0", 2]), stream(p, ["B1", 2]), stream(p, [2], selectors(2))),
        "[2,K5~,2] [1,64]",
        "0",
        "0",
    ),
    (
        "Reassemble, sel known 2-hot",
        lambda p: Reassemble()(stream(p, ["B0"]), stream(p, ["B1"]), stream(p, [10], selectors(2, hot=2))),
        "[10,2] [1,64]",
        "0",
        "0",
    ),
]


def test_shapes_traffic_and_memory() -> None:
    numbers = count()
    for label, build, shapes, traffic, memory in LISTED:
        program = Program(symbols=Symbols(numbers))
        made = build(program)
        streams = made if isinstance(made, tuple) else (made,)
        assert "; ".join(str(one.type) for one in streams) == shapes, label
        found = list(metrics(program).nodes.values())[-1]
        assert (str(found.traffic), str(found.memory)) == (traffic, memory), label


def bufferized(program: Program, shape: list[Any]) -> Stream:
    made: Stream = Bufferize(1)(stream(program, shape))
    return made


def matrices(a: tuple[int, int], b: tuple[int, int]) -> Callable[[Program], Any]:
    return lambda p: Map(Matmul())(stream(p, [2], tile(*a)), stream(p, [2], tile(*b)))


REFUSED: list[tuple[str, Callable[[Program], Any]]] = [
    ("Zip: dimension 1 is 2 there and 3 here", lambda p: Zip()(stream(p, [2, 4]), stream(p, [3, 4]))),
    ("Zip: rank 2 and rank 1", lambda p: Zip()(stream(p, [1, 2, 3]), stream(p, [2, 3]))),
    (
        "LinearOffChipLoad: tensor (64, 256) is not whole in tiles [64,48]",
        lambda p: LinearOffChipLoad(WEIGHTS, (64, 48), (1,), (1,))(stream(p, [1])),
    ),
    (
        "LinearOffChipLoad: 1 strides for 2 dimensions",
        lambda p: LinearOffChipLoad(WEIGHTS, COLUMNS, (1,), (1, 4))(stream(p, [1])),
    ),
    (
        "LinearOffChipLoad: ragged below the two outermost dimensions of its output (the restriction of 4.1)",
        lambda p: LinearOffChipLoad(WEIGHTS, COLUMNS, (4, 1), (1, 4))(stream(p, [2, 2, R])),
    ),
    (
        "LinearOffChipStore: tile of dynamic size (type S is a statically sized tile)",
        lambda p: LinearOffChipStore(WEIGHTS)(stream(p, [2], tile("B", 64))),
    ),
    (
        "RandomOffChipLoad: an address is a [1,1] tile of integers",
        lambda p: RandomOffChipLoad(WEIGHTS, COLUMNS)(stream(p, [2], tile(1, 1))),
    ),
    (
        "RandomOffChipLoad: an address is a [1,1] tile of integers",
        lambda p: RandomOffChipLoad(WEIGHTS, COLUMNS)(stream(p, [2], tile(1, 2, "i32"))),
    ),
    (
        "Bufferize: only the outermost bufferized dimension may be ragged (v2 3.2.2; none in v1)",
        lambda p: Bufferize(2)(stream(p, [2, 2, R])),
    ),
    (
        "Bufferize: only the outermost bufferized dimension may be ragged (v2 3.2.2; none in v1)",
        lambda p: Bufferize(2)(stream(p, [2, ragged("Q"), R])),
    ),
    ("Streamify: reference of rank 0, not 1", lambda p: Streamify(1)(bufferized(p, [2, 2]), stream(p, [2]))),
    (
        "Streamify: stride and shape for a buffer of dynamic shape, which is read linearly",
        lambda p: Streamify(1, (1,), (2,))(bufferized(p, [2, "B"]), stream(p, [2, 2])),
    ),
    (
        "Streamify: buffers and reference: dimension 0 is 2 there and 3 here",
        lambda p: Streamify(1)(bufferized(p, [2, 2]), stream(p, [3, 2])),
    ),
    ("Accum: reduces 1 dimensions of a stream of rank 0", lambda p: Accum(1, Add)(stream(p, [2]))),
    ("Map: matmul of [4,64] and [32,64]", matrices((4, 64), (32, 64))),
    ("Map: takes no buffers", lambda p: Map(Add)(bufferized(p, [2, 2]))),
    ("Flatten: dimensions 0 to 3 of a stream of rank 2", lambda p: Flatten(0, 3)(stream(p, [2, 2, 2]))),
    ("Reshape: dimension 1 is B, not static (A.1)", lambda p: Reshape(1, 2)(stream(p, [1, "B", 2]))),
    ("Reshape: dimension 1 of 5 is not divisible by 2", lambda p: Reshape(1, 2)(stream(p, [1, 5, 2]))),
    ("Reshape: takes no buffers (v2)", lambda p: Reshape(0, 1)(bufferized(p, [2, 2]))),
    (
        "Expand: the 1 innermost dimensions of [2,2] are not 1",
        lambda p: Expand(1)(stream(p, [2, 2]), stream(p, [2, 3])),
    ),
    (
        "Expand: data and reference: dimension 0 is 2 there and 3 here",
        lambda p: Expand(1)(stream(p, [2, 1]), stream(p, [3, 4])),
    ),
    (
        "Partition: data and selector: dimension 0 is 2 there and 3 here",
        lambda p: Partition(2)(stream(p, [2, 4]), stream(p, [3], selectors(2))),
    ),
    (
        "Partition: selector stream carries no selectors",
        lambda p: Partition(2)(stream(p, [2]), stream(p, [2], ADDRESS)),
    ),
    (
        "Reassemble: inputs of rank 2 and 1",
        lambda p: Reassemble()(stream(p, [1, 2, 3]), stream(p, [2, 3]), stream(p, [2], selectors(2))),
    ),
    (
        "EagerMerge: inputs of different data types",
        lambda p: EagerMerge()(stream(p, [2]), stream(p, [2], tile(2, 64))),
    ),
    # Others.
    ("Partition: selectors of 3 and 2 streams", lambda p: Partition(2)(stream(p, [2]), stream(p, [2], selectors(3)))),
    ("Bufferize: tile of dynamic size (type S is a statically sized tile)", lambda p: bufferized_tiles(p)),
    (
        "LinearOffChipLoad: reads tile 4 of a tensor of 4 tiles",
        lambda p: LinearOffChipLoad(WEIGHTS, COLUMNS, (4, 1), (2, 1))(stream(p, [1])),
    ),
    (
        "EagerMerge: inputs: dimension 0 is 2 there and 3 here",
        lambda p: EagerMerge()(stream(p, [4, 2]), stream(p, [4, 3])),
    ),
    ("Reshape: dimension 0 of 5 is not divisible by 2", lambda p: Reshape(0, 2)(stream(p, [5]))),
    ("FlatMap: takes no buffers", lambda p: FlatMap(expansion(1))(bufferized(p, [2, 2]))),
    ("Zip: takes two streams or more", lambda p: Zip()(stream(p, [2]))),
    ("Promote: takes 1 stream, not 2", lambda p: Promote()(stream(p, [2]), stream(p, [2]))),
]


def bufferized_tiles(program: Program) -> Any:
    return Bufferize(1)(stream(program, [2, 2], tile("B", 64)))


@pytest.mark.parametrize(("text", "build"), REFUSED, ids=[f"{k} {row[0]}" for k, row in enumerate(REFUSED)])
def test_what_does_not_fit_is_an_error_at_the_users_line(text: str, build: Callable[[Program], Any]) -> None:
    with pytest.raises(StepError) as refused:
        build(Program())
    assert f"{refused.value.operator}: {refused.value.text}" == text
    where = refused.value.where
    file, line = where.rsplit(":", 1)
    assert Path(file).name == Path(__file__).name
    assert f"{refused.value.operator}(" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(line) - 1]
    assert str(refused.value) == f"{where}: {text}"


def test_ragged_traffic_may_be_allowed() -> None:
    program = Program(Limits(ragged_traffic=True))
    LinearOffChipLoad(WEIGHTS, COLUMNS, (4, 1), (1, 4))(stream(program, [2, 2, R]))
    assert str(metrics(program).traffic) == "32768*ΣR"


def test_looser_kinds_take_stricter_ones() -> None:
    static_ragged = DimensionKind(ragged=True, dynamic=False)
    kinds = [STATIC, REGULAR, static_ragged, ANY]
    taken = {(a, b) for a in range(4) for b in range(4) if kinds[a].takes(kinds[b])}
    assert taken == {(0, 0), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (3, 1), (3, 2), (3, 3)}
    assert dimension(3).kind == STATIC
    assert dimension("B").kind == REGULAR
    assert ragged("R", static=True).kind == static_ragged


def test_sums_of_ragged_dimensions() -> None:
    shape = StreamType.of([2, ragged("R"), 3, ragged("Q"), 4], ROW)
    assert str(shape.count()) == "4*ΣQ"
    assert str(shape.count(2)) == "3*ΣR"
    assert shape.count(4) == 2
    assert volume([dimension("B"), dimension(2)]) == 2 * symbol("B")


def test_a_buffer_that_is_read_again_counts_again() -> None:
    program = Program()
    buffers = Bufferize(2)(stream(program, [2, R, 2], tile(16, 16)))
    read = Streamify(1)(buffers, stream(program, [2, 5]))
    assert str(read.type.count()) == "10*ΣR"
    assert isinstance(buffers.type.data, BufferType)
    again = Streamify(1)(buffers, stream(program, [2, ragged("Q")]))
    assert str(again.type.count()) not in ("2*ΣR", "10*ΣR")


def test_text_of_a_condition() -> None:
    program = Program()
    assert str(Promote()(stream(program, ["B"])).type) == "[(1 if B>0 else 0),B] [1,64]"
    assert text_of(sympy.Integer(3)) == "3"


def test_new_symbols_have_names_of_their_own() -> None:
    program = Program()
    flat = Flatten(0, 1)(stream(program, ["D0", 2, ragged("R0")]))
    assert str(flat.type) == "[D0,R0'~] [1,64]"
    assert str(flat.type.count()) == "ΣR0"
    other = Program()
    Flatten(0, 1)(stream(other, [2, 2, R]))
    with pytest.raises(StepError, match="R0 is the name of a symbol that an operator made"):
        stream(other, ["R0"])


def test_equal_shapes_stay_equal() -> None:
    """Data and their flags go through the same operators, and meet again."""
    program = Program()
    data, padding = Reshape(0, 4, 0)(stream(program, [2, "n", R]))
    Zip()(Flatten(0, 1)(data), Flatten(0, 1)(padding))
    Zip()(Flatten(0, 3)(data), Flatten(0, 3)(padding))
    again, _ = Reshape(0, 4, 0)(Map(SiLU)(stream(program, [2, "n", R])))
    Zip()(data, again)
    with pytest.raises(StepError, match="dimension 0 is"):
        Zip()(Flatten(0, 1)(data), Flatten(0, 1)(stream(program, [2, "n", ragged("Q"), 4])))
