"""Generates what connects the units in C++: the kernel's top function with all streams, and the dispatcher.

A unit's function takes its uOPs, the memories that it shares (a port of X the streams to and from the processes that
hold X), then the streams to it and those from it, each in the order of the units in the overlay;
hw/versal/xnn2/units.h declares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....machine.description import Stream, UnitSpec
from ...overlay import Overlay
from ...reference import MADE_BY
from ...versal.dispatcher import MME, call, snake, words_of
from ...versal.tiles import BEAT
from .operands import KV, LANES, memories_of
from .ports import has_fifo
from .resources import in_shift_register

INDENT = " " * 4
PARITY = ("even", "odd")
PORTS = {"DDR": "ddr0, ddr1", "LPDDR": "lpddr0, lpddr1"}
"""Memory ports of units, as arguments."""

ELEMENTS = {"token": "Token", "statistics": "RowStatistic", "ends": "HeadEnds"}
"""What streams of a type of tokens carry; others carry beats, which some have with more beside them."""

ROW_STREAMS = {
    "writes": ("RowWrite", "asked_depth"),
    "sends": ("RowRead", "asked_depth"),
    "stores": ("RowRead", "asked_depth"),
    "answers": ("RowCells", "answers_depth"),
    "written": ("Token", "2"),
    "sent": ("RowCells", "answers_depth"),
    "stored": ("RowCells", "answers_depth"),
    "made": ("StatisticPart", "asked_depth"),
    "joined": ("StatisticPart", "asked_depth"),
    "asked": ("StatisticRead", "asked_depth"),
    "asked_to_store": ("StatisticRead", "asked_depth"),
    "statistics": ("RowStatistic", "answers_depth"),
    "statistics_to_store": ("RowStatistic", "answers_depth"),
}
"""The streams between the ports of X and the processes that hold its rows and their statistics: their element and
depth."""
ROW_MEMORIES = {
    "x_rows": ("writes", "sends", "stores", "answers", "written", "sent", "stored"),
    "x_statistics": ("made", "joined", "asked", "asked_to_store", "statistics", "statistics_to_store"),
}
ROW_PORTS = {
    "XIn": ("writes", "made", "answers", "written"),
    "XOut": ("sends", "joined", "asked", "sent", "statistics"),
    "XStore": ("stores", "asked_to_store", "stored", "statistics_to_store"),
}
"""The arguments of these processes, and of the ports of X: those to a memory, those from it."""


def top(overlay: Overlay) -> str:
    """Return the text of hw/versal/xnn2/dma_hls.cpp: the kernel's top function, with all streams, memories and
    processes.
    """
    streams = [s for s in overlay.streams if MME not in (s.src.rstrip("0123456789"), s.dst.rstrip("0123456789"))]
    units = [u for u in overlay.units if u.kind != MME]
    memories = list(_memories())
    lines = [
        "// The block diagram: fetch and dispatcher, a decoder per unit, the units, memories and streams between them.",
        "// Depths are the overlay's, in beats where it counts words of tiles; what has no FIFO there has none here.",
        f"// {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        '#include "../pl/dma_hls.h"',
        "",
        '#include "../pl/dataflow.h"',
        '#include "dispatch.h"',
        '#include "units.h"',
        "",
        "namespace rsn::xnn {",
        "",
        "// Which datapath and formats this machine was built for.",
        "void announce(std::uint64_t *fingerprint) { *fingerprint = fingerprint_bits; }",
        "",
        "}  // namespace rsn::xnn",
        "",
        "using namespace rsn::xnn;",
        "",
        *_signature(),
        *_interfaces(),
        "#pragma HLS DATAFLOW",
        "",
        f"{INDENT}// What the ports of a memory share. Streams of tokens keep them in order, so HLS must not.",
    ]
    for kind, name, pragmas in memories:
        lines.append(f"{INDENT}RSN_MEMORY({kind}, {name});")
        lines += pragmas
    lines += ["", f"{INDENT}// Streams between units, in beats, words, or tokens."]
    for s in streams:
        lines.append(f'{INDENT}hls::stream<{_element(s)}, {_depth(s)}> {_variable(s)}("{s.name}");')
        lines += [_shift_register(_variable(s))] * in_shift_register(overlay, s)
    lines += ["", f"{INDENT}// Between the ports of X and its memories."]
    for i in range(LANES):
        for name, (kind, depth) in ROW_STREAMS.items():
            lines.append(f'{INDENT}hls::stream<{kind}, {depth}> x{i}_{name}("{name} of X{i}");')
            lines += [_shift_register(f"x{i}_{name}")] * (kind != "Token")
    lines += ["", f"{INDENT}// Instructions.", f'{INDENT}hls::stream<Word, fetch_depth> words("fetched words");']
    for u in units:
        n = snake(u.name)
        lines.append(
            f'{INDENT}hls::stream<Mop<{words_of(overlay, u)}>, mop_fifo_depth> {n}_mops("mOP FIFO of {u.name}");'
        )
        lines.append(f'{INDENT}hls::stream<{_uop(overlay, u)}, uop_fifo_depth> {n}_uops("uOP FIFO of {u.name}");')
    lines += ["", f"{INDENT}RSN_DATAFLOW();", f"{INDENT}announce(fingerprint);"]
    lines += _process("fetch", "fetch", ["instructions", "words"])
    lines += _process("dispatcher", "dispatch", ["words", *(f"{snake(u.name)}_mops" for u in units)])
    for u in units:
        n = snake(u.name)
        decoder = f"decode_{n}" if u.name in PORTS else f"decode<{words_of(overlay, u)}>"
        lines += _process(f"decoder {u.name}", decoder, [f"{n}_mops", f"{n}_uops"])
    for i in range(LANES):
        for function, names in ROW_MEMORIES.items():
            lines += _process(f"{function} of X{i}", function, [f"x{i}_{name}" for name in names])
    for u in units:
        lines += _process(u.name, _function(u), [f"{snake(u.name)}_uops", *_arguments(overlay, u)])
    lines += ["}", ""]
    return "\n".join(lines)


def _signature() -> list[str]:
    memories = ["Port lpddr0", "Port lpddr1", "Port ddr0", "Port ddr1"]
    arguments = [*memories, "const Word *instructions", "std::uint64_t *fingerprint"]
    arguments += [f"hls::stream<Lane> {x}{i}[lanes]" for x in "abc" for i in range(LANES)]
    return call('extern "C" void dma_hls', arguments, " {", indent="")


def _interfaces() -> Iterator[str]:
    bursts = "max_read_burst_length=64 num_read_outstanding=8"
    for port in ("lpddr0", "lpddr1"):
        yield f"#pragma HLS INTERFACE m_axi port={port} bundle={port} offset=slave {bursts}"
    for port in ("ddr0", "ddr1"):
        yield f"#pragma HLS INTERFACE m_axi port={port} bundle={port} offset=slave {bursts} \\"
        yield "    max_write_burst_length=64 num_write_outstanding=8"
    yield "#pragma HLS INTERFACE m_axi port=instructions bundle=instructions offset=slave"
    for port in ("lpddr0", "lpddr1", "ddr0", "ddr1", "instructions", "fingerprint", "return"):
        yield f"#pragma HLS INTERFACE s_axilite port={port}"
    for x in "abc":
        yield from (f"#pragma HLS INTERFACE axis port={x}{i}" for i in range(LANES))


def _memories() -> Iterator[tuple[str, str, list[str]]]:
    """Yield type, name and pragmas of the memories that units share."""

    def pragmas(variable: str, dim: int, impl: str) -> list[str]:
        return [
            f"#pragma HLS STREAM variable={variable} type=unsync",
            f"#pragma HLS ARRAY_PARTITION variable={variable} complete dim={dim}",
            f"#pragma HLS BIND_STORAGE variable={variable} type=ram_s2p impl={impl}",
        ]

    def parts(name: str, members: Sequence[str], dim: int) -> list[str]:
        out = [f"#pragma HLS DISAGGREGATE variable={name}"]
        return out + [line for member in members for line in pragmas(f"{name}.{member}", dim, "bram")]

    for i in range(LANES):
        yield "OddScratch" if i % 2 else "EvenScratch", f"t{i}", pragmas(f"t{i}", 1, "uram")
        if i % 2:
            yield "Weights", f"weights{i}", parts(f"weights{i}", ("tops", "top", "total"), 1)
    for k in range(KV):
        keys = k < KV // 2
        yield "Keys" if keys else "Values", f"kv{k}", pragmas(f"kv{k}", 1, "uram")


def _shared(unit: UnitSpec) -> list[str]:
    """The memories that a unit shares; of X, the streams to and from them."""
    i = unit.index
    match unit.kind:
        case "XIn" | "XOut" | "XStore":
            return [f"x{i}_{name}" for name in ROW_PORTS[unit.kind]]
        case "TIn" | "TOut":
            return [f"t{i}", *([f"weights{i}"] if i % 2 else [])]
        case "KvIn":
            return [f"kv{kv}" for kv in memories_of(i)]
        case "KvOut":
            return [f"kv{i}"]
    return [PORTS[unit.name]] if unit.name in PORTS else []


def _function(unit: UnitSpec) -> str:
    if unit.kind == "KvIn":
        return ("k_in", "v_in")[unit.index]
    if unit.kind == "KvOut":
        return "k_out" if unit.index < KV // 2 else "v_out"
    if unit.kind in ("XOut", "TIn", "TOut", "MeshB", "C", "Post"):
        return f"{snake(unit.kind)}_{PARITY[unit.index % 2]}"
    return snake(unit.name if unit.kind == "W" else unit.kind)


def _arguments(overlay: Overlay, unit: UnitSpec) -> list[str]:
    order = {u.name: i for i, u in enumerate(overlay.units)}
    to = sorted((s for s in overlay.streams if s.dst == unit.name), key=lambda s: (order[s.src], s.label))
    out = sorted((s for s in overlay.streams if s.src == unit.name), key=lambda s: (order[s.dst], s.label))
    return [*_shared(unit), *map(_variable, (*to, *out))]


def _process(name: str, function: str, arguments: Sequence[str]) -> list[str]:
    return call("RSN_PROCESS", [f'"{name}"', function, *arguments], ";", indent=INDENT)


def _variable(stream: Stream) -> str:
    """The name of a stream; of those to and from an MME, the port of the kernel."""
    if stream.dst.startswith(MME):
        return f"{stream.src[-2].lower()}{stream.dst[-1]}"
    if stream.src.startswith(MME):
        return f"c{stream.src[-1]}"
    return f"{snake(stream.src)}_to_{snake(stream.dst)}" + (f"_{stream.label}" if stream.label else "")


def _element(stream: Stream) -> str:
    if stream.token.name in ELEMENTS:
        return ELEMENTS[stream.token.name]
    if stream.src.startswith("XStore"):
        return "Stored"
    return "Weighted" if stream.src.startswith("Soft") else "Beat"


def _depth(stream: Stream) -> str:
    name = f"depth::{stream.src}_to_{stream.dst}" + (f"_{stream.label}" if stream.label else "")
    per_word = max(1, stream.token.word_elements // BEAT)
    depth = name if per_word == 1 else f"{name} * {per_word}"
    return depth if has_fifo(stream) else f"without_fifo({depth})"


def _shift_register(stream: str) -> str:
    """The pragma without which HLS makes memories of wide streams, or of two words registers."""
    return f"#pragma HLS BIND_STORAGE variable={stream} type=fifo impl=srl"


def _uop(overlay: Overlay, unit: UnitSpec) -> str:
    transfers = {"DDR": "DdrTransfer", "LPDDR": "LpddrTransfer"}
    return transfers.get(unit.name, f"Uop<{words_of(overlay, unit)}>")
