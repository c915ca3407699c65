"""What the loops of all units cost in cycles, as hw/versal/pl states it to the HLS compiler, beside the rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....machine.resources import OperationTime
from ...layout import BLOCK
from ...overlay import Overlay
from ...versal import loop as versal
from ...versal.loop import PipelinedLoop
from ...versal.tiles import BEAT, BEATS, BLOCK_WORDS
from . import mem_a, mem_c, post_ops

LOOPS: Mapping[str, PipelinedLoop] = {
    **versal.LOOPS,
    **mem_c.LOOPS,
    **mem_a.LOOPS,
    **post_ops.LOOPS,
}

BURST_WORDS = 64


def _walk(rows: int, cols: int) -> int:
    """Patches of a walk over a buffer."""
    return rows * cols // BEAT


def costs(overlay: Overlay) -> Iterator[OperationTime]:
    """Yield the cycles of each kind of work by the sources, beside the seconds that the simulator charges for it.

    overlay: XNN or its base, with any rates; work of opcodes 9 to 14 is left out if it has no rate `rotate_beat`.
    Raises `KeyError` if another rate is missing.
    """
    rate, clock_hz = overlay.seconds, overlay.clock_hz

    def cost(
        what: str, cycles: int, simulated: float, remark: str = "", sets: tuple[str, float] | None = None
    ) -> OperationTime:
        return OperationTime(what, cycles, cycles / clock_hz, simulated, remark, sets)

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
    square, whole = _walk(256, 256), _walk(256, 512)
    rows = loop["exchange"](256)
    late = "rotate_beat" in rate  # the product is made while results leave
    scale = 0 if late else mem_c.BASE_LOOPS["softmax_scale"].cycles(square)
    softmax = loop["softmax_exp"](square) + scale + 2 * rows
    charged = rate["softmax_fill"] + (1 if late else 2) * square * rate["softmax_beat"] + 2 * rate["exchange_fill"]
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
        sets=("gelu_beat", loop["activation"](whole) / whole),
    )
    passes = loop["norm_squares"](whole) + loop["norm_scale"](whole) + 3 * rows
    layer_norm = passes + loop["norm_sum"](whole) + 2 * rows
    yield cost(
        "MemC: layer norm of 256x512", layer_norm, rate["norm_us"], sets=("norm_us", layer_norm / clock_hz * 1e6)
    )
    yield cost("MemC: RMS norm of 256x512", passes, rate["norm_us"], "opcode 8; no mean")
    if late:
        for what, cycles, simulated, remark in _of_extensions(rate):
            yield cost(what, cycles, simulated, remark)
    for kind in ("DDR", "MeshA"):
        name = "DDR, LPDDR, Mem" if kind == "DDR" else "Mesh"
        cycles = overlay.format_of(kind).decode_cycles
        yield cost(
            f"decoder: a {name} uOP", LOOPS["decode"].ii, cycles * rate["decode"], "units take longer for one than this"
        )
    yield cost("dispatcher: a word", 1, rate["dispatch"])


def _of_extensions(rate: Mapping[str, float]) -> Iterator[tuple[str, int, float, str]]:
    """What opcodes 9 to 14 add: the work, its cycles, the seconds that the simulator charges, and why they differ."""
    loop = {name: x.cycles for name, x in LOOPS.items()}
    square, whole, quarter = _walk(256, 256), _walk(256, 512), _walk(256, 128)
    rows = loop["exchange"](256)
    yield "MemC0 to MemC3: send a tile, times 1 / row sums", loop["deliver"](BEATS), BEATS * rate["mesh_beat"], ""
    yield (
        "MemC0 to MemC3: a 128x64 block to DDR, times 1 / row sums",
        loop["deliver"](BLOCK_WORDS),
        BLOCK_WORDS * rate["mem_word"],
        "the depth of a product",
    )
    yield "MemC: activation of 256x256, times a gate", loop["activation"](square), square * rate["gelu_beat"], ""
    yield "MemC: rotation of 256x512", loop["rotate"](whole), whole * rate["rotate_beat"], ""
    of_head = loop["norm_squares"](quarter) + loop["norm_scale"](quarter) + 2 * rows
    yield (
        "MemC: RMS norm of 256x512, over each head of 128 columns",
        4 * of_head,
        rate["norm_us"],
        "no mean; a rest of LayerNorm's time",
    )
    statistics = loop["norm_sum"](whole) + loop["norm_squares"](whole) + 4 * rows + 2 * loop["statistics"](64)
    yield (
        "MemC: statistics of the rows of 256x512, sent",
        statistics,
        rate["norm_us"] * mem_c.STATISTICS_SHARE + 2 * 64 * rate["mem_word"],
        "the charged time is a share of LayerNorm's",
    )
    words = 4 * BLOCK_WORDS
    yield "MemA: fill 256x128, normalised", loop["normalise"](words), words * rate["normalise_word"], ""
    taken = loop["statistics"](4 * 64) + loop["exchange"](128)
    yield (
        "MemA: statistics of 128 rows, four parts",
        taken,
        4 * 64 * rate["mem_word"],
        "two rounds a word, then 1 / deviation; at 0.6 words a cycle the memory takes as long as the rounds",
    )
    yield "MemC: soft cap of 256x256", loop["softcap"](square), square * rate["softcap_beat"], ""
    square_pass, fills = square * rate["softmax_beat"], 4 * rate["exchange_fill"]
    yield (
        "MemC: a part of a softmax, 256x256: maxima and sums",
        loop["softmax_max"](square) + loop["softmax_exp"](square) + 4 * rows,
        2 * square_pass + rate["softmax_fill"] + rate["softmax_max_fill"] + fills,
        "rows to and from the neighbour, a cycle each",
    )
    yield (
        "MemC: a part of a softmax, 256x256: exp",
        loop["softmax_exp"](square) + 2 * rows,
        square_pass + rate["softmax_fill"],
        "kept maxima and sums, a row a cycle",
    )
