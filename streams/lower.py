"""Makes task programs of regions: Python's syntax trees to trees of operations, which the units of a machine execute.

The region has been checked. Every get becomes a statement of its own, in the order in which Python evaluates them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ..isa.overlays.tasks import program as tasks
from ..isa.overlays.tasks import tree as t
from .lower_expressions import LoweredExpressions
from .syntax import meta_name, meta_name_of
from .tree import Region, TaskDecl


def lowered_task(
    region: Region, declared: TaskDecl, parameters: tuple[tasks.Parameter, ...], externals: Mapping[str, Any] | None
) -> tasks.Task:
    """Lower a task. externals: the names of the executed file, None if it is not executed; then tasks that call a
    function of the host are refused. Raises `Refusal` for what trees cannot hold."""
    body = _Body(region, declared, externals).block(declared.body.body)
    place = t.Place(declared.place.line, declared.place.column + 1)
    return tasks.Task(declared.name, declared.mapping, parameters, body, place)


class _Body(LoweredExpressions):
    """Lowers statements."""

    def block(self, statements: Sequence[ast.stmt]) -> tuple[t.Statement, ...]:
        """Lower statements."""
        outer, self.out = self.out, []
        k = 0
        while k < len(statements):
            statement = statements[k]
            if meta_name(statement)[0] == "meta_if":
                k = self._chain(statements, k)
            else:
                self._statement(statement)
                k += 1
        made, self.out = tuple(self.out), outer
        return made

    def _chain(self, statements: Sequence[ast.stmt], k: int) -> int:
        """`meta_if` with the arms behind it. Returns the number of the next statement."""
        statement = statements[k]
        assert isinstance(statement, ast.With)
        call = statement.items[0].context_expr
        assert isinstance(call, ast.Call)
        place, test, body = self.place(statement), self.value(call.args[0]), self.block(statement.body)
        k += 1
        other: tuple[t.Statement, ...] = ()
        if k < len(statements):
            name = meta_name(statements[k])[0]
            following = statements[k]
            if name == "meta_else":
                assert isinstance(following, ast.With)
                other, k = self.block(following.body), k + 1
            elif name == "meta_elif":
                outer, self.out = self.out, []
                k = self._chain(statements, k)
                other, self.out = tuple(self.out), outer
        self.out.append(t.If(place, test, body, other, True))
        return k

    def _statement(self, node: ast.stmt) -> None:
        place = self.place(node)
        match node:
            case ast.Expr(value=value):
                self._expression(place, value)
            case ast.Assign(targets=targets, value=value):
                self._assign(place, targets, value, None)
            case ast.AnnAssign(target=target, value=value, annotation=annotation):
                kind = self.type_of(annotation)
                if value is None:
                    value = ast.copy_location(ast.Constant(0), node)
                    if kind is not None and kind.shape:
                        zeros = t.Kernel("full", (t.Constant(kind.dtype), t.Constant(0), *map(t.Constant, kind.shape)))
                        self.out.append(t.Assign(place, (self._name_of(target),), zeros))
                        return
                self._assign(place, [target], value, kind)
            case ast.AugAssign(target=target, op=op, value=value):
                self._augmented(place, node, target, op, value)
            case ast.For():
                self._for(place, node)
            case ast.With():
                name, call = meta_name(node)
                if name != "meta_for" or call is None:
                    self.refuse(node, "`with` is for meta_if, meta_elif, meta_else and meta_for")
                names = self._names(node.items[0].optional_vars) if node.items[0].optional_vars else ("",)
                bounds = tuple(map(self.value, call.args))
                self.out.append(t.For(place, names, "range", bounds, self.block(node.body), True))
            case ast.While(test=test, body=body):
                outer, self.out = self.out, []
                condition = self.value(test)
                head, self.out = tuple(self.out), outer
                self.out.append(t.While(place, head, condition, self.block(body)))
            case ast.If(test=test, body=body, orelse=orelse):
                condition = self.value(test)
                self.out.append(t.If(place, condition, self.block(body), self.block(orelse)))
            case ast.Break() | ast.Continue():
                self.out.append(t.Leave(place, type(node).__name__.lower()))
            case ast.Return(value=value):
                if value is not None:
                    self.out.append(t.Read(place, (self.value(value),)))
                self.out.append(t.Leave(place, "return"))
            case ast.Assert(test=test):
                self.out.append(t.Read(place, (self.value(test),)))
            case ast.Pass():
                pass
            case _:
                self.refuse(node, f"a machine has no statement of this kind ({type(node).__name__})")

    def _expression(self, place: t.Place, node: ast.expr) -> None:
        call = node.value if isinstance(node, ast.Await) else node
        if isinstance(call, ast.Constant):
            return
        if isinstance(call, ast.Call):
            stream = self.stream(call)
            if stream is not None and stream[1] == "put":
                value = self.value(call.args[0])
                self.out.append(t.Put(place, stream[0], self.index_of(stream, call), value))
                return
            if isinstance(call.func, ast.Name) and call.func.id == "cycles":
                self.out.append(t.Cycles(place, self.value(call.args[0])))
                return
        value = self.value(node)
        if not isinstance(value, t.Name):
            self.out.append(t.Read(place, (value,)))

    def _for(self, place: t.Place, node: ast.For) -> None:
        unrolled = meta_name_of(node.iter) == "meta_for"
        names = self._names(node.target)
        if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name):
            kind = node.iter.func.id
            if kind in ("range", "grid", "meta_for"):
                bounds = tuple(map(self.value, node.iter.args))
                kind = "grid" if kind == "grid" else "range"
                self.out.append(t.For(place, names, kind, bounds, self.block(node.body), unrolled))
                return
        values = self.value(node.iter)
        self.out.append(t.For(place, names, "in", (values,), self.block(node.body)))

    def _augmented(
        self, place: t.Place, node: ast.AugAssign, target: ast.expr, op: ast.operator, value: ast.expr
    ) -> None:
        load = ast.copy_location(_loaded(target), target)
        both = ast.copy_location(ast.BinOp(load, op, value), node)
        self._assign(place, [target], both, None)

    def _assign(self, place: t.Place, targets: list[ast.expr], node: ast.expr, kind: t.ElementType | None) -> None:
        target = targets[0]
        if (
            len(targets) == 1
            and isinstance(target, ast.Tuple)
            and isinstance(node, ast.Tuple)
            and len(target.elts) == len(node.elts)
        ):
            values = [self.value(part) for part in node.elts]
            held = [self.kept(place, value) for value in values]
            for part, value in zip(target.elts, held, strict=True):
                self._store(place, part, value, kind)
            return
        value = self.value(node)
        if isinstance(target, ast.Subscript):
            value = self.collected(node, value, inserted=True)
        if len(targets) > 1:
            value = self.kept(place, value)
        for target in targets:
            self._store(place, target, value, kind)

    def _store(self, place: t.Place, target: ast.expr, value: t.Expression, kind: t.ElementType | None) -> None:
        match target:
            case ast.Name(id=name):
                self.out.append(t.Assign(place, (name,), value, kind))
            case ast.Tuple() | ast.List():
                self.out.append(t.Assign(place, self._names(target), value))
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                self.out.append(t.Store(place, name, self.value(index), value))
            case _:
                self.refuse(target, "a machine assigns names, and parts of tiles and tensors")

    def _names(self, target: ast.expr) -> tuple[str, ...]:
        parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        return tuple(map(self._name_of, parts))

    def _name_of(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name):
            self.refuse(node, "a plain name is expected here")
        return node.id


def _loaded(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load())
        case ast.Subscript(value=value, slice=index):
            return ast.Subscript(value, index, ast.Load())
    return target
