"""Attention one product at a time gives what attention gives, on the machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rsn.base.errors import UnsupportedError
from rsn.hw.sim.machine import simulate
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.program import Program, Role
from rsn.isa.verify import check
from rsn.machine.plan import TimedWorkload
from rsn.scheduler.attention import bind_attention
from rsn.scheduler.attention_unfused import bind_scores, bind_values, place_scores
from rsn.scheduler.bind import bind_as, place_activations
from rsn.scheduler.binder import Binder
from rsn.scheduler.chain import chain
from rsn.scheduler.dram import order_dram
from rsn.scheduler.graph import AttentionLayer, LayerGraph, Output
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER, STRICT, Schedule
from rsn.scheduler.tile import tile
from rsn.tests.effort import full, long

from .networks import Maker, error, execute, reference

A, B, C, D, E = MappingType


@cache
def attention(batch: int, seq: int, heads: int = 4) -> LayerGraph:
    layer = AttentionLayer("block.attention", "q", "k", "v", "y", heads, 64)
    inputs = dict.fromkeys(("q", "k", "v"), heads * 64)
    return LayerGraph(batch, seq, inputs, (Output("y"),), (layer,))


def program(
    network: LayerGraph, kind: MappingType | None, overlay: Overlay = XNN_BASE, schedule: Schedule = PAPER
) -> Program:
    s = Binder(tile(network, overlay, schedule))
    place_activations(s)
    for layer in network.layers:
        assert isinstance(layer, AttentionLayer)
        bind_as(s, layer, kind)
    return pack(order_dram(chain(s.made)).kernels)


def compute(network: LayerGraph, p: Program, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What the machine makes of random q, k, v, and what numpy does."""
    rng = np.random.default_rng(seed)
    banks = {bank: np.zeros(p.bank_size(bank), np.float32) for bank in p.overlay.banks}
    values = {}
    for b in p.with_role(Role.INPUT):
        x = rng.standard_normal((network.batch, network.seq, b.view[-1])).astype(np.float32)
        values[b.name] = x * np.float32(0.1 if b.name == "k" else 1)
        stored = np.zeros(b.shape, np.float32)
        stored.reshape(network.batch, -1, b.shape[1])[:, : network.seq] = values[b.name]
        banks[b.bank][16 * b.offset : 16 * b.offset + b.size] = block(stored)
    simulate(p, banks)
    (out,) = p.with_role(Role.OUTPUT)
    y = unblock(banks[out.bank][16 * out.offset : 16 * out.offset + out.size], *out.shape)
    return y.reshape(network.batch, -1, out.shape[1])[:, : network.seq], expected(network, values)


def expected(network: LayerGraph, values: dict[str, np.ndarray]) -> np.ndarray:
    layer = network.layers[0]
    assert isinstance(layer, AttentionLayer)
    shape = (network.batch, network.seq, layer.heads, layer.head_dim)
    q, k, v = (values[n].astype(np.float64).reshape(shape).transpose(0, 2, 1, 3) for n in ("q", "k", "v"))
    e = np.exp(q @ k.transpose(0, 1, 3, 2))
    out: np.ndarray = (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return out.reshape(network.batch, network.seq, -1)


def milliseconds(p: Program) -> float:
    return 1e3 * TimedWorkload(p.overlay, InstructionPath.of(p)).run().latency


@pytest.mark.parametrize("schedule", [PAPER, STRICT], ids=["paper", "strict"])
@pytest.mark.parametrize("seq", [256, long(384), long(512)])
@pytest.mark.parametrize("kind", MappingType)
def test_result_is_numpys(kind: MappingType, seq: int, schedule: Schedule) -> None:
    network = attention(2, seq)
    p = program(network, kind, schedule=schedule)
    y, wanted = compute(network, p)
    assert error(y, wanted) < 1e-4
    assert check(p) == []


@pytest.mark.parametrize(("seq", "kind"), [(640, A), (768, B), (896, B), (1024, B), (1024, None), (768, E)])
def test_long_sequences(seq: int, kind: MappingType | None) -> None:
    """P V then goes through two fillings of MemB2; beyond 768 rows types A and D end."""
    network = attention(1, seq, heads=2)
    assert error(*compute(network, program(network, kind))) < 1e-4


@pytest.mark.parametrize(("seq", "kind"), [(128, B), (100, B), (200, B), (100, A), (300, A), (100, E), (300, E)])
def test_padding_takes_no_part(seq: int, kind: MappingType) -> None:
    """Sequences of any length, and those of one row block, need the extended overlay."""
    network = attention(2, seq, heads=6)
    assert error(*compute(network, program(network, kind, XNN))) < 1e-4


def test_b_and_c_are_one_program() -> None:
    network = attention(2, 384)
    assert np.array_equal(program(network, B).image, program(network, C).image)


def test_d_is_the_pipeline() -> None:
    network = attention(2, 384)
    s = Binder(tile(network, XNN_BASE, PAPER))
    place_activations(s)
    bind_attention(s, network.layers[0])  # type: ignore[arg-type]
    assert np.array_equal(program(network, D).image, pack(order_dram(chain(s.made)).kernels).image)
    assert np.array_equal(program(network, None).image, program(network, D).image)


def test_the_pipeline_is_fastest_and_ddr_slowest() -> None:
    times = [milliseconds(program(attention(2, 512, 16), kind)) for kind in (D, A, B)]
    assert times == sorted(times)
    assert times[2] > 2.5 * times[1]


@pytest.mark.parametrize(("kind", "rows"), [(A, 896), (D, 896), (B, 1152)])
def test_too_long_a_sequence_is_refused(kind: MappingType, rows: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"block.attention: sequences of {rows} rows; .* key tiles, \d+ rows"):
        program(attention(1, rows), kind)


@pytest.mark.parametrize(
    ("kind", "overlay", "seq", "schedule"),
    [
        (B, XNN, 200, PAPER),
        long(A, XNN_BASE, 256, STRICT),
        long(B, XNN_BASE, 384, PAPER),
        *(full(*x) for x in ((B, XNN, 200, STRICT), (A, XNN_BASE, 256, PAPER), (B, XNN_BASE, 384, STRICT))),
    ],
)
def test_between_other_layers(kind: MappingType, overlay: Overlay, seq: int, schedule: Schedule) -> None:
    """No unit drains between them."""
    network = Maker().encoder(2, seq, 1024, 16, 256, layers=2)
    x = np.random.default_rng(3).standard_normal((2, seq, 1024)).astype(np.float32)
    y, p, _ = execute(network, x, overlay, replace(schedule, attention=kind))
    assert error(y, reference(network, x)) < 1e-4
    assert check(p) == []


def test_keys_beyond_the_length_take_no_part() -> None:
    network = Maker().encoder(2, 256, 256, 4, 256, masked=True)
    x = np.random.default_rng(4).standard_normal((2, 256, 256)).astype(np.float32)
    y, _, _ = execute(network, x, XNN, replace(PAPER, attention=B), lengths=[256, 77])
    assert error(y, reference(network, x, [256, 77])) < 1e-4


def test_layers_share_the_memory_of_scores() -> None:
    """And its contents pass from one to the other in order."""
    layers = tuple(AttentionLayer(f"l{i}", q, "k", "v", y, 4, 64) for i, (q, y) in enumerate([("q", "h"), ("h", "y")]))
    network = LayerGraph(1, 256, dict.fromkeys(("q", "k", "v"), 256), (Output("y"),), layers)
    p = program(network, B)
    assert [b.name for b in p.buffers if b.name.startswith("scores")] == ["scores4"]
    rng = np.random.default_rng(1)
    banks = {bank: np.zeros(p.bank_size(bank), np.float32) for bank in p.overlay.banks}
    values = {}
    for b in p.with_role(Role.INPUT):
        values[b.name] = 0.3 * rng.standard_normal((1, 256, 256)).astype(np.float32)
        banks["ddr"][16 * b.offset : 16 * b.offset + b.size] = block(values[b.name][0])
    simulate(p, banks)
    h = expected(network, values)
    wanted = expected(network, values | {"q": h})
    out = p.buffer("y")
    assert error(unblock(banks["ddr"][16 * out.offset : 16 * out.offset + out.size], *out.shape)[None], wanted) < 1e-4


def test_each_product_alone_is_a_program() -> None:
    """As Table 9 times them: the first writes 64 times the bytes of a row of scores, the second reads them."""
    network = attention(1, 512, 2)
    times = []
    for lower in (bind_scores, bind_values):
        s = Binder(tile(network, XNN_BASE, STRICT))
        place_activations(s)
        (layer,) = network.layers
        assert isinstance(layer, AttentionLayer)
        lower(s, layer, place_scores(s, layer))
        times.append(milliseconds(pack(order_dram(chain(s.made)).kernels)))
    both = milliseconds(program(network, B, schedule=STRICT))
    assert max(times) < both < sum(times)


def test_reference_of_the_other_tests_agrees() -> None:
    network = attention(1, 256)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1, 256, 256)).astype(np.float32)
    layer = AttentionLayer("a", "x", "x", "x", "y", 4, 64)
    same = LayerGraph(1, 256, {"x": 256}, (Output("y"),), (layer,))
    assert np.allclose(reference(same, x), expected(network, dict.fromkeys("qkv", x)), atol=1e-6)
