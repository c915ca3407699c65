"""Compiles expressions of task trees to functions of the variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....base.element_types import ElementType
from ....base.errors import ProgramError
from .kernels import KERNELS
from .operators import BINARY, UNARY
from .tree import (
    Binary,
    Constant,
    Convert,
    Expression,
    External,
    Group,
    Item,
    Kernel,
    Name,
    Select,
    Span,
    Unary,
)
from .values import UNKNOWN, Symbolic, convert, is_absent, scalar

Variables = dict[str, Any]
Value = Callable[[Variables], Any]
"""Computes the value of an expression."""


def value_of(node: Expression) -> Value:
    """Return a function that computes an expression from the values of variables. Raises `ProgramError` for what is no
    expression, `KeyError` for an unknown operator; the function raises what the computation does, such as `KeyError`
    for an unbound variable."""
    match node:
        case Constant(value):
            return lambda env: value
        case Name(name):
            return lambda env: env[name]
        case Unary(op, operand):
            return _applied(UNARY[op], (operand,))
        case Binary(op, left, right):
            return _binary(BINARY[op], value_of(left), value_of(right))
        case Select(test, body, other):
            return _select(value_of(test), value_of(body), value_of(other))
        case Group(items):
            parts = tuple(map(value_of, items))
            return lambda env: tuple(part(env) for part in parts)
        case Span(low, high, step):
            return _applied(slice, tuple(Constant(0) if x is None else x for x in (low, high, step)), (low, high, step))
        case Item(base, index):
            return _applied(item, (base, index))
        case Kernel(kernel, arguments, named):
            return _applied(partial(_kernel, kernel), arguments, named=named)
        case External(_, function, arguments, named):
            return _applied(function, arguments, named=named)
        case Convert(kind, value):
            return _applied(partial(converted, kind), (value,))
    raise ProgramError(f"{node} is no expression")


def _kernel(name: str, *arguments: Any, **named: Any) -> Any:
    for argument in arguments:
        if isinstance(argument, Symbolic):
            return argument.kernel(name, arguments, named)
    return KERNELS[name](*arguments, **named)


def _binary(function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    def compute(env: Variables) -> Any:
        a, b = left(env), right(env)
        if a is UNKNOWN or b is UNKNOWN or is_absent(a) or is_absent(b):
            return UNKNOWN
        return scalar(function(_loaded(a), _loaded(b)))

    return compute


def _select(test: Value, body: Value, other: Value) -> Value:
    def compute(env: Variables) -> Any:
        chosen = test(env)
        if chosen is UNKNOWN:
            return UNKNOWN
        return body(env) if chosen else other(env)

    return compute


def _applied(
    function: Callable[..., Any],
    arguments: Sequence[Expression],
    given: Sequence[Expression | None] | None = None,
    named: Sequence[tuple[str, Expression]] = (),
) -> Value:
    """Apply a function. given: of the arguments, None for those that are passed as None."""
    parts = tuple(map(value_of, arguments))
    absent = () if given is None else tuple(k for k, x in enumerate(given) if x is None)
    keywords = tuple((name, value_of(x)) for name, x in named)

    def compute(env: Variables) -> Any:
        values = [part(env) for part in parts]
        for k in absent:
            values[k] = None
        extra = {name: part(env) for name, part in keywords}
        if any(map(is_unknown, values)) or any(map(is_unknown, extra.values())):
            return UNKNOWN
        if function is not item:
            values = list(map(_loaded, values))
        return scalar(function(*values, **extra))

    return compute


def is_unknown(value: Any) -> bool:
    """Whether a value, or an item of it, is unknown, or is a tensor of which the run has no data."""
    if type(value) is slice:
        return any(part is UNKNOWN for part in (value.start, value.stop, value.step))
    return value is UNKNOWN or (type(value) is tuple and any(map(is_unknown, value))) or is_absent(value)


def _loaded(value: Any) -> Any:
    """A value; of a tensor off the chip, its elements."""
    return value[()] if getattr(value, "off_chip", False) is True else value


def item(base: Any, index: Any) -> Any:
    """Return `base[index]`. Raises `IndexError` for a negative index into a tile or tensor, and for one beyond its
    end."""
    return base[within(base, index)]


def within(base: Any, index: Any) -> Any:
    """Return the index, after a check that it is inside the array, if `base` is one. Raises `IndexError` for a negative
    index, one beyond an axis, and more indices than axes.
    """
    shape = getattr(base, "shape", None)
    if shape is not None:
        parts = tuple(p for p in (index if type(index) is tuple else (index,)) if p is not None)
        if len(parts) > len(shape) and not (len(parts) == 1 and parts[0] == slice(None)):
            raise IndexError(f"{len(parts)} indices of {len(shape)} axes")
        for part, size in zip(parts, shape, strict=False):
            bounds = (part.start, part.stop) if type(part) is slice else (part,)
            if any(b is not None and not 0 <= b <= size - (type(part) is not slice) for b in bounds):
                raise IndexError(f"index {part} of an axis of {size}")
    return index


def converted(kind: ElementType, value: Any) -> Any:
    """Return a value as an element type. A number type converts each element of a tile; an unknown or `Symbolic` value
    stays as it is. Raises `ProgramError` for a tile of another shape, and for NaN and infinities that become
    integers."""
    if isinstance(value, Symbolic):
        return value
    if isinstance(value, np.ndarray) and not kind.shape:
        kind = ElementType(kind.dtype, value.shape)
    return convert(value, kind)
