"""Messages: where they point, what they say, what they suggest."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.assembler.blocks import NESTED
from rsn.assembler.parser import parse, read_text
from rsn.base.errors import SourceError

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
    found = complaint("overlay xnn\nMemA0 {\n\tlaod\n}")
    assert found.startswith("gemm.rsn:3:2: error: MemA has no laod\n\tlaod\n\t^^^^\nnote: did you mean load?\n")


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


# A statement in a section of the unit before the bar, the mistake between « and »; what the message says, and a note.
STATEMENTS = [
    ("MemA0 | load dim1=128 «dim3»=128", "MemA has no dim3", "did you mean dim2?"),
    ("MemA0 | load «load»", "load is set twice", ""),
    ("MemA0 | «dim1»", "dim1 needs a value: dim1=...", ""),
    ("MemA0 | «dim1=K*100»", "MemA.dim1: 800 does not fit in 9 bits (0..511)", ""),
    ("MemA0 | «dim1=-1»", "MemA.dim1: -1 does not fit in 9 bits (0..511)", ""),
    ("MemA0 | dim1=«L»", "L is not defined here", "names are K"),
    ("MemA0 | dim1=«9/2»", "9/2 is not a whole number", "exact"),
    ("MemA0 | dim1=«1.5»", "this must be an integer, not 1.5", ""),
    ("MemA0 | dim1=«K/0»", "division by zero", ""),
    ("MemA0 | dim1=«4294967296*4294967296»", "this value does not fit in 64 bits", ""),
    ("MemA0 | dim1=«99999999999999999999999»", "this number does not fit in 64 bits", ""),
    ("MemA0 | dim1=«x»", "x is a buffer; only addr= takes the address of one", ""),
    ("MemA0 | dim1=«len»", "len is not defined here", ""),
    ("MemA0 | «x[0:128, 0:64]»", "MemA takes no buffer", ""),
    ("MemA0 | load -> «MeshA»", "MemA0 cannot send to MeshA", "it sends to no unit by name"),
    ("DDR | load x[0:128, 0:64] -> «MemC0»", "DDR cannot send to MemC0", "it sends to MemA0, MemA1"),
    ("DDR | store x[0:128, 0:64] <- «MemA0»", "DDR cannot take from MemA0", "it takes from MemC0"),
    ("DDR | load x[0:128, 0:64] -> «MemA7»", "this datapath has no MemA7", "MemA units are MemA0, MemA1, MemA2"),
    ("DDR | load «w»[0:128, 0:64] -> MemA0", "w lies in lpddr; DDR reaches ddr", ""),
    ("DDR | load addr=«w»", "w lies in lpddr; DDR reaches ddr", ""),
    ("DDR | load «y»[0:128, 0:64]", "no buffer is called y", "buffers are x, w, b"),
    ("DDR | load «x[0:128]»", "the slice has 1 of the 2 dimensions of x", "x is 768x1024 blocked"),
    ("DDR | load x[«0:100», 0:64]", "0:100 cuts a block; blocks are 128x64", ""),
    ("DDR | load x[0:128, «32:+64»]", "32:96 cuts a block", ""),
    ("DDR | load x[0:128, «960:+128»]", "960:1088 is not within 0:1024", ""),
    ("DDR | load x[«128:128», 0:64]", "128:128 is empty", ""),
    ("DDR | load x[0:128, 0:64] «size=5»", "size is set twice", ""),
    ("LPDDR | «b[8:+32]»", "a chunk of the slice does not start at a multiple of the address unit, 16 elements", ""),
    ("MeshA | «MemA0->MME2» size=1", "MeshA has no route MemA0->MME2", "its routes are MemA0->MME0"),
    ("MeshA | MemA0->«MME9» size=1", "this datapath has no MME9", ""),
    ("MemC0 | MemCConfig softmax_cols=clamp(«len[1]», 0, 256)", "no parameter is called len[1]", "mean len[0]?"),
    ("MemC0 | MemCConfig softmax_cols=clamp(len[0], «1», 256)", "the lower bound of a clamp must be 0", ""),
    ("MemC0 | MemCConfig softmax_cols=clamp(len[0], 0, «4096»)", "MemCConfig.softmax_cols: 4096", ""),
    ("MemC0 | MemCConfig scale=«clamp(len[0], 0, 1)»", "scale is a real number, but parameters are integers", ""),
    ("MemC0 | MemCConfig «eps=1e99»", "MemCConfig.eps: 1e+99 is not a finite float32", ""),
    ("MME0 | a_iter=«clamp(len[0], 0, 1)»", "MME ops are loaded beforehand", ""),
    ("MemA0 | for k in 4..«2» { load }", "4..2 runs backwards", ""),
    ("MemA0 | for «K» in 0..2 { load }", "K is already defined", ""),
]


def marked(text: str) -> tuple[str, int, int]:
    """The text without its marks; column and length of what stands between them."""
    before, _, rest = text.partition("«")
    wrong, _, after = rest.partition("»")
    return before + wrong + after, len(before) + 1, len(wrong)


def carets(found: str) -> tuple[int, int]:
    """Column and length of the first caret line."""
    line = found.splitlines()[2]
    return line.index("^") + 1, line.count("^")


@pytest.mark.parametrize(("statement", "message", "note"), STATEMENTS, ids=[row[0] for row in STATEMENTS])
def test_statement(statement: str, message: str, note: str) -> None:
    unit, _, rest = statement.partition(" | ")
    words, column, length = marked(rest)
    found = complaint(f"{HEAD}{unit} {{\n{words}\n}}")
    assert found.startswith(f"gemm.rsn:8:{column}: error: {message}"), found
    assert carets(found) == (column, length)
    assert note in found


# The line itself; it stands at line 7.
ITEMS = [
    ("overlay «xnn»", "the overlay is already set to xnn", ""),
    ("const «K» = 9", "K is already defined", ""),
    ("buffer «x» ddr 128x64", "x is already defined", ""),
    ("buffer y «hbm» 128x64", "this datapath has no memory hbm", "memories of xnn are ddr, lpddr"),
    ("buffer y ddr «100x64»", "a blocked buffer is a whole number of 128x64 blocks, not 100x64", ""),
    ("buffer y ddr «128x64x2»", "a buffer has one or two dimensions", ""),
    ("buffer y ddr 128x64 «blockd»", "no layout or role is called blockd", "did you mean blocked?"),
    ("buffer y ddr 128x64 view «2x128x64»", "the view does not fit in the buffer, 128x64", ""),
    ("buffer y ddr 256x64 view «3x128x64» rows 128, 100", "the view with rows 128, 100 does not fit in the buffer", ""),
    ("buffer y ddr 256x64 view «2x200x64» rows 128, 129", "the view with rows 128, 129 does not fit in the buffer", ""),
    ("buffer y ddr «128x64» rows 128", "the view with rows 128 does not fit in the buffer, 128x64", ""),
    ("buffer y ddr 128x64 at «0-1»", "address -1 is out of range 0..2^48-1", ""),
    ("buffer y ddr «999999999999x999999999999»", "this shape has 2^48 or more elements", ""),
    ("buffer «y» ddr 1310720x8192", "y ends at byte", ""),
    ("param «len[0]» 0..1 = 1", "parameter len[0] is already declared", ""),
    ("param n 1..3 = «4»", "n: the default 4 is out of range 1..3", ""),
    ("scale «z» [1]", "no buffer is called z", ""),
    ("«scale b [1 2]»", "2 numbers for the 2048 columns of b", ""),
    ("scale b [1 «2x»]", "2x is not a number", ""),
    ("scale b [«1e99»]", "1e+99 is out of range of float32", ""),
    ("segment s outputs b, «z»", "no buffer is called z", "buffers are x"),
    ('segment s kind "a" «kind» "b"', "segment s already has its kind", ""),
    ("segment s kind «a»", "'a' is not expected here", ""),
    ("segment s outputs«»", "the end of the text is not expected here", "a name"),
    ("for 2 { segment «s» }", "segment s is already declared", ""),
    ("packet MemA0 «reuse=65536» { load }", "Header.reuse: 65536 does not fit in 16 bits (0..65535)", ""),
    ("packet MemA0 «window»=2 { load }", "a packet header takes no window", ""),
    ("packet MemA0 «mask=2» { load }", "the mask already follows from the units named", ""),
    ("packet «MemA» { load }", "the packet names no unit; MemA units are MemA0, MemA1, MemA2", ""),
    ("packet MemA0 «MemB0» { load }", "MemB0 is not a MemA unit; all units of a group have one kind", ""),
    ("packet «MemA[0, 0]» { load }", "MemA0 is named twice", ""),
    ("packet MemA[«2..0»] { load }", "2..0 runs backwards", ""),
    ("packet MemA[«0..9»] { load }", "this datapath has no MemA3", "MemA units are MemA0, MemA1, MemA2"),
    ("packet «Mema0» { load }", "this datapath has no Mema0", "did you mean MemC0?"),
    ("packet «MME0» { n128 }", "MME ops are loaded beforehand, not sent in packets", "MME[...] { ... }"),
    ("packet MemCConfig «MemA0» { alone }", "MemCConfig is for MemC units, not for MemA0", ""),
    ("last «MemCConfig» MemC0", "a MemCConfig packet cannot be a terminator", ""),
    ("last MemC0 «reuse»=1", "a packet header takes no reuse", ""),
    ("for 2 { const «J» = 1 }", "constants, blocks and includes cannot stand in a loop", ""),
    ("for 2 { buffer «y» ddr 128x64 }", "y is already defined", ""),
    ("param n 0..«99999999999999999999» = 1", "this number does not fit in 64 bits", ""),
    ("«MME0» { for 511 { n128 } }", "MME0 holds at most 510 ops, not 511", ""),
    ("«MemQ»[0..1] { }", "this datapath has no MemQ units", "kinds of units are DDR, LPDDR"),
    ("MemA0 { load«»", "the end of the text is not expected here", "'}'"),
    ("MemA0 { load «]»", "']' is not expected here", "a name"),
    ("MemA0 { load «?» }", "'?' is not expected here", ""),
    ("buffer y«»", "the end of the text is not expected here", "a name"),
    ("buffer y ddr«\n»nop", "the end of the line is not expected here", "a shape such as 768x1024"),
    ("const J = «»", "the end of the text is not expected here", "a number"),
]


@pytest.mark.parametrize(("line", "message", "note"), ITEMS, ids=[row[0] for row in ITEMS])
def test_item(line: str, message: str, note: str) -> None:
    text, column, length = marked(line)
    found = complaint(HEAD + text)
    assert found.startswith(f"gemm.rsn:7:{column}: error: {message}"), found
    assert carets(found) == (column, max(1, length))
    assert note in found


def test_window_has_an_end() -> None:
    found = complaint("overlay xnn\npacket MemA0 { for 32 { load } }")
    assert found.startswith("gemm.rsn:2:1: error: a packet holds at most 31 mOPs, not 32\n")


def test_sections_and_packets_do_not_mix() -> None:
    found = complaint("overlay xnn\nMemA0 { load }\npacket MemA0 { load }")
    assert found.startswith("gemm.rsn:3:1: error: a text has either sections or packets, not both\n")
    assert "note: line 2 has a section\n" in found


def test_nothing_is_nested_without_end() -> None:
    found = complaint("overlay xnn\n" + "for 1 { " * (NESTED + 1) + "nop" + " }" * (NESTED + 1))
    assert f"more than {NESTED} loops and calls inside each other" in found
    found = complaint("overlay xnn\nMemA0 { dim1=" + "-" * 300 + "1 }")
    assert "this expression is nested too deeply" in found
    found = complaint("overlay xnn\nMemA0 { dim1=" + "(" * 10000 + "1" + ")" * 9999 + " }")
    assert "is not expected here" in found


def test_what_would_be_too_long_is_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*given: object) -> None:
        raise AssertionError("a statement is read")

    monkeypatch.setattr("rsn.assembler.statements.Statements.read", read)
    doubling = "\n".join(f"block b{n}() {{ b{n + 1}(); b{n + 1}() }}" for n in range(25))
    for text in (
        "MemA0 { for 99999999999 { load } }",
        "MemA0 { for 2000 { for k in 5..1000 { load } } }",
        f"{doubling}\nblock b25() {{ load }}\nMemA0 {{ b0() }}",
        "block b() { for 600000 { load } }\nMemA0 { b(); b() }",
    ):
        assert "the text unrolls into more than 1048576 statements" in complaint(f"overlay xnn\n{text}")


def test_nothing_is_unrolled_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsn.assembler.blocks.UNROLLED", 1000)
    for body in ("load", "", "for 1000 { }"):
        found = complaint(f"overlay xnn\nMemA0 {{ for 4000000000 {{ {body} }} }}")
        assert "the text unrolls into more than 1000 statements" in found
    assert "more than 1000 statements" in complaint("overlay xnn\nfor 4000000000 { nop }")


SOUP = """
overlay xnn const param buffer x y ddr lpddr 128x64 blocked input at view scale shift [ ] { } ( ) , : + - * / % ; = ..
packet last nop for in k MemA0 MemC MemCConfig MME0 DDR load store -> <- clamp len 0 1 2 64 128 0x40 1.5 size addr dim1
reuse mask "x" addr=x+1 dim1= x[0:128,0:+64] [1,2] MemC[0..5]
"""
WORDS = st.sampled_from([*SOUP.split(), "\n", "# c\n", "packet MemA0 {", "for 3 {", "DDR {"])


@settings(max_examples=300)
@given(st.lists(WORDS, max_size=40), st.sampled_from([" ", ""]))
def test_any_text_is_a_program_or_a_source_error(words: list[str], between: str) -> None:
    head = "overlay xnn\nbuffer x ddr 128x64\nparam len 0..9 = 1\n"
    with contextlib.suppress(SourceError):
        parse(head + between.join(words), "soup.rsn")


def test_overlay_comes_first() -> None:
    assert complaint("").startswith("gemm.rsn:1:1: error: a program begins with its overlay: overlay NAME")
    for line in ("const K = 1", "packet MemA0 { }", "DDR { }", "buffer y ddr 1", "nop", "for 1 { }"):
        assert complaint("\n" + line).startswith("gemm.rsn:2:"), line
    found = complaint("overlay xn")
    assert found.startswith("gemm.rsn:1:9: error: no overlay is called xn\n")
    assert "did you mean xnn?" in found
    assert "overlays are xnn, xnn-base" in found


def test_base_overlay_has_no_configuration() -> None:
    found = complaint("overlay xnn-base\nMemC0 { MemCConfig alone }")
    assert "2:9: error: MemC has no MemCConfig" in found


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.rsn"
    path.write_bytes(b"overlay \xff")
    with pytest.raises(SourceError, match="byte 8 is not UTF-8"):
        read_text(path)
