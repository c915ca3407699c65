"""What texts mean: kernel sequences, loops, expressions, groups, pieces of buffers, parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rsn.assembler import syntax
from rsn.assembler.parser import parse, parse_file
from rsn.assembler.spelling import KEYWORDS, NAME
from rsn.base.errors import SourceError
from rsn.isa.overlays import OVERLAYS
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Buffer, KernelPatch, Layout, Parameter, Patch, Program, Role, SourceLine, UnpackedProgram


def kernels(text: str) -> UnpackedProgram:
    made = parse(text, "k.rsn")
    assert isinstance(made, UnpackedProgram)
    return made


def program(text: str) -> Program:
    made = parse(text, "p.rsn")
    assert isinstance(made, Program)
    return made


def test_kernel_sequences() -> None:
    made = kernels("""
overlay xnn     # comments end lines
const K = 8
buffer x ddr 128x1024 blocked input
buffer y ddr 128x512 output

MemA0 {
  load dim1=128 dim2=128
  for K-1 { load send dim1=128 dim2=128 acc_a=1 acc_b=1 }
  send acc_a=1 acc_b=1
}
DDR {
  for n in 0..2 {
    for k in 0..K { load x[0:128, k*128:+128] -> MemA0 }
    store y[0:128, n*128:+128] <- MemC0
  }
}
MME[0..1] { a_iter=1 b_iter=2; for 2 { k128; n128 } }
DDR { load }    # sections of a unit are appended
""")
    first, both, last = made.sequences["MemA0"][0], made.sequences["MemA0"][1], made.sequences["MemA0"][-1]
    assert first == f.MemA(load=1, dim1=128, dim2=128)
    assert both == f.MemA(load=1, send=1, dim1=128, dim2=128, acc_a=1, acc_b=1)
    assert made.sequences["MemA0"] == (first, *[both] * 7, last)
    assert len(made.sequences["DDR"]) == 19
    assert made.sequences["DDR"][1] == f.Ddr(addr=1024, size=16384, load=1, to_a0=1)
    assert made.sequences["DDR"][17] == f.Ddr(addr=8192 + 1024, size=16384, store=1, from_c0=1)
    assert made.sequences["DDR"][18] == f.Ddr(load=1)
    ops = (f.Mme(a_iter=1, b_iter=2), *[f.Mme(k128=1), f.Mme(n128=1)] * 2)
    assert made.preloaded == {"MME0": ops, "MME1": ops}
    assert made.buffers == (
        Buffer("x", "ddr", 0, (128, 1024), Layout.BLOCKED, Role.INPUT),
        Buffer("y", "ddr", 8192, (128, 512), Layout.BLOCKED, Role.OUTPUT),
    )


def test_places_are_the_lines_of_the_text() -> None:
    made = kernels("overlay xnn\nMemA[0, 2] {\n  load\n  for 2 {\n    send\n  }\n}\nMME0 {\n  k128\n}")
    lines = tuple(SourceLine("k.rsn", n) for n in (3, 5, 5))
    assert made.places == {"MemA0": lines, "MemA2": lines}
    assert made.preloaded_places == {"MME0": (SourceLine("k.rsn", 9),)}
    packets = program("overlay xnn\nfor 2 {\npacket MemA0 {\nload\n} }\nnop\n\nlast DDR")
    assert packets.places == tuple(SourceLine("p.rsn", n) for n in (3, 3, 6, 8))


def test_configuration_travels_with_the_kernels_of_its_unit() -> None:
    made = kernels("""
overlay xnn
param len[0] 1..512 = 300
MemC[1, 3] { recv; MemCConfig alone softmax_cols=clamp(len[0] - 256, 0, 256); store }
""")
    assert made.sequences["MemC1"] == (f.MemC(recv=1), f.MemCConfig(alone=1, softmax_cols=44), f.MemC(store=1))
    assert made.parameters == (Parameter("len[0]", 1, 512, 300),)
    assert made.patches == {
        "len[0]": (KernelPatch("MemC1", 1, "softmax_cols", 256, 256), KernelPatch("MemC3", 1, "softmax_cols", 256, 256))
    }


def test_parameters_of_packets() -> None:
    made = program("""
overlay xnn
param n 0..9 = 3
param "rows of x" -4..4 = -1
packet MemA0 { load; send dim1=clamp(n, 0, 5) dim2=clamp("rows of x" + 8, 0, 100) }
""")
    assert made.parameters == (
        Parameter("n", 0, 9, 3, (Patch(0, 1, "dim1", 0, 5),)),
        Parameter("rows of x", -4, 4, -1, (Patch(0, 1, "dim2", -8, 100),)),
    )
    assert made.packets[0].mops[1] == f.MemA(send=1, dim1=3, dim2=7)
    assert made.bind({"n": 9})[4] == f.MemA(send=1, dim1=5, dim2=7).encode()[0]


def test_loops_around_packets() -> None:
    made = program("overlay xnn\nfor k in 1..3 {\n for 2 { packet MemA0 reuse=k { for j in 0..k { load dim1=j } } }\n}")
    sizes = [(p.header.reuse, [m.dim1 for m in p.mops]) for p in made.packets]  # type: ignore[attr-defined]
    assert sizes == [(1, [0]), (1, [0]), (2, [0, 1]), (2, [0, 1])]


EXPRESSIONS = [
    ("1+2*3", 7),
    ("(1+2)*3", 9),
    ("7-2-1", 4),
    ("12/2/3", 2),
    ("-3 + 4", 1),
    ("--3", 3),
    ("17%5", 2),
    ("0x1f", 31),
    ("K*(K-1)/2", 28),
    ("007", 7),
]


@pytest.mark.parametrize(("text", "value"), EXPRESSIONS)
def test_expressions(text: str, value: int) -> None:
    (mop,) = kernels(f"overlay xnn\nconst K = 8\nMemA0 {{ dim1={text} }}").sequences["MemA0"]
    assert mop == f.MemA(dim1=value)


@pytest.mark.parametrize(("text", "value"), [("1/8", 0.125), ("-2.5e-1*3", -0.75), ("2", 2.0), ("1/(2*4.0)", 0.125)])
def test_real_fields(text: str, value: float) -> None:
    if text == "1/8":
        with pytest.raises(SourceError, match="integer division must be exact"):
            kernels(f"overlay xnn\nMemC0 {{ MemCConfig scale={text} }}")
        return
    (mop,) = kernels(f"overlay xnn\nMemC0 {{ MemCConfig scale={text} }}").sequences["MemC0"]
    assert mop == f.MemCConfig(scale=value)


def test_one_bit_fields_by_name_value_or_stream() -> None:
    made = kernels("""
overlay xnn
DDR { load=1 store=0 to_a0 -> MemB2 }
LPDDR { bias -> MemB1 }
MeshA { MemA0->MME0 MemC3 -> MME5 a1_2 size=512 }
""")
    assert made.sequences["DDR"] == (f.Ddr(load=1, to_a0=1, to_b2=1),)
    assert made.sequences["LPDDR"] == (f.Lpddr(bias=1, to_b1=1),)
    assert made.sequences["MeshA"] == (f.MeshA(a0_0=1, c3_5=1, a1_2=1, size=512),)


def test_pieces_of_vectors_and_of_plain_matrices() -> None:
    made = kernels("""
overlay xnn
buffer b lpddr 2048 at 100
buffer m lpddr 8x64 linear at 1000
LPDDR { bias b[512:+512]; b; m[0:8, 16:48]; m[2:4, 0:64]; addr=b+3 size=1 }
""")
    assert made.sequences["LPDDR"] == (
        f.Lpddr(bias=1, addr=132, size=512),
        f.Lpddr(addr=100, size=2048),
        f.Lpddr(addr=1001, size=32, chunks=8, chunk_stride=4),
        f.Lpddr(addr=1008, size=128),
        f.Lpddr(addr=103, size=1),
    )


def test_names_that_need_quotes() -> None:
    made = kernels("""
overlay xnn
buffer "layer 0/wq" ddr 128x64
buffer load ddr 128x64
buffer encoder.layer.0.x ddr 128x64
DDR { load "layer 0/wq" -> MemA0; load "load"; load[0:128, 0:64]; encoder.layer.0.x[0:128, 0:64]; addr="layer 0/wq"+1 }
""")
    assert [m.addr for m in made.sequences["DDR"]] == [0, 512, 512, 1024, 1]  # type: ignore[attr-defined]


def test_no_statements_at_all() -> None:
    assert program("overlay xnn").packets == ()
    assert kernels("overlay xnn\nDDR { }").sequences == {"DDR": ()}
    assert program("overlay xnn\nMME0 { }").preloaded == {}
    assert program("\n\n# nothing\n;overlay xnn;;\r\n# x").packets == ()


def test_other_overlays_need_nothing_here() -> None:
    made = kernels("""
overlay fig6
buffer x ddr 300
FU1 { x[0:100] -> FU2; for i in 0..2 { x[100+i*50:+50] -> FU3 } }
FU2 { size=100 }
FU3 { x[200:300] <- FU2; x[0:100] <- FU1 }
""")
    assert [m.addr for m in made.sequences["FU1"]] == [0, 100, 150]  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match=r"1:9: error: no overlay is called fig6\n(.|\n)*overlays are xnn"):
        parse("overlay fig6", "k.rsn", {"xnn": OVERLAYS["xnn"]})


def test_programs_of_this_repository(root: Path) -> None:
    for path in sorted((root / "programs").glob("*.rsn")):
        parse_file(path)


def test_keywords_are_those_of_the_grammar() -> None:
    """A keyword that may stand where a name may must be quoted by the printer."""
    terminals = {str(t.pattern.value) for t in syntax._parser().terminals if t.pattern.type == "str"}
    words = sorted(w for w in terminals if NAME.fullmatch(w))
    for word in words:
        quote = f'"{word}"' if word in KEYWORDS else word
        text = f"""overlay xnn
param {quote} 1..2 = 1
buffer {quote} ddr 128x64
scale {quote} [{" 1" * 64}]
packet DDR {{ {quote}
{quote}[0:128, 0:64] -> MemA0
load {quote}
addr={quote}+1 size=clamp({quote}-1, 0, 4) }}"""
        assert len(program(text).packets) == 1, word


def test_documentation(root: Path) -> None:
    """docs/rsn-language.md: the example's mistake is reported as shown, the other examples assemble."""
    blocks = re.findall(r"```\n(.*?)```", (root / "docs" / "rsn-language.md").read_text(encoding="utf-8"), re.DOTALL)
    example, message = blocks[1], blocks[2]
    with pytest.raises(SourceError) as caught:
        parse(example, "gemm.rsn")
    assert str(caught.value) == message.rstrip("\n")
    assert set(kernels("\n".join(example.splitlines()[:-1])).sequences) == {"DDR", "LPDDR"}
    head = "overlay xnn\nparam len[0] 1..512 = 512\nbuffer x ddr 3072x1024 blocked input\n"
    assert len(kernels(head + blocks[4]).sequences["MemA0"]) == 17
    assert len(program(head + blocks[5]).packets) == 6
