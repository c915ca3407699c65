"""Mean and variance of rows, as they lie off chip: a MemC stores them, a MemA normalises by them.

A quarter block holds those of 128 rows, of one part of their columns: of row r the mean, the variance and the number of
columns at elements 16*r, 16*r + 1 and 16*r + 2; the others are 0. The variance is biased; without mean it is the mean
square, and the mean is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...layout import QUARTER
from ...versal.loop import PipelinedLoop
from ...versal.tiles import TILE, Array, Pieces

LOOPS: Mapping[str, PipelinedLoop] = {
    "statistics": PipelinedLoop(
        1, 120, "a word of statistics, a row a round: made, or added to those of before", rounds=2
    ),
}
QUARTER_WORDS = 64
"""Words of a quarter block."""
BLOCK_QUARTERS = 4
SPACING = QUARTER // TILE
"""Elements from a row to the next."""


def packed(mean: Array, variance: Array, columns: int) -> Array:
    """Return statistics of rows as they lie off chip, (rows / 128, 2048) float32. mean, variance: (rows,). columns:
    over how many."""
    out = np.zeros((len(mean), SPACING), np.float32)
    out[:, 0], out[:, 1], out[:, 2] = mean, variance, columns
    return out.reshape(-1, QUARTER)


class RowFactors:
    """What a MemA normalises rows by: x becomes (x - mean) * factor, factor = 1 / sqrt(variance + eps).

    parts: quarter blocks of each row tile, which come one after the other. Parts are joined in this order by the update
    of Chan, Golub and LeVeque (1979), in float32. rms: without mean.
    """

    def __init__(self, parts: int, eps: float, rms: bool) -> None:
        self.parts, self.eps, self.rms = parts, np.float32(eps), rms
        self.quarters: list[Array] = []

    def put(self, n: int, pieces: Pieces) -> None:
        """Take quarter blocks as they come."""
        self.quarters += [np.asarray(piece, np.float32).reshape(TILE, SPACING) for piece in pieces]

    def finish(self) -> None:
        """Join the parts of every row tile."""
        joined = [self._joined(self.quarters[i : i + self.parts]) for i in range(0, len(self.quarters), self.parts)]
        self.mean, self.factor = (np.concatenate(x)[:, None] for x in zip(*joined, strict=True))
        self.tiles = len(joined)

    def _joined(self, quarters: list[Array]) -> tuple[Array, Array]:
        count: Array = np.zeros(TILE, np.float32)
        mean: Array = np.zeros(TILE, np.float32)
        squares: Array = np.zeros(TILE, np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            for quarter in quarters:
                m, v, c = quarter[:, 0], quarter[:, 1], quarter[:, 2]
                total = count + c
                if self.rms:
                    squares += (v + m * m) * c
                else:
                    d = m - mean
                    mean = mean + d * (c / total)
                    squares += v * c + d * d * (count * (c / total))
                count = total
            return mean, np.asarray(np.float32(1) / np.sqrt(squares / count + self.eps), np.float32)

    def apply(self, x: Array, first: int, same: bool) -> None:
        """Normalise rows in place. x: (rows, columns). first: the row tile of the statistics that the first row tile of
        x takes. same: all of them take it."""
        rows = np.arange(len(x))
        at = (first + (0 if same else rows // TILE)) * TILE + rows % TILE
        x -= self.mean[at]
        x *= self.factor[at]
