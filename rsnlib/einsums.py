"""Einsums of two tensors as products: of an activation with a weight, or of two activations in an attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from string import ascii_letters

import torch
from torch.fx import Node

from .capture import arguments, dtype_of, is_empty, is_static, shape_of
from .rewriter import Rewriter, replacing

aten = torch.ops.aten


@dataclass(frozen=True)
class _Equation:
    """Letters of the dimensions of both operands and of the result. batch: of all three. summed: of both operands.
    left, right: of one operand and the result."""

    x: str
    y: str
    out: str

    @staticmethod
    def of(equation: str, x: int, y: int) -> _Equation | None:
        """Read an equation for operands of so many dimensions; None for one that is no product of two tensors, such as
        one with a diagonal or a sum over a dimension of one operand."""
        terms, arrow, out = equation.replace(" ", "").partition("->")
        first, comma, second = terms.partition(",")
        if not arrow or not comma or "," in second:
            return None
        dots = {n - len(side) + 3 for side, n in ((first, x), (second, y)) if "..." in side}
        if len(dots) > 1 or any(n < 0 for n in dots):
            return None
        unused = [letter for letter in ascii_letters if letter not in equation]
        found = _Equation(*(side.replace("...", "".join(unused[: sum(dots)])) for side in (first, second, out)))
        sides = (found.x, found.y, found.out)
        if any(len(set(side)) != len(side) for side in sides) or (len(found.x), len(found.y)) != (x, y):
            return None
        twice = (sum(letter in side for side in sides) >= 2 for letter in set("".join(sides)))
        return found if all(twice) else None

    @property
    def batch(self) -> str:
        return "".join(c for c in self.x if c in self.y and c in self.out)

    @property
    def summed(self) -> str:
        return "".join(c for c in self.x if c in self.y and c not in self.out)

    @property
    def left(self) -> str:
        return "".join(c for c in self.x if c not in self.y)

    @property
    def right(self) -> str:
        return "".join(c for c in self.y if c not in self.x)


@replacing(aten.einsum)
def einsums(graph: Rewriter, node: Node) -> Node | None:
    """Rewrite (`rewriter.Rewrite`) an einsum of an activation with a constant into a matrix product, and one of two
    activations over the same batch and heads, which an attention may be, into matmul.

    Not applied to other than two operands; if a dimension is summed that only one operand has, or taken as a diagonal;
    if dimensions of size 1 are broadcast; to types other than float32; and to two activations with more than one free
    or summed dimension.
    """
    if not is_static(node) or is_empty(node):
        return None
    a = arguments(node)
    operands = a["tensors"]
    if len(operands) != 2 or not all(isinstance(x, Node) and dtype_of(x) == torch.float32 for x in operands):
        return None
    x, y = operands
    if x in graph.constants:
        x, y = y, x
    if x in graph.constants or not shape_of(x) or not shape_of(y):
        return None
    shapes = [len(shape_of(operand)) for operand in operands]
    found = _Equation.of(a["equation"], *shapes)
    if found is None:
        return None
    if x is not operands[0]:
        found = _Equation(found.y, found.x, found.out)
    sizes: dict[str, int] = {}
    for letters, operand in ((found.x, x), (found.y, y)):
        for letter, size in zip(letters, shape_of(operand), strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    if y in graph.constants:
        return None if found.batch or not found.summed or not found.right else _linear(graph, node, x, y, found, sizes)
    if x not in graph.computed or y not in graph.computed or len(found.batch) != 2:
        return None
    if any(len(letters) != 1 for letters in (found.summed, found.left, found.right)):
        return None
    batch = "".join(letter for letter in found.out if letter in found.batch)
    left = _permuted(graph, node, x, found.x, batch + found.left + found.summed)
    right = _permuted(graph, node, y, found.y, batch + found.summed + found.right)
    made = graph.insert(node, aten.matmul.default, left, right)
    return _permuted(graph, node, made, batch + found.left + found.right, found.out)


def _linear(graph: Rewriter, node: Node, x: Node, y: Node, found: _Equation, sizes: dict[str, int]) -> Node:
    """The product of an activation with a constant, as linear."""
    k, n = (prod(sizes[letter] for letter in letters) for letters in (found.summed, found.right))
    rows = _permuted(graph, node, x, found.x, found.left + found.summed)
    if len(found.summed) > 1:
        rows = graph.insert(node, aten.reshape.default, rows, [*(sizes[c] for c in found.left), k])
    weight = _permuted(graph, node, y, found.y, found.right + found.summed)
    if len(found.summed + found.right) > 2:
        weight = graph.insert(node, aten.reshape.default, weight, [n, k])
    made = graph.insert(node, aten.linear.default, rows, weight)
    if len(found.right) > 1:
        made = graph.insert(node, aten.reshape.default, made, [sizes[c] for c in found.left + found.right])
    return _permuted(graph, node, made, found.left + found.right, found.out)


def _permuted(graph: Rewriter, node: Node, x: Node, letters: str, wanted: str) -> Node:
    """A tensor with its dimensions in the wanted order."""
    if letters == wanted:
        return x
    return graph.insert(node, aten.permute.default, x, [letters.index(c) for c in wanted])
