"""Check that a module's results do not depend on the padding of its arguments, and find how results must be cut.

The analysis of the captured graph decides (`rsnlib.padding`). As a second check, in case a rule there is wrong, PyTorch
computes examples with and without padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..base.errors import TensorError, UnsupportedError
from ..base.tolerance import BOUND
from .call_arguments import canonical
from .call_padding import CallPadding, Cut, Factor, Sizes, is_zero_or_one
from .padding.check import FillingError, Graph, Growing, Outcome, check
from .padding.state import Atom, Fill
from .shapes import Arguments, Batch, Dim
from .trace import captured


class Filling:
    """Checks that the results of a module do not depend on how a call is padded to the sizes of a program.

    The constructor checks the largest program. Call `check` for each other program: only then is it safe to use.
    `padding` pads calls and cuts their results accordingly. arguments: the example, and its dynamic dimensions.

    Raises `UnsupportedError` for a module whose results depend on padding or cannot be cut to the sizes of a call, and
    `TensorError` if it cannot be called with other sizes than the example's.
    """

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._of = model, arguments
        self._captured: dict[Sizes, Graph] = {}
        self.padding = CallPadding(arguments, [name for name, x in arguments.example.items() if _is_mask(x)])
        """Pads calls and cuts their results; `check` fills in how to cut, for the sizes of each program."""
        probe = _Probe(model, arguments)
        probe.call_with_other_sizes()
        usual = tuple(dim.sizes[0] if dim.exact else dim.sizes[-1] for dim in arguments.dims)
        if self._growing(usual):
            self.check(usual, self._graph(usual).program)
            cuts = self.padding.cuts[usual]
            probe.compare(
                lambda leaves, padded, sizes: [
                    x if cut is None else cut(x, padded, sizes) for x, cut in zip(leaves, cuts, strict=True)
                ]
            )

    def check(self, sizes: Sizes, program: ExportedProgram) -> None:
        """Check that a program for these sizes can serve calls of smaller sizes, and record in `padding` how to cut its
        results. program: the module captured with these sizes. Raises `UnsupportedError` if it cannot."""
        growing = self._growing(sizes)
        if growing:
            outcome = self._check(growing, self._of_program(program, sizes), sizes)
            self.padding.cuts[sizes] = [None if axes is None else _cut(axes, growing) for axes in outcome.outputs]

    def check_again(self) -> None:
        """Repeat all checks with the current values of the module's parameters and buffers. Raises
        `UnsupportedError`."""
        for sizes in list(self.padding.cuts):
            self.check(sizes, self._graph(sizes).program)

    def _growing(self, sizes: Sizes) -> list[int]:
        """The indices of the dimensions that a program for these sizes pads."""
        return [i for i, (dim, size) in enumerate(zip(self._of.dims, sizes, strict=True)) if size > 1 and not dim.exact]

    def _check(self, growing: Sequence[int], graph: Graph, sizes: Sizes) -> Outcome:
        outcome = self._compared(growing, graph, sizes, self._other(growing, sizes))
        smallest = self._smallest(growing, sizes, outcome)
        if smallest is not None:
            outcome = self._compared(growing, graph, sizes, smallest)
        return outcome

    def _compared(self, growing: Sequence[int], graph: Graph, sizes: Sizes, other: Sizes) -> Outcome:
        dims = [self._of.dims[i] for i in growing]
        described = [_growing(dim, other[i], sizes[i]) for i, dim in zip(growing, dims, strict=True)]
        try:
            outcome = check(described, _renumbered(self._graph(other), growing), _renumbered(graph, growing))
        except FillingError as error:
            raise _refusal(dims[error.dim], str(error)) from None
        for n, axes in enumerate(outcome.outputs):
            for atom in (atom for axis in axes or () for atom in axis):
                if atom.dim is not None and not atom.offset + sizes[growing[atom.dim]] >= 0:
                    raise UnsupportedError(f"output {n} cannot be cut")
        for i, least in outcome.least.items():
            self.padding.least[dims[i]] = max(self.padding.least.get(dims[i], 1), least)
        return outcome

    def _other(self, growing: Sequence[int], sizes: Sizes) -> Sizes:
        """Sizes of the graph to compare with. They differ from `sizes` in each dimension of `growing`, and by another
        amount in each. Sizes that were captured before are preferred.

        The comparison must show everything that depends on a size, such as its half or its remainder modulo 8. So the
        sizes are odd and far from `sizes`, if the module can be called with such sizes.
        """

        def fits(other: Sizes) -> bool:
            apart = [sizes[i] - other[i] for i in growing]
            same = all(other[i] == n for i, n in enumerate(sizes) if i not in growing)
            return same and 0 not in apart and len(set(apart)) == len(apart)

        known = next(filter(fits, self._captured), None)
        if known is not None:
            return known
        usual = [_base_size(d, n) for d, n in zip(self._of.dims, self._of.sizes(self._of.example), strict=True)]
        far = [
            [_odd(n * 5 // 8), _odd(n * 5 // 8) + 2, _odd(n * 3 // 8)] if i in growing else [n]
            for i, n in enumerate(sizes)
        ]
        near = [
            [n for n in (base, base - 1, base + 1, base - 2, base + 2) if n > 1] if i in growing else [sizes[i]]
            for i, base in enumerate(usual)
        ]
        first = next(filter(fits, product(*far)), None)
        for other in filter(fits, (*([first] if first else []), *product(*near))):
            try:
                self._graph(other)
            except TensorError:  # the module may need a larger size
                continue
            return other
        return next(filter(fits, product(*near)))

    def _smallest(self, growing: Sequence[int], sizes: Sizes, outcome: Outcome) -> Sizes | None:
        """The smallest sizes with which the module can be called, for a second comparison; None if there are none
        besides those compared already."""
        least = {i: max(2, outcome.least.get(n, 1)) for n, i in enumerate(growing)}
        choices = [[least[i], least[i] + 1] if i in growing else [n] for i, n in enumerate(sizes)]
        for other in product(*choices):
            apart = [n - other[i] for i, n in enumerate(sizes) if i in growing]
            if min(apart) > 0 and len(set(apart)) == len(apart):
                try:
                    self._graph(other)
                except TensorError:  # it may need a larger size than the rules know
                    return None
                return other
        return None

    def _graph(self, sizes: Sizes) -> Graph:
        if sizes not in self._captured:
            example = self._of.resized(self._of.example, sizes)
            program = captured(self._model, example)[0]
            self._captured[sizes] = self._of_program(program, sizes)
        return self._captured[sizes]

    def _of_program(self, program: ExportedProgram, sizes: Sizes) -> Graph:
        given = _leaves(canonical(inspect.signature(self._model.forward), (), dict(self._of.example)))
        specs = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
        nodes = [node for node, spec in specs if spec.kind == InputKind.USER_INPUT]
        return Graph(program, nodes, self._of.places_of_leaves(), list(map(_is_mask, given)))


def _odd(size: int) -> int:
    return max(size | 1, 3)


def _renumbered(graph: Graph, growing: Sequence[int]) -> Graph:
    """The graph with dimensions renumbered: by their position among those that are padded."""
    sizes = [{axis: growing.index(i) for axis, i in leaf.items() if i in growing} for leaf in graph.sizes]
    return replace(graph, sizes=sizes)


def _growing(dim: Dim, small: int, large: int) -> Growing:
    fill = Fill(copies=True) if isinstance(dim, Batch) else Fill(value=0.0)
    return Growing(dim.what, "sequences" if isinstance(dim, Batch) else "rows", small, large, fill)


def _refusal(dim: Dim, why: str) -> UnsupportedError:
    output, _, rest = why.partition(": ")
    changes = f" changes {output}" if rest else ""
    return UnsupportedError(
        f"padding the {dim.what}{changes}: {rest or why}; {_remedy(dim)}or use {type(dim).__name__}(..., exact=True) "
        "and call the model with those sizes only"
    )


def _remedy(dim: Dim) -> str:
    """What the user can do. A batch is padded with copies of a sequence, which no mask hides."""
    if isinstance(dim, Batch):
        return "change the model so that no sequence depends on others, "
    return "hide the padded rows by a mask in dynamic_shapes that is 1 or True at valid rows, "


def _cut(axes: tuple[tuple[Atom, ...], ...], dims: Sequence[int]) -> Cut | None:
    """How a result with these axes is cut; None if nothing is cut. dims: by dimension of an atom, its index in
    `Arguments.dims`."""
    cut = Cut(
        tuple(
            tuple(Factor(a.size, None if a.dim is None else dims[a.dim], a.offset, a.every) for a in axis)
            for axis in axes
        )
    )
    return cut if cut.is_needed else None


class _Probe:
    """Calls a module in PyTorch with examples of several sizes and values."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._of = model, arguments
        sizes = self._of.sizes(self._of.example)
        self._sizes = tuple(map(_base_size, self._of.dims, sizes))

    def call_with_other_sizes(self) -> None:
        """Call the module with another size of each dimension. Raises `TensorError` if that fails, and
        `UnsupportedError` if the number of outputs, or an output that is no tensor, changes with the size."""
        first = _leaves(self._asked(self._varied(self._sizes), self._of.dims, self._sizes))
        for i, (dim, size) in enumerate(zip(self._of.dims, self._sizes, strict=True)):
            if len(dim.sizes) == 1 and (dim.exact or dim.sizes == (1,)):
                continue  # all calls have this size: nothing is padded
            other = self._other(dim, size)
            resized = self._of.resized(self._of.example, (*self._sizes[:i], other, *self._sizes[i + 1 :]))
            full = _leaves(self._asked(resized, [dim], [other]))
            if len(first) != len(full):
                raise UnsupportedError(f"the number of outputs of the module changes with the {dim.what}")
            for n, (a, b) in enumerate(zip(first, full, strict=True)):
                if isinstance(a, PLAIN) and a != b and not dim.exact:
                    raise UnsupportedError(f"output {n} is not a tensor and changes with the {dim.what}: {a}, {b}")

    def compare(self, cut: Callable[[Sequence[Any], Sizes, Sizes], list[Any]]) -> None:
        """Compare results with and without padding in PyTorch, with small sizes if the module can be called with them.
        cut: cuts results (leaves) from padded sizes to the sizes of the call. Raises `UnsupportedError` if they
        differ."""
        small = tuple(n if d.exact else min(n, FEW) for d, n in zip(self._of.dims, self._sizes, strict=True))
        base = small if self._calls(self._of.resized(self._of.example, small)) else self._sizes
        for number, example in enumerate(self._examples(base)):
            for sizes in dict.fromkeys(self._smaller(base, many=not number)):
                given = self._of.resized(example, sizes)
                unpadded = self._calls(given)
                if not unpadded or not all(_is_finite(x) for x in unpadded):
                    continue
                padded = tuple(map(self._padded_size, self._of.dims, sizes))
                full = _leaves(self._asked(self._of.resized(given, padded), self._of.dims, padded))
                if _difference(unpadded, cut(full, padded, sizes)):
                    self._refuse(given, sizes, unpadded, cut)

    def _refuse(self, given: dict[str, Any], sizes: Sizes, unpadded: Sequence[Any], cut: Any) -> NoReturn:
        """Raises the error for the dimension whose padding alone makes a difference, or else for the last one."""
        for i, dim in enumerate(self._of.dims):
            padded = (*sizes[:i], self._padded_size(dim, sizes[i]), *sizes[i + 1 :])
            full = _leaves(self._asked(self._of.resized(given, padded), [dim], [padded[i]]))
            why = _difference(unpadded, cut(full, padded, sizes))
            if why or i == len(sizes) - 1:
                raise _refusal(dim, why or "output 0: it differs if several dimensions are padded")
        raise AssertionError("no dimension")

    def _calls(self, example: dict[str, Any]) -> list[Any]:
        """The leaves of the module's result; empty if the module raises, because it may not support these values and
        sizes even without padding."""
        try:
            return _leaves(_called(self._model, example))
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
            raise _cannot_be_called(dims, sizes, f"{type(error).__name__}: {message}") from error


def _cannot_be_called(dims: Sequence[Dim], sizes: Sequence[int], why: str) -> TensorError:
    described = " and ".join(f"a {dim.what} of {size}" for dim, size in zip(dims, sizes, strict=True))
    return TensorError(
        f"the module cannot be called with {described} ({why}); "
        f"dynamic_shapes must name every argument that has a {dims[0].what}"
    )


def _difference(unpadded: Sequence[Any], padded: Sequence[Any]) -> str:
    """Which output differs, and by how much; "" if none does."""
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
            if not off <= BOUND:  # NaN is not the same
                return f"output {n}: it differs by {off:.2g} of its largest value"
    return ""


def _is_finite(x: Any) -> bool:
    return not hasattr(x, "isfinite") or bool(x.isfinite().all())


def _called(model: nn.Module, arguments: dict[str, Any]) -> Any:
    with torch.no_grad():
        return model(**arguments)


FEW = 12
"""Largest number of rows and sequences of an example, if the module can be called with so few."""
FILLED = 5
"""Largest number of rows and sequences that an example is padded by."""
PLAIN = (int, float, str, tuple)
"""Types of results other than tensors that are compared."""


def _leaves(result: Any) -> list[Any]:
    return list(pytree.tree_leaves(result))


def _base_size(dim: Dim, size: int) -> int:
    """The size of a dimension in an example; smaller than the largest size, so that the example can be padded."""
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


def _is_mask(x: Any) -> bool:
    """Whether an argument is an integer or bool mask: each element 0 or 1, and at least one 1 (token types may be all
    0)."""
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
