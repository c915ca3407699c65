"""Lowers the expressions of a task: Python's syntax trees to expressions of trees of operations.

The gets that an expression holds, and the cycles of its kernels, become statements in front of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..isa.overlays.tasks import tree as t
from ..isa.overlays.tasks.kernels import KERNELS
from .kernels import ALIASES
from .language import BITS
from .library import METHODS, MODULES
from .source import Refusal, Source
from .syntax import META, assigned
from .tree import Collective, ElementType, Region, StreamDecl, TaskDecl
from .values import Static, Value, element_type

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "==",
    ast.IsNot: "!=",
}
UNARY: dict[type[ast.AST], str] = {ast.USub: "-", ast.UAdd: "+", ast.Not: "not", ast.Invert: "~"}
RUNS_HERE = "rsn run FILE.py runs it on this computer"


@dataclass(frozen=True)
class _Method:
    """Calls a method of its first argument."""

    name: str

    def __call__(self, value: Any, *arguments: Any, **named: Any) -> Any:
        return getattr(value, self.name)(*arguments, **named)


class LoweredExpressions:
    """Lowers expressions of a task. out: the statements so far."""

    def __init__(self, region: Region, declared: TaskDecl, externals: Mapping[str, Any] | None) -> None:
        self.region, self.name, self.externals = region, declared.name, externals
        self.source: Source = region.source
        context = self.context = region.contexts[declared.name]
        parameters = {p.name for p in declared.parameters}
        self.streams: Mapping[str, StreamDecl] = context.streams
        self.constants: Mapping[str, Value] = {k: v for k, v in context.constants.items() if k not in parameters}
        self.roots: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.mesh = declared.mapping
        self.collectives = [c for c in region.collectives if c.task == declared.name]
        self.names = {p.name for p in declared.parameters} | assigned(declared.body.body)
        self.out: list[t.Statement] = []
        self.count = 0
        self.at = t.Place(1, 1)

    def refuse(self, node: ast.AST, what: str, *notes: str) -> NoReturn:
        raise Refusal("unsupported", f"{self.name}: {what}", node, *notes)

    def place(self, node: ast.AST) -> t.Place:
        """Where a node begins."""
        at = self.source.place(node)
        return t.Place(at.line, at.column + 1)

    def kept(self, place: t.Place, value: t.Expression) -> t.Expression:
        """A value that later assignments do not change."""
        if isinstance(value, t.Constant):
            return value
        name = self.fresh()
        self.out.append(t.Assign(place, (name,), value))
        return t.Name(name)

    def fresh(self) -> str:
        self.count += 1
        return f"%{self.count}"

    # -- expressions -------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> t.Expression:
        """Lower an expression; its gets, and the cycles of its kernels, are appended to the statements."""
        made = self._value(node)
        costs = self.context.reading.costs.get((self.name, self.source.place(node)), set())
        if len(costs) > 1:
            few, many = min(costs), max(costs)
            self.refuse(node, f"this takes {few} cycles here and {many} there; state them", "cycles(n)")
        if costs and isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp):
            self.out.append(t.Cycles(self.place(node), t.Constant(min(costs))))
        return made

    def _value(self, node: ast.expr) -> t.Expression:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return t.Constant(value)
            case ast.Constant(value=None):
                return t.Kernel("none", ())
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Await(value=value):
                return self.value(value)
            case ast.UnaryOp(op=op, operand=operand):
                return t.Unary(UNARY[type(op)], self.value(operand))
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                return t.Kernel("matmul", self.in_order(left, right))
            case ast.BinOp(left=left, op=op, right=right):
                return t.Binary(OPERATORS[type(op)], *self.in_order(left, right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others)
            case ast.BoolOp(op=op, values=values):
                made = self.value(values[-1])
                for part in reversed(values[:-1]):
                    first = self.value(part)
                    made = t.Select(first, made, first) if isinstance(op, ast.And) else t.Select(first, first, made)
                return made
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._if(node, test, body, orelse)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return t.Group(self.in_order(*parts))
            case ast.Slice(lower=low, upper=high, step=step):
                return t.Span(*(None if part is None else self.value(part) for part in (low, high, step)))
            case ast.Subscript(value=base, slice=index):
                return t.Item(*self.in_order(base, index))
            case ast.Call():
                return self._call(node)
            case ast.Attribute(value=base, attr="T"):
                return t.Kernel("transpose", (self.value(base),))
            case ast.Attribute(value=base, attr="shape" | "ndim" as what):
                known = self.context.reading.shapes.get((self.name, self.source.place(node)))
                if known is None:
                    return t.Kernel(what, (self.value(base),))
                sizes = known.value
                return t.Group(tuple(map(t.Constant, sizes))) if isinstance(sizes, tuple) else t.Constant(sizes)
        self.refuse(node, f"a machine has no expression of this kind ({type(node).__name__})")

    def _name(self, node: ast.Name, name: str) -> t.Expression:
        value = self.constants.get(name)
        if isinstance(value, Static) and isinstance(value.value, bool | int | float | str):
            return t.Constant(value.value)
        if value is not None and not isinstance(value, Static):
            return self._opaque(node, ast.unparse(node))
        if isinstance(value, Static) and isinstance(value.value, tuple):
            return t.Group(tuple(map(t.Constant, value.value)))
        return t.Name(name)

    def in_order(self, *parts: ast.expr) -> tuple[t.Expression, ...]:
        """Lower operands. What an operand reads is read before the gets of the operands behind it: variables do not
        change in between, so that only the gets need an order, which they keep."""
        return tuple(map(self.value, parts))

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> t.Expression:
        values = self.in_order(left, *others)
        parts = [t.Binary(OPERATORS[type(op)], values[k], values[k + 1]) for k, op in enumerate(ops)]
        made: t.Expression = parts[-1]
        for part in reversed(parts[:-1]):
            made = t.Select(part, made, t.Constant(False))
        return made

    def _if(self, node: ast.IfExp, test: ast.expr, body: ast.expr, orelse: ast.expr) -> t.Expression:
        chosen = self.value(test)
        outer, arms, values = self.out, list[tuple[t.Statement, ...]](), list[t.Expression]()
        for part in (body, orelse):
            self.out = []
            values.append(self.value(part))
            arms.append(tuple(self.out))
        self.out = outer
        if not arms[0] and not arms[1]:
            return t.Select(chosen, *values)
        name, place = self.fresh(), self.place(node)
        one, other = [(*arm, t.Assign(place, (name,), value)) for arm, value in zip(arms, values, strict=True)]
        self.out.append(t.If(place, chosen, one, other))
        return t.Name(name)

    def _call(self, node: ast.Call) -> t.Expression:
        stream = self.stream(node)
        if stream is not None:
            if stream[1] != "get":
                self.refuse(node, "a put has no value")
            index, name = self.index_of(stream, node), self.fresh()
            self.out.append(t.Get(self.place(node), name, stream[0], index))
            return t.Name(name)
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in META or name in ("put", "get"):
            self.refuse(node, f"{name} stands in a for or with statement only")
        if name == "get_tid":
            return t.Name("get_tid()")
        if name in ("use", "data"):
            return t.Kernel(name, (t.Name(f"{name}()"), *self._arguments(node)))
        if name == "drop":
            return t.Kernel("use", (t.Name("use()"), *self._arguments(node)))
        kind = self._scalar_type(name)
        if kind is not None and len(node.args) == 1:
            return t.Convert(kind, self.value(node.args[0]))
        if name in ("tile", "zeros", "full") and node.args:
            return self._made(name, node)
        if name == "allreduce" and name not in self.names:
            return self.collected(node, self.value(node.args[0]), inserted=False)
        if name == "local" and len(node.args) == 1:
            return self.value(node.args[0])
        if name in KERNELS and name not in self.constants and name not in self.names:
            return self._kernel(name, node, node.args)
        return self._opaque(node, ast.unparse(node.func))

    def _made(self, name: str, node: ast.Call) -> t.Expression:
        """A new tile: `zeros(f32, 4, 4)`, `full(f32, 1.5, 4, 4)`."""
        kind = element_type(node.args[0], lambda part: self.constants.get(getattr(part, "id", ""), Static(0)))
        first = 2 if name == "full" else 1
        sizes = node.args[first:]
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        value = self.value(node.args[1]) if name == "full" else t.Constant(0)
        shape = (*map(t.Constant, kind.shape), *self.in_order(*sizes))
        made = t.Kernel("full", (t.Constant(kind.dtype), value, *shape))
        return made if shape else t.Convert(t.ElementType(kind.dtype), value)

    # -- collectives -------------------------------------------------------------------------------------------------

    def collected(self, node: ast.expr, value: t.Expression, inserted: bool) -> t.Expression:
        """A value after the all-reduces that stand at a node."""
        at = self.source.place(node)
        for c in sorted((c for c in self.collectives if c.place == at and c.inserted == inserted), key=_operator):
            value = self._exchanged(c, value, self.place(node))
        return value

    def _exchanged(self, c: Collective, value: t.Expression, place: t.Place) -> t.Expression:
        """An all-reduce: the first instance of a group gets the values of the others, and puts the result to them."""
        tid = t.Name("get_tid()")
        at = [tid] if len(self.mesh) == 1 else [t.Item(tid, t.Constant(k)) for k in range(len(self.mesh))]
        row = _flat([(at[k], n) for k, n in enumerate(self.mesh) if k not in c.axes])
        member = _flat([(at[k], self.mesh[k]) for k in c.axes])
        held, name = self.fresh(), self.fresh()
        kind = lowered_type(c.inward.type)
        own = t.Binary("-", member, t.Constant(1))
        inward, outward = c.inward.name, c.outward.name
        others = [(row, t.Constant(k)) for k in range(c.inward.shape[1])]
        values = [self.fresh() for _ in others]
        total: t.Expression = t.Name(held)
        for part in values:
            operands = total, t.Name(part)
            total = t.Binary("+", *operands) if c.op == "+" else t.Kernel("maximum", operands)
        self.out += [
            t.Assign(place, (held,), value),
            t.If(
                place,
                t.Binary("!=", member, t.Constant(0)),
                (
                    t.Put(place, inward, (row, own), t.Name(held)),
                    t.Get(place, name, outward, (row, own)),
                ),
                (
                    *(t.Get(place, part, inward, at) for part, at in zip(values, others, strict=True)),
                    t.Assign(place, (name,), total, kind),
                    *(t.Put(place, outward, at, t.Name(name)) for at in others),
                ),
                True,
            ),
        ]
        return t.Name(name)

    def _method(self, node: ast.Call, method: ast.Attribute) -> t.Expression:
        base = method.value
        if isinstance(base, ast.Name) and base.id in MODULES and base.id not in self.names and method.attr in ALIASES:
            return self._kernel(ALIASES[method.attr], node, node.args)
        if method.attr == "allreduce":
            return self.collected(node, self.value(base), inserted=False)
        if method.attr in METHODS and not (isinstance(base, ast.Name) and base.id in MODULES):
            return self._kernel(METHODS[method.attr], node, [base, *node.args])
        if method.attr == "copy" and not node.args and not node.keywords:
            return self.value(base)
        root: ast.expr = method.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name):
            known = self.constants.get(root.id)
            if known is not None and not isinstance(known, Static):
                return self._opaque(node, ast.unparse(method))
        if self.externals is None:
            self.refuse(node, f"{method.attr} is no operation of a machine", RUNS_HERE)
        named = tuple((k.arg or "", self.value(k.value)) for k in node.keywords)
        arguments = self.in_order(method.value, *node.args)
        return t.External(method.attr, _Method(method.attr), arguments, named)

    def _kernel(self, name: str, node: ast.Call, arguments: Sequence[ast.expr]) -> t.Expression:
        """A library kernel."""
        if any(isinstance(a, ast.Starred) for a in arguments):
            self.refuse(node, "a machine has no arguments with a star")
        named = tuple((k.arg or "", self.value(k.value)) for k in node.keywords)
        return t.Kernel(name, self.in_order(*arguments), named)

    def _arguments(self, node: ast.Call) -> tuple[t.Expression, ...]:
        if any(isinstance(a, ast.Starred) for a in node.args):
            self.refuse(node, "a machine has no arguments with a star")
        return self.in_order(*node.args)

    def _opaque(self, node: ast.expr, name: str) -> t.Expression:
        """A function that is not of the language: it is executed if the file may be, and refused otherwise."""
        if self.externals is None:
            self.refuse(node, f"{name} is no operation of a machine", RUNS_HERE)
        try:
            function = _found(self.externals, name)
        except (KeyError, AttributeError):
            file = self.source.file
            self.refuse(node, f"there is no {name} to run", f"define or import it in {file}")
        if not isinstance(node, ast.Call):
            return t.External(name, lambda: function, ())
        named = tuple((k.arg or "", self.value(k.value)) for k in node.keywords)
        return t.External(name, function, self._arguments(node), named)

    # -- streams and types -------------------------------------------------------------------------------------------

    def stream(self, node: ast.Call) -> tuple[str, str, tuple[int, ...]] | None:
        """The array of streams, the method of a put or a get, and the indices before those that are written."""
        if not isinstance(node.func, ast.Attribute):
            return None
        base = node.func.value
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Name) and base.id in self.streams and node.func.attr in ("put", "get"):
            array, before = self._root(base.id)
            return array, node.func.attr, before
        return None

    def _root(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The declared array that a name stands for, or a part of, and the indices of that part."""
        if name not in self.roots:
            part = self.streams[name]
            root, _ = self.region.stream(part.first)
            index = root.index(part.first - root.first)
            self.roots[name] = root.name, index[: len(root.shape) - len(part.shape)]
        return self.roots[name]

    def index_of(self, stream: tuple[str, str, tuple[int, ...]], node: ast.Call) -> tuple[t.Expression, ...]:
        assert isinstance(node.func, ast.Attribute)
        base = node.func.value
        parts: list[ast.expr] = []
        if isinstance(base, ast.Subscript):
            parts = base.slice.elts if isinstance(base.slice, ast.Tuple) else [base.slice]
        return (*map(t.Constant, stream[2]), *self.in_order(*parts))

    def _scalar_type(self, name: str) -> t.ElementType | None:
        return t.ElementType(name) if name in BITS else None

    def type_of(self, annotation: ast.expr) -> t.ElementType | None:
        def constant(node: ast.expr) -> Value:
            if isinstance(node, ast.Constant):
                return Static(node.value)
            return self.constants.get(node.id, Static(None)) if isinstance(node, ast.Name) else Static(None)

        kind = element_type(annotation, constant)
        return lowered_type(kind)


def _operator(collective: Collective) -> str:
    return collective.op


def _flat(parts: list[tuple[t.Expression, int]]) -> t.Expression:
    """The number of a point of a grid, row-major. parts: its coordinates, and the sizes of the grid."""
    made: t.Expression = t.Constant(0)
    for k, (at, size) in enumerate(parts):
        made = at if not k else t.Binary("+", t.Binary("*", made, t.Constant(size)), at)
    return made


def lowered_type(kind: ElementType) -> t.ElementType:
    """The element type of a machine."""
    return t.ElementType(kind.dtype, kind.shape)


def _found(names: Mapping[str, Any], path: str) -> Callable[..., Any]:
    """A function of an executed file by its path, such as `np.maximum`. Raises `KeyError` or `AttributeError`."""
    first, *rest = path.split(".")
    value = names[first]
    for name in rest:
        value = getattr(value, name)
    found: Callable[..., Any] = value
    return found
