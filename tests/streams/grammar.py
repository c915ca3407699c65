"""Draws Python of any kind: statements and expressions of every node type that the parser knows."""

from __future__ import annotations

import ast
import re
from functools import cache
from random import Random

NAMES = [
    *(
        "s",
        "t",
        "arr",
        "x",
        "y",
        "i",
        "n",
        "A",
        "pair",
        "helper",
        "a",
        "get_tid",
        "use",
        "drop",
        "data",
        "tile",
        "range",
    ),
    *(
        "grid",
        "meta_if",
        "meta_elif",
        "meta_else",
        "meta_for",
        "Stream",
        "Layout",
        "Annotated",
        "task",
        "region",
        "i32",
    ),
    *(
        "f32",
        "put",
        "get",
        "matmul",
        "softmax",
        "cycles",
        "len",
        "min",
        "print",
        "__import__",
        "exec",
        "mapping",
        "args",
    ),
]
CONSTANTS = [0, 1, 2, 3, -1, 7, 10**6, 10**30, 2**70, 1.5, 1e308, 1j, True, None, ..., "f32", "s", "", "é", b"b"]
ELSEWHERE = (ast.Starred, ast.Slice, ast.FormattedValue, ast.MatchStar)
"""Nodes that stand in some other nodes only."""

COMMON = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.For, ast.While, ast.With, ast.Return)
"""Statements that tasks have; the others end the reading of a task, so that what follows them is not tried."""

EFFECT = "__import__('pathlib').Path({!r}).touch()"
"""An expression that makes a file, if it is ever evaluated."""


@cache
def fields(kind: type[ast.AST]) -> tuple[tuple[str, str, str], ...]:
    """(type, "" or "*" or "?", name) of each field of a node, from its signature in Python's own documentation."""
    signature = re.sub(r"\s+", " ", kind.__doc__ or "")
    inside = re.match(rf"{kind.__name__}\((.*)\)", signature)
    parts = inside[1].split(", ") if inside else []
    return tuple((m[1], m[2], m[3]) for m in (re.match(r"(\w+)([*?]?) (\w+)", part) for part in parts) if m)


@cache
def kinds(name: str) -> tuple[type[ast.AST], ...]:
    base: type[ast.AST] = getattr(ast, name)
    return tuple(kind for kind in base.__subclasses__() if kind.__module__ == "ast" or kind.__module__ == "_ast") or (
        base,
    )


class Drawer:
    """Draws nodes. effect: the text of an expression that some drawn programs hold."""

    def __init__(self, random: Random, effect: str) -> None:
        self.random = random
        self.effect = ast.parse(effect, mode="eval").body

    def node(self, name: str, depth: int) -> ast.AST:
        """Draw a node of a type of Python's grammar, such as expr."""
        r = self.random
        if name == "expr" and (depth <= 0 or r.random() < 0.35):
            return self.leaf()
        choices = kinds(name)
        if name == "stmt" and depth <= 0:
            choices = (ast.Expr, ast.Pass, ast.Assign)
        if name == "pattern" and depth <= 0:
            return ast.MatchAs(None, r.choice(NAMES))
        if name == "stmt" and depth > 0 and r.random() < 0.8:
            choices = COMMON
        kind = r.choice([kind for kind in choices if kind not in ELSEWHERE])
        values = {field: self.value(kind_of, many, field, depth - 1) for kind_of, many, field in fields(kind)}
        return self.mended(kind(**values), depth)

    def mended(self, node: ast.AST, depth: int) -> ast.AST:
        """Make what was drawn field by field fit together."""
        r = self.random
        match node:
            case ast.Compare():
                node.comparators = [self.expr(depth - 1) for _ in node.ops]
            case ast.Dict():
                node.keys = [r.choice([None, self.expr(depth - 1)]) for _ in node.values]
            case ast.For() if r.random() < 0.8:
                function = ast.Name(r.choice(["range", "range", "grid", "meta_for"]), ast.Load())
                bounds = [r.choice([ast.Constant(r.randint(-2, 9)), self.leaf()]) for _ in range(r.randint(1, 2))]
                node.iter, node.orelse = ast.Call(function, [*bounds], []), []
                node.body += r.choice([[], [], [ast.Break()], [ast.Continue()]])
            case ast.With() if r.random() < 0.8:
                name, given = r.choice([("meta_if", 1), ("meta_if", 1), ("meta_else", 0), ("meta_for", 1)])
                call = ast.Call(ast.Name(name, ast.Load()), [self.expr(depth - 1)] * given, [])
                node.items = [ast.withitem(call, None)]
            case ast.While() if r.random() < 0.7:
                node.orelse = []
            case ast.Raise() if node.exc is None:
                node.cause = None
            case ast.AugAssign():
                node.target = ast.Name(r.choice(NAMES), ast.Store())
            case ast.BoolOp():
                node.values += [self.leaf()]
            case ast.JoinedStr():
                node.values = [ast.FormattedValue(self.expr(depth - 1), -1, None), ast.Constant("text")]
            case ast.Subscript() if r.random() < 0.3:
                node.slice = ast.Slice(*(r.choice([None, self.leaf()]) for _ in range(3)))
            case ast.Call() | ast.Tuple() | ast.List() if r.random() < 0.2:
                listed = node.args if isinstance(node, ast.Call) else node.elts
                listed.append(ast.Starred(self.leaf(), ast.Load()))
            case ast.Try() | ast.TryStar():
                for handler in node.handlers:
                    handler.type = self.leaf()
            case ast.ImportFrom():
                node.level = 0
                node.module = node.module or "os"
            case ast.AnnAssign():
                node.target = ast.Name(r.choice(NAMES), ast.Store())
                node.simple = int(isinstance(node.target, ast.Name))
            case ast.NamedExpr():
                node.target = ast.Name(r.choice(NAMES), ast.Store())
            case ast.MatchValue():
                node.value = ast.Constant(1)
            case ast.MatchSingleton():
                node.value = None
            case ast.MatchMapping():
                node.keys = [ast.Constant(k) for k in range(len(node.patterns))]
            case ast.MatchClass():
                node.cls = ast.Name(r.choice(NAMES), ast.Load())
                node.kwd_attrs = [f"field{k}" for k in range(len(node.kwd_patterns))]
            case ast.MatchSequence():
                node.patterns.append(ast.MatchStar(r.choice([None, "x"])))
            case ast.MatchOr():
                node.patterns += [ast.MatchValue(ast.Constant(k)) for k in range(2)]
            case ast.MatchAs():
                node.name = node.name or "x"
        return node

    def expr(self, depth: int) -> ast.expr:
        """Draw an expression."""
        node = self.node("expr", depth)
        assert isinstance(node, ast.expr)
        return node

    def target(self, depth: int) -> ast.expr:
        """Draw what can be assigned."""
        r = self.random
        chance = r.random()
        if chance < 0.6 or depth <= 0:
            return ast.Name(r.choice(NAMES), ast.Store())
        if chance < 0.75:
            return ast.Subscript(self.leaf(), self.expr(depth - 1), ast.Store())
        if chance < 0.85:
            return ast.Attribute(self.leaf(), r.choice(NAMES), ast.Store())
        return ast.Tuple([self.target(depth - 1) for _ in range(r.randint(1, 3))], ast.Store())

    def leaf(self) -> ast.expr:
        r = self.random
        chance = r.random()
        if chance < 0.1:
            return self.effect
        if chance < 0.55:
            return ast.Name(r.choice(NAMES), ast.Load())
        if chance < 0.7:
            base = ast.Name(r.choice(["s", "t", "arr"]), ast.Load())
            method = r.choice(["put", "get"])
            arguments: list[ast.expr] = [ast.Constant(1)] if method == "put" else []
            return ast.Call(ast.Attribute(base, method, ast.Load()), arguments, [])
        return ast.Constant(r.choice(CONSTANTS))

    def value(self, kind: str, many: str, field: str, depth: int) -> object:
        r = self.random
        if field in ("target", "targets", "optional_vars"):
            return [self.target(depth)] * r.randint(1, 2) if many == "*" else self.target(depth)
        if many == "?":
            return self.one(kind, field, depth) if r.random() < 0.5 else None
        if many == "*":
            least = 1 if field in ("body", "targets", "names", "items", "cases", "values", "ops", "handlers") else 0
            return [self.one(kind, field, depth) for _ in range(r.randint(least, 3))]
        return self.one(kind, field, depth)

    def one(self, kind: str, field: str, depth: int) -> object:
        r = self.random
        if kind == "identifier":
            return r.choice(NAMES)
        if kind == "int":
            return 0
        if kind == "string":
            return None
        if kind == "constant":
            return r.choice(CONSTANTS)
        if kind == "expr_context":
            return ast.Load()
        if kind == "arguments":
            given = [
                ast.arg(name, self.node("expr", depth) if r.random() < 0.3 else None) for name in r.sample(NAMES, 2)
            ]
            return ast.arguments([], given[: r.randint(0, 2)], None, [], [], None, [])
        return self.node(kind, depth)


def program(random: Random, effect: str) -> str:
    """Draw a program with drawn nodes at its top, in tasks, and in a region. Some are no Python after all."""
    drawer = Drawer(random, effect)

    def lines(count: int, depth: int) -> list[ast.stmt]:
        return [node for _ in range(count) if isinstance(node := drawer.node("stmt", depth), ast.stmt)]

    tree = ast.parse(
        "from rsn.streams import *\ns: Stream[i32, 2]\nt: Stream[f32, 4, 2]\narr = Stream[i32][3]\n"
        "A: f32[4, 4]\nn = 3\ndef helper(x):\n    pass\n@region()\ndef pair(n: int = 2):\n    pass\n"
        "@task(mapping=[2], args=[A])\nasync def a(x):\n    pass\n@task(mapping=[1])\ndef b():\n    pass\npair()\n"
    )
    start = ast.parse("x, y, i, get, put = 1, data(), 2, s.get(), n").body
    for function in tree.body:
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            drawn = lines(random.randint(1, 3), random.randint(0, 4))
            if function.name in ("a", "b"):
                function.body = [start[0], *drawn]
            elif random.random() < 0.2:
                function.body = drawn
            if random.random() < 0.02:
                function.decorator_list.append(ast.Name(random.choice(NAMES), ast.Load()))
    if random.random() < 0.2:
        tree.body[random.randrange(len(tree.body)) :] += lines(random.randint(1, 2), random.randint(0, 3))
    return ast.unparse(ast.fix_missing_locations(tree))
