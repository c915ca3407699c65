"""Whole programs: results against numpy, and what they move, hold and compute against the expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy

from rsn.streams.dynamic import (
    Accum,
    Add,
    Bufferize,
    DefinedUpdate,
    EagerMerge,
    Expand,
    FlatMap,
    Flatten,
    Last,
    LinearOffChipLoad,
    LinearOffChipStore,
    Map,
    Matmul,
    MatmulAdd,
    Parallelize,
    Partition,
    Program,
    Promote,
    Reassemble,
    Repeat,
    Reshape,
    RetileRow,
    RetileStreamify,
    Run,
    SelectorType,
    SiLU,
    StepError,
    StreamFault,
    Streamify,
    StuckError,
    Tensor,
    Tile,
    TupleType,
    Zip,
    decode,
    encode,
    metrics,
    run,
    show,
    tile,
)
from rsn.streams.dynamic.requests import Busy
from rsn.tests.streams.dynamic.programs import (
    HIDDEN,
    MODEL,
    Experts,
    dynamic_dispatch,
    dynamic_tiles,
    gathered,
    numbers,
    repeated,
    routed_inputs,
    static_dispatch,
    static_tiles,
    time_multiplexed,
)

CHOSEN = [(0,), (0,), (1,), (0,), (0,), (1,), (0,), (0,), (1,), (0,)]  # 7 and 3 rows


def counted_equals_expressions(program: Program, done: Run) -> None:
    """Each operator moves and computes what its expressions say with the values of the run, and holds no more."""
    found = metrics(program)
    for node, one in found.nodes.items():
        assert found.value(one.traffic, done) == done.traffic[node], node
        assert found.value(one.flops, done) == done.flops[node], node
        if done.held[node]:
            assert found.value(one.memory, done) == done.held[node], node


def test_gemm() -> None:
    a, b = np.arange(24.0).reshape(4, 6), np.arange(24.0).reshape(6, 4) % 5
    c = Tensor((4, 4))
    with Program() as program:
        left = LinearOffChipLoad(Tensor.of(a), (2, 3), (2, 0, 1), (2, 2, 2))()
        right = LinearOffChipLoad(Tensor.of(b), (3, 2), (0, 1, 2), (2, 2, 2))()
        LinearOffChipStore(c)(Accum(1, Add)(Map(Matmul())(left, right)))
    done = run(program)
    assert str(left.type) == "[1,2,2,2] [2,3]"
    expected = [[20, 30, 35, 35], [80, 96, 107, 113], [140, 162, 179, 191], [200, 228, 251, 269]]
    assert done.tensor(c).tolist() == expected == (a @ b).tolist()
    assert [bytes_moved for bytes_moved in done.traffic.values() if bytes_moved] == [96, 96, 32]
    assert metrics(program).traffic == 96 + 96 + 32
    assert metrics(program).flops == 2 * 4 * 6 * 4 + 2 * 16
    counted_equals_expressions(program, done)


def loads(layer: Experts, done: Run) -> list[int]:
    """Bytes of each loader."""
    return [moved for node, moved in done.traffic.items() if "Load" in node.name]


def test_experts_with_static_tiles() -> None:
    layer = static_tiles(10, 2, 4)
    rows = numbers(9, 10, MODEL)
    done = run(layer.program, routed_inputs(rows, CHOSEN))
    assert done.text(layer.result) == gathered(rows, CHOSEN, [tensor.data for tensor in layer.tensors])
    assert loads(layer, done) == [384, 192]
    assert str(layer.result.type) == f"[10,1] [1,{HIDDEN}]"
    counted_equals_expressions(layer.program, done)


def test_expressions_of_experts_with_static_tiles() -> None:
    layer = static_tiles(10, 2, 4)
    found = metrics(layer.program)
    b0, b1 = (sympy.Symbol(f"B0_{expert}", integer=True, nonnegative=True) for expert in range(2))
    weights = 2 * MODEL * HIDDEN
    assert sympy.simplify(found.traffic - weights * (sympy.ceiling(b0 / 4) + sympy.ceiling(b1 / 4))) == 0
    size, columns = 4, 4
    loader, product = 2 * 2 * MODEL * columns, 16 * MODEL * 2 + 2 * MODEL * columns
    expert = loader + 2 * size * MODEL + 2 * size * MODEL + product + 2 * size * HIDDEN
    flags = 1  # bytes of 4 flags, which the published formula leaves out
    assert found.memory == 2 * (expert + flags)
    assert found.value(found.traffic, {"B0_0": 7, "B0_1": 3}) == 384 + 192
    assert found.value(found.flops, {"B0_0": 7, "B0_1": 3}) == 3 * 2 * 4 * MODEL * HIDDEN
    # One tile, not two, at the loader; nothing for products; tiles on chip of 4 bytes, but those of the loader.
    figures = metrics(layer.program, "figures")
    assert figures.memory == 2 * (2 * MODEL * columns + 4 * size * MODEL * 2 + 4 * size * HIDDEN + flags)
    assert figures.traffic == found.traffic


def test_the_number_of_chosen_may_be_stated() -> None:
    layer = static_tiles(10, 2, 4, hot=None)
    assert str(layer.result.type) == f"[10,K3~] [1,{HIDDEN}]"
    layer.result.assume([10, 1])
    rows = numbers(9, 10, MODEL)
    done = run(layer.program, routed_inputs(rows, CHOSEN))
    assert done.text(layer.result) == gathered(rows, CHOSEN, [tensor.data for tensor in layer.tensors])
    several = [(0, 1), *CHOSEN[1:]]
    with pytest.raises(StreamFault, match=r"dimension 0 is 2 or more, and 1 by its type"):
        run(layer.program, routed_inputs(rows, several))


def test_experts_with_dynamic_tiles() -> None:
    layer = dynamic_tiles(10, 3)
    rows = numbers(9, 10, MODEL)
    done = run(layer.program, routed_inputs(rows, CHOSEN))
    assert done.text(layer.result) == gathered(rows, CHOSEN, [tensor.data for tensor in layer.tensors])
    assert loads(layer, done) == [192, 192, 0]
    packed = [decode(done[f"packed{expert}"], 0) for expert in range(3)]
    assert [sum(one.rows for one in tiles) for tiles in packed] == [7, 3, 0]
    assert done.text("packed2") == "D"
    counted_equals_expressions(layer.program, done)


def test_expressions_of_experts_with_dynamic_tiles() -> None:
    layer = dynamic_tiles(10, 3)
    found = metrics(layer.program)
    values = {f"B0_{expert}": rows for expert, rows in enumerate((7, 3, 0))}
    assert found.value(found.traffic, values) == 2 * 2 * MODEL * HIDDEN
    # All experts have a loader and a product; their rows, in tiles of B_e, are 10 in all.
    loader, product = 2 * 2 * MODEL * 4, 16 * MODEL * 2 + 2 * MODEL * 4
    assert found.value(found.memory, values) == 3 * (loader + product) + 10 * 2 * (2 * MODEL + HIDDEN)
    assert found.value(found.flops, values) == 2 * 10 * MODEL * HIDDEN
    demanded = metrics(layer.program, "figures", on_demand=True)
    always = metrics(layer.program, "figures")
    assert always.value(always.memory, values) - demanded.value(demanded.memory, values) == 2 * MODEL * 4


@pytest.mark.parametrize(
    ("slow", "turns", "addresses", "rows"),
    [(0, "(1) (0) D", "3 4 5 S1 0 1 2 S1 D", [3, 7]), (1, "(0) (1) D", "0 1 2 S1 3 4 5 S1 D", [7, 3])],
)
def test_experts_that_share_a_region(slow: int, turns: str, addresses: str, rows: list[int]) -> None:
    layer = time_multiplexed(10, 2)
    data = numbers(9, 10, MODEL)
    late = ("Accum", "Accum1")[slow]
    done = run(
        layer.program,
        routed_inputs(data, CHOSEN),
        durations=lambda node, _: float(node.name == late),
    )
    weights = layer.tensors[0].data
    assert weights is not None
    assert done.text(layer.result) == gathered(data, CHOSEN, list(weights))
    assert (done.text("turns"), done.text("addresses")) == (turns, addresses)
    assert [one.rows for one in decode(done["packed"], 0)] == rows
    assert loads(layer, done) == [384]
    counted_equals_expressions(layer.program, done)


@pytest.mark.parametrize("layer", [static_tiles(10, 2, 4), dynamic_tiles(10, 3), time_multiplexed(10, 2)])
def test_what_steers_is_computed_without_data(layer: Experts) -> None:
    inputs = routed_inputs(numbers(9, 10, MODEL), CHOSEN)
    with_data = run(layer.program, inputs)
    inputs["rows"] = encode([[Tile(1, MODEL, "bf16")]] * 10, 1)
    done = run(layer.program, inputs, with_data=False)
    assert done.text(layer.result) == " S1 ".join([f"<1x{HIDDEN}>"] * 10) + " S1 D"
    assert (done.traffic, done.flops, done.held) == (with_data.traffic, with_data.flops, with_data.held)


KV = [9, 2, 3, 1, 4, 1, 5, 2]


def busy_reading(node: Any, request: Any) -> float:
    """A cycle for each KV tile of a region."""
    return float(isinstance(request, Busy) and node.name.startswith("Accum"))


def test_requests_go_to_the_region_that_is_free_first() -> None:
    dispatch = dynamic_dispatch(len(KV))
    text = " ".join(map(str, KV)) + " D"
    done = run(dispatch.program, {"requests": text}, durations=busy_reading)
    assert done.text("turns") == "(0) (1) (2) (3) (3) (1) (1) (2) D"
    assert max(done.ends[node] for node in dispatch.program.nodes) == 9
    assert [len(done[f"done{region}"]) - 1 for region in range(4)] == [1, 3, 2, 2]
    # The least depth: a region takes a request only when it has ended the one before.
    again = run(dispatch.program, {"requests": text}, depths=1, durations=busy_reading)
    assert again.text("turns") == done.text("turns")


@pytest.mark.parametrize(("coarse", "ends"), [(False, 13), (True, 11)])
def test_requests_that_are_dealt_out(coarse: bool, ends: float) -> None:
    dispatch = static_dispatch(len(KV), coarse)
    done = run(dispatch.program, {"requests": " ".join(map(str, KV)) + " D"}, durations=busy_reading)
    assert max(done.ends.values()) == ends


def test_large_tiles_as_small_ones() -> None:
    """[4] of [16,256] times [32,256] transposed, in tiles of [16,16] (v2, Fig. 18)."""
    a, b = numbers(1, 4, 16, 256), numbers(2, 4, 32, 256)
    with Program() as program:
        left = program.input("a", [4, 1, 16], tile(16, 16))
        right = program.input("b", [4, 2, 16], tile(16, 16))
        rows, columns = Bufferize(1)(left), Bufferize(2)(right)
        many = Streamify(1)(rows, repeated(rows, 2))
        all_columns = Streamify(1)(columns, repeated(columns, 1))
        result = Accum(1, Add)(Map(Matmul(transpose_right=True))(many, all_columns))
    assert [str(one.type) for one in (rows, columns)] == ["[4,1] Buf", "[4] Buf"]
    assert str(many.type) == str(all_columns.type) == "[4,1,2,16] [16,16]"
    assert str(result.type) == "[4,1,2] [16,16]"
    found = metrics(program)
    assert found.of("Bufferize").memory == 512 + 16 * 512 * 2
    assert found.of("Bufferize1").memory == 512 + 32 * 512 * 2
    with pytest.raises(StepError, match="x9 is no type of elements"):
        metrics(program, on_chip_dtype="x9")
    with pytest.raises(StepError, match="no operator is called Buffer; they are "):
        found.of("Buffer")
    n, m = program.symbol("n"), program.symbol("m")
    with pytest.raises(StepError, match=r"the values of [mn] depend on themselves"):
        found.value(n, {n: m + 1, m: n + 1})
    cut_a = a.reshape(4, 1, 16, 16, 16).transpose(0, 1, 3, 2, 4)
    cut_b = b.reshape(4, 2, 16, 16, 16).transpose(0, 1, 3, 2, 4)
    tiles = [[[[Tile.of(part) for part in row] for row in whole] for whole in tensor] for tensor in (cut_a, cut_b)]
    done = run(program, {"a": encode(tiles[0], 2), "b": encode(tiles[1], 2)})
    products = (a @ b.transpose(0, 2, 1)).reshape(4, 16, 2, 16).transpose(0, 2, 1, 3)
    assert done.text(result) == show(encode([[[Tile.of(part) for part in one]] for one in products], 2))
    counted_equals_expressions(program, done)


def test_decode_attention() -> None:
    """One query against tiles of keys and values of several requests: a state of largest score, sum and output."""
    size, rows = 4, 2
    lengths = [3, 1, 2]
    random = np.random.default_rng(0)
    queries, keys, values = (random.normal(size=(3, n, size)) for n in (1, 3 * rows, 3 * rows))
    one, out = tile(1, 1, "f32"), tile(1, size, "f32")

    def more(state: Any, element: Any) -> Any:
        most, total, result = (part.data for part in state)
        scores, value = (part.data for part in element)
        largest = np.maximum(most, scores.max(axis=1, keepdims=True))
        weights, old = np.exp(scores - largest), np.exp(most - largest)
        parts = (largest, total * old + weights.sum(axis=1, keepdims=True), result * old + weights @ value)
        return tuple(Tile.of(part, "f32") for part in parts)

    start = (Tile.of(-np.inf, "f32"), Tile.of(0.0, "f32"), Tile.of(np.zeros((1, size)), "f32"))
    softmax = DefinedUpdate(
        "online softmax", lambda _: TupleType((one, one, out)), lambda: start, more, lambda of: (0, ())
    )
    with Program() as program:
        length = program.ragged("L", at_most=3)
        query = program.input("q", [3, length], tile(1, size, "f32"))
        key = program.input("k", [3, length], tile(rows, size, "f32"))
        value = program.input("v", [3, length], tile(rows, size, "f32"))
        scores = Map(Matmul(transpose_right=True))(query, key)
        state = Accum(1, softmax)(Zip()(scores, value))
    nested = {
        "q": [[Tile.of(queries[r], "f32")] * n for r, n in enumerate(lengths)],
        "k": [[Tile.of(keys[r, t * rows : (t + 1) * rows], "f32") for t in range(n)] for r, n in enumerate(lengths)],
        "v": [[Tile.of(values[r, t * rows : (t + 1) * rows], "f32") for t in range(n)] for r, n in enumerate(lengths)],
    }
    done = run(program, {name: encode(tensors, 1) for name, tensors in nested.items()})
    for r, (_, total, result) in enumerate(decode(done[state], 0)):
        weights = np.exp(queries[r] @ keys[r, : lengths[r] * rows].T)
        expected = weights / weights.sum() @ values[r, : lengths[r] * rows]
        np.testing.assert_allclose(result.data / total.data, expected)
    found = metrics(program)
    assert str(found.of("Map").flops) == "16*ΣL"
    assert found.value(found.flops, {"L": lengths}) == 16 * 6
    assert found.of("Accum").memory == 4 + 4 + 16


def gemm(rows_on_chip: bool) -> tuple[Program, Any]:
    """C = A B with the tiles of A read from off the chip for each column of tiles, or once and then from a buffer."""
    a, b, c = Tensor.of(numbers(1, 8, 8)), Tensor.of(numbers(2, 8, 8)), Tensor((8, 8))
    with Program() as program:
        if rows_on_chip:
            buffers = Bufferize(1)(LinearOffChipLoad(a, (4, 4), (2, 1), (2, 2))())
            left = Streamify(count=2)(buffers)
        else:
            left = LinearOffChipLoad(a, (4, 4), (2, 0, 1), (2, 2, 2))()
        right = LinearOffChipLoad(b, (4, 4), (0, 1, 2), (2, 2, 2))()
        LinearOffChipStore(c)(Accum(1, MatmulAdd())(Zip()(left, right)))
    done = run(program)
    assert a.data is not None
    assert b.data is not None
    assert done.tensor(c).tolist() == (a.data @ b.data).tolist()
    counted_equals_expressions(program, done)
    return program, done


def test_memory_buys_traffic() -> None:
    found = [metrics(gemm(kept)[0]) for kept in (False, True)]
    assert [one.traffic for one in found] == [2 * (128 + 128 + 64), 2 * (64 + 128 + 64)]
    assert found[1].memory - found[0].memory == 32 + 2 * 2 * 32
    assert found[1].intensity > found[0].intensity


def test_a_deadlock_by_depth_names_who_waits_for_whom() -> None:
    with Program() as program:
        rows = program.input("a", ["n"], tile(1, 1))
        groups = Promote()(rows)
        # The sum comes when all elements have gone by; they wait for it, and only two fit.
        sums = Streamify(1)(Bufferize(1)(Promote()(Accum(1, Add)(groups))), groups)
    assert run(program, {"a": "1 2 D"}, depths=4).text(sums) == "3 S1 3 S2 D"
    with pytest.raises(StuckError) as stuck:
        run(program, {"a": "1 2 3 4 5 6 D"}, depths=2)
    names = {line.node for line in stuck.value.waiting}
    assert {"Promote", "Streamify"} <= names
    line = next(line for line in stuck.value.waiting if line.node == "Promote")
    assert (line.port, line.other, line.filled, line.depth) == ("output 0", "Streamify", 2, 2)
    assert "test_programs.py:" in str(stuck.value)


def varied(program: Program, rank: int, columns: int = 4) -> Any:
    """Tiles of any number of rows, in groups of any size."""
    shape = ["n", *(program.ragged(f"g{level}") for level in range(rank))]
    return program.input(f"i{len(program.inputs)}", shape, tile(program.ragged(f"r{len(program.inputs)}"), columns))


def through(name: str, tiles: Any, program: Program) -> Any:
    """Tiles of any size that come several times, are chosen, packed or split."""
    match name:
        case "once":
            return tiles
        case "repeat":
            return Repeat(3)(tiles)
        case "expand":
            return Expand(1, (3,))(Reshape(0, 1)(tiles)[0])
        case "packed":
            return Accum(1, RetileRow)(tiles)
        case "last":
            return Accum(1, Last())(tiles)
        case "dealt":
            return EagerMerge()(*Parallelize(2)(Flatten(0, 1)(tiles)))[0]
        case "routed":
            flat = Flatten(0, 1)(tiles)
            selectors = program.input("s", [flat.type.shape[0]], SelectorType(2))
            return Reassemble()(*Partition(2)(flat, selectors), selectors)
        case _:
            return FlatMap(RetileStreamify(1))(tiles)


THROUGH = ("once", "repeat", "expand", "packed", "last", "dealt", "routed", "rows")


@pytest.mark.parametrize("name", THROUGH)
def test_work_on_tiles_of_many_sizes_is_what_is_counted(name: str) -> None:
    random = np.random.default_rng(3)
    with Program() as program:
        tiles = varied(program, 1)
        made = through(name, tiles, program)
        Map(Matmul())(made, Map(Matmul(transpose_left=True))(made, made))
        Map(SiLU)(made)
    groups = [[Tile.of(np.ones((random.integers(1, 5), 4))) for _ in range(size)] for size in (2, 1, 3)]
    inputs: dict[str, Any] = {"i0": encode(groups, 1)}
    if "s" in program.inputs:
        inputs["s"] = "(0) (0,1) () (1) (1) (0) D"
    counted_equals_expressions(program, run(program, inputs))


def test_functions_of_elements_may_be_called_as_others_are_made() -> None:
    assert Add() is Add
    with Program() as program:
        program.output("sums", Accum(1, Add())(program.input("x", [3, 2], tile(1, 1))))
    assert run(program, {"x": "1 2 S1 3 4 S1 5 6 S1 D"}).text("sums") == "3 7 11 D"
