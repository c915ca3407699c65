"""Loops with which xnn2 fits its device: what its sources (`cycles.py`) are to become before somebody builds them.

A loop of one round computes 32 elements a cycle. A loop of n rounds computes 32 / n elements a cycle, and has as many
operators fewer. What is on the way to an MME or a Softmax must take one round: an MME takes a tile in 964 cycles, a
Softmax gets one in 537. A result comes in 964 cycles at the earliest, and mostly after several products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....machine.resources import Cost
from ...overlay import Overlay
from ..xnn.loop import Loop
from ..xnn.tiles import BEATS, BLOCK_WORDS, TILE
from .rows import PASSES

LOOPS: Mapping[str, Loop] = {
    "take": Loop(1, 4, "a beat into a slot"),
    "send": Loop(1, 4, "a beat out of a slot"),
    "mesh": Loop(1, 3, "a beat from one source to an MME"),
    "add": Loop(1, 10, "a beat added to a slot"),
    "statistics": Loop(1, 40, "a beat into a slot: sums and sums of squares of its rows, two rows a round", rounds=2),
    "join": Loop(1, 60, "a row's statistics joined with those of the columns before", rounds=2),
    "factors": Loop(1, 70, "a row's factor and what is added, from its statistics", rounds=2),
    "head_factors": Loop(1, 70, "the same of a row of a head", rounds=4),
    "normalise": Loop(1, 25, "a beat on its way: times factor, plus what is added"),
    "combine": Loop(1, 30, "a beat: plus bias, plus residual times scale, two rows a round", rounds=2),
    "softmax": Loop(1, 90, "a beat: mask, running maxima, exp, running sums"),
    "softcap": Loop(1, 110, "a beat, four elements a round: cap * tanh(score / cap)", rounds=8),
    "weigh": Loop(1, 60, "a beat of probabilities, times exp(maximum there - last maximum) / sum"),
    "totals": Loop(1, 30, "a row's 1 / sum"),
    "activation": Loop(1, 150, "a beat, four elements a round", rounds=8),
    "rotate": Loop(1, 40, "a beat, two elements a round: gains, times own and partner's factors of a table", rounds=16),
    "head_sums": Loop(1, 25, "a beat, four elements a round: row sums of heads", rounds=8),
    "head_squares": Loop(1, 30, "a beat, four elements a round: sums of squares of heads", rounds=8),
    "head_scale": Loop(1, 70, "a beat, four elements a round: times factor, plus what is added", rounds=8),
}


def costs(overlay: Overlay) -> Iterator[Cost]:
    """Cycles of each kind of work by these loops, beside the time that the simulator charges."""
    rate, clock_hz = overlay.seconds, overlay.clock_hz
    loop = {name: x.cycles for name, x in LOOPS.items()}
    beat = BEATS * rate["mesh_beat"]

    def cost(what: str, cycles: int, simulated: float, remark: str = "") -> Cost:
        return Cost(what, cycles, cycles / clock_hz, simulated, remark)

    yield cost("X, T, K, V, W: send a tile", loop["send"](BEATS), beat)
    yield cost("X, T: take a tile", loop["take"](BEATS), beat)
    yield cost("T, K, V: take a 128x64 block", loop["take"](BLOCK_WORDS), BLOCK_WORDS * rate["mem_word"])
    yield cost("MeshA, MeshB: a tile", loop["mesh"](BEATS), beat)
    yield cost("X: add a tile", loop["add"](BEATS), beat)
    of_rows = loop["statistics"](BEATS) + loop["join"](TILE)
    yield cost("X: take a tile, with statistics", of_rows, (1 + PASSES) * beat, "then rows are joined")
    normalised = loop["factors"](TILE) + loop["normalise"](8 * BEATS)
    yield cost("X: send eight tiles, normalised", normalised, TILE * rate["mem_word"] + 8 * beat)
    yield cost("C: a tile, with bias or residual", loop["combine"](BEATS), beat, "most are sums of several products")
    yield cost(
        "Softmax: a tile", loop["softmax"](BEATS), BEATS * rate["softmax_beat"], "the depth of the loop, once a head"
    )
    yield cost("Softmax: a tile, with soft cap", loop["softcap"](BEATS), BEATS * rate["softcap_beat"])
    yield cost("T: send a head of four tiles of probabilities", loop["weigh"](4 * BEATS), 4 * beat)
    yield cost("Post: activation of a tile", loop["activation"](BEATS), BEATS * rate["activation_beat"])
    rotated = BEATS * rate["rotate_beat"]
    slow = "a head is a sum of several products"
    yield cost("Post: rotation of a tile", loop["rotate"](BEATS), rotated, slow)
    heads = sum(loop[name](BEATS) for name in ("head_sums", "head_squares", "head_scale")) + loop["head_factors"](
        2 * TILE
    )
    yield cost("Post: norm of heads of a tile", heads, 2 * beat + rotated, slow)
    decode = overlay.format_of("MeshA").decode_cycles
    yield cost("decoder: a uOP", 1, decode * rate["decode"], "units take longer for one than this")
