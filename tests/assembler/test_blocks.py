"""Parameterised blocks, names with expressions in them, units by expression."""

from __future__ import annotations

import pytest

from rsn.assembler.parser import parse
from rsn.base.errors import SourceError
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Patch, Program, SourceLine, UnpackedProgram

HEAD = """\
overlay xnn
const K = 8
buffer x ddr 768x1024 blocked
buffer w lpddr 1024x512 blocked weight
"""


def kernels(text: str) -> UnpackedProgram:
    made = parse(HEAD + text, "k.rsn")
    assert isinstance(made, UnpackedProgram)
    return made


def program(text: str) -> Program:
    made = parse(HEAD + text, "k.rsn")
    assert isinstance(made, Program)
    return made


def complaint(text: str) -> str:
    with pytest.raises(SourceError) as caught:
        parse(HEAD + text, "k.rsn")
    return str(caught.value)


def test_statements() -> None:
    made = kernels("""
block steps(n, rows) {
  load dim1=rows dim2=128
  for n-1 { load send dim1=rows dim2=128 }
  send
}
MemA0 { steps(3, 256) }
MemA1 { for i in 1..3 { steps(i, i*K*16) } }
""")
    load, both, send = f.MemA(load=1, dim1=256, dim2=128), f.MemA(load=1, send=1, dim1=256, dim2=128), f.MemA(send=1)
    assert made.sequences["MemA0"] == (load, both, both, send)
    assert made.sequences["MemA1"] == (load.replace(dim1=128), send, load, both, send)


def test_units_and_buffers_are_arguments() -> None:
    made = kernels("""
block tile(from, k, u) { load from[0:128, k*128:+128] -> u }
block whole(from, u) { load from -> u; load addr=from+1 size=16 -> u }
block routes(a, m, n) { MemA0->m a->n size=1 }
block all(units) { units { recv } }
DDR { for m in 0..2 { tile(x, m+1, MemA[m]) }; whole("x", MemB2) }
MeshA { routes(MemA[1], MME0, MME[2]) }
all(MemC[0..1, 4])
all(MemC2)
""")
    assert made.sequences["DDR"] == (
        f.Ddr(addr=1024, size=16384, load=1, to_a0=1),
        f.Ddr(addr=2048, size=16384, load=1, to_a1=1),
        f.Ddr(addr=0, size=768 * 1024, load=1, to_b2=1),
        f.Ddr(addr=1, size=16, load=1, to_b2=1),
    )
    assert made.sequences["MeshA"] == (f.MeshA(a0_0=1, a1_2=1, size=1),)
    assert [u for u in made.sequences if u.startswith("MemC")] == ["MemC0", "MemC1", "MemC4", "MemC2"]


def test_packets() -> None:
    made = program("""
param len[2] 0..9 = 5
pair(2, MemA[0..1])
block pair(n, u) {
  packet u reuse=n { load dim1=n; inner(n) }
  for i in 0..2 { nop; last u }
}
block inner(q) { send dim1=clamp(len[q]-q, 0, 7) }
""")
    assert [(p.header.opcode, p.header.mask, p.header.reuse) for p in made.packets] == [
        (3, 3, 2),
        *[(0, 0, 0), (3, 3, 0)] * 2,
    ]
    assert made.packets[0].mops == (f.MemA(load=1, dim1=2), f.MemA(send=1, dim1=3))
    assert made.parameters[0].patches == (Patch(0, 1, "dim1", 2, 7),)
    assert made.places[:2] == (SourceLine("k.rsn", 9), SourceLine("k.rsn", 10))


def test_parameters_are_local() -> None:
    """They hide names of the text, and the caller's variables do not exist."""
    made = kernels("""
block outer(K, x) { for i in 0..2 { load dim1=K+i; inner(x) } }
block inner(i) { send dim1=i }
MemA0 { for i in 5..6 { outer(i, K) } }
""")
    assert [m.dim1 for m in made.sequences["MemA0"]] == [5, 8, 6, 8]  # type: ignore[attr-defined]
    found = complaint("block b() { load dim1=i }\nMemA0 { for i in 0..2 { b() } }")
    assert found.startswith("k.rsn:5:23: error: i is not defined here\n")


def test_names_of_buffers_with_expressions() -> None:
    made = kernels("""
for l in 0..3 {
  buffer "l{l}/w{2*l+1}" lpddr 128x128 weight
  param len[l] 0..9 = l
}
LPDDR { for l in 0..3 { "l{l}/w{2*l+1}" -> MemB0; "l{l}/w{l*2+1}"[0:128, 0:64] -> MemB1 } }
""")
    assert [b.name for b in made.buffers] == ["x", "w", "l0/w1", "l1/w3", "l2/w5"]
    assert [p.name for p in made.parameters] == ["len[0]", "len[1]", "len[2]"]
    assert [m.addr for m in made.sequences["LPDDR"]][::2] == [b.offset for b in made.buffers[2:]]  # type: ignore[attr-defined]


def test_packed_vectors() -> None:
    made = kernels('buffer y ddr 3\nfor i in 0..1 { scale y f32"AACA\n PwAAgL8AAAA/" }\nDDR { }')
    assert made.buffers[2].scale == (1.0, -1.0, 0.5)


# What stands behind the head (line 5), the mistake between « and »; the message and notes.
MISTAKES = [
    ("block b(n) { load «dim1=n*100» }\nMemA0 { b(9) }", "5:19: error: MemA.dim1: 900", "called from k.rsn:6:9"),
    (
        "block b(n) { c(n) }\nblock c(n) { load dim1=«n/n» }\nMemA0 { b(0) }",
        "6:24: error: division by zero",
        "called from k.rsn:5:14\nnote: called from k.rsn:7:9",
    ),
    ("block b(n) { load }\nMemA0 { «b(1, 2)» }", "6:9: error: block b takes 1 argument (n), not 2", ""),
    ("block b(m, n) { load }\nMemA0 { «b()» }", "6:9: error: block b takes 2 arguments (m, n), not 0", ""),
    ("block b() { load }\nMemA0 { «b(1)» }", "6:9: error: block b takes 0 arguments, not 1", ""),
    ("block stream() { load }\nMemA0 { «strem»() }", "6:9: error: no block is called strem", "did you mean stream?"),
    ("MemA0 { «b»() }", "5:9: error: no block is called b", "no block is declared"),
    ("block b() { «b»() }\nMemA0 { b() }", "5:13: error: block b calls itself", "the calls are b -> b"),
    ("block b() { c() }\nblock c() { «b»() }\nMemA0 { c() }", "5:13: error: block c calls itself", "c -> b -> c"),
    ("block b() { }\nblock «b»() { }", "6:7: error: block b is already declared", ""),
    ("block b(n, «n») { }", "5:12: error: parameter n is named twice", ""),
    ("block b(«MemA0») { }", "5:9: error: parameter MemA0 has the name of a unit", ""),
    ("block b() { packet «MemQ0» { } }\nb()", "5:20: error: this datapath has no MemQ0", "called from k.rsn:6:1"),
    ("block b() { «load» }\nb()", "5:13: error: a statement must stand inside a section or a packet", "from k.rsn:6:1"),
    ("block b() { «DDR» { } }\nMemA0 { b() }", "5:13: error: a section cannot stand inside a section", "k.rsn:6:9"),
    ("block b() { «last» DDR }\nMemA0 { b() }", "5:13: error: a packet cannot stand inside a section", "k.rsn:6:9"),
    ("block b(u) { load dim1=«u» }\nMemA0 { b(MemA1) }", "5:24: error: u stands for MemA1, not for a number", ""),
    ("block b(u) { load x -> «u» }\nDDR { b(3) }", "5:24: error: u is not a unit here", ""),
    (
        "block b(u) { load x -> «u» }\nDDR { b(MemA[0..1]) }",
        "5:24: error: u stands for 2 units; an arrow takes one",
        "",
    ),
    ("block b(u) { load «u»[0:128, 0:64] }\nDDR { b(3) }", "5:19: error: u is not a buffer here", ""),
    ("for 2 { «block» b() { } }", "5:9: error: constants, blocks and includes cannot stand in a loop", ""),
    ("DDR { load x[«0», 0:64] }", "5:14: error: write a range of a buffer as start:end or start:+extent", ""),
    ("DDR { load x -> MemA[«7»] }", "5:22: error: this datapath has no MemA7", "MemA units are MemA0"),
    ("MeshA { «MemA[0..1]»->MME0 }", "5:9: error: an arrow takes one unit", ""),
    ("block b() { «load=1» { } }\nb()", "5:13: error: a section begins with the names of its units", ""),
    ("load«=»1 { }", "5:5: error: '=' is not expected here", ""),
    ('LPDDR { "w«{»" }', "5:11: error: this brace is not closed", "u007b"),
    ('LPDDR { "w{«1+»}" }', "5:12: error: the text between braces in a name must be an expression", ""),
    ('LPDDR { "w{«i»}" }', "5:12: error: i is not defined here", "names are K"),
    ('scale x «f32"AAA"»', "5:9: error: the text in quotes is not base64", ""),
    ('scale x «f32"AAAA"»', "5:9: error: 3 bytes are not a whole number of float32", ""),
    ('scale x «f32"AADAfw=="»', "5:9: error: the vector contains a number that is not finite", ""),
]


@pytest.mark.parametrize(("text", "message", "note"), MISTAKES, ids=[row[0][:40] for row in MISTAKES])
def test_mistakes(text: str, message: str, note: str) -> None:
    start, end = text.index("«"), text.index("»") - 1
    found = complaint(text.replace("«", "").replace("»", ""))
    assert found.startswith(f"k.rsn:{message}"), found
    line = found.splitlines()[2]
    assert line.count("^") == max(1, end - start)
    assert note in found


def test_a_block_is_reported_once_and_every_call_of_its_own() -> None:
    found = complaint("block b(n) { load dim1=n }\nMemA0 { b(600); b(601); b(1, 2); b() }")
    assert found.count("error:") == 3
    assert found.count("MemA.dim1: 600") == 1


def test_nothing_is_expanded_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsn.assembler.blocks.UNROLLED", 1000)
    doubling = "\n".join(f"block b{n}() {{ b{n + 1}(); b{n + 1}() }}" for n in range(25))
    assert "unrolls into more than 1000 statements" in complaint(f"{doubling}\nblock b25() {{ }}\nMemA0 {{ b0() }}")
    chain = "\n".join(f"block b{n}() {{ b{n + 1}() }}" for n in range(200))
    assert "more than 32 loops and calls inside each other" in complaint(f"{chain}\nMemA0 {{ b0() }}")
