"""The logic of a process as Verilog: states, choices, registers, and what is left to DSPs and memories."""

from __future__ import annotations

import re
import shutil

import pytest

from rsn.hw.versal.hlscheck.design import COMPILER, HlsDesign
from rsn.hw.versal.netlist import verilog

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")
HEAD = """#include <cstdint>
#include <hls_stream.h>
using Stream = hls::stream<int32_t>;
extern "C" void top(Stream &a, Stream &b, Stream &c) {
"""
LOOP = "for (int i = 0; i < 100; ++i) {\n#pragma HLS PIPELINE II=1\n"


def logic(body: str) -> str:
    design = HlsDesign({"k.cpp": f"{HEAD}{body}}}\n"}, ["k.cpp"], "top")
    return verilog(design, design.module.functions["top"])


def signs(text: str, sign: str) -> int:
    return text.count(f" {sign} ")


@pytest.mark.parametrize(("body", "states"), [("c << a.read();", 2), ("c << a.read() + b.read();", 3)])
def test_outside_of_loops_each_access_is_a_state(body: str, states: int) -> None:
    assert len(re.findall(r"reg \w+; always @\(posedge clk\) if \(reset\)", logic(body))) == states


def test_a_quotient_is_kept_for_later_states() -> None:
    """It is an input, as its divider is counted by itself."""
    text = logic(f"const int32_t x = a.read() / b.read(); {LOOP} c << (a.read() ^ x); }}")
    (kept,) = set(re.findall(r"n\d+_kept", text))
    assert re.search(rf"reg .*\b{kept}\b", text)


def test_a_loop_is_one_state_with_a_choice_for_each_branch() -> None:
    """Of both values one is chosen, and no state is added."""
    plain = logic(LOOP + "c << a.read(); }")
    branch = logic(LOOP + "int32_t x = a.read(); if (x & 1) x ^= b.read(); c << x; }")
    assert plain.count("if (reset)") == branch.count("if (reset)")
    assert plain.count("?") == 0 < branch.count("?")


@pytest.mark.parametrize(
    ("term", "sums"),
    [
        ("x * y", 0),
        ("x * y + 5", 0),
        ("(x - z) * y", 0),
        ("(x - z) * y + x", 0),
        ("x + 5", 1),
        ("x * y + (x * y >> 3)", 1),
    ],
)
def test_sums_beside_a_product_are_made_by_its_dsp(term: str, sums: int) -> None:
    """In front of it and behind it, if nothing else reads what is between. The counter of the loop is one sum more."""
    text = logic(LOOP + f"int64_t x = a.read() >> 12, y = b.read() >> 12, z = a.read() >> 12; c << int32_t({term}); }}")
    assert signs(text, "+") + signs(text, "-") == 1 + sums
    assert signs(text, "*") == 0


def test_a_product_with_a_small_number_is_logic() -> None:
    text = logic(LOOP + "c << int32_t(int64_t{a.read()} * (b.read() >> 26)); }")
    assert signs(text, "*") == 1


def array(pragma: str) -> str:
    return f"int32_t of[8];\n{pragma}for (int i = 0; i < 8; ++i) of[i] = a.read();\n{LOOP}c << of[b.read() & 7]; }}"


def test_an_array_of_registers_is_chosen_from_and_a_memory_has_an_address() -> None:
    registers, memory = logic(array("#pragma HLS ARRAY_PARTITION variable=of complete\n")), logic(array(""))
    assert "reg [255:0]" in registers
    assert re.search(r"\[\w+ \* 32 \+: 32\]", registers)
    assert "[255:0]" not in memory
    assert not re.search(r"\[\w+ \* 32 \+: 32\]", memory)
    assert len(re.findall(r"output \[2:0\]", memory)) >= 2  # where it is written, and where it is read
