"""How a run ends: the C++ machine and the model say the same of programs that cannot, in the same words."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rsn.base.errors import BoardError, DeadlockError, ProgramError
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays import FIG6, XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet
from rsn.isa.program import Program
from rsn.tests.effort import examples

from ..examples import Example, example
from .native import check_same, native, outcome
from .tile_programs import Case, products

NAMES = ["fig10", "gemm768", "encoder"]


def said(e: Example, *, array: bool = False) -> tuple[str, str]:
    """What the model says of a program, and what the C++ machine says."""
    banks = e.banks()
    model = outcome(lambda: Machine(e.program).run({k: v.copy() for k, v in banks.items()}))
    return model, outcome(lambda: native().run(e.program, banks, array=array))


def broken(draw: st.DrawFn) -> Example:
    """A program with packets lost, moved or of other counts, op lists cut short, or FIFOs that may be too shallow."""
    e = example(draw(st.sampled_from(NAMES)))
    p = dataclasses.replace(e.program, parameters=())  # these would name packets that are elsewhere now
    for _ in range(draw(st.integers(0, 2))):
        p = spoil(draw, p)
    depth = draw(st.integers(1, 6))
    p = dataclasses.replace(p, overlay=p.overlay.with_rates(mop_fifo_depth=depth, uop_fifo_depth=min(depth, 2)))
    return Example(p, e.given)


def spoil(draw: st.DrawFn, p: Program) -> Program:
    packets = list(p.packets)
    at = draw(st.integers(0, len(packets) - 1))
    packet = packets[at]
    how = draw(st.sampled_from(["lose", "swap", "reuse", "shorten", "op"]))
    if how == "op":
        unit = draw(st.sampled_from(sorted(p.preloaded)))
        ops = p.preloaded[unit][: draw(st.integers(0, len(p.preloaded[unit])))]
        return dataclasses.replace(p, preloaded={**p.preloaded, unit: ops})
    if how == "lose":
        del packets[at]
    elif how == "swap":
        other = draw(st.integers(0, len(packets) - 1))
        packets[at], packets[other] = packets[other], packets[at]
    elif not packet.header.last and not p.overlay.by_opcode[packet.header.opcode].config:
        header, mops = packet.header, packet.mops
        if how == "reuse":
            header = dataclasses.replace(header, reuse=max(0, header.reuse - 1))
        elif len(mops) > 1:
            mops = mops[:-1]
            header = dataclasses.replace(header, window=len(mops))
        packets[at] = Packet(header, mops)
    return dataclasses.replace(p, packets=tuple(packets))


@examples(80, quick=8, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.data())
def test_both_say_the_same(data: st.DataObject) -> None:
    """But where a piece waits behind a part of another, which only words that nobody meant for each other do: the model
    puts and gets pieces whole, the machine goes on word by word, as the hardware would."""
    model, machine = said(broken(data.draw))
    if "needs room for" not in model and ", needs " not in model:
        assert machine == model


def test_there_are_deadlocks_among_them() -> None:
    """Unit after unit, packets stall in the dispatcher; with an op less, tiles are left or awaited."""
    e = example("encoder")
    p = dataclasses.replace(e.program, parameters=())
    order = sorted(p.packets, key=lambda q: (q.header.last, q.header.opcode))
    model, machine = said(Example(dataclasses.replace(p, packets=tuple(order)), e.given))
    assert machine == model
    assert model.startswith("DeadlockError: deadlock: no unit can move\na cycle")
    assert "dispatcher" in model
    fewer = Example(dataclasses.replace(p, preloaded={**p.preloaded, "MME0": p.preloaded["MME0"][:-1]}), e.given)
    model, machine = said(fewer)
    assert machine == model
    assert "MME0, which has ended" in model


def test_what_is_left_in_streams_is_an_error_in_the_same_words() -> None:
    ops = [f.MeshA(size=512, a0_0=1)]
    e = example("fig10")
    p = e.program
    sent = Packet.of(6, ops)
    packets = list(p.packets)
    last = next(i for i, q in enumerate(packets) if q.header.last)
    send = f.MemA(send=1, acc_a=1, acc_b=1)
    extra = Packet.of(3, [send], mask=1)
    for added in ([extra], [extra, sent]):
        wrong = Example(dataclasses.replace(p, packets=(*packets[:last], *added, *packets[last:])), e.given)
        model, machine = said(wrong)
        assert machine == model
        assert model.startswith("ProgramError: the program ends with data left in streams")


@settings(max_examples=4, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(products(), st.data())
def test_the_aie_array_ends_as_its_short_cut_does(case: Case, data: st.DataObject) -> None:
    """With an op less or one too many."""
    p = case.program
    ops = p.preloaded["MME0"]
    wrong = data.draw(st.sampled_from([ops[:-1], (*ops, ops[-1]), ops]))
    e = Example(dataclasses.replace(p, preloaded={**p.preloaded, "MME0": wrong}), {})
    model, array = said(e, array=True)
    assert (model == "") == (array == "")
    assert model.splitlines()[:1] == array.splitlines()[:1]


def test_an_access_beyond_the_memory_ends_the_run() -> None:
    e = example("gemm768")
    banks = e.banks()
    banks["ddr"] = banks["ddr"][:-64].copy()
    with pytest.raises(ProgramError, match=r"board csim: DDR: writes 1024 elements at \d+, beyond its \d+$"):
        native().run(e.program, banks)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "shorter than it says"),
        ([7, 1, 0], "shorter than it says"),
        ([1, 2, 0], "fewer packets than it says"),
        ([2, 1, 0, 0], "more words than packets"),
        ([1, 1, 15], "unknown opcode"),
        ([1, 1, 3 | 1 << 11], "cut short"),
    ],
)
def test_an_image_that_would_be_misread_is_refused(words: list[int], message: str) -> None:
    p = example("fig10").program
    with pytest.raises(ProgramError, match=message):
        native().run(p, example("fig10").banks(), np.array(words, np.uint32))


def test_another_machines_program_is_refused() -> None:
    with pytest.raises(BoardError, match=r"the machine of xnn, xnn-base, xnn2 and xnn8, .* is for fig6 "):
        native().run(Program(FIG6, ()), {"ddr": np.zeros(16, np.float32)})
    deeper = dataclasses.replace(example("fig10").program, overlay=XNN.with_depths({"MeshA->MME0": 3}))
    with pytest.raises(BoardError, match="with their depths"):
        native().run(deeper, example("fig10").banks())


@pytest.mark.long
def test_runs_side_by_side_and_one_after_the_other() -> None:
    """Nothing is shared: four at once, some of which stop in a deadlock."""
    good = example("gemm768")
    bad = Example(dataclasses.replace(good.program, preloaded={}), good.given)
    wanted = good.banks()
    native().run(good.program, wanted)
    found: dict[int, str] = {}
    banks = [good.banks() for _ in range(4)]

    def run(i: int) -> None:
        e = bad if i % 2 else good
        found[i] = outcome(lambda: native().run(e.program, banks[i]))

    for _ in range(3):
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert [found[i].partition(":")[0] for i in range(4)] == ["", "DeadlockError", "", "DeadlockError"]
        check_same(wanted, banks[0])


def test_a_report_names_source_lines() -> None:
    e = example("fig10")
    p = dataclasses.replace(e.program, preloaded={})
    with pytest.raises(DeadlockError, match=r"MeshA .*\(fig10.rsn:\d+\) +waits to put MeshA->MME0 \(2/2 full") as error:
        native().run(p, e.banks())
    assert {w.unit for w in error.value.report.waits} >= {"MeshA", "MeshB", "MemC0"}
