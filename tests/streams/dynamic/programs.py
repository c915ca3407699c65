"""Programs of the papers, in small: mixtures of experts in three forms, and the dispatch of dynamic parallelisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rsn.streams.dynamic import (
    Accum,
    Addresses,
    AllRead,
    DefinedExpansion,
    EagerMerge,
    Expand,
    First,
    FlatMap,
    Flatten,
    LinearOffChipLoad,
    Map,
    Matmul,
    Parallelize,
    Partition,
    Program,
    Promote,
    RandomOffChipLoad,
    Reassemble,
    Repeat,
    Reshape,
    RetileCol,
    RetileRow,
    RetileStreamify,
    SelectGen,
    SelectorType,
    Stream,
    Tensor,
    Tile,
    Zip,
    encode,
    show,
    tile,
)

MODEL, HIDDEN, COLUMNS = 8, 12, 4
"""Sizes of a row, of its result, and of a tile of weights."""


@dataclass
class Experts:
    """A layer with one product for each expert. packed: the rows of each expert, as tiles. weights: what loads them."""

    program: Program
    result: Stream
    tensors: list[Tensor]
    packed: list[Stream] = field(default_factory=list)
    addresses: Stream | None = None
    turns: Stream | None = None


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(float)


def routed(program: Program, rows: int, experts: int, hot: int | None = 1) -> tuple[Stream, list[Stream]]:
    """Rows [rows,1] sent to experts by selectors [rows]; the rows of each expert as a stream of rank 0."""
    stream = program.input("rows", [rows, 1], tile(1, MODEL))
    selectors = program.input("selectors", [rows], SelectorType(experts, hot))
    made = Partition(experts, rank=1)(stream, selectors)
    return selectors, [Flatten(0, 1)(one) for one in made]


def product(packed: Stream, weights: Stream) -> Stream:
    """Tiles of rows [n] times weights [n,3]: [n] of all columns."""
    rows = Expand(1)(Reshape(0, 1)(packed)[0], weights)
    result: Stream = Accum(1, RetileCol)(Map(Matmul())(rows, weights))
    return result


def load(tensor: Tensor, packed: Stream) -> Stream:
    """The tiles of an expert's weights, once for each tile of rows."""
    loader = LinearOffChipLoad(tensor, (MODEL, COLUMNS), (3, 1), (1, HIDDEN // COLUMNS))
    result: Stream = Flatten(0, 1)(loader(packed))
    return result


def static_tiles(rows: int, experts: int, size: int, hot: int | None = 1) -> Experts:
    """Rows in tiles of one size, filled up with 0 (v2, Figs. 6 and 7)."""
    with Program() as program:
        selectors, each = routed(program, rows, experts, hot)
        tensors = [Tensor.of(numbers(expert, MODEL, HIDDEN)) for expert in range(experts)]
        made, tiles = [], []
        for tensor, mine in zip(tensors, each, strict=True):
            data, padding = Reshape(0, size, pad=0)(mine)
            packed, flags = Accum(1, RetileRow)(data), Accum(1, RetileRow)(padding)
            wide = product(packed, load(tensor, packed))
            made.append(FlatMap(RetileStreamify(1, drop_padding=True))(Zip()(wide, flags)))
            tiles.append(packed)
        result = Reassemble()(*made, selectors)
    return Experts(program, result, tensors, tiles)


def dynamic_tiles(rows: int, experts: int) -> Experts:
    """All rows of an expert in one tile (v2, section 5.2)."""
    with Program() as program:
        selectors, each = routed(program, rows, experts)
        tensors = [Tensor.of(numbers(expert, MODEL, HIDDEN)) for expert in range(experts)]
        made, tiles = [], []
        for expert, (tensor, mine) in enumerate(zip(tensors, each, strict=True)):
            packed = Accum(1, RetileRow)(Promote()(mine))
            made.append(FlatMap(RetileStreamify(1))(product(packed, load(tensor, packed))))
            tiles.append(program.output(f"packed{expert}", packed))
        result = Reassemble()(*made, selectors)
    return Experts(program, result, tensors, tiles)


def time_multiplexed(rows: int, experts: int) -> Experts:
    """All experts in one region, in the order in which their rows are complete (v2, section 5.3)."""
    with Program() as program:
        selectors, each = routed(program, rows, experts)
        weights = Tensor.of(np.stack([numbers(expert, MODEL, HIDDEN) for expert in range(experts)]))
        tiles = [Accum(1, RetileRow)(Promote()(mine)) for mine in each]
        packed, turns = EagerMerge()(*tiles)
        addresses = FlatMap(Addresses(HIDDEN // COLUMNS))(turns)
        wide = product(packed, RandomOffChipLoad(weights, (MODEL, COLUMNS))(addresses))
        unpacked = FlatMap(RetileStreamify(1))(Reshape(0, 1)(wide)[0])
        made = [Flatten(0, 1)(one) for one in Partition(experts, rank=1)(unpacked, turns)]
        result = Reassemble()(*made, selectors)
        program.output("addresses", addresses)
        program.output("turns", turns)
        program.output("packed", packed)
    return Experts(program, result, [weights], [packed], addresses, turns)


def routed_inputs(rows: Any, chosen: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The inputs of a layer: rows, and the experts of each."""
    return {
        "rows": encode([[Tile.of(row)] for row in rows], 1),
        "selectors": " ".join(f"({','.join(map(str, one))})" for one in chosen) + " D",
    }


def gathered(rows: Any, chosen: Sequence[Sequence[int]], weights: Sequence[Any]) -> str:
    """What a layer puts: for each row, the product of each of its experts."""
    results = [[Tile.of(row @ weights[expert]) for expert in one] for row, one in zip(rows, chosen, strict=True)]
    return show(encode(results, 1))


REGIONS = 4
KV_TILES = DefinedExpansion(
    "KV tiles", (1, None), lambda _: tile(1, 1, "i32"), lambda one: [[Tile.of(k, "i32") for k in range(one.scalar)]]
)


@dataclass
class Dispatch:
    """Requests over regions. done: of each region, a token for each request."""

    program: Program
    done: list[Stream]
    turns: Stream | None = None


def regions(program: Program, requests: Sequence[Stream]) -> list[Stream]:
    """Each region reads the KV tiles of its requests, one after the other."""
    return [program.output(f"done{k}", Accum(1, AllRead())(FlatMap(KV_TILES)(one))) for k, one in enumerate(requests)]


def dynamic_dispatch(requests: int) -> Dispatch:
    """A request goes to the region that is free first (v2, Fig. 16)."""
    with Program() as program:
        stream = program.input("requests", [requests], tile(1, 1, "i32"))
        loop = program.feedback("turns", [requests], SelectorType(REGIONS, 1))
        done = regions(program, Partition(REGIONS)(stream, loop))
        _, free = EagerMerge()(*done)
        begin = SelectGen([(region,) for region in range(REGIONS)], REGIONS)()
        turns, _ = EagerMerge()(begin, First(requests - REGIONS)(free))
        program.close(loop, turns)
        program.output("turns", turns)
    return Dispatch(program, done, turns)


def static_dispatch(requests: int, coarse: bool) -> Dispatch:
    """Requests in turn, or a block of them for each region."""
    with Program() as program:
        stream = program.input("requests", [requests], tile(1, 1, "i32"))
        if coarse:
            each = requests // REGIONS
            selectors = SelectGen([(k // each,) for k in range(requests)], REGIONS)()
            parts = Partition(REGIONS)(stream, selectors)
        else:
            parts = Parallelize(REGIONS)(stream)
        done = regions(program, parts)
    return Dispatch(program, done)


def repeated(stream: Stream, count: int) -> Stream:
    result: Stream = Repeat(count)(stream)
    return result
