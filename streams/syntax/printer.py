"""Prints trees as Python: parsing what is printed gives the same tree again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
HUGE = "1e309"
"""What Python reads as infinite."""


def short(node: n.SyntaxNode) -> str:
    """An expression as it is written, cut if it is long."""
    text = shown(node)
    return text if len(text) <= CUT else text[: CUT - 3] + "..."


def shown(node: n.SyntaxNode, binding: int = TEST) -> str:
    """An expression as Python. binding: of the operator around it; one that binds less has brackets."""
    text, own = _text(node)
    return f"({text})" if own < binding else text


def _text(node: n.SyntaxNode) -> tuple[str, int]:
    match node:
        case n.Literal(value=value):
            return _literal(value), ATOM
        case n.Identifier(name=name):
            return name, ATOM
        case n.Await(value=value):
            return f"await {shown(value, ATOM)}", AWAIT
        case n.Prefix(op=op, operand=operand):
            own = NOT if op == "not" else SIGN
            return f"{op}{' ' * (op == 'not')}{shown(operand, own)}", own
        case n.Infix(left=left, op=op, right=right):
            own, turned = BINDING[op], op == "**"
            return f"{shown(left, own + turned)} {op} {shown(right, own + (not turned))}", own
        case n.ComparisonChain(left=left, ops=ops, others=others):
            rest = "".join(f" {op} {shown(other, COMPARE + 1)}" for op, other in zip(ops, others, strict=True))
            return shown(left, COMPARE + 1) + rest, COMPARE
        case n.Logical(op=op, values=values):
            # Each operand binds more than the one before it, so that nested ones keep their brackets.
            own = AND if op == "and" else OR
            return f" {op} ".join(shown(v, min(own + 1 + k, ATOM)) for k, v in enumerate(values)), own
        case n.Conditional(test=test, body=body, orelse=orelse):
            return f"{shown(body, TEST + 1)} if {shown(test, TEST + 1)} else {shown(orelse)}", TEST
        case n.Collection(form="Tuple", items=items):
            return (_listed(items), TUPLE) if items else ("()", ATOM)
        case n.Collection(form=form, items=items):
            inner = ", ".join(map(shown, items))
            return f"[{inner}]" if form == "List" else f"{{{inner}}}" if items else "{*()}", ATOM
        case n.Slicing(low=low, high=high, step=step):
            low_text, high_text = ("" if part is None else shown(part) for part in (low, high))
            return f"{low_text}:{high_text}" + (f":{shown(step)}" if step is not None else ""), ATOM
        case n.Subscript(base=base, index=index):
            whole = isinstance(index, n.Collection) and index.form == "Tuple" and index.items
            return f"{shown(base, ATOM)}[{_listed(index.items) if whole else shown(index)}]", ATOM  # type: ignore[attr-defined]
        case n.Attribute(base=base, name=name):
            space = " " * (isinstance(base, n.Literal) and isinstance(base.value, int))
            return f"{shown(base, ATOM)}{space}.{name}", ATOM
        case n.NamedArgument(name=name, value=value):
            return f"{name}={shown(value)}" if name is not None else f"**{shown(value)}", ATOM
        case n.Invocation(function=function, arguments=arguments, named=named):
            return f"{shown(function, ATOM)}({', '.join(map(shown, (*arguments, *named)))})", ATOM
        case n.Starred(value=value):
            return f"*{shown(value, BIT_OR)}", ATOM
        case n.Foreign(form=form, text=text):
            return text, TEST if form == "Lambda" else ATOM
    return "\n".join(_lines(node)), ATOM


def _listed(items: Sequence[n.ExpressionNode]) -> str:
    return ", ".join(map(shown, items)) + "," * (len(items) == 1)


def _literal(value: Any) -> str:
    if value is ...:
        return "..."
    if isinstance(value, float | complex):
        return repr(value).replace("inf", HUGE).replace("nan", f"({HUGE}-{HUGE})")
    return repr(value)


# -- statements -------------------------------------------------------------------------------------------------------


def printed(body: Sequence[n.StatementNode]) -> str:
    """A program as Python."""
    return "".join(f"{line}\n" for statement in body for line in _lines(statement))


def _lines(node: n.SyntaxNode) -> Iterator[str]:
    match node:
        case n.Evaluation(value=value):
            yield shown(value, TUPLE)
        case n.Assignment(targets=(target,), value=n.Infix(op=op, right=right), augmented=True):
            yield f"{shown(target)} {op}= {shown(right)}"
        case n.Assignment(targets=targets, value=value):
            yield "".join(f"{shown(target, TUPLE)} = " for target in targets) + shown(value)
        case n.Declaration(target=target, annotation=annotation, value=value):
            yield f"{shown(target)}: {shown(annotation)}" + ("" if value is None else f" = {shown(value)}")
        case n.ForLoop(target=target, iterable=iterable, body=body, orelse=orelse):
            yield f"for {shown(target, TUPLE)} in {shown(iterable)}:"
            yield from _inner(body)
            yield from _else(orelse)
        case n.WhileLoop(test=test, body=body, orelse=orelse):
            yield f"while {shown(test)}:"
            yield from _inner(body)
            yield from _else(orelse)
        case n.Branching(test=test, body=body, orelse=orelse):
            yield f"if {shown(test)}:"
            yield from _inner(body)
            if len(orelse) == 1 and isinstance(orelse[0], n.Branching):
                first, *rest = _lines(orelse[0])
                yield f"el{first}"
                yield from rest
            else:
                yield from _else(orelse)
        case n.MetaChain(arms=arms):
            for arm in arms:
                named = ("" if target is None else f" as {shown(target)}" for target in arm.targets)
                heads = (shown(head) + name for head, name in zip(arm.heads, named, strict=True))
                yield f"with {', '.join(heads)}:"
                yield from _inner(arm.body)
        case n.Skip():
            yield "pass"
        case n.Jump(how=how):
            yield how
        case n.Returning(value=value):
            yield "return" if value is None else f"return {shown(value)}"
        case n.Assertion(test=test, message=message):
            yield f"assert {shown(test)}" + ("" if message is None else f", {shown(message)}")
        case n.ImportNames(module=module, aliases=aliases):
            names = ", ".join(name if other is None else f"{name} as {other}" for name, other in aliases)
            yield f"import {names}" if module is None else f"from {module} import {names}"
        case n.FunctionDefinition():
            yield from (f"@{shown(decorator)}" for decorator in node.decorators)
            returns = "" if node.returns is None else f" -> {shown(node.returns)}"
            yield f"{'async ' * node.coroutine}def {node.name}({_parameters(node.parameters)}){returns}:"
            yield from _inner(node.body)
        case n.ForeignStatement(text=text):
            yield from text.split("\n")
        case _:
            yield f"pass  # {type(node).__name__}"


def _inner(body: Sequence[n.StatementNode]) -> Iterator[str]:
    for statement in body:
        for line in _lines(statement):
            yield f"    {line}"


def _else(body: Sequence[n.StatementNode]) -> Iterator[str]:
    if body:
        yield "else:"
        yield from _inner(body)


def _parameters(parameters: Sequence[n.FormalParameter]) -> str:
    parts: list[str] = []
    forms = [p.form for p in parameters]
    for k, p in enumerate(parameters):
        if p.form == "kwonlyargs" and "vararg" not in forms and "kwonlyargs" not in forms[:k]:
            parts.append("*")
        stars = {"vararg": "*", "kwarg": "**"}.get(p.form, "")
        note = "" if p.annotation is None else f": {shown(p.annotation)}"
        parts.append(f"{stars}{p.name}{note}" + ("" if p.default is None else f"={shown(p.default)}"))
        if p.form == "posonlyargs" and "posonlyargs" not in forms[k + 1 :]:
            parts.append("/")
    return ", ".join(parts)
