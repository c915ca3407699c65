"""The loops of the units, as hw/versal/xnn2 states them to the HLS compiler."""

from __future__ import annotations

from collections.abc import Mapping

from ..xnn.cycles import LOOPS as XNN_LOOPS
from ..xnn.loop import Loop

SHARED = ("fetch", "decode", "port", "load", "store", "send", "mesh")
"""Loops of sources that both overlays have."""
LOOPS: Mapping[str, Loop] = {
    **{name: XNN_LOOPS[name] for name in SHARED},
    "take": Loop(1, 12, "a beat into X, T, K or V; X adds it to what is there"),
    "squares": Loop(1, 40, "a beat: squares of what is apart from the means of its rows"),
    "rows": Loop(1, 60, "a row or four: statistics joined, 1 / deviation"),
    "result": Loop(1, 12, "a beat of a result: bias, residual"),
    "probabilities": Loop(4, 90, "32 columns of four rows: running maximum, exp, sum"),
    "softcap": Loop(32, 200, "the same, with a soft cap: four elements a cycle"),
    "rotate": Loop(4, 40, "a beat: norm of a head, gains, rotation"),
    "activation": Loop(8, 150, "a beat: activation, gate"),
}
