"""Quantised ONNX models as models of float32: operators on integers become those on what the integers stand for, and
numbers that are quantised and read again stay what they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

SMALL = 1024
"""Constants of at most so many elements are read while a model is normalised: axes, shapes, scales."""
MOVES = frozenset(
    {
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Gather", "Expand"),
        *("Tile", "MaxPool"),
    }
)
"""Operators that make the same of quantised numbers as of others."""
OF_TWO = {"QLinearMatMul": "MatMul", "QLinearAdd": "Add", "QLinearMul": "Mul", "QLinearConv": "Conv", "QGemm": "Gemm"}
"""Operators whose inputs are two quantised tensors, then the result's scale and zero point, by what they compute."""
OF_ONE = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSoftmax": "Softmax",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearAveragePool": "AveragePool",
}
"""Operators whose inputs are a quantised tensor, then the result's scale and zero point, by what they compute."""
QUANTISED = {*OF_TWO, *OF_ONE, "QLinearConcat", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
LAYOUT = frozenset({"channels_last", "opset"})
"""Attributes of onnxruntime's operators that those of ONNX do not have."""


def prod(sizes: Iterable[int]) -> int:
    """Return the product of sizes, in elements; 1 for none."""
    made = 1
    for n in sizes:
        made *= n
    return made


def makers_of(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node that computes each value, by the value's name. Inputs and constants of the graph have none."""
    return {name: node for node in graph.node for name in node.output}


def in_floats(graph: onnx.GraphProto) -> bool:
    """Rewrite the operators of a quantised graph to operators on float32, in place. Returns whether this left out a
    rounding between operators, so that results may differ from those of the integers; False for a graph without
    quantised operators."""
    if not any(node.op_type in QUANTISED for node in graph.node):
        return False
    nodes = [made for node in graph.node for made in _spelled_out(node)]
    del graph.node[:]
    graph.node.extend(nodes)
    changed = _without_integers(graph)
    return _without_pairs(graph) or changed


# -- operators on quantised tensors


def _spelled_out(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """An operator on quantised tensors as one on floats, between those that convert."""
    inputs, name, kind = list(node.input), node.output[0], node.op_type
    floats: list[str] = []
    if kind in OF_TWO:
        per_row = {"QLinearConv": 0, "QLinearMatMul": -1, "QGemm": 1}.get(kind, 1)
        if kind == "QGemm" and any(a.name == "transB" and a.i for a in node.attribute):
            per_row = 0
        for at, axis in ((0, 1), (3, per_row)):
            yield _read(inputs[at : at + 3], f"{name}/{at}", axis)
            floats.append(f"{name}/{at}")
        bias = {"QLinearConv": 8, "QGemm": 6}.get(kind, len(inputs))
        if inputs[bias : bias + 1] not in ([], [""]):  # integers in units of both scales
            yield helper.make_node("Mul", [inputs[1], inputs[4]], [f"{name}/unit"])
            yield helper.make_node("Cast", [inputs[bias]], [f"{name}/wide"], to=onnx.TensorProto.FLOAT)
            yield helper.make_node("Mul", [f"{name}/wide", f"{name}/unit"], [f"{name}/bias"])
            floats.append(f"{name}/bias")
        unit = inputs[7:9] if kind == "QGemm" else inputs[6:8]
        made = helper.make_node(OF_TWO[kind], floats, [f"{name}/float"], node.name)
    elif kind in OF_ONE:
        yield _read(inputs[:3], f"{name}/0", 1)
        unit = inputs[3:5]
        made = helper.make_node(OF_ONE[kind], [f"{name}/0"], [f"{name}/float"], node.name)
    elif kind == "QLinearConcat":
        for at in range(2, len(inputs), 3):
            yield _read(inputs[at : at + 3], f"{name}/{at}", 1)
            floats.append(f"{name}/{at}")
        unit = inputs[:2]
        made = helper.make_node("Concat", floats, [f"{name}/float"], node.name)
    else:
        yield node
        return
    made.attribute.extend(a for a in node.attribute if a.name not in LAYOUT or (a.i and a.name == "channels_last"))
    yield made
    if not unit:  # QGemm may return floats
        yield helper.make_node("Identity", [f"{name}/float"], [name])
    else:
        yield helper.make_node("QuantizeLinear", [f"{name}/float", *filter(None, unit)], [name], f"{name}/units")


def _read(given: list[str], name: str, axis: int) -> onnx.NodeProto:
    while given and not given[-1]:
        given = given[:-1]
    return helper.make_node("DequantizeLinear", given, [name], name, axis=axis)


# -- products of integers


def _without_integers(graph: onnx.GraphProto) -> bool:
    """Compute what a product of integers, its conversion to floats and its scale mean: the product of the tensors that
    were quantised with a scale of their own (`DynamicQuantizeLinear`), or of such a tensor and weights."""
    makers = makers_of(graph)
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    kept, changed = [], False
    for node in graph.node:
        product, float_product = _product_behind(node, makers, users), None
        if product is not None:
            float_product = list(_float_product(node, product, makers))
        kept += float_product or [node]
        changed |= bool(float_product)
    del graph.node[:]
    graph.node.extend(kept)
    return changed


def _product_behind(
    node: onnx.NodeProto, makers: dict[str, onnx.NodeProto], users: dict[str, list[onnx.NodeProto]]
) -> onnx.NodeProto | None:
    """The product of integers to which a `Mul` gives its scale."""
    if node.op_type != "Mul":
        return None
    for name in node.input:
        cast = makers.get(name)
        if cast is None or cast.op_type != "Cast" or len(users[name]) != 1:
            continue
        product = makers.get(cast.input[0])
        if (
            product is not None
            and product.op_type in ("MatMulInteger", "ConvInteger")
            and len(users[cast.input[0]]) == 1
        ):
            return product
    return None


def _float_product(
    scaled: onnx.NodeProto, product: onnx.NodeProto, makers: dict[str, onnx.NodeProto]
) -> Iterator[onnx.NodeProto]:
    """The product of floats that a scaled product of integers stands for; nothing if its scale is of another form."""
    unit = next((makers[x] for x in scaled.input if x in makers and makers[x].op_type == "Mul"), None)
    scales = list(unit.input) if unit is not None else []
    operands, name = [], scaled.output[0]
    for at in (0, 1):
        quantised = makers.get(product.input[at])
        if quantised is not None and quantised.op_type == "DynamicQuantizeLinear":
            if quantised.output[1] not in scales:
                return
            scales.remove(quantised.output[1])
            operands.append(quantised.input[0])
        else:
            operands.append("")
    if len(scales) != operands.count("") or len(scales) > 1:
        return
    made = [x or f"{name}/floats" for x in operands]
    if scales:
        at = operands.index("")
        zero = list(product.input[2 + at : 3 + at])
        axis = -1 if product.op_type == "MatMulInteger" else 0
        yield _read([product.input[at], scales[0], *zero], f"{name}/floats", axis)
    kind = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}[product.op_type]
    result = helper.make_node(kind, made, list(scaled.output), product.name)
    result.attribute.extend(product.attribute)
    yield result


# -- numbers that are quantised and read again


@dataclass(frozen=True)
class Quantised:
    """What is known of a quantised tensor. floats: name of the floats that it stands for. units: names of the scale
    and, if there is one, the zero point that `QuantizeLinear` made it with. axis: the axis that has a scale for each
    row."""

    floats: str
    units: tuple[str, ...]
    axis: int


def _without_pairs(graph: onnx.GraphProto) -> bool:
    """Leave out quantisations whose numbers are only read again. Operators that move them may be between, if all
    numbers have one scale: these move the floats too."""
    constants, known = _constants(graph), dict[str, Quantised]()
    nodes, changed = [], False

    def same(one: str, other: str) -> bool:
        return one == other or (one in constants and np.array_equal(constants[one], constants.get(other, np.zeros(0))))

    for node in graph.node:
        of = known.get(node.input[0]) if node.input else None
        is_one = of is not None and of.units[0] in constants and constants[of.units[0]].size == 1
        if node.op_type == "QuantizeLinear":
            known[node.output[0]] = Quantised(node.input[0], tuple(node.input[1:]), _axis(node))
        elif of is not None and is_one and node.op_type in MOVES:
            outputs = [f"{name}/floats" if name else "" for name in node.output]
            moved = helper.make_node(node.op_type, [of.floats, *node.input[1:]], outputs, node.name)
            moved.attribute.extend(node.attribute)
            nodes.append(moved)
            known |= {name: replace(of, floats=new) for name, new in zip(node.output, outputs, strict=True)}
        elif (
            of is not None
            and node.op_type == "DequantizeLinear"
            and len(of.units) == len(node.input) - 1
            and all(map(same, of.units, node.input[1:]))
            and (is_one or of.axis == _axis(node))
        ):
            node = helper.make_node("Identity", [of.floats], list(node.output), node.name)
            changed = True
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return changed


def _constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Small constants by name."""
    tensors = {x.name: x for x in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return {name: numpy_helper.to_array(x) for name, x in tensors.items() if prod(x.dims) <= SMALL}


def _axis(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "axis"), 1)
