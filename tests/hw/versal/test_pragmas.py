"""Each kind of mistake in a `#pragma HLS` line is found, with its place; the sources and generated C++ have none."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from rsn.hw.versal.check import Sources, hls_pragmas
from rsn.hw.versal.directives import DIRECTIVES, PragmaValue
from rsn.hw.versal.pragmas import check
from rsn.hw.versal.sources import sources
from rsn.streams.build import task_program
from rsn.streams.check import check as check_program
from rsn.streams.hls.emit import cpp_program
from rsn.streams.hls.native import HEADERS

CODE = """\
constexpr unsigned rounds = 4;
void step(int x) {}
void unit(hls::stream<int> &from, Port port, const Word *words, int (&table)[8]) {
    // #pragma HLS NONSENSE in a comment
    int sum = 0;
    HEAD
loop:
    for (unsigned i = 0; i < rounds; ++i) {
        BODY
        const int x = from.read();
        if (x) {
            int inner = x;
        }
    }
    /*
#pragma HLS NONSENSE in another comment
    */
}
"""


def findings(head: str = "", body: str = "", code: str = CODE, *, styles: bool = False) -> list[str]:
    return list(check({"a.cpp": code.replace("HEAD", head).replace("BODY", body)}, styles=styles))


HEADS = [
    ("PIPLINE II=1", "there is no directive PIPLINE; did you mean pipeline?"),
    ("", "there is no directive without a name"),
    ("ARRAY_PARTITION variable=tabel complete", "variable=tabel: there is no such variable here; did you mean table?"),
    ("ARRAY_PARTITION variable=inner complete", "variable=inner: there is no such variable here"),
    ("ARRAY_PARTITION variable=table", "ARRAY_PARTITION needs type= or off= (UG1399, pragma HLS array_partition)"),
    ("ARRAY_PARTITION variable=table type=cyclic", "ARRAY_PARTITION type=cyclic needs factor="),
    ("ARRAY_PARTITION complete dim=1", "ARRAY_PARTITION needs variable="),
    ("ARRAY_PARTITION variable=table complet", "ARRAY_PARTITION has no complet; did you mean complete?"),
    ("ARRAY_PARTITION variable=table complete dim=one", "dim=one: there is no one"),
    ("ARRAY_PARTITION variable=table variable=sum complete", "ARRAY_PARTITION says variable= twice"),
    ("BIND_STORAGE variable=table type=ram_2sp", "type=ram_2sp: did you mean"),
    ("BIND_STORAGE variable=table type=ram_t2p impl=lutram", "impl=lutram is not for ram_t2p; it has auto, bram"),
    (
        "BIND_OP variable=sum op=fexp impl=dsp",
        "impl=dsp is not for fexp; it has fabric, fulldsp, maxdsp, meddsp",
    ),
    ("BIND_OP variable=sum op=fexpp impl=fabric", "op=fexpp: did you mean fexp?"),
    ("DEPENDENCE variable=table type=inter", "DEPENDENCE needs dependent="),
    ("DEPENDENCE variable=table type=inter distance=4 dependent=false", "DEPENDENCE distance= means something with"),
    ("DEPENDENCE variable=table type=inter direction=RAR dependent=false", "direction=RAR: did you mean"),
    ("ALLOCATION function instances=stepp limit=1", "instances=stepp: there is no function stepp; did you mean step?"),
    ("ALLOCATION instances=step limit=1", "ALLOCATION needs type="),
    ("INTERFACE m_axi port=prot", "port=prot: the function has no such argument; did you mean port?"),
    ("INTERFACE maxi port=port", "INTERFACE has no maxi; did you mean m_axi?"),
    ("INTERFACE axis port=from max_read_burst_length=64", "INTERFACE max_read_burst_length= is for m_axi alone"),
    ("INTERFACE m_axi bundle=b", "INTERFACE needs port="),
    ("INTERFACE m_axi port=port bundel=b", "INTERFACE has no bundel=; did you mean bundle=?"),
    ("UNROLL", "UNROLL must stand in the body of a loop (UG1399, pragma HLS unroll)"),
    ("STREAM variable=from depth=", "depth=: it must be a number or a constant"),
    ("STREAM variable=from depth=round", "depth=round: there is no round; did you mean rounds?"),
]
BODIES = [
    ("INLINE off", "INLINE must stand at the head of a function"),
    ("PIPELINE II=1 stile=flp", "PIPELINE has no stile=; did you mean style=?"),
    ("PIPELINE II=1 style=flip", "style=flip: did you mean flp?"),
    ("PIPELINE II=1 style=stp", "PIPELINE style=stp in a loop without a memory port"),
    ("LOOP_TRIPCOUNT min=1", "LOOP_TRIPCOUNT needs max="),
]


@pytest.mark.parametrize(("pragma", "finding"), HEADS)
def test_a_mistake_at_the_head_of_a_function(pragma: str, finding: str) -> None:
    found = findings(f"\n#pragma HLS {pragma}\n")
    assert any(finding in text for text in found), found
    assert all(text.startswith("a.cpp:7: ") for text in found)


@pytest.mark.parametrize(("pragma", "finding"), BODIES)
def test_a_mistake_in_a_loop(pragma: str, finding: str) -> None:
    found = findings(body=f"\n#pragma HLS {pragma}\n")
    assert any(finding in text for text in found), found
    assert all(text.startswith("a.cpp:10: ") for text in found)


RIGHT = """
#pragma HLS INTERFACE mode=m_axi port=port bundle=b depth=rounds \\
    max_read_burst_length=64
#pragma HLS interface s_axilite port=return
#pragma HLS ALLOCATION function instances=step limit=1
#pragma HLS ARRAY_PARTITION variable=table type=cyclic factor=rounds/2 dim=1
#pragma HLS BIND_STORAGE variable=table type=RAM_S2P impl=uram
#pragma HLS DEPENDENCE variable=table type=inter direction=RAW distance=32 dependent=true
#pragma HLS BIND_OP variable = sum op=fexp impl=meddsp
#pragma HLS dataflow
"""


def test_what_is_right() -> None:
    loop = "\n#pragma HLS PIPELINE II=1 rewind style=flp\n#pragma HLS LOOP_TRIPCOUNT max=rounds // a remark\n"
    assert findings(RIGHT, loop, styles=True) == []
    assert findings(body="\n#pragma HLS pipeline off\n", styles=True) == []
    assert findings(body="\n#pragma HLS pipeline\n") == []


def test_styles() -> None:
    assert findings(body="\n#pragma HLS PIPELINE II=1\n", styles=True) == [
        "a.cpp:10: PIPELINE needs style=: flp, or stp in a loop that uses a memory port (hw/versal/README.md)"
    ]
    stalled, uses = "\n#pragma HLS PIPELINE II=1 style=stp\n", "sum += port.read();"
    assert "without RSN_STALLS() before the loop" in findings(body=stalled + uses)[0]
    assert findings("RSN_STALLS();", stalled + uses) == []
    assert findings("RSN_STALLS();", stalled + "sum += words[i];") == []
    assert findings("RSN_STALLS();", stalled + uses, CODE.replace("Port port", "MemoryPort &port")) == []
    assert findings("RSN_STALLS();") == ["a.cpp:6: RSN_STALLS() without a loop of style=stp behind it in this block"]


def test_a_pipeline_of_a_loop_without_braces() -> None:
    """To HLS it stands in the function."""
    pragma = "#pragma HLS PIPELINE II=1 style=flp\n"
    head, loop, body = "void f(hls::stream<int> &to) {\n", "    for (int i = 0; i < 4; ++i)", "        to << i;\n"
    assert findings(code=f"{head}{loop} {{\n{pragma}{body}    }}\n}}\n") == []
    assert findings(code=f"{head}{pragma}{loop}\n{body}}}\n") == []
    assert findings(code=f"{head}{loop}\n{pragma}{body}}}\n") == [
        "a.cpp:3: PIPELINE is behind the head of a function, and in no loop's braces: HLS would pipeline the function"
    ]


def test_outside_of_functions() -> None:
    assert findings(code="#pragma HLS INLINE\n") == [
        "a.cpp:1: INLINE must stand at the head of a function (UG1399, pragma HLS inline)"
    ]


def test_the_table_is_consistent() -> None:
    for name, directive in DIRECTIVES.items():
        assert directive.section == f"pragma HLS {name}"
        for needed in directive.required:
            assert set(needed.split("|")) <= directive.options.keys()
        if directive.free:
            assert not isinstance(directive.options[directive.free], PragmaValue)


@pytest.mark.parametrize(
    ("file", "old", "new", "finding"),
    [
        ("mem_a.cpp", "instances=mem_a_step", "instances=mem_step", "pl/mem_a.cpp:46: ALLOCATION instances=mem_step"),
        ("dma_hls.cpp", "axis port=c5", "axis port=c6", "pl/dma_hls.cpp:65: INTERFACE port=c6"),
        ("tiles.h", "II=ii::send style=flp", "II=ii::sent style=flp", "there is no sent; did you mean"),
        ("mesh_a.cpp", "style=flp", "style=stp", "in a loop without a memory port"),
        ("ddr.cpp", "RSN_STALLS();", "", "style=stp without RSN_STALLS()"),
    ],
)
def test_a_mistake_in_the_sources(file: str, old: str, new: str, finding: str) -> None:
    all_of = Sources(sources())
    text = all_of.text(f"pl/{file}")
    assert old in text
    found = list(check({f"pl/{file}": text.replace(old, new)}, [all_of.text("isa.h")]))
    assert any(finding in line for line in found), found


def test_the_sources_have_no_mistake() -> None:
    assert list(hls_pragmas(Sources(sources()))) == []


def test_generated_code_has_no_mistake(root: Path) -> None:
    """Of all listed programs that are right."""
    listed: dict[str, dict[str, Any]] = tomllib.loads((root / "tests/streams/listed.toml").read_text(encoding="utf-8"))
    texts = {}
    for name, one in listed.items():
        report = check_program(one["program"], f"{name}.py")
        if not report.code:
            texts[name] = cpp_program(task_program(report.region)).text
    assert len(texts) > 10
    kernels = (HEADERS / "kernels.h").read_text(encoding="utf-8")
    assert any("style=flp" in text for text in texts.values())
    assert list(check(texts, [kernels])) == []
    assert list(check({"kernels.h": kernels}, styles=False)) == []
