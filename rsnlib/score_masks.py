"""Masks between scores and softmax, in any spelling, as one mask that is added to the scores.

A score that becomes -1e4 or less has a weight of 0, whether a mask is added to it or it is replaced. The two differ in
a row that sees no key: its weights depend on what the scores were replaced by. Where the sum does not tell that, a
*guard* makes such a row of the mask NaN, and a call that has one is refused (`host_part`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf, nan
from typing import Any

import torch
from torch.fx import Node

from .capture import arguments, draws, dtype_of, is_empty, is_static, packet, shape_of
from .mask import FORBIDDEN, HIDDEN
from .rewriter import Rewriter, replacing

aten = torch.ops.aten

LARGEST = {aten.amax, aten.max}


@dataclass(frozen=True)
class _Step:
    """An operator between scores and softmax. scores: its operand. node: the operator."""

    scores: Node
    node: Node


@dataclass(frozen=True)
class _Scaled(_Step):
    """The scores times a number above 0."""

    factor: float


@dataclass(frozen=True)
class _Shifted(_Step):
    """The scores less the largest of their row, which a softmax does not see."""


@dataclass(frozen=True)
class _Added(_Step):
    """The scores plus `factor` * mask."""

    mask: Node
    factor: float


@dataclass(frozen=True)
class _Filled(_Step):
    """The scores, or `value` where the condition is `hides`."""

    condition: Node
    hides: bool
    value: float


@dataclass(frozen=True)
class _Kept(_Step):
    """The scores times a tensor of the host that must be 0 or 1 everywhere."""

    mask: Node


@dataclass(frozen=True)
class _Zeroed:
    """Weights of which some become 0: those that are NaN or, with a condition, those where it is true."""

    weights: Node
    condition: Node | None


@replacing(aten.softmax, aten.nan_to_num, aten.where)
def score_masks(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) the operators between the scores of an attention and their softmax: the scores are
    multiplied by numbers, and one mask is added to them. The new softmax takes the place of the node.

    These operators may stand there:

    - where, which replaces scores by a number of -1e4 or less,
    - the addition or subtraction of a tensor of the host,
    - the multiplication by a number, also after a mask,
    - the multiplication by a tensor of the host that is 0 and 1, before a mask that hides all scores that become 0,
    - the subtraction of the largest score of a row.

    After the softmax, an operator may set weights to 0: those that are NaN, or those that the only `where` has hidden.
    These are the weights of a row that sees no key. The rule does not apply if any other operator stands between scores
    and softmax, or if the only operator adds a constant mask, which needs no rewriting.
    """
    zeroed = _zeroed(node)
    soft = node if zeroed is None else zeroed.weights
    if packet(soft) is not aten.softmax or not is_static(soft) or is_empty(soft):
        return None
    if zeroed is None and any(_zeroed(user) is not None for user in soft.users):
        return None  # they come later
    a = arguments(soft)
    if a["dim"] not in (-1, len(shape_of(soft)) - 1) or dtype_of(a["self"]) != torch.float32:
        return None
    steps = list(_steps(graph, a["self"]))
    while steps and isinstance(steps[-1], _Scaled) and packet(steps[-1].node) is not aten.add:
        steps.pop()  # the rules know factors without a mask
    scores = steps[-1].scores if steps else a["self"]
    if not (steps or zeroed) or not _are_scores(graph, scores):
        return None
    made = _Sum(graph, node, zeroed)
    for step in reversed(steps):
        if isinstance(step, _Scaled):
            scores = made.scale(scores, step.factor)
        elif not made.take(step):
            return None
    if not made.is_complete or (zeroed is None and len(steps) == 1 and made.is_plain and made.is_constant):
        return None
    mask = made.mask()
    if mask is not None:
        scores = graph.insert(node, aten.add.Tensor, scores, mask, origin=steps[0].node)
    return graph.insert(node, soft.target, scores, *soft.args[1:], origin=soft, **soft.kwargs)


class _Sum:
    """The mask that the scores of an attention get, while it is made of the operators before its softmax, `at`."""

    def __init__(self, graph: Rewriter, at: Node, zeroed: _Zeroed | None) -> None:
        self._graph, self._at, self._zeroed = graph, at, zeroed
        self._added: list[Node] = []
        self._fills: list[_Filled] = []
        self._kept: list[Node] = []
        self.is_plain = False
        """Whether the last operator is an addition of a mask of numbers."""

    @property
    def _is_zeroed_too(self) -> bool:
        """Whether weights become 0 where a condition is true, not where they are NaN."""
        return self._zeroed is not None and self._zeroed.condition is not None

    def scale(self, x: Node, factor: float) -> Node:
        """Multiply a tensor, such as the scores, and the mask so far."""
        self._added = [self._insert(aten.mul.Tensor, term, factor) for term in self._added]
        self._fills = [
            _Filled(fill.scores, fill.node, fill.condition, fill.hides, fill.value * factor) for fill in self._fills
        ]
        return self._insert(aten.mul.Tensor, x, factor)

    def take(self, step: _Step) -> bool:
        """Add what an operator does. Returns whether a sum can tell it."""
        if isinstance(step, _Added):
            mask, self.is_plain = step.mask, step.factor == 1
            if dtype_of(mask) != torch.float32:
                mask, self.is_plain = self._insert(aten._to_copy.default, mask, dtype=torch.float32), False
            self._added.append(mask if step.factor == 1 else self._insert(aten.mul.Tensor, mask, step.factor))
            return True
        if isinstance(step, _Filled):
            self._fills.append(step)
        elif isinstance(step, _Kept):
            if self._added or self._fills:
                return False
            self._kept.append(step.mask)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all scores that are replaced are hidden, and all weights are 0 that become so behind the softmax."""
        hides = bool(self._added or self._fills)
        if self._zeroed is not None and self._is_zeroed_too:
            only = len(self._fills) == 1 and self._fills[0].hides and not self._kept
            if not only or not _are_same(self._fills[0].condition, self._zeroed.condition):
                return False
            if any(x not in self._graph.constants or (self._graph.value(x) <= HIDDEN).any() for x in self._added):
                return False
        return all(fill.value <= HIDDEN for fill in self._fills) and (hides or not self._kept)

    @property
    def is_constant(self) -> bool:
        """Whether the mask depends on no argument."""
        given = (*self._added, *self._kept, *(fill.condition for fill in self._fills))
        return all(x in self._graph.constants for x in given)

    def mask(self) -> Node | None:
        """Insert the mask; None if nothing is added. Constant terms stay apart from those of the arguments, so that
        the machine may get each in its own way."""
        terms = [*self._added, *map(self._filled, self._fills)]
        if not terms:
            return None
        constant = self._total([x for x in terms if x in self._graph.constants])
        others = self._total([x for x in terms if x not in self._graph.constants])
        if self._kept:
            whole = self._only_hidden(self._total([x for x in (constant, others) if x is not None]))
            return whole if whole in self._graph.constants else self._guarded(whole)
        if others is None:
            return constant
        return self._guarded(others if constant is None else self._insert(aten.add.Tensor, constant, others))

    def _filled(self, fill: _Filled) -> Node:
        """What hides by addition the scores that an operator replaces."""
        hidden = -inf if isinf(fill.value) or self._is_zeroed_too else FORBIDDEN
        values = (hidden, 0.0) if fill.hides else (0.0, hidden)
        return self._insert(aten.where.Scalar, fill.condition, *values)

    def _total(self, terms: Sequence[Node]) -> Any:
        total = None
        for term in terms:
            total = term if total is None else self._insert(aten.add.Tensor, total, term)
        return total

    def _only_hidden(self, mask: Node) -> Node:
        """The mask where what is multiplied is 1, or is 0 and hidden; elsewhere NaN."""
        for kept in self._kept:
            one, zero = (self._insert(aten.eq.Scalar, kept, n) for n in (1, 0))
            hidden = self._insert(aten.logical_and.default, zero, self._insert(aten.le.Scalar, mask, HIDDEN))
            right = self._insert(aten.logical_or.default, one, hidden)
            mask = self._insert(aten.where.ScalarOther, right, mask, nan)
        return mask

    def _guarded(self, mask: Node) -> Node:
        """The mask, but NaN in rows whose weights the sum does not tell: those with -inf everywhere, whose weights are
        NaN in PyTorch, or all rows that see no key."""
        values = {fill.value for fill in self._fills}
        if len(values) == 1 and isfinite(min(values)) and not self._added and not self._kept:
            return mask  # all scores of such a row are equal, as those that are less than any other
        limit = -inf if values <= {-inf} and not self._kept else HIDDEN
        if self._is_zeroed_too or (self._zeroed is not None and limit == -inf):
            return mask  # NaN becomes 0, what the machine gives for a row that sees no key
        largest = self._insert(aten.amax.default, mask, [-1], True)
        return self._insert(aten.where.ScalarSelf, self._insert(aten.le.Scalar, largest, limit), nan, mask)

    def _insert(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self._graph.insert(self._at, target, *args, **kwargs)


def _zeroed(node: Node) -> _Zeroed | None:
    """What an operator makes 0, if it may be behind a softmax."""
    a = arguments(node)
    if packet(node) is aten.nan_to_num and not a["nan"]:
        return _Zeroed(a["self"], None)
    if packet(node) is aten.where and not isinstance(a.get("self"), Node) and a.get("self") == 0:
        return _Zeroed(a["other"], a["condition"])
    return None


def _steps(graph: Rewriter, x: Node) -> Iterator[_Step]:
    """The operators before a node that may be between scores and softmax, the last one first."""
    while True:
        step = _step(graph, x)
        if step is None or dtype_of(x) != torch.float32 or shape_of(step.scores) != shape_of(x):
            return
        yield step
        x = step.scores


def _step(graph: Rewriter, x: Node) -> _Step | None:
    op, a = packet(x), arguments(x)
    if op is aten.where:
        return _chosen(graph, x)
    if op is aten.sub and _is_largest(a["other"], a["self"]):
        return _Shifted(a["self"], x)
    if op not in (aten.add, aten.sub, aten.mul, aten.div) or a.get("rounding_mode"):
        return None
    scores, other = a["self"], a["other"]
    if op is aten.add and scores is other and scores in graph.computed and a["alpha"] == 1:
        return _Scaled(scores, x, 2.0)
    if op in (aten.add, aten.mul) and isinstance(other, Node) and other in graph.computed and a.get("alpha", 1) == 1:
        scores, other = other, scores
    if not isinstance(scores, Node) or scores not in graph.computed:
        return None
    number = _number(graph, other) if op in (aten.mul, aten.div) else None
    if number is not None:
        factor = number if op is aten.mul else 1 / (number or inf)
        return _Scaled(scores, x, factor) if isfinite(factor) and factor > 0 else None
    if op is aten.div or not _is_of_host(graph, other):
        return None
    if op is aten.mul:
        return _Kept(scores, x, other) if _is_zero_or_one(graph, other) else None
    return _Added(scores, x, other, float(-a["alpha"] if op is aten.sub else a["alpha"]))


def _chosen(graph: Rewriter, x: Node) -> _Filled | None:
    """What `where` does to scores."""
    a = arguments(x)
    if a.get("self") is None or dtype_of(a["condition"]) != torch.bool or not _is_of_host(graph, a["condition"]):
        return None
    for scores, other, hides in ((a["self"], a["other"], False), (a["other"], a["self"], True)):
        if isinstance(scores, Node) and scores in graph.computed:
            value = _number(graph, other)
            return None if value is None else _Filled(scores, x, a["condition"], hides, value)
    return None


def _are_same(x: Any, y: Any) -> bool:
    """Whether two nodes, or arguments of operators, are the same by their operators."""
    if x is y or not isinstance(x, Node) or not isinstance(y, Node):
        return x is y or (not isinstance(x, Node) and not isinstance(y, Node) and x == y)
    given = [(*n.args, *n.kwargs.items()) for n in (x, y)]
    same = x.op == y.op == "call_function" and x.target is y.target and len(given[0]) == len(given[1])
    return same and not draws(x) and all(map(_are_same, *given))


def _number(graph: Rewriter, x: Any) -> float | None:
    """A number, or the value of a constant that is the same everywhere; None for anything else."""
    if isinstance(x, int | float):
        return float(x)
    if x not in graph.constants or is_empty(x):
        return None
    value = graph.value(x)
    first = value.reshape(-1)[0]
    return float(first) if bool((value == first).all()) else None


def _is_of_host(graph: Rewriter, x: Any) -> bool:
    """Whether the host computes a tensor before the machine starts."""
    return isinstance(x, Node) and x not in graph.computed and is_static(x) and dtype_of(x) is not None


def _is_zero_or_one(graph: Rewriter, x: Node) -> bool:
    """Whether a tensor may be a mask of 0 and 1: a constant is one; of the arguments, the calls tell."""
    if x not in graph.constants:
        return True
    value = graph.value(x)
    return bool(((value == 0) | (value == 1)).all())


def _is_largest(x: Any, scores: Any) -> bool:
    """Whether a tensor is the largest score of each row."""
    if not isinstance(x, Node) or not isinstance(scores, Node):
        return False
    if packet(x) not in LARGEST and x.args and isinstance(x.args[0], Node) and x.args[1:] == (0,):
        x = x.args[0]  # the first result of max
    a = arguments(x)
    if packet(x) not in LARGEST or not a.get("keepdim"):
        return False
    axes = a["dim"] if isinstance(a["dim"], list | tuple) else [a["dim"]]
    return list(axes) in ([-1], [len(shape_of(scores)) - 1]) and a["self"] is scores


def _are_scores(graph: Rewriter, x: Node) -> bool:
    """Whether a tensor is the product of queries and keys, perhaps scaled or with a soft cap."""
    while packet(x) in (aten.mul, aten.div, aten.tanh):
        computed = [y for y in x.all_input_nodes if y in graph.computed]
        if len(computed) != 1:
            return False
        x = computed[0]
    return packet(x) is aten.matmul and x not in graph.products and len(shape_of(x)) == 4
