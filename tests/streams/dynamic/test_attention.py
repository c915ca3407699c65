"""Grouped-query attention of a batch with ragged caches, against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rsn.streams.dynamic import Rates, run, timed
from rsn.streams.dynamic.errors import StepError
from rsn.streams.dynamic.programs.attention import AttentionProgram, Cache, Dispatch, Heads, attention
from rsn.streams.dynamic.programs.figures import DISPATCHES, cache_lengths
from rsn.tests.effort import examples, sampled


def drawn_cache(lengths: Sequence[int], heads: Heads, seed: int = 0) -> Cache:
    """Random tensors. Rows that no request uses are not 0, so that one that counts shows."""
    random = np.random.default_rng(seed)
    rows = -(-max(lengths) // heads.tile_rows) * heads.tile_rows
    queries, keys, values = (
        random.normal(size=(len(lengths), heads.kv, size, heads.columns)) for size in (heads.queries, rows, rows)
    )
    return Cache(queries, keys, 1e3 * values)


def difference(made: AttentionProgram, written: Any, cache: Cache, lengths: Sequence[int]) -> float:
    """From PyTorch, of the request that is worst."""
    found, worst = made.results(written), 0.0
    for request, length in enumerate(lengths):
        query = torch.tensor(cache.queries[request]).flatten(0, 1)[None, :, None]
        key, value = (torch.tensor(one[request][None, :, :length]) for one in (cache.keys, cache.values))
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        expected = expected.reshape(found[request].shape).numpy()
        worst = max(worst, float(abs(found[request] - expected).max() / abs(expected).max()))
    return worst


@examples(300, 25)
@given(st.data())
def test_requests_of_any_lengths(data: st.DataObject) -> None:
    heads = Heads(*(data.draw(st.integers(1, most)) for most in (3, 3, 5, 4)))
    lengths = data.draw(st.lists(st.integers(1, 3 * heads.tile_rows + 1), min_size=1, max_size=9))
    dispatch = data.draw(st.sampled_from(DISPATCHES))
    cache = drawn_cache(lengths, heads)
    made = attention(
        lengths,
        heads,
        dispatch,
        regions=data.draw(st.integers(1, 5)),
        block=data.draw(st.none() | st.integers(1, 4)),
        queue=data.draw(st.integers(0, 3)),
        compute=data.draw(st.sampled_from([None, 1, 64])),
        cache=cache,
    )
    rates = Rates(channels=data.draw(st.integers(1, 4)), latency=data.draw(st.integers(0, 30)))
    if data.draw(st.booleans()):
        ran = timed(made.program, depths=made.depths, rates=rates)
        assert not ran.depends_on_time or dispatch == "dynamic"
        written = ran.memory.tensor(made.result)
    else:
        written = run(made.program, depths=made.depths).tensor(made.result)
    assert difference(made, written, cache, lengths) < 1e-5


@pytest.mark.parametrize("dispatch", sampled(DISPATCHES, ["dynamic"]))
def test_lengths_of_a_real_batch(dispatch: Dispatch) -> None:
    """A tenth of those of 64 requests, two KV heads."""
    lengths = [max(1, length // 10) for length in cache_lengths()["b64.high.rows_961"]]
    heads = Heads(kv=2, queries=4, columns=16, tile_rows=8)
    cache = drawn_cache(lengths, heads)
    made = attention(lengths, heads, dispatch, queue=0, compute=2048, cache=cache)
    ran = timed(made.program, depths=made.depths)
    assert difference(made, ran.memory.tensor(made.result), cache, lengths) < 1e-5
    assert ran.depends_on_time == (dispatch == "dynamic")
    # Keys and values of whole tiles, queries, and results of four bytes an element.
    tiles = sum(-(-length // 8) for length in lengths)
    assert sum(ran.traffic.values()) == 2 * (2 * tiles * 8 * 16 * 2 + 64 * 4 * 16 * (2 + 4))


def test_a_free_region_is_never_waited_for() -> None:
    """One long request, and short ones: in turn, those behind the long one wait; to who is free, none does."""
    lengths = [64, *[2] * 11]
    heads = Heads(1, 1, 8, 2)
    cycles = {}
    for dispatch in DISPATCHES:
        made = attention(lengths, heads, dispatch, regions=2, queue=0)
        cycles[dispatch] = timed(made.program, depths=made.depths, with_data=False).cycles
    alone = attention(lengths[:1], heads, "dynamic", regions=2)
    least = timed(alone.program, depths=alone.depths, with_data=False).cycles
    assert cycles["dynamic"] < 1.2 * least < cycles["coarse"] < cycles["interleaved"]


def test_what_is_no_batch() -> None:
    heads = Heads(1, 2, 4, 4)
    for lengths, more, text in (
        ([], {}, "a batch without requests"),
        ([3, 0], {}, "request 1 has length 0; its cache has rows 1 to 4"),
        ([3, 9], {"capacity": 8}, "request 1 has length 9; its cache has rows 1 to 8"),
        ([3], {"capacity": 6}, "caches of 6 rows, in tiles of 4"),
        ([3], {"regions": 0}, "0 regions, blocks of None, a queue of 1; the least is 1, 1, 0"),
        ([3], {"queue": -1}, "a queue of -1"),
    ):
        with pytest.raises(StepError, match=text):
            attention(lengths, heads, "dynamic", **more)  # type: ignore[arg-type]
    cache = drawn_cache([3], heads)
    with pytest.raises(StepError, match=r"queries have shape \[1, 1, 2, 4\]; the batch needs \[2, 1, 2, 4\]"):
        attention([3, 3], heads, "coarse", cache=cache)
    with pytest.raises(StepError, match="static is no way to dispatch; there are coarse, interleaved, dynamic"):
        attention([3, 3], heads, "static")  # type: ignore[arg-type]
    with pytest.raises(StepError, match="all sizes are 1 or more"):
        Heads(0, 1, 1)
