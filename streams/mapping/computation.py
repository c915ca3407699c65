"""What an instance computes, up to names: the statements that it runs, with streams and local variables renamed."""

from __future__ import annotations

from collections.abc import Iterator

from ..syntax import nodes as syn
from ..tree import TaskDecl

Ran = frozenset[tuple[int, ...]]


def computation(task: TaskDecl, ran: Ran) -> tuple[str, ...]:
    """Return the statements that an instance runs, as texts, in the order of the file. task: of the instance. ran: the
    places of these statements (`Instance.ran`).

    Streams, indices of streams and local variables get new names in the order of their first use. Conditions of
    `meta_if` are left out, and a loop with a known number of iterations has that number. So two instances with the same
    texts compute the same of the same inputs."""
    local = {parameter.name for parameter in task.body.parameters}
    local |= {node.name for node in syn.walk(task.body) if isinstance(node, syn.Identifier) and node.stored}
    names: dict[str, str] = {}
    trips = {at[:2]: at[2] for at in sorted(ran) if len(at) == 3}

    def written(body: syn.Block) -> Iterator[str]:
        for node in body:
            at = node.place[:2]
            if at not in ran or isinstance(node, syn.Skip):
                continue
            match node:
                case syn.MetaChain(arms=arms):
                    for arm in arms:  # of which the instance ran one
                        yield from written(arm.body)
                    if at in trips:
                        yield f"loop {trips[at]}"
                case syn.ForLoop(target=target, iterable=head, body=inner):
                    yield f"for {show(target)} in {trips.get(at) or show(head)}"
                    yield from written(inner)
                    yield "end"
                case (
                    syn.Branching(test=test, body=inner, orelse=other)
                    | syn.WhileLoop(test=test, body=inner, orelse=other)
                ):
                    yield f"{node.kind} {show(test)}"
                    yield from written(inner)
                    yield "else"
                    yield from written(other)
                    yield "end"
                case _:
                    yield show(node)

    def show(node: object) -> str:
        match node:
            case syn.Attribute(name="put" | "get" as which):
                return which
            case syn.Identifier(name=name):
                return names.setdefault(name, f"v{len(names)}") if name in local else name
            case syn.SyntaxNode():
                return f"({node.kind} {' '.join(show(getattr(node, part)) for part in node.parts)})"
            case tuple():
                return f"[{', '.join(map(show, node))}]"
        return repr(node)

    return tuple(written(task.body.body))
