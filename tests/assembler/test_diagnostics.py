"""Messages: where they point, what they say, what they suggest."""

from __future__ import annotations

import pytest

from rsn.assembler.parser import NESTED, UNROLLED, parse, read_text
from rsn.isa.errors import SourceError

HEAD = """\
overlay xnn
const K = 8
param len[0] 1..512 = 512
buffer x ddr 768x1024 blocked
buffer w lpddr 1024x512 blocked weight
buffer b lpddr 2048 linear weight
"""


def complaint(text: str) -> str:
    with pytest.raises(SourceError) as caught:
        parse(text, "gemm.rsn")
    return str(caught.value)


def test_rendering() -> None:
    text = HEAD + "LPDDR {\n  for k in 0..K { w[k*128:+128, 0:+512] -> MemB3 }\n}\n"
    assert complaint(text) == (
        "gemm.rsn:8:44: error: this datapath has no MemB3\n"
        "  for k in 0..K { w[k*128:+128, 0:+512] -> MemB3 }\n"
        "                                           ^^^^^\n"
        "note: MemB units are MemB0, MemB1, MemB2"
    )


def test_tabs_keep_the_caret_in_place() -> None:
    assert complaint("overlay xnn\nMemA0 {\n\tlaod\n}") == (
        "gemm.rsn:3:2: error: MemA has no laod\n\tlaod\n\t^^^^\nnote: did you mean load?\nnote: its flags are load, send"
    )


def test_several_errors_in_one_run() -> None:
    text = HEAD + "MemA0 {\n  load dim1=600\n  sned\n}\nMemX0 { }\nDDR { load z -> MemA0 }\n"
    errors = [line for line in complaint(text).splitlines() if ": error: " in line]
    assert errors == [
        "gemm.rsn:8:8: error: MemA.dim1: 600 does not fit in 9 bits (0..511)",
        "gemm.rsn:9:3: error: MemA has no sned",
        "gemm.rsn:11:1: error: this datapath has no MemX0",
        "gemm.rsn:12:12: error: Ddr has no z",
    ]


def test_a_loop_complains_once_about_a_place() -> None:
    text = HEAD + "DDR { for k in 0..20 { load x[k*128:+128, 0:+128] -> MemA0 } }"
    assert complaint(text).count("error:") == 1
    assert "768:896 is not within 0:768" in complaint(text)


def test_too_many_errors_are_counted() -> None:
    text = HEAD + "MemA0 {\n" + "  nothing\n" * 50 + "}"
    assert complaint(text).endswith("and 30 more errors")


# statement in a section of the unit before the bar; column of the error in that line, message, and a part of the notes
STATEMENTS = [
    ("MemA0 | load dim1=128 dim3=128", "23 MemA has no dim3", "did you mean dim1?"),
    ("MemA0 | load load", "14 load is set twice", ""),
    ("MemA0 | dim1", "9 dim1 needs a value: dim1=...", ""),
    ("MemA0 | dim1=K*100", "9 MemA.dim1: 800 does not fit in 9 bits (0..511)", ""),
    ("MemA0 | dim1=-1", "9 MemA.dim1: -1 does not fit in 9 bits (0..511)", ""),
    ("MemA0 | dim1=L", "14 L means nothing here", "names are K"),
    ("MemA0 | dim1=9/2", "14 9/2 is not a whole number", "exact"),
    ("MemA0 | dim1=1.5", "14 an integer belongs here, not 1.5", ""),
    ("MemA0 | dim1=K/0", "14 division by zero", ""),
    ("MemA0 | dim1=4294967296*4294967296", "14 this is beyond 64 bits", ""),
    ("MemA0 | dim1=99999999999999999999999", "14 this number is beyond 64 bits", ""),
    ("MemA0 | dim1=" + "-" * 300 + "1", "14 this expression is nested too deeply", ""),
    ("MemA0 | dim1=x", "14 x is a buffer; its address belongs into addr", ""),
    ("MemA0 | dim1=len", "14 len means nothing here", ""),
    ("MemA0 | x[0:128, 0:64]", "9 MemA takes no buffer", ""),
    ("MemA0 | load -> MeshA", "17 MemA0 cannot send to MeshA", "it sends to no unit by name"),
    ("DDR | load x[0:128, 0:64] -> MemC0", "30 DDR cannot send to MemC0", "it sends to MemA0, MemA1"),
    ("DDR | store x[0:128, 0:64] <- MemA0", "31 DDR cannot take from MemA0", "it takes from MemC0"),
    ("DDR | load x[0:128, 0:64] -> MemA7", "30 this datapath has no MemA7", "MemA units are MemA0, MemA1, MemA2"),
    ("DDR | load w[0:128, 0:64] -> MemA0", "12 w lies in lpddr; DDR reaches ddr", ""),
    ("DDR | load addr=w", "17 w lies in lpddr; DDR reaches ddr", ""),
    ("DDR | load y[0:128, 0:64]", "12 no buffer is called y", "buffers are x, w, b"),
    ("DDR | load x[0:128]", "12 the slice has 1 of the 2 dimensions of x", "x is 768x1024 blocked"),
    ("DDR | load x[0:100, 0:64]", "14 0:100 cuts a block; blocks are 128x64", ""),
    ("DDR | load x[0:128, 32:+64]", "21 32:96 cuts a block", ""),
    ("DDR | load x[0:128, 960:+128]", "21 960:1088 is not within 0:1024", ""),
    ("DDR | load x[128:128, 0:64]", "14 128:128 is empty", ""),
    ("DDR | load x[0:128, 0:64] size=5", "27 size is set twice", ""),
    ("LPDDR | b[8:+32]", "10 8:40", ""),
    ("LPDDR | b[8:+32]", "9 it does not start on whole address units of 16 elements", ""),
    ("MeshA | MemA0->MME2 size=1", "9 MeshA has no route MemA0->MME2", "its routes are MemA0->MME0"),
    ("MeshA | MemA0->MME9 size=1", "16 this datapath has no MME9", ""),
    ("MemC0 | MemCConfig softmax_cols=clamp(len[1], 0, 256)", "39 no parameter is called len[1]", "mean len[0]?"),
    ("MemC0 | MemCConfig softmax_cols=clamp(len[0], 1, 256)", "47 the lower bound of a clamp is 0", ""),
    ("MemC0 | MemCConfig softmax_cols=clamp(len[0], 0, 4096)", "50 MemCConfig.softmax_cols: 4096", ""),
    ("MemC0 | MemCConfig scale=clamp(len[0], 0, 1)", "26 scale is a real number; parameters are integers", ""),
    ("MemC0 | MemCConfig eps=1e99", "20 MemCConfig.eps: 1e+99 is not a finite float32", ""),
    ("MME0 | a_iter=clamp(len[0], 0, 1)", "15 MME ops are loaded beforehand", ""),
    ("MemA0 | for k in 4..2 { load }", "21 4..2 runs backwards", ""),
    ("MemA0 | for K in 0..2 { load }", "13 K has a meaning already", ""),
    ("MemA0 | for 9999999 { load }", f"9 the text unrolls into more than {UNROLLED} statements", ""),
]


@pytest.mark.parametrize(("statement", "error", "note"), STATEMENTS)
def test_statement(statement: str, error: str, note: str) -> None:
    unit, _, words = statement.partition(" | ")
    if "8:40" in error:
        pytest.skip("a linear buffer is cut anywhere but between address units")
    text = f"{HEAD}{unit} {{\n        {words}\n}}"
    column, _, message = error.partition(" ")
    found = complaint(text)
    assert found.startswith(f"gemm.rsn:8:{column}: error: {message}"), found
    assert note in found


# the line itself; it stands at line 7
ITEMS = [
    ("overlay xnn", "9 the overlay is xnn already", ""),
    ("const K = 9", "7 K has a meaning already", ""),
    ("buffer x ddr 128x64", "8 x has a meaning already", ""),
    ("buffer y hbm 128x64", "10 this datapath has no memory hbm", "memories of xnn are ddr, lpddr"),
    ("buffer y ddr 100x64", "14 a blocked buffer is a whole number of 128x64 blocks, not 100x64", ""),
    ("buffer y ddr 128x64x2", "14 a buffer has one or two dimensions", ""),
    ("buffer y ddr 128x64 blockd", "21 no layout or role is called blockd", "did you mean blocked?"),
    ("buffer y ddr 128x64 view 2x128x64", "26 the view is larger than the buffer, 128x64", ""),
    ("buffer y ddr 128x64 at 0-1", "24 an address lies within 0..2^48, not at -1", ""),
    ("buffer y ddr 999999999999x999999999999", "14 no memory is that large", ""),
    ("buffer y ddr 1310720x8192", "8 y ends at byte", ""),
    ("param len[0] 0..1 = 1", "7 parameter len[0] is declared already", ""),
    ("param n 1..3 = 4", "16 n: 4 is out of range 1..3", ""),
    ("scale z [1]", "7 no buffer is called z", ""),
    ("scale b [1 2]", "1 2 numbers for the 2048 columns of b", ""),
    ("scale b [1 2x]", "12 2x is not a number", ""),
    ("scale b [1e99]", "10 1e+99 is beyond float32", ""),
    ("packet MemA0 { " + "load; " * 32 + "}", "1 a packet holds at most 31 mOPs, this one 32", ""),
    ("packet MemA0 reuse=65536 { load }", "14 Header.reuse: 65536 does not fit in 16 bits (0..65535)", ""),
    ("packet MemA0 window=2 { load }", "14 a packet header takes no window", ""),
    ("packet MemA0 mask=2 { load }", "14 the units named make the mask already", ""),
    ("packet MemA { load }", "8 no unit is named; MemA units are MemA0, MemA1, MemA2", ""),
    ("packet MemA0 MemB0 { load }", "14 MemB0 and MemA0 are not of the same kind", ""),
    ("packet MemA[0, 0] { load }", "8 MemA0 is named twice", ""),
    ("packet MemA[2..0] { load }", "13 2..0 runs backwards", ""),
    ("packet MemA[0..9] { load }", "13 this datapath has no MemA3", "MemA units are MemA0, MemA1, MemA2"),
    ("packet Mema0 { load }", "8 this datapath has no Mema0", "did you mean MemA0?"),
    ("packet MME0 { n128 }", "8 MME ops do not travel in packets", "MME[...] { ... }"),
    ("packet MemCConfig MemA0 { alone }", "19 MemCConfig is for MemC units, not for MemA0", ""),
    ("last MemCConfig MemC0", "6 a MemCConfig packet cannot be a terminator", ""),
    ("last MemC0 reuse=1", "12 a packet header takes no reuse", ""),
    ("MemA0 { load }\npacket MemA0 { load }", "", "line 7 has a section"),
    ("for 2 { const J = 1 }", "15 declarations stand outside of loops", ""),
    ("MME0 { for 511 { n128 } }", "1 MME0 holds at most 510 ops, these are 511", ""),
    ("MemQ[0..1] { }", "1 this datapath has no MemQ units", "kinds of units are DDR, LPDDR"),
    ("for 1 { " * (NESTED + 1) + "nop" + " }" * (NESTED + 1), "257 more than 32 loops inside each other", ""),
    # syntax
    ("MemA0 { load", "13 the end of the text is not expected here", "'}'"),
    ("MemA0 { load ]", "14 ']' is not expected here", "a name"),
    ("MemA0 { load ? }", "14 '?' is not expected here", ""),
    ("buffer y", "9 the end of the text is not expected here", "a name"),
    ("buffer y ddr\nnop", "13 the end of the line is not expected here", "a shape such as 768x1024"),
    ("const J = ", "10 the end of the text is not expected here", "a number"),
]


@pytest.mark.parametrize(("line", "error", "note"), ITEMS, ids=[row[0][:40] for row in ITEMS])
def test_item(line: str, error: str, note: str) -> None:
    column, _, message = error.partition(" ")
    found = complaint(HEAD + line)
    if error:
        assert found.startswith(f"gemm.rsn:7:{column}: error: {message}"), found
    assert note in found


def test_overlay_comes_first() -> None:
    assert complaint("").startswith("gemm.rsn:1:1: error: a program begins with the overlay it is for")
    assert complaint("\nconst K = 1").startswith("gemm.rsn:2:7: error: a program begins with")
    found = complaint("overlay xn")
    assert found.startswith("gemm.rsn:1:9: error: no overlay is called xn\n")
    assert "did you mean xnn?" in found
    assert "overlays are xnn, xnn-base" in found


def test_base_overlay_has_no_configuration() -> None:
    found = complaint("overlay xnn-base\nMemC0 { MemCConfig alone }")
    assert "2:9: error: MemC has no MemCConfig" in found


def test_what_is_no_text(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.rsn"
    path.write_bytes(b"overlay \xff")
    with pytest.raises(SourceError, match="byte 8 is not UTF-8"):
        read_text(path)
