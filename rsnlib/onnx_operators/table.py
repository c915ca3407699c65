"""The table of ONNX operators. An operator is a function on tensors, and its signature is the row of the table:

- parameters by position are the inputs, in ONNX's order; their annotations say how an input is read,
- parameters by name are the attributes, with ONNX's defaults,
- `wanted`, if there is one, is how many outputs the node names.

An input or attribute of a node that the signature lacks is refused. So nothing is dropped in silence, and the page of
supported operators (docs/onnx.md) is made from the same table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin

import torch

from ...base.errors import UnsupportedError

MICROSOFT = "com.microsoft"
"""The domain of the operators that onnxruntime adds."""


class InputReading(Enum):
    """How an input is read. Inputs are tensors, unless they are known when the model is captured: constants, and what
    follows from constants and shapes."""

    TENSOR = "a tensor"
    NUMBER = "a tensor, or a known number"
    INTS = "known integers"
    FLOATS = "known numbers"
    KNOWN = "a known tensor"


Tensor = torch.Tensor
Number = Annotated[Any, InputReading.NUMBER]
"""A tensor, or a Python number: a constant of one element, with no more axes than the result has without it."""
Ints = Annotated[list[int], InputReading.INTS]
Floats = Annotated[list[float], InputReading.FLOATS]
Known = Annotated[torch.Tensor, InputReading.KNOWN]


@dataclass(frozen=True)
class Input:
    """An input of an operator.

    name: as the page shows it. read: how its value is read. is_optional: a node may leave it out. is_variadic: there
    may be any number of it.
    """

    name: str
    read: InputReading
    is_optional: bool
    is_variadic: bool


@dataclass(frozen=True)
class OnnxOperator:
    """A row of the table.

    name, domain: of the ONNX operator; the domain "" is ONNX's own. compute: takes inputs by position and attributes by
    name; returns a tensor, or a tuple or list with one item for each output.
    """

    name: str
    domain: str
    compute: Callable[..., Any]

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, in ONNX's order, as the function's parameters by position declare them."""
        return tuple(
            Input(
                x.name.rstrip("_"),
                _read(x.annotation),
                x.default is not inspect.Parameter.empty,
                x.kind is inspect.Parameter.VAR_POSITIONAL,
            )
            for x in self._parameters
            if x.kind is not inspect.Parameter.KEYWORD_ONLY
        )

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name, with their defaults; `REQUIRED` if ONNX has none. `wanted` is not among them."""
        return {
            x.name: REQUIRED if x.default is inspect.Parameter.empty else x.default
            for x in self._parameters
            if x.kind is inspect.Parameter.KEYWORD_ONLY and x.name != "wanted"
        }

    @cached_property
    def takes_wanted(self) -> bool:
        """Whether the function has a parameter `wanted`: the number of outputs that the node names."""
        return any(x.name == "wanted" for x in self._parameters)

    @cached_property
    def summary(self) -> str:
        """The first paragraph of the function's docstring, in one line: what is particular to it; "" without a
        docstring."""
        return inspect.cleandoc(self.compute.__doc__ or "").partition("\n\n")[0].replace("\n", " ")

    @cached_property
    def _parameters(self) -> Sequence[inspect.Parameter]:
        return tuple(inspect.signature(self.compute, eval_str=True).parameters.values())

    def reads(self, count: int) -> Iterator[Input]:
        """Yield, for each of the `count` values that a node names, the input that it is; a variadic one takes all that
        are left. Raises `UnsupportedError` for a value beyond the last input."""
        for i in range(count):
            last = self.inputs[-1] if self.inputs else None
            if i >= len(self.inputs) and (last is None or not last.is_variadic):
                raise UnsupportedError(f"its input {i + 1} is not supported")
            yield self.inputs[min(i, len(self.inputs) - 1)]

    def check_attributes(self, given: dict[str, Any]) -> None:
        """Check the attributes of a node, `given` by name. Raises `UnsupportedError` for one that the function does not
        take, and for one that it needs and that is not given."""
        for name in given:
            if name not in self.attributes:
                raise UnsupportedError(f"its attribute {name} is not supported")
        for name, default in self.attributes.items():
            if default is REQUIRED and name not in given:
                raise UnsupportedError(f"it needs an attribute {name}")


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()
"""Stands for the default of an attribute that a node must have."""

TABLE: dict[tuple[str, str], OnnxOperator] = {}
"""All operators, by domain ("" for ONNX's own) and name."""


def operator(*names: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a function to the table, under one name or several, and returns it as it is.
    domain: of the names; "" is ONNX's own.

    The function raises `UnsupportedError` for what it does not support (`need`). Operands that PyTorch refuses raise
    PyTorch's errors, which become a `TensorError` with the node's name when the node runs (`OnnxModule.forward`).
    """

    def add(compute: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert (domain, name) not in TABLE
            TABLE[domain, name] = OnnxOperator(name, domain, compute)
        return compute

    return add


def _read(annotation: Any) -> InputReading:
    if get_origin(annotation) is Annotated:
        return next(x for x in get_args(annotation) if isinstance(x, InputReading))
    for part in get_args(annotation):
        if get_origin(part) is Annotated:
            return _read(part)
    return InputReading.TENSOR


def need(condition: bool, what: str) -> None:
    """Raise `UnsupportedError` with the message `what` unless a condition of an operator holds. what: the thing that is
    not supported, or what is needed instead."""
    if not condition:
        raise UnsupportedError(what)


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from 0. axis: may be negative, then it counts from the end. rank: number of axes of the
    tensor. Raises `UnsupportedError` if the axis lies outside; a tensor without axes has the axis 0."""
    need(-rank <= axis < max(rank, 1), f"axis {axis} of a tensor with {rank} axes")
    return axis % max(rank, 1)
