"""Grouped-query attention of a batch that decodes: each request reads as many keys and values as it has (STeP v2,
section 5.4; Figs. 14 to 16, 21).

A job is a KV head of a request: its group of queries against the rows of its cache. Regions work side by side, each on
one job at a time, and differ in how they get their jobs:

- `coarse`: the first `block` requests are those of the first region, the next of the second, and so on;
- `interleaved`: jobs are dealt out in turn;
- `dynamic`: a job goes to the region that is free first. A region is free when it has read all keys of its job.

Keys and values come in tiles of some rows; rows beyond a request's length count nothing. The softmax needs one pass: a
running maximum, the sum of exponentials relative to it, and the sum of values so weighted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal, TypeAlias, get_args

import numpy as np

from ..errors import StepError
from ..functions import Matmul
from ..graph import Program, Stream
from ..memory import Tensor
from ..one_pass_attention import CacheTiles, OnlineSoftmax, ScaledMask, SoftmaxQuotient, TuplePart
from ..operators.higher_order import Accum, FlatMap, Map
from ..operators.off_chip import RandomOffChipLoad, RandomOffChipStore
from ..operators.routing import EagerMerge, Parallelize, Partition
from ..operators.shape import Expand, First, Reshape, Zip
from ..operators.sources import MetadataGen, SelectGen
from ..shapes import SelectorType
from ..tokens import Array
from ..updates import AllRead
from . import METADATA, SUMS

Dispatch: TypeAlias = Literal["coarse", "interleaved", "dynamic"]


@dataclass(frozen=True)
class Heads:
    """Sizes of attention. kv: KV heads. queries: query heads of each KV head. columns: of a head. tile_rows: rows of a
    tile of keys and of values. Raises `StepError` for sizes below 1.
    """

    kv: int
    queries: int
    columns: int
    tile_rows: int = 32

    def __post_init__(self) -> None:
        if min(self.kv, self.queries, self.columns, self.tile_rows) < 1:
            raise StepError("Heads", f"{self}: all sizes are 1 or more")


@dataclass(frozen=True)
class Cache:
    """The tensors of one decoding step. queries: [requests, kv, queries, columns]. keys, values: [requests, kv, rows,
    columns], of which a request uses as many rows as its length, from the first one; `rows` is a multiple of the rows
    of a tile."""

    queries: Array
    keys: Array
    values: Array


@dataclass(frozen=True)
class AttentionProgram:
    """A program for a batch of requests. result: the tensor [jobs * queries, columns] that it stores, where a job is
    one KV head of one request; `results` gives it the shape of the batch. heads: the sizes of attention. requests: how
    many there are. depths: of its streams, in tokens, for `timed`."""

    program: Program
    result: Tensor
    heads: Heads
    requests: int
    depths: Mapping[Stream, int]

    def results(self, written: Array) -> Array:
        """Return what a run has put into `result` as an array [requests, kv, queries, columns]. written: the array
        [jobs * queries, columns]. Raises `ValueError` for another size."""
        return written.reshape(self.requests, self.heads.kv, self.heads.queries, self.heads.columns)


def attention(
    lengths: Sequence[int],
    heads: Heads,
    dispatch: Dispatch,
    *,
    regions: int = 4,
    block: int | None = None,
    queue: int = 1,
    compute: int | None = None,
    capacity: int | None = None,
    cache: Cache | None = None,
    dtype: str = "bf16",
) -> AttentionProgram:
    """Return the program of one decoding step of a batch of requests (STeP v2, section 5.4).

    lengths: of the cache of each request, in rows. heads: sizes of attention. dispatch: how regions get their jobs
    (module docstring). regions: how many regions work side by side. block: with `coarse`, how many requests a region
    gets in a row; None for all requests divided by the regions, rounded up. If that gives more blocks than regions, the
    next blocks go to the first regions again. queue: jobs that may wait before a region, besides the one that it works
    on. compute: operations a cycle of each unit; None for no bound. capacity: rows of each cache in memory, whole in
    tiles; None for those of the longest. cache: the tensors; None for a program without data. dtype: of elements off
    the chip.

    Raises `StepError` for another dispatch, for a batch without requests, for a length below 1 or over the capacity,
    with the request, for a capacity that is not whole in tiles, for regions, blocks or a queue below the least, and for
    tensors of other shapes."""
    if not lengths:
        raise StepError("attention", "a batch without requests")
    if dispatch not in get_args(Dispatch):
        raise StepError("attention", f"{dispatch} is no way to dispatch; there are {', '.join(get_args(Dispatch))}")
    tile_rows = heads.tile_rows
    rows = capacity if capacity is not None else -(-max(lengths) // tile_rows) * tile_rows
    if rows < 1 or rows % tile_rows:
        raise StepError("attention", f"caches of {rows} rows, in tiles of {tile_rows}")
    for request, length in enumerate(lengths):
        if not 1 <= length <= rows:
            raise StepError("attention", f"request {request} has length {length}; its cache has rows 1 to {rows}")
    if regions < 1 or queue < 0 or (block is not None and block < 1):
        raise StepError("attention", f"{regions} regions, blocks of {block}, a queue of {queue}; the least is 1, 1, 0")
    if cache is not None:
        _check(cache, heads, len(lengths), rows)
    jobs = [length for length in lengths for _ in range(heads.kv)]
    build = _RegionBuilder(heads, rows // tile_rows, len(jobs), compute, dtype, cache)
    with Program() as program:
        waiting: list[Stream] = []
        match dispatch:
            case "coarse":
                size = heads.kv * (block or -(-len(lengths) // regions))
                shares = [[job for job in range(len(jobs)) if job // size % regions == r] for r in range(regions)]
                waiting = [_source(share, jobs) for share in shares if share]
            case "interleaved":
                waiting = list(Parallelize(regions)(_source(range(len(jobs)), jobs)))
            case "dynamic":
                loop = program.feedback("turns", [len(jobs)], SelectorType(regions, 1))
                waiting = list(Partition(regions)(_source(range(len(jobs)), jobs), loop))
        free = [build.region(one) for one in waiting]
        if dispatch == "dynamic":
            first = min(regions, len(jobs))
            turns = SelectGen([(region,) for region in range(first)], regions)()
            if len(jobs) > first:
                turns, _ = EagerMerge()(turns, First(len(jobs) - first)(EagerMerge()(*free)[1]))
            program.close(loop, turns)
        elif not queue:
            # The job stays where it waits, so that the next one cannot come, until its keys are read.
            for one, flags in zip(waiting, free, strict=True):
                Zip()(flags.assume([one.type.shape[0].size]), one)
    depths = dict.fromkeys(program.streams, 1) | dict.fromkeys(build.slow, METADATA)
    depths |= dict.fromkeys(waiting, max(1, queue))
    return AttentionProgram(program, build.result, heads, len(lengths), depths)


def _source(which: Sequence[int], lengths: Sequence[int]) -> Stream:
    """A stream of jobs: tuples of number and length."""
    made: Stream = Zip()(MetadataGen(list(which))(), MetadataGen([lengths[job] for job in which])())
    return made


def _check(cache: Cache, heads: Heads, requests: int, rows: int) -> None:
    for name, shape in (
        ("queries", (requests, heads.kv, heads.queries, heads.columns)),
        ("keys", (requests, heads.kv, rows, heads.columns)),
        ("values", (requests, heads.kv, rows, heads.columns)),
    ):
        found = np.shape(getattr(cache, name))
        if found != shape:
            raise StepError("attention", f"{name} have shape {list(found)}; the batch needs {list(shape)}")


class _RegionBuilder:
    """Makes regions. slow: streams that wait beside loads."""

    def __init__(
        self, heads: Heads, tiles: int, jobs: int, compute: int | None, dtype: str, cache: Cache | None
    ) -> None:
        self.heads, self.tiles, self.jobs, self.compute, self.dtype = heads, tiles, jobs, compute, dtype
        self.queries = self._tensor("queries", heads.queries, cache)
        self.keys = self._tensor("keys", tiles * heads.tile_rows, cache)
        self.values = self._tensor("values", tiles * heads.tile_rows, cache)
        self.result = Tensor((jobs * heads.queries, heads.columns), SUMS, name="result")
        self.slow: list[Stream] = []

    def _tensor(self, name: str, rows: int, cache: Cache | None) -> Tensor:
        shape = self.jobs * rows, self.heads.columns
        data = None if cache is None else np.asarray(getattr(cache, name)).reshape(shape)
        return Tensor(shape, self.dtype, data, name=name)

    def region(self, jobs: Stream) -> Stream:
        """The units that work on jobs, tuples of number and length; a flag when each has read its keys."""
        heads = self.heads
        number = Map(TuplePart(0))(jobs)
        parts = FlatMap(CacheTiles(heads.tile_rows, self.tiles))(jobs)
        address, valid = Map(TuplePart(0))(parts), Map(TuplePart(1))(parts)
        self.slow += [number, valid]
        query = RandomOffChipLoad(self.queries, (heads.queries, heads.columns))(number)
        keys = RandomOffChipLoad(self.keys, (heads.tile_rows, heads.columns))(address)
        values = RandomOffChipLoad(self.values, (heads.tile_rows, heads.columns))(address)
        repeated = Expand(1)(Reshape(0, 1)(query)[0], keys)
        scores = Map(Matmul(transpose_right=True, dtype=SUMS), compute=self.compute)(repeated, keys)
        masked = Map(ScaledMask(1 / sqrt(heads.columns)), compute=self.compute)(scores, valid)
        state = Accum(1, OnlineSoftmax(), compute=self.compute)(Zip()(masked, values))
        done = Map(SoftmaxQuotient(), compute=self.compute)(state)
        RandomOffChipStore(self.result)(number, done)
        free: Stream = Accum(1, AllRead())(keys)
        return free
