"""ONNX files, brought into one form before they are read: without functions, of one opset, quantised numbers computed
in float32."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from ...base.errors import UnsupportedError
from .table import MICROSOFT, TABLE

OLDEST, OPSET = 7, 23
"""Files of older opsets are refused; those of older ones than the second are converted to it."""
SMALL = 1024
"""Constants of at most so many elements are shown to onnx's converter, which reads axes and shapes."""
QUANTISED = "the model is quantised: it is computed in float32, without rounding between its layers"
MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "MaxPool"})
"""Operators that make the same of quantised numbers as of others."""
INTERNAL = "rsn"
"""The domain of operators that take the place of several."""


def read(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a file, with its external tensors, and normalise it. Raises `UnsupportedError`."""
    if not Path(path).is_file():
        raise UnsupportedError(f"{path}: no such file")
    try:
        model = onnx.load(path)
        for node in model.graph.node:
            if not node.domain and ("", node.op_type) not in TABLE and (MICROSOFT, node.op_type) in TABLE:
                node.domain = MICROSOFT  # early versions of onnxruntime
        _fill(model.graph)
        used = {node.domain for node in model.graph.node} - {x.domain for x in model.opset_import} - {"ai.onnx"}
        model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in used)
        _check(model)
    except Exception as e:  # onnx reads with protobuf, whose error types are not public
        raise UnsupportedError(f"{path}: not an ONNX model: {str(e).splitlines()[0] if str(e) else e!r}") from None
    try:
        return normalised(model)
    except (UnsupportedError, ValueError, TypeError, KeyError, IndexError) as e:
        raise UnsupportedError(f"{path}: {_line(e)}") from None


def _fill(graph: onnx.GraphProto) -> None:
    """Write out tensors of which a file has some elements."""
    for sparse in graph.sparse_initializer:
        values, at = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        dense = np.zeros(list(sparse.dims), values.dtype)
        if at.ndim == 1:
            dense.reshape(-1)[at] = values
        else:
            dense[tuple(at.T)] = values
        graph.initializer.append(numpy_helper.from_array(dense, sparse.values.name))
    del graph.sparse_initializer[:]


def _check(model: onnx.ModelProto) -> None:
    """onnx's own check, but outputs need no types and no shapes."""
    checked: list[tuple[onnx.ValueInfoProto, str]] = []
    for x in model.graph.output:
        if x.type.WhichOneof("value") is None:
            x.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            x.type.tensor_type.shape.SetInParent()
            checked.append((x, "type"))
        elif x.type.HasField("tensor_type") and not x.type.tensor_type.HasField("shape"):
            x.type.tensor_type.shape.SetInParent()
            checked.append((x, "shape"))
    onnx.checker.check_model(model)
    for x, what in checked:
        if what == "type":
            x.ClearField("type")
        else:
            x.type.tensor_type.ClearField("shape")


def normalised(model: onnx.ModelProto) -> onnx.ModelProto:
    """A valid model, of opset `OPSET` or newer, without functions. Raises `UnsupportedError`."""
    opset = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
    if opset < OLDEST:
        raise UnsupportedError(
            f"opset {opset} is too old; opsets from {OLDEST} on are supported: convert or export again"
        )
    for node in model.graph.node:
        if opset < 13 and node.op_type == "Hardmax":  # which onnx takes for the later one
            raise UnsupportedError(f"Hardmax {node.name}: before opset 13 it is another function")
    try:
        if model.functions:
            model = inliner.inline_local_functions(model)
        if opset < OPSET:
            model = _converted(model)
    except Exception as e:  # those of onnx have no common type
        raise UnsupportedError(f"onnx cannot convert it from opset {opset} to {OPSET}: {_line(e)}") from e
    _of_one_tensor(model.graph)
    if _in_floats(model.graph):
        warnings.warn(QUANTISED, stacklevel=2)
    _without_unused(model.graph)
    return model


def _without_unused(graph: onnx.GraphProto) -> None:
    """Leave out nodes whose results nobody reads."""
    needed, kept = {x.name for x in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
            needed.update(name for a in node.attribute if a.HasField("g") for name in _outer(a.g))
    del graph.node[:]
    graph.node.extend(reversed(kept))


def _outer(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that a branch reads; some may be its own."""
    for node in graph.node:
        yield from node.input
        for a in node.attribute:
            if a.HasField("g"):
                yield from _outer(a.g)
    yield from (x.name for x in graph.output)


def _line(e: Exception) -> str:
    return str(e).strip().partition("\n")[0] or type(e).__name__


def _converted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Convert to `OPSET`. Large constants are set aside meanwhile: onnx would copy them several times, and cannot hold
    more than 2 GB."""
    graph, large = model.graph, {}
    given = {x.name for x in graph.input}
    kept = []
    for tensor in graph.initializer:
        if len(tensor.dims) and prod(tensor.dims) > SMALL:
            large[tensor.name] = tensor
            if tensor.name not in given:
                graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        else:
            kept.append(tensor)
    stripped = onnx.ModelProto()
    stripped.CopyFrom(_without_initializers(model))
    stripped.graph.initializer.extend(kept)
    made = version_converter.convert_version(stripped, OPSET)
    inputs = [x for x in made.graph.input if x.name not in large or x.name in given]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    made.graph.initializer.extend(large.values())
    return made


def prod(sizes: Iterable[int]) -> int:
    """The product of sizes."""
    made = 1
    for n in sizes:
        made *= n
    return made


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.initializer[:]
    return model


# -- several operators that mean one


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output}


def _of_one_tensor(graph: onnx.GraphProto) -> None:
    """`Where` that replaces the NaN of its own operand, as exporters guard a softmax, becomes one operator."""
    makers = _makers(graph)
    for node in graph.node:
        if node.op_type != "Where":
            continue
        of, one, other = node.input
        maker = makers.get(of)
        if maker is not None and maker.op_type == "Not":
            maker, one, other = makers.get(maker.input[0]), other, one
        if maker is not None and maker.op_type == "IsNaN" and maker.input[0] == other:
            node.op_type, node.domain = "ReplaceNaN", INTERNAL
            del node.input[:]
            node.input.extend([other, one])


# -- quantised models


def _in_floats(graph: onnx.GraphProto) -> bool:
    """Compute quantised layers in float32: products of integers become products of what these stand for, and numbers
    that are quantised and read again stay what they were. Returns whether there were any."""
    quantised = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "QLinearConv", "DequantizeLinear"}
    if not any(node.op_type in quantised for node in graph.node):
        return False
    nodes = [made for node in graph.node for made in _spelled_out(node)]
    del graph.node[:]
    graph.node.extend(nodes)
    changed = _without_dynamic(graph)
    return _without_pairs(graph) or changed


def _spelled_out(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """An operator on quantised numbers as one on floats, between those that convert."""
    inputs, name = list(node.input), node.output[0]
    axes = {"QLinearMatMul": (("a", 0), ("b", 3)), "QLinearConv": (("x", 0), ("w", 3))}.get(node.op_type)
    if axes is None:
        yield node
        return
    floats = []
    for label, at in axes:
        axis = 0 if label == "w" else -1 if label == "b" else 1
        yield helper.make_node(
            "DequantizeLinear", inputs[at : at + 3], [f"{name}/{label}"], f"{name}/{label}", axis=axis
        )
        floats.append(f"{name}/{label}")
    if node.op_type == "QLinearMatMul":
        yield helper.make_node("MatMul", floats, [f"{name}/float"], node.name)
    else:
        if len(inputs) > 8 and inputs[8]:  # integers in units of both scales
            yield helper.make_node("Mul", [inputs[1], inputs[4]], [f"{name}/unit"])
            yield helper.make_node("Cast", [inputs[8]], [f"{name}/wide"], to=onnx.TensorProto.FLOAT)
            yield helper.make_node("Mul", [f"{name}/wide", f"{name}/unit"], [f"{name}/bias"])
            floats.append(f"{name}/bias")
        made = helper.make_node("Conv", floats, [f"{name}/float"], node.name)
        made.attribute.extend(node.attribute)
        yield made
    yield helper.make_node("QuantizeLinear", [f"{name}/float", inputs[6], inputs[7]], [name], f"{name}/units")


def _without_dynamic(graph: onnx.GraphProto) -> bool:
    """Where a tensor is quantised for products of integers alone, with a scale of its own, multiply it itself: its
    scale becomes 1, its zero point 0."""
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            users.setdefault(name, []).append((node, i))
    returned, changed = {x.name for x in graph.output}, False
    nodes = []
    for node in graph.node:
        if node.op_type != "DynamicQuantizeLinear" or not _is_for_products(node, users, returned):
            nodes.append(node)
            continue
        changed = True
        units, scale, zero = node.output
        nodes.append(helper.make_node("Identity", list(node.input), [units]))
        for name, value in ((scale, 1.0), (zero, 0.0)):
            tensor = helper.make_tensor(name, onnx.TensorProto.FLOAT, [], [value])
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
    del graph.node[:]
    graph.node.extend(nodes)
    return changed


def _is_for_products(
    node: onnx.NodeProto, users: dict[str, list[tuple[onnx.NodeProto, int]]], returned: set[str]
) -> bool:
    units, scale, zero = node.output
    if {units, scale, zero} & returned:
        return False
    products = {"MatMulInteger", "ConvInteger"}
    return (
        all(user.op_type in products and i == 0 for user, i in users.get(units, []))
        and all(user.op_type in products and i == 2 for user, i in users.get(zero, []))
        and all(user.op_type == "Mul" for user, _ in users.get(scale, []))
    )


def _without_pairs(graph: onnx.GraphProto) -> bool:
    """Leave out quantisations whose numbers are only read again, also behind operators that move them."""
    makers = _makers(graph)
    constants = {x.name: numpy_helper.to_array(x) for x in graph.initializer if prod(x.dims) <= SMALL}
    users = Counter(name for node in graph.node for name in node.input)
    users.update(x.name for x in graph.output)

    def same(one: list[str], other: list[str]) -> bool:
        if one == other:
            return True
        known = [(constants.get(a), constants.get(b)) for a, b in zip(one, other, strict=False)]
        return len(one) == len(other) and all(a is not None and b is not None and (a == b).all() for a, b in known)

    changed = False
    for node in graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        path, maker = [], makers.get(node.input[0])
        while maker is not None and maker.op_type in MOVES and users[maker.output[0]] == 1:
            path.append(maker)
            maker = makers.get(maker.input[0])
        if maker is None or maker.op_type != "QuantizeLinear" or not same(maker.input[1:], node.input[1:]):
            continue
        if path and len(constants.get(node.input[1], [1, 1]).shape if node.input[1] in constants else [1]) > 0:
            continue  # a scale for each row, which the operators between may move
        changed = True
        (path[-1] if path else node).input[0] = maker.input[0]
        if path:
            source = path[0].output[0]
        else:
            source = node.input[0]
        node.op_type = "Identity"
        del node.attribute[:]
        del node.input[:]
        node.input.append(source)
    return changed
