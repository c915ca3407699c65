"""Dynamic dimensions of a model's arguments, and how arguments are cut or padded to the sizes of a program."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ..base.deferred import deferred
from ..base.errors import TensorError
from .shape_buckets import Extent, ShapeBuckets, SizeBucket

if TYPE_CHECKING:
    import torch

    from . import call_arguments
else:
    call_arguments = deferred("rsn.rsnlib.call_arguments")


@dataclass(frozen=True, init=False)
class Dim:
    """A dynamic dimension: calls choose its size. sizes: the sizes in elements that programs are compiled for,
    ascending. exact: calls must have one of these sizes; otherwise any size up to the largest, padded to the next of
    them. Raises `TensorError` unless there is at least one size and all are whole numbers from 1 on."""

    sizes: tuple[int, ...]
    exact: bool

    def __init__(self, *sizes: int, exact: bool = False) -> None:
        if any(isinstance(n, bool) or not isinstance(n, int) for n in sizes):
            raise TensorError(f"{type(self).__name__}{sizes}: sizes must be whole numbers")
        if not sizes or min(sizes) < 1:
            raise TensorError(f"{type(self).__name__}{sizes}: give at least one size, each 1 or more")
        object.__setattr__(self, "sizes", tuple(sorted(set(sizes))))
        object.__setattr__(self, "exact", exact)

    what = "size"
    """What messages call the size."""


class Batch(Dim):
    """A dynamic number of sequences. Missing sequences are padded with copies of the last one."""

    what = "batch"


class Length(Dim):
    """A dynamic number of rows of a sequence. Missing rows are padded with 0, in a mask too, which hides them."""

    what = "length"


Shapes = Mapping[str, Mapping[int, Dim]]
"""The dynamic dimensions of arguments: by argument name, by axis."""


FORM = '{"input_ids": {0: rsn.Batch(1, 8), 1: rsn.Length(128, 512)}}'


def _check_form(shapes: object) -> None:
    whole = isinstance(shapes, Mapping) and shapes and all(isinstance(d, Mapping) and d for d in shapes.values())
    if not isinstance(shapes, Mapping) or not whole:
        raise TensorError(
            f"dynamic_shapes = {shapes!r}: must give the dynamic dimensions of each argument, such as {FORM}"
        )
    for name, dims in shapes.items():
        for axis, dim in dims.items():
            if isinstance(axis, bool) or not isinstance(axis, int) or not isinstance(dim, Batch | Length):
                raise TensorError(
                    f"dynamic_shapes[{name!r}] has {axis!r}: {dim!r}; must be axis: rsn.Batch(...) or rsn.Length(...), "
                    f"such as {FORM}"
                )


class Arguments:
    """The arguments of a function and their dynamic dimensions. signature: of the function. example: the arguments of
    one call by name. shapes: the dynamic dimension of some axes, by axis, by the name of the argument. dims: all
    dynamic dimensions, each once. Raises `TensorError` if `shapes` does not fit the arguments."""

    def __init__(self, signature: inspect.Signature, example: tuple[Any, ...] | dict[str, Any], shapes: Shapes) -> None:
        _check_form(shapes)
        self.signature = signature
        self._forms: call_arguments.CallForms[str] | None = None
        self.shapes = shapes
        args, kwargs = (example, {}) if isinstance(example, tuple) else ((), example)
        self.example = self.named(args, kwargs)
        unknown = [name for name in shapes if name not in self.example]
        if unknown:
            raise TensorError(
                f"dynamic_shapes: no argument {unknown[0]!r} in the example; there are {', '.join(self.example)}"
            )
        self.dims: tuple[Dim, ...] = tuple(dict.fromkeys(d for dims in shapes.values() for d in dims.values()))
        self.first_names = [next(name for name, of in shapes.items() if dim in of.values()) for dim in self.dims]
        """For each of `dims`, the first argument that has it."""
        # A second batch or length is named with its argument.
        of_a_kind = Counter(dim.what for dim in self.dims)
        owners = [
            "" if of_a_kind[dim.what] == 1 else f" of {name}"
            for dim, name in zip(self.dims, self.first_names, strict=True)
        ]
        self.names = {dim: f"{dim.what}{of}" for dim, of in zip(self.dims, owners, strict=True)}
        """For messages, the name of each of `dims`, such as "length"."""
        self.positions = {
            dim: ("sequences" if isinstance(dim, Batch) else "rows") + of
            for dim, of in zip(self.dims, owners, strict=True)
        }
        """The same of its positions: "sequences" or "rows"."""

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, whether given by position or by name. Raises `TensorError` if they do
        not fit the signature, and for a module that takes `*args`."""
        if self._forms is None:
            self._forms = call_arguments.CallForms()
        return self._forms.arranged(self._bound, args, kwargs)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TensorError(f"the module's arguments: {error}") from error
        if len(bound.kwargs) + len(bound.args) > len(bound.arguments) + len(bound.kwargs):
            raise TensorError("the module has *args, whose arguments dynamic_shapes cannot name")
        return dict(zip(bound.arguments, bound.args, strict=False)) | bound.kwargs

    def places(self, given: Mapping[str, Any]) -> Iterator[tuple[str, int, Dim]]:
        """Yield the dynamic dimensions of arguments as (argument, axis, dimension). given: arguments by name. An axis
        may be negative. Raises `TensorError` for an argument that lacks the axis."""
        for name, dims in self.shapes.items():
            x: Any = given.get(name)
            if x is None and self.example[name] is None:
                continue
            for axis, dim in dims.items():
                if not hasattr(x, "shape") or not -x.ndim <= axis < x.ndim:
                    shown = "x".join(map(str, x.shape)) if hasattr(x, "shape") else type(x).__name__
                    raise TensorError(f"argument {name} is {shown}; it needs an axis {axis} for the {dim.what}")
                yield name, axis, dim

    def places_of_leaves(self) -> list[dict[int, int]]:
        """Return for each leaf of the example's arguments, in torch.export's order, the index in `dims` that each
        dynamic axis follows, by axis from 0 on."""
        from torch.utils import _pytree as pytree

        marked: dict[str, Any] = dict(self.example)
        for name, axis, dim in self.places(self.example):
            if not isinstance(marked[name], _Marked):
                marked[name] = _Marked({})
            marked[name].axes[axis % self.example[name].ndim] = self.dims.index(dim)
        leaves = pytree.tree_leaves(call_arguments.canonical(self.signature, (), marked))
        return [leaf.axes if isinstance(leaf, _Marked) else {} for leaf in leaves]

    def sizes(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the sizes of `dims` in a call, in elements. given: arguments by name. Raises `TensorError` if
        arguments disagree on one, and as `places` does."""
        found: dict[Dim, tuple[str, int]] = {}
        for name, axis, dim in self.places(given):
            size = given[name].shape[axis]
            other, known = found.setdefault(dim, (name, size))
            if size != known:
                raise TensorError(f"{name} has a {dim.what} of {size}, but {other} has one of {known}")
        return tuple(found[d][1] for d in self.dims)

    def buckets(self) -> ShapeBuckets[SizeBucket, Sequence[int]]:
        """Return the shape buckets: one for each combination of the sizes of `dims`."""
        choices = [[Extent(n, dim.exact, self.names[dim]) for n in dim.sizes] for dim in self.dims]
        return ShapeBuckets(map(SizeBucket, product(*choices)))

    def resized(self, given: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
        """Return the arguments `given` by name, cut or padded to `sizes`, one size in elements for each of `dims`.
        Raises `TensorError` as `places` does."""
        size_of, out = dict(zip(self.dims, sizes, strict=True)), dict(given)
        for name, axis, dim in self.places(given):
            if out[name].shape[axis] != size_of[dim]:
                out[name] = _resized(out[name], axis, size_of[dim], copies=isinstance(dim, Batch))
        return out

    def example_of(self, sizes: Sequence[int]) -> dict[str, Any]:
        """Return the example by name for a program of these sizes, one for each of `dims`. A mask of padding becomes
        1 everywhere, because a mask with few rows of 1 would not tell whether it is causal. One exception: a mask
        that hides the first rows of a sequence (padding on the left) hides one row, or the program would refuse such
        calls."""
        made = self.resized(self.example, sizes)
        for name in self.shapes:
            x = self.example[name]
            if x.is_contiguous():  # what is cut of it would have strides of its own
                made[name] = made[name].contiguous()
            if not _is_zero_or_one(x) or not (_is_padded_on_left(x) or _is_prefix(x)):
                continue
            if made[name].shape[1] > 1:
                made[name] = made[name].new_ones(made[name].shape)
                made[name][0, 0] = not _is_padded_on_left(x)
        return made


@dataclass(frozen=True)
class _Marked:
    """Stands for an argument with dynamic dimensions. axes: the index in `dims` by axis."""

    axes: dict[int, int]


def _resized(x: torch.Tensor, axis: int, size: int, copies: bool) -> torch.Tensor:
    import torch

    missing = size - x.shape[axis]
    if missing <= 0:
        return x.narrow(axis, 0, size)
    last = x.narrow(axis, x.shape[axis] - 1, 1)
    rest = last.expand(*(missing if i == axis % x.ndim else n for i, n in enumerate(last.shape)))
    return torch.cat([x, rest if copies else torch.zeros_like(rest)], axis)


def _is_zero_or_one(x: Any) -> bool:
    """Whether an argument has the form of a mask: of whole numbers or bool, (batch, rows), of 0 and 1."""
    if not hasattr(x, "is_floating_point") or x.is_floating_point() or x.is_complex() or x.ndim != 2:
        return False
    return x.numel() > 0 and bool(((x == 0) | (x == 1)).all())


def _is_padded_on_left(x: torch.Tensor) -> bool:
    """Whether a sequence of a mask has rows that are hidden before others."""
    return bool(((x[:, 0] == 0) & (x != 0).any(1)).any())


def _is_prefix(x: torch.Tensor) -> bool:
    """Whether a mask shows the first rows of each sequence, one or more."""
    return bool((x[:, 0] != 0).all() and (x[:, 1:] <= x[:, :-1]).all())
