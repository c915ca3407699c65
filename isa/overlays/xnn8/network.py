"""Generates what connects the units in C++: the kernel's top function with all streams; and the tables of functions.

hw/versal/xnn8/units.h declares the processes. A unit of the overlay is several of them: one for each lane or column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...overlay import Overlay
from ...reference import MADE_BY
from ...versal.dispatcher import call, snake, words_of
from .formats import ENGINES, LANE_ROWS, LANES, PAIRS
from .functions import ENTRIES, TABLES

INDENT = " " * 4
PORTS = 4
BANKS = {"LPDDR": 16 * 32, "DDR": 16 * 32}
"""Words of 256 bit that a port's stream of weights holds: those of the overlay's stream."""
HALF_BURST = 16
"""A port moves 32 words of one lane, then of the other one; a lane moves a word in two cycles: so half of them wait."""
GATHERED = 32
"""Half of the beats of a packet of a head: Post takes them twice as fast as they come, from both streams in turn."""
HELD = 16
"""Results of half a packet of a narrow head, in as many beats: they wait in half of the time in which they come."""
KEPT = 512
"""Words of two packets of heads that wait for their norms: Post makes one while the other one comes back."""
HEAD_NORMS = 32
"""Norms of a packet of narrow heads: those of the next one wait until the residuals' process takes them."""
GROUP = 64
"""Beats of eight rows of a block: exponents of the first ones are known when 59 of them are there."""
SHIFTED = 16
"""Words of a stream up to which it is a shift register: two bits of as many words are a LUT (AM005)."""
IN_LUT_RAM = 64
"""Words of a stream up to which it is a memory of LUTs. Without a pragma HLS puts streams of more than 1,024 bits where
it likes, such as into block RAM (UG1399, config_storage)."""
_ENGINE = "[engines]"
_LANES = f"{_ENGINE}[lanes]"

STREAMS: tuple[tuple[str, str, str, int], ...] = (
    # of the memories off chip
    ("Transfer", "lpddr_parts", "[ports]", 4),
    ("Token", "lpddr_done", "[ports]", 2),
    ("Transfer", "ddr_parts", "[ports]", 4),
    ("Token", "ddr_done", "[ports]", 2),
    ("Bytes", "lpddr_weights", "[ports]", BANKS["LPDDR"]),
    ("Bytes", "ddr_weights", "[ports]", BANKS["DDR"]),
    ("Shorts", "constants_of", _ENGINE, 320),
    ("Shorts", "loads", f"[ports]{_ENGINE}[2]", HALF_BURST),
    ("Shorts", "stores", f"[ports]{_ENGINE}[2]", HALF_BURST),
    # of columns of pairs
    ("Bytes", "lpddr_columns", "[pairs][ports]", 32),
    ("Bytes", "ddr_columns", "[pairs][ports]", 32),
    ("Bytes", "column_weights", f"[pairs]{_ENGINE}", 16),
    ("HalfBytes", "column_heads", f"{_ENGINE}[pairs]", 16),
    # of lanes
    ("Shorts", "post_constants", _LANES, 16),
    ("Shorts", "residual_constants", _LANES, 16),
    ("Shorts", "rows_constants", _LANES, 16),
    ("PostWork", "post_uops", _LANES, 4),
    ("ResidualWork", "residual_uops", _LANES, 4),
    ("Token", "free", f"{_LANES}[2]", 256),
    ("Token", "filled", f"{_LANES}[2]", 256),
    ("CellWrite<XCell>", "x_writes", _LANES, 16),
    ("Token", "x_done", _LANES, 2),
    ("CellRead", "x_reads", f"{_LANES}[2]", 4),
    ("XCell", "x_cells", f"{_LANES}[2]", 16),
    ("CellWrite<X8Cell>", "x8_writes", _LANES, 16),
    ("Token", "x8_done", _LANES, 2),
    ("CellRead", "x8_reads", f"{_LANES}[1]", 4),
    ("X8Cell", "x8_cells", f"{_LANES}[1]", 16),
    ("CellWrite<TCell>", "t_writes", _LANES, 16),
    ("Token", "t_done", _LANES, 2),
    ("CellRead", "t_reads", f"{_LANES}[4]", 4),
    ("TCell", "t_cells", f"{_LANES}[3]", 16),
    ("TRow", "t_rows", _LANES, 16),
    ("Statistics", "statistics", _LANES, HEAD_NORMS),
    ("RowFactor", "factors", _LANES, LANE_ROWS),
    ("CellExponent", "of_values", _LANES, 32),
    ("PacketsDue", "due", f"{_LANES}[3]", 4),
    ("PacketNumber", "packets", f"{_LANES}[2]", 2),
    ("WeightSums", "weight_sums", f"{_LANES}[2]", 4),
    ("Results", "gathered", f"{_LANES}[2]", GATHERED),
    ("PacketNumber", "held_packets", _LANES, 2),
    ("WeightSums", "held_weights", _LANES, 4),
    ("Results", "held_results", _LANES, HELD),
    ("HeldPacket", "wanted", _LANES, 2),
    ("Place", "asks", _LANES, 4),
    ("RowExponents", "residual_exponents", _LANES, 8),
    ("Values", "residual_values", _LANES, GROUP),
    ("Packed", "residuals", _LANES, 16),
    ("Packed", "stored_values", _LANES, 16),
    ("Packed", "angles", _LANES, 16),
    ("HeadBeat", "head_beats", _LANES, 4),
    ("HeadWord", "kept_heads", _LANES, KEPT),
    ("HeadSums", "sums_of_heads", _LANES, 4),
    ("HeadRow", "normalised", _LANES, 4),
    ("Place", "places", _LANES, 4),
    ("RowExponents", "exponents", _LANES, 8),
    ("Values", "values", _LANES, GROUP),
    ("Packed", "results", _LANES, 16),
    ("RowSums", "sums", _LANES, 4),
    ("Statistics", "norms_made", _LANES, LANE_ROWS),
    ("RowBound", "bounds", _LANES, 4),
    ("RowScale", "scales", _LANES, LANE_ROWS),
    ("Token", "taken", _LANES, 2),
    ("Token", "safe", _LANES, 2),
    ("LaneExponent", "send_own", _LANES, PAIRS),
    ("CellExponent", "send_all", _LANES, PAIRS),
    ("CellExponent", "send_others", f"{_ENGINE}[2]", PAIRS),
    ("CellExponent", "heads_own", _LANES, PAIRS),
    ("CellExponent", "heads_all", _LANES, PAIRS),
    ("HalfBytes", "head_words", _LANES, 16),
)
"""Element, name, dimensions and depth of the streams between processes."""

CONSUMERS = {"W": 2 + PAIRS, "Rows": 2 + LANES, "Send": LANES, "Heads": 1 + LANES, "Engine": PAIRS}
"""Processes that get the uOPs of a unit."""


def top(overlay: Overlay) -> str:
    """Return the text of hw/versal/xnn8/dma_hls.cpp. overlay: xnn8."""
    arguments = [f"MemoryPort {bank}{i}" for bank in ("lpddr", "ddr") for i in range(PORTS)]
    arguments += ["const Word *instructions", "uint64_t *fingerprint"]
    arguments += [f"hls::stream<Beat128> {x}{e}[lanes][2]" for x in "abc" for e in range(ENGINES)]
    lines = [
        "// The block diagram: fetch and dispatcher, a decoder per unit, processes, and their streams.",
        f"// {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        '#include "dma_hls.h"',
        "",
        '#include "dispatch.h"',
        "",
        "namespace rsn::xnn8::pl {",
        "",
        "// Which datapath and formats this machine was built for.",
        "void announce(uint64_t *fingerprint) { *fingerprint = fingerprint_bits; }",
        "",
        *call('extern "C" void dma_hls', arguments, " {", indent=""),
        *_interfaces(),
        "#pragma HLS DATAFLOW",
        "",
    ]
    for kind, name, dimensions, depth in STREAMS:
        lines += _streams(kind, name, dimensions, depth)
    lines += ["", f"{INDENT}// Instructions.", f'{INDENT}hls::stream<Word, fetch_depth> words("fetched words");']
    for unit in overlay.units:
        name, words = snake(unit.name), words_of(overlay, unit)
        lines.append(f'{INDENT}hls::stream<Mop<{words}>, mop_fifo_depth> {name}_mops("mOP FIFO of {unit.name}");')
        kind, count = ("Transfer", 0) if unit.bank else (f"Uop<{words}>", CONSUMERS[unit.kind])
        if count:
            lines += _streams(kind, f"{name}_uops", f"[{count}]", "uop_fifo_depth", f"uOP FIFO of {unit.name}")
        else:
            lines.append(f'{INDENT}hls::stream<{kind}, uop_fifo_depth> {name}_uops("uOP FIFO of {unit.name}");')
    lines += ["", f"{INDENT}RSN_DATAFLOW();", f"{INDENT}announce(fingerprint);"]
    lines += _process("fetch", "fetch", ["instructions", "words"])
    lines += _process("dispatcher", "dispatch", ["words", *(f"{snake(u.name)}_mops" for u in overlay.units)])
    for unit in overlay.units:
        name = snake(unit.name)
        decoder = "decode_bank" if unit.bank else f"decode<{words_of(overlay, unit)}, {CONSUMERS[unit.kind]}>"
        lines += _process(f"decoder {unit.name}", decoder, [f"{name}_mops", f"{name}_uops"])
    for process in processes():
        lines += _process(*process)
    return "\n".join([*lines, "}", "", "}  // namespace rsn::xnn8::pl", ""])


def processes() -> Iterator[tuple[str, str, list[str]]]:
    """Yield each process of the kernel, without those of the instruction path, in the order of the calls in C++: the
    unit that it is a part of, the C++ function that it runs, and the arguments of the call, as C++."""
    for bank in ("LPDDR", "DDR"):
        name = bank.lower()
        yield bank, "bank", [f"{name}_uops", f"{name}_parts", f"{name}_done"]
        for i in range(PORTS):
            given = [f"{name}_parts[{i}]", f"{name}{i}", f"{i}u", f"{name}_done[{i}]", f"{name}_weights[{i}]"]
            if bank == "DDR":
                yield bank, "ddr_port", [*given, f"loads[{i}]", f"stores[{i}]"]
            elif i:
                yield bank, "lpddr_port", given
            else:
                yield bank, "lpddr_port0", [*given[:2], *given[3:], "constants_of"]
    for i, bank in enumerate(("lpddr", "ddr")):
        yield "W", f"fill_{bank}", [f"w_uops[{i}]", f"{bank}_weights", f"{bank}_columns"]
    for c in range(PAIRS):
        yield "W", "weights", [f"w_uops[{2 + c}]", f"{c}u", *(f"{x}[{c}]" for x in _COLUMN)]
    for e in range(ENGINES):
        yield f"Rows{e}", "constants", [f"rows{e}_uops[{LANES}]", *(f"{x}[{e}]" for x in _CONSTANTS)]
        parts = (f"{x}[{e}]" for x in ("sums", "sums_of_heads", "norms_made", "statistics", "bounds", "scales"))
        yield f"Rows{e}", "norms", [f"rows{e}_uops[{LANES + 1}]", *parts]
        of_others = [f"send_others[{(e + 1) % ENGINES}][1]", f"send_others[{(e + 2) % ENGINES}][0]"]
        exponents = [f"send_own[{e}]", f"{e}u", f"send_others[{e}]", *of_others, f"send_all[{e}]"]
        yield f"Send{e}", "largest_of_engines", exponents
        yield f"Heads{e}", "largest", [f"heads_own[{e}]", f"heads_all[{e}]"]
        yield f"Heads{e}", "rotate", [f"heads{e}_uops[{LANES}]", f"head_words[{e}]", f"column_heads[{e}]"]
        for c in range(PAIRS):
            weights, heads = f"column_weights[{c}][{e}]", f"column_heads[{e}][{c}]"
            yield f"Engine{e}", "tiles", [f"engine{e}_uops[{c}]", f"{c}u", weights, heads, f"b{e}[{c}]"]
        for lane in range(LANES):
            yield from _lane(e, lane)


_COLUMN = ("lpddr_columns", "ddr_columns", "column_weights")
_CONSTANTS = ("constants_of", "post_constants", "residual_constants", "rows_constants")


def _lane(engine: int, lane: int) -> Iterator[tuple[str, str, list[str]]]:
    at = f"[{engine}][{lane}]"
    port = f"[{lane % PORTS}][{engine}][{lane // PORTS}]"

    def of(*names: str) -> list[str]:
        return [name.replace("@", at) if "@" in name else name + at for name in names]

    rows, send, heads = (f"{kind}{engine}" for kind in ("Rows", "Send", "Heads"))
    yield rows, "x_memory", of("x_writes", "x_done", "x_reads", "x_cells")
    yield rows, "x8_memory", of("x8_writes", "x8_done", "x8_reads", "x8_cells")
    yield rows, "t_memory", of("t_writes", "t_done", "t_reads", "t_cells", "t_rows")
    own = [f"rows{engine}_uops[{lane}]", f"{lane}u", f"loads{port}", f"stores{port}"]
    memories = (
        *("x_writes", "x_done", "x_reads@[0]", "x_cells@[0]", "x8_writes", "x8_done"),
        *("t_writes", "t_done", "t_reads@[2]", "t_rows"),
    )
    parts = (
        "post_uops",
        "residual_uops",
        "sums",
        "norms_made",
        "bounds",
        "scales",
        "places",
        "results",
        "stored_values",
        "angles",
    )
    yield rows, "rows", [*own, *of("rows_constants", "free", "filled", *memories, *parts)]
    gathered = ("packets@[0]", "weight_sums@[0]", "gathered@[0]"), ("held_packets", "held_weights", "held_results")
    for i, to in enumerate(gathered):
        yield rows, "gather", [f"due{at}[{i}]", f"c{engine}[{lane}][{i}]", *of(*to)]
    handed_on = (*gathered[1], "wanted", "packets@[1]", "weight_sums@[1]", "gathered@[1]")
    yield rows, "hold", of("due@[2]", *handed_on)
    given = of(
        "post_uops", "post_constants", "factors", "of_values", "due", "packets", "weight_sums", "gathered", "wanted"
    )
    given += of("asks", "residuals", "normalised", "angles", "places", "exponents", "values", "taken")
    yield rows, "post", given
    given = of("residual_uops", "residual_constants", "statistics", "asks", "x_reads@[1]", "x_cells@[1]")
    given += of("t_reads@[3]", "t_cells@[2]", "kept_heads")
    yield rows, "residual", [*given, *of("residual_exponents", "residual_values", "normalised")]
    yield rows, "pack_results", of("exponents", "values", "results", "head_beats")
    yield rows, "head_sums", of("head_beats", "kept_heads", "sums_of_heads")
    yield rows, "pack_residuals", of("residual_exponents", "residual_values", "residuals", "stored_values")
    given = of("filled@[0]", "free@[0]", "x8_reads@[0]", "x8_cells@[0]", "t_reads@[0]", "t_cells@[0]")
    made = of("send_own", "send_all", "factors", "taken", "safe")
    yield send, "send", [f"send{engine}_uops[{lane}]", f"{lane}u", *given, *made, f"a{engine}[{lane}]"]
    given = of("filled@[1]", "free@[1]", "t_reads@[1]", "t_cells@[1]", "heads_own", "heads_all", "of_values", "safe")
    yield heads, "heads", [f"heads{engine}_uops[{lane}]", f"{lane}u", *given, *of("head_words")]


def _interfaces() -> Iterator[str]:
    for bank in ("lpddr", "ddr"):
        writes = " max_write_burst_length=32 num_write_outstanding=4" if bank == "ddr" else ""
        for i in range(PORTS):
            yield f"#pragma HLS INTERFACE m_axi port={bank}{i} bundle={bank}{i} offset=slave \\"
            yield f"    max_read_burst_length=32 num_read_outstanding=8{writes}"
    yield "#pragma HLS INTERFACE m_axi port=instructions bundle=instructions offset=slave"
    registers = [f"{bank}{i}" for bank in ("lpddr", "ddr") for i in range(PORTS)]
    for port in (*registers, "instructions", "fingerprint", "return"):
        yield f"#pragma HLS INTERFACE s_axilite port={port}"
    for x in "abc":
        yield from (f"#pragma HLS INTERFACE axis register_mode=forward port={x}{e}" for e in range(ENGINES))


def _streams(kind: str, name: str, dimensions: str, depth: int | str, called: str = "") -> Iterator[str]:
    yield f"{INDENT}hls::stream<{kind}> {name}{dimensions};"
    yield f"#pragma HLS STREAM variable={name} depth={depth}"
    if isinstance(depth, str) or depth <= IN_LUT_RAM:
        impl = "lutram" if isinstance(depth, int) and depth > SHIFTED else "srl"
        yield f"#pragma HLS BIND_STORAGE variable={name} type=fifo impl={impl}"
    yield f'{INDENT}RSN_OPEN({name}, "{called or name}", {depth});'


def _process(name: str, function: str, arguments: Sequence[str]) -> list[str]:
    of_macro = f"({function})" if "," in function else function
    return call("RSN_PROCESS", [f'"{name}"', of_macro, *arguments], ";", indent=INDENT)


def tables() -> str:
    """Return the text of hw/versal/xnn8/tables.h: the activation functions of Post as tables, in the order of their
    numbers in the field `function` of Rows, from 1 on."""
    lines = [
        "// The functions of Post: max(x, 0) - entry, by |x| in units of 2^-steps; entries in units of 2^-fraction.",
        f"// {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        "#ifndef RSN_XNN8_TABLES_H",
        "#define RSN_XNN8_TABLES_H",
        "",
        "#include <cstdint>",
        "",
        "namespace rsn::xnn8::pl {",
        "",
        f"constexpr unsigned table_entries = {ENTRIES};",
        "struct FunctionTable {",
        "    std::int8_t steps, fraction;",
        "};",
        f"constexpr unsigned zeros = {[*TABLES.values()].index(None)};  // of max(x, 0), whose entries are 0",
        f"constexpr std::int16_t entries[{len(TABLES)}][{ENTRIES}] = {{",
    ]
    for table in TABLES.values():
        entries = [0] * ENTRIES if table is None else table.entries.tolist()
        rows = [INDENT + ", ".join(map(str, entries[i : i + 16])) for i in range(0, ENTRIES, 16)]
        lines += ["{", ",\n".join(rows), "},"]
    given = ((0, 0) if table is None else (table.steps, table.fraction) for table in TABLES.values())
    lines += ["};", f"constexpr FunctionTable tables[] = {{{', '.join(f'{{{a}, {b}}}' for a, b in given)}}};"]
    return "\n".join([*lines, "", "}  // namespace rsn::xnn8::pl", "", "#endif  // RSN_XNN8_TABLES_H", ""])
