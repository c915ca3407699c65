"""Calls of a module in PyTorch with and without padding: a check, in case a rule of `rsnlib.padding` is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..base.errors import TensorError, UnsupportedError
from ..base.tolerance import BOUND
from .call_padding import Sizes, is_zero_or_one
from .shapes import Arguments, Batch, Dim
from .verification import is_quantised

CutLeaves = Callable[[Sequence[Any], Sizes, Sizes], list[Any]]
"""Cuts the leaves of a result from padded sizes to the sizes of a call."""


class Probe:
    """Calls a module in PyTorch with examples of several sizes and values. arguments: the example, and its dynamic
    dimensions."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._of = model, arguments
        sizes = self._of.sizes(self._of.example)
        self._sizes = tuple(map(base_size, self._of.dims, sizes))

    def call_with_other_sizes(self) -> None:
        """Call the module with another size of each dimension. Raises `TensorError` if a call fails, and
        `UnsupportedError` if the number of outputs, or an output that is no tensor, changes with the size."""
        first = leaves_of(self._asked(self._varied(self._sizes), self._of.dims, self._sizes))
        for i, (dim, size) in enumerate(zip(self._of.dims, self._sizes, strict=True)):
            if len(dim.sizes) == 1 and (dim.exact or dim.sizes == (1,)):
                continue  # all calls have this size: nothing is padded
            other = self._other(dim, size)
            resized = self._of.resized(self._of.example, (*self._sizes[:i], other, *self._sizes[i + 1 :]))
            full = leaves_of(self._asked(resized, [dim], [other]))
            if len(first) != len(full):
                raise UnsupportedError(f"the number of outputs of the module changes with the {self._of.names[dim]}")
            for n, (a, b) in enumerate(zip(first, full, strict=True)):
                if isinstance(a, PLAIN) and a != b and not dim.exact:
                    raise UnsupportedError(
                        f"output {n} is not a tensor and changes with the {self._of.names[dim]}: {a}, {b}"
                    )

    def least(self) -> dict[Dim, int]:
        """Return the smallest size, in elements, of each dimension with which the module can be called, if that is not
        1. Found by bisection, with calls of the module."""
        found = {}
        for i, (dim, size) in enumerate(zip(self._of.dims, self._sizes, strict=True)):
            fails, works = 0, 1 if dim.exact else size
            n = 1
            while works - fails > 1:
                if self._calls(self._of.resized(self._of.example, (*self._sizes[:i], n, *self._sizes[i + 1 :]))):
                    works = n
                else:
                    fails = n
                n = (fails + works) // 2
            if works > 1:
                found[dim] = works
        return found

    def compare(self, cut: CutLeaves, least: Mapping[Dim, int]) -> None:
        """Compare results with and without padding in PyTorch, with small sizes if the module can be called with them.
        cut: cuts results (leaves) from padded sizes to the sizes of the call. least: the smallest size of calls in
        elements, by dimension; 1 if missing. Raises `UnsupportedError` if they differ, and `TensorError` if a padded
        call fails."""
        small = tuple(
            n if d.exact else min(n, max(FEW, least.get(d, 1))) for d, n in zip(self._of.dims, self._sizes, strict=True)
        )
        base = small if self._calls(self._of.resized(self._of.example, small)) else self._sizes
        for number, example in enumerate(self._examples(base)):
            for sizes in dict.fromkeys(self._smaller(base, many=not number)):
                if any(n < least.get(dim, 1) for dim, n in zip(self._of.dims, sizes, strict=True)):
                    continue
                given = self._of.resized(example, sizes)
                unpadded = self._calls(given)
                if not unpadded or not all(_is_finite(x) for x in unpadded):
                    continue
                padded = tuple(map(self._padded_size, self._of.dims, sizes))
                full = leaves_of(self._asked(self._of.resized(given, padded), self._of.dims, padded))
                if self._difference(unpadded, full, cut, padded, sizes):
                    self._refuse(given, sizes, unpadded, cut)

    def _refuse(self, given: dict[str, Any], sizes: Sizes, unpadded: Sequence[Any], cut: Any) -> NoReturn:
        """Raises the error for the dimension whose padding alone makes a difference, or else for the last one."""
        for i, dim in enumerate(self._of.dims):
            padded = (*sizes[:i], self._padded_size(dim, sizes[i]), *sizes[i + 1 :])
            full = leaves_of(self._asked(self._of.resized(given, padded), [dim], [padded[i]]))
            why = self._difference(unpadded, full, cut, padded, sizes)
            if why or i == len(sizes) - 1:
                raise refusal(self._of, dim, why or "output 0: it differs if several dimensions are padded")
        raise AssertionError("no dimension")

    def _calls(self, example: dict[str, Any]) -> list[Any]:
        """The leaves of the module's result; empty if the module raises, because it may not support these values and
        sizes even without padding."""
        try:
            return leaves_of(_called(self._model, example))
        except Exception:
            return []

    @staticmethod
    def _padded_size(dim: Dim, size: int) -> int:
        """A size to which an example is padded."""
        return size if dim.exact or dim.sizes == (1,) else min(size + FILLED, max(dim.sizes[-1], size + 1))

    def _smaller(self, sizes: Sizes, many: bool) -> Iterator[Sizes]:
        """These sizes, and variants in which one dimension is smaller: 1, and with `many` some between."""
        yield sizes
        for i, (dim, size) in enumerate(zip(self._of.dims, sizes, strict=True)):
            for n in (1, 2, size // 2, size - 1) if many else (1,):
                if not dim.exact and 0 < n < size:
                    yield (*sizes[:i], n, *sizes[i + 1 :])

    def _examples(self, sizes: Sizes) -> Iterator[dict[str, Any]]:
        """The example, and variants: negated, scaled by 10 and 1000, with shuffled integers."""
        base = self._varied(sizes)
        yield base
        for change in (_negated, _times(10.0), _times(1000.0), _shuffled):
            changed = {name: change(x) if hasattr(x, "shape") else x for name, x in base.items()}
            if any(changed[name] is not x for name, x in base.items()):
                yield changed

    def _difference(self, unpadded: Sequence[Any], full: Sequence[Any], cut: CutLeaves, *sizes: Sizes) -> str:
        """As the function of this name. A quantised module may be further apart."""
        taken, asked = sizes
        return _difference(unpadded, full, cut, taken, asked, QUANTISED if is_quantised(self._model) else BOUND)

    @staticmethod
    def _other(dim: Dim, size: int) -> int:
        return next((n for n in dim.sizes if n > size), size + 1)

    def _varied(self, sizes: Sequence[int]) -> dict[str, Any]:
        """The example in these sizes, without padding; sequences differ if possible."""
        size_of, out = dict(zip(self._of.dims, sizes, strict=True)), dict(self._of.example)
        for name, axis, dim in self._of.places(self._of.example):
            out[name] = _varied(out[name], axis, size_of[dim], isinstance(dim, Batch))
        return out

    def _asked(self, example: dict[str, Any], dims: Sequence[Dim], sizes: Sequence[int]) -> Any:
        try:
            return _called(self._model, example)
        except Exception as error:  # a model may raise anything
            message = str(error).strip().partition("\n")[0]
            raise _cannot_be_called(self._of, dims, sizes, f"{type(error).__name__}: {message}") from error


def _cannot_be_called(arguments: Arguments, dims: Sequence[Dim], sizes: Sequence[int], why: str) -> TensorError:
    """The error for a module that raises. It names arguments that may lack a dynamic dimension."""
    of = dict(zip(arguments.dims, arguments.sizes(arguments.example), strict=True))
    lacking = [
        f"{name} has one of {of[dim]}"
        for dim in dims
        for name, x in arguments.example.items()
        if hasattr(x, "shape") and of[dim] in x.shape and dim not in arguments.shapes.get(name, {}).values()
    ]
    must = f"dynamic_shapes must name every argument that has a {arguments.names[dims[0]]}"
    return TensorError(
        f"the module cannot be called with {described(arguments, dims, sizes)} ({why}); {must}"
        + (f": {', '.join(dict.fromkeys(lacking))}" if lacking else ", and list sizes that the module takes")
    )


def described(arguments: Arguments, dims: Sequence[Dim], sizes: Sequence[int]) -> str:
    """Return sizes of dimensions as text, for messages. dims: of `arguments`. sizes: one for each of `dims`."""
    return " and ".join(f"a {arguments.names[dim]} of {size}" for dim, size in zip(dims, sizes, strict=True))


def _difference(
    unpadded: Sequence[Any], full: Sequence[Any], cut: CutLeaves, taken: Sizes, asked: Sizes, bound: float
) -> str:
    """Which output differs by more than `bound`, and by how much, after a padded result is cut; "" if none does."""
    try:
        padded = cut(full, taken, asked)
    except RuntimeError as error:
        return f"output 0: its shape does not follow from the size ({error})"
    for n, (a, b) in enumerate(zip(unpadded, padded, strict=True)):
        if not hasattr(a, "shape"):
            continue
        if a.shape != b.shape:
            return f"output {n}: its shape becomes {tuple(b.shape)}, not {tuple(a.shape)}"
        if not a.is_floating_point():
            if not bool((a == b).all()):
                return f"output {n}: it differs"
        elif a.numel():
            off = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30))
            if not off <= bound:  # NaN is not the same
                return f"output {n}: it differs by {off:.2g} of its largest value"
    return ""


def _is_finite(x: Any) -> bool:
    return not hasattr(x, "isfinite") or bool(x.isfinite().all())


def _called(model: nn.Module, arguments: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**arguments)


QUANTISED = 0.02
"""How far results of a quantised module may be apart, of their largest value: what padding changes by more than a
rounding changes them by far more."""
FEW = 12
"""Largest number of rows and sequences of an example, if the module can be called with so few."""
FILLED = 5
"""Largest number of rows and sequences that an example is padded by."""
PLAIN = (int, float, str, tuple)
"""Types of results other than tensors that are compared."""


def leaves_of(result: Any) -> list[Any]:
    """Return the tensors and other values in a result, in order, without the containers (pytree) that hold them."""
    return list(pytree.tree_leaves(result))


def base_size(dim: Dim, size: int) -> int:
    """Return the size, in elements, with which a dimension is called in an example. size: the size in the user's
    example. The result is below the largest size of `dim`, if that is above 2, so that there is room for padding."""
    if dim.exact:
        return dim.sizes[0]
    largest = dim.sizes[-1]
    return min(largest, 2) if largest <= 2 else min(max(size, 2), largest - 1)


def _varied(x: torch.Tensor, axis: int, size: int, batch: bool) -> torch.Tensor:
    known = x.shape[axis]
    if size <= known:
        x = x.narrow(axis, 0, size)
    else:
        x = x.index_select(axis, torch.arange(size, device=x.device) % known)
    if not batch or not _is_data(x):
        return x
    rows = list(x.split(1, axis))
    for i, row in enumerate(rows):
        if x.is_floating_point():
            rows[i] = row * (1 + 0.1 * i)
        elif i >= known:
            rows[i] = row.flip(-1)
    return torch.cat(rows, axis)


def _is_data(x: torch.Tensor) -> bool:
    """Whether a tensor holds data, not a mask."""
    return x.dtype != torch.bool and len(x.unique()) > 2


def is_mask(x: Any) -> bool:
    """Return whether an argument is an integer or bool mask: each element 0 or 1, and at least one 1 (token types may
    be all 0)."""
    if not hasattr(x, "is_floating_point") or x.is_floating_point() or x.is_complex():
        return False
    return is_zero_or_one(x) and bool((x == 1).any())


def _negated(x: torch.Tensor) -> torch.Tensor:
    return -x if x.is_floating_point() and _is_data(x) else x


def _times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor if x.is_floating_point() and _is_data(x) else x


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    """The same integers in another order, because the range of valid integers is not known."""
    if x.is_floating_point() or not _is_data(x):
        return x
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))
    return x.reshape(-1)[order].reshape(x.shape)


def refusal(arguments: Arguments, dim: Dim, why: str) -> UnsupportedError:
    """Return the error for a module whose results depend on the padding of a dimension. why: the output and the reason,
    as "output 0: ..."."""
    output, _, rest = why.partition(": ")
    changes = f" changes {output}" if rest else ""
    return UnsupportedError(
        f"padding the {arguments.names[dim]}{changes}: {rest or why}; {_remedy(dim)}or use {type(dim).__name__}(..., "
        "exact=True) and call the model with those sizes only"
    )


def _remedy(dim: Dim) -> str:
    """What the user can do. A batch is padded with copies of a sequence, which no mask hides."""
    if isinstance(dim, Batch):
        return "change the model so that no sequence depends on others, "
    return "hide the padded rows by a mask in dynamic_shapes that is 1 or True at valid rows, "
