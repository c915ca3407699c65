"""Which products of a quantised model are of integers, which of float32, and why: for `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
from torch.fx import Node

from ..scheduler.graph import TOP
from .capture import arguments, packet
from .convolutions import CONVOLUTIONS
from .normal_form.operators import OPERATORS, OperatorKind
from .quantised_ops import DEQUANTISE, INTEGER_PRODUCTS, in_groups, types_of

aten = torch.ops.aten
SHOWN = 3
"""How many modules a line names."""
WEIGHTS = {aten.linear: "weight", aten.matmul: "other", aten.bmm: "mat2"}
"""Products, each with the argument that may be a weight."""
MOVING = (OperatorKind.VIEW, OperatorKind.COPY, OperatorKind.JOIN)


@dataclass(frozen=True)
class TypedProduct:
    """A product. path: of its module. where: "host" or "machine". types: of its operands, as text. why: why they are
    not integers, "" if they are."""

    path: str
    where: str
    types: str
    why: str = ""


def lines(placed: Iterable[tuple[str, str, Node]]) -> list[str]:
    """Return a table of the products of a quantised model as lines of text; none for a model that is not quantised.
    placed: for each operator the path of its module, where it runs, and the operator."""
    found = [x for each in placed for x in _typed(*each)]
    if all(x.why == _NOT_QUANTISED or x.why == _ATTENTION for x in found):
        return []
    table = [("products of", "runs on", "count", "modules", "why not integers")]
    for (types, where, why), group in groupby(sorted(found, key=_KIND), key=_KIND):
        table.append((types, where, *counted(x.path for x in group), why))
    return aligned(table)


def counted(paths: Iterable[str]) -> tuple[str, str]:
    """Return the number of products as text, and the names of their modules as text, of which only the first few are
    named. paths: the module path of each product, in order."""
    all_of_them = [path or TOP for path in paths]
    named = list(dict.fromkeys(all_of_them))
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return str(len(all_of_them)), ", ".join(named[:SHOWN]) + more


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


_KIND = attrgetter("types", "where", "why")
_NOT_QUANTISED = "its operands are not quantised"
_ATTENTION = "attention is not quantised"


def _typed(path: str, where: str, node: Node) -> Iterator[TypedProduct]:
    """An operator, if it is a product."""
    op = packet(node)
    if op in INTEGER_PRODUCTS:
        yield TypedProduct(path, where, types_of(node))
    elif op is aten.scaled_dot_product_attention:
        yield TypedProduct(path, where, "float32 x float32", _ATTENTION)
    elif op in WEIGHTS or op in CONVOLUTIONS:
        weight = dequantised(arguments(node)[WEIGHTS.get(op, "weight")])
        if weight is None:
            yield TypedProduct(path, where, "float32 x float32", _NOT_QUANTISED)
        else:
            a = arguments(weight)
            types = f"float32 x int{a['bits']}{in_groups(a['x'], a['scale'])}, dequantised"
            yield TypedProduct(path, where, types, "only its weight is quantised")


def dequantised(weight: Any) -> Node | None:
    """Return the operator that dequantises a weight, which may have been moved, cut and joined; None without one."""
    stack = [weight]
    while stack:
        x = stack.pop()
        if packet(x) is DEQUANTISE:
            return x
        if OPERATORS.get(packet(x)) in MOVING:
            stack += x.all_input_nodes
    return None
