"""JSON bodies of the HTTP interface: from a request to NumPy arrays, from a model's result to text.

Large bodies are read in a process of their own (`core`). Answers are written in threads beside an event loop, in short
steps: one long call into C would hold the interpreter's lock and stop the loop.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...base.errors import RsnError, TensorError, UnsupportedError
from ..tensors import LONGEST_SHOWN, shown
from .arguments import Argument, check_names

encode: Callable[[Any], bytes] | None = None
"""Writes nested lists of numbers as JSON, with null for NaN and infinities; None for the standard library, which takes
ten times as long."""
decode: Callable[[bytes], Any] | None = None
"""Parses JSON, and does not notice a name that an object has twice; None for the standard library."""
with suppress(ImportError):
    from msgspec.json import decode, encode

Tensor = npt.NDArray[np.generic]

CHUNK = 1 << 16
"""Elements that one call into C converts."""
LONGEST_INTEGER = 4000
"""Digits that are parsed as an integer: Python refuses 4300 and more. A longer number fits no dtype; it is parsed as a
float, and is infinite."""
FORM = '{"inputs": {"NAME": [...], ...}, "timeout_s": SECONDS}; timeout_s may be left out'
"""The format of a body, for messages."""
KINDS: Mapping[str, tuple[frozenset[type], str]] = {
    "b": (frozenset({bool}), "true or false"),
    "i": (frozenset({int}), "a whole number without fraction and exponent"),
    "u": (frozenset({int}), "a whole number without fraction and exponent"),
    "f": (frozenset({int, float}), "a number"),
}
"""By a dtype's kind: the Python types of the JSON values that become it, and their name in messages."""


class NotJson(RsnError, ValueError):
    """The body is not JSON text in UTF-8."""


class NotTheForm(RsnError, ValueError):
    """The body is JSON, but not a request."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A parsed request. inputs: arrays by argument, or what another format reads. timeout: seconds, None if the request
    has none."""

    inputs: Mapping[str, Any]
    timeout: float | None


class Form(Protocol):
    """The format of the bodies of requests and answers. Any thread may call its methods."""

    def read(self, body: bytes) -> Question:
        """Parse a request's body. Raises `NotJson` for what is not JSON in UTF-8, `NotTheForm` for what is no request,
        and `TensorError` for an argument that does not fit."""

    def write(self, result: Any) -> bytes:
        """Return a model's result as JSON text in bytes. Raises `UnsupportedError` for what JSON cannot represent."""


class Tensors(Form):
    """The body format for any model: {"inputs": ..., "timeout_s": ...} with the arguments by name, and {"outputs": ...}
    with the result. arguments: of the model. Raises `UnsupportedError` for an argument whose dtype JSON cannot
    represent."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        for argument in arguments:
            dtype_of(argument)
        self._arguments = tuple(arguments)

    def read(self, body: bytes) -> Question:
        return read_question(body, self._arguments)

    def write(self, result: Any) -> bytes:
        return write_json({"outputs": result})


# -- requests


def read_question(body: bytes, arguments: Sequence[Argument]) -> Question:
    """Parse the body of a request into an array for each argument. body: JSON in UTF-8. arguments: of the model.

    Each array has the argument's dtype and number of dimensions; the server checks the sizes. Raises `NotJson`,
    `NotTheForm`, and `TensorError` naming the argument that does not fit.
    """
    inputs, timeout = read_fields(body, "inputs", FORM)
    if not isinstance(inputs, dict):
        raise NotTheForm(f'"inputs" is {kind_of(inputs)}, not an object with the arguments by name')
    check_names(arguments, inputs)
    return Question({a.name: read_array(a, inputs[a.name]) for a in arguments}, timeout)


def read_fields(body: bytes, name: str, form: str) -> tuple[Any, float | None]:
    """Parse a JSON object with the member `name` and, optionally, "timeout_s". Returns both; the timeout in seconds, or
    None.

    form: what the body should be, for messages. Raises `NotJson` and `NotTheForm`, also for any other member.
    """
    fields = parsed_numbers(body)
    if not isinstance(fields, dict):
        raise NotTheForm(f"the body is {kind_of(fields)}; it should be {form}")
    for other in fields:
        if other not in (name, "timeout_s"):
            raise NotTheForm(f"the body has the unknown name {quoted(other)}; it should be {form}")
    if name not in fields:
        raise NotTheForm(f'the body has no "{name}"; it should be {form}')
    timeout = fields.get("timeout_s")
    if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout < math.inf):
        raise NotTheForm(f'"timeout_s" is {value_of(timeout)}; it should be a number of seconds above 0')
    return fields[name], None if timeout is None else _float(timeout)


def parsed_json(body: bytes) -> Any:
    """Parse JSON in UTF-8. Raises `NotJson`, also for NaN and infinities, and `NotTheForm` for too many levels, and for
    an object with a name twice."""
    try:
        text = body.decode()
        try:
            return DECODER.decode(text)
        except (RsnError, json.JSONDecodeError):
            raise
        except ValueError:  # an integer of more digits than Python parses
            return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_integer)
    except RecursionError:
        raise NotTheForm("the body has too many levels of lists or objects") from None
    except UnicodeDecodeError as e:
        raise NotJson(f"the body is not JSON: byte {e.start} is not UTF-8") from None
    except json.JSONDecodeError as e:
        raise NotJson(f"the body is not JSON: {e}") from None


def parsed_numbers(body: bytes) -> Any:
    """Parse JSON as `parsed_json` does; faster, if all strings in it are names of an object and of the objects in
    that."""
    if decode is not None:
        with suppress(ValueError, RecursionError):
            fields = decode(body)
            parts = [fields, *fields.values()] if isinstance(fields, dict) else []
            # a name that is there twice, and is lost, would have more quotes
            if body.count(b'"') == 2 * sum(len(part) for part in parts if isinstance(part, dict)):
                return fields
    return parsed_json(body)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, n in counted.items() if n > 1)
        raise NotTheForm(f"an object has the name {quoted(twice)} twice")
    return found


def _no_constant(word: str) -> Any:
    raise NotJson(f"the body is not JSON: JSON has no {word}")


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
"""Made once: to make one takes as long as to parse a small body."""


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < LONGEST_INTEGER else float(digits)


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # from an int
        return math.inf


def read_array(argument: Argument, value: Any) -> Tensor:
    """Convert a JSON value to an array of the argument's dtype and number of dimensions. value: nested lists of numbers
    or booleans, or one of these for 0 dimensions; the sizes of the dimensions are not checked.

    Floats are rounded to the dtype. Raises `TensorError`, naming the argument and the position in it, for an element of
    another type, for lists of another depth or of unequal lengths, and for a number that the dtype cannot hold;
    `UnsupportedError` for an argument whose dtype JSON cannot represent."""
    dtype = dtype_of(argument)
    flat, shape = _flattened(argument, value)
    array = np.empty(len(flat), dtype)
    for at in range(0, len(flat), CHUNK):
        _convert(argument, flat[at : at + CHUNK], array[at : at + CHUNK], at, shape)
    return array.reshape(shape)


def dtype_of(argument: Argument) -> np.dtype[np.generic]:
    """Return the NumPy dtype of an argument. Raises `UnsupportedError` for one whose values JSON cannot represent."""
    try:
        dtype: np.dtype[np.generic] = np.dtype(argument.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in KINDS:
        raise UnsupportedError(f"{argument}: values of this dtype cannot be given in JSON")
    return dtype


def _flattened(argument: Argument, value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return all elements of nested lists in order, and the shape. Sizes behind an empty list are 0."""
    level: list[Any] = [value]
    shape: tuple[int, ...] = ()
    for depth in range(len(argument.shape), 0, -1):
        first = level[0] if level else []
        if type(first) is not list:
            raise _wrong(argument, 0, shape, first, f"a list, of {depth} level{'s' if depth > 1 else ''}")
        for i, part in enumerate(level):
            if type(part) is not list or len(part) != len(first):
                raise _wrong(argument, i, shape, part, f"a list of {len(first)}, as the first one is")
        level = list(chain.from_iterable(level))
        shape = (*shape, len(first))
    return level, shape


def _convert(argument: Argument, values: list[Any], into: Tensor, at: int, shape: tuple[int, ...]) -> None:
    """Convert values into a part of the array. at: index of the first of them, for messages."""
    types, wanted = KINDS[into.dtype.kind]
    if not types.issuperset(set(map(type, values))):
        i = next(i for i, v in enumerate(values) if type(v) not in types)
        raise _wrong(argument, at + i, shape, values[i], wanted)
    try:
        with np.errstate(over="ignore"):
            into[:] = np.array(values, into.dtype)
        if into.dtype.kind == "f" and not np.isfinite(into).all():
            raise OverflowError
    except OverflowError:
        i = next(i for i, v in enumerate(values) if not _fits(v, into.dtype))
        raise _wrong(argument, at + i, shape, values[i], f"a number that {argument.dtype} can hold") from None


def _fits(value: float, dtype: np.dtype[np.generic]) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.array(value, dtype)))
    except OverflowError:
        return False


def _wrong(argument: Argument, number: int, shape: tuple[int, ...], value: Any, wanted: str) -> TensorError:
    """Return the error for one value. number: its index among all values of its level of lists; shape: the sizes of
    that level."""
    place = "".join(f"[{i}]" for i in np.unravel_index(number, shape)) if shape else ""
    return TensorError(f"{shown(argument.name)}{place} is {value_of(value)}; it should be {wanted} ({argument})")


def value_of(value: Any) -> str:
    """Return a JSON value as a message shows it: lists and objects by their kind, long texts and numbers cut."""
    if type(value) in (list, dict) or value is None or type(value) is bool:
        return kind_of(value)
    if isinstance(value, int) and abs(value) >= 10**LONGEST_SHOWN:
        return "an integer of more than 100 digits"
    if isinstance(value, float) and math.isinf(value):
        return "a number too large for a float"
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """Return a text in quotes, as a message shows it: cut if it is long."""
    return repr(text) if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]!r}..."


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value as a message shows it, such as "a list of 3"."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case str():
            return "a string"
    return "a number"


# -- results


def write_json(value: Any) -> bytes:
    """Return a model's result as JSON text, in ASCII bytes.

    Mappings, dataclasses and named tuples become objects, with their fields in order; lists and tuples become lists;
    tensors of NumPy or PyTorch become nested lists. Floats keep every bit. NaN and infinities, which JSON does not
    have, become null. Raises `UnsupportedError` for a value that JSON cannot represent.
    """
    return "".join(_written(value, "")).encode()


def _written(value: Any, name: str) -> Iterator[str]:
    """Yield the JSON text of a value in pieces. name: of the value, for messages."""
    if value is None or isinstance(value, bool | int):
        yield json.dumps(value)
    elif isinstance(value, float):
        yield json.dumps(float(value) if math.isfinite(value) else None)
    elif isinstance(value, str):
        yield _text(value)
    elif isinstance(value, Mapping):
        yield from _members(value.items(), name)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _members([(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)], name)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from _members(zip(value._fields, value, strict=True), name)
    elif isinstance(value, list | tuple):
        yield "["
        for i, element in enumerate(value):
            yield "," if i else ""
            yield from _written(element, f"{name}[{i}]")
        yield "]"
    elif hasattr(value, "tolist") and hasattr(value, "shape"):
        yield from _elements(value, name)
    else:
        raise UnsupportedError(f"{shown(name)}: JSON cannot hold a {type(value).__name__}")


def _members(members: Any, name: str) -> Iterator[str]:
    seen: set[str] = set()
    yield "{"
    for key, value in members:
        if not isinstance(key, str | int) or str(key) in seen:
            raise UnsupportedError(
                f"{shown(name)}: {shown(repr(key))} cannot be a name in a JSON object, or is there twice"
            )
        yield "," if seen else ""
        seen.add(str(key))
        yield f"{_text(str(key))}:"
        yield from _written(value, f"{name}.{key}" if name else str(key))
    yield "}"


def _elements(tensor: Any, name: str) -> Iterator[str]:
    """Yield the JSON text of a tensor, some rows at a time."""
    row = math.prod(tensor.shape[1:])
    if row * (tensor.shape[0] if tensor.shape else 1) <= CHUNK:
        yield _numbers(tensor.tolist(), tensor, name)
        return
    yield "["
    step = max(CHUNK // row, 1)
    for at in range(0, tensor.shape[0], step):
        yield "," if at else ""
        if row > CHUNK:
            yield from _elements(tensor[at], name)
        else:
            yield _numbers(tensor[at : at + step].tolist(), tensor, name)[1:-1]
    yield "]"


def _numbers(values: Any, tensor: Any, name: str) -> str:
    try:
        # of other types, such as dates, it would make texts
        if encode is not None and getattr(tensor.dtype, "kind", "f") in "biuf":
            return encode(values).decode()
        try:
            return json.dumps(values, allow_nan=False, separators=(",", ":"))
        except ValueError:
            return json.dumps(_finite(values), separators=(",", ":"))
    except TypeError:
        raise UnsupportedError(f"{shown(name)}: JSON cannot hold {tensor.dtype}") from None


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(v) for v in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _text(text: str) -> str:
    """Return a JSON string. Half a surrogate pair is not a character, and many readers refuse it: it becomes U+FFFD."""
    return json.dumps(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
