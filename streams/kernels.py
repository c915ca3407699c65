"""The library kernels of stream programs: for each one its contract, as data.

A kernel is a pure function of tiles. `KERNELS` states how it treats a pending reduction: a sum commutes with what is
linear, a maximum with what never decreases. `pending_of` says what is pending in the result, and `kernel_types` what
follows for types and layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..base.element_types import ElementType
from ..isa.overlays.tasks.kernels import CONTRACTS, LibraryKernel
from . import layouts
from .layouts import LOCAL, NONE, Distribution, Pending
from .source import Refusal
from .syntax.nodes import Attribute, Identifier, Invocation, Subscript, SyntaxNode
from .syntax.parser import parsed_expression
from .syntax.printer import short

KERNELS = {name: kernel for name, kernel in CONTRACTS.items() if kernel.rule}
"""Kernels with tiles as operands. `concat`, `zeros`, `full` and `allreduce` have functions of their own below."""

ALIASES = {
    "add": "add",
    "amax": "reduce_max",
    "concatenate": "concat",
    "divide": "div",
    "exp": "exp",
    "matmul": "matmul",
    "max": "reduce_max",
    "maximum": "maximum",
    "minimum": "minimum",
    "multiply": "mul",
    "negative": "neg",
    "reshape": "reshape",
    "rint": "rint",
    "sqrt": "sqrt",
    "subtract": "sub",
    "sum": "reduce_sum",
    "transpose": "transpose",
    "true_divide": "div",
}
"""Functions of NumPy with the contract of a kernel."""


@dataclass(frozen=True)
class KernelOperand:
    """A value as an operand of a kernel. type: of its shard; None if unknown. dist: its distribution over the
    instances. written: its expression in the program, or a text that messages call it."""

    type: ElementType | None
    dist: Distribution = LOCAL
    written: SyntaxNode | str = "this value"

    @property
    def text(self) -> str:
        """Its expression in the program, or what messages call it."""
        return self.written if isinstance(self.written, str) else short(self.written)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the shard in elements; () for a number, and if the type is unknown."""
        return self.type.shape if self.type is not None else ()


Options = Mapping[str, object]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call of a kernel. operands: in order. mesh: the size of each axis of the task's grid. options: such as axis, by
    name."""

    kernel: LibraryKernel
    operands: Sequence[KernelOperand]
    mesh: Sequence[int]
    options: Options = field(default_factory=dict)


# -- reductions that are pending --------------------------------------------------------------------------------------


def pending_of(kernel: LibraryKernel, operands: Sequence[KernelOperand]) -> Pending:
    """Return the reductions that are pending in the result of a kernel because they are pending in its operands. Raises
    `Refusal` if the kernel of the reduced operands is not the reduction of its results, as a product of two sums is
    not."""
    owing = [k for k, operand in enumerate(operands) if operand.dist.pending]
    if not owing:
        return NONE
    first = operands[owing[0]]
    ops = {op for k in owing for op, _ in operands[k].dist.pending}
    if len(ops) > 1 or not ops <= {"+", "max"}:
        raise _unpaid(first, f"{kernel.name} of values with different reductions pending")
    rest = [operand for k, operand in enumerate(operands) if k not in owing]
    (op,) = ops
    return (_sum if op == "+" else _maximum)(kernel, operands, owing, rest)


def _sum(
    kernel: LibraryKernel, operands: Sequence[KernelOperand], owing: list[int], rest: list[KernelOperand]
) -> Pending:
    first = operands[owing[0]]
    if kernel.jointly:
        full = [operand for operand in rest if operand.dist.number != 0]
        if full:
            message = f"{first.text} is a partial {layouts.described(first.dist.pending)}, {full[0].text} is none"
            why = f"{full[0].text} would be added once per shard: once for every instance along these axes"
            own = [f"if streams complete it: local({first.text})"] if full[0].dist.local else []
            raise Refusal("pending", message, None, why, _first(first), *own)
        if any(operands[k].dist.pending != first.dist.pending for k in owing):
            other = next(operands[k] for k in owing if operands[k].dist.pending != first.dist.pending)
            message = f"{first.text} and {other.text} have different reductions pending"
            both = f"{layouts.described(first.dist.pending)}; {layouts.described(other.dist.pending)}"
            raise Refusal("pending", message, None, both, _first(first))
        return first.dist.pending
    if len(owing) > 1:
        message = f"{kernel.name} of two partial sums, {first.text} and {operands[owing[1]].text}"
        raise Refusal("pending", message, None, "products of different shards would be missing", _first(first))
    if owing[0] not in kernel.linear:
        raise _unpaid(first, f"{kernel.name} is not linear in {first.text}")
    _alike(kernel, first, rest)
    return first.dist.pending


def _maximum(
    kernel: LibraryKernel, operands: Sequence[KernelOperand], owing: list[int], rest: list[KernelOperand]
) -> Pending:
    first = operands[owing[0]]
    if any(k not in kernel.increasing for k in owing):
        raise _unpaid(first, f"{kernel.name} does not keep the order of the elements of {first.text}")
    if len(owing) > 1 and not kernel.joins:
        raise _unpaid(first, f"{kernel.name} of two maxima that are pending")
    if kernel.decreases:
        number = rest[0].dist.number if rest else None
        if number is None or number < 0 or (number == 0 and kernel.name == "div"):
            what = rest[0].text if rest else first.text
            sign = f"{what} is not known to be positive" if number is None else f"{number} does not keep the order"
            raise _unpaid(first, f"{kernel.name} with {what}: {sign}", f"of {first.text} a ")
    found: Pending = NONE
    for k in owing:
        _alike(kernel, operands[k], [operand for operand in operands if operand is not operands[k]])
        found |= operands[k].dist.pending
    return found


def _alike(kernel: LibraryKernel, owing: KernelOperand, rest: Sequence[KernelOperand]) -> None:
    """The other operands must be equal copies along the mesh axes of the reduction."""
    for other in rest:
        cut = {axis for axis in other.dist.labels or () if axis is not None}
        known = other.dist.labels is not None or other.dist.pending == owing.dist.pending
        if kernel.joins and other.dist.pending and known and not owing.dist.axes & cut:
            continue
        if not other.dist.alike(owing.dist.axes):
            axes = ", ".join(map(str, sorted(owing.dist.axes)))
            message = f"{owing.text} is pending over mesh axes {axes}, along which {other.text} is no equal copy"
            raise Refusal("pending", message, None, _first(owing))


def _unpaid(operand: KernelOperand, what: str, whose: str = "whose ") -> Refusal:
    message = f"{what}, {whose}{layouts.described(operand.dist.pending)} is pending"
    return Refusal("pending", message, None, _first(operand))


def _first(operand: KernelOperand) -> str:
    """The fix: reduce before."""
    return f"reduce it first: {collective(operand.text, operand.dist.pending)}"


def collective(text: str, pending: Pending) -> str:
    """Return the text of an expression with the calls that complete it, such as `x.allreduce("+")`. text: the
    expression. pending: the reductions that are not complete."""
    parts = []
    for op in sorted({op for op, _ in pending}):
        axes = sorted(axis for o, axis in pending if o == op)
        if op == "?":
            return "the same reduction must be pending on all paths, so reduce it on the path that has it"
        parts.append(f'.allreduce("{op}", axes={tuple(axes)})')
    return called(text, parts)


def called(text: str, calls: Sequence[str]) -> str:
    """Return the text of an expression with calls of methods behind it, in parentheses where it needs them. text: the
    expression. calls: their texts, each with its dot."""
    simple = isinstance(parsed_expression(text), Identifier | Invocation | Subscript | Attribute)  # it may be cut
    return (text if simple else f"({text})") + "".join(calls)
