"""What the kernels of a generated machine take of a device: multipliers and LUTs, estimated; memories, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...streams.dataflow.graph import KernelNode
from ...streams.placing.devices import VC1902, StreamDevice
from .knobs import ADDERS, PRODUCTS

CONTROL_LUTS = 400
"""Loop counters and stream handshakes of a task. An estimate: no HLS tool has compiled these tasks."""


@dataclass(frozen=True)
class FloatOperation:
    """An operation in float32. dsp, lut: numbers of DSPs and LUTs of one that takes operands in every cycle."""

    dsp: int
    lut: int


@dataclass(frozen=True)
class FloatUnits:
    """Operations in float32 of a family of devices. add, multiply: an addition and a multiplication. function: one such
    as exp."""

    add: FloatOperation
    multiply: FloatOperation
    function: FloatOperation
    """exp, tanh, erf, reciprocal or square root."""


# PG060, "Resource Utilization": single precision with full use of DSP48E2: multiplication 3, addition 2; exp 7.
# LUTs are rounded from the same tables.
ULTRASCALE = FloatUnits(FloatOperation(2, 220), FloatOperation(3, 80), FloatOperation(7, 800))
# UG1399 (impl=primitivedsp): a DSP58 adds or multiplies in float32. exp as in isa/versal/logic.py.
VERSAL = FloatUnits(FloatOperation(1, 60), FloatOperation(1, 60), FloatOperation(1, 500))

# Additions, multiplications and functions for each element that a kernel takes in a cycle.
PER_LANE: Mapping[str, tuple[int, int, int]] = {
    "softmax": (3, 1, 1),  # scale, maximum, exp, sum, product
    "layernorm": (3, 4, 1),  # sum, sum of squares, mean, product, gamma, beta
    "rmsnorm": (1, 3, 1),
    "rotary": (1, 2, 0),
    "turn": (0, 1, 0),
    "append": (0, 0, 0),
    "replace": (0, 0, 0),
}


def units_of(device: StreamDevice) -> FloatUnits:
    """Return the operations in float32 of a device, with their DSPs and LUTs."""
    return VERSAL if device is VC1902 else ULTRASCALE


def multiply_add_dsps(device: StreamDevice) -> int:
    """Return the number of DSPs of a multiply-add in float32, one in each cycle."""
    units = units_of(device)
    return units.add.dsp + units.multiply.dsp


def area(node: KernelNode, lanes: int, device: StreamDevice) -> dict[str, int]:
    """Return the numbers of LUTs and DSPs of a kernel, by the names "LUT" and "DSP"; estimates. lanes: multiply-adds of
    a product, or elements of another kernel, in a cycle."""
    units = units_of(device)
    if node.op in PRODUCTS:
        adds, products, functions = 1, 1, 0
    elif node.op == "pointwise":
        # Which of its operations are functions is not told apart: each counts as a product, and one as a function.
        operations = int(str(node.attributes.get("operations", 1)))
        adds, products, functions = 0, operations, 1
    else:
        adds, products, functions = PER_LANE[node.op]
    each = [(adds, units.add), (products, units.multiply), (functions, units.function)]
    beside = ADDERS if node.op in PRODUCTS else 0
    return {
        "DSP": beside * units.add.dsp + lanes * sum(count * unit.dsp for count, unit in each),
        "LUT": CONTROL_LUTS + beside * units.add.lut + lanes * sum(count * unit.lut for count, unit in each),
    }
