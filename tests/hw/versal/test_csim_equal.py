"""The C++ machine computes what the model in Python does: to the bit where there are sums and products alone, else to
1e-5 of the largest value, which is what exp, tanh, erf and the order of a row's sum leave open."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rsn.host import tensors
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Role, UnpackedProgram
from rsn.scheduler.build import build
from rsn.scheduler.graph import ActivationFunction, LayerGraph
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER, Schedule
from rsn.tests.effort import examples
from rsn.tests.scheduler.networks import Maker
from rsn.tests.scheduler.test_any_shape import schedules

from .. import test_units as units
from ..examples import SHIPPED, Example, example
from .native import check_same, native, on_both
from .tile_programs import Case, Group, count, post_ops, products

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
XNN_PROGRAMS = ["fig10", "gemm768"]


def test_there_are_no_other_programs() -> None:
    assert [name for name in SHIPPED if example(name).program.overlay.name.startswith("xnn")] == XNN_PROGRAMS


@pytest.mark.parametrize("name", XNN_PROGRAMS)
def test_shipped_programs_to_the_bit(name: str) -> None:
    e = example(name)
    check_same(*on_both(e.program, e.banks()))


def test_two_masked_layers() -> None:
    e = example("encoder")
    words = e.program.bind({"len[0]": 17, "len[1]": 100})
    check_same(*on_both(e.program, e.banks(), words), within=1e-5)


@settings(max_examples=15, phases=UNSHRUNK)
@given(products())
def test_any_mme_op_to_the_bit(case: Case) -> None:
    check_same(*on_both(case.program, case.banks()))


@examples(40, quick=4, phases=UNSHRUNK)
@given(post_ops())
def test_any_registers_and_post_ops(case: Case) -> None:
    check_same(*on_both(case.program, case.banks()), within=1e-5)


def made(network: LayerGraph, schedule: Schedule = PAPER, overlay: Overlay = XNN) -> Example:
    done = build(network, overlay, schedule)
    rng = np.random.default_rng(0)
    sources = done.program.with_role(Role.INPUT)
    inputs = {b.name: tensors.pack(b, rng.standard_normal(b.view or b.shape).astype(np.float32)) for b in sources}
    return Example(done.program, {**done.weights, **inputs})


@settings(max_examples=10, phases=UNSHRUNK)
@given(
    m=st.integers(1, 300),
    k=st.integers(1, 300),
    n=st.integers(1, 700),
    act=st.sampled_from([None, ActivationFunction.RELU]),
    data=st.data(),
)
def test_any_gemm_by_any_schedule_to_the_bit(
    m: int, k: int, n: int, act: ActivationFunction | None, data: st.DataObject
) -> None:
    network = Maker().gemm(m, k, n, act)
    e = made(network, data.draw(schedules(network)))
    check_same(*on_both(e.program, e.banks()))


@settings(max_examples=8, phases=UNSHRUNK)
@given(
    seq=st.integers(1, 300) | st.sampled_from([128, 129, 256, 384]),
    heads=st.integers(1, 4),
    head_dim=st.sampled_from([8, 33, 64]),
    ffn=st.integers(1, 400),
    act=st.sampled_from(ActivationFunction),
    masked=st.booleans(),
    data=st.data(),
)
def test_any_encoder_by_any_schedule(
    seq: int, heads: int, head_dim: int, ffn: int, act: ActivationFunction, masked: bool, data: st.DataObject
) -> None:
    biases = data.draw(st.sampled_from([None, (1, 1), (1, heads)]), "biases")
    network = Maker().encoder(1, seq, heads * head_dim, heads, ffn, act=act, masked=masked, biases=biases)
    e = made(network, data.draw(schedules(network)))
    words = e.program.bind({"len[0]": data.draw(st.integers(1, seq))} if masked else {})
    check_same(*on_both(e.program, e.banks(), words), within=1e-5)


@settings(max_examples=3, phases=UNSHRUNK)
@given(products())
def test_the_aie_array_and_its_short_cut_are_the_same_to_the_bit(case: Case) -> None:
    """384 threads that run aie/kernels.cc in aie/graph.h, and one to an MME."""
    banks, array = case.banks(), case.banks()
    native().run(case.program, banks)
    native().run(case.program, array, array=True)
    check_same(banks, array)


MODES = [
    f.Mme(a_iter=1, b_iter=2, k_iter=3, acc_a=1, acc_b=1, n128=1, k128=1, acc_k=1, bias=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=2, acc_a=2, acc_b=1, n128=1, k128=1, acc_k=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=2, acc_a=1, acc_b=2, n128=1, k128=1, bias=1, load_prev=1, prev=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=0, acc_a=1, acc_b=1, n128=1, k128=1, prev=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=2, acc_a=1, acc_b=1, n128=1, k128=1, acc_k=1, bias=1, prev=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=2, acc_a=1, acc_b=1, n128=1, k128=0),
    f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=0, k128=0, acc_k=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=2, acc_a=1, acc_b=1, n128=0, k128=1),
    f.Mme(a_iter=1, b_iter=1, k_iter=3, acc_a=1, acc_b=1, n128=0, k128=1, acc_k=1),
]
"""Every way through aie/kernels.cc: sums inside an MME and not, from a bias and not, N and K of 64, scaled tiles."""


def test_the_aie_array_multiplies_in_every_mode_to_the_bit() -> None:
    group = Group({"recv": 1, "recv_a": 1, "recv_b": 1, "k_iter": 1}, {"store": 1, "dim1": 128, "dim2": 128})
    case = Case(MODES, [group] * count(MODES, "c"))
    banks, array = case.banks(), case.banks()
    native().run(case.program, banks)
    native().run(case.program, array, array=True)
    check_same(banks, array)


@pytest.mark.parametrize("name", ["fig10", "encoder"])
def test_the_aie_array_runs_whole_programs(name: str) -> None:
    e = example(name)
    banks, array = e.banks(), e.banks()
    native().run(e.program, banks)
    native().run(e.program, array, array=True)
    check_same(banks, array)


@pytest.mark.long
def test_a_bert_large_encoder() -> None:
    """L = 512, B = 1: 12.9 GFLOP, against the simulator as it is."""
    from rsn.hw.sim.machine import Machine

    network = Maker().encoder(1, 512, 1024, 16, 4096)
    done = build(network, XNN_BASE, Schedule())
    (source,) = done.program.with_role(Role.INPUT)
    x = np.random.default_rng(0).standard_normal(source.view or source.shape).astype(np.float32)
    e = Example(done.program, {**done.weights, source.name: tensors.pack(source, x)})
    model, machine = ({name: np.nan_to_num(bank) for name, bank in e.banks().items()} for _ in range(2))
    Machine(e.program).run(model)
    assert native().run(e.program, machine) < 60
    check_same(model, machine, within=1e-5)


# -- the contract, unit by unit

OTHER_WORDS = {"test_reading_beyond_the_memory_is_an_error"}
"""The C++ machine says so of the first burst, not of the whole access: test_csim_verdict.py."""


def unit_tests() -> list[str]:
    found = []
    for name, test in inspect.getmembers(units, inspect.isfunction):
        uses = inspect.getsource(test)
        on_data = "multiply(" in uses or " run(" in uses
        model = inspect.signature(test).parameters or "net" in uses  # it looks into the network
        if name.startswith("test_") and on_data and not model and name not in OTHER_WORDS:
            found.append(name)
    return found


def mop_of(unit: str, uop: Any) -> Any:
    """The mOP whose only uOP this is."""
    if not isinstance(uop, f.Transfer):
        return uop
    flags = {x.to or x.source: x.name for x in (f.Ddr if unit == "DDR" else f.Lpddr).FIELDS if x.to or x.source}
    peer = {flags[uop.peer]: 1} if uop.peer else {}
    if unit == "LPDDR":
        return f.Lpddr(addr=uop.addr, size=uop.size, bias=uop.bias, **peer)
    return f.Ddr(addr=uop.addr, size=uop.size, **{"store" if uop.store else "load": 1}, **peer)


def run_natively(ddr: np.ndarray, lpddr: np.ndarray, mme: dict[str, Any], **issues: list[Any]) -> None:
    sequences = {unit: tuple(mop_of(unit, uop) for uop in uops) for unit, uops in issues.items()}
    program = pack(UnpackedProgram(XNN, sequences, {unit: tuple(ops) for unit, ops in mme.items()}))
    native().run(program, {"ddr": ddr.reshape(-1), "lpddr": np.ascontiguousarray(lpddr).reshape(-1)})


@pytest.mark.parametrize("name", unit_tests())
def test_a_unit_does_what_the_contract_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of the model's units, on the C++ ones."""
    monkeypatch.setattr(units, "run", run_natively)
    getattr(units, name)()
