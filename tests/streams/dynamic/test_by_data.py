"""Operators whose ends and orders data decide, against plain Python: SortedMerge, TakeWhile, Iterate; and loops."""

from __future__ import annotations

import re
from heapq import merge
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import DeadlockError
from rsn.streams import dynamic
from rsn.streams.check import check
from rsn.streams.dynamic import (
    Accum,
    Add,
    Defined,
    DefinedExpansion,
    DefinedUpdate,
    EagerMerge,
    FlatMap,
    Iterate,
    Map,
    Matmul,
    Mul,
    Partition,
    Program,
    Promote,
    RetileRow,
    RetileStreamify,
    Scan,
    SelectorType,
    SiLU,
    SortedMerge,
    StepError,
    StreamFault,
    StuckError,
    TakeWhile,
    Tile,
    TupleType,
    WhereTrue,
    Zip,
    decode,
    encode,
    metrics,
    run,
    tile,
    timed,
)
from rsn.streams.dynamic.machine import OperatorMachine
from rsn.streams.dynamic.tokens import Selector
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.dynamic.nested import leaves
from rsn.tests.streams.dynamic.test_machine_files import assert_equal_runs, through_files

ONE, FLAG = tile(1, 1), tile(1, 1, "boolean")
RUNS = pytest.mark.parametrize("runs", [run, timed])


def scalars(values: list[Any]) -> list[Any]:
    return [Tile.of(value) for value in values]


def numbers(tokens: Any) -> list[float]:
    return [float(one.data[0, 0]) for one in decode(tokens, 0)]


# -- SortedMerge ------------------------------------------------------------------------------------------------------


@in_both
@RUNS
def test_a_sorted_merge_is_that_of_python(runs: Any) -> None:
    for seed in range(cases(200, 15)):
        random = Random(seed)
        lists = [
            sorted(random.choice([random.randint(-3, 9), random.random()]) for _ in range(random.randint(0, 7)))
            for _ in range(random.randint(1, 4))
        ]
        with Program() as program:
            inputs = [program.input(f"i{k}", [f"n{k}"], ONE) for k in range(len(lists))]
            out = SortedMerge()(*inputs)
        given = {f"i{k}": encode(scalars(values), 0) for k, values in enumerate(lists)}
        done = runs(program, given, depths=1)
        assert numbers(done[out]) == [*merge(*lists)]
        found = metrics(program)
        assert (found.traffic, found.memory, found.flops) == (0, 0, 0)
        assert out.type.count() == sum(stream.type.count() for stream in inputs)
        if runs is timed:
            assert done.cycles == sum(map(len, lists))  # an element takes a cycle


def test_equal_keys_keep_the_order_of_the_inputs() -> None:
    with Program() as program:
        pair = TupleType((ONE, ONE))
        out = SortedMerge()(program.input("a", ["n"], pair), program.input("b", ["m"], pair))
    a, b = (
        [(Tile.of(key), Tile.of(value)) for key, value in rows] for rows in ([(1, 10), (2, 11)], [(1, 20), (2, 21)])
    )
    found = [value.scalar for _, value in decode(run(program, {"a": encode(a, 0), "b": encode(b, 0)})[out], 0)]
    assert found == [10, 20, 11, 21]


@RUNS
def test_a_merge_refuses_what_is_not_sorted(runs: Any) -> None:
    with Program() as program:
        SortedMerge()(program.input("a", ["n"], ONE), program.input("b", ["m"], ONE))
    with pytest.raises(StreamFault, match=r"SortedMerge: input 1, token 2: 2 after 3: the input is not sorted"):
        runs(program, {"a": "1 D", "b": "1 3 2 D"})
    with pytest.raises(StreamFault, match="nan has no order"):
        runs(program, {"a": encode(scalars([np.nan]), 0), "b": "D"})
    with pytest.raises(StreamFault, match="a tile without data has no order"):
        runs(program, {"a": encode([Tile(1, 1, "bf16")], 0), "b": "D"})
    with pytest.raises(StepError, match="takes streams of rank 0, not 1"):
        SortedMerge()(program.input("c", ["n", 2], ONE))
    with pytest.raises(StepError, match=r"sorts by a \[1,1\] tile"):
        SortedMerge()(program.input("d", ["n"], tile(2, 1)))


def test_integers_are_sorted_exactly() -> None:
    with Program() as program:
        kind = tile(1, 1, "i64")
        program.output("out", SortedMerge()(program.input("a", ["n"], kind), program.input("b", ["m"], kind)))
    large = 2**53
    tokens = run(program, {"a": f"{large + 1} {large + 3} D", "b": f"{large} {large + 2} D"})["out"]
    assert [int(one.data[0, 0]) - large for one in decode(tokens, 0)] == [0, 1, 2, 3]
    with pytest.raises(StreamFault, match="not sorted"):
        run(program, {"a": f"{large + 1} {large} D", "b": "D"})


# -- TakeWhile --------------------------------------------------------------------------------------------------------


def nested_random(random: Random, rank: int) -> list[Any]:
    return [nested_random(random, rank - 1) if rank else random.randint(0, 4) for _ in range(random.randint(0, 4))]


def kept(nested: list[Any], rank: int, inclusive: bool) -> list[Any]:
    if rank:
        return [kept(one, rank - 1, inclusive) for one in nested]
    found = [*takewhile(lambda value: value > 0, nested)]
    return found + nested[len(found) : len(found) + inclusive]


@in_both
@RUNS
@pytest.mark.parametrize("inclusive", [False, True])
def test_take_while_is_that_of_python(runs: Any, inclusive: bool) -> None:
    positive = Defined("positive", lambda data: FLAG, lambda one: Tile.of(one.scalar > 0, "boolean"))
    for seed in range(cases(300, 25)):
        random = Random(seed)
        rank = random.randint(0, 2)
        nested = nested_random(random, rank)
        with Program() as program:
            shape = ["n", *(program.ragged(f"m{level}") for level in range(rank))]
            data = program.input("a", shape, ONE)
            out = TakeWhile(inclusive)(data, Map(positive)(data))
        done = runs(program, {"a": encode(nested, rank)}, depths=1)
        assert done[out] == encode(kept(nested, rank, inclusive), rank), (seed, nested)
        assert out.type.rank == rank
        if runs is run:
            left = metrics(program).value(out.type.count(), done)
            assert left == len(leaves(kept(nested, rank, inclusive), rank + 1))


def test_take_while_refuses() -> None:
    with Program() as program:
        data, wide = program.input("a", ["n"], ONE), program.input("b", ["n"], tile(2, 1))
        with pytest.raises(StepError, match=r"a flag is a \[1,1\] tile, not \[2,1\]"):
            TakeWhile()(data, wide)
        with pytest.raises(StepError, match="data and flags: dimension 0 is n there and m here"):
            TakeWhile()(data, program.input("c", ["m"], ONE))


# -- loops ------------------------------------------------------------------------------------------------------------


def step(value: int) -> int:
    return value // 2 if value % 2 == 0 else 3 * value + 1


STEP = Defined("step", lambda data: data, lambda one: Tile.of(step(one.scalar), one.dtype))
ABOVE_ONE = Defined("above one", lambda data: FLAG, lambda one: Tile.of(one.scalar > 1, "boolean"))


def collatz(program: Program) -> Any:
    """Numbers to which `step` is applied until they are 1."""
    entries = program.input("a", ["n"], ONE)
    back = program.feedback("back", ["w"], TupleType((ONE, FLAG)))
    body, out = Iterate()(entries, back)
    stepped = Map(STEP)(body)
    program.close(back, Zip()(stepped, Map(ABOVE_ONE)(stepped)))
    return body, out


@RUNS
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_loop_ends_for_each_element_when_data_say_so(runs: Any, depth: int) -> None:
    values = [7, 1, 2, 27, 3]
    rounds = []
    for value in values:
        steps = 1
        while (value := step(value)) > 1:
            steps += 1
        rounds.append(steps)
    with Program() as program:
        body, out = collatz(program)
        program.output("body", body)
    done = runs(program, {"a": encode(scalars(values), 0)}, depths=depth)
    assert numbers(done[out]) == [1.0] * len(values)
    assert len(numbers(done["body"])) == sum(rounds)
    assert done.values[body.type.shape[0].size] == sum(rounds)
    assert runs(program, {"a": "D"}, depths=depth).text(out) == "D"


@RUNS
def test_a_loop_ends_as_a_whole_when_data_say_so(runs: Any) -> None:
    """The powers of 3 below 100: each comes from the one before."""
    below = Defined("below 100", lambda data: FLAG, lambda one: Tile.of(one.scalar < 100, "boolean"))
    triple = Defined("triple", lambda data: data, lambda one: Tile.of(3 * one.scalar, one.dtype))
    with Program() as program:
        first = program.input("first", [1], ONE)
        loop = program.feedback("loop", ["w"], ONE)
        values, _ = EagerMerge()(first, loop)
        powers = TakeWhile()(values, Map(below)(values))
        program.close(loop, Map(triple)(powers))
        program.output("powers", powers)
    assert numbers(runs(program, {"first": "1 D"}, depths=1)["powers"]) == [1, 3, 9, 27, 81]


@RUNS
def test_a_body_gives_one_element_for_each(runs: Any) -> None:
    with Program() as program:
        back = program.feedback("back", ["w"], TupleType((ONE, FLAG)))
        body, _ = Iterate()(program.input("a", ["n"], ONE), back)
        pairs = Zip()(body, Map(ABOVE_ONE)(body))
        program.close(back, FlatMap(WhereTrue())(Zip()(pairs, Map(ABOVE_ONE)(body))))
    with pytest.raises(StuckError if runs is run else DeadlockError, match="Iterate"):
        runs(program, {"a": "1 D"})
    with Program() as program:
        body, _ = Iterate()(program.input("a", ["n"], ONE), program.input("back", ["w"], TupleType((ONE, FLAG))))
    one = Tile.of(1), Tile.of(False, "boolean")
    with pytest.raises(StreamFault, match=r"Iterate: input 1, token 1: .* where no element is in the loop"):
        runs(program, {"a": "1 D", "back": encode([one, one], 0)})
    with pytest.raises(StreamFault, match=r"Iterate: input 1, token 0: D where an element is in the loop"):
        runs(program, {"a": "1 D", "back": "D"})


def test_iterate_refuses() -> None:
    with Program() as program:
        rows, ones = program.input("r", ["n", 2], ONE), program.input("a", ["n"], ONE)
        pairs = program.input("p", ["n"], TupleType((tile(1, 1, "i32"), FLAG)))
        with pytest.raises(StepError, match="takes streams of rank 0, not 1 and 0"):
            Iterate()(rows, pairs)
        with pytest.raises(StepError, match="the body gives tuples of an element and a flag"):
            Iterate()(ones, ones)
        with pytest.raises(StepError, match=r"elements are \[1,1\], and the body gives"):
            Iterate()(ones, pairs)


def test_machines_of_these_operators_have_files() -> None:
    with Program() as program:
        a, b, flags = program.input("a", ["n"], ONE), program.input("b", ["m"], ONE), program.input("f", ["w"], FLAG)
        merged = SortedMerge()(a, b)
        back = program.feedback("back", ["w"], TupleType((ONE, FLAG)))
        body, out = Iterate()(merged, back)
        program.close(back, Zip()(body.assume(["w"]), flags))
        program.output("all", TakeWhile(inclusive=True)(body, flags))
        program.output("out", out)
    inputs = {"a": "1 3 D", "b": "2 D", "f": "T T F F F D"}
    machine = OperatorMachine(program, 1, name="by_data")
    assert_equal_runs(machine, through_files(machine), {key: program.tokens(text, key) for key, text in inputs.items()})
    done = run(program, inputs, depths=1)
    assert (done.text("all"), done.text("out")) == ("1 1 1 D", "1 2 3 D")


# -- what the check of stream programs says of counts that data decide ------------------------------------------------

HEAD = """from rsn.streams import *
s: Stream[i32, 2]
t: Stream[i32, 2]
out: Stream[i32, 2]
@task(mapping=[1])
def give() -> None:
    for i in range(8):
        s.put(i)
        t.put(i)
@task(mapping=[1])
def take() -> None:
    for i in range(16):
        use(out.get())
@task(mapping=[1])
def work() -> None:
"""


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (  # the merge of two sorted streams
            """    a = s.get()
    b = t.get()
    for i in range(14):
        if a < b:
            out.put(a)
            a = s.get()
        else:
            out.put(b)
            b = t.get()
    out.put(a)
    out.put(b)
""",
            "SortedMerge",
        ),
        (
            "    for i in range(8):\n        if data():\n            out.put(s.get() + t.get())\n",
            "FlatMap(WhereTrue())",
        ),
        (
            "    for i in range(8):\n        x = s.get()\n        if x > 3:\n            break\n        out.put(x)\n",
            "TakeWhile",
        ),
        ("    x = s.get()\n    while x < 9:\n        out.put(x)\n        x = s.get()\n", "TakeWhile"),
        ("    for i in range(s.get()):\n        out.put(i)\n", "Iterate repeats one"),
    ],
)
def test_counts_that_data_decide_show_the_way_out(body: str, named: str) -> None:
    report = check(HEAD + body)
    assert report.code == "join", str(report)
    notes = [note for f in report.findings if f.code == "join" for note in f.notes]
    (note,) = {note for note in notes if "rsn.streams.dynamic" in note}
    assert named in note
    words = set(re.findall(r"[A-Z]\w+[a-z]\w*", note))
    assert words
    assert words <= set(dynamic.__all__)
    page, heading = re.findall(r"(docs/\S+\.md)#([\w-]+)", note)[0]
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    assert f"## {heading.replace('-', ' ')}\n" in text.lower()


# -- inputs that are taken together -----------------------------------------------------------------------------------


@RUNS
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_routed_pair_is_joined_with_the_depth_of_its_longest_run(runs: Any, count: int) -> None:
    """Partition sends `count` elements one way, then as many the other way. A join holds none of them."""
    with Program() as program:
        data, selectors = program.input("a", ["n"], ONE), program.input("s", ["n"], SelectorType(2, 1))
        ways = [way.assume(["k"]) for way in Partition(2)(data, selectors)]
        pairs = Zip()(*ways)
    ways_of = ([0] * count + [1] * count) * 3
    inputs = {"a": encode(scalars([*range(len(ways_of))]), 0), "s": encode([Selector((way,)) for way in ways_of], 0)}
    deep = dict.fromkeys(ways, count)
    done = runs(program, inputs, depths={**dict.fromkeys(program.streams, 1), **deep})
    joined = [(a.scalar, b.scalar) for a, b in decode(done[pairs], 0)]
    sent = [[k for k, way in enumerate(ways_of) if way == which] for which in (0, 1)]
    assert joined == [*zip(*sent, strict=True)]
    if count > 1:
        with pytest.raises(StuckError if runs is run else DeadlockError, match="Partition"):
            runs(program, inputs, depths={**dict.fromkeys(program.streams, 1), ways[0]: count - 1})


# -- functions --------------------------------------------------------------------------------------------------------


@RUNS
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyError, ValueError])
def test_an_error_of_a_function_of_the_user_has_the_line_of_its_operator(runs: Any, error: type[Exception]) -> None:
    def fail(*of: Any) -> Any:
        raise error("this one")

    failing = Defined("failing", lambda data: data, fail)
    update = DefinedUpdate("failing", lambda data: data, lambda: Tile.of(0), fail)
    expansion = DefinedExpansion("failing", (1,), lambda data: data, fail)
    counting = Defined("counting", lambda data: data, lambda one: one, fail)
    makes = [
        lambda a: Map(failing)(a),
        lambda a: Map(counting)(a),
        lambda a: Accum(1, update)(a),
        lambda a: FlatMap(expansion)(a),
    ]
    for make in makes:
        with Program() as program:
            make(program.input("a", [1, 2], ONE))
        with pytest.raises(StreamFault, match="this one") as fault:
            runs(program, {"a": "1 2 S1 D"})
        assert fault.value.where.endswith(f"test_by_data.py:{make.__code__.co_firstlineno}")
        assert (fault.value.stream, fault.value.position) == ("input 0", 0)
    with Program() as program:
        Map(counting)(program.input("a", [1, 2], ONE))
    with pytest.raises(StepError, match=rf"test_by_data\.py:\d+: Map: {error.__name__}: .*this one"):
        metrics(program)


@RUNS
def test_lists_of_an_expansion_that_are_not_as_deep_as_its_sizes(runs: Any) -> None:
    flat = DefinedExpansion("flat", (1, 1), lambda data: data, lambda one: [one])
    with Program() as program:
        FlatMap(flat)(program.input("a", [2], ONE))
    with pytest.raises(StreamFault, match="'Tile' object is not iterable") as fault:
        runs(program, {"a": "1 2 D"})
    assert fault.value.position == 0


@RUNS
def test_a_text_that_is_no_stream_names_its_input(runs: Any) -> None:
    with Program() as program:
        Map(SiLU)(program.input("a", ["n"], ONE))
    with pytest.raises(StreamFault, match=r"test_by_data\.py:\d+: input a: a, token 1: "):
        runs(program, {"a": "1 Q D"})


@pytest.mark.parametrize("given", [Add, Add()])
def test_a_class_or_an_instance_is_given(given: Any) -> None:
    with Program() as program:
        a = program.input("a", ["n", 2], ONE)
        streams = [Map(given)(a, a), Accum(1, given)(a), Scan(1, given)(a)]
    done = run(program, {"a": "1 2 S1 D"})
    assert [done.text(one) for one in streams] == ["2 4 S1 D", "3 D", "1 3 S1 D"]


def test_classes_that_need_no_arguments() -> None:
    with Program() as program:
        a = program.input("a", ["n", 2], tile(1, 1))
        for given in (Matmul, Matmul(), Mul, Mul()):
            assert str(Map(given)(a, a).type) == "[n,2] [1,1]"
        for given in (SiLU, SiLU()):
            assert str(Map(given)(a).type) == "[n,2] [1,1]"
        for update in (RetileRow, RetileRow()):
            assert str(Accum(1, update)(a).type) == "[n] [2,1]"
        flags = Zip()(a, a)
        assert FlatMap(WhereTrue)(flags).type.rank == FlatMap(WhereTrue())(flags).type.rank == 1
        Promote()(a)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Map(3), "Map: applies functions such as Add or Matmul(), not 3"),
        (
            lambda: Map(RetileRow),
            "Map: applies functions such as Add or Matmul(), not RetileRow, a function for another",
        ),
        (
            lambda: Accum(1, RetileStreamify(1)),
            "Accum: applies functions such as Add or RetileRow, not RetileStreamify",
        ),
        (lambda: Scan(1, None), "Scan: applies functions such as Add or RetileRow, not None"),
        (
            lambda: FlatMap(Add),
            "FlatMap: applies functions such as RetileStreamify(1) or WhereTrue(), not +, a function",
        ),
        (lambda: FlatMap(RetileStreamify), "FlatMap: RetileStreamify takes arguments: RetileStreamify(..)"),
        (lambda: Map(np.add), "Map: applies functions such as Add or Matmul(), not <ufunc 'add'>"),
    ],
)
def test_anything_else_is_one_clear_error(build: Any, text: str) -> None:
    with pytest.raises(StepError) as error:
        build()
    assert error.value.where.endswith(f"test_by_data.py:{build.__code__.co_firstlineno}")
    assert text in str(error.value)
