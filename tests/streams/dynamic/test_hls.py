"""HLS C++ of dynamic programs: run natively, it gives what the simulation gives."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rsn.base.element_types import SCALARS, ElementType
from rsn.base.errors import ProgramError
from rsn.host.native_dynamic import DynamicResults, build_dynamic, run_native_dynamic
from rsn.hw.versal.hlscheck.checker import check_folder
from rsn.hw.versal.hlscheck.design import COMPILER
from rsn.isa.overlays.tasks.values import convert
from rsn.streams.dynamic import (
    Accum,
    Add,
    Addresses,
    Affine,
    AllRead,
    AppendRow,
    Broadcast,
    Bufferize,
    Defined,
    DefinedExpansion,
    Discard,
    Div,
    Exp,
    Expansion,
    First,
    FlatMap,
    Flatten,
    Function,
    Iterate,
    Last,
    LinearOffChipLoad,
    LinearOffChipStore,
    Map,
    Matmul,
    MatmulAdd,
    MetadataGen,
    Mul,
    Program,
    Promote,
    RandomOffChipLoad,
    RandomOffChipStore,
    Repeat,
    RetileCol,
    RetileRow,
    RetileStreamify,
    RowSum,
    Scan,
    SelectGen,
    Selector,
    SelectorType,
    SetOffset,
    SiLU,
    SortedMerge,
    Streamify,
    StuckError,
    Sub,
    TakeWhile,
    Tensor,
    Tile,
    TokenError,
    TupleType,
    Update,
    WhereTrue,
    Zip,
    decode,
    encode,
    run,
    show,
    tile,
    timed,
)
from rsn.streams.dynamic.hls.emit import DynamicHls, dynamic_cpp
from rsn.streams.dynamic.hls.functions import FUNCTIONS
from rsn.streams.dynamic.hls.operators import OPERATORS as OPERATORS_IN_CPP
from rsn.streams.dynamic.hls.project import dynamic_project
from rsn.streams.dynamic.hls.records import from_records, to_records
from rsn.streams.dynamic.operators.base import Operator
from rsn.streams.dynamic.programs.attention import AttentionProgram, Cache, Heads, attention
from rsn.streams.dynamic.programs.experts import ExpertLayerShape, ExpertProgram, ExpertTensors, mixture
from rsn.streams.dynamic.programs.tiling import TiledProducts, tiled_products
from rsn.streams.hls.values import HlsError
from rsn.streams.placing.devices import VC1902
from rsn.tests.compilers import quick_compiler
from rsn.tests.effort import FULL, cases, full, in_both, in_full, long, sampled
from rsn.tests.streams.dynamic import nested as oracle
from rsn.tests.streams.dynamic.test_oracle import OPERATORS, Case, eager_merge, flat_map, mapped, reassemble

CASES = cases(40, 3)
BOUND = 64
"""Of every size of an input that has none."""


def built(folder: Path, programs: Sequence[DynamicHls]) -> Path:
    """Compile programs together."""
    with quick_compiler():
        build_dynamic(programs, folder / "regions", "-O0")
    return folder / "regions"


def square(case: Case) -> None:
    rank = case.random.randint(0, 3)
    nested = oracle.drawn(case.random, rank)
    cpp = "[](const auto &one, auto &out) { out(0, 0) = rsn::bf16(float(one(0, 0)) * float(one(0, 0))); }"
    function = Defined("square", lambda one: one, lambda one: Tile.of(one.scalar**2), cpp=cpp)
    case.expect(Map(function)(case.stream(nested, rank)), oracle.at_rank(nested, rank, 0, lambda one: one**2))


def expansion(case: Case) -> None:
    """Of each of the numbers below 10 some tensors."""
    rank, made = case.random.randint(0, 3), case.random.randint(0, 2)
    nested = oracle.drawn(case.random, rank)
    answers = [oracle.drawn(case.random, made) for _ in range(10)]
    lines = []
    for value, answer in enumerate(answers):
        puts = []
        for token in encode(answer, made)[:-1]:
            puts.append(f"put({token});" if isinstance(token, Tile) else f"out.stop({token.level});")
        lines.append(f"if (value == {value}) {{ {' '.join(puts)} }}")
    cpp = (
        "[](const auto &one, auto &out) { const auto value = rsn::step::index_in(one); "
        "const auto put = [&](float x) { auto made = one; made(0, 0) = rsn::bf16(x); out.put(made); }; "
        f"static_cast<void>(put); {' '.join(lines)} }}"
    )
    function = DefinedExpansion("any", (None,) * (made + 1), lambda of: of, lambda one: answers[one.scalar], cpp)
    case.expect(FlatMap(function)(case.stream(nested, rank)), oracle.flat_map(nested, rank, lambda one: answers[one]))


NATIVE: list[Callable[[Case], None]] = [
    *(one for one in OPERATORS if one not in (mapped, flat_map)),
    square,
    expansion,
]


def emitted(build: Callable[[Case], None], seed: int) -> tuple[Case, DynamicHls]:
    """A case, and its C++, with FIFOs of one of the depths for which the simulation gives the same."""
    case = Case(Random(f"{build.__name__} {seed}"))
    build(case)
    for symbol in {one for stream in case.program.streams for size in stream.type.shape for one in [size.size]}:
        if symbol.is_Symbol:
            case.program.bounds.setdefault(symbol, BOUND)
    for number, (stream, _, _) in enumerate(case.expected):
        case.program.output(f"o{number}", stream)
    return case, dynamic_cpp(case.program, f"{build.__name__}_{seed}", case.random.randint(1, 3))


@in_both
@pytest.mark.parametrize(
    "builds",
    # Most of the time of a compiler goes into the headers: what is compiled at once costs a third.
    sampled([NATIVE[part::4] for part in range(4)], [NATIVE[::4]]),
    ids=lambda builds: ", ".join(build.__name__ for build in builds),
)
def test_operators_do_natively_what_the_oracle_does(builds: Sequence[Callable[[Case], None]], tmp_path: Path) -> None:
    made = [(build, *emitted(build, seed)) for build in builds for seed in range(CASES)]
    region = built(tmp_path, [one for _, _, one in made])
    for number, (build, case, one) in enumerate(made):
        inputs = {name: getattr(tokens, "tokens", tokens) for name, tokens in case.inputs.items()}
        done = run_native_dynamic(region, number, one, inputs, seconds=60)
        if build is eager_merge:
            check_merged(case, done)
            continue
        for name, (_, nested, rank) in enumerate(case.expected):
            found, expected = done.tokens[f"o{name}"], encode(nested, rank)
            if build is reassemble:  # several that are chosen come in any order
                chunks = case.program.outputs[f"o{name}"].source.inputs[0].type.rank
                found, expected = (encode(in_order(decode(of, rank), rank, chunks), rank) for of in (found, expected))
            assert show(found) == show(expected), (number, one.text)


def in_order(nested: Any, rank: int, chunk: int) -> Any:
    """Tensors with the chunks of each selector sorted."""
    return oracle.at_rank(nested, rank, chunk + 1, lambda group: sorted(group, key=str))


def check_merged(case: Case, done: DynamicResults) -> None:
    """All chunks are there, those of an input in their order, and the selectors say of which input each is."""
    _, _, rank = case.expected[0]
    chunks, turns = decode(done.tokens["o0"], rank), done.tokens["o1"][:-1]
    for name in range(len(case.inputs)):
        given = case.inputs[f"i{name}"]
        mine = [chunk for chunk, turn in zip(chunks, turns, strict=True) if turn == Selector((name,))]
        assert show(encode(mine, rank)) == show(given.tokens)


# -- the operators and functions that the oracle does not have ---------------------------------------------------------


@dataclass
class Drawn:
    """A program, and how its inputs are drawn."""

    program: Program
    draw: Callable[[np.random.Generator], dict[str, Any]] = field(default=lambda random: {})
    exact: bool = True


def tiles(random: np.random.Generator, count: int, rows: int, columns: int, dtype: str) -> list[Tile]:
    """Small integers: sums and products of them are exact in all types."""
    kept = SCALARS[dtype].kept
    low = 0 if dtype[0] == "u" else -1
    return [Tile.of(random.integers(low, 2, (rows, columns)).astype(kept), dtype) for _ in range(count)]


def off_chip() -> Drawn:
    """Loads and stores, linear and at random, of parts that repeat, and buffers that are read in another order."""
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    source, copy, scattered = Tensor.of(values, "f32"), Tensor((6, 8), "f32"), Tensor((6, 8), "f32")
    with Program() as program:
        numbers = program.input("numbers", [6], tile(1, 1, "i32"))
        loaded = LinearOffChipLoad(source, (2, 4), (0, 2, 1), (2, 3, 2))()
        program.output("loaded", loaded)
        buffers = Bufferize(2)(loaded)
        program.output("buffers", buffers)
        program.output("turned", Streamify(1, (1, 2), (2, 3))(buffers, Repeat(3)(buffers)))
        LinearOffChipStore(copy, 3)(RandomOffChipLoad(source, (1, 8))(First(3)(numbers)))
        rows = RandomOffChipLoad(source, (1, 8))(numbers)
        program.output("written", RandomOffChipStore(scattered)(numbers, rows))
    return Drawn(program, lambda random: {"numbers": encode(random.permutation(6).tolist(), 0, integer)})


def integer(value: int) -> Tile:
    return Tile.of(value, "i32")


def sources() -> Drawn:
    """Selectors over more streams than a word has bits, numbers, and copies."""
    with Program() as program:
        chosen = SelectGen([[(0, 39), (), (31, 32, 33)], [], [(5,)]], 40, rank=1)()
        numbers = MetadataGen([[[-7, 1 << 30], []], []], rank=2)()
        for name, stream in zip("abc", Broadcast(3)(numbers), strict=True):
            program.output(name, stream)
        Discard()(numbers)
        program.output("chosen", chosen)
        one = SelectGen([(3,), (17,)], 20)()
        program.output("affine", Map(Affine(3, -4))(one))
        program.output("addresses", FlatMap(Addresses(3, 5))(one))
    return Drawn(program)


def arithmetic(dtype: str) -> Drawn:
    """Tiles of one type, one of them of a row and one of a column."""
    with Program() as program:
        whole, row, column = (
            program.input(name, [3], tile(*size, dtype))
            for name, size in (("whole", (2, 6)), ("row", (1, 6)), ("column", (2, 1)))
        )
        for name, function in (("sum", Add), ("product", Mul), *((("difference", Sub),) if dtype[0] != "u" else ())):
            program.output(f"{name} with row", Map(function)(whole, row))
            program.output(f"{name} with column", Map(function)(column, whole))
        square = Map(Matmul(transpose_right=True))(whole, whole)
        program.output("square", square)
        program.output("turned", Map(Matmul(transpose_left=True))(whole, column))
        program.output("plain", Map(Matmul())(square, whole))
        program.output("sums", Map(RowSum())(whole))
        program.output("total", Accum(1, MatmulAdd())(Promote()(Zip()(square, whole))))
        if not SCALARS[dtype].integer:
            program.output("halves", Map(Div)(whole, Map(Add)(row, row)))

    def draw(random: np.random.Generator) -> dict[str, Any]:
        sizes = {"whole": (2, 6), "row": (1, 6), "column": (2, 1)}
        found = {name: tiles(random, 3, *size, dtype) for name, size in sizes.items()}
        for one in found["row"]:  # a power of 2 divides without a rest
            one.data[:] = 2
        return {name: encode(of, 0) for name, of in found.items()}

    return Drawn(program, draw)


def transcendental(dtype: str) -> Drawn:
    with Program() as program:
        stream = program.input("x", [3], tile(2, 6, dtype))
        for name, function in (("exp", Exp), ("silu", SiLU), ("sums", RowSum())):
            program.output(name, Map(function)(stream))

    def draw(random: np.random.Generator) -> dict[str, Any]:
        kind = ElementType(dtype, (2, 6))
        made = [Tile.of(convert(3 * random.standard_normal((2, 6)), kind), dtype) for _ in range(3)]
        return {"x": encode(made, 0)}

    return Drawn(program, draw, exact=False)


def filled() -> Drawn:
    """Rows that are filled, filters, and updates that keep one element."""
    with Program() as program:
        whole = program.input("whole", [2, 3], tile(3, 4, "f32"))
        row = program.input("row", [2, 3], tile(1, 4, "f32"))
        offset = program.input("offset", [2, 3], tile(1, 1, "i32"))
        flag = program.input("flag", [2, 3], tile(1, 1, "boolean"))
        appended = Map(AppendRow())(Map(SetOffset())(whole, offset), row)
        program.output("appended", appended)
        program.output("rows", FlatMap(RetileStreamify(1, drop_padding=True))(appended))
        program.output("columns", FlatMap(RetileStreamify(2, along=1))(whole))
        for name, negate in (("true", False), ("false", True)):
            program.output(name, FlatMap(WhereTrue(negate))(Zip()(whole, flag)))
        flags = Accum(1, RetileCol)(flag)
        program.output("flags", flags)
        packed = Accum(1, RetileRow)(row)
        program.output("masked", FlatMap(RetileStreamify(1, drop_padding=True))(Zip()(packed, flags)))
        program.output("last", Accum(1, Last())(whole))
        program.output("read", Accum(1, AllRead())(whole))
        program.output("running", Scan(1, Add)(row))

    def draw(random: np.random.Generator) -> dict[str, Any]:
        def pairs(of: list[Tile]) -> list[Any]:
            return encode([of[:3], of[3:]], 1)

        return {
            "whole": pairs(tiles(random, 6, 3, 4, "f32")),
            "row": pairs(tiles(random, 6, 1, 4, "f32")),
            "offset": pairs([integer(int(one)) for one in random.integers(0, 3, 6)]),
            "flag": pairs([Tile.of(bool(one), "boolean") for one in random.integers(0, 2, 6)]),
        }

    return Drawn(program, draw)


def any_size() -> Drawn:
    """Tiles of several sizes: each is added, multiplied and cut as it comes."""
    with Program() as program:
        rows, columns = program.symbol("m", at_most=5), program.symbol("k", at_most=4)
        left = program.input("left", [2, 3], tile(rows, columns, "f32"))
        right = program.input("right", [2, 3], tile(columns, 6, "f32"))
        program.output("product", Map(Matmul())(left, right))
        program.output("products", Accum(1, MatmulAdd())(Zip()(left, right)))
        program.output("sum", Accum(1, Add, initial=1)(left))
        program.output("scan", Scan(1, Mul, initial=1)(right))
        wide = Accum(1, RetileCol)(left)
        program.output("wide", wide)
        program.output("high", Accum(1, RetileRow)(right))
        program.output("parts", FlatMap(RetileStreamify(1, along=1))(wide))
        program.output("sums", Map(RowSum())(wide))
        program.output("turned", Map(Matmul(transpose_left=True))(wide, wide))

    def draw(random: np.random.Generator) -> dict[str, Any]:
        m, k = int(random.integers(1, 6)), int(random.integers(1, 5))
        left, right = tiles(random, 6, m, k, "f32"), tiles(random, 6, k, 6, "f32")
        return {"left": encode([left[:3], left[3:]], 1), "right": encode([right[:3], right[3:]], 1)}

    return Drawn(program, draw)


TYPES = ("f32", "bf16", "i32", "u8", "f16", "f64", "i8", "i16", "u16", "u32", "i64", "u64", "i4", "u4")
DRAWN: dict[str, Callable[[], Drawn]] = {
    "off_chip": off_chip,
    "sources": sources,
    "filled": filled,
    "any_size": any_size,
    **{f"arithmetic_{dtype}": partial(arithmetic, dtype) for dtype in TYPES[: cases(14, 4)]},
    **{f"transcendental_{dtype}": partial(transcendental, dtype) for dtype in ("f16", "bf16", "f32", "f64")},
}
RUNS = 5


@pytest.mark.long
@in_full
def test_functions_and_sources_do_natively_what_a_run_does(tmp_path: Path) -> None:
    made = {name: make() for name, make in DRAWN.items()}
    written = [dynamic_cpp(one.program, name, 4) for name, one in made.items()]
    region = built(tmp_path, written)
    for number, (name, one) in enumerate(made.items()):
        for seed in range(RUNS if one.program.inputs else 1):
            inputs = one.draw(np.random.default_rng(seed))
            expected = run(one.program, inputs)
            found = run_native_dynamic(region, number, written[number], inputs, seconds=60)
            for output in one.program.outputs:
                compare(found.tokens[output], expected[output], one.exact, f"{name}, {output}")
            for tensor, values in found.tensors.items():
                np.testing.assert_array_equal(values, expected.tensor(tensor), name)


def compare(found: Sequence[Any], expected: Sequence[Any], exact: bool, what: str) -> None:
    """Tokens are the same; values of tiles up to the last digits where sums or exponentials are in no stated order."""
    assert len(found) == len(expected), (what, show(found), show(expected))
    for one, other in zip(found, expected, strict=True):
        if exact or not isinstance(one, Tile):
            assert one == other, (what, str(one), str(other))
            continue
        assert (one.shape, one.dtype, one.filled) == (other.shape, other.dtype, other.filled), what
        digits = {"f16": 2e-3, "bf16": 2e-2, "f32": 1e-5, "f64": 1e-13}[one.dtype]
        np.testing.assert_allclose(one.data, other.data, digits, digits, err_msg=what)


def classes(base: type) -> set[type]:
    """All classes below one that are not abstract, and are of the package."""
    below = {one for child in base.__subclasses__() for one in {child, *classes(child)}}
    return {one for one in below if not inspect.isabstract(one) and one.__module__.startswith("rsn.streams")}


def test_every_operator_and_every_function_has_cpp() -> None:
    """Those that have none of their own stand for others, and are never in a program; or are refused."""
    refused = {SortedMerge, TakeWhile, Iterate}
    assert classes(Operator) == {*OPERATORS_IN_CPP, *refused, *(one for one in classes(Operator) if is_base(one))}
    found = {one for base in (Function, Update, Expansion) for one in classes(base)}
    assert found == {*FUNCTIONS, *(one for one in found if is_base(one))}


def is_base(one: type) -> bool:
    """Whether a class only stands above others."""
    return bool(one.__subclasses__()) and one not in {*OPERATORS_IN_CPP, *FUNCTIONS}


# -- whole programs ----------------------------------------------------------------------------------------------------

LAYERS = [
    *(f"experts_{name}" for name in ("static", "dynamic", "regions")),
    *(f"attention_{name}" for name in ("coarse", "interleaved", "dynamic")),
]
OFTEN = ("experts_static", "experts_regions", "attention_dynamic")
"""Tiles of one size; of any size, and more operators than the others; caches. The long tests try these."""
LAYER = ExpertLayerShape("small", 16, 24, 4, 2, 8)


def values(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def layers() -> dict[str, ExpertProgram | AttentionProgram]:
    """A mixture of experts with tiles of one size, of any size, and of experts in turn on regions; and attention of
    caches of several lengths in the three ways of dispatch."""
    random = np.random.default_rng(0)
    chosen = [tuple(sorted(random.choice(4, 2, replace=False).tolist())) for _ in range(9)]
    tensors = ExpertTensors(
        values(random, 9, 16),
        values(random, 4, 16, 24),
        values(random, 4, 16, 24),
        values(random, 4, 24, 16),
        values(random, 9, 2),
    )
    made: dict[str, ExpertProgram | AttentionProgram] = {
        f"experts_{name}": mixture(LAYER, chosen, rows, regions=regions, values=tensors, dtype="f32")
        for name, rows, regions in (("static", 4, None), ("dynamic", None, None), ("regions", None, 2))
    }
    cache = Cache(*(values(random, 5, 2, rows, 16) for rows in (4, 96, 96)))
    for dispatch in ("coarse", "interleaved", "dynamic"):
        made[f"attention_{dispatch}"] = attention(
            [70, 3, 33, 64, 1], Heads(2, 4, 16), dispatch, regions=2, queue=0, cache=cache, dtype="f32"
        )
    assert [*made] == LAYERS
    return made


@pytest.mark.long
@in_full
def test_layers_give_natively_what_a_run_gives(tmp_path: Path) -> None:
    """And hierarchical tiling, and large tiles, give the product."""
    random = np.random.default_rng(0)
    sizes = TiledProducts(3, 8, 12, 8, 4)
    a, b = (random.integers(-3, 4, (3 * 8, 12)).astype(np.float32) for _ in range(2))
    products = [tiled_products(sizes, hierarchical, a=a, b=b) for hierarchical in (False, True)]
    right = np.einsum("nik,njk->nij", a.reshape(3, 8, 12), b.reshape(3, 8, 12)).reshape(24, 8)
    made = [one for name, one in layers().items() if FULL or name in OFTEN]
    written = [dynamic_cpp(one.program, f"products_{k}") for k, one in enumerate(products)]
    written += [dynamic_cpp(one.program, f"layers_{k}", one.depths) for k, one in enumerate(made)]
    region = built(tmp_path, written)
    results = [run_native_dynamic(region, number, one, seconds=60) for number, one in enumerate(written)]
    for product, done in zip(products, results[:2], strict=True):
        assert np.array_equal(done.tensor(product.result), right)
    for one, done in zip(made, results[2:], strict=True):
        found, expected = done.tensor(one.result), timed(one.program, depths=one.depths).tensor(one.result)
        assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max(), one


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")
@pytest.mark.parametrize("name", [long(name) if name == OFTEN[-1] else full(name) for name in LAYERS])
def test_hls_would_take_the_cpp_of_layers(name: str, tmp_path: Path) -> None:
    """All loops have the intervals that they state, and no rule of HLS is broken."""
    one = layers()[name]
    made = dynamic_cpp(one.program, name, one.depths, VC1902.float_add)
    for file, text in dynamic_project(made, VC1902).items():
        (tmp_path / file).write_text(text)
    report = check_folder(tmp_path)
    assert [str(finding) for finding in report.findings] == []
    assert len(report.loops) > 100


# -- what is refused, and what fails in a run --------------------------------------------------------------------------


def refused(program: Program) -> str:
    with pytest.raises(HlsError) as caught:
        dynamic_cpp(program, "p")
    return re.sub(r"^\S*test_hls.py:\d+: ", "", str(caught.value))


def test_tiles_without_a_bound_are_refused() -> None:
    with Program() as program:
        packed = Accum(1, RetileRow)(program.input("x", [2, "n"], tile(1, 4)))
        program.output("out", packed)
    assert refused(program) == (
        "Accum: hls: Accum: [2] [n,4]: size n has no bound; give the symbols that it depends on one: "
        "program.symbol(name, at_most=..)"
    )


def test_words_that_end_before_the_stream_does_are_refused() -> None:
    data = TupleType((tile(1, 2), SelectorType(3)))
    tokens = encode([(Tile.of([1, 2]), Selector((0, 2)))], 0)
    words = to_records(tokens, data)
    assert show(from_records(words, data)) == show(tokens)
    for count in range(len(words)):
        with pytest.raises(TokenError, match="the words of the stream end before D"):
            from_records(words[:count], data)


def test_functions_of_python_without_cpp_are_refused() -> None:
    with Program() as program:
        program.output(
            "out", Map(Defined("own", lambda one: one, lambda one: one))(program.input("x", [2], tile(1, 1)))
        )
    assert refused(program) == "Map: hls: own is a function of Python; its parameter cpp takes its C++"


@pytest.mark.parametrize("dtype", ["boolean", "i32"])
def test_results_that_are_none_of_their_type_are_refused(dtype: str) -> None:
    with Program() as program:
        program.output("out", Map(Div)(*(program.input(name, [2], tile(1, 1, dtype)) for name in "xy")))
    text = f"/ of tiles of {dtype} and {dtype}, whose result is none of {dtype}, has no C++"
    assert refused(program) == f"Map: hls: {text}"


def test_programs_without_a_result_are_refused() -> None:
    with Program() as program:
        Flatten(0, 1)(program.input("x", [2, 3], tile(1, 1)))
    assert refused(program) == "p: hls: a program without a result; Program.output names one"


def test_accesses_without_an_order_are_refused() -> None:
    tensor = Tensor((4, 4), "f32", name="shared")
    with Program() as program:
        LinearOffChipStore(tensor)(program.input("x", [4], tile(1, 4, "f32")))
        program.output("out", LinearOffChipLoad(tensor, (1, 4), (1,), (4,))())
    assert re.fullmatch(
        r"LinearOffChipStore: hls: no stream leads from it to LinearOffChipLoad \(\S+\) or back: both access shared, "
        r"in any order",
        refused(program),
    )


class Native:
    """Small programs, in one program for this computer."""

    def __init__(self, folder: Path) -> None:
        self.programs = {name: make() for name, make in SMALL.items()}
        made = [dynamic_cpp(program, name) for name, program in self.programs.items()]
        made.append(dynamic_cpp(self.programs["held"], "room", {self.programs["held"].inputs["rows"]: 8}))
        self._made = {one.name: (number, one) for number, one in enumerate(made)}
        self._region = built(folder, made)

    def run(self, name: str, inputs: Mapping[str, Any], **options: Any) -> DynamicResults:
        return run_native_dynamic(self._region, *self._made[name], inputs, seconds=60, **options)


def held() -> Program:
    with Program() as program:
        rows = program.input("rows", [8], tile(1, 1))
        packed = Accum(1, RetileRow)(Promote()(rows))
        # The rows wait here until all of them are packed.
        program.output("out", Zip()(FlatMap(RetileStreamify(1))(packed), rows))
    return program


def zipped() -> Program:
    with Program() as program:
        program.output("out", Zip()(*(program.input(name, [2], tile(1, 1)) for name in "xy")))
    return program


def sums() -> Program:
    with Program() as program:
        stream = program.input("x", [program.symbol("n"), program.ragged("g")], tile(program.symbol("m", 4), 2))
        program.output("out", Accum(1, Add)(stream))
    return program


def squared() -> Program:
    with Program() as program:
        x = program.input("x", [1], tile(1, 1, "i8"))
        program.output("out", Map(Mul)(x, x))
    return program


def repeated() -> Program:
    with Program() as program:
        program.output("out", Repeat(50)(program.input("x", [2], tile(1, 2, "f32"))))
    return program


SMALL = {make.__name__: make for make in (held, zipped, sums, squared, repeated)}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return Native(tmp_path_factory.mktemp("small"))


@pytest.mark.long
def test_a_deadlock_is_reported_with_who_waits_for_whom(small: Native) -> None:
    inputs = {"rows": encode([float(k) for k in range(8)], 0)}
    with pytest.raises(StuckError, match=r"\S+:\d+: Zip waits at FlatMap to Zip for FlatMap"):
        small.run("held", inputs)
    with pytest.raises(StuckError):
        run(small.programs["held"], inputs, 2)
    assert show(small.run("room", inputs).tokens["out"]) == run(small.programs["held"], inputs).text("out")


def test_an_error_of_a_run_names_the_operator(small: Native) -> None:
    with pytest.raises(ProgramError, match=r"Zip \(\S+:\d+\): the streams of a Zip do not have the same groups"):
        small.run("zipped", {"x": "1 2 D", "y": "1 D"})
    with pytest.raises(ProgramError, match=r"zipped: inputs without tokens: \['y'\]; tokens of no input: \['z'\]"):
        small.run("zipped", {"x": "1 2 D", "z": "1 D"})


def test_a_group_without_tiles_has_no_size(small: Native) -> None:
    inputs = {"x": "[[1,2]] S1 S1 D"}
    with pytest.raises(ProgramError, match="a group without tiles, whose size nothing says"):
        small.run("sums", inputs)
    with pytest.raises(ProgramError, match="columns of a tile is 1"):
        run(small.programs["sums"], inputs)


def test_integers_that_their_type_does_not_have_end_a_run(small: Native) -> None:
    with pytest.raises(ProgramError, match="an integer that the element type of the tile does not have"):
        small.run("squared", {"x": "100 D"})
    with pytest.raises(ProgramError, match="input x: an integer that i8 does not have"):
        small.run("squared", {"x": "200 D"})


def test_results_that_need_more_room_than_at_first(small: Native) -> None:
    inputs = {"x": "[[1,2]] [[3,4]] D"}
    done = small.run("repeated", inputs, result_words=4)
    assert show(done.tokens["out"]) == run(small.programs["repeated"], inputs).text("out")
