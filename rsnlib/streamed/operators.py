"""Operators of a PyTorch block as kernels see them: each has one result, matrices of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
from torch.fx import Node

from ...base.element_types import SCALARS
from ..view import View

Array = npt.NDArray[Any]
"""Elements as a run keeps them: float32, but for quantised weights, which are int8."""
Matrices = tuple[int, int, int]
"""Heads, rows, columns: a matrix for each head."""


@dataclass(frozen=True)
class FromHost:
    """A tensor that the host computes before each run. node: of the captured graph. view: where each element of that
    tensor, after broadcasting, lies in the matrices of the operator. masks: the tensor is a mask, which is added to
    scores, or whose Booleans say which scores count."""

    node: Node
    view: View
    masks: bool = False


@dataclass(frozen=True)
class Positions:
    """The rows of a cache that new rows replace, which the host computes before each run. node: of the captured graph,
    an integer for each new row, from 0 on. cache: name of the cache, for messages. capacity: number of rows of the
    cache."""

    node: Node
    cache: str
    capacity: int


Held = Array | FromHost | Positions | None
"""What a tensor off the chip holds before a run; None for one that tasks fill before they read it."""


ROW_SCALE = "row_scale"
"""The vector of a linear operator of integers with the static scale of its rows, once for each column, where layers
have different ones. Where they have the same one, it is the attribute `scale`, a number."""

BESIDE = frozenset(("row_scales", "integers"))
"""Results of a kernel that quantises rows, their first operand: scales or zero points, and integers with these."""


@dataclass(frozen=True, eq=False)
class StreamOperator:
    """One operator, and its result.

    name: of its kernel. op: a key of `plans.PLANS`, one of `BESIDE`, or "memory" for a tensor off the chip. operands:
    the operators whose results it reads. shape: of the result, (heads, rows, columns). attributes: parameters by name;
    constant vectors are arrays. A "linear" operator names its operands in `operand_names`. data: of a tensor off the
    chip; None for others. site: operator and module path of PyTorch, for messages. dtype: the element type of the
    result. existing: what exists of a result to which rows or columns were added (`covering.Existing`), None for all.
    row_tile: rows of a tile, if its rows are those of a sequence of any length (`lengths`), else 0.
    """

    name: str
    op: str
    operands: tuple[StreamOperator, ...]
    shape: Matrices
    attributes: Mapping[str, Any] = field(default_factory=dict)
    data: Array | FromHost | None = None
    site: str = ""
    dtype: str = "f32"
    existing: tuple[int, int, int, int] | None = None
    row_tile: int = 0

    @property
    def is_memory(self) -> bool:
        """Whether it is a tensor off the chip."""
        return self.op == "memory"

    @property
    def kernel(self) -> StreamOperator:
        """The operator whose kernel computes its result; itself unless it is one of `BESIDE`."""
        return self.operands[0] if self.op in BESIDE else self

    def operand(self, name: str) -> StreamOperator | None:
        """Return the operand of a product by its name; None if there is none. Names: "x"; "weight", "weight_scale" and
        "weight_zero" of quantised weights; "scale" and "zero" of quantised rows."""
        return dict(zip(self.attributes["operand_names"], self.operands, strict=True)).get(name)

    @property
    def multiplies_integers(self) -> bool:
        """Whether it is a product of integers: its sums are integers, which are multiplied by scales to make float32.
        Scales show this. A linear operator has the operands "scale" and "weight_scale", or a number as its attribute
        `scale`. "scores" and "attend" have scales of both operands, as operands or as attributes. An "array" has sums
        of integers as its result."""
        if self.op == "array":
            return bool(SCALARS[self.attributes["arrays"].types[0]].integer)
        if self.op == "linear":
            return self.operand("weight_scale") is not None and self.operands[0].dtype == "i8"
        return self.op in ("scores", "attend") and self.operands[0].dtype == "i8"

    @property
    def positions(self) -> Positions | None:
        """The rows that it replaces, of an operator that replaces rows of a cache; None for any other."""
        found: Positions | None = self.attributes.get("positions")
        return found


@dataclass(frozen=True)
class OperatorGraph:
    """The operators of a block. operators: all of them, operands before the operators that read them. results: the
    operators whose results the block stores, because the module returns them."""

    operators: tuple[StreamOperator, ...]
    results: tuple[StreamOperator, ...]

    @property
    def computed(self) -> Iterator[StreamOperator]:
        """The operators that compute, operands first: all but tensors off the chip."""
        return (operator for operator in self.operators if not operator.is_memory)

    @property
    def kernels(self) -> Iterator[StreamOperator]:
        """The operators that have a kernel, operands first."""
        return (operator for operator in self.computed if operator.kernel is operator)

    def beside(self, kernel: StreamOperator) -> tuple[StreamOperator, ...]:
        """Return the further results of a kernel, beside its own: operators of `BESIDE` that read it."""
        return tuple(x for x in self.computed if x.kernel is kernel and x is not kernel)


def vectors_of(x: StreamOperator) -> dict[str, Array]:
    """Return the constant vectors that a kernel keeps, by name, (elements,) each: bias, gamma and beta; the numbers
    that softmax puts into added columns ("hidden"); vectors of an elementwise expression; and the static scale of rows
    (`ROW_SCALE`)."""
    named = {name: x.attributes.get(name) for name in ("bias", "gamma", "beta", "hidden")}
    named |= x.attributes.get("vectors", {})
    return {name: vector for name, vector in named.items() if vector is not None}


def reachable(results: Sequence[StreamOperator]) -> tuple[StreamOperator, ...]:
    """Return `results` and all operators that they depend on, operands first, in a fixed order."""
    seen: dict[StreamOperator, None] = {}
    stack: list[tuple[StreamOperator, bool]] = [(operator, False) for operator in reversed(results)]
    while stack:
        operator, done = stack.pop()
        if operator in seen:
            continue
        if done:
            seen[operator] = None
            continue
        stack.append((operator, True))
        stack += [(operand, False) for operand in reversed(operator.operands)]
    return tuple(seen)


def rebuilt(graph: OperatorGraph, change: Callable[[StreamOperator], StreamOperator]) -> OperatorGraph:
    """Return the graph with every operator replaced by what `change` makes of it. `change` gets operators whose
    operands are new ones already. Operators that no result needs any longer are dropped."""
    made: dict[StreamOperator, StreamOperator] = {}
    for operator in graph.operators:
        operands = tuple(made[x] for x in operator.operands)
        made[operator] = change(operator if operands == operator.operands else replace(operator, operands=operands))
    results = tuple(made[x] for x in graph.results)
    return OperatorGraph(reachable(results), results)


def consumers(operators: Iterable[StreamOperator]) -> dict[StreamOperator, list[StreamOperator]]:
    """Return the operators that read each operator's result, once for each operand. Operators whose results nobody
    reads are missing."""
    found: dict[StreamOperator, list[StreamOperator]] = {}
    for operator in operators:
        for operand in operator.operands:
            found.setdefault(operand, []).append(operator)
    return found
