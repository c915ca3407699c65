"""Makes trees for programs that no file holds: expressions with Python's own operators, and statements.

`assign("total", named("total") + a.get() @ b.get())` is the statement of that text. Where a name is wanted a text will
do. What is made has no places until it is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Union

from . import nodes as n

AT = n.NOWHERE

Operand = Union["Term", str, bool, int, float, slice, Sequence["Operand"], None]
"""What becomes an expression: a text is a name, a list a list, a tuple the items of an index."""


class NamedNumber(int):
    """A number that a program writes as a name, such as a size that a run gives. name: that name. Results of arithmetic
    with it are plain numbers; of a size, those of its largest value."""

    name: str

    def __new__(cls, value: int, name: str) -> NamedNumber:
        made = super().__new__(cls, value)
        made.name = name
        return made


class Term:
    """An expression of a program that is being made, with operators that make larger ones. node: of the tree; it may
    stand in several places."""

    def __init__(self, node: n.ExpressionNode) -> None:
        self.node = node

    def joined(self, op: str, other: Operand) -> Term:
        """Return this expression and another one, joined by an operator. op: of Python, such as "+" or "<"."""
        return Term(n.Infix(AT, self.node, op, expression(other)))

    def __add__(self, other: Operand) -> Term:
        return self.joined("+", other)

    def __sub__(self, other: Operand) -> Term:
        return self.joined("-", other)

    def __mul__(self, other: Operand) -> Term:
        return self.joined("*", other)

    def __truediv__(self, other: Operand) -> Term:
        return self.joined("/", other)

    def __matmul__(self, other: Operand) -> Term:
        return self.joined("@", other)

    def __neg__(self) -> Term:
        return Term(n.Prefix(AT, "-", self.node))

    def __ge__(self, other: Operand) -> Term:
        return Term(n.ComparisonChain(AT, self.node, (">=",), (expression(other),)))

    def __lt__(self, other: Operand) -> Term:
        return Term(n.ComparisonChain(AT, self.node, ("<",), (expression(other),)))

    def __getitem__(self, index: Operand) -> Term:
        """A part; a tuple of one item is the item."""
        only = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        return Term(n.Subscript(AT, self.node, expression(only)))

    __iter__ = None  # an index of any number gives a part, so there would be no end

    def get(self) -> Term:
        """Return the expression `.get()`: the next token of the stream that this expression is."""
        return Term(n.Invocation(AT, n.Attribute(AT, self.node, "get"), ()))

    def put(self, value: Operand) -> n.StatementNode:
        """Return the statement `.put(value)`: it puts a token on the stream that this expression is."""
        return n.Evaluation(AT, n.Invocation(AT, n.Attribute(AT, self.node, "put"), (expression(value),)))

    def in_brackets(self) -> Term:
        """Return the same expression, printed with brackets around it even where it needs none."""
        made = n.copied(self.node)
        made.bracketed = True
        return Term(made)


def expression(value: Operand) -> n.ExpressionNode:
    """Return the node of an expression for a value: of a `Term` its node, of any other value what `Operand` says."""
    match value:
        case Term():
            return value.node
        case str():
            return n.Identifier(AT, value)
        case NamedNumber(name=name):
            return n.Identifier(AT, name)
        case slice():
            low, high = (None if end is None else expression(end) for end in (value.start, value.stop))
            return n.Slicing(AT, low, high, None)
        case list() | tuple():
            form = "List" if isinstance(value, list) else "Tuple"
            return n.Collection(AT, form, tuple(map(expression, value)))
        case int() | float() if str(value).startswith("-"):
            return n.Prefix(AT, "-", n.Literal(AT, -value))
    return n.Literal(AT, value)


def named(text: str) -> Term:
    """Return a name as an expression: of a variable, a stream, a tensor or a type."""
    return Term(n.Identifier(AT, text))


def call(function: str, *arguments: Operand, **keywords: Operand) -> Term:
    """Return a call of a function as an expression. function: its name. arguments, keywords: as of the call."""
    given = tuple(n.NamedArgument(AT, key, expression(value)) for key, value in keywords.items())
    return Term(n.Invocation(AT, expression(function), tuple(map(expression, arguments)), given))


def both(a: Term, b: Term) -> Term:
    """Return the expression `a and b`."""
    return Term(n.Logical(AT, "and", (a.node, b.node)))


# -- statements -------------------------------------------------------------------------------------------------------


def do(function: str, *arguments: Operand) -> n.StatementNode:
    """Return a call of a function as a statement, such as `drop(x)` or `cycles(4)`. function: its name."""
    return n.Evaluation(AT, call(function, *arguments).node)


def assign(target: Operand, value: Operand) -> n.StatementNode:
    """Return the statement `target = value`. target: a name or a subscript; `AssertionError` for any other
    expression."""
    match expression(target):
        case n.Identifier(name=name):
            stored: n.ExpressionNode = n.Identifier(AT, name, True)
        case n.Subscript(base=base, index=index):
            stored = n.Subscript(AT, base, index, True)
        case other:
            raise AssertionError(f"{other.kind} is assigned")
    return n.Assignment(AT, (stored,), expression(value))


def declare(target: str, annotation: Term, value: Operand = None) -> n.StatementNode:
    """Return the statement `target: annotation`, or `target: annotation = value`. target: a name."""
    given = None if value is None else expression(value)
    return n.Declaration(AT, n.Identifier(AT, target, True), annotation.node, given)


def when(test: Term, body: Sequence[n.StatementNode]) -> n.StatementNode:
    """Return the statement `if test:` with a body."""
    return n.Branching(AT, test.node, tuple(body), ())


def nest(loops: Sequence[tuple[str, int]], body: Sequence[n.StatementNode]) -> list[n.StatementNode]:
    """Return loops around statements. loops: the name of the index and the number of iterations of each, the outermost
    first. A loop of one iteration is left out; its index must be written as 0. Raises `ValueError` for less than one
    iteration."""
    if empty := [f"{index} ({trips})" for index, trips in loops if trips < 1]:
        raise ValueError(f"loops without an iteration: {', '.join(empty)}")
    inner = [(index, trips) for index, trips in loops if trips > 1]
    once = [index for index, trips in loops if trips == 1]
    fixed = [assign(index, 0) for index in once if any(index in statement.facts.names for statement in body)]
    if not inner:
        return [*fixed, *body]
    indices = tuple(n.Identifier(AT, index, True) for index, _ in inner)
    target = indices[0] if len(inner) == 1 else n.Collection(AT, "Tuple", indices)
    trips = call("range" if len(inner) == 1 else "grid", *(trips for _, trips in inner))
    return [*fixed, n.ForLoop(AT, target, trips.node, tuple(body))]


def task(
    name: str,
    body: Sequence[n.StatementNode],
    tensors: Mapping[str, Term] | None = None,
    comment: str = "",
    rates: Mapping[str, int] | None = None,
) -> n.StatementNode:
    """Return the definition of a task of one instance. body: at least one statement. tensors: the types of the tensors
    that it takes, by name; the parameters have the same names. None for no tensors. comment: the line above the body;
    "" for none. rates: work in a clock cycle, by kernel, as for `language.task`; None or empty for none. Raises
    `ValueError` for an empty body."""
    given = tensors or {}
    first, *others = body
    first = copy(first)
    first.comment = comment
    arguments: dict[str, Operand] = {"args": list(given)} if given else {}
    if rates:
        arguments["rates"] = call("dict", **rates)
    parameters = tuple(n.FormalParameter(AT, key, "args", kind.node, None) for key, kind in given.items())
    head = call("task", mapping=[1], **arguments)
    made = n.FunctionDefinition(AT, name, parameters, (first, *others), (head.node,), expression(None))
    made.blank = 2
    return made


def program(title: str, *parts: Sequence[n.StatementNode]) -> list[n.StatementNode]:
    """Return the statements of a file. title: its docstring. parts: the declarations, with an empty line above each
    part. Raises `ValueError` for a part without a statement."""
    heading = n.Evaluation(AT, n.Literal(AT, title))
    language: list[n.StatementNode] = [n.ImportNames(AT, "rsn.streams", (("*", None),))]
    for first, *_ in (language, *parts):
        first.blank = first.blank or 1
    return [heading, *language, *(statement for part in parts for statement in part)]
