"""The loops of the units, as hw/versal/xnn2 states them to the HLS compiler."""

from __future__ import annotations

from collections.abc import Mapping

from ...versal import loop as versal
from ...versal.loop import Loop

LOOPS: Mapping[str, Loop] = {
    **versal.LOOPS,
    "take": Loop(1, 12, "a beat into X, T, K or V; X adds it to what is there"),
    "statistics": Loop(1, 60, "a beat into X: sums of its rows and of squares, two rows a round", rounds=2),
    "join": Loop(2, 70, "a row's statistics joined with those of the columns before"),
    "factors": Loop(2, 70, "a row's factor and what is added, from its statistics"),
    "head_sums": Loop(
        1, 50, "a beat, four elements a round: sums of heads, or of squares apart from their means", rounds=8
    ),
    "head_factors": Loop(4, 70, "a row of a head: mean, or its factor and what is added"),
    "combine": Loop(1, 30, "a beat of a result, two rows a round: bias, residual times scale", rounds=2),
    "softmax": Loop(1, 110, "a beat: a row of 32 columns: mask, running maximum, exp, running sum"),
    "softcap": Loop(1, 110, "a beat, two elements a round: cap * tanh(score / cap)", rounds=16),
    "rotate": Loop(1, 50, "a beat, two elements a round: norm of a head, gains, rotation", rounds=16),
    "activation": Loop(1, 150, "a beat, two elements a round: activation, gate", rounds=16),
}
