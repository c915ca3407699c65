"""Elementwise operators: expressions of their operands, and chains of them as one operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...streams.syntax import builder
from ...streams.syntax.builder import Term
from .operators import Array, OperatorGraph, StreamOperator, consumers, rebuilt

SQRT_2_OVER_PI = 0.7978845608028654
MOST_OPERANDS = 6
"""Operands of one elementwise operator: each is a stream of its kernel."""


@dataclass(frozen=True)
class OperandIndex:
    """An operand of an elementwise operator. index: its number, from 0 on."""

    index: int


@dataclass(frozen=True)
class RowConstant:
    """A constant of one row, (columns,), the same for all rows. name: of the operator's vector that holds it."""

    name: str


@dataclass(frozen=True)
class PointwiseCall:
    """An operation on expressions. name: of a library kernel of stream programs, or one of + - * /. arguments: one or
    two expressions."""

    name: str
    arguments: tuple[Expression, ...]


Expression = OperandIndex | RowConstant | PointwiseCall | float


def call(name: str, *arguments: Expression) -> PointwiseCall:
    """Return the operation `name` on expressions (`PointwiseCall`)."""
    return PointwiseCall(name, arguments)


def times(a: Expression, b: Expression) -> Expression:
    """Return an expression equal to a * b. If one factor is 1 + tanh(u), as in approximations of GELU, the result is 2
    * the other factor / (1 + exp(-2 u)), because a tanh takes many times the multipliers of an exp."""
    for factor, other in ((b, a), (a, b)):
        match factor:
            case PointwiseCall("+", (1, PointwiseCall("tanh", (u,))) | (PointwiseCall("tanh", (u,)), 1)):
                return call("/", _scaled(2.0, other), call("+", 1.0, call("exp", _scaled(-2.0, u))))
    return call("*", a, b)


def _scaled(number: float, x: Expression) -> Expression:
    """The expression of a number times x, with as few factors as can be."""
    if isinstance(x, float | int):
        return number * x
    match x:
        case PointwiseCall("*", (float() | int() as other, rest) | (rest, float() | int() as other)):
            return rest if number * other == 1 else call("*", number * other, rest)
    return call("*", number, x)


def gelu_tanh(x: Expression) -> Expression:
    """Return an expression that is equal to 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cube = call("*", call("*", x, x), x)
    inner = call("*", SQRT_2_OVER_PI, call("+", x, call("*", 0.044715, cube)))
    return times(call("*", 0.5, x), call("+", 1.0, call("tanh", inner)))


def sigmoid(x: Expression) -> Expression:
    """Return the expression 1 / (1 + exp(-x))."""
    return call("/", 1.0, call("+", 1.0, call("exp", call("-", x))))


def power(x: Expression, exponent: float) -> Expression | None:
    """Return the expression of x to a power. exponent: 2, 3, 0.5, -0.5 or -1; returns None for any other."""
    match exponent:
        case 2:
            return call("*", x, x)
        case 3:
            return call("*", call("*", x, x), x)
        case 0.5:
            return call("sqrt", x)
        case -0.5:
            return call("/", 1.0, call("sqrt", x))
        case -1:
            return call("/", 1.0, x)
    return None


def mapped(x: Expression, leaf: Callable[[OperandIndex | RowConstant], Expression]) -> Expression:
    """Return the expression x with each operand and each vector replaced. leaf: returns what takes its place."""
    if isinstance(x, PointwiseCall):
        arguments = tuple(mapped(argument, leaf) for argument in x.arguments)
        return times(*arguments) if x.name == "*" else PointwiseCall(x.name, arguments)
    return leaf(x) if isinstance(x, OperandIndex | RowConstant) else x


def with_numbers_apart(xs: Sequence[Expression], vectors: dict[str, tuple[float, ...]]) -> Expression | None:
    """Return one expression for several that differ only in numbers: a number that is not the same in all of them
    becomes a vector, with one element for each expression. Returns None if they differ in anything else. vectors:
    receives the elements of each new vector, by its name."""
    first = xs[0]
    if isinstance(first, PointwiseCall):
        calls = [x for x in xs if isinstance(x, PointwiseCall)]
        alike = {(x.name, len(x.arguments)) for x in calls}
        if len(calls) < len(xs) or len(alike) > 1:
            return None
        made = [with_numbers_apart(of, vectors) for of in zip(*(x.arguments for x in calls), strict=True)]
        return None if None in made else PointwiseCall(first.name, tuple(x for x in made if x is not None))
    if all(x == first for x in xs):
        return first
    numbers = tuple(x for x in xs if isinstance(x, float))
    if len(numbers) < len(xs):
        return None
    name = f"number_{len(vectors)}"
    vectors[name] = numbers
    return RowConstant(name)


def term(x: Expression, leaf: Callable[[OperandIndex | RowConstant], Term], inside: bool = False) -> Term:
    """Return an expression in the language of stream programs. leaf: returns the name there of an operand or a vector.
    inside: the expression stands inside another operator, and needs brackets."""
    if isinstance(x, OperandIndex | RowConstant):
        return leaf(x)
    if not isinstance(x, PointwiseCall):
        number = Term(builder.expression(x))
        return number if x >= 0 else number.in_brackets()
    if x.name not in ("+", "-", "*", "/"):
        return builder.call(x.name, *(term(argument, leaf) for argument in x.arguments))
    first, *others = (term(argument, leaf, True) for argument in x.arguments)
    made = first.joined(x.name, *others) if others else -first
    return made.in_brackets() if inside else made


def operations(x: Expression) -> Counter[str]:
    """Return how often an expression has each operation: kernels and + - * /, by their names."""
    if not isinstance(x, PointwiseCall):
        return Counter()
    name = "neg" if x.name == "-" and len(x.arguments) == 1 else x.name
    return sum(map(operations, x.arguments), Counter([name]))


def pointwise(
    name: str,
    operands: Sequence[StreamOperator],
    x: Expression,
    vectors: Mapping[str, Array],
    site: str,
    dtype: str = "f32",
) -> StreamOperator:
    """Return an elementwise operator. operands: of one shape; those that are the same operator become one. x: the
    expression of them, by their index in `operands`. vectors: of the expression, by name, (columns,) each. site:
    operator and module path of PyTorch. dtype: of the result."""
    distinct = list(dict.fromkeys(operands))
    number = {k: distinct.index(operand) for k, operand in enumerate(operands)}
    x = mapped(x, lambda leaf: OperandIndex(number[leaf.index]) if isinstance(leaf, OperandIndex) else leaf)
    attributes: dict[str, Any] = {"expression": x, "vectors": dict(vectors)}
    return StreamOperator(name, "pointwise", tuple(distinct), distinct[0].shape, attributes, site=site, dtype=dtype)


def fused(graph: OperatorGraph) -> OperatorGraph:
    """Return a graph in which elementwise operators are joined with the one elementwise operator that reads their
    results, so that no stream lies between them: what GELU or a gate spell out becomes one kernel. No operator gets
    more than `MOST_OPERANDS` operands."""
    readers = consumers(graph.operators)
    kept = {
        operator.name
        for operator in graph.operators
        if operator.op != "pointwise"
        or operator in graph.results
        or {x.op for x in readers.get(operator, [])} != {"pointwise"}
        or len(set(readers[operator])) > 1
    }

    def change(operator: StreamOperator) -> StreamOperator:
        if operator.op != "pointwise":
            return operator
        joined = operator
        for operand in operator.operands:
            if operand.op == "pointwise" and operand.name not in kept:
                made = _joined(joined, operand)
                joined = joined if len(made.operands) > MOST_OPERANDS else made
        return joined

    return rebuilt(graph, change)


def _joined(operator: StreamOperator, operand: StreamOperator) -> StreamOperator:
    """An elementwise operator with the expression of one of its operands in place of that operand."""
    place = operator.operands.index(operand)
    rest = [x for x in operator.operands if x is not operand]
    operands = [*rest, *operand.operands]
    vectors: dict[str, Array] = dict(operator.attributes["vectors"])
    names: dict[str, str] = {}
    for name, vector in operand.attributes["vectors"].items():
        same = next((mine for mine, other in vectors.items() if np.array_equal(other, vector)), None)
        names[name] = same or f"v{len(vectors)}"
        vectors[names[name]] = vector

    def moved(leaf: OperandIndex | RowConstant) -> Expression:
        return OperandIndex(leaf.index + len(rest)) if isinstance(leaf, OperandIndex) else RowConstant(names[leaf.name])

    inner = mapped(operand.attributes["expression"], moved)

    def outer(leaf: OperandIndex | RowConstant) -> Expression:
        if isinstance(leaf, RowConstant):
            return leaf
        return inner if leaf.index == place else OperandIndex(leaf.index - (leaf.index > place))

    x = mapped(operator.attributes["expression"], outer)
    made = pointwise(operator.name, operands, x, vectors, operator.site, operator.dtype)
    return replace(made, shape=operator.shape)
