"""Attention of integers as kernels: the bits of `base.quantised`, on the engine and in C++, and PyTorch's results."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
pytest.importorskip("torchao")

from pathlib import Path  # noqa: E402 - torch first: it may be missing
from typing import Any  # noqa: E402

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.host.native_tasks import run_native  # noqa: E402
from rsn.host.tasks import run_tasks  # noqa: E402
from rsn.hw.sim.machine import Machine  # noqa: E402
from rsn.hw.sim.tasks import TaskMemory  # noqa: E402
from rsn.isa.overlays.tasks.unit import BANK  # noqa: E402
from rsn.machine.executor import ProcessNetwork  # noqa: E402
from rsn.rsnlib.quantised_attention import quantised_rows  # noqa: E402
from rsn.rsnlib.quantised_cache import QuantisedLayer, QuantisedStaticLayer  # noqa: E402
from rsn.rsnlib.streamed import Knobs, streamed  # noqa: E402
from rsn.rsnlib.streamed.figures import lines  # noqa: E402
from rsn.rsnlib.streamed.generate import generate  # noqa: E402
from rsn.streams.build import task_program  # noqa: E402
from rsn.streams.placing.devices import U55C  # noqa: E402
from rsn.tests.effort import examples  # noqa: E402
from rsn.tests.rsnlib.test_streamed import Function  # noqa: E402
from rsn.tests.streams.test_hls import built  # noqa: E402

from .quantised_models import calibrated  # noqa: E402
from .test_streamed_quantised import defined, on_engine_and_native  # noqa: E402

COLUMNS = 8


def static(x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    """Numbers that a static scale and zero point have rounded."""
    limits = scale, zero, -128, 127, torch.int8
    integers = torch.ops.quantized_decomposed.quantize_per_tensor(x, *limits)
    return torch.ops.quantized_decomposed.dequantize_per_tensor(integers, *limits)


class StaticAttention(nn.Module):
    """Attention with static scales and zero points. zeros: of queries, keys, values, weights."""

    def __init__(self, zeros: tuple[int, ...]) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = (nn.functional.relu(x).unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for x in (queries, keys, values))
        q, k, v = (static(x, 0.03 * (n + 1), self.zeros[n]) for n, x in enumerate(parts))
        weights = torch.softmax(q @ k.transpose(2, 3) * COLUMNS**-0.5, -1)
        return (static(weights, 1 / 255, self.zeros[3]) @ v).transpose(1, 2).flatten(2)


ZERO = st.integers(-128, 127)


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    rows=st.integers(1, 5),
    keys=st.integers(1, 9),
    zeros=st.just((0, 0, 0, 0)) | st.tuples(ZERO, ZERO, ZERO, st.just(-128)),
    tiles=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
@examples(200, 6, share=30, deadline=None)
def test_static_attention_is_that_of_pytorch(
    batch: int, heads: int, rows: int, keys: int, zeros: tuple[int, ...], tiles: tuple[int, int]
) -> None:
    torch.manual_seed(batch + 10 * heads + 100 * rows + 1000 * keys)
    model = StaticAttention(zeros).eval()
    drawn = tuple(torch.randn(batch, n, heads * COLUMNS) * 3 for n in (rows, keys, keys))
    made = streamed(model, drawn, Knobs(rows=tiles[0], columns=tiles[1], depth=4))
    assert sum(x.multiplies_integers for x in made.plans) == 2
    got = made.run(*drawn)
    with torch.no_grad():
        wanted = model(*drawn)
    # The softmax of kernels and of PyTorch differ in their last bits, and then a weight by a step.
    assert (got - wanted).abs().max() <= 2 / 255 * keys * drawn[2].abs().max()


class Products(StaticAttention):
    """Both products of an attention, one behind the other, without a function whose last bits PyTorch has otherwise."""

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = (nn.functional.relu(x).unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for x in (queries, keys, values))
        q, k, v = (static(x, 0.03 * (n + 1), self.zeros[n]) for n, x in enumerate(parts))
        weights = static(torch.relu(q @ k.transpose(2, 3)), 0.5, self.zeros[3])
        return (weights @ v).transpose(1, 2).flatten(2)


def test_engine_and_native_have_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    drawn = tuple(torch.randn(2, n, 2 * COLUMNS) * 3 for n in (6, 8, 8))
    models = {"symmetric": Products((0, 0, 0, 0)), "zeros": Products((3, 0, -7, -128))}
    made = {name: streamed(model.eval(), drawn, Knobs(rows=3, columns=4, packed=1)) for name, model in models.items()}
    results = on_engine_and_native(made, dict.fromkeys(made, drawn), tmp_path)
    for name, model in models.items():
        wanted = defined((model, drawn))
        assert results[name].tobytes() == wanted.numpy().tobytes(), name
        with torch.no_grad():
            assert (wanted - model(*drawn)).abs().max() <= 1e-6 * wanted.abs().max()


class Attention(nn.Module):
    """Attention as matmul and softmax spell it, with its projections."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (4, 16)).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(2, 3) * 0.25, -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.long
def test_a_calibrated_attention_as_a_machine() -> None:
    torch.manual_seed(0)
    drawn = (torch.randn(2, 16, 64),)
    model = calibrated(Attention().eval(), drawn)
    made = generate(model, drawn, U55C)
    told = [line.split("  ")[-1] for line in lines(made) if line.endswith("8")]
    assert told == ["i8 x i8"] * 6
    with torch.no_grad():
        wanted = model(*drawn)
    assert (made.streamed.run(*drawn) - wanted).abs().max() < 2e-2 * wanted.abs().max()


class DynamicAttention(nn.Module):
    """Attention whose rows are quantised at each call, in groups of queries."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = (x.unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for x in (torch.relu(queries), keys, values))
        return rsn.quantised_attention(self, *parts, None)[0].flatten(2)


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    groups=st.integers(1, 3),
    rows=st.integers(1, 6),
    keys=st.integers(2, 9),
    is_causal=st.booleans(),
    tiles=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 1), st.integers(1, 4)),
)
@examples(200, 2, share=30, deadline=None)
def test_dynamic_attention_is_that_of_its_definition(
    batch: int, heads: int, groups: int, rows: int, keys: int, is_causal: bool, tiles: tuple[int, int, int, int]
) -> None:
    torch.manual_seed(batch + 10 * heads + 100 * rows + 1000 * keys)
    keys = max(rows, keys)
    sizes = ((rows, heads * groups), (keys, heads), (keys, heads))
    drawn = tuple(torch.randn(batch, n, count * COLUMNS) * 3 for n, count in sizes)
    model = DynamicAttention(is_causal).eval()
    made = streamed(model, drawn, Knobs(rows=tiles[0], columns=tiles[1], packed=tiles[2], together=tiles[3]))
    assert [x.op for x in made.plans if x.multiplies_integers] == ["scores", "attend"]
    # The softmax of kernels and of PyTorch differ in their last bits, and then a weight by a step.
    assert (made.run(*drawn) - defined((model, drawn))).abs().max() <= drawn[2].abs().max() * keys / 255


@pytest.mark.long
def test_dynamic_attention_has_the_same_bits_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a function in place of the softmax whose last bits PyTorch does not have otherwise."""
    monkeypatch.setattr(torch, "softmax", lambda x, dim: torch.relu(x))
    torch.manual_seed(0)
    models = {"one": DynamicAttention(False), "groups": DynamicAttention(False)}
    given = {
        name: tuple(torch.randn(2, n, heads * COLUMNS) * 3 for n, heads in ((6, 2 * groups), (8, 2), (8, 2)))
        for name, groups in (("one", 1), ("groups", 2))
    }
    knobs = Knobs(rows=3, columns=4, packed=1)
    made = {name: streamed(model.eval(), given[name], knobs) for name, model in models.items()}
    results = on_engine_and_native(made, given, tmp_path)
    for name, model in models.items():
        wanted = defined((model, given[name]))
        assert results[name].tobytes() == wanted.numpy().tobytes(), name
        with torch.no_grad():
            assert (wanted - model(*given[name])).abs().max() <= 1e-6 * wanted.abs().max()


class Steps(nn.Module):
    """An attention with a cache of integers as tensors: (queries, keys, values, position, four tensors of the cache) to
    (y, these)."""

    is_causal = False

    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self.capacity = capacity

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        position: torch.Tensor,
        keys: torch.Tensor,
        of_keys: torch.Tensor,
        values: torch.Tensor,
        of_values: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        layer = QuantisedLayer() if self.capacity is None else QuantisedStaticLayer(self.capacity)
        layer.keys, layer.values, layer.scales.keys, layer.scales.values = (
            t if self.capacity is None else t.clone() for t in (keys, values, of_keys, of_values)
        )
        for part in (layer, layer.scales):
            part.is_initialized, part.device = True, query.device
            if self.capacity is not None:
                part.cumulative_length = position.clone()
        heads = (torch.relu(t).unflatten(-1, (-1, COLUMNS)).transpose(1, 2) for t in (query, key, value))
        query, key, value = heads
        mask = None
        if self.capacity is not None:
            seen = torch.arange(self.capacity) <= (position + torch.arange(query.shape[2]))[:, None]
            mask = torch.where(seen, 0.0, -100.0)[None, None]
        made = rsn.quantised_attention(self, query, *layer.update(key, value), mask)[0].flatten(2)
        return made, layer.keys, layer.scales.keys, layer.values, layer.scales.values


def step(capacity: int | None, batch: int, heads: int, groups: int, rows: int, past: int) -> tuple[Steps, Any]:
    """A step with its arguments, which have `past` rows in the cache."""
    caches = [quantised_rows(torch.randn(batch, heads, capacity or past, COLUMNS)) for _ in range(2)]
    flat = (part for cache in caches for part in cache)
    new = (torch.randn(batch, rows, count * COLUMNS) * 3 for count in (heads * groups, heads, heads))
    return Steps(capacity).eval(), (*new, torch.tensor(past), *flat)


@given(
    batch=st.integers(1, 2),
    heads=st.integers(1, 2),
    groups=st.integers(1, 2),
    rows=st.integers(1, 3),
    past=st.integers(1, 6),
    more=st.none() | st.integers(0, 3),
    tiles=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(0, 1), st.integers(1, 4)),
)
@examples(100, 4, share=25, deadline=None)
def test_caches_of_integers(
    batch: int, heads: int, groups: int, rows: int, past: int, more: int | None, tiles: tuple[int, int, int, int]
) -> None:
    """Caches that grow, and those of fixed capacity, get the integers and scales of their definition."""
    torch.manual_seed(batch + 10 * heads + 100 * rows + 1000 * past)
    model, drawn = step(None if more is None else past + rows + more, batch, heads, groups, rows, past)
    made = streamed(model, drawn, Knobs(rows=tiles[0], columns=tiles[1], packed=tiles[2], together=tiles[3]))
    assert [x.op for x in made.plans].count("append" if more is None else "replace") == 4
    with torch.no_grad():
        wanted = model(*drawn)
    y, *caches = made.run(*drawn)
    for got, cache in zip(caches, wanted[1:], strict=True):
        assert got.dtype == cache.dtype
        assert torch.equal(got, cache)
    assert (y - wanted[0]).abs().max() <= 0.02 * wanted[0].abs().max() + 0.02


def test_sequences_of_any_length_with_a_cache_of_integers() -> None:
    """With the bits of the programs for each length."""
    torch.manual_seed(0)
    model, drawn = step(9, 1, 2, 2, 4, 3)
    knobs = Knobs(rows=2, columns=3, packed=1)
    made = streamed(model, drawn, knobs, any_length=True)
    assert not made.report.findings, made.report
    for rows in (1, 3):
        given_ = *(x[:, :rows] for x in drawn[:3]), *drawn[3:]
        for got, wanted in zip(made.run(*given_), streamed(model, given_, knobs).run(*given_), strict=True):
            assert torch.equal(got, wanted)


def test_the_time_of_a_step_depends_on_no_data() -> None:
    """So it has one without data, wherever the new rows are."""
    torch.manual_seed(0)
    model, drawn = step(8, 1, 2, 1, 1, 6)
    made = streamed(model, drawn, Knobs(rows=1, columns=4, packed=1))
    machine, memory = Machine(made.machine), TaskMemory(made.machine)
    timed = machine.run().latency_s
    for position in (0, 3, 7):
        for name, tensor in made.tensors(*drawn[:3], torch.tensor(position), *drawn[4:]).items():
            memory.write(name, tensor)
        banks = {BANK: memory._words}
        assert ProcessNetwork(made.machine.overlay, machine.path, banks=banks, data=True).run() == pytest.approx(timed)


@pytest.mark.long
def test_caches_have_the_same_bits_everywhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    drawn = {"grows": step(None, 2, 2, 1, 2, 5), "fixed": step(9, 1, 2, 2, 1, 4)}
    made = {name: streamed(*one, Knobs(rows=2, columns=3, packed=1)) for name, one in drawn.items()}
    drawn["together"] = drawn["fixed"]  # rows of several heads, and parts of a query in a cycle
    made["together"] = streamed(*drawn["fixed"], Knobs(rows=1, columns=9, packed=1, together=2, unroll=4))
    assert {plan.sizes.get("together", 1) for plan in made["together"].plans.values()} == {1, 2}
    regions = built(tmp_path, {name: task_program(one.report.region) for name, one in made.items()})
    for name, one in made.items():
        tensors = one.tensors(*drawn[name][1])
        outputs, native = run_tasks(one.machine, tensors).outputs, run_native(regions[name], tensors)
        assert {key: x.tobytes() for key, x in outputs.items()} == {key: x.tobytes() for key, x in native.items()}


def test_new_rows_of_another_type_are_refused() -> None:
    def joined(x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        return torch.cat([cache, torch.ops.quantized_decomposed.quantize_per_tensor(torch.relu(x), *limits)], -2)

    limits = 0.1, 0, -128, 127, torch.int8
    integers = torch.ones(1, 2, 3, 8, dtype=torch.int8)
    assert streamed(Function(joined).eval(), (torch.randn(1, 2, 1, 8), integers)).block.graph.results[0].dtype == "i8"
    with pytest.raises(UnsupportedError, match="the cache is i8, and its new rows are f32"):
        streamed(
            Function(lambda x, cache: torch.cat([cache, torch.relu(x)], -2)).eval(), (torch.randn(1, 2, 1, 8), integers)
        )


def test_a_constant_operand_is_refused() -> None:
    class Constant(StaticAttention):
        def forward(self, queries: torch.Tensor) -> torch.Tensor:
            return static(torch.relu(queries), 0.1, 0) @ static(torch.ones(2, COLUMNS, 3), 0.1, 0)

    with pytest.raises(UnsupportedError, match=r"matmul.*no quantised activation that a kernel computes"):
        streamed(Constant(()).eval(), (torch.randn(2, 4, COLUMNS),))
