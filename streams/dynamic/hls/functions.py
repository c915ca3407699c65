"""The C++ of what higher-order operators apply: functions of `step_functions.h`, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ....base.element_types import FLOATS
from ..expansions import Addresses, DefinedExpansion, RetileStreamify, WhereTrue
from ..functions import (
    Affine,
    AppendRow,
    Base,
    Defined,
    Elementwise,
    Exp,
    Matmul,
    Pointwise,
    RowSum,
    SetOffset,
    SiLU,
)
from ..one_pass_attention import CacheTiles, OnlineSoftmax, ScaledMask, SoftmaxQuotient, TuplePart
from ..shapes import DataType, TileType, TupleType
from ..tokens import Element, Tile
from ..updates import AllRead, DefinedUpdate, Fold, Last, MatmulAdd, Retile, Start
from .elements import Unbounded

ELEMENTWISE = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div"}


def cpp_function(function: Base, operands: Sequence[DataType]) -> str:
    """Return the C++ expression of a function, an update or an expansion. operands: the types of its operands. Raises
    `Unbounded`, with the reason, for one that has no C++."""
    write = FUNCTIONS.get(type(function))
    if write is None:
        raise Unbounded(f"{function.name} has no C++")
    return write(function, operands)


def _named(function: Base, operands: Sequence[DataType]) -> str:
    return f"rsn::step::{type(function).__name__}()"


def _matmul(function: Matmul, operands: Sequence[DataType]) -> str:
    turned = ", ".join(str(one).lower() for one in (function.transpose_left, function.transpose_right))
    return f"rsn::step::Matmul<{turned}>()"


def _elementwise(function: Elementwise, operands: Sequence[DataType]) -> str:
    left, right = (one.dtype for one in operands if isinstance(one, TileType))
    whole = left not in FLOATS
    if "boolean" in (left, right) or (whole and (right in FLOATS or function.symbol == "/")):
        raise Unbounded(f"{function.symbol} of tiles of {left} and {right}, whose result is none of {left}, has no C++")
    return f"rsn::step::{ELEMENTWISE[function.symbol]}()"


def _pointwise(function: Pointwise, operands: Sequence[DataType]) -> str:
    name = {SiLU: "SiLU", Exp: "Exp"}.get(function)
    if name is None or not _floats(operands):
        raise Unbounded(f"{function.name} of {' and '.join(_dtypes(operands))} has no C++")
    return f"rsn::step::{name}()"


def _dtypes(operands: Sequence[DataType]) -> list[str]:
    return [one.dtype if isinstance(one, TileType) else str(one) for one in operands]


def _floats(operands: Sequence[DataType]) -> bool:
    return all(dtype in FLOATS for dtype in _dtypes(operands))


def _sum(function: RowSum, operands: Sequence[DataType]) -> str:
    if "boolean" in _dtypes(operands):
        raise Unbounded("a sum of flags has no C++")
    return "rsn::step::RowSum()"


def _fold(update: Fold, operands: Sequence[DataType]) -> str:
    inner = cpp_function(update.function, [*operands, *operands])
    any_size = str(isinstance(update.start(operands[0]), Start)).lower()
    return f"rsn::step::Fold<{inner.removesuffix('()')}>{{{number(update.initial)}, {any_size}}}"


def _matmul_add(update: MatmulAdd, operands: Sequence[DataType]) -> str:
    parts = [part for one in operands for part in (one.parts if isinstance(one, TupleType) else (one,))]
    product = cpp_function(update.product, parts).removesuffix("()")
    (pair,) = operands
    any_size = str(isinstance(update.start(pair), Start)).lower()
    return f"rsn::step::MatmulAdd<{product}>{{{any_size}}}"


def _own(function: Defined | DefinedUpdate | DefinedExpansion, operands: Sequence[DataType]) -> str:
    if not function.cpp:
        raise Unbounded(f"{function.name} is a function of Python; its parameter cpp takes its C++")
    return function.cpp


def _part(function: TuplePart, operands: Sequence[DataType]) -> str:
    names = [f"part{k}" for k in range(len(operands))]
    kept = names[function.index]
    keep = f"rsn::step::copy({kept}, out)" if isinstance(operands[function.index], TileType) else f"out = {kept}"
    return f"[]({', '.join(f'const auto &{name}' for name in names)}, auto &out) {{ {keep}; }}"


FUNCTIONS: Mapping[type[Base], Callable[[Any, Sequence[DataType]], str]] = {
    Matmul: _matmul,
    Elementwise: _elementwise,
    Pointwise: _pointwise,
    RowSum: _sum,
    Affine: lambda f, _: f"rsn::step::Affine{{{f.a}, {f.b}}}",
    SetOffset: _named,
    AppendRow: _named,
    Defined: _own,
    Fold: _fold,
    MatmulAdd: _matmul_add,
    Retile: lambda f, _: f"rsn::step::Retile<{'true' if f.along else 'false'}>()",
    Last: _named,
    AllRead: _named,
    DefinedUpdate: _own,
    RetileStreamify: lambda f, _: (
        f"rsn::step::RetileStreamify<{'true' if f.along else 'false'}, "
        f"{'true' if f.drop_padding else 'false'}>{{{f.size}}}"
    ),
    Addresses: lambda f, _: f"rsn::step::Addresses{{{f.group}, {f.base}}}",
    WhereTrue: lambda f, _: f"rsn::step::WhereTrue<{'true' if f.negate else 'false'}>()",
    DefinedExpansion: _own,
    TuplePart: _part,
    CacheTiles: lambda f, _: f"rsn::step::CacheTiles{{{f.rows}, {f.tiles}}}",
    ScaledMask: lambda f, _: f"rsn::step::ScaledMask{{{number(f.factor)}}}",
    OnlineSoftmax: _named,
    SoftmaxQuotient: _named,
}
"""The C++ of each function, update and expansion."""


def number(value: float) -> str:
    """Return a number as a C++ expression of type double, infinities and NaN too."""
    if np.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if np.isinf(value):
        return f"{'-' if value < 0 else ''}std::numeric_limits<double>::infinity()"
    return repr(float(value)) if not float(value).is_integer() or abs(value) >= 1 << 53 else f"{float(value):.1f}"


def cpp_start(element: Element, data: DataType, name: str = "state") -> list[str]:
    """Return the C++ statements, one a line, that set a variable to an element known now, such as the state of a fold
    before the first element of a group. element: its value. data: its type. name: of the variable. Raises `Unbounded`
    for a tile of several different values, and for an element that is no tile."""
    if isinstance(element, tuple):
        assert isinstance(data, TupleType)
        parts = enumerate(zip(element, data.parts, strict=True))
        return [line for k, (one, of) in parts for line in cpp_start(one, of, f"rsn::step::get<{k}>({name})")]
    if not isinstance(element, Tile) or not isinstance(data, TileType):
        raise Unbounded("an update that begins with no tile has no C++")
    if element.data is None or 0 in element.shape:
        return [f"{name}.resize({element.rows}, {element.columns});"]
    if len({value.tobytes() for value in element.data.reshape(-1)}) > 1:
        raise Unbounded("an update that begins with a tile of several values has no C++")
    value = element.data.reshape(-1)[0]
    if data.dtype == "boolean":
        text = "true" if value else "false"
    elif data.dtype in FLOATS:
        text = f"{'double' if data.dtype == 'f64' else 'float'}({number(float(value))})"
    else:
        text = f"std::int64_t({int(value)})"
    return [
        f"rsn::step::set({name}, {element.rows}, {element.columns}, [](std::size_t, std::size_t) {{ return {text}; }});"
    ]
