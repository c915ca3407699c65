"""How long a loop of hw/versal/pl takes.

An initiation interval (II) is a choice of the sources: hw/versal/isa.h takes it from here. A loop of n rounds takes
n * ii + fill cycles; fill, the depth of its pipeline, is what the compiler makes of it, so an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """ii: cycles from one round to the next. fill: from the beginning of a round to its end."""

    ii: int
    fill: int
    doc: str

    def cycles(self, rounds: int) -> int:
        return rounds * self.ii + self.fill if rounds else 0
