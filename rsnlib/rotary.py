"""Rotary positions, however a model spells them: recognised by what the operators compute, not by which they are.

Between a projection and the scores, every operator of rotary positions is linear: slices, joins, negations, products
with constant tables, complex numbers. So their result is a sum of own and other columns with constant coefficients.
Samples of one 1 and zeros show the coefficients, exactly; random samples prove that there are no others. What is found
becomes one operator, `rsn::rotate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from .capture import arguments, dtype_of, is_static, packet, run, shape_of
from .norm_spellings import NORMS
from .rewriter import Rewriter
from .rotate import ROLL_IN, ROTATE, rotate
from .rules import VIEWS

aten = torch.ops.aten

LINEAR = {
    *VIEWS,
    *(aten.neg, aten.sub, aten.add, aten.mul, aten.div, aten.cat, aten.stack, aten.roll, aten.flip, aten.index_select),
    *(aten.index, aten.gather, aten.repeat, aten.view_as_complex, aten.view_as_real, aten.complex, aten.real),
    *(aten.imag, aten.einsum, aten.matmul, aten.bmm, aten.linear, aten.hstack, aten.slice_scatter, aten.select_scatter),
    *(aten.addcmul, aten.full_like, aten.conj, aten.resolve_conj),
}
"""Operators that are linear in one operand if the others are constants. A wrong one costs time only: the result is
checked with samples."""
MAX_OPERATORS = 64
"""Largest number of operators of rotary positions that are looked at."""
CLOSE = 1e-5
"""Largest difference of a random sample, relative to its largest value."""


def rotations(graph: Rewriter, node: Node, *, by_call: bool = True) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) the operators that rotate the queries and keys of a node into one `rsn::rotate`
    each.

    node: an attention, a product of two activations, what puts keys into a cache, or a norm of heads. Not applied if a
    table differs between heads, or if a column of the result depends on more than two columns of the projection. Where
    a table depends on arguments, such as the position of a new token, the host makes it in each call. by_call: False
    leaves such rotations as they are.
    """
    operands = _scored(graph, node)
    turned = {x: _turned(graph, node, x, by_call) for x in operands}
    if not any(turned.values()):
        return None
    arguments_ = [turned.get(x) or x if isinstance(x, Node) else x for x in node.args]
    keywords = {name: turned.get(x) or x if isinstance(x, Node) else x for name, x in node.kwargs.items()}
    return graph.insert(node, node.target, *arguments_, **keywords)


def _scored(graph: Rewriter, node: Node) -> list[Node]:
    """The queries and the keys, if a node is an attention or a product of two activations; what a norm is of."""
    a = arguments(node)
    if packet(node) in NORMS:
        return [a["input"]]
    if packet(node) is aten.scaled_dot_product_attention:
        return [a["query"], a["key"]]
    if packet(node) is aten.index_copy:  # keys for a cache
        return [a["source"]]
    if packet(node) is ROLL_IN:
        return [a["new"]]
    if packet(node) in (aten.matmul, aten.bmm, aten.baddbmm):
        both: list[Node] = [x for x in node.all_input_nodes if x in graph.computed]
        return both if len(both) == 2 else []
    return []


def constant_rotations(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) as `rotations`, of constant tables only."""
    return rotations(graph, node, by_call=False)


def _turned(graph: Rewriter, at: Node, operand: Node, by_call: bool) -> Node | None:
    """The operand with its rotary positions as one operator; None if there are none."""
    views: list[Node] = []
    x = operand
    for _ in range(MAX_OPERATORS):
        found = _rotation(graph, at, x, by_call)
        if found is not None:
            for view in reversed(views):
                args = (found if y is x else y for y in view.args)
                found = graph.insert(at, view.target, *args, origin=view, **view.kwargs)
                x = view
            return found
        if x not in graph.computed or packet(x) not in VIEWS:
            return None
        views.append(x)
        if len(x.all_input_nodes) != 1:
            return None
        (x,) = x.all_input_nodes
    return None


@dataclass(frozen=True)
class RotationFactors:
    """What `rotate` does. own, partner: float32, broadcast to its operand, (..., columns). partners: the column that
    each is paired with, from 0 on; its own inverse."""

    own: Tensor
    partner: Tensor
    partners: tuple[int, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether the rotation changes nothing."""
        return bool((self.own == 1).all()) and not bool(self.partner.any())

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it."""
        return rotate(x, self.own, self.partner, self.partners)


def _rotation(graph: Rewriter, at: Node, node: Node, by_call: bool) -> Node | None:
    """Insert the rotation of an earlier node that a node is; None if it is none."""
    if dtype_of(node) != torch.float32 or len(shape_of(node)) < 3 or not is_static(node):
        return None
    for start, operators in _cuts(graph, node):
        if shape_of(start) != shape_of(node) or dtype_of(start) != torch.float32:
            continue
        key = _key(graph, start, operators)
        tables = _tables(graph, operators)
        if tables and not by_call:
            continue
        if key not in graph.memo:
            function = None if tables is None else _function(graph, start, operators, tables)
            graph.memo[key] = None if function is None else recognise(function, shape_of(start), bool(tables))
        found = graph.memo[key]
        if found is not None and tables:
            if ("nodes", key) not in graph.memo:
                graph.memo["nodes", key] = _factors(graph, at, start, operators, found)
            own, partner = graph.memo["nodes", key]
            return graph.insert(at, ROTATE.default, start, own, partner, list(found.partners), origin=node)
        if found is not None and found.is_nothing:
            if all(packet(x) in VIEWS for x in operators):
                continue
            return start  # the positions of one row, the first
        if found is not None:
            own, partner = (graph.constant(at, x) for x in (found.own, found.partner))
            return graph.insert(at, ROTATE.default, start, own, partner, list(found.partners), origin=node)
    return None


def _cuts(graph: Rewriter, node: Node) -> Iterator[tuple[Node, list[Node]]]:
    """The nodes, nearest first, on which a node depends by linear operators alone and by no other way, each with these
    operators in order."""
    users: dict[Node, int] = {node: 0}
    stack = [node]
    while stack:  # count, for each node, the operators that use it
        x = stack.pop()
        if not _is_linear(graph, x):
            continue
        for y in x.all_input_nodes:
            if y not in graph.computed:
                continue
            if y not in users:
                stack.append(y)
                if len(users) > MAX_OPERATORS:
                    return
            users[y] = users.get(y, 0) + 1
    open_, passed = [node], list[Node]()
    while open_:
        if len(open_) == 1 and open_[0] is not node:
            yield open_[0], list(reversed(passed))
        ready = next((x for x in open_ if users[x] == 0 and _is_linear(graph, x)), None)
        if ready is None:
            return
        open_.remove(ready)
        passed.append(ready)
        for y in ready.all_input_nodes:
            if y in graph.computed:
                users[y] -= 1
                if y not in open_:
                    open_.append(y)


def _is_linear(graph: Rewriter, node: Node) -> bool:
    # A product with (batch, heads, rows, columns) is no projection: a matrix may turn the columns of each head.
    is_projection = node in graph.products and len(shape_of(node)) < 4
    return node.op == "call_function" and packet(node) in LINEAR and not is_projection


def _key(graph: Rewriter, start: Node, operators: Sequence[Node]) -> Any:
    """Equal for operators that compute the same."""
    place = {x: f"%{i}" for i, x in enumerate((start, *operators))}

    def shown(x: Any) -> Any:
        if isinstance(x, Node):
            return place.get(x, x)
        return tuple(map(shown, x)) if isinstance(x, list | tuple) else str(x)

    told = ((x.target, shown(x.args), shown(sorted(x.kwargs.items()))) for x in operators)
    return "rotation", shape_of(start), *told


def _tables(graph: Rewriter, operators: Sequence[Node]) -> dict[Node, Tensor] | None:
    """Random values for the tables of some operators that the host computes from arguments; None if one of them is no
    table of numbers."""
    found: dict[Node, Tensor] = {}
    inner = set(operators)
    generator = torch.Generator().manual_seed(1)
    for x in (x for node in operators for x in node.all_input_nodes):
        if x in graph.constants or x in graph.computed or x in inner or x in found:
            continue
        if dtype_of(x) not in (torch.float32, torch.complex64) or not is_static(x):
            return None
        found[x] = torch.randn(shape_of(x), dtype=dtype_of(x), generator=generator)
    return found


def _factors(
    graph: Rewriter, at: Node, start: Node, operators: Sequence[Node], found: RotationFactors
) -> tuple[Node, Node]:
    """Insert operators by which the host computes own and partner of a rotation from its tables: those of the rotation,
    of samples that are 1 in one column of each pair."""
    columns = len(found.partners)
    swaps = torch.tensor([p != c for c, p in enumerate(found.partners)])
    first = torch.tensor([p >= c for c, p in enumerate(found.partners)])
    halves: list[Node] = []
    for half in (first, ~first):
        copies = {start: graph.constant(at, half.float().expand(shape_of(start)).contiguous())}
        for node in operators:
            args, kwargs = map_arg((node.args, node.kwargs), lambda x, copies=copies: copies.get(x, x))
            copies[node] = graph.insert(at, node.target, *args, origin=node, **kwargs)
        halves.append(copies[operators[-1]])
    chosen = graph.constant(at, first)
    own = graph.insert(at, aten.where.self, chosen, halves[0], halves[1])
    partner = graph.insert(at, aten.where.self, chosen, halves[1], halves[0])
    partner = graph.insert(at, aten.mul.Tensor, partner, graph.constant(at, swaps.float().reshape(columns)))
    made = []
    for node, sample in ((own, found.own), (partner, found.partner)):
        for axis, size in enumerate(shape_of(node)[:-1]):
            if size > 1 and sample.shape[axis] == 1:
                node = graph.insert(at, aten.slice.Tensor, node, axis, 0, 1)
        made.append(node)
    return made[0], made[1]


def _function(
    graph: Rewriter, start: Node, operators: Sequence[Node], tables: Mapping[Node, Tensor]
) -> Callable[[Tensor], Tensor]:
    read = {x for node in operators for x in node.all_input_nodes}
    constants = {x: graph.value(x) for x in read if x in graph.constants} | dict(tables)

    def function(x: Tensor) -> Tensor:
        environment = constants | {start: x}
        run(operators, environment)
        return environment[operators[-1]]

    return function


def recognise(
    function: Callable[[Tensor], Tensor], shape: Sequence[int], by_sequence: bool = False
) -> RotationFactors | None:
    """Return the rotation that a linear function of tensors is, or None; also None for one factor of all elements other
    than 1, which is no rotation. shape: of operand and result, (..., columns). by_sequence: factors may differ between
    sequences as well as between rows."""
    columns = shape[-1]
    partners = _partners(function, shape)
    if partners is None:
        return None
    first = torch.tensor([p >= c for c, p in enumerate(partners)])  # one column of each pair
    one, other = (function(half.float().expand(*shape).contiguous()) for half in (first, ~first))
    own, partner = torch.where(first, one, other), torch.where(first, other, one)
    partner[..., [p == c for c, p in enumerate(partners)]] = 0
    found = RotationFactors(_narrowed(own), _narrowed(partner), tuple(partners))
    if max(sum(n > 1 for n in x.shape[:-1]) for x in (found.own, found.partner)) > 1 + by_sequence:
        return None
    if partners == list(range(columns)) and bool((own == own.flatten()[0]).all()) and not found.is_nothing:
        return None
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        x = torch.randn(*shape, generator=generator)
        wanted = function(x.clone())
        if not bool(((found(x) - wanted).abs() <= CLOSE * wanted.abs().max()).all()):
            return None
    return found


def _partners(function: Callable[[Tensor], Tensor], shape: Sequence[int]) -> list[int] | None:
    """By column the other column that it depends on, itself for none; None unless that is its own inverse.

    Bit by bit: of samples that are 1 in the columns whose number has the bit, or has it not, the results in the other
    columns come from partners alone.
    """
    columns = shape[-1]
    number = torch.arange(columns)
    partner, seen = torch.zeros(columns, dtype=torch.int64), torch.zeros(columns, dtype=torch.bool)
    for bit in range(max(1, (columns - 1).bit_length())):
        has = (number >> bit & 1).bool()
        with_bit, without = (
            (function(x.float().expand(*shape).contiguous()) != 0).flatten(0, -2).any(0) for x in (has, ~has)
        )
        # Of a column without the bit: its partner has the bit, if the samples with the bit show in it.
        differs = torch.where(has, without, with_bit)
        partner |= torch.where(differs ^ has, 1 << bit, 0)
        seen |= differs
    found = torch.where(seen, partner, number)
    for c in number[seen].tolist():  # a partner whose own coefficient is 0 everywhere
        p = int(found[c])
        if p >= columns:
            return None
        if not seen[p]:
            found[p] = c
    return found.tolist() if bool((found[found] == number).all()) else None


def _narrowed(x: Tensor) -> Tensor:
    """The tensor with one position of each axis but the last along which it is constant."""
    for axis in range(x.ndim - 1):
        if bool((x == x.narrow(axis, 0, 1)).all()):
            x = x.narrow(axis, 0, 1)
    return x.contiguous()
