"""The tree of operations of a task: what a unit of a task machine executes. It is data, and has no code of a host.

Statements do one thing each: a get has a statement of its own, so that the order of puts and gets is that of the
statements. Expressions compute on values that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from ....base.element_types import ElementType
from ....base.place import Place

# -- expressions ------------------------------------------------------------------------------------------------------


class Expression:
    """A node that has a value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A number, a Boolean, or a text."""

    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class Name(Expression):
    """The value of a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """`-x`, `~x`, `not x`."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary(Expression):
    """`a op b`: arithmetic, bits, comparison, `in`; `and` and `or` evaluate both operands."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """`body if test else other`."""

    test: Expression
    body: Expression
    other: Expression


@dataclass(frozen=True, slots=True)
class Group(Expression):
    """A tuple or a set of values."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Span(Expression):
    """A range of indices, `low:high:step`; None for what is left out."""

    low: Expression | None
    high: Expression | None
    step: Expression | None


@dataclass(frozen=True, slots=True)
class Item(Expression):
    """`base[index]` of a tuple, a tile or a tensor."""

    base: Expression
    index: Expression


@dataclass(frozen=True, slots=True)
class Kernel(Expression):
    """A library kernel, by its name, applied to arguments. named: arguments by name."""

    kernel: str
    arguments: tuple[Expression, ...]
    named: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True)
class Convert(Expression):
    """A value as another element type."""

    type: ElementType
    value: Expression


@dataclass(frozen=True, slots=True)
class External(Expression):
    """A Python function, applied to arguments. Files cannot hold it. name: of the function. named: arguments by
    name."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Expression, ...]
    named: tuple[tuple[str, Expression], ...] = ()


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    """A node that does something. place: in the file of the task."""

    place: Place


@dataclass(frozen=True, slots=True)
class Get(Statement):
    """Take the next token of a stream, and bind it to a variable (`name`). stream: the array of streams. index: the
    place of the stream in that array, an expression for each axis."""

    name: str
    stream: str
    index: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Put(Statement):
    """Put a value on a stream, converted to the type of the stream. stream, index: as of `Get`."""

    stream: str
    index: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign(Statement):
    """Bind a value to names: to one, or item by item to several. type: what it is converted to, None to leave it."""

    names: tuple[str, ...]
    value: Expression
    type: ElementType | None = None


@dataclass(frozen=True, slots=True)
class Store(Statement):
    """`name[index] = value`, for a tile or a tensor."""

    name: str
    index: Expression
    value: Expression


@dataclass(frozen=True, slots=True)
class Read(Statement):
    """Evaluate expressions; the values are not kept."""

    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Cycles(Statement):
    """The beat takes this many clock cycles."""

    count: Expression


@dataclass(frozen=True, slots=True)
class For(Statement):
    """A loop. names: variables that an iteration binds. kind: `range` or `grid`, with these arguments as `bounds`, or
    `in`, with the tuple whose items are taken as the only bound. unrolled: the loop is unrolled before the run, so that
    its iterations are one straight run of statements."""

    names: tuple[str, ...]
    kind: str
    bounds: tuple[Expression, ...]
    body: tuple[Statement, ...]
    unrolled: bool = False


@dataclass(frozen=True, slots=True)
class While(Statement):
    """A loop: `head` computes its test before each iteration."""

    head: tuple[Statement, ...]
    test: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If(Statement):
    """A branch. decided: the test is decided before the run (`meta_if`), so that the machine executes only one arm and
    has no branch."""

    test: Expression
    body: tuple[Statement, ...]
    other: tuple[Statement, ...] = ()
    decided: bool = False


@dataclass(frozen=True, slots=True)
class Leave(Statement):
    """Leave a loop, an iteration or the task. how: `break`, `continue` or `return`."""

    how: str


Node = Expression | Statement | Place | ElementType

NODES: dict[str, type[Any]] = {
    t.__name__: t
    for t in (
        Constant, Name, Unary, Binary, Select, Group, Span, Item, Kernel, Convert,
        Get, Put, Assign, Store, Read, Cycles, For, While, If, Leave,
    )
}  # fmt: skip
"""Nodes that a file can hold, by the name that it uses."""


def nodes(root: Any) -> Iterator[Any]:
    """Yield the node `root` and all nodes below it, each before those below it; of a tuple, those of its items. A value
    that is no node has none."""
    if isinstance(root, tuple) and not isinstance(root, Place):
        for item in root:
            yield from nodes(item)
    elif isinstance(root, Expression | Statement):
        yield root
        for f in fields(root):  # type: ignore[arg-type]
            yield from nodes(getattr(root, f.name))


def last_cycles(cycles: int, before: int) -> int:
    """Return the cycles of the last piece of a beat, at least 1. cycles: of the whole beat. before: number of the
    earlier pieces, of 1 cycle each."""
    return max(1, cycles - before)


def divides(body: tuple[Statement, ...]) -> bool:
    """Whether a branch with the statements `body` ends the beat before it and begins a new beat after it. A branch that
    only computes stays inside a beat.
    """
    return any(isinstance(node, Get | Put | Cycles | For | While | Leave) for node in nodes(body))
