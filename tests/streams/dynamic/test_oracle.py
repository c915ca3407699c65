"""Each operator against an oracle on nested lists, with drawn streams in which any group may be empty."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from rsn.streams.dynamic import (
    Accum,
    Add,
    Arrivals,
    Bufferize,
    Defined,
    DefinedExpansion,
    EagerMerge,
    Expand,
    FlatMap,
    Flatten,
    LinearOffChipLoad,
    Map,
    Parallelize,
    Partition,
    Program,
    Promote,
    RandomOffChipLoad,
    Reassemble,
    Repeat,
    Reshape,
    Scan,
    Selector,
    SelectorType,
    Stop,
    Stream,
    Streamify,
    Tensor,
    Tile,
    Zip,
    encode,
    metrics,
    run,
    show,
    tile,
)
from rsn.tests.effort import cases, in_both
from rsn.tests.streams.dynamic import nested as oracle

ONE = tile(1, 1)
CASES = cases(200, 20)


class Case:
    """A program with drawn inputs, and what its streams must carry: nested lists and ranks."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.program = Program()
        self.inputs: dict[str, Any] = {}
        self.expected: list[tuple[Stream, Any, int]] = []

    def stream(
        self, nested: Any, rank: int, data: Any = ONE, element: Any = None, sizes: dict[int, Any] | None = None
    ) -> Stream:
        """An input of which no size is known, but for `sizes`."""
        name = f"i{len(self.inputs)}"
        known = {rank: f"{name}D", **{k: self.program.ragged(f"{name}R{k}") for k in range(rank)}, **(sizes or {})}
        shape = [known[k] for k in range(rank, -1, -1)]
        self.inputs[name] = encode(nested, rank, element)
        return self.program.input(name, shape, data)

    def selectors(self, nested: Any, rank: int, count: int) -> Stream:
        return self.stream(nested, rank, SelectorType(count), Selector)

    def expect(self, stream: Stream, nested: Any) -> None:
        self.expected.append((stream, nested, stream.type.rank))

    def check(self) -> None:
        """The tokens are those of the nested lists, with any depth of the FIFOs."""
        for depths in (None, self.random.randint(1, 3)):
            done = run(self.program, self.inputs, depths)
            for stream, nested, rank in self.expected:
                assert done.text(stream) == show(encode(nested, rank)), show(self.inputs["i0"])
        found = metrics(self.program)
        for node, one in found.nodes.items():
            assert found.value(one.traffic, done) == done.traffic[node]
            assert found.value(one.flops, done) == done.flops[node]


def shared(case: Case, rank: int, least: int = 0) -> dict[int, Any]:
    """Sizes of the dimensions from `least` on, by the same names in each stream that has them."""
    return {rank: "n", **{k: case.program.ragged(f"common{rank - k}") for k in range(least, rank)}}


def flatten(case: Case) -> None:
    rank = case.random.randint(0, 4)
    least, most = sorted(case.random.choices(range(rank + 1), k=2))
    nested = oracle.drawn(case.random, rank)
    case.expect(Flatten(least, most)(case.stream(nested, rank)), oracle.flatten(nested, rank, least, most))


def reshape_elements(case: Case) -> None:
    rank, size = case.random.randint(0, 3), case.random.randint(1, 3)
    nested = oracle.drawn(case.random, rank, most=5)
    data, padding = Reshape(0, size, pad=77)(case.stream(nested, rank))
    case.expect(data, oracle.reshape(nested, rank, 0, size, 77))
    flags = oracle.reshape(oracle.replaced(nested, rank + 1, Tile.of(False, "boolean")), rank, 0, size, None)
    padded = Tile.of(True, "boolean")
    case.expect(padding, oracle.at_rank(flags, rank + 1, 0, lambda one: padded if one is None else one))


def reshape_groups(case: Case) -> None:
    rank = case.random.randint(1, 3)
    level, size = case.random.randint(1, rank), case.random.randint(1, 3)
    sizes = {level: size * case.random.randint(1, 2)}
    nested = oracle.drawn(case.random, rank, sizes=sizes)
    data, padding = Reshape(level, size)(case.stream(nested, rank, sizes=sizes))
    case.expect(data, oracle.reshape(nested, rank, level, size, None))
    unpadded = oracle.replaced(nested, rank + 1, Tile.of(False, "boolean"))
    case.expect(padding, oracle.reshape(unpadded, rank, level, size, None))


def promote(case: Case) -> None:
    rank = case.random.randint(0, 3)
    nested = oracle.drawn(case.random, rank)
    case.expect(Promote()(case.stream(nested, rank)), [nested] if nested else [])


def repeat(case: Case) -> None:
    rank, count = case.random.randint(0, 3), case.random.randint(1, 3)
    nested = oracle.drawn(case.random, rank)
    expected = oracle.at_rank(nested, rank, 0, lambda one: [one] * count)
    case.expect(Repeat(count)(case.stream(nested, rank)), expected)


def zipped(case: Case) -> None:
    rank = case.random.randint(0, 3)
    nested = oracle.drawn(case.random, rank)
    other = oracle.at_rank(nested, rank, 0, lambda one: one + 100)
    streams = [case.stream(one, rank, sizes=shared(case, rank)) for one in (nested, other)]
    case.expect(Map(Add)(*streams), oracle.at_rank(nested, rank, 0, lambda one: 2 * one + 100))
    pairs = oracle.at_rank(nested, rank, 0, lambda one: (Tile.of(one), Tile.of(one + 100)))
    case.expect(Zip()(*streams), pairs)


def mapped(case: Case) -> None:
    rank = case.random.randint(0, 3)
    nested = oracle.drawn(case.random, rank)
    square = Defined("square", lambda one: one, lambda one: Tile.of(one.scalar**2))
    case.expect(Map(square)(case.stream(nested, rank)), oracle.at_rank(nested, rank, 0, lambda one: one**2))


def accum(case: Case) -> None:
    rank = case.random.randint(1, 4)
    level = case.random.randint(1, rank)
    nested = oracle.drawn(case.random, rank)
    case.expect(Accum(level, Add)(case.stream(nested, rank)), oracle.accum(nested, rank, level))


def scan(case: Case) -> None:
    rank = case.random.randint(1, 4)
    level = case.random.randint(1, rank)
    nested = oracle.drawn(case.random, rank)
    case.expect(Scan(level, Add)(case.stream(nested, rank)), oracle.scan(nested, rank, level))


def flat_map(case: Case) -> None:
    rank, made = case.random.randint(0, 3), case.random.randint(0, 2)
    nested = oracle.drawn(case.random, rank)
    answers = [oracle.drawn(case.random, made) for _ in range(10)]
    expansion = DefinedExpansion("any", (None,) * (made + 1), lambda of: of, lambda one: answers[one.scalar])
    expected = oracle.flat_map(nested, rank, lambda one: answers[one])
    case.expect(FlatMap(expansion)(case.stream(nested, rank)), expected)


def expand(case: Case) -> None:
    rank = case.random.randint(0, 3)
    level = case.random.randint(1, rank + 1)
    reference = oracle.drawn(case.random, rank)
    values, pairs = oracle.pair(case.random, reference, rank, level, lambda: case.random.randrange(10))
    expected = oracle.at_rank(pairs, rank, level, lambda both: oracle.replaced(both[1], level, both[0]))
    sizes: dict[int, Any] = dict.fromkeys(range(level), 1)
    outer = shared(case, rank, level) if level <= rank else {}
    data = oracle.at_rank(values, rank, level, lambda one: oracle.wrapped(one, level)) if level <= rank else None
    if data is None:
        data, expected = oracle.wrapped(values, level), oracle.replaced(reference, rank + 1, values)
    streams = case.stream(data, rank, sizes=outer | sizes), case.stream(reference, rank, sizes=outer)
    case.expect(Expand(level)(*streams), expected)


def expand_by_counts(case: Case) -> None:
    rank = case.random.randint(0, 3)
    level = case.random.randint(1, rank + 1)
    counts = tuple(case.random.randint(1, 3) for _ in range(level))
    elements = oracle.drawn(case.random, rank - level) if level <= rank else case.random.randrange(10)

    def full(value: Any, left: tuple[int, ...]) -> Any:
        return [full(value, left[1:]) for _ in range(left[0])] if left else value

    if level <= rank:
        data = oracle.at_rank(elements, rank - level, 0, lambda one: oracle.wrapped(one, level))
        expected = oracle.at_rank(elements, rank - level, 0, lambda one: full(one, counts))
    else:
        data, expected = oracle.wrapped(elements, level), full(elements, counts)
    case.expect(Expand(level, counts)(case.stream(data, rank, sizes=dict.fromkeys(range(level), 1))), expected)


def streamify(case: Case) -> None:
    """Buffers of regular tensors, each of sizes of its own in the outermost dimension."""
    outer, inner, held = case.random.randint(0, 2), case.random.randint(1, 2), case.random.randint(1, 2)
    reference = oracle.drawn(case.random, outer + inner)
    width = case.random.randint(0, 2)
    values, pairs = oracle.pair(
        case.random,
        reference,
        outer + inner,
        inner,
        lambda: oracle.drawn(case.random, held - 1, sizes={0: width} if held > 1 else None),
    )
    expected = oracle.at_rank(pairs, outer + inner, inner, lambda both: oracle.replaced(both[1], inner, both[0]))
    rank = outer + held
    fixed: dict[int, Any] = {0: width} if held > 1 else {}
    data = case.stream(values, rank, sizes=fixed | shared(case, rank, held))
    reading = case.stream(reference, outer + inner, sizes=shared(case, outer + inner, inner))
    case.expect(Streamify(inner)(Bufferize(held)(data), reading), expected)


def streamify_by_count(case: Case) -> None:
    outer, count = case.random.randint(0, 2), case.random.randint(1, 3)
    nested = oracle.drawn(case.random, outer + 1)
    stream = Streamify(count=count)(Bufferize(1)(case.stream(nested, outer + 1)))
    case.expect(stream, oracle.at_rank(nested, outer + 1, 1, lambda group: [group] * count))


def load(case: Case) -> None:
    rank = case.random.randint(0, 2)
    shape = tuple(case.random.randint(1, 3) for _ in range(case.random.randint(1, 3)))
    stride = tuple(case.random.randint(0, 2) for _ in shape)
    tensor = Tensor.of(np.arange(40.0).reshape(8, 5))
    reference = oracle.drawn(case.random, rank)

    def read(sizes: tuple[int, ...], steps: tuple[int, ...], at: int) -> Any:
        if not sizes:
            return at
        return [read(sizes[1:], steps[1:], at + k * steps[0]) for k in range(sizes[0])]

    case.program = Program(limits=type(case.program.limits)(ragged_traffic=True))
    stream = LinearOffChipLoad(tensor, (1, 1), stride, shape)(case.stream(reference, rank))
    case.expect(stream, oracle.replaced(reference, rank + 1, read(shape, stride, 0)))


def load_at_random(case: Case) -> None:
    rank = case.random.randint(0, 1)
    nested = oracle.drawn(case.random, rank)
    tensor = Tensor.of(np.arange(100.0, 110.0).reshape(2, 5))
    addresses = case.stream(nested, rank, tile(1, 1, "i32"), lambda one: Tile.of(one, "i32"))
    case.expect(RandomOffChipLoad(tensor, (1, 1))(addresses), oracle.at_rank(nested, rank, 0, lambda one: one + 100))


def selectors_for(case: Case, nested: Any, rank: int, chunk: int, count: int, hot: tuple[int, ...]) -> Any:
    def choose(_: Any) -> tuple[int, ...]:
        return tuple(sorted(case.random.sample(range(count), min(count, case.random.choice(hot)))))

    return oracle.at_rank(nested, rank, chunk, choose)


def partition(case: Case) -> None:
    rank, count = case.random.randint(0, 3), case.random.randint(1, 3)
    chunk = case.random.randint(0, rank)
    nested = oracle.drawn(case.random, rank)
    chosen = selectors_for(case, nested, rank, chunk, count, (0, 1, 2))
    stream = case.stream(nested, rank, sizes=shared(case, rank, chunk))
    selector = case.stream(chosen, rank - chunk, SelectorType(count), Selector, shared(case, rank - chunk))
    for port, made in enumerate(Partition(count)(stream, selector)):
        case.expect(made, oracle.partition(nested, rank, chunk, chosen, count)[port])


def parallelize(case: Case) -> None:
    rank, count = case.random.randint(0, 3), case.random.randint(1, 3)
    chunk = case.random.randint(0, rank)
    nested = oracle.drawn(case.random, rank)
    chunks = oracle.leaves(nested, rank - chunk + 1)
    for port, made in enumerate(Parallelize(count, chunk)(case.stream(nested, rank))):
        case.expect(made, chunks[port::count])


def arrivals(case: Case, chunks: list[Any], rank: int) -> tuple[Arrivals, list[float]]:
    """Chunks that come at drawn times, each of which is the time of its first token."""
    times = sorted(float(case.random.randrange(6)) for _ in chunks)
    tokens, when = encode(chunks, rank), []
    number = 0
    for token in tokens[:-1]:
        when.append(times[number])
        number += token == Stop(rank) if rank else 1
    return Arrivals(tokens, [*when, *when[-1:]] if when else [0.0]), times


def eager_merge(case: Case) -> None:
    rank, count = case.random.randint(0, 2), case.random.randint(1, 3)
    # An empty chunk is a single stop; all chunks have one token at least.
    chunks = [oracle.drawn(case.random, rank) for _ in range(count)]
    streams, waiting = [], []
    for number, one in enumerate(chunks):
        streams.append(case.stream(one, rank))
        case.inputs[f"i{number}"], times = arrivals(case, one, rank)
        waiting += [(time, number, part) for time, part in zip(times, one, strict=True)]
    order = sorted(waiting, key=lambda entry: entry[:2])
    data, selectors = EagerMerge()(*streams)
    case.expect(data, [part for _, _, part in order])
    case.expect(selectors, [Selector((number,)) for _, number, _ in order])


def reassemble(case: Case) -> None:
    """All chunks are there from the start, so that those of a selector come by the number of their input."""
    rank, around, count = case.random.randint(0, 2), case.random.randint(0, 2), case.random.randint(1, 3)
    shape = oracle.drawn(case.random, around)
    chosen = selectors_for(case, shape, around, 0, count, (0, 1, 2, 3))
    chunks: list[list[Any]] = [[] for _ in range(count)]

    def collect(selector: tuple[int, ...]) -> list[Any]:
        made = []
        for port in selector:
            one = oracle.drawn(case.random, rank - 1) if rank else case.random.randrange(10)
            chunks[port].append(one)
            made.append(one)
        return made

    expected = oracle.at_rank(chosen, around, 0, collect)
    streams = [case.stream(one, rank) for one in chunks]
    case.expect(Reassemble()(*streams, case.selectors(chosen, around, count)), expected)


OPERATORS: list[Callable[[Case], None]] = [
    flatten,
    reshape_elements,
    reshape_groups,
    promote,
    repeat,
    zipped,
    mapped,
    accum,
    scan,
    flat_map,
    expand,
    expand_by_counts,
    streamify,
    streamify_by_count,
    load,
    load_at_random,
    partition,
    parallelize,
    eager_merge,
    reassemble,
]


@in_both
@pytest.mark.parametrize("build", OPERATORS, ids=lambda build: build.__name__)
def test_operators_do_what_the_oracle_does(build: Callable[[Case], None]) -> None:
    for seed in range(CASES):
        case = Case(Random(f"{build.__name__} {seed}"))
        build(case)
        case.check()


def test_streams_are_drawn_with_empty_groups_of_all_ranks() -> None:
    found = set()
    for seed, rank in product(range(50), range(4)):
        nested = oracle.drawn(Random(seed), rank)
        found |= {(rank, "none")} if not nested else set()
        found |= {(rank, "group") for group in oracle.leaves(nested, max(rank, 1)) if rank and not group}
    assert found == {(0, "none"), *((rank, what) for rank in (1, 2, 3) for what in ("none", "group"))}
