"""The rules of the checker: what each says, and who says so. docs/hls-rules.md is the same table as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .debug import CppLine


@dataclass(frozen=True)
class HlsRule:
    """A rule of the checker. text: what must hold. source: a document and its section, or a message of a published
    log."""

    text: str
    source: str


@dataclass(frozen=True)
class HlsFinding:
    """A place in the sources that breaks a rule. line: the place. rule: a key of `RULES`. text: what is wrong there."""

    line: CppLine
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.line}: {self.rule}: {self.text} ({RULES[self.rule].source})"


HlsFindings = Iterator[HlsFinding]

RULES: Mapping[str, HlsRule] = {
    # loops
    "interval": HlsRule(
        "A pipelined loop states an initiation interval that its recurrences allow.",
        'UG1399, Loop Pipelining; log HLS 200-880, "unable to enforce a carried dependence constraint"',
    ),
    "ports": HlsRule(
        "A bank is accessed in an iteration at most as often as its ports allow in the interval.",
        'UG1399, pragma HLS bind_storage, and Array Partitioning; log HLS 200-885, "limited memory ports"',
    ),
    "pipeline-place": HlsRule(
        "PIPELINE stands in the innermost loop: any loop inside is unrolled whole.",
        "UG1399, Function Pipelining: all loops below are unrolled",
    ),
    "unroll-bound": HlsRule(
        "A loop that is unrolled whole has a constant number of iterations.",
        'UG1399, Function Pipelining: variable bounds prevent it; log XFORM 203-503, "variable loop bound"',
    ),
    "latency": HlsRule(
        "An iteration that states one latency takes as many cycles, to a tenth of them or one.",
        "UG1399, pragma HLS latency; the contract of a variant of a kernel, from which times are computed",
    ),
    "pipeline-call": HlsRule(
        "A pipelined loop calls no function that is neither inlined nor pipelined.",
        "UG1399, pragma HLS pipeline: functions in a pipeline must be pipelined",
    ),
    "chain": HlsRule(
        "Float comparisons of one iteration stand in a tree, not in a chain.",
        "UG1399, pragma HLS expression_balance: it balances additions and products of integers, no selections",
    ),
    "unmodelled": HlsRule(
        "A pipelined loop is not off, and its interval is one of the table of cycles, or 1.",
        "the overlay's table of cycles, from which times are computed",
    ),
    "rounds": HlsRule(
        "A loop of the table of cycles takes the rounds that the table says.",
        "the overlay's table of cycles, from which times are computed",
    ),
    "trip-count": HlsRule(
        "A loop of the table of cycles has the iterations that times are computed with.",
        "the overlay's table of cycles, from which times are computed",
    ),
    "fill": HlsRule(
        "A loop of the table of cycles is no deeper than the table says.",
        "the overlay's table of cycles, from which times are computed",
    ),
    # memories
    "dependence-struct": HlsRule(
        "DEPENDENCE names an array, of a struct the member that is one.",
        "UG1399, pragma HLS dependence, and pragma HLS disaggregate: variable=struct.member",
    ),
    "dependence-lost": HlsRule(
        "DEPENDENCE names an array that its loop accesses: it cannot lift what a scalar or a register carries.",
        "UG1399, pragma HLS dependence: between accesses of an array",
    ),
    "registers": HlsRule(
        "An array that is partitioned whole has at most 1024 elements.",
        "UG1399, Array Partitioning; more make synthesis long, and are refused as ports",
    ),
    "fence": HlsRule(
        "A process that shares an array and tells so by tokens states their order by hls::fence.",
        "UG1399, HLS Fence Library",
    ),
    "static": HlsRule(
        "No variable outlives its function that two processes could share.",
        "UG1399, Canonical Body: local, non-static variables",
    ),
    # dataflow
    "processes": HlsRule(
        "At most two processes access an array; the one that writes is called first, unless the array is unsync.",
        'UG1399, Canonical Body; log HLS 200-780, "3 processes accessing it and only 2 ports", and 200-979',
    ),
    "shared-port": HlsRule(
        "A process has one port of an array that it shares, so it reads or writes once in a cycle.",
        "log HLS 200-755: one port of such an array for each process",
    ),
    "unsync": HlsRule(
        "An array between two processes says which channel it is: without STREAM type= it is a ping-pong buffer.",
        "UG1399, pragma HLS stream, and Canonical Body",
    ),
    "stream-ends": HlsRule(
        "A stream has one process that writes and one that reads.",
        "UG1399, Canonical Body: one reading and one writing process",
    ),
    "bundle": HlsRule(
        "One process reads from an m_axi bundle, and one writes to it.",
        'log HLS 200-1013, "cannot read data in multiple processes"',
    ),
    "canonical": HlsRule(
        "A region of processes says DATAFLOW, and holds declarations and calls of processes alone.",
        "UG1399, Canonical Body: no control, no expressions; log HLS 214-113",
    ),
    # streams and AXI
    "stream-rate": HlsRule(
        "A pipelined loop accesses each end of a stream, or a port, at most once in a cycle.",
        "UG1399, HLS Stream Library: a FIFO has one port at each end",
    ),
    "state-order": HlsRule(
        "Outside of pipelines, two streams of which one could block are accessed by functions of their own.",
        "UG1399, HLS Fence Library: no order between accesses of different streams",
    ),
    "outstanding": HlsRule(
        "A port allows as many outstanding requests as bursts are requested ahead, and one more.",
        "UG1399, pragma HLS interface: num_read_outstanding",
    ),
    "burst-length": HlsRule(
        "A burst is at most as long as the port's longest, 16 words where nothing is stated.",
        "UG1399, pragma HLS interface: max_read_burst_length, and Using Manual Burst",
    ),
    "request": HlsRule(
        "A port is read, or written, by bursts that are requested.",
        "UG1399, Using Manual Burst: read() and write() take words of a request",
    ),
    "response": HlsRule(
        "Each write request has its response.",
        "UG1399, Using Manual Burst: write_response() is mandatory",
    ),
    "word-width": HlsRule(
        "A word of a stream has at most 4096 bits.",
        "UG1399, Arbitrary Precision Data Types: 4096 bits without AP_INT_MAX_W; Vector Data Types: 4096 bits",
    ),
    "synthesisable": HlsRule(
        "Only functions are called whose code HLS has, and none calls itself.",
        "UG1399, Unsupported C/C++ Constructs",
    ),
    # the AI Engine
    "restrict": HlsRule(
        "A pointer of a pipelined loop of the AI Engine is __restrict, or comes from one that is.",
        "UG1079, Restrict Keyword",
    ),
    "alignment": HlsRule(
        "An array that vectors are loaded from is aligned to 32 bytes.",
        "UG1079, Vector Register Lanes, Data Alignment; AIE API, aie::load_v",
    ),
    "stack": HlsRule(
        "A control program asserts that its variables fit the stack that the graph states, and they do.",
        "UG1079, Stack and Heap Size; UG1076: stack_size",
    ),
}
"""By the id that findings print."""
