"""Rules of elementwise operators: padding stays at its positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, trunc
from typing import Any

import torch
from torch.fx import Node

from ..capture import arguments, dtype_of, packet
from ..mask import HIDDEN
from ..normal_form.operators import OPERATORS, OperatorKind
from .state import Atom, Axis, PaddingFill, TensorState, along, broadcast

aten = torch.ops.aten

Bounds = tuple[float, float]
"""Lower and upper bound of all elements of a tensor."""

CASTS = {op for op, kind in OPERATORS.items() if kind is OperatorKind.COPY} | {aten.alias, aten.detach}
"""Operators that keep the numbers, perhaps with another type."""
NOT = {aten.equal, aten.frexp}
"""Operators tagged as pointwise that are not supported here: one bool for all elements, or two results."""
FINITE = {
    *(aten.add, aten.sub, aten.mul, aten.neg, aten.abs, aten.sign, aten.lerp, aten.addcmul),
    *(aten.relu, aten.gelu, aten.silu, aten.sigmoid, aten.tanh, aten.erf, aten.elu, aten.selu, aten.celu, aten.mish),
    *(aten.leaky_relu, aten.hardtanh, aten.relu6, aten.softplus, aten.hardswish, aten.hardsigmoid, aten.threshold),
    *(aten.sin, aten.cos, aten.atan, aten.floor, aten.ceil, aten.round, aten.trunc, aten.log_sigmoid),
    *(aten.clamp, aten.maximum, aten.minimum, aten.where, *CASTS),
}
"""Operators whose results are finite if their operands are, apart from overflows."""
AND = {aten.bitwise_and, aten.logical_and}
OR = {aten.bitwise_or, aten.logical_or}
EXP_OVERFLOWS = 80.0
"""exp of more than this may overflow float32."""


def is_elementwise(node: Node) -> bool:
    """Return whether an operator computes each element from elements at the same position of its operands."""
    op = packet(node)
    is_known = op in CASTS or OPERATORS.get(op) is OperatorKind.POINTWISE
    return is_known or (op not in NOT and torch.Tag.pointwise in getattr(node.target, "tags", ()))


@dataclass(frozen=True)
class _PositionedOperator:
    """An operator at one position of its operands. fills: what is known of each operand there. bounds: of each
    operand."""

    node: Node
    fills: Mapping[Node, PaddingFill]
    bounds: Mapping[Node, Bounds]

    def fill(self, x: Any) -> PaddingFill:
        """What is known of an argument, which is a node or a number."""
        if isinstance(x, Node):
            return self.fills[x]
        return (
            PaddingFill(copies=True, value=float(x), finite=isfinite(x))
            if isinstance(x, int | float)
            else PaddingFill()
        )


def elementwise(node: Node, states: Mapping[Node, TensorState]) -> TensorState:
    """Return the state of an elementwise operator's result. states: of the operands that are nodes. Raises `MixedError`
    if the axes of the operands do not correspond."""
    if packet(node) in CASTS:
        first = node.all_input_nodes[0]
        states = {first: states[first]}
    ndim = max(len(state.axes) for state in states.values())
    axes = broadcast(list(states.values()), ndim)
    bounds = {x: (state.low, state.high) for x, state in states.items()}
    low, high = _bounds(node, bounds)

    def fill(operands: list[tuple[TensorState, Axis]], place: int) -> PaddingFill:
        atoms = next(axis for _, axis in operands if axis)
        fills = {x: along(s, axis, atoms[place], place) for x, (s, axis) in zip(states, operands, strict=True)}
        return _filled(_PositionedOperator(node, fills, bounds))

    made: list[Axis] = []
    for own in axes:
        shown = next((axis for axis in own if axis), ())
        operands = list(zip(states.values(), own, strict=True))
        made.append(
            tuple(
                replace(atom, fill=fill(operands, i), ahead=None) if atom.dim is not None else atom
                for i, atom in enumerate(shown)
            )
        )
    everywhere = _filled(_PositionedOperator(node, {x: _varying(state) for x, state in states.items()}, bounds))
    result = TensorState(tuple(made), low, high, everywhere.value, everywhere.finite, _indexes(node, states))
    if packet(node) in CASTS:
        result = replace(result, counts=next(iter(states.values())).counts)
    return _with_ahead(node, states, axes, result, bounds)


def _with_ahead(
    node: Node,
    states: Mapping[Node, TensorState],
    axes: list[list[Axis]],
    result: TensorState,
    bounds: Mapping[Node, Bounds],
) -> TensorState:
    """The result with `Atom.ahead` set, if an operand has it."""
    if not any(atom.ahead is not None for state in states.values() for atom in state.atoms):
        return result
    made: list[Axis] = []
    for own, axis in zip(axes, result.axes, strict=True):
        atoms: list[Atom] = []
        for place, atom in enumerate(axis):
            known = [part[place].ahead if part else None for part in own]
            if atom.dim is not None and any(known) and result.query_of(atom) is not None:
                pairs = list(zip(states.items(), known, strict=True))
                fills = {x: ahead if ahead is not None else _varying(state) for (x, state), ahead in pairs}
                others = {x: (ahead and ahead.others) or _varying(state) for (x, state), ahead in pairs}
                made_of = [
                    replace(_filled(_PositionedOperator(node, some, bounds)), copies=False, others=None)
                    for some in (fills, others)
                ]
                atom = replace(atom, ahead=replace(made_of[0], others=made_of[1]))
            atoms.append(atom)
        made.append(tuple(atoms))
    return replace(result, axes=tuple(made))


def _varying(state: TensorState) -> PaddingFill:
    """What is known of an operand's elements at all positions."""
    return PaddingFill(value=state.value, finite=state.is_finite)


def _indexes(node: Node, states: Mapping[Node, TensorState]) -> int | None:
    """State.indexes of the result: a cast keeps indices of valid positions, and so does a clamp at 0; a count of valid
    positions minus 1 is the index of the last."""
    kind, a = packet(node), arguments(node)
    if kind in CASTS:
        return next(iter(states.values())).indexes
    x = states.get(a.get("self"))
    if x is None or len(states) != 1:
        return None
    if kind in (aten.clamp, aten.relu) and not a.get("min") and a.get("max") is None:
        return x.indexes
    change = {aten.sub: a.get("other"), aten.add: -a["other"] if isinstance(a.get("other"), int) else None}.get(kind)
    return x.counts if change == 1 and a.get("alpha", 1) == 1 else None


def _filled(op: _PositionedOperator) -> PaddingFill:
    """What is known of the operator's result, from what is known of its operands."""
    fills, kind = op.fills.values(), packet(op.node)
    copies = all(fill.copies for fill in fills)
    may_be_nan = any(fill.may_be_nan for fill in fills)
    dtype = dtype_of(op.node)
    if may_be_nan and (kind not in FINITE or dtype is None or not dtype.is_floating_point):
        return PaddingFill(copies, finite=dtype is not None and not dtype.is_floating_point)
    if all(fill.value is not None for fill in fills):
        value = _evaluated(op)
        return PaddingFill(copies, value, finite=value is not None and isfinite(value) and not may_be_nan)
    finite = all(fill.finite for fill in fills) and (kind in FINITE or _is_finite_here(op))
    finite = finite or (dtype is not None and not dtype.is_floating_point)
    rule = _KNOWN.get(kind)
    known = None if rule is None else rule(op, arguments(op.node))
    if known is None:
        return PaddingFill(copies, finite=finite, shared=_is_shared(op, kind))
    if known.value is not None:
        return PaddingFill(copies, known.value, finite=isfinite(known.value) and known.finite)
    return PaddingFill(copies, None, known.most, known.least, finite and known.finite, _is_shared(op, kind))


def _is_shared(op: _PositionedOperator, kind: Any) -> bool:
    """Fill.shared of the result: a sum or a product of such operands has it, and a choice whose condition is equal at
    the last valid position."""
    if kind not in (aten.add, aten.sub, aten.mul, aten.neg, aten.where, *CASTS):
        return False
    condition = arguments(op.node).get("condition")
    return all(fill.copies if x is condition else fill.is_as_finite for x, fill in op.fills.items())


def _evaluated(op: _PositionedOperator) -> float | None:
    """The operator's result if all operands are known numbers; None if that fails or is NaN."""

    def tensor(x: Node) -> Any:
        return torch.tensor(op.fills[x].value, dtype=dtype_of(x))

    args, kwargs = torch.fx.node.map_arg((op.node.args, op.node.kwargs), lambda x: tensor(x) if x in op.fills else None)
    try:
        made = float(op.node.target(*args, **kwargs))
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError):
        return None
    return None if isnan(made) else made


# -- operands that are not all known


Known = Callable[[_PositionedOperator, dict[str, Any]], PaddingFill | None]
"""What is known of an operator's result; None for nothing."""


def _mul(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    x, y = op.fill(a["self"]), op.fill(a["other"])
    for one, other in ((x, y), (y, x)):
        if one.value == 0 and other.finite:
            return PaddingFill(value=0.0, finite=one.finite)
        if one.value is not None and one.value > 0:
            return _scaled(other, one.value)
    return None


def _div(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    x, y = op.fill(a["self"]), op.fill(a["other"])
    if x.value == 0 and y.copies and y.finite and y.value is None:
        # 0 / 0 is NaN, but then the last valid element was divided by the same 0.
        return PaddingFill(value=0.0, finite=x.finite and _is_finite_here(op))
    return _scaled(x, 1 / y.value) if y.value is not None and y.value > 0 else None


def _scaled(fill: PaddingFill, factor: float) -> PaddingFill:
    most = None if fill.most is None else fill.most * factor
    return PaddingFill(most=most, least=None if fill.least is None else fill.least * factor, finite=fill.finite)


def _and(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return PaddingFill(value=0.0) if 0 in (op.fill(a["self"]).value, op.fill(a["other"]).value) else None


def _or(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    is_truth = dtype_of(op.node) == torch.bool
    return PaddingFill(value=1.0) if is_truth and 1 in (op.fill(a["self"]).value, op.fill(a["other"]).value) else None


def _chosen(condition: PaddingFill, yes: PaddingFill, no: PaddingFill) -> PaddingFill:
    if condition.value is not None and not condition.may_be_nan:
        return yes if condition.value else no
    value = yes.value if yes.value == no.value else None
    most, least = max(yes.top, no.top), min(yes.bottom, no.bottom)
    return PaddingFill(
        False, value, most if most < inf else None, least if least > -inf else None, yes.finite and no.finite
    )


def _where(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return _chosen(op.fill(a["condition"]), op.fill(a["self"]), op.fill(a["other"]))


def sum_of(x: PaddingFill, y: PaddingFill) -> PaddingFill | None:
    """Return what is known of x + y, if one is a huge number or infinite and the other is an ordinary one, or one that
    is huge with the same sign; None for other sums."""
    for one, other in ((x, y), (y, x)):
        if one.value is not None and not isfinite(one.value) and other.finite:
            return PaddingFill(value=one.value)
        if one.top <= HIDDEN and (other.finite or other.top <= HIDDEN):
            return PaddingFill(most=one.top, finite=one.finite and other.finite)
        if one.bottom >= -HIDDEN and (other.finite or other.bottom >= -HIDDEN):
            return PaddingFill(least=one.bottom, finite=one.finite and other.finite)
    return None


def _add(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return sum_of(op.fill(a["self"]), op.fill(a["other"])) if a["alpha"] == 1 else None


def _sub(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return sum_of(op.fill(a["self"]), _negated(op.fill(a["other"]))) if a["alpha"] == 1 else None


def _negated(x: PaddingFill) -> PaddingFill:
    value = None if x.value is None else -x.value
    most, least = (None if n is None else -n for n in (x.least, x.most))
    return replace(x, value=value, most=most, least=least)


def _relu(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return PaddingFill(value=0.0) if op.fill(a["self"]).top <= 0 else None


def _vanishing(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    """exp and sigmoid of numbers far below 0 are 0."""
    return PaddingFill(value=0.0) if op.fill(a["self"]).top <= HIDDEN else None


def _same(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    (x,) = op.fills
    both = [dtype for dtype in (dtype_of(x), dtype_of(op.node)) if dtype is not None and dtype.is_floating_point]
    return op.fills[x] if len(both) == 2 or dtype_of(x) == dtype_of(op.node) else None


def _is_greater(x: PaddingFill, y: PaddingFill) -> PaddingFill | None:
    """x > y, or x >= y, if the bounds decide it."""
    if x.top < y.bottom:
        return PaddingFill(value=0.0)
    return PaddingFill(value=1.0) if x.bottom > y.top else None


def _greater(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return _is_greater(op.fill(a["self"]), op.fill(a["other"]))


def _less(op: _PositionedOperator, a: dict[str, Any]) -> PaddingFill | None:
    return _is_greater(op.fill(a["other"]), op.fill(a["self"]))


_KNOWN: dict[Any, Known] = {
    **dict.fromkeys((aten.gt, aten.ge), _greater),
    **dict.fromkeys((aten.lt, aten.le), _less),
    aten.relu: _relu,
    **dict.fromkeys((aten.exp, aten.sigmoid), _vanishing),
    aten.mul: _mul,
    aten.div: _div,
    **dict.fromkeys(AND, _and),
    **dict.fromkeys(OR, _or),
    aten.where: _where,
    aten.add: _add,
    aten.sub: _sub,
    **dict.fromkeys(CASTS, _same),
}


# -- bounds of all elements


def _is_finite_here(op: _PositionedOperator) -> bool:
    """Whether the operands of an operator with poles or overflow are within bounds that keep its result finite."""
    kind, a = packet(op.node), arguments(op.node)

    def bounds(name: str) -> Bounds:
        return _bounds_of(a[name], op.bounds)

    if kind is aten.div:
        low, high = bounds("other")
        return low > 0 or high < 0
    if kind in (aten.sqrt, aten.rsqrt, aten.log):
        return bounds("self")[0] > 0 or (kind is aten.sqrt and bounds("self")[0] == 0)
    if kind is aten.log1p:
        return bounds("self")[0] > -1
    if kind in (aten.exp, aten.expm1):
        return bounds("self")[1] <= EXP_OVERFLOWS
    if kind is aten.pow:
        return isinstance(a["exponent"], int | float) and a["exponent"] >= 0 and float(a["exponent"]).is_integer()
    return False


def _bounds_of(x: Any, bounds: Mapping[Node, Bounds]) -> Bounds:
    if isinstance(x, Node):
        return bounds.get(x, (-inf, inf))
    return (float(x), float(x)) if isinstance(x, int | float) else (-inf, inf)


NON_NEGATIVE = {aten.relu, aten.relu6, aten.abs, aten.exp, aten.sqrt, aten.rsqrt, aten.softplus}
SHARES = {aten.sigmoid, aten.hardsigmoid}


def _bounds(node: Node, bounds: Mapping[Node, Bounds]) -> Bounds:
    """Bounds of the operator's result."""
    kind, a = packet(node), arguments(node)

    def of(name: str) -> Bounds:
        return _bounds_of(a[name], bounds)

    if dtype_of(node) == torch.bool or kind in SHARES:
        return 0.0, 1.0
    if kind in NON_NEGATIVE:
        return 0.0, inf
    if kind in CASTS:
        return _cast(bounds[node.all_input_nodes[0]], dtype_of(node))
    if kind in (aten.tanh, aten.sin, aten.cos, aten.erf):
        return -1.0, 1.0
    if kind is aten.pow:
        return (0.0, inf) if a["exponent"] in (2, 4) else (-inf, inf)
    if kind in (aten.add, aten.sub) and a["alpha"] == 1:
        (low, high), (less, more) = of("self"), of("other")
        return _ordered(low + less, high + more) if kind is aten.add else _ordered(low - more, high - less)
    if kind is aten.neg:
        low, high = of("self")
        return -high, -low
    if kind is aten.mul and a["self"] is a["other"]:
        return 0.0, inf
    if kind is aten.mul or (kind is aten.div and of("other")[0] > 0 and a.get("rounding_mode") is None):
        (low, high), (less, more) = of("self"), of("other")
        if kind is aten.div:
            return (0.0 if low >= 0 else -inf), (0.0 if high <= 0 else inf)
        corners = [x * y for x in (low, high) for y in (less, more)]
        corners = [0.0 if isnan(c) else c for c in corners]  # 0 times an infinite bound
        return min(corners), max(corners)
    if kind is aten.where:
        (low, high), (less, more) = of("self"), of("other")
        return min(low, less), max(high, more)
    if kind is aten.clamp:
        low, high = of("self")
        for name, choose in (("min", max), ("max", min)):
            if a.get(name) is not None:
                limit = _bounds_of(a[name], bounds)
                low, high = choose(low, limit[0]), choose(high, limit[1])
        return low, high
    if kind in (aten.maximum, aten.minimum):
        (low, high), (less, more) = of("self"), of("other")
        return (max(low, less), max(high, more)) if kind is aten.maximum else (min(low, less), min(high, more))
    return -inf, inf


def _cast(bounds: Bounds, dtype: torch.dtype | None) -> Bounds:
    """Bounds after a cast: an integer type rounds towards 0; numbers beyond its range may become any of its numbers."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return bounds
    limits = torch.iinfo(dtype)
    low, high = (n if abs(n) == inf else float(trunc(n)) for n in bounds)
    if dtype == torch.int64:
        return low, high
    return (low, high) if limits.min <= low and high <= limits.max else (limits.min, limits.max)


def _ordered(low: float, high: float) -> Bounds:
    return (-inf if isnan(low) else low), (inf if isnan(high) else high)
