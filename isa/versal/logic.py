"""How many LUTs, flip-flops and DSPs the pieces of a unit of hw/versal take.

There are four kinds of numbers. Some are of pieces that were synthesised (`pieces.toml`). Some are counted from the
structure of a memory. Some are calibrated on a published figure (`calibration.py`). The others are rough: nobody has
published them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from ...machine.resources import Need
from ..overlay import Overlay
from ..packet import MAX_WINDOW
from .loop import PipelinedLoop
from .pieces import NO_CELLS, Cells, next_larger, piece
from .tiles import BEAT

FLOAT = 32
WORD_BITS = FLOAT * BEAT
"""Of a word of a memory or stream, and of a beat."""
BOUND_BITS = 13
"""Of a column or row, and of their sums with an offset."""

# -- synthesised

PIECE_BITS, MEMORY_BITS = 64, 112
"""Of the words of pieces that are counted by the bit, and of memories (`hw/versal/pieces.py`)."""
SRL_DEPTH = 32
"""Half of the LUTs can each be a shift register of one bit and so many words (AM005, AM011)."""
FIFO_DEPTHS = (2, 4, 16, SRL_DEPTH)


def multiplexer(ways: int, bits: int) -> Cells:
    """Return the cells of a choice among `ways` words of `bits` bits, and of the register behind it; none for fewer
    than two ways. Between synthesised numbers of ways they are interpolated.
    """
    return NO_CELLS if ways < 2 else bits / PIECE_BITS * piece("multiplexer", ways)


def fifo(width: int, depth: int) -> Cells:
    """Return the cells of a stream of `depth` words of `width` bits, with its pointers. A short one is registers or
    shift registers; one deeper than `SRL_DEPTH` has its words in block RAM, which is not counted here, and chooses
    between the memory's output and the word that has just come in.
    """
    if depth > SRL_DEPTH:
        return piece("fifo in block RAM", width)
    return piece(f"fifo of {next(d for d in FIFO_DEPTHS if depth <= d)}", width)


def fifo_in_lut_ram(width: int, depth: int) -> Cells:
    """Return the cells of a stream of up to 64 words of `width` bits that a pragma puts into memories of LUTs. The
    smallest of these hold 14 bits of 32 words in eight LUTs; as shift registers they would take 14."""
    return piece(f"fifo of {32 if depth <= 32 else 64} in LUT RAM", width)


def register_slice(width: int) -> Cells:
    """Return the cells of an AXI4-Stream port of a kernel, of `width` bits. HLS registers all its signals (UG1399:
    register mode `both` is the default), so it can hold a second word, and chooses between the two. Only streams to and
    from MMEs have such ports; others lie between two units of the kernel, and are FIFOs.
    """
    return piece("register slice", width)


def lut_ram(width: int, depth: int) -> Cells:
    """Return the cells of a memory in LUTs of `depth` words of `width` bits with a port to write and one to read
    (RAM32M16, RAM64M8 of UG974; more words need a multiplexer), and of the register behind it.
    """
    return width / MEMORY_BITS * next_larger("memory", depth)


# -- counted


def block_rams(width: int, depth: int) -> int:
    """Return the blocks of 36 Kbit that a memory of `depth` words of `width` bits takes, with one port to write and one
    to read, in the best of their shapes.
    """
    shapes = ((72, 512), (36, 1024), (18, 2048), (9, 4096))
    return min(ceil(width / w) * ceil(depth / d) for w, d in shapes)


def half_block_rams(width: int, depth: int) -> int:
    """Return the blocks of 18 Kbit, halves of those of 36 Kbit, that a memory of `depth` words of `width` bits takes,
    with one port to write and one to read, or with two that read."""
    return min(ceil(width / w) * ceil(depth / d) for w, d in ((36, 512), (18, 1024), (9, 2048)))


def ultra_rams(width: int, depth: int) -> int:
    """Return the blocks of 288 Kbit (72 bit by 4096 words) that a memory of `depth` words of `width` bits takes."""
    return ceil(width / 72) * ceil(depth / 4096)


# -- calibrated

DIVIDER = 690
EXP = 300
"""LUTs of a divider of float32, and of exp with one DSP. From the two kinds of MemC: softmax adds 32 of each, and
without it there are 13 dividers and 4 exps. The divider of the table, which makes 26 digits and rounds, is of 806."""
AXI_PORT = {"LUT": 4939, "BRAM": 15.5}
"""An AXI port: the published figure."""

# -- rough

GLUE = 30
"""LUTs beside a DSP that adds or multiplies: the registers that keep its operands in step, as shift registers."""
CONTROL = 150
"""LUTs of a loop: its state, counters, addresses."""
LOOP_STATE = 64
"""Flip-flops of a loop beside one for each step of its pipeline: state, counters, addresses."""
UNIT = Cells(500, 400)
"""Of a unit: fields of its uOPs, its state, the choice of a slot."""
DECODER = Cells(300, 300)
"""A decoder beside its window. With `FETCH`, XNN's would be of 12,000 LUTs."""
FETCH = Cells(5000, 5000)
"""Fetch and dispatcher."""
LUT_DEPTH = 128
"""Words of a FIFO up to which it lies in LUTs: a wide one would use a quarter of its block RAMs."""
LUT_BITS = 1024
"""Bits of a FIFO up to which it lies in LUTs in any case (UG1399: auto_srl_max_bits)."""
INSTRUCTION_PATH = Cells(15_000, 15_000)
"""Of fetch, dispatcher and decoders."""
AXI_PORT_FLOPS = 4939
"""Flip-flops of an AXI port: as many as LUTs."""


@dataclass(frozen=True)
class OperatorCost:
    """What an operator takes of the device. dsp: DSPs. cells: LUTs and flip-flops. inputs: its number of operands that
    change from one round of a loop to the next, each of which needs a multiplexer where the operator is shared."""

    dsp: int
    cells: Cells
    inputs: int = 2


def _in_dsp(luts: int, inputs: int) -> OperatorCost:
    """An operator that is a DSP: HLS puts registers before its operands and behind its result."""
    return OperatorCost(1, Cells(luts, (inputs + 1) * FLOAT), inputs)


_DIVIDER_FLOPS = piece("divider", FLOAT).ff
OPERATORS: Mapping[str, OperatorCost] = {
    "add": _in_dsp(GLUE, 2),  # primitive DSP: a DSP58 as DSPFP32
    "mul": _in_dsp(GLUE, 2),
    "madd": _in_dsp(GLUE + GLUE // 2, 3),  # fmadd of UG1399: a DSPFP32 has both
    "exp": OperatorCost(1, Cells(EXP, _DIVIDER_FLOPS), 1),  # medium use of DSPs; about as many steps as a divider
    "div": OperatorCost(0, Cells(DIVIDER, _DIVIDER_FLOPS)),
    "reciprocal": OperatorCost(0, Cells(DIVIDER, _DIVIDER_FLOPS), 1),
    "sqrt": OperatorCost(0, piece("square root", FLOAT), 1),
    "add in fabric": OperatorCost(0, piece("adder", FLOAT)),
    "compare": OperatorCost(0, piece("larger", FLOAT)),  # and takes the greater one
    "mask": OperatorCost(0, piece("mask", FLOAT)),
    "bound": OperatorCost(0, piece("bound", BOUND_BITS)),
}
"""On Versal a DSP58 adds or multiplies in float32 (UG1399: impl=primitivedsp). With impl=meddsp exp takes one DSP: the
published implementation has 152 DSPs that are not used as DSPFP32, of 4 * 32 exps in softmax and 6 * 4 in gelu."""


@dataclass(frozen=True)
class LoopWork:
    """What a loop computes of one item, and what it moves.

    loop: its name in the table of loops. part: the name under which its resources are reported. operators: how many of
    each, by the names in `OPERATORS`. reads, writes: how many accesses to a buffer. choices: further multiplexers, each
    as (ways, bits): those of operators and accesses are not among them. kept: bits of registers that hold items or
    parts of them.
    """

    loop: str
    part: str
    operators: Mapping[str, int] = field(default_factory=dict)
    reads: int = 0
    writes: int = 0
    choices: Sequence[tuple[int, int]] = ()
    kept: int = 0


def arithmetic(loop: PipelinedLoop, work: LoopWork) -> tuple[int, Cells]:
    """Return the number of DSPs and the cells of the operators of a loop. loop: its interval and rounds. work: its
    operators.

    With an interval above 1 HLS shares an operator among as many operations, and puts a multiplexer before each of its
    inputs; with rounds the item moves past the operators. Raises `KeyError` for an operator that `OPERATORS` does not
    list."""
    dsp, cells = 0, Cells(ff=work.kept)
    for name, count in work.operators.items():
        operator, copies = OPERATORS[name], ceil(count / (loop.ii * loop.rounds))
        dsp += copies * operator.dsp
        cells += copies * (operator.cells + multiplexer(loop.ii, operator.inputs * FLOAT))
    if loop.rounds > 1:
        cells += piece("patch", WORD_BITS)  # is loaded or moves down
    for ways, bits in work.choices:
        cells += multiplexer(ways, bits)
    return dsp, cells


def control(loop: PipelinedLoop) -> Cells:
    """Return the cells of the control of a loop: HLS keeps for each step of the pipeline whether there is an item."""
    return Cells(CONTROL, LOOP_STATE + loop.fill)


def crossbars(works: Sequence[LoopWork], banks: int, slots: int) -> Cells:
    """Return the cells between the loops of a unit (`works`) and its slots. Every access has a butterfly between the
    order of its words and the `banks` banks; the side that fills and the side that empties read any of the `slots`
    slots; any loop that writes may write to a slot.
    """
    writers = sum(work.writes for work in works)
    accesses = writers + sum(work.reads for work in works)
    of_access = accesses * WORD_BITS / PIECE_BITS * piece("butterfly", banks)
    return of_access + 2 * multiplexer(slots, WORD_BITS) + slots * multiplexer(writers, WORD_BITS)


def cells_of(part: str, cells: Cells) -> Iterator[Need]:
    """Yield the needs of a part: its LUTs and its flip-flops, rounded up, as estimates."""
    if cells.lut:
        yield Need("LUT", ceil(cells.lut), part, True)
    if cells.ff:
        yield Need("FF", ceil(cells.ff), part, True)


PORTS = {"DDR": 2, "LPDDR": 2, "instructions": 1}
"""AXI ports of 512 bit; the one for instructions is narrower, and counted like the others."""
TILES_PER_MME = 64


def axi_ports(ports: Mapping[str, float] = PORTS) -> Iterator[Need]:
    """Yield the resources of the adapters of the kernel's AXI ports. ports: how many ports of 512 bit there are, by the
    name of the memory that they lead to; a narrower port is a fraction of one."""
    for where, count in ports.items():
        for resource, each in AXI_PORT.items():
            yield Need(resource, ceil(count * each), f"AXI ports, {where}", True)
        yield Need("FF", ceil(count * AXI_PORT_FLOPS), f"AXI ports, {where}", True)


def stream(part: str, width: int, depth: int) -> Iterator[Need]:
    """Yield the resources of a FIFO between two processes of a kernel: cells, or block RAM and cells. part: what they
    are reported as. width: of a word, in bits. depth: in words."""
    held = NO_CELLS
    if depth > LUT_DEPTH and width * depth > LUT_BITS:
        yield Need("BRAM", block_rams(width, depth), part)
    elif depth > SRL_DEPTH:
        held = lut_ram(width, depth)
    yield from cells_of(part, held + fifo(width, depth))


def instruction_path(overlay: Overlay) -> Iterator[Need]:
    """Yield the resources of fetch and dispatcher, and of a decoder for each unit with its window."""
    cells = FETCH
    for form in overlay.formats:
        cells += len(overlay.by_kind[form.kind]) * (DECODER + lut_ram(32 * form.mop.WORDS, MAX_WINDOW))
    yield from cells_of("fetch, dispatcher, decoders", cells)


def instruction_streams(overlay: Overlay, which: int = 1, consumers: Mapping[str, int] | None = None) -> Iterator[Need]:
    """Yield the resources of the streams of mOPs and uOPs in front of all decoders and units. which: how many bits of a
    word say which format of its unit an instruction has. consumers: by FU type, how many processes get the uOPs of one
    unit; 1 for types that are not listed."""
    for kind, units in overlay.by_kind.items():
        words = [form.mop.WORDS for form in overlay.formats if form.kind == kind]
        if words:
            width = 32 * max(words)
            header = 1 + which + 8 + 16  # end, format, window, reuse
            uops = (consumers or {}).get(kind, 1) * fifo(width + 1 + which, overlay.uop_fifo_depth)
            both = fifo(width + header, overlay.mop_fifo_depth) + uops
            yield from cells_of("streams of instructions", len(units) * both)
