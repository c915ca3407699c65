"""Memories of more than two slots: the halves of an operation are two processes, which change no result."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError
from rsn.hw.sim.breakpoint import stop
from rsn.hw.sim.dataflow import DataRun
from rsn.hw.sim.explain import explain
from rsn.hw.sim.machine import Machine, summary
from rsn.hw.sim.report import write_report
from rsn.hw.sim.timeline import Timeline
from rsn.hw.sim.trace import write_trace
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Program
from rsn.isa.verify import check
from rsn.machine.balance import balance
from rsn.machine.executor import ProcessNetwork, UopLists
from rsn.machine.fast_engine import run_traces
from rsn.machine.plan import trace_workload
from rsn.machine.timing import RunTiming
from rsn.machine.unit import draining
from rsn.tests.effort import examples
from rsn.tests.hw.examples import assembled, example
from rsn.tests.hw.versal.tile_programs import Case, post_ops, products
from rsn.tests.machine.test_fast_engine import same

ALL = "MemA MemB MemC"


def with_slots(overlay: Overlay, slots: int, kinds: str = ALL) -> Overlay:
    """The overlay with so many slots in the memories of some kinds of unit."""
    units = [
        dataclasses.replace(u, memory=dataclasses.replace(u.memory, slots=slots)) if u.memory and u.kind in kinds else u
        for u in overlay.units
    ]
    return dataclasses.replace(overlay, units=tuple(units))


def two_processes(overlay: Overlay) -> Overlay:
    """The overlay with the halves of its two-slot memories apart."""

    def apart(behaviour: type) -> type:
        def init(self: Any, spec: Any, net: Any) -> None:
            behaviour.__init__(self, spec, net)  # type: ignore[misc]
            self.ahead = 1

        return type(behaviour.__name__, (behaviour,), {"__init__": init})

    units = [dataclasses.replace(u, behaviour=apart(u.behaviour)) if u.memory else u for u in overlay.units]
    return dataclasses.replace(overlay, units=tuple(units))


def path_on(program: Program, overlay: Overlay) -> InstructionPath:
    return InstructionPath(overlay, program.packets, program.preloaded)


def executed(program: Program, overlay: Overlay, banks: dict[str, np.ndarray] | None = None) -> RunTiming:
    """Run by the executor; with banks, which are changed in place, for the data as well."""
    path = path_on(program, overlay)
    net = ProcessNetwork(overlay, path, banks=banks, data=banks is not None, record=True, where=program.where)
    return RunTiming.of(net, net.run())


def traced(program: Program, overlay: Overlay) -> RunTiming:
    return run_traces(trace_workload(overlay, path_on(program, overlay)), overlay, record=True)


def copies(banks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: bank.copy() for name, bank in banks.items()}


def check_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    for name, bank in one.items():
        np.testing.assert_array_equal(bank, other[name])


def check_engines(program: Program, overlay: Overlay) -> RunTiming:
    """Both engines give the same times, waits and log."""
    one, other = executed(program, overlay), traced(program, overlay)
    assert other.latency == one.latency
    assert other.busy == pytest.approx(one.busy, rel=1e-12)
    assert other.waits == one.waits
    for column in ("unit", "start", "end", "before", "via", "bound", "number", "origin"):
        assert list(getattr(one.events, column)) == list(getattr(other.events, column))
    return one


def moves(timing: RunTiming, overlay: Overlay) -> dict[str, list[tuple[float, float]]]:
    """When the steps that take words from each stream, and that put words on it, begin and end."""
    log = timing.events
    out: dict[str, list[tuple[float, float]]] = {}
    for step, start, end in zip(log.step, log.start, log.end, strict=True):
        for verb, channels in (("get", log.steps[step].gets), ("put", log.steps[step].puts)):
            for c in channels:
                if c < len(overlay.streams):
                    out.setdefault(f"{verb} {overlay.streams[c].name}", []).append((start, end))
    return out


@examples(12, quick=2)
@given(st.one_of(products(), post_ops()))
def test_two_slots_as_two_processes_are_the_double_buffer(case: Case) -> None:
    apart = two_processes(XNN)
    one, other = executed(case.program, XNN), check_engines(case.program, apart)
    assert other.latency == one.latency
    assert moves(other, apart) == moves(one, XNN)
    banks, others = case.banks(), case.banks()
    executed(case.program, XNN, banks)
    executed(case.program, apart, others)
    check_equal(banks, others)


@examples(20, quick=2)
@given(
    st.one_of(products(), post_ops()), st.integers(3, 6), st.sampled_from(["MemA", "MemB", "MemC", "MemA MemB MemC"])
)
def test_more_slots_change_no_result_and_take_no_longer(case: Case, slots: int, kinds: str) -> None:
    wide = with_slots(XNN, slots, kinds)
    assert check_engines(case.program, wide).latency <= executed(case.program, XNN).latency
    banks, others, flowed = case.banks(), case.banks(), case.banks()
    executed(case.program, XNN, banks)
    executed(case.program, wide, others)
    check_equal(banks, others)
    path = path_on(case.program, wide)
    DataRun(path, banks=flowed, where=case.program.where).run()
    for name, bank in banks.items():
        np.testing.assert_allclose(flowed[name], bank, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slots", [3, 4])
def test_a_compiled_program_that_keeps_no_slice(slots: int) -> None:
    e = example("gemm768")
    wide = with_slots(e.program.overlay, slots)
    banks, others = e.banks(), e.banks()
    executed(e.program, e.program.overlay, banks)
    executed(e.program, wide, others)
    check_equal(banks, others)
    assert check_engines(e.program, wide).latency <= executed(e.program, e.program.overlay).latency


WHOLE, SEND = {"load": 1, "dim1": 128, "dim2": 128}, {"send": 1, "acc_a": 1, "acc_b": 1}
RECV, STORE = {"recv": 1, "k_iter": 1, "recv_a": 1, "recv_b": 1}, {"store": 1, "dim1": 128, "dim2": 128}


def tile_products(n: int, loads: int) -> dict[str, list[Any]]:
    """n tiles of A by one of B each. DDR loads so many tiles before it stores the first result."""
    ddr = [f.Transfer(1024 * i, 16384, False, "MemA0") for i in range(n)]
    stores = [f.Transfer(1024 * (n + i), 16384, True, "MemC0") for i in range(n)]
    return {
        "DDR": [
            *ddr[:loads],
            *(x for pair in zip(stores, ddr[loads:], strict=False) for x in pair),
            *stores[n - loads :],
        ],
        "LPDDR": [f.Transfer(0, 16384, False, "MemB0")] * n,
        "MemA0": [f.MemA(**WHOLE), *[f.MemA(**WHOLE, **SEND)] * (n - 1), f.MemA(**SEND)],
        "MemB0": [f.MemB(**WHOLE), *[f.MemB(**WHOLE, **SEND)] * (n - 1), f.MemB(**SEND)],
        "MeshA": [f.MeshA(size=512, a0_0=1)] * n,
        "MeshB": [f.MeshB(size=512, b0_0=1)] * n,
        "MME0": [f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1, k128=1)] * n,
        "MemC0": [f.MemC(**RECV), *[f.MemC(**RECV, **STORE)] * (n - 1), f.MemC(**STORE)],
    }


def room(slots: int, kind: str) -> int:
    """How many tiles DDR can load before it must store."""
    overlay = with_slots(XNN, slots, kind)
    for loads in range(1, 30):
        try:
            ProcessNetwork(overlay, tile_products(30, loads)).run()
        except DeadlockError:
            return loads - 1
    raise AssertionError("there is always room")


@pytest.mark.parametrize("kind", ["MemA", "MemC"])
def test_each_slot_holds_one_tile_more(kind: str) -> None:
    least = room(2, kind)
    assert [room(slots, kind) - least for slots in (3, 4, 5)] == [1, 2, 3]


def test_a_deadlock_names_units_and_streams_of_the_overlay_alone() -> None:
    short = with_slots(XNN, 3)
    uops = tile_products(30, room(3, ALL) + 1)
    with pytest.raises(DeadlockError) as found:
        ProcessNetwork(short, uops).run()
    traces = trace_workload(short, uops)
    with pytest.raises(DeadlockError) as other:
        run_traces(traces, short)
    report = str(found.value)
    assert str(other.value) == report
    assert not any(name in report for name in ("slots of", "is to drain", draining("MemC0")))
    assert all(name in report for name in ("MemC0", "order or depth is at fault"))
    assert balance(UopLists(uops).uop_table(short)).even


def test_a_slot_that_is_not_filled_keeps_its_slice() -> None:
    """A slice is sent again `slots` uOPs later."""
    rng = np.random.default_rng(3)
    tiles = rng.standard_normal((2, 16384)).astype(np.float32)
    weight = rng.standard_normal(16384).astype(np.float32)
    a = [f.MemA(**WHOLE), f.MemA(**WHOLE, **SEND), f.MemA(**SEND), f.MemA(), f.MemA(**SEND), f.MemA(**SEND)]
    n = 4
    uops = tile_products(n, n) | {"MemA0": a}
    uops["DDR"][2:n] = []
    uops["DDR"][2:] = [x._replace(addr=1024 * (2 + i)) for i, x in enumerate(uops["DDR"][2:])]
    ddr = np.concatenate([*tiles, np.zeros(n * 16384, np.float32)])
    overlay = with_slots(XNN, 3)  # uOPs 1, 2 send slots 1, 2; so do uOPs 4, 5
    ProcessNetwork(overlay, uops, banks={"ddr": ddr, "lpddr": weight}, data=True).run()
    results = ddr[2 * 16384 :].reshape(n, -1)
    np.testing.assert_array_equal(results[:2], results[2:])
    assert not np.array_equal(results[0], results[1])


def test_reports_of_a_run_with_four_slots(tmp_path: Any) -> None:
    program = dataclasses.replace(example("gemm768").program, overlay=with_slots(XNN, 4))
    machine = Machine(program)
    run = machine.run()
    assert set(run.utilization) == set(XNN.by_unit)
    assert all(0 <= share <= 1 for share in run.utilization.values())
    busy = machine.timing.busy
    assert machine.timing.unit_busy("MemA0") == max(busy["MemA0"], busy[draining("MemA0")]) > 0
    found = explain(machine)
    assert sum(found.causes.values()) == pytest.approx(run.latency_s)
    assert set(found.units) == set(XNN.by_unit)
    write_trace(Timeline(machine), tmp_path / "t.json")
    assert '"MemA0 drain"' in (tmp_path / "t.json").read_text()
    write_report(machine, tmp_path / "r.html", title="four slots")
    assert (tmp_path / "r.html").stat().st_size > 10_000
    assert summary(machine.timing, program.overlay, 0).latency_s == run.latency_s
    stopped = stop(machine, None, "MemC0", 1)
    assert stopped.flags["cur"] == 1
    assert "ahead" not in stopped.flags
    assert stopped.fills["slots of MemC0"][1] == 3


AGAIN = """\
overlay xnn
buffer a ddr 128x128 blocked input
buffer b lpddr 128x256 blocked weight
buffer y ddr 128x256 blocked output

DDR {
    load a -> MemA0
    store y <- MemC0
}
LPDDR {
    b -> MemB0
}
MemA0 {
    load dim1=128 dim2=128
    send acc_a=1 acc_b=1
    dim1=0  # nothing: it only goes on to the next slot
    send acc_a=1 acc_b=1
}
MemB0 {
    load dim1=128 dim2=256
    send acc_a=1 acc_b=2
}
MeshA { MemA0->MME0 size=1024 }
MeshB { MemB0->MME0 size=1024 }
MME0 { n128 k128 a_iter=1 b_iter=2 k_iter=1 acc_a=1 acc_b=1 }
MemC0 {
    recv recv_a=1 recv_b=2 k_iter=1
    store dim1=128 dim2=256
}
"""


def test_check_finds_a_slice_that_is_sent_again_on_another_number_of_slots() -> None:
    program = assembled(AGAIN)
    assert check(program) == []
    other = dataclasses.replace(program, overlay=with_slots(XNN, 3))
    found = [x for x in check(other) if not x.warning]
    assert [x.code for x in found] == ["X01"]
    assert "MemA0 uOP 3 sends a buffer that nothing has filled" in found[0].message


@examples(20, quick=2)
@given(st.data())
def test_programs_that_stop_halfway_stop_alike_in_both_engines(data: st.DataObject) -> None:
    """With some packets left out, terminators among them: the same report, or the same words left over."""
    case = data.draw(st.one_of(products(), post_ops()))
    overlay = with_slots(XNN, data.draw(st.integers(2, 4)))
    gone = data.draw(st.sets(st.integers(0, len(case.program.packets) - 1), max_size=3))
    packets = [p for i, p in enumerate(case.program.packets) if i not in gone]
    same(overlay, InstructionPath(overlay, packets, case.program.preloaded))
