"""Static types of a task's values, as its run would have them: Python's numbers, numbers of numpy, tiles, tuples.

What an operation gives is asked of the operation itself, applied to sample values: so promotion is numpy's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import Any

import numpy as np

from ...base.element_types import BY_NUMPY, KEPT, SCALARS
from ...isa.overlays.tasks.values import DTYPES, scalar

LIMITS = {name: facts.limits for name, facts in SCALARS.items() if facts.integer}
"""The smallest and the largest value of each integer type."""

CPP = {name: facts.cpp for name, facts in SCALARS.items()}
"""The C++ type of an element."""


@dataclass(frozen=True)
class ValueKind:
    """The type of a value. dtype: without a shape, `bool`, `int` or `float` for numbers of Python, `f32` or `f64` for
    those of NumPy; with a shape, the element type of a tile. shape: of a tile, in elements; () for a number."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.dtype + (f"[{', '.join(map(str, self.shape))}]" if self.shape else "")

    @property
    def is_int(self) -> bool:
        """Whether it is an integer or a Boolean of Python."""
        return not self.shape and self.dtype in ("bool", "int")

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point number, of Python or NumPy; False for a tile."""
        return not self.shape and self.dtype in ("float", "f32", "f64")

    @property
    def cpp(self) -> str:
        """The C++ type of a tile or of a number. An integer of Python gets the widest one, rsn::Int."""
        if self.shape:
            return tile_type(self.dtype, self.shape)
        return {"bool": "bool", "int": "rsn::Int", "float": "double", "f32": "float", "f64": "double"}[self.dtype]


BOOL, INT, FLOAT, F32, F64 = (ValueKind(name) for name in ("bool", "int", "float", "f32", "f64"))


def tile_type(dtype: str, shape: tuple[int, ...]) -> str:
    """Return the C++ type of a tile. dtype: of its elements. shape: sizes of its axes."""
    return f"rsn::Tile<{CPP[dtype]}, {', '.join(map(str, shape))}>"


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of the element type of an array of a run, such as "f32". Raises `KeyError` for one that runs do
    not have.
    """
    return BY_NUMPY[dtype.name]


def kind_of(value: Any) -> ValueKind | None:
    """Return the kind of a number or an array; None for other values, and for arrays without axes or elements. Raises
    `KeyError` as `dtype_name` for an array of another element type.
    """
    if isinstance(value, np.ndarray):
        return ValueKind(dtype_name(value.dtype), value.shape) if value.shape and value.size else None
    if isinstance(value, bool | np.bool_):
        return BOOL
    if isinstance(value, int | np.integer):
        return INT
    if isinstance(value, np.float32):
        return F32
    if isinstance(value, np.float64):
        return F64
    return FLOAT if isinstance(value, float) else None


def sample(kind: ValueKind) -> Any:
    """Return a value of a kind, to try operations on: 1, True, or a tile of ones."""
    if kind.shape:
        return np.ones(kind.shape, DTYPES[kind.dtype])
    return {"bool": True, "int": 1, "float": 1.0, "f32": np.float32(1), "f64": np.float64(1)}[kind.dtype]


@lru_cache(maxsize=4096)
def result(function: Callable[..., Any], kinds: tuple[Any, ...], named: tuple[tuple[str, Any], ...] = ()) -> ValueKind:
    """Return the kind of the result of a function, which is called with samples. kinds: of its arguments; an argument
    that is no `ValueKind` is passed as it is. named: further arguments by name. Raises any error that the function
    raises, and `TypeError` if the result is no number and no tile."""
    values = [sample(k) if isinstance(k, ValueKind) else k for k in kinds]
    with np.errstate(all="ignore"):
        made = scalar(function(*values, **dict(named)))
    kind = kind_of(made)
    if kind is None:
        raise TypeError("the result is no number and no tile")
    return kind


def of_element(dtype: str, shape: tuple[int, ...] = ()) -> ValueKind:
    """Return the kind of a number of the element type `dtype`, or, with a shape, of a tile with such elements. Raises
    `KeyError` for an unknown element type."""
    kept = KEPT[dtype]
    if shape:
        return ValueKind(kept, shape)
    if dtype in LIMITS:
        return BOOL if dtype == "boolean" else INT
    return F64 if dtype == "f64" else F32


@dataclass(frozen=True)
class Val:
    """A number or a tile as C++ text.

    kind: its type. text: the C++ expression. low, high: limits of an integer; None for no known limit. known: the
    value, if `has_known` says that it is known before the run. simple: whether the text needs no brackets as an
    operand. symbolic: whether the text of a known value is a name such as `tid0`, not its literal. adapted: whether it
    is a variable whose first value has another type than its later ones; it may be read only where the type makes no
    difference. wide: the least index in `WIDTHS` of the C++ type of an integer, where the limits alone would give a
    smaller one. integers: whether a product can compute it where it reads it: integer tiles, also converted to another
    integer type, and sums and differences of these. lanes: elements of an expression of tiles that can be computed in a
    cycle. elsewhere: the texts of operands whose elements such an expression reads at other places than that of the
    result, as in a transpose."""

    kind: ValueKind
    text: str
    low: int | None = None
    high: int | None = None
    known: Any = None
    has_known: bool = False
    simple: bool = True
    symbolic: bool = False
    adapted: bool = False
    wide: int = 0
    integers: bool = False
    lanes: float = inf
    elsewhere: tuple[str, ...] = ()

    def moves(self, name: str) -> bool:
        """Return whether the expression reads elements of the variable `name` at other places than that of the result,
        so that it cannot be written into that variable."""
        return any(re.search(rf"\b{re.escape(name)}\b", text) for text in self.elsewhere)

    @property
    def operand(self) -> str:
        """The C++ text as an operand: in brackets where it needs them."""
        return self.text if self.simple else f"({self.text})"

    @property
    def width(self) -> int:
        """The index in `WIDTHS` of the C++ type of an integer: 0 int, 1 std::int64_t, 2 rsn::Int."""
        return max(self.wide, width(self.low, self.high))


@dataclass(frozen=True)
class ItemsKind:
    """A tuple or a set. items: its values."""

    items: tuple[Any, ...]

    @property
    def has_known(self) -> bool:
        """Whether all items are known before the run."""
        return all(item.has_known for item in self.items)

    @property
    def known(self) -> tuple[Any, ...]:
        """The values of the items; only if `has_known`."""
        return tuple(item.known for item in self.items)


@dataclass(frozen=True)
class TextKind:
    """A text that is known before the run. known: the text. has_known: always True."""

    known: str
    has_known: bool = True


@dataclass(frozen=True)
class ShardKind:
    """The part of a tensor that a parameter of the task stands for. name: in C++. dtype: the element type. shape: of
    the part. whole: the shape of the whole tensor. channels: in how many memory channels the tensor lies. has_known,
    known: as for `Val`; no tensor is known before the run."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    channels: int = 1
    has_known: bool = False
    known: Any = None

    @property
    def kind(self) -> ValueKind:
        """The type of the part of the tensor, as a tile."""
        return of_element(self.dtype, self.shape)


Value = Val | ItemsKind | TextKind | ShardKind


def width(low: int | None, high: int | None) -> int:
    """Return the index in `WIDTHS` of the narrowest C++ integer type for values from `low` to `high`: 0 int, 1
    std::int64_t, 2 rsn::Int. None stands for no known limit."""
    if low is None or high is None:
        return 2
    for k, name in enumerate(("i32", "i64")):
        if LIMITS[name][0] <= low and high <= LIMITS[name][1]:
            return k
    return 2


WIDTHS = ("int", "std::int64_t", "rsn::Int")


def literal(value: Any, text: str = "") -> Value:
    """Return a value that is known before the run as a C++ constant, a tuple or a text. text: the C++ name of the
    constant; "" for its literal. Raises `TypeError` for a tile, and for anything but a number, a text, or a tuple or
    set of these."""
    if isinstance(value, tuple | list | set | frozenset):
        return ItemsKind(tuple(literal(v) for v in value))
    if isinstance(value, str):
        return TextKind(value)
    if isinstance(value, np.ndarray) and not value.shape:
        value = value[()]
    kind = kind_of(value)
    if kind is None or kind.shape:
        raise TypeError(f"{str(value)[:40]} is no constant of C++")
    made = text or written(value)
    if kind.is_int:
        number = int(value)
        return Val(kind, made, number, number, value, True, bool(text) or number >= 0, bool(text))
    return Val(kind, made, None, None, value, True, bool(text) or not made.startswith("-"), bool(text))


def written(value: Any) -> str:
    """Return a number of Python or NumPy as the text of a C++ literal."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        number = int(value)
        wide = width(number, number)
        if number == LIMITS["i64"][0]:
            return f"std::int64_t({number + 1} - 1)"
        if wide == 2:
            bits = number & (1 << 128) - 1
            return f"rsn::Int::of_words({bits >> 64}ull, {bits & (1 << 64) - 1}ull)"
        return f"std::int64_t({number})" if wide else str(number)
    single = isinstance(value, np.float32)
    real = float(value)
    kind = "float" if single else "double"
    if real != real:
        return f"std::numeric_limits<{kind}>::quiet_NaN()"
    if real in (float("inf"), -float("inf")):
        return f"{'-' if real < 0 else ''}std::numeric_limits<{kind}>::infinity()"
    text = repr(float(str(value))) if single else repr(real)
    if "." not in text and "e" not in text:
        text += ".0"
    return text + ("f" if single else "")


def joined(a: ValueKind, b: ValueKind) -> ValueKind | None:
    """Return the kind of a variable that holds values of the kinds a and b; None if no kind does. The caller must check
    that the conversion changes no result (`adapts`)."""
    if a == b:
        return a
    if a.is_int and b.is_int:
        return INT
    for one, other in ((a, b), (b, a)):
        if one.is_int and (other.shape or other.is_float):
            return other
        if one == FLOAT and (other.dtype in ("f32", "f64")):
            return other
    return None


def count(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape, 1 for a number."""
    return prod(shape)


def hull(a: Val, b: Val) -> tuple[int | None, int | None]:
    """Return the lowest and the highest value that either of two integers may have; None where no limit is known."""
    low = None if a.low is None or b.low is None else min(a.low, b.low)
    high = None if a.high is None or b.high is None else max(a.high, b.high)
    return low, high


def retold(value: Val, **changes: Any) -> Val:
    """Return a value with some fields changed and without its known value. changes: new values by the name of the
    field."""
    return replace(value, known=None, has_known=False, symbolic=False, **changes)


def known_bool(value: bool) -> Val:
    """Return a Boolean that is known before the run, as a C++ constant."""
    made = literal(bool(value))
    assert isinstance(made, Val)
    return made


def known_int(value: int) -> Val:
    """Return an integer that is known before the run, as a C++ constant."""
    made = literal(value)
    assert isinstance(made, Val)
    return made


def element_type(kind: ValueKind) -> str:
    """Return the C++ type of one element of a kind of tile, or of a number."""
    if kind.dtype in CPP:
        return CPP[kind.dtype]
    return {"bool": "bool", "int": "rsn::Int", "float": "double"}[kind.dtype]


def inside(value: Val, low: int, high: int) -> bool:
    """Return whether an integer, `value`, lies between `low` and `high`, both included, for certain."""
    return value.low is not None and value.high is not None and low <= value.low and value.high <= high
