"""Dataflow graphs: kernels, and the streams between them with the order of the tokens at either end.

The nodes stand in a topological order that is part of the graph: passes whose results depend on the order of the nodes
(Algorithm 2 of StreamTensor does) give the same result for the same graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...base.errors import ProgramError
from ..orders.order import Order
from .topology import topological_order


@dataclass(frozen=True)
class Timing:
    """When a kernel puts its tokens, in cycles of an execution that nothing delays.

    first: cycles from the start to the first token (D). interval: cycles from a token to the next one (initiation
    interval, II). tokens: of an execution (T). Raises `ProgramError` for a first token before cycle 0, and for an
    interval or tokens less than 1.
    """

    first: int
    interval: int
    tokens: int

    def __post_init__(self) -> None:
        if self.first < 0 or self.interval < 1 or self.tokens < 1:
            raise ProgramError(
                f"a timing takes first >= 0, interval >= 1, tokens >= 1; this one has first {self.first}, "
                f"interval {self.interval}, tokens {self.tokens}"
            )

    @property
    def last(self) -> int:
        """Cycles from the start of the kernel to its last token: L = D + (T - 1) * II."""
        return self.first + (self.tokens - 1) * self.interval


@dataclass(frozen=True)
class KernelNode:
    """A kernel of a dataflow graph.

    op: what it computes, such as "matmul" or "softmax". attributes: parameters of that. memory_bytes: its own memory on
    chip, such as accumulators, without converters and FIFOs. timing: when it puts its tokens; None if not known yet.
    Raises `ProgramError` for less memory than 0 bytes."""

    name: str
    op: str
    attributes: Mapping[str, object] = field(default_factory=dict)
    memory_bytes: int = 0
    timing: Timing | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes < 0:
            raise ProgramError(f"node {self.name} has {self.memory_bytes} bytes of memory; 0 is the least")


@dataclass(frozen=True)
class Edge:
    """A stream between two nodes.

    put, get: the order of the tokens at the source and at the target; where they are not equal (canonical forms), a
    converter stands between. operand: which input of the target it is, from 0. Raises `ProgramError` for orders of
    tensors with other shapes or element types.
    """

    source: str
    target: str
    put: Order
    get: Order
    operand: int = 0

    def __post_init__(self) -> None:
        if self.put.tensor != self.get.tensor or self.put.dtype != self.get.dtype:
            raise ProgramError(
                f"stream {self}: {self.source} puts a tensor of shape {list(self.put.tensor)} of {self.put.dtype}, "
                f"{self.target} gets one of shape {list(self.get.tensor)} of {self.get.dtype}; both ends need the same "
                f"tensor"
            )

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True)
class Dataflow:
    """A graph of kernels without cycles.

    nodes: in topological order. edges: streams; two nodes may share several. Raises `ProgramError` for two nodes of one
    name, edges to nodes that do not exist, two edges at one operand, nodes not in topological order; `CycleError` for
    cycles. `Dataflow.of` takes nodes in any order.
    """

    nodes: tuple[KernelNode, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        topological_order([node.name for node in self.nodes], [(edge.source, edge.target) for edge in self.edges])
        operands: set[tuple[str, int]] = set()
        for edge in self.edges:
            if (edge.target, edge.operand) in operands:
                raise ProgramError(f"two streams lead to operand {edge.operand} of {edge.target}; number its operands")
            operands.add((edge.target, edge.operand))
            if self.index[edge.source] > self.index[edge.target]:
                raise ProgramError(
                    f"{edge.target} stands before {edge.source}, which it reads; Dataflow.of puts nodes in order"
                )

    @classmethod
    def of(cls, nodes: Iterable[KernelNode], edges: Iterable[Edge]) -> Dataflow:
        """Return a graph of nodes that are given in any order. Where several nodes could come next in topological
        order, the first given one does. edges: the streams between them. Raises `ProgramError` and `CycleError` as the
        class."""
        given, streams = tuple(nodes), tuple(edges)
        by_name = {node.name: node for node in given}
        order = topological_order([node.name for node in given], [(edge.source, edge.target) for edge in streams])
        return cls(tuple(by_name[name] for name in order), streams)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each node in `nodes`, by its name."""
        return {node.name: k for k, node in enumerate(self.nodes)}

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Positions of the source and of the target of each edge."""
        return tuple((self.index[edge.source], self.index[edge.target]) for edge in self.edges)

    @cached_property
    def _into(self) -> Mapping[str, tuple[Edge, ...]]:
        found: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.target].append(edge)
        return {name: tuple(sorted(edges, key=lambda edge: edge.operand)) for name, edges in found.items()}

    @cached_property
    def _outof(self) -> Mapping[str, tuple[Edge, ...]]:
        found: dict[str, list[Edge]] = {node.name: [] for node in self.nodes}
        for edge in self.edges:
            found[edge.source].append(edge)
        return {name: tuple(edges) for name, edges in found.items()}

    def node(self, name: str) -> KernelNode:
        """Return the node of this name. Raises `ProgramError` if there is none."""
        if name not in self.index:
            raise ProgramError(f"no node has the name {name}; there are {', '.join(self.index)}")
        return self.nodes[self.index[name]]

    def into(self, name: str) -> tuple[Edge, ...]:
        """Return the streams that a node reads, in the order of its operands. Raises `ProgramError` as `node`."""
        return self._into[self.node(name).name]

    def outof(self, name: str) -> tuple[Edge, ...]:
        """Return the streams that a node writes, in the order of the edges. Raises `ProgramError` as `node`."""
        return self._outof[self.node(name).name]
