"""An ONNX model as a PyTorch module, so that it is captured like any other model.

Nodes run one after another with PyTorch's operators. Values that depend on shapes only (`Shape`, and what follows from
it) are numpy arrays, computed by ONNX's reference implementation during capture; the captured graph has them as
constants.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from ..base.errors import UnsupportedError

OLDEST = 17
"""The oldest supported opset: the first with LayerNormalization."""

Attributes = dict[str, Any]
"""A node's attributes by name."""


class _IsNan:
    """The result of `IsNaN`. Exporters use it to guard a softmax against rows without a key."""

    def __init__(self, of: Any) -> None:
        self.of = of


def load_onnx(path: str | os.PathLike[str]) -> OnnxModule:
    """Load an ONNX model from a file, with its external tensors. Raises `UnsupportedError` naming file and node."""
    if not Path(path).is_file():
        raise UnsupportedError(f"{path}: no such file")
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as e:  # onnx reads with protobuf, whose error types are not public
        raise UnsupportedError(f"{path}: not an ONNX model: {str(e).splitlines()[0] if str(e) else e!r}") from None
    try:
        module = OnnxModule(model)
    except UnsupportedError as e:
        raise UnsupportedError(f"{path}: {e}") from None
    module.eval()
    return module


class OnnxModule(nn.Module):
    """An ONNX model as a module. Call it with its inputs in order or by name; it returns its output, or a tuple of all.
    Raises `UnsupportedError` for an older opset or an unknown operator."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        opset = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
        if opset < OLDEST:
            raise UnsupportedError(
                f"opset {opset} is too old; opsets from {OLDEST} on are supported: convert or export again"
            )
        graph = model.graph
        self._opset = model.opset_import
        self._nodes = [(node, _attributes(node)) for node in graph.node]
        self._constants: dict[str, np.ndarray] = {}
        self._names: dict[str, str] = {}
        for tensor in graph.initializer:
            self._keep(tensor.name, numpy_helper.to_array(tensor))
        self._given = [x for x in graph.input if x.name not in self._names and x.name not in self._constants]
        self.inputs = [x.name for x in self._given]
        self.outputs = [x.name for x in graph.output]
        for node, _ in self._nodes:
            if node.domain not in ("", "ai.onnx") or (
                node.op_type not in OPERATORS and node.op_type not in NUMPY_ALONE
            ):
                raise UnsupportedError(f"{_site(node)}: this operator is not supported")

    def _keep(self, name: str, array: np.ndarray) -> None:
        """Keep an initializer: floats as a buffer, integers as numpy, because they are indices and shapes."""
        if array.dtype.kind == "f":
            self._names[name] = f"tensor{len(self._names)}"
            self.register_buffer(self._names[name], torch.from_numpy(np.array(array)))
        else:
            self._constants[name] = array

    def example(self, batch: int, seq: int) -> dict[str, torch.Tensor]:
        """Example inputs by name, of the model's types. Open sizes of a shape become batch, then seq, then 1. Integers
        are 1, as in a mask; floats are random."""
        out = {}
        for x in self._given:
            kind = x.type.tensor_type
            open_sizes = iter([batch, seq, *[1] * len(kind.shape.dim)])
            shape = [d.dim_value or next(open_sizes) for d in kind.shape.dim]
            dtype = torch.from_numpy(np.zeros(0, helper.tensor_dtype_to_np_dtype(kind.elem_type))).dtype
            make = torch.randn if dtype.is_floating_point else torch.ones
            out[x.name] = make(shape, dtype=dtype)
        return out

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run the nodes in order. Raises `TypeError` for missing or unknown inputs."""
        given = dict(zip(self.inputs, args, strict=False)) | kwargs
        missing = [name for name in self.inputs if name not in given]
        if missing or len(given) != len(args) + len(kwargs) or len(given) != len(self.inputs):
            raise TypeError(f"this model takes exactly {', '.join(self.inputs)}")
        known: dict[str, Any] = {"": None, **self._constants, **given}
        known |= {name: getattr(self, buffer) for name, buffer in self._names.items()}
        for node, attributes in self._nodes:
            results = self._run(node, attributes, [known[name] for name in node.input])
            known.update(zip(node.output, results, strict=False))
        found = [known[name] for name in self.outputs]
        return found[0] if len(found) == 1 else tuple(found)

    def _run(self, node: onnx.NodeProto, attributes: Attributes, values: list[Any]) -> Sequence[Any]:
        if not any(isinstance(v, torch.Tensor | _IsNan) for v in values) or node.op_type in NUMPY_ALONE:
            return self._on_numpy(node, values)
        try:
            result = OPERATORS[node.op_type](attributes, *values)
        except UnsupportedError as e:
            raise UnsupportedError(f"{_site(node)}: {e}") from None
        return result if isinstance(result, tuple) else (result,)

    def _on_numpy(self, node: onnx.NodeProto, values: list[Any]) -> list[np.ndarray]:
        """Run a node on numpy arrays with ONNX's reference implementation."""
        if node.op_type == "Shape":
            (x,) = values
            start, end = (_attributes(node).get(k, d) for k, d in (("start", 0), ("end", None)))
            return [np.array(x.shape[start:end], np.int64)]
        if node.op_type == "GatherElements":  # the reference implementation supports only some shapes
            return [np.take_along_axis(values[0], values[1], _attributes(node).get("axis", 0))]
        feeds = {name: np.asarray(v) for name, v in zip(node.input, values, strict=True) if name}
        kinds = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, a in feeds.items()}
        inputs = [helper.make_tensor_value_info(name, kinds[name], a.shape) for name, a in feeds.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
        model = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=self._opset)
        return [np.asarray(x) for x in ReferenceEvaluator(model).run(None, feeds)]


def _attributes(node: onnx.NodeProto) -> Attributes:
    out = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in out.items()}


def _site(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or '-> ' + ', '.join(node.output)}"


def _tensor(x: Any) -> Any:
    return torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x


def _ints(x: Any) -> list[int]:
    """A shape or axes as Python integers. Raises `UnsupportedError` if they depend on data."""
    if isinstance(x, torch.Tensor):
        raise UnsupportedError("its shape depends on data")
    return [int(n) for n in np.atleast_1d(x)]


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, x, y: function(_number(x), _number(y))


def _number(x: Any) -> Any:
    """Convert a constant of one element to a Python number, which PyTorch promotes without changing the result's
    dtype."""
    if isinstance(x, np.ndarray):
        return x.item() if x.size == 1 else _tensor(x)
    return x


def _reshape(a: Attributes, x: torch.Tensor, shape: Any) -> torch.Tensor:
    sizes = _ints(shape)
    return x.reshape([x.shape[i] if n == 0 and not a.get("allowzero") else n for i, n in enumerate(sizes)])


def _gemm(a: Attributes, x: torch.Tensor, w: torch.Tensor, c: Any = None) -> torch.Tensor:
    x, w = x.t() if a.get("transA") else x, w.t() if a.get("transB") else w
    y = x @ w
    y = y if a.get("alpha", 1.0) == 1 else y * a["alpha"]
    return y if c is None else y + (c if a.get("beta", 1.0) == 1 else c * a["beta"])


def _slice(a: Attributes, x: torch.Tensor, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> torch.Tensor:
    begin, end = _ints(starts), _ints(ends)
    where = range(len(begin)) if axes is None else _ints(axes)
    for s, e, axis, step in zip(begin, end, where, [1] * len(begin) if steps is None else _ints(steps), strict=True):
        if step < 0:
            raise UnsupportedError("a negative step is not supported")
        index = [slice(None)] * x.ndim
        index[axis] = slice(s, min(e, x.shape[axis]), step)
        x = x[tuple(index)]
    return x


def _squeeze(a: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(_ints(axes)))


def _unsqueeze(a: Attributes, x: torch.Tensor, axes: Any) -> torch.Tensor:
    new_axes = _ints(axes)
    rank = x.ndim + len(new_axes)
    for axis in sorted(n % rank for n in new_axes):
        x = x.unsqueeze(axis)
    return x


def _split(a: Attributes, x: torch.Tensor, sizes: Any = None) -> tuple[torch.Tensor, ...]:
    axis = a.get("axis", 0)
    parts: tuple[torch.Tensor, ...] = (
        x.split(_ints(sizes), axis) if sizes is not None else x.chunk(a["num_outputs"], axis)
    )
    return parts


def _gather(a: Attributes, x: Any, index: Any) -> torch.Tensor:
    x, axis = _tensor(x), a.get("axis", 0)
    if isinstance(index, np.ndarray) and index.ndim == 0:
        return x.select(axis, int(index))
    index = _tensor(index)
    if axis == 0 and x.ndim == 2 and x.is_floating_point():
        return F.embedding(index, x)
    return x.index_select(axis, index.reshape(-1)).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _where(a: Attributes, condition: Any, x: Any, y: Any) -> Any:
    if isinstance(condition, _IsNan):
        if condition.of is y:
            return y
        raise UnsupportedError("IsNaN is supported only to replace the NaN of the same tensor")
    return torch.where(_tensor(condition), _number(x), _number(y))


def _cast(a: Attributes, x: Any) -> torch.Tensor:
    kind = helper.tensor_dtype_to_np_dtype(a["to"])
    made: torch.Tensor = _tensor(x).to(torch.from_numpy(np.zeros(0, kind)).dtype)
    return made


def _reduce_mean(a: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    over = a.get("axes") if axes is None else _ints(axes)
    return x.mean(over, keepdim=bool(a.get("keepdims", 1)))


def _softmax(a: Attributes, x: torch.Tensor) -> torch.Tensor:
    return x.softmax(a.get("axis", -1))


def _layer_norm(a: Attributes, x: torch.Tensor, scale: torch.Tensor, bias: Any = None) -> torch.Tensor:
    if a.get("axis", -1) not in (-1, x.ndim - 1):
        raise UnsupportedError("a norm is supported over the last axis only")
    return F.layer_norm(x, x.shape[-1:], scale, bias, a.get("epsilon", 1e-5))


def _conv(a: Attributes, x: torch.Tensor, w: torch.Tensor, bias: Any = None) -> torch.Tensor:
    pads, rank = a.get("pads", [0] * 2 * (w.ndim - 2)), w.ndim - 2
    if pads[:rank] != pads[rank:] or a.get("auto_pad", "NOTSET") != "NOTSET":
        raise UnsupportedError("padding must be the same on both sides")
    more = a.get("strides", [1] * rank), pads[:rank], a.get("dilations", [1] * rank), a.get("group", 1)
    convolve = {1: F.conv1d, 2: F.conv2d}.get(rank)
    if convolve is None:
        raise UnsupportedError(f"a convolution over {rank} axes is not supported; 1 and 2 are")
    return convolve(x, w, bias, *more)


# Operators that are always computed on numpy, from shapes and constants.
NUMPY_ALONE = {"Shape", "Constant", "ConstantOfShape", "Range", "Size"}

OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": _binary(lambda x, y: x + y),
    "Sub": _binary(lambda x, y: x - y),
    "Mul": _binary(lambda x, y: x * y),
    "Div": _binary(lambda x, y: x / y),
    "Mod": _binary(lambda x, y: x % y),
    "Max": _binary(lambda x, y: torch.maximum(torch.as_tensor(x), torch.as_tensor(y))),
    "Min": _binary(lambda x, y: torch.minimum(torch.as_tensor(x), torch.as_tensor(y))),
    "Abs": lambda a, x: x.abs(),
    "Exp": lambda a, x: x.exp(),
    "Pow": _binary(lambda x, y: x**y),
    "And": _binary(lambda x, y: x & y),
    "Or": _binary(lambda x, y: x | y),
    "Equal": _binary(lambda x, y: x == y),
    "Greater": _binary(lambda x, y: x > y),
    "GreaterOrEqual": _binary(lambda x, y: x >= y),
    "Less": _binary(lambda x, y: x < y),
    "LessOrEqual": _binary(lambda x, y: x <= y),
    "Not": lambda a, x: ~x,
    "Neg": lambda a, x: -x,
    "Sqrt": lambda a, x: x.sqrt(),
    "Erf": lambda a, x: x.erf(),
    "Tanh": lambda a, x: x.tanh(),
    "Sigmoid": lambda a, x: x.sigmoid(),
    "Relu": lambda a, x: x.relu(),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "MatMul": _binary(lambda x, y: x @ y),
    "Gemm": _gemm,
    "Conv": _conv,
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Flatten": lambda a, x: x.reshape(prod(x.shape[: a.get("axis", 1)]), prod(x.shape[a.get("axis", 1) :])),
    "Transpose": lambda a, x: x.permute(a.get("perm") or list(reversed(range(x.ndim)))),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": lambda a, x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(_ints(shape)))),
    "Concat": lambda a, *xs: torch.cat([_tensor(x) for x in xs], a["axis"]),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": lambda a, x, index: _tensor(x).gather(a.get("axis", 0), _tensor(index)),
    "GatherND": lambda a, x, index: _tensor(x)[tuple(_tensor(index).unbind(-1))],
    "Where": _where,
    "IsNaN": lambda a, x: _IsNan(x),
    "Cast": _cast,
    "Identity": lambda a, x: x,
    "Trilu": lambda a, x, k=0: (x.triu if a.get("upper", 1) else x.tril)(int(k)),
    "Dropout": lambda a, x, *more: x,
    "Clip": lambda a, x, low=None, high=None: x.clamp(_number(low), _number(high)),
}
"""The supported ONNX operators on tensors; models with any other are refused when they are loaded."""
