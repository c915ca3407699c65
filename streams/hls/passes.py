"""Facts about the tree of a task: indices that are nothing else, gets that assignments take at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...base.place import Place
from ...isa.overlays.tasks import tree as t


def plain_indices(body: Sequence[t.Statement]) -> frozenset[str]:
    """Return the names in the body of a task that are only indices of loops: no other statement assigns them, and they
    are read only in their loops."""
    bound: set[str] = set()
    spoiled: set[str] = set()

    def walk(nodes: Sequence[Any], inside: frozenset[str]) -> None:
        for node in nodes:
            match node:
                case t.For(names=names, bounds=bounds, body=inner, kind=kind):
                    bound.update(names)
                    spoiled.update(set(names) & inside)
                    if kind == "in":
                        spoiled.update(names)
                    walk(bounds, inside)
                    walk(inner, inside | set(names))
                case t.Name(name=name):
                    if name not in inside:
                        spoiled.add(name)
                case t.Get(name=name) | t.Store(name=name):
                    spoiled.add(name)
                    walk(list(_children(node)), inside)
                case t.Assign(names=names):
                    spoiled.update(names)
                    walk(list(_children(node)), inside)
                case _:
                    walk(list(_children(node)), inside)

    walk(body, frozenset())
    return frozenset(bound - spoiled)


def _children(node: Any) -> list[Any]:
    out: list[Any] = []
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        todo = list(value) if isinstance(value, tuple) and not isinstance(value, Place) else [value]
        while todo:
            one = todo.pop(0)
            if isinstance(one, t.Statement | t.Expression):
                out.append(one)
            elif isinstance(one, tuple) and not isinstance(one, Place):
                todo = [*one, *todo]
    return out


def fused(body: Sequence[t.Statement], reads: Mapping[str, int]) -> tuple[t.Statement, ...]:
    """Return statements in which a get into a temporary variable, followed by its assignment to a variable of the
    program, is a get into that variable. The temporary variable must have no other use. Statements that only state
    cycles are left out. reads: how often each name is read in the task."""
    out: list[t.Statement] = []
    for node in body:
        before = out[-1] if out else None
        match node:
            case t.Cycles():
                continue
            case t.Assign(names=(name,), value=t.Name(read), type=None) if (
                isinstance(before, t.Get) and before.name == read and read.startswith("%") and reads[read] == 1
            ):
                out[-1] = replace(before, name=name)
                continue
            case t.If():
                node = replace(node, body=fused(node.body, reads), other=fused(node.other, reads))
            case t.For():
                node = replace(node, body=fused(node.body, reads))
            case t.While():
                node = replace(node, head=fused(node.head, reads), body=fused(node.body, reads))
        out.append(node)
    return tuple(out)
