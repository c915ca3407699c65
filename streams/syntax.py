"""Questions about the syntax tree of a task: what decides its control, where its streams are touched."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from math import gcd, lcm
from typing import NamedTuple

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


class Below(NamedTuple):
    """What statements and expressions hold, by node. divides: whether a branch with it ends a beat before and behind
    it: one that holds nothing but computation does not. assigned: variables of which it assigns all, or a part."""

    divides: dict[ast.AST, bool]
    assigned: dict[ast.AST, frozenset[str]]


def below(body: ast.AST, timed: Container[str] = ()) -> Below:
    """Find what every node of a body holds, each node once. timed: kernels that take cycles."""
    found = Below({}, {})
    for node in reversed([*ast.walk(body)]):  # what a node holds comes before it
        inner = [*ast.iter_child_nodes(node)]
        found.divides[node] = _divides(node, timed) or any(found.divides[child] for child in inner)
        names = {name for name in (found.assigned[child] for child in inner) if name}
        if isinstance(node, ast.Name | ast.Subscript) and isinstance(node.ctx, ast.Store):
            base: ast.expr = node
            while isinstance(base, ast.Subscript):
                base = base.value
            names |= {frozenset({base.id})} if isinstance(base, ast.Name) else set()
        found.assigned[node] = names.pop() if len(names) == 1 else frozenset[str]().union(*names)
    return found


def _divides(node: ast.AST, timed: Container[str]) -> bool:
    match node:
        case ast.Break() | ast.Continue() | ast.Return() | ast.For() | ast.While():
            return True
        case ast.Attribute(attr="put" | "get"):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name == "cycles" or name in timed
        case ast.MatMult():
            return "matmul" in timed
        case ast.BinOp() | ast.UnaryOp():
            return any(name in timed for name in ("add", "sub", "mul", "div", "neg"))
    return False


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
    return set[str]().union(*(below(statement).assigned[statement] for statement in body))


def varying(body: ast.FunctionDef, known: Below) -> frozenset[str]:
    """Return the variables whose static values depend on the point of the instance, directly, through others, or
    because it decides which of their assignments is run; `get_tid` is among them. known: of the body."""
    flows: list[tuple[frozenset[str], set[str]]] = []
    for node in ast.walk(body):
        match node:
            case ast.Assign(value=source) | ast.AnnAssign(value=ast.expr() as source) | ast.AugAssign(value=source):
                flows.append((known.assigned[node], names_in(source)))
            case ast.For(iter=source) | ast.If(test=source) | ast.While(test=source):
                flows.append((known.assigned[node], names_in(source)))
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for k, statement in enumerate(block):
                if meta_name(statement)[0] in ("meta_if", "meta_for"):
                    chain = block[k : k + chain_length(block, k)]
                    tests = [call for part in chain if (call := meta_name(part)[1]) is not None]
                    held = frozenset[str]().union(*(known.assigned[part] for part in chain))
                    flows.append((held, set[str]().union(*map(names_in, tests))))
    found = {"get_tid"}
    changed = True
    while changed:
        changed = False
        for targets_of, sources in flows:
            if sources & found and not targets_of <= found:
                found |= targets_of
                changed = True
    return frozenset(found)


class Deciding(NamedTuple):
    """What decides in the body of a loop. parts: conditions, trips, indices of streams, sizes of tiles, and values of
    variables that such depend on. stored: names that the body assigns."""

    parts: tuple[ast.expr, ...]
    stored: frozenset[str]


def deciding_parts(body: Sequence[ast.stmt], decisive: Container[str], streams: Container[str]) -> Deciding:
    """Collect what decides in a body."""
    parts: list[ast.expr] = []
    stored: set[str] = set()
    for node in (part for statement in body for part in ast.walk(statement)):
        match node:
            case ast.If(test=part) | ast.While(test=part) | ast.IfExp(test=part) | ast.For(iter=part):
                parts.append(part)
            case ast.With(items=items):
                parts += [item.context_expr for item in items]
            case ast.Subscript(value=ast.Name(id=base), slice=part) if base in streams:
                parts.append(part)
            case ast.Call(func=ast.Name(id="tile" | "cycles")):
                parts += node.args
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() if node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(t in decisive for target in targets for t in names_in(target)):
                    parts.append(node.value)
            case ast.Name(id=name, ctx=ast.Store()):
                stored.add(name)
    return Deciding(tuple(parts), frozenset(stored))


class Pieces(NamedTuple):
    """How a loop is stepped. period: within a piece the same things are decided after so many iterations. ends: of the
    pieces, as numbers of iterations, the last one that of the loop."""

    period: int
    ends: tuple[int, ...]


def pieces(name: str, values: range, body: Deciding, known: Callable[[str], object]) -> Pieces | None:
    """Split a loop where the index is compared with constants, and find the period of `index % constant`; None if the
    index decides in another way. known: value of another name, None if it is not known or not constant in the loop."""
    if name in body.stored:
        return None
    index = _Index(name, known)
    if not all(index.decides(part) for part in body.parts) or not index.period <= LONGEST >= len(index.cuts):
        return None
    ends = {len(values)}
    for cut in index.cuts:
        distance = cut - values.start if values.step > 0 else values.start - cut + 1
        ends.add(min(max(0, -(-distance // abs(values.step))), len(values)))
    return Pieces(index.period, tuple(sorted(ends - {0})))


class _Index:
    """How the values of a name decide. period: the least common one. cuts: values below which, and from which on,
    comparisons may differ."""

    def __init__(self, name: str, known: Callable[[str], object]) -> None:
        self.name, self.known = name, known
        self.period = 1
        self.cuts: set[int] = set()

    def decides(self, node: ast.AST) -> bool:
        """Add what an expression depends on; return whether it is periodic between cuts."""
        match node:
            case ast.Name():
                return node.id != self.name
            case ast.BinOp(op=ast.Mod() | ast.BitAnd()) if self._remainder(node):
                return True
            case ast.Compare():
                sides = [node.left, *node.comparators]
                return all(self._compared(a, b) for a, b in pairwise(sides))
        return all(self.decides(child) for child in ast.iter_child_nodes(node))

    def _remainder(self, node: ast.BinOp) -> bool:
        """`x % m` or `x & (2**n - 1)`, where x is linear in the index, or a quotient of such by a constant."""
        modulus, value = self._constant(node.right), node.left
        divisor: int | None = 1
        if isinstance(node.op, ast.BitAnd):
            modulus = modulus + 1 if modulus is not None and modulus & (modulus + 1) == 0 else None
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.FloorDiv):
            divisor, value = self._constant(value.right), value.left
        line = self._line(value)
        if modulus is None or divisor is None or line is None or modulus * divisor <= 0:
            return False
        self.period = lcm(self.period, modulus * divisor // gcd(line[0], modulus * divisor))
        return True

    def _compared(self, a: ast.expr, b: ast.expr) -> bool:
        others: list[ast.expr] = [b]
        if isinstance(b, ast.Tuple | ast.List | ast.Set):
            others = b.elts
        line = self._line(a)
        if line is None:
            return self.decides(a) and self.decides(b)
        values = self.known(b.id) if isinstance(b, ast.Name) else None
        if isinstance(values, tuple) and all(isinstance(v, int) for v in values):
            lines: list[tuple[int, int] | None] = [(0, v) for v in values]
        else:
            lines = [self._line(other) for other in others]
        for other in lines:
            if other is None:
                return line[0] == 0 and self.decides(b)
            slope, rest = line[0] - other[0], other[1] - line[1]
            if slope:
                self.cuts |= {rest // slope, rest // slope + 1}
        return True

    def _constant(self, node: ast.expr) -> int | None:
        line = self._line(node)
        return line[1] if line is not None and line[0] == 0 else None

    def _line(self, node: ast.expr) -> tuple[int, int] | None:
        """Return (a, b) if an expression is a * index + b."""
        match node:
            case ast.Constant(value=int(number)):
                return 0, number
            case ast.Name(id=name):
                value = self.known(name)
                return (1, 0) if name == self.name else (0, value) if isinstance(value, int) else None
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                line = self._line(operand)
                return None if line is None else (-line[0], -line[1])
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
                a, b = self._line(left), self._line(right)
                if a is None or b is None:
                    return None
                if isinstance(op, ast.Mult):
                    return (a[0] * b[1] + b[0] * a[1], a[1] * b[1]) if 0 in (a[0], b[0]) else None
                sign = 1 if isinstance(op, ast.Add) else -1
                return a[0] + sign * b[0], a[1] + sign * b[1]
            case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() as op, right=right):
                dividend, divisor = self._constant(left), self._constant(right)
                if dividend is not None and divisor:
                    return 0, dividend // divisor if isinstance(op, ast.FloorDiv) else dividend % divisor
        return None


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a body holds a `break` of the loop around it."""
    todo: list[ast.AST] = [*body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Break):
            return True
        if not isinstance(node, ast.For | ast.While):
            todo += ast.iter_child_nodes(node)
    return False


def nested(target: ast.Tuple, sizes: Sequence[int], body: list[ast.stmt], at: ast.stmt) -> list[ast.stmt]:
    """Return `for i, j in grid(a, b)` without its outermost loop, as loops inside one another."""
    for part, size in list(zip(target.elts, sizes, strict=True))[:0:-1]:
        call = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(size)], [])
        loop: ast.stmt = ast.For(part, call, body, [])
        for made in (loop, call, call.func, *call.args):
            ast.copy_location(made, at)
        body = [loop]
    return body


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
