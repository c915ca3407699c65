"""What operators undo of each other, for any streams."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rsn.streams.dynamic import (
    Arrivals,
    Bufferize,
    EagerMerge,
    Flatten,
    Partition,
    Program,
    Reassemble,
    Reshape,
    Selector,
    SelectorType,
    Streamify,
    TokenError,
    decode,
    encode,
    parse,
    run,
    show,
    tile,
)
from rsn.streams.dynamic.tokens import Groups, Stop
from rsn.tests.effort import examples
from rsn.tests.streams.dynamic.nested import at_rank, leaves

ONE = tile(1, 1)
NUMBERS = st.integers(0, 9)


def tensors(rank: int, most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(tensors(rank - 1, most) if rank else NUMBERS, max_size=most)


STREAMS = st.integers(0, 3).flatmap(lambda rank: st.tuples(st.just(rank), tensors(rank)))


def shape(program: Program, rank: int) -> list[Any]:
    return ["n", *(program.ragged(f"m{level}") for level in range(rank))]


@examples(200, 20, deadline=None)
@given(STREAMS)
def test_decoding_undoes_encoding(stream: tuple[int, list[Any]]) -> None:
    rank, nested = stream
    tokens = encode(nested, rank)
    assert [[one.scalar for one in leaves(decode(tokens, rank), rank + 1)]] == [leaves(nested, rank + 1)]
    assert encode(decode(tokens, rank), rank) == tokens
    assert parse(show(tokens)) == tokens


@examples(200, 20, deadline=None)
@given(st.lists(st.sampled_from(["1", "S1", "S2", "S3"]), max_size=6))
def test_every_stream_that_is_read_has_one_spelling(words: list[str]) -> None:
    tokens = parse(" ".join([*words, "D"]))
    try:
        nested = decode(tokens, 3)
    except TokenError:
        return
    assert encode(nested, 3) == tokens


@examples(200, 20, deadline=None)
@given(STREAMS, st.data())
def test_reassemble_undoes_partition(stream: tuple[int, list[Any]], data: st.DataObject) -> None:
    rank, nested = stream
    chunk = data.draw(st.integers(0, rank))
    chosen = at_rank(nested, rank, chunk, lambda _: (data.draw(st.integers(0, 2)),))
    with Program() as program:
        known = shape(program, rank)
        whole = program.input("a", known, ONE)
        selectors = program.input("s", known[: rank - chunk + 1], SelectorType(3, 1))
        result = Reassemble()(*Partition(3, rank=chunk)(whole, selectors), selectors)
        back = Flatten(chunk, chunk + 1)(result)
    done = run(program, {"a": encode(nested, rank), "s": encode(chosen, rank - chunk, Selector)})
    # Each chunk is in a group of its own, which Flatten joins with the group around.
    assert done.text(back) == show(encode(nested, rank))


@examples(200, 20, deadline=None)
@given(st.integers(0, 2).flatmap(lambda rank: st.tuples(st.just(rank), *[tensors(rank)] * 3)), st.randoms())
def test_partition_undoes_an_eager_merge(streams: Any, random: Any) -> None:
    rank, *each = streams
    inputs: dict[str, Any] = {}
    with Program() as program:
        made = []
        for number, nested in enumerate(each):
            name = f"i{number}"
            made.append(program.input(name, [f"n{name}", *(program.ragged(f"{name}{k}") for k in range(rank))], ONE))
            tokens = encode(nested, rank)
            inputs[name] = Arrivals(tokens, sorted(random.randrange(9) for _ in tokens))
        parts = Partition(3)(*EagerMerge()(*made))
    done = run(program, inputs)
    assert [done.text(part) for part in parts] == [show(encode(nested, rank)) for nested in each]


@examples(200, 20, deadline=None)
@given(STREAMS, st.integers(1, 4))
def test_flatten_undoes_reshape_but_for_padding(stream: tuple[int, list[Any]], size: int) -> None:
    rank, nested = stream
    with Program() as program:
        split, _ = Reshape(0, size, pad=0)(program.input("a", shape(program, rank), ONE))
        back = Flatten(0, 1)(split)
    padded = at_rank(nested, rank, 1, lambda group: group + [0] * (-len(group) % size)) if rank else nested
    if not rank:
        padded = nested + [0] * (-len(nested) % size)
    assert run(program, {"a": encode(nested, rank)}).text(back) == show(encode(padded, rank))


@examples(200, 20, deadline=None)
@given(st.integers(1, 3).flatmap(lambda rank: st.tuples(st.just(rank), tensors(rank))))
def test_streamify_undoes_bufferize(stream: tuple[int, list[Any]]) -> None:
    rank, nested = stream
    with Program() as program:
        buffers = Bufferize(1)(program.input("a", shape(program, rank), ONE))
        back = Flatten(1, 2)(Streamify(count=1)(buffers))
    assert run(program, {"a": encode(nested, rank)}).text(back) == show(encode(nested, rank))


@examples(200, 20, deadline=None)
@given(STREAMS, st.integers(1, 3))
def test_depth_changes_no_result(stream: tuple[int, list[Any]], depth: int) -> None:
    rank, nested = stream
    with Program() as program:
        whole = program.input("a", shape(program, rank), ONE)
        data, padding = Reshape(0, 2, pad=0)(whole)
        again = Flatten(0, rank + 1)(data)
    inputs = {"a": encode(nested, rank)}
    free, bound = run(program, inputs), run(program, inputs, depths=depth)
    assert [free.text(one) for one in (padding, again)] == [bound.text(one) for one in (padding, again)]


def test_which_tensors_a_stop_ends() -> None:
    groups, seen = Groups(3), []
    for token in parse("1 S1 S1 S2 S3 D"):
        groups.see(token)
        if isinstance(token, Stop):
            seen.append((groups.lowest, token.level, groups.was_empty))
        if len(seen) == 3:
            break
    assert seen == [(1, 1, False), (1, 1, True), (2, 2, False)]


def test_padding_of_integers_keeps_its_value() -> None:
    with Program() as program:
        rows = program.input("rows", ["groups", "n"], tile(1, 2, "f32"))
        halves, lowest = (Reshape(0, 3, pad)(rows)[0] for pad in (0.5, float("-inf")))
    done = run(program, {"rows": "[[1,2]] [[3,4]] S1 D"})
    assert done.text(halves) == "[[1,2]] [[3,4]] [[0.5,0.5]] S2 D"
    assert done.text(lowest) == "[[1,2]] [[3,4]] [[-inf,-inf]] S2 D"
