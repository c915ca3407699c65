"""How long a loop of hw/versal/pl takes.

An initiation interval (II) is a choice of the sources, and so is in how many rounds a loop takes one item (a patch, a
word): hw/versal/isa.h takes both from here. A loop over n items takes n * rounds * ii + fill cycles; fill, the depth of
its pipeline, is what the compiler makes of it, so an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """ii: cycles from one round to the next. fill: from the beginning of a round to its end. doc: the item, and what is
    done to it. rounds: to an item; with more than one, each takes a part of it."""

    ii: int
    fill: int
    doc: str
    rounds: int = 1

    def cycles(self, items: int) -> int:
        """Cycles for so many items."""
        return items * self.rounds * self.ii + self.fill if items else 0
