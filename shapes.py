"""`rsn.compile(..., dynamic_shapes=...)`: one model, called with batches and lengths of many sizes.

A program is for one size. Here is a family of them, for the sizes that are listed, each compiled when it is first
wanted; a call takes the smallest that it fits into, filled up, and its result is cut to what was asked. That filling up
changes nothing is not taken for granted: PyTorch computes the example both ways first.
"""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .compare import BOUND
from .isa.errors import TensorError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .compiler import Compiled
    from .hw.sim.machine import Run

REMEMBERED = 8
"""Programs of a model that are kept, each with a copy of its weights."""


@dataclass(frozen=True, init=False)
class Dim:
    """A dimension of arguments whose size calls choose. sizes: those that there are programs for. exact: calls have one
    of these sizes; otherwise any up to the largest, and what is missing is filled in."""

    sizes: tuple[int, ...]
    exact: bool

    def __init__(self, *sizes: int, exact: bool = False) -> None:
        """Raises `TensorError` for what are no sizes."""
        if any(isinstance(n, bool) or not isinstance(n, int) for n in sizes):
            raise TensorError(f"{type(self).__name__}{sizes}: sizes are whole numbers")
        if not sizes or min(sizes) < 1:
            raise TensorError(f"{type(self).__name__}{sizes}: at least one size, and each 1 or more")
        object.__setattr__(self, "sizes", tuple(sorted(set(sizes))))
        object.__setattr__(self, "exact", exact)

    def fitting(self, size: int) -> int:
        """The smallest that takes so many. Raises `TensorError`."""
        found = next((n for n in self.sizes if n == size or (n > size and not self.exact)), None)
        if found is None or not size:
            known = ", ".join(map(str, self.sizes))
            limit = f"of {known} alone" if self.exact else f"of 1 to {self.sizes[-1]}"
            raise TensorError(f"a {self.what} of {size}; compiled for those {limit}")
        return found

    what = "size"


class Batch(Dim):
    """How many sequences. Those that are missing are copies of the last."""

    what = "batch"


class Length(Dim):
    """Rows of a sequence. Those that are missing are 0, in a mask too, which hides them."""

    what = "length"


Shapes = Mapping[str, Mapping[int, Dim]]
"""By argument, which of its dimensions calls choose."""


FORM = '{"input_ids": {0: rsn.Batch(1, 8), 1: rsn.Length(128, 512)}}'


def _check_form(shapes: object) -> None:
    whole = isinstance(shapes, Mapping) and shapes and all(isinstance(d, Mapping) and d for d in shapes.values())
    if not isinstance(shapes, Mapping) or not whole:
        raise TensorError(f"dynamic_shapes = {shapes!r}: by argument, which dimensions calls choose, such as {FORM}")
    for name, dims in shapes.items():
        for axis, dim in dims.items():
            if isinstance(axis, bool) or not isinstance(axis, int) or not isinstance(dim, Batch | Length):
                raise TensorError(f"dynamic_shapes[{name!r}]: {axis!r}: {dim!r}; write {FORM}")


class Family:
    """A module as several programs. Call it as the module; it returns what the module returns.

    make: the compiler, from example inputs by name. Raises `UnsupportedError` for a module whose result depends on what
    is filled in, `TensorError` for shapes that do not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: tuple[Any, ...] | dict[str, Any],
        shapes: Shapes,
        make: Callable[[dict[str, Any]], Compiled],
    ) -> None:
        _check_form(shapes)
        self._signature = inspect.signature(model.forward)
        self._shapes, self._make = shapes, make
        args, kwargs = (example_inputs, {}) if isinstance(example_inputs, tuple) else ((), example_inputs)
        self._example = self._named(args, kwargs)
        unknown = [name for name in shapes if name not in self._example]
        if unknown:
            raise TensorError(
                f"dynamic_shapes: no argument {unknown[0]!r} in the example; there are {', '.join(self._example)}"
            )
        self._dims: list[Dim] = list(dict.fromkeys(d for dims in shapes.values() for d in dims.values()))
        self._made: OrderedDict[tuple[int, ...], Compiled] = OrderedDict()
        self._lock = threading.RLock()
        """One call at a time, as on a board."""
        self._latest: Compiled | None = None
        self._outputs = self._follow(model)
        """For each output which of its dimensions are of these sizes."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises as a call of `Compiled`, and `TensorError` for sizes beyond those listed."""
        given = self._named(args, kwargs)
        for name, x in self._example.items():
            if hasattr(x, "shape") and not hasattr(given.get(name), "device"):
                what = f"is a {type(given[name]).__name__}" if name in given else "is missing"
                raise TensorError(f"argument {name} {what}; the example has a tensor")
        asked = self._sizes(given)
        taken = tuple(d.fitting(n) for d, n in zip(self._dims, asked, strict=True))
        with self._lock:
            self._latest = self.program(*taken)
            return self._cut(self._latest(**self._resized(given, taken)), asked)

    def program(self, *sizes: int) -> Compiled:
        """The program for these sizes, in the order of `dims`; compiled now, if it was not before."""
        with self._lock:
            if sizes not in self._made:
                self._made[sizes] = self._make(self._resized(self._example, sizes))
                while len(self._made) > REMEMBERED:
                    self._made.popitem(last=False)[1].close()
            self._made.move_to_end(sizes)
            return self._made[sizes]

    def prepare(self) -> Self:
        """Compile for all sizes now, rather than when they are first wanted."""
        for sizes in product(*(d.sizes for d in self._dims)):
            self.program(*sizes)
        return self

    @property
    def programs(self) -> dict[tuple[int, ...], Compiled]:
        """Those that were compiled, by their sizes."""
        with self._lock:
            return dict(self._made)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(self._dims)

    @property
    def last_run(self) -> Run | None:
        """What the most recent call took on the machine."""
        return None if self._latest is None else self._latest.last_run

    def explain(self) -> str:
        """Which module runs where, and why, in the program for the largest sizes."""
        return self.program(*(d.sizes[-1] for d in self._dims)).explain()

    def close(self) -> None:
        """Give the boards back."""
        with self._lock:
            while self._made:
                self._made.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{d.what} {'|'.join(map(str, d.sizes))}" for d in self._dims)
        return f"<rsn.Family: {sizes}; {len(self._made)} programs so far>"

    # -- sizes

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by name, whether given by position or by name. Raises `TensorError` if they do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TensorError(f"the module's arguments: {error}") from error
        if len(bound.kwargs) + len(bound.args) > len(bound.arguments) + len(bound.kwargs):
            raise TensorError("the module takes any number of arguments by position, which dynamic_shapes cannot name")
        return dict(zip(bound.arguments, bound.args, strict=False)) | bound.kwargs

    def _places(self, given: Mapping[str, Any]) -> Iterator[tuple[str, int, Dim]]:
        """Where the arguments have a dimension of ours."""
        for name, dims in self._shapes.items():
            x: Any = given.get(name)
            if x is None and self._example[name] is None:
                continue
            for axis, dim in dims.items():
                if not hasattr(x, "shape") or not -x.ndim <= axis < x.ndim:
                    shown = "x".join(map(str, x.shape)) if hasattr(x, "shape") else type(x).__name__
                    raise TensorError(f"argument {name} is {shown}; dimension {axis} of it is the {dim.what}")
                yield name, axis, dim

    def _sizes(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        found: dict[Dim, tuple[str, int]] = {}
        for name, axis, dim in self._places(given):
            size = given[name].shape[axis]
            other, known = found.setdefault(dim, (name, size))
            if size != known:
                raise TensorError(f"{name} has a {dim.what} of {size}, and {other} one of {known}")
        return tuple(found[d][1] for d in self._dims)

    def _resized(self, given: Mapping[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
        """The arguments, cut or filled up."""
        wanted, out = dict(zip(self._dims, sizes, strict=True)), dict(given)
        for name, axis, dim in self._places(given):
            out[name] = _resized(out[name], axis, wanted[dim], copies=isinstance(dim, Batch))
        return out

    # -- what becomes of the results

    def _follow(self, model: nn.Module) -> list[dict[int, int]]:
        """By output and dimension of it, the number of the dimension of ours that it has; found out by asking PyTorch,
        and with it that what is filled in does not matter."""
        sizes = tuple(map(_base_size, self._dims, self._sizes(self._example)))
        base = self._varied(sizes)
        first = _leaves(self._asked(model, base, self._dims, sizes))
        follows: list[dict[int, int]] = [{} for _ in first]
        for turn, example in enumerate((base, {name: _negated(x) for name, x in base.items()})):
            try:
                apart = first if turn == 0 else _leaves(_called(model, example))
            except Exception:
                continue
            for i, (dim, size) in enumerate(zip(self._dims, sizes, strict=True)):
                other = dim.sizes[-1] if dim.sizes[-1] > size else size + 1
                if len(dim.sizes) == 1 and (dim.exact or dim.sizes == (1,)):
                    continue  # calls have this size: nothing is filled up
                filled = self._resized(example, (*sizes[:i], other, *sizes[i + 1 :]))
                full = _leaves(self._asked(model, filled, [dim], [other]))
                self._find(dim, i, (size, other), apart, full, follows)
                if not dim.exact:
                    self._check(dim, apart, [_narrowed(x, follows[n], sizes) for n, x in enumerate(full)])
        return follows

    def _varied(self, sizes: Sequence[int]) -> dict[str, Any]:
        """The example in these sizes. Sequences differ where they can, and no row is filled in."""
        wanted, out = dict(zip(self._dims, sizes, strict=True)), dict(self._example)
        for name, axis, dim in self._places(self._example):
            out[name] = _varied(out[name], axis, wanted[dim], isinstance(dim, Batch))
        return out

    def _asked(self, model: nn.Module, example: dict[str, Any], dims: Sequence[Dim], sizes: Sequence[int]) -> Any:
        try:
            return _called(model, example)
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

    def _cut(self, result: Any, sizes: Sequence[int]) -> Any:
        from torch.utils import _pytree as pytree

        flat, structure = pytree.tree_flatten(result)
        cut = [_narrowed(x, follows, sizes) for x, follows in zip(flat, self._outputs, strict=True)]
        return pytree.tree_unflatten(cut, structure)


def _resized(x: torch.Tensor, axis: int, size: int, copies: bool) -> torch.Tensor:
    import torch

    missing = size - x.shape[axis]
    if missing <= 0:
        return x.narrow(axis, 0, size)
    last = x.narrow(axis, x.shape[axis] - 1, 1)
    rest = last.expand(*(missing if i == axis % x.ndim else n for i, n in enumerate(last.shape)))
    return torch.cat([x, rest if copies else torch.zeros_like(rest)], axis)


def _narrowed(x: torch.Tensor, follows: Mapping[int, int], sizes: Sequence[int]) -> torch.Tensor:
    for axis, i in follows.items():  # none of what is no tensor
        x = x.narrow(axis, 0, sizes[i])
    return x


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
