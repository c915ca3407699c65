"""What an instance computes, up to names: the statements that it runs, with streams and local variables renamed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..tree import TaskDecl

Ran = frozenset[tuple[int, ...]]


def computation(task: TaskDecl, ran: Ran) -> tuple[str, ...]:
    """Return the statements that an instance runs, one text each, in the order of the file. ran: of the instance.

    Streams, their indices and local variables are renamed as they come; conditions of meta_if are left out, and loops
    with known trips hold their number. Tasks that differ in these names only have equal results.
    """
    local = {argument.arg for argument in task.body.args.args}
    local |= {n.id for n in ast.walk(task.body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names: dict[str, str] = {}
    trips = {at[:2]: at[2] for at in sorted(ran) if len(at) == 3}

    def walk(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            at = node.lineno, node.col_offset
            if at not in ran or isinstance(node, ast.Pass):
                continue
            match node:
                case ast.With(body=inner):
                    yield from walk(inner)
                    if at in trips:
                        yield f"loop {trips[at]}"
                case ast.For(target=target, iter=head, body=inner):
                    yield f"for {show(target)} in {trips.get(at) or show(head)}"
                    yield from walk(inner)
                    yield "end"
                case ast.If(test=test, body=inner, orelse=other) | ast.While(test=test, body=inner, orelse=other):
                    yield f"{type(node).__name__} {show(test)}"
                    yield from walk(inner)
                    yield "else"
                    yield from walk(other)
                    yield "end"
                case _:
                    yield show(node)

    def show(node: ast.AST) -> str:
        match node:
            case ast.Attribute(attr="put" | "get" as which):
                return which
            case ast.Name(id=name):
                return names.setdefault(name, f"v{len(names)}") if name in local else name
            case ast.Constant(value=value):
                return repr(value)
        parts = [type(node).__name__]
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                if not isinstance(value, ast.expr_context):
                    parts.append(f"{field}={show(value)}")
            elif isinstance(value, list):
                parts.append(f"{field}=[{', '.join(show(v) if isinstance(v, ast.AST) else repr(v) for v in value)}]")
            elif value is not None:
                parts.append(f"{field}={value!r}")
        return f"({' '.join(parts)})"

    return tuple(walk(task.body.body))
