"""How long a loop of hw/versal/pl takes.

An initiation interval (II) is a choice of the sources, and so is in how many rounds a loop takes one item (a patch, a
word): hw/versal/isa.h takes both from here. A loop over n items takes n * rounds * ii + fill cycles; fill, the depth of
its pipeline, is what the compiler makes of it, so an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PipelinedLoop:
    """A loop of the C++ sources. ii: cycles from the beginning of a round to that of the next. fill: cycles from the
    beginning of a round to its end. doc: what an item is, and what is done to it. rounds: how many rounds an item
    takes; with more than one, each round takes a part of the item."""

    ii: int
    fill: int
    doc: str
    rounds: int = 1

    def cycles(self, items: int) -> int:
        """Return the cycles that the loop takes for `items` items: items * rounds * ii + fill; 0 for none."""
        return items * self.rounds * self.ii + self.fill if items else 0


LOOPS: Mapping[str, PipelinedLoop] = {
    "fetch": PipelinedLoop(1, 70, "a word of the image"),
    "decode": PipelinedLoop(1, 4, "a uOP, once its window is there"),
    "port": PipelinedLoop(1, 4, "a word from or to both ports of a bank, in bursts of 64"),
    "load": PipelinedLoop(1, 4, "a word into a buffer"),
    "store": PipelinedLoop(1, 4, "a word out of a buffer"),
    "send": PipelinedLoop(1, 4, "a beat out of a buffer"),
    "mesh": PipelinedLoop(1, 3, "a beat from all sources to all destinations"),
}
"""Loops of sources that both overlays have."""
