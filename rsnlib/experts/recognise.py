"""Finds layers of experts in a captured graph, by their operators.

A layer of experts is: rows x (tokens, H), the numbers and the shares of the k experts of each token, and for each
expert a gated feed-forward, down(activation(gate(x)) * up(x)). Its result is the sum of a token's experts, each times
its share. PyTorch programs spell this in three ways, which are all found:

- batched: the weights of each pair of token and expert are gathered, and multiplied one by one (bmm);
- grouped: the pairs are sorted by expert, and each group of rows has one product (grouped_mm);
- as a loop over all experts: the rows of one expert are gathered, and its results added to theirs (index_add).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..capture import arguments, dtype_of, packet, shape_of
from ..rules import SAME

aten = torch.ops.aten

RESHAPES = {*SAME, aten.reshape, aten.view, aten.unsqueeze, aten.squeeze, aten.flatten, aten.to, aten.dropout}
"""Operators that keep the order of the elements; from `view` on, where sizes depend on data."""
GROUPED = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
"""Products (S, K) x (E, K, N) of rows in groups, one group for each matrix, by the ends of the groups."""


@dataclass(frozen=True)
class WeightColumns:
    """The weights of a product: columns `first` to before `end` of its result. weight: one tensor (E, N, K), or
    `transposed` (E, K, N), of all E experts; or the matrix of each expert, (N, K), or `transposed` (K, N)."""

    weight: Node | tuple[Node, ...]
    transposed: bool
    first: int
    end: int


@dataclass(frozen=True)
class RecognisedExperts:
    """A layer of experts. node: its result, (tokens, H). x: (tokens, H). index, shares: the experts of each token and
    their shares, (tokens, k), or as many elements in that order. tokens, each, experts: how many rows, how many experts
    a row selects (k), and how many there are. gate, up, down: the weights. activation: of the gate, as in
    `scheduler.graph.ActivationFunction`."""

    node: Node
    x: Node
    index: Node
    shares: Node
    tokens: int
    each: int
    experts: int
    gate: WeightColumns
    up: WeightColumns
    down: WeightColumns
    activation: str


class _Other(Exception):
    """The operators are something else than a layer of experts."""


def find(node: Node) -> RecognisedExperts | None:
    """Return the layer of experts whose result is the node; None if the node is no such result."""
    try:
        if packet(node) is aten.sum:
            return _summed(node)
        if packet(node) is aten.index_add and not any(packet(x) is aten.index_add for x in node.users):
            return _looped(node)
    except _Other:
        pass
    return None


# -- parts that all spellings share


def _need(is_so: bool) -> None:
    if not is_so:
        raise _Other


def _node(x: Any) -> Node:
    _need(isinstance(x, Node))
    found: Node = x
    return found


def same(x: Any) -> Node:
    """Return the node whose elements x has, in the same order and of the same type: x itself, or the node at the start
    of the chain of reshapes that ends in x. Raises `_Other` if x is no node, so that `find` returns None."""
    node = _node(x)
    while True:
        a = arguments(node)
        if packet(node) not in RESHAPES or not shape_of(node) or dtype_of(node) != dtype_of(_node(a["self"])):
            return node
        node = _node(a["self"])


def _alike(x: Any, y: Any) -> bool:
    """Whether two nodes are the same, or the same operator of the same operands, such as rows gathered twice."""
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(map(_alike, x, y))
    if not (isinstance(x, Node) and isinstance(y, Node)):
        return bool(x == y)
    x, y = same(x), same(y)
    if x is y:
        return True
    is_pure = x.op == "call_function" and torch.Tag.nondeterministic_seeded not in getattr(x.target, "tags", ())
    return is_pure and x.target == y.target and _alike(x.args, y.args) and x.kwargs == y.kwargs


def _operands(node: Node) -> Iterator[tuple[Node, Node]]:
    """The two operands of a product element by element, in both orders."""
    _need(packet(node) is aten.mul)
    a = arguments(node)
    x, y = _node(a["self"]), _node(a["other"])
    yield x, y
    yield y, x


def _indexed(node: Node) -> tuple[Node, list[Any]]:
    """A tensor and its indices."""
    _need(packet(node) is aten.index)
    a = arguments(node)
    return _node(a["self"]), list(a["indices"])


def _activation(node: Node) -> tuple[str, Node]:
    a = arguments(node)
    if packet(node) is aten.silu:
        return "silu", _node(a["self"])
    if packet(node) is aten.relu:
        return "relu", _node(a["self"])
    _need(packet(node) is aten.gelu)
    return ("gelu_tanh" if a["approximate"] == "tanh" else "gelu_erf"), _node(a["self"])


def _span(node: Node) -> tuple[Node, int, int]:
    """A tensor of which a node has the columns first to end."""
    if packet(node) is aten.slice:
        a = arguments(node)
        whole = _node(a["self"])
        width = shape_of(whole)[-1]
        _need(a["dim"] in (-1, len(shape_of(whole)) - 1) and a["step"] == 1)
        first = a["start"] or 0
        end = width if a["end"] is None else min(int(a["end"]), width)
        _need(0 <= first < end)
        return whole, first, end
    return node, 0, shape_of(node)[-1]


Product = Callable[[Node], tuple[Node, Node | tuple[Node, ...], bool]]
"""Of a node that is a product with the weights of experts: its rows, its weights, and whether these are transposed.
Raises _Other for other nodes."""


def _gated(node: Node, product: Product) -> tuple[Node, str, WeightColumns, WeightColumns]:
    """The rows that a gated product is of, its activation, the weights of the gate and of what it multiplies."""
    for left, right in _operands(same(node)):
        if packet(left) in (aten.silu, aten.relu, aten.gelu):
            activation, z = _activation(left)
            halves = []
            for half in (z, right):
                whole, first, end = _span(half)
                rows, weight, transposed = product(same(whole))
                halves.append((rows, WeightColumns(weight, transposed, first, end)))
            (x, gate), (other, up) = halves
            _need(_alike(x, other) and gate.end - gate.first == up.end - up.first)
            return x, activation, gate, up
    raise _Other


# -- batched and grouped: pairs of token and expert, summed up by token


def _summed(node: Node) -> RecognisedExperts:
    a = arguments(node)
    pairs = _node(a["self"])
    shape = shape_of(pairs)
    _need(len(shape) == 3 and a["dim"] in ([1], [-2]) and not a["keepdim"] and a["dtype"] is None)
    tokens, each, width = shape
    size = tokens * each
    weighted = same(pairs)
    _need(packet(pairs) in RESHAPES and shape_of(weighted)[-1] == width)
    order: Node | None = None
    if packet(weighted) is aten.index:  # sorted by expert: back to the order of the tokens
        weighted, indices = _indexed(weighted)
        _need(len(indices) == 1)
        order = _inverse_of(_node(indices[0]), size)
        weighted = same(weighted)
    _need(shape_of(weighted) == (size, width))
    for product, share in _operands(weighted):
        if shape_of(share) == (size, 1):
            return _pairs(node, product, same(share), order, (tokens, each))
    raise _Other


def _pairs(node: Node, product: Node, share: Node, order: Node | None, sizes: tuple[int, int]) -> RecognisedExperts:
    tokens, each = sizes
    size = tokens * each
    if order is None:
        ids: Node | None = None

        def of(found: Node) -> tuple[Node, Node | tuple[Node, ...], bool]:
            nonlocal ids
            rows, weight, transposed, chosen = _batched(found, size)
            _need(ids is None or ids is chosen)
            ids = chosen
            return rows, weight, transposed

        shares = share
    else:
        shares, indices = _indexed(share)
        _need(len(indices) == 1 and same(indices[0]) is order)
        shares = same(shares)
        ids = _sorted(order)
        chosen = ids

        def of(found: Node) -> tuple[Node, Node | tuple[Node, ...], bool]:
            return _in_groups(found, chosen)

    hidden, weight, transposed = of(same(product))
    down = WeightColumns(weight, transposed, 0, shape_of(product)[-1])
    rows, activation, gate, up = _gated(hidden, of)
    x = _repeated(same(rows), each) if order is None else _gathered(same(rows), order, each)
    _need(ids is not None and not isinstance(weight, tuple))
    assert ids is not None
    assert isinstance(weight, Node)
    _need(len(shape_of(x)) == 2 and shape_of(x)[0] == tokens and _elements(ids) == size and _elements(shares) == size)
    _need(shape_of(x)[1] == shape_of(product)[-1])
    return RecognisedExperts(node, x, ids, shares, tokens, each, shape_of(weight)[0], gate, up, down, activation)


def _elements(node: Node) -> int:
    value = node.meta.get("val")
    return int(value.numel()) if isinstance(value, torch.Tensor) else 0


def _batched(node: Node, size: int) -> tuple[Node, Node, bool, Node]:
    """Products one by one: rows, weights, whether these are transposed, and the expert of each row."""
    _need(packet(node) in (aten.bmm, aten.matmul) and len(shape_of(node)) == 3)
    a = arguments(node)
    left, right = _node(a["self"]), _node(a["mat2" if packet(node) is aten.bmm else "other"])
    is_row = packet(left) is not aten.index  # x @ W, not W @ x
    matrix, vector = (right, left) if is_row else (left, right)
    transposed = is_row
    if _swaps(matrix):
        matrix, transposed = _node(arguments(matrix)["self"]), not transposed
    _need(shape_of(vector)[0] == size and shape_of(vector)[1 if is_row else 2] == 1)
    weight, indices = _indexed(matrix)
    _need(len(indices) == 1 and len(shape_of(weight)) == 3)
    return vector, weight, transposed, same(indices[0])


def _swaps(node: Node) -> bool:
    """Whether an operator swaps the last two of three dimensions."""
    return packet(node) is aten.permute and arguments(node)["dims"] == [0, 2, 1]


def _repeated(rows: Node, each: int) -> Node:
    """The tensor whose rows are each repeated so often."""
    _need(packet(rows) is aten.expand and len(shape_of(rows)) == 3)
    x = _node(arguments(rows)["self"])
    _need(shape_of(rows)[1] == each and shape_of(x)[1:2] == (1,) and packet(x) is aten.reshape)
    return _node(arguments(x)["self"])


def _in_groups(node: Node, ids: Node) -> tuple[Node, Node, bool]:
    """A product of rows in groups: rows, weights, whether these are transposed."""
    schema = getattr(node.target, "_schema", None)
    _need(schema is not None and schema.name in GROUPED)
    rows, weight, ends = (_node(x) for x in list(arguments(node).values())[:3])
    transposed = True
    if _swaps(weight):
        weight, transposed = _node(arguments(weight)["self"]), False
    given = list(arguments(node).values())[3:]
    _need(len(shape_of(weight)) == 3 and all(x is None for x in given))
    a = arguments(ends)
    _need(packet(ends) is aten.cumsum and a["dim"] in (0, -1))
    _need(_counts(same(_node(a["self"])), shape_of(weight)[0]) is ids)
    return rows, weight, transposed


def _counts(node: Node, experts: int) -> Node:
    """The numbers of which a node counts how often each of 0 to experts - 1 is among them."""
    a = arguments(node)
    if packet(node) is aten.histc:
        _need((a["bins"], a["min"], a["max"]) == (experts, 0, experts - 1))
        of = _node(a["self"])
        while packet(of) is aten._to_copy:
            of = _node(arguments(of)["self"])
    elif packet(node) is aten.bincount:
        _need(a["minlength"] == experts and a["weights"] is None)
        of = _node(a["self"])
    else:
        _need(packet(node) is aten.sum and a["dim"] == [0] and packet(_node(a["self"])) is aten.one_hot)
        a = arguments(_node(a["self"]))
        _need(a["num_classes"] == experts)
        of = _node(a["self"])
    if of.target is operator.getitem and of.args[1] == 0 and packet(_node(of.args[0])) is aten.sort:
        of = _node(arguments(_node(of.args[0]))["self"])
    return same(of)


def _sorted(order: Node) -> Node:
    """The numbers that a permutation sorts in ascending order."""
    _need(order.target is operator.getitem and order.args[1] == 1 and packet(_node(order.args[0])) is aten.sort)
    a = arguments(_node(order.args[0]))
    _need(a["dim"] in (0, -1) and not a["descending"] and len(shape_of(_node(a["self"]))) == 1)
    return same(a["self"])


def _inverse_of(node: Node, size: int) -> Node:
    """The permutation whose inverse a node is."""
    node = same(node)
    if node.target is operator.getitem:
        return _sorted(node)
    a = arguments(node)
    _need(packet(node) is aten.index_put and not a["accumulate"] and len(a["indices"]) == 1)
    values = same(a["values"])
    counted = arguments(values)
    _need(packet(values) is aten.arange and shape_of(values) == (size,))
    _need(counted.get("start", 0) in (0, None) and counted.get("step", 1) in (1, None))
    return same(a["indices"][0])


def _gathered(rows: Node, order: Node, each: int) -> Node:
    """The tensor whose row i // each is given for each element i of the permutation."""
    x, indices = _indexed(rows)
    _need(len(indices) == 1)
    _need(_token_of(same(indices[0]), each) is order)
    return x


def _token_of(node: Node, each: int) -> Node:
    a = arguments(node)
    _need(packet(node) is aten.div and a.get("rounding_mode") == "floor" and a["other"] == each)
    return same(a["self"])


# -- a loop over all experts


@dataclass(frozen=True)
class _Turn:
    """One expert of a loop."""

    expert: int
    shape: tuple[int, ...]
    """Of the selectors, (tokens, k)."""
    x: Node
    index: Node
    shares: Node
    gate: WeightColumns
    up: WeightColumns
    down: WeightColumns
    activation: str


def _looped(node: Node) -> RecognisedExperts:
    turns: list[_Turn] = []
    at = node
    while packet(at) is aten.index_add:
        a = arguments(at)
        _need(a["dim"] == 0 and a["alpha"] == 1)
        turns.append(_turn(same(a["index"]), same(a["source"])))
        at = same(a["self"])
    zeros = packet(at) in (aten.full, aten.full_like) and arguments(at)["fill_value"] == 0
    _need(zeros and bool(turns) and sorted(t.expert for t in turns) == list(range(len(turns))))
    turns.sort(key=lambda t: t.expert)
    first = turns[0]
    for t in turns:
        _need((t.x, t.index, t.shares, t.activation) == (first.x, first.index, first.shares, first.activation))
    _need(shape_of(node) == shape_of(first.x) and len(shape_of(node)) == 2)
    tokens = shape_of(node)[0]
    each = _elements(first.index) // tokens
    _need(_elements(first.index) == _elements(first.shares) == tokens * each)
    _need(all(t.shape == (tokens, each) for t in turns))

    def joined(of: Callable[[_Turn], WeightColumns]) -> WeightColumns:
        parts = [of(t) for t in turns]
        _need(len({(c.first, c.end, c.transposed) for c in parts}) == 1)
        weights = tuple(c.weight for c in parts if isinstance(c.weight, Node))
        return WeightColumns(weights, False, parts[0].first, parts[0].end)

    gate, up, down = joined(lambda t: t.gate), joined(lambda t: t.up), joined(lambda t: t.down)
    return RecognisedExperts(
        node, first.x, first.index, first.shares, tokens, each, len(turns), gate, up, down, first.activation
    )


def _turn(token: Node, source: Node) -> _Turn:
    expert, index, place, shape = _chosen(token)
    for product, share in _operands(source):
        if shape_of(share)[-1:] != (1,):
            continue
        shares, indices = _indexed(same(share))
        _need(len(indices) == 2 and same(indices[0]) is token and same(indices[1]) is place)
        _need(shape_of(shares)[:2] == shape)
        hidden, weight, _ = _linear(same(product))
        rows, activation, gate, up = _gated(hidden, _linear)
        x, indices = _indexed(same(rows))
        _need(len(indices) == 1 and same(indices[0]) is token)
        down = WeightColumns(weight, False, 0, shape_of(product)[-1])
        return _Turn(expert, shape, x, index, same(shares), gate, up, down, activation)
    raise _Other


def _linear(node: Node) -> tuple[Node, Node, bool]:
    _need(packet(node) is aten.linear)
    a = arguments(node)
    weight = _node(a["weight"])
    _need(a["bias"] is None and len(shape_of(weight)) == 2)
    return same(a["input"]), weight, False


def _chosen(token: Node) -> tuple[int, Node, Node, tuple[int, ...]]:
    """Of the tokens that selected an expert: the expert, all selectors, the place of the selector, and the shape
    (tokens, k) of all."""
    _need(token.target is operator.getitem)
    where = _node(token.args[0])
    _need(packet(where) in (aten.where, aten.nonzero_numpy))
    place = [x for x in where.users if x.target is operator.getitem and x.args[1] != token.args[1]]
    _need(len(place) == 1)
    mask = same(next(iter(arguments(where).values())))
    if packet(mask) is aten.select:  # one_hot(index, E).permute(2, 1, 0)[expert]
        a = arguments(mask)
        turned = _node(a["self"])
        b = arguments(turned)
        _need(a["dim"] == 0 and packet(turned) is aten.permute and [d % 3 for d in b["dims"]] in ([2, 1, 0], [2, 0, 1]))
        _need(token.args[1] == (1 if b["dims"][1] % 3 == 1 else 0))
        hot = _node(b["self"])
        _need(packet(hot) is aten.one_hot)
        ids = _node(arguments(hot)["self"])
        return int(a["index"]), same(ids), place[0], shape_of(ids)
    a = arguments(mask)
    _need(packet(mask) is aten.eq and isinstance(a["other"], int) and token.args[1] == 0)
    return int(a["other"]), same(a["self"]), place[0], shape_of(mask)
