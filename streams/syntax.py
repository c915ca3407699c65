"""Questions about the syntax tree of a task: what decides its control, where its streams are touched."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Sequence
from itertools import product

from .values import Static

META = ("meta_if", "meta_elif", "meta_else", "meta_for")


def touches(body: Sequence[ast.stmt]) -> bool:
    """Whether statements hold a put or a get."""
    parts = (part for statement in body for part in ast.walk(statement))
    return any(isinstance(part, ast.Attribute) and part.attr in ("put", "get") for part in parts)


class Grid:
    """The points of a grid in order, made one by one."""

    def __init__(self, sizes: list[int], count: int) -> None:
        self.sizes, self.count = sizes, count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Static]:
        return (Static(point) for point in product(*(range(size) for size in self.sizes)))


def meta_name(statement: ast.stmt) -> tuple[str | None, ast.Call | None]:
    if isinstance(statement, ast.With) and len(statement.items) == 1:
        call = statement.items[0].context_expr
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in META:
            return call.func.id, call
    return None, None


def chain_length(statements: Sequence[ast.stmt], k: int) -> int:
    """How many statements from k on belong to one meta_if."""
    count = 1
    if meta_name(statements[k])[0] == "meta_if":
        while k + count < len(statements):
            name = meta_name(statements[k + count])[0]
            if name not in ("meta_elif", "meta_else"):
                break
            count += 1
            if name == "meta_else":
                break
    return count


def deciding(body: ast.FunctionDef, streams: Container[str]) -> frozenset[str]:
    """Return the variables that conditions, trips and indices of streams depend on, directly or through others."""
    found: set[str] = set()
    flows: list[tuple[set[str], set[str]]] = []
    for node in ast.walk(body):
        match node:
            case ast.If(test=part) | ast.While(test=part) | ast.IfExp(test=part) | ast.For(iter=part):
                found |= names_in(part)
            case ast.With(items=items):
                found |= {name for item in items for name in names_in(item.context_expr)}
            case ast.Subscript(value=ast.Name(id=name), slice=part) if name in streams:
                found |= names_in(part)
            case ast.Call(func=ast.Name(id="tile")):
                found |= names_in(node)
            case ast.Assign(targets=targets, value=value):
                flows.append(({name for target in targets for name in names_in(target)}, names_in(value)))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                flows.append((names_in(target), names_in(value)))
            case ast.AugAssign(target=target, value=value):
                flows.append((names_in(target), names_in(value)))
    changed = True
    while changed:
        changed = False
        for targets_of, sources in flows:
            if targets_of & found and not sources <= found:
                found |= sources
                changed = True
    return frozenset(found)


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
