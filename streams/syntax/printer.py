"""Prints trees as Python: parsing what is printed gives the same tree again, places included.

An expression in a message is written as Python itself writes it. A program that is printed also has the empty lines,
comments and brackets that its nodes ask for, and room around the colon between long ends of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from ...base.place import Place
from . import nodes as n

CUT = 40
"""The letters of an expression that a message shows."""

TUPLE, TEST, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, SIGN, POWER, AWAIT, ATOM = range(16)
"""How tightly operators bind, the loosest first."""

BINDING = {
    "|": BIT_OR,
    "^": BIT_XOR,
    "&": BIT_AND,
    "<<": SHIFT,
    ">>": SHIFT,
    "+": SUM,
    "-": SUM,
    **dict.fromkeys(("*", "@", "/", "%", "//"), PRODUCT),
    "**": POWER,
}
INDENT = "    "

HUGE = "1e309"
"""What Python reads as infinite."""

Piece = str | n.SyntaxNode | tuple[n.SyntaxNode, int]
"""A part of a line: a text, or a node with how tightly the operator around it binds, `TEST` if nothing is said."""


class PrintedProgram(NamedTuple):
    """A program as text. tree: its statements, with the places in this text."""

    text: str
    tree: n.Block


def short(node: n.SyntaxNode) -> str:
    """Return the text of an expression, cut to `CUT` characters if it is longer."""
    text = shown(node)
    return text if len(text) <= CUT else text[: CUT - 3] + "..."


def shown(node: n.SyntaxNode) -> str:
    """Return the text of a node, as Python itself writes it."""
    return _text(node, False)


def laid_out(node: n.ExpressionNode) -> str:
    """Return the text of an expression as a printed program has it, with the brackets that its nodes ask for
    (`ExpressionNode.bracketed`)."""
    return _text(n.copied(node), True)


def printed(body: Sequence[n.StatementNode]) -> PrintedProgram:
    """Return the statements of a program as text, with a copy of the tree that has the places in this text."""
    tree, writer = n.copied(tuple(body)), _Writer(True)
    writer.block(tree, 0)
    return PrintedProgram("".join(f"{line}\n" for line in writer.lines), tree)


def _text(node: n.SyntaxNode, laid: bool) -> str:
    writer = _Writer(laid)
    if isinstance(node, n.StatementNode):
        writer.statement(node, 0)
        return "\n".join(writer.lines)
    writer.write(node)
    return writer.line


class _Writer:
    """Writes lines. laid: nodes get their places, and the layout that they ask for."""

    def __init__(self, laid: bool) -> None:
        self.laid = laid
        self.lines: list[str] = []
        self.line = ""

    def write(self, *pieces: Piece) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self.line += piece
            else:
                self._expression(*(piece if isinstance(piece, tuple) else (piece, TEST)))

    def _expression(self, node: n.SyntaxNode, binding: int) -> None:
        pieces, own = _pieces(node, self.laid)
        brackets = own < binding or (self.laid and getattr(node, "bracketed", False))
        around = int(brackets and not n.is_tuple(node))  # a tuple's brackets are its own
        begin = len(self.line) + around
        self.write("(" * brackets, *pieces, ")" * brackets)
        self._mark(node, begin, len(self.line) - around)

    def _mark(self, node: n.SyntaxNode, begin: int, end: int) -> None:
        if self.laid:
            node.place = Place(len(self.lines) + 1, begin + 1, max(end, begin + 1) + 1)

    def _end_line(self) -> None:
        self.lines.append(self.line)
        self.line = ""

    # -- statements --------------------------------------------------------------------------------------------------

    def block(self, body: Sequence[n.StatementNode], depth: int) -> None:
        for statement in body:
            if self.laid:
                self.lines += [""] * statement.blank
                self.lines += [f"{INDENT * depth}# {line}" for line in statement.comment.splitlines()]
            self.statement(statement, depth)

    def statement(self, node: n.StatementNode, depth: int, opening: str = "") -> None:
        """Write a statement. opening: the letters in front of its first word."""

        def line(*pieces: Piece, of: n.SyntaxNode = node) -> None:
            self.write(INDENT * depth, *pieces)
            self._mark(of, len(INDENT * depth), len(self.line))
            self._end_line()

        def inside(body: Sequence[n.StatementNode], orelse: Sequence[n.StatementNode] = ()) -> None:
            self.block(body, depth + 1)
            if orelse:
                line("else:", of=n.Skip(n.NOWHERE))
                self.block(orelse, depth + 1)

        match node:
            case n.Evaluation(value=n.Literal(value=str(text)) as value) if self.laid and _is_plain(text):
                line(f'"""{text}"""')
                value.place = node.place
            case n.Evaluation(value=value):
                line((value, TUPLE))
            case n.Assignment(targets=(target,), value=n.Infix(left=left, op=op, right=right), augmented=True):
                line(target, f" {op}= ", right)
                if self.laid:  # what is read is written once, as the target
                    node.value.place = node.place
                    for read, stored in zip(n.walk(left), n.walk(target), strict=True):
                        read.place = stored.place
            case n.Assignment(targets=targets, value=value):
                line(*(piece for target in targets for piece in ((target, TUPLE), " = ")), value)
            case n.Declaration(target=target, annotation=annotation, value=value):
                line(target, ": ", annotation, *_given(value, " = "))
            case n.ForLoop(target=target, iterable=iterable, body=body, orelse=orelse):
                line("for ", (target, TUPLE), " in ", iterable, ":")
                inside(body, orelse)
            case n.WhileLoop(test=test, body=body, orelse=orelse):
                line("while ", test, ":")
                inside(body, orelse)
            case n.Branching(test=test, body=body, orelse=(n.Branching() as other,)):
                line(opening, "if ", test, ":")
                inside(body)
                self.statement(other, depth, "el")
            case n.Branching(test=test, body=body, orelse=orelse):
                line(opening, "if ", test, ":")
                inside(body, orelse)
            case n.MetaChain(arms=arms):
                for arm in arms:
                    bound = zip(arm.heads, arm.targets, strict=True)
                    heads = _joined([[head, *_given(target, " as ")] for head, target in bound])
                    line("with ", *heads, ":", of=arm)
                    inside(arm.body)
                node.place = arms[0].place if self.laid else node.place
            case n.Skip():
                line("pass")
            case n.Jump(how=how):
                line(how)
            case n.Returning(value=value):
                line("return", *_given(value, " "))
            case n.Assertion(test=test, message=message):
                line("assert ", test, *_given(message, ", "))
            case n.ImportNames(module=module, aliases=aliases):
                names = ", ".join(name if other is None else f"{name} as {other}" for name, other in aliases)
                line(f"import {names}" if module is None else f"from {module} import {names}")
            case n.FunctionDefinition(name=name, parameters=parameters, body=body):
                for decorator in node.decorators:
                    line("@", decorator)
                kind = f"{'async ' * node.coroutine}def "
                line(kind, name, "(", *_parameters(parameters), ")", *_given(node.returns, " -> "), ":")
                inside(body)
            case n.ForeignStatement(text=text):
                first, *rest = text.split("\n")
                line(first)
                self.lines += [f"{INDENT * depth}{more}" for more in rest]
            case _:
                line(f"pass  # {type(node).__name__}")


def _is_plain(text: str) -> bool:
    """Whether a text may stand between triple quotes as it is."""
    return text.isprintable() and not set(text) & {'"', "\\"}


def _pieces(node: n.SyntaxNode, laid: bool) -> tuple[Sequence[Piece], int]:
    """What an expression is written as, and how tightly it binds."""
    match node:
        case n.Literal(value=value):
            return [_literal(value)], ATOM
        case n.Identifier(name=name):
            return [name], ATOM
        case n.Await(value=value):
            return ["await ", (value, ATOM)], AWAIT
        case n.Prefix(op=op, operand=operand):
            own = NOT if op == "not" else SIGN
            return [op, " " * (op == "not"), (operand, own)], own
        case n.Infix(left=left, op=op, right=right):
            own, turned = BINDING[op], op == "**"
            return [(left, own + turned), f" {op} ", (right, own + (not turned))], own
        case n.ComparisonChain(left=left, ops=ops, others=others):
            rest: list[list[Piece]] = [[f" {op} ", (other, COMPARE + 1)] for op, other in zip(ops, others, strict=True)]
            return [(left, COMPARE + 1), *chain(*rest)], COMPARE
        case n.Logical(op=op, values=values):
            # Each operand binds more than the one before it, so that nested ones keep their brackets.
            own = AND if op == "and" else OR
            return _joined([[(v, min(own + 1 + k, ATOM))] for k, v in enumerate(values)], f" {op} "), own
        case n.Conditional(test=test, body=body, orelse=orelse):
            return [(body, TEST + 1), " if ", (test, TEST + 1), " else ", orelse], TEST
        case n.Collection(form="Tuple", items=items):
            return (_listed(items), TUPLE) if items else (["()"], ATOM)
        case n.Collection(form=form, items=items):
            opening, closing = "[]" if form == "List" else "{}"
            return [opening, *(_listed(items, False) if items or form == "List" else ["*()"]), closing], ATOM
        case n.Slicing(low=low, high=high, step=step):
            room = " " * (laid and not all(isinstance(end, n.Literal | n.Identifier | None) for end in (low, high)))
            before, behind = [*_given(low), room] if low else [], _given(high, room)
            return [*before, ":", *behind, *_given(step, ":")], ATOM
        case n.Subscript(base=base, index=index):
            return [(base, ATOM), "[", (index, TUPLE), "]"], ATOM
        case n.Attribute(base=base, name=name):
            space = " " * (isinstance(base, n.Literal) and isinstance(base.value, int))
            return [(base, ATOM), f"{space}.{name}"], ATOM
        case n.NamedArgument(name=name, value=value):
            return ["**" if name is None else f"{name}=", value], ATOM
        case n.FormalParameter(name=name, annotation=annotation):
            return [name, *_given(annotation, ": ")], ATOM
        case n.Invocation(instead_of=text) if text:
            return [text], ATOM
        case n.Invocation(function=function, arguments=arguments, named=named):
            return [(function, ATOM), "(", *_listed((*arguments, *named), False), ")"], ATOM
        case n.Starred(value=value):
            return ["*", (value, BIT_OR)], ATOM
        case n.Foreign(form=form, text=text):
            return [text], TEST if form == "Lambda" else ATOM
    return [type(node).__name__], ATOM


def _given(node: n.SyntaxNode | None, before: str = "") -> list[Piece]:
    """A node behind a text, nothing if there is none."""
    return [] if node is None else [before, node]


def _joined(parts: Sequence[Sequence[Piece]], between: str = ", ") -> list[Piece]:
    return [piece for k, part in enumerate(parts) for piece in (*([between] if k else []), *part)]


def _listed(items: Sequence[n.SyntaxNode], as_tuple: bool = True) -> list[Piece]:
    return [*_joined([[item] for item in items]), "," * (as_tuple and len(items) == 1)]


def _literal(value: Any) -> str:
    if value is ...:
        return "..."
    if isinstance(value, float | complex):
        return repr(value).replace("inf", HUGE).replace("nan", f"({HUGE}-{HUGE})")
    return repr(value)


def _parameters(parameters: Sequence[n.FormalParameter]) -> list[Piece]:
    parts: list[list[Piece]] = []
    forms = [p.form for p in parameters]
    for k, p in enumerate(parameters):
        if p.form == "kwonlyargs" and "vararg" not in forms and "kwonlyargs" not in forms[:k]:
            parts.append(["*"])
        parts.append([{"vararg": "*", "kwarg": "**"}.get(p.form, ""), p, *_given(p.default, "=")])
        if p.form == "posonlyargs" and "posonlyargs" not in forms[k + 1 :]:
            parts.append(["/"])
    return _joined(parts)
