"""Pad the arguments of a call to the sizes of a program, and cut its results to the sizes of the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.deferred import deferred
from ..base.errors import TensorError
from .shape_buckets import no_bucket
from .shapes import Arguments, Dim

if TYPE_CHECKING:
    import torch

    from . import call_arguments
else:
    call_arguments = deferred("rsn.rsnlib.call_arguments")

Sizes = tuple[int, ...]
"""The size of each dimension in `Arguments.dims`."""


@dataclass(frozen=True)
class Factor:
    """A factor of an axis of a result. size: number of positions in the program's result. dim: index in
    `Arguments.dims` of the dimension that it follows; its size is that of the dimension plus `offset`, divided by
    `every` and rounded up. None: the size is the same in every call."""

    size: int
    dim: int | None = None
    offset: int = 0
    every: int = 1

    def count(self, sizes: Sizes) -> int:
        """Return the number of its positions in a call. sizes: of the call, one for each of `Arguments.dims`."""
        return self.size if self.dim is None else -(-(sizes[self.dim] + self.offset) // self.every)


@dataclass(frozen=True)
class Cut:
    """How to cut one result of a program to the sizes of a call. Call it with the result, the sizes of the program and
    those of the call. axes: for each axis of the result its factors, outermost first; several if dimensions were
    flattened into one axis."""

    axes: tuple[tuple[Factor, ...], ...]

    @property
    def is_needed(self) -> bool:
        """Whether any axis follows a dynamic dimension."""
        return any(factor.dim is not None for axis in self.axes for factor in axis)

    def __call__(self, x: torch.Tensor, taken: Sizes, asked: Sizes) -> torch.Tensor:
        """Cut a result. taken: the sizes of the program. asked: the sizes of the call."""

        def shape(sizes: Sizes) -> list[list[int]]:
            return [[factor.count(sizes) for factor in axis] for axis in self.axes]

        have, want = shape(taken), shape(asked)
        x = x.reshape([n for axis in have for n in axis])
        for at, n in enumerate(n for axis in want for n in axis):
            x = x.narrow(at, 0, n)
        return x.reshape([prod(axis) for axis in want])


Cuts = Sequence[Cut | None]
"""How each leaf of a result is cut; None if it is returned as it is."""


@dataclass(frozen=True)
class Fitted:
    """A padded call. given: the padded arguments by name. taken: their sizes, those of a program. asked: the sizes of
    the call. Both have one size for each of `Arguments.dims`."""

    given: dict[str, Any]
    taken: Sizes
    asked: Sizes


class CallPadding:
    """Pads calls to a shape bucket, and cuts their results.

    arguments: of the model, with their dynamic dimensions. masks: names of the arguments that are 0 or 1 everywhere in
    the example. least: the smallest size with which the model can be called, by dimension; 1 if missing. cuts: how
    results are cut, by the sizes of a program; results of other sizes are not cut.
    """

    def __init__(self, arguments: Arguments, masks: Sequence[str]) -> None:
        self.arguments = arguments
        self.masks = tuple(masks)
        self._programs = arguments.buckets()
        self.least: dict[Dim, int] = {}
        self.cuts: dict[Sizes, Cuts] = {}

    def fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fitted:
        """Pad the arguments of a call, by position and by name, to the program with the fewest rows that they fit.
        Raises `TensorError` if they fit none, if an argument is missing or no tensor, if the module cannot be called
        with these sizes, or if a mask has other numbers than 0 and 1."""
        given = self.arguments.named(args, kwargs)
        for name, x in self.arguments.example.items():
            if hasattr(x, "shape") and isinstance(given.get(name), np.ndarray):
                given[name] = call_arguments.as_tensor(name, given[name])
            elif hasattr(x, "shape") and not hasattr(given.get(name), "device"):
                fault = f"is a {type(given[name]).__name__}" if name in given else "is missing"
                raise TensorError(f"argument {name} {fault}; the example has a tensor")
        asked = self.arguments.sizes(given)
        self.check_sizes(asked)
        self.check_masks(given)
        taken = self._choose(asked, given)
        return Fitted(self.arguments.resized(given, taken), taken, asked)

    def _choose(self, asked: Sizes, given: Mapping[str, Any]) -> Sizes:
        """The sizes of the cheapest program that a call fits. Raises `TensorError` if it fits none."""
        bucket = self._programs.choose(asked)
        if bucket is None:
            shapes = {name: given[name].shape for name, _, _ in self.arguments.places(given)}
            raise no_bucket(shapes, self._programs.shown())
        return bucket.sizes

    def check_sizes(self, sizes: Sizes) -> None:
        """Check the sizes of a call, one for each of `Arguments.dims`. Raises `TensorError` for sizes with which the
        module itself cannot be called (`least`)."""
        for dim, size, name in zip(self.arguments.dims, sizes, self.arguments.first_names, strict=True):
            least = self.least.get(dim, 1)
            if size < least:
                remedy = f", or {type(dim).__name__}(..., exact=True)" if size else ""
                takes = f"this module takes a {dim.what} of {least} or more{remedy}"
                raise TensorError(f"argument {name} has a {dim.what} of {size}; {takes}")

    def check_masks(self, given: Mapping[str, Any]) -> None:
        """Check the arguments of a call. given: by name. Raises `TensorError` for one that is a mask (0 or 1
        everywhere) in the example but not now."""
        for name in self.masks:
            x = given.get(name)
            if hasattr(x, "shape") and not is_zero_or_one(x):
                raise TensorError(
                    f"argument {name} is a mask in the example, 0 or 1 everywhere, but has other numbers now; give an "
                    "example that has other numbers too"
                )

    def cut_leaves(self, leaves: Sequence[Any], taken: Sizes, asked: Sizes) -> list[Any]:
        """Return the leaves of a program's result, cut from the sizes `taken` of the program to the sizes `asked` of
        the call. Raises `ValueError` for another number of leaves than there are cuts."""
        cuts = self.cuts.get(taken) or [None] * len(leaves)
        return [x if cut is None else cut(x, taken, asked) for x, cut in zip(leaves, cuts, strict=True)]

    def cut(self, result: Any, call: Fitted) -> Any:
        """Return the result of the program for `call.taken`, cut to the sizes of the call, in the same structure.
        Raises as `cut_leaves` does. A result of the sizes of the call is returned as it is."""
        if call.taken == call.asked:
            return result
        from torch.utils import _pytree as pytree

        leaves, structure = pytree.tree_flatten(result)
        return structure.unflatten(self.cut_leaves(leaves, call.taken, call.asked))


def is_zero_or_one(x: torch.Tensor) -> bool:
    """Return whether all elements of a tensor are 0 or 1."""
    return bool(((x == 0) | (x == 1)).all())
