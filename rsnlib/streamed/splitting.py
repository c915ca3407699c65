"""Products with constant weights as several kernels: each has some of the columns, and a stream of weights.

A product of a single row takes a word of weights in each cycle, and a stream has a widest word; a kernel lies on one
die. Several kernels have several streams, and lie on several dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from .knobs import Knobs, fit
from .operators import OperatorGraph, StreamOperator, rebuilt


def with_split_products(graph: OperatorGraph, knobs: Knobs) -> OperatorGraph:
    """Return the graph in which each linear operator is divided into as many operators as its knob `kernels` says, each
    with an equal share of the columns, and an operator "join" that puts their columns side by side; the same graph
    where the knob is 1. The join has the name of the operator; the parts have that name with their number behind it.
    knobs: of the operators, by their names before the change."""

    def change(x: StreamOperator) -> StreamOperator:
        columns = x.shape[2]
        count = fit(columns, knobs.at(x.name).kernels)
        if x.op != "linear" or count == 1:
            return x
        return replace(x, op="join", operands=tuple(_parts(x, count)), attributes={})

    return rebuilt(graph, change)


def _parts(x: StreamOperator, count: int) -> Iterator[StreamOperator]:
    """The kernels of a linear operator."""
    heads, rows, columns = x.shape
    names = x.attributes["operand_names"]
    for k in range(count):
        own = slice(k * columns // count, (k + 1) * columns // count)
        operands = (
            _columns(operand, own, k) if name.startswith("weight") else operand
            for name, operand in zip(names, x.operands, strict=True)
        )
        attributes: dict[str, Any] = {**x.attributes}
        if attributes["bias"] is not None:
            attributes["bias"] = attributes["bias"][own]
        if "vectors" in attributes:
            attributes["vectors"] = {name: vector[own] for name, vector in attributes["vectors"].items()}
        existing = x.existing and (*x.existing[:3], _existing(x.existing[3], own))
        shape = heads, rows, columns // count
        yield replace(
            x, name=f"{x.name}_{k}", operands=tuple(operands), shape=shape, attributes=attributes, existing=existing
        )


def _columns(x: StreamOperator, own: slice, number: int) -> StreamOperator:
    """Some columns of a weight, or of its scales or zero points. number: of the kernel that reads them."""
    assert isinstance(x.data, np.ndarray)
    data = np.ascontiguousarray(x.data[..., own])
    existing = x.existing and (*x.existing[:3], _existing(x.existing[3], own))
    shape = *x.shape[:2], own.stop - own.start
    return replace(x, name=f"{x.name}_{number}", shape=shape, data=data, existing=existing)


def _existing(columns: int, own: slice) -> int:
    """How many of the columns of a kernel exist. columns: of all kernels together."""
    found: int = min(columns, own.stop) - own.start
    return max(1, found)
