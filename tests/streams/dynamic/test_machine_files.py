"""Programs of dynamic streams as machines with files: results and times through a text and an image are those of
`timed`, and what is wrong in a file is said."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import sympy
from hypothesis import example, given
from hypothesis import strategies as st

from rsn.assembler import container, parser
from rsn.assembler.printer import show
from rsn.base.errors import ContainerError, ProgramError, SourceError, TensorError, UndecidedError
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays import OVERLAYS
from rsn.isa.overlays.file import made, text
from rsn.isa.overlays.tasks.codec import schema_of, toml
from rsn.isa.program import Program as MachineProgram
from rsn.isa.verify import check, dry_run
from rsn.streams import dynamic
from rsn.streams.dynamic import (
    Accum,
    Add,
    Affine,
    AppendRow,
    Broadcast,
    Bufferize,
    Defined,
    DefinedExpansion,
    DefinedUpdate,
    Discard,
    Div,
    EagerMerge,
    Exp,
    Expansion,
    First,
    FlatMap,
    Fold,
    Function,
    Last,
    Limits,
    LinearOffChipLoad,
    LinearOffChipStore,
    Map,
    MetadataGen,
    Partition,
    Program,
    Promote,
    RandomOffChipLoad,
    RandomOffChipStore,
    Rates,
    Repeat,
    RetileCol,
    RetileStreamify,
    RowSum,
    Run,
    Scan,
    SelectGen,
    SelectorType,
    SetOffset,
    SiLU,
    Streamify,
    Sub,
    Tensor,
    Tile,
    TimedRun,
    Update,
    WhereTrue,
    Zip,
    encode,
    metrics,
    run,
    tile,
    timed,
)
from rsn.streams.dynamic.errors import StepError
from rsn.streams.dynamic.functions import Elementwise
from rsn.streams.dynamic.machine import OperatorMachine, lowered, run_machine
from rsn.streams.dynamic.machine.codec import NODES, OperatorCodec, read_size, written_size
from rsn.streams.dynamic.operators.base import Operator
from rsn.streams.dynamic.programs.attention import Heads, attention
from rsn.streams.dynamic.programs.experts import ExpertLayerShape, mixture
from rsn.streams.dynamic.programs.figures import DISPATCHES
from rsn.streams.dynamic.programs.swiglu import SwigluTensors, swiglu
from rsn.streams.dynamic.shapes import FLAG, dimension, positive, ragged, symbol
from rsn.streams.dynamic.updates import Retile
from rsn.tests.effort import cases, examples, in_both
from rsn.tests.streams.dynamic.programs import (
    MODEL,
    dynamic_tiles,
    numbers,
    routed_inputs,
    static_tiles,
    time_multiplexed,
)
from rsn.tests.streams.dynamic.test_attention import drawn_cache
from rsn.tests.streams.dynamic.test_layers import drawn_values
from rsn.tests.streams.dynamic.test_oracle import OPERATORS, Case


def through_files(machine: OperatorMachine) -> MachineProgram:
    """A machine from a text that was printed from an image."""
    loaded = container.loads(container.dumps(lowered(machine)))
    printed = show(loaded)
    assembled = parser.parse(printed, "machine.rsn")
    assert isinstance(assembled, MachineProgram)
    assert show(assembled) == printed
    return assembled


def plain(token: Any) -> Any:
    """A token with the bits of its values."""
    if isinstance(token, tuple):
        return tuple(map(plain, token))
    if isinstance(token, Tile):
        bits = None if token.data is None else (token.data.dtype.str, token.data.tobytes())
        return token.shape, token.dtype, token.filled, bits
    elements = getattr(token, "elements", None)
    return (token, tuple(map(plain, elements))) if elements is not None else token


def assert_equal_runs(machine: OperatorMachine, made: MachineProgram, inputs: Mapping[str, Any]) -> None:
    """A machine gives what `timed` gives, to the last bit; without rates, what `run` gives."""
    if machine.rates is None:
        expected: Run = run(machine.program, inputs, machine.depths)
    else:
        expected = timed(machine.program, inputs, machine.depths, machine.rates)
    values = {name: one.data for name, one in machine.read.items() if one.data is not None}
    found = run_machine(made, inputs, values, with_data=len(values) == len(machine.read)).run
    assert [str(one.type) for one in found.program.streams] == [str(one.type) for one in machine.program.streams]
    for name in ("tokens", "times", "ends", "traffic", "flops", "held"):
        ours, theirs = list(getattr(found, name).values()), list(getattr(expected, name).values())
        if name == "tokens":
            ours, theirs = ([list(map(plain, tokens)) for tokens in streams] for streams in (ours, theirs))
        assert ours == theirs, name
    assert found.values == expected.values
    if isinstance(expected, TimedRun):
        assert found.cycles == expected.cycles
        assert found.depends_on_time == expected.depends_on_time
    stored = {name: machine.tensors[name] for name in machine.written}
    if len(values) == len(machine.read):
        results = run_machine(made, inputs, values).tensors()
        assert {name: one.tobytes() for name, one in results.items()} == {
            name: expected.tensor(one).tobytes() for name, one in stored.items()
        }


LAYER = ExpertLayerShape("small", 3, 6, 4, 2, 2)
CHOSEN = [(0, 1), (1, 3), (0, 3), (1, 0), (3, 1)]


def machines() -> dict[str, tuple[OperatorMachine, Mapping[str, Any]]]:
    inputs = routed_inputs(numbers(9, 10, MODEL), [(0,), (1,), (0,), (0,), (1,), (0,), (0,), (1,), (0,), (0,)])
    found: dict[str, tuple[OperatorMachine, Mapping[str, Any]]] = {
        "static tiles": (OperatorMachine(static_tiles(10, 2, 4).program, 16), inputs),
        "dynamic tiles": (OperatorMachine(dynamic_tiles(10, 3).program, 16), inputs),
        "time-multiplexed": (OperatorMachine(time_multiplexed(10, 2).program, 16, Rates(channels=2)), inputs),
    }
    for tile_rows, regions in ((2, None), (None, None), (None, 2)):
        for dtype, values in (("bf16", drawn_values(LAYER, len(CHOSEN))), ("f32", None)):
            made = mixture(LAYER, CHOSEN, tile_rows, regions=regions, compute=8, values=values, dtype=dtype)
            name = f"mixture {tile_rows} {regions} {dtype}"
            found[name] = OperatorMachine(made.program, made.depths, Rates(latency=3)), {}
    program, streams = cache_program()
    found["cache"] = OperatorMachine(program, 9, Rates(on_chip=4, channels=1, latency=2)), streams
    from_swiglu = swiglu(4, 6, 8, 2, 4, compute=16, through_memory=True, values=swiglu_values())
    found["swiglu"] = OperatorMachine(from_swiglu.program), {}
    return found


def swiglu_values() -> SwigluTensors:
    random = np.random.default_rng(1)
    return SwigluTensors(*(random.normal(size=shape) for shape in ((4, 6), (6, 8), (6, 8), (8, 6))))


def cache_program() -> tuple[Program, dict[str, Any]]:
    """Rows are appended to the last tiles of caches; with functions that the other programs do not apply."""
    with Program(Limits(ragged_traffic=True)) as program:
        rows = program.input("rows", ["n"], tile(1, 3))
        filled = program.input("filled", ["n"], tile(1, 1, "i32"))
        cache = Tensor.of(np.arange(36.0).reshape(12, 3), name="cache")
        places = Map(Affine(1, 0))(filled)
        last = Accum(1, Last())(RandomOffChipLoad(cache, (4, 3))(Repeat(2)(Map(Affine(0, 2))(filled))))
        appended = Map(AppendRow())(Map(SetOffset())(last, places), rows)
        RandomOffChipStore(cache)(Map(Affine(0, 1))(filled), Map(Add)(appended, appended))
        again, dropped = Broadcast(2)(appended)
        Discard()(dropped)
        shown = FlatMap(RetileStreamify(1, drop_padding=True))(again)
        buffers = Bufferize(1)(Repeat(3)(Map(Exp)(rows)))
        affine = Streamify(1, (2, 0), (2, 2))(buffers, Repeat(2)(filled))
        sums = Map(Div)(Map(RowSum())(affine), Map(RowSum(), memory_out=True)(affine))
        kept = FlatMap(WhereTrue(negate=True))(Zip()(rows, program.input("flags", ["n"], FLAG)))
        program.output("shown", Scan(1, Add)(Promote()(shown)))
        program.output("sums", Accum(2, RetileCol)(sums))
        program.output("kept", kept)
        program.output("buffers", buffers)
    inputs = {"rows": "[[1,2,0.5]] [[0,0,1]] D", "filled": "1 3 D", "flags": "T F D"}
    return program, inputs


def test_all_operators_and_functions_of_the_package_can_be_written() -> None:
    public = {getattr(dynamic, name) for name in dynamic.__all__ if isinstance(getattr(dynamic, name), type)}
    kinds = (Operator, Function, Update, Expansion)
    written = {one for one in public if issubclass(one, kinds)} - {*kinds, Defined, DefinedUpdate, DefinedExpansion}
    assert written <= set(NODES.values())


@pytest.mark.parametrize("name", list(machines()))
def test_programs_through_files(name: str) -> None:
    machine, inputs = machines()[name]
    assert_equal_runs(machine, through_files(machine), inputs)


@examples(60, 9)
@given(st.data())
def test_ragged_attention_through_files(data: st.DataObject) -> None:
    heads = Heads(2, 2, 3, 4)
    lengths = data.draw(st.lists(st.integers(1, 11), min_size=1, max_size=5))
    made = attention(
        lengths,
        heads,
        data.draw(st.sampled_from(DISPATCHES)),
        regions=data.draw(st.integers(1, 3)),
        queue=data.draw(st.integers(0, 2)),
        compute=64,
        cache=drawn_cache(lengths, heads),
    )
    machine = OperatorMachine(made.program, made.depths, Rates(latency=data.draw(st.integers(0, 20))))
    assert_equal_runs(machine, through_files(machine), {})


@in_both
@pytest.mark.parametrize("build", OPERATORS, ids=lambda build: build.__name__)
def test_every_operator_through_files(build: Any) -> None:
    """On drawn streams. An operator with a function of Python runs on a machine here alone."""
    for seed in range(cases(40, 4)):
        case = Case(Random(f"{build.__name__} {seed}"))
        build(case)
        rates = case.random.choice((None, Rates(), Rates(on_chip=16, channels=1), Rates(latency=3)))
        machine = OperatorMachine(case.program, 64, rates)
        if any("Defined" in str(node.operator) for node in case.program.nodes):
            with pytest.raises(StepError, match="files hold numbers of Python, and no code"):
                lowered(machine)
            made = lowered(machine, in_files=False)
            with pytest.raises(ProgramError, match="there are none"):
                container.dumps(made)
        else:
            made = through_files(machine)
        assert_equal_runs(machine, made, case.inputs)


# -- configurations ---------------------------------------------------------------------------------------------------

TENSORS = {"w": Tensor((4, 8), name="w"), "of 'x'": Tensor((3, 4, 8), "f32", name="x")}
CODEC = OperatorCodec(TENSORS)
NUMBERS = st.integers(-(2**40), 2**40)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field, whether an operator takes it or not."""
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: NUMBERS,
        bool: st.booleans(),
        str: st.sampled_from(["bf16", "f32", "it's"]),
        float: st.integers(-3, 3) | st.floats(allow_nan=False),
        Tensor: st.sampled_from(list(TENSORS.values())),
        type(None): st.none(),
        Function: st.sampled_from([SiLU, Exp]) | st.deferred(lambda: of_class(Function)),
        Update: st.deferred(lambda: of_class(Update)),
        Expansion: st.deferred(lambda: of_class(Expansion)),
    }
    if hint in simple:
        return simple[hint]
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        return (
            st.lists(of_type(parts[0]), max_size=3).map(tuple) if parts[-1] is ... else st.tuples(*map(of_type, parts))
        )
    if parts:
        return st.one_of([of_type(part) for part in parts if get_origin(part) is not type])
    return of_class(hint)


def of_class(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.one_of([built(node) for node in NODES.values() if issubclass(node, kind)])


def built(node: type[Any]) -> st.SearchStrategy[Any]:
    if node is SelectGen:
        return st.builds(node, st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3), NUMBERS, st.just(0))
    if node is MetadataGen:
        return st.builds(node, st.lists(NUMBERS, max_size=4), st.just(0))
    fields = {name: of_type(hint) for name, hint in schema_of(node)}
    if node is Elementwise:
        fields["symbol"] = st.sampled_from("+-*/")
    if node is Retile:
        fields["along"] = st.integers(0, 1)
    if "compute" in fields:
        fields["compute"] = st.none() | st.integers(1, 10**6)
    return st.builds(node, **fields)


def through_toml(encoded: Any) -> Any:
    return tomllib.loads(f"x = {toml(encoded)}")["x"]


@pytest.mark.parametrize("name", [name for name, node in NODES.items() if issubclass(node, Operator)])
@examples(100, 10, deadline=None)
@given(st.data())
def test_every_configuration_is_read_as_it_was_written(name: str, data: st.DataObject) -> None:
    operator = data.draw(built(NODES[name]))
    read = CODEC.read("operators.X", through_toml(CODEC.encoded(operator)), Operator)
    assert read == operator
    assert repr(read) == repr(operator)  # 0 and 0.0 make tiles of other types


def test_numbers_of_numpy_are_those_of_python() -> None:
    read = CODEC.read("x", through_toml(CODEC.encoded(Fold(Add, np.float64(0.5)))), Update)
    assert type(read.initial) is float
    assert through_toml(CODEC.encoded(First(np.int64(3)))) == ["First", 3]  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="float32"):
        CODEC.encoded(Fold(Add, np.float32(0.5)))  # type: ignore[arg-type]


B, C = symbol("B"), symbol("C 2")
SIZES = st.recursive(
    st.integers(0, 9).map(sympy.Integer) | st.sampled_from([B, C]),
    lambda of: (
        st.tuples(of, of).map(lambda two: two[0] + two[1])
        | st.tuples(of, of).map(lambda two: two[0] * two[1])
        | st.tuples(of, of).map(lambda two: sympy.Max(*two))
        | of.map(lambda one: sympy.ceiling(one / 3))
        | of.map(positive)
    ),
    max_leaves=5,
)


@example(positive(B + positive(B)), positive(B + positive(B)), False)
@examples(300, 30, deadline=None)
@given(SIZES, SIZES, st.booleans())
def test_every_size_is_read_as_it_was_written(size: Any, total: Any, static: bool) -> None:
    for one in (dimension(size), ragged("R", static, total, size), ragged("R", static)):
        assert read_size(through_toml(written_size(one))) == one


# -- mistakes ---------------------------------------------------------------------------------------------------------


def dispatched() -> Program:
    """With a loop, a bound, an assumed shape and tensors."""
    with Program() as program:
        program.symbol("n", at_most=9)
        stream = program.input("requests", ["n"], tile(4, 4))
        loop = program.feedback("turns", ["n"], SelectorType(2, 1))
        parts = Partition(2)(stream, loop)
        weights = Tensor.of(np.ones((4, 8)), name="w")
        made = [Accum(1, Sub, compute=4)(LinearOffChipLoad(weights, (4, 4), (1,), (2,))(one)) for one in parts]
        _, free = EagerMerge()(*made)
        turns, _ = EagerMerge()(SelectGen([(0,), (1,)], 2)(), First(2)(free))
        program.close(loop, turns.assume(["n"]))
        program.output("sums", made[0])
    return program


DEEP = "['Add', 1, " * 110 + "1" + "]" * 110


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("memory = 3", "memory: a machine of operators has none"),
        ("rates = [1, 2]", "rates: on_chip, access"),
        ("rates = [64, 64, 1, 2, 0]", "rates: Rates: .* no client gets more than all channels"),
        ("bounds.n = -1", "bounds.n: -1 is no bound"),
        ("tensors.w = [[4, 8], 'f99', 0, true]", "tensors.w: f99 is no type of elements"),
        ("tensors.w = [[4, 0], 'bf16', 0, true]", "tensors.w: .* no list of whole numbers from 1 on"),
        (
            "tensors.w = [[4, 6], 'bf16', 0, true]",
            r"operators.LinearOffChipLoad: .*py:\d+: .* not whole in tiles \[4,4\]",
        ),
        ("inputs.requests = [['n'], ['TileType', 3, 4, 'bf16']]", "inputs.requests has 3 parts"),
        ("inputs.requests = [['n'], ['TileType', 3, 4, 'bf16'], -1]", "inputs.requests: -1 is no depth"),
        ("inputs.requests = [['n'], ['Tile', 3, 4, 'bf16'], 2]", "inputs.requests: 'Tile' is no"),
        ("inputs.requests = [[['Exec', 'n']], ['TileType', 3, 4, 'bf16'], 2]", "inputs.requests: .* is no size"),
        ("inputs.requests = [[['Pow', 2, 99]], ['TileType', 3, 4, 'bf16'], 2]", "an exponent is at most 64"),
        ("inputs.requests = [[-1], ['TileType', 3, 4, 'bf16'], 2]", "inputs.requests: dimension: -1 is no size"),
        ("inputs.requests = [['m'], ['TileType', 3, 4, 'bf16'], 2]", "operators.Partition: .*: dimension 0 is m there"),
        (
            "loops.turns = [['n'], ['SelectorType', 3, 1], 'EagerMerge1.0']",
            "operators.Partition: .*selectors of 3",
        ),
        ("loops.turns = [['n'], ['SelectorType', 2, 1], 'EagerMerge']", "loops.turns: there is no stream EagerMerge "),
        ("loops.turns = [['n'], ['SelectorType', 2, 1], 'Accum']", "loops.turns: close: turns is"),
        ("operators.First = [['First', -1], ['EagerMerge.1'], 'a.py:1', [2]]", "operators.First: a.py:1: First: takes"),
        ("operators.First = [['First', 2], ['EagerMerge.1'], 'a.py:1', []]", "operators.First: 0 depths for 1 outputs"),
        (
            "operators.First = [['First', 2], [], 'a.py:1', [2]]",
            "operators.First: a.py:1: First: takes 1 stream",
        ),
        (
            "operators.First = [['First', 2], ['Zip'], 'a.py:1', [2]]",
            "operators.First: there is no stream Zip",
        ),
        ("operators.First = [['Zip'], ['EagerMerge.1', 'EagerMerge.1'], '', [2]]", "operators.First: this is Zip"),
        ("operators.First = [['Exec', 'import os'], [], '', []]", "operators.First: 'Exec' is no operator"),
        ("operators.First = [['Defined', 'x'], [], '', []]", "operators.First: 'Defined' is no operator"),
        ("operators.First = [['First', 2.0], ['EagerMerge.1'], '', [2]]", "operators.First: 2.0 is no int"),
        ("operators.First = [['Reassemble'], [], '', [2]]", "operators.First: .*its parameters do not fit"),
        (
            "operators.Accum = [['Accum', 4, [], false, 1, ['Elementwise', '%'], 0], ['LinearOffChipLoad'], '', [2]]",
            "operators.Accum: there is no operation '%'",
        ),
        (
            "operators.Accum = [['Accum', 0, [], false, 1, ['Elementwise', '-'], 0], ['LinearOffChipLoad'], '', [2]]",
            "operators.Accum: Accum: 0 operations a cycle",
        ),
        (
            "operators.LinearOffChipLoad = [['LinearOffChipLoad', 'v', [4, 4], [1], [2]], ['Partition.0'], '', [2]]",
            "operators.LinearOffChipLoad: there is no tensor v",
        ),
        (
            "operators.LinearOffChipLoad = [['LinearOffChipLoad', 'w', [4, 4], [1], [3]], ['Partition.0'], '', [2]]",
            "operators.LinearOffChipLoad: LinearOffChipLoad: reads tile 2 of a tensor of 2 tiles",
        ),
        (
            "operators.Partition = [['Partition', 1099511627776, ''], ['input requests', 'loop turns'], '', [2, 2]]",
            "operators.Partition: 2 depths for 1099511627776 outputs",
        ),
        ("inputs.requests = [['n'], ['TileType', 3, 4, 'f99'], 2]", "inputs.requests: tile: f99 is no type"),
        (f"inputs.requests = [[{DEEP}], ['TileType', 3, 4, 'bf16'], 2]", "a size is nested more than 100 deep"),
        ("assumed.'EagerMerge1.0' = ['n', 'n']", "assumed.EagerMerge1.0: .*rank 1 of a stream of rank 0"),
        ("assumed.Zip = ['n']", "assumed.Zip: no operator has such an output"),
        ("outputs.sums = 'Zip'", "outputs.sums: there is no stream Zip"),
    ],
)
def test_mistakes_are_shown_at_their_line(line: str, message: str) -> None:
    program = lowered(OperatorMachine(dispatched(), name="dispatched"))
    key = line.split(" = ")[0]
    lines = text(program.overlay).splitlines()
    places = [number for number, old in enumerate(lines) if old.startswith(f"{key} =")]
    assert len(places) == (key not in ("memory", "assumed.Zip"))
    changed = [line if old.startswith(f"{key} =") else old for old in lines] + [line] * (not places)
    with pytest.raises(ProgramError, match=message):
        made("\n".join(changed), "m.toml")
    words = [toml_text(one) for one in changed[1:]]
    source = "\n".join(["overlay dispatched {", *words, "}", ""])
    with pytest.raises(SourceError, match=message) as refused:
        parser.parse(source, "m.rsn")
    fault = message.split(":")[0]
    at = next((number for number, one in enumerate(changed, 1) if one.startswith(f"{fault} =")), None)
    if at is not None:
        assert str(refused.value).startswith(f"m.rsn:{at}:1: error")


def toml_text(line: str) -> str:
    """A line of an overlay file as a text of a program has it."""
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '"'


@in_both
def test_edited_lines_are_refused_or_make_a_machine() -> None:
    """Numbers, names and lists are changed, dropped or swapped: no edit is an error of another kind."""
    lines = text(lowered(OperatorMachine(dispatched(), name="dispatched")).overlay).splitlines()
    refused = 0
    for seed in range(cases(2000, 150)):
        random = Random(seed)
        at = random.randrange(2, len(lines))
        key, _, value = lines[at].partition(" = ")
        edited = through_toml_value(value)
        edited = mutated(edited, random)
        changed = [*lines[:at], f"{key} = {toml(edited)}", *lines[at + 1 :]]
        try:
            made("\n".join(changed), "m.toml")
        except ProgramError:
            refused += 1
    assert refused > cases(2000, 150) // 4


def through_toml_value(value: str) -> Any:
    return tomllib.loads(f"x = {value}")["x"]


def mutated(value: Any, random: Random) -> Any:
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        return random.choice(
            [
                [*value[:at], mutated(value[at], random), *value[at + 1 :]],
                [*value[:at], mutated(value[at], random), *value[at + 1 :]],
                [*value[:at], *value[at + 1 :]],
                [*value[:at], value[at], *value[at:]],
            ]
        )
    return random.choice([0, 1, -1, 3, 2**40, 0.5, "", "n", "Map", "Partition.0", True, [], [1], ["First", 1], value])


def test_a_corrupted_image_is_refused() -> None:
    data = container.dumps(lowered(OperatorMachine(dispatched(), name="dispatched")))
    random = Random(0)
    for _ in range(100):
        at = random.randrange(len(data))
        broken = bytearray(data)
        broken[at] ^= 1 << random.randrange(8)
        with pytest.raises(ContainerError):
            container.loads(bytes(broken))
    with pytest.raises(ContainerError):
        container.loads(data[:-9])


def test_units_run_their_own_operators() -> None:
    printed = show(lowered(OperatorMachine(dispatched(), name="dispatched")))
    with pytest.raises(SourceError, match="Accum holds at most 1 ops, not 2"):
        parser.parse(printed.replace("operator=3\n", "operator=3\n  operator=3\n"), "m.rsn")
    wrong = parser.parse(printed.replace("operator=3\n", "operator=4\n"), "m.rsn")
    assert isinstance(wrong, MachineProgram)
    found = [str(f) for f in check(wrong) if not f.warning]
    assert len(found) == 1
    assert "runs another unit's operator: its own is 3" in found[0]
    with pytest.raises(ProgramError, match="runs another unit's operator"):
        run_machine(wrong, {"requests": "D"}, with_data=False)
    with pytest.raises(ProgramError, match="xnn is no machine of operators"):
        run_machine(MachineProgram(OVERLAYS["xnn"], ()))


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_check_does_not_know_what_tokens_decide() -> None:
    program = lowered(OperatorMachine(dispatched(), name="dispatched"))
    assert {f.code for f in (*check(program), *dry_run(program))} == {"S02", "D04"}
    with pytest.raises(UndecidedError, match="tokens decide"):
        Machine(program).run()


def test_the_simulator_repeats_a_run() -> None:
    """With the tokens that the run had: for traces and reports."""
    machine = OperatorMachine(dispatched(), 8, name="dispatched")
    inputs = {"requests": encode([Tile.of(np.full((4, 4), k)) for k in range(4)], 0)}
    done = run_machine(lowered(machine), inputs, record=True)
    repeated = Machine(done.program)
    assert repeated.timing.latency == done.run.engine.timing.latency
    assert repeated.timing.busy == done.run.engine.timing.busy
    assert repeated.run().chosen == done.run.engine.chosen


def test_tensors_that_do_not_fit() -> None:
    machine = through_files(OperatorMachine(dispatched(), 8, name="dispatched"))
    inputs = {"requests": encode([Tile.of(np.full((4, 4), k)) for k in range(4)], 0)}
    with pytest.raises(TensorError, match="tensors without values: w"):
        run_machine(machine, inputs)
    with pytest.raises(TensorError, match="no tensor 'v'; they are w"):
        run_machine(machine, inputs, {"v": np.ones((4, 8))})
    with pytest.raises(TensorError, match=r"w is float64 of shape \[8, 4\]; the program has \[4, 8\]"):
        run_machine(machine, inputs, {"w": np.ones((8, 4))})
    values = {"w": np.ones((4, 8))}
    assert run_machine(machine, inputs, with_data=False).cycles == run_machine(machine, inputs, values).cycles
    with pytest.raises(StepError, match="inputs without tokens"):
        run_machine(machine, {}, values)


def test_values_that_a_program_states_are_needed() -> None:
    """Also of a tensor that it stores: what it does not store keeps them."""
    for data in (None, np.full((2, 2), 7.0)):
        result = Tensor((2, 2), "bf16", data, name="result")
        with Program() as program:
            LinearOffChipStore(result)(program.input("a", [1], tile(1, 2)))
        machine, inputs = OperatorMachine(program), {"a": "[[1,2]] D"}
        made = through_files(machine)
        assert run_machine(lowered(machine), inputs).tensors()["result"].tolist() == [
            [1, 2],
            [7 * (data is not None)] * 2,
        ]
        if data is None:
            assert run_machine(made, inputs).tensors()["result"].tolist() == [[1, 2], [0, 0]]
            continue
        with pytest.raises(TensorError, match="tensors without values: result"):
            run_machine(made, inputs)
        assert run_machine(made, inputs, {"result": data}).tensors()["result"].tolist() == [[1, 2], [7, 7]]


def test_tensors_without_names_are_numbered_in_each_file() -> None:
    """So that equal programs have equal files, whatever was built before."""
    texts = set()
    for _ in range(2):
        with Program() as program:
            for data in (np.ones((2, 2)), np.zeros((2, 2))):
                LinearOffChipLoad(Tensor.of(data), (2, 2), (1,), (1,))()
            LinearOffChipLoad(Tensor((2, 2), name="tensor0"), (2, 2), (1,), (1,))()
        texts.add(text(lowered(OperatorMachine(program)).overlay))
    assert len(texts) == 1
    assert "tensors.tensor0_1 =" in texts.pop()


def test_a_function_of_python_is_refused_with_its_line() -> None:
    with Program() as program:
        stream = program.input("a", [2], tile(1, 1))
        Map(Defined("twice", lambda one: one, lambda one: Tile.of(2 * one.data)))(stream)
    here = Path(__file__).name
    with pytest.raises(StepError, match=rf"{here}:\d+: Map: a file cannot hold the function twice: .*Add, .*Matmul"):
        lowered(OperatorMachine(program))
    done = run_machine(lowered(OperatorMachine(program), in_files=False), {"a": "1 2 D"})
    assert [str(one) for one in done.tokens["Map"]] == ["2", "4", "D"]
    with Program() as open_loop:
        loop = open_loop.feedback("a", [2], tile(1, 1))
        Map(Add)(loop, loop)
    with pytest.raises(StepError, match="feedback: a has no writer"):
        lowered(OperatorMachine(open_loop))
    with pytest.raises(StepError, match="stream a has depth 0; the least is 1"):
        lowered(OperatorMachine(program, 0))
    with pytest.raises(ProgramError, match="there are none"):
        lowered(OperatorMachine(Program()))


def test_metrics_of_a_program_from_a_file() -> None:
    machine = machines()["time-multiplexed"][0]
    read = run_machine(through_files(machine), machines()["time-multiplexed"][1], with_data=False).machine
    ours, theirs = metrics(read.program), metrics(machine.program)
    assert (ours.traffic, ours.memory, ours.flops) == (theirs.traffic, theirs.memory, theirs.flops)
