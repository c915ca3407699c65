"""The fields of requests: one table a route, which parses a body, refuses what is not supported, and is shown on a page
(docs/openai.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.errors import RsnError
from .http_json import kind_of, quoted, value_of

MAX_STOPS = 4
"""The most stop strings of a request, as OpenAI has it."""


class RequestError(RsnError, ValueError):
    """A request that is not of the form. field: the one at fault, "" for the whole."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NoSuchModel(RequestError):
    """The model that a request names is another one than that of this server."""


@dataclass(frozen=True)
class Kind:
    """The kind of values that a field of a request takes. said: in words. read: makes a value of a value of JSON that
    is not null; returns None for a value of another kind. is_only: the field is not supported: it takes only values
    that ask for nothing."""

    said: str
    read: Callable[[Any], Any]
    is_only: bool = False


@dataclass(frozen=True)
class RequestField:
    """A field of a request. name: in JSON. kind: of its values. default: its value if the field is missing, or null.
    about: what it does, for the documentation."""

    name: str
    kind: Kind
    default: Any = None
    about: str = ""

    def of(self, value: Any) -> Any:
        """Read a value of JSON. Raises `RequestError`."""
        if value is None:
            return self.default
        found = self.kind.read(value)
        if found is None:
            only = "supported is only" if self.kind.is_only else "it should be"
            raise RequestError(f"{self.name} is {value_of(value)}; {only} {self.kind.said}", self.name)
        return found


RequestFields = Sequence[RequestField]


def parsed(table: RequestFields, body: Any) -> dict[str, Any]:
    """Return the values of all fields of a table. body: as parsed from JSON. Raises `RequestError`, also for a field
    that is not in the table."""
    if not isinstance(body, dict):
        raise RequestError(f"the body is {kind_of(body)}, not an object")
    known = {field.name for field in table}
    for name in body:
        if name not in known:
            raise RequestError(f"unknown field {quoted(name)}", name)
    return {field.name: field.of(body.get(field.name)) for field in table}


def markdown(table: RequestFields) -> str:
    """Return the table as the page shows it."""
    rows = [("field", "value", "default", ""), *(_row(field) for field in table)]
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---|---|---|---|", *others])


def _row(field: RequestField) -> tuple[str, str, str, str]:
    default = "" if field.default in (None, ()) else f"`{json.dumps(field.default)}`"
    about = "not supported" if field.kind.is_only else field.about
    return f"`{field.name}`", field.kind.said, default, about


# -- kinds of fields


def _range(low: float, high: float) -> str:
    return f"from {low:g} to {high:g}" if math.isfinite(high) else f"from {low:g} on" if math.isfinite(low) else ""


def whole(low: float = -math.inf, high: float = math.inf) -> Kind:
    """Return the kind of whole numbers from `low` to `high`."""
    said = f"a whole number {_range(low, high)}".rstrip()
    return Kind(said, lambda x: x if type(x) is int and low <= x <= high else None)


def number(low: float, high: float = math.inf) -> Kind:
    """Return the kind of finite numbers from `low` to `high`."""
    return Kind(f"a number {_range(low, high)}", lambda x: _float(x) if _is_number(x) and low <= x <= high else None)


def _is_number(x: Any) -> bool:
    if type(x) is int:
        return abs(x) < 1 << 1023  # a float holds it
    return type(x) is float and math.isfinite(x)


def _float(x: Any) -> float:
    return float(x)


FLAG = Kind("true or false", lambda x: x if type(x) is bool else None)
TEXT = Kind("a string", lambda x: x if isinstance(x, str) else None)
ANYTHING = Kind("any", lambda x: x)
"""Parsed by the route."""


def one_of(*values: str) -> Kind:
    """Return the kind of a string that is one of `values`."""
    return Kind(" or ".join(f'"{x}"' for x in values), lambda x: x if x in values else None)


def nothing(*values: Any) -> Kind:
    """Return the kind of a field that is not supported. values: those that ask for nothing, besides null, and so are
    taken."""
    said = " or ".join(["null", *map(json.dumps, values)])
    return Kind(said, lambda x: True if any(_same(x, value) for value in values) else None, is_only=True)


def _same(value: Any, other: Any) -> bool:
    """Whether two values of JSON are the same; true is not 1, but 0.0 is 0."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _stops(value: Any) -> tuple[str, ...] | None:
    stops = [value] if isinstance(value, str) else value
    is_right = isinstance(stops, list) and len(stops) <= MAX_STOPS and all(isinstance(x, str) and x for x in stops)
    return tuple(stops) if is_right else None


def _biases(value: Any) -> dict[int, float] | None:
    """Numbers by token, which JSON writes as strings."""
    if not isinstance(value, dict):
        return None
    right = all(key.isascii() and key.isdigit() and len(key) < 10 for key in value)
    right = right and all(_is_number(x) and abs(x) <= 100 for x in value.values())
    return {int(key): float(x) for key, x in value.items()} if right else None


STOPS = Kind(f"a string or several, at most {MAX_STOPS}, none empty", _stops)
BIASES = Kind("an object with numbers from -100 to 100 by token", _biases)


def model_named(name: str, fields: Mapping[str, Any]) -> None:
    """Raise `NoSuchModel` if a request names another model than the server's. name: of the server's model. fields: of
    the request, by name; the model's name is in `model`."""
    if fields["model"] not in (None, name):
        raise NoSuchModel(f"there is no model {quoted(fields['model'])}; this server has {name!r}", "model")


MODEL = RequestField("model", TEXT, None, "the name of the model, as `/v1/models` tells it")
USER = RequestField("user", TEXT, None, "changes nothing")
