"""What each part of the XNN machine takes of a VC1902, as the sources in hw/versal describe it.

Memories: a slot lies in two banks of 512 bit, or in eight of 128 where it is filled transposed; the slots of a unit are
memories of their own. Streams of 1024 bit deep enough for a block or a tile are block RAM. LUTs, flip-flops and DSPs:
what the loops of a unit compute and move, by the numbers of `logic.py`; `calibration.py` tells how far that is from
published figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ....machine.description import Stream, UnitSpec, memory_of
from ....machine.resources import Need
from ...overlay import Overlay
from ...packet import Header
from ...versal.logic import (
    FLOAT,
    INSTRUCTION_PATH,
    TILES_PER_MME,
    UNIT,
    WORD_BITS,
    LoopWork,
    arithmetic,
    axi_ports,
    block_rams,
    cells_of,
    control,
    crossbars,
    fifo,
    instruction_streams,
    lut_ram,
    multiplexer,
    register_slice,
    ultra_rams,
)
from ...versal.loop import PipelinedLoop
from ...versal.pieces import NO_CELLS
from ...versal.tiles import BEAT, BLOCK_WORDS, LANES, ROW_TOKEN
from . import extensions
from .cycles import LOOPS
from .mem_c import BASE_LOOPS
from .off_chip import TABLE_ROWS

ROW_BITS = 24
"""Of the number of a row in the table of rows."""

# What a loop takes for one item: a beat, a patch of 32 elements, a row.
MEM_C = (
    LoopWork("receive", "sums", {"add": 32}, reads=1, writes=1),
    LoopWork("store", "sums", reads=1),
    LoopWork("activation", "activation", {"mul": 256, "add": 224, "exp": 32, "div": 32}, reads=1, writes=1),
    LoopWork("norm_sum", "norm", {"add": 32}, reads=1),
    LoopWork("norm_squares", "norm", {"add": 64, "mul": 32}, reads=1),
    LoopWork("norm_scale", "norm", {"add": 32, "mul": 32}, reads=1, writes=1),
    LoopWork("exchange", "norm", {"add": 2, "div": 1, "sqrt": 1, "reciprocal": 1}),
)
RECEIVE_WITHOUT_DSPS = LoopWork("receive", "sums", {"add in fabric": 32}, reads=1, writes=1)
"""Instead of the first, where extensions need the DSPs: the loop with the most operators that do nothing but add."""
SOFTMAX = (
    LoopWork("send", "sums", reads=1),
    LoopWork("softmax_max", "softmax", {"mask": 32, "compare": 32, "mul": 4}, reads=1),
    LoopWork("softmax_exp", "softmax", {"mask": 32, "mul": 32, "add": 64, "exp": 32}, reads=1, writes=1),
    LoopWork("softmax_scale", "softmax", {"mul": 32}, reads=1, writes=1),
    LoopWork("exchange", "softmax", {"add": 1, "reciprocal": 1}),
)
"""What those MemCs have in addition that compute softmax and send to MeshA."""
LATE_PRODUCT = LoopWork("deliver", "softmax's product on the way out", {"mul": 32}, reads=2, writes=1)
"""Instead of the loops store, send and softmax_scale of such a MemC: one loop, so that all that leaves goes through the
same multipliers, and one that takes it from either shape of a word."""
LATE_ARRAYS = 2
"""Arrays of a factor per row, one to a slot."""
LATE_ROWS = 4
"""Rows of a beat; a word has two."""
ROW_ARRAYS = 2
"""Arrays of a number per row: of the norm, and as many of the softmax."""
ROW_BANKS, ROW_DEPTH = 4, 128
"""Of each array: patch_rows and row_patches of pl/mem_c.h."""
FILL_AND_SEND = (LoopWork("load", "", writes=1), LoopWork("send", "", reads=1))
FILL_ANYHOW_AND_SEND = (LoopWork("load", "", writes=3), LoopWork("send", "", reads=1))
"""Where blocks, transposed blocks and vectors are written by loops of their own."""


def needs(overlay: Overlay) -> Iterator[Need]:
    """Yield the resources that the machine takes: unit by unit, then streams, ports and the instruction path. overlay:
    with the unit kinds of XNN. Raises `ProgramError` for a MemA, MemB or MemC whose description has no memory, and
    `KeyError` for a unit of another kind."""
    for unit in overlay.units:
        if unit.memory is not None:
            yield buffers(unit)
        yield from LOGIC[unit.kind](overlay, unit)
    yield from streams(overlay)
    yield from outside(overlay)


def buffers(unit: UnitSpec, ultra: bool | None = None) -> Need:
    """Return the RAM blocks of a unit's slots. ultra: UltraRAM, or block RAM; None: UltraRAM if a bank has at least
    2048 words. Raises `ProgramError` if the unit has no memory.
    """
    memory = memory_of(unit)
    width, depth = WORD_BITS // memory.banks, memory.rows * memory.columns // BEAT
    if ultra is None:
        ultra = depth >= 2048
    blocks = (ultra_rams if ultra else block_rams)(width, depth)
    return Need("URAM" if ultra else "BRAM", memory.slots * memory.banks * blocks, f"buffers of {unit.kind}")


def streams(overlay: Overlay, short: bool = False) -> Iterator[Need]:
    """Yield the resources that the streams between units take. short: count every stream as a short one, made of shift
    registers, whatever its depth."""
    for s in overlay.streams:
        source, sink = overlay.by_unit[s.src].kind, overlay.by_unit[s.dst].kind
        part = f"streams {source}->{sink}" + (f", {s.label}" if s.label else "")
        if "MME" in (source, sink):
            yield Need("PLIO in" if sink == "MME" else "PLIO out", LANES, part)
            continue
        depth = s.depth * s.token.word_elements // (width_of(s) // FLOAT)
        if not short:
            yield Need("BRAM", block_rams(width_of(s), depth), part)
        yield from cells_of("streams between units", fifo(width_of(s), 2 if short else depth))


def width_of(stream: Stream) -> int:
    """Return the bits that a stream moves at a time: a word of its tokens, but a beat at most."""
    return FLOAT * min(stream.token.word_elements, BEAT)


def outside(overlay: Overlay) -> Iterator[Need]:
    """Yield the resources outside the units: the adapters of the AXI ports; fetch, dispatcher, decoders, and the
    streams of mOPs and uOPs."""
    yield from axi_ports()
    yield from cells_of("fetch, dispatcher, decoders", INSTRUCTION_PATH)
    yield from instruction_streams(overlay, FORMAT if extensions.extended(overlay) else 1)


FORMAT = Header.field("opcode").width
"""Bits that say which format the words of a mOP or uOP have. Without extensions one bit tells whether it sets
registers."""


def computes_softmax(overlay: Overlay, unit: UnitSpec) -> bool:
    """Whether a MemC computes softmax: it has a stream to a neighbour, for one number of each row."""
    return any(s.src == unit.name and s.token is ROW_TOKEN for s in overlay.streams)


def mem_c(
    overlay: Overlay, unit: UnitSpec, loops: Mapping[str, PipelinedLoop], works: Sequence[LoopWork], row_arrays: int
) -> Iterator[Need]:
    """Yield the resources of the logic of a MemC, without its slots. loops: intervals and rounds, by name. works: of
    its loops. row_arrays: number of arrays with one number for each row.

    Raises `KeyError` for a work of an unknown loop, `ProgramError` if the unit has no memory."""
    for work in works:
        dsp, cells = arithmetic(loops[work.loop], work)
        yield Need("DSP", dsp, f"{work.part} in MemC", True)
        yield from cells_of(f"{work.part} in MemC", cells + control(loops[work.loop]))
    yield from cells_of("numbers of rows in MemC", row_arrays * ROW_BANKS * lut_ram(FLOAT, ROW_DEPTH))
    yield from ring(overlay, unit, works)


def ring(overlay: Overlay, unit: UnitSpec, works: Sequence[LoopWork]) -> Iterator[Need]:
    """Yield the resources between the ports of a unit with slots and its slots. works: the accesses of its loops.
    Raises `ProgramError` if the unit has no memory."""
    memory = memory_of(unit)
    yield from cells_of(f"crossbars of {unit.kind}", crossbars(works, memory.banks, memory.slots))
    yield from frame(overlay, unit)


def frame(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    """Yield the resources of the state of a unit, and of its ports to or from MMEs."""
    of_unit = [s for s in overlay.streams if unit.name in (s.src, s.dst)]
    ports = [s for s in of_unit if "MME" in (overlay.by_unit[s.src].kind, overlay.by_unit[s.dst].kind)]
    cells = sum((register_slice(width_of(s)) for s in ports), start=UNIT)
    yield from cells_of(f"ports and state of {unit.kind}", cells)


def _mem_c(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    softmax, extended = computes_softmax(overlay, unit), extensions.extended(overlay)
    works: Sequence[LoopWork] = (RECEIVE_WITHOUT_DSPS, *MEM_C[1:]) if extended else MEM_C
    if softmax:
        works = (*works, *SOFTMAX)
    if softmax and extended:
        works = (*(w for w in works if w.loop not in ("store", "send", "softmax_scale")), LATE_PRODUCT)
        cells = multiplexer(2, WORD_BITS + LATE_ROWS * FLOAT)  # beat or word; whose rows' factors
        cells += LATE_ARRAYS * ROW_BANKS * lut_ram(FLOAT, ROW_DEPTH)
        yield from cells_of(f"{LATE_PRODUCT.part} in MemC", cells)
    yield from mem_c(overlay, unit, {**LOOPS, **BASE_LOOPS}, works, (1 + softmax) * ROW_ARRAYS)
    if extended:
        yield from extensions.needs(unit, works, softmax=softmax)


def _operands(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    """A MemA or MemB. A slot of two banks is not filled transposed."""
    works = FILL_AND_SEND if memory_of(unit).banks == 2 else FILL_ANYHOW_AND_SEND
    cells = sum(((w.reads + w.writes) * control(LOOPS[w.loop]) for w in works), start=NO_CELLS)
    yield from cells_of(f"crossbars of {unit.kind}", cells)
    yield from ring(overlay, unit, works)
    if extensions.extended(overlay):
        yield from extensions.needs(unit, works, softmax=False)


def mesh(overlay: Overlay, unit: UnitSpec, *, full: bool = False) -> Iterator[Need]:
    """Yield the resources of a Mesh, which connects each destination to the sources that have a route to it. full: as
    if each destination had a route from all sources."""
    sinks = [s.dst for s in overlay.streams if s.src == unit.name]
    sources = sum(s.dst == unit.name for s in overlay.streams)
    ways = [sources if full else sum(to == sink for _, to in unit.routes or ()) for sink in sinks]
    choice = sum((multiplexer(n, WORD_BITS) for n in ways), start=control(LOOPS["mesh"]))
    yield from cells_of(f"choice of sources in {unit.kind}", choice)
    yield from frame(overlay, unit)


def _off_chip(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    ways = sum(s.dst == unit.name for s in overlay.streams)  # whose words can be stored
    choice = multiplexer(ways, WORD_BITS) + 2 * control(LOOPS["port"])
    yield from cells_of(f"choice of sources in {unit.kind}", choice)
    yield from frame(overlay, unit)
    if unit.capability("keep_rows") is not None:
        part = f"single rows in {unit.kind}"
        yield Need("BRAM", block_rams(WORD_BITS, BLOCK_WORDS), part)
        # the table, a line of a word, and the loops of chunks and rows with the address of a row
        cells = lut_ram(ROW_BITS, TABLE_ROWS) + multiplexer(2, WORD_BITS // 2) + 2 * control(LOOPS["port"])
        yield from cells_of(part, cells)


def _mme(overlay: Overlay, unit: UnitSpec) -> Iterator[Need]:
    yield Need("AIE", TILES_PER_MME, "MMEs")


def added(overlay: Overlay, base: Overlay) -> Mapping[str, Mapping[str, int]]:
    """Return the resources that `overlay` needs in addition to `base`, which it extends: by capability, then by
    resource, in the resource's unit. Negative: it needs less. Raises as `needs`."""
    found = {True: Counter[tuple[str, str]](), False: Counter[tuple[str, str]]()}
    for machine in (overlay, base):
        for need in needs(machine):
            found[machine is overlay][need.part, need.resource] += need.amount
    found[True].subtract(found[False])
    out: dict[str, Counter[str]] = {}
    for (part, resource), amount in found[True].items():
        if amount:
            out.setdefault(_CHANGED.get(part, part.rpartition(" in ")[0]), Counter())[resource] += amount
    return {name: {r: amount for r, amount in amounts.items() if amount} for name, amounts in out.items()}


_CHANGED = {
    "buffers of MemB": "whole tiles of values",
    "sums in MemC": "sums of results without DSPs",
    "softmax in MemC": LATE_PRODUCT.part,
    "crossbars of MemC": LATE_PRODUCT.part,
    "streams of instructions": "formats of instructions",
}
"""Parts that a capability changes."""


LOGIC: Mapping[str, Callable[[Overlay, UnitSpec], Iterator[Need]]] = {
    "DDR": _off_chip,
    "LPDDR": _off_chip,
    "MemA": _operands,
    "MemB": _operands,
    "MemC": _mem_c,
    "MeshA": mesh,
    "MeshB": mesh,
    "MME": _mme,
}
