"""What the loops of the units cost in cycles, as hw/versal/xnn2 states them to the HLS compiler, beside the rates.

A loop of one round computes 32 elements a cycle. A loop of n rounds computes 32 / n elements a cycle, and has as many
operators fewer. What is on the way to an MME or a Softmax must take one round: an MME takes a tile in 964 cycles, a
Softmax gets one in 537. A result comes in 964 cycles at the earliest, and mostly after several products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....machine.resources import OperationTime
from ...overlay import Overlay
from ...versal import loop as versal
from ...versal.loop import PipelinedLoop
from ...versal.tiles import BEATS, BLOCK_WORDS, TILE
from .scratch import GROUPS

LOOPS: Mapping[str, PipelinedLoop] = {
    **versal.LOOPS,
    "port": PipelinedLoop(1, 32, "a word from or to both ports of a bank, in bursts of 64; those of X are normalised"),
    "vector": PipelinedLoop(2, 32, "a word of a vector, of two lines of one port"),
    "load": PipelinedLoop(1, 8, "a word into a buffer"),
    "send": PipelinedLoop(1, 30, "a beat out of a buffer, by a multiply-add, or by a factor that is made before"),
    "take": PipelinedLoop(1, 16, "a beat into T, K or V"),
    "table": PipelinedLoop(
        1, 8, "a word of a table into Post, a half in a round: of two rows, whose other halves came before", rounds=2
    ),
    "ends": PipelinedLoop(1, 8, "the ends of four rows of a head"),
    "rows": PipelinedLoop(1, 54, "what a port of X asks of its memories, until it is done"),
    "statistics": PipelinedLoop(
        1, 130, "a beat into X: sums of its rows and of squares, two rows a round; then they are joined", rounds=2
    ),
    "factors": PipelinedLoop(1, 70, "a row's factor and what is added, from its statistics"),
    "head_sums": PipelinedLoop(
        1, 50, "a beat, four elements a round: sums of heads, or of squares apart from their means", rounds=8
    ),
    "head_factors": PipelinedLoop(4, 70, "a row of a head: mean, or its factor and what is added"),
    "combine": PipelinedLoop(1, 30, "a beat of a result, two rows a round: bias, residual times scale", rounds=2),
    "softmax": PipelinedLoop(1, 110, "a beat: a row of 32 columns: mask, running maximum, exp, running sum"),
    "softcap": PipelinedLoop(1, 110, "a beat, two elements a round: cap * tanh(score / cap)", rounds=16),
    "rotate": PipelinedLoop(1, 50, "a beat, two elements a round: norm of a head, gains, rotation", rounds=16),
    "activation": PipelinedLoop(1, 150, "a beat, two elements a round: activation, gate", rounds=16),
}


def costs(overlay: Overlay) -> Iterator[OperationTime]:
    """Yield the cycles of each kind of work by the loops of hw/versal/xnn2, beside the seconds that the simulator
    charges. overlay: xnn2, with any rates. Raises `KeyError` if it lacks a rate of xnn2.
    """
    rate, clock_hz = overlay.seconds, overlay.clock_hz
    loop = {name: x.cycles for name, x in LOOPS.items()}
    statistics, combine = LOOPS["statistics"].rounds, LOOPS["combine"].rounds
    beat = BEATS * rate["mesh_beat"]

    def cost(what: str, cycles: int, simulated: float, remark: str = "") -> OperationTime:
        return OperationTime(what, cycles, cycles / clock_hz, simulated, remark)

    yield cost("X, T, K, V, W: send a tile", loop["send"](BEATS), beat)
    yield cost("T: take a tile", loop["take"](BEATS), beat)
    asked = LOOPS["rows"].fill
    yield cost("X: take a tile", loop["rows"](BEATS), beat + asked * rate["mesh_beat"], "until it is written")
    blocks = BLOCK_WORDS * rate["mem_word"]
    yield cost("T, K, V: take a 128x64 block", loop["take"](BLOCK_WORDS), blocks, "the depth of the loop")
    yield cost("MeshA, MeshB: a tile", loop["mesh"](BEATS), beat)
    counted = statistics * beat + LOOPS["statistics"].fill * rate["mesh_beat"]
    yield cost("X: take a tile, with statistics", loop["statistics"](BEATS), counted, "until rows are joined")
    normalised = loop["factors"](TILE) + loop["send"](8 * BEATS)
    yield cost("X: send eight tiles, normalised", normalised, TILE * rate["mem_word"] + 8 * beat)
    yield cost("C: a tile, with bias or residual", loop["combine"](BEATS), combine * beat)
    yield cost(
        "Softmax: a tile",
        loop["softmax"](BEATS + 2 * GROUPS),
        BEATS * rate["softmax_beat"],
        "the depth of the loop, once a head",
    )
    yield cost("Softmax: a tile, with soft cap", loop["softcap"](BEATS + 2 * GROUPS), BEATS * rate["softcap_beat"])
    yield cost("T: send a head of four tiles of probabilities", loop["send"](4 * (BEATS + 2 * GROUPS)), 4 * beat)
    yield cost("Post: activation of a tile", loop["activation"](BEATS), BEATS * rate["activation_beat"])
    rotated = BEATS * rate["rotate_beat"]
    yield cost("Post: rotation of a tile", loop["rotate"](BEATS), rotated)
    sums = loop["head_sums"](BEATS) + loop["head_factors"](2 * TILE)
    heads = 2 * sums + loop["rotate"](BEATS)
    charged = 2 * LOOPS["head_sums"].rounds * beat + rotated
    yield cost("Post: norm of heads of a tile", heads, charged, "factors of rows")
    decode = overlay.format_of("MeshA").decode_cycles
    yield cost("decoder: a uOP", 1, decode * rate["decode"], "units take longer for one than this")
