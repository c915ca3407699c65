"""Parses the text of a stream program: Python's syntax to nodes. Nothing else reads Python's own syntax tree.

What the language does not have is kept as `Foreign`, so that whoever comes to it can say where it stands.
"""

from __future__ import annotations

import ast
import warnings
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from ...base.place import Place
from . import nodes as n

BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.MatMult: "@",
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
    ast.Is: "is",
    ast.IsNot: "is not",
}
UNARY = {ast.USub: "-", ast.UAdd: "+", ast.Not: "not", ast.Invert: "~"}


class UnreadableError(Exception):
    """A text that is no Python. place: of the mistake; None if it is not known."""

    def __init__(self, message: str, place: Place | None) -> None:
        super().__init__(message)
        self.place = place


def parsed(text: str) -> n.Block:
    """Return the statements of a text; lines must end with a line feed. Raises `UnreadableError` for a text that is no
    Python, or that is nested too deeply for Python's parser."""
    lines = text.split("\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an invalid escape: the user's own Python says it
            tree = ast.parse(text)
    except SyntaxError as error:
        line = min(max(1, error.lineno or 1), len(lines))
        column = min(max(0, (error.offset or 1) - 1), len(lines[line - 1])) + 1
        raise UnreadableError(f"this is not Python: {error.msg}", Place(line, column, column + 1)) from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise UnreadableError(f"this cannot be read: {error or type(error).__name__}", None) from None
    return _Parser(lines).block(tree.body)


def parsed_expression(text: str, place: Place | None = None) -> n.ExpressionNode | None:
    """Return the expression in a text; None if it holds none. place: that all its nodes get, if the text stands in a
    file as a string; None to count places in the text."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _Parser(text.strip().split("\n"), place).expression(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Parser:
    """Makes nodes. lines: of the text. place: of all nodes; None for their own ones."""

    def __init__(self, lines: Sequence[str], place: Place | None = None) -> None:
        self.lines, self.at = lines, place
        self._columns: dict[int, array[int]] = {}

    # -- places ------------------------------------------------------------------------------------------------------

    def place(self, node: ast.AST) -> Place:
        """Where a node begins; of several lines, it marks the first one."""
        if self.at is not None:
            return self.at
        line = int(getattr(node, "lineno", 1))
        start = self._column(line, int(getattr(node, "col_offset", 0)))
        end = len(self.lines[line - 1])
        if getattr(node, "end_lineno", line) == line:
            end = self._column(line, int(getattr(node, "end_col_offset", start + 1)))
        return Place(line, start + 1, max(end, start + 1) + 1)

    def _column(self, line: int, offset: int) -> int:
        """The character at which a byte of a line is, as Python counts them."""
        text = self.lines[line - 1]
        if text.isascii():
            return min(offset, len(text))
        columns = self._columns.get(line)
        if columns is None:
            # A byte that continues a character has the column of its first one.
            begins = ((byte & 0xC0) != 0x80 for byte in text.encode(errors="replace"))
            columns = self._columns[line] = array("l", accumulate(begins, initial=0))
        return columns[min(offset, len(columns) - 1)]

    # -- statements --------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.stmt]) -> n.Block:
        made: list[n.StatementNode] = []
        for statement in body:
            try:
                node = self.statement(statement)
            except RecursionError:
                node = n.TooDeep(self.place(statement))
            before = made[-1] if made else None
            if (
                isinstance(node, n.MetaChain)
                and node.arms[0].name in ("meta_elif", "meta_else")
                and isinstance(before, n.MetaChain)
                and before.arms[0].name == "meta_if"
                and before.arms[-1].name != "meta_else"
            ):
                made[-1] = n.MetaChain(before.place, (*before.arms, *node.arms))
            else:
                made.append(node)
        return tuple(made)

    def statement(self, node: ast.stmt) -> n.StatementNode:
        at = self.place(node)
        match node:
            case ast.Expr(value=value):
                return n.Evaluation(at, self.expression(value))
            case ast.Assign(targets=targets, value=value):
                return n.Assignment(at, self.expressions(targets), self.expression(value))
            case ast.AugAssign(target=target, op=op, value=value):
                # The value is that of the operator: the target is read before, as what it is then.
                read = self._loaded(target)
                both = n.Infix(at, read, BINARY[type(op)], self.expression(value))
                return n.Assignment(at, (self.expression(target),), both, True)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                return n.Declaration(at, self.expression(target), self.expression(annotation), self.optional(value))
            case ast.For(target=target, iter=values, body=body, orelse=orelse):
                return n.ForLoop(
                    at, self.expression(target), self.expression(values), self.block(body), self.block(orelse)
                )
            case ast.While(test=test, body=body, orelse=orelse):
                return n.WhileLoop(at, self.expression(test), self.block(body), self.block(orelse))
            case ast.If(test=test, body=body, orelse=orelse):
                return n.Branching(at, self.expression(test), self.block(body), self.block(orelse))
            case ast.With(items=items, body=body):
                heads = self.expressions([item.context_expr for item in items])
                only = heads[0] if len(heads) == 1 else None
                name = only.called if isinstance(only, n.Invocation) and only.called in n.META else ""
                bound = tuple([self.optional(item.optional_vars) for item in items])
                return n.MetaChain(at, (n.MetaArm(at, name, heads, bound, self.block(body)),))
            case ast.Pass():
                return n.Skip(at)
            case ast.Break() | ast.Continue():
                return n.Jump(at, type(node).__name__.lower())
            case ast.Return(value=value):
                return n.Returning(at, self.optional(value))
            case ast.Assert(test=test, msg=message):
                return n.Assertion(at, self.expression(test), self.optional(message))
            case ast.Import(names=names):
                return n.ImportNames(at, None, tuple((a.name, a.asname) for a in names))
            case ast.ImportFrom(module=module, names=names, level=level):
                return n.ImportNames(at, "." * level + (module or ""), tuple((a.name, a.asname) for a in names))
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not getattr(node, "type_params", ()):  # Python 3.12
                return n.FunctionDefinition(
                    at,
                    node.name,
                    tuple(self._parameters(node.args)),
                    self.block(node.body),
                    self.expressions(node.decorator_list),
                    self.optional(node.returns),
                    isinstance(node, ast.AsyncFunctionDef),
                )
        return self._foreign(node)

    def _foreign(self, node: ast.stmt) -> n.ForeignStatement:
        return n.ForeignStatement(self.place(node), type(node).__name__, ast.unparse(node), tuple(self._inside(node)))

    def _parameters(self, given: ast.arguments) -> Iterator[n.FormalParameter]:
        plain = [*given.posonlyargs, *given.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
        rows: list[tuple[str, ast.arg | None, ast.expr | None]] = [
            ("posonlyargs" if k < len(given.posonlyargs) else "args", a, d)
            for k, (a, d) in enumerate(zip(plain, defaults, strict=True))
        ]
        rows.append(("vararg", given.vararg, None))
        rows += [("kwonlyargs", a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
        rows.append(("kwarg", given.kwarg, None))
        for form, argument, default in rows:
            if argument is not None:
                note, value = self.optional(argument.annotation), self.optional(default)
                yield n.FormalParameter(self.place(argument), argument.arg, form, note, value)

    # -- expressions -------------------------------------------------------------------------------------------------

    def expressions(self, nodes: Sequence[ast.expr]) -> tuple[n.ExpressionNode, ...]:
        return tuple([self.expression(node) for node in nodes])

    def optional(self, node: ast.expr | None) -> n.ExpressionNode | None:
        return None if node is None else self.expression(node)

    def expression(self, node: ast.expr) -> n.ExpressionNode:
        at = self.place(node)
        match node:
            case ast.Constant(value=value):
                return n.Literal(at, value)
            case ast.Name(id=name, ctx=ctx):
                return n.Identifier(at, name, isinstance(ctx, ast.Store))
            case ast.Call(func=function, args=arguments, keywords=keywords):
                named = tuple([n.NamedArgument(self.place(k), k.arg, self.expression(k.value)) for k in keywords])
                return n.Invocation(at, self.expression(function), self.expressions(arguments), named)
            case ast.Attribute(value=base, attr=name):
                return n.Attribute(at, self.expression(base), name)
            case ast.BinOp(left=left, op=op, right=right):
                return n.Infix(at, self.expression(left), BINARY[type(op)], self.expression(right))
            case ast.UnaryOp(op=op, operand=operand):
                return n.Prefix(at, UNARY[type(op)], self.expression(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                symbols = tuple([BINARY[type(op)] for op in ops])
                return n.ComparisonChain(at, self.expression(left), symbols, self.expressions(others))
            case ast.BoolOp(op=op, values=values):
                return n.Logical(at, "and" if isinstance(op, ast.And) else "or", self.expressions(values))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return n.Conditional(at, self.expression(test), self.expression(body), self.expression(orelse))
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return n.Collection(at, type(node).__name__, self.expressions(items))
            case ast.Slice(lower=low, upper=high, step=step):
                return n.Slicing(at, self.optional(low), self.optional(high), self.optional(step))
            case ast.Subscript(value=base, slice=index, ctx=ctx):
                return n.Subscript(at, self.expression(base), self.expression(index), isinstance(ctx, ast.Store))
            case ast.Await(value=value):
                return n.Await(at, self.expression(value))
            case ast.Starred(value=value):
                return n.Starred(at, self.expression(value))
        own = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        own |= {x.arg for x in ast.walk(node) if isinstance(x, ast.arg)}
        kind, text = type(node).__name__, ast.unparse(node)
        return n.Foreign(at, kind, text, tuple(sorted(own)), tuple(self._inside(node)))

    def _loaded(self, target: ast.expr) -> n.ExpressionNode:
        """The target of an assignment as a value."""
        read = self.expression(target)
        if isinstance(read, n.Identifier | n.Subscript):
            read.stored = False
        return read

    def _inside(self, node: ast.AST) -> Iterator[n.SyntaxNode]:
        """The statements and expressions in what the language does not have."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield self.expression(child)
            elif isinstance(child, ast.stmt):
                yield from self.block([child])
            elif inner := tuple(self._inside(child)):
                yield n.Foreign(self.place(child), type(child).__name__, "", (), inner)


def executable(text: str, kept: Any) -> ast.Module:
    """Return those statements of a text that may be executed, as Python's own tree. kept: is called with the node of
    each statement at the top, and returns whether it may be. Raises `SyntaxError` for a text that is no Python."""
    tree, parser = ast.parse(text), _Parser(text.split("\n"))
    tree.body = [node for node in tree.body if kept(parser.block([node])[0])]
    return tree
