"""What a tensor of PyTorch shows of an operator's result, and how kernels can read that."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...machine.view import View, merge
from .operators import Operator


@dataclass(frozen=True)
class Shown:
    """A tensor: elements of an operator's result, which is row-major with all its heads one below the other."""

    operator: Operator
    view: View

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.view.shape


@dataclass(frozen=True)
class Part:
    """The columns start .. start + width - 1 of an operator's result, and the view of them alone."""

    operator: Operator
    start: int
    width: int
    view: View

    @property
    def is_whole(self) -> bool:
        """Whether it is all columns."""
        return self.width == self.operator.shape[2]


@dataclass(frozen=True)
class HeadRead:
    """Heads of an attention's operand: `count` matrices, each of which serves `repeats` heads of queries.

    They lie side by side in the columns of one matrix, or are the matrices of the operator.
    """

    part: Part
    count: int
    repeats: int
    rows: int
    columns: int
    side_by_side: bool


def part_of(x: Shown) -> Part | None:
    """The columns that a tensor shows; None if it does not show every row once, and in each the same columns, which
    stand side by side."""
    heads, rows, columns = x.operator.shape
    found = x.view.columns(heads * rows, columns)
    if found is None:
        return None
    index, view = found
    start = int(index[0])
    if not np.array_equal(index, np.arange(start, start + len(index))):
        return None
    return Part(x.operator, start, len(index), view)


def is_matrix(part: Part) -> bool:
    """Whether a part is shown with rows in order and all its columns as the last dimension."""
    return part.view == View.dense(part.view.shape) and part.view.shape[-1] == part.width


def heads_of(x: Shown) -> HeadRead | None:
    """How a tensor (..., heads, rows, columns) is read head by head; None if it cannot. The dimensions in front must be
    of size 1, as all that is not the last two must be for a tensor without heads."""
    view = x.view
    if len(view.dims) < 2 or prod(view.shape[:-3]) != 1:
        return None
    if len(view.dims) == 2:
        view = View(((), *view.dims), view.offset)
    view, repeats = View(view.dims[-3:], view.offset).once(0)
    part = part_of(Shown(x.operator, view))
    if part is None:
        return None
    head, row, column = part.view.dims
    count, rows, columns = part.view.shape
    if column != merge([(columns, 1)]) or part.view.offset:
        return None
    side_by_side = (head, row) == (merge([(count, columns)]), merge([(rows, part.width)]))
    if side_by_side and part.operator.shape[0] == 1 and part.width == count * columns:
        return HeadRead(part, count, repeats, rows, columns, True)
    stacked = (head, row) == (merge([(count, rows * columns)]), merge([(rows, columns)]))
    if stacked and part.width == columns and part.operator.shape[0] in (1, count):
        return HeadRead(part, count, repeats, rows, columns, False)
    return None
