"""What the loops of the XNN units cost in cycles, as hw/versal/pl states it to the HLS compiler.

An initiation interval (II) is a choice of the sources: hw/versal/isa.h takes it from here. A loop of n rounds takes
n * ii + fill cycles; fill, the depth of its pipeline, is what the compiler makes of it, so an estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...machine.resources import Cost
from ..layout import BLOCK
from ..overlay import Overlay
from .xnn_kernels import BEAT, BEATS, BLOCK_WORDS


@dataclass(frozen=True)
class Loop:
    """ii: cycles from one round to the next. fill: from the beginning of a round to its end."""

    ii: int
    fill: int
    doc: str

    def cycles(self, rounds: int) -> int:
        return rounds * self.ii + self.fill if rounds else 0


LOOPS: Mapping[str, Loop] = {
    "fetch": Loop(1, 70, "a word of the image"),
    "decode": Loop(1, 4, "a uOP, once its window is there"),
    "port": Loop(1, 4, "a word from or to both ports of a bank, in bursts of 64"),
    "load": Loop(1, 4, "a word into a buffer"),
    "store": Loop(1, 4, "a word out of a buffer"),
    "send": Loop(1, 4, "a beat out of a buffer"),
    "mesh": Loop(1, 3, "a beat from all sources to all destinations"),
    "receive": Loop(1, 10, "a beat added to a buffer"),
    "exchange": Loop(1, 30, "a row's number to or from a neighbour, or made of both"),
    "softmax_max": Loop(1, 30, "a 4x8 patch: row maxima"),
    "softmax_exp": Loop(1, 50, "a 4x8 patch: scale, subtract, exp, row sums"),
    "softmax_divide": Loop(1, 35, "a 4x8 patch"),
    "activation": Loop(8, 150, "a 4x8 patch, four elements a cycle"),
    "norm_sum": Loop(2, 25, "a 4x8 patch: row sums"),
    "norm_squares": Loop(4, 30, "a 4x8 patch: sums of squares"),
    "norm_scale": Loop(4, 70, "a 4x8 patch: subtract, divide"),
}

BURST_WORDS = 64


def costs(overlay: Overlay) -> Iterator[Cost]:
    """Cycles of each kind of work, beside the rates that the simulator charges for it."""
    rate, clock_hz = overlay.seconds, overlay.clock_hz

    def cost(what: str, cycles: int, simulated: float, remark: str = "", sets: tuple[str, float] | None = None) -> Cost:
        return Cost(what, cycles, cycles / clock_hz, simulated, remark, sets)

    def walk(rows: int, cols: int) -> int:
        return rows * cols // BEAT

    loop = {name: x.cycles for name, x in LOOPS.items()}
    bursts = BLOCK_WORDS // BURST_WORDS
    yield cost(
        "DDR, LPDDR: load a 128x64 block",
        bursts * loop["port"](BURST_WORDS),
        rate["offchip_uop"] + 4 * BLOCK * rate["ddr_read_gbs"],
        "the memory is the limit, not the ports",
    )
    yield cost("MemA, MemB: fill a 128x64 block", loop["load"](BLOCK_WORDS), BLOCK_WORDS * rate["mem_word"])
    yield cost("MemC: drain a 128x64 block", loop["store"](BLOCK_WORDS), BLOCK_WORDS * rate["mem_word"])
    yield cost("MemA, MemB, MemC: send a tile", loop["send"](BEATS), BEATS * rate["mesh_beat"])
    yield cost("MeshA, MeshB: a tile", loop["mesh"](BEATS), BEATS * rate["mesh_beat"])
    yield cost("MemC: receive a tile", loop["receive"](BEATS), BEATS * rate["mesh_beat"])
    square, whole = walk(256, 256), walk(256, 512)
    rows = loop["exchange"](256)
    softmax = loop["softmax_exp"](square) + loop["softmax_divide"](square) + 2 * rows
    charged = rate["softmax_fill"] + 2 * square * rate["softmax_beat"] + 2 * rate["exchange_fill"]
    yield cost(
        "MemC: softmax of 256x256",
        softmax,
        charged,
        "rows to and from the neighbour, a cycle each; hidden: MemC waits for operands for longer",
        ("exchange_fill", rows),
    )
    yield cost(
        "MemC: softmax of 256x256, maximum subtracted",
        softmax + loop["softmax_max"](square) + 2 * rows,
        charged + rate["softmax_max_fill"] + square * rate["softmax_beat"] + 2 * rate["exchange_fill"],
        "opcode 8; the published machine has none",
    )
    yield cost(
        "MemC: activation of 256x512",
        loop["activation"](whole),
        whole * rate["gelu_beat"],
        "as many lanes as the DSPs allow",
        ("gelu_beat", loop["activation"](whole) / whole),
    )
    passes = loop["norm_squares"](whole) + loop["norm_scale"](whole) + 3 * rows
    layer_norm = passes + loop["norm_sum"](whole) + 2 * rows
    yield cost(
        "MemC: layer norm of 256x512", layer_norm, rate["norm_us"], sets=("norm_us", layer_norm / clock_hz * 1e6)
    )
    yield cost("MemC: RMS norm of 256x512", passes, rate["norm_us"], "opcode 8; no mean")
    for kind in ("DDR", "MeshA"):
        name = "DDR, LPDDR, Mem" if kind == "DDR" else "Mesh"
        cycles = overlay.format_of(kind).decode_cycles
        yield cost(
            f"decoder: a {name} uOP", LOOPS["decode"].ii, cycles * rate["decode"], "units take longer for one than this"
        )
    yield cost("dispatcher: a word", 1, rate["dispatch"])
