"""The loops that the units of xnn2 are taken to have, for its resources and cycles. There are no sources yet.

A loop of one round computes 32 elements a cycle; with more rounds, a part of a beat goes through so many operators fewer
in each cycle. A lane gets a tile of results in 964 cycles at the earliest (3.709 us), and one for each sum over K. So
what is done to results may take several rounds, and what is on the way to an MME or a Softmax may not.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..xnn.loop import Loop

LOOPS: Mapping[str, Loop] = {
    "take": Loop(1, 4, "a beat into a slot"),
    "send": Loop(1, 4, "a beat out of a slot"),
    "mesh": Loop(1, 3, "a beat from one source to an MME"),
    "add": Loop(1, 10, "a beat added to a slot, half of it a round", rounds=2),
    "sums": Loop(1, 25, "a beat: sums of its rows, a row a round", rounds=4),
    "squares": Loop(1, 40, "a beat of a slot: sums of squares of what is apart from the mean", rounds=8),
    "join": Loop(1, 60, "a row's statistics joined with those of the columns before", rounds=2),
    "factors": Loop(1, 70, "a row's mean and 1 / deviation"),
    "normalise": Loop(1, 25, "a beat on its way to an MME or C: minus mean, times factor"),
    "normalise_stored": Loop(1, 25, "a word on its way to DDR: minus mean, times factor", rounds=2),
    "combine": Loop(1, 30, "a beat: plus bias, plus residual times scale, a row a round", rounds=4),
    "softmax": Loop(1, 90, "a beat: mask, running maxima, exp, running sums"),
    "softcap": Loop(1, 110, "a beat, four elements a round: cap * tanh(score / cap)", rounds=8),
    "weigh": Loop(1, 60, "a beat of probabilities, times exp(maximum there - last maximum) / sum"),
    "totals": Loop(1, 30, "a row's 1 / sum"),
    "activation": Loop(1, 150, "a beat, four elements a round", rounds=8),
    "rotate": Loop(1, 40, "a beat, four elements a round: gains, times own and partner's factors of a table", rounds=8),
    "head_sums": Loop(1, 25, "a beat, four elements a round: row sums of heads", rounds=8),
    "head_squares": Loop(1, 30, "a beat, four elements a round: sums of squares of heads", rounds=8),
    "head_scale": Loop(1, 70, "a beat, four elements a round: subtract, multiply", rounds=8),
}
