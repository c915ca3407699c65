"""Loops and blocks of the disassembler: what becomes one, what stays, and how long it may take."""

from __future__ import annotations

import random
import time

import pytest

from rsn.assembler.parser import parse
from rsn.assembler.printed_lines import NUMBER, TextRow, render_nodes
from rsn.assembler.printer import show
from rsn.assembler.rolling import roll_loops
from rsn.isa.overlays.xnn import XNN
from rsn.isa.packet import Packet
from rsn.isa.program import Program

HEAD = """\
overlay xnn

buffer x ddr 3072x1024 blocked at 0
buffer y ddr 3072x1024 blocked at 196608
"""


def printed(body: str) -> str:
    """What `rsn dis` makes of packets, without the declarations."""
    program = parse(HEAD + body, "x.rsn")
    assert isinstance(program, Program)
    text = show(program)
    again = parse(text, "x.rsn")
    assert isinstance(again, Program)
    assert again.packets == program.packets
    return text.removeprefix(HEAD).strip("\n")


# What is printed as it stands: these are the canonical forms.
CANONICAL = [
    "packet DDR { for i in 0..3 { load x[i*256:+256, 0:+128] -> MemA[i] } }",
    "packet MeshA { for i in 0..3 { MemA[i]->MME[i*2] size=512 } }",
    "for i in 0..8 { packet DDR reuse=i+2 { load x[0:+128, i*128:+128] -> MemA0 reuse_stride=1024-i*64 } }",
    "packet MemA0 reuse=3 { load dim1=128; send dim2=64 }",
    "for 4 { packet MemA0 reuse=9 { load } }",
    "for i in 0..3 {\n  for j in 0..4 { packet DDR { load x[i*128:+128, j*64:+64] } }\n  packet MemA0 { load }\n}",
    # Two of a kind are left alone.
    "packet DDR { load x[0:+128, 0:+64] -> MemA0; store y[256:+128, 0:+64] <- MemC0 }\n"
    "packet DDR { load x[128:+128, 0:+64] -> MemA1; store y[0:+128, 0:+64] <- MemC1 }",
]


@pytest.mark.parametrize("text", CANONICAL)
def test_canonical(text: str) -> None:
    assert printed(text) == text


def test_unrolled_text_is_rolled_up() -> None:
    lines = [f"packet DDR {{ load x[{128 * i}:+128, 0:+64] -> MemA{i % 3} }}" for i in range(12)]
    assert printed("\n".join(lines)) == (
        "for i in 0..4 { for j in 0..3 { packet DDR { load x[i*384+j*128:+128, 0:+64] -> MemA[j] } } }"
    )


def test_long_stretches_become_a_loop() -> None:
    """Twelve rounds of 150 packets, in which nothing else repeats."""
    draw = random.Random(0).randrange
    rows = [(128 * draw(24), 64 * draw(15), draw(3), 2 + draw(500)) for _ in range(150)]
    packets = [
        f"packet DDR reuse={reuse + i} {{ load x[{row}:+128, {column}:+64] -> MemA{unit} reuse_stride={64 * i + 64} }}"
        for i in range(12)
        for row, column, unit, reuse in rows
    ]
    lines = printed("\n".join(packets)).splitlines()
    assert lines[0] == "for i in 0..12 {"
    assert len(lines) == 152
    assert all(line.startswith("  packet DDR reuse=i+") for line in lines[1:-1])


def test_what_recurs_becomes_a_block() -> None:
    def packet(reuse: int, row: int, buffer: str) -> str:
        loads = [f"load {buffer}[{row + 256 * i * i}:+256, {64 * i * i}:+64] -> MemA0" for i in range(3)]
        stores = [f"store y[{128 * i * i}:+128, {64 * i * i}:+64] <- MemC{i * i}" for i in range(3)]
        return f"packet DDR reuse={reuse} {{ {'; '.join(loads + stores)} }}"

    text = printed(f"{packet(2, 0, 'x')}\nlast MemA0\n{packet(3, 512, 'y')}\nlast MemB0\n{packet(4, 512, 'x')}")
    assert text.startswith("block ddr1(a, b, z) {")
    assert text.endswith("ddr1(2, 0, x)\nlast MemA0\nddr1(3, 512, y)\nlast MemB0\nddr1(4, 512, x)")


def test_irregular_programs_take_bounded_time() -> None:
    mem_a = XNN.by_format["MemA"].mop
    draw = random.Random(1).randrange
    image = tuple(Packet.of(3, [mem_a(dim1=draw(2))], mask=1 + draw(2)) for _ in range(3000))
    begin = time.process_time()
    text = show(Program(XNN, image))
    assert time.process_time() - begin < 10
    again = parse(text, "x.rsn")
    assert isinstance(again, Program)
    assert again.packets == image


def test_numbers_without_order_take_bounded_time() -> None:
    """Every two lines could be a loop of two rounds."""
    draw = random.Random(0).randrange
    begin = time.process_time()
    roll_loops([TextRow(("x ", NUMBER), (draw(1 << 20),)) for _ in range(6000)], 120)
    assert time.process_time() - begin < 10


def test_loops_in_loops_are_found_whatever_their_length() -> None:
    numbers = [i + 20 * j + 700 * k + 9 * m for m in range(3) for k in range(11) for j in range(9) for i in range(7)]
    (node,) = roll_loops([TextRow(("x ", NUMBER), (n,)) for n in numbers], 120)
    assert render_nodes([node], (), 120) == [
        "for i in 0..3 { for j in 0..11 { for k in 0..9 { for l in 0..7 { x i*9+j*700+k*20+l } } } }"
    ]


def test_numbers_beyond_64_bits_stay_as_they_are() -> None:
    numbers = [1 << 70, 1 << 70, 1 << 70, (1 << 70) + 1, -(1 << 63), (1 << 63) - 1]
    nodes = roll_loops([TextRow(("x ", NUMBER), (n,)) for n in numbers], 120)
    assert render_nodes(nodes, (), 120) == [f"for 3 {{ x {1 << 70} }}", *(f"x {n}" for n in numbers[3:])]
