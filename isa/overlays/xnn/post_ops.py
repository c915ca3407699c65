"""The arithmetic of a MemC: softmax and norm with their exchanges between neighbours, activations; and mean and
variance of rows, as they lie off chip: a MemC stores them, a MemA normalises by them.

A quarter block holds those of 128 rows, of one part of their columns: of row r the mean, the variance and the number of
columns at elements 16*r, 16*r + 1 and 16*r + 2; the others are 0. The variance is biased; without mean it is the mean
square, and the mean is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...versal.tiles import Array
from ...work import KeyPart

if TYPE_CHECKING:
    from .mem_c import MemCConfig, MemCScores, MemCUnit


from collections.abc import Mapping

from ...layout import QUARTER
from ...versal.loop import PipelinedLoop
from ...versal.tiles import TILE, Pieces


class SoftmaxData:
    """The data of one softmax on one MemC, between its exchanges with the neighbour.

    unit: whose buffer `side` has the scores. reg, scores: the registers. rows, cols: of the scores that this MemC has.
    The methods are called in the order of the exchanges: a neighbour's numbers are vectors (rows,) float32.
    """

    def __init__(self, unit: MemCUnit, side: int, reg: MemCConfig, scores: MemCScores, rows: int, cols: int) -> None:
        self.reg, self.scores = reg, scores
        self.max_sub = int(reg.max_sub or scores.part != KeyPart.ALL)
        self.odd = unit.index & 1
        self.unit, self.side, self.rows, self.cols = unit, side, rows, cols
        self.left = 0

    def begin(self) -> None:
        """Take the scores, (rows, cols) float32, as a view of the buffer, and multiply them by the register `scale`, in
        place."""
        self.x = self.unit.buffers[self.side].x[: self.rows, : self.cols]
        if self.reg.scale != 1.0:
            self.x *= np.float32(self.reg.scale)
        self.top = np.zeros(self.rows, np.float32)
        self.total = np.zeros(self.rows, np.float32)

    def cap(self) -> None:
        """Replace each score by cap * tanh(score * inverse_cap), in place; tanh(y) is computed as 1 - 2 / (exp(2y) +
        1).
        """
        y = self.x * np.float32(self.scores.inverse_cap)
        with np.errstate(over="ignore"):
            self.x[:] = np.float32(self.scores.cap) * (1 - np.float32(2) / (np.exp(y + y) + 1))

    def set_left(self, columns: int) -> None:
        """Note how many columns the neighbour's part has. They come before the own ones if this MemC is the odd one of
        its pair.
        """
        self.left = columns if self.odd else 0

    def _valid(self) -> npt.NDArray[np.bool_] | None:
        reg, scores = self.reg, self.scores
        some_rows = reg.causal or scores.windowed
        if reg.softmax_cols >= self.cols and not scores.first_cols and not some_rows:
            return None
        c, r = np.arange(self.cols)[None], np.arange(self.rows)[:, None]
        valid = np.broadcast_to((c >= scores.first_cols) & (c < reg.softmax_cols), (self.rows, self.cols))
        if reg.causal:
            valid = valid & (c + self.left <= r + reg.offset)
        if scores.windowed:
            valid = valid & (c + self.left >= r + scores.low)
        return valid

    def own_max(self) -> tuple[Array]:
        """Return the largest valid score of each row, (rows,) float32, for the neighbour; -inf for a row
        without one.
        """
        valid = self._valid()
        x = self.x if valid is None else np.where(valid, self.x, -np.inf)
        self.top = x.max(axis=1, initial=-np.inf).astype(np.float32)
        return (self.top,)

    def other_max(self, top: Array) -> None:
        """Take the neighbour's maxima `top`, (rows,) float32. The maximum of a row is then the larger one of its own
        and the neighbour's."""
        self.top = np.maximum(self.top, top)

    def own_sum(self) -> tuple[Array]:
        """Replace the scores by their exps, with the maximum subtracted. Returns the sum of each row, (rows,) float32,
        for the neighbour.
        """
        self._exp()
        return (self.total,)

    def _exp(self) -> None:
        if self.max_sub:
            if self.reg.alone and self.scores.part != KeyPart.APPLY:
                self.own_max()
            if self.scores.part == KeyPart.MORE:
                self.top = np.maximum(self.top, self._kept()[0])
            self.x -= np.where(np.isfinite(self.top), self.top, 0)[:, None]
        with np.errstate(over="ignore"):
            np.exp(self.x, out=self.x)
            valid = self._valid()
            if valid is not None:
                self.x[~valid] = 0
            self.total = self.x.sum(axis=1, dtype=np.float32)

    def other_sum(self, total: Array) -> None:
        """Add the neighbour's sums `total`, (rows,) float32."""
        self.total = self.total + total

    def finish(self) -> None:
        """Multiply each row by the reciprocal of its sum: scores have become probabilities. A MemC that works alone
        computes exps here first.
        """
        if self.reg.alone:
            self._exp()
        with np.errstate(invalid="ignore"):
            self.x *= reciprocal(self.total, masked=self._valid() is not None)[:, None]

    # -- keys in parts

    def _kept(self) -> tuple[Array, Array]:
        """Maxima and sums of the parts so far. Raises `ProgramError` if there are none of these rows."""
        kept = self.unit.kept
        if kept is None or len(kept[0]) != self.rows:
            self.unit.refuse(no_parts(self.rows, 0 if kept is None else len(kept[0])))
        assert kept is not None
        return kept

    def keep(self) -> None:
        """Keep maxima and sums of the parts so far in the unit's `kept`; what is in the buffer is then undefined.
        Raises `ProgramError` if a further part has other rows than those kept.
        """
        if self.reg.alone:
            self._exp()
        total = self.total
        if self.scores.part == KeyPart.MORE:
            top, before = self._kept()
            with np.errstate(invalid="ignore"):
                total = before * np.where(np.isfinite(top), np.exp(top - self.top), 0) + total
        self.unit.kept = self.top, total.astype(np.float32)
        self.x[:] = np.nan

    def apply(self) -> None:
        """Replace each score by its exp with the kept maximum subtracted, times the reciprocal of the kept sum. Raises
        `ProgramError` if none are kept of these rows.
        """
        self.top, total = self._kept()
        self._exp()
        with np.errstate(invalid="ignore"):
            self.x *= reciprocal(total, masked=True)[:, None]


def no_parts(rows: int, kept: int) -> str:
    """Return the message for a softmax that takes further keys of `rows` rows, while maxima and sums of `kept` rows are
    kept.
    """
    return (
        f"takes further keys of {rows} rows; maxima and sums are kept of {kept} rows: part 1 of as many rows must go "
        "before (MemCScores)"
    )


def reciprocal(total: Array, *, masked: bool) -> Array:
    """Return the factor by which the exps of each row are multiplied: 1 / total, (rows,) float32.

    The factor is NaN where total is NaN, and where total or 1 / total is below the least normal number, which the
    operators of the device take for 0. masked: rows may have no valid score; where total counts as 0 the factor is 0.
    """
    least = np.finfo(np.float32).tiny
    out = np.full_like(total, np.nan)
    np.divide(np.float32(1), total, out=out, where=(total >= least) & (total <= 1 / least))
    if masked:
        out[total < least] = 0
    return out


class NormData:
    """The data of one norm on one MemC, between its exchanges with the neighbour.

    unit: whose buffer `side` has the rows. reg: the registers. rows: how many rows there are. A token to or from the
    neighbour is a pair: a vector (rows,) float32 of sums, and the number of columns that each is a sum of.
    """

    def __init__(self, unit: MemCUnit, side: int, reg: MemCConfig, rows: int) -> None:
        self.reg = reg
        self.unit, self.side, self.rows = unit, side, rows
        self.count: Any = 0
        self.mean = np.zeros((rows, 1), np.float32)

    def _part(self) -> Array:
        return self.unit.buffers[self.side].x[: self.rows, : min(self.reg.norm_cols, self.unit.size.columns)]

    def own_sum(self) -> tuple[Any]:
        """Return the sum of each row and the number of columns that it counts, as a token for the neighbour."""
        part = self._part()
        self.sum, self.count = part.sum(axis=1, dtype=np.float32), part.shape[1]
        return ((self.sum, self.count),)

    def other_sum(self, token: Any) -> None:
        """Take the neighbour's sums and its number of columns (`token`), and make the mean of each row, (rows, 1)
        float32.
        """
        total, count = token
        self.mean = ((self.sum + total) / np.float32(max(self.count + count, 1)))[:, None]

    def own_squares(self) -> tuple[Any]:
        """Return the sum of squared deviations from the mean of each row, and the number of columns, as a token for the
        neighbour.
        """
        centred = self._part() - self.mean
        self.squares, self.count = np.square(centred).sum(axis=1, dtype=np.float32), centred.shape[1]
        return ((self.squares, self.count),)

    def other_squares(self, token: Any) -> None:
        """Take the neighbour's sums of squared deviations and its number of columns (`token`). Makes the variance of
        each row, (rows,) float32, over the columns of both, and their number.
        """
        total, count = token
        self.columns = max(self.count + count, 1)
        self.variance = (self.squares + total) / np.float32(self.columns)

    def statistics(self) -> Array:
        """Return mean and variance of the rows, and over how many columns they are, as they lie off chip: (rows / 128,
        2048) float32, as `packed` makes it."""
        return packed(self.mean[:, 0], self.variance, self.columns)

    def normalise(self, token: Any) -> None:
        """Take the neighbour's sums of squared deviations (`token`, as for `other_squares`), then replace the rows in
        the buffer by normalised ones."""
        self.other_squares(token)
        self.scale()

    def scale(self) -> None:
        """Replace the rows in the buffer by (x - mean) / sqrt(variance + eps), with the `eps` of the registers; columns
        behind `norm_cols` become 0.
        """
        part = self._part()
        part -= self.mean
        with np.errstate(divide="ignore", invalid="ignore"):
            part *= (np.float32(1) / np.sqrt(self.variance + np.float32(self.reg.eps)))[:, None]
        self.unit.buffers[self.side].x[: self.rows, part.shape[1] :] = 0


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
    number of columns that they are over. Raises `ValueError` if rows are not a multiple of 128.
    """
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
        """Take `n` quarter blocks in the order in which they come. pieces: (n, 2048) float32, or as many vectors of
        2048.
        """
        self.quarters += [np.asarray(piece, np.float32).reshape(TILE, SPACING) for piece in pieces]

    def finish(self) -> None:
        """Join the parts of every row tile. Afterwards `mean` and `factor` are (rows, 1) float32, and `tiles` counts
        the row tiles. Raises `ValueError` if nothing was put.
        """
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
        x takes. same: all row tiles of x take it. Raises `IndexError` if there are no statistics of a row.
        """
        rows = np.arange(len(x))
        at = (first + (0 if same else rows // TILE)) * TILE + rows % TILE
        x -= self.mean[at]
        x *= self.factor[at]
