"""Every wire format against words computed by hand from the bit ranges of contract sections 1.1, 1.2, 2 and 7.

Each row is read in both directions: the text assembles to the words, and the words disassemble to the text.
"""

from __future__ import annotations

import numpy as np
import pytest

from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.isa.image import decode_image
from rsn.isa.overlays.xnn import XNN
from rsn.isa.program import Program

# text, words in hex; the first word is the header: opcode | mask << 4 | last << 10 | window << 11 | reuse << 16
WIRE = [
    # header: 3 | 0b101 << 4 | 1 << 11 | 127 << 16
    # MemA: 256 | 128 << 9 | 2 << 17 | 4 << 20 | load 1 << 23 | send 1 << 24
    (
        "packet MemA[0, 2] reuse=127 { load send dim1=256 dim2=128 acc_a=2 acc_b=4 }",
        "007f0853 01c50100",
    ),
    # w2: stride 0x400 | 2 chunks << 23 | load 1 << 28 | A1 1 << 30
    (
        "packet DDR reuse=8 { load -> MemA1 addr=4608 size=16384 reuse_stride=1024 chunks=2 chunk_stride=8192 }",
        "00080801 00001200 00004000 51000400 00002000",
    ),
    # w2: 1 chunk << 23 | store 1 << 27; w3: C5 1 << 31
    ("packet DDR { store <- MemC5 addr=65536 size=8192 }", "00010801 00010000 00002000 08800000 80000000"),
    ("packet DDR { store <- MemC0 size=8192 }", "00010801 00000000 00002000 08800000 04000000"),
    # w2: 1 << 23 | load 1 << 28 | A0 1 << 29; w3: B2 1 << 25
    ("packet DDR { load -> MemA0 -> MemB2 size=2048 }", "00010801 00000000 00000800 30800000 02000000"),
    ("packet DDR { load -> MemA2 -> MemB0 -> MemB1 }", "00010801 00000000 00000000 90800000 01800000"),
    # two mOPs in a window
    (
        "packet DDR reuse=0 {\n  load -> MemA0 size=8192\n  store <- MemC1 addr=1 size=8192 chunks=0\n}",
        "00001001 00000000 00002000 30800000 00000000 00000001 00002000 08000000 08000000",
    ),
    # w3: 2^25 - 1 | 15 << 25 | B1 1 << 30
    (
        "packet LPDDR reuse=3 { -> MemB1 addr=7 size=65536 reuse_stride=4096 chunk_stride=33554431 chunks=15 }",
        "00030802 00000007 00010000 00001000 5fffffff",
    ),
    # w3: 1 << 25 | B0 1 << 29 | bias 1 << 31
    ("packet LPDDR { bias -> MemB0 addr=100 size=512 }", "00010802 00000064 00000200 00000000 a2000000"),
    # 512 | 512 << 10 | 1 << 20 | 7 << 23 | 4 << 26 | load, send, transpose 7 << 29
    (
        "packet MemB[0..1] {\n  load send transpose dim1=512 dim2=512 acc_a=1 acc_b=7 acc_k=4\n  send acc_a=2\n}",
        "00011034 f3980200 00000000 40200000 00000000",
    ),
    # 32 | 4 << 10 | load 1 << 29; w1: bias
    ("packet MemB2 { load bias dim1=32 dim2=4 }", "00010844 20001020 00000001"),
    # 2 << 19 | 4 << 22; w1: 8 | recv 1 << 23
    ("packet MemC[0..5] reuse=3 { recv recv_a=2 recv_b=4 k_iter=8 }", "00030bf5 01100000 00800008"),
    # 256 | 512 << 9 | 1 << 19 | 2 << 22 | 3 << 25 | 4 << 28 | store 1 << 31
    # w1: 65535 | 5 << 16 | 6 << 19 | send, recv, softmax, gelu, layernorm 31 << 22
    (
        "packet MemC1 {\n  store send recv softmax gelu layernorm dim1=256 dim2=512 recv_a=1 recv_b=2 recv_k=3 send_a=4"
        " k_iter=65535 send_b=5 send_k=6\n}",
        "00010825 c68c0100 07f5ffff",
    ),
    # routes are the bits 0..9
    (
        "packet MeshA { MemA0->MME0 MemA0->MME1 MemA1->MME2 MemA1->MME3 MemA2->MME4 MemA2->MME5 size=32768 }",
        "00010806 00008000 0000003f",
    ),
    (
        "packet MeshA { MemC0->MME4 MemC1->MME4 MemC2->MME5 MemC3->MME5 size=536870911 }",
        "00010806 1fffffff 000003c0",
    ),
    ("packet MeshB { MemB0->MME0 MemB0->MME2 MemB0->MME4 size=512 }", "00010807 00000200 00000007"),
    (
        "packet MeshB reuse=32767 { MemB1->MME1 MemB1->MME3 MemB1->MME5 MemB2->MME4 MemB2->MME5 size=4294967295 }",
        "7fff0807 ffffffff 000000f8",
    ),
    # the power-on values: 1023 | 512 << 10; 0; 1.0; 1e-6. A statement needs a word.
    ("packet MemCConfig MemC[0..5] { softmax_cols=1023 }", "00010bf8 000803ff 00000000 3f800000 358637bd"),
    # 200 | 384 << 10 | 3 << 20 | rms 1 << 23 | max_sub 1 << 24 | causal 1 << 25 | alone 1 << 26; -1; 0.125; 1e-5
    (
        "packet MemCConfig MemC4 {\n  rms max_sub causal alone softmax_cols=200 norm_cols=384 activation=3 offset=-1"
        " scale=0.125 eps=1e-05\n}",
        "00010908 07b600c8 ffffffff 3e000000 3727c5ac",
    ),
    ("last DDR", "00000401"),
    ("last LPDDR", "00000402"),
    ("last MemA[0..2]", "00000473"),
    ("last MemC[0, 2..4]", "000005d5"),
    ("nop", "00000000"),
    # what other generators may write: units that do not exist, none at all, a mask where it is ignored, no mOPs
    ("last MemA mask=9", "00000493"),
    ("packet MemB mask=0 { send }", "00010804 40000000 00000000"),
    ("packet DDR mask=1 reuse=2 { }", "00020011"),
]


def words_of(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("text", "words"), WIRE, ids=[text[:40] for text, _ in WIRE])
def test_text_to_words(text: str, words: str) -> None:
    program = parse(f"overlay xnn\n{text}", "wire.rsn")
    assert isinstance(program, Program)
    body = words_of(words)
    assert [f"{w:08x}" for w in program.image] == [f"{w:08x}" for w in [len(body), 1, *body]]


@pytest.mark.parametrize(("text", "words"), WIRE, ids=[text[:40] for text, _ in WIRE])
def test_words_to_text(text: str, words: str) -> None:
    body = words_of(words)
    image = np.array([len(body), 1, *body], np.uint32)
    # Lines are broken elsewhere (test_printer).
    shown = show(Program(XNN, decode_image(image, XNN))).replace("; ", "\n")
    assert shown.split() == ["overlay", "xnn", *text.split()]


def test_image_begins_with_its_counts() -> None:
    program = parse("overlay xnn\npacket MemA0 { send }\nnop\nlast MemA0", "wire.rsn")
    assert isinstance(program, Program)
    assert program.image.tolist() == [4, 3, 0x00010813, 0x01000000, 0, 0x00000413]


# One word: a_iter | b_iter << 4 | k_iter << 8 | acc_a << 15 | acc_b << 17 | flags from bit 20 on
MME = [
    (
        "load_prev bias n128 k128 acc_k prev a_iter=2 b_iter=4 k_iter=127 acc_a=2 acc_b=4",
        0x03F97F42,
    ),
    ("n128 k128 a_iter=1 b_iter=4 k_iter=8 acc_a=1 acc_b=1", 0x00C28841),
    ("holds_weight a_iter=15", 0x0400000F),
]


@pytest.mark.parametrize(("text", "word"), MME)
def test_mme_op(text: str, word: int) -> None:
    program = parse(f"overlay xnn\nMME3 {{ {text} }}", "wire.rsn")
    assert isinstance(program, Program)
    (op,) = program.preloaded["MME3"]
    assert op.encode() == (word,)
    assert f"MME3 {{\n  {text}\n}}" in show(Program(XNN, (), {"MME3": (type(op).decode([word]),)}))


# x is 768x1024 in blocks of 128x64, so 16 blocks to a row; a block is 8192 elements or 512 address units.
SLICES = [
    # one row of blocks: contiguous
    ("x[0:128, 0:128]", "load x[0:+128, 0:+128]", "000003e8 00004000 30800000 00000000"),
    # block (1, 1) is number 17; two rows of two blocks, 16 blocks apart
    ("x[128:+256, 64:+128]", "load x[128:+256, 64:+128]", "000025e8 00004000 31000000 00002000"),
    # whole rows of blocks: contiguous, 32 blocks
    ("x[256:512, 0:1024]", "load x[256:+256, 0:+1024]", "000043e8 00040000 30800000 00000000"),
    # the whole matrix: 96 blocks
    ("x", "load x", "000003e8 000c0000 30800000 00000000"),
    ("x[0:768, 0:1024]", "load x", "000003e8 000c0000 30800000 00000000"),
    # by address: 1000 + 16
    ("addr=x+16 size=32", "load addr=x+16 size=32", "000003f8 00000020 30800000 00000000"),
    ("addr=0x3f8 size=32", "load addr=x+16 size=32", "000003f8 00000020 30800000 00000000"),
]


@pytest.mark.parametrize(("piece", "shown", "words"), SLICES)
def test_piece_of_a_buffer(piece: str, shown: str, words: str) -> None:
    head = "overlay xnn\n\nbuffer x ddr 768x1024 blocked at 1000\n\n"
    program = parse(f"{head}packet DDR {{ load {piece} -> MemA0 }}", "wire.rsn")
    assert isinstance(program, Program)
    assert [f"{w:08x}" for w in program.image[3:]] == words.split()
    flag, _, rest = shown.partition(" ")
    arrow = f"{flag} -> MemA0 {rest}" if "=" in rest else f"{shown} -> MemA0"
    assert show(program) == f"{head}packet DDR {{ {arrow} }}\n"
