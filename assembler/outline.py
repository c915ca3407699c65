"""Outlining: turn packets and loops that occur several times, equal except for numbers and buffers, into blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .printed_lines import NUMBER, LineNode, LoopNumber, LoopVariable, NumberSlot, render, with_sums

SMALLEST = 4
"""Minimum number of lines of a block's body."""

SAVED = 5
"""Minimum number of lines that a block must save."""

BLOCKS = 24
"""Limit of blocks in a text, since the search for each goes through the whole text."""

PARAMETERS = 6
"""Limit of parameters of a block, for the reader's sake."""


class BufferName(NamedTuple):
    """A buffer's name that does not depend on loops inside the outlined node, so that it can become a parameter. slot:
    its text. sums: the numbers in it.
    """

    slot: NumberSlot
    sums: tuple[LoopNumber, ...]

    @property
    def text(self) -> Hashable:
        """A key that is equal for equal names: the texts between the numbers, and the numbers."""
        return self.slot.pieces, self.sums

    @property
    def fixed(self) -> bool:
        """Whether the name depends on no loop at all."""
        return all(not x.terms for x in self.sums)


@dataclass
class NodeShape:
    """The structure of a node, equal for nodes that can share a block, and what may differ between them.

    key: the structure. numbers: in order, without terms of loops inside the node; those in `names` are left out. names:
    buffers' names, in order.
    """

    key: Hashable = ()
    numbers: list[LoopNumber] = field(default_factory=list)
    names: list[BufferName] = field(default_factory=list)


def outline(nodes: Sequence[LineNode], size: int, taken: Container[str], units: Container[str]) -> list[LineNode]:
    """Move repeated nodes into blocks, most lines saved first; return the blocks and leave calls in `nodes`.

    size: columns of a line. taken: names that parameters must not have. units: names of units; an argument of such a
    name is quoted, or it would be read as the unit.
    """
    blocks: list[LineNode] = []
    count: Counter[str] = Counter()
    # Results of the last round. A node that became a call invalidates only those of the nodes around it.
    shapes: dict[LineNode, NodeShape] = {}
    outlines: dict[LineNode, int] = {}
    numbers: dict[Hashable, int] = {}
    changed: set[LineNode] = set()
    while len(blocks) < BLOCKS:
        for node in nodes:
            _forget(node, changed, shapes, outlines)
        similar: dict[int, list[LineNode]] = {}
        for node in nodes:
            _similar(node, outlines, numbers, similar)
        classes: dict[Hashable, list[tuple[LineNode, NodeShape]]] = {}
        for node in (node for members in similar.values() if len(members) > 1 for node in members):
            if node not in shapes:
                shapes[node] = _shape(node)
            classes.setdefault(shapes[node].key, []).append((node, shapes[node]))
        found = [(_saved(members, size), members) for members in classes.values() if len(members) > 1]
        usable = ((saved, members) for saved, members in found if saved >= SAVED)
        for _, members in sorted(usable, key=lambda x: -x[0]):
            made = _block([n for n, _ in members], [s for _, s in members], count, taken, units)
            if made is not None:
                blocks.append(made)
                changed = {node for node, _ in members}
                break
        else:
            break
    return blocks


def _similar(
    node: LineNode, outlines: dict[LineNode, int], numbers: dict[Hashable, int], similar: dict[int, list[LineNode]]
) -> int:
    """Return the number of a node's outline: equal for nodes of one shape, and cheaper than `_shape`, as it is built
    bottom-up from the outlines of the children. similar: nodes with bodies, by outline; this node and those inside it
    are added."""
    inside = tuple([_similar(child, outlines, numbers, similar) for child in node.children or ()])
    if node not in outlines:
        parts = tuple([part if isinstance(part, str) else part.what for part in node.parts])
        outlines[node] = numbers.setdefault((parts, node.loop, node.children is None, inside), len(numbers))
    if node.children:
        similar.setdefault(outlines[node], []).append(node)
    return outlines[node]


def _forget(node: LineNode, changed: Container[LineNode], *known: dict[LineNode, Any]) -> bool:
    """Drop the cached results of nodes that changed or contain a changed one; return whether this node is one."""
    inside = [_forget(child, changed, *known) for child in node.children or ()]
    stale = node in changed or any(inside)
    if stale:
        for facts in known:
            facts.pop(node, None)
    return stale


def _saved(members: Sequence[tuple[LineNode, NodeShape]], size: int) -> int:
    """Return the number of lines that a block for these nodes saves; 0 if they are too short for one."""
    lines = len(members[0][0].lines(size))
    return (len(members) - 1) * lines - len(members) - 3 if lines >= SMALLEST else 0


def _shape(root: LineNode) -> NodeShape:
    """Separate a node into its structure and the numbers and names that may differ between similar nodes."""
    inside: dict[LoopVariable | str, int] = {}
    out = NodeShape()

    def walk(node: LineNode) -> Hashable:
        if node.loop is not None and node.variable is not None:
            inside[node.variable] = len(inside)
        parts: list[Hashable] = []
        for part, sums in with_sums(node.parts, node.sums):
            if isinstance(part, str):
                parts.append(part)
                continue
            inner = tuple(tuple((inside[v], n) for v, n in x.terms if v in inside) for x in sums)
            if part.named and not any(inner):
                out.names.append(BufferName(part, tuple(sums)))
                parts.append(part.what)
                continue
            parts.append((part, inner))
            out.numbers += [LoopNumber(x.base, tuple(t for t in x.terms if t[0] not in inside)) for x in sums]
        children = None if node.children is None else tuple(map(walk, node.children))
        return node.loop, node.variable is None, node.inline, tuple(parts), children

    out.key = walk(root)
    return out


def _block(
    nodes: Sequence[LineNode],
    shapes: Sequence[NodeShape],
    count: Counter[str],
    taken: Container[str],
    units: Container[str],
) -> LineNode | None:
    """Make a block for nodes of one shape and turn them into calls of it; None if it needs too many parameters."""
    letters = iter([c for c in "abcdefgh" if c not in taken])
    others = iter([c for c in "xyzuvw" if c not in taken])
    parameters: list[str] = []
    arguments: list[list[tuple[str | NumberSlot, tuple[LoopNumber, ...]]]] = [[] for _ in nodes]
    columns = list(zip(*(s.numbers for s in shapes), strict=True))
    # Numbers that differ by the same amount in every node share a parameter.
    groups: dict[Hashable, list[int]] = {}
    for k, column in enumerate(columns):
        if any(x.terms for x in column) or len({x.base for x in column}) > 1:
            key = tuple((x.terms, x.base - column[0].base) for x in column)
            groups.setdefault(key, []).append(k)
    numbers: dict[int, tuple[str, int]] = {}
    for members in groups.values():
        name = next(letters, None)
        if name is None or len(parameters) == PARAMETERS:
            return None
        least = min(members, key=lambda k: columns[k][0].base)
        parameters.append(name)
        for k in members:
            numbers[k] = name, columns[k][0].base - columns[least][0].base
        for row, shape in zip(arguments, shapes, strict=True):
            row.append((NUMBER, (shape.numbers[least],)))
    names: dict[int, str] = {}
    known: dict[Hashable, str] = {}
    for k, column_names in enumerate(zip(*(s.names for s in shapes), strict=True)):
        texts = tuple(x.text for x in column_names)
        if column_names[0].fixed and len(set(texts)) == 1:
            continue
        if texts not in known:
            name = next(others, None)
            if name is None or len(parameters) == PARAMETERS:
                return None
            known[texts] = name
            parameters.append(name)
            for row, x in zip(arguments, column_names, strict=True):
                # Without quotes, a buffer with the name of a unit would be read as the unit.
                quote = x.fixed and render([x.slot], x.sums) in units
                row.append((NumberSlot("quote" if quote else "name", x.slot.pieces), x.sums))
        names[k] = known[texts]
    stem = _stem(nodes[0])
    count[stem] += 1
    title = f"{stem}{count[stem]}"
    body = _generic(nodes[0], numbers, names)
    for node, row in zip(nodes, arguments, strict=True):
        parts: list[str | NumberSlot] = [f"{title}("]
        sums: list[LoopNumber] = []
        for i, (part, values) in enumerate(row):
            parts += [", ", part] if i else [part]
            sums += values
        node.become((*parts, ")"), tuple(sums))
    return LineNode((f"block {title}({', '.join(parameters)})",), (), [body], False)


def _stem(node: LineNode) -> str:
    """Return the stem of a block's name: the first word of its first line other than `packet`."""
    while node.loop is not None and node.children:
        node = node.children[0]
    found = re.search(r"[A-Za-z]+", render(node.parts, node.sums).removeprefix("packet"))
    return found[0].lower() if found else "block"


def _generic(root: LineNode, numbers: dict[int, tuple[str, int]], names: dict[int, str]) -> LineNode:
    """Copy a node as a block's body: numbers and names become parameters. numbers: parameter and offset by the number's
    place; names: parameter by the name's place."""
    inside: set[LoopVariable | str] = set()
    at_number = at_name = 0

    def copy(node: LineNode) -> LineNode:
        nonlocal at_number, at_name
        if node.variable is not None:
            inside.add(node.variable)
        parts: list[str | NumberSlot] = []
        sums: list[LoopNumber] = []
        for part, mine in with_sums(node.parts, node.sums):
            if isinstance(part, str):
                parts.append(part)
                continue
            if part.named and not any(v in inside for x in mine for v, _ in x.terms):
                if at_name in names:
                    parts.append(names[at_name])
                else:
                    parts.append(part)
                    sums += mine
                at_name += 1
                continue
            parts.append(part)
            for x in mine:
                terms = tuple(t for t in x.terms if t[0] in inside)
                if at_number in numbers:
                    name, more = numbers[at_number]
                    x = LoopNumber(more, ((name, 1), *terms))
                sums.append(x)
                at_number += 1
        children = None if node.children is None else [copy(child) for child in node.children]
        return LineNode(tuple(parts), tuple(sums), children, node.inline, node.loop, node.variable)

    return copy(root)
