"""Words sent and received, counted without a run; the reference is a run of the network."""

from __future__ import annotations

from typing import Any

import pytest

from rsn.isa.expansion import ExpandedProgram
from rsn.isa.fields import Record, bits
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import InstructionFormat, Overlay
from rsn.isa.overlays import FIG6, FIG7, XNN
from rsn.isa.overlays.fig6 import Add, Read, Write
from rsn.isa.overlays.fig7 import Compute, Operand, Result
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet
from rsn.isa.program import Program, SourceLine
from rsn.machine import balance as module
from rsn.machine.balance import balance
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.executor import ProcessNetwork
from rsn.machine.steps import Par, Step, Steps
from rsn.machine.unit import Unit
from rsn.tests.machine.toys import toy_overlay


def count(overlay: Overlay, *packets: Packet, **more: Any) -> module.Balance:
    places = tuple(SourceLine("t.rsn", i + 1) for i in range(len(packets)))
    return balance(ExpandedProgram(Program(overlay, packets, places=places, **more)).uop_table)


def test_fig6() -> None:
    packets = (
        Packet.of(1, [Read(size=100, to_fu2=1), Read(size=50, to_fu3=1)]),
        Packet.of(2, [Add(size=100)]),
        Packet.of(3, [Write(size=50, from_fu1=1)]),
    )
    out = count(FIG6, *packets, Packet.of(3, [Write(size=25, from_fu2=1)], reuse=4))
    assert out.even
    assert out.totals == {"FU1->FU2": (100, 100), "FU1->FU3": (50, 50), "FU2->FU3": (100, 100)}
    (finding,) = count(FIG6, *packets, Packet.of(3, [Write(size=25, from_fu2=1)], reuse=3)).findings
    assert str(finding) == (
        "t.rsn:2: error S01: FU2->FU3: 100 words sent, 75 received; FU2 uOP 0 is the first that sends words which FU3 "
        "never receives"
    )
    assert finding.help == "FU3 must take 25 words more, or FU2 as many fewer"


def test_the_first_uop_without_a_counterpart_is_named() -> None:
    reads = Packet.of(1, [Read(size=10, to_fu3=1), Read(size=20, to_fu3=1)], reuse=3)
    (finding,) = count(FIG6, reads, Packet.of(3, [Write(size=40, from_fu1=1)])).findings
    assert "FU1 uOP 3 is the first that sends words" in finding.message  # 10, 20, 10 arrive
    (finding,) = count(FIG6, reads, Packet.of(3, [Write(size=80, from_fu1=1), Write(size=80, from_fu1=1)])).findings
    assert "FU3 uOP 1 is the first that waits for words which FU1 never sends" in finding.message
    assert finding.where == "t.rsn:2"


def test_fig7_keeps_tiles_in_arrays() -> None:
    """The state of its units cannot be compared, so every kernel is stepped."""
    one = [Operand(load=1, size=100), Operand(send=1)]
    packets = [
        Packet.of(1, one, mask=2),
        Packet.of(2, one, mask=2),
        Packet.of(4, [Compute(num=100, accum_k=10)], mask=2),
    ]
    out = count(FIG7, *packets, Packet.of(5, [Result(recv=1), Result(store=1, size=100)], mask=2))
    assert out.even
    assert out.totals["LHS1->Compute1"] == (1000, 1000)
    assert out.totals["Compute1->OUT1"] == (100, 100)


def test_registers_change_what_is_exchanged() -> None:
    soft = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1, softmax=1)
    both = Packet.of(5, [soft], mask=3, reuse=2)
    name = "MemC0->MemC1.softmax"
    assert count(XNN, both).totals[name] == (256, 256)
    assert count(XNN, Packet.of(8, [f.MemCConfig(alone=1)], mask=3), both).totals[name] == (0, 0)
    assert count(XNN, both, Packet.of(8, [f.MemCConfig(max_sub=1)], mask=3), both).totals[name] == (768, 768)


def test_units_without_op_lists_are_left_out() -> None:
    expansion = ExpandedProgram(Program(XNN, (Packet.of(6, [f.MeshA(size=512, a0_0=1)]),)))
    expansion.missing = frozenset(f"MME{i}" for i in range(6))
    out = balance(expansion.uop_table)
    assert not out.even
    assert out.undecided["MeshA->MME0"] == "the op lists of the MMEs are not known"
    assert [x.message.partition(":")[0] for x in out.findings] == ["MemA0->MeshA"]


# -- units that a user may write ------------------------------------------------------------------------------------


class Word(Record, words=1):
    n: int = bits(0, 0, 8, "words")


class Talk(Unit):
    """Every second uOP sends twice as much."""

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.turn = 0

    def kernel(self, uop: Word) -> Steps:
        def lane(n: int) -> Steps:
            for _ in range(n):
                yield Step(puts=(self.sink("B"),))

        yield Par(lane(uop.n), lane(uop.n * self.turn))
        self.turn ^= 1


class Listen(Unit):
    def kernel(self, uop: Word) -> Steps:
        for _ in range(uop.n):
            yield Step(gets=(self.source("A"),))


class Steer(Unit):
    def kernel(self, uop: Word) -> Steps:
        yield Step(puts=(self.sink("B"),), send=(uop.n,))


class Follow(Unit):
    def kernel(self, uop: Word) -> Steps:
        (n,) = yield Step(gets=(self.source("A"),))
        for _ in range(n):
            yield Step()


def pair(a: type[Unit], b: type[Unit]) -> Overlay:
    units = UnitSpec("A", "A", 0, a), UnitSpec("B", "B", 0, b)
    forms = InstructionFormat("A", 1, "A", Word, True, 1), InstructionFormat("B", 2, "B", Word, True, 1)
    return toy_overlay(units, [Stream("A", "B", 4)], name="pair", formats=forms, rates={})


def test_state_is_followed() -> None:
    packets = Packet.of(1, [Word(n=3)], reuse=100), Packet.of(2, [Word(n=45)], reuse=10)
    out = count(pair(Talk, Listen), *packets)
    assert out.totals == {"A->B": (450, 450)}
    last = Packet.terminator(1), Packet.terminator(2)
    overlay = pair(Talk, Listen)
    ProcessNetwork(overlay, InstructionPath(overlay, [*packets, *last])).run()


def test_what_depends_on_received_control_is_not_decided() -> None:
    out = count(pair(Steer, Follow), Packet.of(1, [Word(n=3)]), Packet.of(2, [Word()]))
    assert not out.even
    assert list(out.undecided) == ["A->B"]
    out = count(pair(Steer, Listen), Packet.of(1, [Word(n=3)]), Packet.of(2, [Word(n=2)]))
    assert out.undecided == {"A->B": "A->B carries control"}


def test_endless_kernels_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 20)
    out = count(pair(Talk, Listen), Packet.of(1, [Word(n=30)]))
    assert out.undecided == {"A->B": "more than 20 steps"}
