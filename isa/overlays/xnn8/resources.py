"""What each part of xnn8 takes of a VC1902, by the same counts as XNN (`isa/versal/logic.py`).

Nobody has synthesised it. This counts the sources in hw/versal/xnn8:

- Streams between processes by width and depth (`network.STREAMS`), memories by bits and depth. An array of more than
  `LUT_DEPTH` words is taken to lie in block RAM, if no pragma says where.
- Logic of each process, with its states and registers: hw/versal/operators.py has it synthesised, as LLVM shows it, and
  lists products and quotients beside it (`operators.toml`).
- Streams to and from the tiles have 128 bits. Which PLIOs they take is in `tile_streams`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from math import ceil, prod

from ....machine.resources import VC1902, Capacity, Need
from ...overlay import Overlay
from ...versal.logic import (
    GLUE,
    LOOP_STATE,
    LUT_DEPTH,
    axi_ports,
    block_rams,
    cells_of,
    fifo_in_lut_ram,
    half_block_rams,
    instruction_path,
    instruction_streams,
    lut_ram,
    register_slice,
    stream,
    ultra_rams,
)
from ...versal.pieces import Cells, piece
from ...versal.placement import ALL_OUTPUT_CHANNELS, INPUT_CHANNELS, single_plios, wide_plios
from .formats import ENGINES, LANE_ROWS, LANES, PAIRS, T_CELLS, X_CELLS, cells
from .functions import ENTRIES, TABLES
from .network import CONSUMERS, IN_LUT_RAM, PORTS, SHIFTED, STREAMS, processes
from .numbers import BLOCK
from .tile_streams import NARROW_BITS, PLIO_BITS, TILE_STREAMS

WORD = 256
CELL = WORD + 4 * 8
"""Bits of a word; and with the exponents of its four rows, as X and T keep it."""
ALL_LANES = ENGINES * LANES
ROW_GROUPS = LANE_ROWS // 4
DIMENSIONS = {"engines": ENGINES, "lanes": LANES, "pairs": PAIRS, "ports": PORTS}
ELEMENTS = {
    "Transfer": 2 + 4 * 8 + 16 + 2 * 32,
    "PostWork": 11 + 2 * 7 + 2 + 3,
    "ResidualWork": 11 + 2 * 7 + 8 + 6,
    "Token": 1,
    "Bytes": WORD,
    "HalfBytes": WORD // 2,
    "Shorts": WORD,
    "Values": WORD,
    "CellExponent": 8,
    "LaneExponent": 8 + ENGINES,
    "PacketsDue": 4 + 8,
    "PacketNumber": 3,
    "HeldPacket": 5,
    "WeightSums": 8 * 19,
    "Results": 8 * 27,
    "Place": 16,
    "RowFactor": 32,
    "Statistics": 32 + 8 + 32,
    "RowExponents": 6 + 3 * 2 * 16,
    "Packed": 8 * 16 + 2 * 8,
    "HeadBeat": 2 + 8 * 16 + 2 * 8,
    "HeadSums": 23 + 37 + 8,
    "HeadWord": 4 * 16 + 8,
    "HeadRow": 4 * 32 + 16,
    "RowSums": 38 + 61 + 8,
    "RowBound": 33 + 12 + 32,
    "RowScale": 16 + 12 + 32,
    "XCell": CELL,
    "TCell": CELL,
    "TRow": CELL // 4,
    "X8Cell": WORD,
    "CellWrite<XCell>": 2 + 16 + CELL,
    "CellWrite<X8Cell>": 2 + 16 + WORD,
    "CellWrite<TCell>": 2 + 16 + CELL + 4,
    "CellRead": 1 + 16,
}
"""Bits of the elements of streams (hw/versal/xnn8/units.h, numbers.h); those of uOPs follow from their format."""

MEMORIES: tuple[tuple[str, int, int, int, str], ...] = (
    ("X", CELL, (X_CELLS // cells(LANE_ROWS)) * ROW_GROUPS * BLOCK // 4, 1, "URAM"),
    ("T", CELL, (T_CELLS // cells(LANE_ROWS)) * ROW_GROUPS * BLOCK // 8, 1, "URAM"),
    ("X8", WORD, (X_CELLS // cells(LANE_ROWS)) * ROW_GROUPS * BLOCK // 8, 1, "BRAM"),
    ("factors of rows, beside X8", 32, LANE_ROWS, 1, ""),
    ("sums of rows", 23 + 37 + 31, 2 * (X_CELLS // cells(LANE_ROWS)) * ROW_GROUPS, 2, ""),
    ("exponents of sums", 4 * 8, (X_CELLS // cells(LANE_ROWS)) * ROW_GROUPS, 1, ""),
    ("gains", 4 * 16, X_CELLS * BLOCK // 4, 1, ""),
    ("gains", 16 + 12, X_CELLS, 1, ""),
    ("rows that are sent", 32 + 8, LANE_ROWS // 2, 2, ""),
    ("their scales", 16 + 12, LANE_ROWS // 2, 2, ""),
    ("largest exponents of rows", 8 + 12, ROW_GROUPS, 4, ""),
    ("constants of columns", WORD, PAIRS * BLOCK // 16, 2 * 2, ""),
    ("constants of columns", 3 * 16, PAIRS, 2, ""),
    ("factors of rows", 32, LANE_ROWS // 2, 2, ""),
    ("norms of rows", 32 + 8 + 32, 2 * LANE_ROWS, 1, "BRAM"),
    ("exponents of rows", 8, ROW_GROUPS, 4, ""),
    ("reciprocals", 32, 2 * 4, 2, ""),
    ("sums of rows of heads", 23 + 37, 8, 1, ""),
    ("results that wait for their gates", 4 * 16, LANE_ROWS * BLOCK * PAIRS // 2 // 4, 1, "URAM"),
    ("sums of weights that wait", 8 * 19, LANE_ROWS // 8 * PAIRS // 2, 1, ""),
    ("angles", 4 * 16 + 8, LANE_ROWS // 2 * BLOCK // 4, 2, ""),
    ("tables of functions", 16, ENTRIES * len(TABLES), 8 // 2, ""),
)
"""Memories of a lane: what they are reported as, bits and number of words, how many there are alike, and in which
blocks a pragma puts them. Eight results a cycle read a table, and a memory has two ports."""

_WIDE, _NARROW = f"streams of {PLIO_BITS} bit", f"streams of {NARROW_BITS} bit"
DEVICE = replace(
    VC1902,
    capacities={
        "wide in": Capacity(
            wide_plios(INPUT_CHANNELS),
            f"{_WIDE}, faster than 156 MHz",
            "39 columns, of each the pairs of channels that both have registers: 0 and 1, 4 and 5 (UG1079)",
        ),
        "narrow in": Capacity(
            single_plios(INPUT_CHANNELS),
            f"{_NARROW}, beside them",
            "39 columns, of each the channels with registers that are in no such pair: 2 and 6 (UG1079)",
        ),
        "wide out": Capacity(wide_plios(ALL_OUTPUT_CHANNELS), _WIDE, "39 columns, of each three pairs (AM009)"),
        **VC1902.capacities,
    },
)
"""The device, with its wide streams, and the narrow ones beside these. Channels 3 and 7 have no registers."""

FORWARD = Cells(2, PLIO_BITS + 1)
"""A port of a stream with registers forward only: a word, and whether it is there (UG1399: register_mode)."""
CROSSING = 16
"""Words of a FIFO between two clocks (assumed)."""
DSP_BITS = 26, 23
"""What a DSP58 multiplies, without signs (AM004: 27 by 24 bits). It can add in front of it and behind it, too (UG1399,
DSP Multi-Operation Matching)."""
DECODERS = frozenset(("decode", "decode_bank"))
"""Processes whose logic `instruction_path` counts."""


def needs(overlay: Overlay) -> Iterator[Need]:
    """Yield the resources that the machine takes: tiles and their streams, memories, streams, processes, ports, and the
    path of instructions. overlay: xnn8. Raises `KeyError` for a stream of elements whose bits are not known."""
    yield Need("AIE", ENGINES * LANES * PAIRS * 2, "pairs of tiles")
    for part, of in TILE_STREAMS.items():
        direction, wide = "in" if of.into else "out", of.all - of.narrow
        yield Need(f"PLIO {direction}", wide * PLIO_BITS // 64 + of.narrow, part)
        yield Need(f"wide {direction}", wide, part)
        if of.narrow:
            yield Need(f"narrow {direction}", of.narrow, part)
        yield from cells_of("ports to and from tiles", of.all * FORWARD)
        converter = lut_ram(PLIO_BITS, CROSSING) + register_slice(NARROW_BITS)
        yield from cells_of("converters of narrow streams", of.narrow * converter)
    for part, bits, words, copies, where in MEMORIES:
        yield from _memory(part, bits, words, ALL_LANES * copies, where)
    yield from _memory("sums of first blocks of wide heads", 23 + 37 + 8, 8 * LANES, ENGINES, "")
    for element, name, dimensions, depth in STREAMS:
        count = prod(DIMENSIONS[d] if d in DIMENSIONS else int(d) for d in re.findall(r"\[(\w+)\]", dimensions))
        bits, part = element_bits(overlay, element), f"streams {name}"
        if SHIFTED < depth <= IN_LUT_RAM:
            yield from cells_of(part, count * fifo_in_lut_ram(bits, depth))
        else:
            for need in stream(part, bits, depth):
                yield Need(need.resource, count * need.amount, need.part, need.estimate)
    for process, copies in process_counts(overlay).items():
        dsp, cells = arithmetic(operators()[process])
        if dsp:
            yield Need("DSP", copies * dsp, f"products of {process}", True)
        if process not in DECODERS:
            yield from cells_of(f"logic of {process}", copies * cells)
    yield from axi_ports({"DDR": PORTS / 2, "LPDDR": PORTS / 2, "instructions": 1})  # of 256 bits
    yield from instruction_path(overlay)
    yield from instruction_streams(overlay, consumers=CONSUMERS)


def element_bits(overlay: Overlay, element: str) -> int:
    """Return the bits of an element of a stream between processes. element: its type in C++. Raises `KeyError` for a
    type that is not in `ELEMENTS` and no uOP."""
    if found := re.fullmatch(r"Uop<(\w+)::words>", element):
        return 1 + 32 * max(form.mop.WORDS for form in overlay.formats if form.kind == found[1])
    return ELEMENTS[element]


def _memory(part: str, bits: int, words: int, copies: int, where: str) -> Iterator[Need]:
    if where == "URAM":
        yield Need("URAM", copies * ultra_rams(bits, words), part)
    elif where == "BRAM" or words > LUT_DEPTH:
        halves = ceil(copies * half_block_rams(bits, words) / 2)
        yield Need("BRAM", min(copies * block_rams(bits, words), halves), part, not where)
    else:
        yield from cells_of(part, copies * lut_ram(bits, words))


def process_counts(overlay: Overlay) -> Counter[str]:
    """Return how many processes run each function of hw/versal/xnn8, by the function's name, decoders included.
    overlay: xnn8."""
    counts = Counter(function for _, function, _ in processes())
    counts.update("decode_bank" if unit.bank else "decode" for unit in overlay.units)
    return counts


@cache
def operators() -> Mapping[str, Mapping[str, int]]:
    """Return the table of hw/versal/operators.py: by process, the LUTs and flip-flops of its logic, and how many of
    each other operator it has, by the operator's name and bits."""
    return tomllib.loads(files(__package__).joinpath("operators.toml").read_text(encoding="utf-8"))


def arithmetic(found: Mapping[str, int]) -> tuple[int, Cells]:
    """Return how many DSPs, and how many LUTs and flip-flops, a process takes. found: of the process, as `operators`
    returns it: `LUT` and `FF` of its logic, and how many it has of each other operator, by name and bits. Raises
    `KeyError` for an operator that is not known."""
    dsp, cells = 0, Cells(found.get("LUT", 0), found.get("FF", 0))
    for text, count in found.items():
        name, _, size = text.partition(" ")
        if name == "loop":
            cells += count * Cells(ff=LOOP_STATE)
        elif name == "step":  # whether there is an item in it; all move on by one signal, which enables flip-flops
            cells += count * Cells(ff=1)
        elif name == "multiply":
            larger, smaller, made = map(int, re.findall(r"\d+", size))
            blocks = multipliers(larger, smaller, made)
            dsp += count * blocks
            cells += count * blocks * Cells(GLUE, larger + smaller + made)
        elif name not in ("logic", "LUT", "FF"):
            cells += count * piece(f"integer {name}", int(size))
    return dsp, cells


def multipliers(larger: int, smaller: int, made: int) -> int:
    """Return how many DSPs a product of two integers takes. Both are cut into parts that a DSP multiplies; parts whose
    products lie above the bits that are kept take none. larger, smaller, made: bits of the operands and of what is kept
    of the product, with their signs."""

    def of(a: int, b: int) -> int:
        high, low = DSP_BITS
        places = [(i, j) for i in range(ceil((a - 1) / high)) for j in range(ceil((b - 1) / low))]
        return sum(i * high + j * low < made for i, j in places)

    return max(1, min(of(larger, smaller), of(smaller, larger)))
