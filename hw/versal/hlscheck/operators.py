"""How long HLS takes for an operator: the least that a published report of Vitis HLS for a Versal device shows.

A bound on an interval must never be too high, so of several published latencies the table has the lowest. None of these
reports is for a clock as fast as ours with as much of its period kept for routing, so real latencies are the same or
larger.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OperatorTime:
    """How long an operator takes. cycles: the least number of cycles from its operands to its result, a fraction if
    several such operators fit in one cycle. source: who published it."""

    cycles: float
    source: str


_REPORT = "synthesis report, list of submodules (SynModuleInfo), of "
_ATTENTION = _REPORT + "`kernel_mhsa` for Versal: {}"
_NORM = _REPORT + "`layernorm_top` and `softmax_top` for Versal: {}"
_CHAINED = "estimate: several levels of logic in a period of 2.8 ns (260 MHz less 27 %, UG1399, clock_uncertainty)"

OPERATORS: Mapping[str, OperatorTime] = {
    "fadd": OperatorTime(1, "one addition in each cycle: " + _ATTENTION.format("facc_..._2_primitive_dsp, LATENCY 1")),
    "fsub": OperatorTime(1, "as fadd"),
    "fmul": OperatorTime(1, _NORM.format("fmul_..._2_primitive_dsp, LATENCY 1")),
    "fmadd": OperatorTime(1, _ATTENTION.format("fmadd_..._2_primitive_dsp, LATENCY 1")),
    "fabric": OperatorTime(3, _REPORT + "`FFT_TOP` for Versal: fsub_..._4_no_dsp, LATENCY 3"),
    "fdiv": OperatorTime(10, _ATTENTION.format("fdiv_..._11_no_dsp, LATENCY 10")),
    "fsqrt": OperatorTime(14, _NORM.format("fsqrt_..._15_no_dsp, LATENCY 14")),
    "fexp": OperatorTime(8, _ATTENTION.format("fexp_..._9_med_dsp, LATENCY 8")),
    "fcmp": OperatorTime(
        0.5,
        "estimate: with the choice that it makes no more than two in a cycle; "
        + _ATTENTION.format("fcmp_..._1_no_dsp, LATENCY 0; UltraScale+ LATENCY 1"),
    ),
    "itofp": OperatorTime(2, _REPORT + "`llama_layer` for Versal: sitofp_..._3_no_dsp, LATENCY 2"),
    "fptoi": OperatorTime(1, "estimate: less than the way back"),
    "mul": OperatorTime(1, _REPORT + "`llama_layer` for Versal: mul_29ns_28ns_57_2, LATENCY 1"),
    "divide": OperatorTime(8, _REPORT + "`conv`: urem_8ns_5ns_4_12_seq, LATENCY 11; the fewest bits"),
    "carry": OperatorTime(0.15, _CHAINED),
    "carry32": OperatorTime(0.3, _CHAINED),
    "logic": OperatorTime(0.05, _CHAINED),
    "wire": OperatorTime(0, "no logic"),
    "load": OperatorTime(1, "the value comes in the cycle after its address; UG1399, pragma HLS bind_storage: latency"),
    "store": OperatorTime(
        0.5, "a load sees it from the next cycle on, and logic before it takes some of this one: `a[i] += 1` has II = 2"
    ),
    "copy": OperatorTime(1.5, "a load and a store"),
}
"""By what `operator_of` calls an instruction."""

_WIRES = frozenset(("phi", "getelementptr", "zext", "sext", "trunc", "bitcast", "freeze", "inttoptr", "ptrtoint", "br"))
_CALLS = {"expf": "fexp", "llvm.exp.f32": "fexp", "sqrtf": "fsqrt", "llvm.sqrt.f32": "fsqrt"}
_CARRIES = frozenset(("add", "sub", "icmp"))
_DIVISIONS = frozenset(("udiv", "sdiv", "urem", "srem"))


def operator_of(opcode: str, rest: str, callee: str) -> str:
    """Return the row of `OPERATORS` for an instruction; `wire` if it takes no logic. opcode: of the instruction. rest:
    the text behind the opcode. callee: name of the function that it calls, or ""."""
    if opcode == "call":
        return _CALLS.get(callee, "logic" if callee.startswith("llvm.") else "wire")
    if opcode in _WIRES:
        return "wire"
    if opcode in _CARRIES:
        bits = re.search(r"\bi(\d+)\b", rest)
        return "carry32" if bits and int(bits[1]) > 16 else "carry"
    if opcode in _DIVISIONS:
        return "divide"
    if opcode == "mul":
        return "mul" if not re.search(r", -?\d+$", rest) else "carry32"
    return {"sitofp": "itofp", "uitofp": "itofp", "fptosi": "fptoi", "fptoui": "fptoi", "frem": "fdiv"}.get(
        opcode, opcode if opcode in OPERATORS else "logic"
    )
