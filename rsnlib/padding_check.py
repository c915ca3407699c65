"""Whether a module's result depends on what its arguments are filled up with, and which axes of it follow theirs.

The captured graph decides (`rsnlib.padding`). A second line, should a rule there be wrong: PyTorch computes examples as
they are and filled up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

from ..base.errors import TensorError, UnsupportedError
from ..base.tolerance import BOUND
from .call_padding import CallPadding, Cut, Factor, Sizes, is_zero_or_one
from .shapes import Arguments, Batch, Dim

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

    from .padding.check import Graph, Growing, Outcome
    from .padding.state import Atom


class Filling:
    """How results for filled-up arguments are cut. It holds for all sizes once each program's graph has been checked.

    Raises `UnsupportedError` for a module whose result depends on what is filled in or cannot be cut, `TensorError`
    where it cannot be called with other sizes.
    """

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._of = model, arguments
        self._captured: dict[Sizes, Graph] = {}
        self.padding = CallPadding(arguments, [name for name, x in arguments.example.items() if _is_mask(x)])
        """What was found out."""
        probe = _Probe(model, arguments)
        probe.call_with_other_sizes()
        usual = tuple(dim.sizes[0] if dim.exact else dim.sizes[-1] for dim in arguments.dims)
        if self._growing(usual):
            self.check(usual, self._graph(usual).program)
            cuts = self.padding.cuts[usual]
            probe.compare(
                lambda leaves, taken, asked: [
                    x if cut is None else cut(x, taken, asked) for x, cut in zip(leaves, cuts, strict=True)
                ]
            )

    def check(self, sizes: Sizes, program: ExportedProgram) -> None:
        """Whether the graph of a program for these sizes may serve smaller ones. Raises `UnsupportedError`."""
        growing = self._growing(sizes)
        if growing:
            outcome = self._check(growing, self._of_program(program, sizes), sizes)
            self.padding.cuts[sizes] = [None if axes is None else _cut(axes, growing) for axes in outcome.outputs]

    def check_again(self) -> None:
        """With what the module's parameters and buffers hold now. Raises `UnsupportedError`."""
        for sizes in list(self.padding.cuts):
            self.check(sizes, self._graph(sizes).program)

    def _growing(self, sizes: Sizes) -> list[int]:
        """The dimensions that a program for these sizes fills up."""
        return [i for i, (dim, size) in enumerate(zip(self._of.dims, sizes, strict=True)) if size > 1 and not dim.exact]

    def _check(self, growing: Sequence[int], graph: Graph, sizes: Sizes) -> Outcome:
        outcome = self._compared(growing, graph, sizes, self._other(growing, sizes))
        smallest = self._smallest(growing, sizes, outcome)
        if smallest is not None:
            outcome = self._compared(growing, graph, sizes, smallest)
        return outcome

    def _compared(self, growing: Sequence[int], graph: Graph, sizes: Sizes, other: Sizes) -> Outcome:
        from .padding.check import FillingError, check

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
        """Sizes for a graph to compare with: others, and each by another number; captured already, if there are any.

        Such a graph is to show all that follows the size, as its half or what is left of it beside a multiple of 8: so
        the sizes are odd, and far from those compared with, where the module can be called so.
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
            except TensorError:  # it may need more than that
                continue
            return other
        return next(filter(fits, product(*near)))

    def _smallest(self, growing: Sequence[int], sizes: Sizes, outcome: Outcome) -> Sizes | None:
        """Sizes with which the module can just be called, to compare with as well; None where there are no others."""
        least = {i: max(2, outcome.least.get(n, 1)) for n, i in enumerate(growing)}
        choices = [[least[i], least[i] + 1] if i in growing else [n] for i, n in enumerate(sizes)]
        for other in product(*choices):
            apart = [n - other[i] for i, n in enumerate(sizes) if i in growing]
            if min(apart) > 0 and len(set(apart)) == len(apart):
                try:
                    self._graph(other)
                except TensorError:  # it may need more than what the rules know of
                    return None
                return other
        return None

    def _graph(self, sizes: Sizes) -> Graph:
        from .trace import captured

        if sizes not in self._captured:
            example = self._of.resized(self._of.example, sizes)
            program = captured(self._model, example)[0]
            self._captured[sizes] = self._of_program(program, sizes)
        return self._captured[sizes]

    def _of_program(self, program: ExportedProgram, sizes: Sizes) -> Graph:
        from torch.export.graph_signature import InputKind

        from .capture import canonical
        from .padding.check import Graph

        given = _leaves(canonical(inspect.signature(self._model.forward), (), dict(self._of.example)))
        specs = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
        nodes = [node for node, spec in specs if spec.kind == InputKind.USER_INPUT]
        return Graph(program, nodes, self._of.places_of_leaves(), list(map(_is_mask, given)))


def _odd(size: int) -> int:
    return max(size | 1, 3)


def _renumbered(graph: Graph, growing: Sequence[int]) -> Graph:
    """With the numbers that the dimensions have among those that are filled up."""
    sizes = [{axis: growing.index(i) for axis, i in leaf.items() if i in growing} for leaf in graph.sizes]
    return replace(graph, sizes=sizes)


def _growing(dim: Dim, small: int, large: int) -> Growing:
    from .padding.check import Growing
    from .padding.state import Fill

    fill = Fill(copies=True) if isinstance(dim, Batch) else Fill(value=0.0)
    return Growing(dim.what, "sequences" if isinstance(dim, Batch) else "rows", small, large, fill)


def _refusal(dim: Dim, why: str) -> UnsupportedError:
    output, _, rest = why.partition(": ")
    changes = f" changes {output}" if rest else ""
    return UnsupportedError(
        f"filling up the {dim.what}{changes}: {rest or why}; {_way_out(dim)}or say {type(dim).__name__}(..., "
        "exact=True) and call it with those sizes alone"
    )


def _way_out(dim: Dim) -> str:
    """A batch is filled up with copies, which no mask hides."""
    if isinstance(dim, Batch):
        return "let no sequence depend on others, "
    return "hide what is filled in, by a mask among dynamic_shapes that is 1 or True at rows that count, "


def _cut(axes: tuple[tuple[Atom, ...], ...], dims: Sequence[int]) -> Cut | None:
    """dims: the numbers in `Arguments.dims` of the dimensions that atoms follow. None where nothing is cut."""
    cut = Cut(
        tuple(
            tuple(Factor(a.size, None if a.dim is None else dims[a.dim], a.offset, a.every) for a in axis)
            for axis in axes
        )
    )
    return cut if cut.is_needed else None


class _Probe:
    """A module that PyTorch calls with examples of several sizes, numbers and signs."""

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        self._model, self._of = model, arguments
        sizes = self._of.sizes(self._of.example)
        self._sizes = tuple(map(_base_size, self._of.dims, sizes))

    def call_with_other_sizes(self) -> None:
        """Raises `TensorError` where that cannot be, and `UnsupportedError` where something else comes back then."""
        first = _leaves(self._asked(self._varied(self._sizes), self._of.dims, self._sizes))
        for i, (dim, size) in enumerate(zip(self._of.dims, self._sizes, strict=True)):
            if len(dim.sizes) == 1 and (dim.exact or dim.sizes == (1,)):
                continue  # calls have this size: nothing is filled up
            other = self._other(dim, size)
            resized = self._of.resized(self._of.example, (*self._sizes[:i], other, *self._sizes[i + 1 :]))
            full = _leaves(self._asked(resized, [dim], [other]))
            if len(first) != len(full):
                raise UnsupportedError(f"with another {dim.what} the module has another number of outputs")
            for n, (a, b) in enumerate(zip(first, full, strict=True)):
                if isinstance(a, PLAIN) and a != b and not dim.exact:
                    raise UnsupportedError(f"output {n} is no tensor and changes with the {dim.what}: {a}, {b}")

    def compare(self, cut: Callable[[Sequence[Any], Sizes, Sizes], list[Any]]) -> None:
        """Filled up and not, in PyTorch, in small sizes if the module can be called so. cut: of results for some sizes
        to others. Raises `UnsupportedError` where results differ."""
        small = tuple(n if d.exact else min(n, FEW) for d, n in zip(self._of.dims, self._sizes, strict=True))
        base = small if self._calls(self._of.resized(self._of.example, small)) else self._sizes
        for number, example in enumerate(self._examples(base)):
            for sizes in dict.fromkeys(self._smaller(base, many=not number)):
                given = self._of.resized(example, sizes)
                apart = self._calls(given)
                if not apart or not all(_is_finite(x) for x in apart):
                    continue
                everything = tuple(map(self._more, self._of.dims, sizes))
                full = _leaves(self._asked(self._of.resized(given, everything), self._of.dims, everything))
                if _difference(apart, cut(full, everything, sizes)):
                    self._refuse(given, sizes, apart, cut)

    def _refuse(self, given: dict[str, Any], sizes: Sizes, apart: Sequence[Any], cut: Any) -> NoReturn:
        """For the dimension that makes a difference by itself, or the last."""
        for i, dim in enumerate(self._of.dims):
            taken = (*sizes[:i], self._more(dim, sizes[i]), *sizes[i + 1 :])
            full = _leaves(self._asked(self._of.resized(given, taken), [dim], [taken[i]]))
            why = _difference(apart, cut(full, taken, sizes))
            if why or i == len(sizes) - 1:
                raise _refusal(dim, why or "output 0: it differs where several are filled up")
        raise AssertionError("no dimension")

    def _calls(self, example: dict[str, Any]) -> list[Any]:
        """What the module makes of it; nothing where it raises: what it says of numbers and sizes that it was not made
        for is no matter of filling."""
        try:
            return _leaves(_called(self._model, example))
        except Exception:
            return []

    @staticmethod
    def _more(dim: Dim, size: int) -> int:
        """A size that is filled up to."""
        return size if dim.exact or dim.sizes == (1,) else min(size + FILLED, max(dim.sizes[-1], size + 1))

    def _smaller(self, sizes: Sizes, many: bool) -> Iterator[Sizes]:
        """These, and each dimension with just one, or with some between too."""
        yield sizes
        for i, (dim, size) in enumerate(zip(self._of.dims, sizes, strict=True)):
            for n in (1, 2, size // 2, size - 1) if many else (1,):
                if not dim.exact and 0 < n < size:
                    yield (*sizes[:i], n, *sizes[i + 1 :])

    def _examples(self, sizes: Sizes) -> Iterator[dict[str, Any]]:
        """As given; with the other sign; with numbers of other sizes; with other whole numbers."""
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
            raise _cannot_be_called(dims, sizes, f"{type(error).__name__}: {message}") from error


def _cannot_be_called(dims: Sequence[Dim], sizes: Sequence[int], why: str) -> TensorError:
    what = " and ".join(f"a {dim.what} of {size}" for dim, size in zip(dims, sizes, strict=True))
    return TensorError(
        f"the module cannot be called with {what} ({why}); "
        f"dynamic_shapes names every argument that has a {dims[0].what}"
    )


def _difference(apart: Sequence[Any], filled: Sequence[Any]) -> str:
    """Of which output, and by how much; empty where there is none."""
    for n, (a, b) in enumerate(zip(apart, filled, strict=True)):
        if not hasattr(a, "shape"):
            continue
        if a.shape != b.shape:
            return f"output {n}: it is {tuple(b.shape)} then, not {tuple(a.shape)}"
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
    import torch

    with torch.no_grad():
        return model(**arguments)


FEW = 12
"""Rows and sequences of examples that PyTorch computes."""
FILLED = 5
"""How many are filled in there."""
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
    """Numbers, and not a mask."""
    import torch

    return x.dtype != torch.bool and len(x.unique()) > 2


def _is_mask(x: Any) -> bool:
    """Whether an argument holds whole numbers, each 0 or 1, and not 0 alone, as token types do."""
    if not hasattr(x, "is_floating_point") or x.is_floating_point() or x.is_complex():
        return False
    return is_zero_or_one(x) and bool((x == 1).any())


def _negated(x: torch.Tensor) -> torch.Tensor:
    return -x if x.is_floating_point() and _is_data(x) else x


def _times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * factor if x.is_floating_point() and _is_data(x) else x


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    """Other whole numbers at each place, of those that the example has: which others there may be is not known."""
    import torch

    if x.is_floating_point() or not _is_data(x):
        return x
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))
    return x.reshape(-1)[order].reshape(x.shape)
