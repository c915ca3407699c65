"""Operators with all their parameters, types and sizes as nested arrays, as a TOML file holds them.

An operator is an array, such as `['Accum', 2048, [], false, 1, ['Retile', 0], 0]`: the name of its class, then its
fields in order. So is a function. A tensor stands for itself by its name. A size is a number, the name of a symbol, an
expression such as `['Mul', 2, 'B']`, or a `dimension` with all that is known of it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import sympy

from ....base.errors import ProgramError
from ....isa.overlays.tasks.codec import DEEPEST, TreeCodec, WrongTreeError
from .. import one_pass_attention as one_pass_attention  # whose functions are among those that files hold
from ..errors import StepError
from ..expansions import Expansion
from ..functions import Elementwise, Exp, Function, Pointwise, SiLU
from ..memory import Tensor
from ..operators import higher_order, off_chip, on_chip, routing, shape, sources
from ..operators.base import Operator
from ..shapes import BufferType, DataType, Dimension, SelectorType, StreamType, TileType, TupleType, dimension, symbol
from ..updates import Retile, Update

TABLES = (off_chip, on_chip, higher_order, routing, shape, sources)
"""The modules of all operators."""

POINTWISE = {one.label: one for one in (SiLU, Exp)}
"""Functions of each value of a tile, by their names."""

HIGHEST_POWER = 64
"""Limit of an exponent in a size that a file holds."""

EXPRESSIONS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        sympy.Add, sympy.Mul, sympy.Pow, sympy.Max, sympy.Min, sympy.ceiling, sympy.floor, sympy.Rational,
        sympy.Piecewise, sympy.functions.elementary.piecewise.ExprCondPair,
        sympy.StrictGreaterThan, sympy.GreaterThan, sympy.StrictLessThan, sympy.LessThan, sympy.Equality,
        sympy.Unequality, sympy.And, sympy.Or, sympy.Not, sympy.ITE,
    )
}  # fmt: skip
"""What expressions are made of, by the name that a file uses."""


def _classes(kind: type[Any]) -> Iterator[type[Any]]:
    """The classes of this package below a class."""
    for one in kind.__subclasses__():
        yield from _classes(one)
        if one.__module__.startswith(Operator.__module__.rpartition(".operators")[0]):
            yield one


def _holds(node: type[Any]) -> bool:
    """Whether a file can hold all fields of a class: none of them is a function of Python."""
    return not inspect.isabstract(node) and not any("Callable" in str(one.type) for one in fields(node))


TYPES = (TileType, SelectorType, BufferType, TupleType)
NODES = {
    node.__name__: node for kind in (Operator, Function, Update, Expansion) for node in _classes(kind) if _holds(node)
}
"""Operators and functions that a file can hold, by the name that it uses."""
FUNCTIONS = sorted(
    {name for name, node in NODES.items() if not issubclass(node, Operator)} - {"Elementwise", "Fold", "Retile"}
    | {"Add", "Sub", "Mul", "Div", "RetileRow", "RetileCol", *POINTWISE},
    key=str.lower,
)
"""Functions that a file can hold, by the names that programs use."""


class OperatorCodec(TreeCodec):
    """Writes the operators and types of one program as nested lists, and reads them. tensors: of the program, by
    name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__({**NODES, **{node.__name__: node for node in TYPES}})
        self.tensors = tensors
        self._tensor_names = {tensor: name for name, tensor in tensors.items()}

    def encoded(self, node: Any) -> Any:
        """Return a node as nested lists. Booleans, integers and float64 numbers of NumPy become those of Python. Raises
        `ProgramError` for what files cannot hold, such as other floats of NumPy."""
        if isinstance(node, np.bool_ | np.integer | np.float64):
            return node.item()
        return super().encoded(node)

    def written_leaf(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor_names[value]
        if isinstance(value, Dimension):
            return written_size(value)
        if isinstance(value, Pointwise) and POINTWISE.get(value.label) == value:
            return ["Pointwise", value.label]
        return None

    def read_leaf(self, given: Any, hint: Any) -> Any:
        if hint is Tensor:
            if not isinstance(given, str) or given not in self.tensors:
                raise WrongTreeError(f"there is no tensor {str(given)[:60]}")
            return self.tensors[given]
        if hint is Dimension:
            return read_size(given)
        if hint is Any:  # the numbers of a source, which checks them
            return given if isinstance(given, list) else None
        if isinstance(given, list) and given[:1] == ["Pointwise"]:
            if len(given) != 2 or not isinstance(given[1], str) or given[1] not in POINTWISE:
                raise WrongTreeError(f"{str(given)[:60]} is none of {', '.join(POINTWISE)}")
            return POINTWISE[given[1]]
        return None

    def check(self, made: Any) -> None:
        if isinstance(made, Elementwise) and made.symbol not in tuple("+-*/"):
            raise WrongTreeError(f"there is no operation {made.symbol!r}")
        if isinstance(made, Retile) and made.along not in (0, 1):
            raise WrongTreeError(f"Retile along {made.along}; along is 0 or 1")

    def operator(self, operator: Operator, where: str) -> Any:
        """Return an operator as nested lists. where: the line of the user's code that made it, as `file:line`. Raises
        `StepError` for an operator that files cannot hold, such as one that applies a Python function."""
        try:
            return self.encoded(operator)
        except ProgramError as error:
            raise StepError(
                operator.name,
                f"{error}: files hold numbers of Python, and no code, but the functions {', '.join(FUNCTIONS)}",
                where,
            ) from None

    def stream_type(self, stream: StreamType) -> list[Any]:
        """Return the type of a stream as two nested lists: its shape, and the type of its elements. Raises
        `ProgramError` for a size that files cannot hold."""
        return [self.encoded(stream.shape), self.encoded(stream.data)]

    def read_stream_type(self, what: str, given: list[Any]) -> StreamType:
        """Return the type of a stream, of what `stream_type` returned. what: the name of the value in messages. given:
        two lists, the shape and the type of the elements. Raises `ProgramError` if `given` is no such type."""
        return StreamType(self.read(what, given[0], tuple[Dimension, ...]), self.read(what, given[1], _DATA))

    def read(self, what: str, given: Any, hint: Any) -> Any:
        """Return what `encoded` was given, of its result. what: the name of the value in messages. given: the nested
        lists. hint: the expected Python type, as for `decoded`. Raises `ProgramError` if `given` is no value of that
        type."""
        try:
            return self.decoded(given, hint)
        except WrongTreeError as wrong:
            raise ProgramError(f"{what}: {wrong}") from None
        except StepError as error:  # of a type or an operator that cannot be
            raise ProgramError(f"{what}: {error.operator}: {error.text}") from None


_DATA = typing.get_type_hints(StreamType)["data"]
assert set(typing.get_args(_DATA)) == set(TYPES), DataType


def written_size(size: Dimension) -> Any:
    """Return a size as a number, the name of a symbol, or nested lists (module docstring). Raises `ProgramError` for an
    expression that files cannot hold."""
    if size == dimension(size.size):
        return _written(size.size)
    total = "" if size.total is None else _written(size.total)
    return ["dimension", _written(size.size), size.ragged, size.dynamic, total, _written(size.largest)]


def read_size(given: Any) -> Dimension:
    """Return the size that `written_size` was given, of its result. Raises `WrongTreeError` for anything of another
    form, `StepError` for a number or an expression that is no size."""
    if not isinstance(given, list) or given[:1] != ["dimension"]:
        return dimension(_read(given))
    if len(given) != 6 or type(given[2]) is not bool or type(given[3]) is not bool:
        raise WrongTreeError(f"{str(given)[:60]} is no dimension: size, ragged, dynamic, sum, largest")
    _, size, is_ragged, dynamic, total, largest = given
    if (total == "") is is_ragged:
        raise WrongTreeError(f"{str(given)[:60]}: a ragged dimension has a sum, another one has none")
    return Dimension(_read(size), is_ragged, dynamic, None if total == "" else _read(total), _read(largest))


def _written(expression: Any) -> Any:
    if expression.is_Symbol:
        return expression.name
    if expression.is_Integer:
        return int(expression)
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if expression.is_Rational:
        return ["Rational", int(expression.p), int(expression.q)]
    name = type(expression).__name__
    if name not in EXPRESSIONS:
        raise ProgramError(f"a file cannot hold the size {expression}")
    return [name, *map(_written, expression.args)]


def _read(given: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise WrongTreeError(f"a size is nested more than {DEEPEST} deep")
    if isinstance(given, str) and given:
        return symbol(given)
    if isinstance(given, bool):
        return sympy.true if given else sympy.false
    if isinstance(given, int) and abs(given) < 1 << 62:
        return sympy.Integer(given)
    if not isinstance(given, list) or not given or not isinstance(given[0], str) or given[0] not in EXPRESSIONS:
        raise WrongTreeError(f"{str(given)[:60]} is no size")
    parts = [_read(part, depth + 1) for part in given[1:]]
    if given[0] == "Pow" and not (len(parts) == 2 and parts[1].is_Integer and abs(parts[1]) <= HIGHEST_POWER):
        raise WrongTreeError(f"{str(given)[:60]}: an exponent is at most {HIGHEST_POWER}")
    try:
        return EXPRESSIONS[given[0]](*parts)
    except (TypeError, ValueError, ZeroDivisionError, AttributeError):
        raise WrongTreeError(f"{str(given)[:60]} is no size") from None
