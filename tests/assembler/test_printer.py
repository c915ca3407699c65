"""The canonical text."""

from __future__ import annotations

import pytest

from rsn.assembler.parser import parse
from rsn.assembler.printed_lines import LoopNumber, label, render
from rsn.assembler.printer import group, quoted_overlay, shortest, show
from rsn.base.errors import ProgramError
from rsn.isa.overlays.xnn import XNN
from rsn.isa.packet import Header, Packet
from rsn.isa.program import Buffer, Layout, Parameter, Patch, Program

GOLDEN = """\
overlay xnn

param len[0] 1..512 = 512
param "rows of x" -4..4 = 0

buffer x ddr 768x1024 blocked input at 0 view 6x100x1000
buffer "layer 0/w" lpddr 1024x512 blocked weight at 64
buffer b lpddr 512 weight at 32832
buffer raw lpddr 8x64 linear at 40000
buffer y ddr 768x64 blocked output at 49152

MME[0..1, 3] {
  for 4 { n128 k128 a_iter=1 b_iter=4 k_iter=8 acc_a=1 acc_b=1 }
  n128 k128
  for 3 { k128; k128 prev }
}

MME2 {
  k128
}

packet DDR reuse=2 { load x[128:+128, 0:+128] -> MemA0 reuse_stride=64 }
packet DDR {
  load x[0:+256, 64:+128] -> MemA0
  store y <- MemC0
  load addr=x+7 size=2048 -> MemA1
  load -> MemA2 addr=1000000 size=8192
}
packet LPDDR {
  "layer 0/w"[0:+128, 0:+512] -> MemB0
  bias b[256:+256] -> MemB1
  raw[0:+8, 16:+32] -> MemB0
}
packet MemC[0..5] reuse=3 { recv recv_a=2 recv_b=4 k_iter=8 }
packet MemCConfig MemC0 { alone softmax_cols=clamp(len[0]-0, 0, 256) }
packet MemCConfig MemC1 { alone softmax_cols=clamp("rows of x"+300, 0, 512) scale=0.125 eps=1e-12 }
nop
last DDR
last MemC[0..5]

scale y [0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1.0 1.1 1.2 1.3 1.4 1.5 1.6 1.7 1.8 1.9 2.0 2.1 2.2 2.3 2.4 2.5 2.6 2.7
  2.8 2.9 3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9 4.0 4.1 4.2 4.3 4.4 4.5 4.6 4.7 4.8 4.9 5.0 5.1 5.2 5.3 5.4 5.5 5.6
  5.7 5.8 5.9 6.0 6.1 6.2 6.3]
"""


def test_golden_text() -> None:
    program = parse(GOLDEN, "golden.rsn")
    assert isinstance(program, Program)
    text = show(program)
    # A piece by address is printed with its flags first.
    assert text == GOLDEN.replace("load addr=x+7 size=2048 -> MemA1", "load -> MemA1 addr=x+7 size=2048")


def test_buffers_that_share_memory_are_named_in_turn() -> None:
    """h0 and h2 lie at the same address, as do h1 and h3: a store begins the next, a load reads the latest."""
    text = """\
overlay xnn

buffer h0 ddr 128x64 blocked input at 0
buffer h1 ddr 128x64 blocked at 512
buffer h2 ddr 128x64 blocked at 0
buffer h3 ddr 128x64 blocked at 512
buffer h4 ddr 128x128 blocked at 0

packet DDR { load h0 -> MemA0 }
packet DDR { store h1 <- MemC0 }
packet DDR { load h1 -> MemA0 }
packet DDR { load h0 -> MemA1 }
packet DDR { store h2 <- MemC0 }
packet DDR { load h2 -> MemA0 }
packet DDR { load h1 -> MemA1 }
packet DDR { load h4 -> MemA1 }
"""
    program = parse(text, "h.rsn")
    assert isinstance(program, Program)
    assert show(program) == text


@pytest.mark.parametrize(
    ("indices", "text"),
    [([2], "MemC2"), ([0, 1], "MemC[0..1]"), ([0, 2], "MemC[0, 2]"), ([5, 0, 1, 3, 4], "MemC[0..1, 3..5]")],
)
def test_group(indices: list[int], text: str) -> None:
    assert group([XNN.by_unit[f"MemC{i}"] for i in indices]) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("len", "len"),
        ("len[3]", "len[3]"),
        ("len[03]", '"len[03]"'),
        ("len[]", '"len[]"'),
        ("len[²]", '"len[²]"'),
        ("len[1", '"len[1"'),
        ("for[1]", '"for[1]"'),
        ("a b", '"a b"'),
        ('"\\\n', '"\\"\\\\\\n"'),
        ("", '""'),
    ],
)
def test_parameter_names(name: str, text: str) -> None:
    part, *numbers = label(name)
    assert render([part], [LoopNumber(n) for n in numbers]) == text
    program = Program(XNN, (), parameters=(Parameter(name, 0, 1, 0),))
    again = parse(show(program), "x.rsn")
    assert again.parameters == program.parameters


@pytest.mark.parametrize(("value", "text"), [(0.1, "0.1"), (1e-6, "1e-06"), (1 / 3, "0.33333334"), (-0.0, "-0.0")])
def test_shortest_float(value: float, text: str) -> None:
    assert shortest(value) == text


def test_what_cannot_be_said() -> None:
    mem_a = XNN.by_format["MemA"].mop
    packet = Packet.of(3, [mem_a()], mask=1)
    twice = Parameter("n", 0, 1, 0, (Patch(0, 0, "dim1", 0, 1), Patch(0, 0, "dim1", 0, 2)))
    with pytest.raises(ProgramError, match="dim1 is patched twice"):
        show(Program(XNN, (packet,), parameters=(twice,)))
    with pytest.raises(ProgramError, match="window=2 in its header, but 1 mOPs"):
        show(Program(XNN, (Packet(Header(opcode=3, window=2), packet.mops),)))
    with pytest.raises(ProgramError, match="skipped header with other bits"):
        show(Program(XNN, (Packet(Header(opcode=0, mask=1)),)))
    with pytest.raises(ProgramError, match="nan cannot stand in a program"):
        show(Program(XNN, (), buffers=(Buffer("x", "ddr", 0, (1,), Layout.LINEAR, scale=(float("nan"),)),)))


@pytest.mark.parametrize(
    ("name", "text"), [("xnn-2", "xnn-2"), ("_a.b", "_a.b"), ("-x", '"-x"'), ("2wide", '"2wide"'), ("a..b", '"a..b"')]
)
def test_names_of_overlays(name: str, text: str) -> None:
    """What is written without quotes is read again as a name: it has no dash in front."""
    assert quoted_overlay(name) == text
