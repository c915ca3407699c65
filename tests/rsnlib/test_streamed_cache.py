"""Caches of fixed capacity: one stream program for all steps, with the results of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rsn.base.errors import ProgramError, TensorError, UnsupportedError
from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed import Knobs, Streamed, streamed
from rsn.tests.effort import full, long
from rsn.tests.rsnlib.streamed_blocks import Fixed, block
from rsn.tests.rsnlib.test_streamed import BLOCKS, SMALL, TOLERANCE, Function, agrees, has_times_of_its_tasks
from rsn.tests.streams.test_hls import built

CAPACITY = 12
CARRIED = {"keys": 1, "values": 2}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def caches(name: str, layers: int = 1, batch: int = 1, capacity: int = CAPACITY) -> dict[str, list[torch.Tensor]]:
    """Empty caches. A row that no step has written must not count, whatever it holds."""
    heads, columns = BLOCKS[name].get("num_key_value_heads", 4), BLOCKS[name].get("head_dim", 8)
    return {key: [torch.randn(batch, heads, capacity, columns) for _ in range(layers)] for key in CARRIED}


def made_for(
    module: nn.Module, x: torch.Tensor, state: dict[str, list[torch.Tensor]], knobs: Knobs = SMALL
) -> Streamed:
    made = streamed(module.eval(), {"x": x, "position": torch.tensor(0), **state}, knobs)
    assert not made.report.findings, made.report
    return made


def close(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "batch"),
    # Every kind of block, and several sequences for one whose heads share keys.
    [
        ((long if (n, b) == ("llama", 3) or (b == 1 and n != "gpt2") else full)(n, b))
        for n in BLOCKS
        for b in (1, 2, 3)
        if (n, b) != ("gpt2", 1)
    ]
    + [("gpt2", 1)],
)
def test_one_program_for_all_steps(name: str, batch: int) -> None:
    module, state = Fixed([block(name, **BLOCKS[name])]), caches(name, batch=batch)
    made = made_for(module, torch.randn(batch, 1, 32), state)
    assert [node.op for node in made.dataflow.nodes].count("replace") == 2
    steps, theirs = made.carrying(CARRIED, **state), state
    for position in range(CAPACITY):
        x = torch.randn(batch, 1, 32)
        with torch.no_grad():
            y, keys, values = module(x, torch.tensor(position), **theirs)
        theirs = {"keys": keys, "values": values}
        close(steps.step(x, torch.tensor(position)), y)
        close(steps.state, theirs)
    before = steps.state
    with pytest.raises(TensorError, match="position 12 is beyond the capacity of 12 rows of keys"):
        steps.step(torch.randn(batch, 1, 32), torch.tensor(CAPACITY))
    with pytest.raises(TensorError, match=r"position -1 of keys.*; positions begin at 0"):
        steps.step(torch.randn(batch, 1, 32), torch.tensor(-1))
    assert steps.state is before


class Words(nn.Module):
    """Embeddings of words; those of places are rotary, or left out."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.words = nn.Embedding(count, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens)


@pytest.mark.long
def test_logits_of_a_model() -> None:
    """A prompt of 4 words, then 12 steps with the words that PyTorch finds."""
    layers = [block("llama", **BLOCKS["llama"]) for _ in range(2)]
    after = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 40, bias=False))
    module, state = Fixed(layers, Words(40), after).eval(), caches("llama", layers=2, capacity=16)
    tokens = torch.randint(0, 40, (1, 4))
    prompt = made_for(module, tokens, state)
    steps = prompt.carrying(CARRIED, **state)
    logits = steps.step(tokens, torch.tensor(0))
    one = made_for(module, tokens[:, :1], state).carrying(CARRIED, **steps.state)
    for position in range(4, 16):
        with torch.no_grad():
            whole, _, _ = module(tokens, torch.tensor(0), **state)
        close(logits[0, -1], whole[0, -1])
        token = whole[:, -1:].argmax(-1)
        logits = one.step(token, torch.tensor(position))
        tokens = torch.cat([tokens, token], 1)
    with pytest.raises(TensorError, match="position 16 is beyond the capacity of 16 rows"):
        one.step(tokens[:, :1], torch.tensor(16))


@pytest.mark.long
def test_only_new_rows_are_stored() -> None:
    state = caches("gpt2", batch=2)
    made = made_for(Fixed([block("gpt2", **BLOCKS["gpt2"])]), torch.randn(2, 1, 32), state)
    x, position = torch.randn(2, 1, 32), torch.tensor(7)
    tensors = made.tensors(x, position, **state)
    outputs, _ = run_on_tensors(made.machine, tensors)
    (name,) = (name for name in made.written.outputs.values() if name.startswith("keys"))
    changed = (outputs[name] != tensors[name]).any(axis=-1)
    assert changed.shape == (8, CAPACITY)
    np.testing.assert_array_equal(np.flatnonzero(changed.any(axis=0)), [7])
    assert f"{name}[i, {name}_positions[0], :] = rows[0, :]" in made.text


ROWS = torch.tensor([5, 0, 3])


def replaced(spelling: str) -> nn.Module:
    """Three rows of a cache, at any positions, then the product with queries."""

    def function(x: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = nn.functional.silu(x).view(2, 3, 2, 4).transpose(1, 2)
        if spelling == "index_copy":
            cache = cache.index_copy(2, positions, new)
        elif spelling == "side by side":
            cache = cache.view(2, 6, 2, 4).transpose(1, 2).index_copy(2, positions, new)
        else:
            cache = cache.clone()
            cache[:, :, positions] = new
        return nn.functional.softmax(new @ cache.transpose(2, 3), -1) @ cache, cache

    return Function(function)


@pytest.mark.parametrize("spelling", ["index_copy", long("index_put"), long("side by side")])
def test_any_rows(spelling: str) -> None:
    shape = (2, 6, 8) if spelling == "side by side" else (2, 2, 6, 4)
    made = agrees(replaced(spelling), torch.randn(2, 3, 8), ROWS, torch.randn(shape), knobs=Knobs(rows=2, columns=3))
    has_times_of_its_tasks(made)
    x, cache = torch.randn(2, 3, 8), torch.randn(shape)
    groups = {node.name: k for k, node in enumerate(made.dataflow.nodes)}
    for other in (made.changed(groups=groups), made.changed(Knobs(rows=3, columns=2, packed=1), groups=groups)):
        assert not other.report.findings
        for mine, theirs in zip(other.run(x, ROWS, cache), made.run(x, ROWS, cache), strict=True):
            close(mine, theirs)
    close(made.with_normal_depths().run(x, ROWS, cache), made.run(x, ROWS, cache))


def test_others_read_the_cache_as_it_was() -> None:
    def function(x: torch.Tensor, at: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = nn.functional.silu(x)
        new = cache.index_copy(1, at, q)
        return q @ cache.transpose(1, 2), q @ new.transpose(1, 2)

    agrees(Function(function), torch.randn(2, 1, 8), torch.tensor([3]), torch.randn(2, 4, 8))
    # A cache that is stored, but not read.
    agrees(
        Function(lambda x, at, cache: cache.index_copy(1, at, nn.functional.silu(x))),
        torch.randn(2, 1, 8), torch.tensor([3]), torch.randn(2, 4, 8),
    )  # fmt: skip


@pytest.mark.long
def test_hls_gives_the_same_bits(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    knobs = Knobs(rows=2, columns=3, depth=4, packed=1)
    runs: dict[str, tuple[Streamed, tuple[Any, ...]]] = {}
    for name, batch, rows in (("llama", 2, 1), ("gpt2", 1, 2)):
        heads = 1 if name == "llama" else 2
        grouped = {"num_key_value_heads": heads} if name == "llama" else {}
        state = [[torch.randn(batch, heads, 6, 4)] for _ in range(2)]
        x, position = torch.randn(batch, rows, 8), torch.tensor(3)
        module = Fixed([block(name, **sizes, **grouped)]).eval()
        runs[f"{name}_step"] = streamed(module, (x, position, *state), knobs, name=name), (x, position, *state)
    x, cache = torch.randn(2, 3, 8), torch.randn(2, 2, 6, 4)
    runs["rows"] = streamed(replaced("index_copy").eval(), (x, ROWS, cache), knobs), (x, ROWS, cache)
    regions = built(tmp_path, {name: program_of(made.machine.overlay) for name, (made, _) in runs.items()})
    for name, (made, arguments) in runs.items():
        tensors = made.tensors(*arguments)
        expected, _ = run_on_tensors(made.machine, tensors)
        got = run_native(regions[name], tensors)
        assert {key: value.tobytes() for key, value in got.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }


def test_refused() -> None:
    silu = nn.functional.silu
    x, at, cache = torch.randn(2, 1, 8), torch.tensor([3]), torch.randn(2, 4, 8)
    with pytest.raises(UnsupportedError, match="it replaces rows of a computed tensor; a cache must be an argument"):
        streamed(Function(lambda x, at, cache: silu(cache).index_copy(1, at, silu(x))).eval(), (x, at, cache))
    with pytest.raises(UnsupportedError, match="kernels replace rows, along the last dimension but one"):
        streamed(Function(lambda x, at, cache: cache.index_copy(2, at, silu(x))).eval(), (cache[..., :1], at, cache))
    made = streamed(Function(lambda x, at, cache: (silu(x), cache.index_copy(1, at, silu(x)))).eval(), (x, at, cache))
    with pytest.raises(ProgramError, match="no argument is named caches; there are x"):
        made.carrying({"caches": 1}, caches=cache)
    with pytest.raises(ProgramError, match=r"result 2 of a step, which has 2, counted from 0"):
        made.carrying({"x": 2}, x=x)
