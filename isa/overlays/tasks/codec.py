"""Task trees as nested arrays of texts, numbers and Booleans, as a TOML file holds them.

A node is an array, such as `["Put", [7, 5], "s", [], ["Name", "x"]]`: its name, then its fields in order. An absent
field is an empty text. What is read is checked: names of nodes, numbers and types of fields, operators.
"""

from __future__ import annotations

import math
import types
import typing
from dataclasses import fields
from functools import cache
from typing import Any

from ....base.element_types import ElementType
from ....base.errors import ProgramError
from ....base.place import Place
from .kernels import KERNELS
from .operators import BINARY, UNARY
from .tree import NODES, Expression, Kernel, Statement
from .values import DTYPES

DEEPEST = 100
"""Limit of the nesting of a tree."""


def encoded(node: Any) -> Any:
    """Return a node, or a tuple of nodes, as nested lists. Raises `ProgramError` for what files cannot hold."""
    if node is None:
        return ""
    if isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, Place):
        return [node.line, node.column]
    if isinstance(node, tuple):
        return [encoded(item) for item in node]
    if isinstance(node, ElementType):
        return [node.dtype, *node.shape]
    name = type(node).__name__
    if name not in NODES:
        raise ProgramError(f"a file cannot hold the function {getattr(node, 'name', name)}")
    return [name, *(encoded(getattr(node, f.name)) for f in fields(node))]


def statements(given: Any, what: str) -> tuple[Statement, ...]:
    """Read what `encoded` returned for the body of a task. what: names it in messages. Raises `ProgramError`."""
    try:
        body = _tuple(given, Statement, 0)
    except _Wrong as wrong:
        raise ProgramError(f"{what}: {wrong}") from None
    return typing.cast("tuple[Statement, ...]", body)


def toml(value: Any) -> str:
    """Return nested lists, texts and numbers as a value of TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if value.isprintable() and "'" not in value:
            return f"'{value}'"  # a text in single quotes has no escapes, also not inside a `.rsn` text
        return '"' + "".join(_escaped(c) for c in value) + '"'
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"{value}"
    if isinstance(value, int):
        return str(value)
    return "[" + ", ".join(toml(item) for item in value) + "]"


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


class _Wrong(Exception):
    """The lists are no tree."""


@cache
def _schema(node: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The fields of a node, and their types."""
    hints = typing.get_type_hints(node)
    return tuple((f.name, hints[f.name]) for f in fields(node))


def _node(given: Any, kind: type[Any], depth: int) -> Any:
    if depth > DEEPEST:
        raise _Wrong(f"it is nested more than {DEEPEST} deep")
    if not isinstance(given, list) or not given or not isinstance(given[0], str):
        raise _Wrong(f"{str(given)[:60]} is no {kind.__name__.lower()}")
    node = NODES.get(given[0])
    if node is None or not issubclass(node, kind):
        raise _Wrong(f"{given[0]!r} is no {kind.__name__.lower()}")
    schema = _schema(node)  # type: ignore[arg-type]
    if len(given) != len(schema) + 1:
        raise _Wrong(f"{given[0]} has {len(schema)} fields, not {len(given) - 1}")
    made = node(*(_field(value, hint, depth + 1) for value, (_, hint) in zip(given[1:], schema, strict=True)))
    op = getattr(made, "op", None)
    if op is not None and op not in (UNARY if given[0] == "Unary" else BINARY):
        raise _Wrong(f"there is no operator {op!r}")
    if isinstance(made, Kernel) and made.kernel not in KERNELS:
        raise _Wrong(f"there is no kernel {made.kernel!r}")
    return made


def _field(given: Any, hint: Any, depth: int) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return _tuple(given, arguments[0], depth)
        if not isinstance(given, list) or len(given) != len(arguments):
            raise _Wrong(f"{str(given)[:60]}: {len(arguments)} parts are expected")
        return tuple(_field(g, a, depth) for g, a in zip(given, arguments, strict=True))
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments:
            return None if given == "" else _field(given, arguments[0], depth)
        if type(given) not in arguments:
            raise _Wrong(f"{str(given)[:60]} is no constant")
        return given
    if hint is Place:
        if not _integers(given) or len(given) != 2:
            raise _Wrong(f"{str(given)[:60]} is no place: a line and a column")
        return Place(*given)
    if hint is ElementType:
        if (
            not isinstance(given, list)
            or not given
            or not isinstance(given[0], str)
            or given[0] not in DTYPES
            or not _integers(given[1:], least=1)
        ):
            raise _Wrong(f"{str(given)[:60]} is no element type")
        return ElementType(given[0], tuple(given[1:]))
    if hint in (str, int, bool):
        if type(given) is not hint:
            raise _Wrong(f"{str(given)[:60]} is no {hint.__name__}")
        return given
    return _node(given, hint, depth)


def _tuple(given: Any, hint: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(given, list):
        raise _Wrong(f"{str(given)[:60]} is no list")
    return tuple(_field(item, hint, depth) for item in given)


def _integers(given: Any, least: int = 0) -> bool:
    return isinstance(given, list) and all(type(n) is int and least <= n < 1 << 31 for n in given)


assert issubclass(NODES["Name"], Expression)
