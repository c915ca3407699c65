"""Follow padding through a module's graph for one size, compared with its graph for another size."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..capture import Constants, arguments, dtype_of, is_static, packet, shape_of, site
from .elementwise import CASTS, elementwise, is_elementwise
from .moves import MOVES, expand, full, getitem, part_or_whole, regroup, repeat, select, slice_
from .products import PRODUCING
from .reductions import REDUCING
from .state import Atom, Axis, Mixed, MixedError, PaddingFill, TensorState, number, plain, size_of

aten = torch.ops.aten
log = logging.getLogger(__name__)

RULES: dict[Any, Callable[[Walk, Node, dict[str, Any]], TensorState | list[TensorState]]] = {
    **MOVES,
    **REDUCING,
    **PRODUCING,
}
"""The rule of each operator that is not elementwise."""
LARGEST_LOOKED_AT = 1 << 16
"""Largest number of elements of a static constant whose values are analysed."""
FARTHEST = 64
"""Largest difference between an axis and the dynamic dimension that it follows."""


@dataclass(frozen=True)
class Growing:
    """A dynamic dimension. what: its name. rows: what messages call its positions, e.g. "rows". small, large: its
    number of positions in the smaller and in the larger graph; `large - small` is not 0, and different for each
    dimension. fill: what arguments are padded with."""

    what: str
    rows: str
    small: int
    large: int
    fill: PaddingFill


@dataclass(frozen=True)
class CheckedGraph:
    """A captured module. arguments: the placeholders of its flattened arguments. sizes: for each argument, the index of
    the dynamic dimension that each of its dynamic axes follows, by axis. masks: for each argument, whether it is an
    integer mask of 0 and 1."""

    program: ExportedProgram
    arguments: Sequence[Node]
    sizes: Sequence[Mapping[int, int]]
    masks: Sequence[bool]


@dataclass(frozen=True)
class PaddingProof:
    """The result of `check`. outputs: the axes of each result, in order; None for a result that is not a tensor. least:
    the smallest size, in positions, with which the module can be called, by index of the dynamic dimension in `dims`; 1
    if missing."""

    outputs: list[tuple[Axis, ...] | None]
    least: dict[int, int]


class FillingError(Exception):
    """A result depends on padding. dim: index of the dynamic dimension. The message names output, operator and
    reason."""

    def __init__(self, dim: int, message: str) -> None:
        super().__init__(message)
        self.dim = dim


def check(dims: Sequence[Growing], small: CheckedGraph, large: CheckedGraph) -> PaddingProof:
    """Check that results for padded arguments, after cutting, equal those without padding, for all sizes up to that of
    the larger graph.

    dims: the dynamic dimensions. small, large: the module captured for both sizes of each. Raises `FillingError` if
    results may differ, and if the two graphs have different operators.
    """
    walk = Walk(dims, small, large)
    outputs: list[tuple[Axis, ...] | None] = []
    leaves = [pytree.tree_leaves(g.program.graph.output_node().args[0]) for g in (large, small)]
    for n, (x, other) in enumerate(zip(*leaves, strict=True)):
        if not isinstance(x, Node):
            if x != other:
                raise FillingError(0, f"output {n} is not a tensor and changes with the size: {other}, {x}")
            outputs.append(None)
            continue
        state = walk.of(x)
        if state.mixed is not None:
            raise FillingError(state.mixed.dim, f"output {n}: {site(state.mixed.node)}: {state.mixed.why}")
        outputs.append(state.axes)
    return PaddingProof(outputs, walk.least)


class Walk:
    """One pass over the larger graph. dims, small, large: as for `check`. states: what is known of each node so far; a
    list for an operator with several results. least: as in `PaddingProof`. Raises `FillingError` if the two graphs have
    different operators."""

    def __init__(self, dims: Sequence[Growing], small: CheckedGraph, large: CheckedGraph) -> None:
        self.dims = dims
        self.least: dict[int, int] = {}
        self.states: dict[Node, TensorState | list[TensorState]] = {}
        self._pairs = _paired(small.program, large.program)
        self._differs = {node: _literals_differ(node, other) for node, other in self._pairs.items()}
        self._constants, self._small_constants = Constants(large.program), Constants(small.program)
        self._varying: set[Node] = set()
        self._masks = {x for x, is_mask in zip(large.arguments, large.masks, strict=True) if is_mask}
        given = dict(zip(large.arguments, large.sizes, strict=True))
        for node in large.program.graph.nodes:
            if node.op == "output":
                continue
            if node in given:
                self.states[node] = self._argument(node, given[node])
            elif node in self._constants:
                self.states[node] = self._constant(node)
            else:
                self.states[node] = self._visit(node)

    # -- used by rules

    def of(self, x: Any) -> TensorState:
        """Return the state of an operand x, which is a node with one result, or a number."""
        if not isinstance(x, Node):
            return number(float(x))
        state = self.states[x]
        assert isinstance(state, TensorState), x
        return state

    def rows(self, dim: int) -> str:
        """Return what messages call the positions of the dynamic dimension with index `dim`: "rows" or "sequences"."""
        return self.dims[dim].rows

    def is_constant(self, node: Node) -> bool:
        """Return whether a node depends on no argument."""
        return node in self._constants

    def constant(self, node: Node) -> torch.Tensor:
        """Return the value of a constant node in the larger graph."""
        return self._constants.value(node)

    def differs(self, node: Node, *names: str) -> bool:
        """Return whether a number among an operator's arguments differs in the smaller graph. names: the arguments to
        compare; all if empty."""
        found = self._differs[node]
        return bool(found if not names else found.intersection(names))

    def no_sizes(self, node: Node) -> None:
        """Check that no number among an operator's arguments depends on the size. Raises `MixedError`, with the
        argument's name, if one does."""
        for name in sorted(self._differs[node]):
            given, (other,) = arguments(node).get(name), self.small(node, name)
            if isinstance(given, int | float) and isinstance(other, int | float):
                dims = [i for i, dim in enumerate(self.dims) if given - other == dim.large - dim.small]
                raise MixedError(dims[0] if dims else 0, f"its {name} ({given:g}) depends on the size")
            raise MixedError(0, f"its {name} depends on the size")

    def small(self, node: Node, *names: str) -> tuple[Any, ...]:
        """Return the arguments `names` of an operator in the smaller graph, in this order. Raises `KeyError` for a name
        that the operator does not have."""
        given = arguments(self._pairs[node])
        return tuple(given[name] for name in names)

    def small_shape(self, node: Node) -> tuple[int, ...]:
        """Return the shape of a node in the smaller graph."""
        return shape_of(self._pairs[node])

    def needs(self, atom: Atom, count: int) -> None:
        """Record in `least` that a call must have at least `count` valid positions in this atom; nothing for a static
        one."""
        if atom.dim is not None:
            self.least[atom.dim] = max(self.least.get(atom.dim, 1), count - atom.offset)

    def shaped(self, node: Node) -> tuple[Axis, ...]:
        """Return the axes of a node's tensor, from its shapes in both graphs. Raises `MixedError` as `axis` does."""
        return tuple(self.axis(*sizes) for sizes in zip(self.small_shape(node), shape_of(node), strict=True))

    def axis(self, small: int, large: int) -> Axis:
        """Return the axis that has `small` positions in the smaller graph and `large` in the larger one. Raises
        `MixedError` if they differ and follow no dynamic dimension."""
        if small == large:
            return plain(large)
        for i, dim in enumerate(self.dims):
            offset = large - dim.large
            if small - dim.small == offset and abs(offset) <= FARTHEST:
                return (Atom(large, i, offset),)
        raise MixedError(0, f"its shape depends on the size in an unknown way ({small}, {large})")

    # -- states

    def _argument(self, node: Node, sizes: Mapping[int, int]) -> TensorState:
        low, high = (0.0, 1.0) if dtype_of(node) == torch.bool or node in self._masks else (-inf, inf)
        low = 0.0 if dtype_of(node) in (torch.int32, torch.int64) and _is_looked_up(node) else low
        axes = []
        for axis, size in enumerate(shape_of(node)):
            dim = sizes.get(axis)
            axes.append(plain(size) if dim is None else (Atom(size, dim, 0, self.dims[dim].fill),))
        return TensorState(tuple(axes), low, high)

    def _visit(self, node: Node) -> TensorState | list[TensorState]:
        try:
            return self._checked(node, self._followed(node))
        except MixedError as error:
            return self._mixed(node, Mixed(node, str(error), error.dim))

    def _followed(self, node: Node) -> TensorState | list[TensorState]:
        """The state of an operator's result, with its finiteness."""
        if node.target is operator.getitem:
            return getitem(self, node, {})
        used = [] if packet(node) is aten.full_like else node.all_input_nodes
        flat = [part for x in used for part in _parts(self.states[x])]
        for part in flat:
            if part.mixed is not None:
                return self._mixed(node, part.mixed)
        made = self._made(node, flat)
        if is_elementwise(node) or packet(node) in FINITE_RESULTS:
            return made
        mask = arguments(node).get("attn_mask")
        finite = all(part.is_finite for x in used if x is not mask for part in _parts(self.states[x]))
        if not isinstance(made, list):
            return replace(made, finite=made.finite and finite)
        return [replace(part, finite=part.finite and finite) for part in made]

    def _made(self, node: Node, operands: Sequence[TensorState]) -> TensorState | list[TensorState]:
        if packet(node) is not packet(self._pairs[node]):
            return part_or_whole(self, node, self._pairs[node])
        if is_elementwise(node):
            self.no_sizes(node)
            return elementwise(node, {x: self.of(x) for x in node.all_input_nodes})
        rule = RULES.get(packet(node))
        if rule is not None:
            try:
                made = rule(self, node, arguments(node))
            except MixedError:
                raise
            except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
                # The rule does not cover this form of the operator: continue as without a rule.
                log.debug("%s: %r", node.format_node(), error)
            else:
                if rule not in FREE_OF_SIZES:
                    self.no_sizes(node)
                return made
        dims = {dim: self._is_kept(dim, operands, node) for part in operands for dim in sorted(part.dims)}
        if dims:
            named = " and on the ".join(self.rows(dim) for dim in dims)
            raise MixedError(min(dims, key=dims.__getitem__), f"how its result depends on the {named} is unknown")
        self.no_sizes(node)
        values = node.meta.get("val")
        if isinstance(values, list | tuple):
            return [TensorState(tuple(map(plain, value.shape))) for value in values]
        return TensorState(self.shaped(node))

    def _is_kept(self, dim: int, operands: Sequence[TensorState], node: Node) -> bool:
        """Whether an operator gives a result in which the axes of a dimension are as in its operands."""
        shapes = list(zip(self.small_shape(node), shape_of(node), strict=False))
        return all(
            dim not in {atom.dim for atom in axis}
            or shapes[at : at + 1] == [(size_of(tuple(map(self._shrunk, axis))), size_of(axis))]
            for part in operands
            for at, axis in enumerate(part.axes)
        )

    def _checked(self, node: Node, made: TensorState | list[TensorState]) -> TensorState | list[TensorState]:
        """Check that the axes of a result give its shapes in both graphs. Raises `MixedError`."""
        if not is_static(node):
            raise MixedError(0, "its shape depends on data")
        values, others = node.meta["val"], self._pairs[node].meta["val"]
        if not isinstance(made, list):
            values, others = [values], [others]
        parts = made if isinstance(made, list) else [made]
        for part, value, other in zip(parts, values, others, strict=True):
            if part.mixed is not None:
                continue
            shape = tuple(size_of(axis) for axis in part.axes)
            small = tuple(size_of(tuple(map(self._shrunk, axis))) for axis in part.axes)
            if (shape, small) != (tuple(value.shape), tuple(other.shape)):
                dim = next(iter(part.dims), 0)
                raise MixedError(dim, f"its shape depends on the size in an unknown way ({small}, {shape})")
            for atom in part.atoms:
                if atom.dim is not None and atom.size < 2:
                    raise MixedError(atom.dim, "it keeps too few positions to tell which are valid")
        return made

    def _shrunk(self, atom: Atom) -> Atom:
        return atom if atom.dim is None else replace(atom, size=atom.count(self.dims[atom.dim].small))

    def _mixed(self, node: Node, mixed: Mixed) -> TensorState | list[TensorState]:
        values = node.meta.get("val")
        if isinstance(values, list | tuple):
            return [TensorState((), mixed=mixed) for _ in values]
        return TensorState((), mixed=mixed)

    def _constant(self, node: Node) -> TensorState:
        """The state of a node that depends on no argument. Its shape, and then its values, may follow the size."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.states[node] = TensorState(())
            return TensorState(())
        try:
            return self._of_constant(node)
        except MixedError as error:
            # Values and shape do not show e.g. that batch and heads were merged into one axis; the operator may.
            followed = self._visit(node) if node.all_input_nodes else None
            if isinstance(followed, TensorState) and followed.mixed is None:
                return followed
            return TensorState((), mixed=Mixed(node, str(error), error.dim))

    def _of_constant(self, node: Node) -> TensorState:
        operands = node.all_input_nodes
        grows = self.small_shape(node) != shape_of(node)
        if grows or self._differs[node] or any(x in self._varying for x in operands):
            self._varying.add(node)
        axes = self.shaped(node)
        large = self._constants.value(node)
        if node not in self._varying and large.numel() > LARGEST_LOOKED_AT:
            return TensorState(axes, finite=bool(large.sum().isfinite()))
        if node in self._varying:
            small = self._small_constants.value(self._pairs[node])
            for at, (axis, size) in enumerate(zip(axes, small.shape, strict=True)):
                count = min(size, large.shape[at]) if axis and axis[0].dim is not None else size
                small = small.narrow(at, 0, count)
            part = large
            for at, size in enumerate(small.shape):
                part = part.narrow(at, 0, size)
            if not torch.equal(part.nan_to_num(), small.nan_to_num()):
                raise MixedError(next((a[0].dim or 0 for a in axes if a), 0), "its values depend on the size")
        return _of_value(large, axes)


def _parts(state: TensorState | list[TensorState]) -> list[TensorState]:
    return state if isinstance(state, list) else [state]


FREE_OF_SIZES = {regroup, expand, slice_, select, full, repeat}
"""Rules that handle arguments that depend on the size themselves."""
FINITE_RESULTS = {
    *(aten.softmax, aten.amax, aten.amin, aten.max, aten.min, aten.argmax, aten.argmin, aten.any, aten.all),
    *(aten.count_nonzero, aten.isin, aten.full_like),
}
"""Operators whose results are finite even if elements are hidden by -inf, unless all of a line is hidden."""


def _is_looked_up(node: Node) -> bool:
    """Whether an argument is an index into an embedding table, so that it is not negative."""
    stack, seen = [node], set()
    while stack:
        x = stack.pop()
        for user in x.users:
            if packet(user) is torch.ops.aten.embedding and arguments(user)["indices"] is x:
                return True
            same = RULES.get(packet(user)) is regroup or packet(user) in CASTS
            if same and dtype_of(user) in (torch.int32, torch.int64) and user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def _of_value(value: torch.Tensor, axes: tuple[Axis, ...]) -> TensorState:
    """The state of a tensor from its values."""
    if not value.numel() or value.is_complex():
        return TensorState(axes, finite=False)
    value = value.detach().double()
    known, finite = list(axes), bool(value.isfinite().all())
    for at, axis in enumerate(axes):
        if axis and axis[0].dim is not None:
            begin = max(1 + axis[0].offset, 0)  # a call has at least one valid position
            lines = value.movedim(at, 0)
            same = lines[max(begin - 1, 0) :]
            fill = _fill_of(lines[begin:])
            known[at] = (replace(axis[0], fill=replace(fill, copies=bool((same == same[:1]).all()))),)
    for at, axis in enumerate(known):
        for other, rows in enumerate(known):
            if axis and rows and at != other and axis[0].dim is not None and axis[0].dim == rows[0].dim:
                ahead = torch.arange(axis[0].size) > torch.arange(rows[0].size)[:, None]
                pairs = value.movedim((other, at), (0, 1))
                known_ahead = replace(_fill_of(pairs[ahead]), others=_fill_of(pairs[~ahead]))
                known[at] = (replace(known[at][0], ahead=known_ahead),)
    low, high = float(value.min()), float(value.max())
    if isnan(low):
        return TensorState(tuple(known), finite=False)
    return TensorState(tuple(known), low, high, low if low == high else None, finite)


def _fill_of(value: torch.Tensor) -> PaddingFill:
    if not value.numel():
        return PaddingFill()
    low, high = float(value.min()), float(value.max())
    if isnan(low):
        return PaddingFill(finite=False)
    return PaddingFill(False, low if low == high else None, high, low, isfinite(low) and isfinite(high))


def _paired(small: ExportedProgram, large: ExportedProgram) -> dict[Node, Node]:
    """The corresponding node of the smaller graph, by node of the larger. Raises `FillingError` if they differ."""
    lists = [list(program.graph.nodes) for program in (large, small)]
    pairs: dict[Node, Node] = {}
    for node, other in zip(*lists, strict=False):
        same = (node.op, node.target) == (other.op, other.target) or node.op == other.op != "call_function"
        same = same or {packet(node), packet(other)} == {aten.alias, aten.slice}  # one slice is the whole tensor
        if not same or [pairs.get(x) for x in node.all_input_nodes] != other.all_input_nodes:
            raise FillingError(0, f"for one size the module computes {_name(node)}, for another {_name(other)}")
        pairs[node] = other
    if len(lists[0]) != len(lists[1]):
        longer = max(lists, key=len)[min(map(len, lists))]
        raise FillingError(0, f"for one size only the module computes {_name(longer)}")
    return pairs


def _name(node: Node) -> str:
    return site(node) if node.op == "call_function" else f"its {node.op}"


def _literals_differ(node: Node, other: Node) -> set[str]:
    """The names of an operator's arguments whose numbers differ from those of the same operator in the other graph."""
    if node.op != "call_function" or packet(node) is not packet(other):
        return set()
    given, others = arguments(node), arguments(other)
    if not given:  # an operator without a schema
        given, others = ({str(i): x for i, x in enumerate(n.args)} for n in (node, other))
    return {name for name, x in given.items() if _numbers(x) != _numbers(others[name])}


def _numbers(x: Any) -> Any:
    """An argument with None in place of nodes."""
    return pytree.tree_map(lambda leaf: None if isinstance(leaf, Node) else leaf, x)
