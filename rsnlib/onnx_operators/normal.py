"""ONNX files, brought into one form before they are read: without functions, of one opset, quantised numbers computed
in float32."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from ...base.errors import UnsupportedError
from .floats import SMALL, in_floats, makers_of, prod
from .table import MICROSOFT, TABLE

OLDEST, OPSET = 7, 23
"""Files of older opsets are refused; those of older ones than the second are converted to it."""
QUANTISED = "the model is quantised: it is computed in float32, without rounding between its layers"
INTERNAL = "rsn"
"""The domain of operators that take the place of several."""


def read(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a file, with its external tensors, and normalise it (`normalised`). Raises `UnsupportedError`, with the
    path, if there is no such file, if it is no valid ONNX model, or if it cannot be normalised."""
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
    """Return a model of opset `OPSET` or newer, without functions and unused nodes, whose quantised numbers are
    computed in float32. model: valid; it may be changed in place. Raises `UnsupportedError` for an opset before
    `OLDEST`, for a Hardmax before opset 13, and for what onnx cannot convert. Warns of a quantised model."""
    opset = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
    if opset < OLDEST:
        raise UnsupportedError(
            f"opset {opset} is too old; opsets from {OLDEST} on are supported: convert or export again"
        )
    for node in _all_nodes(model.graph):
        if opset < 13 and node.op_type == "Hardmax":  # which onnx takes for the later one
            raise UnsupportedError(f"Hardmax {node.name}: before opset 13 it is another function")
        if opset < 11 and node.op_type in ("Resize", "Upsample"):  # these, too
            node.op_type, node.domain = "Upsample", INTERNAL
    if INTERNAL in {node.domain for node in _all_nodes(model.graph)}:
        model.opset_import.extend([helper.make_opsetid(INTERNAL, 1)])
    try:
        if model.functions:
            model = inliner.inline_local_functions(model)
        if opset < OPSET:
            model = _converted(model)
    except Exception as e:  # those of onnx have no common type
        raise UnsupportedError(f"onnx cannot convert it from opset {opset} to {OPSET}: {_line(e)}") from e
    _of_one_tensor(model.graph)
    if in_floats(model.graph):
        warnings.warn(QUANTISED, stacklevel=2)
    _without_unused(model.graph)
    return model


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of its branches."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.HasField("g"):
                yield from _all_nodes(a.g)


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


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.initializer[:]
    return model


# -- several operators that mean one


def _of_one_tensor(graph: onnx.GraphProto) -> None:
    """`Where` that replaces the NaN of its own operand, as exporters guard a softmax, becomes one operator."""
    makers = makers_of(graph)
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
