"""Layers that need opcodes 9 to 13, compiled: the C++ machine computes what the model computes, and PyTorch."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rsn.hw.sim.machine import Machine
from rsn.isa.overlays import XNN
from rsn.isa.packet import Words
from rsn.isa.program import Program
from rsn.rsnlib.fold import fold
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph, Norm
from rsn.scheduler.norms import norms_at_loads
from rsn.scheduler.schedule import PAPER
from rsn.tests.effort import long
from rsn.tests.hw.versal.cascade import in_cascade_order
from rsn.tests.isa.test_rows import appending
from rsn.tests.scheduler import networks, test_attention_in_parts
from rsn.tests.scheduler import test_extended_products as products
from rsn.tests.scheduler.networks import Maker
from rsn.tests.scheduler.test_attention_in_parts import attention

from ..examples import Example
from .native import check_same, native
from .test_csim_verdict import said, spoil

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


def simulate(program: Program, banks: dict[str, np.ndarray], words: Words | None = None) -> None:
    """Run a program on both machines; the memories are then those of the C++ one."""
    model = {name: bank.copy() for name, bank in banks.items()}
    Machine(dataclasses.replace(program, overlay=in_cascade_order(program.overlay)), words).run(model)
    native().run(program, banks, words)
    check_same(model, banks, within=1e-5)


@pytest.fixture
def on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (networks, test_attention_in_parts):
        monkeypatch.setattr(module, "simulate", simulate)


def random_banks(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(program.bank_size(name), np.float32) for name in ("ddr", "lpddr")}


def gated() -> LayerGraph:
    make = Maker()
    up = Gemm("up", "x", "h", make.matrix(64, 200), make.vector(200), ActivationFunction.SILU, gated=True)
    return products.graph([up, Gemm("down", "h", "y", make.matrix(100, 64), make.vector(64))], 200, 64)


def rotated(rows: tuple[int, int], heads: int, width: int, norm: Norm | None) -> LayerGraph:
    make = Maker()
    scale = None if norm is None else np.tile(1 + make.vector(width).astype(np.float64), heads)
    table = products.rotary(rows[1], width)
    q = products.heads_of(make, "q", 128, heads, width, norm=norm, scale=scale, rotary=table)
    o = Gemm("o", "q", "y", make.matrix(heads * width, 70), make.vector(70))
    return products.graph([q, o], rows, 128)


def normed(rows: int, columns: int, norm: Norm) -> LayerGraph:
    """Of an input, with a product behind whose result is normed again, by statistics of several parts."""
    make, scale = Maker(), 1 + Maker().vector(columns).astype(np.float64)
    first = Gemm("n1", "x", "n1", *products.nothing(columns), residual="x", norm=norm, scale=scale)
    up = Gemm("up", "n1", "h", make.matrix(columns, 80), make.vector(80), ActivationFunction.SILU)
    down = Gemm("down", "h", "x1", make.matrix(80, columns), make.vector(columns), None, "x")
    last = Gemm("n2", "x1", "n2", *products.nothing(columns), residual="x1", norm=norm, scale=scale)
    out = Gemm("out", "n2", "g", make.matrix(columns, 130), make.vector(130), gated=True)
    return products.graph([first, up, down, last, out], rows, columns)


@pytest.mark.parametrize(
    ("network", "moved"),
    [
        (gated(), False),
        long(rotated((2, 130), 3, 33, Norm(1e-5)), False),
        long(rotated((1, 300), 5, 128, Norm(1e-6, rms=True)), False),
        long(rotated((1, 300), 3, 256, None), False),
        (normed(130, 100, Norm(1e-5)), True),
        long(normed(300, 1500, Norm(1e-6, rms=True)), True),
        long(normed(130, 2600, Norm(1e-5)), True),
    ],
    ids=["gate", "rotation", "heads of 128", "heads of 256", "norm", "wide norm", "wider norm"],
)
@pytest.mark.usefixtures("on_both")
def test_products(network: LayerGraph, moved: bool) -> None:
    products.assert_computes(network, moved=moved)


@pytest.mark.parametrize(
    "network",
    [
        attention(1, 130, 2, 1, 72, causal=True, softcap=20.0),
        long(attention(1, 900, 3, 1, 64, window=70)),
        long(attention(1, 1100, 2, 1, 128, causal=True)),
        long(attention(1, 300, 2, 1, 200)),
    ],
    ids=["soft cap", "window", "in parts", "heads of 200"],
)
@pytest.mark.usefixtures("on_both")
def test_attention(network: LayerGraph) -> None:
    test_attention_in_parts.assert_computes(network)


@pytest.mark.usefixtures("on_both")
def test_padding_before_the_rows() -> None:
    network = attention(1, 200, 2, 1, 64, masked=True, left=True)
    test_attention_in_parts.assert_computes(network, [170], [31])


@pytest.mark.long
@settings(max_examples=2, phases=UNSHRUNK, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_any_attention(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_attention_in_parts, "simulate", simulate)
        inner: Any = test_attention_in_parts.test_any_attention
        inner.hypothesis.inner_test(data=data)


# -- stalls, and programs that cannot end ------------------------------------------------------------------------------


@cache
def extended() -> tuple[Program, ...]:
    """Programs that use every one of the opcodes, each with the lengths that it was built for."""
    graphs = [gated(), rotated((1, 130), 2, 128, Norm(1e-6, rms=True)), attention(1, 900, 2, 1, 128, causal=True)]
    graphs.append(norms_at_loads(fold(normed(130, 300, Norm(1e-5))), XNN))
    programs = (*(build(fold(g), XNN, PAPER).program for g in graphs), appending(2, 1, 64, 200).program)
    opcodes = {packet.header.opcode for program in programs for packet in program.packets}
    assert opcodes == {form.opcode for form in XNN.formats}
    return programs


@pytest.mark.long
@settings(max_examples=1, phases=UNSHRUNK)
@given(st.integers(1, 2**64 - 1))
def test_stalls_change_no_bit(seed: int) -> None:
    for program in extended():
        plain = random_banks(program)
        stalls = {name: bank.copy() for name, bank in plain.items()}
        native().run(program, plain)
        native().run(program, stalls, stalls=seed)
        check_same(plain, stalls)


@pytest.mark.long
@settings(max_examples=12, phases=UNSHRUNK)
@given(st.data())
def test_spoilt_programs_end_in_the_same_words(data: st.DataObject) -> None:
    """Unless the model refuses an operation whose registers or table are not there, which the machine executes."""
    program = dataclasses.replace(data.draw(st.sampled_from(extended())), parameters=())
    for _ in range(data.draw(st.integers(1, 2))):
        program = spoil(data.draw, program)
    model, machine = said(Example(program, {}))
    if not model.startswith("ProgramError: Mem") and "needs room for" not in model and ", needs " not in model:
        assert machine == model
