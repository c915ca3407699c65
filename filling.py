"""Whether a module's result depends on what its arguments are filled up with, and which dimensions of it follow theirs.

PyTorch says so: it computes an example as it is and filled up, and again with numbers of the other sign, since what is
filled in is 0 or a copy, which a maximum or a mean may or may not notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .compare import BOUND
from .isa.errors import TensorError, UnsupportedError
from .shapes import Arguments, Batch, Dim

if TYPE_CHECKING:
    import torch
    from torch import nn


def follow(model: nn.Module, arguments: Arguments) -> list[dict[int, int]]:
    """For each output and dimension of it, the number of the dimension of `arguments` that it has.

    Raises `UnsupportedError` for a module whose result depends on what is filled in, `TensorError` where it cannot be
    called with other sizes.
    """
    return _Probe(model, arguments).follow()


def narrowed(x: torch.Tensor, follows: Mapping[int, int], sizes: Sequence[int]) -> torch.Tensor:
    """An output cut to these sizes."""
    for axis, i in follows.items():  # none of what is no tensor
        x = x.narrow(axis, 0, sizes[i])
    return x


class _Probe:
    """A module that is called with arguments of several sizes."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._of = model, arguments

    def follow(self) -> list[dict[int, int]]:
        """By output and dimension of it, the number of the dimension of ours that it has; found out by asking PyTorch,
        and with it that what is filled in does not matter."""
        sizes = tuple(map(_base_size, self._of.dims, self._of.sizes(self._of.example)))
        base = self._varied(sizes)
        first = _leaves(self._asked(base, self._of.dims, sizes))
        follows: list[dict[int, int]] = [{} for _ in first]
        for turn, example in enumerate((base, {name: _negated(x) for name, x in base.items()})):
            try:
                apart = first if turn == 0 else _leaves(_called(self._model, example))
            except Exception:  # what it says of numbers that it was not made for is no matter of sizes
                continue
            for i, (dim, size) in enumerate(zip(self._of.dims, sizes, strict=True)):
                other = dim.sizes[-1] if dim.sizes[-1] > size else size + 1
                if len(dim.sizes) == 1 and (dim.exact or dim.sizes == (1,)):
                    continue  # calls have this size: nothing is filled up
                filled = self._of.resized(example, (*sizes[:i], other, *sizes[i + 1 :]))
                full = _leaves(self._asked(filled, [dim], [other]))
                self._find(dim, i, (size, other), apart, full, follows)
                if not dim.exact:
                    self._check(dim, apart, [narrowed(x, follows[n], sizes) for n, x in enumerate(full)])
        return follows

    def _varied(self, sizes: Sequence[int]) -> dict[str, Any]:
        """The example in these sizes. Sequences differ where they can, and no row is filled in."""
        wanted, out = dict(zip(self._of.dims, sizes, strict=True)), dict(self._of.example)
        for name, axis, dim in self._of.places(self._of.example):
            out[name] = _varied(out[name], axis, wanted[dim], isinstance(dim, Batch))
        return out

    def _asked(self, example: dict[str, Any], dims: Sequence[Dim], sizes: Sequence[int]) -> Any:
        try:
            return _called(self._model, example)
        except Exception as error:  # whatever the model raises
            message = str(error).strip().partition("\n")[0]
            what = " and ".join(f"a {dim.what} of {size}" for dim, size in zip(dims, sizes, strict=True))
            raise TensorError(
                f"the module cannot be called with {what} ({type(error).__name__}: {message}); "
                f"dynamic_shapes names every argument that has a {dims[0].what}"
            ) from error

    def _find(
        self,
        dim: Dim,
        i: int,
        sizes: tuple[int, int],
        apart: Sequence[Any],
        full: Sequence[Any],
        follows: list[dict[int, int]],
    ) -> None:
        """Which dimensions of outputs are this one."""
        if len(apart) != len(full):
            raise UnsupportedError(f"with another {dim.what} the module has another number of outputs")
        for n, (a, b) in enumerate(zip(apart, full, strict=True)):
            if not hasattr(a, "shape") or not hasattr(b, "shape"):
                if isinstance(a, PLAIN) and a != b and not dim.exact:
                    raise UnsupportedError(f"output {n} is no tensor and changes with the {dim.what}: {a}, {b}")
                continue
            if a.ndim != b.ndim:
                raise UnsupportedError(f"output {n} has {a.ndim} dimensions or {b.ndim}, by the {dim.what}")
            for axis, (was, now) in enumerate(zip(a.shape, b.shape, strict=True)):
                if was == now:
                    continue
                if (was, now) != sizes:
                    raise UnsupportedError(
                        f"a {dim.what} of {sizes[0]} makes dimension {axis} of output {n} {was}, one of {sizes[1]} "
                        f"{now}: what belongs to which sequence cannot be told"
                    )
                if follows[n].setdefault(axis, i) != i:
                    raise UnsupportedError(f"dimension {axis} of output {n} follows two of dynamic_shapes")

    def _check(self, dim: Dim, apart: Sequence[Any], filled: Sequence[Any]) -> None:
        for n, (a, b) in enumerate(zip(apart, filled, strict=True)):
            if not hasattr(a, "shape"):
                continue
            if not a.is_floating_point():
                same, difference = bool((a == b).all()), ""
            else:
                both = (a == b) | (a.isnan() & b.isnan())  # infinities too, whose difference is no number
                a, b = a.masked_fill(both & ~a.isfinite(), 0), b.masked_fill(both & ~b.isfinite(), 0)
                off = float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0
                same, difference = off <= BOUND, f" by {off:.2g} of its largest value"
            if not same:
                raise UnsupportedError(
                    f"filling up the {dim.what} changes output {n}{difference}: nothing hides what is filled in, as an "
                    f"attention mask among dynamic_shapes would; or say {type(dim).__name__}(..., exact=True) and call "
                    "it with those sizes alone"
                )


def _called(model: nn.Module, arguments: dict[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return model(**arguments)


PLAIN = (int, float, str, tuple)
"""Results that are compared where they are no tensors."""


def _leaves(result: Any) -> list[Any]:
    from torch.utils import _pytree as pytree

    return list(pytree.tree_leaves(result))


def _base_size(dim: Dim, size: int) -> int:
    """Of an example that can be told from one that is filled up."""
    if dim.exact:
        return dim.sizes[0]
    largest = dim.sizes[-1]
    return min(largest, 2) if largest <= 2 else min(max(size, 2), largest - 1)


def _varied(x: torch.Tensor, axis: int, size: int, batch: bool) -> torch.Tensor:
    import torch

    known = x.shape[axis]
    if size <= known:
        x = x.narrow(axis, 0, size)
    else:
        x = x.index_select(axis, torch.arange(size, device=x.device) % known)
    if not batch or x.dtype == torch.bool or len(x.unique()) <= 2:
        return x
    rows = list(x.split(1, axis))
    for i, row in enumerate(rows):
        if x.is_floating_point():
            rows[i] = row * (1 + 0.1 * i)
        elif i >= known:
            rows[i] = row.flip(-1)
    return torch.cat(rows, axis)


def _negated(x: Any) -> Any:
    floats = hasattr(x, "is_floating_point") and x.is_floating_point()
    return -x if floats and len(x.unique()) > 2 else x
