"""What the kernels of a generated machine take of a device: multipliers and LUTs, estimated; memories, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ...base.element_types import FLOATS, ElementType
from ...streams.dataflow.graph import KernelNode
from ...streams.datapath import Datapath
from ...streams.placing.devices import VC1902, StreamDevice
from .knobs import PRODUCTS, elements_beside
from .plans import SUMS

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
    "quantise": (1, 1, 0),  # zero point, product; beside them `QUANTISE_LUTS`, and divisions for each row
    "join": (0, 0, 0),
    "scale_columns": (0, 1, 0),
    "append": (0, 0, 0),
    "replace": (0, 0, 0),
}


QUANTISE_LUTS = 400
"""LUTs of three comparisons and a conversion to an integer for each element that is quantised in a cycle; these take
no DSPs (PG060). An estimate."""

SHARED_DSP = 0.5
"""DSPs of a product of rows in 8 bits, or 9 behind zero points, and weights in 4. The multiplier of a DSP48E2 has 27 x
18 bits (UG579), that of a DSP58 27 x 24 (AM004). Two weights that multiply the same number stand in its wide operand,
the second one 13 bits above the first (`TwoProducts` in kernels.h), so that each step gives both products exactly.
Summing them in the DSP would leave the sum of the lower ones a bounded field: with 22 bits between the weights, which
is the most that -8 above a negative weight leaves of 27 bits, it has room for 1028 products of 8 x 255."""
SPLIT_LUTS = 39
"""LUTs of such a product: an adder of 32 bits, and half of what takes the sign of the lower one of two products back,
13 bits. An estimate."""
READ_LUTS = 11
"""LUTs for each sum of integers that is added to in a cycle: with two of them a LUT chooses one of four bits, of 32,
for the pass that reads some of the sums in a cycle. An estimate."""
FABRIC_LUTS = {"i4": 64, "i8": 110, "i16": 120}
"""LUTs of a multiply-add of rows in 9 bits in LUTs, by the type of the weight: rows of an array multiplier are added in
pairs, two bits of a product in a LUT, and then the sum of 32 bits. An estimate; with a sum of 20 bits, one of 4 x 8
bits is said to take 40 to 45."""
FLOAT32 = ("f32", "f32")
Types = tuple[str, str]


def units_of(device: StreamDevice) -> FloatUnits:
    """Return the operations in float32 of a device, with their DSPs and LUTs."""
    return VERSAL if device is VC1902 else ULTRASCALE


def multiply_add_dsps(device: StreamDevice, types: Types = FLOAT32) -> float:
    """Return the number of DSPs of a multiply-add in each cycle. types: element types of the two operands. A weight in
    integers beside float32 is dequantised first."""
    if not multiplies_integers(types):
        units = units_of(device)
        return units.add.dsp + units.multiply.dsp
    return SHARED_DSP if types[1] == "i4" else 1


def multiplies_integers(types: Types) -> bool:
    """Whether a product is of integers, which have up to 8 bits, or 9 behind zero points (i16)."""
    return types[0] not in FLOATS


def area(node: KernelNode, lanes: int, device: StreamDevice, fabric: int = 0) -> dict[str, int]:
    """Return the numbers of LUTs and DSPs of a kernel, by the names "LUT" and "DSP"; estimates. lanes: multiply-adds of
    a product, or elements of another kernel, in a cycle. fabric: of these multiply-adds, those in LUTs."""
    units, luts = units_of(device), 0
    if node.op in PRODUCTS:
        types: Types = node.attributes["types"]  # type: ignore[assignment]
        steps = float(str(node.attributes.get("steps", 0)))
        rows, columns = (int(str(node.attributes.get(name, 2))) for name in ("tm", "tn"))
        beside = elements_beside(types, rows, lanes, steps)
        taken = Datapath({"matmul": max(1, lanes)}).product_word(ElementType(SUMS, (rows, columns)))
        return _area_of_product(types, beside, lanes, device, fabric, taken.columns % 2 == 0)
    if node.op == "pointwise":
        # Which of its operations are functions is not told apart: each counts as a product, and one as a function.
        operations = int(str(node.attributes.get("operations", 1)))
        adds, products, functions = 0, operations, 1
    else:
        adds, products, functions = PER_LANE[node.op]
    if node.op == "quantise":  # a scale and its reciprocal for each row: divisions, which take no DSPs either
        rows = min(lanes, int(str(node.attributes["tm"])))
        luts = lanes * QUANTISE_LUTS + 2 * rows * units.function.lut
    each = [(adds, units.add), (products, units.multiply), (functions, units.function)]
    return {
        "DSP": lanes * sum(count * unit.dsp for count, unit in each),
        "LUT": CONTROL_LUTS + luts + lanes * sum(count * unit.lut for count, unit in each),
    }


def _area_of_product(
    types: Types, elements: int, lanes: int, device: StreamDevice, fabric: int, in_pairs: bool
) -> dict[str, int]:
    """The numbers of LUTs and DSPs of a product. types: of its operands. elements: that it takes in a cycle beside.
    lanes: multiply-adds in a cycle. fabric: of these, those in LUTs. in_pairs: two columns of a word of sums may share
    a multiplication. Beside them are adders of biases and masks; with quantised weights, multipliers of their scales
    too."""
    units, dsps = units_of(device), multiply_add_dsps(device, types)
    dsps = dsps if in_pairs else max(1, dsps)
    is_quantised = types[1] not in FLOATS
    beside = [units.add, units.multiply] if is_quantised else [units.add]
    luts = units.add.lut + units.multiply.lut
    if multiplies_integers(types):
        luts = READ_LUTS + (SPLIT_LUTS if dsps < 1 else 0)
    return {
        "DSP": elements * sum(unit.dsp for unit in beside) + ceil((lanes - fabric) * dsps),
        "LUT": CONTROL_LUTS
        + elements * sum(unit.lut for unit in beside)
        + (lanes - fabric) * luts
        + (fabric * (READ_LUTS + FABRIC_LUTS[types[1]]) if fabric else 0),
    }
