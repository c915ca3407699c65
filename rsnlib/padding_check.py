"""Check that a module's results do not depend on the padding of its arguments, and find how results must be cut.

The analysis of the captured graph decides (`rsnlib.padding`). As a second check, in case a rule there is wrong, PyTorch
computes examples with and without padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from ..base.errors import TensorError, UnsupportedError
from .call_arguments import canonical
from .call_padding import CallPadding, Cut, Factor, Sizes
from .padding.check import CheckedGraph, FillingError, Growing, PaddingProof, check
from .padding.state import Atom, PaddingFill
from .padding_probe import Probe, base_size, described, is_mask, leaves_of, refusal
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
        self._captured: dict[Sizes, CheckedGraph] = {}
        self.padding = CallPadding(arguments, [name for name, x in arguments.example.items() if is_mask(x)])
        """Pads calls and cuts their results; `check` fills in how to cut, for the sizes of each program."""
        probe = Probe(model, arguments)
        probe.call_with_other_sizes()
        self.padding.least.update(probe.least())
        usual = tuple(dim.sizes[0] if dim.exact else dim.sizes[-1] for dim in arguments.dims)
        if self._growing(usual):
            self.check(usual, self._graph(usual).program)
            cuts = self.padding.cuts[usual]
            probe.compare(
                lambda leaves, padded, sizes: [
                    x if cut is None else cut(x, padded, sizes) for x, cut in zip(leaves, cuts, strict=True)
                ],
                self.padding.least,
            )

    def check(self, sizes: Sizes, program: ExportedProgram) -> None:
        """Check that a program for these sizes can serve calls of smaller sizes, and record in `padding` how to cut its
        results. sizes: one for each of `Arguments.dims`. program: the module captured with these sizes. Raises
        `UnsupportedError` if it cannot."""
        growing = self._growing(sizes)
        if growing:
            outcome = self._check(growing, self._of_program(program, sizes), sizes)
            self.padding.cuts[sizes] = [None if axes is None else _cut(axes, growing) for axes in outcome.outputs]

    def check_again(self) -> None:
        """Repeat all checks with the current values of the module's parameters and buffers. Raises as `check` does."""
        for sizes in list(self.padding.cuts):
            self.check(sizes, self._graph(sizes).program)

    def _growing(self, sizes: Sizes) -> list[int]:
        """The indices of the dimensions that a program for these sizes pads."""
        return [i for i, (dim, size) in enumerate(zip(self._of.dims, sizes, strict=True)) if size > 1 and not dim.exact]

    def _check(self, growing: Sequence[int], graph: CheckedGraph, sizes: Sizes) -> PaddingProof:
        outcome = self._compared(growing, graph, sizes, self._other(growing, sizes))
        smallest = self._smallest(growing, sizes, outcome)
        if smallest is not None:
            outcome = self._compared(growing, graph, sizes, smallest)
        return outcome

    def _compared(self, growing: Sequence[int], graph: CheckedGraph, sizes: Sizes, other: Sizes) -> PaddingProof:
        dims = [self._of.dims[i] for i in growing]
        described = [_growing(self._of, dim, other[i], sizes[i]) for i, dim in zip(growing, dims, strict=True)]
        try:
            outcome = check(described, _renumbered(self._graph(other), growing), _renumbered(graph, growing))
        except FillingError as error:
            raise self._blamed(growing, graph, sizes, other, error) from None
        for n, axes in enumerate(outcome.outputs):
            for atom in (atom for axis in axes or () for atom in axis):
                if atom.dim is not None and not atom.offset + sizes[growing[atom.dim]] >= 0:
                    raise UnsupportedError(f"output {n} cannot be cut")
        for i, least in outcome.least.items():
            self.padding.least[dims[i]] = max(self.padding.least.get(dims[i], 1), least)
        return outcome

    def _blamed(
        self, growing: Sequence[int], graph: CheckedGraph, sizes: Sizes, other: Sizes, error: FillingError
    ) -> UnsupportedError:
        """The refusal of a dimension that is at fault alone. Of an operator that follows several dimensions, a rule may
        name another one."""
        alone: dict[int, str] = {}
        for i in growing if len(growing) > 1 else ():
            only = tuple(other[j] if j == i else n for j, n in enumerate(sizes))
            try:
                described = _growing(self._of, self._of.dims[i], other[i], sizes[i])
                check([described], _renumbered(self._graph(only), [i]), _renumbered(graph, [i]))
            except FillingError as fault:
                alone[i] = str(fault)
            except (TensorError, UnsupportedError):
                continue  # it cannot be captured with these sizes
        named = growing[error.dim]
        at = named if named in alone or not alone else next(iter(alone))
        return refusal(self._of, self._of.dims[at], alone.get(at, str(error)) if at != named else str(error))

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
        usual = [base_size(d, n) for d, n in zip(self._of.dims, self._of.sizes(self._of.example), strict=True)]
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
            except (TensorError, UnsupportedError):  # the module may need a larger size
                continue
            return other
        return next(filter(fits, product(*near)))

    def _smallest(self, growing: Sequence[int], sizes: Sizes, outcome: PaddingProof) -> Sizes | None:
        """The smallest sizes with which the module can be called, for a second comparison; None if there are none
        besides those compared already."""
        least = {
            i: max(2, outcome.least.get(n, 1), self.padding.least.get(self._of.dims[i], 1))
            for n, i in enumerate(growing)
        }
        choices = [[least[i], least[i] + 1] if i in growing else [n] for i, n in enumerate(sizes)]
        for other in product(*choices):
            apart = [n - other[i] for i, n in enumerate(sizes) if i in growing]
            if min(apart) > 0 and len(set(apart)) == len(apart):
                try:
                    self._graph(other)
                except (TensorError, UnsupportedError):  # it may need a larger size than the rules know
                    return None
                return other
        return None

    def _graph(self, sizes: Sizes) -> CheckedGraph:
        if sizes not in self._captured:
            example = self._of.resized(self._of.example, sizes)
            try:
                program = captured(self._model, example)[0]
            except (TensorError, UnsupportedError) as error:
                raise type(error)(f"with {described(self._of, self._of.dims, sizes)}: {error}") from error
            self._captured[sizes] = self._of_program(program, sizes)
        return self._captured[sizes]

    def _of_program(self, program: ExportedProgram, sizes: Sizes) -> CheckedGraph:
        given = leaves_of(canonical(inspect.signature(self._model.forward), (), dict(self._of.example)))
        specs = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
        nodes = [node for node, spec in specs if spec.kind == InputKind.USER_INPUT]
        return CheckedGraph(program, nodes, self._of.places_of_leaves(), list(map(is_mask, given)))


def _odd(size: int) -> int:
    return max(size | 1, 3)


def _renumbered(graph: CheckedGraph, growing: Sequence[int]) -> CheckedGraph:
    """The graph with dimensions renumbered: by their position among those that are padded."""
    sizes = [{axis: growing.index(i) for axis, i in leaf.items() if i in growing} for leaf in graph.sizes]
    return replace(graph, sizes=sizes)


def _growing(arguments: Arguments, dim: Dim, small: int, large: int) -> Growing:
    fill = PaddingFill(copies=True) if isinstance(dim, Batch) else PaddingFill(value=0.0)
    return Growing(arguments.names[dim], arguments.positions[dim], small, large, fill)


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
