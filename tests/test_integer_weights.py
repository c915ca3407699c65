"""Weights of 4 bits in groups, as torchao has them: on xnn8 they keep their integers, and take half the memory."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torchao = pytest.importorskip("torchao.quantization")
from torchao.quantization import MappingType  # noqa: E402

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.isa.overlays.xnn8 import XNN8  # noqa: E402
from rsn.isa.overlays.xnn8.numbers import Floats, unpacked  # noqa: E402
from rsn.isa.program import Program, Role  # noqa: E402
from rsn.rsnlib.integers import PASSES  # noqa: E402
from rsn.rsnlib.trace import trace  # noqa: E402
from rsn.scheduler.bounds import bounds  # noqa: E402
from rsn.scheduler.graph import Gemm  # noqa: E402
from rsn.scheduler.integer_weights import QuantisedWeight, quantised  # noqa: E402
from rsn.scheduler.integers import IntegerNetwork  # noqa: E402


def encoder(group: int, *, rows: bool, quantises: bool = True) -> Any:
    """An encoder of two layers, and its example. rows: torchao also quantises rows."""
    torch.manual_seed(0)
    model, granularity = rsn.nn.Encoder(layers=2, hidden=128, heads=2, inner=640).eval(), torchao.PerGroup(group)
    if rows and quantises:
        config = torchao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=granularity)
        torchao.quantize_(model, config)
    elif quantises:
        torchao.quantize_(model, torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=granularity))
    return model, (torch.randn(2, 40, 128),)


def of_array(weight: Floats) -> QuantisedWeight:
    return quantised(lambda some: weight[:, some], weight.shape[1])


def weight_bytes(program: Program) -> int:
    return sum(4 * b.size for b in program.with_role(Role.WEIGHT))


@pytest.mark.parametrize(("group", "rows"), [(32, True), pytest.param(128, False, marks=pytest.mark.long)])
def test_groups_of_torchao(group: int, rows: bool, tmp_path: Path) -> None:
    """All products have 4 bits; a call is the integers of the model, and near PyTorch's; no time is below its bound."""
    model, example = encoder(group, rows=rows)
    integers = rsn.in_integers(model, example)
    assert all(product.short is not None for product in integers.network.products.values())
    compiled = rsn.compile(model, example, overlay="xnn8")
    with torch.no_grad():
        assert torch.equal(compiled(*example), integers(*example))
    assert rsn.quality(integers, model, [example]).worst > 0.9998
    program = compiled.program
    of_bytes = rsn.compile(*encoder(group, rows=rows, quantises=False), overlay="xnn8").program
    assert weight_bytes(program) < 0.6 * weight_bytes(of_bytes)
    network = trace(model, example, PASSES, fixes=True).network
    assert max(bounds(network, XNN8, program.segments).seconds.values()) < compiled.last_run.latency_s
    compiled.save(tmp_path / "a.rsnmodel")
    assert torch.equal(rsn.load(tmp_path / "a.rsnmodel")(*example), compiled(*example))


def test_the_numbers_of_groups() -> None:
    """Groups are found in any column, zeros among them; the largest of a column is exact, and others nearly. One column
    of other numbers makes the weight one of 8 bits."""
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(-8, 8, (4, 32, 70)), rng.uniform(0.05, 1, (4, 70))
    codes[1], scales[:, 3] = 0, 0
    codes[2] = np.clip(codes[2], -1, 1)
    weight = (codes * scales[:, None]).astype(np.float32).reshape(128, 70).astype(np.float64)
    made = of_array(weight)
    assert made.short is not None
    assert np.array_equal(made.integers, unpacked(*made.short))
    error = np.abs(made.integers * made.scales - weight)
    most = np.abs(weight).max(0)
    assert (error <= most / 105 / 2 + 8 * most / 105 / 32 + 1e-6).all()
    exact = np.argmax(made.short.multipliers, 0)
    assert (error.reshape(4, 32, 70)[exact, :, np.arange(70)] < 1e-6).all()
    weight[5, 6] *= 1.01
    assert of_array(weight).short is None
    assert of_array(np.full((64, 3), 0.5)).short is None


@pytest.mark.parametrize("quantises", [False, True])
def test_columns_that_are_one_in_memory(quantises: bool) -> None:
    """Weights whose columns are one in memory, as those of a model without values, get the integers of others that are
    equal; none of them is made but once. quantises: to 4 bits."""
    torch.manual_seed(0)
    model, x = rsn.nn.Encoder(layers=1, hidden=128, heads=2, inner=224).eval(), torch.randn(1, 16, 128)
    if quantises:
        torchao.quantize_(model, torchao.IntxWeightOnlyConfig(torch.int4, torchao.PerGroup(32)))
    network = trace(model, (x,), PASSES, fixes=True).network
    both = []
    for store in (np.broadcast_to, lambda column, shape: np.array(np.broadcast_to(column, shape))):
        layers = tuple(
            dataclasses.replace(layer, weight=store(layer.weight[:, :1], layer.weight.shape))
            if isinstance(layer, Gemm) and layer.multiplies
            else layer
            for layer in network.layers
        )
        both.append(IntegerNetwork.of(dataclasses.replace(network, layers=layers)).products)
    for y, made in both[0].items():
        other = both[1][y]
        assert (made.short is not None) == (other.short is not None)
        parts = ((p.weight, *(p.short or ()), *p.columns, p.shifts, *p.bias) for p in (made, other))
        assert all(np.array_equal(a, b) for a, b in zip(*parts, strict=True))
        assert (made.weight.strides[1] == 0) == (made.weight.shape[1] == 128)  # others have columns that fill them up


def bits_told(text: str) -> list[tuple[str, int, str]]:
    """Of the table of weights in a report: bits, number of products, and why not 4."""
    table = text.partition("weights of ")[2].splitlines()[1:]
    rows = [re.split(r"  +", line) for line in table]
    return [(bits, int(count), more[0] if more else "") for _, bits, count, _, *more in rows]


def test_why_weights_have_8_bits() -> None:
    """A report tells how many bits each weight has: 4 as a model has them; 8 of heads that are filled up, behind
    factors of SmoothQuant, with zero points, in groups of 16."""
    model, (x,) = encoder(32, rows=True)
    assert bits_told(rsn.explain(model, (x,), overlay="xnn8")) == [("4", 12, "")]
    smooth = rsn.compile(model, (x,), overlay="xnn8", smooth=[(x,)]).explain()
    assert bits_told(smooth) == [("4", 4, ""), ("8", 8, "factors of SmoothQuant change the numbers of a group")]
    heads = rsn.nn.Encoder(layers=1, hidden=160, heads=2, inner=256).eval()
    torchao.quantize_(heads, torchao.IntxWeightOnlyConfig(torch.int4, torchao.PerGroup(32)))
    told = bits_told(rsn.explain(heads, (torch.randn(1, 16, 160),), overlay="xnn8"))
    assert told == [("4", 5, ""), ("8", 1, "its rows are heads of 80 columns, which are filled up")]
    others = rsn.nn.Encoder(layers=1, hidden=128, heads=2, inner=256).eval()
    shifted = torchao.IntxWeightOnlyConfig(torch.int4, torchao.PerGroup(32), MappingType.ASYMMETRIC)
    torchao.quantize_(others, shifted, lambda x, name: isinstance(x, torch.nn.Linear) and "ffn" in name)
    narrow = torchao.IntxWeightOnlyConfig(torch.int4, torchao.PerGroup(16))
    torchao.quantize_(others, narrow, lambda x, name: isinstance(x, torch.nn.Linear) and "attn.out" in name)
    told = bits_told(rsn.explain(others, (x,), overlay="xnn8"))
    assert sorted(told) == [
        ("8", 1, "groups of 16 columns are no multiples of 32"),
        ("8", 2, "zero points shift its groups"),
        ("8", 3, ""),
    ]


@pytest.mark.long
def test_the_machine_in_cpp_computes_the_same_bits() -> None:
    model, example = encoder(32, rows=False)
    found = [rsn.compile(model, example, overlay="xnn8", board=board)(*example) for board in ("csim", "sim")]
    assert torch.equal(*found)
