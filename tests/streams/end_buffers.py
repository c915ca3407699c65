"""Buffers at both ends of a stream, and their folding into one.

A kernel writes a token into a buffer of its own, from where it goes through the FIFO; the other kernel reads it from
there into a buffer of its own. Each buffer is double, so that one token is filled while the other one moves. If both
ends go through the token in the same way, one double buffer between the kernels does the same (StreamTensor, MICRO'25).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rsn.streams.dataflow.graph import Dataflow, Edge


@dataclass(frozen=True)
class EndBuffers:
    """Buffers of one stream. elements: of all; tokens: that they hold; folded: they are one double buffer."""

    edge: Edge
    tokens: int
    elements: int
    folded: bool

    @property
    def bytes(self) -> int:
        """Bytes of all."""
        return self.elements * self.edge.put.bytes_per_token // prod(self.edge.put.element)


def end_buffers(edge: Edge, fold: bool = True) -> EndBuffers:
    """Return the buffers of a stream: a double one at either end, or only one if `fold`, and the orders are equal.
    Beside a converter, both buffers stay."""
    folded = fold and edge.put.canonical == edge.get.canonical
    tokens = 2 if folded else 4
    elements = 2 * prod(edge.put.element) + (0 if folded else 2 * prod(edge.get.element))
    return EndBuffers(edge, tokens, elements, folded)


def folded_bytes(graph: Dataflow) -> tuple[int, int]:
    """Return the bytes of buffers at the ends of all streams, without folding and with it."""
    before = sum(end_buffers(edge, fold=False).bytes for edge in graph.edges)
    return before, sum(end_buffers(edge).bytes for edge in graph.edges)
