"""Lowering rules: for each PyTorch operator, from the abstract values of its operands to that of its result.

A rule returns the abstract value, or the reason why the machine cannot run the operator here; the operator then stays
in PyTorch. Attention never stays there: its rule raises UnsupportedError. Rules of attention are in
`attention_rules`; here are those of views, where the activation stays in memory and only the view of it changes, those
of products and of operators fused into them, and the table of all rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from scipy.special import erf, expit
from torch.fx import Node

from ..scheduler.graph import ActivationFunction, Float64, Gemm, Norm
from .attention_rules import attend, filled, scaled_dot_product_attention, softmax
from .caches import index_copy, roll_in
from .capture import arguments, dtype_of, module_path, op_name, packet, shape_of, site
from .gate_rules import gate, joined, scaled_gate, squared, summed
from .head_rules import norm_of_heads, rotate
from .pointwise import PointwiseFunction, recognise, root_of
from .quantised_ops import INTEGER_PRODUCTS, QUANTISED_OPS, types_of
from .rotate import ROLL_IN, ROTATE
from .values import (
    Abstract,
    AbstractState,
    Arguments,
    LoweringPattern,
    PartialAttention,
    Value,
    WrongTypeError,
    is_host,
)
from .view import View

aten = torch.ops.aten

MIXES = "it mixes rows and columns so that they cannot be separated again"
"""The reason for refusing a view that is no view of rows and columns."""
SAME = (aten.alias, aten.detach, aten.clone, aten.contiguous, aten._to_copy)
"""Operators that change nothing, unless they convert to another type."""


def _part(view: View, axis: int, start: int, length: int, shape: Sequence[int]) -> View | None:
    """The view of `length` positions of an axis from `start` on, reshaped to `shape`; None if there is no such view."""
    part = view.narrow(axis, start, length) if length else None
    return None if part is None else part.regroup(shape)


def seen(view: View, node: Node) -> View | str:
    """Return the view of an activation that the result of a view operator is. view: where each element of the
    operator's operand lies in the activation. node: the operator. Returns a reason (text) if the result is no view that
    the machine can use."""
    a, shape = arguments(node), shape_of(node)
    made: View | None = view
    if packet(node) is aten.reshape:
        made = view.regroup(shape)
    elif packet(node) is aten.permute:
        made = view.permute(a["dims"])
    elif packet(node) is aten.expand:
        made = view.expand(shape)
    elif packet(node) in (aten.slice, aten.select):
        sizes = view.shape
        axis = a["dim"] % len(sizes)
        if packet(node) is aten.select:
            made = _part(view, axis, a["index"] % sizes[axis], 1, shape)
        elif a["step"] != 1:
            return "a slice with a step is not supported"
        else:
            made = _part(view, axis, slice(a["start"], None).indices(sizes[axis])[0], shape[axis], shape)
    return MIXES if made is None else made


def identity(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of operators that change nothing: copies, and conversions to the same
    type."""
    x = node.all_input_nodes[0]
    if dtype_of(node) != dtype_of(x):
        return f"a conversion from {dtype_of(x)} to {dtype_of(node)}; the machine computes in float32"
    made = values.of[x]
    # The host needs this operator, too, if it computes the function.
    return replace(made, nodes=(*made.nodes, node)) if isinstance(made, PointwiseFunction) else made


def moved(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of operators that move elements. If one repeats a tensor of the host,
    the host runs it."""
    value = values.of[node.all_input_nodes[0]]
    if not isinstance(value, Value):
        return "its operand is not an activation"
    if packet(node) is aten.expand and is_host(value):
        return "it is a tensor of the host"
    view = seen(value.view, node)
    return view if isinstance(view, str) else Value(value.base, view)


VIEWS: dict[Any, LoweringPattern] = {
    **dict.fromkeys(SAME, identity),
    **dict.fromkeys((aten.reshape, aten.permute, aten.expand, aten.select, aten.slice), moved),
}
"""The lowering rule of each view operator."""


def in_rows(view: View, width: int) -> bool:
    """Return whether the last dimension of a view is exactly the `width` columns of its activation."""
    return view.with_columns(width, width) is not None


def linear(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of linear: a product with a constant weight (N, K), and a bias (N,) or
    none. Raises as `product` does."""
    return product(values, node, a["input"], a["weight"], a["bias"], transposed=True)


def matmul(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of matmul: a product with a constant weight (K, N), or the first or
    second product of an attention, of tensors (batch, heads, rows, columns). Raises as `product` and `attend` do."""
    x, y = a["self"], a["other"]
    left, right = values.of[x], values.of[y]
    if isinstance(left, PartialAttention) and left.normal:
        return attend(values, node, left.q, left.k, right, left.scale, left.masks, cap=left.cap)
    if values.is_constant(y) and len(shape_of(y)) == 2:
        return product(values, node, x, y, None, transposed=False)
    on_machine = not (is_host(left) and is_host(right)) and len(shape_of(x)) == len(shape_of(y)) == 4
    if on_machine and isinstance(left, Value) and isinstance(right, Value):
        return PartialAttention(left, Value(right.base, right.view.permute((0, 1, 3, 2))))
    return "a product of two activations is supported only in an attention"


def product(
    values: AbstractState, node: Node, x: Node, weight: Node, bias: Node | None, *, transposed: bool
) -> Abstract | str:
    """Make a product layer, x @ weight + bias, over all rows.

    values, node: as for a `values.LoweringPattern`. x: (..., K). weight: constant, (N, K) if `transposed`, else (K, N).
    bias: constant, (N,) or None. Returns the layer's value, or a reason if it is not supported. Raises `WrongTypeError`
    for operands that are not float32.
    """
    if not values.is_constant(weight) or not (bias is None or values.is_constant(bias)):
        return "its weight or its bias is computed from the arguments"
    operand = None if values.is_constant(x) else values.operand(x, in_rows)
    if operand is None:
        return f"its operand is not all of {values.batch} x {values.seq} rows on the machine"
    for name, tensor in (("weight", weight), ("operand", x)):
        if dtype_of(tensor) != torch.float32:
            raise WrongTypeError(
                node,
                f"{site(node)}: its {name} is {dtype_of(tensor)}; the machine computes in float32: convert it "
                "first, as model.float() does",
            )
    if len(shape_of(weight)) != 2:
        return "its weight is not a matrix"
    matrix = values.constant(weight).numpy()
    matrix = matrix.T if transposed else matrix
    columns = () if bias is None else shape_of(bias)
    vector = values.vector(bias, matrix.shape[1], 0.0) if columns[-1:] in ((), matrix.shape[1:]) else None
    view = operand.view.with_columns(*matrix.shape)
    if vector is None or view is None:
        return "its bias is not a vector"
    return Value(values.layers.product(module_path(node), operand.base, matrix, vector), view)


def open_product(values: AbstractState, x: Node) -> tuple[Gemm, View] | None:
    """Return the product into which an operator on x can be fused (`Gemm.is_open`), and the view of its result that x
    is; None if there is none."""
    found = product_of(values, x)
    return found if found is not None and found[0].is_open else None


def product_of(values: AbstractState, x: Node) -> tuple[Gemm, View] | None:
    """Return the product that x is a view of, with all that is fused into it, and that view; None if there is none."""
    value = None if is_host(values.of[x]) else values.operand(x, lambda view, width: True)
    if value is None or not isinstance(value.base, Gemm) or not value.base.multiplies:
        return None
    return value.base, value.view


def activation(kind: Callable[[Arguments], ActivationFunction]) -> LoweringPattern:
    """Return the lowering rule (`values.LoweringPattern`) of an activation operator (paper section 4.3): the product
    before it applies it at its store. kind: from the operator's arguments by name to the machine's activation."""

    def rule(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
        """Fuse the activation into the product directly before it; MemC applies it at the store."""
        found = open_product(values, a["self"])
        if found is not None:
            return Value(values.layers.fuse(found[0], module_path(node), activation=kind(a)), found[1])
        whole = None if is_host(values.of[a["self"]]) else values.operand(a["self"], lambda view, width: True)
        if whole is None:
            return f"{op_name(node)} is supported only of all of an activation of the machine"
        return Value(values.layers.pass_over(module_path(node), whole.base, activation=kind(a)), whole.view)

    return rule


def elementwise(function: Callable[..., Any], *names: str) -> LoweringPattern:
    """Return the lowering rule (`values.LoweringPattern`) of an elementwise operator, as `pointwise` applies it.
    function: computes the operator on NumPy arrays of float64. names: of the operator's arguments that the function
    takes, in order."""

    def rule(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
        """Treat the operator as part of an activation that is written with several operators."""
        return pointwise(values, node, function, [a[name] for name in names])

    return rule


def pointwise(
    values: AbstractState, node: Node, function: Callable[..., Any], operands: Sequence[Any]
) -> Abstract | str:
    """Apply an elementwise function to numbers, a product, and functions of that same product.

    values, node: as for a `values.LoweringPattern`. function: computes on NumPy arrays of float64 and numbers.
    operands: nodes and numbers, in the function's order. If the function equals an activation of the machine, returns
    the product with this activation; else a `PointwiseFunction`, which further operators may complete. Returns a reason
    (text) for operands of another kind.
    """
    x = operands[0]
    is_square = (function is operator.mul and _is_same(values, x, operands[1])) or (
        function is operator.pow and values.number(operands[1]) == 2
    )
    root = values.operand(x, lambda view, width: True) if is_square and not is_host(values.of[x]) else None
    square = None if root is None else cache(partial(squared, values, node, root.base))
    if root is not None and square is not None and not (isinstance(root.base, Gemm) and root.base.is_open):
        return Value(square(), root.view)
    parts: list[PointwiseFunction | float] = []
    for x in operands:
        number = values.number(x)
        part = number if number is not None else _as_pointwise(values, x)
        if part is None:
            return f"{op_name(node)} is supported only as part of an activation"
        parts.append(part)
    of = [part for part in parts if isinstance(part, PointwiseFunction)]
    if not of or any((p.base, p.view) != (of[0].base, of[0].view) for p in of) or of[0].view.shape != shape_of(node):
        return f"{op_name(node)} is supported only on the result of one matrix product"
    base, view = of[0].base, of[0].view

    def applied(x: Float64) -> Float64:
        out: Float64 = function(*(p.function(x) if isinstance(p, PointwiseFunction) else p for p in parts))
        return out

    found = recognise(applied)
    if found is None or (base.residual is not None and found.factor != 1):
        nodes = dict.fromkeys((*(n for p in of for n in p.nodes), node))
        return PointwiseFunction(base, view, applied, tuple(nodes), square)
    fields = {"factor": base.factor * found.factor, "activation": found.activation, **_gain(base, found.gain)}
    return Value(values.layers.fuse(base, module_path(node), **fields), view)


def _gain(layer: Gemm, factor: float) -> dict[str, Float64 | None]:
    """The scale and shift of a layer with an activation, and with no norm, if its result is multiplied by `factor`."""
    gain = factor if layer.scale is None else float(layer.scale[0]) * factor
    return {"scale": None if gain == 1 else np.full(layer.width, gain), "shift": None}


def _as_pointwise(values: AbstractState, x: Any) -> PointwiseFunction | None:
    value = values.of[x] if isinstance(x, Node) else None
    if isinstance(value, PointwiseFunction):
        return value
    found = open_product(values, x) if isinstance(value, Value) else None
    if found is None:
        return None
    base, ratio = root_of(values.layers, found[0])
    return PointwiseFunction(base, found[1], lambda t: ratio * t, ())


def layer_norm(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of layer_norm over all columns of a product, with its residual: MemC
    applies it at the store (paper section 4.3); scale and shift are folded into the consumers. Behind an activation or
    another norm it becomes a pass."""
    return normed(values, node, a, a["eps"], rms=False)


def rms_norm(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of rms_norm: like `layer_norm`, without mean and shift."""
    eps = torch.finfo(torch.float32).eps if a["eps"] is None else a["eps"]  # PyTorch's default
    return normed(values, node, {**a, "bias": None}, eps, rms=True)


def normed(values: AbstractState, node: Node, a: Arguments, eps: float, *, rms: bool) -> Abstract | str:
    """Return the value of a LayerNorm, or of an RMSNorm if `rms`: it is fused into the product before it or, where that
    is not possible, becomes a pass (a layer without a product).

    values, node, a: as for a `values.LoweringPattern`. eps: is added to the variance, or to the mean square. Returns a
    reason (text) if the machine cannot do it. A norm of a tensor of the host stays there, unless the machine normalises
    what it loads and products alone take the result. With an eps of 0, rows of padding would have no numbers.
    """
    on_host = is_host(values.of[a["input"]])
    stays = on_host and not (values.norms_of_inputs and eps > 0 and _only_multiplied(values, node))
    found = None if stays else values.operand(a["input"], lambda view, width: True)
    before = None if found is None else found.base
    shape = list(a["normalized_shape"])
    if len(shape) == 1 and isinstance(before, Gemm) and shape[0] < before.width:
        return norm_of_heads(values, node, a, Norm(eps, rms), shape[0])
    if found is None or before is None or not (on_host or isinstance(before, Gemm)) or shape != [before.width]:
        return f"{op_name(node)} is supported only right after a matrix product and its residual, over all columns"
    view = found.view
    if not in_rows(view, before.width):
        return f"{op_name(node)} is supported only over the columns of a product"
    scale, shift = values.vector(a["weight"], before.width, 1.0), values.vector(a["bias"], before.width, 0.0)
    if scale is None or shift is None:
        return "its scale or its shift is computed from the arguments"
    path, norm = module_path(node), Norm(eps, rms)
    if isinstance(before, Gemm) and before.is_open:
        return Value(values.layers.fuse(before, path, norm=norm, scale=scale, shift=shift), view)
    return Value(values.layers.pass_over(path, before, norm=norm, scale=scale, shift=shift), view)


def _only_multiplied(values: AbstractState, node: Node) -> bool:
    """Whether products with constant weights alone take a result, also by way of views of it."""
    return bool(node.users) and all(
        _only_multiplied(values, user) if packet(user) in VIEWS else _is_multiplied(values, node, user)
        for user in node.users
    )


def _is_multiplied(values: AbstractState, node: Node, user: Node) -> bool:
    names = LEFT_AND_WEIGHT.get(packet(user))
    if names is None:
        return False
    given = arguments(user)
    left, weight = (given[name] for name in names)
    return left is node and isinstance(weight, Node) and values.is_constant(weight)


def add(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of add: adds a mask to scores, or a bias or a residual to a product, or
    is part of an activation that is written with several operators."""
    x, y = a["self"], a["other"]
    if a["alpha"] == 1 and any(isinstance(n, Node) and isinstance(values.of[n], PointwiseFunction) for n in (x, y)):
        made = pointwise(values, node, operator.add, (x, y))
        if not isinstance(made, str):
            return made
    if _is_same(values, x, y) and shape_of(x) == shape_of(node):
        return multiplied(values, x, 1 + a["alpha"], module_path(node))
    for term, by in ((x, values.number(y)), (y, values.number(x))):
        if a["alpha"] == 1 and by is not None and isinstance(term, Node):
            return changed(values, term, module_path(node), shift=by)
    if a["alpha"] != 1 or not isinstance(x, Node) or not isinstance(y, Node):
        return "an addition with alpha is not supported here"
    for scores, mask in ((values.of[x], y), (values.of[y], x)):
        if isinstance(scores, PartialAttention):
            if not scores.normal and is_host(values.of[mask]) and dtype_of(mask) != torch.bool:
                return replace(scores, masks=(*scores.masks, mask))
            return "a mask of an attention must be float, computed on the host, and added before the softmax"
    for taking, other in ((x, y), (y, x)):
        found = open_product(values, taking)
        if found is None or found[1].shape != shape_of(node) or dtype_of(other) != torch.float32:
            continue
        fused = with_bias(values, *found, other) or with_residual(values, *found, other)
        if fused is not None:
            return Value(fused, found[1])
    return summed(values, node, x, y) or "an addition is supported only to the result of a matrix product"


def _is_same(values: AbstractState, x: Any, y: Any) -> bool:
    """Whether two operands are one result of the machine."""
    if not isinstance(x, Node) or not isinstance(y, Node):
        return False
    of = values.of[x]
    return not is_host(of) and (x is y or (isinstance(of, Value) and of == values.of[y]))


def with_bias(values: AbstractState, before: Gemm, view: View, other: Node) -> Gemm | None:
    """Return the product `before` with a constant vector added to its bias, as a new layer. view: where each element of
    the sum lies in the product's result. other: the node of the vector, (columns of the product,). Returns None if
    `other` is no such vector, if the product has a factor, or if the last dimension of `view` is not all of the
    product's columns."""
    shape = shape_of(other)
    bias = values.vector(other, before.width, 0.0)
    if bias is None or shape[-1:] != (before.width,) or before.factor != 1 or not in_rows(view, before.width):
        return None
    return values.layers.fuse(before, bias=before.bias + bias)


def with_residual(values: AbstractState, before: Gemm, view: View, other: Node) -> Gemm | None:
    """Fuse the addition of a tensor into a product: the tensor becomes its residual (previous-layer term). values: the
    state, which gets the new layer. before: the product. view: where each element of the sum lies in the product's
    result. other: the node of the tensor; one of the host becomes an input of the machine. Returns the new product;
    None if it has a residual already, or if the tensor has another view or width, or depends on the product."""
    if before.residual is not None:
        return None
    residual = values.operand(other, lambda shown, width: (shown, width) == (view, before.width))
    if residual is None and is_host(values.of[other]):
        residual = Value(values.source(other, view, before.width), view)
    # A product cannot have a residual that depends on it.
    if residual is None or before.y in values.layers.behind([residual.base]):
        return None
    return values.layers.fuse(before, residual=residual.base.y)


def scale(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of mul and div. A constant factor of attention scores (or one per head)
    becomes their scale; one of a product becomes its factor, or its scale after an activation. A factor that is not
    constant is accepted only as the gate of a product, or as part of an activation that is written with several
    operators, such as x * sigmoid(x)."""
    x, y = a["self"], a["other"]
    division = packet(node) is aten.div
    if not division and values.number(y) is None:
        x, y = y, x
    factor = values.number(y)
    if a.get("rounding_mode"):
        return "a division with rounding is not supported"
    scaled = _scaled_by_head(values, a, division) if factor is None else None
    if scaled is not None:
        return scaled
    gated = gate(values, node, a["self"], a["other"]) if factor is None and not division else None
    if gated is not None:
        return gated
    for term, by in [(a["self"], a["other"])] + ([] if division else [(a["other"], a["self"])]):
        vector = _vector(values, by) if factor is None else None
        if vector is not None and isinstance(term, Node) and not (division and not vector.all()):
            made = changed(values, term, module_path(node), scale=1 / vector if division else vector)
            if not isinstance(made, str):
                return made
    if factor is None or (isinstance(x, Node) and isinstance(values.of[x], PointwiseFunction)):
        return pointwise(values, node, operator.truediv if division else operator.mul, (a["self"], a["other"]))
    if not isinstance(x, Node):
        return "a factor must be a constant number"
    if division and not factor:
        return "a division by 0 is not supported"
    return multiplied(values, x, 1 / factor if division else factor, module_path(node))


def multiplied(values: AbstractState, x: Node, factor: float, path: str) -> Abstract | str:
    """Return the value of x times a number. x: a result of the machine. The number becomes a factor of scores or of a
    product, or is multiplied into the scale behind an activation or a norm; where neither is possible, a pass (a layer
    without a product) multiplies. path: the module path of that pass. Returns a reason (text) for a factor that is 0 or
    not finite, and for an x that is no whole activation."""
    if not (isfinite(factor) and factor):
        return f"a factor of {factor:g} is not supported"
    value = values.of[x]
    if isinstance(value, PartialAttention) and not value.masks and not value.normal:
        if value.cap is not None:
            return replace(value, cap=value.cap * factor)
        return replace(value, scale=value.scale * factor)
    if isinstance(value, Value) and isinstance(value.base, Gemm) and value.base.gated:
        return Value(scaled_gate(values, value.base, factor), value.view)
    if isinstance(value, Value) and isinstance(value.base, Gemm) and value.base.activation and not value.base.norm:
        return Value(values.layers.fuse(value.base, **_gain(value.base, factor)), value.view)
    found = open_product(values, x)
    if found is not None and found[0].residual is None:
        return Value(values.layers.fuse(found[0], factor=found[0].factor * factor), found[1])
    return changed(values, x, path, scale=factor)


def changed(
    values: AbstractState, x: Node, path: str, scale: float | Float64 = 1.0, shift: float | Float64 = 0.0
) -> Abstract | str:
    """Return the value of x times `scale` plus `shift`. x: a result of the machine. The numbers are joined with the
    scale and shift of x if x is a norm or a pass (a layer without a product), else a new pass applies them. scale,
    shift: a number, or one for each column, (columns,), if columns are the last dimension of x. path: the module path
    of the pass. Returns a reason (text) for numbers that are not finite, and for an x that is no whole activation."""
    sizes = [np.size(each) for each in (scale, shift) if np.ndim(each)]

    def fits(view: View, width: int) -> bool:
        return not sizes or (in_rows(view, width) and set(sizes) == {width})

    whole = None if is_host(values.of[x]) else values.operand(x, fits)
    if whole is None or not np.isfinite(scale).all() or not np.isfinite(shift).all():
        return "a constant that is added or multiplied must be finite, and the other operand all of an activation"
    base, width = whole.base, whole.base.width
    fields = {name: np.broadcast_to(each, width) for name, each in (("scale", scale), ("shift", shift))}
    is_behind = isinstance(base, Gemm) and (base.norm is not None or not base.multiplies)
    if not isinstance(base, Gemm) or not is_behind or base.in_heads or base.activation is not None:
        return Value(values.layers.pass_over(path, base, **fields), whole.view)
    if base.scale is not None:
        fields["scale"] = base.scale * fields["scale"]
    if base.shift is not None:
        fields["shift"] = base.shift * scale + fields["shift"]
    return Value(values.layers.fuse(base, path, **fields), whole.view)


def _vector(values: AbstractState, x: Any) -> Float64 | None:
    """A constant with a number for each column, (columns,) in float64; None for anything else."""
    shape = shape_of(x) if values.is_constant(x) else ()
    return values.vector(x, shape[-1], 1.0) if shape and prod(shape) == shape[-1] else None


def _scaled_by_head(values: AbstractState, a: Arguments, division: bool) -> PartialAttention | None:
    """Scores (batch, heads, seq, seq) multiplied (or divided) by a constant per head, (heads, 1, 1); None if the
    operator is not that."""
    pairs = [(a["self"], a["other"])] + ([] if division else [(a["other"], a["self"])])
    for x, y in pairs:
        scores = values.of[x] if isinstance(x, Node) else None
        if not isinstance(scores, PartialAttention) or scores.masks or scores.normal or not values.is_constant(y):
            continue
        if scores.cap is not None:
            continue
        heads = shape_of(x)[1]
        each = values.vector(y, heads, 1.0) if shape_of(y)[-3:] == (heads, 1, 1) else None
        if each is not None:
            return replace(scores, scale=scores.scale * (1 / each if division else each))
    return None


def tanh(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of tanh: bounds scores, or is part of an activation that is written with
    several operators."""
    scores = values.of[a["self"]]
    if isinstance(scores, PartialAttention):
        if scores.masks or scores.normal or scores.cap is not None:
            return "scores are bounded once, before any mask"
        return replace(scores, cap=1.0)
    return pointwise(values, node, np.tanh, [a["self"]])


def of_integers(values: AbstractState, node: Node, a: Arguments) -> Abstract | str:
    """Lowering rule (`values.LoweringPattern`) of operators on quantised numbers: it returns the reason why the host
    computes them. Constant ones, such as a weight, become numbers before the machine starts."""
    if packet(node) in INTEGER_PRODUCTS:
        return f"a product of {types_of(node)}; the machine multiplies float32"
    return f"{op_name(node)} is of integers; the machine computes in float32"


RULES: dict[Any, LoweringPattern] = VIEWS | {
    aten.linear: linear,
    aten.matmul: matmul,
    aten.relu: activation(lambda a: ActivationFunction.RELU),
    aten.silu: activation(lambda a: ActivationFunction.SILU),
    aten.gelu: activation(
        lambda a: ActivationFunction.GELU_TANH if a["approximate"] == "tanh" else ActivationFunction.GELU_ERF
    ),
    aten.pow: elementwise(operator.pow, "self", "exponent"),
    aten.tanh: tanh,
    aten.sigmoid: elementwise(expit, "self"),
    aten.erf: elementwise(erf, "self"),
    aten.layer_norm: layer_norm,
    aten.rms_norm: rms_norm,
    aten.add: add,
    aten.cat: joined,
    aten.mul: scale,
    aten.div: scale,
    **dict.fromkeys(QUANTISED_OPS, of_integers),
    ROTATE: rotate,
    aten.index_copy: index_copy,
    ROLL_IN: roll_in,
    aten.where: filled,
    aten.softmax: softmax,
    aten.scaled_dot_product_attention: scaled_dot_product_attention,
}

"""The lowering rule of each operator."""

# Operators that must not run on the host after the machine has started.
PRODUCTS = {
    *(aten.linear, aten.matmul, aten.bmm, aten.baddbmm, aten.einsum, aten.bilinear),
    *(aten.tensordot, aten.inner, aten.linalg_matmul, aten.scaled_dot_product_attention),
    *(aten.conv1d, aten.conv2d, aten.conv3d, aten.convolution, aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu),
}

LEFT_AND_WEIGHT = {aten.linear: ("input", "weight"), aten.matmul: ("self", "other")}
"""Arguments of products that may have a constant weight."""
