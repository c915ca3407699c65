"""Name the construct that a refused operator is part of: rotary positions, grouped queries, a gated feed-forward.

"A multiplication is refused" does not tell a user that it applies rotary positions. The constructs ("ideas") are
recognised by the operators around it in the captured graph, independent of module names. They only add words to error
messages; nothing is decided here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .capture import Constants, arguments, is_static, packet, shape_of

aten = torch.ops.aten

ROTARY = "rotary positions"
GROUPED = "grouped queries"
CACHE = "a cache of keys and values"
CROSS = "cross attention"
LENGTHS = "attentions over sequences of different lengths"
WINDOWS = "windows"
POSITIONS = "positions multiplied with queries or keys"
BIAS = "a bias of the scores from the arguments"
WEIGHTS = "attention weights as a result"
GATED = "a gated feed-forward"
EXPERTS = "experts chosen by data"
RECURRENCE = "a recurrence"
CONVOLUTION = "a convolution, other than of separate patches"

BY_OPERATOR = {
    **dict.fromkeys((aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu), RECURRENCE),
    **dict.fromkeys((aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution), CONVOLUTION),
}
PRODUCTS = {aten.linear, aten.matmul, aten.bmm, aten.baddbmm, aten.einsum}
JOINS = {aten.cat, aten.stack}
REPEATS = {aten.expand, aten.repeat}
CACHE_WRITES = {aten.index_copy, aten.index_put, aten.slice_scatter, aten.scatter}
CHOICES = {aten.topk, aten.nonzero, aten.argmax, aten.sort}
PARTS = {aten.slice, aten.select}
WINDOW_RANK = 6
"""Rank of a tensor that is cut into windows: two counts and two sizes of windows besides batch and columns."""


@dataclass(frozen=True)
class _Attention:
    """The operands of an attention. scores: the product of queries and keys. soft: the softmax. Both are None if the
    attention is one operator. value: None if the product with the values was not found."""

    query: Node
    key: Node
    value: Node | None
    scores: Node | None = None
    soft: Node | None = None


def with_ideas(program: ExportedProgram, node: Node, place: str, message: str) -> str:
    """Return the error message of a refused operator, to which the names of the constructs are added that the operator
    is part of. node: the operator. place: operator and module path; if the message begins with it, the names follow it,
    else they come at the end."""
    found = ideas(program, node)
    if not found:
        return message
    words = f"({', '.join(found)})"
    return f"{place} {words}{message.removeprefix(place)}" if message.startswith(place) else f"{message} {words}"


def ideas(program: ExportedProgram, node: Node) -> list[str]:
    """Return the names of the unsupported constructs that a refused operator is part of; empty if none is
    recognised."""
    if packet(node) in BY_OPERATOR:
        return [BY_OPERATOR[packet(node)]]
    if not all(map(is_static, (node, *node.all_input_nodes))):
        return [EXPERTS] if _Graph(program).is_chosen(node) else []
    graph = _Graph(program)
    attention = graph.attention(node)
    if attention is not None:
        return list(graph.of_attention(attention))
    return list(graph.of_product(node)) if graph.is_projection(node) else []


class _Graph:
    """Searches a captured graph, from an operator back to the projections that it depends on. A projection is a product
    of an activation with a constant."""

    def __init__(self, program: ExportedProgram) -> None:
        self._nodes = program.graph.nodes
        self._constants = Constants(program)

    def is_projection(self, node: Node) -> bool:
        """Whether a node is a product of an activation with a constant."""
        inputs = node.all_input_nodes
        return packet(node) in PRODUCTS and sum(x not in self._constants for x in inputs) == 1

    def is_product_of_activations(self, node: Node) -> bool:
        """Whether a node is a product of two values that depend on arguments."""
        return packet(node) in PRODUCTS and len(self._operands(node)) == 2 and not self.is_projection(node)

    @staticmethod
    def _operands(node: Node) -> list[Node]:
        """The two factors of a product."""
        inputs: list[Node] = node.all_input_nodes
        return inputs[1:] if packet(node) is aten.baddbmm else inputs[:2]

    def behind(self, node: Node, stop: Callable[[Node], bool] | None = None) -> Iterator[Node]:
        """The node and the nodes that it depends on, back to and including the nodes for which `stop` is true (default:
        products); no constants."""
        stop = stop or (lambda x: packet(x) in PRODUCTS or packet(x) is aten.scaled_dot_product_attention)
        seen, stack = {node}, [node]
        while stack:
            x = stack.pop()
            yield x
            if not stop(x):
                new = [y for y in x.all_input_nodes if y not in seen and y not in self._constants]
                seen.update(new)
                stack += new

    def projections(self, node: Node) -> set[Node]:
        """The projections that a node depends on, with no other product between."""
        return {x for x in self.behind(node) if self.is_projection(x)}

    # -- attention

    def attention(self, node: Node) -> _Attention | None:
        """The attention that an operator is part of; None if it is part of none."""
        if packet(node) is aten.scaled_dot_product_attention:
            a = arguments(node)
            return _Attention(a["query"], a["key"], a["value"])
        soft = self._softmax_of(node)
        if soft is None:
            return None
        products = [x for x in self.behind(soft) if self.is_product_of_activations(x)]
        # The scores are the product of two projections; among several, the one that others are added to.
        scores = next((x for x in products if all(self.projections(y) for y in self._operands(x))), None)
        if scores is None:
            return None
        query, key = self._operands(scores)
        last = next((x for x in _ahead(soft) if packet(x) in PRODUCTS), None)
        values = [] if last is None else [x for x in self._operands(last) if soft not in self.behind(x, _is_softmax)]
        return _Attention(query, key, values[0] if values else None, scores, soft)

    def _softmax_of(self, node: Node) -> Node | None:
        """The node if it is a softmax, else the softmax before or after it with no other product between."""
        if _is_softmax(node):
            return node
        before = self.behind(node, lambda x: _is_softmax(x) or (x is not node and packet(x) in PRODUCTS))
        found = next((x for x in before if _is_softmax(x)), None)
        return found or next((x for x in _ahead(node) if _is_softmax(x)), None)

    def of_attention(self, a: _Attention) -> Iterator[str]:
        """The constructs of an attention."""
        behind_query, behind_key = list(self.behind(a.query)), list(self.behind(a.key))
        behind_value = [] if a.value is None else list(self.behind(a.value))
        if any(map(_rotates, behind_query)) or any(map(_rotates, behind_key)):
            yield ROTARY
        if self._has_groups(a, [*behind_key, *behind_value]):
            yield GROUPED
        rows, keys = shape_of(a.query)[-2], shape_of(a.key)[-2 if a.scores is None else -1]
        if any(self._is_cached(x) for x in (*behind_key, *behind_value)):
            yield CACHE
        elif rows != keys:
            yield CROSS
        elif self._has_windows(a.query):
            yield WINDOWS
        elif len({shape_of(x)[-2] for x in self._nodes if _is_attention(x)}) > 1:
            yield LENGTHS
        if a.scores is not None and a.soft is not None:
            yield from self._of_scores(a, a.scores, a.soft)

    def _of_scores(self, a: _Attention, scores: Node, soft: Node) -> Iterator[str]:
        """The constructs that only an attention of several operators shows."""
        own = self.projections(a.query) | self.projections(a.key)
        others = [x for x in self.behind(soft) if packet(x) in PRODUCTS and x is not scores]
        if any(not own.isdisjoint(y for z in x.all_input_nodes for y in self.behind(z)) for x in others):
            yield POSITIONS
        added = scores.all_input_nodes[0]
        if packet(scores) is aten.baddbmm and added not in self._constants and not self.projections(added):
            yield BIAS
        if any(x.op == "output" for x in _ahead(soft)):
            yield WEIGHTS

    def _has_groups(self, a: _Attention, behind: list[Node]) -> bool:
        """Whether several query heads share one key head."""
        heads = [shape_of(x)[1] for x in (a.query, a.key) if len(shape_of(x)) == 4]
        if len(heads) == 2 and heads[0] != heads[1]:
            return True
        return any(
            packet(x) in REPEATS
            and prod(shape_of(x)) > prod(shape_of(x.all_input_nodes[0]))
            and bool(self.projections(x.all_input_nodes[0]))
            for x in behind
        )

    def _is_cached(self, node: Node) -> bool:
        """Whether a node appends a projection to an argument, or writes it into one."""
        if packet(node) not in JOINS | CACHE_WRITES:
            return False
        parts = [x for x in node.all_input_nodes if x not in self._constants]
        projected = [bool(self.projections(x)) for x in parts]
        given = [len(shape_of(x)) == len(shape_of(node)) and x.op == "placeholder" for x in parts]
        return any(projected) and any(given)

    def _has_windows(self, query: Node) -> bool:
        """Whether rows are cut into windows before they are projected."""
        operands = [y for x in self.projections(query) for y in x.all_input_nodes if y not in self._constants]
        return any(
            packet(x) is aten.roll or (is_static(x) and len(shape_of(x)) >= WINDOW_RANK)
            for y in operands
            for x in self.behind(y)
        )

    # -- other products

    def of_product(self, node: Node) -> Iterator[str]:
        """The constructs in front of a product with a constant weight."""
        behind = [x for x in self.behind(node, lambda x: x is not node and packet(x) in PRODUCTS) if x is not node]
        if any(packet(x) is aten.mul and self._is_gate(x) for x in behind):
            yield GATED
        if any(packet(x) in CHOICES for x in behind):
            yield EXPERTS

    def _is_gate(self, node: Node) -> bool:
        """Whether a node multiplies the results of two products, or two parts of one result."""
        if len(node.all_input_nodes) != 2 or any(x in self._constants for x in node.all_input_nodes):
            return False
        one, other = (self._leaves(x) for x in node.all_input_nodes)
        return bool(one) and bool(other) and one.isdisjoint(other)

    def _leaves(self, node: Node) -> set[Node]:
        """The projections that a node depends on, or slices of their columns."""

        def is_leaf(x: Node) -> bool:
            return packet(x) in PRODUCTS or _is_part(x)

        leaves = {x for x in self.behind(node, is_leaf) if is_leaf(x)}
        return {x for x in leaves if self.is_projection(x) or (_is_part(x) and self.projections(x))}

    def is_chosen(self, node: Node) -> bool:
        """Whether data decides which rows a node reads."""
        return any(packet(x) in CHOICES for x in self.behind(node, lambda x: False))


def _is_part(node: Node) -> bool:
    return packet(node) in PARTS or node.target is operator.getitem


def _is_softmax(node: Node) -> bool:
    return packet(node) is aten.softmax


def _is_attention(node: Node) -> bool:
    return packet(node) is aten.scaled_dot_product_attention or (_is_softmax(node) and len(shape_of(node)) == 4)


def _rotates(node: Node) -> bool:
    """Whether a node rotates pairs of columns: by a join with one half negated, or as complex numbers."""
    if packet(node) in JOINS:
        return any(packet(y) is aten.neg for x in node.all_input_nodes for y in (x, *x.all_input_nodes))
    return packet(node) is aten.view_as_complex


def _ahead(node: Node) -> Iterator[Node]:
    """The nodes that depend on a node, forward to and including products and the output."""
    seen, todo = {node}, [node]
    while todo:
        new = [x for x in todo.pop(0).users if x not in seen]
        seen.update(new)
        yield from new
        todo += [x for x in new if packet(x) not in PRODUCTS and x.op != "output"]
