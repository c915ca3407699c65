"""Makes task programs of regions: Python's syntax trees to trees of operations, which the units of a machine execute.

The region has been checked. Every get becomes a statement of its own, in the order in which Python evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base.element_types import ElementType
from ..base.place import Place
from ..isa.overlays.tasks import program as tasks
from ..isa.overlays.tasks import tree as t
from .lower_expressions import LoweredExpressions
from .syntax import nodes as syn
from .tree import Region, TaskDecl


def lowered_task(
    region: Region,
    declared: TaskDecl,
    parameters: tuple[tasks.TensorParameter, ...],
    externals: Mapping[str, Any] | None,
) -> tasks.Task:
    """Lower a task. externals: the names of the executed file, None if it is not executed; then tasks that call a
    function of the host are refused. Raises `Refusal` for what trees cannot hold."""
    body = _Body(region, declared, externals).block(declared.body.body)
    place = declared.place.start
    return tasks.Task(declared.name, declared.mapping, parameters, body, place)


class _Body(LoweredExpressions):
    """Lowers statements."""

    def block(self, statements: syn.Block) -> tuple[t.Statement, ...]:
        """Lower statements."""
        outer, self.out = self.out, []
        for statement in statements:
            self._statement(statement)
        made, self.out = tuple(self.out), outer
        return made

    def _chain(self, arms: Sequence[syn.MetaArm]) -> None:
        """`meta_if` with the arms behind it."""
        first, *rest = arms
        test, body = self.value(first.call.arguments[0]), self.block(first.body)
        other: tuple[t.Statement, ...] = ()
        if rest and rest[0].name == "meta_else":
            other = self.block(rest[0].body)
        elif rest:
            outer, self.out = self.out, []
            self._chain(rest)
            other, self.out = tuple(self.out), outer
        self.out.append(t.If(first.place.start, test, body, other, True))

    def _statement(self, node: syn.StatementNode) -> None:
        place = node.place.start
        match node:
            case syn.Evaluation(value=value):
                self._expression(place, value)
            case syn.Assignment():
                self._assign(place, node)
            case syn.Declaration(target=target, value=value, annotation=annotation):
                kind = self.stated(annotation)
                if value is None:
                    value = syn.Literal(node.place, 0)
                    if kind is not None and kind.shape:
                        zeros = t.Kernel("full", (t.Constant(kind.dtype), t.Constant(0), *map(t.Constant, kind.shape)))
                        self.out.append(t.Assign(place, (self._name_of(target),), zeros))
                        return
                self._assigned(place, (target,), value, kind)
            case syn.ForLoop():
                self._for(place, node)
            case syn.MetaChain(arms=arms) if arms[0].name == "meta_if":
                self._chain(arms)
            case syn.MetaChain(arms=(arm,)):
                if arm.name != "meta_for":
                    self.refuse(node, "`with` is for meta_if, meta_elif, meta_else and meta_for")
                names = ("",) if arm.target is None else self._names(arm.target)
                bounds = tuple(map(self.value, arm.call.arguments))
                self.out.append(t.For(place, names, "range", bounds, self.block(arm.body), True))
            case syn.WhileLoop(test=test, body=body):
                outer, self.out = self.out, []
                condition = self.value(test)
                head, self.out = tuple(self.out), outer
                self.out.append(t.While(place, head, condition, self.block(body)))
            case syn.Branching(test=test, body=body, orelse=orelse):
                condition = self.value(test)
                self.out.append(t.If(place, condition, self.block(body), self.block(orelse)))
            case syn.Jump(how=how):
                self.out.append(t.Leave(place, how))
            case syn.Returning(value=value):
                if value is not None:
                    self.out.append(t.Read(place, (self.value(value),)))
                self.out.append(t.Leave(place, "return"))
            case syn.Assertion(test=test):
                self.out.append(t.Read(place, (self.value(test),)))
            case syn.Skip():
                pass
            case _:
                self.refuse(node, f"a machine has no statement of this kind ({node.kind})")

    def _expression(self, place: Place, node: syn.ExpressionNode) -> None:
        call = node.value if isinstance(node, syn.Await) else node
        if isinstance(call, syn.Literal):
            return
        if isinstance(call, syn.Invocation):
            stream = self.stream(call)
            if stream is not None and stream[1] == "put":
                value = self.value(call.arguments[0])
                self.out.append(t.Put(place, stream[0], self.index_of(stream, call), value))
                return
            if call.called == "cycles":
                self.out.append(t.Cycles(place, self.value(call.arguments[0])))
                return
        value = self.value(node)
        if not isinstance(value, t.Name):
            self.out.append(t.Read(place, (value,)))

    def _for(self, place: Place, node: syn.ForLoop) -> None:
        names = self._names(node.target)
        if isinstance(node.iterable, syn.Invocation) and node.iterable.called in ("range", "grid", "meta_for"):
            bounds = tuple(map(self.value, node.iterable.arguments))
            kind = "grid" if node.iterable.called == "grid" else "range"
            self.out.append(t.For(place, names, kind, bounds, self.block(node.body), node.unrolled))
            return
        values = self.value(node.iterable)
        self.out.append(t.For(place, names, "in", (values,), self.block(node.body)))

    def _assign(self, place: Place, node: syn.Assignment) -> None:
        if node.pairs is not None:
            values = [self.value(part) for _, part in node.pairs]
            held = [self.kept(place, value) for value in values]
            for (target, _), value in zip(node.pairs, held, strict=True):
                self._store(place, target, value, None)
            return
        self._assigned(place, node.targets, node.value, None)

    def _assigned(
        self, place: Place, targets: Sequence[syn.ExpressionNode], node: syn.ExpressionNode, kind: ElementType | None
    ) -> None:
        value = self.value(node)
        if isinstance(targets[0], syn.Subscript):
            value = self.collected(node, value, inserted=True)
        if len(targets) > 1:
            value = self.kept(place, value)
        for target in targets:
            self._store(place, target, value, kind)

    def _store(self, place: Place, target: syn.ExpressionNode, value: t.Expression, kind: ElementType | None) -> None:
        match target:
            case syn.Identifier(name=name):
                self.out.append(t.Assign(place, (name,), value, kind))
            case _ if syn.is_listed(target):
                self.out.append(t.Assign(place, self._names(target), value))
            case syn.Subscript(base=syn.Identifier(name=name), index=index):
                self.out.append(t.Store(place, name, self.value(index), value))
            case _:
                self.refuse(target, "a machine assigns names, and parts of tiles and tensors")

    def _names(self, target: syn.ExpressionNode) -> tuple[str, ...]:
        parts = target.items if syn.is_listed(target) else (target,)
        return tuple(map(self._name_of, parts))

    def _name_of(self, node: syn.ExpressionNode) -> str:
        if not isinstance(node, syn.Identifier):
            self.refuse(node, "a plain name is expected here")
        return node.name
