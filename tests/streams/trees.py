"""What trees of stream programs are compared by."""

from __future__ import annotations

from rsn.base.place import Place
from rsn.streams.syntax.nodes import Block, Foreign, ForeignStatement, walk


def places(tree: Block) -> list[tuple[str, Place]]:
    """The places of all nodes, but of those in what the language does not have: it is printed as it is."""
    nodes = [node for part in tree for node in walk(part)]
    hidden = {id(below) for node in nodes if isinstance(node, Foreign | ForeignStatement) for below in walk(node)}
    return [(node.kind, node.place) for node in nodes if id(node) not in hidden]
