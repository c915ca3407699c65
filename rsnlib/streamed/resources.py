"""What the kernels of a generated machine take of a device: multipliers and LUTs, estimated; memories, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

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
    """Operations in float32 of a family of devices. add, multiply: an addition and a multiplication. divide: a division
    or a square root. exp: as `kernels.h` computes it, with integers."""

    add: FloatOperation
    multiply: FloatOperation
    divide: FloatOperation
    exp: FloatOperation


# Multipliers of 27 x 18 bits (UG579; those of a DSP58 have 27 x 24) for products of 18 x 16, 9 x 35 (two), 11 x 11 and
# 27 x 18 bits. LUTs are an estimate: 216 of a table of 355 words of 27 bits (64 bits each, in rows of 512), 210 of two
# shifts of 35 and 28 bits, four places in each level, 8 sums of 27 to 35 bits.
EXP = FloatOperation(5, 680)
# PG060, "Resource Utilization": single precision with full use of DSP48E2: multiplication 3, addition 2; divisions and
# roots take LUTs only. LUTs are rounded from the same tables.
ULTRASCALE = FloatUnits(FloatOperation(2, 220), FloatOperation(3, 80), FloatOperation(0, 800), EXP)
# UG1399 (impl=primitivedsp): a DSP58 adds or multiplies in float32.
VERSAL = FloatUnits(FloatOperation(1, 60), FloatOperation(1, 60), FloatOperation(0, 800), EXP)

Operations = tuple[int, int, int, int]
"""How many additions, multiplications, divisions or roots, and exp."""
NONE: Operations = (0, 0, 0, 0)

FUNCTIONS: Mapping[str, Operations] = {
    "+": (1, 0, 0, 0),
    "-": (1, 0, 0, 0),
    "*": (0, 1, 0, 0),
    "/": (0, 0, 1, 0),
    "scale": (0, 1, 0, 0),
    "sqrt": (0, 0, 1, 0),
    "rint": (2, 0, 0, 0),
    "exp": (0, 0, 0, 1),
    "silu": (1, 0, 1, 1),
    "tanh": (13, 14, 1, 0),
    "gelu": (8, 11, 1, 1),
}
"""The operations of an elementwise operation, as `kernels.h` computes it. Those that are missing are comparisons and
signs, which take few LUTs."""

# The same for each element that another kernel takes in a cycle.
PER_LANE: Mapping[str, Operations] = {
    "softmax": (2, 0, 1, 1),  # difference from the maximum, sum; quotient; exp
    "layernorm": (4, 2, 1, 0),  # sum, difference from the mean, sum of squares, beta; square, gamma; quotient
    "rmsnorm": (1, 2, 1, 0),
    "rotary": (1, 2, 0, 0),
    "turn": NONE,
    "quantise": (3, 1, 0, 0),  # rint, zero point; product; beside them `QUANTISE_LUTS`, and divisions for each row
    "join": NONE,
    "epilogue": (1, 2, 0, 0),  # scales of a row and of a column, bias
    "scale_columns": (0, 1, 0, 0),
    "append": NONE,
    "replace": NONE,
    "select": NONE,
}


QUANTISE_LUTS = 400
"""LUTs of three comparisons and a conversion to an integer for each element that is quantised in a cycle; these take
no DSPs (PG060). An estimate."""

SHARED_DSP = 0.5
"""DSPs of a product of rows in 8 bits, or 9 behind zero points, and weights in 4. The multiplier of a DSP48E2 has 27 x
18 bits (UG579), that of a DSP58 27 x 24 (AM004). Two weights that multiply the same number stand in its wide operand,
the second one 22 bits above the first, which is the most that -8 above a negative weight leaves of 27 bits
(`TwoProducts` in kernels.h). The sum of the lower ones is exact in its field up to 1028 products of 8 x 255, so the
steps of a cycle are added up from DSP to DSP, and taken apart once."""
SPLIT_LUTS = 42
"""LUTs of each sum of such products in a cycle: an adder of 32 bits, and half of what takes the sign of the lower one
of two sums back, 20 bits. An estimate."""
PACK_LUTS = 3
"""LUTs of each such product: half of what puts two weights beside each other, where the upper one loses the sign of the
lower one, 5 bits. An estimate."""
READ_LUTS = 11
"""LUTs for each sum of integers that is added to in a cycle: with two of them a LUT chooses one of four bits, of 32,
for the pass that reads some of the sums in a cycle. An estimate."""
FABRIC_LUTS = {"i4": 32, "i8": 78, "i16": 88}
"""LUTs of a multiplication of rows in 9 bits in LUTs, by the type of the weight: rows of an array multiplier are added
in pairs, two bits of a product in a LUT. An estimate; with a sum of 20 bits, a multiply-add of 4 x 8 bits is said to
take 40 to 45."""
SUM_LUTS, STEP_LUTS = 32, 18
"""LUTs of a sum of 32 bits, and of one of products of several steps in a cycle, before it is added to that sum. The
products of 4 x 9 bits have 13; of 8 x 9 bits, 17."""
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
    """Whether the first operand of a product holds integers: of up to 8 bits, or of 9 (in an i16) after their zero
    point is subtracted."""
    return types[0] not in FLOATS


def lane_operations(node: KernelNode) -> Operations:
    """Return the operations in float32 that a kernel other than a product does for each element: how many additions,
    multiplications, divisions and exponentials."""
    if node.op == "epilogue" and not node.attributes["scaled"]:
        return (1, 0, 0, 0)
    if node.op != "pointwise":
        return PER_LANE[node.op]
    counted: Mapping[str, int] = node.attributes.get("operations", {})  # type: ignore[assignment]
    each = [(count, FUNCTIONS.get(name, NONE)) for name, count in counted.items()]
    adds, products, divisions, powers = (sum(count * of[k] for count, of in each) for k in range(4))
    return adds, products, divisions, powers


def area(node: KernelNode, lanes: int, device: StreamDevice, fabric: int = 0) -> dict[str, int]:
    """Return how many LUTs and DSPs a kernel needs, by the names "LUT" and "DSP"; estimates. lanes: multiply-adds of a
    product, or elements of another kernel, in a cycle. fabric: how many of these multiply-adds are in LUTs."""
    units, luts = units_of(device), 0
    if node.op in PRODUCTS:
        types: Types = node.attributes["types"]  # type: ignore[assignment]
        passes = float(str(node.attributes.get("steps", 0)))
        rows, columns = (int(str(node.attributes.get(name, 2))) for name in ("tm", "tn"))
        beside = 0 if passes == inf else elements_beside(types, rows, lanes, passes)
        taken = Datapath({"matmul": max(1, lanes)}).product_word(ElementType(SUMS, (rows, columns)))
        steps = max(1, lanes // (rows * columns))
        return _area_of_product(types, beside, lanes, device, fabric, taken.columns % 2 == 0, steps)
    if node.op == "quantise":  # a scale and its reciprocal for each row: divisions, which take no DSPs either
        rows = min(lanes, int(str(node.attributes["tm"])) * int(str(node.attributes.get("together", 1))))
        luts = lanes * QUANTISE_LUTS + 2 * rows * units.divide.lut
    kinds = units.add, units.multiply, units.divide, units.exp
    each = list(zip(lane_operations(node), kinds, strict=True))
    return {
        "DSP": lanes * sum(count * unit.dsp for count, unit in each),
        "LUT": CONTROL_LUTS + luts + lanes * sum(count * unit.lut for count, unit in each),
    }


def _area_of_product(
    types: Types, elements: int, lanes: int, device: StreamDevice, fabric: int, in_pairs: bool, steps: int
) -> dict[str, int]:
    """The numbers of LUTs and DSPs of a product. types: of its operands. elements: that it takes in a cycle beside.
    lanes: multiply-adds in a cycle. fabric: of these, those in LUTs. in_pairs: two columns of a word of sums may share
    a multiplication. steps: of each sum in a cycle. Beside them are adders of biases and masks; with quantised weights,
    multipliers of their scales too."""
    units, dsps = units_of(device), multiply_add_dsps(device, types)
    dsps = dsps if in_pairs else max(1, dsps)
    is_quantised = types[1] not in FLOATS
    beside = [units.add, units.multiply] if is_quantised else [units.add]
    luts: float = units.add.lut + units.multiply.lut
    if multiplies_integers(types):
        luts = (READ_LUTS + SPLIT_LUTS) / steps + PACK_LUTS if dsps < 1 else READ_LUTS / steps
    return {
        "DSP": elements * sum(unit.dsp for unit in beside) + ceil((lanes - fabric) * dsps),
        "LUT": CONTROL_LUTS
        + elements * sum(unit.lut for unit in beside)
        + ceil((lanes - fabric) * luts)
        + (ceil(fabric * fabric_luts(types, steps)) if fabric else 0),
    }


def fabric_luts(types: Types, steps: int) -> float:
    """Return how many LUTs a multiply-add of integers takes that is in LUTs. types: element types of its operands.
    steps: multiply-adds of each sum in a cycle."""
    return FABRIC_LUTS[types[1]] + STEP_LUTS * (steps - 1) / steps + (SUM_LUTS + READ_LUTS) / steps
