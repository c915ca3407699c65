"""From a PyTorch module to the machine's network, by abstract interpretation of what torch.export captures.

Every value of the graph is one of four things: a tensor of the host that does not depend on the machine (`Value` over a
`Source`), an activation of the machine seen through some reshaping (`Value`), a half-finished attention (`Scores`), or a
tensor of the host that depends on the machine (`After`). Rules say what the machine can take; what no rule takes runs
on the host. A matrix product or an attention never falls back like that: it is an error that names who is to blame.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from ..isa.errors import TensorError, UnsupportedError
from ..scheduler.segment import Activation
from .fold import fold
from .layers import Attend, Layer, LayerNorm, Linear, Source, ancestors
from .mask import attended_keys, prefix_lengths
from .partition import Placement, Traced, canonical, lifted, run, user_inputs
from .view import View

aten = torch.ops.aten


def trace(model: nn.Module, example_inputs: tuple[Any, ...] | dict[str, Any]) -> Traced:
    """Split a module into host, machine and host; batch, seq and every shape are those of the example.

    example_inputs: positional (tuple) or keyword (dict) arguments of the module's forward. The module is traced in eval
    mode; its float32 weights are copied. Raises UnsupportedError for a module the machine cannot run, naming operator
    and module path, and TensorError for weights or activations of another type than float32.
    """
    if not isinstance(example_inputs, tuple | dict):
        raise TensorError(f"example inputs are a tuple or a dict of tensors, not {type(example_inputs).__name__}")
    signature = inspect.signature(model.forward)
    positional = example_inputs if isinstance(example_inputs, tuple) else ()
    try:
        args, kwargs = canonical(signature, positional, example_inputs if isinstance(example_inputs, dict) else {})
    except TypeError as error:
        raise TensorError(f"the example inputs do not fit {type(model).__name__}.forward: {error}") from error
    tracer = _Tracer(_export(model, args, kwargs))
    traced = tracer.finish(signature)
    tracer.check_masks(traced, args, kwargs)
    return traced


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    modes = {module: module.training for module in model.modules()}
    try:
        # Without gradients, or each `with torch.no_grad()` inside the module would become a graph of its own.
        with torch.no_grad():
            program = torch.export.export(model.eval(), args, kwargs, strict=False)
            if any(node.op == "call_function" and _writes(node) for node in program.graph.nodes):
                program = program.run_decompositions({})  # the same operators, but none in place
    except Exception as error:  # torch.export has no common type for what it cannot capture
        raise UnsupportedError(f"torch.export cannot capture {type(model).__name__}: {error}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    kinds = {spec.kind for spec in program.graph_signature.output_specs} - {OutputKind.USER_OUTPUT}
    if kinds:
        raise UnsupportedError(f"{type(model).__name__} changes its own state or its arguments when called")
    known = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    for spec in program.graph_signature.input_specs:
        if spec.kind not in known:
            raise UnsupportedError(f"{type(model).__name__} has an input of kind {spec.kind.name}")
    return program


@dataclass(frozen=True)
class Value:
    """A tensor that is an activation, seen through reshaping. The host's if the activation is a Source."""

    base: Layer
    view: View

    @property
    def on_host(self) -> bool:
        return isinstance(self.base, Source)


@dataclass(frozen=True)
class Scores:
    """scale * q @ k^T + mask, and its softmax if `normal`."""

    q: Value
    k: Value
    scale: float = 1.0
    mask: Node | None = None
    normal: bool = False


@dataclass(frozen=True)
class After:
    """A tensor of the host that depends on the machine. The rest says which operator first left the machine."""

    op: str
    path: str
    why: str


# What a rule returns; a string is the reason why the machine does not take the operator.
Abstract = Value | Scores | After | list["Value"]
Arguments = dict[str, Any]
Rule = Callable[["_Tracer", Node, Arguments], Abstract | str]


class _Tracer:
    """One pass over the graph. `rows` = batch * seq is what every activation of the machine has."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.values: dict[Node, Abstract] = {}
        self.before: list[Node] = []
        self.after: list[Node] = []
        self.results: dict[Node, Value] = {}
        self.placements: list[tuple[Node, Placement]] = []
        self.masks: dict[Attend, Node] = {}
        self.order: dict[Node, int] = {node: i for i, node in enumerate(program.graph.nodes)}
        self._refused: list[str] = []
        self._made: dict[Any, Any] = {}
        self._source_nodes: dict[Source, Node] = {}
        self._constants = lifted(program)
        self._constant_nodes = self._find_constants()
        self.batch, self.seq = self._find_rows()
        self.rows = self.batch * self.seq
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._visit(node)
            elif node.op != "output":
                self.values[node] = self.root(node)

    # -- the pass

    def _visit(self, node: Node) -> None:
        if node.target in _CHECKS:
            return
        inputs = [self.values[x] for x in node.all_input_nodes]
        packet = getattr(node.target, "overloadpacket", node.target)
        rule = _RULES.get(packet)
        result: Abstract | str = f"{_op(node)} is not an operation of the machine"
        if rule is not None and not any(isinstance(x, After) for x in inputs):
            result = rule(self, node, _arguments(node))
        if isinstance(result, str):
            result = self._on_host(node, inputs, result)
        elif _is_host(result):
            self.before.append(node)
        elif not isinstance(result, After) and packet not in _VIEW_RULES:
            self._place(node, "machine", "")
        self.values[node] = result

    def _on_host(self, node: Node, inputs: Sequence[Abstract], why: str) -> Abstract:
        """Leave an operator to PyTorch, unless that would take a product away from the machine."""
        is_product = getattr(node.target, "overloadpacket", None) in _PRODUCTS
        if all(_is_host(x) for x in inputs):
            self.before.append(node)
            self._place(node, "host", "does not depend on the machine")
            self._refused += [f"{_op(node)} at {_path(node) or 'the top level'}: {why}"] if is_product else []
            return self.root(node)
        if any(isinstance(x, Scores) for x in inputs):
            raise self.unsupported(node, f"{why}; it stands between the two products of an attention")
        left = next((x for x in inputs if isinstance(x, After)), After(_op(node), _path(node), why))
        if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
            raise self.unsupported(node, "a graph within the graph depends on the machine")
        if is_product and self._row_count(node) > self.batch:
            if left.op == _op(node) and left.path == _path(node):
                raise self.unsupported(node, why)
            raise self.unsupported(
                node, f"it comes after {left.op} at {left.path or 'the top level'}, which left the machine: {left.why}"
            )
        self._leave(node)
        self.after.append(node)
        self._place(node, "host", left.why)
        return left

    def _leave(self, node: Node) -> None:
        for x in node.all_input_nodes:
            value = self.values[x]
            if isinstance(value, Scores | list):
                raise self.unsupported(x, "its result is wanted on the host, but exists only inside the machine")
            if isinstance(value, Value) and not value.on_host:
                self.results[x] = value

    def _place(self, node: Node, where: str, why: str) -> None:
        self.placements.append((node, Placement(_path(node), _op(node).removeprefix("aten."), where, why)))

    def finish(self, signature: inspect.Signature) -> Traced:
        output = self.program.graph.output_node()
        self._leave(output)
        wanted = list(dict.fromkeys(value.base for value in self.results.values()))
        if not wanted:
            refused = self._refused or ["no matrix product or attention found"]
            raise UnsupportedError(f"nothing in this module runs on the machine: {refused[0]}")
        network, names = fold(wanted, self.batch, self.seq)
        used = set(ancestors(wanted))
        masks = tuple(dict.fromkeys(mask for attend, mask in self.masks.items() if attend in used))
        sources = {names[s]: (self._source_nodes[s], s.view) for s in used if isinstance(s, Source)}
        # Of the host's operators before the machine only those that something still needs.
        needed = {node for node, _ in sources.values()} | set(masks) | set(output.all_input_nodes)
        needed.update(x for node in self.after for x in node.all_input_nodes)
        before = []
        for node in reversed(self.before):
            if node in needed:
                needed.update(node.all_input_nodes)
                before.append(node)
        unneeded = set(self.before) - set(before)
        return Traced(
            network,
            placements=tuple(placement for node, placement in self.placements if node not in unneeded),
            program=self.program,
            signature=signature,
            before=tuple(reversed(before)),
            after=tuple(self.after),
            sources={name: sources[name] for name in network.inputs},
            results={node: (names[value.base], value.view) for node, value in self.results.items()},
            masks=masks,
        )

    def check_masks(self, traced: Traced, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse at once what the example already shows to be no mask of whole keys."""
        if not traced.masks:
            return
        environment = lifted(self.program) | traced.arguments(args, kwargs)
        with torch.no_grad():
            run(traced.before, environment)
        for attend, mask in self.masks.items():
            if mask in traced.masks:
                try:
                    attended_keys(environment[mask], self.batch, self.seq)
                except TensorError as error:
                    raise UnsupportedError(f"attention at {attend.path}: {error}") from error

    # -- what the rules build with

    def unsupported(self, node: Node, why: str) -> UnsupportedError:
        return UnsupportedError(f"{_op(node)} at {_path(node) or 'the top level'}: {why}")

    def root(self, node: Node) -> Value:
        """A tensor of the host as an activation of its own."""
        value = node.meta.get("val")
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        view = View.dense(shape)
        if shape[:2] == (self.seq, self.batch) != (self.batch, self.seq) and len(shape) == 3:
            view = View.dense((self.batch, self.seq, shape[2])).permute((1, 0, 2))  # batch_first=False
        return Value(self.source(node, view, shape[-1] if shape else 1), view)

    def source(self, node: Node, view: View, width: int) -> Source:
        if (node, view) not in self._made:
            source = Source(node.name if node.op == "placeholder" else _path(node) or node.name, width, view)
            self._made[node, view] = source
            self._source_nodes[source] = node
        return self._made[node, view]  # type: ignore[no-any-return]

    def operand(self, node: Node, fits: Callable[[View, int], bool]) -> Value | None:
        """The value of a node over an activation that it shows in full, if it then fits.

        Columns of a projection (queries, keys and values packed in one) become a projection of their own. A view of a
        host tensor that does not fit becomes a host tensor of its own.
        """
        value = self.values[node]
        found = self.fit(value, fits)
        return self.fit(self.root(node), fits) if found is None and _is_host(value) else found

    def fit(self, value: Abstract, fits: Callable[[View, int], bool]) -> Value | None:
        """As `operand`, without the resort to a host tensor of its own."""
        columns = value.view.columns(self.rows, value.base.width) if isinstance(value, Value) else None
        if columns is None:
            return None
        assert isinstance(value, Value)
        base, (index, view) = value.base, columns
        if not np.array_equal(index, np.arange(base.width)):
            if not isinstance(base, Linear) or base.residual is not None or base.norm is not None:
                return None
            key = (base, index.tobytes())
            if key not in self._made:
                self._made[key] = replace(base, weight=base.weight[:, index], bias=base.bias[index], before=None)
            base = self._made[key]
        return Value(base, view) if fits(view, base.width) else None

    def constant(self, node: Node) -> torch.Tensor:
        """The value of a node that depends on no argument of the module."""
        if node not in self._constants:
            for x in node.all_input_nodes:
                self.constant(x)
            with torch.no_grad():
                run([node], self._constants)
        tensor: torch.Tensor = self._constants[node]
        return tensor

    def is_constant(self, x: Any) -> bool:
        return isinstance(x, Node) and x in self._constant_nodes

    def vector(self, node: Node | None, width: int, default: float) -> np.ndarray | None:
        """A constant (width,) in float64; None if it is not one."""
        if node is None:
            return np.full(width, default)
        if not self.is_constant(node) or self.constant(node).numel() != width:
            return None
        return self.constant(node).detach().double().numpy().reshape(width)

    def number(self, x: Any) -> float | None:
        if isinstance(x, int | float):
            return float(x)
        return float(self.constant(x)) if self.is_constant(x) and self.constant(x).numel() == 1 else None

    def _find_constants(self) -> set[Node]:
        constants = set(self._constants)
        for node in self.program.graph.nodes:
            if node.op == "call_function" and all(x in constants for x in node.all_input_nodes):
                if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
                    constants.add(node)
        return constants

    def _find_rows(self) -> tuple[int, int]:
        """(batch, seq): as the first attention has them, else as the first product has them."""
        products = []
        for node in self.program.graph.nodes:
            packet = getattr(node.target, "overloadpacket", None)
            shape = _shape(node)
            if packet in (aten.scaled_dot_product_attention, aten.softmax, aten._softmax) and len(shape) == 4:
                return shape[0], shape[2]
            if packet in (aten.linear, aten.mm, aten.addmm, aten.matmul):
                x, weight = node.args[1:3] if packet is aten.addmm else node.args[:2]
                if self.is_constant(weight) and not self.is_constant(x) and len(_shape(x)) > 1:
                    products.append(_shape(x))
        if not products:
            return 1, 1
        batch, *seq, _ = products[0] if len(products[0]) > 2 else (1, *products[0])
        return batch, prod(seq)

    def _row_count(self, node: Node) -> int:
        shape = _shape(node)
        return prod(shape[:-1]) if shape else self.rows


# -- rules: identities and views


def _identity(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    x = node.all_input_nodes[0]
    if a.get("train") and a.get("p"):
        return "dropout in training mode"
    if node.meta["val"].dtype != x.meta["val"].dtype or _shape(node) != _shape(x):
        return f"a conversion to {node.meta['val'].dtype}"
    return t.values[x]


def _moved(t: _Tracer, node: Node, move: Callable[[View], View | None]) -> Abstract | str:
    x = node.all_input_nodes[0]
    value = t.values[x]
    view = move(value.view) if isinstance(value, Value) and node.meta["val"].dtype == x.meta["val"].dtype else None
    if view is None:
        return "the rows and columns it mixes do not come apart again"
    assert isinstance(value, Value)
    return Value(value.base, view)


def _regroup(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    return _moved(t, node, lambda view: view.regroup(_shape(node)))


def _permute(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    # Which dimension went where, whatever the operator calls it: the strides of a small tensor tell.
    probe = torch.empty((2,) * len(_shape(node)), device="meta")
    moved = node.target(probe, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return _moved(t, node, lambda view: view.permute([probe.stride().index(s) for s in moved.stride()]))


def _narrow(view: View | None, axis: int, start: int, length: int, shape: Sequence[int]) -> View | None:
    narrowed = None if view is None else view.narrow(axis, start, length)
    return None if narrowed is None else narrowed.regroup(shape)


def _select(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    shape = _shape(node.all_input_nodes[0])
    axis = a["dim"] % len(shape)
    return _moved(t, node, lambda view: _narrow(view, axis, a["index"] % shape[axis], 1, _shape(node)))


def _slice(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    if a["step"] != 1 or _shape(node) == ():
        return "a slice with a step"
    shape = _shape(node.all_input_nodes[0])
    axis, start = a["dim"] % len(shape), a["start"] or 0
    start = max(start + shape[axis], 0) if start < 0 else min(start, shape[axis])
    length = _shape(node)[axis]
    return _moved(t, node, lambda view: _narrow(view, axis, start, length, _shape(node)) if length else None)


def _split(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    x = node.all_input_nodes[0]
    value = t.values[x]
    if not isinstance(value, Value):
        return "splits what is no activation"
    axis = a["dim"] % len(_shape(x))
    parts, start = [], 0
    for part in node.meta["val"]:
        length = part.shape[axis] if part.ndim == len(_shape(x)) else 1  # unbind drops the dimension
        view = _narrow(value.view, axis, start, length, part.shape)
        if view is None:
            return "the rows and columns it mixes do not come apart again"
        parts.append(Value(value.base, view))
        start += length
    return parts


def _getitem(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    value = t.values[node.all_input_nodes[0]]
    return value[int(node.args[1])] if isinstance(value, list) else "takes apart what is no activation"  # type: ignore[arg-type]


# -- rules: products and what is fused into them


def _rows_form(view: View, width: int) -> bool:
    return view.with_columns(width, width) is not None


def _linear(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    return _product(t, node, a["input"], a["weight"], a["bias"], transposed=True)


def _addmm(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    if a["beta"] != 1 or a["alpha"] != 1:
        return "addmm with factors"
    return _product(t, node, a["mat1"], a["mat2"], a["self"], transposed=False)


def _matmul(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    left, right = a["self"], a["mat2"] if "mat2" in a else a["other"]
    scores = t.values[left]
    if isinstance(scores, Scores) and scores.normal:
        return _attend(t, node, scores.q, scores.k, t.values[right], scores.scale, scores.mask)
    if t.is_constant(right) and len(_shape(right)) == 2:
        return _product(t, node, left, right, None, transposed=False)
    x, y = t.values[left], t.values[right]
    if isinstance(x, Value) and isinstance(y, Value) and len(_shape(node)) == 4 and not (x.on_host and y.on_host):
        return Scores(x, Value(y.base, y.view.permute((0, 1, 3, 2))))
    return "a product of two activations is supported only as part of an attention"


def _product(t: _Tracer, node: Node, x: Node, weight: Node, bias: Node | None, transposed: bool) -> Abstract | str:
    if not t.is_constant(weight) or (bias is not None and not t.is_constant(bias)):
        return "its weight or bias is not a parameter"
    if t.is_constant(x):
        return "a constant"
    operand = t.operand(x, _rows_form)
    if operand is None:
        return f"its operand is not {t.batch} x {t.seq} rows of the machine"
    for what, tensor in (("weight", weight), ("operand", x)):
        if tensor.meta["val"].dtype != torch.float32:
            dtype = tensor.meta["val"].dtype
            raise TensorError(f"{_op(node)} at {_path(node)}: its {what} is {dtype}; the machine computes in float32")
    array = t.constant(weight).detach().numpy()
    array = array.T if transposed else array
    vector = t.vector(bias, array.shape[1], 0.0)
    if vector is None:
        return "its bias is not a vector"
    view = operand.view.with_columns(*array.shape)
    assert view is not None
    return Value(Linear(_path(node), t.order[node], operand.base, array, vector), view)


def _fuse(t: _Tracer, node: Node, x: Node) -> tuple[Linear, View] | None:
    """The product that an operator on x can be fused into."""
    value = t.operand(x, lambda view, width: True)
    if value is None or not isinstance(value.base, Linear) or not value.base.is_open:
        return None
    return value.base, value.view


def _activation(kind: Callable[[Arguments], Activation]) -> Rule:
    def rule(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
        fused = _fuse(t, node, a["self"])
        if fused is None:
            return f"{_op(node)} is possible only right after a matrix product"
        return Value(replace(fused[0], activation=kind(a), before=fused[0]), fused[1])

    return rule


def _layer_norm(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    fused = _fuse(t, node, a["input"])
    if fused is None or a["normalized_shape"] != [fused[0].width] or not _rows_form(fused[1], fused[0].width):
        return f"{_op(node)} is possible only right after a matrix product (and its residual), over all its columns"
    linear, view = fused
    scale, shift = t.vector(a["weight"], linear.width, 1.0), t.vector(a["bias"], linear.width, 0.0)
    if scale is None or shift is None:
        return "its scale or shift is not a parameter"
    return Value(replace(linear, norm=LayerNorm(a["eps"], scale, shift), before=linear), view)


def _add(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    pair = (a["self"], a["other"])
    if a.get("alpha", 1) != 1 or not all(isinstance(x, Node) for x in pair):
        return "adds a multiple, or a number"
    for x, other in (pair, pair[::-1]):
        scores = t.values[x]
        if isinstance(scores, Scores) and scores.mask is None and not scores.normal and _is_host(t.values[other]):
            return replace(scores, mask=other)
    # The product computed last takes the other operand as its residual.
    open_ = [(t.values[x], x, other) for x, other in (pair, pair[::-1])]
    for _, x, other in sorted(open_, key=lambda c: -_order(c[0])):
        fused = _fuse(t, node, x)
        if fused is None or fused[1].shape != _shape(node):
            continue
        linear, view = fused
        columns = (1,) * (len(_shape(other)) - 1) + (linear.width,)
        if t.is_constant(other) and _shape(other) == columns and linear.factor == 1 and _rows_form(view, linear.width):
            bias = t.vector(other, linear.width, 0.0)
            return Value(replace(linear, bias=linear.bias + bias, before=linear), view)
        if linear.residual is not None or other.meta["val"].dtype != torch.float32:
            continue
        residual = t.operand(other, lambda shown, width, view=view, n=linear.width: shown == view and width == n)
        if residual is None and _is_host(t.values[other]):
            residual = Value(t.source(other, view, linear.width), view)
        if residual is not None:
            order = max(linear.order, _order(residual))
            return Value(replace(linear, residual=residual.base, order=order, before=linear), view)
    return "adds to something other than the result of a matrix product"


def _scale(sign: int) -> Rule:
    def rule(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
        x, factor = a["self"], t.number(a["other"])
        if isinstance(a["other"], Node) and not t.is_constant(a["other"]):
            x, factor = a["other"], t.number(a["self"]) if sign > 0 else None
        if factor is None or a.get("rounding_mode") or not isinstance(x, Node):
            return "a factor that is not a constant number"
        factor = factor if sign > 0 else 1 / factor
        value = t.values[x]
        if isinstance(value, Scores) and not value.normal and value.mask is None:
            return replace(value, scale=value.scale * factor)
        fused = _fuse(t, node, x)
        if fused is None or fused[0].residual is not None:
            return "a factor is possible only right after a matrix product"
        linear, view = fused
        return Value(replace(linear, factor=linear.factor * factor, before=linear), view)

    return rule


# -- rules: attention


def _softmax(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    scores = t.values[a["self"]]
    if not isinstance(scores, Scores) or scores.normal or a["dim"] not in (-1, 3):
        return "a softmax is supported only over the keys of an attention"
    if node.meta["val"].dtype != torch.float32:
        return f"a softmax in {node.meta['val'].dtype}"
    return replace(scores, normal=True)


def _sdpa(t: _Tracer, node: Node, a: Arguments) -> Abstract | str:
    if a["enable_gqa"]:
        raise t.unsupported(node, "grouped-query attention is not supported yet")
    if a["is_causal"]:
        raise t.unsupported(node, "causal attention is not supported yet")
    if a["dropout_p"]:
        raise t.unsupported(node, "dropout in training mode")
    q, k, v = (t.values[a[x]] for x in ("query", "key", "value"))
    scale = _shape(a["query"])[-1] ** -0.5 if a["scale"] is None else float(a["scale"])
    return _attend(t, node, q, k, v, scale, a["attn_mask"])


def _attend(
    t: _Tracer, node: Node, q: Abstract, k: Abstract, v: Abstract, scale: float, mask: Node | None
) -> Abstract | str:
    """The rule of both forms of attention. Never lets one run on the host."""
    shapes = [x.view.shape if isinstance(x, Value) else () for x in (q, k, v)]
    if len(shapes[0]) != 4 or (shapes[0][0], shapes[0][2]) != (t.batch, t.seq):
        raise t.unsupported(node, f"its query is {shapes[0]}, not ({t.batch}, heads, {t.seq}, columns)")
    _, heads, _, dim = shapes[0]
    if shapes[1] != shapes[0] or shapes[2] != shapes[0]:
        raise t.unsupported(
            node, f"query, key and value are {shapes[0]}, {shapes[1]} and {shapes[2]}; other heads, lengths or widths "
            "for the keys (grouped-query or cross attention) are not supported yet"
        )
    form = View.dense((t.batch, t.seq, heads, dim)).permute((0, 2, 1, 3))
    layers = []
    for what, x in (("query", q), ("key", k), ("value", v)):
        operand = t.fit(x, lambda view, width: view == form and width == heads * dim)
        if operand is None or (isinstance(operand.base, Linear) and operand.base.norm is not None):
            raise t.unsupported(node, f"its {what} is not a linear projection of (batch, rows, columns) split into heads")
        layers.append(operand.base)
    if scale != 1:
        key = layers[1]
        if not isinstance(key, Linear) or not key.is_open or key.residual is not None:
            raise t.unsupported(node, "its key is not a plain linear projection, which the score scale is folded into")
        layers[1] = replace(key, factor=key.factor * scale, before=None)
    if mask is not None and not _is_host(t.values[mask]):
        raise t.unsupported(node, "its mask is computed on the machine")
    if mask is not None and t.is_constant(mask):
        try:
            whole = (prefix_lengths(t.constant(mask), t.batch, t.seq) == t.seq).all()
        except TensorError as error:
            raise t.unsupported(node, str(error)) from error
        mask = None if whole else mask
    attend = Attend(_path(node), t.order[node], *layers, heads, dim, masked=mask is not None)
    if mask is not None:
        t.masks[attend] = mask
    return Value(attend, form)


# -- the graph's own terms


def _op(node: Node) -> str:
    """aten.gelu.default"""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else str(node.name)


def _path(node: Node) -> str:
    """The module path an operator comes from, "" for the module itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def _shape(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _arguments(node: Node) -> Arguments:
    """An operator's arguments by name, defaults filled in."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    declared = node.target._schema.arguments
    given = dict(zip((x.name for x in declared), node.args, strict=False))
    return {x.name: x.default_value for x in declared} | given | node.kwargs


def _is_host(value: Abstract) -> bool:
    return all(map(_is_host, value)) if isinstance(value, list) else isinstance(value, Value) and value.on_host


def _order(value: Abstract) -> int:
    return value.base.order if isinstance(value, Value) and not isinstance(value.base, Source) else -1


# Checks that torch.export leaves behind: static shapes and types make them true.
_CHECKS = {aten._assert_tensor_metadata.default, aten._assert_async.msg, aten._assert_scalar.default}

# What must not end on the host after the machine.
_PRODUCTS = {
    aten.linear, aten.matmul, aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.einsum, aten.bilinear,
    aten.scaled_dot_product_attention, aten.convolution, aten.conv1d, aten.conv2d, aten.lstm, aten.gru,
}  # fmt: skip

_VIEW_RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.alias, aten.clone, aten.contiguous, aten.detach, aten.dropout, aten.to, aten._to_copy), _identity),
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.reshape, aten.flatten, aten.unflatten), _regroup),
    **dict.fromkeys((aten.unsqueeze, aten.squeeze), _regroup),
    **dict.fromkeys((aten.permute, aten.transpose, aten.t, aten.movedim, aten.swapaxes, aten.mT), _permute),
    **dict.fromkeys((aten.chunk, aten.split, aten.split_with_sizes, aten.unbind), _split),
    aten.select: _select,
    aten.slice: _slice,
    operator.getitem: _getitem,
}

_RULES: dict[Any, Rule] = _VIEW_RULES | {
    aten.linear: _linear,
    aten.addmm: _addmm,
    aten.mm: _matmul,
    aten.matmul: _matmul,
    aten.relu: _activation(lambda a: Activation.RELU),
    aten.silu: _activation(lambda a: Activation.SILU),
    aten.gelu: _activation(
        lambda a: Activation.GELU_TANH if a["approximate"] == "tanh" else Activation.GELU_ERF
    ),
    aten.layer_norm: _layer_norm,
    aten.add: _add,
    aten.mul: _scale(1),
    aten.div: _scale(-1),
    aten.softmax: _softmax,
    aten.scaled_dot_product_attention: _sdpa,
}
