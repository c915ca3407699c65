"""Mistakes in the sources of the machines that an expert of HLS knows, each with the rule that must find it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceMistake:
    """A mistake. file, old, new: what is replaced there, once."""

    name: str
    file: str
    old: str
    new: str

    def text(self, texts: Mapping[str, str]) -> dict[str, str]:
        """All sources, with the mistake."""
        assert texts[self.file].count(self.old) >= 1, f"{self.file} has no longer: {self.old}"
        return {**texts, self.file: texts[self.file].replace(self.old, self.new, 1)}


@dataclass(frozen=True)
class HlsMistake(SourceMistake):
    """One that a rule finds. at: the text of the line of the finding, in `where` or, if that is "", in the same file.
    files: those that are compiled."""

    rule: str
    at: str
    files: tuple[str, ...]
    where: str = ""

    def line(self, texts: Mapping[str, str]) -> str:
        """Where the finding must be, as FILE:LINE."""
        where = self.where or self.file
        before, found, _ = texts[where].partition(self.at)
        assert found, f"{where} has no longer: {self.at}"
        return f"{where}:{before.count(chr(10)) + 1}"


@dataclass(frozen=True)
class RunMistake(SourceMistake):
    """One that something else finds. program: of the examples, in whose run it shows."""

    found_by: str
    program: str = ""


MEM_A, MEM_C, TOP = ("pl/mem_a.cpp",), ("pl/mem_c.cpp",), ("pl/dma_hls.cpp",)
SEND = "#pragma HLS PIPELINE II=ii::send style=flp"
RECEIVE = "#pragma HLS PIPELINE II=ii::receive style=flp"
PORTS, TOP_A = ("pl/dma_hls.cpp", "pl/ddr.cpp", "pl/lpddr.cpp"), ("pl/dma_hls.cpp", "pl/mem_a.cpp")

KERNEL = (
    HlsMistake(
        "PIPELINE outside of its loop",
        "pl/tiles.h",
        f"send_left_beats:\n    for (unsigned t = 0; t < beats_per_tile; ++t) {{\n{SEND}",
        f"{SEND}\nsend_left_beats:\n    for (unsigned t = 0; t < beats_per_tile; ++t) {{",
        "pipeline-place",
        SEND,
        MEM_A,
    ),
    HlsMistake(
        "DEPENDENCE removed",
        "pl/mem_c.cpp",
        "#pragma HLS DEPENDENCE variable=buffer type=inter direction=RAW distance=512 dependent=true\n",
        "",
        "interval",
        RECEIVE,
        MEM_C,
    ),
    HlsMistake(
        "cyclic factor=3 where four are read",
        "pl/softmax.h",
        "variable=top complete dim=1",
        "variable=top cyclic factor=3 dim=1",
        "ports",
        "#pragma HLS PIPELINE II=ii::softmax_max style=flp",
        MEM_C,
    ),
    HlsMistake(
        "INLINE off removed: two writes in one state",
        "pl/dispatcher.h",
        "#pragma HLS INLINE off\n    to << mop;",
        "    to << mop;",
        "state-order",
        "to << mop;",
        ("pl/dispatch.cpp",),
    ),
    HlsMistake(
        "II=8 where the table of cycles says 1", "pl/mem_c.cpp", "II=ii::receive", "II=8", "unmodelled", "II=8", MEM_C
    ),
    HlsMistake(
        "a statement in a dataflow region",
        "pl/mem_a.cpp",
        '    RSN_PROCESS("", load, word, norm0',
        '    word &= 0xFFFFu;\n    RSN_PROCESS("", load, word, norm0',
        "canonical",
        "word &= 0xFFFFu;",
        MEM_A,
    ),
    HlsMistake(
        "one outstanding read for bursts four ahead",
        "pl/dma_hls.cpp",
        "num_read_outstanding=8",
        "num_read_outstanding=1",
        "outstanding",
        "m_axi port=lpddr0",
        ("pl/dma_hls.cpp", "pl/lpddr.cpp"),
    ),
    # twenty and more of other kinds
    HlsMistake(
        "a memory with one port that is read and written",
        "pl/softmax.h",
        "variable=total type=ram_s2p",
        "variable=total type=ram_1p",
        "ports",
        "#pragma HLS PIPELINE II=ii::softmax_exp style=flp",
        MEM_C,
    ),
    HlsMistake(
        "one of two buffers is not partitioned",
        "pl/mem_c.cpp",
        "#pragma HLS ARRAY_PARTITION variable=pong complete dim=1\n",
        "",
        "ports",
        RECEIVE,
        MEM_C,
    ),
    HlsMistake(
        "the wrong dimension is partitioned",
        "pl/softmax.h",
        "variable=total complete dim=1",
        "variable=total complete dim=2",
        "ports",
        "#pragma HLS PIPELINE II=ii::softmax_exp style=flp",
        MEM_C,
    ),
    HlsMistake(
        "a buffer becomes registers",
        "pl/mem_a.cpp",
        "variable=ping complete dim=1",
        "variable=ping complete dim=0",
        "registers",
        "variable=ping complete dim=0",
        MEM_A,
    ),
    HlsMistake(
        "UNROLL of a loop with a variable bound",
        "pl/softmax.h",
        "for (unsigned c = 0; c < patch_cols; ++c) {\n#pragma HLS UNROLL\n                const float score = turn",
        "for (unsigned c = 0; c < cols; ++c) {\n#pragma HLS UNROLL\n                const float score = turn",
        "unroll-bound",
        "#pragma HLS UNROLL\n                const float score = turn",
        MEM_C,
    ),
    HlsMistake(
        "a distance that a sum does not keep up with",
        "pl/softmax.h",
        "variable=total type=inter direction=RAW distance=32",
        "variable=total type=inter direction=RAW distance=2",
        "interval",
        "#pragma HLS PIPELINE II=ii::softmax_exp style=flp",
        MEM_C,
    ),
    HlsMistake(
        "DEPENDENCE of a scalar",
        "pl/norm.h",
        "#pragma HLS DEPENDENCE variable=sums type=inter dependent=false",
        "#pragma HLS DEPENDENCE variable=count type=inter dependent=false",
        "dependence-lost",
        "variable=count",
        MEM_C,
    ),
    HlsMistake(
        "a sum in a scalar",
        "pl/norm.h",
        "count = static_cast<float>(cols) + theirs.count;",
        "count = add_in_fabric(count, theirs.count);",
        "interval",
        "#pragma HLS PIPELINE II=ii::exchange style=flp\n#pragma HLS DEPENDENCE variable=sums",
        MEM_C,
    ),
    HlsMistake(
        "a stream is read twice in an iteration",
        "pl/mesh_b.cpp",
        "b0 = mem_b0.read();",
        "{ mem_b0.read(); b0 = mem_b0.read(); }",
        "stream-rate",
        "#pragma HLS PIPELINE II=ii::mesh style=flp",
        ("pl/mesh_b.cpp",),
    ),
    HlsMistake(
        "two processes write a memory",
        "pl/mem_a.cpp",
        '    RSN_PROCESS("", send, word, sent, mesh);',
        '    RSN_PROCESS("", load, word, norm0, norm1, ddr, filled, mean, factor);',
        "processes",
        "void mem_a_step(",
        MEM_A,
    ),
    HlsMistake(
        "two processes read a stream",
        "pl/dma_hls.cpp",
        'RSN_PROCESS("MemA1", mem_a, mem_a1_uops, ddr_to_mem_a1',
        'RSN_PROCESS("MemA1", mem_a, mem_a1_uops, ddr_to_mem_a0',
        "stream-ends",
        "ddr_to_mem_a0(",
        TOP_A,
    ),
    HlsMistake(
        "nobody reads a stream",
        "pl/dma_hls.cpp",
        'RSN_PROCESS("MemA1", mem_a, mem_a1_uops, ddr_to_mem_a1',
        'RSN_PROCESS("MemA1", mem_a, mem_a1_uops, ddr_to_mem_a0',
        "stream-ends",
        "ddr_to_mem_a1(",
        TOP_A,
    ),
    HlsMistake(
        "two units on one bundle",
        "pl/dma_hls.cpp",
        "m_axi port=ddr1 bundle=ddr1",
        "m_axi port=ddr1 bundle=lpddr1",
        "bundle",
        "m_axi port=ddr1",
        PORTS,
    ),
    HlsMistake(
        "bursts that are longer than the port's",
        "pl/dma_hls.cpp",
        "port=lpddr1 bundle=lpddr1 offset=slave max_read_burst_length=64",
        "port=lpddr1 bundle=lpddr1 offset=slave max_read_burst_length=16",
        "burst-length",
        "m_axi port=lpddr1",
        ("pl/dma_hls.cpp", "pl/lpddr.cpp"),
    ),
    HlsMistake(
        "a branch in a dataflow region",
        "pl/mem_b.cpp",
        '    RSN_PROCESS("", load, word0, word1, lpddr',
        '    if (word1) RSN_PROCESS("", load, word0, word1, lpddr',
        "canonical",
        "if (word1) RSN_PROCESS",
        ("pl/mem_b.cpp",),
    ),
    HlsMistake(
        "a function that is not inlined, in a pipeline",
        "pl/buffer.h",
        "unsigned col, Cell<Banks> cells[Banks]) {\n#pragma HLS INLINE\n",
        "unsigned col, Cell<Banks> cells[Banks]) {\n#pragma HLS INLINE off\n",
        "pipeline-call",
        "get<Beat4x8, Cols>(buffer, row, col, cells);",
        MEM_A,
    ),
    HlsMistake(
        "a pipeline that is deeper than the table says",
        "pl/mem_c.cpp",
        "beat[i] = add_in_fabric(old[i], beat[i]);",
        "beat[i] = old[i] / (1.0f + exp_of(beat[i]));",
        "fill",
        RECEIVE,
        MEM_C,
    ),
    HlsMistake(
        "a latency that an iteration does not take",
        "pl/mem_c.cpp",
        RECEIVE,
        f"#pragma HLS latency min=60 max=60\n{RECEIVE}",
        "latency",
        "#pragma HLS latency min=60 max=60",
        MEM_C,
    ),
    HlsMistake(
        "a walk of fewer rounds than the table counts",
        "pl/norm.h",
        "for (Walk<rounds::norm_scale> at(rows, first)",
        "for (Walk<1> at(rows, first)",
        "rounds",
        "#pragma HLS PIPELINE II=ii::norm_scale style=flp",
        MEM_C,
    ),
    HlsMistake(
        "half of the iterations that times are computed with",
        "pl/tiles.h",
        "for (unsigned t = 0; t < beats_per_tile; ++t) {",
        "for (unsigned t = 0; t < beats_per_tile / 2; ++t) {",
        "trip-count",
        SEND,
        MEM_A,
    ),
    HlsMistake(
        "a loop that waits, in a pipeline",
        "pl/fetch.cpp",
        "        words << instructions[i];",
        "        while (words.full()) {\n        }\n        words << instructions[i];",
        "pipeline-place",
        "#pragma HLS PIPELINE II=ii::fetch style=stp",
        ("pl/fetch.cpp",),
    ),
    HlsMistake(
        "a write request without response",
        "pl/port.h",
        "    port1.write_response();\n",
        "",
        "response",
        "port1.write_request(at + port_lines, port_lines);",
        ("pl/ddr.cpp",),
        "pl/ddr.cpp",
    ),
    HlsMistake(
        "a function of the C library",
        "pl/fetch.cpp",
        "    RSN_STALLS();",
        '    __builtin_printf("fetch");\n    RSN_STALLS();',
        "synthesisable",
        "__builtin_printf",
        ("pl/fetch.cpp",),
    ),
    HlsMistake(
        "a variable that all instances of a unit share",
        "pl/mem_a.cpp",
        "    Word norm0 = ",
        "    static Word norm0 = ",
        "static",
        "static Word norm0",
        MEM_A,
    ),
    HlsMistake(
        "words of a stream that are too wide",
        "pl/types.h",
        "    std::uint16_t reuse;\n    Word words[Words];",
        "    std::uint16_t reuse;\n    Word words[Words * 64];",
        "word-width",
        "ddr_mops(",
        TOP,
        "pl/dma_hls.cpp",
    ),
    HlsMistake(
        "a chain of comparisons",
        "pl/softmax.h",
        "for (unsigned c = 0; c < patch_cols; ++c) {\n#pragma HLS UNROLL\n                const float score = turn",
        "for (unsigned c = 0; c < 4 * patch_cols; ++c) {\n#pragma HLS UNROLL\n"
        "                const float score = c % 3 ? most + 1.0f : turn",
        "chain",
        "#pragma HLS PIPELINE II=ii::softmax_max style=flp",
        MEM_C,
    ),
    HlsMistake(
        "a division by a variable in a recurrence",
        "pl/rounds.h",
        "        patch[i] = patch[i + N];",
        "        patch[i] = patch[i + N] / patch[i];",
        "interval",
        "#pragma HLS PIPELINE II=ii::norm_sum style=flp",
        MEM_C,
        "pl/norm.h",
    ),
    HlsMistake(
        "a port without INTERFACE m_axi",
        "pl/dma_hls.cpp",
        "#pragma HLS INTERFACE m_axi port=lpddr1 bundle=lpddr1 offset=slave max_read_burst_length=64 "
        "num_read_outstanding=8\n",
        "",
        "burst-length",
        "    Port lpddr0, Port lpddr1",
        ("pl/dma_hls.cpp", "pl/lpddr.cpp"),
    ),
    HlsMistake(
        "a port is read, and no burst was requested",
        "pl/port.h",
        "    port1.read_request(first_line(uop, burst) + port_lines, port_lines);\n",
        "",
        "request",
        "m_axi port=ddr1",
        ("pl/dma_hls.cpp", "pl/ddr.cpp"),
        "pl/dma_hls.cpp",
    ),
    HlsMistake(
        "a region of processes that does not say DATAFLOW",
        "pl/mem_a.cpp",
        "#pragma HLS DATAFLOW\n",
        "",
        "canonical",
        "    RSN_DATAFLOW();",
        MEM_A,
    ),
    HlsMistake(
        "a pipeline that is off",
        "pl/mesh_a.cpp",
        "#pragma HLS PIPELINE II=ii::mesh style=flp",
        "#pragma HLS PIPELINE off",
        "unmodelled",
        "#pragma HLS PIPELINE off",
        ("pl/mesh_a.cpp",),
    ),
)
"""Of what HLS compiles."""

XNN2 = (
    HlsMistake(
        "no unsync",
        "xnn2/dma_hls.cpp",
        "#pragma HLS STREAM variable=t0 type=unsync\n",
        "",
        "unsync",
        "RSN_MEMORY(EvenScratch, t0);",
        ("xnn2/dma_hls.cpp", "xnn2/scratch.cpp"),
    ),
    HlsMistake(
        "two accesses of a memory that another process shares",
        "xnn2/scratch.cpp",
        "                keep<buffers::TIn0_slots>(t, op.slot + i,",
        "                keep<buffers::TIn0_slots>(t, op.slot + i + 1, static_cast<Part>(op.part), n, beat);\n"
        "                keep<buffers::TIn0_slots>(t, op.slot + i,",
        "shared-port",
        "#pragma HLS PIPELINE II=ii::take style=flp\n                const Beat beat",
        ("xnn2/dma_hls.cpp", "xnn2/scratch.cpp"),
    ),
    HlsMistake(
        "no fence between a memory and the token that tells of it",
        "xnn2/scratch.cpp",
        "            hls::fence(t, filled);\n            filled << Token(1);\n        }\n    }\n}\n\nvoid t_in_odd",
        "            filled << Token(1);\n        }\n    }\n}\n\nvoid t_in_odd",
        "fence",
        "void t_in_even(",
        ("xnn2/dma_hls.cpp", "xnn2/scratch.cpp"),
    ),
    HlsMistake(
        "DEPENDENCE of a struct",
        "xnn2/scratch.cpp",
        "#pragma HLS PIPELINE II=ii::take style=flp\n                    Weighted in",
        "#pragma HLS PIPELINE II=ii::take style=flp\n"
        "#pragma HLS DEPENDENCE variable=weights type=inter dependent=false\n"
        "                    Weighted in",
        "dependence-struct",
        "variable=weights",
        ("xnn2/scratch.cpp",),
    ),
)
"""Of what HLS compiles for xnn2, whose memories lie in its top function."""

AIE = (
    HlsMistake(
        "no __restrict in the loop of a tile",
        "aie/products.h",
        "#define RSN_APART __restrict",
        "#define RSN_APART",
        "restrict",
        "Sums upper(aie::load_v<8>(from))",
        ("aie/kernels.cc",),
    ),
    HlsMistake(
        "an array of a tile that is not aligned",
        "aie/kernels.cc",
        "alignas(32) float weight[",
        "float weight[",
        "alignment",
        "float weight[",
        ("aie/kernels.cc",),
    ),
    HlsMistake(
        "a stack that nothing asserts",
        "aie/kernels.cc",
        "static_assert(fits<First>(0) && fits<Middle>(1) && fits<Middle>(2) && fits<Last>(3));\n",
        "",
        "stack",
        "//",
        ("aie/kernels.cc",),
    ),
    HlsMistake(
        "an array on the stack that the assertion does not count",
        "aie/kernels.cc",
        "    Kept<Place::begins> kept;\n",
        "    Kept<Place::begins> kept;\n    alignas(32) volatile float more[1024];\n    more[ops[0] % 1024] = 0.0f;\n",
        "stack",
        "//",
        ("aie/kernels.cc",),
    ),
    HlsMistake(
        "an array of a tile that is aligned to half of a vector",
        "aie/kernels.cc",
        "alignas(32) float weight[",
        "alignas(16) float weight[",
        "alignment",
        "float weight[",
        ("aie/kernels.cc",),
    ),
    HlsMistake(
        "a stack that is too small",
        "aie/kernels.h",
        "(c < 3 ? window : 0)",
        "(c < 2 ? window : 0)",
        "stack",
        "//",
        ("aie/kernels.cc",),
        "aie/kernels.cc",
    ),
)
"""Of what AI Engine tiles run."""

FATAL: tuple[str | RunMistake, ...] = (
    "PIPELINE outside of its loop",
    "DEPENDENCE removed",
    "cyclic factor=3 where four are read",
    "no __restrict in the loop of a tile",
    "no unsync",
    "INLINE off removed: two writes in one state",
    "II=8 where the table of cycles says 1",
    "a statement in a dataflow region",
    "one outstanding read for bursts four ahead",
    "a stack that is too small",
    RunMistake(
        "a loop on streams that cannot flush",
        "pl/mesh_b.cpp",
        "#pragma HLS PIPELINE II=ii::mesh style=flp",
        "#pragma HLS PIPELINE II=ii::mesh style=stp",
        "`make check`, pragmas",
    ),
    RunMistake(
        "a beat that goes to another MME",
        "pl/mesh_a.cpp",
        "if (op.a0_1) split(a0, mme1);\n            if (op.a1_2) split(a1, mme2);",
        "if (op.a0_1) split(a0, mme2);\n            if (op.a1_2) split(a1, mme1);",
        "csim",
        "encoder",
    ),
    RunMistake(
        "rows and columns of a transposed block exchanged",
        "pl/mem_b.cpp",
        "row + word_col(w), col + word_row(w), ddr.read()",
        "row + word_row(w), col + word_col(w), ddr.read()",
        "csim",
        "encoder",
    ),
    RunMistake(
        "a tile that keeps its buffer of B",
        "aie/kernels.cc",
        "            if (last) place.release();\n            b.release();\n",
        "            if (last) place.release();\n",
        "csim with the AIE array",
        "fig10",
    ),
)
"""Mistakes that cost a build of a day or a machine that stops: those above by their names."""
