"""An ONNX model as a PyTorch module, so that it is captured like any other model.

Nodes run one after another, by the table of operators (`onnx_operators`). What is known when the model is captured
(constants, shapes, and what follows from them) is computed at once; the captured graph has it as constants.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ..base.errors import TensorError, UnsupportedError
from .onnx_operators import attention, contrib, elementwise, layers, quantized, reductions, resize, sequences, shapes
from .onnx_operators.normal import INTERNAL, normalised, read
from .onnx_operators.shapes import TYPES
from .onnx_operators.table import TABLE, Input, InputReading, Number, OnnxOperator, operator

GROUPS = (elementwise, reductions, shapes, resize, sequences, layers, attention, contrib, quantized)
"""The modules that fill the table."""
FROM_SHAPES = frozenset({"Shape", "Size"})
"""Operators whose results are known, because they depend on the operand's shape alone."""


@operator("ReplaceNaN", domain=INTERNAL)
def replace_nan(x: torch.Tensor, by: Number) -> torch.Tensor:
    """x with a number in the place of NaN, as exporters guard a softmax.

    x: any shape, which the result has too. by: a number, or a tensor that is broadcast to x.
    """
    if isinstance(by, torch.Tensor):
        return torch.where(torch.isnan(x), by, x)
    return torch.nan_to_num(x, nan=by, posinf=torch.inf, neginf=-torch.inf)


@dataclass(frozen=True)
class KnownValue:
    """A value that is known when the model is captured. tensor: with its elements, of any shape."""

    tensor: torch.Tensor

    @property
    def numbers(self) -> list[Any]:
        """The elements as Python numbers, last axis innermost. PyTorch does not record that they are read."""
        with _disable_current_modes():
            return list(self.tensor.reshape(-1).tolist())


@dataclass(frozen=True)
class OnnxStep:
    """A node, with its row of the table and its attributes by name. operator: None for an `If`. branches: the graphs of
    an `If` by the names of its attributes, then_branch and else_branch; empty for other nodes."""

    node: onnx.NodeProto
    operator: OnnxOperator | None
    attributes: dict[str, Any]
    branches: dict[str, OnnxGraph]

    @property
    def site(self) -> str:
        """How messages name the node: its type, with its name or, if it has none, with its outputs."""
        return _site(self.node)


@dataclass(frozen=True)
class OnnxGraph:
    """A graph: its steps in order, its constants by name, and the names of its outputs."""

    steps: tuple[OnnxStep, ...]
    constants: dict[str, KnownValue]
    outputs: tuple[str, ...]


def load_onnx(path: str | os.PathLike[str]) -> OnnxModule:
    """Load an ONNX model from a file, with its external tensors. Raises `UnsupportedError`, naming the file and, where
    one is at fault, the node: for a file that is missing or wrong, and for what is not supported. Warns of a quantised
    model, which is computed in float32."""
    model = read(path)
    try:
        return OnnxModule(model, is_normal=True)
    except UnsupportedError as e:
        raise UnsupportedError(f"{path}: {e}") from None


class OnnxModule(nn.Module):
    """An ONNX model as a module. Call it with its inputs in order or by name; it returns its output, or a tuple of all.

    model: a valid ONNX model. is_normal: it has been normalised (`onnx_operators.normal`); False: the constructor does
    that. inputs, outputs: the names of both, in order. Raises `UnsupportedError` for an opset that is too old, for an
    operator, an input or an attribute that the table does not have, and for an input that is no tensor or of a type
    that PyTorch does not have.
    """

    def __init__(self, model: onnx.ModelProto, *, is_normal: bool = False) -> None:
        super().__init__()
        graph = (model if is_normal else normalised(model)).graph
        self._names: dict[str, str] = {}
        """Buffers, by the names of the weights that they hold."""
        body = _body(graph)
        known = {name for step in _every(body) for name in _known_inputs(step)}
        constants = dict(body.constants)
        for tensor in graph.initializer:
            value = tensor_of(tensor)
            if value.is_floating_point() and value.numel() > 1 and tensor.name not in known:
                self._names[tensor.name] = f"tensor{len(self._names)}"
                self.register_buffer(self._names[tensor.name], value)
            else:
                constants[tensor.name] = KnownValue(value)
        self._body = OnnxGraph(body.steps, constants, body.outputs)
        self._given = [x for x in graph.input if x.name not in self._names and x.name not in constants]
        for x in self._given:
            if not x.type.HasField("tensor_type"):
                raise UnsupportedError(f"input {x.name} is no tensor")
            if x.type.tensor_type.elem_type not in TYPES:
                raise UnsupportedError(f"input {x.name} has a type that PyTorch does not have")
        self.inputs = [x.name for x in self._given]
        self.outputs = list(body.outputs)
        self.eval()

    @property
    def open_sizes(self) -> dict[str, list[tuple[str, int]]]:
        """The sizes that the file leaves open, by the names that it gives to them: for each, the inputs and axes that
        have it. Axes count from 0."""
        found: dict[str, list[tuple[str, int]]] = {}
        for x in self._given:
            for axis, d in enumerate(x.type.tensor_type.shape.dim):
                if d.dim_param:
                    found.setdefault(d.dim_param, []).append((x.name, axis))
        return found

    def dynamic_shapes(self, **sizes: Any) -> dict[str, dict[int, Any]]:
        """Return the `dynamic_shapes` of `rsn.compile`: by input, by axis. sizes: by the names that the file gives to
        open sizes, such as `batch=rsn.Batch(1, 8), sequence=rsn.Length(16, 128)`. Raises `UnsupportedError` for another
        name."""
        made: dict[str, dict[int, Any]] = {}
        for name, dim in sizes.items():
            if name not in self.open_sizes:
                raise UnsupportedError(
                    f"no size is named {name}; the file names {', '.join(self.open_sizes) or 'none'}"
                )
            for x, axis in self.open_sizes[name]:
                made.setdefault(x, {})[axis] = dim
        return made

    def example(self, batch: int, seq: int) -> dict[str, torch.Tensor]:
        """Return example inputs by name, of the model's types and shapes. An open size is `batch` on the first axis,
        else `seq`, both in elements; sizes of one name are the same. Integers and bools are 1, as in a mask; floats are
        random."""
        out: dict[str, torch.Tensor] = {}
        named: dict[str, int] = {}
        for x in self._given:
            kind = x.type.tensor_type
            shape = []
            for axis, d in enumerate(kind.shape.dim):
                size = d.dim_value or (seq if axis else batch)
                shape.append(named.setdefault(d.dim_param, size) if d.dim_param else size)
            make = torch.randn if TYPES[kind.elem_type].is_floating_point else torch.ones
            out[x.name] = make(shape, dtype=TYPES[kind.elem_type])
        return out

    def captured(self, *args: torch.Tensor) -> nn.Module:
        """Return the same model as one graph of PyTorch, for inputs of the shapes of `args`, by position: for
        torch.compile, which would cut this module's loop over nodes into pieces. Raises like `forward`, and what
        torch.export raises for a module that it cannot capture."""
        with torch.no_grad():
            return torch.export.export(self, args, strict=False).module()

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run the nodes in order. args, kwargs: the inputs of the file, by position and by name. Returns the output, or
        a tuple of all in the order of `outputs`. Raises `TypeError` for missing or unknown inputs, `UnsupportedError`
        for what the table does not support, and `TensorError` for operands that an operator cannot take; both name the
        node."""
        given = dict(zip(self.inputs, args, strict=False)) | kwargs
        missing = [name for name in self.inputs if name not in given]
        if missing or len(given) != len(args) + len(kwargs) or len(given) != len(self.inputs):
            raise TypeError(f"this model takes exactly {', '.join(self.inputs)}")
        values: dict[str, Any] = {"": None, **given}
        values |= {name: getattr(self, buffer) for name, buffer in self._names.items()}
        found = [_plain(x) for x in _run(self._body, values)]
        return found[0] if len(found) == 1 else tuple(found)


# -- running


def _run(body: OnnxGraph, outer: Mapping[str, Any]) -> list[Any]:
    """The outputs of a graph. outer: values of the graph around it, or the model's inputs."""
    values = {**outer, **body.constants}
    for step in body.steps:
        try:
            given = [_found(values, name) for name in step.node.input]
            results = _branch(step, given[0], values) if step.branches else _computed(step, given)
        except (UnsupportedError, TensorError) as e:
            raise type(e)(str(e) if str(e).startswith(step.site) else f"{step.site}: {e}") from None
        for name, result in zip(step.node.output, results, strict=False):
            values[name] = result
    return [_found(values, name) for name in body.outputs]


def _found(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise UnsupportedError(f"nothing computes {name}")
    return values[name]


def _branch(step: OnnxStep, condition: Any, values: Mapping[str, Any]) -> list[Any]:
    """The results of an `If`."""
    if not isinstance(condition, KnownValue):
        raise UnsupportedError("its condition depends on data")
    return _run(step.branches["then_branch" if condition.numbers[0] else "else_branch"], values)


def _computed(step: OnnxStep, given: Sequence[Any]) -> Sequence[Any]:
    row = step.operator
    assert row is not None
    more: dict[str, Any] = {"wanted": len(step.node.output)} if row.takes_wanted else {}
    is_known = all(x is None or isinstance(x, KnownValue) for x in given)
    if is_known or row.name in FROM_SHAPES:
        with _disable_current_modes():
            return [KnownValue(x) if isinstance(x, torch.Tensor) else x for x in _called(step, given, more)]
    return _called(step, given, more)


def _called(step: OnnxStep, given: Sequence[Any], more: dict[str, Any]) -> Sequence[Any]:
    row = step.operator
    assert row is not None
    reads = list(row.reads(len(given)))
    try:
        operands = [_read(x, reads[i], given) for i, x in enumerate(given)]
        result = row.compute(*operands, **step.attributes, **more)
    except UnsupportedError:
        raise
    except (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as e:
        raise TensorError(_line(e)) from e
    results = list(result) if isinstance(result, tuple | list) else [result]
    for name in step.node.output[len(results) :]:
        if name:
            raise UnsupportedError(f"its output {name} is not supported")
    return results


def _line(e: Exception) -> str:
    return str(e).strip().partition("\n")[0] or type(e).__name__


def _read(value: Any, declared: Input, given: Sequence[Any]) -> Any:
    """A value as an operator reads it (`table.InputReading`)."""
    if not isinstance(value, KnownValue):
        if value is not None and declared.read in (InputReading.INTS, InputReading.FLOATS, InputReading.KNOWN):
            raise UnsupportedError(f"its {declared.name} depends on data")
        return value
    if declared.read in (InputReading.INTS, InputReading.FLOATS):
        number = int if declared.read is InputReading.INTS else float
        return [number(n) for n in value.numbers]
    if declared.read is InputReading.NUMBER and value.tensor.numel() == 1:
        ranks = [x.ndim for x in given if isinstance(x, torch.Tensor)]
        if ranks and value.tensor.ndim <= max(ranks):
            return value.numbers[0]
    return value.tensor


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        raise UnsupportedError("the model returns a sequence")
    return value.tensor.clone() if isinstance(value, KnownValue) else value


# -- reading


def _body(graph: onnx.GraphProto) -> OnnxGraph:
    return OnnxGraph(tuple(map(_step, graph.node)), {}, tuple(x.name for x in graph.output))


def _inner(graph: onnx.GraphProto) -> OnnxGraph:
    """The graph of a branch, whose constants are known."""
    body = _body(graph)
    return OnnxGraph(body.steps, {x.name: KnownValue(tensor_of(x)) for x in graph.initializer}, body.outputs)


def _step(node: onnx.NodeProto) -> OnnxStep:
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        if not domain and node.op_type == "If":
            branches = {a.name: _inner(a.g) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
            return OnnxStep(node, None, {}, branches)
        row = TABLE.get((domain, node.op_type))
        if row is None:
            raise UnsupportedError("this operator is not supported")
        attributes = {a.name: _attribute(a) for a in node.attribute}
        row.check_attributes(attributes)
        list(row.reads(len(node.input)))
    except UnsupportedError as e:
        raise UnsupportedError(f"{_site(node)}: {e}") from None
    return OnnxStep(node, row, attributes, {})


def _attribute(a: onnx.AttributeProto) -> Any:
    if a.type == onnx.AttributeProto.TENSOR:
        return tensor_of(a.t)
    if a.type in (onnx.AttributeProto.FLOAT, onnx.AttributeProto.INT, onnx.AttributeProto.STRING):
        value = helper.get_attribute_value(a)
        return value.decode(errors="replace") if isinstance(value, bytes) else value
    if a.type in (onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS):
        return list(helper.get_attribute_value(a))
    raise UnsupportedError(f"its attribute {a.name} is of a kind that is not supported")


def _every(body: OnnxGraph) -> Iterable[OnnxStep]:
    for step in body.steps:
        yield step
        for branch in step.branches.values():
            yield from _every(branch)


def _known_inputs(step: OnnxStep) -> Iterable[str]:
    """The inputs of a node that must be known."""
    if step.operator is not None:
        for name, declared in zip(step.node.input, step.operator.reads(len(step.node.input)), strict=True):
            if declared.read in (InputReading.INTS, InputReading.FLOATS, InputReading.KNOWN):
                yield name


def _site(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or '-> ' + ', '.join(node.output)}"


def tensor_of(proto: onnx.TensorProto) -> torch.Tensor:
    """Return a tensor of a file, in the shape that it has there. Numbers of 4 bits become those of 8. Raises
    `UnsupportedError` for a type that PyTorch does not have, and for data that do not fit type and shape."""
    kind = TYPES.get(proto.data_type)
    small = {onnx.TensorProto.INT4: torch.int8, onnx.TensorProto.UINT4: torch.uint8}.get(proto.data_type)
    if kind is None and small is None:
        name = onnx.TensorProto.DataType.Name(proto.data_type)
        raise UnsupportedError(f"tensor {proto.name} has numbers of type {name}")
    try:
        array = numpy_helper.to_array(proto)
    except (ValueError, TypeError, OverflowError) as e:
        raise UnsupportedError(f"tensor {proto.name}: {_line(e)}") from None
    if kind is torch.bfloat16:
        return torch.from_numpy(array.view(np.uint16).astype(np.int32)).to(torch.int16).view(torch.bfloat16)
    if small is not None:
        array = array.astype(np.int8 if small is torch.int8 else np.uint8)
    return torch.from_numpy(np.array(array))
