"""Rows that no tile divides: the results of PyTorch, in about the time of the next rows that a tile divides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn

from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed import Knobs, Streamed, streamed
from rsn.rsnlib.streamed.covering import covered
from rsn.rsnlib.streamed.generate import generate
from rsn.streams.placing.devices import U55C
from rsn.tests.effort import cases, full, in_both, long
from rsn.tests.rsnlib.streamed_blocks import Attention, Fixed, block
from rsn.tests.streams.test_hls import built

Made = tuple[nn.Module, tuple[object, ...]]
GROUPED = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
PACKED = Knobs(rows=8, columns=16, depth=16, packed=1)


class Chunk(nn.Module):
    """Attention of new rows to a cache and to themselves: (x, keys, values) to (y, keys, values)."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.causal = causal

    def forward(self, x: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, rows, before = len(x), x.shape[1], past[0].shape[2]
        parts = self.project(self.norm(x)).split(32, -1)
        q, k, v = (part.view(batch, rows, 2, 16).transpose(1, 2) for part in parts)
        k, v = (torch.cat([old, new], 2) for old, new in zip(past, (k, v), strict=True))
        mask = torch.ones(rows, before + rows, dtype=torch.bool).tril(before) if self.causal else None
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).reshape(batch, rows, 32)), k, v


def perceptron(rows: int, random: Random) -> Made:
    layers = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 20), nn.Softmax(-1))
    return layers, (torch.randn(rows, 32),)


def encoder(rows: int, random: Random) -> Made:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return layers, (torch.randn(1, rows, 32),)


def spelled(rows: int, random: Random) -> Made:
    options = frozenset(x for x in ("causal", "normed", "split") if random.random() < 0.5)
    return Attention(32, 4, random.choice((1, 2)), 8, options), (torch.randn(random.choice((1, 2)), rows, 32),)


def rotary(rows: int, random: Random) -> Made:
    return block(random.choice(("llama", "qwen3", "gemma3")), **GROUPED), (torch.randn(1, rows, 32),)


def window(rows: int, random: Random) -> Made:
    """Each row sees itself and the one before."""

    class Window(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(rows, rows, dtype=torch.bool).tril().triu(-1)
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return Window().eval(), tuple(torch.randn(1, 2, rows, 16) for _ in range(3))


def chunk(rows: int, random: Random) -> Made:
    past = torch.randn(2, random.choice((1, 2)), 2, random.randint(1, 40), 16)
    return Chunk(random.random() < 0.5), (torch.randn(past.shape[1], rows, 32), *past)


def fixed(rows: int, random: Random) -> Made:
    capacity = rows + random.randint(0, 20)
    caches = [[torch.randn(1, 2, capacity, 8)] for _ in range(2)]
    place = torch.tensor(random.randint(0, capacity - rows))
    return Fixed([block("llama", **GROUPED)]), (torch.randn(1, rows, 32), place, *caches)


MODELS = (perceptron, encoder, spelled, rotary, window, chunk, fixed)


def right(made: Streamed, module: nn.Module, given: tuple[object, ...]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(made.run(*given), module(*given), rtol=1e-4, atol=1e-4)


@in_both
@pytest.mark.parametrize("model", MODELS)
def test_any_number_of_rows(model: Callable[[int, Random], Made]) -> None:
    for seed in range(cases(70, 2, share=35)):
        random = Random(seed)
        torch.manual_seed(seed)
        module, given = model(1 + (seed * 37 + 10) % 70, random)
        knobs = replace(PACKED, rows=random.choice((4, 8, 16)), columns=random.choice((8, 16)), packed=seed % 2)
        made = streamed(module.eval(), given, knobs)
        assert not made.report.findings, made.report
        right(made, module, given)


@cache
def cycles(model: Callable[[int, Random], Made], rows: int) -> int:
    torch.manual_seed(0)
    module, given = model(rows, Random(0))
    made = streamed(module.eval(), given, PACKED).sized()
    times = made.times(made.declared)
    assert times is not None
    return times.latency


@pytest.mark.parametrize("model", [perceptron, long(encoder), full(rotary)])
def test_rows_take_no_longer_than_those_that_tiles_divide(model: Callable[[int, Random], Made]) -> None:
    for rows in range(1, 71, 13):
        # Softmax has 16 lanes here, however many keys it hides.
        assert cycles(model, rows) <= 1.04 * cycles(model, -(-rows // PACKED.rows) * PACKED.rows), rows


@pytest.mark.parametrize("model", [perceptron, full(encoder), full(rotary)])
def test_a_machine_for_37_rows_takes_the_time_of_one_for_40(model: Callable[[int, Random], Made]) -> None:
    machines = []
    for rows in (37, 40):
        torch.manual_seed(0)
        module, given = model(rows, Random(0))
        machines.append(generate(module.eval(), given, U55C))
        right(machines[-1].streamed, module, given)
    assert machines[0].cycles <= 1.05 * machines[1].cycles
    assert machines[0].off_chip_bytes == machines[1].off_chip_bytes
    assert machines[0].bounds_s["multipliers"] < machines[1].bounds_s["multipliers"]


def test_rows_of_the_fewest_tiles() -> None:
    for most in range(1, 80):
        for size in range(1, 300):
            rows = covered(size, most)
            tiles = -(-size // most)
            assert size <= rows <= tiles * most
            assert rows % tiles == 0
            assert rows <= 1.25 * size + 2 * tiles


def test_what_is_added_is_seen_by_nothing_that_exists() -> None:
    """Another product than that of softmax would see keys that are added: then no rows are added."""
    torch.manual_seed(0)

    class Linear(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.relu(q @ k.transpose(-1, -2)) @ v

    given = tuple(torch.randn(1, 2, 11, 8) for _ in range(3))
    made = streamed(Linear().eval(), given, PACKED)
    assert all(x.existing is None for x in made.plans)
    right(made, Linear(), given)


@pytest.mark.long
def test_the_cpp_has_the_same_tiles(tmp_path: Path) -> None:
    programs, given = {}, {}
    for model in (encoder, chunk, fixed):
        torch.manual_seed(0)
        module, arguments = model(11, Random(1))
        made = streamed(module.eval(), arguments, PACKED)
        programs[model.__name__] = program_of(made.machine.overlay)
        given[model.__name__] = made, made.tensors(*arguments)
    regions = built(tmp_path, programs)
    for name, (made, tensors) in given.items():
        outputs, _ = run_on_tensors(made.machine, tensors)
        native = run_native(regions[name], tensors)
        assert all(native[key].tobytes() == x.tobytes() for key, x in outputs.items()), name
