"""Questions about the syntax tree of a task: what decides its control, where its streams are touched."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from math import gcd, lcm
from typing import NamedTuple

from ..values import Static
from . import nodes as syn

LONGEST = 1 << 12
"""The longest period of a loop index, in iterations, that is made use of."""


class Grid:
    """The points of a grid in order, the last index the fastest. sizes: of its axes. count: the number of points."""

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


def deciding(body: syn.FunctionDefinition, streams: Container[str] | None) -> frozenset[str]:
    """Return the variables of a task on which conditions, numbers of iterations and indices of streams depend, directly
    or through other variables. body: the function of the task. streams: the names of streams; None to include indices
    of tensors and tiles."""
    found: set[str] = set()
    flows: list[tuple[frozenset[str], frozenset[str]]] = []
    for node in syn.walk(body):
        match node:
            case (
                syn.Branching(test=part)
                | syn.WhileLoop(test=part)
                | syn.Conditional(test=part)
                | syn.ForLoop(iterable=part)
            ):
                found |= part.facts.names
            case syn.MetaArm(heads=heads):
                found |= {name for head in heads for name in head.facts.names}
            case syn.Subscript(index=part) if streams is None:
                found |= part.facts.names
            case syn.Subscript(base=syn.Identifier(name=name), index=part) if streams is not None and name in streams:
                found |= part.facts.names
            case syn.Invocation(function=syn.Identifier(name="tile" | "cycles")):
                found |= node.facts.names
            case syn.Assignment(targets=targets, value=value):
                flows.append((frozenset[str]().union(*(t.facts.names for t in targets)), value.facts.names))
            case syn.Declaration(target=target, value=syn.ExpressionNode() as value):
                flows.append((target.facts.names, value.facts.names))
    return _reached(found, flows)


def varying(body: syn.FunctionDefinition) -> frozenset[str]:
    """Return the variables of a task whose static values differ between instances: they depend on the indices of the
    instance, directly, through other variables, or because these decide which assignment runs. `get_tid` is among them.
    body: the function of the task."""
    flows: list[tuple[frozenset[str], frozenset[str]]] = []
    for node in syn.walk(body):
        match node:
            case syn.Assignment(value=source) | syn.Declaration(value=syn.ExpressionNode() as source):
                flows.append((node.facts.assigned, source.facts.names))
            case syn.ForLoop(iterable=source) | syn.Branching(test=source) | syn.WhileLoop(test=source):
                flows.append((node.facts.assigned, source.facts.names))
            case syn.MetaChain(arms=arms):
                heads = [head.facts.names for arm in arms if arm.name for head in arm.heads]
                flows.append((node.facts.assigned, frozenset[str]().union(*heads)))
    return _reached({"get_tid"}, [(sources, targets) for targets, sources in flows])


def _reached(found: set[str], flows: Sequence[tuple[frozenset[str], frozenset[str]]]) -> frozenset[str]:
    """The names that others lead to. flows: names, one of which leads to others, and these."""
    changed = True
    while changed:
        changed = False
        for names, others in flows:
            if names & found and not others <= found:
                found |= others
                changed = True
    return frozenset(found)


class Deciding(NamedTuple):
    """The expressions of a loop body that decide what is done. parts: conditions, numbers of iterations, indices of
    streams, sizes of tiles, and assigned values on which these depend. stored: the names that the body assigns."""

    parts: tuple[syn.ExpressionNode, ...]
    stored: frozenset[str]


def deciding_parts(body: syn.Block, decisive: Container[str], streams: Container[str]) -> Deciding:
    """Return the expressions of a loop body that decide what is done. decisive: variables on which control flow depends
    (`deciding`). streams: the names of streams."""
    parts: list[syn.ExpressionNode] = []
    stored: set[str] = set()
    for node in (part for statement in body for part in syn.walk(statement)):
        match node:
            case (
                syn.Branching(test=part)
                | syn.WhileLoop(test=part)
                | syn.Conditional(test=part)
                | syn.ForLoop(iterable=part)
            ):
                parts.append(part)
            case syn.MetaArm(heads=heads):
                parts += heads
            case syn.Subscript(base=syn.Identifier(name=base), index=part) if base in streams:
                parts.append(part)
            case syn.Invocation(function=syn.Identifier(name="tile" | "cycles")):
                parts += node.arguments
            case syn.Assignment() | syn.Declaration() if node.value is not None:
                targets = node.targets if isinstance(node, syn.Assignment) else (node.target,)
                if any(t in decisive for target in targets for t in target.facts.names):
                    parts.append(node.value)
            case syn.Identifier(name=name, stored=True):
                stored.add(name)
    return Deciding(tuple(parts), frozenset(stored))


class Pieces(NamedTuple):
    """How a loop is cut into pieces. ends: the number of the iteration at which each piece ends; the last one is that
    of the loop. period: within a piece, iterations that are so far apart do the same."""

    period: int
    ends: tuple[int, ...]


def pieces(name: str, values: range, body: Deciding, known: Callable[[str], object]) -> Pieces | None:
    """Cut a loop where its index is compared with constants, and find the period with which `index % constant` repeats;
    None if the index decides in any other way. name: of the index. values: that it goes through. body: what decides in
    the loop. known: returns the value of another name; None if it is not known or changes in the loop."""
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

    def decides(self, node: syn.SyntaxNode) -> bool:
        """Add what an expression depends on; return whether it is periodic between cuts."""
        match node:
            case syn.Identifier():
                return node.name != self.name
            case syn.Infix(op="%" | "&") if self._remainder(node):
                return True
            case syn.ComparisonChain():
                sides = [node.left, *node.others]
                return all(self._compared(a, b) for a, b in pairwise(sides))
        return all(map(self.decides, node.children))

    def _remainder(self, node: syn.Infix) -> bool:
        """`x % m` or `x & (2**n - 1)`, where x is linear in the index, or a quotient of such by a constant."""
        modulus, value = self._constant(node.right), node.left
        divisor: int | None = 1
        if node.op == "&":
            modulus = modulus + 1 if modulus is not None and modulus & (modulus + 1) == 0 else None
        if isinstance(value, syn.Infix) and value.op == "//":
            divisor, value = self._constant(value.right), value.left
        line = self._line(value)
        if modulus is None or divisor is None or line is None or modulus * divisor <= 0:
            return False
        self.period = lcm(self.period, modulus * divisor // gcd(line[0], modulus * divisor))
        return True

    def _compared(self, a: syn.ExpressionNode, b: syn.ExpressionNode) -> bool:
        others = b.items if isinstance(b, syn.Collection) else (b,)
        line = self._line(a)
        if line is None:
            return self.decides(a) and self.decides(b)
        values = self.known(b.name) if isinstance(b, syn.Identifier) else None
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

    def _constant(self, node: syn.ExpressionNode) -> int | None:
        line = self._line(node)
        return line[1] if line is not None and line[0] == 0 else None

    def _line(self, node: syn.ExpressionNode) -> tuple[int, int] | None:
        """Return (a, b) if an expression is a * index + b."""
        match node:
            case syn.Literal(value=int(number)):
                return 0, number
            case syn.Identifier(name=name):
                value = self.known(name)
                return (1, 0) if name == self.name else (0, value) if isinstance(value, int) else None
            case syn.Prefix(op="-", operand=operand):
                line = self._line(operand)
                return None if line is None else (-line[0], -line[1])
            case syn.Infix(left=left, op="+" | "-" | "*" as op, right=right):
                a, b = self._line(left), self._line(right)
                if a is None or b is None:
                    return None
                if op == "*":
                    return (a[0] * b[1] + b[0] * a[1], a[1] * b[1]) if 0 in (a[0], b[0]) else None
                sign = 1 if op == "+" else -1
                return a[0] + sign * b[0], a[1] + sign * b[1]
            case syn.Infix(left=left, op="//" | "%" as op, right=right):
                dividend, divisor = self._constant(left), self._constant(right)
                if dividend is not None and divisor:
                    return 0, dividend // divisor if op == "//" else dividend % divisor
        return None


def leaves(body: syn.Block) -> bool:
    """Return whether a loop body contains a `break` of that loop."""
    todo: list[syn.SyntaxNode] = [*body]
    while todo:
        node = todo.pop()
        if isinstance(node, syn.Jump) and node.how == "break":
            return True
        if not isinstance(node, syn.ForLoop | syn.WhileLoop):
            todo += node.children
    return False


def nested(target: syn.Collection, sizes: Sequence[int], body: syn.Block, at: syn.StatementNode) -> syn.Block:
    """Return the inner loops of `for i, j in grid(a, b)`: those of all indices but the first, around the body. target:
    all indices. sizes: the iterations of each. at: the statement, whose place the loops get."""
    place = at.place
    for part, size in list(zip(target.items, sizes, strict=True))[:0:-1]:
        call = syn.Invocation(place, syn.Identifier(place, "range"), (syn.Literal(place, size),))
        body = (syn.ForLoop(place, part, call, body, made=True),)
    return body
