"""A dataflow graph taken apart into its groups: what each loads from memory off the chip, and what it stores there."""

from __future__ import annotations

from dataclasses import dataclass

from rsn.base.errors import ProgramError
from rsn.streams.dataflow.fusion import Fusion
from rsn.streams.dataflow.graph import Dataflow, Edge
from rsn.streams.dataflow.memory import tensor_bytes


@dataclass(frozen=True)
class Part:
    """A group of kernels that run at once.

    graph: its kernels, and the streams between them. loads: streams of the whole graph that come from earlier groups;
    the target gets the tensor from memory, in the order in which it reads it. stores: streams that lead to later
    groups.
    """

    graph: Dataflow
    loads: tuple[Edge, ...]
    stores: tuple[Edge, ...]

    @property
    def stored(self) -> tuple[str, ...]:
        """The kernels whose results go to memory, each once."""
        return tuple(dict.fromkeys(edge.source for edge in self.stores))

    @property
    def load_bytes(self) -> int:
        """Bytes that are read from memory: tokens that a kernel gets again are read again."""
        return sum(edge.get.tokens * edge.get.bytes_per_token for edge in self.loads)

    @property
    def store_bytes(self) -> int:
        """Bytes that are written to memory: each result once."""
        return sum({edge.source: tensor_bytes(edge.put) for edge in self.stores}.values())


def parts(graph: Dataflow, fusion: Fusion) -> tuple[Part, ...]:
    """Return the groups of a graph, in the order in which they run. fusion: of `fusion_space(graph)`."""
    names = tuple(node.name for node in graph.nodes)
    if fusion.space.names != names:
        raise ProgramError(f"the fusion is of {len(fusion.space.names)} other kernels, not of the {len(names)} given")
    found = []
    for number in range(1, len(fusion.groups) + 1):
        inside = {name for name, group in zip(names, fusion.group, strict=True) if group == number}
        nodes = tuple(node for node in graph.nodes if node.name in inside)
        edges = tuple(edge for edge in graph.edges if edge.source in inside and edge.target in inside)
        loads = tuple(edge for edge in graph.edges if edge.source not in inside and edge.target in inside)
        stores = tuple(edge for edge in graph.edges if edge.source in inside and edge.target not in inside)
        found.append(Part(Dataflow(nodes, edges), loads, stores))
    return tuple(found)
