"""How rows and columns are shared among lanes, in one of two modes.

R6: a panel has six row tiles, one for each lane. All lanes compute the same columns, with one stream of weights.
P3: a panel has three row tiles, one for each pair. The even lanes hold and compute the first half of all columns, the
odd lanes the second half, each with a stream of weights of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...base.errors import UnsupportedError
from ...isa.lanes import RowLanes
from ..schedule import LaneKnobs
from .blocks import Panel, RowTile

QUERY_SLOTS = 4
"""Slots of T of an even lane for queries: of two rounds, two tiles each."""
PIECES = 3
"""Tiles of a pair that are on their way from DDR to X at once, at least (`PanelEmitter.bring`)."""


class Half(NamedTuple):
    """Lanes that compute the same columns. number: 0 for the first half of the columns, 1 for the second. lanes: their
    numbers. mask: the lanes, as bits."""

    number: int
    lanes: Sequence[int]
    mask: int


class Mode:
    """A way to share rows and columns among lanes.

    name: "R6" or "P3". knobs: of the schedule. halves: parts of the columns, 1 or 2. rows: row tiles of a panel.
    hidden: the first slot of activated tiles in T, of an even and of an odd lane. ring: slots of T of an odd lane for
    probabilities. staging: slots of T of an odd lane for rows that come from DDR and go to X. A slot holds a tile of
    128x128 elements.
    """

    def __init__(self, name: str, halves: int, lanes: RowLanes, knobs: LaneKnobs) -> None:
        self.name, self.halves, self.lane, self.knobs = name, halves, lanes, knobs
        self.rows = lanes.lanes // halves
        even, odd = lanes.scratch
        self.results_even = even >= QUERY_SLOTS + 2 * knobs.trail
        """Whether T of the even lane holds the results of all heads of a pair, so that T of the odd one has all of its
        slots for probabilities, and the time to take them as fast as the MME computes scores."""
        of_odd = 0 if self.results_even else knobs.trail if halves == 1 else 2 * knobs.trail
        self.ring = max(odd - of_odd, 0)
        self.staging = min(2 * lanes.columns, odd - knobs.hidden)
        self.hidden = QUERY_SLOTS, self.staging

    def check(self) -> None:
        """Raise `UnsupportedError` if T does not hold what the knobs ask for, whatever the network."""
        even, odd = self.lane.scratch
        knobs = self.knobs
        results = knobs.trail if self.halves == 1 else 0
        for has, which, least, what in (
            (even, "an even", QUERY_SLOTS + max(knobs.hidden, results), "queries, and activated tiles or results,"),
            (odd, "an odd", PIECES + knobs.hidden, "rows on their way to X, and activated tiles,"),
        ):
            if has < least:
                raise UnsupportedError(
                    f"T of {which} lane has {has} slots; {what} need {least} (lanes.hidden = {knobs.hidden}, "
                    f"lanes.trail = {knobs.trail}, mode {self.name})"
                )

    @property
    def columns(self) -> int:
        """Column tiles of rows that a bank of X can hold, in all lanes that share a row."""
        return self.lane.columns * self.halves

    def split(self, columns: int) -> list[range]:
        """The column tiles that each half of the lanes computes, of `columns` in all: one range if there is one half,
        else two ranges, of which the first may have one tile more."""
        first = -(-columns // self.halves)
        return [range(first)] + ([range(first, columns)] if self.halves > 1 else [])

    def steps(self, columns: int) -> int:
        """How many steps it takes to compute `columns` column tiles. In a step, each half computes one."""
        return -(-columns // self.halves)

    def lane_of(self, row: int, half: int) -> int:
        """The number of the lane that has a row tile of the panel and a half of the columns. row: number of the row
        tile in the panel. half: 0 or 1."""
        return row if self.halves == 1 else 2 * row + half

    def lanes(self, panel: Panel) -> range:
        """The numbers of the lanes that compute for a panel."""
        return range(len(panel.tiles) * self.halves)

    def result(self, r: int, pair: int, place: int) -> tuple[int, int]:
        """The lane whose T holds the results of the heads of a round, and the slot there. r: the round. pair: number of
        the pair of lanes. place: as of `SoftmaxGroup`."""
        at = r % self.knobs.trail
        if self.results_even:
            return 2 * pair, QUERY_SLOTS + 2 * at + place
        if self.halves == 1:
            return 2 * pair + place, (self.ring if place else QUERY_SLOTS) + at
        return 2 * pair + 1, self.ring + 2 * at + place

    def tile(self, panel: Panel, lane: int) -> RowTile:
        """The row tile of a panel that lane number `lane` computes."""
        return panel.tiles[lane // self.halves]

    def of_halves(self, panel: Panel) -> list[Half]:
        """The lanes of each half that have rows of a panel."""
        out = []
        for number in range(self.halves):
            lanes = [self.lane_of(row, number) for row in range(len(panel.tiles))]
            out.append(Half(number, lanes, sum(1 << lane for lane in lanes)))
        return out


def modes_of(lanes: RowLanes, knobs: LaneKnobs) -> tuple[Mode, Mode]:
    """The two modes, R6 and P3, of an overlay's lanes with these knobs."""
    return Mode("R6", 1, lanes, knobs), Mode("P3", 2, lanes, knobs)
