"""Task trees as nested arrays of texts, numbers and Booleans, as a TOML file holds them.

A node is an array, such as `["Put", [7, 5], "s", [], ["Name", "x"]]`: its name, then its fields in order. An absent
field is an empty text. What is read is checked: names of nodes, numbers and types of fields, operators.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from ....base.element_types import ElementType
from ....base.errors import ProgramError
from ....base.place import Place
from .kernels import KERNELS
from .operators import BINARY, UNARY
from .tree import NODES, Expression, Kernel, Statement, Unary
from .values import DTYPES

DEEPEST = 100
"""Limit of the nesting of a tree."""


@cache
def schema_of(node: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a node's class as pairs (name, type), in order."""
    hints = typing.get_type_hints(node)
    return tuple((f.name, hints[f.name]) for f in fields(node))


class WrongTreeError(Exception):
    """Nested lists do not hold a tree. The message says why, but not which tree is meant: the caller adds that."""


class TreeCodec:
    """Converts nodes of a tree to nested lists, and back. nodes: the dataclasses of nodes that a list may name, by the
    name that lists have for them."""

    def __init__(self, nodes: Mapping[str, type[Any]]) -> None:
        self.nodes = nodes
        self._names = {node: name for name, node in nodes.items()}

    def encoded(self, node: Any) -> Any:
        """Return a node, or a tuple of nodes, as nested lists. Raises `ProgramError` for what files cannot hold, such
        as a function.
        """
        if node is None:
            return ""
        if isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, tuple) and type(node) not in self._names:
            leaf = self.written_leaf(node)
            return [self.encoded(item) for item in node] if leaf is None else leaf
        name = self._names.get(type(node))
        if name is not None:
            return [name, *(self.encoded(getattr(node, field)) for field, _ in schema_of(type(node)))]  # type: ignore[arg-type]
        leaf = self.written_leaf(node)
        if leaf is None:
            raise ProgramError(f"a file cannot hold the function {getattr(node, 'name', type(node).__name__)}")
        return leaf

    def decoded(self, given: Any, hint: Any, depth: int = 0) -> Any:
        """Read what `encoded` returned (`given`). hint: the type of a field that holds it: a node's class, a number, a
        text, a tuple or a union of these, or what `read_leaf` knows. depth: how many nodes there are around it. Raises
        `WrongTreeError` for what is no tree of this type, or is nested too deeply.
        """
        leaf = self.read_leaf(given, hint)
        if leaf is not None:
            return leaf
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple:
            if arguments[-1] is Ellipsis:
                if not isinstance(given, list):
                    raise WrongTreeError(f"{str(given)[:60]} is no list")
                return tuple(self.decoded(item, arguments[0], depth) for item in given)
            if not isinstance(given, list) or len(given) != len(arguments):
                raise WrongTreeError(f"{str(given)[:60]}: {len(arguments)} parts are expected")
            return tuple(self.decoded(g, a, depth) for g, a in zip(given, arguments, strict=True))
        if origin in (types.UnionType, typing.Union):
            if type(None) in arguments:
                return None if given == "" else self.decoded(given, arguments[0], depth)
            if isinstance(given, list):
                return self._node(given, tuple(one for one in arguments if inspect.isclass(one)), depth)
            if type(given) not in arguments:
                raise WrongTreeError(f"{str(given)[:60]} is no constant")
            return given
        if hint in (str, int, bool, float):
            if type(given) is not hint and not (hint is float and type(given) is int):
                raise WrongTreeError(f"{str(given)[:60]} is no {hint.__name__}")
            return given
        return self._node(given, (hint,), depth)

    def _node(self, given: Any, kinds: tuple[type[Any], ...], depth: int) -> Any:
        if depth > DEEPEST:
            raise WrongTreeError(f"it is nested more than {DEEPEST} deep")
        kind = " or ".join(one.__name__.lower() for one in kinds)
        if not isinstance(given, list) or not given or not isinstance(given[0], str):
            raise WrongTreeError(f"{str(given)[:60]} is no {kind}")
        node = self.nodes.get(given[0])
        if node is None or not issubclass(node, kinds):
            raise WrongTreeError(f"{given[0]!r} is no {kind}")
        schema = schema_of(node)  # type: ignore[arg-type]
        if len(given) != len(schema) + 1:
            raise WrongTreeError(f"{given[0]} has {len(schema)} fields, not {len(given) - 1}")
        values = zip(given[1:], schema, strict=True)
        made = node(**{name: self.decoded(value, hint, depth + 1) for value, (name, hint) in values})
        self.check(made)
        return made

    def written_leaf(self, value: Any) -> Any:
        """Return a value that is no node as lists, texts and numbers; None if files cannot hold it. This class knows
        none.
        """
        return None

    def read_leaf(self, given: Any, hint: Any) -> Any:
        """Return the value that `written_leaf` wrote as `given` for a field of the type `hint`; None for fields of
        other types. Raises `WrongTreeError` if it wrote no such thing. This class knows none.
        """
        return None

    def check(self, made: Any) -> None:
        """Check a node that was read and made. Raises `WrongTreeError` if it is wrong. This class finds
        nothing wrong.
        """


class _TaskCodec(TreeCodec):
    """Trees of tasks."""

    def written_leaf(self, value: Any) -> Any:
        if isinstance(value, Place):
            return [value.line, value.column]
        return [value.dtype, *value.shape] if isinstance(value, ElementType) else None

    def read_leaf(self, given: Any, hint: Any) -> Any:
        if hint is Place:
            if not _integers(given) or len(given) != 2:
                raise WrongTreeError(f"{str(given)[:60]} is no place: a line and a column")
            return Place(*given)
        if hint is not ElementType:
            return None
        if (
            not isinstance(given, list)
            or not given
            or not isinstance(given[0], str)
            or given[0] not in DTYPES
            or not _integers(given[1:], least=1)
        ):
            raise WrongTreeError(f"{str(given)[:60]} is no element type")
        return ElementType(given[0], tuple(given[1:]))

    def check(self, made: Any) -> None:
        op = getattr(made, "op", None)
        if op is not None and op not in (UNARY if isinstance(made, Unary) else BINARY):
            raise WrongTreeError(f"there is no operator {op!r}")
        if isinstance(made, Kernel) and made.kernel not in KERNELS:
            raise WrongTreeError(f"there is no kernel {made.kernel!r}")


_TASKS = _TaskCodec(NODES)
encoded = _TASKS.encoded


def statements(given: Any, what: str) -> tuple[Statement, ...]:
    """Read what `encoded` returned for the body of a task (`given`). what: names it in messages. Raises `ProgramError`
    for what is no tree of statements.
    """
    try:
        body: tuple[Statement, ...] = _TASKS.decoded(given, tuple[Statement, ...])
    except WrongTreeError as wrong:
        raise ProgramError(f"{what}: {wrong}") from None
    return body


def expression(given: Any, what: str) -> Expression:
    """Read what `encoded` returned for an expression (`given`). what: names it in messages. Raises `ProgramError` for
    what is no tree of an expression.
    """
    try:
        made: Expression = _TASKS.decoded(given, Expression)
    except WrongTreeError as wrong:
        raise ProgramError(f"{what}: {wrong}") from None
    return made


def toml(value: Any) -> str:
    """Return nested lists, texts, numbers and Booleans as a value of TOML on one line."""
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


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes where it needs them."""
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else toml(name)


def table_of(given: Mapping[str, Any], key: str, kind: type[Any] = object) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the table `key` of a parsed file (`given`) as (name, value); none if there is no such table.
    kind: of their values. Raises `ProgramError` for what is no table, and a value of another type.
    """
    table = given.get(key, {})
    if not isinstance(table, dict):
        raise ProgramError(f"{key} is a table")
    for name, value in table.items():
        if not isinstance(value, kind):
            raise ProgramError(f"{key}.{name} is no {kind.__name__}")
        yield name, value


def parts_of(what: str, value: Any, *kinds: type[Any]) -> list[Any]:
    """Return a value if it is a list with a part of each of these types. what: names it in messages. Raises
    `ProgramError` for another length or type.
    """
    if not isinstance(value, list) or len(value) != len(kinds):
        raise ProgramError(f"{what} has {len(kinds)} parts")
    for part, kind in zip(value, kinds, strict=True):
        if type(part) is not kind:
            raise ProgramError(f"{what}: {str(part)[:40]} is no {kind.__name__}")
    return value


def sizes_of(what: str, value: Any, least: int = 1) -> tuple[int, ...]:
    """Return a value as a tuple if it is a list of whole numbers, each from `least` to below 2**31. what: names it in
    messages. Raises `ProgramError` for anything else.
    """
    if not isinstance(value, list) or any(type(n) is not int or not least <= n < 1 << 31 for n in value):
        raise ProgramError(f"{what}: {str(value)[:40]} is no list of whole numbers from {least} on")
    return tuple(value)


def _integers(given: Any, least: int = 0) -> bool:
    return isinstance(given, list) and all(type(n) is int and least <= n < 1 << 31 for n in given)


assert issubclass(NODES["Name"], Expression)
