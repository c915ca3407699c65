"""Index maps from a tensor of a PyTorch module to the activation that it shows: strides in mixed radix.

A module rearranges activations with view, reshape, transpose, select and so on between products. On the machine the
activation stays in place as a matrix (rows, columns); a `View` gives, for each position of the tensor, the element of
the activation. Unlike plain strides it can represent `reshape(transpose(x))`, for which PyTorch copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

Atom = tuple[int, int]
"""Size, and stride in elements of the activation."""
Dim = tuple[Atom, ...]
"""One dimension: its atoms, outermost first. Its size is the product of theirs."""


def merge(atoms: Sequence[Atom]) -> Dim:
    """Return the same index map with as few atoms as possible: neighbours that follow each other in memory become one,
    and those of size 1 are left out. atoms: (size, stride in elements), outermost first. Equal maps have equal
    results."""
    merged: list[Atom] = []
    for size, stride in atoms:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return tuple(merged)


@dataclass(frozen=True)
class View:
    """An index map: tensor element (i, j, ...) is activation element offset + dims[0] at i + dims[1] at j + ...

    dims: the atoms of each dimension, outermost first. offset: in elements of the activation.
    """

    dims: tuple[Dim, ...]
    offset: int = 0

    @classmethod
    def dense(cls, shape: Sequence[int]) -> View:
        """Return the view that shows the whole activation, row-major, as a tensor of this shape."""
        return cls(tuple(merge([(size, prod(shape[i + 1 :]))]) for i, size in enumerate(shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor, in elements."""
        return tuple(prod(size for size, _ in dim) for dim in self.dims)

    @property
    def atoms(self) -> Dim:
        """The atoms of all dimensions, outermost first: sizes, and strides in elements of the activation."""
        return tuple(atom for dim in self.dims for atom in dim)

    def permute(self, order: Sequence[int]) -> View:
        """Return the view with its dimensions in another order, as `torch.Tensor.permute`. order: the old index of each
        new dimension."""
        return View(tuple(self.dims[i] for i in order), self.offset)

    def regroup(self, shape: Sequence[int]) -> View | None:
        """Return the view as a tensor of another shape with the same number of elements, as reshape; None if a
        dimension would have to split an atom."""
        rest = list(reversed(merge(self.atoms)))
        dims = []
        for size in shape:
            dim = []
            while size > 1 and rest:
                n, stride = rest.pop()
                if size % n:
                    if n % size:
                        return None
                    rest.append((n // size, stride))
                    n, stride = size, stride * (n // size)
                dim.append((n, stride))
                size //= n
            dims.append(tuple(dim))
        return View(tuple(dims), self.offset)

    def expand(self, shape: Sequence[int]) -> View:
        """Return the view with dimensions of size 1, and new leading ones, repeated, as `torch.Tensor.expand` to a full
        shape. Repeated positions have atoms of stride 0."""
        old = ((),) * (len(shape) - len(self.dims)) + self.dims
        sizes = (1,) * (len(shape) - len(self.dims)) + self.shape
        repeated = (((n, 0),) if size == 1 < n else dim for n, size, dim in zip(shape, sizes, old, strict=True))
        return View(tuple(repeated), self.offset)

    def once(self, axis: int) -> tuple[View, int]:
        """Return the view without the repetitions of each position of a dimension (innermost atoms of stride 0), and
        the number of times that each position is repeated. axis: the dimension, from 0 on."""
        atoms, count = list(self.dims[axis]), 1
        while atoms and atoms[-1][1] == 0:
            count *= atoms.pop()[0]
        return View((*self.dims[:axis], tuple(atoms), *self.dims[axis + 1 :]), self.offset), count

    def narrow(self, axis: int, start: int, length: int) -> View | None:
        """Return the view restricted to the positions start..start+length-1 of the dimension `axis`, as `torch.narrow`;
        None if a `View` cannot represent it."""
        head: list[Atom] = []
        offset, atoms = self.offset, self.dims[axis]
        for i, (_size, stride) in enumerate(atoms):
            inner = prod(size for size, _ in atoms[i + 1 :])
            if start % inner == 0 and length % inner == 0:
                head += [(length // inner, stride), *atoms[i + 1 :]]
                offset += start // inner * stride
                break
            if start // inner != (start + length - 1) // inner:
                return None
            offset += start // inner * stride
            start %= inner
        return View((*self.dims[:axis], merge(head), *self.dims[axis + 1 :]), offset)

    def columns(self, rows: int, width: int) -> tuple[npt.NDArray[np.int64], View] | None:
        """Return the columns of the activation (rows, width) that this view shows, int64 (columns,), and a view of
        these columns alone.

        The columns are in the order of the tensor's dimensions; the returned view maps to an activation that consists
        of just those columns, in that order. None unless the view shows each row once and in each the same columns.
        """
        if not width:
            return None
        dims: list[list[Atom]] = [[] for _ in self.dims]
        row_atoms: list[Atom] = []
        index = np.array([self.offset % width])
        for dim, atoms in zip(dims, self.dims, strict=True):
            for size, stride in atoms:
                split = [(size, stride)]
                if stride < width < size * stride:
                    inner = width // stride
                    if width % stride or size % inner:
                        return None
                    split = [(size // inner, width), (inner, stride)]
                for n, step in split:
                    dim.append((n, step))
                    if step % width == 0:
                        row_atoms.append((n, step // width))
                    else:
                        index = np.add.outer(index, np.arange(n) * step).ravel()
        in_order = merge(sorted(row_atoms, key=lambda atom: -atom[1]))
        if self.offset >= width or in_order != merge([(rows, 1)]) or index.max() >= width:
            return None
        seen, inner = len(index), len(index)
        for dim in dims:
            for i, (size, stride) in enumerate(dim):
                if stride % width == 0:
                    dim[i] = (size, stride // width * seen)
                else:
                    inner //= size
                    dim[i] = (size, inner)
        return index, View(tuple(merge(dim) for dim in dims))

    def with_columns(self, old: int, new: int) -> View | None:
        """Return the same view of an activation with `new` columns instead of `old`; the rows stay. None unless the
        last dimension is exactly the `old` columns."""
        *leading, last = self.dims
        if last != merge([(old, 1)]) or any(stride % old for dim in leading for _, stride in dim):
            return None
        rows = tuple(merge([(size, stride // old * new) for size, stride in dim]) for dim in leading)
        return View((*rows, merge([(new, 1)])))
