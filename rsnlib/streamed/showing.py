"""What a tensor of PyTorch shows of an operator's result, and how kernels can read that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..view import View, merge
from .operators import StreamOperator


@dataclass(frozen=True)
class ShownTensor:
    """A tensor whose elements are elements of an operator's result. That result lies row-major, with its heads one
    below the other. view: where each element of the tensor lies in the result."""

    operator: StreamOperator
    view: View

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor, in elements."""
        return self.view.shape


@dataclass(frozen=True)
class ColumnSlice:
    """The columns from `start` to before `start + width` of an operator's result, counted from 0. view: where each
    element of a tensor lies in a result that has only these columns."""

    operator: StreamOperator
    start: int
    width: int
    view: View

    @property
    def is_whole(self) -> bool:
        """Whether it is all columns of the operator's result."""
        return self.width == self.operator.shape[2]


@dataclass(frozen=True)
class HeadRead:
    """The heads of an operand of attention: `count` matrices of `rows` x `columns` elements, each of which serves
    `repeats` heads of queries. part: the columns of an operator's result in which they lie. sequences: how many parts
    the rows of that result have; the heads of one sequence lie side by side in the columns. A result with one matrix
    for each head counts as many sequences as heads."""

    part: ColumnSlice
    count: int
    sequences: int
    repeats: int
    rows: int
    columns: int


def part_of(x: ShownTensor) -> ColumnSlice | None:
    """Return the columns of an operator's result that a tensor has; None unless it has every row once, and in each row
    the same columns, side by side."""
    heads, rows, columns = x.operator.shape
    found = x.view.columns(heads * rows, columns)
    if found is None:
        return None
    index, view = found
    start = int(index[0])
    if not np.array_equal(index, np.arange(start, start + len(index))):
        return None
    return ColumnSlice(x.operator, start, len(index), view)


def is_matrix(part: ColumnSlice) -> bool:
    """Return whether a part has its rows in order, and all its columns as the last dimension."""
    return part.view == View.dense(part.view.shape) and part.view.shape[-1] == part.width


def heads_of(x: ShownTensor) -> HeadRead | None:
    """Return how a tensor (..., heads, rows, columns) is read head by head; None if it cannot. The dimensions in front
    of the heads are those of a batch."""
    if len(x.view.dims) < 2:
        return None
    leading = tuple(atom for dim in x.view.dims[:-2] for atom in dim)
    view, repeats = View((leading, *x.view.dims[-2:]), x.view.offset).once(0)
    part = part_of(ShownTensor(x.operator, view))
    if part is None:
        return None
    count, rows, columns = part.view.shape
    if part.view.offset or columns < 1 or part.width % columns or count % (part.width // columns):
        return None
    sequences = count // (part.width // columns)
    shown = (
        merge([(sequences, rows * part.width), (count // sequences, columns)]),
        merge([(rows, part.width)]),
        merge([(columns, 1)]),
    )
    matrices = part.operator.shape[0]
    if part.view.dims != shown or not (part.operator.is_memory or matrices in (1, sequences)):
        return None
    return HeadRead(part, count, sequences, repeats, rows, columns)
