"""What each part of the XNN machine takes of a VC1902, as the sources in hw/versal describe it.

Memories: a slot lies in two banks of 512 bit, or in eight of 128 where it is filled transposed; the slots of a unit are
memories of their own. Streams of 1024 bit deep enough for a block or a tile are block RAM. Arithmetic: what
one round of a loop computes, shared over its initiation interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from ....machine.resources import Need
from ...overlay import Overlay
from .cycles import LOOPS
from .tiles import BEAT, LANES, ROW_TOKEN

PORTS = {"DDR": 2, "LPDDR": 2}
"""AXI ports of 512 bit."""
PORT_LINES = 8 * 64
"""A port's adapter holds so many lines: 8 bursts of 64."""
TILES_PER_MME = 64
WORD_BITS = 32 * BEAT
"""Of a word of a memory; a slot takes and gives one in each cycle."""

# DSP and LUT of an operator of float32. On Versal a DSP58 adds or multiplies; the rest is what Vitis HLS reports for
# devices of the same family of operators, rounded.
OPERATORS: Mapping[str, tuple[int, int]] = {
    "add": (1, 30),
    "mul": (1, 30),
    "exp": (7, 900),
    "div": (0, 800),
    "sqrt": (0, 450),
    "add in fabric": (0, 350),
    "mul in fabric": (0, 600),
    "compare": (0, 60),
}

# What one round of a loop computes: of each of 32 elements, or of a row.
ARITHMETIC: Mapping[str, Mapping[str, int]] = {
    "receive": {"add": 32},
    "softmax_max": {"compare": 32, "mul": 4},
    "softmax_exp": {"mul in fabric": 32, "add in fabric": 64, "exp": 32},
    "softmax_scale": {"div": 32},
    "activation": {"mul": 256, "add": 224, "exp": 32, "div": 32},
    "norm_sum": {"add in fabric": 32},
    "norm_squares": {"add": 32, "mul": 32, "add in fabric": 32},
    "norm_scale": {"add": 32, "div": 32},
    "exchange": {"add": 1, "div": 1, "sqrt": 1},
}

# LUTs of the rest, in thousands: rough.
LOGIC = {"MemA": 6, "MemB": 16, "MemC": 20, "MeshA": 6, "MeshB": 5, "DDR": 20, "LPDDR": 14}
INSTRUCTION_PATH = 15


def block_rams(width: int, depth: int) -> int:
    """Blocks of 36 Kbit for a memory with one port to write and one to read, in the best of their shapes."""
    shapes = ((72, 512), (36, 1024), (18, 2048), (9, 4096))
    return min(ceil(width / w) * ceil(depth / d) for w, d in shapes)


def ultra_rams(width: int, depth: int) -> int:
    return ceil(width / 72) * ceil(depth / 4096)


def needs(overlay: Overlay) -> Iterator[Need]:
    yield from _buffers(overlay)
    yield from _streams(overlay)
    yield from _arithmetic(overlay)
    mmes = len(overlay.by_kind["MME"])
    yield Need("AIE", TILES_PER_MME * mmes, "MMEs")
    for kind in overlay.by_kind:
        if kind in LOGIC:
            yield Need("LUT", 1000 * LOGIC[kind] * len(overlay.by_kind[kind]), f"control and crossbars of {kind}", True)
    yield Need("LUT", 1000 * INSTRUCTION_PATH, "fetch, dispatcher, decoders", True)


def _buffers(overlay: Overlay) -> Iterator[Need]:
    for unit in overlay.units:
        memory = unit.memory
        if memory is None:
            continue
        width, depth = WORD_BITS // memory.banks, memory.rows * memory.columns // BEAT
        ultra = depth >= 2048
        blocks = (ultra_rams if ultra else block_rams)(width, depth)
        yield Need("URAM" if ultra else "BRAM", memory.slots * memory.banks * blocks, f"buffers of {unit.kind}")


def _streams(overlay: Overlay) -> Iterator[Need]:
    for s in overlay.streams:
        source, sink = overlay.by_unit[s.src].kind, overlay.by_unit[s.dst].kind
        part = f"streams {source}->{sink}" + (f", {s.label}" if s.label else "")
        if "MME" in (source, sink):
            yield Need("PLIO in" if sink == "MME" else "PLIO out", LANES, part)
        else:
            elements = min(s.token.word_elements, BEAT)  # of a memory's word: a tile goes through in beats
            depth = s.depth * s.token.word_elements // elements
            yield Need("BRAM", block_rams(32 * elements, depth), part)
    for unit, ports in PORTS.items():
        both = 2 if unit == "DDR" else 1  # to read and to write
        yield Need("BRAM", ports * both * block_rams(512, PORT_LINES), f"AXI adapters of {unit}", True)


def _arithmetic(overlay: Overlay) -> Iterator[Need]:
    for unit in overlay.by_kind["MemC"]:
        sends = any(s.src == unit.name and s.token is ROW_TOKEN for s in overlay.streams)
        for name, part in (("receive", "sums"), ("softmax", "softmax"), ("activation", "activation"), ("norm", "norm")):
            if name == "softmax" and not sends:
                continue
            loops = [loop for loop in ARITHMETIC if loop.startswith(name) or (name == "norm" and loop == "exchange")]
            for resource, which in (("DSP", 0), ("LUT", 1)):
                amount = sum(
                    OPERATORS[op][which] * ceil(count / (LOOPS[loop].ii * LOOPS[loop].rounds))
                    for loop in loops
                    for op, count in ARITHMETIC[loop].items()
                )
                yield Need(resource, amount, f"{part} in MemC", True)
