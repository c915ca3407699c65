"""Traffic off the chip, memory on chip, operations and their ratio, as expressions over a program's symbols (STeP v2,
section 4.2).

The values of the symbols are given (how many rows each expert gets), or taken from a run. Where an operator's work is
no sum over one ragged dimension, it is a symbol of its own, which a run measures. If other operators may spill, the
traffic is a lower bound, and the operational intensity an upper one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy

from .checks import flops_symbol
from .errors import StepError
from .graph import OperatorNode, Program
from .operators.base import FIGURES, PAPER, Accounting, Rules
from .run import Run
from .shapes import Expression, largest_of, replaced, sum_of, symbol


@dataclass(frozen=True)
class NodeMetrics:
    """Metrics of one operator over the whole run. traffic: bytes between the chip and off-chip memory. memory: bytes on
    chip, the most that the operator holds at one time. flops: operations; a multiply-add of a product counts as two."""

    traffic: Expression
    memory: Expression
    flops: Expression


@dataclass(frozen=True)
class Metrics:
    """The metrics of a program (STeP v2, section 4.2), as expressions over the symbols of its sizes. nodes: those of
    each operator."""

    program: Program
    nodes: Mapping[OperatorNode, NodeMetrics]

    @cached_property
    def traffic(self) -> Expression:
        """Bytes between the chip and off-chip memory, of all operators in the whole run."""
        return sympy.Add(*(one.traffic for one in self.nodes.values()))

    @cached_property
    def memory(self) -> Expression:
        """Bytes on chip, of all operators: the sum of the most that each one holds."""
        return sympy.Add(*(one.memory for one in self.nodes.values()))

    @cached_property
    def flops(self) -> Expression:
        """Operations of all operators in the whole run; a multiply-add of a product counts as two."""
        return sympy.Add(*(one.flops for one in self.nodes.values()))

    @property
    def intensity(self) -> Expression:
        """Operations for each byte of off-chip traffic (STeP v2, section 4.2); sympy's complex infinity if there is no
        traffic."""
        return self.flops / self.traffic

    def of(self, name: str) -> NodeMetrics:
        """Return the metrics of one operator. name: of the node, such as `Map1`. Raises `StepError` if no operator has
        it."""
        found = {node.name: metrics for node, metrics in self.nodes.items()}
        if name not in found:
            raise StepError("metrics", f"no operator is called {name}; they are {', '.join(found) or 'none'}")
        return found[name]

    def value(self, expression: Expression, values: Mapping[Any, Any] | Run) -> Expression:
        """Return an expression with values in place of symbols; other symbols stay. values: by name or symbol, a
        number, or the list of the sizes of a ragged dimension in the whole stream; or a run, for all that it measured.
        Raises `StepError` if a value depends on its own symbol."""
        given = values.values if isinstance(values, Run) else substitution(values)
        return replaced(sympy.sympify(expression), {**self.program.symbols.defined, **given})


def substitution(values: Mapping[Any, Any]) -> dict[sympy.Symbol, Any]:
    """Return the value of each symbol. values: a number, or a list, by the symbol or its name. A list holds the sizes
    of a ragged dimension in the whole stream; it gives their sum and the largest one.
    """
    given: dict[sympy.Symbol, Any] = {}
    for name, value in values.items():
        one = symbol(name) if isinstance(name, str) else name
        if isinstance(value, Sequence):
            given[sum_of(str(one))], given[largest_of(str(one))] = sum(value), max(value, default=0)
        else:
            given[one] = value
    return given


def metrics(
    program: Program, accounting: Accounting = "paper", on_chip_dtype: str | None = None, on_demand: bool = False
) -> Metrics:
    """Return the metrics of a program (STeP v2, section 4.2).

    accounting: "paper" for the equations of the text; "figures" for what the published figures are made with: operators
    off the chip hold one tile, not two, products hold nothing, and tiles on chip are f32. on_chip_dtype: the element
    type of tiles on chip; None for the one of the accounting. on_demand: whether an operator that gets no element takes
    no memory. Raises `StepError` as `Rules` and `of_node`."""
    base = PAPER if accounting == "paper" else FIGURES
    rules = Rules(accounting, on_chip_dtype or base.on_chip_dtype)
    return Metrics(program, {node: of_node(node, rules, on_demand) for node in program.nodes})


def of_node(node: OperatorNode, rules: Rules = PAPER, on_demand: bool = False) -> NodeMetrics:
    """Return the metrics of one operator, over the whole run. rules: how memory on chip is counted. on_demand: whether
    an operator whose first input has no element takes no memory. Raises `StepError`, at the user's line, if a user's
    function that counts operations fails."""
    inputs, outputs = node.input_types, node.output_types
    try:
        flops = node.operator.flops(inputs, outputs)
    except Exception as error:  # a function of the user's may count them
        raise StepError(node.operator.name, f"{type(error).__name__}: {error}", node.where) from error
    memory = sympy.sympify(node.operator.memory(inputs, outputs, rules))
    if on_demand and inputs and memory != 0:
        # A Piecewise of a sum of others takes sympy minutes, and to ask whether a sum is at least 1 seconds.
        count = sympy.sympify(inputs[0].count())
        memory *= sympy.Min(1, count, evaluate=count.is_number)
    return NodeMetrics(
        sympy.sympify(node.operator.traffic(inputs, outputs)),
        memory,
        sympy.sympify(flops_symbol(node) if flops is None else flops),
    )
