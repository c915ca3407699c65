"""The C++ machine of xnn2 computes what its model in Python does, and ends as it does: to the bit where there are sums
and products alone, else to 1e-5 of the largest value."""

from __future__ import annotations

import dataclasses
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given
from hypothesis import strategies as st

import rsn
from rsn.hw.sim.machine import Machine
from rsn.hw.versal.csim import build as b
from rsn.hw.versal.csim.machine import Native
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.packet import Packet
from rsn.isa.program import Program
from rsn.rsnlib.nn import Encoder
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph, Output
from rsn.tests.effort import examples, full, long, sampled
from rsn.tests.scheduler.networks import Maker
from rsn.tests.test_families_lanes import MODELS, inputs, made

from ..examples import Example
from .native import check_same, native, on_both, outcome, write_files
from .test_csim_build import has
from .test_csim_equal import UNSHRUNK
from .test_csim_equal import made as example_of

MACHINE = "xnn2"
pytestmark = pytest.mark.long  # the first of them builds the machine


def built(network: LayerGraph) -> Example:
    return example_of(network, overlay=XNN2)


@examples(60, quick=6, phases=UNSHRUNK)
@given(st.data())
def test_chains_of_products_to_the_bit(data: st.DataObject) -> None:
    """Biases, residuals with and without a scale, ReLU, slices of K that X adds up; both modes."""
    maker = Maker(np.random.default_rng(data.draw(st.integers(0, 1000))))
    widths = st.sampled_from([64, 128, 200, 640])
    known = {"x": data.draw(widths)}
    layers: list[Gemm] = []
    for i in range(data.draw(st.integers(1, 3))):
        x = data.draw(st.sampled_from(sorted(known)))
        residual = data.draw(st.none() | st.sampled_from(sorted(known)))
        n = data.draw(widths) if residual is None else known[residual]
        act = data.draw(st.sampled_from([None, ActivationFunction.RELU])) if residual is None else None
        scale = 1 + maker.vector(n) if residual is not None and data.draw(st.booleans()) else None
        layers.append(Gemm(f"g{i}", x, f"y{i}", maker.matrix(known[x], n), maker.vector(n), act, residual, scale))
        known[f"y{i}"] = n
    network = LayerGraph(
        data.draw(st.integers(1, 2)), data.draw(st.integers(1, 400)), {"x": known["x"]}, (Output(layers[-1].y),),
        tuple(layers),
    )  # fmt: skip
    e = built(network)
    check_same(*on_both(e.program, e.banks()))


@examples(60, quick=6, phases=UNSHRUNK)
@given(st.data())
def test_any_encoder(data: st.DataObject) -> None:
    heads, width = data.draw(st.sampled_from([(1, 64), (2, 64), (4, 32), (2, 96), (1, 128), (5, 40)]))
    network = Maker(np.random.default_rng(data.draw(st.integers(0, 1000)))).encoder(
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(1, 450)),
        heads * width,
        heads,
        data.draw(st.integers(1, 4)) * 96,
        act=data.draw(st.sampled_from(ActivationFunction)),
        pre_norm=data.draw(st.booleans()),
        rms=data.draw(st.booleans()),
    )
    e = built(network)
    check_same(*on_both(e.program, e.banks()), within=1e-5)


@pytest.mark.parametrize(
    ("name", "batch", "seq"),
    [(n, 2, 150) if n == "gemma3, window" else (long if n == "bert" else full)(n, 2, 150) for n in MODELS]
    + [(long if n in ("gemma3, window", "gpt2") else full)(n, 4, 200) for n in MODELS],
)
def test_families_as_pytorch(name: str, batch: int, seq: int) -> None:
    """Grouped keys, rotations, norms of heads, gates, windows, soft caps; keys and values on chip, and through DDR."""
    model, example = made(name), inputs(name, batch, seq)
    compiled = rsn.compile(model, example, overlay="xnn2", board="csim")
    with torch.no_grad():
        want, got = model(**example).last_hidden_state, compiled(**example).last_hidden_state
    assert float((got - want).abs().max() / want.abs().max()) < 1e-5


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_bert_large_with_24_sets_of_weights(batch: int) -> None:
    """24 layers, L = 384: 0.23 TFLOP a sequence."""
    torch.manual_seed(batch)
    model = Encoder(24, 1024, 16, 4096, "gelu", 1e-12).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.normal_(1.0 if path.endswith("norm.weight") else 0.0, 0.02)
        example = {"hidden_states": torch.randn(batch, 384, 1024)}
        want, got = model(**example), rsn.compile(model, example, overlay="xnn2", board="csim")(**example)
    assert float((got - want).abs().max() / want.abs().max()) < 1e-5


# -- the array, stalls, sanitizers ------------------------------------------------------------------------------------


@cache
def small(batch: int, seq: int) -> Example:
    return built(Maker().encoder(batch, seq, 128, 2, 256))


@pytest.mark.parametrize("options", [{"array": True}, {"stalls": 1}, full({"stalls": 2})], ids=str)
@pytest.mark.parametrize(("batch", "seq"), [(1, 200), full(3, 300)])
def test_the_same_bits(batch: int, seq: int, options: dict[str, Any]) -> None:
    """With 384 AIE tiles, and with pauses and pipelines that hold back what they can."""
    e = small(batch, seq)
    plain, other = e.banks(), e.banks()
    native(MACHINE).run(e.program, plain)
    native(MACHINE).run(e.program, other, **options)
    check_same(plain, other)


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", sampled(b.SANITIZERS, ("thread",), full))
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    if not has(sanitizer):
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    program = b.build(machine=MACHINE, program=True, sanitize=sanitizer)
    e = small(1, 200)
    for flags in ([], ["--stalls", "1"]):
        done = subprocess.run(
            [program, *write_files(e.program, e.banks(), tmp_path), *flags], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        wanted = e.banks()
        native(MACHINE).run(e.program, wanted)
        check_same(wanted, wanted | {"ddr": np.fromfile(tmp_path / "out.bin", np.float32)})


# -- verdicts ---------------------------------------------------------------------------------------------------------


@cache
def of_short_streams() -> Native:
    """The machine whose streams without a FIFO hold four beats, as in hardware."""
    return Native(b.build(machine=MACHINE, short_streams=True), MACHINE)


def said(program: Program, e: Example, machine: Native) -> tuple[str, str]:
    """What the model says of a program, and what the C++ machine says."""
    banks = e.banks()
    model = outcome(lambda: Machine(program).run({k: v.copy() for k, v in banks.items()}))
    return model, outcome(lambda: machine.run(program, banks))


def spoil(draw: st.DrawFn, p: Program) -> Program:
    """Lose, move or shorten a packet, lower a count of tokens or tiles, or cut an op list."""
    packets = list(p.packets)
    at = draw(st.integers(0, len(packets) - 1))
    packet = packets[at]
    how = draw(st.sampled_from(["lose", "swap", "reuse", "tiles", "wait", "op"]))
    if how == "op":
        unit = draw(st.sampled_from(sorted(p.preloaded)))
        return dataclasses.replace(p, preloaded={**p.preloaded, unit: p.preloaded[unit][:-1]})
    if how == "lose":
        del packets[at]
    elif how == "swap":
        other = draw(st.integers(0, len(packets) - 1))
        packets[at], packets[other] = packets[other], packets[at]
    elif packet.header.last:
        return p
    elif how == "reuse":
        packets[at] = Packet(dataclasses.replace(packet.header, reuse=max(packet.header.reuse - 1, 0)), packet.mops)
    else:
        i = draw(st.integers(0, len(packet.mops) - 1))
        mop = packet.mops[i]
        value = getattr(mop, how, 0)
        if value and not (how == "tiles" and value == 1):
            mops = (*packet.mops[:i], mop.replace(**{how: value - 1}), *packet.mops[i + 1 :])
            packets[at] = Packet(packet.header, mops)
    return dataclasses.replace(p, packets=tuple(packets))


@examples(150, quick=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_both_say_the_same_of_spoilt_programs(data: st.DataObject) -> None:
    check_spoilt(data, native(MACHINE))


@examples(100, quick=4, share=25, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_both_say_the_same_where_streams_are_short(data: st.DataObject) -> None:
    check_spoilt(data, of_short_streams())


def test_short_streams_give_the_same_bits() -> None:
    e = small(3, 300)
    plain, other = e.banks(), e.banks()
    native(MACHINE).run(e.program, plain)
    of_short_streams().run(e.program, other)
    check_same(plain, other)


def check_spoilt(data: st.DataObject, machine: Native) -> None:
    e = small(*data.draw(st.sampled_from([(1, 200), (3, 300)])))
    p = dataclasses.replace(e.program, parameters=())
    for _ in range(data.draw(st.integers(1, 2))):
        p = spoil(data.draw, p)
    depth = data.draw(st.integers(1, 6))
    p = dataclasses.replace(p, overlay=p.overlay.with_rates(mop_fifo_depth=depth, uop_fifo_depth=min(depth, 2)))
    model, told = said(p, e, machine)
    assert told == model
