"""Questions about the syntax tree of a task: what decides its control, where its streams are touched."""

from __future__ import annotations

import ast
from collections.abc import Container, Sequence
from math import lcm

from .values import Static

LONGEST = 1 << 12
"""The longest period of a loop index, in iterations, that is made use of."""

META = ("meta_if", "meta_elif", "meta_else", "meta_for")


def touches(body: Sequence[ast.AST]) -> bool:
    """Whether statements or expressions hold a put, a get or a collective."""
    for part in (part for statement in body for part in ast.walk(statement)):
        if isinstance(part, ast.Attribute) and part.attr in ("put", "get", "allreduce"):
            return True
        if isinstance(part, ast.Name) and part.id == "allreduce":
            return True
    return False


def divides(body: Sequence[ast.stmt], timed: Container[str] = ()) -> bool:
    """Whether a branch with these statements ends a beat before and behind it: one that holds nothing but computation
    does not. timed: kernels that take cycles."""
    leaves = (ast.Break, ast.Continue, ast.Return, ast.For, ast.While)
    parts = [part for statement in body for part in ast.walk(statement)]
    called = {
        p.func.id if isinstance(p.func, ast.Name) else p.func.attr
        for p in parts
        if isinstance(p, ast.Call) and isinstance(p.func, ast.Name | ast.Attribute)
    }
    called |= {"matmul" for p in parts if isinstance(p, ast.MatMult)}
    if any(isinstance(p, ast.BinOp | ast.UnaryOp) for p in parts):
        called |= {"add", "sub", "mul", "div", "neg"}
    states = "cycles" in called or any(name in timed for name in called)
    return states or touches(body) or any(isinstance(part, leaves) for part in parts)


class Grid:
    """The points of a grid in order, the last index innermost."""

    def __init__(self, sizes: list[int], count: int) -> None:
        self.sizes, self.count = sizes, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Static:
        point = []
        for size in reversed(self.sizes):
            number, index = divmod(number, size)
            point.append(index)
        return Static(tuple(reversed(point)))


def meta_name(statement: ast.stmt) -> tuple[str | None, ast.Call | None]:
    if isinstance(statement, ast.With) and len(statement.items) == 1:
        call = statement.items[0].context_expr
        if isinstance(call, ast.Call) and meta_name_of(call) is not None:
            return meta_name_of(call), call
    return None, None


def meta_name_of(call: ast.expr) -> str | None:
    """The name of a meta function that is called; None if another one, or none, is."""
    named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in META
    return call.func.id if named else None  # type: ignore[attr-defined]


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
            case ast.Call(func=ast.Name(id="tile" | "cycles")):
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


def assigned(body: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that statements assign, or of which they assign parts."""
    found: set[str] = set()
    for node in (part for statement in body for part in ast.walk(statement)):
        if isinstance(node, ast.Name | ast.Subscript) and isinstance(node.ctx, ast.Store):
            base: ast.expr = node
            while isinstance(base, ast.Subscript):
                base = base.value
            found |= {base.id} if isinstance(base, ast.Name) else set()
    return found


def varying(body: ast.FunctionDef) -> frozenset[str]:
    """Return the variables whose static values depend on the point of the instance, directly, through others, or
    because it decides which of their assignments is run; `get_tid` is among them."""
    flows: list[tuple[set[str], set[str]]] = []
    for node in ast.walk(body):
        match node:
            case ast.Assign(value=source) | ast.AnnAssign(value=ast.expr() as source) | ast.AugAssign(value=source):
                flows.append((assigned([node]), names_in(source)))
            case ast.For(iter=source) | ast.If(test=source) | ast.While(test=source):
                flows.append((assigned([node]), names_in(source)))
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for k, statement in enumerate(block):
                if meta_name(statement)[0] in ("meta_if", "meta_for"):
                    chain = block[k : k + chain_length(block, k)]
                    tests = [call for part in chain if (call := meta_name(part)[1]) is not None]
                    flows.append((assigned(chain), set().union(*map(names_in, tests))))
    found = {"get_tid"}
    changed = True
    while changed:
        changed = False
        for targets_of, sources in flows:
            if sources & found and not targets_of <= found:
                found |= targets_of
                changed = True
    return frozenset(found)


def period_of(name: str, body: Sequence[ast.stmt], decisive: Container[str], streams: Container[str]) -> int:
    """Return after how many values of a loop index the same things are decided, if the index decides by `index %
    constant` alone; otherwise 0."""
    period = 1
    for node in (part for statement in body for part in ast.walk(statement)):
        parts: list[ast.expr] = []
        match node:
            case ast.If(test=part) | ast.While(test=part) | ast.IfExp(test=part) | ast.For(iter=part):
                parts = [part]
            case ast.With(items=items):
                parts = [item.context_expr for item in items]
            case ast.Subscript(value=ast.Name(id=base), slice=part) if base in streams:
                parts = [part]
            case ast.Call(func=ast.Name(id="tile" | "cycles")):
                parts = node.args
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() if node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                parts = [node.value] if any(t in decisive for target in targets for t in names_in(target)) else []
        for part in parts:
            found = _moduli(part, name)
            if found is None:
                return 0
            period = lcm(period, *found)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return 0
    return period if period <= LONGEST else 0


def _moduli(node: ast.AST, name: str) -> set[int] | None:
    """The constants c of every `name % c` in an expression; None if it uses the name in another way."""
    match node:
        case ast.BinOp(left=ast.Name(id=left), op=ast.Mod(), right=ast.Constant(value=int(number))) if number > 0:
            return {number} if left == name else set()
        case ast.Name():
            return None if node.id == name else set()
    found: set[int] = set()
    for child in ast.iter_child_nodes(node):
        below = _moduli(child, name)
        if below is None:
            return None
        found |= below
    return found


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
