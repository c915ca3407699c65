"""Expressions with tiles: kernels, operators, slices, loads and stores of tensors, collectives.

Each value has, beside the type of its shard, a distribution: what the shards of all instances are together. A wrong
layout is a finding at the user's expression; the reading goes on with a value of which nothing is known.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from . import kernels, layouts
from .expressions import Context, Expressions
from .kernels import ALIASES, KERNELS, Operand
from .language import BITS
from .layouts import LOCAL, Distribution
from .source import Refusal
from .syntax import assigned, names_in, varying
from .tree import Collective, ElementType, TaskDecl
from .values import FLOAT, OPERATORS, UNARY, Data, Static, Value, accepts, compute, element_type, positive, type_of

KERNEL_OF: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
}
"""Operators that are kernels; others are arithmetic, which nothing pending passes."""

REDUCTIONS = {"+": "+", "add": "+", "sum": "+", "max": "max", "maximum": "max"}
"""Operators of allreduce, in each of their spellings."""

METHODS = {"sum": "reduce_sum", "max": "reduce_max", "transpose": "transpose"}

MODULES = ("np", "numpy")


class TileExpressions(Expressions):
    """Expressions of a task instance. varying: variables whose static values differ between instances. asking: tensors
    whose layouts ask for collectives."""

    def __init__(self, context: Context, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, name, tid)
        self.task, self.mesh = task, task.mapping
        found = context.varying.get(task.body)
        if found is None:
            found = context.varying.setdefault(task.body, varying(task.body))
        self.varying = found
        self.asking: set[str] = set()
        self._branches = 0
        self._loops = 0

    # -- values ------------------------------------------------------------------------------------------------------

    def report(self, refusal: Refusal, node: ast.AST) -> None:
        """Add a refusal as a finding at a node; the reading goes on."""
        place = self.context.source.place(refusal.node or node)
        self.context.source.add(refusal.code, refusal.message, place, *refusal.notes, subject=self.task.name)

    def varies(self, node: ast.AST) -> bool:
        """Whether static parts of an expression differ between instances."""
        return not self.varying.isdisjoint(names_in(node))

    def taken(self, node: ast.expr) -> Value:
        """Evaluate an expression and take its tokens; it may be a partial value."""
        value = self.eval(node)
        self.read(value)
        return value

    def data(self, node: ast.expr) -> Value:
        """Evaluate an expression and read it: it must be complete."""
        value = self.taken(node)
        if isinstance(value, Data) and value.dist.pending:
            self._incomplete(self.operand(node, value), node, f"{_short(node)} is read here")
            return replace(value, dist=LOCAL)
        return value

    def _incomplete(self, operand: Operand, node: ast.AST, what: str) -> None:
        pending = operand.dist.pending
        message = f"{what}, and its {layouts.described(pending)} is pending"
        note = f"complete it: {kernels.collective(operand.text, pending)}"
        self.report(Refusal("pending", message, None, note), node)

    def operand(self, node: ast.expr, value: Value) -> Operand:
        """Return a value as kernels see it."""
        text = _short(node)
        if isinstance(value, Data):
            return Operand(value.type, value.dist, text)
        number = value.value if isinstance(value.value, int | float) else None
        return Operand(type_of(value), LOCAL if self.varies(node) else layouts.constant(number), text)

    def _kernel(
        self, name: str, nodes: Sequence[ast.expr], at: ast.AST, options: kernels.Options | None = None
    ) -> Value:
        values = [self.taken(node) for node in nodes]
        return self._applied(name, nodes, values, at, options)

    def _applied(
        self,
        name: str,
        nodes: Sequence[ast.expr],
        values: Sequence[Value],
        at: ast.AST,
        options: kernels.Options | None = None,
    ) -> Value:
        operands = [self.operand(node, value) for node, value in zip(nodes, values, strict=True)]
        try:
            result = kernels.apply(name, operands, self.mesh, options)
        except Refusal as r:
            self.report(r, at)
            return Data()
        return Data(result.type, dist=result.dist)

    # -- expressions -------------------------------------------------------------------------------------------------

    def eval(self, node: ast.expr) -> Value:
        """Evaluate an expression. Raises `Refusal`."""
        match node:
            case ast.UnaryOp(op=ast.USub()):
                self.context.step(node)
                value = self.taken(node.operand)
                if isinstance(value, Data):
                    return self._applied("neg", [node.operand], [value], node)
                return compute(UNARY[ast.USub], [value.value], node)
            case ast.Attribute(attr="T"):
                self.context.step(node)
                return self._kernel("transpose", [node.value], node)
            case ast.Attribute(attr="shape" | "ndim" as what):
                self.context.step(node)
                value = self.taken(node.value)
                if isinstance(value, Data) and value.type is not None:
                    return Static(value.type.shape if what == "shape" else len(value.type.shape))
                return Data()
        return super().eval(node)

    def _binary(self, node: ast.BinOp) -> Value:
        a, b = self.taken(node.left), self.taken(node.right)
        if isinstance(a, Static) and isinstance(b, Static) and type(node.op) in OPERATORS:
            return compute(OPERATORS[type(node.op)], [a.value, b.value], node)
        return self._applied(KERNEL_OF.get(type(node.op), "arithmetic"), [node.left, node.right], [a, b], node)

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.taken(node.value)
        if isinstance(base, Static):
            index = self.data(node.slice)
            if isinstance(base.value, tuple) and isinstance(index, Static):
                return compute(lambda a, b: a[b], [base.value, index.value], node)
            return Data()
        return self.select(base, node)

    def _opaque(self, node: ast.expr) -> Value:
        value = super()._opaque(node)
        for name in sorted(names_in(node) & self.env.keys()):
            held = self.env[name]
            if isinstance(held, Data) and held.dist.pending:
                self._incomplete(Operand(held.type, held.dist, name), node, f"{name} is read here")
        return value

    # -- slices ------------------------------------------------------------------------------------------------------

    def select(self, base: Data, node: ast.Subscript) -> Data:
        """Return a part of a tile or of a tensor."""
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        unknown = Data(None, dist=layouts.localised(base.dist), tensor=base.tensor)
        if base.type is None:
            for part in parts:
                self._position(part)
            return unknown
        shape, labels = base.type.shape, base.dist.labels
        dots = [k for k, part in enumerate(parts) if isinstance(part, ast.Constant) and part.value is ...]
        taking = sum(not (isinstance(part, ast.Constant) and part.value in (None, ...)) for part in parts)
        if len(dots) == 1:
            parts[dots[0] : dots[0] + 1] = [ast.Slice() for _ in range(len(shape) - taking)]
        if not shape and len(parts) == 1 and isinstance(parts[0], ast.Slice) and ast.unparse(parts[0]) == ":":
            parts = []  # the whole of a tensor without axes
            taking = 0
        if taking > len(shape) or len(dots) > 1:
            raise Refusal("type", f"{taking} indices of {_short(node.value)}, which is {base.type}", node)
        out: list[tuple[int, int | None]] = []
        local, axis = base.dist.local, 0
        for part in parts:
            if isinstance(part, ast.Constant) and part.value is None:
                out.append((1, None))
                continue
            label = labels[axis] if labels is not None else None
            if isinstance(part, ast.Slice):
                size, same = self._slice(part, shape[axis], node)
                if size is None:
                    return unknown
                out.append((size, label))
                local = local or not same
            else:
                value, same = self._position(part)
                if isinstance(value, Data) and (value.type is None or value.type.shape):
                    return unknown
                if isinstance(value, Static):
                    self._inside(value, shape[axis], part, node)
                local = local or not same or label is not None
            axis += 1
        out += [(shape[k], labels[k] if labels is not None else None) for k in range(axis, len(shape))]
        kind = ElementType(base.type.dtype, tuple(size for size, _ in out))
        if base.dist.uniform:
            return Data(kind, dist=base.dist)
        dist = Distribution(None if local else tuple(label for _, label in out), base.dist.pending)
        return Data(kind, dist=dist, tensor=base.tensor)

    def _position(self, part: ast.expr) -> tuple[Value, bool]:
        """Evaluate an index, and say whether all instances have the same one."""
        if isinstance(part, ast.Slice):
            for bound in (part.lower, part.upper, part.step):
                if bound is not None:
                    self.data(bound)
            return Data(), False
        value = self.data(part)
        if isinstance(value, Static):
            return value, not self.varies(part)
        return value, value.dist.uniform or (value.dist.labels == () and not value.dist.pending)

    def _inside(self, value: Static, size: int, part: ast.expr, node: ast.Subscript) -> None:
        if not isinstance(value.value, int) or not -size <= value.value < size:
            message = f"{_short(node)}: the index {value.value} is outside an axis of size {size}"
            note = "a parameter is the shard of its instance: indices count from its first element"
            self.report(Refusal("index", message, None, note), part)

    def _slice(self, part: ast.Slice, size: int, node: ast.Subscript) -> tuple[int | None, bool]:
        """Return the size of a slice (None if it is unknown), and whether all instances have the same bounds."""
        bounds: list[int | None] = []
        known = same = True
        for bound in (part.lower, part.upper, part.step):
            if bound is None:
                bounds.append(None)
                continue
            value, equal = self._position(bound)
            same = same and equal
            if isinstance(value, Static) and isinstance(value.value, int):
                bounds.append(value.value)
            else:
                known = False
        if known and bounds[2] != 0:
            low, high, _ = bounds
            if not -size <= (low or 0) <= size or not -size <= (size if high is None else high) <= size:
                message = f"{_short(node)}: the slice is outside an axis of size {size}"
                note = "a parameter is the shard of its instance: indices count from its first element"
                self.report(Refusal("index", message, None, note), node)
            return len(range(*slice(*bounds).indices(size))), same
        if part.step is None and part.lower is not None and part.upper is not None:
            low_terms, high_terms = self._terms(part.lower), self._terms(part.upper)
            rest = {key: high_terms.get(key, 0) - low_terms.get(key, 0) for key in low_terms.keys() | high_terms.keys()}
            if not any(count for key, count in rest.items() if key):
                return max(0, rest.get("", 0)), same
        return None, same

    def _terms(self, node: ast.expr) -> dict[str, int]:
        """Write an index as a sum: factors of terms that are not static, and a constant under ""."""
        match node:
            case ast.Constant(value=int(number)):
                return {"": number}
            case ast.Name(id=name):
                value = self.env.get(name, self.context.constants.get(name))
                if isinstance(value, Static) and isinstance(value.value, int):
                    return {"": value.value}
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                a, b = self._terms(node.left), self._terms(node.right)
                sign = 1 if isinstance(node.op, ast.Add) else -1
                return {key: a.get(key, 0) + sign * b.get(key, 0) for key in a.keys() | b.keys()}
            case ast.BinOp(op=ast.Mult()):
                a, b = self._terms(node.left), self._terms(node.right)
                for x, y in ((a, b), (b, a)):
                    if x.keys() <= {""}:
                        return {key: count * x.get("", 0) for key, count in y.items()}
        return {ast.unparse(node): 1}

    # -- stores ------------------------------------------------------------------------------------------------------

    def store(self, target: ast.Subscript, value: Value, source: ast.expr) -> None:
        """`target = source`, for a part of a tensor or of a tile in a variable."""
        base = self.taken(target.value)
        if not isinstance(base, Data):
            self.fail(target, f"{_short(target.value)} cannot be assigned to")
        part = self.select(base, target)
        self.read(value)
        operand, into = self.operand(source, value), Operand(part.type, part.dist, _short(target))
        try:
            kernels.stored(into, operand, self.mesh)
            if base.tensor:
                self.settled(operand, base.tensor, into.text, source)
            elif isinstance(target.value, ast.Name):
                self.env[target.value.id] = replace(base, dist=self._overwritten(base, part, into, operand))
            elif operand.dist.pending:
                raise Refusal("pending", f"{operand.text} is stored in part, before it is complete", None)
        except Refusal as r:
            self.report(r, source)

    def settled(self, operand: Operand, tensor: str, what: str, source: ast.expr) -> None:
        """A value that is stored in a tensor, or returned, must be complete; a layout may ask to complete it."""
        pending = operand.dist.pending
        if not pending:
            return
        straight = not self._loops and not self._branches
        if tensor in self.asking and straight and not any(op == "?" for op, _ in pending):
            text = kernels.collective(operand.text, pending)
            place = self.context.source.place(source)
            note = f"the layout of {tensor} asks for it"
            message = f"inserted before the store: {text}"
            self.context.source.add("inserted", message, place, note, warning=True, subject=self.task.name)
            for op in sorted({op for op, _ in pending}):
                self.exchange(op, tuple(sorted(axis for o, axis in pending if o == op)), operand.type, source)
            return
        self._incomplete(operand, source, f"{what} stores {operand.text}")

    def _overwritten(self, base: Data, part: Data, into: Operand, value: Operand) -> Distribution:
        """Return the distribution of a tile in a variable after a part of it is overwritten. Raises `Refusal`."""
        old, new = base.dist, value.dist
        if base.type is None or part.type is None:
            if old.pending != new.pending:
                raise Refusal("pending", f"{into.text}: not all of it has the same reduction pending", None)
            return layouts.localised(old)
        whole = part.type.shape == base.type.shape
        if whole and value.shape == part.type.shape:
            return new
        pending = old.pending
        if old.pending != new.pending and not (new.number == 0 and not any(op != "+" for op, _ in old.pending)):
            if not (whole or (old.number == 0 and not any(op != "+" for op, _ in new.pending))):
                text = kernels.collective(value.text, new.pending) if new.pending else "reduce the rest first"
                message = f"{into.text}: a part with a reduction pending, and a part without it"
                raise Refusal("pending", message, None, text)
            pending = new.pending
        if new.uniform and not old.uniform:
            return replace(old, pending=pending)
        if new.uniform and old.number is not None and old.number == new.number:
            return old
        if old.uniform and new.labels is not None and len(part.type.shape) == len(base.type.shape):
            missing = len(part.type.shape) - len(new.labels)
            return Distribution((None,) * missing + new.labels, pending)
        return Distribution(old.labels if not part.dist.local and not new.local else None, pending)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        match node.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if self._is_module(module):
                if name in ALIASES:
                    return self._library(ALIASES[name], node, node.args)
            case ast.Attribute(value=base, attr=name) if self._is_value(base):
                if name == "allreduce":
                    return self._allreduce(node, [base, *node.args])
                if name in METHODS:
                    return self._library(METHODS[name], node, [base, *node.args])
                if name == "copy" and not node.args:
                    value = self.taken(base)
                    return replace(value, tensor="") if isinstance(value, Data) else value
            case ast.Name(id=name) if not self._shadowed(name):
                if name in KERNELS and name != "arithmetic":
                    return self._library(name, node, node.args)
                special = {"allreduce": self._allreduce, "concat": self._concat}.get(name)
                if special is not None:
                    return special(node, node.args)
                if name in ("zeros", "full"):
                    return self._filled(node, name)
                if name in ("local", "drop") and len(node.args) == 1 and not node.keywords:
                    value = self.taken(node.args[0])
                    return Data(type_of(value)) if name == "local" else Data()
                if name in BITS and len(node.args) == 1 and not node.keywords:
                    return self._converted(name, node.args[0])
        return super()._call(node)

    def _converted(self, dtype: str, node: ast.expr) -> Value:
        """`f32(x)`: a complete value with another element type."""
        value = self.data(node.value if isinstance(node, ast.Starred) else node)
        kind = type_of(value)
        shape = kind.shape if kind is not None else ()
        return Data(ElementType(dtype, shape), dist=self.operand(node, value).dist)

    def _shadowed(self, name: str) -> bool:
        return any(name in names for names in (self.env, self.context.functions, self.context.tasks)) or (
            name in self.context.constants
        )

    def _is_value(self, node: ast.expr) -> bool:
        return self._stream_of(node) is None and (not isinstance(node, ast.Name) or node.id in self.env)

    def _is_module(self, name: str) -> bool:
        return name in MODULES and name not in self.env and isinstance(self.context.constants.get(name), Data)

    def _library(self, name: str, node: ast.Call, arguments: Sequence[ast.expr]) -> Value:
        """A kernel of the library by name."""
        if name == "concat":
            return self._concat(node, arguments)
        kernel = KERNELS[name]
        count = len(kernel.operands)
        nodes, rest = list(arguments[:count]), list(arguments[count:])
        options: dict[str, object] = {}
        if name == "transpose" and len(rest) > 1:
            rest = [ast.copy_location(ast.Tuple(rest, ast.Load()), node)]
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        for operand in kernel.operands[len(nodes) :]:
            if operand in named:
                nodes.append(named.pop(operand))
        for option, value in zip(kernel.options, rest, strict=False):
            options[option] = self._known(value, name)
        for option in kernel.options:
            if option in named and option not in options:
                options[option] = self._known(named.pop(option), name)
        starred = any(isinstance(argument, ast.Starred) for argument in arguments)
        if named or starred or len(rest) > len(kernel.options) or len(nodes) < count - kernel.optional:
            takes = ", ".join([*kernel.operands, *kernel.options])
            self.fail(node, f"{name} takes ({takes})")
        return self._kernel(name, nodes, node, options)

    def _known(self, node: ast.expr, name: str) -> object:
        value = self.data(node)
        if not isinstance(value, Static):
            self.fail(node, f"{name}: {_short(node)} is not known before the run")
        return value.value

    def _concat(self, node: ast.Call, arguments: Sequence[ast.expr]) -> Value:
        parts = list(arguments)
        axis: object = 0
        if parts and isinstance(parts[0], ast.List | ast.Tuple):
            if len(parts) == 2:
                axis = self._known(parts[1], "concat")
            parts = list(parts[0].elts) if len(parts) <= 2 else []
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if "axis" in named:
            axis = self._known(named.pop("axis"), "concat")
        if not parts or named or any(isinstance(part, ast.Starred) for part in parts):
            self.fail(node, "concat takes (x, y, ..., axis=0)")
        operands = [self.operand(part, self.taken(part)) for part in parts]
        try:
            result = kernels.concat(operands, axis, self.mesh)
        except Refusal as r:
            self.report(r, node)
            return Data()
        return Data(result.type, dist=result.dist)

    def _filled(self, node: ast.Call, name: str) -> Value:
        """`zeros(T, shape...)` and `full(T, value, shape...)`: the same number everywhere."""
        first = 1 if name == "zeros" else 2
        sizes = node.args[first:]
        if len(node.args) < first or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.fail(node, f"{name} takes {'(T, shape...)' if first == 1 else '(T, value, shape...)'}")
        base = element_type(node.args[0], self.eval)
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        shape = tuple(positive(size, self.eval) for size in sizes)
        number: Value = Static(0) if first == 1 else self.data(node.args[1])
        if not accepts(ElementType(base.dtype), type_of(number)):
            what = f"{name} of {base.dtype} with {type_of(number)}"
            self.report(Refusal("type", what, None), node.args[1])
        dist = layouts.constant(0) if first == 1 else self.operand(node.args[1], number).dist
        return Data(ElementType(base.dtype, base.shape + shape), dist=dist if dist.uniform else LOCAL)

    # -- collectives -------------------------------------------------------------------------------------------------

    def _allreduce(self, node: ast.Call, arguments: Sequence[ast.expr]) -> Value:
        """`x.allreduce(op, axes)`."""
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        rest = list(arguments[1:])
        op_node = rest.pop(0) if rest else named.pop("op", None)
        axes_node = rest.pop(0) if rest else named.pop("axes", named.pop("axis", None))
        if not arguments or op_node is None or rest or named:
            self.fail(node, 'allreduce takes an operator, and mesh axes: x.allreduce("+", axes=(0,))')
        op = self._known(op_node, "allreduce")
        if not isinstance(op, str) or op not in REDUCTIONS:
            self.fail(op_node, 'the operators of allreduce are "+" and "max"')
        axes: tuple[int, ...] | None = None
        if axes_node is not None:
            given = self._known(axes_node, "allreduce")
            listed = given if isinstance(given, tuple) else () if given is None else (given,)
            if not all(isinstance(axis, int) for axis in listed) or len(set(listed)) < len(listed):
                self.fail(axes_node, "mesh axes are different integers: axes=(0, 1)")
            axes = None if given is None else tuple(sorted(listed))
        value = self.taken(arguments[0])
        operand = self.operand(arguments[0], value)
        try:
            result, harmless = kernels.allreduce(operand, REDUCTIONS[op], axes, self.mesh)
        except Refusal as r:
            self.report(r, node)
            return Data(type_of(value))
        if harmless:
            place, note = self.context.source.place(node), "the maximum of equal copies is the copy: leave it out"
            self.context.source.add("pending", harmless, place, note, warning=True, subject=self.task.name)
        over = axes
        if over is None:
            mine = sorted(axis for o, axis in operand.dist.pending if o == REDUCTIONS[op])
            over = tuple(mine) if mine or not operand.dist.local else tuple(range(len(self.mesh)))
        self.exchange(REDUCTIONS[op], over, operand.type, node)
        return Data(result.type, dist=result.dist)

    def exchange(self, op: str, axes: Sequence[int], kind: ElementType | None, node: ast.AST) -> None:
        """Record the tokens of an all-reduce, on streams of its own: the first instance of a group gets a value of each
        of the others, and puts the result to each of them. So an instance that does not take part is found as any
        other missing end is."""
        over = tuple(axis for axis in axes if self.mesh[axis] > 1)
        if not over:
            return
        reading, place = self.context.reading, self.context.source.place(node)
        key = self.task.name, place, op, over
        group = layouts.group_of(over, self.mesh, self.tid)
        others = len(group) - 1
        if key not in reading.collectives:
            shape = (prod(self.mesh) // len(group), others)
            streams = [
                reading.declare(f"{self.task.name}.allreduce.{end}", kind or FLOAT, shape, place)
                for end in ("in", "out")
            ]
            reading.collectives[key] = Collective(self.task.name, op, over, place, streams[0], streams[1])
        made = reading.collectives[key]
        row = 0
        for axis, size in enumerate(self.mesh):
            row = row if axis in over else row * size + self.tid[axis]
        inward, outward = made.inward.first + row * others, made.outward.first + row * others
        nodes, member = self.context.nodes, group.index(self.tid) - 1
        if member >= 0:
            self.record(nodes.op(inward + member, True, place))
            self.record(nodes.op(outward + member, False, place))
            return
        for k in range(others):
            self.record(nodes.op(inward + k, False, place))
        for k in range(others):
            self.record(nodes.op(outward + k, True, place))

    # -- variables and control ---------------------------------------------------------------------------------------

    def localise(self, node: Sequence[ast.stmt]) -> None:
        """After statements that some instances run and others do not: variables that they assign are local."""
        for name in assigned(node):
            value = self.env.get(name)
            if isinstance(value, Data) and not value.dist.local and not value.tensor:
                self.env[name] = replace(value, dist=layouts.localised(value.dist))


def _short(node: ast.AST) -> str:
    """An expression as it is written, cut if it is long."""
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:37] + "..."
