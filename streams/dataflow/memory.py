"""Memory on chip of a dataflow graph: what fusion counts, and how it compares with whole tensors on chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from math import prod

from ...base.errors import ProgramError
from ..orders.converter import converter
from ..orders.order import Order
from .fusion import FusedStream, FusionSpace
from .graph import Dataflow

DEPTH = 2
"""Tokens of a FIFO whose depth is not given: one is put while another one is read."""


class Counted(Flag):
    """What counts as memory on chip: buffers of converters, the kernels' own memory, FIFOs. StreamTensor's C_max is all
    memory on chip, but its costs are converters alone."""

    CONVERTERS = auto()
    KERNELS = auto()
    FIFOS = auto()
    ALL = CONVERTERS | KERNELS | FIFOS


def fusion_space(
    graph: Dataflow,
    counted: Counted = Counted.ALL,
    *,
    shared: bool = True,
    depths: Mapping[int, int] | None = None,
) -> FusionSpace:
    """Return the numbers by which the nodes of a graph are fused: bytes of kernels, converters and FIFOs, and of the
    tensors that streams move.

    counted: what takes memory. shared: whether streams of one kernel that need equal converters share one. depths: of
    FIFOs in tokens, by position of the edge; 2 where none is given. An edge with a converter has two FIFOs of this
    depth, one on each side; streams that share a converter share the FIFO before it, which has the largest of their
    depths. Raises `ProgramError` for a depth below 1."""
    converters: list[int] = []
    numbers: dict[tuple[object, ...], int] = {}
    streams: list[FusedStream] = []
    for k, edge in enumerate(graph.edges):
        depth = (depths or {}).get(k, DEPTH)
        if depth < 1:
            raise ProgramError(f"stream {edge}: a FIFO of {depth} tokens; the least is 1")
        found = converter(edge.put, edge.get)
        fifo, number = depth * edge.get.bytes_per_token, None
        if found is not None:
            size = found.ping_pong_bytes if Counted.CONVERTERS in counted else 0
            size += depth * edge.put.bytes_per_token if Counted.FIFOS in counted else 0
            key = (edge.source, edge.put.canonical, edge.get.canonical) if shared else (k,)
            number = numbers.setdefault(key, len(converters))
            if number == len(converters):
                converters.append(size)
            converters[number] = max(converters[number], size)
        fifo = fifo if Counted.FIFOS in counted else 0
        source, target = graph.links[k]
        streams.append(FusedStream(source, target, tensor_bytes(edge.put), number, fifo))
    own = tuple(node.memory_bytes if Counted.KERNELS in counted else 0 for node in graph.nodes)
    return FusionSpace(tuple(node.name for node in graph.nodes), own, tuple(streams), tuple(converters))


def tensor_bytes(order: Order) -> int:
    """Return the bytes of the tensor that an order's tokens make up, each element once, rounded up to whole ones."""
    return order.bytes_of(prod(order.tensor))


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on chip of a graph that runs as one group.

    whole: double buffers of the whole tensor of each stream, as a chain of kernels without converters needs them.
    converters: of each stream that needs one. shared: the same, with one converter for streams of one kernel that need
    equal ones. kernels: their own memory. fifos: with the depths that were given.
    """

    whole: int
    converters: int
    shared: int
    kernels: int
    fifos: int

    @property
    def ratio(self) -> float:
        """Bytes of converters divided by those of whole tensors; 0 for a graph without streams."""
        return self._of_whole(self.converters)

    @property
    def shared_ratio(self) -> float:
        """Bytes of shared converters divided by those of whole tensors; 0 for a graph without streams."""
        return self._of_whole(self.shared)

    @property
    def fused_ratio(self) -> float:
        """Bytes of shared converters and FIFOs, which streams take on chip after fusion, divided by those of whole
        tensors, which they take before it; 0 for a graph without streams."""
        return self._of_whole(self.shared + self.fifos)

    def _of_whole(self, size: int) -> float:
        return size / self.whole if self.whole else 0.0


def memory_use(graph: Dataflow, depths: Mapping[int, int] | None = None) -> MemoryUse:
    """Return the bytes on chip of a graph that runs as one group. depths: of FIFOs, as for `fusion_space`. Raises
    `ProgramError` for a depth below 1.
    """

    def total(counted: Counted, shared: bool = True) -> int:
        space = fusion_space(graph, counted, shared=shared, depths=depths)
        return space.bytes_of(range(len(space.names)))

    return MemoryUse(
        whole=2 * sum(tensor_bytes(edge.put) for edge in graph.edges),
        converters=total(Counted.CONVERTERS, shared=False),
        shared=total(Counted.CONVERTERS),
        kernels=total(Counted.KERNELS),
        fifos=total(Counted.FIFOS),
    )
