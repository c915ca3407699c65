"""Comparison of two programs by the uOPs of their units."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.isa import program_diff as module
from rsn.isa.overlays import FIG6, XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Parameter, Patch, Program, Role, SourceLine
from rsn.isa.program_diff import Comparison, diff_programs, edits

X = Buffer("x", "ddr", 0, (256, 128), Layout.BLOCKED, Role.INPUT)
SEND = f.MemA(send=1, acc_a=1, acc_b=4)
LOAD = f.Ddr(size=8192, load=1, to_a0=1)


def program(*packets: Packet, first_line: int = 1, file: str = "a.rsn", **more) -> Program:
    places = tuple(SourceLine(file, first_line + i) for i in range(len(packets)))
    return Program(XNN, packets, buffers=(X,), places=places, **more)


def texts(a: Program, b: Program) -> list[str]:
    return [str(d) for d in diff_programs(a, b).differences]


def test_the_same() -> None:
    a = program(Packet.of(3, [SEND], mask=1, reuse=4))
    assert diff_programs(a, a) == Comparison((), identical=True)


def test_other_packing_is_no_difference() -> None:
    a = program(Packet.of(3, [SEND], mask=3, reuse=4), Packet.of(1, [LOAD.replace(chunks=2, chunk_stride=512)]))
    b = program(
        Packet.of(1, [LOAD, LOAD.replace(addr=512)]),
        Packet.of(3, [SEND, SEND], mask=1, reuse=2),
        Packet.of(3, [SEND], mask=2, reuse=3),
        Packet.of(3, [SEND], mask=2),
    )
    assert diff_programs(a, b) == Comparison((), identical=False)


def test_a_changed_field_is_one_line_for_a_range_of_uops_and_units() -> None:
    a = program(Packet.of(3, [f.MemA()], mask=7, reuse=12), Packet.of(3, [SEND], mask=7, reuse=8))
    b = program(
        Packet.of(3, [f.MemA()], mask=7, reuse=12), Packet.of(3, [SEND.replace(acc_b=2)], mask=7, reuse=8), file="b.rsn"
    )
    (difference,) = diff_programs(a, b).differences
    assert str(difference) == "MemA0, MemA1, MemA2 uOP 12..19: acc_b 4 -> 2 (a.rsn:2 / b.rsn:2)"
    assert difference.uops == 24
    assert not diff_programs(a, b).same


def test_scattered_changes_are_one_line() -> None:
    a = program(Packet.of(6, [f.MeshA(size=512, a0_0=1), f.MeshA(size=512, a1_2=1)], reuse=20))
    b = program(Packet.of(6, [f.MeshA(size=512, a0_0=1), f.MeshA(size=1024, a1_2=1)], reuse=20))
    (text,) = texts(a, b)
    assert text == "MeshA uOP 1, 3, 5, 7 and 16 more places (20 in all): size 512 -> 1024 (a.rsn:1 / a.rsn:1)"


def test_addresses_are_named() -> None:
    a, b = program(Packet.of(1, [LOAD])), program(Packet.of(1, [LOAD.replace(addr=512, to_a0=0, to_a1=1)]))
    (text,) = texts(a, b)
    assert text == "DDR uOP 0: x [0:128, 0:64] -> x [0:128, 64:128], peer MemA0 -> MemA1 (a.rsn:1 / a.rsn:1)"


def test_added_and_removed() -> None:
    mops = [LOAD.replace(addr=512 * i) for i in range(4)]
    a = program(Packet.of(1, mops))
    b = program(Packet.of(1, mops[:1]), Packet.of(1, mops[3:]), file="b.rsn")
    assert texts(a, b) == ["DDR uOPs 1..2 removed: x [0:128, 64:128] peer=MemA0, ... (a.rsn:1)"]
    assert texts(b, a) == ["DDR uOPs 1..2 added behind uOP 0: x [0:128, 64:128] peer=MemA0, ... (a.rsn:1)"]
    assert texts(program(), a)[0].startswith("DDR uOPs 0..3 added at the start: x [0:128, 0:64]")


def test_op_lists_buffers_and_parameters() -> None:
    op = f.Mme(a_iter=1, k_iter=8, k128=1)
    a = program(preloaded={"MME0": (op, op)})
    b = program(preloaded={"MME0": (op, op.replace(k_iter=4))})
    assert texts(a, b) == ["MME0 op 1: k_iter 8 -> 4 (MME0 op 1 / MME0 op 1)"]
    b = dataclasses.replace(a, buffers=(dataclasses.replace(X, role=Role.OUTPUT, view=(256, 100)),))
    assert texts(a, b) == ["buffer x: role input -> output, view None -> 256x100"]
    b = dataclasses.replace(a, buffers=())
    assert texts(a, b) == ["buffer only in the first: x"]
    config = Packet.of(8, [f.MemCConfig()], mask=1)
    parameter = Parameter("len", 1, 9, 9, (Patch(0, 0, "softmax_cols", 0, 9),))
    a = program(config, parameters=(parameter,))
    moved = dataclasses.replace(parameter, patches=(Patch(1, 0, "softmax_cols", 0, 9),))
    assert diff_programs(a, program(Packet.of(1, [LOAD], reuse=0), config, parameters=(moved,))).same
    assert texts(a, program(config, parameters=(dataclasses.replace(parameter, default=5),))) == [
        "parameter len: default 9 -> 5"
    ]


def test_a_buffer_that_moved() -> None:
    moved = dataclasses.replace(
        program(Packet.of(1, [LOAD.replace(addr=64)])), buffers=(dataclasses.replace(X, offset=64),)
    )
    assert texts(program(Packet.of(1, [LOAD])), moved) == [
        "DDR uOP 0: addr, as the buffer moved (a.rsn:1 / a.rsn:1)",
        "buffer x: offset 0 -> 64",
    ]


def test_overlays() -> None:
    assert texts(Program(XNN, ()), Program(FIG6, ())) == ["programs for different machines: xnn and fig6"]
    (text,) = texts(Program(XNN, ()), Program(XNN_BASE, ()))
    assert text.startswith("overlay xnn ")


def test_sequences_with_little_in_common_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHANGES", 3)
    a = program(Packet.of(1, [LOAD.replace(size=8192 * (i + 1)) for i in range(20)]))
    b = program(Packet.of(1, [LOAD.replace(size=2048 * (i + 3)) for i in range(20)]))
    assert texts(a, b) == ["DDR has little in common: 20 of 20 uOPs became 20 of 20, from uOP 0 on (a.rsn:1 / a.rsn:1)"]


SEQUENCES = st.lists(st.integers(0, 3), max_size=40)


@given(SEQUENCES, SEQUENCES)
def test_edits_lead_from_one_to_the_other(a: list[int], b: list[int]) -> None:
    script = edits(np.array(a, np.int64), np.array(b, np.int64))
    out, at = [], 0
    for i1, i2, j1, j2 in script:
        assert i1 <= i2
        assert j1 <= j2
        out += a[at:i1] + b[j1:j2]
        at = i2
    assert out + a[at:] == b
    assert (not script) == (a == b)


def test_a_long_sequence_with_few_changes() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 100_000)
    b = np.concatenate([a[:500], a[520:70_000], [9, 9], a[70_000:]])
    assert sum(e[1] - e[0] + e[3] - e[2] for e in edits(a, b)) == 22
