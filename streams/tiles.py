"""Expressions with tiles: kernels, operators, slices, loads and stores of tensors, collectives.

Each value has, beside the type of its shard, a distribution: what the shards of all instances are together. A wrong
layout is a finding at the user's expression; the reading goes on with a value of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..base.element_types import BITS, FLOATS, ElementType
from ..base.operators import UNARY
from . import layouts
from .costs import CostExpressions
from .datapath import TileOperand, Unwritten
from .expressions import RegionContext
from .kernel_types import apply
from .kernels import KERNELS, KernelOperand, Options, collective
from .layouts import LOCAL, Distribution
from .orders.shown import Nest
from .source import Refusal
from .syntax import nodes as syn
from .syntax.control import varying
from .syntax.printer import short, shown
from .tree import StreamDecl, TaskDecl
from .values import INT, OPERATORS, Data, Static, Value, compute, is_whole, type_of
from .words import comes_by_column, comes_by_row

KERNEL_OF = {"+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul"}
"""Operators that are kernels; others are arithmetic, which nothing pending passes."""


class _ComingMatrices(NamedTuple):
    """How an operand of a product comes over a stream: by a get, whose matrices may be turned."""

    stream: StreamDecl
    get: syn.Invocation
    turned: bool = False


class TileExpressions(CostExpressions):
    """Reads expressions of a task instance, with tiles and tensors.

    context, task, name, tid: as for `CostExpressions`. Attributes: varying: the variables whose static values differ
    between instances. asking: the parameters whose layouts ask for collectives ("!"). by_layout: whether a result may
    depend on the labels of layouts beyond what the rules of layouts check, so that other labels might change it. nest:
    the loops around the statement that is read. bound: the value of the index of each of these. entered: how many of
    them the innermost loop statement made."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        self.mesh = task.mapping
        found = context.varying.get(task.body)
        if found is None:
            found = context.varying.setdefault(task.body, varying(task.body))
        self.varying = found
        self.asking: set[str] = set()
        self.by_layout = False
        self._loops = 0
        self.nest: Nest = ()
        self.bound: tuple[Value | None, ...] = ()
        self.entered = 0
        self._sums: dict[str, _SumOfIndices] = {}

    # -- values ------------------------------------------------------------------------------------------------------

    def report(self, refusal: Refusal, node: syn.SyntaxNode) -> None:
        """Add a refusal as a finding, at its own place, or at the node if it has none. Reading goes on."""
        place = refusal.place or node.place
        self.context.source.add(refusal.code, refusal.message, place, *refusal.notes, subject=self.task.name)

    def varies(self, node: syn.SyntaxNode) -> bool:
        """Return whether the value of an expression may differ between instances, because a static name in it does
        (`varying`)."""
        if isinstance(node, syn.Identifier | syn.Literal):
            return isinstance(node, syn.Identifier) and node.name in self.varying
        known = self.context.varies.get(node)
        if known is None:
            known = self.context.varies.setdefault(node, not self.varying.isdisjoint(node.facts.names))
        return known

    def taken(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression, read its tokens and count its cycles. A reduction of it may be pending.
        Raises `Refusal` as `eval`."""
        value = self.whole(node)
        self.loaded(value, node)
        return value

    def whole(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression of which a part is taken, or into which a value is stored. Read its tokens,
        but count no cycles. Raises `Refusal` as `eval`."""
        value = self.eval(node)
        self.read(value, node)
        return value

    def argument(self, name: str, node: syn.ExpressionNode) -> Value:
        """Return the value of an operand of a kernel, read its tokens and count its cycles. A kernel on single
        elements, and a reduction, may compute an expression in their own loop; for any other kernel it is written into
        a tile first. name: of the kernel. Raises `Refusal` as `eval`."""
        value = self.taken(node)
        found = value.unwritten if isinstance(value, Data) else None
        by_product = name == "matmul" and found is not None and (found.turned or found.in_place)
        combined = KERNELS[name].rule == "reduce" and found is not None and not found.turned
        where_read = by_product or combined or KERNELS[name].rule == "elementwise"
        return value if where_read else self.kept(value, node)

    def factor(self, node: syn.ExpressionNode, left: Value, at: syn.ExpressionNode) -> Value:
        """Return the value of the right operand of a product. A tile may come over its stream while the product is
        computed, if each step of a sum needs a part of one row of it, or each word has whole columns of a transpose,
        and no kernel variant needs the whole tile. node: the operand. left, at: the value and the expression of the
        left operand. Raises `Refusal` as `eval`."""
        shape = left.type.shape if isinstance(left, Data) and left.type is not None else ()
        found = self._matrices(node)
        comes = False
        if self.datapath is not None and found is not None and len(shape) == 2 and found.stream.packing == 1:
            of, turned = found.stream.type, found.turned
            columns = of.shape[0 if turned else -1]
            made = ElementType(of.dtype, (shape[0], columns))
            first = self.tile_operand(self.operand(at, left), left)
            assert first is not None
            right = TileOperand(ElementType(of.dtype, (shape[-1], columns)), turned, False, short(node), True)
            choice = self.datapath.chosen("matmul", [first, right], made)
            by_unit = choice is None or choice.variant is None
            taken = self.datapath.product_word(made)
            in_words = comes_by_column(of.dtype, of.shape) if turned else comes_by_row(of.dtype, of.shape, taken)
            comes = by_unit and in_words
        outer, self._sent = self._sent, found.get if comes and found is not None else self._sent
        try:
            if comes and found is not None and found.turned:
                value = self.taken(node)
                value = replace(value, unwritten=Unwritten(turned=True)) if isinstance(value, Data) else value
            else:
                value = self.argument("matmul", node)
        finally:
            self._sent = outer
        self.coming = found.stream.type if comes and found is not None else None
        return value

    def _matrices(self, node: syn.ExpressionNode) -> _ComingMatrices | None:
        """Return how a node gets matrices from a stream, perhaps their transposes, and perhaps of integers as ones of
        another type; None if it does not."""
        inner, turns = (node.base, True) if isinstance(node, syn.Attribute) and node.name == "T" else (None, False)
        if isinstance(node, syn.Invocation) and len(node.arguments) == 1 and not node.named:
            turns = node.called == "transpose"
            if node.called not in self.env and (turns or (node.called in BITS and node.called not in FLOATS)):
                inner = node.arguments[0]
        if inner is not None:
            found = self._matrices(inner)
            if found is None or found.stream.type.dtype in FLOATS or (turns and found.turned):
                return None
            return found._replace(turned=turns or found.turned)
        if not isinstance(node, syn.Invocation) or not isinstance(node.function, syn.Attribute):
            return None
        stream = self._stream_of(node.function.base) if node.function.name == "get" else None
        return _ComingMatrices(stream, node) if stream is not None and len(stream.type.shape) == 2 else None

    def given(self, node: syn.ExpressionNode, stream: StreamDecl) -> Value:
        """Return the value of the argument of a put, as `Expressions.given`. Set `by_layout` if the value depends on
        how tensors are cut, since the instance that gets it may assume another cut."""
        value = super().given(node, stream)
        self.by_layout |= isinstance(value, Data) and not value.dist.uniform
        return value

    def data(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression, and read its tokens. A pending reduction becomes a finding. Raises
        `Refusal` as `eval`."""
        value = self.taken(node)
        if isinstance(value, Data) and value.dist.pending:
            self.incomplete(self.operand(node, value), node, f"{short(node)} is read here")
            return replace(value, dist=LOCAL)
        return value

    def incomplete(self, operand: KernelOperand, node: syn.SyntaxNode, what: str) -> None:
        """Add a finding about an operand that is read while a reduction of it is pending; a note has the call that
        completes it. node: where it stands. what: the beginning of the message."""
        pending = operand.dist.pending
        message = f"{what}, and its {layouts.described(pending)} is pending"
        note = f"complete it: {collective(operand.text, pending)}"
        self.report(Refusal("pending", message, None, note), node)

    def operand(self, node: syn.ExpressionNode, value: Value) -> KernelOperand:
        """Return a value as an operand of a library kernel: its type, its distribution over the instances, and its
        text."""
        if isinstance(value, Data):
            return KernelOperand(value.type, value.dist, node)
        number = value.value if isinstance(value.value, int | float) else None
        return KernelOperand(type_of(value), LOCAL if self.varies(node) else layouts.constant(number), node)

    def kernel(
        self, name: str, nodes: Sequence[syn.ExpressionNode], at: syn.SyntaxNode, options: Options | None = None
    ) -> Value:
        """Return the result of a library kernel, read the tokens of its operands and count its cycles. name: of the
        kernel. nodes: the operands. at: the place of findings. options: such as axis, by name. A mistake becomes a
        finding, and the result is data of unknown type."""
        values = [self.argument(name, node) for node in nodes]
        return self._applied(name, nodes, values, at, options)

    def _applied(
        self,
        name: str,
        nodes: Sequence[syn.ExpressionNode],
        values: Sequence[Value],
        at: syn.SyntaxNode,
        options: Options | None = None,
    ) -> Value:
        operands = [self.operand(node, value) for node, value in zip(nodes, values, strict=True)]
        try:
            result = apply(name, operands, self.mesh, options)
        except Refusal as r:
            self.report(r, at)
            return Data()
        self.by_layout |= name in ("banded", "replace_row") and _is_cut(values[0])
        unwritten = self.computed(name, values, operands, result, at, options or {})
        return Data(result.type, dist=result.dist, unwritten=unwritten)

    def stated(self, node: syn.SyntaxNode, kind: ElementType | None) -> None:
        """Record the type that stands at a node, for the machine. kind: None if it is no type of this language."""
        self.context.reading.types.setdefault((self.task.name, node.place), set()).add(kind)

    def sized(self, node: syn.SyntaxNode, known: Static) -> None:
        """Record the value of `x.shape` or `x.ndim` at a node, for the machine; None if it differs between instances or
        iterations. known: the value in this instance."""
        shapes, at = self.context.reading.shapes, (self.task.name, node.place)
        shapes[at] = known if shapes.get(at, known) == known else None

    # -- expressions -------------------------------------------------------------------------------------------------

    def eval(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression. Raises `Refusal` as `Expressions.eval`."""
        if not isinstance(node, syn.Prefix | syn.Attribute):
            return super().eval(node)
        match node:
            case syn.Prefix(op="-"):
                self.context.step(node)
                value = self.taken(node.operand)
                if isinstance(value, Data):
                    return self._applied("neg", [node.operand], [value], node)
                return compute(UNARY["-"], [value.value], node)
            case syn.Attribute(name="T"):
                self.context.step(node)
                return self.kernel("transpose", [node.base], node)
            case syn.Attribute(name="shape" | "ndim" as what):
                self.context.step(node)
                value = self.whole(node.base)
                if isinstance(value, Data) and value.type is not None:
                    known = Static(value.type.shape if what == "shape" else len(value.type.shape))
                    self.by_layout |= what == "shape" and _is_cut(value)
                    self.sized(node, known)
                    return known
                return Data()
        return super().eval(node)

    def _binary(self, node: syn.Infix) -> Value:
        name = KERNEL_OF.get(node.op, "arithmetic")
        a = self.argument(name, node.left)
        b = self.factor(node.right, a, node.left) if name == "matmul" else self.argument(name, node.right)
        if isinstance(a, Static) and isinstance(b, Static) and node.op in OPERATORS:
            return compute(OPERATORS[node.op], [a.value, b.value], node)
        return self._applied(name, [node.left, node.right], [a, b], node)

    def _subscript(self, node: syn.Subscript) -> Value:
        base = self.kept(self.whole(node.base), node.base)
        if isinstance(base, Static):
            index = self.data(node.index)
            if isinstance(base.value, tuple) and isinstance(index, Static):
                return compute(lambda a, b: a[b], [base.value, index.value], node)
            return Data()
        part = self.select(base, node)
        if self.datapath is None or self.shard_of(node) is not None or part.type is None or not part.type.shape:
            return part
        return replace(part, unwritten=Unwritten())

    def _opaque(self, node: syn.ExpressionNode) -> Value:
        value = super()._opaque(node)
        for name in sorted(node.facts.names & self.env.keys()):
            held = self.env[name]
            if isinstance(held, Data) and held.dist.pending:
                self.incomplete(KernelOperand(held.type, held.dist, name), node, f"{name} is read here")
        return value

    # -- slices ------------------------------------------------------------------------------------------------------

    def select(self, base: Data, node: syn.Subscript) -> Data:
        """Return a part of a tile or of a tensor; data of unknown type if its size is not known. base: the value of
        which the part is taken. node: the subscript. An index outside of its axis becomes a finding. Raises `Refusal`
        for more indices than axes."""
        parts = list(node.indices)
        unknown = Data(None, dist=layouts.localised(base.dist), tensor=base.tensor)
        if base.type is None:
            for part in parts:
                self._position(part)
            return unknown
        shape, labels = base.type.shape, base.dist.labels
        dots = [k for k, part in enumerate(parts) if isinstance(part, syn.Literal) and part.value is ...]
        taking = sum(not (isinstance(part, syn.Literal) and part.value in (None, ...)) for part in parts)
        if len(dots) == 1:
            parts[dots[0] : dots[0] + 1] = [
                syn.Slicing(node.place, None, None, None) for _ in range(len(shape) - taking)
            ]
        if not shape and len(parts) == 1 and isinstance(parts[0], syn.Slicing) and shown(parts[0]) == ":":
            parts = []  # the whole of a tensor without axes
            taking = 0
        if taking > len(shape) or len(dots) > 1:
            raise Refusal("type", f"{taking} indices of {short(node.base)}, which is {base.type}", node)
        out: list[tuple[int, int | None]] = []
        local, axis = base.dist.local, 0
        for part in parts:
            if isinstance(part, syn.Literal) and part.value is None:
                out.append((1, None))
                continue
            label = labels[axis] if labels is not None else None
            if isinstance(part, syn.Slicing):
                size, same = self._slice(part, shape[axis], node)
                if size is None:
                    return unknown
                out.append((size, label))
                local = local or not same
                self.by_layout |= label is not None and any(True for _ in part.children)
            else:
                value, same = self._position(part)
                if isinstance(value, Data) and (value.type is None or value.type.shape):
                    return unknown
                if isinstance(value, Static):
                    self._inside(value, shape[axis], part, node)
                else:
                    self._all_inside(part, shape[axis], node)
                local = local or not same or label is not None
            axis += 1
        out += [(shape[k], labels[k] if labels is not None else None) for k in range(axis, len(shape))]
        kind = ElementType(base.type.dtype, tuple(size for size, _ in out))
        if base.dist.uniform:
            return Data(kind, dist=base.dist)
        dist = Distribution(None if local else tuple(label for _, label in out), base.dist.pending)
        return Data(kind, dist=dist, tensor=base.tensor)

    def _position(self, part: syn.ExpressionNode) -> tuple[Value, bool]:
        """Evaluate an index, and say whether all instances have the same one."""
        if isinstance(part, syn.Slicing):
            for bound in (part.low, part.high, part.step):
                if bound is not None:
                    self.data(bound)
            return Data(), False
        value = self.data(part)
        if isinstance(value, Static):
            return value, not self.varies(part)
        return value, value.dist.uniform or (value.dist.labels == () and not value.dist.pending)

    def _inside(self, value: Static, size: int, part: syn.ExpressionNode, node: syn.Subscript) -> None:
        if not is_whole(value.value) or not 0 <= value.value < size:
            message = f"{short(node)}: the index {value.value} is outside an axis of size {size}"
            note = "a parameter is the shard of its instance: indices count from its first element"
            self.report(Refusal("index", message, None, note), part)

    def _all_inside(self, part: syn.ExpressionNode, size: int, node: syn.Subscript) -> None:
        """Report an index of loops around it that leaves its axis in one of their iterations."""
        found = self._outside(part, 0, size - 1)
        if found is not None:
            message = f"{short(node)}: the index is {found[0]} where {found[1]}, outside an axis of size {size}"
            self.report(Refusal("index", message, None), part)

    def _outside(self, part: syn.ExpressionNode, least: int, most: int) -> tuple[int, str] | None:
        """Return a value that a sum of loop indices has in an iteration, and that is not between two numbers, and the
        iteration. Where data decide whether it is read, nothing is said."""
        terms = self._terms(part)
        found = zip(self.nest, self.bound, strict=True)
        loops = {name: values for (name, values), bound in found if name and self.env.get(name) is bound}
        if self._branches or not terms.keys() <= {"", *loops}:
            return None
        ends = {name: (values[0], values[-1]) for name, values in loops.items() if name in terms and len(values)}
        for last in (0, -1):
            at = {name: sorted(both, key=terms[name].__mul__)[last] for name, both in ends.items()}
            index = terms.get("", 0) + sum(terms[name] * n for name, n in at.items())
            if not least <= index <= most:
                return index, ", ".join(f"{name} = {n}" for name, n in at.items())
        return None

    def _slice(self, part: syn.Slicing, size: int, node: syn.Subscript) -> tuple[int | None, bool]:
        """Return the size of a slice (None if it is unknown), and whether all instances have the same bounds."""
        bounds: list[int | None] = []
        known = same = True
        for bound in (part.low, part.high, part.step):
            if bound is None:
                bounds.append(None)
                continue
            value, equal = self._position(bound)
            same = same and equal
            if isinstance(value, Static) and is_whole(value.value):
                bounds.append(value.value)
            else:
                known = False
                found = None if bound is part.step else self._outside(bound, 0, size)
                if found is not None:
                    end = "begins" if bound is part.low else "ends"
                    message = f"{short(node)}: the slice {end} at {found[0]} where {found[1]}"
                    self.report(Refusal("index", f"{message}, outside an axis of size {size}", None), bound)
        if known and bounds[2] != 0:
            low, high = 0 if bounds[0] is None else bounds[0], size if bounds[1] is None else bounds[1]
            if not 0 <= low <= size or not 0 <= high <= size:
                message = f"{short(node)}: the slice is outside an axis of size {size}"
                note = "a parameter is the shard of its instance: indices count from its first element"
                self.report(Refusal("index", message, None, note), node)
            return self.extent(low, high, bounds, size), same
        if part.step is None and part.low is not None and part.high is not None:
            low_terms, high_terms = self._terms(part.low), self._terms(part.high)
            rest = {key: high_terms.get(key, 0) - low_terms.get(key, 0) for key in low_terms.keys() | high_terms.keys()}
            if not any(count for key, count in rest.items() if key):
                return max(0, rest.get("", 0)), same
        return None, same

    def extent(self, low: int, high: int, bounds: Sequence[int | None], size: int) -> int:
        """Return how many elements of an axis a slice has. low, high: the element at which it begins, and the one
        behind its last. bounds: begin, end and step as the program states them; None for each that it does not. size:
        elements of the axis."""
        return len(range(*slice(*bounds).indices(size)))

    def _loop_index(self, name: str) -> Value | None:
        """Return the value of the index of a loop around, if the loop's body has not given it another one."""
        found = [bound for (loop, _), bound in zip(self.nest, self.bound, strict=True) if loop == name]
        return found[-1] if found and self.env.get(name) is found[-1] else None

    def sum_of(self, source: syn.ExpressionNode | None) -> dict[str, int] | None:
        """Return an expression as a sum of indices of loops: the factor of each index by its name, and the constant
        under "". None if it is no such sum, or if data decide whether it is evaluated. source: the expression; None for
        none."""
        if source is None or self._branches:
            return None
        terms = self._terms(source)
        return terms if all(not name or self._loop_index(name) is not None for name in terms) else None

    def note_sum(self, name: str, terms: dict[str, int] | None) -> None:
        """Note that a variable is a sum of indices of loops until it is assigned again. name: of the variable. terms:
        as `sum_of` returns them; None if it is no such sum."""
        self._sums.pop(name, None)
        value = self.env.get(name)
        if terms is not None and isinstance(value, Data) and value.type == INT:
            self._sums[name] = _SumOfIndices(value, terms, {k: self._loop_index(k) for k in terms if k})

    def _unchanged(self, made: _SumOfIndices) -> bool:
        """Whether the indices of a sum have the values that they had in it."""
        return all(self._loop_index(name) is value for name, value in made.indices.items())

    def _terms(self, node: syn.ExpressionNode) -> dict[str, int]:
        """Write an index as a sum: factors of terms that are not static, and a constant under ""."""
        match node:
            case syn.Literal(value=int(number)):
                return {"": number}
            case syn.Identifier(name=name):
                value = self.env.get(name, self.context.constants.get(name))
                if isinstance(value, Static) and is_whole(value.value):
                    return {"": value.value}
                made = self._sums.get(name)
                if made is not None and made.value is value and self._unchanged(made):
                    return made.terms
            case syn.Prefix(op="-", operand=inner):
                return {key: -count for key, count in self._terms(inner).items()}
            case syn.Infix(op="+" | "-"):
                a, b = self._terms(node.left), self._terms(node.right)
                sign = 1 if node.op == "+" else -1
                return {key: a.get(key, 0) + sign * b.get(key, 0) for key in a.keys() | b.keys()}
            case syn.Infix(op="*"):
                a, b = self._terms(node.left), self._terms(node.right)
                for x, y in ((a, b), (b, a)):
                    if x.keys() <= {""}:
                        return {key: count * x.get("", 0) for key, count in y.items()}
        return {shown(node): 1}


class _SumOfIndices(NamedTuple):
    """What a variable is: its value, the factors of indices of loops, and the values that these had."""

    value: Value
    terms: dict[str, int]
    indices: dict[str, Value | None]


def _is_cut(value: Value) -> bool:
    return isinstance(value, Data) and any(label is not None for label in value.dist.labels or ())
