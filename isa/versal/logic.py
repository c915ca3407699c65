"""How many LUTs and DSPs the pieces of a unit of hw/versal/pl take.

Three kinds of numbers: counted from the structure of a piece; calibrated on a published figure, which
`calibration.py` compares with; and rough ones, which nobody has published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from ...machine.resources import Need
from ..overlay import Overlay
from .loop import PipelinedLoop
from .tiles import BEAT

FLOAT = 32
WORD_BITS = FLOAT * BEAT
"""Of a word of a memory or stream, and of a beat."""

# -- counted

SRL_DEPTH = 32
"""Half of the LUTs can each be a shift register of one bit and so many words (AM005, AM011)."""
FLOAT_COMPARISON = 40
"""Of float32: 32 bits, and NaN."""
MASK = 32
"""Whether an element is valid: its column against the first and the last one of its row."""
BOUND = 40
"""The first or the last valid column of a row: a sum of 13 bits, and the smaller or larger of two."""


def multiplexer(ways: int) -> float:
    """LUTs per bit of a choice among so many.

    A LUT has six inputs: four to choose from, and two bits of address. Two choices between two fit one LUT, since they
    share their address (AM011: two outputs of five common inputs). Versal has no wider multiplexers (AM005)."""
    return 0.0 if ways < 2 else 0.5 if ways == 2 else ceil((ways - 1) / 3)


def fifo(width: int, depth: int) -> int:
    """LUTs of a stream: shift registers where it is short; else block RAM, whose output is either the memory's or the
    word that has just come in. And pointers."""
    return width + 20 if depth <= SRL_DEPTH else width // 2 + 50


REGISTER_SLICE = multiplexer(2)
"""LUTs per bit of an AXI4-Stream port of a kernel. HLS registers all its signals (UG1399: register mode `both` is the
default), so it can hold a second word, and chooses between the two. Only streams to and from MMEs have such ports;
others lie between two units of the kernel, and are FIFOs."""


def lut_ram(width: int, depth: int) -> int:
    """LUTs of a memory with a port to write and one to read: eight LUTs hold 64 words of 7 bits (RAM64M8,
    UG1353), and more words need a multiplexer (AM005)."""
    parts = ceil(depth / 64)
    return ceil(width * parts * 8 / 7 + width * multiplexer(parts))


def block_rams(width: int, depth: int) -> int:
    """Blocks of 36 Kbit for a memory with one port to write and one to read, in the best of their shapes."""
    shapes = ((72, 512), (36, 1024), (18, 2048), (9, 4096))
    return min(ceil(width / w) * ceil(depth / d) for w, d in shapes)


def ultra_rams(width: int, depth: int) -> int:
    """Blocks of 288 Kbit (72 bit by 4096 words) for a memory of so many words of `width` bits."""
    return ceil(width / 72) * ceil(depth / 4096)


# -- calibrated

DIVIDER = 500
EXP = 500
"""A divider of float32, and exp with one DSP. From the two kinds of MemC: softmax adds 32 of each, and without it there
are 13 dividers and 4 exps. A divider that subtracts 26 bits for each of 26 bits would be of 700; exp would then be of
300, and our machine of 22,000 LUTs less."""
AXI_PORT = {"LUT": 4939, "BRAM": 15.5}
"""An AXI port: the published figure."""

# -- rough

SQUARE_ROOT = 400
"""LUTs, of float32: 26 bits of the root, each a subtraction of half as many bits on average; exponent and rounding."""
FLOAT_ADDER = 250
"""LUTs, of float32 without a DSP: two shifters of 5 levels, an adder, a count of leading zeros, rounding. Only the
published implementation has such adders, 28 in a MemC with softmax, so `EXP` and `DIVIDER` depend on this."""
GLUE = 30
"""LUTs beside a DSP that adds or multiplies: the registers that keep its operands in step, as shift registers."""
CONTROL = 150
"""LUTs of a loop: its state, counters, addresses."""
UNIT = 500
"""LUTs of a unit: fields of its uOPs, its state, the choice of a slot."""
INSTRUCTION_PATH = 15_000
"""LUTs of fetch, dispatcher and decoders."""


@dataclass(frozen=True)
class OperatorCost:
    """DSPs and LUTs of an operator, and how many of its inputs change from round to round."""

    dsp: int
    lut: int
    inputs: int = 2


OPERATORS: Mapping[str, OperatorCost] = {
    "add": OperatorCost(1, GLUE),  # primitive DSP: a DSP58 as DSPFP32
    "mul": OperatorCost(1, GLUE),
    "madd": OperatorCost(1, GLUE + GLUE // 2, 3),  # fmadd of UG1399: a DSPFP32 has both
    "exp": OperatorCost(1, EXP, 1),  # medium use of DSPs
    "div": OperatorCost(0, DIVIDER),
    "reciprocal": OperatorCost(0, DIVIDER, 1),
    "sqrt": OperatorCost(0, SQUARE_ROOT, 1),
    "add in fabric": OperatorCost(0, FLOAT_ADDER),
    "compare": OperatorCost(0, FLOAT_COMPARISON + FLOAT // 2),  # and takes the greater one
    "mask": OperatorCost(0, MASK),
    "bound": OperatorCost(0, BOUND),
}
"""On Versal a DSP58 adds or multiplies in float32 (UG1399: impl=primitivedsp). With impl=meddsp exp takes one DSP: the
published implementation has 152 DSPs that are not used as DSPFP32, of 4 * 32 exps in softmax and 6 * 4 in gelu."""


@dataclass(frozen=True)
class LoopWork:
    """What a loop computes of one item, and what it moves.

    loop: its name in the table of loops. part: what its LUTs and DSPs are reported as. operators: how many of each.
    reads, writes: accesses to a buffer.
    """

    loop: str
    part: str
    operators: Mapping[str, int] = field(default_factory=dict)
    reads: int = 0
    writes: int = 0


def arithmetic(loop: PipelinedLoop, operators: Mapping[str, int]) -> tuple[int, int]:
    """DSPs and LUTs of what a loop computes. With an interval above 1 HLS shares an operator among as many operations,
    and puts a multiplexer before each of its inputs; with rounds the item moves past the operators."""
    dsp = lut = 0
    for name, count in operators.items():
        operator, copies = OPERATORS[name], ceil(count / (loop.ii * loop.rounds))
        dsp += copies * operator.dsp
        lut += copies * (operator.lut + ceil(operator.inputs * FLOAT * multiplexer(loop.ii)))
    if loop.rounds > 1:
        lut += ceil(WORD_BITS * multiplexer(2))  # a patch is loaded or moves down
    return dsp, lut


def crossbars(works: Sequence[LoopWork], banks: int, slots: int) -> int:
    """LUTs between the loops of a unit and its slots: every access has a butterfly between the order of its words and
    the banks; the side that fills and the side that empties read any slot; any loop that writes may write to a slot."""
    levels = (banks - 1).bit_length()
    writers = sum(work.writes for work in works)
    accesses = writers + sum(work.reads for work in works)
    choices = accesses * levels * multiplexer(2) + 2 * multiplexer(slots) + slots * multiplexer(writers)
    return ceil(WORD_BITS * choices)


PORTS = {"DDR": 2, "LPDDR": 2, "instructions": 1}
"""AXI ports of 512 bit; the one for instructions is narrower, and counted like the others."""
TILES_PER_MME = 64


def axi_ports() -> Iterator[Need]:
    """What the adapters of the kernel's AXI ports take."""
    for where, count in PORTS.items():
        for resource, each in AXI_PORT.items():
            yield Need(resource, ceil(count * each), f"AXI ports, {where}", True)


def instruction_streams(overlay: Overlay, which: int = 1) -> Iterator[Need]:
    """LUTs of the streams of mOPs and uOPs in front of all decoders and units. which: bits in each that say which of
    the unit's formats it has."""
    for kind, units in overlay.by_kind.items():
        words = [form.mop.WORDS for form in overlay.formats if form.kind == kind]
        if words:
            width = 32 * max(words)
            header = 1 + which + 8 + 16  # end, format, window, reuse
            both = fifo(width + header, overlay.mop_fifo_depth) + fifo(width + 1 + which, overlay.uop_fifo_depth)
            yield Need("LUT", len(units) * both, "streams of instructions", True)
