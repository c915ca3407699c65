"""Products with constant weights, in float32 or quantised, as operators of streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from ..capture import arguments, packet, shape_of, site
from ..quantised_ops import DEQUANTISE
from ..view import View
from .operators import StreamOperator
from .reading import GraphReader, OperatorRefused, Value, weight_memory
from .showing import ShownTensor


@dataclass(frozen=True)
class ConstantWeight:
    """The weight of a product. matrix: (K, N). dtype: element type off the chip. scale, zero: only for quantised
    weights: float32 and int8, (G, N), for G groups of K / G rows each; zero is None if all zero points are 0."""

    matrix: npt.NDArray[Any]
    dtype: str = "f32"
    scale: npt.NDArray[np.float32] | None = None
    zero: npt.NDArray[np.int8] | None = None

    @staticmethod
    def of(reader: GraphReader, weight: Node) -> ConstantWeight:
        """Return the constant weight of a product. weight: its node, (N, K), in float32 or dequantised by operators of
        the graph."""
        if packet(weight) is not DEQUANTISE:
            return ConstantWeight(reader.array(weight).T)
        a = arguments(weight)
        return ConstantWeight.quantised(reader, a["x"], a["scale"], a["zero"], a["bits"])

    @staticmethod
    def quantised(reader: GraphReader, weight: Node, scale: Node, zero: Node | None, bits: int) -> ConstantWeight:
        """Return a quantised weight. weight: node of the integers, (N, K). scale, zero: nodes, (N, G) for G groups of
        K, or one number; zero is None if all zero points are 0. bits: of the signed integers: those of up to 4 bits lie
        off the chip as i4, others as i8."""
        matrix = reader.constants.value(weight).numpy()

        def of_groups(node: Node, dtype: Any) -> npt.NDArray[Any]:
            value = reader.constants.value(node).numpy().astype(dtype)
            return value.T if value.ndim else np.full((1, matrix.shape[0]), value)

        zeros = None if zero is None else of_groups(zero, np.int8)
        zeros = None if zeros is None or not zeros.any() else zeros
        return ConstantWeight(matrix.T, "i4" if bits <= 4 else "i8", of_groups(scale, np.float32), zeros)

    def operands(self, name: str) -> dict[str, StreamOperator]:
        """Return the tensors off the chip that hold the weight, as operators, by the names of the product's operands:
        "weight" and, if it is quantised, "weight_scale" and "weight_zero". name: of the product."""
        found = {"weight": weight_memory(f"{name}_weight", self.matrix, self.dtype)}
        if self.scale is not None:
            found["weight_scale"] = weight_memory(f"{name}_weight_scale", self.scale)
        if self.zero is not None:
            found["weight_zero"] = weight_memory(f"{name}_weight_zero", self.zero, "i8")
        return found


def product(
    reader: GraphReader,
    node: Node,
    x: Node,
    weight: ConstantWeight,
    bias: Node | None,
    rows: Mapping[str, Any] | None = None,
) -> Value | None:
    """Return x @ weight + bias as an operator; None if x is constant, so that the host computes it.

    reader, node: as for a `reading.Rule`. x: the node of the left operand, (..., K). weight: (K, N). bias: a node,
    (N,); None for none. rows: if x is quantised, its scale and zero point, nodes by the names `scale` and `zero`; None
    for x in float32. Raises `OperatorRefused` for operands that are no matrices, or not stored as such, and as
    `rows_scaled_by` does.
    """
    if x in reader.constants:
        return None
    if weight.matrix.ndim != 2 or len(shape_of(x)) < 2:
        raise OperatorRefused(f"it multiplies {shape_of(x)} with {weight.matrix.shape}; kernels multiply matrices")
    operand = reader.matrix(x)
    name = reader.name(node, "linear")
    operands = {"x": operand, **weight.operands(name)}
    attributes: dict[str, Any] = {"bias": reader.vector(bias, weight.matrix.shape[1])}
    if rows is not None and is_number(reader, rows["scale"]):
        attributes["scale"] = float(reader.constants.value(rows["scale"]).to(torch.float32))
        if rows["zero"] is not None:
            attributes["zero"] = int(reader.constants.value(rows["zero"]))
    elif rows is not None:
        operands |= {name: reader.matrix(rows[name]) for name in rows_scaled_by(reader, rows)}
    if operand.shape[0] > 1:
        raise OperatorRefused("its operand has a matrix for each head; join them first")
    attributes["operand_names"] = tuple(operands)
    shape = 1, operand.shape[1], weight.matrix.shape[1]
    whole = StreamOperator(name, "linear", tuple(operands.values()), shape, attributes, site=site(node))
    return ShownTensor(whole, View.dense(shape_of(node)))


def is_number(reader: GraphReader, x: Node) -> bool:
    """Whether a node is a constant that has no axes."""
    return x in reader.constants and shape_of(x) == ()


def rows_scaled_by(reader: GraphReader, a: Mapping[str, Any]) -> dict[str, StreamOperator]:
    """Return the operators that compute the scale of each row of an operand and, if there are any, the zero points, by
    the names "scale" and "zero". a: the nodes of both, by these names; None for no zero points. Raises
    `OperatorRefused` for a node that no kernel computes for each row."""
    found = {}
    for name in ("scale", "zero"):
        if a[name] is None:
            continue
        value = reader.of[a[name]]
        if not isinstance(value, ShownTensor) or value.operator.op != "row_scales":
            raise OperatorRefused(f"its {name} is neither one constant nor one number for each row")
        found[name] = value.operator
    return found
