"""Programs for some sizes of a model's arguments, and calls of any: filled up to a program's sizes, and cut back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import TensorError
from .shape_buckets import no_bucket
from .shapes import Arguments, Dim

if TYPE_CHECKING:
    import torch

Sizes = tuple[int, ...]
"""Of each of the dimensions in `Arguments.dims`."""


@dataclass(frozen=True)
class Factor:
    """Of an axis of a result. size: in the program's result. dim: the number in `Arguments.dims` of the dimension that
    it follows, None where it has the same size in every call; it has one position for each `every` of those of the
    dimension and `offset`, rounded up."""

    size: int
    dim: int | None = None
    offset: int = 0
    every: int = 1

    def count(self, sizes: Sizes) -> int:
        """Its positions in calls of these sizes."""
        return self.size if self.dim is None else -(-(sizes[self.dim] + self.offset) // self.every)


@dataclass(frozen=True)
class Cut:
    """How a result is cut. axes: of each, outermost first, the factors that it has."""

    axes: tuple[tuple[Factor, ...], ...]

    @property
    def is_needed(self) -> bool:
        """Whether any axis follows a dimension."""
        return any(factor.dim is not None for axis in self.axes for factor in axis)

    def __call__(self, x: torch.Tensor, taken: Sizes, asked: Sizes) -> torch.Tensor:
        """The part of a result for the sizes `taken` that is the result for those that were asked for."""

        def shape(sizes: Sizes) -> list[list[int]]:
            return [[factor.count(sizes) for factor in axis] for axis in self.axes]

        have, want = shape(taken), shape(asked)
        x = x.reshape([n for axis in have for n in axis])
        for at, n in enumerate(n for axis in want for n in axis):
            x = x.narrow(at, 0, n)
        return x.reshape([prod(axis) for axis in want])


Cuts = Sequence[Cut | None]
"""Of each leaf of a result; None where it comes back as it is."""


@dataclass(frozen=True)
class Fitted:
    """A call, filled up. given: the arguments by name, in the sizes `taken`, of a program; asked: those of the call."""

    given: dict[str, Any]
    taken: Sizes
    asked: Sizes


class CallPadding:
    """How calls are padded to the shape bucket that they take, and their results cut.

    masks: names of the arguments that are 0 or 1 everywhere in the example. least: the smallest sizes that the model
    itself takes, by dimension. cuts: of the results, by the sizes of a program; sizes without any come back whole.
    """

    def __init__(self, arguments: Arguments, masks: Sequence[str]) -> None:
        self.arguments = arguments
        self.masks = tuple(masks)
        self._programs = arguments.buckets()
        self.least: dict[Dim, int] = {}
        self.cuts: dict[Sizes, Cuts] = {}

    def fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fitted:
        """The arguments of a call, filled up to the cheapest program that takes them. Raises `TensorError` for sizes
        beyond those listed, and for arguments that differ from the example's in more than these sizes."""
        from .capture import as_tensor

        given = self.arguments.named(args, kwargs)
        for name, x in self.arguments.example.items():
            if hasattr(x, "shape") and isinstance(given.get(name), np.ndarray):
                given[name] = as_tensor(name, given[name])
            elif hasattr(x, "shape") and not hasattr(given.get(name), "device"):
                what = f"is a {type(given[name]).__name__}" if name in given else "is missing"
                raise TensorError(f"argument {name} {what}; the example has a tensor")
        asked = self.arguments.sizes(given)
        self.check_sizes(asked)
        self.check_masks(given)
        taken = self._choose(asked, given)
        return Fitted(self.arguments.resized(given, taken), taken, asked)

    def _choose(self, asked: Sizes, given: Mapping[str, Any]) -> Sizes:
        """The sizes of the cheapest program that takes a call. Raises `TensorError` where none does."""
        bucket = self._programs.choose(asked)
        if bucket is None:
            shapes = {name: given[name].shape for name, _, _ in self.arguments.places(given)}
            raise no_bucket(shapes, self._programs.shown())
        return bucket.sizes

    def check_sizes(self, sizes: Sizes) -> None:
        """Raises `TensorError` for sizes for which the module itself cannot be called."""
        for dim, size, name in zip(self.arguments.dims, sizes, self.arguments.first_names, strict=True):
            least = self.least.get(dim, 1)
            if size < least:
                way_out = f", or {type(dim).__name__}(..., exact=True)" if size else ""
                takes = f"this module takes a {dim.what} of {least} or more{way_out}"
                raise TensorError(f"argument {name} has a {dim.what} of {size}; {takes}")

    def check_masks(self, given: Mapping[str, Any]) -> None:
        """Raises `TensorError` for an argument that is a mask in the example and holds other numbers now."""
        for name in self.masks:
            x = given.get(name)
            if hasattr(x, "shape") and not is_zero_or_one(x):
                raise TensorError(
                    f"argument {name} is 0 or 1 everywhere in the example, as a mask, and other numbers here; give an "
                    "example that has others too"
                )

    def cut_leaves(self, leaves: Sequence[Any], taken: Sizes, asked: Sizes) -> list[Any]:
        """The results of a program for the sizes `taken`, as they are for those that were asked for."""
        cuts = self.cuts.get(taken) or [None] * len(leaves)
        return [x if cut is None else cut(x, taken, asked) for x, cut in zip(leaves, cuts, strict=True)]

    def cut(self, result: Any, call: Fitted) -> Any:
        """What the program for `call.taken` returned, as the call is answered, in the structure that it has."""
        from torch.utils import _pytree as pytree

        leaves, structure = pytree.tree_flatten(result)
        return structure.unflatten(self.cut_leaves(leaves, call.taken, call.asked))


def is_zero_or_one(x: torch.Tensor) -> bool:
    """Whether each number is 0 or 1."""
    return bool(((x == 0) | (x == 1)).all())
