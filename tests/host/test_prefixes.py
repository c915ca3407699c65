"""Prompts that begin as one in another slot: the same bits as without it, in fewer runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM

from rsn.host.generation import Decoder
from rsn.tests.effort import examples, full, sampled
from rsn.tests.test_generate import SIZES, TOKENS, made

pytestmark = pytest.mark.long
CAPACITY, CHUNK = 44, 16


@pytest.fixture(scope="module", params=sampled(["Llama", "a window"], ("Llama",), full))
def decoder(request: pytest.FixtureRequest) -> Iterator[Decoder]:
    torch.manual_seed(1)
    model = made("Llama") if request.param == "Llama" else MistralForCausalLM(MistralConfig(**SIZES, sliding_window=24))
    with Decoder(model.eval(), slots=2, capacity=CAPACITY, chunk=CHUNK, verify="never") as one:
        yield one


def rows(decoder: Decoder, slot: int) -> list[Any]:
    """Keys and values of the sequence in a slot."""
    count = decoder.length(slot)
    return [getattr(x, name)[slot, :, :count].clone() for x in decoder._cache.layers for name in ("keys", "values")]


def read(decoder: Decoder, slot: int, prompt: Sequence[int]) -> tuple[Any, list[Any], int]:
    """Logits behind a prompt, its rows, and how many runs it took."""
    runs, logits = 0, None
    while logits is None:
        decoder.last_run = None
        logits = decoder.prefill_chunk(slot, prompt)
        runs += decoder.last_run is not None
    return logits, rows(decoder, slot), runs


@examples(60, 5)
@given(st.data())
def test_the_same_bits_in_fewer_runs(decoder: Decoder, data: st.DataObject) -> None:
    token, count = st.integers(0, TOKENS - 2), st.integers(1, CAPACITY - 2)
    first = data.draw(st.lists(token, min_size=1, max_size=CAPACITY - 2))
    same = data.draw(st.one_of(count, st.just(len(first)), st.sampled_from([16, 17, 32, 33])))
    second = (first[:same] + data.draw(st.lists(token, max_size=CAPACITY - 2)))[: CAPACITY - 2]
    if data.draw(st.booleans()):
        second = first
    for slot in (0, 1):
        decoder.free(slot)
    wanted, kept, runs = read(decoder, 1, second)
    decoder.free(1)
    read(decoder, 0, first)
    steps = data.draw(st.integers(0, CAPACITY - len(first) - 1))
    for k in range(min(steps, 4)):
        decoder.step({0: k})
    logits, own, fewer = read(decoder, 1, second)
    assert np.array_equal(logits, wanted)
    assert all(torch.equal(a, b) for a, b in zip(own, kept, strict=True))
    window = min(layer.max_cache_len for layer in decoder._cache.layers)
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    if len(first) + min(steps, 4) >= window:
        assert fewer == runs
    elif first == second:
        assert fewer == 0
    elif min(len(first), len(second)) > CHUNK and common >= CHUNK and len(second) > CHUNK:
        assert fewer < runs
    else:
        assert fewer == runs
    after = decoder.step({1: 5})[1]
    decoder.free(0)
    decoder.free(1)
    read(decoder, 1, second)
    assert np.array_equal(decoder.step({1: 5})[1], after)


def test_a_change_of_the_model_shares_nothing() -> None:
    model = made("Llama")
    prompt = list(range(30))
    with Decoder(model, slots=2, capacity=CAPACITY, chunk=CHUNK) as decoder, torch.no_grad():
        before, _, runs = read(decoder, 0, prompt)
        model.model.embed_tokens.weight.mul_(0.9)
        after, _, again = read(decoder, 1, prompt)
        assert (runs, again) == (2, 2)
        assert not np.array_equal(before, after)
        assert read(decoder, 0, prompt)[2] == 0
